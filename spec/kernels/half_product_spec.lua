-- Products of float16 and bfloat16 on the CPU: by oneDNN where the processor multiplies bfloat16, else by pieces of the
-- operands that are widened to float32. Summed in float32, rounded once.
local moth = require "moth"

local function check(dtype, m, k, n, ta, tb)
  local a = ta and moth.randn(k, m):to(dtype):t() or moth.randn(m, k):to(dtype)
  local b = tb and moth.randn(n, k):to(dtype):t() or moth.randn(k, n):to(dtype)
  local got, want = a:matmul(b), a:double():matmul(b:double())
  assert.equal(dtype, got:dtype())
  local eps = dtype == moth.bfloat16 and 2 ^ -8 or 2 ^ -11
  local off = (got:double() - want):abs():sub(want:abs() * eps):max():item()
  assert.is_true(off < 1e-5 * k, ("%s %d x %d x %d: off by %g"):format(dtype.name, m, k, n, off))
  return got
end

local sizes = { { 1, 1, 1 }, { 1, 300, 7 }, { 5, 33, 17 }, { 64, 64, 64 }, { 3, 1100, 401 }, { 300, 513, 65 },
  { 17, 5, 500 }, { 257, 40, 385 } }

local function all(ta, tb)
  for _, dtype in ipairs { moth.bfloat16, moth.float16 } do
    for _, s in ipairs(sizes) do check(dtype, s[1], s[2], s[3], ta, tb) end
  end
end

describe("products of halves on the CPU", function()
  it("of odd sizes, in all layouts, are float32's sums rounded once #quick", function()
    moth.manual_seed(3)
    all(false, false)
    all(false, true)
    all(true, false)
    all(true, true)
  end)

  it("by widened pieces, as on older processors", function()
    local level = moth.cpu_level()
    finally(function() moth.cpu_level(level) end)
    for _, name in ipairs(require "levels") do
      if name ~= "avx512" then
        moth.cpu_level(name)
        moth.manual_seed(4)
        all(false, true)
        all(true, false)
      end
    end
  end)

  it("of operands that are packed in several passes", function()
    moth.manual_seed(5)
    for _, dtype in ipairs { moth.bfloat16, moth.float16 } do
      check(dtype, 131, 16000, 133, false, true)
      check(dtype, 133, 16000, 131, true, false)
    end
  end)

  it("have bits that do not depend on threads", function()
    local threads = moth.get_num_threads()
    finally(function() moth.set_num_threads(threads) end)
    for _, dtype in ipairs { moth.bfloat16, moth.float16 } do
      for _, n in ipairs { 180, 700 } do
        local a, b = moth.randn(200, 300):to(dtype), moth.randn(300, n):to(dtype)
        moth.set_num_threads(1)
        local one = a:matmul(b)
        moth.set_num_threads(3)
        assert.is_true(moth.equal(one, a:matmul(b)))
      end
    end
  end)

  it("take infinities, empty sums, biases and batches", function()
    local bf = moth.bfloat16
    local a = moth.tensor({ { math.huge, 1 }, { 2, 3 } }):to(bf)
    local got = a:matmul(moth.ones(2, 2):to(bf))
    assert.same({ { math.huge, math.huge }, { 5, 5 } }, got:float():tolist())
    assert.same({ { 0, 0 } }, moth.zeros(1, 0):to(bf):matmul(moth.zeros(0, 2):to(bf)):float():tolist())
    assert.same({ 0, 4 }, { moth.zeros(0, 3):to(bf):matmul(moth.zeros(3, 4):to(bf)):size(1),
      moth.zeros(0, 3):to(bf):matmul(moth.zeros(3, 4):to(bf)):size(2) })
    local x, w, b = moth.randn(9, 33):to(bf), moth.randn(21, 33):to(bf), moth.randn(21):to(bf)
    local y = moth.F.linear(x, w, b)
    assert.is_true(moth.allclose(y:float(), moth.F.linear(x:float(), w:float(), b:float()), 1e-2, 1e-2))
    local p, q = moth.randn(4, 17, 19):to(bf), moth.randn(4, 19, 23):to(bf)
    assert.is_true(moth.allclose(p:matmul(q):float(), p:float():matmul(q:float()), 1e-2, 1e-2))
  end)
end)
