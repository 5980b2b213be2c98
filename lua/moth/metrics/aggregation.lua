--- Means, sums and extremes of numbers that come one by one, of all or of the last few; and metrics by name.
local metric = require "moth.metrics.metric"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local B = require "moth_lua"
local moth = require "moth"
local define, value = metric.define, metric.value
local Metric = metric.Metric

local M = {}

local NAN = "'warn'|'ignore'|'error'|'disable' nan_strategy='warn'"

local function numbers(v) return (B.is_tensor(v) and v or moth.tensor(v)):to(moth.float64) end

-- v and its weights, flat, without NaN as nan_strategy says.
local function known(self, v, weight)
  v = numbers(v)
  weight = weight and numbers(weight):to(v:device()):expand_as(v):reshape(-1)
  v = v:reshape(-1)
  if self.nan_strategy == "disable" then return v, weight end
  local bad = v:isnan()
  if weight then bad = bad:logical_or(weight:isnan()) end
  if not bad:any():item() then return v, weight end
  if self.nan_strategy == "error" then check.fail("[%s] a value is NaN", self.__name) end
  if self.nan_strategy == "warn" then check.warn("[%s] a value is NaN and left out", self.__name) end
  local good = bad:logical_not()
  return v:masked_select(good), weight and weight:masked_select(good)
end

local function full(n) return moth.full({}, n, { dtype = moth.float64 }) end

--- The mean of values, each with a weight (a loss and the number of its samples, say); NaN without data.
define(M, "MeanMetric", nil, NAN, "Tensor|number|number[] value, Tensor|number|number[] weight=1", {
  states = function() return { sum = full(0), weight = full(0) } end,
  measure = function(self, v, weight)
    local x, w = known(self, v, weight)
    return { sum = (x * w):sum(), weight = w:sum() }
  end,
  result = function(_, s) return value(s.sum / s.weight) end,
})

--- The sum of values; 0 without data.
define(M, "SumMetric", nil, NAN, "Tensor|number|number[] value", {
  states = function() return { sum = full(0) } end,
  measure = function(self, v) return { sum = (known(self, v)):sum() } end,
  result = function(_, s) return value(s.sum) end,
})

--- The largest of values; -inf without data.
define(M, "MaxMetric", nil, NAN, "Tensor|number|number[] value", {
  states = function() return { max = full(-math.huge) } end,
  measure = function(self, v)
    local x = known(self, v)
    return { max = x:numel() > 0 and x:max() or full(-math.huge) }
  end,
  result = function(_, s) return value(s.max) end,
})
M.MaxMetric.merges = { max = "max" }

--- The least of values; inf without data.
define(M, "MinMetric", nil, NAN, "Tensor|number|number[] value", {
  states = function() return { min = full(math.huge) } end,
  measure = function(self, v)
    local x = known(self, v)
    return { min = x:numel() > 0 and x:min() or full(math.huge) }
  end,
  result = function(_, s) return value(s.min) end,
})
M.MinMetric.merges = { min = "min" }

--- All values, one after the other.
define(M, "CatMetric", nil, NAN, "Tensor|number|number[] value", {
  states = function() return { values = {} } end,
  measure = function(self, v) return { values = (known(self, v)) } end,
  result = function(_, s) return value(s.values or moth.zeros({ 0 })) end,
})

--- A metric of the last `window` updates: Running(MeanMetric(), { window = 5 }).
local Running = class("Running", Metric)
M.Running = Running
Running.__init = signature.init("metrics.Running(table base_metric, count window=5)", function(self, o)
  if not class.is_a(o.base_metric, Metric) then
    check.fail("[metrics.Running] base_metric: expected a metric, got %s", class.name(o.base_metric))
  end
  self.base, self.window, self.recent = o.base_metric, o.window, {}
end)
--- Adds a batch; those before the last `window` no longer count.
function Running:update(...)
  local one = setmetatable({}, getmetatable(self.base))
  for key, v in each(self.base) do if key ~= "state" and key ~= "updates" then one[key] = v end end
  one:update(...)
  table.insert(self.recent, one)
  if #self.recent > self.window then table.remove(self.recent, 1) end
end
--- The value of the last `window` updates.
function Running:compute()
  self.base:reset()
  for _, one in ipairs(self.recent) do self.base:merge_state(one) end
  return self.base:compute()
end
--- Forgets all updates.
function Running:reset() self.recent = {} end
--- running(…): adds a batch and returns its own value.
function Running:__call(...)
  self:update(...)
  local last = self.recent[#self.recent]
  return last:result(last.state)
end

-- RunningMean(window), RunningSum(window).
local function running(name, base)
  local cls = class(name, Running)
  cls.__init = signature.init(("metrics.%s(count window=5, *, %s)"):format(name, NAN), function(self, o)
    Running.__init(self, M[base] { nan_strategy = o.nan_strategy }, o.window)
  end)
  M[name] = cls
end
running("RunningMean", "MeanMetric")
running("RunningSum", "SumMetric")

--- Metrics by name that get the same batches: MetricCollection { acc = Accuracy(…), f1 = F1Score(…) }. update, compute
-- and the call return a table by the same names. prefix: of the names that compute returns.
local Collection = class("MetricCollection")
M.MetricCollection = Collection
Collection.__init = signature.init("metrics.MetricCollection(table metrics, *, string prefix='')", function(self, o)
  self.metrics, self.prefix = {}, o.prefix
  for name, m in each(o.metrics) do
    if not class.is_a(m, Metric) then
      check.fail("[metrics.MetricCollection] '%s': expected a metric, got %s", tostring(name), class.name(m))
    end
    self.metrics[type(name) == "number" and m.__name or name] = m
  end
end)

-- Names in order: ranks must compute in the same one.
local function in_order(self, fn)
  local names, out = {}, {}
  for name in each(self.metrics) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do out[self.prefix .. name] = fn(self.metrics[name], name) end
  return out
end
--- Adds a batch to all.
function Collection:update(...)
  for _, m in each(self.metrics) do m:update(...) end
end
--- The values of all, by name.
function Collection:compute() return in_order(self, function(m) return m:compute() end) end
--- Forgets what was added.
function Collection:reset()
  for _, m in each(self.metrics) do m:reset() end
end
--- collection(…): adds a batch to all and returns its own values.
function Collection:__call(...)
  local n, values = select("#", ...), { ... }
  return in_order(self, function(m) return m(unpack(values, 1, n)) end)
end
--- The states of all, by name.
function Collection:state_dict()
  local out = {}
  for name, m in each(self.metrics) do out[name] = m:state_dict() end
  return out
end
--- Takes what state_dict gave.
function Collection:load_state_dict(sd)
  for name, m in each(self.metrics) do m:load_state_dict(sd[name]) end
end

return M
