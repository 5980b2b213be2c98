-- Optimizers on parameters that are cut over ranks; the ranks check themselves.
local ranks = require "distributed.ranks"

describe("optimizers of cut parameters", function()
  for _, size in ipairs { 1, 2, 3, 4 } do
    it(("equal one process, on %d threads"):format(size), function()
      ranks.threads("distributed.each_optimizer", size)
    end)
  end
end)
