--- moth.benchmark: how long something takes, measured with care (PyTorch's torch.utils.benchmark).
--
--     local benchmark = require "moth.benchmark"
--     local t = benchmark.Timer { fn = function() model(x) end, label = "forward", description = "eager" }
--     print(t:timeit(100))                            -- median, interquartile range, mean
--     print(("%.2f ms"):format(t:blocked_autorange().median * 1000))
--     local u = benchmark.Timer { stmt = "x:exp():sum()", setup = "local x = moth.randn(1000)" }
--     benchmark.compare { t:timeit(100), u:timeit(100) }     -- prints a table
--
-- Runs are measured in blocks, at whose end devices are waited for; some runs come before, to warm up: caches, lazily
-- made buffers, compilation.
local check = require "moth.utils.check"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local now = require("moth.utils.system").now
local Measurement = require "moth.benchmark.measurement"
local Compare = require "moth.benchmark.compare"

local M = { Measurement = Measurement, Compare = Compare }

local Timer = class "Timer"
M.Timer = Timer

local function synchronize()
  local moth = require "moth"
  moth.cpu.synchronize()
  if moth.cuda.is_available() then moth.cuda.synchronize() end
end

-- The statement, which sees the local variables of `setup`, as a function. A statement may be an expression.
local function function_of(stmt, setup, globals)
  local env = setmetatable({ moth = require "moth" }, { __index = _G })
  for name, value in require("moth.each")(globals or {}) do env[name] = value end
  local message
  for _, form in ipairs { "%s\nreturn function() %s\nend", "%s\nreturn function() local _ = %s\nend" } do
    local chunk, why = loadstring(form:format(setup or "", stmt), "=stmt")
    message = message or why
    if chunk then return setfenv(chunk, env)() end
  end
  return check.fail("[benchmark.Timer] %s", message)
end

local names = "stmt setup globals fn label sub_label description env num_threads timer sync"

--- Options: fn, a function, or stmt, a text of Lua, with setup (a text that runs once, whose local variables the
-- statement sees) and globals (a table of further names); label, sub_label, description, env: names for the table of
-- compare; num_threads (default: 1); timer (default: the monotonic clock; a function that gives seconds);
-- sync (default: waits for the devices; a function).
function Timer:__init(o)
  o = check.options("benchmark.Timer", o, names)
  if (o.stmt == nil) == (o.fn == nil) then check.fail("[benchmark.Timer] give either fn or stmt") end
  if o.fn ~= nil and not check.is_callable(o.fn) then
    check.fail("[benchmark.Timer] option 'fn': expected a function, got %s", type(o.fn))
  end
  for _, name in ipairs { "stmt", "setup", "label", "sub_label", "description", "env" } do
    if o[name] ~= nil and type(o[name]) ~= "string" then
      check.fail("[benchmark.Timer] option '%s': expected a string, got %s", name, type(o[name]))
    end
  end
  if o.fn and o.setup then check.fail("[benchmark.Timer] setup is for stmt; fn has its own variables") end
  self.fn = o.fn or function_of(o.stmt, o.setup, o.globals)
  self.timer, self.sync = o.timer or now, o.sync or synchronize
  self.spec = { stmt = o.stmt or "fn()", setup = o.setup, label = o.label, sub_label = o.sub_label,
    description = o.description, env = o.env,
    num_threads = check.integer("[benchmark.Timer]", "num_threads", o.num_threads or 1, 1) }
end

-- Seconds of n runs.
function Timer:block(n)
  local fn, timer = self.fn, self.timer
  self.sync()
  local start = timer()
  for _ = 1, n do fn() end
  self.sync()
  return math.max(timer() - start, 1e-9)
end

-- measure(), with this timer's number of threads; garbage of others is collected before.
local function with_threads(self, measure)
  local moth = require "moth"
  local was = moth.get_num_threads()
  collectgarbage()
  if was ~= self.spec.num_threads then moth.set_num_threads(self.spec.num_threads) end
  local ok, result = xpcall(measure, require("moth.lang.trace").keep)
  if was ~= self.spec.num_threads then moth.set_num_threads(was) end
  if not ok then require("moth.lang.trace").rethrow(result) end
  return result
end

local BLOCKS = 20

--- Runs it n times, in up to 20 blocks, after a hundredth of that (two runs at least) to warm up; a Measurement.
function Timer:timeit(n)
  n = check.integer("[benchmark.Timer]", "timeit's n", n == nil and 100 or n, 1)
  return with_threads(self, function()
    self:block(math.max(math.floor(n / 100), 2))
    local blocks = math.min(BLOCKS, n)
    local size, raw = math.floor(n / blocks), {}
    for i = 1, blocks do raw[i] = self:block(size) end
    return Measurement(size, raw, self.spec)
  end)
end

-- How many runs make a block that the clock measures to a thousandth.
function Timer:block_size(min_run_time)
  local overhead = math.huge
  for _ = 1, 5 do
    self.sync()
    local start = self.timer()
    self.sync()
    overhead = math.min(overhead, self.timer() - start)
  end
  self:block(2)
  local n = 1
  while true do
    local seconds = self:block(n)
    if overhead <= 1e-3 * seconds and seconds >= min_run_time / 1000 or seconds >= min_run_time then return n end
    n = n * 10
  end
end

--- Runs blocks until they have taken min_run_time seconds (0.2), each long enough for the clock; a Measurement.
function Timer:blocked_autorange(o)
  o = check.options("benchmark.Timer:blocked_autorange", o, "min_run_time callback")
  local least = check.number("[benchmark.Timer]", "min_run_time", o.min_run_time or 0.2, 0)
  return with_threads(self, function()
    local size, raw, total = self:block_size(least), {}, 0
    while total < least or #raw == 0 do
      raw[#raw + 1] = self:block(size)
      total = total + raw[#raw]
      if o.callback then o.callback(size, raw[#raw]) end
    end
    return Measurement(size, raw, self.spec)
  end)
end

--- Runs blocks until the middle half of their times lies within `threshold` (0.1) of the median, for min_run_time
-- (0.01) to max_run_time (10) seconds; a Measurement.
function Timer:adaptive_autorange(o)
  o = check.options("benchmark.Timer:adaptive_autorange", o, "threshold min_run_time max_run_time")
  local threshold = check.number("[benchmark.Timer]", "threshold", o.threshold or 0.1, 0)
  local least = check.number("[benchmark.Timer]", "min_run_time", o.min_run_time or 0.01, 0)
  local most = check.number("[benchmark.Timer]", "max_run_time", o.max_run_time or 10, 0)
  return with_threads(self, function()
    local size, raw, total = self:block_size(least), {}, 0
    while true do
      raw[#raw + 1] = self:block(size)
      total = total + raw[#raw]
      local m = #raw > 3 and total >= least and Measurement(size, raw, self.spec)
      if m and m:meets_confidence(threshold) or total >= most then
        return m or Measurement(size, raw, self.spec)
      end
    end
  end)
end

--- Prints a table of measurements, and returns it: a Compare.
function M.compare(results)
  return Compare(Compare.check("benchmark.compare", results)):trim_significant_figures():print()
end

local Clock = class "Clock"

--- A clock that starts now, once all devices have finished: local t = moth.tic(); …; print(t:toc()).
M.tic = signature("benchmark.tic()", function() return Clock() end)

function Clock:__init()
  synchronize()
  self.start = now()
end

--- The seconds since it started, once all devices have finished what was asked of them.
function Clock:toc()
  synchronize()
  return now() - self.start
end

--- Prints, and returns, how long single calls take: p50, p95, p99 and samples per second for each batch size.
-- m: an exported program, or a module or function with inputs = { x } (the first sample is repeated). Options:
-- batch_sizes ({ 1, 8, 32 }), seconds for each (1), calls at least (20), quiet, timer. The result's rows:
-- { batch_size, calls, p50, p95, p99, mean (seconds), samples_per_second }.
function M.latency(m, o) return require("moth.benchmark.latency")(m, o, synchronize) end

--- The speed of this machine, and where measurements stand below its roofline: roofline.lua.
function M.machine(o) return require("moth.benchmark.roofline").machine(o) end
function M.roofline(list) return require("moth.benchmark.roofline").roofline(list) end

return M
