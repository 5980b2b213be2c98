-- moth.distributions by itself: known values, samples against moments, gradients of samples, divergences against
-- samples, errors. Against PyTorch: spec/parity/distributions.lua.
local moth = require "moth"
local fails = require "fails"
local D = moth.distributions
local t = moth.tensor

local function f64(v) return t(v, { dtype = moth.float64 }) end
local cov = { { 2, 0.5 }, { 0.5, 1 } }

-- How each class is made for checks by samples.
local function all()
  return {
    D.Normal(f64 { 0.5, -1 }, f64 { 0.3, 2 }), D.LogNormal(f64 { 0.5, -1 }, f64 { 0.3, 0.5 }), D.HalfNormal(f64 { 2 }),
    D.Uniform(f64 { -1, 2 }, f64 { 1, 5 }), D.Exponential(f64 { 0.5, 3 }), D.Laplace(f64 { 1 }, f64 { 0.5 }),
    D.Gumbel(f64 { 1 }, f64 { 2 }), D.Weibull(f64 { 2 }, f64 { 1.5 }), D.Pareto(f64 { 1 }, f64 { 5 }),
    D.Kumaraswamy(f64 { 2 }, f64 { 3 }), D.Gamma(f64 { 0.4, 5 }, f64 { 2, 0.5 }), D.InverseGamma(f64 { 6 }, f64 { 2 }),
    D.Chi2(f64 { 3 }), D.Beta(f64 { 0.6, 3 }, f64 { 2, 2 }), D.Dirichlet(f64 { { 0.5, 1, 2 }, { 3, 3, 3 } }),
    D.StudentT(f64 { 9 }, f64 { 1 }, f64 { 2 }), D.FisherSnedecor(f64 { 4 }, f64 { 30 }),
    D.ContinuousBernoulli { probs = f64 { 0.2, 0.6 } }, D.MultivariateNormal(f64 { 1, -1 }, f64(cov)),
    D.LowRankMultivariateNormal(f64 { 1, -1 }, f64 { { 1 }, { 0.5 } }, f64 { 0.3, 0.2 }), D.Wishart(f64(5), f64(cov)),
    D.Independent(D.Normal(f64 { 0.5, -1 }, f64 { 0.3, 2 }), 1),
    D.Bernoulli { probs = f64 { 0.2, 0.7 } }, D.Geometric { probs = f64 { 0.3 } },
    D.Binomial(f64 { 7, 200 }, f64 { 0.2, 0.7 }), D.NegativeBinomial(f64 { 3 }, f64 { 0.4 }),
    D.Poisson(f64 { 0.7, 40 }), D.Multinomial(9, f64 { 0.2, 0.3, 0.5 }), D.OneHotCategorical(f64 { 0.2, 0.8 }),
    D.MixtureSameFamily(D.Categorical(f64 { 0.3, 0.7 }), D.Normal(f64 { -1, 2 }, f64 { 0.5, 1 })),
  }
end

