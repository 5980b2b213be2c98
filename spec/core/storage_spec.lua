-- Memory that is released and allocated again under views that a graph has saved; set_data; detach as an op.
local B = require "moth_lua"
local moth = require "moth"
local fails = require "fails"

describe("a storage #quick", function()
  it("releases its memory and allocates it again, under views that a graph has saved", function()
    for _, n in ipairs { 8, 300 } do -- within the storage's own block, and 360 KB apart
      local w = moth.randn(n, n)
      local x = moth.randn(3, n, { requires_grad = true })
      local kept, version = w:clone(), w:version()
      local y = x:mm(w:t()):sum()
      local s = w:untyped_storage()
      local full = s:nbytes()
      assert.equal(n * n * 4, full)
      local before = moth.memory.stats().live
      s:resize_(0)
      assert.equal(0, s:nbytes())
      assert.equal(0, w:storage():size())
      if n == 300 then assert.is_true(before - moth.memory.stats().live >= full) end
      fails("%[add%].*released by resize_%(0%).*" .. full .. " bytes", function() return w + 1 end)
      fails("released", function() return w[1][1]:item() end)
      fails("released", function() w:copy_(kept) end)
      fails("released", function() y:backward { retain_graph = true } end)
      s:resize_(0)
      s:resize_(full)
      s:resize_(full)
      assert.equal(full, s:nbytes())
      moth.no_grad(function() B.ops.copy_(w.data, kept) end)
      assert.equal(version, w:version())
      y:backward()
      assert.is_true(moth.allclose(x.grad, moth.ones(3, n):mm(kept)))
      fails("can be released", function() s:resize_(full - 4) end)
    end
    local ffi = require "ffi"
    local buffer = ffi.new("float[4]")
    fails("foreign memory cannot be released", function()
      moth.from_ptr(buffer, { 4 }, { owner = buffer }):untyped_storage():resize_(0)
    end)
  end)

  it("may be dropped without memory", function()
    local before = moth.memory.stats().live
    for _ = 1, 10 do
      local w = moth.ones(100000)
      w:untyped_storage():resize_(0)
      w:free()
    end
    collectgarbage()
    collectgarbage()
    assert.is_true(moth.memory.stats().live - before < 100000)
    assert.equal(3, (moth.ones(2) + 2)[1]:item())
  end)
end)

describe("set_data #quick", function()
  it("keeps handle, place in the graph and version: FSDP's way with a weight", function()
    local full = moth.randn(4, 4)
    local w = moth.nn.Parameter(moth.zeros(0))
    B.set_data(w, full)
    local x = moth.randn(2, 4, { requires_grad = true })
    local y = (x:mm(w)):sum()
    local version = w:version()
    B.set_data(w, moth.zeros(0)) -- resharded
    local again = moth.empty(4, 4)
    for _ = 1, 3 do again:copy_(full) end -- a buffer with a version of its own
    B.set_data(w, again)
    assert.equal(version, w:version())
    y:backward()
    assert.is_true(moth.allclose(x.grad, moth.ones(2, 4):mm(full:t())))
    assert.same({ 4, 4 }, { w.grad:size(1), w.grad:size(2) })
    -- A change after it is noticed, as before.
    y = (w * w):sum()
    moth.no_grad(function() w:add_(1) end)
    fails("modified by an inplace operation", function() y:backward() end)
  end)
end)

describe("detach #quick", function()
  it("is an op: modes, counts, traces, fakes and subclasses see it", function()
    local w = moth.randn(3, { requires_grad = true })
    local names = {}
    local out = moth.dispatch_mode(function(func, args)
      names[#names + 1] = func.name
      return func(unpack(args, 1, args.n))
    end, function() return (w * 2):detach() end)
    assert.same({ "mul", "detach" }, names)
    assert.is_false(B.requires_grad(out))
    assert.equal(1, moth.dispatch.count(function() return w:detach() end))
    assert.is_truthy(moth.dispatch.trace(function() return moth.detach(w) end)[1]:find("detach"))
    local d = w:detach()
    assert.is_true(d:data_ptr() == w:data_ptr() and d:is_leaf())
    local version = w:version()
    d:add_(1)
    assert.equal(version + 1, w:version())
    moth.fake_mode(function() assert.is_true(B.is_fake(moth.zeros(2):detach())) end)
    local seen = {}
    local Logging = moth.tensor_subclass("Logging", { dispatch = function(_, func, _, args)
      seen[#seen + 1] = func.name
      return func(unpack(args, 1, args.n))
    end })
    local x = Logging(moth.ones(2)):detach()
    assert.same({ "detach.default" }, seen)
    assert.equal("Logging", moth.type(x))
  end)

  it("is what who records the calls below autograd sees of aliases of the graph's own", function()
    local w = moth.randn(3, { requires_grad = true })
    local function calls(fn)
      local known, unknown, names = { [B.data_ptr(w)] = true }, 0, {}
      moth.dispatch_mode(function(func, args)
        names[#names + 1] = func.name
        for i = 1, args.n do
          if B.is_tensor(args[i]) and not known[B.data_ptr(args[i])] then unknown = unknown + 1 end
        end
        local r = func(unpack(args, 1, args.n))
        known[B.data_ptr(r)] = true
        return r
      end, fn)
      return table.concat(names, " "), unknown
    end
    local y
    assert.equal("exp detach sum", (calls(function() y = w:exp():sum() end)))
    assert.is_truthy(calls(function() return moth.autograd.grad(y, w) end):find("detach mul"))
  end)
end)

describe("a recorder #quick", function()
  it("sees the same ops whatever it holds: counts of references decide nothing", function()
    local a, b = moth.randn(4, 4, { requires_grad = true }), moth.randn(4, 4, { requires_grad = true })
    local function record(hold)
      local names, held = {}, {}
      a.grad, b.grad = nil, nil
      moth.dispatch_mode(function(func, args)
        names[#names + 1] = func.name
        local r = func(unpack(args, 1, args.n))
        if hold then held[#held + 1] = { r, args } end
        return r
      end, function()
        local p = a[{ 1, {} }] * a[{ 2, {} }] + (a * b + a:tanh())[1]
        p:sum():backward()
      end)
      return table.concat(names, " ")
    end
    local free, held = record(false), record(true)
    assert.equal(free, held)
    assert.is_nil(free:find("add_", 1, true))
    local grad = a.grad:clone()
    a.grad, b.grad = nil, nil
    local p = a[{ 1, {} }] * a[{ 2, {} }] + (a * b + a:tanh())[1]
    p:sum():backward()
    assert.is_true(moth.equal(grad, a.grad))
  end)
end)
