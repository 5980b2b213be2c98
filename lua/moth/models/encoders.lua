--- What models.BERT is given for a config.json of Hugging Face: of BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT,
-- ELECTRA and ALBERT, without a head or with one; and their weights by the names that it has.
local check = require "moth.utils.check"
local each = require "moth.each"
local activations = require "moth.models.activations"
local pretrained = require "moth.models.pretrained"

local M = {}

-- What the fields of BERT's config.json are to models.BERT; without a default they must be there.
local sizes = { vocab_size = "vocab_size", hidden_size = "hidden_size", num_hidden_layers = "num_hidden_layers",
  num_attention_heads = "num_attention_heads", intermediate_size = "intermediate_size",
  max_position_embeddings = "max_position_embeddings", type_vocab_size = "type_vocab_size",
  layer_norm_eps = "layer_norm_eps", dropout = "hidden_dropout_prob", hidden_act = "hidden_act",
  attention_dropout = "attention_probs_dropout_prob", classifier_dropout = "classifier_dropout" }
local defaults = { max_position_embeddings = 512, type_vocab_size = 2, layer_norm_eps = 1e-12, dropout = 0.1,
  attention_dropout = 0.1, hidden_act = "gelu" }

--- By model_type. prefix: before the names of the body. names, head_names: patterns of names and what they become, in
-- order. fields: where a config has other names than BERT's, or false: none. own: what the family does that its config
-- does not say.
M.known = {
  bert = { prefix = "bert", head_names = { { "^cls%.predictions%.transform%.", "predictions." },
    { "^cls%.predictions%.", "predictions." } } },
  roberta = { prefix = "roberta", own = { mlm_act = "gelu", dropout_before = true }, pad = 1,
    head_names = { { "^classifier%.dense%.", "pooler.dense." }, { "^classifier%.out_proj%.", "classifier." },
      { "^lm_head%.layer_norm%.", "predictions.LayerNorm." }, { "^lm_head%.", "predictions." } } },
  electra = { prefix = "electra", embedding = 128,
    own = { mlm_act = "gelu", pooler_act = "gelu", dropout_before = true },
    head_names = { { "^classifier%.dense%.", "pooler.dense." }, { "^classifier%.out_proj%.", "classifier." },
      { "^generator_predictions%.", "predictions." }, { "^generator_lm_head%.bias", "predictions.bias" },
      { "^generator_lm_head%.", "predictions.decoder." } } },
  distilbert = { prefix = "distilbert", own = { pooler_act = "relu", attention_output_dropout = 0 },
    fields = { hidden_size = "dim", num_hidden_layers = "n_layers", num_attention_heads = "n_heads",
      intermediate_size = "hidden_dim", type_vocab_size = false, layer_norm_eps = false, dropout = "dropout",
      hidden_act = "activation", attention_dropout = "attention_dropout", classifier_dropout = false },
    names = { { "^transformer%.", "encoder." }, { "%.attention%.q_lin%.", ".attention.self.query." },
      { "%.attention%.k_lin%.", ".attention.self.key." }, { "%.attention%.v_lin%.", ".attention.self.value." },
      { "%.attention%.out_lin%.", ".attention.output.dense." },
      { "%.sa_layer_norm%.", ".attention.output.LayerNorm." }, { "%.ffn%.lin1%.", ".intermediate.dense." },
      { "%.ffn%.lin2%.", ".output.dense." }, { "%.output_layer_norm%.", ".output.LayerNorm." } },
    head_names = { { "^pre_classifier%.", "pooler.dense." }, { "^vocab_transform%.", "predictions.dense." },
      { "^vocab_layer_norm%.", "predictions.LayerNorm." }, { "^vocab_projector%.bias", "predictions.bias" },
      { "^vocab_projector%.", "predictions.decoder." } } },
  albert = { prefix = "albert", embedding = 128, is_shared = true, own = { output_dropout = 0 },
    defaults = { hidden_act = "gelu_new", dropout = 0, attention_dropout = 0, classifier_dropout = 0.1 },
    fields = { classifier_dropout = "classifier_dropout_prob" },
    names = { { "^encoder%.embedding_hidden_mapping_in%.", "embeddings_project." },
      { "%.attention%.([qkv]%l+)%.", ".attention.self.%1." },
      { "%.attention%.dense%.", ".attention.output.dense." },
      { "%.attention%.LayerNorm%.", ".attention.output.LayerNorm." }, { "%.ffn_output%.", ".output.dense." },
      { "%.ffn%.", ".intermediate.dense." }, { "%.full_layer_layer_norm%.", ".output.LayerNorm." },
      { "^pooler%.(%l+)$", "pooler.dense.%1" } },
    head_names = { { "^predictions%.", "predictions." } } },
}
M.known["xlm-roberta"], M.known.camembert = M.known.roberta, M.known.roberta
M.names = "albert, bert, camembert, distilbert, electra, modernbert, roberta and xlm-roberta"

-- What the classes of transformers are called, behind the family, and the heads that they have here.
local heads = { ForSequenceClassification = "sequence_classification", ForTokenClassification = "token_classification",
  ForQuestionAnswering = "question_answering", ForMaskedLM = "masked_lm" }

local function fail(where, ...) check.fail("[%s] config.json: %s", where, (...):format(select(2, ...))) end

-- Fields that change nothing: those of poolers do not in transformers, too; those of summaries are of other heads.
local inert = "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head \z
  pooler_type sinusoidal_pos_embds summary_type summary_use_proj summary_activation summary_last_dropout \z
  summary_first_dropout qa_dropout seq_classif_dropout classifier_dropout classifier_dropout_prob tie_weights_ \z
  down_scale_factor gap_size net_structure_type num_memory_blocks language name"
