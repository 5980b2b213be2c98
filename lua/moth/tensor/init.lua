--- Tensors in Lua: the metatable (methods, fields, operators, indexing) and methods that are not ops.
-- Fields: x.grad, x.grad_fn, x.data, x.shape, x.T, x.mT (and H, mH). All else is a method.
local ffi = require "ffi"
local B = require "moth_lua"
local each = require "moth.each"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local list_of = require "moth.tensor.list"
local element = require "moth.tensor.element"
local ops = B.ops

local M = { functions = {} }
local mt = B.Tensor
local methods = {}
M.methods = methods -- of every tensor: moth.library adds to them

for name, fn in each(ops) do
  if not B.internal[name] then methods[name] = fn end
end

-- Defines a method by its signature, under the name in it, or under `name`.
local function method(text, fn, name) methods[name or text:match("^[%w_]+")] = signature(text, fn) end

-- Calls in tail position have no frame, and an error would not find the name of the function that made them.
local function done(...) return ... end

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

-- size and stride are called often: the usual calls come first, the others are checked.
local function facts(name, ask)
  local extent = element.extent(name)
  local checked = signature(name .. "(Tensor input, Dim dim?)", function(x, dim)
    if dim ~= nil then return (ask(x, dim)) end
    return setmetatable(ask(x), Size)
  end)
  return function(x, dim, more)
    if more == nil and type(dim) == "number" then return extent(x, dim) or done(ask(x, dim)) end
    if more == nil and dim == nil then return setmetatable(ask(x), Size) end
    return checked(x, dim, more)
  end
end
--- The sizes as a table that prints as [2, 3], or the size of one dimension.
methods.size = facts("size", B.named(B.size, "size"))
--- The strides in elements, or that of one dimension.
methods.stride = facts("stride", B.named(B.stride, "stride"))

methods.data_ptr, methods.free = B.named(B.data_ptr, "data_ptr"), B.named(B.free, "free")
methods.release = B.named(B.free, "release")

-- Properties for hot loops.
local function fact(name, of, compiled)
  methods[name] = compiled(of, B.named(B[of], name))
  B.names[methods[name]] = name
end
for name, of in each({ dim = "dim", numel = "numel", storage_offset = "storage_offset", itemsize = "itemsize",
  version = "version", ndim = "dim", nelement = "numel", element_size = "itemsize" }) do
  fact(name, of, element.number)
end
for _, name in ipairs({ "is_contiguous", "is_fake" }) do fact(name, name, element.boolean) end
fact("dtype", "tensor_dtype", element.dtype)
fact("device", "tensor_device", element.device)
method("requires_grad_(Tensor input, bool requires_grad=true)", B.set_requires_grad)
-- Methods called often: C functions, which check the tensor themselves.
local function alone(name, fn)
  fn = B.named(fn, name)
  local function ask(x, more)
    if more ~= nil then check.fail("[%s] too many arguments; %s(Tensor input)", name, name) end
    return done(fn(x))
  end
  B.names[ask], methods[name] = name, ask
end
alone("requires_grad", element.boolean("requires_grad", B.requires_grad))
alone("is_leaf", B.is_leaf)
alone("retain_grad", B.retain_grad)
method("shares_storage(Tensor input, Tensor other)", B.shares_storage)

method("is_floating_point(Tensor input)", function(x) return B.tensor_dtype(x).is_floating_point end)
method("is_cuda(Tensor input)", function(x) return B.tensor_device(x).type == "cuda" end)
--- Whether x is on the device meta: it has a shape and a dtype, but no values.
method("is_meta(Tensor input)", function(x) return B.tensor_device(x).type == "meta" end)
--- The device's ordinal; -1 on the cpu.
method("get_device(Tensor input)", function(x)
  local d = B.tensor_device(x)
  return d.type == "cpu" and -1 or d.index
end)
method("is_pinned(Tensor input)", B.cuda.is_pinned)
--- A copy in pinned memory, from and to which CUDA copies without waiting ({non_blocking = true}); x itself if it is
-- pinned, or where there is no CUDA.
method("pin_memory(Tensor input)", function(x)
  if B.cuda_why() then return x end
  return (B.cuda.pin(x))
end)
--- Declares that another stream also uses x: its memory is not reused before the work queued there at its release has
-- run.
method("record_stream(Tensor input, any stream)", function(x, stream) B.stream.record_stream(x, stream) end)

