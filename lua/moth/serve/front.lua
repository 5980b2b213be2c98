--- A server's front: the loop (loop.lua), HTTP (http.lua) and the sockets it listens on. The rest of moth.serve sees
-- requests, conditions, descriptors and time.
--
--     local front = require "moth.serve.front"
--     front.listen { host = "127.0.0.1", port = 0, handler = function(request) request:respond(200, {}, "hello") end }
--     front.spawn(function() front.sleep(1) … end)
--     front.loop()                                   -- until front.stop()
local ffi = require "ffi"
local check = require "moth.utils.check"
local each = require "moth.each"
local http = require "moth.serve.http"
local loop = require "moth.serve.loop"

local M = {
  spawn = loop.spawn, now = loop.now, sleep = loop.sleep, pause = loop.pause, wait = loop.wait, forget = loop.forget,
  condition = loop.condition, on_signal = loop.on_signal, loop = loop.run, stop = loop.stop, close = loop.close,
}

--- Whether all is there that a server needs; else what to do.
function M.available()
  if ffi.os ~= "Linux" then return false, "moth serve needs Linux" end
  local ok, message = pcall(require, "cjson")
  if ok then return true end
  return false, ("moth serve needs lua-cjson (Debian: apt-get install lua-cjson); %s")
    :format(tostring(message):match("^[^\n]*"))
end

-- ---- listening ---------------------------------------------------------------------------------------

pcall(ffi.cdef, [[
typedef struct moth_addrinfo { int flags, family, kind, protocol; uint32_t size; void *address; char *name;
  struct moth_addrinfo *next; } moth_addrinfo;
int moth_getaddrinfo(const char *host, const char *service, const moth_addrinfo *hints, moth_addrinfo **list)
  __asm__("getaddrinfo");
void moth_freeaddrinfo(moth_addrinfo *list) __asm__("freeaddrinfo");
const char *gai_strerror(int number);]])
pcall(ffi.cdef, [[
int moth_bind(int fd, const void *address, uint32_t size) __asm__("bind");
int moth_listen(int fd, int waiting) __asm__("listen");
int moth_accept(int fd, void *address, uint32_t *size, int flags) __asm__("accept4");
int moth_getsockname(int fd, void *address, uint32_t *size) __asm__("getsockname");
unsigned moth_umask(unsigned mask) __asm__("umask");]])
pcall(ffi.cdef, [[
int moth_socket(int domain, int type, int protocol) __asm__("socket");
int moth_setsockopt(int fd, int level, int name, const void *value, unsigned size) __asm__("setsockopt");
char *strerror(int number);]])
pcall(ffi.cdef, "typedef struct { uint16_t family; char path[108]; } moth_unix;")

local C = ffi.C
local STREAM, NONBLOCK, CLOEXEC = 1, 0x800, 0x80000
local UNIX = 1
local EAGAIN, EINTR, ECONNABORTED = 11, 4, 103
local SOCKET, REUSEADDR, TCP, NODELAY, V6, V6ONLY = 1, 2, 6, 1, 41, 26
local WAITING = 1024 -- connections that the system keeps until they are taken
local one = ffi.new("int[1]", 1)

local function reason() return ffi.string(C.strerror(ffi.errno())) end

-- A socket that listens on an address; nil and why.
local function bound(family, address, size)
  local fd = C.moth_socket(family, STREAM + NONBLOCK + CLOEXEC, 0)
  if fd < 0 then return nil, reason() end
  if family ~= UNIX then C.moth_setsockopt(fd, SOCKET, REUSEADDR, one, 4) end
  if family == 10 then C.moth_setsockopt(fd, V6, V6ONLY, one, 4) end
  if C.moth_bind(fd, address, size) ~= 0 or C.moth_listen(fd, WAITING) ~= 0 then
    local why = reason()
    C.moth_close(fd)
    return nil, why
  end
  return fd
end

