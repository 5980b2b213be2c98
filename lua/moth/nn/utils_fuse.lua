--- nn.utils: batch norm of evaluation folded into the layer before it, and outputs of layers inside a model.
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"

local M = {}

-- The factor and the addend of each channel that batch norm is in evaluation.
local function affine(where, mean, var, eps, w, b)
  if not (mean and var) then check.fail("[%s] the batch norm has no running statistics", where) end
  local factor = (var + eps):rsqrt()
  if w then factor = factor * w end
  local add = -mean * factor
  return factor, b and add + b or add
end

local function parameter(t, like) return Parameter(t:detach(), { requires_grad = B.requires_grad(like) }) end

--- Weight and bias of a convolution with a batch norm behind it folded in. transpose: of a transposed convolution.
M.fuse_conv_bn_weights = signature("nn.utils.fuse_conv_bn_weights(Tensor conv_w, Tensor conv_b?, Tensor bn_rm, \z
  Tensor bn_rv, number bn_eps, Tensor bn_w?, Tensor bn_b?, bool transpose=false)",
  function(w, b, mean, var, eps, bn_w, bn_b, transpose)
    local factor, add = affine("nn.utils.fuse_conv_bn_weights", mean, var, eps, bn_w, bn_b)
    local shape = {}
    for i = 1, B.dim(w) do shape[i] = 1 end
    shape[transpose and 2 or 1] = -1
    return parameter(w * factor:reshape(shape), w), parameter(b and b * factor + add or add, b or w)
  end)

--- The same of a linear layer.
M.fuse_linear_bn_weights = signature("nn.utils.fuse_linear_bn_weights(Tensor linear_w, Tensor linear_b?, \z
  Tensor bn_rm, Tensor bn_rv, number bn_eps, Tensor bn_w?, Tensor bn_b?)", function(w, b, mean, var, eps, bn_w, bn_b)
  local factor, add = affine("nn.utils.fuse_linear_bn_weights", mean, var, eps, bn_w, bn_b)
  return parameter(w * factor:unsqueeze(2), w), parameter(b and b * factor + add or add, b or w)
end)

local function fused(where, layer, bn, fn, transpose)
  if layer.training or bn.training then check.fail("[%s] both modules must be in evaluation: call eval()", where) end
  local copy = layer:clone()
  local w, b = fn(layer.weight, layer.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, transpose)
  copy.weight, copy.bias = w, b
  return copy
end

--- A copy of a convolution that gives what conv and bn give together in evaluation.
M.fuse_conv_bn_eval = signature("nn.utils.fuse_conv_bn_eval(Module conv, Module bn, bool transpose=false)",
  function(conv, bn, transpose)
    return fused("nn.utils.fuse_conv_bn_eval", conv, bn, M.fuse_conv_bn_weights, transpose)
  end)

--- The same of a linear layer and a batch norm.
M.fuse_linear_bn_eval = signature("nn.utils.fuse_linear_bn_eval(Module linear, Module bn)", function(linear, bn)
  return fused("nn.utils.fuse_linear_bn_eval", linear, bn, M.fuse_linear_bn_weights)
end)

-- ---- outputs inside a model --------------------------------------------------------------------------

local Extractor = class("FeatureExtractor", Module)
function Extractor:__init(model, nodes)
  self.model = model
  self.nodes = nodes
end

--- x -> { name = output of the module at that path, … }
function Extractor:forward(...)
  local out, handles = {}, {}
  for _, node in ipairs(self.nodes) do
    handles[#handles + 1] = self.model:get_submodule(node[1]):register_forward_hook(function(_, _, y)
      out[node[2]] = y
    end)
  end
  local ok, message = pcall(self.model, ...)
  for _, handle in ipairs(handles) do handle:remove() end
  if not ok then error(message, 0) end
  return out
end

--- A module that gives outputs of modules inside `model` by name: return_nodes is a list of paths such as "layer1.0"
-- (names are the paths), or { ["layer1.0"] = "name", … }. The model is shared, not copied.
M.create_feature_extractor = signature("nn.utils.create_feature_extractor(Module model, table return_nodes)",
  function(model, return_nodes)
    local nodes = {}
    for _, path in ipairs(return_nodes) do
      if type(path) ~= "string" then
        check.fail("[nn.utils.create_feature_extractor] paths are strings, got %s", class.name(path))
      end
      nodes[#nodes + 1] = { path, path }
    end
    local names = {}
    for path in require("moth.each")(return_nodes) do
      if type(path) == "string" then names[#names + 1] = path end
    end
    table.sort(names)
    for _, path in ipairs(names) do nodes[#nodes + 1] = { path, return_nodes[path] } end
    if #nodes == 0 then check.fail("[nn.utils.create_feature_extractor] return_nodes is empty") end
    for _, node in ipairs(nodes) do model:get_submodule(node[1]) end
    return Extractor(model, nodes)
  end)

--- Removes a prefix from the names of a state dict that have it, in place.
M.consume_prefix_in_state_dict_if_present = signature("nn.utils.consume_prefix_in_state_dict_if_present(\z
  table state_dict, string prefix)", function(sd, prefix)
  local Ordered = require "moth.nn.ordered"
  local names = {}
  if Ordered.is(sd) then
    names = Ordered.keys(sd)
  else
    for name in require("moth.each")(sd) do names[#names + 1] = name end
    table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  end
  local values = {}
  for i, name in ipairs(names) do values[i] = rawget(sd, name) end
  for _, name in ipairs(names) do sd[name] = nil end
  for i, name in ipairs(names) do
    if type(name) == "string" and name:sub(1, #prefix) == prefix then name = name:sub(#prefix + 1) end
    sd[name] = values[i]
  end
  return sd
end)


return M
