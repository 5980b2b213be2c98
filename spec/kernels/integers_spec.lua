-- Products of integers: all sizes around blocks and vectors, layouts, and that they wrap around.
local moth = require "moth"
local dtypes = { "int8", "uint8", "int16", "int32", "int64" }

local function ints(size, dtype)
  return moth.randint(dtype == "uint8" and 0 or -3, 4, size):to(moth[dtype])
end
local function same(got, want) return got:double():equal(want) end

describe("integer products", function()
  it("are those of float64, for sizes around blocks", function()
    for _, dtype in ipairs(dtypes) do
      for _, s in ipairs { { 1, 1, 1 }, { 3, 2, 5 }, { 4, 129, 9 }, { 5, 128, 64 }, { 7, 3, 131 }, { 66, 130, 3 },
        { 33, 0, 4 } } do
        local a, b = ints({ s[1], s[2] }, dtype), ints({ s[2], s[3] }, dtype)
        local wide = dtype == "int8" or dtype == "uint8"
        local want = a:double():mm(b:double())
        if not wide then
          assert.is_true(same(a:mm(b), want))
          assert.is_true(same(a:t():contiguous():t():mm(b:t():contiguous():t()), want))
        else
          assert.is_true(a:mm(b):equal(want:long():to(moth[dtype])))
        end
      end
    end
  end)
  it("of vectors, batches, with addends", function()
    local a, v = ints({ 37, 200 }, "int64"), ints({ 200 }, "int64")
    assert.is_true(same(a:mv(v), a:double():mv(v:double())))
    assert.is_true(same(ints({ 37 }, "int64"):zero_():matmul(a), moth.zeros(200, { dtype = moth.float64 })))
    local x, y = ints({ 3, 5, 6 }, "int32"), ints({ 3, 6, 7 }, "int32")
    assert.is_true(same(x:bmm(y), x:double():bmm(y:double())))
    local m = ints({ 5, 7 }, "int32")
    assert.is_true(same(m:addmm(x[1], y[1], 2, 3), m:double() * 2 + x[1]:double():mm(y[1]:double()) * 3))
    assert.is_true(same(moth.einsum("bij,bjk->ik", x, y), moth.einsum("bij,bjk->ik", x:double(), y:double())))
  end)
  it("wrap around", function()
    local a = moth.full({ 2, 300 }, 100):to(moth.int8)
    assert.same({ { (100 * 100 * 300 + 128) % 256 - 128 } }, { { a:mm(a:t())[{ 1, 1 }]:item() } })
  end)
  it("have the same elements for any number of threads", function()
    local a, threads = ints({ 300, 301 }, "int64"), moth.get_num_threads()
    moth.set_num_threads(3)
    local y = a:mm(a:t())
    moth.set_num_threads(threads)
    assert.is_true(same(y, a:double():mm(a:double():t())))
  end)
end)
