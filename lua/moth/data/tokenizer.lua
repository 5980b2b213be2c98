--- Text as tokens: byte-pair encoding from a tokenizer.json, as Hugging Face's tokenizers write it (GPT-2, Llama …), or
-- from GPT-2's vocab.json and merges.txt.
--
--     local tok = data.Tokenizer("tokenizer.json")                     -- or the folder of a model
--     local ids = tok:encode("Hello world")            -- a list; ids count from 1, those of the file from 0
--     print(tok:decode(ids))
--     local batch, mask = tok({ "one", "two words" })  -- int64 (2, longest), padded, and where tokens are
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local unicode = require "moth.data.unicode"

local is_letter, is_number, is_space = unicode.is_letter, unicode.is_number, unicode.is_space

local Tokenizer = class("Tokenizer")

-- ---- cutting text into words -------------------------------------------------------------------------------
-- The regular expressions of these tokenizers, by hand: how many of the code points p from i on are the next word.

local QUOTE = 39
local endings = { s = 1, t = 1, m = 1, d = 1, re = 2, ve = 2, ll = 2 }

local function contraction(p, i, any_case)
  if p[i] ~= QUOTE or not p[i + 1] or p[i + 1] > 127 then return nil end
  local function low(c)
    local s = c and c < 128 and string.char(c) or ""
    return any_case and s:lower() or s
  end
  local one = low(p[i + 1])
  if endings[one] then return 2 end
  return endings[one .. low(p[i + 2])] and 3 or nil
end

local function run(p, i, test)
  local n = 0
  while p[i + n] and test(p[i + n]) do n = n + 1 end
  return n
end
local function is_other(c) return not is_space(c) and not is_letter(c) and not is_number(c) end

-- \s+(?!\S)|\s+
local function spaces(p, i)
  local n = run(p, i, is_space)
  return p[i + n] and n > 1 and n - 1 or n
end

-- '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
local function gpt2(p, i)
  local n = contraction(p, i)
  if n then return n end
  local lead = p[i] == 32 and 1 or 0
  for _, test in ipairs({ is_letter, is_number, is_other }) do
    n = run(p, i + lead, test)
    if n > 0 then return lead + n end
  end
  return spaces(p, i)
end

local function is_break(c) return c == 10 or c == 13 end

