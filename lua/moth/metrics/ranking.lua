--- Metrics of scores at all thresholds: the area under the ROC curve, and average precision.
--
-- preds are scores, targets as in moth.metrics.classification. Without `thresholds` all scores are kept, and the value
-- is exact; with a number or a list of thresholds only counts are kept, and the value is that of the curve at these.
local metric = require "moth.metrics.metric"
local labels = require "moth.metrics.labels"
local check = require "moth.utils.check"
local each = require "moth.each"
local moth = require "moth"
local define, ratio, value = metric.define, metric.ratio, metric.value

local M = {}

local OPTIONS = ", 'micro'|'macro'|'weighted'|'none' average='macro', count|number[]|Tensor thresholds?, \z
  int ignore_index?"

local function prepare(self)
  labels.prepare(self)
  if self.average == "micro" and self.task == "multiclass" then
    check.fail("[%s] average 'micro' is that of task 'multilabel'; 'multiclass' has 'macro', 'weighted', 'none'",
      self.__name)
  end
  local t = self.thresholds
  if type(t) == "number" then
    if t < 2 then check.fail("[%s] thresholds: expected at least 2 from 0 to 1, got %d", self.__name, t) end
    t = moth.linspace(0, 1, t)
  elseif t then
    t = moth.sort(moth.tensor(t)) -- the areas below go from the highest to the lowest
  end
  self.thresholds = t
  if self.max_fpr and (self.task ~= "binary" or self.max_fpr <= 0 or self.max_fpr > 1) then
    check.fail("[%s] max_fpr is for task 'binary', above 0 and up to 1, got %g", self.__name, self.max_fpr)
  end
end

-- Columns of 0-or-1 targets (N, K), of which a score belongs to each.
local function columns(self, preds, target)
  if self.task == "binary" then return preds:unsqueeze(2), target:unsqueeze(2) end
  if self.task == "multiclass" then return preds, moth.F.one_hot(target, self.num_classes) end
  return preds, target
end

local function states(self)
  if not self.thresholds then return { preds = {}, target = {} } end
  local k = self.task == "multiclass" and self.num_classes or self.task == "multilabel" and self.num_labels or 1
  local function zeros() return moth.zeros({ self.thresholds:numel(), k }, { dtype = moth.int64 }) end
  return { tp = zeros(), fp = zeros(), fn = zeros(), tn = zeros() }
end

-- Ignored targets of labels become -1, so that each column can leave out its own.
local function measure(self, preds, target)
  local valid
  preds, target, valid = labels.scores(self, preds, target)
  if valid and self.task ~= "multilabel" then
    local rows = valid:nonzero():squeeze(2)
    preds, target = preds:index_select(1, rows), target:index_select(1, rows)
  end
  preds, target = columns(self, preds, target)
  if valid and self.task == "multilabel" then target = moth.where(valid, target, -1) end
  if not self.thresholds then return { preds = preds, target = target } end
  local p = preds:unsqueeze(1):ge(self.thresholds:to(preds:device()):reshape(-1, 1, 1))
  local yes, no = target:eq(1):unsqueeze(1), target:eq(0):unsqueeze(1)
  local np = p:logical_not()
  return { tp = p:logical_and(yes):sum(2), fp = p:logical_and(no):sum(2), fn = np:logical_and(yes):sum(2),
    tn = np:logical_and(no):sum(2) }
end

-- True and false positives at each distinct score, from the highest; both float64. One column.
local function curve(preds, target)
  local order
  preds, order = preds:sort(1, true)
  target = target:index_select(1, order)
  local n = preds:numel()
  local last = moth.ones({ n }, { dtype = moth.bool, device = preds:device() })
  if n > 1 then last:narrow(1, 1, n - 1):copy_(preds:narrow(1, 2, n - 1):ne(preds:narrow(1, 1, n - 1))) end
  local at = last:nonzero():squeeze(2)
  local tps = target:to(moth.float64):cumsum(1):index_select(1, at)
  return tps, at:to(moth.float64) - tps
end

