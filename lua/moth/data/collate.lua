--- From samples to a batch.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"

local M = {}

local int64 = ffi.typeof "int64_t"
-- What is collated as what; whole numbers beyond 2^53 come from files as int64_t.
local function kind_of(v) return ffi.istype(int64, v) and "number" or type(v) end

local function all_integral(list)
  for i = 1, #list do
    if type(list[i]) == "number" and list[i] ~= math.floor(list[i]) then return false end
  end
  return true
end

local function same_shape(a, b)
  if B.dim(a) ~= B.dim(b) then return false end
  for d = 1, B.dim(a) do
    if B.size(a, d) ~= B.size(b, d) then return false end
  end
  return true
end

-- The names of a table, those that are strings in their order.
local function names_of(t)
  local names = {}
  for key in each(t) do names[#names + 1] = key end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  return names
end

--- One value per sample as one value: tensors are stacked; numbers and int64_t become a tensor (int64 if all are
-- integral, else the default float dtype); booleans a bool tensor; tables are collated field by field; strings stay a
-- list, as do the tensors of BoundingBoxes.
-- join: a function of a list of values which gives one, or nil where the rules above hold.
function M.values(list, join)
  local first = list[1]
  local joined = join and join(list)
  if joined then return joined end
  if B.is_tensor(first) then
    for i = 2, #list do
      if not B.is_tensor(list[i]) then
        check.fail("data: sample %d of a batch has a %s where the first has a tensor", i, type(list[i]))
      end
      if not same_shape(list[i], first) then
        check.fail("data: sample %d of a batch has a tensor of shape %s, the first one of %s: they cannot be stacked; "
          .. "HINT: collate_fn = data.pad_collate() pads sequences, transforms.Resize makes images alike", i,
          tostring(list[i]:size()), tostring(first:size()))
      end
    end
    return moth.stack(list)
  end
  local kind = kind_of(first)
  for i = 2, #list do
    if kind_of(list[i]) ~= kind then
      check.fail("data: sample %d of a batch has %s where the first has %s", i, kind_of(list[i]), kind)
    end
  end
  if kind == "number" then return moth.tensor(list, { dtype = all_integral(list) and moth.int64 or nil }) end
  if kind == "boolean" then return moth.tensor(list) end
  if kind ~= "table" then return list end
  local samples = package.loaded["moth.data.transforms.samples"]
  local held = samples and samples.kind(first)
  if held then -- what transforms know: images and masks as tensors, boxes, whose number varies, as a list
    local data = {}
    for i, v in ipairs(list) do data[i] = v.data end
    return held == "boxes" and data or M.values(data, join)
  end
  local out = {}
  for _, key in ipairs(names_of(first)) do
    local column = {}
    for i, sample in ipairs(list) do
      if sample[key] == nil then check.fail("data: sample %d of a batch has no field '%s'", i, tostring(key)) end
      column[i] = sample[key]
    end
    out[key] = M.values(column, join)
  end
  return out
end

--- samples: a list of { n = count, value, … }, as get(i) returned them. Returns collated values.
M.default = signature("data.default_collate(list batch)", function(samples)
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

--- A collate function for sequences: data.pad_collate { padding_value = 0, batch_first = true, lengths = true }.
-- Tensors that differ in their first size, in tables of a sample too, are padded to the longest of the batch,
-- (N, length, …); with lengths, a tensor of the lengths of the first of them (in tables: in the order of names) comes
-- as one more value at the end. All else is collated as by default.
local PadCollate = class("PadCollate")
M.PadCollate = PadCollate
PadCollate.__init = signature.init("data.pad_collate(number padding_value=0, bool batch_first=true, bool lengths=true)",
  function(self, o) self.padding_value, self.batch_first, self.lengths = o.padding_value, o.batch_first, o.lengths end)

local function differ(list)
  for i = 2, #list do
    if B.dim(list[i]) > 0 and B.size(list[i], 1) ~= B.size(list[1], 1) then return true end
  end
  return false
end

function PadCollate.__call(self, samples)
  if #samples == 0 then check.fail("[data.pad_collate] there are no samples") end
  local out, n, lengths = {}, samples[1].n or #samples[1], nil
  local o = { batch_first = self.batch_first, padding_value = self.padding_value }
  local function join(list)
    for _, t in ipairs(list) do
      if not B.is_tensor(t) or B.dim(t) == 0 then return nil end
    end
    if not lengths then
      local counts = {}
      for i, t in ipairs(list) do counts[i] = B.size(t, 1) end
      lengths = moth.tensor(counts, { dtype = moth.int64 })
    end
    return (differ(list) or not self.batch_first) and moth.nn.utils.pad_sequence(list, o) or nil
  end
  for k = 1, n do
    local column = {}
    for i, sample in ipairs(samples) do
      if sample[k] == nil then check.fail("data: value %d of sample %d of a batch is nil", k, i) end
      column[i] = sample[k]
    end
    out[k] = M.values(column, join)
  end
  if self.lengths then
    n = n + 1
    out[n] = lengths
  end
  return unpack(out, 1, n)
end

--- The values of the only sample of a batch, for loaders that do not collate.
function M.one(samples)
  return unpack(samples[1], 1, samples[1].n)
end

return M
