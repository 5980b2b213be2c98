--- One engine process as the front sees it: started, heard, stopped. What it prints goes to the front's standard error
-- with the model's name before each line.
local B = require "moth_lua"
local class = require "moth.class"
local frames = require "moth.serve.frames"
local front = require "moth.serve.front"

local P = B.process
local Worker = class "Worker"

local BOOT = 'require("moth.serve.engine").main()'

--- description: of the engine, with threads; hear(worker, kind, id, pointer, size) gets its frames, ended(worker, why,
-- state before) its end.
function Worker:__init(name, description, hear, ended)
  self.name, self.description, self.hear, self.ended = name, description, hear, ended
  self.state = "loading" -- then "ready", "ended"
  self.outbox, self.asked = {}, 0 -- asked: what it still has to answer
end

-- Passes on the lines of a pipe.
function Worker:relay(fd)
  front.spawn(function()
    local rest = ""
    while true do
      front.wait(fd, "r")
      local bytes = P.read(fd)
      if not bytes then break end
      rest = (rest .. bytes):gsub("([^\n]*)\n", function(line)
        front.log("[", self.name, "] ", line, "\n")
        return ""
      end)
      if #rest > 65536 then rest = rest:sub(-1024) end
    end
    if rest ~= "" then front.log("[", self.name, "] ", rest, "\n") end
    front.forget(fd)
    P.close(fd)
  end)
end

function Worker:start()
  local cjson = require "cjson"
  local d = {}
  for key, value in require("moth.each")(self.description) do d[key] = value end
  d.parent = require("moth.utils.system").pid()
  local words = require("moth.distributed.run").interpreter()
  words[#words + 1], words[#words + 2] = "-e", BOOT
  local pid, out, err, fd = P.start(words, { "MOTH_SERVE_ENGINE=" .. cjson.encode(d), "LUA_PATH=" .. package.path,
    "LUA_CPATH=" .. package.cpath, "MOTH_LUAJIT_WARNING=0" }, true)
  self.pid, self.fd, self.heard = pid, fd, front.now()
  self.channel = frames.channel(fd, front.wait)
  self:relay(out)
  self:relay(err)
  front.spawn(function() self:listen() end)
end

function Worker:listen()
  while true do
    local kind, id, at, size = self.channel:receive()
    if not kind then break end
    self.heard = front.now()
    self.hear(self, kind, id, at, size)
  end
  self:finish()
end

-- The socket is at its end: waits for the process, and kills it where it does not end.
function Worker:finish()
  if self.state == "ended" then return end
  local before = self.state
  self.state = "ended"
  self.channel:close()
  front.forget(self.fd)
  P.close(self.fd)
  local since, status = front.now(), P.ended(self.pid)
  while not status do
    if front.now() - since > (self.stopping and 10 or 1) then P.signal(self.pid, "KILL") end
    front.sleep(0.01)
    status = P.ended(self.pid)
  end
  self.why = self.why or status < 0 and (P.signal_name(-status) or ("signal %d"):format(-status))
    or ("exit code %d"):format(status)
  self.ended(self, self.why, before)
end

--- Sends a frame, after those that are being sent; false: it has ended.
function Worker:send(kind, id, payload)
  if self.state == "ended" then return false end
  self.outbox[#self.outbox + 1] = { kind, id, payload }
  if self.sending then return true end
  self.sending = true
  while #self.outbox > 0 do
    local frame = table.remove(self.outbox, 1)
    if not self.channel:send(frame[1], frame[2], frame[3]) then break end
  end
  self.sending = false
  return true
end

--- Ends it by the end of its input.
function Worker:stop()
  if self.state == "ended" or self.stopping then return end
  self.stopping = true
  self.channel:finish()
end

function Worker:kill(why)
  if self.state == "ended" then return end
  self.why = why
  P.signal(self.pid, "KILL")
end

return Worker
