--- A table that knows the order in which its keys were inserted; used for registries and state dicts.
--
-- Entries are plain fields (`map.name`, `pairs(map)` in any order); the order is kept outside the table.
-- `map:keys()`, `map:items()` and `map:len()` follow it. An entry may have a method's name: general code calls
-- `Ordered.items(map)`.
local B = require "moth_lua"

local Ordered = {}
Ordered.__index = Ordered

local orders = setmetatable({}, { __mode = "k" }) -- map -> { key, ..., at = { [key] = true } }

local function remove(list, key)
  for i = 1, #list do
    if list[i] == key then return table.remove(list, i) end
  end
end

function Ordered.__newindex(map, key, value)
  if value == nil then return end
  local list = orders[map]
  if list.at[key] then remove(list, key) end -- the entry was set to nil since: it goes to the end
  list.at[key] = true
  list[#list + 1] = key
  rawset(map, key, value)
end

--- Keeps the next place in the order for a key that `put` fills later.
function Ordered.reserve(map, key)
  local list = orders[map]
  if list.at[key] then return end
  list.at[key] = true
  list[#list + 1] = key
end

--- Inserts an entry at the place that was kept for it, or at the end.
function Ordered.put(map, key, value)
  Ordered.reserve(map, key)
  rawset(map, key, value)
end

--- The keys in order of insertion, as a new list.
function Ordered.keys(map)
  local out = {}
  for _, key in ipairs(orders[map]) do
    if rawget(map, key) ~= nil then out[#out + 1] = key end
  end
  return out
end

--- The values in order of insertion, as a new list. Makes no closure, so that LuaJIT compiles loops that call it.
function Ordered.values(map)
  local list, out, n = orders[map], {}, 0
  for i = 1, #list do
    local value = rawget(map, list[i])
    if value ~= nil then
      n = n + 1
      out[n] = value
    end
  end
  return out
end

--- `for key, value in map:items() do`: in order of insertion.
function Ordered.items(map)
  local list, i = Ordered.keys(map), 0
  return function()
    i = i + 1
    local key = list[i]
    if key ~= nil then return key, rawget(map, key) end
  end
end

function Ordered.len(map) return #Ordered.keys(map) end

--- One line per entry, in order: tensors by dtype and shape, other values by tostring.
function Ordered.__tostring(map)
  local lines = {}
  for key, value in Ordered.items(map) do
    lines[#lines + 1] = ("  %s: %s\n"):format(key, B.is_tensor(value) and B.format(value) or tostring(value))
  end
  return #lines == 0 and "{}" or "{\n" .. table.concat(lines) .. "}"
end

--- Is `x` such a map?
function Ordered.is(x) return type(x) == "table" and getmetatable(x) == Ordered end

function Ordered.new()
  local map = setmetatable({}, Ordered)
  orders[map] = { at = {} }
  return map
end

return Ordered
