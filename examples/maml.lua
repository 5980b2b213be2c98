--- Learning to learn (MAML): weights from which one step of gradient descent, on ten points of a sine wave never seen
-- before, gives a model of that wave. The meta-gradient goes through that step: a gradient of a gradient.
--
--     moth examples/maml.lua [--quick]
--
-- Finn, Abbeel, Levine 2017, section 5.1: amplitudes of 0.1 to 5, phases of 0 to pi, points of -5 to 5.
local moth = require "moth"
local nn, optim, autograd, func = moth.nn, moth.optim, moth.autograd, moth.func
local mse = nn.functional.mse_loss

local quick = moth.cli({ { "--quick", "a short run" } }).quick
local points, tasks, inner_lr = 10, 8, 0.02
local meta_steps, meta_lr = quick and 300 or 3000, quick and 5e-3 or 1e-3

moth.manual_seed(0)
local function make_model()
  return nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
end
local function number(low, high) return low + (high - low) * moth.rand():item() end

-- A task: a wave, from which points are drawn.
local function sine()
  local amplitude, phase = number(0.1, 5), number(0, math.pi)
  return function(n)
    local x = moth.rand(n, 1) * 10 - 5
    return x, amplitude * moth.sin(x - phase)
  end
end

-- The parameters after one step on (x, y), by name. With create_graph they remain functions of the model's own.
local function adapt(model, x, y, create_graph)
  local names, params, adapted = {}, {}, {}
  for name, p in model:named_parameters() do names[#names + 1], params[#params + 1] = name, p end
  local gradients = { autograd.grad(mse(model(x), y), params, { create_graph = create_graph }) }
  for i, name in ipairs(names) do adapted[name] = params[i] - inner_lr * gradients[i] end
  return adapted
end

-- Mean loss on new points of new waves, before and after one step on ten points.
local function evaluate(model, n)
  local before, after = 0, 0
  for _ = 1, n do
    local draw = sine()
    local x, y = draw(points)
    local new_x, new_y = draw(50)
    local adapted = adapt(model, x, y, false)
    moth.no_grad(function()
      before = before + mse(model(new_x), new_y):item() / n
      after = after + mse(func.functional_call(model, adapted, new_x), new_y):item() / n
    end)
  end
  return before, after
end

-- order 2 is MAML; order 1 takes the inner gradient for a constant; 0 learns the waves without an inner step.
local function meta_train(order)
  moth.manual_seed(1)
  local model = make_model()
  local optimizer = optim.Adam(model:parameters(), { lr = meta_lr })
  for step = 1, meta_steps do
    optimizer:zero_grad()
    local total = 0
    for _ = 1, tasks do
      moth.scope(function()
        local draw = sine()
        local x, y = draw(points)
        local new_x, new_y = draw(points)
        local params = order == 0 and {} or adapt(model, x, y, order == 2)
        local loss = mse(func.functional_call(model, params, new_x), new_y) / tasks
        loss:backward() -- accumulates over the tasks
        total = total + loss:item()
      end)
    end
    optimizer:step()
    if order == 2 and step % math.floor(meta_steps / 5) == 0 then
      print(("   meta step %4d loss after adaptation %.3f"):format(step, total))
    end
  end
  return model
end

print("MAML, second order:")
local models = {
  { "random weights", make_model() },
  { "MAML", meta_train(2) },
  { "first order", meta_train(1) },
  { "trained on all waves", meta_train(0) },
}
print("\nmean square error on new waves      before   after one step on ten points")
for _, row in ipairs(models) do
  moth.manual_seed(2)
  print(("   %-30s %7.3f  %7.3f"):format(row[1], evaluate(row[2], quick and 30 or 200)))
end
