--- Sizes as symbols: numbers that know how they follow from the open dimensions of a program.
--
-- A program is recorded at several sizes. What the function asks of sizes, x:size(1), #x, x:numel(), is noted there,
-- and is a formula of the dimensions. Then it is recorded once more at the example's sizes, where these questions are
-- answered by symbols, cdata with metamethods: their arithmetic makes expressions (moth.compile.sizes); a comparison is
-- noted as a guard, with its line: the program holds where guards are as they were. Where an op takes a symbol, it
-- is its number at the example's sizes, and the expression is noted, too. Questions of moth's own code get numbers.
--
-- So moth.export follows a program. moth.compile.templates takes graphs apart with symbols for their sizes (M.compute).
local ffi = require "ffi"
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local sizes = require "moth.compile.sizes"
local methods = require("moth.tensor").methods
local within = require "moth.dispatch.within"

local type, tonumber = type, tonumber -- those of the globals know symbols, for a while

local M = {}


-- The metatable of a type is for ever: where moth is loaded a second time, its functions are those of that one.
local kept = debug.getregistry()
kept.moth_size_symbol = kept.moth_size_symbol or { type = ffi.typeof "struct { double hint; int id; }" }
local Symbol = kept.moth_size_symbol.type
local OWN = debug.getinfo(1, "S").source:match "^(.*)compile/symbols%.lua$"
local mt = B.Tensor

-- { log = { numbers }, at, formulas or nil, expressions, guards, used }; of M.compute { expressions, guards, memo }
local active

local function is_symbol(v) return type(v) == "cdata" and ffi.istype(Symbol, v) end

local function of(v) return is_symbol(v) and active.expressions[v.id] or v end

local function hint(v) return is_symbol(v) and v.hint or v end

local function symbol(expression, value)
  if type(expression) == "number" then return expression end
  local id = #active.expressions + 1
  active.expressions[id] = expression
  return Symbol(value, id)
end

