--- F.multi_head_attention_forward, and what nn.MultiheadAttention computes.
local moth = require "moth"
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local M = {}

-- The fields of o below: embed_dim, num_heads, in_proj_weight or q_, k_ and v_proj_weight, in_proj_bias, bias_k,
-- bias_v, add_zero_attn.

-- x (N, T, in) -> (N, heads, T, E / heads), by part 1 (query), 2 (key) or 3 (value) of the input projection
local function project(o, x, part, name)
  local E = o.embed_dim
  local w = o.in_proj_weight and o.in_proj_weight:narrow(1, (part - 1) * E + 1, E) or o[name]
  local b = o.in_proj_bias and o.in_proj_bias:narrow(1, (part - 1) * E + 1, E) or nil
  local y, n = moth.linear(x, w, b), B.size(x, 1)
  local more = part == 2 and o.bias_k or part == 3 and o.bias_v
  local rows = { y }
  if more then rows[2] = more:expand({ n, 1, E }) end
  if part > 1 and o.add_zero_attn then rows[#rows + 1] = y:new_zeros({ n, 1, E }) end
  if #rows > 1 then y = moth.cat(rows, 2) end
  return y:view(n, B.size(y, 2), o.num_heads, E / o.num_heads):transpose(2, 3)
end

-- A mask with columns of zeros (false) for the keys that are added.
local function widened(o, m)
  local more = (o.bias_k and 1 or 0) + (o.add_zero_attn and 1 or 0)
  if not m or more == 0 then return m end
  local size = B.size(m)
  size[#size] = more
  return moth.cat({ m, m:new_zeros(size) }, -1)
end

-- attn_mask and key_padding_mask as one mask for scaled_dot_product_attention. In these masks, as in PyTorch's, true
-- EXCLUDES a position.
local function merge(attn_mask, padding, q)
  local function additive(m)
    if m:dtype() ~= moth.bool then return m end
    return moth.zeros(m.shape, { dtype = q:dtype(), device = q:device() }):masked_fill(m, -math.huge)
  end
  local mask = attn_mask and additive(attn_mask)
  if mask and mask:dim() == 3 then mask = mask:view(-1, q:size(2), mask:size(2), mask:size(3)) end
  if padding then
    padding = additive(padding):view(padding:size(1), 1, 1, padding:size(2))
    mask = mask and mask + padding or padding
  end
  return mask
end


-- A key or value that is given as it goes into the product: (N heads, S, dim) -> (N, heads, S, dim).
local function static(o, x, n, name)
  if B.dim(x) ~= 3 or B.size(x, 1) ~= n * o.num_heads or B.size(x, 3) ~= o.embed_dim / o.num_heads then
    check.fail("[F.multi_head_attention_forward] %s: expected (%d, S, %d), got %s", name, n * o.num_heads,
      o.embed_dim / o.num_heads, B.format(x))
  end
  return x:view(n, o.num_heads, B.size(x, 2), B.size(x, 3))
end

--- Set within dist.context_parallel, where attention takes a mask and is_causal together, and has no weights to give.
M.is_cut = false

--- Attention of x, a list of query, key and value (N, T, …). p: probability of dropout.
-- @return the result (N, L, E) before the last projection; the weights (N, L, S), not averaged (N, heads, L, S), or nil
-- without need_weights
function M.attend(o, x, padding, need_weights, attn_mask, average, causal, p, static_k, static_v)
  local q = project(o, x[1], 1, "q_proj_weight")
  local k = static_k and static(o, static_k, q:size(1), "static_k") or project(o, x[2], 2, "k_proj_weight")
  local v = static_v and static(o, static_v, q:size(1), "static_v") or project(o, x[3], 3, "v_proj_weight")
  attn_mask, padding = widened(o, attn_mask), widened(o, padding)
  local mask = merge(attn_mask, padding, q)
  if M.is_cut and need_weights then
    check.fail "[nn.MultiheadAttention] within context_parallel no rank has all weights: give need_weights = false"
  end
  if causal and (mask and not M.is_cut or need_weights) then
    local no = moth.full({ q:size(3), k:size(3) }, -math.huge, { dtype = q:dtype(), device = q:device() }):triu(1)
    mask, causal = attn_mask and mask or mask and mask + no or no, false
  end
  local y, weights
  if need_weights then
    local scores = (q * (1 / math.sqrt(q:size(4)))):matmul(k:transpose(-2, -1))
    if mask then scores = scores + mask end
    weights = moth.dropout(scores:softmax(-1), p, p > 0)
    y = weights:matmul(v)
    if average then weights = weights:mean(2) end
  else
    y = moth.scaled_dot_product_attention(q, k, v, { attn_mask = mask, dropout_p = p, is_causal = causal })
  end
  return y:transpose(2, 3):reshape(q:size(1), q:size(3), o.embed_dim), weights
end

M.F = {}

--- nn.MultiheadAttention as a function: query (L, N, E), key (S, N, kdim), value (S, N, vdim), or without N; masks and
-- results as there. static_k, static_v: (N heads, S, E / heads), in place of what the projections give.
M.F.multi_head_attention_forward = signature("F.multi_head_attention_forward(Tensor query, Tensor key, Tensor value, \z
  count embed_dim_to_check, count num_heads, Tensor in_proj_weight?, Tensor in_proj_bias?, Tensor bias_k?, \z
  Tensor bias_v?, bool add_zero_attn, number dropout_p, Tensor out_proj_weight, Tensor out_proj_bias?, \z
  bool training=true, Tensor key_padding_mask?, bool need_weights=true, Tensor attn_mask?, \z
  bool use_separate_proj_weight=false, Tensor q_proj_weight?, Tensor k_proj_weight?, Tensor v_proj_weight?, \z
  Tensor static_k?, Tensor static_v?, bool average_attn_weights=true, bool is_causal=false)",
  function(query, key, value, E, heads, in_w, in_b, bias_k, bias_v, zero, p, out_w, out_b, training, padding, need,
      mask, apart, q_w, k_w, v_w, static_k, static_v, average, causal)
    local where = "[F.multi_head_attention_forward]"
    if B.size(query, -1) ~= E then
      check.fail("%s the query's last dimension is %d, expected embed_dim_to_check, %d", where, B.size(query, -1), E)
    end
    if E % heads ~= 0 then check.fail("%s %d features are not divisible into %d heads", where, E, heads) end
    if (apart and not (q_w and k_w and v_w)) or not (apart or in_w) then
      check.fail("%s give %s", where, apart and "q_proj_weight, k_proj_weight and v_proj_weight" or "in_proj_weight")
    end
    local batched = B.dim(query) == 3
    local x = { query, key, value }
    for i = 1, 3 do x[i] = batched and x[i]:transpose(1, 2) or x[i]:unsqueeze(1) end
    if padding and B.dim(padding) == 1 then padding = padding:unsqueeze(1) end
    local o = { embed_dim = E, num_heads = heads, in_proj_weight = not apart and in_w or nil, q_proj_weight = q_w,
      k_proj_weight = k_w, v_proj_weight = v_w, in_proj_bias = in_b, bias_k = bias_k, bias_v = bias_v,
      add_zero_attn = zero }
    local y, weights = M.attend(o, x, padding, need, mask, average, causal, training and p or 0, static_k, static_v)
    y = moth.linear(y, out_w, out_b)
    if batched then return y:transpose(1, 2), weights end
    return y:squeeze(1), weights and weights:squeeze(1)
  end)

return M