--- The single element, or with a position for each dimension, x:item(2, -1), the one there, as a number or boolean; an
-- integer beyond 2^53 as an int64_t cdata, of uint64 as a uint64_t.
local item = B.named(B.item, "item")
function methods.item(x, i, j, k, ...)
  local quick = select("#", ...) == 0 and element.get(x, i, j, k)
  if quick then return quick end
  local v, high, low = item(x, i, j, k, ...)
  if high and B.tensor_dtype(x).name == "uint64" then
    return ffi.cast("uint64_t", high) * 2ULL ^ 32 + ffi.cast("uint64_t", low)
  end
  if high then return ffi.cast("int64_t", high) * 2LL ^ 32 + ffi.cast("int64_t", low) end
  return v
end

--- Nested tables of numbers. A tensor that requires grad must be detached first.
method("totable(Tensor input)", function(x)
  if B.requires_grad(x) then check.fail("[totable] the tensor requires grad; use x:detach():totable()") end
  if B.tensor_device(x).type ~= "cpu" then x = ops.to(x, { device = "cpu" }) end
  return (B.totable(x))
end)
methods.tolist = signature.alias("tolist", methods.totable)

local ctype = {
  float32 = "float", float64 = "double", float16 = "uint16_t", bfloat16 = "uint16_t", int8 = "int8_t",
  uint8 = "uint8_t",
  int16 = "int16_t", int32 = "int32_t", int64 = "int64_t", bool = "uint8_t",
  uint16 = "uint16_t", uint32 = "uint32_t", uint64 = "uint64_t", complex64 = "complex float", complex128 = "complex",
}
local pointer_type = {}

-- Pointers and the tensors they point into: a pointer keeps its tensor alive.
local anchors = setmetatable({}, { __mode = "k" })

--- A typed FFI pointer to the first element; it keeps the tensor alive (a pointer cast from it does not). Elements lie
-- at their strides. LuaJIT must not read a NaN with a payload through it: of bytes from elsewhere use item or totable.
method("data_pointer(Tensor input)", function(x)
  if B.requires_grad(x) then check.fail("data: the tensor requires grad; use x:detach():data()") end
  local name = B.tensor_dtype(x).name
  pointer_type[name] = pointer_type[name] or ffi.typeof(ctype[name] .. "*")
  local p = ffi.cast(pointer_type[name], B.pointer(x))
  anchors[p] = x
  return p
end)

function methods.detach_() check.fail("[detach_] is not supported: use y = x:detach()") end
--- As x.data: the same bytes with versions of their own: autograd does not see changes. Dangerous.
method("data_unchecked(Tensor input)", function(x) return (B.detach(x, true)) end)

-- x.data is the unchecked alias, x:data() the FFI pointer: the alias is called with x.
local function data_of(x) return B.detach(x, true) end

method("share_memory_(Tensor input)", function(x) return x end)

-- conversions -------------------------------------------------------------------------------------

local function to_fail(what, ...)
  check.fail("[to] " .. what .. "; to(Tensor input, dtype|device|Tensor, …, {dtype=, device=, non_blocking=, copy=})",
    ...)
end

-- Reads x:to's positional arguments, in any order; then non_blocking, copy. Returns a table of options.
local function read_to(...)
  local n, o, switches = select("#", ...), {}, 0
  local function put(name, value)
    if o[name] ~= nil then to_fail("the %s is given twice", name) end
    o[name] = value
  end
  local function position(i, v)
    if is_dtype(v) then put("dtype", v)
    elseif is_device(v) then put("device", v)
    elseif type(v) == "string" then
      local ok, dtype = pcall(B.dtype, v)
      put(ok and "dtype" or "device", ok and dtype or v)
    elseif is_tensor(v) then
      put("dtype", B.tensor_dtype(v))
      put("device", B.tensor_device(v))
    elseif type(v) == "boolean" and (o.dtype or o.device) and switches < 2 then
      switches = switches + 1
      put(switches == 1 and "non_blocking" or "copy", v)
    else
      to_fail("argument %d: expected a dtype, a device or a tensor, got %s", i, v == nil and "nil" or type(v))
    end
  end
  if n == 0 then to_fail("expected a dtype, a device or a tensor") end
  for i = 1, n do
    local v = (select(i, ...))
    if i == n and type(v) == "table" and check.is_plain(v) then
      for k = 1, #v do position(k, v[k]) end
      for key, value in each(v) do
        if type(key) == "string" then put(key, value)
        elseif type(key) ~= "number" or key < 1 or key > #v then to_fail("the list has a hole") end
      end
    elseif v ~= nil or i == 1 or i < n then
      if v ~= nil or n == 1 then position(i, v) end
    end
  end
  if n > 1 and next(o) == nil then to_fail("expected a dtype, a device or a tensor, got nil") end
  return o
