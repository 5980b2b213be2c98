--- Files that torch.load reads: moth.save(value, "file.pt").
--
-- The file is PyTorch's: an uncompressed zip archive of a pickle, which has the values, and the bytes of each storage.
-- Tables whose keys are 1 … n become lists, others and empty ones dictionaries, a state dict an OrderedDict. A table
-- that has `state` and `param_groups` is that of an optimizer: its parameters are numbered from 0, its state is a
-- dictionary. Only PyTorch's own names stand in it, so that torch.load(…, weights_only=True), the default, takes it.
local ffi = require "ffi"
local B = require "moth_lua"
local Ordered = require "moth.nn.ordered"
local ties = require "moth.io.ties"
local each = require "moth.each"
local ops = B.ops

local M = {}

--- Sizes, positions and numbers of members from these on stand in zip64's fields of 64 bits.
M.LARGE, M.MANY = 2 ^ 32 - 1, 65535

-- ---- the pickle ----------------------------------------------------------------------------------

local function u16(n) return string.char(n % 256, math.floor(n / 256) % 256) end
local function u32(n) return u16(n % 65536) .. u16(math.floor(n / 65536)) end
local function u64(n) return u32(n % 2 ^ 32) .. u32(math.floor(n / 2 ^ 32)) end

local storages = { float32 = "FloatStorage", float64 = "DoubleStorage",
  complex64 = "ComplexFloatStorage", complex128 = "ComplexDoubleStorage", float16 = "HalfStorage",
  bfloat16 = "BFloat16Storage", int64 = "LongStorage", int32 = "IntStorage", int16 = "ShortStorage",
  int8 = "CharStorage", uint8 = "ByteStorage", bool = "BoolStorage" }

-- Dtypes without a class of storages: bytes, whose tensors say what they are.
local untyped = { uint16 = true, uint32 = true, uint64 = true }

