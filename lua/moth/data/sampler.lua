--- Samplers: the order in which a DataLoader reads. The contract is `iter()`, which returns an iterator function over
-- positions from 1, and `size()`. `positions()`, if a sampler has it, returns all of them as one int64 tensor.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local M = {}

-- Whether v has this method; a userdata may refuse to be indexed.
local function field(v, name) return v[name] end
local function has(v, name)
  local ok, method = pcall(field, v, name)
  return ok and type(method) == "function"
end

-- A dataset, or anything else with size(), or a number.
signature.type("Sized", function(v)
  if type(v) == "number" then return v >= 0 and v == math.floor(v) end
  return has(v, "size")
end, "a dataset or a number")
local function size_of(source) return type(source) == "number" and source or source:size() end

signature.type("Sampler", function(v) return has(v, "iter") end, "a sampler with iter()")

--- A sampler of what people give for one: a list or tensor of positions, or a function that returns an iterator.
function M.of(v)
  if moth.is_tensor(v) or type(v) == "table" and not has(v, "iter") then
    local list = moth.is_tensor(v) and v:totable() or v
    return { size = function() return #list end, iter = function()
      local k = 0
      return function()
        k = k + 1
        return list[k]
      end
    end }
  elseif type(v) == "function" then
    return { iter = function() return v() end, size = function()
      check.fail("[data.DataLoader] how many positions a function gives is not known: make it a sampler with size()")
    end }
  end
  return v
end

local Sampler = class.sequence(class("Sampler"), function(self)
  check.fail("[data.%s] a sampler has no positions to be indexed by: use iter()", self.__name)
end)
M.Sampler = Sampler
Sampler.__init = signature.init("data.Sampler()", function() end)

--- An iterator over positions in the dataset, from 1.
function Sampler:iter()
  if not self.positions then check.fail("%s has no iter", self.__name) end
  local list, i = self:positions():totable(), 0
  return function()
    i = i + 1
    return list[i]
  end
end

--- 1, 2, …, n
local SequentialSampler = class("SequentialSampler", Sampler)
M.SequentialSampler = SequentialSampler

SequentialSampler.__init = signature.init("data.SequentialSampler(Sized data_source)", function(self, o)
  self.source = o.data_source
end)
--- The number of positions that an epoch has.
function SequentialSampler:size() return size_of(self.source) end
--- All positions in order, an int64 tensor.
function SequentialSampler:positions() return moth.arange(1, self:size() + 1) end

--- A new permutation each time.
local RandomSampler = class("RandomSampler", Sampler)
M.RandomSampler = RandomSampler

RandomSampler.__init = signature.init("data.RandomSampler(Sized data_source, bool replacement=false, \z
  count num_samples?, Generator generator?)", function(self, o)
  self.source, self.generator, self.replacement = o.data_source, o.generator, o.replacement
  self.num_samples = o.num_samples
end)

--- The number of positions that an epoch has.
function RandomSampler:size() return self.num_samples or size_of(self.source) end

--- The positions of an epoch, an int64 tensor, drawn anew at each call.
function RandomSampler:positions()
  local n, want, o = size_of(self.source), self:size(), { generator = self.generator }
  if self.replacement then return moth.randint(1, n + 1, { want }, o) end
  if want <= n then return moth.randperm(n, o):narrow(1, 1, want) end
  local parts, left = {}, want
  while left > 0 do
    parts[#parts + 1] = moth.randperm(n, o):narrow(1, 1, math.min(left, n))
    left = left - n
  end
  return moth.cat(parts)
end

--- The given positions (a list or tensor), in a new order each time.
local SubsetRandomSampler = class("SubsetRandomSampler", Sampler)
M.SubsetRandomSampler = SubsetRandomSampler

SubsetRandomSampler.__init = signature.init("data.SubsetRandomSampler(Tensor|Index[] indices, Generator generator?)",
function(self, o)
  local list = o.indices
  self.indices = moth.is_tensor(list) and list or moth.tensor(list, { dtype = moth.int64 })
  self.generator = o.generator
end)
--- The number of indices.
function SubsetRandomSampler:size() return self.indices:size(1) end
--- The indices in a new order, an int64 tensor.
function SubsetRandomSampler:positions()
  return self.indices:index_select(1, moth.randperm(self:size(), { generator = self.generator }))
end

--- num_samples positions drawn with the given weights (a list or tensor).
local WeightedRandomSampler = class("WeightedRandomSampler", Sampler)
M.WeightedRandomSampler = WeightedRandomSampler

WeightedRandomSampler.__init = signature.init("data.WeightedRandomSampler(Tensor|number[] weights, \z
  count num_samples, bool replacement=true, Generator generator?)", function(self, o)
  local weights = o.weights
  self.weights = moth.is_tensor(weights) and weights or moth.tensor(weights, { dtype = moth.float64 })
  self.num_samples, self.replacement, self.generator = o.num_samples, o.replacement, o.generator
end)

