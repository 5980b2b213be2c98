--- Where the batches of a train.Trainer come from and go to: the share of a rank, the device.
local B = require "moth_lua"
local class = require "moth.class"
local data = require "moth.data"
local each = require "moth.each"
local moth = require "moth"
local M = {}

--- The share of a loader that is this rank's. One with a sampler for ranks is left as it is.
function M.shared(self, loader, shuffle)
  if not loader or not self.ddp or moth.distributed.get_world_size() == 1 then return loader end
  if loader.iterable or loader.batch_sampler or loader.sampler.set_epoch then return loader end
  local sampler = data.DistributedSampler(loader.dataset, { shuffle = shuffle and
    class.is_a(loader.sampler, data.RandomSampler) })
  return data.DataLoader(loader.dataset, { batch_size = loader.batch_size, sampler = sampler,
    num_workers = loader.num_workers, collate_fn = loader.collate_fn, pin_memory = loader.pin_memory or false,
    drop_last = loader.drop_last, timeout = loader.timeout, worker_init_fn = loader.worker_init_fn,
    prefetch_factor = loader.prefetch_factor, persistent_workers = loader.persistent_workers })
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
