--- Models as Hugging Face's save_pretrained writes them: a folder with config.json and model.safetensors or
-- pytorch_model.bin, or their parts.
local moth = require "moth"
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local system = require "moth.utils.system"

local M = {}

--- The table of a JSON file; null is nil.
function M.json(path, where)
  local f, why = io.open(path, "rb")
  if not f then check.fail("[%s] cannot open %s", where, why) end
  local text = f:read("*a") or "" -- nothing: a folder
  f:close()
  local value, err, line, column = require("moth.io.json")._read(text, nil, nil, "number")
  if err then check.fail("[%s] %s: no JSON: line %d, column %d: %s", where, path, line, column, err) end
  if type(value) ~= "table" then check.fail("[%s] %s: no JSON object", where, path) end
  return value
end

-- Tensors that lie in the file, where it is of safetensors.
local function mapped(path)
  if not path:find "%.safetensors$" then return moth.load(path) end
  local names, tensors = B.load_safetensors(path)
  local out = {}
  for i, name in ipairs(names) do out[name] = tensors[i] end
  return out
end

local function read(folder, where, is_mapped)
  local load, json = is_mapped and mapped or moth.load, M.json
  if type(folder) ~= "string" then check.fail("[%s] expected a folder, got %s", where, type(folder)) end
  local config = json(folder .. "/config.json", where)
  for _, name in ipairs { "model.safetensors", "pytorch_model.bin" } do
    if system.exists(folder .. "/" .. name) then return config, load(folder .. "/" .. name) end
  end
  local index = folder .. "/model.safetensors.index.json"
  if not system.exists(index) then index = folder .. "/pytorch_model.bin.index.json" end
  if not system.exists(index) then
    check.fail("[%s] %s has neither model.safetensors nor pytorch_model.bin", where, folder)
  end
  local parts, all, map = {}, {}, json(index, where).weight_map
  if type(map) ~= "table" then check.fail("[%s] %s has no table weight_map", where, index) end
  for _, file in each(map) do
    if type(file) ~= "string" or file:find "/" then
      check.fail("[%s] %s: expected names of files beside it, got %s", where, index, tostring(file))
    end
    parts[file] = true
  end
  for file in each(parts) do
    for name, t in each(load(folder .. "/" .. file)) do all[name] = t end
  end
  return config, all
end

