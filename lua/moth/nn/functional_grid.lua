--- The part of moth.nn.functional about sampling images at given places: affine_grid, grid_sample.
--
--     local grid = F.affine_grid(theta, { N, C, H, W })       -- theta (N, 2, 3)
--     local y = F.grid_sample(x, grid)             -- x (N, C, H, W), grid (N, OH, OW, 2) of (x, y) in [-1, 1]
local B = require "moth_lua"
local moth = require "moth"
local wide = require("moth.amp.autocast").wide
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local ops = B.ops

local F = {}

-- n places from -1 to 1; without corners: the middles of n equal parts.
local function places(n, align_corners, like)
  local at = ops.arange(0, n, 1, like)
  if align_corners then return n > 1 and at * (2 / (n - 1)) - 1 or at end
  return (at * 2 + 1) / n - 1
end

--- The grid of an affine map theta (N, 2, 3) for images of `size` (N, C, H, W), (N, H, W, 2), or theta (N, 3, 4) for
-- volumes (N, C, D, H, W), (N, D, H, W, 3). align_corners: -1 and 1 are the middles of the corners' elements.
F.affine_grid = signature("F.affine_grid(Tensor theta, size[] size, bool align_corners=false)",
  function(theta, size, align_corners)
    local n = #size - 2
    if n ~= 2 and n ~= 3 then
      check.fail("[F.affine_grid] size is (N, C, H, W) or (N, C, D, H, W), got %d numbers", #size)
    end
    local s = B.size(theta)
    if #s ~= 3 or s[1] ~= size[1] or s[2] ~= n or s[3] ~= n + 1 then
      check.fail("[F.affine_grid] theta must have the shape [%d, %d, %d], got %s", size[1], n, n + 1, B.format(theta))
    end
    local like = { dtype = B.tensor_dtype(theta), device = B.tensor_device(theta) }
    local whole, parts, cells = {}, {}, 1
    for d = 1, n do whole[d], cells = size[d + 2], cells * size[d + 2] end
    for d = n, 1, -1 do -- x, the last dimension, comes first
      local shape = {}
      for i = 1, n do shape[i] = i == d and whole[d] or 1 end
      parts[#parts + 1] = places(whole[d], align_corners, like):view(shape):expand(whole)
    end
    parts[#parts + 1] = moth.ones(whole, like)
    local base = moth.stack(parts, n + 1):reshape(1, cells, n + 1):expand(size[1], cells, n + 1)
    whole[n + 1] = n
    return base:bmm(theta:transpose(2, 3)):reshape(size[1], unpack(whole))
  end)

-- Coordinates that lie out of [low, high], thrown back at its ends.
local function reflected(x, low, high)
  if high <= low then return x * 0 end
  local span = high - low
  local off = (x - low):abs()
  local flips = (off / span):floor():detach()
  local rest = off - flips * span
  return moth.where((flips % 2):eq(0), rest + low, high - rest)
end

-- Coordinates in [-1, 1] as positions from 0 to n - 1.
local function position(x, n, align_corners)
  if align_corners then return (x + 1) * ((n - 1) / 2) end
  return ((x + 1) * n - 1) / 2
end

local function padded(at, n, mode, align_corners)
  if mode == "zeros" then return at end
  if mode == "reflection" then
    at = align_corners and reflected(at, 0, n - 1) or reflected(at, -0.5, n - 0.5)
  end
  return at:clamp(0, n - 1)
end

-- Weights of the four elements around, t behind the second; PyTorch's a = -0.75.
local function cubic(t)
  local a = -0.75
  local function near(x) return ((a + 2) * x - (a + 3)) * x * x + 1 end
  local function far(x) return ((x - 5) * x + 8) * x * a - 4 * a end
  return { far(t + 1), near(t), near(1 - t), far(2 - t) }
end

--- Values of x (N, C, H, W) at grid (N, OH, OW, 2), of volumes (N, C, D, H, W) at (N, OD, OH, OW, 3): places
-- (x, y, z) from -1 to 1. mode: bilinear, nearest or, of images, bicubic. padding_mode: zeros beyond the edge,
-- "border": its elements, "reflection": those that lie on the other side of it.
F.grid_sample = signature("F.grid_sample(Tensor input, Tensor grid, \z
  'bilinear'|'nearest'|'bicubic' mode='bilinear', \z
  'zeros'|'border'|'reflection' padding_mode='zeros', bool align_corners=false)",
  function(x, grid, mode, padding_mode, align_corners)
    x, grid = wide(x, grid)
    local size, g = B.size(x), B.size(grid)
    local n = #size - 2
    if n ~= 2 and n ~= 3 or #g ~= n + 2 or g[n + 2] ~= n or g[1] ~= size[1] then
      check.fail("[F.grid_sample] expected (N, C, H, W) and (N, OH, OW, 2), or (N, C, D, H, W) and \z
        (N, OD, OH, OW, 3), got %s and %s", B.format(x), B.format(grid))
    end
    if mode == "bicubic" and n ~= 2 then check.fail("[F.grid_sample] mode 'bicubic' is for images of 4 dimensions") end
    local cells, points = 1, 1
    for d = 1, n do cells, points = cells * size[d + 2], points * g[d + 1] end
    if cells == 0 then check.fail("[F.grid_sample] the image is empty: %s", B.format(x)) end
    local flat = ops.reshape(x, { size[1], size[2], cells })
    -- For each dimension: lists of whole positions (N, points) and their weights.
    local taps = {}
    for d = 1, n do
      local extent = size[d + 2]
      local at = position(grid:select(n + 2, n + 1 - d):reshape(g[1], points), extent, align_corners)
      if mode == "bicubic" then
        local first = at:detach():floor()
        taps[d] = { first - 1, first, first + 1, first + 2, weights = cubic(at - first) }
        for k = 1, 4 do taps[d][k] = padded(taps[d][k], extent, padding_mode, align_corners) end
      else
        at = padded(at, extent, padding_mode, align_corners)
        if mode == "nearest" then
          taps[d] = { at:detach():round() } -- halves to even, as PyTorch's
        else
          local first = at:detach():floor()
          local t = at - first
          taps[d] = { first, first + 1, weights = { 1 - t, t } }
        end
      end
    end
    local total
    local function add(d, index, weight, inside)
      if d > n then
        local part = ops.gather(flat, 3, ops.expand(ops.unsqueeze(ops.add(index, 1), 2), { size[1], size[2], points }))
        if inside then weight = weight and weight * inside or inside end
        if weight then part = part * weight:unsqueeze(2) end
        total = total and total + part or part
        return
      end
      local extent = size[d + 2]
      for k, at in ipairs(taps[d]) do
        local w = taps[d].weights and taps[d].weights[k]
        local within = at:ge(0):logical_and(at:le(extent - 1))
        local whole = at:clamp(0, extent - 1):to(moth.int64)
        local now = padding_mode == "zeros" and within:to(B.tensor_dtype(x)) or nil
        add(d + 1, index and index * extent + whole or whole, w and (weight and weight * w or w) or weight,
          now and (inside and inside * now or now) or inside)
      end
    end
    add(1, nil, nil, nil)
    local out = { size[1], size[2], unpack(g, 2, n + 1) }
    return (ops.reshape(total, out))
  end)

return F
