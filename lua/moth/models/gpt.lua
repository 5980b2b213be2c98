--- moth.models.GPT: a decoder-only language model as GPT-2: learned positions, norms before each part, the head tied
-- to the token embedding.
--
--     local net = moth.models.GPT.from_pretrained "gpt2"          -- a folder with config.json and model.safetensors
--     local tok = moth.data.Tokenizer "gpt2"
--     local ids = moth.tensor({ tok:encode "Hello" }, { dtype = moth.int64 })
--     print(tok:decode(net:generate(ids, 40, { temperature = 0.8, top_k = 50 })[1]))
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local activations = require "moth.models.activations"
local generate = require "moth.models.generate"
local pretrained = require "moth.models.pretrained"
local LayerNorm = nn.LayerNorm

local Attention = nn.class("GPT.Attention")
function Attention:__init(c, i)
  self.dim, self.p = c.n_embd / c.n_head, c.dropout
  self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, { bias = c.bias })
  self.c_proj = nn.Linear(c.n_embd, c.n_embd, { bias = c.bias })
  self.dropout = nn.Dropout(c.dropout)
  if not c.scale_attn_weights or c.scale_attn_by_inverse_layer_idx then
    self.scale = (c.scale_attn_weights and self.dim ^ -0.5 or 1) / (c.scale_attn_by_inverse_layer_idx and i or 1)
  end
end
--- x (B, T, C) -> (B, T, C): each position sees itself and those before it, of layer i those in the cache, too
function Attention:forward(x, at, i)
  local B, T, qkv = x:size(1), x:size(2), self.c_attn(x)
  local heads = qkv:size(3) / (3 * self.dim) -- some of them, if they are cut over ranks
  qkv = qkv:view(B, T, 3, heads, self.dim)
  if at.pages then
    local all = qkv:select(1, 1)
    return self.c_proj(at.pages:attend(i, all:select(2, 1), all:select(2, 2), all:select(2, 3),
      { scale = self.scale }))
  end
  qkv = qkv:permute(3, 1, 4, 2, 5)
  local q, k, v = qkv:select(1, 1), qkv:select(1, 2), qkv:select(1, 3)
  if at.cache then k, v = at.cache:append(i, k, v) end
  local y = moth.scaled_dot_product_attention(q, k, v,
    { dropout_p = self.training and self.p or 0, attn_mask = at.mask, is_causal = at.causal,
      scale = self.scale })
  return self.dropout(self.c_proj(y:transpose(2, 3):reshape(B, T, heads * self.dim)))
end

local Block = nn.class("GPT.Block")
function Block:__init(c, i)
  local norm, inner = { bias = c.bias, eps = c.layer_norm_epsilon }, c.n_inner or 4 * c.n_embd
  self.ln_1 = LayerNorm(c.n_embd, norm)
  self.attn = Attention(c, i)
  self.ln_2 = LayerNorm(c.n_embd, norm)
  self.c_fc = nn.Linear(c.n_embd, inner, { bias = c.bias })
  self.c_proj = nn.Linear(inner, c.n_embd, { bias = c.bias })
  self.dropout, self.act = nn.Dropout(c.dropout), activations.known[c.activation_function]
end
function Block:forward(x, at, i)
  x = x + self.attn(self.ln_1(x), at, i)
  return x + self.dropout(self.c_proj(self.act(self.c_fc(self.ln_2(x)))))
end

local GPT = nn.class("GPT")

--- n_inner: of the MLP (4 n_embd), tie_word_embeddings = false: a head of its own. Scores of attention are divided by
-- the root of a head's size (scale_attn_weights), and by the number of the layer (scale_attn_by_inverse_layer_idx).
GPT.__init = signature.init("models.GPT(*, count vocab_size, size n_layer=12, count n_head=12, count n_embd=768, \z
  count block_size=1024, number dropout=0, bool bias=true, count n_inner?, string activation_function='gelu_tanh', \z
  number layer_norm_epsilon=1e-5, bool tie_word_embeddings=true, bool scale_attn_weights=true, \z
  bool scale_attn_by_inverse_layer_idx=false)", function(self, c)
  if c.n_embd % c.n_head ~= 0 then
    check.fail("[models.GPT] n_embd (%d) must be a multiple of n_head (%d)", c.n_embd, c.n_head)
  end
  activations.of(c.activation_function, "models.GPT", "activation_function")
  self.config, self.max_length = c, c.block_size
  self.wte = nn.Embedding(c.vocab_size, c.n_embd)
  self.wpe = nn.Embedding(c.block_size, c.n_embd)
  self.drop = nn.Dropout(c.dropout)
  local blocks = {}
  for i = 1, c.n_layer do blocks[i] = Block(c, i) end
  self.h = nn.ModuleList(blocks)
  self.ln_f = LayerNorm(c.n_embd, { bias = c.bias, eps = c.layer_norm_epsilon })
  if not c.tie_word_embeddings then self.lm_head = nn.Linear(c.n_embd, c.vocab_size, { bias = false }) end
  self:reset()
end)

--- GPT-2's initialisation: normal with deviation 0.02, projections into the residual 0.02 / sqrt(2 n_layer), biases 0.
function GPT:reset()
  for name, p in self:named_parameters() do
    if name:find("c_proj%.weight$") then
      nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * self.config.n_layer))
    elseif p:dim() > 1 then
      nn.init.normal_(p, 0, 0.02)
    elseif name:find("bias$") then
      nn.init.zeros_(p)
    end
  end
end

-- Logits of hidden states.
local function head(self, x) return self.lm_head and self.lm_head(x) or self.wte:as_linear(x) end

