--- Functions of one image, for moth.transforms: `moth.transforms.functional`. The values are torchvision's.
--
-- Which forms images have stands in form.lua. Each function is there twice: M.planes.name computes with
-- (…, C, H, W) and takes all its arguments; M.name is the public one. This file has those of size and place, and loads
-- those of colours (functional_colors.lua).
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local colors = require "moth.data.transforms.functional_colors"
local form = require "moth.data.transforms.form"
local geometry = require "moth.data.transforms.geometry"
local signature = require "moth.utils.signature"

local M, planes = {}, {}

-- Defines planes[name], and M[name] for one image.
local function define(name, parameters, fn)
  planes[name] = fn
  M[name] = signature(("transforms.functional.%s(Tensor img%s)"):format(name, parameters),
    function(x, ...) return form.call(name, fn, x, ...) end)
end

--- Height and width of an image.
function M.size(where, x)
  local _, h, w = form.sizes((form.open(where, x)))
  return h, w
end

-- ---- cutting, borders --------------------------------------------------------------------------------

--- The part from row `top` and column `left` (from 1) on. What lies outside of the image is `fill`.
define("crop", ", int top, int left, count height, count width, number|number[] fill=0",
function(x, top, left, height, width, fill)
  local _, rows, columns = form.sizes(x)
  local bottom, right = top + height - 1, left + width - 1
  if top < 1 or left < 1 or bottom > rows or right > columns then
    local up, before = math.max(1 - top, 0), math.max(1 - left, 0)
    x = planes.pad(x, { before, up, math.max(right - columns, 0), math.max(bottom - rows, 0) }, fill, "constant")
    top, left = top + up, left + before
  end
  return x:narrow(-2, top, height):narrow(-1, left, width)
end)

