--- Functions of one image, for moth.transforms: `moth.transforms.functional`.
--
-- An image is (H, W) or (H, W, C) of uint8 or uint16, as files have it, or float (C, H, W), as ToTensor makes it; the
-- result has the same form. Integers may be (C, H, W), too, where the sizes tell it (data/layout.lua): `enter` makes
-- them (H, W, C) for all that is done within. Floats are expected from 0 to 1 where colours are concerned.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local layout = require "moth.data.layout"
local signature = require "moth.utils.signature"

local M = {}

local function is_float(x) return B.tensor_dtype(x).is_floating_point end

local within = false -- an image has been entered: integers are (H, W, C), whatever their sizes

--- fn(image), where an image of integers (C, H, W) is (H, W, C) for fn, and what fn makes of it is (C, H, W) again.
function M.enter(where, x, fn)
  if within or not B.is_tensor(x) or B.dim(x) ~= 3 or is_float(x) then return fn(x) end
  local first = layout.find(("[transforms.%s]"):format(where), x, "make it float (C, H, W) first, as \z
    transforms.ToTensor \"HWC\" does") == "first"
  within = true
  local ok, y = pcall(fn, first and x:permute(2, 3, 1) or x)
  within = false
  if not ok then error(y, 0) end
  return first and B.is_tensor(y) and B.dim(y) == 3 and y:permute(3, 1, 2):contiguous() or y
end

-- Defines M[name] for one image.
local function define(name, parameters, fn)
  M[name] = signature(("transforms.functional.%s(Tensor img%s)"):format(name, parameters), function(x, ...)
    local n, rest = select("#", ...), { ... }
    return M.enter(name, x, function(y) return fn(y, unpack(rest, 1, n)) end)
  end)
end

-- The dimensions of height and width.
local function sides(where, x)
  local n = B.is_tensor(x) and B.dim(x)
  if not n or n < 2 or n > 3 then
    check.fail("[transforms.%s] expected an image, uint8 (H, W), (H, W, C) or (C, H, W), or float (C, H, W), got %s",
      where, n and B.format(x) or type(x))
  end
  if n == 3 and is_float(x) then return 2, 3 end
  return 1, 2
end

--- Height and width.
function M.size(where, x)
  local h, w = sides(where, x)
  if not within and B.dim(x) == 3 and not is_float(x) and layout.of(B.size(x, 1), B.size(x, 3)) == "first" then
    h, w = 2, 3
  end
  return B.size(x, h), B.size(x, w)
end

-- The image as float (C, H, W), the value of white, and a function that gives a result the image's own form.
local function planes(where, x)
  sides(where, x)
  local flat = B.dim(x) == 2
  if is_float(x) then return flat and x:unsqueeze(1) or x, 1, function(y) return flat and y:squeeze(1) or y end end
  local planar = (flat and x:unsqueeze(1) or x:permute(3, 1, 2)):to(moth.float32)
  local white = B.tensor_dtype(x).name == "uint16" and 65535 or 255
  return planar, white, function(y)
    y = y:round():clamp_(0, white):to(x:dtype())
    return flat and y:squeeze(1) or y:permute(2, 3, 1):contiguous()
  end
end

-- ---- geometry ------------------------------------------------------------------------------------------

--- The part from row `top` and column `left` (from 1) on. What lies outside of the image is `fill`.
define("crop", ", int top, int left, count height, count width, \z
  number fill=0", function(x, top, left, height, width, fill)
  local h, w = sides("crop", x)
  local rows, columns = B.size(x, h), B.size(x, w)
  if top < 1 or left < 1 or top + height - 1 > rows or left + width - 1 > columns then
    local up, before = math.max(1 - top, 0), math.max(1 - left, 0)
    x = M.pad(x, { before, up, math.max(left + width - 1 - columns, 0), math.max(top + height - 1 - rows, 0) }, fill)
    top, left = top + up, left + before
  end
  return x:narrow(h, top, height):narrow(w, left, width)
end)

