-- Arguments are made canonical once, before any step of a call: all steps get the same.
local ffi = require "ffi"
local moth = require "moth"
local B = require "moth_lua"

describe("canonical arguments #quick", function()
  -- The arguments of the first call of an op, as a dispatch mode gets them.
  local function seen(name, fn)
    local got
    moth.dispatch_mode(function(func, args)
      if func.name == name and not got then got = args end
      return func(unpack(args, 1, args.n))
    end, fn)
    return assert(got, name .. " was not called")
  end
  local x = moth.randn(2, 3, 4)

  it("wrap dimensions", function()
    assert.equal(3, seen("softmax", function() x:softmax(-1) end)[2])
    assert.equal(1, seen("cumsum", function() x:cumsum(-3) end)[2])
    assert.same({ 3, 1, 2 }, seen("permute", function() x:permute(-1, 1, -2) end)[2])
    assert.same({ 2, 3 }, seen("sum", function() x:sum({ 2, -1 }) end)[2])
    assert.equal(4, seen("unsqueeze", function() x:unsqueeze(-1) end)[2]) -- of the result
    assert.equal(1, seen("unsqueeze", function() x:unsqueeze(-4) end)[2])
    assert.equal(1, seen("softmax", function() moth.randn():softmax(-1) end)[2])
    assert.equal(2, seen("cat", function() moth.cat({ moth.empty(0), x, x }, -2) end)[2]) -- of what is no empty vector
    assert.matches("dim: 4", moth.dispatch.trace(function() B.ops.stack({ x, x }, -1) end)[1]) -- of a composite, too
  end)

  it("name all dimensions of a reduction", function()
    for _, op in ipairs { "sum", "mean", "prod", "amax", "any", "var" } do
      assert.same({ 1, 2, 3 }, seen(op, function() B.ops[op](x) end)[2], op)
      assert.same({ 1, 2, 3 }, seen(op, function() B.ops[op](x, {}) end)[2], op)
    end
    assert.same({}, seen("flip", function() B.ops.flip(x, {}) end)[2]) -- no reduction
    assert.is_nil(seen("argmax", function() x:argmax() end)[2])
    assert.equal(24, moth.ones(2, 3, 4):sum():item())
  end)

  it("wrap positions in the dimension that they are of", function()
    assert.equal(4, seen("select", function() x:select(-1, -1) end)[3])
    local narrow = seen("narrow", function() x:narrow(2, -2, 2) end)
    assert.same({ 2, 2 }, { narrow[2], narrow[3] })
    assert.error_matches(function() x:select(3, -5) end, "index %-5 is out of range for dimension 3 of size 4")
    assert.error_matches(function() x:select(3, 5) end, "index 5 is out of range for dimension 3 of size 4")
    assert.error_matches(function() x:narrow(3, -5, 1) end, "start %-5 with length 1 is out of range for dimension 3")
  end)

  it("repeat one number, and know what stands for none", function()
    local image, weight = moth.randn(1, 2, 6, 6), moth.randn(3, 2, 3, 3)
    local conv = seen("conv2d", function() B.ops.conv2d(image, weight, nil, 2, nil, 1) end)
    assert.same({ { 2, 2 }, { 0, 0 }, { 1, 1 } }, { conv[4], conv[5], conv[6] })
    local pool = seen("max_pool2d_with_indices", function()
      B.ops.max_pool2d_with_indices(image, { 3, 2 }, nil, nil, nil, true)
    end)
    assert.same({ { 3, 2 }, { 3, 2 }, { 0, 0 }, { 1, 1 } }, { pool[2], pool[3], pool[4], pool[5] })
    pool = seen("avg_pool2d", function() B.ops.avg_pool2d(image, 2, {}) end)
    assert.same({ { 2, 2 }, { 2, 2 } }, { pool[2], pool[3] })
    assert.error_matches(function() B.ops.conv2d(image, weight, nil, { 1, 1, 1 }) end,
      "stride must be one number or two, got 3")
    assert.error_matches(function() B.ops.conv2d(image, weight, nil, 0) end, "stride must be at least 1, got 0")
    assert.error_matches(function() B.ops.conv2d(image, weight, nil, 1, -1) end, "padding must be at least 0, got %-1")
    assert.error_matches(function() B.ops.conv2d(image, weight, nil, 2 ^ 40) end, "stride is too large")
    assert.error_matches(function() B.ops.conv1d(image, weight, nil, { 1, 1 }) end,
      "stride must be one number, got 2")
  end)

  it("know the words of an enum", function()
    local target = moth.tensor({ 1, 3 }, { dtype = moth.int64 })
    local args = seen("cross_entropy", function() B.ops.cross_entropy(moth.randn(2, 3), target, nil, "sum") end)
    assert.equal("sum", args[4])
    local y = moth.randn(2, 3)
    local trace = moth.dispatch.trace(function() B.ops.cross_entropy(y, target, nil, "none") end)
    assert.matches("reduction: 'none'", trace[1])
    assert.error_matches(function() moth.mse_loss(x, x, "avg") end,
      "%[mse_loss%] reduction must be mean, sum or none, got 'avg'")
    assert.error_matches(function() B.ops.pad(x, { 1, 1 }, "mirror") end,
      "mode must be constant, reflect, replicate or circular, got 'mirror'")
  end)

  it("lie in their ranges", function()
    for _, p in ipairs { -0.1, 1.5, 0 / 0, 1 / 0 } do
      for _, op in ipairs { "dropout", "native_dropout", "bernoulli_" } do
        assert.error_matches(function() B.ops[op](moth.randn(2), p) end, "p must be between 0 and 1, got ")
      end
    end
    assert.error_matches(function() moth.linspace(0, 1, -1) end, "steps must not be negative, got %-1")
    assert.error_matches(function() B.ops.multinomial(moth.rand(3), 0) end, "num_samples must be positive, got 0")
    assert.error_matches(function() B.ops.huber_loss(x, x, "mean", 0) end, "delta must be positive, got 0")
    assert.error_matches(function() B.ops.normal_(x:clone(), 0, -1) end, "std must not be negative, got %-1")
  end)

  it("are of the dtypes that masks and positions have", function()
    for _, fn in ipairs { function() B.ops.masked_select(x, x) end, function() B.ops.masked_fill(x, x, 0) end,
      function() B.ops.where(x, x, x) end } do
      assert.error_matches(fn, "must be bool, got float32; compare first, as in x:ne%(0%)")
    end
    assert.error_matches(function() x:gather(1, x) end, "index must have an integer dtype, got float32")
    assert.error_matches(function() B.ops.cross_entropy(moth.randn(2, 3), moth.randn(2)) end,
      "target must have an integer dtype, got float32")
  end)

  it("are refused before any step sees them", function()
    local calls = 0
    local function count(func, args)
      calls = calls + 1
      return func(unpack(args, 1, args.n))
    end
    assert.error_matches(function() moth.dispatch_mode(count, function() x:sum({ 1, -3 }) end) end,
      "%[sum%] dimension 1 appears twice in the list of dimensions")
    assert.error_matches(function() moth.dispatch_mode(count, function() x:softmax(4) end) end,
      "%[softmax%] dimension out of range: expected 1 to 3 %(or %-3 to %-1%), got 4")
    assert.equal(0, calls)
    assert.same(x:totable(), moth.roll(x, { 1, -1 }, { 2, 2 }):totable()) -- may name one twice
  end)

  it("count from 0 in C, in messages, too", function()
    local C, capi, out = moth.C, moth.capi, ffi.new("MothTensor *[1]")
    local function message(status)
      assert.is_true(status ~= 0)
      return ffi.string(C.moth_last_error())
    end
    local t = capi.tensor(x)
    assert.matches("expected 0 to 2 %(or %-3 to %-1%), got 5", message(C.moth_softmax(t, 5, capi.value(nil), out)))
    assert.matches("index 4 is out of range for dimension 2 of size 4", message(C.moth_select(t, 2, 4, out)))
    local dims, n = capi.ints({ 1, -2 })
    assert.matches("dimension 1 appears twice", message(C.moth_permute(t, dims, n, out)))
    local three = capi.value(moth.ones(3))
    assert.matches("at dimension 2 must match", message(C.moth_add(capi.value(x), three, capi.value(1), out)))
    assert.error_matches(function() return x + moth.ones(3) end, "at dimension 3 must match")
    assert.error_matches(function() x:softmax(6) end, "expected 1 to 3 %(or %-3 to %-1%), got 6")
  end)

  it("are what is saved for backward", function()
    local w = moth.randn(2, 3, { requires_grad = true })
    local loss = w:sum({ -1 }):sum() + w:softmax(-1):amax({ -1, 1 }) + w:select(-1, -1):sum()
    collectgarbage()
    loss:backward()
    assert.same({ 2, 3 }, { w.grad:size(1), w.grad:size(2) })
  end)
end)
