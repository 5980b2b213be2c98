--- HTTP/1.1 on a connection: requests in, answers out (RFC 9112). One task a connection; no TLS.
--
-- The head of a request is parsed once and remembered: a client that stays sends the same one again and again.
local ffi = require "ffi"
local class = require "moth.class"
local loop = require "moth.serve.loop"

pcall(ffi.cdef, 'ssize_t moth_recv(int fd, void *to, size_t size, int flags) __asm__("recv");')
pcall(ffi.cdef, 'ssize_t moth_send(int fd, const void *from, size_t size, int flags) __asm__("send");')
pcall(ffi.cdef, 'int moth_shutdown(int fd, int how) __asm__("shutdown");')
pcall(ffi.cdef, 'int moth_close(int fd) __asm__("close");')

local C = ffi.C
local PEEK, DONTWAIT, NOSIGNAL = 0x2, 0x40, 0x4000
local EAGAIN, EINTR = 11, 4

local M = {
  SLOW = 10, -- seconds in which a head must have come
  WRITE = 30, -- seconds in which a client must take what is written
}
local MOST_HEAD = 32768
local LINGER = 2 -- seconds in which a client may go on sending what is not read

-- ---- bytes -------------------------------------------------------------------------------------------

local CHUNK = 65536
local chunk = ffi.new("uint8_t[?]", CHUNK)

-- Bytes that have come, waiting until `deadline`; nil and "timeout" or "closed".
local function receive(fd, deadline)
  while true do
    local got = tonumber(C.moth_recv(fd, chunk, CHUNK, DONTWAIT))
    if got > 0 then return ffi.string(chunk, got) end
    if got == 0 then return nil, "closed" end
    local errno = ffi.errno()
    if errno == EAGAIN then
      if not loop.wait(fd, "r", deadline - loop.now()) then return nil, "timeout" end
    elseif errno ~= EINTR then
      return nil, "closed"
    end
  end
end

-- Sends a text; false: the client has left, or does not read.
local function send(fd, text)
  local from, n, deadline = ffi.cast("const uint8_t *", text), #text, nil
  while n > 0 do
    local sent = tonumber(C.moth_send(fd, from, n, DONTWAIT + NOSIGNAL))
    if sent >= 0 then
      from, n = from + sent, n - sent
    else
      local errno = ffi.errno()
      if errno == EAGAIN then
        deadline = deadline or loop.now() + M.WRITE
        if not loop.wait(fd, "w", deadline - loop.now()) then return false end
      elseif errno ~= EINTR then
        return false
      end
    end
  end
  return true
end

-- ---- heads -------------------------------------------------------------------------------------------

local REASONS = { [200] = "OK", [400] = "Bad Request", [401] = "Unauthorized", [404] = "Not Found",
  [405] = "Method Not Allowed", [408] = "Request Timeout", [411] = "Length Required", [413] = "Content Too Large",
  [415] = "Unsupported Media Type", [421] = "Misdirected Request", [422] = "Unprocessable Content",
  [429] = "Too Many Requests", [431] = "Request Header Fields Too Large", [500] = "Internal Server Error",
  [503] = "Service Unavailable", [505] = "HTTP Version Not Supported" }

-- Fields that must not come twice: two readers would choose differently.
local single = { ["content-length"] = true, host = true, ["transfer-encoding"] = true, authorization = true }

