-- What the specs of kernels share: each is run as compiled C and by the interpreter.
local ffi = require "ffi"
pcall(ffi.cdef, "int setenv(const char *name, const char *value, int overwrite); int unsetenv(const char *name);")

local M = {}

--- Runs f with variables of the environment, which it gives back.
function M.with(variables, f)
  local before = {}
  for name, value in pairs(variables) do
    before[name] = os.getenv(name) or false
    ffi.C.setenv(name, value, 1)
  end
  local ok, e = pcall(f)
  for name, value in pairs(before) do
    if value then ffi.C.setenv(name, value, 1) else ffi.C.unsetenv(name) end
  end
  if not ok then error(e, 0) end
end

--- Runs f twice: compiled, and interpreted. f gets the name of the way.
function M.both(f)
  f "compiled"
  M.with({ MOTH_KERNEL_INTERPRET = "1" }, function() f "interpreted" end)
end

return M
