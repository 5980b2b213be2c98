--- What models.Llama is given for a config.json of Hugging Face: of Llama, Mistral, Qwen2, Qwen3, Phi-3, and Gemma 1 to
-- 3; and their weights by the names that it has.
local check = require "moth.utils.check"
local each = require "moth.each"
local activations = require "moth.models.activations"
local pretrained = require "moth.models.pretrained"

local M = {}

local gemma = { hidden_act = "gelu_tanh", tied = true, norm_offset = true, scaled_embedding = true, head_dim = 256 }
local function with(t, more)
  local out = {}
  for key, v in each(t) do out[key] = v end
  for key, v in each(more) do out[key] = v end
  return out
end

--- By model_type: what the family has that its config.json does not say.
M.known = {
  llama = {}, mistral = { window = true }, qwen2 = { bias = true }, qwen3 = { qk_norm = true },
  phi3 = { window = true, eps = 1e-5 },
  gemma = gemma, gemma2 = with(gemma, { post_norms = true, window = true, full_every = 2 }),
  gemma3_text = with(gemma, { post_norms = true, window = true, full_every = 6, qk_norm = true }),
}

M.names = "gemma, gemma2, gemma3_text, llama, mistral, phi3, qwen2 and qwen3"

local function fail(where, ...) check.fail("[%s] config.json: %s", where, (...):format(select(2, ...))) end

-- The fields of config.json that `read` computes with.
local fields = { honoured = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads \z
  num_key_value_heads head_dim max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters \z
  partial_rotary_factor rope_local_base_freq tie_word_embeddings mlp_bias attention_bias hidden_act \z
  hidden_activation sliding_window use_sliding_window layer_types sliding_window_pattern _sliding_window_pattern \z
  max_window_layers original_max_position_embeddings query_pre_attn_scalar attn_logit_softcapping \z
  final_logit_softcapping", inert = "is_llama_config transformers.js_config max_sequence_length",
  only = { use_mrope = function(v) return v == false end, lm_head_bias = function(v) return v == false end,
    rope_interleaved = function(v) return v == false end, full_attn_mod = function(v) return v == 1 end,
    interpolate_factor = function(v) return v == 1 end } }

local function act_of(config, family, where)
  local name = config.hidden_activation or config.hidden_act or "silu"
  -- Gemma's hidden_act says "gelu" and means this.
  if family.hidden_act and not config.hidden_activation and (name == "gelu" or name == "silu") then
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
  if not types and family.full_every then
    local every = config.sliding_window_pattern or config._sliding_window_pattern or family.full_every
    types = {}
    for i = 1, layers do types[i] = i % every == 0 and "full_attention" or "sliding_attention" end
  elseif not types and config.use_sliding_window then
    types = {}
    for i = 1, layers do
      types[i] = i > (config.max_window_layers or 0) and "sliding_attention" or "full_attention"
    end
  end
  for _, kind in ipairs(types or {}) do
    if kind ~= "full_attention" and kind ~= "sliding_attention" then
      fail(where, "layers of type '%s' are not supported", tostring(kind))
    end
  end
  return window, types
end

-- theta, theta of layers with a window, scaling, rotated part
local function rope_of(config, of, original, where)
  local p = config.rope_parameters or config.rope_scaling or {}
  if type(p) ~= "table" then fail(where, "rope_scaling must be an object, got %s", tostring(p)) end
  local theta, near = of("rope_parameters.rope_theta rope_theta", 10000), config.rope_local_base_freq
  if type(p.full_attention) == "table" then -- one for each type of layers
    near = p.sliding_attention and p.sliding_attention.rope_theta or near
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
  return theta, near, scaling, p.partial_rotary_factor or config.partial_rotary_factor or 1
end

-- Weights that lie one behind the other in one: views of it.
local function apart(sd, c)
  local out = {}
  local heads, width = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
  for name, t in each(sd) do
    local before = name:match "^(.*)qkv_proj%.weight$"
    local mlp = name:match "^(.*)gate_up_proj%.weight$"
    if before then
      out[before .. "q_proj.weight"] = t:narrow(1, 1, heads)
      out[before .. "k_proj.weight"] = t:narrow(1, heads + 1, width)
      out[before .. "v_proj.weight"] = t:narrow(1, heads + width + 1, width)
    elseif mlp then
      out[mlp .. "gate_proj.weight"] = t:narrow(1, 1, c.intermediate_size)
      out[mlp .. "up_proj.weight"] = t:narrow(1, c.intermediate_size + 1, c.intermediate_size)
    else
      out[name] = t
    end
  end
  return out
end

--- The options of models.Llama for a config.json, and the weights {name = tensor} with its names. An error names what
-- is not supported. ignored: see pretrained.refuse_unknown.
function M.read(config, sd, where, ignored)
  local function of(names, default) return pretrained.field(config, where, names, default) end
  local kind = config.model_type or "llama"
  local family = M.known[kind]
  if not family then
    fail(where, "models of type '%s' are not of Llama's form; there are %s", tostring(kind), M.names)
  end
  if config.use_bidirectional_attention then fail(where, "use_bidirectional_attention is not supported") end
  if config.quantization_config then
    fail(where, "weights quantized by %s are not supported; take the plain ones, or a GGUF file",
      tostring(config.quantization_config.quant_method))
  end
  pretrained.refuse_unknown(config, where, fields, ignored)
  pretrained.one_dtype(sd, where)
  local width, heads, layers = of "hidden_size", of "num_attention_heads", of "num_hidden_layers"
  local most = of("max_position_embeddings", 2048)
  local original = config.original_max_position_embeddings
  local theta, near, scaling, rotated = rope_of(config, of, original, where)
  if scaling and scaling.rope_type == "longrope" then original = scaling.original_max_position_embeddings or most end
  local head_dim = config.head_dim or family.head_dim or width / heads
  local window, types = windows_of(config, family, layers, where)
  local scalar = config.query_pre_attn_scalar
  -- Biases that a config or a family has must be there; some files have others.
  local function has_bias(name)
    if sd["model.layers.0.self_attn." .. name .. ".bias"] or name == "q_proj" and family.bias then return true end
    return config.attention_bias == true and not family.bias
  end
  local c = {
    vocab_size = of "vocab_size", hidden_size = width, intermediate_size = of "intermediate_size",
    num_hidden_layers = layers, num_attention_heads = heads, num_key_value_heads = config.num_key_value_heads or heads,
    head_dim = head_dim, max_position_embeddings = most, rms_norm_eps = of("rms_norm_eps", family.eps or 1e-6),
    rope_theta = theta, local_rope_theta = near, rope_scaling = scaling, partial_rotary_factor = rotated,
    original_max_position_embeddings = original, tie_word_embeddings = of("tie_word_embeddings", family.tied or false),
    mlp_bias = of("mlp_bias", false), attention_bias = has_bias "q_proj",
    output_bias = has_bias "o_proj", hidden_act = act_of(config, family, where),
    qk_norm = family.qk_norm, sliding_window = window, layer_types = types, norm_offset = family.norm_offset,
    post_norms = family.post_norms, embedding_scale = family.scaled_embedding and math.sqrt(width) or nil,
    attention_scale = scalar and scalar ^ -0.5 or nil, attention_softcap = config.attn_logit_softcapping,
    logits_softcap = config.final_logit_softcapping,
  }
  return c, kind == "phi3" and apart(sd, c) or sd
end

return M
