-- Three kinds of parallelism at once on one of 8 ranks, against one process.
local moth = require "moth"
local dist = require "moth.distributed"
local compare = require "distributed.compare"
local nn = moth.nn

return function()
  local function layer()
    return nn.TransformerEncoderLayer(16, 4, 24, 0, { batch_first = true, norm_first = true })
  end
  local plan = { self_attn = "heads", linear1 = "column", linear2 = "row" }
  moth.manual_seed(1)
  local model = nn.ModuleList { layer(), layer() }
  local head = nn.Linear(16, 5)
  local x, y = moth.randn(4, 8, 16), moth.randn(4, 8, 5)
  local Net = nn.class("Net")
  function Net:__init(a, b) self.layers, self.head = a, b end
  function Net:forward(v)
    for i = 1, 2 do v = self.layers[i](v, nil, nil, true) end
    return self.head(v)
  end

  -- part(t): what this rank has of the batch; run(fn): where attention happens
  local function train(what, tp, shards, part, run)
    local one, cut = Net(model:clone(), head:clone()), Net(model:clone(), head:clone())
    for i = 1, 2 do
      dist.tp.parallelize(cut.layers[i], tp, plan)
      dist.fully_shard(cut.layers[i], { mesh = shards })
    end
    dist.fully_shard(cut, { mesh = shards })
    local o = { lr = 0.1, momentum = 0.9 }
    local a, b = moth.optim.SGD(cut:parameters(), o), moth.optim.SGD(one:parameters(), o)
    for _ = 1, 3 do
      a:zero_grad()
      b:zero_grad()
      run(function() moth.mse_loss(cut(part(x)), part(y)):backward() end)
      moth.mse_loss(one(x), y):backward()
      compare.close(what .. " norm", nn.utils.clip_grad_norm_(cut:parameters(), 1),
        nn.utils.clip_grad_norm_(one:parameters(), 1))
      a:step()
      b:step()
    end
    compare.modules(what, cut, one)
  end

  local mesh = dist.device_mesh({ 2, 2, 2 }, { "replica", "dp", "tp" })
  local at = mesh:rank "replica" * 2 + mesh:rank "dp"
  train("replicas, shards, tensor parallel", mesh.tp, mesh { "replica", "dp" },
    function(t) return t:narrow(1, at + 1, 1) end, function(fn) fn() end)

  mesh = dist.device_mesh({ 2, 2, 2 }, { "dp", "cp", "tp" })
  train("shards, context parallel, tensor parallel", mesh.tp, mesh { "dp", "cp" }:flatten(),
    function(t) return dist.context.split(t:narrow(1, 2 * mesh:rank "dp" + 1, 2), 2, mesh.cp) end,
    function(fn) dist.context_parallel(mesh.cp, fn) end)
  dist.barrier()
end
