--- Scopes in which ops run in a lower dtype, by the policy of their records; functions with a derivative of their own
-- within them.
local B = require "moth_lua"
local within = require "moth.dispatch.within"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"

local M = {}

-- The type of a device ("cuda" of "cuda:1"), which must be one that moth knows.
local function type_of(where, device)
  local types = B.device_types()
  local name = tostring(device):gsub(":%d+$", "")
  if types[name] then return name end
  local names = {}
  for type in each(types) do names[#names + 1] = type end
  table.sort(names)
  check.fail("[%s] expected a device such as \"cpu\" or \"cuda\", got %s; there are: %s", where, tostring(device),
    table.concat(names, ", "))
end

--- Whether a device (default: the CPU) computes in bfloat16: the CPU does; CUDA devices from compute capability 8.0 on.
M.is_bf16_supported = signature("amp.is_bf16_supported(device device?)", function(device)
  if device == nil or type_of("amp.is_bf16_supported", device) ~= "cuda" then return true end
  return require("moth.cuda").is_bf16_supported(device)
end)

-- The dtype of a scope in which none is given: bfloat16, whose range is that of float32; float16 on CUDA devices that
-- have no bfloat16.
local function default_dtype(type)
  if type ~= "cuda" or B.cuda_why() or require("moth.cuda").is_bf16_supported() then return B.dtype("bfloat16") end
  return B.dtype("float16")
end

local allowed = "dtype enabled device device_type cache_enabled"

local function flag(o, name)
  if o[name] == nil then return true end
  if type(o[name]) ~= "boolean" then
    check.fail("[autocast] option '%s': expected true or false, got %s", name, type(o[name]))
  end
  return o[name]
end

-- The argument of the binding's set_autocast.
local function settings(o)
  check.options("autocast", o, allowed)
  local enabled, device = flag(o, "enabled"), o.device
  if device == nil then device = o.device_type end
  local dtype = o.dtype ~= nil and B.dtype(o.dtype) or nil
  if dtype and dtype.name ~= "bfloat16" and dtype.name ~= "float16" then
    check.fail("[autocast] expected bfloat16 or float16, got %s", dtype.name)
  end
  local types = B.device_types()
  if device ~= nil then types = { [type_of("autocast", device)] = true } end
  for name in each(types) do
    types[name] = enabled and (dtype or default_dtype(name))
  end
  types[1] = flag(o, "cache_enabled")
  if enabled and dtype and dtype.name == "float16" then M.used_float16 = true end
  return types
end

--- In fn(...) ops that gain from it run in bfloat16 (or options.dtype), by the policy in their records (amp.lists()).
-- autocast(fn, …), autocast({ dtype=, enabled=, device=, cache_enabled= }, fn, …) or autocast("cuda", { … }, fn, …): on
-- every device, or only on those of one type. Scopes nest; { enabled = false } turns it off inside one. Casts of
-- weights (leaves that require grad) are remembered until the outermost scope ends, unless cache_enabled = false.
-- float64 tensors stay as they are. Call backward() outside: its ops run in the dtypes of the forward ones.
function M.autocast(options, fn, ...)
  if check.is_callable(options) then return M.autocast({}, options, fn, ...) end
  if type(options) == "string" or B.is_device(options) then
    if type(fn) == "table" and not check.is_callable(fn) then
      local o = { device = options }
      for key, value in each(fn) do
        if key == "device" or key == "device_type" then check.fail("[autocast] option '%s' is given twice", key) end
        o[key] = value
      end
      return M.autocast(o, ...)
    end
    return M.autocast({ device = options }, fn, ...)
  end
  local types = settings(options or 0)
  if not check.is_callable(fn) then check.fail("[autocast] expected a function, got %s", type(fn)) end
  return within(B.set_autocast, B.set_autocast, types, fn, ...)
end

local function dtype_of(where, device) return B.autocast_state()[type_of(where, device or "cpu")] end

--- Whether autocast is on here for a type of device (default: any).
M.is_autocast_enabled = signature("amp.is_autocast_enabled(device device?)", function(device)
  if device ~= nil then return dtype_of("is_autocast_enabled", device) and true or false end
  for name, dtype in each(B.autocast_state()) do
    if name ~= 1 and dtype then return true end
  end
  return false
end)
--- The dtype that autocast uses here on a type of device, or would use.
M.get_autocast_dtype = signature("amp.get_autocast_dtype(device device)", function(device)
  return dtype_of("get_autocast_dtype", device) or default_dtype(type_of("get_autocast_dtype", device))
end)
--- Whether casts of weights are remembered here.
M.is_autocast_cache_enabled = signature("amp.is_autocast_cache_enabled()",
  function() return B.autocast_state()[1] end)
--- Whether there is autocast for a type of device.
M.is_autocast_available = signature("amp.is_autocast_available(device device)", function(device)
  return B.device_types()[(tostring(device):gsub(":%d+$", ""))] or false
end)

local low = { bfloat16 = true, float16 = true }

--- For functions made in Lua that lose too much in a lower dtype: tensors, or nil, in float32 where autocast is on for
-- their devices.
function M.wide(x, ...)
  if x and low[B.tensor_dtype(x).name] and B.autocast_state()[B.tensor_device(x).type] then
    x = x:to(B.dtype("float32"))
  end
  if select("#", ...) == 0 then return x end
  return x, M.wide(...)
end

-- functions with a derivative of their own ---------------------------------------------------------------

local function cast_all(value, dtype, types)
  if B.is_tensor(value) then
    local own = B.tensor_dtype(value)
    local floats = own.is_floating_point and own.name ~= "float64"
    if not floats or own == dtype or not types[B.tensor_device(value).type] then return value end
    return value:to(dtype)
  elseif type(value) == "table" and getmetatable(value) == nil then
    local out = {}
    for k, v in each(value) do out[k] = cast_all(v, dtype, types) end
    return out
  end
  return value
end

local function with_state(state, fn, ...)
  return within(B.set_autocast, B.set_autocast, state, fn, ...)
end

--- The forward of an autograd.Function for use under autocast: with { cast_inputs = dtype }, its float tensors are cast
-- to that dtype and it runs with autocast off (a kernel of one's own that knows one dtype); without, it runs as it is.
-- Use custom_bwd for its backward.
M.custom_fwd = signature("amp.custom_fwd(callable fn, *, dtype cast_inputs?, device device_type?)",
function(fn, dtype, device)
  dtype = dtype and B.dtype(dtype)
  local only = device and { [type_of("amp.custom_fwd", device)] = true }
  return function(ctx, ...)
    local now = B.autocast_state()
    local types, on, off = only or B.device_types(), false, {}
    for name in each(types) do
      on = on or now[name] and true
      off[name] = false
    end
    ctx.autocast_of_forward = now
    if not on or not dtype then return fn(ctx, ...) end
    ctx.autocast_of_forward = off
    local n, args = select("#", ...), { ... }
    for i = 1, n do args[i] = cast_all(args[i], dtype, types) end
    return with_state(off, fn, ctx, unpack(args, 1, n))
  end
end)

--- The backward of an autograd.Function whose forward is a custom_fwd: runs with the autocast settings of that.
M.custom_bwd = signature("amp.custom_bwd(callable fn)", function(fn)
  return function(ctx, ...)
    local state = ctx.autocast_of_forward
    if not state then
      check.fail("[amp.custom_bwd] the forward of this function is no amp.custom_fwd")
    end
    return with_state(state, fn, ctx, ...)
  end
end)

return M
