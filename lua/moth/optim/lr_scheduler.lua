--- optim.lr_scheduler: learning rates by epoch.
--
--     local sched = optim.lr_scheduler.StepLR(opt, { step_size = 5, gamma = 0.1 })
--     for epoch = 1, 10 do train(); sched:step() end      -- epochs 1-5: lr, 6-10: lr / 10
--
-- A schedule is a factor of the rate that a group had at first (initial_lr), as a function of the number of
-- steps taken: closed forms, so that a loaded schedule continues to the bit. SequentialLR puts them in a row.
local class = require "moth.class"
local check = require "moth.utils.check"
local each = require "moth.each"

local M = {}

local LRScheduler = class("LRScheduler")
M.LRScheduler = LRScheduler

function LRScheduler:__init(optimizer)
  local where = "lr_scheduler." .. self.__name
  if type(optimizer) ~= "table" or type(optimizer.param_groups) ~= "table" then
    check.fail("%s: expected an optimizer, got %s", where, class.name(optimizer))
  end
  self.optimizer, self.base_lrs, self.last_epoch = optimizer, {}, 0
  for i, group in ipairs(optimizer.param_groups) do
    group.initial_lr = group.initial_lr or group.lr
    self.base_lrs[i] = group.initial_lr
  end
  self:apply()
end

--- The learning rate of group i, which began with `base`, after `epoch` steps. Subclasses say it.
function LRScheduler:rate() check.fail("lr_scheduler.%s has no rate", self.__name) end

-- Sets the rates of the optimizer for the present epoch.
function LRScheduler:apply()
  self.last_lr = {}
  for i, group in ipairs(self.optimizer.param_groups) do
    group.lr = self:rate(self.base_lrs[i], self.last_epoch, i)
    self.last_lr[i] = group.lr
  end
end

--- One epoch on; call it after the optimizer's steps of an epoch.
function LRScheduler:step()
  self.last_epoch = self.last_epoch + 1
  self:apply()
end

--- The present rates, one per group, as a list.
function LRScheduler:get_last_lr() return { unpack(self.last_lr) } end

--- All plain values; functions (LambdaLR's) are not saved.
function LRScheduler:state_dict()
  local sd = {}
  for key, value in each(self) do
    if key ~= "optimizer" and key ~= "schedulers" and type(value) ~= "function" and key ~= "lambdas" then
      sd[key] = type(value) == "table" and { unpack(value) } or value
    end
  end
  return sd
end

function LRScheduler:load_state_dict(sd)
  for key, value in each(sd) do self[key] = type(value) == "table" and { unpack(value) } or value end
  self:apply()
end

-- define(name, defaults, check, rate): a class whose options are fields. A default of M stands for "must be given".
local function define(name, defaults, verify, rate)
  local cls = class(name, LRScheduler)
  local allowed = {}
  for key in each(defaults) do allowed[#allowed + 1] = key end
  table.sort(allowed)
  allowed = table.concat(allowed, " ")
  function cls:__init(optimizer, o)
    local where = "lr_scheduler." .. name
    o = check.options(where, o, allowed)
    for key, default in each(defaults) do
      local value = o[key]
      if value == nil then value = default end
      if value == M then check.fail("%s: option '%s' is missing", where, key) end
      self[key] = value
    end
    verify(self, where)
    LRScheduler.__init(self, optimizer)
  end
  cls.rate = rate
  M[name] = cls
end

--- rate = base gamma^floor(epoch / step_size)
define("StepLR", { step_size = M, gamma = 0.1 }, function(self, where)
  check.integer(where, "step_size", self.step_size, 1)
  check.number(where, "gamma", self.gamma)
end, function(self, base, epoch) return base * self.gamma ^ math.floor(epoch / self.step_size) end)

--- rate = base gamma^(how many milestones have been reached)
define("MultiStepLR", { milestones = M, gamma = 0.1 }, function(self, where)
  for i, m in ipairs(self.milestones) do check.integer(where, ("milestones[%d]"):format(i), m, 1) end
end, function(self, base, epoch)
  local reached = 0
  for _, m in ipairs(self.milestones) do
    if epoch >= m then reached = reached + 1 end
  end
  return base * self.gamma ^ reached
end)

--- rate = base gamma^epoch
define("ExponentialLR", { gamma = M }, function(self, where) check.number(where, "gamma", self.gamma) end,
  function(self, base, epoch) return base * self.gamma ^ epoch end)

--- From base to eta_min in T_max epochs, along half a cosine (and back, Loshchilov and Hutter 2017).
define("CosineAnnealingLR", { T_max = M, eta_min = 0 }, function(self, where)
  check.integer(where, "T_max", self.T_max, 1)
  check.number(where, "eta_min", self.eta_min)
end, function(self, base, epoch)
  return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * epoch / self.T_max)) / 2
end)

