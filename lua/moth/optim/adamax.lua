--- optim.Adamax: Adam with the largest gradient in place of the mean square (Kingma and Ba 2015, section 7.1).
--
-- Arguments: params, lr = 2e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0; maximize = false,
-- capturable = false (see optim.Adam)
--
-- For each parameter x with gradient g, in its step t (from 1):
--   1. g = -g if maximize; g = g + weight_decay x
--   2. m = beta1 m + (1 - beta1) g             (exp_avg)
--   3. u = max(beta2 u, |g| + eps)             (exp_inf)
--   4. x = x - lr / (1 - beta1^t) m / u
return require "moth.optim.stepped" ("Adamax", {
  parameters = "number|Tensor lr=2e-3, number[] betas?, number eps=1e-8, number weight_decay=0, *, \z
    bool maximize=false, bool capturable=false",
  verify = require("moth.optim.betas").verify("optim.Adamax", { 0.9, 0.999 }),
  op = "adamax_step", states = { "exp_avg", "exp_inf" },
  call = function(op, l, group, rate, s, ...)
    op(l.params, l.grads, l.exp_avg, l.exp_inf, rate, group.betas[1], group.betas[2], group.eps, group.weight_decay,
      s.step, group.maximize, ...)
  end,
})
