--- models.Llama: a decoder of the Llama family: rotary positions, grouped keys and values, RMS norms, SwiGLU (Touvron
-- et al. 2023), with Hugging Face's names. Mistral's and Qwen2's checkpoints have the same form.
--
--     local net = moth.models.Llama.from_pretrained "folder"
--     local tok = moth.data.Tokenizer "folder/tokenizer.json"
--     local ids = moth.tensor({ tok:encode "Once upon a time" }, { dtype = moth.int64 })
--     print(tok:decode(net:generate(ids, 50, { top_p = 0.9 })[1]))
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local generate = require "moth.models.generate"
local pretrained = require "moth.models.pretrained"

-- The frequencies of rotary positions, (dim / 2), by config.rope_scaling: linear, or Llama 3's, which stretches long
-- waves by `factor`, short ones not, those between in proportion; or divided by rope_factors, as GGUF has them.
local function frequencies(c)
  local dim, list, s = c.head_dim, {}, c.rope_scaling or {}
  local kind = s.rope_type or s.type
  for i = 0, dim / 2 - 1 do
    local f = c.rope_theta ^ (-2 * i / dim)
    if c.rope_factors then
      f = f / c.rope_factors[i + 1]
    elseif kind == "linear" then
      f = f / s.factor
    elseif kind == "llama3" then
      local wave, old = 2 * math.pi / f, s.original_max_position_embeddings
      local long, short = old / s.low_freq_factor, old / s.high_freq_factor
      if wave > long then
        f = f / s.factor
      elseif wave > short then
        local share = (old / wave - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
        f = (1 - share) * f / s.factor + share * f
      end
    elseif kind and kind ~= "default" then
      check.fail("[models.Llama] rope_scaling '%s' is not known; there are linear and llama3", tostring(kind))
    end
    list[i + 1] = f
  end
  return moth.tensor(list, { dtype = moth.float32 })
end

local Attention = nn.class("Llama.Attention")
function Attention:__init(c)
  self.heads, self.kv_heads, self.dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
  local bias = { bias = c.attention_bias }
  self.q_proj = nn.Linear(c.hidden_size, self.heads * c.head_dim, bias)
  self.k_proj = nn.Linear(c.hidden_size, self.kv_heads * c.head_dim, bias)
  self.v_proj = nn.Linear(c.hidden_size, self.kv_heads * c.head_dim, bias)
  self.o_proj = nn.Linear(self.heads * c.head_dim, c.hidden_size, { bias = c.attention_bias and c.output_bias })
end
function Attention:forward(x, at, i)
  local B, T = x:size(1), x:size(2)
  local function heads(y) return y:view(B, T, y:size(3) / self.dim, self.dim):transpose(2, 3) end -- those of this rank
  local q = moth.rope(heads(self.q_proj(x)), at.cos, at.sin, at.interleaved)
  local k, v = moth.rope(heads(self.k_proj(x)), at.cos, at.sin, at.interleaved), heads(self.v_proj(x))
  if at.pages then
    local function tokens(y) return y:select(1, 1):transpose(1, 2) end
    return self.o_proj(at.pages:attend(i, tokens(q), tokens(k), tokens(v)))
  end
  if at.cache then k, v = at.cache:append(i, k, v) end
  local y = moth.scaled_dot_product_attention(q, k, v, { attn_mask = at.mask, is_causal = at.causal,
    enable_gqa = self.heads ~= self.kv_heads })
  return self.o_proj(y:transpose(2, 3):reshape(B, T, q:size(2) * self.dim))
end

local MLP = nn.class("Llama.MLP")
function MLP:__init(c)
  local bias = { bias = c.mlp_bias }
  self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias)
  self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias)
  self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias)
end
function MLP:forward(x) return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)) end

local Layer = nn.class("Llama.DecoderLayer")
function Layer:__init(c)
  self.self_attn, self.mlp = Attention(c), MLP(c)
  self.input_layernorm = nn.RMSNorm(c.hidden_size, { eps = c.rms_norm_eps })
  self.post_attention_layernorm = nn.RMSNorm(c.hidden_size, { eps = c.rms_norm_eps })
