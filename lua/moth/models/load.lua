--- moth.models.load: a language model or an encoder from a folder of Hugging Face's form, or a language model from a
-- GGUF file.
--
--     local model, tokenizer, info = moth.models.load "folder"     -- config.json, model.safetensors, tokenizer.json
--     local model = moth.models.load("model.gguf", { dtype = moth.float32 })
--
-- Weights are mapped, not copied: pages are read when they are used, and processes that load one file share them. So
-- are the quantized blocks of a GGUF file, which are multiplied as they are (quantization.BlockLinear). Those that must
-- be converted (another dtype, GPT-2's transposed ones) are copies.
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local encoders = require "moth.models.encoders"
local families = require "moth.models.families"
local pretrained = require "moth.models.pretrained"
local system = require "moth.utils.system"

local where = "models.load"

local function text_of(path)
  local f = io.open(path, "rb")
  local text = f and f:read "*a"
  if f then f:close() end
  return text
end

-- Ids from 0, one or several, as a list of ids from 1; nil: none.
local function ids_from_1(v)
  if type(v) == "number" then v = { v } end
  if type(v) ~= "table" or #v == 0 then return nil end
  local out = {}
  for i, id in ipairs(v) do
    if type(id) ~= "number" or id < 0 or id % 1 ~= 0 then
      check.fail("[%s] a token id of its configuration is %s; expected whole numbers from 0", where, tostring(id))
    end
    out[i] = id + 1
  end
  return out
end

-- bos_token, eos_token … as texts, where the folder says what they are.
local function special_tokens(folder, config, tokenizer, field)
  local out = {}
  for _, name in ipairs { "bos", "eos", "pad", "unk", "sep", "cls", "mask" } do
    local key = name .. "_token"
    local token = field("tokenizer_config.json", key) or field("special_tokens_map.json", key)
    if type(token) == "table" then token = token.content end
    if token == nil and not system.exists(folder .. "/tokenizer_config.json") then
      local id = (ids_from_1(config[key .. "_id"]) or {})[1]
      token = id and tokenizer:token(id)
    end
    out[key] = type(token) == "string" and token or nil
  end
  return out
end

-- What the folder says about the ends of texts and about chats.
local function about(folder, config, tokenizer)
  local files = {}
  local function field(file, name)
    local path = folder .. "/" .. file
    files[file] = files[file] or system.exists(path) and pretrained.json(path, where) or {}
    return files[file][name]
  end
  local info = { eos = ids_from_1(field("generation_config.json", "eos_token_id") or config.eos_token_id) }
  local template = text_of(folder .. "/chat_template.jinja") or field("tokenizer_config.json", "chat_template")
  if type(template) == "table" then -- several by name
    for _, t in ipairs(template) do
      if t.name == "default" then template = t.template end
    end
  end
  local labels = config.id2label
  if type(labels) == "table" then
    info.labels = {}
    for id, label in each(labels) do info.labels[(tonumber(id) or -1) + 1] = label end
  end
  info.chat_template = type(template) == "string" and template or nil
  if tokenizer then
    tokenizer.special_tokens = special_tokens(folder, config, tokenizer, field)
    tokenizer.chat_template = info.chat_template
  end
  return info
end

local function of_folder(folder, ignored)
  local config = pretrained.json(folder .. "/config.json", where)
  local kind = config.model_type
  local class = kind == "gpt2" and "gpt" or families.known[kind or ""] and "llama"
    or encoders.known[kind or ""] and "bert" or (kind == "modernbert" or kind == "mamba") and kind
  if not class then
    check.fail("[%s] %s: %s; there are gpt2, mamba, %s; encoders: %s", where, folder,
      kind == nil and "its config.json has no model_type"
      or ("models of type '%s' are not supported"):format(tostring(kind)), families.names, encoders.names)
  end
  local model = require("moth.models." .. class).from_pretrained(folder, { mapped = true,
    ignore_fields = ignored })
  local has_tokenizer = system.exists(folder .. "/tokenizer.json") or system.exists(folder .. "/vocab.json")
  local tokenizer = has_tokenizer and moth.tokenizer.load(folder) or nil
  local info = about(folder, config, tokenizer)
  info.embedding = require("moth.llm.embed").of_folder(folder)
  return model, tokenizer, info
end

--- The model (evaluating, without gradients for its weights), its tokenizer (nil: there is none), and a table with eos
-- (the ids that end a text, from 1), chat_template, labels (of the classes of an encoder's head, from 1) and embedding
-- (options of llm.Embedder, where sentence-transformers wrote the folder). dtype converts the weights, quantized ones,
-- too (left out: they are the file's), device moves them. quantize: 'Q8_0' or 'Q4_0', what weights of products and
-- embeddings become (see quantization.quantize_blocks). ignore_fields: names of fields of config.json that are not
-- known here and may be left out.
return signature("models.load(path path, *, dtype dtype?, device device?, string quantize?, string[] ignore_fields?)",
function(path, dtype, device, kind, ignored)
  local model, tokenizer, info
  if path:find "%.gguf$" then
    model, tokenizer, info = require("moth.models.gguf").load(path, where, dtype ~= nil or kind ~= nil)
  else
    if not system.exists(path) then check.fail("[%s] there is no file or folder %s", where, path) end
    if not system.exists(path .. "/config.json") then
      check.fail("[%s] %s is neither a .gguf file nor a folder with a config.json", where, path)
    end
    model, tokenizer, info = of_folder(path, ignored)
  end
  for _, p in ipairs(model:parameters()) do p:requires_grad_(false) end
  if dtype then model:to { dtype = dtype } end
  if kind then moth.quantization.quantize_blocks(model, kind, { keep = { "wpe$", "kv_b_proj$" } }) end
  if device then model:to(device) end
  model.config.eos = info.eos
  return model:eval(), tokenizer, info
end)
