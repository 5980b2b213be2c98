-- All collectives, between processes (tcp) and between threads (local). The values are checked by the ranks themselves.
local ranks = require "distributed.ranks"

describe("collectives #M353 #M355", function()
  for size = 2, 4 do
    it(("between %d processes"):format(size), function()
      ranks.agree({ size = size, code = 'require("distributed.each_collective")(rank, size) print "fine"' }, "fine\n")
    end)
  end
  for size = 1, 4 do
    it(("between %d threads"):format(size), function() ranks.threads("distributed.each_collective", size) end)
  end
end)
