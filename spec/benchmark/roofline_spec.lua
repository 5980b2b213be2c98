-- benchmark.roofline: marks of measurements whose times are given.
local moth = require "moth"
local benchmark = moth.benchmark

local function measured(seconds, name)
  return benchmark.Measurement(1, { seconds, seconds, seconds }, { stmt = "fn()", sub_label = name, num_threads = 1 })
end

describe("benchmark.roofline", function()
  it("shows GB/s, GFLOP/s and what bounds each op #M162", function()
    local t = benchmark.roofline { { measured(1e-3, "add"), flops = 1e6, bytes = 12e6 },
      { measured(1e-2, "product"), flops = 2e9, bytes = 12e6 }, peak = 400e9, bw = 20e9 }
    local add, product = unpack(t.rows)
    assert.same({ "memory", "compute" }, { add.bound, product.bound })
    assert.is_true(math.abs(add.gbs - 12) < 1e-9 and math.abs(add.gflops - 1) < 1e-9)
    assert.is_true(math.abs(add.part - 0.6) < 1e-9 and math.abs(product.part - 0.5) < 1e-9)
    local text = tostring(t)
    assert.matches("^peak 400%.0 GFLOP/s, memory 20%.0 GB/s, ridge at 20%.0 FLOP/B\n", text)
    assert.matches("\nadd +1%.00 ms +12%.00 +1%.00 +0%.08  memory +60 %%\n", text)
    assert.matches("\nproduct +10%.0 ms +1%.20 +200%.00 +166%.67  compute +50 %%$", text)
  end)

  it("measures the machine", function()
    local m = benchmark.machine { n = 64, bytes = 48000 }
    assert.is_true(m.peak > 1e6 and m.bw > 1e6)
  end)

  it("says what is wrong", function()
    local m = measured(1, "x")
    local function fails(message, list)
      assert.error_matches(function() benchmark.roofline(list) end, message)
    end
    fails("'flops': expected a number above 0, got nil", { { m, bytes = 1 }, peak = 1, bw = 1 })
    fails("'bw': expected a number above 0, got 0", { { m, bytes = 1, flops = 1 }, peak = 1, bw = 0 })
    fails("entry 1: expected { measurement", { { 1 }, peak = 1, bw = 1 })
    fails("there is no option 'peek'", { peek = 1 })
    fails("expected a list", 1)
  end)
end)
