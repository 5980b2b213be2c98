--- MD5 (RFC 1321) of bytes, to recognise the files of a data set by their published sums. It protects from mistakes and
-- damage, not from an attacker: downloads are compared by SHA-256.
local ffi = require "ffi"
local bit = require "bit"
local band, bor, bxor, bnot, rol, tobit = bit.band, bit.bor, bit.bxor, bit.bnot, bit.rol, bit.tobit

local K, S = ffi.new("int32_t[64]"), ffi.new("int32_t[64]")
local G = ffi.new("int32_t[64]") -- which word of the block a step takes
do
  local shifts = { { 7, 12, 17, 22 }, { 5, 9, 14, 20 }, { 4, 11, 16, 23 }, { 6, 10, 15, 21 } }
  for i = 0, 63 do
    K[i] = tobit(math.floor(math.abs(math.sin(i + 1)) * 2 ^ 32))
    S[i] = shifts[math.floor(i / 16) + 1][i % 4 + 1]
    G[i] = ({ i, 5 * i + 1, 3 * i + 5, 7 * i })[math.floor(i / 16) + 1] % 16
  end
end

-- Adds one block of 16 words to the state h. x86 is little-endian, as MD5 is.
local function block(h, w)
  local a, b, c, d = h[0], h[1], h[2], h[3]
  for i = 0, 63 do
    local f
    if i < 16 then f = bor(band(b, c), band(bnot(b), d))
    elseif i < 32 then f = bor(band(d, b), band(bnot(d), c))
    elseif i < 48 then f = bxor(b, c, d)
    else f = bxor(c, bor(b, bnot(d)))
    end
    local sum = tobit(tobit(a + f) + tobit(K[i] + w[G[i]]))
    a, d, c, b = d, c, b, tobit(b + rol(sum, S[i]))
  end
  h[0], h[1], h[2], h[3] = tobit(h[0] + a), tobit(h[1] + b), tobit(h[2] + c), tobit(h[3] + d)
end

--- The sum, as 32 hexadecimal digits, of the string `head` followed by `n` (default 0) bytes at the pointer `bytes`.
return function(head, bytes, n)
  n = n or 0
  local h = ffi.new("int32_t[4]", tobit(0x67452301), tobit(0xefcdab89), tobit(0x98badcfe), tobit(0x10325476))
  local total, buffer, filled = #head + n, ffi.new("uint8_t[64]"), 0
  local words = ffi.cast("const int32_t *", buffer)
  local function feed(from, count)
    local at = 0
    while at < count do
      local take = math.min(64 - filled, count - at)
      if take == 64 then
        block(h, ffi.cast("const int32_t *", from + at))
      else
        ffi.copy(buffer + filled, from + at, take)
        filled = filled + take
        if filled == 64 then
          block(h, words)
          filled = 0
        end
      end
      at = at + take
    end
  end
  feed(ffi.cast("const uint8_t *", head), #head)
  if n > 0 then feed(ffi.cast("const uint8_t *", bytes), n) end
  local zeros = (55 - total) % 64
  local tail = ffi.new("uint8_t[?]", 1 + zeros + 8)
  tail[0] = 0x80
  local bits = total * 8
  for i = 0, 7 do tail[1 + zeros + i] = math.floor(bits / 256 ^ i) % 256 end
  feed(tail, 1 + zeros + 8)
  return (ffi.string(h, 16):gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end
