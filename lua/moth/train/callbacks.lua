--- Callbacks of train.Trainer: stopping early, checkpoints, progress, logs.
--
-- A callback has the methods that it needs, each called with the trainer: on_setup, on_fit_start,
-- on_epoch_start(trainer, size), on_batch(trainer, loss), on_step, on_epoch(trainer, logs), on_fit_end(trainer, ok);
-- and state_dict and load_state_dict if it has a state. A plain table of functions is one, too:
-- { on_epoch = function(self, trainer, logs) … end }.
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"

local M = {}

local Callback = class("Callback")
M.Callback = Callback
--- The base of callbacks, which does nothing: a subclass has methods of the names above.
Callback.__init = signature.init("train.Callback()", function() end)
--- on_setup(trainer): before a checkpoint is loaded.
function Callback.on_setup() end
--- on_fit_start(trainer): when a checkpoint is loaded, before the first epoch.
function Callback.on_fit_start() end
--- on_epoch_start(trainer, size): size is the number of batches, nil if it is not known.
function Callback.on_epoch_start() end
--- on_batch(trainer, loss): after a batch's gradients, before the step; loss is a tensor.
function Callback.on_batch() end
--- on_step(trainer): after each step of the optimizer.
function Callback.on_step() end
--- on_epoch(trainer, logs): after an epoch and its validation; logs are its figures, and what is put there is logged.
function Callback.on_epoch() end
--- on_fit_end(trainer, ok): at the end; ok is false after an error.
function Callback.on_fit_end() end

-- Whether a value is better than another: mode "min" or "max".
local function better(mode, a, b, delta)
  if mode == "min" then return a < b - delta end
  return a > b + delta
end

local function figure(name, where, logs)
  local value = logs[name]
  if type(value) ~= "number" then
    local names = {}
    for key in each(logs) do names[#names + 1] = key end
    table.sort(names)
    check.fail("[train.%s] monitor: there is no figure '%s' after this epoch; there are: %s", where, name,
      table.concat(names, ", "))
  end
  return value
end

local Stopping = class("EarlyStopping", Callback)
M.EarlyStopping = Stopping

--- Ends training when a figure has not become better by more than min_delta for `patience` epochs, or is NaN.
Stopping.__init = signature.init("train.EarlyStopping(string monitor='val_loss', 'min'|'max' mode='min', \z
  count patience=3, number min_delta=0)", function(self, o)
  for key, value in each(o) do self[key] = value end
  self.waited = 0
end)
function Stopping:on_fit_start(trainer)
  if self.waited >= self.patience then trainer:stop() end -- a run that is over is not gone on with
end
function Stopping:on_epoch(trainer, logs)
  if logs[self.monitor] == nil and logs.val_loss == nil and trainer.validate_every > 1 then return end -- no validation
  local value = figure(self.monitor, "EarlyStopping", logs)
  if not self.best or better(self.mode, value, self.best, self.min_delta) then
    self.best, self.waited = value, 0
  else
    self.waited = self.waited + 1
  end
  if self.waited >= self.patience or value ~= value then trainer:stop() end
end
--- The best figure, and the epochs since.
function Stopping:state_dict() return { best = self.best, waited = self.waited } end
--- Takes what state_dict gave.
function Stopping:load_state_dict(sd) self.best, self.waited = sd.best, sd.waited or 0 end

local Checkpoint = class("Checkpoint", Callback)
M.Checkpoint = Checkpoint

--- Saves the trainer's state: last.moth after each epoch and each save_every optimizer steps, and the keep_best best
-- epochs by `monitor` (without one: none) as best-<epoch>.moth.
Checkpoint.__init = signature.init("train.Checkpoint(path folder, *, string monitor?, 'min'|'max' mode='min', \z
  size keep_best=1, count save_every?)", function(self, o)
  for key, value in each(o) do self[key] = value end
  self.kept = {} -- { epoch, value }, the best first
end)
local function path_of(self, epoch) return ("%s/best-%04d.moth"):format(self.folder, epoch) end
function Checkpoint:on_setup(trainer)
  if trainer:is_main() and os.execute("mkdir -p " .. system.quoted(self.folder)) ~= 0 then
    check.fail("[train.Checkpoint] cannot make the folder %s", self.folder)
  end