--- Adds borders: a number, { left and right, above and below }, or { left, above, right, below }.
define("pad", ", size|size[] padding, number fill=0, \z
  'constant'|'edge'|'reflect' padding_mode='constant'",
function(x, padding, fill, mode)
  local h, w = sides("pad", x)
  local p = type(padding) == "number" and { padding, padding, padding, padding } or padding
  if #p == 2 then p = { p[1], p[2], p[1], p[2] } end
  if #p ~= 4 then check.fail("[transforms.pad] padding is 1, 2 or 4 numbers, got %d", #p) end
  local rows, columns = B.size(x, h), B.size(x, w)
  if mode == "constant" then
    local shape = {}
    for d = 1, B.dim(x) do shape[d] = B.size(x, d) end
    shape[h], shape[w] = rows + p[2] + p[4], columns + p[1] + p[3]
    local out = moth.full(shape, fill, { dtype = x:dtype(), device = x:device() })
    out:narrow(h, p[2] + 1, rows):narrow(w, p[1] + 1, columns):copy_(x)
    return out
  end
  if mode == "reflect" and (math.max(p[1], p[3]) >= columns or math.max(p[2], p[4]) >= rows) then
    check.fail("[transforms.pad] reflect: an image of %d x %d has no %s to reflect", rows, columns,
      table.concat(p, ", "))
  end
  local function positions(before, n, after)
    local list = {}
    for i = 1 - before, n + after do
      local k = i
      if mode == "edge" then k = math.min(math.max(i, 1), n)
      elseif i < 1 then k = 2 - i
      elseif i > n then k = 2 * n - i end
      list[#list + 1] = k
    end
    return moth.tensor(list, { dtype = moth.int64 })
  end
  return x:index_select(h, positions(p[2], rows, p[4])):index_select(w, positions(p[1], columns, p[3]))
end)

--- Mirrored left to right; top to bottom.
define("hflip", "", function(x)
  local _, w = sides("hflip", x)
  return x:flip(w)
end)
--- Mirrored top to bottom.
define("vflip", "", function(x) return x:flip((sides("vflip", x))) end)

local filters = {
  nearest = {}, box = { 0.5, function(v) return v > -0.5 and v <= 0.5 and 1 or 0 end },
  bilinear = { 1, function(v) return math.max(1 - math.abs(v), 0) end },
  bicubic = { 2, function(v, a)
    v = math.abs(v)
    if v < 1 then return ((a + 2) * v - (a + 3)) * v * v + 1 end
    return v < 2 and (((v - 5) * v + 8) * v - 4) * a or 0
  end },
}

-- Row i has what each of n pixels adds to pixel i of m: with antialias, the filter is as wide as the step where the
-- image shrinks.
local cache, cached = {}, 0
local function weights(n, m, mode, antialias)
  local key = ("%d %d %s %s"):format(n, m, mode, tostring(antialias))
  if cache[key] then return cache[key] end
  local out = moth.zeros(m, n)
  local p, scale = ffi.cast("float *", out:data()), n / m
  for i = 0, m - 1 do
    if mode == "nearest" then
      p[i * n + math.min(math.floor(i * scale), n - 1)] = 1
    else
      local radius, filter = filters[mode][1], filters[mode][2]
      local wide = antialias and math.max(scale, 1) or 1
      local center, a = (i + 0.5) * scale, antialias and -0.5 or -0.75
      local from = math.max(math.floor(center - radius * wide + 0.5), 0)
      local to = math.min(math.floor(center + radius * wide + 0.5), n) - 1
      if not antialias and mode == "bicubic" then
        from = math.floor(center - 0.5) - 1
        to = from + 3
      end
      local sum = 0
      for k = from, to do sum = sum + filter((k - center + 0.5) / wide, a) end
      for k = from, to do
        local at = i * n + math.min(math.max(k, 0), n - 1)
        p[at] = p[at] + filter((k - center + 0.5) / wide, a) / sum
      end
    end
  end
  if cached >= 64 then cache, cached = {}, 0 end
  cache[key], cached = out, cached + 1
  return out
end

--- Another size: { height, width }, or the length of the shorter side.
define("resize", ", count|count[] size, \z
  'nearest'|'box'|'bilinear'|'bicubic' interpolation='bilinear', bool antialias=true",
function(x, size, mode, antialias)
  local rows, columns = M.size("resize", x)
  if rows == 0 or columns == 0 then check.fail("[transforms.resize] the image has no pixels: %s", B.format(x)) end
  local height, width
  if type(size) == "table" and #size == 2 then
    height, width = size[1], size[2]
  else
    if type(size) == "table" then size = size[1] end
    if not size then check.fail("[transforms.resize] size is { height, width } or a number") end
    height, width = size, size
    if rows < columns then width = math.floor(size * columns / rows) else height = math.floor(size * rows / columns) end
  end
  if height == rows and width == columns then return x end
  local y, _, back = planes("resize", x)
  if width ~= columns then y = y:matmul(weights(columns, width, mode, antialias):t():to(y:dtype())) end
  if height ~= rows then y = moth.matmul(weights(rows, height, mode, antialias):to(y:dtype()), y) end
  return back(y)
end)

-- Samples the image where the inverse of an affine map, { a, b, c, d, e, f } of coordinates from the middle, leads to.
local function warp(where, x, m, mode, fill)
  local y, _, back = planes(where, x)
  local channels, rows, columns = B.size(y, 1), B.size(y, 2), B.size(y, 3)
  local dtype = y:dtype()
  local u = moth.arange(columns):to(dtype):add_(0.5 - columns / 2):view(1, columns)
  local v = moth.arange(rows):to(dtype):add_(0.5 - rows / 2):view(rows, 1)
  local sx = (u * m[1] + v * m[2]):add_(m[3] + columns / 2 - 0.5)
  local sy = (u * m[4] + v * m[5]):add_(m[6] + rows / 2 - 0.5)
  local flat = y:reshape(channels, rows * columns)
  local function pick(px, py, weight)
    local inside = px:ge(0):logical_and(px:le(columns - 1)):logical_and(py:ge(0)):logical_and(py:le(rows - 1))
    local at = py:clamp(0, rows - 1):mul_(columns):add_(px:clamp(0, columns - 1)):add_(1):to(moth.int64):view(-1)
    weight = weight and weight * inside:to(dtype) or inside:to(dtype)
    return flat:index_select(2, at):view(channels, rows, columns) * weight, weight
  end
  local out, total
  if mode == "nearest" then
    out, total = pick((sx + 0.5):floor(), (sy + 0.5):floor())
  else
    local x0, y0 = sx:floor(), sy:floor()
    local fx, fy = sx - x0, sy - y0
    for _, corner in ipairs({ { 0, 0, (1 - fx) * (1 - fy) }, { 1, 0, fx * (1 - fy) }, { 0, 1, (1 - fx) * fy },
      { 1, 1, fx * fy } }) do
      local part, weight = pick(x0 + corner[1], y0 + corner[2], corner[3])
      out, total = out and out:add_(part) or part, total and total:add_(weight) or weight
    end
  end
  if fill and mode == "nearest" then out = out + (1 - total) * fill
  elseif fill then out = (out - fill) * total + fill end -- as torchvision: at the border, the image is faded twice
  return back(out)
end

--- Turned by `angle` degrees clockwise, moved by translate = { x, y } pixels, scaled, sheared by { x, y } degrees,
-- about the middle. What comes from outside is 0, or is faded into `fill`.
define("affine", ", number angle, number[] translate, number scale, \z
  number|number[] shear, 'nearest'|'bilinear' interpolation='nearest', number fill?",
function(x, angle, translate, scale, shear, mode, fill)
  if type(shear) == "number" then shear = { shear, 0 } end
  if scale <= 0 then check.fail("[transforms.affine] scale must be above 0, got %g", scale) end
  local r, sx, sy = math.rad(angle), math.rad(shear[1] or 0), math.rad(shear[2] or 0)
  local a = math.cos(r - sy) / math.cos(sy)
  local b = -math.cos(r - sy) * math.tan(sx) / math.cos(sy) - math.sin(r)
  local c = math.sin(r - sy) / math.cos(sy)
  local d = -math.sin(r - sy) * math.tan(sx) / math.cos(sy) + math.cos(r)
  local m = { d / scale, -b / scale, 0, -c / scale, a / scale, 0 }
  local tx, ty = translate[1] or 0, translate[2] or 0
  m[3], m[6] = -m[1] * tx - m[2] * ty, -m[4] * tx - m[5] * ty
  return warp("affine", x, m, mode, fill)
end)

--- Turned by `angle` degrees counter-clockwise, in the same size.
define("rotate", ", number angle, \z
  'nearest'|'bilinear' interpolation='nearest', number fill?",
function(x, angle, mode, fill) return M.affine(x, -angle, { 0, 0 }, 1, 0, mode, fill) end)

-- ---- colours ------------------------------------------------------------------------------------------

local function grey_of(where, y)
  local channels = B.size(y, 1)
  if channels == 1 then return y end
  if channels ~= 3 then check.fail("[transforms.%s] expected 1 or 3 channels, got %d", where, channels) end
  return y[1] * 0.2989 + y[2] * 0.587 + y[3] * 0.114
end

local function blend(y, other, factor, white) return (y * factor + other * (1 - factor)):clamp_(0, white) end

--- Brightness times a factor; the distance from the grey mean, from grey, times a factor.
define("adjust_brightness", ", number brightness_factor",
function(x, factor)
  local y, white, back = planes("adjust_brightness", x)
  return back((y * factor):clamp_(0, white))
end)
--- The distance from the grey mean times a factor; 1 changes nothing.
define("adjust_contrast", ", number contrast_factor",
function(x, factor)
  local y, white, back = planes("adjust_contrast", x)
  local grey = grey_of("adjust_contrast", y)
  if white > 1 then grey = grey:floor() end
  return back(blend(y, grey:mean():item(), factor, white))
end)
--- The distance from grey times a factor; 1 changes nothing, 0 gives grey.
define("adjust_saturation", ", number saturation_factor",
function(x, factor)
  local y, white, back = planes("adjust_saturation", x)
  return back(blend(y, grey_of("adjust_saturation", y), factor, white))
end)

--- Moves the hue: 0.5 and -0.5 give the opposite colour.
define("adjust_hue", ", number hue_factor", function(x, factor)
  if factor < -0.5 or factor > 0.5 then check.fail("[transforms.adjust_hue] expected -0.5 to 0.5, got %g", factor) end
  local y, white, back = planes("adjust_hue", x)
  if B.size(y, 1) == 1 then return x end
  grey_of("adjust_hue", y)
  y = y / white
  local r, g, b = y[1], y[2], y[3]
  local high, low = moth.maximum(moth.maximum(r, g), b), moth.minimum(moth.minimum(r, g), b)
  local range = high - low
  local safe = moth.where(range:eq(0), moth.ones_like(range), range)
  local s = range / moth.where(high:eq(0), moth.ones_like(high), high)
  local rc, gc, bc = (high - r) / safe, (high - g) / safe, (high - b) / safe
  local h = moth.where(high:eq(r), bc - gc, moth.where(high:eq(g), rc + 2 - bc, gc + 4 - rc)) / 6
  h = h + factor
  h = (h - h:floor()) * 6
  local i = h:floor()
  local f = h - i
  local p, q, t = high * (1 - s), high * (1 - s * f), high * (1 - s * (1 - f))
  i = i - (i / 6):floor() * 6
  local function choose(list)
    local out = list[6]
    for k = 5, 1, -1 do out = moth.where(i:eq(k - 1), list[k], out) end
    return out
  end
  return back(moth.stack({ choose { high, q, p, p, t, high }, choose { t, high, high, q, p, p },
    choose { p, p, t, high, high, q } }):clamp_(0, 1) * white)
end)

--- Grey, with 1 or 3 channels.
define("to_grayscale", ", count num_output_channels=1",
function(x, n)
  local y, white, back = planes("to_grayscale", x)
  local grey = grey_of("to_grayscale", y)
  if B.dim(grey) == 2 then grey = grey:unsqueeze(1) end
  if white > 1 then grey = grey:floor() end
  grey = grey:expand(n, -1, -1):contiguous()
  if B.dim(x) == 2 and n > 1 then return grey:clamp_(0, white):to(x:dtype()):permute(2, 3, 1):contiguous() end
  return back(grey)
end)

--- A copy of the image with a rectangle of `value`.
define("erase", ", int top, int left, count height, count width, \z
  Tensor|number value", function(x, top, left, height, width, value)
  local h, w = sides("erase", x)
  local out = x:clone()
  local part = out:narrow(h, top, height):narrow(w, left, width)
  if type(value) == "number" then part:fill_(value) else part:copy_(value) end
  return out
end)

return M
