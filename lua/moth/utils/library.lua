--- Opens a library of the system and keeps it loaded till the process ends: what it has made for itself would be lost
-- with the Lua state that closes it.
local ffi = require "ffi"
local check = require "moth.utils.check"

pcall(ffi.cdef, "void *dlopen(const char *path, int mode);")

local LAZY, NODELETE = 1, 0x1000

--- The namespace of the first of these files that is there (a name or a list). None is: nil, or, with where and
-- package, an error of `where` that says which package of Debian has it.
return function(names, where, package)
  names = type(names) == "table" and names or { names }
  for _, soname in ipairs(names) do
    local ok, library = pcall(ffi.load, soname)
    if ok then
      ffi.C.dlopen(soname, LAZY + NODELETE)
      return library
    end
  end
  if where then
    check.fail("%s needs %s, which was not found\nHINT: install Debian's %s", where, names[1], package)
  end
end