-- The line of the nearest function that is not moth's own.
local function place()
  for level = 3, 40 do
    local info = debug.getinfo(level, "Sl")
    if not info then break end
    if info.what ~= "C" and info.source:sub(1, #OWN) ~= OWN then
      return ("%s:%d"):format(info.short_src, info.currentline)
    end
  end
  return "?"
end

-- ---- arithmetic ----------------------------------------------------------------------------------

local apply = sizes.operations

-- What is known of an operation of M.compute, as a key: exact for symbols and whole numbers alone.
local function key_of(op, a, b)
  local x, y = is_symbol(a) and "s" .. a.id or a, is_symbol(b) and "s" .. b.id or b
  if type(x) == "number" and x % 1 ~= 0 or type(y) == "number" and y % 1 ~= 0 then return nil end
  return op .. " " .. tostring(x) .. " " .. tostring(y)
end

-- The symbol of an operation.
local function made(op, a, b)
  local key = active.memo and key_of(op, a, b)
  local known = key and active.memo[key]
  if known then return known end
  local value = b == nil and apply[op](hint(a)) or b ~= nil and apply[op](hint(a), hint(b))
  local result = symbol(sizes.combined(op, of(a), of(b)), value)
  if key then active.memo[key] = result end
  return result
end

local function arithmetic(op)
  return function(a, b)
    for _, v in ipairs { a, b } do
      if B.is_tensor(v) then return mt["__" .. op](hint(M.lower(a)), hint(M.lower(b))) end
      if type(v) ~= "number" and not is_symbol(v) then
        error(("attempt to do arithmetic on a size and a %s"):format(type(v)), 2)
      end
    end
    return made(op, a, b)
  end
end

local function note(op, a, b, holds)
  if active.memo then
    if is_symbol(a) and is_symbol(b) and a.id == b.id then return holds end
    local key = key_of(op, a, b)
    if key and active.memo[key] then return holds end
    if key then active.memo[key] = true end
    active.guards[#active.guards + 1] = { op = op, a = of(a), b = of(b), holds = holds }
    return holds
  end
  active.guards[#active.guards + 1] = { op = op, a = of(a), b = of(b), holds = holds, at = place() }
  return holds
end

local meta = {}
for op in ("add sub mul div mod pow"):gmatch "%a+" do meta["__" .. op] = arithmetic(op) end
function meta.__unm(a) return made("mul", a, -1) end
local function number_like(v) return is_symbol(v) or type(v) == "number" end
function meta.__eq(a, b) return number_like(a) and number_like(b) and note("eq", a, b, hint(a) == hint(b)) end
function meta.__lt(a, b)
  if B.is_tensor(a) or B.is_tensor(b) then return mt.__lt(M.lower(a), M.lower(b)) end
  return note("lt", a, b, hint(a) < hint(b))
end
function meta.__le(a, b)
  if B.is_tensor(a) or B.is_tensor(b) then return mt.__le(M.lower(a), M.lower(b)) end
  return note("le", a, b, hint(a) <= hint(b))
end
function meta.__tostring(a) return tostring(a.hint) end
function meta.__concat(a, b) return tostring(hint(a)) .. tostring(hint(b)) end
if not kept.moth_size_symbol.meta then
  local own = {}
  for name in each(meta) do own[name] = function(a, b) return kept.moth_size_symbol.meta[name](a, b) end end
  ffi.metatype(Symbol, own)
end
kept.moth_size_symbol.meta = meta

-- ---- where numbers are wanted --------------------------------------------------------------------

--- A symbol's number, whose expression the program depends on from now on; lists and options with numbers for symbols.
function M.lower(v, depth)
  if is_symbol(v) then
    active.used[v.id] = active.used[v.id] or place()
    return v.hint
  end
  if type(v) ~= "table" or not check.is_plain(v) or (depth or 0) > 3 then return v end
  local out
  for key, item in each(v) do
    local lowered = M.lower(item, (depth or 0) + 1)
    if not rawequal(lowered, item) then
      if not out then
        out = {}
        for k, x in each(v) do out[k] = x end
      end
      out[key] = lowered
    end
  end
  return out or v
end

local lower = M.lower

-- ---- questions -----------------------------------------------------------------------------------

-- A number that the user's code asks for, or its symbol.
local function answer(n)
  if type(n) ~= "number" then return n end
  local at = active.at + 1
  active.at = at
  if not active.formulas then
    active.log[at] = n
    return n
  end
  local f = active.formulas[at]
  return f and type(f) == "table" and symbol(f, n) or n
end

--- Whether a program with open dimensions is recorded.
function M.open() return active ~= nil end

--- The size of a dimension, for code of moth's own that computes with it as the user's would.
function M.size(x, d) return active and answer(B.size(x, d)) or B.size(x, d) end

-- Whether the function that has called this one's caller is the user's.
local function asked(level)
  local info = debug.getinfo(level or 3, "S")
  return active and info and info.what ~= "C" and info.source:sub(1, #OWN) ~= OWN
end

local function answers(original)
  return function(x, ...)
    if not asked() then return original(x, ...) end
    local value = original(lower(x), lower((...)))
    if type(value) ~= "table" then return answer(value) end
    for i = 1, #value do value[i] = answer(value[i]) end
    return value
  end
end

local questions = { "size", "stride", "numel", "nelement" }

local lists = {} -- functions of the standard library that get numbers, or know symbols
local function any_symbol(...)
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if is_symbol(v) then return v end
  end
end
-- A function that is fn where it gets symbols.
local function known(library, name, fn)
  local original = library[name]
  lists[#lists + 1] = { library, name, function(...)
    if any_symbol(...) then return fn(...) end
    return original(...)
  end }
end
-- A function that knows no symbols, and what to write in its place.
local function refused(library, name, of_library, write)
  known(library, name, function(...)
    check.fail("[export] %s.%s of a size that may change, %s: write %s, or give the dimension a fixed size", of_library,
      name, sizes.text(of(any_symbol(...))), write)
  end)
end
for op in ("floor ceil abs sqrt exp"):gmatch "%a+" do known(math, op, function(a) return made(op, a) end) end
for op in ("min max"):gmatch "%a+" do
  known(math, op, function(a, ...)
    for i = 1, select("#", ...) do a = made(op, a, (select(i, ...))) end
    return a
  end)
end
known(math, "pow", function(a, b) return made("pow", a, b) end)
-- Both without a branch: the program is for numbers of either sign.
local function truncated(a)
  if not sizes.may_be_negative(of(a)) then return math.floor(a) end
  return math.max(math.floor(a), 0) + math.min(math.ceil(a), 0)
end
known(math, "fmod", function(a, b) return a - truncated(a / b) * b end)
known(math, "modf", function(a)
  local whole = truncated(a)
  return whole, a - whole
end)
known(math, "log", function(a, base)
  if base ~= nil then check.fail("[export] math.log of a size with a base: write math.log(n) / math.log(base)") end
  return made("log", a)
end)
local instead = { log10 = "math.log(n) / math.log(10)", deg = "n * 180 / math.pi", rad = "n * math.pi / 180",
  ldexp = "n * 2 ^ e", random = "moth.randint", band = "n % 2 ^ k for bit.band(n, 2 ^ k - 1)", lshift = "n * 2 ^ k",
  rshift = "math.floor(n / 2 ^ k)", arshift = "math.floor(n / 2 ^ k)", rol = "n * 2 ^ k" }
local taken = {}
for _, entry in ipairs(lists) do taken[entry[2]] = true end
for of_library, library in each { math = math, bit = require "bit" } do
  for name, fn in each(library) do
    if type(fn) == "function" and not taken[name] then
      refused(library, name, of_library, instead[name] or "it with + - * / % ^, math.floor or moth's tensors")
    end
  end
end
refused(string, "rep", "string", "a tensor's repeat_ or expand for values")
local function lowering(library, name)
  local original = library[name]
  lists[#lists + 1] = { library, name, function(...)
    local n, args = select("#", ...), { ... }
    for i = 1, n do
      args[i] = hint(args[i])
      if library == table and type(args[i]) == "table" then -- a list, of which sizes may be items
        local list = {}
        for k = 1, #args[i] do list[k] = hint(args[i][k]) end
        args[i] = list
      end
    end
    return original(unpack(args, 1, n))
  end }
end
lowering(string, "format")
lowering(table, "concat")
lists[#lists + 1] = { _G, "type", function(...)
  if select("#", ...) > 0 and is_symbol((...)) and asked(3) then return "number" end
  return type(...)
end }
lists[#lists + 1] = { _G, "tonumber", function(v, ...)
  if is_symbol(v) then return v end
  return tonumber(v, ...)
end }

-- fn(…), the functions of the standard library knowing symbols meanwhile.
local function with_library(fn)
  return within(function()
    local saved = {}
    for _, entry in ipairs(lists) do saved[entry], entry[1][entry[2]] = entry[1][entry[2]], entry[3] end
    return saved
  end, function(saved)
    for _, entry in ipairs(lists) do entry[1][entry[2]] = saved[entry] end
  end, nil, fn)
end

-- Calls fn with the questions answered by `active`.
local function installed(fn)
  local saved, index, newindex, length = {}, mt.__index, mt.__newindex, mt.__len
  for _, name in ipairs(questions) do
    saved[name] = methods[name]
    methods[name] = answers(methods[name])
  end
  mt.__len = answers(length)
  mt.__index = function(x, k)
    if k == "shape" and asked() then
      local value = saved.size(x)
      for i = 1, #value do value[i] = answer(value[i]) end
      return value
    end
    return index(x, type(k) == "string" and k or lower(k))
  end
  local symbols = active.formulas ~= nil
  if symbols then
    mt.__newindex = function(x, k, v) return newindex(x, lower(k), lower(v)) end
    signature.lower = lower
    B.lower_sizes(lower)
  end
  return within(function() end, function()
    for _, name in ipairs(questions) do methods[name] = saved[name] end
    mt.__index, mt.__newindex, mt.__len = index, newindex, length
    if symbols then
      signature.lower = nil
      B.lower_sizes(nil)
    end
  end, nil, symbols and with_library or fn, fn)
end

local function activate(as)
  local outer = active
  active = as
  return outer
end

--- Calls fn, and notes the numbers that it asks of sizes in `log`, a list; where `formulas` are the formulas of such
-- numbers, it gets symbols, and out = { expressions, guards, used } what they were used for.
function M.watch(fn, log, formulas, out)
  return within(activate, activate, { log = log, at = 0, formulas = formulas, expressions = out and out.expressions,
    guards = out and out.guards, used = out and out.used }, installed, fn)
end

--- fn() in code that computes with symbols of M.leaf. out.guards, a list, gets one { op, a, b, holds } for each
-- comparison of them; out.expressions[symbol.id] is a symbol's formula.
function M.compute(out, fn)
  out.guards, out.expressions = {}, {}
  return within(activate, activate, { expressions = out.expressions, guards = out.guards, used = {}, memo = {} },
    with_library, fn)
end

--- A symbol whose value is v, that formulas call `name`.
function M.leaf(name, v) return symbol({ kind = "size", terms = { { 1, name } }, add = 0 }, v) end

M.is, M.hint = is_symbol, hint

--- A value that the function returns, as a number.
function M.plain(v)
  if active and is_symbol(v) then return lower(v) end
  return v
end

return M
