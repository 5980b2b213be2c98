-- cdist and pdist: values, near rows, derivatives, and the memory they take.
local moth = require "moth"
local F = moth.nn.functional
local double = { dtype = moth.float64 }
local norms = { 0, 0.5, 1, 1.5, 2, 3, math.huge }

local function plain(x, y, p)
  local d = (x:unsqueeze(-2) - y:unsqueeze(-3)):abs()
  if p == 0 then return d:ne(0):to(x:dtype()):sum(-1) end
  if p == math.huge then return d:amax(-1) end
  return d:pow(p):sum(-1):pow(1 / p)
end

describe("cdist", function()
  it("has all norms, for few and many rows and columns", function()
    moth.manual_seed(2)
    for _, size in ipairs { { 1, 1, 1 }, { 3, 5, 2 }, { 7, 33, 17 }, { 40, 35, 1 }, { 50, 70, 64 }, { 26, 24, 100 } } do
      local x, y = moth.randn(size[1], size[3], double), moth.randn(size[2], size[3], double)
      for _, p in ipairs(norms) do
        assert.is_true(moth.cdist(x, y, p):allclose(plain(x, y, p), 1e-9, 1e-9))
        assert.is_true(moth.cdist(x:float(), y:float(), p):double():allclose(plain(x, y, p), 1e-4, 1e-4))
      end
    end
  end)
  it("broadcasts batches, takes strided and empty tensors", function()
    local x, y = moth.randn(2, 1, 4, 3, double), moth.randn(5, 6, 3, double)
    assert.is_true(moth.cdist(x, y):allclose(plain(x, y, 2)))
    assert.is_true(moth.cdist(x.mT:contiguous().mT, y):allclose(plain(x, y, 2)))
    assert.same({ 0, 4 }, { unpack(moth.cdist(moth.randn(0, 3), moth.randn(4, 3)):size()) })
    assert.same({ { 0, 0 } }, moth.cdist(moth.randn(1, 0), moth.randn(2, 0)):totable())
    assert.error_matches(function() moth.cdist(moth.randn(2, 3), moth.randn(2, 4)) end, "%[cdist%] expected")
    assert.error_matches(function() moth.cdist(moth.randn(2, 2, 3), moth.randn(3, 2, 3)) end, "%[cdist%] the batches")
    assert.error_matches(function() moth.cdist(moth.randn(2, 3), moth.randn(2, 3), -1) end, "p")
  end)
  it("does not lose the distances of near rows far from 0", function()
    local x = moth.randn(100, 64) + 1000
    local y = x + moth.randn(100, 64) * 1e-3
    local want = plain(x:double(), y:double(), 2)
    assert.is_true(moth.cdist(x, y):double():allclose(want, 1e-4, 1e-6))
    assert.is_true(moth.cdist(x, x):diagonal():eq(0):all():item())
  end)
  it("passes NaN on", function()
    local x, y = moth.randn(30, 40), moth.randn(30, 40)
    x[{ 3, 5 }] = 0 / 0
    for _, p in ipairs(norms) do
      if p > 0 then
        local d = moth.cdist(x, y, p):isnan()
        assert.is_true(d[3]:all():item())
        assert.is_false(d[2]:any():item())
      end
    end
  end)
  it("has derivatives of first and second order", function()
    moth.manual_seed(4)
    for _, p in ipairs { 1, 2, 3, math.huge } do
      local x, y = moth.randn(3, 4, double):requires_grad_(), moth.randn(2, 4, double):requires_grad_()
      assert.is_true(moth.autograd.gradcheck(function(a, b) return moth.cdist(a, b, p) end, { x, y }))
      assert.is_true(moth.autograd.gradgradcheck(function(a, b) return moth.cdist(a, b, p) end, { x, y }))
    end
    local x, y = moth.randn(40, 35, double):requires_grad_(), moth.randn(37, 35, double):requires_grad_()
    local g = moth.randn(40, 37, double)
    for _, p in ipairs { 1, 1.5, 2, 4, math.huge } do
      local a = { moth.autograd.grad(moth.cdist(x, y, p), { x, y }, g) }
      local b = { moth.autograd.grad(plain(x, y, p), { x, y }, g) }
      assert.is_true(a[1]:allclose(b[1]) and a[2]:allclose(b[2]))
    end
  end)
  it("has the derivative 0 where rows are equal", function()
    for _, p in ipairs(norms) do
      local x = moth.ones(2, 3):requires_grad_()
      moth.cdist(x, moth.ones(2, 3), p):sum():backward()
      assert.same({ { 0, 0, 0 }, { 0, 0, 0 } }, x.grad:totable())
    end
  end)
  it("takes memory for the result alone", function()
    local x, y = moth.randn(500, 100), moth.randn(500, 100)
    x:requires_grad_()
    collectgarbage()
    moth.memory.reset_peak()
    local before = moth.memory.stats().live
    moth.cdist(x, y):sum():backward()
    assert.is_true(moth.memory.stats().peak - before < 12 * 4 * 500 * 500)
  end)
  it("has the same bits for any number of threads", function()
    local x, y = moth.randn(300, 50), moth.randn(310, 50)
    local threads = moth.get_num_threads()
    for _, p in ipairs { 1, 2 } do
      local function both()
        local a = x:clone():requires_grad_()
        local d = moth.cdist(a, y, p)
        d:square():sum():backward()
        return d:detach(), a.grad
      end
      moth.set_num_threads(1)
      local d1, g1 = both()
      moth.set_num_threads(3)
      local d3, g3 = both()
      moth.set_num_threads(threads)
      assert.is_true(d1:equal(d3) and g1:equal(g3))
    end
  end)
end)

describe("pdist", function()
  it("has the distances of all pairs, in order", function()
    for _, size in ipairs { { 1, 3 }, { 2, 3 }, { 5, 2 }, { 19, 7 }, { 70, 5 } } do
      local x = moth.randn(size[1], size[2], double)
      for _, p in ipairs(norms) do
        local full, want = plain(x, x, p):totable(), {}
        for i = 1, size[1] do for j = i + 1, size[1] do want[#want + 1] = full[i][j] end end
        local got = F.pdist(x, p):totable()
        assert.equal(#want, #got)
        for k = 1, #want do assert.is_near(want[k], got[k], 1e-9 * (1 + want[k])) end
      end
    end
  end)
  it("has derivatives of first and second order", function()
    for _, p in ipairs { 1, 2, 3 } do
      local x = moth.randn(5, 3, double):requires_grad_()
      assert.is_true(moth.autograd.gradcheck(function(a) return F.pdist(a, p) end, { x }))
      assert.is_true(moth.autograd.gradgradcheck(function(a) return F.pdist(a, p) end, { x }))
    end
  end)
end)
