--- Language models in GGUF files: names of weights and fields of metadata, both ways.
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"
local form = require "moth.utils.form"
local signature = require "moth.utils.signature"
local pretrained = require "moth.models.pretrained"
local blocks = require "moth.quantization.blocks"
local choice = require "moth.models.gguf_choice"
local kinds = require "moth.models.gguf_kinds"
local rope = require "moth.models.rope"
local words = require "moth.data.words"

local M = {}

local gpt2 = {
  layer = "h.%d.",
  inside = { attn_norm = "ln_1", attn_qkv = "attn.c_attn", attn_output = "attn.c_proj", ffn_norm = "ln_2",
    ffn_up = "c_fc", ffn_down = "c_proj" },
  outside = { token_embd = "wte", position_embd = "wpe", output_norm = "ln_f", output = "lm_head" },
}

local function moths_name(names, name)
  local layer, part, rest = name:match "^blk%.(%d+)%.([%w_]+)%.(%w+)$"
  if layer then
    return names.inside[part] and names.layer:format(tonumber(layer)) .. names.inside[part] .. "." .. rest
  end
  part, rest = name:match "^([%w_]+)%.(%w+)$"
  return part and names.outside[part] and names.outside[part] .. "." .. rest
end

-- Puts a tensor of a file under its name here, and what has no name there under its own.
local function put_tensor(names, name, t, kind, own, types)
  local layer, part, rest = name:match "^blk%.(%d+)%.([%w_.]+)%.(%w+)$"
  if layer and kinds.put(t, kind, layer, part, rest, own, types) then return end
  local short = moths_name(names, name) or name
  own[short], types[short] = t, kind
end

local function inverse(t)
  local out = {}
  for key, value in each(t) do out[value] = key end
  return out
end

