--- Arguments of functions made in Lua, read by a signature: the same rules as for ops (src/lua/call.c).
--
--     local signature = require "moth.utils.signature"
--     local chunk = signature("chunk(Tensor input, count chunks, Dim dim=1)", function(x, chunks, dim) … end)
--     nn.Linear.__init = signature.init("nn.Linear(count in_features, count out_features, bool bias=true, *, \z
--       dtype dtype?)", function(self, o) … end)           -- o.in_features, o.bias, …
--     Canvas.save = signature.method("save(path path)", function(self, path) … end)
--     local concat = signature.alias("concat", cat)        -- the same under another name
--
-- A call gives arguments by position, and by name in one table after them. Values without a name at the beginning of
-- that table are the list where a list is expected (moth.cat{ a, b, dim = 2 }), else the next arguments by position
-- (nn.Linear{ 3, 4, bias = false }). Each argument is checked; an unknown name, one given twice, a value of the wrong
-- type, a list with a hole and a missing argument are errors that quote the signature, at the user's line. Errors of
-- ops and functions called within carry the name of the signature, too.
--
-- A parameter is `type name`, `type name?` (nil if not given) or `type name=default`. Parameters after `*` are passed
-- by name only. `type... name`, the last by position, takes one list or the values themselves.
-- `...` at the end: further values are passed on unchanged to a function of the user's; none of them is an option.
-- Types are below; `int|int[]` is either; 'a'|'b' are words. An int64_t or uint64_t up to 2^53 counts as a number.
--
-- A call by position, without tables, costs little more than its checks: they are compiled into one function.
local ffi = require "ffi"
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"

local M = {}

local function is_integer(v) return type(v) == "number" and v == math.floor(v) and math.abs(v) <= 2 ^ 53 end
local function is(kind) return function(v) return type(v) == kind end end

-- Whether `v` is a plain list, not a module or other object.
local function is_list(v) return type(v) == "table" and check.is_plain(v) and check.hole(v) == nil end

-- A key that makes a plain table no list: a name, or a number after a gap. Objects may have any fields.
local function odd_key(v)
  local n, key = #v, next(v)
  while key ~= nil do
    if type(key) ~= "number" and getmetatable(v) == nil or type(key) == "number" and (key < 1 or key > n) then
      return key
    end
    key = next(v, key)
  end
end

