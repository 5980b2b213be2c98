--- models.Llama: a decoder of the Llama family: rotary positions, grouped keys and values, RMS norms, SwiGLU (Touvron
-- et al. 2023), with Hugging Face's names, and what Mistral, Qwen, Phi and Gemma changed of it (families.lua).
--
--     local net = moth.models.Llama.from_pretrained "folder"
--     local tok = moth.data.Tokenizer "folder/tokenizer.json"
--     local ids = moth.tensor({ tok:encode "Once upon a time" }, { dtype = moth.int64 })
--     print(tok:decode(net:generate(ids, 50, { top_p = 0.9 })[1]))
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local activations = require "moth.models.activations"
local generate = require "moth.models.generate"
local pretrained = require "moth.models.pretrained"
local attention = require "moth.models.attention"
local families = require "moth.models.families"
local Latent = require "moth.models.latent"
local rope = require "moth.models.rope"

-- Norms whose weights are kept less 1 (Gemma; with a mean and a bias Nemotron).
local OffsetNorm = nn.class("Llama.OffsetNorm")
function OffsetNorm:__init(n, c)
  self.weight, self.eps = nn.Parameter(moth.zeros(n)), c.rms_norm_eps
  if c.norm == "layer" and c.norm_bias then self.bias = nn.Parameter(moth.zeros(n)) end
  self.centred = c.norm == "layer"
end
function OffsetNorm:forward(x)
  if self.centred then return moth.layer_norm(x, { x:size(-1) }, self.weight + 1, self.bias, self.eps) end
  local w = self.weight:to(moth.float32) + 1
  return moth.rms_norm(x:to(moth.float32), { w:size(1) }, w, self.eps):to(x:dtype())
end

local function norm_of(c, n)
  if c.norm_offset then return OffsetNorm(n, c) end
  if c.norm == "rms" then return nn.RMSNorm(n, { eps = c.rms_norm_eps }) end
  return nn.LayerNorm(n, { eps = c.rms_norm_eps, bias = c.norm_bias, elementwise_affine = c.norm_affine })
end

-- A norm for each head: x (B, heads, T, dim).
local HeadNorms = nn.class("Llama.HeadNorms")
function HeadNorms:__init(c, heads)
  self.weight, self.eps = nn.Parameter(moth.ones(heads, c.head_dim)), c.rms_norm_eps
end
function HeadNorms:forward(x)
  return moth.layer_norm(x, { x:size(-1) }, nil, nil, self.eps) * self.weight:unsqueeze(2)
end

local function is_in(list, i)
  for _, k in ipairs(list) do
    if k == i then return true end
  end
  return false
end

local Attention = nn.class("Llama.Attention")
function Attention:__init(c, i)
  self.heads, self.kv_heads, self.dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
  local bias = { bias = c.attention_bias }
  self.q_proj = nn.Linear(c.hidden_size, self.heads * c.head_dim, bias)
  self.k_proj = nn.Linear(c.hidden_size, self.kv_heads * c.head_dim, bias)
  self.v_proj = nn.Linear(c.hidden_size, self.kv_heads * c.head_dim, bias)
  self.o_proj = nn.Linear(self.heads * c.head_dim, c.hidden_size, { bias = c.attention_bias and c.output_bias })
  if c.qk_norm then
    local function norm(heads)
      if c.qk_norm_over == "each" then return HeadNorms(c, heads) end
      return norm_of(c, c.qk_norm_over == "all" and heads * c.head_dim or c.head_dim)
    end
    self.q_norm, self.k_norm, self.norms_all = norm(self.heads), norm(self.kv_heads), c.qk_norm_over == "all"
  end
  if c.sinks then self.sinks = nn.Parameter(moth.zeros(self.heads)) end
  self.scale, self.cap, self.clip = c.attention_scale, c.attention_softcap, c.clip_qkv
  self.turns = c.positions == "rope" and (not c.rope_layers or is_in(c.rope_layers, i))
  if c.sliding_window and not (c.layer_types and c.layer_types[i] == "full_attention") then
    self.window = c.sliding_window
  end
