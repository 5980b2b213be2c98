--- nn.Upsample, UpsamplingNearest2d, UpsamplingBilinear2d, PixelShuffle, PixelUnshuffle: images in other sizes; and
-- ChannelShuffle.
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local functional = require "moth.nn.functional"
local each = require "moth.each"

local M = {}

--- nn.Upsample{ scale_factor = 2, mode = "bilinear" }; options as those of F.interpolate.
local Upsample = class("Upsample", Module)
M.Upsample = Upsample
Upsample.__init = signature.init("nn.Upsample(int|int[] size?, number|number[] scale_factor?, string mode='nearest', \z
  bool align_corners?, bool recompute_scale_factor?)", function(self, o)
  if (o.size == nil) == (o.scale_factor == nil) then check.fail("[nn.Upsample] give size or scale_factor") end
  for key, value in each(o) do self[key] = value end
end)
function Upsample:forward(x)
  return functional.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners,
    self.recompute_scale_factor)
end
function Upsample:extra_repr()
  local what = self.size and "size" or "scale_factor"
  local v = self[what]
  local function shown(x)
    return what == "scale_factor" and x == math.floor(x) and ("%.1f"):format(x) or ("%.14g"):format(x)
  end
  if type(v) == "table" then
    local list = {}
    for i, x in ipairs(v) do list[i] = shown(x) end
    v = "(" .. table.concat(list, ", ") .. ")"
  else
    v = shown(v)
  end
  return ("%s=%s, mode='%s'"):format(what, v, self.mode)
end

for name, form in each({ PixelShuffle = "pixel_shuffle", PixelUnshuffle = "pixel_unshuffle" }) do
  local cls = class(name, Module)
  local argument = name == "PixelShuffle" and "upscale_factor" or "downscale_factor"
  cls.__init = signature.init(("nn.%s(count %s)"):format(name, argument), function(self, o)
    self[argument] = o[argument]
  end)
  function cls:forward(x) return functional[form](x, self[argument]) end
  function cls:extra_repr() return ("%s=%d"):format(argument, self[argument]) end
  M[name] = cls
end

--- nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d: Upsample of images; bilinear with align_corners.
for name, mode in each({ UpsamplingNearest2d = "nearest", UpsamplingBilinear2d = "bilinear" }) do
  local cls = class(name, Upsample)
  cls.__init = signature.init(("nn.%s(int|int[] size?, number|number[] scale_factor?)"):format(name), function(self, o)
    if (o.size == nil) == (o.scale_factor == nil) then check.fail("[nn.%s] give size or scale_factor", name) end
    self.size, self.scale_factor, self.mode = o.size, o.scale_factor, mode
    self.align_corners = mode == "bilinear" or nil
  end)
  M[name] = cls
end

--- nn.ChannelShuffle(groups): channels (N, C, …) of each group dealt out in turn.
M.ChannelShuffle = class("ChannelShuffle", Module)
M.ChannelShuffle.__init = signature.init("nn.ChannelShuffle(count groups)", function(self, o)
  self.groups = o.groups
end)
function M.ChannelShuffle:forward(x) return functional.channel_shuffle(x, self.groups) end
function M.ChannelShuffle:extra_repr() return ("groups=%d"):format(self.groups) end

return M
