--- lr_scheduler.OneCycleLR: one cycle of rates and momenta (Smith and Topin 2018), by steps.
--
--     local sched = optim.lr_scheduler.OneCycleLR(opt, { max_lr = 0.1, epochs = 10, steps_per_epoch = #loader })
--     for x, y in loader:iter() do …; opt:step(); sched:step() end
--
-- The rate goes from max_lr / div_factor up to max_lr in pct_start of all steps, and in the rest down to the first rate
-- over final_div_factor; with three_phase it goes back to the first as fast as it came, and on down from there. The
-- momentum (Adam's first beta) goes the other way, from max_momentum to base_momentum and back, unless cycle_momentum
-- is false.
local class = require "moth.class"
local check = require "moth.utils.check"
local each = require "moth.each"

local defaults = { pct_start = 0.3, anneal_strategy = "cos", cycle_momentum = true, base_momentum = 0.85,
  max_momentum = 0.95, div_factor = 25, final_div_factor = 1e4, three_phase = false }
local allowed = { "max_lr", "total_steps", "epochs", "steps_per_epoch" }
for key in each(defaults) do allowed[#allowed + 1] = key end
table.sort(allowed)
allowed = table.concat(allowed, " ")

local function of(v, i)
  if type(v) == "table" then return v[i] end
  return v
end

-- A number, or a list of one for each group.
local function check_each(where, name, v, groups)
  if type(v) == "table" and #v ~= #groups then
    check.fail("%s: %s has %d numbers for %d groups", where, name, #v, #groups)
  end
  for i = 1, type(v) == "table" and #v or 1 do check.number(where, name, of(v, i), 0) end
end

return function(LRScheduler)
  local OneCycleLR = class("OneCycleLR", LRScheduler)

  --- o.max_lr (or a list, one for each group); o.total_steps, or o.epochs and o.steps_per_epoch; o.pct_start (0.3);
  -- o.anneal_strategy ("cos", "linear"); o.cycle_momentum (true), o.base_momentum (0.85), o.max_momentum (0.95), or
  -- lists of them; o.div_factor (25); o.final_div_factor (1e4); o.three_phase (false)
  function OneCycleLR:__init(optimizer, o)
    local where = "lr_scheduler.OneCycleLR"
    o = check.options(where, o, allowed)
    for key, default in each(defaults) do
      if o[key] == nil then self[key] = default else self[key] = o[key] end
    end
    if o.max_lr == nil then check.fail("%s: option 'max_lr' is missing", where) end
    if (o.total_steps == nil) == (o.epochs == nil or o.steps_per_epoch == nil) then
      check.fail("%s: give total_steps, or epochs and steps_per_epoch", where)
    end
    self.max_lr, self.total_steps = o.max_lr, o.total_steps or check.integer(where, "epochs", o.epochs, 1)
      * check.integer(where, "steps_per_epoch", o.steps_per_epoch, 1)
    check.integer(where, "total_steps", self.total_steps, 1)
    if check.number(where, "pct_start", self.pct_start, 0) > 1 then
      check.fail("%s: pct_start must be at most 1, got %g", where, self.pct_start)
    end
    if self.anneal_strategy ~= "cos" and self.anneal_strategy ~= "linear" then
      check.fail("%s: anneal_strategy is 'cos' or 'linear', got '%s'", where, tostring(self.anneal_strategy))
    end
    local groups = type(optimizer) == "table" and optimizer.param_groups or {}
    for _, key in ipairs({ "max_lr", "base_momentum", "max_momentum" }) do check_each(where, key, self[key], groups) end
    for _, group in ipairs(groups) do
      if self.cycle_momentum and not group.momentum and not group.betas then
        check.fail("%s: optim.%s has no momentum; give cycle_momentum = false", where, optimizer.__name)
      end
    end
    LRScheduler.__init(self, optimizer)
  end

  -- The value after `step` steps of what goes through these points, a phase from each to the next.
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