-- f(tps, fps, p, n) of each column, where p and n are the numbers of positives and negatives; and p of all.
local function by_column(self, s, f)
  local out, support = {}, {}
  if self.thresholds then
    if self.average == "micro" and self.task == "multilabel" then
      local sums = {}
      for name, t in each(s) do sums[name] = t:sum { dim = 2, keepdim = true } end
      s = sums
    end
    for k = 1, s.tp:size(2) do
      local function col(t) return t:select(2, k):to(moth.float64):flip(1) end -- from the highest threshold
      local tp, fp, fn, tn = col(s.tp), col(s.fp), col(s.fn), col(s.tn)
      out[k], support[k] = f(tp, fp, tp + fn, fp + tn), (tp + fn)[1]
    end
    return out, support
  end
  if not s.preds then check.fail("[%s] there is no data: call update before compute", self.__name) end
  local preds, target = s.preds, s.target
  if self.average == "micro" and self.task == "multilabel" then
    preds, target = preds:reshape(-1, 1), target:reshape(-1, 1)
  end
  for k = 1, preds:size(2) do
    local p, t = preds:select(2, k), target:select(2, k)
    local valid = t:ge(0)
    p, t = p:masked_select(valid), t:masked_select(valid)
    if t:numel() == 0 then check.fail("[%s] there is no data: all targets are ignored", self.__name) end
    local tps, fps = curve(p, t)
    out[k], support[k] = f(tps, fps, tps[-1], fps[-1]), tps[-1]
  end
  return out, support
end

-- One value of those of the columns: NaN ones do not count.
local function averaged(self, s, f)
  local list, support = by_column(self, s, f)
  local all = moth.stack(list)
  if #list == 1 and (self.task == "binary" or self.average == "micro") then return value(all[1]) end
  if self.average == "none" then return value(all) end
  local known = all:isnan():logical_not()
  all, support = all:masked_select(known), moth.stack(support):masked_select(known)
  if self.average == "macro" then return value(all:mean()) end
  return value((all * ratio(support, support:sum())):sum())
end

local function zero_first(t) return moth.cat { moth.zeros({ 1 }, { dtype = t:dtype(), device = t:device() }), t } end

-- The area under points (x, y) by trapezoids.
local function area(x, y)
  local n = x:numel() - 1
  if n < 1 then return x:sum() * 0 end
  return ((x:narrow(1, 2, n) - x:narrow(1, 1, n)) * (y:narrow(1, 2, n) + y:narrow(1, 1, n)) / 2):sum()
end

-- The part of the area up to a false positive rate of `most`, as McClish standardizes it.
local function partial(fpr, tpr, most)
  local x, y = fpr:tolist(), tpr:tolist()
  local stop = 1
  while x[stop] and x[stop] <= most do stop = stop + 1 end
  if stop > #x then return area(fpr, tpr) end
  local share = (most - x[stop - 1]) / (x[stop] - x[stop - 1])
  local top = y[stop - 1] + share * (y[stop] - y[stop - 1])
  local function upto(t, last) return moth.cat { t:narrow(1, 1, stop - 1), t:new_full({ 1 }, last) } end
  local least = 0.5 * most * most
  return 0.5 * (1 + (area(upto(fpr, most), upto(tpr, top)) - least) / (most - least))
end

--- The area under the ROC curve: how likely a positive has a higher score than a negative. max_fpr: of its part up to
-- this false positive rate. A class without positives, or without negatives, has 0, as in torchmetrics.
define(M, "AUROC", "auroc", labels.TASK .. OPTIONS .. ", number max_fpr?", "Tensor preds, Tensor target", {
  prepare = prepare, states = states, measure = measure,
  result = function(self, s)
    return averaged(self, s, function(tps, fps, p, n)
      local tpr, fpr = ratio(tps, p), ratio(fps, n)
      if not self.thresholds then tpr, fpr = zero_first(tpr), zero_first(fpr) end
      if self.max_fpr and self.max_fpr < 1 and fpr:sum():item() > 0 and tpr:sum():item() > 0 then
        return partial(fpr, tpr, self.max_fpr)
      end
      return area(fpr, tpr)
    end)
  end,
})

--- The mean of the precisions at all thresholds, each weighed by the recall that it adds. Without positives it is 0 for
-- "binary", and for a class NaN, which means over classes leave out.
define(M, "AveragePrecision", "average_precision", labels.TASK .. OPTIONS, "Tensor preds, Tensor target", {
  prepare = prepare, states = states, measure = measure,
  result = function(self, s)
    return averaged(self, s, function(tps, fps, p)
      local recall = tps / p
      local single = self.task == "binary" or self.average == "micro"
      if self.thresholds or single then recall = ratio(tps, p) end
      local before = zero_first(recall):narrow(1, 1, recall:numel())
      return ((recall - before) * ratio(tps, tps + fps)):sum()
    end)
  end,
})

return M
