-- Context and expert parallelism, on threads and on processes.
local ranks = require "distributed.ranks"

for what, name in pairs { ["context parallel #M392"] = "each_context", ["experts over ranks"] = "each_moe" } do
  describe(what, function()
    for _, size in ipairs { 1, 2, 3, 4, 8 } do
      it(("equals one process, on %d threads"):format(size), function() ranks.threads("distributed." .. name, size) end)
    end
    it("equals one process, on 2 processes", function()
      ranks.agree({ size = 2, code = ('require("distributed.%s")(rank, size) print "fine"'):format(name) }, "fine\n")
    end)
  end)
end
