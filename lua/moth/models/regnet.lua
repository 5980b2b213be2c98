--- models.regnet_x_400mf … 32gf, regnet_y_400mf … 128gf: residual networks whose widths are a line (Radosavovic et
-- al. 2020), Y with squeeze and excitation; with torchvision's names.
local each = require "moth.each"
local nn = require "moth.nn"
local blocks = require "moth.models.blocks"
local signature = require "moth.utils.signature"
local conv_norm = blocks.conv_norm

local function round(v) -- half to even, as Python
  local low = math.floor(v)
  local rest = v - low
  return (rest > 0.5 or rest == 0.5 and low % 2 == 1) and low + 1 or low
end

local Block = nn.class("RegNet.Block")
function Block:__init(from, to, stride, group_width, squeeze)
  if from ~= to or stride ~= 1 then self.proj = conv_norm(from, to, 1, false, { stride = stride }) end
  local list = { { "a", conv_norm(from, to, 1, nn.ReLU) },
    { "b", conv_norm(to, to, 3, nn.ReLU, { stride = stride, groups = to / group_width }) } }
  if squeeze then list[3] = { "se", blocks.SqueezeExcitation(to, round(squeeze * from)) } end
  list[#list + 1] = { "c", conv_norm(to, to, 1, false) }
  self.f, self.activation = nn.Sequential(list), nn.ReLU()
end
function Block:forward(x) return self.activation((self.proj and self.proj(x) or x) + self.f(x)) end

-- The stages of { depth, first width, slope, ratio of widths, width of groups }: { width, blocks, width of groups }.
local function stages_of(depth, first, slope, ratio, group_width)
  local out = {}
  for i = 0, depth - 1 do
    local power = round(math.log((i * slope + first) / first) / math.log(ratio))
    local width = round(first * ratio ^ power / 8) * 8
    if not out[#out] or out[#out].at ~= width then out[#out + 1] = { at = width, blocks = 0 } end
    out[#out].blocks = out[#out].blocks + 1
  end
  for _, s in ipairs(out) do
    s.group_width = math.min(group_width, s.at)
    s.width = blocks.divisible(s.at, s.group_width)
  end
  return out
end

local RegNet = nn.class("RegNet")
function RegNet:__init(stages, squeeze, o)
  self.stem = conv_norm(o.in_channels, 32, 3, nn.ReLU, { stride = 2 })
  local from, trunk = 32, {}
  for i, s in ipairs(stages) do
    local stage = {}
    for k = 1, s.blocks do
      stage[k] = { ("block%d-%d"):format(i, k - 1), Block(from, s.width, k == 1 and 2 or 1, s.group_width, squeeze) }
      from = s.width
    end
    trunk[i] = { "block" .. i, nn.Sequential(stage) }
  end
  self.trunk_output, self.fc = nn.Sequential(trunk), nn.Linear(from, o.num_classes)
  blocks.start(self, blocks.normal(0.01))
end

--- x (N, 3, H, W) -> scores (N, num_classes)
function RegNet:forward(x) return self.fc(self.trunk_output(self.stem(x)):mean { 3, 4 }) end

local kinds = {
  y_400mf = { 16, 48, 27.89, 2.09, 8 }, y_800mf = { 14, 56, 38.84, 2.4, 16 }, y_1_6gf = { 27, 48, 20.71, 2.65, 24 },
  y_3_2gf = { 21, 80, 42.63, 2.66, 24 }, y_8gf = { 17, 192, 76.82, 2.19, 56 }, y_16gf = { 18, 200, 106.23, 2.48, 112 },
  y_32gf = { 20, 232, 115.89, 2.53, 232 }, y_128gf = { 27, 456, 160.83, 2.52, 264 },
  x_400mf = { 22, 24, 24.48, 2.54, 16 }, x_800mf = { 16, 56, 35.73, 2.28, 16 }, x_1_6gf = { 18, 80, 34.01, 2.25, 24 },
  x_3_2gf = { 25, 88, 26.31, 2.25, 48 }, x_8gf = { 23, 80, 49.56, 2.88, 120 }, x_16gf = { 22, 216, 55.59, 2.1, 128 },
  x_32gf = { 23, 320, 69.86, 2, 168 },
}
local M = {}
for kind, of in each(kinds) do
  local name, squeeze = "regnet_" .. kind, kind:sub(1, 1) == "y" and 0.25 or nil
  --- A RegNet (Radosavovic et al. 2020) of so many operations: images (N, in_channels, H, W) -> scores (N,
  -- num_classes).
  M[name] = signature(("models.%s(*, count num_classes=1000, count in_channels=3)"):format(name),
    function(num_classes, in_channels)
      return RegNet(stages_of(unpack(of)), squeeze, { num_classes = num_classes, in_channels = in_channels })
    end)
end
return M
