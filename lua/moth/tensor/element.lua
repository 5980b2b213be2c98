--- Properties and elements of tensors, one number at a time, in compiled code. Each function here first calls its C
-- function through the FFI, where LuaJIT compiles the call into the loop around it (src/lua/element.c). The C function
-- handles the usual case; for others, and for values that are no tensors, the function of the binding is called, which
-- handles all cases and raises the errors. The FFI checks nothing: the metatable is compared first, which tells that
-- the value is a tensor that has not been released.
local ffi = require "ffi"
local B = require "moth_lua"
local mt, compiled = B.Tensor, B.compiled
local getmetatable, type = getmetatable, type

local function address(name, ctype) return ffi.cast(ctype, compiled[name]) end
local get_only = address("get_only", "double (*)(const void *)")
local get_1 = address("get_1", "double (*)(const void *, int)")
local get_2 = address("get_2", "double (*)(const void *, int, int)")
local get_3 = address("get_3", "double (*)(const void *, int, int, int)")
local set_1 = address("set_1", "bool (*)(const void *, const void *, int, double)")
local set_2 = address("set_2", "bool (*)(const void *, const void *, int, int, double)")
local set_3 = address("set_3", "bool (*)(const void *, const void *, int, int, int, double)")
local state = ffi.cast("const void *", compiled.state)
local get_fact = address("get_fact", "double (*)(const void *, int)")
local get_extent = address("get_extent", "double (*)(const void *, int, double)")

local M = {}

-- Calls in tail position have no frame, and an error would not find the name of the function that made them.
local function done(...) return ... end

local codes = {} -- the codes of element.c
for code, name in ipairs({ "dim", "numel", "storage_offset", "itemsize", "version", "is_contiguous", "is_fake",
  "requires_grad", "dtype", "on_cpu" }) do
  codes[name] = code - 1
end

--- A function of x that returns this property, or calls `ask` in unusual cases: a number
function M.number(fact, ask)
  local code = codes[fact]
  --- A number of the tensor: its elements (numel), dimensions (dim), ….
  return function(x, more)
    if more == nil and getmetatable(x) == mt then
      local n = get_fact(x, code)
      if n >= 0 then return n end
    end
    return done(ask(x, more))
  end
end

--- or a boolean.
function M.boolean(fact, ask)
  local code = codes[fact]
  return function(x, more)
    if more == nil and getmetatable(x) == mt then
      local n = get_fact(x, code)
      if n >= 0 then return n == 1 end
    end
    return done(ask(x, more))
  end
end

--- The same for its dtype
function M.dtype(_, ask)
  local dtypes, code = compiled.dtypes, codes.dtype
  return function(x, more)
    if more == nil and getmetatable(x) == mt then
      local n = get_fact(x, code)
      if n >= 0 then return dtypes[n] end
    end
    return done(ask(x, more))
  end
end

--- and its device.
function M.device(_, ask)
  local cpu, code = B.device("cpu"), codes.on_cpu
  return function(x, more)
    if more == nil and getmetatable(x) == mt and get_fact(x, code) == 1 then return cpu end
    return done(ask(x, more))
  end
end

--- The size ("size") or the stride of dimension dim; nil: there is none, or x is no tensor.
function M.extent(what)
  local stride = what == "stride" and 1 or 0
  return function(x, dim)
    if getmetatable(x) ~= mt then return nil end
    local n = get_extent(x, stride, dim)
    if n == n then return n end
  end
end

local tobit = bit.tobit -- the FFI would cut other numbers to integers

--- x:item(i, j, …): the element at these positions, or the only one; nil: call the general function.
function M.get(x, i, j, k)
  if getmetatable(x) ~= mt then return nil end
  local v
  if i == nil then
    if j ~= nil or k ~= nil then return nil end
    v = get_only(x)
  elseif type(i) ~= "number" or tobit(i) ~= i then
    return nil
  elseif j == nil then
    if k ~= nil then return nil end
    v = get_1(x, i)
  elseif type(j) ~= "number" or tobit(j) ~= j then
    return nil
  elseif k == nil then
    v = get_2(x, i, j)
  elseif type(k) ~= "number" or tobit(k) ~= k then
    return nil
  else
    v = get_3(x, i, j, k)
  end
  if v == v then return v end
end

--- x[key] = v for a number v and a position or a list of up to three; returns whether it was written.
function M.set(x, key, v)
  if getmetatable(x) ~= mt then return false end
  if type(key) == "number" then return tobit(key) == key and set_1(x, state, key, v) end
  if type(key) ~= "table" then return false end
  -- Without the length operator, which would make LuaJIT allocate the table.
  local i, j, k = key[1], key[2], key[3]
  if type(i) ~= "number" or tobit(i) ~= i or key[4] ~= nil or key[5] ~= nil or key[6] ~= nil or key[7] ~= nil
    or key[8] ~= nil or key[9] ~= nil then
    return false
  end
  if j == nil then return k == nil and set_1(x, state, i, v) end
  if type(j) ~= "number" or tobit(j) ~= j then return false end
  if k == nil then return set_2(x, state, i, j, v) end
  return type(k) == "number" and tobit(k) == k and set_3(x, state, i, j, k, v)
end

return M
