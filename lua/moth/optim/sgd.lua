--- optim.SGD: gradient descent, with momentum (Sutskever et al. 2013) and weight decay as an L2 penalty.
--
-- Arguments: params, lr = 1e-3 (a number, or a tensor of one element: see optim.Adam), momentum = 0, dampening = 0,
-- weight_decay = 0, nesterov = false; maximize = false
--
-- For each parameter x with gradient g:
--   1. g = -g if maximize
--   2. g = g + weight_decay x
--   3. b = g in the first step with momentum, later b = momentum b + (1 - dampening) g
--   4. g = b, or with nesterov g + momentum b (where there is momentum)
--   5. x = x - lr g
local B = require "moth_lua"
local keep = require("moth.tensor.scope").keep
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local Optimizer = require "moth.optim.optimizer"

local SGD = class("SGD", Optimizer)

SGD.__init = Optimizer.init("optim.SGD", "number|Tensor lr=1e-3, number momentum=0, number dampening=0, \z
  number weight_decay=0, bool nesterov=false, *, bool maximize=false", function(_, o)
  if o.nesterov and (o.momentum == 0 or o.dampening ~= 0) then
    check.fail("[optim.SGD] nesterov needs a momentum and no dampening")
  end
end)

-- Only the rows i of a row gradient: x[i] = x[i] - lr g[i].
function SGD:step_row(group, p, g) -- luacheck: ignore self
  if group.momentum ~= 0 or group.weight_decay ~= 0 then
    check.fail("optim.SGD: row gradients (of an embedding with sparse = true) are taken without momentum and \z
      weight_decay only")
  end
  local lr = Optimizer.rate(group, p)
  p:index_add_(1, g:indices(), g:values() * (group.maximize and lr or -lr))
end

SGD.supports_found_inf = true

-- A buffer that a step left out has not filled is one of zeros: with dampening the next step would not see that.
function SGD:counts_on_device()
  for _, group in ipairs(self.param_groups) do
    if group.momentum ~= 0 and group.dampening ~= 0 then return false end
  end
  return true
end

local function run(group, params, grads, buffers, first, scale, found)
  if #params == 0 then return end
  B.ops.sgd_step(params, grads, buffers, Optimizer.rate(group, params[1]), group.momentum, group.dampening,
    group.weight_decay, group.nesterov, group.maximize, first, scale, found)
end

-- One op call for the parameters with a momentum buffer, and one for those that have none yet.
local function with_momentum(self, group, params, grads, scale, found)
  local old, new = { {}, {}, {} }, { {}, {}, {} }
  for i, p in ipairs(params) do
    local s, lists = self.state[p], old
    if not s.momentum_buffer then
      lists = new
      s.momentum_buffer = keep(found and moth.zeros_like(p) or moth.empty_like(p))
    end
    local n = #lists[1] + 1
    lists[1][n], lists[2][n], lists[3][n] = p, grads[i], s.momentum_buffer
  end
  run(group, old[1], old[2], old[3], false, scale, found)
  run(group, new[1], new[2], new[3], not found, scale, found)
end

local none = {}
--- The step of one group of parameters.
function SGD:step_group(group)
  local params, grads = B.gradients(group.params)
  local scale, found = self:scale_and_found()
  if group.momentum == 0 then
    run(group, params, grads, none, false, scale, found)
  else
    with_momentum(self, group, params, grads, scale, found)
  end
  B.free_all(grads) -- our handles, so that zero_grad gives the memory back
end

return SGD
