-- moth.compile.decompositions: a view of the records, and rules of the program's own.
local moth = require "moth"
local compile = moth.compile
local rules = compile.decompositions

describe("compile.decompositions #M301", function()
  before_each(compile.reset)
  after_each(function() rules.gelu, rules.topk = nil, nil end)

  it("show what the records say", function()
    assert.matches("contract: .*bias", rules.linear)
    assert.matches("exp", rules.softmax)
    assert.equal("string", type(rules.native_layer_norm or rules.layer_norm))
    assert.is_nil(rules.conv2d_backward)
    assert.is_nil(rules.nothing)
  end)

  it("are those of the program, in any backend but eager, with gradients", function()
    rules.gelu = function(x) return x * moth.sigmoid(1.702 * x) end
    local function f(x) return (x + 1):gelu():sum() end
    local function g(x) return ((x + 1) * moth.sigmoid(1.702 * (x + 1))):sum() end
    local x = moth.randn(4, 5)
    for _, backend in ipairs { "aot_eager", "blocks", "inductor", function(graph) return graph:interpreter() end } do
      local a, b = x:clone():requires_grad_(true), x:clone():requires_grad_(true)
      local got, want = compile(f, { backend = backend })(a), g(b)
      moth.testing.assert_close(got, want)
      got:backward()
      want:backward()
      moth.testing.assert_close(a.grad, b.grad)
      compile.reset()
      moth.testing.assert_close(moth.no_grad(compile(f, { backend = backend }), x), moth.no_grad(g, x))
    end
    rules.gelu = nil
    assert.is_true(moth.equal(f(x), compile(f, { backend = "blocks" })(x)))
    assert.is_nil(rules.gelu)
  end)

  it("may give several results, and take lists, sizes and nothing", function()
    rules.topk = function(x, k) return x:neg():topk(k) end -- another result: seen in the graph
    local seen = {}
    local function f(x)
      local v, i = x:topk(2)
      return v * 2, i
    end
    local compiled = compile(f, { backend = function(graph)
      for node in graph:nodes() do if node.op == "call" then seen[#seen + 1] = node.target end end
      return graph:interpreter()
    end })
    local x = moth.randn(3, 4)
    local v, i = compiled(x)
    local want, at = x:neg():topk(2)
    assert.same({ "neg", "topk", "mul" }, seen)
    assert.is_true(moth.equal(want * 2, v) and moth.equal(at, i))
  end)

  it("say what is wrong", function()
    assert.error_matches(function() rules.nothing = print end, "there is no op named 'nothing'")
    assert.error_matches(function() rules.gelu = 3 end, "expected a function of gelu's arguments, got number")
    local outside = moth.ones(2)
    local function fails(message, fn)
      rules.gelu = fn
      assert.error_matches(function() compile(moth.gelu, { backend = "blocks" })(moth.ones(2)) end, message)
    end
    fails("uses a tensor from outside", function(x) return x + outside end)
    fails("returned 0 tensors, not 1", function() end)
    fails("cannot take the place", function(x) return x:sum() end)
    fails("mine", function() error("mine", 0) end)
  end)
end)
