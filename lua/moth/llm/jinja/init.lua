--- Chat templates: programs of Jinja, as Hugging Face's folders and GGUF files have them, run as transformers runs them
-- (blocks trimmed; nothing can be changed but namespaces; loop controls; generation blocks written as they are).
--
--     local render = jinja.compile "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}"
--     local text, why = render { messages = { { role = "user", content = " Hello " } } }
--
-- A template is a stranger's: it sees the values it is given and nothing of Lua, and its work is bounded. lexer.lua
-- cuts it into tokens, parser.lua makes closures of them, values.lua and filters.lua are what these work with.
--
-- Otherwise than in Python: letters have a case where they are ASCII, filters give lists rather than generators,
-- numbers have 53 bits. Not there: include, extends, import, recursive loops, varargs; the filters random, pprint,
-- urlize and wordwrap, the test escaped, lipsum.
local each = require "moth.each"
local F = require "moth.llm.jinja.filters"
local lex = require "moth.llm.jinja.lexer"
local P = require "moth.llm.jinja.parser"
local V = require "moth.llm.jinja.values"

local M = {}

local fail, spend, run = V.fail, V.spend, V.run

local STEPS, LONGEST = 1e7, 2 ^ 20 -- units of V.spend; bytes of a template

-- ---- rendering -----------------------------------------------------------------------------------------------

-- A mapping from another or a list of pairs (or neither), and named values.
local function mapping(what, args, kwargs)
  if #args > 1 then fail("%s: %d arguments; it takes 1 at most, and names", what, #args) end
  local d = V.dict()
  for _, pair in ipairs(args[1] and (V.is(args[1], V.Dict) and F.pairs(args[1]) or V.items(args[1], what)) or {}) do
    local parts = V.items(pair, what)
    if #parts ~= 2 then fail("%s: expected a mapping or pairs", what) end
    V.put(d, parts[1], parts[2])
  end
  for _, key in ipairs(kwargs) do V.put(d, key, kwargs[key]) end
  return d
end

local globals = {
  range = V.callable("range", { "start", "stop", "step" }, function(a, b, step)
    local from, to = V.int_of(a, "range"), b ~= nil and V.int_of(b, "range")
    if b == nil then from, to = 0, from end
    step = V.int_of(step, "range", 1)
    if step == 0 or (to - from) / step > 1e5 then fail "range: a step of 0, or more than 100000 numbers" end
    local out = {}
    for n = from, to - (step < 0 and -1 or 1), step do out[#out + 1] = n end
    spend(#out)
    return V.list(out)
  end),
  namespace = V.callable("namespace", nil, function(args, kwargs)
    local space = V.namespace()
    space.map = mapping("namespace", args, kwargs).map
    return space
  end),
  dict = V.callable("dict", nil, function(args, kwargs) return mapping("dict", args, kwargs) end),
  joiner = V.callable("joiner", { "sep" }, function(by)
    local used = false
    return V.callable("joiner", {}, function()
      if used then return by == nil and ", " or by end
      used = true
      return ""
    end)
  end),
  cycler = V.callable("cycler", nil, function(args)
    if #args == 0 then fail "cycler: expected the values to go through" end
    local at = 0
    local fields = {
      next = V.callable("next", {}, function()
        at = at + 1
        return args[(at - 1) % #args + 1]
      end),
      reset = V.callable("reset", {}, function()
        at = 0
        return V.NONE
      end),
    }
    return setmetatable({ get = function(_, name)
      return name == "current" and args[at % #args + 1] or fields[name]
    end }, V.Loop)
  end),
  lipsum = V.callable("lipsum", nil, function() fail "lipsum is not supported: it is random text" end),
  raise_exception = V.callable("raise_exception", { "message" }, function(message)
    fail("the template says: %s", V.text(message == nil and V.NONE or message):gsub("\n.*", "") .. "")
  end),
  strftime_now = V.callable("strftime_now", { "format" }, function(format)
    if type(format) ~= "string" or #format > 100 then fail "strftime_now: expected a text of at most 100 bytes" end
    return (format:gsub("%%%-?([aAbBcdDeFHIjmMpSTuUVwWxXyYzZ%%])", function(c)
      local s = os.date("%" .. c)
      return s
    end))
  end),
}

-- f(…), its errors as nil and a text.
local function guarded(f, ...)
  local line, left = run.line, run.left
  local ok, result = pcall(f, ...)
  local at = run.line
  run.line, run.left = line, left
  if ok then return result end
  if getmetatable(result) == V.Failure and type(result) == "table" then
    return nil, ("line %d: %s"):format(result.line, result.why)
  end
  if tostring(result):find "stack overflow" then return nil, ("line %d: it nests too deep"):format(at) end
  if result == "not enough memory" then return nil, ("line %d: not enough memory"):format(at) end
  error(result, 0)
end

local function bytes_of(v, depth)
  if type(v) ~= "table" then return type(v) == "string" and #v or 1 end
  if depth > 60 then return 0 end
  local n = 1
  for _, item in each(v) do n = n + bytes_of(item, depth + 1) end
  return n
end

--- A variable that is there and has no value, Python's None.
M.none = V.NONE

--- render(variables) -> text, or nil and why, of a template's text; nil and why where it is none.
function M.compile(source)
  if #source > LONGEST then return nil, "it is longer than a template may be" end
  local body, why = guarded(function()
    run.line, run.left = 1, math.huge
    return P.parse(lex(source))
  end)
  if not body then return nil, why end
  return function(variables)
    return guarded(function()
      run.line, run.left = 1, STEPS + 16 * bytes_of(variables, 0)
      local scope = P.child(globals)
      for name, v in each(variables) do scope[name] = V.of(v) end
      return P.inner_text(body, scope)
    end)
  end
end

return M
