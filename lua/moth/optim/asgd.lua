--- optim.ASGD: gradient descent with a falling rate, and the mean of the parameters of late steps (Polyak and Juditsky
-- 1992), in state[p].ax.
--
-- Arguments: params, lr = 1e-2, lambd = 1e-4, alpha = 0.75, t0 = 1e6 (the step from which means are taken),
-- weight_decay = 0; maximize = false, capturable = false (see optim.Adam)
--
-- For each parameter x with gradient g, in step t (from 1):
--   1. g = -g if maximize; g = g + weight_decay x
--   2. x = x - lambd eta x - eta g
--   3. a = a + mu (x - a)                                                 (ax)
--   4. eta = lr / (1 + lambd lr t)^alpha; mu = 1 / max(1, t - t0)         (eta, lr at first; mu, 1 at first)
local B = require "moth_lua"
local Optimizer = require "moth.optim.optimizer"

return require "moth.optim.stepped" ("ASGD", {
  parameters = "number|Tensor lr=1e-2, number lambd=1e-4, number alpha=0.75, number t0=1e6, number weight_decay=0, *, \z
    bool maximize=false, bool capturable=false",
  op = "asgd_step", states = { "ax" }, scalars = { "step", "eta", "mu" },
  begin = { eta = Optimizer.get_lr, mu = function() return 1 end },
  call = function(op, l, group, _, s, ...)
    op(l.params, l.grads, l.ax, s.eta, s.mu, group.lambd, group.weight_decay, group.maximize, ...)
  end,
  after = function(group, s)
    local t, lr = s.step, group.lr
    if not B.is_tensor(t) then lr = Optimizer.get_lr(group) end
    local late = t - group.t0
    local mu = B.is_tensor(late) and late:clamp(1):reciprocal() or 1 / math.max(1, late)
    return { eta = lr / (1 + t * lr * group.lambd) ^ group.alpha, mu = mu }
  end,
})
