-- Rank 1 leaves the group while the others are in a call, on threads: it is named.
local dist = require "moth.distributed"

return function(rank, size)
  local group = dist.new_group()
  dist.barrier()
  if rank == 1 then
    dist.destroy_process_group(group)
  else
    local ok, message = pcall(dist.barrier, { group = group })
    assert(not ok and message:find "rank 1 has left the group", message)
  end
  assert(size > 1)
end
