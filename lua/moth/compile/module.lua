--- A module whose call is another function: all else is the module's.
local nn_module -- of moth.nn.module, once that is loaded: a function alone needs no nn

local M = {}

local originals = setmetatable({}, { __mode = "k" })

--- Is x a module?
function M.is(x)
  local mt = type(x) == "table" and getmetatable(x)
  return type(mt) == "table" and rawget(mt, "__module") == true
end

--- The module that x stands for, or nil.
function M.original(x) return originals[x] end

--- The function that a stand-in's call is.
function M.call_of(x) return getmetatable(x).__compiled end

-- A method, called of the stand-in, works on the module; what returns the module returns the stand-in.
local function bound(method, m, proxy)
  local function back(first, ...)
    if rawequal(first, m) then first = proxy end
    return first, ...
  end
  return function(self, ...)
    if rawequal(self, proxy) then return back(method(m, ...)) end
    return method(self, ...)
  end
end

--- A stand-in for module m, whose call is `call`: fields are read from m and written to it.
function M.wrap(m, call)
  nn_module = nn_module or require "moth.nn.module"
  local proxy, methods = {}, {}
  local class = getmetatable(m)
  originals[proxy] = m
  return setmetatable(proxy, {
    __module = true,
    __compiled = call,
    __name = class.__name,
    __index = function(_, key)
      local value = m[key]
      if type(value) ~= "function" or class[key] ~= value then return value end
      local method = methods[value]
      if not method then
        method = bound(value, m, proxy)
        methods[value] = method
      end
      return method
    end,
    __newindex = function(_, key, value) m[key] = value end,
    __call = function(_, ...) return call(...) end,
    __tostring = function() return tostring(m) end,
    __names = function() return nn_module.__names(m) end,
    __pairs = function() return next, m end, -- of a Lua that asks for it; in Lua 5.1 pairs() of the stand-in is empty
  })
end

return M
