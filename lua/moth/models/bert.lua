--- models.BERT: an encoder of text (Devlin et al. 2019), with Hugging Face's names.
--
--     local net = moth.models.BERT.from_pretrained "folder"
--     local hidden, pooled = net(ids, { attention_mask = mask })
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local activations = require "moth.models.activations"
local encoders = require "moth.models.encoders"
local pretrained = require "moth.models.pretrained"

local function norm(c, n) return nn.LayerNorm(n or c.hidden_size, { eps = c.layer_norm_eps }) end

local Embeddings = nn.class("BERT.Embeddings")
function Embeddings:__init(c)
  local n = c.embedding_size or c.hidden_size
  self.padding_id = c.padding_id
  self.word_embeddings = nn.Embedding(c.vocab_size, n)
  self.position_embeddings = nn.Embedding(c.max_position_embeddings, n)
  if c.type_vocab_size > 0 then self.token_type_embeddings = nn.Embedding(c.type_vocab_size, n) end
  self.LayerNorm, self.dropout = norm(c, n), nn.Dropout(c.dropout)
end
function Embeddings:forward(ids, types)
  local at
  if self.padding_id then -- padding has the position of its id, the other tokens count behind it
    local real = ids:ne(self.padding_id):to(moth.int64)
    at = real:cumsum(2) * real + self.padding_id
  else
    at = moth.arange(1, ids:size(2) + 1, { dtype = moth.int64, device = ids:device() })
  end
  local x = self.word_embeddings(ids)
  if self.token_type_embeddings then x = x + self.token_type_embeddings(types or moth.ones_like(ids)) end
  return self.dropout(self.LayerNorm(x + self.position_embeddings(at)))
end

-- A projection, with dropout, added to the input and normed.
local Output = nn.class("BERT.Output")
function Output:__init(c, from, p)
  self.dense, self.LayerNorm, self.dropout = nn.Linear(from, c.hidden_size), norm(c), nn.Dropout(p or c.dropout)
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
  self.attention = nn.ModuleDict { { "self", SelfAttention(c) },
    { "output", Output(c, c.hidden_size, c.attention_output_dropout) } }
  self.intermediate = Dense(c.hidden_size, c.intermediate_size, activations.known[c.hidden_act])
  self.output = Output(c, c.intermediate_size, c.output_dropout)
end
function Layer:forward(x, mask)
  x = self.attention["output"](self.attention["self"](x, mask), x)
  return self.output(self.intermediate(x), x)
end

-- Logits of the words at each place, behind a layer of their own.
local Predictions = nn.class("BERT.Predictions")
function Predictions:__init(c)
  local n = c.embedding_size or c.hidden_size
  self.dense, self.LayerNorm = nn.Linear(c.hidden_size, n), norm(c, n)
  self.activation = activations.known[c.mlm_act or c.hidden_act]
  self.bias = nn.Parameter(moth.zeros(c.vocab_size))
  if not c.tie_word_embeddings then self.decoder = nn.Linear(n, c.vocab_size, { bias = false }) end
end
function Predictions:forward(x, words)
  x = self.LayerNorm(self.activation(self.dense(x)))
  return (self.decoder and self.decoder(x) or words:as_linear(x)) + self.bias
end

local BERT = nn.class("BERT")

--- pooler: a layer over the first token, the second result of a call. head: what is put behind, num_labels: of the
-- classifications; classifier_dropout: before the head's last layer, dropout_before: before its first, too (RoBERTa);
-- mlm_act: of the head of masked words, if not hidden_act. embedding_size: of the embeddings, which a layer brings to
-- hidden_size. padding_id: positions count only tokens with other ids, and begin behind it (RoBERTa).
-- num_hidden_groups: that many groups of inner_group_num layers, which num_hidden_layers steps share (ALBERT).
BERT.__init = signature.init("models.BERT(*, count vocab_size, count hidden_size=768, \z
  count num_hidden_layers=12, count num_attention_heads=12, count intermediate_size=3072, \z
  count max_position_embeddings=512, size type_vocab_size=2, number layer_norm_eps=1e-12, number dropout=0.1, \z
  number attention_dropout=0.1, bool pooler=true, number initializer_range=0.02, string hidden_act='gelu', \z
  'sequence_classification'|'token_classification'|'question_answering'|'masked_lm' head?, count num_labels=2, \z
  number classifier_dropout?, bool dropout_before=false, bool tie_word_embeddings=true, string pooler_act='tanh', \z
  string mlm_act?, count embedding_size?, count padding_id?, count num_hidden_groups?, count inner_group_num=1, \z
  number attention_output_dropout?, number output_dropout?)", function(self, c)
  if c.hidden_size % c.num_attention_heads ~= 0 then
    check.fail("[models.BERT] hidden_size (%d) must be a multiple of num_attention_heads (%d)", c.hidden_size,
      c.num_attention_heads)
  end
  for _, name in ipairs { "hidden_act", "pooler_act", "mlm_act" } do
    if c[name] then activations.of(c[name], "models.BERT", name) end
  end
  if c.padding_id and c.padding_id >= c.max_position_embeddings then
    check.fail("[models.BERT] max_position_embeddings (%d) must be above padding_id (%d), behind which positions begin",
      c.max_position_embeddings, c.padding_id)
  end
  self.config, self.embeddings = c, Embeddings(c)
  self.max_length = c.max_position_embeddings - (c.padding_id or 0)
  if c.embedding_size then self.embeddings_project = nn.Linear(c.embedding_size, c.hidden_size) end
  local layers = {}
  for i = 1, (c.num_hidden_groups or c.num_hidden_layers) * c.inner_group_num do layers[i] = Layer(c) end
  self.encoder = nn.ModuleDict { { "layer", nn.ModuleList(layers) } }
  if c.head == "sequence_classification" or not c.head and c.pooler then
    self.pooler = Dense(c.hidden_size, c.hidden_size, activations.known[c.pooler_act])
  end
  self.dropout = nn.Dropout(c.classifier_dropout or c.dropout)
  if c.head == "masked_lm" then
    self.predictions = Predictions(c)
  elseif c.head == "question_answering" then
    self.qa_outputs = nn.Linear(c.hidden_size, 2)
  elseif c.head then
    self.classifier = nn.Linear(c.hidden_size, c.num_labels)
  end
  for name, p in self:named_parameters() do
    if p:dim() > 1 then nn.init.normal_(p, 0, c.initializer_range)
    elseif name:find "bias$" then nn.init.zeros_(p) end
  end
