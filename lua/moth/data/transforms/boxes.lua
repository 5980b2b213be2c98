--- Bounding boxes, tensors (…, 4), in the formats XYXY (two corners), XYWH (a corner and the size) and CXCYWH (the
-- middle and the size), in pixels from 0: what the functions of images do to them. The values are torchvision's, for
-- whole numbers, too.
--
-- Each takes the parameters of what is done and `b`: { data, format, canvas_size = { height, width }, clamping_mode },
-- and returns the new data and canvas size.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local form = require "moth.data.transforms.form"
local signature = require "moth.utils.signature"
local geometry = require "moth.data.transforms.geometry"

local M = {}

local function halves(x) return x:narrow(-1, 1, 2), x:narrow(-1, 3, 2) end
local function join(a, b) return moth.cat({ a, b }, -1) end
local function half(x) return form.is_float(x) and x / 2 or x:div(2, { rounding_mode = "floor" }) end

-- ---- formats -----------------------------------------------------------------------------------------

local to_xyxy, from_xyxy = {}, {}
function to_xyxy.XYXY(x) return x end
function to_xyxy.XYWH(x)
  local a, b = halves(x)
  return join(a, a + b)
end
function to_xyxy.CXCYWH(x)
  local a, b = halves(form.floats(x))
  local corner = a - b / 2
  return join(corner, corner + b):to(x:dtype())
end
function from_xyxy.XYXY(x) return x end
function from_xyxy.XYWH(x)
  local a, b = halves(x)
  return join(a, b - a)
end
function from_xyxy.CXCYWH(x)
  local a, b = halves(x)
  return join(half(a * 2 + (b - a)), b - a)
end

local function convert(where, x, old, new)
  for _, format in ipairs { old, new } do
    if not to_xyxy[format] then
      check.fail("[transforms.%s] the format of boxes is XYXY, XYWH or CXCYWH, got '%s'", where, format)
    end
  end
  if not B.is_tensor(x) or B.dim(x) < 1 or B.size(x, -1) ~= 4 then
    check.fail("[transforms.%s] boxes are a tensor (…, 4), got %s", where, B.is_tensor(x) and B.format(x) or type(x))
  end
  if old == new then return x end
  if old == "XYWH" and new == "CXCYWH" then
    local a, b = halves(x)
    return join(a + half(b), b)
  elseif old == "CXCYWH" and new == "XYWH" and not form.is_float(x) then
    local a, b = halves(x:to(moth.float32))
    local corner = a - b / 2
    local other = (corner + b):to(x:dtype())
    corner = corner:to(x:dtype())
    return join(corner, other - corner)
  end
  return from_xyxy[new](to_xyxy[old](x))
end
M.convert = convert

--- Boxes in another format.
M.convert_bounding_box_format = signature("transforms.functional.convert_bounding_box_format(Tensor boxes, \z
  string old_format, string new_format)", function(x, old, new)
  return convert("convert_bounding_box_format", x, old:upper(), new:upper())
end)

-- Corners (float), cut off at the border.
local function inside(x, canvas)
  local h, w = canvas[1], canvas[2]
  local limit = moth.tensor({ w, h, w, h }, { dtype = x:dtype() }):to(x:device())
  return moth.minimum(x:clamp({ min = 0 }), limit)
end
local function clamp(where, x, format, canvas)
  return convert(where, inside(convert(where, form.floats(x), format, "XYXY"), canvas), "XYXY", format):to(x:dtype())
end

--- Boxes cut off at the border of an image of canvas_size = { height, width }.
M.clamp_bounding_boxes = signature("transforms.functional.clamp_bounding_boxes(Tensor boxes, string format, \z
  count[] canvas_size)", function(x, format, canvas)
  if #canvas ~= 2 then check.fail("[transforms.clamp_bounding_boxes] canvas_size is { height, width }") end
  return clamp("clamp_bounding_boxes", x, format:upper(), canvas)
end)

