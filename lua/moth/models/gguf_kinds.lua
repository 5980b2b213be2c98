--- What models.Llama is given for each architecture of GGUF files, as llama.cpp computes it: names of weights and what
-- no field of a file says.
local moth = require "moth"
local each = require "moth.each"
local rope = require "moth.models.rope"

local M = {}

-- Names of a layer's weights: GGUF's behind "blk.N.", moth's behind the layer's.
local inside = { attn_norm = "input_layernorm", attn_q = "self_attn.q_proj", attn_k = "self_attn.k_proj",
  attn_v = "self_attn.v_proj", attn_output = "self_attn.o_proj", ffn_norm = "post_attention_layernorm",
  ffn_gate = "mlp.gate_proj", ffn_up = "mlp.up_proj", ffn_down = "mlp.down_proj",
  attn_q_norm = "self_attn.q_norm", attn_k_norm = "self_attn.k_norm", ffn_gate_inp = "mlp.gate",
  ffn_gate_inp_shexp = "mlp.shared_expert_gate", ffn_gate_shexp = "mlp.shared_expert.gate_proj",
  ffn_up_shexp = "mlp.shared_expert.up_proj", ffn_down_shexp = "mlp.shared_expert.down_proj",
  attn_q_a = "self_attn.q_a_proj", attn_q_a_norm = "self_attn.q_a_layernorm", attn_q_b = "self_attn.q_b_proj",
  attn_kv_a_mqa = "self_attn.kv_a_proj_with_mqa", attn_kv_a_norm = "self_attn.kv_a_layernorm",
  attn_kv_b = "self_attn.kv_b_proj" }
local outside = { token_embd = "model.embed_tokens", token_embd_norm = "model.embed_norm", output_norm = "model.norm",
  output = "lm_head" }

local function names(more)
  local t = { layer = "model.layers.%d.", inside = {}, outside = outside }
  for key, name in each(inside) do t.inside[key] = name end
  for key, name in each(more or {}) do t.inside[key] = name or nil end
  return t
end
local plain = names()
local around = names { post_attention_norm = "post_attention_layernorm", ffn_norm = "pre_feedforward_layernorm",
  post_ffw_norm = "post_feedforward_layernorm" }
local second = names { post_attention_norm = "post_attention_layernorm", ffn_norm = false }

-- ---- what rows have in common ----------------------------------------------------------------------------

local function layers_of(c, is_window)
  c.layer_types = {}
  for i = 1, c.num_hidden_layers do
    c.layer_types[i] = is_window(i) and "sliding_attention" or "full_attention"
  end
end

