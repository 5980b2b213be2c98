--- What predictions and targets say, for metrics of classes: counts of right and wrong per class, and scores as
-- probabilities. Targets of "binary" and "multilabel" are 0 or 1; those of "multiclass" are class ids from 1.
local check = require "moth.utils.check"
local moth = require "moth"

local M = {}

M.TASK = "'binary'|'multiclass'|'multilabel' task, *, number threshold=0.5, count num_classes?, count num_labels?"

--- Checks that the task has its number of classes. Fails in the name of the metric.
function M.prepare(self)
  if self.task == "multiclass" and not self.num_classes then
    check.fail("[%s] task 'multiclass' needs num_classes", self.__name)
  elseif self.task == "multilabel" and not self.num_labels then
    check.fail("[%s] task 'multilabel' needs num_labels", self.__name)
  end
  if (self.top_k or 1) > 1 and (self.task ~= "multiclass" or self.top_k > self.num_classes) then
    check.fail("[%s] top_k = %d needs task 'multiclass' with at least as many classes", self.__name, self.top_k)
  end
  if self.threshold and not (self.threshold >= 0 and self.threshold <= 1) then
    check.fail("[%s] threshold is of probabilities: expected 0 to 1, got %g", self.__name, self.threshold)
  end
  if self.beta and self.beta <= 0 then
    check.fail("[%s] beta must be above 0, got %g", self.__name, self.beta)
  end
end

local function shape(t) return "[" .. table.concat(t.shape, ", ") .. "]" end

local function same_shape(self, preds, target)
  if shape(preds) ~= shape(target) then
    check.fail("[%s] preds and target must have the same shape, got %s and %s", self.__name, shape(preds),
      shape(target))
  end
end

local function whole_numbers(self, what, t)
  if t:is_floating_point() or t:is_complex() then
    check.fail("[%s] %s must be integers or bool, got %s", self.__name, what, t:dtype().name)
  end
end

-- Fails unless low <= t <= high where `valid`.
local function in_range(self, what, t, low, high, valid, hint)
  if t:numel() == 0 then return end
  local wrong = t:lt(low):logical_or(t:gt(high))
  if valid then wrong = wrong:logical_and(valid) end
  if wrong:any():item() then
    check.fail("[%s] %s must be from %d to %d%s, got %d", self.__name, what, low, high, hint,
      t:masked_select(wrong)[1]:item())
  end
end

local function is_probability(t) return t:numel() == 0 or t:ge(0):logical_and(t:le(1)):all():item() end

--- Scores as probabilities: logits (anything outside 0 to 1) go through a sigmoid, or a softmax over dimension 2.
function M.probabilities(t, many)
  if is_probability(t) then return t end
  return many and t:softmax(2) or t:sigmoid()
end

-- 0 and 1 in both, with what counts: valid (nil: all).
local function zero_one(self, preds, target)
  same_shape(self, preds, target)
  whole_numbers(self, "target", target)
  target = target:to(moth.int64)
  local valid = self.ignore_index and target:ne(self.ignore_index) or nil
  in_range(self, "target", target, 0, 1, valid, self.ignore_index and " (or ignore_index)" or "")
  return valid, target
end

--- The scores and 0-or-1 targets of "binary" and "multilabel", flat or as (N, labels): preds, target, valid.
function M.scores(self, preds, target)
  if not preds:is_floating_point() then
    check.fail("[%s] preds must be scores (floats), got %s", self.__name, preds:dtype().name)
  end
  if self.task == "multiclass" then
    local C = self.num_classes
    if preds:dim() ~= target:dim() + 1 or preds:size(2) ~= C then
      check.fail("[%s] preds must be (N, %d, …) scores for targets (N, …), got %s and %s", self.__name, C, shape(preds),
        shape(target))
    end
    whole_numbers(self, "target", target)
    target = target:reshape(-1):to(moth.int64)
    local valid = self.ignore_index and target:ne(self.ignore_index) or nil
    in_range(self, "target", target, 1, C, valid, ": class ids count from 1")
    return M.probabilities(preds, true):movedim(2, -1):reshape(-1, C), target, valid
  end
  local valid
  valid, target = zero_one(self, preds, target)
  preds = M.probabilities(preds)
  if self.task == "binary" then return preds:reshape(-1), target:reshape(-1), valid and valid:reshape(-1) end
  M.labels_of(self, preds)
  local function flat(t) return t:movedim(2, -1):reshape(-1, self.num_labels) end
  return flat(preds), flat(target), valid and flat(valid)
