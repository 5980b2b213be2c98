-- What keys and values are held as: pools of other dtypes than the model's, and blocks of Q8_0.
local moth = require "moth"

local function int64(t, device) return moth.tensor(t, { dtype = moth.int64, device = device }) end

-- Attention of pools of a kind, and of the same elements as floats of query's dtype.
local function both(kind, dtype, counts, H, K, D, V, device)
  local P, blocks, total = 4, 24, 0
  for _, n in ipairs(counts) do total = total + n end
  local function pool(width)
    if kind == "q8_0" then width = width / 32 * 34 end
    return moth.zeros({ blocks, K, P, width }, { dtype = moth[kind == "q8_0" and "uint8" or kind], device = device })
  end
  local keys, values = pool(D), pool(V)
  local k, v = moth.randn(blocks * P, K, D):to(dtype), moth.randn(blocks * P, K, V):to(dtype)
  keys:kv_write_(values, k:to(device), v:to(device), moth.arange(1, blocks * P + 1, { dtype = moth.int64 }):to(device))
  local function floats(x) return kind == "q8_0" and moth.unpack_blocks(x, "Q8_0", dtype) or x:to(dtype) end
  local q = moth.randn(total, H, D):to(dtype):to(device)
  local tables, lengths = {}, {}
  for s = 1, #counts do
    tables[s], lengths[s] = {}, 70 - s
    for j = 1, blocks do tables[s][j] = (j * 7 * s) % blocks + 1 end
  end
  local o = { int64(tables, device), int64(lengths, device), int64(counts, device) }
  local got = moth.paged_attention(q, keys, values, unpack(o))
  assert.are.same({ total, H, V }, { got:size(1), got:size(2), got:size(3) })
  assert.are.equal(dtype, got:dtype())
  local back = floats(keys):transpose(2, 3):reshape(-1, K, D):to("cpu")
  return got, moth.paged_attention(q, floats(keys), floats(values), unpack(o)), back, k
end

