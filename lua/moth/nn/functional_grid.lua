--- The part of moth.nn.functional about sampling images at given places: affine_grid, grid_sample.
--
--     local grid = F.affine_grid(theta, { N, C, H, W })       -- theta (N, 2, 3)
--     local y = F.grid_sample(x, grid)             -- x (N, C, H, W), grid (N, OH, OW, 2) of (x, y) in [-1, 1]
local B = require "moth_lua"
local moth = require "moth"
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

--- Values of x (N, C, H, W) at grid (N, OH, OW, 2), of volumes (N, C, D, H, W) at (N, OD, OH, OW, 3): places
-- (x, y, z) from -1 to 1. mode: bilinear, nearest or, of images, bicubic. padding_mode: zeros beyond the edge,
-- "border": its elements, "reflection": those that lie on the other side of it.
F.grid_sample = signature("F.grid_sample(Tensor input, Tensor grid, \z
  'bilinear'|'nearest'|'bicubic' mode='bilinear', \z
  'zeros'|'border'|'reflection' padding_mode='zeros', bool align_corners=false)",
  function(x, grid, mode, padding_mode, align_corners)
    local size, g = B.size(x), B.size(grid)
    local n = #size - 2
    if n ~= 2 and n ~= 3 or #g ~= n + 2 or g[n + 2] ~= n or g[1] ~= size[1] then
      check.fail("[F.grid_sample] expected (N, C, H, W) and (N, OH, OW, 2), or (N, C, D, H, W) and \z
        (N, OD, OH, OW, 3), got %s and %s", B.format(x), B.format(grid))
    end
    return (ops.native_grid_sample(x, grid, mode, padding_mode, align_corners))
  end)

return F
