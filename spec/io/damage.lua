--- Damaged files for specs: every truncation and every flipped bit of a file, changed in place (to write it anew each
-- time costs ten times as much).
local ffi = require "ffi"
ffi.cdef "int truncate(const char *path, long length);"

local M = {}

local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

--- Calls f(n) with the file at `path` as the first n bytes of text, for each n, then leaves it as text.
function M.truncations(path, text, f)
  write(path, text)
  for n = #text - 1, 0, -1 do
    assert(ffi.C.truncate(path, n) == 0)
    f(n)
  end
  write(path, text)
end

--- Calls f(byte, bit) with one bit of text flipped in the file at `path`, for each, then leaves it as text.
-- @return how many there were
function M.flips(path, text, f)
  write(path, text)
  local file = assert(io.open(path, "r+b"))
  file:setvbuf("no")
  local function put(i, byte)
    file:seek("set", i - 1)
    file:write(string.char(byte))
  end
  for i = 1, #text do
    for b = 0, 7 do
      put(i, bit.bxor(text:byte(i), 2 ^ b))
      f(i, b)
    end
    put(i, text:byte(i))
  end
  file:close()
  return 8 * #text
end

return M
