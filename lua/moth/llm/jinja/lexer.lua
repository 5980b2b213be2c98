--- The tokens of a chat template (jinja/init.lua).
local char = require("moth.data.unicode").char
local V = require "moth.llm.jinja.values"

local fail, run = V.fail, V.run

local ends = { ["{%"] = "%}", ["{{"] = "}}" }
local opening = { ["("] = ")", ["["] = "]", ["{"] = "}" }
local operators = { ["**"] = true, ["//"] = true, ["=="] = true, ["!="] = true, ["<="] = true, [">="] = true }
local escapes = { n = "\n", t = "\t", r = "\r", b = "\b", f = "\f", v = "\v", a = "\a", ["\n"] = "" }

local function unescaped(s)
  return (s:gsub("\\([xuU]?)(.)", function(form, c)
    if form == "" then return c:find "[\\'\"]" and c or escapes[c] or "\\" .. c end
  end):gsub("\\x(%x%x)", function(x) return char(tonumber(x, 16)) end)
    :gsub("\\u(%x%x%x%x)", function(x) return char(tonumber(x, 16)) end)
    :gsub("\\U(%x%x%x%x%x%x%x%x)", function(x) return char(math.min(tonumber(x, 16), 0x10ffff)) end))
end

-- The tokens of an expression from `at` on, up to the end of its tag; the place behind.
local function lex_tag(source, at, close, add)
  local open = {}
  while true do
    local from = source:find("%S", at)
    if not from then fail "a tag has no end" end
    run.line = run.line + select(2, source:sub(at, from - 1):gsub("\n", ""))
    at = from
    local sign = source:match("^[-+]?", at)
    if #open == 0 and source:sub(at + #sign, at + #sign + 1) == close and not (sign == "+" and close == "}}") then
      return at + #sign + 2, sign
    end
    local c, two = source:sub(at, at), source:sub(at, at + 1)
    local name = source:match("^[%a_\128-\255][%w_\128-\255]*", at)
    local number = source:match("^%d[%d_]*", at)
    if number and source:sub(at - 1, at - 1) ~= "." then -- x.0.1 are two numbers
      number = number .. (source:match("^%.%d+", at + #number) or "")
      number = number .. (source:match("^[eE][-+]?%d+", at + #number) or "")
    end
    if name then
      add("name", name)
      at = at + #name
    elseif number then
      local value = V.decimal((number:gsub("_", "")))
      add("number", number:find "[.eE]" and V.float(value) or value)
      at = at + #number
    elseif c == "'" or c == '"' then
      local last = at + 1
      while true do
        last = source:find("[\\" .. c .. "]", last)
        if not last then fail "a text has no end" end
        if source:sub(last, last) == c then break end
        last = last + 2
      end
      local value = source:sub(at + 1, last - 1)
      add("string", unescaped(value))
      run.line = run.line + select(2, value:gsub("\n", ""))
      at = last + 1
    elseif operators[two] then
      add(two, two)
      at = at + 2
    else
      if not c:find "[-+*/%%~<>=.:|,()%[%]{}]" then fail("unexpected '%s'", c) end
      if opening[c] then
        open[#open + 1] = opening[c]
      elseif c:find "[)%]}]" and table.remove(open) ~= c then
        fail("unexpected '%s'", c)
      end
      add(c, c)
      at = at + 1
    end
  end
end

-- All tokens of a template: data (text as it is), "{%" and "{{" with what stands in them.
local function lex(source)
  source = source:gsub("\r\n?", "\n"):gsub("\n$", "")
  local kinds, values, lines = {}, {}, {}
  local function add(kind, value)
    kinds[#kinds + 1], values[#kinds + 1], lines[#kinds + 1] = kind, value, run.line
  end
  local at, fresh, cut = 1, true, false -- fresh: a line begins at `at`; cut: white space there is left out
  local function data(s, sign, is_block)
    local count = select(2, s:gsub("\n", ""))
    if cut then s = V.strip(s, "l") end
    if sign == "-" then
      s = V.strip(s, "r")
    elseif sign ~= "+" and is_block then
      local before, blank = s:match "^(.*\n)([^\n]*)$"
      if not before then before, blank = "", s end
      if (before ~= "" or fresh) and V.strip(blank, "l") == "" then s = before end
    end
    if s ~= "" then add("data", s) end
    run.line = run.line + count
  end
  -- Behind a tag: a newline that belongs to it, or white space that is cut.
  local function behind(place, sign, is_block)
    at, cut, fresh = place, sign == "-", false
    if cut then
      fresh = source:match("^%s*", at):sub(-1) == "\n"
    elseif is_block and sign ~= "+" and source:sub(at, at) == "\n" then
      at, fresh, run.line = at + 1, true, run.line + 1
    end
  end
  while true do
    local from = source:find("{[%%{#]", at)
    if not from then
      data(source:sub(at), "", false)
      break
    end
    local tag, sign = source:sub(from, from + 1), source:match("^[-+]?", from + 2)
    data(source:sub(at, from - 1), sign, tag ~= "{{")
    local inner = from + 2 + #sign
    local raw_end = tag == "{%" and source:match("^%s*raw%s*%-?%%}()", inner)
    if tag == "{#" then
      local last = source:find("#}", inner, true) or fail "a comment has no end"
      local mark = last > inner and source:match("^[-+]", last - 1) or ""
      run.line = run.line + select(2, source:sub(inner, last):gsub("\n", ""))
      behind(last + 2, mark, true)
    elseif raw_end then
      behind(raw_end, source:sub(raw_end - 3, raw_end - 3), true)
      local last, mark, close, place = source:match("(){%%([-+]?)%s*endraw%s*([-+]?)%%}()", at)
      if not last then fail "{% raw %} has no end" end
      data(source:sub(at, last - 1), mark, true)
      behind(place, close, true)
    else
      add(tag, tag)
      local place, mark = lex_tag(source, inner, ends[tag], add)
      add(ends[tag], ends[tag])
      behind(place, mark, tag == "{%")
    end
  end
  add("end", "the end")
  return kinds, values, lines
end

return lex
