--- optim.Adam: Kingma and Ba 2015; with amsgrad Reddi et al. 2018. Weight decay is an L2 penalty (see AdamW).
--
-- Arguments: params, lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0, amsgrad = false;
-- maximize = false, capturable = false, decoupled_weight_decay = false (true: AdamW)
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
local betas = require "moth.optim.betas"
local Optimizer = require "moth.optim.optimizer"

local Adam = class("Adam", Optimizer)

--- The __init of Adam with these defaults of weight_decay and decoupled_weight_decay.
function Adam.with_decay(name, decay, decoupled)
  local parameters = "number|Tensor lr=1e-3, number[] betas?, number eps=1e-8, number weight_decay=%g, \z
    bool amsgrad=false, *, bool maximize=false, bool capturable=false, bool decoupled_weight_decay=%s"
  return Optimizer.init(name, parameters:format(decay, tostring(decoupled)), betas.verify(name, { 0.9, 0.999 }))
end
Adam.__init = Adam.with_decay("optim.Adam", 0, false)

Adam.scalars, Adam.supports_found_inf = { "step" }, true

local function new_state(p, group, step)
  local s = { step = step, exp_avg = keep(moth.zeros_like(p)), exp_avg_sq = keep(moth.zeros_like(p)) }
  if group.amsgrad then s.max_exp_avg_sq = keep(moth.zeros_like(p)) end
  return s
end

-- One op call per number of steps taken: one for all parameters, unless some had no gradient at times.
function Adam:step_group(group)
  local by_step, order, state, fresh, absent = {}, {}, self.state, {}, nil
  local scale, found = self:scale_and_found()
  local params, grads = B.gradients(group.params)
  for i, p in ipairs(params) do
    local s = state[p]
    if not s.step then
      s = new_state(p, group, group.capturable and Optimizer.new_count(fresh, p, "step", 0) or 0)
      state[p] = s
    end
    if not group.capturable then s.step = s.step + 1 end
    local lists = by_step[s.step]
    if not lists then
      lists = { n = 0, params = {}, grads = {}, avgs = {}, squares = {}, maxima = {}, first = s,
        states = group.capturable and {} }
      by_step[s.step] = lists
      order[#order + 1] = lists
    end
    local n = lists.n + 1
    lists.n = n
    lists.params[n], lists.grads[n] = p, grads[i]
    lists.avgs[n], lists.squares[n], lists.maxima[n] = s.exp_avg, s.exp_avg_sq, s.max_exp_avg_sq
    if lists.states then lists.states[n] = s end
  end
  if group.capturable and #params < #group.params then
    absent = {}
    for _, p in ipairs(group.params) do
      if not B.get_grad(p) then absent[#absent + 1] = rawget(state, p) end
    end
  end
  if absent then Optimizer.part_counts(absent, by_step, self.scalars) end
  for _, lists in ipairs(order) do
    local step = lists.first.step
    if group.capturable then
      step:add_(1)
      if found then step:sub_(found:ne(0):to(step:dtype())) end
    end
    B.ops.adam_step(lists.params, lists.grads, lists.avgs, lists.squares, lists.maxima,
      Optimizer.rate(group, lists.params[1]), group.betas[1], group.betas[2], group.eps, group.weight_decay, step,
      group.decoupled_weight_decay, group.amsgrad, group.maximize, scale, found)
    -- Free our handles now, so that zero_grad releases the gradients while their memory is still in cache.
    B.free_all(lists.grads)
  end
end

return Adam
