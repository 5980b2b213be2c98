--- GGUF, llama.cpp's files: metadata and tensors, of float16 to float64, bfloat16, int8 to int64, and quantized in
-- blocks (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ1_S to IQ4_XS, TQ1_0, TQ2_0, MXFP4, NVFP4: read as
-- float32, or as they are; Q8_0 and Q4_0 are written, too).
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
local block_types = B.gguf_blocks() -- name -> { number, elements, bytes }

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

-- Rows of floats as rows of bytes.
local function quantized(t, kind, name)
  local x = ops.reshape(ops.to(t, { dtype = "float32" }), { -1, BLOCK })
  local scale, q
  if kind == "Q8_0" then
    scale = ops.div(ops.amax(ops.abs(x), { 2 }, true), 127)
  else -- the element of largest magnitude becomes -8
    local at = ops.argmax(ops.abs(x), 2, true)
    scale = ops.div(ops.gather(x, 2, at), -8)
  end
  local stored = ops.to(scale, { dtype = "float16" })
  if not ops.all(ops.isfinite(stored)):item() then
    check.fail("[gguf.save] %s: %s cannot hold its elements: inf, nan, or too large for scales of float16", name, kind)
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
  return ops.cat({ as(stored, "uint8"), q }, 2)
end

--- Floats (…, a multiple of 32) as blocks of Q8_0 or Q4_0: uint8 (…, bytes of a row). name: of the tensor, in errors.
function M.blocks(t, kind, name)
  local shape, n = {}, t:dim()
  name = name or "tensor"
  if kind ~= "Q8_0" and kind ~= "Q4_0" then
    check.fail("[gguf.blocks] %s: type '%s' cannot be made; there are Q8_0 and Q4_0", name, kind)
  end
  if not t:is_floating_point() or n == 0 or t:size(n) % BLOCK ~= 0 then
    check.fail("[gguf.blocks] %s: expected floats in rows of whole blocks of %d, got %s of %s", name, BLOCK,
      tostring(t:size()), t:dtype().name)
  end
  for d = 1, n do shape[d] = t:size(d) end
  shape[n] = shape[n] / BLOCK * (kind == "Q8_0" and 34 or 18)
  return ops.reshape(quantized(t, kind, name), shape)
end

-- ---- reading -----------------------------------------------------------------------------------------

--- { metadata = { key = value }, tensors = { name = tensor }, types = { name = "Q8_0" … } }. Tensors of plain types are
-- mapped: a page is read when it is used; what is written to them stays in memory. So are quantized ones with blocks =
-- true: uint8, with the bytes of a row as last dimension, for unpack_blocks and linear_blocks. Numbers of metadata are
-- Lua's.
function M.load(path, blocks)
  local metadata, names, types, tensors = B.read_gguf(path)
  local out, kinds = {}, {}
  for i, name in ipairs(names) do
    local is_float = not blocks and block_types[types[i]]
    out[name], kinds[name] = is_float and ops.unpack_blocks(tensors[i], types[i]) or tensors[i], types[i]
  end
  return { metadata = metadata, tensors = out, types = kinds }
end

-- ---- writing -----------------------------------------------------------------------------------------

local ALIGNMENT = 32
local type_numbers = { F32 = 0, F16 = 1, I8 = 24, I16 = 25, I32 = 26, I64 = 27, F64 = 28,
  BF16 = 30 }
-- What floats may be saved as, with the dtype of plain types.
local of_floats = { F32 = "float32", F16 = "float16", BF16 = "bfloat16", F64 = "float64", Q8_0 = false, Q4_0 = false }
-- The type of a dtype; those that GGUF has none for and float32 holds are F32.
local of_dtype = { float32 = "F32", float16 = "F16", bfloat16 = "BF16", float64 = "F64", int8 = "I8", int16 = "I16",
  int32 = "I32", int64 = "I64", bool = "F32", uint8 = "F32", uint16 = "F32" }
local kinds = { uint32 = 4, int32 = 5, float32 = 6, bool = 7, string = 8, array = 9, uint64 = 10, int64 = 11,
  float64 = 12 }

