-- moth.benchmark.latency: with a clock of the spec's own, so that times are known.
local moth = require "moth"

describe("benchmark.latency #M431", function()
  it("gives percentiles and samples per second for each batch size", function()
    local clock, calls = 0, 0
    local function model(x) -- the fiftieth call of a size takes long
      calls = calls + 1
      clock = clock + (x:size(1) == 8 and calls % 50 == 0 and 10 or 1) * 1e-3
      return x
    end
    local result = moth.benchmark.latency(model, { batch_sizes = { 1, 8 }, inputs = { moth.ones(3, 2) }, seconds = 0.2,
      calls = 50, timer = function() return clock end, quiet = true })
    local one, eight = result.rows[1], result.rows[2]
    assert.near(1e-3, one.p50, 1e-9)
    assert.near(1000, one.samples_per_second, 1)
    assert.near(1e-3, eight.p95, 1e-9)
    assert.near(10e-3, eight.p99, 1e-9)
    assert.is_true(eight.samples_per_second > 5000 and eight.samples_per_second < 8000)
    assert.matches("batch size +calls +p50 +p95 +p99 +samples/s\n +1 +%d+ +1.000 ms", tostring(result))
  end)

  it("takes an exported program with a batch of any size, and says what another needs", function()
    local net = moth.nn.Linear(3, 2)
    local ep = moth.export(net, { moth.randn(2, 3) }, { dynamic_shapes = { { [1] = "batch" } } })
    local result = moth.benchmark.latency(ep, { batch_sizes = { 1, 4 }, seconds = 0, calls = 3, quiet = true })
    assert.equal(2, #result.rows)
    assert.is_true(result.rows[1].p50 <= result.rows[1].p99)
    local fixed = moth.export(net, { moth.randn(2, 3) })
    assert.error_matches(function() moth.benchmark.latency(fixed, { quiet = true }) end,
      "exported for 2 samples, not 1")
    assert.error_matches(function() moth.benchmark.latency(net) end, "%[benchmark.latency%] give inputs")
    assert.error_matches(function() moth.benchmark.latency(net, { input = 1 }) end, "unknown option 'input'")
  end)
end)
