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
local betas = require "moth.optim.betas"

return require "moth.optim.stepped" ("LAMB", {
  parameters = "number|Tensor lr=1e-3, number[] betas?, number eps=1e-6, number weight_decay=0, *, \z
    bool maximize=false, bool capturable=false",
  verify = betas.verify("optim.LAMB", { 0.9, 0.999 }),
  op = "lamb_step", states = { "exp_avg", "exp_avg_sq" },
  call = function(op, l, group, rate, s, ...)
    op(l.params, l.grads, l.exp_avg, l.exp_avg_sq, rate, group.betas[1], group.betas[2], group.eps, group.weight_decay,
      s.step, group.maximize, ...)
  end,
})
