--- nn.MultiheadAttention: projections of query, key and value, attention by heads, and a projection of the result.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local Linear = require "moth.nn.linear"
local init = require "moth.nn.init_"
local attend = require("moth.nn.functional_attention").attend

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
  local y, weights = attend(self, x, padding, need_weights, attn_mask, average, causal,
    self.training and self.dropout or 0)
  y = self.out_proj(y)
  if not batched then
    y, weights = y:squeeze(1), weights and weights:squeeze(1)
  elseif not self.batch_first then
    y = y:transpose(1, 2)
  end
  return y, weights
end

function MultiheadAttention:extra_repr()
  return ("%d, %d, dropout=%.14g"):format(self.embed_dim, self.num_heads, self.dropout)
end

return MultiheadAttention
