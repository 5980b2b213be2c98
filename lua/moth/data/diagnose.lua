--- Where the time of a training goes: waiting for the loader, copying to the device, or computing; and copies that
-- overlap with computing.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"
require "moth.data.loader"

local M = {}

local function pack(...) return { n = select("#", ...), ... } end

local function move(v, device, o)
  if B.is_tensor(v) then return v:to(device, o) end
  if type(v) ~= "table" or getmetatable(v) ~= nil then return v end
  local out = {}
  for key, value in each(v) do out[key] = move(value, device, o) end
  return out
end

local function has_iter(v)
  local ok, iter = pcall(function() return v.iter end)
  return ok and type(iter) == "function"
end
signature.type("Loader", has_iter, "a loader with iter()")

--- An iterator over the batches of a loader on a device: the next batch is copied there, in a stream of its own, while
-- the caller computes with the current one. For CUDA, best with pin_memory = true; on the CPU it gives the batches.
--
--     for x, y in data.prefetcher(loader, "cuda") do … end
M.prefetcher = signature("data.prefetcher(Loader loader, device device)", function(loader, device)
  device = moth.device(device)
  local next_batch = loader:iter()
  if device.type ~= "cuda" then return next_batch end
  local stream = moth.Stream(device)
  local ready
  local function load()
    ready = pack(next_batch())
    if ready[1] == nil then return end
    moth.stream(stream, function()
      for k = 1, ready.n do ready[k] = move(ready[k], device, { non_blocking = true }) end
    end)
  end
  local function use(v, current)
    if B.is_tensor(v) then v:record_stream(current) return end
    if type(v) ~= "table" or getmetatable(v) ~= nil then return end
    for _, value in each(v) do use(value, current) end
  end
  load()
  return function()
    if ready[1] == nil then return nil end
    local current = moth.cuda.current_stream(device)
    current:wait_stream(stream)
    local batch = ready
    for k = 1, batch.n do use(batch[k], current) end -- its memory is not reused before the current stream is done
    load()
    return unpack(batch, 1, batch.n)
  end
end)

-- ---- diagnosis -----------------------------------------------------------------------------------------

local advice = {
  ["loader bound"] = "the step waits for batches that are being computed: %s; transforms of whole batches "
    .. "(get_batch); persistent_workers = true",
  ["disk bound"] = "the step waits for batches, and the processors are idle: few large files instead of many small "
    .. "ones (data.WebDataset), mapped files (moth.mmap), a faster disk; %s",
  ["transfer bound"] = "copies to the device take the time: pin_memory = true in the loader, and "
    .. "data.prefetcher(loader, device), which copies while the step computes",
  ["compute bound"] = "the loader keeps up: speed comes from the step: moth.compile, autocast, larger batches, a "
    .. "faster device",
}

local function workers_hint(loader)
  local n = loader.num_workers
  if n == nil then return "a DataLoader with num_workers" end
  if n == 0 then return "num_workers = 2 or more" end
  return ("more than num_workers = %d"):format(n)
end

