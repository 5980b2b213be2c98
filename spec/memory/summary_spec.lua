local moth = require "moth"
local memory, nn, optim = moth.memory, moth.nn, moth.optim

describe("statistics of the CPU #quick", function()
  it("have PyTorch's names and one form with CUDA's #M336", function()
    local cpu = moth.cpu
    collectgarbage()
    local before = cpu.memory_allocated()
    local x = moth.zeros(1000, 1000)
    assert.is_true(cpu.memory_allocated() - before >= 4e6)
    assert.is_true(cpu.max_memory_allocated() >= cpu.memory_allocated())
    assert.is_true(cpu.memory_reserved() >= cpu.memory_allocated())
    x:free()
    cpu.reset_peak_memory_stats()
    assert.equal(cpu.memory_allocated(), cpu.max_memory_allocated())
    cpu.empty_cache()
    local s = cpu.memory_stats()
    assert.is_true(s["reserved_bytes.all.current"] - s["allocated_bytes.all.current"] < 2 ^ 20)
    assert.is_true(s["allocation.all.allocated"] > 0 and s["allocated_bytes.all.current"] >= 0)
    for _, text in ipairs { memory.summary(), memory.summary("cpu"), cpu.memory_summary() } do
      assert.is_truthy(text:find("memory of the CPU", 1, true) and text:find("| allocated ", 1, true)
        and text:find("peak", 1, true), text)
    end
    memory.set_limit(1e15)
    assert.is_truthy(memory.summary():find("limit of live bytes", 1, true))
    memory.set_limit(false)
    assert.error_matches(function() memory.summary(3) end, "expected a device")
  end)
end)

describe("memory.estimate #quick", function()
  it("is 16 bytes for each parameter with AdamW in float32 #M339", function()
    local total, parts = memory.estimate { params = 7e9, optimizer = "AdamW", dtype = "float32" }
    assert.equal(112e9, total)
    assert.same({ 28e9, 28e9, 56e9 }, { parts.parameters, parts.gradients, parts.optimizer_state })
    assert.is_true(total > 80e9)
    assert.is_truthy(tostring(parts):find("112.00 GB", 1, true))
  end)

  it("divides among devices by the strategy #M340", function()
    assert.equal(40e9, memory.estimate { params = 10e9, strategy = "ddp", world = 8 })
    assert.equal(5e9, memory.estimate { params = 10e9, strategy = "fsdp", world = 8 })
    local o = { params = 1e9, optimizer = "Adam", world = 4, strategy = "zero1" }
    assert.equal(4e9 + 4e9 + 2e9, memory.estimate(o))
    o.strategy = "zero2"
    assert.equal(4e9 + 1e9 + 2e9, memory.estimate(o))
    assert.equal(2e9 + 2e9 + 12e9, memory.estimate { params = 1e9, optimizer = "Adam", dtype = "bfloat16",
      master = "float32" })
    assert.equal(12 * 4, memory.estimate { model = nn.Linear(3, 3) })
    assert.equal(12 * 4 * 3, memory.estimate { model = nn.Linear(3, 3), optimizer = "SGD with momentum" })
  end)

  it("checks its options", function()
    assert.error_matches(function() memory.estimate {} end, "one of the options 'params' and 'model'")
    assert.error_matches(function() memory.estimate { params = 1, optimizer = "AdamV" } end,
      "none named 'AdamV'; did you mean 'Adam'")
    assert.error_matches(function() memory.estimate { params = 1, strategy = "fdsp" } end, "strategy")
  end)
end)

describe("memory.breakdown", function()
  it("predicts within 5 % what it measures: convolutions, attention, dropout #M338", function()
    moth.manual_seed(0)
    local cnn = nn.Sequential(nn.Conv2d(3, 16, 3, { padding = 1 }), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
      nn.Conv2d(16, 32, 3, { padding = 1 }), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 64, 10))
    local layer = nn.TransformerEncoderLayer(64, 4, { dim_feedforward = 256, dropout = 0.1 })
    local cases = {
      { cnn, optim.AdamW(cnn:parameters(), { lr = 1e-3 }), moth.randn(16, 3, 16, 16) },
      { layer, optim.SGD(layer:parameters(), { lr = 0.1, momentum = 0.9 }), moth.randn(8, 32, 64) },
    }
    for i, c in ipairs(cases) do
      local b = memory.breakdown(c[1], c[2], c[3])
      for _, name in ipairs { "parameters", "gradients", "optimizer_state", "activations", "total" } do
        local m, p = b.measured[name], b.predicted[name]
        assert.is_true(math.abs(p - m) <= 0.05 * m + 16384, ("case %d %s: %d predicted, %d measured"):format(i, name,
          p, m))
        assert.is_true(m > 0)
      end
      assert.is_true(b.measured.workspace > 0)
      assert.is_truthy(tostring(b):find("optimizer state", 1, true))
    end
  end)

  it("takes the loss, and checks what it is given", function()
    local net = nn.Linear(4, 2)
    local b = memory.breakdown(net, nil, moth.randn(8, 4), { loss = function(y) return y:square():mean() end })
    assert.equal(0, b.measured.optimizer_state)
    assert.equal(40, b.measured.parameters)
    assert.error_matches(function() memory.breakdown(3) end, "argument 'model'")
    assert.error_matches(function() memory.breakdown(net, 3, moth.randn(8, 4)) end, "argument 'optimizer'")
    assert.error_matches(function() memory.breakdown(net, nil) end, "argument 'x'")
  end)

  it("by_module lists what each module saves #M342", function()
    local net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Sequential(nn.Linear(32, 8), nn.Sigmoid()))
    local list = memory.by_module(net, moth.randn(64, 16))
    local by = {}
    for _, m in ipairs(list) do by[m.name] = m end
    assert.equal(64 * 32 * 4, by["1"].saved) -- tanh saves its result
    assert.equal(64 * 8 * 4, by["2.1"].saved)
    assert.equal(64 * 8 * 4, by["2"].total)
    assert.equal(0, by["2"].saved)
    assert.equal((16 * 32 + 32) * 4, by["0"].parameters)
    assert.equal(64 * 40 * 4, by[""].total)
    assert.is_truthy(tostring(list):find("Tanh", 1, true))
  end)
end)

describe("zero_grad", function()
  it("frees the memory of gradients between steps #M346", function()
    local net = nn.Linear(512, 512)
    local opt = optim.SGD(net:parameters(), { lr = 0.1 })
    local function live()
      collectgarbage()
      collectgarbage()
      return memory.stats().live
    end
    local before = live()
    net(moth.randn(2, 512)):sum():backward()
    local with = live()
    opt:zero_grad { set_to_none = false }
    assert.is_true(live() - before > 1e6)
    opt:zero_grad { set_to_none = true }
    assert.is_true(with - live() > 1e6)
  end)
end)
