--- lr_scheduler.OneCycleLR: one cycle of rates and momenta (Smith and Topin 2018), by steps.
--
--     local sched = optim.lr_scheduler.OneCycleLR(opt, { max_lr = 0.1, epochs = 10, steps_per_epoch = loader:size() })
--     for x, y in loader:iter() do …; opt:step(); sched:step() end
--
-- The rate rises from the initial max_lr / div_factor to max_lr in pct_start of all steps, then falls to the initial
-- rate over final_div_factor; with three_phase it first returns to the initial rate in as many steps as it rose. The
-- momentum (Adam's first beta) goes the other way, from max_momentum to base_momentum and back, unless cycle_momentum
-- is false.
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local of_group = require "moth.optim.of_group"

local of, check_each = of_group.value, of_group.check

return function(LRScheduler)
  local OneCycleLR = class("OneCycleLR", LRScheduler)

  --- Give total_steps, or epochs and steps_per_epoch; lists have one number for each group.
  OneCycleLR.__init = signature.init("lr_scheduler.OneCycleLR(Optimizer optimizer, number|number[] max_lr, \z
    count total_steps?, count epochs?, count steps_per_epoch?, number pct_start=0.3, \z
    'cos'|'linear' anneal_strategy='cos', bool cycle_momentum=true, number|number[] base_momentum=0.85, \z
    number|number[] max_momentum=0.95, number div_factor=25, number final_div_factor=1e4, \z
    bool three_phase=false, int last_epoch=-1)", function(self, o)
    local where, optimizer = "[lr_scheduler.OneCycleLR]", o.optimizer
    if (o.total_steps == nil) == (o.epochs == nil or o.steps_per_epoch == nil) then
      check.fail("%s give total_steps, or epochs and steps_per_epoch", where)
    end
    if not (o.pct_start >= 0 and o.pct_start <= 1) then
      check.fail("%s pct_start must be between 0 and 1, got %g", where, o.pct_start)
    end
    for key, value in each(o) do self[key] = value end
    self.total_steps, self.epochs, self.steps_per_epoch = o.total_steps or o.epochs * o.steps_per_epoch, nil, nil
    local groups = optimizer.param_groups
    for _, key in ipairs({ "max_lr", "base_momentum", "max_momentum" }) do check_each(where, key, self[key], groups) end
    for _, group in ipairs(groups) do
      if self.cycle_momentum and not group.momentum and not group.betas then
        check.fail("%s optim.%s has no momentum; give cycle_momentum = false", where, optimizer.__name)
      end
    end
    LRScheduler.__init(self, optimizer, o.last_epoch)
  end)

  -- Interpolates between `points`, one phase from each to the next, at `step`.
  local function along(self, step, points)
    local up, last, start = self.pct_start * self.total_steps - 1, self.total_steps - 1, 0
    local ends = self.three_phase and { up, 2 * up, last } or { up, last }
    for i, stop in ipairs(ends) do
      if step <= stop or i == #ends then
        local share = stop > start and math.min(1, (step - start) / (stop - start)) or 1
        if self.anneal_strategy == "cos" then share = (1 - math.cos(math.pi * share)) / 2 end
        return points[i] + (points[i + 1] - points[i]) * share
      end
      start = stop
    end
  end

  function OneCycleLR:rate(_, step, i)
    local top = of(self.max_lr, i)
    local first = top / self.div_factor
    local last = first / self.final_div_factor
    return along(self, step, self.three_phase and { first, top, first, last } or { first, top, last })
  end

  function OneCycleLR:apply()
    LRScheduler.apply(self)
    for i, group in ipairs(self.cycle_momentum and self.optimizer.param_groups or {}) do
      local low, high = of(self.base_momentum, i), of(self.max_momentum, i)
      local m = along(self, self.last_epoch, { high, low, high, high })
      if group.betas then group.betas = { m, group.betas[2] } else group.momentum = m end
    end
  end

  return OneCycleLR
end
