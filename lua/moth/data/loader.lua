--- data.DataLoader: batches of a dataset.
--
--     local loader = data.DataLoader(ds, { batch_size = 64, shuffle = true, num_workers = 2 })
--     for x, y in loader:iter() do … end          -- or: in loader do
--     for i, x, y in loader() do … end            -- with the number of the batch, from 1; or loader:enumerate()
--     print(#loader)                              -- batches in an epoch
--
-- Where the dataset has get_batch and no collate_fn is given, a batch is one call of get_batch (one index_select per
-- tensor of a TensorDataset); otherwise it is collated from single samples (fetch.lua). With num_workers above 0 this
-- happens in threads with a Lua state each (pool.lua); the batches are the same for any number of them.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local range = require "moth.profiler.range"
local LOADER = range.kinds.loader
local collate = require "moth.data.collate"
local fetch = require "moth.data.fetch"
local sampler = require "moth.data.sampler"
local each = require "moth.each"

local DataLoader = class.sequence(class("DataLoader"), function()
  check.fail("[data.DataLoader] a loader cannot be indexed: loop over loader:iter(), or take samples of its dataset")
end)

local TensorDataset = require("moth.data.dataset").TensorDataset -- and the types Dataset, Iterable of signatures

--- batch_size = false: no batches, samples come as the dataset gives them (or as collate_fn makes of their values).
-- collate_fn: list of samples { n = …, … } -> values of the batch. pin_memory copies the tensors of batches to pinned
-- memory if there is CUDA, for x:cuda{non_blocking = true}. num_workers: threads that make the batches, 0: the caller;
-- each has prefetch_factor batches on their way. persistent_workers: they stay for the next epoch, with their copy of
-- the dataset. timeout: seconds to wait for a batch, 0: any time. worker_init_fn(id) is called in each, id from 0.
-- generator: draws the order and the seeds of the epochs; seed = n stands for Generator(n). multiprocessing_context is
-- read over: there are no processes.
DataLoader.__init = signature.init("data.DataLoader(Dataset|Iterable dataset, count|false batch_size?, bool shuffle?, \z
  Sampler|Tensor|Index[]|function sampler?, Sampler|list|function batch_sampler?, size num_workers=0, \z
  callable collate_fn?, bool pin_memory=false, \z
  bool drop_last=false, number timeout=0, callable worker_init_fn?, string multiprocessing_context?, *, \z
  Generator generator?, size seed?, count prefetch_factor=2, bool persistent_workers=false)", function(self, o)
  local where, dataset = "[data.DataLoader]", o.dataset
  if o.sampler and o.shuffle then check.fail("%s shuffle is up to the sampler; give one or the other", where) end
  if o.batch_size == false and (o.batch_sampler or o.drop_last) then
    check.fail("%s batch_size = false makes no batches: it excludes batch_sampler and drop_last", where)
  end
  if o.batch_sampler and (o.batch_size or o.shuffle or o.sampler or o.drop_last) then
    check.fail("%s batch_sampler excludes batch_size, shuffle, sampler and drop_last", where)
  end
  o.sampler, o.batch_sampler = sampler.of(o.sampler), sampler.of(o.batch_sampler)
  if o.generator and o.seed then check.fail("%s generator and seed say the same; give one or the other", where) end
  if o.timeout < 0 or o.timeout ~= o.timeout then
    check.fail("%s timeout must be a number of seconds of at least 0, got %g", where, o.timeout)
  end
  self.iterable = type(dataset.get) ~= "function"
  if self.iterable and (o.shuffle or o.sampler or o.batch_sampler) then
    check.fail("%s an IterableDataset gives its samples in its own order: no shuffle, sampler or batch_sampler", where)
  end
  local generator = o.generator or o.seed and moth.Generator(o.seed)
  self.dataset, self.collate_fn, self.batch_sampler = dataset, o.collate_fn, o.batch_sampler
  if o.batch_size == false then
    local of = o.collate_fn
    self.collate_fn = of and function(samples) return of(collate.one(samples)) end or collate.one
  end
  self.batch_size, self.drop_last, self.generator = o.batch_size or 1, o.drop_last, generator
  self.pin_memory = o.pin_memory and moth.cuda.is_available()
  self.num_workers, self.prefetch_factor, self.persistent_workers = o.num_workers, o.prefetch_factor,
    o.persistent_workers
  self.timeout, self.worker_init_fn = o.timeout, o.worker_init_fn
  if self.iterable then
    self.order = {}
  else
    self.sampler = o.sampler or o.shuffle and sampler.RandomSampler { data_source = dataset, generator = generator }
      or sampler.SequentialSampler { data_source = dataset }
    self.order = o.batch_sampler and (o.batch_sampler.sampler or o.batch_sampler) or self.sampler -- draws the order
  end
end)

