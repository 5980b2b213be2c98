--- The processes of this machine: started, watched, stopped. Each leads a process group, which is killed with it. A
-- guard, a small shell, kills those that are left when the launcher itself is killed: it sees the end of its input.
local B = require "moth_lua"
local class = require "moth.class"
local now = require("moth.utils.system").now
local Output = require "moth.distributed.launch.output"

local P = B.process
local STOP = 30 -- seconds from SIGTERM to SIGKILL

-- Lines "+ pid" and "- pid"; at the end the groups of all that are left die.
local GUARD = [[trap '' INT TERM HUP QUIT; l=' '; while read -r a p; do case $a in
  +) l="$l-$p ";; *) l="${l%% -$p *} ${l#* -$p }";; esac; done; [ "$l" = ' ' ] || kill -9 $l 2>/dev/null]]

local Workers = class("Workers")

function Workers:__init()
  self.list = {}
  local out, err
  self.guard, out, err, self.wire = P.start({ "/bin/sh", "-c", GUARD }, {}, true)
  P.close(out)
  P.close(err)
end

--- Starts a worker. w: words, variables (a list), local_rank, and whatever else the caller keeps in it; shown (bits:
-- 1 output, 2 errors to the terminal), prefix, dir (or nil), saved (bits: to files in it). Returns w.
function Workers:start(w)
  local pid, out, err = P.start(w.words, w.variables)
  P.write(self.wire, ("+ %d\n"):format(pid))
  w.pid, w.started = pid, now()
  local function stream(fd, bit, to, name)
    local has = function(bits) return math.floor(bits / bit) % 2 == 1 end
    return Output(fd, has(w.shown) and to or nil, w.prefix,
      w.dir and has(w.saved) and ("%s/%s.log"):format(w.dir, name) or nil)
  end
  w.out, w.err = stream(out, 1, io.stdout, "stdout"), stream(err, 2, io.stderr, "stderr")
  self.list[#self.list + 1] = w
  return w
end

--- Waits for output, ends and signals at most `seconds`; returns the workers that have ended since, with status (the
-- exit code, or minus a signal), and the signals that came.
function Workers:wait(seconds)
  local fds, of, ended, signals = {}, {}, {}, {}
  for _, w in ipairs(self.list) do
    for _, stream in ipairs { w.out, w.err } do
      if stream.fd then
        fds[#fds + 1] = stream.fd
        of[stream.fd] = stream
      end
    end
  end
  for _, fd in ipairs(P.wait(fds, seconds)) do of[fd]:pump() end
  local name = P.caught()
  while name do
    if name ~= "CHLD" then signals[#signals + 1] = name end
    name = P.caught()
  end
  for i = #self.list, 1, -1 do
    local w = self.list[i]
    local status = P.ended(w.pid)
    if status then
      w.status, w.seconds = status, now() - w.started
      P.write(self.wire, ("- %d\n"):format(w.pid))
      w.out:finish()
      w.err:finish()
      table.remove(self.list, i)
      table.insert(ended, 1, w)
    end
  end
  return ended, signals
end

--- To all, or to one worker.
function Workers:signal(name, only)
  for _, w in ipairs(only and { only } or self.list) do P.signal(w.pid, name) end
end

--- Stops all: waits for their own end for `grace` seconds, then sends SIGTERM (or `name`), after half a minute, or on a
-- second signal, SIGKILL. Returns those that have ended.
function Workers:stop(grace, name)
  local all, sent, deadline = {}, grace == 0, now() + grace
  if sent then
    self:signal(name or "TERM")
    self:signal "CONT"
    deadline = now() + STOP
  end
  while #self.list > 0 do
    local ended, signals = self:wait(math.max(0, deadline - now()))
    for _, w in ipairs(ended) do all[#all + 1] = w end
    local hurry = false
    for _, s in ipairs(signals) do hurry = hurry or s == "TERM" or s == "INT" or s == "QUIT" end
    if #self.list > 0 and (hurry or now() >= deadline) then
      self:signal(sent and "KILL" or "TERM")
      self:signal "CONT"
      sent, deadline = true, now() + STOP
    end
  end
  return all
end

--- Kills what is left, and ends the guard.
function Workers:close()
  self:signal "KILL"
  while #self.list > 0 do self:wait(1) end
  P.close(self.wire)
  while not P.ended(self.guard) do P.wait({}, 0.01) end
end

return Workers
