-- moth.compile: what is recorded, what breaks a graph, what it counts; and the programs that other compilers get wrong
-- in silence.
local B = require "moth_lua"
local moth = require "moth"
local S = require "compile.support"
local nn = moth.nn

-- moth.compile, by `backend` where that is set.
local backend
local compile = setmetatable({}, {
  __index = moth.compile,
  __call = function(_, f, o, ...)
    if backend then
      local own = { backend = backend }
      for key, value in pairs(o or {}) do own[key] = value end
      o = own
    end
    return moth.compile(f, o, ...)
  end,
})

-- Equal to the bit; but sums of kernels are in another order, and a gradient that several parts are added to may be
-- written to another number of times.
local function same(want, got)
  local function any_version(text) return (text:gsub(" v%d+ ", " ")) end
  if backend ~= "inductor" or not S.is_close(any_version(got), any_version(want)) then assert.equal(want, got) end
end

-- f of the arguments that make(n) gives for call n, eagerly and compiled: equal.
local function check(f, make, calls, o)
  local compiled = compile(f, o)
  for n = 1, calls or 4 do
    local want = S.outcome(f, function() return make(n) end)
    local got = S.outcome(compiled, function() return make(n) end)
    same(want, got)
  end
end

local function randn(...)
  moth.manual_seed(select("#", ...) + (...))
  return moth.randn(...)
end