local function valid(where, x, format, canvas, min_size, min_area)
  x = convert(where, x, format, "XYXY")
  if B.dim(x) ~= 2 then check.fail("[transforms.%s] boxes are (N, 4), got %s", where, B.format(x)) end
  local a, b = halves(x)
  local size = b - a
  local w, h = size:select(-1, 1), size:select(-1, 2)
  return w:ge(min_size):logical_and(h:ge(min_size)):logical_and((w * h):ge(min_area))
    :logical_and(x:ge(0):all(-1)):logical_and(x:select(-1, 1):le(canvas[2])):logical_and(x:select(-1, 3):le(canvas[2]))
    :logical_and(x:select(-1, 2):le(canvas[1])):logical_and(x:select(-1, 4):le(canvas[1]))
end
M.valid = valid

--- The boxes that lie in the image and are as large as asked for, and which these are (a bool tensor).
M.sanitize_bounding_boxes = signature("transforms.functional.sanitize_bounding_boxes(Tensor boxes, string format, \z
  count[] canvas_size, number min_size=1, number min_area=1)", function(x, format, canvas, min_size, min_area)
  if #canvas ~= 2 then check.fail("[transforms.sanitize_bounding_boxes] canvas_size is { height, width }") end
  local good = valid("sanitize_bounding_boxes", x, format:upper(), canvas, min_size, min_area)
  return x:index_select(1, good:nonzero():view(-1)), good
end)

-- ---- what images undergo --------------------------------------------------------------------------------

-- In the box's own clamping mode, unless that is none.
local function clamped(where, x, b, canvas)
  if b.clamping_mode == "none" then return x, canvas end
  return clamp(where, x, b.format, canvas), canvas
end

function M.hflip(b)
  local x, w = b.data, b.canvas_size[2]
  local function at(k) return x:narrow(-1, k, 1) end
  if b.format == "XYXY" then return moth.cat({ w - at(3), at(2), w - at(1), at(4) }, -1), b.canvas_size end
  local left = b.format == "XYWH" and w - (at(1) + at(3)) or w - at(1)
  return moth.cat({ left, x:narrow(-1, 2, 3) }, -1), b.canvas_size
end
function M.vflip(b)
  local x, h = b.data, b.canvas_size[1]
  local function at(k) return x:narrow(-1, k, 1) end
  if b.format == "XYXY" then return moth.cat({ at(1), h - at(4), at(3), h - at(2) }, -1), b.canvas_size end
  local top = b.format == "XYWH" and h - (at(2) + at(4)) or h - at(2)
  return moth.cat({ at(1), top, x:narrow(-1, 3, 2) }, -1), b.canvas_size
end

local function moved(b, dx, dy)
  local corners = b.format == "XYXY"
  return b.data + moth.tensor({ dx, dy, corners and dx or 0, corners and dy or 0 }, { dtype = b.data:dtype() })
    :to(b.data:device())
end
--- top and left count from 1.
function M.crop(b, top, left, height, width)
  return clamped("crop", moved(b, 1 - left, 1 - top), b, { height, width })
end
function M.pad(b, padding)
  local p = geometry.sides("pad", padding)
  local h, w = b.canvas_size[1], b.canvas_size[2]
  return clamped("pad", moved(b, p[1], p[2]), b, { h + p[2] + p[4], w + p[1] + p[3] })
end
function M.resize(b, height, width)
  local x, sx, sy = b.data, width / b.canvas_size[2], height / b.canvas_size[1]
  return (form.floats(x) * moth.tensor { sx, sy, sx, sy }:to(x:device())):to(x:dtype()), { height, width }
end

