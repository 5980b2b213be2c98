--- models.convnext_tiny, _small, _base, _large: depthwise 7 x 7 and two Linear, as in a transformer's block (Liu et al.
-- 2022), with torchvision's names.
local moth = require "moth"
local each = require "moth.each"
local nn = require "moth.nn"
local blocks = require "moth.models.blocks"
local signature = require "moth.utils.signature"

local Norm = nn.class("ConvNeXt.LayerNorm2d", nn.LayerNorm)
function Norm:forward(x) return nn.LayerNorm.forward(self, x:permute(1, 3, 4, 2)):permute(1, 4, 2, 3) end
local function norm(channels) return Norm(channels, { eps = 1e-6 }) end

local Block = nn.class("ConvNeXt.CNBlock")
function Block:__init(channels, scale, p)
  self.layer_scale = nn.Parameter(moth.full({ channels, 1, 1 }, scale))
  self.block = nn.Sequential(nn.Conv2d(channels, channels, 7, { padding = 3, groups = channels }),
    blocks.Permute { 1, 3, 4, 2 }, nn.LayerNorm(channels, { eps = 1e-6 }), nn.Linear(channels, 4 * channels), nn.GELU(),
    nn.Linear(4 * channels, channels), blocks.Permute { 1, 4, 2, 3 })
  self.stochastic_depth = blocks.StochasticDepth(p)
end
function Block:forward(x) return x + self.stochastic_depth(self.layer_scale * self.block(x)) end

local ConvNeXt = nn.class("ConvNeXt")
function ConvNeXt:__init(channels, depths, o)
  local total, done = -1, 0
  for _, n in ipairs(depths) do total = total + n end
  local list = { nn.Sequential(nn.Conv2d(o.in_channels, channels[1], 4, { stride = 4 }), norm(channels[1])) }
  for i, n in ipairs(depths) do
    local stage = {}
    for k = 1, n do
      stage[k] = Block(channels[i], o.layer_scale, o.stochastic_depth_prob * done / total)
      done = done + 1
    end
    list[#list + 1] = nn.Sequential(stage)
    if channels[i + 1] then
      list[#list + 1] = nn.Sequential(norm(channels[i]), nn.Conv2d(channels[i], channels[i + 1], 2, { stride = 2 }))
    end
  end
  self.features, self.avgpool = nn.Sequential(list), nn.AdaptiveAvgPool2d(1)
  local last = channels[#channels]
  self.classifier = nn.Sequential(norm(last), nn.Flatten(), nn.Linear(last, o.num_classes))
  for _, m in self:named_modules() do
    if m.__name == "Conv2d" or m.__name == "Linear" then
      nn.init.trunc_normal_(m.weight, { std = 0.02 })
      nn.init.zeros_(m.bias)
    end
  end
end

--- x (N, 3, H, W) -> scores (N, num_classes)
function ConvNeXt:forward(x) return self.classifier(self.avgpool(self.features(x))) end

local M = {}
for size, of in each { tiny = { 96, { 3, 3, 9, 3 }, 0.1 }, small = { 96, { 3, 3, 27, 3 }, 0.4 },
  base = { 128, { 3, 3, 27, 3 }, 0.5 }, large = { 192, { 3, 3, 27, 3 }, 0.5 } } do
  local name, c = "convnext_" .. size, of[1]
  --- A ConvNeXt (Liu et al. 2022) of this size: images (N, in_channels, H, W) -> scores (N, num_classes). layer_scale:
  -- what the branches are multiplied by at first; stochastic_depth_prob: of the last block.
  M[name] = signature(("models.%s(*, count num_classes=1000, count in_channels=3, number stochastic_depth_prob=%g, \z
    number layer_scale=1e-6)"):format(name, of[3]),
    function(num_classes, in_channels, stochastic_depth_prob, layer_scale)
      return ConvNeXt({ c, 2 * c, 4 * c, 8 * c }, of[2], { num_classes = num_classes, in_channels = in_channels,
        stochastic_depth_prob = stochastic_depth_prob, layer_scale = layer_scale })
    end)
end
return M
