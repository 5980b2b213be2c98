--- Metrics of numbers: errors and the coefficient of determination.
local metric = require "moth.metrics.metric"
local check = require "moth.utils.check"
local moth = require "moth"
local define, value = metric.define, metric.value

local M = {}

local INPUTS = "Tensor preds, Tensor target"

local function zeros(...) return moth.zeros({ ... }, { dtype = moth.float64 }) end

-- preds and target in one float dtype of at least 32 bits, whose sums do not overflow.
local function numbers(self, preds, target)
  if table.concat(preds.shape, ",") ~= table.concat(target.shape, ",") then
    check.fail("[%s] preds and target must have the same shape, got [%s] and [%s]", self.__name,
      table.concat(preds.shape, ", "), table.concat(target.shape, ", "))
  end
  local function wide(t) return (not t:is_floating_point() or t:dtype().itemsize < 4) and t:float() or t end
  preds, target = wide(preds), wide(target)
  local outputs = self.num_outputs or 1
  if outputs > 1 then
    if preds:dim() < 2 or preds:size(2) ~= outputs then
      check.fail("[%s] preds must be (N, %d), got [%s]", self.__name, outputs, table.concat(preds.shape, ", "))
    end
    return preds, target, preds:size(1)
  end
  return preds:reshape(-1), target:reshape(-1), preds:numel()
end

-- The sum over samples of f(preds, target), and their number.
local function sums(f)
  return {
    states = function(self)
      return { sum = self.num_outputs > 1 and zeros(self.num_outputs) or zeros(), n = zeros() }
    end,
    measure = function(self, preds, target)
      local p, t, n = numbers(self, preds, target)
      local sum = f(self, p, t):sum(1)
      return { sum = sum, n = moth.full({}, n, { dtype = moth.float64, device = sum:device() }) }
    end,
  }
end

local mean = {}
function mean.define(name, fn_name, options, f, after)
  local parts = sums(f)
  parts.result = function(self, s)
    local v = s.sum / s.n
    return value(after and after(self, v) or v)
  end
  define(M, name, fn_name, options, INPUTS, parts)
end

--- The mean of |preds - target|. num_outputs: one value per column of (N, num_outputs).
mean.define("MeanAbsoluteError", "mean_absolute_error", "*, count num_outputs=1", function(_, p, t)
  return (p - t):abs()
end)

--- The mean of (preds - target)^2; its root with squared = false.
mean.define("MeanSquaredError", "mean_squared_error", "bool squared=true, *, count num_outputs=1", function(_, p, t)
  return (p - t):square()
end, function(self, v) return self.squared and v or v:sqrt() end)

--- The mean of |preds - target| / |target|.
mean.define("MeanAbsolutePercentageError", "mean_absolute_percentage_error", "*, count num_outputs=1",
  function(_, p, t) return (p - t):abs() / t:abs():clamp(1.17e-06) end)

--- How much of the variance is explained: 1 is perfect, 0 as good as the mean. preds: (N) or (N, outputs).
-- adjusted: the number of regressors. At least two samples.
define(M, "R2Score", "r2_score", "*, size adjusted=0, \z
  'raw_values'|'uniform_average'|'variance_weighted' multioutput='uniform_average'", INPUTS, {
    states = function() return { squares = zeros(), sum = zeros(), rss = zeros(), n = zeros() } end,
    measure = function(self, preds, target)
      if preds:dim() > 2 or preds:dim() == 0 then
        check.fail("[%s] preds must be (N) or (N, outputs), got [%s]", self.__name, table.concat(preds.shape, ", "))
      end
      local outputs = preds:dim() == 2 and preds:size(2) or 1
      local p, t = numbers({ __name = self.__name, num_outputs = outputs }, preds, target)
      p, t = p:double(), t:double()
      if preds:dim() == 2 and p:dim() == 1 then p, t = p:unsqueeze(2), t:unsqueeze(2) end
      return { squares = t:square():sum(1), sum = t:sum(1), rss = (t - p):square():sum(1),
        n = moth.full({}, p:size(1), { dtype = moth.float64, device = p:device() }) }
    end,
    result = function(self, s)
      local n = s.n:item()
      if n < 2 then check.fail("[%s] needs at least two samples, has %d", self.__name, n) end
      local tss = s.squares - s.sum * s.sum / n
      local flat, exact = tss:abs():le(1e-4), s.rss:abs():le(1e-4) -- as torchmetrics has it
      local r2 = 1 - s.rss / moth.where(flat, 1, tss)
      r2 = moth.where(exact, 1, moth.where(flat, 0, r2))
      if self.multioutput == "uniform_average" then
        r2 = r2:mean()
      elseif self.multioutput == "variance_weighted" then
        r2 = (tss / tss:sum() * r2):sum()
      end
      if self.adjusted >= n - 1 then
        check.warn("[%s] adjusted = %d needs more than %d samples: the value is not adjusted", self.__name,
          self.adjusted, self.adjusted + 1)
      elseif self.adjusted > 0 then
        r2 = 1 - (1 - r2) * (n - 1) / (n - self.adjusted - 1)
      end
      return value(r2)
    end,
  })

return M
