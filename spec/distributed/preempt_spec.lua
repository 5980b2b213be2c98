-- on_preempt: a signal to one rank has all of them save in the same step, and end well.
local child = require "spec.child"
local ranks = require "spec.distributed.ranks"

-- Goes on until a signal comes to whom it is sent to; a file says where the job began again.
local PROGRAM = [[
  local step, saved = 0, nil
  local preempted = dist.on_preempt(function() saved = step end, { signals = "USR1 SIGTERM", exit = false, every = 2 })
  if rank == 1 then os.execute("kill -%s $PPID") end
  for i = 1, 10000 do
    step = i
    if preempted() then break end
  end
  local all = dist.all_gather_object(saved)
  io.write(all[1] == saved and all[2] == saved and saved %% 2 == 0 and "saved" or "not alike", " ")
  dist.on_preempt(print, { exit = false })
  io.write(tostring(pcall(dist.on_preempt, print)))]]

describe("on_preempt", function()
  it("has all ranks save in one step", function()
    for _, name in ipairs { "USR1", "TERM" } do
      ranks.agree({ size = 2, code = PROGRAM:format(name), backend = "tcp" }, "saved false")
    end
  end)

  -- The launcher passes SIGTERM on and waits, rather than end the groups.
  it("works below moth run, with a job that Slurm starts again", function()
    local dir = os.tmpname()
    os.remove(dir)
    os.execute("mkdir " .. dir)
    finally(function() os.execute("rm -r " .. dir) end)
    for name, text in pairs {
      scontrol = '#!/bin/sh\necho "$@" >> ' .. dir .. "/asked",
      ["x.lua"] = [[
        local dist = require "moth.distributed"
        dist.init_process_group("tcp", { timeout = 20 })
        local preempted = dist.on_preempt(function() io.stderr:write("saved\n") end, { requeue = 2 })
        if dist.get_rank() == 0 then os.execute "kill -TERM $(ps -o ppid= -p $PPID)" end
        while true do preempted() end]],
    } do
      local f = assert(io.open(dir .. "/" .. name, "w"))
      f:write(text)
      f:close()
    end
    os.execute("chmod +x " .. dir .. "/scontrol")
    local function run(restarts)
      local text, status = child("os.exit(require('moth.distributed.run').command({ '--nproc-per-node', '2', '" .. dir
        .. "/x.lua' }))", { env = ("PATH=%s:$PATH SLURM_JOB_ID=7 SLURM_RESTART_COUNT=%d timeout -s KILL 60"):format(dir,
          restarts) })
      assert.equal("saved\nsaved\n", text)
      assert.equal(0, status)
    end
    run(1)
    run(2) -- often enough
    local f = assert(io.open(dir .. "/asked"))
    assert.equal("requeue 7\n", f:read "*a")
    f:close()
  end)

  it("is for a process alone, too, and names what it does not know", function()
    local text, status = child [[
      local dist = require "moth.distributed"
      print(pcall(dist.on_preempt, print, { signals = "USR9" }))
      print(pcall(dist.on_preempt, print, { signals = "" }))
      local preempted = dist.on_preempt(function() print "saved" end)
      print(preempted())
      os.execute "kill -TERM $PPID"
      preempted()
      print "not here"]]
    assert.matches("^false\t.*there is no signal 'USR9'\nfalse\t.*expected names, as 'USR1 TERM'\nfalse\nsaved\n$",
      text)
    assert.equal(0, status)
  end)
end)
