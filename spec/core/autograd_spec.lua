-- Automatic differentiation as its users see it. Titles name the rows of the mission.
local B = require "moth_lua"
local moth = require "moth"
local testing = require "moth.utils.testing"
local gradcheck = moth.autograd.gradcheck

local grad = moth.autograd.grad
local function leaf(v) return moth.tensor(v, { dtype = moth.float64, requires_grad = true }) end
local function list(t) return t:detach():totable() end

local fails = require "fails"
local live = require "live"

describe("autograd", function()
  it("follows Lua's control flow, anew at each call #M078 #quick", function()
    local x = leaf(3)
    local function f(n)
      local y = x
      for _ = 1, n do y = y * x end
      if n > 2 then y = y + x end
      return y
    end
    for n = 1, 4 do
      x.grad = nil
      f(n):backward()
      assert.near((n + 1) * 3 ^ n + (n > 2 and 1 or 0), x.grad:item(), 1e-9)
    end
  end)

  it("chain rule: z = 3 x^2 at 2 gives 12 #M079", function()
    local x = leaf(2)
    local z = x ^ 2 * 3
    z:backward()
    assert.equal(12, x.grad:item())
  end)

  it("grad_fn is named after the op #M080", function()
    local x = leaf(2)
    assert.is_nil(x.grad_fn)
    local y = x ^ 2
    local z = y * 3
    assert.equal("<PowBackward0>", tostring(y.grad_fn))
    assert.equal("<MulBackward0>", tostring(z.grad_fn))
    assert.equal("MulBackward0", z.grad_fn:name())
    assert.is_true(z.grad_fn:next_functions()[1][1] == y.grad_fn)
    assert.equal("<LogSoftmaxBackward0>", tostring(leaf { 1, 2 }:log_softmax(1).grad_fn))
    assert.truthy(tostring(z):find("grad_fn=<MulBackward0>", 1, true))
  end)

  it("next_functions leads to the leaves, which know their tensors #M109 #M110", function()
    local x, y = leaf { 1, 2 }, leaf { 3, 4 }
    local lines = {}
    local function walk(node, depth)
      local shape = node.variable and " " .. tostring(node.variable:size()) or ""
      lines[#lines + 1] = (" "):rep(depth) .. node:name() .. shape
      for _, e in ipairs(node:next_functions()) do
        local inner, idx = e[1], e[2]
        assert.equal(1, idx)
        walk(inner, depth + 1)
      end
    end
    local z = (x * y):sum()
    walk(z.grad_fn, 0)
    assert.same({ "SumBackward0", " MulBackward0", "  AccumulateGrad [2]", "  AccumulateGrad [2]" }, lines)
    local ends = z.grad_fn:next_functions()[1][1]:next_functions()
    assert.is_true(rawequal(ends[1][1].variable, x))
    assert.is_true(rawequal(ends[2][1].variable, y))
    assert.is_nil(z.grad_fn.variable)
    -- Which result of the node: the second of sort is none that has a gradient, the second piece of a function is.
    local two = moth.autograd.Function {
      forward = function(_, t) return t * 1, t * 2 end,
      backward = function(_, a, b) return a + b * 2 end,
    }
    local _, second = two(x)
    local edge = (second * 3):sum().grad_fn:next_functions()[1][1]:next_functions()[1]
    assert.equal(2, edge[2])
    -- An input that needs no gradient has no node; its number is 1, whatever lay in the memory before.
    for _ = 1, 20 do
      local inputs = (second * leaf({ 1, 1 }):detach()).grad_fn:next_functions()
      assert.equal(2, #inputs)
      assert.is_nil(inputs[2][1])
      assert.equal(1, inputs[2][2])
    end
    collectgarbage()
    assert.is_true(rawequal(ends[1][1].variable, x))
  end)

  it("leaves are what the user made #M081", function()
    local x = leaf { 1, 2 }
    local y = x * 2
    assert.is_true(x:is_leaf())
    assert.is_false(y:is_leaf())
    assert.is_true(moth.ones(2):is_leaf())
    assert.is_true(y:detach():is_leaf())
    assert.is_true(y:requires_grad())
    assert.is_false((moth.ones(2) * 2):requires_grad())
    fails("float", function() moth.tensor({ 1 }, { dtype = moth.int64, requires_grad = true }) end)
    fails("leaf", function() y:requires_grad_(false) end)
    local z = moth.ones(2)
    assert.is_true(rawequal(z, z:requires_grad_()))
    assert.is_false(z:requires_grad_(false):requires_grad())
  end)

  it("a non-leaf has a gradient only after retain_grad #M082", function()
    local x = leaf(3)
    local y = x * 2
    local w = x * 5
    y:retain_grad()
    y:retain_grad(); -- twice is once
    (y * y + w):backward()
    assert.equal(12, y.grad:item())
    assert.is_nil(w.grad)
    assert.equal(29, x.grad:item())
    x:retain_grad() -- a leaf has .grad anyway
    fails("require grad", function() moth.ones(1):retain_grad() end)
  end)

  it("gradients accumulate #M083 #quick", function()
    local x = leaf { 1, 2 }
    for i = 1, 3 do
      (x * x):sum():backward()
      assert.same({ 2 * i, 4 * i }, list(x.grad))
    end
    local g = x.grad
    x.grad:zero_()
    assert.same({ 0, 0 }, list(g))
    x.grad = nil
    assert.is_nil(x.grad);
    (x * 3):sum():backward()
    assert.same({ 3, 3 }, list(x.grad))
    assert.same({ 0, 0 }, list(g)) -- a gradient that was read before does not change
    x.grad = moth.ones(2, { dtype = moth.float64 })
    assert.same({ 1, 1 }, list(x.grad))
    fails("shape|size", function() x.grad = moth.ones(3, { dtype = moth.float64 }) end)
  end)

  it("micro-batches add up to one batch #M084", function()
    local data = testing.make_tensor({ 8, 3 }, moth.float64, 1)
    local w = testing.make_tensor({ 3, 2 }, moth.float64, 2, { requires_grad = true })
    local function loss(x) return (x:mm(w) ^ 2):mean() end
    loss(data):backward()
    local whole = w.grad:clone()
    w.grad = nil
    for i = 1, 4 do (loss(data:narrow(1, 2 * i - 1, 2)) / 4):backward() end
    testing.assert_close(w.grad, whole)
  end)

  it("autograd.grad: higher derivatives, .grad untouched #M085", function()
    local x = leaf(3)
    local y = x ^ 3
    local g1 = grad(y, x, { create_graph = true })
    assert.equal(27, g1:item())
    local g2 = grad(g1, x, { create_graph = true })
    assert.equal(18, g2:item())
    assert.equal(6, grad(g2, x):item())
    assert.is_nil(x.grad)
    local a, b = leaf(2), leaf(5)
    local da, db = grad(a * b, { a, b })
    assert.equal(5, da:item())
    assert.equal(2, db:item())
    fails("unused|not .*used", function() grad(a * a, { a, b }) end)
    local ga, gb = grad(a * a, { a, b }, { allow_unused = true })
    assert.equal(4, ga:item())
    assert.is_nil(gb)
    -- several outputs, incoming gradients, a non-leaf as input
    local m = a * b
    assert.equal(3 * 5 + 2 * 4, grad({ m * 3, m * m }, m, { grad_outputs = { moth.tensor(5, { dtype = moth.float64 }),
      moth.tensor(0.4, { dtype = moth.float64 }) } }):item())
    -- forward over reverse by two reverses: d/dv of v·J
    local v = leaf { 1, 1 }
    local s = leaf { 1, 2 }
    local jv = grad(s:exp(), s, { grad_outputs = v, create_graph = true })
    testing.assert_close(grad(jv:sum(), v), s:detach():exp())
  end)

  it("parts of a tensor add their gradients to one whole", function()
    local like = { dtype = moth.float64 }
    local x, w = moth.randn(6, 4, like):requires_grad_(true), moth.randn(6, 4, like)
    local function loss(y)
      local function part(p, q) return (p * q):square():sum() end
      return part(y:narrow(1, 1, 3), w:narrow(1, 1, 3)) + part(y:narrow(1, 2, 5), w:narrow(1, 2, 5))
        + part(y:select(2, 3), w:select(2, 1)) + part(y[{ { 1, 6, 2 } }], w[{ { 1, 6, 2 } }]) + part(y[2], w[3])
    end
    local want = moth.zeros(6, 4, like)
    for i = 1, 6 do
      for j = 1, 4 do
        local k = 0
        local function add(v) k = k + 2 * v ^ 2 * x[i][j]:item() end
        if i <= 3 then add(w[i][j]:item()) end
        if i >= 2 then add(w[i][j]:item()) end
        if j == 3 then add(w[i][1]:item()) end
        if i % 2 == 1 then add(w[i][j]:item()) end
        if i == 2 then add(w[3][j]:item()) end
        want[i][j] = k
      end
    end
    loss(x):backward() -- into a leaf
    assert.is_true(x.grad:allclose(want))
    local whole = moth.autograd.grad(loss(x * 1), x)
    assert.is_true(whole:allclose(want))
    local y = x * 1 -- the sum so far may be shared
    local seen
    y:register_hook(function(g) seen = g end)
    y:retain_grad()
    x.grad = nil
    loss(y):backward()
    assert.is_true(x.grad:allclose(want) and seen:allclose(want) and y.grad:allclose(want))
    assert.is_true(moth.autograd.gradgradcheck(function(t) return loss(t * 2) end, { x }))
    local z = moth.randn(3, 100, { requires_grad = true }) * 1
    local s = z:select(1, 1):sum() + z:select(1, 2):sum() + z:select(1, 3):sum()
    assert.equal(1, select(2, moth.dispatch.count(function() s:backward() end)).zeros)
  end)

  it("grad by a result frees nothing of the op that made it", function()
    local x = leaf { 1, 2 }
    local h = x:exp()
    grad(h:sum(), h)
    h:sum():backward()
    assert.near(math.exp(1), x.grad[1]:item(), 1e-5)
    fails("a second time", function() h:sum():backward() end)
  end)

  it("a second backward needs retain_graph #M086 #quick", function()
    local x = leaf(2)
    local y = (x * x):exp()
    y:backward { retain_graph = true }
    y:backward()
    local err = fails("Trying to backward through the graph a second time", function() y:backward() end)
    assert.truthy(err:find("autograd_spec.lua:%d+"))
    fails("a second time", function() grad(y, x) end)
    local v = leaf { { 1, 2 }, { 3, 4 } }
    local z = (v + 1):t():sum() -- no tensor is saved: nothing is missing
    z:backward()
    z:backward()
    assert.same({ { 2, 2 }, { 2, 2 } }, list(v.grad))
  end)

  it("a non-scalar needs a gradient #M087", function()
    local x = leaf { 1, 2 }
    local y = x * x
    fails("grad can be implicitly created only for scalar outputs", function() y:backward() end)
    y:backward(moth.tensor({ 1, 10 }, { dtype = moth.float64 }))
    assert.same({ 2, 40 }, list(x.grad))
    fails("shape|size", function() (x * x):backward(moth.ones(3, { dtype = moth.float64 })) end)
    x.grad = nil;
    (x * x):backward { gradient = moth.ones(2, { dtype = moth.float64 }) }
    assert.same({ 2, 4 }, list(x.grad))
    moth.autograd.backward({ x * 2, x * 3 }, { moth.ones(2, { dtype = moth.float64 }), moth.ones(2,
      { dtype = moth.float64 }) })
    assert.same({ 7, 9 }, list(x.grad))
    fails("tensor", function() y:backward("x") end)
  end)

  it("sum of squares, zero_ in place #M088", function()
    local x = leaf { 1, 2 }
    x:pow(2):sum():backward()
    assert.same({ 2, 4 }, list(x.grad))
    x.grad:zero_()
    assert.same({ 0, 0 }, list(x.grad))
  end)

  describe("in place", function()
    it("what backward needs must not change #M089 #quick", function()
      local x = leaf { 1, 2 }
      local y = x:exp()
      y:add_(1)
      local err = fails("one of the variables needed for gradient computation has been modified by an "
        .. "inplace operation", function() y:sum():backward() end)
      assert.truthy(err:find("ExpBackward0"))
      assert.truthy(err:find("version 1; expected version 0", 1, true))
      -- an input that is saved
      local a, b = leaf { 1, 2 }, leaf { 3, 4 }
      local c = b * 1
      local d = a * c
      c:mul_(2)
      fails("modified by an inplace operation", function() d:sum():backward() end)
      -- x * 2 saves nothing of x
      local z = x * 2
      z:add_(1)
      z:sum():backward()
      assert.same({ 2, 2 }, list(x.grad))
    end)

    it("what an in-place op needs of its own target is kept", function()
      local x, y = leaf { 1, 2 }, leaf { 3, 4 }
      local z = (x * 1):mul_(y)
      z:sum():backward()
      assert.same({ 3, 4 }, list(x.grad))
      assert.same({ 1, 2 }, list(y.grad))
      assert.is_true(gradcheck(function(a) return a:clone():sin_():mul_(a):div_(a + 3) end, { leaf { 0.3, 1.2 } }))
    end)

    it("a leaf that requires grad must not change, outside no_grad #M090", function()
      local x = leaf { 1, 2 }
      for _, fn in ipairs { function() x:add_(1) end, function() x:zero_() end, function() x[1] = 3 end,
        function() x:narrow(1, 1, 1):mul_(2) end, function() moth.add(moth.ones(2), 1, { out = x }) end } do
        fails("a leaf Variable that requires grad is being used in an in%-place\n? ?operation", fn)
      end
      assert.same({ 1, 2 }, list(x))
      moth.no_grad(function() x:add_(1) end)
      assert.same({ 2, 3 }, list(x))
      assert.is_true(x:is_leaf() and x:requires_grad())
    end)

    it("versions count changes, of all views #M091", function()
      local x = moth.zeros(4)
      assert.equal(0, x:version())
      x:add_(1):mul_(2)
      assert.equal(2, x:version())
      local v = x:narrow(1, 2, 2)
      v:zero_()
      assert.equal(3, x:version())
      assert.equal(3, v:version())
      x[1] = 5
      assert.equal(4, v:version())
      local _ = x + 1
      assert.equal(4, x:version())
      moth.add(x, 1, { out = x })
      assert.equal(5, x:version())
      assert.equal(0, x:clone():version())
    end)

    it("rewrites history: x:mul_(2) of a non-leaf", function()
      local x = leaf { 1, 2, 3 }
      local y = x * 1
      y:mul_(3):add_(x)
      y:sum():backward()
      assert.same({ 4, 4, 4 }, list(x.grad))
      local z = moth.zeros(3, { dtype = moth.float64 }) -- no history at first
      z:add_(x * x)
      assert.is_true(z:requires_grad())
      assert.is_false(z:is_leaf())
      x.grad = nil
      z:sum():backward()
      assert.same({ 2, 4, 6 }, list(x.grad))
    end)
  end)

  describe("scopes", function()
    it("no_grad: closures, nesting, results, errors #M092 #quick", function()
      local x = leaf { 1, 2 }
      local a, b, c = moth.no_grad(function(s, t)
        assert.is_false(moth.is_grad_enabled())
        moth.no_grad(function() assert.is_false(moth.is_grad_enabled()) end)
        assert.is_false(moth.is_grad_enabled())
        moth.enable_grad(function() assert.is_true((x * 2):requires_grad()) end)
        assert.is_false(moth.is_grad_enabled())
        return x * s, nil, t
      end, 2, "t")
      assert.is_false(a:requires_grad())
      assert.is_nil(b)
      assert.equal("t", c)
      assert.is_true(moth.is_grad_enabled())
      local thrown = {}
      local ok, err = pcall(moth.no_grad, function() error(thrown) end)
      assert.is_false(ok)
      assert.is_true(rawequal(err, thrown))
      assert.is_true(moth.is_grad_enabled())
      assert.is_true(moth.set_grad_enabled(false))
      assert.is_false((x * 2):requires_grad())
      moth.set_grad_enabled(true)
    end)

    it("no_grad_fn makes a function of it #M093", function()
      local x = leaf { 1, 2 }
      local f = moth.no_grad_fn(function(self, k) return self * k end)
      assert.is_false(f(x, 2):requires_grad())
      assert.is_true(moth.is_grad_enabled())
    end)

    it("views made under no_grad have no history", function()
      local x = leaf { 1, 2, 3 }
      local v = moth.no_grad(function() return x:narrow(1, 1, 2) end)
      assert.is_false(v:requires_grad())
    end)
  end)

  it("detach shares bytes and version, not history #M094", function()
    local x = leaf { 1, 2 }
    local y = x * 2
    local d = y:detach()
    assert.is_false(d:requires_grad())
    assert.is_nil(d.grad_fn)
    assert.is_true(d:shares_storage(y))
    d:add_(1)
    assert.same({ 3, 5 }, list(y))
    assert.equal(1, y:version())
    local z = y:exp()
    z:detach():zero_()
    fails("modified by an inplace operation", function() z:sum():backward() end)
    -- detach cuts
    local w = x * (x * 3):detach()
    w:sum():backward()
    assert.same({ 3, 6 }, list(x.grad))
  end)

  it("data shares bytes with a version of its own #M095", function()
    local x = leaf { 1, 2 }
    local y = x:exp()
    local before = y:version()
    y:data_unchecked():zero_()
    assert.equal(before, y:version())
    y:sum():backward() -- wrong, and not caught
    assert.same({ 0, 0 }, list(x.grad))
    x.data:add_(1)
    assert.same({ 2, 3 }, list(x))
    assert.is_true(moth.is_tensor(x.data))
    assert.is_false(x.data:requires_grad())
    x.data = moth.tensor({ 7, 8 }, { dtype = moth.float64 })
    assert.same({ 7, 8 }, list(x))
    assert.is_true(x:requires_grad())
    assert.equal(7, x:detach():data()[0])
    fails("attempt to call", function() x() end)
  end)

  it("backward without a graph says so #M096", function()
    fails("element 0 of tensors does not require grad and does not have a grad_fn", function() moth.randn(3,
      4):mean():backward() end)
    local x = leaf { 1, 2 }
    fails("does not require grad", function() moth.no_grad(function() return (x * x):sum() end):backward() end)
    fails("does not require grad", function() grad(moth.ones(1), x) end)
  end)

  it("the gradient of a mean is 1/n #M097", function()
    local x = moth.randn(3, 4, { requires_grad = true })
    x:mean():backward()
    assert.is_true(x.grad:allclose(moth.full({ 3, 4 }, 1 / 12)))
  end)

  it("no_grad keeps no activations", function()
    local x = moth.randn(256, 256, { requires_grad = true })
    local function deep()
      local y = x
      for _ = 1, 20 do y = y:exp():neg() end
      return y
    end
    local base = live()
    local function kept(fn)
      local y = fn() -- alive while the bytes are counted
      return live() - base, y
    end
    local with = kept(deep)
    local without = kept(function() return moth.no_grad(deep) end)
    assert.is_true(with > 5 * without, ("%d and %d bytes"):format(with, without))
  end)
end)

describe("autograd binding", function()
  it("refuses what is no tensor", function()
    local x = moth.ones(1, { requires_grad = true })
    for _, bad in ipairs { 3, "x", {}, io.stdout, newproxy(), print } do
      assert.is_false(pcall(grad, bad, x))
      assert.is_false(pcall(grad, x * 2, bad))
      assert.is_false(pcall(B.backward, bad))
      assert.is_false(pcall(B.get_grad, bad))
      assert.is_false(pcall(B.set_grad, x, bad))
      assert.is_false(pcall(B.register_hook, bad, print))
      assert.is_false(pcall(B.grad_fn, bad))
    end
    local t = (x * 2)
    t:free()
    for _, fn in ipairs { B.grad_fn, B.get_grad, B.is_leaf, B.requires_grad,
      B.retain_grad } do assert.is_false(pcall(fn, t)) end
  end)
end)