-- What a head says: { method, path, query, fields, keep, size }; nil, a status and why.
local function parse(text)
  local line, rest = text:match "^([^\r\n]*)\r\n(.*)$"
  local method, target, version = (line or ""):match "^([%w!#$%%&'*+.^_`|~-]+) ([^ ]+) HTTP/(%d%.%d)$"
  if not method then return nil, 400, "this is no HTTP request" end
  if version ~= "1.1" and version ~= "1.0" then return nil, 505, "expected HTTP/1.1" end
  local fields, at = {}, 1
  while at <= #rest do
    local name, value, last = rest:match("^([%w!#$%%&'*+.^_`|~-]+):[ \t]*([^\r\n%z]*)\r\n()", at)
    if not name then return nil, 400, "a header field is malformed" end
    name, value = name:lower(), value:gsub("[ \t]+$", "")
    if fields[name] and single[name] then return nil, 400, ("there are two fields %s"):format(name) end
    fields[name] = fields[name] and fields[name] .. ", " .. value or value
    at = last
  end
  local host, path = target:match "^[hH][tT][tT][pP][sS]?://([^/?]*)(.*)$"
  if host then
    fields.host, target = host, path:sub(1, 1) == "/" and path or "/" .. path
  elseif version == "1.1" and not fields.host then
    return nil, 400, "the field Host is missing"
  end
  local connection = (fields.connection or ""):lower()
  local keep = not connection:find("close", 1, true)
    and (version == "1.1" or connection:find("keep-alive", 1, true) ~= nil)
  local head = { method = method, fields = fields, keep = keep, old = version == "1.0" }
  head.path, head.query = target:match "^([^?#]*)%??([^#]*)"
  local length = fields["content-length"]
  if length then
    head.size = #length < 16 and length:find "^%d+$" and tonumber(length) or nil
    if not head.size then return nil, 400, "Content-Length is no number" end
  end
  if fields["transfer-encoding"] then
    if length then return nil, 400, "there are both Content-Length and Transfer-Encoding" end
    head.keep = false
  end
  return head
end

local remembered, n_remembered = {}, 0

local function head_of(text)
  local head = remembered[text]
  if head then return head end
  local status, why
  head, status, why = parse(text)
  if not head then return nil, status, why end
  if #text <= 1024 then
    if n_remembered >= 256 then remembered, n_remembered = {}, 0 end
    remembered[text], n_remembered = head, n_remembered + 1
  end
  return head
end

-- ---- requests ----------------------------------------------------------------------------------------

-- method, path, query; status: of the answer, once it has begun; started: when the request had come.
local Request = class "Request"

function Request:header(name) return self.fields[name] end

--- Whether the client has closed the connection.
function Request:is_gone()
  local fd = self.connection.fd
  if not fd then return true end
  local got = tonumber(C.moth_recv(fd, chunk, 1, PEEK + DONTWAIT))
  return got == 0 or got < 0 and ffi.errno() ~= EAGAIN
end

