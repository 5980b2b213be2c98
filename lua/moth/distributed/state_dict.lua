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

-- The module inside of the wrappers, whose names have no "module." in front.
local function inner(model)
  local name = class.name(model)
  if name == "DistributedDataParallel" or name == "FullyShardedDataParallel" then return inner(model.module) end
  return model
end

-- { { name, tensor }, … } of parameters and persistent buffers; what is shared comes under each of its names.
local function entries(model)
  local out = {}
  local function visit(m, prefix)
    for name, p in Ordered.items(m:registry "_parameters") do out[#out + 1] = { prefix .. name, p } end
    for name, b in Ordered.items(m:registry "_buffers") do
      if not m._transient[name] then out[#out + 1] = { prefix .. name, b } end
    end
    for name, child in Ordered.items(m:registry "_modules") do visit(child, prefix .. name .. ".") end
  end
  visit(inner(model), "")
  return out
end

local COMMON = "*, bool full_state_dict=false, bool cpu_offload=false"

local function is_first() return groups.of(nil, "get_model_state_dict").rank == 0 end

-- A tensor as the options want it; nil: not on this rank.
local function exported(t, like, o)
  if not o.full_state_dict then return t:detach() end
  local full = placement.full_tensor(t, like)
  if not o.cpu_offload then return full end
  return is_first() and full:to("cpu") or nil
end

--- The model's state: an ordered map from names to this rank's parts; with full_state_dict whole tensors, with
-- cpu_offload, too, only on rank 0 and in the host's memory. All ranks call it.
M.get_model_state_dict = signature("distributed.get_model_state_dict(Module model, " .. COMMON .. ")",
function(model, o)
  local out = Ordered.new()
  for _, entry in ipairs(entries(model)) do out[entry[1]] = exported(entry[2], entry[2], o) end
  return out
end, true)

local function text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

local function whole_shape(t)
  local place = placement.of(t)
  if place and place.scalar then return {} end
  return place and place.shape or t.shape
end

--- Loads a state. full_state_dict: of whole tensors; broadcast_from_rank0: which rank 0 has (what others give is not
-- read). strict: missing and unexpected names are errors. Returns the lists of both. All ranks call it.
M.set_model_state_dict = signature("distributed.set_model_state_dict(Module model, table model_state_dict, *, \z
  bool full_state_dict=false, bool broadcast_from_rank0=false, bool strict=true)", function(model, sd, o)
  local where = "[distributed.set_model_state_dict] "
  local list, known, missing, unexpected = entries(model), {}, {}, {}
  local reads = not o.broadcast_from_rank0 or is_first()
  for _, entry in ipairs(list) do
    local name, t = entry[1], entry[2]
    known[name] = true
    local from = rawget(sd, name)
    if from == nil then
      missing[#missing + 1] = name
    elseif reads then
      local shape = o.full_state_dict and whole_shape(t) or t.shape
      if not B.is_tensor(from) or text(from.shape) ~= text(shape) then
        check.fail(where .. "%s: the state has %s, the model %s%s", name, B.is_tensor(from) and text(from.shape)
          or type(from), text(shape), placement.of(t) and ", of which this rank has " .. text(t.shape) or "")
      end
    end
  end
  for name in each(sd) do if not known[name] then unexpected[#unexpected + 1] = tostring(name) end end
  table.sort(unexpected)
  if o.strict and reads and #missing + #unexpected > 0 then
    check.fail(where .. "missing names: %s; unexpected names: %s", table.concat(missing, ", "),
      table.concat(unexpected, ", "))
  end
  moth.no_grad(function()
    for _, entry in ipairs(list) do
      local t, from = entry[2], rawget(sd, entry[1])
      if o.broadcast_from_rank0 then
        local own = moth.empty(whole_shape(t), { dtype = t:dtype(), device = t:device() })
        if reads and from then own:copy_(from) elseif reads then own:copy_(placement.full_tensor(t)) end
        collectives.broadcast(own, 0)
        from = own
      end
      if from and o.full_state_dict then
        local place = placement.of(t)
        from = place and placement.part_of(place.scalar and from:reshape(1) or from, t) or from
      end
      if from then t:detach():copy_(from) end
    end
  end)
  return missing, unexpected
end, true)

-- Optimizers -----------------------------------------------------------------------------------------

local function names_of(model)
  local name_of, of_name = {}, {}
  for _, entry in ipairs(entries(model)) do
    name_of[entry[2]] = name_of[entry[2]] or entry[1]
    of_name[entry[1]] = entry[2]
  end
  return name_of, of_name
end

local function is_like(v, p)
  return B.is_tensor(v) and placement.of(p) and text(v.shape) == text(p.shape)
end

local function name_in(name_of, p, what)
  return name_of[p] or check.fail("[distributed.%s] a parameter of the optimizer is none of the model", what)
end

--- The optimizer's state, with names of the model's parameters in place of numbers; else as get_model_state_dict.
M.get_optimizer_state_dict = signature("distributed.get_optimizer_state_dict(Module model, table optimizer, "
  .. COMMON .. ")", function(model, optimizer, o)
  if type(optimizer.param_groups) ~= "table" then
    check.fail("[distributed.get_optimizer_state_dict] optimizer: expected an optimizer")
  end
  local name_of = names_of(model)
  local out = { state = {}, param_groups = {} }
  for g, group in ipairs(optimizer.param_groups) do
    local own = { params = {} }
    for key, value in each(group) do if key ~= "params" then own[key] = value end end
    for i, p in ipairs(group.params) do
      local name = name_in(name_of, p, "get_optimizer_state_dict")
      own.params[i] = name
      local s, keys = {}, {}
      for key in each(rawget(optimizer.state, p) or {}) do keys[#keys + 1] = key end
      table.sort(keys) -- all ranks gather in this order
      for _, key in ipairs(keys) do
        local v = optimizer.state[p][key]
        if is_like(v, p) then s[key] = exported(v, p, o) else s[key] = v end
      end
      if #keys > 0 then out.state[name] = s end
    end
    out.param_groups[g] = own
  end
  if o.full_state_dict and o.cpu_offload and not is_first() then return { state = {}, param_groups = {} } end
  return out
end, true)

--- Loads such a state.
M.set_optimizer_state_dict = signature("distributed.set_optimizer_state_dict(Module model, table optimizer, \z
  table optim_state_dict, *, bool full_state_dict=false, bool broadcast_from_rank0=false)",
function(model, optimizer, sd, o)
  local where = "[distributed.set_optimizer_state_dict] "
  if type(optimizer.param_groups) ~= "table" then check.fail(where .. "optimizer: expected an optimizer") end
  if o.broadcast_from_rank0 then
    local list = { sd }
    objects.broadcast_object_list(list, 0)
    sd = list[1]
  end
  if type(sd.state) ~= "table" or type(sd.param_groups) ~= "table" then
    check.fail(where .. "expected { state = …, param_groups = … }")
  end
  local _, of_name = names_of(model)
  local numbers, n, by_number = {}, 0, { state = {}, param_groups = {} }
  for g, group in ipairs(sd.param_groups) do
    local own = { params = {} }
    for key, value in each(group) do if key ~= "params" then own[key] = value end end
    for i, name in ipairs(group.params) do
      n = n + 1
      numbers[name], own.params[i] = n, n
    end
    by_number.param_groups[g] = own
  end
  for name, s in each(sd.state) do
    local p = of_name[name]
    if not p or not numbers[name] then check.fail(where .. "'%s' is no parameter of the model", tostring(name)) end
    local own = {}
    for key, v in each(s) do
      local place = placement.of(p)
      if o.full_state_dict and place and B.is_tensor(v) and text(v.shape) == text(whole_shape(p)) then
        v = placement.part_of(place.scalar and v:reshape(1) or v, p)
      end
      own[key] = v
    end
    by_number.state[numbers[name]] = own
  end
  optimizer:load_state_dict(by_number)
end, true)

return M
