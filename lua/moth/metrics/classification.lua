--- Metrics of classes, from counts of right and wrong: accuracy, precision, recall, F scores, IoU, confusion matrix.
--
-- task: "binary" (targets 0 or 1), "multiclass" (class ids from 1, num_classes) or "multilabel" (0 or 1 for each of
-- num_labels). preds are decisions of the targets' kind, or scores: probabilities or logits, (N, C, …) for multiclass.
-- average: "micro" counts all alike, "macro" is the mean of the classes, "weighted" by how often they are, "none" gives
-- one value per class. Targets that are ignore_index do not count. Values are those of torchmetrics 1.9.
local metric = require "moth.metrics.metric"
local labels = require "moth.metrics.labels"
local moth = require "moth"
local define, ratio, value = metric.define, metric.ratio, metric.value

local M = {}

local AVERAGE = ", 'micro'|'macro'|'weighted'|'none' average='%s', int ignore_index?, number zero_division=0"
local INPUTS = "Tensor preds, Tensor target"

-- Scores per class as one: `none` are the classes that do not count in the mean.
local function averaged(self, score, s, none)
  if self.average == "none" then return value(score) end
  local weights = self.average == "weighted" and (s.tp + s.fn):to(moth.float64) or moth.ones_like(score)
  if self.average == "macro" and self.task == "multiclass" then weights = moth.where(none, 0, weights) end
  return value(ratio(weights * score, weights:sum()):sum())
end

local function summed(s)
  local out = {}
  for _, name in ipairs { "tp", "fp", "fn", "tn" } do out[name] = s[name]:sum() end
  return out
end

-- A class of a score of counts: score(self, s) of tp, fp, fn, tn.
local function define_score(name, fn_name, average, options, result)
  define(M, name, fn_name, labels.TASK .. AVERAGE:format(average) .. options, INPUTS, {
    prepare = labels.prepare, states = labels.no_counts, measure = labels.counts, result = result })
end

local function reduced(self, s, score, by_support)
  if self.task == "binary" then return value(score(s)) end
  if self.average == "micro" then return value(score(summed(s))) end
  return averaged(self, score(s), s, (by_support and s.tp + s.fn or s.tp + s.fp + s.fn):eq(0))
end

--- The share that is right. top_k: a prediction is right if the target is among the k classes of the highest scores.
define_score("Accuracy", "accuracy", "micro", ", count top_k=1", function(self, s)
  return reduced(self, s, function(c)
    if self.task == "multiclass" then return ratio(c.tp, c.tp + c.fn) end
    return ratio(c.tp + c.tn, c.tp + c.tn + c.fp + c.fn)
  end, self.top_k > 1)
end)

--- Of those predicted, the share that is right.
define_score("Precision", "precision", "micro", ", count top_k=1", function(self, s)
  return reduced(self, s, function(c) return ratio(c.tp, c.tp + c.fp, self.zero_division) end, self.top_k > 1)
end)

--- Of those that are there, the share that was found.
define_score("Recall", "recall", "micro", ", count top_k=1", function(self, s)
  return reduced(self, s, function(c) return ratio(c.tp, c.tp + c.fn, self.zero_division) end, self.top_k > 1)
end)

--- Of those that are not there, the share that was left out.
define_score("Specificity", "specificity", "micro", ", count top_k=1", function(self, s)
  return reduced(self, s, function(c) return ratio(c.tn, c.tn + c.fp) end)
end)

local function f_score(self, s, beta)
  local b = beta * beta
  return reduced(self, s, function(c)
    return ratio((1 + b) * c.tp:double(), (1 + b) * c.tp:double() + b * c.fn:double() + c.fp, self.zero_division)
  end)
end

--- The harmonic mean of precision and recall.
define_score("F1Score", "f1_score", "micro", ", count top_k=1", function(self, s) return f_score(self, s, 1) end)

--- As F1Score, with recall weighed beta times as much as precision.
define_score("FBetaScore", "fbeta_score", "micro", ", number beta=1, count top_k=1",
  function(self, s) return f_score(self, s, self.beta) end)

