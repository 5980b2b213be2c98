--- nn.utils.parametrizations: weight_norm, spectral_norm, orthogonal, as parametrizations of a module's tensor.
--
--     local layer = nn.utils.parametrizations.weight_norm(nn.Linear(20, 40))
--     layer.parametrizations.weight.original0    -- the lengths; original1: the directions
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local parametrize = require "moth.nn.utils_parametrize"

local M = {}

local function tensor_of(where, module, name)
  local t = module[name]
  if not B.is_tensor(t) then check.fail("[%s] %s has no tensor '%s'", where, module.__name, name) end
  return t
end

-- ---- weight norm -------------------------------------------------------------------------------------

local WeightNorm = class("_WeightNorm", Module)
function WeightNorm:__init(dim) self.dim = dim end

-- The norm over all dimensions but one, of which sizes of 1 are left; dim = false: over all.
local function norm_except(v, dim)
  if not dim then return v:norm() end
  local shape, n = {}, B.dim(v)
  local d = dim < 0 and n + 1 + dim or dim
  for i = 1, n do shape[i] = i == d and B.size(v, i) or 1 end
  return v:movedim(d, 1):reshape(B.size(v, d), -1):square():sum(2):sqrt():reshape(shape)
end

function WeightNorm:forward(g, v) return v * (g / norm_except(v, self.dim)) end
function WeightNorm:right_inverse(w) return { norm_except(w, self.dim), w } end

--- weight = g v / |v|: lengths and directions are trained apart (Salimans and Kingma 2016). dim: the dimension that has
-- a length for each position; false: one length for all.
M.weight_norm = signature("nn.utils.parametrizations.weight_norm(Module module, string name='weight', int|false dim=1)",
  function(module, name, dim)
    local t = tensor_of("nn.utils.parametrizations.weight_norm", module, name)
    if dim and (dim == 0 or math.abs(dim) > B.dim(t)) then
      check.fail("[nn.utils.parametrizations.weight_norm] dim %d is out of range: '%s' has %d dimensions", dim, name,
        B.dim(t))
    end
    return parametrize.register_parametrization(module, name, WeightNorm(dim), { unsafe = true })
  end)

-- ---- spectral norm -----------------------------------------------------------------------------------

local SpectralNorm = class("_SpectralNorm", Module)

-- w with dimension `dim` first, as a matrix.
local function matrix_of(self, w) return w:movedim(self.dim, 1):reshape(B.size(w, self.dim), -1) end
local function unit(x, eps) return x / x:norm():clamp({ min = eps }) end

local function iterate(self, w, times)
  moth.no_grad(function()
    for _ = 1, times do
      self._u:copy_(unit(w:mv(self._v), self.eps))
      self._v:copy_(unit(w:t():mv(self._u), self.eps))
    end
  end)
end

function SpectralNorm:__init(w, n_power_iterations, dim, eps)
  self.dim, self.eps, self.n_power_iterations = dim, eps, n_power_iterations
  self.vector = B.dim(w) < 2
  if self.vector then return end
  local m = matrix_of(self, w:detach())
  local like = { dtype = w:dtype(), device = w:device() }
  self:register_buffer("_u", unit(moth.randn({ B.size(m, 1) }, like), eps))
  self:register_buffer("_v", unit(moth.randn({ B.size(m, 2) }, like), eps))
  iterate(self, m, 15)
end

function SpectralNorm:forward(w)
  if self.vector then return w / w:norm():clamp({ min = self.eps }) end
  local m = matrix_of(self, w)
  if self.training then iterate(self, m:detach(), self.n_power_iterations) end
  local u, v = self._u:clone(), self._v:clone()
  return w / (u * m:mv(v)):sum()
end
function SpectralNorm:right_inverse(w) return w end -- luacheck: ignore self

local transposed = { ConvTranspose1d = true, ConvTranspose2d = true, ConvTranspose3d = true }

