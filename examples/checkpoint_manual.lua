--- A checkpoint by hand, with an autograd.Function: forward keeps the input alone, backward runs the function again
-- with gradients on. The same gradients, less memory, more time; and moth.utils.checkpoint beside it.
--
--     moth examples/checkpoint_manual.lua [--quick]
local moth = require "moth"
local nn, autograd = moth.nn, moth.autograd

local depth, width, rows = moth.cli({ { "--quick", "a short run" } }).quick and 8 or 24, 256, 256

local function checkpointed(module)
  return autograd.Function {
    name = "ManualCheckpoint",
    forward = function(ctx, x)
      ctx:save_for_backward(x)
      return module(x) -- forward of a Function is not recorded: nothing in it is kept
    end,
    backward = function(ctx, grad)
      local x = ctx:saved_tensors():detach():requires_grad_()
      moth.enable_grad(function() return module(x) end):backward(grad) -- adds to the parameters' gradients, too
      return x.grad
    end,
  }
end

moth.manual_seed(0)
local blocks = {}
for i = 1, depth do blocks[i] = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Tanh()) end
local model = nn.Sequential(blocks)
local x = moth.randn(rows, width, { requires_grad = true })

local function measure(name, call)
  local calls = {}
  for i = 1, depth do calls[i] = call(blocks[i]) end
  local least, saved, grads = math.huge, 0, {}
  for _ = 1, 3 do
    model:zero_grad()
    x.grad = nil
    collectgarbage()
    collectgarbage()
    local before = moth.cpu.memory_allocated()
    local start = os.clock()
    local y = x
    for i = 1, depth do y = calls[i](y) end
    local loss = y:square():mean()
    y = nil -- luacheck: ignore
    local half = os.clock()
    collectgarbage()
    collectgarbage()
    saved = moth.cpu.memory_allocated() - before
    local middle = os.clock()
    loss:backward()
    least = math.min(least, half - start + os.clock() - middle)
    grads = { x.grad:clone(), blocks[1][1].weight.grad:clone() }
  end
  print(("%-24s %8.2f MB kept for backward, %7.1f ms"):format(name, saved / 1e6, least * 1e3))
  return grads
end

local plain = measure("plain", function(m) return m end)
local manual = measure("checkpoint by hand", checkpointed)
local own = measure("moth.utils.checkpoint", function(m) return function(v) return moth.utils.checkpoint(m, v) end end)
print("the gradients are the same: " .. tostring(moth.allclose(plain[1], manual[1]) and moth.allclose(plain[2],
  manual[2])
  and moth.equal(plain[1], own[1]) and moth.equal(plain[2], own[2])))
