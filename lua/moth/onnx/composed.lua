--- What ops are made of where ONNX has no operator for them, in other ops: functions of an op's arguments, by its name.
-- Those whose rule (src/ops/onnx.lua) says `composed` are recorded so before a file is written. They compute what the
-- kernels do, at other costs: a running maximum compares all pairs, a factorization is a loop over columns.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local ops = B.ops

local M = {}

local function refuse(op, why) check.fail("[onnx.export] %s: %s", op, why) end

-- ---- positions -----------------------------------------------------------------------------------

-- A row-major vector of the memory behind x, if x shows all of it once.
local function memory_of(op, x)
  local order, strides = {}, x:stride()
  for i = 1, x:dim() do order[i] = i end
  table.sort(order, function(a, b)
    if strides[a] ~= strides[b] then return strides[a] > strides[b] end
    return a < b
  end)
  local whole = x:dim() > 0 and x:permute(order) or x
  if not whole:is_contiguous() or x:storage_offset() ~= 0 then
    refuse(op, "it reads memory that its argument does not show\nHINT: call :contiguous() before")
  end
  return whole:reshape({ -1 })
end

-- The places in memory, from 1, that a size, strides and an offset name: a vector.
local function places_of(size, stride, offset)
  local at = moth.full({ 1 }, 1 + offset, { dtype = moth.int64 })
  for i, n in ipairs(size) do
    at = (at:unsqueeze(-1) + moth.arange(n) * stride[i]):reshape({ -1 })
  end
  return at
end

function M.linspace(start, stop, steps, dtype)
  if steps == 1 then return moth.full({ 1 }, start, { dtype = dtype or moth.get_default_dtype() }) end
  local i = moth.arange(0, steps, 1, { dtype = dtype or moth.get_default_dtype() })
  local step = (stop - start) / (steps - 1)
  return moth.where(i:lt(math.floor(steps / 2)), i * step + start, (i - (steps - 1)) * step + stop)
end

-- Each element of x joined with all before it along a dimension: with the one before, two, four, … places before.
local function scan(x, dim, join)
  local flat = x:dim() == 0 and x:reshape { 1 } or x
  local n = flat:size(dim)
  local shape = {}
  for i = 1, flat:dim() do shape[i] = i == dim and n or 1 end
  local _, y = moth.while_loop(function(step) return step:lt(n) end, function(step, v)
    local at = moth.arange(n) - step
    local before = v:index_select(dim, at:clamp(0) + 1)
    return step * 2, moth.where(at:ge(0):reshape(shape), join(v, before), v)
  end, { moth.full({}, 1, { dtype = moth.int64 }), flat })
  return y:reshape(x:size())
end

function M.native_cumprod(self, dim)
  return scan(self:dtype().is_floating_point and self or self:to(moth.int64), dim, moth.mul)
end

function M.logcumsumexp(self, dim) return scan(self, dim, moth.logaddexp) end

function M.native_pdist(self, p)
  local n = self:size(1)
  local k = moth.arange(n * (n - 1) / 2, { dtype = moth.float64 }) -- the pairs (i, j), i < j, row by row
  local function first(i) return i * (2 * n - 1 - i) / 2 end
  local i = ((2 * n - 1 - ((2 * n - 1) ^ 2 - k * 8):sqrt()) / 2):floor()
  i = moth.where(first(i):gt(k), i - 1, i) -- the root is rounded
  i = moth.where(first(i + 1):le(k), i + 1, i)
  local j = k - first(i) + i + 1
  return (self:index_select(1, (i + 1):long()) - self:index_select(1, (j + 1):long())):norm(p or 2, 2)
end

function M.native_smooth_l1(self, target, beta, scale)
  local d = (self - target):abs()
  if beta == 0 then return d * scale end
  local c = d:clamp { max = beta }
  return c * (scale / beta) * (d - c * 0.5)
end

function M.as_strided(self, size, stride, offset)
  local flat = memory_of("as_strided", self)
  return flat:index_select(1, places_of(size, stride, offset or 0)):reshape(size)
end

function M.as_strided_scatter(self, src, size, stride, offset)
  local at = places_of(size, stride, offset or 0)
  local source = src:expand(size):reshape({ -1 })
  return self:reshape({ -1 }):scatter(1, at, source):reshape(self:size())
