--- A program that hangs: rank 1 skips a collective. After the timeout the error on rank 0 says who is missing and in
-- which call; with --fixed it runs through.
--
--     moth run --nproc-per-node 2 examples/hang.lua
--     moth run --nproc-per-node 2 examples/hang.lua --fixed
--
-- MOTH_DISTRIBUTED_DEBUG=DETAIL prints each call; MOTH_DIST_DUMP=path writes the last ones of each rank when it breaks.
local moth = require "moth"
local dist = moth.distributed

dist.init_process_group("gloo", { timeout = 1 }) -- seconds; 600 if not given
local rank = dist.get_rank()
local fixed = moth.cli({ { "--fixed", "no rank skips it" } }).fixed

local function validate()
  local loss = moth.tensor { rank + 1 }
  dist.all_reduce(loss, { op = "avg" }) -- all ranks must come here
  return loss:item()
end

for step = 1, 3 do
  local t = moth.ones(4)
  dist.all_reduce(t)
  if step == 2 then
    local loss
    if fixed then
      loss = validate() -- on all ranks, …
    elseif rank == 0 then
      loss = validate() -- the mistake: a collective under `if rank == 0`
    else
      moth.utils.system.sleep(1.2)
    end
    if rank == 0 then print("validation loss " .. loss) end -- … and only this on one
  end
end
print(("rank %d has ended well"):format(rank))
dist.destroy_process_group()
