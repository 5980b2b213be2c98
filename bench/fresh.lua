--- Measurements that need a process of their own: prints numbers for bench/run.lua.
--   require   the milliseconds of require "moth" and the process's resident MB
--   step NAME COUNT  peak MB of so many steps of bench/steps.lua, the model and all
--   drop      peak MB of ten steps of 200 temporaries of 4 MB that are dropped; free: that are freed
local ffi = require "ffi"
ffi.cdef [[
struct bench_time { long s, ns; };
int clock_gettime(int clock, struct bench_time *t);
]]
local clock = ffi.new("struct bench_time")
local function now()
  ffi.C.clock_gettime(1, clock)
  return tonumber(clock.s) * 1e3 + 1e-6 * tonumber(clock.ns)
end

local start = now()
local moth = require "moth"
local took = now() - start

if arg[1] == "require" then
  local f = io.open("/proc/self/statm")
  local _, pages = f:read("*n", "*n")
  f:close()
  print(took, pages / 256)
  return
end

if arg[1] == "step" then
  package.path = "./?.lua;" .. package.path
  local step = require("bench.steps")[arg[2]]()
  for _ = 1, tonumber(arg[3]) do step() end
  print(moth.memory.stats().peak / 2 ^ 20)
  return
end

local x, free = moth.zeros(1024, 1024), arg[1] == "free"
for _ = 1, 10 do
  local y = x + 1
  for _ = 2, 200 do
    local z = y + 1
    if free then y:free() end
    y = z
  end
  if free then y:free() end
end
print(moth.memory.stats().peak / 2 ^ 20)
