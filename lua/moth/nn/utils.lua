--- nn.utils: gradients of many parameters at once, parameters as one vector, padding, names.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Ordered = require "moth.nn.ordered"
local rows = require "moth.autograd.row_grad"
local each = require "moth.each"

local M = {}

require("moth.lang.lazy")(M, "moth.nn.utils_", {
  rnn = "rnn", parametrize = "parametrize", parametrizations = "parametrizations", prune = "prune",
  weight_norm = { "parametrizations", "weight_norm" }, spectral_norm = { "parametrizations", "spectral_norm" },
  fuse_conv_bn_weights = { "fuse", "fuse_conv_bn_weights" }, fuse_conv_bn_eval = { "fuse", "fuse_conv_bn_eval" },
  fuse_linear_bn_weights = { "fuse", "fuse_linear_bn_weights" },
  fuse_linear_bn_eval = { "fuse", "fuse_linear_bn_eval" },
  create_feature_extractor = { "fuse", "create_feature_extractor" },
  consume_prefix_in_state_dict_if_present = { "fuse", "consume_prefix_in_state_dict_if_present" },
}, "moth.nn.utils")

local function gradients(where, parameters)
  if B.is_tensor(parameters) then parameters = { parameters } end
  if type(parameters) ~= "table" then
    check.fail("%s: expected a list of parameters, got %s", where, type(parameters))
  elseif check.hole(parameters) then
    check.fail("%s: the list of parameters has a hole: it has element %s and none before it", where,
      tostring(check.hole(parameters)))
  end
  local grads = {}
  for _, p in ipairs(parameters) do
    local sparse = rows.rows(p)
    grads[#grads + 1] = sparse and sparse:coalesce():values() or B.get_grad(p)
  end
  return grads
end

-- Of parameters that are cut over ranks: the norm of all parts. Nil if there are none, or the file is not loaded.
local function norm_over_ranks(parameters, p)
  local placement = package.loaded["moth.distributed.placement"]
  if B.is_tensor(parameters) then parameters = { parameters } end
  if placement and type(parameters) == "table" and placement.any(parameters) then
    return moth.no_grad(placement.grad_norm, parameters, p, B.get_grad)
  end
end

-- Of gradients of such parameters, and parts of other tensors; nil if there are none.
local function norm_of_gradients(list, p)
  local placement = package.loaded["moth.distributed.placement"]
  if not placement then return end
  local of, at, any = placement.of_gradients(list), {}, false
  for i, t in ipairs(list) do
    at[i] = of[i] or t
    any = any or placement.of(at[i]) ~= nil
  end
  if not any then return end
  local index = {}
  for i, q in ipairs(at) do index[q] = list[i] end
  return moth.no_grad(placement.grad_norm, at, p, function(q) return index[q] end)
end

local function total_norm(grads, p)
  if #grads == 0 then return moth.zeros() end
  local norms = {}
  for i, g in ipairs(grads) do norms[i] = g:norm(p) end
  return moth.stack(norms):norm(p)
end

local function clip(grads, max_norm, p, must_be_finite, norm)
  norm = norm or total_norm(grads, p)
  if must_be_finite and not norm:isfinite():item() then
    check.fail("clip_grad_norm_: the norm of the gradients is %g", norm:item())
  end
  local factor = (max_norm / (norm + 1e-6)):clamp({ max = 1 })
  for _, g in ipairs(grads) do g:mul_(factor) end
  return norm
end

for _, name in ipairs { "weight_norm", "spectral_norm" } do
  --- Undoes the reparametrisation: the parameter is a plain one again, with its value of now.
  M["remove_" .. name] = signature(("nn.utils.remove_%s(Module module, string name='weight')"):format(name),
    function(module, tensor) return M.parametrize.remove_parametrizations(module, tensor) end)
end

--- A new module of a class, with the arguments of its constructor, whose parameters have no values yet: for those that
-- are loaded at once. Functions of nn.init that fill tensors do nothing meanwhile.
M.skip_init = signature("nn.utils.skip_init(table module_cls, ...)", function(cls, ...)
  if not cls.__module then check.fail("[nn.utils.skip_init] expected a module class, such as nn.Linear") end
  local init, saved = require "moth.nn.init_", {}
  for name, fn in each(init) do
    if name:sub(-1) == "_" then saved[name] = fn end
  end
  for name in each(saved) do init[name] = function(t) return t end end
  local function done(ok, ...)
    for name, fn in each(saved) do init[name] = fn end
    if not ok then error((...), 0) end
    return ...
  end
  return done(pcall(cls, ...))
end)

--- Scales the gradients in place so that the norm of all of them, as one vector, is at most max_norm. Parameters that
-- are cut over ranks (fully_shard, tp.parallelize) count as whole ones: all those ranks call it.
-- norm_type: math.huge for the maximum
-- @return the norm before, a 0-dim tensor
M.clip_grad_norm_ = signature("nn.utils.clip_grad_norm_(list|Tensor parameters, number max_norm, number norm_type=2, \z
  bool error_if_nonfinite=false)", function(parameters, max_norm, p, must_be_finite)
  check.number("clip_grad_norm_", "max_norm", max_norm, 0)
  return moth.no_grad(clip, gradients("clip_grad_norm_", parameters), max_norm, p, must_be_finite,
    norm_over_ranks(parameters, p))
end)

