--- Two processes that know of each other.
--
--     moth run --nproc-per-node 2 examples/dist_hello.lua
--
-- The launcher sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; init_process_group reads them.
local moth = require "moth"
local dist = moth.distributed

dist.init_process_group("gloo")
local rank, size = dist.get_rank(), dist.get_world_size()
print(("rank %d of %d, process %d"):format(rank, size, moth.utils.system.pid()))

local t = moth.tensor { rank + 1 }
dist.all_reduce(t) -- 1 + 2 + …
assert(t:item() == size * (size + 1) / 2)
if rank == 0 then print("the sum of all ranks + 1 is " .. t:item()) end
dist.destroy_process_group()
