-- Transforms of images. The numbers are torchvision 0.29's.

local moth = require "moth"
local T = moth.transforms
local F = T.functional
local data = moth.data

local function close(expected, x, tolerance)
  x = x:dim() == 3 and x[1] or x
  expected = moth.tensor(expected)
  assert.same(expected:size(), x:size())
  local far = (expected - x:float()):abs():max():item()
  assert.is_true(far <= (tolerance or 2e-5), tostring(far))
end

-- (1, 4, 5)
local function small()
  local v = moth.arange(20)
  return (v * v):remainder(23):float():div(23):view(1, 4, 5)
end
-- uint8 (H, W, C)
local function bytes(h, w, c) return moth.randint(0, 256, { h, w, c }):to(moth.uint8) end

describe("transforms of images #quick", function()
  before_each(function() moth.manual_seed(1) end)

  it("resize as torchvision does", function()
    local x = small()
    close({ { 0.17746, 0.28226, 0.57764 }, { 0.39042, 0.3285, 0.4685 } }, F.resize(x, { 2, 3 }))
    close({ { -0.00411, 0.11138, 0.18452, 0.15571, 0.41527, 0.5982, 0.66081 },
      { 0.1917, 0.35112, 0.3799, 0.18341, 0.4886, 0.58043, 0.50491 },
      { 0.72182, 0.36181, 0.20159, 0.49746, 0.18823, 0.33362, 0.68332 } }, F.resize(x, { 3, 7 }, "bicubic"))
    close({ { 0.10145, 0.50906 }, { 0.36413, 0.55435 }, { 0.29167, 0.26449 } },
      F.resize(x, { 3, 2 }, { antialias = false }))
    assert.same({ 1, 8, 10 }, T.Resize(8)(x):size()) -- the shorter side
    assert.same({ 3, 2, 4, 5 }, (function()
      local y = T.Resize({ 4, 5 })(bytes(9, 7, 3))
      assert.equal(moth.uint8, y:dtype())
      return { y:size(3), 2, y:size(1), y:size(2) }
    end)())
    assert.is_true(moth.equal(x, T.Resize({ 4, 5 })(x)))
    local flat = moth.full({ 3, 11, 13 }, 0.25)
    for _, mode in ipairs({ "nearest", "box", "bilinear", "bicubic" }) do
      close(moth.full({ 7, 29 }, 0.25):totable(), F.resize(flat, { 7, 29 }, mode), 1e-6)
    end
    assert.error_matches(function() T.Resize(4)(moth.ones(4)) end, "expected an image, uint8 %(H, W%)")
    assert.error_matches(function() T.Resize(4)(moth.ones(3, 0, 5)) end, "has no pixels")
  end)

  it("turn, move, shear as torchvision does", function()
    local x = small()
    close({ { 0.0112, 0.08851, 0.30169, 0.58766, 0.34083 }, { 0.08666, 0.34271, 0.24298, 0.60983, 0.49545 },
      { 0.15338, 0.36048, 0.25918, 0.28713, 0.50183 }, { 0.2709, 0.37143, 0.33481, 0.27031, 0.12597 } },
      F.rotate(x, 20, "bilinear"))
    close({ { 0.06007, 0.22963, 0.35146, 0.19328, 0.30773 }, { 0.21661, 0.3475, 0.39501, 0.18402, 0.48512 },
      { 0.39672, 0.27797, 0.26719, 0.25441, 0.40622 }, { 0.53096, 0.18367, 0.3427, 0.35982, 0.26296 } },
      F.affine(x, 10, { 1, 0 }, 1.5, { 5, 0 }, "bilinear"))
    local u = bytes(6, 8, 3)
    assert.is_true(moth.equal(u:flip(1):flip(2), F.rotate(u, 180)))
    assert.equal(9, F.rotate(moth.ones(1, 4, 4), 45, { fill = 9 })[1][1][1]:item())
    assert.error_matches(function() F.affine(x, 0, { 0, 0 }, 0, 0) end, "scale must be above 0")
  end)

  it("change colours as torchvision does", function()
    local c = moth.tensor({ 0.8, 0.3, 0.1, 0.2, 0.6, 0.4 }):view(3, 2, 1)
    close({ 0.74, 0.4, 0.8, 0.26, 0.1, 0.2 }, F.adjust_hue(c, 0.3):view(-1))
    close({ 0.58311, 0.27634, 0.23311, 0.22634, 0.48311, 0.32634 }, F.adjust_saturation(c, 0.5):view(-1))
    close({ 0.55472, 0.30472, 0.20472, 0.25472, 0.45472, 0.35472 }, F.adjust_contrast(c, 0.5):view(-1))
    close({ 1, 0.6, 0.2, 0.4, 1, 0.8 }, F.adjust_brightness(c, 2):view(-1))
    assert.same({ 3, 2, 1 }, T.Grayscale(3)(c):size())
    assert.same({ 5, 4, 1 }, T.Grayscale()(bytes(5, 4, 3)):size())
    assert.is_true(moth.equal(c, T.ColorJitter()(c)))
    local jitter = T.ColorJitter { brightness = 0.5, contrast = 0.5, saturation = 0.5, hue = 0.2 }
    for _, image in ipairs({ c, bytes(5, 6, 3), bytes(5, 6, 1)[{ {}, {}, 1 }] }) do
      local y = jitter(image)
      assert.equal(image:dtype(), y:dtype())
      assert.same(image:size(), y:size())
    end
    assert.equal("ColorJitter(brightness={0.5, 1.5}, contrast={0.5, 1.5}, saturation={0.5, 1.5}, hue={-0.2, 0.2})",
      tostring(jitter))
    assert.error_matches(function() T.ColorJitter { hue = 0.7 } end, "hue is at most 0.5")
    assert.error_matches(function() F.adjust_hue(moth.rand(2, 3, 3), 0.1) end, "expected 1 or 3 channels, got 2")
  end)

  it("crop, pad, mirror, erase, in both forms of an image", function()
    for _, x in ipairs({ moth.rand(3, 6, 8), bytes(6, 8, 3), bytes(6, 8, 1)[{ {}, {}, 1 }] }) do
      local function size(y) return { F.size("spec", y) } end
      assert.same({ 4, 5 }, size(T.CenterCrop({ 4, 5 })(x)))
      assert.same({ 9, 9 }, size(T.CenterCrop(9)(x)))
      assert.same({ 4, 4 }, size(T.RandomCrop(4)(x)))
      assert.same({ 8, 8 }, size(T.RandomCrop(8, { padding = 1 })(x)))
      assert.same({ 12, 12 }, size(T.RandomCrop(12, { pad_if_needed = true })(x)))
      assert.same({ 5, 7 }, size(T.RandomResizedCrop({ 5, 7 })(x)))
      assert.same({ 10, 14 }, size(T.Pad({ 3, 2 })(x)))
      for _, mode in ipairs({ "constant", "edge", "reflect" }) do
        assert.is_true(moth.equal(x, T.CenterCrop({ 6, 8 })(T.Pad(2, { padding_mode = mode })(x))))
      end
      assert.is_true(moth.equal(x, T.RandomHorizontalFlip(1)(T.RandomHorizontalFlip(1)(x))))
      assert.is_true(moth.equal(F.vflip(x), T.RandomVerticalFlip(1)(x)))
      assert.is_false(moth.equal(x, F.vflip(x)))
      assert.is_true(moth.equal(x, T.RandomHorizontalFlip(0)(x)))
      local before = x:clone()
      local erased = T.RandomErasing(1, { value = 0 })(x)
      assert.is_true(moth.equal(before, x))
      assert.is_true(erased:eq(0):sum():item() > 0)
      assert.same(x:size(), T.RandomErasing { p = 1, value = "random" }(x):size())
      assert.same(x:size(), T.RandomAffine(20, { translate = { 0.1, 0.2 }, scale = { 0.8, 1.2 }, shear = 5 })(x):size())
    end
    close({ { 5, 4, 5, 6, 5 } }, F.pad(moth.tensor({ { 4, 5, 6 } }):view(1, 1, 3), { 1, 0, 1, 0 }, 0, "reflect"))
    assert.error_matches(function() T.RandomCrop(9)(moth.rand(1, 4, 4)) end, "4 x 4 is smaller than the crop of 9 x 9")
    assert.error_matches(function() T.RandomHorizontalFlip(2) end, "p must be from 0 to 1")
    assert.error_matches(function() F.pad(moth.rand(1, 2, 2), 2, 0, "reflect") end, "has no 2, 2, 2, 2 to reflect")
  end)

  it("random ones follow the seed, one by one, and in workers", function()
    local t = T.Compose { T.RandomApply({ T.RandomRotation(30) }, 0.7), T.RandomChoice { T.RandomHorizontalFlip(1),
      T.RandomVerticalFlip(1) }, T.RandomOrder { T.ColorJitter(0.3), T.RandomGrayscale(0.3) }, T.ToTensor() }
    assert.is_false(t:batchable())
    local images = bytes(12 * 10, 10, 3):view(12, 10, 10, 3)
    local ds = moth.datasets.ImageDataset(images, moth.arange(1, 13), { transform = t })
    local function epoch(n)
      local out = {}
      for x in data.DataLoader(ds, { batch_size = 5, num_workers = n, seed = 3, shuffle = true }):iter() do
        out[#out + 1] = x
      end
      return moth.cat(out)
    end
    local x = epoch(0)
    assert.same({ 12, 3, 10, 10 }, x:size())
    assert.is_true(moth.equal(x, epoch(2)))
  end)

  it("mixup and cutmix mix images and labels by the same shares", function()
    local x = moth.stack { moth.zeros(1, 6, 6), moth.ones(1, 6, 6) }
    local y = moth.tensor({ 1, 3 }, { dtype = moth.int64 })
    for _, name in ipairs({ "MixUp", "CutMix" }) do
      for _ = 1, 20 do
        local a, b = T[name] { alpha = 0.8, num_classes = 3 }(x, y)
        assert.same({ 2, 3 }, b:size())
        assert.is_true((b:sum(2) - 1):abs():max():item() < 1e-6)
        assert.is_true(math.abs(a[1]:mean():item() - b[1][3]:item()) < 1e-5)
        assert.is_true(math.abs(a[2]:mean():item() - b[2][3]:item()) < 1e-5)
      end
    end
    assert.error_matches(function() T.MixUp()(x, y) end, "num_classes is needed")
    assert.error_matches(function() T.CutMix(1, 3)(x, moth.ones(3)) end, "expected images %(N, C, H, W%) and labels")
  end)

  it("find channels that come first in images of integers", function()
    local first = bytes(12, 10, 3):permute(3, 1, 2):contiguous()
    for _, t in ipairs { T.Resize(5), T.CenterCrop(4), T.Pad(2), T.RandomHorizontalFlip(1), T.Grayscale(3),
      T.RandomResizedCrop { 5, 7, scale = { 0.1, 0.1 } } } do
      moth.manual_seed(3)
      local y = t(first)
      moth.manual_seed(3)
      assert.is_true(y:equal(t(first:permute(2, 3, 1)):permute(3, 1, 2)), tostring(t))
      assert.equal(moth.uint8, y:dtype())
    end
    assert.is_true(F.hflip(first):equal(first:flip(3)))
    assert.is_true(F.crop(first, 1, 1, 12, 2):equal(first:narrow(3, 1, 2)))
    for _, size in ipairs { { 32, 32, 32 }, { 3, 32, 3 } } do
      local image = moth.zeros(size, { dtype = moth.uint8 })
      assert.error_matches(function() T.Resize(4)(image) end, "cannot tell whether the channels .* come first or last")
    end
    local labels = moth.tensor({ 1, 2 }, { dtype = moth.int64 })
    assert.error_matches(function() T.CutMix(1, 2)(moth.rand(2, 8, 8, 3), labels) end,
      "whose channels come last")
  end)
end)
