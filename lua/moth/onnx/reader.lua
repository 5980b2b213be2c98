--- Reads ONNX files (onnx.proto): the model as tables, its tensors as moth's.
--
-- moth has no tensors of ONNX's small types: those of float8 and float4 are float32 tensors whose values are of that
-- type, those of 2 and 4 bits are int8 or uint8. Texts are { kind = "strings", shape, … }.
local ffi = require "ffi"
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local protobuf = require "moth.onnx.protobuf"
local codes = require("moth.onnx.messages").codes
local small = require "moth.onnx.small"

local M = {}

-- ---- the messages of onnx.proto ------------------------------------------------------------------

local Entry = { [1] = { "key", "string" }, [2] = { "value", "string" } }
local Tensor = { [1] = { "dims", "int", true }, [2] = { "data_type", "int" }, [3] = { "segment", "bytes" },
  [4] = { "float_data", "packed", true }, [5] = { "int32_data", "packed", true }, [6] = { "strings", "string", true },
  [7] = { "int64_data", "packed", true }, [8] = { "name", "string" }, [9] = { "raw", "bytes" },
  [10] = { "double_data", "packed", true }, [11] = { "uint64_data", "packed", true },
  [13] = { "external", Entry, true },
  [14] = { "location", "int" } }
local Sparse = { [1] = { "values", Tensor }, [2] = { "indices", Tensor }, [3] = { "dims", "int", true } }
local Dim = { [1] = { "value", "int" }, [2] = { "param", "string" } }
local Type = {}
Type[1] = { "tensor", { [1] = { "elem", "int" }, [2] = { "shape", { [1] = { "dim", Dim, true } } } } }
Type[4] = { "sequence", { [1] = { "elem", Type } } }
Type[9] = { "optional", { [1] = { "elem", Type } } }
Type[8] = { "sparse", { [1] = { "elem", "int" } } }
Type[5] = { "map", {} }
local Value = { [1] = { "name", "string" }, [2] = { "type", Type } }
local Graph = {}
local Attribute = { [1] = { "name", "string" }, [2] = { "f", "float" }, [3] = { "i", "int" }, [4] = { "s", "string" },
  [5] = { "t", Tensor }, [6] = { "g", Graph }, [7] = { "floats", "float", true }, [8] = { "ints", "int", true },
  [9] = { "strings", "string", true }, [10] = { "tensors", Tensor, true }, [11] = { "graphs", Graph, true },
  [14] = { "type_proto", Type }, [20] = { "type", "int" }, [21] = { "ref", "string" }, [22] = { "sparse", Sparse } }
local Node = { [1] = { "input", "string", true }, [2] = { "output", "string", true }, [3] = { "name", "string" },
  [4] = { "op", "string" }, [5] = { "attribute", Attribute, true }, [7] = { "domain", "string" } }
Graph[1], Graph[2], Graph[5] = { "node", Node, true }, { "name", "string" }, { "initializer", Tensor, true }
Graph[11], Graph[12], Graph[15] = { "input", Value, true }, { "output", Value, true }, { "sparse", Sparse, true }
local Opset = { [1] = { "domain", "string" }, [2] = { "version", "int" } }
local Function = { [1] = { "name", "string" }, [4] = { "input", "string", true }, [5] = { "output", "string", true },
  [6] = { "attributes", "string", true }, [11] = { "defaults", Attribute, true }, [7] = { "node", Node, true },
  [9] = { "opset", Opset, true }, [10] = { "domain", "string" } }
local Model = { [1] = { "ir_version", "int" }, [2] = { "producer", "string" }, [7] = { "graph", Graph },
  [8] = { "opset", Opset, true }, [14] = { "metadata", Entry, true }, [25] = { "functions", Function, true } }
local Sequence, Optional = {}, {}
Sequence[2], Sequence[3] = { "elem", "int" }, { "tensors", Tensor, true }
Sequence[5], Sequence[7] = { "sequences", Sequence, true }, { "optionals", Optional, true }
Optional[2], Optional[3] = { "elem", "int" }, { "tensor", Tensor }
Optional[5], Optional[7] = { "sequence", Sequence }, { "optional", Optional }

-- ---- types ---------------------------------------------------------------------------------------

local names = { [8] = "string" } -- of dtypes, by their codes
for name, code in each(codes) do names[code] = name end
for name, kind in each(small.kinds) do names[kind.code] = name end

--- The name of an element type: moth's, or "string", "float8e4m3fn", …; nil: there is none.
function M.dtype_of(code) return names[code or 0] end

-- ---- tensors -------------------------------------------------------------------------------------

local MOST = 2 ^ 47 -- bytes of a tensor

local function count(c, dims)
  local n = 1
  for _, d in ipairs(dims) do
    if d < 0 then c:fail("a tensor has a negative size") end
    n = n * d
    if n > MOST then c:fail("a tensor of %g elements is too large", n) end -- at once: infinity times 0 is NaN
  end
  return n
end

