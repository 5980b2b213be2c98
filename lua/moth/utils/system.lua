--- Clocks, the process id, terminals.
local ffi = require "ffi"
local signature = require "moth.utils.signature"
local M = {}

pcall(ffi.cdef, "int isatty(int fd); int getpid(void);")
pcall(ffi.cdef, "typedef struct { long s, ns; } moth_clock; int clock_gettime(int id, moth_clock *t);")

local instant = ffi.new("moth_clock")
--- Seconds of the monotonic clock.
function M.now()
  ffi.C.clock_gettime(1, instant)
  return tonumber(instant.s) + tonumber(instant.ns) * 1e-9
end

--- Seconds since 1970, with fractions.
function M.time()
  ffi.C.clock_gettime(0, instant)
  return tonumber(instant.s) + tonumber(instant.ns) * 1e-9
end

--- The id of this process.
function M.pid() return ffi.C.getpid() end

--- Whether a file descriptor (1: standard output, 2: standard error) is a terminal that is not "dumb".
function M.is_terminal(fd) return ffi.C.isatty(fd) == 1 and os.getenv("TERM") ~= "dumb" end

return signature.all(M, { "system.time()", "system.pid()", "system.is_terminal(size fd)", "system.now()" })
