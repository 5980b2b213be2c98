-- DistributedDataParallel on processes and threads; the ranks check themselves.
local ranks = require "distributed.ranks"
local moth = require "moth"

describe("DistributedDataParallel #M357 #M358 #M359 #M360 #M362 #M364 #M365 #M367 #M369 #M394 #M402", function()
  it("equals one process, on 2 processes", function()
    ranks.agree({ size = 2, code = 'require("distributed.each_ddp")(rank, size) print "fine"' }, "fine\n")
  end)
  for _, size in ipairs { 1, 3, 4, 8 } do
    it(("equals one process, on %d threads"):format(size), function() ranks.threads("distributed.each_ddp", size) end)
  end

  it("sends the first bucket before backward is at the first layer #M361", function()
    ranks.agree({ size = 2, code = [[
      local now = require("moth.utils.system").now
      local layers = {}
      for i = 1, 4 do layers[i] = moth.nn.Linear(64, 64) end
      local m = moth.nn.Sequential(unpack(layers))
      local ddp = moth.nn.parallel.DistributedDataParallel(m, { bucket_cap_mb = 0.017 })
      local at
      m[1].weight:register_post_accumulate_grad_hook(function() at = now() end)
      for _ = 1, 3 do ddp(moth.randn(8, 64)):sum():backward() end
      local first
      for _, r in ipairs(dist.flight_record()) do
        if r.op == "all_reduce" then first = r end
      end
      local record, buckets = dist.flight_record(), #ddp:buckets()
      first = record[#record - buckets + 1]
      assert(buckets >= 4 and first.op == "all_reduce")
      assert(first.made < at, "the first bucket was made after the last gradient")
      assert(record[#record].made >= at)
      print "fine"]] }, "fine\n")
  end)

  it("names parameters that took no part", function()
    for i, r in ipairs(ranks.run { size = 2, code = [[
      local Two = moth.nn.class("Two")
      function Two:__init() self.a, self.b = moth.nn.Linear(3, 3), moth.nn.Linear(3, 3) end
      function Two:forward(v) return rank == 1 and self.a(v) or self.b(self.a(v)) end
      local ddp = moth.nn.parallel.DistributedDataParallel(Two())
      ddp(moth.ones(2, 3)):sum():backward()]] }) do
      assert.equal(1, r.rc)
      assert.matches("on rank 1: [^;]*b%.weight", r.out, nil, nil, "rank " .. i - 1)
      assert.matches("find_unused_parameters", r.out)
    end
  end)

  it("is offered instead of DataParallel #M366", function()
    assert.error_matches(function() moth.nn.DataParallel(moth.nn.Linear(2, 2)) end, "DistributedDataParallel")
  end)
end)
