-- fully_shard, on threads and on processes; the ranks check themselves.
local ranks = require "distributed.ranks"

describe("fully_shard #M374 #M376 #M378 #M382 #M404", function()
  for _, size in ipairs { 1, 2, 3, 4, 8 } do
    it(("equals one process, on %d threads"):format(size), function() ranks.threads("distributed.each_fsdp", size) end)
  end
  it("equals one process, on 2 processes; its peak is three units #M379 #M380", function()
    local results = ranks.run { size = 2, code = 'require("distributed.each_fsdp")(rank, size)' }
    for i, r in ipairs(results) do
      assert(r.rc == 0, ("rank %d: %s"):format(i - 1, r.out))
      local peak = tonumber(r.out:match "peak over live: ([%d.-]+) units")
      assert.is_true(peak and peak <= 3.1, r.out)
    end
  end)
end)
