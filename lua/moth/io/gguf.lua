--- GGUF, llama.cpp's files: metadata and tensors, of float32, float16, bfloat16, and quantized in blocks (Q4_0, Q4_1,
-- Q5_0, Q5_1, Q8_0, Q2_K to Q6_K: read as float32; Q8_0 and Q4_0 are written, too).
--
--     local file = moth.gguf.load "model.gguf"
--     print(file.metadata["general.architecture"], file.tensors["token_embd.weight"]:size())
--     moth.gguf.save("small.gguf", file.metadata, file.tensors, { type = "Q8_0" })
local ffi = require "ffi"
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local ops = B.ops

local M = {}

local BLOCK = 32

-- ---- quantized blocks --------------------------------------------------------------------------------
-- Q8_0: a float16 scale d, 32 int8 q: x = d q. Q4_0: d, 16 bytes, of which byte i has elements i (low half) and i + 16:
-- x = d (q - 8).

-- The bytes of a matrix as elements of another dtype.
local function as(t, dtype)
  t = ops.contiguous(t)
  local out = ops.empty({ 1 }, { dtype = dtype })
  local bytes = t:numel() * t:element_size()
  out = ops.empty({ t:size(1), bytes / t:size(1) / out:element_size() }, { dtype = dtype })
  ffi.copy(ffi.cast("void *", out:data_ptr()), ffi.cast("const void *", t:data_ptr()), bytes)
  return out
end

local function quantized(t, kind)
  local x = ops.reshape(ops.to(t, { dtype = "float32" }), { -1, BLOCK })
  local scale, q
  if kind == "Q8_0" then
    scale = ops.div(ops.amax(ops.abs(x), { 2 }, true), 127)
  else -- the element of largest magnitude becomes -8
    local at = ops.argmax(ops.abs(x), 2, true)
    scale = ops.div(ops.gather(x, 2, at), -8)
  end
  local inverse = ops.where(ops.eq(scale, 0), ops.zeros_like(scale), ops.reciprocal(scale))
  if kind == "Q8_0" then
    -- halves go away from zero, as in llama.cpp
    local y = ops.mul(x, inverse)
    q = as(ops.to(ops.mul(ops.sign(y), ops.floor(ops.add(ops.abs(y), 0.5))), { dtype = "int8" }), "uint8")
  else
    local y = ops.clamp(ops.floor(ops.add(ops.mul(x, inverse), 8.5)), 0, 15)
    y = ops.to(y, { dtype = "uint8" })
    q = ops.bitwise_or(ops.narrow(y, 2, 1, 16), ops.bitwise_left_shift(ops.narrow(y, 2, 17, 16), 4))
  end
  return ops.cat({ as(ops.to(scale, { dtype = "float16" }), "uint8"), q }, 2)
end

-- ---- reading -----------------------------------------------------------------------------------------

--- { metadata = { key = value }, tensors = { name = tensor }, types = { name = "Q8_0" … } }. Tensors of plain types are
-- mapped: a page is read when it is used; what is written to them stays in memory. Numbers of metadata are Lua's.
function M.load(path)
  local metadata, names, types, tensors = B.read_gguf(path)
  local out, kinds = {}, {}
  for i, name in ipairs(names) do out[name], kinds[name] = tensors[i], types[i] end
  return { metadata = metadata, tensors = out, types = kinds }
end

-- ---- writing -----------------------------------------------------------------------------------------

local ALIGNMENT = 32
local type_numbers = { F32 = 0, F16 = 1, Q4_0 = 2, Q8_0 = 8, BF16 = 30 }
local of_dtype = { float32 = "F32", float16 = "F16", bfloat16 = "BF16" }
local kinds = { uint32 = 4, int32 = 5, float32 = 6, bool = 7, string = 8, array = 9, uint64 = 10, float64 = 12 }

