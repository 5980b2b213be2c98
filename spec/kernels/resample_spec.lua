-- Sums of weighted rows, which resizing is made of: kernels/cpu/resample.c.
local moth = require "moth"
local B = require "moth_lua"
local F = moth.nn.functional
local ops = B.ops

-- outer, rows, inner, rows of the result, taps
local shapes = {
  { 3, 5, 1, 7, 2 }, { 37, 33, 1, 18, 4 }, { 2, 6, 3, 5, 5 }, { 1, 9, 2100, 4, 3 }, { 4, 8, 16, 3, 1 },
  { 17, 40000, 1, 3, 2 }, { 0, 4, 3, 2, 2 }, { 2, 4, 0, 3, 2 }, { 2, 4, 3, 5, 0 },
}

-- The same as a product with a dense matrix.
local function dense(o, places, weights)
  local m = moth.zeros(o[4], o[2], { dtype = moth.float64 })
  for k = 1, o[5] do m:scatter_add_(2, places:narrow(2, k, 1), weights:narrow(2, k, 1):double()) end
  return m
end

describe("sums of weighted rows", function()
  local threads = moth.get_num_threads()
  before_each(function() moth.manual_seed(5) end)
  after_each(function() moth.set_num_threads(threads) end)

  it("are a product with a matrix, and back, of each dtype", function()
    for i, o in ipairs(shapes) do
      local places = moth.randint(1, o[2] + 1, { o[4], o[5] })
      for dtype, near in pairs { float32 = 1e-5, float64 = 1e-14, float16 = 4e-3, bfloat16 = 3e-2 } do
        local d = moth[dtype]
        local x, weights = moth.randn(o[1], o[2], o[3]):to(d), moth.randn(o[4], o[5]):to(d)
        local g, m = moth.randn(o[1], o[4], o[3]):to(d), dense(o, places, weights)
        local y = ops.native_resample(x, places, weights)
        local back = ops.native_resample_backward(g, o[2], places, weights)
        assert.is_true(moth.allclose(y:double(), m:matmul(x:double()), near, near), i .. " " .. dtype)
        assert.is_true(moth.allclose(back:double(), m.mT:matmul(g:double()), near, near), i .. " back " .. dtype)
      end
    end
  end)

  it("have the same bits for any number of threads", function()
    for _, o in ipairs { { 400, 65, 1, 130, 3 }, { 12, 40, 3000, 61, 4 } } do
      local x, g = moth.randn(o[1], o[2], o[3]), moth.randn(o[1], o[4], o[3])
      local places, weights, seen = moth.randint(1, o[2] + 1, { o[4], o[5] }), moth.randn(o[4], o[5]), {}
      for n = 1, 2 do
        moth.set_num_threads(n)
        seen[n] = { ops.native_resample(x, places, weights), ops.native_resample_backward(g, o[2], places, weights) }
      end
      for i = 1, 2 do assert.is_true(moth.equal(seen[1][i], seen[2][i])) end
    end
  end)

  it("let infinities and NaN stay where they are", function()
    local x = moth.zeros(1, 1, 8, 8)
    x[1][1][3][3], x[1][1][7][7] = math.huge, 0 / 0
    for _, mode in ipairs { "bilinear", "bicubic" } do
      local y = F.interpolate(x, { scale_factor = 2, mode = mode })
      assert.equal(0, y[1][1][16][1]:item())
      assert.is_true(y:isfinite():sum():item() >= 120, mode)
    end
  end)

  it("give images their derivatives", function()
    local x = moth.randn(2, 2, 5, 4):double():requires_grad_(true)
    for mode, how in pairs { bilinear = { size = { 8, 3 } }, bicubic = { scale_factor = { 1.7, 0.6 } },
      nearest = { size = { 3, 9 } } } do
      how.mode = mode
      assert.is_true(moth.autograd.gradcheck(function(t) return F.interpolate(t, how) end, { x }), mode)
    end
    local lines = moth.randn(3, 2, 6):double():requires_grad_(true)
    assert.is_true(moth.autograd.gradcheck(function(t)
      return F.interpolate(t, { size = 9, mode = "linear", align_corners = true })
    end, { lines }))
    local half = moth.randn(2, 2, 5, 4):to(moth.bfloat16):requires_grad_(true)
    F.interpolate(half, { scale_factor = 2 }):sum():backward()
    assert.is_true(moth.equal(half.grad, moth.full({ 2, 2, 5, 4 }, 4, { dtype = moth.bfloat16 })))
  end)

  it("refuse places that are out of range", function()
    local x, w = moth.randn(2, 3, 4), moth.ones(2, 1)
    assert.error_matches(function()
      ops.native_resample(x, moth.tensor { { 4 }, { 1 } }:long(), w)
    end, "index 4 is out of range")
    assert.error_matches(function()
      ops.native_resample_backward(moth.randn(2, 2, 4), 3, moth.tensor { { 0 }, { 1 } }:long(), w)
    end, "index 0 is out of range")
  end)
end)
