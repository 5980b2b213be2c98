-- The backend "inductor": fused groups give eager's results, for all pointwise ops and dtypes, and random chains of
-- them; what is fused is counted; what cannot be runs as recorded; values that were not made are there when looked at.
local B = require "moth_lua"
local moth = require "moth"
local O = require "ops.support"
local S = require "compile.support"
local F = moth.nn.functional
local inductor = require "moth.compile.inductor"
local toolchain = require "moth.utils.toolchain"
local ops = B.ops

local has_cc = toolchain.cc() ~= nil
-- The compiler may contract products and sums inside these formulas in another way than in eager's loop.
local loose = { acosh = true, atanh = true, log1p = true }
local fused = has_cc and it or pending

local function compile(f, o)
  o = o or {}
  o.backend = "inductor"
  return moth.compile(f, o)
end

-- Results, arguments and the generator's state are eager's, as text; with `close`, results are close.
local function check(f, given, close)
  local compiled = compile(f)
  local function make()
    moth.manual_seed(11)
    return given()
  end
  local want = S.outcome(f, make)
  for round = 1, 2 do
    if close then
      assert.is_true(moth.allclose((compiled(unpack(make()))), (f(unpack(make()))), { rtol = 1e-6, atol = 1e-7 }))
    else
      local got = S.outcome(compiled, make)
      if got ~= want then error(("call %d:\n%s\n--- eager:\n%s"):format(round, got, want), 0) end
    end
  end
end

local function counted(fn)
  local groups, calls = inductor.counters.groups, inductor.counters.fused
  fn()
  return inductor.counters.groups - groups, inductor.counters.fused - calls
end