end
function Checkpoint:on_step(trainer)
  if self.save_every and trainer.steps % self.save_every == 0 then trainer:save(self.folder .. "/last.moth") end
end
function Checkpoint:on_epoch(trainer, logs)
  local value = self.monitor and logs[self.monitor]
  if self.monitor and value == nil and trainer.epoch % trainer.validate_every == 0 then
    figure(self.monitor, "Checkpoint", logs)
  end
  if value and value == value and self.keep_best > 0 then
    for i = #self.kept, 1, -1 do -- this epoch as it was when max_steps ended a run within it
      if self.kept[i][1] == trainer.epoch then table.remove(self.kept, i) end
    end
    table.insert(self.kept, { trainer.epoch, value })
    table.sort(self.kept, function(a, b)
      if a[2] ~= b[2] then return better(self.mode, a[2], b[2], 0) end
      return a[1] < b[1]
    end)
    local worst = #self.kept > self.keep_best and table.remove(self.kept)
    if not (worst and worst[1] == trainer.epoch) then
      trainer:save(path_of(self, trainer.epoch))
      if worst and trainer:is_main() then os.remove(path_of(self, worst[1])) end
    end
  end
  trainer:save(self.folder .. "/last.moth")
end
--- The path of the best checkpoint, and its figure; nil without one.
function Checkpoint:best()
  local first = self.kept[1]
  if first then return path_of(self, first[1]), first[2] end
end
--- Which epochs were kept.
function Checkpoint:state_dict() return { kept = self.kept } end
--- Takes what state_dict gave.
function Checkpoint:load_state_dict(sd) self.kept = sd.kept or {} end

local Preemption = class("Preemption", Callback)
M.Preemption = Preemption

--- A run that is told to end (SIGUSR1, SIGTERM: dist.on_preempt) saves last.moth after the step, on all ranks alike, is
-- queued again under Slurm, and ends; with resume = true the next run goes on there.
Preemption.__init = signature.init("train.Preemption(path folder)", function(self, o) self.folder = o.folder end)
function Preemption:on_fit_start(trainer)
  self.preempted = require("moth.distributed").on_preempt(function()
    trainer:save(self.folder .. "/last.moth")
    for _, c in ipairs(trainer.callbacks) do if c.on_fit_end then c:on_fit_end(trainer, true) end end
  end)
end
function Preemption:on_step() if self.preempted then self.preempted() end end
--- Signals end the process again, as before.
function Preemption:on_fit_end()
  if self.preempted then self.preempted "release" end
  self.preempted = nil
end

local Bar = class("ProgressBar", Callback)
M.ProgressBar = Bar

--- A bar of each epoch on stderr, and a line with its figures. out: another file.
Bar.__init = signature.init("train.ProgressBar(*, any out?)", function(self, o) self.out = o.out end)
local function label(trainer)
  local of = trainer.max_epochs < math.huge and "/" .. trainer.max_epochs or "" -- max_steps alone may end it
  return ("epoch %d%s"):format(trainer.epoch, of)
end
function Bar:on_epoch_start(trainer, size)
  if not trainer:is_main() then return end
  self.bar = require "moth.utils.progress"(size, { unit = "batch", out = self.out,
    label = label(trainer) })
  self.bar.done = trainer.batch
end
function Bar:on_batch(trainer, loss)
  if not self.bar then return end
  -- Reading the loss waits for a device: only where it is shown.
  local shows = self.bar.clock() >= self.bar.next_draw
  self.bar:update(1, shows and ("loss %.4g"):format(loss:item()) or nil)
  self.shown = trainer
