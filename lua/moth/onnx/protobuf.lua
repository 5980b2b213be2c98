--- Reads protocol buffers by a schema. Every length is checked against the end of the message that it stands in, so
-- that no file, however damaged, is read past its end; nesting is bounded.
--
-- A schema is { [field number] = { name, kind, is_list } }; kind is "int" (a Lua number), "float", "string", "bytes"
-- ({ from, to } in the buffer), "packed" (a list of { from, to, wire }: elements of numbers, decoded later) or the
-- schema of a message. Fields that it does not name are skipped.
local ffi = require "ffi"
local check = require "moth.utils.check"
local each = require "moth.each"

local M = {}

local MAX_DEPTH = 64

local Cursor = {}
Cursor.__index = Cursor

--- A reader of n bytes at a pointer; `owner` keeps them alive. where: what errors begin with.
function M.cursor(bytes, n, owner, where)
  return setmetatable({ bytes = ffi.cast("const uint8_t *", bytes), at = 0, stop = n, owner = owner, where = where },
    Cursor)
end

function Cursor:fail(why, ...) check.fail("%s: " .. why, self.where, ...) end
function Cursor:damaged() self:fail("the file is damaged at byte %d", self.at) end

-- 64 bits, as uint64_t. `stop` is where the message ends.
local function varint(c, stop)
  local at, bytes, v, shift = c.at, c.bytes, 0ULL, 0
  while true do
    if at >= stop or shift > 63 then c:damaged() end
    local b = bytes[at]
    at = at + 1
    v = v + bit.lshift(ffi.cast("uint64_t", b % 128), shift)
    if b < 128 then break end
    shift = shift + 7
  end
  c.at = at
  return v
end
M.varint = varint

local function signed(v) return tonumber(ffi.cast("int64_t", v)) end

-- The end of what follows with its length.
local function length(c, stop)
  local n = tonumber(varint(c, stop))
  if n > stop - c.at then c:damaged() end
  return c.at + n
end

local float_of = ffi.new("union { uint8_t b[4]; float f; }")
local double_of = ffi.new("union { uint8_t b[8]; double d; }")

local function fixed(c, stop, n)
  if stop - c.at < n then c:damaged() end
  local of = n == 4 and float_of or double_of
  ffi.copy(of.b, c.bytes + c.at, n)
  c.at = c.at + n
  return n == 4 and of.f or of.d
end

local function skip(c, stop, wire)
  if wire == 0 then varint(c, stop)
  elseif wire == 1 or wire == 5 then fixed(c, stop, wire == 1 and 8 or 4)
  elseif wire == 2 then c.at = length(c, stop)
  else c:damaged()
  end
end

local read

-- One value; numbers that are packed are added to `list`.
local function value(c, stop, kind, wire, list, depth)
  if kind == "int" and wire == 0 then return signed(varint(c, stop)) end
  if kind == "float" and wire == 5 then return fixed(c, stop, 4) end
  if kind == "packed" then
    local from = c.at
    if wire == 2 then
      local to = length(c, stop)
      from, c.at = c.at, to
    else
      skip(c, stop, wire)
    end
    return { from, c.at, wire }
  end
  if wire ~= 2 then c:damaged() end
  local to = length(c, stop)
  local from = c.at
  if kind == "string" then
    c.at = to
    return ffi.string(c.bytes + from, to - from)
  elseif kind == "bytes" then
    c.at = to
    return { from, to }
  elseif type(kind) == "table" then
    return read(c, to, kind, depth + 1)
  elseif not list then
    c:damaged()
  end
  while c.at < to do -- packed ints and floats
    list[#list + 1] = kind == "int" and signed(varint(c, to)) or kind == "float" and fixed(c, to, 4)
  end
end

function read(c, stop, schema, depth)
  if depth > MAX_DEPTH then c:fail("messages nest too deeply") end
  local out = {}
  for _, field in each(schema) do
    if field[3] then out[field[1]] = {} end
  end
  while c.at < stop do
    local key = tonumber(varint(c, stop))
    local wire = key % 8
    local field = schema[(key - wire) / 8]
    if not field then
      skip(c, stop, wire)
    else
      local list = field[3] and out[field[1]]
      local v = value(c, stop, field[2], wire, list, depth)
      if list then
        if v ~= nil then list[#list + 1] = v end
      else
        out[field[1]] = v
      end
    end
  end
  return out
end

--- Reads a message that takes all the bytes.
function M.read(cursor, schema) return read(cursor, cursor.stop, schema, 0) end

return M