describe("inductor #M302", function()
  fused("makes relu(x * 2 + 1) one kernel", function()
    local x = moth.randn(7, 5)
    local function f(t) return (t * 2 + 1):relu() end
    local c = compile(f)
    local groups, calls = counted(function() assert.is_true(moth.equal(c(x), f(x))) end)
    assert.are.equal(1, groups)
    assert.are.equal(3, calls)
    assert.are.equal(0, (counted(function() assert.is_true(moth.equal(c(x), f(x))) end)))
  end)

  fused("keeps the sign of a zero", function()
    local x = moth.tensor { -1 / 0, 1 / 0, 0, -0.0 }
    check(function(t) return (t * 1):neg():maximum(-1e30) end, function() return { x } end)
    check(function(t) return (t * 1):neg() end, function() return { x } end)
  end)

  fused("shares kernels between sizes and numbers", function()
    local function f(t, k) return ((t * k):tanh() + 1):sigmoid() end
    local c = compile(f)
    c(moth.randn(3, 4), 2)
    local before = inductor.counters.kernels
    for n = 5, 9 do
      local x = moth.randn(n, n + 1)
      assert.is_true(moth.allclose(c(x, n / 3), f(x, n / 3)))
    end
    assert.are.equal(before, inductor.counters.kernels)
  end)

  -- All pointwise ops in a few graphs: compilers are slow to start.
  local function samples(dtype, every)
    local list, count = {}, 0
    for _, op in ipairs(require "moth.ops_table") do
      local pointwise = op.kind == "pointwise" and not op.internal
      count = count + (pointwise and 1 or 0)
      if pointwise and count % every == 0 then
        for i, text in ipairs { (op.samples or {})[1] } do
          local function make()
            local base = O.evaluate(text, { seed = 50 + i })
            local args = O.map(op, base, function(t)
              return O.dtype_of(t) == "bool" and t or ops.to(t, { dtype = dtype, copy = true })
            end)
            return { n = args.n or #op.args, unpack(args, 1, args.n or #op.args) }
          end
          if pcall(function() ops[op.name](unpack(make(), 1, #op.args)) end) then
            list[#list + 1] = { op = op, text = text, args = make() }
          end
        end
      end
    end
    return list
  end
  for rank, dtype in ipairs { "float32", "int32", "bfloat16", "uint8", "float64", "int64" } do
    local every = 2 * rank - 1
    fused(("computes pointwise ops of %s, 1 in %d"):format(dtype, every), function()
      local list = samples(dtype, every)
      for first = 1, #list, 30 do
        local function f(inputs)
          local out = {}
          for k = first, math.min(first + 29, #list) do
            local one = list[k]
            local args = { n = one.args.n }
            for m = 1, args.n do
              local v = inputs[k][m]
              args[m] = B.is_tensor(v) and B.tensor_dtype(v) ~= moth.bool and ops.maximum(v, v) or v
            end
            local y = ops[one.op.name](unpack(args, 1, args.n))
            out[#out + 1] = y
            out[#out + 1] = ops.logical_not(y)
          end
          return out
        end
        local inputs = {}
        for k, one in ipairs(list) do inputs[k] = one.args end
        local got, want = nil, f(inputs)
        assert.is_true(counted(function() got = compile(f)(inputs) end) > 0, "no kernel was made")
        for k = 1, #want do
          local one = list[first + math.floor((k - 1) / 2)]
          local is, was = S.text(got[k]), S.text(want[k])
          if is ~= was and not (loose[one.op.name]
            and moth.allclose(got[k], want[k], { rtol = 1e-6, atol = 1e-7, equal_nan = true })) then
            error(("%s(%s), %s:\n%s\n--- eager:\n%s"):format(one.op.name, one.text, dtype, is, was), 0)
          end
        end
      end
    end)
  end

  fused("computes random chains as eager does", function()
    local unary = { "relu", "tanh", "sigmoid", "abs", "neg", "square", "silu", "exp", "gelu", "sin", "floor" }
    local binary = { "add", "sub", "mul", "maximum", "minimum" }
    local sizes = { {}, { 1 }, { 0 }, { 5 }, { 3, 1 }, { 1, 7 }, { 3, 7 }, { 2, 3, 7 }, { 2, 0, 7 }, { 4, 1, 33 },
      { 3, 77 }, { 5000 } }
    local random = 1234
    local function draw(n)
      random = (random * 16807) % 2147483647
      return random % n + 1
    end
    for round = 1, 60 do
      local shape = sizes[draw(#sizes)]
      local dtype = ({ "float32", "float64", "float16", "bfloat16" })[draw(4)]
      local kind = draw(5)
      local function make()
        local x = ops.to(moth.randn(shape), { dtype = dtype })
        local y = ops.to(moth.randn(shape[#shape] or 1), { dtype = dtype })
        if kind == 2 and #shape > 1 then x = ops.transpose(x, 1, 2) y = ops.to(moth.randn(1), { dtype = dtype }) end
        if kind == 3 and #shape > 0 then x = moth.cat({ x, x }, #shape):narrow(#shape, 1, x:size(#shape)) end
        if kind == 4 then y = y:expand(unpack(#shape > 0 and shape or { 1 })) end
        if kind == 5 and #shape > 1 then x = x:narrow(1, x:size(1), 0 + math.min(1, x:size(1))) end
        return { x, y }
      end
      local plan = {}
      for i = 1, 3 + draw(8) do plan[i] = { draw(3), draw(100), draw(100), draw(100), draw(7) - 3.5 } end
      local function f(x, y)
        local values = { x, y }
        for i, p in ipairs(plan) do
          local a, b = values[p[3] % #values + 1], values[p[4] % #values + 1]
          if p[1] == 1 then
            values[#values + 1] = ops[unary[p[2] % #unary + 1]](a)
          elseif p[1] == 2 then
            values[#values + 1] = ops[binary[p[2] % #binary + 1]](a, b)
          else
            values[#values + 1] = ops[binary[p[2] % #binary + 1]](a, p[5])
          end
          if i % 5 == 0 then values[#values + 1] = ops.where(ops.gt(a, 0.25), a, b) end
        end
        return values[#values], values[#values - 1], values[4]
      end
      local ok, message = pcall(check, f, make)
      if not ok then
        error(("round %d, {%s} %s kind %d: %s"):format(round, table.concat(shape, ","), dtype, kind, message), 0)
      end
    end
  end)

  fused("runs what it cannot fuse as recorded, between groups", function()
    local w = moth.randn(4, 6)
    check(function(x)
      local h = (x * 2 - 1):relu():matmul(w)
      local m = h:mean(1, true)
      return ((h - m) * 0.5):tanh(), m:squeeze() + 1
    end, function() return { moth.randn(5, 4) } end)
  end)

  local function near(f, ...)
    local inputs = { ... }
    local want, got = { f(unpack(inputs)) }, { compile(f)(unpack(inputs)) }
    for i, w in ipairs(want) do
      assert.are.same(w:size(), got[i]:size())
      assert.are.equal(w.dtype, got[i].dtype)
      if not moth.allclose(got[i], w, { rtol = 1e-5, atol = 3e-4, equal_nan = true }) then
        local far = (got[i] - w):abs():max():item()
        error(("result %d, [%s] differs by %g"):format(i, table.concat(w:size(), ", "), far), 0)
      end
    end
  end

  fused("makes relu(x * 2 + 1):sum() one kernel #M303", function()
    for _, shape in ipairs { { 7, 5 }, { 300, 700 }, { 3 }, { 40000 } } do
      local x = moth.randn(shape)
      moth.compile.reset()
      near(function(t) return (t * 2 + 1):relu():sum() end, x)
      assert.are.equal(1, moth.compile.counters().groups)
    end
    assert.is_true(moth.compile.counters().kernels <= 1)
  end)

  fused("reduces rows, columns and all, of any dimensions", function()
    local x = moth.randn(5, 33, 9)
    near(function(t)
      local y = (t * 2 + 1):tanh()
      return y:sum(3), y:mean({ 2, 3 }), y:amax(3, true), (y * y):sum(3)
    end, x)
    near(function(t) return (t * 2):sum(1), (t * 2):amin(1), (t + 1):mean(1, true) end, x)
    near(function(t) return (t * 2):sum(2), (t:exp() + 1):prod(2) end, x)
    near(function(t) return (t * 2):sum({ 1, 3 }), (t * t):amax({ 1, 3 }) end, x)
    near(function(t) return (t * 2):var(), (t + 1):std(2), (t * 3):logsumexp(3) end, x)
    near(function(t) return (t:gt(0)):logical_not():any(3), (t:gt(9)):logical_not():all() end, x)
    near(function(t) return (t * 2):sum(1) end, moth.randn(3000, 70))
    near(function(t) return (t * 2):sum(1), t * 2 end, moth.randn(3001, 700))
    near(function(t) return (t * 2):mean() end, moth.randn(3, 100000))
    near(function(t) return (t * 2):sum(2) end, moth.randn(3, 100000))
    near(function(t) return (t * 2):sum(3) end, moth.randn(2, 3, 4):transpose(1, 3))
    near(function(t) return (t * 2):sum({ 1 }) end, moth.randint(-99, 99, { 300, 7 }))
    near(function(t) return (t * 2):amax(2), (t + 1):amin(2) end, moth.randint(-99, 99, { 3, 7 }))
    near(function(t) return (t:to(moth.float64) * 2):sum(2):to(moth.float32) end, x)
    near(function(t) return (t * 2):amax(3) end, x / (x:gt(1):logical_not():to(moth.float32)))
  end)

  fused("fuses softmax, norms and losses with what is beside them", function()
    local x, w, b = moth.randn(4, 21, 40), moth.randn(40), moth.randn(40)
    near(function(t) return (t * 0.5):softmax(3), (t * 0.5):log_softmax(3) end, x)
    near(function(t) return F.gelu(F.layer_norm(t, { 40 }, w, b)) end, x)
    near(function(t) return F.rms_norm(t, { 40 }, w) * 2 end, x)
    near(function(t) return t * (t * t):mean(-1, true):add(1e-5):rsqrt() * w end, x)
    near(function(t) return F.mse_loss(t * 2, x), F.l1_loss(t, x * 2) end, x + 1)
    near(function(t) return F.group_norm(t, 7, moth.ones(21), nil):relu() end, x)
    near(function(t) return (F.linear(t, moth.ones(60, 40), moth.ones(60)) * 0.1):softmax(-1) end, x)
    local groups = counted(function() near(function(t) return (t * 0.5):softmax(3) end, x) end)
    assert.are.equal(1, groups)
    -- an op with nothing to fuse with stays a call of the library
    groups = counted(function() near(function(t) return t:softmax(3), F.layer_norm(t, { 40 }, w, b) end, x) end)
    assert.are.equal(0, groups)
  end)

  fused("makes a product and one kernel of a linear layer and softmax #M307 #M325", function()
    local l, x = moth.nn.Linear(64, 600), moth.randn(30, 64)
    local groups, calls = counted(function()
      moth.no_grad(function() near(function(t) return l(t):softmax(2) end, x) end)
    end)
    assert.are.equal(1, groups)
    assert.are.equal(6, calls) -- the bias, and the five of softmax; the product is not among them
  end)

  it("names no op that its record takes apart: a new one fuses, too", function()
    for _, name in ipairs { "lower", "fuse", "schedule", "emit", "emit_maps", "emit_reductions", "inductor" } do
      local path = assert(package.searchpath("moth.compile." .. name, package.path))
      local text = toolchain.read(path):gsub("%-%-[^\n]*", "")
      for _, op in ipairs(require "moth.ops_table") do
        local apart = op.decompose or op.kind == "composite" and op.expr
        local word = op.name == "matmul" or op.name == "complex" or #op.name <= 3 -- a kind, a class; of messages
        if apart and not word then
          assert.is_nil(text:find("[\"'%s]" .. op.name .. "[\"'%s]"), name .. " has " .. op.name)
        end
      end
    end
  end)

  fused("fuses casts and operands of several dtypes", function()
    local x, h = moth.randn(6, 7), moth.randn(6, 7):to(moth.float16)
    local i, m = moth.randint(-5, 5, { 6, 7 }), moth.randn(6, 7):gt(0)
    check(function(t) return (t:to(moth.float64) * 2):to(moth.float32) + 1 end, function() return { x } end)
    check(function(t, u) return (t * u + 1):relu(), (t + i) * 2, (t * m):neg(), (i * m + 3) * 2 end,
      function() return { x, h } end)
    check(function(t) return (t + 0.5):relu():to(moth.float32) * x end, function() return { h } end)
    check(function(t) return (t * 2 + 1):to(moth.float32):sin(), t:to(moth.int32) * 3 end, function() return { i } end)
  end)

  fused("goes over operands that lie along other dimensions in tiles, without copies #M304 #M305", function()
    local x, y = moth.randn(37, 70), moth.randn(70, 37)
    local function f(t, u) return (t:t() * 2 + u):relu(), t:t() + 1 end
    local groups = counted(function() check(f, function() return { x, y } end) end)
    assert.is_true(groups >= 1)
    check(function(t) return (t:permute(3, 1, 2) * 2 + 1):tanh() * t:permute(3, 1, 2):contiguous() end,
      function() return { moth.randn(3, 33, 5) } end)
    check(function(t, u) return (t:t():narrow(1, 2, 30) * 2 + 1):relu() * u:narrow(1, 2, 30) end,
      function() return { x, y } end)
  end)

  fused("gives the same bits on any number of threads", function()
    local x = moth.randn(700, 900)
    local c = compile(function(t)
      local y = (t * 2 + 1):relu()
      return y:sum(), y:sum(1), y:sum(2), (y * 0.1):softmax(2)
    end)
    local was = moth.get_num_threads()
    local want
    for _, n in ipairs { 1, 2, 3 } do
      moth.set_num_threads(n)
      local got = {}
      for k, t in ipairs { c(x) } do got[k] = S.text(t) end
      want = want or got
      assert.are.same(want, got)
    end
    moth.set_num_threads(was)
  end)

  fused("computes gradients by kernels of a plain graph", function()
    local m = moth.nn.Sequential(moth.nn.Linear(20, 30), moth.nn.GELU(), moth.nn.LayerNorm(30), moth.nn.Linear(30, 9))
    local c = compile(m)
    local x, t = moth.randn(15, 20), moth.randn(15, 9)
    local function step(f)
      m:zero_grad()
      local loss = F.mse_loss(f(x), t)
      loss:backward()
      local list = { loss:detach() }
      for _, p in ipairs(m:parameters()) do list[#list + 1] = p.grad:clone() end
      return list
    end
    local want = step(m)
    local groups = counted(function() c(x) end)
    assert.is_true(groups > 0)
    for _ = 1, 2 do
      for k, g in ipairs(step(c)) do assert.is_true(moth.allclose(g, want[k], { rtol = 1e-4, atol = 1e-6 })) end
    end
  end)

  it("gives eager's results with gradients, writes and random numbers", function()
    check(function(x) return (x * 2 + 1):relu() end, function()
      return { B.set_requires_grad(moth.randn(3, 4), true) }
    end)
    check(function(x)
      local y = x * 2 + 1
      y:add_(1)
      return y:relu() * 3
    end, function() return { moth.randn(3, 4) } end)
    check(function(x) return (moth.rand(3, 4) * x + 1):relu() end, function() return { moth.randn(3, 4) } end)
    local x = B.set_requires_grad(moth.randn(3), true)
    local c = compile(function(t) return (t * 2 + 1):relu() end)
    moth.no_grad(function() assert.is_false(B.requires_grad(c(x))) end)
    assert.is_true(B.requires_grad(c(x)))
  end)

  fused("computes a value that was not returned when it is looked at", function()
    local kept
    local keep = false
    local c = compile(function(x)
      local h = x * 2 + 1
      if keep then kept = h end
      return (h:relu() + 1):tanh()
    end)
    local x = moth.ones(3)
    for _ = 1, 3 do c(x) end
    keep = true
    c(x)
    assert.are.same({ 3, 3, 3 }, kept:totable())
    c(x)
    assert.are.same({ 4, 4, 4 }, (kept + 1):totable())
    keep = false
    for _ = 1, 3 do c(x) end
    assert.are.same({ 3, 3, 3 }, kept:totable())
  end)

  fused("says so where a value was not returned and its input was written to", function()
    local kept
    local keep = false
    local c = compile(function(x)
      local h = x * 2 + 1
      if keep then kept = h end
      return (h:relu() + 1):tanh()
    end)
    local x = moth.ones(3)
    c(x)
    keep = true
    c(x)
    x:add_(1)
    assert.error_matches(function() kept:totable() end, "written to since")
    assert.error_matches(function() return kept + 1 end, "written to since")
  end)

  fused("keeps no memory: 2000 calls", function()
    local c = compile(function(x) return ((x * 2 + 1):relu() * 3):tanh() end)
    local x = moth.randn(1000)
    for _ = 1, 200 do c(x) end
    collectgarbage()
    collectgarbage()
    local before = collectgarbage("count")
    for _ = 1, 2000 do c(x) end
    collectgarbage()
    collectgarbage()
    assert.is_true(collectgarbage("count") - before < 200)
  end)

  it("runs the recorded calls where there is no compiler #M306", function()
    local cc = toolchain.cc
    toolchain.cc = function() return nil end
    local x = moth.randn(3)
    local function f(t) return (t * 2 + 1):relu() end
    local ok, message = pcall(function()
      local c = compile(f)
      for _ = 1, 3 do assert.is_true(moth.equal(c(x), f(x))) end
    end)
    toolchain.cc = cc
    assert.is_true(ok, message)
  end)

  fused("runs in blocks, with one warning, where a kernel cannot be generated", function()
    local schedule = require "moth.compile.schedule"
    local kernel, err, text = schedule.kernel, io.stderr, ""
    schedule.kernel = function() error("a planted mistake") end
    inductor.strict = false
    io.stderr = { write = function(_, line) text = text .. line end } -- luacheck: ignore
    local x = moth.randn(40)
    local ok, message = pcall(function()
      for k = 1, 2 do
        local function f(t) return (t * k + 1):relu() end
        assert.is_true(moth.equal(compile(f)(x), f(x)))
      end
    end)
    schedule.kernel, io.stderr, inductor.strict = kernel, err, true -- luacheck: ignore
    assert.is_true(ok, message)
    assert.matches("^%[moth%] warning: compile: no kernels for a graph[^\n]*a planted mistake\n$", text)
  end)

  fused("has reductions of one stage in one loop, with what is stored there", function()
    local native = require "moth.kernel.native"
    local library, text = native.library, nil
    native.library = function(source, ...)
      text = source
      return library(source, ...)
    end
    local function f(x, y)
      local z = x * y + 1.25
      return z, z:sum(2), (z * x):sum(2), z:amax(2)
    end
    local x, y = moth.randn(37, 1500), moth.randn(37, 1500)
    x[3][7] = 0 / 0
    local got = { pcall(compile(f), x, y) }
    native.library = library
    assert.is_true(got[1], got[2])
    for i, want in ipairs { f(x, y) } do
      assert.is_true(moth.allclose(got[i + 1], want, { rtol = 1e-5, atol = 1e-4, equal_nan = true }))
    end
    local _, loops = text:gsub("omp simd[^\n]*reduction", "")
    assert.are.equal(1, loops)
  end)

  fused("drops with eager's mask inside a kernel, in eager's order of draws", function()
    local w = moth.randn(30)
    local function f(x, p)
      local a = F.dropout(F.gelu(F.layer_norm(x, { 30 }, w, w)), p) * 2 + x
      local r = moth.rand(3)
      return a, F.dropout(x * 2, 0.5) + 1, r, F.dropout(x, 1) + x
    end
    for _, p in ipairs { 0.1, 0.75, 0 } do
      local c, x = compile(function(t) return f(t, p) end), moth.randn(20, 30)
      local groups
      for call = 1, 3 do
        moth.manual_seed(call)
        local want = { f(x, p) }
        local behind = moth.rand(2)
        moth.manual_seed(call)
        local got
        groups = counted(function() got = { c(x) } end)
        assert.is_true(moth.equal(behind, moth.rand(2)))
        assert.is_true(moth.equal(want[1]:eq(x), got[1]:eq(x)))
        assert.is_true(moth.allclose(want[1], got[1], { rtol = 1e-5, atol = 1e-5 }))
        for i = 2, 4 do assert.is_true(moth.equal(want[i], got[i])) end
        if call == 1 then assert.is_true(groups <= 2) end
      end
      -- The mask is saved for backward.
      local function gradient(g)
        moth.manual_seed(9)
        local y = x:clone():requires_grad_(true)
        local a, b = g(y, p)
        return moth.autograd.grad((a * a):sum() + b:sum(), { y })[1]
      end
      assert.is_true(moth.allclose(gradient(c), gradient(f), { rtol = 1e-4, atol = 1e-4 }))
    end
  end)

  fused("has what a product's operand is summed for in the kernel that makes the operand", function()
    local function f(g, x, w)
      local d = g * x:gt(0)
      local y = d:mm(w)
      local z = y:mm(w:t())
      return z, d:sum(1), d:amax(1) + z[1], y:sum(1)
    end
    local g, x, w = moth.randn(40, 30), moth.randn(40, 30), moth.randn(30, 20)
    local c, got = compile(f), nil
    assert.are.equal(1, (counted(function() got = { c(g, x, w) } end)))
    for i, want in ipairs { f(g, x, w) } do
      assert.is_true(moth.allclose(got[i], want, { rtol = 1e-5, atol = 1e-4 }))
    end
  end)

  fused("puts lists together in the kernel that uses them", function()
    local r = moth.randn
    local cat = moth.cat
    local function same(groups, f, ...)
      local c, args = compile(f), { ... }
      local got
      local n = counted(function() got = { c(unpack(args)) } end)
      for i, want in ipairs { f(...) } do assert.is_true(moth.equal(want, got[i])) end
      assert.are.equal(groups, n)
    end
    same(1, function(a, b) return cat({ a, b }, 2) * 2 + 1 end, r(5, 3), r(5, 4))
    same(1, function(a, b) return cat({ a, b }, 1) * 2 + 1 end, r(5, 3), r(4, 3))
    same(1, function(a, b, c) return cat({ a:transpose(1, 3), b, c }, 2) * 2 + 1 end, r(7, 3, 5), r(5, 1, 7),
      r(5, 2, 7))
    same(1, function(a, b, c) return cat({ a, b, c }, 1) * 2 + 1 end, r(1), r(1), r(1))
    same(1, function(a, b, c) return cat({ a:expand(5, 4), b, c:expand(5, 3) }, 2) * 2 + 1 end, r(5, 1), r(5, 1),
      r(1, 3))
    same(1, function(a, b, w) return cat({ a:expand(2, 1, 8), b:transpose(2, 3) }, 2) + w end, r(1, 1, 8), r(2, 8, 4),
      r(1, 5, 8)) -- tiles: a piece lies along one axis of them, where it begins along the other
    same(1, function(a, b, w) return cat({ a, b }, -1) * w + w end, r(4, 5), r(4, 6), r(3, 4, 11))
    same(2, function(a, b) return (cat({ a, b }, 2) * 2):amax(2), (cat({ a, b }, 1) * 2):amax(1) end, r(9, 2000),
      r(9, 2000))
    same(1, function(a, w) return cat({ a, a, a }, -1) * w + w end, moth.randint(1, 9, { 4, 5 }),
      moth.randint(1, 9, { 15 }))
    same(0, function(a, b) return cat({ a, b }, 2) end, r(5, 3), r(5, 4)) -- alone it is the library's
    -- Rotary positions.
    local function rotate(x, cos, sin)
      local a, b = x[{ {}, {}, { 1, 4 } }], x[{ {}, {}, { 5, 8 } }]
      return x * cos + cat({ -b, a }, 3) * sin
    end
    same(1, rotate, r(2, 6, 8), r(6, 8), r(6, 8))
    local c = compile(rotate)
    local function gradient(f)
      moth.manual_seed(2)
      local x = r(2, 6, 8):requires_grad_(true)
      return moth.autograd.grad((f(x, r(6, 8), r(6, 8)) ^ 2):sum(), { x })[1]
    end
    assert.is_true(moth.allclose(gradient(c), gradient(rotate), { rtol = 1e-5, atol = 1e-5 }))
  end)
end)
