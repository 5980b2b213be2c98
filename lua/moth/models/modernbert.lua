--- models.ModernBERT: an encoder of text with rotary positions, windows in most layers and gated MLPs (Warner et al.
-- 2024), with Hugging Face's names.
--
--     local net = moth.models.ModernBERT.from_pretrained "folder"
--     local hidden = net(ids, { attention_mask = mask })
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local activations = require "moth.models.activations"
local encoders = require "moth.models.encoders"
local pretrained = require "moth.models.pretrained"

local function norm(c) return nn.LayerNorm(c.hidden_size, { eps = c.norm_eps, bias = c.norm_bias }) end

local Attention = nn.class("ModernBERT.Attention")
function Attention:__init(c, i)
  self.heads, self.p = c.num_attention_heads, c.attention_dropout
  self.Wqkv = nn.Linear(c.hidden_size, 3 * c.hidden_size, { bias = c.attention_bias })
  self.Wo = nn.Linear(c.hidden_size, c.hidden_size, { bias = c.attention_bias })
  self.out_drop, self.is_local = nn.Dropout(c.attention_dropout), c.layer_types[i] == "sliding_attention"
end
function Attention:forward(x, at)
  local B, T, C = x:size(1), x:size(2), x:size(3)
  local qkv = self.Wqkv(x):view(B, T, 3, self.heads, C / self.heads):permute(3, 1, 4, 2, 5)
  local angles, mask = self.is_local and at.near or at.far, at.mask
  if self.is_local then mask = at.window end
  local function turned(y) return moth.rope(y, angles.cos, angles.sin, false) end
  local y = moth.scaled_dot_product_attention(turned(qkv:select(1, 1)), turned(qkv:select(1, 2)), qkv:select(1, 3),
    { attn_mask = mask, dropout_p = self.training and self.p or 0 })
  return self.out_drop(self.Wo(y:transpose(2, 3):reshape(B, T, C)))
end

local MLP = nn.class("ModernBERT.MLP")
function MLP:__init(c)
  self.Wi = nn.Linear(c.hidden_size, 2 * c.intermediate_size, { bias = c.mlp_bias })
  self.Wo = nn.Linear(c.intermediate_size, c.hidden_size, { bias = c.mlp_bias })
  self.drop, self.act = nn.Dropout(c.mlp_dropout), activations.known[c.hidden_act]
end
function MLP:forward(x)
  local both = self.Wi(x)
  local n = both:size(3) / 2
  return self.Wo(self.drop(self.act(both:narrow(3, 1, n)) * both:narrow(3, n + 1, n)))
end

local Layer = nn.class("ModernBERT.Layer")
function Layer:__init(c, i)
  if i > 1 then self.attn_norm = norm(c) end -- the embeddings have theirs
  self.attn, self.mlp_norm, self.mlp = Attention(c, i), norm(c), MLP(c)
end
function Layer:forward(x, at)
  x = x + self.attn(self.attn_norm and self.attn_norm(x) or x, at)
  return x + self.mlp(self.mlp_norm(x))
end

local Embeddings = nn.class("ModernBERT.Embeddings")
function Embeddings:__init(c)
  self.tok_embeddings, self.norm = nn.Embedding(c.vocab_size, c.hidden_size), norm(c)
  self.drop = nn.Dropout(c.embedding_dropout)
end
function Embeddings:forward(ids) return self.drop(self.norm(self.tok_embeddings(ids))) end

local Trunk = nn.class("ModernBERT.Model")
function Trunk:__init(c)
  self.embeddings = Embeddings(c)
  local layers = {}
  for i = 1, c.num_hidden_layers do layers[i] = Layer(c, i) end
  self.layers, self.final_norm = nn.ModuleList(layers), norm(c)
end

local Head = nn.class("ModernBERT.Head")
function Head:__init(c)
  self.dense = nn.Linear(c.hidden_size, c.hidden_size, { bias = c.classifier_bias })
  self.norm, self.act = norm(c), activations.known[c.classifier_act]
end
function Head:forward(x) return self.norm(self.act(self.dense(x))) end

local ModernBERT = nn.class("ModernBERT")