--- The number of batches in an epoch.
function DataLoader:size()
  if self.batch_sampler then return self.batch_sampler:size() end
  if self.iterable and type(self.dataset.size) ~= "function" then
    check.fail("[data.DataLoader] the number of batches is not known: %s has no size()", tostring(self.dataset))
  end
  local n = (self.iterable and self.dataset or self.sampler):size() / self.batch_size
  return self.drop_last and math.floor(n) or math.ceil(n)
end

-- The generator that draws the order and the seeds: the sampler's own, the loader's, else (nil) the default one.
local function generator(self) return self.order.generator or self.generator end
local function rng(self)
  local own = generator(self)
  return own and own:get_state() or moth.get_rng_state()
end
local function set_rng(self, state)
  local own = generator(self)
  if own then own:set_state(state) else moth.set_rng_state(state) end
end

local function pack(...) return { n = select("#", ...), ... } end

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

-- The batches of an epoch as lists or tensors of positions: a function that gives the next one, or nil.
local function requests(self, whole)
  if whole and not self.batch_sampler and self.sampler.positions then
    local positions, at = self.sampler:positions(), 1
    local n = positions:size(1)
    return function()
      local count = math.min(self.batch_size, n - at + 1)
      if count <= 0 or (self.drop_last and count < self.batch_size) then return nil end
      at = at + count
      return positions:narrow(1, at - count, count)
    end
  end
  local batches = self.batch_sampler or sampler.BatchSampler(self.sampler, self.batch_size,
    { drop_last = self.drop_last })
  return batches:iter()
end

-- ---- with workers --------------------------------------------------------------------------------------

local unfinished = setmetatable({}, { __mode = "k" }) -- pools of one epoch that have not come to its end

local function open_pool(self, whole, seed)
  if self.pool and self.pool.threads then return self.pool end
  if next(unfinished) ~= nil then collectgarbage() end -- loops that were broken off: their workers end
  local pool = require "moth.data.pool"({ dataset = self.dataset, collate_fn = self.collate_fn,
    worker_init_fn = self.worker_init_fn }, { num_workers = self.num_workers, prefetch_factor = self.prefetch_factor,
    timeout = self.timeout, whole = whole, iterable = self.iterable, batch_size = self.batch_size,
    drop_last = self.drop_last, seed = seed })
  if self.persistent_workers then self.pool = pool else unfinished[pool] = true end
  return pool
end

-- What iter() returns where there are workers: an object and no closure, since compiled code keeps the closures that it
-- calls for ever, and with one of a loop that was broken off its threads.
local Iterator = {}
Iterator.__index = Iterator

local function given(self, ...)
  local loader, position = self.loader, self.position
  if (...) ~= nil then
    position.given = position.given + 1
    if loader.pin_memory then return pinned(...) end
    return ...
  end
  if loader.epoch == position then loader.epoch = nil end -- finished: the next epoch draws a new order
  if self.pool ~= loader.pool then
    unfinished[self.pool] = nil
    self.pool:stop()
  end
end
local function next_of(self) return given(self, self.epoch:next()) end
function Iterator.__call(self) return range(LOADER, "dataloader.next", next_of, self) end

-- ---- an epoch ------------------------------------------------------------------------------------------