-- Windows in all layers but each `every`-th, or as the file says by layers.
local function windows(every)
  return function(c, of, _, fail)
    if not c.sliding_window then return end
    local pattern = of("attention.sliding_window_pattern", every)
    if type(pattern) == "table" and #pattern < c.num_hidden_layers then
      fail("attention.sliding_window_pattern has %d values, there are %d blocks", #pattern, c.num_hidden_layers)
    end
    layers_of(c, function(i)
      if type(pattern) == "table" then return pattern[i] == true or pattern[i] == 1 end
      return i % pattern ~= 0
    end)
  end
end

-- Rotary positions in layers with a window only, where there is one.
local function turns_in_windows(every)
  return function(c, of, file, fail)
    windows(every)(c, of, file, fail)
    if not c.sliding_window then return end
    c.rope_layers = {}
    for i, kind in ipairs(c.layer_types) do
      if kind == "sliding_attention" then c.rope_layers[#c.rope_layers + 1] = i end
    end
  end
end

-- A gemma: scales of embeddings and scores, and windows in all layers but each `every`-th.
local function gemma(kind, every)
  return function(c, of, file, fail)
    local width = c.hidden_size
    c.hidden_act, c.embedding_scale, c.post_norms = "gelu_tanh", math.sqrt(width), kind ~= "gemma"
    local is_27b = c.num_hidden_layers == (kind == "gemma2" and 46 or 62) and kind ~= "gemma"
    c.attention_scale = (is_27b and width / c.num_attention_heads or c.head_dim) ^ -0.5
    if every then windows(every)(c, of, file, fail) end
    if kind == "gemma3" then c.local_rope_theta = of("rope.freq_base_swa", 10000) end
  end
end

-- Heads with a norm each, where the norms are a matrix.
local function norms_of_heads(c, _, file)
  local norm = file.tensors["blk.0.attn_q_norm.weight"]
  if norm and norm:dim() == 2 then c.qk_norm_over = "each" end
end

-- Keys and values of one small vector; files have it as heads of one key, or, older ones, as the heads that are made.
local function latent(c, of, file, fail)
  local kv_rank, turning = of "attention.kv_lora_rank", of "rope.dimension_count"
  local key = of("attention.key_length_mla", false) or c.head_dim
  local value = of("attention.value_length_mla", false) or of("attention.value_length", c.head_dim)
  of("attention.value_length", 0)
  if key <= turning then fail("attention.key_length (%d) and rope.dimension_count (%d) leave nothing", key, turning) end
  c.latent = { q_rank = of("attention.q_lora_rank", false) or nil, kv_rank = kv_rank, nope = key - turning,
    rope = turning, value = value }
  if not file.tensors["blk.0.attn_q_a.weight"] then c.latent.q_rank = nil end
  c.head_dim, c.num_key_value_heads, c.partial_rotary_factor = turning, c.num_attention_heads, 1
  c.attention_scale, c.attention_bias, c.output_bias = key ^ -0.5, false, false
  local s = c.rope_scaling
  if s and s.rope_type == "yarn" then -- the file has a tenth of it, and not the one that turns, which is as large
    s.mscale_all_dim = (s.mscale_all_dim or 0) * 10
    if s.mscale_all_dim == 0 then
      s.mscale_all_dim = nil
    else
      s.mscale = s.mscale_all_dim
      c.attention_scale = c.attention_scale * rope.mscale(s.factor, s.mscale) ^ 2
    end
  end
end

-- Layer norms, biases where the file has them, and no gate.
local function of_layers(more)
  local own = { norm = "layer", gated = false }
  for key, v in each(more or {}) do own[key] = v end
  return own
end

-- The rows of queries, keys and values that lie in one, and those of gates and what they are for.
local function apart(file, c)
  local tensors, types = file.tensors, file.types
  local heads, width = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
  local size = c.intermediate_size
  for i = 0, c.num_hidden_layers - 1 do
    local at = ("blk.%d."):format(i)
    local function split(name, parts)
      for _, last in ipairs { ".weight", ".bias" } do
        local all, from = tensors[at .. name .. last], 1
        local kind = types[at .. name .. last]
        tensors[at .. name .. last] = nil
        for _, part in ipairs(all and parts or {}) do
          local to = at .. part[1] .. last
          tensors[to], types[to], from = all:narrow(1, from, part[2]), kind, from + part[2]
        end
      end
    end
    local all, up = tensors[at .. "attn_qkv.weight"], tensors[at .. "ffn_up.weight"]
    if all and all:size(1) == heads + 2 * width then
      split("attn_qkv", { { "attn_q", heads }, { "attn_k", width }, { "attn_v", width } })
    end
    if up and up:size(1) == 2 * size then split("ffn_up", { { "ffn_gate", size }, { "ffn_up", size } }) end
  end
end

-- Mixtures of experts: what the fields say; norms: whether shares sum up to 1 where no field says it.
local function experts(c, of, file, norms)
  if of("expert_count", 0) == 0 then return end
  c.num_experts, c.num_experts_per_tok = of "expert_count", of "expert_used_count"
  c.moe_intermediate_size = of("expert_feed_forward_length", false) or c.intermediate_size
  c.norm_topk_prob = of("expert_weights_norm", norms or false)
  local scale = of("expert_weights_scale", 0)
  if scale and scale ~= 0 then c.routed_scale = scale end
  local dense = of("leading_dense_block_count", 0) or 0
  if dense > 0 then
    c.dense_layers = {}
    for i = 1, math.min(dense, c.num_hidden_layers) do c.dense_layers[i] = i end
  end
  local first = ("blk.%d."):format(dense)
  local shared = file.tensors[first .. "ffn_down_shexp.weight"]
  local count = of("expert_shared_count", 0) or 0
  if shared then
    c.shared_expert_size = of("expert_shared_feed_forward_length", false)
      or math.max(count, 1) * c.moe_intermediate_size
    c.shared_expert_gated = file.tensors[first .. "ffn_gate_inp_shexp.weight"] ~= nil
  end
  local by = of("expert_gating_func", 0) or 0
  if by == 0 then by = file.tensors[first .. "exp_probs_b.bias"] and 2 or 1 end
  c.router = ({ "softmax", "sigmoid", "best" })[by]
  local groups = of("expert_group_count", 0) or 0
  local kept = of("expert_group_used_count", groups)
  if groups > 1 then c.expert_groups, c.expert_groups_kept = groups, kept end
  return by
end

-- ---- the rows ------------------------------------------------------------------------------------------------

--- By general.architecture. names: of weights; interleaved: turned coordinates are neighbours; own: options of
-- models.Llama; more: a function (c, of, file, fail) that sets others; norms_shares: of experts, where no field says
-- it; only_read: llama.cpp wants weights in one another, which are not put together here.
M.known = {
  llama = { interleaved = true, norms_shares = true }, qwen2 = {}, qwen3 = {}, phi3 = { only_read = true },
  qwen2moe = { own = { shared_expert_gated = true } }, qwen3moe = { norms_shares = true },
  gemma = { more = gemma "gemma" }, gemma2 = { names = around, more = gemma("gemma2", 2) },
  gemma3 = { names = around, theta = 1e6, more = gemma("gemma3", 6) },
  ["gpt-oss"] = { names = second, norms_shares = true, own = { router = "best", sinks = true, swiglu_limit = 7 },
    more = windows(2) },

  arcee = { interleaved = true, own = { gated = false, hidden_act = "relu2" } },
  bloom = { only_read = true,
    own = of_layers { hidden_act = "gelu_tanh", positions = "alibi", embedding_norm = true } },
  cohere2 = { interleaved = true, more = turns_in_windows(4),
    own = { norm = "layer", parallel = true, single_norm = true } },
  ["command-r"] = { interleaved = true, own = { norm = "layer", parallel = true, single_norm = true },
    more = norms_of_heads },
  deepseek2 = { interleaved = true, more = latent },
  exaone4 = { names = around, own = { pre_norms = false, post_norms = true }, more = turns_in_windows(4) },
  falcon = { only_read = true, own = of_layers { parallel = true, hidden_act = "gelu" },
    more = function(c, _, file) c.single_norm = not file.tensors["blk.0.attn_norm_2.weight"] end },
  glm4 = { only_read = true, names = around, interleaved = true, own = { post_norms = true } },
  glm4moe = { names = second, norms_shares = true },
  gptneox = { only_read = true, own = of_layers { hidden_act = "gelu" },
    more = function(c, of) c.parallel = of("use_parallel_residual", true) == true end },
  granite = { interleaved = true, norms_shares = true },
  nemotron = { own = of_layers { hidden_act = "relu2" } },
  olmo = { interleaved = true, own = { norm = "layer", norm_affine = false } },
  olmo2 = { names = around, own = { pre_norms = false, post_norms = true, qk_norm_over = "all" },
    more = function(c, of, file, fail)
      windows(4)(c, of, file, fail)
      if c.sliding_window and c.rope_scaling then c.local_rope_theta = c.rope_theta end
    end },
  olmoe = { own = { qk_norm_over = "all" } },
  phi2 = { own = of_layers { hidden_act = "gelu_tanh", parallel = true, single_norm = true } },
  seed_oss = { names = second },
  smollm3 = { interleaved = true,
    more = function(c)
      c.rope_layers = {}
      for i = 1, c.num_hidden_layers do
        if i % 4 ~= 0 then c.rope_layers[#c.rope_layers + 1] = i end
      end
    end },
  stablelm = { own = { norm = "layer" },
    more = function(c, of, file)
      norms_of_heads(c, of, file)
      c.parallel = of("use_parallel_residual", false) == true
      c.single_norm = c.parallel
    end },
  starcoder2 = { own = of_layers { hidden_act = "gelu_tanh" } },
}

-- Falcon's names depend on whether the attention has a norm of its own.
local falcon = names { attn_norm_2 = "input_layernorm", attn_norm = "post_attention_layernorm" }
--- The names of weights of a file's architecture.
function M.names(kind, file)
  if kind == "falcon" and file.tensors["blk.0.attn_norm_2.weight"] then return falcon end
  return M.known[kind].names or plain
end

do
  local list = {}
  for kind in each(M.known) do list[#list + 1] = kind end
  table.sort(list)
  M.list = table.concat(list, ", ")
end

--- The options of models.Llama for a file. of(name, default): a field of its architecture; scaling: rope_scaling;
-- fail(…): raises with the file's name.
function M.options(file, of, scaling, fail)
  local tensors, kind = file.tensors, file.metadata["general.architecture"]
  local row = M.known[kind]
  local heads, width = of "attention.head_count", of "embedding_length"
  local head_dim, layers = of("attention.key_length", width / heads), of "block_count"
  layers = layers - (of("nextn_predict_layers", 0) or 0) -- which predict further tokens
  local factors, short, most = tensors["rope_freqs.weight"], tensors["rope_factors_short.weight"],
    of("context_length", 2048)
  local original
  if short then
    local long = scaling and scaling.attention_factor
    original = of("rope.scaling.original_context_length", most)
    scaling = { rope_type = "longrope", short_factor = short:totable(), attention_factor = long,
      original_max_position_embeddings = original }
  end
  local own = row.own or {}
  local is_layer = own.norm == "layer"
  local c = {
    vocab_size = tensors["token_embd.weight"]:size(1), hidden_size = width,
    intermediate_size = of("feed_forward_length", kind == "bloom" and 4 * width or nil), num_hidden_layers = layers,
    num_attention_heads = heads, num_key_value_heads = of("attention.head_count_kv", heads), head_dim = head_dim,
    max_position_embeddings = most, original_max_position_embeddings = original,
    rms_norm_eps = is_layer and of("attention.layer_norm_epsilon", 1e-5)
      or of("attention.layer_norm_rms_epsilon", 1e-5),
    rope_theta = of("rope.freq_base", row.theta or 10000), rope_scaling = scaling,
    rope_factors = factors and factors:totable() or nil, rope_interleaved = row.interleaved or false,
    partial_rotary_factor = of("rope.dimension_count", head_dim) / head_dim,
    tie_word_embeddings = not tensors["output.weight"], sliding_window = of("attention.sliding_window", false) or nil,
    attention_softcap = of("attn_logit_softcapping", false) or nil,
    logits_softcap = of("final_logit_softcapping", false) or nil,
  }
  if kind ~= "deepseek2" then apart(file, c) end
  local function has(name) return tensors[name] ~= nil end
  c.attention_bias, c.output_bias = has "blk.0.attn_q.bias", has "blk.0.attn_output.bias"
  c.qk_norm, c.head_bias = has "blk.0.attn_q_norm.weight", has "output.bias"
  c.mlp_bias = has "blk.0.ffn_down.bias" or has "blk.0.ffn_down_exps.bias"
  if is_layer then c.norm_bias = has "output_norm.bias" end
  for name, v in each(own) do c[name] = v end
  if kind == "granite" then
    c.embedding_scale, c.residual_scale = of("embedding_scale", 1), of("residual_scale", 1)
    c.attention_scale, c.logits_scale = of("attention.scale", false) or nil, 1 / of("logit_scale", 1)
  elseif kind == "command-r" or kind == "cohere2" then
    c.logits_scale = of("logit_scale", 0.0625)
  elseif kind == "olmo" or kind == "olmoe" then
    c.clip_qkv = of("attention.clamp_kqv", false) or nil
  end
  if row.more then row.more(c, of, file, fail) end
  local by = experts(c, of, file, row.norms_shares)
  if by and kind == "gpt-oss" then c.router = "best" end
  if by and not c.router then fail("expert_gating_func = %d is not supported; 1 to 3 are", by) end
  return c
end

-- ---- weights -------------------------------------------------------------------------------------------------

--- Puts a tensor of a file under its name here, own = { name = tensor }, types = { name = kind of blocks }: each of all
-- experts', which lie in one, and what has no name there under its own.
function M.put(t, kind, layer, part, rest, own, types)
  local at = ("model.layers.%d."):format(tonumber(layer))
  local which = part:match "^ffn_(%l+)_exps$"
  local one, e = part:match "^ffn_(%l+)%.(%d+)$" -- as older files have them
  if which then
    for i = 1, t:size(1) do
      local short = ("%smlp.experts.%d.%s_proj.%s"):format(at, i - 1, which, rest)
      own[short], types[short] = t:select(1, i), kind
    end
  elseif one then
    local short = ("%smlp.experts.%d.%s_proj.%s"):format(at, tonumber(e), one, rest)
    own[short], types[short] = t, kind
  elseif part == "attn_sinks" then
    own[at .. "self_attn.sinks"] = t
  elseif part == "exp_probs_b" then
    own[at .. "mlp.gate_bias"] = t
  elseif part == "ffn_gate_inp_shexp" and t:dim() == 1 then
    own[at .. "mlp.shared_expert_gate." .. rest] = t:unsqueeze(1)
  elseif part == "attn_k_b" or part == "attn_v_b" then -- both are one here
    local floats = kind and moth.unpack_blocks(t, kind) or t
    local name = at .. "self_attn.kv_b_proj." .. rest
    local parts = own[name] or {}
    own[name], parts[part] = parts, floats
    local k, v = parts.attn_k_b, parts.attn_v_b
    if k and v then own[name] = moth.cat({ k:transpose(2, 3), v }, 2):reshape(-1, v:size(3)) end
  else
    return false
  end
  return true
end

--- Puts a tensor of a model under a file's name, as put takes them apart; false: it has none here. parts: { name = list
-- of those that lie in one }; kind: of its blocks.
function M.collect(t, kind, name, heads, parts, out)
  local layer, rest = name:match "^model%.layers%.(%d+)%.(.+)$"
  if not layer then return false end
  local at = ("blk.%d."):format(tonumber(layer))
  local e, which, last = rest:match "^mlp%.experts%.(%d+)%.(%l+)_proj%.(%w+)$"
  if e then
    local to = ("%sffn_%s_exps.%s"):format(at, which, last)
    parts[to] = parts[to] or {}
    parts[to][tonumber(e) + 1] = { t, kind }
  elseif rest == "self_attn.sinks" then
    out[at .. "attn_sinks.weight"] = t
  elseif rest == "mlp.gate_bias" then
    out[at .. "exp_probs_b.bias"] = t
  elseif rest == "mlp.shared_expert_gate.weight" then
    out[at .. "ffn_gate_inp_shexp.weight"] = t:select(1, 1)
  elseif rest == "self_attn.kv_b_proj.weight" then
    local floats = kind and moth.unpack_blocks(t, kind) or t
    local all = floats:reshape(heads.count, heads.nope + heads.value, -1)
    out[at .. "attn_k_b.weight"] = all:narrow(2, 1, heads.nope):transpose(2, 3):contiguous()
    out[at .. "attn_v_b.weight"] = all:narrow(2, heads.nope + 1, heads.value):contiguous()
  else
    return false
  end
  return true
end

--- Experts in one, out = { name = tensor }, types = { name = kind of blocks }: floats where their kinds differ.
function M.join(parts, out, types)
  for name, list in each(parts) do
    local kind, tensors = list[1][2], {}
    for _, one in ipairs(list) do
      if one[2] ~= kind then kind = nil end
    end
    for i, one in ipairs(list) do
      tensors[i] = one[2] and not kind and moth.unpack_blocks(one[1], one[2]) or one[1]
    end
    out[name], types[name] = moth.stack(tensors, 1), kind
  end
end

--- Raises where half of what lies in one is missing.
function M.check_parts(own, fail)
  for name, t in each(own) do
    if type(t) == "table" then fail("attn_k_b and attn_v_b of a layer must both be there (%s)", name) end
  end
end

return M
