--- Tokens as text: the decoders of a tokenizer.json. Each makes a list of texts of a list of texts, which are one
-- behind the other at the end. They are read into tok.steps_back, { "name", … } each, plain data.
local check = require "moth.utils.check"
local unicode = require "moth.data.unicode"
local words = require "moth.data.words"

local M = {}

-- The bytes as the characters that stand for them in a byte-level vocabulary, and back.
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
M.shown, M.bytes_of = shown, bytes_of

-- ---- what is done: (list, step, inside) -> list; inside: other texts stand in front -------------------

local run = {}

-- A token that is not made of the characters for bytes stands for itself.
local function byte_level(token)
  local out = {}
  for c in token:gmatch "[%z\1-\127\194-\244][\128-\191]*" do
    local b = bytes_of[c]
    if not b then return token end
    out[#out + 1] = b
  end
  return table.concat(out)
end
function run.bytes(list)
  for k, token in ipairs(list) do list[k] = byte_level(token) end
  return list
end

function run.replace(list, step)
  local from, to = unicode.plain(step[2]), step[3]:gsub("%%", "%%%%")
  for k, token in ipairs(list) do list[k] = token:gsub(from, to) end
  return list
end
function run.replace_matches(list, step)
  for k, token in ipairs(list) do list[k] = words.replace(step[2], step[3], token) end
  return list
end

-- Tokens of bytes.
function run.fallback(list)
  for k, token in ipairs(list) do
    local hex = token:match "^<0x(%x%x)>$"
    if hex then list[k] = string.char(tonumber(hex, 16)) end
  end
  return list
end

function run.fuse(list, _, inside) return inside and list or { table.concat(list) } end

-- A character away from the beginnings and ends: at most so many. Behind fuse: of all that is decoded.
function run.strip(list, step, inside)
  local c, left, right = step[2], step[3], step[4]
  if inside and step.fused then return list end
  for k, token in ipairs(list) do
    for _ = 1, left do
      if token:sub(1, #c) ~= c then break end
      token = token:sub(#c + 1)
    end
    for _ = 1, right do
      if token == "" or token:sub(-#c) ~= c then break end
      token = token:sub(1, -#c - 1)
    end
    list[k] = token
  end
  return list
end

function run.metaspace(list, step, inside)
  local mark = unicode.plain(step[2])
  for k, token in ipairs(list) do list[k] = token:gsub(mark, k == 1 and step[3] and not inside and "" or " ") end
  return list
end

local tidied = { { " .", "." }, { " ?", "?" }, { " !", "!" }, { " ,", "," }, { " ' ", "'" }, { " n't", "n't" },
  { " 'm", "'m" }, { " do not", " don't" }, { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" } }
local function tidy(text)
  for _, pair in ipairs(tidied) do text = text:gsub(unicode.plain(pair[1]), pair[2]) end
  return text
end
function run.wordpiece(list, step, inside)
  local prefix = step[2]
  for k, token in ipairs(list) do
    if k > 1 or inside then
      token = token:sub(1, #prefix) == prefix and token:sub(#prefix + 1) or " " .. token
    end
    list[k] = step[3] and tidy(token) or token
  end
  return list
end

-- The classes of steps in time: those that come again at once count once, the pad goes away.
function run.ctc(list, step)
  local out, before = {}, nil
  local pad, delimiter = unicode.plain(step[2]), unicode.plain(step[3])
  for _, token in ipairs(list) do
    local text = token ~= before and token:gsub(pad, "") or ""
    if step[4] then text = tidy(text):gsub(delimiter, " ") end
    if text ~= "" then out[#out + 1] = text end
    before = token
  end
  return out
end

-- Ends of words are spaces; the last one is none, and inside nobody knows which is the last.
function run.suffix(list, step, inside)
  local suffix = unicode.plain(step[2])
  for k, token in ipairs(list) do list[k] = token:gsub(suffix, k == #list and not inside and "" or " ") end
  return list
end

function run.blanks(list, _, inside)
  for k, token in ipairs(list) do list[k] = (k > 1 or inside) and " " .. token or token end
  return list
end

-- ---- reading -----------------------------------------------------------------------------------------

local read = {}
function read.ByteLevel() return { "bytes" } end
function read.Replace(step)
  local pattern = step.pattern or {}
  if pattern.String then return { "replace", pattern.String, step.content or "" } end
  if pattern.Regex and words.search(pattern.Regex) then
    return { "replace_matches", pattern.Regex, step.content or "" }
  end
end
function read.ByteFallback() return { "fallback" } end
function read.Fuse() return { "fuse" } end
function read.Strip(step) return { "strip", step.content or " ", step.start or 0, step.stop or 0 } end
function read.Metaspace(step)
  return { "metaspace", step.replacement or "▁", step.prepend_scheme ~= "never" and step.add_prefix_space ~= false }
end
function read.WordPiece(step) return { "wordpiece", step.prefix or "##", step.cleanup ~= false } end
function read.CTC(step)
  return { "ctc", step.pad_token or "<pad>", step.word_delimiter_token or "|", step.cleanup ~= false }
end
function read.BPEDecoder(step) return { "suffix", step.suffix or "</w>" } end

local function add(tok, step)
  if step.type == "Sequence" then
    for _, s in ipairs(step.decoders or {}) do add(tok, s) end
    return
  end
  local out = read[step.type] and read[step.type](step)
  if not out then
    check.fail("[data.Tokenizer] %s: its decoder '%s' is not supported", tok.path, tostring(step.type))
  end
  for _, before in ipairs(tok.steps_back) do out.fused = out.fused or before[1] == "fuse" end
  tok.steps_back[#tok.steps_back + 1] = out
end

-- A file without one: what its other steps say.
local function guess(tok)
  local back = tok.steps_back
  if tok.byte_level then
    back[1] = { "bytes" }
  elseif tok.kind == "WordPiece" then
    back[1] = { "wordpiece", tok.prefix, true }
  else
    local strip
    for _, steps in ipairs { tok.normal, tok.cuts } do
      for _, step in ipairs(steps) do
        if step[1] == "replace" and step[3] ~= "" then back[#back + 1] = { "replace", step[3], step[2] } end
        strip = strip or step[1] == "prepend" or step[1] == "mark"
      end
    end
    if #back == 0 then
      back[1] = { "blanks" }
      return
    end
    back[#back + 1] = { "fallback" }
    back[#back + 1] = { "fuse" }
    if strip then back[#back + 1] = { "strip", " ", 1, 0, fused = true } end
  end
end

--- Reads the decoder of a file's table (nil: it has none) into the tokenizer, whose other steps are there.
function M.read(tok, step)
  tok.steps_back = {}
  if step then add(tok, step) else guess(tok) end
  -- Where no token's text depends on those behind it, and those in front matter to the first and to what is done to the
  -- whole alone, texts of single tokens may be kept.
  tok.by_token = true
  for _, s in ipairs(tok.steps_back) do
    tok.by_token = tok.by_token and s[1] ~= "suffix" and s[1] ~= "ctc" and (not s.fused or s[1] == "strip")
  end
end

local function all(tok, list, inside, fused)
  for _, step in ipairs(tok.steps_back) do
    if fused == nil or (step.fused or false) == fused then list = run[step[1]](list, step, inside) end
  end
  return table.concat(list)
end

--- The text of a token with others in front of it; bytes stay as they are.
function M.inside(tok, token) return all(tok, { token }, true) end

--- The text of n ids in a list.
function M.text(tok, ids, n)
  if n == 0 then return "" end
  local list = {}
  if not tok.by_token then
    for k = 1, n do list[k] = tok.tokens[ids[k]] end
    return all(tok, list)
  end
  list[1] = all(tok, { tok.tokens[ids[1]] }, false, false)
  for k = 2, n do list[k] = tok:bytes(ids[k]) end
  return all(tok, { table.concat(list) }, false, true)
end

return M
