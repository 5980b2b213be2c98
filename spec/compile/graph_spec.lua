-- Graphs: what they show, how they are changed and run; functions as backends; explain and capture.
local moth = require "moth"
local S = require "compile.support"
local nn, compile = moth.nn, moth.compile

local function interpret(g) return g:interpreter() end

describe("compile: graphs #quick", function()
  before_each(compile.reset)

  local function model(x, w)
    local y = (x * 2 + 1):relu()
    return y:matmul(w):sum(1), y
  end

  it("show nodes with sizes, dtypes and lines #M273", function()
    local x, w = moth.randn(2, 3), moth.randn(3, 4)
    local g = compile.capture(model, { x, w })
    local text = tostring(g)
    assert.matches("graph%(x1: float32%[2, 3%], x2: float32%[3, 4%]%)", text)
    assert.matches("%%1 = mul%(x1, 2%) +float32%[2, 3%]  .*graph_spec%.lua:%d+", text)
    assert.matches("%%3 = relu%(%%2%)", text)
    assert.matches("return %%5, %%3", text)
    local kinds, targets = {}, {}
    for node in g:nodes() do
      kinds[#kinds + 1] = node.op
      targets[#targets + 1] = node.target
    end
    assert.same({ "placeholder", "placeholder", "call", "call", "call", "call", "call", "output" }, kinds)
    assert.same({ "mul", "add", "relu", "matmul", "sum" }, targets)
    local relu = g:find("relu")
    assert.same({ 2, 3 }, relu.meta.shape)
    assert.equal("float32", relu.meta.dtype.name)
    assert.equal(g:find("add"), relu.args[1])
    assert.equal(2, #relu:users())
    assert.equal(2, g:find("mul").args[2])
    assert.error_matches(function() return relu.shape end, "a node has no 'shape'")
    assert.error_matches(function() relu.target = "tanh" end, "cannot be set")
  end)

  it("run, as the function does, with gradients #M273", function()
    local x, w = moth.randn(2, 3), moth.randn(3, 4)
    local g = compile.capture(model, { x, w })
    local function make()
      moth.manual_seed(2)
      return { moth.randn(2, 3):requires_grad_(true), moth.randn(3, 4):requires_grad_(true) }
    end
    assert.equal(S.outcome(model, make), S.outcome(g:interpreter(), make))
    assert.equal(S.outcome(model, make), S.outcome(function(...) return g(...) end, make))
    assert.error_matches(function() g(x) end, "the graph has 2 inputs, got 1")
    assert.error_matches(function() g(x, moth.ones(3)) end,
      "argument x2 of the graph: expected float32 with 2 dimensions")
  end)

  it("hold what is no argument, and compute nothing when captured #M271 #M272", function()
    local net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4))
    local before = S.text(net:buffers())
    local x = moth.randn(5, 3)
    local _, by_name = moth.dispatch.count(function() return compile.capture(net, { x }) end)
    assert.same({}, by_name)
    assert.equal(before, S.text(net:buffers()))
    local g = compile.capture(net, { x })
    local held = 0
    for node in g:nodes() do
      if node.op == "get_attr" then
        held = held + 1
        assert.is_true(moth.is_tensor(node.tensor))
      end
    end
    assert.is_true(held >= 4)
    net:eval()
    local h = compile.capture(net, { x })
    assert.is_true(moth.equal(net(x):detach(), h(x):detach()))
    assert.error_matches(function() compile.capture(function(t) return t:sum():item() end, { x }) end,
      "the graph breaks: item")
    assert.is_false(compile.is_compiling())
    local same = compile.capture(function(t) return t end, { x })
    assert.equal(0, same:count())
    assert.equal(x, (same(x)))
  end)

  it("are changed: calls put in, replaced, erased #M273", function()
    local x, w = moth.randn(2, 3), moth.randn(3, 4)
    local g = compile.capture(model, { x, w })
    local relu, mul = g:find("relu"), g:find("mul")
    local tanh = g:call(moth.tanh, g:find("add"), { before = relu })
    relu:replace_all_uses_with(tanh)
    assert.equal(0, #relu:users())
    relu:erase()
    g:lint()
    local want = (x * 2 + 1):tanh()
    local sum, y = g(x, w)
    assert.is_true(moth.equal(y, want) and moth.equal(sum, want:matmul(w):sum(1)))
    assert.error_matches(function() mul:erase() end, "mul cannot be erased: 1 nodes use it")
    assert.error_matches(function() return relu.args end, "is not in its graph any more")
    assert.error_matches(function() tanh:replace_all_uses_with(g:find("sum")) end, "cannot take the place")
    assert.error_matches(function() mul:replace_all_uses_with(tanh) end, "comes before tanh")
    local double = g:call("mul", tanh, 3, { before = g:find("matmul") })
    g:find("matmul"):replace_input(tanh, double)
    assert.is_true(moth.equal((g(x, w)), (want * 3):matmul(w):sum(1)))
    g:call("exp", tanh)
    g:call(moth.cat, { tanh, double }, 1)
    assert.equal(2, g:eliminate_dead_code())
    assert.equal(6, g:count())
    assert.error_matches(function() g:call("exp", moth.ones(2)) end, "takes nodes of the graph, no other tensors")
    assert.error_matches(function() g:call("nothing", tanh) end, "there is no op named 'nothing'")
  end)

  it("keep writes, random numbers and several results", function()
    local function f(x)
      local v = x:view(-1)
      v:add_(1)
      local values, at = x:max(1)
      return moth.dropout(values, 0.5, true), at, x:topk(1)
    end
    local g = compile.capture(f, { moth.randn(2, 3) })
    assert.equal(0, g:eliminate_dead_code())
    local function make()
      moth.manual_seed(2)
      return { moth.randn(2, 3) }
    end
    assert.equal(S.outcome(f, make), S.outcome(g:interpreter(), make))
  end)
end)

describe("compile: backends #quick", function()
  before_each(compile.reset)

  it("get a graph and the inputs once, and are called from then on #M291", function()
    local made, called = 0, 0
    local w = moth.randn(3, 3):requires_grad_(true)
    local function f(x) return (x:matmul(w) + 1):relu():sum() end
    local compiled = compile(f, { backend = function(g, inputs)
      made = made + 1
      assert.equal(2, #inputs)
      assert.equal(w, inputs[2])
      assert.equal(4, g:count())
      return function(...)
        called = called + 1
        return (g(...))
      end
    end })
    for n = 1, 4 do
      local function make()
        moth.manual_seed(n)
        return { moth.randn(2, 3):requires_grad_(true) }
      end
      assert.equal(S.outcome(f, make), S.outcome(compiled, make))
    end
    assert.same({ 1, 4 }, { made, called })
    assert.equal(1, compile.counters().graphs)
  end)

  it("may return less: what the program does not keep need not be made", function()
    local outputs
    local compiled = compile(function(x) return ((x + 1) * 2):exp() end, { backend = function(g)
      for node in g:nodes() do if node.op == "output" then outputs = node.args.n end end
      return function(x) return x * 0 end
    end })
    for _ = 1, 3 do assert.equal(0, compiled(moth.ones(2))[1]:item()) end
    assert.equal(1, outputs)
    local kept
    local escapes, made = nil, 0
    local learns = compile(function(x)
      local y = x + 1
      if escapes then kept = y end
      return y * 2
    end, { backend = function(g)
      made = made + 1
      return g:interpreter()
    end })
    for _ = 1, 3 do learns(moth.ones(2)) end
    escapes = true
    for n = 1, 3 do
      learns(moth.full({ 2 }, n))
      assert.equal(n + 1, kept[1]:item())
    end
    assert.equal(2, made)
  end)

  it("whose graphs are wrong, or that fail, are errors, or warnings with suppress_errors #M283", function()
    local function f(x) return x + 1 end
    local x = moth.ones(2)
    assert.error_matches(function() compile(f, { backend = function() error("no idea", 0) end })(x) end, "no idea")
    assert.error_matches(function() compile(f, { backend = function() return 1 end })(x) end,
      "must return a function of the graph's inputs, got number")
    assert.error_matches(function() compile(f, { backend = function() return function() end end })(x) end,
      "returned 0 of 1 outputs")
    local other = compile(f, { backend = function() return function() return moth.ones(3) end end })
    assert.error_matches(function() other(x) end,
      "output 1 of the backend's function is float32 %[3%] cpu, not float32 %[2%] cpu")
    compile.config.suppress_errors = true
    local ok, y = pcall(compile(f, { backend = function() error("no idea", 0) end }), x)
    compile.config.suppress_errors = false
    assert.is_true(ok)
    assert.equal(2, y[1]:item())
  end)

  it("see breaks, grad modes, writes to inputs and numbers as eager has them", function()
    local function f(x, k)
      local y = x * k
      moth.no_grad(function() x:add_(1) end)
      if y:sum():item() > 0 then y = y * 2 end
      local z = moth.no_grad(function() return y * 3 end)
      return y, z
    end
    local compiled = compile(f, { backend = interpret })
    for n = 1, 6 do
      local function make() return { moth.full({ 3 }, n - 3):requires_grad_(true) * 1, n } end
      assert.equal(S.outcome(f, make), S.outcome(compiled, make))
    end
  end)

  it("explain lists graphs, ops and breaks #M319 #M320", function()
    local report = compile.explain(function(x)
      local y = x + 1
      if y:sum():item() > 0 then y = y * 2 end
      return y:relu()
    end, moth.ones(3))
    assert.same({ 2, 1, 4, { 2, 2 } }, { report.graph_count, report.graph_break_count, report.op_count,
      report.ops_per_graph })
    assert.matches("item, at .*graph_spec%.lua:%d+", report.break_reasons[1])
    assert.same({ { "add", "sum" }, { "mul", "relu" } }, report.ops)
    assert.same({ "pointwise", "reduce", pointwise = 3, reduce = 1 }, report.kinds)
    local text = tostring(report):gsub("[^ ]*graph_spec%.lua:[%d-]+", "HERE"):gsub("    one kernel: [^\n]*\n", "")
    assert.equal([[
2 graphs, 1 break, 4 ops: 3 pointwise, 1 reduce
  graph 1: 2 ops, HERE, for these sizes
    add sum
  graph 2: 2 ops, HERE, for these sizes
    mul relu
  break 1: item, at HERE]], text)
    assert.equal(1, compile.explain(nn.Linear(2, 2), moth.ones(1, 2)).graph_count)
  end)

  it("explain takes a compiled function with its options, and says what made it compile again #M319", function()
    local f = compile(function(x) return (x * 2 + 1):relu() end, { dynamic = true, backend = function(g)
      g:add_kernel { "mul", "add", "relu" }
      return interpret(g)
    end })
    f(moth.ones(3))
    f(moth.ones(3, { dtype = "float64" }))
    local report = compile.explain(f, moth.ones(3))
    local text = tostring(report)
    assert.matches("graph 1: 3 ops, .*, for any sizes\n    mul add relu\n    one kernel: mul add relu\n", text)
    assert.matches("compiled again: mul: an input is float64", text)
    local m = compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), { backend = interpret })
    assert.same({ { "linear", "relu" } }, compile.explain(m, moth.ones(1, 2)).ops)
    local held = {}
    held.f = compile(function() return held.f end) -- a callable that its function holds can be collected
    local weak = setmetatable({ held.f }, { __mode = "v" })
    held = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.is_nil(weak[1])
  end)

  it("explain fits a screen for a large program", function()
    local report = compile.explain(function(x)
      for _ = 1, 40 do
        for _ = 1, 30 do x = x:relu():tanh() end
        if x:sum():item() > 1e9 then return x end
      end
      return x
    end, moth.ones(3))
    local lines = {}
    for line in (tostring(report) .. "\n"):gmatch("(.-)\n") do
      lines[#lines + 1] = line
      assert.is_true(#line <= 110, line)
    end
    assert.is_true(#lines <= 42)
    assert.equal(40, report.graph_count)
  end)
end)
