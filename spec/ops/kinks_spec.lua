-- Values at poles, and derivatives where a function has a kink, a pole or none, against what PyTorch gives there: NaN
-- in one element of a gradient spoils all of it.
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

-- The second derivatives: of the sum of the gradients by fn's first argument, the i-th taken i times.
local function second(fn, values)
  local x = moth.tensor(values, { dtype = moth.float64, requires_grad = true })
  local g = moth.autograd.grad(fn(x):sum(), { x }, { create_graph = true })
  local weights = moth.arange(1, x:numel() + 1, { dtype = moth.float64 }):reshape(x:size())
  return moth.autograd.grad((g * weights):sum(), { x }):tolist()
end
local function near(want, got)
  if type(want) == "number" then return assert.near(want, got, 1e-13 * (1 + math.abs(want))) end
  assert.equal(#want, #got)
  for i, w in ipairs(want) do near(w, got[i]) end
end

describe("derivatives beside PyTorch's #quick", function()
  it("of a remainder count the steps that it took, also where the quotient is rounded up to an integer", function()
    local _, other = gradients(moth.remainder, { 1, 5.5, -7 }, { 0.1, 2, 3 })
    assert.same({ -9, -2, 3 }, other)
  end)

  it("of the larger and the smaller of two go to both where one is NaN", function()
    for _, f in ipairs({ moth.maximum, moth.minimum }) do
      local a, b = gradients(f, { 0 / 0, 1, 1 }, { 1, 0 / 0, 1 })
      assert.same({ 1, 1, 0.5 }, a)
      assert.same({ 1, 1, 0.5 }, b)
    end
  end)

  it("of softplus are constant above its threshold, the second ones 0", function()
    near({ 5.6027964176199655e-09, 0, 0, 0 }, second(function(x) return moth.softplus(x) end, { 19, 20, 21, 40 }))
    near({ 0.20998717080701323, 0, 0 }, second(function(x) return moth.softplus(x, 2, 3) end, { 1, 1.5, 2 }))
  end)

  it("of a product, the second ones, hold with zeros among its factors", function()
    local function all(x) return x:prod() end
    near({ 6, 9, 4 }, second(all, { 2, 0, 3 }))
    near({ 0, 30, 20, 0 }, second(all, { 2, 0, 0, 5 }))
    near({ { 6, 9, 4 }, { 27, 18, 13 } }, second(function(x) return x:prod(2) end, { { 2, 0, 3 }, { 1, 2, 3 } }))
    near({ { 0, 0 }, { 0, 0 } }, second(function(x) return x:prod({ 1, 2 }) end, { { 0, 0 }, { 0, 4 } }))
    assert.equal(1, gradients(function(x) return x:prod() end, 3))
  end)

  it("of a 0-norm are 0", function()
    assert.same({ 0, 0, 0 }, gradients(function(x) return x:norm(0) end, { 2, 0, 3 }))
    assert.equal(2, moth.tensor({ 2, 0, 3 }):norm(0):item())
    assert.same({ 1, 2 }, moth.tensor({ { 0, 4 }, { 0 / 0, -1 } }):norm(0, 2):tolist())
  end)

  it("of acosh do not overflow before it does", function()
    local g = gradients(moth.acosh, { 1, 1e200, 2 })
    near(1e-200 * 1e200, g[2] * 1e200)
    near(0.5773502691896258, g[3])
    assert.equal(inf, g[1])
  end)

  it("of attention, the second ones, are those of its matrices", function()
    local o = { dtype = moth.float64, requires_grad = true }
    local q = moth.tensor({ { { { .1, .2 }, { .3, -.4 } } } }, o)
    local k = moth.tensor({ { { { .5, -.2 }, { .1, .7 }, { .9, .3 } } } }, o)
    local v = moth.tensor({ { { { 1, 2 }, { 3, -1 }, { .5, .25 } } } }, o)
    local scale = moth.arange(1, 5, { dtype = moth.float64 }):view(1, 1, 2, 2)
    local function twice(mask)
      local y = moth.scaled_dot_product_attention(q, k, v, mask) * scale
      local sum = 0
      for _, g in ipairs({ moth.autograd.grad(y:sum(), { q, k, v }, { create_graph = true }) }) do
        sum = sum + g:square():sum()
      end
      return { moth.autograd.grad(sum, { q, k, v }) }
    end
    local g = twice()
    near({ 0.9358705382778094, -0.9255480312859078, 2.2229439369590382, -2.34131688328695 }, g[1]:flatten():tolist())
    near({ 1.0010073334918252, 1.385332516919877, -0.40858179477971135, -0.6034565062294829, -0.5924255387121137,
      -0.7818760106903939 }, g[3]:flatten():tolist())
    g = twice(moth.tensor({ { 1, 0, 1 }, { 0, 0, 0 } }, { dtype = moth.bool })) -- a row sees nothing
    near({ 0.22680938244149168, 0.43277882432754405, 0, 0 }, g[1]:flatten():tolist())
    near({ -0.40499223692029146, -0.5114502812892239, 0, 0, 0.4049922369202915, 0.511450281289224 },
      g[2]:flatten():tolist())
    local grad = moth.autograd.grad(moth.scaled_dot_product_attention(q, k, v, nil, 0.5):sum(), { q },
      { create_graph = false })
    assert.is_true(moth.is_tensor(grad))
    assert.error_matches(function()
      moth.autograd.grad(moth.scaled_dot_product_attention(q, k, v, nil, 0.5):sum(), { q }, { create_graph = true })
    end, "derivative of attention_backward .* dropout_p > 0")
  end)

  it("that are missing say so: a weight of cross_entropy, the gradients of norms", function()
    local w = moth.rand(3):requires_grad_()
    local classes = moth.tensor({ 1, 2 }, { dtype = moth.int64 })
    assert.error_matches(function() moth.cross_entropy(moth.randn(2, 3), classes, w):backward() end,
      "derivative of cross_entropy by 'weight' is not implemented")
    local x = moth.randn(4, 5):requires_grad_()
    local dx = require("moth_lua").ops.rms_norm_backward(x, x, moth.rand(4), nil, 1, 3)
    assert.error_matches(function() dx:sum():backward() end, "derivative of rms_norm_backward by .* is not implemented")
  end)

  it("asked for by a mask refuse bits that stand for nothing", function()
    local x, w, s = moth.randn(4, 6), moth.rand(6), moth.rand(4)
    local B = require("moth_lua").ops
    for _, need in ipairs({ -1, 4, 8, 15, 2 ^ 40 }) do
      assert.error_matches(function() B.rms_norm_backward(x, x, s, w, 1, need) end, "need must be between 0 and 3")
    end
    for _, need in ipairs({ -1, 8, 2 ^ 32 }) do
      local c = moth.rand(6)
      assert.error_matches(function() B.layer_norm_backward(x, x, s, s, w, 1, need) end,
        "need must be between 0 and 7")
      assert.error_matches(function() B.group_norm_backward(x, x, moth.rand(4, 2), moth.rand(4, 2), w, 2, need) end,
        "need must be between 0 and 7")
      assert.error_matches(function() B.batch_norm_backward(x, x, c, c, w, true, need) end,
        "need must be between 0 and 7")
    end
  end)
end)

describe("kl_div #quick", function()
  it("lets NaN through, and knows no logarithm of negative targets", function()
    local nan = 0 / 0
    local loss = F.kl_div(moth.tensor({ nan, -inf, 0, 0, 1, -2 }), moth.tensor({ 0, 0, -1, nan, .5, 0 }),
      { reduction = "none" }):tolist()
    for i = 1, 4 do assert.is_true(loss[i] ~= loss[i]) end
    assert.near(-0.8465735902799727, loss[5], 1e-6)
    assert.equal(0, loss[6])
  end)
end)

describe("sums of halves #quick", function()
  -- 2^-8 is half of bfloat16's last place at 1, 2^-11 that of float16
  for _, case in ipairs({ { moth.bfloat16, 2 ^ -8 }, { moth.float16, 2 ^ -11 } }) do
    local dtype, half = case[1], case[2]
    local o = { dtype = dtype }
    it(("of baddbmm and conv_transpose are rounded once: %s"):format(dtype.name), function()
      -- 1 + half + half^2 rounds up; 1 + half, rounded before, to even
      local a, b = moth.tensor({ { { 1, half } } }, o), moth.tensor({ { { 1 }, { half } } }, o)
      local c = moth.full({ 1, 1, 1 }, half, o)
      assert.equal(1 + 2 * half, moth.baddbmm(c, a, b):item())
      assert.equal(1 + 2 * half, moth.addmm(c[1], a[1], b[1]):item())
      local x = moth.tensor({ { { 1 }, { half } } }, o)
      local w = moth.tensor({ { { 1 } }, { { half } } }, o)
      local bias = moth.full({ 1 }, half, o)
      local y = moth.conv_transpose1d(x, w, bias)
      assert.equal(1 + 2 * half, y:item())
      assert.equal(dtype, y:dtype())
    end)
  end
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
    assert.error_matches(function() moth.cdist(moth.ones(2, 3), moth.ones(2, 1)) end, "%[cdist%] expected .*2, 3.*2, 1")
    assert.error_matches(function() moth.cdist(moth.ones(3), moth.ones(2, 3)) end, "%[cdist%] expected")
  end)
end)

