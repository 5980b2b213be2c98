--- optim.swa_utils: means of a model's parameters over training (Izmailov et al. 2018), equal (SWA) or
-- exponential (EMA).
--
--     local ema = optim.swa_utils.AveragedModel(model, { multi_avg_fn = optim.swa_utils.get_ema_multi_avg_fn(0.999) })
--     for x, y in loader:iter() do …; opt:step(); ema:update_parameters(model) end
--     optim.swa_utils.update_bn(loader, ema)          -- if the model has batch norms and use_buffers is false
--     local scores = ema(x)
local B = require "moth_lua"
local moth = require "moth"
local nn = require "moth.nn"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local Optimizer = require "moth.optim.optimizer"
local LRScheduler = require("moth.optim.lr_scheduler").LRScheduler

local M = {}

-- mean = mean + share (new - mean), of lists of tensors; integers are truncated.
local function approach(means, new, share)
  for i, mean in ipairs(means) do
    if B.tensor_dtype(mean).is_floating_point then
      mean:lerp_(new[i]:to(mean:dtype()), share)
    else
      mean:copy_(mean + (new[i] - mean) * share)
    end
  end
end

--- A function for AveragedModel's multi_avg_fn: mean = decay mean + (1 - decay) parameter.
M.get_ema_multi_avg_fn = signature("optim.swa_utils.get_ema_multi_avg_fn(number decay=0.999)", function(decay)
  if not (decay >= 0 and decay <= 1) then
    check.fail("[optim.swa_utils.get_ema_multi_avg_fn] decay must be between 0 and 1, got %g", decay)
  end
  return function(means, new) approach(means, new, 1 - decay) end
end)
--- The same for one tensor, for avg_fn.
M.get_ema_avg_fn = signature("optim.swa_utils.get_ema_avg_fn(number decay=0.999)", function(decay)
  if not (decay >= 0 and decay <= 1) then
    check.fail("[optim.swa_utils.get_ema_avg_fn] decay must be between 0 and 1, got %g", decay)
  end
  return function(mean, new) return mean * decay + new * (1 - decay) end
end)
--- A function for multi_avg_fn: the mean of all parameters so far.
M.get_swa_multi_avg_fn = signature("optim.swa_utils.get_swa_multi_avg_fn()", function()
  return function(means, new, n) approach(means, new, 1 / (n + 1)) end
end)
--- The same for one tensor, for avg_fn.
M.get_swa_avg_fn = signature("optim.swa_utils.get_swa_avg_fn()", function()
  return function(mean, new, n) return mean + (new - mean) / (n + 1) end
end)

--- A copy of a model, `module`, whose parameters are means of the model's; calls of it call the copy.
-- Arguments: model, device = nil (where the copy is), avg_fn = nil (a function of mean, parameter and the number of
-- those so far, that returns the new mean), multi_avg_fn = nil (of lists of them, in place), use_buffers = false (true:
-- means of buffers too, so that batch norms need no update_bn)
local AveragedModel = nn.class("AveragedModel")
M.AveragedModel = AveragedModel

AveragedModel.__init = signature.init("optim.swa_utils.AveragedModel(Module model, device device?, function avg_fn?, \z
  function multi_avg_fn?, bool use_buffers=false)", function(self, o)
  if o.avg_fn and o.multi_avg_fn then
    check.fail("[optim.swa_utils.AveragedModel] give avg_fn or multi_avg_fn, not both")
  end
  self.module = o.model:clone()
  if o.device then self.module:to(o.device) end
  self.module:requires_grad_(false)
  local device = self.module:parameters()[1]
  self:register_buffer("n_averaged", moth.zeros({}, { dtype = moth.int64, device = device and device:device() }))
  self.count, self.avg_fn, self.use_buffers = 0, o.avg_fn, o.use_buffers
  self.multi_avg_fn = o.multi_avg_fn or not o.avg_fn and M.get_swa_multi_avg_fn()
end)

function AveragedModel:forward(...) return self.module(...) end

