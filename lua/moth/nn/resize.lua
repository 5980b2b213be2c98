--- nn.Upsample, nn.PixelShuffle, nn.PixelUnshuffle: images in other sizes.
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"
local functional = require "moth.nn.functional"
local each = require "moth.each"

local M = {}

--- nn.Upsample{ scale_factor = 2, mode = "bilinear" }; options as those of F.interpolate.
local Upsample = class("Upsample", Module)
M.Upsample = Upsample
function Upsample:__init(o)
  self.options = check.options("nn.Upsample", o, "size scale_factor mode align_corners")
  if (self.options.size == nil) == (self.options.scale_factor == nil) then
    check.fail("nn.Upsample: give size or scale_factor")
  end
end
function Upsample:forward(x) return functional.interpolate(x, self.options) end
function Upsample:extra_repr()
  local o = self.options
  local what = o.size and "size" or "scale_factor"
  local v = o[what]
  v = type(v) == "table" and "(" .. table.concat(v, ", ") .. ")" or ("%.14g"):format(v)
  return ("%s=%s, mode='%s'"):format(what, v, o.mode or "nearest")
end

for name, form in each({ PixelShuffle = "pixel_shuffle", PixelUnshuffle = "pixel_unshuffle" }) do
  local cls = class(name, Module)
  local argument = name == "PixelShuffle" and "upscale_factor" or "downscale_factor"
  function cls:__init(factor) self[argument] = check.integer("nn." .. name, argument, factor, 1) end
  function cls:forward(x) return functional[form](x, self[argument]) end
  function cls:extra_repr() return ("%s=%d"):format(argument, self[argument]) end
  M[name] = cls
end

return M
