-- Hooks that change the list they are in, endless recursion of backward, handles called directly.
local B = require "moth_lua"
local moth = require "moth"
local fails = require "fails"

describe("a hook #quick", function()
  local function each_kind(fn)
    fn(moth.ones(3, { requires_grad = true }), "leaf")
    fn(moth.ones(3, { requires_grad = true }) * 2, "result")
  end

  it("may remove the next one, itself, and all of its tensor", function()
    each_kind(function(x, kind)
      local order, handles = {}, {}
      local function hook(name, act)
        handles[name] = x:register_hook(function()
          order[#order + 1] = name
          if act then act() end
        end)
      end
      hook("a", function() handles.b:remove() end)
      hook("b")
      hook("c", function() handles.c:remove() end)
      hook("d")
      x:backward(moth.ones(3), { retain_graph = true })
      assert.same({ "a", "c", "d" }, order, kind)
      order = {}
      x:backward(moth.ones(3), { retain_graph = true })
      assert.same({ "a", "d" }, order, kind)
      order = {}
      hook("e", function()
        for _, h in pairs(handles) do h:remove() end
        collectgarbage()
        moth.ones(1)
      end)
      hook("f")
      x:backward(moth.ones(3), { retain_graph = true })
      x:backward(moth.ones(3))
      assert.same({ "a", "d", "e" }, order, kind)
    end)
  end)

  it("that another adds runs from the next pass on", function()
    each_kind(function(x, kind)
      local n = 0
      x:register_hook(function()
        for _ = 1, 20 do x:register_hook(function() n = n + 1 end) end
      end)
      x:backward(moth.ones(3), { retain_graph = true })
      assert.equal(0, n, kind)
      x:backward(moth.ones(3))
      assert.equal(20, n, kind)
    end)
  end)

  it("is let go when it has removed itself", function()
    local gone = setmetatable({}, { __mode = "k" })
    local x = moth.ones(3, { requires_grad = true })
    do
      local big, handle = {}, nil
      gone[big] = true
      handle = x:register_hook(function(g)
        handle:remove()
        return big and g
      end)
    end
    x:backward(moth.ones(3))
    for _ = 1, 3 do
      collectgarbage()
      moth.ones(1)
    end
    assert.is_nil(next(gone))
  end)
end)

describe("backward within backward #quick", function()
  it("goes as deep as anyone needs, and ends with an error where it never does", function()
    local x = moth.ones(2, { requires_grad = true })
    local depth = 0
    local function nest(limit)
      local y = x * 2
      y:register_hook(function()
        depth = depth + 1
        if depth < limit then moth.enable_grad(nest, limit) end
      end)
      y:sum():backward()
    end
    nest(50)
    assert.equal(50, depth)
    depth = 0
    fails("within backward 100 times", nest, math.huge)
    x.grad = nil
    x:sum():backward()
    assert.same({ 1, 1 }, x.grad:totable())
    local F
    F = moth.autograd.Function { name = "Endless", forward = function(_, a) return a * 1 end,
      backward = function()
        moth.enable_grad(function() F(moth.ones(2, { requires_grad = true })):sum():backward() end)
      end }
    fails("within backward", function() F(x):sum():backward() end)
  end)

  it("and kernels in Lua that call themselves do the same", function()
    local neg
    moth.library.register_backend("mydev", { neg = function(args) return neg(args[1]) end,
      zeros = function() end })
    neg = function(t) return moth.neg(t) end
    fails("deep", function() moth.ones(2):to("mydev"):neg() end)
  end)
end)

describe("what Lua holds of moth #quick", function()
  it("may be finalized by hand, twice, and compared with anything", function()
    local function objects()
      local x = moth.ones(2, { requires_grad = true })
      return { x, (x * 2).grad_fn, moth.Generator(3), moth.float32, moth.device("cpu") }
    end
    for _, object in ipairs(objects()) do
      local meta = debug.getmetatable(object)
      for _, event in ipairs { "__gc", "__eq", "__tostring", "__index", "__names", "__call", "__len", "__newindex" } do
        local fn = rawget(meta, event)
        for _ = 1, type(fn) == "function" and 2 or 0 do
          for _, other in ipairs(objects()) do
            pcall(fn, object, other)
            pcall(fn, other, object)
          end
          for _, wrong in ipairs { 1.5, "x", {}, print, newproxy(), io.stdout, coroutine.create(print) } do
            pcall(fn, wrong)
            pcall(fn, object, wrong)
            pcall(fn, wrong, object)
          end
          pcall(fn)
        end
      end
      pcall(tostring, object)
    end
  end)

  it("says of a hook's number what it expects", function()
    local x = moth.ones(2, { requires_grad = true })
    local y = x * 2
    fails("register_hook gave, got 1.5", B.remove_hook, 1.5, y, y.grad_fn)
    fails("grad_fn", B.remove_hook, 1, y, io.stdout)
    fails("expected a tensor", B.remove_hook, 1, y.grad_fn)
    B.remove_hook(2 ^ 40, y, y.grad_fn)
  end)

  it("takes memory of others only where it is some", function()
    local ffi = require "ffi"
    local buffer = ffi.new("float[4]", 1, 2, 3, 4)
    fails("argument 'pointer'", moth.from_ptr, nil, { 2 })
    fails("expected a pointer or an array", moth.from_ptr, 5, { 2 })
    fails("expected a pointer or an array", moth.from_ptr, 5LL, { 2 })
    fails("takes 20 bytes, there are 16", moth.from_ptr, buffer, { 5 })
    fails("takes 32 bytes, there are 16", moth.from_ptr, buffer, { 4 }, { dtype = moth.float64 })
    fails("takes 12 bytes, there are 8", moth.from_ptr, buffer + 2, { 3 }, { owner = buffer })
    fails("NULL", moth.from_ptr, ffi.new("float *"), { 2 })
    fails("not aligned", moth.from_ptr, ffi.cast("char *", buffer) + 1, { 2 })
    fails("argument 'size': expected a list", moth.from_ptr, buffer, 2)
    fails("unknown option", moth.from_ptr, buffer, { 2 }, { dtyp = moth.float32 })
    assert.same({ 3, 4 }, moth.from_ptr(buffer + 2, { 2 }, { owner = buffer }):totable())
    assert.same({ 0 }, { moth.from_ptr(ffi.new("float *"), { 0 }):size(1) })
  end)
end)
