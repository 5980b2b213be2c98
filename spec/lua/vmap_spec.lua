local moth = require "moth"
local testing = require "moth.utils.testing"
local fails = require "fails"
local func, nn = moth.func, moth.nn
local close = testing.assert_close
local f64 = { dtype = moth.float64 }

local function by_loop(f, ...)
  local args, rows = { ... }, {}
  for k = 1, args[1]:size(1) do
    local one = {}
    for i = 1, #args do one[i] = args[i][k] end
    rows[k] = f(unpack(one))
  end
  return moth.stack(rows)
end

describe("moth.func.vmap", function()
  it("maps over dimensions in and out", function()
    local x, y = moth.randn(5, 3), moth.randn(5, 3)
    local function dot(a, b) return (a * b):sum() end
    close(func.vmap(dot)(x, y), (x * y):sum(2))
    close(func.vmap(dot, { 2, 2 })(x:t(), y:t()), (x * y):sum(2))
    close(func.vmap(dot, { -1, 1 })(x:t(), y), (x * y):sum(2))
    close(func.vmap(dot, { 1, false })(x, y[1]), x:matmul(y[1]))
    close(func.vmap(function(a) return a * 2 end, 1, 2)(x), (x * 2):t())
    close(func.vmap(function(a) return a * 2 end, 1, -1)(x), (x * 2):t())
    local a, b = func.vmap(function(v) return v:sum(), { twice = v * 2 } end, 1, { 1, 2 })(x)
    close(a, x:sum(2))
    close(b.twice, (x * 2):t())
    local t = func.vmap(function(p) return p.w * p.b end, { { w = 1, b = false } })({ w = x, b = y[1] })
    close(t, x * y[1])
  end)

  it("nests, and takes a batch in chunks", function()
    local x, y = moth.randn(5, 3), moth.randn(4, 3)
    local function outer(a) return func.vmap(function(b) return (a * b):sum() end)(y) end
    close(func.vmap(outer)(x), x:matmul(y:t()))
    close(func.vmap(outer, { chunk_size = 2 })(x), x:matmul(y:t()))
    close(func.vmap(function(a) return a * 2 end, 2, 2, { chunk_size = 1 })(x), x * 2)
    local three = moth.randn(2, 3, 4)
    close(func.vmap(func.vmap(func.vmap(function(s) return s:sin() end)))(three), three:sin())
    close(func.vmap(func.vmap(function(s) return s:sum() end, 2), 2)(three), three:sum(1))
  end)

  it("gives gradients for each sample, of an MLP and a CNN #M504", function()
    moth.manual_seed(1)
    local nets = {
      { nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)), moth.randn(5, 6, f64) },
      { nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16, 3)), moth.randn(5, 2, 6, 6, f64) },
    }
    for _, case in ipairs(nets) do
      local model, xs = case[1]:double(), case[2]
      local ys, params = moth.randint(1, 4, { 5 }), {}
      for name, p in model:named_parameters() do params[name] = p:detach() end
      local function loss(given, x, y)
        return nn.functional.cross_entropy(func.functional_call(model, given, x:unsqueeze(1)), y:unsqueeze(1))
      end
      local got = func.vmap(func.grad(loss), { false, 1, 1 })(params, xs, ys)
      local values = func.vmap(loss, { false, 1, 1 })(params, xs, ys)
      for k = 1, 5 do
        model:zero_grad()
        local value = nn.functional.cross_entropy(model(xs:narrow(1, k, 1)), ys:narrow(1, k, 1))
        value:backward()
        close(values[k], value:detach())
        for name, p in model:named_parameters() do close(got[name][k], p.grad) end
      end
    end
  end)

  it("is differentiable: what all elements share gets the sum", function()
    local w, x = moth.randn(3, 4, { requires_grad = true }), moth.randn(5, 3, { requires_grad = true })
    local function f(a) return a:matmul(w):tanh():sum() end
    func.vmap(f)(x):sum():backward()
    local gw, gx = w.grad:clone(), x.grad:clone()
    w.grad, x.grad = nil, nil
    by_loop(f, x):sum():backward()
    close(gw, w.grad)
    close(gx, x.grad)
    -- a tensor computed outside, and one inside of what is shared
    w.grad, x.grad = nil, nil
    local h = w * 2
    func.vmap(function(a) return (a:matmul(h * w)):sum() end)(x:detach()):square():sum():backward()
    gw = w.grad:clone()
    w.grad = nil
    local h2 = w * 2
    by_loop(function(a) return (a:matmul(h2 * w)):sum() end, x:detach()):square():sum():backward()
    close(gw, w.grad)
  end)

  it("goes with derivatives of every order", function()
    local x, w = moth.randn(4, 3, f64), moth.randn(3, f64)
    local function f(a, b) return ((a * b):sin() * a:sum()):sum() end
    local function each(g) return by_loop(function(a) return g(a) end, x) end
    close(func.vmap(func.grad(f), { 1, false })(x, w), each(function(a) return func.grad(f)(a, w) end))
    close(func.vmap(func.hessian(f), { 1, false })(x, w), each(function(a) return func.hessian(f)(a, w) end))
    -- the gradient of a sum over a vmap, twice
    local function total(b) return func.vmap(f, { 1, false })(x, b):square():sum() end
    local function loop(b) return each(function(a) return f(a, b) end):square():sum() end
    close(func.grad(total)(w), func.grad(loop)(w))
    close(func.jacrev(func.grad(total))(w), func.jacrev(func.grad(loop))(w))
    close(func.jacfwd(func.grad(total))(w), func.jacrev(func.grad(loop))(w))
    close(func.jacrev(function(b) return func.vmap(f, { 1, false })(x, b) end)(w),
      func.jacrev(function(b) return each(function(a) return f(a, b) end) end)(w))
  end)

  it("draws random numbers as randomness says", function()
    local x = moth.ones(4, 1000)
    local function drop(a) return nn.functional.dropout(a, 0.5) end
    fails("randomness = 'different'", func.vmap(drop), x)
    local different = func.vmap(drop, { randomness = "different" })(x)
    assert.is_false(moth.equal(different[1], different[2]))
    local same = func.vmap(drop, { randomness = "same" })(x)
    for k = 2, 4 do assert.is_true(moth.equal(same[1], same[k])) end
    local n = func.vmap(function(a) return moth.randn(5) + a[1] end, { randomness = "different" })(x)
    assert.is_false(moth.equal(n[1], n[2]))
    n = func.vmap(function(a) return moth.randn(5) + a[1] end, { randomness = "same" })(x)
    assert.is_true(moth.equal(n[1], n[2]))
    n = func.vmap(function(a) return a:clone():normal_() end, { randomness = "same" })(x)
    assert.is_true(moth.equal(n[1], n[2]))
    local nested = func.vmap(function(a)
      return func.vmap(function(b) return b + moth.rand() end, { randomness = "different" })(a)
    end, { randomness = "same" })(x:narrow(2, 1, 3))
    assert.is_true(moth.equal(nested[1], nested[2]))
    assert.is_false(moth.equal(nested[1][1], nested[1][2]))
    local drawn = func.vmap(function(p) return moth.multinomial(p, 3, true) end, { randomness = "different" })(
      moth.tensor { { 0, 1 }, { 1, 0 } })
    close(drawn, moth.tensor({ { 2, 2, 2 }, { 1, 1, 1 } }, { dtype = moth.int64 }))
  end)

  it("writes in place where the target is batched, and refuses where it is not", function()
    local x = moth.randn(3, 4)
    close(func.vmap(function(a)
      local y = a:clone()
      y[2] = a:sum()
      y:narrow(1, 3, 2):mul_(2)
      return y:add_(1)
    end)(x), by_loop(function(a)
      local y = a:clone()
      y[2] = a:sum()
      y:narrow(1, 3, 2):mul_(2)
      return y:add_(1)
    end, x))
    local shared = moth.zeros(4)
    fails("%[add_%] vmap: 'self' is the same tensor for each of the batch", func.vmap(function(a)
      return shared:add_(a)
    end), x)
    close(shared, moth.zeros(4))
  end)

  it("says what cannot be: values, sizes that differ, wrong dimensions", function()
    local x = moth.randn(3, 4)
    fails("inside vmap cannot be read", func.vmap(function(a) return a[1]:item() > 0 and a or -a end), x)
    fails("inside vmap cannot be read", func.vmap(function(a) return a:totable() end), x)
    fails("size of the result depends on the elements", func.vmap(function(a) return a:masked_select(a:gt(0)) end), x)
    fails("size of the result depends on the elements", func.vmap(function(a) return a:nonzero() end), x)
    fails("argument 2 has 2 elements along dimension 1, and argument 1 has 3", func.vmap(moth.add), x, moth.ones(2, 4))
    fails("no dimension 3 of a tensor of shape %[3, 4%]", func.vmap(moth.sin, 3), x)
    fails("no dimensions to map over", func.vmap(moth.sin), moth.tensor(1))
    fails("no tensor to map over", func.vmap(moth.sin, false), x)
    fails("must return tensors", func.vmap(function() return 1 end), x)
    fails("out_dims has 2 dimensions, and the function returned 1", func.vmap(moth.sin, 1, { 1, 1 }), x)
    fails("backward%(%) inside vmap", function()
      local w = moth.ones(4, { requires_grad = true })
      func.vmap(function(a)
        (a * w):sum():backward()
        return a
      end)(x)
    end)
    close(func.vmap(moth.sin)(x), x:sin()) -- nothing stays open after an error
    close(moth.rand(3):size(1), 3)
  end)

  it("runs functions with a derivative of their own", function()
    local square = moth.autograd.Function { name = "Square",
      forward = function(ctx, a)
        ctx:save_for_backward(a)
        return a * a
      end,
      backward = function(ctx, g) return g * 2 * ctx:saved_tensors() end }
    local x = moth.randn(3, 4, f64)
    close(func.vmap(square)(x), x * x)
    close(func.vmap(func.grad(function(a) return square(a):sum() end))(x), x * 2)
    local y = x:clone():requires_grad_(true)
    func.vmap(square)(y):sum():backward()
    close(y.grad, x * 2)
  end)

  it("runs modules: a batch of models, batch_norm with statistics of its own", function()
    local models, xs = {}, moth.randn(3, 5, 2, f64)
    for i = 1, 3 do
      models[i] = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)):double()
    end
    local params, buffers = func.stack_module_state(models)
    local state = {}
    for name, t in pairs(params) do state[name] = t:detach() end
    for name, t in pairs(buffers) do state[name] = t end
    local out = func.vmap(function(s, x) return func.functional_call(models[1], s, x) end)(state, xs)
    for i = 1, 3 do close(out[i], models[i](xs[i]):detach()) end
    close(state["1.running_mean"][2], models[2][2].running_mean)
    for _, m in ipairs(models) do m:eval() end
    local same = func.vmap(function(s) return func.functional_call(models[1], s, xs[1]) end)(state)
    for i = 1, 3 do close(same[i], models[i](xs[1]):detach()) end
    local other = nn.Sequential(nn.Linear(2, 5))
    fails("the models differ", func.stack_module_state, { models[1], other })
  end)

  it("takes a batch of no elements, and of one", function()
    for n = 0, 1 do
      local x = moth.randn(n, 3, 4)
      close(func.vmap(function(a) return (a:matmul(moth.ones(4, 2)) + 1):softmax(2):sum(1) end)(x),
        (x:matmul(moth.ones(4, 2)) + 1):softmax(3):sum(2))
    end
  end)

  it("of numbers takes the dimensions that a tensor without dimensions takes", function()
    local x = moth.tensor({ 1, 2, 3 }, f64)
    local fns = {
      function(a) return a:transpose(1, -1) end, function(a) return moth.swapaxes(a, -1, 1) end,
      function(a) return a:squeeze(1) end, function(a) return a:movedim(1, -1) end, function(a) return a:sum(-1) end,
      function(a) return a:flip(1) end, function(a) return a:unsqueeze(-1) end, function(a) return a:softmax(1) end,
    }
    for _, f in ipairs(fns) do
      close(func.vmap(f)(x), by_loop(f, x))
      close(func.jacrev(f)(x[1]), func.jacfwd(f)(x[1]))
      close(func.vmap(func.jacrev(f))(x), by_loop(func.jacrev(f), x))
    end
  end)

  it("takes second derivatives of functions of matrices, each way", function()
    local la = moth.linalg
    local function definite(x) return x:matmul(x.mT) + moth.eye(3, f64) end
    local fns = {
      la.det, function(x) return select(2, la.slogdet(x)) end, function(x) return moth.logdet(definite(x)) end,
      function(x) return la.inv(x):sum() end, function(x) return la.matrix_exp(x):sum() end,
      function(x) return la.solve(x, moth.ones(3, f64)):sum() end,
      function(x) return la.cholesky(definite(x)):sum() end,
      function(x)
        local q, r = la.qr(x)
        return (q * r:sin()):sum()
      end,
      function(x) return la.svdvals(x):sin():sum() end, function(x) return la.eigvalsh(definite(x)):sin():sum() end,
      function(x)
        local w, v = la.eigh(definite(x))
        return w:sin():sum() + (v:square() * moth.arange(9, f64):view(3, 3)):sum()
      end,
      function(x) return la.pinv(x):sum() end, function(x) return la.matrix_power(x, 3):sum() end,
      function(x) return (la.lstsq(x, moth.ones(3, 1, f64))):sum() end,
      function(x) return la.eigvals(x):abs():sum() end,
    }
    local x = moth.randn(2, 3, 3, { generator = moth.Generator():manual_seed(4), dtype = moth.float64 })
      + 3 * moth.eye(3, f64)
    for _, f in ipairs(fns) do
      local want = by_loop(func.hessian(f), x)
      local g, e, rows = func.grad(f), moth.zeros(9, f64), {}
      for i = 1, 9 do -- by differences of the first ones
        e[i] = 1e-5
        local step = e:view(3, 3)
        rows[i] = ((g(x[1] + step) - g(x[1] - step)) / 2e-5):view(9)
        e[i] = 0
      end
      close(want[1]:view(9, 9), moth.stack(rows, 2), { rtol = 1e-5, atol = 1e-6 })
      for _, way in ipairs { func.hessian(f), func.jacrev(func.jacrev(f)), func.jacfwd(func.jacrev(f)),
        func.jacrev(func.jacfwd(f)), func.jacfwd(func.jacfwd(f)) } do
        close(func.vmap(way)(x), want, { rtol = 1e-7, atol = 1e-8 })
      end
    end
  end)

  it("takes determinants of singular matrices beside others", function()
    local function by_hand(a)
      return a[{ 1, 1 }] * (a[{ 2, 2 }] * a[{ 3, 3 }] - a[{ 2, 3 }] * a[{ 3, 2 }])
        - a[{ 1, 2 }] * (a[{ 2, 1 }] * a[{ 3, 3 }] - a[{ 2, 3 }] * a[{ 3, 1 }])
        + a[{ 1, 3 }] * (a[{ 2, 1 }] * a[{ 3, 2 }] - a[{ 2, 2 }] * a[{ 3, 1 }])
    end
    local a = moth.arange(9, f64):view(3, 3) -- of rank 2
    local x = moth.stack { a, moth.zeros(3, 3, f64), moth.eye(3, f64), a * a, moth.ones(3, 3, f64) }
    for _, d in ipairs { func.grad, func.hessian } do
      close(func.vmap(d(moth.linalg.det))(x), func.vmap(d(by_hand))(x), { rtol = 1e-10, atol = 1e-10 })
      close(by_loop(d(moth.linalg.det), x), func.vmap(d(by_hand))(x), { rtol = 1e-10, atol = 1e-10 })
    end
    -- Larger ones, and a determinant of rounding alone that is no small number: A's row 6 is the sum of the others.
    local n = 6
    local g = moth.Generator():manual_seed(2)
    local rows = 10 * moth.randn(n - 1, n, { generator = g, dtype = moth.float64 })
    local big = moth.cat { rows, rows:sum(1, true) }
    local grad = func.grad(moth.linalg.det)(big)
    for i = 1, n do -- a cofactor is the determinant of a minor
      local kept = {}
      for k = 1, n do if k ~= i then kept[#kept + 1] = k end end
      kept = moth.tensor(kept, { dtype = moth.int64 })
      local minor = moth.linalg.det(big:narrow(1, 1, n - 1):index_select(2, kept))
      close(grad[{ n, i }], minor * (-1) ^ (n + i), { rtol = 1e-7, atol = 1e-7 })
    end
    local second = func.vmap(func.hessian(moth.linalg.det))(moth.stack { big, moth.eye(n, f64) })
    assert.is_true(second:isfinite():all():item())
  end)

  it("asks about the values of all elements where a function needs to know", function()
    local D = moth.distributions
    local x = moth.tensor({ 0.5, 1, 2 }, f64)
    close(func.vmap(function(s) return D.Normal(s, s):log_prob(s * 2) end)(x), D.Normal(x, x):log_prob(x * 2))
    fails("must be", func.vmap(function(s) return D.Normal(s, s):log_prob(s) end), -x)
    close(func.vmap(function(s) return D.Uniform(-s, s):log_prob(s * 0) end)(x), D.Uniform(-x, x):log_prob(x * 0))
    local k, w = moth.tensor({ { { 1, 2, 3 } }, { { 4, 5, 6 } } }), moth.tensor { { { 1, -1 } } }
    k, w = k:to(moth.int64), w:to(moth.int64)
    close(func.vmap(function(a) return nn.functional.conv1d(a, w) end)(k), by_loop(function(a)
      return nn.functional.conv1d(a, w)
    end, k))
    moth.autograd.detect_anomaly(function()
      close(func.vmap(func.grad(function(a) return a:sin():sum() end))(x), x:cos())
      fails("nan values", func.vmap(func.grad(function(a) return (a * 0):sqrt():sum() * 0 end)), x)
    end)
  end)
end)
