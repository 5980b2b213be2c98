-- Collectives as ops: values, derivatives of both orders, on threads and on processes.
local ranks = require "distributed.ranks"
local moth = require "moth"
local dist = require "moth.distributed"

describe("collective ops #M413", function()
  for size = 1, 3 do
    it(("on %d threads"):format(size), function() ranks.threads("distributed.each_op", size) end)
  end
  it("on 2 processes", function()
    ranks.agree({ size = 2, code = 'require("distributed.each_op")(rank, size) print "fine"' }, "fine\n")
  end)

  it("give fakes of the right shape for any number of ranks", function()
    dist.init_process_group("fake", { rank = 3, world_size = 10240 })
    local shape = moth.fake_mode(function() return dist.nn.all_gather(moth.zeros(1024, 5)).shape end)
    assert.same({ 10485760, 5 }, { shape[1], shape[2] })
    local t = moth.ones(4)
    dist.all_reduce(t)
    dist.barrier()
    assert.equal(1, dist.stats().calls.all_reduce)
    assert.equal("#1 all_reduce(sum) of float32 [4]", dist.flight_record()[1].call)
    dist.destroy_process_group()
  end)
end)
