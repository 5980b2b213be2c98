-- topk against sort: the few, the many, ties, orders that are bad for it, dimensions that are not the last.
local moth = require "moth"

local function same(x, k, dim, largest)
  local values, at = moth.topk(x, k, dim, largest)
  local sorted, where = moth.sort(x, dim, largest)
  assert.is_true(moth.allclose(values:double(), sorted:narrow(dim, 1, k):double(), 0, 0, true)) -- NaN equals NaN
  assert.is_true(at:equal(where:narrow(dim, 1, k))) -- sort is stable: of equal ones the first
end

describe("topk", function()
  before_each(function() moth.manual_seed(7) end)

  it("is the beginning of a stable sort", function()
    for _, n in ipairs({ 1, 2, 47, 65, 66, 67, 256, 257, 1000, 5000 }) do
      for _, k in ipairs({ 1, 2, 7, 47, 48, 49, 100, 600, n }) do
        if k <= n then
          local x = moth.randn(3, n)
          local orders = { x, moth.randint(1, 9, { 2, n }), moth.sort(x, 2), (moth.sort(x, 2, true)), moth.zeros(1, n) }
          for _, t in ipairs(orders) do
            same(t, k, 2, true)
            same(t, k, 2, false)
          end
        end
      end
    end
  end)

  it("of any dtype, with NaN, infinities and both zeros", function()
    local x = moth.randn(2, 700) * 10
    for i, v in ipairs({ 0 / 0, math.huge, -math.huge, 0, -0, 0 / 0 }) do x[2][50 * i] = v end
    for _, d in ipairs({ "float32", "float64", "float16", "bfloat16" }) do
      for _, k in ipairs({ 5, 60 }) do
        same(x:to(moth[d]), k, 2, true)
        same(x:to(moth[d]), k, 2, false)
      end
    end
    for _, d in ipairs({ "int64", "int32", "int16", "int8", "uint8", "bool" }) do
      local t = moth.randint(0, 100, { 2, 700 }):to(moth[d])
      if d:find("^int") then t = t - 50 end
      for _, k in ipairs({ 5, 60 }) do
        same(t, k, 2, true)
        same(t, k, 2, false)
      end
    end
  end)

  it("along other dimensions, of views", function()
    local x = moth.randn(300, 4, 5)
    same(x, 20, 1, true)
    same(x, 80, 1, false)
    same(x:transpose(1, 3), 80, 3, true)
    same(x:narrow(1, 3, 290), 3, 1, true)
  end)
end)
