--- ONNX's reductions.
local moth = require "moth"
local import = require "moth.onnx.import"
local rule = import.rule

-- The dimensions: of an input from opset 13 or 18 on, of an attribute before; none are all, or none at all.
local function dims_of(c, x, axes)
  local list = c:ints(axes) or c.axes
  if list == nil or #list == 0 then
    if c.noop_with_empty_axes == 1 then return nil end
    list = {}
    for i = 1, x:dim() do list[i] = i - 1 end
  end
  local dims = {}
  for i, a in ipairs(list) do dims[i] = c:dim(a, x) end
  return dims
end

local function reduction(name, fn, before)
  rule("Reduce" .. name, "axes keepdims=1 noop_with_empty_axes=0", function(c, x, axes)
    local dims = dims_of(c, x, axes)
    if not dims then return before and before(x) or x end
    if #dims == 0 then return before and before(x) or x end
    return fn(x, dims, c.keepdims ~= 0):to(x:dtype())
  end, { numbers = 2 })
end

local function square(x) return x * x end
local function sum(x, dims, keep) return x:sum(dims, keep) end

reduction("Sum", sum)
reduction("Mean", function(x, dims, keep)
  if not x:is_floating_point() then return x:to(moth.float64):mean(dims, keep):trunc() end
  return x:mean(dims, keep)
end)
reduction("Prod", function(x, dims, keep) return x:prod(dims, keep) end)
reduction("L1", function(x, dims, keep) return sum(x:abs(), dims, keep) end, function(x) return x:abs() end)
reduction("L2", function(x, dims, keep)
  if not x:is_floating_point() then x = x:to(moth.float64) end
  return sum(square(x), dims, keep):sqrt()
end, function(x) return x:abs() end)
reduction("SumSquare", function(x, dims, keep) return sum(square(x), dims, keep) end, square)
reduction("LogSum", function(x, dims, keep) return sum(x, dims, keep):log() end, function(x) return x:log() end)
reduction("LogSumExp", function(x, dims, keep)
  if not x:is_floating_point() then x = x:to(moth.float64) end
  for _, d in ipairs(dims) do
    if x:size(d) == 0 then return sum(x, dims, keep):log() end
  end
  return x:logsumexp(dims, keep)
end)

-- The largest and smallest of no elements are the ends of the type.
local ends = { uint8 = { 0, 255 }, int8 = { -128, 127 }, int16 = { -32768, 32767 },
  int32 = { -2147483648, 2147483647 }, bool = { 0, 1 } }
local function extreme(name, fn, at)
  reduction(name, function(x, dims, keep)
    local empty = false
    for _, d in ipairs(dims) do empty = empty or x:size(d) == 0 end
    if empty then
      local limit = x:is_floating_point() and { -math.huge, math.huge } or ends[x:dtype().name] or { -2 ^ 63, 2 ^ 62 }
      return moth.full(x:to(moth.float32):sum(dims, keep):size(), limit[at], { dtype = x:dtype(), device = x:device() })
    end
    if x:dtype() == moth.bool then return fn(x:to(moth.uint8), dims, keep) end
    return fn(x, dims, keep)
  end)
end
extreme("Max", function(x, dims, keep) return x:amax(dims, keep) end, 1)
extreme("Min", function(x, dims, keep) return x:amin(dims, keep) end, 2)

local function argument(name, method)
  rule(name, "axis=0 keepdims=1 select_last_index=0", function(c, x)
    local dim = c:dim(c.axis, x)
    if c.select_last_index == 1 then
      return x:size(dim) - x:flip { dim }[method](x:flip { dim }, dim, c.keepdims ~= 0)
    end
    return x[method](x, dim, c.keepdims ~= 0) - 1
  end, { index = 1 })
end
argument("ArgMax", "argmax")
argument("ArgMin", "argmin")
