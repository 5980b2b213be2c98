-- Numbers and sizes as inputs of graphs: one graph for many of them; what a backend relies on, it pins.
local B = require "moth_lua"
local moth = require "moth"
local S = require "compile.support"
local toolchain = require "moth.utils.toolchain"
local compile = moth.compile

-- A backend that runs the graph, and what it has seen.
local function backend(pin)
  local seen = { graphs = 0, calls = 0 }
  return function(g)
    seen.graphs, seen.graph = seen.graphs + 1, g
    if pin then pin(g) end
    local run = g:interpreter()
    return function(...)
      seen.calls = seen.calls + 1
      local last = select(select("#", ...), ...)
      seen.numbers = type(last) == "table" and last or nil
      return run(...)
    end
  end, seen
end

local function same(f, compiled, make)
  assert.equal(S.outcome(f, make), S.outcome(compiled, make))
end

describe("compile: numbers of graphs #quick", function()
  before_each(compile.reset)

  it("come beside the tensors: one graph for 1000 learning rates and steps", function()
    local code, seen = backend()
    local p, g, m, v = moth.randn(5), moth.randn(5), moth.zeros(5), moth.zeros(5)
    local function step(lr, n)
      B.ops.adam_step({ p }, { g }, { m }, { v }, {}, lr, 0.9, 0.999, 1e-8, 0.01, n, true, false, false)
      return p * lr
    end
    local compiled = compile(step, { backend = code })
    local before = { p:clone(), m:clone(), v:clone() }
    for n = 1, 1000 do compiled(1 / n, n) end
    local got = S.text { p, m, v }
    p:copy_(before[1])
    m:copy_(before[2])
    v:copy_(before[3])
    for n = 1, 1000 do step(1 / n, n) end
    assert.equal(S.text { p, m, v }:gsub(" v%d+ ", " "), (got:gsub(" v%d+ ", " ")))
    assert.same({ 1, 1000 }, { seen.graphs, seen.calls })
    assert.same({ 1, 0 }, { compile.counters().graphs, compile.counters().recompiles })
  end)

  it("are objects among the arguments of nodes, by position; defaults are constants", function()
    local code, seen = backend()
    local function f(x, k) return x * k + 2, moth.full({ 2 }, k) end
    local compiled = compile(f, { backend = code })
    for _, k in ipairs { 3, 0.5, -1, 7, 1 / 0 } do same(f, compiled, function() return { moth.ones(2), k } end) end
    assert.equal(1, seen.graphs)
    local list = seen.graph:numbers()
    assert.same({ "k1", 3, "k2", 2, "k3", 3 }, { list[1].name, list[1].value, list[2].name, list[2].value,
      list[3].name, list[3].value })
    assert.equal(list[1], seen.graph:find("mul").args[2])
    assert.equal(1, seen.graph:find("add").args[3])
    assert.same({ 1 / 0, 2, 1 / 0 }, seen.numbers)
    assert.matches("graph%(x1: float32%[2%], k1 = 3, k2 = 2, k3 = 3%).*mul%(x1, k1%).*add%(%%1, k2%)",
      tostring(seen.graph))
    assert.is_false(seen.graph.dynamic)
    -- without a list, they are as recorded
    assert.equal(5, (seen.graph(moth.ones(2)))[1]:item())
    assert.equal(12, (seen.graph(moth.ones(2), { 10, 2, 1 }))[1]:item())
    local g = compile.capture(f, { moth.ones(2), 3 })
    assert.same({}, g:numbers())
    assert.equal(3, g:find("mul").args[2])
  end)

  it("stay numbers in calls that are put in", function()
    local compiled = compile(function(x, k) return (x * k):relu() end, { backend = function(g)
      local mul = g:find("mul")
      local k = mul.args[2]
      local other = g:call("add", mul, k, { before = g:find("relu") })
      g:find("relu"):replace_input(mul, other)
      assert.error_matches(function() g:call("view", mul, { k, 1 }) end, "an argument by itself")
      g:lint()
      return g:interpreter()
    end })
    for k = 1, 4 do assert.equal(2 * k + k, compiled(moth.full({ 1 }, 2), k):item()) end
  end)

  it("are pinned by a backend that relies on them", function()
    local code, seen = backend(function(g)
      assert.equal(g:numbers()[2].value, g:numbers()[2]:pin())
    end)
    local function f(x, a, b) return x * a + x / b end
    local compiled = compile(f, { backend = code })
    for n = 1, 12 do same(f, compiled, function() return { moth.ones(3), n, n % 3 + 1 } end) end
    assert.equal(3, seen.graphs) -- one for each b, whatever the a
    assert.same({ 3, 2 }, { compile.counters().graphs, compile.counters().recompiles })
    compile.reset()
    code, seen = backend(function(g) g:pin_numbers() end)
    compiled = compile(f, { backend = code })
    for n = 1, 4 do compiled(moth.ones(3), n % 2 + 1, 3) end
    assert.equal(2, seen.graphs)
  end)

  it("tell whether they have differed: a backend may pin the others", function()
    local varied = {}
    local code, seen = backend(function(g)
      local list = {}
      for i, k in ipairs(g:numbers()) do
        list[i] = k.varied
        if not k.varied then k:pin() end
      end
      varied[#varied + 1] = list
    end)
    local compiled = compile(function(x, k) return (x * k + 2) * 3 end, { backend = code })
    for n = 1, 10 do assert.equal((n + 2) * 3, compiled(moth.ones(1), n):item()) end
    assert.equal(2, seen.graphs)
    assert.same({ { false, false, false }, { true, false, false } }, varied)
  end)

  it("that make an error make it at their line", function()
    local code = backend()
    local compiled = compile(function(x, p) return moth.nn.functional.dropout(x, p, true) end, { backend = code })
    compiled(moth.ones(3), 0.5)
    compiled(moth.ones(3), 0.25)
    local ok, e = pcall(compiled, moth.ones(3), 1.5)
    assert.is_false(ok)
    assert.matches("dropout", e)
    local bytes = compile(function(x, k) return x + k end, { backend = backend() })
    assert.equal(4, bytes(moth.ones(1, { dtype = "uint8" }), 3):item())
    assert.is_false((pcall(bytes, moth.ones(1, { dtype = "uint8" }), 300)))
  end)

  it("of a value that is looked at late are those of its call", function()
    if not toolchain.cc() then return end
    local kept, keep = {}, false
    local compiled = compile(function(x, k)
      local h = (x * k + 1):view(3, 1)
      if keep then kept[#kept + 1] = h end
      return ((x * k + 1):relu() + 1):tanh()
    end, { backend = "inductor" })
    local x = moth.ones(3)
    compiled(x, 1)
    compiled(x, 2)
    keep = true
    for k = 1, 4 do compiled(x, k) end
    for k = 4, 1, -1 do assert.equal(k + 1, kept[k][{ 1, 1 }]:item()) end
  end)
end)

describe("compile: sizes of graphs #quick", function()
  before_each(compile.reset)

  local function attend(x, w)
    local t = x:size(1)
    local q = x:matmul(w):view(t, 2, 2):transpose(1, 2)
    local mask = moth.ones(t, t):tril()
    local s = q:matmul(q:transpose(-2, -1)) / math.sqrt(t)
    s = s:masked_fill(mask:eq(0), -1e9):softmax(-1)
    return s:matmul(q):transpose(1, 2):reshape(t, 4) + moth.arange(t):view(-1, 1)
  end

  it("with dynamic = true sequence lengths 7 to 512 are one compilation #M292", function()
    local w = moth.randn(4, 4)
    local code, seen = backend()
    for _, o in ipairs { { dynamic = true }, { dynamic = true, backend = code } } do
      compile.reset()
      local compiled = compile(attend, o)
      for t = 7, 512 do
        if t < 30 or t % 61 == 0 or t == 512 then
          same(attend, compiled, function()
            moth.manual_seed(t)
            return { moth.randn(t, 4), w:detach():clone():requires_grad_(true) }
          end)
        end
      end
      assert.same({ 1, 0 }, { compile.counters().graphs, compile.counters().recompiles })
    end
    assert.equal(1, seen.graphs)
    assert.is_true(seen.graph.dynamic)
    assert.matches("any sizes", tostring(seen.graph))
  end)

  it("by default a new shape recompiles, and lengths 1 to 512 are at most 3 compilations", function()
    local w = moth.randn(4, 4)
    local code, seen = backend()
    for _, o in ipairs { {}, { backend = code } } do
      compile.reset()
      local compiled = compile(attend, o)
      compiled(moth.randn(3, 4), w)
      assert.equal(1, compile.counters().graphs)
      compiled(moth.randn(4, 4), w)
      assert.equal(2, compile.counters().graphs)
      for _, t in ipairs { 1, 2, 3, 4, 5, 1, 17, 100, 512, 4 } do
        same(attend, compiled, function()
          moth.manual_seed(t)
          return { moth.randn(t, 4), w }
        end)
      end
      assert.is_true(compile.counters().graphs <= 3)
    end
    assert.is_true(seen.graphs <= 3)
  end)

  it("are pinned by a backend that needs them: a static graph for each", function()
    local shapes = {}
    local code, seen = backend(function(g)
      g:pin_sizes()
      shapes[#shapes + 1] = g:find("x1").meta.shape[1]
    end)
    local function f(x) return x:view(-1, 1):expand(-1, 3):sum(1) + x:size(1) end
    local compiled = compile(f, { backend = code, dynamic = true })
    for n = 1, 12 do
      local t = n % 3 + 2
      same(f, compiled, function() return { moth.ones(t) } end)
    end
    assert.same({ 3, { 3, 4, 2 } }, { seen.graphs, shapes })
  end)

  it("are compiled for 64 sets at most, for 8 where that takes long; with others the calls run one by one", function()
    local function counted(most, pin)
      compile.reset()
      local code, seen = backend(pin)
      local compiled = compile(function(x) return x + 1 end, { backend = code, dynamic = true })
      for n = 1, 80 do assert.equal(n, compiled(moth.ones(n)):numel()) end
      assert.same({ most, 0 }, { seen.graphs, compile.counters().skipped })
      for n = 1, most do compiled(moth.ones(n)) end
      assert.equal(2 * most, seen.calls)
    end
    counted(64, function(g) g:pin_sizes() end)
    counted(8, function(g)
      g:pin_sizes()
      local begin = os.clock()
      while os.clock() - begin < 0.025 do end -- luacheck: ignore
    end)
  end)

  it("have the outputs of all codes in one order", function()
    local code, seen = backend(function(g) g:pin_sizes() end)
    local function f(x)
      local y = x * 2
      return y:view(-1), x + 5 -- y is an output, too, as it shares memory with one
    end
    local compiled = compile(f, { dynamic = true, backend = code })
    for n = 1, 6 do same(f, compiled, function() return { moth.ones(n % 2 + 2, 2) } end) end
    assert.equal(2, seen.graphs)
  end)

  it("with gradients, writes and views of inputs", function()
    local function f(x, y)
      local v = x:view(-1)
      v:mul_(2)
      local z = (y * x):sum(1, true) + y:size(2)
      return z:expand(y:size()), v:narrow(1, 1, y:size(1))
    end
    local code, seen = backend()
    local compiled = compile(f, { backend = code, dynamic = true })
    for n = 1, 8 do
      same(f, compiled, function()
        moth.manual_seed(n)
        return { moth.randn(n, 3), moth.randn(n, 3):requires_grad_(true) }
      end)
    end
    assert.is_true(seen.graphs <= 2) -- a size of 1 broadcasts: it may be a graph of its own
  end)
end)

describe("compile: sizes of graphs with gradients", function()
  it("are two graphs for any lengths by moth's own backends, which keep 64 plans", function()
    local w = moth.randn(4, 4):requires_grad_(true)
    local function step(x)
      w.grad = nil
      local loss = (x:matmul(w):tanh() * x):mean()
      loss:backward()
      return loss, w.grad
    end
    for _, name in ipairs { "aot_eager", "blocks", "inductor" } do
      if name ~= "inductor" or toolchain.cc() then
        compile.reset()
        local aot = require "moth.compile.aot"
        local compiled = compile(step, { backend = name })
        local before = aot.counters.segments
        local function made() return aot.counters.segments - before end
        local function run(n)
          moth.manual_seed(n)
          local x = moth.randn(n, 4)
          local want = { step(x) }
          for i, got in ipairs { compiled(x) } do assert.is_true(moth.allclose(got, want[i], { atol = 1e-6 })) end
        end
        for n = 2, 80 do run(n) end
        local n = made()
        assert.is_true(n >= 64 and n <= 66 and compile.counters().graphs <= 2)
        for _ = 1, 256 do compiled(moth.ones(3, 4)) end
        run(80) -- takes the place of the one used longest ago
        for _, again in ipairs { 80, 3, 66, 2 } do run(again) end
        assert.equal(n + 1, made())
      end
    end
  end)
end)
