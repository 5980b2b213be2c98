-- sin, cos and tan of float32 where the reduction of the angle is hardest: beside multiples of pi/2, up to 2^20, where
-- another reduction takes over, and beyond.
local moth = require "moth"

local function next_to(x, by)
  for _ = 1, math.abs(by) do x = moth.nextafter(x, moth.tensor(by < 0 and -math.huge or math.huge)) end
  return x
end

-- The largest error in units of the last place.
local function ulps(x, f)
  local got, want = x[f](x):double(), x:double()[f](x:double())
  local size = want:abs():float()
  local unit = (moth.nextafter(size, moth.tensor(math.huge)) - size):double()
  return ((got - want):abs() / unit):max():item()
end

describe("angles #quick", function()
  local most = { sin = 2, cos = 2, tan = 2.5 }

  it("beside multiples of pi/2", function()
    local middle = (moth.arange(1, 667544, 3, { dtype = moth.float64 }) * (math.pi / 2)):float()
    for by = -1, 1 do
      local x = next_to(middle, by)
      for f, bound in pairs(most) do assert.is_true(ulps(x, f) <= bound, f) end
    end
  end)

  it("around the end of the easy reduction, the same in blocks and alone", function()
    local edge = moth.tensor { 2 ^ 20 }
    local x = moth.cat { next_to(edge, -1), edge, next_to(edge, 1), moth.linspace(1048000, 1049200, 1000),
      moth.randn(200) * 1e6, moth.tensor { 0, -0.0, 1e-40, 3e38 } }
    for f, bound in pairs(most) do
      assert.is_true(ulps(x[{ { 1, 1203 } }], f) <= bound, f)
      local apart = moth.zeros(x:numel(), 2)
      apart:select(2, 1):copy_(x)
      assert.is_true(moth.equal(apart:select(2, 1)[f](apart:select(2, 1)), x[f](x)), f)
      for i = 1, 20 do assert.equal(x[f](x)[i]:item(), x[i][f](x[i]):item()) end
    end
    assert.equal(-math.huge, 1 / moth.sin(moth.tensor { -0.0 }):item())
    assert.is_true(moth.equal(moth.sin(moth.tensor { 0 / 0, math.huge, -math.huge }):isnan(),
      moth.ones(3):bool()))
  end)

  it("erfinv is the same in blocks and alone, near its ends too", function()
    for _, dtype in ipairs { "float32", "float64" } do
      local x = moth.cat { moth.linspace(-1, 1, 1001), moth.linspace(0.9985, 0.9995, 300) }:to(moth[dtype])
      local apart = moth.zeros(x:numel(), 2):to(moth[dtype])
      apart:select(2, 1):copy_(x)
      local y = x:erfinv()
      assert.is_true(moth.equal(apart:select(2, 1):erfinv(), y))
      assert.is_true(moth.equal(x:narrow(1, 300, 300):clone():erfinv(), y:narrow(1, 300, 300)))
      assert.is_true(moth.allclose(y:narrow(1, 2, 999):erf(), x:narrow(1, 2, 999), 1e-6, 1e-7))
    end
  end)
end)
