--- Where the regular expressions of byte-level tokenizers cut text into words, by hand: functions (p, i, n) of n bytes
-- at p that give the end of the word that begins at i (positions from 0, the end not included). A byte that is no part
-- of UTF-8 counts as a character that is neither letter, number nor space.
local ffi = require "ffi"
local forms = require "moth.data.forms"
local unicode = require "moth.data.unicode"

local M = {}

local OTHER, LETTER, NUMBER, SPACE = 0, 1, 2, 3
local POINTS = 0x110000
local class -- uint8_t[POINTS], made when first used

local function classes()
  local t = ffi.new("uint8_t[?]", POINTS)
  unicode.each_letter(function(from, to) ffi.fill(t + from, to - from + 1, LETTER) end)
  unicode.each_number(function(from, to) ffi.fill(t + from, to - from + 1, NUMBER) end)
  for c = 0, 0x3000 do
    if unicode.is_space(c) then t[c] = SPACE end
  end
  return t
end

local decode = unicode.decode

-- The class of the character at i, and where the next one begins.
local function at(p, i, n)
  local b = p[i]
  if b < 0x80 then return class[b], i + 1 end
  local c, after = decode(p, i, n)
  return c < 0 and OTHER or class[c], after
end

-- The end of the characters of one class from i on.
local function run(p, i, n, kind)
  while i < n do
    local k, j = at(p, i, n)
    if k ~= kind then break end
    i = j
  end
  return i
end

local function is_break(b) return b == 10 or b == 13 end

-- \s+(?!\S)|\s+
local function spaces(p, i, n)
  local j, last = i, i
  while j < n do
    local k, after = at(p, j, n)
    if k ~= SPACE then break end
    last, j = j, after
  end
  return j < n and last > i and last or j
end

-- '(?:[sdmt]|ll|ve|re); nil: none
local function contraction(p, i, n, any_case)
  if i + 1 >= n then return nil end
  local a, b = p[i + 1], i + 2 < n and p[i + 2] or 0
  if any_case then
    if a >= 65 and a <= 90 then a = a + 32 end
    if b >= 65 and b <= 90 then b = b + 32 end
    -- The Kelvin sign and the long s fold to letters of ASCII.
    if a == 0xc5 and b == 0xbf then return i + 3 end
  end
  if a == 115 or a == 116 or a == 109 or a == 100 then return i + 2 end
  if a == 114 and b == 101 or a == 118 and b == 101 or a == 108 and b == 108 then return i + 3 end
end

-- '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
local function gpt2(p, i, n)
  local b = p[i]
  if b == 39 then
    local j = contraction(p, i, n)
    if j then return j end
  end
  local from = i
  if b == 32 and i + 1 < n then from = i + 1 end
  local kind, j = at(p, from, n)
  if kind ~= SPACE then return run(p, j, n, kind) end
  return spaces(p, i, n)
end

-- (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
-- \s+(?!\S)|\s+
local function cl100k(p, i, n, most)
  local b = p[i]
  if b == 39 then
    local j = contraction(p, i, n, true)
    if j then return j end
  end
  local kind, j = at(p, i, n)
  if kind == LETTER then return run(p, j, n, LETTER) end
  if kind == NUMBER then
    for _ = 2, most do
      if j >= n then break end
      local k, after = at(p, j, n)
      if k ~= NUMBER then break end
      j = after
    end
    return j
  end
  if not is_break(b) and j < n then
    local k, after = at(p, j, n)
    if k == LETTER then return run(p, after, n, LETTER) end
  end
  local from = i
  if b == 32 and i + 1 < n then from, kind = i + 1, (at(p, i + 1, n)) end
  if kind == OTHER then
    j = run(p, from, n, OTHER)
    while j < n and is_break(p[j]) do j = j + 1 end
    return j
  end
  local last, k = nil, i
  while k < n do
    local c, after = at(p, k, n)
    if c ~= SPACE then break end
    if is_break(p[k]) then last = after end
    k = after
  end
  return last or spaces(p, i, n)
end

-- Metaspace: a word begins at each "▁".
local function metaspace(p, i, n)
  local j = i + 1
  while j + 2 < n and not (p[j] == 0xe2 and p[j + 1] == 0x96 and p[j + 2] == 0x81) do j = j + 1 end
  return j + 2 < n and j or n
end

-- Each digit by itself; or runs of digits.
local function each_digit(p, i, n)
  local kind, j = at(p, i, n)
  if kind == NUMBER then return j end
  while j < n do
    local k, after = at(p, j, n)
    if k == NUMBER then break end
    j = after
  end
  return j
end
local function digits(p, i, n)
  local kind, j = at(p, i, n)
  if kind == NUMBER then return run(p, j, n, NUMBER) end
  return each_digit(p, i, n)
end

local function is_punctuation(p, i, n)
  local b = p[i]
  if b < 0x80 then return b > 32 and b < 127 and class[b] == OTHER end
  return forms.is("punctuation", (decode(p, i, n)))
end

-- BertPreTokenizer: spaces go away, punctuation is one by one. true: the part is left out.
local function bert(p, i, n)
  local kind, j = at(p, i, n)
  if kind == SPACE then return run(p, j, n, SPACE), true end
  if is_punctuation(p, i, n) then return j end
  while j < n do
    local k, after = at(p, j, n)
    if k == SPACE or is_punctuation(p, j, n) then break end
    j = after
  end
  return j
end

-- WhitespaceSplit: what stands between spaces.
local function between(p, i, n)
  local kind, j = at(p, i, n)
  if kind == SPACE then return run(p, j, n, SPACE), true end
  while j < n do
    local k, after = at(p, j, n)
    if k == SPACE then break end
    j = after
  end
  return j
end

M.is_space = unicode.is_space

local known = { gpt2 = gpt2, metaspace = metaspace, digits = digits, each_digit = each_digit, bert = bert,
  between = between }

-- The regular expressions, each letter as it stands in files, with "%d" for the most digits of a number.
local TAIL = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
local HEADS = { "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)", "(?i:'(?:[sdmt]|ll|ve|re))" }
local GPT2 = { "'s|'t|'re|'ve|'m|'ll|'d", "'(?:[sdmt]|ll|ve|re)" }

local function find(text)
  text = text:gsub("([?+*])%+", "%1"):gsub("|\\s%*%[\\r\\n%]|", "|\\s*[\\r\\n]+|") -- possessive or not: the same words
  for _, head in ipairs(GPT2) do
    if text == head .. "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
      or text == head .. "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)" then return gpt2 end
  end
  for _, head in ipairs(HEADS) do
    local before = head .. "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
    if text:sub(1, #before) == before and text:sub(-#TAIL) == TAIL then
      local number = text:sub(#before + 1, -#TAIL - 1)
      local most = number == "\\p{N}" and 1 or number == "\\p{N}+" and math.huge
        or tonumber(number:match "^\\p{N}{1,(%d)}$")
      if most then return function(p, i, n) return cl100k(p, i, n, most) end end
    end
  end
end

--- What cuts text: "gpt2", "metaspace", "digits" and the like, or a Split step's regular expression; nil: none that is
-- known.
function M.of(text)
  class = class or classes()
  known[text] = known[text] or find(text)
  return known[text]
end

return M
