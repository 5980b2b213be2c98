--- The part of moth.nn.functional about distances of rows, shuffled channels, noise and margins. Parameters
-- are PyTorch's, in its order.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local ops = B.ops

local F = {}
local REDUCTION = "'mean'|'sum'|'none' reduction='mean'"

local function define(name, parameters, fn)
  F[name] = signature(("F.%s(%s)"):format(name, (parameters:gsub("REDUCTION", REDUCTION))), fn)
end
local function reduce(x, reduction)
  if reduction == "mean" then return (ops.mean(x)) end
  return reduction == "sum" and ops.sum(x) or x
end
local function like(x) return { dtype = B.tensor_dtype(x), device = B.tensor_device(x) } end

--- p-distances of all pairs of rows i < j of (N, M), as a vector.
define("pdist", "Tensor input, number p=2", function(x, p)
  if B.dim(x) ~= 2 then check.fail("[F.pdist] expected a matrix, got %s", B.format(x)) end
  return (ops.native_pdist(x, p))
end)

--- x1^T A x2 + b: x1 (…, I), x2 (…, J), weight (O, I, J), bias (O) -> (…, O).
define("bilinear", "Tensor input1, Tensor input2, Tensor weight, Tensor bias?", function(x, y, weight, bias)
  local o, i, j = unpack(B.size(weight))
  if B.dim(weight) ~= 3 or B.size(x, -1) ~= i or B.size(y, -1) ~= j then
    check.fail("[F.bilinear] expected (…, I), (…, J) and (O, I, J), got %s, %s and %s", B.format(x), B.format(y),
      B.format(weight))
  end
  local lead = B.size(x)
  lead[#lead] = nil
  local flat_x, flat_y = ops.reshape(x, { -1, i }), ops.reshape(y, { -1, j })
  local left = ops.reshape(ops.mm(flat_x, ops.reshape(ops.permute(weight, { 2, 1, 3 }), { i, o * j })), { -1, o, j })
  local out = ops.squeeze(ops.bmm(left, ops.unsqueeze(flat_y, 3)), 3)
  if bias then out = ops.add(out, bias) end
  lead[#lead + 1] = o
  return (ops.reshape(out, lead))
end)

--- Channels (N, C, …) of each group dealt out in turn.
define("channel_shuffle", "Tensor input, count groups", function(x, groups)
  local size = B.size(x)
  if #size < 3 or size[2] % groups ~= 0 then
    check.fail("[F.channel_shuffle] expected (N, C, …) with C divisible by %d, got %s", groups, B.format(x))
  end
  local split = { size[1], groups, size[2] / groups, unpack(size, 3) }
  return (ops.reshape(ops.transpose(ops.reshape(x, split), 2, 3), size))
end)

F.native_channel_shuffle = signature.alias("F.native_channel_shuffle", F.channel_shuffle)

--- A convolution along time: input (T, N, C), weight (width, C, O), bias (O) -> (T + 2 pad - width + 1, N, O).
define("conv_tbc", "Tensor input, Tensor weight, Tensor bias, size pad=0", function(x, weight, bias, pad)
  if B.dim(x) ~= 3 or B.dim(weight) ~= 3 then
    check.fail("[F.conv_tbc] expected (T, N, C) and (width, C, O), got %s and %s", B.format(x), B.format(weight))
  end
  local y = ops.conv1d(ops.permute(x, { 2, 3, 1 }), ops.permute(weight, { 3, 2, 1 }), bias, 1, pad)
  return (ops.permute(y, { 3, 1, 2 }))
end)

--- x / (k + alpha mean(x^2 of `size` channels around))^beta.
define("local_response_norm", "Tensor input, count size, number alpha=0.0001, number beta=0.75, number k=1",
  function(x, size, alpha, beta, k)
    if B.dim(x) < 3 then check.fail("[F.local_response_norm] expected at least 3 dimensions, got %s", B.format(x)) end
    local c = B.size(x, 2)
    local total
    local square = ops.square(x)
    local before = math.floor(size / 2)
    for off = -before, size - 1 - before do -- channels further off count as 0
      local from, to = math.max(1, 1 + off), math.min(c, c + off)
      if from <= to then
        local part = ops.narrow(square, 2, from, to - from + 1)
        local pad = {}
        for i = 1, 2 * (B.dim(x) - 1) do pad[i] = 0 end
        pad[#pad - 1], pad[#pad] = math.max(0, -off), math.max(0, off)
        part = ops.pad(part, pad)
        total = total and ops.add(total, part) or part
      end
    end
    return (ops.div(x, ops.pow(ops.add(ops.mul(total, alpha / size), k), beta)))
  end)

-- ---- noise -----------------------------------------------------------------------------------------

-- Self-normalizing dropout: what is dropped takes the value that SELU goes to, and the rest keeps mean and variance.
local function alpha_drop(x, p, shape)
  local alpha = -1.7580993408473766
  local keep = ops.lt(ops.rand(shape, { device = B.tensor_device(x) }), 1 - p)
  if p == 1 then return (ops.mul(x, 0)) end
  local a = 1 / math.sqrt((1 - p) * (1 + p * alpha * alpha))
  return (ops.add(ops.mul(ops.where(keep, x, ops.full({}, alpha, like(x))), a), -a * alpha * p))
end
local function dropping(name, shape_of)
  --- Dropout for SELU networks: elements, or whole channels (feature_…), take SELU's limit with probability p; mean
  -- and variance stay.
  define(name, "Tensor input, number p=0.5, bool training=false, bool inplace=false", function(x, p, training, inplace)
    if p < 0 or p > 1 then check.fail("[F.%s] p must be between 0 and 1, got %g", name, p) end
    local y = training and p > 0 and alpha_drop(x, p, shape_of(x)) or x
    return inplace and training and p > 0 and ops.copy_(x, y) or y
  end)
end
dropping("alpha_dropout", function(x) return B.size(x) end)
dropping("feature_alpha_dropout", function(x)
  local size = B.size(x)
  for d = 3, #size do size[d] = 1 end
  return size
end)
--- leaky_relu with a random slope for each element while training, else with the mean of lower and upper.
define("rrelu", "Tensor input, number lower=0.125, number upper=0.3333333333333333, bool training=false, \z
  bool inplace=false", function(x, lower, upper, training, inplace)
  if lower > upper then check.fail("[F.rrelu] lower must not be above upper, got %g and %g", lower, upper) end
  local y
  if training then
    local slope = ops.uniform_(ops.empty_like(x), lower, upper)
    y = ops.where(ops.gt(x, 0), x, ops.mul(x, slope))
  else
    y = ops.leaky_relu(x, (lower + upper) / 2)
  end
  return inplace and ops.copy_(x, y) or y
end)

--- rrelu in place.
define("rrelu_", "Tensor input, number lower=0.125, number upper=0.3333333333333333, bool training=false",
  function(x, lower, upper, training) return F.rrelu(x, lower, upper, training, true) end)

-- ---- losses -----------------------------------------------------------------------------------------

--- cross_entropy of the logits linear(input, linear_weight, linear_bias); linear_weight (C, …, features): the
-- dimensions behind C are those of target behind its rows.
define("linear_cross_entropy", "Tensor input, Tensor linear_weight, Tensor target, *, Tensor linear_bias?, \z
  Tensor weight?, REDUCTION, int ignore_index?, number label_smoothing=0",
  function(x, w, target, bias, weight, reduction, ignore_index, label_smoothing)
    local size, out = B.size(w), B.size(x)
    if #size > 2 and #out < 2 then
      check.fail("[F.linear_cross_entropy] linear_weight %s needs a batch, (N, features), got %s", B.format(w),
        B.format(x))
    end
    if ignore_index and B.tensor_dtype(target).is_floating_point then
      check.fail("[F.linear_cross_entropy] ignore_index is for positions, not for probabilities")
    end
    local features = table.remove(size)
    out[#out] = nil
    for _, n in ipairs(size) do out[#out + 1] = n end
    local logits = ops.linear(x, ops.reshape(w, { -1, features }), bias and ops.reshape(bias, { -1 }))
    return moth.nn.functional.cross_entropy(ops.reshape(logits, out), target, { weight = weight,
      reduction = reduction, ignore_index = ignore_index or -100, label_smoothing = label_smoothing })
  end)

--- Sum of max(0, margin - x_y + x_i)^p over the classes i but y, divided by their number; target (N) of positions.
define("multi_margin_loss", "Tensor input, Tensor target, count p=1, number margin=1, Tensor weight?, REDUCTION",
  function(x, target, p, margin, weight, reduction)
    local rows = B.dim(x) < 2 and ops.reshape(x, { 1, -1 }) or x
    local at = ops.reshape(target, { -1, 1 })
    local cut = ops.clamp(ops.add(ops.sub(rows, ops.gather(rows, 2, at)), margin), 0)
    if p == 2 then cut = ops.square(cut) end
    if weight then cut = ops.mul(cut, ops.reshape(ops.index_select(weight, 1, ops.reshape(at, { -1 })), { -1, 1 })) end
    local loss = ops.div(ops.sum(ops.scatter(cut, 2, at, 0), { 2 }), B.size(rows, 2))
    return reduce(B.dim(x) < 2 and ops.reshape(loss, {}) or loss, reduction)
  end)

--- Sum of max(0, 1 - x_y + x_i) over the targets y of a row and the classes i that are no target, divided by the
-- number of classes. target (N, C): positions, up to the first that is not positive.
define("multilabel_margin_loss", "Tensor input, Tensor target, REDUCTION", function(x, target, reduction)
  local vector = B.dim(x) < 2
  local rows, at = vector and ops.reshape(x, { 1, -1 }) or x, vector and ops.reshape(target, { 1, -1 }) or target
  local counts = ops.cumprod(ops.to(ops.ge(at, 1), { dtype = "int64" }), 2)
  at = ops.where(ops.gt(counts, 0), at, 1)
  local is_target = ops.gt(ops.scatter_add(ops.zeros_like(counts), 2, at, counts), 0)
  local off = ops.clamp(ops.add(ops.sub(1, ops.unsqueeze(ops.gather(rows, 2, at), 3)), ops.unsqueeze(rows, 2)), 0)
  local pairs_ = ops.logical_and(ops.gt(ops.unsqueeze(counts, 3), 0), ops.logical_not(ops.unsqueeze(is_target, 2)))
  local loss = ops.div(ops.sum(ops.masked_fill(off, ops.logical_not(pairs_), 0), { 2, 3 }), B.size(rows, 2))
  return reduce(vector and ops.reshape(loss, {}) or loss, reduction)
end)

--- For each row: the mean over classes of the logistic loss of each.
define("multilabel_soft_margin_loss", "Tensor input, Tensor target, Tensor weight?, REDUCTION",
  function(x, y, weight, reduction)
    local loss = ops.neg(ops.add(ops.mul(y, ops.log_sigmoid(x)), ops.mul(ops.sub(1, y), ops.log_sigmoid(ops.neg(x)))))
    if weight then loss = ops.mul(loss, weight) end
    return reduce(ops.mean(loss, -1), reduction)
  end)

--- max(0, d(anchor, positive) - d(anchor, negative) + margin), of a distance of one's own.
define("triplet_margin_with_distance_loss", "Tensor anchor, Tensor positive, Tensor negative, *, \z
  callable distance_function?, number margin=1, bool swap=false, REDUCTION",
  function(anchor, positive, negative, distance, margin, swap, reduction)
    if margin <= 0 then
      check.fail("[F.triplet_margin_with_distance_loss] margin must be positive, got %g", margin)
    end
    distance = distance or moth.nn.functional.pairwise_distance
    local near, far = distance(anchor, positive), distance(anchor, negative)
    if swap then far = ops.minimum(far, distance(positive, negative)) end
    return reduce(ops.clamp(ops.add(ops.sub(near, far), margin), 0), reduction)
  end)

for _, name in ipairs({ "bilinear", "nearest" }) do
  --- interpolate by the mode in the name; bilinear: with align_corners.
  define("upsample_" .. name, "Tensor input, size|size[] size?, number|number[] scale_factor?",
  function(x, size, factor)
    return moth.nn.functional.interpolate(x, { size = size, scale_factor = factor, mode = name,
      align_corners = name == "bilinear" or nil })
  end)
end

return F