end
-- The first coordinates of heads, turned; at.rotated: how many.
local function turned(x, at, angles)
  if at.rotated == x:size(4) then return moth.rope(x, angles.cos, angles.sin, at.interleaved) end
  local first = moth.rope(x:narrow(4, 1, at.rotated), angles.cos, angles.sin, at.interleaved)
  return moth.cat({ first, x:narrow(4, at.rotated + 1, x:size(4) - at.rotated) }, 4)
end
-- (B, T, …) -> (B, heads of this rank, T, dim)
local function heads(y, B, T, dim)
  local n = y:size(3) / dim
  if T == 1 then return y:view(B, n, 1, dim) end -- a step: fewer calls
  return y:view(B, T, n, dim):transpose(2, 3)
end
local function tokens_of(y) return y:select(1, 1):transpose(1, 2) end
function Attention:forward(x, at, i)
  local B, T, dim = x:size(1), x:size(2), self.dim
  local q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
  local clip = self.clip
  if self.norms_all then q, k = self.q_norm(q), self.k_norm(k) end
  if clip then q, k, v = q:clamp(-clip, clip), k:clamp(-clip, clip), v:clamp(-clip, clip) end
  q, k, v = heads(q, B, T, dim), heads(k, B, T, dim), heads(v, B, T, dim)
  if self.q_norm and not self.norms_all then q, k = self.q_norm(q), self.k_norm(k) end
  if self.turns then
    local angles = self.window and at.local_angles or at.angles
    q, k = turned(q, at, angles), turned(k, at, angles)
    if at.growth then q = q * at.growth end
  end
  if at.pages then
    return self.o_proj(at.pages:attend(i, tokens_of(q), tokens_of(k), tokens_of(v), self, at.alibi))
  end
  if at.cache then k, v = at.cache:append(i, k, v) end
  local seen = self.window and at.window_mask or at.mask
  local y
  if self.sinks then
    y = attention.sunk(q, k, v, seen, self.scale or dim ^ -0.5, self.sinks, at.causal)
  elseif self.cap then
    if not seen and T > 1 then seen = select(2, attention.window(T, k:size(3), nil, x:device())) end
    y = attention.capped(q, k, v, seen, self.scale or dim ^ -0.5, self.cap)
  else
    y = moth.scaled_dot_product_attention(q, k, v, { attn_mask = seen, is_causal = not seen and at.causal,
      scale = self.scale, enable_gqa = self.heads ~= self.kv_heads })
  end
  if T ~= 1 then y = y:transpose(2, 3) end
  return self.o_proj(y:reshape(B, T, q:size(2) * dim))
end

local MLP = nn.class("Llama.MLP")
function MLP:__init(c, size)
  local bias = { bias = c.mlp_bias }
  size = size or c.intermediate_size
  if c.gated then self.gate_proj = nn.Linear(c.hidden_size, size, bias) end
  self.up_proj = nn.Linear(c.hidden_size, size, bias)
  self.down_proj = nn.Linear(size, c.hidden_size, bias)
  self.act, self.limit, self.alpha = activations.known[c.hidden_act], c.swiglu_limit, c.swiglu_alpha
end
function MLP:forward(x)
  local limit = self.limit
  if limit then -- gpt-oss
    local gate, up = self.gate_proj(x):clamp { max = limit }, self.up_proj(x):clamp(-limit, limit)
    return self.down_proj((up + 1) * (gate * (gate * self.alpha):sigmoid()))
  end
  if not self.gate_proj then return self.down_proj(self.act(self.up_proj(x))) end
  return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
end