--- weight / its largest singular value, which power iterations follow while training (Miyato et al. 2018). dim: the
-- outputs' dimension; by default 1, of transposed convolutions 2.
M.spectral_norm = signature("nn.utils.parametrizations.spectral_norm(Module module, string name='weight', \z
  count n_power_iterations=1, number eps=1e-12, Dim dim?)", function(module, name, n, eps, dim)
  local where = "nn.utils.parametrizations.spectral_norm"
  local t = tensor_of(where, module, name)
  if not dim then dim = transposed[parametrize.type_before_parametrizations(module).__name] and 2 or 1 end
  if B.dim(t) == 0 or math.abs(dim) > B.dim(t) then
    check.fail("[%s] dim %d is out of range: '%s' has %d dimensions", where, dim, name, B.dim(t))
  end
  return parametrize.register_parametrization(module, name, SpectralNorm(t, n, dim, eps))
end)

-- ---- orthogonal --------------------------------------------------------------------------------------

local Orthogonal = class("_Orthogonal", Module)

-- e^a by Taylor's series of a / 2^s, squared s times.
local function matrix_exp(a)
  local norm = a:detach():abs():sum(2):amax():item()
  local s = norm > 0.5 and math.ceil(math.log(norm / 0.5) / math.log(2)) or 0
  local x = a / 2 ^ s
  local sum = moth.eye(B.size(a, 1), { dtype = a:dtype(), device = a:device() }) + x
  local power = x
  for k = 2, 14 do
    power = power:matmul(x) / k
    sum = sum + power
  end
  for _ = 1, s do sum = sum:matmul(sum) end
  return sum
end

function Orthogonal:__init(w)
  self.shape = { B.size(w, 1), B.size(w, 2) }
end

function Orthogonal:forward(x)
  local n, k = B.size(x, 1), B.size(x, 2)
  local wide = n < k
  if wide then
    x = x:t()
    n, k = k, n
  end
  local a = x:tril()
  if n ~= k then a = moth.cat({ a, a:new_zeros({ n, n - k }) }, 2) end
  local q = matrix_exp(a - a:t())
  if n ~= k then q = q:narrow(2, 1, k) end
  if self.base then q = self.base:matmul(q) end
  return wide and q:t() or q
end

--- The weight begins as the orthogonal matrix next to what it was: the base; the original is what is trained from 0.
function Orthogonal:right_inverse(w)
  local wide = B.size(w, 1) < B.size(w, 2)
  local m = wide and w:t() or w
  local n, k = B.size(m, 1), B.size(m, 2)
  -- The columns first, made orthonormal in order; random ones fill up the square.
  local rows = m:t():double()
  if n > k then rows = moth.cat({ rows, moth.randn({ n - k, n }, { dtype = moth.float64 }) }, 1) end
  rows = rows:contiguous()
  for i = 1, n do
    local row = rows:select(1, i)
    for _ = 1, i > 1 and 2 or 0 do
      local before = rows:narrow(1, 1, i - 1)
      row:sub_(before:matmul(row):unsqueeze(1):matmul(before):squeeze(1))
    end
    row:div_(row:norm())
  end
  self:register_buffer("base", rows:t():contiguous():to(w:dtype()))
  return w:new_zeros({ B.size(w, 1), B.size(w, 2) })
end

--- An orthogonal matrix (rows or columns orthonormal, whichever are fewer): the exponential of a skew-symmetric one.
-- orthogonal_map: only "matrix_exp". use_trivialization = false: without a base; it begins as a part of the identity.
M.orthogonal = signature("nn.utils.parametrizations.orthogonal(Module module, string name='weight', \z
  'matrix_exp' orthogonal_map?, *, bool use_trivialization=true)", function(module, name, _, trivial)
  local where = "nn.utils.parametrizations.orthogonal"
  local t = tensor_of(where, module, name)
  if B.dim(t) ~= 2 then check.fail("[%s] '%s' must be a matrix, got %s", where, name, B.format(t)) end
  local p = Orthogonal(t)
  if not trivial then p.right_inverse = function(_, w) return w:new_zeros({ B.size(w, 1), B.size(w, 2) }) end end
  return parametrize.register_parametrization(module, name, p)
end)

return M
