--- Transforms that change size and place, for moth.transforms: of images, masks and boxes alike.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local boxes = require "moth.data.transforms.boxes"
local form = require "moth.data.transforms.form"
local geometry = require "moth.data.transforms.geometry"
local make = require "moth.data.transforms.define"
local box_iou = require("moth.vision.boxes").box_iou
local F = require("moth.data.transforms.functional").planes

local random, between, fill_of = math.random, make.between, make.fill
local MODES = "'nearest'|'nearest-exact'|'box'|'bilinear'|'bicubic'|'lanczos' interpolation='bilinear'"
local NEAR = "'nearest'|'bilinear' interpolation='nearest'"
local SMOOTH = "'nearest'|'bilinear' interpolation='bilinear'"
local PADDING = "'constant'|'edge'|'reflect'|'symmetric' padding_mode='constant'"
local FILL = "number|number[] fill=0"
local MASK = ", *, number mask_fill?" -- what masks are filled with, if it is something else

local M = {}

-- Makes the field `key` { height, width }.
local function pair(self, key) self[key] = geometry.pair(self.__name, key, self[key]) end

return function(Transform)
  local function define(...) return make.transform(M, Transform, ...) end

  -- How a mask is sampled where an image is by some mode.
  local function mode_of(self, kind)
    local mode = self.interpolation
    return kind == "mask" and mode ~= "nearest-exact" and "nearest" or mode
  end

  -- ---- another size ------------------------------------------------------------------------------------

  -- Transforms that resize to what `size` draws: { height, width } of height and width.
  local function define_resize(name, parameters, shown, init, size)
    define(name, parameters .. (", %s, bool antialias=true"):format(MODES), shown, {
      init = init,
      draw = function(self, sample) return { size(self, sample:size()) } end,
      image = function(self, x, p, kind) return F.resize(x, p, mode_of(self, kind), self.antialias) end, mask = true,
      boxes = function(_, b, p) return boxes.resize(b, p[1], p[2]) end,
    })
  end

  define("Resize", ("count|count[] size?, %s, bool antialias=true, count max_size?"):format(MODES),
    "size interpolation antialias", {
      init = function(self) geometry.resized("Resize", 1, 1, self.size, self.max_size) end,
      image = function(self, x, _, kind)
        return F.resize(x, self.size, mode_of(self, kind), self.antialias, self.max_size)
      end, mask = true,
      boxes = function(self, b)
        return boxes.resize(b, geometry.resized("Resize", b.canvas_size[1], b.canvas_size[2], self.size, self.max_size))
      end,
    })

  --- The shorter side from min_size to max_size.
  define_resize("RandomResize", "count min_size, count max_size", "min_size max_size", function(self)
    if self.max_size < self.min_size then
      check.fail("[transforms.RandomResize] max_size must be at least min_size, got %d and %d", self.max_size,
        self.min_size)
    end
  end, function(self, h, w)
    return geometry.resized("RandomResize", h, w, random(self.min_size, self.max_size))
  end)

  --- The shorter side one of a list, the longer at most max_size.
  define_resize("RandomShortestSize", "count|count[] min_size, count max_size?", "min_size max_size", function(self)
    if type(self.min_size) == "number" then self.min_size = { self.min_size } end
    if #self.min_size == 0 then check.fail("[transforms.RandomShortestSize] min_size is an empty list") end
  end, function(self, h, w)
    local r = self.min_size[random(1, #self.min_size)] / math.min(h, w)
    if self.max_size then r = math.min(r, self.max_size / math.max(h, w)) end
    return math.max(math.floor(h * r), 1), math.max(math.floor(w * r), 1)
  end)

  --- As large as target_size, times a random factor.
  define_resize("ScaleJitter", "count[] target_size, number[] scale_range?", "target_size scale_range", function(self)
    self.scale_range = self.scale_range or { 0.1, 2 }
    make.range(self, "scale_range")
    if #self.target_size ~= 2 then check.fail("[transforms.ScaleJitter] target_size is { height, width }") end
  end, function(self, h, w)
    local scale = between(self.scale_range[1], self.scale_range[2])
    local r = math.min(self.target_size[2] / h, self.target_size[1] / w) * scale
    return math.max(math.floor(h * r), 1), math.max(math.floor(w * r), 1)
  end)

  -- ---- parts and borders ------------------------------------------------------------------------------------

  define("CenterCrop", "count|count[] size", "size", {
    init = function(self) pair(self, "size") end,
    image = function(self, x) return F.center_crop(x, self.size) end, mask = true,
    boxes = function(self, b)
      local h, w = b.canvas_size[1], b.canvas_size[2]
      return boxes.crop(b, geometry.middle(h, self.size[1]), geometry.middle(w, self.size[2]), self.size[1],
        self.size[2])
    end,
  })

  local function pad_boxes(self, b, padding)
    if self.padding_mode and self.padding_mode ~= "constant" then
      check.fail("[transforms.%s] boxes go with padding_mode 'constant' alone, got '%s'", self.__name,
        self.padding_mode)
    end
    return boxes.pad(b, padding)
  end

  define("Pad", ("size|size[] padding, %s, %s"):format(FILL, PADDING) .. MASK, "padding fill padding_mode", {
    init = function(self) self.sides = geometry.sides("Pad", self.padding) end,
    image = function(self, x, _, kind) return F.pad(x, self.sides, fill_of(self, kind), self.padding_mode) end,
    mask = true,
    boxes = function(self, b) return pad_boxes(self, b, self.sides) end,
  })

  define("RandomCrop", ("count|count[] size, size|size[] padding?, bool pad_if_needed=false, %s, %s"):format(FILL,
    PADDING) .. MASK, "size padding", {
      init = function(self) pair(self, "size") end,
      draw = function(self, sample)
        local h, w = sample:size()
        local height, width = self.size[1], self.size[2]
        local p = self.padding and { unpack(geometry.sides("RandomCrop", self.padding)) } or { 0, 0, 0, 0 }
        h, w = h + p[2] + p[4], w + p[1] + p[3]
        if self.pad_if_needed then
          local down, right = math.max(height - h, 0), math.max(width - w, 0)
          p = { p[1] + right, p[2] + down, p[3] + right, p[4] + down }
          h, w = h + 2 * down, w + 2 * right
        end
        if h < height or w < width then
          check.fail("[transforms.RandomCrop] the image of %d x %d is smaller than the crop of %d x %d; HINT: "
            .. "pad_if_needed = true", h, w, height, width)
        end
        return { padding = (p[1] + p[2] + p[3] + p[4] > 0) and p or nil, random(1, h - height + 1),
          random(1, w - width + 1), height, width }
      end,
      image = function(self, x, p, kind)
        if p.padding then x = F.pad(x, p.padding, fill_of(self, kind), self.padding_mode) end
        return F.crop(x, p[1], p[2], p[3], p[4], 0)
      end, mask = true,
      boxes = function(self, b, p)
        if p.padding then
          local data, canvas = pad_boxes(self, b, p.padding)
          b = { data = data, canvas_size = canvas, format = b.format, clamping_mode = b.clamping_mode }
        end
        return boxes.crop(b, p[1], p[2], p[3], p[4])
      end,
    })

  define("RandomResizedCrop", ("count|count[] size, number[] scale?, number[] ratio?, %s, bool antialias=true")
    :format(MODES), "size scale ratio", {
      init = function(self)
        pair(self, "size")
        self.scale, self.ratio = self.scale or { 0.08, 1 }, self.ratio or { 3 / 4, 4 / 3 }
        make.two(self, "scale")
        make.two(self, "ratio")
      end,
      draw = function(self, sample)
        local h, w = sample:size()
        for _ = 1, 10 do
          local area = h * w * between(self.scale[1], self.scale[2])
          local ratio = math.exp(between(math.log(self.ratio[1]), math.log(self.ratio[2])))
          local width, height = math.floor(math.sqrt(area * ratio) + 0.5), math.floor(math.sqrt(area / ratio) + 0.5)
          if width >= 1 and width <= w and height >= 1 and height <= h then
            return { random(1, h - height + 1), random(1, w - width + 1), height, width }
          end
        end
        -- The largest part of an allowed ratio, in the middle.
        local ratio = math.min(math.max(w / h, self.ratio[1]), self.ratio[2])
        local width, height = math.min(w, math.floor(h * ratio + 0.5)), math.min(h, math.floor(w / ratio + 0.5))
        return { math.floor((h - height) / 2) + 1, math.floor((w - width) / 2) + 1, height, width }
      end,
      image = function(self, x, p, kind)
        return F.resize(F.crop(x, p[1], p[2], p[3], p[4], 0), self.size, mode_of(self, kind), self.antialias)
      end, mask = true,
      boxes = function(self, b, p)
        local data, canvas = boxes.crop(b, p[1], p[2], p[3], p[4])
        return boxes.resize({ data = data, canvas_size = canvas }, self.size[1], self.size[2])
      end,
    })

  --- A list of five parts of the image: the corners and the middle.
  define("FiveCrop", "count|count[] size", "size", {
    init = function(self) pair(self, "size") end, refuses = { boxes = true, mask = true },
    image = function(self, x) return F.five_crop(x, self.size) end,
  })
  --- These, and those of the mirrored image.
  define("TenCrop", "count|count[] size, bool vertical_flip=false", "size vertical_flip", {
    init = function(self) pair(self, "size") end, refuses = { boxes = true, mask = true },
    image = function(self, x) return F.ten_crop(x, self.size, self.vertical_flip) end,
  })

  --- The image somewhere on a larger canvas.
  define("RandomZoomOut", ("%s, number[] side_range?, number p=0.5"):format(FILL) .. MASK, "fill side_range p", {
    init = function(self)
      make.probability(self)
      self.side_range = self.side_range or { 1, 4 }
      make.range(self, "side_range")
      if self.side_range[1] < 1 then
        check.fail("[transforms.RandomZoomOut] side_range must be at least 1, got %g", self.side_range[1])
      end
    end,
    draw = function(self, sample)
      local h, w = sample:size()
      if random() >= self.p then return nil end
      local r = between(self.side_range[1], self.side_range[2])
      local height, width = math.floor(h * r), math.floor(w * r)
      local left, top = math.floor((width - w) * random()), math.floor((height - h) * random())
      return { left, top, width - left - w, height - top - h }
    end,
    image = function(self, x, p, kind) return F.pad(x, p, fill_of(self, kind), "constant") end, mask = true,
    boxes = function(_, b, p) return boxes.pad(b, p) end,
  })

  --- A part of the image that holds the middle of a box and shares enough with one (Liu and others, SSD, 2016). Boxes
  -- whose middle is outside become 0: SanitizeBoundingBoxes takes them away.
  define("RandomIoUCrop", "number min_scale=0.3, number max_scale=1, number min_aspect_ratio=0.5, \z
    number max_aspect_ratio=2, number[] sampler_options?, count trials=40", "min_scale max_scale", {
      init = function(self) self.options = self.sampler_options or { 0, 0.1, 0.3, 0.5, 0.7, 0.9, 1 } end,
      draw = function(self, sample)
        local h, w = sample:size()
        local leaf = sample:first "boxes"
        if not leaf or not sample:first "image" then
          check.fail("[transforms.RandomIoUCrop] needs an image and BoundingBoxes in one call")
        end
        local b = leaf.value
        local x = boxes.convert("RandomIoUCrop", b.data, b.format, "XYXY"):to(moth.float64)
        local cx, cy = (x:select(2, 1) + x:select(2, 3)) * 0.5, (x:select(2, 2) + x:select(2, 4)) * 0.5
        for _ = 1, 1000 do
          local least = self.options[random(1, #self.options)]
          if least >= 1 then return nil end
          for _ = 1, self.trials do
            local width = math.floor(w * between(self.min_scale, self.max_scale))
            local height = math.floor(h * between(self.min_scale, self.max_scale))
            local left, top = math.floor((w - width) * random()), math.floor((h - height) * random())
            local part = { left, top, left + width, top + height }
            local ratio = width / math.max(height, 1)
            if width > 0 and height > 0 and ratio >= self.min_aspect_ratio and ratio <= self.max_aspect_ratio then
              local inside = cx:gt(left):logical_and(cx:lt(part[3])):logical_and(cy:gt(top))
                :logical_and(cy:lt(part[4]))
              if inside:any():item()
                and box_iou(x[inside], x:new_tensor { part }):max():item() >= least then
                return { top + 1, left + 1, height, width, inside = inside }
              end
            end
          end
        end
        return nil
      end,
      image = function(_, x, p) return F.crop(x, p[1], p[2], p[3], p[4], 0) end, mask = true,
      boxes = function(_, b, p)
        local data, canvas = boxes.crop(b, p[1], p[2], p[3], p[4])
        return data * p.inside:to(data:dtype()):view(-1, 1), canvas
      end,
    })

  -- ---- mirrored, turned, bent ---------------------------------------------------------------------------------

  for name, flip in require "moth.each" { RandomHorizontalFlip = "hflip", RandomVerticalFlip = "vflip" } do
    define(name, "number p=0.5", "p", {
      init = make.probability,
      draw = function(self) return random() < self.p or nil end,
      image = function(_, x) return F[flip](x) end, mask = true,
      boxes = function(_, b) return boxes[flip](b) end,
    })
  end

  define("RandomRotation", ("number|number[] degrees, %s, %s, bool expand=false, number[] center?"):format(NEAR, FILL)
    .. MASK, "degrees", {
      init = function(self) make.range(self, "degrees") end,
      draw = function(self) return between(self.degrees[1], self.degrees[2]) end,
      image = function(self, x, angle, kind)
        return F.rotate(x, angle, mode_of(self, kind), fill_of(self, kind), self.expand, self.center)
      end, mask = true,
      boxes = function(self, b, angle) return boxes.rotate(b, angle, self.center, self.expand) end,
    })

  define("RandomAffine", ("number|number[] degrees, number[] translate?, number[] scale?, number|number[] shear?, \z
    %s, %s, number[] center?"):format(NEAR, FILL) .. MASK, "degrees", {
      init = function(self)
        make.range(self, "degrees")
        if type(self.shear) == "table" and #self.shear == 4 then
          self.shear_y = { self.shear[3], self.shear[4] }
          self.shear = { self.shear[1], self.shear[2] }
          make.range(self, "shear_y")
        end
        make.range(self, "shear")
        for _, v in ipairs(self.translate or {}) do
          if v < 0 or v > 1 then check.fail("[transforms.RandomAffine] translate are shares from 0 to 1, got %g", v) end
        end
        for _, v in ipairs(self.scale or {}) do
          if v <= 0 then check.fail("[transforms.RandomAffine] scale must be above 0, got %g", v) end
        end
        for _, key in ipairs { "translate", "scale" } do
          if self[key] and #self[key] ~= 2 then
            check.fail("[transforms.RandomAffine] %s is a list of two numbers, got %d", key, #self[key])
          end
        end
      end,
      draw = function(self, sample)
        local h, w = sample:size()
        local p = { between(self.degrees[1], self.degrees[2]), { 0, 0 }, 1, { 0, 0 } }
        if self.translate then
          local dx, dy = self.translate[1] * w, self.translate[2] * h
          p[2] = { math.floor(between(-dx, dx) + 0.5), math.floor(between(-dy, dy) + 0.5) }
        end
        if self.scale then p[3] = between(self.scale[1], self.scale[2]) end
        if self.shear then p[4][1] = between(self.shear[1], self.shear[2]) end
        if self.shear_y then p[4][2] = between(self.shear_y[1], self.shear_y[2]) end
        return p
      end,
      image = function(self, x, p, kind)
        return F.affine(x, p[1], p[2], p[3], p[4], mode_of(self, kind), fill_of(self, kind), self.center)
      end, mask = true,
      boxes = function(self, b, p) return boxes.affine(b, p[1], p[2], p[3], p[4], self.center) end,
    })

  define("RandomPerspective", ("number distortion_scale=0.5, number p=0.5, %s, %s"):format(SMOOTH, FILL) .. MASK,
    "distortion_scale p", {
      init = function(self)
        make.probability(self)
        if self.distortion_scale < 0 or self.distortion_scale > 1 then
          check.fail("[transforms.RandomPerspective] distortion_scale must be from 0 to 1, got %g",
            self.distortion_scale)
        end
      end,
      draw = function(self, sample)
        local h, w = sample:size()
        if random() >= self.p then return nil end
        local y = math.floor(self.distortion_scale * math.floor(h / 2)) + 1
        local x = math.floor(self.distortion_scale * math.floor(w / 2)) + 1
        local function left() return random(0, x - 1) end
        local function right() return random(w - x, w - 1) end
        local function top() return random(0, y - 1) end
        local function bottom() return random(h - y, h - 1) end
        return geometry.perspective("RandomPerspective",
          { { 0, 0 }, { w - 1, 0 }, { w - 1, h - 1 }, { 0, h - 1 } },
          { { left(), top() }, { right(), top() }, { right(), bottom() }, { left(), bottom() } })
      end,
      image = function(self, x, p, kind)
        return F.perspective_by(x, p, mode_of(self, kind), fill_of(self, kind))
      end, mask = true,
      boxes = function(_, b, p) return boxes.perspective(b, p) end,
    })

  -- Where each pixel comes from: smooth noise, in halves of the side.
  local function noise(h, w, alpha, sigma, side, both)
    local d = moth.rand(1, h, w):mul_(2):sub_(1)
    if sigma > 0 then
      local size = math.floor(8 * sigma + 1)
      if size % 2 == 0 then size = size + 1 end
      d = F.gaussian_blur(d, { size, size }, both)
    end
    return d * (alpha / side)
  end
  define("ElasticTransform", ("number|number[] alpha=50, number|number[] sigma=5, %s, %s"):format(SMOOTH, FILL) .. MASK,
    "alpha sigma", {
      init = function(self)
        pair(self, "alpha")
        pair(self, "sigma")
      end,
      draw = function(self, sample)
        local h, w = sample:size()
        local dx = noise(h, w, self.alpha[1], self.sigma[1], w, self.sigma)
        local dy = noise(h, w, self.alpha[2], self.sigma[2], h, self.sigma)
        return moth.stack({ dx[1], dy[1] }, 3)
      end,
      image = function(self, x, d, kind) return F.elastic(x, d, mode_of(self, kind), fill_of(self, kind)) end,
      mask = true,
      boxes = function(_, b, d) return boxes.elastic(b, d) end,
    })

  -- ---- erased ------------------------------------------------------------------------------------------

  define("RandomErasing", "number p=0.5, number[] scale?, number[] ratio?, number|number[]|'random' value=0",
    "p scale ratio value", {
      init = function(self)
        make.probability(self)
        self.scale, self.ratio = self.scale or { 0.02, 0.33 }, self.ratio or { 0.3, 3.3 }
        make.two(self, "scale")
        make.two(self, "ratio")
      end,
      draw = function(self, sample)
        local h, w = sample:size()
        if random() >= self.p then return nil end
        for _ = 1, 10 do
          local area = h * w * between(self.scale[1], self.scale[2])
          local ratio = math.exp(between(math.log(self.ratio[1]), math.log(self.ratio[2])))
          local height, width = math.floor(math.sqrt(area * ratio) + 0.5), math.floor(math.sqrt(area / ratio) + 0.5)
          if height >= 1 and height < h and width >= 1 and width < w then
            return { random(1, h - height + 1), random(1, w - width + 1), height, width }
          end
        end
        return nil
      end,
      image = function(self, x, p)
        local value = self.value
        if value == "random" then
          local part = F.crop(x, p[1], p[2], p[3], p[4], 0)
          if form.is_float(x) then
            value = moth.randn_like(part)
          else
            value = moth.randint(0, form.white("RandomErasing", x) + 1, part:size()):to(x:dtype())
          end
        elseif type(value) == "table" then
          if #value ~= 1 and #value ~= form.sizes(x) then
            check.fail("[transforms.RandomErasing] value has %d numbers, the image has %d channels", #value,
              (form.sizes(x)))
          end
          local shape = {}
          for d = 1, B.dim(x) do shape[d] = B.size(x, d) end
          shape[#shape - 1], shape[#shape] = p[3], p[4]
          value = moth.tensor(value, { dtype = moth.float64 }):to(x:dtype()):view(-1, 1, 1):expand(shape)
        end
        return F.erase(x, p[1], p[2], p[3], p[4], value)
      end,
    })

  return M
end
