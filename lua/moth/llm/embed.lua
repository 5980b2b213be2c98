--- llm.Embedder: texts as vectors, by an encoder or a language model, as sentence-transformers has them.
--
--     local model, tokenizer, info = moth.models.load "all-MiniLM-L6-v2"
--     local embed = moth.llm.Embedder(model, tokenizer, info.embedding)
--     local vectors = embed { "a cat", "a dog" }                    -- (2, 384), of length 1
local moth = require "moth"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"

local Embedder = class "llm.Embedder"

-- Hidden states (B, T, H) as vectors (B, H); mask (B, T, 1): 1 where a token is, 0 behind; count (B, 1).
local poolings = {
  cls = function(x) return x:select(2, 1) end,
  max = function(x, mask) return x:masked_fill(mask:eq(0), -math.huge):amax(2) end,
  mean = function(x, mask, count) return (x * mask):sum(2) / count end,
  mean_sqrt_len = function(x, mask, count) return (x * mask):sum(2) / count:sqrt() end,
  weightedmean = function(x, mask)
    local weights = mask:cumsum(2) * mask
    return (x * weights):sum(2) / weights:sum(2)
  end,
  last = function(x, _, count)
    local at = count:to(moth.int64):unsqueeze(3):expand(x:size(1), 1, x:size(3))
    return x:gather(2, at):select(2, 1)
  end,
}
local ORDER = { "cls", "max", "mean", "mean_sqrt_len", "weightedmean", "last" } -- of several, one behind the other

local activations = { ["torch.nn.modules.linear.Identity"] = function(x) return x end,
  ["torch.nn.modules.activation.Tanh"] = function(x) return x:tanh() end }

-- ---- what a folder says ------------------------------------------------------------------------------

local function fail(...) check.fail("[llm.Embedder] %s", (...):format(select(2, ...))) end

