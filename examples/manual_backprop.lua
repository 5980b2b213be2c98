--- A network of two layers trained with gradients written by hand, each compared with autograd's at every step.
--
--     moth examples/manual_backprop.lua [--quick]
local moth = require "moth"
local F = moth.nn.functional

moth.manual_seed(0)
local steps = moth.cli({ { "--quick", "a short run" } }).quick and 20 or 300
local float64 = { dtype = moth.float64 }
local n, inputs, hidden, classes = 96, 2, 16, 3

-- Three arms of a spiral.
local labels = moth.arange(n):remainder(classes) + 1
local r = moth.rand(n, float64)
local angle = r * 4 + labels:to(moth.float64) * (2 * math.pi / classes) + moth.randn(n, float64) * 0.1
local x = moth.stack({ r * angle:cos(), r * angle:sin() }, 2)

local params = {
  W1 = moth.randn(inputs, hidden, float64), b1 = moth.zeros(hidden, float64),
  W2 = moth.randn(hidden, classes, float64) * 0.3, b2 = moth.zeros(classes, float64),
}
for _, p in pairs(params) do p:requires_grad_(true) end

-- x (N, I) -> logits (N, C), and values for the backward pass
local function forward(p)
  local z = x:matmul(p.W1) + p.b1 -- (N, H)
  local h = z:relu()
  return h:matmul(p.W2) + p.b2, z, h
end

-- The chain rule from the end to the start, each line beside its line of forward.
local function backward(p, logits, z, h)
  local dlogits = (logits:softmax(2) - moth.one_hot(labels, classes)) / n -- cross_entropy: mean of -log softmax
  local grads = {
    W2 = h:t():matmul(dlogits), -- logits = h @ W2 + b2
    b2 = dlogits:sum(1),        -- b2 was broadcast over N, so its gradient is the sum over N
  }
  local dh = dlogits:matmul(p.W2:t())
  local dz = dh * z:gt(0)       -- h = relu(z)
  grads.W1 = x:t():matmul(dz)   -- z = x @ W1 + b1
  grads.b1 = dz:sum(1)
  return grads
end

local worst, first, last = 0, nil, nil
for step = 1, steps do
  local logits, z, h = forward(params)
  local loss = F.cross_entropy(logits, labels)
  for _, p in pairs(params) do p.grad = nil end
  loss:backward()
  moth.no_grad(function()
    for name, grad in pairs(backward(params, logits, z, h)) do
      worst = math.max(worst, (grad - params[name].grad):abs():max():item())
      params[name]:sub_(grad, 0.5) -- the step is made with the gradient written by hand
    end
  end)
  last = loss:item()
  first = first or last
  if step % 100 == 0 then print(("step %3d loss %.4f"):format(step, last)) end
end
print(("loss %.4f -> %.4f after %d steps"):format(first, last, steps))
print(("largest difference from autograd's gradients, over all steps: %.1e (%s)"):format(worst,
  worst < 1e-12 and "they are equal" or "they differ"))
