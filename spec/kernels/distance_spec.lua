-- The derivative of cdist by products of matrices: kernels/cpu/distance.c.
local moth = require "moth"

-- The derivatives by differences, in float64.
local function plain(x, y, g)
  local d = x:double():unsqueeze(3) - y:double():unsqueeze(2) -- (B, P, R, M)
  local dist = (d * d):sum(4):sqrt()
  local w = moth.where(dist:eq(0), 0, g:double() / dist):unsqueeze(4)
  return (w * d):sum(3), -(w * d):sum(2)
end

local function derivatives(x, y, g)
  x, y = x:detach():requires_grad_(true), y:detach():requires_grad_(true)
  return moth.autograd.grad(moth.cdist(x, y), { x, y }, g)
end

describe("the derivative of cdist", function()
  local threads = moth.get_num_threads()
  before_each(function() moth.manual_seed(2) end)
  after_each(function() moth.set_num_threads(threads) end)

  it("is right by products of long rows, also where rows are near", function()
    for i, o in ipairs { { 2, 70, 30, 40 }, { 1, 24, 129, 24 }, { 3, 65, 64, 31 }, { 1, 130, 24, 200 } } do
      for dtype, near in pairs { float32 = 2e-5, float64 = 1e-12 } do
        local x, y = moth.randn(o[1], o[2], o[4]):to(moth[dtype]), moth.randn(o[1], o[3], o[4]):to(moth[dtype])
        y:narrow(2, 1, 5):copy_(x:narrow(2, 3, 5) + 1e-3 * moth.randn(o[1], 5, o[4]):to(moth[dtype]))
        y:narrow(2, 7, 1):copy_(x:narrow(2, 9, 1))
        if i == 3 then x, y = x + 50, y + 50 end -- far from the origin
        local g = moth.randn(o[1], o[2], o[3]):to(moth[dtype])
        if i == 2 then g = moth.randn(1, o[2], 1):to(moth[dtype]):expand(o[1], o[2], o[3]) end
        if i == 3 then g = g:transpose(2, 3):contiguous():transpose(2, 3) end
        local a, b = derivatives(x, y, g)
        local c, d = plain(x, y, g)
        for _, pair in ipairs { { a, c }, { b, d } } do
          local off = (pair[1]:double() - pair[2]):abs():max():item() / pair[2]:abs():max():item()
          assert.is_true(off <= near * (i == 3 and 50 or 1), ("case %d, %s: off by %g"):format(i, dtype, off))
        end
      end
    end
  end)

  it("keeps infinite gradients where they are, and the bits for any number of threads", function()
    local x, y, g = moth.randn(1, 300, 40), moth.randn(1, 200, 40), moth.randn(1, 300, 200)
    g[1][5][7] = math.huge
    local seen = {}
    for n = 1, 2 do
      moth.set_num_threads(n)
      seen[n] = { derivatives(x, y, g) }
    end
    assert.equal(40, seen[1][1]:isinf():sum():item())
    assert.equal(40, seen[1][2]:isinf():sum():item())
    for i = 1, 2 do assert.is_true(moth.equal(seen[1][i], seen[2][i])) end
  end)
end)
