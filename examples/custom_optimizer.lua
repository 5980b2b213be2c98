--- A custom optimizer: SGD with momentum as a subclass, which equals optim.SGD to the bit.
local moth = require "moth"
local nn, optim = moth.nn, moth.optim

local MySGD = optim.class("MySGD")

function MySGD:__init(params, o)
  optim.Optimizer.__init(self, params, { lr = o.lr or 1e-3, momentum = o.momentum or 0.9 })
end

function MySGD:step()
  moth.no_grad(function()
    for _, group in ipairs(self.param_groups) do
      for _, p in ipairs(group.params) do
        local grad = p.grad
        if grad then
          local state = self.state[p] -- keyed by the parameter itself; empty at first
          if state.buffer then
            -- grad + momentum * buffer, rounded once, as optim.SGD does it: mul_ and add_ would round twice and
            -- differ in the last bits.
            state.buffer = grad:add(state.buffer, group.momentum)
          else
            state.buffer = grad:clone()
          end
          p:sub_(state.buffer, group.lr) -- p - lr * buffer
        end
      end
    end
  end)
end

local function train(make)
  moth.manual_seed(0)
  local model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
  local x, y = moth.randn(64, 5), moth.randn(64, 1)
  local optimizer, loss = make(model), nil
  for _ = 1, 10 do
    optimizer:zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss:backward()
    optimizer:step()
  end
  return model, loss:item()
end

local mine, loss = train(function(m)
  -- two groups, the second with its own rate
  return MySGD({ { params = m[1]:parameters() }, { params = m[3]:parameters(), lr = 0.02 } }, { lr = 0.05 })
end)
local theirs = train(function(m)
  return optim.SGD({ { params = m[1]:parameters() }, { params = m[3]:parameters(), lr = 0.02 } },
    { lr = 0.05, momentum = 0.9 })
end)

local same = true
for name, p in mine:named_parameters() do same = same and p:equal(theirs:state_dict()[name]) end
print(("loss %.6f after 10 steps; MySGD and optim.SGD %s"):format(loss, same and "agree to the bit" or "differ"))
