-- Waiting for other ranks in profiles, on one rank of two.
local moth = require "moth"
local dist = require "moth.distributed"

return function(rank)
  if rank ~= 0 then
    dist.barrier()
    local t = os.clock()
    while os.clock() - t < 0.03 do t = t end
    dist.all_reduce(moth.ones(1000))
    dist.barrier()
    return
  end
  dist.barrier()
  local prof = moth.profiler.profile(function()
    moth.profiler.record_function("step", function() dist.all_reduce(moth.ones(1000)) end)
  end)
  dist.barrier()
  local waited
  for _, e in ipairs(prof:events()) do
    if e.kind == "collective" and e.parent then waited = e end
  end
  assert(waited and waited.name == "all_reduce" and waited.duration > 10000, waited and waited.duration)
  local b = prof:step_breakdown()
  assert(b.communication > 10 and b.communication > b.forward, tostring(b))
end
