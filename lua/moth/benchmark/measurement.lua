--- What a Timer has measured: seconds for each run, their median and spread.
local check = require "moth.utils.check"
local class = require "moth.class"

local Measurement = class "Measurement"

local units = { { 1, "s", "seconds" }, { 1e-3, "ms", "milliseconds" }, { 1e-6, "us", "microseconds" },
  { 1e-9, "ns", "nanoseconds" } }

--- The unit in which some seconds are best read: its size, symbol and name.
function Measurement.unit_of(seconds)
  for _, u in ipairs(units) do
    if seconds >= u[1] then return u[1], u[2], u[3] end
  end
  return unpack(units[#units])
end

--- spec: { stmt, setup, label, sub_label, description, env, num_threads }; raw_times: seconds of blocks of
-- number_per_run runs.
function Measurement:__init(number_per_run, raw_times, spec)
  check.integer("[benchmark.Measurement]", "number_per_run", number_per_run, 1)
  if type(raw_times) ~= "table" or type(raw_times[1]) ~= "number" then
    check.fail("[benchmark.Measurement] raw_times: expected a list of seconds, got %s", class.name(raw_times))
  end
  spec = check.options("benchmark.Measurement", spec, "stmt setup label sub_label description env num_threads")
  self.number_per_run, self.raw_times, self.spec = number_per_run, raw_times, spec
  for _, name in ipairs { "stmt", "setup", "label", "sub_label", "description", "env", "num_threads" } do
    self[name] = spec[name]
  end
  local sum
  self.times, sum = {}, 0
  for i, seconds in ipairs(raw_times) do
    self.times[i] = seconds / number_per_run
    sum = sum + self.times[i]
  end
  self.mean = sum / #self.times
  self.median = self:quantile(0.5)
  self.min, self.max = self:quantile(0), self:quantile(1)
  self.iqr = self:quantile(0.75) - self:quantile(0.25)
end

--- The p-quantile (0 … 1) of the times, in seconds.
function Measurement:quantile(p)
  local sorted = {}
  for i, t in ipairs(self.times) do sorted[i] = t end
  table.sort(sorted)
  local at = 1 + p * (#sorted - 1)
  local low = math.floor(at)
  local high = math.min(low + 1, #sorted)
  return sorted[low] + (sorted[high] - sorted[low]) * (at - low)
end

--- How many digits of the median the spread leaves: 2 … 4.
function Measurement:significant_figures()
  if #self.times < 2 or self.median <= 0 then return 3 end
  local off = math.max(1.2 * self.iqr / math.sqrt(#self.times) / self.median, 1e-4)
  return math.max(2, math.min(4, math.floor(-math.log10(off)) + 1))
end

--- Whether the middle half of the times lies within `part` (0.1) of the median.
function Measurement:meets_confidence(part) return self.iqr < (part or 0.1) * self.median end

--- "label: sub_label", or the statement.
function Measurement:title()
  if self.label and self.sub_label then return self.label .. ": " .. self.sub_label end
  return self.label or self.sub_label or self.stmt
end

--- One of all blocks of several measurements of one task.
function Measurement.merge(list)
  local first, raw = list[1], {}
  for _, m in ipairs(list) do
    for _, t in ipairs(m.times) do raw[#raw + 1] = t * first.number_per_run end
  end
  return Measurement(first.number_per_run, raw, first.spec)
end

--- A time in seconds as text, with so many digits: "4.83 ms".
function Measurement.text(seconds, figures)
  local scale, symbol = Measurement.unit_of(seconds)
  return ("%s %s"):format(Measurement.digits(seconds / scale, figures), symbol)
end

--- A number with so many significant digits, without an exponent.
function Measurement.digits(value, figures)
  if value <= 0 then return "0" end
  local whole = math.floor(math.log10(value)) + 1
  local places = math.max(0, figures - whole)
  local round = 10 ^ math.max(0, whole - figures)
  return ("%." .. places .. "f"):format(math.floor(value / round + 0.5) * (round > 1 and round or 0)
    + (round > 1 and 0 or value))
end

function Measurement:__tostring()
  local n, lines = self:significant_figures(), { self:title() }
  if self.description then lines[#lines + 1] = self.description end
  if self.setup then lines[#lines + 1] = "setup: " .. self.setup:gsub("\n", "\n       ") end
  if #self.times > 1 then
    lines[#lines + 1] = "  Median: " .. self.text(self.median, n)
    lines[#lines + 1] = ("  IQR:    %s (%s to %s)"):format(self.text(self.iqr, 2), self.text(self:quantile(0.25), n),
      self.text(self:quantile(0.75), n))
  end
  lines[#lines + 1] = "  Mean:   " .. self.text(self.mean, n)
  lines[#lines + 1] = ("  %d measurement%s, %d run%s per measurement, %d thread%s"):format(#self.times,
    #self.times == 1 and "" or "s", self.number_per_run, self.number_per_run == 1 and "" or "s", self.num_threads,
    self.num_threads == 1 and "" or "s")
  if #self.times > 3 and not self:meets_confidence(0.25) then
    lines[#lines + 1] = ("  WARNING: the middle half spans %.0f %% of the median: the machine is busy, or n too small")
      :format(100 * self.iqr / self.median)
  end
  return table.concat(lines, "\n")
end

return Measurement
