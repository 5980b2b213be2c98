--- Transforms that draw which of many changes an image undergoes, for moth.transforms: AutoAugment (Cubuk and others,
-- 2019), RandAugment (2020), TrivialAugmentWide (Müller and Hutter, 2021), AugMix (Hendrycks and others, 2020). The
-- changes, their strengths and the policies are torchvision's.
local moth = require "moth"
local check = require "moth.utils.check"
local form = require "moth.data.transforms.form"
local make = require "moth.data.transforms.define"
local random_of = require "moth.data.transforms.distributions"
local F = require("moth.data.transforms.functional").planes

local random = math.random

-- ---- changes -------------------------------------------------------------------------------------------

-- name -> function(x, magnitude, mode, fill)
local changes = {
  Identity = function(x) return x end,
  ShearX = function(x, m, mode, fill)
    return F.affine(x, 0, { 0, 0 }, 1, { math.deg(math.atan(m)), 0 }, mode, fill, { 0, 0 })
  end,
  ShearY = function(x, m, mode, fill)
    return F.affine(x, 0, { 0, 0 }, 1, { 0, math.deg(math.atan(m)) }, mode, fill, { 0, 0 })
  end,
  TranslateX = function(x, m, mode, fill)
    return F.affine(x, 0, { m < 0 and math.ceil(m) or math.floor(m), 0 }, 1, { 0, 0 }, mode, fill)
  end,
  TranslateY = function(x, m, mode, fill)
    return F.affine(x, 0, { 0, m < 0 and math.ceil(m) or math.floor(m) }, 1, { 0, 0 }, mode, fill)
  end,
  Rotate = function(x, m, mode, fill) return F.rotate(x, m, mode, fill) end,
  Brightness = function(x, m) return F.adjust_brightness(x, 1 + m) end,
  Color = function(x, m) return F.adjust_saturation(x, 1 + m) end,
  Contrast = function(x, m) return F.adjust_contrast(x, 1 + m) end,
  Sharpness = function(x, m) return F.adjust_sharpness(x, 1 + m) end,
  Posterize = function(x, m) return F.posterize(x, m) end,
  Solarize = function(x, m) return F.solarize(x, form.white("solarize", x) * m) end,
  AutoContrast = function(x) return F.autocontrast(x) end,
  Equalize = function(x) return F.equalize(x) end,
  Invert = function(x) return F.invert(x) end,
}

local function even(v) -- a half goes to the even number, as PyTorch rounds
  local down = math.floor(v)
  if v - down == 0.5 then return down % 2 == 0 and down or down + 1 end
  return math.floor(v + 0.5)
end

-- The strength of step k (from 0) of `bins`, from 0 to most.
local function up_to(most) return function(k, bins) return most * k / (bins - 1) end end
local function by_size(share, side)
  return function(k, bins, h, w) return share * (side == "h" and h or w) * k / (bins - 1) end
end
local function bits(from, most) return function(k, bins) return even(from - k / ((bins - 1) / most)) end end
local function down(k, bins) return 1 - k / (bins - 1) end

