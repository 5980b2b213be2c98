--- optim.Adadelta: steps in the unit of earlier steps (Zeiler 2012).
--
-- Arguments: params, lr = 1, rho = 0.9, eps = 1e-6, weight_decay = 0; maximize = false, capturable = false (see
-- optim.Adam)
--
-- For each parameter x with gradient g:
--   1. g = -g if maximize; g = g + weight_decay x
--   2. v = rho v + (1 - rho) g^2                       (square_avg)
--   3. d = sqrt(u + eps) / sqrt(v + eps) g
--   4. u = rho u + (1 - rho) d^2                       (acc_delta)
--   5. x = x - lr d
local check = require "moth.utils.check"

return require "moth.optim.stepped" ("Adadelta", {
  parameters = "number|Tensor lr=1, number rho=0.9, number eps=1e-6, number weight_decay=0, *, bool maximize=false, \z
    bool capturable=false",
  verify = function(_, o)
    if not (o.rho >= 0 and o.rho <= 1) then
      check.fail("[optim.Adadelta] rho must be between 0 and 1, got %g", o.rho)
    end
  end,
  op = "adadelta_step", states = { "square_avg", "acc_delta" },
  call = function(op, l, group, rate, _, ...)
    op(l.params, l.grads, l.square_avg, l.acc_delta, rate, group.rho, group.eps, group.weight_decay, group.maximize,
      ...)
  end,
})
