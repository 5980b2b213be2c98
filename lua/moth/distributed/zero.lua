--- moth.zero: training by a configuration like DeepSpeed's.
--
--     local engine, opt = moth.zero.initialize { model = model, config = "deepspeed_config.json" }
--     for x, y in loader:iter() do
--       local loss = loss_of(engine(x), y)
--       engine:backward(loss)       -- divided by the steps of accumulation, scaled for float16
--       engine:step()               -- a step of the optimizer after each so many; clips, and clears the gradients
--     end
--
-- zero_optimization.stage: 0 DistributedDataParallel; 1 the optimizer's state is shared out over the ranks; 2
-- gradients, too; 3 parameters, too. Keys of the configuration that mean nothing here are named in a warning.
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local fully = require "moth.distributed.fully_shard"
local groups = require "moth.distributed.group"
local moth = require "moth"
local optim = require "moth.optim"
local signature = require "moth.utils.signature"
local utils = require "moth.nn.utils"

local M = {}
local WHERE = "[zero.initialize] "

local function warn(text) io.stderr:write("[moth] warning: zero: ", text, "\n") end

-- Known keys: true, or a table of those inside.
local known = {
  train_batch_size = true, train_micro_batch_size_per_gpu = true, gradient_accumulation_steps = true,
  gradient_clipping = true, steps_per_print = true,
  zero_optimization = { stage = true, offload_optimizer = { device = true }, offload_param = { device = true },
    reduce_bucket_size = true, overlap_comm = true, contiguous_gradients = true, min_unit_params = true },
  fp16 = { enabled = true, loss_scale = true, initial_scale_power = true, loss_scale_window = true,
    min_loss_scale = true },
  bf16 = { enabled = true },
  optimizer = { type = true, params = "any" }, scheduler = { type = true, params = "any" },
}

local function look(config, names, path)
  for key, value in each(config) do
    local name = path .. tostring(key)
    if names[key] == nil then
      warn(("the key '%s' of the configuration means nothing here"):format(name))
    elseif type(names[key]) == "table" then
      if type(value) ~= "table" then check.fail(WHERE .. "config.%s: expected a table, got %s", name, type(value)) end
      look(value, names[key], name .. ".")
    end
  end
end

local function read(config)
  if type(config) == "string" then
    local f = io.open(config, "rb")
    if not f then check.fail(WHERE .. "config: there is no file '%s'", config) end
    local text = f:read "*a"
    f:close()
    local ok, result = pcall(require("cjson").decode, text)
    if not ok then check.fail(WHERE .. "config: %s is no JSON: %s", config, tostring(result)) end
    config = result
  end
  look(config, known, "")
  return config
end

local function number_of(config, key, default, least)
  local v = config[key]
  if v == nil then return default end
  if type(v) ~= "number" or v < least then
    check.fail(WHERE .. "config.%s: expected a number of at least %g, got %s", key, least, tostring(v))
  end
  return v
end

-- The optimizers of a configuration, by DeepSpeed's names in lower case.
local optimizers = { adam = "Adam", adamw = "AdamW", sgd = "SGD", lamb = "LAMB", lion = "Lion",
  adagrad = "Adagrad" }

-- As DeepSpeed's, Adam's weight decay is AdamW's, unless adam_w_mode is false.
local function make_optimizer(params, spec, make)
  local name, options = optimizers[tostring(spec.type):lower()], {}
  if not name then
    check.fail(WHERE .. "config.optimizer.type: expected Adam, AdamW, SGD, Lamb, Lion or Adagrad, got %s",
      tostring(spec.type))
  end
  for key, value in each(spec.params or {}) do
    if key ~= "torch_adam" and key ~= "adam_w_mode" and key ~= "freeze_step" then options[key] = value end
  end
  if name == "Adam" and (spec.params or {}).adam_w_mode ~= false then
    name, options.weight_decay = "AdamW", options.weight_decay or 0
  end
  return make(optim[name], params, options)
end

-- Float16: the loss is multiplied, a step whose gradients are not finite is left out, and the scale is halved.
local function new_scale(fp16)
  if not fp16.enabled then return nil end
  local fixed = fp16.loss_scale and fp16.loss_scale > 0
  return { value = fixed and fp16.loss_scale or 2 ^ (fp16.initial_scale_power or 16), fixed = fixed, good = 0,
    window = fp16.loss_scale_window or 1000, least = fp16.min_loss_scale or 1 }
