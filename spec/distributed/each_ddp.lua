-- DistributedDataParallel on one rank, against one process with the whole batch.
local moth = require "moth"
local dist = require "moth.distributed"
local nn = moth.nn

local DDP = nn.parallel.DistributedDataParallel

local function make() return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 16), nn.Linear(16, 4)) end
local function bytes(m)
  local n = 0
  for _, p in m:named_parameters() do n = n + p:numel() * 4 end
  return n
end

-- The same weights as `m`, whose weights are those of rank 0.
local function copy_of(m)
  local c = make()
  c:load_state_dict(m:state_dict())
  return c
end

local function distance(a, b)
  local worst, p = 0, {}
  for name, t in b:named_parameters() do p[name] = t end
  for name, t in a:named_parameters() do worst = math.max(worst, (t - p[name]):abs():max():item()) end
  return worst
end

local function distance_of_gradients(a, b)
  local worst, p = 0, {}
  for name, t in b:named_parameters() do p[name] = t end
  for name, t in a:named_parameters() do worst = math.max(worst, (t.grad - p[name].grad):abs():max():item()) end
  return worst
end

local function same_on_all(m)
  local flat = {}
  for _, p in m:named_parameters() do flat[#flat + 1] = p:detach():view(-1) end
  flat = moth.cat(flat)
  local first = flat:clone()
  dist.broadcast(first, 0)
  return moth.equal(first, flat)
end

return function(rank, size)
  local loss = nn.MSELoss()
  moth.manual_seed(99)
  local x, y = moth.randn(6 * size, 20), moth.randn(6 * size, 4)
  local mine, target = x:narrow(1, 6 * rank + 1, 6), y:narrow(1, 6 * rank + 1, 6)

  local function train(options, steps)
    moth.manual_seed(rank + 1) -- other weights on each rank
    local m = make()
    local ddp = DDP(m, options)
    local one = copy_of(m)
    local a, b = moth.optim.SGD(ddp:parameters(), { lr = 0.1 }), moth.optim.SGD(one:parameters(), { lr = 0.1 })
    for _ = 1, steps do
      a:zero_grad()
      b:zero_grad()
      loss(ddp(mine), target):backward()
      loss(one(x), y):backward()
      a:step()
      b:step()
    end
    return m, one, ddp
  end

  -- equality, with buckets of 1 KB, views, a static graph
  for _, o in ipairs { { bucket_cap_mb = 0.001 }, { gradient_as_bucket_view = true }, { static_graph = true },
    { find_unused_parameters = true } } do
    local m, one, ddp = train(o, 4)
    assert(distance(m, one) < 1e-6, "equal to one process")
    assert(same_on_all(m), "ranks are equal to the bit")
    local before = dist.stats()
    loss(ddp(mine), target):backward()
    local after = dist.stats()
    local reduced = after.calls.all_reduce - before.calls.all_reduce
    if o.bucket_cap_mb then
      assert(#ddp:buckets() > 2 and reduced == #ddp:buckets(), "an all_reduce for each bucket")
      assert(ddp:buckets()[1][1]:find "^[34]", "the last layer comes first")
    elseif o.gradient_as_bucket_view then
      assert(reduced == 1 and #ddp:buckets() == 1)
      local p, q = m[1].weight.grad, m[1].bias.grad
      assert(math.abs(tonumber(p:data_ptr()) - tonumber(q:data_ptr())) <= bytes(m), "gradients lie in one buffer")
    end
    if o.bucket_cap_mb and dist.get_backend() == "gloo" then
      local s = dist.stats().bytes_sent
      ddp.module(mine):sum():backward()
      s = dist.stats().bytes_sent - s
      assert(size > 2 or math.abs(s - 2 * (size - 1) / size * bytes(m)) < 200, "bytes sent: " .. s)
    end
    for name in m:named_parameters() do assert(not name:find "module" and m:state_dict()[name]) end
  end

  -- no_sync: the sum of several backwards is reduced by the last one
  do
    local m, one, ddp = train({}, 1)
    ddp:zero_grad()
    one:zero_grad()
    local calls = dist.stats().calls.all_reduce
    ddp:no_sync(function() loss(ddp(mine), target):backward() end)
    assert(dist.stats().calls.all_reduce == calls, "no_sync sends nothing")
    loss(ddp(mine * 2), target):backward()
    loss(one(x), y):backward()
    loss(one(x * 2), y):backward()
    assert(moth.allclose(m[1].weight.grad, one[1].weight.grad, 1e-5, 1e-6), "no_sync")
  end

  -- unused parameters: with find_unused_parameters, others than on the next rank
  do
    local Two = nn.class("Two")
    function Two:__init() self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3) end
    function Two:forward(v, use) return use == "a" and self.a(v) or self.b(v) end
    local net = Two()
    local ddp = DDP(net, { find_unused_parameters = true })
    ddp(moth.ones(2, 3), rank == 0 and "a" or "b"):sum():backward()
    assert(net.a.weight.grad and net.c.weight.grad == nil, "used by no rank: no gradient")
    assert(math.abs(net.a.weight.grad[1][1]:item() - 2 / size) < 1e-6, "used by one rank")
  end

  -- several buckets, of which one rank fills some late: the order of calls is the same
  do
    local Two = nn.class("Two")
    function Two:__init() self.a, self.b, self.c = nn.Linear(30, 30), nn.Linear(30, 30), nn.Linear(30, 30) end
    function Two:forward(v, whole) return whole and self.c(self.b(self.a(v))) or self.a(v) end
    local ddp = DDP(Two(), { find_unused_parameters = true, bucket_cap_mb = 0.003 })
    for i = 1, 3 do ddp(moth.ones(2, 30), (rank + i) % 2 == 0):sum():backward() end
    assert(#ddp:buckets() > 2 and same_on_all(ddp.module))
  end

  -- checkpointed parts, autocast, gradients accumulated by one graph
  for _, o in ipairs { {}, { static_graph = true } } do
    local m = make()
    local ddp = DDP(m, o)
    local one = copy_of(m)
    function m:forward(v)
      v = moth.utils.checkpoint(function(t) return self[2](self[1](t)) end, v)
      return self[4](self[3](v))
    end
    for _ = 1, 2 do
      ddp:zero_grad()
      one:zero_grad()
      loss(ddp(mine), target):backward()
      loss(one(x), y):backward()
      assert(distance_of_gradients(m, one) < 1e-6, "checkpoint")
    end
    ddp:zero_grad()
    moth.autocast("cpu", { dtype = moth.bfloat16 }, function() loss(ddp(mine), target):backward() end)
    assert(distance_of_gradients(m, one) < 0.05 and m[1].weight.grad:dtype() == moth.float32, "autocast")
  end

  -- compiled: the module, within
  do
    local m = make()
    local ddp = DDP(m)
    local one = copy_of(m)
    local step = moth.compile(function(v, w) return loss(ddp(v), w) end)
    for _ = 1, 3 do
      ddp:zero_grad()
      one:zero_grad()
      step(mine, target):backward()
      loss(one(x), y):backward()
      assert(distance_of_gradients(m, one) < 1e-6, "compiled")
    end
  end

  -- join: rank r has r + 1 batches
  do
    local m = make()
    local ddp = DDP(m, { bucket_cap_mb = 0.002 })
    local one = copy_of(m)
    local a, b = moth.optim.SGD(ddp:parameters(), { lr = 0.1 }), moth.optim.SGD(one:parameters(), { lr = 0.1 })
    local result = dist.join(ddp, function()
      for _ = 1, rank + 1 do
        a:zero_grad()
        loss(ddp(mine), target):backward()
        a:step()
      end
      return "result"
    end)
    assert(result == "result")
    for i = 1, size do
      b:zero_grad()
      for r = i - 1, size - 1 do (loss(one(x:narrow(1, 6 * r + 1, 6)), y:narrow(1, 6 * r + 1, 6)) / size):backward() end
      b:step()
    end
    assert(distance(m, one) < 1e-6 and same_on_all(m), "join")
    loss(ddp(mine), target):backward() -- as before
    local ok, message = pcall(dist.join, ddp, function()
      for _ = 1, rank + 1 do loss(ddp(mine), target):backward() end
    end, { throw_on_early_termination = true })
    assert(size == 1 or not ok and message:find("ranks have no more inputs", 1, true), message)
    loss(ddp(mine), target):backward()
    dist.barrier()
  end

  -- hooks: their losses fall, ranks stay equal
  for name, hook in ipairs { dist.hooks.fp16, dist.hooks.bf16, dist.hooks.top_k { ratio = 0.3 }, dist.hooks.int8(),
    dist.hooks.int8 { stochastic = false },
    dist.hooks.power_sgd { rank = 2 }, function(b) return dist.all_reduce(b:buffer(), { op = "avg", async = true }) end,
  } do
    local m = make()
    local ddp = DDP(m)
    ddp:register_comm_hook(hook)
    local o = moth.optim.SGD(ddp:parameters(), { lr = 0.1 })
    local first, last
    for _ = 1, 8 do
      o:zero_grad()
      last = loss(ddp(mine), target)
      last:backward()
      o:step()
      last = last:detach():clone()
      dist.all_reduce(last)
      first = first or last:item()
    end
    assert(last:item() < first, "loss falls with hook " .. name)
    assert(same_on_all(m), "ranks stay equal with hook " .. name)
  end

  -- buffers follow rank 0; frozen parameters have no part in it; accumulation order is recorded
  do
    local net = nn.Sequential(nn.Linear(20, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    net[1].weight:requires_grad_(false)
    local ddp = DDP(net)
    for _ = 1, 3 do loss(ddp(mine), target):backward() end
    assert(net[1].weight.grad == nil)
    ddp(mine)
    local mean = net[2].running_mean:clone()
    dist.broadcast(mean, 0)
    assert(size > 1 and rank > 0 or moth.equal(mean, net[2].running_mean))
  end

  -- the sampler's shares #M406
  local sampler = moth.data.DistributedSampler(10 * size, { shuffle = false })
  assert(sampler:global_batch(32) == 32 * size and sampler:size() == 10 and sampler:positions()[1]:item() == rank + 1)

  -- modules that differ
  local ok, message = pcall(DDP, nn.Linear(2 + (rank == 1 and 1 or 0), 2))
  assert(size == 1 or not ok and message:find("the modules of the ranks differ", 1, true), message)
end
