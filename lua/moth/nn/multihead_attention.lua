--- nn.MultiheadAttention: projections of query, key and value, attention by heads, and a projection of the result.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local Linear = require "moth.nn.linear"
local init = require "moth.nn.init_"

local MultiheadAttention = class("MultiheadAttention", Module)

--- @tparam int embed_dim @tparam int num_heads a divisor of embed_dim
-- @tparam[opt] table o dropout (0, of the weights), bias (true), kdim, vdim (embed_dim), batch_first
-- (false), dtype, device
-- in_proj_weight (3 E, E), or q_, k_ and v_proj_weight where kdim or vdim differ; in_proj_bias (3 E); out_proj
function MultiheadAttention:__init(embed_dim, num_heads, o)
  o = check.options("nn.MultiheadAttention", o, "dropout bias kdim vdim batch_first dtype device")
  local E = check.integer("nn.MultiheadAttention", "embed_dim", embed_dim, 1)
  self.embed_dim, self.num_heads = E, check.integer("nn.MultiheadAttention", "num_heads", num_heads, 1)
  if E % num_heads ~= 0 then
    check.fail("nn.MultiheadAttention: embed_dim (%d) must be a multiple of num_heads (%d)", E, num_heads)
  end
  self.dropout = check.number("nn.MultiheadAttention", "dropout", o.dropout or 0)
  self.kdim, self.vdim = o.kdim or E, o.vdim or E
  self.batch_first = o.batch_first == true
  local like = { dtype = o.dtype, device = o.device }
  if self.kdim == E and self.vdim == E then
    self.in_proj_weight = Parameter(moth.empty({ 3 * E, E }, like))
  else
    self.q_proj_weight = Parameter(moth.empty({ E, E }, like))
    self.k_proj_weight = Parameter(moth.empty({ E, self.kdim }, like))
    self.v_proj_weight = Parameter(moth.empty({ E, self.vdim }, like))
  end
  if o.bias ~= false then self.in_proj_bias = Parameter(moth.empty({ 3 * E }, like)) end
  self.out_proj = Linear(E, E, { bias = o.bias, dtype = o.dtype, device = o.device })
  self:reset()
end

--- PyTorch's: weights uniform by Xavier, biases 0.
function MultiheadAttention:reset()
  for _, name in ipairs({ "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight" }) do
    if self[name] then init.xavier_uniform_(self[name]) end
  end
  if self.in_proj_bias then
    init.zeros_(self.in_proj_bias)
    init.zeros_(self.out_proj.bias)
  end
end

-- x (N, T, in) -> (N, heads, T, E / heads), by part 1, 2 or 3 of the projections
local function project(self, x, part, name)
  local E = self.embed_dim
  local w = self.in_proj_weight and self.in_proj_weight:narrow(1, (part - 1) * E + 1, E) or self[name]
  local b = self.in_proj_bias and self.in_proj_bias:narrow(1, (part - 1) * E + 1, E) or nil
  local y = moth.linear(x, w, b)
  return y:view(y:size(1), y:size(2), self.num_heads, E / self.num_heads):transpose(2, 3)
end

-- Masks as moth's attention takes them. PyTorch's module masks say true for what is left OUT.
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

--- query (L, N, E), key (S, N, kdim), value (S, N, vdim); batch_first: (N, L, E) ...; without batch: (L, E) ...
-- @tparam[opt] table o attn_mask ((L, S) or (N heads, L, S); bool: true is left out; else added), key_padding_mask
-- ((N, S), likewise), is_causal, need_weights (false), average_attn_weights (true)
-- @return the result, of query's shape; with need_weights the weights (N, L, S), or (N, heads, L, S), else nil
function MultiheadAttention:forward(query, key, value, o)
  key, value = key or query, value or key or query
  o = check.options("nn.MultiheadAttention", o, "attn_mask key_padding_mask is_causal need_weights \z
    average_attn_weights")
  local batched = query:dim() == 3
  local x, padding = { query, key, value }, o.key_padding_mask
  for i = 1, 3 do
    if not batched then x[i] = x[i]:unsqueeze(1) elseif not self.batch_first then x[i] = x[i]:transpose(1, 2) end
  end
  if padding and padding:dim() == 1 then padding = padding:unsqueeze(1) end
  local q = project(self, x[1], 1, "q_proj_weight")
  local k, v = project(self, x[2], 2, "k_proj_weight"), project(self, x[3], 3, "v_proj_weight")
  local mask = merge(o.attn_mask, padding, q)
  local causal = o.is_causal == true
  if causal and (mask or o.need_weights) then
    local no = moth.full({ q:size(3), k:size(3) }, -math.huge, { dtype = q:dtype(), device = q:device() }):triu(1)
    mask, causal = o.attn_mask and mask or mask and mask + no or no, false
  end
  local p = self.training and self.dropout or 0
  local y, weights
  if o.need_weights then
    local scores = (q * (1 / math.sqrt(q:size(4)))):matmul(k:transpose(-2, -1))
    if mask then scores = scores + mask end
    weights = moth.dropout(scores:softmax(-1), p, p > 0)
    y = weights:matmul(v)
    if o.average_attn_weights ~= false then weights = weights:mean(2) end
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
