--- optim.Lion: steps by the sign of a mean of gradients (Chen et al. 2023). Rates are 3 to 10 times smaller, and
-- weight_decay as many times larger, than Adam's.
--
-- Arguments: params, lr = 1e-4, betas = { 0.9, 0.99 }, weight_decay = 0; maximize = false, capturable = false (see
-- optim.Adam)
--
-- For each parameter x with gradient g:
--   1. g = -g if maximize
--   2. x = x - lr weight_decay x - lr sign(beta1 m + (1 - beta1) g)
--   3. m = beta2 m + (1 - beta2) g             (exp_avg)
return require "moth.optim.stepped" ("Lion", {
  parameters = "number|Tensor lr=1e-4, number[] betas?, number weight_decay=0, *, bool maximize=false, \z
    bool capturable=false",
  verify = require("moth.optim.betas").verify("optim.Lion", { 0.9, 0.99 }),
  op = "lion_step", states = { "exp_avg" }, scalars = {}, before = function() return {} end,
  call = function(op, l, group, rate, _, ...)
    op(l.params, l.grads, l.exp_avg, rate, group.betas[1], group.betas[2], group.weight_decay, group.maximize, ...)
  end,
})
