-- Device meshes, tensor and sequence parallelism, on threads and on processes.
local ranks = require "distributed.ranks"

describe("device mesh #M391", function()
  it("has groups along its dimensions, parts, and flattened parts", function()
    ranks.threads("distributed.each_mesh", 8)
  end)
end)

describe("a mesh of 2 x 2 x 2 #M391", function()
  it("equals one process", function() ranks.threads("distributed.each_3d", 8) end)
end)

describe("tensor parallel #M387 #M388 #M413", function()
  for _, size in ipairs { 1, 2, 3, 4, 8 } do
    it(("equals one process, on %d threads"):format(size), function() ranks.threads("distributed.each_tp", size) end)
  end
  it("equals one process, on 2 processes", function()
    ranks.agree({ size = 2, code = 'require("distributed.each_tp")(rank, size) print "fine"' }, "fine\n")
  end)
end)
