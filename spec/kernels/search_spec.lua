-- Positions in sorted tables (kernels/cpu/search.c) beside counts of the elements before each value.
local moth = require "moth"

-- How many of a row of the table are before each value of the same row, from 1. NaN is larger than all numbers.
local function counted(table, wanted, right)
  local t, v = table:unsqueeze(-2), wanted:unsqueeze(-1)
  local before = right and t:le(v) or not right and t:lt(v)
  if table:is_floating_point() then before = before:logical_or(v:isnan()) end
  return before:sum(-1) + 1
end

describe("searchsorted #quick", function()
  local threads = moth.get_num_threads()
  after_each(function() moth.set_num_threads(threads) end)

  it("in tables of every size, for numbers of values around a block", function()
    for n = 0, 35 do
      local table = moth.randint(0, 20, { n }):float():sort()
      for _, m in ipairs { 0, 1, 15, 16, 17, 40 } do
        local x = moth.randint(-1, 21, { m }):float()
        for _, right in ipairs { false, true } do
          local got = moth.searchsorted(table, x, { right = right })
          assert.is_true(moth.equal(counted(table, x, right), got), n .. " " .. m)
          assert.is_true(moth.equal(got, moth.bucketize(x, table, { right = right })))
        end
      end
    end
  end)

  it("in each dtype, with the ends of its range", function()
    for _, dtype in ipairs { "int8", "uint8", "int16", "int32", "int64", "bool", "float16", "bfloat16", "float32",
      "float64" } do
      local float = moth[dtype].is_floating_point
      local ends = dtype == "bool" and { 0, 1 } or dtype == "uint8" and { 0, 255 } or { -128, 127 }
      local list = { ends[1], ends[1], 0, 0, 1, ends[2] }
      if float then list = { -math.huge, -128, 0, 0, 1, 127, math.huge, 0 / 0, 0 / 0 } end
      local table = moth.tensor(list):to(moth[dtype]):sort()
      for _, right in ipairs { false, true } do
        local want = counted(table, table, right)
        assert.is_true(moth.equal(want, moth.searchsorted(table, table, { right = right })), dtype)
        local narrow = moth.searchsorted(table, table, { right = right, out_int32 = true })
        assert.equal(moth.int32, narrow:dtype())
        assert.is_true(moth.equal(want:int(), narrow))
      end
    end
  end)

  it("in rows, of any strides, and of two dtypes", function()
    local table, x = moth.randn(3, 4, 33):sort(), moth.randn(3, 4, 21)
    local want = counted(table, x, false)
    assert.is_true(moth.equal(want, moth.searchsorted(table, x)))
    local turned = table:permute(3, 1, 2):contiguous():permute(2, 3, 1)
    local cut = moth.randn(3, 4, 42)[{ {}, {}, { 1, 42, 2 } }]:copy_(x)
    assert.is_true(moth.equal(want, moth.searchsorted(turned, cut)))
    assert.is_true(moth.equal(want, moth.searchsorted(table, x:double())))
    local numbers = moth.tensor({ 1, 4, 9 }, { dtype = moth.int64 })
    assert.same({ 2, 4 }, moth.searchsorted(numbers, moth.tensor { 1.5, 100 }):totable())
    local order = moth.randperm(33)
    assert.is_true(moth.equal(want, moth.searchsorted(table:index_select(3, order), x,
      { sorter = order:argsort():expand(3, 4, 33) })))
    assert.same({ 2, 0, 5 }, moth.searchsorted(moth.zeros(2, 0, 3), moth.zeros(2, 0, 5)):size())
    assert.same({ { 1, 1 }, { 1, 1 } }, moth.searchsorted(moth.zeros(2, 0), moth.randn(2, 2)):totable())
  end)

  it("of many values, by two threads as by one", function()
    local table, x = moth.randn(7, 1000):sort(), moth.randn(7, 5003)
    moth.set_num_threads(1)
    local one = moth.searchsorted(table, x)
    moth.set_num_threads(2)
    assert.is_true(moth.equal(one, moth.searchsorted(table, x)))
    for k = 1, 7 do assert.is_true(moth.equal(one[k], moth.searchsorted(table[k], x[k]))) end
  end)
end)
