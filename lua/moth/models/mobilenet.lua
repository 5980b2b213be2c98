--- models.mobilenet_v2, mobilenet_v3_large, mobilenet_v3_small: inverted residuals with depthwise convolutions (Sandler
-- et al. 2018, Howard et al. 2019), with torchvision's names.
local each = require "moth.each"
local nn = require "moth.nn"
local blocks = require "moth.models.blocks"
local signature = require "moth.utils.signature"
local conv_norm, divisible = blocks.conv_norm, blocks.divisible

local Inverted = nn.class("MobileNetV2.InvertedResidual")
function Inverted:__init(from, to, stride, expand)
  local hidden, list = from * expand, {}
  if expand ~= 1 then list[1] = conv_norm(from, hidden, 1, nn.ReLU6) end
  list[#list + 1] = conv_norm(hidden, hidden, 3, nn.ReLU6, { stride = stride, groups = hidden })
  list[#list + 1] = nn.Conv2d(hidden, to, 1, { bias = false })
  list[#list + 1] = nn.BatchNorm2d(to)
  self.conv, self.residual = nn.Sequential(list), stride == 1 and from == to
end
function Inverted:forward(x) return self.residual and x + self.conv(x) or self.conv(x) end

local MobileNetV2 = nn.class("MobileNetV2")

-- { expansion, channels, blocks, stride of the first }
local stages = { { 1, 16, 1, 1 }, { 6, 24, 2, 2 }, { 6, 32, 3, 2 }, { 6, 64, 4, 2 }, { 6, 96, 3, 1 }, { 6, 160, 3, 2 },
  { 6, 320, 1, 1 } }

function MobileNetV2:__init(o)
  local from, last = divisible(32 * o.width_mult), divisible(1280 * math.max(1, o.width_mult))
  local list = { conv_norm(o.in_channels, from, 3, nn.ReLU6, { stride = 2 }) }
  for _, s in ipairs(stages) do
    local to = divisible(s[2] * o.width_mult)
    for i = 1, s[3] do
      list[#list + 1] = Inverted(from, to, i == 1 and s[4] or 1, s[1])
      from = to
    end
  end
  list[#list + 1] = conv_norm(from, last, 1, nn.ReLU6)
  self.features = nn.Sequential(list)
  self.classifier = nn.Sequential(nn.Dropout(o.dropout), nn.Linear(last, o.num_classes))
  blocks.start(self, blocks.normal(0.01))
end

--- x (N, 3, H, W) -> scores (N, num_classes)
function MobileNetV2:forward(x) return self.classifier(self.features(x):mean { 3, 4 }) end

-- Version 3's batch norms.
local norm = { eps = 1e-3, momentum = 0.01 }

local Inverted3 = nn.class("MobileNetV3.InvertedResidual")
-- s: { kernel, hidden channels, channels that come out, squeezed, Hardswish, stride }
function Inverted3:__init(from, s, scaled)
  local kernel, hidden, to, stride = s[1], scaled(s[2]), scaled(s[3]), s[6]
  local activation, list = s[5] and nn.Hardswish or nn.ReLU, {}
  if hidden ~= from then list[1] = conv_norm(from, hidden, 1, activation, { norm = norm }) end
  list[#list + 1] = conv_norm(hidden, hidden, kernel, activation, { stride = stride, groups = hidden, norm = norm })
  if s[4] then
    list[#list + 1] = blocks.SqueezeExcitation(hidden, divisible(math.floor(hidden / 4)), nn.ReLU, nn.Hardsigmoid)
  end
  list[#list + 1] = conv_norm(hidden, to, 1, false, { norm = norm })
  self.block, self.residual = nn.Sequential(list), stride == 1 and from == to
end
function Inverted3:forward(x) return self.residual and x + self.block(x) or self.block(x) end

local MobileNetV3 = nn.class("MobileNetV3")
local T, F = true, false
local v3 = {
  large = { last = 1280, { 3, 16, 16, F, F, 1 }, { 3, 64, 24, F, F, 2 }, { 3, 72, 24, F, F, 1 }, { 5, 72, 40, T, F, 2 },
    { 5, 120, 40, T, F, 1 }, { 5, 120, 40, T, F, 1 }, { 3, 240, 80, F, T, 2 }, { 3, 200, 80, F, T, 1 },
    { 3, 184, 80, F, T, 1 }, { 3, 184, 80, F, T, 1 }, { 3, 480, 112, T, T, 1 }, { 3, 672, 112, T, T, 1 },
    { 5, 672, 160, T, T, 2 }, { 5, 960, 160, T, T, 1 }, { 5, 960, 160, T, T, 1 } },
  small = { last = 1024, { 3, 16, 16, T, F, 2 }, { 3, 72, 24, F, F, 2 }, { 3, 88, 24, F, F, 1 }, { 5, 96, 40, T, T, 2 },
    { 5, 240, 40, T, T, 1 }, { 5, 240, 40, T, T, 1 }, { 5, 120, 48, T, T, 1 }, { 5, 144, 48, T, T, 1 },
    { 5, 288, 96, T, T, 2 }, { 5, 576, 96, T, T, 1 }, { 5, 576, 96, T, T, 1 } },
}

function MobileNetV3:__init(setting, o)
  local function scaled(channels) return divisible(channels * o.width_mult) end
  local from = scaled(16)
  local list = { conv_norm(o.in_channels, from, 3, nn.Hardswish, { stride = 2, norm = norm }) }
  for _, s in ipairs(setting) do
    list[#list + 1] = Inverted3(from, s, scaled)
    from = scaled(s[3])
  end
  list[#list + 1] = conv_norm(from, 6 * from, 1, nn.Hardswish, { norm = norm })
  local last = scaled(setting.last)
  self.features = nn.Sequential(list)
  self.classifier = nn.Sequential(nn.Linear(6 * from, last), nn.Hardswish(), nn.Dropout(o.dropout),
    nn.Linear(last, o.num_classes))
  blocks.start(self, blocks.normal(0.01))
end

--- x (N, 3, H, W) -> scores (N, num_classes)
function MobileNetV3:forward(x) return self.classifier(self.features(x):mean { 3, 4 }) end

local M, options = {}, "(*, count num_classes=1000, count in_channels=3, number width_mult=1, number dropout=0.2)"

--- MobileNetV2 (Sandler et al. 2018): images (N, in_channels, H, W) -> scores (N, num_classes). width_mult: of all
-- channels.
M.mobilenet_v2 = signature("models.mobilenet_v2" .. options, function(num_classes, in_channels, width_mult, dropout)
  return MobileNetV2 { num_classes = num_classes, in_channels = in_channels, width_mult = width_mult,
    dropout = dropout }
end)
for size, setting in each(v3) do
  local name = "mobilenet_v3_" .. size
  --- MobileNetV3 (Howard et al. 2019), large or small: images (N, in_channels, H, W) -> scores (N, num_classes).
  -- width_mult: of all channels.
  M[name] = signature("models." .. name .. options, function(num_classes, in_channels, width_mult, dropout)
    return MobileNetV3(setting, { num_classes = num_classes, in_channels = in_channels, width_mult = width_mult,
      dropout = dropout })
  end)
end
return M