--- The norm of all gradients as one vector, a 0-dim tensor.
M.grad_norm = signature("nn.utils.grad_norm(list|Tensor parameters, number norm_type=2)", function(parameters, p)
  return norm_over_ranks(parameters, p) or moth.no_grad(total_norm, gradients("grad_norm", parameters), p)
end)

local function list_of(where, tensors)
  if B.is_tensor(tensors) then return { tensors } end
  for i = 1, #tensors do
    if not B.is_tensor(tensors[i]) then
      check.fail("[%s] expected tensors, got %s as element %d", where, class.name(tensors[i]), i)
    end
  end
  return tensors
end

--- The norm of all tensors as one vector, a 0-dim tensor.
M.get_total_norm = signature("nn.utils.get_total_norm(list|Tensor tensors, number norm_type=2, \z
  bool error_if_nonfinite=false)", function(tensors, p, must_be_finite)
  local list = list_of("nn.utils.get_total_norm", tensors)
  local norm = norm_of_gradients(list, p) or moth.no_grad(total_norm, list, p)
  if must_be_finite and not norm:isfinite():item() then
    check.fail("[nn.utils.get_total_norm] the norm is %g", norm:item())
  end
  return norm
end)

--- Scales the gradients in place by max_norm / total_norm where that is below 1: clip_grad_norm_ with a norm that is
-- known.
M.clip_grads_with_norm_ = signature("nn.utils.clip_grads_with_norm_(list|Tensor parameters, number max_norm, \z
  Tensor total_norm)", function(parameters, max_norm, norm)
  moth.no_grad(function()
    local factor = (max_norm / (norm + 1e-6)):clamp({ max = 1 })
    for _, g in ipairs(gradients("clip_grads_with_norm_", parameters)) do g:mul_(factor) end
  end)
end)

local function clamp_all(grads, value)
  for _, g in ipairs(grads) do g:copy_(g:clamp(-value, value)) end
end

--- Clamps each element of the gradients, in place, to [-clip_value, clip_value].
M.clip_grad_value_ = signature("nn.utils.clip_grad_value_(list|Tensor parameters, number clip_value)",
  function(parameters, value)
    check.number("clip_grad_value_", "clip_value", value, 0)
    moth.no_grad(clamp_all, gradients("clip_grad_value_", parameters), value)
  end)

--- All parameters as one vector (a copy, differentiable).
M.parameters_to_vector = signature("nn.utils.parameters_to_vector(Tensor[] parameters)", function(parameters)
  local flat = {}
  for i, p in ipairs(parameters) do flat[i] = p:reshape(-1) end
  return moth.cat(flat)
end)

--- Writes consecutive parts of a vector into the parameters.
M.vector_to_parameters = signature("nn.utils.vector_to_parameters(Tensor vec, Tensor[] parameters)",
function(vector, parameters)
  local n = 0
  for _, p in ipairs(parameters) do n = n + B.numel(p) end
  if n ~= B.numel(vector) then
    check.fail("vector_to_parameters: the parameters hold %d numbers, the vector %d", n, B.numel(vector))
  end
  moth.no_grad(function()
    local at = 1
    for _, p in ipairs(parameters) do
      p:copy_(vector:narrow(1, at, B.numel(p)):view(B.size(p)))
      at = at + B.numel(p)
    end
  end)
end)

