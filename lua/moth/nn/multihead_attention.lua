--- nn.MultiheadAttention: projections of query, key and value, attention by heads, and a projection of the result.
local moth = require "moth"
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local Linear = require "moth.nn.linear"
local init = require "moth.nn.init_"

local MultiheadAttention = class("MultiheadAttention", Module)

--- dropout: of the weights; kdim, vdim: embed_dim if not given. add_bias_kv: a key and a value of parameters bias_k,
-- bias_v (1, 1, E) behind those given; add_zero_attn: a key and a value of zeros.
-- in_proj_weight (3 E, E), or q_, k_ and v_proj_weight where kdim or vdim differ; in_proj_bias (3 E); out_proj
MultiheadAttention.__init = signature.init("nn.MultiheadAttention(count embed_dim, count num_heads, number dropout=0, \z
  bool bias=true, bool add_bias_kv=false, bool add_zero_attn=false, count kdim?, count vdim?, bool batch_first=false, \z
  device device?, dtype dtype?)", function(self, o)
  local E = o.embed_dim
  self.embed_dim, self.num_heads = E, o.num_heads
  if E % o.num_heads ~= 0 then
    check.fail("[nn.MultiheadAttention] embed_dim (%d) must be a multiple of num_heads (%d)", E, o.num_heads)
  end
  self.dropout, self.batch_first = o.dropout, o.batch_first
  self.kdim, self.vdim = o.kdim or E, o.vdim or E
  local like = { dtype = o.dtype, device = o.device }
  if self.kdim == E and self.vdim == E then
    self.in_proj_weight = Parameter(moth.empty({ 3 * E, E }, like))
  else
    self.q_proj_weight = Parameter(moth.empty({ E, E }, like))
    self.k_proj_weight = Parameter(moth.empty({ E, self.kdim }, like))
    self.v_proj_weight = Parameter(moth.empty({ E, self.vdim }, like))
  end
  if o.bias then self.in_proj_bias = Parameter(moth.empty({ 3 * E }, like)) end
  if o.add_bias_kv then
    self.bias_k = Parameter(moth.empty({ 1, 1, E }, like))
    self.bias_v = Parameter(moth.empty({ 1, 1, E }, like))
  end
  self.add_zero_attn = o.add_zero_attn
  self.out_proj = Linear(E, E, { bias = o.bias, dtype = o.dtype, device = o.device })
  self:reset()
end)

--- PyTorch's default: input projections uniform by Xavier, biases 0; the weight of out_proj as in nn.Linear.
function MultiheadAttention:reset()
  for _, name in ipairs({ "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight" }) do
    if self[name] then init.xavier_uniform_(self[name]) end
  end
  if self.in_proj_bias then
    init.zeros_(self.in_proj_bias)
    init.zeros_(self.out_proj.bias)
  end
  if self.bias_k then
    init.xavier_normal_(self.bias_k)
    init.xavier_normal_(self.bias_v)
  end
end

-- x (N, T, in) -> (N, heads, T, E / heads), by part 1 (query), 2 (key) or 3 (value) of the input projection
local function project(self, x, part, name)
  local E = self.embed_dim
  local w = self.in_proj_weight and self.in_proj_weight:narrow(1, (part - 1) * E + 1, E) or self[name]
  local b = self.in_proj_bias and self.in_proj_bias:narrow(1, (part - 1) * E + 1, E) or nil
  local y, n = moth.linear(x, w, b), B.size(x, 1)
  local more = part == 2 and self.bias_k or part == 3 and self.bias_v
  local rows = { y }
  if more then rows[2] = more:expand({ n, 1, E }) end
  if part > 1 and self.add_zero_attn then rows[#rows + 1] = y:new_zeros({ n, 1, E }) end
  if #rows > 1 then y = moth.cat(rows, 2) end
  return y:view(n, B.size(y, 2), self.num_heads, E / self.num_heads):transpose(2, 3)
end

-- A mask with columns of zeros (false) for the keys that the module adds.
local function widened(self, m)
  local more = (self.bias_k and 1 or 0) + (self.add_zero_attn and 1 or 0)
  if not m or more == 0 then return m end
  local size = B.size(m)
  size[#size] = more
  return moth.cat({ m, m:new_zeros(size) }, -1)
end

-- attn_mask and key_padding_mask as one mask for scaled_dot_product_attention. In the module's masks, as in PyTorch's,
-- true EXCLUDES a position.
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

local arguments = signature("nn.MultiheadAttention:forward(Tensor query, Tensor key?, Tensor value?, \z
  Tensor key_padding_mask?, bool need_weights=true, Tensor attn_mask?, bool average_attn_weights=true, \z
  bool is_causal=false)", function(...) return ... end)

--- query (L, N, E), key (S, N, kdim), value (S, N, vdim); batch_first: (N, L, E) ...; without batch: (L, E) ...
-- attn_mask: (L, S) or (N heads, L, S); bool: true excludes; else added. key_padding_mask: (N, S), likewise.
-- need_weights = false is faster: attention is then one op.
-- @return the result, of query's shape; the weights (N, L, S), not averaged (N, heads, L, S), without need_weights nil
function MultiheadAttention:forward(...)
  local query, key, value, padding, need_weights, attn_mask, average, causal = arguments(...)
  key, value = key or query, value or key or query
  local batched = query:dim() == 3
  local x = { query, key, value }
  for i = 1, 3 do
    if not batched then x[i] = x[i]:unsqueeze(1) elseif not self.batch_first then x[i] = x[i]:transpose(1, 2) end
  end
  if padding and padding:dim() == 1 then padding = padding:unsqueeze(1) end
  local q = project(self, x[1], 1, "q_proj_weight")
  local k, v = project(self, x[2], 2, "k_proj_weight"), project(self, x[3], 3, "v_proj_weight")
  attn_mask, padding = widened(self, attn_mask), widened(self, padding)
  local mask = merge(attn_mask, padding, q)
  if causal and (mask or need_weights) then
    local no = moth.full({ q:size(3), k:size(3) }, -math.huge, { dtype = q:dtype(), device = q:device() }):triu(1)
    mask, causal = attn_mask and mask or mask and mask + no or no, false
  end
  local p = self.training and self.dropout or 0
  local y, weights
  if need_weights then
    local scores = (q * (1 / math.sqrt(q:size(4)))):matmul(k:transpose(-2, -1))
    if mask then scores = scores + mask end
    weights = moth.dropout(scores:softmax(-1), p, p > 0)
    y = weights:matmul(v)
    if average then weights = weights:mean(2) end
    if not batched then weights = weights:squeeze(1) end
  else
    y = moth.scaled_dot_product_attention(q, k, v, { attn_mask = mask, dropout_p = p, is_causal = causal })
  end
  y = self.out_proj(y:transpose(2, 3):reshape(q:size(1), q:size(3), self.embed_dim))
  if not batched then y = y:squeeze(1) elseif not self.batch_first then y = y:transpose(1, 2) end
  return y, weights
end

function MultiheadAttention:extra_repr()
  return ("%d, %d, dropout=%.14g"):format(self.embed_dim, self.num_heads, self.dropout)
end

return MultiheadAttention
