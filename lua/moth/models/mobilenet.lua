--- models.mobilenet_v2: inverted residuals with depthwise convolutions (Sandler et al. 2018), with torchvision's names.
local nn = require "moth.nn"
local signature = require "moth.utils.signature"

-- A number of channels that 8 divides, and that is not 10 % smaller.
local function divisible(v)
  local out = math.max(8, math.floor(v + 4) - math.floor(v + 4) % 8)
  return out < 0.9 * v and out + 8 or out
end

local function conv_norm(from, to, kernel, stride, groups)
  return nn.Sequential(nn.Conv2d(from, to, kernel, { stride = stride, padding = (kernel - 1) / 2, groups = groups,
    bias = false }), nn.BatchNorm2d(to), nn.ReLU6())
end

local Inverted = nn.class("MobileNetV2.InvertedResidual")
function Inverted:__init(from, to, stride, expand)
  local hidden, list = from * expand, {}
  if expand ~= 1 then list[1] = conv_norm(from, hidden, 1, 1, 1) end
  list[#list + 1] = conv_norm(hidden, hidden, 3, stride, hidden)
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
  local list = { conv_norm(o.in_channels, from, 3, 2, 1) }
  for _, s in ipairs(stages) do
    local to = divisible(s[2] * o.width_mult)
    for i = 1, s[3] do
      list[#list + 1] = Inverted(from, to, i == 1 and s[4] or 1, s[1])
      from = to
    end
  end
  list[#list + 1] = conv_norm(from, last, 1, 1, 1)
  self.features = nn.Sequential(list)
  self.classifier = nn.Sequential(nn.Dropout(o.dropout), nn.Linear(last, o.num_classes))
  for _, m in self:named_modules() do
    if m.__name == "Conv2d" then
      nn.init.kaiming_normal_(m.weight, { mode = "fan_out" })
    elseif m.__name == "Linear" then
      nn.init.normal_(m.weight, 0, 0.01)
      nn.init.zeros_(m.bias)
    end
  end
end

--- x (N, 3, H, W) -> scores (N, num_classes)
function MobileNetV2:forward(x) return self.classifier(self.features(x):mean { 3, 4 }) end

--- MobileNetV2 (Sandler et al. 2018): images (N, in_channels, H, W) -> scores (N, num_classes). width_mult: of all
-- channels.
return signature("models.mobilenet_v2(*, count num_classes=1000, count in_channels=3, number width_mult=1, \z
  number dropout=0.2)", function(num_classes, in_channels, width_mult, dropout)
  return MobileNetV2 { num_classes = num_classes, in_channels = in_channels, width_mult = width_mult,
    dropout = dropout }
end)
