-- Products with a vector: by the kernel for few rows, in both layouts; against float64 and element by element.
local moth = require "moth"

describe("a matrix times a vector", function()
  local function check(label, y, w, x, tolerance)
    local want = (w:to(moth.float64) * x:to(moth.float64)):sum(2)
    local scale = (w:to(moth.float64):abs() * x:to(moth.float64):abs()):sum(2)
    local off = ((y:to(moth.float64) - want):abs() / (scale + 1e-30)):max():item()
    assert.is_true(off < tolerance, ("%s: off by %g of the sum of sizes"):format(label, off))
  end

  for _, s in ipairs { { 1, 5 }, { 7, 1 }, { 300, 333 }, { 513, 1025 }, { 4099, 65 }, { 17, 9001 } } do
    local m, k = s[1], s[2]
    it(("of %d by %d, in both layouts and with strides"):format(m, k), function()
      moth.manual_seed(m + k)
      for _, dtype in ipairs { moth.float32, moth.float64, moth.bfloat16, moth.float16 } do
        local tolerance = dtype == moth.float64 and 1e-15 or dtype == moth.float32 and 3e-7 or 1e-2
        local w = moth.randn(m, k):to(dtype)
        local transposed = moth.randn(k, m):to(dtype):t()
        local x = moth.randn(k):to(dtype)
        local strided = moth.randn(k, 3):to(dtype):select(2, 2)
        for name, matrix in pairs { row_major = w, transposed = transposed } do
          check(name, matrix:mv(x), matrix, x, tolerance)
          check(name .. ", matmul", matrix:matmul(strided), matrix, strided, tolerance)
          local y = moth.randn(m):to(dtype)
          local sum = moth.addmv(y, matrix, x, { beta = 0 })
          check(name .. ", addmv", sum, matrix, x, tolerance)
        end
        check("a column", w:mm(x:unsqueeze(2)):squeeze(2), w, x, tolerance)
      end
    end)
  end

  it("is the same for any number of threads, and for batches", function()
    local w, x = moth.randn(3, 700, 900), moth.randn(3, 900, 1)
    local was, got = moth.get_num_threads(), {}
    for i, n in ipairs { 1, 2 } do
      moth.set_num_threads(n)
      got[i] = w:bmm(x)
    end
    moth.set_num_threads(was)
    assert.is_true(moth.equal(got[1], got[2]))
    for b = 1, 3 do check("batch", got[1][b]:squeeze(2), w[b], x[b]:squeeze(2), 3e-7) end
  end)
end)
