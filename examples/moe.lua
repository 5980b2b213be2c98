--- Experts over ranks: a small classifier whose hidden layer is a mixture of experts, trained by data parallelism; each
-- rank has its part of the samples and its part of the experts.
--
--     moth run --nproc-per-node 2 examples/moe.lua [--quick]
local moth = require "moth"
local dist = require "moth.distributed"
local nn, optim, F = moth.nn, moth.optim, moth.nn.functional

local quick = moth.cli({ { "--quick", "a short run" } }).quick
dist.init_process_group "gloo"
local rank, size = dist.get_rank(), dist.get_world_size()
local function say(...) if rank == 0 then print(string.format(...)) end end

local Net = nn.class("Net")
function Net:__init(experts)
  self.inp = nn.Linear(2, 16)
  self.moe = dist.MoE(16, 32, { num_experts = experts, top_k = 2 })
  self.out = nn.Linear(16, 4)
end
function Net:forward(x)
  local h = self.inp(x):tanh()
  return self.out(h + self.moe(h))
end

-- Points in four arms of a spiral, other ones on each rank.
local function points(n)
  local class = moth.randint(1, 5, { n })
  local t = moth.rand(n) * 3
  local angle = t + (class - 1) * (math.pi / 2)
  return moth.stack({ t * angle:cos(), t * angle:sin() }, 2) + moth.randn(n, 2) * 0.05, class
end

moth.manual_seed(0)
local net = Net(4 * size)
local ddp = dist.DistributedDataParallel(net) -- leaves the experts alone
local opt = optim.Adam(ddp:parameters(), { lr = 5e-3 })
say("%d experts, %d here: %d parameters of %d", 4 * size, net.moe.w1:size(1), net:num_parameters(),
  net:num_parameters() + (size - 1) * (net.moe.w1:numel() + net.moe.w2:numel()))
moth.manual_seed(100 + rank)
for step = 1, quick and 60 or 400 do
  local x, y = points(128)
  local logits = ddp(x)
  local loss = F.cross_entropy(logits, y) + 0.01 * net.moe.aux_loss
  opt:zero_grad()
  loss:backward()
  opt:step()
  if step % (quick and 20 or 100) == 0 then
    local right = logits:argmax(2):eq(y):float():mean():reshape(1)
    dist.all_reduce(right, { op = "avg" })
    local counts = net.moe.counts:clone()
    dist.all_reduce(counts)
    say("step %d: %.0f %% right, tokens of the experts: %s", step, 100 * right:item(),
      table.concat(counts:totable(), " "))
  end
end
dist.destroy_process_group()
