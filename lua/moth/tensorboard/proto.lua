--- Writes protocol buffers: the part of the wire format that event files need (the guide "Encoding" of protobuf.dev).
local ffi = require "ffi"
local M = {}

--- An unsigned number below 2^53.
function M.varint(n)
  local bytes = {}
  while n >= 128 do
    bytes[#bytes + 1] = string.char(n % 128 + 128)
    n = math.floor(n / 128)
  end
  bytes[#bytes + 1] = string.char(n)
  return table.concat(bytes)
end

local function key(field, wire) return M.varint(field * 8 + wire) end

function M.int(field, n)
  if n < 0 then -- ten bytes of the two's complement
    local v, bytes = ffi.cast("uint64_t", ffi.cast("int64_t", n)), {}
    for i = 1, 10 do
      bytes[i] = string.char(tonumber(v % 128) + (i < 10 and 128 or 0))
      v = v / 128
    end
    return key(field, 0) .. table.concat(bytes)
  end
  return key(field, 0) .. M.varint(n)
end

--- Length-delimited: a string, bytes or a message.
function M.bytes(field, s) return key(field, 2) .. M.varint(#s) .. s end

local function raw(ctype, n, size) return ffi.string(ffi.new(ctype, n), size) end
function M.raw_double(x) return raw("double[1]", { x }, 8) end
function M.double(field, x) return key(field, 1) .. M.raw_double(x) end
function M.float(field, x) return key(field, 5) .. raw("float[1]", { x }, 4) end

--- Little-endian 32 and 64 bits.
function M.fixed32(n) return raw("int32_t[1]", { n }, 4) end
function M.fixed64(n) return raw("uint64_t[1]", { n }, 8) end

--- A packed list of doubles.
function M.doubles(field, list)
  local parts = {}
  for i, x in ipairs(list) do parts[i] = M.raw_double(x) end
  return M.bytes(field, table.concat(parts))
end

return M
