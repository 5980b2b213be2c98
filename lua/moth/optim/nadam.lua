--- optim.NAdam: Adam with Nesterov's momentum (Dozat 2016).
--
-- Arguments: params, lr = 2e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0, momentum_decay = 4e-3,
-- decoupled_weight_decay = false (true: as in AdamW); maximize = false, capturable = false (see optim.Adam)
--
-- For each parameter x with gradient g, in its step t (from 1):
--   1. g = -g if maximize; g = g + weight_decay x, or decoupled x = x - lr weight_decay x
--   2. mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2)
--   3. m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2          (exp_avg, exp_avg_sq)
--   4. m' = mu_(t+1) m / (1 - mu_1 … mu_(t+1)) + (1 - mu_t) g / (1 - mu_1 … mu_t)      (mu_product)
--   5. x = x - lr m' / (sqrt(v / (1 - beta2^t)) + eps)
return require "moth.optim.stepped" ("NAdam", {
  parameters = "number|Tensor lr=2e-3, number[] betas?, number eps=1e-8, number weight_decay=0, \z
    number momentum_decay=4e-3, bool decoupled_weight_decay=false, *, bool maximize=false, bool capturable=false",
  verify = require("moth.optim.betas").verify("optim.NAdam", { 0.9, 0.999 }, "momentum_decay"),
  op = "nadam_step", states = { "exp_avg", "exp_avg_sq" },
  scalars = { "step", "mu_product" }, begin = { mu_product = function() return 1 end },
  before = function(group, s)
    local t = s.step + 1
    return { step = t, mu_product = s.mu_product * (1 - 0.96 ^ (t * group.momentum_decay) * 0.5) * group.betas[1] }
  end,
  call = function(op, l, group, rate, s, ...)
    op(l.params, l.grads, l.exp_avg, l.exp_avg_sq, rate, group.betas[1], group.betas[2], group.eps, group.weight_decay,
      group.momentum_decay, s.step, s.mu_product, group.decoupled_weight_decay, group.maximize, ...)
  end,
})
