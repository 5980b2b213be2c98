-- multinomial: what is drawn, how often, and that neither threads nor sizes change it.
local moth = require "moth"

local function share(drawn, classes)
  local counts = moth.bincount(drawn:reshape(-1), { minlength = classes })
  return (counts:double() / drawn:numel()):totable()
end

describe("multinomial", function()
  it("draws classes as often as they weigh, those of weight 0 never", function()
    moth.manual_seed(11)
    local w = moth.tensor { 0, 1, 0, 2, 5, 0, 0, 2, 0 }
    local got = share(w:multinomial(100000, true), 9)
    for k, want in ipairs { 0, 0.1, 0, 0.2, 0.5, 0, 0, 0.2, 0 } do
      assert.is_near(want, got[k], want == 0 and 0 or 0.01)
    end
    local rows = w:expand(50000, 9):multinomial(4)
    assert.is_true(rows:sort(2):eq(moth.tensor { 2, 4, 5, 8 }):all():item())
    local first = share(rows:select(2, 1), 9)
    assert.is_near(0.5, first[5], 0.01)
    -- second draws: the sum over other first ones of p1 p2 / (1 - p1)
    local second = share(rows:select(2, 2), 9)
    assert.is_near(0.1 * 0.5 / 0.9 + 2 * 0.2 * 0.5 / 0.8, second[5], 0.01)
  end)
  it("draws each class once, of many and of few, in each row", function()
    for _, n in ipairs { 1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 257, 5000 } do
      local x = (moth.rand(2, n) + 1e-3):multinomial(n)
      assert.is_true(x:sort(2):eq(moth.arange(1, n + 1)):all():item())
    end
    local tiny = moth.full({ 1000 }, 1e-30)
    tiny[500] = 1e30 -- what is left of the others must not be lost
    local x = tiny:multinomial(1000)
    assert.equal(500, x[1]:item())
    assert.is_true((x:sort()):eq(moth.arange(1, 1001)):all():item())
  end)
  it("draws the same for any number of threads", function()
    local w, threads = moth.rand(7, 3000), moth.get_num_threads()
    local function draws()
      moth.manual_seed(5)
      return w:multinomial(4000, true), w:multinomial(900)
    end
    moth.set_num_threads(1)
    local a, b = draws()
    moth.set_num_threads(3)
    local c, d = draws()
    moth.set_num_threads(threads)
    assert.is_true(a:equal(c) and b:equal(d))
  end)
  it("takes other dtypes and strides, and refuses what cannot be drawn", function()
    for _, dtype in ipairs { moth.float64, moth.float16, moth.bfloat16 } do
      assert.same({ 2, 2 }, moth.tensor({ 0, 1, 0 }):to(dtype):multinomial(2, true):tolist())
    end
    assert.same({ { 2 }, { 1 } }, moth.tensor { { 0, 1 }, { 3, 0 } }:t():multinomial(1):totable())
    assert.error_matches(function() moth.tensor { 1, -1 }:multinomial(1) end, "negative")
    assert.error_matches(function() moth.tensor { 1, 0 / 0 }:multinomial(1, true) end, "NaN")
    assert.error_matches(function() moth.tensor { 1, 0 }:multinomial(2) end, "more than the 1 positive")
    assert.error_matches(function() moth.tensor { 0, 0 }:multinomial(1, true) end, "more than the 0 positive")
  end)
end)
