--- From samples to a batch.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"

local M = {}

local function all_integral(list)
  for i = 1, #list do
    if list[i] ~= math.floor(list[i]) then return false end
  end
  return true
end

--- One value per sample as one value: tensors are stacked; numbers become a tensor (int64 if all are integral,
-- else the default float dtype); booleans a bool tensor; tables are collated field by field; strings stay a list.
function M.values(list)
  local first = list[1]
  if B.is_tensor(first) then return moth.stack(list) end
  local kind = type(first)
  for i = 2, #list do
    if type(list[i]) ~= kind then
      check.fail("data: sample %d of a batch has %s where the first has %s", i, type(list[i]), kind)
    end
  end
  if kind == "number" then return moth.tensor(list, { dtype = all_integral(list) and moth.int64 or nil }) end
  if kind == "boolean" then return moth.tensor(list) end
  if kind ~= "table" then return list end
  local out = {}
  for key in each(first) do
    local column = {}
    for i, sample in ipairs(list) do
      if sample[key] == nil then check.fail("data: sample %d of a batch has no field '%s'", i, tostring(key)) end
      column[i] = sample[key]
    end
    out[key] = M.values(column)
  end
  return out
end

--- samples: a list of { n = count, value, … }, as get(i) returned them. Returns collated values.
M.default = signature("data.default_collate(list samples)", function(samples)
  if #samples == 0 then check.fail("[data.default_collate] there are no samples") end
  for i, sample in ipairs(samples) do
    if type(sample) ~= "table" then
      check.fail("[data.default_collate] sample %d is no list of values but %s", i, type(sample))
    end
  end
  local out, n = {}, samples[1].n or #samples[1]
  for k = 1, n do
    local column = {}
    for i, sample in ipairs(samples) do
      if sample[k] == nil then check.fail("data: value %d of sample %d of a batch is nil", k, i) end
      column[i] = sample[k]
    end
    out[k] = M.values(column)
  end
  return unpack(out, 1, n)
end)

return M
