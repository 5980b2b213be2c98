local moth = require "moth"
local testing = require "moth.utils.testing"
local fails = require "fails"
local func, nn = moth.func, moth.nn
local close = testing.assert_close

local function f64(t, o)
  o = o or {}
  o.dtype = moth.float64
  return moth.tensor(t, o)
end

describe("moth.func", function()
  it("functional_call runs a model on other parameters, and leaves it as it was", function()
    local model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)):double()
    local x, params = moth.randn(4, 2, { dtype = moth.float64 }), {}
    local weight = model[1].weight
    for name, p in model:named_parameters() do params[name] = (p * 2):detach():requires_grad_(true) end
    local y = func.functional_call(model, params, x)
    close(y, moth.tanh(x:matmul(params["0.weight"]:t()) + params["0.bias"]):matmul(params["2.weight"]:t())
      + params["2.bias"])
    y:sum():backward()
    assert.is_nil(weight.grad)
    assert.same({ 3, 2 }, { params["0.weight"].grad:size(1), params["0.weight"].grad:size(2) })
    assert.equal(weight, model[1].weight)
    close(func.functional_call(model, { ["2.bias"] = f64 { 7 } }, x), model(x) - model[3].bias + 7) -- the others stay
    close(func.functional_call(model, {}, x), model(x))
  end)

  it("functional_call replaces tied parameters everywhere, buffers too", function()
    local model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[2].weight = model[1].weight
    model:register_buffer("shift", moth.zeros(2))
    function model:forward(x) return self[2](self[1](x)) + self.shift end -- luacheck: ignore
    local zero = { ["0.bias"] = moth.zeros(2), ["1.bias"] = moth.zeros(2), shift = moth.tensor { 10, 20 } }
    for _, name in ipairs { "0.weight", "1.weight" } do
      local params = { [name] = moth.eye(2) * 2 }
      for k, v in pairs(zero) do params[k] = v end
      close(func.functional_call(model, params, moth.ones(1, 2)), moth.tensor { { 14, 24 } })
    end
  end)

  it("functional_call restores the model after an error, and says what is wrong", function()
    local model = nn.Linear(2, 1)
    local weight = model.weight
    fails("linear", func.functional_call, model, { weight = moth.ones(1, 3) }, moth.ones(1, 2))
    assert.equal(weight, model.weight)
    fails("func_spec.lua:%d+: functional_call: the model has no parameter or buffer 'wieght'", function()
      func.functional_call(model, { wieght = weight }, moth.ones(1, 2))
    end)
    fails("'weight' must be a tensor, got number", func.functional_call, model, { weight = 1 }, moth.ones(1, 2))
    fails("expected a module, got table", func.functional_call, {}, {}, moth.ones(1, 2))
    fails("argument 'params': expected a table, got nil", func.functional_call, model, nil, moth.ones(1, 2))
  end)

  it("grad nests, and leaves its arguments alone", function()
    local x = f64 { 1, 2, 3 }
    local function cube(a) return (a ^ 3):sum() end
    local first = func.grad(cube)(x)
    close(first, x ^ 2 * 3)
    assert.is_false(first:requires_grad()) -- a loop of p = p - lr * grad(f)(p) retains no history
    assert.is_false(x:requires_grad())
    local second = func.grad(function(a) return func.grad(cube)(a):sum() end)
    close(second(x), x * 6)
    assert.is_false(second(x):requires_grad())
    close(func.grad(function(b) return second(b):sum() end)(x), f64 { 6, 6, 6 })
    -- an inner function that closes over the outer one's variable
    local mixed = func.grad(function(a) return func.grad(function(b) return (a * b * b):sum() end)(x):sum() end)(x)
    close(mixed, x * 2)
    assert.is_false(mixed:requires_grad())
    close(moth.no_grad(func.grad(cube), x), first)
  end)

  it("grad of a user's leaf, or by way of one, can be differentiated again", function()
    local w, x = f64({ 2 }, { requires_grad = true }), f64 { 3 }
    func.grad(function(a) return (w * a * a):sum() end)(x):sum():backward()
    assert.equal(6, w.grad:item())
    func.grad(function(a) return (a ^ 3):sum() end)(w):sum():backward()
    assert.equal(6 + 12, w.grad:item())
  end)

  it("grad_and_value, several arguments, arguments that play no part", function()
    local gradients, value = func.grad_and_value(function(a, k, b) return (a * k):sum() + b:sum() * 0 end,
      { 1, 3 })(f64 { 1, 2 }, 5, f64 { 1 })
    close(gradients[1], f64 { 5, 5 })
    close(gradients[2], f64 { 0 })
    assert.equal(15, value:item())
    close(func.grad(function() return moth.ones(1) end)(f64 { 1 }), f64 { 0 })
    fails("there is no argument 2", func.grad(function(a) return a:sum() end, 2), f64 { 1 })
    fails("must be a tensor, got number", func.grad(function(a) return a end), 1)
    fails("one element; see func.vjp", func.grad(function(a) return a * 2 end), f64 { 1, 2 })
    fails("mine", func.grad(function() error("mine") end), f64 { 1 })
    close(func.grad(function(a) return a:sum() end)(f64 { 1 }), f64 { 1 })
  end)

  it("vjp pulls several vectors back", function()
    local a, b = f64 { 1, 2 }, f64 { 3, 4 }
    local y, pull = func.vjp(function(p, q) return p * q end, a, b)
    close(y, a * b)
    for _, v in ipairs { f64 { 1, 0 }, f64 { 1, 10 } } do
      local da, db = pull(v)
      close(da, v * b)
      close(db, v * a)
      assert.is_false(da:requires_grad())
    end
    local _, none = func.vjp(function() return moth.ones(2) end, a)
    close(none(moth.ones(2)), f64 { 0, 0 })
  end)

  it("vjp's products have derivatives by the vector, too", function()
    local a, u = f64 { 1, 2 }, f64 { 5, 7 }
    local function f(p) return p * p * p end
    -- v * 3 a^2 by v: directly, through func.grad, and through another vjp (which is the forward derivative).
    local _, pull = func.vjp(f, a)
    local v = f64({ 2, 3 }):requires_grad_()
    local da = pull(v)
    assert.is_true(da:requires_grad())
    da:backward(u)
    close(v.grad, u * a * a * 3)
    close(func.grad(function(w) return (pull(w) * u):sum() end)(f64 { 1, 1 }), u * a * a * 3)
    local _, push = func.vjp(function(w) return (pull(w)) end, f64 { 0, 0 })
    close(push(u), u * a * a * 3)
    assert.is_false(func.grad(function(w) return (pull(w) * u):sum() end)(f64 { 1, 1 }):requires_grad())
    assert.is_false(pull(f64 { 1, 1 }):requires_grad())
    moth.no_grad(function() assert.is_false(pull(v):requires_grad()) end)
    -- By both at once.
    local b = f64({ 1, 2 }):requires_grad_()
    local _, of_b = func.vjp(f, b)
    v.grad = nil
    of_b(v):backward(u)
    assert.is_nil(a.grad)
    close(v.grad, u * a * a * 3)
    close(b.grad, u * a * v:detach() * 6)
  end)

  it("take a function that makes its argument a constant", function()
    local w = moth.ones(2, { requires_grad = true })
    local y, pull = func.vjp(function(x)
      x:requires_grad_(false)
      return w * x
    end, moth.ones(2))
    assert.same({ 1, 1 }, y:detach():totable())
    local ok, err = pcall(pull, moth.ones(2))
    assert.is_false(ok)
    assert.matches("input 1%) does not require grad", err)
  end)
end)
