-- fully_shard, on threads and on processes; the ranks check themselves.
local ranks = require "distributed.ranks"
local moth = require "moth"
local dist = require "moth.distributed"

describe("fully_shard #M374 #M376 #M378 #M382 #M404", function()
  for _, size in ipairs { 1, 2, 3, 4, 8 } do
    it(("equals one process, on %d threads"):format(size), function() ranks.threads("distributed.each_fsdp", size) end)
  end
  it("raises an error for each allocation that fails, and works again in a new group", function()
    dist.init_process_group("local", { rank = 0, world_size = 1, init_method = "local://fsdp", timeout = 5 })
    local errors = 0
    for n = 1, 120, 3 do
      local o = { mesh = dist.new_group { 0 }, mp = { param_dtype = moth.bfloat16, reduce_dtype = moth.float32 } }
      local net = moth.nn.Sequential(moth.nn.Linear(64, 64), moth.nn.Linear(64, 64))
      dist.fully_shard(net[1], o)
      dist.fully_shard(net, o)
      local x = moth.randn(2, 64)
      net(x):sum():backward()
      moth.memory.fail_at(n)
      local ok, message = pcall(function() net(x):sum():backward() end)
      moth.memory.fail_at(0)
      errors = errors + (ok and 0 or 1)
      assert(ok or message:find "out of memory", message)
      dist.destroy_process_group(o.mesh)
    end
    dist.destroy_process_group()
    assert.is_true(errors > 20)
  end)
  it("names the rank that ended in the middle of a step, and calls that do not match", function()
    local code = [[
      local nn = moth.nn
      local net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
      for i = 1, 2 do dist.fully_shard(net[i]) end
      dist.fully_shard(net)
      net(moth.ones(2, 8)):sum():backward()
      %s
      for _ = 1, 3 do net(moth.ones(2, 8)):sum():backward() end]]
    for i, r in ipairs(ranks.run { size = 3, code = code:format "if rank == 1 then os.exit(3) end" }) do
      if i ~= 2 then assert(r.rc == 1 and r.out:find "rank 1", ("rank %d: %s"):format(i - 1, r.out)) end
    end
    for i, r in ipairs(ranks.run { size = 2, code = code:format "if rank == 1 then dist.barrier() end" }) do
      assert(r.rc == 1 and r.out:find "barrier" and r.out:find(i == 1 and "FSDPLinear" or "all_gather"),
        ("rank %d: %s"):format(i - 1, r.out))
    end
    -- an error within backward
    local failing = [[
      local y = net(moth.ones(2, 8))
      if rank == 1 then y:register_hook(function() error "a bug" end) end
      y:sum():backward()]]
    for i, r in ipairs(ranks.run { size = 2, code = code:format(failing) }) do
      assert(r.rc == 1 and r.out:find(i == 2 and "a bug" or "backward failed on rank 1"),
        ("rank %d: %s"):format(i - 1, r.out))
    end
  end)
  it("equals one process, on 2 processes; its peak is three units #M379 #M380", function()
    local results = ranks.run { size = 2, code = 'require("distributed.each_fsdp")(rank, size)' }
    for i, r in ipairs(results) do
      assert(r.rc == 0, ("rank %d: %s"):format(i - 1, r.out))
      local peak = tonumber(r.out:match "peak over live: ([%d.-]+) units")
      assert.is_true(peak and peak <= 3.1, r.out)
    end
  end)
end)
