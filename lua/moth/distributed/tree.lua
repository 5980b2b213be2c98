--- Tables of values and tensors taken apart: a skeleton of plain tables, in which numbers stand for tensors, and the
-- tensors with their names. For checkpoints and elastic runs.
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local Ordered = require "moth.nn.ordered"

local M = {}

local TENSOR, ORDERED = "\1tensor", "\1ordered" -- keys that no state has

local function name_of(path, key) return path == "" and tostring(key) or path .. "." .. tostring(key) end

local function sorted_keys(t)
  local keys = {}
  for k in each(t) do keys[#keys + 1] = k end
  table.sort(keys, function(a, b)
    if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
    return type(a) < type(b)
  end)
  return keys
end

local function take(v, path, list, where, depth)
  if B.is_tensor(v) then
    list[#list + 1] = { name = path, tensor = v }
    return { [TENSOR] = #list }
  end
  if type(v) ~= "table" then return v end
  if depth > 100 then check.fail("[%s] tables nest too deeply, or one contains itself, at '%s'", where, path) end
  local ordered = Ordered.is(v)
  if not ordered and not check.is_plain(v) then
    check.fail("[%s] '%s' is an object of a class without state_dict: give its fields", where, path)
  end
  local out, keys = {}, ordered and Ordered.keys(v) or sorted_keys(v)
  for _, k in ipairs(keys) do out[k] = take(rawget(v, k), name_of(path, k), list, where, depth + 1) end
  return ordered and { [ORDERED] = keys, values = out } or out
end

--- The skeleton of a value and the list of its tensors, { name =, tensor = }. where: for errors.
function M.split(value, where)
  local list = {}
  return take(value, "", list, where, 1), list
end

--- The value again; tensor(i) gives the i-th.
function M.join(skeleton, tensor)
  if type(skeleton) ~= "table" then return skeleton end
  if skeleton[TENSOR] then return tensor(skeleton[TENSOR]) end
  local ordered, out = skeleton[ORDERED], {}
  for k, v in each(ordered and skeleton.values or skeleton) do out[k] = M.join(v, tensor) end
  return ordered and require("moth.nn.state_dict").from(ordered, out) or out
end

--- The first names of a list, for an error.
function M.some(list)
  return (#list == 0 and "none" or table.concat(list, ", ", 1, math.min(#list, 5)))
    .. (#list > 5 and (" and %d more"):format(#list - 5) or "")
end

--- Whether a value is an object that gives and takes a state.
function M.has_state(v)
  return type(v) == "table" and type(v.state_dict) == "function" and type(v.load_state_dict) == "function"
end

return M
