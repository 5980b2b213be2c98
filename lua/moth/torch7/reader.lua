--- Torch7's files: numbers, strings, booleans, tables, tensors, storages and objects of classes, binary or ascii.
--
--     local value = reader.read(path, { place = function(storage) … end, long_size = 8, functions = "error" })
--
-- A file is one value: a type number, then its content. Tables, objects and functions carry an index; an index that was
-- read before stands for the same object again. Nothing of a file is run: functions are bytecode and are refused. All
-- lengths are checked against what is left of the file before memory is taken.
local ffi = require "ffi"
local B = require "moth_lua"
local each = require "moth.each"
local moth = require "moth"

local M = {}

local MAX_DEPTH = 1000 -- of values in values
local NIL, NUMBER, STRING, TABLE, TORCH, BOOLEAN, FUNCTION, OLD_FUNCTION, UPVALUES = 0, 1, 2, 3, 4, 5, 6, 7, 8

--- The key of the class's name in what a class makes of which moth has no own: value[M.TYPENAME].
M.TYPENAME = "torch_typename"

-- Element kinds by the name in front of "Tensor" and "Storage": dtype, C type, bytes ("long": as the file has it).
local kinds = {
  Byte = { "uint8", "uint8_t", 1 }, Char = { "int8", "int8_t", 1 }, Short = { "int16", "int16_t", 2 },
  Int = { "int32", "int32_t", 4 }, Long = { "int64", "int64_t", "long" }, Float = { "float32", "float", 4 },
  Double = { "float64", "double", 8 }, Half = { "float16", "uint16_t", 2 },
}
for _, name in ipairs { "Byte", "Char", "Short", "Int", "Long", "Double", "Half" } do
  kinds["Cuda" .. name] = kinds[name]
end
kinds.Cuda = kinds.Float

local Reader = {}
Reader.__index = Reader

-- What goes wrong is raised as a table, so that it is told from a mistake of this file.
local Damage = { __tostring = function(d) return d.text end }
function Reader:fail(text, ...)
  error(setmetatable({ text = text:format(...), at = self.at, refused = self.refused }, Damage), 0)
end
function Reader:refuse(text, ...)
  self.refused = true
  self:fail(text, ...)
end

-- ---- binary -----------------------------------------------------------------------------------------

function Reader:need(n)
  if n < 0 or n ~= n or n > self.size - self.at then
    self:fail("it ends too early: %.0f bytes are wanted at byte %d of %d", n, self.at, self.size)
  end
end

local function number_reader(ctype, size)
  local box = ffi.typeof("union { " .. ctype .. " v; uint8_t b[8]; }")
  return function(self)
    self:need(size)
    local u = box()
    ffi.copy(u.b, self.bytes + self.at, size)
    self.at = self.at + size
    return tonumber(u.v)
  end
end

local binary = { int = number_reader("int32_t", 4), double = number_reader("double", 8) }
local long4, long8 = number_reader("int32_t", 4), number_reader("int64_t", 8)
function binary.long(self) return (self.long_size == 4 and long4 or long8)(self) end

function binary.chars(self, n)
  self:need(n)
  local s = ffi.string(self.bytes + self.at, n)
  self.at = self.at + n
  return s
end

-- n elements into the memory of a tensor.
function binary.elements(self, kind, n, to)
  local size = kind[3] == "long" and self.long_size or kind[3]
  self:need(n * size)
  if kind[3] == "long" and size == 4 then
    local from = ffi.new("int32_t[?]", math.max(n, 1)) -- bytes of the file need not be aligned
    ffi.copy(from, self.bytes + self.at, n * 4)
    local out = ffi.cast("int64_t *", to)
    for i = 0, n - 1 do out[i] = from[i] end
  else
    ffi.copy(to, self.bytes + self.at, n * size)
  end
  self.at = self.at + n * size
