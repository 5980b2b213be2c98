--- AdamW written in Lua on tensors, compared with optim.AdamW over 50 steps.
local moth = require "moth"
local nn, optim = moth.nn, moth.optim

local MyAdamW = optim.class("MyAdamW")

function MyAdamW:__init(params, o)
  optim.Optimizer.__init(self, params, { lr = o.lr or 1e-3, betas = o.betas or { 0.9, 0.999 }, eps = o.eps or 1e-8,
    weight_decay = o.weight_decay or 1e-2 })
end

-- Called for each group by Optimizer.step, under no_grad.
function MyAdamW:step_group(group)
  local beta1, beta2 = group.betas[1], group.betas[2]
  for _, p in ipairs(group.params) do
    local grad, s = p.grad, self.state[p]
    if grad then
      if not s.step then s.step, s.m, s.v = 0, moth.zeros_like(p), moth.zeros_like(p) end
      s.step = s.step + 1
      p:mul_(1 - group.lr * group.weight_decay) -- decay apart from the gradient
      s.m:lerp_(grad, 1 - beta1)
      s.v:mul_(beta2):addcmul_(grad, grad, 1 - beta2)
      local size = group.lr / (1 - beta1 ^ s.step) -- bias correction of the mean …
      local root = s.v:sqrt():div_(math.sqrt(1 - beta2 ^ s.step)) -- … and of the square
      p:sub_(s.m / root:add_(group.eps), size)
    end
  end
end

local function train(class)
  moth.manual_seed(0)
  local model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)):double()
  local x = moth.randn(64, 5, { dtype = moth.float64 })
  local y = moth.randn(64, 1, { dtype = moth.float64 })
  local optimizer = class(model:parameters(), { lr = 3e-3, weight_decay = 0.1 })
  for _ = 1, 50 do
    optimizer:zero_grad()
    nn.functional.mse_loss(model(x), y):backward()
    optimizer:step()
  end
  return nn.utils.parameters_to_vector(model:parameters()):detach()
end

local difference = (train(MyAdamW) - train(optim.AdamW)):abs():max():item()
print(("largest difference of a parameter after 50 steps: %.1e (%s)"):format(difference,
  difference < 1e-12 and "the same algorithm" or "they differ"))
