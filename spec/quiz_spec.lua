-- The five answers of the course's quiz, shown.
local moth = require "moth"
local nn, dist = moth.nn, require "moth.distributed"

describe("the quiz #M539", function()
  it("1: leaves keep gradients and add up what comes; other tensors keep them if asked", function()
    local w = moth.tensor({ 1, 2 }, { requires_grad = true })
    local y, z = w * 3, w * 5
    z:retain_grad();
    (y + z):sum():backward()
    assert.is_true(w:is_leaf())
    assert.is_false(y:is_leaf())
    assert.is_nil(y.grad)
    assert.same({ 1, 1 }, z.grad:totable())
    assert.same({ 8, 8 }, w.grad:totable());
    (w * 3):sum():backward()
    assert.same({ 11, 11 }, w.grad:totable())
  end)

  it("2: a branch on a value breaks the graph, and fullgraph makes that an error", function()
    local function f(x) if x:sum():item() > 0 then return x * 2 end return x - 1 end
    local x = moth.ones(3)
    local report = moth.compile.explain(f, x)
    assert.equal(1, report.graph_break_count)
    assert.same({ 2, 2, 2 }, moth.compile(f)(x):totable())
    local ok, message = pcall(moth.compile(f, { fullgraph = true }), x)
    assert.is_false(ok)
    assert.matches("item", message)
  end)

  it("3: a rank of fully_shard keeps its part of parameters, gradients and the optimizer's state", function()
    local function run(world)
      local kept = 0
      dist.init_process_group("fake", { rank = 0, world_size = world })
      local net = nn.Sequential(nn.Linear(16, 16, { bias = false }), nn.Linear(16, 16, { bias = false }))
      dist.fully_shard(net)
      local adam = moth.optim.Adam(net:parameters(), { lr = 0.1 })
      net(moth.ones(2, 16)):sum():backward()
      adam:step()
      for _, p in ipairs(net:parameters()) do
        kept = kept + p:numel() + p.grad:numel() + adam.state[p].exp_avg:numel() + adam.state[p].exp_avg_sq:numel()
      end
      dist.destroy_process_group()
      return kept
    end
    assert.equal(4 * 2 * 256, run(1))
    assert.equal(4 * 2 * 256 / 4, run(4))
  end)

  it("4: a checkpoint keeps less between forward and backward, and computes it again", function()
    local calls = 0
    local block = nn.Linear(64, 64)
    local function layer(x)
      calls = calls + 1
      return block(x):tanh():sigmoid():tanh()
    end
    local function run(checkpointed)
      calls = 0
      local x = moth.ones(256, 64, { requires_grad = true })
      local before = moth.memory.stats().live
      local y = x
      for _ = 1, 4 do y = checkpointed and moth.utils.checkpoint(layer, y) or layer(y) end
      collectgarbage()
      local kept = moth.memory.stats().live - before
      y:sum():backward()
      return kept, calls, x.grad
    end
    local kept, n, grad = run(false)
    local less, again, same = run(true)
    assert.is_true(less < kept / 2)
    assert.same({ 4, 8 }, { n, again })
    assert.is_true(moth.equal(grad, same))
  end)

  it("5: GradScaler keeps small gradients of float16 from being zero, and skips a step with an infinite one", function()
    local w = moth.tensor({ 1 }, { requires_grad = true })
    local function loss(w16) return (w16 * 1e-3):mul(1e-5):sum() end
    loss(w:half()):backward()
    assert.equal(0, w.grad:item())
    w.grad = nil
    local sgd = moth.optim.SGD({ w }, { lr = 1 })
    local scaler = moth.amp.GradScaler("cpu", { init_scale = 2 ^ 12 })
    scaler:scale(loss(w:half())):backward()
    scaler:unscale_(sgd)
    assert.is_true(math.abs(w.grad:item() / 1e-8 - 1) < 0.01)
    sgd:zero_grad()
    scaler = moth.amp.GradScaler("cpu", { init_scale = 2 ^ 16 })
    scaler:scale((w * math.huge):sum()):backward()
    local was = w:item()
    scaler:step(sgd)
    scaler:update()
    assert.equal(was, w:item())
    assert.equal(2 ^ 15, scaler:get_scale())
  end)
end)
