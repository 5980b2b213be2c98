--- HTTP and coroutines by lua-http: the only file that names it and cqueues. The rest of moth.serve sees requests,
-- conditions, descriptors and time.
--
--     local front = require "moth.serve.front"
--     front.listen { host = "127.0.0.1", port = 0, handler = function(request) request:respond(200, {}, "hello") end }
--     front.spawn(function() front.sleep(1) … end)
--     front.loop()                                   -- until front.stop()
local ffi = require "ffi"
local check = require "moth.utils.check"
local class = require "moth.class"
local frames = require "moth.serve.frames"
local gunzip = require "moth.utils.gunzip"

local M = {}

local cqueues, condition, server, new_headers, errno, signals
local plain_step, plain_shutdown, plain_header, plain_request_line -- of lua-http's streams and connections
local loop -- the controller

--- Whether lua-http is there; else what to do.
function M.available()
  for _, name in ipairs { "cqueues", "http.server" } do
    local ok, message = pcall(require, name)
    if not ok then
      return false, ("moth serve needs lua-http, for Lua 5.1 (Debian: apt-get install lua-http); %s: %s"):format(name,
        tostring(message):match("^[^\n]*"))
    end
  end
  return true
end

local function open()
  if loop then return end
  local ok, message = M.available()
  if not ok then check.fail("[serve] %s", message) end
  cqueues, condition, server = require "cqueues", require "cqueues.condition", require "http.server"
  new_headers, errno, signals = require("http.headers").new, require "cqueues.errno", require "cqueues.signal"
  plain_step = require("http.h1_stream").methods.step
  plain_shutdown = require("http.h1_stream").methods.shutdown
  plain_header = require("http.h1_connection").methods.read_header
  plain_request_line = require("http.h1_connection").methods.read_request_line
  loop = cqueues.new()
end

-- ---- coroutines --------------------------------------------------------------------------------------

--- Runs a function as a coroutine of the loop; an error in it ends the loop.
function M.spawn(fn)
  open()
  loop:wrap(fn)
end

function M.now() return cqueues.monotime() end
function M.sleep(seconds) cqueues.sleep(seconds) end

--- Lets other coroutines run.
function M.pause() cqueues.sleep(0) end

--- Waits for a descriptor: frames.lua's `wait`.
function M.wait(fd, what, seconds)
  local waited = { pollfd = fd, events = what }
  if seconds == nil then
    cqueues.poll(waited)
    return true
  end
  return cqueues.poll(waited, seconds) == waited
end

--- Before a descriptor is closed.
function M.forget(fd) loop:cancel(fd) end

-- ---- the log -------------------------------------------------------------------------------------------

local WHOLE = 4096 -- bytes that a pipe takes at once when it takes any: PIPE_BUF
local dropped = 0

local function put(text)
  for at = 1, #text, WHOLE do
    if not frames.block(2, "w", 0) then return false end
    io.stderr:write(text:sub(at, at + WHOLE - 1))
  end
  return true
end

--- Writes to standard error, and never waits for who reads it: what a full pipe does not take is counted, and left out.
function M.log(...)
  local text = table.concat { ... }
  if dropped > 0 and put(("moth serve: %d messages are left out here: nobody read them\n"):format(dropped)) then
    dropped = 0
  end
  if dropped > 0 or not put(text) then dropped = dropped + 1 end
end

-- ---- conditions and signals ------------------------------------------------------------------------------

local Condition = class "Condition"
function Condition:__init() self.inner = condition.new() end
function Condition:signal() self.inner:signal() end
--- Waits until it is signalled; false: the time is over.
function Condition:wait(seconds)
  if seconds and seconds <= 0 then return false end
  return seconds == nil and self.inner:wait() or seconds ~= nil and self.inner:wait(seconds)
end
function M.condition()
  open()
  return Condition()
end

local caught = { "SIGTERM", "SIGINT", "SIGHUP" }

--- Calls fn("SIGTERM"), "SIGINT" or "SIGHUP" in the loop when that signal comes, from now on.
function M.on_signal(fn)
  open()
  local names, numbers = {}, {}
  for i, name in ipairs(caught) do
    numbers[i] = signals[name]
    names[numbers[i]] = name
  end
  signals.block(unpack(numbers))
  signals.ignore(signals.SIGPIPE) -- a log that nobody reads any more ends no server
  M.blocked = numbers
  local listener = signals.listen(unpack(numbers))
  loop:wrap(function()
    while true do
      local number = listener:wait(3600)
      if number then fn(names[number]) end
    end
  end)
