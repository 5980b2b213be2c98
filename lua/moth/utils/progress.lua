--- A progress bar on stderr.
--
--     local bar = progress(#batches, { label = "Epoch 1/10" })
--     for ... do ...; bar:update(1, ("loss %.4f"):format(loss)) end
--     bar:finish()
--
-- On a terminal and in a notebook one line is redrawn (at most ten times a second) and erased by finish(); elsewhere a
-- plain line is written every `interval` seconds, so that a short run writes none.
local system = require "moth.utils.system"
local class = require "moth.class"
local fmt = require "moth.lang.fmt"
local signature = require "moth.utils.signature"

local now = system.now

local WIDTH = 24

local function per_second(rate, unit) return (rate < 10 and "%.1f %s/s" or "%.0f %s/s"):format(rate, unit) end

local Progress = class("Progress")

--- @tparam[opt] int total the number of steps; without it, neither percentage nor remaining time is shown
-- @tparam[opt] table o label, unit ("it"), interval (seconds, 10), out (a file, stderr), tty (guessed), clock
Progress.__init = signature.init("progress(number total?, *, string label='', string unit='it', number interval=10, \z
  any out?, bool tty?, function clock?)", function(self, o)
  self.total, self.label, self.unit = o.total, o.label, o.unit
  self.out = o.out or Progress.notebook and io.stdout or io.stderr
  self.clock, self.interval = o.clock or now, o.interval
  self.tty = o.tty
  if self.tty == nil then self.tty = not o.out and (Progress.notebook or system.is_terminal(2)) end
  self.written = 0 -- letters of the line: a notebook has no code that erases it
  self.done, self.message = 0, nil
  self.start = self.clock()
  self.next_draw = self.start + (self.tty and 0 or self.interval)
end)

--- Adds `n` (default 1) finished steps.
function Progress:update(n, message)
  self.done = self.done + (n or 1)
  if message then self.message = message end
  local t = self.clock()
  if t < self.next_draw then return end
  self.next_draw = t + (self.tty and 0.1 or self.interval)
  if self.tty then
    self:redraw(self:line(t))
  else
    self.out:write(self:line(t), "\n")
  end
  self.out:flush()
end

-- Writes a line over the one that stands there.
function Progress:redraw(line)
  local n = select(2, line:gsub("[^\128-\191]", ""))
  if Progress.notebook then
    self.out:write("\r", line, (" "):rep(self.written - n), line == "" and "\r" or "")
    self.written = n
  else
    self.out:write("\r", line, "\27[K")
  end
end

--- The line: label, bar, percentage, count, rate, remaining time, message.
function Progress:line(t)
  local past = math.max((t or self.clock()) - self.start, 1e-9)
  local rate = self.done / past
  local parts = { self.label ~= "" and self.label or nil }
  if self.total and self.total > 0 then
    local share = math.min(self.done / self.total, 1)
    if self.tty then
      local full = math.floor(share * WIDTH + 0.5)
      parts[#parts + 1] = "[" .. ("="):rep(full) .. (" "):rep(WIDTH - full) .. "]"
    end
    parts[#parts + 1] = ("%3d%%"):format(math.floor(share * 100))
    parts[#parts + 1] = ("%d/%d"):format(self.done, self.total)
    parts[#parts + 1] = per_second(rate, self.unit)
    parts[#parts + 1] = "ETA " .. fmt.duration(rate > 0 and (self.total - self.done) / rate or math.huge)
  else
    parts[#parts + 1] = ("%d %s"):format(self.done, self.unit)
    parts[#parts + 1] = per_second(rate, self.unit)
  end
  parts[#parts + 1] = self.message
  return table.concat(parts, " ")
end

--- Erases the bar; with a message, leaves that line instead.
function Progress:finish(message)
  if self.tty then self:redraw "" end
  if message then self.out:write(message, "\n") end
  self.out:flush()
end

Progress.now = now
return Progress
