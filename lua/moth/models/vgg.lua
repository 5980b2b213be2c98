--- models.vgg11, vgg13, vgg16, vgg19 and vgg11_bn …: plain stacks of 3 x 3 convolutions (Simonyan and Zisserman 2015),
-- with torchvision's names.
local moth = require "moth"
local each = require "moth.each"
local nn = require "moth.nn"
local signature = require "moth.utils.signature"

local VGG = nn.class("VGG")

-- plan: channels of each convolution, and "M" for pooling
function VGG:__init(plan, batch_norm, o)
  local list, from = {}, o.in_channels
  for word in plan:gmatch "%w+" do
    if word == "M" then
      list[#list + 1] = nn.MaxPool2d(2, { stride = 2 })
    else
      local to = tonumber(word)
      list[#list + 1] = nn.Conv2d(from, to, 3, { padding = 1 })
      if batch_norm then list[#list + 1] = nn.BatchNorm2d(to) end
      list[#list + 1] = nn.ReLU()
      from = to
    end
  end
  self.features = nn.Sequential(list)
  self.avgpool = nn.AdaptiveAvgPool2d(7)
  self.classifier = nn.Sequential(nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout(o.dropout), nn.Linear(4096, 4096),
    nn.ReLU(), nn.Dropout(o.dropout), nn.Linear(4096, o.num_classes))
  for _, m in self:named_modules() do
    if m.__name == "Conv2d" then
      nn.init.kaiming_normal_(m.weight, { mode = "fan_out", nonlinearity = "relu" })
      nn.init.zeros_(m.bias)
    elseif m.__name == "Linear" then
      nn.init.normal_(m.weight, 0, 0.01)
      nn.init.zeros_(m.bias)
    end
  end
end

--- x (N, 3, H, W) -> scores (N, num_classes)
function VGG:forward(x) return self.classifier(moth.flatten(self.avgpool(self.features(x)), 2)) end

local plans = {
  vgg11 = "64 M 128 M 256 256 M 512 512 M 512 512 M",
  vgg13 = "64 64 M 128 128 M 256 256 M 512 512 M 512 512 M",
  vgg16 = "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M",
  vgg19 = "64 64 M 128 128 M 256 256 256 256 M 512 512 512 512 M 512 512 512 512 M",
}

local M = {}
for name, plan in each(plans) do
  for _, batch_norm in ipairs { false, true } do
    local full = batch_norm and name .. "_bn" or name
    --- A VGG (Simonyan and Zisserman 2014) of this depth, _bn with batch norms: images (N, in_channels, H, W) ->
    -- scores (N, num_classes).
    M[full] = signature(("models.%s(*, count num_classes=1000, count in_channels=3, number dropout=0.5)"):format(full),
      function(num_classes, in_channels, dropout)
        return VGG(plan, batch_norm, { num_classes = num_classes, in_channels = in_channels, dropout = dropout })
      end)
  end
end
return M
