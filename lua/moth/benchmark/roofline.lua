--- Where measurements stand below the roofline of a machine: bytes and operations a second, and what bounds them.
local check = require "moth.utils.check"
local class = require "moth.class"
local Measurement = require "moth.benchmark.measurement"

local M = {}

local Table = {}
Table.__index = Table

--- The speed of this machine, measured: { peak = operations a second of a product of float32, bw = bytes a second of an
-- addition whose tensors fit no cache }. o: n (1024: the product's size), bytes (2^28 for the addition), device,
-- num_threads (1).
function M.machine(o)
  o = check.options("benchmark.machine", o, "n bytes device num_threads")
  local moth = require "moth"
  local Timer = require("moth.benchmark").Timer
  local n = check.integer("[benchmark.machine]", "n", o.n or 1024, 1)
  local count = math.floor(check.integer("[benchmark.machine]", "bytes", o.bytes or 2 ^ 28, 48) / 12)
  local like = { device = o.device or "cpu" }
  local a, b = moth.rand({ n, n }, like), moth.rand({ n, n }, like)
  local x, y = moth.rand({ count }, like), moth.rand({ count }, like)
  local out = moth.empty_like(x)
  local function best(fn) return Timer { fn = fn, num_threads = o.num_threads or 1 }:timeit(10).min end
  local product = best(function() a:mm(b):free() end)
  local addition = best(function() moth.add(x, y, { out = out }) end)
  return { peak = 2 * n ^ 3 / product, bw = 12 * count / addition }
end

local function number(where, name, v)
  if type(v) ~= "number" or not (v > 0 and v < math.huge) then
    check.fail("[benchmark.%s] '%s': expected a number above 0, got %s", where, name, tostring(v))
  end
  return v
end

--- The table of a list of { measurement, flops = operations of a run, bytes = that it moves at least }, with peak and
-- bw (default: of machine()). Its rows are { name, seconds, gbs, gflops, intensity, bound = "memory" or "compute",
-- part = of what the roofline allows }; it prints as a table.
function M.roofline(list)
  if type(list) ~= "table" or not check.is_plain(list) then
    check.fail("[benchmark.roofline] expected a list of { measurement, flops =, bytes = }, got %s", class.name(list))
  end
  for key in require("moth.each")(list) do
    if type(key) ~= "number" and key ~= "peak" and key ~= "bw" then
      check.fail("[benchmark.roofline] there is no option '%s'; there are peak and bw", tostring(key))
    end
  end
  local speed = (list.peak and list.bw) and list or M.machine()
  local peak = number("roofline", "peak", list.peak or speed.peak)
  local bw = number("roofline", "bw", list.bw or speed.bw)
  local t = setmetatable({ peak = peak, bw = bw, rows = {} }, Table)
  for i, entry in ipairs(list) do
    local m = type(entry) == "table" and entry[1]
    if not class.is_a(m, Measurement) then
      check.fail("[benchmark.roofline] entry %d: expected { measurement, flops =, bytes = }, got %s", i, class.name(m))
    end
    local flops, bytes = number("roofline", "flops", entry.flops), number("roofline", "bytes", entry.bytes)
    local r = require("moth.bench").roofline { flops = flops, bytes = bytes, peak = peak, bw = bw }
    t.rows[i] = { name = m.sub_label or m.description or m:title(), seconds = m.median, gbs = bytes / m.median / 1e9,
      gflops = flops / m.median / 1e9, intensity = r.intensity, bound = r.bound, part = r.seconds / m.median }
  end
  return t
end

function Table:__tostring()
  local width = 4
  for _, r in ipairs(self.rows) do width = math.max(width, #r.name) end
  local form = "%-" .. width .. "s  %10s  %8s  %9s  %9s  %-8s  %s"
  local lines = { ("peak %.1f GFLOP/s, memory %.1f GB/s, ridge at %.1f FLOP/B"):format(self.peak / 1e9, self.bw / 1e9,
    self.peak / self.bw), form:format("", "time", "GB/s", "GFLOP/s", "FLOP/B", "bound by", "of the roof") }
  for _, r in ipairs(self.rows) do
    lines[#lines + 1] = form:format(r.name, Measurement.text(r.seconds, 3), ("%.2f"):format(r.gbs),
      ("%.2f"):format(r.gflops), ("%.2f"):format(r.intensity), r.bound, ("%3.0f %%"):format(100 * r.part))
  end
  return table.concat(lines, "\n")
end

return M
