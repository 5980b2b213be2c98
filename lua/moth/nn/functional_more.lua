--- The part of moth.nn.functional about distances of rows, shuffled channels, noise, unpooling and margins. Parameters
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
  local n = B.size(x, 1)
  local at = moth.triu_indices(n, n, 1, { device = B.tensor_device(x) })
  local off = ops.sub(ops.index_select(x, 1, at[1]), ops.index_select(x, 1, at[2]))
  return (ops.norm(off, p, 2))
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

-- ---- pools -----------------------------------------------------------------------------------------

define("adaptive_max_pool1d", "Tensor input, size|size[] output_size, bool return_indices=false",
  function(x, size, return_indices)
    local n = type(size) == "table" and size[1] or size
    local y, at = ops.adaptive_max_pool2d_with_indices(ops.unsqueeze(x, -2), { 1, n })
    y = ops.squeeze(y, -2)
    if return_indices then return y, ops.squeeze(at, -2) end
    return y
  end)

-- max_unpool1d to 3d: values put back at the positions that pooling gave, zeros elsewhere.
local function unpooling(n)
  local name = ("max_unpool%dd"):format(n)
  define(name, "Tensor input, Tensor indices, count|count[] kernel_size, count|count[] stride?, \z
    size|size[] padding=0, size[] output_size?", function(x, at, kernel, stride, padding, output_size)
    local size = B.size(x)
    local lead, cells, inner, out = #size - n, 1, 1, {}
    if lead < 1 or lead > 2 then
      check.fail("[F.%s] expected %d or %d dimensions, got %s", name, n + 1, n + 2, B.format(x))
    end
    local function entry(v, i) return type(v) == "table" and v[i] or v end
    for i = 1, lead do out[i] = size[i] end
    for i = 1, n do
      local d = lead + i
      local k = entry(kernel, i)
      local own = (size[d] - 1) * entry(stride or kernel, i) - 2 * entry(padding, i) + k
      out[d] = output_size and output_size[#output_size - n + i] or own
      cells, inner = cells * out[d], inner * size[d]
    end
    local rows = B.numel(x) / math.max(inner, 1)
    local zeros = ops.zeros({ rows, cells }, like(x))
    return (ops.reshape(ops.scatter(zeros, 2, ops.reshape(at, { rows, inner }), ops.reshape(x, { rows, inner })), out))
  end)
end
for n = 1, 3 do unpooling(n) end

-- ---- losses -----------------------------------------------------------------------------------------

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
    distance = distance or moth.nn.functional.pairwise_distance
    local near, far = distance(anchor, positive), distance(anchor, negative)
    if swap then far = ops.minimum(far, distance(positive, negative)) end
    return reduce(ops.clamp(ops.add(ops.sub(near, far), margin), 0), reduction)
  end)

return F