end

local PAUSE = 400 -- of the garbage collector: a front has a small heap; collecting it often takes a fifth of its time

--- Runs until stop().
function M.loop()
  open()
  M.stopped = false
  M.pause_before = collectgarbage("setpause", PAUSE)
  while not M.stopped do
    local ok, message, _, thread = loop:step(1)
    if not ok then
      M.log("moth serve: ", thread and debug.traceback(thread, tostring(message)) or tostring(message), "\n")
    end
  end
end

function M.stop() M.stopped = true end

--- Ends all coroutines, and forgets them; signals do again what they did before.
function M.close()
  loop = nil
  if M.pause_before then collectgarbage("setpause", M.pause_before) end
  M.pause_before = nil
  if M.blocked then signals.unblock(unpack(M.blocked)) end
  M.blocked = nil
end

-- ---- requests ----------------------------------------------------------------------------------------

pcall(ffi.cdef, 'ssize_t moth_recv(int fd, void *to, size_t size, int flags) __asm__("recv");')
local PEEK = 0x2 + 0x40 -- without waiting
local EAGAIN, EINTR = 11, 4
local peeked = ffi.new "uint8_t[1]"

local Request = class "Request"

function Request:header(name) return (self.headers:get(name)) end

--- Whether the client has closed the connection, or its side of it, or has reset it.
function Request:is_gone()
  local socket = self.stream.connection and self.stream.connection.socket
  if not socket then return true end
  local fd = socket:pollfd()
  if fd < 0 then return true end
  local got = tonumber(ffi.C.moth_recv(fd, peeked, 1, PEEK))
  if got < 0 then
    local number = ffi.errno()
    return number ~= EAGAIN and number ~= EINTR
  end
  return got == 0
end

-- Whether a body comes in chunks; else its size in bytes. nil, a status and why: neither can be told.
local function framing(request)
  local headers = request.headers
  local length, second = headers:get "content-length"
  local coding = headers:get_comma_separated "transfer-encoding"
  if coding then
    if coding:lower() ~= "chunked" then return nil, 501, "of Transfer-Encoding, only chunked is known" end
    if length or request.stream.peer_version == 1.0 then
      return nil, 400, "Transfer-Encoding beside Content-Length, or in HTTP/1.0"
    end
    return true
  end
  if second and second ~= length then return nil, 400, "there are two headers Content-Length" end
  if not length then
    if request.method ~= "POST" then return 0 end
    return nil, 411, "send the body with a Content-Length, or in chunks"
  end
  local size = length:find("^%d+$") and tonumber(length)
  if not size then return nil, 400, "Content-Length is no number" end
  return size
end

local SLOWER = 0.001 -- seconds between the pieces of all bodies that are refused together: others come first
local refused = 0 -- bodies that are read to their end for nothing
local PIECE = 2 ^ 18 -- bytes of a piece that is read or written
local TRICKLE = 256 -- bytes: after a smaller piece one waits for more
local LONG, MANY = 0.25, 64 -- seconds of such a wait at most; longer where more than so many wait
local CHUNKS = 2 ^ 15 -- of a body that may be smaller than that, on average
local FAIR = 256 -- parts of a body, which may be bytes, after which they are joined and others have their turn

-- Waits for more of what comes in drips, else a client could make work of each byte: longer than the last time, and
-- the longer the more clients do it. In seconds.
local waiting = 0
local function await_more(wait)
  waiting = waiting + 1
  wait = math.min(wait + 0.002, LONG * math.max(1, waiting / MANY))
  M.sleep(wait)
  waiting = waiting - 1
  return wait
end

-- Large bodies that are refused once they were looked at must not take all the time. By the client's address: when its
-- next large body is looked at (free), and whether one is worked on.
local gates, n_gates = {}, 0
local LARGE = 2 ^ 14 -- bytes
local SHARE, LONGEST = 50, 1 -- times the processor's seconds that the last refused one took; at most so many seconds

local function address_of(request)
  local socket = request.stream.connection and request.stream.connection.socket
  if not socket then return "" end
  local _, address = socket:peername()
  return tostring(address)
end

