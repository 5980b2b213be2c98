--- A training that waits for its data, found by moth.diagnose and mended: each sample was read, parsed and normalized
-- by itself, in the thread of the training.
--
--     moth examples/slow_loader.lua [number of rows, 3000]
local moth = require "moth"
local data, nn, optim = moth.data, moth.nn, moth.optim

local rows, path = moth.cli({ { "[N]", "rows of the file", 3000 } }).n, os.tmpname()
moth.manual_seed(0)
local f = assert(io.open(path, "w"))
for i = 1, rows do
  local line = {}
  for k = 1, 64 do line[k] = ("%.4f"):format(math.random()) end
  f:write(i % 10 + 1, ",", table.concat(line, ","), "\n")
end
f:close()

local model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
local opt = optim.SGD(model:parameters(), { lr = 0.1 })
local function step(x, y)
  opt:zero_grad()
  moth.nn.functional.cross_entropy(model(x), y):backward()
  opt:step()
end

-- Slow: a tensor for each sample, made of text, again in each epoch.
local Slow = data.Dataset:subclass("Slow")
function Slow.size() return rows end
function Slow:get(i)
  local label, values = self.lines:get(i):match("^(%d+),(.*)$")
  local x = {}
  for v in values:gmatch("[^,]+") do x[#x + 1] = tonumber(v) end
  return moth.tensor(x):sub_(0.5):div_(0.29), tonumber(label)
end
local slow = Slow()
slow.lines = data.TextLines(path)

print "as it was:"
local before = moth.diagnose(data.DataLoader(slow, { batch_size = 32, shuffle = true }), step, { steps = 60 })

-- Mended: parsed once, normalized at once; a batch is one index_select.
local x, y = moth.empty(rows, 64), moth.empty({ rows }, { dtype = moth.int64 })
for i = 1, rows do
  local row, label = slow:get(i)
  x[i], y[i] = row, label
end
print "mended:"
local after = moth.diagnose(data.DataLoader(data.TensorDataset(x, y), { batch_size = 32, shuffle = true }), step,
  { steps = 60 })
print(("%.1f times as fast: %s, now %s"):format(after.steps_per_second / before.steps_per_second, before.verdict,
  after.verdict))
os.remove(path)
