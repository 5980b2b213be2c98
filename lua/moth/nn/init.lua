--- moth.nn: modules, losses, functional forms, initialisers. Each file is loaded when it is first asked for.
local class = require "moth.class"
local check = require "moth.utils.check"
local each = require "moth.each"

local here = "moth.nn."

-- name -> file
local files = {
  Module = "module", Parameter = "parameter", Buffer = "buffer", Sequential = "sequential", ModuleList = "module_list",
  ModuleDict = "module_dict", Linear = "linear", Flatten = "flatten", Unflatten = "unflatten",
  Identity = "identity", Bilinear = "bilinear", ParameterList = "parameter_list", ParameterDict = "parameter_dict",
  AdaptiveLogSoftmaxWithLoss = "adaptive_softmax", SyncBatchNorm = "sync_batchnorm",
  LinearCrossEntropyLoss = "linear_cross_entropy", MultiheadAttention = "multihead_attention",
  PReLU = "prelu", functional = "functional", init = "init_", parallel = "parallel",
  DataParallel = function() return require("moth.nn.parallel").DataParallel end, utils = "utils",
}

-- Files whose fields are all names of moth.nn, with patterns of the names. For a name, files with a matching pattern
-- are loaded first, then the others; so a class needs no entry here.
local groups = {
  { "activation", "LU", "^Soft", "^Hard", "Sigmoid$", "Tanh" }, { "conv", "^Conv" }, { "dropout", "^Dropout" },
  { "embedding", "^Embedding" }, { "lazy", "^Lazy", "^Uninitialized" }, { "loss", "Loss$" }, { "norm", "Norm" },
  { "padding", "Pad%dd$" }, { "pool", "ool%dd$", "[fF]old$" },
  { "resize", "^Pixel", "^Upsampl", "Shuffle$" },
  { "rnn", "RNN", "LSTM", "GRU" }, { "transformer", "^Transformer" },
}

local function fits(group, name)
  for i = 2, #group do if name:find(group[i]) then return true end end
  return false
end

setmetatable(files, { __index = function(_, name)
  for pass = 1, type(name) == "string" and 2 or 0 do
    for _, group in ipairs(groups) do
      if fits(group, name) == (pass == 1) and require(here .. group[1])[name] ~= nil then return { group[1], name } end
    end
  end
end })

local nn = {}

--- A module class: `local Net = nn.class("Net")`. @param[opt] base nn.Module or a class made from it
function nn.class(name, base, ...)
  local Module = require "moth.nn.module"
  if type(name) ~= "string" then check.fail("[nn.class] expected a name, got %s", class.name(name)) end
  if base ~= nil and not (type(base) == "table" and rawget(base, "__module")) then
    check.fail("[nn.class] the base of '%s' is no module class", name)
  end
  if select("#", ...) > 0 then check.fail("[nn.class] too many arguments; nn.class(name, base)") end
  return class(name, base or Module)
end

require("moth.lang.lazy")(nn, here, files, "moth.nn")

getmetatable(nn).__names = function() -- for completion: all names, loaded or not
  local list = {}
  for name in each(files) do list[#list + 1] = name end
  for _, group in ipairs(groups) do
    for name in each(require(here .. group[1])) do list[#list + 1] = name end
  end
  return list
end

return nn
