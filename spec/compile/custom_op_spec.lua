-- Custom ops in compiled functions: each is one node of the graph, which it does not break.
local moth = require "moth"
local fails = require "fails"
local compile = moth.compile

local calls = 0
local square = moth.library.custom_op("compile_spec::square", {
  schema = "(Tensor x, float by = 1) -> Tensor",
  fn = function(x, by)
    calls = calls + 1
    return x * x * by
  end,
  fake = function(x) return moth.empty_like(x) end,
  setup_context = function(ctx, inputs)
    ctx:save_for_backward(inputs[1])
    ctx.by = inputs[2]
  end,
  backward = function(ctx, g) return g * 2 * ctx.by * ctx:saved_tensors(), nil end,
})

describe("a custom op in a compiled function #quick", function()
  before_each(compile.reset)

  local function f(x, by) return square(x + 1, by):sum() end

  it("is one node without a break, forward and backward #M129 #M134", function()
    local fast = compile(f, { fullgraph = true })
    for n = 1, 4 do
      moth.manual_seed(n)
      local x = moth.randn(n == 4 and 5 or 3, 4, { requires_grad = true })
      local y = x:detach():requires_grad_(true)
      calls = 0
      local got, want = fast(x, n), f(y, n)
      got:backward()
      want:backward()
      assert.equal(want:item(), got:item())
      assert.is_true(moth.equal(y.grad, x.grad))
      assert.equal(2, calls) -- once each: the fake gave the shape while the call was recorded
    end
    assert.equal(0, compile.counters().graph_breaks)
  end)

  it("that is made of others is recorded as these", function()
    local clip = moth.library.define("compile_spec::clip(Tensor x) -> Tensor", { kind = "composite",
      impl = function(x) return x:clamp(0, 1) end })
    local x = moth.tensor({ -1, 0.25, 3 }, { requires_grad = true })
    local y = compile(function(v) return clip(v * 2) + 1 end, { fullgraph = true })(x)
    assert.same({ 1, 1.5, 2 }, y:detach():totable())
    y:sum():backward()
    assert.same({ 0, 2, 0 }, x.grad:totable())
    moth.library.undefine(clip)
  end)

  it("whose kernel raises says so, with the op's name", function()
    local broken = moth.library.custom_op("compile_spec::broken", { schema = "(Tensor x) -> Tensor",
      fn = function() error("the kernel gave up") end, fake = function(x) return moth.empty_like(x) end })
    fails("the kernel gave up", compile(function(x) return broken(x):sum():item() end), moth.ones(3))
  end)

  it("whose fake function lies is an error, with the op's name; other strides are a copy", function()
    local function wrong(name, fn)
      local op = moth.library.custom_op("compile_spec::" .. name, { schema = "(Tensor x) -> Tensor", fn = fn,
        fake = function(x) return moth.empty_like(x) end })
      local fast = compile(function(x) return ((op(x) * 3 + 1):relu() * 2):sum(1) end, { backend = "inductor" })
      return function(x)
        local y
        for _ = 1, 3 do y = fast(x) end
        return y:totable()
      end
    end
    local x = moth.arange(6, { dtype = "float32" }):view(2, 3)
    fails("%[compile_spec::short%] result 1 is float32 %[1, 3%], where the op's fake function gave float32 %[2, 3%]",
      wrong("short", function(t) return t:narrow(1, 1, 1):clone() end), x)
    fails("%[compile_spec::wide%] result 1 is float64 %[2, 3%]", wrong("wide", function(t) return t:double() end), x)
    assert.same({ 22, 34, 46 }, wrong("turned", function(t) return t.mT:clone().mT end)(x))
  end)

  it("is not what reads a tensor's bytes: that breaks the graph, and fullgraph refuses it #M136 #M275", function()
    local function reads(x)
      local y = x * 2
      local p = y:data_ptr()
      return y + (p ~= 0 and 1 or 0)
    end
    local x = moth.ones(3)
    assert.same({ 3, 3, 3 }, compile(reads)(x):totable())
    assert.equal(1, compile.counters().graph_breaks)
    fails("graph breaks: data_ptr", compile(reads, { fullgraph = true }), x)
  end)
end)
