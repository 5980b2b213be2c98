-- Which kinds of calls take the time of the lab's step, by moth.profiler: leads.py compares with PyTorch's.
-- luajit leads.lua FILE
local moth = require "moth"
local cjson = require "cjson"
local nn = moth.nn

local net = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
  nn.Linear(256, 10))
local opt = moth.optim.Adam(net:parameters(), { lr = 1e-3 })
local x, y = moth.randn(64, 1, 28, 28), moth.randint(1, 11, { 64 })
moth.set_num_threads(1)
local function step()
  opt:zero_grad()
  nn.functional.cross_entropy(net(x), y):backward()
  opt:step()
end
for _ = 1, 10 do step() end
local prof = moth.profiler.profile(function() for _ = 1, 100 do step() end end)
local rows = {}
for _, row in ipairs(prof:key_averages()) do
  rows[#rows + 1] = { row.key, row.self_cpu_time_total, row.count, row.cpu_time_total }
end
local f = assert(io.open(arg[1], "w"))
f:write(cjson.encode(rows))
f:close()
