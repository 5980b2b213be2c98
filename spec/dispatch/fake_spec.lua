-- Fake mode leaves what is real as it is; autocast's and determinism's options are read.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local each = require "moth.each"
local nn, optim = moth.nn, moth.optim

describe("fake mode #quick", function()
  local function state(model)
    local out = {}
    for name, p in model:named_parameters() do
      out[name] = { p:detach():totable(), B.version(p), p.grad and p.grad:totable() }
    end
    return out
  end

  it("is a dry run: real parameters keep values, versions and .grad #M272", function()
    for _, with_grad in ipairs { false, true } do
      local model = nn.Linear(3, 2)
      local opt = optim.Adam(model:parameters(), { lr = 0.1 })
      local x = moth.randn(4, 3)
      if with_grad then model(x):sum():backward() end
      local before = state(model)
      moth.fake_mode(function()
        local y = model(x)
        y:retain_grad()
        local loss = y:pow(2):mean()
        loss:backward()
        assert.is_true(y.grad:is_fake())
        assert.is_true(moth.autograd.grad(model(x):sum(), model.weight):is_fake())
        model.weight.data:mul_(2)
        moth.no_grad(function() model.bias:add_(1) end)
        x:add_(1)
      end)
      assert.same(before, state(model))
      assert.equal(0, B.version(x))
      opt:zero_grad()
      model(x):pow(2):mean():backward()
      opt:step()
      assert.not_same(before.weight[1], model.weight:detach():totable())
    end
  end)

  it('is what device = "meta" asks for: shapes without memory #M272', function()
    local before = moth.memory.stats().live
    local meta = { device = "meta" }
    local big = moth.zeros(100000, 100000, meta)
    assert.is_true(big:is_fake())
    for _, x in ipairs { moth.randn({ 2, 3 }, meta), moth.arange(5, meta), moth.full({ 2 }, 3, meta), moth.eye(3, meta),
      moth.randint(1, 5, { 3 }, meta), moth.tensor({ 1, 2 }, meta), moth.ones_like(moth.ones(2), meta),
      moth.randn(2, 2):to "meta", moth.randn(2, 2):to(meta) } do
      assert.is_true(x:is_fake())
    end
    assert.is_true(moth.linspace(0, 1, 3, { device = "meta", requires_grad = true }):requires_grad())
    local real = moth.ones(2)
    assert.is_false(real:is_fake() or moth.ones(2):is_fake()) -- the others are as before
    local lin = nn.Linear(50000, 50000, meta)
    local net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)):to "meta"
    for _, p in ipairs(net:parameters()) do assert.is_true(p:is_fake()) end
    assert.is_true(net[2].running_mean:is_fake())
    assert.same({ 7, 50000 }, lin(moth.zeros(7, 50000, meta)):size())
    net(moth.zeros(2, 3, meta)):sum():backward()
    assert.is_true(net[1].weight.grad:is_fake())
    assert.is_true(moth.memory.stats().live - before < 1e6)
    assert.error_matches(function() return moth.zeros(2, { device = "metal" }) end, "device 'metal': expected cpu")
  end)

  it("gives no C function a pointer: data and data_ptr of a fake tensor are errors #M136", function()
    local fake = moth.fake_mode(function() return moth.ones(3) end)
    for name, message in each { data = "a fake tensor has no values", data_ptr = "a fake tensor has no memory" } do
      local ok, e = pcall(function() return fake[name](fake) end)
      assert.is_false(ok, name)
      assert.matches(message, e)
      ok = pcall(moth.fake_mode, function() -- as a traced function would
        local x = moth.ones(3)
        return ffi.copy(x[name](x), "aaaa", 4)
      end)
      assert.is_false(ok, name)
    end
  end)

  it("gives nothing to real tensors outside of it", function()
    local fake = moth.fake_mode(function() return moth.ones(2) end)
    local x = moth.ones(2)
    assert.error_matches(function() x:add_(fake) end, "a real tensor cannot take the values of a fake one")
    assert.error_matches(function() x:copy_(fake) end, "a real tensor cannot take")
    assert.error_matches(function() moth.add(fake, 1, { out = x }) end, "a real tensor cannot take")
    assert.same({ 1, 1 }, x:totable())
    assert.equal(0, B.version(x))
    local w = moth.ones(2, { requires_grad = true })
    assert.error_matches(function() w.grad = fake end, "cannot be fake")
    assert.error_matches(function() (w * fake):sum():backward() end, "cannot keep a fake gradient")
    assert.is_nil(w.grad)
    fake:add_(x)
  end)
end)

describe("autocast #quick", function()
  local function dtype_under(options)
    local x = moth.randn(4, 4)
    return moth.autocast(options, function() return (x:matmul(x)) end):dtype()
  end

  it("reads its options, and no others", function()
    assert.equal(moth.bfloat16, dtype_under {})
    assert.equal(moth.float16, dtype_under { dtype = moth.float16 })
    assert.equal(moth.float32, dtype_under { enabled = false })
    assert.error_matches(function() dtype_under { enable = false } end, "option 'enable'; did you mean 'enabled'")
    assert.error_matches(function() dtype_under { enabled = 0 } end, "true or false")
    assert.error_matches(function() dtype_under { dtype = moth.float64 } end, "bfloat16 or float16")
    assert.error_matches(function() moth.autocast({}, nil) end, "expected a function")
    assert.error_matches(function() moth.fake_mode(3) end, "expected a function")
  end)

  it("is for the devices of one type where it is told which", function()
    assert.equal(moth.bfloat16, dtype_under { device = "cpu" })
    assert.equal(moth.float32, dtype_under { device = "cuda" })
    assert.error_matches(function() dtype_under { device = "tpu" } end, "expected a device")
    local x = moth.randn(4, 4)
    moth.autocast({ device = "cpu" }, function()
      moth.autocast({ device = "cuda", dtype = moth.float16 }, function()
        assert.equal(moth.bfloat16, x:matmul(x):dtype())
      end)
      moth.autocast({ device = "cpu", enabled = false }, function()
        assert.equal(moth.float32, x:matmul(x):dtype())
      end)
      moth.autocast({ device = "cuda:0", enabled = false }, function()
        assert.equal(moth.bfloat16, x:matmul(x):dtype())
      end)
      assert.equal(moth.bfloat16, x:matmul(x):dtype())
    end)
    assert.equal(moth.float32, x:matmul(x):dtype())
  end)
end)

describe("use_deterministic_algorithms #quick", function()
  it("checks what it gets", function()
    local was = moth.are_deterministic_algorithms_enabled()
    finally(function() moth.use_deterministic_algorithms(was) end)
    moth.use_deterministic_algorithms(true, { warn_only = true })
    assert.is_true(moth.are_deterministic_algorithms_enabled())
    for _, wrong in ipairs { { true, "x" }, { true, { warn = true } }, { true, { warn_only = 1 } }, { 1 }, {} } do
      assert.has_error(function() moth.use_deterministic_algorithms(unpack(wrong)) end)
    end
  end)
end)
