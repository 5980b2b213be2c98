--- moth.special: special functions by PyTorch's names. Those that moth has, too, are the same.
local B = require "moth_lua"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local ops = B.ops

local M = {}
for name, op in each(ops) do
  local own = name:match "^special_(.*)"
  if own and own:sub(-1) ~= "_" then M[own] = signature.alias(own, op) end
end
for name, of in each({ erf = "erf", erfc = "erfc", erfinv = "erfinv", exp2 = "exp2", expm1 = "expm1", log1p = "log1p",
  expit = "sigmoid", logit = "logit", digamma = "digamma", psi = "digamma", gammaln = "lgamma", gammainc = "igamma",
  gammaincc = "igammac", multigammaln = "mvlgamma", i0 = "i0", modified_bessel_i0 = "i0",
  modified_bessel_i1 = "special_i1", sinc = "sinc", xlogy = "xlogy", round = "round", softmax = "softmax",
  log_softmax = "log_softmax", logsumexp = "logsumexp" }) do
  M[name] = signature.alias(name, ops[of])
end
--- The n-th derivative of digamma: the order comes first, as in PyTorch.
M.polygamma = signature("polygamma(size n, Tensor input)", function(n, x) return (ops.polygamma(x, n)) end)

return M
