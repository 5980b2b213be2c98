--- ONNX's operators over windows: convolutions, pools, and their inverses.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local bytes = require "moth.onnx.bytes"
local rule = import.rule
local Call = import.Call

local function repeated(v, n)
  local list = {}
  for i = 1, n do list[i] = v end
  return list
end

-- The windows of a call on x: { n, kernel, strides, dilations, before, after (padding), out (how many windows) }.
function Call:windows(x, kernel)
  local n = x:dim() - 2
  if n < 1 then self:fail("an input of at least 3 dimensions is expected, got %d", x:dim()) end
  kernel = kernel or self.kernel_shape or self:fail("it has no kernel_shape")
  if #kernel ~= n then self:fail("a kernel of %d dimensions for an input of %d", #kernel, n) end
  local w = { n = n, kernel = kernel, strides = self.strides or repeated(1, n),
    dilations = self.dilations or repeated(1, n), before = {}, after = {}, out = {}, wide = {} }
  for i = 1, n do
    local size, stride = x:size(i + 2), w.strides[i]
    local wide = (kernel[i] - 1) * w.dilations[i] + 1
    if not (kernel[i] >= 1 and stride >= 1 and w.dilations[i] >= 1) then
      self:fail("kernels, strides and dilations are at least 1")
    end
    w.wide[i] = wide
    local before, after = self.pads and self.pads[i] or 0, self.pads and self.pads[i + n] or 0
    if self.auto_pad == "SAME_UPPER" or self.auto_pad == "SAME_LOWER" then
      local total = math.max((math.ceil(size / stride) - 1) * stride + wide - size, 0)
      before = math.floor(total / 2)
      if self.auto_pad == "SAME_LOWER" then before = total - before end
      after = total - before
    elseif self.auto_pad == "VALID" then
      before, after = 0, 0
    end
    w.before[i], w.after[i] = before, after
    local steps = (size + before + after - wide) / stride
    local count = (self.ceil_mode == 1 and math.ceil(steps) or math.floor(steps)) + 1
    -- A last window that would begin in the padding behind is none.
    if self.ceil_mode == 1 and (count - 1) * stride >= size + before then count = count - 1 end
    w.out[i] = count
    if count < 1 and size > 0 then self:fail("the windows are larger than the input of size %s", tostring(x:size())) end
  end
  return w
end

local function symmetric(w)
  for i = 1, w.n do
    if w.before[i] ~= w.after[i] then return false end
  end
  return true
end

