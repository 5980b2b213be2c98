--- Naive float64 references of optimizer steps, as spec/ops/references.lua, which includes them: they change the lists
-- in place and give those that they write to. In PyTorch's order of operations, not in that of the records.
local M = {}

-- fn(at): the lists by name at one element; what it sets is written. Returns the lists named.
local function step(names, fn)
  local list = {}
  for name in names:gmatch("[%w_]+") do list[#list + 1] = name end
  return function(a)
    if a.found_inf and a.found_inf.data[1] ~= 0 then
      local out = {}
      for i, name in ipairs(list) do out[i] = a[name] end
      return out
    end
    local scale = (a.maximize and -1 or 1) * (a.grad_scale and a.grad_scale.data[1] or 1)
    for k, p in ipairs(a.params) do
      for i in ipairs(p.data) do
        local at = { params = p.data[i], g = scale * a.grads[k].data[i] }
        for _, name in ipairs(list) do at[name] = a[name][k] and a[name][k].data[i] end
        fn(at, a)
        for _, name in ipairs(list) do
          if a[name][k] then a[name][k].data[i] = at[name] end
        end
      end
    end
    local out = {}
    for i, name in ipairs(list) do out[i] = a[name] end
    return out
  end
end

local function sign(x) return x > 0 and 1 or x < 0 and -1 or 0 end

M.adagrad_step = step("params sums", function(at, a)
  local g = at.g + a.weight_decay * at.params
  at.sums = at.sums + g ^ 2
  at.params = at.params - a.lr / (1 + (a.step - 1) * a.lr_decay) * g / (math.sqrt(at.sums) + a.eps)
end)
M.adadelta_step = step("params square_avgs acc_deltas", function(at, a)
  local g = at.g + a.weight_decay * at.params
  at.square_avgs = a.rho * at.square_avgs + (1 - a.rho) * g ^ 2
  local delta = math.sqrt(at.acc_deltas + a.eps) / math.sqrt(at.square_avgs + a.eps) * g
  at.acc_deltas = a.rho * at.acc_deltas + (1 - a.rho) * delta ^ 2
  at.params = at.params - a.lr * delta
end)
M.adamax_step = step("params exp_avgs exp_infs", function(at, a)
  local g = at.g + a.weight_decay * at.params
  at.exp_avgs = a.beta1 * at.exp_avgs + (1 - a.beta1) * g
  at.exp_infs = math.max(a.beta2 * at.exp_infs, math.abs(g) + a.eps)
  at.params = at.params - a.lr / (1 - a.beta1 ^ a.step) * at.exp_avgs / at.exp_infs
end)

-- The means of Adam, and the gradient with its decay.
local function adam(at, a)
  local g = at.g
  if a.decoupled then
    at.params = at.params * (1 - a.lr * a.weight_decay)
  else
    g = g + a.weight_decay * at.params
  end
  at.exp_avgs = a.beta1 * at.exp_avgs + (1 - a.beta1) * g
  at.exp_avg_sqs = a.beta2 * at.exp_avg_sqs + (1 - a.beta2) * g ^ 2
  return g
end
M.nadam_step = step("params exp_avgs exp_avg_sqs", function(at, a)
  local g = adam(at, a)
  local mu = a.beta1 * (1 - 0.5 * 0.96 ^ (a.step * a.momentum_decay))
  local after = a.beta1 * (1 - 0.5 * 0.96 ^ ((a.step + 1) * a.momentum_decay))
  local root = math.sqrt(at.exp_avg_sqs / (1 - a.beta2 ^ a.step)) + a.eps
  at.params = at.params - a.lr * (1 - mu) / (1 - a.mu_product) * g / root
  at.params = at.params - a.lr * after / (1 - a.mu_product * after) * at.exp_avgs / root
end)
M.radam_step = step("params exp_avgs exp_avg_sqs", function(at, a)
  adam(at, a)
  local b2, t = a.beta2, a.step
  local mean, most = at.exp_avgs / (1 - a.beta1 ^ t), 2 / (1 - b2) - 1
  local rho = most - 2 * t * b2 ^ t / (1 - b2 ^ t)
  if rho > 5 then
    local r = math.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
    mean = mean * r * math.sqrt(1 - b2 ^ t) / (math.sqrt(at.exp_avg_sqs) + a.eps)
  end
  at.params = at.params - a.lr * mean
end)
M.rmsprop_step = step("params square_avgs momentum_buffers grad_avgs", function(at, a)
  local g = at.g + a.weight_decay * at.params
  at.square_avgs = a.alpha * at.square_avgs + (1 - a.alpha) * g ^ 2
  local square = at.square_avgs
  if at.grad_avgs then
    at.grad_avgs = a.alpha * at.grad_avgs + (1 - a.alpha) * g
    square = square - at.grad_avgs ^ 2
  end
  local d = g / (math.sqrt(square) + a.eps)
  if at.momentum_buffers then
    at.momentum_buffers = a.momentum * at.momentum_buffers + d
    d = at.momentum_buffers
  end
  at.params = at.params - a.lr * d
end)
M.rprop_step = step("params prevs step_sizes", function(at, a)
  local g, s = at.g, sign(at.g * at.prevs)
  local factor = s > 0 and a.eta_plus or s < 0 and a.eta_minus or 1
  at.step_sizes = math.min(math.max(at.step_sizes * factor, a.least), a.most)
  if s < 0 then g = 0 end
  at.params = at.params - sign(g) * at.step_sizes
  at.prevs = g
end)
M.asgd_step = step("params axs", function(at, a)
  local g = at.g + a.weight_decay * at.params
  at.params = at.params * (1 - a.lambd * a.eta) - a.eta * g
  at.axs = a.mu == 1 and at.params or at.axs + (at.params - at.axs) * a.mu
end)
M.lion_step = step("params exp_avgs", function(at, a)
  local d = sign(a.beta1 * at.exp_avgs + (1 - a.beta1) * at.g)
  at.params = at.params * (1 - a.lr * a.weight_decay) - a.lr * d
  at.exp_avgs = a.beta2 * at.exp_avgs + (1 - a.beta2) * at.g
end)
M.lamb_step = step("params exp_avgs exp_avg_sqs directions", function(at, a)
  at.exp_avgs = a.beta1 * at.exp_avgs + (1 - a.beta1) * at.g
  at.exp_avg_sqs = a.beta2 * at.exp_avg_sqs + (1 - a.beta2) * at.g ^ 2
  local mean, square = at.exp_avgs / (1 - a.beta1 ^ a.step), at.exp_avg_sqs / (1 - a.beta2 ^ a.step)
  at.directions = mean / (math.sqrt(square) + a.eps) + a.weight_decay * at.params
end)

return M
