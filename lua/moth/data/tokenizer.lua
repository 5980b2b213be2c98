--- Text as tokens: byte-pair encoding from a tokenizer.json, as Hugging Face's tokenizers write it (GPT-2, Llama …), or
-- from GPT-2's vocab.json and merges.txt; WordPiece (BERT) and Unigram from a tokenizer.json.
--
--     local tok = data.Tokenizer("tokenizer.json")                     -- or the folder of a model
--     local ids = tok:encode("Hello world")            -- a list; ids count from 1, those of the file from 0
--     print(tok:decode(ids))
--     local batch, mask = tok({ "one", "two words" })  -- int64 (2, longest), padded, and where tokens are
local ffi = require "ffi"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local each = require "moth.each"
local form = require "moth.utils.form"
local signature = require "moth.utils.signature"
local words = require "moth.data.words"
local added = require "moth.data.added"
local decoders = require "moth.data.decoders"
local fewest = require "moth.data.fewest"
local Merges = require "moth.data.merges"
local Pieces = require "moth.data.pieces"
local steps = require "moth.data.tokenizer_steps"
local unicode = require "moth.data.unicode"

local Tokenizer = class("Tokenizer")

local shown = decoders.shown

-- ---- reading the file --------------------------------------------------------------------------------------

local function refuse(self, what, ...)
  check.fail("[data.Tokenizer] %s: %s", self.path, what:format(...))
end

-- What the fields that are read must be. (A file may have others.)
local Step = { type = "text?", add_prefix_space = "flag?", use_regex = "flag?", prepend_scheme = "text?",
  pattern = { Regex = "text?", String = "word?" }, content = "text?", prepend = "text?", replacement = "text?",
  behavior = "text?", length = "count?", precompiled_charsmap = "text?", pad_token = "text?",
  word_delimiter_token = "text?", invert = "flag?", delimiter = "text?", suffix = "text?", prefix = "text?",
  cleanup = "flag?", start = "count?", stop = "count?", individual_digits = "flag?", lowercase = "flag?",
  clean_text = "flag?",
  handle_chinese_chars = "flag?", strip_accents = "flag?", strip_left = "flag?", strip_right = "flag?",
  split = "flag?",
  single = { list = { Sequence = "any?", SpecialToken = { id = "text" } } },
  pair = { list = { Sequence = { id = "text", type_id = "count?" },
    SpecialToken = { id = "text", type_id = "count?" } } },
  cls = { list = "any" }, sep = { list = "any" }, special_tokens = { map = { ids = { list = "count" } } } }
for _, key in ipairs { "pretokenizers", "normalizers", "decoders", "processors" } do Step[key] = { list = Step } end
local File = { normalizer = Step, pre_tokenizer = Step, post_processor = Step, decoder = Step,
  truncation = { max_length = "count", direction = "text?", strategy = "any?", stride = "count?" },
  padding = { pad_id = "count", direction = "text?", pad_to_multiple_of = "count?",
    strategy = { either = { "text", { Fixed = "count" } } } },
  added_tokens = { list = { id = "count", content = "word", special = "flag?", lstrip = "flag?", rstrip = "flag?",
    normalized = "flag?", single_word = "flag?" } },
  model = { type = "text?", merges = { list = { either = { "text", { list = "any" } } } }, byte_fallback = "flag?",
    ignore_merges = "flag?", fuse_unk = "flag?", continuing_subword_prefix = "text?", end_of_word_suffix = "text?" } }
local Vocabulary = { model = { vocab = { map = "count" }, unk_token = "text?" } }

local function content_of(path)
  local f, why = io.open(path, "rb")
  local text = f and f:read("*a") -- nil of a folder
  if f then f:close() end
  return text, why
end