-- x with its padding; more: what is added behind so that all windows are whole.
local function padded(x, w, value, more)
  local flat, any = {}, false
  for i = w.n, 1, -1 do
    local extra = more and math.max((w.out[i] - 1) * w.strides[i] + w.wide[i] - x:size(i + 2) - w.before[i]
      - w.after[i], 0) or 0
    flat[#flat + 1], flat[#flat + 2] = w.before[i], w.after[i] + extra
    any = any or w.before[i] ~= 0 or w.after[i] + extra ~= 0
  end
  return any and B.ops.pad(x, flat, "constant", value) or x
end

local modes = { "conv1d", "conv2d", "conv3d" }
local transposed = { "conv_transpose1d", "conv_transpose2d", "conv_transpose3d" }

local function weight_kernel(weight)
  local list = {}
  for i = 3, weight:dim() do list[i - 2] = weight:size(i) end
  return list
end

-- fn: in place of moth's convolution; zero: what stands for 0 in x.
function Call:convolution(x, weight, bias, fn, zero)
  local w = self:windows(x, weight_kernel(weight))
  fn = fn or B.ops[modes[w.n] or self:fail("a convolution of %d dimensions", w.n)]
  local padding = w.before
  if not symmetric(w) then x, padding = padded(x, w, zero or 0), repeated(0, w.n) end
  return fn(x, weight, bias, w.strides, padding, w.dilations, self.group or 1)
end

local WINDOW = "auto_pad='NOTSET' kernel_shape strides pads dilations "

rule("Conv", WINDOW .. "group=1", function(c, x, weight, bias)
  return bytes.windows(c, x, weight, bias) or c:convolution(x, weight, bias)
end)

rule("ConvTranspose", WINDOW .. "group=1 output_padding output_shape", function(c, x, weight, bias)
  local n = x:dim() - 2
  local fn = B.ops[transposed[n] or c:fail("a convolution of %d dimensions", n)]
  local strides, dilations = c.strides or repeated(1, n), c.dilations or repeated(1, n)
  local more = c.output_padding or repeated(0, n)
  local before, size, zeros = {}, {}, repeated(0, n)
  local plain = true
  for i = 1, n do
    local wide = (weight:size(i + 2) - 1) * dilations[i] + 1
    local whole = strides[i] * (x:size(i + 2) - 1) + more[i] + wide
    local same = c.auto_pad == "SAME_UPPER" or c.auto_pad == "SAME_LOWER"
    local want = c.output_shape and c.output_shape[#c.output_shape - n + i] or same and x:size(i + 2) * strides[i]
    if want then
      local total = math.max(whole - want, 0)
      before[i] = c.auto_pad == "SAME_UPPER" and math.floor(total / 2) or total - math.floor(total / 2)
      if c.pads then before[i] = c.pads[i] end
      size[i], plain = want, false
    else
      local a, b = c.pads and c.pads[i] or 0, c.pads and c.pads[i + n] or 0
      before[i], size[i] = a, whole - a - b
      plain = plain and a == b and more[i] < math.max(strides[i], dilations[i])
    end
  end
  if plain then return fn(x, weight, bias, strides, before, more, c.group, dilations) end
  local y = fn(x, weight, nil, strides, zeros, zeros, c.group, dilations)
  local flat = {}
  for i = n, 1, -1 do flat[#flat + 1], flat[#flat + 2] = 0, math.max(before[i] + size[i] - y:size(i + 2), 0) end
  y = B.ops.pad(y, flat)
  for i = 1, n do y = y:narrow(i + 2, before[i] + 1, size[i]) end
  if bias then
    local shape = repeated(1, n + 2)
    shape[2] = bias:numel()
    y = y + bias:reshape(shape)
  end
  return y
end)

-- ---- pools ---------------------------------------------------------------------------------------

-- The windows' elements joined, a dimension at a time: of any padding, dilation and number of dimensions.
local function joined(x, w, join)
  for i = 1, w.n do
    local d, out = i + 2, nil
    for k = 0, w.kernel[i] - 1 do
      local first = k * w.dilations[i]
      local part = x:slice(d, first, first + (w.out[i] - 1) * w.strides[i] + 1, w.strides[i])
      out = out and join(out, part) or part
    end
    x = out
  end
  return x
end

local function plus(a, b) return a + b end

local lowest = { uint8 = 0, int8 = -128, int16 = -32768, int32 = -2147483648 }

-- The largest elements and where they were in x, counted from 0.
local function max_with_places(c, x, w)
  local n, spatial = w.n, {}
  for i = 1, n do spatial[i] = x:size(i + 2) end
  local plane = 1
  for i = 1, n do plane = plane * spatial[i] end
  local turned, dims = {}, {}
  for i = 1, n do turned[i], dims[i] = spatial[n + 1 - i], n + 1 - i end
  local at = moth.arange(0, plane, { dtype = moth.int64, device = x:device() })
  at = c.storage_order == 1 and at:reshape(turned):permute(dims) or at:reshape(spatial)
  local whole = { 1, 1, unpack(spatial) }
  local values, places = { padded(x, w, -math.huge, true) }, { padded(at:reshape(whole), w, 0, true) }
  for i = 1, n do
    local function cut(list)
      local out = {}
      for _, t in ipairs(list) do
        for k = 0, w.kernel[i] - 1 do
          local first = k * w.dilations[i]
          out[#out + 1] = t:slice(i + 2, first, first + (w.out[i] - 1) * w.strides[i] + 1, w.strides[i])
        end
      end
      return out
    end
    values, places = cut(values), cut(places)
  end
  local top, of = moth.stack(values, 1):max(1)
  places = moth.stack(places, 1):expand { #values, x:size(1), x:size(2), unpack(w.out) }
  local offset = moth.arange(0, x:size(1) * x:size(2), { dtype = moth.int64, device = x:device() })
  local ones = { x:size(1), x:size(2), unpack(repeated(1, n)) }
  return top, places:gather(1, of:unsqueeze(1)):squeeze(1) + offset:reshape(ones) * plane
end

local pools = { "max_pool1d", "max_pool2d", "max_pool3d" }

rule("MaxPool", WINDOW .. "ceil_mode=0 storage_order=0", function(c, x)
  local w = c:windows(x)
  if c.count > 1 then return max_with_places(c, x, w) end
  local plain = symmetric(w) and pools[w.n] ~= nil and x:is_floating_point()
  for i = 1, w.n do plain = plain and w.before[i] <= w.kernel[i] / 2 end
  if plain then return B.ops[pools[w.n]](x, w.kernel, w.strides, w.before, w.dilations, c.ceil_mode == 1) end
  local low = x:is_floating_point() and -math.huge or lowest[x:dtype().name] or c:fail("of %s", x:dtype().name)
  return joined(padded(x, w, low, true), w, function(a, b) return moth.maximum(a, b) end)
end, { index = 2 })

-- How many elements of each window count.
local function counts(c, x, w)
  local shape = { 1, 1 }
  for i = 1, w.n do
    shape[i + 2] = x:size(i + 2) + (c.count_include_pad == 1 and w.before[i] + w.after[i] or 0)
  end
  local ones = moth.ones(shape, { dtype = x:dtype(), device = x:device() })
  if c.count_include_pad == 1 then
    local none = setmetatable({ before = repeated(0, w.n), after = repeated(0, w.n) }, { __index = w })
    return joined(padded(ones, none, 0, true), w, plus)
  end
  return joined(padded(ones, w, 0, true), w, plus)
end

local averages = { "avg_pool1d", "avg_pool2d", "avg_pool3d" }

rule("AveragePool", WINDOW .. "ceil_mode=0 count_include_pad=0", function(c, x)
  local w = c:windows(x)
  local plain = symmetric(w) and averages[w.n] ~= nil
  for i = 1, w.n do plain = plain and w.before[i] <= w.kernel[i] / 2 and w.dilations[i] == 1 end
  if plain then
    return B.ops[averages[w.n]](x, w.kernel, w.strides, w.before, c.ceil_mode == 1, c.count_include_pad == 1)
  end
  return joined(padded(x, w, 0, true), w, plus) / counts(c, x, w)
end)

rule("LpPool", WINDOW .. "ceil_mode=0 p=2", function(c, x)
  local w = c:windows(x)
  return joined(padded(x:abs():pow(c.p), w, 0, true), w, plus):pow(1 / c.p)
end)

local function over_space(x)
  local dims = {}
  for i = 3, x:dim() do dims[#dims + 1] = i end
  return dims
end
rule("GlobalAveragePool", function(_, x) return x:mean(over_space(x), true) end)
rule("GlobalMaxPool", function(_, x) return x:amax(over_space(x), true) end)
rule("GlobalLpPool", "p=2", function(c, x) return x:abs():pow(c.p):sum(over_space(x), true):pow(1 / c.p) end)

rule("MaxUnpool", "kernel_shape strides pads", function(c, x, index, shape)
  local n = x:dim() - 2
  local strides, pads = c.strides or repeated(1, n), c.pads or repeated(0, 2 * n)
  local size = { x:size(1), x:size(2) }
  local plane = 1
  for i = 1, n do
    size[i + 2] = (x:size(i + 2) - 1) * strides[i] - pads[i] - pads[i + n] + c.kernel_shape[i]
  end
  for _, d in ipairs(size) do plane = plane * d end
  local flat = moth.zeros({ plane }, { dtype = x:dtype(), device = x:device() })
  local y = flat:scatter(1, index:reshape { -1 } + 1, x:reshape { -1 }):reshape(size)
  if not shape then return y end
  local want, more = c:list(shape), {}
  for i = #want, 3, -1 do more[#more + 1], more[#more + 2] = 0, want[i] - size[i] end
  return B.ops.pad(y, more)
end, { numbers = 3 })

-- ---- columns -------------------------------------------------------------------------------------

rule("Col2Im", "dilations pads strides", function(c, x, image, block)
  local size, kernel = c:list(image), c:list(block)
  local n, count = #size, 1
  local strides, dilations = c.strides or repeated(1, n), c.dilations or repeated(1, n)
  local pads, wide, cells = c.pads or repeated(0, 2 * n), {}, 1
  local at -- of each element of each column among those of the padded image
  for i = 1, n do
    count = count * kernel[i]
    wide[i] = size[i] + pads[i] + pads[i + n]
    cells = cells * wide[i]
  end
  local like = { dtype = moth.int64, device = x:device() }
  for i = 1, n do
    local blocks = math.floor((wide[i] - dilations[i] * (kernel[i] - 1) - 1) / strides[i]) + 1
    local shape_k, shape_b = repeated(1, 2 * n), repeated(1, 2 * n)
    shape_k[i], shape_b[n + i] = kernel[i], blocks
    local place = (moth.arange(0, kernel[i], like) * dilations[i]):reshape(shape_k)
      + (moth.arange(0, blocks, like) * strides[i]):reshape(shape_b)
    at = at and at * wide[i] + place or place
  end
  local channels = x:size(2) / count
  local values = x:reshape { x:size(1), channels, -1 }
  at = (at:reshape { 1, 1, -1 } + 1):expand(values:size())
  local y = moth.zeros({ x:size(1), channels, cells }, { dtype = x:dtype(), device = x:device() })
    :scatter_add(3, at, values):reshape { x:size(1), channels, unpack(wide) }
  for i = 1, n do y = y:narrow(i + 2, pads[i] + 1, size[i]) end
  return y
end, { numbers = 23 })

rule("DeformConv", "dilations group=1 kernel_shape offset_group=1 pads strides",
  function(c, x, weight, offset, bias, mask)
    if x:dim() ~= 4 then c:fail("of %d dimensions", x:dim()) end
    local w = c:windows(x, weight_kernel(weight))
    local groups, kh, kw = c.offset_group, w.kernel[1], w.kernel[2]
    local n, channels, height, width = unpack(x:size())
    local oh, ow = offset:size(3), offset:size(4)
    local like = { dtype = x:dtype(), device = x:device() }
    local images = x:reshape { n * groups, channels / groups, height, width }
    local off = offset:reshape { n * groups, kh * kw, 2, oh, ow }
    local rows = (moth.arange(0, oh, like) * w.strides[1] - w.before[1]):reshape { 1, oh, 1 }
    local columns = (moth.arange(0, ow, like) * w.strides[2] - w.before[2]):reshape { 1, 1, ow }
    local weights = mask and mask:reshape { n * groups, kh * kw, oh, ow }
    local parts = {}
    for k = 0, kh * kw - 1 do
      local part = off:select(2, k + 1)
      local y = part:select(2, 1) + rows + math.floor(k / kw) * w.dilations[1]
      local at = part:select(2, 2) + columns + k % kw * w.dilations[2]
      local grid = moth.stack({ at / math.max(width - 1, 1) * 2 - 1, y / math.max(height - 1, 1) * 2 - 1 }, 4)
      local sample = moth.nn.functional.grid_sample(images, grid, { align_corners = true })
      if weights then sample = sample * weights:select(2, k + 1):unsqueeze(2) end
      parts[k + 1] = sample:reshape { n, channels, oh, ow }
    end
    local columns_of = moth.stack(parts, 3):reshape { n, c.group, channels / c.group * kh * kw, oh * ow }
    local y = weight:reshape { 1, c.group, weight:size(1) / c.group, -1 }:matmul(columns_of)
    y = y:reshape { n, weight:size(1), oh, ow }
    return bias and y + bias:reshape { 1, -1, 1, 1 } or y
  end)
