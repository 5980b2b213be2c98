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

local activations = {
  silu = nn.functional.silu, relu = nn.functional.relu, gelu = function(x) return nn.functional.gelu(x) end,
  gelu_tanh = function(x) return nn.functional.gelu(x, "tanh") end,
}

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
  self.intermediate = Dense(c.hidden_size, c.intermediate_size, activations[c.hidden_act])
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
  number attention_dropout=0.1, bool pooler=true, number initializer_range=0.02, \z
  'silu'|'gelu'|'gelu_tanh'|'relu' hidden_act='gelu')", function(self, c)
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

-- The fields of config.json that from_pretrained computes with; those of poolers change nothing in transformers, too.
local fields = { honoured = "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size \z
    max_position_embeddings type_vocab_size layer_norm_eps hidden_dropout_prob attention_probs_dropout_prob hidden_act",
  inert = "tie_word_embeddings directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers \z
    pooler_size_per_head pooler_type",
  only = { position_embedding_type = function(v) return v == "absolute" end,
    model_type = function(v) return v == "bert" end } }

-- Heads for tasks, and what they are called in transformers.
local heads = { { "^cls%.predictions%.", "masked language model" }, { "^cls%.seq_relationship%.", "next sentence" },
  { "^cls%.", "language model" }, { "^classifier%.", "classification" }, { "^qa_outputs%.", "question answering" } }

-- Takes the tensors of heads out of sd, or refuses the first by name.
local function without_heads(sd, where, encoder_only)
  local names = {}
  for name in each(sd) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    for _, head in ipairs(heads) do
      if sd[name] ~= nil and name:find(head[1]) then
        if not encoder_only then
          check.fail("[%s] the folder has a head (%s: %s), which models.BERT has not; give encoder_only = true to \z
            leave it out, and put a layer of your own behind", where, head[2], name)
        end
        sd[name] = nil
      end
    end
  end
  return sd
end

--- The encoder of a folder that Hugging Face's save_pretrained wrote. A head for a task is refused by name; o:
-- encoder_only = true leaves it out, ignore_fields: names of fields of config.json that are not known here and may be
-- left out.
function BERT.from_pretrained(folder, o)
  local where = "models.BERT.from_pretrained"
  o = check.options(where, o, "encoder_only ignore_fields")
  local config, sd = pretrained.read(folder, where)
  local function of(names, default) return pretrained.field(config, where, names, default) end
  pretrained.refuse_unknown(config, where, fields, o.ignore_fields)
  local act = of("hidden_act", "gelu")
  if not pretrained.activations[act] then
    check.fail("[%s] config.json: hidden_act = %s is not supported; there are gelu, gelu_new, relu and silu", where,
      tostring(act))
  end
  local own = {}
  for name, t in each(sd) do
    own[name:gsub("^bert%.", ""):gsub("LayerNorm%.gamma$", "LayerNorm.weight"):gsub("LayerNorm%.beta$",
      "LayerNorm.bias")] = t
  end
  own = without_heads(own, where, o.encoder_only)
  local model = BERT {
    hidden_act = pretrained.activations[act],
    vocab_size = of "vocab_size", hidden_size = of "hidden_size", num_hidden_layers = of "num_hidden_layers",
    num_attention_heads = of "num_attention_heads", intermediate_size = of "intermediate_size",
    max_position_embeddings = of("max_position_embeddings", 512), type_vocab_size = of("type_vocab_size", 2),
    layer_norm_eps = of("layer_norm_eps", 1e-12), dropout = of("hidden_dropout_prob", 0.1),
    attention_dropout = of("attention_probs_dropout_prob", 0.1), pooler = own["pooler.dense.weight"] ~= nil,
  }
  return pretrained.load(model, own, where, { "position_ids$" }):eval()
end

return BERT
