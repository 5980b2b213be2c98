-- moth.diagnose: what a training waits for. Verdicts need a processor for this process: ratios are far from the limits.

local moth = require "moth"
local data = moth.data
local system = require "moth.utils.system"

-- Works for so many seconds of processor time.
local function work(seconds)
  local now = require("moth.utils.system").cpu_time
  local limit = now() + seconds
  while now() < limit do moth.ones(100):sum() end
end

local function loader(get, options)
  local D = data.Dataset:subclass("D")
  function D.size() return 200 end
  D.get = get
  return data.DataLoader(D(), options)
end

describe("moth.diagnose #quick #M240", function()
  it("a loader that computes: loader bound", function()
    local slow = loader(function(_, i) work(0.002) return i end, { batch_size = 2 })
    local r = moth.diagnose(slow, function() end, { steps = 8, quiet = true })
    assert.equal("loader bound", r.verdict)
    assert.is_true(r.wait > 0.9 and r.busy > 0.5)
    assert.matches("num_workers = 2 or more", r.advice)
    assert.matches("; samples come from get at spec/data/diagnose_spec.lua:23$", r.advice)
    assert.equal(8, r.steps)
  end)

  it("a loader that waits, in a worker or not: disk bound #M248", function()
    for n = 0, 1 do
      local waits = loader(function(_, i)
        local s = require("moth_lua").threads
        s.pop(s.channel(), 0.02) -- sleeps
        return i
      end, { num_workers = n })
      local r = moth.diagnose(waits, function() end, { steps = 8, quiet = true })
      assert.equal("disk bound", r.verdict)
      assert.is_true(r.busy < 0.5)
      assert.matches("data.WebDataset", r.advice)
    end
  end)

  it("a step that computes: compute bound #M249", function()
    local r = moth.diagnose(loader(function(_, i) return moth.full({ 3 }, i), i end, { batch_size = 4 }),
      function(x, y)
        assert.same({ 4, 3 }, x:size())
        assert.equal(4, y:numel())
        work(0.005)
      end, { steps = 55, quiet = true }) -- more than an epoch
    assert.equal("compute bound", r.verdict)
    assert.is_true(math.abs(r.wait + r.copy + r.compute - 1) < 1e-6)
  end)

  it("prints the shares and the verdict", function()
    local printed, old = {}, print
    local env = debug.getfenv(print) -- where moth's files find it
    env.print = function(line) printed[#printed + 1] = line end
    finally(function() env.print = old end)
    moth.diagnose(loader(function(_, i) return i end), function() work(0.03) end, { steps = 3 })
    env.print = old
    assert.matches("^3 steps: waiting for the loader %d+ %%, copying %d+ %%, computing %d+ %%; ", printed[1])
    assert.matches("^compute bound: the loader keeps up", printed[2])
  end)

  it("says what it cannot use", function()
    assert.error_matches(function() moth.diagnose({}, print) end, "'loader': expected a loader with iter")
    assert.error_matches(function()
      moth.diagnose(data.DataLoader(data.TensorDataset(moth.ones(0, 1))), function() end, { quiet = true })
    end, "the loader gives no batches")
  end)

  it("the prefetcher gives the batches of the loader #M241", function()
    local to = data.DataLoader(data.TensorDataset(moth.arange(1, 8), moth.arange(11, 18)), { batch_size = 3 })
    local devices = { "cpu" }
    if moth.cuda.is_available() then devices[2] = "cuda" end
    for _, device in ipairs(devices) do
      local out = {}
      for x, y in data.prefetcher(to, device) do
        assert.equal(device, x:device().type)
        out[#out + 1] = (x + y):cpu():totable()
      end
      assert.same({ { 12, 14, 16 }, { 18, 20, 22 }, { 24 } }, out)
    end
    assert.is_true(system.cpu_time() > 0)
  end)
end)
