-- FullyShardedDataParallel, ZeRO, state dicts of cut modules, on threads and on processes.
local ranks = require "distributed.ranks"

describe("wrappers over fully_shard #M375 #M377 #M383 #M384 #M385 #M386", function()
  for _, size in ipairs { 1, 3, 4 } do
    it(("equal one process, on %d threads"):format(size), function() ranks.threads("distributed.each_zero", size) end)
  end
  it("equal one process, on 2 processes", function()
    ranks.agree({ size = 2, code = 'require("distributed.each_zero")(rank, size) print "fine"' }, "fine\n")
  end)
end)
