-- Kinds of parameters under DistributedDataParallel and fully_shard on one rank, against one process with the whole
-- batch: tied, frozen, without elements, of mixed dtypes, of no part in a step, …
local moth = require "moth"
local dist = require "moth.distributed"
local compare = require "distributed.compare"
local nn, optim = moth.nn, moth.optim
local Parameter = nn.Parameter

-- { name, init(module), forward(module, x), options }: tolerance, before(module, step), loss(net, x, rank or -1),
-- unused = true (some parameters take no part), late = true (one is frozen at first)
local cases = {
  { "tied", function(m)
    m.a, m.b = nn.Linear(6, 6), nn.Linear(6, 6)
    m.b.weight = m.a.weight
  end, function(m, x) return m.b(m.a(x):tanh()) end },
  { "strides", function(m)
    m.a, m.b = Parameter(moth.randn(5, 6):t()), Parameter(moth.randn(4, 5, 3):permute(3, 2, 1))
  end, function(m, x) return x:matmul(m.a):matmul(m.b:sum(1)) end },
  { "few elements", function(m)
    m.a, m.b, m.c = Parameter(moth.full({}, 2)), Parameter(moth.empty(0, 3)), Parameter(moth.randn(1, 6))
    m.d = Parameter(moth.empty(3, 0))
  end, function(m, x) return x * m.a * m.c + m.b:sum() + m.d:sum() end },
  { "float64", function(m)
    m.a, m.b = nn.Linear(6, 5, { dtype = moth.float64 }), nn.Linear(5, 3)
  end, function(m, x) return m.b(m.a(x:to(moth.float64)):to(moth.float32)) end },
  { "bfloat16", function(m)
    m.a, m.b = nn.Linear(6, 5, { dtype = moth.bfloat16 }), nn.Linear(5, 3)
  end, function(m, x) return m.b(m.a(x:to(moth.bfloat16)):to(moth.float32)) end, { tolerance = 0.05 } },
  { "integers", function(m)
    m.a = nn.Linear(6, 5)
    m.n = Parameter(moth.tensor({ 1, 2, 3 }, { dtype = moth.int64 }), { requires_grad = false })
  end, function(m, x) return m.a(x) * m.n:sum() end },
  { "trained later", function(m)
    m.a, m.b = nn.Linear(6, 7), nn.Linear(7, 6)
    m.a.weight:requires_grad_(false)
  end, function(m, x) return m.b(m.a(x):tanh()) end, { before = function(m, step)
    m.a.weight:requires_grad_(step > 1)
  end } },
  { "frozen later", function(m) m.a, m.b = nn.Linear(6, 7), nn.Linear(7, 6) end,
    function(m, x) return m.b(m.a(x):tanh()) end, { unused = true, before = function(m, step)
      m.a.weight:requires_grad_(step ~= 2)
    end } },
  { "every other step", function(m) m.a, m.b, m.n = nn.Linear(6, 6), nn.Linear(6, 6), 0 end, function(m, x)
    m.n = m.n + 1
    return m.n % 2 == 1 and m.a(x) or m.b(x)
  end, { unused = true } },
  { "on some ranks", function(m) m.a, m.b = nn.Linear(6, 6), nn.Linear(6, 6) end,
    function(m, x, skip) return skip and m.a(x) or m.b(m.a(x)) end, { unused = true, loss = function(net, x, rank)
      if rank >= 0 then return net(x, rank > 0):square():mean() end
      local sum, n = 0, x:size(1) / 4
      for i = 0, n - 1 do sum = sum + net(x:narrow(1, 4 * i + 1, 4), i > 0):square():mean() end
      return sum / n
    end } },
  { "statistics of all ranks", function(m) m.e, m.a = nn.SyncBatchNorm(6), nn.Linear(6, 2) end,
    function(m, x) return m.a(m.e(x)) end, { tolerance = 1e-5 } },
  { "parametrized", function(m) m.a = nn.utils.parametrizations.weight_norm(nn.Linear(6, 2)) end,
    function(m, x) return m.a(x) end, { tolerance = 1e-5 } },
}

local function loss_of(net, x) return net(x):square():mean() end

