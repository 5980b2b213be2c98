-- Hooks on leaves, nodes, saved tensors; watchers; callbacks at the end of backward. moth.autograd.graph.
local B = require "moth_lua"
local moth = require "moth"
local fails = require "fails"
local graph = moth.autograd.graph

local function collect()
  for _ = 1, 4 do collectgarbage() end
  moth.zeros(1)
end
local function live()
  collect()
  collect()
  return moth.memory.stats().live
end

describe("a hook after accumulation #quick", function()
  it("sees .grad when it has been added to, once a pass, after hooks of the gradient", function()
    local w = moth.tensor({ 1, 2 }, { requires_grad = true })
    local order = {}
    local after = w:register_post_accumulate_grad_hook(function(x)
      assert.is_true(rawequal(x, w))
      order[#order + 1] = "after " .. x.grad:sum():item()
    end)
    w:register_hook(function(g)
      order[#order + 1] = w.grad and "before" or "before the first"
      return g * 2
    end);
    (w * w + w * 3):sum():backward()
    assert.same({ "before the first", "after 24" }, order)
    order = {};
    (w * 1):sum():backward()
    assert.same({ "before", "after 28" }, order)
    after:remove()
    after:remove()
    order = {};
    (w * 1):sum():backward()
    assert.same({ "before" }, order)
  end)

  it("may set .grad to nil: a step within backward", function()
    local net = moth.nn.Sequential(moth.nn.Linear(4, 8), moth.nn.Tanh(), moth.nn.Linear(8, 1))
    local steps = 0
    for _, p in ipairs(net:parameters()) do
      p:register_post_accumulate_grad_hook(function(x)
        moth.no_grad(function() x:sub_(x.grad * 0.1) end)
        x.grad = nil
        steps = steps + 1
      end)
    end
    local x = moth.randn(16, 4)
    local first = net(x):square():mean()
    first:backward()
    for _ = 1, 20 do net(x):square():mean():backward() end
    assert.is_true(net(x):square():mean():item() < first:item())
    assert.equal(84, steps)
    for _, p in ipairs(net:parameters()) do assert.is_nil(p.grad) end
  end)

  it("is for leaves, returns nothing, and does not run in autograd.grad", function()
    local w = moth.ones(2, { requires_grad = true })
    local y = w * 2
    fails("only a leaf", function() y:register_post_accumulate_grad_hook(function() end) end)
    fails("doesn't require gradient", function() moth.ones(2):register_post_accumulate_grad_hook(function() end) end)
    local n = 0
    local h = w:register_post_accumulate_grad_hook(function()
      n = n + 1
      return n > 1 and w or nil
    end)
    moth.autograd.grad(y:sum(), w)
    assert.equal(0, n);
    (w * 2):sum():backward()
    assert.equal(1, n)
    fails("must return nothing", function() (w * 2):sum():backward() end)
    h:remove()
    w:register_post_accumulate_grad_hook(function() error("no more") end)
    fails("no more", function() (w * 2):sum():backward() end)
  end)
end)

describe("a hook of a node #quick", function()
  it("sees and replaces what goes in and what comes out, in PyTorch's order", function()
    local a = moth.tensor({ 1, 2 }, { requires_grad = true })
    local b = moth.tensor({ 3, 4 }, { requires_grad = true })
    local y = a * b
    local order = {}
    local node = y.grad_fn
    node:register_hook(function(inputs, outputs)
      order[#order + 1] = "post"
      assert.equal(2, inputs.n)
      assert.same({ 6, 8 }, inputs[1]:totable())
      assert.same({ 2, 2 }, outputs[1]:totable())
      return { inputs[1], inputs[2] * 10 }
    end)
    node:register_prehook(function(outputs)
      order[#order + 1] = "pre"
      return { outputs[1] * 2 }
    end)
    y:register_hook(function() order[#order + 1] = "tensor" end)
    local gone = node:register_hook(function() error("removed") end)
    gone:remove()
    y:sum():backward()
    assert.same({ "tensor", "pre", "post" }, order)
    assert.same({ 6, 8 }, a.grad:totable())
    assert.same({ 20, 40 }, b.grad:totable())
  end)

  it("of an accumulator runs around the addition", function()
    local w = moth.ones(2, { requires_grad = true })
    local node = w:view(2).grad_fn:next_functions()[1][1]
    local seen = {}
    node:register_prehook(function(g) seen[1] = w.grad == nil and g[1]:sum():item() end)
    node:register_hook(function(inputs, g) seen[2] = inputs.n + w.grad:sum():item() + g[1]:sum():item() end);
    (w * 3):sum():backward()
    assert.same({ 6, 12 }, seen)
  end)

  it("sees nil for a result without gradient, and says what it may return", function()
    local x = moth.randn(4, 3, { requires_grad = true })
    local y, other = moth.autograd.Function { name = "Two", forward = function(_, t) return t * 1, t * 2 end,
      backward = function(_, g, h) return g + h * 2 end }(x)
    local node = y.grad_fn
    node:register_prehook(function(g)
      assert.equal(2, g.n)
      assert.is_nil(g[2])
    end)
    y:sum():backward()
    assert.equal(other.grad_fn, node)
    for _, case in ipairs {
      { "list of 1 gradients", function() return 3 end },
      { "returned 2 gradients", function(g) return { g[1], g[1] } end },
      { "changed the size", function() return { moth.ones(1) } end },
      { "string as gradient 1", function() return { "x" } end },
    } do
      local z = moth.ones(3, { requires_grad = true }):exp()
      z.grad_fn:register_hook(case[2])
      fails(case[1], function() z:sum():backward() end)
    end
    fails("expected a function", function() y.grad_fn:register_hook(3) end)
  end)

  it("has a table of notes that lives as long as the node", function()
    local y = moth.ones(2, { requires_grad = true }) * 2
    y.grad_fn.metadata.name = "mine"
    collect()
    assert.equal("mine", y.grad_fn.metadata.name)
    y:sum():backward()
    assert.equal("mine", y.grad_fn.metadata.name)
  end)
end)

describe("a hook of several gradients #quick", function()
  it("runs once a pass, when all are there that the pass reaches", function()
    local a, b, c = moth.ones(2, { requires_grad = true }), moth.ones(2, { requires_grad = true }),
      moth.ones(2, { requires_grad = true })
    local seen = {}
    local handle = graph.register_multi_grad_hook({ a, b, c }, function(grads)
      local row = {}
      for i = 1, grads.n do row[i] = grads[i] and grads[i]:sum():item() or "none" end
      seen[#seen + 1] = row
    end);
    (a * b * c):sum():backward();
    (a * 2 + c):sum():backward()
    assert.same({ { 2, 2, 2 }, { 4, "none", 2 } }, seen)
    fails("broken", function()
      local x = a * b
      x:register_hook(function() error("broken") end);
      (x + c):sum():backward()
    end);
    (a + b + c):sum():backward()
    assert.equal(3, #seen)
    handle:remove();
    (a + b + c):sum():backward()
    assert.equal(3, #seen)
    local first = 0
    graph.register_multi_grad_hook({ a, b }, function(g) first = first + g:sum():item() end, { mode = "any" });
    (a + b * 5):sum():backward()
    assert.is_true(first == 2 or first == 10)
    fails("'all' or 'any'", graph.register_multi_grad_hook, { a }, print, { mode = "some" })
  end)
end)

describe("a callback at the end of backward #quick", function()
  it("runs once the outermost is over, in order, with what they queue", function()
    local w = moth.ones(2, { requires_grad = true })
    local order = {}
    local function say(what) return function(err) order[#order + 1] = err and "error" or what end end
    w:register_hook(function()
      moth.autograd.queue_callback(function()
        order[#order + 1] = "first"
        moth.autograd.queue_callback(say("third"))
        assert.is_truthy(w.grad)
        local v = moth.ones(1, { requires_grad = true })
        v:register_hook(function() moth.autograd.queue_callback(say("fourth")) end)
        v:sum():backward()
      end)
      moth.autograd.queue_callback(say("second"))
      moth.enable_grad(function()
        local v = moth.ones(1, { requires_grad = true })
        v:register_hook(function() moth.autograd.queue_callback(say("inner")) end)
        v:sum():backward()
        order[#order + 1] = "inner backward is over"
      end)
    end);
    (w * 2):sum():backward()
    assert.same({ "inner backward is over", "first", "second", "inner", "third", "fourth" }, order)
    fails("none runs", moth.autograd.queue_callback, print)
  end)

  it("runs after an error, and does not hide it", function()
    local w = moth.ones(2, { requires_grad = true })
    local got = {}
    local mark = {}
    w:register_hook(function()
      moth.autograd.queue_callback(function(err)
        got[1] = err
        pcall(function() return moth.ones(2) + moth.ones(3) end)
        error("another")
      end)
      moth.autograd.queue_callback(function(err) got[2] = err end)
      error(mark, 0)
    end)
    local ok, err = pcall(function() (w * 2):sum():backward() end)
    assert.is_false(ok)
    assert.is_true(rawequal(err, mark) and rawequal(got[1], mark) and rawequal(got[2], mark))
    -- An error of the core: its text.
    local v = moth.ones(2, { requires_grad = true })
    local y = v:exp()
    y:register_hook(function()
      moth.autograd.queue_callback(function(e)
        got = e
        pcall(function() return moth.ones(2) + moth.ones(3) end)
      end)
    end)
    moth.no_grad(function() y:add_(1) end)
    fails("modified by an inplace operation", function() y:sum():backward() end)
    assert.is_truthy(got:find("modified by an inplace", 1, true))
    -- The error of a callback alone.
    v = moth.ones(2, { requires_grad = true })
    v:register_hook(function() moth.autograd.queue_callback(function() error("in the end") end) end)
    fails("in the end", function() (v * 1):sum():backward() end)
    fails("in the end", function() return moth.autograd.grad((v * 1):sum(), v) end)
  end)
end)

describe("saved-tensor hooks #quick", function()
  local function counted()
    local n = { pack = 0, unpack = 0 }
    return n, function(x)
      n.pack = n.pack + 1
      assert.is_false(moth.is_grad_enabled())
      return { x:clone() }
    end, function(p)
      n.unpack = n.unpack + 1
      return p[1]
    end
  end

  it("pack what C nodes and Functions save, and change no gradient, first or second", function()
    local Square = moth.autograd.Function { name = "Square",
      forward = function(ctx, x)
        local y = x * x
        ctx:save_for_backward(x, y)
        return y
      end,
      backward = function(ctx, g)
        local x = ctx:saved_tensors()
        return g * x * 2
      end }
    local function net(x, w)
      local h = moth.tanh(x:mm(w)):exp()
      return (Square(h) * h:sigmoid():sum(1, true) + h:softmax(2)):sum()
    end
    local x, w = moth.randn(3, 4, { dtype = "float64" }), moth.randn(4, 5, { dtype = "float64", requires_grad = true })
    local function derivatives(value)
      local g = moth.autograd.grad(value, w, nil, true, true)
      return g, (moth.autograd.grad((g * g):sum(), w))
    end
    local g1, h1 = derivatives(net(x, w))
    local n, pack, unpack = counted()
    local g2, h2 = graph.saved_tensors_hooks(pack, unpack, function() return derivatives(net(x, w)) end)
    assert.is_true(moth.equal(g1, g2) and moth.equal(h1, h2))
    assert.is_true(n.pack > 10 and n.unpack > 10)
    local value = graph.saved_tensors_hooks(pack, unpack, net, x, w)
    n.pack = 0
    g2, h2 = derivatives(value)
    assert.equal(0, n.pack)
    assert.is_true(moth.equal(g1, g2) and moth.equal(h1, h2))
  end)

  it("show a leaf as itself, anything else without history; nothing is held by them", function()
    local w = moth.ones(100, { requires_grad = true })
    local leaves, others = 0, 0
    local function pack(x)
      if rawequal(x, w) then leaves = leaves + 1 else others = others + 1 end
      assert.is_true(rawequal(x, w) or x:is_leaf())
      return x
    end
    local function unpack(x) return x end
    graph.saved_tensors_hooks(pack, unpack, function() return (w * w):exp():sum() end):backward()
    assert.is_true(leaves == 2 and others == 1)
    assert.is_true(math.abs(2 * math.exp(1) - w.grad[1]:item()) < 1e-6)
    local base = live()
    for _ = 1, 1000 do
      local y = graph.saved_tensors_hooks(pack, unpack, function() return (w * w):exp():log() end)
      y:sum():backward()
      w.grad = nil
    end
    w.grad = nil
    assert.is_true(live() - base < 20000)
    for _ = 1, 1000 do graph.saved_tensors_hooks(pack, unpack, function() return (w * w):exp():log() end) end
    assert.is_true(live() - base < 20000)
  end)

  it("nest, end with their function, after errors too, and are a coroutine's own", function()
    local w = moth.ones(2, { requires_grad = true })
    local function named(list, name)
      return function(x)
        list[#list + 1] = name
        return x
      end, function(x) return x end
    end
    local list = {}
    local p1, u1 = named(list, 1)
    local p2, u2 = named(list, 2)
    graph.saved_tensors_hooks(p1, u1, function()
      w:exp()
      pcall(graph.saved_tensors_hooks, p2, u2, function()
        w:exp()
        error("x")
      end)
      w:exp()
    end)
    w:exp()
    assert.same({ 1, 2, 1 }, list)
    list[1], list[2], list[3] = nil, nil, nil
    local co = coroutine.wrap(function()
      graph.saved_tensors_hooks(p1, u1, function()
        w:exp()
        coroutine.yield()
        w:exp()
      end)
    end)
    co()
    w:exp()
    graph.saved_tensors_hooks(p2, u2, function()
      co()
      w:exp()
    end)
    assert.same({ 1, 1, 2 }, list)
    -- Collected in the middle.
    co = coroutine.wrap(function() graph.saved_tensors_hooks(p1, u1, coroutine.yield) end)
    co()
    co = nil -- luacheck: ignore
    collect()
    list[1], list[2], list[3] = nil, nil, nil
    w:exp()
    assert.same({}, list)
  end)

  it("say what is wrong with what they return or change", function()
    local w = moth.ones(2, { requires_grad = true })
    local function with(pack, unpack)
      return function() graph.saved_tensors_hooks(pack, unpack, function() return w:exp():sum() end):backward() end
    end
    local function same(x) return x end
    fails("unpack must return a tensor, got nil", with(same, function() end))
    fails("unpack gave float32 %[3%] cpu for what was packed as float32 %[2%] cpu",
      with(same, function() return moth.ones(3) end))
    fails("unpack gave float64", with(same, function(x) return x:double() end))
    fails("has changed the tensor that it was given", with(function(x) return x:add_(1) end, same))
    fails("in pack", with(function() error("in pack") end, same))
    fails("in unpack", with(same, function() error("in unpack") end))
    assert.is_nil(w.grad)
  end)

  it("can be disabled", function()
    local function same(x) return x end
    local function use() return graph.saved_tensors_hooks(same, same, moth.ones, 1) end
    fails("not here", graph.disable_saved_tensors_hooks, "not here", use)
    assert.equal(1, use():item())
    fails("not within", graph.saved_tensors_hooks, same, same, function()
      graph.disable_saved_tensors_hooks("not within", moth.ones, 1)
    end)
    graph.disable_saved_tensors_hooks("a", graph.disable_saved_tensors_hooks, "b", function() fails("b", use) end)
  end)

  it("unpack again with retain_graph, refuse a second time without, and serve save_on_cpu", function()
    local w = moth.randn(4, { requires_grad = true })
    local n, pack, unpack = counted()
    local y = graph.saved_tensors_hooks(pack, unpack, function() return w:exp():sum() end)
    y:backward { retain_graph = true }
    y:backward()
    assert.equal(2, n.unpack)
    fails("a second time", function() y:backward() end)
    local g = w.grad
    w.grad = nil
    y = graph.save_on_cpu(function() return (w:exp():sum() * 2) end)
    y:backward()
    assert.is_true(moth.allclose(g, w.grad))
    graph.save_on_cpu({ pin_memory = false }, function() return 1 end)
    fails("unknown option", graph.save_on_cpu, { pin = true }, print)
  end)
end)

describe("watching nodes #quick", function()
  it("tells of those that are made and run", function()
    local w = moth.ones(2, { requires_grad = true })
    local log = {}
    local function note(kind)
      return function(node, grads, ok)
        local count = grads and " " .. grads.n or ""
        log[#log + 1] = kind .. " " .. node:name() .. count .. (ok == false and " failed" or "")
      end
    end
    local watch = { made = note("made"), begin = note("begin"), finish = note("finish") }
    local y = graph.watch_nodes(watch, function() return (w * w):exp() end)
    assert.same({ "made MulBackward0", "made ExpBackward0" }, log)
    log = {}
    y:sum():backward { retain_graph = true }
    assert.same({}, log)
    graph.watch_nodes(watch, function() y:backward(moth.ones(2)) end)
    assert.same({ "begin ExpBackward0 1", "finish ExpBackward0 1", "begin MulBackward0 1", "finish MulBackward0 2",
      "begin AccumulateGrad 1", "finish AccumulateGrad 0" }, log)
    log = {}
    fails("a second time", graph.watch_nodes, watch, function() y:sum():backward() end)
    assert.equal("finish ExpBackward0 failed", log[#log])
    fails("stop", graph.watch_nodes, { begin = function() error("stop") end }, function() (w * w):sum():backward() end)
    fails("unknown option", graph.watch_nodes, { start = print }, print)
    fails("expected a function", graph.watch_nodes, { begin = 3 }, print)
  end)

  it("carries anomaly detection: where was the op whose derivative is not a number?", function()
    local x = moth.tensor({ 0 }, { requires_grad = true })
    local found
    local function check(node, grads)
      for i = 1, grads and grads.n or 0 do
        if grads[i] and grads[i]:isnan():any():item() then found = node.metadata.where end
      end
    end
    graph.watch_nodes({ made = function(node) node.metadata.where = node:name() end, finish = check }, function()
      (x:sqrt() * 0):sum():backward()
    end)
    assert.equal("SqrtBackward0", found)
  end)
end)

describe("anomaly detection #quick", function()
  local function bad(x)
    local y = x:sqrt() -- a tail call would leave no frame
    return y
  end
  local zero = moth.tensor({ 0 }, { requires_grad = true })

  it("says which op's derivative made NaN or failed, and where it was called #M448", function()
    local ok, err = pcall(moth.autograd.detect_anomaly, function() (bad(zero) * 0):sum():backward() end)
    assert.is_false(ok)
    assert.is_truthy(err:find("Function 'SqrtBackward0' returned nan values in its 0th output (the gradient of self). "
      .. "The forward call was made here:\n", 1, true), err)
    local line = debug.getinfo(bad, "S").linedefined + 1
    assert.is_truthy(err:find("made here:\n  [^\n]*graph_spec.lua:" .. line .. "\n"), err)
    assert.is_nil(err:find("lua/moth", 1, true))
    assert.equal(7, moth.autograd.detect_anomaly({ check_nan = false }, function()
      (bad(zero) * 0):sum():backward()
      return 7
    end))
    local function broken()
      local y = zero:exp()
      moth.no_grad(function() y:add_(1) end)
      y:sum():backward()
    end
    fails("modified by an inplace operation.*in ExpBackward0. The forward call was made here:.*graph_spec",
      moth.autograd.detect_anomaly, broken)
    fails("^mine$", moth.autograd.detect_anomaly, function() error("mine", 0) end)
    fails("unknown option", moth.autograd.detect_anomaly, { nan = true }, print)
  end)

  it("finds NaN in modules, loops, composites, derivatives of derivatives, functions of one's own #M472", function()
    local function planted(f)
      local ok, err = pcall(moth.autograd.detect_anomaly, f)
      assert.is_false(ok)
      assert.is_truthy(err:find("returned nan values", 1, true), err)
      local line = tonumber(err:match("made here:\n%s*[^\n]-graph_spec.lua:(%d+)"))
      return line, err
    end
    local here = debug.getinfo(1, "l").currentline
    local Net = moth.nn.class("Net")
    function Net.__init() end
    function Net.forward(_, x)
      local y = x:sqrt()
      return y
    end
    assert.equal(here + 4, (planted(function() (Net()(zero) * 0):sum():backward() end)))
    assert.equal(here + 11, (planted(function()
      local y = zero + 1
      for k = 1, 3 do
        y = (y - 1):sqrt() * 0 + k
      end
      y:sum():backward()
    end)))
    planted(function()
      local x = moth.tensor({ 0 }, { requires_grad = true })
      local g = moth.autograd.grad(x:pow(1.5):sum(), x, nil, nil, true)[1]
      local y = g:pow(0.5) * 0
      y:sum():backward()
    end)
    local line, text = planted(function()
      local x = moth.tensor({ 0 }, { requires_grad = true })
      local y = x:pow(1.5)
      local g = moth.autograd.grad(y:sum(), x, nil, nil, true)[1] -- 1.5 x^0.5, whose derivative is infinite at 0
      moth.autograd.grad((g * 0):sum(), x)
    end)
    assert.equal(here + 24, line)
    assert.matches("in the backward of 'PowBackward0', whose forward call was made here:\n[^\n]*graph_spec.lua:"
      .. here + 23 .. "\n", text)
    local F = moth.autograd.Function { name = "Mine", forward = function(_, x) return x * 1 end,
      backward = function(_, g) return g * (0 / 0) end }
    local _, err = planted(function() F(zero):sum():backward() end)
    assert.is_truthy(err:find("Function 'MineBackward", 1, true) or err:find("Function 'Mine", 1, true), err)
  end)

  it("can be on until it is off again, looks for Inf if asked, and nests #M468", function()
    assert.is_false(moth.autograd.is_anomaly_enabled())
    moth.autograd.set_detect_anomaly(true)
    local ok, err = pcall(function() (bad(zero) * 0):sum():backward() end)
    assert.is_true(moth.autograd.is_anomaly_enabled())
    moth.autograd.set_detect_anomaly(false)
    assert.is_false(ok)
    assert.is_truthy(err:find("returned nan", 1, true))
    assert.is_false(moth.autograd.is_anomaly_enabled())
    local function infinite() bad(zero):sum():backward() end -- 1 / 0
    moth.autograd.detect_anomaly(infinite)
    fails("returned inf values in its 0th output", moth.autograd.detect_anomaly, { check_inf = true }, infinite)
    fails("returned inf values", moth.autograd.detect_anomaly, { check_nan = true }, function()
      moth.autograd.detect_anomaly({ check_inf = true }, infinite)
    end)
    zero.grad = nil
    infinite()
    assert.equal(math.huge, zero.grad:item())
  end)
end)

describe("what hooks hold #quick", function()
  it("is collected though they mention their tensor: leaf, result, freed and unfreed graphs", function()
    local w = moth.ones(1000, { requires_grad = true })
    local cases = {
      leaf = function()
        local v = moth.ones(1000, { requires_grad = true })
        v:register_hook(function(g) return v and g end)
        v:register_post_accumulate_grad_hook(function() return v and nil end);
        (v * 2):sum():backward()
      end,
      add = function()
        local y = w + 1
        y:register_hook(function(g) return y and g end)
        y:sum():backward()
      end,
      exp = function()
        local y = w:exp()
        y:register_hook(function(g) return y and g end)
        y.grad_fn:register_hook(function(g) return y and g end)
        y:sum():backward()
      end,
      ["no backward"] = function()
        local y = w:exp()
        y:register_hook(function(g) return y and g end)
        return y:sum()
      end,
    }
    for name, case in pairs(cases) do
      for _ = 1, 3 do case() end
      w.grad = nil
      local base = live()
      for _ = 1, 1000 do case() end
      w.grad = nil
      assert.is_true(live() - base < 100000, name)
    end
  end)

  it("stays while the graph may run them, with all that they mention", function()
    for _, kind in ipairs { "leaf", "result" } do
      local seen
      local function make()
        local x = moth.full({ 10 }, 3, { requires_grad = true })
        local other = x:detach() * 2
        local t = kind == "leaf" and x or x + 0
        t:register_hook(function(g) seen = (other * g):sum():item() + t:sum():item() end)
        collect()
        return (t * 2):sum()
      end
      local y = make()
      collect()
      y:backward()
      assert.equal(150, seen, kind)
      -- Parked between two uses.
      local x = moth.full({ 10 }, 3, { requires_grad = true })
      local t = kind == "leaf" and x or x + 0
      local calls = 0
      do
        local other = moth.ones(10) * 2
        t:register_hook(function(g)
          calls = calls + 1
          return g * other
        end)
      end
      for _ = 1, 3 do
        collect()
        local z = (t * 1):sum()
        collect()
        z:backward { retain_graph = true }
      end
      assert.equal(3, calls, kind)
      assert.equal(6, x.grad[1]:item())
    end
  end)

  it("is freed at once, as deep as the network is: module hooks, tables in ctx", function()
    local SIZE, DEPTH = 2 ^ 16, 40
    local Keep = moth.autograd.Function { name = "Keep",
      forward = function(ctx, a)
        local r = a * 1.01
        ctx.all = { inner = { a, r } }
        return r
      end,
      backward = function(ctx, g)
        assert.is_true(ctx.all.inner == ctx.all.inner and B.is_tensor(ctx.all.inner[1]))
        return g * 1.01
      end }
    local id = moth.nn.Identity()
    id:register_full_backward_hook(function() end)
    id:register_full_backward_pre_hook(function() end)
    local layers = { function(x) return Keep(x) end, function(x) return id(x * 1.01) end }
    for k, layer in ipairs(layers) do
      for _, backward in ipairs { true, false } do
        local w = moth.ones(SIZE, { requires_grad = true })
        collect()
        local before = moth.memory.stats().live
        local y = w
        for _ = 1, DEPTH do y = layer(y) end
        y = y:sum()
        if backward then y:backward() end
        y, w.grad = nil, nil -- luacheck: ignore
        collectgarbage()
        moth.zeros(1)
        collectgarbage()
        assert.is_true(moth.memory.stats().live - before < 3 * SIZE * 4, k .. tostring(backward))
      end
    end
  end)
end)

describe("gradients of the middle of a graph", function()
  local edges, grad = moth.autograd.graph, moth.autograd.grad
  local function close(a, b) assert.is_true(moth.allclose(a, b, 1e-6, 1e-7), tostring(a)) end

  it("are asked for by edges", function()
    local x = moth.tensor({ 1, 2, 3 }, { requires_grad = true })
    local y = x * 2
    local edge = edges.get_gradient_edge(y)
    assert.equal("MulBackward0", edge.node:name())
    assert.equal(1, edge.output_nr)
    close(grad((y * y):sum(), edge, { retain_graph = true }), y.data * 2)
    close(grad({ edges.get_gradient_edge((y * y):sum()) }, { x }), x.data * 8)
    assert.equal("AccumulateGrad", edges.get_gradient_edge(x).node:name())
    local z = x * 2
    edge = edges.get_gradient_edge(z)
    z:mul_(3)
    assert.error_matches(function() grad(z:sum(), edge) end, "written to in place")
    assert.error_matches(function() edges.get_gradient_edge(moth.ones(2)) end, "does not require")
    assert.error_matches(function() grad(x:sum(), { 1 }) end, "gradient edges")
  end)

  it("come in batches, and as zeros where there are none", function()
    local x, y = moth.tensor({ 1, 2, 3 }, { requires_grad = true }), moth.ones(2, { requires_grad = true })
    close(grad(x * x, x, { grad_outputs = moth.eye(3), is_grads_batched = true }), moth.diag(x.data * 2))
    local a, b = grad(x * x, { x, y },
      { grad_outputs = moth.eye(3), is_grads_batched = true, materialize_grads = true })
    assert.equal("[3, 3]", tostring(a:size()))
    assert.equal("[3, 2]", tostring(b:size()))
    close((select(2, grad(x:sum(), { x, y }, { materialize_grads = true }))), moth.zeros(2))
    assert.error_matches(function() grad(x * x, x, { is_grads_batched = true }) end, "needs grad_outputs")
  end)

  it("survive writes where saved tensors are copied first", function()
    local x = moth.tensor({ 1, 2, 3 }, { requires_grad = true })
    edges.allow_mutation_on_saved_tensors(function()
      local a = x * 1
      local y = a * a
      a:zero_()
      local e = x:exp()
      e:narrow(1, 1, 1):zero_() -- a view of what is saved
      local total = y:sum() + e:sum()
      total:backward()
      assert.error_matches(function() edges.allow_mutation_on_saved_tensors(print) end, "on already")
    end)
    close(x.grad, x.data * 2 + moth.tensor { 0, math.exp(2), math.exp(3) })
    local a = x * 1
    local y = a * a
    a:zero_()
    assert.error_matches(function() y:sum():backward() end, "modified by an inplace operation")
  end)
end)