-- "get at train.lua:5, transform at train.lua:9": the program's own functions that make a sample.
local function makers(loader)
  local list, ds = {}, loader.dataset
  local function field(name)
    local ok, value = pcall(function() return ds[name] end)
    return ok and value or nil
  end
  while ds and #list < 8 do
    for _, name in ipairs { "get", "get_batch", "iter", "transform" } do
      local f = field(name)
      local info = type(f) == "function" and debug.getinfo(f, "S")
      if info and info.what ~= "C" and not info.source:find("lua/moth/", 1, true) then
        list[#list + 1] = ("%s at %s:%d"):format(name, info.short_src, info.linedefined)
      end
    end
    ds = field "dataset"
  end
  return table.concat(list, ", ")
end

-- The processor time of this process's threads, and the time that they waited for a processor, in nanoseconds:
-- { thread = { run, waited } }. On a busy machine a thread may wait as long as it runs.
local function schedule()
  local out = {}
  for _, id in ipairs(system.list("/proc/self/task") or {}) do
    local f = io.open("/proc/self/task/" .. id .. "/schedstat")
    local run, waited = (f and f:read("*a") or ""):match("^(%d+) (%d+)")
    if f then f:close() end
    if run then out[id] = { tonumber(run), tonumber(waited) } end
  end
  return out
end

-- By how much the threads would have run longer with a processor for each.
local function slowdown(before)
  local run, waited = 0, 0
  for id, now in each(schedule()) do
    local was = before[id] or { 0, 0 }
    run, waited = run + now[1] - was[1], waited + now[2] - was[2]
  end
  return run > 0 and 1 + waited / run or 1
end

--- Runs a training for some steps and says what it waits for.
--
--     moth.diagnose(loader, function(x, y) … end, { steps = 50, device = "cuda" })
--
-- step(…) gets the batch, on the device if one is given. Prints the shares and one of four verdicts: "loader bound",
-- "disk bound", "transfer bound", "compute bound", with advice, and the lines that make samples. Returns { verdict,
-- advice, wait, copy, compute (shares of the time), busy (processors in use while it waited), steps, steps_per_second,
-- samples_per_second }. The first batch is not counted: workers start then.
M.diagnose = signature("diagnose(Loader loader, callable step, *, count steps=50, device device?, \z
  bool quiet=false)", function(loader, step, o)
  local device = o.device and moth.device(o.device)
  local function sync() if device and device.type == "cuda" then moth.cuda.synchronize() end end
  local wait, copy, compute, busy, samples, steps = 0, 0, 0, 0, 0, 0
  local next_batch, first, before = loader:iter(), true, schedule()
  while steps < o.steps do
    local began, cpu = system.now(), system.cpu_time()
    local batch = pack(next_batch())
    local got = system.now()
    if batch[1] == nil then
      next_batch = loader:iter() -- another epoch; its start counts
      batch = pack(next_batch())
      got = system.now()
      if batch[1] == nil then check.fail("[diagnose] the loader gives no batches") end
    end
    local used = system.cpu_time() - cpu
    if device then
      for k = 1, batch.n do batch[k] = move(batch[k], device) end
      sync()
    end
    local moved = system.now()
    step(unpack(batch, 1, batch.n))
    sync()
    local done = system.now()
    if not first then
      steps, wait, copy, compute, busy = steps + 1, wait + got - began, copy + moved - got, compute + done - moved,
        busy + used
      samples = samples + (B.is_tensor(batch[1]) and B.dim(batch[1]) > 0 and B.size(batch[1], 1) or 1)
    end
    first = false
  end
  local total = math.max(wait + copy + compute, 1e-9)
  busy = busy * slowdown(before)
  local out = { wait = wait / total, copy = copy / total, compute = compute / total, busy = busy / math.max(wait, 1e-9),
    steps = steps, steps_per_second = steps / total, samples_per_second = samples / total }
  if out.copy >= 0.3 and out.copy > out.wait then
    out.verdict = "transfer bound"
  elseif out.wait >= 0.3 then
    out.verdict = out.busy < 0.5 and "disk bound" or "loader bound"
  else
    out.verdict = "compute bound"
  end
  out.advice = advice[out.verdict]:format(workers_hint(loader))
  local made_by = out.wait >= 0.3 and makers(loader) or ""
  if made_by ~= "" then out.advice = out.advice .. "; samples come from " .. made_by end
  if not o.quiet then
    print(("%d steps: waiting for the loader %.0f %%, copying %.0f %%, computing %.0f %%; %.1f steps/s, %.0f samples/s")
      :format(steps, 100 * out.wait, 100 * out.copy, 100 * out.compute, out.steps_per_second, out.samples_per_second))
    print(("%s: %s"):format(out.verdict, out.advice))
  end
  return out
end, true)

return M
