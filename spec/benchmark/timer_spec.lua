-- moth.benchmark: with a clock of the spec's own, so that times are known.
local moth = require "moth"
local benchmark = moth.benchmark

-- A Timer whose clock goes on by what `cost(run)` says for each run.
local function timer(cost, o)
  local clock, runs = 0, 0
  o = o or {}
  o.fn = function()
    runs = runs + 1
    clock = clock + cost(runs)
  end
  o.timer = function() return clock end
  o.sync = function() clock = clock + 1e-9 end
  return benchmark.Timer(o), function() return runs end
end

describe("benchmark.Timer #M299", function()
  it("runs n times in blocks after a warm-up: mean, median, iqr", function()
    local t, runs = timer(function() return 1e-3 end)
    local m = t:timeit(100)
    assert.equal(102, runs())
    assert.equal(20, #m.times)
    assert.equal(5, m.number_per_run)
    assert.is_true(math.abs(m.mean - 1e-3) < 1e-8 and math.abs(m.median - 1e-3) < 1e-8 and m.iqr < 1e-8)
    -- 3 … 7 seconds; the warm-up is left out
    local few = timer(function(run) return run <= 2 and 1 or run end):timeit(5)
    for i, want in ipairs { 3, 4, 5, 6, 7 } do assert.is_true(math.abs(few.times[i] - want) < 1e-6) end
    assert.is_true(math.abs(few.median - 5) < 1e-6 and math.abs(few.iqr - 2) < 1e-6 and math.abs(few.mean - 5) < 1e-6)
    assert.is_true(math.abs(few:quantile(0) - 3) < 1e-6 and math.abs(few.max - 7) < 1e-6)
  end)

  it("finds how many runs make a block, and runs for as long as it is told", function()
    local t = timer(function() return 1e-6 end)
    local m = t:blocked_autorange()
    assert.is_true(m.number_per_run >= 100 and m.number_per_run <= 1000)
    local total, blocks = 0, 0
    for _, s in ipairs(m.raw_times) do total = total + s end
    assert.is_true(total >= 0.2 and total < 0.2 + 2 * m.raw_times[1])
    timer(function() return 1e-2 end):blocked_autorange { min_run_time = 0.05, callback = function(n, seconds)
      blocks = blocks + n
      assert.is_true(seconds > 0)
    end }
    assert.equal(5, blocks)
  end)

  it("goes on until times agree, or as long as it may", function()
    local steady = timer(function() return 1e-3 end):adaptive_autorange()
    assert.is_true(steady:meets_confidence(0.1) and #steady.times >= 4)
    local odd = timer(function(run) return run % 2 == 0 and 1e-1 or 1e-3 end):adaptive_autorange { min_run_time = 0.01,
      max_run_time = 0.5 }
    assert.is_false(odd:meets_confidence(0.1))
    assert.matches("WARNING: the middle half spans", tostring(odd))
  end)

  it("takes a statement or an expression, with setup and globals", function()
    local seen = {}
    local globals = { seen = seen, double = function(v) return 2 * v end }
    benchmark.Timer { stmt = "seen[#seen + 1] = double(y)", setup = "local y = 21", globals = globals }:timeit(3)
    assert.same({ 42, 42, 42, 42, 42 }, seen)
    assert.is_true(benchmark.Timer { stmt = "moth.ones(2) + 1" }:timeit(2).mean > 0)
    assert.error_matches(function() benchmark.Timer { stmt = "local = 1" } end, "%[benchmark.Timer%] .*stmt")
    assert.error_matches(function() benchmark.Timer {} end, "give either fn or stmt")
    assert.error_matches(function() benchmark.Timer { fn = 1 } end, "expected a function, got number")
    assert.error_matches(function() benchmark.Timer { fn = print, num_threads = 0 } end, "at least 1")
    assert.error_matches(function() benchmark.Timer { fn = print, lable = "x" } end, "lable")
    assert.error_matches(function() benchmark.Timer { fn = print }:timeit(0) end, "at least 1, got 0")
  end)

  it("sets the number of threads while it runs, also where that fails", function()
    local was, seen = moth.get_num_threads(), nil
    benchmark.Timer { fn = function() seen = moth.get_num_threads() end, num_threads = 3 }:timeit(1)
    assert.same({ 3, was }, { seen, moth.get_num_threads() })
    assert.error_matches(function() benchmark.Timer { fn = function() error("oh", 0) end }:timeit(1) end, "oh")
    assert.equal(was, moth.get_num_threads())
  end)

  it("prints what it measured #M298", function()
    local names = { label = "model", sub_label = "batch 8", description = "eager" }
    local m = timer(function() return 4.83e-3 end, names):timeit(100)
    local text = tostring(m)
    assert.matches("^model: batch 8\neager\n  Median: 4.83", text)
    assert.matches("Mean:   4.83", text)
    assert.matches("20 measurements, 5 runs per measurement, 1 thread$", text)
    assert.equal("Eager: 4.83 ms", ("Eager: %.2f ms"):format(m.mean * 1000))
  end)
end)

describe("benchmark.compare #M299", function()
  local function measured(seconds, sub_label, description, threads)
    return timer(function() return seconds end, { label = "product", sub_label = sub_label, description = description,
      num_threads = threads }):timeit(20)
  end

  it("prints a table: rows, columns, threads, one unit", function()
    local list = { measured(2e-3, "64x64", "eager"), measured(1e-3, "64x64", "compiled"),
      measured(0.5, "512x512", "eager"), measured(4e-4, "64x64", "eager", 2) }
    local lines = {}
    local own = print
    finally(function() _G.print = own end)
    _G.print = function(text) lines[#lines + 1] = text end
    local made = benchmark.compare(list)
    _G.print = own
    assert.same({ tostring(made) }, lines)
    assert.equal([[
[------------- product -------------]
               |   eager  |  compiled
1 thread: ---------------------------
      64x64    |    2000  |      1000
      512x512  |  500000  |
2 threads: --------------------------
      64x64    |   400.0  |
Times are medians, in microseconds (us).]], lines[1])
  end)

  it("merges what was measured twice, and marks the fastest", function()
    local c = benchmark.Compare { measured(1e-3, "a", "x"), measured(3e-3, "a", "x"), measured(9e-3, "a", "y") }
    assert.matches("a  |  2%.000  |  9%.000", tostring(c))
    c:colorize()
    assert.matches("\27%[32;1m2%.000\27%[0m  |  \27%[31m9%.000\27%[0m", tostring(c))
    assert.equal("no measurements", tostring(benchmark.Compare()))
    assert.error_matches(function() benchmark.Compare { 1 } end, "expected a list of measurements, got number at 1")
  end)
end)
