--- The part of moth.nn.functional that resizes images, dropout of whole channels and gumbel_softmax.
--
--     F.interpolate(x, { scale_factor = 2 })                          -- nearest
--     F.interpolate(x, { size = { 64, 64 }, mode = "bilinear" })
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local ops = B.ops

local F = {}

local modes = { nearest = 0, linear = 3, bilinear = 4, trilinear = 5, area = 0 } -- mode -> the dimensions it needs

local function interpolate(x, sizes, scale_factor, mode, align_corners)
  local where, n = "[F.interpolate]", B.dim(x) - 2
  if n < 1 then check.fail("%s expected (N, C, d1, …), got %d dimensions", where, B.dim(x)) end
  if not modes[mode] then
    check.fail("%s mode is nearest, linear, bilinear, trilinear or area, got '%s'", where, tostring(mode))
  end
  if modes[mode] > 0 and modes[mode] ~= n + 2 then
    check.fail("%s mode '%s' is for %d dimensions, got %d", where, mode, modes[mode], n + 2)
  end
  if (sizes == nil) == (scale_factor == nil) then check.fail("%s give size or scale_factor", where) end
  if align_corners ~= nil and not mode:find("linear") then
    check.fail("%s align_corners is for the linear modes, not '%s'", where, mode)
  end
  local size, given = {}, sizes or scale_factor
  for i = 1, n do
    local v = type(given) == "table" and given[i] or type(given) ~= "table" and given or nil
    if scale_factor then
      size[i] = math.floor(B.size(x, 2 + i) * check.number("F.interpolate", "scale_factor", v, 0))
    else
      size[i] = check.integer("F.interpolate", "size", v, 1)
    end
  end
  if type(given) == "table" and #given ~= n then
    check.fail("%s %d numbers for %d dimensions", where, #given, n)
  end
  if mode == "nearest" then return ops.upsample_nearest(x, size) end
  if mode ~= "area" then return ops.upsample_linear(x, size, align_corners == true) end
  if n == 1 then return ops.adaptive_avg_pool1d(x, size) end
  if n == 2 then return ops.adaptive_avg_pool2d(x, size) end
  check.fail("%s mode 'area' is for 3 or 4 dimensions, got %d", where, n + 2)
end

--- Resizes x (N, C, d1, …) to `size` (a number, or one for each of d1, …) or by `scale_factor` (likewise; sizes are
-- rounded down); mode: "nearest", "linear", "bilinear", "trilinear", "area" (means).
-- Coordinates are scaled by the ratio of the sizes (PyTorch's recompute_scale_factor = true).
for _, name in ipairs({ "interpolate", "upsample" }) do
  F[name] = signature(("F.%s(Tensor input, int|int[] size?, number|number[] scale_factor?, string mode='nearest', \z
    bool align_corners?)"):format(name), interpolate)
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
