--- Clocks, the process id, terminals.
local ffi = require "ffi"
local signature = require "moth.utils.signature"
local M = {}

pcall(ffi.cdef, "int isatty(int fd); int getpid(void);")
-- By names of moth's own: scripts declare clock_gettime, too, with a struct of theirs.
pcall(ffi.cdef, [[
typedef struct { long s, ns; } moth_clock;
int moth_clock_gettime(int id, moth_clock *t) __asm__("clock_gettime");
int moth_nanosleep(const moth_clock *t, moth_clock *left) __asm__("nanosleep");]])

local instant = ffi.new("moth_clock")
--- Seconds of the monotonic clock.
function M.now()
  ffi.C.moth_clock_gettime(1, instant)
  return tonumber(instant.s) + tonumber(instant.ns) * 1e-9
end

pcall(ffi.cdef, [[
typedef struct moth_dirent { uint64_t ino; int64_t off; uint16_t length; uint8_t type; char name[256]; } moth_dirent;
void *opendir(const char *path); int closedir(void *dir);
moth_dirent *moth_readdir(void *dir) __asm__("readdir64");]])

--- The names in a folder, sorted, without hidden ones; nil: there is none.
function M.list(path)
  local dir = ffi.C.opendir(path)
  if dir == nil then return nil end
  local out = {}
  while true do
    local entry = ffi.C.moth_readdir(dir)
    if entry == nil then break end
    local name = ffi.string(entry.name)
    if name:sub(1, 1) ~= "." then out[#out + 1] = name end
  end
  ffi.C.closedir(dir)
  table.sort(out)
  return out
end

--- Whether there is a file or a folder of that path which can be opened.
function M.exists(path)
  local f = io.open(path, "rb")
  if f then f:close() end
  return f ~= nil
end

--- The value of a variable of the environment; nil where it is not set, or empty.
function M.getenv(name)
  local value = os.getenv(name)
  return value ~= "" and value or nil
end

--- 32 hexadecimal digits of chance: what nobody else has, or can guess.
function M.random_digits()
  local f = assert(io.open("/dev/urandom", "rb"))
  local bytes = f:read(16)
  f:close()
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

--- A text as one word of a shell's command.
function M.quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

--- Seconds of processor time that all threads of this process have taken.
function M.cpu_time()
  ffi.C.moth_clock_gettime(2, instant)
  return tonumber(instant.s) + tonumber(instant.ns) * 1e-9
end

--- Seconds since 1970, with fractions.
function M.time()
  ffi.C.moth_clock_gettime(0, instant)
  return tonumber(instant.s) + tonumber(instant.ns) * 1e-9
end

--- Waits for so many seconds, or until a signal comes.
function M.sleep(seconds)
  local t = ffi.new("moth_clock", math.floor(seconds), (seconds % 1) * 1e9)
  ffi.C.moth_nanosleep(t, nil)
end

--- The id of this process.
function M.pid() return ffi.C.getpid() end

--- Whether a file descriptor (1: standard output, 2: standard error) is a terminal that is not "dumb".
function M.is_terminal(fd) return ffi.C.isatty(fd) == 1 and os.getenv("TERM") ~= "dumb" end

return signature.all(M, { "system.time()", "system.pid()", "system.is_terminal(size fd)", "system.now()",
  "system.cpu_time()", "system.random_digits()", "system.list(path path)", "system.exists(path path)",
  "system.getenv(string name)", "system.quoted(string text)", "system.sleep(number seconds)" })