end)

local inputs = signature("models.BERT:forward(Tensor input_ids, Tensor attention_mask?, Tensor token_type_ids?)",
  function(...) return ... end)

--- The last hidden states (B, T, hidden_size), of a model with a head, too; the arguments are those of a call.
function BERT:features(ids, mask, types)
  local c = self.config
  if ids:size(2) > self.max_length then
    check.fail("[models.BERT] %d tokens are more than %s, %d", ids:size(2),
      c.padding_id and "max_position_embeddings less those up to padding_id" or "max_position_embeddings",
      self.max_length)
  end
  if types and not self.embeddings.token_type_embeddings then
    check.fail "[models.BERT] token_type_ids are given to a model without types of tokens (type_vocab_size is 0)"
  end
  if mask then mask = mask:ne(0):unsqueeze(2):unsqueeze(2) end
  local x = self.embeddings(ids, types)
  if self.embeddings_project then x = self.embeddings_project(x) end
  local layers, inner = self.encoder["layer"], c.inner_group_num
  local groups = c.num_hidden_groups or c.num_hidden_layers
  for i = 0, c.num_hidden_layers - 1 do
    local group = math.floor(i / (c.num_hidden_layers / groups))
    for k = 1, inner do x = layers[group * inner + k](x, mask) end
  end
  return x
end

--- input_ids (B, T), ids from 1; attention_mask (B, T), 0 or false where padding is; token_type_ids (B, T), from 1
-- (all 1 if not given)
-- @return hidden states (B, T, hidden_size); of a model with a pooler also (B, hidden_size). With a head, logits:
-- sequence_classification (B, num_labels), token_classification (B, T, num_labels), masked_lm (B, T, vocab_size),
-- question_answering two of (B, T): of the answer's first token and of its last
function BERT:forward(...)
  local ids, mask, types = inputs(...)
  local c, x = self.config, self:features(ids, mask, types)
  if c.head == "masked_lm" then return self.predictions(x, self.embeddings.word_embeddings) end
  if c.head == "question_answering" then
    local scores = self.qa_outputs(self.dropout(x))
    return scores:select(3, 1), scores:select(3, 2)
  elseif c.head == "token_classification" then
    return self.classifier(self.dropout(x))
  end
  if not self.pooler then return x end
  local first = x:select(2, 1)
  local pooled = self.pooler(c.head and c.dropout_before and self.dropout(first) or first)
  if c.head then return self.classifier(self.dropout(pooled)) end
  return x, pooled
end

--- The model of a folder that Hugging Face's save_pretrained wrote (encoders.lua says of which families), with the head
-- that its config.json names. o: encoder_only = true leaves the head out; mapped = true takes the weights where they
-- lie in the file, as models.load does; ignore_fields: names of fields of config.json that are not known here and may
-- be left out.
function BERT.from_pretrained(folder, o)
  local where = "models.BERT.from_pretrained"
  o = check.options(where, o, "encoder_only mapped ignore_fields")
  local config, sd = pretrained.read(folder, where, o.mapped)
  local c, own, spare = encoders.read(config, sd, where, o.encoder_only, o.ignore_fields)
  local model = o.mapped and moth.fake_mode(BERT, c) or BERT(c)
  return pretrained.load(model, own, where, spare, o.mapped):eval()
end

return BERT