-- Waits until a large body may be worked on. false: not before the deadline.
local function await_gate(self, deadline)
  local address = address_of(self)
  while true do
    local gate, now = gates[address], M.now()
    if gate and not gate.busy and now > gate.free + LONGEST then
      gates[address], n_gates, gate = nil, n_gates - 1, nil
    end
    if not gate or not gate.busy and now >= gate.free then
      if gate then gate.busy = true end
      self.gate, self.begun = gate or address, os.clock()
      return true
    end
    if now >= deadline then return false end
    M.sleep(math.min(deadline, math.max(gate.free, now + 0.02)) - now)
  end
end

--- The body was looked at, and is another's work from now on: the next large one may come.
function Request:leave_turn()
  if type(self.gate) ~= "table" then return end
  self.gate.busy = false
  self.gate = address_of(self)
end

-- The request is answered: the next large body may be looked at, later if this one was refused.
local function leave_gate(self)
  local gate = self.gate
  if not gate then return end
  self.gate = nil
  if type(gate) == "table" then gate.busy = false end
  if self.status ~= 400 then return end
  if type(gate) == "string" then
    local address = gate
    gate = gates[address]
    if not gate then
      if n_gates > 1000 then gates, n_gates = {}, 0 end
      gate = { free = 0 }
      gates[address], n_gates = gate, n_gates + 1
    end
  end
  gate.free = math.max(gate.free, M.now() + math.min(LONGEST, SHARE * (os.clock() - self.begun)))
end

-- Bodies that are read or worked on: their bytes together, and those since garbage was collected.
local held, passed, collecting = 0, 0, false
local SMALL = 2 ^ 16 -- bytes of a body that is always taken
local MUCH = 2 ^ 25 -- bytes of bodies after which what they have left behind is collected

--- The bytes of the bodies that are read or worked on.
function M.held() return held end

-- Counts n more bytes of a body; false: with them all together have more than `total`.
local function hold(request, n, total)
  local own = (request.holds or 0) + n
  if own > SMALL and total and held + n > total then return false end
  request.holds, held, passed = own, held + n, passed + n
  return true
end

local function collect()
  passed, collecting = 0, false
  collectgarbage()
end

--- The body is not needed any more. What a large one has left behind goes soon.
function Request:let_go()
  leave_gate(self)
  local own = self.holds or 0
  self.holds, held = nil, held - own
  if own <= SMALL then return end
  if passed > MUCH then return collect() end
  if collecting then return end
  collecting = true
  M.spawn(function()
    M.sleep(0.5)
    if collecting then collect() end
  end)
end

