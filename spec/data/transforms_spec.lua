-- Transforms of images, masks and boxes against torchvision's values, which spec/data/transforms.py wrote.

local moth = require "moth"
local T = moth.transforms
local F = T.functional
local boxes_of = require "moth.data.transforms.boxes"
local values = dofile "spec/data/fixtures/transforms.lua"

-- The image of spec/data/transforms.py.
local function image(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  local i = moth.arange(n)
  return (i * i * 7 + i * 13):remainder(251):to(moth.uint8):view(shape)
end
local function bytes_of(hex)
  local list = {}
  for pair in hex:gmatch ".." do list[#list + 1] = tonumber(pair, 16) end
  return list
end
local function far(a, b) return (a:double() - b:double()):abs():max():item() end
local function random_bytes(...) return moth.randint(0, 256, { ... }):to(moth.uint8) end
local displacement = (moth.arange(40):float():sin() * 0.4):view(1, 5, 4, 2)

describe("functions of images #quick", function()
  it("give torchvision's values", function()
    for _, case in ipairs(values.images) do
      local name, kind, shape, args, n, out_shape, expected = unpack(case, 1, 7)
      local x = image(shape)
      if kind == "f" then x = x:float() / 255 end
      if name == "elastic" then args, n = { displacement, unpack(args, 1, n) }, n + 1 end
      local y = F[name](x, unpack(args, 1, n))
      if type(y) == "table" then y = moth.stack(y) end
      local is_bytes = type(expected) == "string"
      assert.equal(is_bytes, y:dtype() == moth.uint8)
      local want = moth.tensor(is_bytes and bytes_of(expected) or expected, { dtype = moth.float64 }):view(out_shape)
      assert.same(want:size(), y:size())
      -- A fill that is not of the image's size counts as much as its error.
      local largest = want:numel() > 0 and math.max(1, want:abs():max():item()) or 1
      local limit = is_bytes and 0 or y:dtype().is_floating_point and 2e-6 * largest or 0
      local d = far(want, y)
      assert.is_true(d <= limit, ("%s %s, %d arguments: %g"):format(name, kind, n, d))
    end
  end)

  it("take every form of an image, and batches, and give it back", function()
    local planes = random_bytes(3, 12, 14)
    local last = planes:permute(2, 3, 1):contiguous()
    for _, call in ipairs { { "equalize" }, { "adjust_hue", 0.2 }, { "rotate", 30 }, { "resize", { 7, 9 } },
      { "gaussian_blur", 3 }, { "jpeg", 60 }, { "pad", 2 }, { "posterize", 2 }, { "adjust_sharpness", 2 } } do
      local name, arg = call[1], call[2]
      local y = F[name](planes, arg)
      assert.is_true(y:equal(F[name](last, arg):permute(3, 1, 2)), name)
      local pair = moth.stack { planes, planes:flip(3) }
      local z = F[name](pair, arg)
      assert.is_true(z[1]:equal(y), name)
      assert.is_true(z[2]:equal(F[name](planes:flip(3), arg)), name)
      assert.is_true(z:permute(1, 3, 4, 2):equal(F[name](pair:permute(1, 3, 4, 2), arg)), name)
      local grey = planes[1]
      assert.is_true(F[name](grey, arg):equal(F[name](planes:narrow(1, 1, 1), arg)[1]), name)
    end
    local deep = moth.randint(0, 65536, { 3, 6, 7 }):to(moth.uint16)
    assert.equal(moth.uint16, F.adjust_brightness(deep, 0.5):dtype())
    assert.is_true(F.invert(F.invert(deep)):to(moth.int64):equal(deep:to(moth.int64)))
    assert.equal(65535, F.to_dtype(moth.ones(1, 1, 1), moth.uint16, true):to(moth.int64):item())
    assert.equal(255, F.to_dtype(moth.full({ 1, 1, 1 }, 2), moth.uint8, true):item())
  end)

  it("refuse what they cannot tell or do", function()
    local x = moth.rand(3, 6, 8)
    local function fails(words, fn, ...)
      local args, n = { ... }, select("#", ...)
      assert.error_matches(function() fn(unpack(args, 1, n)) end, words)
    end
    fails("channels seem to come last", F.hflip, moth.rand(32, 32, 3))
    fails("cannot tell whether the channels", F.hflip, moth.zeros({ 32, 32, 32 }, { dtype = moth.uint8 }))
    fails("bits must be from 0 to 8", F.posterize, x, 9)
    fails("threshold is at most 1", F.solarize, x, 2)
    fails("one or two odd numbers", F.gaussian_blur, x, 4)
    fails("too small for a kernel of 3 x 19", F.gaussian_blur, x, { 19, 3 })
    fails("sigma is one or two numbers above 0", F.gaussian_blur, x, 3, 0)
    fails("expected bytes", F.jpeg, x, 50)
    fails("from 1 to 100", F.jpeg, random_bytes(3, 8, 8), 101)
    fails("cannot be scaled to int32 without loss", F.to_dtype, x, moth.int32, true)
    fails("the numbers 1 to 3 in an order", F.permute_channels, x, { 1, 1, 2 })
    fails("brightness_factor must be at least 0", F.adjust_brightness, x, -1)
    fails("displacement must be %(1, 6, 8, 2%)", F.elastic, x, moth.zeros(1, 8, 6, 2))
    fails("fill has 2 numbers, the image has 3 channels", F.rotate, x, 10, { fill = { 1, 2 } })
    fails("four points", F.perspective, x, { { 0, 0 } }, { { 0, 0 } })
    fails("larger than the image of 6 x 8", F.five_crop, x, 7)
    fails("lanczos needs antialias", F.resize, x, 3, "lanczos", false)
    fails("max_size must be above size", F.resize, x, 3, { max_size = 3 })
  end)
end)

describe("boxes #quick", function()
  it("follow images as torchvision's do", function()
    for _, case in ipairs(values.boxes) do
      local name, dtype, format, data, args, n, expected = unpack(case, 1, 7)
      local x = moth.tensor(data, { dtype = moth[dtype] }):view(-1, 4)
      local y
      if name == "convert" then
        y = F.convert_bounding_box_format(x, format, args[1])
      elseif name == "clamp" then
        y = F.clamp_bounding_boxes(x, format, { 48, 64 })
      else
        y = boxes_of[name](T.BoundingBoxes(x, format, { 48, 64 }), unpack(args, 1, n))
      end
      assert.equal(x:dtype(), y:dtype())
      local d = far(moth.tensor(expected, { dtype = moth.float64 }):view(-1, 4), y)
      assert.is_true(d <= (dtype == "int64" and 0 or 1e-4), ("%s %s %s: %g"):format(name, dtype, format, d))
    end
    local x = moth.tensor { { 1, 1, 9, 9 }, { 1, 1, 1.5, 9 }, { -1, 0, 5, 5 }, { 0, 0, 11, 5 } }
    local kept, good = F.sanitize_bounding_boxes(x, "XYXY", { 10, 10 })
    assert.same({ { 1, 1, 9, 9 } }, kept:tolist())
    assert.same({ true, false, false, false }, good:tolist())
    assert.error_matches(function() T.BoundingBoxes(x, "XY", { 10, 10 }) end, "XYXY, XYWH or CXCYWH, got 'XY'")
    assert.error_matches(function() T.BoundingBoxes(moth.ones(3), "XYXY", { 10, 10 }) end, "boxes are a tensor")
    assert.same({ 1, 4 }, T.BoundingBoxes(moth.ones(4), "XYXY", { 10, 10 }).data:size())
    assert.equal("BoundingBoxes(float32 [4, 4] cpu, XYXY, 10 x 10)", tostring(T.BoundingBoxes(x, "XYXY", { 10, 10 })))
  end)
end)

-- A picture with a bright rectangle, its mask and its box.
local function scene()
  local x = moth.zeros({ 3, 40, 50 }, { dtype = moth.uint8 })
  x:narrow(2, 11, 12):narrow(3, 21, 16):fill_(200)
  local mask = x[1]:gt(0)
  return x, mask, moth.tensor { { 20, 10, 36, 22 } }
end
-- The box around a mask.
local function around(mask)
  local at = mask:gt(0):nonzero()
  local low, high = at:amin(1), at:amax(1)
  return { low[2]:item() - 1, low[1]:item() - 1, high[2]:item(), high[1]:item() }
end

describe("transforms of samples #quick", function()
  before_each(function() moth.manual_seed(2) end)

  it("change image, mask and boxes by one draw", function()
    local x, mask, box = scene()
    for _, t in ipairs { T.RandomHorizontalFlip(1), T.RandomVerticalFlip(1), T.Resize { 80, 100 }, T.Pad { 3, 5 },
      T.RandomZoomOut { p = 1 }, T.RandomCrop(36), T.CenterCrop(30), T.RandomRotation({ 90, 90 }, { expand = true }),
      T.RandomAffine { 0, translate = { 0.1, 0.1 } }, T.RandomResize(50, 90), T.ScaleJitter { 60, 60 },
      T.RandomShortestSize { 60, 70 }, T.RandomResizedCrop { 30, scale = { 0.9, 1 } },
      T.RandomIoUCrop(), T.RandomPerspective { 0.2, p = 1 } } do
      for _ = 1, 3 do
        local y, m, b = t(x, T.Mask(mask), T.BoundingBoxes(box, "XYXY", { 40, 50 }))
        assert.equal(moth.uint8, y:dtype())
        assert.equal(moth.bool, m.data:dtype())
        assert.same({ y:size(2), y:size(3) }, { m.data:size(1), m.data:size(2) })
        assert.same({ y:size(2), y:size(3) }, b.canvas_size)
        local seen, told = around(m.data), b.data:tolist()[1]
        local bright = around(y[1]:gt(100))
        for k = 1, 4 do
          assert.is_true(math.abs(seen[k] - told[k]) <= 2.5, tostring(t))
          assert.is_true(math.abs(seen[k] - bright[k]) <= 2.5, tostring(t))
        end
      end
    end
  end)

  it("find the image, and leave the rest alone", function()
    local x, mask, box = scene()
    local flip = T.RandomHorizontalFlip(1)
    local label, other = moth.tensor { 3 }, moth.rand(2, 2)
    local y, l, o, n = flip(x, label, other, 7)
    assert.is_true(y:equal(x:flip(3)) and rawequal(l, label) and rawequal(o, other) and n == 7)
    local sample = flip { aux = other, image = x, target = { masks = T.Mask(mask), label = 3, name = "a" } }
    assert.is_true(sample.image:equal(y) and sample.target.masks.data:equal(mask:flip(2)))
    assert.is_true(rawequal(sample.aux, other) and sample.target.label == 3 and sample.target.name == "a")
    local two = flip { left = T.Image(x), right = T.Image(x:flip(3)), other = other }
    assert.is_true(two.left.data:equal(y) and two.right.data:equal(x) and rawequal(two.other, other))
    -- Where the sizes do not tell.
    local odd = random_bytes(3, 5, 3)
    assert.is_true(flip(T.Image(odd, "CHW")).data:equal(odd:flip(3)))
    assert.is_true(flip(T.Image(odd, "HWC")).data:equal(odd:flip(2)))
    assert.is_true(flip(T.Image(moth.rand(32, 8, 3), "CHW")).data:size(1) == 32)
    local whole = T.Compose { flip, T.ToTensor(), T.Normalize({ 0.5, 0.5, 0.5 }, { 0.5, 0.5, 0.5 }), T.ToPureTensor() }
    local pixels, m, b = whole(x, T.Mask(mask), T.BoundingBoxes(box, "XYXY", { 40, 50 }))
    assert.is_true(far(pixels, (y:float() / 255 - 0.5) / 0.5) < 1e-6)
    assert.is_true(m:equal(mask:flip(2)))
    assert.same({ { 14, 10, 30, 22 } }, b:tolist())
    local function fails(words, fn) assert.error_matches(fn, words) end
    fails("none of the fields is called 'image'", function() flip { a = x, b = other } end)
    fails("must be of one size, got 40 x 50 and 40 x 51", function()
      T.RandomCrop(3)(x, T.BoundingBoxes(box, "XYXY", { 40, 51 }))
    end)
    fails("takes no masks", function() T.FiveCrop(3)(x, T.Mask(mask)) end)
    fails("takes no bounding boxes", function() T.RandAugment()(x, T.BoundingBoxes(box, "XYXY", { 40, 50 })) end)
    fails("expected an image, a mask or boxes, got nothing", function() flip() end)
    fails("expected an image, a mask or boxes, got string", function() T.Resize(5)("a.png") end)
    fails("expected an image, a mask or boxes, got table", function() T.ToTensor() {} end)
    fails("boxes go with padding_mode 'constant'", function()
      T.Pad(1, { padding_mode = "edge" })(x, T.BoundingBoxes(box, "XYXY", { 40, 50 }))
    end)
  end)

  it("loaders make batches of what they hold", function()
    local x, mask, box = scene()
    local flip = T.RandomHorizontalFlip(1)
    local Scenes = moth.data.Dataset:subclass "Scenes"
    function Scenes.size() return 4 end
    function Scenes.get()
      return flip { image = T.Image(x), mask = T.Mask(mask), boxes = T.BoundingBoxes(box, "XYXY", { 40, 50 }) }
    end
    for n = 0, 1 do
      local batch = moth.data.DataLoader(Scenes(), { batch_size = 4, num_workers = n }):iter()()
      assert.same({ { 4, 3, 40, 50 }, { 4, 40, 50 } }, { batch.image:size(), batch.mask:size() })
      assert.same({ 4, { { 14, 10, 30, 22 } } }, { #batch.boxes, batch.boxes[4]:tolist() })
    end
  end)

  it("a fill for masks", function()
    local x, mask = scene()
    local y, m = T.Pad { 1, fill = { 7, 8, 9 }, mask_fill = 1 }(x, T.Mask(mask))
    assert.same({ 7, 8, 9 }, y:select(2, 1):select(2, 1):tolist())
    assert.is_true(m.data[1][1]:item())
    y, m = T.RandomRotation({ 45, 45 }, { fill = 200, mask_fill = 0 })(x, T.Mask(mask))
    assert.equal(200, y[1][1][1]:item())
    assert.is_false(m.data[1][1]:item())
  end)

  it("ToDtype, crops as lists, formats of boxes, sanitized boxes", function()
    local x, mask, box = scene()
    assert.is_true(far(T.ToDtype { moth.float32, scale = true }(x), x:float() / 255) < 1e-7)
    local y, m = T.ToDtype { moth.float32, scale = true, mask = moth.int64 }(x, T.Mask(mask))
    assert.same({ moth.float32, moth.int64 }, { y:dtype(), m.data:dtype() })
    assert.is_true(T.Compose({ T.ToDtype(moth.float32, true) }):batchable())
    assert.same({ 5, 10 }, { #T.FiveCrop(8)(x), #T.TenCrop(8)(x) })
    assert.is_true(T.FiveCrop(8)(x)[5]:equal(F.center_crop(x, 8)))
    local b = T.BoundingBoxes(moth.cat { box, moth.tensor { { 0, 0, 0, 0 }, { 45, 35, 60, 50 } } }, "XYXY", { 40, 50 })
    local labels = moth.tensor { 1, 2, 3 }
    local c = T.ConvertBoundingBoxFormat "cxcywh"(b)
    assert.equal("CXCYWH", c.format)
    assert.same({ 28, 16, 16, 12 }, c.data:tolist()[1])
    assert.same({ 45, 35, 50, 40 }, T.ClampBoundingBoxes()(b).data:tolist()[3])
    local masks = T.Mask(moth.zeros(3, 40, 50))
    local same, kept, l, k = T.SanitizeBoundingBoxes()(x, b, labels, masks)
    assert.is_true(rawequal(same, x))
    assert.same({ { { 20, 10, 36, 22 } }, { 1 }, 1 }, { kept.data:tolist(), l:tolist(), k.data:size(1) })
    local sample = T.SanitizeBoundingBoxes() { image = x, boxes = b, labels = labels }
    assert.same({ 1 }, sample.labels:tolist())
    assert.error_matches(function() T.SanitizeBoundingBoxes()(x, b) end, "there are no labels in this call")
    assert.equal(1, (select(2, T.SanitizeBoundingBoxes { labels_getter = false }(x, b))).data:size(1))
  end)

  it("the other random ones keep form and dtype, and follow the seed", function()
    local list = { T.GaussianBlur(3), T.GaussianNoise(), T.RandomInvert(1), T.RandomPosterize { 3, p = 1 },
      T.RandomSolarize { 0.5, p = 1 }, T.RandomAutocontrast(1), T.RandomEqualize(1), T.RandomChannelPermutation(),
      T.RandomAdjustSharpness { 2, p = 1 }, T.RandomPhotometricDistort(),
      T.ElasticTransform { alpha = 30, sigma = 1 }, T.RGB(), T.AutoAugment(),
      T.AutoAugment "cifar10", T.AutoAugment "svhn", T.RandAugment(), T.TrivialAugmentWide(), T.AugMix(),
      T.RandomPerspective { p = 1 }, T.RandomChoice({ T.RandomInvert(1), T.RandomEqualize(1) }, { 1, 3 }),
      T.RandomErasing { p = 1, value = { 1, 2, 3 } } }
    for _, x in ipairs { random_bytes(3, 20, 24), random_bytes(20, 24, 3), moth.rand(3, 20, 24) } do
      for _, t in ipairs(list) do
        for round = 1, 3 do
          moth.manual_seed(round)
          local y = t(x)
          moth.manual_seed(round)
          assert.is_true(y:equal(t(x)), tostring(t))
          assert.same(x:size(), y:size())
          assert.equal(x:dtype(), y:dtype())
        end
      end
    end
    local x = random_bytes(3, 20, 24)
    assert.is_true(F.jpeg(x, 40):equal(T.JPEG(40)(x)))
    assert.is_true(F.invert(x):equal(T.RandomInvert(1)(x)))
    assert.is_true(F.posterize(x, 3):equal(T.RandomPosterize { 3, p = 1 }(x)))
    assert.is_true(x:equal(T.RandAugment { num_ops = 0 }(x)))
    local m, v = moth.rand(12, 12), moth.rand(12)
    local small = moth.rand(3, 2, 2)
    assert.is_true(far(T.LinearTransformation(m, v)(small):view(-1), (small:view(-1) - v):matmul(m)) < 1e-5)
    assert.error_matches(function() T.LinearTransformation(m, v)(x) end, "does not fit a matrix of 12 rows")
    assert.error_matches(function() T.GaussianBlur(2) end, "one or two odd numbers")
    for words, fn in pairs {
      ["CenterCrop%] size is 1 or 2 numbers, got 3"] = function() T.CenterCrop { 1, 2, 3 } end,
      ["output_size is 1 or 2 numbers, got 0"] = function() F.center_crop(x, {}) end,
      ["resize%] size is 1 or 2 numbers, got 3"] = function() F.resize(x, { 1, 2, 3 }) end,
      ["scale is { low, high }, at least 0, got {0.1}"] = function() T.RandomErasing { scale = { 0.1 } } end,
      ["ratio is { low, high }"] = function() T.RandomResizedCrop { 8, ratio = { -1, 2 } } end,
    } do
      assert.error_matches(fn, words)
    end
    assert.error_matches(function() T.RandAugment { magnitude = 31 } end, "magnitude must be below")
    assert.error_matches(function() T.ToDtype() end, "there is no dtype")
    assert.equal("RandAugment(num_ops=2, magnitude=9, num_magnitude_bins=31)", tostring(T.RandAugment()))
  end)
end)
