--- What bench/run.lua and bench/training.lua measure with: clock, cores, medians, repetitions.
local ffi = require "ffi"

ffi.cdef [[
struct bench_time { long s, ns; };
int clock_gettime(int clock, struct bench_time *t);
int usleep(unsigned us);
int setenv(const char *name, const char *value, int overwrite);
int sched_getcpu(void);
int sched_getaffinity(int pid, size_t size, uint64_t *mask);
int sched_setaffinity(int pid, size_t size, const uint64_t *mask);
]]
local M = {}

local clock, which = ffi.new("struct bench_time"), 1
function M.now()
  ffi.C.clock_gettime(which, clock)
  return tonumber(clock.s) + 1e-9 * tonumber(clock.ns)
end

--- now() is the processor's time of this process from here on, and PyTorch's of its own: for busy machines.
function M.use_processor_time()
  which = 2
  ffi.C.setenv("BENCH_CLOCK", "cpu", 1)
end

--- The median; sorts the list.
function M.median(list)
  table.sort(list)
  local n = #list
  return n % 2 == 1 and list[(n + 1) / 2] or (list[n / 2] + list[n / 2 + 1]) / 2
end

--- One thread: moth and PyTorch alternate on one core, which so never sleeps; a core that wakes is slow for a while.
-- Returns that core, or nil if all are in use.
local all_cores, core = ffi.new("uint64_t[16]"), nil
local known = ffi.C.sched_getaffinity(0, 128, all_cores) > 0
function M.place(threads)
  if not known then return nil end
  if threads > 1 then
    core = nil
    ffi.C.sched_setaffinity(0, 128, all_cores)
  elseif not core then
    local mask = ffi.new("uint64_t[16]")
    core = ffi.C.sched_getcpu()
    mask[math.floor(core / 64)] = 2ULL ^ (core % 64)
    ffi.C.sched_setaffinity(0, 128, mask)
  end
  return core
end

local function seconds(f, n)
  local start = M.now()
  f(n)
  return M.now() - start
end

--- The count of iterations that takes so many seconds.
function M.calibrate(f, target)
  f(2)
  local n = 1
  while true do
    local took = seconds(f, n)
    if took >= target / 2 then return n end
    n = math.max(n + 1, math.floor(n * math.min(10, target / math.max(took, 1e-9))))
  end
end

--- One repetition: a warm-up, to clear the effects of the last one, then n iterations; the seconds of one.
function M.once(f, n)
  f(math.min(n, 3))
  return seconds(f, n) / n
end

--- Until the threads that waited for work have gone to sleep.
function M.rest() ffi.C.usleep(2000) end

--- The output of a command.
function M.read(command)
  local p = io.popen(command)
  local text = p:read("*a")
  p:close()
  return text
end

local scale = { ns = 1e9, us = 1e6, MB = 1, ms = 1 }
--- A number with its unit, "-" for nil.
function M.number(x, unit)
  if not x then return "-" end
  x = x * scale[unit]
  return (x < 10 and "%.2f %s" or x < 100 and "%.1f %s" or "%.0f %s"):format(x, unit)
end

function M.ratio(x) return x and ("%.2f"):format(x) or "-" end

return M
