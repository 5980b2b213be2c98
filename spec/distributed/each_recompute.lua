-- Checkpoints that compute a part of a cut model again, on one rank, against one process without them.
local moth = require "moth"
local dist = require "moth.distributed"
local compare = require "distributed.compare"
local nn, utils = moth.nn, moth.utils

local function block() return nn.Sequential(nn.Linear(10, 21), nn.Tanh(), nn.Linear(21, 10)) end
local Net = nn.class("Net")
function Net:__init(make)
  self.first, self.last = nn.Linear(6, 10), nn.Linear(10, 10)
  self.blocks = nn.ModuleList { make(), make(), make() }
end
function Net:forward(x)
  x = self.first(x)
  for i = 1, 3 do x = x + self.blocks[i](x) end
  return self.last(x:relu())
end
-- Checkpoints inside of forward, two of which read the same parameters.
local Inside = nn.class("Inside")
function Inside:__init() self.a, self.b = nn.Linear(10, 21), nn.Linear(21, 10) end
function Inside:forward(x)
  local function part(v) return self.b(self.a(v):tanh()) end
  if self.plain_first then x = part(x) end -- parameters that are read once more after the checkpoints' backward
  return utils.checkpoint(part, utils.checkpoint(part, x, self.how), self.how)
end

return function(rank, size)
  local lossf = nn.MSELoss()
  moth.manual_seed(7)
  local plain, inside = Net(block), Net(Inside)
  local x, y = moth.randn(3 * size, 6), moth.randn(3 * size, 10)
  local mine, target = x:narrow(1, 3 * rank + 1, 3), y:narrow(1, 3 * rank + 1, 3)

  -- On 2 ranks all cases, on other numbers some.
  local function check(what, net, prepare, tolerance, always)
    if size ~= 2 and not always then return end
    local one, m = net:clone(), net:clone()
    m = prepare(m) or m
    local a, b
    for _ = 1, 2 do
      m:zero_grad()
      one:zero_grad()
      a, b = lossf(m(mine), target), lossf(one(x), y)
      a:backward()
      b:backward()
      compare.modules(what, m.module or m, one, tolerance)
    end
    local loss = a:detach():clone()
    dist.all_reduce(loss, { op = "avg" })
    compare.close(what .. " loss", loss, b, tolerance)
  end

  for _, how in ipairs { { use_reentrant = false }, { use_reentrant = true } } do
    local kind = how.use_reentrant and " (reentrant)" or ""
    local function units(m, wrap, o, of_root)
      for i = 1, 3 do
        wrap(m.blocks[i])
        dist.fully_shard(m.blocks[i], o)
      end
      dist.fully_shard(m, of_root or o)
    end
    local function wrapped(b) utils.checkpoint_wrapper(b, how) end
    check("wrapped, then cut" .. kind, plain, function(m) units(m, wrapped) end, nil, true)
    check("released behind both" .. kind, plain, function(m) units(m, wrapped, { reshard_after_forward = true }) end)
    check("kept" .. kind, plain, function(m) units(m, wrapped, { reshard_after_forward = false }) end)
    check("cut, then wrapped" .. kind, plain, function(m)
      units(m, function() end)
      for i = 1, 3 do wrapped(m.blocks[i]) end
    end)
    check("units inside" .. kind, plain, function(m)
      units(m, function(b)
        wrapped(b[1])
        dist.fully_shard(b[1])
        dist.fully_shard(b[3])
        wrapped(b)
      end)
    end)
    check("no units inside" .. kind, plain, function(m)
      for i = 1, 3 do wrapped(m.blocks[i]) end
      dist.fully_shard(m)
    end)
    local low = { param_dtype = moth.bfloat16, reduce_dtype = moth.float32 }
    check("bfloat16" .. kind, plain, function(m)
      units(m, wrapped, { mp = low }, { mp = { param_dtype = moth.bfloat16, reduce_dtype = moth.float32,
        output_dtype = moth.float32 } })
    end, 0.05)
    check("the wrapper of units" .. kind, plain, function(m)
      utils.apply_activation_checkpointing(m, function(_, name) return name:find "^blocks%.%d$" end, how)
      return dist.fsdp.FullyShardedDataParallel(m, { auto_wrap_policy =
        dist.fsdp.transformer_auto_wrap_policy { nn.Sequential } })
    end)
    local some = plain:clone()
    some.blocks[2][1]:requires_grad_(false)
    some.blocks[3]:requires_grad_(false)
    check("frozen" .. kind, some, function(m) units(m, wrapped) end)
    Inside.how = how
    for _, plain_first in ipairs { false, true } do
      Inside.plain_first = plain_first
      check("inside of forward" .. kind, inside, function(m) units(m, function() end) end, nil, true)
    end
    for _, static in ipairs { false, true } do
      check("averaged" .. kind, plain, function(m)
        for i = 1, 3 do wrapped(m.blocks[i]) end
        return nn.parallel.DistributedDataParallel(m, { static_graph = static })
      end)
    end

    check("compiled" .. kind, plain, function(m)
      wrapped(m.blocks[2])
      dist.fully_shard(m)
      return moth.compile(m, { backend = "blocks" })
    end)

    -- tensor and sequence parallel: norms have other tensors in their places during forward
    local layer = nn.TransformerEncoderLayer(24, 6, 32, 0, { batch_first = true, norm_first = true })
    local cut = layer:clone()
    utils.apply_activation_checkpointing(cut, function(_, name) return name:find "^norm" or name:find "^linear" end,
      how)
    dist.tp.parallelize(cut, dist.new_group(), { self_attn = "heads", linear1 = "column", linear2 = "row",
      sequence = true })
    moth.manual_seed(3)
    local v = moth.randn(2, 6, 24)
    local parts = cut(dist.tp.split(v:clone():requires_grad_(), 2))
    dist.tp.gather(parts, 2, nil, 6):pow(2):sum():backward()
    layer(v):pow(2):sum():backward()
    compare.modules("sequence parallel" .. kind, cut, layer, 1e-5)

    local list, one = {}, nn.Sequential(block(), block(), block(), block())
    for i = 1, 4 do
      list[i] = one[i]:clone()
      if i > 1 then wrapped(list[i]) end -- the first one's input needs no gradient
    end
    local pipe = dist.pipeline(list, { microbatches = 2, schedule = "1f1b" })
    v = moth.randn(4, 10)
    pipe:step(v, v, nn.functional.mse_loss)
    lossf(one(v), v):backward()
    local of = {}
    for name, p in one:named_parameters() do of[name] = p.grad end
    for name, p in pipe:named_parameters() do compare.close("pipeline" .. kind .. name, p.grad, of[name]) end
  end
  dist.barrier()
end