end
binary.least = function(self, kind) return kind[3] == "long" and self.long_size or kind[3] end

-- ---- ascii ------------------------------------------------------------------------------------------

local ascii = {}

local function is_space(c) return c == 32 or c >= 9 and c <= 13 end

function ascii.word(self)
  local bytes, at, size = self.bytes, self.at, self.size
  while at < size and is_space(bytes[at]) do at = at + 1 end
  local from = at
  while at < size and not is_space(bytes[at]) and at - from < 64 do at = at + 1 end
  self.at = at
  if at == from or at == size then -- space follows each number: else its end may be missing
    self:fail("it ends too early: a number is wanted at byte %d", from)
  end
  return ffi.string(bytes + from, at - from)
end

-- One line end after what was written, as Torch7 skips it.
function ascii.line_end(self)
  if self.at < self.size and self.bytes[self.at] == 10 then self.at = self.at + 1 end
end

local special = { nan = 0 / 0, ["-nan"] = 0 / 0, inf = math.huge, ["-inf"] = -math.huge }
local function number_of(self, word)
  local n = special[word] or word:find "^[-+]?[%d.][%d.eE+-]*$" and tonumber(word)
  if not n then self:fail("'%s' is no number, at byte %d", word:gsub("[^%w%p]", "?"), self.at) end
  return n
end

local function int64_of(self, word)
  local sign, digits = word:match "^([-+]?)(%d+)$"
  if not sign or #digits > 19 then
    self:fail("'%s' is no integer, at byte %d", word:gsub("[^%w%p]", "?"), self.at)
  end
  local v = 0LL
  for d in digits:gmatch "%d" do v = v * 10 + tonumber(d) end
  return sign == "-" and -v or v
end

function ascii.int(self)
  local n = tonumber(int64_of(self, ascii.word(self)))
  ascii.line_end(self)
  return n
end
ascii.long = ascii.int
function ascii.double(self)
  local n = number_of(self, ascii.word(self))
  ascii.line_end(self)
  return n
end
function ascii.chars(self, n)
  local s = binary.chars(self, n)
  if n > 0 then ascii.line_end(self) end
  return s
end
function ascii.elements(self, kind, n, to)
  if n == 0 then return end
  local ctype = kind[2]
  if kind[3] == 1 then -- bytes are written as they are
    self:need(n)
    ffi.copy(to, self.bytes + self.at, n)
    self.at = self.at + n
  elseif kind[1] == "float16" then
    local wide = moth.empty { n }
    local out = ffi.cast("float *", B.data_ptr(wide))
    for i = 0, n - 1 do out[i] = number_of(self, ascii.word(self)) end
    ffi.copy(to, ffi.cast("void *", B.data_ptr(wide:half())), 2 * n)
  else
    local out = ffi.cast(ctype .. " *", to)
    local floats = ctype == "float" or ctype == "double"
    for i = 0, n - 1 do
      local word = ascii.word(self)
      out[i] = floats and number_of(self, word) or int64_of(self, word)
    end
  end
  ascii.line_end(self)
end
ascii.least = function(_, kind) return kind[3] == 1 and 1 or 2 end -- a digit and a space

-- ---- values -----------------------------------------------------------------------------------------

-- A length or a count; at least `bytes` of the file belong to each.
function Reader:count(n, bytes)
  if n < 0 or n ~= math.floor(n) then self:fail("%g is no length, at byte %d", n, self.at) end
  self:need(n * bytes)
  return n
end

function Reader:string()
  local n = self.form.int(self)
  return self.form.chars(self, self:count(n, 1))
end

function Reader:storage(kind)
  local n = self.form.long(self)
  self:count(n, self.form.least(self, kind))
  local t = moth.empty({ n }, { dtype = moth[kind[1]] })
  if n > 0 then self.form.elements(self, kind, n, ffi.cast("uint8_t *", B.data_ptr(t))) end
  return self.place and self.place(t) or t
end

