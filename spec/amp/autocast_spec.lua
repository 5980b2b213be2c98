local moth = require "moth"
local nn, F, amp = moth.nn, moth.F, moth.amp

local function under(dtype, fn) return amp.autocast({ dtype = dtype }, fn) end

describe("amp.autocast #quick", function()
  it("is one function under all its names #M253", function()
    assert.equal(amp.autocast, moth.cuda.amp.autocast)
    assert.equal(amp.autocast, moth.autocast)
    assert.equal(amp.GradScaler, moth.cuda.amp.GradScaler)
    local x, w = moth.randn(3, 4), moth.randn(5, 4)
    assert.equal(moth.bfloat16, amp.autocast("cpu", function() return F.linear(x, w) end):dtype())
    assert.equal(moth.float16, amp.autocast("cpu", { dtype = "float16" }, function() return F.linear(x, w) end):dtype())
    assert.equal(moth.float32, amp.autocast("cuda", { dtype = "float16" }, function() return F.linear(x,
      w) end):dtype())
    assert.equal(moth.bfloat16, amp.autocast(function(a, b) return F.linear(a, b) end, x, w):dtype())
  end)

  it("follows the policies of the records: products low, sums and losses high, mixed sums the widest #M252", function()
    local lists = amp.lists()
    local of = {}
    for policy, names in pairs(lists) do
      for _, name in ipairs(names) do of[name] = policy end
    end
    for _, name in ipairs({ "mm", "bmm", "linear", "conv2d", "addmm", "baddbmm", "attention_forward" }) do
      assert.equal("low", of[name], name)
    end
    for _, name in ipairs({ "softmax", "log_softmax", "cross_entropy", "mse_loss", "nll_loss", "sum", "mean", "norm",
      "exp",
      "native_layer_norm", "binary_cross_entropy_with_logits" }) do
      assert.equal("high", of[name], name)
    end
    assert.equal("widest", of.add)
    local x, y = moth.randn(3, 3), moth.rand(3, 3)
    for _, dtype in ipairs { moth.float16, moth.bfloat16 } do
      local low = x:to(dtype)
      local function of_result(fn) return under(dtype, fn):dtype() end
      assert.equal(dtype, of_result(function() return x:matmul(y) end))
      assert.equal(dtype, of_result(function() return F.conv2d(x:view(1, 1, 3, 3), y:view(1, 1, 3, 3)) end))
      for _, fn in ipairs { function() return low:softmax(1) end, function() return low:sum() end,
        function() return low:norm() end,
        function() return F.mse_loss(low, y) end, function() return F.layer_norm(low, { 3 }) end,
        function() return F.cross_entropy(low, moth.tensor({ 1, 2, 3 }, { dtype = moth.int64 })) end } do
        assert.equal(moth.float32, of_result(fn))
      end
      assert.equal(moth.float32, of_result(function() return low + y end))
      assert.equal(dtype, of_result(function() return low + low end))
      assert.equal(moth.float32, of_result(function() return moth.cat({ low, y }, 1) end))
      assert.equal(dtype, of_result(function() return low:relu() end))
      assert.equal(moth.float64, of_result(function() return x:double():matmul(y:double()) end))
    end
  end)

  it("casts for out=, too", function()
    local x, y, out = moth.randn(3, 3), moth.randn(3, 3), moth.zeros(3, 3)
    amp.autocast(function()
      moth.mm(x, y, { out = out })
      local low = x:matmul(y)
      assert.equal(moth.bfloat16, low:dtype())
      assert.is_true(moth.equal(out, low:float()))
      local wide = moth.zeros(3, 3, { dtype = moth.float64 })
      moth.mm(x, y, { out = wide })
      assert.is_true(moth.equal(wide, low:double()))
    end)
  end)

  it("nests, is turned off inside, passes results on, restores after errors #M251", function()
    local x = moth.randn(2, 2)
    local function dtype() return x:matmul(x):dtype() end
    local a, b, c, d = under(moth.float16, function()
      local inner = under(moth.bfloat16, dtype)
      local off = amp.autocast({ enabled = false }, function()
        assert.is_false(amp.is_autocast_enabled())
        return dtype()
      end)
      pcall(amp.autocast, { enabled = false }, function() error("x") end)
      assert.is_true(amp.is_autocast_enabled("cpu"))
      assert.equal(moth.float16, amp.get_autocast_dtype("cpu"))
      return inner, off, dtype(), 7
    end)
    assert.same({ "bfloat16", "float32", "float16", 7 }, { a.name, b.name, c.name, d })
    assert.has_error(function() under(moth.float16, function() error("in it", 0) end) end, "in it")
    assert.equal(moth.float32, dtype())
    assert.is_false(amp.is_autocast_enabled())
  end)

  it("checks its options", function()
    local function f() end
    assert.error_matches(function() amp.autocast({ dtype = moth.float32 }, f) end,
      "expected bfloat16 or float16, got float32")
    assert.error_matches(function() amp.autocast({ dytpe = moth.float16 }, f) end,
      "unknown option 'dytpe'; did you mean 'dtype'")
    assert.error_matches(function() amp.autocast({ enabled = 1 }, f) end, "'enabled': expected true or false")
    assert.error_matches(function() amp.autocast({ device = "cdua" }, f) end, "expected a device such as")
    assert.error_matches(function() amp.autocast("cpu", { device = "cpu" }, f) end, "given twice")
    assert.error_matches(function() amp.autocast({}) end, "expected a function")
  end)

  it("leaves parameters, gradients and the optimizer's state in float32 #M254", function()
    moth.manual_seed(0)
    local net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    local opt = moth.optim.AdamW(net:parameters(), { lr = 0.01 })
    local x, y = moth.randn(32, 6), moth.randint(1, 4, { 32 })
    local first, last
    for i = 1, 30 do
      opt:zero_grad()
      local loss = under(moth.bfloat16, function()
        local out = net(x)
        assert.equal(moth.bfloat16, out:dtype())
        return F.cross_entropy(out, y)
      end)
      loss:backward()
      opt:step()
      last = loss:item()
      first = first or last
      if i == 1 then
        for _, p in ipairs(net:parameters()) do
          assert.equal(moth.float32, p:dtype())
          assert.equal(moth.float32, p.grad:dtype())
          assert.equal(moth.float32, opt.state[p].exp_avg:dtype())
        end
      end
    end
    assert.is_true(last < 0.8 * first)
  end)

  it("remembers casts of weights until the outermost scope ends, for each version, and not without the option",
    function()
    local w, x = moth.randn(4, 4, { requires_grad = true }), moth.randn(2, 4)
    local function casts(fn)
      local _, by_name = moth.dispatch.count(fn)
      return by_name.to_copy or 0
    end
    local function twice() return x:matmul(w):float():matmul(w) end
    local plain = casts(function() amp.autocast({ cache_enabled = false }, twice) end)
    assert.equal(1, plain - casts(function() amp.autocast(twice) end))
    amp.autocast(function()
      local low = x:matmul(w)
      assert.equal(1, casts(function() x:matmul(w) end)) -- of x alone
      moth.no_grad(w.mul_, w, 2)
      assert.is_true(moth.equal((low:float() * 2):bfloat16(), x:matmul(w))) -- not of the old weight
      -- what was cast without a history has none later
      moth.no_grad(function() return x:matmul(w) end)
      assert.is_true(x:matmul(w):requires_grad())
      moth.no_grad(function() assert.is_false(x:matmul(w):requires_grad()) end)
    end)
  end)

  it("gives the same gradients with and without the memory of casts, in several backwards of one scope", function()
    local w, x = moth.randn(4, 4, { requires_grad = true }), moth.randn(3, 4)
    local grads = {}
    for i, cache in ipairs { true, false } do
      w.grad = nil
      amp.autocast({ cache_enabled = cache }, function()
        for _ = 1, 2 do x:matmul(w):float():sum():backward() end
      end)
      grads[i] = w.grad:clone()
    end
    assert.is_true(moth.allclose(grads[1], grads[2]))
    assert.equal(moth.float32, grads[1]:dtype())
  end)

  it("stays with the coroutine in which it was opened", function()
    local w, x = moth.randn(2, 2, { requires_grad = true }), moth.randn(2, 2)
    local co = coroutine.wrap(function()
      amp.autocast(function()
        coroutine.yield(x:matmul(w):dtype())
        coroutine.yield(x:matmul(w):dtype())
      end)
      return x:matmul(w):dtype()
    end)
    assert.equal(moth.bfloat16, co())
    assert.equal(moth.float32, x:matmul(w):dtype())
    assert.equal(moth.bfloat16, co())
    assert.equal(moth.float32, co())
  end)

  it("says what computes in bfloat16 #M262", function()
    assert.is_true(amp.is_bf16_supported())
    assert.is_true(amp.is_bf16_supported("cpu"))
    assert.is_true(amp.is_autocast_available("cpu"))
    if moth.cuda.is_available() then
      assert.equal(moth.cuda.get_device_capability() >= 8, moth.cuda.is_bf16_supported())
    else
      assert.is_false(moth.cuda.is_bf16_supported())
    end
    assert.equal(moth.bfloat16, amp.get_autocast_dtype("cpu"))
  end)
end)