end

--- x:to(dtype | device | tensor | {dtype=, device=, non_blocking=, copy=}); self if nothing changes.
function methods.to(x, a, ...)
  if is_dtype(a) and select("#", ...) == 0 then return done(ops.to(x, a)) end
  return done(ops.to(x, read_to(a, ...)))
end
B.names[methods.to] = "to"

for name, dtype in each({ float = "float32", double = "float64", half = "float16", bfloat16 = "bfloat16",
  char = "int8", byte = "uint8", short = "int16", int = "int32", long = "int64", bool = "bool", cfloat = "complex64",
  cdouble = "complex128" }) do
  dtype = B.dtype(dtype)
  method(name .. "(Tensor input)", function(x) return (ops.to(x, dtype)) end)
end
method("type(Tensor input, dtype dtype?)", function(x, dtype)
  if dtype == nil then return tostring(B.tensor_dtype(x)) end
  return (ops.to(x, { dtype = dtype }))
end)
method("cpu(Tensor input)", function(x) return (ops.to(x, { device = "cpu" })) end)
--- x:cuda(), x:cuda(1), x:cuda{device = 1, non_blocking = true}
method("cuda(Tensor input, size|device device='cuda', bool non_blocking=false)", function(x, device, non_blocking)
  if type(device) == "number" then device = ("cuda:%d"):format(device) end
  return (ops.to(x, { device = device, non_blocking = non_blocking }))
end)

-- overloads ---------------------------------------------------------------------------------------

local function extreme(name, full, along, pair)
  --- x:max() the largest element; x:max(dim) values and positions; x:max(y) the elementwise maximum; min likewise.
  local function extremum(x, a, b, ...)
    if type(a) == "number" and b == nil and select("#", ...) == 0 then return done(along(x, a)) end
    if a == nil then
      if b ~= nil then check.fail("[%s] argument 'dim' is nil", name) end
      return done(full(x))
    end
    if is_tensor(a) then return done(pair(x, a, b, ...)) end
    if type(a) ~= "table" then return done(along(x, a, b, ...)) end
    local dim = a.dim
    if a.other ~= nil then return done(pair(x, a)) end
    if dim == nil and #a == 1 and type(next(a, 1)) == "string" then dim = a[1] end -- max{ 2, keepdim = true }
    if dim == nil or type(dim) == "table" then return done(full(x, a, b, ...)) end
    return done(along(x, a, b, ...))
  end
  B.names[extremum] = name
  return extremum
end
methods.max = extreme("max", ops.amax, ops.max_dim, ops.maximum)
methods.min = extreme("min", ops.amin, ops.min_dim, ops.minimum)
M.functions.max, M.functions.min = methods.max, methods.min

local function is_number(v) return type(v) == "number" or type(v) == "cdata" end

--- moth.arange(stop) counts from 0; arange(start, stop, step) as its op.
function M.functions.arange(a, b, ...)
  if type(a) == "table" and b == nil then
    if a.start ~= nil or a[2] ~= nil then return done(ops.arange(a)) end
    local o = { start = 0, stop = a[1] }
    for key, value in each(a) do if key ~= 1 then o[key] = value end end
    return done(ops.arange(o))
  end
  if is_number(b) then return done(ops.arange(a, b, ...)) end
  if b ~= nil and type(b) ~= "table" or select("#", ...) > 0 then return done(ops.arange(a, b, ...)) end
  return done(ops.arange(0, a, 1, b))
