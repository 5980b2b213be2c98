--- The part of moth.nn.functional about pooling by norms and over windows at random places, and its inverses.
-- Parameters are PyTorch's, in its order.
local B = require "moth_lua"
local moth = require "moth"
local wide = require("moth.amp.autocast").wide
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local sizes = require "moth.nn.sizes"
local ops = B.ops

local F = {}

local function define(name, parameters, fn) F[name] = signature(("F.%s(%s)"):format(name, parameters), fn) end

for n = 1, 3 do
  local name, mean = ("lp_pool%dd"):format(n), ops[("avg_pool%dd"):format(n)]
  --- The sum of the powers of every window, to the power 1 / norm_type: (sum of x^p)^(1/p).
  define(name, "Tensor input, number norm_type, int|int[] kernel_size, int|int[] stride?, bool ceil_mode=false",
    function(x, p, kernel, stride, ceil_mode)
      local count = 1
      for _, k in ipairs(sizes.of("F." .. name, "kernel_size", kernel, n)) do count = count * k end
      local y = mean(ops.pow(x, p), kernel, stride, 0, ceil_mode)
      return (ops.pow(ops.mul(ops.mul(ops.sign(y), ops.relu(ops.abs(y))), count), 1 / p))
    end)
end

--- The largest of each of output_size equal parts: (N, C, L) -> (N, C, output_size); with return_indices also
-- positions.
define("adaptive_max_pool1d", "Tensor input, size|size[] output_size, bool return_indices=false",
  function(x, size, return_indices)
    local n = type(size) == "table" and size[1] or size
    local y, at = ops.adaptive_max_pool2d_with_indices(ops.unsqueeze(x, -2), { 1, n })
    y = ops.squeeze(y, -2)
    if return_indices then return y, ops.squeeze(at, -2) end
    return y
  end)

-- ---- fractional ------------------------------------------------------------------------------------

-- The first positions of `out` windows of size k along n elements, for each sample u (rows): (rows, out), from 0.
local function starts(u, n, out, k)
  local device = B.tensor_device(u)
  local last = ops.full({ B.size(u, 1), 1 }, n - k, { dtype = "int64", device = device })
  if out == 1 then return last end
  local alpha = (n - k) / (out - 1)
  local i = ops.unsqueeze(ops.arange(0, out - 1, 1, { dtype = B.tensor_dtype(u), device = device }), 1)
  local at = ops.sub(ops.floor(ops.mul(ops.add(i, u), alpha)), ops.floor(ops.mul(u, alpha)))
  return (ops.cat({ ops.to(at, { dtype = "int64" }), last }, 2))
end

