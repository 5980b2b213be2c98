--- optim.LAMB: Adam whose step is scaled to each parameter's norm, for large batches (You et al. 2020).
--
-- Arguments: params, lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-6, weight_decay = 0; maximize = false,
-- capturable = false (see optim.Adam)
--
-- For each parameter x with gradient g, in its step t (from 1):
--   1. g = -g if maximize
--   2. m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2          (exp_avg, exp_avg_sq)
--   3. d = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay x
--   4. x = x - lr r d, r = |x| / |d|, or 1 where one of the norms is 0
local B = require "moth_lua"
local moth = require "moth"
local betas = require "moth.optim.betas"

-- Of parameters that are cut over ranks: the norms are those of the whole ones.
local function step_parts(l, group, rate, s, scale, found)
  local placement, directions = require "moth.distributed.placement", {}
  for i, p in ipairs(l.params) do directions[i] = moth.empty_like(p) end
  B.ops.native_lamb_directions(l.params, l.grads, l.exp_avg, l.exp_avg_sq, directions, group.betas[1], group.betas[2],
    group.eps, group.weight_decay, s.step, group.maximize, scale, found)
  local of_x, of_d = placement.norms(l.params, l.params), placement.norms(directions, l.params)
  for i, p in ipairs(l.params) do
    local both = of_x[i]:gt(0):logical_and(of_d[i]:gt(0))
    local d = directions[i] * (moth.where(both, of_x[i] / of_d[i], 1) * rate)
    p:sub_(found and moth.where(found:ne(0), 0, d) or d)
    B.free(directions[i])
  end
end

return require "moth.optim.stepped" ("LAMB", {
  parameters = "number|Tensor lr=1e-3, number[] betas?, number eps=1e-6, number weight_decay=0, *, \z
    bool maximize=false, bool capturable=false",
  verify = betas.verify("optim.LAMB", { 0.9, 0.999 }),
  op = "lamb_step", states = { "exp_avg", "exp_avg_sq" }, parts = step_parts,
  call = function(op, l, group, rate, s, ...)
    op(l.params, l.grads, l.exp_avg, l.exp_avg_sq, rate, group.betas[1], group.betas[2], group.eps, group.weight_decay,
      s.step, group.maximize, ...)
  end,
})
