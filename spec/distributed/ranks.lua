-- Runs programs on several ranks, for the specs of this folder: as processes (run) and as threads of this one
-- (threads). The spec holds the store, as the launcher does, so that there is no fixed port. All processes end with the
-- call: they run under `timeout -s KILL`.
local ffi = require "ffi"
local dist = require "moth.distributed"
local B = require "moth_lua"

local M = {}

local LUAJIT = os.getenv("LUAJIT") or "luajit"

-- The library of a sanitizer, which the ranks load, but the shell does not: with that of threads it crashes.
ffi.cdef "int setenv(const char *, const char *, int); int unsetenv(const char *);"
local PRELOAD = os.getenv "LD_PRELOAD"
local SLOW = PRELOAD and 10 or 1

local function shell_of(commands)
  if PRELOAD then ffi.C.unsetenv "LD_PRELOAD" end
  local shell = assert(io.popen(commands, "r"))
  if PRELOAD then ffi.C.setenv("LD_PRELOAD", PRELOAD, 1) end
  return shell
end

local function read(path)
  local f = io.open(path, "rb")
  local text = f and f:read("*a") or ""
  if f then f:close() end
  os.remove(path)
  return text
end

-- o: size; code (a program as text; `dist`, `moth`, `rank`, `size` are defined, the group is joined unless o.join is
-- false), env (a list of "NAME=value", or a function of the rank that gives one), limit (seconds), backend, wrap
-- (a function of the rank: a command that runs another), agent (false: rank 0 holds the store), meanwhile (called while
-- they run with a function that gives the process of a rank, and the store). Returns, by rank + 1, { out, rc }.
function M.run(o)
  local store = dist.TCPStore("127.0.0.1", 0, { is_master = true, token = "specs" })
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write(([[
    io.stdout:setvbuf "no"
    local moth, dist = require "moth", require "moth.distributed"
    local rank, size = tonumber(os.getenv "RANK"), tonumber(os.getenv "WORLD_SIZE")
    %s
    local ok, message = xpcall(function() %s
    end, function(m) return tostring(m) end)
    if not ok then io.stdout:write("ERROR ", message, "\n") os.exit(1) end
    if dist.is_initialized() then dist.destroy_process_group() end]]):format(
    o.join == false and "" or ("dist.init_process_group(%q, { timeout = %g })"):format(o.backend or "gloo",
      o.timeout or 20 * SLOW), o.code))
  f:close()
  local commands = {}
  for rank = 0, o.size - 1 do
    local env = type(o.env) == "function" and o.env(rank) or o.env or {}
    commands[#commands + 1] = ("(RANK=%d WORLD_SIZE=%d LOCAL_RANK=%d MASTER_ADDR=127.0.0.1 MASTER_PORT=%d \z
      MOTH_STORE_TOKEN=specs TORCHELASTIC_USE_AGENT_STORE=%s OMP_NUM_THREADS=1 MOTH_LUAJIT_WARNING=0 %s %s \z
      sh -c 'echo $$ > %s.%d.pid; exec timeout -s KILL %d %s%s %s' > %s.%d 2>&1; echo $? > %s.%d.rc) &"):format(rank,
      o.size, rank, store.port, o.agent == false and "0" or "1", table.concat(env, " "), o.wrap and o.wrap(rank) or "",
      path, rank,
      (o.limit or 20) * SLOW, PRELOAD and ("env LD_PRELOAD=%s "):format(PRELOAD) or "", LUAJIT, path, path, rank, path,
      rank)
  end
  local shell = shell_of(table.concat(commands, "\n") .. "\nwait")
  if o.meanwhile then
    o.meanwhile(function(rank)
      local pid = tonumber(read(("%s.%d.pid"):format(path, rank)))
      local child = io.popen(("ps -o pid= --ppid %d"):format(pid))
      local text = child:read("*a")
      child:close()
      return tonumber(text)
    end, store)
  end
  shell:close()
  local results = {}
  for rank = 0, o.size - 1 do
    local place = ("%s.%d"):format(path, rank)
    results[rank + 1] = { out = read(place), rc = tonumber(read(place .. ".rc")) }
    os.remove(place .. ".pid")
  end
  os.remove(path)
  store:close()
  return results
end

-- All ranks end well, and print the same.
function M.agree(o, text)
  for i, r in ipairs(M.run(o)) do
    assert(r.rc == 0 and r.out == text,
      ("rank %d of %d ended with %s: %s"):format(i - 1, o.size, tostring(r.rc), r.out))
  end
end

local names = 0
-- Runs the function that module `name` returns as fn(rank, size) on threads of the backend "local"; raises the first
-- error.
function M.threads(name, size)
  names = names + 1
  local report, threads, first = B.threads.channel(), {}, nil
  for rank = 0, size - 1 do
    threads[rank + 1] = assert(B.threads.start("distributed.thread", rank, report, B.threads.channel(), rank, size,
      "local://spec" .. names, name))
  end
  for _ = 1, size do
    local got, what, number, message
    repeat got, what, number, message = B.threads.pop(report, 10) until got ~= false
    if what == "ended" and message and not first then first = ("rank %d: %s"):format(number, message) end
  end
  for _, t in ipairs(threads) do B.threads.join(t, 10) end
  assert(not first, first)
end

return M
