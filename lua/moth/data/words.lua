--- Where the regular expressions of byte-level tokenizers cut text into words, by hand: functions (p, i, n) of n bytes
-- at p that give the end of the word that begins at i (positions from 0, the end not included). A byte that is no part
-- of UTF-8 counts as a character that is neither letter, number nor space.
local ffi = require "ffi"
local each = require "moth.each"
local forms = require "moth.data.forms"
local regex = require "moth.data.regex"
local unicode = require "moth.data.unicode"

local M = {}

local OTHER, LETTER, NUMBER, SPACE = 0, 1, 2, 3
local POINTS = 0x110000
local class -- uint8_t[POINTS], made when first used

local is_mark_of -- of punctuation

local function classes()
  local t, category = ffi.new("uint8_t[?]", POINTS), unicode.categories()
  local of = ffi.new "uint8_t[32]"
  for k in each(forms.set "L") do of[k] = LETTER end
  for k in each(forms.set "N") do of[k] = NUMBER end
  for c = 0, POINTS - 1 do t[c] = of[category[c]] end
  for c = 0, 0x3000 do
    if unicode.is_space(c) then t[c] = SPACE end
  end
  is_mark_of = forms.set "P"
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
  return forms.is(is_mark_of, (decode(p, i, n)))
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

-- Punctuation: each by itself, or runs of it.
local function marks(p, i, n)
  local kind, j = is_punctuation(p, i, n), select(2, at(p, i, n))
  while j < n and is_punctuation(p, j, n) == kind do j = select(2, at(p, j, n)) end
  return j
end
local function each_mark(p, i, n)
  if is_punctuation(p, i, n) then return (select(2, at(p, i, n))) end
  return marks(p, i, n)
end

-- Whitespace: runs of letters, marks, digits and joiners, and of what is neither; spaces go away.
local function is_plain(p, i, n)
  local c = decode(p, i, n)
  return c == 0x200c or c == 0x200d or forms.is_word(c)
end
local function plain_words(p, i, n)
  local kind, j = at(p, i, n)
  if kind == SPACE then return run(p, j, n, SPACE), true end
  local word = is_plain(p, i, n)
  while j < n do
    local k, after = at(p, j, n)
    if k == SPACE or is_plain(p, j, n) ~= word then break end
    j = after
  end
  return j
end

local known = { gpt2 = gpt2, digits = digits, each_digit = each_digit, bert = bert, between = between, marks = marks,
  each_mark = each_mark, words = plain_words }

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

--- What cuts text: "gpt2", "digits" and the like, or a regular expression of those above, all of whose matches are
-- words; nil: another one. It may say true behind the end: the part is left out.
function M.of(text)
  class = class or classes()
  known[text] = known[text] or find(text)
  return known[text]
end

-- ---- what is cut by any pattern --------------------------------------------------------------------

local searches = {} -- by pattern

--- The search (p, i, n) -> first, end of a regular expression, or of a text where plain; nil and why.
function M.search(pattern, plain)
  local key = (plain and "=" or "~") .. pattern
  if not searches[key] then
    local f, why
    if plain then
      local m = #pattern
      function f(p, i, n)
        for k = i, n - m do
          if p[k] == pattern:byte(1) and ffi.string(p + k, m) == pattern then return k, k + m end
        end
      end
    else
      f, why = regex.compile(pattern, "data.Tokenizer")
    end
    if not f then return nil, why end
    searches[key] = f
  end
  return searches[key]
end

-- Calls f(first, end) for the matches in n bytes at p, until it gives true. An empty one right behind another does not
-- count.
local function each_match(search, p, n, f)
  local i, stop = 0, -1
  while i <= n do
    local first, last = search(p, i, n)
    if not first then break end
    if (last > first or first ~= stop) and f(first, last) then return true end
    i, stop = last, last
    if last == first then i = first < n and select(2, decode(p, first, n)) or n + 1 end
  end
end

--- A text with the matches of a pattern replaced.
function M.replace(pattern, by, text)
  local out, done, p = {}, 0, ffi.cast("const uint8_t *", text)
  each_match(M.search(pattern), p, #text, function(first, last)
    out[#out + 1], out[#out + 2] = text:sub(done + 1, first), by
    done = last
  end)
  out[#out + 1] = text:sub(done + 1)
  return table.concat(out)
end

local joins = {}
-- Matches stand alone or go away (one by one, see split), go with what is in front of them or behind, or with those
-- beside them.
joins.Isolated, joins.Removed = true, true
function joins.MergedWithPrevious(parts)
  local out, before = {}, false
  for _, part in ipairs(parts) do
    local last = out[#out]
    if part[3] and not before and last then last[2] = part[2] else out[#out + 1] = part end
    before = part[3]
  end
  return out
end
function joins.MergedWithNext(parts)
  local out, behind = {}, nil -- from the end
  for k = #parts, 1, -1 do
    local part = parts[k]
    if part[3] and behind and not behind[3] then
      out[#out][1] = part[1]
    else
      out[#out + 1] = { part[1], part[2] }
    end
    behind = part
  end
  for k = 1, math.floor(#out / 2) do out[k], out[#out + 1 - k] = out[#out + 1 - k], out[k] end
  return out
end
function joins.Contiguous(parts)
  local out, before = {}, nil
  for _, part in ipairs(parts) do
    if part[3] == before then out[#out][2] = part[2] else out[#out + 1] = part end
    before = part[3]
  end
  return out
end
M.joins = joins

--- Calls f(first, end) for the parts of n bytes at p, some of them empty, cut at the matches of a step { "split",
-- pattern, plain, how, invert }, until it gives true.
function M.split(step, p, n, f)
  local parts, done = {}, 0
  if joins[step[4]] == true then -- no list of a long text's parts
    local matches, others = step[4] == "Isolated" or step[5], step[4] == "Isolated" or not step[5]
    local stopped = each_match(M.search(step[2], step[3]), p, n, function(first, last)
      if others and first > done and f(done, first) then return true end
      done = last
      return matches and f(first, last)
    end)
    if not stopped and others and done < n then f(done, n) end
    return
  end
  each_match(M.search(step[2], step[3]), p, n, function(first, last)
    if first > done then parts[#parts + 1] = { done, first, step[5] } end
    parts[#parts + 1] = { first, last, not step[5] }
    done = last
  end)
  if done < n then parts[#parts + 1] = { done, n, step[5] } end
  for _, part in ipairs(joins[step[4]](parts)) do
    if f(part[1], part[2]) then return end
  end
end

return M
