local moth = require "moth"
local testing = require "moth.utils.testing"
local fails = require "fails"
local func, nn, autograd = moth.func, moth.nn, moth.autograd
local fw, functional = autograd.forward_ad, autograd.functional
local close = testing.assert_close
local f64 = { dtype = moth.float64 }

local function f(x) return (x:sin() * x:exp() * x:sum()):tanh() end
local function loss(x) return f(x):sum() end

describe("forward mode", function()
  local x, v = moth.randn(4, f64), moth.randn(4, f64)

  it("dual numbers: make_dual, unpack_dual", function()
    local y, t = fw.dual_level(function() return fw.unpack_dual(f(fw.make_dual(x, v))) end)
    close(y, f(x))
    close(t, func.jacrev(f)(x):matmul(v))
    fw.enter_dual_level()
    local d = fw.make_dual(x, v)
    local p, none = fw.unpack_dual(x)
    close(p, x)
    assert.is_nil(none)
    close(select(2, fw.unpack_dual(d * 2)), v * 2)
    fw.exit_dual_level()
    assert.is_nil((select(2, fw.unpack_dual(d)))) -- the level has ended
    close(d + 1, x + 1)
    fails("no level is open", fw.make_dual, x, v)
    fails("no level is open", fw.exit_dual_level)
    fails("must be like its tensor, float64 %[4%]", fw.dual_level, function() fw.make_dual(x, v:float()) end)
    fails("must be like its tensor", fw.dual_level, function() fw.make_dual(x, moth.randn(3, f64)) end)
    fails("complex tensor", fw.dual_level, function() fw.make_dual(moth.arange(3), moth.arange(3)) end)
  end)

  it("jvp, linearize, trees, has_aux, several results #M504", function()
    local J = func.jacrev(f)(x)
    local y, t = func.jvp(f, { x }, { v })
    close(y, f(x))
    close(t, J:matmul(v))
    local out, push = func.linearize(f, x)
    close(out, f(x))
    close(push(v), J:matmul(v))
    close(push(v * 2), J:matmul(v) * 2)
    local r, s, aux = func.jvp(function(p, b) return { sum = (p.w * b):sum(), p.w * 2 }, "more" end,
      { { w = x }, moth.ones(4, f64) }, { { w = v }, v }, true)
    close(r.sum, x:sum())
    close(s.sum, v:sum() + (x * v):sum())
    close(s[1], v * 2)
    assert.equal("more", aux)
    local _, zero = func.jvp(function() return moth.ones(2) end, { x }, { v })
    close(zero, moth.zeros(2))
    fails("2 primals and 1 tangents", func.jvp, f, { x, x }, { v })
    fails("must return a tensor", func.jvp, function() return 1 end, { x }, { v })
  end)

  it("nests: levels are kept apart", function()
    local one = moth.tensor(1, f64)
    -- d/dx (x * d/dy (x + y)) = 1: the perturbations must not be confused
    local _, t = func.jvp(function(a)
      local _, inner = func.jvp(function(b) return a + b end, { one }, { one })
      return a * inner
    end, { moth.tensor(3, f64) }, { one })
    close(t, one)
    local _, second = func.jvp(function(a)
      local _, d = func.jvp(loss, { a }, { v })
      return d
    end, { x }, { v })
    close(second, v:matmul(func.hessian(loss)(x):matmul(v)))
  end)

  it("goes with reverse mode in every order", function()
    local H = func.jacrev(func.jacrev(loss))(x)
    close(func.hessian(loss)(x), H)
    close(func.jacfwd(func.jacfwd(loss))(x), H)
    close(func.jacrev(func.jacfwd(loss))(x), H)
    local _, hv = func.jvp(func.grad(loss), { x }, { v })
    close(hv, H:matmul(v))
    local w = x:clone():requires_grad_(true)
    local _, t = func.jvp(loss, { w }, { v })
    close(autograd.grad(t, w), H:matmul(v)) -- reverse over forward
    local T = func.jacfwd(func.hessian(loss))(x)
    close(T, func.jacrev(func.hessian(loss))(x))
  end)

  it("follows what is written in place, and views", function()
    local function g(a)
      local b = a * 1
      b:mul_(a)
      b[2] = a[1] * 3
      b:view(2, 2):select(1, 2):add_(a:narrow(1, 1, 2))
      local c = moth.zeros(3, 4, f64)
      c[1] = b
      c:narrow(1, 2, 2):copy_(b:exp())
      c[{ {}, 1 }] = 0
      return c
    end
    local _, t = func.jvp(g, { x }, { v })
    local J = func.jacrev(g)(x)
    close(t, J:matmul(v))
    close(func.jacfwd(g)(x), J)
  end)

  it("goes through modules, their losses and dropout", function()
    local model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)):double()
    local xs, ys = moth.randn(5, 4, f64), moth.randint(1, 4, { 5 })
    local params, tangents = {}, {}
    for name, p in model:named_parameters() do
      params[name], tangents[name] = p:detach(), moth.randn(p:size(), f64)
    end
    local function value(given) return nn.functional.cross_entropy(func.functional_call(model, given, xs), ys) end
    local _, t = func.jvp(value, { params }, { tangents })
    local g, expected = func.grad(value)(params), moth.tensor(0, f64)
    for name, tangent in pairs(tangents) do expected = expected + (g[name] * tangent):sum() end
    close(t, expected)
    moth.manual_seed(3)
    local y, d = func.jvp(function(a) return nn.functional.dropout(a, 0.5) end, { moth.ones(100) }, { moth.ones(100) })
    close(d, y) -- the same mask
  end)

  it("leaves nothing behind", function()
    local function live()
      collectgarbage()
      collectgarbage()
      return moth.memory.stats().live
    end
    local w = moth.randn(64, 64, { requires_grad = true })
    local function once()
      for _ = 1, 3 do
        func.jvp(function(a) return (a:exp() * w):tanh():sum() end, { moth.randn(64, 64) }, { moth.randn(64, 64) })
      end
    end
    once()
    local before = live()
    once()
    assert.is_true(live() - before < 16384)
  end)

  it("is an error where results go to `out`", function()
    fails("don't support automatic differentiation", func.jvp, function(a)
      return moth.add(a, a, { out = moth.empty(4, f64) })
    end, { x }, { v })
  end)
