--- Losses as modules: each keeps its options and calls the functional form.
--
--     local criterion = nn.CrossEntropyLoss{ label_smoothing = 0.1 }
--     local loss = criterion(logits, labels)   -- logits (N, C), labels (N): positions 1..C
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"
local functional = require "moth.nn.functional"
local each = require "moth.each"

-- class, functional form, options; those marked are tensors that move with the module
local rows = {
  { "CrossEntropyLoss", "cross_entropy", "weight reduction ignore_index label_smoothing", { weight = true } },
  { "NLLLoss", "nll_loss", "weight reduction ignore_index", { weight = true } },
  { "MSELoss", "mse_loss", "reduction", {} },
  { "L1Loss", "l1_loss", "reduction", {} },
  { "BCEWithLogitsLoss", "binary_cross_entropy_with_logits", "weight pos_weight reduction",
    { weight = true, pos_weight = true } },
  { "BCELoss", "binary_cross_entropy", "weight reduction", { weight = true } },
  { "SmoothL1Loss", "smooth_l1_loss", "beta reduction", {} },
  { "HuberLoss", "huber_loss", "delta reduction", {} },
  { "KLDivLoss", "kl_div", "log_target reduction", {}, { batchmean = true } },
  { "SoftMarginLoss", "soft_margin_loss", "reduction", {} },
  { "HingeEmbeddingLoss", "hinge_embedding_loss", "margin reduction", {} },
  { "PoissonNLLLoss", "poisson_nll_loss", "log_input full eps reduction", {} },
  -- of three tensors
  { "MarginRankingLoss", "margin_ranking_loss", "margin reduction", {} },
  { "CosineEmbeddingLoss", "cosine_embedding_loss", "margin reduction", {} },
  { "TripletMarginLoss", "triplet_margin_loss", "margin p eps swap reduction", {} },
  { "GaussianNLLLoss", "gaussian_nll_loss", "full eps reduction", {} },
  -- no losses, but made alike
  { "CosineSimilarity", "cosine_similarity", "dim eps", {} },
  { "PairwiseDistance", "pairwise_distance", "p eps keepdim", {} },
}

local reductions = { mean = true, sum = true, none = true }

local function make(name, form, allowed, tensors, more)
  local cls = class(name, Module)
  local fn = functional[form]

  function cls:__init(o)
    o = check.options("nn." .. name, o, allowed)
    if o.reduction ~= nil and not (reductions[o.reduction] or more and more[o.reduction]) then
      check.fail("nn.%s: reduction must be 'mean', 'sum' or 'none', got %s", name, tostring(o.reduction))
    end
    self.options = {}
    for key, value in each(o) do
      if tensors[key] then
        if not B.is_tensor(value) then check.fail("nn.%s: %s must be a tensor, got %s", name, key, type(value)) end
        self:register_buffer(key, value)
      else
        self.options[key] = value
      end
    end
  end

  function cls:forward(input, target, third)
    local o = self.options
    for key in each(tensors) do o[key] = self[key] end
    if third ~= nil then return fn(input, target, third, o) end
    return fn(input, target, o)
  end

  return cls
end

local M = {}
for _, row in ipairs(rows) do M[row[1]] = make(unpack(row)) end
return M
