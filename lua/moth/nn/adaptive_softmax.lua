--- nn.AdaptiveLogSoftmaxWithLoss: softmax over many classes of falling frequency (Grave et al. 2017). The most frequent
-- ones stand in the head, the others in clusters of which the head has one logit each.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local Linear = require "moth.nn.linear"
local ModuleList = require "moth.nn.module_list"
local Sequential = require "moth.nn.sequential"

local Adaptive = class("AdaptiveLogSoftmaxWithLoss", Module)

--- cutoffs: rising numbers of classes, each the end of a cluster; the last cluster ends with n_classes. The features
-- of cluster i are in_features / div_value^i.
Adaptive.__init = signature.init("nn.AdaptiveLogSoftmaxWithLoss(count in_features, count n_classes, count[] cutoffs, \z
  number div_value=4, bool head_bias=false, device device?, dtype dtype?)", function(self, o)
  local cutoffs, last = {}, 0
  for i, c in ipairs(o.cutoffs) do
    if c <= last or c >= o.n_classes then
      check.fail("[nn.AdaptiveLogSoftmaxWithLoss] cutoffs must rise and lie below n_classes (%d), got %d", o.n_classes,
        c)
    end
    cutoffs[i], last = c, c
  end
  if #cutoffs == 0 then check.fail("[nn.AdaptiveLogSoftmaxWithLoss] cutoffs is an empty list") end
  self.in_features, self.n_classes = o.in_features, o.n_classes
  self.div_value, self.head_bias = o.div_value, o.head_bias
  cutoffs[#cutoffs + 1] = o.n_classes
  self.cutoffs, self.shortlist_size, self.n_clusters = cutoffs, cutoffs[1], #cutoffs - 1
  self.head_size = self.shortlist_size + self.n_clusters
  local like = { dtype = o.dtype, device = o.device, bias = o.head_bias }
  self.head = Linear(o.in_features, self.head_size, like)
  like.bias = false
  self.tail = ModuleList()
  for i = 1, self.n_clusters do
    local hidden = math.floor(o.in_features / o.div_value ^ i)
    self.tail:append(Sequential(Linear(o.in_features, hidden, like), Linear(hidden, cutoffs[i + 1] - cutoffs[i], like)))
  end
end)

function Adaptive:reset()
  self.head:reset()
  for _, cluster in ipairs(self.tail) do for _, layer in ipairs(cluster) do layer:reset() end end
end

--- x (N, in_features) or (in_features), target (N) or () of classes 1..n_classes
-- @return the log-probability of each target; the loss, the mean of their negatives
function Adaptive:forward(x, target)
  local where = "nn.AdaptiveLogSoftmaxWithLoss"
  check.tensor(where, "input", x)
  check.tensor(where, "target", target)
  if B.dim(x) - 1 ~= B.dim(target) or B.dim(x) > 2 then
    check.fail("[%s] expected (N, features) and (N), or (features) and (), got %s and %s", where, B.format(x),
      B.format(target))
  end
  local batched = B.dim(x) == 2
  local rows, at = batched and x or x:unsqueeze(1), batched and target or target:reshape(1)
  if B.size(rows, 1) ~= B.size(at, 1) then
    check.fail("[%s] input and target must have the same rows, got %s and %s", where, B.format(x), B.format(target))
  end
  local low, high = B.extremes(at)
  if low and B.numel(at) > 0 and (low < 1 or high > self.n_classes) then
    check.fail("[%s] targets are from 1 to %d, got %d to %d", where, self.n_classes, low, high)
  end
  -- Where a target stands in the head: a class of its own, or its cluster's logit.
  local place = at:clamp({ max = self.shortlist_size })
  local parts, members = {}, {}
  for i = 1, self.n_clusters do
    local inside = at:gt(self.cutoffs[i]):logical_and(at:le(self.cutoffs[i + 1]))
    place = place:masked_fill(inside, self.shortlist_size + i)
    local which = inside:nonzero():reshape(-1)
    if B.numel(which) > 0 then
      local log = self.tail[i](rows:index_select(1, which)):log_softmax(2)
      local own = at:index_select(1, which) - self.cutoffs[i]
      parts[#parts + 1], members[#members + 1] = log:gather(2, own:unsqueeze(2)):squeeze(2), which
    end
  end
  local out = self.head(rows):log_softmax(2):gather(2, place:unsqueeze(2)):squeeze(2)
  for i, part in ipairs(parts) do out = out:index_add(1, members[i], part) end
  local loss = (-out):mean()
  if not batched then out = out:squeeze(1) end
  return out, loss
end

-- The log-probabilities (N, n_classes), given the results of the head.
local function all(self, rows, head)
  local log = head:log_softmax(2)
  local parts = { log:narrow(2, 1, self.shortlist_size) }
  for i = 1, self.n_clusters do
    local own = self.tail[i](rows):log_softmax(2)
    parts[i + 1] = own + log:narrow(2, self.shortlist_size + i, 1)
  end
  return moth.cat(parts, 2)
end

--- x (N, in_features) -> the log-probabilities of all classes (N, n_classes)
function Adaptive:log_prob(x)
  return all(self, check.tensor("nn.AdaptiveLogSoftmaxWithLoss:log_prob", "input", x), self.head(x))
end

--- x (N, in_features) -> the most probable classes (N), as log_prob(x):argmax(2). Clusters are computed only for rows
-- whose most probable entry of the head is no class.
function Adaptive:predict(x)
  local head = self.head(check.tensor("nn.AdaptiveLogSoftmaxWithLoss:predict", "input", x))
  local best = head:argmax(2)
  local others = best:gt(self.shortlist_size):nonzero():reshape(-1)
  if B.numel(others) == 0 then return best end
  local classes = all(self, x:index_select(1, others), head:index_select(1, others)):argmax(2)
  return best:index_copy(1, others, classes)
end

return Adaptive
