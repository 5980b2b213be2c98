-- The wrappers over fully_shard on one rank: FullyShardedDataParallel, ZeroRedundancyOptimizer, moth.zero; state dicts.
local moth = require "moth"
local dist = require "moth.distributed"
local compare = require "distributed.compare"
local nn, fsdp = moth.nn, dist.fsdp
local close = compare.close

local function make() return nn.Sequential(nn.Linear(6, 11), nn.Tanh(), nn.Linear(11, 8), nn.BatchNorm1d(8),
  nn.Linear(8, 5)) end

local function fails(text, fn, ...)
  local ok, message = pcall(fn, ...)
  assert(not ok and message:find(text, 1, true), message)
end

return function(rank, size)
  local lossf = nn.MSELoss()
  moth.manual_seed(4)
  local first = make():eval() -- batch statistics are those of each rank
  local x, y = moth.randn(4 * size, 6), moth.randn(4 * size, 5)
  local mine, target = x:narrow(1, 4 * rank + 1, 4), y:narrow(1, 4 * rank + 1, 4)

  local function reference(steps, make_optimizer)
    local one = first:clone()
    local opt = make_optimizer(one:parameters())
    for _ = 1, steps do
      opt:zero_grad()
      lossf(one(x), y):backward()
      opt:step()
    end
    return one, opt
  end
  local function adam(params) return moth.optim.AdamW(params, { lr = 0.01 }) end

  -- the strategies give equal parameters #M377
  local one, one_opt = reference(3, adam)
  local strategies = { "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD" }
  if size == 4 then strategies[4] = "HYBRID_SHARD" end
  local net, opt
  for _, strategy in ipairs(strategies) do
    local o = { sharding_strategy = strategy, auto_wrap_policy = fsdp.transformer_auto_wrap_policy { nn.Linear } }
    if strategy == "HYBRID_SHARD" then o.device_mesh = dist.device_mesh { 2, 2 } end
    local wrapped = first:clone()
    if rank > 0 then moth.no_grad(function() wrapped[1].weight:zero_() end) end
    o.sync_module_states = true
    net = fsdp.FullyShardedDataParallel(wrapped, o)
    opt = adam(net:parameters())
    for _ = 1, 3 do
      opt:zero_grad()
      lossf(net(mine), target):backward()
      opt:step()
    end
    compare.modules(strategy, net.module, one)
    assert(tostring(net):find("FSDPLinear", 1, true), "printing shows units #M375")
  end
  net:no_sync(function() lossf(net(mine), target):backward() end)
  net:clip_grad_norm_(1)

  -- wrappers inside of a wrapper leave names as they are
  do
    local whole, FSDP = one:clone(), fsdp.FullyShardedDataParallel
    local inside = whole:clone()
    local outer = FSDP(nn.Sequential(FSDP(inside[1]), inside[2], FSDP(inside[3]), inside[4], inside[5]))
    local names, plain = outer:state_dict(), make()
    plain:load_state_dict(names)
    plain:zero_grad()
    whole:zero_grad()
    compare.modules("names", plain, whole)
    assert(outer:optim_state_dict(adam(outer:parameters())).param_groups[1].params[1] == "0.weight")
  end

  -- whole states, there and back #M383
  local every, all = fsdp.StateDictType, net:state_dict()
  for name, t in one:named_parameters() do close("whole " .. name, all[name], t) end
  local first_only = { offload_to_cpu = true, rank0_only = true }
  local sd = net:state_dict_type(every.FULL_STATE_DICT, first_only, function() return net:state_dict() end)
  if rank == 0 then
    for name, t in one:named_parameters() do close("state " .. name, sd[name], t) end
    assert(sd["3.running_mean"]:size(1) == 8)
  else
    assert(next(sd) == nil)
  end
  local on_first, cut = net:state_dict { full = true }, net:state_dict { full = false }
  for name, t in pairs(on_first) do close("full " .. name, t, sd[name]) end
  assert((next(on_first) ~= nil) == (rank == 0))
  close("its part", dist.full_tensor(cut["0.weight"]), one[1].weight)
  local again = fsdp.FullyShardedDataParallel(make():eval(), { auto_wrap_policy =
    fsdp.size_based_auto_wrap_policy { min_num_params = 80 } })
  again:set_state_dict_type(every.FULL_STATE_DICT, first_only)
  again:load_state_dict(sd)
  compare.modules("loaded", again.module, one:clone())
  local was = again:set_state_dict_type "SHARDED_STATE_DICT"
  assert(was.state_dict_config.rank0_only and again:get_state_dict_type().state_dict_type == "SHARDED_STATE_DICT")
  local parts = again:state_dict()
  assert(parts["0.weight"]:size(1) == again.module[1].weight:size(1))
  close("part", dist.full_tensor(parts["0.weight"]), one[1].weight)
  moth.no_grad(function() for name, t in pairs(parts) do parts[name] = t:clone() * 1 end end)
  moth.no_grad(function() again.module[1].weight:zero_() end)
  again:load_state_dict(parts)
  again:load_state_dict(all)
  compare.modules("loaded", again.module, one:clone())
  fails("expected FULL_STATE_DICT", again.set_state_dict_type, again, "HALF")
  -- files of either type
  local dir = os.tmpname() .. ".of." .. size
  local list = { dir }
  dist.broadcast_object_list(list)
  for _, kind in ipairs { every.SHARDED_STATE_DICT, every.FULL_STATE_DICT } do
    net:set_state_dict_type(kind)
    dist.checkpoint.save(net:state_dict(), list[1])
    assert(table.concat(dist.checkpoint.info(list[1]).tensors["0.weight"].shape, ",") == "11,6")
    for _, into in ipairs { every.FULL_STATE_DICT, every.SHARDED_STATE_DICT } do
      moth.no_grad(function() again.module[1].weight:zero_() end)
      again:set_state_dict_type(into)
      again:load_state_dict(dist.checkpoint.load(again:state_dict(), list[1]))
      compare.modules("file", again.module, one:clone())
    end
  end
  for _, what in ipairs { net:state_dict(), net } do -- a module may be loaded as its state dict, and the other way
    dist.checkpoint.save({ m = what }, list[1])
    moth.no_grad(function() again.module[1].weight:zero_() end)
    again:load_state_dict(dist.checkpoint.load({ m = again:state_dict() }, list[1]).m)
    compare.modules("state dict", again.module, one:clone())
    moth.no_grad(function() again.module[1].weight:zero_() end)
    dist.checkpoint.load({ m = again }, list[1])
    compare.modules("module", again.module, one:clone())
    local plain = make():eval()
    dist.checkpoint.load({ m = plain }, list[1])
    compare.modules("a plain module", plain, one:clone())
  end
  dist.barrier()
  if rank == 0 then os.execute("rm -r " .. list[1]) end
  again:summon_full_params(function()
    close("summoned", again.module[1].weight, one[1].weight)
    moth.no_grad(function() again.module[1].weight:mul_(2) end)
  end)
  close("written back", dist.full_tensor(again.module[1].weight), one[1].weight * 2)
  local low = fsdp.FullyShardedDataParallel(one:clone(), { mixed_precision = { param_dtype = moth.bfloat16 } })
  low:summon_full_params(function() close("summoned", low.module[1].weight, one[1].weight, 0) end)
  compare.modules("summoned", low.module, (function()
    local plain = one:clone()
    plain:zero_grad()
    return plain
  end)(), 0)
  local osd = dist.get_optimizer_state_dict(net, opt, { full_state_dict = true })
  close("moments", osd.state["0.weight"].exp_avg, one_opt.state[one[1].weight].exp_avg)
  local other = adam(again:parameters())
  dist.set_optimizer_state_dict(again, other, osd, { full_state_dict = true })
  local p = again.module[1].weight
  close("moments back", dist.full_tensor(other.state[p].exp_avg, p), osd.state["0.weight"].exp_avg)
  for i = 1, size < 4 and 2 or 1 do -- parts fit where they are cut the same way
    local kind = i == 1 and every.FULL_STATE_DICT or every.SHARDED_STATE_DICT
    net:set_state_dict_type(kind)
    again:set_state_dict_type(kind)
    local named = net:optim_state_dict(opt)
    assert(named.param_groups[1].params[1] == "0.weight")
    local loaded = adam(again:parameters())
    loaded:load_state_dict(again:optim_state_dict_to_load(loaded, named))
    close("moments by name", dist.full_tensor(loaded.state[p].exp_avg, p), osd.state["0.weight"].exp_avg)
    again:optim_state_dict_to_load(adam(again:parameters()), named, { load_directly = true })
  end
  local flat = dist.get_optimizer_state_dict(net, opt, { full_state_dict = true, flatten_optimizer_state_dict = true })
  close("flat", flat["state.0.weight.exp_avg"], osd.state["0.weight"].exp_avg)
  assert(flat["param_groups.0.weight.lr"] == 0.01)
  local model_sd, optim_sd = dist.get_state_dict(net, opt, { full_state_dict = true })
  local third = adam(again:parameters())
  dist.set_state_dict(again, { third }, model_sd, flat, { full_state_dict = true })
  close("both", dist.full_tensor(third.state[p].exp_avg, p), optim_sd.state["0.weight"].exp_avg)
  fails("0.weight: the state has [2, 2], the model [11, 6]", dist.set_model_state_dict, again,
    { ["0.weight"] = moth.ones(2, 2) }, { full_state_dict = true, strict = false })
  fails("expected FULL_SHARD", fsdp.FullyShardedDataParallel, make(), { sharding_strategy = "HALF" })

  -- the optimizer's state over the ranks
  local ddp = dist.DistributedDataParallel(first:clone())
  local zero = dist.ZeroRedundancyOptimizer(ddp:parameters(), moth.optim.AdamW, { lr = 0.01 })
  for _ = 1, 3 do
    zero:zero_grad()
    lossf(ddp(mine), target):backward()
    zero:step()
  end
  compare.modules("ZeroRedundancyOptimizer", ddp.module, one)
  local kept = 0
  for _, q in ipairs(ddp:parameters()) do if next(zero.state[q]) then kept = kept + q:numel() end end
  assert(size == 1 or kept < first:num_parameters() * 0.8, "state of " .. kept)
  fails("consolidate_state_dict", zero.state_dict, zero)
  zero:consolidate_state_dict(0)
  if rank == 0 then
    local full = zero:state_dict()
    close("consolidated", full.state[1].exp_avg, one_opt.state[one[1].weight].exp_avg)
    zero:load_state_dict(full)
  end

  -- its state, without consolidation: by names, and in a checkpoint, which another optimizer loads
  do
    local named = dist.get_optimizer_state_dict(ddp, zero)
    close("state by name", named.state["2.weight"].exp_avg, one_opt.state[one[3].weight].exp_avg)
    dist.set_optimizer_state_dict(ddp, zero, named)
    dist.checkpoint.save({ m = ddp, o = zero }, list[1])
    local bare = make():eval()
    local loaded = adam(bare:parameters())
    dist.checkpoint.load({ m = bare, o = loaded }, list[1])
    for k, t in ipairs(bare:parameters()) do
      local like = one_opt.state[one:parameters()[k]]
      close("loaded", loaded.state[t].exp_avg_sq, like.exp_avg_sq)
      assert(loaded.state[t].step == like.step)
    end
    dist.checkpoint.load({ m = ddp, o = zero }, list[1])
    for _, t in ipairs(zero:owned()) do assert(zero.state[t].step == 3) end
    dist.barrier()
    if rank == 0 then os.execute("rm -r " .. list[1]) end
  end

  -- a configuration, stage by stage #M384 #M385 #M386
  local reached = reference(2, adam)
  for stage = 0, 3 do
    local engine, optimizer = moth.zero.initialize { model = first:clone(), config = {
      zero_optimization = { stage = stage, min_unit_params = 50 }, gradient_accumulation_steps = 2,
      optimizer = { type = "AdamW", params = { lr = 0.01 } }, train_micro_batch_size_per_gpu = 2 } }
    for _ = 1, 2 do
      for half = 0, 1 do
        local loss = lossf(engine(mine:narrow(1, 1 + 2 * half, 2)), target:narrow(1, 1 + 2 * half, 2))
        engine:backward(loss)
        engine:step()
      end
    end
    assert(engine.global_steps == 2 and optimizer)
    for name, t in reached:named_parameters() do
      local model = stage < 2 and engine.net.module or engine.net
      local owner = model:get_submodule(name:match "^(.*)%." or "")
      close(("stage %d %s"):format(stage, name), dist.full_tensor(owner._parameters[name:match "[^.]+$"]), t)
    end
  end
  -- the optimizers of a configuration, by DeepSpeed's names
  for _, case in ipairs { { "Adam", "AdamW", { lr = 0.01, weight_decay = 0.1 } }, { "SGD", "SGD", { lr = 0.1 } },
    { "Adam", "Adam", { lr = 0.01, weight_decay = 0.1 }, false }, { "AdamW", "AdamW", { lr = 0.01 } },
    { "Lamb", "LAMB", { lr = 0.01, weight_decay = 0.1 } }, { "Lion", "Lion", { lr = 0.01 } },
    { "Adagrad", "Adagrad", { lr = 0.1 } } } do
    local name, like, options = case[1], case[2], { adam_w_mode = case[4] }
    local whole = reference(2, function(params) return moth.optim[like](params, case[3]) end)
    whole:zero_grad()
    for key, value in pairs(case[3]) do options[key] = value end
    for _, stage in ipairs { 1, 3 } do
      local engine = moth.zero.initialize { model = first:clone(), config = { zero_optimization = { stage = stage },
        optimizer = { type = name, params = options } } }
      for _ = 1, 2 do
        engine:backward(lossf(engine(mine), target))
        engine:step()
      end
      compare.modules(name .. " at stage " .. stage, stage < 2 and engine.net.module or engine.net, whole, 1e-5)
    end
  end
  fails("expected Adam, AdamW, SGD, Lamb, Lion or Adagrad, got Muon", moth.zero.initialize, { model = first:clone(),
    config = { optimizer = { type = "Muon" } } })
  if dist.get_backend() ~= "local" then -- the peak of a step falls with each stage
    local before = math.huge
    for stage = 0, 3 do
      local layers = {}
      for i = 1, 4 do layers[i] = nn.Linear(128, 128, { bias = false }) end
      local engine = moth.zero.initialize { model = nn.Sequential(unpack(layers)), config = {
        zero_optimization = { stage = stage }, optimizer = { type = "Adam" } } }
      layers = nil -- luacheck: ignore
      local live, peak
      for _ = 1, 2 do
        for _ = 1, 3 do
          collectgarbage()
          moth.zeros(1)
        end
        moth.memory.reset_peak()
        live = moth.memory.stats().live
        engine:backward(engine(moth.ones(1, 128)):sum())
        engine:step()
      end
      peak = moth.memory.stats().peak
      assert(peak < before, ("stage %d: %d bytes, the one before %d"):format(stage, peak, before))
      before = peak
      assert(live < peak)
    end
  end
  for _, stage in ipairs { 1, 3 } do
    local half = moth.zero.initialize { model = first:clone(), config = { fp16 = { enabled = true,
      initial_scale_power = 40 }, gradient_clipping = 1, zero_optimization = { stage = stage },
      optimizer = { type = "Adam", params = { lr = 0.01 } }, scheduler = { type = "WarmupLR" } } }
    for _ = 1, 3 do
      half:backward(lossf(half(mine):float(), target))
      half:step()
    end
    assert(half.scale.value < 2 ^ 40 and half.global_steps < 3, "the scale fell")
  end
  fails("stage: 0, 1, 2 or 3, got 4", moth.zero.initialize, { model = first, config = {
    zero_optimization = { stage = 4 } } })
  fails("there is no optimizer", moth.zero.initialize, { model = first, config = {} })
  assert(moth.zero.ZeroOptimizer(first:parameters(), { stage = 1, lr = 0.1 }):owned())
  dist.barrier()
end
