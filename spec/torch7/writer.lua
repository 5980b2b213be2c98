-- Writes Torch7's files for specs, by the description of its File.lua: writer.write(value, o) gives the bytes. o:
-- ascii, long_size. Values: nil, numbers, strings, booleans, tables, tensors of moth's, and the marks below.
local ffi = require "ffi"
local moth = require "moth"
local M = {}

local Mark = {}
--- An object of a class: its fields.
function M.object_of(name, fields) return setmetatable({ kind = "object", name = name, fields = fields }, Mark) end
--- A storage with the elements of a vector; kind: "Float", "Long", …
function M.storage(kind, t) return setmetatable({ kind = "storage", name = "torch." .. kind .. "Storage", t = t,
  of = kind }, Mark) end
--- A tensor: a view of a storage; size, stride; offset from 1.
function M.view(kind, storage, size, stride, offset)
  return setmetatable({ kind = "tensor", name = "torch." .. kind .. "Tensor", storage = storage, size = size,
    stride = stride, offset = offset or 1 }, Mark)
end
local kinds = { float32 = "Float", float64 = "Double", int64 = "Long", int32 = "Int", int16 = "Short", int8 = "Char",
  uint8 = "Byte", float16 = "Half" }
--- A contiguous tensor of moth's as Torch7 has it.
function M.tensor(t)
  local kind, stride, n = kinds[t:dtype().name], {}, 1
  for d = t:dim(), 1, -1 do stride[d], n = n, n * t:size(d) end
  return M.view(kind, M.storage(kind, t:contiguous():reshape(-1)), t:size(), stride)
end
--- A function: bytecode and upvalues.
function M.func(bytes, upvalues)
  return setmetatable({ kind = "function", bytes = bytes, upvalues = upvalues }, Mark)
end

local ctypes = { Float = "float", Double = "double", Long = "int64_t", Int = "int32_t", Short = "int16_t",
  Char = "int8_t", Byte = "uint8_t", Half = "uint16_t" }

function M.write(value, o)
  o = o or {}
  local out, index, count = {}, {}, 0
  local function put(s) out[#out + 1] = s end
  local function raw(ctype, v) put(ffi.string(ffi.new(ctype .. "[1]", v), ffi.sizeof(ctype))) end
  local function int(n) if o.ascii then put(n .. "\n") else raw("int32_t", n) end end
  local function long(n)
    if o.ascii then put(n .. "\n") else raw(o.long_size == 4 and "int32_t" or "int64_t", n) end
  end
  local function longs(list)
    if not o.ascii then for _, n in ipairs(list) do long(n) end elseif #list > 0 then
      put(table.concat(list, " ") .. "\n")
    end
  end
  local function chars(s)
    int(#s)
    put(s)
    if o.ascii and #s > 0 then put "\n" end
  end
  local write
  local function elements(of, t)
    local n, bytes = t:numel(), ffi.cast("uint8_t *", require("moth_lua").data_ptr(t))
    if n == 0 then return end
    if o.ascii and not (of == "Byte" or of == "Char") then
      local list = {}
      for i, v in ipairs(t:double():tolist()) do list[i] = ("%.17g"):format(v) end
      put(table.concat(list, " ") .. "\n")
    elseif of == "Long" and o.long_size == 4 then
      for _, v in ipairs(t:tolist()) do raw("int32_t", v) end
    else
      put(ffi.string(bytes, n * ffi.sizeof(ctypes[of])))
      if o.ascii then put "\n" end
    end
  end
  function write(v)
    local kind = type(v)
    if moth.is_tensor(v) then
      index[v] = index[v] or M.tensor(v) -- the same tensor is the same object
      v = index[v]
    end
    if v == nil then return int(0) end
    if kind == "number" then
      int(1)
      if o.ascii then put(("%.17g\n"):format(v)) else raw("double", v) end
      return
    elseif kind == "string" then
      int(2)
      return chars(v)
    elseif kind == "boolean" then
      int(5)
      return int(v and 1 or 0)
    end
    local mark = getmetatable(v) == Mark and v
    int(mark and (mark.kind == "function" and 8 or 4) or 3)
    if index[v] then return int(index[v]) end
    count = count + 1
    index[v] = count
    int(count)
    if not mark then
      local n = 0
      for _ in pairs(v) do n = n + 1 end
      int(n)
      for k, x in pairs(v) do
        write(k)
        write(x)
      end
    elseif mark.kind == "function" then
      chars(mark.bytes)
      write(mark.upvalues)
    else
      chars "V 1"
      chars(mark.name)
      if mark.kind == "object" then
        write(mark.fields)
      elseif mark.kind == "storage" then
        long(mark.t:numel())
        elements(mark.of, mark.t)
      else
        int(#mark.size)
        longs(mark.size)
        longs(mark.stride)
        long(mark.offset)
        write(mark.storage)
      end
    end
  end
  write(value)
  return table.concat(out)
end

--- The same in a new file; returns its path.
function M.file(value, o)
  local path = os.tmpname()
  local f = assert(io.open(path, "wb"))
  f:write(type(value) == "string" and o == "raw" and value or M.write(value, o))
  f:close()
  return path
end

return M