-- A few of several MLPs for each token, those that a gate gives the largest shares (Shazeer et al. 2017).
local Experts = nn.class("Llama.Experts")
function Experts:__init(c)
  local size, experts = c.moe_intermediate_size or c.intermediate_size, {}
  self.gate = nn.Linear(c.hidden_size, c.num_experts, { bias = c.router == "best" })
  self.best = c.router == "best" -- shares are of the chosen ones alone
  if c.router == "sigmoid" then self.gate_bias = nn.Parameter(moth.zeros(c.num_experts)) end -- of the choice alone
  for e = 1, c.num_experts do experts[e] = MLP(c, size) end
  self.experts, self.each, self.norms = nn.ModuleList(experts), c.num_experts_per_tok, c.norm_topk_prob
  self.groups, self.groups_kept, self.scale = c.expert_groups, c.expert_groups_kept, c.routed_scale
  if c.shared_expert_size then -- one that all tokens have, too
    self.shared_expert = MLP(c, c.shared_expert_size)
    if c.shared_expert_gated then self.shared_expert_gate = nn.Linear(c.hidden_size, 1, { bias = false }) end
  end
end

-- The shares of the experts that tokens (n, C) get, and which they are: (n, each).
local function routed(self, flat)
  local score, bias = self.gate(flat):to(moth.float32), self.gate_bias
  if self.best then
    local best, chosen = moth.topk(score, self.each, 2)
    return best:softmax(2), chosen
  end
  score = bias and score:sigmoid() or score:softmax(2)
  local choice = bias and score + bias:to(moth.float32) or score
  if self.groups and self.groups_kept < self.groups then -- of the best groups of experts alone
    local n, each = flat:size(1), score:size(2) / self.groups
    local of = choice:reshape(n, self.groups, each)
    of = bias and moth.topk(of, 2, 3):sum(3) or of:amax(3)
    local _, best = moth.topk(of, self.groups_kept, 2)
    local kept = moth.zeros_like(of):scatter(2, best, moth.ones_like(of:narrow(2, 1, self.groups_kept)))
    kept = kept:unsqueeze(3):expand(n, self.groups, each):reshape(n, -1)
    choice = choice:masked_fill(kept:eq(0), bias and -math.huge or 0)
  end
  local share, chosen = moth.topk(choice, self.each, 2)
  if bias then share = score:gather(2, chosen) end
  if self.norms then share = share / (share:sum(2, true) + (bias and 1e-20 or 0)) end
  return self.scale == 1 and share or share * self.scale, chosen
end