-- { name, strength or nil, whether the sign is drawn }
local function space(o)
  local list = {
    { "ShearX", up_to(o.shear), true }, { "ShearY", up_to(o.shear), true },
    { "TranslateX", o.share and by_size(o.share, "w") or up_to(32), true },
    { "TranslateY", o.share and by_size(o.share, "h") or up_to(32), true },
    { "Rotate", up_to(o.rotate), true },
    { "Posterize", bits(o.bits or 8, o.posterize), false }, { "Solarize", down, false },
    { "AutoContrast" }, { "Equalize" },
  }
  for _, name in ipairs(o.colors and { "Brightness", "Color", "Contrast", "Sharpness" } or {}) do
    list[#list + 1] = { name, up_to(o.colors), true }
  end
  for _, name in ipairs(o.more or {}) do list[#list + 1] = { name } end
  for _, entry in ipairs(list) do list[entry[1]] = entry end
  return list
end

local plain = space { shear = 0.3, share = 150 / 331, rotate = 30, posterize = 4, colors = 0.9, more = { "Identity" } }
local auto = space { shear = 0.3, share = 150 / 331, rotate = 30, posterize = 4, colors = 0.9, more = { "Invert" } }
local wide = space { shear = 0.99, rotate = 135, posterize = 6, colors = 0.99, more = { "Identity" } }
local mixed = space { shear = 0.3, share = 1 / 3, rotate = 30, bits = 4, posterize = 4, colors = 0.9 }
local mixed_partly = space { shear = 0.3, share = 1 / 3, rotate = 30, bits = 4, posterize = 4 }

-- A drawn change: { name, magnitude }. k: the step, from 0.
local function strength(entry, k, bins, h, w)
  local m = entry[2] and entry[2](k, bins, h, w) or 0
  if entry[3] and random() <= 0.5 then m = -m end
  return { entry[1], m }
end

local function apply(self, x, list)
  for _, step in ipairs(list) do x = changes[step[1]](x, step[2], self.interpolation, self.fill) end
  return x
end

-- ---- AutoAugment's policies ------------------------------------------------------------------------------

-- Pairs of name, probability, step.
local policies = {
  imagenet = [[
    Posterize 0.4 8 Rotate 0.6 9; Solarize 0.6 5 AutoContrast 0.6 -; Equalize 0.8 - Equalize 0.6 -;
    Posterize 0.6 7 Posterize 0.6 6; Equalize 0.4 - Solarize 0.2 4; Equalize 0.4 - Rotate 0.8 8;
    Solarize 0.6 3 Equalize 0.6 -; Posterize 0.8 5 Equalize 1.0 -; Rotate 0.2 3 Solarize 0.6 8;
    Equalize 0.6 - Posterize 0.4 6; Rotate 0.8 8 Color 0.4 0; Rotate 0.4 9 Equalize 0.6 -;
    Equalize 0.0 - Equalize 0.8 -; Invert 0.6 - Equalize 1.0 -; Color 0.6 4 Contrast 1.0 8;
    Rotate 0.8 8 Color 1.0 2; Color 0.8 8 Solarize 0.8 7; Sharpness 0.4 7 Invert 0.6 -;
    ShearX 0.6 5 Equalize 1.0 -; Color 0.4 0 Equalize 0.6 -; Equalize 0.4 - Solarize 0.2 4;
    Solarize 0.6 5 AutoContrast 0.6 -; Invert 0.6 - Equalize 1.0 -; Color 0.6 4 Contrast 1.0 8;
    Equalize 0.8 - Equalize 0.6 -]],
  cifar10 = [[
    Invert 0.1 - Contrast 0.2 6; Rotate 0.7 2 TranslateX 0.3 9; Sharpness 0.8 1 Sharpness 0.9 3;
    ShearY 0.5 8 TranslateY 0.7 9; AutoContrast 0.5 - Equalize 0.9 -; ShearY 0.2 7 Posterize 0.3 7;
    Color 0.4 3 Brightness 0.6 7; Sharpness 0.3 9 Brightness 0.7 9; Equalize 0.6 - Equalize 0.5 -;
    Contrast 0.6 7 Sharpness 0.6 5; Color 0.7 7 TranslateX 0.5 8; Equalize 0.3 - AutoContrast 0.4 -;
    TranslateY 0.4 3 Sharpness 0.2 6; Brightness 0.9 6 Color 0.2 8; Solarize 0.5 2 Invert 0.0 -;
    Equalize 0.2 - AutoContrast 0.6 -; Equalize 0.2 - Equalize 0.6 -; Color 0.9 9 Equalize 0.6 -;
    AutoContrast 0.8 - Solarize 0.2 8; Brightness 0.1 3 Color 0.7 0; Solarize 0.4 5 AutoContrast 0.9 -;
    TranslateY 0.9 9 TranslateY 0.7 9; AutoContrast 0.9 - Solarize 0.8 3; Equalize 0.8 - Invert 0.1 -;
    TranslateY 0.7 9 AutoContrast 0.9 -]],
  svhn = [[
    ShearX 0.9 4 Invert 0.2 -; ShearY 0.9 8 Invert 0.7 -; Equalize 0.6 - Solarize 0.6 6;
    Invert 0.9 - Equalize 0.6 -; Equalize 0.6 - Rotate 0.9 3; ShearX 0.9 4 AutoContrast 0.8 -;
    ShearY 0.9 8 Invert 0.4 -; ShearY 0.9 5 Solarize 0.2 6; Invert 0.9 - AutoContrast 0.8 -;
    Equalize 0.6 - Rotate 0.9 3; ShearX 0.9 4 Solarize 0.3 3; ShearY 0.8 8 Invert 0.7 -;
    Equalize 0.9 - TranslateY 0.6 6; Invert 0.9 - Equalize 0.6 -; Contrast 0.3 3 Rotate 0.8 4;
    Invert 0.8 - TranslateY 0.0 2; ShearY 0.7 6 Solarize 0.4 8; Invert 0.6 - Rotate 0.8 4;
    ShearY 0.3 7 TranslateX 0.9 3; ShearX 0.1 6 Invert 0.6 -; Solarize 0.7 2 TranslateY 0.6 7;
    ShearY 0.8 4 Invert 0.8 -; ShearX 0.7 9 TranslateY 0.8 3; ShearY 0.8 5 AutoContrast 0.7 -;
    ShearX 0.7 2 Invert 0.1 -]],
}

local function read(name)
  local list = {}
  for line in policies[name]:gmatch "[^;]+" do
    local pair = {}
    for change, p, k in line:gmatch "(%a+) ([%d.]+) (%S+)" do pair[#pair + 1] = { change, tonumber(p), tonumber(k) } end
    list[#list + 1] = pair
  end
  return list
end

-- ---- the transforms ----------------------------------------------------------------------------------------

local MORE = "'nearest'|'bilinear' interpolation='%s', number|number[] fill?"
local only_images = { boxes = true, mask = true }

local M = {}

return function(Transform)
  local function define(name, parameters, shown, mode, how)
    how.refuses = only_images
    how.image = how.image or apply
    make.transform(M, Transform, name, (parameters ~= "" and parameters .. ", " or "") .. MORE:format(mode), shown, how)
  end

  define("AutoAugment", "'imagenet'|'cifar10'|'svhn' policy='imagenet'", "policy", "nearest", {
    init = function(self) self.policies = read(self.policy) end,
    draw = function(self, sample)
      local h, w = sample:size()
      local list = {}
      for _, step in ipairs(self.policies[random(1, #self.policies)]) do
        if random() <= step[2] then list[#list + 1] = strength(auto[step[1]], step[3] or 0, 10, h, w) end
      end
      return list
    end,
  })

  define("RandAugment", "size num_ops=2, size magnitude=9, count num_magnitude_bins=31",
    "num_ops magnitude num_magnitude_bins", "nearest", {
      init = function(self)
        if self.magnitude >= self.num_magnitude_bins then
          check.fail("[transforms.RandAugment] magnitude must be below num_magnitude_bins, %d, got %d",
            self.num_magnitude_bins, self.magnitude)
        end
      end,
      draw = function(self, sample)
        local h, w = sample:size()
        local list = {}
        for k = 1, self.num_ops do
          list[k] = strength(plain[random(1, #plain)], self.magnitude, self.num_magnitude_bins, h, w)
        end
        return list
      end,
    })

  define("TrivialAugmentWide", "count num_magnitude_bins=31", "num_magnitude_bins", "nearest", {
    draw = function(self, sample)
      local h, w = sample:size()
      return { strength(wide[random(1, #wide)], random(0, self.num_magnitude_bins - 1), self.num_magnitude_bins, h, w) }
    end,
  })

  --- Chains of changes, mixed with each other and with the image.
  define("AugMix", "count severity=3, count mixture_width=3, int chain_depth=-1, number alpha=1, bool all_ops=true",
    "severity mixture_width chain_depth alpha all_ops", "bilinear", {
      init = function(self)
        if self.severity > 10 then
          check.fail("[transforms.AugMix] severity must be from 1 to 10, got %d", self.severity)
        end
        if self.alpha <= 0 then check.fail("[transforms.AugMix] alpha must be above 0, got %g", self.alpha) end
      end,
      draw = function(self, sample)
        local h, w = sample:size()
        local of = self.all_ops and mixed or mixed_partly
        local share = random_of.dirichlet(self.alpha, 2)
        local p = { own = share[1], weights = random_of.dirichlet(self.alpha, self.mixture_width) }
        for i = 1, self.mixture_width do
          p.weights[i] = p.weights[i] * share[2]
          p[i] = {}
          for k = 1, self.chain_depth > 0 and self.chain_depth or random(1, 3) do
            p[i][k] = strength(of[random(1, #of)], random(0, self.severity - 1), 10, h, w)
          end
        end
        return p
      end,
      image = function(self, x, p)
        local dtype = form.is_float(x) and x:dtype() or moth.float32
        local mix = x:to(dtype) * p.own
        for i, weight in ipairs(p.weights) do mix:add_(apply(self, x, p[i]):to(dtype) * weight) end
        return mix:to(x:dtype())
      end,
    })

  return M
end
