-- fully_shard on one rank, against one process with the whole batch.
local moth = require "moth"
local dist = require "moth.distributed"
local compare = require "distributed.compare"
local B = require "moth_lua"
local nn = moth.nn
local close = compare.close

local function block(n) return nn.Sequential(nn.Linear(n, 2 * n + 1), nn.Tanh(), nn.Linear(2 * n + 1, n)) end
-- Modules with uneven rows, a parameter without dimensions, one that is frozen, one shared within the module.
local Net = nn.class("Net")
function Net:__init()
  self.first = nn.Linear(6, 10)
  self.blocks = nn.ModuleList { block(10), block(10), block(10) }
  self.blocks[2][1].weight:requires_grad_(false)
  self.blocks[3][1]:requires_grad_(false) -- read in backward after the last gradient of this block
  self.scale = nn.Parameter(moth.full({}, 1.5))
  self.last = nn.Linear(10, 10)
  self.again = nn.Linear(10, 10)
  self.again.weight = self.last.weight
end
function Net:forward(x)
  x = self.first(x)
  for i = 1, 3 do x = x + (self.recompute and moth.utils.checkpoint(self.blocks[i], x) or self.blocks[i](x)) end
  return self.again(self.last(x):relu()) * self.scale
end

local function shard(net, o, of_root)
  for i = 1, 3 do dist.fully_shard(net.blocks[i], o) end
  return dist.fully_shard(net, of_root or o)
end

