-- A rank in a thread: see ranks.lua. The first argument is a channel, which needs moth to be there before it comes.
local moth, dist = require "moth", require "moth.distributed"

return function(_, rank, size, where, name)
  moth.set_num_threads(1)
  dist.init_process_group("local", { rank = rank, world_size = size, init_method = where, timeout = 20 })
  require(name)(rank, size)
  dist.destroy_process_group()
end
