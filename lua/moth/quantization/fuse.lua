--- Layers that become one: convolutions and linear layers with the batch norm and the ReLU behind them.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Ordered = require "moth.nn.ordered"
local nnutils = require "moth.nn.utils_fuse"

local M = {}

local norms = { Conv2d = "BatchNorm2d", Conv1d = "BatchNorm1d", Linear = "BatchNorm1d" }

local function is(m, name) return m ~= nil and getmetatable(m) == moth.nn[name] end

--- The norm and ReLU that follow `list[i]` directly: { norm =, relu =, last = index }.
function M.behind(list, i)
  local m, found = list[i], { last = i }
  local name = m and getmetatable(m).__name
  if not (norms[name] and is(m, name)) then return found end
  local norm = list[i + 1]
  if is(norm, norms[name]) and norm.track_running_stats ~= false and norm.running_mean then
    found.norm, found.last = norm, i + 1
  end
  if is(list[found.last + 1], "ReLU") then found.relu, found.last = list[found.last + 1], found.last + 1 end
  return found
end

--- The layer with its batch norm folded in, of evaluation.
function M.folded(layer, norm)
  if not norm then return layer end
  return getmetatable(layer).__name == "Linear" and nnutils.fuse_linear_bn_eval(layer, norm)
    or nnutils.fuse_conv_bn_eval(layer, norm)
end

--- A copy of a model in evaluation in which lists of modules, named by their paths, are one each: the first is the
-- folded layer, and others nn.Identity. { { "conv1", "bn1", "relu" }, … }; Sequential's neighbours need not be named.
M.fuse_modules = signature("quantization.fuse_modules(Module model, list modules_to_fuse)", function(model, groups)
  local where, seen = "quantization.fuse_modules", {}
  if type(groups[1]) == "string" then groups = { groups } end
  for _, group in ipairs(groups) do
    local list = {}
    for i, path in ipairs(group) do list[i] = model:get_submodule(path) end
    local found = M.behind(list, 1)
    if #list < 2 or found.last ~= #list then
      local names = {}
      for i, m in ipairs(list) do names[i] = m.__name end
      check.fail("[%s] expected a convolution or linear layer, then its batch norm, a ReLU, or both; got %s", where,
        table.concat(names, ", "))
    end
    if list[1].training then check.fail("[%s] the model must be in evaluation: call eval()", where) end
    local layer = M.folded(list[1], found.norm)
    seen[list[1]] = found.relu and moth.nn.Sequential(layer, moth.nn.ReLU()):eval() or layer
    for i = 2, #list do seen[list[i]] = moth.nn.Identity():eval() end
  end
  return require "moth.nn.clone"(model, seen)
end)

--- For the children of every Sequential in `model`: fn(layer, found) where something follows a layer.
function M.each_sequence(model, fn)
  for _, m in ipairs(model:modules()) do
    if class.is_a(m, moth.nn.Sequential) then
      local list = {}
      for _, child in Ordered.items(m:registry("_modules")) do list[#list + 1] = child end
      for i = 1, #list do fn(list[i], M.behind(list, i)) end
    end
  end
end

return M
