--- One model trained in float32, in float16 with a scaled loss, and in bfloat16: time, samples per second, memory that
-- forward saves for backward, accuracy.
--
--     moth examples/amp_study.lua [--quick] [--width 256]
local moth = require "moth"
local nn, F, optim, amp = moth.nn, moth.F, moth.optim, moth.amp

local options = moth.cli { { "--quick", "a short run" }, { "--width N", "of the hidden layers" } }
local quick = options.quick
options.width = options.width or quick and 128 or 512
options.epochs, options.samples, options.batch = quick and 8 or 6, quick and 1024 or 4096, 256
local device = moth.cuda.is_available() and "cuda" or "cpu"
local memory = device == "cuda" and moth.cuda or moth.cpu

-- A teacher's classes of random points: what a network can learn, but not by heart.
moth.manual_seed(0)
local inputs, classes = 64, 10
local teacher = nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, classes))
local x = moth.randn(options.samples * 5 / 4, inputs)
local y = moth.no_grad(function() return teacher(x):argmax(2) end)
x, y = x:to(device), y:to(device)
local train = options.samples

local function run(dtype)
  moth.manual_seed(1)
  local w = options.width
  local net = nn.Sequential(nn.Linear(inputs, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(),
    nn.Linear(w, classes)):to(device)
  local optimizer = optim.Adam(net:parameters(), { lr = 1e-3 })
  local scaler = amp.GradScaler { enabled = dtype == moth.float16 }
  local autocast = { enabled = dtype ~= moth.float32, dtype = dtype ~= moth.float32 and dtype or nil }
  local timer, saved = os.clock(), 0
  for epoch = 1, options.epochs do
    for at = 1, train, options.batch do
      local bx, by = x:narrow(1, at, options.batch), y:narrow(1, at, options.batch)
      optimizer:zero_grad()
      collectgarbage()
      local before = memory.memory_allocated()
      local loss = amp.autocast(autocast, function() return F.cross_entropy(net(bx), by) end)
      if epoch == 1 and at == 1 then
        collectgarbage()
        saved = memory.memory_allocated() - before
      end
      scaler:scale(loss):backward()
      scaler:step(optimizer)
      scaler:update()
    end
  end
  if device == "cuda" then moth.cuda.synchronize() end
  local seconds = os.clock() - timer
  local right = moth.no_grad(function()
    local rest = x:size(1) - train
    return net(x:narrow(1, train + 1, rest)):argmax(2):eq(y:narrow(1, train + 1, rest)):float():mean():item()
  end)
  return seconds, train * options.epochs / seconds, saved, right, scaler:get_scale()
end

run(moth.float32) -- once before: the first run makes caches
print(("%-24s %9s %12s %14s %10s"):format("", "seconds", "samples/s", "saved (MB)", "accuracy"))
for _, dtype in ipairs { moth.float32, moth.float16, moth.bfloat16 } do
  local seconds, pace, saved, right, scale = run(dtype)
  local name = dtype.name .. (dtype == moth.float16 and (" (scale %g)"):format(scale) or "")
  print(("%-24s %9.2f %12.0f %14.2f %9.1f %%"):format(name, seconds, pace, saved / 1e6, 100 * right))
end
