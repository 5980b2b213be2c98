--- CRC-32C (Castagnoli; RFC 3720, appendix B.4), as TFRecord files have it.
local bit = require "bit"
local band, bxor, rshift, bor, lshift, tobit = bit.band, bit.bxor, bit.rshift, bit.bor, bit.lshift, bit.tobit

local table_of = {}
for i = 0, 255 do
  local c = i
  for _ = 1, 8 do c = bxor(rshift(c, 1), band(c, 1) == 1 and 0x82F63B78 or 0) end
  table_of[i] = c
end

local M = {}

--- The checksum of a string, as a signed 32-bit number.
function M.crc(s)
  local c = tobit(0xFFFFFFFF)
  for i = 1, #s do c = bxor(rshift(c, 8), table_of[band(bxor(c, s:byte(i)), 255)]) end
  return bxor(c, 0xFFFFFFFF)
end

--- TFRecord's masked checksum (rotated, plus a constant): the CRC of data that contains CRCs would be weak.
function M.masked(s)
  local c = M.crc(s)
  return tobit(bor(rshift(c, 15), lshift(c, 17)) + tobit(0xa282ead8))
end

return M
