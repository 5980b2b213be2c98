--- What a checkpoint of several ranks consists of: tensors by name, each with the boxes that this rank has of it, and
-- plain values. Names are those of the module's parameters, for the optimizer's state, too, so that they are the same
-- on any number of ranks and stages.
--
-- An entry: { name, tensor (the local part), shape (of the whole), boxes ({ offset, start, size }, from 0; see
-- placement.lua), complex }.
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local moth = require "moth"
local entries_of = require("moth.distributed.state_dict").entries
local placement = require "moth.distributed.placement"
local tree = require "moth.distributed.tree"

local M = {}

local function is_module(v) return type(v) == "table" and getmetatable(v) ~= nil and v.__module == true end
local function is_optimizer(v)
  return type(v) == "table" and getmetatable(v) ~= nil and type(rawget(v, "param_groups")) == "table"
    and type(rawget(v, "state")) == "table"
end
M.is_module, M.is_optimizer = is_module, is_optimizer

--- The entry of a tensor that is placed as `like` is (default: as itself; false: not at all).
function M.entry(name, t, like)
  if like == nil then like = t end
  local place = like and placement.of(like)
  local shape = place and placement.whole_shape(like) or t.shape
  local e = { name = name, tensor = t:detach(), shape = { unpack(shape) }, complex = t:dtype().is_complex or nil }
  if place and place.scalar then -- one rank has it
    e.boxes = t:numel() == 1 and { { offset = {}, start = {}, size = {} } } or {}
    e.tensor = t:numel() == 1 and e.tensor:reshape({}) or e.tensor
  elseif place then
    e.boxes = placement.boxes(like)
  else
    local offset, size = {}, {}
    for i, n in ipairs(t.shape) do offset[i], size[i] = 0, n end
    e.boxes = { { offset = offset, start = offset, size = size } }
  end
  return e
end

--- Calls fn(name, tensor, is a parameter) for the parameters and persistent buffers of a module, under the first of
-- their names.
function M.each_of(module, fn)
  local seen = {}
  for _, entry in ipairs(entries_of(module)) do
    if not seen[entry[2]] then fn(entry[1], entry[2], entry[3]) end
    seen[entry[2]] = true
  end
end

--- The names of the parameters of all modules in a table of objects.
function M.names(value)
  local names = setmetatable({}, { __mode = "k" })
  for _, v in each(value) do
    if is_module(v) then
      M.each_of(v, function(name, t, is_parameter) if is_parameter then names[t] = name end end)
    end
  end
  return names
end

--- Calls fn(parameter, name) for an optimizer's parameters.
function M.each_parameter(opt, names, fn)
  local n = 0
  for _, group in ipairs(opt.param_groups) do
    for _, p in ipairs(group.params) do
      n = n + 1
      fn(p, names[p] or tostring(n), n)
    end
  end
end

local function of_optimizer(opt, path, names, list)
  local plain = { state = {}, groups = {}, params = {} } -- params: by group, the names as keys
  placement.check_state(opt, "distributed.checkpoint.save")
  local sd = (opt.all_states and opt.optim or opt):state_dict() -- of ZeroRedundancyOptimizer this rank's part
  local order = {}
  M.each_parameter(opt, names, function(p, name, n)
    local values = {}
    order[n] = name
    if not names[p] then plain.numbered = true end
    for key, v in each(sd.state[n] or {}) do
      if B.is_tensor(v) then
        local like = placement.is_state_like(opt, key, v, p) and p
        list[#list + 1] = M.entry(("%s.state.%s.%s"):format(path, name, key), v, like)
      else
        values[key] = v
      end
    end
    plain.state[name] = values
  end)
  for i, group in ipairs(sd.param_groups) do
    local copy = {}
    for key, v in each(group) do if key ~= "params" then copy[key] = v end end
    plain.groups[i], plain.params[i] = copy, {}
    for _, n in ipairs(group.params) do plain.params[i][order[n]] = true end
  end
  return plain
end

--- The entries of a table of objects, tensors and values; and its plain values: a skeleton by field.
function M.collect(value, where)
  local list, plain, names = {}, {}, M.names(value)
  for field, v in each(value) do
    if type(field) ~= "string" then
      check.fail("[%s] expected a table with names, got a field %s", where, tostring(field))
    end
    if is_module(v) then
      M.each_of(v, function(name, t) list[#list + 1] = M.entry(field .. "." .. name, t) end)
    elseif is_optimizer(v) then
      plain[field] = of_optimizer(v, field, names, list)
    else
      local skeleton, tensors = tree.split(tree.has_state(v) and v:state_dict() or v, where)
      local own = {}
      for i, e in ipairs(tensors) do
        own[i] = field .. (e.name == "" and "" or "." .. e.name)
        list[#list + 1] = M.entry(own[i], e.tensor)
      end
      plain[field] = { skeleton = skeleton, names = own }
    end
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list, plain
end

--- A tensor of the host's memory, contiguous, with real numbers unless complex ones may stay.
function M.stored(t, is_complex)
  return moth.no_grad(function()
    local x = t:detach():to "cpu"
    return (x:dtype().is_complex and not is_complex and moth.view_as_real(x) or x):contiguous()
  end)
end

--- The part of a tensor in a box from `start` (from 0).
function M.part(t, start, size)
  for d, n in ipairs(size) do
    if start[d] ~= 0 or n ~= t:size(d) then t = t:narrow(d, start[d] + 1, n) end
  end
  return t
end

return M
