-- Distributions and transforms beside the common ones. Values of PyTorch.
local moth = require "moth"
local D = moth.distributions
local function close(a, b, e) assert.is_true(moth.allclose(a, b, e or 1e-5, e or 1e-5), tostring(a)) end

describe("distributions #quick", function()
  it("LKJCholesky: correlation matrices, and their density", function()
    local c = moth.tensor({ 0.5, 1, 3 }, { requires_grad = true })
    local d = D.LKJCholesky(3, c)
    assert.equal("[2, 3, 3, 3]", tostring(d:sample { 2 }:size()))
    assert.equal("[4, 3, 3, 3]", tostring(d:expand { 4, 3 }:sample():size()))
    assert.is_true(d.support:check(d:sample { 20 }):all():item())
    local x = D.transforms.CorrCholeskyTransform()(moth.tensor { 0.3, -0.2, 0.5 })
    local p = d:log_prob(x)
    close(p, moth.tensor { -2.3910, -1.6407, -0.8093 }, 1e-3)
    p:sum():backward()
    assert.is_true(c.grad:isfinite():all():item())
    local r = D.LKJCholesky(3, 1):sample { 4000 }:select(2, 2):select(2, 1)
    assert.is_true(math.abs(r:var():item() - 0.25) < 0.03) -- of a Beta(1.5, 1.5) on [-1, 1]
    assert.error_matches(function() D.LKJCholesky(1) end, "at least 2")
  end)

  it("GeneralizedPareto: exponential, heavy and bounded tails", function()
    local d = D.GeneralizedPareto(moth.tensor { 0, 1, 2 }, moth.tensor { 1, 2, 0.5 }, moth.tensor { 0, 0.25, -0.5 })
    local u = moth.tensor { 0.1, 0.5, 0.9 }
    local x = d:icdf(u)
    close(d:cdf(x), u)
    close(x[1], -moth.tensor(0.9):log())
    close(d:log_cdf(x), u:log())
    close(d.mean, moth.tensor { 1, 1 + 2 / 0.75, 2 + 0.5 / 1.5 })
    close(d.variance, moth.tensor { 1, 4 / (0.5625 * 0.5), 0.25 / (2.25 * 2) })
    close(d:entropy(), moth.tensor { 1, math.log(2) + 1.25, math.log(0.5) + 0.5 })
    close(d:log_prob(x)[1], -x[1])
    assert.is_true(d.support:check(d:rsample { 50 }):all():item())
    assert.is_true(d.support:check(moth.tensor { 9, 9, 3.5 }):totable()[3] == false)
  end)
end)

describe("transforms #quick", function()
  local x = moth.rand(3, 4) + 0.1
  local three = { D.ExpTransform(), D.SigmoidTransform(), D.AffineTransform(1, 2) }
  it("CatTransform and StackTransform take the parts of a dimension", function()
    local t = D.CatTransform({ D.ExpTransform(), D.AffineTransform(1, 2) }, { dim = 2, lengths = { 1, 3 } })
    local y = t(x)
    close(y, moth.cat({ x[{ {}, { 1 } }]:exp(), x[{ {}, { 2, 4 } }] * 2 + 1 }, 2))
    close(t.inv(y), x)
    close(t:log_abs_det_jacobian(x, y), moth.cat({ x[{ {}, { 1 } }], moth.full({ 3, 3 }, math.log(2)) }, 2))
    for _, make in ipairs { D.CatTransform, D.StackTransform } do
      local s = make(three)
      local z = s(x)
      close(z, moth.stack { x[1]:exp(), x[2]:sigmoid(), x[3] * 2 + 1 })
      close(s.inv(z), x, 1e-4)
      assert.equal("[3, 4]", tostring(s:log_abs_det_jacobian(x, z):size()))
      assert.is_true(s.codomain:check(z):all():item())
      assert.error_matches(function() s(moth.ones(2, 4)) end, "dimension 1 must have size 3")
    end
    local rows = D.StackTransform { D.StickBreakingTransform(), D.StickBreakingTransform() }
    local v = moth.randn(2, 5)
    assert.equal("[2]", tostring(rows:log_abs_det_jacobian(v, rows(v)):size()))
    assert.error_matches(function() D.CatTransform(three, 1, { 1, 2 }) end, "3 transforms and 2 lengths")
    assert.error_matches(function() D.StackTransform { 3 } end, "part 1: expected a transform")
  end)

  it("CumulativeDistributionTransform goes by a distribution; identity_transform changes nothing", function()
    local t = D.CumulativeDistributionTransform(D.Normal(0, 1))
    local y = t(x)
    close(t.inv(y), x, 1e-4)
    close(t:log_abs_det_jacobian(x, y), D.Normal(0, 1):log_prob(x))
    assert.equal(D.identity_transform(x), x)
  end)
end)
