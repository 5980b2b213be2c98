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

define("normal_", "Tensor tensor, number mean=0, number std=1, Generator generator?", function(t, mean, std, generator)
  return filled("normal_", t, mean, std, generator)
end)

define("constant_", "Tensor tensor, number val", function(t, value) return filled("fill_", t, value) end)
define("zeros_", "Tensor tensor", function(t) return filled("zero_", t) end)
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

define("xavier_uniform_", xavier, function(t, gain, generator)
  local bound = math.sqrt(3) * xavier_std("xavier_uniform_", t, gain)
  return filled("uniform_", t, -bound, bound, generator)
end)

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

return M
