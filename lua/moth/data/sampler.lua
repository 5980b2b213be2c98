--- Samplers: in which order a DataLoader reads. The contract is `iter()`, which returns an iterator function of
-- positions from 1, and `size()`. A sampler that has `positions()` gives all of them as one int64 tensor.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"

local M = {}

-- A dataset, or anything else with size(), or a number.
local function size_of(where, source)
  if type(source) == "number" then return check.integer(where, "size", source) end
  if type(source) ~= "table" or type(source.size) ~= "function" then
    check.fail("%s: expected a dataset or a number, got %s", where, class.name(source))
  end
  return source:size()
end

local Sampler = class("Sampler")
M.Sampler = Sampler

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

function SequentialSampler:__init(source) self.source = source end
function SequentialSampler:size() return size_of("data.SequentialSampler", self.source) end
function SequentialSampler:positions() return moth.arange(1, self:size() + 1) end

--- A new permutation each time; o.generator, o.replacement (false), o.num_samples
local RandomSampler = class("RandomSampler", Sampler)
M.RandomSampler = RandomSampler

function RandomSampler:__init(source, o)
  o = check.options("data.RandomSampler", o, "generator replacement num_samples")
  self.source, self.generator, self.replacement = source, o.generator, o.replacement == true
  self.num_samples = o.num_samples and check.integer("data.RandomSampler", "num_samples", o.num_samples, 1)
end

function RandomSampler:size() return self.num_samples or size_of("data.RandomSampler", self.source) end

function RandomSampler:positions()
  local n, want, o = size_of("data.RandomSampler", self.source), self:size(), { generator = self.generator }
  if self.replacement then return moth.randint(1, n + 1, { want }, o) end
  if want <= n then return moth.randperm(n, o):narrow(1, 1, want) end
  local parts, left = {}, want
  while left > 0 do
    parts[#parts + 1] = moth.randperm(n, o):narrow(1, 1, math.min(left, n))
    left = left - n
  end
  return moth.cat(parts)
end

--- num_samples positions drawn with the given weights (a list or tensor), with replacement unless o.replacement
-- is false; o.generator.
local WeightedRandomSampler = class("WeightedRandomSampler", Sampler)
M.WeightedRandomSampler = WeightedRandomSampler

function WeightedRandomSampler:__init(weights, num_samples, o)
  o = check.options("data.WeightedRandomSampler", o, "generator replacement")
  self.weights = moth.is_tensor(weights) and weights or moth.tensor(weights, { dtype = moth.float64 })
  self.num_samples = check.integer("data.WeightedRandomSampler", "num_samples", num_samples, 1)
  self.replacement, self.generator = o.replacement ~= false, o.generator
end

function WeightedRandomSampler:size() return self.num_samples end
function WeightedRandomSampler:positions()
  return moth.multinomial(self.weights, self.num_samples, self.replacement, { generator = self.generator })
end

--- The share of one of several processes: disjoint, of equal size, from a permutation that all ranks share.
-- o.num_replicas, o.rank (from 0), o.shuffle (true), o.seed (0), o.drop_last (false: the first samples are
-- repeated to fill up). set_epoch(e) changes the permutation; without it every epoch repeats the order.
local DistributedSampler = class("DistributedSampler", Sampler)
M.DistributedSampler = DistributedSampler

function DistributedSampler:__init(source, o)
  local where = "data.DistributedSampler"
  o = check.options(where, o, "num_replicas rank shuffle seed drop_last")
  self.source, self.epoch, self.seed = source, 0, o.seed or 0
  self.num_replicas = check.integer(where, "num_replicas", o.num_replicas, 1)
  self.rank = check.integer(where, "rank", o.rank, 0)
  if self.rank >= self.num_replicas then
    check.fail("%s: rank %d is none of the %d replicas; ranks count from 0", where, self.rank, self.num_replicas)
  end
  self.shuffle, self.drop_last = o.shuffle ~= false, o.drop_last == true
end

function DistributedSampler:set_epoch(epoch) self.epoch = epoch end

function DistributedSampler:size()
  local n = size_of("data.DistributedSampler", self.source) / self.num_replicas
  return self.drop_last and math.floor(n) or math.ceil(n)
end

function DistributedSampler:positions()
  local n, each = size_of("data.DistributedSampler", self.source), self:size()
  local order = self.shuffle and moth.randperm(n, { generator = moth.Generator(self.seed + self.epoch) })
    or moth.arange(1, n + 1)
  while order:size(1) < each * self.num_replicas do
    order = moth.cat({ order, order:narrow(1, 1, math.min(n, each * self.num_replicas - order:size(1))) })
  end
  order = order:narrow(1, 1, each * self.num_replicas)
  return order:view(each, self.num_replicas):select(2, self.rank + 1):contiguous()
end

--- Lists of batch_size positions of another sampler. o.drop_last leaves out a last one that is not full.
local BatchSampler = class("BatchSampler", Sampler)
M.BatchSampler = BatchSampler

function BatchSampler:__init(sampler, batch_size, o)
  o = check.options("data.BatchSampler", o, "drop_last")
  self.sampler, self.drop_last = sampler, o.drop_last == true
  self.batch_size = check.integer("data.BatchSampler", "batch_size", batch_size, 1)
end

function BatchSampler:size()
  local n = self.sampler:size() / self.batch_size
  return self.drop_last and math.floor(n) or math.ceil(n)
end

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
