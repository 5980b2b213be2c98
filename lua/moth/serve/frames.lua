--- Frames between a server's front and its engines, over a socket: u32 size of the payload, u32 kind, u64 request,
-- payload. Both ends run on one machine, so numbers are in its byte order.
--
--     local channel = frames.channel(fd, wait)       -- wait(fd, "r" or "w", seconds): true, or false when time is over
--     channel:send(frames.BATCH, 0, payload)         -- false: the other end is gone
--     local kind, id, pointer, size = channel:receive(seconds)
--
-- receive gives nil and "timeout" or "closed"; what the pointer points to stays until the next call.
local ffi = require "ffi"
local class = require "moth.class"

pcall(ffi.cdef, "typedef struct { uint32_t size, kind; uint64_t id; } moth_frame;")
pcall(ffi.cdef, [[
ssize_t moth_recv(int fd, void *to, size_t size, int flags) __asm__("recv");
ssize_t moth_send(int fd, const void *from, size_t size, int flags) __asm__("send");
typedef struct { int fd; short events, revents; } moth_pollfd;
int moth_poll(moth_pollfd *fds, unsigned long n, int ms) __asm__("poll");]])

pcall(ffi.cdef, "void *memmove(void *to, const void *from, size_t n);")
pcall(ffi.cdef, 'int moth_shutdown(int fd, int how) __asm__("shutdown");')

local M = {}

-- ---- kinds -----------------------------------------------------------------------------------------

M.READY = 1 -- engine: JSON of the signature; it has loaded and answered a request of its own
M.FAILED = 2 -- engine: why it cannot load; it ends
M.BATCH = 3 -- front: requests of one batch (engine.lua)
M.RESULT = 4 -- engine: their results
M.REQUEST = 5 -- front: JSON of a request to an engine of steps
M.CANCEL = 6 -- front: its client is gone
M.PIECE = 7 -- engine: JSON of a part of an answer
M.ALIVE = 8 -- engine: JSON of its state, at least once a second while it works

local MOST = 2 ^ 31
local EAGAIN, EINTR = 11, 4
local DONTWAIT, NOSIGNAL = 0x40, 0x4000
local SIZE = 16

-- ---- the channel -----------------------------------------------------------------------------------

local Channel = class "Channel"

function Channel:__init(fd, wait)
  self.fd, self.wait = fd, wait
  self.capacity = 65536
  self.buffer = ffi.new("uint8_t[?]", self.capacity)
  self.first, self.last = 0, 0 -- the bytes first … last - 1 have come
  self.header = ffi.new "moth_frame"
end

-- Sends n bytes; false: the other end is gone.
local function put(self, bytes, n)
  local from = ffi.cast("const uint8_t *", bytes)
  while n > 0 do
    local sent = tonumber(ffi.C.moth_send(self.fd, from, n, DONTWAIT + NOSIGNAL))
    if sent >= 0 then
      from, n = from + sent, n - sent
    else
      local errno = ffi.errno()
      if errno == EAGAIN then
        self.wait(self.fd, "w")
      elseif errno ~= EINTR then
        return false
      end
    end
    if self.closed then return false end
  end
  return true
end

--- Sends a frame. Only one caller at a time. A payload is a string, or a list of strings.
function Channel:send(kind, id, payload)
  if self.closed then return false end
  local list = type(payload) == "table" and payload or { payload }
  local size = 0
  for _, part in ipairs(list) do size = size + #part end
  local header = ffi.new "moth_frame"
  header.size, header.kind, header.id = size, kind, id
  if size <= 65536 then return put(self, ffi.string(header, SIZE) .. table.concat(list), SIZE + size) end
  if not put(self, header, SIZE) then return false end
  for _, part in ipairs(list) do
    if not put(self, part, #part) then return false end
  end
  return true
end

-- Makes the buffer hold n bytes from `first` on.
local function reserve(self, n)
  if n <= self.capacity - self.first then return end
  local kept = self.last - self.first
  local buffer = self.buffer
  if n > self.capacity then
    self.capacity = math.max(n, 2 * self.capacity)
    buffer = ffi.new("uint8_t[?]", self.capacity)
    ffi.copy(buffer, self.buffer + self.first, kept)
  else
    ffi.C.memmove(buffer, self.buffer + self.first, kept)
  end
  self.buffer, self.first, self.last = buffer, 0, kept
end

-- Waits until n bytes have come; seconds = 0: takes only what is there.
local function fill(self, n, seconds)
  reserve(self, n)
  while self.last - self.first < n do
    local got = tonumber(ffi.C.moth_recv(self.fd, self.buffer + self.last, self.capacity - self.last, DONTWAIT))
    if self.closed or got == 0 then return nil, "closed" end
    if got > 0 then
      self.last = self.last + got
    else
      local errno = ffi.errno()
      if errno == EAGAIN then
        if not self.wait(self.fd, "r", seconds) then return nil, "timeout" end
      elseif errno ~= EINTR then
        return nil, "closed"
      end
    end
  end
  return true
end

--- The next frame: kind, id, pointer and size of the payload.
function Channel:receive(seconds)
  if self.first == self.last then
    self.first, self.last = 0, 0
    if self.capacity > 2 ^ 22 then -- a large one is not held on to
      self.capacity = 65536
      self.buffer = ffi.new("uint8_t[?]", self.capacity)
    end
  end
  local ok, why = fill(self, SIZE, seconds)
  if not ok then return nil, why end
  ffi.copy(self.header, self.buffer + self.first, SIZE)
  local size, kind, id = self.header.size, self.header.kind, tonumber(self.header.id)
  if size > MOST then return nil, "closed" end
  ok, why = fill(self, SIZE + size, seconds)
  if not ok then return nil, why end
  local at = self.buffer + self.first + SIZE
  self.first = self.first + SIZE + size
  return kind, id, at, size
end

--- No more frames: a receive that waits ends with "closed". The descriptor stays open.
function Channel:close() self.closed = true end

--- Tells the other end that no more is sent; it may still answer.
function Channel:finish() ffi.C.moth_shutdown(self.fd, 1) end

function M.channel(...) return Channel(...) end

-- ---- waiting, without coroutines ---------------------------------------------------------------------

local POLLIN, POLLOUT = 1, 4

--- Waits as an engine does: the whole process.
function M.block(fd, what, seconds)
  local p = ffi.new("moth_pollfd[1]")
  p[0].fd, p[0].events = fd, what == "w" and POLLOUT or POLLIN
  return ffi.C.moth_poll(p, 1, seconds and math.ceil(seconds * 1000) or -1) > 0
end

return M
