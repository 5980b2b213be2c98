--- moth.distributed.on_preempt: a job whose time is over saves, and is queued again. Slurm (--signal=USR1@120), a spot
-- machine or Kubernetes (SIGTERM) tell one rank or all of them; the ranks agree, all call the function in the same
-- step, and the program ends with status 0.
--
--     local preempted = dist.on_preempt(function() dist.checkpoint.save(state, path) end)
--     for step = first, last do
--       …
--       preempted()                       -- on all ranks, at the same place
--     end
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local collectives = require "moth.distributed.collectives"
local environment = require "moth.distributed.environment"
local groups = require "moth.distributed.group"
local signature = require "moth.utils.signature"
local toolchain = require "moth.utils.toolchain"

local P = B.process

local active, announced = false, false

-- Tells the launcher, once, that it may pass on its signal without ending the groups.
local function announce()
  local store = groups.store()
  if announced or not store then return end
  store:set(groups.run_prefix():gsub("%.%d+/$", "/") .. "preempt", "1") -- of all generations of an elastic run
  announced = true
end

-- Slurm starts the job again, which ends this step.
local function requeue(most)
  local job, before = environment.number "SLURM_JOB_ID", environment.number "SLURM_RESTART_COUNT" or 0
  if not job or before >= most then return end
  io.stdout:flush()
  local pipe = io.popen(("scontrol requeue %d 2>&1"):format(job))
  local said = pipe:read "*a"
  pipe:close()
  if said ~= "" then check.warn("[distributed.on_preempt] scontrol requeue %d: %s", job, said) end
end

--- From now on these signals end no process; each is remembered until the function that is returned is called, by all
-- ranks of the group at the same place of their programs (one all_reduce of four bytes; every: in each so many calls).
-- Where a rank has had a signal, all call fn() and wait for each other, and under Slurm rank 0 queues the job again
-- (requeue: at most so often; 0: never). Then the process ends with status 0; with exit = false the function returns
-- true instead, else false. Without a process group the process is alone. Called with "release", the function has
-- signals end the process as before.
-- Errors: it is set already; a signal that does not exist. An error in fn breaks the group, as any error does.
return signature("distributed.on_preempt(callable fn, *, string signals='USR1 TERM', count every=1, \z
  size requeue=10, bool exit=true, ProcessGroup group?)", function(fn, o)
  if active then check.fail "[distributed.on_preempt] is set already" end
  local names, calls, told = {}, 0, nil
  for name in o.signals:gmatch "[^%s,]+" do names[#names + 1] = name:gsub("^SIG", "") end
  if #names == 0 then check.fail "[distributed.on_preempt] signals: expected names, as 'USR1 TERM'" end
  P.catch(names)
  active = true
  announce()
  local function release()
    P.release()
    active = false
  end
  return function(what)
    if what == "release" then return release() end
    announce()
    told = told or P.caught()
    calls = calls + 1
    if calls % o.every ~= 0 then return false end
    local group = (o.group or groups.is_initialized()) and groups.of(o.group, "on_preempt")
    local stop = told ~= nil
    if group then
      local flag = moth.tensor({ stop and 1 or 0 }, { dtype = moth.int32, device = group.device })
      collectives.all_reduce(flag, { op = "max", group = group })
      stop = flag:item() == 1
    end
    if not stop then return false end
    toolchain.log("dist", false, "preempted%s", told and " by SIG" .. told or "")
    fn()
    if group then collectives.barrier { group = group } end
    if not group or group.rank == 0 then requeue(o.requeue) end
    release()
    if not o.exit then return true end
    if group then groups.destroy_process_group() end
    os.exit(0, true)
  end
end, true)