--- Intersection over union of each class (the Jaccard index); their mean is the mean IoU of segmentation.
define_score("JaccardIndex", "jaccard_index", "macro", "", function(self, s)
  local function iou(c) return ratio(c.tp, c.tp + c.fp + c.fn, self.zero_division) end
  if self.task == "binary" then return value(iou(s)) end
  local ignored = self.task == "multiclass" and self.ignore_index
  ignored = ignored and ignored >= 1 and ignored <= self.num_classes and ignored or nil
  local counts = ignored and moth.arange(1, self.num_classes + 1, { device = s.tp:device() }):eq(ignored)
  if self.average == "micro" then
    if ignored then s = { tp = s.tp, fn = s.fn, fp = moth.where(counts, 0, s.fp) } end
    return value(iou { tp = s.tp:sum(), fp = s.fp:sum(), fn = s.fn:sum() })
  end
  local none = (s.tp + s.fp + s.fn):eq(0)
  return averaged(self, iou(s), s, counts and none:logical_or(counts) or none)
end)

local function normalized(matrix, how)
  if how == "none" then return matrix end
  matrix = matrix:to(moth.float64)
  local sum = how == "all" and matrix:sum { dim = { -2, -1 }, keepdim = true }
    or matrix:sum { dim = how == "true" and -1 or -2, keepdim = true }
  return value(ratio(matrix, sum))
end

--- How often each class was taken for each: rows are true classes, columns predicted ones; (2, 2), (C, C), or
-- (labels, 2, 2). normalize: "true" divides by the rows' sums, "pred" by the columns', "all" by that of all.
define(M, "ConfusionMatrix", "confusion_matrix",
  labels.TASK .. ", 'none'|'true'|'pred'|'all' normalize='none', int ignore_index?", INPUTS, {
    prepare = labels.prepare,
    states = function(self)
      if self.task ~= "multiclass" then return labels.no_counts(self) end
      return { matrix = moth.zeros({ self.num_classes, self.num_classes }, { dtype = moth.int64 }) }
    end,
    measure = function(self, preds, target)
      if self.task ~= "multiclass" then return labels.counts(self, preds, target) end
      return { matrix = labels.confusion(self, preds, target) }
    end,
    result = function(self, s)
      local matrix = s.matrix or moth.stack({ moth.stack({ s.tn, s.fp }, -1), moth.stack({ s.fn, s.tp }, -1) }, -2)
      return normalized(matrix, self.normalize)
    end,
  })

-- (N, C, …) of 0 and 1 from class ids (N, …); one that is there already stays.
local function one_hot(self, t, index)
  if not index then return t:ne(0) end
  return moth.F.one_hot(t:to(moth.int64), self.num_classes):movedim(-1, 2):ne(0)
end

--- Mean IoU per sample, as torchmetrics.segmentation.MeanIoU: the IoU of each image and class that is there, then their
-- mean. input_format: "one-hot" (N, C, …), "index" (N, …), or "mixed". per_class: one value per class, -1 without data.
define(M, "MeanIoU", "mean_iou", "count num_classes, *, bool include_background=true, bool per_class=false, \z
  'one-hot'|'index'|'mixed' input_format='one-hot'", INPUTS, {
    states = function(self)
      local n = self.num_classes - (self.include_background and 0 or 1)
      return { score = moth.zeros({ n }, { dtype = moth.float64 }), n = moth.zeros({ n }, { dtype = moth.int64 }) }
    end,
    measure = function(self, preds, target)
      local mixed = self.input_format == "mixed"
      local p_index = self.input_format == "index" or mixed and preds:dim() < target:dim()
      local t_index = self.input_format == "index" or mixed and target:dim() < preds:dim()
      local p, t = one_hot(self, preds, p_index), one_hot(self, target, t_index)
      if not self.include_background then
        p, t = p:narrow(2, 2, self.num_classes - 1), t:narrow(2, 2, self.num_classes - 1)
      end
      local function count(x) return x:reshape(x:size(1), x:size(2), -1):sum(3) end
      local both = count(p:logical_and(t))
      local either = count(p:logical_or(t))
      return { score = ratio(both, either):sum(1), n = either:gt(0):sum(1) }
    end,
    result = function(self, s)
      if self.per_class then return value(ratio(s.score, s.n, -1)) end
      return value(s.score:sum() / s.n:sum())
    end,
  })

return M