--- The body as a string; nil, a status and why: it is larger than `most`, too slow, not whole.
function Request:body(most, seconds)
  if self.fields["transfer-encoding"] then return nil, 411, "send the body with a Content-Length" end
  if (self.fields["content-encoding"] or "identity") ~= "identity" then
    return nil, 415, "send the body without Content-Encoding"
  end
  local size = self.size
  if not size then return self.method ~= "POST" and "" or nil, 411, "send the body with a Content-Length" end
  if size > most then return nil, 413, ("the body of %d bytes is larger than %d"):format(size, most) end
  local connection = self.connection
  local text = connection.rest
  if #text < size then
    if (self.fields.expect or ""):lower() == "100-continue" and text == "" then
      send(connection.fd, "HTTP/1.1 100 Continue\r\n\r\n")
    end
    local parts, got, deadline = { text }, #text, loop.now() + seconds
    while got < size do
      local bytes, why = receive(connection.fd, deadline)
      if not bytes then
        if why == "timeout" then return nil, 408, ("the body took longer than %g s"):format(seconds) end
        return nil, 400, "the body ended early"
      end
      parts[#parts + 1], got = bytes, got + #bytes
    end
    text = table.concat(parts)
  end
  self.taken = true
  if #text == size then
    connection.rest = ""
    return text
  end
  connection.rest = text:sub(size + 1)
  return text:sub(1, size)
end

local second, date = 0, nil -- the field Date, made once a second

-- The bytes of a head. extra: lines of its own.
local function head_text(self, status, fields, extra)
  local time = os.time()
  if time ~= second then second, date = time, os.date("!date: %a, %d %b %Y %H:%M:%S GMT\r\n", time) end
  local lines = { ("HTTP/1.1 %d %s\r\n"):format(status, REASONS[status] or "Status"), date, extra }
  for i = 1, #fields, 2 do lines[#lines + 1] = fields[i] .. ": " .. fields[i + 1] .. "\r\n" end
  if not self.keep then
    lines[#lines + 1] = "connection: close\r\n"
  elseif self.old then
    lines[#lines + 1] = "connection: keep-alive\r\n"
  end
  lines[#lines + 1] = "\r\n"
  return table.concat(lines)
end

-- Sends a text; a connection that does not take it is given up.
local function put(self, text)
  if self.lost then return false end
  if send(self.connection.fd, text) then return true end
  self.lost, self.keep = true, false
  return false
end

--- Answers; fields: { name, value, name, value, … }. close: ends the connection, for a body that was not read.
function Request:respond(status, fields, body, close)
  if self.status then return false end
  self.status = status
  if close or not self.taken and (self.size or 0) > 0 or self.connection.listener.draining then self.keep = false end
  local text = head_text(self, status, fields, ("content-length: %d\r\n"):format(#body))
  if self.method == "HEAD" then return put(self, text) end
  if #body <= CHUNK then return put(self, text .. body) end
  return put(self, text) and put(self, body)
end

--- Begins an answer in parts; then write(text) and finish().
function Request:begin(status, fields)
  self.status, self.chunked = status, not self.old
  if self.old or self.connection.listener.draining then self.keep = false end
  return put(self, head_text(self, status, fields, self.chunked and "transfer-encoding: chunked\r\n" or ""))
end

function Request:write(text)
  if text == "" then return true end
  return put(self, self.chunked and ("%x\r\n%s\r\n"):format(#text, text) or text)
end

function Request:finish() return not self.chunked or put(self, "0\r\n\r\n") end

-- ---- connections -------------------------------------------------------------------------------------

local JSON = { "content-type", "application/json" }

local function refuse(request, status, why)
  request.method = request.method or "GET"
  request:respond(status, JSON, ('{"error":"%s"}'):format(why), true)
end

-- Reads and drops what the client still sends, so that it sees the answer and no reset.
local function linger(fd)
  C.moth_shutdown(fd, 1)
  local deadline = loop.now() + LINGER
  repeat until loop.now() > deadline or not receive(fd, deadline)
end

-- The next request's head; nil: the connection is to be closed, after an answer where there is a status and why.
local function next_head(self, idle)
  local deadline, begun = loop.now() + idle, false
  while true do
    local first, last
    if self.rest ~= "" then
      local blank = self.rest:match "^[\r\n]+()" -- empty lines before a request are nothing
      if blank then self.rest = self.rest:sub(blank) end
      first, last = self.rest:find("\r\n\r\n", 1, true)
      if (last or #self.rest) > MOST_HEAD then return nil, 431, "the head is larger than 32 KiB" end
    end
    if first then
      local text = self.rest:sub(1, first + 1)
      self.rest = self.rest:sub(last + 1)
      return head_of(text)
    end
    if self.rest ~= "" and not begun then begun, deadline = true, loop.now() + M.SLOW end
    local bytes, why = receive(self.fd, deadline)
    if not bytes then
      if why == "timeout" and begun then
        return nil, 408, ("the headers took more than %g s"):format(M.SLOW)
      end
      return nil
    end
    self.rest = self.rest == "" and bytes or self.rest .. bytes
  end
end

--- Answers the requests of a connection until it ends; closes it. listener: { handler, keep_alive (seconds),
-- connections, draining }.
function M.serve(fd, listener)
  local self = { fd = fd, rest = "", listener = listener }
  listener.connections[fd] = self
  repeat
    local request = Request()
    request.connection = self
    local head, status, why = next_head(self, listener.keep_alive)
    if head then
      request.started, request.method, request.path, request.query = loop.now(), head.method, head.path, head.query
      request.fields, request.size, request.keep, request.old = head.fields, head.size, head.keep, head.old
      listener.handler(request)
      if not request.status then refuse(request, 500, "there was no answer") end
    elseif status then
      refuse(request, status, why)
    end
    if not request.keep and not self.ended and not request.lost and (request.size or status) then linger(fd) end
  until not request.keep or self.ended
  listener.connections[fd] = nil
  self.fd = nil
  if not self.ended then M.close(fd) end
end

function M.close(fd)
  loop.forget(fd)
  C.moth_close(fd)
end

return M
