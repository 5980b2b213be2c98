--- What moth.transforms.functional works out before it touches pixels: sizes, borders, maps of the plane.
local ffi = require "ffi"
local moth = require "moth"
local check = require "moth.utils.check"

local M = {}

--- { height, width } of a size, a number, or a list of 1 or 2. name: the argument's.
function M.pair(where, name, size)
  if type(size) == "number" then size = { size } end
  if #size ~= 1 and #size ~= 2 then check.fail("[transforms.%s] %s is 1 or 2 numbers, got %d", where, name, #size) end
  return { size[1], size[2] or size[1] }
end

--- { left, above, right, below } of a padding: a number, or a list of 1, 2 or 4.
function M.sides(where, padding)
  local p = padding
  if type(p) == "number" then p = { p, p, p, p } end
  if #p == 1 then p = { p[1], p[1], p[1], p[1] } elseif #p == 2 then p = { p[1], p[2], p[1], p[2] } end
  if #p ~= 4 then check.fail("[transforms.%s] padding is 1, 2 or 4 numbers, got %d", where, #p) end
  return p
end

--- Where the middle m of n begins; a half is rounded to even, or, where the image is smaller, towards it.
function M.middle(n, m)
  local half = math.floor(math.abs(n - m) / 2)
  if n < m then return 1 - half end
  return 1 + half + ((n - m) % 2 == 1 and half % 2 or 0)
end

--- Height and width of an image of rows x columns that is resized: size is { height, width }, the length of the shorter
-- side (max_size: the most that the longer may have), or nil, where max_size is the length of the longer side.
function M.resized(where, rows, columns, size, max_size)
  if type(size) == "table" and #size == 2 then
    if max_size then check.fail("[transforms.%s] max_size goes with the size of the shorter side alone", where) end
    return size[1], size[2]
  end
  if type(size) == "table" then
    if #size > 2 then check.fail("[transforms.%s] size is 1 or 2 numbers, got %d", where, #size) end
    size = size[1]
  end
  local short, long = math.min(rows, columns), math.max(rows, columns)
  local a, b
  if not size then
    if not max_size then
      check.fail("[transforms.%s] size is { height, width } or a number, or max_size is given", where)
    end
    a, b = math.floor(max_size * short / long), max_size
  else
    a, b = size, math.floor(size * long / short)
    if max_size and max_size <= size then
      check.fail("[transforms.%s] max_size must be above size, got %d and %d", where, max_size, size)
    end
    if max_size and b > max_size then a, b = math.floor(max_size * a / b), max_size end
  end
  a = math.max(a, 1)
  if columns <= rows then return b, a end
  return a, b
end

--- The matrix of an affine map about a center, or its inverse: { a, b, c, d, e, f }.
function M.affine_matrix(center, angle, translate, scale, shear, inverse)
  local r, sx, sy = math.rad(angle), math.rad(shear[1] or 0), math.rad(shear[2] or 0)
  local cx, cy = center[1], center[2]
  local px, py = cx + (translate[1] or 0), cy + (translate[2] or 0)
  local a = math.cos(r - sy) / math.cos(sy)
  local b = -(a * math.tan(sx) + math.sin(r))
  local c = math.sin(r - sy) / math.cos(sy)
  local d = math.cos(r) - c * math.tan(sx)
  if inverse then
    local m = { d / scale, -b / scale, 0, -c / scale, a / scale, 0 }
    m[3], m[6] = cx - m[1] * px - m[2] * py, cy - m[4] * px - m[5] * py
    return m
  end
  local m = { a * scale, b * scale, 0, c * scale, d * scale, 0 }
  m[3], m[6] = px - m[1] * cx - m[2] * cy, py - m[4] * cx - m[5] * cy
  return m
end

--- The size that a whole turned image needs: height, width. In float32, as PyTorch counts.
function M.rotated(rows, columns, m)
  local x, y = columns / 2, rows / 2
  local corners = moth.tensor { { -x, -y, 1 }, { -x, y, 1 }, { x, y, 1 }, { x, -y, 1 } }
  local at = corners:matmul(moth.tensor { { m[1], m[4] }, { m[2], m[5] }, { m[3], m[6] } })
  local function whole(v) return (v + moth.tensor { x, y }):mul_(1e4):trunc():mul_(1e-4) end
  local size = (whole(at:amax(1)):ceil() - whole(at:amin(1)):floor()):tolist()
  return size[2], size[1]
end

local float = ffi.typeof "float[1]"
local function float32(v) return tonumber(float(v)[0]) end

--- The eight coefficients of the map of perspective from the four end points to the four start points.
function M.perspective(where, from, to)
  local a = {}
  for k = 1, 4 do
    local p, q = to[k], from[k]
    if type(p) ~= "table" or type(q) ~= "table" or #p ~= 2 or #q ~= 2 then
      check.fail("[transforms.%s] startpoints and endpoints are four points { x, y } each", where)
    end
    a[2 * k - 1] = { p[1], p[2], 1, 0, 0, 0, -q[1] * p[1], -q[1] * p[2], q[1] }
    a[2 * k] = { 0, 0, 0, p[1], p[2], 1, -q[2] * p[1], -q[2] * p[2], q[2] }
  end
  for k = 1, 8 do -- Gauss and Jordan, with pivots
    local best = k
    for i = k + 1, 8 do if math.abs(a[i][k]) > math.abs(a[best][k]) then best = i end end
    a[k], a[best] = a[best], a[k]
    if math.abs(a[k][k]) < 1e-12 then check.fail("[transforms.%s] the end points span no area", where) end
    for i = 1, 8 do
      local f = i ~= k and a[i][k] / a[k][k] or 0
      if f ~= 0 then for j = k, 9 do a[i][j] = a[i][j] - f * a[k][j] end end
    end
  end
  local out = {}
  for k = 1, 8 do out[k] = float32(a[k][9] / a[k][k]) end
  return out
end

--- The places of the pixels themselves, from -1 to 1: (height, width, 2).
function M.identity_grid(rows, columns)
  local u = moth.linspace((1 - columns) / columns, (columns - 1) / columns, columns)
  local v = moth.linspace((1 - rows) / rows, (rows - 1) / rows, rows)
  return moth.stack({ u:view(1, columns):expand(rows, columns), v:view(rows, 1):expand(rows, columns) }, 3)
end

return M
