--- ZeroMQ sockets for the Jupyter kernel, by the system's libzmq.so.5, which is opened when first needed.
local ffi = require "ffi"
local check = require "moth.utils.check"
local open_library = require "moth.utils.library"

ffi.cdef [[
typedef struct { unsigned char bytes[64]; } moth_zmq_msg __attribute__((aligned(8)));
typedef struct { void *socket; int fd; short events, revents; } moth_zmq_item;
void *zmq_ctx_new(void);
void *zmq_socket(void *context, int type);
int zmq_bind(void *socket, const char *address);
int zmq_close(void *socket);
int zmq_ctx_term(void *context);
int zmq_setsockopt(void *socket, int option, const void *value, size_t size);
int zmq_getsockopt(void *socket, int option, void *value, size_t *size);
int zmq_msg_init(moth_zmq_msg *message);
int zmq_msg_recv(moth_zmq_msg *message, void *socket, int flags);
int zmq_msg_close(moth_zmq_msg *message);
void *zmq_msg_data(moth_zmq_msg *message);
size_t zmq_msg_size(moth_zmq_msg *message);
int zmq_msg_more(moth_zmq_msg *message);
int zmq_send(void *socket, const void *data, size_t size, int flags);
int zmq_poll(moth_zmq_item *items, int count, long ms);
int zmq_errno(void);
const char *zmq_strerror(int code);
]]

local M = { REP = 4, ROUTER = 6, PUB = 1 }

local LINGER, RCVTIMEO, SNDMORE, EINTR, EAGAIN = 17, 27, 2, 4, 11
local lib, context

local function open()
  if lib then return end
  lib = open_library("libzmq.so.5", "moth kernel", "libzmq5")
  context = lib.zmq_ctx_new()
end

--- Whether the library is there.
function M.available() return open_library "libzmq.so.5" ~= nil end

local function failed(what) check.fail("moth kernel: %s: %s", what, ffi.string(lib.zmq_strerror(lib.zmq_errno()))) end

local Socket = {}
Socket.__index = Socket

--- A socket that listens at an address. timeout: seconds after which receive gives up.
function M.socket(kind, address, timeout)
  open()
  local self = setmetatable({ handle = lib.zmq_socket(context, kind) }, Socket)
  local ms = ffi.new("int[1]", 1000)
  lib.zmq_setsockopt(self.handle, LINGER, ms, 4)
  if timeout then
    ms[0] = timeout * 1000
    lib.zmq_setsockopt(self.handle, RCVTIMEO, ms, 4)
  end
  if lib.zmq_bind(self.handle, address) ~= 0 then failed(address) end
  return self
end

local message = ffi.new "moth_zmq_msg"

--- The parts of the next message, a list of strings; nil: none came in time, or a signal came.
function Socket:receive()
  local parts = {}
  repeat
    lib.zmq_msg_init(message)
    if lib.zmq_msg_recv(message, self.handle, 0) < 0 then
      local code = lib.zmq_errno()
      lib.zmq_msg_close(message)
      if code == EINTR or code == EAGAIN then return nil end
      failed "receive"
    end
    parts[#parts + 1] = ffi.string(lib.zmq_msg_data(message), lib.zmq_msg_size(message))
    local more = lib.zmq_msg_more(message) ~= 0
    lib.zmq_msg_close(message)
  until not more
  return parts
end

--- Sends the parts of a message.
function Socket:send(parts)
  for i, part in ipairs(parts) do
    while lib.zmq_send(self.handle, part, #part, i < #parts and SNDMORE or 0) < 0 do
      if lib.zmq_errno() ~= EINTR then failed "send" end
    end
  end
end

--- Ends it.
function Socket:close() lib.zmq_close(self.handle) end

--- The sockets of a list that have a message, after at most so many seconds (nil: any time); none where a signal came.
function M.poll(sockets, seconds)
  local items = ffi.new("moth_zmq_item[?]", #sockets)
  for i, s in ipairs(sockets) do items[i - 1].socket, items[i - 1].events = s.handle, 1 end
  local n = lib.zmq_poll(items, #sockets, seconds and seconds * 1000 or -1)
  local ready = {}
  for i, s in ipairs(sockets) do if n > 0 and items[i - 1].revents ~= 0 then ready[#ready + 1] = s end end
  return ready
end

--- Ends the library's threads, when all sockets are closed and what they have to send is sent, at most a second later.
function M.close() if lib then lib.zmq_ctx_term(context) end end

return M
