--- optim.Adafactor: mean squares of matrices as a product of one number per row and one per column (Shazeer and Stern
-- 2018), so that a state takes little memory.
--
-- Arguments: params, lr = 1e-2, beta2_decay = -0.8, eps = { false, 1e-3 } (false: the dtype's), d = 1,
-- weight_decay = 0; maximize = false
--
-- For each parameter x of n elements with gradient g, in its step t (from 1):
--   1. g = -g if maximize; r = min(lr, 1 / sqrt(t)); a = max(eps[2], |x| / sqrt(n)) r
--   2. x = x - lr weight_decay x
--   3. of a vector v = v + t^beta2_decay (g^2 - v)                                        (variance)
--      else the same for the means of g^2 along rows and columns                   (row_var, col_var);
--      v = row_var col_var / mean(row_var)
--   4. u = g / sqrt(max(v, eps[1]^2))
--   5. x = x - a u / max(1, |u| / (sqrt(n) d))
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local Optimizer = require "moth.optim.optimizer"

-- Zeros of p's shape with the size 1 in dimension d.
local function zeros_along(p, d)
  local size = B.size(p)
  size[d] = 1
  return moth.zeros(size, { dtype = B.tensor_dtype(p), device = B.tensor_device(p) })
end

local function is_matrix(_, p) return B.dim(p) > 1 end

local Adafactor = require "moth.optim.stepped" ("Adafactor", {
  parameters = "number|Tensor lr=1e-2, number beta2_decay=-0.8, table eps?, number d=1, number weight_decay=0, *, \z
    bool maximize=false",
  verify = function(_, o)
    local eps = o.eps or { false, 1e-3 }
    if eps[1] and type(eps[1]) ~= "number" or type(eps[2]) ~= "number" or (eps[1] or 0) < 0 or eps[2] < 0 then
      check.fail("[optim.Adafactor] eps are two numbers of at least 0; the first may be false, for that of the dtype")
    end
    if o.beta2_decay > 0 then
      check.fail("[optim.Adafactor] beta2_decay must be at most 0, got %g", o.beta2_decay)
    end
    check.number("optim.Adafactor", "d", o.d, 1)
    o.eps = { eps[1] or false, eps[2] }
  end,
  op = "adafactor_step", whole = true, states = { "row_var", "col_var", "variance" },
  optional = { row_var = is_matrix, col_var = is_matrix, variance = function(_, p) return B.dim(p) < 2 end },
  start = {
    row_var = function(_, p) return zeros_along(p, B.dim(p)) end,
    col_var = function(_, p) return zeros_along(p, B.dim(p) - 1) end,
  },
  sort = function(p) return B.dim(p) > 1 end,
  call = function(op, l, group, _, s, ...)
    op(l.params, l.grads, l.row_var, l.col_var, l.variance, Optimizer.get_lr(group), group.beta2_decay,
      group.eps[1] or -1, group.eps[2], group.d, group.weight_decay, s.step, group.maximize, ...)
  end,
})
Adafactor.own_shape = { row_var = true, col_var = true }

return Adafactor
