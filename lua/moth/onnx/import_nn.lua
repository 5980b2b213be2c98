--- ONNX's products and norms.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local bytes = require "moth.onnx.bytes"
local rule = import.rule

-- ---- products ------------------------------------------------------------------------------------

-- Products of integers are exact in float64 up to 2^53.
local function matmul(a, b)
  if a:is_floating_point() or a:is_complex() then return a:matmul(b) end
  return a:to(moth.float64):matmul(b:to(moth.float64)):to(a:dtype())
end

rule("MatMul", function(c, a, b) return bytes.linear(c, a, b) or matmul(a, b) end)

rule("Gemm", "alpha=1 beta=1 transA=0 transB=0 broadcast", function(c, a, b, bias)
  if c.transA == 0 and c.alpha == 1 and c.beta == 1 then
    local y = bytes.linear(c, a, b, bias, c.transB == 1)
    if y then return y end
  end
  if c.transA == 0 and c.transB == 1 and c.alpha == 1 and c.beta == 1 and a:is_floating_point()
      and (not bias or bias:dim() == 1 and bias:size(1) == b:size(1)) then
    return B.ops.linear(a, b, bias)
  end
  local y = matmul(c.transA == 1 and a:t() or a, c.transB == 1 and b:t() or b)
  if c.alpha ~= 1 then y = (y * c.alpha):to(a:dtype()) end
  if not bias then return y end
  return y + (c.beta == 1 and bias or (bias * c.beta):to(a:dtype()))
end)

rule("Einsum", "equation", function(c, ...)
  local list = { ... }
  local dtype = list[1]:dtype()
  if not list[1]:is_floating_point() then
    for i, t in ipairs(list) do list[i] = t:to(moth.float64) end
  end
  return moth.einsum((c.equation:gsub("%s", "")), list):to(dtype)
end)

rule("Det", function(_, x) return moth.det(x) end)

-- ---- norms ---------------------------------------------------------------------------------------

-- A vector along the second dimension of x.
local function along(v, x)
  local shape = {}
  for i = 1, x:dim() do shape[i] = i == 2 and v:numel() or 1 end
  return v:reshape(shape)
end

local function batch_norm(c, x, scale, bias, mean, var, training)
  if not training and x:dtype() == scale:dtype() and mean:dtype() == x:dtype() and x:dim() > 1 then
    return B.ops.batch_norm(x, mean, var, scale, bias, false, 0, c.epsilon)
  end
  local dtype, wide = x:dtype(), x:to(mean:dtype())
  local out_mean, out_var
  if training then
    local dims = { 1 }
    for i = 3, x:dim() do dims[#dims + 1] = i end
    local m = wide:mean(dims)
    local v = (wide - along(m, x)):pow(2):mean(dims)
    out_mean, out_var = mean * c.momentum + m * (1 - c.momentum), var * c.momentum + v * (1 - c.momentum)
    mean, var = m, v
  end
  local y = (wide - along(mean, x)) / (along(var, x) + c.epsilon):sqrt() * along(scale, x) + along(bias, x)
  return y:to(dtype), out_mean, out_var
end
rule("BatchNormalization", "epsilon=1e-5 momentum=0.9 training_mode=0 spatial=1 is_test=1 consumed_inputs",
  function(c, x, scale, bias, mean, var)
    return batch_norm(c, x, scale, bias, mean, var, c.training_mode == 1 or c.opset < 7 and c.is_test == 0)
  end)

rule("InstanceNormalization", "epsilon=1e-5 consumed_inputs", function(c, x, scale, bias)
  return B.ops.instance_norm(x, scale, bias, c.epsilon)
end)

-- The dimensions from an axis to the last.
local function behind(x, dim)
  local dims, shape = {}, {}
  for i = dim, x:dim() do dims[#dims + 1], shape[#shape + 1] = i, x:size(i) end
  return dims, shape
end
local function same(a, b) return table.concat(a, ",") == table.concat(b, ",") end
local function stash(c, x)
  return c.stash_type and x:to(B.dtype(c:element(c.stash_type))) or x
end

rule("LayerNormalization", "axis=-1 epsilon=1e-5 stash_type=1", function(c, x, scale, bias)
  local dims, shape = behind(x, c:dim(c.axis, x))
  if c.count == 1 and x:dtype() == moth.float32 and same(scale:size(), shape)
      and (not bias or same(bias:size(), shape)) then
    return B.ops.layer_norm(x, shape, scale, bias, c.epsilon)
  end
  local wide = stash(c, x)
  local mean = wide:mean(dims, true)
  local off = wide - mean
  local scaled = ((off * off):mean(dims, true) + c.epsilon):rsqrt()
  local y = (off * scaled):to(x:dtype()) * scale
  return bias and y + bias or y, mean, scaled
end)

rule("RMSNormalization SimplifiedLayerNormalization", "axis=-1 epsilon=1e-5 stash_type=1", function(c, x, scale)
  local dims, shape = behind(x, c:dim(c.axis, x))
  if x:dtype() == moth.float32 and same(scale:size(), shape) then
    return B.ops.rms_norm(x, shape, scale, c.epsilon)
  end
  local wide = stash(c, x)
  return (wide * ((wide * wide):mean(dims, true) + c.epsilon):rsqrt()):to(x:dtype()) * scale
end)

rule("GroupNormalization", "epsilon=1e-5 num_groups stash_type=1", function(c, x, scale, bias)
  local channels = x:size(2)
  if scale:numel() ~= channels then -- one for each group, up to opset 20
    local times = channels / c.num_groups
    scale, bias = scale:repeat_interleave(times), bias:repeat_interleave(times)
  end
  return B.ops.group_norm(x, c.num_groups, scale:to(x:dtype()), bias:to(x:dtype()), c.epsilon)
end)

rule("LpNormalization", "axis=-1 p=2", function(c, x)
  local dim = c:dim(c.axis, x)
  local size = c.p == 1 and x:abs():sum({ dim }, true) or (x * x):sum({ dim }, true):sqrt()
  return moth.where(size:eq(0), moth.zeros_like(x), x / size)
end)

rule("MeanVarianceNormalization", "axes", function(c, x)
  local dims = {}
  for i, a in ipairs(c.axes or { 0, 2, 3 }) do dims[i] = c:dim(a, x) end
  local mean = x:mean(dims, true)
  return (x - mean) / (((x * x):mean(dims, true) - mean * mean):sqrt() + 1e-9)
end)

rule("LRN", "alpha=0.0001 beta=0.75 bias=1 size", function(c, x)
  local before = math.floor((c.size - 1) / 2)
  local shape = x:size()
  local function zeros(n)
    shape[2] = n
    return moth.zeros(shape, { dtype = x:dtype(), device = x:device() })
  end
  local squares = moth.cat({ zeros(before), x * x, zeros(c.size - 1 - before) }, 2)
  local sum
  for k = 1, c.size do
    local part = squares:narrow(2, k, x:size(2))
    sum = sum and sum + part or part
  end
  return x / (sum * (c.alpha / c.size) + c.bias):pow(c.beta)
end)
