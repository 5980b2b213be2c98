--- The part of moth.vision about losses of detectors.
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local boxes = require "moth.vision.boxes"
local F = moth.nn.functional
local M = {}

local function reduced(loss, reduction)
  if reduction == "sum" then return loss:sum() end
  if reduction == "mean" then return loss:numel() > 0 and loss:mean() or loss:sum() end
  return loss
end

--- Cross entropy of yes and no that counts sure answers less (Lin et al. 2017): inputs (logits) and targets (0 or 1) of
-- one shape. alpha: the weight of yes, 1 - alpha of no (-1: none); gamma: how much less.
M.sigmoid_focal_loss = signature("vision.sigmoid_focal_loss(Tensor inputs, Tensor targets, number alpha=0.25, \z
  number gamma=2, 'none'|'mean'|'sum' reduction='none')", function(inputs, targets, alpha, gamma, reduction)
  if not (alpha >= 0 and alpha <= 1 or alpha == -1) then
    check.fail("[vision.sigmoid_focal_loss] alpha must lie between 0 and 1, or be -1 for none, got %g", alpha)
  end
  targets = targets:to(inputs:dtype())
  local p = inputs:sigmoid()
  local right = p * targets + (1 - p) * (1 - targets)
  local loss = F.binary_cross_entropy_with_logits(inputs, targets, { reduction = "none" }) * (1 - right):pow(gamma)
  if alpha >= 0 then loss = (alpha * targets + (1 - alpha) * (1 - targets)) * loss end
  return reduced(loss, reduction)
end)

for _, kind in ipairs { "generalized", "distance", "complete" } do
  local name = kind .. "_box_iou_loss"
  --- 1 - the overlap of this kind, row by row of boxes1 and boxes2 (N, 4).
  M[name] = signature(("vision.%s(Tensor boxes1, Tensor boxes2, 'none'|'mean'|'sum' reduction='none', \z
    number eps=1e-7)"):format(name), function(a, b, reduction, eps)
    return reduced(1 - boxes._overlap(name, kind, a, b, false, eps, eps), reduction)
  end)
end
return M
