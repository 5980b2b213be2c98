-- A profile of some training steps as trace.pftrace and trace.json. Usage: moth perfetto_bridge.lua FOLDER
local moth = require "moth"
local nn, profiler = moth.nn, moth.profiler
local net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
local opt = moth.optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 })
local prof = profiler.profile({ profile_memory = true, record_shapes = true }, function()
  for i = 1, 4 do
    profiler.record_function("step " .. i, function()
      opt:zero_grad()
      net(moth.randn(4, 8)):square():mean():backward()
      opt:step()
    end)
  end
end)
prof:export_chrome_trace(arg[1] .. "/trace.pftrace")
prof:export_chrome_trace(arg[1] .. "/trace.json")
print "{}"