function Experts:forward(x)
  local flat = x:reshape(-1, x:size(-1))
  local share, chosen = routed(self, flat)
  share = share:to(x:dtype()):reshape(-1, 1)
  local tokens, places = {}, {} -- by expert: its tokens, and where their shares stand
  for token, list in ipairs(chosen:totable()) do
    for k, e in ipairs(list) do
      tokens[e], places[e] = tokens[e] or {}, places[e] or {}
      tokens[e][#tokens[e] + 1], places[e][#places[e] + 1] = token, (token - 1) * self.each + k
    end
  end
  local o = { dtype = moth.int64, device = x:device() }
  local y = moth.zeros_like(flat)
  for e = 1, #self.experts do
    if tokens[e] then
      local rows = moth.tensor(tokens[e], o)
      local part = self.experts[e](flat:index_select(1, rows)) * share:index_select(1, moth.tensor(places[e], o))
      y = y:index_add(1, rows, part)
    end
  end
  if self.shared_expert then
    local more, gate = self.shared_expert(flat), self.shared_expert_gate
    y = y + (gate and gate(flat):sigmoid() * more or more)
  end
  return y:reshape(x:size())
end

local Layer = nn.class("Llama.DecoderLayer")
function Layer:__init(c, i)
  self.self_attn = c.latent and Latent(c) or Attention(c, i)
  local has_experts = c.num_experts and not (c.dense_layers and is_in(c.dense_layers, i))
  self.mlp = has_experts and Experts(c) or MLP(c)
  local function norm() return norm_of(c, c.hidden_size) end
  if c.pre_norms or not c.post_norms then self.input_layernorm = norm() end
  if not (c.parallel and c.single_norm) then self.post_attention_layernorm = norm() end
  if c.post_norms and c.pre_norms then self.pre_feedforward_layernorm = norm() end
  if c.post_norms then self.post_feedforward_layernorm = norm() end
  self.parallel, self.pre_norms, self.scale = c.parallel, c.pre_norms, c.residual_scale
end
local function scaled(y, scale) return scale == 1 and y or y * scale end
function Layer:forward(x, at, i)
  local scale = self.scale
  if self.parallel then
    local h = self.input_layernorm(x)
    local other = self.post_attention_layernorm and self.post_attention_layernorm(x) or h
    return x + scaled(self.self_attn(h, at, i), scale) + scaled(self.mlp(other), scale)
  end
  local y = self.self_attn(self.pre_norms and self.input_layernorm(x) or x, at, i)
  if self.post_feedforward_layernorm then -- norms behind each part, too (Gemma 2)
    x = x + scaled(self.post_attention_layernorm(y), scale)
    y = self.mlp(self.pre_norms and self.pre_feedforward_layernorm(x) or x)
    return x + scaled(self.post_feedforward_layernorm(y), scale)
  end
  x = x + scaled(y, scale)
  if not self.pre_norms then -- behind the sums
    x = self.input_layernorm(x)
    return self.post_attention_layernorm(x + scaled(self.mlp(x), scale))
  end
  return x + scaled(self.mlp(self.post_attention_layernorm(x)), scale)
end

local Trunk = nn.class("Llama.Model")
function Trunk:__init(c)
  local n = c.embedding_size or c.hidden_size
  self.embed_tokens = nn.Embedding(c.vocab_size, n)
  if c.embedding_norm then self.embed_norm = norm_of(c, n) end
  if c.positions == "learned" then
    self.embed_positions = nn.Embedding(c.max_position_embeddings + c.position_offset, c.hidden_size)
  end
  if n ~= c.hidden_size then
    self.project_in = nn.Linear(n, c.hidden_size, { bias = false })
    self.project_out = nn.Linear(c.hidden_size, n, { bias = false })
  end
  local layers = {}
  for i = 1, c.num_hidden_layers do layers[i] = Layer(c, i) end
  self.layers = nn.ModuleList(layers)
  if c.final_norm then self.norm = norm_of(c, c.hidden_size) end
end

local Llama = nn.class("Llama")

--- rope_interleaved: pairs of rotated coordinates are neighbours, as in GGUF's files, not in the two halves.
-- rope_factors: the frequencies are divided by them. rope_scaling: { rope_type = "linear", factor = … }, or the fields
-- of config.json for llama3, yarn, longrope; partial_rotary_factor: of a head's coordinates. sliding_window: a token
-- sees as many, itself included, where layer_types does not say "full_attention"; local_rope_theta: of such layers.
-- qk_norm: norms of the heads of queries and keys (Qwen 3). Gemma's: norm_offset (weights of norms are kept less 1),
-- post_norms (behind each part, too), embedding_scale, attention_scale, attention_softcap and logits_softcap.
--
-- Others': norm = "layer" (less their mean; norm_bias, norm_affine = false: without weights), gated = false (a plain
-- MLP), parallel (attention and MLP side by side; single_norm: behind one norm), pre_norms = false (no norms before the
-- parts: behind them with post_norms, or else behind the sums), final_norm, qk_norm_over = "all" (of all heads
-- together) or "each" (a norm for each head). positions = "learned" (position_offset: they begin behind that many) or
-- "alibi" (alibi_scale; alibi_rounded: to bfloat16), rope_layers: the only layers with rotary positions. clip_qkv,
-- residual_scale, logits_scale, head_bias, embedding_norm, embedding_size (of tokens; layers bring it to hidden_size).
-- num_experts: MLPs of moe_intermediate_size, num_experts_per_tok of them for a token (norm_topk_prob: their shares
-- sum up to 1), but for dense_layers; query_growth: queries grow with the logarithm of positions (Ministral 3);
-- shared_expert_size: of one that all tokens have, too (shared_expert_gated). router = "sigmoid", with a bias of the
-- choice, expert_groups, of which expert_groups_kept are looked at, routed_scale: DeepSeek's; latent: see latent.lua.
-- router = "best" (shares of the chosen alone), sinks of attention, swiglu_limit and swiglu_alpha: gpt-oss's.
-- head = false: there are features, and no logits.
Llama.__init = signature.init("models.Llama(*, count vocab_size, count hidden_size, count intermediate_size, \z
  count num_hidden_layers, count num_attention_heads, \z
  count num_key_value_heads?, count head_dim?, count max_position_embeddings=2048, number rms_norm_eps=1e-6, \z
  number rope_theta=10000, table rope_scaling?, bool tie_word_embeddings=false, bool attention_bias=false, \z
  bool output_bias=true, bool mlp_bias=false, bool rope_interleaved=false, \z
  number[] rope_factors?, number initializer_range=0.02, string hidden_act='silu', \z
  bool qk_norm=false, number partial_rotary_factor=1, number local_rope_theta?, \z
  count original_max_position_embeddings?, count sliding_window?, string[] layer_types?, bool norm_offset=false, \z
  bool post_norms=false, number embedding_scale=1, number attention_scale?, number attention_softcap?, \z
  number logits_softcap?, 'rms'|'layer' norm='rms', bool norm_bias=true, bool norm_affine=true, bool gated=true, \z
  bool parallel=false, bool single_norm=false, bool pre_norms=true, bool final_norm=true, \z
  'head'|'all'|'each' qk_norm_over='head', 'rope'|'learned'|'alibi' positions='rope', size position_offset=0, \z
  number alibi_scale=1, bool alibi_rounded=false, count[] rope_layers?, number clip_qkv?, number residual_scale=1, \z
  number logits_scale=1, bool head_bias=false, bool embedding_norm=false, count embedding_size?, \z
  count num_experts?, count num_experts_per_tok=2, count moe_intermediate_size?, bool norm_topk_prob=false, \z
  count[] dense_layers?, count shared_expert_size?, number query_growth?, \z
  count query_growth_length=8192, bool head=true, 'softmax'|'sigmoid'|'best' router='softmax', count expert_groups?, \z
  count expert_groups_kept?, number routed_scale=1, bool shared_expert_gated=true, table latent?, \z
  bool sinks=false, number swiglu_limit?, number swiglu_alpha=1.702)", function(self, c)
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
  activations.of(c.hidden_act, "models.Llama")
  if c.num_experts and c.num_experts_per_tok > c.num_experts then
    check.fail("[models.Llama] num_experts_per_tok (%d) is more than num_experts (%d)", c.num_experts_per_tok,
      c.num_experts)
  end
  local groups, kept = c.expert_groups, c.expert_groups_kept
  if groups and c.num_experts % groups ~= 0 then
    check.fail("[models.Llama] num_experts (%d) must be a multiple of expert_groups (%d)", c.num_experts, groups)
  end
  if groups and kept < groups and c.router == "sigmoid" and kept * c.num_experts / groups < c.num_experts_per_tok then
    check.fail("[models.Llama] num_experts_per_tok (%d) is more than the %d groups that are looked at have, of %d each",
      c.num_experts_per_tok, kept, c.num_experts / groups)
  end
  if c.positions == "rope" then rope.check(c) end
  self.config, self.max_length = c, rope.longest(c)
  self.model = Trunk(c)
  if not c.head then
    self.headless = true
  elseif not c.tie_word_embeddings then
    self.lm_head = nn.Linear(c.embedding_size or c.hidden_size, c.vocab_size, { bias = c.head_bias })
  elseif c.head_bias then
    self.head_bias = nn.Parameter(moth.zeros(c.vocab_size))
  end
  self:reset_buffers()
  for _, p in ipairs(self:parameters()) do
    if p:dim() > 1 then nn.init.normal_(p, 0, c.initializer_range) end
  end