end
function Layer:forward(x, at, i)
  x = x + self.self_attn(self.input_layernorm(x), at, i)
  return x + self.mlp(self.post_attention_layernorm(x))
end

local Trunk = nn.class("Llama.Model")
function Trunk:__init(c)
  self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
  local layers = {}
  for i = 1, c.num_hidden_layers do layers[i] = Layer(c) end
  self.layers = nn.ModuleList(layers)
  self.norm = nn.RMSNorm(c.hidden_size, { eps = c.rms_norm_eps })
end

local Llama = nn.class("Llama")

--- rope_interleaved: pairs of rotated coordinates are neighbours, as in GGUF's files, not in the two halves.
-- rope_factors: the frequencies are divided by them. rope_scaling: { rope_type = "linear", factor = … }, or the fields
-- of Llama 3.1's config.json
Llama.__init = signature.init("models.Llama(*, count vocab_size, count hidden_size, count intermediate_size, \z
  count num_hidden_layers, count num_attention_heads, \z
  count num_key_value_heads?, count head_dim?, count max_position_embeddings=2048, number rms_norm_eps=1e-6, \z
  number rope_theta=10000, table rope_scaling?, bool tie_word_embeddings=false, bool attention_bias=false, \z
  bool output_bias=true, bool mlp_bias=false, bool rope_interleaved=false, \z
  number[] rope_factors?, number initializer_range=0.02)", function(self, c)
  c.num_key_value_heads = c.num_key_value_heads or c.num_attention_heads
  if c.num_attention_heads % c.num_key_value_heads ~= 0 then
    check.fail("[models.Llama] num_attention_heads (%d) must be a multiple of num_key_value_heads (%d)",
      c.num_attention_heads, c.num_key_value_heads)
  end
  if not c.head_dim and c.hidden_size % c.num_attention_heads ~= 0 then
    check.fail("[models.Llama] hidden_size (%d) must be a multiple of num_attention_heads (%d)", c.hidden_size,
      c.num_attention_heads)
  end
  c.head_dim = c.head_dim or c.hidden_size / c.num_attention_heads
  self.config, self.max_length = c, c.max_position_embeddings
  self.model = Trunk(c)
  if not c.tie_word_embeddings then self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, { bias = false }) end
  self:reset_buffers()
  for _, p in ipairs(self:parameters()) do
    if p:dim() > 1 then nn.init.normal_(p, 0, c.initializer_range) end
  end
end)

--- Makes what is computed, not loaded: the frequencies of rotary positions.
function Llama:reset_buffers()
  self:register_buffer("inv_freq", frequencies(self.config), { persistent = false })
end

--- By what rope_scaling divides the frequencies, (head_dim / 2).
function Llama:rope_factors()
  local plain = {}
  for i = 0, self.config.head_dim / 2 - 1 do plain[i + 1] = self.config.rope_theta ^ (-2 * i / self.config.head_dim) end
  return moth.tensor(plain, { dtype = moth.float32 }) / frequencies(self.config)
end

--- Keys and values of `length` tokens of each row.
function Llama:new_cache(rows, length)
  local c = self.config
  return generate.Cache(c.num_hidden_layers, rows, c.num_key_value_heads, length, c.head_dim,
    self.model.norm.weight)
end

-- Cosines and sines of positions, (T, D / 2) or (B, 1, T, D / 2), of x's dtype.
local function angles(self, position, dtype)
  local a = position:to(moth.float32):sub(1):unsqueeze(-1) * self.inv_freq:to(moth.float32)
  if a:dim() == 3 then a = a:unsqueeze(2) end
  return a:cos():to(dtype), a:sin():to(dtype)
end

