--- optim.RAdam: Adam that takes steps of momentum alone while the mean square is of too few gradients (Liu et al.
-- 2020).
--
-- Arguments: params, lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0, decoupled_weight_decay = false
-- (true: as in AdamW); maximize = false, capturable = false (see optim.Adam)
--
-- For each parameter x with gradient g, in its step t (from 1):
--   1. g = -g if maximize; g = g + weight_decay x, or decoupled x = x - lr weight_decay x
--   2. m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2          (exp_avg, exp_avg_sq)
--   3. n = 2 / (1 - beta2) - 1; n_t = n - 2 t beta2^t / (1 - beta2^t)
--   4. d = lr m / (1 - beta1^t); x = x - d while n_t <= 5, later
--      x = x - d r sqrt(1 - beta2^t) / (sqrt(v) + eps), r^2 = (n_t - 4) (n_t - 2) n / ((n - 4) (n - 2) n_t)
return require "moth.optim.stepped" ("RAdam", {
  parameters = "number|Tensor lr=1e-3, number[] betas?, number eps=1e-8, number weight_decay=0, \z
    bool decoupled_weight_decay=false, *, bool maximize=false, bool capturable=false",
  verify = require("moth.optim.betas").verify("optim.RAdam", { 0.9, 0.999 }),
  op = "radam_step", states = { "exp_avg", "exp_avg_sq" },
  call = function(op, l, group, rate, s, ...)
    op(l.params, l.grads, l.exp_avg, l.exp_avg_sq, rate, group.betas[1], group.betas[2], group.eps, group.weight_decay,
      s.step, group.decoupled_weight_decay, group.maximize, ...)
  end,
})
