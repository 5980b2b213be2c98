--- nn.init: fills tensors in place, outside autograd, and returns them.
--
--     nn.init.kaiming_normal_(layer.weight, { nonlinearity = "relu" })
--     model:apply(function(m) if m:is_a(nn.Linear) then nn.init.zeros_(m.bias) end end)
--
-- Glorot and Bengio 2010 (xavier), He et al. 2015 (kaiming), Saxe et al. 2014 (orthogonal).
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"

local M = {}

local function need(where, t, dims)
  if not B.is_tensor(t) then check.fail("nn.init.%s: expected a tensor, got %s", where, type(t)) end
  if dims and B.dim(t) < dims then
    check.fail("nn.init.%s: needs a tensor of at least %d dimensions, got shape [%s]", where, dims,
      table.concat(B.size(t), ", "))
  end
  return t
end

local function filled(method, t, ...)
  moth.no_grad(B.ops[method], t, ...)
  return t
end

--- Uniform in [a, b); o.generator.
function M.uniform_(t, a, b, o)
  if type(a) == "table" then a, b, o = nil, nil, a end
  o = check.options("nn.init.uniform_", o, "generator")
  return filled("uniform_", need("uniform_", t), a or 0, b or 1, o.generator)
end

function M.normal_(t, mean, std, o)
  if type(mean) == "table" then mean, std, o = nil, nil, mean end
  o = check.options("nn.init.normal_", o, "generator")
  return filled("normal_", need("normal_", t), mean or 0, std or 1, o.generator)
end

function M.constant_(t, value)
  return filled("fill_", need("constant_", t), check.number("nn.init.constant_", "value", value))
end

function M.zeros_(t) return filled("zero_", need("zeros_", t)) end
function M.ones_(t) return filled("fill_", need("ones_", t), 1) end

--- The identity matrix, as far as the shape goes.
function M.eye_(t)
  if B.dim(need("eye_", t)) ~= 2 then check.fail("nn.init.eye_: needs a tensor of 2 dimensions") end
  return filled("copy_", t, moth.eye(t:size(1), t:size(2), { dtype = t:dtype() }))
end

--- The factor by which a nonlinearity's input is to be scaled. @param[opt] a slope of leaky_relu (0.01)
function M.calculate_gain(nonlinearity, a)
  if nonlinearity == "relu" then return math.sqrt(2) end
  if nonlinearity == "leaky_relu" then return math.sqrt(2 / (1 + (a or 0.01) ^ 2)) end
  if nonlinearity == "tanh" then return 5 / 3 end
  if nonlinearity == "selu" then return 3 / 4 end
  if nonlinearity == "sigmoid" or nonlinearity == "linear" or tostring(nonlinearity):find("^conv") then return 1 end
  check.fail("nn.init: unknown nonlinearity '%s'; there are linear, conv…, sigmoid, tanh, relu, leaky_relu, selu",
    tostring(nonlinearity))
end

-- Inputs and outputs per element: weight (out, in, …), the rest being the receptive field.
local function fans(where, t)
  need(where, t, 2)
  local area = 1
  for d = 3, B.dim(t) do area = area * B.size(t, d) end
  return B.size(t, 2) * area, B.size(t, 1) * area
end

local function xavier_std(where, t, o)
  local fan_in, fan_out = fans(where, t)
  return (o.gain or 1) * math.sqrt(2 / math.max(fan_in + fan_out, 1))
end

--- o.gain (1), o.generator
function M.xavier_uniform_(t, o)
  o = check.options("nn.init.xavier_uniform_", o, "gain generator")
  local bound = math.sqrt(3) * xavier_std("xavier_uniform_", t, o)
  return filled("uniform_", t, -bound, bound, o.generator)
end

function M.xavier_normal_(t, o)
  o = check.options("nn.init.xavier_normal_", o, "gain generator")
  return filled("normal_", t, 0, xavier_std("xavier_normal_", t, o), o.generator)
end

local function kaiming_std(where, t, o)
  local fan_in, fan_out = fans(where, t)
  local mode = o.mode or "fan_in"
  if mode ~= "fan_in" and mode ~= "fan_out" then
    check.fail("nn.init.%s: mode is 'fan_in' or 'fan_out', got %s", where, tostring(mode))
  end
  local gain = M.calculate_gain(o.nonlinearity or "leaky_relu", o.a or 0)
  return gain / math.sqrt(math.max(mode == "fan_in" and fan_in or fan_out, 1))
end

--- o.a (0, slope of leaky_relu), o.mode ("fan_in"), o.nonlinearity ("leaky_relu"), o.generator
function M.kaiming_uniform_(t, o)
  o = check.options("nn.init.kaiming_uniform_", o, "a mode nonlinearity generator")
  local bound = math.sqrt(3) * kaiming_std("kaiming_uniform_", t, o)
  return filled("uniform_", t, -bound, bound, o.generator)
end

function M.kaiming_normal_(t, o)
  o = check.options("nn.init.kaiming_normal_", o, "a mode nonlinearity generator")
  return filled("normal_", t, 0, kaiming_std("kaiming_normal_", t, o), o.generator)
end

-- Rows of `a` (n, m), n <= m, made orthonormal in order: Gram-Schmidt, each row twice, as once loses digits.
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

--- A (semi-)orthogonal matrix, all but the first dimension taken as one. o.gain (1), o.generator
function M.orthogonal_(t, o)
  o = check.options("nn.init.orthogonal_", o, "gain generator")
  need("orthogonal_", t, 2)
  if B.numel(t) == 0 then return t end
  moth.no_grad(function()
    local rows = B.size(t, 1)
    local columns = B.numel(t) / rows
    local small, large = math.min(rows, columns), math.max(rows, columns)
    local q = orthonormal(moth.randn({ small, large }, { dtype = moth.float64, generator = o.generator }))
    if rows > columns then q = q:t():contiguous() end
    t:copy_((q * (o.gain or 1)):reshape(B.size(t)))
  end)
  return t
end

return M