end
B.names[M.functions.arange] = "arange"

--- where(condition, x, y); where(condition) gives the positions as nonzero does.
function M.functions.where(condition, ...)
  if select("#", ...) == 0 and is_tensor(condition) then return done(ops.nonzero(condition)) end
  return done(ops.where(condition, ...))
end
B.names[M.functions.where] = "where"
method("where(Tensor input, Tensor condition, Tensor|number|bool other)", function(x, condition, y)
  return (ops.where(condition, x, y))
end)

local function split(name, x, size, dim)
  local n, out, at = B.size(x, dim), {}, 1
  if type(size) == "table" then
    local sum = 0
    for i, s in ipairs(size) do
      out[i] = at + s - 1 <= n and ops.narrow(x, dim, at, s) or nil
      at = at + s
      sum = sum + s
    end
    if sum ~= n then check.fail("[%s] the sizes add up to %d, dimension %d has %d", name, sum, dim, n) end
    return list_of(out, name)
  end
  repeat
    out[#out + 1] = ops.narrow(x, dim, at, math.min(size, n - at + 1))
    at = at + size
  until at > n
  return list_of(out, name)
end

local function both(text, fn)
  local name = text:match("^[%w_]+")
  method(text, fn)
  M.functions[name] = methods[name]
end

--- A list of views of at most `size` positions along dim (or of the sizes in a table): local a, b = unpack(x:split(3)).
both("split(Tensor input, count|size[] size, Dim dim=1)", function(x, size, dim)
  return split("split", x, size, dim)
end)

--- A list of about `chunks` views of one size along dim: local a, b = unpack(x:chunk(2)).
both("chunk(Tensor input, count chunks, Dim dim=1)", function(x, chunks, dim)
  return split("chunk", x, math.max(1, math.ceil(B.size(x, dim) / chunks)), dim)
end)

--- A list of the slices along dim: for i, row in ipairs(x:unbind()) do … end.
both("unbind(Tensor input, Dim dim=1)", function(x, dim)
  local out = {}
  for i = 1, B.size(x, dim) do out[i] = ops.select(x, dim, i) end
  return list_of(out, "unbind")
end)

-- new_zeros and its like: dtype and device are those of the tensor if none are given.
local like = "*, dtype dtype?, device device?, bool requires_grad=false, bool pin_memory=false"
local function options_like(x, dtype, device, requires_grad, pin_memory)
  return { dtype = dtype or B.tensor_dtype(x), device = device or B.tensor_device(x), requires_grad = requires_grad,
    pin_memory = pin_memory }
end
for _, name in ipairs({ "zeros", "ones", "empty" }) do
  local op = ops[name]
  method(("new_%s(Tensor input, size... size?, %s)"):format(name, like), function(x, size, ...)
    return (op(size or {}, options_like(x, ...)))
  end)
end
method(("new_full(Tensor input, size|size[] size, number|bool value, %s)"):format(like), function(x, size, value, ...)
  return (ops.full(size, value, options_like(x, ...)))
end)
method(("new_tensor(Tensor input, any data, %s)"):format(like), function(x, data, ...)
  return (M.new(data, options_like(x, ...)))
end)
--- The tensor repeated along each dimension, new ones in front; of too few numbers the others are 1.
method("repeat_(Tensor input, size... repeats)", function(x, given)
  local reps = { unpack(given) }
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
  local copy = ops.clone(ops.expand(ops.reshape(x, inner), shape)) -- always
  local y = ops.reshape(copy, out)
  if not rawequal(y, copy) then copy:free() end -- else y's memory would wait for the collector
  return y
end)
methods.tile = signature.alias("tile", methods.repeat_)

--- One line: shape, min, max, mean, NaN and Inf counts.
method("stats(Tensor input)", function(x)
  local size = tostring(methods.size(x))
  if B.numel(x) == 0 then return size .. " empty" end
  local f = ops.to(B.alias(x, false), { dtype = "float64" })
  local nan, inf = ops.sum(ops.isnan(f)):item(), ops.sum(ops.isinf(f)):item()
  return ("%s min %.4g max %.4g mean %.4g nan %d inf %d"):format(size, ops.amin(f):item(), ops.amax(f):item(),
    ops.mean(f):item(), nan, inf)
end)

-- storage -----------------------------------------------------------------------------------------

-- A userdata, for # asks no table for its length; its tensor is in its metatable.
local Storage = {}
local function tensor_of(s) return getmetatable(s).tensor end
function Storage.data_ptr(s) return B.storage_ptr(tensor_of(s)) end
function Storage.nbytes(s) return B.storage_nbytes(tensor_of(s)) end
local function count(s) return B.storage_nbytes(tensor_of(s)) / B.itemsize(tensor_of(s)) end
function Storage.size(s) return getmetatable(s).untyped and Storage.nbytes(s) or count(s) end
Storage.numel = Storage.size
local function flat(s)
  return ops.as_strided(B.alias(tensor_of(s), false), { count(s) }, { 1 }, 0)
end
--- resize_(0) releases the memory, resize_(its full size) allocates it again, with arbitrary elements; see
-- moth_storage_resize in moth.h. Counts as size() does.
function Storage.resize_(s, n)
  B.storage_resize(tensor_of(s), n * (getmetatable(s).untyped and 1 or B.itemsize(tensor_of(s))))
  return s
end
function Storage.totable(s) return methods.totable(flat(s)) end

local function storage_text(s)
  local list, n = {}, count(s)
  for i = 1, math.min(n, 1000) do list[i] = " " .. tostring(flat(s)[i]:item()) end
  if n > 1000 then list[#list + 1] = " ..." end
  list[#list + 1] = ("[moth.Storage of %s, %d elements]"):format(B.tensor_dtype(tensor_of(s)).name, n)
  return table.concat(list, "\n")
end

local function storage_field(s, i)
  if type(i) == "number" then return flat(s)[i]:item() end
  return Storage[i]
end

local function storage(x, untyped)
  local s = newproxy(true)
  local meta = getmetatable(s)
  meta.tensor, meta.__index, meta.__len, meta.__tostring = x, storage_field, Storage.size, storage_text
  meta.untyped = untyped
  return s
end

--- The 1-D buffer behind a tensor: data_ptr(), nbytes(), size() (and #), [i] from 1, resize_(n).
method("storage(Tensor input)", function(x) return storage(x, false) end)
--- The same, but that size() and resize_(n) count bytes, as PyTorch's do.
method("untyped_storage(Tensor input)", function(x) return storage(x, true) end)

-- autograd ----------------------------------------------------------------------------------------

--- loss:backward(), loss:backward{retain_graph=true, create_graph=true}, y:backward(gradient, options).
method("backward(Tensor input, Tensor gradient?, bool retain_graph?, bool create_graph=false)",
  function(x, gradient, retain_graph, create_graph)
    if retain_graph == nil then retain_graph = create_graph end
    B.backward({ x }, gradient and { gradient } or nil, retain_graph, create_graph)
  end)

local Handle = {}
Handle.__index = Handle
--- Removes the hook; may be called twice.
function Handle:remove()
  B.remove_hook(self.id, self.tensor, self.node)
  self.tensor, self.node = nil, nil
end

--- fn(grad) is called when the gradient of x is complete; a result that is not nil replaces it.
method("register_hook(Tensor input, function hook)", function(x, fn)
  local id, node = B.register_hook(x, fn)
  return setmetatable({ id = id, tensor = node == nil and x or nil, node = node }, Handle)
end)

--- fn(x) is called after backward has added to x.grad of a leaf x; its results are ignored. x.grad may be changed, or
-- set to nil: an optimizer's step in here needs memory for one gradient at a time.
method("register_post_accumulate_grad_hook(Tensor input, function hook)", function(x, fn)
  local id = B.register_hook(x, fn, true)
  return setmetatable({ id = id, tensor = x }, Handle)
end)

-- comparison --------------------------------------------------------------------------------------

local tolerance = {
  float64 = { 1e-7, 1e-7 }, float32 = { 1.3e-6, 1e-5 }, float16 = { 1e-3, 1e-5 }, bfloat16 = { 1.6e-2, 1e-5 },
  complex128 = { 1e-7, 1e-7 }, complex64 = { 1.3e-6, 1e-5 },
}
M.tolerance = tolerance

--- Whether |a - b| <= atol + rtol * |b| everywhere (and equal infinities; NaN only with equal_nan).
method([[allclose(Tensor input, Tensor other, number rtol=1e-5, number atol=1e-8, bool equal_nan=false)]],
function(a, b, rtol, atol, equal_nan)
  a, b = B.alias(a, false), B.alias(b, false)
  local complex = B.tensor_dtype(a).is_complex or B.tensor_dtype(b).is_complex
  local wide = { dtype = complex and "complex128" or "float64" }
  local x, y = ops.to(a, wide), ops.to(b, wide)
  local close = ops.le(ops.abs(ops.sub(x, y)), ops.add(ops.mul(ops.abs(y), rtol), atol))
  close = ops.logical_and(close, ops.isfinite(y))
  close = ops.logical_or(close, ops.eq(x, y))
  if equal_nan then close = ops.logical_or(close, ops.logical_and(ops.isnan(x), ops.isnan(y))) end
  return (ops.all(close):item())
end)
M.allclose = methods.allclose

--- Same shape and the same elements.
method("equal(Tensor input, Tensor other)", function(a, b)
  if methods.size(a) ~= methods.size(b) then return false end
  return (ops.all(ops.eq(B.alias(a, false), B.alias(b, false))):item())
end)
M.equal = methods.equal

-- making ------------------------------------------------------------------------------------------

-- moth.tensor{ 1, 2, dtype = … }: the values, and the options.
local function split_data(value)
  if type(value) ~= "table" or getmetatable(value) ~= nil then return value end
  local key = next(value, #value > 0 and #value or nil)
  if type(key) ~= "string" then return value end
  local data, options = {}, {}
  for k, v in each(value) do
    if type(k) == "string" then options[k] = v else data[k] = v end
  end
  if options.data ~= nil and #data == 0 then return options.data, options end
  return data, options
end

local function new(value, dtype, device, requires_grad, pin_memory)
  local t
  if is_tensor(value) then
    t = ops.to(B.alias(value, false), { dtype = dtype, copy = true })
  else
    t = B.tensor(value, dtype)
  end
  if device and tostring(device) ~= "cpu" then t = ops.to(t, { device = device }) end
  if pin_memory then t = methods.pin_memory(t) end
  if requires_grad then B.set_requires_grad(t, true) end
  return t
end

local function maker(name)
  local checked = signature(name .. "(any data, *, dtype dtype?, device device?, bool requires_grad=false, \z
    bool pin_memory=false)", new)
  local function make(value, options, ...)
    if options == nil and select("#", ...) == 0 then
      value, options = split_data(value)
      if options == nil and value ~= nil then return done(new(value)) end
    end
    if type(options) == "table" and value ~= nil and select("#", ...) == 0 then -- the usual: {dtype = …} alone
      local key, v = next(options)
      if key == "dtype" and is_dtype(v) and next(options, key) == nil then return done(new(value, v)) end
    end
    return done(checked(value, options, ...))
  end
  B.names[make] = name
  return make
end

--- moth.tensor(number | boolean | nested table | tensor, {dtype=, device=, requires_grad=}); the options may stand in
-- the table itself: moth.tensor{ 1, 2, dtype = moth.int64 }.
M.new = maker("tensor")

local copied = maker("as_tensor")
--- As moth.tensor, but of a tensor itself where it has the dtype and device that are asked for, else x:to(…): not
-- detached.
function M.as_tensor(value, options, ...)
  local given = options or {}
  if not is_tensor(value) or select("#", ...) > 0 or type(given) ~= "table" then
    return done(copied(value, options, ...))
  end
  for key in each(given) do
    if key ~= "dtype" and key ~= "device" then return done(copied(value, options)) end
  end
  return (ops.to(value, { dtype = given.dtype, device = given.device }))
end
B.names[M.as_tensor] = "as_tensor"

-- The address of a pointer or array, and the number of bytes of an array; nil for other values.
local null = {} -- a NULL pointer equals nil: a signature would not see it
local function memory_of(value)
  if value == null then return 0 end
  if type(value) ~= "cdata" then return nil end
  local name = tostring(ffi.typeof(value)):match("^ctype<(.*)>$") or ""
  local is_pointer = name:find("%*$") ~= nil
  if not is_pointer and not name:find("%]$") and not name:find("^struct") then return nil end
  return tonumber(ffi.cast("uintptr_t", ffi.cast("const void *", value))), not is_pointer and ffi.sizeof(value) or nil
end

local from_ptr = signature("from_ptr(any pointer, size[] size, *, dtype dtype='float32', any owner?)",
  function(pointer, size, dtype, owner)
    local address, bytes = memory_of(pointer)
    if not address then
      check.fail("from_ptr: expected a pointer or an array of the FFI, got %s",
        type(pointer) == "cdata" and tostring(ffi.typeof(pointer)) or type(pointer))
    end
    dtype = B.dtype(dtype)
    local start, length = memory_of(owner)
    if length and address >= start and address <= start + length then
      bytes = math.min(bytes or math.huge, start + length - address)
    end
    local needed = dtype.itemsize
    for _, n in ipairs(size) do needed = needed * n end
    if bytes and needed > bytes then
      check.fail("from_ptr: %s of size [%s] takes %.0f bytes, there are %.0f", dtype.name, table.concat(size, ", "),
        needed, bytes)
    end
    return (B.from_ptr(address, size, dtype, owner or pointer))
  end)
--- A tensor over foreign memory, not copied: moth.from_ptr(pointer or array, {sizes}, {dtype=, owner=}).
-- `owner` is kept alive as long as the tensor. The tensor must lie within the array, or within the owner if that is an
-- array and the pointer points into it; for other pointers the caller is responsible for the size.
function M.from_ptr(pointer, ...)
  if type(pointer) == "cdata" and pointer == nil then pointer = null end
  return done(from_ptr(pointer, ...))
end
B.names[M.from_ptr] = "from_ptr"

--- The shape that shapes broadcast to.
function M.broadcast_shapes(...)
  local out = {}
  for i = 1, select("#", ...) do
    local s = (select(i, ...))
    if type(s) == "number" then s = { s } end
    if type(s) ~= "table" then
      check.fail("[broadcast_shapes] argument %d: expected a list of sizes, got %s", i, s == nil and "nil" or type(s))
    end
    for k, n in each(s) do
      if type(k) ~= "number" or k > #s or type(n) ~= "number" or n < 0 or n ~= math.floor(n) then
        check.fail("[broadcast_shapes] argument %d: expected a list of sizes, element %s is %s", i, tostring(k),
          tostring(n))
      end
    end
    for k = 1, math.max(#s, #out) do
      local a, b = out[#out - k + 1] or 1, s[#s - k + 1] or 1
      if a ~= b and a ~= 1 and b ~= 1 then
        check.fail("[broadcast_shapes] shapes %s and %s cannot be broadcast together",
          tostring(setmetatable(out, Size)), "[" .. table.concat(s, ", ") .. "]")
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
finfo.complex64, finfo.complex128 = finfo.float32, finfo.float64
--- Limits of a float dtype, or of the parts of a complex one: bits, eps, max, min, tiny.
M.finfo = signature("finfo(dtype dtype?)", function(dtype)
  dtype = dtype and B.dtype(dtype) or B.default_dtype()
  return finfo[dtype.name] or check.fail("[finfo] expected a float dtype, got %s; see moth.iinfo", tostring(dtype))
end)
local iinfo = {
  int8 = { bits = 8, min = -128, max = 127 }, uint8 = { bits = 8, min = 0, max = 255 },
  int16 = { bits = 16, min = -32768, max = 32767 }, int32 = { bits = 32, min = -2 ^ 31, max = 2 ^ 31 - 1 },
  int64 = { bits = 64, min = -2 ^ 63, max = 2 ^ 63 - 1 }, uint16 = { bits = 16, min = 0, max = 65535 },
  uint32 = { bits = 32, min = 0, max = 2 ^ 32 - 1 }, uint64 = { bits = 64, min = 0, max = 2 ^ 64 - 1 },
}
--- Limits of an integer dtype: bits, min, max (as Lua numbers: those of 64 bits are rounded).
M.iinfo = signature("iinfo(dtype dtype)", function(dtype)
  return iinfo[B.dtype(dtype).name]
    or check.fail("[iinfo] expected an integer dtype, got %s; see moth.finfo", tostring(B.dtype(dtype)))
end)

-- the metatable -----------------------------------------------------------------------------------

local index = require "moth.tensor.index"
local get, set = index.get, index.set
local rows = require "moth.autograd.row_grad"

-- x.T and x.H: a matrix transposed; x.mT and x.mH: the last two dimensions of batches of matrices; x.H and x.mH also
-- conjugate complex numbers.
local function matrix(name, many)
  return function(x)
    if B.dim(x) == 2 then return done(name == "H" and ops.adjoint(x) or ops.transpose(x, 1, 2)) end
    check.fail("[%s] expected a matrix, got %d dimensions; x.%s swaps the last two", name, B.dim(x), many)
  end
end
local turned = { T = matrix("T", "mT"), H = matrix("H", "mH"), mH = ops.adjoint,
  mT = function(x) return done(ops.transpose(x, -2, -1)) end }

function mt.__index(x, k)
  local found = methods[k]
  if found ~= nil then return found end
  if k == "grad" then return rows.get(x) end
  if k == "shape" then return methods.size(x) end
  if k == "grad_fn" then return B.grad_fn(x) end
  if k == "data" then return data_of(x) end
  if turned[k] then return turned[k](x) end
  if type(k) == "string" then
    local cls = B.class_of(x)
    if cls and cls[k] ~= nil then return cls[k] end
    check.fail("a tensor has no method or field '%s'%s", k, check.suggest(k, mt.__names()))
  end
  return get(x, k)
end

--- For completion: the fields and methods of a tensor.
function mt.__names()
  local list = { "grad", "shape", "grad_fn", "data", "T", "mT", "H", "mH" }
  for name in each(methods) do list[#list + 1] = name end
  return list
end

-- What to write where PyTorch takes an assignment, or a reader of its pages would try one.
local instead = {
  requires_grad = "write x:requires_grad_(true or false)",
  shape = "a shape is changed by x:view, x:reshape, or x:resize_ in place", size = "write x:view or x:reshape",
  dtype = "write x = x:to(dtype)", device = "write x = x:to(device)",
  T = "write x:t():copy_(y)", real = "write x:real():copy_(y)", imag = "write x:imag():copy_(y)",
  name = "tensors have no names", grad_fn = "autograd sets it; x:detach() has none",
}

function mt.__newindex(x, k, v)
  if type(k) ~= "string" then
    if type(v) == "number" and element.set(x, k, v) then return end
    return set(x, k, v)
  end
  if k == "grad" then return rows.set(x, v) end
  if k == "data" then
    if not is_tensor(v) then error("x.data = v: expected a tensor, got " .. type(v), 2) end
    return ops.copy_(B.alias(x, true), v)
  end
  check.fail("a tensor's '%s' cannot be assigned; %s", k, instead[k] or "what can: grad, data, and elements x[i] = v")
end

mt.__add, mt.__sub, mt.__mul, mt.__div, mt.__mod, mt.__pow = ops.add, ops.sub, ops.mul, ops.div, ops.remainder, ops.pow
mt.__unm = function(a) return ops.neg(a) end -- Lua passes the operand twice

--- #x is the size of the first dimension.
local first_size = element.extent("size")
function mt.__len(x)
  local n = first_size(x, 1)
  if n then return n end
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
mt.__tostring = function(x) return require("moth.tensor.print").tensor(x) end
function mt.__call(alias, x)
  if not is_tensor(x) or not B.shares_storage(alias, x) then error("attempt to call a tensor", 2) end
  return methods.data_pointer(x)
end

-- The metatable of tensors that free() has released: the same without a finalizer.
for k, v in each(mt) do
  if k ~= "__gc" then B.Released[k] = v end
end

-- Definitions that need the finished table of functions.
function M.install(moth)
  methods.type_as = ops.type_as
  for name, fn in each(require("moth.tensor.functions").methods) do methods[name] = fn end
  for name, fn in each(methods) do
    if moth[name] == nil and (name == "item" or name == "numel") then moth[name] = fn end
  end
end

return M