--- The first option that makes it another model than GPT-2 of some size, with its value as text; nil: none.
function GPT:beyond_gpt2()
  for _, option in ipairs { { "activation_function", "gelu_tanh" }, { "layer_norm_epsilon", 1e-5 },
    { "tie_word_embeddings", true }, { "scale_attn_weights", true }, { "scale_attn_by_inverse_layer_idx", false } } do
    local v = self.config[option[1]]
    if v ~= option[2] then return ("%s = %s"):format(option[1], tostring(v)) end
  end
end

--- Keys and values of `length` tokens of each row; kind: what they are held as (left out: the model's dtype).
function GPT:new_cache(rows, length, kind)
  local c = self.config
  return generate.Cache(c.n_layer, rows, c.n_head, length, c.n_embd / c.n_head, self.ln_f.weight, nil, kind)
end

-- Hidden states of tokens behind those in the cache, before the last norm.
local function hidden(self, idx, cache, mask)
  local T, past = idx:size(2), cache and cache.n or 0
  if past + T > self.config.block_size then
    check.fail("[models.GPT] %d tokens are more than block_size, %d", past + T, self.config.block_size)
  end
  local at = { cache = cache }
  at.causal, at.mask = generate.attention_mask(T, past, mask, idx:device())
  local x = self.drop(self.wte(idx) + self.wpe(generate.positions(T, past, mask, idx:device())))
  for i = 1, self.config.n_layer do x = self.h[i](x, at, i) end
  if cache then cache:advance(T) end
  return x
end

--- Logits of tokens behind those in the cache.
-- idx (B, T), ids from 1; cache of new_cache, or nil; mask (B, all tokens), bool: false where padding is; last: of the
-- last token only
function GPT:decode(idx, cache, mask, last)
  local x = hidden(self, idx, cache, mask)
  if last then x = x:narrow(2, idx:size(2), 1) end
  return head(self, self.ln_f(x))
end

--- The last hidden states (B, T, n_embd) of tokens: idx (B, T), ids from 1, mask as decode has it.
function GPT:features(idx, mask) return self.ln_f(hidden(self, idx, nil, mask)) end

--- What llm.PagedCache keeps: the sizes of keys and values, and a tensor of their dtype and device.
function GPT:cache_sizes()
  local c = self.config
  return { layers = c.n_layer, heads = c.n_head, dim = c.n_embd / c.n_head }, self.ln_f.weight
end

--- Logits of some tokens of a step of llm.PagedCache: a row for each of `rows`, a list of positions among its tokens.
function GPT:step(pages, rows)
  local x, at = self.wte(pages.tokens) + self.wpe(pages.positions), { pages = pages }
  for i = 1, self.config.n_layer do x = self.h[i](x, at, i) end
  return head(self, self.ln_f(generate.rows(x, rows)))
end

--- idx (B, T) tokens from 1; targets (B, T) likewise, optional.
-- @return logits (B, T, vocab_size); with targets also the mean cross-entropy
function GPT:forward(idx, targets)
  local logits = self:decode(check.tensor("models.GPT", "idx", idx))
  if targets == nil then return logits end
  check.tensor("models.GPT", "targets", targets)
  local flat = logits:view(-1, self.config.vocab_size)
  return logits, nn.functional.cross_entropy(flat, targets:reshape(-1))
end

generate.install(GPT, "GPT")

-- Fields of config.json that change what is computed, and what they may be.
local fields = { honoured = "vocab_size n_layer n_head n_embd n_positions n_ctx n_inner activation_function \z
    layer_norm_epsilon tie_word_embeddings scale_attn_weights scale_attn_by_inverse_layer_idx",
  inert = "summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj \z
    reorder_and_upcast_attn n_special predict_special_tokens" }
fields.only = {
  model_type = function(v) return v == "gpt2" end,
  add_cross_attention = function(v) return not v end,
}

--- The model of a folder that Hugging Face's save_pretrained wrote (GPT2LMHeadModel or GPT2Model). o: { mapped = true }
-- takes the weights where they lie in the file, as models.load does; ignore_fields: names of fields of config.json that
-- are not known here and may be left out.
function GPT.from_pretrained(folder, o)
  local where = "models.GPT.from_pretrained"
  o = check.options(where, o, "mapped ignore_fields")
  local is_mapped = o.mapped
  local config, sd = pretrained.read(folder, where, is_mapped)
  local function of(names, default) return pretrained.field(config, where, names, default) end
  pretrained.refuse_unknown(config, where, fields, o.ignore_fields)
  local own = {}
  for name, t in each(sd) do
    local short = name:gsub("^transformer%.", ""):gsub("%.mlp%.", ".")
    -- Theirs are (in, out).
    if short:find "%.c_%l+%.weight$" then t = is_mapped and t:t():contiguous() or t:t() end
    own[short] = t
  end
  local c = {
    vocab_size = of "vocab_size", n_layer = of "n_layer", n_head = of "n_head", n_embd = of "n_embd",
    block_size = of "n_positions n_ctx", dropout = of("resid_pdrop", 0.1),
    n_inner = config.n_inner, layer_norm_epsilon = of("layer_norm_epsilon", 1e-5),
    activation_function = activations.of(of("activation_function", "gelu_new"), where,
      "config.json: activation_function"),
    tie_word_embeddings = of("tie_word_embeddings", true), scale_attn_weights = of("scale_attn_weights", true),
    scale_attn_by_inverse_layer_idx = of("scale_attn_by_inverse_layer_idx", false),
  }
  local model = is_mapped and moth.fake_mode(GPT, c) or GPT(c)
  local ignore = { "attn%.bias$", "attn%.masked_bias$", c.tie_word_embeddings and "^lm_head%.weight$" or nil }
  return pretrained.load(model, own, where, ignore, is_mapped):eval()
end

return GPT
