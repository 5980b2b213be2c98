-- All optimizers on parameters that are cut over ranks, on one rank, against one process with the whole ones.
local moth = require "moth"
local dist = require "moth.distributed"
local compare = require "distributed.compare"
local nn, optim = moth.nn, moth.optim

-- Rows that the ranks do not divide, a row for some ranks only, and a parameter without dimensions.
local Net = nn.class("Net")
function Net:__init(matrices)
  self.a, self.b = nn.Linear(6, 7, { bias = not matrices }), nn.Linear(7, 2, { bias = not matrices })
  if not matrices then self.scale = nn.Parameter(moth.full({}, 1.5)) end
end
function Net:forward(x)
  local y = self.b(self.a(x):tanh())
  return self.scale and y * self.scale or y
end

local list = {
  { "SGD", { lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 0.1 } }, { "Adam", { weight_decay = 0.1 } },
  { "AdamW", {} }, { "RMSprop", { momentum = 0.5, centered = true } }, { "Adagrad", {} }, { "Adadelta", {} },
  { "Adamax", {} }, { "NAdam", {} }, { "RAdam", {} }, { "Rprop", {} }, { "ASGD", { t0 = 1 } }, { "Lion", {} },
  { "LAMB", { weight_decay = 0.1 } }, { "Adafactor", { weight_decay = 0.1 } },
  { "Muon", { adjust_lr_fn = "match_rms_adamw" } }, { "LBFGS", { max_iter = 4 } },
  { "LBFGS", { line_search_fn = "strong_wolfe", max_iter = 4 } },
}

local function fails(text, fn, ...)
  local ok, message = pcall(fn, ...)
  assert(not ok and message:find(text, 1, true), message)
end

