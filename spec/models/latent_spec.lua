-- Attention to one small vector a token: what is kept of tokens, and what comes of it (DeepSeek 2 and 3).
local moth = require "moth"

local function model(more)
  moth.manual_seed(3)
  local c = { vocab_size = 40, hidden_size = 64, intermediate_size = 32, num_hidden_layers = 2, initializer_range = 0.2,
    num_attention_heads = 20, latent = { q_rank = 16, kv_rank = 32, nope = 8, rope = 32, value = 12 }, head_dim = 32,
    attention_scale = 40 ^ -0.5, rope_interleaved = true }
  for key, v in pairs(more or {}) do c[key] = v end
  return moth.models.Llama(c):eval()
end
local function ids(rows, n)
  return moth.randint(1, 41, { rows, n }, { dtype = moth.int64, generator = moth.Generator(5) })
end

describe("latent attention #quick", function()
  it("keeps the small vector and the part that turns, nothing else", function()
    local net = model()
    local cache = net:new_cache(2, 10)
    assert.same({ 2, 1, 10, 64 }, { cache.keys[1]:size(1), cache.keys[1]:size(2), cache.keys[1]:size(3),
      cache.keys[1]:size(4) })
    assert.is_nil(cache.values[1])
    local s = moth.llm.Scheduler(net, { max_tokens = 64 })
    assert.same({ 4 * 16 * 64, 0 }, { s.cache.keys[2]:numel(), s.cache.values[2]:numel() })
  end)

  it("computes in pieces, beside padding and over pages what it computes at once", function()
    for _, q_rank in ipairs { 16, 0 } do
      local net = model { latent = { q_rank = q_rank > 0 and q_rank or nil, kv_rank = 32, nope = 8, rope = 32,
        value = 12 } }
      local x = ids(2, 30)
      local want = moth.no_grad(net.decode, net, x)
      local cache, at, parts = net:new_cache(2, 30), 1, {}
      for _, n in ipairs { 11, 1, 7, 1, 10 } do
        parts[#parts + 1], at = moth.no_grad(net.decode, net, x:narrow(2, at, n), cache), at + n
      end
      assert.is_close(want, moth.cat(parts, 2), { rtol = 0, atol = 2e-5 })
      local greedy = net:generate(x, 6, { do_sample = false })
      assert.same(net:generate(x, 6, { do_sample = false, use_cache = false }):totable(), greedy:totable())
      local s = moth.llm.Scheduler(net, { max_tokens = 200, step_tokens = 9 })
      local requests = {}
      for r = 1, 2 do requests[r] = s:add { ids = x[r]:totable(), max_tokens = 6, temperature = 0 } end
      while s:step() > 0 do end -- luacheck: ignore 542
      for r = 1, 2 do assert.same(greedy[r]:totable(), requests[r].ids) end
    end
  end)

  it("has gradients as from numbers, and takes other layers in place of its own", function()
    local net = model()
    local x = ids(1, 12)
    local function logits(m, cache)
      if not cache then return moth.no_grad(m.decode, m, x) end
      local kept = m:new_cache(1, 12)
      moth.no_grad(m.decode, m, x:narrow(2, 1, 5), kept)
      return moth.no_grad(m.decode, m, x:narrow(2, 6, 7), kept)
    end
    local want = logits(net)
    local blocks = moth.quantization.quantize_blocks(model(), "Q8_0", { keep = { "q_", "o_proj", "lm_head", "mlp" } })
    assert.equal("BlockLinear", require("moth.class").name(blocks.model.layers[1].self_attn.kv_b_proj))
    local got = logits(blocks)
    assert.is_close(got:narrow(2, 6, 7), logits(blocks, true), { rtol = 0, atol = 0.05 * want:abs():max():item() })
    assert.is_true((got - want):abs():max():item() < 0.1 * want:abs():max():item())
    select(2, net(x, x)):backward()
    assert.is_true(net.model.layers[1].self_attn.kv_b_proj.weight.grad:abs():max():item() > 0)
  end)

  it("keeps it in 8 bits where that is wanted", function()
    local net, x = model(), ids(1, 40)
    local function first(cache)
      local out
      local s = moth.llm.Scheduler(net, { max_tokens = 64, cache = cache })
      s:add { ids = x[1]:totable(), max_tokens = 1, on_logits = function(l) out = l:clone() end }
      while s:step() > 0 do end -- luacheck: ignore 542
      return out
    end
    local want = first()
    assert.is_true((first "q8_0" - want):abs():max():item() < 0.03 * want:abs():max():item())
  end)
end)