--- The body as a string; nil, a status and why: it is larger than `most`, too slow, not whole, or there is no memory
-- for it beside others (total: bytes of all). Of one larger than `keep` nothing is kept: it is read to its end, so that
-- the client reads the answer, and refused with 400 and `why_not` (the fourth value: the connection may go on).
function Request:body(most, seconds, total, keep, why_not)
  local coding = (self:header "content-encoding" or "identity"):lower()
  if coding ~= "identity" and coding ~= "gzip" then
    return nil, 415, "of Content-Encoding, only gzip is known"
  end
  local size, status, why = framing(self)
  if not size then return nil, status, why end
  local in_chunks, too_large = size == true, "the body%s is larger than %.0f bytes"
  if not in_chunks and size > most then return nil, 413, too_large:format((" of %.0f"):format(size), most) end
  if (self:header "expect" or ""):lower() == "100-continue" and size ~= 0 then
    self.stream:write_continue(seconds)
  end
  local whole, parts, got, pieces, turn, deadline = {}, {}, 0, 0, 0, M.now() + seconds
  keep = keep or math.huge
  local waits, slept = 0, 0 -- seconds; bytes that had come at the last wait
  while in_chunks or got < size do
    local chunk, message, number = self.stream:get_next_chunk(deadline - M.now())
    if not chunk then
      if in_chunks and message == nil and number == nil then break end
      if number == errno.ETIMEDOUT then return nil, 408, ("the body took longer than %g s"):format(seconds) end
      if number == errno.EILSEQ then return nil, 400, "the body's chunks cannot be understood" end
      return nil, 400, "the body ended early"
    end
    got, pieces = got + #chunk, pieces + 1
    local socket = self.stream.connection and self.stream.connection.socket
    local more = (in_chunks or got < size) and socket and socket:pending() == 0
    if more and #chunk < TRICKLE then -- else a client could make work of each byte
      if got - slept > TRICKLE then waits = 0 end
      slept = got
      if pieces > 4 then waits = await_more(waits) end
    end
    if got > most then return nil, 413, too_large:format("", most) end
    if in_chunks and pieces > CHUNKS and got < TRICKLE * pieces then
      return nil, 400, ("the body has over %d chunks of less than %d bytes"):format(CHUNKS, TRICKLE)
    end
    if got > keep then
      whole, parts, passed = {}, {}, passed + #chunk
      if passed > MUCH then collect() end
    elseif not hold(self, #chunk, total) then
      return nil, 429, ("other requests have %.0f bytes already: limits.held, --held"):format(held)
    else
      parts[#parts + 1] = chunk
    end
    turn = turn + #chunk
    if pieces % FAIR == 0 or turn >= PIECE then
      if #parts > 1 then whole[#whole + 1], parts = table.concat(parts), {} end
      if got > keep then
        refused = refused + 1
        M.sleep(SLOWER * refused)
        refused = refused - 1
      else
        M.pause()
      end
      turn = 0
    end
  end
  if got > keep then return nil, 400, why_not:format(got), true end
  local body = table.concat(whole) .. table.concat(parts)
  if coding == "gzip" and body ~= "" then
    local allowed = math.min(most, keep)
    local text, wrong, large = gunzip(body, allowed)
    if large then return nil, 413, ("the body expands to over %.0f bytes"):format(allowed) end
    if text and not hold(self, #text, total) then return nil, 429, "other requests have too many bytes already" end
    if not text then return nil, 400, "the body: " .. wrong end
    body = text
  end
  if #body > LARGE and keep < math.huge and not await_gate(self, deadline) then
    return nil, 429, "large requests of this address were refused: those behind them wait"
  end
  return body
end

local WRITE = 30 -- seconds in which a client must take a piece of what is written

-- lua-http sends a head by itself; held, it leaves with the first piece of the body, in one call of the system.
local function held_done(connection)
  local ok, message, number = connection.socket:xwrite("\r\n", "f", 0)
  if not ok then return nil, message, number end
  return true
end

-- Heads that were made before, by their list of fields and their status.
local heads = setmetatable({}, { __mode = "k" })

local function headers_of(status, fields)
  local made = heads[fields]
  if not made then
    made = {}
    heads[fields] = made
  end
  local h = made[status]
  if not h then
    h = new_headers()
    h:append(":status", ("%d"):format(status))
    for i = 1, #fields, 2 do h:append(fields[i], fields[i + 1]) end
    made[status] = h
  end
  return h
end

-- length: of the body that follows at once, or nil.
local function head(self, status, fields, close, length)
  local h, connection, last = headers_of(status, fields), self.stream.connection, self.method == "HEAD"
  local old = self.stream.peer_version == 1.0 and (self:header "connection" or ""):lower() == "keep-alive"
  close = close or self.closes or self.listener.closing
  if close or old then
    h = h:clone()
    h:append("connection", close and "close" or "keep-alive")
  end
  if self.origin then -- of a page whose requests are allowed
    if not (close or old) then h = h:clone() end
    h:append("access-control-allow-origin", self.origin)
    h:append("vary", "origin")
  end
  if length then h:upsert("content-length", ("%d"):format(length)) end
  self.status = status
  if length and length > 0 and not last then connection.write_headers_done = held_done end
  local ok, message, number = self.stream:write_headers(h, last, WRITE)
  connection.write_headers_done = nil -- lua-http's own again
  return ok, message, number
end

--- Answers; fields: { name, value, name, value, … }. close: ends the connection, for a body that was not read.
function Request:respond(status, fields, body, close)
  if self.status then return false end
  if not head(self, status, fields, close, #body) then return false end
  if self.method == "HEAD" then return true end
  local at = 1
  while #body - at >= PIECE do
    if not self.stream:write_chunk(body:sub(at, at + PIECE - 1), false, WRITE) then return false end
    at = at + PIECE
  end
  return self.stream:write_chunk(at > 1 and body:sub(at) or body, true, WRITE)
end

--- Begins an answer in parts; then write(text) and finish().
function Request:begin(status, fields) return head(self, status, fields) end
function Request:write(text) return self.stream:write_chunk(text, false, WRITE) end
function Request:finish() return self.stream:write_chunk("", true, WRITE) end

-- ---- listening -----------------------------------------------------------------------------------------

local SLOW = 10 -- seconds for the headers
local IDLE = 60 -- seconds for which a connection may be silent between its requests

-- lua-http reads what is left of a body when a stream ends, and would go on for ever where the client has closed the
-- connection in the middle of one: its step says true without a byte. And it raises errors of lengths and encodings
-- that it does not know: outside of its own pcall, where the connection would be counted for ever.
local function step(stream, seconds)
  local had_headers, before, state = stream.has_main_headers, stream.stats_recv, stream.state
  local whole, ok, message, number = pcall(plain_step, stream, seconds)
  if not whole then
    stream.is_damaged = true
    return nil, "closed"
  end
  if ok and had_headers and stream.stats_recv == before and stream.state == state then return nil, "closed" end
  return ok, message, number
end

local REST = 2 ^ 19 -- bytes of a body in chunks that are thrown away, so that the client reads the answer

-- A stream that cannot be ended as it should be ends its connection; else that would be counted for ever. What is left
-- of a body lua-http would read chunk by chunk, and let nobody else have a turn.
local function shutdown(stream)
  local connection = stream.connection
  local socket, state = connection.socket, stream.state
  if stream.body_read_type == "chunked" and socket and (state == "open" or state == "half closed (local)")
    and stream.body_write_type then
    local left = REST
    while left > 0 do
      local part = socket:xread(-PIECE, 0)
      if not part or part == "" then break end
      left = left - #part
    end
    socket:shutdown()
    stream:set_state "closed"
    return true
  end
  if pcall(plain_shutdown, stream) then return true end
  pcall(connection.shutdown, connection)
  connection:onidle()(connection)
  return true
end

-- A request that was sent behind another one waits until that one is answered: lua-http does not expect that the second
-- one ends first.
local function await_turn(stream)
  local line = stream.connection.pipeline
  while stream.state ~= "closed" and line:peek() ~= stream do stream.pipeline_cond:wait(1) end
end

-- A line of the head is not there yet: lua-http asks again as soon as a byte of it has come.
local function patient(connection, got, message, number)
  if not got and number == errno.ETIMEDOUT then
    local n = (connection.tries or 0) + 1
    connection.tries = n
    if n > 4 then connection.waited = await_more(connection.waited or 0) end
  end
  return got, message, number
end

local function read_request_line(connection, seconds)
  return patient(connection, plain_request_line(connection, seconds))
end

-- lua-http takes the "\r" of the last "\r\n" for a damaged header where the "\n" comes later.
local function read_header(connection, seconds)
  local socket = connection.socket
  if socket:pending() < 2 then
    local ok, message, number = socket:fill(2, 0)
    if not ok and number == errno.ETIMEDOUT then return patient(connection, nil, message, number) end
  end
  return patient(connection, plain_header(connection, seconds))
end

-- What has come of a chunk: lua-http would wait for the whole, of up to 4 GB, and read it anew with each packet.
-- chunk_left: bytes that are to come; 0: of a chunk whose end is; nil: a chunk's first line is.
local function read_body_chunk(connection, seconds)
  local socket, left, deadline = connection.socket, connection.chunk_left, M.now() + (seconds or math.huge)
  local function damaged() return nil, "damaged", errno.EILSEQ end
  if left == 0 then
    local stop, message, number = socket:xread(2, seconds)
    if not stop then return nil, message, number end
    if stop ~= "\r\n" then return damaged() end
    left, connection.chunk_left = nil, nil
  end
  if not left then
    local line, message, number = socket:xread("*L", math.max(0, deadline - M.now()))
    if not line then return nil, message, number end
    local digits = line:match "^(%x+)[ \t]*\r\n$" or line:match "^(%x+)[ \t]*;.*\r\n$"
    digits = digits and digits:match "^0*(.*)$"
    if not digits or #digits > 8 then return damaged() end
    if digits == "" then return false end
    left = tonumber(digits, 16)
    connection.chunk_left = left
  end
  local part, message, number = socket:xread(-math.min(left, PIECE), math.max(0, deadline - M.now()))
  if part then connection.chunk_left = left - #part end
  return part, message, number
end

-- lua-http would wait for a whole body, in memory of its own. len: negative, of what is to come.
local function read_body_by_length(connection, len, seconds)
  return connection.socket:xread(math.max(len, -PIECE), seconds)
end

local DAMAGED = '{"error":"the headers cannot be understood"}'
-- Where not even the first line can be read, lua-http has no request to answer.
local NO_REQUEST = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: " .. #DAMAGED
  .. "\r\nconnection: close\r\n\r\n" .. DAMAGED

-- Path and query of a request's target, which may be a whole address: "http://name/path".
local function target_of(headers)
  local target = headers:get ":path" or "/"
  local host, path = target:match "^[hH][tT][tT][pP]://([^/?]*)(.*)$"
  if host then
    headers:upsert(":authority", host) -- it counts, not the header Host
    target = path:sub(1, 1) == "/" and path or "/" .. path
  end
  return target:match "^([^?]*)%??(.*)$"
end

local NO_HOST = '{"error":"expected one header Host"}'

local function handle(handler, stream, listener)
  stream.use_zlib, stream.step, stream.shutdown = false, step, shutdown
  local connection = stream.connection
  connection.read_request_line, connection.read_header = read_request_line, read_header
  connection.read_body_chunk = read_body_chunk
  connection.read_body_by_length = read_body_by_length
  await_turn(stream)
  local request = Request()
  request.stream, request.started, request.listener = stream, M.now(), listener
  local headers, _, why = stream:get_headers(SLOW)
  connection.tries, connection.waited = nil, nil
  listener.spoke(stream.connection.socket)
  if not headers then
    local slow = why == errno.ETIMEDOUT
    if stream.state ~= "idle" or stream.is_damaged then
      request.method = "GET"
      request:respond(slow and 408 or 400, { "content-type", "application/json" }, slow
        and '{"error":"the headers took more than 10 s"}' or DAMAGED, true)
    elseif why == errno.EILSEQ and stream.connection.socket then
      stream.connection.socket:xwrite(NO_REQUEST, "n", 1)
      stream.connection:shutdown()
    end
    return
  end
  -- A client that asks for the connection's end after the answer: lua-http would close the reading side as soon as the
  -- body is there, and is_gone could no longer tell whether the client waits.
  request.closes, stream.close_when_done = stream.close_when_done, nil
  request.headers, request.method = headers, headers:get ":method"
  if stream.peer_version == 1.1 and select("#", headers:get ":authority") ~= 1 then -- which of them would count?
    request:respond(400, { "content-type", "application/json" }, NO_HOST, true)
    return
  end
  request.path, request.query = target_of(headers)
  listener.active = listener.active + 1
  local ok, message = pcall(handler, request)
  listener.active = listener.active - 1
  if not ok then error(message, 0) end
  if not connection.answered and not request:is_gone() then
    connection.answered = true
    listener.answered()
  end
end

-- A socket at `path` that a server has left behind is removed; what anything else has there stays.
local function clear(path)
  if #path > 107 then check.fail("[serve] admin: a path of a socket has at most 107 bytes, got %d", #path) end
  local file, why, number = io.open(path, "r+b") -- of a socket: ENXIO
  if file then file:close() end
  if number == errno.ENOENT then return end
  if number ~= errno.ENXIO then check.fail("[serve] admin: %s is there, and no socket", file and path or why) end
  local ok, client = pcall(require("moth.serve.client").connect, path)
  if ok then
    client:close()
    check.fail("[serve] admin: another server listens on %s", path)
  end
  os.remove(path)
end

-- Connections whose first headers have not come, by the client's address, the oldest first: one address has at most
-- `most` of them, else it could take all places. For one more, the oldest that are silent are ended.
local function Strangers(most)
  local lists, places = {}, setmetatable({}, { __mode = "k" })
  local self = {}
  function self.spoke(socket)
    local place = socket and places[socket]
    if not place then return end
    local list = place.list
    places[socket], list[place.at] = nil, nil
    list.n = list.n - 1
    while list.first <= list.last and not list[list.first] do list.first = list.first + 1 end
    if list.n == 0 then lists[list.address] = nil end
  end
  function self.add(socket)
    local _, address = socket:peername()
    address = tostring(address)
    local list = lists[address] or { address = address, first = 1, last = 0, n = 0 }
    for at = list.first, list.last do
      if list.n < most then break end
      local other = list[at]
      local fd = other and other:pollfd() or -1
      if other and (fd < 0 or tonumber(ffi.C.moth_recv(fd, peeked, 1, PEEK)) < 0) then
        self.spoke(other)
        if fd >= 0 then ffi.C.moth_shutdown(fd, 2) end
      end
    end
    lists[address] = list
    list.last, list.n = list.last + 1, list.n + 1
    list[list.last], places[socket] = socket, { list = list, at = list.last }
  end
  return self
end

local ACCEPTED = 4 -- connections that are taken before others have their turn
local UNANSWERED, FORGOTTEN = 128, 200 -- connections that may be without an answer, or end so; so many more each second

-- Who opens connections and waits for no answer must not take the time of those who do: past so many the next ones wait
-- to be taken, in the system's queue.
local function Doubt()
  local n, at = 0, M.now()
  local self = {}
  local function forget()
    local now = M.now()
    n, at = math.max(0, n - FORGOTTEN * (now - at)), now
  end
  function self.add()
    forget()
    n = n + 1
    while n > UNANSWERED do
      M.sleep(1 / FORGOTTEN)
      forget()
    end
  end
  function self.answered() n = math.max(0, n - 1) end
  return self
end

-- lua-http waits for ever for the first byte of a connection: silent ones would take all places. And it takes all that
-- have come before anybody else has a turn.
local function limit_silence(made, seconds, strangers, doubt)
  local add, taken = made.add_socket, 0
  function made:add_socket(socket)
    taken = taken + 1
    if taken % ACCEPTED == 0 then M.pause() end
    self.n_connections = self.n_connections + 1
    strangers.add(socket)
    loop:wrap(function()
      local fd = socket:pollfd()
      local spoke = M.wait(fd, "r", seconds)
      self.n_connections = self.n_connections - 1
      if not spoke or tonumber(ffi.C.moth_recv(fd, peeked, 1, PEEK)) == 0 then strangers.spoke(socket) end
      if spoke then return add(self, socket) end
      M.forget(fd)
      socket:close()
      self.connection_done:signal(1)
    end)
    doubt.add()
    return true
  end
end

--- Listens on host and port (0: chosen by the system) or on a unix socket at `path` (mode 0600). handler(request) runs
-- in a coroutine of its own. Returns a listener: host, port, active (requests that are not answered yet), count(),
-- pause() (the port is closed; connections that are there end with their next answer), close().
function M.listen(o)
  open()
  if o.path then clear(o.path) end
  local listener = { active = 0, closing = false }
  local made, message = server.listen {
    cq = loop, host = o.host, port = o.port, path = o.path, tls = false, version = 1.1, max_concurrent = o.connections,
    reuseaddr = true, mode = o.path and "0600" or nil, mask = o.path and "0177" or nil,
    connection_setup_timeout = SLOW, intra_stream_timeout = o.keep_alive or IDLE,
    onstream = function(_, stream) handle(o.handler, stream, listener) end,
    onerror = function(_, _, what, err)
      if what == "onstream" then M.log("moth serve: ", tostring(err), "\n") end
    end,
  }
  local ok
  if made then
    local strangers = Strangers(math.max(8, math.floor((o.connections or math.huge) / 4)))
    local doubt = Doubt()
    listener.spoke, listener.answered = strangers.spoke, doubt.answered
    limit_silence(made, math.min(SLOW, o.keep_alive or IDLE), strangers, doubt)
    ok, message = made:listen()
  end
  if not ok then
    check.fail("[serve] cannot listen on %s: %s", o.path or ("%s:%s"):format(o.host, o.port), tostring(message))
  end
  local _
  _, listener.host, listener.port = made:localname()
  function listener.pause()
    listener.closing = true
    made:pause()
    cqueues.poll() -- the loop that accepts leaves the socket
    cqueues.poll()
    local late = made.socket and made.socket:accept({ nodelay = true }, 0)
    local any = late ~= nil
    while late do
      made:add_socket(late)
      late = made.socket:accept({ nodelay = true }, 0)
    end
    if made.socket then made.socket:close() end -- who comes now is refused, and waits for nothing
    made.socket = nil
    if any then M.sleep(0.05) end -- for their requests
  end
  function listener.count() return made.n_connections end
  function listener.close()
    made:close()
    if o.path then os.remove(o.path) end
  end
  return listener
end

return M
