-- Convolutions by patches that do not overlap, which the CPU makes by products: kernels/cpu/conv_patches.c.
local moth = require "moth"
local F = moth.nn.functional

-- images, channels, results, height, width, kernel (y, x), groups
local shapes = {
  { 2, 3, 20, 32, 48, 16, 16, 1 }, { 3, 2, 17, 19, 23, 4, 5, 1 }, { 11, 4, 32, 9, 12, 4, 4, 2 },
  { 1, 16, 64, 64, 300, 8, 8, 1 }, { 0, 3, 16, 8, 8, 4, 4, 1 }, { 9, 3, 16, 8, 8, 8, 8, 1 },
  { 1, 2, 16, 5, 40, 1, 16, 1 }, { 2, 2, 16, 33, 4, 16, 1, 1 },
}

-- By its definition, differentiable.
local function reference(o, x, w, b)
  local n, c, k, kh, kw, groups = o[1], o[2], o[3], o[6], o[7], o[8]
  local oh, ow = math.floor(o[4] / kh), math.floor(o[5] / kw)
  local patches = x:narrow(3, 1, oh * kh):narrow(4, 1, ow * kw):reshape(n, groups, c / groups, oh, kh, ow, kw)
  local y = moth.einsum("gkcij,ngcyixj->ngkyx", w:reshape(groups, k / groups, c / groups, kh, kw), patches)
  return y:reshape(n, k, oh, ow) + b:view(k, 1, 1)
end
local function conv(o, x, w, b) return F.conv2d(x, w, b, { stride = { o[6], o[7] }, groups = o[8] }) end

local function operands(o, dtype)
  return { moth.randn(o[1], o[2], o[4], o[5]):to(dtype), moth.randn(o[3], o[2] / o[8], o[6], o[7]):to(dtype),
    moth.randn(o[3]):to(dtype) }
end
local function results(f, o, given, g, dtype)
  local t = {}
  for i = 1, 3 do t[i] = given[i]:to(dtype):detach():requires_grad_(true) end
  local y = f(o, t[1], t[2], t[3])
  y:backward(g:to(dtype))
  return { y:detach(), t[1].grad, t[2].grad, t[3].grad }
end

describe("convolutions by patches", function()
  local threads = moth.get_num_threads()
  before_each(function() moth.manual_seed(4) end)
  after_each(function() moth.set_num_threads(threads) end)

  it("agree with their definition, whatever the dtype", function()
    for _, o in ipairs(shapes) do
      for name, near in pairs { float32 = 1e-5, float64 = 1e-13, bfloat16 = 1e-2, float16 = 2e-3 } do
        local dtype = moth[name]
        local given = operands(o, dtype)
        local g = moth.randn(o[1], o[3], math.floor(o[4] / o[6]), math.floor(o[5] / o[7])):to(dtype)
        local got, want = results(conv, o, given, g, dtype), results(reference, o, given, g, moth.float64)
        for i = 1, 4 do
          assert.equal(table.concat(want[i]:size(), " "), table.concat(got[i]:size(), " "))
          if want[i]:numel() > 0 then
            local off = (got[i]:double() - want[i]):abs():max():item() / math.max(want[i]:abs():max():item(), 1e-3)
            assert.is_true(off <= near, ("result %d of %s %s is off by %g"):format(i, table.concat(o, " "), name, off))
          end
        end
      end
    end
  end)

  it("have the same bits for any number of threads", function()
    for _, o in ipairs(shapes) do
      local given, seen = operands(o, moth.float32), {}
      local g = moth.randn(o[1], o[3], math.floor(o[4] / o[6]), math.floor(o[5] / o[7]))
      for n = 1, 2 do
        moth.set_num_threads(n)
        seen[n] = results(conv, o, given, g, moth.float32)
      end
      for i = 1, 4 do assert.is_true(moth.equal(seen[1][i], seen[2][i]), table.concat(o, " ")) end
    end
  end)

  it("hand on what comes behind them", function()
    for _, o in ipairs(shapes) do
      local given = operands(o, moth.float32)
      local function f(x, w, b) return F.relu(conv(o, x, w, b)) * 2 end
      local got, want = moth.compile(f)(given[1], given[2], given[3]), f(given[1], given[2], given[3])
      assert.is_true(moth.allclose(want, got))
    end
  end)
end)
