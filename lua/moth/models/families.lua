--- What models.Llama is given for a config.json of Hugging Face: a row for each family, with what it does that its
-- config does not say; and its weights by the names that models.Llama has.
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"
local activations = require "moth.models.activations"
local pretrained = require "moth.models.pretrained"
local rope = require "moth.models.rope"

local M = {}

local function fail(where, ...) check.fail("[%s] config.json: %s", where, (...):format(select(2, ...))) end
-- Raises where a list has not one value for each layer.
local function one_each(name, list, layers, where)
  if type(list) ~= "table" or #list ~= layers then
    fail(where, "%s must be a list of %d values, one for each layer, got %s", name, layers,
      type(list) == "table" and #list or tostring(list))
  end
end

local function is_false(v) return v == false end
local function is_true(v) return v == true end
local function with(t, more)
  local out = {}
  for key, v in each(t) do out[key] = v end
  for key, v in each(more) do out[key] = v end
  return out
end
-- Patterns of names and what they become, in order: pairs of words.
local function rules(text)
  local out = {}
  for from, to in text:gmatch "(%S+) (%S+)" do out[#out + 1] = { from, to == "-" and "" or to } end
  return out
end
local function biases(c, flag) c.attention_bias, c.output_bias, c.mlp_bias = flag, flag, flag end

local gemma = { hidden_act = "gelu_tanh", tied = true, scaled_embedding = true, head_dim = 256,
  own = { norm_offset = true } }
local gemma2 = with(gemma, { window = true, full_every = 2, own = { norm_offset = true, post_norms = true } })
local layer_norms = { rms_norm_eps = "layer_norm_eps" }
-- A plain MLP behind norms with a mean.
local plain = { norm = "layer", gated = false }
local glm = { partial = 0.5, head_dim = 128, eps = 1.5625e-7, fused = "rows", plain_output = true,
  own = { rope_interleaved = true } }
local cohere = { alias = layer_norms, eps = 1e-5, tied = true, honoured = "logit_scale use_qk_norm",
  inert = "model_max_length",
  own = { norm = "layer", norm_bias = false, rope_interleaved = true, parallel = true, single_norm = true },
  more = function(c, config)
    c.logits_scale, c.qk_norm, c.qk_norm_over = config.logit_scale or 0.0625, config.use_qk_norm or false, "each"
  end }
local olmo2 = { eps = 1e-5, own = { pre_norms = false, post_norms = true, qk_norm = true, qk_norm_over = "all" } }

-- Rotary positions in layers with a window only, where there is one.
local function turns_in_windows(c)
  if not c.sliding_window then return end
  c.rope_layers = {}
  for i = 1, c.num_hidden_layers do
    if not c.layer_types or c.layer_types[i] ~= "full_attention" then c.rope_layers[#c.rope_layers + 1] = i end
  end
end

-- SmolLM 3: 1 where a layer has rotary positions.
local function turns(config, i)
  local list = config.no_rope_layers
  if list then return list[i] ~= 0 end
  return i % (config.no_rope_layer_interval or 4) ~= 0
end

-- Qwen's mixtures of experts, and OLMoE's: the sizes, and the layers that have none.
local function experts(c, config, where)
  c.num_experts = config.num_experts or fail(where, "there is no num_experts")
  c.num_experts_per_tok = config.num_experts_per_tok or 8
  c.norm_topk_prob, c.moe_intermediate_size = config.norm_topk_prob or false, config.moe_intermediate_size
  c.dense_layers = {}
  local dense = {}
  for _, i in ipairs(config.mlp_only_layers or {}) do dense[i + 1] = true end
  for i = 1, c.num_hidden_layers do
    if dense[i] or i % (config.decoder_sparse_step or 1) ~= 0 then c.dense_layers[#c.dense_layers + 1] = i end
  end
end
local moe = { alias = { num_experts = "num_local_experts" }, inert = "router_aux_loss_coef",
  honoured = "num_experts num_experts_per_tok norm_topk_prob moe_intermediate_size mlp_only_layers decoder_sparse_step",
  only = { output_router_logits = is_false }, more = experts }

-- DeepSeek's mixtures, and GLM-4's: groups of experts, one for all tokens, the first layers without.
local function grouped(c, config, where)
  local function of(names, default) return pretrained.field(config, where, names, default) end
  c.num_experts, c.num_experts_per_tok = of "n_routed_experts num_local_experts", of("num_experts_per_tok", 8)
  c.moe_intermediate_size, c.routed_scale = of "moe_intermediate_size", of("routed_scaling_factor", 1)
  c.expert_groups, c.expert_groups_kept = config.n_group, config.topk_group or config.n_group
  local shared = of("n_shared_experts", 0)
  c.shared_expert_size, c.shared_expert_gated = shared > 0 and shared * c.moe_intermediate_size or nil, false
  c.dense_layers = {}
  for i = 1, math.min(of("first_k_dense_replace", 0), c.num_hidden_layers) do c.dense_layers[i] = i end
end
local many = { eps = 1e-6, names = rules [[%.shared_experts%. .shared_expert.
    %.gate%.e_score_correction_bias$ .gate_bias]],
  honoured = "n_routed_experts num_local_experts num_experts num_experts_per_tok moe_intermediate_size n_group \z
    topk_group n_shared_experts first_k_dense_replace routed_scaling_factor norm_topk_prob",
  inert = "num_nextn_predict_layers num_mtp_layers ep_size aux_loss_alpha seq_aux router_aux_loss_coef",
  only = { output_router_logits = is_false, moe_layer_freq = function(v) return v == 1 end } }

-- Keys and values of one small vector; the scores of yarn are larger.
local function latent(c, config, where)
  local function of(name) return pretrained.field(config, where, name) end
  c.latent = { q_rank = config.q_lora_rank, kv_rank = of "kv_lora_rank", nope = of "qk_nope_head_dim",
    rope = of "qk_rope_head_dim", value = of "v_head_dim" }
  c.head_dim, c.num_key_value_heads = c.latent.rope, c.num_attention_heads
  biases(c, config.attention_bias == true)
  c.mlp_bias = config.mlp_bias == true
  c.attention_scale = (c.latent.nope + c.latent.rope) ^ -0.5
  local s = c.rope_scaling
  if s and (s.mscale_all_dim or 0) ~= 0 then
    c.attention_scale = c.attention_scale * rope.mscale(s.factor, s.mscale_all_dim) ^ 2
  end
  grouped(c, config, where)
end
local latents = " q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim qk_head_dim"

--- By model_type. alias: what models.Llama's fields are called in the config. own: options of models.Llama, more: a
-- function that sets others. names: rules of names, fused: how queries, keys and values lie in one weight: "rows" one
-- behind the other, "groups" by the heads of keys. honoured, inert, only: see pretrained.refuse_unknown. spare:
-- patterns of weights that may be left. bare: checkpoints whose names lack a prefix. The rest are defaults and, for
-- layers, windows.
M.known = {
  llama = {}, mistral = { window = true }, qwen2 = { bias = true }, qwen3 = { own = { qk_norm = true } },
  phi3 = { window = true, eps = 1e-5, fused = "rows", partial = 1 },
  gemma = gemma, gemma2 = gemma2,
  gemma3_text = with(gemma2, { full_every = 6, own = { norm_offset = true, post_norms = true, qk_norm = true },
    more = function(c) c.attention_softcap = nil end }), -- which transformers leaves alone, too

  arcee = { act = "relu2", eps = 1e-5, own = { gated = false } },
  bloom = { alias = { num_hidden_layers = "n_layer", num_attention_heads = "n_head", hidden_size = "n_embed",
      rms_norm_eps = "layer_norm_epsilon" },
    eps = 1e-5, tied = true, wide = 4, fused = "groups", most = 2 ^ 20,
    inert = "seq_length n_inner offset_alibi skip_bias_add skip_bias_add_qkv masked_softmax_fusion \z
      slow_but_exact attention_softmax_in_fp32 bias_dropout_fusion",
    only = { apply_residual_connection_post_layernorm = is_false },
    own = with(plain, { hidden_act = "gelu_tanh", positions = "alibi", embedding_norm = true }),
    more = function(c) biases(c, true) end, bare = { has = "^transformer%.", prefix = "transformer." },
    names = rules [[^transformer%.h%. model.layers. ^transformer%.ln_f%. model.norm.
      ^transformer%.word_embeddings%. model.embed_tokens. ^transformer%.word_embeddings_layernorm%. model.embed_norm.
      %.self_attention%.dense%. .self_attn.o_proj. %.self_attention%. .self_attn. %.dense_h_to_4h%. .up_proj.
      %.dense_4h_to_h%. .down_proj.]] },
  cohere = with(cohere, { theta = 500000 }),
  cohere2 = with(cohere, { window = true, full_every = 4, honoured = "logit_scale",
    inert = "layer_switch order_of_interleaved_layers rotary_pct use_embedding_sharing use_parallel_embedding",
    only = { use_qk_norm = is_false, use_gated_activation = is_true, use_parallel_block = is_true,
      position_embedding_type = function(v) return v == "rope_gptj" end },
    more = function(c, config)
      c.logits_scale = config.logit_scale or 0.0625
      turns_in_windows(c)
    end }),
  deepseek_v2 = with(many, { honoured = many.honoured .. latents,
    own = { rope_interleaved = true },
    only = with(many.only, { norm_topk_prob = is_false, scoring_func = function(v) return v == "softmax" end,
      topk_method = function(v) return v == "greedy" or v == "group_limited_greedy" end }),
    more = function(c, config, where)
      latent(c, config, where)
      if config.topk_method ~= "group_limited_greedy" then c.expert_groups = nil end
    end }),
  deepseek_v3 = with(many, { honoured = many.honoured .. latents .. " rope_interleave",
    only = with(many.only, { scoring_func = function(v) return v == "sigmoid" end,
      topk_method = function(v) return v == "noaux_tc" end }),
    more = function(c, config, where)
      latent(c, config, where)
      if config.head_dim and config.head_dim ~= c.latent.rope then
        fail(where, "head_dim = %s is not supported; expected that of qk_rope_head_dim, %d", config.head_dim,
          c.latent.rope)
      end
      c.router, c.norm_topk_prob = "sigmoid", config.norm_topk_prob ~= false
      c.rope_interleaved = config.rope_interleave ~= false
    end }),
  exaone4 = { window = true, full_every = 4, eps = 1e-5, more = turns_in_windows,
    own = { pre_norms = false, post_norms = true, qk_norm = true } },
  falcon = { alias = { intermediate_size = "ffn_hidden_size", hidden_act = "activation", rms_norm_eps =
      "layer_norm_epsilon" },
    act = "gelu", eps = 1e-5, tied = true, wide = 4, fused = "groups", inert = "n_embed n_layer n_head",
    honoured = "num_kv_heads alibi new_decoder_architecture multi_query parallel_attn bias num_ln_in_parallel_attn",
    own = plain,
    only = { apply_residual_connection_post_layernorm = is_false },
    more = function(c, config, where)
      local new = config.new_decoder_architecture
      local norms = config.num_ln_in_parallel_attn or new and 2 or 1
      c.num_key_value_heads = new and (config.num_kv_heads or c.num_attention_heads)
        or config.multi_query ~= false and 1 or c.num_attention_heads
      c.parallel, c.single_norm = config.parallel_attn ~= false, norms == 1
      if new and not c.parallel or norms ~= 1 and (not new or norms ~= 2) then
        fail(where, "parallel_attn = %s with new_decoder_architecture = %s and num_ln_in_parallel_attn = %d is not \z
          supported", tostring(c.parallel), tostring(new), norms)
      end
      biases(c, config.bias == true)
      if config.alibi then
        c.positions, c.alibi_scale, c.alibi_rounded = "alibi", c.head_dim ^ -0.5, true
      end
    end,
    names = rules [[^transformer%.h%. model.layers. ^transformer%.ln_f%. model.norm.
      ^transformer%.word_embeddings%. model.embed_tokens. %.self_attention%.dense%. .self_attn.o_proj.
      %.self_attention%. .self_attn. %.dense_h_to_4h%. .up_proj. %.dense_4h_to_h%. .down_proj.
      %.ln_attn%. .input_layernorm. %.ln_mlp%. .post_attention_layernorm.]] },
  glm = glm,
  glm4 = with(glm, { own = { rope_interleaved = true, post_norms = true },
    names = rules [[%.post_attention_layernorm%. .pre_feedforward_layernorm.
      %.post_self_attn_layernorm%. .post_attention_layernorm.
      %.post_mlp_layernorm%. .post_feedforward_layernorm.]] }),
  glm4_moe = with(many, { eps = 1e-5, partial = 0.5, plain_output = true, honoured = many.honoured .. " use_qk_norm",
    more = function(c, config, where)
      grouped(c, config, where)
      c.qk_norm, c.output_bias = config.use_qk_norm == true, false
      c.router, c.norm_topk_prob = "sigmoid", config.norm_topk_prob ~= false
    end }),
  gpt_neox = { alias = { rms_norm_eps = "layer_norm_eps", rope_theta = "rotary_emb_base",
      partial_rotary_factor = "rotary_pct" },
    act = "gelu", eps = 1e-5, partial = 0.25, fused = "groups", honoured = "use_parallel_residual", own = plain,
    more = function(c, config)
      biases(c, config.attention_bias ~= false)
      c.mlp_bias, c.parallel = true, config.use_parallel_residual ~= false
    end,
    spare = { "self_attn%.bias$", "self_attn%.masked_bias$" },
    names = rules [[^gpt_neox%. model. ^model%.embed_in%. model.embed_tokens. ^model%.final_layer_norm%. model.norm.
      ^embed_out%. lm_head. %.attention%.dense%. .self_attn.o_proj. %.attention%. .self_attn.
      %.dense_h_to_4h%. .up_proj. %.dense_4h_to_h%. .down_proj.]] },
  gpt_oss = { window = true, full_every = 2, eps = 1e-5, head_dim = 64, theta = 150000,
    names = rules [[%.mlp%.router%. .mlp.gate.]], alias = { num_experts = "num_local_experts",
      num_experts_per_tok = "experts_per_token" },
    honoured = "num_experts num_experts_per_tok swiglu_limit swiglu_alpha",
    inert = "router_aux_loss_coef initial_context_length", only = { output_router_logits = is_false },
    own = { sinks = true, router = "best" },
    more = function(c, config, where)
      c.num_experts = pretrained.field(config, where, "num_experts")
      c.num_experts_per_tok = config.num_experts_per_tok or 4
      c.swiglu_limit, c.swiglu_alpha = config.swiglu_limit or 7, config.swiglu_alpha or 1.702
      biases(c, config.attention_bias ~= false)
      c.mlp_bias = true
    end },
  gptj = { alias = { hidden_size = "n_embd", num_hidden_layers = "n_layer", num_attention_heads = "n_head",
      intermediate_size = "n_inner", max_position_embeddings = "n_positions", hidden_act = "activation_function",
      rms_norm_eps = "layer_norm_epsilon" },
    act = "gelu_tanh", eps = 1e-5, wide = 4, honoured = "rotary_dim",
    inert = "n_ctx rotary scale_attn_weights summary_activation summary_first_dropout summary_proj_to_labels \z
      summary_type summary_use_proj", own = with(plain, { parallel = true, single_norm = true, mlp_bias = true,
      rope_interleaved = true }),
    more = function(c, config, where)
      if not config.rotary_dim then fail(where, "there is no rotary_dim") end
      c.partial_rotary_factor = (config.rotary_dim + 0.25) / c.head_dim -- so that no rounding takes one away
      c.head_bias = true
    end,
    spare = { "self_attn%.bias$", "self_attn%.masked_bias$" },
    names = rules [[^transformer%.h%. model.layers. ^transformer%.ln_f%. model.norm.
      ^transformer%.wte%. model.embed_tokens. %.ln_1%. .input_layernorm. %.attn%.out_proj%. .self_attn.o_proj.
      %.attn%. .self_attn. %.fc_in%. .up_proj. %.fc_out%. .down_proj.]] },
  granite = { honoured = "embedding_multiplier residual_multiplier attention_multiplier logits_scaling",
    more = function(c, config)
      c.embedding_scale, c.residual_scale = config.embedding_multiplier, config.residual_multiplier
      c.attention_scale, c.logits_scale = config.attention_multiplier or 1, 1 / (config.logits_scaling or 1)
    end },
  helium = { theta = 100000, eps = 1e-8, head_dim = 128, plain_output = true, own = { rope_interleaved = true } },
  ministral = { window = true },
  ministral3 = { window = true, eps = 1e-5, head_dim = 128, theta = 1000000,
    more = function(c)
      local s = c.rope_scaling
      if not (s and s.llama_4_scaling_beta) then return end
      c.query_growth, c.query_growth_length = s.llama_4_scaling_beta, s.original_max_position_embeddings
      c.rope_scaling = with(s, {})
      c.rope_scaling.llama_4_scaling_beta = nil
      c.rope_scaling.max_position_embeddings = nil
    end },
  mixtral = { window = true, eps = 1e-5, theta = 1000000, inert = "router_aux_loss_coef",
    alias = { num_experts = "num_local_experts" }, honoured = "num_experts num_experts_per_tok",
    only = { output_router_logits = is_false, router_jitter_noise = function(v) return v == 0 end },
    own = { norm_topk_prob = true },
    more = function(c, config)
      c.num_experts, c.num_experts_per_tok = config.num_experts or 8, config.num_experts_per_tok or 2
    end,
    names = rules [[%.block_sparse_moe%. .mlp. %.w1%. .gate_proj. %.w2%. .down_proj. %.w3%. .up_proj.]] },
  nemotron = { alias = { rms_norm_eps = "norm_eps" }, act = "relu2", eps = 1e-5, partial = 0.5,
    own = with(plain, { norm_offset = true }) },
  olmo = { own = { norm = "layer", norm_affine = false, rms_norm_eps = 1e-5 }, honoured = "clip_qkv",
    more = function(c, config) c.clip_qkv = config.clip_qkv end },
  olmo2 = olmo2, olmo3 = with(olmo2, { theta = 500000, window = true, full_every = 4 }),
  olmoe = with(moe, { eps = 1e-5, own = { qk_norm = true, qk_norm_over = "all" },
    honoured = "num_experts num_experts_per_tok norm_topk_prob clip_qkv",
    more = function(c, config, where)
      experts(c, config, where)
      c.clip_qkv = config.clip_qkv
    end }),
  opt = { alias = { intermediate_size = "ffn_dim", hidden_act = "activation_function" }, act = "relu", tied = true,
    honoured = "do_layer_norm_before _remove_final_layer_norm word_embed_proj_dim enable_bias \z
      layer_norm_elementwise_affine",
    inert = "dropout layerdrop activation_dropout",
    own = with(plain, { rms_norm_eps = 1e-5, positions = "learned", position_offset = 2 }),
    more = function(c, config)
      biases(c, config.enable_bias ~= false)
      c.embedding_size, c.norm_affine = config.word_embed_proj_dim, config.layer_norm_elementwise_affine ~= false
      c.pre_norms = config.do_layer_norm_before ~= false
      c.final_norm = c.pre_norms and not config._remove_final_layer_norm
    end,
    names = rules [[^model%.decoder%. model. ^decoder%. model. ^model%.final_layer_norm%. model.norm.
      %.self_attn_layer_norm%. .input_layernorm. %.final_layer_norm%. .post_attention_layernorm.
      %.out_proj%. .o_proj. %.fc1%. .mlp.up_proj. %.fc2%. .mlp.down_proj.]] },
  phi = { alias = layer_norms, act = "gelu_tanh", eps = 1e-5, partial = 0.5, honoured = "qk_layernorm",
    own = with(plain, { parallel = true, single_norm = true }),
    more = function(c, config)
      biases(c, true)
      c.qk_norm, c.head_bias = config.qk_layernorm or false, true
    end,
    names = rules [[^model%.final_layernorm%. model.norm. %.self_attn%.dense%. .self_attn.o_proj.
      %.q_layernorm%. .q_norm. %.k_layernorm%. .k_norm. %.fc1%. .up_proj. %.fc2%. .down_proj.]] },
  qwen2_moe = with(moe, { honoured = moe.honoured .. " qkv_bias shared_expert_intermediate_size",
    more = function(c, config, where)
      experts(c, config, where)
      c.attention_bias, c.output_bias = config.qkv_bias ~= false, false
      c.shared_expert_size = pretrained.field(config, where, "shared_expert_intermediate_size")
    end }),
  qwen3_moe = with(moe, { own = { qk_norm = true }, types = function() return "sliding_attention" end }),
  seed_oss = { head_dim = 128, honoured = "attention_out_bias", inert = "residual_dropout",
    more = function(c, config)
      c.attention_bias, c.output_bias = config.attention_bias ~= false, config.attention_out_bias == true
    end },
  smollm3 = { tied = true, theta = 2000000, honoured = "no_rope_layers no_rope_layer_interval",
    types = function(config, i) return turns(config, i) and "full_attention" or "sliding_attention" end,
    more = function(c, config, where)
      if config.no_rope_layers then one_each("no_rope_layers", config.no_rope_layers, c.num_hidden_layers, where) end
      c.rope_layers = {}
      for i = 1, c.num_hidden_layers do
        if turns(config, i) then c.rope_layers[#c.rope_layers + 1] = i end
      end
    end },
  stablelm = { alias = layer_norms, eps = 1e-5, partial = 0.25,
    honoured = "use_qkv_bias qk_layernorm use_parallel_residual", own = { norm = "layer" },
    more = function(c, config)
      c.attention_bias, c.output_bias = config.use_qkv_bias or false, false
      c.qk_norm, c.qk_norm_over = config.qk_layernorm or false, "each"
      c.parallel = config.use_parallel_residual or false
      c.single_norm = c.parallel
    end },
  starcoder2 = { alias = { rms_norm_eps = "norm_epsilon" }, act = "gelu_tanh", eps = 1e-5, tied = true, window = true,
    honoured = "use_bias", inert = "residual_dropout embedding_dropout activation_function",
    only = { norm_type = function(v) return v == "layer_norm" end, mlp_type = function(v) return v == "default" end },
    own = plain,
    more = function(c, config) biases(c, config.use_bias ~= false) end,
    names = rules [[%.c_fc%. .up_proj. %.c_proj%. .down_proj.]] },
}

do
  local names = {}
  for name in each(M.known) do names[#names + 1] = name end
  table.sort(names)
  M.names = table.concat(names, ", ", 1, #names - 1) .. " and " .. names[#names]
end

-- The fields of config.json that `read` computes with.
local fields = { honoured = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads \z
  num_key_value_heads head_dim max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters \z
  partial_rotary_factor rope_local_base_freq tie_word_embeddings mlp_bias attention_bias hidden_act \z
  hidden_activation sliding_window use_sliding_window layer_types sliding_window_pattern _sliding_window_pattern \z
  max_window_layers original_max_position_embeddings query_pre_attn_scalar attn_logit_softcapping \z
  final_logit_softcapping", inert = "is_llama_config transformers.js_config max_sequence_length",
  only = { use_mrope = is_false, lm_head_bias = is_false,
    rope_interleaved = is_false, full_attn_mod = function(v) return v == 1 end,
    interpolate_factor = function(v) return v == 1 end } }

local function act_of(config, family, where)
  local name = config.hidden_activation or config.hidden_act or family.act or "silu"
  -- Gemma's hidden_act says "gelu" and means this.
  if family.hidden_act and not config.hidden_activation and (name == "gelu" or not config.hidden_act) then
    return family.hidden_act
  end
  return activations.of(name, where, "config.json: hidden_act")
end

-- sliding_window and, where layers differ, layer_types.
local function windows_of(config, family, layers, where)
  local window = config.sliding_window
  if not window or config.use_sliding_window == false then return nil end
  if not family.window and config.use_sliding_window == nil then return nil end
  local types = config.layer_types
  if not types and family.types then
    types = {}
    for i = 1, layers do types[i] = family.types(config, i) end
  elseif not types and family.full_every then
    local every = config.sliding_window_pattern or config._sliding_window_pattern or family.full_every
    if type(every) ~= "number" or every < 1 then
      fail(where, "sliding_window_pattern = %s is not supported without layer_types", tostring(every))
    end
    types = {}
    for i = 1, layers do types[i] = i % every == 0 and "full_attention" or "sliding_attention" end
  elseif not types and config.use_sliding_window then
    types = {}
    for i = 1, layers do
      types[i] = i > (config.max_window_layers or 0) and "sliding_attention" or "full_attention"
    end
  end
  if types then one_each("layer_types", types, layers, where) end
  for _, kind in ipairs(types or {}) do
    if kind ~= "full_attention" and kind ~= "sliding_attention" then
      fail(where, "layers of type '%s' are not supported", tostring(kind))
    end
  end
  return window, types
end

-- theta, theta of layers with a window, scaling, rotated part
local function rope_of(config, family, of, original, where)
  local p = config.rope_parameters or config.rope_scaling or {}
  if type(p) ~= "table" then fail(where, "rope_scaling must be an object, got %s", tostring(p)) end
  local theta, near = of("rope_parameters.rope_theta rope_theta", family.theta or 10000), config.rope_local_base_freq
  if type(p.full_attention) == "table" then -- one for each type of layers
    local other = p.sliding_attention or {}
    near = other.rope_theta or near
    if (other.rope_type or "default") ~= "default" then
      fail(where, "rope_parameters of layers with a window of rope_type = %s are not supported", tostring(
        other.rope_type))
    end
    p = p.full_attention
    theta = p.rope_theta or theta
  end
  local scaling
  local kind = p.rope_type or p.type
  if kind and kind ~= "default" then
    scaling = {}
    for key, v in each(p) do scaling[key] = v end
    scaling.rope_type = kind == "su" and "longrope" or kind
    scaling.original_max_position_embeddings = p.original_max_position_embeddings or original
  end
  local part = p.partial_rotary_factor or config.partial_rotary_factor or family.partial or 1
  if family.partial or part == 1 then return theta, near, scaling, part end
  -- Other families leave the field alone where nothing is scaled, as in transformers.
  if scaling then
    fail(where, "partial_rotary_factor = %g with rope_type = %s is not supported", part, scaling.rope_type)
  end
  return theta, near, scaling, 1
end

-- Weights with models.Llama's names.
local function renamed(sd, family)
  local out, bare = {}, family.bare or sd["embed_tokens.weight"] and { has = "^model%.", prefix = "model." }
  if not family.names and not bare then return sd end
  for name in each(sd) do
    if bare and name:find(bare.has) then bare = nil end
  end
  for name, t in each(sd) do
    if bare then name = bare.prefix .. name end
    for _, rule in ipairs(family.names or {}) do name = name:gsub(rule[1], rule[2]) end
    out[name] = t
  end
  return out
end

-- gpt-oss: a weight or a bias of all experts, in floats the other way round, as those of each; gates and what they are
-- for by turns.
local function split_experts(out, types, name, inner, what, t)
  local last, block = what:find "_bias$" and ".bias" or ".weight", types[name]
  types[name] = nil
  local function put(key, x) out[key .. last], types[key .. last] = x:contiguous(), block end
  for e = 1, t:size(1) do
    local one, own = t:select(1, e), inner .. e - 1 .. "."
    if last == ".weight" and not block then one = one:t() end
    if what:find "^gate_up" then
      local n = one:size(1) / 2
      local both = one:reshape { n, 2, one:dim() > 1 and one:size(2) or 1 }
      local shape = one:dim() > 1 and { n, one:size(2) } or { n }
      for i, to in ipairs { "gate_proj", "up_proj" } do put(own .. to, both:select(2, i):reshape(shape)) end
    else
      put(own .. "down_proj", one)
    end
  end
end

-- Weights that lie in one, apart: views of it, where they are one behind the other. StableLM's norms of heads become
-- one.
local function apart(sd, family, c, types)
  local out, norms = {}, {}
  local heads, groups, dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
  local q, k, size = heads * dim, groups * dim, c.intermediate_size
  local function put(before, kind, names, parts)
    for i, name in ipairs(names) do out[before .. name .. "." .. kind] = parts[i] end
  end
  for name, t in each(sd) do
    local before, fused, kind = name:match "^(.*%.)([%l_]+)%.(%l+)$"
    local inner, what = name:match "^(.*%.experts%.)([%l_]+_proj[_%l]*)$" -- of all experts, the other way round
    local norm, at = name:match "^(.*%.[qk]_)layernorm%.norms%.(%d+)%.weight$"
    if inner then
      split_experts(out, types, name, inner, what, t)
    elseif norm then
      norms[norm] = norms[norm] or {}
      norms[norm][tonumber(at) + 1] = t
    elseif fused == "qkv_proj" and family.fused == "rows" then
      put(before, kind, { "q_proj", "k_proj", "v_proj" },
        { t:narrow(1, 1, q), t:narrow(1, q + 1, k), t:narrow(1, q + k + 1, k) })
    elseif fused == "gate_up_proj" and family.fused == "rows" then
      put(before, kind, { "gate_proj", "up_proj" }, { t:narrow(1, 1, size), t:narrow(1, size + 1, size) })
    elseif fused == "query_key_value" and family.fused == "groups" then
      local each_of = heads / groups
      local rest = kind == "weight" and { c.hidden_size } or {}
      local all = t:reshape { groups, each_of + 2, dim, unpack(rest) }
      local function part(first, count)
        return all:narrow(2, first, count):reshape { groups * count * dim, unpack(rest) }
      end
      put(before, kind, { "q_proj", "k_proj", "v_proj" },
        { part(1, each_of), part(each_of + 1, 1), part(each_of + 2, 1) })
    else
      out[name] = t
    end
  end
  if c.head_bias and c.tie_word_embeddings then out.head_bias, out["lm_head.bias"] = out["lm_head.bias"], nil end
  for norm, list in each(norms) do out[norm .. "norm.weight"] = moth.stack(list, 1) end
  return out
end

-- A config with models.Llama's names of fields; those that are honoured.
local function own_names(config, family)
  if not family.alias then return config, "" end
  local out, names = with(config, {}), {}
  for name, other in each(family.alias) do
    if out[name] == nil then out[name] = config[other] end
    names[#names + 1] = other
  end
  return out, table.concat(names, " ")
end

--- The options of models.Llama for a config.json, the weights {name = tensor} with its names, and patterns of weights
-- that may be left. An error names what is not supported. ignored: see pretrained.refuse_unknown; blocks: { name =
-- GGUF's type } of weights in blocks, whose names become the model's.
function M.read(config, sd, where, ignored, blocks)
  local kind = config.model_type or "llama"
  local family = M.known[kind]
  if not family then
    fail(where, "models of type '%s' are not of Llama's form; there are %s", tostring(kind), M.names)
  end
  if config.use_bidirectional_attention then fail(where, "use_bidirectional_attention is not supported") end
  local given, aliases = config
  config, aliases = own_names(config, family)
  pretrained.refuse_unknown(given, where, {
    honoured = table.concat({ fields.honoured, aliases, family.honoured or "" }, " "),
    inert = fields.inert .. " " .. (family.inert or ""), only = with(fields.only, family.only or {}) }, ignored)
  local function of(names, default) return pretrained.field(config, where, names, default) end
  sd = renamed(sd, family)
  pretrained.one_dtype(sd, where, next(blocks) and function(_, name) return blocks[name] ~= nil end or nil)
  local width, heads, layers = of "hidden_size", of "num_attention_heads", of "num_hidden_layers"
  local most = of("max_position_embeddings", family.most or 2048)
  local original = config.original_max_position_embeddings
  local theta, near, scaling, rotated = rope_of(config, family, of, original, where)
  if scaling and scaling.rope_type == "longrope" then original = scaling.original_max_position_embeddings or most end
  local window, types = windows_of(config, family, layers, where)
  local scalar = config.query_pre_attn_scalar
  -- Biases that a config or a family has must be there; where it says nothing, some files have them.
  local function has_bias(name)
    if config.attention_bias == false and not family.bias then return false end
    if sd["model.layers.0.self_attn." .. name .. ".bias"] or name == "q_proj" and family.bias then return true end
    if name == "o_proj" and family.plain_output then return false end
    return config.attention_bias == true and not family.bias
  end
  local c = {
    vocab_size = of "vocab_size", hidden_size = width,
    intermediate_size = of("intermediate_size", family.wide and family.wide * width or nil),
    num_hidden_layers = layers, num_attention_heads = heads, num_key_value_heads = config.num_key_value_heads or heads,
    head_dim = config.head_dim or family.head_dim or width / heads,
    max_position_embeddings = most, rms_norm_eps = of("rms_norm_eps", family.eps or 1e-6),
    rope_theta = theta, local_rope_theta = near, rope_scaling = scaling, partial_rotary_factor = rotated,
    original_max_position_embeddings = original, tie_word_embeddings = of("tie_word_embeddings", family.tied or false),
    mlp_bias = of("mlp_bias", false), attention_bias = has_bias "q_proj",
    output_bias = has_bias "o_proj", hidden_act = act_of(config, family, where),
    sliding_window = window, layer_types = types, embedding_scale = family.scaled_embedding and math.sqrt(width) or nil,
    attention_scale = scalar and scalar ^ -0.5 or nil, attention_softcap = config.attn_logit_softcapping,
    logits_softcap = config.final_logit_softcapping,
  }
  local class = type(config.architectures) == "table" and config.architectures[1]
  if not c.tie_word_embeddings and not sd["lm_head.weight"] and tostring(class):find "Model$" then c.head = false end
  for name, v in each(family.own or {}) do c[name] = v end
  if family.more then family.more(c, config, where) end
  -- Layers behind the last one predict further tokens (DeepSeek 3, GLM-4), and are not computed here.
  return c, apart(sd, family, c, blocks), { ("^model%%.layers%%.%d%%."):format(layers), unpack(family.spare or {}) }
end

return M