describe("amp.custom_fwd and custom_bwd #quick", function()
  local seen
  local function new(cast)
    return moth.autograd.Function { name = "F",
      forward = amp.custom_fwd(function(ctx, x, w)
        ctx:save_for_backward(x, w)
        seen = { x:dtype(), amp.is_autocast_enabled("cpu") }
        return x:matmul(w)
      end, { cast_inputs = cast }),
      backward = amp.custom_bwd(function(ctx, grad)
        local x, w = ctx:saved_tensors()
        seen[3] = amp.is_autocast_enabled("cpu")
        return grad:matmul(w:t()), x:t():matmul(grad)
      end) }
  end

  it("cast inputs, turn autocast off, and run backward as forward ran", function()
    local x = moth.randn(2, 2, { requires_grad = true })
    local w = moth.randn(2, 2, { requires_grad = true })
    local f = new(moth.float32)
    local y = amp.autocast(function() return f(x:bfloat16(), w) end)
    y:sum():backward()
    assert.same({ "float32", false, false }, { seen[1].name, seen[2], seen[3] })
    f = new()
    y = amp.autocast(function() return f(x, w) end)
    assert.equal(moth.bfloat16, y:dtype())
    y:float():sum():backward()
    assert.same({ "float32", true, true }, { seen[1].name, seen[2], seen[3] })
    f(x, w):sum():backward()
    assert.same({ "float32", false, false }, { seen[1].name, seen[2], seen[3] })
  end)
end)