-- The batches of an epoch after the first `skip`, not pinned: a function; or an Iterator.
local function batches(self, skip)
  local base = moth.randint(0, 2 ^ 53, { 1 }, { generator = generator(self) }):item()
  local whole = not self.iterable and self.dataset.get_batch and not self.collate_fn and true or false
  local request, b = not self.iterable and requests(self, whole), skip
  if request then
    for _ = 1, skip do request() end
  end
  if self.num_workers > 0 then
    local pool = open_pool(self, whole, base)
    local epoch = pool:epoch(request, base, request and skip or 0)
    for _ = 1, request and 0 or skip do epoch:next() end
    return setmetatable({ loader = self, pool = pool, epoch = epoch }, Iterator)
  end
  local source = { dataset = self.dataset, collate_fn = self.collate_fn, whole = whole, batch_size = self.batch_size,
    drop_last = self.drop_last }
  if request then
    local draws = not whole or getmetatable(self.dataset) ~= TensorDataset -- that one takes no random numbers
    return function()
      local positions = request()
      if positions == nil then return nil end
      b = b + 1
      if not draws then return fetch.map(source, positions) end
      return fetch.seeded(fetch.seed(base, b), fetch.map, source, positions)
    end
  end
  local own = fetch.seed(fetch.seed(base, 1), 2 ^ 32)
  local next_batch = fetch.seeded(own, fetch.iterate, source, 0, 1, own, base)
  for k = 1, skip do fetch.seeded(fetch.seed(base, k), next_batch) end
  return function()
    b = b + 1
    return fetch.seeded(fetch.seed(base, b), next_batch)
  end
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
    next_batch = batches(self, resume.given)
    set_rng(self, now)
  else
    next_batch = batches(self, 0)
  end
  self.epoch = epoch
  if type(next_batch) == "table" then
    next_batch.position = epoch
    return next_batch
  end
  local function count(...)
    if (...) == nil then
      if self.epoch == epoch then self.epoch = nil end -- finished: the next epoch draws a new order
    else
      epoch.given = epoch.given + 1
    end
    return ...
  end
  local function plain() return count(next_batch()) end
  local function pinning() return count(pinned(next_batch())) end
  local fn = self.pin_memory and pinning or plain
  return function() return range(LOADER, "dataloader.next", fn) end
end

-- `for x, y in loader do`: Lua calls the loader itself with the first value of the last batch. Loops in progress are
-- stored under that value: loops over one loader may nest, and an abandoned one is forgotten.
local function go_on(loops, next_batch, last, first, ...)
  if last ~= nil then loops[last] = nil end
  if first == nil then return nil end
  loops[first] = next_batch
  return first, ...
end

--- `for i, x, y in loader() do`: as enumerate(). `for x, y in loader do`: as iter().
function DataLoader.__call(self, ...)
  if select("#", ...) == 0 then return self:enumerate() end
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

local Enumerator = {} -- no closure either

local function numbered(self, ...)
  if (...) == nil then return nil end
  self.i = self.i + 1
  return self.i, ...
end
function Enumerator.__call(self) return numbered(self, self.iterator()) end

--- `for i, x, y in loader:enumerate() do`: as iter(), with the number of the batch, from 1, first.
function DataLoader:enumerate() return setmetatable({ iterator = self:iter(), i = 0 }, Enumerator) end

local function size_of(self) return not self.iterable and self.dataset:size() or nil end

--- The position of the loader, also within an epoch: a plain table for moth.save. After load_state_dict the next iter()
-- gives the remaining batches, and later epochs are shuffled as they would have been.
function DataLoader:state_dict()
  local epoch = self.epoch or {}
  return { start = epoch.start, given = epoch.given, generator = rng(self), size = size_of(self),
    batch_size = self.batch_size, epoch = self.order.epoch }
end

--- Continues at the position of another loader over the same data. Sets the state of the sampler's generator (or of the
-- default generator, if it has none). Custom samplers must draw their order when iter() is called.
function DataLoader:load_state_dict(sd)
  local where = "load_state_dict of data.DataLoader"
  if type(sd) ~= "table" or type(sd.generator) ~= "table" then
    check.fail("%s: expected what state_dict gave", where)
  end
  for name, own in each({ size = size_of(self), batch_size = self.batch_size }) do
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
