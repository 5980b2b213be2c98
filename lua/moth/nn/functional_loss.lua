--- The part of moth.nn.functional about losses and similarity. Parameters are PyTorch's, in its order.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local ops = B.ops

local F = {}

local REDUCTION = "'mean'|'sum'|'none' reduction='mean'"

-- Defines F[name]; REDUCTION in `parameters` is replaced by the reduction parameter that all losses share.
local function define(name, parameters, fn)
  F[name] = signature(("F.%s(%s)"):format(name, (parameters:gsub("REDUCTION", REDUCTION))), fn)
end

local function reduce(x, reduction)
  if reduction == "mean" then return x:mean() end
  return reduction == "sum" and x:sum() or x
end

-- Can x be broadcast to the shape of y?
local function expands(x, y)
  if #x > #y then return false end
  for d = 1, #x do
    local n = x[#x + 1 - d]
    if n ~= 1 and n ~= y[#y + 1 - d] then return false end
  end
  return true
end

-- Raises where neither of two tensors broadcasts to the other: (N, 1) against (N) would pair all with all.
local function paired(name, a, x, b, y)
  local p, q = B.size(x), B.size(y)
  if expands(p, q) or expands(q, p) then return end
  check.fail("[F.%s] %s [%s] and %s [%s]: neither broadcasts to the other, so the loss would pair elements that do \z
    not belong together; give both one shape, as by target:view_as(input), squeeze or unsqueeze", name, a,
    table.concat(p, ", "), b, table.concat(q, ", "))
end

-- An op of input and target; other shapes that broadcast are told once for each line, as in PyTorch.
local function of_pairs(name, parameters)
  local op = ops[name]
  define(name, "Tensor input, Tensor target, REDUCTION" .. parameters, function(input, target, reduction, at)
    local p, q = B.size(input), B.size(target)
    local same = #p == #q
    for d = 1, same and #p or 0 do same = same and p[d] == q[d] end
    if not same then
      local loss = op(input, target, reduction, at)
      check.warn("[F.%s] target has another shape [%s] than input [%s] and is broadcast with it; if that is not \z
        meant, give both one shape", name, table.concat(q, ", "), table.concat(p, ", "))
      return loss
    end
    return op(input, target, reduction, at)
  end)
end

-- ---- of classes ------------------------------------------------------------------------------------

-- x (N, C, d1, …) as rows (N d1 …, C); its dimension of classes.
local function by_rows(x) return x:movedim(2, -1):reshape(-1, B.size(x, 2)) end

local function same_size(x, y) return table.concat(B.size(x), " ") == table.concat(B.size(y), " ") end

-- Cross-entropy against probabilities of the logits' shape.
local function soft_cross_entropy(input, target, weight, reduction, smoothing)
  local dim = B.dim(input) == 1 and 1 or 2
  local classes = B.size(input, dim)
  if smoothing > 0 then target = target * (1 - smoothing) + smoothing / classes end
  local each_class = input:log_softmax(dim) * target
  if weight then
    local shape = {}
    for d = 1, B.dim(input) do shape[d] = d == dim and classes or 1 end
    each_class = each_class * weight:view(shape)
  end
  local loss = -each_class:sum(dim)
  if reduction == "mean" then return loss:sum() / (B.numel(input) / math.max(classes, 1)) end
  return reduce(loss, reduction)
end

--- logits (C), (N, C) or (N, C, d1, …), target (), (N) or (N, d1, …) of positions 1..C, or probabilities of the
-- logits' shape; weight (C)
define("cross_entropy", "Tensor input, Tensor target, Tensor weight?, int ignore_index=-100, REDUCTION, \z
  number label_smoothing=0", function(input, target, weight, ignore, reduction, smoothing)
  if B.tensor_dtype(target).is_floating_point and B.dim(input) > 0 and same_size(input, target) then
    if smoothing < 0 or smoothing > 1 then
      check.fail("[F.cross_entropy] label_smoothing must be between 0 and 1, got %g", smoothing)
    end
    if ignore > 0 then check.fail("[F.cross_entropy] ignore_index is for positions, not for probabilities") end
    return soft_cross_entropy(input, target, weight, reduction, smoothing)
  end
  if B.dim(input) <= 2 then return ops.cross_entropy(input, target, weight, reduction, ignore, smoothing) end
  local size = B.size(input)
  table.remove(size, 2)
  if table.concat(size, " ") ~= table.concat(B.size(target), " ") then
    check.fail("[F.cross_entropy] expected target of shape [%s], or probabilities of input's shape, got input %s and \z
      target %s", table.concat(size, ", "), B.format(input), B.format(target))
  end
  local loss = ops.cross_entropy(by_rows(input), target:reshape(-1), weight, reduction, ignore, smoothing)
  return reduction == "none" and loss:view(target:size()) or loss
end)

--- log-probabilities (C), (N, C) or (N, C, d1, …), target (), (N) or (N, d1, …) of positions 1..C; weight (C)
define("nll_loss", "Tensor input, Tensor target, Tensor weight?, int ignore_index=-100, REDUCTION",
  function(input, target, given, ignore, reduction)
    if not given and ignore == -100 and B.dim(input) == 2 then return ops.nll_loss(input, target, reduction) end
    local size = B.size(input)
    table.remove(size, #size == 1 and 1 or 2)
    if #B.size(input) == 0 or table.concat(size, " ") ~= table.concat(B.size(target), " ") then
      check.fail("[F.nll_loss] expected (C) and (), (N, C) and (N), or (N, C, d1, …) and (N, d1, …), got input %s and \z
        target %s", B.format(input), B.format(target))
    end
    local rows = B.dim(input) == 1 and input:unsqueeze(1) or by_rows(input)
    local at = target:reshape(-1)
    local counts = at:ne(ignore)
    at = moth.where(counts, at, 1)
    local picked = rows:gather(2, at:unsqueeze(2)):squeeze(2):neg()
    local weight = counts:to(input:dtype())
    if given then weight = weight * given:index_select(1, at) end
    local loss = picked * weight
    if reduction == "mean" then -- where all are ignored it is NaN, but the gradients are 0
      local total = weight:sum()
      local nothing = total:eq(0)
      return loss:sum() / moth.where(nothing, 1, total) + moth.where(nothing, 0 / 0, moth.zeros_like(total))
    end
    if reduction == "none" then return loss:view(B.size(target)) end
    return reduce(loss, reduction)
  end)

--- logits and targets in [0, 1] of one shape. weight and pos_weight are broadcast against them.
define("binary_cross_entropy_with_logits", "Tensor input, Tensor target, Tensor weight?, REDUCTION, Tensor pos_weight?",
  function(input, target, weight, reduction, pos_weight)
    if not weight and not pos_weight then
      return ops.binary_cross_entropy_with_logits(input, target, reduction)
    end
    local loss
    if pos_weight then -- (1 - y) x + (1 + (w - 1) y) log(1 + exp(-x))
      local slope = (pos_weight - 1) * target + 1
      loss = input - input * target - slope * input:log_sigmoid()
    else
      loss = ops.binary_cross_entropy_with_logits(input, target, "none")
    end
    if weight then loss = loss * weight end
    return reduce(loss, reduction)
  end)

--- Probabilities (after a sigmoid) against targets in [0, 1].
define("binary_cross_entropy", "Tensor input, Tensor target, Tensor weight?, REDUCTION",
  function(input, target, weight, reduction)
    -- On the CPU only: elsewhere reading would wait for the device, and the loss becomes NaN.
    local low, high = B.extremes(input)
    if low and (low < 0 or high > 1) then
      check.fail("[F.binary_cross_entropy] probabilities are between 0 and 1, got %g to %g; for logits there is \z
        F.binary_cross_entropy_with_logits", low, high)
    end
    return ops.binary_cross_entropy(input, target, weight, reduction)
  end)

--- log-probabilities against probabilities; reduction = "batchmean" is the divergence itself.
define("kl_div", "Tensor input, Tensor target, 'mean'|'sum'|'none'|'batchmean' reduction='mean', \z
  bool log_target=false", ops.kl_div)

--- log_probs (T, N, C), or (T, C) of one sequence; targets (N, S), or all targets one behind the other (sum of
-- target_lengths); lengths: vectors of N integers, or lists. blank: the position of the blank's class. 'mean' divides
-- each loss by the length of its target. zero_infinity: 0, without a gradient, where inputs are too short.
define("ctc_loss", "Tensor log_probs, Tensor targets, int|int[]|Tensor input_lengths, \z
  int|int[]|Tensor target_lengths, Index blank=1, REDUCTION, bool zero_infinity=false",
  function(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
    local where = "[F.ctc_loss]"
    local batched = B.dim(log_probs) == 3
    if not batched and B.dim(log_probs) ~= 2 then
      check.fail("%s expected log-probabilities (T, N, C) or (T, C), got %s", where, B.format(log_probs))
    end
    local rows = batched and log_probs or log_probs:unsqueeze(2)
    local N = B.size(rows, 2)
    local function lengths(name, given)
      local t = given
      if not B.is_tensor(t) then t = moth.tensor(type(t) == "table" and t or { t }, { dtype = moth.int64 }) end
      t = t:reshape(-1):to(B.tensor_device(rows)) -- lengths are given as they are known: on the CPU, as a rule
      if B.numel(t) ~= N then check.fail("%s %d %s for %d sequences", where, B.numel(t), name, N) end
      return t
    end
    local ins, outs = lengths("input_lengths", input_lengths), lengths("target_lengths", target_lengths)
    if B.dim(targets) == 1 then -- one behind the other: padded by a class that no length reaches
      local counts, list, at, longest = outs:totable(), {}, 1, 0
      for _, n in ipairs(counts) do longest = math.max(longest, n) end
      for i, n in ipairs(counts) do
        if n < 0 or at + n - 1 > B.numel(targets) then
          check.fail("%s the target lengths sum to more than the %d targets", where, B.numel(targets))
        end
        list[i] = moth.pad(targets:narrow(1, at, n), { 0, longest - n }, "constant", 1)
        at = at + n
      end
      targets = N > 0 and moth.stack(list) or targets:reshape(0, 0)
    elseif B.dim(targets) ~= 2 then
      check.fail("%s expected targets (N, S) or a vector, got %s", where, B.format(targets))
    end
    local loss = ops.ctc_loss_forward(rows, targets, ins, outs, blank, zero_infinity)
    if reduction == "mean" then
      loss = loss / outs:clamp({ min = 1 }):to({ dtype = loss:dtype(), device = loss:device() })
      return loss:mean()
    end
    if not batched and reduction == "none" then return loss:squeeze(1) end
    return reduce(loss, reduction)
  end)

-- ---- of numbers ------------------------------------------------------------------------------------

of_pairs("mse_loss", "")
of_pairs("l1_loss", "")
of_pairs("smooth_l1_loss", ", number beta=1")
of_pairs("huber_loss", ", number delta=1")

--- max(0, -y (x1 - x2) + margin), y being 1 where x1 should rank higher and -1 where x2 should.
define("margin_ranking_loss", "Tensor input1, Tensor input2, Tensor target, number margin=0, REDUCTION",
  function(x1, x2, y, margin, reduction)
    paired("margin_ranking_loss", "input1", x1, "input2", x2)
    paired("margin_ranking_loss", "input1", x1, "target", y)
    local cut = y * (x2 - x1)
    if not B.tensor_dtype(cut).is_floating_point then cut = cut:to(B.default_dtype()) end
    return reduce((cut + margin):relu(), reduction)
  end)

--- x where y is 1, max(0, margin - x) where y is -1.
define("hinge_embedding_loss", "Tensor input, Tensor target, number margin=1, REDUCTION",
  function(x, y, margin, reduction)
    paired("hinge_embedding_loss", "input", x, "target", y)
    return reduce(moth.where(y:ne(1), (margin - x):relu(), 0) + moth.where(y:ne(-1), x, 0), reduction)
  end)

--- log(1 + exp(-y x)), y being 1 or -1.
define("soft_margin_loss", "Tensor input, Tensor target, REDUCTION",
  function(x, y, reduction)
    paired("soft_margin_loss", "input", x, "target", y)
    return reduce(-(y * x):log_sigmoid(), reduction)
  end)

--- rate - target log(rate), input being log(rate) (or rate, with log_input = false); full = false: without Stirling's
-- term.
define("poisson_nll_loss", "Tensor input, Tensor target, bool log_input=true, bool full=false, number eps=1e-8, \z
  REDUCTION", function(input, target, log_input, full, eps, reduction)
  paired("poisson_nll_loss", "input", input, "target", target)
  local loss
  if log_input then loss = input:exp() - target * input
  else loss = input - target * (input + eps):log() end
  if full then
    local one = target:masked_fill(target:le(1), 1)
    local term = target * one:log() - target + (one * (2 * math.pi)):log() * 0.5
    loss = loss + term:masked_fill(target:le(1), 0)
  end
  return reduce(loss, reduction)
end)

-- var as a tensor that goes with input: one number, a tensor of input's shape, without its last dimension, or with 1 in
-- one dimension; not negative (asked on the CPU only).
local function variance(input, var)
  if not B.is_tensor(var) then
    if var < 0 then check.fail("[F.gaussian_nll_loss] var must not be negative, got %g", var) end
    return moth.full_like(input, var)
  end
  local low = B.extremes(var)
  if low and low < 0 then check.fail("[F.gaussian_nll_loss] var must not be negative, got %g", low) end
  local p, q = B.size(input), B.size(var)
  local all, ones = #p == #q, 0
  for d = 1, #q do
    if q[d] ~= p[d] then
      all = all and q[d] == 1
      ones = ones + 1
    end
  end
  if all and ones <= 1 then return var end
  if #q == #p - 1 and ones == 0 then return var:unsqueeze(-1) end
  check.fail("[F.gaussian_nll_loss] var [%s] does not go with input [%s]: expected a number, or the shape of input, \z
    without its last dimension, or with 1 in one dimension", table.concat(q, ", "), table.concat(p, ", "))
end

--- (log(var) + (input - target)^2 / var) / 2, var at least eps; full = false: without log(2 pi). The gradient of var is
-- that of the value which counts.
define("gaussian_nll_loss", "Tensor input, Tensor target, Tensor|number var, bool full=false, number eps=1e-6, \z
  REDUCTION", function(input, target, var, full, eps, reduction)
    paired("gaussian_nll_loss", "input", input, "target", target)
    var = variance(input, var)
    var = var + (var:clamp({ min = eps }) - var):detach()
    local loss = (var:log() + (input - target):square() / var) * 0.5
    if full then loss = loss + 0.5 * math.log(2 * math.pi) end
    return reduce(loss, reduction)
  end)

-- ---- of vectors ------------------------------------------------------------------------------------

--- Cosine of the angle between x and y along dim; the lengths are taken as at least eps.
define("cosine_similarity", "Tensor x1, Tensor x2, Dim dim=2, number eps=1e-8", function(x, y, dim, eps)
  local function length(t, keep) return t:norm(2, dim, keep):clamp({ min = eps }) end
  x, y = moth.broadcast_tensors(x, y)
  return (x / length(x, true) * y):sum(dim) / length(y, false) -- nothing overflows
end)

--- 1 - cosine where y is 1, max(0, cosine - margin) where y is -1; x1, x2 (N, D).
define("cosine_embedding_loss", "Tensor input1, Tensor input2, Tensor target, number margin=0, REDUCTION",
  function(x1, x2, y, margin, reduction)
    paired("cosine_embedding_loss", "input1", x1, "input2", x2)
    local c = F.cosine_similarity(x1, x2, -1)
    paired("cosine_embedding_loss", "the cosines", c, "target", y)
    return reduce(moth.where(y:eq(1), 1 - c, (c - margin):relu()), reduction)
  end)

--- The p-norm of x - y + eps over the last dimension.
define("pairwise_distance", "Tensor x1, Tensor x2, number p=2, number eps=1e-6, bool keepdim=false",
  function(x, y, p, eps, keepdim) return (x - y + eps):norm(p, -1, keepdim) end)

--- max(0, d(anchor, positive) - d(anchor, negative) + margin)
define("triplet_margin_loss", "Tensor anchor, Tensor positive, Tensor negative, number margin=1, number p=2, \z
  number eps=1e-6, bool swap=false, REDUCTION", function(anchor, positive, negative, margin, p, eps, swap, reduction)
  if margin < 0 then check.fail("[F.triplet_margin_loss] margin must not be negative, got %g", margin) end
  local near, far = F.pairwise_distance(anchor, positive, p, eps), F.pairwise_distance(anchor, negative, p, eps)
  if swap then far = moth.minimum(far, F.pairwise_distance(positive, negative, p, eps)) end
  return reduce((near - far + margin):relu(), reduction)
end)

return F
