--- The architecture of GGUF files that computes what a models.Llama does, and its fields: found by reading again what
-- would be written, so that what no field says is refused.
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"
local kinds = require "moth.models.gguf_kinds"
local rope = require "moth.models.rope"

local M = {}

local function scaling_kind(c)
  local s = c.rope_scaling
  return s and (s.rope_type or s.type) or "default"
end
-- YaRN as llama.cpp computes it, with whole bounds; any other goes by the frequencies.
local function is_yarn(c) return scaling_kind(c) == "yarn" and c.rope_scaling.truncate ~= false end

--- Whether the frequencies are written, as no field says them.
function M.has_factors(c)
  local kind = scaling_kind(c)
  return c.rope_factors ~= nil or kind == "linear" or kind == "llama3" or kind == "yarn" and not is_yarn(c)
end

local function is_window(c, i) return not c.layer_types or c.layer_types[i] ~= "full_attention" end
local function mapped(c, value)
  local out = {}
  for i = 1, c.num_hidden_layers do out[i] = value(i) end
  return out
end
local function is_in(list, i)
  for _, k in ipairs(list or {}) do
    if k == i then return true end
  end
  return false
end

-- All fields that could say something of a config.
local function fields_of(c)
  local latent, experts = c.latent, c.num_experts
  local v = { context_length = c.max_position_embeddings, embedding_length = c.hidden_size, vocab_size = c.vocab_size,
    block_count = c.num_hidden_layers, feed_forward_length = c.intermediate_size,
    ["attention.head_count"] = c.num_attention_heads, ["attention.head_count_kv"] = c.num_key_value_heads,
    ["attention.key_length"] = c.head_dim, ["attention.value_length"] = c.head_dim,
    ["attention.sliding_window"] = c.sliding_window, ["rope.dimension_count"] = rope.size(c),
    ["attention.layer_norm_rms_epsilon"] = c.rms_norm_eps, ["attention.layer_norm_epsilon"] = c.rms_norm_eps,
    ["rope.freq_base"] = c.rope_theta, ["rope.freq_base_swa"] = c.local_rope_theta,
    attn_logit_softcapping = c.attention_softcap, final_logit_softcapping = c.logits_softcap,
    use_parallel_residual = c.parallel, embedding_scale = c.embedding_scale, residual_scale = c.residual_scale,
    ["attention.scale"] = c.attention_scale, ["attention.clamp_kqv"] = c.clip_qkv }
  if c.sliding_window and c.layer_types then
    v["attention.sliding_window_pattern"] = mapped(c, function(i) return is_window(c, i) end)
  end
  if experts then
    local dense = 0
    while is_in(c.dense_layers, dense + 1) do dense = dense + 1 end
    v.expert_count, v.expert_used_count, v.expert_weights_norm = experts, c.num_experts_per_tok, c.norm_topk_prob
    v.expert_feed_forward_length = c.moe_intermediate_size or c.intermediate_size
    v.expert_gating_func = ({ softmax = 1, sigmoid = 2, best = 3 })[c.router]
    v.leading_dense_block_count, v.expert_weights_scale = dense, c.routed_scale ~= 1 and c.routed_scale or nil
    v.expert_shared_feed_forward_length = c.shared_expert_size
    if c.shared_expert_size then
      v.expert_shared_count = math.max(1, math.floor(c.shared_expert_size / v.expert_feed_forward_length))
    end
    if c.expert_groups and c.expert_groups_kept < c.expert_groups then
      v.expert_group_count, v.expert_group_used_count = c.expert_groups, c.expert_groups_kept
    end
  end
  if latent then
    v["attention.head_count_kv"], v["attention.q_lora_rank"] = 1, latent.q_rank
    v["attention.kv_lora_rank"], v["attention.value_length"] = latent.kv_rank, latent.kv_rank
    v["attention.key_length"] = latent.kv_rank + latent.rope
    v["attention.key_length_mla"], v["attention.value_length_mla"] = latent.nope + latent.rope, latent.value
  end
  local s, attention = c.rope_scaling, rope.attention_factor(c)
  local function put(name, value) v["rope.scaling." .. name] = value end
  if is_yarn(c) then
    put("type", "yarn")
    put("original_context_length", s.original_max_position_embeddings)
    put("factor", s.factor)
    put("yarn_beta_fast", s.beta_fast)
    put("yarn_beta_slow", s.beta_slow)
    if latent then put("yarn_log_multiplier", 0.1 * (s.mscale_all_dim or 0)) end
    attention = attention / rope.mscale(s.factor) -- which llama.cpp multiplies by itself
    if latent and s.mscale_all_dim then attention = 1 end -- and here takes back
  end
  if math.abs(attention - 1) > 1e-9 then put("attn_factor", attention) end
  return v
end

