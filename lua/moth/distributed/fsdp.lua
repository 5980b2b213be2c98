--- dist.fsdp: FullyShardedDataParallel, the wrapper of PyTorch's first FSDP, over fully_shard.
--
--     local fsdp = dist.fsdp
--     local net = fsdp.FullyShardedDataParallel(model, {
--       auto_wrap_policy = fsdp.transformer_auto_wrap_policy { nn.TransformerEncoderLayer },
--       sharding_strategy = "FULL_SHARD", mixed_precision = { param_dtype = moth.bfloat16 } })
--     net(x):sum():backward()
--     net:clip_grad_norm_(1.0)
--     net:state_dict()                         -- whole tensors, on all ranks; names without "module."
--     net:set_state_dict_type("SHARDED_STATE_DICT") -- from now on this rank's parts, for dist.checkpoint.save
--     net:summon_full_params(function() … end)
--
-- sharding_strategy: "FULL_SHARD" (ZeRO-3), "SHARD_GRAD_OP" (ZeRO-2: parameters stay from forward to backward),
-- "NO_SHARD" (all ranks have all), "HYBRID_SHARD" (with device_mesh { replicas, shards }).
local check = require "moth.utils.check"
local class = require "moth.class"
local collectives = require "moth.distributed.collectives"
local each = require "moth.each"
local fully = require "moth.distributed.fully_shard"
local mesh = require "moth.distributed.mesh"
local Module = require "moth.nn.module"
local signature = require "moth.utils.signature"
local state = require "moth.distributed.state_dict"
local utils = require "moth.nn.utils"

local M = { fully_shard = fully.fully_shard }
local NAME = "distributed.fsdp.FullyShardedDataParallel"

-- Policies -------------------------------------------------------------------------------------------

--- Makes units of all modules of these classes.
M.transformer_auto_wrap_policy = signature("distributed.fsdp.transformer_auto_wrap_policy(list \z
  transformer_layer_cls)", function(classes)
  for i, cls in ipairs(classes) do
    if type(cls) ~= "table" or not rawget(cls, "__name") then
      check.fail("[distributed.fsdp.transformer_auto_wrap_policy] element %d is no class of modules", i)
    end
  end
  return function(m)
    for _, cls in ipairs(classes) do if m:is_a(cls) then return true end end
    return false
  end
end)
M.ModuleWrapPolicy = signature.alias("distributed.fsdp.ModuleWrapPolicy", M.transformer_auto_wrap_policy)

--- Makes units of modules that have at least so many parameters in no unit below them.
M.size_based_auto_wrap_policy = signature("distributed.fsdp.size_based_auto_wrap_policy(count \z
  min_num_params=100000000)", function(least)
  return function(_, n) return n >= least end
end)

--- Makes units of the modules for which fn(module) is true.
M.lambda_auto_wrap_policy = signature("distributed.fsdp.lambda_auto_wrap_policy(function fn)", function(fn)
  return function(m) return fn(m) end
end)
M.CustomPolicy = signature.alias("distributed.fsdp.CustomPolicy", M.lambda_auto_wrap_policy)

