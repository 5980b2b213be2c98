-- One rank ends, stops or leaves while the others are in each of the collectives, every one in a group of its own: all
-- that are left get an error that names it. how: "killed" (before it calls), "killed in the middle", "stopped",
-- "exits".
local ffi = require "ffi"
local moth = require "moth"
local dist = require "moth.distributed"
local calls = require "distributed.calls"

ffi.cdef [[int getpid(void); int kill(int pid, int signal);]]
local KILL, STOP, CONTINUE = 9, 19, 18

local function message_of(fn)
  local ok, message = pcall(fn)
  return not ok and tostring(message) or nil
end

return function(rank, size, how)
  local victim, groups, works = 1, {}, {}
  local pids = dist.all_gather_object(ffi.C.getpid())
  local large = how == "killed in the middle"
  local limit = how == "stopped" and 2 or 60 -- long enough for a question to be answered beside other work
  for k in ipairs(calls) do groups[k] = dist.new_group() end
  local messages = dist.new_group()
  dist.barrier()
  local function start(k)
    local call, group = calls[k], groups[k]
    if call[1] == "permute_ranks" then return end -- it has no asynchronous form
    local o = { rank = rank, size = size, n = large and 500000 or 5, dtype = moth.float32, root = k % size,
      options = { group = group, async = true, timeout = limit } }
    return call[2](o)
  end
  if rank == victim then
    if large then for k in ipairs(calls) do works[k] = start(k) end end
    if how == "exits" then os.exit(0, os.getenv "LD_PRELOAD" ~= nil) end -- for a sanitizer the state is closed, too
    ffi.C.kill(ffi.C.getpid(), how == "stopped" and STOP or KILL)
    -- a rank that was stopped goes on: it is told, too
    for k, group in ipairs(groups) do
      local message = message_of(function()
        dist.barrier { group = group }
        dist.barrier { group = group }
      end)
      assert(message and message:find "does not answer", calls[k][1] .. ": " .. tostring(message))
    end
    return
  end
  local expected = how == "exits" and ("rank %d %%(pid %d on .-%%) has left the group"):format(victim, pids[victim + 1])
    or how == "stopped" and ("rank %d %%(pid %d on .-%%) does not answer: it is stopped"):format(victim,
      pids[victim + 1])
    or ("rank %d %%(pid %d on .-%%) is gone"):format(victim, pids[victim + 1])
  for k, group in ipairs(groups) do
    works[k] = { message_of(function() works[k] = start(k) end) or works[k] }
    works[k][2] = message_of(function()
      works[k].barrier = dist.barrier { group = group, async = true, timeout = limit }
    end)
  end
  local got = message_of(function() dist.recv(moth.empty(2), victim, { group = messages, timeout = limit }) end)
  local late = ("rank %d %%(.-has sent nothing"):format(victim)
  assert(got and (got:find(expected) or how == "stopped" and got:find(late)), "recv: " .. tostring(got))
  for k, group in ipairs(groups) do
    local call, broken = works[k][1], works[k][2]
    local message = message_of(function()
      if type(call) == "string" then error(call) end
      if call then call:wait() end
      if broken then error(broken) end
      works[k].barrier:wait()
    end)
    local what = ("%s, rank %d: %s"):format(calls[k][1], rank, tostring(message))
    assert(message and message:find(expected), what)
    assert(not message:find "timed out" or how == "stopped", what)
    assert(message_of(function() dist.barrier { group = group } end):find(expected), "broken for good")
  end
  if how == "stopped" and rank == 0 then ffi.C.kill(pids[victim + 1], CONTINUE) end
  if how == "stopped" then return end
  -- the others go on in a group of their own
  local left = {}
  for r = 0, size - 1 do if r ~= victim then left[#left + 1] = r end end
  local t = moth.ones(1000)
  dist.all_reduce(t, { group = dist.new_group(left) })
  assert(t[1]:item() == size - 1)
end
