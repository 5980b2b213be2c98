--- State dicts of models and optimizers whose tensors are cut over ranks (fully_shard, dist.tp): parts, or whole
-- tensors by name, which one process, or any other number of ranks, can load. (dist.checkpoint writes files.)
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local collectives = require "moth.distributed.collectives"
local each = require "moth.each"
local groups = require "moth.distributed.group"
local moth = require "moth"
local objects = require "moth.distributed.objects"
local Ordered = require "moth.nn.ordered"
local placement = require "moth.distributed.placement"
local signature = require "moth.utils.signature"

local M = {}

local wrappers = { DistributedDataParallel = true, FullyShardedDataParallel = true }

--- For files of this folder: { { name, tensor, is a parameter }, … } of parameters and persistent buffers, as if there
-- were no wrappers, whose names begin with "module."; what is shared comes under each of its names.
function M.entries(model)
  local out = {}
  local function visit(m, prefix)
    if wrappers[class.name(m)] then return visit(m.module, prefix) end
    for name, p in Ordered.items(m:registry "_parameters") do out[#out + 1] = { prefix .. name, p, true } end
    for name, b in Ordered.items(m:registry "_buffers") do
      if not m._transient[name] then out[#out + 1] = { prefix .. name, b } end
    end
    for name, child in Ordered.items(m:registry "_modules") do visit(child, prefix .. name .. ".") end
  end
  visit(model, "")
  return out
end
local entries = M.entries

local COMMON = "*, bool full_state_dict=false, bool cpu_offload=false, bool ignore_frozen_params=false, \z
  bool flatten_optimizer_state_dict=false, bool broadcast_from_rank0=false, bool strict=true"

local function is_first() return groups.of(nil, "get_model_state_dict").rank == 0 end

-- Whole tensors in the host's memory are those of rank 0 alone; of dist.fsdp what rank0_only says.
local function nothing_here(o)
  local one = o.rank0_only
  if one == nil then one = o.cpu_offload end
  return o.full_state_dict and one and not is_first()
end

-- A tensor as the options want it: whole, or a part that is placed as `like` is.
local function exported(t, like, o)
  local out
  if o.full_state_dict then
    out = placement.full_tensor(t, like)
  else
    out = placement.share(t:detach(), like)
  end
  if not o.cpu_offload then return out end
  local host = out:to("cpu")
  return o.full_state_dict and host or placement.share(host, like)
end

local function model_state(model, o)
  local out = Ordered.new()
  for _, entry in ipairs(entries(model)) do
    if not (o.ignore_frozen_params and entry[3] and not entry[2]:requires_grad()) then
      local t = exported(entry[2], entry[2], o)
      if not nothing_here(o) then out[entry[1]] = t elseif placement.of(entry[2]) then B.free(t) end
    end
  end
  return out
end

--- The model's state: an ordered map from names to this rank's parts, of which full_tensor and checkpoint.save know
-- where they belong; with full_state_dict whole tensors, with cpu_offload in the host's memory, whole ones then only on
-- rank 0. ignore_frozen_params: without those that need no gradient. All ranks call it.
M.get_model_state_dict = signature("distributed.get_model_state_dict(Module model, " .. COMMON .. ")", model_state,
  true)

local function text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

-- o.any: each tensor is a part, or the whole one, whatever it is.
local function load_model(model, sd, o, where)
  local list, known, missing, unexpected = entries(model), {}, {}, {}
  local reads = not o.broadcast_from_rank0 or is_first()
  local full = o.full_state_dict or o.broadcast_from_rank0
  for _, entry in ipairs(list) do
    local name, t = entry[1], entry[2]
    known[name] = true
    local from = rawget(sd, name)
    if from == nil then
      if not (o.ignore_frozen_params and entry[3] and not t:requires_grad()) then missing[#missing + 1] = name end
    elseif reads then
      local shape = full and placement.whole_shape(t) or t.shape
      local whole = o.any and B.is_tensor(from) and text(from.shape) == text(placement.whole_shape(t))
      if not whole and (not B.is_tensor(from) or text(from.shape) ~= text(shape)) then
        check.fail(where .. "%s: the state has %s, the model %s%s", name, B.is_tensor(from) and text(from.shape)
          or type(from), text(shape), placement.of(t) and ", of which this rank has " .. text(t.shape) or "")
      end
    end
  end
  for name in each(sd) do if not known[name] then unexpected[#unexpected + 1] = tostring(name) end end
  table.sort(unexpected)
  if o.broadcast_from_rank0 then -- what rank 0 has not, no rank loads
    local box = { missing, unexpected }
    objects.broadcast_object_list(box, 0)
    missing, unexpected = box[1], box[2]
  end
  if o.strict and #missing + #unexpected > 0 then
    check.fail(where .. "missing names: %s; unexpected names: %s", table.concat(missing, ", "),
      table.concat(unexpected, ", "))
  end
  local left_out = {}
  for _, name in ipairs(missing) do left_out[name] = true end
  moth.no_grad(function()
    for _, entry in ipairs(list) do
      local t, from = entry[2], rawget(sd, entry[1])
      local frozen = o.ignore_frozen_params and entry[3] and not t:requires_grad()
      if o.broadcast_from_rank0 and not left_out[entry[1]] and not frozen then
        local own = moth.empty(placement.whole_shape(t), { dtype = t:dtype(), device = t:device() })
        if reads then own:copy_(from) end
        collectives.broadcast(own, 0)
        from = own
      end
      if from then t:detach():copy_(placement.fitted(from, t)) end
    end
  end)
  return missing, unexpected
end

--- Loads a state. full_state_dict: of whole tensors; broadcast_from_rank0: which rank 0 has (what others give is not
-- read). strict: missing and unexpected names are errors. Returns the lists of both. All ranks call it.
M.set_model_state_dict = signature("distributed.set_model_state_dict(Module model, table model_state_dict, "
  .. COMMON .. ")", function(model, sd, o)
  return load_model(model, sd, o, "[distributed.set_model_state_dict] ")
end, true)

--- For dist.fsdp: model_state(model, options), with rank0_only; load_any: of parts or whole tensors, whichever each is.
M.model_state = model_state
function M.load_any(model, sd, o, where)
  o.any = true
  return load_model(model, sd, o, where)
end

-- Optimizers -----------------------------------------------------------------------------------------

local function names_of(model)
  local name_of, of_name = {}, {}
  for _, entry in ipairs(entries(model)) do
    name_of[entry[2]] = name_of[entry[2]] or entry[1]
    of_name[entry[1]] = entry[2]
  end
  return name_of, of_name
end

local function name_in(name_of, p, what)
  return name_of[p] or check.fail("[distributed.%s] a parameter of the optimizer is none of the model", what)
end

-- The optimizers of an argument: one, or a list of them.
local function list_of(optimizer, what)
  local list = type(optimizer.param_groups) == "table" and { optimizer } or optimizer
  for _, opt in ipairs(list) do
    if type(opt) ~= "table" or type(opt.param_groups) ~= "table" then
      check.fail("[distributed.%s] optimizer: expected an optimizer, or a list of them, got %s", what, class.name(opt))
    end
    placement.check_state(opt, "distributed." .. what)
  end
  if #list == 0 then check.fail("[distributed.%s] optimizer: expected an optimizer, got an empty table", what) end
  return list
end

-- PyTorch's flat form: "state.<name>.<key>", "param_groups.<name>.<key>".
local function flattened(sd)
  local out = {}
  for name, s in each(sd.state) do
    for key, v in each(s) do out[("state.%s.%s"):format(name, key)] = v end
  end
  for _, group in ipairs(sd.param_groups) do
    for key, v in each(group) do
      for _, name in ipairs(key ~= "params" and group.params or {}) do
        out[("param_groups.%s.%s"):format(name, key)] = v
      end
    end
  end
  return out
end

-- That form as groups of the optimizers, whose parameters have other options each.
local function unflattened(sd, list, name_of, what)
  local out = { state = {}, param_groups = {} }
  for name, v in each(sd) do
    local of, key = tostring(name):match "^state%.(.*)%.([^.]+)$"
    if of then
      out.state[of] = out.state[of] or {}
      out.state[of][key] = v
    end
  end
  for _, opt in ipairs(list) do
    for _, group in ipairs(opt.param_groups) do
      local own = { params = {} }
      for i, p in ipairs(group.params) do own.params[i] = name_in(name_of, p, what) end
      for key in each(group) do
        if key ~= "params" then own[key] = sd[("param_groups.%s.%s"):format(own.params[1], key)] end
      end
      table.insert(out.param_groups, own)
    end
  end
  return out
end

local function optimizer_state(model, optimizer, o, what)
  local name_of = names_of(model)
  local out = { state = {}, param_groups = {} }
  for _, opt in ipairs(list_of(optimizer, what)) do
    local states, n = opt.all_states and opt:all_states(), 0 -- of ZeroRedundancyOptimizer
    for _, group in ipairs(opt.param_groups) do
      local own = { params = {} }
      for key, value in each(group) do if key ~= "params" then own[key] = value end end
      for i, p in ipairs(group.params) do
        local name = name_in(name_of, p, what)
        own.params[i], n = name, n + 1
        local s, keys, from = {}, {}, states and states[n] or not states and rawget(opt.state, p) or {}
        for key in each(from) do keys[#keys + 1] = key end
        table.sort(keys) -- all ranks gather in this order
        for _, key in ipairs(keys) do
          local v = from[key]
          if placement.is_state_like(opt, key, v, p) then
            s[key] = exported(v, p, o)
          else
            s[key] = o.cpu_offload and B.is_tensor(v) and v:to("cpu") or v
          end
        end
        if #keys > 0 then out.state[name] = s end
      end
      table.insert(out.param_groups, own)
    end
  end
  if nothing_here(o) then out = { state = {}, param_groups = {} } end
  return o.flatten_optimizer_state_dict and flattened(out) or out
end

--- The optimizer's state (or that of a list of optimizers), with names of the model's parameters in place of numbers;
-- else as get_model_state_dict. flatten_optimizer_state_dict: one table of "state.<name>.<key>" and
-- "param_groups.<name>.<key>".
M.get_optimizer_state_dict = signature("distributed.get_optimizer_state_dict(Module model, table optimizer, "
  .. COMMON .. ")", function(model, optimizer, o)
  return optimizer_state(model, optimizer, o, "get_optimizer_state_dict")
end, true)

-- The state dict of each optimizer, as its load_state_dict takes it: with numbers, of parts.
local function by_numbers(model, optimizer, sd, o, what)
  local where = ("[distributed.%s] "):format(what)
  local list = list_of(optimizer, what)
  if o.broadcast_from_rank0 then
    local box = { sd }
    objects.broadcast_object_list(box, 0)
    sd = box[1]
  end
  local name_of, of_name = names_of(model)
  if type(sd.state) ~= "table" and type(sd.param_groups) ~= "table" then
    for key in each(sd) do
      if type(key) == "string" and key:find "^param_groups%." then
        sd = unflattened(sd, list, name_of, what)
        break
      end
    end
  end
  if type(sd.state) ~= "table" or type(sd.param_groups) ~= "table" then
    check.fail(where .. "expected { state = …, param_groups = … }")
  end
  for name in each(sd.state) do
    if not of_name[name] then check.fail(where .. "'%s' is no parameter of the model", tostring(name)) end
  end
  local out, at = {}, 0
  for k, opt in ipairs(list) do
    local one, n = { state = {}, param_groups = {} }, 0
    for g, group in ipairs(opt.param_groups) do
      local saved = sd.param_groups[at + g]
      if type(saved) ~= "table" or #(saved.params or {}) ~= #group.params then
        check.fail(where .. "group %d has %s parameters, that of the optimizer %d", at + g,
          type(saved) == "table" and #(saved.params or {}) or "no", #group.params)
      end
      local own = { params = {} }
      for key, value in each(saved) do if key ~= "params" then own[key] = value end end
      for i, p in ipairs(group.params) do
        n = n + 1
        own.params[i] = n
        for key, v in each(sd.state[name_in(name_of, p, what)] or {}) do
          one.state[n] = one.state[n] or {}
          if B.is_tensor(v) and not (opt.own_shape and opt.own_shape[key]) then v = placement.fitted(v, p) end
          one.state[n][key] = v
        end
      end
      one.param_groups[g] = own
    end
    out[k], at = one, at + #opt.param_groups
  end
  return list, out
end

--- Loads such a state, of whole tensors or of parts.
M.set_optimizer_state_dict = signature("distributed.set_optimizer_state_dict(Module model, table optimizer, \z
  table optim_state_dict, " .. COMMON .. ")", function(model, optimizer, sd, o)
  local list, states = by_numbers(model, optimizer, sd, o, "set_optimizer_state_dict")
  for k, opt in ipairs(list) do opt:load_state_dict(states[k]) end
end, true)

--- For dist.fsdp.
M.optimizer_state, M.by_numbers = optimizer_state, by_numbers

--- Both states: of the model, and of one optimizer or a list of them.
M.get_state_dict = signature("distributed.get_state_dict(Module model, table optimizers, " .. COMMON .. ")",
function(model, optimizers, o)
  return model_state(model, o), optimizer_state(model, optimizers, o, "get_state_dict")
end, true)

--- Loads both; returns the names that the model misses, and those it does not have.
M.set_state_dict = signature("distributed.set_state_dict(Module model, table optimizers, table model_state_dict, \z
  table optim_state_dict, " .. COMMON .. ")", function(model, optimizers, model_sd, optim_sd, o)
  local missing, unexpected = load_model(model, model_sd, o, "[distributed.set_state_dict] ")
  local list, states = by_numbers(model, optimizers, optim_sd, o, "set_state_dict")
  for k, opt in ipairs(list) do opt:load_state_dict(states[k]) end
  return missing, unexpected
end, true)

return M