-- A fill as a tensor (C or 1, 1, 1); nil: none.
local function fill_of(where, x, fill, dtype)
  if fill == nil then return nil end
  if type(fill) == "number" then fill = { fill } end
  local c = form.sizes(x)
  if #fill ~= 1 and #fill ~= c then
    check.fail("[transforms.%s] fill has %d numbers, the image has %d channels", where, #fill, c)
  end
  return moth.tensor(fill, { dtype = moth.float64 }):to(dtype):view(#fill, 1, 1):to(x:device())
end

-- Where the pixels around n come from: positions for the indices 1 - before to n + after.
local function around(before, n, after, mode)
  local list = {}
  for i = 1 - before, n + after do
    local k = i
    if mode == "edge" then
      k = math.min(math.max(i, 1), n)
    elseif mode == "symmetric" then
      if i < 1 then k = 1 - i elseif i > n then k = 2 * n + 1 - i end
    elseif i < 1 then
      k = 2 - i
    elseif i > n then
      k = 2 * n - i
    end
    list[#list + 1] = k
  end
  return moth.tensor(list, { dtype = moth.int64 })
end

--- Adds borders: a number, { left and right, above and below }, or { left, above, right, below }. fill: a number, or
-- one for each channel.
define("pad", ", size|size[] padding, number|number[] fill=0, \z
  'constant'|'edge'|'reflect'|'symmetric' padding_mode='constant'",
function(x, padding, fill, mode)
  local p = geometry.sides("pad", padding)
  local _, rows, columns = form.sizes(x)
  if mode == "constant" then
    local shape, n = {}, B.dim(x)
    for d = 1, n do shape[d] = B.size(x, d) end
    shape[n - 1], shape[n] = rows + p[2] + p[4], columns + p[1] + p[3]
    local out
    if type(fill) == "table" then
      out = moth.empty(shape, { dtype = x:dtype(), device = x:device() })
      out:copy_(fill_of("pad", x, fill, x:dtype()):expand(shape))
    else
      out = moth.full(shape, fill or 0, { dtype = x:dtype(), device = x:device() })
    end
    out:narrow(-2, p[2] + 1, rows):narrow(-1, p[1] + 1, columns):copy_(x)
    return out
  end
  if type(fill) == "table" then
    check.fail("[transforms.pad] a fill for each channel goes with padding_mode 'constant' alone")
  end
  local most = mode == "edge" and math.huge or mode == "symmetric" and 0 or -1
  if math.max(p[1], p[3]) > columns + most or math.max(p[2], p[4]) > rows + most then
    check.fail("[transforms.pad] %s: an image of %d x %d has no %s to reflect", mode, rows, columns,
      table.concat(p, ", "))
  end
  return x:index_select(-2, around(p[2], rows, p[4], mode):to(x:device())):index_select(-1,
    around(p[1], columns, p[3], mode):to(x:device()))
end)

--- The part in the middle; what lies outside of the image is 0.
define("center_crop", ", count|count[] output_size", function(x, size)
  local _, h, w = form.sizes(x)
  local height, width = unpack(geometry.pair("center_crop", "output_size", size))
  return planes.crop(x, geometry.middle(h, height), geometry.middle(w, width), height, width, 0)
end)

local function five(where, x, size)
  local height, width = unpack(geometry.pair(where, "size", size))
  local _, h, w = form.sizes(x)
  if height > h or width > w then
    check.fail("[transforms.%s] the crop of %d x %d is larger than the image of %d x %d", where, height, width, h, w)
  end
  local function at(top, left) return planes.crop(x, top, left, height, width, 0) end
  return { at(1, 1), at(1, w - width + 1), at(h - height + 1, 1), at(h - height + 1, w - width + 1),
    planes.center_crop(x, { height, width }) }
end
--- A list of the four corners (upper left, upper right, lower left, lower right) and the middle.
define("five_crop", ", count|count[] size", function(x, size) return five("five_crop", x, size) end)
--- These five, and the five of the mirrored image.
define("ten_crop", ", count|count[] size, bool vertical_flip=false", function(x, size, vertical_flip)
  local list = five("ten_crop", x, size)
  for _, y in ipairs(five("ten_crop", x:flip(vertical_flip and -2 or -1), size)) do list[#list + 1] = y end
  return list
end)

--- Mirrored left to right.
define("hflip", "", function(x) return x:flip(-1) end)
--- Mirrored top to bottom.
define("vflip", "", function(x) return x:flip(-2) end)
--- The same as hflip.
M.horizontal_flip = M.hflip
--- The same as vflip.
M.vertical_flip = M.vflip

--- A copy of the image with a rectangle of `value`: a number or a tensor of planes.
define("erase", ", int top, int left, count height, count width, Tensor|number value",
function(x, top, left, height, width, value)
  local out = x:clone()
  local part = out:narrow(-2, top, height):narrow(-1, left, width)
  if type(value) == "number" then part:fill_(value) else part:copy_(value) end
  return out
end)

-- ---- another size --------------------------------------------------------------------------------------

local function sinc(v) return v == 0 and 1 or math.sin(math.pi * v) / (math.pi * v) end
local filters = {
  box = { 0.5, function(v) return v > -0.5 and v <= 0.5 and 1 or 0 end },
  bilinear = { 1, function(v) return math.max(1 - math.abs(v), 0) end },
  bicubic = { 2, function(v, a)
    v = math.abs(v)
    if v < 1 then return ((a + 2) * v - (a + 3)) * v * v + 1 end
    return v < 2 and (((v - 5) * v + 8) * v - 4) * a or 0
  end },
  lanczos = { 3, function(v) return v > -3 and v < 3 and sinc(v) * sinc(v / 3) or 0 end },
}

-- Row i has what each of n pixels adds to pixel i of m (float64): with antialias, the filter is as wide as the step
-- where the image shrinks. Second: the largest of them.
local cache, cached = {}, 0
local function weights(n, m, mode, antialias)
  local key = ("%d %d %s %s"):format(n, m, mode, tostring(antialias))
  if cache[key] then return unpack(cache[key]) end
  local out = moth.zeros({ m, n }, { dtype = moth.float64 })
  local p, scale, most = ffi.cast("double *", out:data()), n / m, 0
  local radius, filter = filters[mode][1], filters[mode][2]
  for i = 0, m - 1 do
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
      most = math.max(most, p[at])
    end
  end
  if cached >= 64 then cache, cached = {}, 0 end
  cache[key], cached = { out, most }, cached + 1
  return out, most
end

-- One pass over the last dimension of bytes, in the arithmetic of Pillow and PyTorch: weights are whole numbers of at
-- most 15 bits, and each pass ends in bytes. Their sums are below 2^24, to which float32 is exact, unless the image
-- shrinks much: then they are float64.
local function bytes_pass(y, w, most)
  local precision = 0
  while precision < 22 and math.floor(0.5 + most * 2 ^ (precision + 1)) < 2 ^ 15 do precision = precision + 1 end
  local one = 2 ^ precision
  local whole = (w * one):add_(w:ge(0):to(moth.float64):sub_(0.5)):trunc()
  local dtype = precision <= 15 and moth.float32 or moth.float64
  return y:to(dtype):matmul(whole:to(dtype):t()):add_(one / 2):div_(one):floor_():clamp_(0, 255)
end

-- The position of the pixel that is nearest to each of m of n, computed as PyTorch does in float32.
local function nearest(n, m, exact)
  local scale, at, list = ffi.new("float", n / m), ffi.new "float[1]", {}
  for i = 0, m - 1 do
    at[0] = (i + (exact and 0.5 or 0)) * tonumber(scale)
    list[i + 1] = math.min(math.floor(at[0]), n - 1) + 1
  end
  return moth.tensor(list, { dtype = moth.int64 })
end

--- Another size: { height, width }, or the length of the shorter side, so that the longer has at most max_size.
define("resize", ", count|count[] size?, \z
  'nearest'|'nearest-exact'|'box'|'bilinear'|'bicubic'|'lanczos' interpolation='bilinear', bool antialias=true, \z
  count max_size?",
function(x, size, mode, antialias, max_size)
  local _, rows, columns = form.sizes(x)
  if rows == 0 or columns == 0 then check.fail("[transforms.resize] the image has no pixels: %s", B.format(x)) end
  local height, width = geometry.resized("resize", rows, columns, size, max_size)
  if height == rows and width == columns then return x end
  local device, dtype = x:device(), x:dtype()
  if mode == "nearest" or mode == "nearest-exact" then
    local exact = mode == "nearest-exact"
    return x:index_select(-2, nearest(rows, height, exact):to(device)):index_select(-1,
      nearest(columns, width, exact):to(device))
  end
  if mode == "lanczos" and not antialias then check.fail("[transforms.resize] lanczos needs antialias = true") end
  local is_float, bytes = form.is_float(x), dtype == moth.uint8
  local y = is_float and x or x:to(moth.float32)
  local function pass(from, to)
    local w, most = weights(from, to, mode, antialias)
    w = w:to(device)
    y = bytes and bytes_pass(y, w, most) or y:matmul(w:t():to(y:dtype()))
  end
  if width ~= columns then pass(columns, width) end
  if height ~= rows then
    y = y:transpose(-1, -2)
    pass(rows, height)
    y = y:transpose(-1, -2):contiguous()
  end
  if is_float then return y end
  return (bytes and y or y:round():clamp_(0, form.white("resize", x))):to(dtype)
end)

--- A part of the image in another size.
define("resized_crop", ", int top, int left, count height, count width, count|count[] size, \z
  'nearest'|'nearest-exact'|'box'|'bilinear'|'bicubic'|'lanczos' interpolation='bilinear', bool antialias=true",
function(x, top, left, height, width, size, mode, antialias)
  return planes.resize(planes.crop(x, top, left, height, width, 0), size, mode, antialias)
end)

-- ---- pixels from other places ----------------------------------------------------------------------------

-- The image at the places of a grid (height, width, 2) of (x, y) from -1 to 1. fill: nil: 0, which fades at the border.
local function sample(where, x, grid, mode, fill)
  local dtype, n = x:dtype(), B.dim(x)
  local y = (dtype == moth.float32 or dtype == moth.float64) and x or x:to(moth.float32)
  if n == 3 then y = y:unsqueeze(1) end
  local batch, c = B.size(y, 1), B.size(y, 2)
  local color = fill_of(where, x, fill, y:dtype())
  if color then y = moth.cat({ y, moth.ones_like(y:narrow(2, 1, 1)) }, 2) end
  grid = grid:to(y:dtype()):to(x:device()):unsqueeze(1):expand(batch, -1, -1, -1)
  y = moth.nn.functional.grid_sample(y:contiguous(), grid:contiguous(), mode, "zeros", false)
  if color then
    local inside = y:narrow(2, c + 1, 1)
    y = y:narrow(2, 1, c)
    if mode == "nearest" then
      y = moth.where(inside:lt(0.5):expand(y:size()), color:expand(y:size()), y)
    else
      y = (y - color):mul_(inside):add_(color) -- as torchvision: at the border, the image is faded twice
    end
  end
  if n == 3 then y = y:squeeze(1) end
  return form.is_float(x) and y:to(dtype) or y:round():to(dtype)
end

-- Columns x, y, 1 of the middles of pixels: from `from` on, in steps of 1.
local function middles(height, width, x0, y0)
  local u = moth.arange(width):to(moth.float32):add_(x0):view(1, width):expand(height, width)
  local v = moth.arange(height):to(moth.float32):add_(y0):view(height, 1):expand(height, width)
  return moth.stack({ u, v, moth.ones(height, width) }, 3):view(height * width, 3)
end

-- Samples where the inverse of an affine map, { a, b, c, d, e, f } of coordinates from the middle, leads to.
local function warp(where, x, m, height, width, mode, fill)
  local _, rows, columns = form.sizes(x)
  local theta = moth.tensor({ { m[1], m[4] }, { m[2], m[5] }, { m[3], m[6] } }):div_(moth.tensor { 0.5 * columns,
    0.5 * rows })
  local grid = middles(height, width, (1 - width) * 0.5, (1 - height) * 0.5):matmul(theta)
  return sample(where, x, grid:view(height, width, 2), mode, fill)
end

-- A center { x, y } from the middle of the image.
local function from_middle(where, center, rows, columns)
  if not center then return { 0, 0 } end
  if #center ~= 2 then check.fail("[transforms.%s] center is { x, y }, got %d numbers", where, #center) end
  return { center[1] - columns * 0.5, center[2] - rows * 0.5 }
end

--- Turned by `angle` degrees clockwise, moved by translate = { x, y } pixels, scaled, sheared by { x, y } degrees,
-- about center = { x, y }, or the middle. What comes from outside is 0, or is faded into `fill`.
define("affine", ", number angle, number[] translate, number scale, \z
  number|number[] shear, 'nearest'|'bilinear' interpolation='nearest', number|number[] fill?, number[] center?",
function(x, angle, translate, scale, shear, mode, fill, center)
  if type(shear) == "number" then shear = { shear, 0 } end
  if scale <= 0 then check.fail("[transforms.affine] scale must be above 0, got %g", scale) end
  local _, rows, columns = form.sizes(x)
  local m = geometry.affine_matrix(from_middle("affine", center, rows, columns), angle, translate, scale, shear, true)
  return warp("affine", x, m, rows, columns, mode, fill)
end)

--- Turned by `angle` degrees counter-clockwise, in the same size; expand: in the size that the whole image needs.
define("rotate", ", number angle, 'nearest'|'bilinear' interpolation='nearest', number|number[] fill?, \z
  bool expand=false, number[] center?",
function(x, angle, mode, fill, expand, center)
  local _, rows, columns = form.sizes(x)
  angle = angle % 360
  if not center then
    if angle == 0 then return x:clone() end
    if angle == 180 then return x:flip { -2, -1 } end
    if angle == 90 and (expand or rows == columns) then return x:transpose(-1, -2):flip(-2) end
    if angle == 270 and (expand or rows == columns) then return x:transpose(-1, -2):flip(-1) end
  end
  local m = geometry.affine_matrix(from_middle("rotate", center, rows, columns), -angle, { 0, 0 }, 1, { 0, 0 }, true)
  local height, width = rows, columns
  if expand then height, width = geometry.rotated(rows, columns, m) end
  return warp("rotate", x, m, height, width, mode, fill)
end)

--- startpoints: four corners { x, y }, counted from 0; endpoints: where they go.
define("perspective", ", list startpoints, list endpoints, 'nearest'|'bilinear' interpolation='bilinear', \z
  number|number[] fill?",
function(x, startpoints, endpoints, mode, fill)
  return planes.perspective_by(x, geometry.perspective("perspective", startpoints, endpoints), mode, fill)
end)
function planes.perspective_by(x, c, mode, fill)
  local _, rows, columns = form.sizes(x)
  local at = middles(rows, columns, 0.5, 0.5)
  local theta = moth.tensor({ { c[1], c[4] }, { c[2], c[5] }, { c[3], c[6] } }):div_(moth.tensor { 0.5 * columns,
    0.5 * rows })
  local grid = at:matmul(theta):div_(at:matmul(moth.tensor({ { c[7] }, { c[8] }, { 1 } }))):sub_(1)
  return sample("perspective", x, grid:view(rows, columns, 2), mode, fill)
end

--- Each pixel from where displacement (H, W, 2) or (1, H, W, 2) says, as (x, y) in halves of width and height.
define("elastic", ", Tensor displacement, 'nearest'|'bilinear' interpolation='bilinear', number|number[] fill?",
function(x, displacement, mode, fill)
  local _, rows, columns = form.sizes(x)
  local n = B.dim(displacement)
  if n == 4 and B.size(displacement, 1) == 1 then displacement = displacement:squeeze(1) end
  if B.dim(displacement) ~= 3 or B.size(displacement, 1) ~= rows or B.size(displacement, 2) ~= columns
    or B.size(displacement, 3) ~= 2 then
    check.fail("[transforms.elastic] displacement must be (1, %d, %d, 2), got %s", rows, columns,
      B.format(displacement))
  end
  return sample("elastic", x, geometry.identity_grid(rows, columns):add_(displacement:to(moth.float32)), mode, fill)
end)

for _, name in ipairs(colors.names) do M[name], planes[name] = colors[name], colors.planes[name] end
M.planes = planes
return M