local function bytes_of(ctype, value) return ffi.string(ffi.new(ctype .. "[1]", value), ffi.sizeof(ctype)) end
local function u32(v) return bytes_of("uint32_t", v) end
local function u64(v) return bytes_of("uint64_t", v) end
local function text(s) return u64(#s) .. s end

-- What llama.cpp takes as float32 only, whole or not: ends of keys.
local floats = { "%.freq_base$", "%.freq_base_swa$", "epsilon$", "softcapping$", "%.factor$", "_factor$", "_scale$",
  "yarn_beta_%l+$", "log_multiplier$", "%.scores$", "clamp_kqv$", "max_alibi_bias$", "temperature$" }
local function is_float(key)
  for _, pattern in ipairs(floats) do
    if key:find(pattern) then return true end
  end
  return false
end

local int64, uint64 = ffi.typeof("int64_t"), ffi.typeof("uint64_t")
local function is_whole(v) return v == math.floor(v) and math.abs(v) <= 2 ^ 53 end

local MOST = 0x1.fffffep127 -- of float32

-- Whole numbers are u32 or i32 where they fit, else u64 or i64; others float32 where it reaches, as llama.cpp expects.
local function kind_of(v, key)
  if type(v) == "string" then return "string" end
  if type(v) == "boolean" then return "bool" end
  if type(v) == "table" then return "array" end
  if ffi.istype(int64, v) then return v < 0 and "int64" or "uint64" end
  if ffi.istype(uint64, v) then return "uint64" end
  if type(v) ~= "number" then
    check.fail("[gguf.save] metadata %s: expected a number, text, boolean or a list of them, got a %s", key,
      B.is_tensor(v) and "tensor" or type(v))
  end
  if math.abs(v) > MOST and v - v == 0 then return "float64" end
  if is_float(key) or not is_whole(v) then return "float32" end
  if v < 0 then return v >= -2 ^ 31 and "int32" or "int64" end
  return v < 2 ^ 32 and "uint32" or "uint64"
end

local writers = {
  string = text, uint32 = u32, uint64 = u64, bool = function(v) return v and "\1" or "\0" end,
  int32 = function(v) return bytes_of("int32_t", v) end, float32 = function(v) return bytes_of("float", v) end,
  int64 = function(v) return bytes_of("int64_t", v) end, float64 = function(v) return bytes_of("double", v) end,
}

-- The kind that holds all whole numbers from least to most: int32 where they fit, as llama.cpp's.
local function kind_between(least, most)
  if least < 0 then return least >= -2 ^ 31 and most < 2 ^ 31 and "int32" or most < 2 ^ 63 and "int64" or "float64" end
  return most < 2 ^ 31 and "int32" or most < 2 ^ 32 and "uint32" or "uint64"
end

-- A list is of one kind, that which holds all its elements.
local function array(list, key)
  local n, count = #list, 0
  for _ in each(list) do count = count + 1 end
  if count ~= n then check.fail("[gguf.save] metadata %s: expected a list, got a table of other keys or holes", key) end
  local kind, least, most = nil, 0, 0
  for _, v in ipairs(list) do
    local own = kind_of(v, key)
    if own == "array" then check.fail("[gguf.save] metadata %s: a list of lists cannot be saved", key) end
    local number = own ~= "string" and own ~= "bool"
    if number and own ~= "float32" and own ~= "float64" then
      own, least, most = "whole", math.min(tonumber(v), least), math.max(tonumber(v), most)
    end
    if kind == nil or kind == own then
      kind = own
    elseif number and kind ~= "string" and kind ~= "bool" then
      kind = (kind == "float64" or own == "float64") and "float64" or "float32"
    else
      check.fail("[gguf.save] metadata %s: a list of %s and %s cannot be saved", key, kind == "whole" and "numbers"
        or kind, number and "numbers" or own)
    end
  end
  if kind == "whole" or not kind then kind = kind_between(least, most) end
  local parts = { u32(kinds[kind]), u64(n) }
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

local function check_type(kind, name)
  if of_floats[kind] == nil then
    check.fail("[gguf.save] %stype %s is not known; there are F32, F16, BF16, F64, Q8_0, Q4_0", name, tostring(kind))
  end
end

-- The type that a tensor is saved as, its bytes, and the elements of a row where these are others than the tensor's.
-- wanted: of tensors of floats, and of uint8 that are blocks.
local function encoded(t, name, wanted)
  local dtype, ndim = t:dtype(), t:dim()
  local kind = of_dtype[dtype.name]
  if not kind then check.fail("[gguf.save] %s: GGUF has no type for %s", name, dtype.name) end
  if ndim > 4 then check.fail("[gguf.save] %s has %d dimensions; there can be 4", name, ndim) end
  local of = dtype.name == "uint8" and block_types[wanted]
  if of then
    if ndim == 0 or t:size(ndim) % of.bytes ~= 0 then
      check.fail("[gguf.save] %s: rows of %s bytes are no whole blocks of %s, of %d bytes", name,
        ndim > 0 and t:size(ndim) or 0, wanted, of.bytes)
    end
    return wanted, ops.contiguous(ops.to(B.alias(t, false), { device = "cpu" })), t:size(ndim) / of.bytes * of.elements
  end
  if wanted ~= nil then check_type(wanted, name .. ": ") end
  if wanted and dtype.is_floating_point then kind = ndim == 0 and "F32" or wanted end
  t = ops.contiguous(ops.to(B.alias(t, false), { device = "cpu" }))
  if of_floats[kind] == false and ndim >= 2 and t:size(ndim) % BLOCK == 0 then return kind, quantized(t, kind, name) end
  if of_floats[kind] == false then kind = "F32" end
  return kind, ops.contiguous(ops.to(t, { dtype = of_floats[kind] or dtype }))
end

--- Saves metadata (numbers, texts, booleans, lists of one of them) and tensors by name. type: of the tensors of floats,
-- F32, F16, BF16, F64, Q8_0 or Q4_0, or a function of name and tensor that gives it (nil: as its dtype; integers: I8 to
-- I64; of a uint8 tensor: the type of the blocks that its rows are, as load with blocks gives them); tensors of one
-- dimension, and those whose rows are no whole blocks of 32, are not quantized. The file at the path is replaced when
-- all is written.
function M.save(path, metadata, tensors, o)
  local want = o
  if type(want) == "string" then check_type(want, "") end
  local keys, names = sorted(metadata), sorted(tensors)
  local head = { "GGUF", u32(3), u64(#names), u64(#keys) }
  for _, key in ipairs(keys) do
    local v = metadata[key]
    local kind = key == "general.alignment" and "uint32" or kind_of(v, key)
    if key == "general.alignment" then v = ALIGNMENT end
    head[#head + 1] = text(key) .. u32(kinds[kind]) .. (kind == "array" and array(v, key) or writers[kind](v))
  end
  local pieces, offset = { "" }, 0
  for _, name in ipairs(names) do
    local t = tensors[name]
    if not B.is_tensor(t) then check.fail("[gguf.save] %s: expected a tensor, got %s", name, type(t)) end
    local wanted = want
    if type(want) == "function" then wanted = want(name, t) end
    local kind, bytes, row = encoded(t, name, wanted)
    local dims = {}
    for d = t:dim(), 1, -1 do dims[#dims + 1] = u64(d == t:dim() and row or t:size(d)) end
    local number = type_numbers[kind] or block_types[kind].number
    head[#head + 1] = text(name) .. u32(t:dim()) .. table.concat(dims) .. u32(number) .. u64(offset)
    local n = bytes:numel() * bytes:element_size()
    pieces[#pieces + 1], pieces[#pieces + 2] = bytes, ("\0"):rep(-n % ALIGNMENT)
    offset = offset + math.ceil(n / ALIGNMENT) * ALIGNMENT
  end
  local start = table.concat(head)
  pieces[1] = start .. ("\0"):rep(-#start % ALIGNMENT)
  B.write_pieces(path, pieces, "gguf.save")
end

return signature.all(M, { "gguf.blocks(Tensor tensor, string type, string name?)",
  "gguf.load(path path, *, bool blocks=false)",
  "gguf.save(path path, table metadata, table tensors, string|function type?)" })
