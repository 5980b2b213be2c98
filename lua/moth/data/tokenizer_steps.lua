--- The steps of a tokenizer.json around its model: normalizers, pre_tokenizers and post_processors (decoders.lua has
-- the way back). What is read goes into the tokenizer as plain data, which may go to a worker:
--   normal     what is done to a text, in order: { "replace", from, to } and the like, run by M.run
--   cuts       how it is cut into words, each step inside of the parts of those before: { "cut", a name for words.of },
--              { "split", … } for words.split, or what is done to a part, as in normal
--   first, last  ids around a text
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

-- The special tokens that are put before and behind a text.
local function read_around(tok, step)
  if not step then return end
  if step.type == "Sequence" then
    for _, s in ipairs(step.processors or {}) do read_around(tok, s) end
  elseif step.type == "TemplateProcessing" then
    local list = tok.first
    for _, item in ipairs(step.single or {}) do
      if item.Sequence then
        list = tok.last
      elseif item.SpecialToken then
        local token = (step.special_tokens or {})[item.SpecialToken.id]
        for _, id in ipairs(token and token.ids or {}) do list[#list + 1] = id + 1 end
      end
    end
  elseif step.type == "BertProcessing" or step.type == "RobertaProcessing" then
    local cls, sep = step.cls and step.cls[2], step.sep and step.sep[2]
    if type(cls) ~= "number" or type(sep) ~= "number" then
      refuse(tok, "cls and sep of its %s are no ids", step.type)
    end
    tok.first[1], tok.last[1] = cls + 1, sep + 1
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
    tok.truncation = { most = truncation.max_length, second = strategy == "OnlySecond",
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

--- Cuts a list of ids, with no special ones around them yet, as the file's truncation says. around: how many of its
-- max_length these take.
function M.cut(tok, ids, around)
  local most = tok.truncation.most - around
  if most < 0 then
    refuse(tok, "its truncation.max_length, %d, is less than the %d special tokens around a text\nHINT: whole = true \z
      leaves it out", tok.truncation.most, around)
  end
  local n = #ids
  if n <= most then return ids end
  if tok.truncation.second and most > 0 then
    refuse(tok, "its truncation is OnlySecond, which cuts no single text; this one has %d tokens, at most %d\nHINT: \z
      whole = true leaves it out", n, most)
  end
  local out, from = {}, tok.truncation.left and n - most or 0
  for k = 1, most do out[k] = ids[from + k] end
  return out
end

--- The length that the file's padding fills up a list of n ids to; longer lists stay as they are.
function M.filled(tok, n)
  local padding = tok.padding
  local length, multiple = padding.fixed or n, padding.multiple or 0
  if multiple > 0 then length = math.ceil(length / multiple) * multiple end
  return math.max(n, length)
end

return M
