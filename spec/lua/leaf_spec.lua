-- One handle for each leaf, and the hooks that belong to it.
local B = require "moth_lua"
local moth = require "moth"

local function collect()
  for _ = 1, 6 do collectgarbage() end
  moth.zeros(1)
end
local function live()
  collect()
  return moth.memory.stats().live
end

describe("a leaf's handle #quick", function()
  it("is one, wherever the leaf comes from", function()
    local w = moth.ones(3, { requires_grad = true })
    local v = moth.ones(3)
    assert.is_true(rawequal(v, v:requires_grad_()))
    local names = { [w] = "w", [v] = "v" }
    local seen = {}
    moth.dispatch_mode(function(func, args)
      for i = 1, args.n do seen[#seen + 1] = names[args[i]] end
      return func(unpack(args, 1, args.n))
    end, function() return w * 1, w * v, v:exp() end)
    assert.same({ "w", "w", "v", "v" }, seen)
    assert.is_true(rawequal(w, w:to("float32")))
    moth.scope(function() return w:contiguous() end) -- a scope frees what was made in it, not w
    assert.equal(3, w:sum():item())
  end)

  it("is made anew after free()", function()
    local w = moth.ones(3, { requires_grad = true })
    local other = w:detach()
    local y = (w * w):sum()
    w:free()
    assert.has_error(function() return w * 1 end)
    y:backward()
    assert.same({ 1, 1, 1 }, other:totable())
  end)
end)

describe("a hook of a leaf #quick", function()
  it("that mentions its leaf does not keep it", function()
    local base = live()
    for _ = 1, 20 do
      local w = moth.ones(1000, { requires_grad = true })
      w:register_hook(function(g) return g * w:detach() end)
      local y = (w * 2):sum()
      y:backward()
      assert.equal(2, w.grad[1]:item())
    end
    assert.equal(base, live())
  end)

  it("runs, and sees its leaf, when only the graph still needs both", function()
    local base = live()
    local seen
    local function graph()
      local w = moth.full({ 1000 }, 3, { requires_grad = true })
      w:register_hook(function(g) seen = w:mean():item() + g:sum():item() end)
      return (w * 2):sum()
    end
    local y = graph()
    collect()
    collect()
    y:backward({ retain_graph = true })
    assert.equal(2003, seen)
    seen = nil
    collect()
    y:backward()
    assert.equal(2003, seen)
    y = nil -- luacheck: ignore
    assert.equal(base, live())
  end)

  it("survives free() of the handle", function()
    local count = 0
    local w = moth.ones(3, { requires_grad = true })
    w:register_hook(function() count = count + 1 end)
    local y = (w * w):sum()
    w:free()
    collect()
    y:backward()
    assert.equal(1, count)
  end)

  it("is the leaf's, by whichever handle it was given", function()
    local a = moth.ones(3)
    local b = a:contiguous()
    b:requires_grad_()
    local count = 0
    local hook = a:register_hook(function() count = count + 1 end);
    (b * 2):sum():backward()
    assert.equal(1, count)
    a = nil -- luacheck: ignore
    collect();
    (b * 2):sum():backward()
    assert.equal(2, count)
    hook:remove();
    (b * 2):sum():backward()
    assert.equal(2, count)
  end)

  it("is gone once it is removed", function()
    local w = moth.ones(3, { requires_grad = true })
    local weak = setmetatable({}, { __mode = "v" })
    local function hook() return w:detach() end
    weak[1] = hook
    local handle = w:register_hook(hook)
    hook = nil -- luacheck: ignore
    collect()
    assert.is_function(weak[1])
    handle:remove()
    handle:remove()
    collect()
    assert.is_nil(weak[1])
    assert.is_true(B.requires_grad(w))
  end)
end)
