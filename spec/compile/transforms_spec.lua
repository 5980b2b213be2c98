-- moth.func beside moth.compile: graphs break there, results are those without it.
local moth = require "moth"
require "compile.support"
local func, compile = moth.func, moth.compile

local function value(x) return (x * 2 + 1):tanh() end
local function total(x) return value(x):sum() end

local ways = {
  vmap = function(c) return function(x) return func.vmap(c(total))(x) end end,
  grad = function(c) return function(x) return func.grad(c(total))(x) end end,
  jvp = function(c) return function(x) return (select(2, func.jvp(c(value), x, x))) end end,
  vjp = function(c) return function(x) return (select(2, func.vjp(c(value), x))(x)) end end,
  jacrev = function(c) return function(x) return func.jacrev(c(value))(x) end end,
  hessian = function(c) return function(x) return func.hessian(c(total))(x) end end,
  ["vmap of grad"] = function(c) return function(x) return func.vmap(func.grad(c(total)))(x) end end,
}
local function plain(f) return f end

describe("compile and moth.func #quick", function()
  for _, backend in ipairs { "eager", "blocks" } do
    it("give what they give alone, one in the other, by " .. backend, function()
      local x = moth.randn(3, 2)
      local function by(f) return compile(f, { backend = backend }) end
      for name, way in pairs(ways) do
        local want = way(plain)(x)
        local inside, around = way(by), by(way(plain))
        for _ = 1, 2 do
          assert.is_true(moth.allclose(want, inside(x)), name .. " of compile")
          assert.is_true(moth.allclose(want, around(x)), "compile of " .. name)
        end
      end
    end)
  end

  it("break graphs where calls are batched or have tangents, which fullgraph refuses", function()
    local x = moth.randn(3, 2)
    compile.reset()
    compile(ways.vmap(plain))(x)
    assert.is_true(compile.counters().graph_breaks > 0)
    local full = { fullgraph = true }
    assert.error_matches(function() compile(ways.vmap(plain), full)(x) end, "breaks: mul: vmap")
    assert.error_matches(function() compile(ways.jvp(plain), full)(x) end, "mul: a tensor with a tangent")
  end)
end)