end)

--- Makes what is computed, not loaded: the frequencies of rotary positions.
function Llama:reset_buffers()
  local c = self.config
  if c.positions == "alibi" then
    self:register_buffer("slopes", attention.slopes(c.num_attention_heads), { persistent = false })
  end
  if c.positions ~= "rope" then return end
  self:register_buffer("inv_freq", rope.frequencies(c), { persistent = false })
  if c.local_rope_theta then self:register_buffer("local_freq", rope.frequencies(c, true), { persistent = false }) end
end

--- By what rope_scaling divides the frequencies, (head_dim / 2).
function Llama:rope_factors()
  local plain, n = {}, rope.size(self.config)
  for i = 0, n / 2 - 1 do plain[i + 1] = self.config.rope_theta ^ (-2 * i / n) end
  return moth.tensor(plain, { dtype = moth.float32 }) / rope.frequencies(self.config)
end

-- A tensor of the dtype and the device of what is computed.
local function like(self)
  local norm = self.model.norm
  return norm and norm.weight or self.model.embed_tokens.weight
end

-- What is kept of a token: heads and coordinates of keys, and of values; none where a key is a value, too.
local function kept_of(c)
  if c.latent then return { heads = 1, dim = Latent.width(c.latent), value_dim = 0 } end
  return { heads = c.num_key_value_heads, dim = c.head_dim, value_dim = c.head_dim }
