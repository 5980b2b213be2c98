-- Products of few rows which have a kernel of their own (kernels/cpu/typed/rows.h): against
-- float64, by size and layout; the same bits for any number of rows and threads.
local moth = require "moth"
local each = require "moth.each"

describe("products of few rows", function()
  local function exact(x, w) return x:to(moth.float64):matmul(w:to(moth.float64):t()) end

  it("are right for odd sizes, gaps, a bias, both dtypes", function()
    moth.manual_seed(1)
    for _, dtype in ipairs { moth.float32, moth.float64 } do
      local tolerance = dtype == moth.float32 and 2e-4 or 1e-11
      local whole = moth.randn({ 1031, 600 }, { dtype = dtype })
      for _, w in ipairs { whole, whole:narrow(2, 3, 523), whole:narrow(1, 2, 1025) } do
        local bias = moth.randn({ w:size(1) }, { dtype = dtype })
        for _, m in ipairs { 1, 2, 3, 4, 5, 8, 16, 17 } do
          local x = moth.randn({ m, w:size(2) }, { dtype = dtype })
          local want = exact(x, w)
          assert.is_true(moth.allclose(moth.linear(x, w):to(moth.float64), want, 0, tolerance))
          assert.is_true(moth.allclose(moth.linear(x, w, bias):to(moth.float64), want + bias, 0, tolerance))
          assert.is_true(moth.allclose(x:matmul(w:t()):to(moth.float64), want, 0, tolerance))
        end
        local sum = moth.addmm(bias, moth.ones({ 2, w:size(2) }, { dtype = dtype }), w:t(), { beta = 0.5, alpha = 2 })
        assert.is_true(moth.allclose(sum[1]:to(moth.float64), (bias * 0.5 + w:sum(2) * 2):to(moth.float64), 0,
          10 * tolerance))
      end
    end
  end)

  it("are right for 16-bit floats, and where rows of the second matrix lie in one piece", function()
    moth.manual_seed(2)
    local tolerance = { float32 = 1e-4, float64 = 1e-11, bfloat16 = 1e-2, float16 = 2e-3 }
    for name, near in each(tolerance) do
      for _, s in ipairs { { 300, 259 }, { 1033, 77 }, { 262, 513 } } do
        local k, n = s[1], s[2]
        local w = moth.randn(k, n):to(moth[name])
        local weight = w:t():contiguous()
        for _, m in ipairs { 1, 3, 5, 16, 17, 32 } do
          local x = moth.randn(m, k):to(moth[name])
          local want = exact(x, weight)
          local limit = near * want:abs():max():item()
          for _, y in ipairs { x:matmul(w), moth.linear(x, weight), x:matmul(w:narrow(2, 2, n - 1)) } do
            local off = n - y:size(2)
            local far = (y:to(moth.float64) - want:narrow(2, 1 + off, n - off)):abs():max():item()
            assert.is_true(far <= limit, ("%s %d x %d x %d: %g of %g"):format(name, m, k, n, far, limit))
          end
        end
      end
    end
    local bias, w = moth.randn(1, 300), moth.randn(300, 300)
    local sum = moth.addmm(bias, moth.ones(3, 300), w, { beta = 0.5, alpha = 2 })
    assert.is_true(moth.allclose(sum[2], (bias * 0.5 + w:sum(1) * 2):view(-1), 0, 1e-3))
  end)

  it("have the same bits for any number of rows and threads", function()
    local w, x = moth.randn(1026, 515), moth.randn(16, 515)
    local all, before = moth.linear(x, w), moth.get_num_threads()
    for _, m in ipairs { 1, 2, 3, 7 } do
      assert.is_true(moth.linear(x:narrow(1, 5, m), w):equal(all:narrow(1, 5, m)))
    end
    finally(function() moth.set_num_threads(before) end)
    moth.set_num_threads(1)
    assert.is_true(moth.linear(x, w):equal(all))
    moth.set_num_threads(3)
    assert.is_true(moth.linear(x, w):equal(all))
  end)

  it("take infinities and NaN where they are", function()
    local w, x = moth.ones(1024, 512), moth.zeros(2, 512)
    w[7][512] = math.huge
    x[2][1] = 0 / 0
    local y = moth.linear(x, w)
    assert.equal(0, y[1][1]:item())
    assert.is_true(y[1][7]:isnan():item() and y[2]:isnan():all():item())
  end)
end)
