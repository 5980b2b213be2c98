-- For specs that run `moth` by a shell: under a sanitizer the program has its library, and a shell that is made to load
-- that of threads crashes. True: there is one.
local ffi = require "ffi"
ffi.cdef "int unsetenv(const char *);"
local is_loaded = os.getenv "LD_PRELOAD" ~= nil
ffi.C.unsetenv "LD_PRELOAD"
return is_loaded