local function text(s) return "X" .. u32(#s) .. s end

local number_of = ffi.typeof("union { double d; uint8_t b[8]; }")
local function float(x)
  local n, bytes = number_of(), {}
  n.d = x
  for i = 0, 7 do bytes[8 - i] = string.char(n.b[i]) end
  return "G" .. table.concat(bytes)
end
local function integer(n)
  if n >= -2 ^ 31 and n < 2 ^ 31 then return "J" .. u32(n % 2 ^ 32) end
  local rest = n % 2 ^ 64 -- of two's complement; exact, since |n| is at most 2^53
  local bytes = {}
  for i = 1, 8 do
    bytes[i] = string.char(n < 0 and i == 8 and 255 or math.floor(rest / 2 ^ (8 * (i - 1))) % 256)
  end
  return "\138\8" .. table.concat(bytes)
end
local function number(n)
  if n == math.floor(n) and math.abs(n) <= 2 ^ 53 then return integer(n) end
  return float(n)
end
local function ints(list)
  local t = { "(" }
  for _, n in ipairs(list) do t[#t + 1] = integer(n) end
  return table.concat(t) .. "t"
end

local write

local function write_tensor(t, path, out)
  local name = B.tensor_dtype(t).name
  if not storages[name] and not untyped[name] then
    error(("save: '%s': PyTorch has no file format for %s"):format(path, name), 0)
  end
  out.put("") -- its part of the program is put here when all tensors are known
  out.list[#out.list + 1], out.at[#out.at + 1] = t, out.count()
end

-- Fills the parts of the tensors: those that share memory share a storage of the file, as in PyTorch's own.
local function settle(out, parts)
  local bases, places = ties.plan(out.list)
  for k, base in ipairs(bases) do
    out.tensors[k] = ops.contiguous(ops.to(B.alias(base, false), { device = "cpu" }))
  end
  for i, t in ipairs(out.list) do
    local k, view = places[i].base, places[i].view
    local whole = out.tensors[k]
    local size, stride, offset = B.size(whole), B.stride(whole), 0
    if view then size, stride, offset = view[1], view[2], view[3] end
    local dtype = B.tensor_dtype(t)
    local class = storages[dtype.name]
    parts[out.at[i]] = table.concat { "ctorch._utils\n_rebuild_tensor_v", class and "2" or "3", "\n((",
      text "storage", "ctorch", class and "\n" .. class or ".storage\nUntypedStorage", "\n", text(tostring(k - 1)),
      text "cpu", integer(B.numel(whole) * (class and 1 or dtype.itemsize)), "tQ", integer(offset), ints(size),
      ints(stride), B.requires_grad(t) and "\136" or "\137", "ccollections\nOrderedDict\n)R",
      class and "" or "ctorch\n" .. dtype.name .. "\n", "tR" }
  end
end

local function write_key(key, path, out)
  local kind = type(key)
  if kind == "string" then out.put(text(key)) elseif kind == "number" then out.put(number(key))
  elseif kind == "boolean" then out.put(key and "\136" or "\137")
  else error(("save: a key of type %s in '%s' cannot be saved"):format(kind, path), 0) end
end

local function write_dict(keys, t, path, out, depth, shift)
  out.put("(")
  for _, key in ipairs(keys) do
    write_key(shift and key - 1 or key, path, out)
    write(rawget(t, key), path == "" and tostring(key) or path .. "." .. tostring(key), out, depth + 1)
  end
  out.put("u")
end

local function sorted_keys(t)
  local keys = {}
  for key in each(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    if type(a) == type(b) and type(a) ~= "boolean" then return a < b end
    return type(a) < type(b)
  end)
  return keys
end

-- The groups of an optimizer with parameters from 0.
local function from_0(groups)
  local out = {}
  for g, group in ipairs(groups) do
    out[g] = {}
    for key, value in each(group) do out[g][key] = value end
    out[g].params = {}
    for i, p in ipairs(group.params) do out[g].params[i] = p - 1 end
  end
  return out
end

local function write_optimizer(sd, path, out, depth)
  local keys, from_1 = {}, true
  for key, s in each(sd.state) do
    from_1 = from_1 and key ~= 0
    if next(s) ~= nil then keys[#keys + 1] = key end
  end
  for _, group in ipairs(sd.param_groups) do
    for _, p in ipairs(group.params) do from_1 = from_1 and p ~= 0 end
  end
  table.sort(keys)
  out.put("}(", text "state", "}")
  write_dict(keys, sd.state, path .. ".state", out, depth + 1, from_1)
  out.put(text "param_groups")
  write(from_1 and from_0(sd.param_groups) or sd.param_groups, path .. ".param_groups", out, depth + 1)
  for _, key in ipairs(sorted_keys(sd)) do
    if key ~= "state" and key ~= "param_groups" then
      write_key(key, path, out)
      write(sd[key], path .. "." .. tostring(key), out, depth + 1)
    end
  end
  out.put("u")
end

-- A sparse tensor: its parts, with positions from 0.
local function write_sparse(t, path, out)
  local p = require("moth.sparse").__parts(t)
  out.put("ctorch._utils\n_rebuild_sparse_tensor\n(ctorch.serialization\n_get_layout\n(",
    text("torch.sparse_" .. p.layout), "tR(")
  write_tensor((p.indices or p.crow) - 1, path, out)
  if p.cols then write_tensor(p.cols - 1, path, out) end
  write_tensor(B.alias(p.values, false), path, out)
  out.put("ctorch\nSize\n(", ints(p.size), "tR", p.cols and "" or p.sorted and "\136" or "\137", "ttR")
end

local function write_table(t, path, out, depth)
  if depth > 300 or out.seen[t] then error(("save: the table at '%s' contains itself"):format(path), 0) end
  local meta = getmetatable(t)
  if type(meta) == "table" and rawget(meta, "__name") == "SparseTensor" then return write_sparse(t, path, out) end
  if type(meta) == "table" and rawget(meta, "__name") and not Ordered.is(t) then
    error(("save: a %s%s cannot be saved%s"):format(meta.__name, path == "" and "" or " at '" .. path .. "'",
      type(t.state_dict) == "function" and "; save its :state_dict()" or ""), 0)
  end
  out.seen[t] = true
  if Ordered.is(t) then
    out.put("ccollections\nOrderedDict\n)R")
    write_dict(Ordered.keys(t), t, path, out, depth)
  elseif type(t.state) == "table" and type(t.param_groups) == "table" then
    write_optimizer(t, path, out, depth)
  else
    local keys = sorted_keys(t)
    local list = #keys > 0
    for i, key in ipairs(keys) do list = list and key == i end
    if list then
      out.put("](")
      for i = 1, #keys do write(t[i], path == "" and tostring(i) or path .. "." .. i, out, depth + 1) end
      out.put("e")
    else
      out.put("}")
      write_dict(keys, t, path, out, depth)
    end
  end
  out.seen[t] = nil
end

function write(v, path, out, depth)
  if B.is_tensor(v) then return write_tensor(v, path, out) end
  local kind = type(v)
  if kind == "table" then return write_table(v, path, out, depth) end
  if kind == "number" then return out.put(number(v)) end
  if kind == "string" then return out.put(text(v)) end
  if kind == "boolean" then return out.put(v and "\136" or "\137") end
  if kind == "nil" then return out.put("N") end
  if B.is_dtype(v) then return out.put("ctorch\n", v.name, "\n") end
  error(("save: a %s at '%s' cannot be saved; tensors, tables, numbers, strings, booleans can"):format(kind, path), 0)
end

-- ---- the archive ---------------------------------------------------------------------------------

-- The pieces of the archive, strings and tensors.
local function archive(name, members)
  local pieces, central, at = {}, {}, 0
  local function put(piece) pieces[#pieces + 1] = piece end
  for _, m in ipairs(members) do
    local value = m[2]
    local n = type(value) == "string" and #value or B.numel(value) * B.tensor_dtype(value).itemsize
    local path = name .. "/" .. m[1]
    local sizes = n >= M.LARGE and u16(1) .. u16(16) .. u64(n) .. u64(n) or ""
    local far = at >= M.LARGE and u64(at) or ""
    -- The bytes begin at a multiple of 64, as PyTorch's do: the header is as long as that needs.
    local pad = -(at + 30 + #path + #sizes + 4) % 64
    local shown = sizes == "" and u32(n) or u32(2 ^ 32 - 1)
    local fields = u16(0) .. u16(0) .. u32(0) .. u32(B.crc32(value)) .. shown .. shown .. u16(#path)
    local version = u16((sizes .. far) == "" and 10 or 45)
    put("PK\3\4" .. version .. fields .. u16(#sizes + 4 + pad) .. path .. sizes .. "FB" .. u16(pad) .. ("Z"):rep(pad))
    put(value)
    local wide = sizes:sub(5) .. far
    if wide ~= "" then wide = u16(1) .. u16(#wide) .. wide end
    central[#central + 1] = "PK\1\2" .. version .. version .. fields .. u16(#wide) .. u16(0) .. u16(0) .. u16(0)
      .. u32(0) .. u32(far == "" and at or 2 ^ 32 - 1) .. path .. wide
    at = at + 30 + #path + #sizes + 4 + pad + n
  end
  local directory, count, begin = table.concat(central), #central, at
  put(directory)
  if at >= M.LARGE or count >= M.MANY then
    put("PK\6\6" .. u64(44) .. u16(45) .. u16(45) .. u32(0) .. u32(0) .. u64(count) .. u64(count) .. u64(#directory)
      .. u64(at) .. "PK\6\7" .. u32(0) .. u64(at + #directory) .. u32(1))
    count, begin = math.min(count, 65535), at >= M.LARGE and 2 ^ 32 - 1 or at
  end
  put("PK\5\6" .. u16(0) .. u16(0) .. u16(count) .. u16(count) .. u32(#directory) .. u32(begin) .. u16(0))
  return pieces
end

--- Words of a pickle, for others that write one.
M.words = { u32 = u32, text = text, integer = integer }

--- The pieces of a file, strings and tensors. name: of the archive. Errors are strings.
function M.pieces(value, name)
  local parts, tensors = { "\128\2" }, {}
  local out = { tensors = tensors, list = {}, at = {}, seen = {}, count = function() return #parts end }
  function out.put(...)
    for i = 1, select("#", ...) do parts[#parts + 1] = (select(i, ...)) end
  end
  write(value, "", out, 1)
  out.put(".")
  settle(out, parts)
  local members = { { "data.pkl", table.concat(parts) }, { "byteorder", "little" } }
  for i, t in ipairs(tensors) do
    members[#members + 1] = { "data/" .. (i - 1), t }
  end
  members[#members + 1] = { "version", "3\n" }
  return archive(name, members)
end

--- Writes the file, as moth.save does its own: the old one or the new one is there, whole. An error is a string.
function M.save(value, path)
  B.write_file(path, M.pieces(value, path:match("([^/]+)%.%w+$") or "archive"))
end

return M
