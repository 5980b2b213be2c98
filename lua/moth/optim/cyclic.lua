--- lr_scheduler.CyclicLR: rates that rise and fall between two bounds (Smith 2017), by steps.
--
--     local sched = optim.lr_scheduler.CyclicLR(opt, 1e-3, 0.1, { step_size_up = 200, mode = "triangular2" })
--
-- The rate rises from base_lr to max_lr in step_size_up steps and falls back in step_size_down (as many). The height is
-- always the same (mode "triangular"), halved with each cycle ("triangular2") or times gamma^step ("exp_range"), or
-- times scale_fn(cycle), with scale_mode = "iterations" scale_fn(step). The momentum (Adam's first beta) goes the other
-- way, from max_momentum to base_momentum and back, unless cycle_momentum is false.
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local Optimizer = require "moth.optim.optimizer"
local of_group = require "moth.optim.of_group"

return function(LRScheduler)
  local CyclicLR = class("CyclicLR", LRScheduler)

  CyclicLR.__init = signature.init("lr_scheduler.CyclicLR(Optimizer optimizer, number|number[] base_lr, \z
    number|number[] max_lr, count step_size_up=2000, count step_size_down?, \z
    'triangular'|'triangular2'|'exp_range' mode='triangular', number gamma=1, function scale_fn?, \z
    'cycle'|'iterations' scale_mode='cycle', bool cycle_momentum=true, number|number[] base_momentum=0.8, \z
    number|number[] max_momentum=0.9, int last_epoch=-1)", function(self, o)
    local groups = o.optimizer.param_groups
    for key, value in each(o) do self[key] = value end
    self.step_size_down = o.step_size_down or o.step_size_up
    if not o.scale_fn and o.mode == "exp_range" then self.scale_mode = "iterations" end
    for _, key in ipairs({ "base_lr", "max_lr", "base_momentum", "max_momentum" }) do
      of_group.check("[lr_scheduler.CyclicLR]", key, self[key], groups)
    end
    for i, group in ipairs(groups) do
      if self.cycle_momentum and not group.momentum and not group.betas then
        check.fail("[lr_scheduler.CyclicLR] optim.%s has no momentum; give cycle_momentum = false", o.optimizer.__name)
      end
      if o.last_epoch == -1 then
        group.initial_lr = nil
        Optimizer.set_lr(group, of_group.value(self.base_lr, i))
      end
    end
    LRScheduler.__init(self, o.optimizer, o.last_epoch)
  end)

  -- How far up the step is, between 0 and 1, times the scale of its cycle.
  local function height(self, step)
    local total = self.step_size_up + self.step_size_down
    local cycle, ratio = math.floor(1 + step / total), self.step_size_up / total
    local x = 1 + step / total - cycle
    local up = x <= ratio and x / ratio or (x - 1) / (ratio - 1)
    local at = self.scale_mode == "cycle" and cycle or step
    if self.scale_fn then return up * self.scale_fn(at) end
    if self.mode == "triangular2" then return up / 2 ^ (cycle - 1) end
    return self.mode == "exp_range" and up * self.gamma ^ step or up
  end

  function CyclicLR:rate(base, step, i)
    local low = self.base_lr and of_group.value(self.base_lr, i) or base
    return low + (of_group.value(self.max_lr, i) - low) * height(self, step)
  end

  function CyclicLR:apply()
    LRScheduler.apply(self)
    for i, group in ipairs(self.cycle_momentum and self.optimizer.param_groups or {}) do
      local low, high = of_group.value(self.base_momentum, i), of_group.value(self.max_momentum, i)
      local m = high - (high - low) * height(self, self.last_epoch)
      if group.betas then group.betas = { m, group.betas[2] } else group.momentum = m end
    end
  end

  return CyclicLR
end