end

local Engine = class("ZeroEngine")

function Engine.__call(self, ...) return self.net(...) end

--- Gradients of loss / gradient_accumulation_steps; ranks reduce them in the last of so many.
function Engine:backward(loss)
  self.micro = self.micro + 1
  local last = self.micro % self.accumulation == 0
  if self.scale then loss = loss * self.scale.value end
  loss = loss / self.accumulation
  if self.stage < 2 then
    if last or self.accumulation == 1 then
      loss:backward()
    else
      self.net:no_sync(function() loss:backward() end)
    end
    return
  end
  self.net:set_requires_gradient_sync(last)
  loss:backward()
end

--- Whether the next step() is one of the optimizer.
function Engine:is_gradient_accumulation_boundary() return self.micro > 0 and self.micro % self.accumulation == 0 end

--- Steps the optimizer and the scheduler at the end of an accumulation; else nothing.
function Engine:step()
  if not self:is_gradient_accumulation_boundary() then return end
  local params, scale = self.net:parameters(), self.scale
  self.grad_norm, self.skipped = nil, false
  if scale or self.clipping > 0 then
    local norm = utils.grad_norm(params):item()
    if scale and (norm ~= norm or norm == math.huge) then
      self.skipped, scale.good = true, 0
      if not scale.fixed then scale.value = math.max(scale.least, scale.value / 2) end
    else
      local factor = 1 / (scale and scale.value or 1)
      self.grad_norm = norm * factor
      if self.clipping > 0 then factor = factor * math.min(1, self.clipping / (norm * factor + 1e-6)) end
      if factor ~= 1 then
        moth.no_grad(function()
          for _, p in ipairs(params) do if p.grad then p.grad:mul_(factor) end end
        end)
      end
      if scale and not scale.fixed then
        scale.good = scale.good + 1
        if scale.good % scale.window == 0 then scale.value = scale.value * 2 end
      end
    end
  end
  if not self.skipped then
    self.optimizer:step()
    if self.scheduler then self.scheduler:step() end
    self.global_steps = self.global_steps + 1
  end
  self.optimizer:zero_grad()
end

function Engine:train(mode)
  self.net:train(mode)
  return self
end
function Engine:eval() return self:train(false) end
function Engine:parameters() return self.net:parameters() end

--- Units for stages 2 and 3: each child of a list of modules, and each module with at least `least` parameters.
local function shard(model, options, least)
  local function visit(m)
    for _, child in ipairs(m:children()) do visit(child) end
    local name = m.__name
    if name == "ModuleList" or name == "Sequential" then
      for _, child in ipairs(m:children()) do
        if not fully.unit(child) and child ~= model and child:num_parameters() > 0 then
          fully.fully_shard(child, options)
        end
      end
    elseif m ~= model and not fully.unit(m) then
      local n = 0
      for _, p in ipairs(m:parameters(false)) do n = n + p:numel() end
      if n >= least then fully.fully_shard(m, options) end
    end
  end
  visit(model)
  return fully.fully_shard(model, options)
end