--- num_samples.
function WeightedRandomSampler:size() return self.num_samples end
--- num_samples positions, drawn by the weights: an int64 tensor.
function WeightedRandomSampler:positions()
  return moth.multinomial(self.weights, self.num_samples, self.replacement, { generator = self.generator })
end

--- The share of one of several processes: disjoint, of equal size, from one permutation for all ranks.
-- num_replicas, rank (from 0): default those of moth.distributed's process group. drop_last = false: the first samples
-- are repeated to make the shares equal. set_epoch(e) changes the permutation; else each epoch has the same order.
local DistributedSampler = class("DistributedSampler", Sampler)
M.DistributedSampler = DistributedSampler

DistributedSampler.__init = signature.init("data.DistributedSampler(Sized dataset, count num_replicas?, size rank?, \z
  bool shuffle=true, size seed=0, bool drop_last=false)", function(self, o)
  self.source, self.epoch, self.seed = o.dataset, 0, o.seed
  if not (o.num_replicas and o.rank) then
    local dist = require "moth.distributed"
    if not dist.is_initialized() then
      check.fail("[data.DistributedSampler] there is no process group: give num_replicas and rank, or call "
        .. "dist.init_process_group before")
    end
    o.num_replicas, o.rank = o.num_replicas or dist.get_world_size(), o.rank or dist.get_rank()
  end
  self.num_replicas, self.rank, self.shuffle, self.drop_last = o.num_replicas, o.rank, o.shuffle, o.drop_last
  if o.rank >= o.num_replicas then
    check.fail("[data.DistributedSampler] rank %d is none of the %d replicas; ranks count from 0", o.rank,
      o.num_replicas)
  end
end)

--- Says which epoch comes: each has an order of its own, the same on all ranks.
function DistributedSampler:set_epoch(epoch) self.epoch = epoch end

--- The size of the batch of all replicas together, of batches of so many for each.
function DistributedSampler:global_batch(batch_size)
  return check.integer("[data.DistributedSampler.global_batch]", "batch_size", batch_size, 1) * self.num_replicas
end

--- The number of positions of this rank.
function DistributedSampler:size()
  local n = size_of(self.source) / self.num_replicas
  return self.drop_last and math.floor(n) or math.ceil(n)
end

--- The positions of this rank in this epoch, an int64 tensor.
function DistributedSampler:positions()
  local n, each = size_of(self.source), self:size()
  local order = self.shuffle and moth.randperm(n, { generator = moth.Generator(self.seed + self.epoch) })
    or moth.arange(1, n + 1)
  while order:size(1) < each * self.num_replicas do
    order = moth.cat({ order, order:narrow(1, 1, math.min(n, each * self.num_replicas - order:size(1))) })
  end
  order = order:narrow(1, 1, each * self.num_replicas)
  return order:view(each, self.num_replicas):select(2, self.rank + 1):contiguous()
end

--- Lists of batch_size positions of another sampler. drop_last leaves out an incomplete last list.
local BatchSampler = class("BatchSampler", Sampler)
M.BatchSampler = BatchSampler

BatchSampler.__init = signature.init("data.BatchSampler(Sampler sampler, count batch_size, bool drop_last=false)",
  function(self, o) self.sampler, self.batch_size, self.drop_last = o.sampler, o.batch_size, o.drop_last end)

--- The number of batches.
function BatchSampler:size()
  local n = self.sampler:size() / self.batch_size
  return self.drop_last and math.floor(n) or math.ceil(n)
end

--- An iterator over lists of batch_size positions.
function BatchSampler:iter()
  local next_position = self.sampler:iter()
  return function()
    local batch = {}
    while #batch < self.batch_size do
      local i = next_position()
      if i == nil then break end
      batch[#batch + 1] = i
    end
    if #batch == 0 or (self.drop_last and #batch < self.batch_size) then return nil end
    return batch
  end
end

return M