end

--- Keys and values of `length` tokens of each row; kind: what they are held as (left out: the model's dtype).
function Llama:new_cache(rows, length, kind)
  local kept = kept_of(self.config)
  return generate.Cache(self.config.num_hidden_layers, rows, kept.heads, length, kept.dim, like(self), kept.value_dim,
    kind)
end

-- Cosines and sines of positions, (T, D / 2) or (B, 1, T, D / 2), of x's dtype.
local function angles(freq, position, factor, dtype)
  local a = position:to(moth.float32):sub(1):unsqueeze(-1) * freq:to(moth.float32)
  if a:dim() == 3 then a = a:unsqueeze(2) end
  local cos, sin = a:cos(), a:sin()
  if factor ~= 1 then cos, sin = cos * factor, sin * factor end
  return { cos = cos:to(dtype), sin = sin:to(dtype) }
end

-- What the layers need of positions.
local function place(self, at, position, dtype)
  local c = self.config
  if c.positions == "alibi" then
    at.alibi = { slopes = self.slopes, scale = c.alibi_scale, rounded = c.alibi_rounded }
  elseif c.positions == "rope" then
    at.interleaved, at.rotated = c.rope_interleaved, rope.size(c)
    at.angles = angles(self.inv_freq, position, rope.attention_factor(c), dtype)
    if c.query_growth then
      local turns = ((position - 1):to(moth.float32) / c.query_growth_length):floor()
      local by = (1 + (turns + 1):log() * c.query_growth):unsqueeze(-1):to(dtype)
      at.growth = by:dim() == 3 and by:unsqueeze(2) or by
    end
    if self.local_freq then at.local_angles = angles(self.local_freq, position, 1, dtype) end
  end
  return at
end

local function embedded(self, ids, position)
  local model, scale = self.model, self.config.embedding_scale
  local x = model.embed_tokens(ids)
  if model.embed_norm then x = model.embed_norm(x) end
  if model.project_in then x = model.project_in(x) end
  if model.embed_positions then x = x + model.embed_positions(position + self.config.position_offset) end
  return scale == 1 and x or x * moth.tensor(scale, { dtype = x:dtype(), device = x:device() })
end

-- Hidden states of tokens behind those in the cache, before the last norm.
local function hidden(self, idx, cache, mask)
  local T, past = idx:size(2), cache and cache.n or 0
  if past + T > self.max_length then
    check.fail("[models.Llama] %d tokens are more than max_position_embeddings, %d", past + T, self.max_length)
  end
  local position, window = generate.positions(T, past, mask, idx:device()), self.config.sliding_window
  local x = embedded(self, idx, position)
  local at = place(self, { cache = cache }, position, x:dtype())
  at.causal, at.mask = generate.attention_mask(T, past, mask, idx:device())
  if at.alibi then
    local _, seen = generate.attention_mask(T, past, mask, idx:device(), past + T)
    at.causal, at.mask = false, attention.biased(at.alibi, generate.positions(past + T, 0, mask, idx:device()), seen,
      x:dtype())
  end
  if window and past + T > window then
    at.window_mask = select(2, generate.attention_mask(T, past, mask, idx:device(), window))
  end
  for i = 1, self.config.num_hidden_layers do x = self.model.layers[i](x, at, i) end
  if cache then cache:advance(T) end
  return x
end

-- What the head sees of hidden states.
local function finished(self, x)
  local model = self.model
  if model.norm then x = model.norm(x) end
  return model.project_out and model.project_out(x) or x
end

--- Logits of tokens behind those in the cache.
-- idx (B, T), ids from 1; cache of new_cache, or nil; mask (B, all tokens), bool: false where padding is; last: of the
-- last token only
function Llama:decode(idx, cache, mask, last)
  local x = hidden(self, idx, cache, mask)
  if last then x = x:narrow(2, idx:size(2), 1) end
  return self:head(x)
end

--- The last hidden states (B, T, hidden_size) of tokens: idx (B, T), ids from 1, mask as decode has it.
function Llama:features(idx, mask) return finished(self, hidden(self, idx, nil, mask)) end

--- Logits of hidden states.
function Llama:head(x)
  local scale, cap = self.config.logits_scale, self.config.logits_softcap
  if self.headless then check.fail "[models.Llama] this model has no head: it gives features, and no logits" end
  x = finished(self, x)
  x = self.lm_head and self.lm_head(x) or self.model.embed_tokens:as_linear(x)
  if self.head_bias then x = x + self.head_bias end
  if scale ~= 1 then x = x * scale end
  return cap and (x / cap):tanh() * cap or x
end

--- What llm.PagedCache keeps: the sizes of keys and values (value_dim: left out, as dim), and a tensor of their dtype
-- and device.
function Llama:cache_sizes()
  local kept = kept_of(self.config)
  kept.layers = self.config.num_hidden_layers
  return kept, like(self)
end

--- Logits of some tokens of a step of llm.PagedCache: a row for each of `rows`, a list of positions among its tokens.
function Llama:step(pages, rows)
  local position = pages.positions:select(1, 1)
  local x = embedded(self, pages.tokens, position)
  local at = place(self, { pages = pages }, position, x:dtype())
  for i = 1, self.config.num_hidden_layers do x = self.model.layers[i](x, at, i) end
  return self:head(generate.rows(x, rows))
end

--- idx (B, T), ids from 1; targets (B, T) likewise, optional.
-- @return logits (B, T, vocab_size); with targets also the mean cross-entropy
function Llama:forward(idx, targets)
  local logits = self:decode(check.tensor("models.Llama", "idx", idx))
  if targets == nil then return logits end
  check.tensor("models.Llama", "targets", targets)
  return logits, nn.functional.cross_entropy(logits:view(-1, self.config.vocab_size), targets:reshape(-1))
end

generate.install(Llama, "Llama")

--- The model of a folder that Hugging Face's save_pretrained wrote (families.lua says of which families). o: { mapped =
-- true } takes the weights where they lie in the file, as models.load does; ignore_fields: names of fields of
-- config.json that are not known here and may be left out.
function Llama.from_pretrained(folder, o)
  local where = "models.Llama.from_pretrained"
  o = check.options(where, o, "mapped ignore_fields")
  local is_mapped = o.mapped
  local config, sd, types = pretrained.read(folder, where, is_mapped)
  local c, spare
  c, sd, spare = families.read(config, sd, where, o.ignore_fields, types)
  local model = is_mapped and moth.fake_mode(Llama, c) or Llama(c)
  pretrained.keep_blocks(model, sd, types)
  spare = { "inv_freq$", model.lm_head and "inv_freq$" or "^lm_head%.weight$", unpack(spare) }
  pretrained.load(model, sd, where, spare, is_mapped)
  model:reset_buffers()
  return model:eval()
end

return Llama
