--- train.Trainer: the loop over epochs and batches, and its state. What is written, shown and decided beside it are
-- callbacks (callbacks.lua).
--
-- step(net, …): the loss of a batch, and what metrics take (outputs and targets); by default of batches (x, y) it is
-- loss(net(x), y). One optimizer step is made of `accumulate` batches, whose gradients are averaged. amp: bfloat16
-- (true) or a dtype; float16 is scaled. ema: the decay of a mean of the weights, with which validation runs. ddp:
-- gradients are averaged over the ranks of `moth run`; each rank gets its share of the loaders.
local amp = require "moth.amp"
local batches = require "moth.train.batches"
local B = require "moth_lua"
local callbacks = require "moth.train.callbacks"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local metrics = require "moth.metrics"
local moth = require "moth"
local nn = require "moth.nn"
local optim = require "moth.optim"
require "moth.optim.lr_scheduler" -- the type Optimizer of signatures
local signature = require "moth.utils.signature"

local VERSION = 1 -- of the state

local Trainer = class("Trainer")

--- All options are fields of the trainer. loss: of (output, target), or step: a function of (net, batch…). scheduler:
-- its step is called after each epoch, or each optimizer step (scheduler_every = "step"). clip_norm, clip_value: of the
-- gradients. device: batches go there; move the model yourself. folder: for checkpoints, logs and run.json; monitor,
-- mode, keep_best: of which epochs are kept; save_every: optimizer steps between two saves of last.moth beside those
-- after epochs. resume: true (from folder's last.moth, if there is one) or a path. preempt: save and end when told to.
-- config: plain values for run.json.
Trainer.__init = signature.init("train.Trainer(Module model, Optimizer optimizer, *, callable loss?, function step?, \z
  table metrics?, table scheduler?, 'epoch'|'step' scheduler_every='epoch', count max_epochs?, count max_steps?, \z
  count accumulate=1, number clip_norm?, number clip_value?, bool|dtype amp=false, number ema?, bool compile=false, \z
  bool ddp=false, device device?, table callbacks?, table loggers?, path folder?, table config?, string monitor?, \z
  'min'|'max' mode='min', size keep_best=1, count save_every?, count log_every=50, count validate_every=1, \z
  bool|path resume=false, bool preempt=false, bool progress=true)", function(self, o)
  for key, value in each(o) do self[key] = value end
  if not (o.loss or o.step) or o.loss and o.step then
    check.fail("[train.Trainer] give loss, a function of (output, target), or step, a function of (net, batch…)")
  end
  self.max_epochs = o.max_epochs or o.max_steps and math.huge or 1
  for name, m in each(o.metrics or {}) do
    if type(m) ~= "table" or not (m.reset and m.update and m.compute) then
      check.fail("[train.Trainer] metrics: expected a table of metrics by name, { acc = metrics.Accuracy(…) }; \z
        %s is a %s", tostring(name), class.name(m))
    end
  end
  self.step = o.step or function(net, x, y)
    local out = net(x)
    return self.loss(out, y), out, y
  end
  if o.amp then
    self.amp = o.amp == true and moth.bfloat16 or B.dtype(o.amp)
    if self.amp == moth.float16 then self.scaler = amp.GradScaler() end
  end
  if o.ema then
    local average = optim.swa_utils.get_ema_multi_avg_fn(o.ema)
    self.averaged = optim.swa_utils.AveragedModel(o.model, { multi_avg_fn = average, use_buffers = true })
  end
  -- epoch: the current one, from 1; batch: batches of it that are done; steps: of the optimizer, of all epochs.
  self.epoch, self.batch, self.steps, self.logs = 0, 0, 0, {}
  self.callbacks = callbacks.of(self, o)
end)

-- ---- parts --------------------------------------------------------------------------------------------

-- Calls a method of all callbacks that have it: classes of callbacks.lua, or plain tables of functions.
local function tell(self, name, ...)
  for _, c in ipairs(self.callbacks) do if c[name] then c[name](c, self, ...) end end
end

local function rank() return moth.distributed.is_initialized() and moth.distributed.get_rank() or 0 end
--- Whether this process writes files and progress: rank 0.
function Trainer:is_main() return self.ddp == false or rank() == 0 end -- luacheck: ignore self

-- The module that is trained: the model, or what averages its gradients, compiled if asked for.
local function prepared(self)
  if self.net then return end
  self.net = self.model
  if self.ddp then
    if not moth.distributed.is_initialized() then moth.distributed.init_process_group() end
    self.wrapped = nn.parallel.DistributedDataParallel(self.model)
    self.net = self.wrapped
  end
  if self.compile then self.net = moth.compile(self.net) end
end

--- The step of one batch with a module, on the device and in the dtype of amp: the loss, and what step gave behind it.
function Trainer:run(net, ...)
  local n, values = select("#", ...), { ... }
  if self.device then for i = 1, n do values[i] = batches.to_device(values[i], self.device) end end
  if not self.amp then return self.step(net, unpack(values, 1, n)) end
  return amp.autocast({ dtype = self.amp }, function() return self.step(net, unpack(values, 1, n)) end)
end

local function checked(loss)
  if not B.is_tensor(loss) or loss:numel() ~= 1 then
    check.fail("[train.Trainer] the loss must be a tensor of one element, got %s",
      B.is_tensor(loss) and "[" .. table.concat(loss.shape, ", ") .. "]" or class.name(loss))
  end
  return loss
end

-- What fit and validate take: it gives batches again for each epoch.
local function expect_loader(loader)
  if (type(loader) ~= "table" and type(loader) ~= "userdata") or not loader.iter then
    check.fail("[train.Trainer] expected a loader, such as a data.DataLoader, got %s", class.name(loader))
  end
  return loader
end

-- The samples of a batch, as which its loss counts in a mean: of its first tensor, else 1.
local function samples(first)
  return B.is_tensor(first) and first:dim() > 0 and first:size(1) or 1
end

-- ---- training -----------------------------------------------------------------------------------------

local function backward(self, loss, is_last)
  loss = self.scaler and self.scaler:scale(loss) or loss
  if self.wrapped and not is_last then
    self.wrapped:no_sync(function() loss:backward() end)
  else
    loss:backward()
  end
end

local function update(self)
  local opt, scaler = self.optimizer, self.scaler
  if self.clip_norm or self.clip_value then
    if scaler then scaler:unscale_(opt) end
    local parameters = self.model:parameters()
    if self.clip_value then nn.utils.clip_grad_value_(parameters, self.clip_value) end
    if self.clip_norm then self.grad_norm = nn.utils.clip_grad_norm_(parameters, self.clip_norm) end
  end
  if scaler then
    scaler:step(opt)
    scaler:update()
  else
    opt:step()
  end
  opt:zero_grad()
  if self.averaged then self.averaged:update_parameters(self.model) end
  self.steps = self.steps + 1
  if self.scheduler and self.scheduler_every == "step" then self.scheduler:step() end
  tell(self, "on_step")
end

local function is_done(self) return self.stopped or self.max_steps and self.steps >= self.max_steps end

-- The rest of an epoch, from batch self.batch + 1 on.
local function train_epoch(self, loader, size)
  self.net:train()
  local group = self.accumulate
  local function one(...)
    local left = size and size - self.batch -- this one included
    local at = self.batch % group
    local whole = size and math.min(group, left + at) or group -- batches of this step
    local loss = checked((self:run(self.net, ...)))
    backward(self, whole > 1 and loss / whole or loss, at + 1 == whole)
    self.batch = self.batch + 1
    self.loss_mean:update(loss:detach(), samples((...)))
    tell(self, "on_batch", loss)
    self.pending = at + 1 < whole
    if not self.pending then update(self) end
  end
  local iterator = loader:iter()
  local function go(...)
    self.exhausted = (...) == nil
    if self.exhausted then return false end
    one(...)
    return true
  end
  while not is_done(self) and go(iterator()) do end -- luacheck: ignore
  if self.pending then -- of a loader without size
    self.pending = false
    update(self)
  end
end

local function scheduled(self)
  local s = self.scheduler
  if not s or self.scheduler_every ~= "epoch" then return end
  if class.name(s) == "ReduceLROnPlateau" then
    local value = self.logs[self.monitor or "val_loss"] or self.logs.train_loss
    return s:step(value)
  end
  s:step()
end

--- Trains to the end of max_epochs or max_steps. Loaders give batches for step; a table of named tensors is a batch of
-- one value. Returns the figures of the last epoch.
Trainer.fit = signature.method("Trainer.fit(any loader, any val_loader?)", function(self, loader, val_loader)
  expect_loader(loader)
  if val_loader then expect_loader(val_loader) end
  prepared(self)
  loader, val_loader = batches.shared(self, loader, true), batches.shared(self, val_loader)
  local has_size, size = pcall(function() return loader:size() end)
  size = has_size and size or nil
  if self.ddp and self.accumulate > 1 and not size then
    check.fail("[train.Trainer] accumulate with ddp needs a loader whose size is known")
  end
  self.loader, self.loss_mean = loader, metrics.MeanMetric { sync_on_compute = self.ddp, nan_strategy = "disable" }
  self.optimizer:zero_grad()
  tell(self, "on_setup")
  if self.resume then self:load(self.resume) end
  tell(self, "on_fit_start")
  local ok, message = pcall(function()
    while not is_done(self) and (self.in_epoch or self.epoch < self.max_epochs) do
      if not self.in_epoch then
        self.epoch, self.batch, self.in_epoch = self.epoch + 1, 0, true
        self.loss_mean:reset()
        local order = loader.order
        if order and order.set_epoch then order:set_epoch(self.epoch) end
      end
      tell(self, "on_epoch_start", size)
      train_epoch(self, loader, size)
      if self.batch == 0 and not self.stopped then
        check.fail("[train.Trainer] the loader gave no batch%s", loader.drop_last and
          "; with drop_last an epoch of less than batch_size samples has none" or "")
      end
      -- max_steps may end it within an epoch, which a run with more steps then goes on with.
      self.in_epoch = is_done(self) and not self.exhausted and self.batch ~= size
      local rng = self.in_epoch and moth.get_rng_state()
      self.logs = { train_loss = self.loss_mean:compute():item() }
      if val_loader and (self.epoch % self.validate_every == 0 or is_done(self)) then
        for key, value in each(self:validate(val_loader)) do self.logs[key] = value end
      end
      if rng then moth.set_rng_state(rng) else scheduled(self) end
      tell(self, "on_epoch", self.logs)
    end
  end)
  tell(self, "on_fit_end", ok)
  if not ok then error(message, 0) end
  return self.logs
end)

--- The mean loss and the metrics of a loader, of all ranks: { val_loss = …, val_<name> = … }, numbers or lists. It runs
-- without gradients, with the averaged weights if there are.
Trainer.validate = signature.method("Trainer.validate(any loader)", function(self, loader)
  expect_loader(loader)
  prepared(self)
  local net, training = self.averaged and self.steps > 0 and self.averaged or self.model, self.model.training
  local mean, out = metrics.MeanMetric { sync_on_compute = self.ddp, nan_strategy = "disable" }, {}
  for _, m in each(self.metrics or {}) do m:reset() end
  net:eval()
  moth.no_grad(function()
    local iterator = batches.shared(self, loader):iter()
    local function go(...)
      if (...) == nil then return false end
      local loss, output, target = self:run(net, ...)
      mean:update(checked(loss), samples((...)))
      for _, m in each(self.metrics or {}) do m:update(output, target) end
      return true
    end
    while go(iterator()) do end -- luacheck: ignore
  end)
  if net == self.model and training then self.model:train() end
  local names = {}
  for name in each(self.metrics or {}) do names[#names + 1] = name end
  table.sort(names)
  out.val_loss = mean:compute():item()
  for _, name in ipairs(names) do
    local value = self.metrics[name]:compute()
    out["val_" .. name] = B.is_tensor(value) and (value:dim() == 0 and value:item() or value:tolist()) or value
  end
  return out
end)

--- Ends training after this batch: for callbacks.
function Trainer:stop() self.stopped = true end

-- ---- state --------------------------------------------------------------------------------------------

local PARTS = { "model", "optimizer", "scheduler", "scaler", "averaged" }

--- All that changes while training, as a table for moth.save: model, optimizer, schedule, generators, the place in the
-- epoch. All ranks call it. Between two optimizer steps, gradients that were added up are not in it.
function Trainer:state_dict()
  local own = { rng = moth.get_rng_state(), loss = self.loss_mean and self.loss_mean:state_dict() }
  if self.loader and self.loader.state_dict then own.loader = self.loader:state_dict() end
  local sd = { version = VERSION, epoch = self.epoch, batch = self.batch, steps = self.steps,
    in_epoch = self.in_epoch or false, callbacks = {}, logs = self.logs,
    ranks = self.ddp and moth.distributed.all_gather_object(own) or { own } }
  for _, part in ipairs(PARTS) do sd[part] = self[part] and self[part]:state_dict() end
  for i, c in ipairs(self.callbacks) do sd.callbacks[i] = c.state_dict and c:state_dict() or {} end
  return sd
end

--- Takes what state_dict gave: the run goes on as it would have, to the bit.
function Trainer:load_state_dict(sd)
  if type(sd) ~= "table" or sd.version ~= VERSION or type(sd.ranks) ~= "table" then
    check.fail("[train.Trainer] load_state_dict: expected a state of a Trainer of version %d, got %s", VERSION,
      type(sd) == "table" and "version " .. tostring(sd.version) or type(sd))
  end
  local own = sd.ranks[rank() + 1]
  if not own then
    check.fail("[train.Trainer] the state is of %d ranks, this is rank %d", #sd.ranks, rank())
  end
  self.epoch, self.batch, self.steps, self.in_epoch, self.logs = sd.epoch, sd.batch, sd.steps, sd.in_epoch, sd.logs
  for _, part in ipairs(PARTS) do
    if (self[part] ~= nil) ~= (sd[part] ~= nil) then
      check.fail("[train.Trainer] the state has %s %s, this trainer has %s", sd[part] and "a" or "no", part,
        self[part] and "one" or "none")
    end
    if self[part] then self[part]:load_state_dict(sd[part]) end
  end
  if self.loss_mean and own.loss then self.loss_mean:load_state_dict(own.loss) end
  for i, c in ipairs(self.callbacks) do
    if c.load_state_dict then c:load_state_dict(sd.callbacks[i] or {}) end
  end
  if self.loader and own.loader then self.loader:load_state_dict(own.loader) end
  moth.set_rng_state(own.rng)
end

--- Writes the state to a file, by rank 0. All ranks call it.
Trainer.save = signature.method("Trainer.save(path path)", function(self, path)
  local sd = self:state_dict()
  if self:is_main() then moth.save(sd, path) end
end)

--- Reads the state from a file; true: from the folder's last.moth, if it is there. Returns whether there was one.
Trainer.load = signature.method("Trainer.load(bool|path path=true)", function(self, path)
  if path == true then
    if not self.folder then check.fail("[train.Trainer] resume = true needs a folder, whose last.moth it reads") end
    path = self.folder .. "/last.moth"
    local f = io.open(path)
    if not f then return false end
    f:close()
  end
  self:load_state_dict(moth.load(path))
  return true
end)

return Trainer
