--- The launcher of one machine: starts its workers in rounds, names who failed, starts again. It holds the store (or
-- the launcher of machine 0 does), so no rank's death takes it away. Keys of a run, below run/<round>/: fault (what the
-- workers are told: it breaks their groups), end (why the round is over), done (machines whose workers ended well),
-- preempt (of on_preempt: the workers save when they are told to end), and those of elastic.lua.
local B = require "moth_lua"
local class = require "moth.class"
local Elastic = require "moth.distributed.launch.elastic"
local system = require "moth.utils.system"
local now = system.now
local Rendezvous = require "moth.distributed.launch.rendezvous"
local Workers = require "moth.distributed.launch.workers"

local P = B.process
local GRACE = 2 -- seconds in which workers may say themselves what has broken them
local SILENCE = 5 -- seconds after which another machine's launcher counts as dead
local CATCH = { "CHLD", "HUP", "INT", "TERM", "QUIT", "USR1", "USR2" }
local NUMBERS = { HUP = 1, INT = 2, QUIT = 3, TERM = 15 }

local Agent = class("Agent")

local function say(fmt, ...)
  io.stdout:flush()
  io.stderr:write("moth run: ", fmt:format(...), "\n")
end

--- o: the options of options.lua; words: how a worker is started.
function Agent:__init(o, words)
  self.o, self.words, self.restarts = o, words, 0
  self.id = o.rdzv_id or "none"
end

-- Starting ------------------------------------------------------------------------------------------

local function place_of(self, rank)
  local o = self.o
  if not o.log_dir then return nil end
  local dir = ("%s/%s/attempt_%d/%s"):format(o.log_dir, self.id, self.restarts, rank)
  os.execute("mkdir -p " .. system.quoted(dir))
  return dir
end

