--- optim.lr_scheduler: learning rates by epoch.
--
--     local sched = optim.lr_scheduler.StepLR(opt, 5, 0.1)        -- or: StepLR(opt, { step_size = 5 })
--     for epoch = 1, 10 do train(); sched:step() end      -- epochs 1-5: lr, 6-10: lr / 10
--
-- A schedule computes the rate from a group's first rate (initial_lr) and the number of steps in closed form, so that
-- a loaded schedule continues to the bit. SequentialLR runs several in turn.
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local hints = require "moth.lang.hints"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local Optimizer = require "moth.optim.optimizer"

local M = {}

local LRScheduler = class("LRScheduler")
M.LRScheduler = LRScheduler

-- last_epoch: of a schedule that is continued, -1 of a new one.
function LRScheduler:__init(optimizer, last_epoch)
  if type(optimizer) ~= "table" or type(optimizer.param_groups) ~= "table" then
    check.fail("[lr_scheduler.%s] expected an optimizer, got %s", self.__name, class.name(optimizer))
  end
  local where = ("[lr_scheduler.%s]"):format(self.__name)
  if type(last_epoch) == "table" then last_epoch = check.options(where, last_epoch, "last_epoch").last_epoch end
  last_epoch = last_epoch == nil and -1 or check.integer(where, "last_epoch", last_epoch, -1)
  self.optimizer, self.base_lrs, self.last_epoch = optimizer, {}, last_epoch + 1
  for i, group in ipairs(optimizer.param_groups) do
    if last_epoch >= 0 and not group.initial_lr then
      check.fail("[lr_scheduler.%s] group %d has no initial_lr, which last_epoch = %d needs: load the optimizer's \z
        state_dict first, or load this schedule's instead of giving last_epoch", self.__name, i, last_epoch)
    end
    group.initial_lr = group.initial_lr or Optimizer.get_lr(group)
    self.base_lrs[i] = group.initial_lr
  end
  self:apply()
end

--- rate(base, epoch, i): the learning rate of group i, which began with `base`, after `epoch` steps. Subclasses
-- override it.
function LRScheduler:rate()
  check.fail("[lr_scheduler.%s] has no rate(base, epoch): write one in a subclass, or take one of the schedules here",
    self.__name)
end

--- chain(lr, epoch, i): the rate of group i after step `epoch`, from the one before it, `lr`, which other schedules
-- have changed as well (ChainedScheduler).
function LRScheduler:chain(lr, epoch, i)
  local base = self.base_lrs[i]
  local before = self:rate(base, epoch - 1, i)
  return before ~= 0 and lr * (self:rate(base, epoch, i) / before) or self:rate(base, epoch, i)
end

-- Sets the optimizer's rates for the current epoch.
function LRScheduler:apply()
  self.last_lr = {}
  for i, group in ipairs(self.optimizer.param_groups) do
    if not self.base_lrs[i] then -- a group that was added later
      group.initial_lr = group.initial_lr or Optimizer.get_lr(group)
      self.base_lrs[i] = group.initial_lr
    end
    self.last_lr[i] = self:rate(self.base_lrs[i], self.last_epoch, i)
    Optimizer.set_lr(group, self.last_lr[i])
  end
end

local begun = setmetatable({}, { __mode = "k" }) -- schedules that were stepped or loaded

-- The first step of a schedule comes after one of its optimizer.
local function check_order(self)
  if begun[self] then return end
  begun[self] = true
  local optimizer = self.optimizer
  if class.is_a(optimizer, Optimizer) and not optimizer:was_stepped() then
    check.warn("[lr_scheduler.%s] step was called before the optimizer's step: the first value of the schedule is \z
      skipped; call opt:step() before sched:step()", self.__name)
  end
end

--- Advances by one epoch; call it after the optimizer's steps of an epoch.
function LRScheduler:step(...)
  if self == nil then hints.need_self(self, "sched:step()") end
  if (...) ~= nil then check.fail("[lr_scheduler.%s] step takes no arguments", self.__name) end
  check_order(self)
  self.last_epoch = self.last_epoch + 1
  self:apply()
end

--- The current rates, one per group, as a list.
function LRScheduler:get_last_lr() return { unpack(self.last_lr) } end

--- The rates that the current epoch has, one per group.
function LRScheduler:get_lr() return self:get_last_lr() end

local unsaved = { optimizer = true, schedulers = true, lambdas = true, products = true }

--- All plain values; functions (of LambdaLR) are not saved.
function LRScheduler:state_dict()
  local sd = {}
  for key, value in each(self) do
    if not unsaved[key] and type(value) ~= "function" then
      sd[key] = type(value) == "table" and { unpack(value) } or value
    end
  end
  return sd
end

-- What a state dict of PyTorch says, under moth's names: options that this schedule has, too, and how far it is.
local function of_pytorch(self, sd)
  local first = sd._schedulers and sd._schedulers[1] -- a chain counts in its parts alone
  local own = { base_lrs = sd.base_lrs or self.base_lrs, last_epoch = sd.last_epoch or first and first.last_epoch,
    last_lr = sd._last_lr, bad = sd.num_bad_epochs, waiting = sd.cooldown_counter, min_lr = sd.min_lrs,
    schedulers = sd._schedulers, milestones = sd._milestones }
  for key, value in each(sd) do
    if own[key] == nil and type(value) == type(rawget(self, key)) and type(value) ~= "table" then own[key] = value end
  end
  if type(sd.milestones) == "table" then -- how often each of them comes
    own.milestones = {}
    for at, times in each(sd.milestones) do
      for _ = 1, times do table.insert(own.milestones, tonumber(at)) end
    end
    table.sort(own.milestones)
  end
  return own
end

--- The state of a schedule of the same kind: moth's, or one of PyTorch's that torch.save wrote.
function LRScheduler:load_state_dict(sd)
  if type(sd) == "table" and sd._last_lr then sd = of_pytorch(self, sd) end
  if type(sd) ~= "table" or type(sd.base_lrs) ~= "table" or type(sd.last_epoch) ~= "number" then
    check.fail("[lr_scheduler.%s] load_state_dict: expected what state_dict gave, got %s", self.__name, class.name(sd))
  end
  begun[self] = true
  for key, value in each(sd) do self[key] = type(value) == "table" and { unpack(value) } or value end
  self:apply()
end

signature.type("Optimizer", function(v) return type(v) == "table" and type(rawget(v, "param_groups")) == "table" end,
  "an optimizer")

-- A class whose parameters, in PyTorch's order, become fields; verify(self) checks them.
local function define(name, parameters, rate, verify, chain)
  local cls = class(name, LRScheduler)
  local text = ("lr_scheduler.%s(Optimizer optimizer, %s, int last_epoch=-1)"):format(name, parameters)
  cls.__init = signature.init(text, function(self, o)
    for key, value in each(o) do self[key] = value end
    if verify then verify(self) end
    LRScheduler.__init(self, o.optimizer, o.last_epoch)
  end)
  cls.rate, cls.chain = rate, chain or cls.chain
  M[name] = cls
end

--- rate = base gamma^floor(epoch / step_size)
define("StepLR", "count step_size, number gamma=0.1", function(self, base, epoch)
  return base * self.gamma ^ math.floor(epoch / self.step_size)
end)

--- rate = base gamma^(number of milestones reached)
define("MultiStepLR", "count[] milestones, number gamma=0.1", function(self, base, epoch)
  local reached = 0
  for _, m in ipairs(self.milestones) do
    if epoch >= m then reached = reached + 1 end
  end
  return base * self.gamma ^ reached
end)

--- rate = base gamma^epoch
define("ExponentialLR", "number gamma", function(self, base, epoch) return base * self.gamma ^ epoch end)

--- From base to eta_min in T_max epochs, along half a cosine (and back, Loshchilov and Hutter 2017).
define("CosineAnnealingLR", "count T_max, number eta_min=0", function(self, base, epoch)
  return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * epoch / self.T_max)) / 2
end, nil, function(self, lr, epoch, i)
  local pi, T, low = math.pi, self.T_max, self.eta_min
  if (epoch - 1 - T) % (2 * T) == 0 then return lr + (self.base_lrs[i] - low) * (1 - math.cos(pi / T)) / 2 end
  return (1 + math.cos(pi * epoch / T)) / (1 + math.cos(pi * (epoch - 1) / T)) * (lr - low) + low
end)