end

--- Fails unless dimension 2 is that of the labels.
function M.labels_of(self, preds)
  if preds:dim() < 2 or preds:size(2) ~= self.num_labels then
    check.fail("[%s] preds must be (N, %d, …), got %s", self.__name, self.num_labels, shape(preds))
  end
end

-- The class that is predicted for each target, both flat: the most likely, or the right one if it is among the top_k.
local function classes(self, preds, target)
  local C, k = self.num_classes, self.top_k or 1
  whole_numbers(self, "target", target)
  target = target:to(moth.int64)
  if preds:dim() == target:dim() + 1 then
    if preds:size(2) ~= C or not preds:is_floating_point() then
      check.fail("[%s] preds must be (N, %d, …) floats or (N, …) class ids, got %s %s", self.__name, C, shape(preds),
        preds:dtype().name)
    end
    if k == 1 then
      preds = preds:argmax(2)
    else
      local _, top = preds:topk(k, 2)
      preds = moth.where(top:eq(target:unsqueeze(2)):any(2), target, top:select(2, 1))
    end
  elseif k > 1 then
    check.fail("[%s] top_k = %d needs preds with scores (N, %d, …), got %s", self.__name, k, C, shape(preds))
  end
  same_shape(self, preds, target)
  whole_numbers(self, "preds of the targets' shape", preds)
  preds, target = preds:to(moth.int64):reshape(-1), target:reshape(-1)
  local valid = self.ignore_index and target:ne(self.ignore_index) or nil
  in_range(self, "target", target, 1, C, valid, ": class ids count from 1")
  in_range(self, "preds", preds, 1, C, valid, ": class ids count from 1")
  if valid then preds, target = preds:masked_select(valid), target:masked_select(valid) end
  return preds, target
end

-- How often each of 1 to n is in ids, where `weight` is 1.
local function count(ids, weight, n)
  return moth.zeros({ n }, { dtype = moth.int64, device = ids:device() }):scatter_add(1, ids, weight:to(moth.int64))
end

-- preds as 0 and 1, of "binary" and "multilabel".
local function decided(self, preds, target)
  local valid
  valid, target = zero_one(self, preds, target)
  if preds:is_floating_point() then
    preds = M.probabilities(preds):gt(self.threshold)
  else
    in_range(self, "preds", preds:to(moth.int64), 0, 1, valid, "")
  end
  return preds:to(moth.int64), target, valid
end

--- True and false positives and negatives, as int64: one number each for "binary", one per class or label otherwise.
function M.counts(self, preds, target)
  if self.task == "multiclass" then
    local C = self.num_classes
    preds, target = classes(self, preds, target)
    local right = preds:eq(target)
    local wrong = right:logical_not()
    local tp, fp, fn = count(target, right, C), count(preds, wrong, C), count(target, wrong, C)
    return { tp = tp, fp = fp, fn = fn, tn = preds:numel() - tp - fp - fn }
  end
  local valid
  preds, target, valid = decided(self, preds, target)
  local function total(t)
    if valid then t = t:logical_and(valid) end
    if self.task == "binary" then return t:sum() end
    return t:movedim(2, -1):reshape(-1, self.num_labels):sum(1)
  end
  if self.task == "multilabel" then M.labels_of(self, preds) end
  local p, t = preds:eq(1), target:eq(1)
  local np, nt = p:logical_not(), t:logical_not()
  return { tp = total(p:logical_and(t)), fp = total(p:logical_and(nt)), fn = total(np:logical_and(t)),
    tn = total(np:logical_and(nt)) }
end

--- The counts before any update.
function M.no_counts(self)
  local n = self.task == "multiclass" and self.num_classes or self.task == "multilabel" and self.num_labels
  n = n and { n } or {}
  local function zeros() return moth.zeros(n, { dtype = moth.int64 }) end
  return { tp = zeros(), fp = zeros(), fn = zeros(), tn = zeros() }
end

--- How often class i was taken for class j: (C, C) with the true classes as rows.
function M.confusion(self, preds, target)
  local C = self.num_classes
  preds, target = classes(self, preds, target)
  return count((target - 1) * C + preds, moth.ones_like(preds), C * C):reshape(C, C)
end

return M
