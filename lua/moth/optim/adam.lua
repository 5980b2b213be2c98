--- optim.Adam: Kingma and Ba 2015; with amsgrad Reddi et al. 2018. Weight decay is an L2 penalty (see AdamW).
--
-- Arguments: params, lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0, amsgrad = false;
-- maximize = false, capturable = false
--
-- lr may be a tensor of one element on the parameters' device: it is read there at each step, so that a captured CUDA
-- graph follows lr:fill_(rate) and schedulers. capturable = true keeps the number of steps in a tensor, too: a graph
-- of the step then counts on at each replay.
--
-- For each parameter x with gradient g, in its step t (from 1):
--   1. g = -g if maximize; g = g + weight_decay x
--   2. m = beta1 m + (1 - beta1) g             (exp_avg)
--   3. v = beta2 v + (1 - beta2) g^2           (exp_avg_sq)
--   4. with amsgrad v' = max(v', v), used for v (max_exp_avg_sq)
--   5. x = x - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
local B = require "moth_lua"
local keep = require("moth.tensor.scope").keep
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local Optimizer = require "moth.optim.optimizer"

local Adam = class("Adam", Optimizer)
Adam.decoupled = false

--- The __init of Adam with this default of weight_decay.
function Adam.with_decay(name, decay)
  local parameters = "number|Tensor lr=1e-3, number[] betas?, number eps=1e-8, number weight_decay=%g, \z
    bool amsgrad=false, *, bool maximize=false, bool capturable=false"
  return Optimizer.init(name, parameters:format(decay), function(_, o)
    local betas = o.betas or { 0.9, 0.999 }
    if #betas ~= 2 then check.fail("[%s] betas are two numbers, got %d", name, #betas) end
    for i = 1, 2 do
      if not (betas[i] >= 0 and betas[i] < 1) then
        check.fail("[%s] betas[%d] must be less than 1 and at least 0, got %g", name, i, betas[i])
      end
    end
    o.betas = { betas[1], betas[2] }
  end)
end
Adam.__init = Adam.with_decay("optim.Adam", 0)

local function new_state(p, group, step)
  local s = { step = step, exp_avg = keep(moth.zeros_like(p)), exp_avg_sq = keep(moth.zeros_like(p)) }
  if group.amsgrad then s.max_exp_avg_sq = keep(moth.zeros_like(p)) end
  return s
end

-- A count of steps on a device: one for all parameters that have taken as many.
local function new_count(counts, p, steps)
  local device = B.tensor_device(p)
  local key = tostring(device) .. " " .. steps
  counts[key] = counts[key] or keep(moth.full({}, steps, { dtype = moth.float32, device = device }))
  return counts[key]
end

-- One op call per number of steps taken: one for all parameters, unless some had no gradient at times.
function Adam:step_group(group)
  local by_step, order, state, fresh = {}, {}, self.state, {}
  for _, p in ipairs(group.params) do
    local grad = B.get_grad(p)
    if grad then
      local s = state[p]
      if not s.step then
        s = new_state(p, group, group.capturable and new_count(fresh, p, 0) or 0)
        state[p] = s
      end
      if not group.capturable then s.step = s.step + 1 end
      local lists = by_step[s.step]
      if not lists then
        if group.capturable then s.step:add_(1) end
        lists = { n = 0, params = {}, grads = {}, avgs = {}, squares = {}, maxima = {} }
        by_step[s.step] = lists
        order[#order + 1] = s.step
      end
      local n = lists.n + 1
      lists.n = n
      lists.params[n], lists.grads[n] = p, grad
      lists.avgs[n], lists.squares[n], lists.maxima[n] = s.exp_avg, s.exp_avg_sq, s.max_exp_avg_sq
    end
  end
  for _, step in ipairs(order) do
    local lists = by_step[step]
    B.ops.adam_step(lists.params, lists.grads, lists.avgs, lists.squares, lists.maxima,
      Optimizer.rate(group, lists.params[1]), group.betas[1], group.betas[2], group.eps, group.weight_decay, step,
      self.decoupled, group.amsgrad, group.maximize)
    -- Free our handles now, so that zero_grad releases the gradients while their memory is still in cache.
    for i = 1, lists.n do B.free(lists.grads[i]) end
  end
end

--- Takes over a state; counts of steps become tensors or numbers, as this optimizer has them.
function Adam:load_state_dict(sd)
  local capturable, counts = {}, {} -- how this optimizer runs, whatever the saved one did
  for i, group in ipairs(self.param_groups) do capturable[i] = group.capturable end
  Optimizer.load_state_dict(self, sd)
  for i, group in ipairs(self.param_groups) do
    group.capturable = capturable[i]
    for _, p in ipairs(group.params) do
      local s = rawget(self.state, p)
      if s and s.step then
        local steps = B.is_tensor(s.step) and s.step:item() or s.step
        s.step = group.capturable and new_count(counts, p, steps) or steps
      end
    end
  end
end

return Adam
