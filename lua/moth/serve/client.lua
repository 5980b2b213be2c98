--- A small HTTP client, for tests, examples and benchmarks: one connection that stays open, and waits.
--
--     local client = moth.serve.connect(8000)                  -- a port of this machine, or a path of a unix socket
--     local answer = client:request("GET", "/v2")              -- { status, headers, body }
--     client:close()
local ffi = require "ffi"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local signature = require "moth.utils.signature"

pcall(ffi.cdef, [[
typedef struct { uint16_t family; uint8_t port[2]; uint8_t address[4]; uint8_t zero[8]; } moth_inet;
typedef struct { uint16_t family; char path[108]; } moth_unix;
typedef struct { long s, us; } moth_timeval;
int moth_socket(int domain, int type, int protocol) __asm__("socket");
int moth_connect(int fd, const void *address, unsigned size) __asm__("connect");
int moth_close(int fd) __asm__("close");
int moth_setsockopt(int fd, int level, int name, const void *value, unsigned size) __asm__("setsockopt");
char *strerror(int number);]])
pcall(ffi.cdef, 'ssize_t moth_recv(int fd, void *to, size_t size, int flags) __asm__("recv");')
pcall(ffi.cdef, 'ssize_t moth_send(int fd, const void *from, size_t size, int flags) __asm__("send");')

local M = {}
local Client = class "Client"
local CLOEXEC, NOSIGNAL = 0x80000, 0x4000

local function open(self)
  local unix = type(self.where) == "string"
  local fd = ffi.C.moth_socket(unix and 1 or 2, 1 + CLOEXEC, 0)
  local address
  if unix then
    address = ffi.new "moth_unix"
    address.family = 1
    ffi.copy(address.path, self.where:sub(1, 107))
  else
    address = ffi.new "moth_inet"
    address.family = 2
    address.port[0], address.port[1] = math.floor(self.where / 256), self.where % 256
    address.address[0], address.address[3] = 127, 1
  end
  local limit = ffi.new "moth_timeval"
  limit.s = self.seconds
  ffi.C.moth_setsockopt(fd, 1, 20, limit, 16)
  if not unix then ffi.C.moth_setsockopt(fd, 6, 1, ffi.new("int[1]", 1), 4) end
  if ffi.C.moth_connect(fd, address, unix and ffi.sizeof(address) or 16) ~= 0 then
    local why = ffi.string(ffi.C.strerror(ffi.errno()))
    ffi.C.moth_close(fd)
    return nil, why
  end
  self.fd, self.rest = fd, ""
  return true
end

function Client:__init(where, seconds)
  self.where, self.seconds = where, seconds
  local ok, why = open(self)
  if not ok then check.fail("[serve.connect] %s: %s", tostring(where), why) end
end

--- Sends bytes as they are; false: the server has closed the connection.
function Client:send(bytes)
  local from, n = ffi.cast("const char *", bytes), #bytes
  while n > 0 do
    local sent = tonumber(ffi.C.moth_send(self.fd, from, n, NOSIGNAL))
    if sent <= 0 then return false end
    from, n = from + sent, n - sent
  end
  return true
end

local chunk = ffi.new("char[?]", 65536)

-- More bytes; nil: the end, or no byte in `seconds`.
local function more(self)
  if not self.fd then return nil end
  local got = tonumber(ffi.C.moth_recv(self.fd, chunk, 65536, 0))
  return got > 0 and ffi.string(chunk, got) or nil
end

local function read_until(self, mark)
  while true do
    local first, last = self.rest:find(mark, 1, true)
    if first then
      local text = self.rest:sub(1, first - 1)
      self.rest = self.rest:sub(last + 1)
      return text
    end
    local bytes = more(self)
    if not bytes then return nil end
    self.rest = self.rest .. bytes
  end
end

local function read_exactly(self, n)
  local parts, have = { self.rest }, #self.rest
  while have < n do
    local bytes = more(self)
    if not bytes then return nil end
    parts[#parts + 1], have = bytes, have + #bytes
  end
  local all = table.concat(parts)
  self.rest = all:sub(n + 1)
  return all:sub(1, n)
end

--- Reads an answer: { status, headers, body }; nil: the connection has ended. on_chunk(text) gets the parts of a body
-- as they come; false from it ends the reading.
function Client:receive(on_chunk, method)
  local head = read_until(self, "\r\n\r\n")
  if not head then return nil end
  local answer = { status = tonumber(head:match "^HTTP/1%.%d (%d+)"), headers = {}, body = "" }
  for name, value in head:gmatch "\r\n([^:\r\n]+): *([^\r\n]*)" do answer.headers[name:lower()] = value end
  if answer.status == 100 then return self:receive(on_chunk, method) end
  local length = tonumber(answer.headers["content-length"])
  if method == "HEAD" then return answer end
  if length then
    answer.body = read_exactly(self, length)
  elseif answer.headers["transfer-encoding"] == "chunked" then
    local parts = {}
    while true do
      local size = tonumber(read_until(self, "\r\n") or "x", 16)
      if not size then return nil end
      local text = read_exactly(self, size + 2)
      if size == 0 or not text then break end
      parts[#parts + 1] = text:sub(1, -3)
      if on_chunk and on_chunk(parts[#parts]) == false then break end
    end
    answer.body = table.concat(parts)
  end
  if answer.headers.connection == "close" then self:close() end
  return answer.body and answer
end

--- The bytes of a request. headers: { name = value }; a body is JSON where they have no content-type.
function Client.format(method, path, body, headers)
  local lines = { ("%s %s HTTP/1.1\r\nhost: localhost\r\n"):format(method, path) }
  local typed = not body
  for name, value in each(headers or {}) do
    lines[#lines + 1], typed = ("%s: %s\r\n"):format(name, value), typed or name:lower() == "content-type"
  end
  if not typed then lines[#lines + 1] = "content-type: application/json\r\n" end
  if body then lines[#lines + 1] = ("content-length: %d\r\n"):format(#body) end
  return table.concat(lines) .. "\r\n" .. (body or "")
end

--- A request, and its answer { status, headers, body }; nil: there was none. The connection is opened again if need be.
function Client:request(method, path, body, headers, on_chunk)
  if not self.fd and not open(self) then return nil end
  if not self:send(Client.format(method, path, body, headers)) then
    self:close()
    if not open(self) or not self:send(Client.format(method, path, body, headers)) then return nil end
  end
  return self:receive(on_chunk, method)
end

function Client:close()
  if self.fd then ffi.C.moth_close(self.fd) end
  self.fd = nil
end

--- A connection to a port of this machine (a number) or a unix socket (a path); seconds (30): until it gives up.
M.connect = signature("serve.connect(count|path where, *, count seconds=30)", function(where, seconds)
  return Client(where, seconds)
end)
M.Client = Client
return M
