-- compile's mode "reduce-overhead" on CUDA: a segment is one graph, which is replayed.
local moth = require "moth"
local nn = moth.nn

if not moth.cuda.is_available() then
  describe("compile: modes on CUDA", function() pending("no CUDA: " .. moth.cuda.why(), function() end) end)
  return
end

local modes = require "moth.compile.modes"

describe("compile: reduce-overhead on CUDA #M289", function()
  before_each(function()
    moth.compile.config.measure = false
    moth.compile.reset()
    modes.counters.captured, modes.counters.replayed = 0, 0
  end)
  after_each(function() moth.compile.config.measure = true end)

  it("replays what it has captured on inputs of each call; results are the call's own", function()
    local net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)):to("cuda")
    local fast = moth.compile(net, { mode = "reduce-overhead", backend = "eager" })
    moth.no_grad(function()
      local seen = {}
      for n = 1, 7 do
        local x = moth.randn(4, 6, { device = "cuda" })
        seen[n] = { fast(x), net(x) }
      end
      for n = 1, 7 do assert.is_true(moth.equal(seen[n][1], seen[n][2])) end
    end)
    assert.equal(5, modes.counters.replayed)
    assert.is_true(modes.counters.captured <= 2)
  end)

  it("follows parameters that are written to, and inputs that move or stay", function()
    local w = moth.randn(5, { device = "cuda" })
    local stays = moth.randn(5, { device = "cuda" })
    local function f(x, y) return (x * w + y):relu() * 2 end
    local fast = moth.compile(f, { mode = "reduce-overhead", backend = "eager" })
    for n = 1, 10 do
      if n % 3 == 0 then w:mul_(0.5) end
      if n == 6 then stays = moth.randn(5, { device = "cuda" }) end
      local x = moth.randn(5, { device = "cuda" })
      assert.is_true(moth.equal(f(x, stays), fast(x, stays)))
    end
    assert.is_true(modes.counters.replayed >= 7)
  end)

  it("leaves views of inputs, gradients, other sizes and tensors of the CPU as they are", function()
    local w = moth.randn(4, { device = "cuda", requires_grad = true })
    local f = function(x) return x:view(-1), (x * w):exp() end
    local fast = moth.compile(f, { mode = "reduce-overhead", backend = "eager" })
    for n = 1, 6 do
      local x = moth.randn(n % 2 + 1, 4, { device = "cuda" })
      local a, b = fast(x)
      local c, d = f(x)
      assert.is_true(moth.equal(a, c) and moth.equal(b:detach(), d:detach()))
      assert.is_true(b:requires_grad())
    end
    moth.no_grad(function()
      for _ = 1, 6 do
        local x = moth.randn(2, 4, { device = "cuda" })
        local a, b = fast(x)
        a:add_(1)
        local c, d = f(x)
        assert.is_true(moth.equal(a, c))
        assert.is_true(b:size(1) == d:size(1))
      end
    end)
    local cpu = moth.compile(function(x) return x * 2 + 1 end, { mode = "reduce-overhead" })
    for _ = 1, 4 do assert.equal(3, cpu(moth.ones(2))[1]:item()) end
  end)
end)

describe("compile: the whole step on CUDA", function()
  it("is one graph, and eager's to the bit", function()
    moth.compile.config.measure = false
    local function train(backend)
      moth.manual_seed(1)
      local m = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2)):to("cuda")
      local opt = moth.optim.AdamW(m:parameters(), { lr = 1e-3 })
      local function step(x, y, k)
        opt:zero_grad()
        local loss = moth.mse_loss(m(x), y) * k
        loss:backward()
        nn.utils.clip_grad_norm_(m:parameters(), 1)
        opt:step()
        return loss
      end
      if backend then step = moth.compile(step, { backend = backend, fullgraph = true }) end
      local all = {}
      for k = 1, 4 do
        all[k] = step(moth.randn(4, 3, { device = "cuda" }), moth.randn(4, 2, { device = "cuda" }), k):detach()
      end
      for _, p in ipairs(m:parameters()) do all[#all + 1] = p:detach() end
      return all
    end
    local want = train()
    for _, backend in ipairs { "eager", "aot_eager", "blocks" } do
      moth.compile.reset()
      for i, t in ipairs(train(backend)) do assert.is_true(moth.equal(want[i], t)) end
      assert.equal(0, moth.compile.counters().graph_breaks)
    end
    moth.compile.config.measure = true
  end)
end)
