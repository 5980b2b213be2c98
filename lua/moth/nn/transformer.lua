--- nn.TransformerEncoderLayer, nn.TransformerEncoder, their decoders, nn.Transformer (Vaswani et al. 2017).
--
--     local layer = nn.TransformerEncoderLayer(512, 8, { batch_first = true })
--     local encoder = nn.TransformerEncoder(layer, 6)
--     local y = encoder(x, { is_causal = true })                        -- x (N, T, 512) -> (N, T, 512)
--
-- Names of parameters are PyTorch's. Masks are those of nn.MultiheadAttention: bool ones are true for what is left out.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"
local ModuleList = require "moth.nn.module_list"
local MultiheadAttention = require "moth.nn.multihead_attention"
local Linear = require "moth.nn.linear"
local Dropout = require("moth.nn.dropout").Dropout
local LayerNorm = require("moth.nn.norm").LayerNorm
local functional = require "moth.nn.functional"
local init = require "moth.nn.init_"

local M = {}

local layer_options = "dim_feedforward dropout activation layer_norm_eps batch_first norm_first bias dtype device"

-- What both kinds of layer have: linear1, linear2, n norms and dropouts, the activation.
local function parts(self, where, d_model, nhead, o, n)
  check.integer(where, "d_model", d_model, 1)
  check.integer(where, "nhead", nhead, 1)
  local hidden, p = o.dim_feedforward or 2048, o.dropout or 0.1
  local like = { bias = o.bias, dtype = o.dtype, device = o.device }
  local norm = { eps = o.layer_norm_eps, bias = o.bias, dtype = o.dtype, device = o.device }
  self.linear1, self.dropout = Linear(d_model, hidden, like), Dropout(p)
  self.linear2 = Linear(hidden, d_model, like)
  for i = 1, n do self["norm" .. i] = LayerNorm(d_model, norm) end
  for i = 1, n do self["dropout" .. i] = Dropout(p) end
  self.norm_first = o.norm_first == true
  local activation = o.activation or "relu"
  if activation == "relu" or activation == "gelu" then
    self.activation = activation
  elseif type(activation) == "function" or Module.is(activation) then
    self.activation = activation
  else
    check.fail("%s: activation is 'relu', 'gelu', a function or a module, got %s", where, tostring(activation))
  end
end

local function feed_forward(self, x, dropout)
  local act = self.activation
  if type(act) == "string" then act = functional[act] end
  return dropout(self.linear2(self.dropout(act(self.linear1(x)))))
end

local function attention(o, d_model, nhead)
  return MultiheadAttention(d_model, nhead, { dropout = o.dropout or 0.1, bias = o.bias, batch_first = o.batch_first,
    dtype = o.dtype, device = o.device })
end

-- ---- encoder ---------------------------------------------------------------------------------------

local EncoderLayer = class("TransformerEncoderLayer", Module)
M.TransformerEncoderLayer = EncoderLayer

--- @tparam int d_model @tparam int nhead
-- @tparam[opt] table o dim_feedforward (2048), dropout (0.1), activation ("relu", "gelu", a function), layer_norm_eps,
-- batch_first (false), norm_first (false), bias (true), dtype, device
function EncoderLayer:__init(d_model, nhead, o)
  o = check.options("nn.TransformerEncoderLayer", o, layer_options)
  self.self_attn = attention(o, d_model, nhead)
  parts(self, "nn.TransformerEncoderLayer", d_model, nhead, o, 2)
end

--- src (T, N, E), batch_first: (N, T, E), without batch (T, E) -> the same
-- @tparam[opt] table o src_mask ((T, T) or (N heads, T, T)), src_key_padding_mask (N, T), is_causal
function EncoderLayer:forward(src, o)
  o = check.options("TransformerEncoderLayer", o, "src_mask src_key_padding_mask is_causal")
  local how = { attn_mask = o.src_mask, key_padding_mask = o.src_key_padding_mask, is_causal = o.is_causal }
  local function attend(x) return self.dropout1((self.self_attn(x, x, x, how))) end
  if self.norm_first then
    src = src + attend(self.norm1(src))
    return src + feed_forward(self, self.norm2(src), self.dropout2)
  end
  src = self.norm1(src + attend(src))
  return self.norm2(src + feed_forward(self, src, self.dropout2))
end

-- A layer with values of its own, as many as asked for: the first is `layer` itself copied, too.
local function copies(where, layer, n)
  check.integer(where, "num_layers", n, 0)
  if not Module.is(layer) then check.fail("%s: expected a layer, got %s", where, class.name(layer)) end
  local list = {}
  for i = 1, n do list[i] = layer:clone() end
  return ModuleList(list)
end

local Encoder = class("TransformerEncoder", Module)
M.TransformerEncoder = Encoder

--- @param layer copied num_layers times, values and all, as in PyTorch @tparam int num_layers
-- @tparam[opt] table o norm (a module for the result)
function Encoder:__init(layer, num_layers, o)
  o = check.options("nn.TransformerEncoder", o, "norm")
  self.layers, self.num_layers = copies("nn.TransformerEncoder", layer, num_layers), num_layers
  if o.norm then self.norm = o.norm end
end

