--- Code points: their UTF-8 and their general categories (Unicode 16).
local ffi = require "ffi"

local M = {}

local POINTS = 0x110000

local category, number_of -- uint8_t[POINTS], made when first used: 0: none; numbers of names

--- The category's number of each code point, uint8_t[0x110000] (0: none), and the numbers by name: { Lu = 1, … }.
function M.categories()
  if category then return category, number_of end
  local data = require "moth.data.forms_data"
  local t, names, at = ffi.new("uint8_t[?]", POINTS), {}, 0
  for name in data.names:gmatch "%a+" do
    names[#names + 1] = name
    names[name] = #names
  end
  for letter, count in data.categories:gmatch "([%a-])(%d*)" do
    local n = tonumber(count) or 1
    local k = letter == "-" and 0 or letter:byte() - (letter < "a" and 64 or 70)
    ffi.fill(t + at, n, k)
    at = at + n
  end
  category, number_of = t, names
  return t, names
end

--- The numbers of a category ("Lu") or a group of them ("L"), as a set; nil: there is none of that name.
function M.category(name)
  local _, names = M.categories()
  local out
  for k, known in ipairs(names) do
    if known == name or #name == 1 and known:sub(1, 1) == name then
      out = out or {}
      out[k] = true
    end
  end
  return out
end

function M.is_space(c)
  return c >= 9 and c <= 13 or c == 32 or c == 0x85 or c == 0xa0 or c == 0x1680 or c >= 0x2000 and c <= 0x200a
    or c == 0x2028 or c == 0x2029 or c == 0x202f or c == 0x205f or c == 0x3000
end

--- A text as a pattern of string.find and its like that stands for itself.
function M.plain(s) return (s:gsub("%p", "%%%0")) end

local spaces -- as UTF-8: { [text] = true }
local function space_of(s)
  if not spaces then
    spaces = {}
    for c = 0x85, 0x3000 do
      if M.is_space(c) then spaces[M.char(c)] = true end
    end
  end
  return spaces[s]
end

--- Where the text's spaces from place i on end: the place (from 1) of what is none, or that behind the text.
function M.skip_spaces(text, i)
  while true do
    i = text:find("%S", i) or #text + 1
    local k = space_of(text:sub(i, i + 1)) and 2 or space_of(text:sub(i, i + 2)) and 3
    if not k then return i end
    i = i + k
  end
end
--- Where the spaces in front of place i begin: i where there are none.
function M.before_spaces(text, i)
  while i > 1 do
    local k = text:find("^%s", i - 1) and 1 or space_of(text:sub(i - 2, i - 1)) and 2
      or space_of(text:sub(i - 3, i - 1)) and 3
    if not k then break end
    i = i - k
  end
  return i
end

--- The code point at place i of n bytes at p (places from 0; -1: the byte is no part of UTF-8), and the place behind.
function M.decode(p, i, n)
  local b = p[i]
  if b < 0x80 then return b, i + 1 end
  local more = b < 0xc2 and 0 or b < 0xe0 and 1 or b < 0xf0 and 2 or b < 0xf5 and 3 or 0
  if more == 0 or i + more >= n then return -1, i + 1 end
  local c = b % 2 ^ (6 - more)
  for k = 1, more do
    local d = p[i + k]
    if d < 0x80 or d > 0xbf then return -1, i + 1 end
    c = c * 64 + d - 0x80
  end
  if c >= 0x110000 or more == 2 and (c < 0x800 or c >= 0xd800 and c < 0xe000) or more == 3 and c < 0x10000 then
    return -1, i + 1
  end
  return c, i + 1 + more
end

--- Bytes of the character at i of a text (from 1), whether they are all there, and whether they are none: then what
-- could have been its beginning, which becomes one U+FFFD, as everywhere else.
function M.character(s, i)
  local b = s:byte(i)
  local n = b < 0x80 and 1 or b >= 0xc2 and b < 0xe0 and 2 or b >= 0xe0 and b < 0xf0 and 3
    or b >= 0xf0 and b < 0xf5 and 4 or 0
  for k = 1, n - 1 do
    local c = s:byte(i + k)
    if not c then return n, false end
    local low = k == 1 and (b == 0xe0 and 0xa0 or b == 0xf0 and 0x90) or 0x80
    local high = k == 1 and (b == 0xed and 0x9f or b == 0xf4 and 0x8f) or 0xbf
    if c < low or c > high then return k, true, true end
  end
  return math.max(n, 1), true, n == 0
end

--- The code point of a text that is one character; -1: it is none.
function M.point(s) return (M.decode(ffi.cast("const uint8_t *", s), 0, #s)) end

--- A code point as UTF-8.
function M.char(c)
  if c < 0x80 then return string.char(c) end
  if c < 0x800 then return string.char(0xc0 + math.floor(c / 64), 0x80 + c % 64) end
  if c < 0x10000 then
    return string.char(0xe0 + math.floor(c / 4096), 0x80 + math.floor(c / 64) % 64, 0x80 + c % 64)
  end
  return string.char(0xf0 + math.floor(c / 262144), 0x80 + math.floor(c / 4096) % 64, 0x80 + math.floor(c / 64) % 64,
    0x80 + c % 64)
end

return M
