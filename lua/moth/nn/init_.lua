--- nn.init: fills tensors in place, outside autograd, and returns them.
--
--     nn.init.kaiming_normal_(layer.weight, { nonlinearity = "relu" })
--     model:apply(function(m) if m:is_a(nn.Linear) then nn.init.zeros_(m.bias) end end)
--
-- Glorot and Bengio 2010 (xavier), He et al. 2015 (kaiming), Saxe et al. 2014 (orthogonal).
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local M = {}

local function need(where, t, dims)
  if B.dim(t) < dims then
    check.fail("[nn.init.%s] needs a tensor of at least %d dimensions, got shape [%s]", where, dims,
      table.concat(B.size(t), ", "))
  end
end

local function filled(method, t, ...)
  moth.no_grad(B.ops[method], t, ...)
  return t
end

local function define(name, parameters, fn)
  M[name] = signature(("nn.init.%s(%s)"):format(name, parameters), fn)
end

--- Uniform in [a, b).
define("uniform_", "Tensor tensor, number a=0, number b=1, Generator generator?", function(t, a, b, generator)
  return filled("uniform_", t, a, b, generator)
end)

--- Normal, of this mean and standard deviation.
define("normal_", "Tensor tensor, number mean=0, number std=1, Generator generator?", function(t, mean, std, generator)
  return filled("normal_", t, mean, std, generator)
end)

--- All elements val.
define("constant_", "Tensor tensor, number val", function(t, value) return filled("fill_", t, value) end)
--- Zeros.
define("zeros_", "Tensor tensor", function(t) return filled("zero_", t) end)
--- Ones.
define("ones_", "Tensor tensor", function(t) return filled("fill_", t, 1) end)

--- The identity matrix, as far as the shape goes.
define("eye_", "Tensor tensor", function(t)
  if B.dim(t) ~= 2 then check.fail("[nn.init.eye_] needs a tensor of 2 dimensions, got %d", B.dim(t)) end
  return filled("copy_", t, moth.eye(t:size(1), t:size(2), { dtype = t:dtype() }))
end)

--- The factor that keeps the variance through a nonlinearity; param: the slope of leaky_relu (0.01)
define("calculate_gain", "string nonlinearity, number param?", function(nonlinearity, a)
  if nonlinearity == "relu" then return math.sqrt(2) end
  if nonlinearity == "leaky_relu" then return math.sqrt(2 / (1 + (a or 0.01) ^ 2)) end
  if nonlinearity == "tanh" then return 5 / 3 end
  if nonlinearity == "selu" then return 3 / 4 end
  if nonlinearity == "sigmoid" or nonlinearity == "linear" or nonlinearity:find("^conv") then return 1 end
  check.fail("[nn.init] unknown nonlinearity '%s'; there are linear, conv…, sigmoid, tanh, relu, leaky_relu, selu",
    nonlinearity)
end)

-- fan_in and fan_out of a weight (out, in, …); the product of the other sizes is the receptive field.
local function fans(where, t)
  need(where, t, 2)
  local area = 1
  for d = 3, B.dim(t) do area = area * B.size(t, d) end
  return B.size(t, 2) * area, B.size(t, 1) * area
end

local function xavier_std(where, t, gain)
  local fan_in, fan_out = fans(where, t)
  return gain * math.sqrt(2 / math.max(fan_in + fan_out, 1))
end

local xavier = "Tensor tensor, number gain=1, Generator generator?"

--- Uniform in +-gain sqrt(6 / (fan_in + fan_out)).
define("xavier_uniform_", xavier, function(t, gain, generator)
  local bound = math.sqrt(3) * xavier_std("xavier_uniform_", t, gain)
  return filled("uniform_", t, -bound, bound, generator)
end)

--- Normal, with the deviation gain sqrt(2 / (fan_in + fan_out)).
define("xavier_normal_", xavier, function(t, gain, generator)
  return filled("normal_", t, 0, xavier_std("xavier_normal_", t, gain), generator)
end)

local function kaiming_std(where, t, a, mode, nonlinearity)
  local fan_in, fan_out = fans(where, t)
  local gain = M.calculate_gain(nonlinearity, a)
  return gain / math.sqrt(math.max(mode == "fan_in" and fan_in or fan_out, 1))
end

local kaiming = "Tensor tensor, number a=0, 'fan_in'|'fan_out' mode='fan_in', string nonlinearity='leaky_relu', \z
  Generator generator?"

