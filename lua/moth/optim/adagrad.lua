--- optim.Adagrad: steps divided by the root of the sum of all squared gradients (Duchi, Hazan and Singer 2011).
--
-- Arguments: params, lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 1e-10;
-- maximize = false, capturable = false (see optim.Adam)
--
-- For each parameter x with gradient g, in step t:
--   1. g = -g if maximize; g = g + weight_decay x
--   2. s = s + g^2
--   3. x = x - lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps)
local keep = require("moth.tensor.scope").keep
local moth = require "moth"
local check = require "moth.utils.check"
local Optimizer = require "moth.optim.optimizer"

local Adagrad = require "moth.optim.stepped" ("Adagrad", {
  parameters = "number|Tensor lr=1e-2, number lr_decay=0, number weight_decay=0, number initial_accumulator_value=0, \z
    number eps=1e-10, *, bool maximize=false, bool capturable=false",
  verify = function(_, o)
    for _, key in ipairs({ "lr_decay", "initial_accumulator_value" }) do
      check.number("optim.Adagrad", key, o[key], 0)
    end
  end,
  op = "adagrad_step", states = { "sum" },
  start = { sum = function(group, p) return moth.full_like(p, group.initial_accumulator_value) end },
  call = function(op, l, group, rate, s, ...)
    op(l.params, l.grads, l.sum, rate, group.lr_decay, group.weight_decay, group.eps, s.step, group.maximize, ...)
  end,
})

-- The same update of the rows in a row gradient only.
function Adagrad:step_row(group, p, g)
  if group.weight_decay ~= 0 then
    check.fail("optim.Adagrad: row gradients (of an embedding with sparse = true) are taken without weight_decay only")
  end
  local s, i, v = self.state[p], g:indices(), g:values()
  if not s.sum then s.sum, s.step = keep(moth.full_like(p, group.initial_accumulator_value)), 0 end
  s.step = s.step + 1
  if group.maximize then v = v:neg() end
  s.sum:index_add_(1, i, v:square())
  local root = s.sum:index_select(1, i):sqrt():add_(group.eps)
  p:index_add_(1, i, v / root * (-Optimizer.get_lr(group) / (1 + (s.step - 1) * group.lr_decay)))
end

return Adagrad
