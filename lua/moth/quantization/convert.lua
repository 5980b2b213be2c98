--- prepare, prepare_qat, convert, quantize_dynamic, quantize_weights: copies of a model with other layers in it.
local moth = require "moth"
local check = require "moth.utils.check"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local clone = require "moth.nn.clone"
local hooks = require "moth.nn.hooks"
local fuse = require "moth.quantization.fuse"
local graph = require "moth.quantization.graph"
local layers = require "moth.quantization.layers"
local prepared = require "moth.quantization.prepared"
local QConfig = require("moth.quantization.qconfig").QConfig
local specs = require "moth.quantization.spec"
local weights = require "moth.quantization.weights"
local Ordered = require "moth.nn.ordered"

local M = {}

local already = ": it is prepared or quantised already"
local function is_done(model)
  for _, m in ipairs(model:modules()) do
    if layers.is(m) or prepared.is(m) then return true end
  end
end

-- The layers with their qconfigs: a module's own holds for all below it; false: they stay as they are.
local function configured(where, model)
  local list, seen, any = {}, {}, false
  local function walk(m, path, config)
    if seen[m] then return end
    seen[m] = true
    local own = rawget(m, "qconfig")
    if own ~= nil then config = own end
    if config and not class.is_a(config, QConfig) then
      check.fail("[%s] qconfig of %s is no QConfig, but %s: get_default_qconfig gives one", where,
        path == "" and "the model" or "'" .. path .. "'", class.name(config))
    end
    any = any or config
    local spec = config and specs.of(m)
    if spec then list[#list + 1] = { layer = m, path = path, spec = spec, config = config } end
    for name, child in Ordered.items(m:registry("_modules")) do
      walk(child, path == "" and name or path .. "." .. name, config)
    end
  end
  walk(model, "", nil)
  if not any then
    check.fail("[%s] no module has a qconfig: set model.qconfig = moth.quantization.get_default_qconfig()", where)
  end
  if #list == 0 then
    check.fail("[%s] there is no layer to quantise in %s%s", where, model.__name, is_done(model) and already
      or ": no Linear, Embedding, nor Conv1d or Conv2d that pads with zeros on both sides alike, of sums of \z
        at most 65536 products")
  end
  return list
end

-- What follows each layer: by the graph of a run on an example, or in a Sequential.
local function neighbours(where, model, example)
  if example then
    local behind, why = graph.behind(model, example)
    if behind then return behind end
    io.stderr:write(("[moth] warning: %s: the model does not export, only neighbours in Sequential are folded: %s\n")
      :format(where, tostring(why)))
  end
  local behind, uses = {}, {}
  fuse.each_sequence(model, function(layer, found)
    uses[layer] = (uses[layer] or 0) + 1
    behind[layer] = found
  end)
  for layer, found in require "moth.each"(behind) do
    if uses[layer] > 1 or found.norm and uses[found.norm] > 1 then behind[layer] = nil end
    if found.relu and uses[found.relu] > 1 then found.relu = nil end
  end
  return behind
end

-- What becomes part of each layer: a norm or ReLU that stands in several places stays, and one whose hooks, or those of
-- what it would join, would see something else.
local function followers(where, model, example)
  local behind = neighbours(where, model, example)
  for layer, found in require "moth.each"(behind) do
    if layer._hooks or found.norm and found.norm._hooks then found.norm, found.relu = nil, nil end
    if found.relu and found.relu._hooks then found.relu = nil end
  end
  return behind
end

local function replaced(where, model, example, make)
  local list = configured(where, model)
  local behind = followers(where, model, example)
  local seen, paths = {}, {}
  for path, m in model:named_modules() do paths[m] = path end
  for _, item in ipairs(list) do
    local found = behind[item.layer] or {}
    local relu = found.relu
    item.spec.relu = relu ~= nil
    item.spec.path, item.spec.last = item.path, paths[relu or found.norm or item.layer]
    seen[item.layer] = hooks.carry(item.layer, make(item, found.norm))
    if found.norm then seen[found.norm] = moth.nn.Identity() end
    if relu then seen[relu] = moth.nn.Identity() end
  end
  return clone(model, seen):train(model.training)
end

--- A copy of a model in evaluation with observers on the inputs of its layers (Linear, Conv1d, Conv2d, Embedding), for
-- those that have a qconfig, of their own or from a module above; false leaves them alone. Batch norm and ReLU behind a
-- layer are folded into it: neighbours in Sequential, or, with example_inputs (a tensor, or a list of arguments),
-- wherever the graph of the model has them; a ReLU module only where it is called once. Layers keep their hooks; those
-- with hooks are not folded.
local signed = "quantization.%s(Module model, Tensor|list example_inputs?)"
M.prepare = signature(signed:format "prepare", function(model, example)
  local where = "quantization.prepare"
  if model.training then
    check.fail("[%s] the model is in training: call eval(); prepare_qat is for training", where)
  end
  return replaced(where, model, example, function(item, norm)
    local layer = fuse.folded(specs.plain(item.layer), norm)
    return prepared.ObservedLayer(layer, item.spec, item.config)
  end)
end)

--- A copy of a model in training whose layers round their weights and inputs as int8 does, while gradients go through.
-- The copy has parameters of its own: make the optimizer from them. example_inputs: as prepare's.
M.prepare_qat = signature(signed:format "prepare_qat", function(model, example)
  local where = "quantization.prepare_qat"
  if not model.training then
    check.fail("[%s] the model is in evaluation: call train(); prepare is for a model that is trained", where)
  end
  return replaced(where, model, example, function(item, norm)
    return prepared.FakeQuantizedLayer(item.layer:clone(), item.spec, item.config, norm and norm:clone())
  end)
end)

--- The int8 model of a prepared one, after calibration or training, in evaluation.
M.convert = signature("quantization.convert(Module model)", function(model)
  local where, seen, any = "quantization.convert", {}, false
  if model.training then check.fail("[%s] the model is in training: call eval()", where) end
  for path, m in model:named_modules() do
    if prepared.is(m) then seen[m], any = hooks.carry(m, m:convert(path)), true end
  end
  if not any then check.fail("[%s] the model has no prepared layer: it is not from prepare or prepare_qat", where) end
  return clone(model, seen):eval()
end)

-- A copy in which layers of these classes, { [class] = true }, are replaced by make(layer, spec), of so many bits.
-- Layers whose weight has no elements have nothing to quantise: they stay. `nothing`: what models without layers lack.
local function replace_kinds(where, model, set, keep, bits, nothing, make)
  local seen, done, left = {}, false, {}
  for path, m in model:named_modules() do
    local of = set[specs.class_of(m)] and not keep(path)
    local spec = of and specs.of(m, bits)
    if spec then
      spec.path, spec.last = path, path
      seen[m], done = hooks.carry(m, make(m, spec)), true
    elseif of and m.weight:numel() == 0 then
      done = true
    elseif of then
      left[#left + 1] = ("'%s' (%s)"):format(path, m.__name)
    end
  end
  if not done and left[1] then
    check.fail("[%s] no layer of %s can be quantised: %s has a forward of its own, options that quantised layers \z
      lack, or rows of more than 65536 values", where, model.__name, table.concat(left, ", "))
  end
  if not done then
    check.fail("[%s] %s has %s%s", where, model.__name, nothing, is_done(model) and already or "")
  end
  return clone(model, seen):eval()
end

local function dynamic(m, spec)
  local q, scale = weights.int8_weight(m.weight)
  if spec.kind == "embedding" then return layers.QuantizedEmbedding(spec, q, scale) end
  return layers.DynamicQuantizedLinear(spec, q, scale, m.bias)
end

--- A copy of a model whose layers of the given classes (nn.Linear, nn.Embedding; by default nn.Linear) have int8
-- weights; activations are quantised at run time, row by row. The copy is in evaluation and does not train.
M.quantize_dynamic = signature("quantization.quantize_dynamic(Module model, list qconfig_spec?, *, dtype dtype='int8')",
  function(model, list, dtype)
    local where = "quantization.quantize_dynamic"
    if moth.iinfo == nil or tostring(dtype):match("[%w]+$") ~= "int8" then
      check.fail("[%s] dtype: expected moth.int8, got %s", where, tostring(dtype))
    end
    local nn = moth.nn
    local set = specs.classes(where, list or { nn.Linear }, { [nn.Linear] = true, [nn.Embedding] = true })
    return replace_kinds(where, model, set, function() return false end, 8, "no layer of these classes", dynamic)
  end)

--- A copy of a model whose linear layers have weights of 4 or 8 bits. group: values of a row that share a scale (4
-- bits; 32, 64 or a multiple of 128). keep: names of modules, with all below them, that stay as they are; embeddings
-- get int8.
M.quantize_weights = signature("quantization.quantize_weights(Module model, *, int bits=4, count group=128, \z
  string[] keep?)", function(model, bits, group, keep)
    local where = "quantization.quantize_weights"
    if bits ~= 4 and bits ~= 8 then check.fail("[%s] bits must be 4 or 8, got %d", where, bits) end
    weights.check_group(where, group)
    local used = {}
    local function kept(path)
      for _, name in ipairs(keep or {}) do
        if path == name or path:sub(1, #name + 1) == name .. "." or path:sub(-#name - 1) == "." .. name then
          used[name] = true
          return true
        end
      end
      return false
    end
    local nn = moth.nn
    local function make(m, spec)
      if bits == 8 or spec.kind == "embedding" then return dynamic(m, spec) end
      local q, scale = weights.int4_weight(m.weight, group)
      return layers.Int4Linear(spec, q, scale, m.bias, group, m.weight:size(2))
    end
    local copy = replace_kinds(where, model, { [nn.Linear] = true, [nn.Embedding] = true }, kept, bits,
      "no linear layer or embedding to quantise", make)
    for _, name in ipairs(keep or {}) do
      if not used[name] then check.fail("[%s] keep: there is no layer '%s'", where, name) end
    end
    return copy
  end)

return M
