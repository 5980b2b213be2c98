-- The modes of compile on the CPU. On CUDA: spec/cuda/modes_spec.lua.
local moth = require "moth"
local child = require "child"
local S = require "compile.support"
local compile = moth.compile

local function block(x, k)
  local h = (x * k + 1):relu() -- maps only: "inductor" adds in another order
  return (h - x):abs() * 0.5, x:view(-1)
end

-- What fn writes to stderr, from a process of its own.
local function log(topic, text)
  return (child(text, { env = "MOTH_LOGS=" .. topic .. " MOTH_LUAJIT_WARNING=0", program = "luajit" }))
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
