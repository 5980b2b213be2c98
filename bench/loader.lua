--- Samples per second of a DataLoader with small samples (28 x 28 bytes, normalized in get), beside PyTorch's: an epoch
-- of moth's, an epoch of PyTorch's, in turn.
--   build/moth bench/loader.lua [--cpu] [number of workers, 2] [epochs, 4]
-- --cpu: samples per second of the processor's time, workers' included, for busy machines.
package.path = "./?.lua;" .. package.path
local measuring = require "bench.measure"
if arg[1] == "--cpu" then
  table.remove(arg, 1)
  measuring.use_processor_time()
end
local moth = require "moth"
local data = moth.data

local workers, epochs = tonumber(arg[1] or 2), tonumber(arg[2] or 4)
local N = 20000
local x = moth.randint(0, 256, { N, 28, 28 }):to(moth.uint8)
local y = moth.randint(1, 11, { N })
local Small = data.Dataset:subclass("Small")
function Small.size() return N end
function Small.get(_, i) return x[i]:float():div_(255):sub_(0.28):div_(0.35), y[i] end

local function epoch()
  local loader = data.DataLoader(Small(), { batch_size = 64, shuffle = true, num_workers = workers })
  local start, n = measuring.now(), 0
  for a in loader:iter() do n = n + a:size(1) end
  assert(n == N)
  return (measuring.now() - start) / N
end

local folder = os.tmpname()
os.remove(folder)
os.execute("mkdir " .. folder)
local torch = require("bench.torch").start(folder)
if torch then torch.prepare("loader", workers, 1, 0, "any") end
local ours, theirs, ratios = {}, {}, {}
for e = 1, epochs do
  ours[e] = epoch()
  if torch then
    theirs[e] = torch.run() / N
    ratios[e] = theirs[e] / ours[e]
  end
end
print(("%d workers: moth %.0f samples/s"):format(workers, 1 / measuring.median(ours)))
if torch then
  torch.stop()
  print(("%d workers: PyTorch %.0f samples/s; moth has %.1f times as many"):format(workers,
    1 / measuring.median(theirs), measuring.median(ratios)))
end
os.execute("rm -rf " .. folder)