--- @tparam[opt] table o mask, src_key_padding_mask, is_causal
function Encoder:forward(src, o)
  o = check.options("TransformerEncoder", o, "mask src_key_padding_mask is_causal")
  local how = { src_mask = o.mask, src_key_padding_mask = o.src_key_padding_mask, is_causal = o.is_causal }
  for _, layer in self.layers:iter() do src = layer(src, how) end
  return self.norm and self.norm(src) or src
end

-- ---- decoder ---------------------------------------------------------------------------------------

local DecoderLayer = class("TransformerDecoderLayer", Module)
M.TransformerDecoderLayer = DecoderLayer

--- Arguments as those of nn.TransformerEncoderLayer.
function DecoderLayer:__init(d_model, nhead, o)
  o = check.options("nn.TransformerDecoderLayer", o, layer_options)
  self.self_attn = attention(o, d_model, nhead)
  self.multihead_attn = attention(o, d_model, nhead)
  parts(self, "nn.TransformerDecoderLayer", d_model, nhead, o, 3)
end

local decoder_options = "tgt_mask memory_mask tgt_key_padding_mask memory_key_padding_mask tgt_is_causal \z
  memory_is_causal"

--- tgt (T, N, E), memory (S, N, E) -> (T, N, E); batch_first: (N, T, E) …
-- @tparam[opt] table o tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal,
-- memory_is_causal
function DecoderLayer:forward(tgt, memory, o)
  o = check.options("TransformerDecoderLayer", o, decoder_options)
  local own = { attn_mask = o.tgt_mask, key_padding_mask = o.tgt_key_padding_mask, is_causal = o.tgt_is_causal }
  local theirs = { attn_mask = o.memory_mask, key_padding_mask = o.memory_key_padding_mask,
    is_causal = o.memory_is_causal }
  local function attend(x) return self.dropout1((self.self_attn(x, x, x, own))) end
  local function look(x) return self.dropout2((self.multihead_attn(x, memory, memory, theirs))) end
  local x = tgt
  if self.norm_first then
    x = x + attend(self.norm1(x))
    x = x + look(self.norm2(x))
    return x + feed_forward(self, self.norm3(x), self.dropout3)
  end
  x = self.norm1(x + attend(x))
  x = self.norm2(x + look(x))
  return self.norm3(x + feed_forward(self, x, self.dropout3))
end

local Decoder = class("TransformerDecoder", Module)
M.TransformerDecoder = Decoder

--- Arguments as those of nn.TransformerEncoder.
function Decoder:__init(layer, num_layers, o)
  o = check.options("nn.TransformerDecoder", o, "norm")
  self.layers, self.num_layers = copies("nn.TransformerDecoder", layer, num_layers), num_layers
  if o.norm then self.norm = o.norm end
end

--- Options as those of a layer.
function Decoder:forward(tgt, memory, o)
  check.options("TransformerDecoder", o, decoder_options)
  for _, layer in self.layers:iter() do tgt = layer(tgt, memory, o) end
  return self.norm and self.norm(tgt) or tgt
end

-- ---- both ------------------------------------------------------------------------------------------

local Transformer = class("Transformer", Module)
M.Transformer = Transformer

--- @tparam[opt] table o d_model (512), nhead (8), num_encoder_layers (6), num_decoder_layers (6), and the options of
-- the layers
function Transformer:__init(o)
  o = check.options("nn.Transformer", o, "d_model nhead num_encoder_layers num_decoder_layers " .. layer_options)
  local E, heads, of_layer = o.d_model or 512, o.nhead or 8, {}
  for key in layer_options:gmatch("%S+") do of_layer[key] = o[key] end
  local function norm()
    return LayerNorm(E, { eps = o.layer_norm_eps, bias = o.bias, dtype = o.dtype, device = o.device })
  end
  self.encoder = Encoder(EncoderLayer(E, heads, of_layer), o.num_encoder_layers or 6, { norm = norm() })
  self.decoder = Decoder(DecoderLayer(E, heads, of_layer), o.num_decoder_layers or 6, { norm = norm() })
  self:reset()
end

--- PyTorch's: all matrices uniform by Xavier.
function Transformer:reset()
  for _, p in ipairs(self:parameters()) do
    if p:dim() > 1 then init.xavier_uniform_(p) end
  end
end

--- src (S, N, E), tgt (T, N, E) -> (T, N, E); batch_first: (N, S, E) …
-- @tparam[opt] table o src_mask, src_key_padding_mask, src_is_causal, and the options of the decoder
function Transformer:forward(src, tgt, o)
  o = check.options("Transformer", o, "src_mask src_key_padding_mask src_is_causal " .. decoder_options)
  local memory = self.encoder(src, { mask = o.src_mask, src_key_padding_mask = o.src_key_padding_mask,
    is_causal = o.src_is_causal })
  local of_decoder = {}
  for key in decoder_options:gmatch("%S+") do of_decoder[key] = o[key] end
  return self.decoder(tgt, memory, of_decoder)
end

--- The mask (n, n) under which each position sees itself and those before it: -inf above the diagonal, 0 elsewhere.
function Transformer.generate_square_subsequent_mask(n, o)
  return moth.full({ n, n }, -math.huge, o):triu(1)
end

return M
