--- models.BERT: an encoder of text (Devlin et al. 2019), with Hugging Face's names.
--
--     local net = moth.models.BERT.from_pretrained "folder"
--     local hidden, pooled = net(ids, { attention_mask = mask })
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local pretrained = require "moth.models.pretrained"

local function norm(c) return nn.LayerNorm(c.hidden_size, { eps = c.layer_norm_eps }) end

local Embeddings = nn.class("BERT.Embeddings")
function Embeddings:__init(c)
  self.word_embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
  self.position_embeddings = nn.Embedding(c.max_position_embeddings, c.hidden_size)
  self.token_type_embeddings = nn.Embedding(c.type_vocab_size, c.hidden_size)
  self.LayerNorm, self.dropout = norm(c), nn.Dropout(c.dropout)
end
function Embeddings:forward(ids, types)
  local at = moth.arange(1, ids:size(2) + 1, { dtype = moth.int64, device = ids:device() })
  local x = self.word_embeddings(ids) + self.token_type_embeddings(types) + self.position_embeddings(at)
  return self.dropout(self.LayerNorm(x))
end

-- A projection, with dropout, added to the input and normed.
local Output = nn.class("BERT.Output")
function Output:__init(c, from)
  self.dense, self.LayerNorm, self.dropout = nn.Linear(from, c.hidden_size), norm(c), nn.Dropout(c.dropout)
end
function Output:forward(y, x) return self.LayerNorm(self.dropout(self.dense(y)) + x) end

local SelfAttention = nn.class("BERT.SelfAttention")
function SelfAttention:__init(c)
  self.heads, self.p = c.num_attention_heads, c.attention_dropout
  for _, name in ipairs { "query", "key", "value" } do self[name] = nn.Linear(c.hidden_size, c.hidden_size) end
end
function SelfAttention:forward(x, mask)
  local B, T, C = x:size(1), x:size(2), x:size(3)
  local function heads(y) return y:view(B, T, self.heads, C / self.heads):transpose(2, 3) end
  local y = moth.scaled_dot_product_attention(heads(self.query(x)), heads(self.key(x)), heads(self.value(x)),
    { attn_mask = mask, dropout_p = self.training and self.p or 0 })
  return y:transpose(2, 3):reshape(B, T, C)
end

local Dense = nn.class("BERT.Dense")
function Dense:__init(from, to, activation)
  self.dense, self.activation = nn.Linear(from, to), activation
end
function Dense:forward(x) return self.activation(self.dense(x)) end

local Layer = nn.class("BERT.Layer")
function Layer:__init(c)
  self.attention = nn.ModuleDict { { "self", SelfAttention(c) }, { "output", Output(c, c.hidden_size) } }
  self.intermediate = Dense(c.hidden_size, c.intermediate_size, nn.functional.gelu)
  self.output = Output(c, c.intermediate_size)
end
function Layer:forward(x, mask)
  x = self.attention["output"](self.attention["self"](x, mask), x)
  return self.output(self.intermediate(x), x)
end

local BERT = nn.class("BERT")

--- pooler: a layer over the first token, the second result of a call
BERT.__init = signature.init("models.BERT(*, count vocab_size, count hidden_size=768, \z
  count num_hidden_layers=12, count num_attention_heads=12, count intermediate_size=3072, \z
  count max_position_embeddings=512, count type_vocab_size=2, number layer_norm_eps=1e-12, number dropout=0.1, \z
  number attention_dropout=0.1, bool pooler=true, number initializer_range=0.02)", function(self, c)
  if c.hidden_size % c.num_attention_heads ~= 0 then
    check.fail("[models.BERT] hidden_size (%d) must be a multiple of num_attention_heads (%d)", c.hidden_size,
      c.num_attention_heads)
  end
  self.config, self.embeddings = c, Embeddings(c)
  local layers = {}
  for i = 1, c.num_hidden_layers do layers[i] = Layer(c) end
  self.encoder = nn.ModuleDict { { "layer", nn.ModuleList(layers) } }
  if c.pooler then self.pooler = Dense(c.hidden_size, c.hidden_size, moth.tanh) end
  for name, p in self:named_parameters() do
    if p:dim() > 1 then nn.init.normal_(p, 0, c.initializer_range)
    elseif name:find "bias$" then nn.init.zeros_(p) end
  end
end)

local inputs = signature("models.BERT:forward(Tensor input_ids, Tensor attention_mask?, Tensor token_type_ids?)",
  function(...) return ... end)

--- input_ids (B, T), ids from 1; attention_mask (B, T), 0 or false where padding is; token_type_ids (B, T), from 1
-- (all 1 if not given)
-- @return hidden states (B, T, hidden_size); of a model with a pooler also (B, hidden_size)
function BERT:forward(...)
  local ids, mask, types = inputs(...)
  if ids:size(2) > self.config.max_position_embeddings then
    check.fail("[models.BERT] %d tokens are more than max_position_embeddings, %d", ids:size(2),
      self.config.max_position_embeddings)
  end
  if mask then mask = mask:ne(0):unsqueeze(2):unsqueeze(2) end
  local x = self.embeddings(ids, types or moth.ones_like(ids))
  local layers = self.encoder["layer"]
  for i = 1, self.config.num_hidden_layers do x = layers[i](x, mask) end
  if self.pooler then return x, self.pooler(x:select(2, 1)) end
  return x
end

--- The encoder of a folder that Hugging Face's save_pretrained wrote; heads for tasks are left out.
function BERT.from_pretrained(folder)
  local where = "models.BERT.from_pretrained"
  local config, sd = pretrained.read(folder, where)
  local function of(names, default) return pretrained.field(config, where, names, default) end
  local own = {}
  for name, t in each(sd) do
    own[name:gsub("^bert%.", ""):gsub("LayerNorm%.gamma$", "LayerNorm.weight"):gsub("LayerNorm%.beta$",
      "LayerNorm.bias")] = t
  end
  local model = BERT {
    vocab_size = of "vocab_size", hidden_size = of "hidden_size", num_hidden_layers = of "num_hidden_layers",
    num_attention_heads = of "num_attention_heads", intermediate_size = of "intermediate_size",
    max_position_embeddings = of("max_position_embeddings", 512), type_vocab_size = of("type_vocab_size", 2),
    layer_norm_eps = of("layer_norm_eps", 1e-12), dropout = of("hidden_dropout_prob", 0.1),
    attention_dropout = of("attention_probs_dropout_prob", 0.1), pooler = own["pooler.dense.weight"] ~= nil,
  }
  return pretrained.load(model, own, where, { "position_ids$", "^cls%.", "^classifier%.", "^qa_outputs%." }):eval()
end

return BERT