return function(rank, size)
  moth.manual_seed(3)
  local x = moth.randn(4 * size, 6)
  local mine = x:narrow(1, 4 * rank + 1, 4)
  local ddp = nn.parallel.DistributedDataParallel
  for _, case in ipairs(cases) do
    local what, o, cls = case[1], case[4] or {}, nn.class("Net")
    cls.__init, cls.forward = case[2], case[3]
    local first = cls()
    for _, wrap in ipairs { function(m) return ddp(m, { find_unused_parameters = o.unused }) end,
      function(m) return ddp(m, { gradient_as_bucket_view = true, find_unused_parameters = o.unused }) end,
      function(m) return dist.fully_shard(m, { reshard_after_forward = true }) end } do
      local one = first:clone()
      local m = wrap(first:clone())
      local a, b = optim.Adam(m:parameters(), { lr = 0.1 }), optim.Adam(one:parameters(), { lr = 0.1 })
      for step = 1, 3 do
        if o.before then
          o.before(m.module or m, step)
          o.before(one, step)
        end
        a:zero_grad()
        b:zero_grad();
        (o.loss or loss_of)(m, mine, rank):backward();
        (o.loss or loss_of)(one, x, -1):backward()
        compare.modules(what .. ", step " .. step, m.module or m, one, o.tolerance or 1e-5)
        nn.utils.clip_grad_norm_(m:parameters(), 0.5)
        nn.utils.clip_grad_norm_(one:parameters(), 0.5)
        a:step()
        b:step()
      end
    end
  end

  -- hooks of the shards get their gradients
  local m = dist.fully_shard(nn.Linear(6, 5))
  local after = 0
  m.weight:register_hook(function(g) return g * 0 end)
  m.weight:register_post_accumulate_grad_hook(function() after = after + 1 end)
  for _ = 1, 2 do m(mine):square():mean():backward() end
  assert(after == 2 and m.weight.grad:abs():sum():item() == 0, "hooks")

  -- a gradient that is differentiated, also where the result's own gradient is a constant
  do
    local one = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 6))
    local cut = one:clone()
    for i = 1, 3, 2 do dist.fully_shard(cut[i], { reshard_after_forward = true }) end
    dist.fully_shard(cut, { reshard_after_forward = true })
    for power = 1, 2 do
      local function penalty(net, v)
        v = v:clone():requires_grad_()
        local g = moth.autograd.grad(net(v):pow(power):sum(), v, { create_graph = true })
        return (type(g) == "table" and g[1] or g):square():mean()
      end
      for _ = 1, 2 do
        one:zero_grad()
        cut:zero_grad()
        penalty(cut, mine):backward()
        penalty(one, x):backward()
        compare.modules("penalty", cut, one)
      end
    end
  end

  -- a result that is an object
  do
    local Result, Outer = nn.class("Result"), nn.class("Outer")
    function Result:__init() self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6) end
    function Result:forward(v) return setmetatable({ out = self.b(self.a(v)) }, { __index = {} }) end
    function Outer:__init() self.r, self.c = Result(), nn.Linear(6, 6) end
    function Outer:forward(v) return self.c(self.r(v).out) end
    local one = Outer()
    local cut = one:clone()
    dist.fully_shard(cut.r)
    dist.fully_shard(cut)
    cut(mine):square():mean():backward()
    one(x):square():mean():backward()
    compare.modules("an object", cut, one)
  end

  -- other methods
  local Two = nn.class("Two")
  function Two:__init() self.a = nn.Linear(6, 5) end
  function Two:forward(v) return self.a(v) end
  function Two:twice(v) return self.a(v) * 2 end
  local whole = Two()
  m = dist.fully_shard(whole:clone())
  dist.register_fsdp_forward_method(m, "twice")
  m:twice(mine):square():mean():backward()
  whole:twice(x):square():mean():backward()
  compare.modules("a method", m, whole)
  local ok, message = pcall(dist.fully_shard, (function()
    local c = Two()
    c.z = Parameter(moth.view_as_complex(moth.randn(3, 2)))
    return c
  end)())
  assert(not ok and message:find("parameter 'z' of nn.Two is complex64", 1, true), message)

  -- a mean of the parameters: whole, or cut as the model
  for _, is_cut in ipairs { false, true } do
    local function averaged(net)
      return optim.swa_utils.AveragedModel(net, { multi_avg_fn = optim.swa_utils.get_ema_multi_avg_fn(0.9) })
    end
    local cut = whole:clone()
    local ema, like = averaged(cut), averaged(whole)
    dist.fully_shard(cut)
    if is_cut then dist.fully_shard(ema.module) end
    for _ = 1, 2 do
      for _, net in ipairs { cut, whole } do
        moth.no_grad(function() for _, p in ipairs(net:parameters()) do p:mul_(1.5) end end)
      end
      ema:update_parameters(cut)
      like:update_parameters(whole)
    end
    compare.modules("mean", ema.module, like.module)
    moth.no_grad(function() for _, p in ipairs(whole:parameters()) do p:div_(2.25) end end)
  end
  dist.barrier()
end