-- The boxes around the four corners of boxes that `map` moves: map(points (N, 2), ones (N, 1)) -> (N, 2). Whole numbers
-- become floats before the format changes (affine), after it (perspective), or are whole all the way (elastic).
local function around(b, where, map, canvas)
  local x = b.data
  if x:numel() == 0 then return x, canvas end
  local c = convert(where, where == "affine" and form.floats(x) or x, b.format, "XYXY"):reshape(-1, 4)
  local n = B.size(c, 1)
  local p = form.floats(c)
  local function point(i, j) return moth.cat({ p:narrow(2, i, 1), p:narrow(2, j, 1) }, 2) end
  p = moth.stack({ point(1, 2), point(3, 2), point(3, 4), point(1, 4) }, 2):view(n * 4, 2)
  local out = map(p, moth.ones_like(p:narrow(2, 1, 1))):view(n, 4, 2)
  out = join(out:amin(2), out:amax(2)):view(x:size())
  if where == "elastic" then out = out:to(x:dtype()) end
  if b.clamping_mode ~= "none" then out = inside(form.floats(out), canvas):to(out:dtype()) end
  return convert(where, out, "XYXY", b.format):to(x:dtype()), canvas
end

function M.affine(b, angle, translate, scale, shear, center, expand)
  if type(shear) == "number" then shear = { shear, 0 } end
  local h, w = b.canvas_size[1], b.canvas_size[2]
  center = center or { w * 0.5, h * 0.5 }
  local m = geometry.affine_matrix(center, angle, translate, scale, shear)
  local height, width, x0, y0 = h, w, 0, 0
  if expand then
    for k, corner in ipairs { { 0, 0 }, { 0, h }, { w, h }, { w, 0 } } do
      local px = m[1] * corner[1] + m[2] * corner[2] + m[3]
      local py = m[4] * corner[1] + m[5] * corner[2] + m[6]
      x0, y0 = k == 1 and px or math.min(x0, px), k == 1 and py or math.min(y0, py)
    end
    height, width = geometry.rotated(h, w, geometry.affine_matrix({ 0, 0 }, angle, translate, scale, shear, true))
  end
  return around(b, "affine", function(points, ones)
    local theta = moth.tensor({ { m[1], m[4] }, { m[2], m[5] }, { m[3], m[6] } }, { dtype = points:dtype() })
    local y = join(points, ones):matmul(theta:to(points:device()))
    return expand and y - moth.tensor({ x0, y0 }, { dtype = y:dtype() }):to(y:device()) or y
  end, { height, width })
end

--- angle: counter-clockwise.
function M.rotate(b, angle, center, expand) return M.affine(b, -angle, { 0, 0 }, 1, { 0, 0 }, center, expand) end

--- c: the eight coefficients.
function M.perspective(b, c)
  local d = c[1] * c[5] - c[2] * c[4]
  if d == 0 then check.fail("[transforms.perspective] this map cannot be inverted, as boxes need it") end
  local i = { (c[5] - c[6] * c[8]) / d, (-c[2] + c[3] * c[8]) / d, (c[2] * c[6] - c[3] * c[5]) / d,
    (-c[4] + c[6] * c[7]) / d, (c[1] - c[3] * c[7]) / d, (-c[1] * c[6] + c[3] * c[4]) / d,
    (-c[5] * c[7] + c[4] * c[8]) / d, (-c[1] * c[8] + c[2] * c[7]) / d }
  return around(b, "perspective", function(points, ones)
    local p = join(points, ones)
    local function map(t) return p:matmul(moth.tensor(t, { dtype = p:dtype() }):to(p:device())) end
    return map { { i[1], i[4] }, { i[2], i[5] }, { i[3], i[6] } } / map { { i[7] }, { i[8] }, { 1 } }
  end, b.canvas_size)
end

--- displacement: (H, W, 2).
function M.elastic(b, displacement)
  local h, w = b.canvas_size[1], b.canvas_size[2]
  return around(b, "elastic", function(points)
    local at = points:ceil():to(moth.int64)
    local x, y = at:select(2, 1):clamp(0, w - 1), at:select(2, 2):clamp(0, h - 1)
    local back = (geometry.identity_grid(h, w) - displacement:to(moth.float32)):view(h * w, 2):to(points:dtype())
    return (back:index_select(1, y * w + x + 1) + 1) * moth.tensor({ w / 2, h / 2 }, { dtype = points:dtype() }) - 0.5
  end, b.canvas_size)
end

return M