--- Sequences (L_i, …) as one tensor (N, L, …), filled up at the end.
-- batch_first: true is moth's default, unlike PyTorch's
-- @return the tensor and an int64 tensor of the lengths
M.pad_sequence = signature("nn.utils.pad_sequence(Tensor[] sequences, bool batch_first=true, number padding_value=0)",
function(list, batch_first, padding_value)
  if #list == 0 then check.fail("[nn.utils.pad_sequence] expected a list of tensors, got an empty one") end
  local lengths, longest = {}, 0
  for i, t in ipairs(list) do
    lengths[i] = t:size(1)
    longest = math.max(longest, lengths[i])
  end
  local shape = { #list, longest }
  for d = 2, B.dim(list[1]) do shape[d + 1] = B.size(list[1], d) end
  local out = moth.full(shape, padding_value, { dtype = list[1]:dtype(), device = list[1]:device() })
  for i, t in ipairs(list) do
    if lengths[i] > 0 then out:select(1, i):narrow(1, 1, lengths[i]):copy_(t) end
  end
  if not batch_first then out = out:transpose(1, 2):contiguous() end
  return out, moth.tensor(lengths, { dtype = moth.int64 })
end)

--- A state dict under other names: remap(sd, { ["^encoder%."] = "backbone." }). The first pattern that fits, in
-- alphabetical order, is replaced; a replacement by false leaves the entry out.
M.remap = signature("nn.utils.remap(table sd, table patterns)", function(sd, patterns)
  local order, out = {}, Ordered.new()
  local function text(key, what)
    if type(key) ~= "string" then check.fail("[nn.utils.remap] %s are strings, got %s", what, tostring(key)) end
    return key
  end
  for pattern, new in each(patterns) do
    if new then text(new, "replacements") end
    order[#order + 1] = text(pattern, "patterns")
  end
  table.sort(order)
  local names = Ordered.is(sd) and Ordered.keys(sd) or {}
  if not Ordered.is(sd) then
    for name in each(sd) do names[#names + 1] = text(name, "names of a state dict") end
    table.sort(names)
  end
  for _, name in ipairs(names) do
    local new = name
    for _, pattern in ipairs(order) do
      if name:find(pattern) then
        new = patterns[pattern] and name:gsub(pattern, patterns[pattern], 1)
        break
      end
    end
    if new then
      if rawget(out, new) ~= nil then check.fail("remap: two entries would be named '%s'", new) end
      out[new] = rawget(sd, name)
    end
  end
  return out
end)

--- The mean of several state dicts with the same names: model averaging.
M.average = signature("nn.utils.average(list list)", function(list)
  local out = Ordered.new()
  for i = 1, math.max(#list, 1) do
    if not Ordered.is(list[i]) then
      check.fail("[nn.utils.average] expected a list of state dicts, got %s as element %d", class.name(list[i]), i)
    end
  end
  moth.no_grad(function()
    for name, first in Ordered.items(list[1]) do
      local sum = first:clone()
      for i = 2, #list do
        local t = rawget(list[i], name)
        if t == nil then check.fail("average: state dict %d has no '%s'", i, name) end
        sum:add_(t)
      end
      out[name] = sum:dtype().is_floating_point and sum:div_(#list) or first
    end
  end)
  return out
end)

-- The shapes of what each module gives for an input, as text, by module. The model runs as in evaluation.
local function outputs_of(model, input)
  local shapes, handles, training = {}, {}, {}
  local function show(output)
    if B.is_tensor(output) then return tostring(output:size()) end
    if type(output) ~= "table" then return type(output) end
    local parts = {}
    for i, v in ipairs(output) do parts[i] = show(v) end
    return "{ " .. table.concat(parts, ", ") .. " }"
  end
  for _, m in model:named_modules() do
    training[m] = m.training
    handles[#handles + 1] = m:register_forward_hook(function(_, _, output) shapes[m] = show(output) end)
  end
  model:eval()
  local ok, message = pcall(moth.no_grad, function()
    if B.is_tensor(input) then return model(input) end
    return model(unpack(input))
  end)
  for _, h in ipairs(handles) do h:remove() end
  for _, m in model:named_modules() do m.training = training[m] end
  if not ok then error(message, 0) end
  return shapes
end

--- A listing of all modules with the shape and size of their parameters, as a string; with an input (a tensor, or a
-- list of arguments) also with the shapes of what they give for it.
M.summary = signature("nn.utils.summary(Module model, Tensor|table input?)", function(model, input)
  local fmt = require "moth.lang.fmt"
  local shapes = input and outputs_of(model, input) or {}
  local lines = { ("%-36s %-18s %-16s %12s%s"):format("Module", "Parameter", "Shape", "Numbers", input
    and "  Output" or "") }
  for path, m in model:named_modules() do
    local where = ("%s (%s)"):format(path == "" and "." or path, m.__name)
    local own, output = false, shapes[m] and "  " .. shapes[m] or ""
    for name, p in m:named_parameters({ recurse = false }) do
      lines[#lines + 1] = ("%-36s %-18s %-16s %12s%s"):format(own and "" or where, name,
        "[" .. table.concat(B.size(p), ", ") .. "]", fmt.commas(B.numel(p)), own and "" or output)
      own = true
    end
    if not own then
      lines[#lines + 1] = output == "" and where or ("%-36s %-18s %-16s %12s%s"):format(where, "", "", "", output)
    end
  end
  lines[#lines + 1] = "Parameters: " .. fmt.commas(require("moth.nn.module").num_parameters(model))
  return table.concat(lines, "\n")
end)

return M
