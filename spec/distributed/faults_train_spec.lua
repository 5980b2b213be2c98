-- A rank is killed in each of the ways to train, and in a checkpoint: the others name it.
local ranks = require "distributed.ranks"

-- One step; `make` is run before.
local ways = {
  { "a pipeline", [[
    local list = {}
    for i = 1, 6 do list[i] = nn.Linear(8, 8) end
    local pipe = dist.pipeline(list, { microbatches = 4, schedule = "1f1b" })
    step = function()
      pipe:step(rank == 0 and moth.randn(8, 8) or nil, rank == size - 1 and moth.randn(8, 8) or nil, nn.MSELoss())
    end]] },
  { "tensor parallelism", [[
    local m = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 8))
    dist.tp.parallelize(m, dist.device_mesh { size }, { ["0"] = "column", ["1"] = "row" })
    step = function() m(moth.randn(2, 8)):sum():backward() end]] },
  { "fully_shard", [[
    local m = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 8))
    dist.fully_shard(m[1])
    dist.fully_shard(m)
    step = function() m(moth.randn(2, 8)):sum():backward() end]] },
  { "experts", [[
    local m = dist.MoE(8, 8, { num_experts = 6 })
    step = function() m(moth.randn(4, 8)):sum():backward() end]] },
  { "a ring of attention", [[
    local mesh = dist.device_mesh { size }
    step = function()
      local q = moth.randn(1, 2, 6, 4):requires_grad_(true)
      dist.context_parallel(mesh, function() return nn.functional.scaled_dot_product_attention(q, q, q) end):sum()
        :backward()
    end]] },
  { "uneven inputs", [[
    local net = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    step = function()
      dist.join(net, function() for _ = 1, 2 + rank do net(moth.randn(2, 4)):sum():backward() end end)
    end]] },
  { "a checkpoint", [[
    local m, dir = nn.Linear(64, 64), dist.all_gather_object(os.tmpname())[1]
    dist.fully_shard(m)
    if rank == 0 then os.remove(dir) end
    step = function() dist.checkpoint.save({ model = m }, dir) end
    clean = function() os.execute("rm -rf " .. dir) end]] },
}

describe("a rank that is killed", function()
  for _, way in ipairs(ways) do
    it(("in %s is named #slow"):format(way[1]), function()
      for i, r in ipairs(ranks.run { size = 3, code = [[
        local nn, step, clean = moth.nn, nil, function() end
        ]] .. way[2] .. [[
        step() step()
        if rank == 1 then os.execute "kill -9 $PPID" end
        local ok, message = pcall(function() for _ = 1, 3 do step() end end)
        clean()
        print(ok, message)]] }) do
        if i ~= 2 then
          assert.matches("^false.*rank 1 %(pid %d+ on .*%) is gone", r.out, nil, nil,
            ("rank %d: %s"):format(i - 1, r.out))
        end
      end
    end)
  end
end)