--- From start_factor base to end_factor base, evenly, in total_iters epochs: warm-up.
define("LinearLR", { start_factor = 1 / 3, end_factor = 1, total_iters = 5 }, function(self, where)
  check.integer(where, "total_iters", self.total_iters, 1)
  check.number(where, "start_factor", self.start_factor, 0)
  check.number(where, "end_factor", self.end_factor, 0)
end, function(self, base, epoch)
  local share = math.min(epoch, self.total_iters) / self.total_iters
  return base * (self.start_factor + (self.end_factor - self.start_factor) * share)
end)

--- factor base for total_iters epochs, then base.
define("ConstantLR", { factor = 1 / 3, total_iters = 5 }, function(self, where)
  check.integer(where, "total_iters", self.total_iters, 0)
  check.number(where, "factor", self.factor, 0)
end, function(self, base, epoch) return epoch < self.total_iters and base * self.factor or base end)

--- rate = base lr_lambda(epoch); lr_lambda is a function or a list of them, one per group.
define("LambdaLR", { lr_lambda = M }, function(self, where)
  self.lambdas, self.lr_lambda = self.lr_lambda, nil
  if type(self.lambdas) ~= "function" and type(self.lambdas) ~= "table" then
    check.fail("%s: lr_lambda must be a function or a list of them, got %s", where, type(self.lambdas))
  end
end, function(self, base, epoch, i)
  local fn = type(self.lambdas) == "table" and self.lambdas[i] or self.lambdas
  if type(fn) ~= "function" then check.fail("lr_scheduler.LambdaLR: there is no function for group %d", i) end
  return base * fn(epoch)
end)

--- base (1 - epoch / total_iters)^power, 0 after total_iters epochs.
define("PolynomialLR", { total_iters = 5, power = 1 }, function(self, where)
  check.integer(where, "total_iters", self.total_iters, 1)
  check.number(where, "power", self.power)
end, function(self, base, epoch)
  return base * (1 - math.min(epoch, self.total_iters) / self.total_iters) ^ self.power
end)

--- Half a cosine from base to eta_min in T_0 epochs, then again in T_0 T_mult, … (Loshchilov and Hutter 2017).
define("CosineAnnealingWarmRestarts", { T_0 = M, T_mult = 1, eta_min = 0 }, function(self, where)
  check.integer(where, "T_0", self.T_0, 1)
  check.integer(where, "T_mult", self.T_mult, 1)
  check.number(where, "eta_min", self.eta_min)
end, function(self, base, epoch)
  local length, since = self.T_0, epoch
  if self.T_mult == 1 then
    since = since % length
  else
    while since >= length do since, length = since - length, length * self.T_mult end
  end
  return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * since / length)) / 2
end)

M.OneCycleLR = require("moth.optim.one_cycle")(LRScheduler)

-- ---- by what is measured -----------------------------------------------------------------------------

--- ReduceLROnPlateau(opt, { mode = "min", factor = 0.1, patience = 10, threshold = 1e-4, threshold_mode = "rel",
-- cooldown = 0, min_lr = 0, eps = 1e-8 }); sched:step(validation_loss): times factor when it has not become better for
-- more than `patience` epochs.
local Plateau = class("ReduceLROnPlateau", LRScheduler)
M.ReduceLROnPlateau = Plateau

