--- The savings of no_grad: a forward pass without a graph takes less time and keeps no activations.
--
--     luajit examples/bench_no_grad.lua [--quick]
--
-- Both ways are timed alternately, so that a busy machine slows both; the quickest run of each counts.
local moth = require "moth"
local nn = moth.nn

local quick = moth.cli({ { "--quick", "a short run" } }).quick
moth.manual_seed(0)

local function live()
  collectgarbage()
  collectgarbage()
  return moth.memory.stats().live
end

-- A deep network of narrow layers: recording costs as much as computing.
local layers = {}
for _ = 1, 20 do
  layers[#layers + 1] = nn.Linear(32, 32)
  layers[#layers + 1] = nn.Tanh()
end
local model = nn.Sequential(unpack(layers))

local function time(n, fn)
  local start = os.clock()
  for _ = 1, n do fn() end
  return (os.clock() - start) / n
end

local function compare(rows)
  local x = moth.randn(rows, 32)
  local function with() return model(x) end
  local function without() return moth.no_grad(with) end
  local n, best_with, best_without = quick and 20 or math.ceil(20000 / (rows + 20)), math.huge, math.huge
  for _ = 1, quick and 3 or 8 do
    best_with = math.min(best_with, time(n, with))
    best_without = math.min(best_without, time(n, without))
  end
  local function kept(fn)
    local base = live()
    local y = fn() -- alive while the bytes are counted
    return live() - base, y
  end
  print(("%6d rows: %8.1f us with a graph, %8.1f without (%2.0f %% less); kept %9s bytes, %7s without"):format(rows,
    best_with * 1e6, best_without * 1e6, 100 * (1 - best_without / best_with), moth.fmt.commas((kept(with))),
    moth.fmt.commas((kept(without)))))
end

for _, rows in ipairs { 1, 16, 256, 4096 } do compare(rows) end
