--- A large batch with little memory: several small batches run forward and backward, their gradients add up, and one
-- optimizer step follows. The result is that of the large batch if each loss is divided by the number of parts.
--
--     moth examples/gradient_accumulation.lua
local moth = require "moth"
local nn, optim, data = moth.nn, moth.optim, moth.data

local batch, parts, steps = 512, 8, 6
moth.manual_seed(0)
local inputs = moth.randn(batch * steps, 64, { dtype = moth.float64 })
local labels = moth.randint(1, 11, { batch * steps })
local set = data.TensorDataset(inputs, labels)

-- Trains for `steps` steps of `batch` samples, each in `n` parts. Returns the peak of memory beyond data and model.
local function train(n, scaled)
  moth.manual_seed(1)
  local model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 10)):double()
  local optimizer = optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9 })
  local loader = data.DataLoader(set, { batch_size = batch / n })
  local micro, total, last = 0, 0, 0
  collectgarbage()
  collectgarbage()
  moth.memory.reset_peak()
  local before = moth.memory.stats().live
  for x, y in loader:iter() do
    if micro == 0 then optimizer:zero_grad() end
    moth.scope(function() -- frees the temporaries of a part
      local loss = nn.functional.cross_entropy(model(x), y)
      if scaled then loss = loss / n end -- a mean of means: every part is equally large
      loss:backward()
      total = total + loss:item() -- item(): the number alone; `total + loss` would keep every graph
    end)
    micro = micro + 1
    if micro == n then
      optimizer:step()
      micro, last, total = 0, total, 0
    end
  end
  local peak = (moth.memory.stats().peak - before) / 2 ^ 20
  return nn.utils.parameters_to_vector(model:parameters()):detach(), last, peak
end

local whole, loss, memory = train(1, true)
print(("one batch of %d             loss %.6f  peak %5.1f MB"):format(batch, loss, memory))
local small, loss2, memory2 = train(parts, true)
print(("%d parts of %d, scaled       loss %.6f  peak %5.1f MB"):format(parts, batch / parts, loss2, memory2))
local unscaled = train(parts, false)
local function difference(a) return (a - whole):abs():max():item() end
print(("largest difference of a parameter after %d steps: %.1e (%s)"):format(steps, difference(small),
  difference(small) < 1e-12 and "the same training" or "they differ"))
print(("without the division by %d it would be %.1e: the gradients are %d times too large"):format(parts,
  difference(unscaled), parts))
