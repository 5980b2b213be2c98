--- nn.Upsample, nn.PixelShuffle, nn.PixelUnshuffle: images in other sizes.
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
  bool align_corners?)", function(self, o)
  if (o.size == nil) == (o.scale_factor == nil) then check.fail("[nn.Upsample] give size or scale_factor") end
  for key, value in each(o) do self[key] = value end
end)
function Upsample:forward(x)
  return functional.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)
end
function Upsample:extra_repr()
  local what = self.size and "size" or "scale_factor"
  local v = self[what]
  v = type(v) == "table" and "(" .. table.concat(v, ", ") .. ")" or ("%.14g"):format(v)
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

return M
