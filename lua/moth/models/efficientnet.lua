--- models.efficientnet_b0 … b7, efficientnet_v2_s, _m, _l: inverted residuals with squeeze and excitation, scaled in
-- width and depth together (Tan and Le 2019, 2021), with torchvision's names.
local each = require "moth.each"
local nn = require "moth.nn"
local blocks = require "moth.models.blocks"
local signature = require "moth.utils.signature"
local conv_norm, divisible = blocks.conv_norm, blocks.divisible

-- s: fused, expansion, kernel; survival: p of the stochastic depth
local Block = nn.class("EfficientNet.MBConv")
function Block:__init(s, from, to, stride, p, norm)
  local hidden, list = divisible(from * s.expansion), {}
  if s.fused then
    list[1] = conv_norm(from, hidden ~= from and hidden or to, s.kernel, nn.SiLU, { stride = stride, norm = norm })
    if hidden ~= from then list[2] = conv_norm(hidden, to, 1, false, { norm = norm }) end
  else
    if hidden ~= from then list[1] = conv_norm(from, hidden, 1, nn.SiLU, { norm = norm }) end
    list[#list + 1] = conv_norm(hidden, hidden, s.kernel, nn.SiLU, { stride = stride, groups = hidden, norm = norm })
    list[#list + 1] = blocks.SqueezeExcitation(hidden, math.max(1, math.floor(from / 4)), nn.SiLU)
    list[#list + 1] = conv_norm(hidden, to, 1, false, { norm = norm })
  end
  self.block = nn.Sequential(list)
  self.residual = stride == 1 and from == to
  if self.residual then self.stochastic_depth = blocks.StochasticDepth(p) end
end
function Block:forward(x)
  return self.residual and x + self.stochastic_depth(self.block(x)) or self.block(x)
end

local EfficientNet = nn.class("EfficientNet")
-- stages: { fused, expansion, kernel, stride, channels before, channels, blocks }
function EfficientNet:__init(stages, last, norm, o)
  local from, total, done = stages[1].from, 0, 0
  for _, s in ipairs(stages) do total = total + s.blocks end
  local list = { conv_norm(o.in_channels, from, 3, nn.SiLU, { stride = 2, norm = norm }) }
  for _, s in ipairs(stages) do
    local stage = {}
    for i = 1, s.blocks do
      stage[i] = Block(s, from, s.to, i == 1 and s.stride or 1, o.stochastic_depth_prob * done / total, norm)
      from, done = s.to, done + 1
    end
    list[#list + 1] = nn.Sequential(stage)
  end
  last = last or 4 * from
  list[#list + 1] = conv_norm(from, last, 1, nn.SiLU, { norm = norm })
  self.features = nn.Sequential(list)
  self.classifier = nn.Sequential(nn.Dropout(o.dropout), nn.Linear(last, o.num_classes))
  blocks.start(self, function(weight)
    local bound = 1 / math.sqrt(weight:size(1))
    nn.init.uniform_(weight, -bound, bound)
  end)
end

--- x (N, 3, H, W) -> scores (N, num_classes)
function EfficientNet:forward(x) return self.classifier(self.features(x):mean { 3, 4 }) end

-- The stages of a text: "f" (fused) or "m", expansion, kernel, stride, channels before and after, blocks.
local function stages_of(text, width, depth)
  local out = {}
  for kind, expansion, kernel, stride, from, to, n in text:gmatch "(%a)(%d),(%d),(%d),(%d+),(%d+),(%d+)" do
    out[#out + 1] = { fused = kind == "f", expansion = tonumber(expansion), kernel = tonumber(kernel),
      stride = tonumber(stride), from = divisible(from * width), to = divisible(to * width),
      blocks = math.ceil(n * depth) }
  end
  return out
end

local b = "m1,3,1,32,16,1 m6,3,2,16,24,2 m6,5,2,24,40,2 m6,3,2,40,80,3 m6,5,1,80,112,3 m6,5,2,112,192,4 \z
  m6,3,1,192,320,1"
local late = { eps = 1e-3, momentum = 0.01 }
-- stages, width, depth, dropout, channels of the last convolution, options of the norms
local kinds = {
  b0 = { b, 1, 1, 0.2 }, b1 = { b, 1, 1.1, 0.2 }, b2 = { b, 1.1, 1.2, 0.3 }, b3 = { b, 1.2, 1.4, 0.3 },
  b4 = { b, 1.4, 1.8, 0.4 }, b5 = { b, 1.6, 2.2, 0.4, nil, late }, b6 = { b, 1.8, 2.6, 0.5, nil, late },
  b7 = { b, 2, 3.1, 0.5, nil, late },
  v2_s = { "f1,3,1,24,24,2 f4,3,2,24,48,4 f4,3,2,48,64,4 m4,3,2,64,128,6 m6,3,1,128,160,9 m6,3,2,160,256,15",
    1, 1, 0.2, 1280, { eps = 1e-3 } },
  v2_m = { "f1,3,1,24,24,3 f4,3,2,24,48,5 f4,3,2,48,80,5 m4,3,2,80,160,7 m6,3,1,160,176,14 m6,3,2,176,304,18 \z
    m6,3,1,304,512,5", 1, 1, 0.3, 1280, { eps = 1e-3 } },
  v2_l = { "f1,3,1,32,32,4 f4,3,2,32,64,7 f4,3,2,64,96,7 m4,3,2,96,192,10 m6,3,1,192,224,19 m6,3,2,224,384,25 \z
    m6,3,1,384,640,7", 1, 1, 0.4, 1280, { eps = 1e-3 } },
}

local M = {}
for kind, of in each(kinds) do
  local name = "efficientnet_" .. kind
  --- An EfficientNet (Tan and Le 2019; v2: 2021) of this size: images (N, in_channels, H, W) -> scores (N,
  -- num_classes). dropout: before the last layer (by default that of the size); stochastic_depth_prob: of the last
  -- block.
  M[name] = signature(("models.%s(*, count num_classes=1000, count in_channels=3, number dropout=%g, \z
    number stochastic_depth_prob=0.2)"):format(name, of[4]),
    function(num_classes, in_channels, dropout, stochastic_depth_prob)
      return EfficientNet(stages_of(of[1], of[2], of[3]), of[5], of[6], { num_classes = num_classes,
        in_channels = in_channels, dropout = dropout, stochastic_depth_prob = stochastic_depth_prob })
    end)
end
return M
