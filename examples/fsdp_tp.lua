--- Several kinds of parallelism on a device mesh: tensor parallelism within a group of neighbours, fully_shard over the
-- other ranks; the result is that of one process.
--
--     moth run --nproc-per-node 2 examples/fsdp_tp.lua        -- tp 2
--     moth run --nproc-per-node 4 examples/fsdp_tp.lua        -- dp 2, tp 2
--     moth run --nproc-per-node 8 examples/fsdp_tp.lua        -- replicas 2, dp 2, tp 2
local moth = require "moth"
local dist = require "moth.distributed"
local nn, optim = moth.nn, moth.optim

dist.init_process_group "gloo"
local rank, size = dist.get_rank(), dist.get_world_size()
local function say(...) if rank == 0 then print(string.format(...)) end end

local tp = size % 2 == 0 and 2 or 1
local replicas = size % 8 == 0 and 2 or 1
local dp = size / tp / replicas
local mesh = dist.device_mesh({ replicas, dp, tp }, { "replica", "dp", "tp" })
say("%s", tostring(mesh))

local function layer()
  return nn.TransformerEncoderLayer(32, 4, 64, 0, { batch_first = true, norm_first = true })
end
local function new_model()
  moth.manual_seed(0)
  return nn.Sequential(layer(), layer(), nn.Linear(32, 8))
end

-- Tensor parallel first: what is cut then are this rank's parts.
local model = new_model()
for i = 1, 2 do
  dist.tp.parallelize(model[i], mesh.tp, { self_attn = "heads", linear1 = "column", linear2 = "row" })
  dist.fully_shard(model[i], { mesh = mesh { "replica", "dp" } })
end
dist.fully_shard(model, { mesh = mesh { "replica", "dp" } })
local one = new_model()

local here, all = 0, 0
for _, p in ipairs(model:parameters()) do here = here + p:numel() end
for _, p in ipairs(one:parameters()) do all = all + p:numel() end
say("%d of %d parameters are here", here, all)

-- Ranks of one tp group see the same samples; others have theirs.
local groups = replicas * dp
local share = mesh:rank "replica" * dp + mesh:rank "dp"
moth.manual_seed(1)
local x, y = moth.randn(2 * groups, 6, 32), moth.randn(2 * groups, 6, 8)
local mine, target = x:narrow(1, 2 * share + 1, 2), y:narrow(1, 2 * share + 1, 2)

local lossf = nn.MSELoss()
-- (Adam would divide gradients that are 0 but for rounding, such as those of the keys' bias, by themselves.)
local o = { lr = 0.1, momentum = 0.9 }
local a, b = optim.SGD(model:parameters(), o), optim.SGD(one:parameters(), o)
for step = 1, 5 do
  a:zero_grad()
  b:zero_grad()
  lossf(model(mine), target):backward()
  local loss = lossf(one(x), y)
  loss:backward()
  nn.utils.clip_grad_norm_(model:parameters(), 1) -- the norm of all parts on all ranks
  nn.utils.clip_grad_norm_(one:parameters(), 1)
  a:step()
  b:step()
  say("step %d: loss %.4f", step, loss:item())
end
local worst, of = 0, {}
for name, p in one:named_parameters() do of[name] = p:detach() end
for name, p in model:named_parameters() do
  worst = math.max(worst, (dist.full_tensor(p) - of[name]):abs():max():item())
end
say("after 5 steps parameters are off by %.1e of one process's", worst)
assert(worst < 1e-5)
dist.destroy_process_group()
