--- Naive float64 references of convolution and pooling, as spec/ops/references.lua, which includes them.
local M = {}

local function numel(shape)
  local n = 1
  for _, s in ipairs(shape) do n = n * s end
  return n
end
local function new(shape, value)
  local data = {}
  for i = 1, numel(shape) do data[i] = value or 0 end
  return { shape = shape, data = data }
end
local function pair(v, default)
  if v == nil then return default, default end
  if type(v) == "number" then return v, v end
  return v[1], v[#v]
end

-- Images as (n, c, h, w), and a function that gives a result its number of dimensions back.
local function images(shape)
  local n = #shape
  local full = n == 4 and shape or { 1, shape[1], shape[2], shape[3] }
  return full, function(s) return n == 4 and s or { s[2], s[3], s[4] } end
end

-- Calls fn(position of the result, of the input, of the weight), all from 1, for every product of conv2d.
local function products(a, input, weight, fn)
  local x, unbatch = images(input)
  local n, c, h, w = x[1], x[2], x[3], x[4]
  local sy, sx = pair(a.stride, 1)
  local py, px = pair(a.padding, 0)
  local dy, dx = pair(a.dilation, 1)
  local k, cg, kh, kw, groups = weight[1], weight[2], weight[3], weight[4], a.groups
  local oh = math.floor((h + 2 * py - dy * (kh - 1) - 1) / sy) + 1
  local ow = math.floor((w + 2 * px - dx * (kw - 1) - 1) / sx) + 1
  local at = 0
  for i = 0, n - 1 do for o = 0, k - 1 do for y = 0, oh - 1 do for z = 0, ow - 1 do
    at = at + 1
    for j = 0, cg - 1 do for u = 0, kh - 1 do for v = 0, kw - 1 do
      local r, s = y * sy + u * dy - py, z * sx + v * dx - px
      if fn and r >= 0 and r < h and s >= 0 and s < w then
        local channel = math.floor(o / (k / groups)) * cg + j
        fn(at, ((i * c + channel) * h + r) * w + s + 1, ((o * cg + j) * kh + u) * kw + v + 1)
      end
    end end end
  end end end end
  return unbatch({ n, k, oh, ow })
end

function M.conv2d(a)
  local sum, x, w = {}, a.input.data, a.weight.data
  local shape = products(a, a.input.shape, a.weight.shape, function(o, i, k) sum[o] = (sum[o] or 0) + x[i] * w[k] end)
  local out = new(shape)
  local area = shape[#shape] * shape[#shape - 1]
  for i in ipairs(out.data) do
    local channel = math.floor((i - 1) / area) % a.weight.shape[1] + 1
    out.data[i] = (sum[i] or 0) + (a.bias and a.bias.data[channel] or 0)
  end
  return out
end
function M.conv2d_backward_input(a)
  local out, g, w = new(a.input_size), a.grad_output.data, a.weight.data
  products(a, a.input_size, a.weight.shape, function(o, i, k) out.data[i] = out.data[i] + g[o] * w[k] end)
  return out
end
function M.conv2d_backward_weight(a)
  local out, g, x = new(a.weight_size), a.grad_output.data, a.input.data
  products(a, a.input.shape, a.weight_size, function(o, i, k) out.data[k] = out.data[k] + g[o] * x[i] end)
  return out
end

-- one dimension as two
local function tall(t)
  local s = { unpack(t.shape) }
  table.insert(s, #s, 1)
  return { shape = s, data = t.data }
end
local function flat(t)
  local s = { unpack(t.shape) }
  table.remove(s, #s - 1)
  return { shape = s, data = t.data }
end
local function wide(v, fill) return v and { fill, (pair(v)) } end

function M.conv1d(a)
  return flat(M.conv2d { input = tall(a.input), weight = tall(a.weight), bias = a.bias, stride = wide(a.stride, 1),
    padding = wide(a.padding, 0), dilation = wide(a.dilation, 1), groups = a.groups })
end
-- Every input pixel adds its products into the result.
function M.conv_transpose2d(a)
  local x, w = images(a.input.shape), a.weight.shape
  local sy, sx = pair(a.stride, 1)
  local py, px = pair(a.padding, 0)
  local dy, dx = pair(a.dilation, 1)
  local ey, ex = pair(a.output_padding, 0)
  local size = { x[1], w[2] * a.groups, (x[3] - 1) * sy - 2 * py + dy * (w[3] - 1) + ey + 1,
    (x[4] - 1) * sx - 2 * px + dx * (w[4] - 1) + ex + 1 }
  local out = new(size)
  for n = 0, x[1] - 1 do for k = 0, x[2] - 1 do for j = 0, w[2] - 1 do
    local channel = math.floor(k / (x[2] / a.groups)) * w[2] + j
    for y = 0, x[3] - 1 do for z = 0, x[4] - 1 do for u = 0, w[3] - 1 do for v = 0, w[4] - 1 do
      local r, c = y * sy + u * dy - py, z * sx + v * dx - px
      if r >= 0 and r < size[3] and c >= 0 and c < size[4] then
        local at = ((n * size[2] + channel) * size[3] + r) * size[4] + c + 1
        out.data[at] = out.data[at] + a.input.data[((n * x[2] + k) * x[3] + y) * x[4] + z + 1]
          * a.weight.data[((k * w[2] + j) * w[3] + u) * w[4] + v + 1]
      end
    end end end end
  end end end
  for i in ipairs(out.data) do
    local channel = math.floor((i - 1) / (size[3] * size[4])) % size[2] + 1
    out.data[i] = out.data[i] + (a.bias and a.bias.data[channel] or 0)
  end
  if #a.input.shape == 3 then out.shape = { size[2], size[3], size[4] } end
  return out
end
function M.conv_transpose1d(a)
  return flat(M.conv_transpose2d { input = tall(a.input), weight = tall(a.weight), bias = a.bias,
    stride = wide(a.stride, 1), padding = wide(a.padding, 0), output_padding = wide(a.output_padding, 0),
    dilation = wide(a.dilation, 1), groups = a.groups })
end

-- Calls fn(position in the columns, in the image) for every element that lies in the image.
local function columns(a, image, fn)
  local kh, kw = pair(a.kernel_size)
  local x, unbatch = images(image)
  local c, rows = x[2], kh * kw
  local length
  local function each(channel)
    local shape = products({ stride = a.stride, padding = a.padding, dilation = a.dilation, groups = 1 },
      { x[1], 1, x[3], x[4] }, { 1, 1, kh, kw }, channel)
    length = shape[3] * shape[4]
  end
  each(nil)
  for j = 0, c - 1 do
    each(function(o, i, k)
      local n, l = math.floor((o - 1) / length), (o - 1) % length
      local plane = x[3] * x[4]
      local pixel = (i - 1) % plane
      fn(((n * c + j) * rows + k - 1) * length + l + 1, (n * c + j) * plane + pixel + 1)
    end)
  end
  local shape = unbatch({ x[1], c * rows, length, 1 })
  shape[#shape] = nil
  return shape
end
-- Rows that are sums of weighted rows, and what they give back.
local function resampled(a, x, rows, add)
  local n, inner, taps = x.shape[1], x.shape[3], a.places.shape[2]
  local out = new({ n, rows, inner })
  for e, place in ipairs(a.places.data) do
    local there, from = math.floor((e - 1) / taps), place - 1
    if add then there, from = from, there end
    for o = 0, n - 1 do
      for j = 1, inner do
        local i = (o * rows + there) * inner + j
        out.data[i] = out.data[i] + x.data[(o * x.shape[2] + from) * inner + j] * a.weights.data[e]
      end
    end
  end
  return out
end
function M.native_resample(a) return resampled(a, a.self, a.places.shape[1], false) end
function M.native_resample_backward(a) return resampled(a, a.grad_output, a.size, true) end

function M.im2col(a)
  local sum = {}
  local out = new(columns(a, a.self.shape, function(o, i) sum[o] = a.self.data[i] end))
  for i in ipairs(out.data) do out.data[i] = sum[i] or 0 end
  return out
end
function M.col2im(a)
  local kh, kw = pair(a.kernel_size)
  local h, w = pair(a.output_size)
  local s = a.self.shape
  local shape = #s == 3 and { s[1], s[2] / (kh * kw), h, w } or { s[1] / (kh * kw), h, w }
  local out = new(shape)
  columns(a, shape, function(o, i) out.data[i] = out.data[i] + a.self.data[o] end)
  return out
end

-- pooling -----------------------------------------------------------------------------------------

local function ceil_div(a, b) return math.ceil(a / b) end

-- Number of windows along one dimension, and the positions that window o (from 0) has, with its full width.
local function windows(size, k, s, p, d, ceil_mode)
  local n = (ceil_mode and math.ceil or math.floor)((size + 2 * p - d * (k - 1) - 1) / s) + 1
  if ceil_mode and (n - 1) * s >= size + p then n = n - 1 end
  return n, function(o)
    local list, count = {}, 0
    for t = 0, k - 1 do
      local at = o * s - p + t * d
      if at < size + p then count = count + 1 end
      if at >= 0 and at < size then list[#list + 1] = at end
    end
    return list, count
  end
end
local function adaptive(size, n)
  if n == -1 then n = size end
  return n, function(o)
    local list = {}
    for at = math.floor(o * size / n), ceil_div((o + 1) * size, n) - 1 do list[#list + 1] = at end
    return list, #list
  end
end

-- Calls fn(position of the result, list of positions of the input, padded count, position in the plane of each).
local function pool(a, input, fn)
  local x, unbatch = images(input)
  local h, w = x[3], x[4]
  local ny, at_y, nx, at_x
  if a.kernel_size then
    local ky, kx = pair(a.kernel_size)
    local sy, sx = ky, kx
    if a.stride then sy, sx = pair(a.stride) end
    local py, px = pair(a.padding, 0)
    local dy, dx = pair(a.dilation, 1)
    ny, at_y = windows(h, ky, sy, py, dy, a.ceil_mode)
    nx, at_x = windows(w, kx, sx, px, dx, a.ceil_mode)
  else
    local oy, ox = pair(a.output_size)
    ny, at_y = adaptive(h, oy)
    nx, at_x = adaptive(w, ox)
  end
  local o = 0
  for p = 0, x[1] * x[2] - 1 do for y = 0, ny - 1 do for z = 0, nx - 1 do
    o = o + 1
    local ys, cy = at_y(y)
    local xs, cx = at_x(z)
    local list = {}
    for _, r in ipairs(ys) do for _, s in ipairs(xs) do list[#list + 1] = p * h * w + r * w + s + 1 end end
    fn(o, list, cy * cx, p * h * w)
  end end end
  return unbatch({ x[1], x[2], ny, nx })
end

local function max_pool(a)
  local best, at = {}, {}
  local shape = pool(a, a.self.shape, function(o, list, _, plane)
    for _, i in ipairs(list) do
      local v = a.self.data[i]
      if not best[o] or v > best[o] then best[o], at[o] = v, i - plane end
    end
  end)
  return { shape = shape, data = best }, { shape = shape, data = at }
end
M.max_pool2d_with_indices, M.adaptive_max_pool2d_with_indices = max_pool, max_pool
M.max_pool2d = function(a) return (max_pool(a)) end
M.adaptive_max_pool2d = M.max_pool2d
function M.max_pool2d_backward(a)
  local out, s = new(a.input_size), a.input_size
  local plane = s[#s] * s[#s - 1]
  local g = a.grad_output
  local each = g.shape[#g.shape] * g.shape[#g.shape - 1]
  for i, v in ipairs(g.data) do
    local k = math.floor((i - 1) / each) * plane + a.indices.data[i]
    out.data[k] = out.data[k] + v
  end
  return out
end

local function divisor(a, list, padded)
  if a.divisor_override then return a.divisor_override end
  return (a.kernel_size and a.count_include_pad) and padded or #list
end
local function avg_pool(a)
  local mean = {}
  local shape = pool(a, a.self.shape, function(o, list, padded)
    local s = 0
    for _, i in ipairs(list) do s = s + a.self.data[i] end
    mean[o] = s / divisor(a, list, padded)
  end)
  return { shape = shape, data = mean }
end
M.avg_pool2d, M.adaptive_avg_pool2d = avg_pool, avg_pool
local function avg_pool_backward(a)
  local out, g = new(a.input_size), a.grad_output
  if not a.kernel_size then a.output_size = { g.shape[#g.shape - 1], g.shape[#g.shape] } end
  pool(a, a.input_size, function(o, list, padded)
    for _, i in ipairs(list) do out.data[i] = out.data[i] + g.data[o] / divisor(a, list, padded) end
  end)
  return out
end
M.avg_pool2d_backward, M.adaptive_avg_pool2d_backward = avg_pool_backward, avg_pool_backward

local function in_one_dimension(fn)
  return function(a)
    local b = { self = tall(a.self), kernel_size = wide(a.kernel_size, 1), stride = wide(a.stride, 1),
      padding = wide(a.padding, 0), dilation = wide(a.dilation, 1), ceil_mode = a.ceil_mode,
      count_include_pad = a.count_include_pad, output_size = wide(a.output_size, 1) }
    local x, y = fn(b)
    if not y then return flat(x) end
    return flat(x), flat(y)
  end
end
M.max_pool1d_with_indices, M.max_pool1d = in_one_dimension(max_pool), in_one_dimension(M.max_pool2d)
M.avg_pool1d, M.adaptive_avg_pool1d = in_one_dimension(avg_pool), in_one_dimension(avg_pool)

-- ---- three dimensions ------------------------------------------------------------------------------

local function triple(v, default)
  if v == nil then return { default, default, default } end
  if type(v) == "number" then return { v, v, v } end
  return #v == 1 and { v[1], v[1], v[1] } or v
end
local function volumes(shape)
  if #shape == 5 then return shape, function(s) return s end end
  return { 1, unpack(shape) }, function(s) return { unpack(s, 2) } end
end
-- Calls fn(i, j, k) for all positions of a box of three sizes, from 0.
local function box(size, fn)
  for i = 0, size[1] - 1 do for j = 0, size[2] - 1 do for k = 0, size[3] - 1 do fn(i, j, k) end end end
end

-- fn(from, to, weight) for each product, `from` in the tensor that the windows go over.
local function products3(a, x, k, out, fn)
  local s, p, d = triple(a.stride, 1), triple(a.padding, 0), triple(a.dilation, 1)
  local cg, kg = x[2] / a.groups, k / a.groups
  local o, w = out, a.weight.shape
  for n = 0, x[1] - 1 do for j = 0, k - 1 do for c = 0, cg - 1 do
    local channel = math.floor(j / kg) * cg + c
    box({ o[3], o[4], o[5] }, function(oz, oy, ox)
      box({ w[3], w[4], w[5] }, function(kz, ky, kx)
        local z, y, v = oz * s[1] + kz * d[1] - p[1], oy * s[2] + ky * d[2] - p[2], ox * s[3] + kx * d[3] - p[3]
        if z < 0 or y < 0 or v < 0 or z >= x[3] or y >= x[4] or v >= x[5] then return end
        local tap = (kz * w[4] + ky) * w[5] + kx
        local at = j * cg + c
        fn((((n * x[2] + channel) * x[3] + z) * x[4] + y) * x[5] + v + 1,
          (((n * k + j) * o[3] + oz) * o[4] + oy) * o[5] + ox + 1, at * w[3] * w[4] * w[5] + tap + 1)
      end)
    end)
  end end end
end
local function biased(out, bias)
  local area = out.shape[3] * out.shape[4] * out.shape[5]
  for i, v in ipairs(out.data) do
    out.data[i] = v + (bias and bias.data[math.floor((i - 1) / area) % out.shape[2] + 1] or 0)
  end
end
function M.conv3d(a)
  local x, unbatch = volumes(a.input.shape)
  local s, p, d, w = triple(a.stride, 1), triple(a.padding, 0), triple(a.dilation, 1), a.weight.shape
  local size = { x[1], w[1] }
  for i = 1, 3 do size[i + 2] = math.floor((x[i + 2] + 2 * p[i] - d[i] * (w[i + 2] - 1) - 1) / s[i]) + 1 end
  local out = new(size)
  products3(a, x, w[1], size, function(i, o, k)
    out.data[o] = out.data[o] + a.input.data[i] * a.weight.data[k]
  end)
  biased(out, a.bias)
  out.shape = unbatch(size)
  return out
end
function M.conv_transpose3d(a)
  local x, unbatch = volumes(a.input.shape)
  local s, p, d, w = triple(a.stride, 1), triple(a.padding, 0), triple(a.dilation, 1), a.weight.shape
  local e = triple(a.output_padding, 0)
  local size = { x[1], w[2] * a.groups }
  for i = 1, 3 do size[i + 2] = (x[i + 2] - 1) * s[i] - 2 * p[i] + d[i] * (w[i + 2] - 1) + e[i] + 1 end
  local out = new(size)
  products3(a, size, x[2], x, function(o, i, k)
    out.data[o] = out.data[o] + a.input.data[i] * a.weight.data[k]
  end)
  biased(out, a.bias)
  out.shape = unbatch(size)
  return out
end

-- Calls fn(position of the result, positions of self, size of the window with its padding, start of the volume).
local function pool3(a, fn)
  local x, unbatch = volumes(a.self.shape)
  local counts, ats = {}, {}
  for i = 1, 3 do
    if a.kernel_size then
      local k = triple(a.kernel_size)
      counts[i], ats[i] = windows(x[i + 2], k[i], (a.stride and triple(a.stride) or k)[i], triple(a.padding, 0)[i],
        triple(a.dilation, 1)[i], a.ceil_mode)
    else
      counts[i], ats[i] = adaptive(x[i + 2], triple(a.output_size)[i])
    end
  end
  local o, volume = 0, x[3] * x[4] * x[5]
  for p = 0, x[1] * x[2] - 1 do
    box(counts, function(i, j, k)
      o = o + 1
      local zs, cz = ats[1](i)
      local ys, cy = ats[2](j)
      local xs, cx = ats[3](k)
      local list = {}
      for _, z in ipairs(zs) do for _, y in ipairs(ys) do for _, v in ipairs(xs) do
        list[#list + 1] = p * volume + (z * x[4] + y) * x[5] + v + 1
      end end end
      fn(o, list, cz * cy * cx, p * volume)
    end)
  end
  return unbatch({ x[1], x[2], unpack(counts) })
end
local function max_pool3(a)
  local best, at = {}, {}
  local shape = pool3(a, function(o, list, _, start)
    for _, i in ipairs(list) do
      local v = a.self.data[i]
      if not best[o] or v > best[o] then best[o], at[o] = v, i - start end
    end
  end)
  return { shape = shape, data = best }, { shape = shape, data = at }
end
local function avg_pool3(a)
  local mean = {}
  local shape = pool3(a, function(o, list, padded)
    local s = 0
    for _, i in ipairs(list) do s = s + a.self.data[i] end
    mean[o] = s / divisor(a, list, padded)
  end)
  return { shape = shape, data = mean }
end
M.max_pool3d_with_indices, M.adaptive_max_pool3d_with_indices = max_pool3, max_pool3
M.max_pool3d = function(a) return (max_pool3(a)) end
M.adaptive_max_pool3d, M.avg_pool3d, M.adaptive_avg_pool3d = M.max_pool3d, avg_pool3, avg_pool3

return M