-- like: the tensors of the copy, of which those of a model that is cut over ranks may be parts, or whole ones.
local function tensors_of(self, model, like)
  local list, placement = {}, package.loaded["moth.distributed.placement"]
  for i, p in ipairs(model:parameters()) do
    local to = like and like[i]
    if placement and to and tostring(to:size()) ~= tostring(p:size()) then
      list[i] = placement.of(p) and placement.full_tensor(p) or placement.fitted(p:detach(), to)
    else
      list[i] = p:detach()
    end
  end
  if self.use_buffers then
    for _, b in ipairs(model:buffers()) do list[#list + 1] = b:detach() end
  end
  return list
end

--- Takes the parameters of the model into the means; those of the first call are copied.
function AveragedModel:update_parameters(model)
  if class.name(model) == "nil" or type(model) ~= "table" or not model.__module then
    check.fail("[optim.swa_utils.AveragedModel] update_parameters: expected a module, got %s", class.name(model))
  end
  local means, new = tensors_of(self, self.module), tensors_of(self, model, self.module:parameters())
  for i, mean in ipairs(means) do -- nothing is broadcast
    if new[i] and tostring(new[i]:size()) ~= tostring(mean:size()) then
      check.fail("[optim.swa_utils.AveragedModel] update_parameters: tensor %d of the model is %s, that of the copy %s",
        i, tostring(new[i]:size()), tostring(mean:size()))
    end
  end
  if #means ~= #new then
    check.fail("[optim.swa_utils.AveragedModel] update_parameters: the model has %d tensors, the copy %d", #new, #means)
  end
  moth.no_grad(function()
    for i, t in ipairs(new) do
      if B.tensor_device(t) ~= B.tensor_device(means[i]) then new[i] = t:to { device = means[i]:device() } end
    end
    local n = self.n_averaged:item()
    if n == 0 then
      for i, mean in ipairs(means) do mean:copy_(new[i]) end
    elseif self.multi_avg_fn then
      self.multi_avg_fn(means, new, n)
    else
      for i, mean in ipairs(means) do mean:copy_(self.avg_fn(mean, new[i], n)) end
    end
    if not self.use_buffers then -- those of the last model, as in PyTorch
      local theirs = model:buffers()
      for i, b in ipairs(self.module:buffers()) do b:copy_(theirs[i]) end
    end
    self.n_averaged:add_(1)
  end)
end

local update = signature("optim.swa_utils.update_bn(any loader, Module model, device device?)", function(...)
  return ...
end)

--- Makes the running statistics of a model's batch norms anew from the inputs of a loader, batches with equal weight.
-- A batch is the inputs, or a list whose first is.
function M.update_bn(...)
  local loader, model, device = update(...)
  local norms = {}
  for _, m in model:named_modules() do
    if m.track_running_stats and m.num_batches_tracked ~= nil then norms[#norms + 1] = m end
  end
  if #norms == 0 then return end
  local training, momenta = model.training, {}
  for i, m in ipairs(norms) do
    momenta[i], m.momentum = m.momentum, false -- the mean of all batches
    moth.no_grad(function()
      m.running_mean:zero_()
      m.running_var:fill_(1)
      m.num_batches_tracked:zero_()
    end)
  end
  model:train()
  moth.no_grad(function()
    for batch in loader:iter() do
      local x = batch
      if type(batch) == "table" and not B.is_tensor(batch) then x = batch[1] end
      model(device and x:to { device = device } or x)
    end
  end)
  for i, m in ipairs(norms) do m.momentum = momenta[i] end
  model:train(training)
end

local anneal = {
  cos = function(t) return (1 - math.cos(math.pi * t)) / 2 end,
  linear = function(t) return t end,
}

--- Moves each group's rate from the one it has to swa_lr in anneal_epochs steps, and keeps it there.
-- Arguments: optimizer, swa_lr (a number, or one for each group), anneal_epochs = 10, anneal_strategy = "cos" or
-- "linear"
local SWALR = class("SWALR", LRScheduler)
M.SWALR = SWALR

SWALR.__init = signature.init("optim.swa_utils.SWALR(Optimizer optimizer, number|number[] swa_lr, \z
  size anneal_epochs=10, 'cos'|'linear' anneal_strategy='cos', int last_epoch=-1)", function(self, o)
  local of_group = require "moth.optim.of_group"
  of_group.check("[optim.swa_utils.SWALR]", "swa_lr", o.swa_lr, o.optimizer.param_groups)
  for key, value in each(o) do self[key] = value end
  for i, group in ipairs(o.optimizer.param_groups) do group.swa_lr = of_group.value(o.swa_lr, i) end
  LRScheduler.__init(self, o.optimizer, o.last_epoch)
end)

-- From the rate that is there, which another schedule may have set since.
function SWALR:apply()
  self.last_lr = {}
  local step, length, curve = self.last_epoch, self.anneal_epochs, anneal[self.anneal_strategy]
  if length == 0 then step = math.max(1, step) end
  local function share(k) return curve(math.max(0, math.min(1, k / math.max(1, length)))) end
  local before, now = share(step - 1), share(step)
  for i, group in ipairs(self.optimizer.param_groups) do
    local lr, target = Optimizer.get_lr(group), group.swa_lr
    local first = before < 1 and (lr - before * target) / (1 - before) or target
    self.last_lr[i] = target * now + first * (1 - now)
    Optimizer.set_lr(group, self.last_lr[i])
  end
end

--- Goes on from a state: the rates are those of the optimizer's own state.
function SWALR:load_state_dict(sd)
  local apply = SWALR.apply
  self.apply = function() end
  local ok, err = pcall(LRScheduler.load_state_dict, self, sd)
  self.apply = apply
  if not ok then error(err, 0) end
  self.apply = nil
end

return M