describe("special functions at poles", function()
  it("logit is exact around 1/2", function()
    local x = 0.5 + 2 ^ -20
    local want = math.log(x / (1 - x))
    assert.is_true(math.abs(moth.logit(moth.tensor(x)):item() / want - 1) < 3e-7)
    assert.is_true(math.abs(moth.logit(moth.tensor(x, { dtype = moth.float64 })):item() / want - 1) < 1e-10)
  end)
  it("trapezoid of an infinite end is infinite", function()
    assert.equal(math.huge, moth.trapezoid(moth.tensor { math.huge, 1, 2 }):item())
    assert.equal(0, moth.trapezoid(moth.tensor { 3 }):item())
  end)
  it("shrinking keeps NaN, and an infinity", function()
    local x = moth.tensor { 0 / 0, math.huge, -math.huge }
    for _, f in ipairs { moth.softshrink, moth.hardshrink } do
      local y = f(x):tolist()
      assert.is_true(y[1] ~= y[1] and y[2] == math.huge and y[3] == -math.huge)
    end
  end)

  it("polygamma is the limit from the right", function()
    local x = moth.tensor({ 0, -1, -3 }, { dtype = moth.float64 })
    for n = 1, 4 do
      local want = n % 2 == 1 and math.huge or -math.huge
      assert.same({ want, want, want }, moth.polygamma(x, n):tolist())
      assert.same({ want, want, want }, moth.polygamma(x:float(), n):tolist())
    end
  end)
end)
