--- moth.nn.functional (moth.F): the stateless forms. Options stand in one trailing table.
--
--     local F = moth.nn.functional
--     local h = F.gelu(F.linear(x, w, b), { approximate = "tanh" })
--     local loss = F.cross_entropy(logits, labels, { label_smoothing = 0.1 })
--
-- Most are ops of the table and stand here under the same name; the others add PyTorch's options to them.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"

local F = {}

-- Ops as they are: F.relu(x), F.softmax(x, dim), F.linear(input, weight, bias), F.mse_loss(x, y, { reduction }).
for _, name in ipairs({ "linear", "relu", "relu_", "leaky_relu", "leaky_relu_", "elu", "elu_", "silu", "silu_", "mish",
  "softplus", "hardtanh", "hardtanh_", "sigmoid", "tanh", "softmax", "log_softmax", "mse_loss", "l1_loss",
  "relu6", "relu6_", "selu", "selu_", "celu", "celu_", "hardsigmoid", "hardsigmoid_", "hardswish", "hardswish_",
  "softsign", "glu", "prelu", "layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm", "pad",
  "conv_transpose1d", "conv_transpose2d", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d",
  "adaptive_avg_pool2d", "scaled_dot_product_attention", "hardshrink", "softshrink", "tanhshrink", "threshold" }) do
  F[name] = B.ops[name]
end
F.logsigmoid = moth.log_sigmoid

local function reduce(x, reduction, where)
  if reduction == nil or reduction == "mean" then return x:mean() end
  if reduction == "sum" then return x:sum() end
  if reduction == "none" then return x end
  check.fail("%s: reduction must be 'mean', 'sum' or 'none', got %s", where, tostring(reduction))
end

--- o.approximate: "none" (erf, the default) or "tanh".
function F.gelu(x, o)
  local how = check.options("F.gelu", o, "approximate").approximate or "none"
  if how == "tanh" then return moth.gelu_tanh(x) end
  if how ~= "none" then check.fail("F.gelu: approximate is 'none' or 'tanh', got %s", tostring(how)) end
  return moth.gelu(x)
end

--- o.p (0.5), o.training (true), o.inplace, o.generator
function F.dropout(x, o)
  o = check.options("F.dropout", o, "p training inplace generator")
  local y = moth.dropout(x, o.p or 0.5, o.training ~= false, o.generator)
  if o.inplace and o.training ~= false then return x:copy_(y) end
  return y
end

--- logits (N, C) or (N, C, d1, …), target (N) or (N, d1, …) of positions 1..C.
-- o.weight (C), o.reduction, o.ignore_index (-100), o.label_smoothing (0)
function F.cross_entropy(logits, target, o)
  if not B.is_tensor(logits) or B.dim(logits) <= 2 then return moth.cross_entropy(logits, target, o) end
  local classes = logits:size(2)
  local loss = moth.cross_entropy(logits:movedim(2, -1):reshape(-1, classes), target:reshape(-1), o)
  if o and o.reduction == "none" then return loss:view(target:size()) end
  return loss
end

--- log-probabilities (N, C), target (N). Options as those of cross_entropy, without smoothing.
function F.nll_loss(input, target, o)
  o = check.options("F.nll_loss", o, "weight reduction ignore_index")
  if not o.weight and not o.ignore_index then return moth.nll_loss(input, target, o.reduction or "mean") end
  local counts = target:ne(o.ignore_index or -100)
  local at = moth.where(counts, target, 1)
  local picked = input:gather(2, at:unsqueeze(2)):squeeze(2):neg()
  local weight = counts:to(input:dtype())
  if o.weight then weight = weight * o.weight:index_select(1, at) end
  local loss = picked * weight
  if o.reduction == nil or o.reduction == "mean" then return loss:sum() / weight:sum() end
  return reduce(loss, o.reduction, "F.nll_loss")
end

--- logits and targets in [0, 1] of one shape. o.weight and o.pos_weight are broadcast against them.
function F.binary_cross_entropy_with_logits(input, target, o)
  o = check.options("F.binary_cross_entropy_with_logits", o, "weight pos_weight reduction")
  if not o.weight and not o.pos_weight then
    return moth.binary_cross_entropy_with_logits(input, target, o.reduction or "mean")
  end
  local loss
  if o.pos_weight then -- (1 - y) x + (1 + (w - 1) y) log(1 + exp(-x))
    local slope = (o.pos_weight - 1) * target + 1
    loss = input - input * target - slope * input:log_sigmoid()
  else
    loss = moth.binary_cross_entropy_with_logits(input, target, "none")
  end
  if o.weight then loss = loss * o.weight end
  return reduce(loss, o.reduction, "F.binary_cross_entropy_with_logits")
end

--- index (…) of positions, weight (V, D) -> (…, D). Row o.padding_idx gets no gradient. o.sparse: the gradient of
-- weight, if that is a leaf, is a row gradient (moth.row_grad).
function F.embedding(index, weight, o)
  o = check.options("F.embedding", o, "padding_idx sparse")
  if o.sparse and B.is_leaf(weight) and B.requires_grad(weight) and B.grad_enabled() then
    return require("moth.row_grad").embedding(weight, index, o.padding_idx)
  end
  local out = moth.embedding(weight, index)
  if o.padding_idx and B.requires_grad(out) then
    return moth.where(index:eq(o.padding_idx):unsqueeze(-1), out:detach(), out)
  end
  return out
end

--- positions (…) -> int64 (…, num_classes); without num_classes: as many as the largest position.
function F.one_hot(index, num_classes)
  return moth.one_hot(index, num_classes or (B.numel(index) > 0 and index:amax():item() or 0))
end

--- x / max(norm(x), eps) along dim. o.p (2), o.dim (2, counted from 1), o.eps (1e-12)
function F.normalize(x, o)
  o = check.options("F.normalize", o, "p dim eps")
  return x / x:norm(o.p or 2, o.dim or 2, true):clamp({ min = o.eps or 1e-12 })
end

-- Convolution and pooling, other losses, other sizes.
for _, part in ipairs({ "conv", "loss", "resize" }) do
  for name, fn in each(require("moth.nn.functional_" .. part)) do F[name] = fn end
end

return F
