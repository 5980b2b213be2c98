-- Derivatives where a function has a kink, a pole or none, against what PyTorch gives there: NaN in one element of a
-- gradient spoils all of it.
local moth = require "moth"
local F = moth.nn.functional

local inf = math.huge

-- The gradients of fn(...):sum() by its arguments, given as tables of numbers.
local function gradients(fn, ...)
  local inputs, out = {}, {}
  for i, values in ipairs({ ... }) do
    inputs[i] = moth.tensor(values, { dtype = moth.float64, requires_grad = true })
  end
  fn(unpack(inputs)):sum():backward()
  for i, x in ipairs(inputs) do out[i] = x.grad:tolist() end
  return unpack(out)
end

describe("derivatives #quick", function()
  for _, p in ipairs({ 0.5, 1, 2, 3, inf }) do
    it(("of a %g-norm at 0 are 0"):format(p), function()
      assert.same({ 0, 0, 0 }, gradients(function(x) return x:norm(p) end, { 0, 0, 0 }))
      local rows = gradients(function(x) return x:norm(p, 2) end, { { 0, 0 }, { 3, 0 } })
      assert.same({ 0, 0 }, rows[1])
      assert.near(1, rows[2][1], 1e-14)
      assert.equal(0, rows[2][2])
    end)
  end

  it("of norms of negative order are those of the formula", function()
    local g = gradients(function(x) return x:norm(-1) end, { 1, 2 })
    assert.near(4 / 9, g[1], 1e-12)
    assert.near(1 / 9, g[2], 1e-12)
    assert.equal(0, moth.tensor({ 0, 1 }):norm(-1):item())
  end)

  it("of std of equal values are 0", function()
    assert.same({ 0, 0, 0 }, gradients(function(x) return x:std() end, { 2, 2, 2 }))
    assert.same({ 0, 0, 0 }, gradients(function(x) return (moth.std_mean(x)) end, { 2, 2, 2 }))
  end)

  it("of distances and angles of equal points are finite", function()
    local a, b = gradients(moth.cdist, { { 0, 0 }, { 1, 1 } }, { { 0, 0 } })
    assert.same({ 0, 0 }, a[1])
    assert.near(-math.sqrt(0.5), b[1][1], 1e-12)
    local y, x = gradients(moth.atan2, { 0, 0, 1 }, { 0, 1, 0 })
    assert.same({ 0, 1, 0 }, y)
    assert.same({ 0, 0, -1 }, x)
    assert.same({ 1e12, 1e12 }, gradients(function(v) return F.normalize(v, { dim = 1 }) end, { 0, 0 }))
  end)

  it("at the bounds of what is cut are 0", function()
    assert.same({ 0, 0, 1 }, gradients(function(x) return x:clamp(-0.5, 0.5) end, { -0.5, 0.5, 0 }))
    assert.same({ 0, 0, 1 }, gradients(function(x) return x:clamp({ min = 0 }) end, { 0, -1, 1 }))
    assert.same({ 0, 0, 0, 1 }, gradients(function(x) return F.softshrink(x) end, { -0.5, 0.5, 0, 1 }))
    assert.same({ 0, 0, 1 }, gradients(function(x) return F.hardtanh(x) end, { -1, 1, 0 }))
    assert.same({ 0, 1, 0.5 }, gradients(function(x) return F.hardswish(x) end, { -3, 3, 0 }))
    assert.same({ 0, 0 }, gradients(function(x) return F.hardsigmoid(x) end, { -3, 3 }))
  end)

  it("of logit at 0 and 1 are infinite", function()
    assert.same({ inf, 4, inf }, gradients(function(x) return moth.logit(x) end, { 0, 0.5, 1 }))
  end)
end)

describe("norm and std #quick", function()
  it("of halves do not overflow where their result does not", function()
    for _, dtype in ipairs({ moth.float16, moth.bfloat16 }) do
      local x = moth.full({ 4 }, 300, { dtype = dtype, requires_grad = true })
      local norm = x:norm()
      assert.equal(dtype, norm:dtype())
      assert.equal(600, norm:item())
      norm:backward()
      assert.same({ 0.5, 0.5, 0.5, 0.5 }, x.grad:tolist())
      assert.equal(dtype, x.grad:dtype())
      assert.equal(300, moth.tensor({ -300, 300, 0 }, { dtype = dtype }):std():item())
    end
  end)
end)

describe("median #quick", function()
  it("is NaN where there is one among its elements", function()
    local x = moth.tensor({ { 1, 0 / 0, 2 }, { 3, 1, 2 } })
    local all, rows, at = x:median():item(), x:median(2)
    assert.is_true(all ~= all)
    assert.is_true(rows[1]:item() ~= rows[1]:item())
    assert.equal(2, rows[2]:item())
    assert.same({ 2, 3 }, at:tolist())
  end)
  it("is the lower of two, with a gradient for its place", function()
    assert.same({ 0, 1, 0, 0 }, gradients(function(x) return x:median() end, { 4, 2, 1, 3 }))
    assert.equal(2, moth.tensor({ 4, 2, 1, 3 }):to(moth.int64):median():item())
  end)
end)

describe("cosine_similarity and cdist #quick", function()
  it("broadcast, or say what does not fit", function()
    local c = F.cosine_similarity(moth.tensor({ { 1, 2, 2 } }), moth.tensor({ { 3 } }), { dim = -1 })
    assert.near(5 / (3 * math.sqrt(3)), c:item(), 1e-6)
    assert.error_matches(function() moth.cdist(moth.ones(2, 3), moth.ones(2, 1)) end, "cdist: expected .*2, 3.*2, 1")
    assert.error_matches(function() moth.cdist(moth.ones(3), moth.ones(2, 3)) end, "cdist: expected")
  end)
end)
