--- Lists of tensors that moth returns (x:chunk(2), x:unbind()): plain tables that print, and whose errors help if one
-- is used as a tensor: `local a, b = x:chunk(2)` makes a the list; write `local a, b = unpack(x:chunk(2))`.
local check = require "moth.utils.check"
local each = require "moth.each"

local List = { __list = true }

local function refuse(list)
  local name = getmetatable(list).name
  check.fail("%s gives a list of %d tensors, and a list is no tensor: take list[1], or local a, b = unpack(x:%s(…))",
    name, #list, name)
end

function List.__index(list, key)
  if key == 0 then
    check.fail("%s: [0] is no tensor of the list: moth counts from 1", getmetatable(list).name)
  elseif type(key) == "number" and key < 0 then
    return rawget(list, #list + 1 + key)
  end
  if type(key) ~= "string" or key:find("^_") then return nil end
  local tensor = require("moth.tensor")
  if tensor.methods[key] ~= nil or key == "shape" or key == "grad" or key == "data" or key == "grad_fn" then
    refuse(list)
  end
  return nil
end

local function operator(a, b)
  local mt = type(a) == "table" and getmetatable(a)
  refuse(mt and rawget(mt, "__list") and a or b)
end
for _, event in ipairs({ "__add", "__sub", "__mul", "__div", "__mod", "__pow", "__unm" }) do List[event] = operator end

--- The tensors one after the other.
function List.__tostring(list)
  local parts = {}
  for i = 1, #list do parts[i] = ("[%d] %s"):format(i, tostring(list[i])) end
  return #parts == 0 and "{}" or table.concat(parts, "\n")
end

local kinds = {} -- function -> the metatable of its lists

--- Gives a plain list this metatable; `name` is the function that returns it.
return function(list, name)
  local mt = kinds[name]
  if not mt then
    mt = { name = name }
    for k, v in each(List) do mt[k] = v end
    kinds[name] = mt
  end
  return setmetatable(list, mt)
end
