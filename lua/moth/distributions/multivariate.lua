--- MultivariateNormal, LowRankMultivariateNormal, Wishart: vectors and matrices with correlations.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Distribution = require "moth.distributions.distribution"
local constraints = require "moth.distributions.constraints"
local util = require "moth.distributions.util"

local M = {}
local LOG_2PI = math.log(2 * math.pi)
local positive_definite = constraints.positive_definite

local function diagonal(m) return m:diagonal(0, -2, -1) end
-- Of a lower triangular matrix.
local function half_log_det(lower) return diagonal(lower):log():sum(-1) end
local function solve(lower, b) return (moth.linalg.solve_triangular(lower, b, false)) end
-- The lower triangle whose product with its transpose is the inverse of p: that of p with rows and columns reversed,
-- reversed and inverted.
local function precision_to_tril(p)
  local reversed = moth.linalg.cholesky(p:flip { -2, -1 }):flip({ -2, -1 }).mT
  local eye = moth.eye(B.size(p, -1), util.options(p))
  return solve(reversed, eye:expand(B.size(p)))
end
M.half_log_det, M.solve = half_log_det, solve

-- Reads one of the three matrices (…, n, n) of a constructor and makes scale_tril of it, of the batch_shape.
local function begin_matrix(self, o, batch)
  local where = self:where()
  local name, matrix = util.one_of(where, o, "covariance_matrix", "precision_matrix", "scale_tril")
  local size = B.size(matrix)
  if #size < 2 or size[#size] ~= size[#size - 1] then
    check.fail("[%s] '%s' must be a square matrix, with batch dimensions in front, got %s", where, name,
      B.format(matrix))
  end
  self:validates(o.validate_args)
  local of_tril = name == "scale_tril"
  if self.validate_args then
    util.verify(where, ("argument '%s'"):format(name), of_tril and constraints.lower_cholesky
      or positive_definite, matrix)
  end
  self.batch_shape = moth.broadcast_shapes(batch, util.part(size, 1, #size - 2))
  local full = util.shape(self.batch_shape, { size[#size], size[#size] })
  local lower = of_tril and matrix or name == "covariance_matrix" and moth.linalg.cholesky(matrix)
    or precision_to_tril(matrix)
  self.scale_tril = lower:expand(full)
  self[name] = matrix:expand(full)
  return size[#size]
end
local function lazy_matrices(cls)
  function cls:lazy_covariance_matrix() return self.scale_tril:matmul(self.scale_tril.mT) end
  function cls:lazy_precision_matrix()
    local inverse = solve(self.scale_tril, moth.eye(B.size(self.scale_tril, -1), util.options(self.scale_tril))
      :expand(B.size(self.scale_tril)))
    return inverse.mT:matmul(inverse)
  end
end
local of_matrix = "Tensor covariance_matrix?, Tensor precision_matrix?, Tensor scale_tril?, *, bool validate_args?)"

local Normal = class("MultivariateNormal", Distribution)
M.MultivariateNormal = Normal
lazy_matrices(Normal)
Normal.params = { { "loc", constraints.real_vector }, { "covariance_matrix", positive_definite },
  { "precision_matrix", positive_definite }, { "scale_tril", constraints.lower_cholesky } }
Normal.has_rsample, Normal.get_support = true, function() return constraints.real_vector end
--- Of mean loc (…, n) and a covariance (…, n, n), its inverse, or the lower triangle of which it is the square.
Normal.__init = signature.init("distributions.MultivariateNormal(Tensor loc, " .. of_matrix, function(self, o)
  local loc = o.loc
  local size = B.size(loc)
  if #size < 1 then check.fail("[distributions.MultivariateNormal] 'loc' must have at least one dimension") end
  local n = begin_matrix(self, o, util.part(size, 1, #size - 1))
  if size[#size] ~= n then
    check.fail("[distributions.MultivariateNormal] 'loc' has %d elements, the matrix %d rows", size[#size], n)
  end
  self.event_shape = util.shape { n }
  self.loc = loc:expand(util.shape(self.batch_shape, { n }))
  if self.validate_args then
    util.verify("distributions.MultivariateNormal", "argument 'loc'", constraints.real_vector, loc)
  end
end)
function Normal:get_mean() return self.loc end
function Normal:get_mode() return self.loc end
function Normal:get_variance() return self.scale_tril:square():sum(-1) end
function Normal:draw(shape, generator)
  local z = moth.randn(self:extended(shape), util.options(self.loc, generator))
  return self.loc + self.scale_tril:matmul(z:unsqueeze(-1)):squeeze(-1)
end
-- |L^-1 d|^2 along the last dimension of d (…, n), of L (batch, n, n).
local function mahalanobis(lower, d)
  local n, size = B.size(d, -1), B.size(d)
  local batch = util.part(B.size(lower), 1, B.dim(lower) - 2)
  if #size - 1 == #batch then
    size = util.shape(moth.broadcast_shapes(util.part(size, 1, #size - 1), batch), { n })
    lower = lower:expand(util.shape(util.part(size, 1, #size - 1), { n, n }))
    return solve(lower, d:expand(size):unsqueeze(-1)):squeeze(-1):square():sum(-1)
  end
  -- samples in front of the batch: columns of one right-hand side for each matrix
  local own = moth.broadcast_shapes(util.part(size, math.max(#size - #batch, 1), #size - 1), batch)
  local front = util.part(size, 1, #size - 1 - #own)
  local k = util.numel(front)
  local columns = d:expand(util.shape(front, own, { n })):reshape(util.shape({ k }, own, { n })):movedim(1, -1)
  lower = lower:expand(util.shape(own, { n, n }))
  return solve(lower, columns):square():sum(-2):movedim(-1, 1):reshape(util.shape(front, own))
end
M.mahalanobis = mahalanobis
function Normal:density(x)
  local n = self.event_shape[1]
  return (mahalanobis(self.scale_tril, x - self.loc) + n * LOG_2PI) * -0.5 - half_log_det(self.scale_tril)
end
function Normal:entropy()
  return half_log_det(self.scale_tril) + 0.5 * self.event_shape[1] * (1 + LOG_2PI)
end

local LowRank = class("LowRankMultivariateNormal", Distribution)
M.LowRankMultivariateNormal = LowRank
LowRank.params = { { "loc", constraints.real_vector }, { "cov_factor", constraints.independent(constraints.real, 2) },
  { "cov_diag", constraints.independent(constraints.positive, 1) } }
LowRank.has_rsample, LowRank.get_support = true, function() return constraints.real_vector end
--- Of mean loc (…, n) and covariance W Wᵀ + D, cov_factor W (…, n, r) and the diagonal cov_diag of D (…, n): costs n r²
-- instead of n³.
LowRank.__init = signature.init("distributions.LowRankMultivariateNormal(Tensor loc, Tensor cov_factor, \z
  Tensor cov_diag, *, bool validate_args?)", function(self, o)
  local where, l, w, d = "distributions.LowRankMultivariateNormal", B.size(o.loc), B.size(o.cov_factor),
    B.size(o.cov_diag)
  local n = l[#l]
  if not n then check.fail("[%s] 'loc' must have at least one dimension", where) end
  if #w < 2 or w[#w - 1] ~= n then
    check.fail("[%s] 'cov_factor' must have the shape (…, %d, rank), got %s", where, n, B.format(o.cov_factor))
  end
  if d[#d] ~= n then
    check.fail("[%s] 'cov_diag' must have the shape (…, %d), got %s", where, n, B.format(o.cov_diag))
  end
  local batch = moth.broadcast_shapes(util.part(l, 1, #l - 1), util.part(w, 1, #w - 2), util.part(d, 1, #d - 1))
  self.batch_shape, self.event_shape = util.shape(batch), util.shape { n }
  self.loc, self.cov_diag = o.loc:expand(util.shape(batch, { n })), o.cov_diag:expand(util.shape(batch, { n }))
  self.cov_factor = o.cov_factor:expand(util.shape(batch, { n, w[#w] }))
  self:validates(o.validate_args)
  if self.validate_args then self:verify() end
end)
-- The Cholesky factor of 1 + Wᵀ D^-1 W, of which determinant and inverse are made.
function LowRank:lazy_capacitance()
  local scaled = self.cov_factor.mT / self.cov_diag:unsqueeze(-2)
  local eye = moth.eye(B.size(self.cov_factor, -1), util.options(self.loc))
  return moth.linalg.cholesky(scaled:matmul(self.cov_factor) + eye)
end
function LowRank:lazy_covariance_matrix()
  return self.cov_factor:matmul(self.cov_factor.mT) + self.cov_diag:diag_embed()
end
function LowRank:lazy_scale_tril() return moth.linalg.cholesky(self.covariance_matrix) end
function LowRank:lazy_precision_matrix()
  local a = solve(self.capacitance, self.cov_factor.mT / self.cov_diag:unsqueeze(-2))
  return self.cov_diag:reciprocal():diag_embed() - a.mT:matmul(a)
end
function LowRank:get_mean() return self.loc end
function LowRank:get_mode() return self.loc end
function LowRank:get_variance() return self.cov_factor:square():sum(-1) + self.cov_diag end
function LowRank:draw(shape, generator)
  local o = util.options(self.loc, generator)
  local w = moth.randn(util.shape(shape, self.batch_shape, { B.size(self.cov_factor, -1) }), o)
  local d = moth.randn(self:extended(shape), o)
  return self.loc + self.cov_factor:matmul(w:unsqueeze(-1)):squeeze(-1) + self.cov_diag:sqrt() * d
end
--- The logarithm of the covariance's determinant, batch_shape.
function LowRank:log_det()
  return half_log_det(self.capacitance) * 2 + self.cov_diag:log():sum(-1)
end
--- The squared Mahalanobis distance of differences d from the mean.
function LowRank:squared(d)
  local y = d / self.cov_diag
  local inner = self.cov_factor.mT:matmul(y:unsqueeze(-1)):squeeze(-1)
  return (d * y):sum(-1) - mahalanobis(self.capacitance, inner)
end
function LowRank:density(x)
  return (self:squared(x - self.loc) + self:log_det() + self.event_shape[1] * LOG_2PI) * -0.5
end
function LowRank:entropy() return (self:log_det() + self.event_shape[1] * (1 + LOG_2PI)) * 0.5 end

local Wishart = class("Wishart", Distribution)
M.Wishart = Wishart
lazy_matrices(Wishart)
Wishart.params = { { "df", constraints.positive }, { "covariance_matrix", positive_definite },
  { "precision_matrix", positive_definite }, { "scale_tril", constraints.lower_cholesky } }
Wishart.has_rsample, Wishart.get_support = true, function() return positive_definite end
--- The sum of df squares x xᵀ of normal vectors of this covariance (…, n, n); df above n - 1.
Wishart.__init = signature.init("distributions.Wishart(Tensor|number df, " .. of_matrix, function(self, o)
  local _, matrix = util.one_of("distributions.Wishart", o, "covariance_matrix", "precision_matrix", "scale_tril")
  local df = util.like(o.df, matrix)
  local n = begin_matrix(self, o, B.size(df))
  self.event_shape, self.df = util.shape { n, n }, df:expand(self.batch_shape)
  if self.validate_args then
    util.verify("distributions.Wishart", "argument 'df'", constraints.greater_than(n - 1), df)
  end
end)
local function per_matrix(x) return x:unsqueeze(-1):unsqueeze(-1) end
function Wishart:get_mean() return per_matrix(self.df) * self.covariance_matrix end
function Wishart:get_mode()
  local factor = self.df - self.event_shape[1] - 1
  return per_matrix(util.where(factor:le(0), 0 / 0, factor)) * self.covariance_matrix
end
function Wishart:get_variance()
  local v = self.covariance_matrix
  local d = diagonal(v)
  return per_matrix(self.df) * (v:square() + d:unsqueeze(-1) * d:unsqueeze(-2))
end
-- By Bartlett's decomposition.
function Wishart:draw(shape, generator)
  local n, o = self.event_shape[1], util.options(self.scale_tril, generator)
  local df = (self.df:unsqueeze(-1) - moth.arange(n, util.options(self.df))) * 0.5
  local full = util.shape(shape, self.batch_shape, { n })
  local chi2 = moth.standard_gamma(df:expand(full), { generator = generator }) * 2
  local noise = moth.randn(util.shape(full, { n }), o):tril(-1) + chi2:clamp(util.finfo(chi2).tiny):sqrt():diag_embed()
  local lower = self.scale_tril:matmul(noise)
  return lower:matmul(lower.mT)
end
function Wishart:density(x)
  local n, df = self.event_shape[1], self.df
  local shape = moth.broadcast_shapes(B.size(x), B.size(self.scale_tril))
  local inner = solve(self.scale_tril:expand(shape), x:expand(shape))
  local trace = diagonal(solve(self.scale_tril:expand(shape), inner.mT)):sum(-1)
  local det = half_log_det(moth.linalg.cholesky(x)) * 2
  return -df * (n * math.log(2) / 2 + half_log_det(self.scale_tril)) - (df * 0.5):mvlgamma(n)
    + (df - n - 1) * 0.5 * det - trace * 0.5
end
function Wishart:entropy()
  local n, df = self.event_shape[1], self.df
  local digammas = ((df:unsqueeze(-1) - moth.arange(n, util.options(df))) * 0.5):digamma():sum(-1)
  return (n + 1) * (n * math.log(2) / 2 + half_log_det(self.scale_tril)) + (df * 0.5):mvlgamma(n)
    - (df - n - 1) * 0.5 * digammas + df * (n / 2)
end

return M
