--- Chat templates: those of spec/llm/fixtures/jinja.json, damaged, with pieces of the language put in; and short
-- programs of values, operators, filters, tests and methods, whether they fit or not.
local moth = require "moth"
local damage = require "fuzz.damage"
local each = require "moth.each"
local F = require "moth.llm.jinja.filters"
local V = require "moth.llm.jinja.values"

local seeds = {}
do
  local f = assert(io.open("spec/llm/fixtures/jinja.json", "rb"))
  for _, case in ipairs(require("cjson").decode(f:read "*a").cases) do seeds[#seeds + 1] = case[1] end
  f:close()
end

local values = { "1", "'a b'", "none", "true", "x", "messages", "[1,'a',none]", "{'a':1,'b':[2]}", "1.5", "''",
  "namespace(a=1)", "range", "[]", "{}", "-3", "(1,2)", "'é漢'", "[[1,2],[3,4]]", "messages[0]", "9999999999999999" }
local joints = { "+", "-", "*", "/", "//", "%", "**", "~", "<", ">", "==", "in", "not in", "and", "or", "<=", "," }
local pieces = { "{%", "%}", "{{", "}}", "{#", "#}", "-", "(", ")", "[", "]", ".", ":", "'", "\\", " else ", " for ",
  " is ", "{% endif %}", "{% endfor %}", "{% set ns.a = ", "{% macro f(a) %}", "{% endmacro %}", "f(", "loop.", "*[1]",
  "**{'a':1}", "[1:2]", "[::-1]", ".a", "\n", "{% raw %}", "{% endraw %}", "{% break %}", "{% generation %}" }
local function names(t)
  local out = {}
  for name in each(t) do out[#out + 1] = name end
  table.sort(out)
  return out
end
for _, name in ipairs(names(F.filters)) do pieces[#pieces + 1] = "|" .. name end
for _, name in ipairs(names(F.tests)) do pieces[#pieces + 1] = " is " .. name end
for _, class in ipairs { "string", V.Dict, V.List } do
  for _, name in ipairs(names(V.methods[class])) do pieces[#pieces + 1] = "." .. name end
end

local M = {}

function M.make(c)
  if c:one_in(2) then
    local out = { "{{ ", c:pick(values), " ", c:pick(joints), " ", c:pick(values) }
    for _ = 1, 2 do
      out[#out + 1] = c:pick(pieces)
      if c:one_in(2) then out[#out + 1] = ("(%s%s)"):format(c:pick(values), c:one_in(2) and ",1" or "") end
    end
    return table.concat(out) .. " }}"
  end
  local text = c:pick(seeds)
  if c:one_in(3) then return damage.bytes(c, text) end
  for _ = 1, 3 do
    local at = c:int(0, #text)
    text = text:sub(1, at) .. c:pick(pieces) .. text:sub(at + (c:one_in(2) and 1 or 4))
  end
  return text
end

function M.read(bytes)
  local messages = { { role = "user", content = "hi é" }, { role = "assistant", content = "x", calls = { { a = 1 } } } }
  moth.llm.template.of("\n" .. bytes)(messages, { x = 3 })
  return "ran"
end

return M
