--- data.DataLoader: batches of a dataset.
--
--     local loader = data.DataLoader(ds, { batch_size = 64, shuffle = true })
--     for x, y in loader:iter() do … end          -- or: in loader() do, in loader do
--     for i, x, y in loader:enumerate() do … end  -- with the number of the batch, from 1
--     print(#loader)                              -- batches in an epoch
--
-- Where the dataset has get_batch and no collate_fn is given, a batch is one call of get_batch (one index_select per
-- tensor of a TensorDataset); otherwise it is collated from single samples.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local collate = require "moth.data.collate"
local sampler = require "moth.data.sampler"
local each = require "moth.each"

local DataLoader = class.sequence(class("DataLoader"), function()
  check.fail("[data.DataLoader] a loader cannot be indexed: loop over loader:iter(), or take samples of its dataset")
end)

require "moth.data.dataset" -- the type Dataset of signatures

--- collate_fn: list of samples { n = …, … } -> values of the batch. pin_memory copies the tensors of batches to pinned
-- memory if there is CUDA, for x:cuda{non_blocking = true}.
DataLoader.__init = signature.init("data.DataLoader(Dataset dataset, count batch_size?, bool shuffle?, \z
  Sampler sampler?, Sampler batch_sampler?, size num_workers=0, callable collate_fn?, bool pin_memory=false, \z
  bool drop_last=false, *, Generator generator?)", function(self, o)
  local where, dataset = "[data.DataLoader]", o.dataset
  if o.num_workers ~= 0 then
    check.fail("%s num_workers = %d: worker threads come later; use num_workers = 0", where, o.num_workers)
  end
  if o.sampler and o.shuffle then check.fail("%s shuffle is up to the sampler; give one or the other", where) end
  if o.batch_sampler and (o.batch_size or o.shuffle or o.sampler or o.drop_last) then
    check.fail("%s batch_sampler excludes batch_size, shuffle, sampler and drop_last", where)
  end
  self.dataset, self.collate_fn, self.batch_sampler = dataset, o.collate_fn, o.batch_sampler
  self.batch_size, self.drop_last = o.batch_size or 1, o.drop_last
  self.pin_memory = o.pin_memory and moth.cuda.is_available()
  self.sampler = o.sampler or o.shuffle and sampler.RandomSampler(dataset, { generator = o.generator })
    or sampler.SequentialSampler(dataset)
  self.order = o.batch_sampler and (o.batch_sampler.sampler or o.batch_sampler) or self.sampler -- draws the order
end)

--- The number of batches in an epoch.
function DataLoader:size()
  if self.batch_sampler then return self.batch_sampler:size() end
  local n = self.sampler:size() / self.batch_size
  return self.drop_last and math.floor(n) or math.ceil(n)
end

-- The state of the generator that shuffles: the sampler's own, else the default generator's.
local function rng(self)
  local own = self.order.generator
  return own and own:get_state() or moth.get_rng_state()
end
local function set_rng(self, state)
  local own = self.order.generator
  if own then own:set_state(state) else moth.set_rng_state(state) end
end

local function pack(...) return { n = select("#", ...), ... } end

-- The values of a batch of the samples at `positions` (a list).
local function from_samples(self, positions)
  local samples = {}
  for k, i in ipairs(positions) do samples[k] = pack(self.dataset:get(i)) end
  return (self.collate_fn or collate.default)(samples)
end

-- Iterates over batches by get_batch, from one tensor of positions, without the first `skip` batches.
local function iter_tensor(self, positions, skip)
  local n, at = positions:size(1), 1 + skip * self.batch_size
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
  for key, value in each(v) do out[key] = pin(value) end
  return out
end
local function pinned(...)
  local values = pack(...)
  for k = 1, values.n do values[k] = pin(values[k]) end
  return unpack(values, 1, values.n)
end

