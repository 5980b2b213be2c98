--- data.DataLoader: batches of a dataset.
--
--     local loader = data.DataLoader(ds, { batch_size = 64, shuffle = true })
--     for x, y in loader:iter() do … end          -- or: for x, y in loader() do
--     print(loader:size())                        -- batches in an epoch
--
-- Where the dataset has get_batch and no collate_fn is given, a batch is made in one go (one index_select per
-- tensor of a TensorDataset); otherwise from single samples.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local collate = require "moth.data.collate"
local sampler = require "moth.data.sampler"

local DataLoader = class("DataLoader")

--- @param dataset with size() and get(i)
-- @tparam[opt] table o batch_size (1), shuffle (false), drop_last (false), generator, sampler, batch_sampler,
-- collate_fn (list of samples { n = …, … } -> values of the batch), num_workers (0), pin_memory (false: true puts the
-- tensors of batches into pinned memory where there is CUDA, for x:cuda{non_blocking = true})
function DataLoader:__init(dataset, o)
  local where = "data.DataLoader"
  o = check.options(where, o,
    "batch_size shuffle drop_last generator sampler batch_sampler collate_fn num_workers pin_memory")
  if type(dataset) ~= "table" or type(dataset.size) ~= "function" or type(dataset.get) ~= "function" then
    check.fail("%s: expected a dataset with size() and get(i), got %s", where, class.name(dataset))
  end
  if (o.num_workers or 0) ~= 0 then
    check.fail("%s: num_workers = %s: worker threads come later; use num_workers = 0", where, tostring(o.num_workers))
  end
  if o.sampler and o.shuffle then check.fail("%s: shuffle is up to the sampler; give one or the other", where) end
  if o.batch_sampler and (o.batch_size or o.shuffle or o.sampler or o.drop_last) then
    check.fail("%s: batch_sampler excludes batch_size, shuffle, sampler and drop_last", where)
  end
  self.dataset, self.collate_fn, self.batch_sampler = dataset, o.collate_fn, o.batch_sampler
  self.batch_size = check.integer(where, "batch_size", o.batch_size or 1, 1)
  self.drop_last = o.drop_last == true
  self.pin_memory = o.pin_memory == true and moth.cuda.is_available()
  self.sampler = o.sampler or o.shuffle and sampler.RandomSampler(dataset, { generator = o.generator })
    or sampler.SequentialSampler(dataset)
end

--- How many batches an epoch has.
function DataLoader:size()
  if self.batch_sampler then return self.batch_sampler:size() end
  local n = self.sampler:size() / self.batch_size
  return self.drop_last and math.floor(n) or math.ceil(n)
end

local function pack(...) return { n = select("#", ...), ... } end

-- The values of a batch, given a list of positions.
local function from_samples(self, positions)
  local samples = {}
  for k, i in ipairs(positions) do samples[k] = pack(self.dataset:get(i)) end
  return (self.collate_fn or collate.default)(samples)
end

-- Batches by get_batch, out of one tensor of positions.
local function iter_tensor(self, positions)
  local n, at = positions:size(1), 1
  return function()
    local count = math.min(self.batch_size, n - at + 1)
    if count <= 0 or (self.drop_last and count < self.batch_size) then return nil end
    local part = positions:narrow(1, at, count)
    at = at + count
    return self.dataset:get_batch(part)
  end
end

local function pin(v)
  if B.is_tensor(v) then return v:pin_memory() end
  if type(v) ~= "table" or getmetatable(v) then return v end
  local out = {}
  for key, value in pairs(v) do out[key] = pin(value) end
  return out
end
local function pinned(...)
  local values = pack(...)
  for k = 1, values.n do values[k] = pin(values[k]) end
  return unpack(values, 1, values.n)
end

--- An iterator over one epoch, for `for x, y in loader:iter() do`.
function DataLoader:iter()
  local next_batch = self:batches()
  if not self.pin_memory then return next_batch end
  return function() return pinned(next_batch()) end
end

-- The same before pinning.
function DataLoader:batches()
  local whole = self.dataset.get_batch and not self.collate_fn
  if whole and not self.batch_sampler and self.sampler.positions then
    return iter_tensor(self, self.sampler:positions())
  end
  local batches = self.batch_sampler or sampler.BatchSampler(self.sampler, self.batch_size,
    { drop_last = self.drop_last })
  local next_batch = batches:iter()
  return function()
    local positions = next_batch()
    if positions == nil then return nil end
    if whole then return self.dataset:get_batch(moth.tensor(positions, { dtype = moth.int64 })) end
    return from_samples(self, positions)
  end
end

function DataLoader.__call(self) return self:iter() end

return DataLoader
