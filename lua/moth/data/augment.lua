--- Transforms that change images, for moth.transforms. What is random is drawn anew for each image, from math.random,
-- which moth.manual_seed and loaders seed.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local class = require "moth.class"
local layout = require "moth.data.layout"
local signature = require "moth.utils.signature"
local F = require "moth.data.image_ops"

local M = { functional = F }

local random = math.random
local function between(low, high) return low + (high - low) * random() end
local function pair(size)
  if type(size) == "number" then return { size, size } end
  return size[2] and size or { size[1], size[1] }
end
local function text(v) return type(v) == "table" and "{" .. table.concat(v, ", ") .. "}" or tostring(v) end

return function(Transform)
  -- A transform of one image: its parameters, the fields that are printed, a function that prepares it, and one that
  -- applies it.
  local function define(name, parameters, shown, init, call)
    local T = class(name, Transform)
    T.__init = signature.init(("transforms.%s(%s)"):format(name, parameters), function(self, o)
      for key, value in require "moth.each"(o) do self[key] = value end
      if init then init(self) end
    end)
    function T.__call(self, x, labels)
      if self.transforms then return call(self, x) end -- each of them enters by itself
      return F.enter(name, x, function(image) return call(self, image, labels) end)
    end
    function T.__tostring(self)
      local parts = {}
      for key in shown:gmatch("%S+") do parts[#parts + 1] = key .. "=" .. text(self[key]) end
      return name .. "(" .. table.concat(parts, ", ") .. ")"
    end
    M[name] = T
    return T
  end

  local function probability(self)
    if self.p < 0 or self.p > 1 then
      check.fail("[transforms.%s] p must be from 0 to 1, got %g", self.__name, self.p)
    end
  end

  -- { low, high } of a number n (from -n to n, or around 1) or of two.
  local function range(self, key, around)
    local v = self[key]
    if v == nil then return end
    if type(v) == "number" then
      if v < 0 then check.fail("[transforms.%s] %s must be at least 0, got %g", self.__name, key, v) end
      v = around and { math.max(around - v, 0), around + v } or { -v, v }
    end
    if #v ~= 2 or v[1] > v[2] then
      check.fail("[transforms.%s] %s is a number or { low, high }, got %s", self.__name, key, text(v))
    end
    self[key] = v
  end

  define("Resize", "count|count[] size, 'nearest'|'box'|'bilinear'|'bicubic' interpolation='bilinear', \z
    bool antialias=true", "size interpolation antialias", nil,
    function(self, x) return F.resize(x, self.size, self.interpolation, self.antialias) end)

  -- Where the middle m of n begins; a half is rounded to even, or, where the image is smaller, towards it.
  local function middle(n, m)
    local half = math.floor(math.abs(n - m) / 2)
    if n < m then return 1 - half end
    return 1 + half + ((n - m) % 2 == 1 and half % 2 or 0)
  end
  define("CenterCrop", "count|count[] size", "size", function(self) self.size = pair(self.size) end, function(self, x)
    local h, w = F.size("CenterCrop", x)
    local height, width = self.size[1], self.size[2]
    return F.crop(x, middle(h, height), middle(w, width), height, width)
  end)

  define("Pad", "size|size[] padding, number fill=0, 'constant'|'edge'|'reflect' padding_mode='constant'",
    "padding fill padding_mode", nil, function(self, x) return F.pad(x, self.padding, self.fill, self.padding_mode) end)

  define("RandomCrop", "count|count[] size, size|size[] padding?, bool pad_if_needed=false, number fill=0, \z
    'constant'|'edge'|'reflect' padding_mode='constant'", "size padding",
    function(self) self.size = pair(self.size) end, function(self, x)
      if self.padding then x = F.pad(x, self.padding, self.fill, self.padding_mode) end
      local h, w = F.size("RandomCrop", x)
      local height, width = self.size[1], self.size[2]
      if self.pad_if_needed and (h < height or w < width) then
        x = F.pad(x, { math.max(width - w, 0), math.max(height - h, 0) }, self.fill, self.padding_mode)
        h, w = F.size("RandomCrop", x)
      end
      if h < height or w < width then
        check.fail("[transforms.RandomCrop] the image of %d x %d is smaller than the crop of %d x %d; HINT: "
          .. "pad_if_needed = true", h, w, height, width)
      end
      return F.crop(x, random(1, h - height + 1), random(1, w - width + 1), height, width)
    end)

  define("RandomResizedCrop", "count|count[] size, number[] scale?, number[] ratio?, \z
    'nearest'|'box'|'bilinear'|'bicubic' interpolation='bilinear', bool antialias=true", "size scale ratio",
    function(self)
      self.size, self.scale, self.ratio = pair(self.size), self.scale or { 0.08, 1 }, self.ratio or { 3 / 4, 4 / 3 }
    end, function(self, x)
      local h, w = F.size("RandomResizedCrop", x)
      local top, left, height, width
      for _ = 1, 10 do
        local area = h * w * between(self.scale[1], self.scale[2])
        local ratio = math.exp(between(math.log(self.ratio[1]), math.log(self.ratio[2])))
        width, height = math.floor(math.sqrt(area * ratio) + 0.5), math.floor(math.sqrt(area / ratio) + 0.5)
        if width >= 1 and width <= w and height >= 1 and height <= h then
          top, left = random(1, h - height + 1), random(1, w - width + 1)
          break
        end
      end
      if not top then -- the largest part of an allowed ratio, in the middle
        local ratio = math.min(math.max(w / h, self.ratio[1]), self.ratio[2])
        width, height = math.min(w, math.floor(h * ratio + 0.5)), math.min(h, math.floor(w / ratio + 0.5))
        top, left = math.floor((h - height) / 2) + 1, math.floor((w - width) / 2) + 1
      end
      return F.resize(F.crop(x, top, left, height, width), self.size, self.interpolation, self.antialias)
    end)

  define("RandomHorizontalFlip", "number p=0.5", "p", probability,
    function(self, x) return random() < self.p and F.hflip(x) or x end)
  define("RandomVerticalFlip", "number p=0.5", "p", probability,
    function(self, x) return random() < self.p and F.vflip(x) or x end)

  define("RandomRotation", "number|number[] degrees, 'nearest'|'bilinear' interpolation='nearest', number fill=0",
    "degrees", function(self) range(self, "degrees") end,
    function(self, x) return F.rotate(x, between(self.degrees[1], self.degrees[2]), self.interpolation, self.fill) end)

  define("RandomAffine", "number|number[] degrees, number[] translate?, number[] scale?, number|number[] shear?, \z
    'nearest'|'bilinear' interpolation='nearest', number fill=0", "degrees", function(self)
      range(self, "degrees")
      range(self, "shear")
      for _, v in ipairs(self.translate or {}) do
        if v < 0 or v > 1 then check.fail("[transforms.RandomAffine] translate are shares from 0 to 1, got %g", v) end
      end
    end, function(self, x)
      local h, w = F.size("RandomAffine", x)
      local move, scale, shear = { 0, 0 }, 1, 0
      local angle = between(self.degrees[1], self.degrees[2])
      if self.translate then
        local dx, dy = self.translate[1] * w, self.translate[2] * h
        move = { math.floor(between(-dx, dx) + 0.5), math.floor(between(-dy, dy) + 0.5) }
      end
      if self.scale then scale = between(self.scale[1], self.scale[2]) end
      if self.shear then shear = between(self.shear[1], self.shear[2]) end
      return F.affine(x, angle, move, scale, shear, self.interpolation, self.fill)
    end)

  define("ColorJitter", "number|number[] brightness?, number|number[] contrast?, number|number[] saturation?, \z
    number|number[] hue?", "brightness contrast saturation hue", function(self)
      for _, key in ipairs({ "brightness", "contrast", "saturation" }) do range(self, key, 1) end
      range(self, "hue")
      if self.hue and (self.hue[1] < -0.5 or self.hue[2] > 0.5) then
        check.fail("[transforms.ColorJitter] hue is at most 0.5, got %s", text(self.hue))
      end
    end, function(self, x)
      local order = { "brightness", "contrast", "saturation", "hue" }
      for k = 4, 2, -1 do
        local j = random(1, k)
        order[k], order[j] = order[j], order[k]
      end
      for _, key in ipairs(order) do
        local v = self[key]
        if v then x = F["adjust_" .. key](x, between(v[1], v[2])) end
      end
      return x
    end)

  define("Grayscale", "count num_output_channels=1", "num_output_channels", nil,
    function(self, x) return F.to_grayscale(x, self.num_output_channels) end)
  define("RandomGrayscale", "number p=0.1", "p", probability, function(self, x)
    return random() < self.p and F.to_grayscale(x, 3) or x
  end)

  define("RandomErasing", "number p=0.5, number[] scale?, number[] ratio?, number|'random' value=0",
    "p scale ratio value", function(self)
      probability(self)
      self.scale, self.ratio = self.scale or { 0.02, 0.33 }, self.ratio or { 0.3, 3.3 }
    end, function(self, x)
      if random() >= self.p then return x end
      local h, w = F.size("RandomErasing", x)
      for _ = 1, 10 do
        local area = h * w * between(self.scale[1], self.scale[2])
        local ratio = math.exp(between(math.log(self.ratio[1]), math.log(self.ratio[2])))
        local height, width = math.floor(math.sqrt(area * ratio) + 0.5), math.floor(math.sqrt(area / ratio) + 0.5)
        if height >= 1 and height < h and width >= 1 and width < w then
          local top, left, value = random(1, h - height + 1), random(1, w - width + 1), self.value
          if value == "random" then
            local part = F.crop(x, top, left, height, width)
            if B.tensor_dtype(x).is_floating_point then
              value = moth.randn_like(part)
            else
              value = moth.randint(0, x:dtype() == moth.uint16 and 65536 or 256, part:size()):to(x:dtype())
            end
          end
          return F.erase(x, top, left, height, width, value)
        end
      end
      return x
    end)

  -- ---- several transforms -----------------------------------------------------------------------------

  define("RandomApply", "list transforms, number p=0.5", "p", probability, function(self, x)
    if random() >= self.p then return x end
    for _, t in ipairs(self.transforms) do x = t(x) end
    return x
  end)
  define("RandomChoice", "list transforms", "", nil,
    function(self, x) return self.transforms[random(1, #self.transforms)](x) end)
  define("RandomOrder", "list transforms", "", nil, function(self, x)
    local order = {}
    for k, t in ipairs(self.transforms) do order[k] = t end
    for k = #order, 2, -1 do
      local j = random(1, k)
      order[k], order[j] = order[j], order[k]
    end
    for _, t in ipairs(order) do x = t(x) end
    return x
  end)

  -- ---- batches with their labels -------------------------------------------------------------------------

  -- A number drawn from the gamma distribution (Marsaglia and Tsang, 2000).
  local function gamma(a)
    if a < 1 then return gamma(a + 1) * random() ^ (1 / a) end
    local d = a - 1 / 3
    local c = 1 / math.sqrt(9 * d)
    while true do
      local x = math.sqrt(-2 * math.log(1 - random())) * math.cos(2 * math.pi * random())
      local v = (1 + c * x) ^ 3
      if v > 0 and math.log(1 - random()) < 0.5 * x * x + d - d * v + d * math.log(v) then return d * v end
    end
  end
  local function beta(a)
    local x, y = gamma(a), gamma(a)
    return x / (x + y)
  end

  -- The shares of the classes: of int64 labels (positions), or of floats (N, classes) as they are.
  local function shares(self, y)
    if B.tensor_dtype(y).is_floating_point and B.dim(y) == 2 then return y end
    if not self.num_classes then
      check.fail("[transforms.%s] num_classes is needed for labels that are numbers", self.__name)
    end
    return moth.zeros(B.size(y, 1), self.num_classes):scatter_(2, y:view(-1, 1), 1)
  end
  local function check_batch(self, x, y)
    if self.alpha <= 0 then check.fail("[transforms.%s] alpha must be above 0, got %g", self.__name, self.alpha) end
    if not B.is_tensor(x) or B.dim(x) ~= 4 or not B.is_tensor(y) or B.size(y, 1) ~= B.size(x, 1) then
      check.fail("[transforms.%s] expected images (N, C, H, W) and labels (N), got %s and %s", self.__name,
        B.is_tensor(x) and B.format(x) or type(x), B.is_tensor(y) and B.format(y) or type(y))
    end
    if layout.of(B.size(x, 2), B.size(x, 4)) == "last" then
      check.fail("[transforms.%s] expected images (N, C, H, W), got %s, whose channels come last: \z
        images:permute(1, 4, 2, 3), or ToTensor before it", self.__name, B.format(x))
    end
  end

  --- mixup(images, labels) -> images, each mixed with the one before it; the shares of the classes (N, num_classes).
  define("MixUp", "number alpha=1, count num_classes?", "alpha num_classes", nil, function(self, x, y)
    check_batch(self, x, y)
    local lambda, target = beta(self.alpha), shares(self, y)
    return x * lambda + x:roll(1, 1) * (1 - lambda), target * lambda + target:roll(1, 1) * (1 - lambda)
  end)

  --- The same, with a rectangle of the other image.
  define("CutMix", "number alpha=1, count num_classes?", "alpha num_classes", nil, function(self, x, y)
    check_batch(self, x, y)
    local lambda, target = beta(self.alpha), shares(self, y)
    local h, w = B.size(x, 3), B.size(x, 4)
    local cut, cx, cy = math.sqrt(1 - lambda) / 2, random(0, w - 1), random(0, h - 1)
    local left, right = math.max(math.floor(cx - cut * w), 0), math.min(math.floor(cx + cut * w), w)
    local top, bottom = math.max(math.floor(cy - cut * h), 0), math.min(math.floor(cy + cut * h), h)
    local out = x:clone()
    if right > left and bottom > top then
      local function part(t) return t:narrow(3, top + 1, bottom - top):narrow(4, left + 1, right - left) end
      part(out):copy_(part(x:roll(1, 1)))
    end
    lambda = 1 - (right - left) * (bottom - top) / (w * h)
    return out, target * lambda + target:roll(1, 1) * (1 - lambda)
  end)

  return M
end
