--- Mixed precision against float32: products of several shapes, the step of a network, what forward saves for backward.
--
--     moth examples/bench_amp.lua [--quick]
local moth = require "moth"
local nn, F, optim, amp = moth.nn, moth.F, moth.optim, moth.amp

local quick = moth.cli({ { "--quick", "a short run" } }).quick
local device = moth.cuda.is_available() and "cuda" or "cpu"
local memory = device == "cuda" and moth.cuda or moth.cpu
if device == "cpu" then moth.set_num_threads(1) end

local function wait()
  if device == "cuda" then moth.cuda.synchronize() end
end
-- Milliseconds of the functions, each the least of several rounds in turn.
local function times(fns, rounds, repeats)
  local least = {}
  for _ = 1, rounds do
    for i, fn in ipairs(fns) do
      wait()
      local start = os.clock()
      for _ = 1, repeats do fn() end
      wait()
      least[i] = math.min(least[i] or math.huge, (os.clock() - start) / repeats * 1e3)
    end
  end
  return least
end

local dtypes = { moth.float32, moth.bfloat16, moth.float16 }
print(("%-24s %10s %18s %18s"):format("ms (share of float32's)", "float32", "bfloat16", "float16"))
local function row(name, t)
  print(("%-24s %10.3f %10.3f (%.2f) %10.3f (%.2f)"):format(name, t[1], t[2], t[2] / t[1], t[3], t[3] / t[1]))
end
local shapes = quick and { { 64, 256, 256 }, { 8, 256, 512 } }
  or { { 1024, 1024, 1024 }, { 256, 784, 512 }, { 128, 512, 512 }, { 16, 256, 1024 }, { 1, 1024, 1024 } }
for _, s in ipairs(shapes) do
  local fns = {}
  for i, dtype in ipairs(dtypes) do
    local x = moth.randn(s[1], s[2], { device = device }):to(dtype)
    local w = moth.randn(s[3], s[2], { device = device }):to(dtype)
    fns[i] = function() F.linear(x, w):free() end
  end
  row(("linear %d x %d -> %d"):format(unpack(s)), times(fns, 5, s[1] > 512 and 2 or 20))
end

local width, batch = quick and 128 or 512, quick and 64 or 512
local x, y = moth.randn(batch, 784, { device = device }), moth.randint(1, 11, { batch }):to(device)
local saved, steps = {}, {}
for i, dtype in ipairs(dtypes) do
  moth.manual_seed(0)
  local net = nn.Sequential(nn.Linear(784, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
    nn.Linear(width, 10)):to(device)
  local optimizer = optim.AdamW(net:parameters(), { lr = 1e-3 })
  local scaler = amp.GradScaler { enabled = dtype == moth.float16 }
  local autocast = i > 1 and { dtype = dtype } or { enabled = false }
  local function forward() return amp.autocast(autocast, function() return F.cross_entropy(net(x), y) end) end
  steps[i] = function()
    optimizer:zero_grad()
    scaler:scale(forward()):backward()
    scaler:step(optimizer)
    scaler:update()
  end
  collectgarbage()
  collectgarbage()
  local before = memory.memory_allocated()
  local loss = forward()
  collectgarbage()
  collectgarbage()
  saved[i] = (memory.memory_allocated() - before) / 1e6
  loss:backward()
end
row(("step of an MLP, batch %d"):format(batch), times(steps, quick and 3 or 6, 2))
print(("%-24s %10.2f %10.2f (%.2f) %10.2f (%.2f)"):format("saved by forward (MB)", saved[1], saved[2],
  saved[2] / saved[1], saved[3], saved[3] / saved[1]))
