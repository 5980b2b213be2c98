--- models.resnet18 … resnet152, resnext50_32x4d, resnext101_32x8d, resnext101_64x4d, wide_resnet50_2 and
-- wide_resnet101_2: residual networks (He et al. 2015), with torchvision's names, so that its checkpoints load.
--
--     local net = moth.models.resnet18 { num_classes = 1000 }
--     net:load_state_dict(moth.load "resnet18-f37072fd.pth")
--     net.fc = nn.Linear(net.fc.in_features, 2)                       -- for other classes
local moth = require "moth"
local each = require "moth.each"
local nn = require "moth.nn"
local signature = require "moth.utils.signature"

local function conv3x3(from, to, stride, groups)
  return nn.Conv2d(from, to, 3, { stride = stride, padding = 1, groups = groups, bias = false })
end

local Basic = nn.class("ResNet.BasicBlock")
Basic.expansion = 1
function Basic:__init(norm, from, planes, stride, downsample)
  self.conv1, self.bn1 = conv3x3(from, planes, stride), norm(planes)
  self.relu = nn.ReLU()
  self.conv2, self.bn2 = conv3x3(planes, planes, 1), norm(planes)
  if downsample then self.downsample = downsample end
end
function Basic:forward(x)
  local y = self.relu(self.bn1(self.conv1(x)))
  y = self.bn2(self.conv2(y))
  return self.relu(y + (self.downsample and self.downsample(x) or x))
end

local Bottleneck = nn.class("ResNet.Bottleneck")
Bottleneck.expansion = 4
function Bottleneck:__init(norm, from, planes, stride, downsample, groups, width_per_group)
  local width = planes * width_per_group / 64 * groups
  self.conv1, self.bn1 = nn.Conv2d(from, width, 1, { bias = false }), norm(width)
  self.conv2, self.bn2 = conv3x3(width, width, stride, groups), norm(width)
  self.conv3, self.bn3 = nn.Conv2d(width, planes * 4, 1, { bias = false }), norm(planes * 4)
  self.relu = nn.ReLU()
  if downsample then self.downsample = downsample end
end
function Bottleneck:forward(x)
  local y = self.relu(self.bn1(self.conv1(x)))
  y = self.relu(self.bn2(self.conv2(y)))
  y = self.bn3(self.conv3(y))
  return self.relu(y + (self.downsample and self.downsample(x) or x))
end

local ResNet = nn.class("ResNet")

local function stage(self, block, planes, blocks, stride, groups, width_per_group)
  local list = {}
  for i = 1, blocks do
    local s = i == 1 and stride or 1
    local out, downsample = planes * block.expansion, nil
    if s ~= 1 or self.planes ~= out then
      downsample = nn.Sequential(nn.Conv2d(self.planes, out, 1, { stride = s, bias = false }), self.norm(out))
    end
    list[i] = block(self.norm, self.planes, planes, s, downsample, groups, width_per_group)
    self.planes = out
  end
  return nn.Sequential(list)
end

-- block: BasicBlock or Bottleneck; layers: blocks of each of the four stages; groups and width_per_group: of the
-- Bottleneck's 3 x 3; small_images: a first layer for images of about 32 x 32 (3 x 3, without pooling).
function ResNet:__init(block, layers, groups, width_per_group, o)
  self.planes, self.norm = 64, o.norm_layer or nn.BatchNorm2d
  self.conv1 = o.small_images and conv3x3(o.in_channels, 64, 1)
    or nn.Conv2d(o.in_channels, 64, 7, { stride = 2, padding = 3, bias = false })
  self.bn1, self.relu = self.norm(64), nn.ReLU()
  self.maxpool = o.small_images and nn.Identity() or nn.MaxPool2d(3, { stride = 2, padding = 1 })
  for i, planes in ipairs { 64, 128, 256, 512 } do
    self["layer" .. i] = stage(self, block, planes, layers[i], i == 1 and 1 or 2, groups, width_per_group)
  end
  self.avgpool = nn.AdaptiveAvgPool2d(1)
  self.fc = nn.Linear(512 * block.expansion, o.num_classes)
  self.planes, self.norm = nil, nil
  for _, m in self:named_modules() do
    if m.__name == "Conv2d" then nn.init.kaiming_normal_(m.weight, { mode = "fan_out", nonlinearity = "relu" }) end
  end
end

--- The features of the last stage: x (N, 3, H, W) -> (N, 512 or 2048, H / 32, W / 32)
function ResNet:features(x)
  x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
  return self.layer4(self.layer3(self.layer2(self.layer1(x))))
end

--- x (N, 3, H, W) -> scores (N, num_classes)
function ResNet:forward(x) return self.fc(moth.flatten(self.avgpool(self:features(x)), 2)) end

local M = {}
local r50, r101 = { 3, 4, 6, 3 }, { 3, 4, 23, 3 }
for name, of in each { resnet18 = { Basic, { 2, 2, 2, 2 } }, resnet34 = { Basic, r50 },
  resnet50 = { Bottleneck, r50, 1, 64 }, resnet101 = { Bottleneck, r101, 1, 64 },
  resnet152 = { Bottleneck, { 3, 8, 36, 3 }, 1, 64 }, resnext50_32x4d = { Bottleneck, r50, 32, 4 },
  resnext101_32x8d = { Bottleneck, r101, 32, 8 }, resnext101_64x4d = { Bottleneck, r101, 64, 4 },
  wide_resnet50_2 = { Bottleneck, r50, 1, 128 }, wide_resnet101_2 = { Bottleneck, r101, 1, 128 } } do
  local text = "models.%s(*, count num_classes=1000, count in_channels=3, bool small_images=false, \z
    callable norm_layer?)"
  --- A ResNet (He et al. 2015; ResNeXt: Xie et al. 2017; wide: Zagoruyko and Komodakis 2016) of this depth: images
  -- (N, in_channels, H, W) -> scores (N, num_classes). small_images: for 32 x 32, without the first pooling;
  -- norm_layer: makes a norm of so many channels.
  M[name] = signature(text:format(name), function(num_classes, in_channels, small_images, norm_layer)
    return ResNet(of[1], of[2], of[3], of[4], { num_classes = num_classes, in_channels = in_channels,
      small_images = small_images, norm_layer = norm_layer })
  end)
end
return M