end
function Bar:on_epoch(trainer, logs)
  if not self.bar then return end
  local names, parts = {}, {}
  for name, value in each(logs) do if type(value) == "number" then names[#names + 1] = name end end
  table.sort(names)
  for i, name in ipairs(names) do parts[i] = ("%s %.4g"):format(name, logs[name]) end
  self.bar:finish(label(trainer) .. "  " .. table.concat(parts, "  "))
  self.bar = nil
end

local Loggers = class("Loggers", Callback)
M.Loggers = Loggers

local makers = {
  csv = function(folder) return require("moth.utils").CSVLogger(folder .. "/log.csv") end,
  jsonl = function(folder) return require("moth.utils").JSONLLogger(folder .. "/log.jsonl") end,
  tensorboard = function(folder) return require("moth.tensorboard").SummaryWriter(folder) end,
}

--- Writes the loss and the learning rate each log_every steps and the figures of each epoch, by rank 0. loggers: "csv",
-- "jsonl" and "tensorboard", as files of the folder, or objects with log(row) or add_scalar.
Loggers.__init = signature.init("train.Loggers(list loggers, path folder?, *, count log_every=50)", function(self, o)
  for key, value in each(o) do self[key] = value end
  for _, l in ipairs(o.loggers) do
    if type(l) == "string" and not makers[l] then
      check.fail("[train.Loggers] there is no logger '%s'; there are: csv, jsonl, tensorboard", l)
    elseif type(l) == "string" and not o.folder then
      check.fail("[train.Loggers] logger '%s' writes into the folder: give one", l)
    elseif type(l) ~= "string" and not (type(l) == "table" and (l.log or l.add_scalar)) then
      check.fail("[train.Loggers] a logger is a name or an object with log(row) or add_scalar, got %s", class.name(l))
    end
  end
end)
function Loggers:on_fit_start(trainer)
  self.open = {}
  if not trainer:is_main() then return end
  if self.folder then os.execute("mkdir -p " .. system.quoted(self.folder)) end
  for i, l in ipairs(self.loggers) do self.open[i] = type(l) == "string" and makers[l](self.folder) or l end
end
local function write(self, trainer, row)
  for _, l in ipairs(self.open) do
    if l.add_scalar then
      for name, value in each(row) do
        if type(value) == "number" and name ~= "step" then l:add_scalar(name, value, trainer.steps) end
      end
    else
      l:log(row)
    end
  end
end
function Loggers:on_step(trainer)
  if trainer.steps % self.log_every ~= 0 or #self.open == 0 then return end
  local row = { step = trainer.steps, epoch = trainer.epoch, loss = trainer.last_loss and trainer.last_loss:item(),
    lr = trainer.optimizer.param_groups[1].lr }
  if trainer.grad_norm then row.grad_norm = trainer.grad_norm end
  write(self, trainer, row)
end
function Loggers:on_batch(trainer, loss) trainer.last_loss = loss:detach() end -- luacheck: ignore self
function Loggers:on_epoch(trainer, logs)
  local row = { step = trainer.steps, epoch = trainer.epoch, lr = trainer.optimizer.param_groups[1].lr }
  for name, value in each(logs) do if type(value) == "number" then row[name] = value end end
  write(self, trainer, row)
end
function Loggers:on_fit_end()
  for i, l in ipairs(self.open or {}) do
    if type(self.loggers[i]) == "string" then l:close() elseif l.flush then l:flush() end
  end
end

local HOOKS = { "on_setup", "on_fit_start", "on_epoch_start", "on_batch", "on_step", "on_epoch", "on_fit_end" }
local CALLED = {}
for _, name in ipairs(HOOKS) do CALLED[name] = true end

--- The callbacks of a trainer with these options: the user's first, then checkpoints, logs, progress.
function M.of(trainer, o)
  local list = {}
  for i, c in ipairs(o.callbacks or {}) do
    if type(c) ~= "table" then check.fail("[train.Trainer] callback %d is a %s", i, class.name(c)) end
    for name in each(c) do
      if type(name) == "string" and name:find "^on_" and not CALLED[name] then
        check.fail("[train.Trainer] callback %d has %s, which nothing calls; there are: %s", i, name,
          table.concat(HOOKS, ", "))
      end
    end
    list[i] = c
  end
  if o.loggers then list[#list + 1] = Loggers(o.loggers, o.folder, { log_every = o.log_every }) end
  if o.progress then list[#list + 1] = Bar() end
  if o.folder then
    list[#list + 1] = { on_fit_start = function()
      if trainer:is_main() then require("moth.train.experiment").write(o.folder, o.config) end
    end }
    trainer.checkpoint = Checkpoint(o.folder, { monitor = o.monitor, mode = o.mode, keep_best = o.keep_best,
      save_every = o.save_every })
    list[#list + 1] = trainer.checkpoint -- last: it saves what the others have become
  end
  if o.preempt then
    if not o.folder then check.fail "[train.Trainer] preempt = true needs a folder, where it saves last.moth" end
    list[#list + 1] = Preemption(o.folder)
  end
  return list
end

return M
