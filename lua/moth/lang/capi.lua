--- The C API through LuaJIT's FFI: moth.C has every function and constant of moth.h and of the ops.
--
--     local C, capi = moth.C, moth.capi
--     local out = ffi.new("MothTensor *[1]")
--     capi.check(C.moth_add(capi.value(x), capi.value(2), capi.value(1), out))   -- x + 1 * 2
--     local y = capi.own(out[0])                                                -- a tensor in Lua
--
-- Positions count from 0 here, arguments are borrowed and results are owned by the caller, as moth.h says; a call
-- returns a status. The FFI checks no types beyond C's: a wrong pointer crashes the process. Calls are compiled, so
-- that Lua cannot run inside them: hooks, custom Functions, dispatch modes, subclasses and kernels written in Lua are
-- an error there ("no Lua state is running"): use the ops of `moth` with these.
local ffi = require "ffi"
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

ffi.cdef(require "moth.cdef")

-- moth_lua.so has loaded it: this is the same library.
local C = ffi.load(B.soname)

local M = { C = C }

local Handle, Value = ffi.typeof("MothHandle *"), ffi.typeof("MothValue")
local is_tensor, is_dtype, is_device = B.is_tensor, B.is_dtype, B.is_device
local DType = {} -- name -> code
for code = 0, tonumber(ffi.cast("int", C.MOTH_NDTYPES)) - 1 do
  DType[ffi.string(C.moth_dtype_name(code))] = code
end

--- Raises the message of a failed call; the status is that of the last call on this thread.
function M.check(status)
  if type(status) ~= "cdata" and type(status) ~= "number" then
    check.fail("[capi.check] expected the status of a call, got %s", type(status))
  end
  if status ~= C.MOTH_OK then B.raise(ffi.string(C.moth_last_error())) end
end

--- The MothTensor * of a tensor: borrowed, valid as long as x is referred to and not freed.
function M.tensor(x)
  local t = ffi.cast(Handle, x).t
  if t == nil then check.fail("capi.tensor: the tensor was released by free()") end
  return t
end

--- A tensor in Lua that takes over the caller's reference to a MothTensor *. nil for NULL.
function M.own(t)
  if t == nil then return nil end
  if not ffi.istype("MothTensor *", t) then
    check.fail("capi.own: expected a MothTensor *, got %s", type(t) == "cdata" and tostring(ffi.typeof(t)) or type(t))
  end
  local x = B.ops.empty({ 0 })
  local handle = ffi.cast(Handle, x)
  C.moth_tensor_release(handle.t)
  handle.t = t
  return x
end

--- The code of a dtype (moth.float32 or its name), a MothDType.
function M.dtype(d) return DType[B.dtype(d).name] end

--- A MothValue of nil, a boolean, a number, a tensor, a string, a dtype or a device. It borrows tensors and strings:
-- they must outlive it.
function M.value(v)
  local value = Value()
  if v == nil then
    value.tag = C.MOTH_V_NONE
  elseif type(v) == "number" then
    if v == math.floor(v) and math.abs(v) <= 2 ^ 53 then
      value.tag, value.u.i = C.MOTH_V_INT, v
    else
      value.tag, value.u.d = C.MOTH_V_FLOAT, v
    end
  elseif is_tensor(v) then
    value.tag, value.u.t = C.MOTH_V_TENSOR, M.tensor(v)
  elseif type(v) == "boolean" then
    value.tag, value.u.b = C.MOTH_V_BOOL, v
  elseif type(v) == "string" then
    value.tag, value.u.s = C.MOTH_V_STRING, v
  elseif is_dtype(v) then
    value.tag, value.u.i = C.MOTH_V_DTYPE, M.dtype(v)
  elseif is_device(v) then
    value.tag, value.u.i = C.MOTH_V_DEVICE, (v.type == "cuda" and C.MOTH_CUDA or C.MOTH_CPU) * 256 + (v.index or 0)
  elseif ffi.istype("MothTensor *", v) then
    value.tag, value.u.t = C.MOTH_V_TENSOR, v
  else
    check.fail("capi.value: expected nil, a boolean, number, tensor, string, dtype or device, got %s", type(v))
  end
  return value
end

--- A list of integers for C (sizes, strides, dimensions from 0): int64_t[n], n.
function M.ints(list)
  return ffi.new("int64_t[?]", math.max(#list, 1), list), #list
end

-- A MothValue, of a list, too; `hold` is a table that keeps borrowed values alive.
local function any_value(v, hold)
  if type(v) ~= "table" then return M.value(v) end
  local value = Value()
  if is_tensor(v[1]) then
    local list = ffi.new("MothTensor *[?]", #v)
    for i, t in ipairs(v) do list[i - 1] = M.tensor(t) end
    value.tag, value.u.tensors, value.n = C.MOTH_V_TENSORS, list, #v
    hold[#hold + 1] = list
  else
    local list, n = M.ints(v)
    value.tag, value.u.ints, value.n = C.MOTH_V_INTS, list, n
    hold[#hold + 1] = list
  end
  return value
end

local metas = ffi.typeof("MothMeta[?]")

--- Describes the results of an op for these arguments, without computing: a list of { shape, stride, offset, dtype,
-- device }, one for each result. Positions count from 0, lists are tables. Errors: those of the call.
--     capi.infer("mm", moth.empty(2, 3), moth.empty(3, 4))[1].shape   -- { 2, 4 }
function M.infer(name, ...)
  local op, n, hold = C.moth_op_find(name), select("#", ...), {}
  if op == nil then check.fail("capi.infer: there is no op '%s'", name) end
  local args, out = ffi.new("MothValue[?]", math.max(n, 1)), metas(C.MOTH_MAX_RESULTS)
  for i = 1, n do args[i - 1] = any_value((select(i, ...)), hold) end
  for i = 0, C.MOTH_MAX_RESULTS - 1 do out[i].dtype = 255 end
  M.check(C.moth_op_infer(op, n, args, out))
  local results = {}
  for i = 0, C.MOTH_MAX_RESULTS - 1 do
    if out[i].dtype == 255 then break end
    local m = { shape = {}, stride = {}, offset = tonumber(out[i].offset),
      dtype = ffi.string(C.moth_dtype_name(out[i].dtype)), device = out[i].device.type }
    for d = 0, out[i].ndim - 1 do
      m.shape[d + 1], m.stride[d + 1] = tonumber(out[i].shape[d]), tonumber(out[i].stride[d])
    end
    results[i + 1] = m
  end
  return results
end

return signature.all(M, { "capi.tensor(Tensor x)", "capi.own(any t?)", "capi.dtype(dtype d)",
  "capi.value(any v?)", "capi.ints(int[] list)",
  "capi.infer(string name, ...)" })
