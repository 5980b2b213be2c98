--- optim.SparseAdam: Adam for row gradients (of an embedding with sparse = true): means and elements of the rows that
-- have a gradient are updated, the others are left as they are. A parameter with an ordinary gradient is an error.
--
-- Arguments: params, lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8; maximize = false
--
-- For each row of a parameter x with gradient g, in step t of the parameter (from 1):
--   1. g = -g if maximize
--   2. m = m + (1 - beta1) (g - m); v = v + (1 - beta2) (g^2 - v)          (exp_avg, exp_avg_sq)
--   3. x = x - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)
local B = require "moth_lua"
local keep = require("moth.tensor.scope").keep
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local Optimizer = require "moth.optim.optimizer"

local SparseAdam = class("SparseAdam", Optimizer)
SparseAdam.scalars, SparseAdam.supports_found_inf = { "step" }, true

SparseAdam.__init = Optimizer.init("optim.SparseAdam", "number|Tensor lr=1e-3, number[] betas?, number eps=1e-8, *, \z
  bool maximize=false", require("moth.optim.betas").verify("optim.SparseAdam", { 0.9, 0.999 }))

--- The step of a parameter whose gradient is one of rows.
function SparseAdam:step_row(group, p, g)
  local s = self.state[p]
  if not s.step then
    s.step, s.exp_avg, s.exp_avg_sq = 0, keep(moth.zeros_like(p)), keep(moth.zeros_like(p))
  end
  s.step = s.step + 1
  local i, v, b1, b2 = g:indices(), g:values(), group.betas[1], group.betas[2]
  if group.maximize then v = v:neg() end
  local scale = self:scale_and_found()
  if scale then v = v * scale end
  local old_m, old_v = s.exp_avg:index_select(1, i), s.exp_avg_sq:index_select(1, i)
  local dm, dv = (v - old_m):mul_(1 - b1), (v * v - old_v):mul_(1 - b2)
  s.exp_avg:index_add_(1, i, dm)
  s.exp_avg_sq:index_add_(1, i, dv)
  local size = Optimizer.get_lr(group) * math.sqrt(1 - b2 ^ s.step) / (1 - b1 ^ s.step)
  p:index_add_(1, i, (old_m + dm) / (old_v + dv):sqrt_():add_(group.eps) * -size)
end

--- The step of one group of parameters.
function SparseAdam:step_group(group) -- luacheck: ignore self
  for i, p in ipairs(group.params) do
    if B.get_grad(p) then
      check.fail("optim.SparseAdam takes row gradients only (of an embedding with sparse = true); parameter %d has an \z
        ordinary gradient: use optim.Adam for it", i)
    end
  end
end

return SparseAdam
