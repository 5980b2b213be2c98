--- models.densenet121, densenet161, densenet169, densenet201: each layer sees the features of all before it (Huang et
-- al. 2017), with torchvision's names.
local moth = require "moth"
local each = require "moth.each"
local nn = require "moth.nn"
local signature = require "moth.utils.signature"

local Layer = nn.class("DenseNet.Layer")
function Layer:__init(from, growth, dropout)
  self.norm1, self.conv1 = nn.BatchNorm2d(from), nn.Conv2d(from, 4 * growth, 1, { bias = false })
  self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, { padding = 1, bias = false })
  self.relu, self.dropout = nn.ReLU(), nn.Dropout(dropout)
end
function Layer:forward(features)
  local x = self.conv1(self.relu(self.norm1(moth.cat(features, 2))))
  return self.dropout(self.conv2(self.relu(self.norm2(x))))
end

local Block = nn.class("DenseNet.Block")
function Block:__init(from, layers, growth, dropout)
  for i = 1, layers do self["denselayer" .. i] = Layer(from + (i - 1) * growth, growth, dropout) end
end
function Block:forward(x)
  local features = { x }
  for _, layer in self:named_children() do features[#features + 1] = layer(features) end
  return moth.cat(features, 2)
end

local function transition(from, to)
  return nn.Sequential { { "norm", nn.BatchNorm2d(from) }, { "relu", nn.ReLU() },
    { "conv", nn.Conv2d(from, to, 1, { bias = false }) }, { "pool", nn.AvgPool2d(2, { stride = 2 }) } }
end

local DenseNet = nn.class("DenseNet")
-- layers: of each of the four blocks; first: channels before them
function DenseNet:__init(layers, growth, first, o)
  local list = { { "conv0", nn.Conv2d(o.in_channels, first, 7, { stride = 2, padding = 3, bias = false }) },
    { "norm0", nn.BatchNorm2d(first) }, { "relu0", nn.ReLU() },
    { "pool0", nn.MaxPool2d(3, { stride = 2, padding = 1 }) } }
  local from = first
  for i, n in ipairs(layers) do
    list[#list + 1] = { "denseblock" .. i, Block(from, n, growth, o.dropout) }
    from = from + n * growth
    if i < #layers then
      list[#list + 1] = { "transition" .. i, transition(from, math.floor(from / 2)) }
      from = math.floor(from / 2)
    end
  end
  list[#list + 1] = { "norm5", nn.BatchNorm2d(from) }
  self.features, self.classifier = nn.Sequential(list), nn.Linear(from, o.num_classes)
  for _, m in self:named_modules() do
    if m.__name == "Conv2d" then nn.init.kaiming_normal_(m.weight) end
  end
  nn.init.zeros_(self.classifier.bias)
end

--- x (N, 3, H, W) -> scores (N, num_classes)
function DenseNet:forward(x) return self.classifier(moth.relu(self.features(x)):mean { 3, 4 }) end

local M = {}
for name, of in each { densenet121 = { { 6, 12, 24, 16 }, 32, 64 }, densenet161 = { { 6, 12, 36, 24 }, 48, 96 },
  densenet169 = { { 6, 12, 32, 32 }, 32, 64 }, densenet201 = { { 6, 12, 48, 32 }, 32, 64 } } do
  --- A DenseNet (Huang et al. 2017) of this depth: images (N, in_channels, H, W) -> scores (N, num_classes). dropout:
  -- after each layer.
  M[name] = signature(("models.%s(*, count num_classes=1000, count in_channels=3, number dropout=0)"):format(name),
    function(num_classes, in_channels, dropout)
      return DenseNet(of[1], of[2], of[3], { num_classes = num_classes, in_channels = in_channels, dropout = dropout })
    end)
end
return M