--- Returns an engine, its optimizer, the data loader (of training_data, with the ranks' samples), and the scheduler.
-- model: a module; config: a table, or the path of a JSON file; optimizer: one over the model's parameters, or a
-- function of a list of parameters that gives one, in place of config.optimizer; lr_scheduler: a function of it.
-- Without a process group it is a run of one process, for which one is made.
M.initialize = signature("zero.initialize(*, Module model, table|string config, any optimizer?, \z
  list model_parameters?, callable lr_scheduler?, any training_data?)",
function(model, config, optimizer, parameters, lr_scheduler, training_data)
  config = read(config)
  local dist = require "moth.distributed"
  if not groups.is_initialized() then
    if os.getenv "RANK" then
      dist.init_process_group()
    else
      dist.init_process_group("local", { rank = 0, world_size = 1, init_method = "local://zero" })
    end
  end
  local self = Engine()
  local zero, fp16, bf16 = config.zero_optimization or {}, config.fp16 or {}, config.bf16 or {}
  self.stage = number_of(zero, "stage", 0, 0)
  if self.stage > 3 then check.fail(WHERE .. "config.zero_optimization.stage: 0, 1, 2 or 3, got %g", self.stage) end
  if fp16.enabled and bf16.enabled then check.fail(WHERE .. "config: fp16 and bf16 are both enabled") end
  self.accumulation = number_of(config, "gradient_accumulation_steps", 1, 1)
  self.clipping = number_of(config, "gradient_clipping", 0, 0)
  local size = dist.get_world_size()
  local all, micro = config.train_batch_size, config.train_micro_batch_size_per_gpu
  if all and micro and all ~= micro * self.accumulation * size then
    check.fail(WHERE .. "config: train_batch_size is %d, but %d a micro-batch, %d steps of accumulation and %d ranks \z
      are %d", all, micro, self.accumulation, size, micro * self.accumulation * size)
  end
  self.micro_batch = micro or all and all / self.accumulation / size
  self.scale, self.micro, self.global_steps = new_scale(fp16), 0, 0
  local low = fp16.enabled and moth.float16 or bf16.enabled and moth.bfloat16 or nil
  local make = function(cls, params, o) return cls(params, o) end
  if self.stage >= 2 then
    local offload = zero.offload_optimizer or zero.offload_param
    self.net = shard(model, { reshard_after_forward = self.stage == 3 and nil, offload = offload ~= nil
      and offload.device == "cpu", mp = low and { param_dtype = low, reduce_dtype = moth.float32 } or nil },
      number_of(zero, "min_unit_params", 1e6, 1))
  else
    self.net = dist.DistributedDataParallel(model)
    if self.stage == 1 then
      make = function(cls, params, o) return dist.ZeroRedundancyOptimizer(params, cls, o) end
    end
    if low then
      local net = self.net
      local forward = net.forward
      net.forward = function(m, ...)
        local args, n = { ... }, select("#", ...)
        local dtype = low
        return moth.autocast("cpu", { dtype = dtype }, function() return forward(m, unpack(args, 1, n)) end)
      end
    end
  end
  local params = parameters or self.net:parameters()
  if optimizer ~= nil then
    self.optimizer = check.is_callable(optimizer) and optimizer(params) or optimizer
  elseif config.optimizer then
    self.optimizer = make_optimizer(params, config.optimizer, make)
  else
    check.fail(WHERE .. "there is no optimizer: give config.optimizer = { type = 'AdamW', params = { lr = 1e-3 } }")
  end
  if lr_scheduler then
    self.scheduler = lr_scheduler(self.optimizer)
  elseif config.scheduler then
    local o = config.scheduler.params or {}
    if config.scheduler.type ~= "WarmupLR" then
      check.fail(WHERE .. "config.scheduler.type: WarmupLR, or give lr_scheduler, got %s",
        tostring(config.scheduler.type))
    end
    local low_lr, high, n = o.warmup_min_lr or 0, o.warmup_max_lr or 1e-3, o.warmup_num_steps or 1000
    local base = self.optimizer.param_groups[1].lr
    self.scheduler = optim.lr_scheduler.LambdaLR(self.optimizer, function(step)
      return (low_lr + (high - low_lr) * math.min(1, step / n)) / base
    end)
  end
  local loader
  if training_data then
    loader = moth.data.DataLoader(training_data, { batch_size = self.micro_batch or 1,
      sampler = moth.data.DistributedSampler(training_data) })
  end
  return self, self.optimizer, loader, self.scheduler
end)

--- The optimizer of stage 1: dist.ZeroRedundancyOptimizer. options: stage = 1, optimizer (a class; AdamW), and its own.
-- Stages 2 and 3 need the model: zero.initialize.
M.ZeroOptimizer = signature("zero.ZeroOptimizer(list params, table options?)", function(params, options)
  local o, cls = {}, optim.AdamW
  for key, value in each(options or {}) do
    if key == "optimizer" then
      cls = value
    elseif key == "stage" then
      if value ~= 1 then
        check.fail("[zero.ZeroOptimizer] stage %s needs the model: zero.initialize { model =, config = }",
          tostring(value))
      end
    else
      o[key] = value
    end
  end
  return require("moth.distributed").ZeroRedundancyOptimizer(params, cls, o)
end)

return M