local function list_of(item)
  return function(v)
    if type(v) ~= "table" then return false end
    for i = 1, #v do if not item(v[i]) then return false end end
    return (#v > 0 or next(v) == nil) and odd_key(v) == nil
  end
end

local int64, uint64 = ffi.typeof("int64_t"), ffi.typeof("uint64_t")
-- An int64_t or uint64_t as a number, if it is one exactly.
local function plain_number(v)
  if ffi.istype(int64, v) and v <= 2LL ^ 53 and v >= -2LL ^ 53 or ffi.istype(uint64, v) and v <= 2ULL ^ 53 then
    return tonumber(v)
  end
  return v
end

-- An instance of a module's class; the class itself is none.
local function is_module(v)
  local mt = type(v) == "table" and getmetatable(v)
  return type(mt) == "table" and rawget(mt, "__module") == true
end

-- type -> { test, its name in errors }
local types = {
  Tensor = { B.is_tensor, "a tensor" },
  number = { is "number", "a number" },
  complex = { function(v) return ffi.istype("complex", v) or ffi.istype("complex float", v) end, "a complex number" },
  int = { is_integer, "an integer" },
  size = { function(v) return is_integer(v) and v >= 0 end, "an integer of at least 0" },
  count = { function(v) return is_integer(v) and v >= 1 end, "an integer of at least 1" },
  layers = { function(v) return is_integer(v) and v >= 0 and v <= 10000 end, "an integer from 0 to 10000" },
  Dim = { function(v) return is_integer(v) and v ~= 0 end, "a dimension (1 is the first, -1 the last)" },
  Index = { function(v) return is_integer(v) and v ~= 0 end, "a position (1 is the first, -1 the last)" },
  bool = { is "boolean", "true or false" },
  ["false"] = { function(v) return v == false end, "false" },
  string = { is "string", "a string" },
  path = { function(v) return type(v) == "string" and not v:find("\0", 1, true) end, "a path (without the byte 0)" },
  dtype = { function(v) return B.is_dtype(v) or (type(v) == "string" and (pcall(B.dtype, v))) end,
    "a dtype such as moth.float32" },
  device = { function(v) return B.is_device(v) or type(v) == "string" end, "a device such as \"cpu\"" },
  Generator = { function(v) return type(v) == "userdata" and getmetatable(v) == B.Generator end, "a Generator" },
  ["function"] = { is "function", "a function" },
  callable = { check.is_callable, "a function or a module" },
  table = { is "table", "a table" },
  list = { is_list, "a list" },
  Module = { is_module, "a module" },
  any = { function(v) return v ~= nil end, "a value" },
}
for _, name in ipairs({ "Tensor", "number", "int", "size", "count", "layers", "Dim", "Index", "bool", "string", "table",
  "any", "callable" }) do
  types[name .. "[]"] = { list_of(types[name][1]), "a list, each " .. types[name][2] }
end

-- ---- reading a signature ---------------------------------------------------------------------------

local function parse_type(text, where)
  local tests, names, takes_list, takes_table = {}, {}, false, false
  for part in text:gmatch("[^|]+") do
    local word = part:match("^'(.*)'$")
    local kind = types[part]
    if word then
      tests[#tests + 1], names[#names + 1] = function(v) return v == word end, part
    elseif kind then
      tests[#tests + 1], names[#names + 1] = kind[1], kind[2]
      if part:sub(-2) == "[]" or part == "list" then takes_list = true end
      if part == "table" or part == "any" or part == "callable" or part == "Module" then takes_table = true end
    else
      error(("signature: '%s' is no type, in %s"):format(part, where))
    end
  end
  local function test(v)
    for i = 1, #tests do if tests[i](v) then return true end end
    return false
  end
  return #tests == 1 and tests[1] or test, table.concat(names, " or "), takes_list, takes_table
end

local constants = { ["true"] = true, ["false"] = false, inf = math.huge, ["-inf"] = -math.huge }

local function parse_default(text, where)
  if constants[text] ~= nil then return constants[text] end
  local word = text:match("^'(.*)'$")
  if word then return word end
  return tonumber(text) or error(("signature: '%s' is no default, in %s"):format(text, where))
end

-- "f(Tensor x, int n=1)" -> { name, text, params = { { name, test, expected, … } }, at = { name -> position } }
local function parse(text)
  local name, inside = text:match("^([%w_.:]+)%((.*)%)$")
  if not name then error("signature: expected name(type name, …), got " .. text) end
  local s = { name = name, text = text, params = {}, at = {}, positional = 0 }
  local named_only = false
  for part in inside:gmatch("[^,]+") do
    part = part:match("^%s*(.-)%s*$")
    if part == "*" then
      named_only = true
    elseif part == "..." then
      s.rest = true
    else
      local type_name, param, rest = part:match("^(%S+)%s+([%w_]+)(.*)$")
      if not param then error(("signature: '%s' in %s is no parameter"):format(part, text)) end
      local p = { name = param, type = type_name, named_only = named_only }
      s.calls = s.calls or type_name:find("callable") or type_name:find("function") or type_name:find("Module")
      local item = type_name:match("^(.*)%.%.%.$")
      if item then
        p.variadic = parse_type(item, text)
        type_name = item .. "[]"
      end
      p.test, p.expected, p.takes_list, p.takes_table = parse_type(type_name, text)
      p.optional = rest == "?"
      if rest:sub(1, 1) == "=" then
        p.has_default, p.default = true, parse_default(rest:sub(2), text)
      end
      s.params[#s.params + 1], s.at[param] = p, #s.params + 1
      if not named_only then s.positional = #s.params end
    end
  end
  return s
end

-- ---- reading a call --------------------------------------------------------------------------------

local function fail(s, message, ...)
  check.fail("[%s] %s; %s", s.name, message:format(...), s.text)
end

local function shown(v)
  if type(v) == "number" and v == math.floor(v) and math.abs(v) > 2 ^ 53 and v - v == 0 then
    return ("%.17g, beyond 2^53, where Lua's numbers skip integers"):format(v)
  end
  if type(v) == "string" then return ("the string '%.40s'"):format(v) end
  if type(v) == "number" then return ("%.14g"):format(v) end
  if type(v) == "boolean" or v == nil then return tostring(v) end
  if B.is_tensor(v) then return "a tensor" end
  if type(v) == "table" and getmetatable(v) then
    if rawget(v, "__name") then return ("the class %s"):format(tostring(v.__name)) end
    if is_module(v) then return ("a module (%s)"):format(getmetatable(v).__name) end
  end
  return type(v)
end

-- The error message for value `v` of parameter `p`.
local function complain(s, p, v)
  if type(v) == "table" and p.takes_list and check.is_plain(v) then
    local hole = check.hole(v)
    if hole then
      fail(s, "argument '%s': the list has a hole: it has element %s and none before it", p.name, tostring(hole))
    end
    for k = 1, #v do
      if not p.test({ v[k] }) then
        fail(s, "argument '%s': expected %s, got %s as element %d", p.name, p.expected, shown(v[k]), k)
      end
    end
    local key = odd_key(v)
    if type(key) == "number" then
      fail(s, "argument '%s': the list has a hole: it has element %s and none before it", p.name, tostring(key))
    elseif key ~= nil and p.expected:find "^a list" then
      fail(s, "argument '%s': a list has no named fields ('%s'); options go into the last argument", p.name,
        tostring(key))
    end
  end
  local mt = type(v) == "table" and getmetatable(v)
  if mt and rawget(mt, "__op") and p.expected:find("a tensor", 1, true) then
    fail(s, "argument '%s': expected %s, got a %s; use its to_dense()", p.name, p.expected, mt.__name)
  end
  fail(s, "argument '%s': expected %s, got %s", p.name, p.expected, shown(v))
end

local function put(s, out, given, i, v)
  local p = s.params[i]
  if given[i] then fail(s, "argument '%s' is given twice", p.name) end
  if type(v) == "cdata" then
    v = plain_number(v)
  elseif p.takes_list and type(v) == "table" and getmetatable(v) == nil then
    for k = 1, #v do
      if type(v[k]) == "cdata" then -- do not change the caller's list
        local list = {}
        for at = 1, #v do list[at] = plain_number(v[at]) end
        v = list
        break
      end
    end
  end
  if not p.test(v) then complain(s, p, v) end
  out[i], given[i] = v, true
end

-- Whether `v` is a table of named arguments: plain, with a key that is a name, or empty.
local function has_names(v)
  if type(v) ~= "table" or getmetatable(v) ~= nil then return false end
  local n, count = #v, 0
  local key = next(v)
  while key ~= nil do
    if type(key) ~= "number" then return true end
    count = count + 1
    key = next(v, key)
  end
  return count == 0 and n == 0
end

local function put_names(s, out, given, t)
  local key, value = next(t)
  while key ~= nil do
    if type(key) ~= "number" then
      local i = s.at[key]
      if not i then
        local names = {}
        for k, p in ipairs(s.params) do names[k] = p.name end
        fail(s, "unknown option '%s'%s", tostring(key), check.suggest(tostring(key), names))
      end
      put(s, out, given, i, value)
    elseif key < 1 or key > #t then
      fail(s, "the list has a hole: there is no element before %s", tostring(key))
    end
    key, value = next(t, key)
  end
end

-- Arguments with numbers for symbols (moth.compile.symbols sets M.lower while there are such).
local function lowered(...)
  local n, args = select("#", ...), { ... }
  for i = 1, n do args[i] = M.lower(args[i]) end
  return unpack(args, 1, n)
end

-- The arguments of a call, in the order of the signature.
local function read(s, ...)
  local n, params, out, given = select("#", ...), s.params, {}, {}
  local last = n > 0 and (select(n, ...)) or nil
  if n > 1 and last == nil then -- nil after a table: an optional argument passed on by a caller
    local at = n
    while at > 1 and (select(at, ...)) == nil do at = at - 1 end
    if type((select(at, ...))) == "table" then n, last = at, (select(at, ...)) end
  end
  local i, at = 1, 1
  while at <= n do
    local p = params[i]
    local v = (select(at, ...))
    local positional = i <= s.positional
    if at == n and v == nil and (not positional or p.optional or p.has_default) then break end
    if at == n and has_names(last) and not (positional and p.takes_table and p.test(last))
      and not (positional and p.takes_list and next(last) == nil) then
      local list = {}
      for k = 1, #last do list[k] = last[k] end
      if #list > 0 and positional and p.takes_list then
        put(s, out, given, i, list)
      else
        for k = 1, #list do
          if i > s.positional then fail(s, "too many arguments") end
          put(s, out, given, i, list[k])
          i = i + 1
        end
      end
      put_names(s, out, given, last)
      break
    end
    if not positional then fail(s, "too many arguments") end
    if p.variadic and p.variadic(v) then
      local list = {}
      while at <= n and p.variadic((select(at, ...))) do
        list[#list + 1] = (select(at, ...))
        at = at + 1
      end
      put(s, out, given, i, list)
    elseif v == nil then
      if not (p.optional or p.has_default) then fail(s, "argument '%s': expected %s, got nil", p.name, p.expected) end
      at = at + 1
    else
      put(s, out, given, i, v)
      at = at + 1
    end
    i = i + 1
  end
  for k = 1, #params do
    if not given[k] then
      local p = params[k]
      if p.has_default then out[k] = p.default
      elseif not p.optional then fail(s, "argument '%s' is missing", p.name) end
    end
  end
  return out
end

-- Checks the arguments before `...`.
local function check_first(s, ...)
  for i, p in ipairs(s.params) do
    local v = (select(i, ...))
    if v == nil and select("#", ...) < i and not p.optional then fail(s, "argument '%s' is missing", p.name) end
    if not (v == nil and p.optional) and not p.test(v) then complain(s, p, v) end
  end
end

-- ---- functions with a signature --------------------------------------------------------------------

local known = setmetatable({}, { __mode = "k" }) -- function -> { text, fn }
local originals = setmetatable({}, { __mode = "k" }) -- function -> the one of which it is an alias

local function done(...) return ... end -- avoids tail calls: error messages look for the frame

-- A function that calls `fn` if all arguments are given by position, none is a table and all tests pass, else `slow`.
local function compile(s, fn, slow)
  local params, lines = s.params, {}
  local env = { fn = fn, slow = slow, done = done, is_tensor = B.is_tensor, select = select, type = type }
  local function add(...) lines[#lines + 1] = string.format(...) end
  local names, values, tests = {}, {}, {}
  for i = 1, #params do
    local p = params[i]
    if p.variadic then return slow end
    env["test" .. i], env["default" .. i] = p.test, p.default
    names[i], values[i] = "a" .. i, i <= s.positional and "a" .. i or p.has_default and "default" .. i or "nil"
    if i <= s.positional then
      local test = p.test == B.is_tensor and ("is_tensor(a%d)"):format(i) or ("test%d(a%d)"):format(i, i)
      if p.takes_list or p.takes_table then test = ('type(a%d) ~= "table" and %s'):format(i, test) end
      if p.optional or p.has_default then test = ("(a%d == nil or %s)"):format(i, test) end
      tests[#tests + 1] = test
    elseif not (p.optional or p.has_default) then
      return slow
    end
  end
  if s.rest then -- no number of arguments, no defaults
    tests[1] = s.positional > 0 and tests[1] or "true"
    local list = table.concat(names, ", ", 1, s.positional)
    for name in each(env) do add("local %s = env.%s", name, name) end
    add("return function(%s, ...)", list)
    add("  if %s then return fn(%s, ...) end", table.concat(tests, " and "), list)
    add("  return slow(%s, ...)", list)
    add("end")
    return assert(loadstring("local env = ...\n" .. table.concat(lines, "\n"), debug.getinfo(1, "S").source))(env)
  end
  for name in each(env) do add("local %s = env.%s", name, name) end
  add("return function(...)")
  if s.positional > 0 then add("  local %s = ...", table.concat(names, ", ", 1, s.positional)) end
  table.insert(tests, 1, ("select('#', ...) <= %d"):format(s.positional))
  add("  if %s then", table.concat(tests, " and "))
  for i = 1, s.positional do
    if params[i].has_default then add("    if a%d == nil then a%d = default%d end", i, i, i) end
  end
  add("    return done(fn(%s))", table.concat(values, ", "))
  add("  end")
  add("  return slow(...)")
  add("end")
  local chunk = assert(loadstring("local env = ...\n" .. table.concat(lines, "\n"), debug.getinfo(1, "S").source))
  return chunk(env)
end

-- Calls fn with the arguments after * collected in one table.
local function with_options(s, fn)
  if #s.params == s.positional then return fn end
  return function(...)
    local o = {}
    for i = s.positional + 1, #s.params do o[s.params[i].name] = (select(i, ...)) end
    local values = { ... }
    values[s.positional + 1] = o
    return done(fn(unpack(values, 1, s.positional + 1)))
  end
end

--- fn(…) with its arguments checked and in the signature's order; with `options`, arguments that are passed by name
-- only come as one table after the others. The text is parsed at the first call.
function M.wrap(text, fn, options)
  local run
  local function prepare()
    local s = parse(text)
    local fn = options and with_options(s, fn) or fn -- luacheck: ignore
    if s.rest then
      run = compile(s, fn, function(...)
        if M.lower then
          check_first(s, lowered(...))
          return fn(lowered(...))
        end
        check_first(s, ...)
        return fn(...)
      end)
      return
    end
    local function slow(...)
      local out = M.lower and read(s, lowered(...)) or read(s, ...)
      return done(fn(unpack(out, 1, #s.params)))
    end
    run = compile(s, fn, slow)
    -- Errors of ops called within carry this name, unless the function calls a function of the user's.
    if not s.calls then B.names[slow], B.names[run] = s.name, s.name end
  end
  local function checked(...)
    if not run then prepare() end
    return run(...)
  end
  known[checked] = { text, fn, options }
  return checked
end

--- The same function under another name, also in its errors: a C function of the binding, or one made here.
function M.alias(name, fn)
  local k = known[fn]
  local made = k and M.wrap((k[1]:gsub("^[%w_.:]+", name, 1)), k[2], k[3]) or B.named(fn, name)
  originals[made] = fn
  return made
end

--- What alias has given another name; any other function itself.
function M.original(fn) return originals[fn] or fn end

--- Gives functions of a module their signatures: { "grad(callable f, …)", … }. The part of a name after the last dot
-- is the key in the module. `options` as for wrap.
function M.all(module, texts, options)
  for _, text in ipairs(texts) do
    local name = text:match("([%w_]+)%(")
    module[name] = M.wrap(text, module[name], options)
  end
  return module
end

--- A constructor or method: fn(self, o), where o has all arguments by name.
function M.init(text, fn)
  local s
  local function checked(self, ...)
    s = s or parse(text)
    local out, o = read(s, ...), {}
    for i, p in ipairs(s.params) do o[p.name] = out[i] end
    return done(fn(self, o))
  end
  known[checked] = { text, fn }
  if not (text:find("callable") or text:find("Module")) then B.names[checked] = text:match("^[%w_.:]+") end
  return checked
end

--- A method of a class made in Lua: fn(self, …), the arguments in the signature's order.
function M.method(text, fn)
  local s
  local function checked(self, ...)
    s = s or parse(text)
    if type(self) ~= "table" then fail(s, "it is a method: call it with a colon, object:%s(…)", s.name) end
    return done(fn(self, unpack(read(s, ...), 1, #s.params)))
  end
  known[checked] = { text, fn }
  if not (text:find("callable") or text:find("Module")) then B.names[checked] = text:match("^[%w_.:]+") end
  return checked
end

--- The signature of a function made here, and the function inside; or nil.
function M.of(fn)
  if known[fn] then return known[fn][1], known[fn][2] end
end

--- The name of a signature (its text, or a function made with one) and a list of its parameters, each { name, type,
-- default, optional, named_only }.
function M.parameters(of)
  local s, out = parse(M.of(of) or of), {}
  for i, p in ipairs(s.params) do
    out[i] = { name = p.name, type = p.type, default = p.default, optional = p.optional or p.has_default or false,
      named_only = p.named_only }
  end
  return s.name, out
end

--- Adds a type for signatures: test(value), and its name in errors.
function M.type(name, test, expected)
  types[name] = { test, expected }
  types[name .. "[]"] = { list_of(test), "a list, each " .. expected }
end

return setmetatable(M, { __call = function(_, ...) return M.wrap(...) end })