--- The fields of config.json. layer_types: "full_attention" or "sliding_attention" of each layer; local_attention: a
-- token of the latter sees half as many on each side. rope_theta, local_rope_theta: of the two kinds. head, num_labels:
-- as of models.BERT; classifier_pooling: of sequences.
ModernBERT.__init = signature.init("models.ModernBERT(*, count vocab_size, count hidden_size=768, \z
  count intermediate_size=1152, count num_hidden_layers=22, count num_attention_heads=12, \z
  count max_position_embeddings=8192, string[] layer_types?, count local_attention=128, number rope_theta=160000, \z
  number local_rope_theta=10000, number norm_eps=1e-5, bool norm_bias=false, bool attention_bias=false, \z
  bool mlp_bias=false, bool decoder_bias=true, bool classifier_bias=false, string hidden_act='gelu', \z
  string classifier_act='gelu', 'cls'|'mean' classifier_pooling='cls', number attention_dropout=0, \z
  number embedding_dropout=0, number mlp_dropout=0, number classifier_dropout=0, number initializer_range=0.02, \z
  'sequence_classification'|'token_classification'|'question_answering'|'masked_lm' head?, count num_labels=2, \z
  bool tie_word_embeddings=true)", function(self, c)
  if c.hidden_size % c.num_attention_heads ~= 0 then
    check.fail("[models.ModernBERT] hidden_size (%d) must be a multiple of num_attention_heads (%d)", c.hidden_size,
      c.num_attention_heads)
  end
  for _, name in ipairs { "hidden_act", "classifier_act" } do activations.of(c[name], "models.ModernBERT", name) end
  if not c.layer_types then
    c.layer_types = {}
    for i = 1, c.num_hidden_layers do
      c.layer_types[i] = i % 3 == 1 and "full_attention" or "sliding_attention"
    end
  end
  self.config, self.max_length, self.model = c, c.max_position_embeddings, Trunk(c)
  if c.head then
    self.head, self.drop = Head(c), nn.Dropout(c.classifier_dropout)
    if c.head ~= "masked_lm" then
      self.classifier = nn.Linear(c.hidden_size, c.head == "question_answering" and 2 or c.num_labels)
    elseif not c.tie_word_embeddings then
      self.decoder = nn.Linear(c.hidden_size, c.vocab_size, { bias = c.decoder_bias })
    elseif c.decoder_bias then
      self.decoder_bias = nn.Parameter(moth.zeros(c.vocab_size))
    end
  end
  for _, p in ipairs(self:parameters()) do
    if p:dim() > 1 then nn.init.normal_(p, 0, c.initializer_range) end
  end
end)

-- Cosines and sines of positions 1 … T, (T, D / 2).
local function angles(c, theta, T, like)
  local D = c.hidden_size / c.num_attention_heads
  local list = {}
  for i = 0, D / 2 - 1 do list[i + 1] = theta ^ (-2 * i / D) end
  local device = like:device()
  local at = moth.arange(0, T, { dtype = moth.float32, device = device }):unsqueeze(2)
    * moth.tensor(list, { dtype = moth.float32, device = device })
  return { cos = at:cos():to(like:dtype()), sin = at:sin():to(like:dtype()) }
end

local inputs = signature("models.ModernBERT:forward(Tensor input_ids, Tensor attention_mask?)",
  function(...) return ... end)

--- The last hidden states (B, T, hidden_size), of a model with a head, too; the arguments are those of a call.
function ModernBERT:features(ids, mask)
  local c, T, model = self.config, ids:size(2), self.model
  if T > self.max_length then
    check.fail("[models.ModernBERT] %d tokens are more than max_position_embeddings, %d", T, self.max_length)
  end
  local x = model.embeddings(ids)
  local at = { far = angles(c, c.rope_theta, T, x), near = angles(c, c.local_rope_theta, T, x) }
  if mask then at.mask = mask:ne(0):unsqueeze(2):unsqueeze(2) end
  at.window = at.mask
  local reach = math.floor(c.local_attention / 2)
  if T > reach + 1 then
    local place = moth.arange(1, T + 1, { dtype = moth.int64, device = ids:device() })
    local seen = (place:unsqueeze(1) - place:unsqueeze(2)):abs():le(reach)
    at.window = at.mask and seen:logical_and(at.mask) or seen
  end
  for i = 1, c.num_hidden_layers do x = model.layers[i](x, at) end
  return model.final_norm(x)
end