function Reader:longs(n)
  local list = {}
  for i = 1, n do list[i] = self.form.long(self) end
  return list
end

function Reader:tensor(kind, class_name)
  local dims = self.form.int(self)
  if dims < 0 or dims > 64 then self:fail("a %s has %d dimensions, at byte %d", class_name, dims, self.at) end
  local size, stride, elements = self:longs(dims), self:longs(dims), 1
  local offset = self.form.long(self) - 1
  local storage = self:value()
  local dtype = moth[kind[1]]
  if dims == 0 then return moth.empty({ 0 }, { dtype = dtype }) end
  for d = 1, dims do
    if size[d] < 1 or size[d] > 2 ^ 53 or stride[d] < 0 or stride[d] > 2 ^ 53 then -- an empty one has no dimensions
      self:fail("a %s has a size or stride that is none, at byte %d", class_name, self.at)
    end
    elements = elements * size[d]
  end
  if not (B.is_tensor(storage) and storage:dtype() == dtype and storage:dim() == 1) then
    self:fail("a %s has no storage of its kind, at byte %d", class_name, self.at)
  end
  local last = offset + 1
  for d = 1, dims do last = last + (size[d] - 1) * stride[d] end
  if offset < 0 or last > storage:numel() or elements > 2 ^ 40 then
    self:fail("a %s reaches beyond its storage of %d elements, at byte %d", class_name, storage:numel(), self.at)
  end
  return storage:as_strided(size, stride, offset)
end

-- tds.Hash and tds.Vec: their number, and what they hold.
function Reader:tds(hash, out)
  local n = self.form.int(self)
  self:value()
  self:count(n, hash and 6 or 2) -- as ascii, a pair is that short
  for i = 1, n do
    local key = hash and self:value() or i
    local v = self:value()
    if key == nil or key ~= key then self:fail("a key of a table is nil or NaN, at byte %d", self.at) end
    out[key] = v
  end
end

