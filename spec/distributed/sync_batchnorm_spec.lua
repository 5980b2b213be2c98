-- nn.SyncBatchNorm on several ranks; they check themselves.
local ranks = require "distributed.ranks"

describe("SyncBatchNorm", function()
  for size = 1, 3 do
    it(("has the statistics of all, on %d threads"):format(size), function()
      ranks.threads("distributed.each_sync_batchnorm", size)
    end)
  end
end)
