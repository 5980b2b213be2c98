--- Class-balanced sampling: of a set with 900 and 100 samples of two classes, batches hold about half of each.
local moth = require "moth"
local data = moth.data

moth.manual_seed(0)
local labels = moth.cat({ moth.ones({ 900 }, { dtype = moth.int64 }), moth.full({ 100 }, 2, { dtype = moth.int64 }) })
local ds = data.TensorDataset(moth.randn(1000, 4), labels)

local counts = { labels:eq(1):sum():item(), labels:eq(2):sum():item() }
local weights = moth.where(labels:eq(1), 1 / counts[1], 1 / counts[2])

local function share(loader)
  local second, n = 0, 0
  for _, y in loader:iter() do second, n = second + y:eq(2):sum():item(), n + y:size(1) end
  return 100 * second / n
end

print(("plain shuffling:   %.1f %% of class 2"):format(share(data.DataLoader(ds, { batch_size = 50, shuffle = true }))))
print(("weighted sampling: %.1f %% of class 2"):format(share(data.DataLoader(ds,
  { batch_size = 50, sampler = data.WeightedRandomSampler(weights, 1000) }))))
