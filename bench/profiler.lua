--- What looking inside costs: recording of moth.profiler, anomaly mode; in turn with the same without.
--
--     build/moth bench/profiler.lua
local moth = require "moth"
local ffi = require "ffi"
local nn, profiler = moth.nn, moth.profiler

ffi.cdef "struct bench_time { long s, ns; }; int clock_gettime(int clock, struct bench_time *t);"
local at = ffi.new "struct bench_time"
local function now(clock)
  ffi.C.clock_gettime(clock or 2, at) -- 2: of the process, so that other programs do not count; 1: the wall's
  return tonumber(at.s) * 1e9 + tonumber(at.ns)
end
moth.set_num_threads(1)

-- Least and median ns of fn(), for each way of `ways`, which run in turn.
local function measure(fn, n, blocks, ways)
  local times = {}
  for b = 1, blocks do
    for k, way in ipairs(ways) do
      local stop = way()
      collectgarbage()
      collectgarbage "stop"
      local t = now()
      for _ = 1, n do fn() end
      t = (now() - t) / n
      collectgarbage "restart"
      if stop then stop() end
      times[k] = times[k] or {}
      times[k][b] = t
    end
  end
  local out = {}
  for k, list in ipairs(times) do
    table.sort(list)
    out[k] = { least = list[1], median = list[math.ceil(#list / 2)] }
  end
  return out
end

local function off() end
local function on(o)
  return function()
    local p = profiler.profile(o)
    p:start()
    return function() p:stop() end
  end
end
local ways = { { "off", off }, { "on", on { places = false } }, { "places", on {} },
  { "shapes", on { places = false, record_shapes = true } }, { "12 frames", on { with_stack = true } },
  { "memory", on { places = false, profile_memory = true } } }

local function row(name, fn, n, blocks, events)
  local list = {}
  for k, way in ipairs(ways) do list[k] = way[2] end
  local r = measure(fn, n, blocks, list)
  local parts = {}
  for k = 2, #ways do
    parts[#parts + 1] = ("%s +%.0f"):format(ways[k][1], (r[k].least - r[1].least) / events)
  end
  print(("%-34s off %.0f ns; ns an event, on: %s; a step %+.1f %%"):format(name, r[1].least, table.concat(parts, ", "),
    100 * (r[2].least / r[1].least - 1)))
end

local function count(fn)
  return #profiler.profile(fn):events()
end

local x = moth.randn(4)
local function op() x:add(x):free() end
row("an op of 4 elements", op, 500, 150, 1)

local net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
local opt = moth.optim.SGD(net:parameters(), { lr = 0.01 })
local input, target = moth.randn(8, 16), moth.randint(1, 5, { 8 })
local function step()
  opt:zero_grad()
  nn.functional.cross_entropy(net(input), target):backward()
  opt:step()
end
local events = count(step)
row(("a step of an MLP, %d events"):format(events), step, 20, 150, events)

-- ---- anomaly mode on a step of some 150 us

local wide = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
local wide_opt = moth.optim.SGD(wide:parameters(), { lr = 0.01 })
local wide_input, wide_target = moth.randn(32, 64), moth.randint(1, 11, { 32 })
local function wide_step()
  wide_opt:zero_grad()
  nn.functional.cross_entropy(wide(wide_input), wide_target):backward()
  wide_opt:step()
end
local function anomaly(check)
  return function()
    moth.autograd.set_detect_anomaly(true, { check_nan = check })
    return function() moth.autograd.set_detect_anomaly(false) end
  end
end
local r = measure(wide_step, 10, 150, { off, anomaly(false), anomaly(true) })
print(("%-34s off %.1f us; anomaly mode without check %+.1f %%, with it %+.1f %% (medians %+.1f, %+.1f)"):format(
  "a step of a wider MLP", r[1].least / 1e3, 100 * (r[2].least / r[1].least - 1), 100 * (r[3].least / r[1].least - 1),
  100 * (r[2].median / r[1].median - 1), 100 * (r[3].median / r[1].median - 1)))

-- ---- totals beside a clock outside

local a = moth.randn(256, 256)
for _ = 1, 20 do a:mm(a):free() end
for _, n in ipairs { 50, 200 } do
  local t
  local prof = profiler.profile(function()
    t = now(1)
    for _ = 1, n do a:mm(a):free() end
    t = now(1) - t
  end)
  local sum = prof:key_averages().self_cpu_time_total * 1e3
  print(("%d products of 256: the profile's total is %.3f of the clock's time"):format(n, sum / t))
end
