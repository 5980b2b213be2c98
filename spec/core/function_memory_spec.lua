-- Tensors that a Function written in Lua saves are freed with the graph, however deep it is.
local moth = require "moth"

local SIZE, DEPTH = 2 ^ 16, 60 -- a quarter of a MB of float32: 15 MB for a chain

-- How far the live bytes grow, in MB, in 30 steps of a chain of Functions that keep their tensors by `save` and get
-- them back by `get`; `finish` gets the result of the chain.
local function growth(save, get, finish)
  local Scale = moth.autograd.Function { name = "Scale",
    forward = function(ctx, a)
      local r = a * 1.01
      save(ctx, a, r)
      return r
    end,
    backward = function(ctx, g)
      get(ctx)
      return g * 1.01
    end }
  local w = moth.ones(SIZE, { requires_grad = true })
  collectgarbage()
  collectgarbage()
  local before, most = moth.memory.stats().live, 0
  for _ = 1, 30 do
    local y = w
    for _ = 1, DEPTH do y = Scale(y) end
    finish(y)
    y, w.grad = nil, nil -- luacheck: ignore
    most = math.max(most, moth.memory.stats().live - before)
  end
  return most / 2 ^ 20
end

local ways = {
  save_for_backward = { function(ctx, a, r) ctx:save_for_backward(a, r) end,
    function(ctx) return ctx:saved_tensors() end },
  ["fields of ctx"] = { function(ctx, a, r) ctx.a, ctx.r = a, r end, function(ctx) return ctx.a, ctx.r end },
}

describe("a chain of Functions", function()
  for name, way in pairs(ways) do
    it("is freed with the graph that backward has run, by " .. name, function()
      assert.is_true(growth(way[1], way[2], function(y) y:sum():backward() end) < 150)
    end)
    it("is freed with a graph that nobody has run, by " .. name, function()
      assert.is_true(growth(way[1], way[2], function() end) < 150)
    end)
  end

  it("gives back what it was given, and says when that is gone", function()
    local seen
    local F = moth.autograd.Function { name = "F",
      forward = function(ctx, a, k)
        local r = a * a * k
        assert.is_nil(ctx:saved_tensors())
        ctx:save_for_backward(a, nil, r)
        assert.equal(3, select("#", ctx:saved_tensors()))
        ctx.k, ctx.field, ctx.result = k, a, r
        return r
      end,
      backward = function(ctx, g)
        local a, none, r = ctx:saved_tensors()
        seen = { a, none, r, ctx.field, ctx.result, ctx.k }
        return g * a * 2 * ctx.k, nil
      end }
    local x = moth.tensor({ 2, 3 }, { requires_grad = true })
    local y = F(x, 5)
    y:sum():backward { retain_graph = true }
    assert.same({ 20, 30 }, x.grad:totable())
    assert.is_true(rawequal(seen[1], x) and rawequal(seen[4], x))
    assert.is_nil(seen[2])
    for _, i in ipairs { 3, 5 } do
      assert.same({ 20, 45 }, seen[i]:detach():totable())
      assert.equal(y.grad_fn, seen[i].grad_fn)
    end
    assert.equal(5, seen[6])
    y:sum():backward()
    assert.error_matches(function() y:sum():backward() end, "a second time: FBackward has freed")
    -- A change in place: of a saved tensor it is an error, of a field it is not noticed.
    y = F(x, 5)
    moth.no_grad(function() x:add_(1) end)
    assert.error_matches(function() y:sum():backward() end, "modified by an inplace operation")
    local G = moth.autograd.Function { name = "G", forward = function(ctx, a)
      ctx.a = a
      return a * 2
    end, backward = function(ctx, g) return g * ctx.a end }
    y = G(x)
    moth.no_grad(function() x:fill_(7) end)
    x.grad = nil
    y:sum():backward { retain_graph = true }
    y:sum():backward()
    y:sum():backward() -- fields stay, as in PyTorch
    assert.same({ 21, 21 }, x.grad:totable())
    assert.error_matches(function()
      moth.autograd.Function { forward = function(ctx, a)
        ctx:save_for_backward(3)
        return a * 1
      end, backward = function(_, g) return g end }(x)
    end, "expected tensors, got number")
  end)
end)
