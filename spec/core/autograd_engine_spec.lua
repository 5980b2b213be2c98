-- The engine, hooks, functions written in Lua. Titles name the rows of the mission.
local moth = require "moth"
local testing = require "moth.utils.testing"
local gradcheck = moth.autograd.gradcheck

local grad = moth.autograd.grad
local function leaf(v) return moth.tensor(v, { dtype = moth.float64, requires_grad = true }) end
local function list(t) return t:detach():totable() end

local fails = require "fails"
local live = require "live"

describe("autograd", function()
  describe("engine", function()
    it("lists the nodes of deep graphs and of many shared paths in linear time", function()
      local x = moth.ones(1, { requires_grad = true })
      local y = x
      for _ = 1, 20000 do y = y + 0 end
      assert.equal(20001, #moth.autograd.topo(y.grad_fn))
      y = x * 1
      for _ = 1, 200 do y = y + y end -- 2^200 paths
      assert.equal(202, #moth.autograd.topo(y.grad_fn))
    end)

    it("diamonds: each node once, after all its gradients #M099 #quick", function()
      local x = leaf(2)
      local calls = 0
      local a = x * 3
      a:register_hook(function() calls = calls + 1 end)
      local b, c = a * a, a + 1
      local d = b * c
      local e = d + b + a
      e:backward()
      assert.equal(1, calls)
      -- e = a^2 (a + 1) + a^2 + a, da/dx = 3
      assert.near(3 * (3 * 36 + 2 * 6 + 2 * 6 + 1), x.grad:item(), 1e-9)
      local names = moth.autograd.topo(e.grad_fn)
      assert.equal("AddBackward0", names[1])
      assert.same({ "AddBackward0", "AddBackward0", "MulBackward0", "AddBackward0", "MulBackward0", "MulBackward0",
        "AccumulateGrad" }, names)
    end)

    it("a ladder of diamonds takes linear time", function()
      local x = leaf(1)
      local y = x
      for _ = 1, 60 do y = y * 0.5 + y * 0.5 end -- 2^60 paths
      y:backward()
      assert.near(1, x.grad:item(), 1e-9)
    end)

    it("saves only what is needed, and frees it #M100", function()
      local x, w = leaf { 1, 2 }, moth.ones(2, { dtype = moth.float64 })
      assert.same({ "result" }, x:exp().grad_fn:saved())
      assert.same({ "result" }, x:relu().grad_fn:saved() and (function()
        local s = {}
        for _, n in ipairs(x:relu().grad_fn:saved()) do if n == "result" then s[1] = n end end
        return s
      end)())
      local saved = (x * w).grad_fn:saved() -- only w: it does not require grad
      assert.same({ "other" }, saved)
      local both = (x * x).grad_fn:saved()
      table.sort(both)
      assert.same({ "other", "self" }, both)
      assert.same({}, (x + w).grad_fn:saved())
      local big = moth.randn(512, 512, { requires_grad = true })
      local base = live()
      local loss = big:exp():sum()
      assert.is_true(live() - base > 512 * 512 * 4 - 1)
      loss:backward()
      big.grad = nil
      assert.is_true(live() - base < 512 * 512)
    end)

    it("a chain of 100000 nodes is run and freed", function()
      local x = moth.ones(1, { requires_grad = true })
      local y = x
      for _ = 1, 100000 do y = y + 1 end
      y:sum():backward()
      assert.equal(1, x.grad:item())
      local z = x
      for _ = 1, 100000 do z = z * 1 end -- dropped without a backward
      z, y = nil, nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
    end)

    it("cat of many tensors: the last of 300 gets its gradient, 70000 are refused", function()
      local one = moth.ones(1)
      local parts, last = {}, moth.ones(1, { requires_grad = true })
      for i = 1, 299 do parts[i] = one end
      parts[300] = last
      moth.cat(parts):sum():backward()
      assert.equal(1, last.grad:item())
      for i = 301, 70000 do parts[i] = one end
      fails("too many for one recorded call", function() moth.cat(parts) end)
      assert.equal(70000, moth.no_grad(moth.cat, parts):numel())
    end)

    it("an in-place op on a view gives up what it saved, too", function()
      local x = leaf { 1, 2, 3 }
      local y = x * 1
      y:narrow(1, 1, 2):mul_(x:narrow(1, 2, 2))
      y:sum():backward()
      fails("a second time", function() y:sum():backward() end)
    end)

    it("dropped graphs give their memory back", function()
      local x = moth.randn(64, 64, { requires_grad = true })
      local function work()
        local y = x:mm(x):tanh():softmax(2)
        local z = y:sum()
        z:backward { retain_graph = true }
        local g = grad(z, x, { create_graph = true })
        g:sum():backward { retain_graph = true }
        x.grad = nil
        local v = y:clone()
        v:narrow(1, 1, 3):mul_(2)
        v:sum():backward()
        x.grad = nil
        y:register_hook(function(h) return h end)
        z, g = nil, nil -- luacheck: ignore
      end
      work()
      local base = live()
      for _ = 1, 5 do work() end
      assert.equal(base, live())
    end)

    it("cycles through hooks and functions do not crash at the end", function()
      local x = leaf { 1, 2 }
      local y = x * 2
      y:register_hook(function(g) return g * y:detach() end) -- holds y
      y:sum():backward()
      assert.same({ 4, 8 }, list(x.grad))
    end)
  end)

  describe("hooks", function()
    it("of leaves and others see, replace and leave gradients #quick", function()
      local x = leaf { 1, 2 }
      local seen = {}
      local h1 = x:register_hook(function(g) seen[#seen + 1] = list(g) end)
      local y = x * 3
      y:register_hook(function(g) return g * 10 end);
      (y * y):sum():backward()
      assert.same({ { 180, 360 } }, seen)
      assert.same({ 180, 360 }, list(x.grad))
      h1:remove()
      h1:remove()
      x.grad = nil;
      (x * 1):sum():backward()
      assert.equal(1, #seen)
      local h2 = x:register_hook(function(g) return g * 2 end)
      local h3 = x:register_hook(function(g) return g + 1 end)
      x.grad = nil;
      (x * 1):sum():backward()
      assert.same({ 3, 3 }, list(x.grad))
      h2:remove()
      h3:remove()
      assert.is_nil(y.grad)
    end)

    it("errors: no grad, wrong values, their own", function()
      local x = leaf { 1, 2 }
      fails("doesn't require grad", function() moth.ones(1):register_hook(function() end) end)
      fails("function", function() x:register_hook(3) end)
      local y = x * 2
      local h = y:register_hook(function() return 3 end)
      fails("must return a tensor or nothing", function() y:sum():backward() end)
      h:remove()
      y = x * 2
      h = y:register_hook(function() return moth.ones(5, { dtype = moth.float64 }) end)
      fails("changed the size", function() y:sum():backward() end)
      h:remove()
      local thrown = { "mine" }
      y = x * 2
      y:register_hook(function() error(thrown) end)
      local ok, err = pcall(function() y:sum():backward() end)
      assert.is_false(ok)
      assert.is_true(rawequal(err, thrown))
      x.grad = nil;
      (x * 2):sum():backward() -- the engine works
      assert.same({ 2, 2 }, list(x.grad))
    end)

    it("a retained gradient is the one after the hooks", function()
      local x = leaf { 1, 2 }
      local y = x * 2
      y:retain_grad()
      y:register_hook(function(g) return g * 5 end)
      y:sum():backward()
      assert.same({ 5, 5 }, list(y.grad))
      assert.same({ 10, 10 }, list(x.grad))
    end)
  end)

  describe("functions in Lua", function()
    local Sigmoid = moth.autograd.Function {
      name = "Sigmoid",
      forward = function(ctx, x)
        local o = 1 / (1 + moth.exp(-x))
        ctx:save_for_backward(o)
        return o
      end,
      backward = function(ctx, g)
        local o = ctx:saved_tensors()
        return g * o * (1 - o)
      end,
    }

    it("have the derivative that they say #M101 #quick", function()
      local x = leaf { -1, 0, 2 }
      local y = Sigmoid(x)
      y:sum():backward()
      local o = y:detach()
      testing.assert_close(x.grad, o * (1 - o))
      assert.equal("<SigmoidBackward>", tostring(y.grad_fn))
      assert.is_true(gradcheck(Sigmoid, { leaf { -1, 0.3, 2 } }))
      assert.is_true(moth.autograd.gradgradcheck(Sigmoid, { leaf { -1, 0.3, 2 } }))
      assert.is_false(Sigmoid(moth.ones(2)):requires_grad())
      testing.assert_close(moth.no_grad(Sigmoid, x), o)
    end)

    it("save tensors, with versions, without cycles #M102", function()
      local Mul = moth.autograd.Function {
        forward = function(ctx, a, b)
          ctx:save_for_backward(a, b)
          return a * b
        end,
        backward = function(ctx, g)
          local a, b = ctx:saved_tensors()
          return g * b, g * a
        end,
      }
      local a, b = leaf { 1, 2 }, leaf { 3, 4 }
      Mul(a, b):sum():backward()
      assert.same({ 3, 4 }, list(a.grad))
      assert.same({ 1, 2 }, list(b.grad))
      local c = b * 1
      local y = Mul(a, c)
      c:add_(1)
      fails("modified by an inplace operation", function() y:sum():backward() end)
      local z = Mul(a, b)
      z:sum():backward()
      fails("a second time", function() z:sum():backward() end)
      assert.is_true(moth.autograd.gradgradcheck(Mul, { leaf { 1, 2 }, leaf { 3, 4 } }))
      collectgarbage()
      local base = live()
      for _ = 1, 20 do
        local big = moth.randn(64, 64, { requires_grad = true })
        local r = Sigmoid(big) -- its context refers to its result
        r:sum()
        Mul(big, big)
      end
      assert.equal(base, live())
    end)

    it("take what is no tensor, count gradients #M103", function()
      local Scale = moth.autograd.Function {
        name = "Scale",
        forward = function(ctx, x, k, name)
          ctx.k = k
          ctx.needs = ctx.needs_input_grad
          assert(name == nil or name == "n")
          return x * k
        end,
        backward = function(ctx, g)
          assert(ctx.needs_input_grad[1] == true and ctx.needs_input_grad[2] == false)
          return g * ctx.k, nil
        end,
      }
      local x = leaf { 1, 2 }
      Scale.apply(x, 3):sum():backward()
      assert.same({ 3, 3 }, list(x.grad))
      fails("incorrect number of gradients %(expected 3, got 2%)", function() Scale(x, 3, "n"):sum():backward() end)
      local Many = moth.autograd.Function {
        forward = function(_, a) return a * 2 end,
        backward = function(_, g) return g, g end,
      }
      fails("incorrect number of gradients %(expected 1, got 2%)", function() Many(x):sum():backward() end)
      local Wrong = moth.autograd.Function {
        forward = function(_, a) return a * 2 end,
        backward = function() return "x" end,
      }
      fails("expected a tensor or nil", function() Wrong(x):sum():backward() end)
      local Size = moth.autograd.Function {
        forward = function(_, a) return a * 2 end,
        backward = function() return moth.ones(7, { dtype = moth.float64 }) end,
      }
      fails("shape|size", function() Size(x):sum():backward() end)
      fails("forward.*backward", function() moth.autograd.Function {} end)
    end)

    it("several results, some of them without gradient", function()
      local Split = moth.autograd.Function {
        forward = function(ctx, x)
          local positive = x:gt(0)
          local half = x * 0.5
          ctx:mark_non_differentiable(positive)
          return x * 2, positive, half
        end,
        backward = function(_, ga, gb, gc)
          local sum = (ga or 0)
          if gc then sum = gc * 0.5 + sum * 2 elseif ga then sum = ga * 2 end
          assert(gb == nil or moth.is_tensor(gb))
          return sum
        end,
      }
      local x = leaf { -1, 2 }
      local a, p, h = Split(x)
      assert.is_false(p:requires_grad());
      (a + h):sum():backward()
      assert.is_not_nil(x.grad)
    end)

    it("errors keep their identity", function()
      local thrown = setmetatable({}, { __tostring = function() return "mine" end })
      local Throw = moth.autograd.Function {
        forward = function(_, x) return x * 1 end,
        backward = function() error(thrown) end,
      }
      local x = leaf { 1 }
      local ok, err = pcall(function() (Throw(x) * 2):sum():backward() end)
      assert.is_false(ok)
      assert.is_true(rawequal(err, thrown))
      ok, err = pcall(moth.autograd.Function { forward = function() error(thrown) end, backward = function() end }, x)
      assert.is_false(ok)
      assert.is_true(rawequal(err, thrown))
      assert.is_true(moth.is_grad_enabled());
      (x * 2):sum():backward()
      assert.equal(2, x.grad[1]:item())
    end)

    it("are let go, a thousand at once", function()
      local weak = setmetatable({}, { __mode = "k" })
      local Keep = moth.autograd.Function {
        forward = function(ctx, x)
          weak[ctx] = true
          return x * 1
        end,
        backward = function(_, g) return g end,
      }
      local x = leaf { 1 }
      local y = x
      for _ = 1, 1000 do y = Keep(y) end
      y = nil -- luacheck: ignore
      live()
      assert.is_nil(next(weak))
      -- also after an error in backward
      local Throw = moth.autograd.Function {
        forward = function(ctx, a)
          weak[ctx] = true
          return a * 1
        end,
        backward = function() error("no") end,
      }
      pcall(function() Throw(x):sum():backward() end)
      live()
      assert.is_nil(next(weak))
    end)

    it("in a long graph, and backward within backward", function()
      local Id = moth.autograd.Function {
        forward = function(_, x) return x * 1 end,
        backward = function(_, g)
          local t = leaf(2);
          moth.enable_grad(function() (t * t):backward() end) -- another graph, inside
          assert(t.grad:item() == 4)
          return g
        end,
      }
      local x = leaf { 1 }
      local y = x
      for _ = 1, 50 do y = Id(y) end
      y:sum():backward()
      assert.equal(1, x.grad[1]:item())
    end)
  end)
end)
