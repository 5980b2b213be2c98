-- The whole training step in one compiled function: forward, backward, clipping and optimizer are one graph.
local moth = require "moth"
local S = require "compile.support"
local nn, compile = moth.nn, moth.compile

local optimizers = {
  SGD = { lr = 0.1 }, AdamW = { lr = 0.01 }, Adam = { lr = 0.01, amsgrad = true }, RMSprop = { lr = 0.01 },
  Adagrad = { lr = 0.01 },
}
local names = { "SGD", "AdamW", "Adam", "RMSprop", "Adagrad" }

local function interpret(g) return g:interpreter() end

-- State after some steps of a network that make() gives, wrapped or not: parameters, gradients, losses; counters.
local function train(make, wrap, steps, optimizer, o)
  moth.manual_seed(6)
  local m, batch = make()
  local opt = moth.optim[optimizer](m:parameters(), o or optimizers[optimizer])
  local step = wrap(function(scale, ...)
    opt:zero_grad()
    local loss = m:loss(...) * scale
    loss:backward()
    nn.utils.clip_grad_norm_(m:parameters(), 0.5)
    opt:step()
    return loss / scale
  end)
  local losses, grads = {}, {}
  for n = 1, steps do
    opt.param_groups[1].lr = 0.1 / n
    losses[n] = step(2 ^ (n % 10), batch(n))
  end
  for i, p in ipairs(m:parameters()) do grads[i] = p.grad end
  return S.text { m:parameters(), grads, losses }, compile.counters()
end

local function same(make, steps, optimizer, options, o)
  local want = train(make, function(f) return f end, steps, optimizer, o)
  compile.reset()
  local got, counters = train(make, function(f) return compile(f, options) end, steps, optimizer, o)
  assert.equal(want, got)
  return counters
end

local function mlp()
  local m = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
  function m:loss(x, y) return moth.mse_loss(self(x), y) end
  return m, function() return moth.randn(4, 3), moth.randn(4, 2) end
end

local function gpt()
  local m = moth.models.GPT { vocab_size = 20, n_layer = 2, n_head = 2, n_embd = 16, block_size = 8, dropout = 0.1 }
  function m:loss(ids) return (select(2, self(ids, ids))) end
  return m, function() return moth.randint(1, 21, { 2, 6 }) end
end