--- Logits of tokens behind those in the cache.
-- idx (B, T), ids from 1; cache of new_cache, or nil; mask (B, all tokens), bool: false where padding is; last: of the
-- last token only
function Llama:decode(idx, cache, mask, last)
  local T, past = idx:size(2), cache and cache.n or 0
  if past + T > self.max_length then
    check.fail("[models.Llama] %d tokens are more than max_position_embeddings, %d", past + T, self.max_length)
  end
  local x = self.model.embed_tokens(idx)
  local at = { cache = cache, interleaved = self.config.rope_interleaved }
  at.cos, at.sin = angles(self, generate.positions(T, past, mask, idx:device()), x:dtype())
  at.causal, at.mask = generate.attention_mask(T, past, mask, idx:device())
  for i = 1, self.config.num_hidden_layers do x = self.model.layers[i](x, at, i) end
  if cache then cache:advance(T) end
  if last then x = x:narrow(2, T, 1) end
  return self:head(x)
end

--- Logits of hidden states.
function Llama:head(x)
  x = self.model.norm(x)
  return self.lm_head and self.lm_head(x) or self.model.embed_tokens:as_linear(x)
end

--- What llm.PagedCache keeps: the sizes of keys and values, and a tensor of their dtype and device.
function Llama:cache_sizes()
  local c = self.config
  local sizes = { layers = c.num_hidden_layers, heads = c.num_key_value_heads, dim = c.head_dim }
  return sizes, self.model.embed_tokens.weight
end

--- Logits of some tokens of a step of llm.PagedCache: a row for each of `rows`, a list of positions among its tokens.
function Llama:step(pages, rows)
  local x = self.model.embed_tokens(pages.tokens)
  local at = { pages = pages, interleaved = self.config.rope_interleaved }
  at.cos, at.sin = angles(self, pages.positions:select(1, 1), x:dtype())
  for i = 1, self.config.num_hidden_layers do x = self.model.layers[i](x, at, i) end
  return self:head(generate.rows(x, rows))
end

--- idx (B, T), ids from 1; targets (B, T) likewise, optional.
-- @return logits (B, T, vocab_size); with targets also the mean cross-entropy
function Llama:forward(idx, targets)
  local logits = self:decode(idx)
  if not targets then return logits end
  return logits, nn.functional.cross_entropy(logits:view(-1, self.config.vocab_size), targets:reshape(-1))
end

generate.install(Llama, "Llama")

--- The model of a folder that Hugging Face's save_pretrained wrote (Llama, Mistral, Qwen2). o: { mapped = true } takes
-- the weights where they lie in the file, as models.load does.
function Llama.from_pretrained(folder, o)
  local where = "models.Llama.from_pretrained"
  local is_mapped = check.options(where, o, "mapped").mapped
  local config, sd = pretrained.read(folder, where, is_mapped)
  local function of(names, default) return pretrained.field(config, where, names, default) end
  local scaling = of("rope_parameters rope_scaling", false)
  local c = {
    vocab_size = of "vocab_size", hidden_size = of "hidden_size", intermediate_size = of "intermediate_size",
    num_hidden_layers = of "num_hidden_layers", num_attention_heads = of "num_attention_heads",
    num_key_value_heads = of("num_key_value_heads", config.num_attention_heads),
    head_dim = of("head_dim", of "hidden_size" / of "num_attention_heads"),
    max_position_embeddings = of("max_position_embeddings", 2048), rms_norm_eps = of("rms_norm_eps", 1e-6),
    rope_theta = of("rope_parameters.rope_theta rope_theta", 10000), rope_scaling = scaling or nil,
    tie_word_embeddings = of("tie_word_embeddings", false), mlp_bias = of("mlp_bias", false),
    attention_bias = sd["model.layers.0.self_attn.q_proj.bias"] ~= nil,
    output_bias = sd["model.layers.0.self_attn.o_proj.bias"] ~= nil,
  }
  local model = is_mapped and moth.fake_mode(Llama, c) or Llama(c)
  local tied = model.lm_head and { ["lm_head.weight"] = "model.embed_tokens.weight" } or nil
  pretrained.load(model, sd, where, { "inv_freq$", not model.lm_head and "^lm_head%." or nil }, tied, is_mapped)
  model:reset_buffers()
  return model:eval()
end

return Llama
