--- ONNX's operators on shapes: constants, views, parts, joins.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local small = require "moth.onnx.small"
local rule = import.rule

local function int64(list) return import.tensor(list, "int64") end

-- ---- constants -----------------------------------------------------------------------------------

rule("Constant", "value value_float value_floats value_int value_ints value_string value_strings sparse_value",
  function(c)
    local t = c.value or c.sparse_value
    if t then return t end
    if c.value_float then return moth.tensor(c.value_float, { dtype = moth.float32 }) end
    if c.value_floats then return import.tensor(c.value_floats, "float32") end
    if c.value_int then return moth.tensor(c.value_int, { dtype = moth.int64 }) end
    if c.value_ints then return int64(c.value_ints) end
    if c.value_string then return { kind = "strings", shape = {}, n = 1, c.value_string } end
    local out = { kind = "strings", shape = { #(c.value_strings or {}) }, n = #(c.value_strings or {}) }
    for i, s in ipairs(c.value_strings or c:fail("it has no value")) do out[i] = s end
    return out
  end, { any = "moves" })

local MOST = 2 ^ 33 -- elements of a tensor that numbers of a file ask for

function import.Call:checked(shape)
  local n = 1
  for _, d in ipairs(shape) do
    if d < 0 then self:fail("a negative size") end
    n = n * d
  end
  if n > MOST then self:fail("a tensor of %g elements is too large", n) end
  return shape
end

rule("ConstantOfShape", "value", function(c, shape)
  local size = c:checked(c:list(shape))
  if not c.value then return moth.zeros(size, { dtype = moth.float32, device = c.device }) end
  local v = import.aside(function() return c.value:reshape({ -1 }):totable()[1] end)
  local out = moth.full(size, v == true and 1 or v == false and 0 or v, { dtype = c.value:dtype(),
    device = c.device })
  small.tag[out] = small.tag[c.value]
  return out
end, { numbers = 1, makes = true, any = "moves" })

rule("EyeLike", "dtype k=0", function(c, x)
  local dtype = c.dtype and B.dtype(c:element(c.dtype)) or x:dtype()
  local rows, columns = x:size(1), x:size(2)
  local ones = moth.ones({ rows, columns }, { device = x:device() })
  return ones:triu(c.k):tril(c.k):to(dtype)
end)

rule("Range", function(c, start, limit, delta)
  local dtype = start:dtype()
  local from, to, step = c:number(start), c:number(limit), c:number(delta)
  if step == 0 then c:fail("the step is 0") end
  local n = math.max(math.ceil((to - from) / step), 0)
  if n ~= n or n > MOST then c:fail("a tensor of %g elements is too large", n) end
  if n == 0 then return moth.zeros({ 0 }, { dtype = dtype, device = c.device }) end
  return moth.arange(from, to, step, { dtype = dtype, device = c.device })
end, { numbers = 123, makes = true, any = true })

-- ---- sizes ---------------------------------------------------------------------------------------

local function shape_of(v) return B.is_tensor(v) and v:size() or v.shape end

rule("Shape", "start=0 end", function(c, x)
  local size, list = shape_of(x), {}
  local n = #size
  local function place(at) return math.max(0, math.min(at < 0 and at + n or at, n)) end
  for i = place(c.start) + 1, place(c["end"] or n) do list[#list + 1] = size[i] end
  return int64(list)
end, { static = true, any = true })

rule("Size", function(_, x)
  return moth.tensor(B.is_tensor(x) and x:numel() or x.n, { dtype = moth.int64 })
end, { static = true, any = true })

-- Of tensors, or texts.
local function reshape(v, shape)
  if B.is_tensor(v) then return v:reshape(shape) end
  return require("moth.onnx.import_text").reshape(v, shape)
end

rule("Reshape", "allowzero=0 shape consumed_inputs", function(c, x, shape)
  local size, from = c:ints(shape or c.shape), shape_of(x)
  local out = {}
  for i, n in ipairs(size) do out[i] = n == 0 and c.allowzero == 0 and from[i] or n end
  return reshape(x, out)
end, { numbers = 2, any = "moves" })

rule("Flatten", "axis=1", function(c, x)
  local rows, columns = 1, 1
  local axis = c.axis < 0 and c.axis + x:dim() or c.axis
  for i, n in ipairs(x:size()) do
    if i <= axis then rows = rows * n else columns = columns * n end
  end
  return x:reshape { rows, columns }
end, { any = "moves" })

rule("Squeeze", "axes", function(c, x, axes)
  local list, gone, shape = c:ints(axes) or c.axes, {}, {}
  local from = shape_of(x)
  for _, a in ipairs(list or {}) do
    local d = c:dim(a, #from)
    if from[d] ~= 1 then c:fail("dimension %d is of size %d, not 1", d, from[d]) end
    gone[d] = true
  end
  for i, n in ipairs(from) do
    if list and not gone[i] or not list and n ~= 1 then shape[#shape + 1] = n end
  end
  return reshape(x, shape)
end, { numbers = 2, any = "moves" })

rule("Unsqueeze", "axes", function(c, x, axes)
  local list, new, shape = c:ints(axes) or c.axes or {}, {}, {}
  local from = shape_of(x)
  local at, n = 1, #from + #list
  for _, a in ipairs(list) do new[c:dim(a, n)] = true end
  for i = 1, n do
    if new[i] then
      shape[i] = 1
    else
      shape[i], at = from[at], at + 1
    end
  end
  return reshape(x, shape)
end, { numbers = 2, any = "moves" })

rule("Transpose", "perm", function(c, x)
  local dims, n = {}, x:dim()
  for i = 1, n do dims[i] = c.perm and c.perm[i] and c.perm[i] + 1 or n + 1 - i end
  return n < 2 and x or x:permute(dims)
end, { any = "moves" })

rule("Expand", function(c, x, shape)
  local size, from = c:list(shape), x:size()
  local n = math.max(#size, #from)
  local out = {}
  for i = 1, n do
    local a, b = from[i - n + #from] or 1, size[i - n + #size] or 1
    out[i] = a == 1 and b or a
  end
  return x:expand(c:checked(out))
end, { numbers = 2, makes = true, any = "moves" })

rule("Tile", "", function(c, x, repeats, axis)
  local list = c:list(repeats)
  if c.opset < 6 then
    local times, at = list[1], c:number(axis)
    list = {}
    for i = 1, x:dim() do list[i] = i == at + 1 and times or 1 end
  end
  local wide, whole = {}, {}
  local shape = {}
  for i, n in ipairs(x:size()) do
    shape[2 * i - 1], shape[2 * i] = 1, n
    wide[2 * i - 1], wide[2 * i] = list[i], n
    whole[i] = list[i] * n
  end
  c:checked(whole)
  return x:reshape(shape):expand(wide):reshape(whole)
end, { numbers = 23, makes = true, any = "moves" })

-- ---- parts ---------------------------------------------------------------------------------------

rule("Concat", "axis=1", function(c, ...)
  local list, first = {}, (...)
  if not B.is_tensor(first) then return require("moth.onnx.import_text").concat(c, c.axis, ...) end
  for i = 1, select("#", ...) do list[i] = (select(i, ...)) end
  return moth.cat(list, c:dim(c.axis, first))
end, { any = "moves" })

rule("Split", "axis=0 split num_outputs", function(c, x, given)
  local dim, sizes = c:dim(c.axis, x), c:ints(given) or c.split
  local n, out, at = x:size(dim), {}, 1
  if not sizes then
    local count = c.num_outputs or c.count
    if count ~= c.count then c:fail("num_outputs is %d, but the node has %d results", count, c.count) end
    local each = math.ceil(n / count)
    sizes = {}
    for i = 1, count do sizes[i] = math.max(0, math.min(each, n - each * (i - 1))) end
  end
  if #sizes ~= c.count then c:fail("the sizes of %d parts, but the node has %d results", #sizes, c.count) end
  for i, size in ipairs(sizes) do
    out[i] = x:narrow(dim, at, size)
    at = at + size
  end
  if at ~= n + 1 then c:fail("parts of %d in all, of a size of %d", at - 1, n) end
  return unpack(out)
end, { numbers = 2, any = "moves" })

rule("Slice", "axes starts ends", function(c, x, starts, ends, axes, steps)
  starts, ends = c:ints(starts or c.starts), c:ints(ends or c.ends)
  axes, steps = c:ints(axes) or c.axes, c:ints(steps)
  for i, start in ipairs(starts) do
    local dim = c:dim(axes and axes[i] or i - 1, x)
    local n, step, stop = x:size(dim), steps and steps[i] or 1, ends[i]
    if step == 0 then c:fail("a step of 0") end
    if start < 0 then start = start + n end
    if stop < 0 then stop = stop + n end
    if step > 0 then
      start, stop = math.max(0, math.min(start, n)), math.max(0, math.min(stop, n))
      if start == 0 and stop == n and step == 1 then
        x = x -- all of it
      elseif step == 1 then
        x = x:narrow(dim, start >= stop and 1 or start + 1, math.max(stop - start, 0))
      elseif start >= stop then
        x = x:narrow(dim, 1, 0)
      else
        x = x:slice(dim, start, stop, step)
      end
    else
      start, stop = math.max(-1, math.min(start, n - 1)), math.max(-1, math.min(stop, n - 1))
      if stop >= start then
        x = x:narrow(dim, 1, 0)
      else -- from behind: of the part stop + 1 to start, turned round
        x = x:narrow(dim, stop + 2, start - stop):flip { dim }
        if step < -1 then x = x:slice(dim, 0, start - stop, -step) end
      end
    end
  end
  return x
end, { numbers = 2345, any = "moves" })

-- x with a border along d that parts of it make, which goes with any size; nil: the border is wider than x.
local function bordered(x, d, mode, before, after)
  local size, parts = x:size(d), {}
  local widest = mode == "replicate" and math.huge or size - (mode == "reflect" and 1 or 0)
  if size == 0 or math.max(before, after) > widest then return nil end
  local function part(at, n)
    if n == 0 then return end
    if mode == "replicate" then
      local shape = x:size()
      shape[d] = n
      parts[#parts + 1] = x:narrow(d, at == 0 and 1 or size, 1):expand(shape)
    elseif mode == "reflect" then
      parts[#parts + 1] = x:narrow(d, at == 0 and 2 or size - n, n):flip { d }
    else
      parts[#parts + 1] = x:narrow(d, at == 0 and size - n + 1 or 1, n)
    end
  end
  part(0, before)
  parts[#parts + 1] = x
  part(1, after)
  return moth.cat(parts, d)
end

rule("Pad", "mode='constant' pads value=0 paddings", function(c, x, pads, value, axes)
  local list, n = c:ints(pads) or c.pads or c.paddings, x:dim()
  local before, after = {}, {}
  for i = 1, n do before[i], after[i] = 0, 0 end
  axes = c:ints(axes)
  local count = axes and #axes or n
  for i = 1, count do
    local d = axes and c:dim(axes[i], x) or i
    before[d], after[d] = list[i], list[i + count]
  end
  local mode = ({ constant = "constant", reflect = "reflect", edge = "replicate", wrap = "circular" })[c.mode]
  if not mode then c:fail("the mode '%s'", c.mode) end
  local fill = value and c:number(value) or c.value
  local kind = B.is_tensor(fill) and 0 or fill
  -- What is cut off first; the others one dimension at a time, so that any number of them is taken.
  for d = 1, n do
    local from, stop = math.max(-before[d], 0), math.max(-after[d], 0)
    if from + stop > 0 then x = x:narrow(d, from + 1, x:size(d) - from - stop) end
    before[d], after[d] = math.max(before[d], 0), math.max(after[d], 0)
  end
  if mode == "constant" then
    local flat, any = {}, false
    for i = 1, n do
      flat[2 * i - 1], flat[2 * i] = before[n + 1 - i], after[n + 1 - i]
      any = any or before[i] > 0 or after[i] > 0
    end
    return any and B.ops.pad(x, flat, "constant", kind == true and 1 or kind == false and 0 or kind) or x
  end
  for d = 1, n do
    local whole = mode ~= "constant" and before[d] + after[d] > 0 and bordered(x, d, mode, before[d], after[d])
    if whole then
      x = whole
    elseif before[d] + after[d] > 0 then
      local size, index = x:size(d), {}
      for i = -before[d], size + after[d] - 1 do
        local at
        if mode == "replicate" then at = math.max(0, math.min(i, size - 1))
        elseif mode == "circular" then at = i % size
        else
          local period = math.max(2 * (size - 1), 1)
          at = i % period
          if at >= size then at = period - at end
        end
        index[#index + 1] = at + 1
      end
      x = x:index_select(d, import.tensor(index, "int64", x:device()))
    end
  end
  return x
end, { numbers = 234 })

rule("Trilu", "upper=1", function(c, x, k)
  local diagonal = c:number(k, 0)
  if x:numel() == 0 then return x end
  local n = x:size(-1) + x:size(-2)
  diagonal = math.max(-n, math.min(diagonal, n))
  if x:dtype() == moth.bool then
    local wide = x:to(moth.uint8)
    return (c.upper == 1 and wide:triu(diagonal) or wide:tril(diagonal)):to(moth.bool)
  end
  return c.upper == 1 and x:triu(diagonal) or x:tril(diagonal)
end, { numbers = 2 })

rule("DepthToSpace", "blocksize mode='DCR'", function(c, x)
  local n, channels, h, w = unpack(x:size())
  local b = c.blocksize
  local deep = channels / (b * b)
  local y = c.mode == "DCR" and x:reshape { n, b, b, deep, h, w }:permute { 1, 4, 5, 2, 6, 3 }
    or x:reshape { n, deep, b, b, h, w }:permute { 1, 2, 5, 3, 6, 4 }
  return y:reshape { n, deep, h * b, w * b }
end, { any = "moves" })

rule("SpaceToDepth", "blocksize mode='DCR'", function(c, x)
  local n, channels, h, w = unpack(x:size())
  local b = c.blocksize
  local y = x:reshape { n, channels, h / b, b, w / b, b }
  y = c.mode == "CRD" and y:permute { 1, 2, 4, 6, 3, 5 } or y:permute { 1, 4, 6, 2, 3, 5 }
  return y:reshape { n, channels * b * b, h / b, w / b }
end, { any = "moves" })

rule("CenterCropPad", "axes", function(c, x, shape)
  local wanted = c:list(shape)
  for i, n in ipairs(wanted) do
    local d = c.axes and c:dim(c.axes[i], x) or i
    local have = x:size(d)
    if n < have then
      x = x:narrow(d, math.floor((have - n) / 2) + 1, n)
    elseif n > have then
      local before = math.floor((n - have) / 2)
      local size = x:size()
      local function zeros(count)
        size[d] = count
        return moth.zeros(size, { dtype = x:dtype(), device = x:device() })
      end
      x = moth.cat({ zeros(before), x, zeros(n - have - before) }, d)
    end
  end
  return x
end, { numbers = 2, any = "moves" })