return function(rank, size)
  local lossf = nn.MSELoss()
  moth.manual_seed(5)
  local nets = { [false] = Net(false), [true] = Net(true) }
  local x, y = moth.randn(4 * size, 6), moth.randn(4 * size, 2)
  local mine, target = x:narrow(1, 4 * rank + 1, 4), y:narrow(1, 4 * rank + 1, 4)
  local group = dist.new_group()

  local function run(m, opt, name, v, w)
    local function closure()
      opt:zero_grad()
      local loss = lossf(m(v), w)
      loss:backward()
      return loss
    end
    if name == "LBFGS" then return opt:step(closure) end
    closure()
    opt:step()
  end

  local ways = {
    fully_shard = function(m)
      dist.fully_shard(m.a, { mesh = group })
      return dist.fully_shard(m, { mesh = group })
    end,
    tensor_parallel = function(m) return dist.tp.parallelize(m, group, { a = "column", b = "row" }) end,
  }
  if size == 4 then
    ways = { both = function(m)
      local mesh = dist.device_mesh({ 2, 2 }, { "dp", "tp" })
      dist.tp.parallelize(m, mesh.tp, { a = "column", b = "row" })
      return dist.fully_shard(m, { mesh = mesh.dp })
    end, replicas = function(m)
      return dist.fully_shard(m, { mesh = dist.device_mesh({ 2, 2 }, { "replica", "shard" }) })
    end }
  end
  for _, way in ipairs(size == 4 and { "both", "replicas" } or size == 2
    and { "fully_shard", "tensor_parallel" } or { "fully_shard" }) do
    for i, case in ipairs(list) do
      local name = case[1]
      if size ~= 4 or i > 12 then
        local whole = nets[name == "Muon"]
        local one, cut = whole:clone(), ways[way](whole:clone())
        local a, b = optim[name](cut:parameters(), case[2]), optim[name](one:parameters(), case[2])
        local rate = moth.optim.lr_scheduler.StepLR(a, 1, { gamma = 0.9 })
        local same_rate = moth.optim.lr_scheduler.StepLR(b, 1, { gamma = 0.9 })
        local v, w = mine, target
        if way == "tensor_parallel" then v, w = x, y end
        if way == "both" then
          local half = math.floor(rank / 2)
          v, w = x:narrow(1, 8 * half + 1, 8), y:narrow(1, 8 * half + 1, 8)
        end
        for _ = 1, 2 do
          run(cut, a, name, v, w)
          run(one, b, name, x, y)
          rate:step()
          same_rate:step()
        end
        -- products in bfloat16 turn a rounding error of a gradient into one of 2^-8
        compare.modules(way .. " " .. name, cut, one, name == "Muon" and 1e-2 or 2e-5)

        -- the state: whole, and back into the parts
        if name ~= "LBFGS" then
          local sd = dist.get_optimizer_state_dict(cut, a, { full_state_dict = true })
          local names = {}
          for path, p in one:named_parameters() do names[p] = path end
          for p, path in pairs(names) do
            for key, t in pairs(b.state[p]) do
              local got = sd.state[path][key]
              if moth.is_tensor(t) then
                compare.close(("%s %s %s.%s"):format(way, name, path, key), got, t, 1e-4)
              else
                assert(got == t, key)
              end
            end
          end
          local again = optim[name](cut:parameters(), case[2])
          dist.set_optimizer_state_dict(cut, again, sd, { full_state_dict = true })
          run(cut, again, name, v, w)
          run(one, b, name, x, y)
          compare.modules(way .. " again " .. name, cut, one, name == "Muon" and 1e-2 or 2e-5)
        end
      end
    end
  end
  if size == 4 then return dist.barrier() end

  -- rows of an embedding
  local one = nn.Embedding(9, 6, { sparse = true })
  local cut = dist.tp.parallelize(one:clone(), group, { [""] = "column" })
  local index = moth.tensor({ 3, 1, 3 }, { dtype = moth.int64 })
  for _, m in ipairs { one, cut } do
    local opt = optim.SparseAdam(m:parameters(), { lr = 0.1 })
    for _ = 1, 2 do
      opt:zero_grad()
      m(index):pow(2):sum():backward()
      opt:step()
    end
  end
  compare.close("SparseAdam", dist.full_tensor(cut.weight), one.weight)
  local sharded = dist.fully_shard(one:clone()) -- whose gradients are ordinary ones
  sharded(index):sum():backward()
  one:zero_grad()
  one(index):sum():backward()
  compare.close("rows", dist.full_tensor(sharded.weight.grad, sharded.weight), one.weight.grad:to_dense())
  fails("ordinary gradient", function() optim.SparseAdam(sharded:parameters()):step() end)

  -- norms and clips
  do
    local m, whole = dist.fully_shard(nets[false]:clone(), { mesh = group }), nets[false]:clone()
    lossf(m(mine), target):backward()
    lossf(whole(x), y):backward()
    local function grads(of)
      local out = {}
      for i, p in ipairs(of:parameters()) do out[i] = p.grad end
      return out
    end
    for _, kind in ipairs { 0, 1, 2, 3, math.huge, -math.huge } do
      local a, b = nn.utils.get_total_norm(grads(m), kind), nn.utils.get_total_norm(grads(whole), kind)
      compare.close("total norm", a, b, 1e-5)
      compare.close("norm", nn.utils.grad_norm(m:parameters(), kind), b, 1e-5)
    end
    for _, of in ipairs { m, whole } do
      nn.utils.clip_grads_with_norm_(of:parameters(), 0.1, nn.utils.get_total_norm(grads(of)))
      nn.utils.clip_grad_value_(of:parameters(), 0.01)
    end
    compare.modules("clipped", m, whole)
  end

  -- a loss of each rank, and one decision for all
  do
    local plain, ddp = nets[true]:clone(), dist.DistributedDataParallel(nets[true]:clone())
    local o = { line_search_fn = "strong_wolfe", max_iter = 4 }
    local a, b = optim.LBFGS(ddp:parameters(), o), optim.LBFGS(plain:parameters(), o)
    for _ = 1, 2 do
      run(ddp, a, "LBFGS", mine, target)
      run(plain, b, "LBFGS", x, y)
    end
    compare.modules("DDP LBFGS", ddp.module, plain, 1e-4)
  end

  -- the state over the ranks: of whole parameters, by optimizers that step each by itself
  for _, name in ipairs { "LAMB", "Adafactor", "Muon" } do
    local whole = nets[name == "Muon"]
    local plain, ddp = whole:clone(), dist.DistributedDataParallel(whole:clone())
    local zero, b = dist.ZeroRedundancyOptimizer(ddp:parameters(), optim[name], {}), optim[name](plain:parameters())
    for _ = 1, 2 do
      run(ddp, zero, name, mine, target)
      run(plain, b, name, x, y)
    end
    compare.modules("ZeRO " .. name, ddp.module, plain, name == "Muon" and 1e-2 or 2e-5)
  end
  fails("LBFGS steps all parameters as one vector", dist.ZeroRedundancyOptimizer, nets[true]:parameters(), optim.LBFGS)
  if size > 1 then
    fails("is cut over these ranks already", dist.ZeroRedundancyOptimizer,
      dist.fully_shard(nets[true]:clone()):parameters(), optim.Adam)
  end
  dist.barrier()
end
