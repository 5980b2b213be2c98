--- models.UNet: an encoder and a decoder joined at each size, for segmentation (Ronneberger et al. 2015), with padding,
-- batch norms and any image size: what does not divide is padded at the joins.
local moth = require "moth"
local nn = require "moth.nn"
local signature = require "moth.utils.signature"
local F = nn.functional

local function double(from, to)
  return nn.Sequential(nn.Conv2d(from, to, 3, { padding = 1, bias = false }), nn.BatchNorm2d(to), nn.ReLU(),
    nn.Conv2d(to, to, 3, { padding = 1, bias = false }), nn.BatchNorm2d(to), nn.ReLU())
end

local UNet = nn.class("UNet")

--- depth: how often the image is halved; channels: of the first level, doubled at each
UNet.__init = signature.init("models.UNet(*, count in_channels=3, count num_classes=1, count channels=64, \z
  count depth=4)",
  function(self, o)
    local c = o.channels
    self.inc = double(o.in_channels, c)
    local down, up, join = {}, {}, {}
    for i = 1, o.depth do
      down[i] = double(c, 2 * c)
      c = 2 * c
    end
    for i = 1, o.depth do
      up[i] = nn.ConvTranspose2d(c, c / 2, 2, { stride = 2 })
      join[i] = double(c, c / 2)
      c = c / 2
    end
    self.down, self.up, self.join = nn.ModuleList(down), nn.ModuleList(up), nn.ModuleList(join)
    self.outc = nn.Conv2d(c, o.num_classes, 1)
  end)

--- x (N, in_channels, H, W) -> scores (N, num_classes, H, W)
function UNet:forward(x)
  local levels = { self.inc(x) }
  for i = 1, #self.down do levels[i + 1] = self.down[i](F.max_pool2d(levels[i], 2)) end
  local y = levels[#levels]
  for i = 1, #self.up do
    local skip = levels[#levels - i]
    y = self.up[i](y)
    local h, w = skip:size(3) - y:size(3), skip:size(4) - y:size(4)
    if h > 0 or w > 0 then y = F.pad(y, { 0, w, 0, h }) end
    y = self.join[i](moth.cat({ skip, y }, 2))
  end
  return self.outc(y)
end

return UNet
