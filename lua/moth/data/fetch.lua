--- Making batches, in the caller or in a worker: from positions, or from the iterator of an IterableDataset.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local collate = require "moth.data.collate"
local signature = require "moth.utils.signature"

local M = {}

local function pack(...) return { n = select("#", ...), ... } end

-- The values of a batch; an error where the loop would take the first for its end.
local function some(what, ...)
  if (...) == nil then check.fail("[data.DataLoader] %s returned nothing: the loop would end here", what) end
  return ...
end

--- The values of the batch of the samples at `positions` (a list, or an int64 tensor). source: { dataset, collate_fn?,
-- whole: by get_batch }
function M.map(source, positions)
  local dataset = source.dataset
  if source.whole then
    if not B.is_tensor(positions) then positions = moth.tensor(positions, { dtype = moth.int64 }) end
    return some("get_batch(positions)", dataset:get_batch(positions))
  end
  if B.is_tensor(positions) then positions = positions:totable() end
  local samples = {}
  for k, i in ipairs(positions) do
    local sample = pack(dataset:get(i))
    if sample.n == 0 then check.fail("[data.DataLoader] get(%s) of the dataset returned nothing", tostring(i)) end
    samples[k] = sample
  end
  return some("collate_fn", (source.collate_fn or collate.default)(samples))
end

-- What a worker knows of itself; see M.info.
local current

--- In a worker: { id (from 0), num_workers, seed, dataset }; elsewhere nil.
M.get_worker_info = signature("data.get_worker_info()", function()
  if current then current.asked = true end
  return current and current.info
end)
--- Whether this is the program itself, not a worker: for scripts that are written for PyTorch, where workers run the
-- script again. Here they do not.
M.is_main = signature("is_main()", function() return current == nil end)
M.worker_info = signature.alias("data.worker_info", M.get_worker_info)
function M.set_info(info) current = { info = info } end

--- A function that gives the next batch of an IterableDataset, or nothing. Samples are shared out among the workers:
-- by the dataset, if its iter(info) looks at info or at get_worker_info() before it gives its second sample, else
-- every num_workers-th sample is a worker's. source: { dataset, collate_fn?, batch_size (nil: samples), drop_last }
function M.iterate(source, id, num_workers, seed, base)
  local asked = false
  local values = { id = id, num_workers = num_workers, seed = seed, base_seed = base, dataset = source.dataset }
  local info = setmetatable({}, { __index = function(_, key)
    asked = true
    return values[key]
  end })
  if current then current.asked = false end
  local next_sample = source.dataset:iter(info)
  if type(next_sample) ~= "function" then
    check.fail("%s:iter must return a function that gives the next sample, got %s",
      source.dataset.__name or "the dataset", type(next_sample))
  end
  local first, n, ended = true, 0, false
  local function sample()
    while not ended do
      local s = pack(next_sample())
      ended = s[1] == nil
      if ended then return nil end
      if first then
        first = false
        if asked or current and current.asked then num_workers, id = 1, 0 end
      end
      n = n + 1
      if (n - 1) % num_workers == id then return s end
    end
  end
  return function()
    local samples = {}
    for k = 1, source.batch_size or 1 do
      local s = sample()
      if s == nil then break end
      samples[k] = s
    end
    if #samples == 0 or source.drop_last and #samples < (source.batch_size or 1) then return nil end
    if not source.batch_size then return unpack(samples[1], 1, samples[1].n) end
    return some("collate_fn", (source.collate_fn or collate.default)(samples))
  end
end

-- ---- random numbers ------------------------------------------------------------------------------------

--- The seed of batch b in an epoch with this base seed.
function M.seed(base, b)
  local z = ffi.cast("uint64_t", base) + 0x9e3779b97f4a7c15ULL * ffi.cast("uint64_t", b)
  z = bit.bxor(z, bit.rshift(z, 30)) * 0xbf58476d1ce4e5b9ULL
  z = bit.bxor(z, bit.rshift(z, 27)) * 0x94d049bb133111ebULL
  return tonumber(bit.rshift(bit.bxor(z, bit.rshift(z, 31)), 12))
end

--- Seeds what datasets draw from: the default generator and math.random.
function M.reseed(seed)
  B.generator_seed(nil, seed)
  math.randomseed(seed)
end

-- The state of math.random: LuaJIT keeps it in a userdata of 32 bytes, an upvalue of the function.
local _, lua_state = debug.getupvalue(math.random, 1)
if type(lua_state) ~= "userdata" then lua_state = nil end

local function restore(high, low, at_high, at_low, bytes, ...)
  B.generator_set_state(nil, high, low, at_high, at_low)
  if bytes then ffi.copy(lua_state, bytes, 32) end
  return ...
end

--- fn(…) with the random numbers of `seed`, without a trace in those of the caller: a batch is the same in a worker and
-- without workers.
function M.seeded(seed, fn, ...)
  local high, low, at_high, at_low = B.generator_state()
  local bytes = lua_state and ffi.string(lua_state, 32)
  M.reseed(seed)
  return restore(high, low, at_high, at_low, bytes, fn(...))
end

return M
