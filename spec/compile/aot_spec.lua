-- The joint graph of forward and backward: what backend "aot_eager" computes is eager's, gradients too, to the bit; and
-- what inner backends get.
local B = require "moth_lua"
local moth = require "moth"
local aot = require "moth.compile.aot"
local S = require "compile.support"
local nn, F = moth.nn, moth.nn.functional

local function fallbacks(fn)
  local before = aot.counters.fallbacks
  fn()
  return aot.counters.fallbacks - before
end

-- f(...) and compiled f(...), thrice, with the backward of all results: the same state. make() gives fresh arguments.
local function same(f, make)
  local compiled = moth.compile(f, { backend = "aot_eager" })
  for _ = 1, 3 do
    local want = S.outcome(f, make)
    assert.equal(want, (S.outcome(compiled, make)))
  end
end

-- The same of a module: parameters' gradients and buffers.
local function same_module(module, make, o)
  o = o or {}
  local function outcome(call)
    local kept = {}
    for name, p in module:named_parameters() do kept[name] = p:detach():clone() end
    for name, b in module:named_buffers() do kept[name] = b:clone() end
    module:zero_grad()
    local text = S.outcome(call, make)
    local parts = { text }
    for name, p in module:named_parameters() do parts[#parts + 1] = name .. " " .. S.text(p) end
    for name, b in module:named_buffers() do parts[#parts + 1] = name .. " " .. S.text(b:clone()) end
    moth.no_grad(function()
      for name, p in module:named_parameters() do p:copy_(kept[name]) end
      for name, b in module:named_buffers() do b:copy_(kept[name]) end
    end)
    return (table.concat(parts, "\n"):gsub("v%d+ true true", "true true"))
  end
  local function call(...) return module(...) end
  local compiled = moth.compile(call, { backend = o.backend or "aot_eager" })
  assert.equal(0, fallbacks(function()
    for _ = 1, 3 do
      local want = outcome(call)
      assert.equal(want, outcome(compiled))
    end
  end))
end

local function input(...)
  local shape = { ... }
  return function()
    moth.manual_seed(7)
    return { moth.randn(shape):requires_grad_(true) }
  end
end

describe("the joint graph", function()
  it("of an MLP, a TransformerEncoderLayer, convolutions with norms, an LSTM cell #M300", function()
    moth.manual_seed(1)
    same_module(nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 3)), input(5, 6))
    same_module(nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16, dropout = 0.1 }), input(4, 3, 8))
    same_module(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, { padding = 1 }),
      nn.GroupNorm(2, 4), nn.Tanh(), nn.MaxPool2d(2)), input(2, 2, 8, 8))
    same_module(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Softmax(-1)), input(3, 4))
    local Cell = nn.Linear(7, 16)
    local function cell(x, h, c)
      local i, f, g, o = unpack(moth.chunk and moth.chunk(Cell(moth.cat({ x, h }, 2)), 4, 2) or {})
      c = f:sigmoid() * c + i:sigmoid() * g:tanh()
      return o:sigmoid() * c:tanh(), c
    end
    same(cell, function()
      moth.manual_seed(2)
      return { moth.randn(2, 3), moth.randn(2, 4):requires_grad_(true), moth.randn(2, 4):requires_grad_(true) }
    end)
  end)

  it("has views and writes as values, and outputs that share memory", function()
    local function two() return { moth.ones(3, 4):requires_grad_(true), moth.full({ 4 }, 2):requires_grad_(true) } end
    assert.equal(0, fallbacks(function()
      same(function(x, b)
        local y = x * 1
        y[1]:add_(b)
        y:t():mul_(2)
        local v = y:view(-1)
        v[{ { 2, 5 } }] = 0
        return y, v, y[{ { 1, 2 } }]:detach()
      end, two)
      same(function(x) return x:view(-1), x:t(), x:detach() end, two)
      for _, both in ipairs { true, false } do -- views of what was detached from a history
        same(function(x, b)
          local d = (both and x or b):detach()
          local v = d:select(1, 1)
          return both and d or b * 2, v, (x * 2):sum()
        end, function()
          local x, b = unpack(two())
          return { x * 1, b * 1 }
        end)
      end
      same(function(x, b) return x + 1, x + 1, (x * b):sum() end, two)
      same(function(x) return moth.no_grad(function() return x:view(-1):narrow(1, 1, 4) end), x + 1 end, two)
      same(function(x, b) -- an input that needs no gradient is written to
        local state = B.set_requires_grad(x:detach():clone(), false)
        state:mul_(2)
        return state * b
      end, two)
    end))
  end)

  it("writes to inputs at the end, by one copy", function()
    local total = moth.zeros(3)
    local function f(x)
      moth.no_grad(function() total:add_(x) total:mul_(2) end)
      return x * total
    end
    local compiled = moth.compile(f, { backend = "aot_eager" })
    local x = moth.ones(3):requires_grad_(true)
    compiled(x)
    assert.same({ 2, 2, 2 }, total:totable())
    assert.equal(2, total:version())
    compiled(x):sum():backward()
    assert.same({ 6, 6, 6 }, total:totable())
    assert.same({ 6, 6, 6 }, x.grad:totable())
  end)

  it("leaves gradients undefined where outputs are not used", function()
    local a, b = moth.ones(2):requires_grad_(true), moth.ones(2):requires_grad_(true)
    local compiled = moth.compile(function(x, y) return x * 2, y * 3 end, { backend = "aot_eager" })
    local first = compiled(a, b)
    first:sum():backward()
    assert.same({ 2, 2 }, a.grad:totable())
    assert.equal(nil, b.grad)
  end)

  it("computes only the gradients that are asked for", function()
    local x, w = moth.ones(2):requires_grad_(true), moth.ones(2):requires_grad_(true)
    local seen
    local compiled = moth.compile(function(a, b) return (a * b):sum() end, { backend = aot.backend(function(g, _, info)
      if info.kind == "backward" then seen = g:count() end
      return g:interpreter()
    end) })
    local y = w * 1
    local loss = compiled(x, y)
    moth.no_grad(function() x:mul_(2) end) -- y's gradient would need it
    assert.same({ 1, 1 }, moth.autograd.grad(loss, x, { retain_graph = true }):totable())
    local few = seen
    assert.error_matches(function() compiled(x, y + 0):backward() loss:backward() end, "modified by an inplace")
    assert.is_true(few < seen)
  end)

  it("takes gradients with any strides", function()
    local a = moth.randn(3, 4):requires_grad_(true)
    local compiled = moth.compile(function(x) return x:tanh() end, { backend = "aot_eager" })
    local g = moth.randn(4, 3)
    local want = moth.autograd.grad(a:tanh(), { a }, { grad_outputs = { g:t() } })
    assert.equal(S.text(want), S.text(moth.autograd.grad(compiled(a), { a }, { grad_outputs = { g:t() } })))
  end)

  it("is differentiated again, with the random numbers that were drawn", function()
    local function f(x, w) return F.dropout((x * x * w):tanh(), 0.5, true):sum() end
    local compiled = moth.compile(f, { backend = "aot_eager" })
    local function second(call)
      moth.manual_seed(4)
      local x, w = moth.randn(5):requires_grad_(true), moth.randn(5):requires_grad_(true)
      local y = x * 2
      local gx, gw = moth.autograd.grad(call(y, w), { x, w }, { create_graph = true })
      local after = moth.rand(1)
      return S.text { gx, gw, after, moth.autograd.grad((gx * gw):sum(), { x, w }) }
    end
    assert.equal(second(f), second(compiled))
    assert.equal(second(f), second(compiled))
  end)

  it("is run again where a gradient of one of its steps is asked for", function()
    local function f(x, w)
      local h = F.dropout(x * w, 0.5, true)
      local v = h:view(-1)
      return (h * h * w):sum(), h, v, x:t()
    end
    local function outcome(call, ask)
      moth.manual_seed(5)
      local x, w = moth.randn(3, 4):requires_grad_(true), moth.randn(3, 4):requires_grad_(true)
      local y = x * 1
      local loss, h, v, t = call(y, w)
      local seen = {}
      ask(loss, h, v, t, seen, x, w)
      return S.text(seen) .. S.text { x, w, moth.rand(1) }
    end
    local function both(ask)
      local compiled = moth.compile(f, { backend = "aot_eager" })
      for _ = 1, 2 do assert.equal(outcome(f, ask), outcome(compiled, ask)) end
    end
    both(function(loss, h, _, _, seen) seen[1] = moth.autograd.grad(loss, h) end)
    both(function(loss, h) h:retain_grad() loss:backward() end)
    both(function(loss, h, _, _, seen)
      h:register_hook(function(g) seen[1] = g:clone() return g * 2 end)
      loss:backward()
      seen[2] = h.grad
    end)
    both(function(loss, h, v, t, seen)
      local more = loss + v:sum() * 2 + h:sum() + t:sum()
      seen[1], seen[2] = moth.autograd.grad(more, { v, h }, { retain_graph = true })
      more:backward()
    end)
  end)

  it("keeps what small inputs held that it writes to, for gradients of gradients", function()
    local net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    local compiled = moth.compile(net, { backend = "aot_eager" })
    local function penalty(call)
      moth.manual_seed(5)
      net:zero_grad()
      local x = moth.randn(6, 3):requires_grad_(true)
      local g = moth.autograd.grad(call(x):sum(), x, { create_graph = true })
      g:square():sum():backward()
      local grads = {}
      for _, p in net:named_parameters() do grads[#grads + 1] = p.grad end
      return S.text(grads)
    end
    assert.equal(penalty(net), penalty(compiled))
  end)

  it("computes what the program keeps and looks at later", function()
    local kept, writes = {}, moth.zeros(2)
    local function f(x, look)
      local h = F.dropout(x * 2, 0.5, true)
      local y = h * 1
      local v = y:view(-1)
      v:add_(1)
      local before = writes * 2
      if look then kept.h, kept.y, kept.v, kept.before = h, y, v, before end
      moth.no_grad(function() writes:add_(1) end)
      return (y * x):sum()
    end
    local compiled = moth.compile(f, { backend = "aot_eager" })
    local x = moth.randn(2, 3):requires_grad_(true)
    moth.manual_seed(1)
    compiled(x, false)
    collectgarbage()
    local losses = {}
    for _, call in ipairs { f, compiled } do
      kept = {}
      moth.manual_seed(2)
      losses[#losses + 1] = call(x, true):item()
      losses[#losses + 1] = S.text { kept.h:detach(), kept.y:detach(), kept.v:detach(), moth.rand(1) }
      moth.no_grad(function() kept.v:zero_() end)
      losses[#losses + 1] = S.text(kept.y:detach())
    end
    assert.same({ losses[1], losses[2], losses[3] }, { losses[4], losses[5], losses[6] })
    assert.error_matches(function() return kept.before:totable() end, "has written to.*return it")
  end)

  it("has the program's numbers: another one compiles nothing", function()
    local function f(x, k) return ((x * k + 1 - x / k):pow(2) * k):sum() end
    local segments, backwards = aot.counters.segments, aot.counters.backwards
    local compiled = moth.compile(f, { backend = "aot_eager" })
    local numbers = { 1, 2, 0.5, -1, 0, -3 }
    for k = 4, 100 do numbers[#numbers + 1] = k * 0.75 end
    for _, k in ipairs(numbers) do
      local function outcome(call)
        local x = moth.ones(3):requires_grad_(true)
        call(x, k):backward()
        return S.text(x)
      end
      assert.equal(outcome(f), outcome(compiled))
    end
    assert.same({ 1, 1 }, { aot.counters.segments - segments, aot.counters.backwards - backwards })
    local powers = moth.compile(function(x, k) return (x ^ k):sum() end, { backend = "aot_eager" })
    for k = 2, 4 do -- the derivative has k - 1, which is none of them
      local x = moth.full({ 2 }, 3):requires_grad_(true)
      powers(x, k):backward()
      assert.near(k * 3 ^ (k - 1), x.grad[1]:item(), 1e-3)
    end
  end)

  it("is there to be looked at, as is what it is divided into #M300", function()
    local w = moth.randn(4, 2):requires_grad_(true)
    local function f(x) return (x:matmul(w) + 1):relu():sum() end
    local joint, forward, backward = moth.compile.aot(f, { moth.randn(3, 4) })
    local function targets(g)
      local list = {}
      for node in g:nodes() do if node.op == "call" then list[#list + 1] = node.target end end
      return table.concat(list, " ")
    end
    assert.equal("mm add relu sum", targets(forward))
    assert.equal("mm add relu sum view expand threshold_backward transpose mm", targets(joint))
    assert.equal("view expand threshold_backward transpose mm", targets(backward))
    assert.equal(nil, (select(3, moth.compile.aot(function(x) return x + 1 end, { moth.ones(2) }))))
    assert.error_matches(function() moth.compile.aot(function(x) return x:sum():item() end, { w }) end, "breaks")
  end)

  it("saves less with recompute, which computes the same gradients #M300", function()
    local w = moth.randn(8, 8):requires_grad_(true)
    local function f(x) -- what is saved by default: x, the argument of exp …, three in a row; with the cut one of them
      local h = x:matmul(w)
      local y = h:tanh():exp():sin()
      return (y * y:sigmoid()):matmul(w):sum()
    end
    local function saved(o)
      local _, _, backward = moth.compile.aot(f, { moth.randn(4, 8) }, o)
      local n = 0
      for node in backward:nodes() do if node.op == "placeholder" and node.name:find("^saved") then n = n + 1 end end
      return n
    end
    assert.is_true(saved { recompute = true } < saved())
    local backend = aot.backend(aot.interpret, { separate = true, recompute = true })
    local compiled = moth.compile(f, { backend = backend })
    local function outcome(call)
      moth.manual_seed(3)
      local x = moth.randn(4, 8):requires_grad_(true)
      w.grad = nil
      call(x):backward()
      return S.text { x, w }
    end
    assert.equal(outcome(f), outcome(compiled))
  end)

  it("computes nothing again from what the program may write to", function()
    local x = moth.randn(5):requires_grad_(true)
    local compiled = moth.compile(function() return (x + 3):square(), x * x end, {
      backend = aot.backend(aot.interpret, { recompute = true }) })
    local want = (x.data + 3) * 2
    local y = compiled() -- x is saved for the other result alone
    moth.no_grad(function() x:add_(1) end)
    y:sum():backward()
    assert.is_true(moth.equal(want, x.grad))
  end)

  it("works with checkpoints, functions of one's own, anomaly mode, hooks of saved tensors, train and eval", function()
    local function x34() return { moth.ones(3, 4):requires_grad_(true) } end
    local w = moth.randn(4, 4):requires_grad_(true)
    same(function(x)
      return moth.utils.checkpoint(function(y) return F.dropout((y:matmul(w)):tanh(), 0.3, true) end, x * 2)
    end, x34)
    local Cube = moth.autograd.Function {
      forward = function(ctx, x)
        ctx:save_for_backward(x)
        return x * x * x
      end,
      backward = function(ctx, g)
        local x = ctx:saved_tensors()
        return g * x * x * 3
      end,
    }
    same(function(x) return Cube(x:matmul(w)):relu() + 1 end, x34)
    same(function(x)
      local out
      moth.autograd.detect_anomaly(function()
        out = (x:matmul(w)):exp():sum()
        out:backward(nil, { retain_graph = true })
      end)
      return out
    end, x34)
    local packed = 0
    same(function(x)
      local out
      moth.autograd.graph.saved_tensors_hooks(function(t)
        packed = packed + 1
        return t
      end, function(t) return t end, function() out = x:matmul(w):tanh() end)
      return out
    end, x34)
    assert.is_true(packed > 0)
    local net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    same_module(net:eval(), function() return { moth.ones(3, 4):requires_grad_(true) } end)
    same_module(net:train(), input(3, 4))
  end)

  it("tells of an inner backend that fails, or runs without it with suppress_errors", function()
    local backend = aot.backend(function(graph, _, info)
      if info.kind == "backward" then error("no idea how") end
      return graph:interpreter()
    end)
    local compiled = moth.compile(function(x) return x:sin():sum() end, { backend = backend })
    local x = moth.ones(3):requires_grad_(true)
    assert.error_matches(function() compiled(x):backward() end, "no idea how")
    moth.compile.config.suppress_errors = true
    compiled(x):backward()
    moth.compile.config.suppress_errors = false
    assert.near(math.cos(1), x.grad[1]:item(), 1e-6)
    local wrong = aot.backend(function() return function() return { moth.ones(2) } end end)
    assert.error_matches(function() moth.compile(function(y) return y + 1 end, { backend = wrong })(x) end,
      "output 1 of a compiled graph is float32 %[2%] cpu, not float32 %[3%]")
    assert.error_matches(function() aot.backend(1) end, "expected a function")
    assert.error_matches(function() aot.backend(aot.interpret, { seperate = true }) end, "seperate")
    assert.error_matches(function() moth.compile.aot(1, {}) end, "expected a function or a module")
  end)

  it("leaks nothing in thousands of calls #noasan", function()
    local w, seen = moth.randn(4, 4):requires_grad_(true), moth.zeros(4)
    local compiled = moth.compile(function(x)
      local h = F.dropout(x:matmul(w):tanh(), 0.3, true)
      moth.no_grad(function() seen:add_(h:mean(1)) end)
      return h:sum(), h:t()
    end, { backend = "aot_eager" })
    local x = moth.randn(3, 4)
    local function calls(n)
      for i = 1, n do
        local loss, h = compiled(x)
        if i % 4 == 1 then loss:backward() end
        if i % 4 == 2 then moth.autograd.grad(loss, w, { create_graph = true }):sum():backward() end
        if i % 4 == 3 then moth.autograd.grad(loss, h, { allow_unused = true }) end
        w.grad = nil
        if i % 200 == 0 then collectgarbage() end
      end
      collectgarbage()
      collectgarbage()
      local f = io.open("/proc/self/statm")
      if not f then return 0, 0 end
      local _, pages = f:read("*n", "*n")
      f:close()
      return pages * 4, collectgarbage("count")
    end
    calls(2000)
    local rss, lua = calls(2000)
    local rss_later, lua_later = calls(6000)
    assert.is_true(rss_later - rss < 3000, ("%d KB more"):format(rss_later - rss))
    assert.is_true(lua_later - lua < 300, ("%d KB of Lua more"):format(lua_later - lua))
  end)

  it("raises eager's errors: a second backward, what was saved is written to", function()
    local compiled = moth.compile(function(x) return x:exp() end, { backend = "aot_eager" })
    local x = moth.ones(2):requires_grad_(true)
    local y = compiled(x)
    y:sum():backward()
    assert.error_matches(function() y:sum():backward() end, "second time")
    y = compiled(x)
    local loss = y:sum()
    moth.no_grad(function() y:add_(1) end)
    assert.error_matches(function() loss:backward() end, "modified by an inplace operation")
  end)

  it("frees nothing of what a backward reaches only in the compiled graph", function()
    local x = moth.ones(3):requires_grad_(true)
    local function run(compile)
      local before = compile(function(t) return t:exp() end)
      local f = compile(function(t, h) return h:tanh(), (t * 2):sum() end)
      local list = {}
      for _, h in ipairs { x:exp(), before(x), compile(function(t) return t * 9 end)(x) } do
        x.grad = nil
        h:sum():backward(nil, { retain_graph = true })
        local a, loss = f(x, h)
        loss:backward() -- h is an input of the segment, but not of the loss
        list[#list + 1] = S.text(moth.autograd.grad(h:sum(), x, { create_graph = true }))
        a:sum():backward()
        list[#list + 1] = S.text(x.grad)
        assert.error_matches(function() a:sum():backward() end, "second time")
      end
      return list
    end
    local want = run(function(f) return f end)
    for _, backend in ipairs { "aot_eager", "blocks" } do
      assert.same(want, run(function(f) return moth.compile(f, { backend = backend }) end))
    end
  end)

  it("takes what reaches one result only from the gradient of that result", function()
    -- what dropout saves has no part in the gradient of `doubled`: what it gave was overwritten
    for _, backend in ipairs { "eager", "aot_eager", "blocks" } do
      local function f(x)
        local doubled = x * 2
        return F.dropout(doubled, 0.4, true):copy_(doubled), doubled
      end
      if backend ~= "eager" then f = moth.compile(f, { backend = backend }) end
      local x = moth.ones(3):requires_grad_(true)
      local y, z = f(x)
      for _ = 1, 2 do z:sum():backward() end
      assert.same({ 4, 4, 4 }, x.grad:totable())
      y:sum():backward()
      assert.same({ 6, 6, 6 }, x.grad:totable())
    end
  end)

  it("frees what the calls of one gradient have saved, not those of another", function()
    for _, backend in ipairs { "eager", "aot_eager", "blocks" } do
      local function f(x, w) return x:exp() + w:exp(), (x:tanh() * 2):sum() end
      if backend ~= "eager" then f = moth.compile(f, { backend = backend }) end
      local x, w = moth.ones(3):requires_grad_(true), moth.ones(3):requires_grad_(true)
      local y, z = f(x, w)
      local by_x = moth.autograd.grad(y:sum(), x)
      assert.error_matches(function() moth.autograd.grad(y:sum(), x) end, "second time")
      local by_w = moth.autograd.grad(y:sum(), w)
      assert.equal(S.text(by_x), S.text(by_w))
      assert.error_matches(function() y:sum():backward() end, "second time")
      z:backward()
      assert.near(2 * (1 - math.tanh(1) ^ 2), x.grad[1]:item(), 1e-5)
      assert.error_matches(function() z:backward() end, "second time")
      local function linear(t)
        local h = t * 2
        return h, -h
      end
      local h, k = (backend == "eager" and linear or moth.compile(linear, { backend = backend }))(x)
      for _ = 1, 2 do
        k:sum():backward()
        assert.equal(S.text(-moth.ones(3)), S.text(moth.autograd.grad(k:sum(), h)))
      end
    end
  end)

  it("says so where the gradient by a result is asked for that it no longer has", function()
    local function f(x) -- r is computed from h
      local h = x * 2
      return h, h * 3 + x:exp()
    end
    for _, backend in ipairs { "aot_eager", "blocks" } do
      local x = moth.ones(3):requires_grad_(true)
      local compiled = moth.compile(f, { backend = backend })
      local h, r = compiled(x)
      assert.equal(3, moth.autograd.grad(r:sum(), h, { retain_graph = true })[1]:item())
      h, r = compiled(x)
      moth.autograd.grad(r:sum(), x) -- frees the inputs, which it could be computed again from
      for _, root in ipairs { r, h + r } do
        assert.error_matches(function()
          moth.autograd.grad(root:sum(), h, { allow_unused = true })
        end, "second time.*retain_graph")
      end
      assert.equal(5, moth.autograd.grad((h * 5):sum(), h)[1]:item())
      local function apart(t) return t * 2, t * 3 end
      h, r = moth.compile(apart, { backend = backend })(x)
      moth.autograd.grad(r:sum(), x)
      assert.is_nil((moth.autograd.grad(r:sum(), h, { allow_unused = true })))
    end
  end)

  it("holds what is computed from constants alone, and computes it once", function()
    local function f(x, w, k, other)
      local t = x:size(1)
      local keep = moth.ones(t, t):tril():eq(0)
      local angle = (moth.arange(t):float():unsqueeze(2) * 0.1 * (other or 1)):cos()
      local written = moth.zeros(t, 1)
      written[1]:add_(2)
      local table_ = (moth.arange(4):float() * 2):sin() -- is returned: memory of its own each time
      local s = x:matmul(x:t()):masked_fill(keep, -9):softmax(-1)
      return (s:matmul(x) * angle * w * k + written):sum(), table_, angle:view(-1)
    end
    local held = 0
    local backend = aot.backend(function(graph, _, info)
      for node in graph:nodes() do
        if node.op == "get_attr" then held = held + 1 end
        assert(info.kind ~= "forward" or node.target ~= "tril")
      end
      return graph:interpreter()
    end, true)
    for _, chosen in ipairs { backend, "aot_eager", "blocks", "inductor" } do
      for _, grad in ipairs(chosen == "inductor" and { true } or { true, false }) do
        local compiled = moth.compile(f, { backend = chosen })
        for n = 1, 6 do
          local function make()
            moth.manual_seed(n)
            return { moth.randn(n < 4 and 3 or 5, 4), moth.randn(4):requires_grad_(grad), n, n > 2 and n or nil }
          end
          local want, got = S.outcome(f, make), S.outcome(compiled, make)
          if chosen == "inductor" then assert.is_true(S.is_close(got, want)) else assert.equal(want, got) end
        end
        local a = select(2, compiled(moth.ones(3, 4), moth.ones(4), 1))
        a:zero_()
        assert.is_true(moth.equal(select(2, compiled(moth.ones(3, 4), moth.ones(4), 1)),
          (moth.arange(4):float() * 2):sin()))
      end
    end
    assert.is_true(held >= 4, tostring(held))
  end)

  it("runs call by call where hooks get what calls save: checkpoints of several layers", function()
    moth.manual_seed(2)
    local net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    local function f(x)
      local h = moth.utils.checkpoint(function(t) return net[4](net[3](net[2](t))) end, net[1](x))
      return net[5](h * 2):tanh():mean()
    end
    local function run(g)
      local list = {}
      for n = 1, 3 do
        net:zero_grad()
        g(moth.full({ 3, 4 }, n)):backward()
        list[n] = S.text(net[1].weight.grad) .. S.text(net[3].weight.grad)
      end
      return list
    end
    local want = run(f)
    for _, backend in ipairs { "eager", "aot_eager", "blocks" } do
      assert.same(want, run(moth.compile(f, { backend = backend })))
    end
  end)

  it("copies no gradient that it makes", function()
    local clones = 0
    local compiled = moth.compile(function(x, w)
      (x:matmul(w):relu()):sum():backward()
      local g = w.grad
      w.grad = nil
      return g
    end, { backend = aot.backend(function(graph)
      for node in graph:nodes() do clones = clones + (node.target == "clone" and 1 or 0) end
      return graph:interpreter()
    end, true) })
    local x, w = moth.randn(3, 4), moth.randn(4, 2):requires_grad_(true)
    local g = compiled(x, w)
    assert.equal(0, clones)
    assert.is_true(moth.equal(g, moth.autograd.grad(x:matmul(w):relu():sum(), w)))
  end)

  it("of a whole training step", function()
    local function train(compile)
      moth.manual_seed(3)
      local net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 1))
      local opt = moth.optim.AdamW(net:parameters(), { lr = 0.01 })
      local step = compile(function(x, y)
        opt:zero_grad()
        local loss = F.mse_loss(net(x), y)
        loss:backward()
        nn.utils.clip_grad_norm_(net:parameters(), 1)
        opt:step()
        return loss
      end)
      local losses = {}
      for n = 1, 5 do losses[n] = step(moth.randn(8, 3), moth.randn(8, 1)) end
      assert.error_matches(function() losses[1]:backward() end, "second time")
      for n = 1, 5 do losses[n] = losses[n]:item() end
      return losses, S.text(net:parameters())
    end
    assert.equal(0, fallbacks(function()
      local want, weights = train(function(f) return f end)
      local got, theirs = train(function(f) return moth.compile(f, { backend = "aot_eager", fullgraph = true }) end)
      assert.same(want, got)
      assert.equal(weights, theirs)
    end))
  end)

  it("has the casts of autocast as calls, and no break #M318", function()
    local w = moth.randn(4, 4):requires_grad_(true)
    local function f(x)
      local y
      moth.autocast({ dtype = moth.bfloat16 }, function() y = x:matmul(w):relu() end)
      return y:float() * 2
    end
    same(f, function() return { moth.ones(3, 4):requires_grad_(true) } end)
    local report = moth.compile.explain(f, moth.ones(3, 4))
    assert.equal(0, report.graph_break_count)
  end)
end)
