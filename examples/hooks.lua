--- Hooks: look at activations and gradients, and change them, without touching the model. The first part finds out
-- why a deep network does not learn.
--
--     moth examples/hooks.lua
local moth = require "moth"
local nn, optim = moth.nn, moth.optim

moth.manual_seed(0)
local depth, width = 8, 32
local x, y = moth.randn(64, width), moth.randn(64, 1)

local function network(activation)
  local layers = {}
  for _ = 1, depth do
    layers[#layers + 1] = nn.Linear(width, width)
    layers[#layers + 1] = activation()
  end
  layers[#layers + 1] = nn.Linear(width, 1)
  return nn.Sequential(unpack(layers))
end

print("1. Mean |output| and mean |gradient| of each Linear, from the first to the last (hooks of modules):")
local function statistics(model)
  local forward, backward, handles = {}, {}, {}
  for _, m in ipairs(model:modules()) do
    if m.in_features then
      local i = #forward + 1
      forward[i] = 0
      handles[#handles + 1] = m:register_forward_hook(function(_, _, output)
        forward[i] = ("%.0e"):format(output:abs():mean():item())
      end)
      handles[#handles + 1] = m:register_full_backward_hook(function(_, _, grad_output)
        backward[i] = ("%.0e"):format(grad_output[1]:abs():mean():item())
      end)
    end
  end
  nn.functional.mse_loss(model(x), y):backward()
  for _, h in ipairs(handles) do h:remove() end -- the model is as it was
  return forward, backward
end
for _, name in ipairs { "Sigmoid", "Tanh", "ReLU" } do
  local forward, backward = statistics(network(nn[name]))
  print(("   %-8s forward   %s"):format(name, table.concat(forward, " ")))
  print(("   %-8s backward  %s  ratio of the ends %.0e"):format("", table.concat(backward, " "),
    backward[1] / backward[#backward]))
end

print("\n2. Statistics of the parameters' gradients, after one backward:")
local model = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, 2))
nn.functional.mse_loss(model(x), y:expand(-1, 2)):backward()
for name, p in model:named_parameters() do
  if p.grad then print(("   %-20s grad mean=%.6f std=%.6f"):format(name, p.grad:mean():item(), p.grad:std():item())) end
end

print("\n3. Activations of a layer within, by a forward hook:")
local features
local handle = model[2]:register_forward_hook(function(_, _, output) features = output:detach() end)
model(x)
handle:remove()
print("   features " .. tostring(features:size()))

print("\n4. Hooks of tensors run in the order of their registration, and may replace the gradient:")
local t = moth.tensor({ 1, 2 }, { requires_grad = true })
local double = t:register_hook(function(g) return g * 2 end)
t:register_hook(function(g) print("   after doubling: " .. table.concat(g:tolist(), ", ")) end);
(t * t):sum():backward()
double:remove()
t.grad = nil;
(t * t):sum():backward()

print("\n5. Clipping each gradient where it arises, one outlier in the batch (largest |weight| after 20 steps):")
for _, limit in ipairs { math.huge, 0.1 } do
  moth.manual_seed(0)
  local m = nn.Linear(width, 1)
  for _, p in ipairs(m:parameters()) do p:register_hook(function(g) return g:clamp(-limit, limit) end) end
  local optimizer, spoiled = optim.SGD(m:parameters(), { lr = 0.1 }), x:clone()
  spoiled[1]:mul_(100)
  for _ = 1, 20 do
    optimizer:zero_grad()
    nn.functional.mse_loss(m(spoiled), y):backward()
    optimizer:step()
  end
  print(("   limit %-5s %.3g"):format(limit, m.weight:detach():abs():max():item()))
end
