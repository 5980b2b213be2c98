--- Functions with a custom derivative: a ReLU and a sigmoid, checked against finite differences and against moth's; and
-- rounding in training, with a backward that ignores it.
--
--     moth examples/custom_function.lua [--quick]
local moth = require "moth"
local nn, optim, autograd = moth.nn, moth.optim, moth.autograd

-- forward gets the inputs and saves tensors for backward in ctx. backward gets one gradient per result of forward and
-- returns one per input.
local MyReLU = autograd.Function {
  name = "MyReLU",
  forward = function(ctx, x)
    ctx:save_for_backward(x)
    return x:clamp(0, math.huge)
  end,
  backward = function(ctx, grad)
    local x = ctx:saved_tensors()
    return grad * x:gt(0)
  end,
}

local MySigmoid = autograd.Function {
  name = "MySigmoid",
  forward = function(ctx, x)
    local y = 1 / (1 + moth.exp(-x))
    ctx:save_for_backward(y) -- a result may be saved: the derivative is written with it
    return y
  end,
  backward = function(ctx, grad)
    local y = ctx:saved_tensors()
    return grad * y * (1 - y)
  end,
}

-- The straight-through estimator: the derivative of round is 0 almost everywhere, and nothing would be learned.
local Round = autograd.Function {
  name = "Round",
  forward = function(_, x) return x:round() end,
  backward = function(_, grad) return grad end,
}

moth.manual_seed(0)
local x = moth.randn(5, 4, { dtype = moth.float64, requires_grad = true })
local function compare(name, mine, theirs)
  local g1 = autograd.grad(mine(x):sum(), x)
  local g2 = autograd.grad(theirs(x):sum(), x)
  print(("%-10s equals moth's: %s  its gradient too: %s  gradcheck: %s  gradgradcheck: %s"):format(name,
    moth.allclose(mine(x), theirs(x)), moth.allclose(g1, g2), autograd.gradcheck(mine, { x }),
    autograd.gradgradcheck(mine, { x })))
end
compare("MyReLU", MyReLU, moth.relu)
compare("MySigmoid", MySigmoid, moth.sigmoid)
print("its node in the graph: " .. tostring(MySigmoid(x).grad_fn))

local wrong = autograd.Function {
  name = "Wrong",
  forward = function(_, v) return v:clamp(0, math.huge) end,
  backward = function(_, grad) return grad end, -- the mask was forgotten
}
print("a wrong derivative is found:\n   " .. tostring(select(2, pcall(autograd.gradcheck, wrong, { x }))))

-- Weights of whole numbers: used rounded, kept and updated as they are.
local steps = moth.cli({ { "--quick", "a short run" } }).quick and 150 or 500
local function train(round)
  moth.manual_seed(0)
  local inputs, truth = moth.randn(64, 3), moth.tensor { { 2 }, { -3 }, { 1 } }
  local targets, w = inputs:matmul(truth), nn.Parameter(moth.zeros(3, 1))
  local optimizer, loss = optim.SGD({ w }, { lr = 0.05 }), nil
  for _ = 1, steps do
    optimizer:zero_grad()
    loss = nn.functional.mse_loss(inputs:matmul(round(w)), targets)
    loss:backward()
    optimizer:step()
  end
  return loss:item(), round(w):detach():flatten():tolist()
end
print(("\nlearning the whole numbers 2, -3, 1 through round, %d steps:"):format(steps))
for _, row in ipairs { { "moth.round", moth.round }, { "Round", Round } } do
  local loss, w = train(row[2])
  print(("   %-10s loss %7.4f weights %d, %d, %d"):format(row[1], loss, w[1], w[2], w[3]))
end
