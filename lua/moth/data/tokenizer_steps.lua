--- The steps of a tokenizer.json around its model: normalizers, pre_tokenizers, decoders and post_processors. What is
-- read goes into the tokenizer as plain data, which may go to a worker:
--   normal     what is done to a text, in order: { "replace", from, to } and the like, run by M.run
--   cuts       how it is cut into words, each way inside of the words of those before: names for words.of
--   back       { from, to } of "replace" that decoding turns round
--   first, last  ids around a text
local check = require "moth.utils.check"
local forms = require "moth.data.forms"
local words = require "moth.data.words"

local M = {}

local function refuse(tok, what, ...) check.fail("[data.Tokenizer] %s: %s", tok.path, what:format(...)) end

-- ---- what is done to a text --------------------------------------------------------------------------

local function plain(s) return (s:gsub("%p", "%%%0")) end

local run = {}
M.run = run
function run.replace(text, step) return (text:gsub(plain(step[2]), (step[3]:gsub("%%", "%%%%")))) end
function run.prepend(text, step) return step[2] .. text end
-- Metaspace's mark: once, and with "first" only at the beginning.
function run.mark(text, step, first)
  if step[3] == "first" and not first or text:sub(1, #step[2]) == step[2] then return text end
  return step[2] .. text
end
function run.space(text) return (text == "" or text:find "^ ") and text or " " .. text end -- a newline gets one, too
function run.lower(text) return forms.lower(text) end
function run.nfc(text) return forms.nfc(text) end
function run.nfd(text) return forms.nfd(text) end
function run.accents(text) return forms.strip_accents(text) end
function run.strip(text, step)
  if step[2] then text = text:gsub("^%s+", "") end
  if step[3] then text = text:gsub("%s+$", "") end
  return text
end

local function is_chinese(c)
  return c >= 0x4e00 and c <= 0x9fff or c >= 0x3400 and c <= 0x4dbf or c >= 0x20000 and c <= 0x2a6df
    or c >= 0x2a700 and c <= 0x2ceaf or c >= 0xf900 and c <= 0xfaff or c >= 0x2f800 and c <= 0x2fa1f
end
-- BERT's cleaning: no control characters, spaces are blanks; blanks around Chinese characters.
function run.bert(text, step)
  if not text:find "[%c\128-\255]" then return text end
  local out = {}
  for _, c in ipairs(forms.points(text)) do
    if step[2] and (c == 9 or c == 10 or c == 13 or words.is_space(c)) then
      out[#out + 1] = 32
    elseif step[3] and is_chinese(c) then
      out[#out + 1], out[#out + 2], out[#out + 3] = 32, c, 32
    elseif not (step[2] and (c == 0 or c == 0xfffd or forms.is("control", c))) then
      out[#out + 1] = c
    end
  end
  return forms.text(out)
end

-- ---- reading -----------------------------------------------------------------------------------------

local function add(tok, ...) tok.normal[#tok.normal + 1] = { ... } end
local function cut(tok, name) tok.cuts[#tok.cuts + 1] = name end

local normalizers, cutters = {}, {}

function normalizers.Prepend(tok, step) add(tok, "prepend", step.prepend or "") end
function normalizers.Replace(tok, step)
  local from = step.pattern and step.pattern.String
  if not from then refuse(tok, "its normalizer replaces a regular expression, which is not supported") end
  local to = step.content or ""
  add(tok, "replace", from, to)
  tok.back[#tok.back + 1] = { from, to }
end
function normalizers.NFC(tok) add(tok, "nfc") end
function normalizers.NFD(tok) add(tok, "nfd") end
function normalizers.Lowercase(tok) add(tok, "lower") end
function normalizers.StripAccents(tok) add(tok, "accents") end
function normalizers.Strip(tok, step) add(tok, "strip", step.strip_left, step.strip_right) end
function normalizers.BertNormalizer(tok, step, value)
  local accents = value(step.strip_accents)
  if accents == nil then accents = step.lowercase end
  add(tok, "bert", step.clean_text, step.handle_chinese_chars)
  if accents then
    add(tok, "nfd")
    add(tok, "accents")
  end
  if step.lowercase then add(tok, "lower") end
end

function cutters.ByteLevel(tok, step)
  tok.byte_level = true
  if step.add_prefix_space then add(tok, "space") end
  if step.use_regex ~= false then cut(tok, "gpt2") end
end
function cutters.Split(tok, step)
  local text = step.pattern and (step.pattern.Regex or step.pattern.String)
  for _, r in ipairs(tok.normal) do
    if text and r[1] == "replace" and r[2] == step.pattern.String then return end -- there is none left (Gemma)
  end
  if not text or step.behavior == "Removed" or step.invert or not step.pattern.Regex or not words.of(text) then
    refuse(tok, "its pattern is not known: %s\nHINT: known are the words of GPT-2, Llama 3, Qwen and GPT-4 (cl100k)",
      tostring(text))
  end
  cut(tok, text)
end
function cutters.Metaspace(tok, step)
  local mark = step.replacement or "▁"
  if mark ~= "▁" then refuse(tok, "it marks spaces by '%s', which is not supported", mark) end
  add(tok, "replace", " ", mark)
  if step.prepend_scheme ~= "never" and step.add_prefix_space ~= false then
    add(tok, "mark", mark, step.prepend_scheme)
    tok.strip_first = true
  end
  tok.back[#tok.back + 1] = { " ", mark }
  if step.split ~= false then cut(tok, "metaspace") end
end
function cutters.Digits(tok, step) cut(tok, step.individual_digits and "each_digit" or "digits") end
function cutters.BertPreTokenizer(tok) cut(tok, "bert") end
function cutters.WhitespaceSplit(tok) cut(tok, "between") end

local known = { normalizer = normalizers, pre_tokenizer = cutters }
local decoders = { ByteLevel = true, Replace = true, ByteFallback = true, Fuse = true, Strip = true, Metaspace = true,
  WordPiece = true }

local function read_steps(tok, step, kind, value)
  if not step then return end
  if step.type == "Sequence" then
    for _, s in ipairs(step.pretokenizers or step.normalizers or step.decoders or {}) do
      read_steps(tok, s, kind, value)
    end
    return
  end
  local read = known[kind][step.type]
  if not read then
    refuse(tok, "its %s '%s' is not supported%s", kind, tostring(step.type),
      step.type == "Precompiled" and "\nHINT: SentencePiece's tables of characters are not read" or "")
  end
  read(tok, step, value)
end

local function read_decoder(tok, step)
  if not step then return end
  if step.type == "Sequence" then
    for _, s in ipairs(step.decoders or {}) do read_decoder(tok, s) end
  elseif not decoders[step.type] then
    refuse(tok, "its decoder '%s' is not supported", tostring(step.type))
  elseif step.type == "WordPiece" then
    tok.tidy = step.cleanup ~= false
  end
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

--- Reads the steps of a tokenizer.json's table; value(v) is v, or nil for JSON's null.
function M.read(tok, json, value)
  tok.normal, tok.cuts, tok.back, tok.first, tok.last = {}, {}, {}, {}, {}
  read_steps(tok, value(json.normalizer), "normalizer", value)
  for _, step in ipairs(tok.normal) do tok.strip_first = tok.strip_first or step[1] == "prepend" end
  read_steps(tok, value(json.pre_tokenizer), "pre_tokenizer", value)
  read_decoder(tok, value(json.decoder))
  read_around(tok, value(json.post_processor))
end

return M
