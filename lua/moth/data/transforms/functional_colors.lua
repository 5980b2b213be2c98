--- The functions of moth.transforms.functional that change colours, noise and dtype; functional.lua has
-- them, too. In bytes the results are torchvision's: what it rounds is rounded, what it cuts off is cut off.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local form = require "moth.data.transforms.form"
local library = require "moth.utils.library"
local signature = require "moth.utils.signature"
local floats = form.floats

-- a + factor * b as processors do it that multiply and add in one step, with one rounding, which PyTorch makes use of:
-- where results are cut off to bytes, the last bit counts.
local function fused(a, b, factor)
  if a:dtype() ~= moth.float32 then return a + b * factor end
  local f = ffi.new("float[1]", factor)
  return (a:to(moth.float64) + b:to(moth.float64) * tonumber(f[0])):to(moth.float32)
end

local function colors(where, x)
  local c = form.sizes(x)
  if c ~= 1 and c ~= 3 then check.fail("[transforms.%s] expected 1 or 3 channels, got %d", where, c) end
  return c
end

local function at_least_0(where, name, v)
  if v < 0 then check.fail("[transforms.%s] %s must be at least 0, got %g", where, name, v) end
end

-- Grey as floats, (…, 1, H, W).
local function grey_of(x)
  local y = floats(x)
  if form.sizes(x) == 1 then return y end
  local grey = fused(fused(y:narrow(-3, 1, 1) * 0.2989, y:narrow(-3, 2, 1), 0.587), y:narrow(-3, 3, 1), 0.114)
  return grey
end

-- x times factor and the rest of other, cut off to x's dtype.
local function blend(where, x, other, factor)
  return fused(floats(x) * factor, other, 1 - factor):clamp_(0, form.white(where, x)):to(x:dtype())
end

-- The image in another dtype; scale: from the largest value to the largest.
local function to_dtype(where, x, dtype, scale)
  local from = B.tensor_dtype(x)
  if from == dtype or not scale then return x:to(dtype) end
  local own, top = form.bits(where, from)
  local bits, white = form.bits(where, dtype)
  if not own then
    if not bits then return x:to(dtype) end
    if from.name == "float32" and bits > 24 or bits > 53 then
      check.fail("[transforms.%s] values of %s cannot be scaled to %s without loss\nHINT: x:to(moth.float64) first",
        where, from.name, dtype.name)
    end
    return (x * (white + 1 - 1e-3)):floor():clamp_(0, white):to(dtype)
  end
  if not bits then return x:to(dtype):mul_(1 / top) end
  if own > bits then return moth.bitwise_right_shift(x:to(moth.int64), own - bits):to(dtype) end
  return moth.bitwise_left_shift(x:to(moth.int64), bits - own):to(dtype)
end

-- Each byte of planes through the table that `make` writes (out, counts of the 256 values, number of pixels).
local function through_tables(x, make)
  local _, h, w = form.sizes(x)
  local device, y = x:device(), x:cpu():contiguous():clone()
  local n = h * w
  local p = ffi.cast("uint8_t *", y:data())
  local counts, lut = ffi.new "int32_t[256]", ffi.new "uint8_t[256]"
  for _ = 1, y:numel() / n do
    ffi.fill(counts, ffi.sizeof(counts))
    for i = 0, n - 1 do counts[p[i]] = counts[p[i]] + 1 end
    if make(lut, counts, n) then
      for i = 0, n - 1 do p[i] = lut[p[i]] end
    end
    p = p + n
  end
  return y:to(device)
end

-- As Pillow does it.
local function equal_shares(lut, counts, n)
  local last = 255
  while counts[last] == 0 do last = last - 1 end
  local step = math.floor((n - counts[last]) / 255)
  if step == 0 then return false end
  local sum, half = 0, math.floor(step / 2)
  for v = 0, 255 do
    lut[v] = v == 0 and 0 or math.min(math.floor((sum + half) / step), 255)
    sum = sum + counts[v]
  end
  return true