local function bytes_of(ctype, value) return ffi.string(ffi.new(ctype .. "[1]", value), ffi.sizeof(ctype)) end
local function u32(v) return bytes_of("uint32_t", v) end
local function u64(v) return bytes_of("uint64_t", v) end
local function text(s) return u64(#s) .. s end

-- What llama.cpp takes as float32 only, whole or not: ends of keys.
local floats = { "%.freq_base$", "%.freq_base_swa$", "epsilon$", "softcapping$", "%.factor$", "_factor$", "_scale$",
  "%.scores$", "clamp_kqv$", "max_alibi_bias$", "temperature$" }
local function is_float(key)
  for _, pattern in ipairs(floats) do
    if key:find(pattern) then return true end
  end
  return false
end

-- Whole numbers are u32 or i32 where they fit, others float32: what llama.cpp expects.
local function kind_of(v, key)
  if type(v) == "string" then return "string" end
  if type(v) == "boolean" then return "bool" end
  if type(v) == "table" then return "array" end
  if type(v) ~= "number" then check.fail("[gguf.save] metadata %s: a %s cannot be saved", key, type(v)) end
  if is_float(key) or v ~= math.floor(v) or v ~= v or math.abs(v) > 2 ^ 53 then return "float32" end
  return v < 0 and v >= -2 ^ 31 and "int32" or v >= 0 and v < 2 ^ 32 and "uint32" or v >= 0 and "uint64" or "float64"
end

local writers = {
  string = text, uint32 = u32, uint64 = u64, bool = function(v) return v and "\1" or "\0" end,
  int32 = function(v) return bytes_of("int32_t", v) end, float32 = function(v) return bytes_of("float", v) end,
  float64 = function(v) return bytes_of("double", v) end,
}

-- A list is of one kind, that which holds all its elements; whole numbers are int32 where they fit, as llama.cpp's.
local function array(list, key)
  local kind, least = nil, 0
  for _, v in ipairs(list) do
    local own = kind_of(v, key)
    if own == "uint32" and v < 2 ^ 31 then own = "int32" end
    if own == "array" then check.fail("[gguf.save] metadata %s: a list of lists cannot be saved", key) end
    local number = type(v) == "number"
    if kind and kind ~= own and not (number and kind ~= "string" and kind ~= "bool") then
      check.fail("[gguf.save] metadata %s: a list of %s and %s cannot be saved", key, kind, own)
    end
    if kind == nil or kind == own then
      kind = own
    else
      kind = (kind == "uint32" or kind == "int32") and (own == "uint32" or own == "int32") and "uint32" or "float32"
    end
    least = number and math.min(least, v) or least
  end
  if kind == "uint32" and least < 0 then kind = "float64" end
  kind = kind or "int32"
  local parts = { u32(kinds[kind]), u64(#list) }
  for i, v in ipairs(list) do parts[i + 2] = writers[kind](v) end
  return table.concat(parts)
end

local function sorted(t)
  local names = {}
  for name in each(t) do
    if type(name) ~= "string" then check.fail("[gguf.save] expected names, got a %s as key", type(name)) end
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

-- The type that a tensor is saved as, and its bytes.
local function encoded(t, name, wanted)
  local last = t:dim() > 0 and t:size(t:dim()) or 0
  local kind = wanted or of_dtype[tostring(t:dtype().name)] or "F32"
  if (kind == "Q8_0" or kind == "Q4_0") and (t:dim() < 2 or last % BLOCK ~= 0) then kind = "F32" end
  if t:dim() > 4 then check.fail("[gguf.save] %s has %d dimensions; there can be 4", name, t:dim()) end
  t = ops.contiguous(ops.to(B.alias(t, false), { device = "cpu" }))
  if kind == "Q8_0" or kind == "Q4_0" then return kind, quantized(t, kind) end
  local dtype = kind == "F32" and "float32" or kind == "F16" and "float16" or "bfloat16"
  return kind, ops.contiguous(ops.to(t, { dtype = dtype }))
end

--- Saves metadata (numbers, texts, booleans, lists of one of them) and tensors by name. type: of the tensors, F32, F16,
-- BF16, Q8_0 or Q4_0, or a function of name and tensor that gives it (nil: as its dtype); tensors of one dimension, and
-- those whose rows are no whole blocks of 32, are not quantized.
function M.save(path, metadata, tensors, o)
  local want = o
  if type(want) == "string" and not type_numbers[want] then
    check.fail("[gguf.save] type %s is not known; there are F32, F16, BF16, Q8_0, Q4_0", want)
  end
  local keys, names = sorted(metadata), sorted(tensors)
  local head = { "GGUF", u32(3), u64(#names), u64(#keys) }
  for _, key in ipairs(keys) do
    local v = metadata[key]
    local kind = key == "general.alignment" and "uint32" or kind_of(v, key)
    if key == "general.alignment" then v = ALIGNMENT end
    head[#head + 1] = text(key) .. u32(kinds[kind]) .. (kind == "array" and array(v, key) or writers[kind](v))
  end
  local parts, offset = {}, 0
  for i, name in ipairs(names) do
    local t = tensors[name]
    if not B.is_tensor(t) then check.fail("[gguf.save] %s: expected a tensor, got %s", name, type(t)) end
    local wanted = want
    if type(want) == "function" then wanted = want(name, t) end
    local kind, bytes = encoded(t, name, wanted)
    local dims = {}
    for d = t:dim(), 1, -1 do dims[#dims + 1] = u64(t:size(d)) end
    head[#head + 1] = text(name) .. u32(t:dim()) .. table.concat(dims) .. u32(type_numbers[kind]) .. u64(offset)
    local n = bytes:numel() * bytes:element_size()
    parts[i] = { bytes, n }
    offset = offset + math.ceil(n / ALIGNMENT) * ALIGNMENT
  end
  local start = table.concat(head)
  local new = path .. ".part"
  local f, why = io.open(new, "wb")
  if not f then check.fail("[gguf.save] cannot write %s", why) end
  local function put(s) why = f and select(2, f:write(s)) or why end
  put(start .. ("\0"):rep(-#start % ALIGNMENT))
  for _, part in ipairs(parts) do
    local from = ffi.cast("const char *", ffi.cast("void *", part[1]:data_ptr()))
    for at = 0, part[2] - 1, 2 ^ 24 do put(ffi.string(from + at, math.min(2 ^ 24, part[2] - at))) end
    put(("\0"):rep(-part[2] % ALIGNMENT))
  end
  local closed, reason = f:close()
  if why or not closed then
    os.remove(new)
    check.fail("[gguf.save] cannot write %s: %s", path, tostring(why or reason))
  end
  assert(os.rename(new, path))
end

return signature.all(M, { "load(path path)", "save(path path, table metadata, table tensors, string|function type?)" })
