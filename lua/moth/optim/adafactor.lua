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
-- Each parameter takes some ops of its own, none of which waits for its device.
local B = require "moth_lua"
local keep = require("moth.tensor.scope").keep
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local Optimizer = require "moth.optim.optimizer"

local Adafactor = class("Adafactor", Optimizer)
Adafactor.scalars = { "step" }
Adafactor.own_shape = { row_var = true, col_var = true }

Adafactor.__init = Optimizer.init("optim.Adafactor", "number|Tensor lr=1e-2, number beta2_decay=-0.8, table eps?, \z
  number d=1, number weight_decay=0, *, bool maximize=false", function(_, o)
  local eps = o.eps or { false, 1e-3 }
  if eps[1] and type(eps[1]) ~= "number" or type(eps[2]) ~= "number" or (eps[1] or 0) < 0 or eps[2] < 0 then
    check.fail("[optim.Adafactor] eps are two numbers of at least 0; the first may be false, for that of the dtype")
  end
  if o.beta2_decay > 0 then
    check.fail("[optim.Adafactor] beta2_decay must be at most 0, got %g", o.beta2_decay)
  end
  check.number("optim.Adafactor", "d", o.d, 1)
  o.eps = { eps[1] or false, eps[2] }
end)

-- The distance of 1 to the next larger number.
local epsilon = { float64 = 2 ^ -52, float32 = 2 ^ -23, float16 = 2 ^ -10, bfloat16 = 2 ^ -7 }

local function means(g, dim) return g:square():mean(dim, true) end

local function new_state(p)
  local s = { step = 0 }
  if p:dim() > 1 then
    s.row_var, s.col_var = keep(moth.zeros_like(p:narrow(-1, 1, 1))), keep(moth.zeros_like(p:narrow(-2, 1, 1)))
  else
    s.variance = keep(moth.zeros_like(p))
  end
  return s
end

function Adafactor:step_group(group)
  for _, p in ipairs(group.params) do
    local g = B.get_grad(p)
    if g and p:numel() > 0 then
      local s = rawget(self.state, p)
      if not s or not s.step then
        s = new_state(p)
        self.state[p] = s
      end
      s.step = s.step + 1
      if group.maximize then g = g:neg() end
      local lr = Optimizer.get_lr(group)
      local share, root = s.step ^ group.beta2_decay, math.sqrt(p:numel())
      local least = group.eps[1] or epsilon[B.tensor_dtype(p).name]
      local a = (moth.linalg_vector_norm(p) / root):clamp(group.eps[2]) * math.min(lr, s.step ^ -0.5)
      if group.weight_decay ~= 0 then p:mul_(1 - lr * group.weight_decay) end
      local v
      if p:dim() > 1 then
        s.row_var:lerp_(means(g, -1), share)
        s.col_var:lerp_(means(g, -2), share)
        v = s.row_var:matmul(s.col_var):div_(s.row_var:mean(-2, true):clamp(least))
      else
        s.variance:lerp_(g:square(), share)
        v = s.variance
      end
      local u = v:clamp(least * least):rsqrt_():mul_(g)
      p:sub_(u:mul_(a / (moth.linalg_vector_norm(u) / (root * group.d)):clamp(1)))
    end
  end
end

return Adafactor
