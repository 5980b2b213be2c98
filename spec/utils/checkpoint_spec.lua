local moth = require "moth"
local nn, utils, F = moth.nn, moth.utils, moth.F
local graph = moth.autograd.graph

local function block(dropout)
  return nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Dropout(dropout or 0), nn.LayerNorm(12), nn.Linear(12, 6),
    nn.Tanh())
end

-- The gradients of x and of the parameters of loss = run(x).
local function gradients(run, params, x)
  for _, p in ipairs(params) do p.grad = nil end
  x.grad = nil
  moth.manual_seed(7)
  local y = run(x)
  y:square():sum():backward()
  local out = { y:detach() }
  if x.grad then out[2] = x.grad:clone() end
  x.grad = nil
  for _, p in ipairs(params) do out[#out + 1] = p.grad and p.grad:clone() end
  return out
end

local function same(a, b)
  assert.equal(#a, #b)
  for i = 1, #a do assert.is_true(moth.equal(a[i], b[i]), "tensor " .. i) end
end

local function runs_of(fn)
  local n = 0
  return function(...)
    n = n + 1
    return fn(...)
  end, function() return n end
end

describe("utils.checkpoint #quick", function()
  for _, reentrant in ipairs { false, true } do
    local o = { use_reentrant = reentrant }
    it("gives the bits of the plain call, with dropout, use_reentrant = " .. tostring(reentrant) .. " #M326 #M327",
      function()
      moth.manual_seed(0)
      local net = block(0.4)
      local x = moth.randn(3, 6, { requires_grad = true })
      local counted, n = runs_of(function(v) return net(v) end)
      local plain = gradients(function(v) return net(net(v)) end, net:parameters(), x)
      local state = moth.get_rng_state()
      same(plain, gradients(function(v)
        return utils.checkpoint(counted, utils.checkpoint(counted, v, o), o)
      end, net:parameters(), x))
      assert.equal(4, n())
      assert.same(state, moth.get_rng_state()) -- backward leaves the generator as it was
      same(plain, gradients(function(v) return utils.checkpoint(net, utils.checkpoint(net, v, o), o) end,
        net:parameters(), x))
    end)

    it("restores autocast, passes numbers and tables, several results, use_reentrant = " .. tostring(reentrant),
      function()
      local w, x = moth.randn(6, 6, { requires_grad = true }), moth.randn(3, 6, { requires_grad = true })
      local dtypes = {}
      local function f(v, factor, kw)
        local y = v:matmul(w)
        dtypes[#dtypes + 1] = y:dtype().name
        return y:float() * factor * kw.scale, "text", y:float():exp()
      end
      local function run(call)
        return function(v)
          local a, text, b = moth.amp.autocast(function() return call(v, 3, { scale = 2 }) end)
          assert.equal("text", text)
          return a + b
        end
      end
      local plain = gradients(run(f), { w }, x)
      same(plain, gradients(run(function(...)
        local args = { ... }
        args[#args + 1] = o
        return utils.checkpoint(f, unpack(args))
      end), { w }, x))
      assert.same({ "bfloat16", "bfloat16", "bfloat16" }, dtypes)
    end)
  end

  it("may take a gradient in the function itself", function()
    local w, x = moth.randn(4, 4, { requires_grad = true }), moth.randn(2, 4, { requires_grad = true })
    local function penalty(v)
      local energy = v:matmul(w):tanh():square():sum()
      return moth.autograd.grad(energy, v, nil, true, true):square():sum() + energy
    end
    local plain = gradients(penalty, { w }, x)
    same(plain, gradients(function(v) return utils.checkpoint(penalty, v) end, { w }, x))
  end)

  it("works with autograd.grad, hooks, inputs without a gradient, twice with retain_graph #M327", function()
    moth.manual_seed(0)
    local net = block()
    local x = moth.randn(2, 6)
    local params = net:parameters()
    local plain = { moth.autograd.grad(net(x):sum(), params) }
    local seen = 0
    local handle = params[1]:register_hook(function() seen = seen + 1 end)
    local loss = utils.checkpoint(net, x):sum()
    same(plain, { moth.autograd.grad(loss, params, nil, true) })
    same(plain, { moth.autograd.grad(loss, params) })
    assert.equal(2, seen)
    handle:remove()
    -- the second derivative
    local v = moth.randn(3, { requires_grad = true, dtype = moth.float64 })
    local function cube(t) return (t * t * t):sin() end
    local function second(fn)
      local g = moth.autograd.grad(fn(v):sum(), v, nil, true, true)
      return moth.autograd.grad(g:sum(), v)
    end
    assert.is_true(moth.allclose(second(cube), second(function(t) return utils.checkpoint(cube, t) end)))
    assert.error_matches(function() utils.checkpoint(net, x, { use_reentrant = true }) end,
      "none of the inputs requires a gradient")
    local leaf = moth.randn(2, 6, { requires_grad = true })
    local y = utils.checkpoint(net, leaf, { use_reentrant = true }):sum()
    assert.error_matches(function() moth.autograd.grad(y, leaf) end, "reentrant kind does not work with autograd.grad")
  end)

  it("runs the function once for a backward, and stops at the last tensor that is needed", function()
    local w = moth.randn(4, 4, { requires_grad = true })
    local reached, runs = 0, 0
    local function f(v)
      runs = runs + 1
      local y = (v:matmul(w)):tanh():matmul(w):exp()
      reached = reached + 1
      return y
    end
    local x = moth.randn(2, 4, { requires_grad = true })
    utils.checkpoint(f, x):sum():backward()
    assert.same({ 2, 1 }, { runs, reached }) -- exp saves its result: the last op
    utils.checkpoint(f, x, { early_stop = false }):sum():backward()
    assert.same({ 4, 3 }, { runs, reached })
  end)

  it("nests: inner inputs are the outer one's, gradients are the same", function()
    moth.manual_seed(0)
    local a, b = block(0.2), block(0.2)
    local x = moth.randn(3, 6, { requires_grad = true })
    local params = { unpack(a:parameters()) }
    for _, p in ipairs(b:parameters()) do params[#params + 1] = p end
    local plain = gradients(function(v) return b(a(v)) * a(v) end, params, x)
    same(plain, gradients(function(v)
      return utils.checkpoint(function(t)
        return utils.checkpoint(b, utils.checkpoint(a, t)) * utils.checkpoint(function(s) return utils.checkpoint(a,
          s) end, t)
      end, v)
    end, params, x))
    same(plain, gradients(function(v)
      return graph.save_on_cpu(function() return utils.checkpoint(b, utils.checkpoint(a, v)) * utils.checkpoint(a,
        v) end)
    end, params, x))
  end)

  it("says so if the second run computes something else", function()
    local x = moth.randn(3, 4, { requires_grad = true })
    local first = true
    local function changes(what)
      first = true
      return function(v)
        local y = v:exp()
        if first then
          first = false
          return (y * y):sin()
        end
        return what(y)
      end
    end
    local function attempt(fn, o) utils.checkpoint(fn, x, o):sum():backward() end
    assert.error_matches(function() attempt(changes(function(y) return y:narrow(1, 1, 2):sin() end)) end,
      "tensor 2 of %d that is saved for backward was float32 %[3, 4%] on cpu in forward and is float32 %[2, 4%]")
    assert.error_matches(function() attempt(changes(function(y) return y end)) end,
      "forward saved %d tensors for backward, the second run 1")
    assert.error_matches(function() attempt(changes(function(y) return y:double():sin() end), { debug = true }) end,
      "ops of forward:.*mul.*ops of the second run:.*exp")
    -- the error of the function itself
    assert.error_matches(function() attempt(changes(function() error("mine") end)) end, "mine")
  end)

  for _, reentrant in ipairs { false, true } do
    it("takes and gives tables, nested and with names, use_reentrant = " .. tostring(reentrant), function()
      local o = { use_reentrant = reentrant }
      local x, y = moth.tensor({ 1, 2 }, { requires_grad = true }), moth.tensor({ 3, 4 }, { requires_grad = true })
      local memory = {}
      local r, none, k = utils.checkpoint(function(t, factor, memory_of)
        memory_of.seen = true
        local z = t.x * t.deep[1]
        return { z, deep = { z * factor, n = 5 }, name = "s", t.x:long(), z }, nil, t.x
      end, { x = x, deep = { y * 2 }, flag = true }, 3, memory, o)
      assert.same({ 1, 2 }, r[2]:totable())
      assert.equal(5, r.deep.n)
      assert.equal("s", r.name)
      assert.is_nil(none)
      assert.is_true(memory.seen);
      (r[1] + r[3] + r.deep[1] + k):sum():backward() -- 5 * x * 2 y + x
      assert.same({ 31, 41 }, x.grad:totable())
      assert.same({ 10, 20 }, y.grad:totable())
    end)
  end

  it("refuses objects that hold tensors where they would lose their history", function()
    local x = moth.ones(1, { requires_grad = true })
    local function f(a) return moth.distributions.Normal(a, 1) end
    assert.error_matches(function() utils.checkpoint(f, x, { use_reentrant = true }) end,
      "object of class Normal with a tensor .*use_reentrant = false")
    assert.is_true(utils.checkpoint(f, x).loc:requires_grad())
  end)

  it("refuses what looks like options and is none; other tables are arguments", function()
    local x = moth.ones(1, { requires_grad = true })
    local function f(a, t) return t and a * t.scale or a end
    for wrong, right in pairs { use_rentrant = "use_reentrant", debgu = "debug", polcy = "policy" } do
      assert.error_matches(function() utils.checkpoint(f, x, { [wrong] = true }) end,
        ("unknown option '%s'; did you mean '%s'"):format(wrong, right))
    end
    assert.error_matches(function() utils.checkpoint_sequential({ f, f }, 1, x, { eary_stop = true }) end, "early_stop")
    assert.equal(2, utils.checkpoint(f, x, { scale = 2 }):item())
    assert.equal(2, utils.checkpoint(f, x, { scale = 2, debgu = x }):item())
    assert.equal(2, utils.checkpoint(f, x, { scale = 2, debgu = true }, { debug = false }):item())
  end)

  it("computes as it is without gradients, checks its options", function()
    local net, x = block(), moth.randn(2, 6)
    local y = moth.no_grad(function() return utils.checkpoint(net, x) end)
    assert.is_false(y:requires_grad())
    assert.error_matches(function() utils.checkpoint(3, x) end, "expected a function or a module")
    assert.error_matches(function() utils.checkpoint(net, x, { use_reentrant = 1 }) end,
      "'use_reentrant': expected true or false")
    assert.error_matches(function() utils.checkpoint(net, x, { use_reentrant = false, early_stpo = true }) end,
      "unknown option 'early_stpo'; did you mean 'early_stop'")
    assert.error_matches(function() utils.checkpoint(net, x, { determinism_check = "no" }) end, "'default' or 'none'")
    assert.error_matches(function() utils.checkpoint_sequential({}, 2, x) end, "there is none")
    assert.error_matches(function() utils.checkpoint_wrapper(3) end, "expected a module")
  end)
end)

describe("what checkpoints keep #quick", function()
  -- Bytes of tensors that are alive after forward and not before: with what backward needs.
  local function live()
    for _ = 1, 3 do
      collectgarbage()
      moth.zeros(1) -- what hooks have released is removed when a handle is made
    end
    return moth.memory.stats().live
  end
  local function kept(fn)
    local before = live()
    local y = fn()
    local after = live()
    y:sum():backward()
    return after - before
  end

  it("checkpoint_sequential gives the same gradients; sqrt(n) segments keep about sqrt(n) #M329", function()
    local function chain(n)
      local list = {}
      for i = 1, n do list[i] = nn.Tanh() end
      return nn.Sequential(list)
    end
    local function bytes(n, segments)
      local seq, x = chain(n), moth.randn(64, 256, { requires_grad = true })
      return kept(function() return utils.checkpoint_sequential(seq, segments, x) end) / (64 * 256 * 4)
    end
    for _, n in ipairs { 16, 64, 256 } do
      local root = math.sqrt(n)
      -- the inputs of root - 1 segments, the tensors of the last one
      local got = bytes(n, root)
      assert.is_true(got > 1.4 * root and got < 2.6 * root, n .. ": " .. got)
    end
    assert.is_true(bytes(64, 1) > 60)
    moth.manual_seed(0)
    local seq = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    local x = moth.randn(2, 6, { requires_grad = true })
    local plain = gradients(function(v) return seq(v) end, seq:parameters(), x)
    for segments = 1, 6 do
      same(plain, gradients(function(v) return utils.checkpoint_sequential(seq, segments, v) end, seq:parameters(), x))
    end
  end)

  it("checkpoint_wrapper wraps a module once, its names stay #M333", function()
    moth.manual_seed(0)
    local net = nn.Sequential(block(0.3), block(0.3))
    local x = moth.randn(3, 6, { requires_grad = true })
    local plain = gradients(function(v) return net(v) end, net:parameters(), x)
    local names = {}
    for name in net:named_parameters() do names[#names + 1] = name end
    assert.equal(2, utils.apply_activation_checkpointing(net, function(m) return #m == 6 end))
    local i = 0
    for name in net:named_parameters() do
      i = i + 1
      assert.equal(names[i], name)
    end
    same(plain, gradients(function(v) return net(v) end, net:parameters(), x))
    local one = utils.checkpoint_wrapper(block(), { use_reentrant = false })
    assert.equal(moth.float32, one(x):dtype())
  end)

  it("a policy keeps results of ops that are dear to compute", function()
    local w = moth.randn(6, 6, { requires_grad = true })
    local x = moth.randn(3, 6, { requires_grad = true })
    local function f(v) return v:matmul(w):tanh():matmul(w):sin() end
    local function products(o)
      local y = utils.checkpoint(f, x, o):sum()
      local _, by_name = moth.dispatch.count(function() y:backward() end)
      return by_name.mm
    end
    local plain = gradients(f, { w }, x)
    assert.equal(4, products({ policy = { "mm" } })) -- of derivatives alone
    assert.equal(6, products({ use_reentrant = false }))
    assert.equal(4, products({ policy = function(ctx, op)
      assert.equal("boolean", type(ctx.is_recompute))
      return op == "mm" and utils.CheckpointPolicy.MUST_SAVE or "prefer_recompute"
    end }))
    same(plain, gradients(function(v) return utils.checkpoint(f, v, { policy = { "mm" } }) end, { w }, x))
    same(plain, gradients(function(v)
      return utils.checkpoint(f, v, { context_fn = function()
        return utils.create_selective_checkpoint_contexts { "mm", "tanh" }
      end })
    end, { w }, x))
    assert.error_matches(function() utils.checkpoint(f, x, { policy = { "mmm" } }) end,
      "element 1 is no name of an op: mmm")
  end)

  it("offload moves what is saved to host memory; on the CPU it changes nothing #M334", function()
    local net = block()
    local x = moth.randn(3, 6, { requires_grad = true })
    local plain = gradients(function(v) return net(v) end, net:parameters(), x)
    same(plain, gradients(function(v) return utils.offload_checkpoint(net, v) end, net:parameters(), x))
    same(plain, gradients(function(v) return moth.autograd.save_on_cpu(function() return net(v) end) end,
      net:parameters(), x))
    local packed = 0
    same(plain, gradients(function(v)
      return moth.autograd.saved_tensors_hooks(function(t)
        packed = packed + 1
        return t:clone()
      end, function(t) return t end, function() return net(v) end)
    end, net:parameters(), x))
    assert.is_true(packed > 5)
  end)

  it("cross_entropy at the end of a checkpointed net trains it", function()
    moth.manual_seed(0)
    local net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    local opt = moth.optim.Adam(net:parameters(), { lr = 0.05 })
    local x, y = moth.randn(32, 4), moth.randint(1, 4, { 32 })
    local first, last
    for _ = 1, 30 do
      opt:zero_grad()
      local loss = utils.checkpoint(function(v) return F.cross_entropy(net(v), y) end, x)
      loss:backward()
      opt:step()
      last = loss:item()
      first = first or last
    end
    assert.is_true(last < 0.8 * first)
  end)

  it("computes again with the tensors that functional_call had in the module's places", function()
    local net, x = nn.Linear(3, 3), moth.randn(2, 3)
    local other = moth.randn(3, 3):requires_grad_()
    local function gradient(call)
      other.grad = nil
      call():square():sum():backward()
      return other.grad:clone()
    end
    for _, reentrant in ipairs { false, true } do
      local Net = nn.class("Net")
      function Net:__init() self.inner = net:clone() end
      function Net:forward(v)
        local function twice(u) return self.inner(self.inner(u):tanh()) end
        return self.how and utils.checkpoint(twice, v, self.how) or twice(v)
      end
      local m = Net()
      local function call()
        return moth.func.functional_call(m, { ["inner.weight"] = other }, x:clone():requires_grad_())
      end
      local expected = gradient(call)
      m.how = { use_reentrant = reentrant }
      same({ expected }, { gradient(call) })
    end
  end)
end)