-- The bytes of a tensor that another file holds. Its name may not lead out of the folder of the model.
local function external(c, t, bytes)
  local o = {}
  for _, e in ipairs(t.external) do o[e.key or ""] = e.value end
  local location = o.location
  if not location or location == "" then c:fail("the tensor '%s' does not say in which file it is", t.name or "") end
  if location:find("^[/\\]") or location:find("^%a:") or location:find("%z") then
    c:fail("the tensor '%s' is said to be in '%s': only files beside the model are read", t.name or "", location)
  end
  for part in location:gmatch("[^/\\]+") do
    if part == ".." then
      c:fail("the tensor '%s' is said to be in '%s': only files beside the model are read", t.name or "", location)
    end
  end
  if not c.folder then c:fail("the tensor '%s' is in another file, '%s'", t.name or "", location) end
  local path = c.folder .. location
  local file, why = io.open(path, "rb")
  if not file then c:fail("the file of its tensors is not there: %s", why) end
  local size, offset = file:seek("end") or 0, tonumber(o.offset or "0") or -1
  local n = tonumber(o.length or "") or size - offset
  if offset < 0 or n ~= bytes or offset + n > size then
    file:close()
    c:fail("the tensor '%s' of %d bytes does not fit into '%s' of %d", t.name or "", bytes, location, size)
  end
  file:seek("set", offset)
  return file
end

ffi.cdef "size_t fread(void *bytes, size_t size, size_t n, void *file);"

local function pointer(t, ctype) return ffi.cast(ctype, B.pointer(t)) end

-- Elements written as numbers of protocol buffers: pieces of { from, to, wire }.
local function decode(c, pieces, n, out, convert)
  local at = 0
  for _, piece in ipairs(pieces) do
    c.at = piece[1]
    while c.at < piece[2] do
      if at >= n then c:fail("a tensor has more elements than its size says") end
      out[at] = convert(c, piece[2])
      at = at + 1
    end
  end
  if at ~= n then c:fail("a tensor has %d elements, its size says %d", at, n) end
end

local function fixed_of(ctype, size)
  local box = ffi.new(ctype .. "[1]")
  return function(c, stop)
    if stop - c.at < size then c:damaged() end
    ffi.copy(box, c.bytes + c.at, size)
    c.at = c.at + size
    return box[0]
  end
end
local read_float, read_double = fixed_of("float", 4), fixed_of("double", 8)
local function read_int(c, stop) return ffi.cast("int64_t", protobuf.varint(c, stop)) end

local ctypes = { float32 = "float *", float64 = "double *", uint8 = "uint8_t *", int8 = "int8_t *",
  uint16 = "uint16_t *", int16 = "int16_t *", int32 = "int32_t *", int64 = "int64_t *", bool = "uint8_t *",
  float16 = "uint16_t *", uint32 = "uint32_t *", uint64 = "uint64_t *", bfloat16 = "uint16_t *", complex64 = "float *",
  complex128 = "double *" }

-- Where the numbers of a dtype stand.
local function field_of(t, dtype)
  if dtype == "float32" or dtype == "complex64" then return t.float_data, read_float end
  if dtype == "float64" or dtype == "complex128" then return t.double_data, read_double end
  if dtype == "int64" then return t.int64_data, read_int end
  if dtype == "uint32" or dtype == "uint64" then return t.uint64_data, read_int end
  return t.int32_data, read_int
end

-- Fills memory of `bytes` bytes by those of the file, in as many bytes.
local function fill(c, t, out, bytes)
  if t.location == 1 then
    local file = external(c, t, bytes)
    local ok = ffi.C.fread(out, 1, bytes, file) == bytes
    file:close()
    if not ok then c:fail("the file of the tensor '%s' cannot be read", t.name or "") end
    return true
  end
  if not t.raw then return false end
  if t.raw[2] - t.raw[1] ~= bytes then
    c:fail("the tensor '%s' has %d bytes, its size says %d", t.name or "", t.raw[2] - t.raw[1], bytes)
  end
  ffi.copy(out, c.bytes + t.raw[1], bytes)
  return true
end

-- A tensor of a type that moth does not have.
local function small_tensor(c, t, n, kind)
  local bytes = kind.bits == 8 and n or math.ceil(n * kind.bits / 8)
  local packed = ffi.new("uint8_t[?]", math.max(bytes, 1))
  if not fill(c, t, packed, bytes) then
    decode(c, t.int32_data, bytes, packed, function(cursor, stop) return read_int(cursor, stop) % 256 end)
  end
  local out = B.ops.empty(t.dims, { dtype = kind.dtype })
  if n > 0 then small.unpack(kind, packed, n, pointer(out, ctypes[kind.dtype])) end
  return out
end