-- (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
-- \s+(?!\S)|\s+
local function cl100k(p, i, digits)
  local n = contraction(p, i, true)
  if n then return n end
  local c = p[i]
  local lead = not is_break(c) and not is_letter(c) and not is_number(c) and 1 or 0
  n = run(p, i + lead, is_letter)
  if n > 0 then return lead + n end
  if is_number(c) then return math.min(run(p, i, is_number), digits) end
  lead = c == 32 and 1 or 0
  n = run(p, i + lead, is_other)
  if n > 0 then return lead + n + run(p, i + lead + n, is_break) end
  local last = 0
  for k = 0, run(p, i, is_space) - 1 do
    if is_break(p[i + k]) then last = k + 1 end
  end
  if last > 0 then return last end
  return spaces(p, i)
end

-- A function (p, i) for a pattern of a Split step; nil: none that is known.
local function splitter(pattern)
  local text = pattern and (pattern.Regex or pattern.String)
  if not text then return nil end
  if text:find("[^\\r\\n\\p{L}\\p{N}]?\\p{L}+", 1, true) then
    local digits = tonumber(text:match("\\p{N}{1,(%d)}")) or 1
    return function(p, i) return cl100k(p, i, digits) end
  end
  if text:find(" ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+", 1, true) then return gpt2 end
end

-- The bytes as the characters that stand for them in a byte-level vocabulary.
local shown, bytes_of = {}, {}
do
  local extra = 0
  for b = 0, 255 do
    local plain = b >= 33 and b <= 126 or b >= 161 and b <= 172 or b >= 174
    shown[b] = unicode.char(plain and b or 256 + extra)
    if not plain then extra = extra + 1 end
    bytes_of[shown[b]] = string.char(b)
  end
end

-- ---- reading the file --------------------------------------------------------------------------------------

local function refuse(self, what, ...)
  check.fail("[data.Tokenizer] %s: %s", self.path, what:format(...))
end

local function read_steps(self, step, kind)
  if not step then return end
  if step.type == "Sequence" then
    for _, s in ipairs(step.pretokenizers or step.normalizers or step.decoders or {}) do read_steps(self, s, kind) end
  elseif step.type == "ByteLevel" then
    self.byte_level = true
    if kind == "pre_tokenizer" then
      self.prefix_space = step.add_prefix_space
      if step.use_regex ~= false then self.split = "gpt2" end
    end
  elseif step.type == "Split" then
    if not splitter(step.pattern) then
      refuse(self, "its pattern is not known: %s", step.pattern and step.pattern.Regex)
    end
    self.split = step.pattern
  elseif step.type == "Prepend" then
    self.prepend = step.prepend
  elseif step.type == "Replace" then
    self.replace = self.replace or {}
    self.replace[#self.replace + 1] = { step.pattern.String, step.content }
  elseif step.type == "Metaspace" then
    self.prepend = step.prepend_scheme ~= "never" and (step.replacement or "▁") or nil
    self.replace = { { " ", step.replacement or "▁" } }
  elseif kind == "normalizer" and (step.type == "NFC" or step.type == "NFKC") then
    return -- taken as done: text is mostly so
  else
    refuse(self, "its %s '%s' is not supported", kind, tostring(step.type))
  end
end

local function content_of(path)
  local f, why = io.open(path, "rb")
  local text = f and f:read("*a") -- nil of a folder
  if f then f:close() end
  return text, why
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
      check.fail("[data.Tokenizer] cannot open %s", why or path .. ": no tokenizer.json, no vocab.json")
    end
  end
  local json
  json, why = cjson.decode(text)
  if type(json) ~= "table" then refuse(self, "no JSON: %s", tostring(why)) end
  local merges = type(json.model) ~= "table" and content_of((self.path:match "^.*/" or "") .. "merges.txt")
  if not merges then return json end
  local list, added = {}, {}
  for line in merges:gmatch "[^\r\n]+" do
    if not line:find "^#version" then list[#list + 1] = line end
  end
  local last = "<|endoftext|>"
  if json[last] then added[1] = { content = last, id = json[last], special = true } end
  return { model = { type = "BPE", vocab = json, merges = list }, added_tokens = added,
    pre_tokenizer = { type = "ByteLevel", add_prefix_space = false }, decoder = { type = "ByteLevel" } }
end

--- path: a tokenizer.json, a vocab.json with merges.txt beside it (GPT-2), or a folder that has one of them
Tokenizer.__init = signature.init("data.Tokenizer(path path)", function(self, o)
  local ok, cjson = pcall(require, "cjson.safe")
  if not ok then check.fail("[data.Tokenizer] needs lua-cjson (Debian: lua-cjson)") end
  cjson = cjson.new()
  cjson.decode_max_depth(100)
  self.path = o.path
  local json = read_file(self, o.path, cjson)
  local function value(v) return v ~= cjson.null and v or nil end
  local model = value(json.model) or {}
  if model.type and model.type ~= "BPE" or not model.vocab or not model.merges then
    refuse(self, "its model is '%s'; BPE is supported", tostring(model.type))
  end
  self.vocab, self.tokens, self.ranks = {}, {}, {}
  for token, id in each(model.vocab) do self.vocab[token], self.tokens[id + 1] = id + 1, token end
  for rank, merge in ipairs(model.merges) do
    if type(merge) == "table" then merge = merge[1] .. " " .. merge[2] end
    self.ranks[merge] = rank
  end
  self.byte_fallback, self.unk_token = value(model.byte_fallback), value(model.unk_token)
  self.ignore_merges = value(model.ignore_merges)
  self.special, self.added = {}, {}
  for _, t in ipairs(value(json.added_tokens) or {}) do
    self.vocab[t.content], self.tokens[t.id + 1] = t.id + 1, t.content
    self.added[#self.added + 1] = t.content
    if t.special then self.special[t.id + 1] = true end
  end
  table.sort(self.added, function(a, b) return #a > #b or #a == #b and a < b end)
  read_steps(self, value(json.normalizer), "normalizer")
  read_steps(self, value(json.pre_tokenizer), "pre_tokenizer")
  self.size_of_vocab = 0
  for id in each(self.tokens) do self.size_of_vocab = math.max(self.size_of_vocab, id) end
  self.cache, self.cached = {}, 0
end)

function Tokenizer:size() return self.size_of_vocab end
--- The id of a token, from 1, or nil; the token of an id.
function Tokenizer:id(token) return self.vocab[token] end
function Tokenizer:token(id) return self.tokens[id] end

-- ---- encoding ----------------------------------------------------------------------------------------------

-- The ids of a word, which is a list of symbols (UTF-8 characters), merged by rank.
local function merge(self, parts)
  local ranks = self.ranks
  while #parts > 1 do
    local best, at
    for k = 1, #parts - 1 do
      local rank = ranks[parts[k] .. " " .. parts[k + 1]]
      if rank and (not best or rank < best) then best, at = rank, k end
    end
    if not best then break end
    local left, right, n = parts[at], parts[at + 1], 0
    local out, k = {}, 1
    while k <= #parts do -- all pairs of this kind at once
      n = n + 1
      if parts[k] == left and parts[k + 1] == right then
        out[n], k = left .. right, k + 2
      else
        out[n], k = parts[k], k + 1
      end
    end
    parts = out
  end
  return parts
end

local function add_ids(self, out, parts)
  for _, part in ipairs(parts) do
    local id = self.vocab[part]
    if id then
      out[#out + 1] = id
    elseif self.byte_fallback then
      for k = 1, #part do
        local byte = self.vocab[("<0x%02X>"):format(part:byte(k))]
        if not byte then refuse(self, "it has no token for the byte %d", part:byte(k)) end
        out[#out + 1] = byte
      end
    elseif self.unk_token then
      out[#out + 1] = self.vocab[self.unk_token]
    else
      refuse(self, "it has no token for '%s'", part)
    end
  end
end

local function encode_word(self, out, word)
  local ids = self.cache[word]
  if not ids then
    local parts = {}
    if self.byte_level then
      for k = 1, #word do parts[k] = shown[word:byte(k)] end
    else
      local points, at = unicode.points(word)
      for k = 1, #points do parts[k] = word:sub(at[k], at[k + 1] - 1) end
    end
    local whole = self.ignore_merges and self.vocab[table.concat(parts)]
    ids = { whole or nil }
    if not whole then add_ids(self, ids, merge(self, parts)) end
    if self.cached > 50000 then self.cache, self.cached = {}, 0 end
    self.cache[word], self.cached = ids, self.cached + 1
  end
  for _, id in ipairs(ids) do out[#out + 1] = id end
end

-- Text without added tokens.
local function encode_plain(self, out, text)
  if text == "" then return end
  if self.prefix_space and text:sub(1, 1) ~= " " then text = " " .. text end
  if self.prepend then text = self.prepend .. text end
  for _, r in ipairs(self.replace or {}) do
    text = text:gsub(r[1]:gsub("%p", "%%%0"), (r[2]:gsub("%%", "%%%%")))
  end
  local next_word = self.split == "gpt2" and gpt2 or self.split and splitter(self.split)
  if not next_word then
    encode_word(self, out, text)
    return
  end
  local points, at = unicode.points(text)
  local i = 1
  while i <= #points do
    local n = next_word(points, i)
    encode_word(self, out, text:sub(at[i], at[i + n] - 1))
    i = i + n
  end
end

-- The first added token in the text from `from` on: where it begins and ends.
local function find_added(self, text, from)
  local first, last
  for _, token in ipairs(self.added) do
    local a, b = text:find(token, from, true)
    if a and (not first or a < first) then first, last = a, b end
  end
  return first, last
end

--- The ids of a text: a list. Added tokens such as "<|endoftext|>" are found in it; none is added.
Tokenizer.encode = signature.method("data.Tokenizer:encode(string text)", function(self, text)
  local out, from = {}, 1
  while from <= #text do
    local first, last = find_added(self, text, from)
    encode_plain(self, out, text:sub(from, first and first - 1 or #text))
    if not first then break end
    out[#out + 1] = self.vocab[text:sub(first, last)]
    from = last + 1
  end
  return out
end)

--- The text of ids, a list or a tensor. skip_special_tokens leaves out "<|endoftext|>" and the like.
Tokenizer.decode = signature.method("data.Tokenizer:decode(Tensor|list ids, bool skip_special_tokens=false)",
function(self, ids, skip)
  if moth.is_tensor(ids) then ids = ids:reshape(-1):totable() end
  local parts = {}
  for k, id in ipairs(ids) do
    local token = self.tokens[id]
    if not token then
      check.fail("[data.Tokenizer:decode] there is no token %s; ids are from 1 to %d", tostring(id), self.size_of_vocab)
    end
    if not (skip and self.special[id]) then
      local byte = self.byte_fallback and token:match("^<0x(%x%x)>$")
      if byte then
        token = string.char(tonumber(byte, 16))
      elseif self.byte_level and not self.special[id] then
        local points, at = unicode.points(token)
        local out = {}
        for i = 1, #points do
          local c = token:sub(at[i], at[i + 1] - 1)
          out[i] = bytes_of[c] or c
        end
        token = table.concat(out)
      else
        for _, r in ipairs(self.replace or {}) do
          token = token:gsub(r[2]:gsub("%p", "%%%0"), (r[1]:gsub("%%", "%%%%")))
        end
        if self.prepend and k == 1 then token = token:gsub("^ ", "") end
      end
      parts[#parts + 1] = token
    end
  end
  return table.concat(parts)
end)

--- Texts as one tensor: int64 (N, longest), padded on the right with pad_id, cut to max_length; and a bool tensor, true
-- where there are tokens.
Tokenizer.__call = signature.method("data.Tokenizer(string|string[] texts, *, count pad_id=1, count max_length?)",
function(self, texts, pad_id, max_length)
  if type(texts) == "string" then texts = { texts } end
  local lists, longest = {}, 0
  for k, text in ipairs(texts) do
    lists[k] = self:encode(text)
    longest = math.max(longest, math.min(#lists[k], max_length or math.huge))
  end
  local ids = moth.full({ #lists, longest }, pad_id, { dtype = moth.int64 })
  local mask = moth.zeros(#lists, longest, { dtype = moth.bool })
  for k, list in ipairs(lists) do
    local n = math.min(#list, longest)
    if n > 0 then
      ids:select(1, k):narrow(1, 1, n):copy_(moth.tensor({ unpack(list, 1, n) }, { dtype = moth.int64 }))
      mask:select(1, k):narrow(1, 1, n):fill_(true)
    end
  end
  return ids, mask
end)

function Tokenizer.__tostring(self) return ("Tokenizer(%s, %d tokens)"):format(self.path, self.size_of_vocab) end

return Tokenizer
