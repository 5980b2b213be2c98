--- moth.nn: modules, losses, functional forms, initialisers. Each file is loaded when it is first asked for.
local class = require "moth.class"
local check = require "moth.utils.check"

local here = "moth.nn."

-- name -> file, or { file, field }
local files = {
  Module = "module", Parameter = "parameter", Sequential = "sequential", ModuleList = "module_list",
  ModuleDict = "module_dict", Linear = "linear", Flatten = "flatten", Unflatten = "unflatten",
  Identity = "identity", Embedding = "embedding", MultiheadAttention = "multihead_attention",
  functional = "functional", init = "init_", utils = "utils",
}
for _, name in ipairs({ "ReLU", "LeakyReLU", "ELU", "GELU", "SiLU", "Mish", "Softplus", "Hardtanh", "Sigmoid",
  "LogSigmoid", "Tanh", "Softmax", "LogSoftmax" }) do
  files[name] = { "activation", name }
end
for _, name in ipairs({ "CrossEntropyLoss", "NLLLoss", "MSELoss", "L1Loss", "BCEWithLogitsLoss", "BCELoss",
  "SmoothL1Loss", "HuberLoss", "KLDivLoss", "SoftMarginLoss", "HingeEmbeddingLoss", "PoissonNLLLoss",
  "MarginRankingLoss", "CosineEmbeddingLoss", "TripletMarginLoss", "GaussianNLLLoss", "CosineSimilarity",
  "PairwiseDistance" }) do
  files[name] = { "loss", name }
end

for _, name in ipairs({ "Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d" }) do
  files[name] = { "conv", name }
end
for _, name in ipairs({ "MaxPool1d", "MaxPool2d", "AvgPool1d", "AvgPool2d", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d",
  "AdaptiveMaxPool2d", "Unfold", "Fold" }) do
  files[name] = { "pool", name }
end
for _, name in ipairs({ "ReLU6", "SELU", "CELU", "Hardsigmoid", "Hardswish", "Softsign", "GLU" }) do
  files[name] = { "activation", name }
end
files.PReLU = "prelu"
for _, name in ipairs({ "Dropout", "Dropout1d", "Dropout2d", "Dropout3d" }) do files[name] = { "dropout", name } end
for _, name in ipairs({ "Upsample", "PixelShuffle", "PixelUnshuffle" }) do files[name] = { "resize", name } end
for _, name in ipairs({ "RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell" }) do files[name] = { "rnn", name } end
for _, name in ipairs({ "TransformerEncoderLayer", "TransformerEncoder", "TransformerDecoderLayer",
  "TransformerDecoder", "Transformer" }) do
  files[name] = { "transformer", name }
end
for _, name in ipairs({ "LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d",
  "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d" }) do
  files[name] = { "norm", name }
end
for _, name in ipairs({ "ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad" }) do
  for n = 1, 3 do files[name .. n .. "d"] = { "padding", name .. n .. "d" } end
end

local nn = {}

--- A module class: `local Net = nn.class("Net")`. @param[opt] base nn.Module or a class made from it
function nn.class(name, base)
  local Module = require "moth.nn.module"
  if base and not base.__module then check.fail("nn.class: the base of '%s' is no module class", tostring(name)) end
  return class(name, base or Module)
end

return require("moth.lazy")(nn, here, files)
