--- The part of moth.nn.functional about losses beyond cross-entropy and squares, and about similarity.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local ops = B.ops

local F = {}

local function reduce(x, reduction, where)
  if reduction == nil or reduction == "mean" then return x:mean() end
  if reduction == "sum" then return x:sum() end
  if reduction == "none" then return x end
  check.fail("%s: reduction must be 'mean', 'sum' or 'none', got %s", where, tostring(reduction))
end

--- o.beta (1), o.reduction
function F.smooth_l1_loss(input, target, o)
  o = check.options("F.smooth_l1_loss", o, "beta reduction")
  return ops.smooth_l1_loss(input, target, o.reduction or "mean", o.beta or 1)
end
--- o.delta (1), o.reduction
function F.huber_loss(input, target, o)
  o = check.options("F.huber_loss", o, "delta reduction")
  return ops.huber_loss(input, target, o.reduction or "mean", o.delta or 1)
end
--- log-probabilities against probabilities. o.log_target, o.reduction ("batchmean" is the divergence itself)
function F.kl_div(input, target, o)
  o = check.options("F.kl_div", o, "log_target reduction")
  return ops.kl_div(input, target, o.reduction or "mean", o.log_target == true)
end

--- Probabilities (after a sigmoid) against targets in [0, 1]. o.weight, o.reduction
function F.binary_cross_entropy(input, target, o)
  o = check.options("F.binary_cross_entropy", o, "weight reduction")
  if B.numel(input) > 0 and not B.is_fake(input) then
    local seen = B.alias(input, false)
    local low, high = ops.amin(seen):item(), ops.amax(seen):item()
    if low < 0 or high > 1 then
      check.fail("F.binary_cross_entropy: probabilities are between 0 and 1, got %g to %g; for logits there is \z
        F.binary_cross_entropy_with_logits", low, high)
    end
  end
  return ops.binary_cross_entropy(input, target, o.weight, o.reduction or "mean")
end

--- max(0, -y (x1 - x2) + margin), y being 1 where x1 should rank higher and -1 where x2 should.
-- o.margin (0), o.reduction
function F.margin_ranking_loss(x1, x2, y, o)
  o = check.options("F.margin_ranking_loss", o, "margin reduction")
  return reduce((y * (x2 - x1) + (o.margin or 0)):relu(), o.reduction, "F.margin_ranking_loss")
end
--- x where y is 1, max(0, margin - x) where y is -1. o.margin (1), o.reduction
function F.hinge_embedding_loss(x, y, o)
  o = check.options("F.hinge_embedding_loss", o, "margin reduction")
  return reduce(moth.where(y:eq(1), x, ((o.margin or 1) - x):relu()), o.reduction, "F.hinge_embedding_loss")
end
--- log(1 + exp(-y x)), y being 1 or -1. o.reduction
function F.soft_margin_loss(x, y, o)
  o = check.options("F.soft_margin_loss", o, "reduction")
  return reduce((-(y * x)):softplus(), o.reduction, "F.soft_margin_loss")
end
--- rate - target log(rate), input being log(rate) (or rate, with log_input = false). o.log_input (true), o.full (false:
-- without Stirling's term), o.eps (1e-8), o.reduction
function F.poisson_nll_loss(input, target, o)
  o = check.options("F.poisson_nll_loss", o, "log_input full eps reduction")
  local loss
  if o.log_input ~= false then loss = input:exp() - target * input
  else loss = input - target * (input + (o.eps or 1e-8)):log() end
  if o.full then
    local one = target:masked_fill(target:le(1), 1)
    local term = target * one:log() - target + (one * (2 * math.pi)):log() * 0.5
    loss = loss + term:masked_fill(target:le(1), 0)
  end
  return reduce(loss, o.reduction, "F.poisson_nll_loss")
end
--- (log(var) + (input - target)^2 / var) / 2, var at least eps.
-- o.full (false: without log(2 pi)), o.eps (1e-6), o.reduction
function F.gaussian_nll_loss(input, target, var, o)
  o = check.options("F.gaussian_nll_loss", o, "full eps reduction")
  var = var:clamp({ min = o.eps or 1e-6 })
  local loss = (var:log() + (input - target):square() / var) * 0.5
  if o.full then loss = loss + 0.5 * math.log(2 * math.pi) end
  return reduce(loss, o.reduction, "F.gaussian_nll_loss")
end

--- Cosine of the angle between x and y along dim (2). o.dim, o.eps (1e-8): the lengths are at least that
function F.cosine_similarity(x, y, o)
  o = check.options("F.cosine_similarity", o, "dim eps")
  local dim, eps = o.dim or 2, o.eps or 1e-8
  local function unit(t) return t / t:norm(2, dim, true):clamp({ min = eps }) end
  x, y = moth.broadcast_tensors(x, y)
  return (unit(x) * unit(y)):sum(dim)
end
--- 1 - cosine where y is 1, max(0, cosine - margin) where y is -1; x1, x2 (N, D). o.margin (0), o.reduction
function F.cosine_embedding_loss(x1, x2, y, o)
  o = check.options("F.cosine_embedding_loss", o, "margin reduction")
  local c = F.cosine_similarity(x1, x2, { dim = -1 })
  return reduce(moth.where(y:eq(1), 1 - c, (c - (o.margin or 0)):relu()), o.reduction, "F.cosine_embedding_loss")
end
--- The p-norm of x - y + eps over the last dimension. o.p (2), o.eps (1e-6), o.keepdim
function F.pairwise_distance(x, y, o)
  o = check.options("F.pairwise_distance", o, "p eps keepdim")
  return (x - y + (o.eps or 1e-6)):norm(o.p or 2, -1, o.keepdim == true)
end
--- max(0, d(anchor, positive) - d(anchor, negative) + margin). o.margin (1), o.p (2), o.eps (1e-6), o.swap, o.reduction
function F.triplet_margin_loss(anchor, positive, negative, o)
  o = check.options("F.triplet_margin_loss", o, "margin p eps swap reduction")
  local how = { p = o.p, eps = o.eps }
  local near, far = F.pairwise_distance(anchor, positive, how), F.pairwise_distance(anchor, negative, how)
  if o.swap then far = moth.minimum(far, F.pairwise_distance(positive, negative, how)) end
  return reduce((near - far + (o.margin or 1)):relu(), o.reduction, "F.triplet_margin_loss")
end

return F
