--- The part of moth.nn.functional about convolution and pooling: PyTorch's options on the ops of src/ops/conv.lua.
--
--     F.conv2d(x, w, b, { stride = 2, padding = 1 })       -- or by position: F.conv2d(x, w, b, 2, 1)
--     F.conv2d(x, w, b, { padding = "same" })
--     local y, where = F.max_pool2d(x, 2, { return_indices = true })
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local sizes = require "moth.nn.sizes"

local F = {}

-- x padded by one zero at the end of each of the last n dimensions i with more[i].
local function extended(x, n, more)
  for i = 1, n do
    if more[i] then
      local size, d = B.size(x), B.dim(x) - n + i
      size[d] = 1
      x = moth.cat({ x, x:new_zeros(size) }, d)
    end
  end
  return x
end

local exact = 2 ^ 53 -- float64 has all integers up to this one
local function is_whole(x)
  local kind = B.tensor_dtype(x)
  return not (kind.is_floating_point or kind.is_complex or kind.name == "bool")
end
local function largest(x)
  return B.numel(x) > 0 and moth.amax(moth.abs(B.batch_values(x):double())):item() or 0
end
local function overflow(name, x)
  check.fail("[%s] sums of integers may exceed 2^53, up to which they are exact; got %s", name, B.format(x))
end

-- Integers, computed in float64: no result may be rounded.
local function of_integers(name, op, x, weight, bias, ...)
  local most = largest(x) * largest(weight) * (B.numel(weight) + 1) + (bias and largest(bias) or 0)
  if most > exact then overflow(name, x) end
  return (op(x:double(), weight:double(), bias and bias:double() or nil, ...):to(B.tensor_dtype(x)))
end

-- Complex tensors: four convolutions of their parts.
local function of_parts(op, name)
  return function(x, weight, bias, ...)
    local kind = B.tensor_dtype(x)
    if not kind.is_floating_point and is_whole(x) and is_whole(weight) and (not bias or is_whole(bias)) then
      return of_integers(name, op, x, weight, bias, ...)
    end
    local complex = kind.is_complex and B.tensor_dtype(weight).is_complex
    if not complex then return (op(x, weight, bias, ...)) end
    local a, b, c, d = moth.real(x), moth.imag(x), moth.real(weight), moth.imag(weight)
    local re = moth.sub(op(a, c, bias and moth.real(bias) or nil, ...), op(b, d, nil, ...))
    local im = moth.add(op(a, d, bias and moth.imag(bias) or nil, ...), op(b, c, nil, ...))
    return (moth.complex(re, im))
  end
end

local function convolution(name, n)
  local op = of_parts(B.ops[name], "F." .. name)
  local text = ("F.%s(Tensor input, Tensor weight, Tensor bias?, int|int[] stride=1, int|int[]|'same'|'valid' \z
    padding=0, int|int[] dilation=1, count groups=1)"):format(name)
  return signature(text, function(x, weight, bias, stride, padding, dilation, groups)
    if type(padding) == "string" then
      local kernel, more = {}
      for i = 1, n do kernel[i] = B.size(weight, i + 2) end
      padding, more = sizes.named_padding("F." .. name, padding, kernel, sizes.of("F." .. name, "stride", stride, n, 1),
        sizes.of("F." .. name, "dilation", dilation, n, 1))
      if more then x = extended(x, n, more) end
    end
    return op(x, weight, bias, stride, padding, dilation, groups)
  end)
end
F.conv1d, F.conv2d, F.conv3d = convolution("conv1d", 1), convolution("conv2d", 2), convolution("conv3d", 3)

for _, name in ipairs({ "conv_transpose1d", "conv_transpose2d", "conv_transpose3d" }) do
  local fn = of_parts(B.ops[name], "F." .. name)
  B.names[fn] = name
  F[name] = fn
end

-- The indices are positions in the image, flattened.
local function max_pool(name)
  local plain, both = B.ops[name], B.ops[name .. "_with_indices"]
  local text = ("F.%s(Tensor input, int|int[] kernel_size, int|int[] stride?, int|int[] padding=0, \z
    int|int[] dilation=1, bool ceil_mode=false, bool return_indices=false)"):format(name)
  return signature(text, function(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    local fn = return_indices and both or plain
    if B.tensor_dtype(x).is_floating_point or not is_whole(x) then
      return fn(x, kernel_size, stride, padding, dilation, ceil_mode)
    end
    if largest(x) > exact then overflow("F." .. name, x) end
    local y, at = fn(x:double(), kernel_size, stride, padding, dilation, ceil_mode)
    y = y:to(B.tensor_dtype(x))
    if return_indices then return y, at end
    return y
  end)
end
F.max_pool1d, F.max_pool2d, F.max_pool3d = max_pool("max_pool1d"), max_pool("max_pool2d"), max_pool("max_pool3d")

--- output_size: a number or one for each dimension; -1 keeps a size.
for _, name in ipairs({ "adaptive_max_pool2d", "adaptive_max_pool3d" }) do
  local plain, both = B.ops[name], B.ops[name .. "_with_indices"]
  F[name] = signature(("F.%s(Tensor input, int|int[] output_size, bool return_indices=false)"):format(name),
    function(x, output_size, return_indices) return (return_indices and both or plain)(x, output_size) end)
end

local windows = "int|int[] kernel_size, int|int[] dilation=1, int|int[] padding=0, int|int[] stride=1"

-- op(x, …), or of both parts of a complex x.
local function by_parts(op)
  return function(x, ...)
    if not B.tensor_dtype(x).is_complex then return (op(x, ...)) end
    return (moth.complex(op(moth.real(x), ...), op(moth.imag(x), ...)))
  end
end

--- Windows of (N, C, H, W) as columns (N, C kh kw, L).
F.unfold = signature(("F.unfold(Tensor input, %s)"):format(windows), by_parts(B.ops.im2col))

--- Columns (N, C kh kw, L) added up as images (N, C, *output_size).
F.fold = signature(("F.fold(Tensor input, int|int[] output_size, %s)"):format(windows), by_parts(B.ops.col2im))

return F
