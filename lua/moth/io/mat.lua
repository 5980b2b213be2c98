--- Reads arrays of MATLAB's files of version 5 (.mat, also as `save -v7` writes them, compressed).
--
-- The file is a row of elements: a type, a size, the bytes, filled up to 8. An array is an element of elements: flags,
-- sizes, name, values. The values stand column by column.
local bit = require "bit"
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local library = require "moth.utils.library"

local M = {}

local MATRIX, COMPRESSED = 14, 15
-- How values are stored: their dtype.
local stored = { [1] = "int8", [2] = "uint8", [3] = "int16", [4] = "uint16", [5] = "int32", [6] = "uint32",
  [7] = "float32", [9] = "float64", [12] = "int64", [13] = "uint64" }
-- What an array is: its dtype.
local classes = { [6] = "float64", [7] = "float32", [8] = "int8", [9] = "uint8", [10] = "int16", [11] = "uint16",
  [12] = "int32", [13] = "uint32", [14] = "int64", [15] = "uint64" }
local others = { "cells", "structures", "objects", "text", "a sparse matrix" }

-- ---- zlib ----------------------------------------------------------------------------------------------

local zlib
local function open_zlib()
  if zlib then return zlib end
  pcall(ffi.cdef, [[
    typedef struct moth_z_stream { const uint8_t *next_in; unsigned avail_in; unsigned long total_in;
      uint8_t *next_out; unsigned avail_out; unsigned long total_out; const char *msg;
      void *state, *zalloc, *zfree, *opaque; int data_type; unsigned long adler, reserved; } moth_z_stream;
    int inflateInit_(moth_z_stream *, const char *version, int size);
    int inflate(moth_z_stream *, int flush);
    int inflateEnd(moth_z_stream *);
  ]])
  zlib = library("libz.so.1", "a compressed array", "zlib1g")
  return zlib
end

-- The one element, uncompressed: its type, its bytes (a buffer that must be kept) and their number.
local function inflate(bytes, n)
  local z, s = open_zlib(), ffi.new "moth_z_stream"
  if z.inflateInit_(s, "1.2.11", ffi.sizeof(s)) ~= 0 then error("zlib cannot begin", 0) end
  s.next_in, s.avail_in = bytes, n
  local tag = ffi.new "uint32_t[2]"
  s.next_out, s.avail_out = ffi.cast("uint8_t *", tag), 8
  z.inflate(s, 2)
  local size = s.avail_out == 0 and tag[1] or nil
  if not size or size > 1100 * n + 4096 then -- zlib makes at most 1032 bytes of one
    z.inflateEnd(s)
    error("a compressed array is damaged", 0)
  end
  local out = moth.empty({ math.max(size, 1) }, { dtype = moth.uint8 })
  s.next_out, s.avail_out = ffi.cast("uint8_t *", out:data()), size
  while s.avail_out > 0 do
    local status = z.inflate(s, 2)
    if status ~= 0 or s.avail_in == 0 then break end
  end
  local left = s.avail_out
  z.inflateEnd(s)
  if left > 0 then error("a compressed array is damaged, or ends early", 0) end
  return tag[0], out, size
end

-- ---- elements ----------------------------------------------------------------------------------------------

-- The element at `at` of n bytes: type, where its bytes begin, how many they are, where the next begins.
local function element(p, at, n)
  if at + 8 > n then error("the file ends early", 0) end
  local word = ffi.new "uint32_t[2]"
  ffi.copy(word, p + at, 8)
  local small = bit.rshift(word[0], 16)
  if small > 0 then
    if small > 4 then error("an element is damaged", 0) end
    return bit.band(word[0], 0xffff), at + 4, small, at + 8
  end
  local size = word[1]
  if size > n - at - 8 then error("the file ends early", 0) end
  return word[0], at + 8, size, at + 8 + size + (word[0] == COMPRESSED and 0 or -size % 8)
end

-- The array in n bytes: name, tensor; or name, nil, what it is.
local function array(p, n)
  local kind, at, size, after = element(p, 0, n)
  if kind ~= 6 or size < 8 then error("an array has no flags", 0) end
  local flags = ffi.new "uint32_t[2]"
  ffi.copy(flags, p + at, 8)
  kind, at, size, after = element(p, after, n)
  if kind ~= 5 or size < 8 or size % 4 ~= 0 then error("an array has no sizes", 0) end
  local dims, count, shape = ffi.new("int32_t[?]", size / 4), 1, {}
  ffi.copy(dims, p + at, size)
  for k = 0, size / 4 - 1 do
    if dims[k] < 0 then error("an array has a negative size", 0) end
    count = count * dims[k]
    table.insert(shape, 1, dims[k])
  end
  kind, at, size, after = element(p, after, n)
  if kind ~= 1 then error("an array has no name", 0) end
  local name = ffi.string(p + at, size)
  local is = bit.band(flags[0], 0xff)
  if not classes[is] then return name, nil, others[is] or "something else" end
  if bit.band(flags[0], 0x800) ~= 0 then return name, nil, "complex numbers" end
  kind, at, size = element(p, after, n)
  local dtype = stored[kind]
  local t = dtype and moth.empty({ count }, { dtype = moth[dtype] })
  if not t or size ~= count * t:element_size() then error(("the array '%s' is damaged"):format(name), 0) end
  ffi.copy(t:data(), p + at, size)
  local back = {}
  for k = 1, #shape do back[k] = #shape + 1 - k end
  return name, t:to(moth[classes[is]]):view(shape):permute(back)
end

local function read(path, names)
  local bytes = B.media.map_file(path, moth.uint8, 0, -1)
  local p, n = ffi.cast("const uint8_t *", bytes:data()), bytes:numel()
  local head = ffi.string(p, math.min(n, 128))
  if head:find("^MATLAB 7%.3") then error("this is MATLAB's format 7.3, which is HDF5; HINT: save it with -v7", 0) end
  if n < 128 or head:sub(125, 128) ~= "\0\1IM" then error("this is no .mat file of version 5, little-endian", 0) end
  local out, unread, at = {}, {}, 128
  while at < n do
    local kind, from, size, after = element(p, at, n)
    local inner, held = p + from, bytes -- held: the tensor that inner points into
    if kind == COMPRESSED then
      kind, held, size = inflate(inner, size)
      inner = ffi.cast("const uint8_t *", held:data())
    end
    if kind == MATRIX then
      local name, t, what = array(inner, size)
      out[name], unread[name] = t, what
    end
    held:size() -- until here
    at = after
  end
  for _, name in ipairs(names or {}) do
    if not out[name] then
      error(unread[name] and ("'%s' is %s, no numbers"):format(name, unread[name])
        or ("there is no array '%s'"):format(name), 0)
    end
  end
  return out
end

--- The arrays of numbers of a file: { name = tensor }. names: those that must be there. Raises "path: why".
function M.read(path, names)
  local ok, out = pcall(read, path, names)
  if not ok then error(("%s: %s"):format(path, (tostring(out):gsub("^[^\n]-:%d+: ", ""))), 0) end
  return out
end

return M
