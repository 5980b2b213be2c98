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
  it("messages keep their order, whenever they are received", function()
    -- Half of them are asked for while their bytes come in.
    ranks.agree({ size = 2, code = [[
      local x = moth.ones(500000)
      for i = 1, 200 do
        if rank == 0 then
          dist.send(x:fill_(i), 1)
        else
          local s = 0
          for k = 1, i * 7919 % 40000 do s = s + k end
          dist.recv(x, 0)
          assert(x[1]:item() == i and x[500000]:item() == i, "message " .. i .. " is another one")
        end
      end
      print "fine"]] }, "fine\n")
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