-- The modules below `module` that a policy takes, those inside first.
local function chosen(module, policy, skipped)
  local list, seen = {}, {}
  local function visit(m, is_root)
    if seen[m] or skipped[m] then return 0 end
    seen[m] = true
    local n = 0
    for _, p in ipairs(m:parameters(false)) do n = n + p:numel() end
    for _, child in ipairs(m:children()) do n = n + visit(child, false) end
    if not is_root and n > 0 and policy(m, n) then
      list[#list + 1] = m
      return 0
    end
    return n
  end
  visit(module, true)
  return list
end

-- The module -----------------------------------------------------------------------------------------

local FSDP = class("FullyShardedDataParallel", Module)
M.FullyShardedDataParallel = FSDP

local strategies = { FULL_SHARD = true, SHARD_GRAD_OP = true, NO_SHARD = true, HYBRID_SHARD = true }

FSDP.__init = signature.init(NAME .. "(Module module, *, ProcessGroup process_group?, DeviceMesh device_mesh?, \z
  string sharding_strategy='FULL_SHARD', callable auto_wrap_policy?, table mixed_precision?, \z
  bool cpu_offload=false, bool sync_module_states=false, list ignored_modules?, callable param_init_fn?, \z
  any device_id?, string backward_prefetch='BACKWARD_PRE', bool forward_prefetch=true, bool use_orig_params=true, \z
  bool limit_all_gathers=true)", function(self, o)
  local strategy = o.sharding_strategy
  if not strategies[strategy] then
    check.fail("[%s] sharding_strategy: expected FULL_SHARD, SHARD_GRAD_OP, NO_SHARD or HYBRID_SHARD, got '%s'", NAME,
      strategy)
  end
  local where = o.device_mesh or o.process_group
  local group = mesh.group_of(where and not (o.device_mesh and o.device_mesh.ndim == 2) and where or nil,
    "FullyShardedDataParallel")
  if strategy == "HYBRID_SHARD" and not (o.device_mesh and o.device_mesh.ndim == 2) then
    check.fail("[%s] HYBRID_SHARD needs a device_mesh of two dimensions: replicas and shards", NAME)
  elseif strategy == "NO_SHARD" then
    if where then check.fail("[%s] NO_SHARD is for the group of all ranks", NAME) end
    where = mesh.device_mesh { group.size, 1 }
  end
  local mp, skipped = {}, {}
  for key, value in each(check.options(("[%s] mixed_precision"):format(NAME), o.mixed_precision,
    "param_dtype reduce_dtype buffer_dtype cast_forward_inputs keep_low_precision_grads")) do
    if key == "buffer_dtype" then
      for _, m in ipairs(o.module:modules()) do
        for name, b in each(m:registry "_buffers") do
          if b:dtype().is_floating_point then m:put_registered("_buffers", name, b:to(value)) end
        end
      end
    elseif key ~= "keep_low_precision_grads" then
      mp[key] = value
    end
  end
  for _, m in ipairs(o.ignored_modules or {}) do skipped[m] = true end
  local ignored = {}
  for m in each(skipped) do for _, p in ipairs(m:parameters()) do ignored[#ignored + 1] = p end end
  if o.sync_module_states then
    local works = {}
    local function give(t)
      works[#works + 1] = collectives.broadcast(t:detach(), group.ranks[1], { group = group, async = true })
    end
    for _, p in o.module:named_parameters() do give(p) end
    for _, b in o.module:named_buffers() do give(b) end
    for _, w in ipairs(works) do w:wait() end
  end
  local options = { mesh = where, mp = mp, offload = o.cpu_offload, init_fn = o.param_init_fn,
    ignored_params = ignored }
  if strategy == "SHARD_GRAD_OP" then options.reshard_after_forward = false end
  for _, m in ipairs(o.auto_wrap_policy and chosen(o.module, o.auto_wrap_policy, skipped) or {}) do
    fully.fully_shard(m, options)
  end
  self.module, self._strategy = fully.fully_shard(o.module, options), strategy
end)

function FSDP:forward(...) return self.module(...) end

function FSDP:extra_repr() return "sharding_strategy=" .. self._strategy end

--- Calls fn; backwards within only add to whole gradients of this rank. The next one outside reduces the sum.
FSDP.no_sync = signature.method(NAME .. ".no_sync(function fn)", function(self, fn)
  self.module:set_requires_gradient_sync(false)
  local function done(ok, ...)
    self.module:set_requires_gradient_sync(true)
    if not ok then error((...), 0) end
    return ...
  end
  return done(pcall(fn))
end)

--- Clips the gradients by the norm of those of all ranks; returns it. All ranks call it.
FSDP.clip_grad_norm_ = signature.method(NAME .. ".clip_grad_norm_(number max_norm, number norm_type=2)",
  function(self, most, kind) return utils.clip_grad_norm_(self:parameters(), most, kind) end)

-- State dicts ----------------------------------------------------------------------------------------

--- The types of state dicts. FULL: whole tensors; SHARDED: this rank's parts, of which dist.full_tensor and
-- dist.checkpoint know where they belong; LOCAL: the same here.
M.StateDictType = { FULL_STATE_DICT = "FULL_STATE_DICT", SHARDED_STATE_DICT = "SHARDED_STATE_DICT",
  LOCAL_STATE_DICT = "LOCAL_STATE_DICT" }

local function config(text)
  local name = text:match "^[%w_]+"
  --- Options of a type: offload_to_cpu: tensors in the host's memory; rank0_only: the others have empty ones.
  M[name] = signature("distributed.fsdp." .. text, function(o) return o end, true)
end
config "FullStateDictConfig(*, bool offload_to_cpu=false, bool rank0_only=false)"
config "FullOptimStateDictConfig(*, bool offload_to_cpu=true, bool rank0_only=false)"
for _, name in ipairs { "ShardedStateDictConfig", "LocalStateDictConfig" } do
  config(name .. "(*, bool offload_to_cpu=false)")
end
for _, name in ipairs { "ShardedOptimStateDictConfig", "LocalOptimStateDictConfig" } do
  config(name .. "(*, bool offload_to_cpu=true)")
end

-- The settings of a type, checked: { state_dict_type, state_dict_config, optim_state_dict_config }.
local function settings(what, kind, of_model, of_optimizer)
  local prefix = ({ FULL_STATE_DICT = "Full", SHARDED_STATE_DICT = "Sharded", LOCAL_STATE_DICT = "Local" })[kind]
  if not prefix then
    check.fail("[%s] %s: expected FULL_STATE_DICT, SHARDED_STATE_DICT or LOCAL_STATE_DICT, got '%s'", NAME, what,
      tostring(kind))
  end
  return { state_dict_type = kind, state_dict_config = M[prefix .. "StateDictConfig"](of_model or {}),
    optim_state_dict_config = M[prefix .. "OptimStateDictConfig"](of_optimizer or {}) }
end

local function options_of(s, how)
  local full = s.state_dict_type == "FULL_STATE_DICT"
  return { full_state_dict = full, cpu_offload = how.offload_to_cpu, rank0_only = full and how.rank0_only }
end

--- Says of what kind state_dict and optim_state_dict are from now on, whole ones at first; returns the settings before.
FSDP.set_state_dict_type = signature.method(NAME .. ".set_state_dict_type(string state_dict_type, \z
  table state_dict_config?, table optim_state_dict_config?)", function(self, kind, of_model, of_optimizer)
  local before = self:get_state_dict_type()
  self._state_type = settings("set_state_dict_type", kind, of_model, of_optimizer)
  return before
end)
function FSDP:get_state_dict_type()
  return rawget(self, "_state_type") or settings("get_state_dict_type", "FULL_STATE_DICT")
end

--- state_dict_type(kind, state_dict_config?, optim_state_dict_config?, fn): calls fn, within which it is so.
function FSDP:state_dict_type(kind, ...)
  local n, args = select("#", ...), { ... }
  local fn = table.remove(args, n)
  if not check.is_callable(fn) then
    check.fail("[%s] state_dict_type: expected a function as the last argument, got %s", NAME, class.name(fn))
  end
  local before = self:set_state_dict_type(kind, unpack(args, 1, n - 1))
  local function done(ok, ...)
    self._state_type = before
    if not ok then error((...), 0) end
    return ...
  end
  return done(pcall(fn))
end

--- The state of the module inside, of the type that is set. full = true: whole, on rank 0 alone, in the host's memory
-- (the others get an empty one); full = false: of parts. All ranks call it.
FSDP.state_dict = signature.method(NAME .. ".state_dict(*, bool full?)", function(self, full)
  local s = self:get_state_dict_type()
  if full then
    s = settings("state_dict", "FULL_STATE_DICT", { offload_to_cpu = true, rank0_only = true })
  elseif full == false then
    s = settings("state_dict", "SHARDED_STATE_DICT")
  end
  return state.model_state(self.module, options_of(s, s.state_dict_config))
end)

--- Loads a state: of each tensor the whole one, or this rank's part. With rank0_only rank 0's goes to all. Returns the
-- names that are missing, and those that are unexpected. All ranks call it.
FSDP.load_state_dict = signature.method(NAME .. ".load_state_dict(table state_dict, bool strict=true)",
function(self, sd, strict)
  local o = options_of(self:get_state_dict_type(), self:get_state_dict_type().state_dict_config)
  return state.load_any(self.module, sd, { strict = strict, broadcast_from_rank0 = o.rank0_only },
    ("[%s] load_state_dict: "):format(NAME))
end)

--- An optimizer's state, with names of parameters in place of numbers, of the type that is set. All ranks call it.
FSDP.optim_state_dict = signature.method(NAME .. ".optim_state_dict(table optim)", function(self, optim)
  local s = self:get_state_dict_type()
  return state.optimizer_state(self.module, optim, options_of(s, s.optim_state_dict_config), "fsdp.optim_state_dict")
end)

--- Such a state, of whole tensors or of parts, as optim:load_state_dict takes it on this rank; load_directly: it is
-- loaded. All ranks call it.
FSDP.optim_state_dict_to_load = signature.method(NAME .. ".optim_state_dict_to_load(table optim, \z
  table optim_state_dict, *, bool load_directly=false)", function(self, optim, sd, load_directly)
  local s = self:get_state_dict_type()
  local o = options_of(s, s.optim_state_dict_config)
  local list, states = state.by_numbers(self.module, optim, sd, { broadcast_from_rank0 = o.rank0_only },
    "fsdp.optim_state_dict_to_load")
  if load_directly then list[1]:load_state_dict(states[1]) end
  return states[1]
end)

--- Calls fn, within which the parameters are whole; what it changes of them is lost, unless writeback is true.
FSDP.summon_full_params = signature.method(NAME .. ".summon_full_params(callable fn, *, bool writeback=true)",
function(self, fn, writeback)
  local list = {}
  for _, m in ipairs(self.module:modules()) do
    local unit = fully.unit(m)
    if unit then list[#list + 1] = { unit, unit:show_whole() } end
  end
  local function done(ok, ...)
    for _, pair in ipairs(list) do pair[1]:hide_whole(pair[2], writeback) end
    if not ok then error((...), 0) end
    return ...
  end
  return done(pcall(fn))
end)

return M