-- On host and port: fd, the port; nil and why.
local function on_port(host, port)
  local hints, list = ffi.new "moth_addrinfo", ffi.new "moth_addrinfo *[1]"
  hints.kind = STREAM
  local code = C.moth_getaddrinfo(host, ("%d"):format(port), hints, list)
  if code ~= 0 then return nil, ffi.string(C.gai_strerror(code)) end
  local fd, why
  local at = list[0]
  while at ~= nil and not fd do
    fd, why = bound(at.family, at.address, at.size)
    at = at.next
  end
  C.moth_freeaddrinfo(list[0])
  if not fd then return nil, why end
  local name, size = ffi.new "uint8_t[128]", ffi.new("uint32_t[1]", 128)
  C.moth_getsockname(fd, name, size)
  return fd, name[2] * 256 + name[3]
end

-- On a unix socket, which only its owner may open. One that a server has left behind is taken away.
local function on_path(path)
  local address = ffi.new "moth_unix"
  if #path > 107 then return nil, "the path is longer than 107 bytes" end
  address.family = UNIX
  ffi.copy(address.path, path)
  local ok, other = pcall(require("moth.serve.client").connect, path, { seconds = 1 })
  if ok then
    other:close()
    return nil, "another server listens there"
  end
  if os.execute(("test -S '%s'"):format((path:gsub("'", "'\\''")))) == 0 then os.remove(path) end
  local mask = C.moth_umask(0x7f)
  local fd, why = bound(UNIX, address, ffi.sizeof(address))
  C.moth_umask(mask)
  return fd, why
end

-- Takes connections while there are fewer than the most.
local function accept(listener, fd, most)
  while not listener.draining do
    if listener.n >= most then
      listener.left:wait()
    else
      local taken = C.moth_accept(fd, nil, nil, NONBLOCK + CLOEXEC)
      if taken >= 0 then
        C.moth_setsockopt(taken, TCP, NODELAY, one, 4) -- fails on unix sockets, which need none
        listener.n = listener.n + 1
        loop.spawn(function()
          local ok, message = xpcall(function() http.serve(taken, listener) end, debug.traceback)
          if not ok then
            io.stderr:write("moth serve: ", message, "\n")
            listener.connections[taken] = nil
            http.close(taken)
          end
          listener.n = listener.n - 1
          listener.left:signal()
        end)
      else
        local errno = ffi.errno()
        if errno == EAGAIN then
          loop.wait(fd, "r")
        elseif errno ~= EINTR and errno ~= ECONNABORTED then
          io.stderr:write("moth serve: accept: ", reason(), "\n") -- no descriptors are left
          loop.sleep(0.1)
        end
      end
    end
  end
end

--- Listens on host and port (0: chosen by the system) or on a unix socket at `path` (mode 0600). handler(request) runs
-- in a task of its connection. connections: the most at a time; keep_alive: seconds without a request after which one
-- is closed, 60. Returns { host, port, count(), pause(), close() }; pause() takes no more connections, and ends the
-- others after their next answer.
function M.listen(o)
  local fd, port
  if o.path then fd, port = on_path(o.path) else fd, port = on_port(o.host, o.port) end
  if not fd then
    check.fail("[serve] cannot listen on %s: %s", o.path or ("%s:%s"):format(o.host, o.port), tostring(port))
  end
  local listener = { handler = o.handler, keep_alive = o.keep_alive or 60, connections = {}, n = 0,
    left = loop.condition() }
  loop.spawn(function() accept(listener, fd, o.connections) end)
  local function pause()
    if listener.draining then return end
    listener.draining = true
    http.close(fd)
  end
  return {
    host = o.host, port = port, pause = pause,
    count = function() return listener.n end,
    close = function()
      pause()
      for taken, connection in each(listener.connections) do
        connection.ended = true
        http.close(taken)
      end
      listener.connections = {}
      if o.path then os.remove(o.path) end
    end,
  }
end

return M
