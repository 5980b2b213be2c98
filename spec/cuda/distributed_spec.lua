-- Models that are cut over two processes, on CUDA: what travels goes through the host's memory.
local ranks = require "distributed.ranks"
local moth = require "moth"

-- All ranks run the code, in which `close` compares tensors.
local function run(code)
  local emulation = os.getenv "MOTH_CUDA"
  local env = { emulation and "MOTH_CUDA=" .. emulation or "" }
  for i, r in ipairs(ranks.run { size = 2, limit = 60, env = env, code = [[
    local nn, compare = moth.nn, require "distributed.compare"
    local function close(what, a, b, tolerance) compare.close(what, a:cpu(), b:cpu(), tolerance) end
    moth.manual_seed(1)
    ]] .. code }) do
    assert(r.rc == 0, ("rank %d: %s"):format(i - 1, r.out))
  end
end

describe("on CUDA", function()
  before_each(function() return moth.cuda.is_available() or pending(moth.cuda.why()) end)

  it("fully_shard equals one process, with shards on the device and in the host's memory", function()
    run [[
      local function block() return nn.Sequential(nn.Linear(16, 33), nn.Tanh(), nn.Linear(33, 16)) end
      for _, offload in ipairs { false, true } do
        local one = nn.Sequential(block(), block()):cuda()
        local net = one:clone()
        for i = 1, 2 do dist.fully_shard(net[i], { offload = offload }) end
        dist.fully_shard(net, { offload = offload })
        local x = moth.randn(8, 16):cuda()
        local mine = x:narrow(1, 4 * rank + 1, 4)
        local o = { lr = 0.1, momentum = 0.9 }
        local a, b = moth.optim.SGD(net:parameters(), o), moth.optim.SGD(one:parameters(), o)
        for _ = 1, 2 do
          a:zero_grad()
          b:zero_grad()
          net(mine):pow(2):mean():backward()
          one(x):pow(2):mean():backward()
          local n = nn.utils.clip_grad_norm_(net:parameters(), 0.1)
          close("norm", n, nn.utils.clip_grad_norm_(one:parameters(), 0.1))
          a:step()
          b:step()
        end
        local p = net[1][1].weight
        assert(p:device().type == (offload and "cpu" or "cuda") and net(mine):device().type == "cuda")
        close("weight", dist.full_tensor(p), one[1][1].weight)
      end]]
  end)

  it("tensor and context parallelism and experts do", function()
    run [[
      local layer = nn.TransformerEncoderLayer(16, 4, 24, 0, { batch_first = true }):cuda()
      local cut = dist.tp.parallelize(layer:clone(), dist.device_mesh { 2 }, { self_attn = "heads", linear1 = "column",
        linear2 = "row" })
      local x = moth.randn(2, 8, 16):cuda()
      close("heads", cut(x), layer(x))
      local part = dist.context.split(x, 2):contiguous()
      local ring = dist.context_parallel(layer:clone(), dist.device_mesh { 2 })
      local y, z = ring(part, nil, nil, true), layer(x, nil, nil, true)
      close("ring", y, dist.context.split(z, 2))
      y:sum():backward()
      z:sum():backward()
      local g = ring.self_attn.in_proj_weight.grad:clone()
      dist.all_reduce(g)
      close("gradient of the ring", g, layer.self_attn.in_proj_weight.grad, 1e-5)
      local moe = dist.MoE(16, 8, { num_experts = 4, device = "cuda" })
      local words = dist.tp.VocabParallelEmbedding(9, 16, { device = "cuda" })
      moe(words(moth.tensor({ 1, 9, 5 }, { dtype = moth.int64 }):cuda())):sum():backward()
      assert(moe.w1.grad:device().type == "cuda" and words.weight.grad)]]
  end)
end)