function Reader:object(index)
  local version = self:string()
  local name = version:find "^V %d" and self:string() or version -- the first files have no version
  if not name:find "^[%w_.]+$" or #name > 100 then self:fail("a class has no name, at byte %d", self.at) end
  self.path[#self.path + 1] = name
  local kind, what = name:match "^torch%.(%w-)(Tensor)$"
  if not kind then kind, what = name:match "^torch%.(%w-)(Storage)$" end
  local found = kind and kinds[kind]
  local made
  if found then
    self.objects[index] = Damage -- until it is whole, nothing may stand for it
    made = what == "Tensor" and self:tensor(found, name) or what == "Storage" and self:storage(found)
  else
    made = { [M.TYPENAME] = name }
    self.objects[index] = made
    if name == "tds.Hash" or name == "tds.Vec" or name == "tds.hash" or name == "tds.vec" then
      self:tds(name:lower() == "tds.hash", made)
    else
      local fields = self:value()
      if type(fields) ~= "table" or B.is_tensor(fields) or fields[M.TYPENAME] then
        self:refuse("objects of the class %s write themselves in a way of their own, which moth does not know", name)
      end
      for key, v in each(fields) do made[key] = v end
      made[M.TYPENAME] = name
    end
  end
  self.objects[index] = made
  table.remove(self.path)
  return made
end

function Reader:table(index)
  local n, out = self.form.int(self), {}
  self:count(n, 6) -- as ascii, a pair is that short
  self.objects[index] = out
  for _ = 1, n do
    local key = self:value()
    if key == nil or key ~= key then self:fail("a key of a table is nil or NaN, at byte %d", self.at) end
    self.path[#self.path + 1] = type(key) == "string" and #key < 60 and key:gsub("[^%w_.-]", "?") or tostring(key)
    out[key] = self:value()
    table.remove(self.path)
  end
  return out
end

-- A function is its bytecode and its upvalues, which are read over.
function Reader:func(index, kind)
  local path = table.concat(self.path, ".")
  self.form.chars(self, self:count(self.form.int(self), 1))
  self.objects[index] = false
  self:value()
  if self.functions ~= "skip" then
    self:refuse("%s is a Lua function, as bytecode; moth runs nothing of a file%s\nHINT: moth.torch7.load(path, \z
      { functions = \"skip\" }) leaves functions out", path == "" and "the value" or "'" .. path .. "'",
      kind == OLD_FUNCTION and " (of an old form)" or "")
  end
  return nil
end

function Reader:value()
  if self.depth > MAX_DEPTH then self:fail("values nest deeper than %d, at byte %d", MAX_DEPTH, self.at) end
  local kind = self.form.int(self)
  if kind == NIL then return nil end
  if kind == NUMBER then return self.form.double(self) end
  if kind == STRING then return self:string() end
  if kind == BOOLEAN then
    local b = self.form.int(self)
    if b ~= 0 and b ~= 1 then self:fail("%d is no boolean, at byte %d", b, self.at) end
    return b == 1
  end
  if kind < TABLE or kind > UPVALUES then self:fail("%d is no type of a value, at byte %d", kind, self.at) end
  local index = self.form.int(self)
  local known = self.objects[index]
  if known == Damage then self:fail("object %d holds itself, at byte %d", index, self.at) end
  if known ~= nil then return known or nil end
  self.depth = self.depth + 1
  local made
  if kind == TABLE then
    made = self:table(index)
  elseif kind == TORCH then
    made = self:object(index)
  elseif kind == FUNCTION or kind == OLD_FUNCTION or kind == UPVALUES then
    made = self:func(index, kind)
  end
  self.depth = self.depth - 1
  return made
end

-- ---- files ------------------------------------------------------------------------------------------

-- The whole file in memory, which ends with the tensor.
local function bytes_of(path)
  local f, message = io.open(path, "rb")
  if not f then return nil, message end
  local size = f:seek "end"
  if not size or size > 2 ^ 40 then
    f:close()
    return nil, path .. ": it is no plain file"
  end
  f:seek "set"
  local t = moth.empty({ size }, { dtype = moth.uint8 })
  local at, to = 0, ffi.cast("uint8_t *", B.data_ptr(t))
  while at < size do
    local part = f:read(math.min(2 ^ 22, size - at))
    if not part then break end
    ffi.copy(to + at, part, #part)
    at = at + #part
  end
  f:close()
  return t, to, at
end

local function try(o, bytes, size, form, long_size)
  local self = setmetatable({ bytes = bytes, size = size, at = 0, form = form, long_size = long_size, objects = {},
    depth = 0, path = {}, place = o.place, functions = o.functions }, Reader)
  local ok, value = pcall(self.value, self)
  if ok then return true, value, self.at end
  if getmetatable(value) ~= Damage then error(value, 0) end
  return false, value
end

--- The value of a file; or nil and what is wrong. o: place(storage), long_size (4 or 8; both are tried), functions
-- ("skip": left out).
function M.read(path, o)
  local held, bytes, size = bytes_of(path)
  if not held then return nil, bytes end
  if size == 0 then return nil, "it is empty" end
  local first, second = bytes[0], size > 1 and bytes[1] or 10
  local ok, value
  if first >= 48 and first <= 56 and is_space(second) then
    ok, value = try(o, bytes, size, ascii, 8)
  else
    ok, value = try(o, bytes, size, binary, o.long_size or 8)
    if not ok and not value.refused and not o.long_size then -- of a 32-bit machine
      local other_ok, other, last = try(o, bytes, size, binary, 4)
      if other_ok and last == size or not other_ok and (other.refused or other.at > value.at) then
        ok, value = other_ok, other
      end
    end
  end
  held:numel() -- the bytes are needed until here
  if ok then return value, nil, true end
  return nil, value.text, value.refused
end

return M
