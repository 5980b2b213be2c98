--- Tools that a chat's model may call: how its template has them written, and calls within what it says.
--
-- Two forms are known: <tool_call>{"name": …, "arguments": {…}}</tool_call>, of Hermes and Qwen, and an answer that is
-- {"name": …, "parameters": {…}}, or a list of such, of Llama 3 and Mistral.
local ordered = require "moth.utils.ordered_json"

local M = {}

local function json() return require "cjson" end
local OPEN, CLOSE = "<tool_call>", "</tool_call>"

--- The form of a template's text: "tags", "object", or nil: it has no tools.
function M.form(template)
  if type(template) ~= "string" or not template:find("tools", 1, true) then return nil end
  return template:find(OPEN, 1, true) and "tags" or "object"
end

--- The tools of a request's text: { name =, schema = the text of its JSON Schema, or nil }.
function M.list(text)
  local out = {}
  for i, tool in ipairs(ordered.parts(text)) do
    for _, part in ipairs(ordered.parts(tool.text)) do
      if part.name == "function" then
        out[i] = {}
        for _, field in ipairs(ordered.parts(part.text)) do
          if field.name == "name" then out[i].name = ordered.decode(field.text) end
          if field.name == "parameters" and field.text ~= "null" then out[i].schema = field.text end
        end
      end
    end
  end
  return out
end

--- A node of the texts that call one of some tools (of `list`).
function M.node(g, tools, form, at)
  local json_schema, cjson = require "moth.llm.json_schema", json()
  local list = {}
  for i, tool in ipairs(tools) do
    local inside = json_schema.object(g)
    if tool.schema then
      local place = ("%s[%d].function.parameters"):format(at, i - 1)
      inside = json_schema.schema(g, cjson.decode(tool.schema), cjson.encode, place)
    end
    list[i] = g:seq { g:text(('{"name": %s, "%s": '):format(cjson.encode(tool.name),
      form == "tags" and "arguments" or "parameters")), inside, g:text "}" }
  end
  local one = g:alt(list)
  return form == "tags" and g:seq { g:text(OPEN .. "\n"), one, g:text("\n" .. CLOSE) } or one
end

-- A call of a text, or nil: { name =, arguments = JSON }.
local function call_of(text, names)
  local ok, v = pcall(json().decode, text)
  if not ok or type(v) ~= "table" or not names[v.name or ""] then return nil end
  local arguments
  for _, part in ipairs(ordered.parts(text)) do
    if part.name == "arguments" or part.name == "parameters" then arguments = part.text end
  end
  if not arguments or not arguments:find "^{" then return nil end
  return { name = v.name, arguments = arguments }
end

--- The calls in an answer, and what it says beside them; nil and the answer: there are none. names: a set.
function M.parse(text, names)
  local calls, said = {}, text:gsub("%s*" .. OPEN .. "(.-)" .. CLOSE, function() return "" end)
  for inside in text:gmatch(OPEN .. "%s*(.-)%s*" .. CLOSE) do
    calls[#calls + 1] = call_of(inside, names)
    if not calls[1] then return nil, text end
  end
  if #calls > 0 then return calls, (said:gsub("^%s+$", "")) end
  local whole = text:match "^%s*(.-)%s*$"
  if whole:find "^{" then
    calls[1] = call_of(whole, names)
  elseif whole:find "^%[" and pcall(json().decode, whole) then
    for i, part in ipairs(ordered.parts(whole)) do
      calls[i] = call_of(part.text, names)
      if not calls[i] then return nil, text end
    end
  end
  if #calls > 0 then return calls, "" end
  return nil, text
end

--- What of an answer that comes in pieces can be no part of a call, nor the blanks before one: its length.
function M.sure(text)
  if text:find "^%s*[{%[]" then return 0 end
  local at = text:find(OPEN, 1, true)
  local n = at and at - 1 or #text
  for k = at and 0 or math.min(#OPEN - 1, n), 1, -1 do
    if text:sub(-k) == OPEN:sub(1, k) then
      n = n - k
      break
    end
  end
  return #text:sub(1, n):match "^(.-)%s*$"
end

return M