--- From start_factor base to end_factor base, evenly, in total_iters epochs: warm-up.
define("LinearLR", "number start_factor=0.33333333333333333, number end_factor=1, count total_iters=5",
  function(self, base, epoch)
    local share = math.min(epoch, self.total_iters) / self.total_iters
    return base * (self.start_factor + (self.end_factor - self.start_factor) * share)
  end, function(self)
    check.number("lr_scheduler.LinearLR", "start_factor", self.start_factor, 0)
    check.number("lr_scheduler.LinearLR", "end_factor", self.end_factor, 0)
  end)

--- factor base for total_iters epochs, then base.
define("ConstantLR", "number factor=0.33333333333333333, size total_iters=5", function(self, base, epoch)
  return epoch < self.total_iters and base * self.factor or base
end, function(self) check.number("lr_scheduler.ConstantLR", "factor", self.factor, 0) end)

-- The rate of a schedule that does not look at what others have made of it.
local function absolute(self, _, epoch, i) return self:rate(self.base_lrs[i], epoch, i) end

--- rate = base lr_lambda(epoch); lr_lambda is a function or a list of them, one per group.
define("LambdaLR", "function|list lr_lambda", function(self, base, epoch, i)
  local fn = type(self.lambdas) == "table" and self.lambdas[i] or self.lambdas
  if type(fn) ~= "function" then check.fail("[lr_scheduler.LambdaLR] there is no function for group %d", i) end
  local factor = fn(epoch)
  if type(factor) ~= "number" then
    check.fail("[lr_scheduler.LambdaLR] lr_lambda must return a number, got %s for epoch %d", type(factor), epoch)
  end
  return base * factor
end, function(self) self.lambdas, self.lr_lambda = self.lr_lambda, nil end, absolute)