--- input_ids (B, T), ids from 1; attention_mask (B, T), 0 or false where padding is.
-- @return hidden states (B, T, hidden_size); with a head, logits: see models.BERT
function ModernBERT:forward(...)
  local ids, mask = inputs(...)
  local c, x = self.config, self:features(ids, mask)
  if not c.head then return x end
  if c.head == "masked_lm" then
    x = self.head(x)
    if self.decoder then return self.decoder(x) end
    x = self.model.embeddings.tok_embeddings:as_linear(x)
    return self.decoder_bias and x + self.decoder_bias or x
  end
  if c.head == "sequence_classification" then
    if c.classifier_pooling == "cls" then
      x = x:select(2, 1)
    else
      local kept = (mask and mask:ne(0) or moth.ones_like(ids):ne(0)):to(x:dtype())
      x = (x * kept:unsqueeze(3)):sum(2) / kept:sum(2, true)
    end
  end
  local scores = self.classifier(self.drop(self.head(x)))
  if c.head == "question_answering" then return scores:select(3, 1), scores:select(3, 2) end
  return scores
end

local fields = { honoured = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads \z
    max_position_embeddings layer_types global_attn_every_n_layers local_attention rope_parameters global_rope_theta \z
    local_rope_theta norm_eps norm_bias attention_bias mlp_bias decoder_bias classifier_bias classifier_activation \z
    classifier_pooling hidden_activation embedding_dropout mlp_dropout tie_word_embeddings",
  inert = "initializer_cutoff_factor deterministic_flash_attn sparse_prediction sparse_pred_ignore_index \z
    reference_compile repad_logits_with_grad layer_norm_eps",
  only = { position_embedding_type = function(v) return v == "absolute" or v == "sans_pos" end,
    model_type = function(v) return v == "modernbert" end } }

-- The theta of a kind of layers.
local function theta_of(config, where, kind, old, default)
  local p = type(config.rope_parameters) == "table" and config.rope_parameters[kind] or {}
  if (p.rope_type or "default") ~= "default" then
    check.fail("[%s] config.json: rope_parameters of rope_type = %s are not supported", where, tostring(p.rope_type))
  end
  return p.rope_theta or config[old] or default
end

--- The model of a folder that Hugging Face's save_pretrained wrote, with the head that its config.json names; o: see
-- BERT.from_pretrained.
function ModernBERT.from_pretrained(folder, o)
  local where = "models.ModernBERT.from_pretrained"
  o = check.options(where, o, "encoder_only mapped ignore_fields")
  local config, sd = pretrained.read(folder, where, o.mapped)
  pretrained.refuse_unknown(config, where, fields, o.ignore_fields)
  local function of(names, default) return pretrained.field(config, where, names, default) end
  local head
  if not o.encoder_only then head = encoders.head_of(config, where) end
  local own = {}
  for name, t in each(sd) do
    if name:find "^embeddings%." or name:find "^layers%." or name:find "^final_norm%." then name = "model." .. name end
    if name == "decoder.bias" and config.tie_word_embeddings ~= false then name = "decoder_bias" end
    own[name] = t
  end
  local types, every = config.layer_types, config.global_attn_every_n_layers or 3
  if not types then
    types = {}
    for i = 1, of "num_hidden_layers" do
      types[i] = (i - 1) % every == 0 and "full_attention" or "sliding_attention"
    end
  end
  local c = { head = head, layer_types = types,
    rope_theta = theta_of(config, where, "full_attention", "global_rope_theta", 160000),
    local_rope_theta = theta_of(config, where, "sliding_attention", "local_rope_theta", 10000),
    hidden_act = activations.of(of("hidden_activation", "gelu"), where, "config.json: hidden_activation"),
    classifier_act = activations.of(of("classifier_activation", "gelu"), where, "config.json: classifier_activation"),
    num_labels = own["classifier.weight"] and own["classifier.weight"]:size(1) or nil }
  for _, name in ipairs { "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads" } do
    c[name] = of(name)
  end
  for name, default in each { max_position_embeddings = 8192, local_attention = 128, norm_eps = 1e-5, norm_bias = false,
    attention_bias = false, mlp_bias = false, decoder_bias = true, classifier_bias = false, classifier_pooling = "cls",
    attention_dropout = 0, embedding_dropout = 0, mlp_dropout = 0, classifier_dropout = 0,
    tie_word_embeddings = true } do
    c[name] = of(name, default)
  end
  local model = o.mapped and moth.fake_mode(ModernBERT, c) or ModernBERT(c)
  local spare = c.tie_word_embeddings and { "^decoder%.weight$" } or {}
  if o.encoder_only then spare = { "^head%.", "^decoder", "^classifier%." } end
  return pretrained.load(model, own, where, spare, o.mapped):eval()
end

return ModernBERT