--- Starts the worker of a place. rank: in the whole job; nil: one that joins a run (id: its number).
function Agent:start(round, local_rank, rank, id)
  local o, r = self.o, self.rendezvous
  local role, place = o.role or "default", rank or round.first + local_rank -- of one that joins: until it has joined
  local variables = {
    RANK = place, LOCAL_RANK = local_rank, WORLD_SIZE = round.world, LOCAL_WORLD_SIZE = o.max_local,
    GROUP_RANK = round.node, GROUP_WORLD_SIZE = #round.nodes, ROLE_RANK = place, ROLE_WORLD_SIZE = round.world,
    ROLE_NAME = role, MASTER_ADDR = r.host, MASTER_PORT = r.port, MOTH_STORE_TOKEN = r.token,
    MOTH_RUN = round.number, TORCHELASTIC_USE_AGENT_STORE = "True", TORCHELASTIC_RESTART_COUNT = self.restarts,
    TORCHELASTIC_MAX_RESTARTS = o.max_restarts, TORCHELASTIC_RUN_ID = self.id,
    MOTH_WORKER = o.min_local < o.max_local and (id or rank) or nil, MOTH_JOIN = rank == nil and "1" or nil,
  }
  if local_rank > 0 and not os.getenv "MOTH_LUAJIT_WARNING" then variables.MOTH_LUAJIT_WARNING = 0 end
  if not os.getenv "OMP_NUM_THREADS" and o.max_local > 1 then variables.OMP_NUM_THREADS = 1 end
  local list = {}
  for k, v in require "moth.each"(variables) do list[#list + 1] = k .. "=" .. tostring(v) end
  local tee, redirects = o.tee(local_rank), o.redirects(local_rank)
  local dir = place_of(self, rank or "join" .. id)
  local shown = 3 - (dir and redirects or 0)
  if tee > 0 then shown = 3 end
  if o.shown and not o.shown[local_rank] then shown = 0 end
  local words = self.words
  if type(words) == "function" then words = words(rank or id) end
  return self.workers:start { words = words, variables = list, local_rank = local_rank, rank = rank, id = id or rank,
    shown = shown, saved = dir and math.max(redirects, tee, redirects == 0 and tee == 0 and 3 or 0) or 0, dir = dir,
    prefix = tee > 0 and ("[%s%d]:"):format(role, rank or id) or "" }
end

-- What has happened ---------------------------------------------------------------------------------

local function who(self, w)
  return ("%s%s (pid %d%s)"):format(w.rank and "rank " or "worker ", w.rank or w.id, w.pid,
    self.o.max_nodes > 1 and " on " .. self.rendezvous.name or "")
end

-- What a worker died of, in one line.
local function why(w)
  if w.status < 0 then
    local name = P.signal_name(-w.status)
    return ("was killed by signal %d%s"):format(-w.status, name and " (" .. name .. ")" or "")
  end
  local _, message = w.err:error()
  return ("ended with exit code %d%s"):format(w.status, message and ": " .. message or "")
end

--- The same with its name, for errors.
function Agent:cause(w) return ("%s %s"):format(who(self, w), why(w)) end

-- Of those that failed at the same time: one killed by a signal, then one with an error other than of a broken group.
-- The second result: whether even that one only says that another rank has failed.
local function first_of(failed)
  local best, value
  for _, w in ipairs(failed) do
    local _, message = w.err:error()
    local follows = message and (message:find "failed on rank " or message:find "group is broken")
    local v = w.status < 0 and 3 or follows and 0 or message and 2 or 1
    if not best or v > value then best, value = w, v end
  end
  return best, value == 0
end

-- The first error, once more at the end, where it is seen.
local function report(self, w)
  say("%s %s after %.1f s", who(self, w), (why(w):gsub("^(ended with exit code %d+).*", "%1")), w.seconds)
  local text = w.err:error()
  if #text > 0 then
    io.stderr:write("first error, of ", who(self, w), ":\n")
    for _, line in ipairs(text) do io.stderr:write("  ", line, "\n") end
  end
end

-- A round -------------------------------------------------------------------------------------------

-- Tells all machines that the round is over, and all workers why. The first to tell wins.
local function finish(self, round, kind, text)
  local s, run = self.rendezvous.store, "run/" .. round.number .. "/"
  s:compare_set(run .. "end", "", kind)
  self.elastic:fault(text)
end

-- What other machines have to say: "failed", "left" or "changed", or nil.
local function look_around(self, round)
  local r, run = self.rendezvous, "run/" .. round.number .. "/"
  if self.o.max_nodes == 1 then return nil end
  r:beat()
  local kind = r:peek(run .. "end")
  if kind then return kind end
  if r.hosts then
    local n = r:silent(round, SILENCE)[1]
    if n then
      local text = ("machine %d (%s) has not been heard of for %d s"):format(n.rank, n.name, SILENCE)
      finish(self, round, "left", text)
      say("%s", text)
      return "left"
    end
    if #round.nodes < self.o.max_nodes and r:peek(("rdzv/%d/nodes"):format(round.number + 1)) then
      finish(self, round, "changed", "a machine joins: all start again")
      return "changed"
    end
  end
end

-- Runs until all workers of the job have ended well ("done"), or "failed", "left", "changed", or "signal" and its name.
local function watch(self, round)
  local w, r, run = self.workers, self.rendezvous, "run/" .. round.number .. "/"
  local interval, counted = self.o.max_nodes > 1 and self.o.monitor_interval or 3600, false
  while true do
    if #w.list == 0 and not counted then
      counted = true
      r.store:add(run .. "done", 1)
    end
    if counted and (self.o.max_nodes == 1 or tonumber(r:peek(run .. "done")) == #round.nodes) then
      r:leave(run .. "left", #round.nodes)
      return "done"
    end
    local pause = self.elastic.on and math.min(self.elastic:waiting() and 0.02 or 0.2, interval) or interval
    local ended, signals = w:wait(pause)
    for _, name in ipairs(signals) do
      -- Workers of dist.on_preempt save, and end themselves; a second signal does not wait for them.
      if name == "TERM" and not self.preempted and r:peek(run .. "preempt") then
        self.preempted = true
        w:signal(name)
      elseif NUMBERS[name] then
        finish(self, round, "left", ("the launcher was stopped by SIG%s"):format(name))
        return "signal", name
      else
        w:signal(name)
      end
    end
    local failed = {}
    for _, e in ipairs(ended) do
      if e.status == 0 then
        self.elastic:ended(self, round, e)
      elseif not e.is_dropped then
        failed[#failed + 1] = e
      end
    end
    self.elastic:judge(self)
    if #failed > 0 then
      local first, follows = first_of(failed)
      self.failure = first
      if follows and self.o.max_nodes > 1 then -- the machine whose worker that is says so, or is silent
        local deadline, kind = now() + SILENCE + 1
        repeat
          kind = look_around(self, round)
          if not kind then P.wait({}, self.o.monitor_interval) end
        until kind or now() > deadline
        if kind then
          w:stop(kind == "changed" and 0 or GRACE)
          return kind
        end
      end
      local text = self:cause(first)
      if not self.elastic:lost(self, round, failed, text) then
        finish(self, round, "failed", text)
        for _, e in ipairs(w:stop(GRACE)) do
          if e.status ~= 0 then failed[#failed + 1] = e end
        end
        report(self, first)
        return "failed"
      end
      say("%s; the others go on", text)
    end
    self.elastic:admit(round)
    local kind = look_around(self, round)
    if kind then
      if kind == "failed" then say("on another machine %s", self.elastic:reason()) end
      w:stop(kind == "changed" and 0 or GRACE)
      return kind
    end
  end
end

local function code_of(w) return w.status > 0 and w.status or 128 - w.status end

local function rounds(self)
  local o, newest = self.o, nil
  while true do
    local round, signal = self.rendezvous:join(o.max_local, newest)
    if not round then return 128 + (NUMBERS[signal] or 0) end
    newest, self.failure = round.number + 1, nil
    self.rendezvous.heard = nil
    self.elastic = Elastic(o, self.rendezvous.store, round)
    for i = 0, o.max_local - 1 do self:start(round, i, round.first + i) end
    local result, name = watch(self, round)
    if result == "done" then return 0 end
    if result == "signal" then
      self.workers:stop(0, name)
      return 128 + NUMBERS[name]
    end
    if result == "failed" then
      if self.restarts >= o.max_restarts then return self.failure and code_of(self.failure) or 1 end
      self.restarts = self.restarts + 1
      say("all start again (%d of %d)", self.restarts, o.max_restarts)
    elseif result == "left" and o.min_nodes == o.max_nodes then
      say("another machine has left")
      return 1
    end
  end
end

--- Runs the job; returns the exit code.
function Agent:run()
  P.catch(CATCH)
  local ok, code = xpcall(function()
    self.rendezvous = Rendezvous(self.o)
    local name = self.rendezvous:connect()
    if name then return 128 + (NUMBERS[name] or 0) end
    self.workers = Workers()
    return rounds(self)
  end, function(message)
    if type(message) == "string" and message:find "the store at .- is lost" then
      return "moth run: the launcher of machine 0, which has the store, is gone"
    end
    return message
  end)
  if self.workers then self.workers:close() end
  if self.rendezvous then pcall(self.rendezvous.close, self.rendezvous) end
  P.release()
  if ok then return code end
  error(code, 0)
end

return Agent
