--- Four bugs that raise no error, each with the line that finds it.
local moth = require "moth"
local nn, optim = moth.nn, moth.optim

local function setting()
  moth.manual_seed(0)
  local model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
  return model, optim.SGD(model:parameters(), { lr = 1e-3 }), moth.randn(32, 4), moth.randn(32, 1)
end
local mse = nn.functional.mse_loss

print("1. zero_grad is missing: gradients add up. Log their norm:")
do
  local model, optimizer, x, y = setting()
  for step = 1, 4 do
    mse(model(x), y):backward()
    optimizer:step()
    print(("   step %d: gradient norm %.3f"):format(step, nn.utils.grad_norm(model:parameters()):item()))
  end
end

print("2. eval() in place of train(): no dropout in training. Look at the flag, and at two outputs for one input:")
do
  local model, _, x = setting()
  model:eval()
  print(("   model.training is %s; two passes agree: %s"):format(tostring(model.training),
    tostring(model(x):equal(model(x)))))
end

print("3. CPU and GPU tensors mixed: moth raises an error; compare the devices before:")
do
  local model, _, x = setting()
  local same = true
  for _, p in ipairs(model:parameters()) do same = same and p:device() == x:device() end
  print(("   all parameters are on %s, where the input is: %s"):format(tostring(x:device()), tostring(same)))
end

print("4. item() or detach() within the loss: nothing is learned. Look at requires_grad before backward:")
do
  local model, _, x, y = setting()
  local loss = moth.tensor(mse(model(x), y):item())
  print(("   loss:requires_grad() is %s; backward: %s"):format(tostring(loss:requires_grad()),
    tostring(select(2, pcall(loss.backward, loss)))))
end
