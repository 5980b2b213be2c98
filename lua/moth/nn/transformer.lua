--- nn.TransformerEncoderLayer, nn.TransformerEncoder, their decoders, nn.Transformer (Vaswani et al. 2017).
--
--     local layer = nn.TransformerEncoderLayer(512, 8, { batch_first = true })
--     local encoder = nn.TransformerEncoder(layer, 6)
--     local y = encoder(x, { is_causal = true })                        -- x (N, T, 512) -> (N, T, 512)
--
-- Names of parameters are PyTorch's. Masks are those of nn.MultiheadAttention: true in a bool mask excludes.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local ModuleList = require "moth.nn.module_list"
local MultiheadAttention = require "moth.nn.multihead_attention"
local Linear = require "moth.nn.linear"
local Dropout = require("moth.nn.dropout").Dropout
local LayerNorm = require("moth.nn.norm").LayerNorm
local functional = require "moth.nn.functional"
local init = require "moth.nn.init_"

local M = {}

local layer_options = "count dim_feedforward=2048, number dropout=0.1, 'relu'|'gelu'|callable activation='relu', \z
  number layer_norm_eps=1e-5, bool batch_first=false, bool norm_first=false, bool bias=true, device device?, \z
  dtype dtype?"
local layer = "count d_model, count nhead, " .. layer_options

-- Adds the parts that both kinds of layer have: linear1, linear2, n norms and dropouts, the activation.
local function parts(self, o, n)
  local d_model, hidden, p = o.d_model, o.dim_feedforward, o.dropout
  local like = { bias = o.bias, dtype = o.dtype, device = o.device }
  local norm = { eps = o.layer_norm_eps, bias = o.bias, dtype = o.dtype, device = o.device }
  self.linear1, self.dropout = Linear(d_model, hidden, like), Dropout(p)
  self.linear2 = Linear(hidden, d_model, like)
  for i = 1, n do self["norm" .. i] = LayerNorm(d_model, norm) end
  for i = 1, n do self["dropout" .. i] = Dropout(p) end
  self.norm_first, self.activation = o.norm_first, o.activation
end

local function feed_forward(self, x, dropout)
  local act = self.activation
  if type(act) == "string" then act = functional[act] end
  return dropout(self.linear2(self.dropout(act(self.linear1(x)))))
end

local function attention(where, o)
  if o.d_model % o.nhead ~= 0 then
    check.fail("[nn.%s] d_model (%d) must be a multiple of nhead (%d)", where, o.d_model, o.nhead)
  end
  return MultiheadAttention(o.d_model, o.nhead, { dropout = o.dropout, bias = o.bias, batch_first = o.batch_first,
    dtype = o.dtype, device = o.device })
end

-- ---- encoder ---------------------------------------------------------------------------------------

local EncoderLayer = class("TransformerEncoderLayer", Module)
M.TransformerEncoderLayer = EncoderLayer

EncoderLayer.__init = signature.init(("nn.TransformerEncoderLayer(%s)"):format(layer), function(self, o)
  self.self_attn = attention(self.__name, o)
  parts(self, o, 2)
end)

local of_layer = signature("nn.TransformerEncoderLayer:forward(Tensor src, Tensor src_mask?, \z
  Tensor src_key_padding_mask?, bool is_causal=false)", function(...) return ... end)

--- src (T, N, E), batch_first: (N, T, E), without batch (T, E) -> the same
-- src_mask: (T, T) or (N heads, T, T); src_key_padding_mask: (N, T)
function EncoderLayer:forward(...)
  local src, mask, padding, causal = of_layer(...)
  local function attend(x) return self.dropout1((self.self_attn(x, x, x, padding, false, mask, true, causal))) end
  if self.norm_first then
    src = src + attend(self.norm1(src))
    return src + feed_forward(self, self.norm2(src), self.dropout2)
  end
  src = self.norm1(src + attend(src))
  return self.norm2(src + feed_forward(self, src, self.dropout2))
end

-- n deep copies of a layer.
local function copies(first, n)
  local list = {}
  for i = 1, n do list[i] = first:clone() end
  return ModuleList(list)
end

local Encoder = class("TransformerEncoder", Module)
M.TransformerEncoder = Encoder

--- encoder_layer: copied num_layers times, values and all, as in PyTorch; norm: a module for the result
Encoder.__init = signature.init("nn.TransformerEncoder(Module encoder_layer, layers num_layers, Module norm?)",
  function(self, o)
    self.num_layers = o.num_layers
    self.layers = copies(o.encoder_layer, o.num_layers)
    self.norm = o.norm
  end)

local of_encoder = signature("nn.TransformerEncoder:forward(Tensor src, Tensor mask?, Tensor src_key_padding_mask?, \z
  bool is_causal=false)", function(...) return ... end)

--- Arguments as those of a layer.
function Encoder:forward(...)
  local src, mask, padding, causal = of_encoder(...)
  for _, one in self.layers:iter() do src = one(src, mask, padding, causal) end
  return self.norm and self.norm(src) or src
