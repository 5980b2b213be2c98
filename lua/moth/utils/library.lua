--- Opens a library of the system and keeps it loaded till the process ends: what it has made for itself would be lost
-- with the Lua state that closes it.
local ffi = require "ffi"

pcall(ffi.cdef, "void *dlopen(const char *path, int mode);")

local LAZY, NODELETE = 1, 0x1000

--- @return its namespace, or nil: it is not there
return function(soname)
  local ok, library = pcall(ffi.load, soname)
  if not ok then return nil end
  ffi.C.dlopen(soname, LAZY + NODELETE)
  return library
end
