--- SentencePiece's tables of characters (precompiled_charsmap): what a text's characters are replaced by before it is
-- cut. A double array (a tree whose nodes lie in one list) leads from bytes to places in a list of texts. As the
-- tokenizers package applies it: to clusters of a letter and its marks below 6 bytes as a whole, else to characters.
local ffi = require "ffi"
local bit = require "bit"
local forms = require "moth.data.forms"
local unicode = require "moth.data.unicode"

local M = {}

local band, rshift, lshift, bxor = bit.band, bit.rshift, bit.lshift, bit.bxor

--- The bytes of base64; nil: it is none.
function M.base64(text)
  text = text:gsub("%s", ""):gsub("=*$", "")
  if text:find "[^%w+/]" or #text % 4 == 1 then return nil end
  local value = {}
  for k = 0, 63 do value[("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):byte(k + 1)] = k end
  local out, n, bits, held = ffi.new("uint8_t[?]", #text), 0, 0, 0
  for k = 1, #text do
    bits, held = bits * 64 + value[text:byte(k)], held + 6
    if held >= 8 then
      held = held - 8
      out[n], n = rshift(bits, held), n + 1
      bits = band(bits, 2 ^ held - 1)
    end
  end
  return ffi.string(out, n)
end

-- The tree's units and the texts of a table's bytes.
local function parts(bytes)
  if #bytes < 4 then return nil end
  local size = tonumber(ffi.cast("const uint32_t *", bytes)[0])
  if size % 4 ~= 0 or size == 0 or size > #bytes - 4 then return nil end
  local units = ffi.new("uint32_t[?]", size / 4)
  ffi.copy(units, ffi.cast("const uint8_t *", bytes) + 4, size)
  return { units = units, n = size / 4, texts = bytes:sub(size + 5), found = {} }
end

--- Whether bytes are such a table.
function M.is(bytes) return parts(bytes) ~= nil end

local function offset(unit) return lshift(rshift(unit, 10), rshift(band(unit, 512), 6)) end

-- What stands for the shortest beginning of a text that is in the table (so the package does); nil: none is.
local function search(map, text)
  local at, n = 0, map.n
  at = bxor(at, offset(map.units[0]))
  for k = 1, #text do
    local c = text:byte(k)
    if c == 0 then return nil end
    at = bxor(at, c)
    if at < 0 or at >= n then return nil end
    local unit = map.units[at]
    if band(unit, 0x800000ff) ~= c then return nil end
    at = bxor(at, offset(unit))
    if at < 0 or at >= n then return nil end
    if band(unit, 256) ~= 0 then
      local from = band(map.units[at], 0x7fffffff) + 1
      local stop = map.texts:find("\0", from, true)
      return map.texts:sub(from, stop and stop - 1 or #map.texts)
    end
  end
end

local function found(map, text)
  local to = map.found[text]
  if to == nil then
    to = search(map, text) or false
    map.found[text] = to
  end
  return to
end

local maps = setmetatable({}, { __mode = "v" })
local extends, controls

-- Whether a character goes with the one in front of it.
local function is_extending(c)
  return c >= 0x300 and (forms.is(extends, c) or c == 0x200c or c == 0x200d or c == 0xe33 or c == 0xeb3 or c == 0xff9e
    or c == 0xff9f or c >= 0x1f3fb and c <= 0x1f3ff or c >= 0xe0020 and c <= 0xe007f)
end
-- Whether one goes with the one behind it: signs in front of numbers.
local function is_before(c) return c >= 0x600 and c <= 0x605 or c == 0x6dd or c == 0x70f end

--- A text with what stands for its characters.
function M.apply(text, bytes)
  extends, controls = extends or forms.set "M", controls or forms.set "Cc Cf Zl Zp"
  local map = maps[bytes] or parts(bytes)
  maps[bytes] = map
  local p, n, i, out = ffi.cast("const uint8_t *", text), #text, 0, {}
  while i < n do
    local c, stop = unicode.decode(p, i, n)
    local first = stop
    if c == 13 and p[stop] == 10 and stop < n then
      stop = stop + 1
    elseif c >= 0 and (not forms.is(controls, c) or is_before(c) or c == 0x200c or c == 0x200d) then
      while is_before(c) and stop < n do
        local d, after = unicode.decode(p, stop, n)
        if d < 0 or forms.is(controls, d) and not is_before(d) then break end
        c, stop = d, after
      end
      while stop < n do
        local d, after = unicode.decode(p, stop, n)
        if not is_extending(d) then break end
        stop = after
      end
    end
    local to = stop - i < 6 and stop > first and found(map, text:sub(i + 1, stop))
    if to then
      out[#out + 1] = to
    else
      while i < stop do
        local _, after = unicode.decode(p, i, n)
        local one = text:sub(i + 1, after)
        out[#out + 1] = found(map, one) or one
        i = after
      end
    end
    i = stop
  end
  return table.concat(out)
end

return M