describe("distributions", function()
  it("have known densities and entropies", function()
    local function near(want, got) assert.is_close(got, f64(want), { rtol = 1e-6, atol = 1e-7 }) end
    near(-0.5 * math.log(2 * math.pi) - 0.5, D.Normal(f64(0), 1):log_prob(1))
    near(0.5 * math.log(2 * math.pi * math.exp(1)), D.Normal(f64(0), 1):entropy())
    near(0.8413447460685429, D.Normal(f64(0), 1):cdf(1))
    near(1.959963984540054, D.Normal(f64(0), 1):icdf(0.975))
    near(math.log(2) - 2, D.Exponential(f64(2)):log_prob(1))
    near(math.log(12 * 0.75 * 0.25 ^ 2), D.Beta(f64(2), 3):log_prob(0.75))
    near(math.log(4 * math.exp(-2) * 2 / 2), D.Gamma(f64(3), 2):log_prob(1))
    near(-math.log(math.pi) - math.log(2), D.Cauchy(f64(0), 1):log_prob(1))
    near(math.log(math.exp(-3) * 9 / 2), D.Poisson(f64(3)):log_prob(2))
    near(math.log(10 * 0.3 ^ 2 * 0.7 ^ 3), D.Binomial(f64(5), 0.3):log_prob(2))
    near(math.log(0.3), D.Categorical(f64 { 0.2, 0.3, 0.5 }):log_prob(t(2)))
    near(math.log(60 * 0.2 * 0.09 * 0.125), D.Multinomial(6, f64 { 0.2, 0.3, 0.5 }):log_prob(f64 { 1, 2, 3 }))
    near(math.log(2), D.Dirichlet(f64 { 1, 1, 1 }):log_prob(f64 { 0.2, 0.3, 0.5 }))
    local d = D.MultivariateNormal(f64 { 1, 2 }, f64(cov))
    near(-math.log(2 * math.pi) - 0.5 * math.log(1.75), d:log_prob(f64 { 1, 2 }))
  end)

  it("sample what they say: moments, support, shapes", function()
    moth.manual_seed(3)
    local n = 8000
    for _, d in ipairs(all()) do
      local x = d:sample { n }
      local name = tostring(d)
      assert.equal(x:dim(), 1 + #d.batch_shape + #d.event_shape, name)
      assert.is_true(d.support:check(x):all():item(), name .. ": a sample outside of the support")
      assert.same({ n, unpack(d.batch_shape) }, { unpack(d:log_prob(x):size()) }, name)
      local mean, var = x:mean(1), x:var(1)
      local error_of_mean = (d.variance / n):sqrt() * 5
      assert.is_true((mean - d.mean):abs():le(error_of_mean):all():item(), name .. ": mean " .. tostring(mean))
      assert.is_true((var / d.variance - 1):abs():lt(0.35):all():item(), name .. ": variance " .. tostring(var))
    end
  end)

  it("have samples with the gradients of their means", function()
    moth.manual_seed(5)
    for _, d in ipairs(all()) do
      local leaves = {}
      for _, p in ipairs(d.params) do
        local value = rawget(d, p[1])
        if value and value:is_leaf() and d.has_rsample and p[2].event_dim < 2 then
          value:requires_grad_()
          leaves[#leaves + 1] = value
        end
      end
      if #leaves > 0 then
        local function gradients(y)
          local w = moth.arange(1, y:numel() + 1):to(y:dtype()):reshape(y:size())
          return { moth.autograd.grad((y * w):sum(), leaves, { allow_unused = true, retain_graph = true }) }
        end
        local a, b = gradients(d:rsample { 8000 }:mean(1)), gradients(d.mean)
        for i, g in ipairs(leaves) do
          local want = b[i] or moth.zeros_like(g)
          assert.is_close(a[i] or moth.zeros_like(g), want, { rtol = 0.15, atol = 0.12 })
        end
      end
    end
  end)

  it("have gradients of gamma samples that keep their ranks", function()
    local a, h = f64(0.7):requires_grad_(), 1e-5
    local d = D.Gamma(a, 1)
    for _ = 1, 5 do
      local x = d:rsample()
      local gradient = moth.autograd.grad(x, a)
      local rise = D.Gamma(f64(0.7 + h), 1):cdf(x:detach()) - D.Gamma(f64(0.7 - h), 1):cdf(x:detach())
      assert.is_close(gradient, -rise / (2 * h) / d:log_prob(x):exp():detach(), { rtol = 1e-4, atol = 1e-8 })
    end
  end)

  it("invert their cdf, whose derivative is the density", function()
    local u = f64 { 0.1, 0.35, 0.8 }
    for _, d in ipairs {
      D.Normal(f64(1), 2), D.LogNormal(f64(0.1), 0.7), D.HalfNormal(f64(2)), D.Uniform(f64(1), 3),
      D.Exponential(f64(2)), D.Laplace(f64(1), 2), D.Cauchy(f64(1), 2), D.HalfCauchy(f64(2)),
      D.Gumbel(f64(1), 2), D.Weibull(f64(2), 1.5), D.Pareto(f64(1), 2), D.Kumaraswamy(f64(2), 3),
      D.ContinuousBernoulli(f64(0.3)),
    } do
      local x = d:icdf(u):detach():requires_grad_()
      local p = d:cdf(x)
      assert.is_close(p, u, { rtol = 1e-9, atol = 1e-12 })
      assert.is_close(moth.autograd.grad(p:sum(), x), d:log_prob(x):exp():detach(),
        { rtol = 1e-7, atol = 1e-12 })
    end
  end)

  it("have divergences that samples confirm, in the closed form of the nearest classes", function()
    moth.manual_seed(1)
    local pairs_of = {
      { D.Normal(f64(0), 1), D.Normal(f64(1), 2) }, { D.Gamma(f64(2), 1), D.Gamma(f64(3), 2) },
      { D.Beta(f64(2), 3), D.Beta(f64(1), 1.5) }, { D.Gamma(f64(2), 1), D.Normal(f64(1), 2) },
      { D.Dirichlet(f64 { 1, 2 }), D.Dirichlet(f64 { 3, 1 }) }, { D.Poisson(f64(3)), D.Poisson(f64(4)) },
      { D.Uniform(f64(0.2), 0.7), D.Beta(f64(2), 3) }, { D.Normal(f64(0), 1), D.Laplace(f64(1), 2) },
      { D.Bernoulli(f64(0.3)), D.Bernoulli(f64(0.6)) }, { D.LogNormal(f64(0), 1), D.LogNormal(f64(1), 2) },
      { D.MultivariateNormal(f64 { 0, 1 }, f64(cov)), D.MultivariateNormal(f64 { 1, 1 }, f64 { { 1, 0 }, { 0, 2 } }) },
      { D.Categorical(f64 { 0.2, 0.8 }), D.Categorical(f64 { 0.5, 0.5 }) }, { D.Chi2(f64(3)), D.Gamma(f64(1), 1) },
    }
    for _, pq in ipairs(pairs_of) do
      local p, q = pq[1], pq[2]
      local x = p:sample { 20000 }
      local ratio = p:log_prob(x) - q:log_prob(x)
      local bound = 5 * (ratio:var() / 20000):sqrt():item() + 1e-9
      assert.is_true((D.kl_divergence(p, q) - ratio:mean()):abs():item() < bound, tostring(p))
    end
    fails("no closed form for Wishart and Normal", D.kl_divergence, D.Wishart(t(3.0), moth.eye(2)), D.Normal(0, 1))
    local Mine = moth.class("Mine", D.Normal)
    D.register_kl(Mine, D.Normal, function() return 42 end)
    assert.equal(42, D.kl_divergence(Mine(0, 1), D.Normal(0, 1)))
    assert.is_true(moth.is_tensor(D.kl_divergence(D.Normal(0, 1), Mine(0, 1))))
  end)

  it("enumerate, expand and print", function()
    assert.same({ 1, 2, 3 }, D.Categorical(moth.rand(3)):enumerate_support():tolist())
    assert.same({ 3, 2 }, { unpack(D.Binomial(2, moth.rand(2)):enumerate_support():size()) })
    local d = D.Normal(moth.zeros(3), 1):expand { 2, 3 }
    assert.equal("[2, 3]", tostring(d.batch_shape))
    assert.equal("[5, 2, 3]", tostring(d:sample(5):size()))
    assert.equal("Normal(loc: [2, 3], scale: [2, 3])", tostring(d))
    assert.equal("Beta(concentration1: 0.5, concentration0: 2)", tostring(D.Beta(0.5, 2)))
    assert.equal("Independent(Normal(loc: [2], scale: [2]), 1)",
      tostring(D.Independent(D.Normal(moth.zeros(2), moth.ones(2)), 1)))
  end)

  it("draw the same from the same generator, for any number of threads", function()
    local threads = moth.get_num_threads()
    local function draw(n)
      moth.set_num_threads(n)
      local g = moth.Generator(11)
      local o = { generator = g }
      return moth.cat { moth.standard_gamma(moth.full({ 3000 }, 0.3), o), moth.poisson(moth.full({ 3000 }, 30), o),
        moth.binomial(moth.full({ 3000 }, 50), moth.full({ 3000 }, 0.4), o),
        D.Beta(1, 2):sample { 3000, generator = g } }
    end
    local a, b = draw(1), draw(2)
    moth.set_num_threads(threads)
    assert.is_true(moth.equal(a, b))
    assert.is_true(moth.poisson(moth.tensor { -1, 0 / 0 }):isnan():all():item())
    assert.same({ 0, 0, 7 }, moth.binomial(t { 0, 7, 7 }, t { 0.5, 0, 1 }):tolist())
    assert.equal(0, moth.poisson(moth.zeros(0)):numel())
  end)

  it("say what is wrong", function()
    fails("argument 'scale' must be positive: got %-1 at position {2}", D.Normal, 0, t { 1, -1 })
    fails("both 'probs' and 'logits' are given", D.Bernoulli, { probs = 0.5, logits = 0 })
    fails("one of these must be given: probs, logits", D.Bernoulli)
    fails("'low' must be below 'high'", D.Uniform, 1, 0)
    fails("cannot be broadcast", D.Normal, moth.zeros(2), moth.ones(3))
    fails("must be a symmetric positive%-definite matrix", D.MultivariateNormal, moth.zeros(2), -moth.eye(2))
    fails("'loc' has 3 elements, the matrix 2 rows", D.MultivariateNormal, moth.zeros(3), moth.eye(2))
    fails("must be probabilities|at least 0", D.Categorical, t { -1, 2 })
    local d = D.Normal(moth.zeros(3), 1)
    fails("does not go with batch_shape %[3%]", d.log_prob, d, moth.zeros(2))
    local e = D.Exponential(1)
    fails("the value must be at least 0: got %-1", e.log_prob, e, -1)
    fails("an integer in %[1, 3%]", function() D.Categorical(moth.ones(3)):log_prob(t(4)) end)
    local b = D.Bernoulli(0.5)
    fails("samples of Bernoulli have no derivative", b.rsample, b)
    fails("cdf has no closed form for Bernoulli", b.cdf, b, 1)
    assert.is_true(moth.is_tensor(D.Normal(0, -1, { validate_args = false }):log_prob(0)))
    fails("moth.distributions has no 'Noraml'; did you mean 'Normal'", function() return D.Noraml end)
  end)

  it("take transforms", function()
    local x = moth.randn({ 2, 3 }, { dtype = moth.float64 })
    for _, tr in ipairs { D.ExpTransform(), D.SigmoidTransform(), D.TanhTransform(), D.SoftplusTransform(),
      D.AffineTransform(1, -2), D.StickBreakingTransform(), D.CorrCholeskyTransform(),
      D.ComposeTransform { D.AffineTransform(0, 2), D.SigmoidTransform() } } do
      local y = tr(x)
      assert.is_close(tr.inv(y), x, { rtol = 1e-6, atol = 1e-7 })
      assert.is_true(tr.codomain:check(y):all():item(), tostring(tr))
      if tr.domain.event_dim == 0 then
        local v = x:detach():requires_grad_()
        local slope = moth.autograd.grad(tr(v):sum(), v)
        assert.is_close(tr:log_abs_det_jacobian(x, y), slope:abs():log(), { rtol = 1e-7, atol = 1e-9 })
        assert.is_close(tr.inv:log_abs_det_jacobian(y, x), -slope:abs():log(), { rtol = 1e-7, atol = 1e-9 })
      end
    end
    local d = D.TransformedDistribution(D.Normal(f64 { 0.5 }, 0.3), { D.ExpTransform() })
    local log = D.LogNormal(f64 { 0.5 }, 0.3)
    assert.is_close(d:log_prob(2), log:log_prob(2))
    assert.is_close(d:cdf(f64 { 2 }), log:cdf(f64 { 2 }))
    assert.is_close(D.TransformedDistribution(D.Uniform(f64(0), 1), D.AffineTransform(0, -1)):cdf(f64(-0.2)), f64(0.8))
    for _, c in ipairs { D.constraints.positive, D.constraints.interval(-1, 2), D.constraints.less_than(3),
      D.constraints.simplex, D.constraints.greater_than(2) } do
      for _, to in ipairs { D.biject_to, D.transform_to } do
        assert.is_true(c:check(to(c)(x)):all():item(), tostring(c))
      end
    end
  end)
end)
