--- The output of a worker: whole lines to the terminal, or to files, and the last lines of its errors for the report.
local B = require "moth_lua"
local class = require "moth.class"

local P = B.process
local TAIL = 60 -- lines

local Output = class("Output")

--- A stream of a worker. fd: the pipe's end; to: a file of Lua's, or nil; prefix: in front of lines that go there;
-- path: a file that gets them, too, or nil.
function Output:__init(fd, to, prefix, path)
  self.fd, self.to, self.prefix, self.rest, self.lines = fd, to, prefix, "", {}
  if path then self.file = assert(io.open(path, "w")) end
end

local function put(self, line)
  if self.to then
    self.to:write(self.prefix, line, "\n")
    self.to:flush()
  end
  if self.file then
    self.file:write(line, "\n")
    self.file:flush()
  end
  self.lines[#self.lines + 1] = line
  if #self.lines > TAIL then table.remove(self.lines, 1) end
end

--- Passes on what there is; false: nothing was there, or the stream has ended.
function Output:pump()
  local bytes = self.fd and P.read(self.fd)
  if not bytes then
    if self.rest ~= "" then put(self, self.rest) end
    self.rest = ""
    if self.fd then P.close(self.fd) end
    if self.file then self.file:close() end
    self.fd, self.file = nil, nil
    return false
  end
  local at, text = 1, self.rest .. bytes
  while true do
    local stop = text:find("\n", at, true)
    if not stop then break end
    put(self, text:sub(at, stop - 1))
    at = stop + 1
  end
  self.rest = text:sub(at)
  return bytes ~= ""
end

--- Passes on the rest of a process that has ended.
function Output:finish()
  while self:pump() do end
  if self.fd then
    P.close(self.fd)
    self.fd = nil
    self:pump()
  end
end

--- The error at the end of this stream, from the interpreter's last message on, as a list of lines; the message. An
-- empty list and nil where there is none.
function Output:error()
  for i = #self.lines, 1, -1 do
    local line = self.lines[i]
    if line:find "^moth: " and not line:find "^moth: warning" or line:find "^luajit: " then
      return { unpack(self.lines, i) }, (line:gsub("^%a+: ", ""))
    end
  end
  return {}, nil
end

return Output
