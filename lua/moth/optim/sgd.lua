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

local function run(group, lists, first, ...)
  if #lists.params == 0 then return end
  local lr = Optimizer.rate(group, lists.params[1])
  B.ops.sgd_step(lists.params, lists.grads, lists.buffers, lr, group.momentum, group.dampening,
    group.weight_decay, group.nesterov, group.maximize, first, ...)
end

local function new_lists() return { params = {}, grads = {}, buffers = {} } end

-- One op call for all parameters, and one for those without a momentum buffer yet.
function SGD:step_group(group)
  local old, new, state = new_lists(), new_lists(), self.state
  local scale, found = self:scale_and_found()
  for _, p in ipairs(group.params) do
    local grad = B.get_grad(p)
    if grad then
      local lists = old
      if group.momentum ~= 0 then
        local s = state[p]
        if not s.momentum_buffer then
          lists = new
          s.momentum_buffer = keep(found and moth.zeros_like(p) or moth.empty_like(p))
        end
        lists.buffers[#lists.buffers + 1] = s.momentum_buffer
      end
      lists.params[#lists.params + 1] = p
      lists.grads[#lists.grads + 1] = grad
    end
  end
  run(group, old, false, scale, found)
  run(group, new, not found, scale, found)
  for _, lists in ipairs({ old, new }) do -- free our handles now, as in Adam
    for _, grad in ipairs(lists.grads) do B.free(grad) end
  end
end

return SGD
