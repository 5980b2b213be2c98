-- Yes-or-no distributions with confident logits, with probabilities 0 and 1, and at logits of 0: values by formulas
-- that do not round, gradients by differences.
local moth = require "moth"
local D = moth.distributions
local kl = D.kl_divergence

local LOGITS = { -400, -150, -95, -30, -5, -0.01, 0, 0.01, 1, 30, 95, 150, 400 }
local function softplus(l) return math.max(l, 0) + (math.abs(l) < 30 and math.log(1 + math.exp(-math.abs(l))) or 0) end
local function sigmoid(l) return 1 / (1 + math.exp(-l)) end
local function near(wanted, x, tol, what)
  x = type(x) == "number" and x or x:item()
  assert.is_true(x == wanted or math.abs(x - wanted) <= tol * math.max(1, math.abs(wanted)),
    ("%s: %.10g, expected %.10g"):format(what or "", x, wanted))
end
-- f(l) and its derivative by l, for a tensor of one number of each dtype.
local function each(fn)
  for _, dtype in ipairs { moth.float32, moth.float64 } do
    for _, l in ipairs(LOGITS) do
      fn(moth.tensor(l, { dtype = dtype, requires_grad = true }), l, dtype == moth.float32 and 1e-5 or 1e-9)
    end
  end
end
local function gradient(y, x) return (moth.autograd.grad(y, x, { retain_graph = true })) end