--- @return the table of config.json, { name = tensor } of the weights (is_mapped: not copied from the file; those of 8
-- bits with scales are made floats), and { name = GGUF's type } of those that are rows of blocks
function M.read(folder, where, is_mapped)
  local config, sd = read(folder, where, is_mapped)
  local types
  sd, types = require("moth.models.scaled").read(config, sd, where)
  return config, sd, types
end

--- Brings weights {name = tensor} to one dtype where norms and biases have another than the matrices, as GGUF files of
-- float16 have them; to float32 where the matrices differ. An error names a weight that is not of floats. kept(tensor,
-- name) or nil: whether a tensor stays as it is, whatever it is of; where one does, the others become float32.
function M.one_dtype(tensors, where, kept)
  local dtype, mixed
  kept = kept or function() return false end
  for name, t in each(tensors) do
    if kept(t, name) then
      mixed = true
    elseif not t:is_floating_point() then
      check.fail("[%s] the weight %s is of %s; floats are expected", where, name, tostring(t:dtype()))
    end
    if not kept(t, name) and t:dim() > 1 and not name:find "^position" then
      mixed = mixed or dtype ~= nil and dtype ~= t:dtype()
      dtype = t:dtype()
    end
  end
  if mixed then dtype = moth.float32 end
  for name, t in each(tensors) do
    if dtype and t:dtype() ~= dtype and name ~= "rope_freqs.weight" and not kept(t, name) then
      tensors[name] = t:to(dtype)
    end
  end
end

--- A field of a config: one of several names, or a default; an error without both.
function M.field(config, where, names, default)
  for name in names:gmatch "[%w_.]+" do
    local value = config
    for part in name:gmatch "[^.]+" do
      if type(value) == "table" then value = value[part] else value = nil end -- false is a value
    end
    if value ~= nil then return value end
  end
  if default == nil then check.fail("[%s] config.json has no %s", where, names) end
  return default
end

-- Fields that any config.json may have and that change no number of a forward pass: names, ids of tokens, how to
-- generate, how to train, what the output looks like.
local common = {}
for name in ([[_name_or_path transformers_version torch_dtype dtype architectures model_type use_cache return_dict
  use_return_dict output_hidden_states output_attentions output_past torchscript use_bfloat16 id2label label2id
  num_labels _num_labels finetuning_task task_specific_params problem_type tokenizer_class prefix bos_token_id
  eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id bos_token eos_token pad_token
  decoder_start_token_id initializer_range initializer_factor init_std auto_map chunk_size_feed_forward max_length
  min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p
  repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
  num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
  remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens tf_legacy_loss
  attn_implementation _attn_implementation _attn_implementation_internal _attn_implementation_autoset
  experts_implementation _experts_implementation gradient_checkpointing cache_implementation pretraining_tp
  attention_dropout attn_pdrop embd_pdrop resid_pdrop classifier_dropout hidden_dropout unsloth_fixed
  unsloth_version]]):gmatch "%S+" do common[name] = true end

-- What these may be: other values change what is computed.
local function is_false(v) return v == false end
local usual = { is_encoder_decoder = is_false, is_decoder = is_false, add_cross_attention = is_false,
  tie_encoder_decoder = is_false, use_bidirectional_attention = is_false,
  pruned_heads = function(v) return type(v) == "table" and next(v) == nil end }

--- Refuses a config.json with a field that changes the numbers and is not honoured. spec.honoured, spec.inert: names
-- of fields that the family computes with, and of those that change nothing; spec.only: { name = function(value,
-- config), whether that value is the one that is computed }. ignored: a list of names that the caller takes upon
-- himself.
function M.refuse_unknown(config, where, spec, ignored)
  local known = {}
  for name in (spec.honoured .. " " .. (spec.inert or "")):gmatch "%S+" do known[name] = true end
  for _, name in ipairs(ignored or {}) do known[name] = true end
  local names = {}
  for name in each(config) do names[#names + 1] = tostring(name) end
  table.sort(names)
  for _, name in ipairs(names) do
    local value, is_right = config[name], spec.only and spec.only[name] or usual[name]
    if not known[name] and (is_right and not is_right(value, config) or not is_right and not common[name]) then
      check.fail("[%s] config.json: %s = %s is not supported%s", where, name,
        type(value) == "table" and "{ … }" or tostring(value), is_right and "" or "; if it changes no number, give \z
          ignore_fields = { \"" .. name .. "\" }")
    end
  end
end

--- Layers of blocks in the places of a model's whose weight is of types { name = "Q8_0" }: puts what they need into sd.
-- Weights of other layers become floats.
function M.keep_blocks(model, sd, types)
  local blocks = require "moth.quantization.blocks"
  blocks.replace(model, function(layer)
    local name = layer .. ".weight"
    local kind = types[name]
    if kind then
      sd[layer .. ".block_type"], types[name] = moth.tensor(blocks.number(kind), { dtype = moth.int64 }), nil
      return sd[name], kind, sd[layer .. ".bias"]
    end
  end)
  for name, kind in each(types) do sd[name] = moth.unpack_blocks(sd[name], kind) end
end

--- Loads weights whose names were brought to the model's; an error names those that are missing. ignore: patterns of
-- names that a checkpoint may have beside. assign: their memory is taken over.
function M.load(model, sd, where, ignore, assign)
  local missing, unexpected = model:load_state_dict(sd, { strict = false, assign = assign or false })
  local odd = {}
  for _, name in ipairs(unexpected) do
    local known = false
    for _, pattern in ipairs(ignore or {}) do known = known or name:find(pattern) ~= nil end
    if not known then odd[#odd + 1] = name end
  end
  if #missing > 0 or #odd > 0 then
    check.fail("[%s] the weights do not fit: missing %s; unknown %s", where,
      #missing > 0 and table.concat(missing, ", ") or "none", #odd > 0 and table.concat(odd, ", ") or "none")
  end
  return model
end

return M