--- rate = base lr_lambda(1) lr_lambda(2) … lr_lambda(epoch); lr_lambda as for LambdaLR.
define("MultiplicativeLR", "function|list lr_lambda", function(self, base, epoch, i)
  local fn = type(self.lambdas) == "table" and self.lambdas[i] or self.lambdas
  if type(fn) ~= "function" then check.fail("[lr_scheduler.MultiplicativeLR] there is no function for group %d", i) end
  local products = self.products[i] or { [0] = 1 }
  self.products[i] = products
  for k = #products + 1, epoch do
    local factor = fn(k)
    if type(factor) ~= "number" then
      check.fail("[lr_scheduler.MultiplicativeLR] lr_lambda must return a number, got %s for epoch %d", type(factor), k)
    end
    products[k] = products[k - 1] * factor
  end
  return base * products[epoch]
end, function(self) self.lambdas, self.lr_lambda, self.products = self.lr_lambda, nil, {} end)

--- base (1 - epoch / total_iters)^power, 0 after total_iters epochs.
define("PolynomialLR", "count total_iters=5, number power=1", function(self, base, epoch)
  return base * (1 - math.min(epoch, self.total_iters) / self.total_iters) ^ self.power
end)

--- Half a cosine from base to eta_min in T_0 epochs, then again in T_0 T_mult, … (Loshchilov and Hutter 2017).
define("CosineAnnealingWarmRestarts", "count T_0, count T_mult=1, number eta_min=0", function(self, base, epoch)
  local length, since = self.T_0, epoch
  if self.T_mult == 1 then
    since = since % length
  else
    while since >= length do since, length = since - length, length * self.T_mult end
  end
  return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * since / length)) / 2
end, nil, absolute)

for _, file in ipairs { "one_cycle", "cyclic" } do
  local cls = require("moth.optim." .. file)(LRScheduler)
  cls.chain = absolute
  M[cls.__name] = cls
end

-- ---- by a metric -------------------------------------------------------------------------------------

--- sched:step(validation_loss): multiplies the rate by factor after more than `patience` epochs without improvement.
local Plateau = class("ReduceLROnPlateau", LRScheduler)
M.ReduceLROnPlateau = Plateau

Plateau.__init = signature.init("lr_scheduler.ReduceLROnPlateau(Optimizer optimizer, 'min'|'max' mode='min', \z
  number factor=0.1, size patience=10, number threshold=1e-4, 'rel'|'abs' threshold_mode='rel', size cooldown=0, \z
  number|number[] min_lr=0, number eps=1e-8)", function(self, o)
  local groups, min_lr = #o.optimizer.param_groups, o.min_lr
  if not (o.factor >= 0 and o.factor < 1) then
    check.fail("[lr_scheduler.ReduceLROnPlateau] factor must be at least 0 and below 1, got %g", o.factor)
  end
  if type(min_lr) == "table" and #min_lr ~= groups then
    check.fail("[lr_scheduler.ReduceLROnPlateau] min_lr has %d numbers for %d groups", #min_lr, groups)
  end
  for key, value in each(o) do self[key] = value end
  self.best, self.bad, self.waiting = self.mode == "min" and math.huge or -math.huge, 0, 0
  LRScheduler.__init(self, o.optimizer)
end)

-- Stores rates, not a power of the factor: a group's rate may have been clamped at min_lr.
function Plateau:apply()
  self.last_lr = self.last_lr or {}
  for i, group in ipairs(self.optimizer.param_groups) do
    self.last_lr[i] = self.last_lr[i] or Optimizer.get_lr(group)
    Optimizer.set_lr(group, self.last_lr[i])
  end
end