--- An iterator over one epoch, for `for x, y in loader:iter() do`.
function DataLoader:iter()
  local resume = self.resume
  self.resume = nil
  local epoch = { start = rng(self), given = 0 }
  local next_batch
  if resume and resume.start then -- draw the order of the interrupted epoch again
    epoch = { start = resume.start, given = resume.given }
    local now = rng(self)
    set_rng(self, resume.start)
    next_batch = self:batches(resume.given)
    set_rng(self, now)
  else
    next_batch = self:batches(0)
  end
  self.epoch = epoch
  local function count(...)
    if (...) == nil then
      if self.epoch == epoch then self.epoch = nil end -- finished: the next epoch draws a new order
    else
      epoch.given = epoch.given + 1
    end
    return ...
  end
  if not self.pin_memory then return function() return count(next_batch()) end end
  return function() return count(pinned(next_batch())) end
end

-- Iterates over one epoch without the first `skip` batches; not pinned.
function DataLoader:batches(skip)
  local whole = self.dataset.get_batch and not self.collate_fn
  if whole and not self.batch_sampler and self.sampler.positions then
    return iter_tensor(self, self.sampler:positions(), skip)
  end
  local batches = self.batch_sampler or sampler.BatchSampler(self.sampler, self.batch_size,
    { drop_last = self.drop_last })
  local next_batch = batches:iter()
  for _ = 1, skip do next_batch() end
  return function()
    local positions = next_batch()
    if positions == nil then return nil end
    if whole then return self.dataset:get_batch(moth.tensor(positions, { dtype = moth.int64 })) end
    return from_samples(self, positions)
  end
end

-- `for x, y in loader do`: Lua calls the loader itself with the first value of the last batch. Loops in progress are
-- stored under that value: loops over one loader may nest, and an abandoned one is forgotten.
local function go_on(loops, next_batch, last, first, ...)
  if last ~= nil then loops[last] = nil end
  if first == nil then return nil end
  loops[first] = next_batch
  return first, ...
end

--- `for x, y in loader() do` and `for x, y in loader do`: as iter().
function DataLoader.__call(self, ...)
  if select("#", ...) == 0 then return self:iter() end
  local loops = self.loops
  if not loops then
    loops = setmetatable({}, { __mode = "k" })
    self.loops = loops
  end
  local last = select(2, ...)
  local next_batch
  if last == nil then next_batch = self:iter() else next_batch = loops[last] end
  if not next_batch then
    check.fail("data.DataLoader: no loop over the loader stands at this value; write for x, y in loader:iter() do")
  end
  return go_on(loops, next_batch, last, next_batch())
end

--- `for i, x, y in loader:enumerate() do`: as iter(), with the number of the batch, from 1, first.
function DataLoader:enumerate()
  local next_batch, i = self:iter(), 0
  local function numbered(...)
    if (...) == nil then return nil end
    i = i + 1
    return i, ...
  end
  return function() return numbered(next_batch()) end
end

--- The position of the loader, also within an epoch: a plain table for moth.save. After load_state_dict the next iter()
-- gives the remaining batches, and later epochs are shuffled as they would have been.
function DataLoader:state_dict()
  local epoch = self.epoch or {}
  return { start = epoch.start, given = epoch.given, generator = rng(self), size = self.dataset:size(),
    batch_size = self.batch_size, epoch = self.order.epoch }
end

--- Continues at the position of another loader over the same data. Sets the state of the sampler's generator (or of the
-- default generator, if it has none). Custom samplers must draw their order when iter() is called.
function DataLoader:load_state_dict(sd)
  local where = "load_state_dict of data.DataLoader"
  if type(sd) ~= "table" or type(sd.generator) ~= "table" then
    check.fail("%s: expected what state_dict gave", where)
  end
  for name, own in each({ size = self.dataset:size(), batch_size = self.batch_size }) do
    if sd[name] ~= own then
      check.fail("%s: its %s is %s, that of the loader %s", where, name, tostring(sd[name]), tostring(own))
    end
  end
  self.resume, self.epoch = { start = sd.start, given = sd.given }, nil
  if sd.epoch and self.order.set_epoch then self.order:set_epoch(sd.epoch) end
  set_rng(self, sd.generator)
  if sd.start then self.epoch = { start = sd.start, given = sd.given } end -- for state_dict() before the next iter()
end

return DataLoader
