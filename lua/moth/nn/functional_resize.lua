--- The part of moth.nn.functional that resizes images, dropout of whole channels and gumbel_softmax.
--
--     F.interpolate(x, { scale_factor = 2 })                          -- nearest
--     F.interpolate(x, { size = { 64, 64 }, mode = "bilinear" })
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local ops = B.ops

local F = {}

-- mode -> the dimensions it needs (0: any)
local modes = { nearest = 0, ["nearest-exact"] = 0, linear = 3, bilinear = 4, bicubic = 4, trilinear = 5, area = 0 }
local names = "nearest, nearest-exact, linear, bilinear, bicubic, trilinear or area"

-- The weight of an element at distance t (a tensor) under a filter; a: the slope of the cubic.
local function filter(kind, t, a)
  t = t:abs()
  if kind == "linear" then return (1 - t):clamp({ min = 0 }) end
  local near = ((a + 2) * t - (a + 3)) * t * t + 1
  local far = ((t - 5) * t + 8) * t * a - 4 * a
  return moth.where(t:le(1), near, moth.where(t:lt(2), far, 0))
end

-- The elements of n that each of `size` results is made of, and their weights: positions (size, taps) from 1, weights
-- (size, taps) or nil where there is one. scale: elements of the input for one of the result.
local function taps(mode, n, size, scale, align_corners, antialias)
  local i = moth.arange(0, size, 1, { dtype = moth.float64 })
  if mode == "nearest" or mode == "nearest-exact" then
    local at = ((mode == "nearest" and i or i + 0.5) * scale):floor():clamp(0, n - 1)
    return (at + 1):to(moth.int64):unsqueeze(2), nil
  end
  local kind = mode == "bicubic" and "cubic" or "linear"
  local reach = kind == "cubic" and 2 or 1
  if align_corners then scale = (n - 1) / math.max(size - 1, 1) end
  local at = align_corners and not antialias and i * scale or (i + 0.5) * scale - 0.5
  if antialias then -- the filter is as wide as the elements of the result
    local wide = math.max(scale, 1)
    local count = math.min(n, 2 * math.ceil(reach * wide) + 1)
    local first = (at + 0.5 - reach * wide + 0.5):floor():clamp(0, n - count)
    local places = first:unsqueeze(2) + moth.arange(0, count, 1, { dtype = moth.float64 })
    local weights = filter(kind, (places - at:unsqueeze(2)) / wide, -0.5)
    -- What lies out of the window that PyTorch cuts counts nothing.
    local low = (at + 0.5 - reach * wide + 0.5):floor():clamp(0, n):unsqueeze(2)
    local high = (at + 0.5 + reach * wide + 0.5):floor():clamp(0, n):unsqueeze(2)
    weights = moth.where(places:ge(low):logical_and(places:lt(high)), weights, 0)
    return (places + 1):to(moth.int64), weights / weights:sum(2, true)
  end
  if kind == "linear" and not align_corners then at = at:clamp({ min = 0 }) end
  local first = at:floor()
  local offsets = moth.arange(1 - reach, reach + 1, 1, { dtype = moth.float64 })
  local places = first:unsqueeze(2) + offsets
  local weights = filter(kind, places - at:unsqueeze(2), -0.75)
  return (places:clamp(0, n - 1) + 1):to(moth.int64), weights
end

-- x resampled along dimension d: each result is a sum of a few weighted elements.
local function resample(x, d, places, weights)
  places = places:to(B.tensor_device(x))
  if not weights then return (ops.index_select(x, d, places:reshape(-1))) end
  weights = weights:to({ dtype = B.tensor_dtype(x), device = B.tensor_device(x) })
  local shape, outer, inner = B.size(x), 1, 1
  for i = 1, #shape do
    outer, inner = i < d and outer * shape[i] or outer, i > d and inner * shape[i] or inner
  end
  local y = ops.native_resample(x:reshape(outer, shape[d], inner), places, weights)
  shape[d] = B.size(places, 1)
  return y:reshape(shape)
end

-- A size, of which a record for other sizes knows how it follows from theirs.
local function size_of(x, d)
  local symbols = package.loaded["moth.compile.symbols"]
  if symbols then return (symbols.size(x, d)) end
  return (B.size(x, d))
