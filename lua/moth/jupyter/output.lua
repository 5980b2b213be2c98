--- What a notebook's code writes to standard output and error, also from C and from child processes: both are files,
-- which are read again whenever Lua writes, and at the end of each cell.
local ffi = require "ffi"
local now = require("moth.utils.system").now

pcall(ffi.cdef, "int dup2(int from, int to);")
pcall(ffi.cdef, "int dup(int fd);")
pcall(ffi.cdef, "int open(const char *path, int flags, ...);")
pcall(ffi.cdef, "int close(int fd);")
pcall(ffi.cdef, "int truncate(const char *path, long size);")
pcall(ffi.cdef, "int fileno(void *file);")

local M = {}

local O_RDWR, O_APPEND, O_CLOEXEC = 2, 1024, 524288
local MOST, PAUSE = 1e6, 0.05 -- bytes that a file grows to; seconds between two looks

local streams = {}

local function take(s)
  s.file:flush()
  s.reader:seek("cur", 0) -- clears the mark of the end
  local text = s.reader:read "*a"
  if not text or text == "" then return end
  if s.reader:seek() > MOST then
    ffi.C.truncate(s.path, 0)
    s.reader:seek("set", 0)
  end
  M.emit(s.name, text)
end

--- Hands on what was written since.
function M.drain()
  M.last = now()
  for _, s in ipairs(streams) do take(s) end
end

local function look() if now() - M.last > PAUSE then M.drain() end end

--- From now on emit("stdout" or "stderr", text) gets what is written.
function M.capture(emit)
  M.emit, M.last = emit, 0
  for fd, name in ipairs { "stdout", "stderr" } do
    local path = os.tmpname()
    local own = ffi.C.open(path, O_RDWR + O_APPEND + O_CLOEXEC)
    streams[fd] = { name = name, path = path, reader = assert(io.open(path, "rb")), file = io[name] }
    io[name]:flush()
    ffi.C.dup2(own, fd)
    ffi.C.close(own)
  end
  local methods = getmetatable(io.stdout).__index
  local file_write, write, plain_print = methods.write, io.write, print
  methods.write = function(self, ...)
    local a, b = file_write(self, ...)
    if self == io.stdout or self == io.stderr then look() end
    return a, b
  end
  io.write = function(...) -- luacheck: ignore
    local a, b = write(...)
    look()
    return a, b
  end
  print = function(...) -- luacheck: ignore
    plain_print(...)
    look()
  end
end

--- Removes the files.
function M.close() for _, s in ipairs(streams) do os.remove(s.path) end end

return M
