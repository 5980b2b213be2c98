--- moth.distributions: probability distributions, by PyTorch's names.
--
--     local D = moth.distributions
--     local d = D.Normal(0, 1)
--     d:sample{ 1000 }, d:rsample{ 3 }, d:log_prob(0.5), d:cdf(0), d:entropy(), d.mean, d.variance
--     D.kl_divergence(d, D.Normal(1, 2))
--
-- Samples, densities and divergences have gradients to the parameters. Arguments and values are checked, which reads
-- them; { validate_args = false }, or set_default_validate_args(false), leaves that out (as it must be under vmap).
-- Classes are positions, from 1.
local lazy = require "moth.lang.lazy"

local files = { constraints = "constraints", transforms = "transforms", Distribution = "distribution" }
for file, names in require "moth.each" {
  normal = "Normal HalfNormal",
  continuous = "Uniform Exponential Laplace Cauchy HalfCauchy Gumbel Weibull Pareto Kumaraswamy",
  gamma = "Gamma InverseGamma Chi2 Beta Dirichlet StudentT FisherSnedecor",
  discrete = "Bernoulli ContinuousBernoulli Geometric Binomial NegativeBinomial Poisson",
  categorical = "Categorical OneHotCategorical OneHotCategoricalStraightThrough Multinomial",
  multivariate = "MultivariateNormal LowRankMultivariateNormal Wishart",
  combined = "Independent MixtureSameFamily",
  transformed = "TransformedDistribution LogNormal LogisticNormal LogitRelaxedBernoulli RelaxedBernoulli \z
    ExpRelaxedCategorical RelaxedOneHotCategorical",
  von_mises = "VonMises",
  lkj = "LKJCholesky GeneralizedPareto",
  transforms_joined = "CatTransform StackTransform CumulativeDistributionTransform identity_transform",
  kl = "kl_divergence register_kl",
  registry = "biject_to transform_to",
  transforms = "Transform ExpTransform SigmoidTransform TanhTransform SoftplusTransform AbsTransform SoftmaxTransform \z
    StickBreakingTransform LowerCholeskyTransform PositiveDefiniteTransform CorrCholeskyTransform AffineTransform \z
    PowerTransform ReshapeTransform ComposeTransform IndependentTransform",
  distribution = "set_default_validate_args",
} do
  for name in names:gmatch "%S+" do files[name] = { file, name } end
end

return lazy({}, "moth.distributions.", files, "moth.distributions")
