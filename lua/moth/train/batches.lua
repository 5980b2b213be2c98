--- Where the batches of a train.Trainer come from and go to: the share of a rank, the device.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local data = require "moth.data"
local each = require "moth.each"
local moth = require "moth"
local M = {}

-- Every so manieth position of n, none twice: figures are of each sample once. Ranks may have one more than others.
local function positions(n)
  local list = {}
  for i = moth.distributed.get_rank() + 1, n, moth.distributed.get_world_size() do list[#list + 1] = i end
  return list
end

--- The share of a loader that is this rank's. One with a sampler for ranks is left as it is.
function M.shared(self, loader, training)
  if not loader or not self.ddp or moth.distributed.get_world_size() == 1 then return loader end
  local given = loader.sampler
  if loader.iterable or loader.batch_sampler or not given or given.set_epoch or loader.is_share then return loader end
  local random = class.is_a(given, data.RandomSampler) and not given.replacement and not given.num_samples
  if not (random or class.is_a(given, data.SequentialSampler)) then
    check.fail("[train.Trainer] ddp: a loader with a sampler of its own is not split over the ranks; give it a sampler "
      .. "of this rank's positions with set_epoch(epoch), as data.DistributedSampler has")
  end
  local sampler = training and data.DistributedSampler(loader.dataset, { shuffle = random })
    or positions(loader.dataset:size())
  local share = data.DataLoader(loader.dataset, { batch_size = loader.batch_size, sampler = sampler,
    num_workers = loader.num_workers, collate_fn = loader.collate_fn, pin_memory = loader.pin_memory or false,
    drop_last = loader.drop_last, timeout = loader.timeout, worker_init_fn = loader.worker_init_fn,
    prefetch_factor = loader.prefetch_factor, persistent_workers = loader.persistent_workers })
  share.is_share = true -- fit makes it, validate is given it each epoch
  return share
end

--- A batch's tensors, in tables too, on a device.
function M.to_device(v, device)
  if B.is_tensor(v) then return v:to { device = device, non_blocking = true } end
  if type(v) ~= "table" or getmetatable(v) then return v end
  local out = {}
  for key, value in each(v) do out[key] = M.to_device(value, device) end
  return out
end

return M
