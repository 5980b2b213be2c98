--- The output of a worker: whole lines to the terminal, or to files, and the last of its errors for the report.
local B = require "moth_lua"
local class = require "moth.class"

local P = B.process
local TAIL = 8192 -- bytes that are kept
local LONG = 65536 -- of a line that is passed on before its end

local Output = class("Output")

--- A stream of a worker. fd: the pipe's end; to: a file of Lua's, or nil; prefix: in front of lines that go there;
-- path: a file that gets them, too, or nil.
function Output:__init(fd, to, prefix, path)
  self.fd, self.to, self.prefix, self.rest, self.tail = fd, to, prefix, "", ""
  if path then self.file = assert(io.open(path, "w")) end
end

-- Whole lines, with the end of the last.
local function put(self, text)
  if self.to then
    local shown = self.prefix == "" and text or self.prefix .. text:sub(1, -2):gsub("\n", "\n" .. self.prefix) .. "\n"
    self.to:write(shown)
    self.to:flush()
  end
  if self.file then
    self.file:write(text)
    self.file:flush()
  end
  self.tail = (self.tail .. text):sub(-TAIL)
end

--- Passes on what there is; false: nothing was there, or the stream has ended.
function Output:pump()
  local bytes = self.fd and P.read(self.fd)
  if not bytes then
    if self.rest ~= "" then put(self, self.rest .. "\n") end
    self.rest = ""
    if self.fd then P.close(self.fd) end
    if self.file then self.file:close() end
    self.fd, self.file = nil, nil
    return false
  end
  local text = self.rest .. bytes
  local lines = text:match "^.*\n" or #text > LONG and text .. "\n" or ""
  if lines ~= "" then put(self, lines) end
  self.rest = text:sub(#lines + 1)
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
  local lines = {}
  for line in self.tail:gmatch "[^\n]+" do lines[#lines + 1] = line end
  for i = #lines, 1, -1 do
    local line = lines[i]
    if line:find "^moth: " and not line:find "^moth: warning" or line:find "^luajit: " then
      return { unpack(lines, i) }, (line:gsub("^%a+: ", ""))
    end
  end
  return {}, nil
end

return Output