end)

describe("autograd.functional", function()
  local x, y, v = moth.randn(3, f64), moth.randn(3, f64), moth.randn(3, f64)
  local function g(a, b) return (a * b):sum() * a:exp() end
  local function s(a, b) return g(a, b):sum() end

  it("jacobian, hessian, vjp, jvp, hvp, vhp", function()
    local one = function(a) return g(a, y) end
    local J = func.jacrev(one)(x)
    close(functional.jacobian(one, x), J)
    close(functional.jacobian(one, x, { strategy = "forward-mode" }), J)
    local both = functional.jacobian(g, { x, y })
    close(both[1], J)
    close(both[2], func.jacrev(g, 2)(x, y))
    local out, by = functional.vjp(g, { x, y }, v)
    close(out, g(x, y))
    close(by[1], v:matmul(J))
    out, by = functional.jvp(one, x, v)
    close(out, g(x, y))
    close(by, J:matmul(v))
    local scalar = function(a) return s(a, y) end
    local H = func.hessian(scalar)(x)
    close(functional.hessian(scalar, x), H)
    local blocks = functional.hessian(s, { x, y })
    close(blocks[1][1], H)
    close(blocks[1][2], blocks[2][1]:t())
    local value, hv = functional.hvp(scalar, x, v)
    close(value, scalar(x))
    close(hv, H:matmul(v))
    value, hv = functional.vhp(s, { x, y }, { v, moth.zeros(3, f64) })
    close(value, s(x, y))
    close(hv[1], H:matmul(v))
    close(hv[2], blocks[2][1]:matmul(v))
    close(functional.vjp(scalar, x), scalar(x))
  end)

  it("create_graph gives results a history, else they have none", function()
    local w = x:clone():requires_grad_(true)
    assert.is_nil(functional.jacobian(function(a) return a:exp() end, w).grad_fn)
    local J = functional.jacobian(function(a) return a:exp() end, w, { create_graph = true })
    J:sum():backward()
    close(w.grad, x:exp())
    fails("must return a tensor of one element", functional.hessian, function(a) return a end, x)
    fails("argument 'v' is needed", functional.jvp, function(a) return a end, x)
    fails("must have the shape %[3%]", functional.jvp, function(a) return a end, x, moth.ones(2))
  end)
end)
