--- How long single calls of a model take, by batch size: what a server's user waits for. moth.benchmark.latency.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local now = require("moth.utils.system").now

local Latency = class "Latency"

-- The value below which a share of a sorted list lies, by the nearest rank.
local function percentile(sorted, share) return sorted[math.max(1, math.ceil(share * #sorted))] end

--- rows: { { batch_size, calls, p50, p95, p99, mean (seconds), samples_per_second } }.
function Latency:__init(rows) self.rows = rows end

function Latency:__tostring()
  local lines = { ("%10s %8s %10s %10s %10s %14s"):format("batch size", "calls", "p50", "p95", "p99", "samples/s") }
  local function ms(s) return ("%.3f ms"):format(s * 1e3) end
  for i, r in ipairs(self.rows) do
    lines[i + 1] = ("%10d %8d %10s %10s %10s %14.1f"):format(r.batch_size, r.calls, ms(r.p50), ms(r.p95), ms(r.p99),
      r.samples_per_second)
  end
  return table.concat(lines, "\n")
end

-- Inputs of n samples: an exported program's own, else the first of those that are given, repeated.
local function inputs_of(m, given, n)
  local list = {}
  if given then
    for i, t in ipairs(given) do
      local times = {}
      for k = 1, t:dim() do times[k] = k == 1 and n or 1 end
      list[i] = t:narrow(1, 1, 1):repeat_(times)
    end
    return list
  end
  for i, input in ipairs(m.program.inputs) do
    local shape = {}
    for k, size in ipairs(input.shape) do
      shape[k] = k == 1 and type(size) == "string" and n or m.example[size] or size
    end
    if shape[1] ~= n then
      check.fail("[benchmark.latency] input %s is exported for %d samples, not %d: export with dynamic_shapes",
        input.name, shape[1] or 0, n)
    end
    list[i] = B.ops.ones(shape, { dtype = input.dtype, device = m.device or input.device })
  end
  return list
end

local function sample(m, inputs, seconds, least, timer, sync)
  local times, start = {}, timer()
  for _ = 1, 3 do m(unpack(inputs)) end
  repeat
    sync()
    local began = timer()
    m(unpack(inputs))
    sync()
    times[#times + 1] = timer() - began
  until timer() - start >= seconds and #times >= least
  return times
end

--- See benchmark/init.lua.
return function(m, o, sync)
  o = check.options("benchmark.latency", o, "batch_sizes inputs seconds calls timer quiet")
  local exported = require("moth").export.is_exported(m)
  if not check.is_callable(m) or B.is_tensor(m) then
    check.fail("[benchmark.latency] expected a module, a function or an exported program, got %s", class.name(m))
  end
  if o.inputs ~= nil then
    if B.is_tensor(o.inputs) or type(o.inputs) ~= "table" or not B.is_tensor(o.inputs[1]) then
      check.fail("[benchmark.latency] option 'inputs': expected a list of tensors, got %s", class.name(o.inputs))
    end
    for i, t in ipairs(o.inputs) do
      if check.tensor("benchmark.latency", ("inputs[%d]"):format(i), t):dim() == 0 or t:size(1) == 0 then
        check.fail("[benchmark.latency] option 'inputs': tensor %d has no sample in its first dimension", i)
      end
    end
  elseif not exported then
    check.fail("[benchmark.latency] give inputs = { x }, of which the first sample is repeated (an exported program "
      .. "knows its own)")
  end
  local sizes = o.batch_sizes or { 1, 8, 32 }
  if type(sizes) ~= "table" then
    check.fail("[benchmark.latency] option 'batch_sizes': expected a list of counts, got %s", class.name(sizes))
  end
  local seconds = check.number("[benchmark.latency]", "seconds", o.seconds or 1, 0)
  local least = check.integer("[benchmark.latency]", "calls", o.calls or 20, 1)
  local rows = {}
  require("moth").inference_mode(function()
    for i, n in ipairs(sizes) do
      n = check.integer("[benchmark.latency]", "batch_sizes", n, 1)
      local times = sample(m, inputs_of(m, o.inputs, n), seconds, least, o.timer or now, sync)
      local sum = 0
      for _, t in ipairs(times) do sum = sum + t end
      table.sort(times)
      rows[i] = { batch_size = n, calls = #times, p50 = percentile(times, 0.5), p95 = percentile(times, 0.95),
        p99 = percentile(times, 0.99), mean = sum / #times, samples_per_second = n * #times / sum }
    end
  end)
  local result = Latency(rows)
  if not o.quiet then print(result) end
  return result
end