end

function M.masked_scatter(self, mask, source)
  local wide = ops.add(self, ops.mul(mask:to(self:dtype()), 0))
  local on = mask:expand(wide:size()):reshape({ -1 })
  local at = on:to(moth.int64):cumsum(1):clamp { min = 1 }
  local given = source:reshape({ -1 }):index_select(1, at)
  return moth.where(on, given, wide:reshape({ -1 })):reshape(wide:size())
end

function M.diagonal_scatter(self, src, offset, dim1, dim2)
  local n, m = self:size(dim1 or 1), self:size(dim2 or 2)
  local perm, back = {}, {}
  for i = 1, self:dim() do
    if i ~= (dim1 or 1) and i ~= (dim2 or 2) then perm[#perm + 1] = i end
  end
  perm[#perm + 1], perm[#perm + 2] = dim1 or 1, dim2 or 2
  for i, d in ipairs(perm) do back[d] = i end
  offset = offset or 0
  local x = self:permute(perm)
  local rows, columns = moth.arange(n):unsqueeze(-1), moth.arange(m)
  local values = moth.full({ n, m }, 0, { dtype = self:dtype() }) + self:new_zeros(x:size())
  local front = math.max(-offset, 0)
  local spread = src:unsqueeze(-1) -- a row for each element of the diagonal
  local count = src:size(-1)
  local before = { 0, 0, front, n - front - count }
  values = values + ops.pad(spread, before)
  return moth.where((columns - rows):eq(offset), values, x):permute(back)
end

-- ---- scans and windows ---------------------------------------------------------------------------

local function running(self, dim, reduce)
  local n = self:size(dim)
  if self:numel() == 0 then return self * 1 end
  local x = self:movedim(dim, -1)
  local seen = moth.arange(n):le(moth.arange(n):unsqueeze(-1)) -- [i, k]: k is not behind i
  local each = moth.where(seen, x:unsqueeze(-2), x:unsqueeze(-1))
  local best = reduce(each, { -1 }):movedim(-1, dim)
  if not self:is_floating_point() then return best end
  return moth.where(self:isnan():to(moth.int32):cumsum(dim):gt(0), 0 / 0, best) -- readers' maxima may pass over NaN
end
function M.native_running_max(self, dim) return running(self, dim, ops.amax) end
function M.native_running_min(self, dim) return running(self, dim, ops.amin) end

-- A transposed convolution, by 1 at each place of the kernel.
function M.col2im(self, size, kernel, dilation, padding, stride)
  local function pair(v, default)
    v = v or default
    if type(v) == "number" then return { v, v } end
    return { v[1], v[2] or v[1] }
  end
  size, kernel, dilation, padding, stride = pair(size), pair(kernel), pair(dilation, 1), pair(padding, 0),
    pair(stride, 1)
  local x = self:dim() == 2 and self:unsqueeze(1) or self
  local places, blocks, rest = kernel[1] * kernel[2], {}, {}
  for i = 1, 2 do
    local span = size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
    blocks[i], rest[i] = math.floor(span / stride[i]) + 1, span % stride[i]
  end
  local channels = x:size(2) / places
  local weight = moth.eye(places, { dtype = x:dtype() }):view(places, 1, kernel[1], kernel[2])
  local images = x:reshape({ x:size(1) * channels, places, blocks[1], blocks[2] })
  local wide = ops.conv_transpose2d(images, weight, nil, stride, 0, rest, 1, dilation)
  local y = wide:narrow(-2, 1 + padding[1], size[1]):narrow(-1, 1 + padding[2], size[2])
  y = y:reshape({ x:size(1), channels, size[1], size[2] })
  return self:dim() == 2 and y:squeeze(1) or y
end

-- Pads at the end what ceil_mode's last windows read.
function M.avg_pool2d(self, kernel, stride, padding, ceil_mode, _, divisor)
  local function pair(v) return type(v) == "number" and { v, v } or { v[1], v[2] or v[1] } end
  kernel, padding = pair(kernel), pair(padding or 0)
  stride = stride and (type(stride) == "number" or #stride > 0) and pair(stride) or kernel
  local more = { 0, 0 }
  for i = 1, 2 do
    local span = self:size(i - 3) + 2 * padding[i] - kernel[i]
    if ceil_mode and span % stride[i] > 0 then
      local last = math.ceil(span / stride[i]) * stride[i]
      if last < self:size(i - 3) + padding[i] then more[i] = last - span end
    end
  end
  local wide = ops.pad(self, { padding[2], padding[2] + more[2], padding[1], padding[1] + more[1] })
  return ops.avg_pool2d(wide, kernel, stride, 0) * (kernel[1] * kernel[2] / divisor)
end

function M.adaptive_max_pool2d_with_indices(self, size)
  if type(size) == "number" then size = { size, size } end
  local h, w = self:size(-2), self:size(-1)
  local rows, columns = size[1] == -1 and h or size[1], (size[2] or size[1]) == -1 and w or size[2] or size[1]
  local function within(n, count)
    local k, at = moth.arange(count):unsqueeze(-1), moth.arange(n)
    local from = (k * n):floor_divide(count)
    local stop = ((k + 1) * n + count - 1):floor_divide(count)
    return at:ge(from):logical_and(at:lt(stop))
  end
  local inside = within(h, rows):view(rows, 1, h, 1):logical_and(within(w, columns):view(1, columns, 1, w))
  local lead = {}
  for i = 1, self:dim() - 2 do lead[i] = self:size(i) end
  local flat = { unpack(lead) }
  flat[#flat + 1], flat[#flat + 2] = 1, h * w
  local x = moth.where(inside:view(rows * columns, h * w), self:reshape(flat), -math.huge)
  lead[#lead + 1], lead[#lead + 2] = rows, columns
  return x:amax({ -1 }):reshape(lead), x:argmax(-1):reshape(lead)
end

-- ---- quantised values ----------------------------------------------------------------------------

function M.fake_quantize(self, scale, zero, low, high)
  local q = (self * (1 / scale)):round() + zero
  return (q:clamp(low, high) - zero) * scale
end

-- ---- sums ----------------------------------------------------------------------------------------

local function extreme(self, dim, index, src, largest, include)
  local n = self:size(dim)
  -- [..., place, source]: dim last of both
  local x = self:movedim(dim, -1)
  local given, at = src:narrow(1, 1, src:size(1)), index
  for d = 1, src:dim() do given = given:narrow(d, 1, index:size(d)) end
  given, at = given:movedim(dim, -1), at:movedim(dim, -1)
  local hit = at:unsqueeze(-2):eq(moth.arange(1, n + 1):unsqueeze(-1))
  local none = largest and -math.huge or math.huge
  local all = moth.where(hit, given:unsqueeze(-2), none)
  local best = largest and all:amax({ -1 }) or all:amin({ -1 })
  local touched = hit:any({ -1 })
  for d = 1, x:dim() - 1 do -- the index may cover a part of the other dimensions
    local more = x:size(d) - best:size(d)
    if more > 0 then
      local pads = {}
      for i = 1, 2 * x:dim() do pads[i] = 0 end
      pads[2 * (x:dim() - d) + 2] = more
      best = ops.pad(best, pads)
      touched = ops.pad(touched:to(moth.int32), pads):ne(0)
    end
  end
  if include then best = largest and moth.maximum(best, x) or moth.minimum(best, x) end
  return moth.where(touched, best, x):movedim(-1, dim)
end
M.native_scatter_extreme = extreme

function M.native_bag_max(weight, index, starts)
  local n, bags = index:size(1), starts:size(1)
  local ends = moth.cat { starts:narrow(1, 2, bags - 1), moth.full({ 1 }, n + 1, { dtype = starts:dtype() }) }
  local i = moth.arange(1, n + 1)
  local inside = i:ge(starts:unsqueeze(2)):logical_and(i:lt(ends:unsqueeze(2))) -- (bags, n)
  local rows = weight:index_select(1, index):unsqueeze(1)
  local best, at = moth.where(inside:unsqueeze(3), rows, -math.huge):max(2)
  local some = inside:any({ 2 }, true)
  return moth.where(some, best, 0), moth.where(some, index:index_select(1, at:reshape({ -1 })):reshape(at:size()), 1)
end

require "moth.onnx.composed_linalg"(M)
require "moth.onnx.composed_special"(M)
return M