local defaults
-- What a config says of the numbers, each in one form only.
local function view(c)
  if not defaults then
    defaults = moth.fake_mode(moth.models.Llama, { vocab_size = 1, hidden_size = 2, intermediate_size = 1,
      num_hidden_layers = 1, num_attention_heads = 1 }).config
  end
  local v = {}
  for key, x in each(defaults) do v[key] = x end
  for key, x in each(c) do v[key] = x end
  local function without(keys)
    for key in keys:gmatch "%S+" do v[key] = nil end
  end
  without [[rope_scaling rope_factors original_max_position_embeddings rope_interleaved initializer_range norm_offset
    eos dense_layers latent partial_rotary_factor]]
  local l = c.latent
  v.attention_scale = v.attention_scale or (l and l.nope + l.rope or v.head_dim) ^ -0.5
  v.layer_types = v.sliding_window
    and table.concat(mapped(v, function(i) return is_window(c, i) and "w" or "f" end)) or nil
  v.rope_layers = v.positions == "rope" and table.concat(mapped(v, function(i)
    return (not c.rope_layers or is_in(c.rope_layers, i)) and "r" or "n"
  end)) or nil
  v.rotated = v.positions == "rope" and rope.size(v.partial_rotary_factor and v or c) or nil
  if v.norm ~= "layer" then without "norm_bias norm_affine" end
  if not v.parallel then without "single_norm" end
  if not v.attention_bias then without "output_bias" end
  if not v.qk_norm then without "qk_norm_over" end
  if not v.swiglu_limit then without "swiglu_alpha" end
  if not v.query_growth then without "query_growth_length" end
  if v.positions ~= "learned" then without "position_offset" end
  if v.positions ~= "alibi" then without "alibi_scale alibi_rounded" end
  if not v.num_experts then
    without [[num_experts_per_tok moe_intermediate_size norm_topk_prob shared_expert_size shared_expert_gated router
      expert_groups expert_groups_kept routed_scale]]
  else
    v.moe_intermediate_size = v.moe_intermediate_size or v.intermediate_size
    v.dense_layers = table.concat(mapped(v, function(i) return is_in(c.dense_layers, i) and "d" or "e" end))
    if not v.shared_expert_size then without "shared_expert_gated" end
    if v.router == "best" then without "norm_topk_prob" end
    if (v.expert_groups_kept or 0) >= (v.expert_groups or 0) then without "expert_groups expert_groups_kept" end
  end
  for key, x in each(l or {}) do v["latent." .. key] = x end
  if not v.local_rope_theta and not c.rope_scaling then v.local_rope_theta = v.rope_theta end
  if not v.layer_types or not v.layer_types:find "w" then v.local_rope_theta = nil end
  if l then without "head_dim num_key_value_heads" end
  return v
end

local function equal(a, b)
  if type(a) == "number" and type(b) == "number" then return math.abs(a - b) <= 1e-6 * math.abs(b) end
  return a == b
end

