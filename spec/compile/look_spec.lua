-- What a user sees of compile: counters over calls, logs, breaks of every kind, options together.
local ffi = require "ffi"
local moth = require "moth"
local S = require "compile.support"
local nn, compile = moth.nn, moth.compile
local child = require "child"

-- What a program in a process of its own writes to both outputs.
local function run(variables, program)
  return (child('local moth = require "moth"\nlocal compile = moth.compile\n' .. program,
    { env = variables .. " MOTH_LUAJIT_WARNING=0" }))
end

local broken = [[
local f = compile(function(x)
  local y = x + 1
  if y:sum():item() > 0 then y = y * 2 end
  return y
end)
for n = 2, 3 do f(moth.ones(n)) end
]]

describe("compile: looking", function()
  before_each(compile.reset)

  it("counts compiling in the first call, and following in later ones #M293", function()
    local f = compile(function(x) return (x * 2 + 1):relu():sum() end)
    local x = moth.ones(3)
    f(x)
    local first = compile.counters()
    assert.is_true(first.compile_seconds > 0)
    assert.same({ 1, 1, 4, 0 }, { first.calls, first.graphs, first.recorded, first.followed })
    assert.same({ 0, 0 }, { first.hits, first.hit_seconds })
    assert.is_true(first.call_seconds >= first.compile_seconds)
    for _ = 1, 9 do f(x) end
    local c = compile.counters()
    assert.equal(first.compile_seconds, c.compile_seconds)
    assert.same({ 10, 1, 4, 36 }, { c.calls, c.graphs, c.recorded, c.followed })
    assert.equal(9, c.hits) -- the time of both: of the first call, and of the nine
    assert.is_true(c.hit_seconds > 0)
    assert.is_near(c.call_seconds, first.call_seconds + c.hit_seconds, 1e-9)
  end)

  it("breaks at coroutines, debug functions and loops by goto, and is right #M278", function()
    local function f(x, n)
      local i = 0
      ::again::
      x = x * 2 + i
      i = i + 1
      if i < n then goto again end
      do
        local line = debug.getinfo(1, "l").currentline
        local _, inner = debug.getlocal(1, 1) -- x
        local co = coroutine.wrap(function(t)
          local u = coroutine.yield(t + 1)
          return u * 3
        end)
        local y = co(inner)
        local z = co(y)
        local count = 0
        debug.sethook(function() count = count + 1 end, "l")
        z = z - 1
        debug.sethook()
        return z, line > 0, count > 0
      end
    end
    jit.off(f)
    local compiled = compile(f)
    for n = 1, 4 do
      local function make() return { moth.full({ 3 }, n):requires_grad_(true), n } end
      assert.equal(S.outcome(f, make), S.outcome(compiled, make))
    end
  end)

  it("says why a custom op without a fake function breaks the graph, and what to do #M313", function()
    local lib = moth.library("looking", "FRAGMENT")
    local op = lib:define("halve(Tensor x) -> Tensor", { impl = function(x) return x / 2 end })
    local x = moth.ones(4)
    local function f(t) return op(t + 1) * 2 end
    local report = compile.explain(f, x)
    assert.equal(1, report.graph_break_count)
    assert.matches("halve: the op has no fake function, which gives shape and dtype of the results: define it with "
      .. "`fake` or `shape`, at .*look_spec%.lua:%d+", report.break_reasons[1])
    assert.is_true(moth.equal(f(x), compile(f)(x)))
  end)

  it("takes its options together #M314", function()
    local m = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    local f = compile(m, { mode = "default", fullgraph = true, dynamic = true, backend = "eager" })
    for n = 1, 5 do
      local x = moth.randn(n, 3)
      assert.is_true(moth.equal(m(x):detach(), f(x):detach()))
    end
    assert.equal(1, compile.counters().graphs)
  end)

  it("takes an optimizer of the compiled module's parameters #M317", function()
    local m = nn.Linear(3, 2)
    local cm = compile(m)
    local opt = moth.optim.AdamW(cm:parameters(), { lr = 3e-4 })
    local before = m.weight:detach():clone()
    cm(moth.ones(1, 3)):sum():backward()
    opt:step()
    assert.is_false(moth.equal(before, m.weight:detach()))
  end)

  it("captures models without allocating for their data #M272", function()
    local gpt = moth.fake_mode(function()
      return moth.models.GPT { vocab_size = 5000, n_layer = 2, n_head = 4, n_embd = 512, block_size = 64 }
    end)
    moth.memory.reset_peak()
    local before = moth.memory.stats().peak
    local y = moth.fake_mode(function() return (gpt(moth.randint(1, 5000, { 4, 64 }))) end)
    assert.same({ 4, 64, 5000 }, y:size())
    assert.is_true(y:is_fake())
    assert.is_true(moth.memory.stats().peak - before < 100000)
  end)

  it("logs breaks where MOTH_LOGS or TORCH_LOGS says so #M285", function()
    for _, name in ipairs { "MOTH_LOGS", "TORCH_LOGS" } do
      local text = run(name .. "=graph_breaks", broken)
      assert.matches("%[moth graph_breaks%] prog%.lua:3: item, at prog%.lua:5\n", text)
    end
    assert.equal("", run("", broken))
  end)

  it("combines topics: breaks, recompiles, code #M286", function()
    local text = run("MOTH_LOGS=graph_breaks,recompiles,output_code", broken .. [[
local g = compile(function(x) return (x * 2 + 1):relu():tanh() end, { backend = "inductor" })
moth.no_grad(g, moth.ones(10))
]])
    assert.matches("%[moth graph_breaks%] prog%.lua:3: item", text)
    local difference = "add: an input is float32 %[3%] cpu, was float32 %[2%], at prog"
    assert.matches("%[moth recompiles%] prog%.lua:3: " .. difference, text)
    assert.is_truthy(text:find("[moth output_code]", 1, true) or text:find("no C compiler", 1, true), text)
  end)

  it("adds a traceback where verbose is set #M282 #M284", function()
    for _, variables in ipairs { "MOTHDYNAMO_VERBOSE=1", "TORCHDYNAMO_VERBOSE=1" } do
      local text = run(variables, broken)
      assert.matches("item, at prog%.lua:5\n.*stack traceback:\n.*prog%.lua:5: in function", text)
    end
    assert.matches("stack traceback:", run("", "compile.config.verbose = true\n" .. broken))
    local was = compile.config.verbose
    compile.config.verbose = true
    assert.is_true(compile.config.verbose)
    compile.config.verbose = was
  end)

  it("is turned off by MOTH_COMPILE=off", function()
    local text = run("MOTH_COMPILE=off", broken .. "print(compile.counters().calls)")
    assert.equal("0\n", text)
  end)

  it("checks segments where MOTH_COMPILE_CHECK is set", function()
    local wrong = [[
local function triple() return function(x) return x * 3 end end
local f = compile(function(x) local y = x:exp() return y end, { backend = triple })
print(pcall(f, moth.ones(2)))
]]
    local text = run("MOTH_COMPILE_CHECK=1", wrong)
    assert.matches("false\t%[compile%] check: .*exp, at prog%.lua:4: 2 of 2 elements", text)
    assert.matches("true\t%[3", run("MOTH_COMPILE_CHECK=0", wrong))
  end)

  it("breaks where a function of C reads the bytes of a tensor #M275", function()
    local function f(x)
      local y = x * 2
      local first = ffi.cast("float *", y:data_ptr())[0]
      return y + first
    end
    local x = moth.ones(3)
    assert.is_true(moth.equal(f(x), compile(f)(x)))
    assert.matches("data_ptr", compile.explain(f, x).break_reasons[1])
  end)

  it("shows each stage: the graph, forward and backward, kernels, code #M270", function()
    local text = run("MOTH_LOGS=aot_joint_graph,aot_graphs,fusion,output_code", [[
local function f(x) return (x * 2 + 1):relu():tanh() end
print(compile.capture(f, { moth.ones(3) }))
compile(f, { backend = "aot_eager" })(moth.ones(3):requires_grad_(true)):sum():backward()
moth.no_grad(compile(f, { backend = "inductor" }), moth.ones(10))
]])
    assert.matches("graph%(x1: float32%[3%]%)", text)
    assert.matches("%[moth aot_joint_graph%] joint graph of segment 1\n", text)
    assert.matches("%[moth aot_graphs%] forward graph of segment 1\n", text)
    assert.matches("%[moth aot_graphs%] backward graph of segment 1\n", text)
    if not text:find("no C compiler", 1, true) then
      assert.matches("%[moth fusion%] kernel of 4 calls over %[10%]", text)
      assert.matches("%[moth output_code%] ", text)
    end
  end)

  it("keeps the layout of a transposed input, without a copy #M304", function()
    local function f(x) return ((x * 2 + 1):relu() * 0.5):tanh() end
    local x = moth.randn(6, 5):t()
    local compiled = compile(f, { backend = "inductor" })
    local want, got = moth.no_grad(f, x), moth.no_grad(compiled, x)
    assert.same(want:stride(), got:stride())
    assert.is_true(moth.equal(want, got))
    local _, by_name = moth.dispatch.count(function() return moth.no_grad(compiled, x) end)
    assert.is_nil(by_name.contiguous or by_name.clone or by_name.copy_)
  end)
end)
