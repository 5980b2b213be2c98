--- Transforms that change colours, noise, dtype and boxes' formats, for moth.transforms. Masks and boxes stay as they
-- are.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local boxes = require "moth.data.transforms.boxes"
local class = require "moth.class"
local form = require "moth.data.transforms.form"
local make = require "moth.data.transforms.define"
local samples = require "moth.data.transforms.samples"
local signature = require "moth.utils.signature"
local F = require("moth.data.transforms.functional").planes

local random, between = math.random, make.between

local M = {}

return function(Transform)
  local function define(...) return make.transform(M, Transform, ...) end

  -- Does `image` with probability p.
  local function define_random(name, parameters, shown, init, image)
    define(name, parameters .. (parameters ~= "" and ", " or "") .. "number p=0.5", shown .. " p", {
      init = function(self)
        make.probability(self)
        if init then init(self) end
      end,
      draw = function(self) return random() < self.p or nil end,
      image = image,
    })
  end

  -- ---- colours ------------------------------------------------------------------------------------------

  local function jitter_ranges(self)
    for _, key in ipairs({ "brightness", "contrast", "saturation" }) do
      make.range(self, key, 1)
      if self[key] and self[key][1] < 0 then
        check.fail("[transforms.%s] %s must be at least 0, got %s", self.__name, key, make.text(self[key]))
      end
    end
    make.range(self, "hue")
    if self.hue and (self.hue[1] < -0.5 or self.hue[2] > 0.5) then
      check.fail("[transforms.%s] hue is at most 0.5, got %s", self.__name, make.text(self.hue))
    end
  end

  -- Applies { { "adjust_…", factor }, … }.
  local function apply(x, steps)
    for _, step in ipairs(steps) do x = F[step[1]](x, step[2]) end
    return x
  end

  define("ColorJitter", "number|number[] brightness?, number|number[] contrast?, number|number[] saturation?, \z
    number|number[] hue?", "brightness contrast saturation hue", {
      init = jitter_ranges,
      draw = function(self)
        local names, steps = { "brightness", "contrast", "saturation", "hue" }, {}
        for _, k in ipairs(make.shuffled(4)) do
          local v = self[names[k]]
          if v then steps[#steps + 1] = { "adjust_" .. names[k], between(v[1], v[2]) } end
        end
        return steps
      end,
      image = function(_, x, steps) return apply(x, steps) end,
    })

  --- What SSD's training does to colours (Liu and others, 2016): each with probability p.
  define("RandomPhotometricDistort", "number[] brightness?, number[] contrast?, number[] saturation?, \z
    number[] hue?, number p=0.5", "brightness contrast saturation hue p", {
      init = function(self)
        make.probability(self)
        self.brightness, self.contrast = self.brightness or { 0.875, 1.125 }, self.contrast or { 0.5, 1.5 }
        self.saturation, self.hue = self.saturation or { 0.5, 1.5 }, self.hue or { -0.05, 0.05 }
        jitter_ranges(self)
      end,
      draw = function(self, sample)
        local steps, factor = {}, {}
        for _, name in ipairs { "brightness", "contrast", "saturation", "hue" } do
          local v = self[name]
          if random() < self.p then factor[name] = between(v[1], v[2]) end
        end
        local function add(name)
          if factor[name] then steps[#steps + 1] = { "adjust_" .. name, factor[name] } end
        end
        local early = random() < 0.5
        add "brightness"
        if early then add "contrast" end
        add "saturation"
        add "hue"
        if not early then add "contrast" end
        if random() < self.p then steps[#steps + 1] = { "permute_channels", make.shuffled(sample:channels()) } end
        return steps
      end,
      image = function(_, x, steps) return apply(x, steps) end,
    })

  define("RandomChannelPermutation", "", "", {
    draw = function(_, sample) return make.shuffled(sample:channels()) end,
    image = function(_, x, order) return F.permute_channels(x, order) end,
  })

  define("Grayscale", "count num_output_channels=1", "num_output_channels", {
    init = function(self)
      if self.num_output_channels ~= 1 and self.num_output_channels ~= 3 then
        check.fail("[transforms.Grayscale] num_output_channels is 1 or 3, got %d", self.num_output_channels)
      end
    end,
    image = function(self, x) return F.to_grayscale(x, self.num_output_channels) end,
  })
  define("RandomGrayscale", "number p=0.1", "p", {
    init = make.probability,
    draw = function(self) return random() < self.p or nil end,
    image = function(_, x) return F.to_grayscale(x, form.sizes(x) == 1 and 1 or 3) end,
  })
  define("RGB", "", "", { image = function(_, x) return F.grayscale_to_rgb(x) end })

  define_random("RandomInvert", "", "", nil, function(_, x) return F.invert(x) end)
  define_random("RandomPosterize", "size bits", "bits", function(self)
    if self.bits > 8 then check.fail("[transforms.RandomPosterize] bits must be from 0 to 8, got %d", self.bits) end
  end, function(self, x) return F.posterize(x, self.bits) end)
  define_random("RandomSolarize", "number threshold", "threshold", nil,
    function(self, x) return F.solarize(x, self.threshold) end)
  define_random("RandomAutocontrast", "", "", nil, function(_, x) return F.autocontrast(x) end)
  define_random("RandomEqualize", "", "", nil, function(_, x) return F.equalize(x) end)
  define_random("RandomAdjustSharpness", "number sharpness_factor", "sharpness_factor", function(self)
    if self.sharpness_factor < 0 then
      check.fail("[transforms.RandomAdjustSharpness] sharpness_factor must be at least 0, got %g",
        self.sharpness_factor)
    end
  end, function(self, x) return F.adjust_sharpness(x, self.sharpness_factor) end)

  -- ---- blur, noise, files ------------------------------------------------------------------------------------

  define("GaussianBlur", "count|count[] kernel_size, number|number[] sigma?", "kernel_size sigma", {
    init = function(self)
      local size, sigma = self.kernel_size, self.sigma or { 0.1, 2 }
      if type(size) == "number" then size = { size, size } end
      if type(sigma) == "number" then sigma = { sigma, sigma } end
      self.kernel_size, self.sigma = size, sigma
      make.range(self, "sigma")
      if #size ~= 2 or size[1] % 2 == 0 or size[2] % 2 == 0 then
        check.fail("[transforms.GaussianBlur] kernel_size is one or two odd numbers, got %s", make.text(size))
      end
      if sigma[1] <= 0 then check.fail("[transforms.GaussianBlur] sigma must be above 0, got %g", sigma[1]) end
    end,
    draw = function(self) return between(self.sigma[1], self.sigma[2]) end,
    image = function(self, x, sigma) return F.gaussian_blur(x, self.kernel_size, sigma) end,
  })

  define("GaussianNoise", "number mean=0, number sigma=0.1, bool clip=true", "mean sigma clip", {
    image = function(self, x) return F.gaussian_noise(x, self.mean, self.sigma, self.clip) end,
  })

  --- What a JPEG file makes of bytes, of a quality, or one between two.
  define("JPEG", "count|count[] quality", "quality", {
    init = function(self)
      if type(self.quality) == "number" then self.quality = { self.quality, self.quality } end
      make.range(self, "quality")
      if self.quality[1] < 1 or self.quality[2] > 100 then
        check.fail("[transforms.JPEG] quality is from 1 to 100, got %s", make.text(self.quality))
      end
    end,
    draw = function(self) return random(self.quality[1], self.quality[2]) end,
    image = function(_, x, quality) return F.jpeg(x, quality) end,
  })

  --- (x - mean_vector) times a square matrix, of all values of the image (channels, then rows), as for whitening.
  define("LinearTransformation", "Tensor transformation_matrix, Tensor mean_vector", "", {
    init = function(self)
      local m, v = self.transformation_matrix, self.mean_vector
      if B.dim(m) ~= 2 or B.size(m, 1) ~= B.size(m, 2) or B.dim(v) ~= 1 or B.size(v, 1) ~= B.size(m, 1) then
        check.fail("[transforms.LinearTransformation] expected a matrix (n, n) and a vector (n), got %s and %s",
          B.format(m), B.format(v))
      end
    end,
    image = function(self, x)
      local m, c, h, w = self.transformation_matrix, form.sizes(x)
      if c * h * w ~= B.size(m, 1) then
        check.fail("[transforms.LinearTransformation] an image of %d x %d x %d does not fit a matrix of %d rows", c, h,
          w, B.size(m, 1))
      end
      local y = x:reshape(-1, c * h * w) - self.mean_vector
      return y:matmul(m:to(y:dtype())):view(x:size())
    end,
  })

  -- ---- dtypes --------------------------------------------------------------------------------------------

  --- Another dtype for the image; scale: so that white stays white (255 of uint8 is 1 of floats). mask, boxes: those of
  -- masks and boxes, which keep their own without.
  local ToDtype = define("ToDtype", "dtype dtype?, bool scale=false, *, dtype mask?, dtype boxes?", "dtype scale", {
    init = function(self)
      for _, key in ipairs { "dtype", "mask", "boxes" } do self[key] = self[key] and B.dtype(self[key]) end
      if not (self.dtype or self.mask or self.boxes) then check.fail("[transforms.ToDtype] there is no dtype") end
    end,
    image = function(self, x) return self.dtype and F.to_dtype(x, self.dtype, self.scale) or x end,
    mask = function(self, x) return self.mask and x:to(self.mask) or x end,
    boxes = function(self, b) return self.boxes and b.data:to(self.boxes) or b.data end,
  })
  --- The same for a whole batch.
  function ToDtype:batch(x) return self.dtype and F.to_dtype(x, self.dtype, self.scale) or x end

  --- Images, Masks and BoundingBoxes as the tensors that they hold, for a loader.
  local ToPureTensor = class("ToPureTensor", Transform)
  ToPureTensor.__init = signature.init("transforms.ToPureTensor()", function() end)
  function ToPureTensor.__call(_, ...)
    local sample = samples.open("ToPureTensor", nil, select("#", ...), ...)
    for _, leaf in ipairs(sample.leaves) do
      leaf.result = B.is_tensor(leaf.value) and leaf.value or leaf.value.data
    end
    return sample:results()
  end
  function ToPureTensor.__tostring() return "ToPureTensor()" end
  M.ToPureTensor = ToPureTensor

  -- ---- boxes ---------------------------------------------------------------------------------------------

  define("ConvertBoundingBoxFormat", "string format", "format", {
    init = function(self)
      self.format = self.format:upper()
      boxes.convert("ConvertBoundingBoxFormat", moth.zeros(1, 4), self.format, "XYXY")
    end,
    boxes = function(self, b)
      return boxes.convert("ConvertBoundingBoxFormat", b.data, b.format, self.format), nil, self.format
    end,
  })
  define("ClampBoundingBoxes", "", "", {
    boxes = function(_, b) return boxes.clamp_bounding_boxes(b.data, b.format, b.canvas_size) end,
  })

  --- Takes away boxes that are too small or reach out of the image, with their labels and masks: those are tensors
  -- whose field's name has "label" in it, those behind the image in a call, and masks, one for each box. labels_getter:
  -- a function of what the call gets that returns the labels, a tensor or a list; false: there are none.
  local Sanitize = class("SanitizeBoundingBoxes", Transform)
  M.SanitizeBoundingBoxes = Sanitize
  Sanitize.__init = signature.init("transforms.SanitizeBoundingBoxes(number min_size=1, number min_area=1, \z
    callable|false labels_getter?)", function(self, o)
    if o.min_size < 1 or o.min_area < 1 then
      check.fail("[transforms.SanitizeBoundingBoxes] min_size and min_area must be at least 1, got %g and %g",
        o.min_size, o.min_area)
    end
    self.min_size, self.min_area, self.labels_getter = o.min_size, o.min_area, o.labels_getter
  end)
  local function labels_of(self, sample, n, ...)
    local found = {}
    if self.labels_getter then
      local labels = self.labels_getter(...)
      for _, y in ipairs(B.is_tensor(labels) and { labels } or labels or {}) do
        for _, leaf in ipairs(sample.leaves) do
          if rawequal(leaf.value, y) then found[#found + 1] = leaf end
        end
      end
      return found
    elseif self.labels_getter == false then
      return found
    end
    for _, leaf in ipairs(sample.leaves) do
      if leaf.kind == "tensor" and B.dim(leaf.value) > 0 and (leaf.name and leaf.name:lower():find "label"
        or not leaf.name and B.size(leaf.value, 1) == n) then
        found[#found + 1] = leaf
      end
    end
    if #found == 0 then
      check.fail("[transforms.SanitizeBoundingBoxes] there are no labels in this call\nHINT: name the field 'labels', \z
        or give labels_getter, false if there are none")
    end
    return found
  end
  function Sanitize.__call(self, ...)
    local sample = samples.open("SanitizeBoundingBoxes", nil, select("#", ...), ...)
    local leaf = sample:first "boxes"
    if not leaf then check.fail("[transforms.SanitizeBoundingBoxes] there are no BoundingBoxes in this call") end
    local b = leaf.value
    local good = boxes.valid("SanitizeBoundingBoxes", b.data, b.format, b.canvas_size, self.min_size, self.min_area)
    local n, at = B.size(b.data, 1), good:nonzero():view(-1)
    leaf.result = samples.like(b, b.data:index_select(1, at))
    for _, label in ipairs(labels_of(self, sample, n, ...)) do
      if B.size(label.value, 1) ~= n then
        check.fail("[transforms.SanitizeBoundingBoxes] there are %d boxes and %d labels", n, B.size(label.value, 1))
      end
      label.result = label.value:index_select(1, at)
    end
    for _, mask in ipairs(sample.leaves) do
      if mask.kind == "mask" and B.dim(mask.value.data) == 3 and B.size(mask.value.data, 1) == n then
        mask.result = samples.like(mask.value, mask.value.data:index_select(1, at))
      end
    end
    return sample:results()
  end
  function Sanitize.__tostring(self)
    return ("SanitizeBoundingBoxes(min_size=%g, min_area=%g)"):format(self.min_size, self.min_area)
  end

  return M
end
