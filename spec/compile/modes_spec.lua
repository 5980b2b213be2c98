-- The modes of compile on the CPU. On CUDA: spec/cuda/modes_spec.lua.
local moth = require "moth"
local child = require "child"
local S = require "compile.support"
local compile = moth.compile

local function block(x, k)
  local h = (x * k + 1):relu() -- maps only: "inductor" adds in another order
  return (h - x):abs() * 0.5, x:view(-1)
end

-- What fn writes to stderr, from a process of its own, with a folder for what is compiled and timed.
local function log(topic, text, folder)
  local own = folder or os.tmpname()
  if not folder then os.execute(("rm -f %s; mkdir -m 700 %s"):format(own, own)) end
  local out = child(text, { program = "luajit",
    env = ("MOTH_LOGS=%s MOTH_LUAJIT_WARNING=0 MOTHINDUCTOR_CACHE_DIR=%s"):format(topic, own) })
  if not folder then os.execute("rm -rf " .. own) end
  return out
end

describe("compile: modes #quick", function()
  before_each(compile.reset)

  it("are default, reduce-overhead and max-autotune; others are errors that list them #M288", function()
    local function make(n)
      return function()
        moth.manual_seed(n)
        return { moth.randn(3, 4 + n % 2), n }
      end
    end
    for _, mode in ipairs { "default", "reduce-overhead", "max-autotune" } do
      for _, backend in ipairs { false, "eager", "blocks", "inductor" } do
        local compiled = compile(block, { mode = mode, backend = backend or nil })
        for n = 1, 4 do
          local want, got = S.outcome(block, make(n)), S.outcome(compiled, make(n))
          assert.equal(want, got)
        end
      end
    end
    assert.error_matches(function() compile(block, { mode = "fast" }) end,
      "expected default, reduce%-overhead or max%-autotune, got fast")
    assert.error_matches(function() compile(block, { mode = 1 }) end, "got 1")
  end)

  it("combine with fullgraph and dynamic #M314", function()
    local compiled = compile(block, { mode = "max-autotune", fullgraph = true, dynamic = true })
    for n = 2, 5 do
      local function make()
        moth.manual_seed(n)
        return { moth.randn(n, 4), 2 }
      end
      assert.equal(S.outcome(block, make), S.outcome(compiled, make))
    end
    local breaks = compile(function(x) return x:sum():item() end,
      { mode = "max-autotune", fullgraph = true, dynamic = true })
    assert.error_matches(function() breaks(moth.ones(2)) end, "the graph breaks: item")
  end)

  it("max-autotune prints the times of its candidates and keeps the best #M290", function()
    local out = log("autotuning", [[
      local moth = require "moth"
      local f = moth.compile(function(x) return (x * 2 + 1):relu():sigmoid() end, { mode = "max-autotune" })
      for _ = 1, 5 do f(moth.ones(50, 50)) end
    ]])
    assert.matches("a segment of 4 calls\n  one by one +[%d.e+]+ us\n", out)
    assert.matches("  blocks +[%d.e+]+ us\n", out)
    assert.equal(1, select(2, out:gsub("a segment of", "")))
  end)

  it("max-autotune times kernels with blocks of other sizes, for the next process, too #M287 #M290", function()
    if not require("moth.utils.toolchain").cc() then return pending("needs a C compiler") end
    local folder = os.tmpname()
    os.execute(("rm -f %s; mkdir -m 700 %s"):format(folder, folder))
    local program = [[
      local moth = require "moth"
      local w = moth.ones(30, { requires_grad = true })
      local f = moth.compile(function(x)
        return (x * w + 1):tanh() * 3, (x * 2):sigmoid():sum(1), (x - 1):square():sum(2)
      end, { mode = "max-autotune" })
      local x = moth.linspace(-1, 1, 1200):view(40, 30)
      local a, b, c = f(x)
      local loss = a:sum() + b:sum() + c:sum()
      loss:backward()
      moth.no_grad(function() f(x) end)
      print("timed", moth.compile.counters().timed)
      print(("%.4f"):format(w.grad:sum():item()))
    ]]
    local first = log("autotuning", program, folder)
    local second = log("autotuning", program, folder)
    os.execute("rm -rf " .. folder)
    assert.matches("mul %(prog.lua:4%).*\n  as usual +[%d.e+]+ us\n  [a-z]+=%d+[a-z0-9= ]* +[%d.e+]+ us\n", first)
    assert.is_true(tonumber(first:match("timed\t(%d+)")) >= 3, first)
    assert.equal("0", second:match("timed\t(%d+)"), second)
    assert.matches("mul %(prog.lua:4%)[^\n]*, as timed before: ", second)
    assert.matches("a segment of %d+ calls, as timed before: ", second)
    assert.equal(first:match("\n(%-?[%d.]+)\n$"), second:match("\n(%-?[%d.]+)\n$"))
  end)

  it("leave segments with gradients, writes and random numbers as they are", function()
    local w = moth.randn(4):requires_grad_(true)
    local function f(x)
      local y = (x * w):exp()
      x:add_(1)
      return y + moth.rand(4), x
    end
    for _, mode in ipairs { "reduce-overhead", "max-autotune" } do
      local compiled = compile(f, { mode = mode })
      for n = 1, 3 do
        local function make() return { moth.full({ 4 }, n) } end
        w.grad = nil
        local want = S.outcome(f, make) .. S.text(w)
        w.grad = nil
        assert.equal(want, S.outcome(compiled, make) .. S.text(w))
      end
    end
  end)
end)
