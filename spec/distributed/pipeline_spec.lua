-- Pipelines on threads and processes; the ranks check themselves.
local ranks = require "distributed.ranks"

describe("dist.pipeline #M389 #M390", function()
  for _, size in ipairs { 1, 2, 3, 4, 8 } do
    it(("equals one process, on %d threads"):format(size), function()
      ranks.threads("distributed.each_pipeline", size)
    end)
  end
  it("equals one process, on 2 processes", function()
    ranks.agree({ size = 2, code = 'require("distributed.each_pipeline")(rank, size) print "fine"' }, "fine\n")
  end)
end)