describe("yes-or-no distributions with confident logits #quick", function()
  it("Binomial: log_prob and its gradient", function()
    each(function(x, l, tol)
      local y = D.Binomial { total_count = 10, logits = x }:log_prob(moth.tensor(3):to(x:dtype()))
      near(math.log(120) - 3 * softplus(-l) - 7 * softplus(l), y, tol, "log_prob at " .. l)
      near(3 - 10 * sigmoid(l), gradient(y, x), tol, "gradient at " .. l)
    end)
  end)

  it("Bernoulli, Binomial, Categorical: divergences", function()
    each(function(x, l, tol)
      local p = sigmoid(l)
      local want = p * (math.log(4) - softplus(-l)) + sigmoid(-l) * (math.log(4 / 3) - softplus(l))
      local slope = p * sigmoid(-l) * (l - math.log(1 / 3))
      local quarter = moth.tensor(0.25):to(x:dtype())
      local y = kl(D.Bernoulli { logits = x }, D.Bernoulli { probs = quarter })
      near(want, y, tol, "Bernoulli at " .. l)
      near(slope, gradient(y, x), tol, "gradient at " .. l)
      near(3 * want, kl(D.Binomial { total_count = 3, logits = x }, D.Binomial { total_count = 3, probs = quarter }),
        tol, "Binomial at " .. l)
      local both = moth.stack { x, x * 0 }
      local quarters = D.Categorical { probs = moth.stack { quarter, 3 * quarter } }
      near(want, kl(D.Categorical { logits = both }, quarters), tol, "Categorical at " .. l)
      want = 0.25 * (softplus(-l) - math.log(4)) + 0.75 * (softplus(l) - math.log(4 / 3))
      near(want, kl(D.Bernoulli { probs = quarter }, D.Bernoulli { logits = x }), tol, "to Bernoulli at " .. l)
      near(want, kl(quarters, D.Categorical { logits = both }), tol, "to Categorical at " .. l)
      near(0, kl(D.Bernoulli { logits = x }, D.Bernoulli { logits = x }), tol)
    end)
    local function of(p, q) return kl(D.Bernoulli { probs = p }, D.Bernoulli { probs = q }):item() end
    assert.equal(math.huge, of(0.5, 1))
    assert.equal(math.huge, of(0.5, 0))
    assert.equal(0, of(1, 1))
    assert.equal(0, of(0, 0))
    near(math.log(2), of(0, 0.5), 1e-6)
  end)

  it("Geometric", function()
    each(function(x, l, tol)
      local d = D.Geometric { logits = x }
      near(-softplus(-l) - 2 * softplus(l), d:log_prob(moth.tensor(2):to(x:dtype())), tol, "log_prob at " .. l)
      if l < -30 then near(1 - l, d:entropy(), tol, "entropy at " .. l) end
      if l > 30 then near(0, d:entropy(), tol, "entropy at " .. l) end
      assert.is_false(gradient(d:entropy(), x):isnan():item())
      assert.equal(0, kl(d, D.Geometric { logits = x }):item())
      near(softplus(-l), kl(D.Geometric { probs = x * 0 + 1 }, d), tol, "divergence at " .. l)
    end)
    -- at -95 from -150: log(p / q) - 1 + (1 - q) / p with small p and q
    local p, q = D.Geometric { logits = moth.tensor(-95) }, D.Geometric { logits = moth.tensor(-150) }
    near(54, kl(p, q), 1e-5)
    assert.equal(math.huge, kl(D.Geometric { probs = 0.5 }, D.Geometric { probs = 1 }):item())
    local one = moth.ones(1, { requires_grad = true })
    local y = D.Geometric { probs = one }:log_prob(moth.zeros(1))
    near(1, gradient(y:sum(), one), 1e-6)
  end)

  it("ContinuousBernoulli", function()
    local function h(l) -- log((exp(l) - 1) / l)
      if math.abs(l) < 0.1 then return l / 2 + l ^ 2 / 24 - l ^ 4 / 2880 end
      return math.max(l, 0) + math.log((1 - math.exp(-math.abs(l))) / math.abs(l))
    end
    local function mean(l)
      if math.abs(l) < 0.1 then return 0.5 + l / 12 - l ^ 3 / 720 end
      return l > 0 and 1 / (1 - math.exp(-l)) - 1 / l or -1 / l - math.exp(l) / (1 - math.exp(l))
    end
    each(function(x, l, tol)
      local d = D.ContinuousBernoulli { logits = x }
      for _, at in ipairs { 0, 0.25, 1 } do
        local y = d:log_prob(moth.tensor(at):to(x:dtype()))
        near(at * l - h(l), y, tol * 10, "log_prob at " .. l)
        near(at - mean(l), gradient(y, x), tol, "gradient at " .. l)
      end
      near(mean(l), d.mean, tol, "mean at " .. l)
      near(gradient(d.mean, x):item(), d.variance, tol, "variance at " .. l)
      near(h(l) - l * mean(l), d:entropy(), tol * 10, "entropy at " .. l)
      near(1, d:cdf(moth.tensor(1):to(x:dtype())), 0)
      near(0, d:cdf(moth.tensor(0):to(x:dtype())), 0)
      local u = moth.tensor(0.3, { dtype = x:dtype() })
      near(0.3, d:cdf(d:icdf(u)), tol * 10, "cdf(icdf) at " .. l)
      near(1, d:icdf(u * 0 + 1), 1e-6)
      near(0, d:icdf(u * 0), tol)
      assert.is_false(gradient(d:icdf(u * 0 + 1), x):isnan():item())
      for _, m in ipairs { -400, -1, 0, 30 } do
        local y = kl(d, D.ContinuousBernoulli { logits = moth.tensor(m):to(x:dtype()) })
        near(mean(l) * (l - m) - h(l) + h(m), y, tol * 10, ("divergence of %g and %g"):format(l, m))
        assert.is_true(y:item() >= -tol)
      end
    end)
    local function all(l)
      local d = D.ContinuousBernoulli { logits = l }
      return d.mean, d.variance, d:entropy(), d:log_prob(moth.full_like(l, 0.3)), d:cdf(moth.full_like(l, 0.3)),
        d:icdf(moth.full_like(l, 0.3))
    end
    for _, l in ipairs { -20, -1.5, -0.9, 0, 1e-3, 0.5, 2, 20 } do
      assert.is_true(moth.autograd.gradcheck(all, moth.tensor(l, { dtype = moth.float64, requires_grad = true })))
    end
  end)
end)

describe("distributions at the ends of their support #quick", function()
  it("HalfCauchys diverge as Cauchys do, Kumaraswamy has values at 0 and 1, StudentT a gradient at 2", function()
    near(kl(D.Cauchy(0, 2), D.Cauchy(0, 3)):item(), kl(D.HalfCauchy(2), D.HalfCauchy(3)), 1e-6)
    near(math.log(2.5), D.Kumaraswamy(1, 2.5):log_prob(0), 1e-6)
    local a = moth.tensor(2, { requires_grad = true })
    near(0, gradient(D.Kumaraswamy(a, 2):cdf(1), a), 0)
    local df = moth.tensor({ 1.5, 2, 3 }, { requires_grad = true })
    assert.same({ 0, 0, -2 }, gradient(D.StudentT(df).variance:nan_to_num(0, 0):sum(), df):totable())
  end)
end)
