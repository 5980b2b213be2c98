--- A bound on the number of tokens of a text that costs much less than the tokens themselves: as few as any way to cut
-- it into tokens of the vocabulary has. For those who refuse texts of too many.
local ffi = require "ffi"
local each = require "moth.each"
local decoders = require "moth.data.decoders"

local HEAD = 4 -- bytes by which long tokens are found
local SHORT = 2 ^ 32 -- keys of shorter ones: their bytes as a number + their size * SHORT

local function key_of(p, at, n)
  local key = 0
  for k = n - 1, 0, -1 do key = key * 256 + p[at + k] end
  return n < HEAD and key + n * SHORT or key
end

-- The tokens by their first bytes: lists of longer ones, the longest first, and true for short ones.
local function index_of(tok)
  local index = {}
  for _, token in each(tok.tokens) do
    local text = tok.byte_level and token:gsub("[%z\1-\127\194-\244][\128-\191]*", decoders.bytes_of) or token
    if text ~= "" then
      local p = ffi.cast("const uint8_t *", text)
      local key = key_of(p, 0, math.min(#text, HEAD))
      if #text < HEAD then
        index[key] = true
      else
        local list = index[key] or {}
        index[key], list[#list + 1] = list, text
      end
    end
  end
  for _, list in each(index) do
    if list ~= true then table.sort(list, function(a, b) return #a > #b end) end
  end
  return index
end

-- The bytes of the longest token that stands at p + at, of at least `least`; 0: none is that long.
local function longest(index, p, at, n, least)
  local list = at + HEAD <= n and index[key_of(p, at, HEAD)]
  for k = 1, list and #list or 0 do
    local size = #list[k]
    if size < least then return 0 end
    if at + size <= n and ffi.C.memcmp(p + at, list[k], size) == 0 then return size end
  end
  for size = math.min(HEAD - 1, n - at), math.max(1, least), -1 do
    if index[key_of(p, at, size)] then return size end
  end
  return 0
end

pcall(ffi.cdef, "int memcmp(const void *a, const void *b, size_t n);")
local indexes = setmetatable({}, { __mode = "k" }) -- by tokenizer

--- The fewest tokens of n bytes at p, or any number above `most` where they are more. Bytes with which no token begins
-- may have none.
return function(tok, p, n, most)
  local index, count, stop, far = indexes[tok], 0, 0, 0
  if not index then
    index = index_of(tok)
    indexes[tok] = index
  end
  for at = 0, n - 1 do -- far: where another token can end that begins at or before `at`
    local size = longest(index, p, at, n, math.max(far - at, at == stop and 0 or 1))
    if at + size > far then far = at + size end
    if at == stop then
      if far > at then
        count, stop = count + 1, far
        if count > most then return count end
      else
        stop, far = at + 1, at + 1
      end
    end
  end
  return count
end