function Plateau:__init(optimizer, o)
  local where = "lr_scheduler.ReduceLROnPlateau"
  o = check.options(where, o, "mode factor patience threshold threshold_mode cooldown min_lr eps")
  self.mode, self.factor, self.patience = o.mode or "min", o.factor or 0.1, o.patience or 10
  self.threshold, self.threshold_mode = o.threshold or 1e-4, o.threshold_mode or "rel"
  self.cooldown, self.min_lr, self.eps = o.cooldown or 0, o.min_lr or 0, o.eps or 1e-8
  if self.mode ~= "min" and self.mode ~= "max" then check.fail("%s: mode is 'min' or 'max'", where) end
  if self.threshold_mode ~= "rel" and self.threshold_mode ~= "abs" then
    check.fail("%s: threshold_mode is 'rel' or 'abs'", where)
  end
  check.number(where, "factor", self.factor, 0)
  if self.factor >= 1 then check.fail("%s: factor must be below 1, got %g", where, self.factor) end
  self.best, self.bad, self.waiting = self.mode == "min" and math.huge or -math.huge, 0, 0
  LRScheduler.__init(self, optimizer)
end

-- Kept as rates, not as a power of the factor: a group's rate may have met min_lr.
function Plateau:apply()
  self.last_lr = self.last_lr or {}
  for i, group in ipairs(self.optimizer.param_groups) do
    group.lr = self.last_lr[i] or group.lr
    self.last_lr[i] = group.lr
  end
end

--- @tparam number metric what is to become smaller (mode "min") or larger; a tensor of one element is taken, too
function Plateau:step(metric)
  if type(metric) == "userdata" then metric = metric:item() end
  check.number("ReduceLROnPlateau:step", "metric", metric == metric and metric or self.best) -- NaN is no improvement
  self.last_epoch = self.last_epoch + 1
  local sign, best = self.mode == "min" and 1 or -1, self.best
  local slack = self.threshold_mode == "rel" and self.threshold * math.abs(best) or self.threshold
  if math.abs(best) == math.huge then slack = 0 end
  if sign * metric < sign * best - slack then self.best, self.bad = metric, 0 else self.bad = self.bad + 1 end
  if self.waiting > 0 then self.waiting, self.bad = self.waiting - 1, 0 end
  if self.bad > self.patience then
    for i, lr in ipairs(self.last_lr) do
      local lower = math.max(lr * self.factor, self.min_lr)
      if lr - lower > self.eps then self.last_lr[i] = lower end
    end
    self.waiting, self.bad = self.cooldown, 0
  end
  self:apply()
end

-- ---- several in a row ------------------------------------------------------------------------------

--- { schedulers = { a, b, … }, milestones = { when b begins, … } }: each counts its epochs from 0.
local SequentialLR = class("SequentialLR", LRScheduler)
M.SequentialLR = SequentialLR

function SequentialLR:__init(optimizer, o)
  o = check.options("lr_scheduler.SequentialLR", o, "schedulers milestones")
  local list, at = o.schedulers, o.milestones
  if type(list) ~= "table" or type(at) ~= "table" or #list == 0 or #at ~= #list - 1 then
    check.fail("lr_scheduler.SequentialLR: expected n schedulers and n - 1 milestones")
  end
  for i, s in ipairs(list) do
    if s.optimizer ~= optimizer then
      check.fail("lr_scheduler.SequentialLR: scheduler %d belongs to another optimizer", i)
    end
    if i > 1 and i <= #at and at[i] <= at[i - 1] then
      check.fail("lr_scheduler.SequentialLR: the milestones must increase")
    end
  end
  self.schedulers, self.milestones = list, { unpack(at) }
  LRScheduler.__init(self, optimizer)
end

function SequentialLR:apply()
  local which, since = 1, 0
  for i, m in ipairs(self.milestones) do
    if self.last_epoch >= m then which, since = i + 1, m end
  end
  local s = self.schedulers[which]
  s.last_epoch = self.last_epoch - since
  s:apply()
  self.last_lr = s:get_last_lr()
end

function SequentialLR:state_dict()
  local sd = LRScheduler.state_dict(self)
  sd.schedulers = {}
  for i, s in ipairs(self.schedulers) do sd.schedulers[i] = s:state_dict() end
  return sd
end

function SequentialLR:load_state_dict(sd)
  for i, s in ipairs(sd.schedulers or {}) do self.schedulers[i]:load_state_dict(s) end
  local plain = {}
  for key, value in each(sd) do
    if key ~= "schedulers" then plain[key] = value end
  end
  LRScheduler.load_state_dict(self, plain)
end

return M
