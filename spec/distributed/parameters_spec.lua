-- Kinds of parameters in models of several ranks; the ranks check themselves.
local ranks = require "distributed.ranks"

describe("parameters of all kinds", function()
  for size = 1, 3 do
    it(("have the gradients of one process, on %d threads"):format(size), function()
      ranks.threads("distributed.each_parameters", size)
    end)
  end
end)
