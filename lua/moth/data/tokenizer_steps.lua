--- The steps of a tokenizer.json around its model: normalizers, pre_tokenizers and post_processors (decoders.lua has
-- the way back). What is read goes into the tokenizer as plain data, which may go to a worker:
--   normal     what is done to a text, in order: { "replace", from, to } and the like, run by M.run
--   cuts       how it is cut into words, each step inside of the parts of those before: { "cut", a name for words.of },
--              { "split", … } for words.split, or what is done to a part, as in normal
--   first, last  ids around a text
--   both       a pair of texts with these: { part = 1 or 2, kind = from 1 } and { id =, kind = }
local charsmap = require "moth.data.charsmap"
local check = require "moth.utils.check"
local decoders = require "moth.data.decoders"
local forms = require "moth.data.forms"
local unicode = require "moth.data.unicode"
local words = require "moth.data.words"

local M = {}

local function refuse(tok, what, ...) check.fail("[data.Tokenizer] %s: %s", tok.path, what:format(...)) end

-- ---- what is done to a text --------------------------------------------------------------------------

local run = {}
M.run = run
function run.replace(text, step) return (text:gsub(unicode.plain(step[2]), (step[3]:gsub("%%", "%%%%")))) end
function run.replace_matches(text, step) return words.replace(step[2], step[3], text) end
function run.prepend(text, step) return text == "" and text or step[2] .. text end
-- Metaspace's mark: once, and with "first" only at the beginning.
function run.mark(text, step, first)
  if step[3] == "first" and not first or text:sub(1, #step[2]) == step[2] then return text end
  return step[2] .. text
end
function run.space(text) return (text == "" or text:find "^ ") and text or " " .. text end -- a newline gets one, too
function run.lower(text) return forms.lower(text) end
function run.nfc(text) return forms.nfc(text) end
function run.nfd(text) return forms.nfd(text) end
function run.nfkc(text) return forms.nfkc(text) end
function run.nfkd(text) return forms.nfkd(text) end
function run.charsmap(text, step) return charsmap.apply(text, step[2]) end
function run.shown(text) return (text:gsub(".", function(c) return decoders.shown[c:byte()] end)) end
function run.accents(text, step) return forms.without_marks(text, forms.set(step[2])) end
function run.strip(text, step)
  if step[2] then text = text:sub(unicode.skip_spaces(text, 1)) end
  if step[3] then text = text:sub(1, unicode.before_spaces(text, #text + 1) - 1) end
  return text
end

local function is_chinese(c)
  return c >= 0x4e00 and c <= 0x9fff or c >= 0x3400 and c <= 0x4dbf or c >= 0x20000 and c <= 0x2a6df
    or c >= 0x2a700 and c <= 0x2ceaf or c >= 0xf900 and c <= 0xfaff or c >= 0x2f800 and c <= 0x2fa1f
end
-- BERT's cleaning: no control characters, spaces are blanks; blanks around Chinese characters.
function run.bert(text, step)
  if not text:find "[%c\128-\255]" then return text end
  local out, control = {}, forms.set "Cc Cf Co"
  for _, c in ipairs(forms.points(text)) do
    if step[2] and (c == 9 or c == 10 or c == 13 or c > 32 and c ~= 0x85 and unicode.is_space(c)) then
      out[#out + 1] = 32 -- other spaces of ASCII are control characters
    elseif step[3] and is_chinese(c) then
      out[#out + 1], out[#out + 2], out[#out + 3] = 32, c, 32
    elseif not (step[2] and (c == 0 or c == 0xfffd or forms.is(control, c))) then
      out[#out + 1] = c
    end
  end
  return forms.text(out)
end

-- Nmt: no control characters, and other spaces and marks of order are blanks.
local gone = { [0x0b] = true, [0x7f] = true, [0x8f] = true, [0x9f] = true }
local blank = { [0x1680] = true, [0x2028] = true, [0x2029] = true, [0x2581] = true, [0xfeff] = true, [0xfffd] = true }
function run.nmt(text)
  if not text:find "[%c\128-\255]" then return text end
  local out = {}
  for _, c in ipairs(forms.points(text)) do
    if c == 9 or c == 10 or c == 12 or c == 13 or c >= 0x200b and c <= 0x200f or blank[c] then
      out[#out + 1] = 32
    elseif not (c >= 1 and c <= 8 or c >= 14 and c <= 31 or gone[c]) then
      out[#out + 1] = c
    end
  end
  return forms.text(out)
end

-- ---- reading -----------------------------------------------------------------------------------------

local function add(tok, ...) tok.normal[#tok.normal + 1] = { ... } end
local function cut(tok, ...) tok.cuts[#tok.cuts + 1] = { ... } end

local function search(tok, pattern)
  local find, why = words.search(pattern)
  if not find then refuse(tok, "its pattern %s is not supported: %s", pattern, why) end
end

local normalizers, cutters = {}, {}

function normalizers.Prepend(tok, step) add(tok, "prepend", step.prepend or "") end
function normalizers.Replace(tok, step)
  local from, to = step.pattern and step.pattern.String, step.content or ""
  if from then
    add(tok, "replace", from, to)
    return
  end
  from = step.pattern and step.pattern.Regex
  if not from then refuse(tok, "its normalizer Replace has no pattern") end
  search(tok, from)
  add(tok, "replace_matches", from, to)
end
function normalizers.NFC(tok) add(tok, "nfc") end
function normalizers.NFD(tok) add(tok, "nfd") end
function normalizers.NFKC(tok) add(tok, "nfkc") end
function normalizers.NFKD(tok) add(tok, "nfkd") end
function normalizers.Nmt(tok) add(tok, "nmt") end
function normalizers.ByteLevel(tok) add(tok, "shown") end
function normalizers.Precompiled(tok, step)
  local bytes = charsmap.base64(step.precompiled_charsmap or "")
  if not bytes or bytes ~= "" and not charsmap.is(bytes) then
    refuse(tok, "the precompiled_charsmap of its normalizer Precompiled is damaged")
  end
  if bytes ~= "" then add(tok, "charsmap", bytes) end
end
function normalizers.Lowercase(tok) add(tok, "lower") end
function normalizers.StripAccents(tok) add(tok, "accents", "M") end
function normalizers.Strip(tok, step) add(tok, "strip", step.strip_left, step.strip_right) end
function normalizers.BertNormalizer(tok, step, value)
  local accents = value(step.strip_accents)
  if accents == nil then accents = step.lowercase end
  add(tok, "bert", step.clean_text, step.handle_chinese_chars)
  if accents then
    add(tok, "nfd")
    add(tok, "accents", "Mn")
  end
  if step.lowercase then add(tok, "lower") end
end

-- Parts cut at the matches of a regular expression or a text.
local function split(tok, pattern, plain, how, invert)
  if not words.joins[how] then refuse(tok, "it cuts '%s', which is not known", tostring(how)) end
  if not plain and (how == "Isolated" and not invert or how == "Removed" and invert) and words.of(pattern) then
    cut(tok, "cut", pattern)
    return
  end
  if not plain then search(tok, pattern) end
  if pattern ~= "" then cut(tok, "split", pattern, plain, how, invert or false) end
end

function cutters.ByteLevel(tok, step)
  tok.byte_level = true
  if step.add_prefix_space then cut(tok, "space") end
  if step.use_regex ~= false then cut(tok, "cut", "gpt2") end
end
function cutters.Split(tok, step)
  local text = step.pattern and step.pattern.String
  local regex = step.pattern and step.pattern.Regex
  if not text and not regex then refuse(tok, "its pre_tokenizer Split has no pattern") end
  split(tok, text or regex, text ~= nil, step.behavior, step.invert)
end
function cutters.CharDelimiterSplit(tok, step) split(tok, step.delimiter or "", true, "Removed") end
function cutters.Metaspace(tok, step)
  local mark = step.replacement or "▁"
  cut(tok, "replace", " ", mark)
  if step.prepend_scheme ~= "never" and step.add_prefix_space ~= false then
    cut(tok, "mark", mark, step.prepend_scheme)
  end
  if step.split ~= false then split(tok, mark, true, "MergedWithNext") end
end
function cutters.Digits(tok, step) cut(tok, "cut", step.individual_digits and "each_digit" or "digits") end
function cutters.Punctuation(tok, step)
  local how = step.behavior or "Isolated"
  if how ~= "Isolated" and how ~= "Contiguous" then
    split(tok, "[!-/:-@\\[-`{-~\\p{P}]", false, how)
    return
  end
  cut(tok, "cut", how == "Isolated" and "each_mark" or "marks")
end
function cutters.FixedLength(tok, step)
  local n = step.length or 5
  if n < 1 then refuse(tok, "the length of its pre_tokenizer FixedLength is %d, not 1 or more", n) end
  split(tok, ("[\\s\\S]{1,%d}"):format(n), false, "Isolated")
end
function cutters.BertPreTokenizer(tok) cut(tok, "cut", "bert") end
function cutters.WhitespaceSplit(tok) cut(tok, "cut", "between") end
function cutters.Whitespace(tok) cut(tok, "cut", "words") end

local known = { normalizer = normalizers, pre_tokenizer = cutters }

local function read_steps(tok, step, kind, value)
  if not step then return end
  if step.type == "Sequence" then
    for _, s in ipairs(step.pretokenizers or step.normalizers or {}) do
      read_steps(tok, s, kind, value)
    end
    return
  end
  local read = known[kind][step.type]
  if not read then
    refuse(tok, "its %s '%s' is not supported", kind, tostring(step.type))
  end
  read(tok, step, value)
end

-- The special tokens that are put before and behind a text, and around two.
local function read_around(tok, step)
  if not step then return end
  if step.type == "Sequence" then
    for _, s in ipairs(step.processors or {}) do read_around(tok, s) end
  elseif step.type == "TemplateProcessing" then
    local function ids_of(item)
      local token = item.SpecialToken and (step.special_tokens or {})[item.SpecialToken.id]
      return token and token.ids or {}
    end
    local list = tok.first
    for _, item in ipairs(step.single or {}) do
      if item.Sequence then list = tok.last end
      for _, id in ipairs(ids_of(item)) do list[#list + 1] = id + 1 end
    end
    if step.pair then tok.both = {} end
    for _, item in ipairs(step.pair or {}) do
      local part = item.Sequence
      if part then tok.both[#tok.both + 1] = { part = part.id == "B" and 2 or 1, kind = (part.type_id or 0) + 1 } end
      for _, id in ipairs(ids_of(item)) do
        tok.both[#tok.both + 1] = { id = id + 1, kind = (item.SpecialToken.type_id or 0) + 1 }
      end
    end
  elseif step.type == "BertProcessing" or step.type == "RobertaProcessing" then
    local cls, sep = step.cls and step.cls[2], step.sep and step.sep[2]
    if type(cls) ~= "number" or type(sep) ~= "number" then
      refuse(tok, "cls and sep of its %s are no ids", step.type)
    end
    cls, sep = cls + 1, sep + 1
    tok.first[1], tok.last[1] = cls, sep
    local kind = step.type == "BertProcessing" and 2 or 1
    tok.both = { { id = cls, kind = 1 }, { part = 1, kind = 1 }, { id = sep, kind = 1 } }
    if kind == 1 then tok.both[4] = { id = sep, kind = 1 } end
    tok.both[#tok.both + 1] = { part = 2, kind = kind }
    tok.both[#tok.both + 1] = { id = sep, kind = kind }
  elseif step.type ~= "ByteLevel" then
    refuse(tok, "its post_processor '%s' is not supported", tostring(step.type))
  end
end

local function one_of(tok, name, v, default, ...)
  v = v == nil and default or v
  for _, known_value in ipairs { ... } do
    if v == known_value then return v end
  end
  refuse(tok, "%s = %s is not supported; there are %s", name, type(v) == "table" and "{ … }" or tostring(v),
    table.concat({ ... }, ", "))
end

-- How lists of ids are cut and filled up.
local function read_lengths(tok, truncation, padding)
  if truncation then
    local strategy = one_of(tok, "truncation.strategy", truncation.strategy, "LongestFirst", "LongestFirst",
      "OnlyFirst", "OnlySecond")
    tok.truncation = { most = truncation.max_length, only = ({ OnlyFirst = 1, OnlySecond = 2 })[strategy],
      left = one_of(tok, "truncation.direction", truncation.direction, "Right", "Right", "Left") == "Left" }
  end
  if padding then
    local fixed = type(padding.strategy) == "table" and padding.strategy.Fixed
    if not fixed then one_of(tok, "padding.strategy", padding.strategy, "BatchLongest", "BatchLongest") end
    tok.padding = { id = padding.pad_id + 1, fixed = fixed or nil, multiple = padding.pad_to_multiple_of,
      left = one_of(tok, "padding.direction", padding.direction, "Right", "Right", "Left") == "Left" }
  end
end

--- Reads the steps of a tokenizer.json's table; value(v) is v, or nil for JSON's null.
function M.read(tok, json, value)
  tok.normal, tok.cuts, tok.first, tok.last = {}, {}, {}, {}
  read_lengths(tok, value(json.truncation), value(json.padding))
  read_steps(tok, value(json.normalizer), "normalizer", value)
  read_steps(tok, value(json.pre_tokenizer), "pre_tokenizer", value)
  decoders.read(tok, value(json.decoder))
  read_around(tok, value(json.post_processor))
end

--- A text as the model's normalizers leave it.
function M.normalize(tok, text)
  for _, step in ipairs(tok.normal) do text = run[step[1]](text, step) end
  return text
end

-- n of the ids of a list, from its left or, with left, those at its right.
local function part_of(ids, n, left)
  if n >= #ids then return ids end
  local out, from = {}, left and #ids - n or 0
  for k = 1, n do out[k] = ids[from + k] end
  return out
end

--- Cuts a list of ids, with no special ones around them yet, and with other, a second one, both together, as the file's
-- truncation says; most in place of its max_length cuts at the end, of two lists the longer. around: how many of these
-- the special tokens take.
function M.cut(tok, ids, around, other, most)
  local how = most and {} or tok.truncation
  local limit, n = (most or how.most) - around, #ids + (other and #other or 0)
  if limit < 0 then
    refuse(tok, "%s, %d, is less than the %d special tokens around a text%s", most and "max_length"
      or "its truncation.max_length", most or how.most, around, most and "" or "\nHINT: whole = true leaves it out")
  end
  if n <= limit then return ids, other end
  if how.only and (other or how.only == 2 and limit > 0) then
    local one = how.only == 2 and (other or {}) or ids
    if #one <= n - limit then
      refuse(tok, "its truncation is Only%s, %s %d tokens, at most %d\nHINT: whole = true leaves it out",
        how.only == 2 and "Second" or "First", other and "which is too short to be cut so far;"
        or "which cuts no single text; this one has", n, limit)
    end
    one = part_of(one, #one - (n - limit), how.left)
    if how.only == 2 then return ids, one end
    return one, other
  end
  if not other then return part_of(ids, limit, how.left) end
  local short = math.min(#ids, #other)
  local long = math.max(short, limit - short)
  if short + long > limit then
    short = math.floor(limit / 2)
    long = limit - short
  end
  local swapped = #ids > #other
  return part_of(ids, swapped and long or short, how.left), part_of(other, swapped and short or long, how.left)
end

local plain = { { part = 1, kind = 1 }, { part = 2, kind = 2 } }

--- The ids of two lists with what the file puts around a pair of texts, or without, and the kinds of these.
function M.joined(tok, ids, other, special)
  local out, kinds = {}, {}
  local function put(id, kind) out[#out + 1], kinds[#kinds + 1] = id, kind end
  for _, item in ipairs(tok.both or plain) do
    for _, id in ipairs(item.part == 1 and ids or item.part and other or {}) do put(id, item.kind) end
    if item.id and special then put(item.id, item.kind) end
  end
  return out, kinds
end

--- How many special tokens the file puts around a text, or around two.
function M.around(tok, two)
  if not two then return #tok.first + #tok.last end
  local n = 0
  for _, item in ipairs(tok.both or plain) do n = n + (item.id and 1 or 0) end
  return n
end

--- The length that the file's padding fills up a list of n ids to; longer lists stay as they are.
function M.filled(tok, n)
  local padding = tok.padding
  local length, multiple = padding.fixed or n, padding.multiple or 0
  if multiple > 0 then length = math.ceil(length / multiple) * multiple end
  return math.max(n, length)
end

return M
