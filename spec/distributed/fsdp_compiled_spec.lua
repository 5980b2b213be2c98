-- fully_shard under moth.compile, on threads and on processes; the ranks check themselves.
local ranks = require "distributed.ranks"

describe("compiled fully_shard #M312", function()
  for _, size in ipairs { 1, 2, 3 } do
    it(("equals one process and uncompiled units, on %d threads"):format(size), function()
      ranks.threads("distributed.each_fsdp_compiled", size)
    end)
  end
  it("equals one process and uncompiled units, on 2 processes", function()
    local code = 'require("distributed.each_fsdp_compiled")(rank, size)'
    for i, r in ipairs(ranks.run { size = 2, code = code }) do
      assert(r.rc == 0, ("rank %d: %s"):format(i - 1, r.out))
    end
  end)
end)
