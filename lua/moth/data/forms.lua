--- Texts in Unicode's normal forms NFD, NFC, NFKD and NFKC, in lower case, without accents: what
-- tokenizers do to a text first. A byte that is no part of UTF-8 stays as it is.
local ffi = require "ffi"
local each = require "moth.each"
local unicode = require "moth.data.unicode"

local M = {}

local parts, pairs_of, classes, lower -- made when first used

local function load()
  if parts then return end
  local data = require "moth.data.forms_data"
  parts, pairs_of, classes, lower = {}, {}, {}, {}
  local at = 0
  for skip, mark, list in data.decompositions:gmatch "(%d+)([=-])([%d,]+)" do
    at = at + tonumber(skip)
    local all = {}
    for part in list:gmatch "%d+" do all[#all + 1] = tonumber(part) end
    parts[at] = all
    if mark == "=" then
      pairs_of[all[1]] = pairs_of[all[1]] or {}
      pairs_of[all[1]][all[2]] = at
    end
  end
  for name, t in each { classes = classes, lower = lower } do
    at = 0
    for skip, v in data[name]:gmatch "(%d+)=(-?%d+)" do
      at = at + tonumber(skip)
      t[at] = tonumber(v)
    end
  end
end

--- Whether a code point is of a set of categories as M.set gives it.
function M.is(set, c) return c >= 0 and set[unicode.categories()[c]] or false end
--- The set of several categories: "Mn", "P Sm".
function M.set(names)
  local out = {}
  for name in names:gmatch "%S+" do
    for k in each(unicode.category(name)) do out[k] = true end
  end
  return out
end

local word_set
--- Whether a code point is of a word: letters, marks, digits, connectors, and letters in circles.
function M.is_word(c)
  word_set = word_set or M.set "L M Nd Nl Pc"
  return M.is(word_set, c) or c >= 0x24b6 and c <= 0x24e9 or c >= 0x1f130 and c <= 0x1f149
    or c >= 0x1f150 and c <= 0x1f169 or c >= 0x1f170 and c <= 0x1f189
end

-- Code points of a text, a byte b that is none as -b.
local function points(text)
  local p, n, i, out, count = ffi.cast("const uint8_t *", text), #text, 0, {}, 0
  while i < n do
    local c, after = unicode.decode(p, i, n)
    count = count + 1
    out[count] = c >= 0 and c or -p[i]
    i = after
  end
  return out
end
M.points = points

--- The text of code points.
function M.text(list)
  local out = {}
  for k, c in ipairs(list) do out[k] = c < 0 and string.char(-c) or unicode.char(c) end
  return table.concat(out)
end

local compatible -- code points of what a character stands for in NFKD; made when first used

local function load_compatible()
  if compatible then return end
  local data, at = require "moth.data.forms_compatible", 0
  compatible = {}
  for skip, list in data.compatible:gmatch "(%d+)%-([%d,]+)" do
    at = at + tonumber(skip)
    local all = {}
    for part in list:gmatch "%d+" do all[#all + 1] = tonumber(part) end
    compatible[at] = all
  end
end

local S, L, V, T = 0xac00, 0x1100, 0x1161, 0x11a7 -- Hangul's syllables are made of three letters by a formula

local function decompose(c, out)
  local d = parts[c]
  if d then
    for k = 1, #d do decompose(d[k], out) end
  elseif c >= S and c < S + 11172 then
    local k = c - S
    out[#out + 1], out[#out + 2] = L + math.floor(k / 588), V + math.floor(k % 588 / 28)
    if k % 28 > 0 then out[#out + 1] = T + k % 28 end
  else
    out[#out + 1] = c
  end
end

-- Marks behind one letter in the order of their classes.
local function order(list)
  for i = 2, #list do
    local c, k = list[i], i
    local class = classes[c]
    while class and k > 1 and (classes[list[k - 1]] or 0) > class do
      list[k], k = list[k - 1], k - 1
    end
    list[k] = c
  end
end

-- other: what characters are instead of their parts, by code point.
local function decomposed(text, other)
  load()
  local out = {}
  for _, c in ipairs(points(text)) do
    local all = other and other[c]
    if all then
      for k = 1, #all do out[#out + 1] = all[k] end
    else
      decompose(c, out)
    end
  end
  order(out)
  return out
end

local function composed(a, b)
  if a >= L and a < L + 19 and b >= V and b < V + 21 then return S + ((a - L) * 21 + b - V) * 28 end
  if a >= S and a < S + 11172 and (a - S) % 28 == 0 and b > T and b < T + 28 then return a + b - T end
  return pairs_of[a] and pairs_of[a][b]
end

local function compose(list)
  local out, start, last = {}, nil, 0 -- start: the place of the letter that takes marks; last: the class before
  for _, c in ipairs(list) do
    local class = classes[c] or 0
    local both = start and (last < class or last == 0 and start == #out) and composed(out[start], c)
    if both then
      out[start] = both
    else
      out[#out + 1] = c
      if class == 0 then start = #out end
      last = class
    end
  end
  return out
end

--- Letters and marks apart; together.
function M.nfd(text) return text:find "[\194-\244]" and M.text(decomposed(text)) or text end
function M.nfc(text)
  return text:find "[\204-\244]" and M.text(compose(decomposed(text))) or text -- nothing is composed below U+0300
end

--- The same; characters that stand for others, such as ² for 2, are these.
function M.nfkd(text)
  if not text:find "[\194-\244]" then return text end
  load_compatible()
  return M.text(decomposed(text, compatible))
end
function M.nfkc(text)
  if not text:find "[\194-\244]" then return text end
  load_compatible()
  return M.text(compose(decomposed(text, compatible)))
end

--- Without marks of a set (letters and their marks that are one character stay: nfd comes first).
function M.without_marks(text, marks)
  if not text:find "[\204-\244]" then return text end
  local out = {}
  for _, c in ipairs(points(text)) do
    if not M.is(marks, c) then out[#out + 1] = c end
  end
  return M.text(out)
end

--- Lower case.
function M.lower(text)
  if not text:find "[\195-\244]" then return text:lower() end
  load()
  local list = points(text)
  for k, c in ipairs(list) do list[k] = c + (lower[c] or 0) end
  return (M.text(list):gsub("\196\176", "i\204\135")) -- U+0130 becomes two
end

return M
