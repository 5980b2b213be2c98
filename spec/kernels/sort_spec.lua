-- sort beside Lua's, by value and place: short rows and long ones, all dtypes, NaN, both zeros, other dimensions, every
-- level of the CPU, any number of threads.
local B = require "moth_lua"
local moth = require "moth"

-- The places of the elements of a list in order.
local function places(list, descending)
  local out = {}
  for i = 1, #list do out[i] = i end
  table.sort(out, function(i, j)
    local a, b = list[i], list[j]
    if descending then a, b = b, a end
    local an, bn = a ~= a, b ~= b
    if an ~= bn then return bn end
    if a == b or an then return i < j end
    return a < b
  end)
  return out
end

local function check(x, levels)
  local rows, best = x:double():tolist(), B.cpu_level()
  for _, descending in ipairs { false, true } do
    local want = {}
    for r, row in ipairs(rows) do want[r] = places(row, descending) end
    for _, level in ipairs(levels or { best }) do
      if pcall(B.cpu_level, level) then
        for _, given in ipairs { x, x:t():contiguous():t() } do
          local dim = given == x and 2 or 1
          local values, at = moth.sort(dim == 2 and given or given:t(), dim, descending)
          if dim == 1 then values, at = values:t(), at:t() end
          assert.same(want, at:tolist(), level)
          assert.is_true(moth.allclose(values:double(), x:gather(2, at):double(), 0, 0, true), level)
        end
        B.cpu_level(best)
      end
    end
  end
end

describe("sort", function()
  before_each(function() moth.manual_seed(3) end)

  it("of float32 rows of any length", function()
    for _, n in ipairs { 1, 2, 15, 16, 17, 48, 49, 95, 96, 97, 200, 1000 } do
      check(moth.randn(3, n), { "generic", "avx2", B.cpu_level() })
      check(moth.randint(0, 5, { 3, n }):float())
    end
  end)

  it("of any dtype, with NaN, infinities and both zeros", function()
    for _, n in ipairs { 60, 130 } do
      local x = moth.randn(2, n) * 5
      for i, v in ipairs { 0 / 0, math.huge, -math.huge, 0, -0.0, 0 / 0, 0, -0.0, 1e-40, -1e-40 } do x[2][5 * i] = v end
      for _, d in ipairs { "float32", "float64", "float16", "bfloat16" } do
        check(x:to(moth[d]), { "generic", "avx2", B.cpu_level() })
      end
      for _, d in ipairs { "int64", "int32", "int16", "int8", "uint8", "bool" } do
        local t = moth.randint(0, 100, { 2, n }):to(moth[d])
        check(d:find("^int") and t - 50 or t, { "generic", "avx2", B.cpu_level() })
      end
    end
  end)

  it("gives the same with two threads, and of several dimensions", function()
    local x = moth.randn(500, 30, 3)
    local values, at = moth.sort(x, 2)
    moth.set_num_threads(2)
    local other, place = moth.sort(x, 2)
    moth.set_num_threads(1)
    assert.is_true(values:equal(other) and at:equal(place))
    assert.is_true(values:equal(moth.sort(x:transpose(2, 3):contiguous(), 3):transpose(2, 3)))
  end)
end)