local function ggufs_name(names, name)
  local pattern = "^" .. names.layer:gsub("%.", "%%."):gsub("%%d", "(%%d+)")
  local layer = name:match(pattern)
  local rest = layer and name:sub(#names.layer:format(tonumber(layer)) + 1) or name
  local part, kind = rest:match "^(.*)%.(%w+)$"
  local found = inverse(layer and names.inside or names.outside)[part]
  return found and (layer and ("blk.%d."):format(tonumber(layer)) or "") .. found .. "." .. kind
end

-- ---- reading -----------------------------------------------------------------------------------------

-- What fields must be that are no whole numbers.
local forms = { ["rope.scaling.type"] = "text", ["rope.scaling.factor"] = "number",
  ["rope.scaling.attn_factor"] = "number", ["rope.scaling.yarn_attn_factor"] = "number",
  ["rope.scaling.yarn_ext_factor"] = "number", ["rope.scaling.yarn_beta_fast"] = "number",
  ["rope.scaling.yarn_beta_slow"] = "number", ["rope.scaling.yarn_log_multiplier"] = "number",
  ["rope.scale_linear"] = "number",
  ["rope.freq_base"] = "number", ["rope.freq_base_swa"] = "number",
  ["attention.layer_norm_rms_epsilon"] = "number", attn_logit_softcapping = "number",
  final_logit_softcapping = "number", ["attention.layer_norm_epsilon"] = "number", ["attention.scale"] = "number",
  ["attention.clamp_kqv"] = "number", embedding_scale = "number", residual_scale = "number", logit_scale = "number",
  expert_weights_scale = "number", expert_weights_norm = "flag", use_parallel_residual = "flag" }

-- Fields that change no number of those models, and what others may be that are not read.
local inert = { vocab_size = true, tensor_data_layout = true, ["rope.scaling.finetuned"] = true,
  ["rope.scaling.original_context_length"] = true, ["rope.dimension_count"] = true }
local function is_zero(v) return v == 0 end
local only = { expert_count = is_zero, expert_used_count = is_zero, leading_dense_block_count = is_zero,
  pooling_type = is_zero, ["attention.causal"] = function(v) return v == true end,
  ["attention.value_length"] = function(v, of) return v == of("attention.key_length",
    of "embedding_length" / of "attention.head_count") end,
  ["attention.layer_norm_epsilon"] = function(v) return math.abs(v - 1e-5) < 1e-9 end,
  feed_forward_length = function(v, of) return v == 4 * of "embedding_length" end }

-- Refuses a file with a field of its architecture that changes the numbers and was not read.
local function refuse_unread(metadata, of, read, path, where)
  local start = metadata["general.architecture"] .. "."
  for key, v in each(metadata) do
    local name = key:sub(1, #start) == start and key:sub(#start + 1)
    if name and not read[name] and not inert[name] then
      local right = only[name]
      if not (type(v) ~= "table" and right and right(v, of)) then
        check.fail("[%s] %s: %s = %s is not supported", where, path, key, type(v) == "table" and "{ … }" or tostring(v))
      end
    end
  end
end

-- of(name, default): a field of the architecture's; an error without it and a default. read: the names that it was
-- asked for.
local function reader(metadata, path, where)
  local kind, read = metadata["general.architecture"], {}
  return function(name, default)
    read[name] = true
    local key = ("%s.%s"):format(kind, name)
    local v = metadata[key]
    if v == nil then v = default end
    if v == nil then check.fail("[%s] %s has no %s", where, path, key) end
    if v ~= default and not (name == "attention.sliding_window_pattern" and type(v) == "table") then
      form.check(v, forms[name] or "count", function(_, expected)
        check.fail("[%s] %s: %s: expected %s, got %s", where, path, key, expected, tostring(v))
      end)
    end
    return v or nil
  end, read
end

-- What the fields say is there must be: sizes that no tensor has would take time and memory before they are refused.
local function check_sizes(file, of, path, where)
  local embedding, layers, count = file.tensors["token_embd.weight"], 0, 0
  local columns = embedding and embedding:dim() == 2 and blocks.columns(embedding, file.types["token_embd.weight"])
  if not embedding or embedding:dim() ~= 2 then
    check.fail("[%s] %s: it has no matrix token_embd.weight", where, path)
  end
  for name in each(file.tensors) do
    local layer = tonumber(name:match "^blk%.(%d+)%.")
    if layer then layers, count = math.max(layers, layer + 1), count + 1 end
  end
  if of "block_count" > math.min(layers, count) then
    check.fail("[%s] %s: block_count is %d, there are tensors of %d blocks", where, path, of "block_count", layers)
  end
  local heads, width = of "attention.head_count", of "embedding_length"
  if width ~= columns or heads < 1 then
    check.fail("[%s] %s: embedding_length is %d and attention.head_count %d, token_embd.weight has rows of %d", where,
      path, width, heads, columns)
  end
  local head_dim, factors = of("attention.key_length", width / heads), file.tensors["rope_freqs.weight"]
  if head_dim > 65536 or head_dim ~= math.floor(head_dim)
    or factors and (factors:dim() ~= 1 or factors:size(1) < head_dim / 2) then
    check.fail("[%s] %s: attention.key_length (%g) or rope_freqs.weight is damaged", where, path, head_dim)
  end
end

local function scaling_of(of, where, path)
  -- Without a type, a factor is linear, as in llama.cpp; rope.scale_linear is its older name.
  local old = of("rope.scale_linear", false)
  local kind = of("rope.scaling.type", (old or of("rope.scaling.factor", false)) and "linear" or "none")
  local function field(name) return of("rope.scaling." .. name, false) end
  local attention = field "attn_factor" or nil
  if kind == "none" then return attention and { rope_type = "default", attention_factor = attention } end
  if kind ~= "linear" and kind ~= "yarn" then
    check.fail("[%s] %s: rope.scaling.type '%s' is not supported; there are linear and yarn", where, path, kind)
  end
  local s = { rope_type = kind, factor = of("rope.scaling.factor", old), attention_factor = attention,
    original_max_position_embeddings = field "original_context_length" or nil }
  if kind == "linear" then return s end
  local ext, log = field "yarn_ext_factor", field "yarn_log_multiplier"
  if ext and ext ~= 1 then
    check.fail("[%s] %s: rope.scaling.yarn_ext_factor = %g is not supported", where, path, ext)
  end
  if log and log ~= 0 then s.mscale, s.mscale_all_dim = 1, log end
  s.beta_fast, s.beta_slow = field "yarn_beta_fast" or nil, field "yarn_beta_slow" or nil
  -- attn_factor is what comes to YaRN's own factor; yarn_attn_factor is the whole, as Hugging Face's attention_factor.
  s.attention_factor = attention and attention * rope.mscale(s.factor) or field "yarn_attn_factor" or nil
  return s
end

local function as_llama(file, of, where, path)
  local function fail(...) check.fail("[%s] %s: %s", where, path, (...):format(select(2, ...))) end
  return moth.models.Llama(kinds.options(file, of, scaling_of(of, where, path), fail))
end

local function as_gpt2(file, of)
  return moth.models.GPT { vocab_size = file.tensors["token_embd.weight"]:size(1), n_layer = of "block_count",
    n_head = of "attention.head_count", n_embd = of "embedding_length", block_size = of "context_length" }
end

-- Merges of a SentencePiece vocabulary, which has scores: each way to make a piece of two, the best piece first.
local function merges_of(tokens, scores)
  local there, list = {}, {}
  for i, token in ipairs(tokens) do there[token] = i end
  for i, token in ipairs(tokens) do
    for k = 1, #token - 1 do
      local left, right = token:sub(1, k), token:sub(k + 1)
      if there[left] and there[right] then list[#list + 1] = { left, right, scores[i] or 0, #list } end
    end
  end
  table.sort(list, function(a, b) return a[3] > b[3] or a[3] == b[3] and a[4] < b[4] end)
  local rank, last = 0, nil -- equal scores, equal ranks: the leftmost goes first
  for _, merge in ipairs(list) do
    if merge[3] ~= last then rank, last = rank + 1, merge[3] end
    merge[3], merge[4] = rank, nil
  end
  return list
end

-- How words are cut, by llama.cpp's names; "%d": the most digits of a number.
local CONTRACTION, TAIL = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
local LLAMA3 = CONTRACTION .. "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,%d}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" .. TAIL
-- Words of large letters and then small ones, with their marks.
local CASES = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+%s|"
  .. "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*%s|%s|"
  .. " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" .. TAIL
local patterns = { ["llama-bpe"] = LLAMA3:gsub("%%d", "3"), qwen2 = LLAMA3:gsub("%%d", "1"),
  ["gpt-4o"] = CASES:format(CONTRACTION .. "?", CONTRACTION .. "?", "\\p{N}{1,3}"),
  tekken = CASES:format("", "", "\\p{N}") }
patterns.llama3, patterns["llama-v3"] = patterns["llama-bpe"], patterns["llama-bpe"]
local whole_words = { ["llama-bpe"] = true, llama3 = true, ["llama-v3"] = true, tekken = true } -- ignore_merges
local CONTROL, USER = 3, 4 -- types of tokens
-- The fields of special tokens.
local ids_of = { bos = "bos_token_id", eos = "eos_token_id", unk = "unknown_token_id", pad = "padding_token_id",
  sep = "seperator_token_id", mask = "mask_token_id" }

local numbers, texts = { list = "number" }, { list = "text" }
local Tokens = { ["tokenizer.ggml.model"] = "text?", ["tokenizer.ggml.tokens"] = texts,
  ["tokenizer.ggml.token_type"] = numbers, ["tokenizer.ggml.scores"] = numbers, ["tokenizer.ggml.merges"] = texts,
  ["tokenizer.ggml.pre"] = "text?", ["tokenizer.ggml.unknown_token_id"] = "count?",
  ["tokenizer.ggml.bos_token_id"] = "count?", ["tokenizer.ggml.eos_token_id"] = "count?",
  ["tokenizer.ggml.padding_token_id"] = "count?", ["tokenizer.ggml.seperator_token_id"] = "count?",
  ["tokenizer.ggml.mask_token_id"] = "count?", ["tokenizer.ggml.eot_token_id"] = "count?",
  ["tokenizer.ggml.eom_token_id"] = "count?", ["tokenizer.ggml.add_bos_token"] = "flag?",
  ["tokenizer.ggml.add_eos_token"] = "flag?", ["tokenizer.ggml.add_space_prefix"] = "flag?",
  ["tokenizer.moth.normalizer"] = "text?", ["tokenizer.moth.ignore_merges"] = "flag?",
  ["tokenizer.chat_template"] = "text?" }

-- What a tokenizer.json would say; nil: the file has no tokenizer.
local function tokenizer_of(metadata, path, where)
  form.check(metadata, Tokens, function(at, wanted) check.fail("[%s] %s: %s: expected %s", where, path, at, wanted) end)
  local function of(name) return metadata["tokenizer.ggml." .. name] end
  local kind, tokens = of "model", of "tokens"
  if not tokens then return nil end
  local vocab, added, types = {}, {}, of "token_type" or {}
  for i, token in ipairs(tokens) do
    vocab[token] = i - 1
    if types[i] == CONTROL or types[i] == USER then
      added[#added + 1] = { id = i - 1, content = token, special = types[i] == CONTROL }
    end
  end
  local out = { model = { type = "BPE", vocab = vocab }, added_tokens = added }
  if kind == "gpt2" then
    out.model.merges, out.model.ignore_merges = of "merges" or {}, whole_words[of "pre"]
    if metadata["tokenizer.moth.ignore_merges"] ~= nil then
      out.model.ignore_merges = metadata["tokenizer.moth.ignore_merges"]
    end
    if metadata["tokenizer.moth.normalizer"] then out.normalizer = { type = metadata["tokenizer.moth.normalizer"] } end
    local byte_level = { type = "ByteLevel", add_prefix_space = false, use_regex = false }
    if of "pre" == nil or of "pre" == "gpt-2" or of "pre" == "default" then
      byte_level.use_regex = nil
      out.pre_tokenizer = byte_level
    elseif of "pre" == "smollm" or of "pre" == "starcoder" then
      byte_level.use_regex = nil
      out.pre_tokenizer = { type = "Sequence", pretokenizers = { { type = "Digits", individual_digits = true },
        byte_level } }
    elseif patterns[of "pre"] then
      local split = { type = "Split", pattern = { Regex = patterns[of "pre"] }, behavior = "Isolated" }
      out.pre_tokenizer = { type = "Sequence", pretokenizers = { split, byte_level } }
    else
      check.fail("[%s] %s: the words of its tokenizer, '%s', are not known; there are gpt-2, gpt-4o, llama-bpe, "
        .. "qwen2, smollm and tekken", where, path, tostring(of "pre"))
    end
  elseif kind == "llama" then
    out.model.merges, out.model.byte_fallback, out.model.fuse_unk = merges_of(tokens, of "scores" or {}), true, true
    out.model.unk_token = tokens[(of "unknown_token_id" or 0) + 1]
    local replace = { type = "Replace", pattern = { String = " " }, content = "▁" }
    out.normalizer = of "add_space_prefix" == false and replace
      or { type = "Sequence", normalizers = { { type = "Prepend", prepend = "▁" }, replace } }
  else
    check.fail("[%s] %s: its tokenizer is of kind '%s'; there are gpt2 and llama", where, path, tostring(kind))
  end
  -- Ids around a text. Left out, add_bos_token is true for SentencePiece and Llama 3's words, as in llama.cpp.
  local single, around = { { Sequence = { id = "A" } } }, {}
  local function put(name, at)
    local id = of(name)
    if id and not tokens[id + 1] then
      check.fail("[%s] %s: %s is %d, there are %d tokens", where, path, name, id, #tokens)
    end
    if id and at then
      table.insert(single, at, { SpecialToken = { id = tokens[id + 1] } })
      around[tokens[id + 1]] = { ids = { id } }
    end
  end
  local default = of "add_bos_token" == nil and (kind == "llama" or whole_words[of "pre"])
  put("eos_token_id", of "add_eos_token" and 2)
  put("bos_token_id", (of "add_bos_token" or default) and 1)
  if next(around) then
    out.post_processor = { type = "TemplateProcessing", single = single, special_tokens = around }
  end
  return moth.data.Tokenizer(out)
end

M.tokenizer = tokenizer_of

--- A model, its tokenizer (nil: the file has none), and { eos =, chat_template = }. as_floats: quantized weights, too.
function M.load(path, where, as_floats)
  local file = moth.gguf.load(path, { blocks = not as_floats })
  local kind = file.metadata["general.architecture"]
  if kind ~= "gpt2" and not kinds.known[kind] then
    check.fail("[%s] %s: models of architecture '%s' are not supported; there are gpt2, %s", where, path,
      tostring(kind), kinds.list)
  end
  local of, read = reader(file.metadata, path, where)
  check_sizes(file, of, path, where)
  local tokenizer = tokenizer_of(file.metadata, path, where)
  pretrained.one_dtype(file.tensors, where, function(t, name) return blocks.is(t, file.types[name]) end)
  local model = moth.fake_mode(kind == "gpt2" and as_gpt2 or as_llama, file, of, where, path)
  refuse_unread(file.metadata, of, read, path, where)
  local own, types, names = {}, {}, kind == "gpt2" and gpt2 or kinds.names(kind, file)
  for name, t in each(file.tensors) do
    if not name:find "^rope_f%l+" then
      put_tensor(names, name, t, blocks.is(t, file.types[name]) and file.types[name] or nil, own, types)
    end
  end
  kinds.check_parts(own, function(...) check.fail("[%s] %s: %s", where, path, (...):format(select(2, ...))) end)
  for name, of_blocks in each(types) do -- it is multiplied from both sides
    if name:find "kv_b_proj%.weight$" then own[name], types[name] = moth.unpack_blocks(own[name], of_blocks), nil end
  end
  pretrained.keep_blocks(model, own, types)
  local ignore = kind == "gpt2" and { "^lm_head%.weight$" }
    or { ("^model%%.layers%%.%d%%."):format(model.config.num_hidden_layers), "^blk%.%d+%.nextn%." }
  pretrained.load(model, own, where, ignore, true)
  if model.reset_buffers then model:reset_buffers() end
  local ends = {} -- of a text, of a turn, of a message
  for _, name in ipairs { "eos", "eot", "eom" } do
    local id = file.metadata["tokenizer.ggml." .. name .. "_token_id"]
    if id then ends[#ends + 1] = id + 1 end
  end
  if tokenizer then
    tokenizer.special_tokens = {}
    for name, key in each(ids_of) do
      local id = file.metadata["tokenizer.ggml." .. key]
      tokenizer.special_tokens[name .. "_token"] = id and tokenizer:token(id + 1)
    end
    tokenizer.chat_template = file.metadata["tokenizer.chat_template"]
  end
  return model, tokenizer,
    { eos = ends[1] and ends or nil, chat_template = file.metadata["tokenizer.chat_template"] }
end

-- ---- writing -----------------------------------------------------------------------------------------

-- Rows of a weight of queries or keys, from halves to neighbours.
local function interleaved(t, heads)
  local rows = t:size(1)
  local shape = t:dim() == 2 and { heads, 2, rows / heads / 2, t:size(2) } or { heads, 2, rows / heads / 2 }
  return t:reshape(shape):transpose(2, 3):reshape(t:size())
end

local function metadata_of(model)
  local c, out = model.config, {}
  if model:is_a(moth.models.GPT) then
    local name = model:beyond_gpt2()
    if name then check.fail("[models.save_gguf] llama.cpp has no architecture for GPT-2 with %s", name) end
    out["general.architecture"] = "gpt2"
    for key, v in each { context_length = c.block_size, embedding_length = c.n_embd, block_count = c.n_layer,
      vocab_size = c.vocab_size,
      feed_forward_length = c.n_inner or 4 * c.n_embd, ["attention.head_count"] = c.n_head } do
      out["gpt2." .. key] = v
    end
    out["gpt2.attention.layer_norm_epsilon"] = 1e-5
    return out, gpt2
  end
  return nil
end

local function tokenizer_metadata(out, tokenizer)
  if type(tokenizer) ~= "table" or not tokenizer.merge_list then
    check.fail("[models.save_gguf] tokenizer: expected one of moth.tokenizer.load, got %s", tostring(tokenizer))
  elseif not tokenizer.byte_level then
    check.fail("[models.save_gguf] only byte-level tokenizers (GPT-2, Llama 3, Qwen2) can be written")
  end
  local tokens, types = {}, {}
  for i = 1, tokenizer:size() do
    tokens[i] = tokenizer:token(i) or ("[unused%d]"):format(i)
    types[i] = tokenizer.special[i] and CONTROL or tokenizer.is_added[i] and USER or 1
  end
  out["tokenizer.ggml.model"], out["tokenizer.ggml.tokens"], out["tokenizer.ggml.token_type"] = "gpt2", tokens, types
  local cuts, names = tokenizer.cuts, {}
  for k, step in ipairs(cuts) do
    names[k] = (step[1] == "cut" or step[1] == "split" and step[4] == "Isolated" and not step[5]) and step[2]
  end
  local pre
  if #cuts == 2 and names[1] == "each_digit" and names[2] == "gpt2" then
    pre = "smollm"
  elseif #cuts == 1 and names[1] then
    pre = names[1] == "gpt2" and "gpt-2"
      or words.of(names[1]) and (names[1]:find("|\\p{N}{1,3}", 1, true) and "llama-bpe"
      or names[1]:find("|\\p{N}|", 1, true) and "qwen2" or names[1] == patterns.qwen2 and "qwen2")
    for name, pattern in each(patterns) do pre = pre or pattern == names[1] and name end
  end
  if not pre then check.fail("[models.save_gguf] llama.cpp does not know how this tokenizer cuts words") end
  out["tokenizer.ggml.pre"] = pre
  out["tokenizer.ggml.merges"] = tokenizer:merge_list()
  local function put(key, value) out["tokenizer.ggml." .. key] = value end
  if #tokenizer.first > 1 or #tokenizer.last > 1 then
    check.fail("[models.save_gguf] the tokenizer puts %d tokens in front of a text and %d behind it; llama.cpp puts \z
      one", #tokenizer.first, #tokenizer.last)
  end
  -- Both are told even where they are false: what is left out depends on the kind in llama.cpp.
  put("add_bos_token", tokenizer.first[1] ~= nil)
  put("add_eos_token", tokenizer.last[1] ~= nil)
  local special = tokenizer.special_tokens or {}
  local function id_of(name) return special[name] and tokenizer:id(special[name]) end
  local bos, eos = tokenizer.first[1] or id_of "bos_token", tokenizer.last[1] or id_of "eos_token"
  put("bos_token_id", bos and bos - 1)
  put("eos_token_id", eos and eos - 1)
  for _, name in ipairs { "unk", "pad", "sep", "mask" } do
    local id = id_of(name .. "_token")
    put(ids_of[name], id and id - 1)
  end
  -- llama.cpp has no normal forms; this one is moth's own.
  if #tokenizer.normal == 1 and tokenizer.normal[1][1] == "nfc" then
    out["tokenizer.moth.normalizer"] = "NFC"
  elseif #tokenizer.normal > 0 then
    check.fail("[models.save_gguf] llama.cpp does not know the normalizer '%s' of this tokenizer",
      tokenizer.normal[1][1])
  end
  if (tokenizer.ignore_merges or false) ~= (whole_words[pre] or false) then
    out["tokenizer.moth.ignore_merges"] = tokenizer.ignore_merges or false
  end
end

-- Whether this is not a weight, but the type of one.
local function is_number(of_blocks, name)
  return name:find "%.block_type$" and of_blocks[name:gsub("%.block_type$", ".weight")] ~= nil
end

local function heads_of(c)
  local l = c.latent
  return l and { count = c.num_attention_heads, nope = l.nope, value = l.value }
end

-- A model's tensors by a file's names, of which the shapes matter; nil and a name that has none there.
local function shapes_of(model, names)
  local out, parts, of_blocks = {}, {}, blocks.types(model)
  for name, t in model:state_dict():items() do
    if not is_number(of_blocks, name) and not kinds.collect(t, of_blocks[name], name, heads_of(model.config), parts,
      out) then
      local to = ggufs_name(names, name)
      if not to then return nil, name end
      out[to] = t
    end
  end
  for name, list in each(parts) do out[name] = list[1][1] end
  if choice.has_factors(model.config) then out["rope_freqs.weight"] = model:rope_factors() end
  return out
end

--- Writes a models.GPT or models.Llama as a GGUF file. type: F32, F16, BF16, Q8_0 or Q4_0 (of the weights of products;
-- left out: their dtype); tokenizer: a byte-level one, which is written, too; chat_template: its text.
M.save = signature("models.save_gguf(Module model, path path, *, string type?, any tokenizer?, string chat_template?)",
function(model, path, kind, tokenizer, chat_template)
  if not (model:is_a(moth.models.GPT) or model:is_a(moth.models.Llama)) then
    check.fail("[models.save_gguf] expected a models.GPT or models.Llama, got %s", model.__name)
  end
  local c = model.config
  local metadata, names = metadata_of(model)
  if metadata == nil then
    metadata, names = choice.choose(c, function(own) return shapes_of(model, own) end, scaling_of)
  end
  local arch = kinds.known[metadata["general.architecture"]] or {}
  local of_blocks, types, tensors, parts = blocks.types(model), {}, {}, {}
  if c.num_hidden_layers and choice.has_factors(c) then tensors["rope_freqs.weight"] = model:rope_factors() end
  for name, t in model:state_dict():items() do
    local of = of_blocks[name]
    if of and kind and kind ~= of then t, of = moth.unpack_blocks(t, of), nil end
    local heads = name:find "q_proj" and c.num_attention_heads or name:find "k_proj" and c.num_key_value_heads
    if heads and arch.interleaved and not c.rope_interleaved then t = interleaved(t, heads) end
    if c.norm_offset and name:find "norm%.weight$" then t = t:to(moth.float32) + 1 end
    if not is_number(of_blocks, name) and not kinds.collect(t, of, name, heads_of(c), parts, tensors) then
      local out = ggufs_name(names, name)
      if not out then
        check.fail("[models.save_gguf] GGUF has no name for %s: expected the weights of a float model or of one with \z
          blocks, not quantised otherwise, without other layers; type = 'Q8_0' or 'Q4_0' writes small ones", name)
      end
      tensors[out], types[out] = t, of
    end
  end
  kinds.join(parts, tensors, types)
  if tokenizer then tokenizer_metadata(metadata, tokenizer) end
  metadata["tokenizer.chat_template"] = chat_template
  local ends, at = c.eos or {}, 1
  if metadata["tokenizer.ggml.eos_token_id"] == nil and ends[1] then
    metadata["tokenizer.ggml.eos_token_id"] = ends[1] - 1
  end
  for _, id in ipairs(ends) do
    if id - 1 ~= metadata["tokenizer.ggml.eos_token_id"] then
      local key = ({ "eot", "eom" })[at]
      if not key then check.fail("[models.save_gguf] a GGUF file has 3 ids that end a text, the model %d", #ends) end
      metadata["tokenizer.ggml." .. key .. "_token_id"], at = id - 1, at + 1
    end
  end
  moth.gguf.save(path, metadata, tensors, function(name, t)
    if types[name] or not kind then return types[name] end
    local is_small = t:dim() == 1 or name:find "norm" or name:find "position" or name:find "ffn_gate_inp"
    return is_small and "F32" or kind
  end)
end)

return M
