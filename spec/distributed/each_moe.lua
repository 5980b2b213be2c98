-- Experts over ranks on one rank, against one process with all tokens.
local moth = require "moth"
local dist = require "moth.distributed"
local compare = require "distributed.compare"
local close = compare.close

return function(rank, size)
  local alone = dist.device_mesh({ size, 1 }, { "all", "one" })
  for _, experts in ipairs { 8, 5 } do -- 5 are uneven, and fewer than 8 ranks
    moth.manual_seed(2)
    local cut = dist.MoE(6, 10, { num_experts = experts, top_k = 2, mesh = alone.all })
    moth.manual_seed(2)
    local one = dist.MoE(6, 10, { num_experts = experts, top_k = 2, mesh = alone.one })
    moth.manual_seed(9)
    local x = moth.randn(4 * size, 3, 6)
    local mine = x:narrow(1, 4 * rank + 1, 4):clone():requires_grad_()
    local all = x:clone():requires_grad_()
    local y, z = cut(mine), one(all)
    close("result", y, z:narrow(1, 4 * rank + 1, 4))
    y:pow(2):mean():backward()
    z:pow(2):mean():backward()
    close("input", mine.grad / size, all.grad:narrow(1, 4 * rank + 1, 4))
    dist.all_reduce(cut.router.weight.grad, { op = "avg" })
    compare.modules("experts of " .. experts, cut, one)
    assert(cut.counts:sum():item() == 4 * 3 * 2 and cut.aux_loss:item() >= 0.5)
    -- the norm counts each expert once
    close("norm", moth.nn.utils.grad_norm(cut:parameters()), moth.nn.utils.grad_norm(one:parameters()))
  end

  -- a capacity: what is beyond it is dropped, against the same by hand
  do
    moth.manual_seed(4)
    local full = dist.MoE(6, 10, { num_experts = 4, top_k = 2, mesh = alone.all })
    moth.manual_seed(4)
    local cut = dist.MoE(6, 10, { num_experts = 4, top_k = 2, mesh = alone.all, capacity_factor = 0.75 })
    moth.manual_seed(10 + rank)
    local x = moth.randn(9, 6)
    local a, b = x:clone():requires_grad_(), x:clone():requires_grad_()
    local y, z = full(a), cut(b)
    local capacity, taken, dropped = math.ceil(0.75 * 9 * 2 / 4), { 0, 0, 0, 0 }, 0
    local _, chosen = full.router(x):softmax(2):topk(2, 2)
    local lost = {} -- { token, choice }
    for choice = 1, 2 do
      for token = 1, 9 do
        local e = chosen[token][choice]:item()
        if taken[e] < capacity then
          taken[e] = taken[e] + 1
        else
          dropped, lost[#lost + 1] = dropped + 1, { token, choice }
        end
      end
    end
    assert(cut.dropped == dropped and dropped > 0 and full.dropped == 0, "dropped")
    for e = 1, 4 do assert(cut.counts[e]:item() == taken[e], "counts") end
    local touched = {}
    for _, l in ipairs(lost) do touched[l[1]] = (touched[l[1]] or 0) + 1 end
    for token = 1, 9 do
      if not touched[token] then close("kept", z[token], y[token]) end
      if touched[token] == 2 then assert(z[token]:abs():sum():item() == 0, "both choices are lost") end
    end
    z:pow(2):sum():backward()
    assert(b.grad:isfinite():all():item() and cut.aux_loss:item() == full.aux_loss:item())
    local ample = dist.MoE(6, 10, { num_experts = 4, top_k = 2, mesh = alone.all, capacity_factor = 4 })
    ample:load_state_dict(full:state_dict())
    close("a capacity for all", ample(x), y)
    assert(ample.dropped == 0 and tostring(ample):find("capacity_factor=4", 1, true))
    assert(cut(moth.empty(0, 6)):numel() == 0)
    assert(not pcall(dist.MoE, 4, 4, { num_experts = 2, capacity_factor = 0 }))
  end

  if size < 4 then -- gradients across ranks
    moth.manual_seed(3)
    local moe = dist.MoE(3, 2, { num_experts = 3, top_k = 2, average = false, dtype = moth.float64 })
    local v = moth.randn({ 6, 3 }, { dtype = moth.float64 }):requires_grad_()
    assert(moth.autograd.gradcheck(function(t)
      return dist.tp.gather(moe(dist.tp.split(t, 1)), 1)
    end, v))
  end

  -- in DistributedDataParallel: experts stay, the rest is averaged
  local net = moth.nn.Sequential(moth.nn.Linear(6, 6), dist.MoE(6, 4, { num_experts = 2 * size, top_k = 1 }))
  local ddp = dist.DistributedDataParallel(net)
  ddp(moth.randn(7, 6)):sum():backward()
  compare.same("linear", net[1].weight.grad)
  compare.same("router", net[2].router.weight.grad)
  for _, names in ipairs(ddp:buckets()) do
    for _, name in ipairs(names) do assert(size == 1 or not name:find "w[12]", name) end
  end
  local ok, message = pcall(dist.MoE, 4, 4, { num_experts = 2, top_k = 3 })
  assert(not ok and message:find("top_k is 3, of 2 experts", 1, true), message)
  ok, message = pcall(net[2], moth.ones(2, 5))
  assert(not ok and message:find("expected tokens of 6 numbers, got [2, 5]", 1, true), message)
  dist.barrier()
end
