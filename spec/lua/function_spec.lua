local moth = require "moth"
local testing = require "moth.utils.testing"
local fails = require "fails"
local func, autograd = moth.func, moth.autograd
local close = testing.assert_close
local f64 = { dtype = moth.float64 }

describe("autograd.Function", function()
  it("mark_dirty: an input that forward writes to gets the history itself #M103", function()
    local double = autograd.Function { name = "Double",
      forward = function(ctx, x)
        x:mul_(2)
        ctx:mark_dirty(x)
        return x
      end,
      backward = function(_, g) return g * 2 end }
    local w = moth.randn(4, { requires_grad = true })
    local x = w * 3
    local y = double(x)
    assert.equal(x, y)
    assert.equal("DoubleBackward", x.grad_fn:name())
    x:sum():backward()
    close(w.grad, moth.full({ 4 }, 6))
    w.grad = nil
    local whole = w * 1
    double(whole:narrow(1, 2, 2)) -- a view: its base knows
    whole:sum():backward()
    close(w.grad, moth.tensor { 1, 2, 2, 1 })
    w.grad = nil
    whole = w * 1
    local v = moth.randn(2, { requires_grad = true })
    local scaled = autograd.Function { forward = function(ctx, by, a) -- the view is not the first
      ctx:save_for_backward(by)
      ctx:mark_dirty(a)
      return a:mul_(by)
    end, backward = function(ctx, g) return nil, g * ctx:saved_tensors() end }
    scaled(v, whole:narrow(1, 2, 2))
    whole:sum():backward()
    close(w.grad, moth.tensor { 1, v[1]:item(), v[2]:item(), 1 })
    local several = autograd.Function { forward = function(ctx, a)
      ctx:mark_dirty(a)
      return a:mul_(2), a * 3
    end, backward = function(_, a, b) return a * 2 + b * 6 end }
    several(w * 1)
    fails("has written to a view in place and has 2 results: expected the view alone", several,
      (w * 1):narrow(1, 2, 2))
    fails("a leaf Variable that requires grad", double, moth.ones(2, { requires_grad = true }))
    local other = autograd.Function { forward = function(ctx, a)
      ctx:mark_dirty(a)
      return a * 1
    end, backward = function(_, g) return g end }
    fails("mark_dirty is for inputs that forward returns", other, w * 1)
  end)

  it("set_materialize_grads: missing gradients are zeros, or nil", function()
    local seen
    local function pair(materialize)
      return autograd.Function {
        forward = function(ctx, x)
          ctx:set_materialize_grads(materialize)
          return x * 2, x * 3
        end,
        backward = function(_, a, b)
          seen = { a ~= nil, b ~= nil }
          return a * 2
        end }
    end
    local w = moth.ones(3, { requires_grad = true })
    pair(true)(w):sum():backward()
    assert.same({ true, true }, seen)
    w.grad = nil
    pair(false)(w):sum():backward()
    assert.same({ true, false }, seen)
    close(w.grad, moth.full({ 3 }, 2))
  end)

  local function cube(more)
    local spec = { name = "Cube",
      forward = function(x) return x ^ 3 end,
      setup_context = function(ctx, inputs, output)
        ctx:save_for_backward(inputs[1], output)
        ctx:save_for_forward(inputs[1])
        ctx.from = inputs.n
      end,
      backward = function(ctx, g)
        assert(ctx.from == 1)
        local x = ctx:saved_tensors()
        return g * 3 * x ^ 2
      end }
    for key, value in pairs(more or {}) do spec[key] = value end
    return autograd.Function(spec)
  end

  it("setup_context stands apart from forward", function()
    local x = moth.randn(3, { dtype = moth.float64, requires_grad = true })
    assert.is_true(autograd.gradcheck(cube(), { x }))
    assert.is_true(autograd.gradgradcheck(cube(), { x }))
    close(cube()(x:detach()), x:detach() ^ 3)
  end)

  it("jvp: its own, or by backward", function()
    local x, v = moth.randn(3, f64), moth.randn(3, f64)
    local called = 0
    local own = cube { jvp = function(ctx, t)
      called = called + 1
      return t * 3 * ctx:saved_for_forward() ^ 2
    end }
    for _, f in ipairs { own, cube() } do
      local y, t = func.jvp(f, { x }, { v })
      close(y, x ^ 3)
      close(t, v * 3 * x ^ 2)
      assert.is_nil(y.grad_fn)
      local function total(a) return (f(a) * a):sum() end -- x^4
      close(func.hessian(total)(x), moth.diag(x ^ 2 * 12))
      close(func.jacrev(func.jacfwd(total))(x), moth.diag(x ^ 2 * 12))
      close(func.jacfwd(func.jacfwd(total))(x), moth.diag(x ^ 2 * 12))
      local w = x:clone():requires_grad_(true)
      local _, tw = func.jvp(f, { w }, { v })
      close(autograd.grad(tw:sum(), w), v * 6 * x)
    end
    assert.is_true(called > 0)
  end)

  it("vmap: its own, or what forward and backward do", function()
    local x = moth.randn(4, 3, f64)
    local infos = {}
    local own = cube { vmap = function(info, in_dims, a)
      infos[#infos + 1] = { info.batch_size, info.randomness, in_dims[1] }
      return a ^ 3, in_dims[1]
    end }
    for _, f in ipairs { own, cube() } do
      close(func.vmap(f)(x), x ^ 3)
      close(func.vmap(f, 2, 2)(x), x ^ 3)
      close(func.vmap(func.vmap(f))(x), x ^ 3)
    end
    assert.same({ 4, "error", 1 }, infos[1])
    close(func.vmap(func.grad(function(a) return cube()(a):sum() end))(x), x ^ 2 * 3)
    local bad = cube { vmap = function(_, _, a) return a end }
    fails("must return its results and their dimensions", func.vmap(bad), x)
    fails("'jvp': expected a function", autograd.Function, { forward = print, backward = print, jvp = 1 })
  end)
end)

describe("autograd.graph", function()
  it("prints a graph as a tree and for Graphviz #M469", function()
    local w, b = moth.ones(2, { requires_grad = true }), moth.ones(2, { requires_grad = true })
    local h = w * 2
    local y = (h * h + b):sum()
    assert.equal([[
SumBackward0
  AddBackward0
    MulBackward0
      MulBackward0 #1
        AccumulateGrad (w)
      MulBackward0 ^1
    AccumulateGrad (b)]], autograd.graph.tree(y, { w = w, b = b }))
    local dot = autograd.graph.dot(y.grad_fn, { w = w })
    assert.truthy(dot:find("digraph {", 1, true))
    assert.truthy(dot:find('label="AccumulateGrad\\nw", shape=box', 1, true))
    assert.equal(6, select(2, dot:gsub("%->", "")))
    assert.equal("AccumulateGrad", autograd.graph.tree(w))
    fails("requires no gradient", autograd.graph.tree, moth.ones(2))
    fails("expected a tensor with a history", autograd.graph.dot, 3)
    local deep = w
    for _ = 1, 20000 do deep = deep + 1 end
    assert.equal(20001, select(2, autograd.graph.tree(deep):gsub("\n", "")) + 1)
  end)

  it("increment_version: backward notices what was written by other means", function()
    local w = moth.ones(2, { requires_grad = true })
    local x = w * 2
    local y = (x * x):sum()
    autograd.graph.increment_version(x)
    fails("modified by an inplace operation", function() y:backward() end)
  end)
end)
