-- MOTH_COMPILE_CHECK: planted wrong backends are found, with the call that is wrong; right ones are not, and effects
-- happen once. moth.compile.minify reduces them, and its script fails in the same way.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local S = require "compile.support"
local compile = moth.compile
pcall(ffi.cdef, "int setenv(const char *name, const char *value, int overwrite);")

-- A backend that runs the graph with each call of `from` replaced by what `by(graph, node)` puts in front of it.
local function planted(from, by)
  return function(graph)
    local list = {}
    for node in graph:nodes() do if node.target == from then list[#list + 1] = node end end
    for _, node in ipairs(list) do node:replace_all_uses_with(by(graph, node)) end
    return graph:interpreter()
  end
end

local wrong_gelu = planted("gelu", function(graph, node)
  return graph:call("silu", node.args[1], { before = node })
end)

local function model(x, w)
  local y = (x * 2 + 1):relu()
  local z = y:matmul(w)
  local g = z:gelu()
  return (g * 3):sum(1), y
end

local function fails(f, backend, ...)
  local ok, message = pcall(compile(f, { backend = backend }), ...)
  assert.is_false(ok)
  return message
end

describe("compile: check", function()
  before_each(function()
    compile.reset()
    compile.config.check = true
  end)
  after_each(function() compile.config.check = false end)

  it("names the graph, the first call that is wrong, its line and the largest error", function()
    local message = fails(model, wrong_gelu, moth.ones(2, 3), moth.ones(3, 4))
    assert.matches("%[compile%] check: .*check_spec%.lua:%d+, graph 1: sum, at .*check_spec%.lua:%d+: 4 of 4 elements",
      message)
    assert.matches("the largest error is [%d.e-]+, of element 1, which is [%d.]+ and not 54", message)
    assert.matches("the first call that differs: gelu, at .*check_spec%.lua:%d+ %(call 5 of 7%)", message)
  end)

  local x = moth.randn(3, 4)
  local cases = {
    { "a gradient", "the gradient of input 1: %d+ of 12 elements", function(t) return t:tanh() end,
      function() return function(t) return t:tanh():detach() + t * 0 end end, grad = true },
    { "a gradient that is missing", "requires_grad is false and not true", function(t) return t:tanh() end,
      function() return function(t) return t:tanh():detach() end end, grad = true },
    { "a write that does not happen", "input 1|add, at", function(t) t:add_(1) return t * 2 end,
      function() return function(t) return t, (t + 1) * 2 end end },
    { "memory that is not shared", "does not share memory with input 1", function(t) return t:t() end,
      function() return function(t) return t:clone():t() end end },
    { "random numbers", "random numbers were drawn", function(t) return t:dropout(0.5, true) * 0 end,
      function() return function(t) return t:dropout(0.5, true):dropout(0.5, true) * 0 end end },
    { "an error that does not come", "it has no error",
      function(t) return t:index_select(1, moth.full({ 1 }, 9):long()) end,
      function() return function() return moth.zeros(1, 4) end end },
    { "NaN", "elements; the largest error is inf", function(t) return t:sqrt() end,
      function() return function(t) return t:abs():sqrt() end end },
    { "integers", "other elements", function(t) return t:argmax(2) end,
      function() return function(t) return t:argmin(2) end end },
  }
  for _, case in ipairs(cases) do
    it("finds " .. case[1], function()
      local t = x:clone()
      if case.grad then t:requires_grad_(true) end
      local before = S.text(t)
      local message = fails(case[3], case[4], t)
      local found = false
      for part in case[2]:gmatch("[^|]+") do found = found or message:find(part) ~= nil end
      assert.is_true(found, message)
      assert.equal(before, S.text(t), "the program's tensors are as they were")
    end)
  end

  it("takes what is right, to the bit, with effects that happen once", function()
    local function f(a, b)
      local v = a:view(-1)
      v:mul_(2)
      local h = (a:matmul(b) + 1):gelu()
      moth.no_grad(function() b:add_(0) end)
      if h:sum():item() > 1e9 then h = h * 2 end
      return h:dropout(0.5, true), h:topk(2), a
    end
    for _, backend in ipairs { "eager", "inductor", function(g) return g:interpreter() end } do
      local calls = 0
      local function counted(...)
        calls = calls + 1
        return f(...)
      end
      local function make()
        moth.manual_seed(5)
        return { moth.randn(3, 4):requires_grad_(true) * 1, moth.randn(4, 4) }
      end
      local compiled = compile(counted, { backend = backend })
      for _ = 1, 3 do assert.equal(S.outcome(f, make), S.outcome(compiled, make)) end
      assert.equal(3, calls)
    end
  end)

  it("takes training steps of each backend, with gradients that are 0 but for rounding", function()
    for _, backend in ipairs { "eager", "aot_eager", "blocks", "inductor" } do
      moth.manual_seed(1)
      local gpt = moth.models.GPT { vocab_size = 20, n_layer = 2, n_head = 2, n_embd = 16, block_size = 8,
        dropout = 0.1 }
      local opt = moth.optim.AdamW(gpt:parameters(), { lr = 1e-3 })
      local step = compile(function(ids)
        opt:zero_grad()
        local _, loss = gpt(ids, ids)
        loss:backward()
        opt:step()
        return loss
      end, { backend = backend })
      for _ = 1, 3 do assert.is_true(step(moth.randint(1, 20, { 2, 8 })):item() < 4) end
    end
  end)

  it("allows a backend of one's own the last bits, and no more", function()
    local function off(by) return function() return function(t) return t:exp() * (1 + by) end end end
    local t = moth.randn(100)
    assert.is_true((pcall(compile(moth.exp, { backend = off(1e-6) }), t)))
    assert.matches("%d+ of 100 elements", fails(moth.exp, off(1e-3), t))
  end)

  it("is a setting", function()
    assert.is_true(compile.config.check)
    compile.config.check = false
    assert.is_true((pcall(compile(moth.exp, { backend = function() return function(t) return t * 1 end end }), x)))
    assert.error_matches(function() compile.config.repro_after = "noon" end, "'dynamo', 'aot' or false")
  end)
end)

describe("compile.minify", function()
  before_each(compile.reset)

  -- Runs a script of the minifier, with the backend put in; its error.
  local function run(script, backend)
    script = script:gsub("local backend = [^\n]*", "local backend = ...")
    local chunk = assert(loadstring(script))
    local ok, message = pcall(chunk, backend)
    compile.config.check = false
    assert.is_false(ok)
    return message
  end

  it("reduces a function to the one call that is wrong, and a script shows it", function()
    local r = compile.minify(model, { moth.randn(2, 3), moth.randn(3, 4) }, { backend = wrong_gelu })
    assert.same({ "gelu" }, r.ops)
    assert.equal(1, r.call_count)
    assert.matches("ops%.gelu%(%w+", r.script)
    assert.equal(r.script, tostring(r))
    assert.matches("check: .*gelu", run(r.script, wrong_gelu))
  end)

  it("reduces a graph that a backend refuses, with few inputs or many, of any layout", function()
    local function refuses(graph)
      for node in graph:nodes() do if node.target == "tanh" then error("no tanh here", 0) end end
      return graph:interpreter()
    end
    local g = compile.capture(function(x, y) return ((x + y):tanh() * y):sum() end,
      { moth.randn(20, 30):t(), moth.randn(30, 20) })
    local r = compile.minify(g, { moth.randn(20, 30):t(), moth.randn(30, 20) }, { backend = refuses, check = false })
    assert.same({ "tanh" }, r.ops)
    assert.equal("no tanh here", r.message)
    assert.equal("no tanh here", run(r.script, refuses))
  end)

  it("keeps two calls where it takes two, writes among them", function()
    local function pair(graph)
      local exp, neg = graph:find("exp"), graph:find("neg_") or graph:find("neg")
      if exp and neg then error("exp and neg", 0) end
      return graph:interpreter()
    end
    local function f(x)
      local y = (x + 1):exp():mul(2):relu()
      y:neg_()
      return y - 1
    end
    local r = compile.minify(f, { moth.randn(4) }, { backend = pair })
    table.sort(r.ops)
    assert.equal("exp", r.ops[1])
    assert.is_true(r.call_count <= 4)
    assert.equal("exp and neg", run(r.script, pair))
  end)

  it("says so where nothing fails, or the function itself does", function()
    local function right(g) return g:interpreter() end
    local function minify(f, ...) return compile.minify(f, { ... }, { backend = right }) end
    assert.error_matches(function() minify(model, moth.ones(2, 3), moth.ones(3, 4)) end, "nothing fails")
    assert.error_matches(function() minify(function() error("mine", 0) end) end, "mine")
    assert.error_matches(function() compile.minify(5, {}) end, "expected a graph or a function, got number")
  end)

  it("has failures of a program reproduced: config.repro_after", function()
    local folder = os.tmpname()
    os.remove(folder)
    finally(function()
      os.execute("rm -rf " .. folder)
      compile.config.repro_after, compile.config.check = false, false
    end)
    ffi.C.setenv("MOTH_COMPILE_DEBUG_DIR", folder, 1)
    compile.config.repro_after, compile.config.check = "dynamo", true
    local path = fails(model, wrong_gelu, moth.randn(2, 3), moth.randn(3, 4)):match("reproduced by (%S+)$")
    assert.is_truthy(path)
    local file = assert(io.open(path))
    local script = file:read("*a")
    file:close()
    compile.config.repro_after = false
    assert.matches("check: .*gelu", run(script, wrong_gelu))
    compile.config.repro_after = "aot"
    assert.matches("no; reproduced by", fails(model, function() error("no", 0) end, moth.randn(2, 3), moth.randn(3, 4)))
  end)
end)

describe("copies of tensors", function()
  it("share storages, have the strides and a history of their own", function()
    local base = moth.randn(3, 4):requires_grad_(true) * 1
    local view, other = base:t(), moth.randn(2)
    local alias = other:detach()
    local c = B.compile.copies { base, view, other, alias, moth.empty(0, 3) }
    for i, t in ipairs { base, view, other, alias, moth.empty(0, 3) } do
      assert.is_true(moth.equal(t:detach(), c[i]:detach()))
      assert.same(t:stride(), c[i]:stride())
      assert.equal(t.requires_grad, c[i].requires_grad)
      assert.is_false(B.shares_storage(t, c[i]) and t:numel() > 0)
    end
    assert.is_true(B.shares_storage(c[1], c[2]))
    assert.is_true(B.shares_storage(c[3], c[4]))
    c[3]:add_(1)
    assert.is_true(moth.equal(c[3], c[4]) and moth.equal(c[3], other + 1))
  end)
end)