-- Windows along one dimension after the other, as they are boxes. Beside the values go their positions.
local function fractional(n)
  local name = ("fractional_max_pool%dd"):format(n)
  --- output_size, or output_ratio of the input's sizes, both below 1; _random_samples (N, C, dimensions) in [0, 1):
  -- where the windows lie.
  define(name, "Tensor input, int|int[] kernel_size, int|int[] output_size?, number|number[] output_ratio?, \z
    bool return_indices=false, Tensor _random_samples?", function(x, kernel, output_size, ratio, positions, samples)
    local where = "F." .. name
    x = wide(x)
    if B.dim(x) ~= n + 1 and B.dim(x) ~= n + 2 then
      check.fail("[%s] expected %d or %d dimensions, got %s", where, n + 1, n + 2, B.format(x))
    end
    if (output_size == nil) == (ratio == nil) then check.fail("[%s] give output_size or output_ratio", where) end
    local batched = B.dim(x) == n + 2
    local full = batched and x or ops.unsqueeze(x, 1)
    local size = B.size(full)
    local rows, device = size[1] * size[2], B.tensor_device(x)
    kernel = sizes.of(where, "kernel_size", kernel, n)
    local out = {}
    if output_size then
      out = sizes.of(where, "output_size", output_size, n)
    else
      for d = 1, n do
        local r = type(ratio) == "table" and ratio[d] or ratio
        if type(r) ~= "number" or r <= 0 or r >= 1 then
          check.fail("[%s] output_ratio must be between 0 and 1, got %s", where, tostring(r))
        end
        out[d] = math.floor(size[d + 2] * r)
      end
    end
    for d = 1, n do
      if out[d] < 1 or out[d] + kernel[d] - 1 > size[d + 2] then
        check.fail("[%s] %d windows of size %d do not fit into %d elements", where, out[d], kernel[d], size[d + 2])
      end
    end
    if not samples then samples = ops.rand({ size[1], size[2], n }, { dtype = B.tensor_dtype(x), device = device }) end
    samples = ops.reshape(samples, { rows, n })
    local cells = 1
    for d = 1, n do cells = cells * size[d + 2] end
    local sheet = { 1, unpack(size, 3) }
    local y = ops.reshape(full, { rows, unpack(size, 3) })
    local at = ops.reshape(ops.arange(1, cells + 1, 1, { dtype = "int64", device = device }), sheet)
    at = ops.expand(at, B.size(y))
    for d = n, 1, -1 do
      -- PyTorch takes the samples of a plane in the order of width and height, those of a volume in that of the sizes.
      local u = ops.narrow(samples, 2, n == 2 and 3 - d or d, 1)
      local k, o = kernel[d], out[d]
      local places = ops.unsqueeze(starts(u, size[d + 2], o, k), 3)
      places = ops.add(places, ops.arange(1, k + 1, 1, { dtype = "int64", device = device })) -- (rows, out, k)
      local shape, index = B.size(y), { rows }
      for i = 1, n do index[i + 1] = i == d and o * k or 1 end
      shape[d + 1] = o * k
      index = ops.expand(ops.reshape(places, index), shape)
      local split = { unpack(shape, 1, d) }
      split[#split + 1], split[#split + 2] = o, k
      for i = d + 2, n + 1 do split[#split + 1] = shape[i] end
      local values, places_of = ops.gather(y, d + 1, index), ops.gather(at, d + 1, index)
      local best, which = ops.max_dim(ops.reshape(values, split), d + 2, true)
      y = ops.squeeze(best, d + 2)
      at = ops.squeeze(ops.gather(ops.reshape(places_of, split), d + 2, which), d + 2)
    end
    local shape = { size[1], size[2], unpack(out) }
    if not batched then table.remove(shape, 1) end
    y = ops.reshape(y, shape)
    if positions then return y, ops.reshape(at, shape) end
    return y
  end)
end
fractional(2)
fractional(3)

-- ---- unpooling -------------------------------------------------------------------------------------

local function unpooling(n)
  local name = ("max_unpool%dd"):format(n)
  --- Values put back at the positions that pooling gave, zeros elsewhere: (N, C, sizes) -> (N, C, output_size).
  define(name, "Tensor input, Tensor indices, count|count[] kernel_size, count|count[] stride?, \z
    size|size[] padding=0, size[] output_size?", function(x, at, kernel, stride, padding, output_size)
    x = wide(x)
    local size = B.size(x)
    local lead, cells, inner, out = #size - n, 1, 1, {}
    if lead < 1 or lead > 2 then
      check.fail("[F.%s] expected %d or %d dimensions, got %s", name, n + 1, n + 2, B.format(x))
    end
    local where = "F." .. name
    kernel = sizes.of(where, "kernel_size", kernel, n)
    stride, padding = sizes.of(where, "stride", stride or kernel, n), sizes.of(where, "padding", padding, n)
    if output_size and #output_size ~= n and #output_size ~= #size then
      check.fail("[%s] output_size must have %d or %d numbers, got %d", where, n, #size, #output_size)
    end
    for i = 1, lead do out[i] = size[i] end
    for i = 1, n do
      local d = lead + i
      local own = (size[d] - 1) * stride[i] - 2 * padding[i] + kernel[i]
      local asked = output_size and output_size[#output_size - n + i]
      if asked and (asked <= own - stride[i] or asked >= own + stride[i]) then
        check.fail("[%s] output_size must be between %d and %d in dimension %d, got %d", where, own - stride[i] + 1,
          own + stride[i] - 1, d, asked)
      end
      out[d] = asked or own
      cells, inner = cells * out[d], inner * size[d]
    end
    local rows = B.numel(x) / math.max(inner, 1)
    local zeros = ops.zeros({ rows, cells }, { dtype = B.tensor_dtype(x), device = B.tensor_device(x) })
    return (ops.reshape(ops.scatter(zeros, 2, ops.reshape(at, { rows, inner }), ops.reshape(x, { rows, inner })), out))
  end)
end
for n = 1, 3 do unpooling(n) end

-- ---- with positions, by name -----------------------------------------------------------------------

-- F.max_pool2d_with_indices(x, …) is F.max_pool2d(x, …, { return_indices = true }).
local windows = "Tensor input, int|int[] kernel_size, int|int[] stride?, int|int[] padding=0, int|int[] dilation=1, \z
  bool ceil_mode=false, bool return_indices=false"
for n = 1, 3 do
  local op = ops[("max_pool%dd_with_indices"):format(n)]
  define(("max_pool%dd_with_indices"):format(n), windows, function(x, kernel, stride, padding, dilation, ceil_mode)
    return op(x, kernel, stride, padding, dilation, ceil_mode)
  end)
  local adaptive = ("adaptive_max_pool%dd"):format(n)
  --- As adaptive_max_pool, with positions as a second result.
  define(adaptive .. "_with_indices", "Tensor input, int|int[] output_size, bool return_indices=false",
    function(x, size) return moth.nn.functional[adaptive](x, size, true) end)
  if n > 1 then
    local name = ("fractional_max_pool%dd"):format(n)
    --- As fractional_max_pool, with positions as a second result.
    define(name .. "_with_indices", "Tensor input, int|int[] kernel_size, int|int[] output_size?, \z
      number|number[] output_ratio?, bool return_indices=false, Tensor _random_samples?",
      function(x, kernel, size, ratio, _, samples) return F[name](x, kernel, size, ratio, true, samples) end)
  end
end

return F
