--- JSON whose objects keep the order of their names, and its parts as they are written: for what is shown to a model or
-- given back (llm/tools.lua, serve/openai.lua). Texts must be JSON that cjson has read: they are cut, not checked.
--
--     for _, part in ipairs(ordered.parts('{"b": [1], "a": 2}')) do print(part.name, part.text) end   -- b [1], a 2
--     local v = ordered.decode '{"b":1,"a":{}}'      -- { keys = { "b", "a" }, map = { … } } of ordered.Object
local M = {}

--- The metatable of objects: { keys = names in their order, map = values }. Lists are Lua's, null is cjson's.
M.Object = {}

-- Behind the value that begins at i.
local function behind(text, i)
  local c = text:sub(i, i)
  if c == '"' then
    i = i + 1
    while true do
      local at = text:find('["\\]', i)
      if not at then return #text + 1 end
      if text:sub(at, at) == '"' then return at + 1 end
      i = at + 2
    end
  elseif c ~= "{" and c ~= "[" then
    return text:find("[%s,%]}]", i) or #text + 1
  end
  local depth = 0
  while true do
    local at = text:find('["{}%[%]]', i)
    if not at then return #text + 1 end
    c = text:sub(at, at)
    if c == '"' then
      i = behind(text, at)
    else
      depth, i = depth + ((c == "{" or c == "[") and 1 or -1), at + 1
      if depth == 0 then return i end
    end
  end
end

--- The members of an object or list: { name = (of an object), text = the value as it is written }.
function M.parts(text)
  local i = text:find "[^%s]"
  local is_object = text:sub(i, i) == "{"
  local out = {}
  i = text:find("[^%s,]", i + 1)
  while i and not text:find("^[%]}]", i) do
    local name
    if is_object then
      local ends = behind(text, i)
      name = require("cjson").decode("[" .. text:sub(i, ends - 1) .. "]")[1]
      i = text:find("[^%s:]", ends)
    end
    local ends = behind(text, i)
    out[#out + 1] = { name = name, text = text:sub(i, ends - 1) }
    i = text:find("[^%s,]", ends)
  end
  return out
end

--- The value of a text.
function M.decode(text)
  local first = text:match "^%s*(.)"
  if first ~= "{" and first ~= "[" then return require("cjson").decode("[" .. text .. "]")[1] end
  local out, keys = {}, {}
  for i, part in ipairs(M.parts(text)) do
    local v = M.decode(part.text)
    if first == "[" then
      out[i] = v
    else
      if out[part.name] == nil then keys[#keys + 1] = part.name end
      out[part.name] = v
    end
  end
  return first == "[" and out or setmetatable({ keys = keys, map = out }, M.Object)
end

return M