end

-- ---- decoder ---------------------------------------------------------------------------------------

local DecoderLayer = class("TransformerDecoderLayer", Module)
M.TransformerDecoderLayer = DecoderLayer

--- Arguments as those of nn.TransformerEncoderLayer.
DecoderLayer.__init = signature.init(("nn.TransformerDecoderLayer(%s)"):format(layer), function(self, o)
  self.self_attn = attention(self.__name, o)
  self.multihead_attn = attention(self.__name, o)
  parts(self, o, 3)
end)

local decoder_arguments = "Tensor tgt, Tensor memory, Tensor tgt_mask?, Tensor memory_mask?, \z
  Tensor tgt_key_padding_mask?, Tensor memory_key_padding_mask?, bool tgt_is_causal=false, bool memory_is_causal=false"
local of_decoder_layer = signature(("nn.TransformerDecoderLayer:forward(%s)"):format(decoder_arguments),
  function(...) return ... end)

--- tgt (T, N, E), memory (S, N, E) -> (T, N, E); batch_first: (N, T, E) …
function DecoderLayer:forward(...)
  local tgt, memory, tgt_mask, mask, tgt_padding, padding, tgt_causal, causal = of_decoder_layer(...)
  local function attend(x)
    return self.dropout1((self.self_attn(x, x, x, tgt_padding, false, tgt_mask, true, tgt_causal)))
  end
  local function look(x)
    return self.dropout2((self.multihead_attn(x, memory, memory, padding, false, mask, true, causal)))
  end
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
Decoder.__init = signature.init("nn.TransformerDecoder(Module decoder_layer, layers num_layers, Module norm?)",
  function(self, o)
    self.num_layers = o.num_layers
    self.layers = copies(o.decoder_layer, o.num_layers)
    self.norm = o.norm
  end)

local of_decoder = signature(("nn.TransformerDecoder:forward(%s)"):format(decoder_arguments),
  function(...) return { ... } end)

--- Arguments as those of a layer.
function Decoder:forward(...)
  local a = of_decoder(...)
  local tgt = a[1]
  for _, one in self.layers:iter() do tgt = one(tgt, unpack(a, 2, 8)) end
  return self.norm and self.norm(tgt) or tgt
end

-- ---- both ------------------------------------------------------------------------------------------

local Transformer = class("Transformer", Module)
M.Transformer = Transformer

local before, after = layer_options:match("^(.-activation='relu'), (.*)$")

-- PyTorch's custom_encoder and custom_decoder, before layer_norm_eps, are left out.
Transformer.__init = signature.init(("nn.Transformer(count d_model=512, count nhead=8, size num_encoder_layers=6, \z
  size num_decoder_layers=6, %s, *, %s)"):format(before, after), function(self, o)
  if o.d_model % o.nhead ~= 0 then
    check.fail("[nn.Transformer] d_model (%d) must be a multiple of nhead (%d)", o.d_model, o.nhead)
  end
  local of = {}
  for _, key in ipairs({ "d_model", "nhead", "dim_feedforward", "dropout", "activation", "layer_norm_eps",
    "batch_first", "norm_first", "bias", "device", "dtype" }) do
    of[key] = o[key]
  end
  local function norm()
    return LayerNorm(o.d_model, { eps = o.layer_norm_eps, bias = o.bias, dtype = o.dtype, device = o.device })
  end
  self.encoder = Encoder(EncoderLayer(of), o.num_encoder_layers, norm())
  self.decoder = Decoder(DecoderLayer(of), o.num_decoder_layers, norm())
  self:reset()
end)

--- PyTorch's default: all matrices uniform by Xavier.
function Transformer:reset()
  for _, p in ipairs(self:parameters()) do
    if p:dim() > 1 then init.xavier_uniform_(p) end
  end
end

local of_both = signature("nn.Transformer:forward(Tensor src, Tensor tgt, Tensor src_mask?, Tensor tgt_mask?, \z
  Tensor memory_mask?, Tensor src_key_padding_mask?, Tensor tgt_key_padding_mask?, Tensor memory_key_padding_mask?, \z
  bool src_is_causal=false, bool tgt_is_causal=false, bool memory_is_causal=false)", function(...) return ... end)

--- src (S, N, E), tgt (T, N, E) -> (T, N, E); batch_first: (N, S, E) …
function Transformer:forward(...)
  local src, tgt, src_mask, tgt_mask, memory_mask, src_padding, tgt_padding, padding, src_causal, tgt_causal, causal =
    of_both(...)
  local memory = self.encoder(src, src_mask, src_padding, src_causal)
  return self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_padding, padding, tgt_causal, causal)
end

--- The mask (n, n) under which each position sees itself and those before it: -inf above the diagonal, 0 elsewhere.
function Transformer.generate_square_subsequent_mask(n, o)
  return moth.full({ n, n }, -math.huge, o):triu(1)
end

return M