--- a: the slope of leaky_relu
define("kaiming_uniform_", kaiming, function(t, a, mode, nonlinearity, generator)
  local bound = math.sqrt(3) * kaiming_std("kaiming_uniform_", t, a, mode, nonlinearity)
  return filled("uniform_", t, -bound, bound, generator)
end)

--- Normal, with the deviation gain / sqrt(fan_in), or of fan_out. a: the slope of leaky_relu
define("kaiming_normal_", kaiming, function(t, a, mode, nonlinearity, generator)
  return filled("normal_", t, 0, kaiming_std("kaiming_normal_", t, a, mode, nonlinearity), generator)
end)

-- Makes the rows of `a` (n, m), n <= m, orthonormal in order: Gram-Schmidt, twice for each row, as once loses digits.
local function orthonormal(a)
  for i = 1, a:size(1) do
    local row = a:select(1, i)
    for _ = 1, i > 1 and 2 or 0 do
      local before = a:narrow(1, 1, i - 1)
      row:sub_(before:matmul(row):unsqueeze(1):matmul(before):squeeze(1))
    end
    row:div_(row:norm())
  end
  return a
end

--- A (semi-)orthogonal matrix: the first size by the product of the others.
define("orthogonal_", "Tensor tensor, number gain=1, Generator generator?", function(t, scale, generator)
  need("orthogonal_", t, 2)
  if B.numel(t) == 0 then return t end
  moth.no_grad(function()
    local rows = B.size(t, 1)
    local columns = B.numel(t) / rows
    local small, large = math.min(rows, columns), math.max(rows, columns)
    local q = orthonormal(moth.randn({ small, large }, { dtype = moth.float64, generator = generator }))
    if rows > columns then q = q:t():contiguous() end
    t:copy_((q * scale):reshape(B.size(t)))
  end)
  return t
end)

--- A convolution's weight (K, C, k…) that passes channels on: the identity at the centre of the kernel, for each group.
define("dirac_", "Tensor tensor, count groups=1", function(t, groups)
  local n = B.dim(t)
  if n < 3 or n > 5 then check.fail("[nn.init.dirac_] needs a tensor of 3 to 5 dimensions, got %d", n) end
  if B.size(t, 1) % groups ~= 0 then
    check.fail("[nn.init.dirac_] groups (%d) must divide the first size, %d", groups, B.size(t, 1))
  end
  moth.no_grad(function()
    B.ops.zero_(t)
    local each_group = B.size(t, 1) / groups
    local centre = {}
    for d = 3, n do centre[d] = math.floor(B.size(t, d) / 2) + 1 end
    for g = 0, groups - 1 do
      for c = 1, math.min(each_group, B.size(t, 2)) do
        local at = t:select(1, g * each_group + c):select(1, c)
        for d = 3, n do at = at:select(1, centre[d]) end
        at:fill_(1)
      end
    end
  end)
  return t
end)

--- Normal with deviation std; in each column a share of `sparsity` of the rows is 0.
define("sparse_", "Tensor tensor, number sparsity, number std=0.01, Generator generator?",
  function(t, sparsity, std, generator)
    if B.dim(t) ~= 2 then check.fail("[nn.init.sparse_] needs a tensor of 2 dimensions, got %d", B.dim(t)) end
    local rows, columns = B.size(t, 1), B.size(t, 2)
    local zeros = math.ceil(sparsity * rows)
    moth.no_grad(function()
      B.ops.normal_(t, 0, std, generator)
      for c = 1, columns do
        local which = moth.randperm(rows, { generator = generator }):narrow(1, 1, zeros):to(B.tensor_device(t))
        t:select(2, c):index_fill_(1, which, 0)
      end
    end)
    return t
  end)

--- Normal, but only between a and b: by the inverse of the normal's distribution.
define("trunc_normal_", "Tensor tensor, number mean=0, number std=1, number a=-2, number b=2, Generator generator?",
  function(t, mean, std, a, b, generator)
    moth.no_grad(function()
      -- Computed in float64: half the numbers of a float32 near 1 are lost to the tails.
      local ends = moth.tensor({ (a - mean) / std, (b - mean) / std }, { dtype = moth.float64 })
      local share = ((ends / math.sqrt(2)):erf() + 1) / 2
      local low, high = share[1]:item(), share[2]:item()
      local u = moth.empty(t:size(), { dtype = moth.float64, device = t:device() })
      B.ops.uniform_(u, 2 * low - 1, 2 * high - 1, generator)
      t:copy_((u:erfinv() * (std * math.sqrt(2)) + mean):clamp(a, b))
    end)
    return t
  end)

return M
