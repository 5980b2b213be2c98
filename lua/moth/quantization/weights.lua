--- Weights as int8 with a scale for each row, or as 4 bits with a scale for each group of a row.
local moth = require "moth"
local check = require "moth.utils.check"
local is_exported = require "moth.export.active"
local signature = require "moth.utils.signature"

local M = {}

--- An error where the kernels know no groups of so many values.
function M.check_group(where, group)
  if group ~= 32 and group ~= 64 and group % 128 ~= 0 then
    check.fail("[%s] group must be 32, 64 or a multiple of 128, got %d", where, group)
  end
end

local function rows_of(w) return w:reshape(w:size(1), -1) end

local function finite(where, w)
  if not is_exported() and w:numel() > 0 and not moth.isfinite(w):all():item() then
    check.fail("[%s] the weight has elements that are inf or nan", where)
  end
end

--- int8 of a weight (out, …), symmetric, and its scale (out). per_tensor: one scale for all, as a vector, too.
-- @return int8 tensor, scale
M.int8_weight = signature("quantization.int8_weight(Tensor weight, bool per_tensor=false)", function(w, per_tensor)
  return moth.no_grad(function()
    finite("quantization.int8_weight", w)
    w = w:detach():to(moth.float32)
    local most = w:numel() == 0 and moth.zeros(w:size(1)) or rows_of(w):abs():amax(2)
    if per_tensor and w:numel() > 0 then most = most:amax():expand(w:size(1)):contiguous() end
    local scale = most / 127
    scale = moth.where(scale:gt(1e-30), scale, 1)
    return moth.quantize_per_channel(w, scale, moth.zeros(w:size(1)), 1, moth.int8):clamp(-127, 127), scale
  end)
end)

-- The sum of squared errors of groups (rows, groups, group) with these scales (rows, groups, 1).
local function rounded(g, scale) return (g * (1 / scale)):round():clamp(-8, 7) end
local function error_of(g, scale)
  local off = rounded(g, scale) * scale - g
  return (off * off):sum(3, true)
end

--- 4 bits of a weight (out, in), two in a byte, the first in the lower half, as 0 to 15 for -8 to 7, and the scales
-- (out, groups), of several the ones with the least squared error. They may be negative: -8 is then the largest value.
-- @return uint8 tensor (out, (in + 1) / 2), scale
M.int4_weight = signature("quantization.int4_weight(Tensor weight, count group=128)", function(w, group)
  if w:dim() ~= 2 then check.fail("[quantization.int4_weight] expected a matrix, got %s", tostring(w:size())) end
  return moth.no_grad(function()
    finite("quantization.int4_weight", w)
    w = w:detach():to(moth.float32)
    local n, k = w:size(1), w:size(2)
    local groups = math.ceil(k / group)
    local padded = groups * group == k and w or moth.pad(w, { 0, groups * group - k })
    local g = padded:reshape(n, groups, group)
    local size = g:abs():amax(3, true)
    local low, high = g:amin(3, true), g:amax(3, true)
    local extreme = moth.where(high:gt(-low), high, low) -- with its sign
    local function nonzero(s) return moth.where(s:abs():gt(1e-30), s, 1) end
    local best = nonzero(size / 7)
    local least = error_of(g, best)
    for _, try in ipairs { size / 7.5, size / 8, extreme / -8, extreme / -8.5, extreme / -9 } do
      local scale = nonzero(try)
      local e = error_of(g, scale)
      local better = e:lt(least)
      best, least = moth.where(better, scale, best), moth.where(better, e, least)
    end
    local q = (rounded(g, best) + 8):view(n, groups * group):narrow(2, 1, k)
    if k % 2 == 1 then q = moth.pad(q, { 0, 1 }, "constant", 8) end
    local pairs_of = q:reshape(n, q:size(2) / 2, 2)
    return (pairs_of:select(3, 1) + pairs_of:select(3, 2) * 16):to(moth.uint8), best:view(n, groups)
  end)
end)

--- The float weight (out, in) of int4_weight's results.
M.dequantize_int4 = signature("quantization.dequantize_int4(Tensor weight, Tensor scale, count group, size columns)",
  function(w, scale, group, columns)
    if w:dtype() ~= moth.uint8 or w:dim() ~= 2 or w:size(2) ~= math.ceil(columns / 2) then
      check.fail("[quantization.dequantize_int4] weight: expected bytes (uint8) of %d columns, got %s of %s",
        math.ceil(columns / 2), tostring(w:size()), w:dtype().name)
    end
    local both = w:to(scale:dtype())
    local high = (both / 16):floor()
    local q = moth.stack({ both - high * 16, high }, 3):view(w:size(1), -1):narrow(2, 1, columns) - 8
    return q * scale:repeat_interleave(group, 2):narrow(2, 1, columns)
  end)

return M
