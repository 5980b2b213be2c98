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
local each = require "moth.each"
local parametrize = require "moth.nn.utils_parametrize"

local M = {}

local function tensor_of(where, module, name)
  local t = module[name]
  if not B.is_tensor(t) then check.fail("[%s] %s has no tensor '%s'", where, module.__name, name) end
  return t
end

-- State dicts of PyTorch's older nn.utils.weight_norm and spectral_norm have other names.
local function loads_old_names(module, name, names)
  module:register_load_state_dict_pre_hook(function(_, sd, prefix)
    for old, new in each(parametrize.is_parametrized(module, name) and names or {}) do
      local from = prefix .. name .. old
      if sd[from] ~= nil then
        sd[("%sparametrizations.%s.%s"):format(prefix, name, new)] = sd[from]
        sd[from] = nil
      end
    end
  end)
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
    parametrize.register_parametrization(module, name, WeightNorm(dim), { unsafe = true })
    loads_old_names(module, name, { _g = "original0", _v = "original1" })
    return module
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
  parametrize.register_parametrization(module, name, SpectralNorm(t, n, dim, eps))
  loads_old_names(module, name, { _orig = "original", _u = "0._u", _v = "0._v" })
  return module
end)

-- ---- orthogonal --------------------------------------------------------------------------------------

local Orthogonal = class("_Orthogonal", Module)

-- A square matrix whose first columns are those of w, made orthonormal; random ones fill it up.
local function completed(w)
  local lead, n, k = B.size(w), B.size(w, -2), B.size(w, -1)
  if k < n then
    lead[#lead] = n - k
    w = moth.cat({ w, moth.randn(lead, { dtype = w:dtype(), device = w:device() }) }, -1)
  end
  local q, r = moth.linalg.qr(w)
  return q * r:diagonal(0, -2, -1):sign():unsqueeze(-2) -- columns of w that are orthonormal stay as they are
end

-- x (…, n, k), n >= k, as a skew-symmetric matrix (…, n, n).
local function skew(x, n, k)
  x = x:tril()
  if n ~= k then
    local size = B.size(x)
    size[#size] = n - k
    x = moth.cat({ x, x:new_zeros(size) }, -1)
  end
  return x - x.mT
end

local function eye_like(a) return moth.eye(B.size(a, -1), { dtype = a:dtype(), device = a:device() }) end

-- Of the diagonal of x only the signs count.
local maps = {
  matrix_exp = function(x, n, k) return moth.linalg.matrix_exp(skew(x, n, k)) end,
  cayley = function(x, n, k)
    local half = skew(x, n, k) / 2
    local one = eye_like(half)
    return moth.linalg.solve(one - half, (one + half):expand(B.size(half)))
  end,
  householder = function(x)
    local a = x:tril(-1)
    local tau = 2 / (1 + (a * a):sum(-2))
    return moth.linalg.householder_product(a, tau) * x:detach():diagonal(0, -2, -1):sign():unsqueeze(-2)
  end,
}

function Orthogonal:__init(w, map, trivial)
  self.shape, self.orthogonal_map, self.trivial = B.size(w), map, trivial
end

function Orthogonal:forward(x)
  local wide = B.size(x, -2) < B.size(x, -1)
  if wide then x = x.mT end
  local n, k = B.size(x, -2), B.size(x, -1)
  local q = maps[self.orthogonal_map](x, n, k)
  if B.size(q, -1) ~= k then q = q:narrow(-1, 1, k) end
  if self.base then q = self.base:matmul(q) end
  return wide and q.mT or q
end

-- With a base: the orthogonal matrix next to w; what is trained begins at minus the identity, which all maps send to
-- the identity. Without: the reflectors of w; the other maps have no inverse.
function Orthogonal:right_inverse(w)
  if table.concat(B.size(w), " ") ~= table.concat(self.shape, " ") then
    check.fail("[nn.utils.parametrizations.orthogonal] expected a tensor of shape [%s], got %s",
      table.concat(self.shape, ", "), B.format(w))
  end
  local wide = B.size(w, -2) < B.size(w, -1)
  local m = wide and w.mT or w
  if self.trivial then
    self:register_buffer("base", completed(m):contiguous())
    local start = moth.zeros_like(w)
    start:diagonal(0, -2, -1):fill_(-1)
    return start
  end
  if self.orthogonal_map ~= "householder" then
    check.fail("[nn.utils.parametrizations.orthogonal] %s has no inverse without a base: a value cannot be assigned; \z
      use orthogonal_map = 'householder', or use_trivialization = true", self.orthogonal_map)
  end
  local a, tau = moth.geqrf(m)
  local d = a:diagonal(0, -2, -1)
  d:copy_(d:sign() * moth.where(tau:eq(0), -1, 1))
  return wide and a.mT:contiguous() or a
end

--- An orthogonal matrix, or a batch of them (rows or columns orthonormal, whichever are fewer).
-- orthogonal_map: "matrix_exp", the exponential of a skew-symmetric matrix; "cayley", (1 + A / 2) (1 - A / 2)^-1 of
-- one; "householder", a product of reflections; by default matrix_exp for square matrices, else householder.
-- use_trivialization = false: without the base that the tensor's value gives; matrix_exp and cayley cannot begin at a
-- value then, and begin at that of the tensor as it is.
M.orthogonal = signature("nn.utils.parametrizations.orthogonal(Module module, string name='weight', \z
  'matrix_exp'|'cayley'|'householder' orthogonal_map?, *, bool use_trivialization=true)",
  function(module, name, map, trivial)
    local where = "nn.utils.parametrizations.orthogonal"
    local t = tensor_of(where, module, name)
    if B.dim(t) < 2 then
      check.fail("[%s] '%s' must be a matrix or a batch of them, got %s", where, name, B.format(t))
    end
    map = map or (B.size(t, -2) == B.size(t, -1) and "matrix_exp" or "householder")
    local p = Orthogonal(t, map, trivial)
    if not trivial and map ~= "householder" then p.right_inverse = false end -- the tensor itself is trained
    parametrize.register_parametrization(module, name, p, { unsafe = true })
    p.right_inverse = nil
    return module
  end)

return M
