--- What the garbage collector costs beside a large Lua heap: an op of 4 MB, a chain of three, a training step; and what
-- loops of temporaries hold. Per heap, in a process of its own: op, chain, step: ms of processor time in the mean;
-- median, p99 and longest of the wall clock; hold: the peak in MB above the start. Builds of moth run in turn.
--
--     build/moth bench/collector.lua [build/moth …]
local M = dofile((arg[0]:match("^(.*/)") or "") .. "measure.lua")
local ffi = require "ffi"
local clock = ffi.new("struct bench_time")
local function wall()
  ffi.C.clock_gettime(1, clock)
  return tonumber(clock.s) + 1e-9 * tonumber(clock.ns)
end
local heaps = { 0, 100000, 500000, 1000000 }

local function status(field) -- MB
  for l in io.lines("/proc/self/status") do
    local kb = l:match("^" .. field .. ":%s*(%d+)")
    if kb then return kb / 1024 end
  end
  return 0 / 0
end

local function times(n, f)
  local list, before = {}, M.now()
  for i = 1, n do
    local start = wall()
    f(i)
    list[i] = (wall() - start) * 1e3
  end
  local mean = (M.now() - before) / n * 1e3
  table.sort(list)
  return mean, list[math.ceil(n / 2)], list[math.ceil(0.99 * n)], list[n]
end

local function child(heap)
  local moth = require "moth"
  local nn, F = moth.nn, moth.nn.functional
  moth.set_num_threads(1)
  M.use_processor_time()
  local keep = {}
  for i = 1, heap do keep[i] = { i } end
  local x = moth.ones(1024, 1024)
  local start = status("VmRSS")
  local out = {}
  local function row(name, ...) out[#out + 1] = name .. (" %.3f"):rep(select("#", ...)):format(...) end
  local function add() return x + 1 end
  for i = 1, 3 do row("op " .. i, times(1000, add)) end -- memory is fresh in the first ones
  row("chain", times(500, function() return ((x * 2) + 1):relu() end))
  row("hold", status("VmHWM") - start)
  local model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
  local opt = moth.optim.SGD(model:parameters(), { lr = 1e-3 })
  local input, target = moth.randn(64, 64), moth.zeros(64, { dtype = moth.int64 })
  row("step", times(6000, function()
    opt:zero_grad()
    F.cross_entropy(model(input), target + 1):backward()
    opt:step()
  end))
  print(table.concat(out, "\n"))
  return #keep
end

local function loops(kind)
  local moth = require "moth"
  moth.set_num_threads(1)
  local x = moth.ones(1024, 1024)
  local start = status("VmRSS")
  for i = 1, 1000 do
    local y = kind == "sizes" and moth.ones(200 + i * 37 % 800, 1024) or x;
    (y * 2 + 1):relu()
  end
  print(kind, status("VmHWM") - start)
end

if arg[1] == "child" then return child(tonumber(arg[2])) end
if arg[1] == "loops" then return loops(arg[2]) end
local builds = { unpack(arg) }
if #builds == 0 then builds[1] = "build/moth" end
for _, heap in ipairs(heaps) do
  for _, build in ipairs(builds) do
    print(("%d tables, %s"):format(heap, build))
    io.write(M.read(("%s %s child %d"):format(build, arg[0], heap)), "\n")
  end
end
for _, kind in ipairs { "temporaries", "sizes" } do
  for _, build in ipairs(builds) do print(build, M.read(("%s %s loops %s"):format(build, arg[0], kind))) end
end
