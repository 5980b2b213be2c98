-- Checkpoints in models that are cut over ranks; the ranks check themselves.
local ranks = require "distributed.ranks"

describe("a checkpoint in a cut model", function()
  for size = 1, 3 do
    it(("gives what one process gives, on %d threads"):format(size), function()
      ranks.threads("distributed.each_recompute", size)
    end)
  end
end)