describe("compile: the whole step", function()
  before_each(compile.reset)

  it("is one graph for an MLP, with each optimizer; the first step makes the optimizer's state", function()
    for _, backend in ipairs { "eager", interpret } do
      for _, name in ipairs(names) do
        local c = same(mlp, 5, name, { fullgraph = true, backend = backend })
        assert.same({ 0, name == "SGD" and 1 or 2 }, { c.graph_breaks, c.graphs })
      end
      local c = same(mlp, 4, "SGD", { fullgraph = true, backend = backend }, { lr = 0.1, momentum = 0.9 })
      assert.same({ 0, 2 }, { c.graph_breaks, c.graphs })
    end
  end)

  it("is one graph for a GPT", function()
    for _, backend in ipairs { "eager", interpret } do
      local c = same(gpt, 4, "AdamW", { fullgraph = true, backend = backend })
      assert.same({ 0, 2 }, { c.graph_breaks, c.graphs })
    end
  end)

  it("is one compilation for 1000 learning rates and loss scales", function()
    local graphs = 0
    local c = same(mlp, 1000, "SGD", { fullgraph = true, backend = function(g)
      graphs = graphs + 1
      return g:interpreter()
    end })
    assert.same({ 1, 1, 0 }, { graphs, c.graphs, c.recompiles })
  end)

  it("is one compilation a size where learning rate, loss scale and batch size change", function()
    local function sized()
      local m = mlp()
      return m, function(n) return moth.randn(4 + n % 3, 3), moth.randn(4 + n % 3, 2) end
    end
    for _, backend in ipairs { "aot_eager", "blocks" } do
      assert.is_true(same(sized, 40, "SGD", { backend = backend }).graphs <= 5)
    end
  end)

  it("shows the pass and the gradients in the graph #quick", function()
    local text
    local w = moth.randn(3):requires_grad_(true)
    compile(function(x)
      local loss = (x * w):sum()
      loss:backward()
      return w.grad * 2
    end, { backend = function(g)
      text = tostring(g)
      g:lint()
      assert.equal(0, g:eliminate_dead_code())
      return g:interpreter()
    end })(moth.ones(3))
    assert.matches("backward_pass%({%%2}, {}, {x2}, {}, {}, false%)", text)
    assert.matches("%%3 = gradient_of%(x2%)", text)
  end)

  it("accumulates into gradients that are there, sets none, zeros, and reads them as eager does", function()
    local function run(wrap, set_to_none)
      moth.manual_seed(3)
      local m = nn.Linear(3, 2)
      local opt = moth.optim.SGD(m:parameters(), { lr = 0.1 })
      local log = {}
      local f = wrap(function(x, n)
        if n % 3 == 0 then opt:zero_grad(set_to_none) end
        local before = m.weight.grad
        m(x):square():sum():backward()
        m(x * 2):sum():backward() -- adds to it
        local seen = m.weight.grad
        log[#log + 1] = tostring(before == nil) .. tostring(seen == before)
        if n % 4 == 0 then m.bias.grad = nil end
        if n % 5 == 0 then m.weight.grad = moth.ones(2, 3) end
        return seen * 1, seen
      end)
      local out = {}
      for n = 1, 12 do
        out[n] = { f(moth.randn(4, 3), n) }
        out[n][2] = nil
        log[#log + 1] = m.bias.grad and S.text(m.bias.grad) or "none"
      end
      return S.text { out, m:parameters(), log }
    end
    for _, none in ipairs { true, false } do
      local want = run(function(f) return f end, none)
      for _, backend in ipairs { "eager", interpret } do
        compile.reset()
        assert.equal(want, run(function(f) return compile(f, { fullgraph = true, backend = backend }) end, none))
      end
    end
  end)

  it("has autograd.grad, by leaves and by values, with gradients and twice over a graph that is retained", function()
    local w = moth.randn(3):requires_grad_(true)
    local function f(x, g)
      local h = x * w
      local y = h:exp()
      local a, b = moth.autograd.grad(y, { h, w }, { grad_outputs = g, retain_graph = true })
      y:backward(g)
      return a + 1, b, w.grad
    end
    for _, backend in ipairs { "eager", interpret } do
      compile.reset()
      local compiled = compile(f, { fullgraph = true, backend = backend })
      for _ = 1, 3 do
        local x, g = moth.randn(2, 3), moth.randn(2, 3)
        w.grad = nil
        local want = S.text { f(x, g) }
        w.grad = nil
        assert.equal(want, S.text { compiled(x, g) })
      end
      assert.equal(1, compile.counters().graphs)
    end
  end)

  it("breaks, and is right, where a pass cannot be recorded", function()
    local w, seen = moth.randn(3):requires_grad_(true), {}
    local function check(f, reason, make)
      local results = {}
      for i, g in ipairs { f, compile(f) } do
        w.grad, results[i] = nil, {}
        for n = 1, 3 do
          moth.manual_seed(n)
          results[i][n] = { g(make and make() or moth.randn(3)) }
        end
        results[i] = S.text(results[i]) .. S.text { w.grad }
      end
      assert.equal(results[1], results[2])
      local ok, e = pcall(compile(f, { fullgraph = true }), make and make() or moth.randn(3))
      assert.is_false(ok)
      assert.matches(reason, e)
      compile.reset()
    end
    check(function(x)
      local y = (x * w):pow(3):sum()
      local g = moth.autograd.grad(y, w, { create_graph = true })
      g:sum():backward()
      return g:detach()
    end, "create_graph")
    local hook = w:register_hook(function(g)
      seen[#seen + 1] = g
      return g * 2
    end)
    check(function(x)
      (x * w):sum():backward()
      return w.grad * 1
    end, "hooks")
    hook:remove()
    assert.is_true(#seen > 0)
    check(function(x)
      (x * 2):sum():backward()
      return w.grad * 1
    end, "history", function() return (moth.ones(3) * w) * 1 end)
    local twice = function(x)
      local y = (x * w):sum()
      y:backward()
      y:backward()
    end
    local _, want = pcall(twice, moth.ones(3))
    local _, got = pcall(compile(twice), moth.ones(3))
    local function text(e) return (e:gsub("^[^ ]* ", ""):gsub("%w+Backward0?", "a node")) end
    assert.equal(text(want), text(got))
    check(function(x)
      local y = (x * w):sum()
      local z = w * 2
      local g, none = moth.autograd.grad(y, { w, z }, { allow_unused = true })
      return y:detach(), g, tostring(none)
    end, "grad")
  end)

  it("leaves no gradients without values where a step fails", function()
    local w = moth.randn(3, 2):requires_grad_(true)
    local compiled = compile(function(i)
      local loss = w:index_select(1, i):sum()
      loss:backward()
      return w.grad * 2
    end)
    compiled(moth.tensor({ 1, 2 }, { dtype = "int64" }))
    w.grad = nil
    assert.is_false((pcall(compiled, moth.tensor({ 1, 9 }, { dtype = "int64" }))))
    assert.is_nil(w.grad)
    compiled(moth.tensor({ 1, 2 }, { dtype = "int64" }))
    assert.equal(1, w.grad[{ 1, 1 }]:item())
  end)
end)

describe("compile: the whole step, memory", function()
  it("is flat over 1,000 steps", function()
    for _, backend in ipairs { "eager", "blocks", "inductor" } do
      moth.manual_seed(1)
      local m, batch = mlp()
      local opt = moth.optim.AdamW(m:parameters(), { lr = 1e-3 })
      local step = compile(function(...)
        opt:zero_grad()
        local loss = m:loss(...)
        loss:backward()
        opt:step()
        return loss
      end, { backend = backend })
      local function live()
        for _ = 1, 100 do step(batch()) end
        collectgarbage()
        collectgarbage()
        return moth.memory.stats().live
      end
      live()
      local before = live()
      for _ = 1, 8 do live() end
      assert.is_true(live() <= before + 4096)
    end
  end)
end)
