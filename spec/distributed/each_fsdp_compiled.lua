-- fully_shard under moth.compile on one rank, against one process with the whole batch, and against uncompiled units.
local moth = require "moth"
local dist = require "moth.distributed"
local compare = require "distributed.compare"
local nn = moth.nn

-- Units in a unit; rows that no number of ranks divides; fewer rows than ranks; a parameter without dimensions; one
-- that is frozen, one shared, one that takes no part.
local Net = nn.class("Net")
function Net:__init()
  self.first = nn.Linear(6, 10)
  self.blocks = nn.ModuleList {}
  for i = 1, 2 do self.blocks[i] = nn.Sequential(nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 10)) end
  self.blocks[2][1].weight:requires_grad_(false)
  self.scale = nn.Parameter(moth.full({}, 1.5))
  self.last = nn.Linear(10, 1)
  self.again = nn.Linear(10, 1)
  self.again.weight = self.last.weight
  self.unused = nn.Linear(3, 3)
end
function Net:forward(x)
  x = self.first(x)
  for i = 1, 2 do x = x + self.blocks[i](x) end
  return (self.again(x:relu()) + self.last(x)) * self.scale
end

local function shard(net, o, of_root)
  for i = 1, 2 do dist.fully_shard(net.blocks[i], o) end
  return dist.fully_shard(net, of_root or o)
end

local function fails(text, fn, ...)
  local ok, message = pcall(fn, ...)
  assert(not ok and message:find(text, 1, true), tostring(message))
end

return function(rank, size)
  local lossf = nn.MSELoss()
  moth.manual_seed(7)
  local net = Net()
  local x, y = moth.randn(5 * size, 6), moth.randn(5 * size, 1)
  local mine, target = x:narrow(1, 5 * rank + 1, 5), y:narrow(1, 5 * rank + 1, 5)
  local function adam(m) return moth.optim.AdamW(m:parameters(), { lr = 0.01, weight_decay = 0.1 }) end
  local function step_of(m, opt, a, b)
    return function()
      opt:zero_grad()
      local loss = lossf(m(a), b)
      loss:backward()
      nn.utils.clip_grad_norm_(m:parameters(), 0.3)
      opt:step()
      return loss
    end
  end
  -- Three steps of one process, of uncompiled units, and of compiled ones.
  local function train(what, o, tolerance, whole_step, backend, of_root)
    local one, plain, cut = net:clone(), shard(net:clone(), o, of_root), shard(net:clone(), o, of_root)
    local options = { fullgraph = true, backend = backend }
    local step
    if whole_step then
      step = moth.compile(step_of(cut, adam(cut), mine, target), options)
    else
      step = step_of(moth.compile(cut, options), adam(cut), mine, target)
    end
    local step_one, step_plain = step_of(one, adam(one), x, y), step_of(plain, adam(plain), mine, target)
    for _ = 1, 3 do
      step()
      step_one()
      step_plain()
    end
    compare.modules(what, cut, one, tolerance)
    local of = {}
    for name, p in plain:named_parameters() do of[name] = p end
    for name, p in cut:named_parameters() do compare.close(what .. " " .. name, p, of[name]:detach(), tolerance) end
    return cut
  end

  local cut = train("step", nil, nil, true)
  if size == 1 then train("eager", nil, nil, false, "eager") end
  if size == 3 then train("forward", { reshard_after_forward = false }) end
  if size == 2 then
    local low = { param_dtype = moth.bfloat16, reduce_dtype = moth.float32 }
    if dist.get_backend() == "local" then
      train("generated", nil, nil, true, "inductor")
      train("replicas", { mesh = dist.device_mesh({ 2, 1 }, { "replica", "shard" }) })
    else
      train("bfloat16", { mp = low }, 0.05, false, nil, { mp = {
        param_dtype = moth.bfloat16, reduce_dtype = moth.float32, output_dtype = moth.float32 } })
    end
  end

  -- uncompiled again: units that were compiled are as they were
  local one = net:clone()
  for name, p in one:named_parameters() do
    for other, q in cut:named_parameters() do
      if name == other then moth.no_grad(function() p:copy_(dist.full_tensor(q)) end) end
    end
  end
  cut:zero_grad()
  lossf(cut(mine), target):backward()
  lossf(one(x), y):backward()
  compare.modules("uncompiled", cut, one)

  -- explain: no break; the collectives are nodes, of forward and of backward
  local report = moth.compile.explain(cut, mine)
  assert(report.graph_break_count == 0, tostring(report))
  assert(size == 1 or tostring(report):find("comm_unshard", 1, true), tostring(report))
  cut:zero_grad()
  local _, forward, backward = moth.compile.aot(cut, { mine })
  if size > 1 then assert(forward:find "comm_unshard" and backward:find "comm_reduce_scatter") end
  assert(size == 1 or not forward:find "comm_reduce_scatter")

  -- what cannot be recorded breaks with its reason
  cut:set_requires_gradient_sync(false)
  fails("fully_shard: unit FSDPNet: gradients are not reduced", moth.compile(cut, { fullgraph = true }), mine)
  cut:set_requires_gradient_sync(true)
  local far = dist.fully_shard(nn.Linear(2, 2), { offload = true })
  fails("its shards are in the host's memory", moth.compile(far, { fullgraph = true }), moth.ones(1, 2))
  compare.close("broken", moth.compile(far)(moth.ones(1, 2)), far(moth.ones(1, 2)):detach())
  dist.barrier()
end
