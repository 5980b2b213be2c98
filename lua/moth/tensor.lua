--- Tensors as Lua sees them: the metatable (methods, fields, operators, indexing) and what ops do not cover.
-- Fields: x.grad, x.grad_fn, x.data, x.shape. All else is a method.
local ffi = require "ffi"
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local ops = B.ops

local M = { functions = {} }
local mt = B.Tensor
local methods = {}
M.methods = methods

for name, fn in each(ops) do methods[name] = fn end

local is_tensor, is_dtype, is_device = B.is_tensor, B.is_dtype, B.is_device

-- sizes print as [2, 3]
local Size = {}
Size.__index = Size
function Size:__tostring() return "[" .. table.concat(self, ", ") .. "]" end
function Size.__eq(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do if a[i] ~= b[i] then return false end end
  return true
end
function Size:numel()
  local n = 1
  for i = 1, #self do n = n * self[i] end
  return n
end

--- The sizes as a table that prints as [2, 3], or the size of one dimension.
function methods.size(x, dim)
  if dim ~= nil then return B.size(x, dim) end
  return setmetatable(B.size(x), Size)
end

--- The strides in elements, or that of one dimension.
function methods.stride(x, dim)
  if dim ~= nil then return B.stride(x, dim) end
  return setmetatable(B.stride(x), Size)
end

for _, name in ipairs({ "dim", "numel", "storage_offset", "itemsize", "version", "data_ptr", "is_contiguous", "is_fake",
  "is_leaf", "retain_grad", "shares_storage", "free", "requires_grad" }) do
  methods[name] = B[name]
end
methods.ndim = B.dim
methods.nelement = B.numel
methods.element_size = B.itemsize
methods.requires_grad_ = B.set_requires_grad
methods.dtype = B.tensor_dtype
methods.device = B.tensor_device

function methods.is_floating_point(x) return B.tensor_dtype(x).is_floating_point end
function methods.is_cuda(x) return B.tensor_device(x).type == "cuda" end
--- The device's ordinal; -1 on the cpu.
function methods.get_device(x)
  local d = B.tensor_device(x)
  return d.type == "cpu" and -1 or d.index
end
methods.is_pinned = B.cuda.is_pinned
--- A copy in pinned memory, from and to which CUDA copies without waiting ({non_blocking = true}); x itself if it is
-- pinned, or where there is no CUDA.
function methods.pin_memory(x)
  if B.cuda_why() then return x end
  return B.cuda.pin(x)
end
--- Another stream uses x, too: its memory is not handed out again before what that stream holds then has run.
function methods.record_stream(x, stream) B.cuda.record_stream(x, stream) end

--- The single element as a number or boolean; an integer beyond 2^53 as an int64_t cdata, of uint64 as a uint64_t.
function methods.item(x)
  local v, high, low = B.item(x)
  if high and B.tensor_dtype(x).name == "uint64" then
    return ffi.cast("uint64_t", high) * 2ULL ^ 32 + ffi.cast("uint64_t", low)
  end
  if high then return ffi.cast("int64_t", high) * 2LL ^ 32 + ffi.cast("int64_t", low) end
  return v
end

--- Nested tables of numbers. A tensor that requires grad must be detached first.
function methods.totable(x)
  if B.requires_grad(x) then error("totable: the tensor requires grad; use x:detach():totable()", 2) end
  if B.tensor_device(x).type ~= "cpu" then x = ops.to(x, { device = "cpu" }) end
  return B.totable(x)
end
methods.tolist = methods.totable

local ctype = {
  float32 = "float", float64 = "double", float16 = "uint16_t", bfloat16 = "uint16_t", int8 = "int8_t",
  uint8 = "uint8_t",
  int16 = "int16_t", int32 = "int32_t", int64 = "int64_t", bool = "uint8_t",
  uint16 = "uint16_t", uint32 = "uint32_t", uint64 = "uint64_t",
}
local pointer_type = {}

-- Pointers and the tensors they point into: a pointer keeps its tensor alive.
local anchors = setmetatable({}, { __mode = "k" })

--- A typed FFI pointer to the first element; it keeps the tensor alive (a pointer cast from it does not). Elements lie
-- at their strides. LuaJIT must not read a NaN with a payload through it: of bytes from elsewhere use item or totable.
function methods.data_pointer(x)
  if B.requires_grad(x) then error("data: the tensor requires grad; use x:detach():data()", 2) end
  local name = B.tensor_dtype(x).name
  pointer_type[name] = pointer_type[name] or ffi.typeof(ctype[name] .. "*")
  local p = ffi.cast(pointer_type[name], B.pointer(x))
  anchors[p] = x
  return p
end

--- The same bytes without history; in-place changes are seen by autograd (versions are shared).
function methods.detach(x) return B.detach(x, false) end
function methods.detach_()
  error("detach_ is not supported: use y = x:detach()", 2)
end
--- As x.data: the same bytes with versions of their own: autograd does not see changes. Dangerous.
function methods.data_unchecked(x) return B.detach(x, true) end

-- x.data is the unchecked alias, x:data() the FFI pointer: the alias is called with x.
local function data_of(x) return B.detach(x, true) end

function methods.share_memory_(x) return x end

-- conversions -------------------------------------------------------------------------------------

--- x:to(dtype | device | tensor | {dtype=, device=, non_blocking=, copy=}); self if nothing changes.
function methods.to(x, a, b, c)
  if is_tensor(a) then return ops.to(x, { dtype = B.tensor_dtype(a), device = B.tensor_device(a) }) end
  if is_dtype(a) then return ops.to(x, { dtype = a, device = b }) end
  if is_device(a) then return ops.to(x, { device = a, dtype = b }) end
  if type(a) == "string" then
    local ok, dtype = pcall(B.dtype, a)
    if ok then return ops.to(x, { dtype = dtype, device = b }) end
    return ops.to(x, { device = a, dtype = b })
  end
  if a == nil and b ~= nil then return ops.to(x, { device = b, non_blocking = c }) end
  return ops.to(x, a)
end

for method, name in each({ float = "float32", double = "float64", half = "float16", bfloat16 = "bfloat16",
  char = "int8", byte = "uint8", short = "int16", int = "int32", long = "int64", bool = "bool" }) do
  local dtype = B.dtype(name)
  methods[method] = function(x) return ops.to(x, { dtype = dtype }) end
end
methods.type = function(x, dtype)
  if dtype == nil then return tostring(B.tensor_dtype(x)) end
  return ops.to(x, { dtype = dtype })
end
function methods.cpu(x) return ops.to(x, { device = "cpu" }) end
local function cuda_name(index)
  if type(index) == "number" then return ("cuda:%.14g"):format(index) end
  return index or "cuda"
end
--- x:cuda(), x:cuda(1), x:cuda{device = 1, non_blocking = true}
function methods.cuda(x, index)
  local o = type(index) == "table" and index or { device = index }
  return ops.to(x, { device = cuda_name(o.device), non_blocking = o.non_blocking })
end

-- overloads ---------------------------------------------------------------------------------------

local function is_options(v) return type(v) == "table" and #v == 0 end

--- x:max() the largest element; x:max(dim) values and positions; x:max(y) the elementwise maximum.
local function extreme(full, along, pair)
  return function(x, a, b)
    if a == nil then return full(x) end
    if is_tensor(a) then return pair(x, a) end
    if is_options(a) then
      if a.dim == nil then return full(x, a) end
      return along(x, a)
    end
    if type(a) == "table" then return full(x, a, b) end
    return along(x, a, b)
  end
end
methods.max = extreme(ops.amax, ops.max_dim, ops.maximum)
methods.min = extreme(ops.amin, ops.min_dim, ops.minimum)
M.functions.max, M.functions.min = methods.max, methods.min

--- moth.arange(stop) counts from 0; arange(start, stop, step) as its op.
function M.functions.arange(a, b, ...)
  if type(b) ~= "number" then return ops.arange(0, a, 1, b) end
  return ops.arange(a, b, ...)
end

--- where(condition, x, y); where(condition) gives the positions as nonzero does.
function M.functions.where(condition, x, y)
  if x == nil and y == nil then return ops.nonzero(condition) end
  return ops.where(condition, x, y)
end
methods.where = function(x, condition, y) return ops.where(condition, x, y) end

--- Views of at most `size` positions along dim (or of the sizes in a table).
function methods.split(x, size, dim)
  dim = dim or 1
  local n, out, at = B.size(x, dim), {}, 1
  if type(size) == "table" then
    local sum = 0
    for i, s in ipairs(size) do
      out[i] = ops.narrow(x, dim, at, s)
      at = at + s
      sum = sum + s
    end
    if sum ~= n then error(("split: the sizes add up to %d, dimension %d has %d"):format(sum, dim, n), 2) end
    return out
  end
  if type(size) ~= "number" or size < 1 or size ~= math.floor(size) then
    error("split: expected a positive size or a table of sizes, got " .. tostring(size), 2)
  end
  repeat
    out[#out + 1] = ops.narrow(x, dim, at, math.min(size, n - at + 1))
    at = at + size
  until at > n
  return out
end
M.functions.split = methods.split

--- About `chunks` views of one size along dim.
function methods.chunk(x, chunks, dim)
  dim = dim or 1
  if type(chunks) ~= "number" or chunks < 1 then error("chunk: expected a positive number of chunks", 2) end
  local n = B.size(x, dim)
  return methods.split(x, math.max(1, math.ceil(n / chunks)), dim)
end
M.functions.chunk = methods.chunk

--- A table of the slices along dim.
function methods.unbind(x, dim)
  dim = dim or 1
  local out = {}
  for i = 1, B.size(x, dim) do out[i] = ops.select(x, dim, i) end
  return out
end
M.functions.unbind = methods.unbind

local function like(x) return { dtype = B.tensor_dtype(x), device = B.tensor_device(x) } end

function methods.new_zeros(x, ...)
  return ops.zeros(type((...)) == "table" and (...) or { ... }, like(x))
end
function methods.new_ones(x, ...)
  return ops.ones(type((...)) == "table" and (...) or { ... }, like(x))
end
function methods.new_full(x, size, value)
  return ops.full(size, value, like(x))
end
function methods.new_tensor(x, value)
  return M.new(value, like(x))
end
function methods.repeat_(x, ...)
  local reps = type((...)) == "table" and (...) or { ... }
  local n = math.max(#reps, B.dim(x))
  local size, shape = B.size(x), {}
  while #size < n do table.insert(size, 1, 1) end
  while #reps < n do table.insert(reps, 1, 1) end
  local inner = {}
  for i = 1, n do
    inner[2 * i - 1], inner[2 * i] = 1, size[i]
    shape[2 * i - 1], shape[2 * i] = reps[i], size[i]
  end
  local out = {}
  for i = 1, n do out[i] = reps[i] * size[i] end
  return ops.reshape(ops.clone(ops.expand(ops.reshape(x, inner), shape)), out) -- a copy, always
end
methods.tile = methods.repeat_

--- One line: shape, min, max, mean, NaN and Inf counts.
function methods.stats(x)
  local size = tostring(methods.size(x))
  if B.numel(x) == 0 then return size .. " empty" end
  local f = ops.to(B.alias(x, false), { dtype = "float64" })
  local nan, inf = ops.sum(ops.isnan(f)):item(), ops.sum(ops.isinf(f)):item()
  return ("%s min %.4g max %.4g mean %.4g nan %d inf %d"):format(size, ops.amin(f):item(), ops.amax(f):item(),
    ops.mean(f):item(), nan, inf)
end

-- storage -----------------------------------------------------------------------------------------

-- A userdata, for # asks no table for its length; its tensor is in its metatable.
local Storage = {}
local function tensor_of(s) return getmetatable(s).tensor end
function Storage.data_ptr(s) return B.storage_ptr(tensor_of(s)) end
function Storage.nbytes(s) return B.storage_nbytes(tensor_of(s)) end
function Storage.size(s) return B.storage_nbytes(tensor_of(s)) / B.itemsize(tensor_of(s)) end
Storage.numel = Storage.size
local function flat(s)
  return ops.as_strided(B.alias(tensor_of(s), false), { Storage.size(s) }, { 1 }, 0)
end
function Storage.totable(s) return methods.totable(flat(s)) end

local function storage_text(s)
  local list, n = {}, Storage.size(s)
  for i = 1, math.min(n, 1000) do list[i] = " " .. tostring(flat(s)[i]:item()) end
  if n > 1000 then list[#list + 1] = " ..." end
  list[#list + 1] = ("[moth.Storage of %s, %d elements]"):format(B.tensor_dtype(tensor_of(s)).name, n)
  return table.concat(list, "\n")
end

local function storage_field(s, i)
  if type(i) == "number" then return flat(s)[i]:item() end
  return Storage[i]
end

--- The 1-D buffer behind a tensor: data_ptr(), nbytes(), size() (and #), [i] from 1.
function methods.storage(x)
  local s = newproxy(true)
  local meta = getmetatable(s)
  meta.tensor, meta.__index, meta.__len, meta.__tostring = x, storage_field, Storage.size, storage_text
  return s
end
methods.untyped_storage = methods.storage

-- autograd ----------------------------------------------------------------------------------------

--- loss:backward(), loss:backward{retain_graph=true, create_graph=true}, y:backward(gradient, options).
function methods.backward(x, gradient, options)
  if type(gradient) == "table" then gradient, options = gradient.gradient, gradient end
  options = options or {}
  if gradient ~= nil and not is_tensor(gradient) then
    error("backward: expected a tensor as gradient, got " .. type(gradient), 2)
  end
  B.backward({ x }, gradient and { gradient } or nil, options.retain_graph or options.create_graph,
    options.create_graph)
end

local Handle = {}
Handle.__index = Handle
--- Takes the hook away; may be called twice.
function Handle:remove()
  B.remove_hook(self.id, self.tensor, self.node)
  self.tensor, self.node = nil, nil
end

--- fn(grad) is called when the gradient of x is known; what it returns, if anything, takes its place.
function methods.register_hook(x, fn)
  if type(fn) ~= "function" then error("register_hook: expected a function, got " .. type(fn), 2) end
  local id, node = B.register_hook(x, fn)
  return setmetatable({ id = id, tensor = node == nil and x or nil, node = node }, Handle)
end

-- comparison --------------------------------------------------------------------------------------

local tolerance = {
  float64 = { 1e-7, 1e-7 }, float32 = { 1.3e-6, 1e-5 }, float16 = { 1e-3, 1e-5 }, bfloat16 = { 1.6e-2, 1e-5 },
}
M.tolerance = tolerance

--- Whether |a - b| <= atol + rtol * |b| everywhere (and equal infinities; NaN only with equal_nan).
function M.allclose(a, b, rtol, atol, equal_nan)
  if type(rtol) == "table" then rtol, atol, equal_nan = rtol.rtol, rtol.atol, rtol.equal_nan end
  rtol, atol = rtol or 1e-5, atol or 1e-8
  a, b = B.alias(a, false), B.alias(b, false)
  local x, y = ops.to(a, { dtype = "float64" }), ops.to(b, { dtype = "float64" })
  local close = ops.le(ops.abs(ops.sub(x, y)), ops.add(ops.mul(ops.abs(y), rtol), atol))
  close = ops.logical_and(close, ops.isfinite(y))
  close = ops.logical_or(close, ops.eq(x, y))
  if equal_nan then close = ops.logical_or(close, ops.logical_and(ops.isnan(x), ops.isnan(y))) end
  return ops.all(close):item()
end
methods.allclose = M.allclose

--- Same shape and the same elements.
function M.equal(a, b)
  if methods.size(a) ~= methods.size(b) then return false end
  return ops.all(ops.eq(B.alias(a, false), B.alias(b, false))):item()
end
methods.equal = M.equal

-- making ------------------------------------------------------------------------------------------

--- moth.tensor(number | boolean | nested table | tensor, {dtype=, device=, requires_grad=}).
function M.new(value, options)
  options = options or {}
  if type(options) ~= "table" then error("[tensor] options must be a table such as {dtype = moth.float64}", 2) end
  for k in each(options) do
    if k ~= "dtype" and k ~= "device" and k ~= "requires_grad" and k ~= "pin_memory" then
      error("[tensor] unknown option '" .. tostring(k) .. "'; there are dtype, device, requires_grad", 2)
    end
  end
  local t
  if is_tensor(value) then
    t = ops.to(B.alias(value, false), { dtype = options.dtype, copy = true })
  else
    t = B.tensor(value, options.dtype)
  end
  if options.device and tostring(options.device) ~= "cpu" then t = ops.to(t, { device = options.device }) end
  if options.pin_memory then t = methods.pin_memory(t) end
  if options.requires_grad then B.set_requires_grad(t, true) end
  return t
end

-- The address that a pointer or an array stands for, and of an array the bytes behind it; nil for other values.
local function memory_of(value)
  if type(value) ~= "cdata" then return nil end
  local name = tostring(ffi.typeof(value)):match("^ctype<(.*)>$") or ""
  local is_pointer = name:find("%*$") ~= nil
  if not is_pointer and not name:find("%]$") and not name:find("^struct") then return nil end
  return tonumber(ffi.cast("uintptr_t", ffi.cast("const void *", value))), not is_pointer and ffi.sizeof(value) or nil
end

--- A tensor over foreign memory, not copied: moth.from_ptr(pointer or array, {sizes}, {dtype=, owner=}).
-- `owner` is kept alive as long as the tensor is. What the tensor takes must lie within the array, or within the owner
-- if that is an array and the pointer points into it; how far the memory behind another pointer goes is your word.
function M.from_ptr(pointer, size, options)
  options = check.options("from_ptr", options, "dtype owner")
  local address, bytes = memory_of(pointer)
  if not address then
    check.fail("from_ptr: expected a pointer or an array of the FFI, got %s",
      type(pointer) == "cdata" and tostring(ffi.typeof(pointer)) or type(pointer))
  end
  if type(size) ~= "table" then check.fail("from_ptr: expected a table of sizes, got %s", type(size)) end
  local dtype = B.dtype(options.dtype or "float32")
  local start, length = memory_of(options.owner)
  if length and address >= start and address <= start + length then
    bytes = math.min(bytes or math.huge, start + length - address)
  end
  local needed = dtype.itemsize
  for _, n in ipairs(size) do needed = needed * (tonumber(n) or 0) end
  if bytes and needed > bytes then
    check.fail("from_ptr: %s of size [%s] takes %.0f bytes, there are %.0f", dtype.name, table.concat(size, ", "),
      needed, bytes)
  end
  return B.from_ptr(address, size, dtype, options.owner or pointer)
end

--- The shape that shapes broadcast to.
function M.broadcast_shapes(...)
  local out = {}
  for i = 1, select("#", ...) do
    local s = select(i, ...)
    for k = 1, math.max(#s, #out) do
      local a, b = out[#out - k + 1] or 1, s[#s - k + 1] or 1
      if a ~= b and a ~= 1 and b ~= 1 then
        error(("shapes %s and %s cannot be broadcast together"):format(tostring(setmetatable(out, Size)),
          "[" .. table.concat(s, ", ") .. "]"), 2)
      end
    end
    local joint, n = {}, math.max(#s, #out)
    for k = 1, n do
      local a, b = out[#out - n + k] or 1, s[#s - n + k] or 1
      joint[k] = a == 1 and b or a
    end
    out = joint
  end
  return setmetatable(out, Size)
end

local finfo = {
  float32 = { bits = 32, eps = 2 ^ -23, max = (2 - 2 ^ -23) * 2 ^ 127, tiny = 2 ^ -126 },
  float64 = { bits = 64, eps = 2 ^ -52, max = (2 - 2 ^ -52) * 2 ^ 1023, tiny = 2 ^ -1022 },
  float16 = { bits = 16, eps = 2 ^ -10, max = 65504, tiny = 2 ^ -14 },
  bfloat16 = { bits = 16, eps = 2 ^ -7, max = (2 - 2 ^ -7) * 2 ^ 127, tiny = 2 ^ -126 },
}
for _, f in each(finfo) do f.min, f.smallest_normal = -f.max, f.tiny end
--- Limits of a float dtype: bits, eps, max, min, tiny.
function M.finfo(dtype)
  return finfo[B.dtype(dtype).name] or error("finfo: expected a float dtype, got " .. tostring(dtype), 2)
end
local iinfo = {
  int8 = { bits = 8, min = -128, max = 127 }, uint8 = { bits = 8, min = 0, max = 255 },
  int16 = { bits = 16, min = -32768, max = 32767 }, int32 = { bits = 32, min = -2 ^ 31, max = 2 ^ 31 - 1 },
  int64 = { bits = 64, min = -2 ^ 63, max = 2 ^ 63 - 1 }, uint16 = { bits = 16, min = 0, max = 65535 },
  uint32 = { bits = 32, min = 0, max = 2 ^ 32 - 1 }, uint64 = { bits = 64, min = 0, max = 2 ^ 64 - 1 },
}
--- Limits of an integer dtype: bits, min, max (as Lua numbers: those of 64 bits are rounded).
function M.iinfo(dtype)
  return iinfo[B.dtype(dtype).name] or error("iinfo: expected an integer dtype, got " .. tostring(dtype), 2)
end

-- the metatable -----------------------------------------------------------------------------------

local index = require "moth.index"
local get, set = index.get, index.set
local rows = require "moth.row_grad"

function mt.__index(x, k)
  local method = methods[k]
  if method ~= nil then return method end
  if k == "grad" then return rows.get(x) end
  if k == "shape" then return methods.size(x) end
  if k == "grad_fn" then return B.grad_fn(x) end
  if k == "data" then return data_of(x) end
  if type(k) == "string" then
    local cls = B.class_of(x)
    if cls and cls[k] ~= nil then return cls[k] end
    error(("a tensor has no method or field '%s'"):format(k), 2)
  end
  return get(x, k)
end

--- For completion: what can be asked of a tensor.
function mt.__names()
  local list = { "grad", "shape", "grad_fn", "data" }
  for name in each(methods) do list[#list + 1] = name end
  return list
end

function mt.__newindex(x, k, v)
  if type(k) ~= "string" then return set(x, k, v) end
  if k == "grad" then return rows.set(x, v) end
  if k == "data" then
    if not is_tensor(v) then error("x.data = v: expected a tensor, got " .. type(v), 2) end
    return ops.copy_(B.alias(x, true), v)
  end
  error(("a tensor has no settable field '%s'"):format(k), 2)
end

mt.__add, mt.__sub, mt.__mul, mt.__div, mt.__mod, mt.__pow = ops.add, ops.sub, ops.mul, ops.div, ops.remainder, ops.pow
mt.__unm = function(a) return ops.neg(a) end -- it is given its operand twice

--- #x is the size of the first dimension.
function mt.__len(x)
  if B.dim(x) == 0 then error("a 0-dim tensor has no length", 2) end
  return B.size(x, 1)
end

-- Lua makes a boolean of a comparison: only one element has one.
local function compare(op, name)
  return function(a, b)
    local n = is_tensor(a) and B.numel(a) or B.numel(b)
    if n ~= 1 then
      error(("comparison %s of a tensor with %d elements: Lua would make one boolean of it; use x:%s(y)"):format(
        op, n, name), 2)
    end
    return ops[name](a, b):item()
  end
end
mt.__lt, mt.__le = compare("<", "lt"), compare("<=", "le")
mt.__concat = function(a, b) return tostring(a) .. tostring(b) end
mt.__tostring = function(x) return require("moth.print").tensor(x) end
function mt.__call(alias, x)
  if not is_tensor(x) or not B.shares_storage(alias, x) then error("attempt to call a tensor", 2) end
  return methods.data_pointer(x)
end

-- A tensor that free() has released answers as any other, but needs no finalizer.
for k, v in each(mt) do
  if k ~= "__gc" then B.Released[k] = v end
end

-- What needs the finished table of functions.
function M.install(moth)
  methods.type_as = ops.type_as
  for name, fn in each(require("moth.functions").methods) do methods[name] = fn end
  for name, fn in each(methods) do
    if moth[name] == nil and (name == "detach" or name == "item" or name == "numel") then moth[name] = fn end
  end
end

return M