end

local function resized(x, size, scales, mode, align_corners, antialias)
  local kind = B.tensor_dtype(x)
  local half = kind.itemsize < 4 and kind.is_floating_point
  local y = half and x:float() or x
  for i = 1, #size do
    local d = i + 2
    local n = size_of(x, d)
    if B.compile.recording() or n ~= size[i] or scales[i] ~= 1 then -- a record is for other sizes, too
      y = resample(y, d, taps(mode, n, size[i], scales[i], align_corners, antialias))
    end
  end
  return half and y:to(kind) or y
end

--- (N, C, sizes) in other sizes: `size`, or scale_factor times the old ones. mode: "nearest" (default),
-- "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area", by the number of sizes; align_corners: the
-- corners' centers stay.
local function interpolate(x, sizes, scale_factor, mode, align_corners, recompute, antialias)
  local where, n = "[F.interpolate]", B.dim(x) - 2
  if n < 1 then check.fail("%s expected (N, C, d1, …), got %d dimensions", where, B.dim(x)) end
  if not modes[mode] then check.fail("%s mode is %s, got '%s'", where, names, tostring(mode)) end
  if modes[mode] > 0 and modes[mode] ~= n + 2 then
    check.fail("%s mode '%s' is for %d dimensions, got %d", where, mode, modes[mode], n + 2)
  end
  if (sizes == nil) == (scale_factor == nil) then check.fail("%s give size or scale_factor", where) end
  local smooth = mode:find("linear") or mode == "bicubic"
  if align_corners ~= nil and not smooth then
    check.fail("%s align_corners is for the linear modes and bicubic, not '%s'", where, mode)
  end
  if antialias and (mode ~= "bilinear" and mode ~= "bicubic") then
    check.fail("%s antialias is for bilinear and bicubic, not '%s'", where, mode)
  end
  if recompute and sizes then check.fail("%s recompute_scale_factor goes with scale_factor, not with size", where) end
  local size, scales, exact, given = {}, {}, true, sizes or scale_factor
  local symbols = package.loaded["moth.compile.symbols"]
  local open = symbols and symbols.open()
  for i = 1, n do
    local v = type(given) == "table" and given[i] or type(given) ~= "table" and given or nil
    local own = size_of(x, 2 + i)
    if scale_factor then
      size[i] = math.floor(own * check.number("F.interpolate", "scale_factor", v, 0))
    else
      size[i] = check.integer("F.interpolate", "size", v, 1)
    end
    -- PyTorch's coordinates follow the factor that was given, not the ratio of the sizes.
    scales[i] = (sizes or recompute) and own / size[i] or 1 / v
    exact = exact and (sizes ~= nil or recompute or v % 1 == 0 or not open and scales[i] == own / size[i])
    if size[i] < 1 or own < 1 then
      check.fail("%s there is nothing to interpolate: from %d to %d elements in dimension %d", where, own, size[i],
        i + 2)
    end
  end
  if type(given) == "table" and #given ~= n then
    check.fail("%s %d numbers for %d dimensions", where, #given, n)
  end
  if smooth and B.tensor_dtype(x).name == "uint8" then -- images: computed in float32, rounded
    local y = interpolate(x:float(), sizes, scale_factor, mode, align_corners, recompute, antialias)
    return y:round():clamp(0, 255):to(moth.uint8)
  end
  if smooth and not B.tensor_dtype(x).is_floating_point then
    check.fail("%s mode '%s' needs a float dtype, got %s", where, mode, B.format(x))
  end
  if x:numel() == 0 then -- no axis of positions is made, however large
    local shape = B.size(x)
    for i = 1, n do shape[2 + i], x = size[i], x:narrow(2 + i, 1, 1) end
    return x:expand(shape):clone()
  end
  if mode == "area" then
    return ops[("adaptive_avg_pool%dd"):format(n <= 3 and n or check.fail("%s mode 'area' is for 3 to 5 dimensions, \z
      got %d", where, n + 2))](x, size)
  end
  if not antialias and (exact or align_corners) then
    if mode == "nearest" then return ops.upsample_nearest(x, size) end
    if mode:find("linear") then return ops.upsample_linear(x, size, align_corners == true) end
  end
  return resized(x, size, scales, mode, align_corners == true, antialias)
end

--- Resizes x (N, C, d1, …) to `size` (a number, or one for each of d1, …) or by `scale_factor` (likewise; sizes are
-- rounded down); mode: "nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area" (means).
-- align_corners: the first and the last element stay where they are. antialias: of bilinear and bicubic; the filter
-- grows where sizes shrink. recompute_scale_factor: the coordinates follow the ratio of the sizes.
for _, name in ipairs({ "interpolate", "upsample" }) do
  F[name] = signature(("F.%s(Tensor input, int|int[] size?, number|number[] scale_factor?, string mode='nearest', \z
    bool align_corners?%s)"):format(name, name == "interpolate"
    and ", bool recompute_scale_factor?, bool antialias=false" or ""), interpolate)
end

-- How many images (C, H, W) there are in sizes (…, C, H, W).
local function images(s)
  local n = 1
  for d = 1, #s - 3 do n = n * s[d] end
  return n
end

--- (…, C r^2, H, W) -> (…, C, H r, W r)
F.pixel_shuffle = signature("F.pixel_shuffle(Tensor input, count upscale_factor)", function(x, r)
  local s = B.size(x)
  local n = #s
  if n < 3 or s[n - 2] % (r * r) ~= 0 then
    check.fail("[F.pixel_shuffle] expected (…, C, H, W) with C a multiple of %d, got %s", r * r, B.format(x))
  end
  local c, h, w = s[n - 2] / (r * r), s[n - 1], s[n]
  local y = x:reshape({ images(s), c, r, r, h, w }):permute(1, 2, 5, 3, 6, 4)
  s[n - 2], s[n - 1], s[n] = c, h * r, w * r
  return y:reshape(s)
end)
--- (…, C, H r, W r) -> (…, C r^2, H, W)
F.pixel_unshuffle = signature("F.pixel_unshuffle(Tensor input, count downscale_factor)", function(x, r)
  local s = B.size(x)
  local n = #s
  if n < 3 or s[n - 1] % r ~= 0 or s[n] % r ~= 0 then
    check.fail("[F.pixel_unshuffle] expected (…, C, H, W) with H and W multiples of %d, got %s", r, B.format(x))
  end
  local c, h, w = s[n - 2], s[n - 1] / r, s[n] / r
  local y = x:reshape({ images(s), c, h, r, w, r }):permute(1, 2, 4, 6, 3, 5)
  s[n - 2], s[n - 1], s[n] = c * r * r, h, w
  return y:reshape(s)
end)

-- Dropout of whole channels: one draw for each (n, c).
for n = 1, 3 do
  local name = ("dropout%dd"):format(n)
  local text = ("F.%s(Tensor input, number p=0.5, bool training=true, bool inplace=false, *, \z
    Generator generator?)"):format(name)
  --- x (N, C, d1, …) or (C, d1, …)
  F[name] = signature(text, function(x, p, training, inplace, generator)
    if B.dim(x) ~= n + 1 and B.dim(x) ~= n + 2 then
      check.fail("[F.%s] expected %d or %d dimensions, got %d", name, n + 1, n + 2, B.dim(x))
    end
    if not training then return x end
    local size = B.size(x)
    for d = #size - n + 1, #size do size[d] = 1 end
    local keep = ops.dropout(x:new_ones(size), p, true, generator)
    if inplace then return x:mul_(keep) end
    return x * keep
  end)
end

--- Softmax of (x + Gumbel noise) / tau along dim: differentiable samples of a categorical distribution.
-- hard: one-hot samples with the derivative of the soft ones
F.gumbel_softmax = signature("F.gumbel_softmax(Tensor logits, number tau=1, bool hard=false, *, Dim dim=-1, \z
  Generator generator?)", function(x, tau, hard, dim, generator)
  local u = ops.rand_like(x, { generator = generator })
  local noise = ops.neg(ops.log(ops.neg(ops.log(ops.clamp(u, { min = 1e-20 }))):clamp({ min = 1e-20 })))
  local soft = ((x + noise) / tau):softmax(dim)
  if not hard then return soft end
  local place = soft:argmax(dim, true)
  local one_hot = ops.scatter(ops.zeros_like(soft), dim, place, 1)
  return one_hot - soft:detach() + soft
end)

return F
