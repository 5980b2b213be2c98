-- All collectives, between processes (shared memory, sockets) and between threads (local). The values are checked by
-- the ranks themselves.
local ranks = require "distributed.ranks"

describe("collectives #M353 #M355", function()
  for size = 2, 4, 2 do
    it(("between %d processes"):format(size), function()
      ranks.agree({ size = size, code = 'require("distributed.each_collective")(rank, size) print "fine"' }, "fine\n")
    end)
  end
  it("between 3 processes by sockets", function()
    ranks.agree({ size = 3, backend = "tcp", code = [[
      assert(require("moth_lua").comm.group_engine(dist.new_group().handle) == "tcp")
      require("distributed.each_collective")(rank, size) print "fine"]] }, "fine\n")
  end)
  it("take memory that processes share, if all of them do", function()
    local code = [[print(require("moth_lua").comm.group_engine(dist.new_group().handle))]]
    ranks.agree({ size = 3, code = code }, "shared memory\n")
    ranks.agree({ size = 3, code = code, env = function(rank) return { "MOTH_SHARED_MEMORY=" .. rank % 2 } end },
      "tcp\n")
  end)
  for size = 1, 4 do
    it(("between %d threads"):format(size), function() ranks.threads("distributed.each_collective", size) end)
  end
end)