-- What fn writes to stdout.
local function printed(fn)
  local text, real = {}, _G.print
  _G.print = function(...) -- luacheck: ignore
    local parts = {}
    for i = 1, select("#", ...) do parts[i] = tostring((select(i, ...))) end
    text[#text + 1] = table.concat(parts, "\t")
  end
  local ok, e = pcall(fn)
  _G.print = real -- luacheck: ignore
  assert(ok, e)
  return table.concat(text, "\n")
end

describe("compile #quick", function()
  before_each(compile.reset)

  it("gives eager's results and gradients, and follows what it knows #M269 #M271", function()
    local w = randn(4, 3):requires_grad_(true)
    local function f(x) return ((x * 2 + 1):relu():matmul(w)):sum() end
    local compiled = compile(f)
    for _ = 1, 5 do
      local x = moth.randn(2, 4)
      w.grad = nil
      local a = f(x)
      a:backward()
      local want = w.grad
      w.grad = nil
      local b = compiled(x)
      b:backward()
      assert.is_true(moth.equal(a:detach(), b:detach()) and moth.equal(want, w.grad))
    end
    local c = compile.counters()
    assert.same({ 5, 1, 0, 5, 20, 0 }, { c.calls, c.graphs, c.graph_breaks, c.recorded, c.followed, c.recompiles })
    assert.is_true(c.compile_seconds > 0)
  end)

  it("keeps a branch on an element: one break, two graphs, both ways right #M274 #M279 #M281", function()
    check(function(x)
      local y = x * 2
      if y:sum():item() > 0 then return y + 1 end
      return y:neg()
    end, function(n) return { moth.full({ 3 }, n % 2 == 0 and 1 or -1) } end, 6)
    local c = compile.counters()
    assert.equal(1, c.graph_breaks)
    assert.equal(3, c.graphs) -- the prefix, and what follows on either way
    compile.reset()
    compile(function(x)
      local y = (x * 2):sum():item()
      return x + y
    end)(moth.ones(2))
    c = compile.counters()
    assert.same({ 2, 1 }, { c.graphs, c.graph_breaks })
  end)

  it("prints in each call, in order #M276", function()
    local function f(x)
      local y = x + 1
      print("y", y)
      local z = y * 2
      print("z", z)
      return z
    end
    local want = printed(function() for i = 1, 3 do f(moth.full({ 2 }, i)) end end)
    local compiled = compile(f)
    assert.equal(want, printed(function() for i = 1, 3 do compiled(moth.full({ 2 }, i)) end end))
  end)

  it("has the effects on tables and upvalues that Lua has #M277", function()
    local list, n = {}, 0
    local scale = 1
    local function f(x)
      n = n + 1
      list[#list + 1] = x * scale
      return list[#list] + n
    end
    local compiled = compile(f)
    for i = 1, 3 do
      scale = i * 10
      assert.equal(i * 10 + i, compiled(moth.ones(1)):item())
      assert.equal(i * 10, list[i]:item())
    end
    assert.equal(3, n)
  end)

  it("takes numbers as parameters and compares sizes", function()
    local compiled = compile(function(x, step) return x * step + 1 / step end)
    for step = 1, 1000 do
      assert.equal(2 * step + 1 / step, compiled(moth.full({ 2 }, 2, { dtype = "float64" }), step)[1]:item())
    end
    assert.equal(1, compile.counters().graphs)
    compiled(moth.ones(3), 1)
    local c = compile.counters()
    assert.same({ 2, 1 }, { c.graphs, c.recompiles >= 1 and 1 or 0 })
    compile.reset()
    local dynamic = compile(function(x) return x:view(-1, 1):expand(-1, 3):sum(1) + x:size(1) end, { dynamic = true })
    for length = 7, 512, 5 do
      local x = randn(length)
      assert.is_true(moth.equal(dynamic(x), x:view(-1, 1):expand(-1, 3):sum(1) + length))
    end
    assert.same({ 1, 0 }, { compile.counters().graphs, compile.counters().recompiles })
  end)

  it("runs uncompiled, with one warning, over the limit", function()
    moth.compile.config.recompile_limit = 4
    local compiled = compile(function(x, n)
      for _ = 1, n do x = x + 1 end
      return x
    end)
    for n = 1, 10 do assert.equal(n, compiled(moth.zeros(1), n):item()) end
    assert.equal(5, compile.counters().graphs)
    compile.reset()
    local straight = compile(function(x) -- many breaks are one way
      for _ = 1, 20 do x = x + (x + 1):sum():item() * 0 end
      return x
    end)
    for _ = 1, 3 do straight(moth.ones(2)) end
    moth.compile.config.recompile_limit = 64
    assert.same({ 21, 0 }, { compile.counters().graphs, compile.counters().skipped })
  end)

  it("makes a break an error with fullgraph, with reason and line #M280", function()
    local compiled = compile(function(x)
      local y = x + 1
      return y:item()
    end, { fullgraph = true })
    assert.error_matches(function() compiled(moth.ones(1)) end,
      "fullgraph = true, but the graph breaks: item, at .*compile_spec%.lua:%d+")
    assert.error_matches(function() compile(function(x) return x:nonzero() end, { fullgraph = true })(moth.ones(2)) end,
      "nonzero: sizes of its result depend on elements")
    local fine = compile(function(x) return (x + x:size(1)):sum() end, { fullgraph = true })
    assert.equal(6, fine(moth.ones(2)):item())
  end)

  it("raises at its line what a number makes an error, also where other numbers were none", function()
    local function both(f, make)
      check(function(x, n)
        local ok, e = pcall(f, x, n)
        return ok, ok and e or tostring(e):gsub("^.-: ", "")
      end, make, 6)
    end
    local function bytes(n) return { moth.ones(3, { dtype = "uint8" }), n % 2 == 0 and 300 or 3 } end
    both(function(x, v) return x + v end, bytes)
    both(function(x, v) return x:mul_(v) end, bytes)
    both(function(x, v) return x:fill_(v) end, bytes)
    both(function(x, v) return x:lt(v) end, bytes)
    both(function(x, v) return x:masked_fill(x:gt(0), v) end, bytes)
    both(function(x, v) return x + v end, function(n) return { moth.ones(3, { dtype = "float16" }), n % 2 * 1e6 } end)
    both(function(x, v) return x + v end, function(n) return { moth.ones(3), n % 2 * 1e39 } end)
    both(function(x, v) return x:pow(v) end, function(n) return { moth.arange(4), n % 3 - 1 } end)
    compile.reset()
    local compiled = compile(function(x, v) return x + v end)
    for n = -50, 50 do assert.equal(n, compiled(moth.zeros(1, { dtype = "int8" }), n):item()) end
    assert.is_true(compile.counters().graphs <= 2)
  end)

  it("says which options there are #M288", function()
    local function f(x) return x end
    assert.error_matches(function() compile(f, { mode = "fast" }) end, "default, reduce%-overhead or max%-autotune")
    assert.error_matches(function() compile(f, { backend = "x" }) end, "expected 'eager'.*'inductor' or a function")
    assert.error_matches(function() compile(f, { fulgraph = true }) end, "fullgraph")
    assert.error_matches(function() compile(1) end, "expected a function or a module")
    assert.error_matches(function() compile(f, {}, "inductor") end, "two arguments, a function and a table of options")
    assert.error_matches(function() compile.config.speed = 1 end, "verbose, recompile_limit")
    for _, limit in ipairs { "a", 0, 2.5, 1 / 0 } do
      assert.error_matches(function() moth.compile.config.recompile_limit = limit end, "an integer of at least 1, got")
    end
    assert.equal(64, compile.config.recompile_limit)
    assert.error_matches(function() moth.compile.config.cc = 1 end, "the command of a C compiler, got number")
    moth.compile.config.cc = "clang"
    assert.equal("clang", moth.compile.config.cc)
    moth.compile.config.cc = nil
    assert.is_nil(moth.compile.config.cc)
    assert.error_matches(function() compile(moth.ones(1)) end, "a function or a module, got a tensor")
  end)

  it("stands for a module #M317", function()
    local m = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    local cm = compile(m)
    assert.equal(4, #cm:parameters())
    assert.equal(S.text(m:parameters()), S.text(cm:parameters()))
    assert.is_true(moth.equal(m:state_dict()["0.weight"], cm:state_dict()["0.weight"]))
    assert.equal(cm, cm:eval())
    assert.is_false(m.training)
    assert.is_true(nn.Module.is(cm))
    local x = randn(3, 4)
    assert.is_true(moth.equal(m(x):detach(), cm(x):detach()))
    cm:train()
    moth.manual_seed(1)
    local want = m(x):detach()
    moth.manual_seed(1)
    assert.is_true(moth.equal(want, cm(x):detach()))
    local outer = nn.Sequential(cm)
    assert.equal(4, #outer:parameters())
    assert.is_true(moth.equal(m:eval()(x):detach(), outer(x):detach()))
    cm.note = "kept"
    assert.equal("kept", m.note)
    assert.equal(cm, compile(cm))
    assert.error_matches(function() moth.save({ m = cm }, "unused.moth") end, "a Sequential at 'm' cannot be saved")
  end)

  it("trains a network as eager does", function()
    local function train(wrap)
      moth.manual_seed(5)
      local m = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3))
      local opt = moth.optim.AdamW(m:parameters(), { lr = 0.01 })
      local forward = wrap(m)
      for step = 1, 6 do
        if step == 4 then m:eval() elseif step == 5 then m:train() end
        opt:zero_grad()
        local loss = moth.cross_entropy(forward(moth.randn(8, 6)), moth.randint(1, 4, { 8 }))
        loss:backward()
        opt:step()
      end
      local all = m:parameters()
      for _, b in ipairs(m:buffers()) do all[#all + 1] = b end
      return S.text(all)
    end
    local want = train(function(m) return m end)
    assert.equal(want, train(compile))
    -- the whole step compiled: backward and step break the graph, and are right
    local function whole(wrap)
      moth.manual_seed(6)
      local m = nn.Linear(3, 2)
      local opt = moth.optim.SGD(m:parameters(), { lr = 0.1, momentum = 0.9 })
      local step = wrap(function(x, y)
        opt:zero_grad()
        local loss = moth.mse_loss(m(x), y)
        loss:backward()
        opt:step()
        return loss
      end)
      for _ = 1, 4 do step(moth.randn(4, 3), moth.randn(4, 2)) end
      return S.text(m:parameters())
    end
    assert.equal(whole(function(f) return f end), whole(compile))
  end)

  it("leaves out what disable() says, and breaks at graph_break()", function()
    local seen
    local off = compile.disable(function(x)
      seen = compile.is_compiling()
      return x * 2
    end)
    local compiled = compile(function(x)
      local y = off(x + 1) + 1
      assert.is_true(compile.is_compiling())
      return y
    end)
    assert.equal(5, compiled(moth.ones(1)):item())
    assert.is_false(seen)
    assert.equal(1, compile.counters().graph_breaks)
    compile.reset()
    local broken = compile(function(x)
      x = x + 1
      compile.graph_break()
      return x + 1
    end)
    assert.equal(3, broken(moth.ones(1)):item())
    assert.same({ 2, 1 }, { compile.counters().graphs, compile.counters().graph_breaks })
  end)

  it("records autocast and grad modes, inside and around, without a break #M318", function()
    local w = randn(4, 4):requires_grad_(true)
    local function f(x)
      local y = moth.autocast(function() return x:matmul(w) end)
      local z = moth.no_grad(function() return y * 2 end)
      return y:float() + z:float(), z
    end
    local function make() return { randn(2, 4) } end
    check(f, make)
    assert.equal(0, compile.counters().graph_breaks)
    local g = compile(function(x) return x:matmul(w) end)
    local x = randn(2, 4)
    assert.equal("bfloat16", moth.autocast(g, x):dtype().name)
    assert.equal("float32", g(x):dtype().name)
    assert.equal("bfloat16", moth.autocast(g, x):dtype().name)
    assert.is_false(moth.no_grad(g, x):requires_grad())
    assert.is_true(g(x):requires_grad())
  end)
end)

for _, name in ipairs { "eager", "aot_eager", "blocks", "inductor" } do
describe("compile: what others get wrong in silence, by " .. name .. " #quick", function()
  before_each(function()
    backend = name
    compile.reset()
  end)
  after_each(function() backend = nil end)

  it("inputs that are the same only in the second call, or views of each other", function()
    local function f(x, y)
      x:add_(1)
      local z = y * 2
      y:mul_(3)
      return z + x
    end
    check(f, function(n)
      local x = randn(4)
      if n % 3 == 1 then return { x, randn(4) } end
      if n % 3 == 2 then return { x, x } end
      return { x, x:view(2, 2):view(4) }
    end, 6)
  end)

  it("a list that grows while it is walked", function()
    check(function(x)
      local list = { x }
      local i = 1
      while list[i] do
        if i < 5 then list[#list + 1] = list[i] + i end
        i = i + 1
      end
      return moth.stack(list):sum()
    end, function() return { randn(3) } end)
  end)

  it("a write through expand", function()
    check(function(x)
      local e = x:expand(3, 4)
      local ok, message = pcall(function() e:add_(1) end)
      return x * 2, tostring(ok), (tostring(message):gsub("^.-: ", ""))
    end, function() return { randn(1, 4) } end)
  end)

  it("a buffer and a parameter replaced between calls", function()
    local m = nn.Linear(2, 2)
    m:register_buffer("shift", moth.zeros(2))
    function m:forward(x) return moth.linear(x, self.weight, self.bias) + self.shift end
    local cm = compile(m)
    local x = randn(2, 2)
    for i = 1, 3 do
      m.shift = moth.full({ 2 }, i)
      assert.is_true(moth.equal(m(x):detach(), cm(x):detach()))
      m.weight = nn.Parameter(moth.randn(2, 2))
      assert.is_true(moth.equal(m(x):detach(), cm(x):detach()))
    end
  end)

  it("an in-place add by index, slices written, and their gradients", function()
    check(function(x, i)
      local y = x * 1
      y:index_add_(1, i, moth.ones(2, 3))
      y[{ 1, { 1, 2 } }] = x[{ 2, { 1, 2 } }] * 3
      y[2]:mul_(2)
      return y
    end, function(n)
      return { randn(3, 3):requires_grad_(true), moth.tensor({ n % 2 + 1, 3 }, { dtype = "int64" }) }
    end)
  end)

  it("an input overwritten after a value of it was kept", function()
    local kept
    local function f(x)
      kept = x * 2
      local inner = x:view(-1)
      x:zero_()
      return inner + 1
    end
    local compiled = compile(f)
    for i = 1, 3 do
      local x = moth.full({ 2, 2 }, i)
      assert.equal(1, compiled(x)[1]:item())
      assert.equal(2 * i, kept[{ 1, 1 }]:item())
      assert.equal(0, x[{ 1, 2 }]:item())
    end
  end)

  it("looks at an input, by all ways there are, after a write that was recorded", function()
    local looks = {
      function(x) return x[{ 1, 1 }]:item() end, function(x) return x:item(1, 1) end,
      function(x) return x:totable()[1][1] end, function(x) return x:data()[0] end,
      function(x) return x:version() end, function(x) return tostring(x) end,
      function(x) return tostring(x:requires_grad()) end, function(x) return tostring(x.grad_fn ~= nil) end,
      function(x) return B.bytes(x) end, function(x) return moth.equal(x, x + 0) end,
      function(x) local s = 0 for i = 1, 2 do s = s + x[{ i, 1 }]:item() end return s end,
      function(x) return moth.manual_seed(1) and x:sum():item() end,
      function(x) return moth.allclose(x, x) end,
      function(x) return #moth.interop and x:numel() or x:numel() end,
    }
    looks[#looks] = nil
    for k, look in ipairs(looks) do
      check(function(x)
        local v = x:view(4)
        v:add_(1)
        local seen = look(x)
        v:mul_(2)
        return tostring(seen), tostring(look(x))
      end, function(n) return { moth.full({ 2, 2 }, n) } end, 3)
      check(function(x) return tostring(look(x * 2 + 1)) end, function(n) return { moth.full({ 2, 2 }, n + k) } end, 3)
    end
  end)

  it("compiled loops that write and read elements", function()
    check(function(x)
      local y = x * 2
      for i = 1, 4 do y[i] = y[i]:item() + i end
      x:add_(1)
      local s = 0
      for i = 1, 4 do s = s + x[i]:item() end
      return y, s
    end, function() return { randn(4) } end)
  end)

  it("random numbers: the draws of eager, in its order, and the state of the generator", function()
    check(function(x)
      local a = moth.rand(3)
      local state = moth.get_rng_state()
      local b = moth.dropout(x, 0.5, true)
      moth.set_rng_state(state)
      local c = moth.dropout(x, 0.5, true)
      moth.manual_seed(4)
      local d = moth.randn(2)
      return a, b, c, d, moth.randperm(5)
    end, function() return { randn(8) } end)
  end)

  it("hooks, retained gradients and double backward of lazy tensors", function()
    -- Gradients of gradients sum the uses of an input in another order: numbers without rounding.
    local function whole(x) return x:mul(4):round():div(4) end
    check(function(x)
      local y = x * x
      local seen = {}
      y:register_hook(function(g)
        seen[1] = g
        return g * 2
      end)
      local z = (y * x):sum()
      local g = moth.autograd.grad(z, x, nil, true, true)
      local gg = moth.autograd.grad(g:sum(), x)
      return z, g, gg, seen[1]
    end, function() return { whole(randn(3)):requires_grad_(true) } end)
    check(function(x)
      local y = x * 2
      y:retain_grad()
      y:sum():backward()
      return y.grad
    end, function() return { randn(3):requires_grad_(true) } end)
  end)

  it("functions with a derivative of their own, and hooks on what is saved", function()
    local Double = moth.autograd.Function {
      forward = function(ctx, x)
        ctx:save_for_backward(x)
        return x * 2
      end,
      backward = function(ctx, g) return g * ctx:saved_tensors() end,
    }
    check(function(x) return Double(x * 3) + 1 end, function() return { randn(3):requires_grad_(true) } end)
    local packed = 0
    check(function(x)
      return moth.autograd.graph.saved_tensors_hooks(function(t)
        packed = packed + 1
        return t * 1
      end, function(t) return t end, function() return (x * x):exp() end)
    end, function() return { randn(3):requires_grad_(true) } end)
    assert.is_true(packed > 0)
  end)

  it("coroutines: what was recorded is there for others, and a call goes on where it yielded", function()
    local x = moth.zeros(2)
    local compiled = compile(function(t)
      t:add_(1)
      coroutine.yield(t * 2)
      t:add_(1)
      local inner = coroutine.wrap(function()
        moth.no_grad(function()
          coroutine.yield(t * 3)
        end)
      end)
      return inner() + 1
    end)
    local co = coroutine.wrap(function(t) return compiled(t) end)
    local first = co(x)
    assert.equal(1, x[1]:item())
    assert.equal(2, first[1]:item())
    x:mul_(10)
    assert.equal(34, co()[1]:item())
    assert.equal(11, x[2]:item())
    local dropped = coroutine.wrap(function(t) return compiled(t) end)
    dropped(moth.zeros(1))
    dropped = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.is_false(compile.is_compiling())
    assert.equal(2, compile(function(t) return t + 1 end)(moth.ones(1)):item())
  end)

  it("an error after writes: they have happened, and the error is the program's", function()
    local x = moth.zeros(2)
    local compiled = compile(function(t)
      t:add_(1)
      error("mine", 0)
    end)
    for i = 1, 3 do
      assert.error_matches(function() compiled(x) end, "^mine$")
      assert.equal(i, x[1]:item())
    end
    local wrong = compile(function(t) return t:add(1) + moth.ones(3, 3) end)
    assert.error_matches(function() wrong(moth.ones(2)) end, "cannot be broadcast")
  end)

  it("an error of elements: it names the line of the op, and what should have come of it says so", function()
    local kept
    local index = moth.tensor({ 7 }, { dtype = "int64" })
    local compiled = compile(function(t)
      local before = t + 1
      kept = t:index_select(1, index) -- here
      return before
    end)
    for _ = 1, 2 do
      local ok, e = pcall(compiled, moth.ones(3))
      assert.is_false(ok)
      local line = debug.getinfo(1, "l").currentline - 6
      assert.matches("compile_spec%.lua:" .. line .. ": %[index_select%]", e)
      assert.error_matches(function() return kept + 1 end, "a tensor has no values")
      assert.error_matches(function() return kept:item() end, "fake tensor has no values")
    end
  end)

  it("the dispatches of a forward can be counted, eager and compiled #M073", function()
    local function model(x) return ((x + 1) * 2):exp():tanh() end
    local x = moth.randn(4)
    local eager, by_name = moth.dispatch.count(model, x)
    assert.equal(4, eager)
    assert.same({ add = 1, mul = 1, exp = 1, tanh = 1 }, by_name)
    local compiled = compile(model, { backend = "blocks" })
    compiled(x)
    assert.equal(0, (moth.dispatch.count(compiled, x))) -- one call of what was compiled
  end)

  it("modes that see the calls", function()
    local calls = {}
    local compiled = compile(function(x) return (x + 1) * 2 end)
    local y = moth.dispatch_mode(function(func, args)
      calls[#calls + 1] = func.name
      return func(unpack(args, 1, args.n))
    end, compiled, moth.ones(2))
    assert.equal(4, y[1]:item())
    assert.same({ "add", "mul" }, calls)
    local _, by_name = moth.dispatch.count(compiled, moth.ones(2))
    assert.same({ add = 1, mul = 1 }, by_name)
    assert.is_true(moth.fake_mode(compiled, moth.ones(2)):is_fake())
    local inside = compile(function(x)
      local z = x + 1
      local total = moth.dispatch.count(function() z = z * 2 end)
      return z, total
    end)
    local z, total = inside(moth.ones(1))
    assert.same({ 4, 1 }, { z:item(), total })
    local names
    local traced = compile(function(x)
      local a = x + 1
      names = moth.dispatch.trace(function()
        a = a * 2
        return a:sum():item()
      end)
      return a
    end)
    for _ = 1, 2 do -- each call once, and none from before
      assert.equal(4, traced(moth.ones(1)):item())
      assert.same({ 2, "mul", "sum" }, { #names, names[1]:match("^%a+"), names[2]:match("^%a+") })
    end
  end)

  it("leaves that are made, and settings changed, in the middle", function()
    check(function(x)
      local p = (x * 2):detach():requires_grad_(true)
      local q = moth.ones(3, { requires_grad = true })
      local y = (p * q * x):sum()
      y:backward()
      return p.grad, q.grad
    end, function() return { randn(3) } end)
    check(function(x)
      local a = moth.zeros(2) + x
      moth.set_default_dtype("float64")
      local b = moth.zeros(2) + x
      moth.set_default_dtype("float32")
      return a, b, moth.zeros(2)
    end, function() return { randn(2) } end)
  end)

  it("the models of moth.models", function()
    local gpt = moth.models.GPT { vocab_size = 20, n_layer = 2, n_head = 2, n_embd = 16, block_size = 8, dropout = 0.1 }
    local compiled = compile(gpt)
    for n = 1, 4 do
      local ids = moth.randint(1, 21, { 2, 4 + n % 2 })
      local function loss(net)
        moth.manual_seed(n)
        for _, p in ipairs(gpt:parameters()) do p.grad = nil end
        local logits, value = net(ids, ids)
        value:backward()
        return S.text { logits, value, gpt:parameters() }
      end
      same(loss(gpt), loss(compiled))
    end
    assert.equal(0, compile.counters().graph_breaks)
  end)
end)
end

describe("compile: memory", function()
  it("is flat over 10,000 calls", function()
    local w = moth.randn(4, 4):requires_grad_(true)
    local compiled = compile(function(x, k)
      local y = (x * k):matmul(w)
      if y:sum():item() > 0 then y = y + 1 end
      y:sum():backward()
      w.grad = nil
      return y
    end)
    local function live()
      for _ = 1, 400 do compiled(moth.randn(2, 4), moth.rand(1):item()) end
      collectgarbage()
      collectgarbage()
      return moth.memory.stats().live, collectgarbage("count")
    end
    live()
    local native, lua = live()
    for _ = 1, 24 do live() end
    local native_now, lua_now = live()
    assert.is_true(native_now <= native + 4096, ("%d to %d bytes"):format(native, native_now))
    assert.is_true(lua_now <= lua + 64, ("%g to %g KB of Lua"):format(lua, lua_now))
  end)
end)
