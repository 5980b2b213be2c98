-- Attention beyond the generated specs: long rows of several tiles, dropout, threads, nn.MultiheadAttention.
local moth = require "moth"
local nn = moth.nn
local gradcheck = require "moth.autograd.gradcheck"

local function inputs(n, ...)
  local t = {}
  for i = 1, n do t[i] = moth.randn(...):requires_grad_(true) end
  return unpack(t)
end
local function naive(q, k, v, causal)
  local w = (q * (1 / math.sqrt(q:size(-1)))):matmul(k:transpose(-2, -1))
  if causal then w = w + moth.full({ q:size(-2), k:size(-2) }, -math.huge):triu(1) end
  return w:softmax(-1):matmul(v)
end

describe("attention", function()
  before_each(function() moth.manual_seed(3) end)

  it("of several tiles is that of whole matrices, forward and backward", function()
    local q, k, v = inputs(3, 1, 2, 600, 16)
    local g = moth.randn(1, 2, 600, 16)
    for _, causal in ipairs({ false, true }) do
      local a, b = moth.scaled_dot_product_attention(q, k, v, { is_causal = causal }), naive(q, k, v, causal)
      assert.is_true((a - b):abs():max():item() < 1e-5)
      local da = { moth.autograd.grad((a * g):sum(), { q, k, v }) }
      local db = { moth.autograd.grad((b * g):sum(), { q, k, v }) }
      if #da == 1 then da, db = da[1], db[1] end
      for i = 1, 3 do assert.is_true((da[i] - db[i]):abs():max():item() < 1e-5) end
    end
  end)

  it("of rows that are no whole vectors, of views, at the edges of tiles", function()
    for _, s in ipairs({ { 1, 1, 1, 1 }, { 7, 3, 5, 9 }, { 17, 33, 31, 33 }, { 129, 257, 16, 19 }, { 130, 300, 40, 64 },
      { 260, 129, 3, 2 } }) do
      local L, S, E, V = unpack(s)
      -- heads that lie beside each other, as in a GPT
      local q = moth.randn(2, L, 2, E):transpose(2, 3):requires_grad_(true)
      local k = moth.randn(2, S, 2, E):transpose(2, 3):requires_grad_(true)
      local v = moth.randn(2, S, 2, V):transpose(2, 3):requires_grad_(true)
      local g = moth.randn(2, L, 2, V):transpose(2, 3)
      for _, causal in ipairs({ false, true }) do
        local a, b = moth.scaled_dot_product_attention(q, k, v, { is_causal = causal }), naive(q, k, v, causal)
        assert.is_true((a - b):abs():max():item() < 1e-5)
        local function gradients(y)
          q.grad, k.grad, v.grad = nil, nil, nil
          y:backward(g)
          return { q.grad, k.grad, v.grad }
        end
        local da, db = gradients(a), gradients(b)
        for i = 1, 3 do assert.is_true((da[i] - db[i]):abs():max():item() < 5e-5) end
      end
    end
  end)

  it("of few queries reads keys where they lie, with the values of tiles", function()
    for _, dtype in ipairs { moth.float32, moth.float64, moth.bfloat16, moth.float16 } do
      for _, s in ipairs { { 1, 1, 4, 4 }, { 1, 300, 4, 1 }, { 3, 256, 4, 2 }, { 16, 257, 1, 1 }, { 4, 700, 8, 2 } } do
        local L, S, H, K = unpack(s)
        local q = moth.randn(2, H, L, 24):to(dtype)
        local k, v = moth.randn(2, K, S + 5, 24):to(dtype):narrow(3, 1, S), moth.randn(2, K, S, 40):to(dtype)
        for _, causal in ipairs { false, true } do
          local o = { is_causal = causal, enable_gqa = true }
          local few = moth.scaled_dot_product_attention(q, k, v, o)
          local all = causal and moth.ones(L, S):tril():to(moth.bool) or moth.ones(L, S):to(moth.bool)
          local tiles = moth.scaled_dot_product_attention(q, k, v, { attn_mask = all, enable_gqa = true })
          local off = (few - tiles):to(moth.float64):abs():max():item()
          assert.is_true(off < (dtype == moth.float64 and 1e-14 or dtype == moth.float32 and 2e-6 or 0.02), off)
        end
      end
    end
    -- the log-sum-exp goes to the gradients
    local q, k, v = moth.randn(1, 2, 3, 8), moth.randn(1, 2, 5, 8), moth.randn(1, 2, 5, 8)
    for _, x in ipairs { q, k, v } do x:requires_grad_(true) end
    local a = { moth.autograd.grad(moth.scaled_dot_product_attention(q, k, v):pow(2):sum(), { q, k, v }) }
    local b = { moth.autograd.grad(naive(q, k, v):pow(2):sum(), { q, k, v }) }
    if #a == 1 then a, b = a[1], b[1] end
    for i = 1, 3 do assert.is_true((a[i] - b[i]):abs():max():item() < 1e-5) end
  end)

  it("gives the same bits for any number of threads", function()
    local q, k, v = inputs(3, 1, 1, 700, 32)
    local threads, want = moth.get_num_threads(), nil
    for _, n in ipairs({ 1, 2, 3 }) do
      moth.set_num_threads(n)
      moth.manual_seed(4)
      local y = moth.scaled_dot_product_attention(q, k, v, { is_causal = true, dropout_p = 0.1 })
      y:sum():backward()
      local got = { y:detach(), q.grad, k.grad, v.grad }
      for i = 1, 4 do assert.is_true(not want or got[i]:equal(want[i])) end
      want = got
      q.grad, k.grad, v.grad = nil, nil, nil
    end
    moth.set_num_threads(threads)
  end)

  it("drops the same weights in backward, and a mask may need a gradient", function()
    local like = { dtype = moth.float64 }
    local q, k, v = inputs(3, 1, 1, 6, 4, like)
    assert.is_true(gradcheck.gradcheck(function(a, b, c)
      moth.manual_seed(5)
      return moth.scaled_dot_product_attention(a, b, c, { dropout_p = 0.4 })
    end, { q, k, v }))
    local mask = moth.randn(6, 6, like):requires_grad_(true)
    assert.is_true(gradcheck.gradcheck(function(a, m)
      return moth.scaled_dot_product_attention(a, k, v, { attn_mask = m })
    end, { q, mask }))
  end)

  it("nn.MultiheadAttention: weights or not, causal, masks, layouts", function()
    local mha = nn.MultiheadAttention(16, 4, { batch_first = true })
    local x = moth.randn(2, 5, 16)
    local function close(a, b) assert.is_true((a - b):abs():max():item() < 1e-5) end
    local y, w = mha(x, x, x, { need_weights = true })
    close(mha(x, x, x), y)
    close(w:sum(-1), moth.ones(2, 5))
    close(mha(x, x, x, { is_causal = true }), (mha(x, x, x, { is_causal = true, need_weights = true })))
    local out = moth.zeros(2, 5, { dtype = moth.bool })
    out:select(2, 5):fill_(true) -- as if the last were not there
    local short = x:narrow(2, 1, 4)
    close(mha(x, x, x, { key_padding_mask = out }):narrow(2, 1, 4), (mha(short, short, short)))
    close(mha(x[1], x[1], x[1]), mha(x, x, x)[1])
    local wide = nn.MultiheadAttention(16, 2, { kdim = 6, vdim = 7, bias = false })
    assert.same({ 3, 2, 16 }, wide(moth.randn(3, 2, 16), moth.randn(4, 2, 6), moth.randn(4, 2, 7)).shape)
    assert.error_matches(function() nn.MultiheadAttention(10, 3) end, "multiple of num_heads")
  end)
end)