--- A tensor of a TensorProto, and the name of its type.
function M.tensor(c, t)
  local dtype = names[t.data_type or 0]
  if not dtype then c:fail("the tensor '%s' has the unknown type %s", t.name or "", tostring(t.data_type)) end
  local n = count(c, t.dims)
  if t.segment then c:fail("the tensor '%s' is in segments", t.name or "") end
  if dtype == "string" then
    if #t.strings ~= n then c:fail("a tensor has %d texts, its size says %d", #t.strings, n) end
    local out = { kind = "strings", shape = t.dims, n = n }
    for i = 1, n do out[i] = t.strings[i] end
    return out, dtype
  end
  local kind = small.kinds[dtype]
  -- Memory is taken only for what is there.
  local most = t.location == 1 and math.huge or (c.stop + 1) * (kind and 8 / kind.bits or 1)
  if n > most then c:fail("the tensor '%s' has fewer elements than its size says, %g", t.name or "", n) end
  if kind then return small_tensor(c, t, n, kind), dtype end
  if t.location == 1 then external(c, t, n * B.dtype(dtype).itemsize):close() end
  local out = B.ops.empty(t.dims, { dtype = dtype })
  local is_complex = dtype:find("^complex")
  if n == 0 then return out, dtype end
  if not fill(c, t, pointer(out, "uint8_t *"), n * out:element_size()) then
    local pieces, convert = field_of(t, dtype)
    decode(c, pieces, is_complex and 2 * n or n, pointer(out, ctypes[dtype]), convert)
  end
  if dtype == "bool" then -- bytes other than 0 and 1 are no bool
    local bytes = pointer(out, "uint8_t *")
    for i = 0, n - 1 do bytes[i] = bytes[i] == 0 and 0 or 1 end
  end
  return out, dtype
end

local DENSE, SPREAD = 2 ^ 24, 2 ^ 10 -- elements, and for each that is given, of a sparse tensor that is made dense

--- A sparse tensor, as a dense one.
function M.sparse(c, s)
  if not s.values or not s.indices then c:fail("a sparse tensor is damaged") end
  local n = count(c, s.dims)
  local values, dtype = M.tensor(c, s.values)
  if n > 2 ^ 28 or n > DENSE and B.is_tensor(values) and n > SPREAD * values:numel() then
    c:fail("a sparse tensor of %g elements is too large to be made dense", n)
  end
  local indices = M.tensor(c, s.indices)
  local fits = B.is_tensor(values) and B.is_tensor(indices) and indices:dtype().name == "int64" and values:dim() == 1
    and (indices:dim() == 1 or indices:dim() == 2 and indices:size(2) == #s.dims)
  if not fits or indices:size(1) ~= values:numel() then c:fail("a sparse tensor is damaged") end
  local at = pointer(indices, "int64_t *")
  for i = 0, values:numel() - 1 do
    local flat = 0
    if indices:dim() == 1 then
      flat = tonumber(at[i])
    else
      for d, size in ipairs(s.dims) do
        local p = tonumber(at[i * #s.dims + d - 1])
        if p < 0 or p >= size then c:fail("a sparse tensor has an index out of range") end
        flat = flat * size + p
      end
    end
    if flat < 0 or flat >= n then c:fail("a sparse tensor has an index out of range") end
    at[i] = flat + 1
  end
  local flat = indices:dim() == 1 and indices or indices:reshape({ -1 }):narrow(1, 1, values:numel())
  return B.ops.reshape(B.ops.zeros({ n }, { dtype = dtype }):scatter(1, flat, values), s.dims), dtype
end

-- ---- files ---------------------------------------------------------------------------------------

--- A cursor over a whole file.
function M.open(path, where)
  local file, why = io.open(path, "rb")
  if not file then check.fail("[%s] %s", where, why) end
  local n = file:seek("end")
  file:seek("set", 0)
  if not n or n > 2 ^ 40 then
    file:close()
    check.fail("[%s] %s is no file that can be read", where, path)
  end
  local bytes = B.ops.empty({ n }, { dtype = "uint8" })
  local ok = n == 0 or ffi.C.fread(pointer(bytes, "void *"), 1, n, file) == n
  file:close()
  if not ok then check.fail("[%s] %s cannot be read", where, path) end
  local c = protobuf.cursor(pointer(bytes, "const uint8_t *"), n, bytes, ("[%s] %s"):format(where, path))
  c.folder = path:match("^(.*[/\\])") or ""
  return c
end

--- The model of a file, and the cursor that its tensors are read by.
function M.model(path, where)
  local c = M.open(path, where)
  local model = protobuf.read(c, Model)
  if not model.graph or #model.opset == 0 then c:fail("this is no ONNX model") end
  return model, c
end

local function value_of_sequence(c, s)
  local out = { kind = "sequence" }
  for _, t in ipairs(s.tensors) do out[#out + 1] = M.tensor(c, t) end
  for _, inner in ipairs(s.sequences) do out[#out + 1] = value_of_sequence(c, inner) end
  return out
end

--- The value in a file of one tensor, sequence or optional (kind), as the cases of ONNX have them: it, and its type.
function M.value(path, kind)
  local c = M.open(path, "onnx.load")
  if kind == "sequence" then return value_of_sequence(c, protobuf.read(c, Sequence)) end
  if kind == "optional" then
    local o = protobuf.read(c, Optional)
    if o.tensor then return M.tensor(c, o.tensor) end
    if o.sequence then return value_of_sequence(c, o.sequence) end
    return nil
  end
  return M.tensor(c, protobuf.read(c, Tensor))
end

return M