end

-- ---- JPEG ------------------------------------------------------------------------------------------

local turbo
local function open_turbo()
  if turbo then return turbo end
  pcall(ffi.cdef, [[
    void *tjInitCompress(void);
    void *tjInitDecompress(void);
    int tjDestroy(void *);
    unsigned long tjBufSize(int width, int height, int subsamp);
    int tjCompress2(void *, const uint8_t *, int width, int pitch, int height, int format, uint8_t **, unsigned long *,
      int subsamp, int quality, int flags);
    int tjDecompress2(void *, const uint8_t *, unsigned long, uint8_t *, int width, int pitch, int height, int format,
      int flags);
    char *tjGetErrorStr2(void *);
  ]])
  local found = library("libturbojpeg.so.0", "[transforms.jpeg]", "libturbojpeg0")
  turbo = { C = found, write = ffi.gc(found.tjInitCompress(), found.tjDestroy),
    read = ffi.gc(found.tjInitDecompress(), found.tjDestroy) }
  return turbo
end

local RGB, GREY, S420, S_GREY, ACCURATE, NO_ALLOC = 0, 6, 2, 3, 4096, 1024

-- One image, bytes (H, W, C), written and read again.
local function through_jpeg(x, quality)
  local t = open_turbo()
  local h, w, c = B.size(x, 1), B.size(x, 2), B.size(x, 3)
  local kind, samples = c == 3 and RGB or GREY, c == 3 and S420 or S_GREY
  local most = tonumber(t.C.tjBufSize(w, h, samples))
  local bytes = ffi.new("uint8_t[?]", most)
  local buffer, size = ffi.new("uint8_t *[1]", bytes), ffi.new("unsigned long[1]", most)
  local out = moth.empty({ h, w, c }, { dtype = moth.uint8 })
  if t.C.tjCompress2(t.write, x:data(), w, 0, h, kind, buffer, size, samples, quality, ACCURATE + NO_ALLOC) ~= 0 then
    check.fail("[transforms.jpeg] %s", ffi.string(t.C.tjGetErrorStr2(t.write)))
  end
  if t.C.tjDecompress2(t.read, bytes, size[0], out:data(), w, 0, h, kind, ACCURATE) ~= 0 then
    check.fail("[transforms.jpeg] %s", ffi.string(t.C.tjGetErrorStr2(t.read)))
  end
  return out
end

-- ---- the functions -----------------------------------------------------------------------------------

local M, planes, names = {}, {}, {}