--- @tparam number metric the value to minimise (mode "min") or maximise; a number or a tensor of one element
function Plateau:step(metric, ...)
  if select("#", ...) > 0 then check.fail("[lr_scheduler.ReduceLROnPlateau] step takes one argument, the metric") end
  if B.is_tensor(metric) then metric = metric:item() end
  if type(metric) ~= "number" then -- NaN is one, and no improvement
    check.fail("ReduceLROnPlateau:step: metric must be a number, got %s", metric == nil and "nil" or type(metric))
  end
  self.last_epoch = self.last_epoch + 1
  local sign, best = self.mode == "min" and 1 or -1, self.best
  local slack = self.threshold_mode == "rel" and self.threshold * math.abs(best) or self.threshold
  if math.abs(best) == math.huge then slack = 0 end
  if sign * metric < sign * best - slack then self.best, self.bad = metric, 0 else self.bad = self.bad + 1 end
  if self.waiting > 0 then self.waiting, self.bad = self.waiting - 1, 0 end
  if self.bad > self.patience then
    local least = self.min_lr
    for i, lr in ipairs(self.last_lr) do
      local lower = math.max(lr * self.factor, type(least) == "table" and least[i] or least)
      if lr - lower > self.eps then self.last_lr[i] = lower end
    end
    self.waiting, self.bad = self.cooldown, 0
  end
  self:apply()
end

-- ---- sequences -------------------------------------------------------------------------------------

--- SequentialLR(opt, { a, b, … }, { first epoch of b, … }): each counts its epochs from 0.
local SequentialLR = class("SequentialLR", LRScheduler)
M.SequentialLR = SequentialLR

SequentialLR.__init = signature.init("lr_scheduler.SequentialLR(Optimizer optimizer, list schedulers, \z
  count[] milestones)", function(self, o)
  local list, at = o.schedulers, o.milestones
  if #list == 0 or #at ~= #list - 1 then
    check.fail("[lr_scheduler.SequentialLR] expected n schedulers and n - 1 milestones, got %d and %d", #list, #at)
  end
  for i, s in ipairs(list) do
    if type(s) ~= "table" or s.optimizer ~= o.optimizer then
      check.fail("[lr_scheduler.SequentialLR] scheduler %d belongs to another optimizer", i)
    end
    if i > 1 and i <= #at and at[i] <= at[i - 1] then
      check.fail("[lr_scheduler.SequentialLR] the milestones must increase")
    end
  end
  self.schedulers, self.milestones = list, { unpack(at) }
  LRScheduler.__init(self, o.optimizer)
end)

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

--- ChainedScheduler({ a, b, … }): each step is one of all schedules, of which each changes what the ones before it have
-- made of the rate. All of one optimizer.
local Chained = class("ChainedScheduler", LRScheduler)
M.ChainedScheduler = Chained

Chained.__init = signature.init("lr_scheduler.ChainedScheduler(list schedulers, Optimizer optimizer?)",
  function(self, o)
    local list = o.schedulers
    if #list == 0 then check.fail("[lr_scheduler.ChainedScheduler] expected at least one scheduler") end
    local optimizer = o.optimizer or type(list[1]) == "table" and list[1].optimizer
    for i, s in ipairs(list) do
      if type(s) ~= "table" or s.optimizer == nil or s.optimizer ~= optimizer then
        check.fail("[lr_scheduler.ChainedScheduler] scheduler %d belongs to another optimizer", i)
      end
      if not s.chain or s.schedulers or class.is_a(s, Plateau) then
        check.fail("[lr_scheduler.ChainedScheduler] a %s cannot be chained", s.__name)
      end
    end
    self.schedulers = list
    LRScheduler.__init(self, optimizer)
  end)

-- At the beginning the product of what all schedules make of the first rate; else from the rate that is there.
function Chained:apply()
  self.last_lr = self.last_lr or {}
  for i, group in ipairs(self.optimizer.param_groups) do
    local base = self.base_lrs[i]
    local lr = self.last_epoch == 0 and base or self.moved and self.last_lr[i] or Optimizer.get_lr(group)
    for _, s in ipairs(self.moved and {} or self.schedulers) do
      if self.last_epoch == 0 then
        lr = base == 0 and 0 or lr * (s:rate(base, 0, i) / base)
      else
        lr = s:chain(lr, self.last_epoch, i)
      end
      s.last_epoch = self.last_epoch
    end
    self.last_lr[i] = lr
    Optimizer.set_lr(group, lr)
  end
end

-- The schedules' states beside their own.
for _, cls in ipairs { SequentialLR, Chained } do
  function cls:state_dict()
    local sd = LRScheduler.state_dict(self)
    sd.schedulers = {}
    for i, s in ipairs(self.schedulers) do sd.schedulers[i] = s:state_dict() end
    return sd
  end

  function cls:load_state_dict(sd)
    if type(sd) == "table" and sd._last_lr then sd = of_pytorch(self, sd) end
    for i, s in ipairs(type(sd) == "table" and sd.schedulers or {}) do self.schedulers[i]:load_state_dict(s) end
    local plain = sd
    if type(sd) == "table" then
      plain = {}
      for key, value in each(sd) do
        if key ~= "schedulers" then plain[key] = value end
      end
    end
    self.moved = true -- rates are those of the state, not a step from those that are there
    LRScheduler.load_state_dict(self, plain)
    self.moved = nil
  end
end

return M
