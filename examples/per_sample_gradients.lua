--- Gradients for each sample of a batch: vmap of grad, for an MLP and a CNN, checked against a loop; and what they are
-- for: clipping each sample's gradient before the sum, as differentially private training does.
--
--     moth examples/per_sample_gradients.lua
local moth = require "moth"
local nn, func = moth.nn, moth.func

moth.manual_seed(0)
local batch = 64

local function compare(name, model, xs)
  local ys, params = moth.randint(1, 11, { batch }), {}
  for key, p in model:named_parameters() do params[key] = p:detach() end
  local function loss(given, x, y)
    return nn.functional.cross_entropy(func.functional_call(model, given, x:unsqueeze(1)), y:unsqueeze(1))
  end
  local per_sample = func.vmap(func.grad(loss), { false, 1, 1 })
  local gradients = per_sample(params, xs, ys)

  local function loop()
    local list = {}
    for k = 1, batch do list[k] = func.grad(loss)(params, xs[k], ys[k]) end
    return list
  end
  local worst, list = 0, loop()
  for k = 1, batch do
    for key, g in pairs(list[k]) do worst = math.max(worst, (gradients[key][k] - g):abs():max():item()) end
  end

  local function ms(fn)
    local best = math.huge
    for _ = 1, 3 do
      local start = os.clock()
      fn()
      best = math.min(best, os.clock() - start)
    end
    return best * 1e3
  end
  print(("%s: %d samples, vmap %.1f ms, loop %.1f ms; the greatest difference is below 1e-5: %s"):format(name, batch,
    ms(function() per_sample(params, xs, ys) end), ms(loop), tostring(worst < 1e-5)))

  -- Each sample counts at most 1: its gradient is scaled to norm 1 if it is longer.
  local squares = moth.zeros(batch)
  for _, g in pairs(gradients) do squares = squares + g:reshape(batch, -1):square():sum(2) end
  local scale = (1 / squares:sqrt()):clamp(0, 1)
  local total = 0
  for _, g in pairs(gradients) do
    total = total + moth.einsum("b,b...->...", scale, g):square():sum():item()
  end
  local least, most, clipped = squares:min():sqrt():item(), squares:max():sqrt():item(), math.sqrt(total)
  print(("%s: norms from %.3f to %.3f; of the clipped sum %.3f, at most %d: %s"):format(name, least, most, clipped,
    batch, tostring(clipped <= batch)))
end

compare("MLP", nn.Sequential(nn.Linear(784, 128), nn.Tanh(), nn.Linear(128, 10)), moth.randn(batch, 784))
compare("CNN", nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(),
  nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)), moth.randn(batch, 1, 16, 16))
