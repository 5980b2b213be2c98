--- moth.nn: modules, losses, functional forms, initialisers. Each file is loaded when it is first asked for.
local class = require "moth.class"
local check = require "moth.utils.check"

local here = "moth.nn."

-- name -> file
local files = {
  Module = "module", Parameter = "parameter", Sequential = "sequential", ModuleList = "module_list",
  ModuleDict = "module_dict", Linear = "linear", Flatten = "flatten", Unflatten = "unflatten",
  Identity = "identity", Embedding = "embedding", MultiheadAttention = "multihead_attention",
  PReLU = "prelu", functional = "functional", init = "init_", utils = "utils",
}

-- Files with several classes, each under its name.
local groups = {
  { "activation", "LU", "^Soft", "^Hard", "Sigmoid$", "Tanh" }, { "conv", "^Conv" }, { "dropout", "^Dropout" },
  { "loss", "Loss$" }, { "norm", "Norm" }, { "padding", "Pad%dd$" }, { "pool", "Pool%dd$", "[fF]old$" },
  { "resize", "^Pixel", "^Upsample" }, { "rnn", "RNN", "LSTM", "GRU" }, { "transformer", "^Transformer" },
}

local nn = {}

--- A module class: `local Net = nn.class("Net")`. @param[opt] base nn.Module or a class made from it
function nn.class(name, base)
  local Module = require "moth.nn.module"
  if base and not base.__module then check.fail("nn.class: the base of '%s' is no module class", tostring(name)) end
  return class(name, base or Module)
end

return require("moth.lazy")(nn, here, files, "moth.nn", groups)