-- Merges are pairs, or texts of two tokens with a blank between; their ranks are their places, or their third element.
local function read_merges(self, list)
  self.merges, self.pairs = Merges(), list
  for rank, merge in ipairs(list) do
    local left, right
    if type(merge) == "table" then
      left, right = merge[1], merge[2]
    else
      left, right = merge:match "^(.-) (.+)$"
    end
    if type(left) ~= "string" or type(right) ~= "string" then left, right = "", "" end
    local inside = right:sub(1, #self.inside) == self.inside and #self.inside or 0
    local a, b, both = self.vocab[left], self.vocab[right], self.vocab[left .. right:sub(inside + 1)]
    if not (a and b and both) then refuse(self, "merge %d is of tokens that are not in its vocabulary", rank) end
    self.merges:add(a, b, type(merge) == "table" and tonumber(merge[3]) or rank, both)
  end
end

-- Ids of single bytes: of a byte-level vocabulary, or those for characters that it lacks.
local function read_symbols(self)
  self.byte_ids = {}
  local fallback = self.byte_fallback
  for b = 0, 255 do
    local name = self.byte_level and not fallback and shown[b] or ("<0x%02X>"):format(b)
    self.byte_ids[b] = self.vocab[name]
    if self.byte_fallback and not self.byte_ids[b] then self.byte_fallback = false end
  end
  self.unk = self.unk or self.unk_token and self:id(self.unk_token)
  -- Each byte has a token, and nothing more is to be looked at.
  self.whole = self.byte_level and not self.byte_fallback and self.inside == "" and self.suffix == ""
  for b = 0, 255 do self.whole = self.whole and self.byte_ids[b] ~= nil end
end

-- The file's JSON. Of GPT-2's older form, vocab.json with merges.txt beside it, what a tokenizer.json would have.
local function read_file(self, path, cjson)
  local text, why = content_of(path)
  if not text then
    self.path = path .. "/tokenizer.json"
    text = content_of(self.path)
    if not text then
      self.path = path .. "/vocab.json"
      text = content_of(self.path)
    end
    if not text then
      local piece = content_of(path .. "/tokenizer.model")
      check.fail("[data.Tokenizer] cannot open %s%s", why or path .. ": no tokenizer.json, no vocab.json", piece
        and "\nHINT: its tokenizer.model is SentencePiece's; transformers writes tokenizer.json beside it: "
        .. "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)" or "")
    end
  end
  local json
  json, why = cjson.decode(text)
  if type(json) ~= "table" then refuse(self, "no JSON: %s", why or "it is no object") end
  local folder = self.path:match "^.*/" or ""
  local merges = type(json.model) ~= "table" and content_of(folder .. "merges.txt")
  if not merges then return json end
  local list, special = {}, {}
  for line in merges:gmatch "[^\r\n]+" do
    if not line:find "^#version" then list[#list + 1] = line end
  end
  local last = "<|endoftext|>"
  if json[last] then special[1] = { content = last, id = json[last], special = true } end
  local more = cjson.decode(content_of(folder .. "added_tokens.json") or "{}")
  for token, id in each(type(more) == "table" and more or {}) do
    if token ~= last or not json[last] then
      special[#special + 1] = { content = token, id = id, special = token == last }
    end
  end
  return { model = { type = "BPE", vocab = json, merges = list }, added_tokens = special,
    pre_tokenizer = { type = "ByteLevel", add_prefix_space = false }, decoder = { type = "ByteLevel" } }
end

--- path: a tokenizer.json, a vocab.json with merges.txt beside it (GPT-2), or a folder that has one of them
Tokenizer.__init = signature.init("data.Tokenizer(path|table path)", function(self, o)
  local ok, cjson = pcall(require, "cjson.safe")
  if not ok then check.fail("[data.Tokenizer] needs lua-cjson (Debian: lua-cjson)") end
  cjson = cjson.new()
  cjson.decode_max_depth(100)
  self.path = type(o.path) == "table" and "a table" or o.path
  local json = type(o.path) == "table" and o.path or read_file(self, o.path, cjson)
  local function refused(at, wanted) refuse(self, "%s: expected %s", at, wanted) end
  json = form.without_null(json, cjson.null)
  form.check(json, File, refused)
  local function value(v)
    if v ~= cjson.null then return v end
  end
  local function known(id, token)
    if id >= Merges.IDS then refuse(self, "the id %d of '%s' is above %d", id, token, Merges.IDS - 1) end
    return id + 1
  end
  local model = value(json.model) or {}
  local kind = model.type or model.merges and "BPE"
  if not (kind == "BPE" and model.merges or kind == "WordPiece" or kind == "WordLevel" or kind == "Unigram")
    or not model.vocab then
    refuse(self, "its model is '%s'; BPE, WordPiece, WordLevel and Unigram are supported", tostring(model.type))
  end
  self.kind = kind
  self.vocab, self.tokens = {}, {}
  if kind == "Unigram" then
    Pieces.read_unigram(self, model, value)
  else
    form.check(json, Vocabulary, refused)
    for token, id in each(model.vocab) do
      id = known(id, token)
      self.vocab[token], self.tokens[id] = id, token
    end
    self.byte_fallback, self.unk_token = value(model.byte_fallback), value(model.unk_token)
  end
  local dropout = value(model.dropout)
  if kind == "BPE" and dropout and dropout ~= 0 then refuse(self, "its model's dropout is not supported") end
  if kind == "WordPiece" then
    self.prefix, self.longest = model.continuing_subword_prefix or "##", model.max_input_chars_per_word or 100
  elseif kind == "BPE" then
    self.ignore_merges, self.fuse_unk = value(model.ignore_merges), value(model.fuse_unk)
    self.inside, self.suffix = value(model.continuing_subword_prefix) or "", value(model.end_of_word_suffix) or ""
    read_merges(self, model.merges)
  end
  -- The model does not know these: what it is left to cut never becomes one that is not in its own vocabulary.
  self.special, self.added, self.is_added, self.added_ids = {}, {}, {}, {}
  for _, t in ipairs(value(json.added_tokens) or {}) do
    known(t.id, t.content)
    self.added_ids[t.content], self.tokens[t.id + 1] = t.id + 1, t.content
    self.added[#self.added + 1], self.is_added[t.id + 1] = t, true
    if t.special then self.special[t.id + 1] = true end
  end
  table.sort(self.added, function(x, y)
    return #x.content > #y.content or #x.content == #y.content and x.content < y.content
  end)
  steps.read(self, json, value)
  self.raw_tokens, self.normal_tokens = added.lists(self.added, function(text) return steps.normalize(self, text) end)
  self.size_of_vocab = 0
  for id in each(self.tokens) do self.size_of_vocab = math.max(self.size_of_vocab, id) end
  self.cache, self.cached, self.texts = {}, 0, {}
  read_symbols(self)
end)

--- The number of ids, special ones among them.
function Tokenizer:size() return self.size_of_vocab end
--- The id of a token, from 1, or nil; the token of an id.
function Tokenizer:id(token) return self.added_ids[token] or self.vocab[token] end
function Tokenizer:token(id) return self.tokens[id] end

--- The bytes of the longest token: a text of more than n times as many has more than n tokens.
function Tokenizer:longest_token()
  if not self.longest_bytes then
    local most = 1
    for _, token in each(self.tokens) do
      local n = #token
      if n > most and self.byte_level then n = select(2, token:gsub("[^\128-\191]", "")) end -- a character a byte
      most = math.max(most, n)
    end
    self.longest_bytes = most
  end
  return self.longest_bytes
end

-- ---- encoding ----------------------------------------------------------------------------------------------

local LONGEST, MOST = 512, 2 ^ 24 -- bytes of a word that is remembered, and about those of all words and their ids
local LONG = 4096 -- bytes of a word whose tokens are estimated before they are made, where too many are for nothing
local ENTRY = 64 -- bytes that a word takes beside its text, and a table of ids beside these

-- The symbols of n bytes at p as ids in Merges.symbols: bytes, or characters. What has no id is left out.
local function symbols(self, p, n)
  local out, count = Merges.symbols(n), 0
  if self.byte_level and self.whole then
    local ids = self.byte_ids
    for k = 0, n - 1 do out[k] = ids[p[k]] end
    return n
  end
  local text = self.byte_level and self:shown_text(p, n) or ffi.string(p, n)
  if #text > n then out = Merges.symbols(#text) end
  local i, vocab, unknown = 1, self.vocab, false
  while i <= #text do
    local size = unicode.character(text, i)
    if i + size > #text + 1 then size = 1 end
    local c = text:sub(i, i + size - 1)
    local id = vocab[(i > 1 and self.inside or "") .. c .. (i + size > #text and self.suffix or "")]
    if id then
      out[count], count, unknown = id, count + 1, false
    elseif self.byte_fallback then
      for k = 1, size do out[count + k - 1] = self.byte_ids[c:byte(k)] end
      count, unknown = count + size, false
    elseif self.unk then
      if not (unknown and self.fuse_unk) then out[count], count = self.unk, count + 1 end
      unknown = true
    end
    i = i + size
  end
  return count
end

-- n bytes at p as the characters that stand for them.
function Tokenizer.shown_text(_, p, n)
  local parts = {}
  for k = 0, n - 1 do parts[k + 1] = shown[p[k]] end
  return table.concat(parts)
end

-- The ids of a word of n bytes at p, behind `at` others in out; how many there are then.
local function encode_word(self, out, at, p, n)
  local word = n <= LONGEST and ffi.string(p, n) or nil
  local ids = word and self.cache[word]
  if not ids then
    local count
    ids = {}
    if self.kind ~= "BPE" then
      Pieces[self.kind](self, ids, word or ffi.string(p, n))
    elseif self.ignore_merges then
      ids[1] = self.vocab[self.byte_level and self:shown_text(p, n) or ffi.string(p, n)]
    end
    if self.kind == "BPE" and not ids[1] then
      local s
      if n > LONG and self.enough < math.huge and fewest(self, p, n, self.enough - at) > self.enough - at then
        for k = at + 1, self.enough + 1 do out[k] = 1 end -- too many, whichever they are
        return self.enough + 1
      end
      s, count = self.merges:run(symbols(self, p, n))
      for k = 1, count do ids[k] = s[k - 1] end
    end
    if #ids == 1 then ids = ids[1] end -- most words: no table of them
    if word then
      if self.cached >= MOST then self.cache, self.cached = {}, 0 end
      local more = type(ids) == "table" and ENTRY + 16 * #ids or 0
      self.cache[word], self.cached = ids, self.cached + ENTRY + n + more
    end
  end
  if type(ids) == "number" then
    out[at + 1] = ids
    return at + 1
  end
  for k = 1, #ids do out[at + k] = ids[k] end
  return at + #ids
end

-- The ids of the words of n bytes at p, by the k-th step and those behind it; behind `at` others in out. first: nothing
-- stands in front of them. With more ids than self.enough the rest of the text is left out.
local function encode_words(self, out, at, p, n, k, first)
  if n == 0 or at > self.enough then return at end
  local step = self.cuts[k]
  if not step then return encode_word(self, out, at, p, n) end
  if step[1] == "cut" then
    local next_word, last, i = words.of(step[2]), not self.cuts[k + 1], 0
    while i < n and at <= self.enough do
      local j, drop = next_word(p, i, n)
      if drop then -- luacheck: ignore 542
      elseif last then
        at = encode_word(self, out, at, p + i, j - i)
      else
        at = encode_words(self, out, at, p + i, j - i, k + 1, first and i == 0)
      end
      i = j
    end
    return at
  end
  if step[1] == "split" then
    words.split(step, p, n, function(from, to)
      at = encode_words(self, out, at, p + from, to - from, k + 1, first and from == 0)
      return at > self.enough
    end)
    return at
  end
  local text = steps.run[step[1]](ffi.string(p, n), step, first)
  at = encode_words(self, out, at, ffi.cast("const uint8_t *", text), #text, k + 1, first)
  return at, text -- which must live so long
end

-- The ids of a text, without those around it.
local function ids_of(self, text)
  local out = {}
  local function token(id) out[#out + 1] = id end
  added.each(self.raw_tokens, text, function(from, to)
    local normal = steps.normalize(self, text:sub(from, to))
    local p = ffi.cast("const uint8_t *", normal)
    added.each(self.normal_tokens, normal, function(a, b)
      encode_words(self, out, #out, p + a - 1, b - a + 1, 1, from == 1 and a == 1)
    end, token)
  end, token)
  return out
end

-- Lists as the file joins them; most: at most so many ids; cut: as its truncation says. Gives the ids, and of two lists
-- the kinds.
local function joined(self, out, other, special, cut, most)
  if cut or most then out, other = steps.cut(self, out, special and steps.around(self, other) or 0, other, most) end
  if other then return steps.joined(self, out, other, special) end
  if special then
    for k, id in ipairs(self.first) do table.insert(out, k, id) end
    for _, id in ipairs(self.last) do out[#out + 1] = id end
  end
  return out
end

--- The ids of a text: a list. Added tokens such as "<|endoftext|>" are found in it. add_special_tokens: also those that
-- the file puts around each text, such as "<|begin_of_text|>". pair: a second text, which the file joins to the first;
-- a second list then has the kinds of tokens, from 1 (token_type_ids of models.BERT). The file's truncation and padding
-- apply, as in the tokenizers package; whole = true leaves both out, as transformers does. enough: with more ids than
-- that it looks no further, and the list is not whole: for those who would refuse so long a text.
Tokenizer.encode = signature.method("data.Tokenizer:encode(string text, bool add_special_tokens=false, *, \z
  string pair?, count enough?, bool whole=false)",
function(self, text, add_special_tokens, pair, enough, whole)
  local truncation, padding = not whole and self.truncation, not whole and self.padding
  self.enough = not truncation and not pair and enough or math.huge
  local out, kinds = joined(self, ids_of(self, text), pair and ids_of(self, pair), add_special_tokens, truncation)
  for _ = #out + 1, padding and steps.filled(self, #out) or 0 do
    table.insert(out, padding.left and 1 or #out + 1, padding.id)
    if kinds then table.insert(kinds, padding.left and 1 or #kinds + 1, 1) end
  end
  return out, kinds
end)

--- The merges in their order, as texts of two tokens with a blank between.
function Tokenizer:merge_list()
  local out = {}
  for i, merge in ipairs(self.pairs) do out[i] = type(merge) == "table" and merge[1] .. " " .. merge[2] or merge end
  return out
end

--- The bytes that an id stands for; those of several ids, one behind the other, are their text.
function Tokenizer:bytes(id)
  local text = self.texts[id]
  if text then return text end
  local token = self.tokens[id]
  if not token then
    check.fail("[data.Tokenizer:decode] there is no token %s; ids are from 1 to %d (a model may have more: \z
      llm.Text leaves them out)", tostring(id), self.size_of_vocab)
  end
  token = decoders.inside(self, token)
  self.texts[id] = token
  return token
end

--- The text of ids, a list or a tensor. skip_special_tokens leaves out "<|endoftext|>" and the like. An id without a
-- token is an error (the tokenizers package leaves it out; so does moth.llm.Text, which gets what a model draws).
Tokenizer.decode = signature.method("data.Tokenizer:decode(Tensor|list ids, bool skip_special_tokens=false)",
function(self, ids, skip)
  if moth.is_tensor(ids) then ids = ids:reshape(-1):totable() end
  local kept, n = {}, 0
  for _, id in ipairs(ids) do
    self:bytes(id) -- an error where there is none
    if not (skip and self.special[id]) then
      n = n + 1
      kept[n] = id
    end
  end
  return decoders.text(self, kept, n)
end)

--- Texts as one tensor: int64 (N, longest), padded with pad_id, cut to max_length; a bool tensor, true where there are
-- tokens; and with pairs, as many second texts, an int64 tensor of the kinds of tokens, from 1. add_special_tokens:
-- also those that the file puts around each text, which max_length then counts. Left out, these are the file's, as are
-- padding_side and a fixed length (without any: padded on the right with 1, not cut).
Tokenizer.__call = signature.method("data.Tokenizer(string|string[] texts, *, count pad_id?, count max_length?, \z
  bool add_special_tokens=false, string|string[] pairs?, 'left'|'right' padding_side?)",
function(self, texts, pad_id, max_length, special, seconds, side)
  if type(texts) == "string" then texts = { texts } end
  if type(seconds) == "string" then seconds = { seconds } end
  if seconds and #seconds ~= #texts then
    check.fail("[data.Tokenizer] %d texts, but %d pairs: each text needs a second one", #texts, #seconds)
  end
  local padding = self.padding or {}
  local left = side == "left" or not side and padding.left
  pad_id = pad_id or padding.id or 1
  local lists, kinds, longest = {}, {}, 0
  self.enough = math.huge
  for k, text in ipairs(texts) do
    lists[k], kinds[k] = joined(self, ids_of(self, text), seconds and ids_of(self, seconds[k]), special,
      self.truncation, max_length)
    longest = math.max(longest, #lists[k])
  end
  if self.padding and not max_length then longest = steps.filled(self, longest) end
  local ids = moth.full({ #lists, longest }, pad_id, { dtype = moth.int64 })
  local mask = moth.zeros(#lists, longest, { dtype = moth.bool })
  local types = seconds and moth.ones(#lists, longest, { dtype = moth.int64 }) or nil
  for k, list in ipairs(lists) do
    local n = #list
    if n > 0 then
      local at = left and longest - n + 1 or 1
      local function put(to, values)
        to:select(1, k):narrow(1, at, n):copy_(moth.tensor(values, { dtype = moth.int64 }))
      end
      put(ids, list)
      if types then put(types, kinds[k]) end
      mask:select(1, k):narrow(1, at, n):fill_(true)
    end
  end
  return ids, mask, types
end)

function Tokenizer.__tostring(self) return ("Tokenizer(%s, %d tokens)"):format(self.path, self.size_of_vocab) end

return Tokenizer
