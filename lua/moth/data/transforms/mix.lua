--- Transforms of batches with their labels, for moth.transforms: MixUp (Zhang and others, 2018), CutMix (Yun and
-- others, 2019).
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local class = require "moth.class"
local layout = require "moth.data.layout"
local random_of = require "moth.data.transforms.distributions"
local signature = require "moth.utils.signature"

local random = math.random

-- The shares of the classes: of int64 labels (positions), or of floats (N, classes) as they are.
local function shares(self, y)
  if B.tensor_dtype(y).is_floating_point and B.dim(y) == 2 then
    if self.num_classes and B.size(y, 2) ~= self.num_classes then
      check.fail("[transforms.%s] the labels have %d classes, num_classes is %d", self.__name, B.size(y, 2),
        self.num_classes)
    end
    return y
  end
  if not self.num_classes then
    check.fail("[transforms.%s] num_classes is needed for labels that are numbers", self.__name)
  end
  return moth.zeros(B.size(y, 1), self.num_classes):scatter_(2, y:view(-1, 1), 1)
end

local function check_batch(self, x, y)
  if not B.is_tensor(x) or B.dim(x) ~= 4 or not B.is_tensor(y) or B.dim(y) < 1 or B.size(y, 1) ~= B.size(x, 1) then
    check.fail("[transforms.%s] expected images (N, C, H, W) and labels (N), got %s and %s", self.__name,
      B.is_tensor(x) and B.format(x) or type(x), B.is_tensor(y) and B.format(y) or type(y))
  end
  if layout.of(B.size(x, 2), B.size(x, 4)) == "last" then
    check.fail("[transforms.%s] expected images (N, C, H, W), got %s, whose channels come last: \z
      images:permute(1, 4, 2, 3), or ToTensor before it", self.__name, B.format(x))
  end
end

local function mixed(y, lambda) return y * lambda + y:roll(1, 1) * (1 - lambda) end

local M = {}

return function(Transform)
  local function define(name, mix)
    local T = class(name, Transform)
    T.__init = signature.init(("transforms.%s(number alpha=1, count num_classes?)"):format(name), function(self, o)
      self.alpha, self.num_classes = o.alpha, o.num_classes
      if o.alpha <= 0 then check.fail("[transforms.%s] alpha must be above 0, got %g", name, o.alpha) end
    end)
    function T.__call(self, x, y)
      check_batch(self, x, y)
      return mix(x, shares(self, y), random_of.beta(self.alpha))
    end
    function T.__tostring(self)
      return ("%s(alpha=%s, num_classes=%s)"):format(name, tostring(self.alpha), tostring(self.num_classes))
    end
    M[name] = T
  end

  --- mixup(images, labels) -> images, each mixed with the one before it; the shares of the classes (N, num_classes).
  define("MixUp", function(x, target, lambda) return mixed(x, lambda), mixed(target, lambda) end)

  --- The same, with a rectangle of the other image.
  define("CutMix", function(x, target, lambda)
    local h, w = B.size(x, 3), B.size(x, 4)
    local cut, cx, cy = math.sqrt(1 - lambda) / 2, random(0, w - 1), random(0, h - 1)
    local rx, ry = math.floor(cut * w), math.floor(cut * h)
    local left, right = math.max(cx - rx, 0), math.min(cx + rx, w)
    local top, bottom = math.max(cy - ry, 0), math.min(cy + ry, h)
    local out = x:clone()
    if right > left and bottom > top then
      local function part(t) return t:narrow(3, top + 1, bottom - top):narrow(4, left + 1, right - left) end
      part(out):copy_(part(x:roll(1, 1)))
    end
    return out, mixed(target, 1 - (right - left) * (bottom - top) / (w * h))
  end)

  return M
end
