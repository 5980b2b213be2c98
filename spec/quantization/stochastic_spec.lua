-- Gradients as int8 for communication: unbiased.
local moth = require "moth"

describe("quantization.stochastic_int8 #M447", function()
  it("has the mean of what it rounds: within 5 standard errors over 1e5 draws", function()
    local x = moth.tensor({ 1, -0.5, 0.003, 0.0001, -0.7777, 0 }, { dtype = moth.float64 })
    local n, g = 100000, moth.Generator(7)
    local q, scale = moth.quantization.stochastic_int8(x:expand(n, 6), g)
    assert.equal("int8", q:dtype().name)
    local got = q:to(moth.float64) * scale
    local mean, deviation = got:mean(1), got:std(1)
    for i = 1, 6 do
      local off = math.abs(mean[i]:item() - x[i]:item())
      assert.is_true(off <= 5 * deviation[i]:item() / math.sqrt(n) + 1e-12, ("%d: %g"):format(i, off))
    end
    assert.is_true((got - x):abs():le(scale * 1.0001):all():item())
    -- rounding to nearest is not: 0.0001 is always 0
    assert.is_true(deviation[4]:item() > 0)
  end)

  it("the same generator draws the same; nothing stays nothing", function()
    local x = moth.randn(50)
    local a = moth.quantization.stochastic_int8(x, moth.Generator(3))
    assert.is_true(moth.equal(a, (moth.quantization.stochastic_int8(x, moth.Generator(3)))))
    assert.is_true(moth.equal(moth.zeros(4, { dtype = moth.int8 }), (moth.quantization.stochastic_int8(moth.zeros(4)))))
    assert.equal(0, (moth.quantization.stochastic_int8(moth.zeros(0))):numel())
  end)
end)