describe("a cache of keys and values #llm", function()
  before_each(function() moth.manual_seed(4) end)

  for _, device in ipairs(moth.cuda.is_available() and { "cpu", "cuda" } or { "cpu" }) do
    it("may be of any float dtype, and of blocks of 8 bits, on " .. device, function()
      local off = { float16 = 1e-3, bfloat16 = 8e-3, float32 = 0, q8_0 = 0.005 }
      for kind, most in pairs(off) do
        for _, dtype in ipairs { moth.float32, moth.float64, moth.bfloat16 } do
          for _, c in ipairs { { { 1, 1 }, 4, 2, 64, 64 }, { { 3, 40 }, 2, 1, 32, 96 } } do
            local got, right, back, k = both(kind, dtype, c[1], c[2], c[3], c[4], c[5], device)
            local bound = dtype == moth.float32 and 1e-6 or dtype == moth.float64 and 1e-13 or 0.02
            assert.is_true((got - right):abs():max():item() <= bound, kind)
            local error = (back - k):to(moth.float64):abs():max():item() / k:to(moth.float64):abs():max():item()
            assert.is_true(error <= most + (dtype == moth.bfloat16 and 8e-3 or 1e-7), ("%s: %g"):format(kind, error))
          end
        end
      end
    end)
  end

  it("has windows and sinks, whatever the sizes of blocks, groups and prompts", function()
    local attention = require "moth.models.attention"
    for _, c in ipairs { { 4, 2, 1, 16, "float32" }, { 40, 2, 16, 5, "float64" }, { 6, 6, 300, 130, "float32" },
      { 4, 2, 16, 20, "float16" }, { 18, 1, 4, 1, "float32" } } do
      local H, K, P, window, kind = unpack(c)
      local dtype, D, total = moth[kind == "float64" and kind or "float32"], 24, 310
      local blocks, counts = math.ceil(total / P), { 1, 3, 12, 150 }
      local keys = moth.randn(blocks, K, P, D):to(moth[kind])
      local values, sinks = moth.randn(blocks, K, P, 8):to(moth[kind]), moth.randn(H) * 3
      local tables, lengths, rows = {}, {}, 0
      for s, n in ipairs(counts) do
        tables[s], lengths[s], rows = {}, total - 7 * s, rows + n
        for j = 1, blocks do tables[s][j] = (j + s) % blocks + 1 end
      end
      local q = moth.randn(rows, H, D):to(dtype)
      for _, with in ipairs { { sinks = sinks, window = window }, { window = window }, { sinks = sinks } } do
        local got, at = moth.paged_attention(q, keys, values, int64(tables), int64(lengths), int64(counts), with), 1
        for s, n in ipairs(counts) do
          local function of(pool)
            local t = pool:index_select(1, int64(tables[s])):to(dtype):transpose(1, 2)
            return t:reshape(1, K, -1, t:size(4)):narrow(3, 1, lengths[s])
          end
          local own = q:narrow(1, at, n):transpose(1, 2):unsqueeze(1)
          local queries = moth.arange(lengths[s] - n + 1, lengths[s] + 1):unsqueeze(2)
          local place = moth.arange(1, lengths[s] + 1):unsqueeze(1)
          local seen = place:le(queries)
          if with.window then seen = seen:logical_and(place:gt(queries - window)) end
          local none = with.sinks or moth.full({ H }, -math.huge)
          local want = attention.sunk(own, of(keys), of(values), seen, D ^ -0.5, none):select(1, 1):transpose(1, 2)
          assert.is_close(want, got:narrow(1, at, n), { rtol = 0, atol = dtype == moth.float64 and 1e-13 or 2e-6 })
          at = at + n
        end
      end
    end
  end)

  it("of blocks keeps zeros, rounds to 127 steps, and makes nan what is no number", function()
    local x = moth.zeros(3, 1, 64)
    x[2][1][1], x[2][1][2], x[2][1][3], x[3][1][40] = -254, 127, 1.4, 1 / 0
    local keys = moth.zeros({ 1, 1, 3, 68 }, { dtype = moth.uint8 })
    local values = keys:clone()
    keys:kv_write_(values, x, x, int64 { 1, 2, 3 })
    local y = moth.unpack_blocks(keys, "Q8_0")[1][1]
    assert.is_true(moth.equal(y[1], moth.zeros(64)))
    assert.are.same({ -254, 128, 2, 0 }, y[2]:narrow(1, 1, 4):totable()) -- steps of 2
    assert.are.same({ false, true }, { y[3][1]:isnan():item(), y[3][40]:isnan():item() })
  end)

  it("gives a model's logits nearly, in windows, too; a draft has one of the same kind", function()
    local sizes = { vocab_size = 96, hidden_size = 128, intermediate_size = 96, num_hidden_layers = 2,
      num_attention_heads = 4, num_key_value_heads = 2 }
    for _, window in ipairs { 0, 20 } do
      sizes.sliding_window = window > 0 and window or nil
      local net, ids = moth.models.Llama(sizes):eval(), {}
      for i = 1, 50 do ids[i] = i * 7 % 95 + 1 end
      local function first(cache)
        local out
        local s = moth.llm.Scheduler(net, { max_tokens = 128, cache = cache, draft = net })
        s:add { ids = ids, max_tokens = 2, temperature = 0, on_logits = function(l) out = out or l:clone() end }
        while s:step() > 0 do end -- luacheck: ignore 542
        assert.are.equal(s.cache.keys[1]:dtype(), s.proposer.cache.keys[1]:dtype())
        return out, s.cache.keys[1]
      end
      local right = first()
      for kind, bound in pairs { float32 = 0, float16 = 1e-3, bfloat16 = 1e-2, q8_0 = 2e-2 } do
        local got, keys = first(kind)
        local off = (got - right):abs():max():item() / right:abs():max():item()
        assert.is_true(off <= bound, ("%s: off by %g"):format(kind, off))
        assert.are.equal(kind == "q8_0" and moth.uint8 or moth[kind], keys:dtype())
      end
    end
  end)

  it("is an option of texts and chats; what cannot be is refused", function()
    local model, tokenizer = moth.models.load "spec/llm/fixtures/llama"
    local function text(cache)
      local t = {}
      local o = { max_tokens = 8, temperature = 0, cache = cache }
      for piece in moth.generate(model, tokenizer, "It is the moon", o) do t[#t + 1] = piece end
      return table.concat(t)
    end
    assert.are.equal(text(), text "float16")
    assert.error_matches(function() text "q4_0" end, "'float16', 'bfloat16' or 'q8_0', got 'q4_0'")
    local chat = moth.llm.Chat(model, tokenizer, { cache = "bfloat16", template = "gpt-2" })
    assert.are.equal(moth.bfloat16, chat.scheduler.cache.keys[1]:dtype())
    local small = moth.models.GPT { vocab_size = 53, n_layer = 1, n_head = 4, n_embd = 32, block_size = 96 }
    assert.error_matches(function() moth.llm.Scheduler(small, { cache = "q8_0" }) end,
      "q8_0 is of 32 elements each, and this model's heads have 8")
  end)
end)

describe("a cache of model:generate #llm", function()
  local function sizes(more)
    local c = { vocab_size = 40, hidden_size = 64, intermediate_size = 32, num_hidden_layers = 2,
      num_attention_heads = 2, initializer_range = 0.2 }
    for key, v in pairs(more or {}) do c[key] = v end
    return c
  end

  it("is of the dtype that is wanted, beside padding, too", function()
    moth.manual_seed(8)
    local nets = { moth.models.Llama(sizes()), moth.models.Llama(sizes { num_key_value_heads = 1, sliding_window = 5 }),
      moth.models.GPT { vocab_size = 40, n_layer = 2, n_head = 2, n_embd = 64, block_size = 64 },
      moth.models.Llama(sizes { latent = { kv_rank = 24, nope = 8, rope = 8, value = 12 }, head_dim = 8 }) }
    local ids, mask = moth.randint(1, 41, { 3, 20 }), moth.ones(3, 20)
    mask[2]:narrow(1, 1, 6):fill_(0)
    for _, net in ipairs(nets) do
      for _, kind in ipairs { "float32", "float16", "bf16", "q8_0" } do
        local exact, kept = net:eval():new_cache(3, 30), net:new_cache(3, 30, kind)
        local dtype = ({ bf16 = moth.bfloat16, q8_0 = moth.uint8 })[kind] or moth[kind]
        assert.equal(dtype, kept.keys[1]:dtype())
        local at = 1
        for _, n in ipairs { 12, 1, 7 } do
          local seen = mask:ne(0):narrow(2, 1, at + n - 1)
          local want = moth.no_grad(net.decode, net, ids:narrow(2, at, n), exact, seen):narrow(2, n, 1)
          local got = moth.no_grad(net.decode, net, ids:narrow(2, at, n), kept, seen):narrow(2, n, 1)
          local most = ({ float32 = 0, float16 = 1e-2, bf16 = 0.1, q8_0 = 0.3 })[kind]
          local off = (got - want):abs():max():item() / want:abs():max():item()
          assert.is_true(off <= most, ("%s: off by %g"):format(kind, off))
          at = at + n
        end
        local own, back = exact.keys[1]:narrow(3, 1, 20), kept.keys[1]:narrow(3, 1, 20)
        back = kind == "q8_0" and moth.unpack_blocks(back, "Q8_0") or back:to(moth.float32)
        assert.is_true((own - back):abs():max():item() <= 0.005 * own:abs():max():item(), kind)
        local out = net:generate(ids, 4, { cache = kind, attention_mask = mask, temperature = 0 })
        assert.same({ 3, 24 }, { out:size(1), out:size(2) })
      end
    end
  end)

  it("is refused where there is none, or none of the kind", function()
    local net, ids = moth.models.Llama(sizes { num_attention_heads = 4 }), moth.ones({ 1, 3 }, { dtype = moth.int64 })
    assert.error_matches(function() net:generate(ids, 2, { cache = "q8_0" }) end, "this model's heads have 16")
    assert.error_matches(function() net:generate(ids, 2, { cache = "int4" }) end, "'bfloat16' or 'q8_0', got 'int4'")
    assert.error_matches(function() net:generate(ids, 2, { cache = "f16", use_cache = false }) end,
      "there is none with use_cache = false")
    local mamba = moth.models.Mamba { vocab_size = 9, hidden_size = 8, num_hidden_layers = 1 }
    assert.error_matches(function() mamba:generate(ids, 2, { cache = "f16" }) end, "no keys and values, but a state")
    assert.error_matches(function() moth.llm.Scheduler(mamba, { cache = "f16" }) end,
      "no keys and values, but a state")
  end)
end)
