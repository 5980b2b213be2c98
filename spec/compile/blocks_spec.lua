-- The backend "blocks": graphs run from C, pointwise calls in blocks, memory planned; results are eager's, to the bit.
local B = require "moth_lua"
local moth = require "moth"
local O = require "ops.support"
local S = require "compile.support"
local ops, C = B.ops, B.compile

local function plan_of(f, ...)
  local plan
  moth.compile(f, { backend = function(g)
    plan = C.plan_new(g.handle)
    return function(...) return plan(...) end
  end })(...)
  return plan, C.plan_facts(plan)
end

local function check(f, given)
  local function make()
    moth.manual_seed(11)
    return given()
  end
  local compiled = moth.compile(f, { backend = "blocks" })
  local want = S.outcome(f, make)
  for call = 1, 3 do
    local got = S.outcome(compiled, make)
    if got ~= want then error(("call %d:\n%s\n--- eager:\n%s"):format(call, got, want), 0) end
  end
end

local function chain(x, y) return ((x * 2 + 1):relu() * y):tanh() - x:sigmoid() end

describe("blocks #quick", function()
  before_each(moth.compile.reset)

  it("random complex numbers are made by parts, as eager makes them", function()
    check(function(z) return moth.rand_like(z) + moth.randn_like(z) end, function()
      return { moth.zeros(3, 5, { dtype = moth.complex128 }) }
    end)
  end)

  it("runs a chain as one group, in the memory of its result", function()
    local x, y = moth.randn(64, 64), moth.randn(64, 64)
    local plan, facts = plan_of(chain, x, y)
    assert.equal(1, facts.blocks)
    assert.equal(1, facts.steps)
    assert.equal(7, facts.fused)
    assert.equal(0, facts.arena_bytes)
    assert.equal(64 * 64 * 4, facts.peak_bytes)
    assert.is_truthy(tostring(plan):find("^blocks"))
  end)

  it("has eager's bits for all sizes, strides and ways to broadcast", function()
    for _, sizes in ipairs { { {}, {} }, { { 1 }, { 1 } }, { { 0, 4 }, { 4 } }, { { 3, 4 }, { 4 } },
      { { 3, 4 }, { 3, 1 } }, { { 300, 70 }, { 70 } }, { { 30, 700 }, { 30, 1 } },
      { { 5, 6, 7 }, { 6, 1 } }, { { 5, 6, 7 }, { 5, 1, 7 } },
      { { 100003 }, {} }, { { 2, 3, 70 }, { 3, 1 } }, { { 1, 70 }, { 80, 1 } } } do
      check(chain, function() return { moth.randn(sizes[1]), moth.randn(sizes[2]) } end)
    end
    check(chain, function() return { moth.randn(40, 30):t(), moth.randn(30, 40) } end)
    check(chain, function() return { moth.randn(200, 300):t(), moth.randn(600, 200)[{ { 1, 600, 2 } }] } end)
    check(chain, function() return { moth.randn(80):expand(90, 80), moth.randn(90, 160):narrow(2, 3, 80) } end)
    check(chain, function() return { moth.randn(3, 4):permute(2, 1), moth.randn(1):expand(4, 3) } end)
  end)

  it("mixes dtypes as eager does", function()
    local dtypes = { "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool" }
    for _, a in ipairs(dtypes) do
      for _, b in ipairs(dtypes) do
        check(function(x, y)
          local z = x * 2 + y
          return z:gt(1):where(z, x):maximum(y), z:eq(x), z * 0.5
        end, function()
          return { (moth.randn(33, 5) * 3):to(moth[a]), (moth.randn(33, 5) * 3):to(moth[b]) }
        end)
      end
    end
  end)

  it("takes numbers that differ from call to call", function()
    local graphs = moth.compile.counters().graphs
    local f = function(x, k) return ((x * k + k):relu() - k):clamp(-k, k) end
    local compiled = moth.compile(f, { backend = "blocks" })
    local x = moth.randn(50)
    for k = 1, 20 do assert.is_true(moth.equal(f(x, k / 3), compiled(x, k / 3))) end
    assert.equal(graphs + 1, moth.compile.counters().graphs)
  end)

  it("runs any lengths with three compilations", function()
    local w = moth.randn(8, 12)
    local function f(x, k)
      local n = x:size(1)
      local y = ((x:matmul(w) + k):relu() * 0.5):view(n, 3, 4)
      return y:transpose(2, 3):reshape(n * 12):tanh() * 2, x[{ { 1, math.ceil(n / 2) } }] + 1
    end
    local compiled = moth.compile(f, { backend = "blocks" })
    local graphs = moth.compile.counters().graphs
    for round = 1, 3 do
      for n = 1, 100 do
        local x = moth.randn(n, 8)
        local a, b = f(x, n / 7)
        local c, d = compiled(x, n / 7)
        if not moth.equal(a, c) or not moth.equal(b, d) then error(("round %d, length %d"):format(round, n)) end
      end
    end
    assert.is_true(moth.compile.counters().graphs - graphs <= 5, moth.compile.counters().graphs - graphs)
    local always = moth.compile(f, { backend = "blocks", dynamic = true })
    for round = 1, 3 do
      for n = 0, 9 do
        local x = moth.randn(n, 8):mul(round)
        if n > 0 then assert.is_true(moth.equal((f(x, 2)), (always(x, 2)))) end
      end
    end
  end)

  it("plans memory: intermediate values share an arena, peak_bytes is below eager's #M308", function()
    local w = { moth.randn(64, 256), moth.randn(256, 256), moth.randn(256, 64) }
    local function f(x)
      for i = 1, 3 do
        x = (x:matmul(w[i]) + 1):relu()
        x = x:softmax(-1) * x
      end
      return x
    end
    local x = moth.randn(128, 64)
    local compiled = moth.compile(f, { backend = "blocks" })
    local function peak(g)
      collectgarbage()
      moth.memory.reset_peak()
      local before = moth.memory.stats().live
      local y = moth.no_grad(function() return g(x) end)
      return moth.memory.stats().peak - before, y
    end
    local _, want = peak(f)
    local eager = peak(f)
    peak(compiled)
    local planned, got = peak(compiled)
    assert.is_true(moth.equal(want, got))
    assert.is_true(planned < eager, planned .. " " .. eager)
    local counted = moth.compile.counters().peak_bytes
    assert.is_true(counted > 0 and counted <= planned + 65536)
    moth.compile.reset()
    assert.equal(0, moth.compile.counters().peak_bytes)
  end)

  it("trains with less memory than eager: saved values go as backward uses them #M308", function()
    local nn = moth.nn
    local m = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.Tanh(),
      nn.Dropout(0.1), nn.Linear(256, 10))
    local x, params = moth.randn(256, 64), m:parameters()
    local compiled = moth.compile(function(t) return m(t):square():mean() end, { backend = "blocks" })
    local function step(f)
      for _, p in ipairs(params) do p.grad = nil end
      moth.manual_seed(3)
      collectgarbage()
      collectgarbage()
      moth.memory.reset_peak()
      local before = moth.memory.stats().live
      local loss = f(x)
      loss:backward()
      local peak, grads = moth.memory.stats().peak - before, {}
      for i, p in ipairs(params) do grads[i] = p.grad:clone() end
      return peak, loss, grads
    end
    local function eager(t) return m(t):square():mean() end
    step(compiled)
    local planned, loss, grads = step(compiled)
    local most, want, wanted = step(eager)
    assert.is_true(moth.equal(want, loss))
    for i = 1, #params do assert.is_true(moth.equal(wanted[i], grads[i])) end
    assert.is_true(planned < most, planned .. " " .. most)
    local kept = compiled(x) -- the graph may be kept
    kept:backward(nil, { retain_graph = true })
    kept:backward()
    assert.error_matches(function() kept:backward() end, "second time")
  end)

  it("gives large values blocks of their own where outputs come late", function()
    local function f(x)
      local y = (x:softmax(2) * 2):softmax(1):sum(1) -- large values, all gone
      return y + 1, (x + 1):sum(2), (x:t() * x:t()):mean(1), x * y, x - y, x + y
    end
    local x = moth.randn(300, 200)
    local _, facts = plan_of(f, x)
    assert.is_true(facts.arena_bytes < 65536)
    assert.is_true(facts.peak_bytes < 5 * 300 * 200 * 4)
    check(f, function() return { moth.randn(300, 200) } end)
  end)

  it("gives outputs that are views their base, and views of inputs the inputs'", function()
    local function f(x)
      local y = (x + 1):relu()
      return y, y:view(-1), y:t(), x:view(-1), y * 2
    end
    check(f, function() return { moth.randn(4, 5) } end)
    local c = moth.compile(f, { backend = "blocks" })
    local x = moth.randn(4, 5)
    for _ = 1, 2 do
      local y, flat, _, input = c(x)
      flat:zero_()
      assert.equal(0, y:abs():sum():item())
      input:fill_(3)
      assert.equal(60, x:sum():item())
    end
  end)

  it("makes what a view of an output needs, also if nobody seemed to want it", function()
    local kept
    local function f(x, keep)
      local y = x * 2
      if keep then kept = y end
      return y:view(-1)
    end
    local c = moth.compile(f, { backend = "blocks" })
    local x = moth.ones(2, 2)
    c(x) c(x)
    local flat = c(x, true)
    flat:add_(1)
    assert.equal(12, kept:sum():item())
  end)

  it("names the place of a call that fails, and goes on after", function()
    local function f(x, i) return (x * 2 + 1):index_select(1, i) * 2 end
    local c = moth.compile(f, { backend = "blocks" })
    local x = moth.randn(3, 4)
    assert.is_true(moth.equal(f(x, moth.tensor({ 3, 1 }, { dtype = "int64" })),
      c(x, moth.tensor({ 3, 1 }, { dtype = "int64" }))))
    local bad = moth.tensor({ 3, 9 }, { dtype = "int64" })
    local _, want = pcall(f, x, bad)
    for _ = 1, 2 do
      local ok, e = pcall(c, x, bad)
      assert.is_false(ok)
      assert.is_truthy(e:find("blocks_spec.lua:%d+: %[index_select%] index 9 is out of range"), e)
      assert.equal(want:match("%[index_select%].*"), e:match("%[index_select%].*"))
    end
    assert.is_true(moth.equal(f(x, moth.tensor({ 2, 2 }, { dtype = "int64" })),
      c(x, moth.tensor({ 2, 2 }, { dtype = "int64" }))))
  end)

  it("runs within itself and from coroutines", function()
    local inner = moth.compile(chain, { backend = "blocks" })
    local function f(x, n) return n == 0 and chain(x, x) or inner(x, x) * 2 + n end
    local c = moth.compile(f, { backend = "blocks" })
    local x = moth.randn(9, 9)
    for n = 0, 3 do assert.is_true(moth.equal(f(x, n), c(x, n))) end
    local co = {}
    for i = 1, 3 do co[i] = coroutine.wrap(function() for _ = 1, 3 do coroutine.yield(c(x, i)) end end) end
    for _ = 1, 3 do for i = 1, 3 do assert.is_true(moth.equal(f(x, i), co[i]())) end end
  end)

  it("has a frame for each run: an op of the program runs the plan within itself", function()
    local plan, depth = nil, 0
    local again = moth.library.define("blocksspec::again(Tensor self) -> Tensor", {
      impl = function(x)
        if depth == 3 or not plan then return x * 3 end
        depth = depth + 1
        local out = plan(x)
        collectgarbage()
        depth = depth - 1
        return out
      end,
      dims = { self = "*" }, out = "*",
    })
    local function f(x)
      local y = (x + 1):relu() * 0.5
      return (again(y) * 2 + y):tanh() + y:sum(1)
    end
    local x = moth.randn(40, 50)
    plan = plan_of(f, x)
    depth = 0
    local function want(t, d)
      local y = (t + 1):relu() * 0.5
      local inner
      if d == 3 then inner = y * 3 else inner = want(y, d + 1) end
      return (inner * 2 + y):tanh() + y:sum(1)
    end
    for _ = 1, 2 do assert.is_true(moth.equal(want(x, 0), (plan(x)))) end
  end)

  it("leaks nothing in 2000 steps of training", function()
    local x = moth.randn(8, 8, { requires_grad = true })
    local function f(t) return (chain(t, t) + moth.dropout(t, 0.2, true)):sum() end
    local c = moth.compile(f, { backend = "blocks" })
    local function steps(n)
      for _ = 1, n do
        x.grad = nil
        c(x):backward()
      end
      collectgarbage()
      collectgarbage()
      return moth.memory.stats().live, collectgarbage("count")
    end
    local live, memory = steps(200)
    local more, most = steps(2000)
    assert.is_true(more - live < 100000, more - live)
    assert.is_true(most - memory < 100, most - memory)
  end)

  it("does not depend on the number of threads", function()
    local x, y = moth.randn(1000, 333), moth.randn(333)
    local c = moth.compile(chain, { backend = "blocks" })
    local was = moth.get_num_threads()
    local want
    for _, n in ipairs { 1, 2, 3 } do
      moth.set_num_threads(n)
      local got = c(x, y)
      want = want or got
      assert.is_true(moth.equal(want, got))
    end
    moth.set_num_threads(was)
  end)

  it("loses nothing where an allocation fails", function()
    local function f(x) return ((x:matmul(x) + 1):relu():softmax(1) * x):sum(1) * 2 end
    local c = moth.compile(f, { backend = "blocks" })
    local x = moth.randn(200, 200)
    local want = c(x)
    collectgarbage()
    collectgarbage()
    local live = moth.memory.stats().live
    for n = 1, 12 do
      B.fail_at(n, false)
      local ok, y = pcall(c, x)
      B.fail_at(0, false)
      if ok then assert.is_true(moth.equal(want, y)) end
      y = nil -- luacheck: ignore
    end
    collectgarbage()
    collectgarbage()
    assert.is_true(math.abs(moth.memory.stats().live - live) < 200000)
  end)

  it("leaks nothing in 10,000 calls", function()
    local c = moth.compile(chain, { backend = "blocks" })
    local x, y = moth.randn(8, 8), moth.randn(8, 8)
    for _ = 1, 100 do c(x, y):free() end
    collectgarbage()
    collectgarbage()
    local live, memory = moth.memory.stats().live, collectgarbage("count")
    for _ = 1, 10000 do c(x, y):free() end
    collectgarbage()
    collectgarbage()
    assert.is_true(moth.memory.stats().live - live < 100000)
    assert.is_true(collectgarbage("count") - memory < 100)
  end)

  it("checks what it is called with", function()
    local plan = plan_of(chain, moth.randn(3, 4), moth.randn(3, 4))
    assert.error_matches(function() plan(moth.randn(3, 4)) end, "2 inputs, got 1")
    assert.error_matches(function() plan(moth.randn(3, 4), moth.randn(4, 3)) end, "input 2 of the graph: expected")
    assert.error_matches(function() plan(moth.randn(3, 4), moth.randn(3, 4):double()) end, "input 2 of the graph")
    local x, y = moth.randn(4, 3):t(), moth.randn(3, 4)
    assert.is_true(moth.equal(chain(x, y), (plan(x, y)))) -- other strides
  end)
end)

describe("blocks: ops", function()
  for _, op in ipairs(O.selected()) do
    if not op.internal and not op.name:find("^empty") then
      it(O.title(op), function()
        for i, text in ipairs(op.samples or {}) do
          local function make()
            local list = O.evaluate(text, { seed = 50 + i })
            return { n = list.n or #op.args, unpack(list, 1, list.n or #op.args) }
          end
          local call = ops[op.name]
          local function f(...)
            local given = { n = select("#", ...), ... }
            for k = 1, given.n do
              local v = given[k]
              if B.is_tensor(v) and B.tensor_dtype(v).is_floating_point and not (op.args[k] and op.args[k].mutated) then
                given[k] = ops.mul(ops.add(v, 0), 1)
              end
            end
            local out = { call(unpack(given, 1, given.n)) }
            for k = 1, #out do
              if B.is_tensor(out[k]) and B.tensor_dtype(out[k]).is_floating_point then
                out[#out + 1] = ops.relu(ops.mul(out[k], 2))
              end
            end
            return unpack(out)
          end
          local ok, message = pcall(check, f, make)
          if not ok then error(("%s, sample %d %s: %s"):format(op.name, i, text, message), 0) end
        end
      end)
    end
  end
end)
