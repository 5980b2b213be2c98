--- A server in a process of its own, beside this one: for examples, notebooks and tests.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local now = require("moth.utils.system").now
local signature = require "moth.utils.signature"
local connect = require("moth.serve.client").connect

local P = B.process
local Spawned = class "SpawnedServer"

local BOOT = 'os.exit(require("moth.serve.command").child())'
local START = 120 -- seconds in which it must be ready

-- Reads what the process prints, for at most `seconds`; whether there was something.
local function pump(self, seconds)
  local fds = {}
  for _, name in ipairs { "out", "err" } do
    if self[name] then fds[#fds + 1] = self[name] end
  end
  if #fds == 0 then
    P.wait({}, seconds)
    return false
  end
  local some = false
  for _, fd in ipairs(P.wait(fds, seconds)) do
    local bytes = P.read(fd)
    some = some or bytes ~= nil
    if not bytes then
      P.close(fd)
      if fd == self.out then self.out = nil else self.err = nil end
    elseif fd == self.out then
      self.text = self.text .. bytes
    else
      self.log = (self.log .. bytes):sub(-65536)
    end
  end
  return some
end

function Spawned:__init(options)
  local text = require("cjson").encode(require("moth.serve")._plain("[serve.spawn]", options))
  local words = require("moth.distributed.run").interpreter()
  words[#words + 1], words[#words + 2] = "-e", BOOT
  self.text, self.log = "", ""
  local input
  self.pid, self.out, self.err, input = P.start(words, { "LUA_PATH=" .. package.path, "LUA_CPATH=" .. package.cpath,
    "MOTH_LUAJIT_WARNING=0" }, true)
  P.write(input, text .. "\n")
  self.input = input -- its end ends the server
  local deadline = now() + START
  while true do
    pump(self, 0.05)
    local port = self.text:match "ready on http://[^\n]*:(%d+)\n"
    if port then
      self.port = tonumber(port)
      break
    end
    local ended = not self.out and P.ended(self.pid)
    if ended or now() > deadline then
      if not ended then P.signal(self.pid, "KILL") end
      self.pid = not ended and self.pid or nil
      self:stop()
      check.fail("[serve.spawn] %s", (self.log:gsub("^moth serve: ", ""):gsub("%s+$", "")))
    end
  end
  self.url = ("http://127.0.0.1:%d"):format(self.port)
end

--- A connection of its own to the server: moth.serve.connect.
function Spawned:connect() return connect(self.port) end

--- GET and POST over one connection; { status, headers, body }, or nil.
function Spawned:get(path, headers)
  self.client = self.client or self:connect()
  return self.client:request("GET", path, nil, headers)
end
function Spawned:post(path, body, headers)
  self.client = self.client or self:connect()
  return self.client:request("POST", path, body, headers)
end

--- What it has printed on standard error, at most the last 64 KB.
function Spawned:messages()
  while pump(self, 0) do end -- luacheck: ignore 542
  return self.log
end

--- Ends it: answers what there is, then ends. Returns the exit code.
function Spawned:stop()
  if self.client then self.client:close() end
  if self.input then P.close(self.input) end
  self.input, self.client = nil, nil
  local status, since = nil, now()
  while self.pid do
    status = P.ended(self.pid)
    if status then break end
    if now() - since > 40 then P.signal(self.pid, "KILL") end
    pump(self, 0.01)
  end
  self.pid = nil
  for _, name in ipairs { "out", "err" } do
    if self[name] then
      pump(self, 0)
      if self[name] then P.close(self[name]) end
      self[name] = nil
    end
  end
  return status
end

return {
  --- Starts a server of these options (those of moth.serve) in another process, and waits until its models are ready.
  spawn = signature("serve.spawn(any options)", function(options)
    if type(options) ~= "table" or not check.is_plain(options) then
      check.fail("[serve.spawn] expected a table of options, got %s", class.name(options))
    end
    require("moth.serve")._configure(options)
    return Spawned(options)
  end),
}