return function(rank, size)
  local lossf = nn.MSELoss()
  moth.manual_seed(7)
  local net = Net()
  local x, y = moth.randn(5 * size, 6), moth.randn(5 * size, 10)
  local mine, target = x:narrow(1, 5 * rank + 1, 5), y:narrow(1, 5 * rank + 1, 5)

  -- Trains both; clips gradients; compares.
  local function train(what, o, tolerance, before, of_root)
    local one, cut = net:clone(), shard(net:clone(), o, of_root)
    if before then before(cut) end
    local a = moth.optim.Adam(cut:parameters(), { lr = 0.01, weight_decay = 0.1 })
    local b = moth.optim.Adam(one:parameters(), { lr = 0.01, weight_decay = 0.1 })
    for step = 1, 3 do
      a:zero_grad()
      b:zero_grad()
      local l, m = lossf(cut(mine), target), lossf(one(x), y)
      l:backward()
      m:backward()
      local n, k = nn.utils.clip_grad_norm_(cut:parameters(), 0.3), nn.utils.clip_grad_norm_(one:parameters(), 0.3)
      close(what .. " norm", n, k, tolerance)
      if step == 1 then compare.modules(what, cut, one, tolerance) end
      a:step()
      b:step()
    end
    compare.modules(what, cut, one, tolerance)
    return cut, one, a
  end

  local cut = train("reshard", { reshard_after_forward = true })
  assert(tostring(cut):find("FSDPNet(", 1, true) and tostring(cut):find("FSDPSequential(", 1, true))
  local mine_n, all_n = 0, 0
  for _, p in ipairs(cut:parameters()) do
    local full = dist.full_tensor(p)
    mine_n = mine_n + p:numel()
    all_n = all_n + (full:dim() == 0 and 1 or math.ceil(full:size(1) / size) * full:numel() / full:size(1))
  end
  assert(mine_n <= all_n, "shards are " .. mine_n .. " of " .. all_n)
  local n = 0 -- the order of names does not change, and all are there outside of forward
  for name, p in net:named_parameters() do
    n = n + 1
    assert(cut:parameters()[n]:requires_grad() == p:requires_grad() and name)
  end
  if size < 8 then
    train("keep", { reshard_after_forward = false })
    train("prefetch", {}, nil, function(m)
      m:set_modules_to_forward_prefetch { m.blocks[1] }
      m.blocks[1]:set_modules_to_forward_prefetch { m.blocks[2], m.blocks[3] }
      m.blocks[3]:set_modules_to_backward_prefetch { m.blocks[2], m.blocks[1] }
    end)
  end
  if size % 2 == 0 then
    local mesh = dist.device_mesh({ 2, size / 2 }, { "replica", "shard" })
    local hybrid = train("replicas", { mesh = mesh })
    for _, p in ipairs(hybrid:parameters()) do compare.same("replicas", p:detach(), mesh:group "replica") end
    local one, m = net:clone(), shard(net:clone(), { mesh = mesh })
    for i = 1, 3 do -- one of which is not reduced
      m:set_requires_gradient_sync(i ~= 2)
      lossf(m(mine * i), target):backward()
      lossf(one(x * i), y):backward()
    end
    compare.modules("replicas, accumulated", m, one)
  end
  if size >= 4 then -- behind forward, parts that half of the ranks put together
    local o = { reshard_after_forward = size / 2 }
    local halves = train("parts", o, nil, nil, o)
    local function gathers(m)
      local before = dist.stats().calls.all_gather
      lossf(m(mine), target):backward()
      local count = dist.stats().calls.all_gather - before
      m:zero_grad()
      for _, p in ipairs(m:parameters()) do p:detach():mul_(1) end -- as an optimizer does
      return count
    end
    local whole = shard(net:clone(), { reshard_after_forward = true }, { reshard_after_forward = true })
    gathers(whole)
    assert(gathers(whole) == 2 * gathers(halves), "backward gathers from the part alone")
    local function evaluated() return moth.no_grad(function() return halves(mine) end) end
    close("evaluation from parts", evaluated(), evaluated())
    halves:set_reshard_after_forward(true)
    assert(gathers(whole) == gathers(halves))
    local ok, message = pcall(dist.fully_shard, nn.Linear(2, 2), { reshard_after_forward = size - 1 })
    assert(not ok and message:find("does not divide the " .. size, 1, true), message)
  end
  if size == 8 then return dist.barrier() end -- what follows does not depend on the number of ranks
  local low, _, opt = train("bfloat16", { mp = { param_dtype = moth.bfloat16, reduce_dtype = moth.float32 } }, 0.05,
    nil, { mp = { param_dtype = moth.bfloat16, reduce_dtype = moth.float32, output_dtype = moth.float32 } })
  for _, p in ipairs(low:parameters()) do
    assert(p:dtype() == moth.float32 and (not p.grad or p.grad:dtype() == moth.float32))
    assert(not p.grad or opt.state[p].exp_avg:dtype() == moth.float32)
  end

  -- without reduction, then with: the sum of both; evaluation between
  do
    local one, m = net:clone(), shard(net:clone())
    m:set_requires_gradient_sync(false)
    lossf(m(mine), target):backward()
    assert(m.first.weight.grad == nil)
    m:set_requires_gradient_sync(true)
    close("evaluation", moth.no_grad(function() return m(mine) end), one(mine))
    lossf(m(mine * 2), target):backward()
    lossf(one(x), y):backward()
    lossf(one(x * 2), y):backward()
    compare.modules("accumulated", m, one)
    -- twice forward, one backward; then two backwards
    m:zero_grad()
    one:zero_grad()
    local a, b = m(mine), m(mine * 3)
    lossf(a * b, target):backward()
    lossf(one(x) * one(x * 3), y):backward()
    compare.modules("two forwards", m, one)
    local l, k = lossf(m(mine), target), lossf(m(-mine), target)
    l:backward()
    k:backward()
    lossf(one(x), y):backward()
    lossf(one(-x), y):backward()
    compare.modules("two backwards", m, one)
  end

  do -- collectives of the modules themselves come in the same order on all ranks
    local list = {}
    for i = 1, 4 do list[i] = nn.Sequential(nn.Linear(6, 40), nn.SyncBatchNorm(40), nn.Tanh(), nn.Linear(40, 6)) end
    local m = nn.Sequential(unpack(list))
    local one = nn.parallel.DistributedDataParallel(m:clone())
    for i = 1, 4 do dist.fully_shard(m[i]) end
    dist.fully_shard(m)
    for _ = 1, 8 do
      m:zero_grad()
      m(mine):pow(2):mean():backward()
    end
    m:zero_grad()
    m(mine):pow(2):mean():backward()
    one(mine):pow(2):mean():backward()
    compare.modules("with SyncBatchNorm", m, one.module, 1e-5)
  end

  -- checkpoints compute a unit again
  do
    local one, m = net:clone(), shard(net:clone())
    m.recompute = true
    local loss, before = lossf(m(mine), target), dist.flight_record()
    loss:backward()
    local record = dist.flight_record()
    for i = #before + 1, #record do assert(not record[i].call:find "all_gather of float", record[i].call) end
    lossf(one(x), y):backward()
    compare.modules("checkpoint", m, one)
  end

  if size == 2 then -- compiled, before and after
    local one, m = net:clone(), net:clone()
    for i = 1, 3 do m.blocks[i].forward = moth.compile(getmetatable(m.blocks[i]).forward, { backend = "blocks" }) end
    shard(m)
    for _, call in ipairs { m, moth.compile(m, { backend = "blocks" }) } do
      m:zero_grad()
      one:zero_grad()
      lossf(call(mine), target):backward()
      lossf(one(x), y):backward()
      compare.modules("compiled", m, one)
    end
  end

  -- parameters that took no part keep no gradient; an error in forward leaves the module usable
  do
    local Two = nn.class("Two")
    function Two:__init() self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3) end
    function Two:forward(v, bad)
      if bad then error "bad input" end
      return self.a(v)
    end
    local m = dist.fully_shard(Two())
    assert(not pcall(m, moth.ones(2, 3), true))
    m(moth.ones(2, 3)):sum():backward()
    assert(m.a.weight.grad and m.b.weight.grad == nil)
  end

  -- a block is called by itself, before and after the whole
  do
    local one, m = net:clone(), shard(net:clone())
    local v = moth.randn(2, 10)
    close("block", m.blocks[1](v), one.blocks[1](v))
    lossf(m(mine), target):backward()
    close("block", m.blocks[1](v), one.blocks[1](v))
    lossf(m(mine), target):backward()
    lossf(one(x), y):backward()
    lossf(one(x), y):backward()
    compare.modules("blocks", m, one)
  end

  -- an overflow in one rank's shard leaves out the step on all
  do
    local m = dist.fully_shard(nn.Linear(8, 8 * size))
    local scaler, sgd = moth.amp.GradScaler { enabled = true }, moth.optim.SGD(m:parameters(), { lr = 1 })
    local was = m.weight:detach():clone()
    scaler:scale(m(moth.ones(1, 8)):sum()):backward()
    if rank == size - 1 then moth.no_grad(function() m.weight.grad:fill_(math.huge) end) end
    scaler:step(sgd)
    assert(moth.equal(was, m.weight:detach()), "the step was left out")
    scaler:update()
    sgd:zero_grad()
    scaler:scale(m(moth.ones(1, 8)):sum()):backward()
    scaler:step(sgd)
    close("scaled", m.weight, was - 1)
  end

  -- fake parameters get their values when they are sharded, module by module
  do
    moth.manual_seed(20)
    local real = nn.Linear(9, 7)
    moth.manual_seed(20)
    local fake = moth.fake_mode(function() return nn.Linear(9, 7) end)
    dist.fully_shard(fake)
    close("fake", dist.full_tensor(fake.weight), real.weight, 0)
    fake(moth.ones(1, 9)):sum():backward()
    assert(fake.bias.grad)
    local norm = moth.fake_mode(function() return nn.Sequential(nn.BatchNorm1d(3, { affine = false })) end)
    dist.fully_shard(norm)
    close("fake buffers", norm:eval()(moth.ones(2, 3)), moth.ones(2, 3), 1e-4)
    local Table = nn.class("Table")
    function Table:__init()
      self.w = nn.Parameter(moth.randn(2))
      self:register_buffer("t", moth.arange(2))
    end
    local ok, message = pcall(dist.fully_shard, moth.fake_mode(function() return Table() end), { init_fn = function(m)
      nn.init.ones_(m.w)
    end })
    assert(not ok and message:find("gave the fake buffer 't' of nn.Table no value", 1, true), message)
  end

  -- bytes: a step's peak over what is there before and after is at most the gradients' shards and three units #M379
  if size == 2 then
    local width, count = 256, 6
    local layers, o = {}, { mesh = dist.new_group() }
    for i = 1, count do layers[i] = dist.fully_shard(nn.Linear(width, width, { bias = false }), o) end
    local m = dist.fully_shard(nn.Sequential(unpack(layers)), o)
    local v = moth.randn(1, width)
    local function step() m(v):sum():backward() end
    step()
    m:zero_grad()
    collectgarbage()
    if size > 1 and dist.get_backend() ~= "local" then -- threads share the allocator
      collectgarbage "stop"
      moth.memory.reset_peak()
      local before = moth.memory.stats().live
      step()
      local after = moth.memory.stats()
      collectgarbage "restart"
      local one = width * width * 4
      -- the peak of a step over what was there before it
      local function peak_of_step()
        for _ = 1, 3 do
          collectgarbage()
          moth.zeros(1)
        end
        collectgarbage "stop"
        moth.memory.reset_peak()
        local live = moth.memory.stats().live
        step()
        local peak = moth.memory.stats().peak - live
        collectgarbage "restart"
        return peak / one
      end
      local more = peak_of_step() -- adds to the gradients that are there: to no second set of them
      assert(more <= 3.1 + 2 / size, "accumulating: " .. more .. " units")
      m:zero_grad()
      m:set_requires_gradient_sync(false) -- whole gradients, but three whole units
      more = peak_of_step()
      assert(more <= count + 3.1, "without reduction: " .. more .. " units")
      m:set_requires_gradient_sync(true)
      m:zero_grad()
      step()
      m:zero_grad()
      local limit = count * one / size + 3.1 * one
      assert(after.peak - before <= limit, ("peak %d over %d"):format(after.peak - before, limit))
      print(("peak over live: %.2f units"):format((after.peak - before - count * one / size) / one))
    end
    -- the order of calls: each unit is gathered before it is used, the next one ahead, in backward, too; its gradients
    -- are on their way while the one before it computes #M379
    if size > 1 then
      local calls, from = {}, #dist.flight_record(o.mesh)
      m:set_reshard_after_forward(true)
      step()
      local record = dist.flight_record(o.mesh)
      for i = from + 1, #record do
        local what, unit = record[i].where:match "^fully_shard %((%a)%a* of (%d)%)$"
        calls[#calls + 1] = what and what .. unit or record[i].op
      end
      local expected = "p0 p1 p2 p3 p4 p5 p5 p4 g5 p3 g4 p2 g3 p1 g2 p0 g1 g0"
      assert(table.concat(calls, " ") == expected, table.concat(calls, " "))
    end
    if size > 1 then -- parameters, gradients and the optimizer's state are 1 / ranks #M378
      local b = moth.memory.breakdown(m, moth.optim.Adam(m:parameters()), v).measured
      local bytes, limit = b.parameters + b.gradients + b.optimizer_state, 4 * count * width * width * 4 / size
      assert(bytes <= limit * 1.05, "bytes: " .. bytes / limit)
    end
    -- 1.5 times the bytes of DistributedDataParallel #M380
    if size == 2 and dist.get_backend() ~= "local" then
      m:set_reshard_after_forward(true)
      step()
      local s = dist.stats(o.mesh).bytes_sent
      step()
      s = dist.stats(o.mesh).bytes_sent - s
      assert(math.abs(s / (count * width * width * 4) - 1.5) < 0.01, "bytes sent: " .. s)
    end
  end

  if dist.get_backend() ~= "local" then -- a model that nobody has any more is freed
    local function live()
      for _ = 1, 3 do
        collectgarbage()
        moth.zeros(1)
      end
      return moth.memory.stats().live
    end
    local function once()
      dist.fully_shard(nn.Linear(256, 256))(moth.ones(1, 256)):sum():backward()
    end
    once()
    local before = live()
    for _ = 1, 3 do once() end
    assert(live() - before < 100000, "bytes left: " .. live() - before)
  end

  -- errors
  local function fails(text, fn, ...)
    local ok, message = pcall(fn, ...)
    assert(not ok and message:find(text, 1, true), message)
  end
  local twice = dist.fully_shard(nn.Linear(2, 2))
  fails("nn.FSDPLinear is a unit already", dist.fully_shard, twice)
  local pair = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
  pair[2].weight = pair[1].weight
  dist.fully_shard(pair[1])
  fails("parameter 'weight' of nn.Linear is shared with Linear, which is a unit of its own", dist.fully_shard, pair)
  fails("is cut over ranks: copy it before fully_shard", twice.clone, twice)
  fails("move it, or convert it, before fully_shard", twice.to, twice, moth.float64)
  if size > 1 then
    local other = dist.fully_shard(nn.Linear(2, rank == 1 and 3 or 2))
    fails("parameter 1 is unit FSDPLinear: float32 [", other, moth.ones(1, 2))
  end
  fails("mp.param_dtype: expected a floating-point dtype", dist.fully_shard, nn.Linear(2, 2), { mp = {
    param_dtype = moth.int64 } })
  dist.barrier()
  return B
end
