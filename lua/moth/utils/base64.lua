--- Bytes as text: base64 of RFC 4648, with padding.
local bit = require "bit"
local ffi = require "ffi"
local band, bor, lshift, rshift = bit.band, bit.bor, bit.lshift, bit.rshift

local M = {}

local alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local letters, values = ffi.new("uint8_t[64]", { alphabet:byte(1, -1) }), ffi.new "uint8_t[256]"
for i = 0, 63 do values[letters[i]] = i end

function M.encode(s)
  local n = #s
  local p, out = ffi.cast("const uint8_t *", s), ffi.new("uint8_t[?]", math.ceil(n / 3) * 4)
  local at = 0
  for i = 0, n - 1, 3 do
    local b, c = i + 1 < n and p[i + 1] or 0, i + 2 < n and p[i + 2] or 0
    local v = bor(lshift(p[i], 16), lshift(b, 8), c)
    out[at], out[at + 1] = letters[rshift(v, 18)], letters[band(rshift(v, 12), 63)]
    out[at + 2] = i + 1 < n and letters[band(rshift(v, 6), 63)] or 61 -- "="
    out[at + 3] = i + 2 < n and letters[band(v, 63)] or 61
    at = at + 4
  end
  return ffi.string(out, at)
end

--- nil: it is none.
function M.decode(s)
  if #s % 4 ~= 0 or not s:find "^[%w+/]*=?=?$" then return nil end
  local p, out, at = ffi.cast("const uint8_t *", s), ffi.new("uint8_t[?]", #s / 4 * 3), 0
  for i = 0, #s - 1, 4 do
    local v = bor(lshift(values[p[i]], 18), lshift(values[p[i + 1]], 12), lshift(values[p[i + 2]], 6),
      values[p[i + 3]])
    out[at], out[at + 1], out[at + 2] = rshift(v, 16), band(rshift(v, 8), 255), band(v, 255)
    at = at + 3
  end
  return ffi.string(out, at - #s:match "=*$")
end

return M