local function is_plain(v) return v == "absolute" end

--- The head of a config, or nil.
function M.head_of(config, where)
  local name = type(config.architectures) == "table" and config.architectures[1]
  if not name or name:find "Model$" then return nil end
  local head = heads[name:match "For%u%a*$" or ""]
  return head or fail(where, "architectures = %s is not supported; there are the model without a head, \z
    ForMaskedLM, ForQuestionAnswering, ForSequenceClassification and ForTokenClassification; give encoder_only = true \z
    to leave the head out, and put a layer of your own behind", tostring(name))
end

-- sd with models.BERT's names. ALBERT has its layers in groups: those of group g stand at g * inner and behind.
local function renamed(sd, family, head, inner, is_untied)
  local out = {}
  local function put(name, t)
    name = name:gsub("LayerNorm%.gamma$", "LayerNorm.weight"):gsub("LayerNorm%.beta$", "LayerNorm.bias")
    out[name] = t
  end
  local function apply(list, name)
    for _, rule in ipairs(list or {}) do
      local new, n = name:gsub(rule[1], rule[2])
      if n > 0 then name = new end
    end
    return name
  end
  local behind = {}
  for name, t in each(sd) do
    local own = name:gsub("^" .. family.prefix .. "%.", "")
    own = own:gsub("^encoder%.albert_layer_groups%.(%d+)%.albert_layers%.(%d+)%.", function(group, i)
      return ("encoder.layer.%d."):format(group * inner + i)
    end)
    own = apply(family.names, own)
    local of_head = head and apply(family.head_names, own) or own
    if of_head ~= own then behind[of_head] = t else put(own, t) end
  end
  for name, t in each(behind) do put(name, t) end -- a head's own pooler stands in for the body's
  -- Of two biases of words the decoder's is computed with, if it is not tied to the other.
  local of_decoder = out["predictions.decoder.bias"]
  out["predictions.decoder.bias"] = nil
  if of_decoder and (is_untied or not out["predictions.bias"]) then out["predictions.bias"] = of_decoder end
  return out
end

--- The options of models.BERT for a config.json, the weights {name = tensor} with its names, and patterns of weights
-- that may be left. encoder_only: without the head; ignored: see pretrained.refuse_unknown.
function M.read(config, sd, where, encoder_only, ignored)
  local kind = config.model_type or "bert"
  local family = M.known[kind]
  if not family then fail(where, "model_type = %s is not supported; there are %s", tostring(kind), M.names) end
  local honoured, c = { "tie_word_embeddings" }, {}
  for name, field in each(sizes) do
    local own = family.fields and family.fields[name]
    if own == nil then own = field end
    if own then
      honoured[#honoured + 1] = own
      local default = (family.defaults or {})[name]
      if default == nil then default = defaults[name] end
      if name == "classifier_dropout" then default = default or false end
      c[name] = pretrained.field(config, where, own, default) or nil
    end
  end
  local head
  if not encoder_only then head = M.head_of(config, where) end
  if family.embedding then
    honoured[#honoured + 1] = "embedding_size num_hidden_groups inner_group_num"
    c.embedding_size = config.embedding_size or family.embedding
    if c.embedding_size == c.hidden_size and not family.is_shared then c.embedding_size = nil end
  end
  if family.is_shared then
    c.num_hidden_groups, c.inner_group_num = config.num_hidden_groups or 1, config.inner_group_num or 1
  end
  if kind == "distilbert" then
    c.type_vocab_size = 0
    if head == "sequence_classification" then c.classifier_dropout = config.seq_classif_dropout or 0.2 end
  end
  if head == "question_answering" then
    c.classifier_dropout = kind == "distilbert" and (config.qa_dropout or 0.1) or 0
  end
  pretrained.refuse_unknown(config, where, { honoured = table.concat(honoured, " "), inert = inert,
    only = { position_embedding_type = is_plain, layers_to_keep = function(v) return next(v) == nil end } }, ignored)
  activations.of(c.hidden_act, where, "config.json: hidden_act")
  for name, v in each(family.own or {}) do c[name] = v end
  if family.pad then c.padding_id = (config.pad_token_id or family.pad) + 1 end
  c.tie_word_embeddings = config.tie_word_embeddings ~= false
  sd = renamed(sd, family, head, c.inner_group_num or 1, not c.tie_word_embeddings)
  if not head then
    for name in each(sd) do
      local is_body = name:find "^embeddings" or name:find "^encoder%." or name:find "^pooler%."
      if not is_body and encoder_only then
        sd[name] = nil
      elseif not is_body then
        check.fail("[%s] the folder has a weight of a head, %s, and the architectures of its config.json name none; \z
          give encoder_only = true to leave it out, and put a layer of your own behind", where, name)
      end
    end
  end
  c.head = head
  c.pooler = head == "sequence_classification" or not head and sd["pooler.dense.weight"] ~= nil
  if not head then c.pooler_act = nil end
  if head == "sequence_classification" or head == "token_classification" then
    local last = sd["classifier.weight"]
    c.num_labels = last and last:size(1) or nil
  end
  -- Checkpoints may have what is left of their training.
  local spare = { "position_ids$", "token_type_ids$" }
  if head == "masked_lm" then
    spare[#spare + 1] = "^cls%.seq_relationship%."
    spare[#spare + 1] = "^sop_classifier%."
    if c.tie_word_embeddings then spare[#spare + 1] = "^predictions%.decoder%.weight$" end
  end
  if head and not c.pooler then spare[#spare + 1] = "^pooler%." end
  return c, sd, spare
end

return M
