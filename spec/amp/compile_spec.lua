-- What compilers do with autocast: conversions are part of the kernels that they generate.
local moth = require "moth"

describe("autocast in moth.compile #noasan", function()
  local function g(a, b)
    local y = a:matmul(b)
    return (y:float() * 2 + 1):relu() * y:sigmoid()
  end

  it("a conversion is fused with the pointwise ops beside it: it has no kernel of its own #M266", function()
    local x, w = moth.randn(64, 64), moth.randn(64, 64, { requires_grad = true })
    local function run(f)
      w.grad = nil
      local y = moth.amp.autocast({ dtype = moth.bfloat16 }, function() return f(x, w) end)
      y:sum():backward()
      return y:detach(), w.grad:clone()
    end
    local y1, g1 = run(g)
    moth.compile.reset()
    local f = moth.compile(g, { backend = "inductor" })
    local y2, g2, calls
    for _ = 1, 4 do
      calls = select(2, moth.dispatch.count(function() y2, g2 = run(f) end))
    end
    assert.is_true(moth.allclose(y1, y2, 2e-2, 2e-2))
    assert.is_true(moth.allclose(g1, g2, 5e-2, 5e-2))
    if moth.compile.counters().kernels > 0 then -- there is a C compiler
      assert.is_true(moth.compile.counters().groups >= 1)
      for name in pairs(calls) do assert.is_falsy(name:find("relu") or name:find("sigmoid"), name) end
    end
  end)

  it("conversions are fused where no gradients are recorded, too, around and inside the function #M266", function()
    local w = moth.randn(64, 64)
    local function h(x) return (x:matmul(w) * 2 + 1):relu():float():exp() end
    local function inside(x) return moth.autocast(h, x) end
    local x = moth.randn(64, 64) * 0.1
    for _, around in ipairs { false, true } do
      moth.compile.reset()
      local f = moth.compile(around and h or inside, { backend = "inductor" })
      local want = moth.autocast(h, x)
      local got = moth.no_grad(function() return around and moth.autocast(f, x) or f(x) end)
      assert.equal("float32", got:dtype().name)
      assert.is_true(moth.allclose(want, got, 2e-2, 2e-2))
      assert.equal(require("moth.utils.toolchain").cc() and 1 or 0, moth.compile.counters().groups)
    end
  end)

  it("is seen around and inside a compiled function, to the bit of the eager run", function()
    local x, w = moth.randn(8, 8), moth.randn(8, 8)
    local function inside(a, b)
      local low = moth.amp.autocast({ dtype = moth.float16 }, function() return a:matmul(b) end)
      return low, a:matmul(b)
    end
    for _, backend in ipairs { "eager", "blocks" } do
      moth.compile.reset()
      local f, around = moth.compile(inside, { backend = backend }), moth.compile(g, { backend = backend })
      local want = moth.amp.autocast(function() return g(x, w) end)
      for _ = 1, 3 do
        local low, high = f(x, w)
        assert.equal(moth.float16, low:dtype())
        assert.equal(moth.float32, high:dtype())
        assert.is_true(moth.equal(want, moth.amp.autocast(function() return around(x, w) end)))
      end
    end
  end)
end)
