--- optim.RMSprop: steps divided by a running root mean square of the gradients (Hinton 2012).
--
-- Arguments: params, lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0, centered = false,
-- capturable = false (see optim.Adam); maximize = false
--
-- For each parameter x with gradient g:
--   1. g = -g if maximize; g = g + weight_decay x
--   2. v = alpha v + (1 - alpha) g^2                                                 (square_avg)
--   3. centered: a = alpha a + (1 - alpha) g; r = sqrt(v - a^2) + eps, else r = sqrt(v) + eps     (grad_avg)
--   4. with momentum b = momentum b + g / r, x = x - lr b; else x = x - lr g / r      (momentum_buffer)
local check = require "moth.utils.check"

return require "moth.optim.stepped" ("RMSprop", {
  parameters = "number|Tensor lr=1e-2, number alpha=0.99, number eps=1e-8, number weight_decay=0, number momentum=0, \z
    bool centered=false, bool capturable=false, *, bool maximize=false",
  verify = function(_, o) check.number("optim.RMSprop", "alpha", o.alpha, 0) end,
  op = "rmsprop_step", states = { "square_avg", "momentum_buffer", "grad_avg" },
  optional = {
    momentum_buffer = function(group) return group.momentum ~= 0 end,
    grad_avg = function(group) return group.centered end,
  },
  call = function(op, l, group, rate, _, ...)
    op(l.params, l.grads, l.square_avg, l.momentum_buffer, l.grad_avg, rate, group.alpha, group.eps, group.weight_decay,
      group.momentum, group.maximize, ...)
  end,
})