-- Names of what two configs say otherwise, with the values of the first.
local function differences(c, other)
  local a, b, out = view(c), view(other), {}
  for key, x in each(a) do
    if not equal(x, b[key]) then out[#out + 1] = ("%s = %s"):format(key, tostring(x)) end
  end
  for key in each(b) do
    if a[key] == nil then out[#out + 1] = "no " .. key end
  end
  table.sort(out)
  if c.positions == "rope" and #out == 0 then
    local f, g = rope.frequencies(c), rope.frequencies(other)
    if not moth.allclose(f, g, { rtol = 1e-5, atol = 0 }) or
      math.abs(rope.attention_factor(c) - rope.attention_factor(other)) > 1e-6 then
      out[1] = "rope_scaling " .. scaling_kind(c)
    end
  end
  return out
end

-- What llama.cpp computes of an architecture, where the reader here takes more: biases of attention; norms of the heads
-- of queries and keys ("!": they must be there); positions of a part of a head; experts ("+": with a gated one for all
-- tokens, "*": as DeepSeek's).
local biases, norms, experts, partial = {}, {}, {}, {}
local function note(into, text)
  for name, mark in text:gmatch "([%w_-]+)([!+*]?)" do into[name] = mark end
end
note(biases, [[llama qwen2 qwen2moe granite glm4moe gpt-oss seed_oss stablelm starcoder2 phi2 nemotron command-r]])
note(norms, [[qwen3! qwen3moe! gemma3! olmo2! olmoe! exaone4! command-r stablelm glm4moe]])
note(partial, [[glm4moe nemotron phi2 stablelm]])
note(experts, [[llama qwen2moe+ qwen3moe olmoe gpt-oss deepseek2* glm4moe*]])

-- Why an architecture is none for a config, before its fields are looked at, or nil.
local function unfit(kind, c)
  local row = kinds.known[kind]
  local turned = c.positions == "rope" and (row.interleaved or false) ~= c.rope_interleaved
  if turned and (c.rope_interleaved or c.latent or c.qk_norm or rope.size(c) ~= c.head_dim) then
    return "rope_interleaved = " .. tostring(c.rope_interleaved)
  end
  if c.positions == "rope" and not c.latent and rope.size(c) ~= c.head_dim and not partial[kind] then
    return "partial_rotary_factor = " .. c.partial_rotary_factor
  end
  if c.attention_bias and not biases[kind] then return kind .. " with biases" end
  if c.qk_norm and not norms[kind] or not c.qk_norm and norms[kind] == "!" then
    return "qk_norm = " .. tostring(c.qk_norm)
  end
  if kind == "cohere2" and not c.sliding_window then return "no sliding_window" end
  local mark = experts[kind]
  if not c.num_experts then return mark and mark ~= "*" and kind ~= "llama" and "no num_experts" end
  if not mark then return "num_experts" end
  if mark == "*" then return nil end
  if (c.shared_expert_size ~= nil) ~= (mark == "+") then return "shared_expert_size" end
  if c.shared_expert_size and not c.shared_expert_gated then return "shared_expert_gated = false" end
  if c.dense_layers and #c.dense_layers > 0 then return "dense_layers" end
  if c.routed_scale ~= 1 then return "routed_scale = " .. c.routed_scale end
  if c.router == "sigmoid" then return "router = sigmoid" end
  if c.router ~= "best" and c.norm_topk_prob ~= (row.norms_shares or false) then
    return "norm_topk_prob = " .. tostring(c.norm_topk_prob)
  end
end

-- What a file of this architecture would say of a config otherwise, and its fields; how much farther that is than the
-- count.
local function tried(kind, c, tensors, scaling_of)
  local all, asked = fields_of(c), {}
  if kind == "granite" then all.logit_scale = 1 / c.logits_scale else all.logit_scale = c.logits_scale end
  local no = unfit(kind, c)
  if no then return { no }, nil, 100 end
  local file = { metadata = { ["general.architecture"] = kind }, tensors = {}, types = {} }
  for name, t in each(tensors) do file.tensors[name] = t end
  local function of(name, default)
    asked[name] = all[name]
    local v = all[name]
    if v == nil then v = default end
    if v == nil then error({ "no " .. name }, 0) end
    return v or nil -- as the reader of files does
  end
  local function fail(...) error({ (...):format(select(2, ...)) }, 0) end
  local ok, other = pcall(function()
    return kinds.options(file, of, scaling_of(of, "models.save_gguf", kind), fail)
  end)
  if not ok then
    if type(other) == "table" then return other, nil, 50 end
    error(other, 0)
  end
  return differences(c, other), asked
end

local first = { "llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "qwen3moe", "qwen2moe" }

--- The architecture for a model's config and its fields. tensors_of(names): its tensors by a file's names, or nil and a
-- name that there is none for; scaling_of: the reader of rope_scaling.
function M.choose(c, tensors_of, scaling_of)
  local order, seen = {}, {}
  if c.attention_bias and not c.output_bias and not c.rope_interleaved then order[1], seen.qwen2 = "qwen2", true end
  for _, kind in ipairs(first) do
    if not seen[kind] then order[#order + 1], seen[kind] = kind, true end
  end
  for kind in kinds.list:gmatch "[^, ]+" do
    if not seen[kind] then order[#order + 1] = kind end
  end
  local made, best, nearest, nameless, least = {}, nil, nil, nil, nil
  for _, kind in ipairs(order) do
    if kinds.known[kind].only_read then goto next_one end
    local names = kinds.known[kind].names or kinds.names "llama"
    made[names] = made[names] or { tensors_of(names) }
    local tensors, odd = unpack(made[names])
    local why, fields, far
    if tensors then
      why, fields, far = tried(kind, c, tensors, scaling_of)
      if #why == 0 then
        local out = { ["general.architecture"] = kind }
        for name, v in each(fields) do out[kind .. "." .. name] = v end
        out[kind .. ".vocab_size"] = c.vocab_size
        if c.positions == "rope" then out[kind .. ".rope.dimension_count"] = rope.size(c) end
        if not fields["attention.value_length"] then out[kind .. ".attention.value_length"] = c.head_dim end
        return out, names
      end
      far = #why + (far or 0)
      if not best or far < least then best, nearest, least = why, kind, far end
    else
      nameless = nameless or odd
    end
    ::next_one::
  end
  if not best then
    check.fail("[models.save_gguf] GGUF has no name for %s: expected the weights of a float model or of one with \z
      blocks, not quantised otherwise, without other layers; type = 'Q8_0' or 'Q4_0' writes small ones", nameless)
  end
  check.fail("[models.save_gguf] llama.cpp has no architecture for %s (the nearest is %s)", table.concat(best, ", "),
    nearest)
end

return M
