--- Losses as modules: each keeps its options and calls the functional form.
--
--     local criterion = nn.CrossEntropyLoss{ label_smoothing = 0.1 }
--     local loss = criterion(logits, labels)   -- logits (N, C), labels (N): positions 1..C
-- Parameters are PyTorch's, in its order, without the deprecated size_average and reduce.
local B = require "moth_lua"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local functional = require "moth.nn.functional"

local reduction = "'mean'|'sum'|'none' reduction='mean'"
local weight = "Tensor weight?"

-- { class, functional form (its options have the same order), parameters … }; tensors are buffers of the module
local rows = {
  { "CrossEntropyLoss", "cross_entropy", weight, "int ignore_index=-100", reduction, "number label_smoothing=0" },
  { "NLLLoss", "nll_loss", weight, "int ignore_index=-100", reduction },
  { "MSELoss", "mse_loss", reduction },
  { "L1Loss", "l1_loss", reduction },
  { "BCEWithLogitsLoss", "binary_cross_entropy_with_logits", weight, reduction, "Tensor pos_weight?" },
  { "BCELoss", "binary_cross_entropy", weight, reduction },
  { "SmoothL1Loss", "smooth_l1_loss", reduction, "number beta=1" },
  { "HuberLoss", "huber_loss", reduction, "number delta=1" },
  { "KLDivLoss", "kl_div", "'mean'|'sum'|'none'|'batchmean' reduction='mean'", "bool log_target=false" },
  { "SoftMarginLoss", "soft_margin_loss", reduction },
  { "HingeEmbeddingLoss", "hinge_embedding_loss", "number margin=1", reduction },
  { "PoissonNLLLoss", "poisson_nll_loss", "bool log_input=true", "bool full=false", "number eps=1e-8", reduction },
  { "MultiMarginLoss", "multi_margin_loss", "count p=1", "number margin=1", weight, reduction },
  { "MultiLabelMarginLoss", "multilabel_margin_loss", reduction },
  { "MultiLabelSoftMarginLoss", "multilabel_soft_margin_loss", weight, reduction },
  -- of three tensors
  { "MarginRankingLoss", "margin_ranking_loss", "number margin=0", reduction, three = true },
  { "CosineEmbeddingLoss", "cosine_embedding_loss", "number margin=0", reduction, three = true },
  { "TripletMarginLoss", "triplet_margin_loss", "number margin=1", "number p=2", "number eps=1e-6", "bool swap=false",
    reduction, three = true },
  { "GaussianNLLLoss", "gaussian_nll_loss", "*", "bool full=false", "number eps=1e-6", reduction, three = true },
  { "TripletMarginWithDistanceLoss", "triplet_margin_with_distance_loss", "*", "callable distance_function?",
    "number margin=1", "bool swap=false", reduction, three = true, named = true },
  { "CTCLoss", "ctc_loss", "Index blank=1", reduction, "bool zero_infinity=false", four = true },
  -- not losses, but of the same form
  { "CosineSimilarity", "cosine_similarity", "Dim dim=2", "number eps=1e-8" },
  { "PairwiseDistance", "pairwise_distance", "number p=2", "number eps=1e-6", "bool keepdim=false" },
}

local function make(row)
  local name = row[1]
  local cls, fn = class(name, Module), functional[row[2]]
  local text = ("nn.%s(%s)"):format(name, table.concat(row, ", ", 3))
  local _, parameters = signature.parameters(text)
  local n = #parameters

  cls.__init = signature.init(text, function(self, o)
    for _, p in ipairs(parameters) do
      local value = o[p.name]
      if B.is_tensor(value) then self:register_buffer(p.name, value) else self[p.name] = value end
    end
  end)

  local names = {}
  for i, p in ipairs(parameters) do names[i] = p.name end
  local k1, k2, k3, k4 = unpack(names)
  local function options(self, i)
    if i <= n then return self[names[i]], options(self, i + 1) end
  end

  if row.named then
    function cls:forward(a, b, c)
      local o = {}
      for _, key in ipairs(names) do o[key] = self[key] end
      return fn(a, b, c, o)
    end
  elseif row.four then
    function cls:forward(a, b, c, d) return fn(a, b, c, d, options(self, 1)) end
  elseif row.three then
    function cls:forward(a, b, c) return fn(a, b, c, options(self, 1)) end
  elseif n == 1 then
    function cls:forward(input, target) return fn(input, target, self[k1]) end
  elseif n == 2 then
    function cls:forward(input, target) return fn(input, target, self[k1], self[k2]) end
  elseif n == 3 then
    function cls:forward(input, target) return fn(input, target, self[k1], self[k2], self[k3]) end
  else
    function cls:forward(input, target) return fn(input, target, self[k1], self[k2], self[k3], self[k4]) end
  end

  return cls
end

local M = {}
for _, row in ipairs(rows) do M[row[1]] = make(row) end
return M