-- Defines planes[name], and M[name] for one image.
local function define(name, parameters, fn)
  planes[name], names[#names + 1] = fn, name
  M[name] = signature(("transforms.functional.%s(Tensor img%s)"):format(name, parameters),
    function(x, ...) return form.call(name, fn, x, ...) end)
end

--- Brightness times a factor.
define("adjust_brightness", ", number brightness_factor", function(x, factor)
  at_least_0("adjust_brightness", "brightness_factor", factor)
  colors("adjust_brightness", x)
  return (floats(x) * factor):clamp_(0, form.white("adjust_brightness", x)):to(x:dtype())
end)

--- The distance from the grey mean times a factor; 1 changes nothing.
define("adjust_contrast", ", number contrast_factor", function(x, factor)
  at_least_0("adjust_contrast", "contrast_factor", factor)
  colors("adjust_contrast", x)
  local grey = grey_of(x)
  if not form.is_float(x) then grey = grey:floor() end
  local _, h, w = form.sizes(x)
  local mean = grey:to(moth.float64):sum({ -3, -2, -1 }, true):to(grey:dtype()):div_(h * w)
  return blend("adjust_contrast", x, mean, factor)
end)

--- The distance from grey times a factor; 1 changes nothing, 0 gives grey.
define("adjust_saturation", ", number saturation_factor", function(x, factor)
  at_least_0("adjust_saturation", "saturation_factor", factor)
  if colors("adjust_saturation", x) == 1 then return x end
  local grey = grey_of(x)
  if not form.is_float(x) then grey = grey:floor() end
  return blend("adjust_saturation", x, grey, factor)
end)

--- Moves the hue: 0.5 and -0.5 give the opposite colour.
define("adjust_hue", ", number hue_factor", function(x, factor)
  if factor < -0.5 or factor > 0.5 then check.fail("[transforms.adjust_hue] expected -0.5 to 0.5, got %g", factor) end
  if colors("adjust_hue", x) == 1 then return x end
  local y = to_dtype("adjust_hue", x, moth.float32, true)
  local r, g, b = y:narrow(-3, 1, 1), y:narrow(-3, 2, 1), y:narrow(-3, 3, 1)
  local high, low = moth.maximum(moth.maximum(r, g), b), moth.minimum(moth.minimum(r, g), b)
  local range, one = high - low, moth.ones_like(high)
  local flat = high:eq(low)
  local s = range / moth.where(flat, one, high)
  local divisor = moth.where(flat, one, range)
  local rc, gc, bc = (high - r) / divisor, (high - g) / divisor, (high - b) / divisor
  local h = moth.where(high:eq(r), bc - gc, moth.where(high:eq(g), rc + 2 - bc, gc + 4 - rc))
  h = (h * (1 / 6) + 1):fmod(1)
  h = (h + factor):remainder(1) * 6
  local i = h:floor()
  local f = h - i
  i = i:remainder(6)
  local sf, rest = s * f, 1 - s
  local q, t, p = ((1 - sf) * high):clamp_(0, 1), ((sf + rest) * high):clamp_(0, 1), (rest * high):clamp_(0, 1)
  local function choose(list)
    local out = list[6]
    for k = 5, 1, -1 do out = moth.where(i:eq(k - 1), list[k], out) end
    return out
  end
  y = moth.cat({ choose { high, q, p, p, t, high }, choose { t, high, high, q, p, p },
    choose { p, p, t, high, high, q } }, -3)
  return to_dtype("adjust_hue", y, x:dtype(), true)
end)

--- gain * x ^ gamma, where white is 1.
define("adjust_gamma", ", number gamma, number gain=1", function(x, gamma, gain)
  at_least_0("adjust_gamma", "gamma", gamma)
  local y = to_dtype("adjust_gamma", x, form.is_float(x) and x:dtype() or moth.float32, true):pow(gamma)
  if gain ~= 1 then y = (y * gain):clamp_(0, 1) end
  return to_dtype("adjust_gamma", y, x:dtype(), true)
end)

--- Sharper by a factor: 0 is blurred, 1 changes nothing. The border stays.
define("adjust_sharpness", ", number sharpness_factor", function(x, factor)
  at_least_0("adjust_sharpness", "sharpness_factor", factor)
  local c = colors("adjust_sharpness", x)
  local _, h, w = form.sizes(x)
  if h <= 2 or w <= 2 then return x end
  local out = form.is_float(x) and x:clone() or x:to(moth.float32)
  local a = 1 / 13
  local kernel = moth.tensor({ { a, a, a }, { a, 5 * a, a }, { a, a, a } }, { dtype = out:dtype() }):to(out:device())
  local blurred = moth.nn.functional.conv2d(out, kernel:expand(c, 1, 3, 3):contiguous(), { groups = c })
  if not form.is_float(x) then blurred = blurred:round() end
  local inner = out:narrow(-2, 2, h - 2):narrow(-1, 2, w - 2)
  inner:copy_(fused(inner, blurred - inner, 1 - factor))
  return out:clamp_(0, form.white("adjust_sharpness", x)):to(x:dtype())
end)

--- White becomes black.
define("invert", "", function(x)
  if form.is_float(x) then return 1 - x end
  local white = form.white("invert", x)
  if white < 2 ^ 31 then return (white - x:to(moth.int64)):to(x:dtype()) end
  return x:to(moth.int64):bitwise_xor(moth.tensor(2 ^ 62, { dtype = moth.int64 }) * 2 - 1):to(x:dtype())
end)

--- The first bits of each value alone, the others 0.
define("posterize", ", size bits", function(x, bits)
  if bits > 8 then check.fail("[transforms.posterize] bits must be from 0 to 8, got %d", bits) end
  if form.is_float(x) then
    local levels = 2 ^ bits
    return (x * levels):floor():clamp_(0, levels - 1) * (1 / levels)
  end
  local all = form.bits("posterize", x:dtype())
  if bits >= all then return x end
  local y = x:to(moth.int64)
  return moth.bitwise_left_shift(moth.bitwise_right_shift(y, all - bits), all - bits):to(x:dtype())
end)

--- Values from the threshold on are inverted.
define("solarize", ", number threshold", function(x, threshold)
  if threshold > form.white("solarize", x) then
    check.fail("[transforms.solarize] threshold is at most %g, the white of %s, got %g", form.white("solarize", x),
      B.tensor_dtype(x).name, threshold)
  end
  return moth.where(x:ge(threshold), planes.invert(x), x)
end)

--- Each channel from 0 to white.
define("autocontrast", "", function(x)
  colors("autocontrast", x)
  if x:numel() == 0 then return x end
  local white, y = form.white("autocontrast", x), floats(x)
  local low, high = y:amin({ -2, -1 }, true), y:amax({ -2, -1 }, true)
  local flat = low:eq(high)
  local step = moth.where(flat, moth.ones_like(low), (high - low) * (1 / white))
  low = moth.where(flat, moth.zeros_like(low), low)
  return ((y - low) / step):clamp_(0, white):to(x:dtype())
end)

--- All values equally often, in each channel.
define("equalize", "", function(x)
  if x:numel() == 0 then return x end
  local y = to_dtype("equalize", x, moth.uint8, true)
  return to_dtype("equalize", through_tables(y, equal_shares), x:dtype(), true)
end)

--- Grey, with 1 or 3 channels.
define("to_grayscale", ", count num_output_channels=1", function(x, n)
  if n ~= 1 and n ~= 3 then check.fail("[transforms.to_grayscale] num_output_channels is 1 or 3, got %d", n) end
  local c = colors("to_grayscale", x)
  local grey = c == 1 and x:clone() or grey_of(x):to(x:dtype())
  return n == 3 and moth.cat({ grey, grey, grey }, -3) or grey
end)
--- The same as to_grayscale.
M.rgb_to_grayscale = M.to_grayscale
names[#names + 1] = "rgb_to_grayscale"
--- Three channels of one; others stay.
define("grayscale_to_rgb", "", function(x)
  return form.sizes(x) == 1 and planes.to_grayscale(x, 3) or x
end)

--- Channel k of the result is channel permutation[k].
define("permute_channels", ", count[] permutation", function(x, permutation)
  local c, seen = form.sizes(x), {}
  for _, k in ipairs(permutation) do seen[k] = true end
  local whole = #permutation == c
  for k = 1, c do whole = whole and seen[k] end
  if not whole then
    check.fail("[transforms.permute_channels] expected the numbers 1 to %d in an order, got {%s}", c,
      table.concat(permutation, ", "))
  end
  return x:index_select(-3, moth.tensor(permutation, { dtype = moth.int64 }):to(x:device()))
end)

-- ---- blur, noise ------------------------------------------------------------------------------------

local function gauss(size, sigma, dtype)
  local most = (size - 1) / (2 * math.sqrt(2))
  local x = moth.linspace(-most, most, size, { dtype = dtype }):div_(sigma)
  return x:square():neg():softmax(1)
end

--- Blurred by a Gaussian kernel of { width, height }, odd numbers. sigma: { x, y } or a number; it goes by the size
-- if it is not given.
define("gaussian_blur", ", count|count[] kernel_size, number|number[] sigma?", function(x, size, sigma)
  if type(size) == "number" then size = { size, size } end
  if #size ~= 2 or size[1] % 2 == 0 or size[2] % 2 == 0 then
    check.fail("[transforms.gaussian_blur] kernel_size is one or two odd numbers, got {%s}", table.concat(size, ", "))
  end
  if type(sigma) == "number" then sigma = { sigma, sigma } end
  sigma = sigma or { size[1] * 0.15 + 0.35, size[2] * 0.15 + 0.35 }
  local sx, sy = sigma[1], sigma[2] or sigma[1]
  if not sx or #sigma > 2 or sx <= 0 or sy <= 0 then
    check.fail("[transforms.gaussian_blur] sigma is one or two numbers above 0, got {%s}", table.concat(sigma, ", "))
  end
  local c, h, w = form.sizes(x)
  if x:numel() == 0 then return x end
  local left, above = (size[1] - 1) / 2, (size[2] - 1) / 2
  if left >= w or above >= h then
    check.fail("[transforms.gaussian_blur] an image of %d x %d is too small for a kernel of %d x %d (height x width)",
      h, w, size[2], size[1])
  end
  local dtype = form.is_float(x) and x:dtype() or moth.float32
  local kernel = gauss(size[2], sy, dtype):unsqueeze(2) * gauss(size[1], sx, dtype)
  kernel = kernel:expand(c, 1, size[2], size[1]):contiguous():to(x:device())
  local y = floats(x)
  if B.dim(x) == 3 then y = y:unsqueeze(1) end
  y = moth.nn.functional.pad(y, { left, left, above, above }, "reflect")
  y = moth.nn.functional.conv2d(y, kernel, { groups = c })
  if B.dim(x) == 3 then y = y:squeeze(1) end
  return form.is_float(x) and y or y:round():to(x:dtype())
end)

--- Adds noise of a normal distribution; white is 1. clip: what is below 0 or above white is cut off.
define("gaussian_noise", ", number mean=0, number sigma=0.1, bool clip=true", function(x, mean, sigma, clip)
  at_least_0("gaussian_noise", "sigma", sigma)
  local white = form.white("gaussian_noise", x)
  local noise = moth.randn_like(floats(x)):mul_(sigma * white):add_(mean * white)
  if form.is_float(x) then
    local y = x + noise
    return clip and y:clamp_(0, 1) or y
  end
  local y = x:to(moth.int64) + noise:trunc():to(moth.int64)
  return (clip and y:clamp_(0, white) or y):to(x:dtype())
end)

--- What a JPEG file of a quality from 1 to 100 makes of the image, uint8 of 1 or 3 channels.
define("jpeg", ", count quality", function(x, quality)
  if quality > 100 then check.fail("[transforms.jpeg] quality is from 1 to 100, got %d", quality) end
  colors("jpeg", x)
  if x:dtype() ~= moth.uint8 then check.fail("[transforms.jpeg] expected bytes (uint8), got %s", B.format(x)) end
  if B.dim(x) == 3 then
    return through_jpeg(x:permute(2, 3, 1):cpu():contiguous(), quality):permute(3, 1, 2):to(x:device())
  end
  local list = {}
  for k = 1, B.size(x, 1) do list[k] = planes.jpeg(x[k], quality) end
  return #list > 0 and moth.stack(list) or x
end)

--- The image in another dtype; scale: so that white stays white (255 of uint8 is 1 of float32).
M.to_dtype = signature("transforms.functional.to_dtype(Tensor img, dtype dtype='float32', bool scale=false)",
  function(x, dtype, scale) return to_dtype("to_dtype", x, B.dtype(dtype), scale) end)
names[#names + 1] = "to_dtype"
function planes.to_dtype(x, dtype, scale) return to_dtype("to_dtype", x, dtype, scale) end

M.planes, M.names = planes, names
return M