-- The poolings of a config.json of sentence-transformers' module Pooling.
local function poolings_of(path, c)
  if c.include_prompt == false then fail("%s: include_prompt = false is not supported", path) end
  local names, seen = {}, {}
  if c.pooling_mode then
    for name in (type(c.pooling_mode) == "table" and table.concat(c.pooling_mode, " ") or c.pooling_mode)
      :gmatch "[%w_]+" do
      seen[name == "lasttoken" and "last" or name] = true
    end
  end
  for key, on in each(c) do
    local name = key:match "^pooling_mode_(.+)$"
    if name and on == true then
      name = name:gsub("_tokens$", ""):gsub("_token$", ""):gsub("^lasttoken$", "last")
      seen[name] = true
    end
  end
  for _, name in ipairs(ORDER) do
    if seen[name] then names[#names + 1], seen[name] = name, nil end
  end
  local other = next(seen)
  if other then fail("%s: the pooling '%s' is not known; there are %s", path, other, table.concat(ORDER, ", ")) end
  return #names > 0 and names or { "mean" }
end

local function dense_of(folder)
  local c = require("moth.models.pretrained").json(folder .. "/config.json", "llm.Embedder")
  local act = activations[c.activation_function or ""]
  if not act then fail("%s: the activation '%s' is not known", folder, tostring(c.activation_function)) end
  local weights = moth.load(folder .. "/model.safetensors")
  return { weight = weights["linear.weight"], bias = weights["linear.bias"], act = act }
end

local function read_folder(folder)
  local json = require("moth.models.pretrained").json
  local function read(name)
    local path = folder .. "/" .. name
    return system.exists(path) and json(path, "llm.Embedder") or nil
  end
  local modules = read "modules.json"
  local out = { layers = {} }
  if not modules and not system.exists(folder .. "/1_Pooling/config.json") then return nil end
  for _, m in ipairs(modules or { { type = "Pooling", path = "1_Pooling" } }) do
    local kind, path = tostring(m.type):match "[%w_]+$", folder .. "/" .. tostring(m.path or "")
    if kind == "Pooling" then
      out.pooling = poolings_of(path .. "/config.json", read(m.path .. "/config.json") or {})
    elseif kind == "Dense" then
      out.layers[#out.layers + 1] = dense_of(path)
    elseif kind == "Transformer" then
      if m.path and m.path ~= "" then fail("%s: a model in a folder of its own, %s", folder, m.path) end
    elseif kind ~= "Normalize" then -- all are brought to length 1
      fail("%s/modules.json: modules of type %s are not supported", folder, tostring(m.type))
    end
  end
  local bert = read "sentence_bert_config.json" or {}
  out.max_length = tonumber(bert.max_seq_length)
  local texts = read "config_sentence_transformers.json" or {}
  if type(texts.default_prompt_name) == "string" then
    out.prompt = texts.prompts and texts.prompts[texts.default_prompt_name]
      or fail("%s: there is no prompt '%s'", folder, texts.default_prompt_name)
  end
  return out
end

--- What the files of sentence-transformers in a folder say: { pooling =, layers =, max_length =, prompt = }, or
-- { problem = why they cannot be followed }, or nil: there are none.
function Embedder.of_folder(folder)
  local ok, out = pcall(read_folder, folder)
  return ok and out or not ok and { problem = tostring(out):gsub("^%[llm.Embedder%] ", "") } or nil
end

-- ---- vectors -----------------------------------------------------------------------------------------

local WHERE = "llm.Embedder"

--- model: models.BERT without its head, or models.Llama or GPT (with features(ids, mask)). pooling: what becomes of the
-- tokens' states, one or several of cls, max, mean, mean_sqrt_len, weightedmean, last; left out: mean for encoders, the
-- last token for language models. max_length: of texts in tokens; prompt: a text before each; layers: see of_folder.
-- normalize: to length 1.
Embedder.__init = signature.init("llm.Embedder(Module model, any tokenizer, *, string|string[] pooling?, \z
  count max_length?, string prompt?, any layers?, bool normalize=true, string problem?)", function(self, o)
  if o.problem then check.fail("[%s] %s", WHERE, o.problem) end
  local model = o.model
  if type(model.features) ~= "function" then
    check.fail("[%s] expected an encoder or a language model, such as models.BERT, got %s", WHERE, class.name(model))
  end
  self.model, self.tokenizer, self.layers, self.prompt = model, o.tokenizer, o.layers or {}, o.prompt or ""
  self.is_encoder = type(model.step) ~= "function"
  local names = type(o.pooling) == "string" and { o.pooling } or o.pooling
    or { self.is_encoder and "mean" or "last" }
  for _, name in ipairs(names) do
    if not poolings[name] then
      check.fail("[%s] pooling: expected one of %s, got '%s'", WHERE, table.concat(ORDER, ", "), name)
    end
  end
  self.pooling, self.normalize = names, o.normalize
  self.max_length = math.min(o.max_length or math.huge, model.max_length)
end)

--- How long a vector is.
function Embedder:size()
  local last, c = self.layers[#self.layers], self.model.config
  return last and last.weight:size(1) or #self.pooling * (c.hidden_size or c.n_embd)
end

--- The ids of a text, from 1, with the tokens that stand around one.
function Embedder:ids(text, enough)
  return self.tokenizer:encode(self.prompt .. text, true, { whole = true, enough = enough })
end

local PADDED = 4096 -- tokens of one forward pass, with what fills up the shorter texts

-- Vectors (B, H) of lists of ids.
local function batch(self, lists)
  local longest, rows, real, counts = 1, {}, {}, {}
  for _, ids in ipairs(lists) do longest = math.max(longest, #ids) end
  for i, ids in ipairs(lists) do
    rows[i], real[i], counts[i] = {}, {}, { #ids }
    for t = 1, longest do rows[i][t], real[i][t] = ids[t] or 1, ids[t] and 1 or 0 end
  end
  local model = self.model
  local device = model:parameters()[1] and model:parameters()[1]:device() or model:buffers()[1]:device()
  local idx = moth.tensor(rows, { dtype = moth.int64, device = device })
  local mask = moth.tensor(real, { dtype = moth.float32, device = device })
  local count = moth.tensor(counts, { dtype = moth.float32, device = device })
  -- A language model's tokens do not see what comes behind them.
  local x = model:features(idx, self.is_encoder and mask or nil):to(moth.float32)
  local parts = {}
  for i, name in ipairs(self.pooling) do parts[i] = poolings[name](x, mask:unsqueeze(3), count) end
  local y = #parts == 1 and parts[1] or moth.cat(parts, 2)
  for _, layer in ipairs(self.layers) do
    local function own(t) return t and t:to { dtype = moth.float32, device = device } end
    y = layer.act(moth.linear(y, own(layer.weight), own(layer.bias)))
  end
  return self.normalize and moth.nn.functional.normalize(y, { dim = 2 }) or y
end

--- Vectors (n, H), float32, of a list of lists of ids.
function Embedder:of(lists)
  local order, out = {}, {}
  for i, ids in ipairs(lists) do
    if #ids == 0 then check.fail("[%s] text %d has no tokens", WHERE, i) end
    if #ids > self.max_length then
      check.fail("[%s] text %d has %d tokens; %d are the most here", WHERE, i, #ids, self.max_length)
    end
    order[i] = i
  end
  table.sort(order, function(a, b) -- neighbours of like lengths
    if #lists[a] ~= #lists[b] then return #lists[a] < #lists[b] end
    return a < b
  end)
  local training = self.model.training
  if training then self.model:eval() end
  moth.no_grad(function()
    local at = 1
    while at <= #order do
      local some, last = {}, at
      while last <= #order and (last - at + 1) * #lists[order[last]] <= math.max(PADDED, #lists[order[at]]) do
        some[#some + 1], last = lists[order[last]], last + 1
      end
      local vectors = batch(self, some)
      for k = at, last - 1 do out[order[k]] = vectors:select(1, k - at + 1) end
      at = last
    end
  end)
  if training then self.model:train() end
  return moth.stack(out, 1)
end

--- Vectors of a text or a list of texts: (H), or (n, H).
function Embedder:__call(texts)
  if type(texts) == "string" then return self { texts }:select(1, 1) end
  local lists = {}
  for i, text in ipairs(texts) do lists[i] = self:ids(text) end
  if #lists == 0 then check.fail("[%s] expected a text or a list of texts", WHERE) end
  return self:of(lists)
end

return Embedder
