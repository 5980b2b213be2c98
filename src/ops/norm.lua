-- Normalisation. The fused ops give the statistics that their derivatives read; one derivative computes
-- the gradients of all inputs that need them; where it is to be differentiated again, they are made of ops.
local has_dims = { "ge(dims, 1)", "dims must be at least 1, got {dims}" }
local three_bits = { "both(ge(need, 0), lt(need, 8))", "need must be between 0 and 7, a bit for each gradient, got {need}" }
local divisible = { "equal(remainder(C, groups), 0)", "{C} channels are not divisible into {groups} groups" }
local layer = {
  once = "layer_norm_backward(grad, self, result1, result2, weight, dims, need)",
  again = "layer_norm_gradients(grad, self, weight, dims, eps)",
}
local rms = {
  once = "rms_norm_backward(grad, self, result1, weight, dims, need)",
  again = "rms_norm_gradients(grad, self, weight, dims, eps)",
}
local group = {
  once = "group_norm_backward(grad, self, result1, result2, weight, groups, need)",
  again = "group_norm_gradients(grad, self, weight, groups, eps)",
}
local batch = {
  once = "batch_norm_backward(grad, self, result1, result2, weight, training, need)",
  again = "batch_norm_gradients(grad, self, weight, training, eps, result1, result2)",
}

return {
{ "native_layer_norm(Tensor self, Tensor? weight, Tensor? bias, int dims, float eps) -> (Tensor, Tensor, Tensor)",
  kind = "fused", stats = 1, amp = "high",
  dims = { self = "*L *D:dims : float", weight = "*D : float", bias = "*D : float" },
  out = { "*L *D", "*L (ones_n(dims)) : working(self)", "*L (ones_n(dims)) : working(self)" },
  check = { has_dims },
  decompose = [[
    local over, x = range(self.ndim - dims, self.ndim), as(self, working(self))
    local m = mean(x, over, true)
    local c = x - m
    local r = rsqrt(mean(square(c), over, true) + eps)
    local y = when(given(weight), c * r * weight, c * r)
    return narrowed(when(given(bias), y + bias, y), self), m, r]],
  grad = { ["self, weight, bias"] = layer },
  reference = "native_layer_norm",
  samples = {
    "randn(4,5), rand(5), randn(5), 1, 1e-5", "randn(2,3,4), nil, nil, 2, 1e-5", "randn(3,4), rand(4), nil, 1, 1e-5",
    "randn(3,4), nil, rand(4), 1, 0.1",
  },
  errors = {
    { "randn(2,3), rand(2), nil, 1, 1e-5", "weight must have the shape" },
    { "randn(2,3), nil, rand(3,1), 1, 1e-5", "bias must have the shape" },
    { "tensor({1,2},{dtype=int64}), nil, nil, 1, 1e-5", "float" }, { "randn(2), nil, nil, 2, 1e-5", "dims" },
  },
  doc = "layer_norm over the last dims dimensions; with the mean and 1 / sqrt(variance + eps) of each row." },
{ "layer_norm_backward(Tensor grad_output, Tensor self, Tensor mean, Tensor rstd, Tensor? weight, int dims, int need) -> (Tensor, Tensor, Tensor)",
  kind = "fused",
  dims = {
    grad_output = "*L *D : float", self = "*L *D:dims : float", mean = "*M : float", rstd = "*R : float", weight = "*D : float",
  },
  let = { T = "when(given(weight), weight.dtype, self.dtype)" },
  out = { "(needed(need, 0, self.shape)) : self", "(needed(need, 1, D)) : T", "(needed(need, 2, D)) : T" },
  check = {
    has_dims, three_bits,
    { "equal(mean.numel, product(L))", "mean must have {product(L)} elements, got {mean.numel}" },
    { "equal(rstd.numel, product(L))", "rstd must have {product(L)} elements, got {rstd.numel}" },
  },
  decompose = [[
    local lead, over = range(0, self.ndim - dims), range(self.ndim - dims, self.ndim)
    local kept = join(first_n(self.shape, self.ndim - dims), ones_n(dims))
    local r = reshape(rstd, kept)
    local normal = (self - reshape(mean, kept)) * r
    local g = when(given(weight), grad_output * weight, grad_output)
    local dx = (g - op.mean(g, over, true) - normal * op.mean(g * normal, over, true)) * r
    return dx, sum_over(grad_output * normal, lead), sum_over(grad_output, lead)]],
  grad = "unimplemented",
  reference = "layer_norm_backward",
  samples = {
    "randn(4,5), randn(4,5), randn(4), rand(4) + 0.5, rand(5), 1, 7", "randn(2,3,4), randn(2,3,4), randn(2), rand(2), nil, 2, 7",
  },
  errors = {
    { "randn(4,4), randn(4,5), randn(4), rand(4), rand(5), 1, 7", "shape" },
    { "randn(4,5), randn(4,5), randn(3), rand(4), rand(5), 1, 7", "mean" },
    { "randn(4,5), randn(4,5), randn(4), rand(4), rand(5), 1, 8", "need must be between 0 and 7" },
  },
  doc = "Gradients of layer_norm's input, weight and bias; need says by bits which, the others are empty." },
{ "layer_norm(Tensor self, int[] normalized_shape, Tensor? weight=none, Tensor? bias=none, float eps=1e-05) -> Tensor",
  kind = "composite",
  expr = [[
    local y, mean, rstd = native_layer_norm(self, weight, bias, length(normalized_shape), eps)
    return y]],
  check = {
    { "both(ge(length(normalized_shape), 1), same_list(last_n(self.shape, length(normalized_shape)), normalized_shape))",
      "normalized_shape must be the last dimensions of self, which has the shape {self.shape}, got {normalized_shape}" },
  },
  grad = "composite",
  reference = "layer_norm",
  samples = { "randn(4,5), {5}, rand(5), randn(5)", "randn(2,3,4), {3,4}", "randn(0,3), {3}" },
  errors = {
    { "randn(2,3), {2}", "normalized_shape" }, { "randn(2,3), {3}, rand(2)", "weight must have the shape" },
    { "randn(2,3), {}", "normalized_shape" },
  },
  doc = "self normalised over its last dimensions, normalized_shape, then times weight plus bias." },
{ "native_rms_norm(Tensor self, Tensor? weight, int dims, float eps) -> (Tensor, Tensor)",
  kind = "fused", stats = 1, amp = "high",
  dims = { self = "*L *D:dims : float", weight = "*D : float" },
  out = { "*L *D", "*L (ones_n(dims)) : working(self)" },
  check = { has_dims },
  decompose = [[
    local x = as(self, working(self))
    local r = rsqrt(mean(square(x), range(self.ndim - dims, self.ndim), true) + eps)
    return narrowed(when(given(weight), x * r * weight, x * r), self), r]],
  grad = { ["self, weight"] = rms },
  reference = "native_rms_norm",
  samples = { "randn(4,5), rand(5), 1, 1e-5", "randn(2,3,4), nil, 2, 1e-5" },
  errors = {
    { "randn(2,3), rand(2), 1, 1e-5", "weight must have the shape" },
    { "tensor({1,2},{dtype=int64}), nil, 1, 1e-5", "float" }, { "randn(2), nil, 2, 1e-5", "dims" },
  },
  doc = "rms_norm over the last dims dimensions; with 1 / sqrt(mean of squares + eps) of each row." },
{ "rms_norm_backward(Tensor grad_output, Tensor self, Tensor rstd, Tensor? weight, int dims, int need) -> (Tensor, Tensor)",
  kind = "fused",
  dims = { grad_output = "*L *D : float", self = "*L *D:dims : float", rstd = "*R : float", weight = "*D : float" },
  let = { T = "when(given(weight), weight.dtype, self.dtype)" },
  out = { "(needed(need, 0, self.shape)) : self", "(needed(need, 1, D)) : T" },
  check = {
    has_dims, { "both(ge(need, 0), lt(need, 4))", "need must be between 0 and 3, a bit for each gradient, got {need}" },
    { "equal(rstd.numel, product(L))", "rstd must have {product(L)} elements, got {rstd.numel}" },
  },
  decompose = [[
    local over = range(self.ndim - dims, self.ndim)
    local r = reshape(rstd, join(first_n(self.shape, self.ndim - dims), ones_n(dims)))
    local normal = self * r
    local g = when(given(weight), grad_output * weight, grad_output)
    return (g - normal * mean(g * normal, over, true)) * r, sum_over(grad_output * normal, range(0, self.ndim - dims))]],
  grad = "unimplemented",
  reference = "rms_norm_backward",
  samples = { "randn(4,5), randn(4,5), rand(4) + 0.5, rand(5), 1, 3" },
  errors = {
    { "randn(4,4), randn(4,5), rand(4), rand(5), 1, 3", "shape" }, { "randn(4,5), randn(4,5), rand(3), nil, 1, 3", "rstd" },
    { "randn(4,5), randn(4,5), rand(4), rand(5), 1, 4", "need must be between 0 and 3" },
    { "randn(4,5), randn(4,5), rand(4), rand(5), 1, -1", "need must be between" },
  },
  doc = "Gradients of rms_norm's input and weight; need says by bits which, the others are empty." },
{ "rms_norm(Tensor self, int[] normalized_shape, Tensor? weight=none, Scalar? eps=none) -> Tensor",
  kind = "composite",
  expr = [[
    local small, dims = default_to(eps, eps_of(self)), length(normalized_shape)
    local z = self * rsqrt(mean(square(self), range(self.ndim - dims, self.ndim), true) + small)
    local y, rstd = native_rms_norm(self, weight, dims, small)
    return when(is_complex(self), when(given(weight), z * weight, z), y)]],
  check = {
    { "both(ge(length(normalized_shape), 1), same_list(last_n(self.shape, length(normalized_shape)), normalized_shape))",
      "normalized_shape must be the last dimensions of self, which has the shape {self.shape}, got {normalized_shape}" },
  },
  grad = "composite",
  reference = "rms_norm",
  samples = { "randn(4,5), {5}, rand(5)", "randn(2,3,4), {3,4}, nil, 0.1" },
  errors = {
    { "randn(2,3), {2}", "normalized_shape" }, { "randn(2,3), {3}, rand(2)", "weight must have the shape" },
    { "randn(2,3), {}", "normalized_shape" },
  },
  doc = "self / sqrt(mean of its squares over the last dimensions + eps), times weight; eps is the dtype's by default." },
{ "native_group_norm(Tensor self, Tensor? weight, Tensor? bias, int groups >= 1, float eps) -> (Tensor, Tensor, Tensor)",
  kind = "fused", batch = "fold", stats = 1, amp = "high",
  dims = { self = "N C * : float", weight = "C : float", bias = "C : float" },
  out = { "N C *", "N groups : working(self)", "N groups : working(self)" }, check = { divisible },
  decompose = [[
    local size = floor_divide(product(drop_n(self.shape, 1)), groups)
    local x = reshape(as(self, working(self)), list(self.shape[0], groups, size))
    local m = mean(x, list(2), true)
    local c = x - m
    local r = rsqrt(mean(square(c), list(2), true) + eps)
    local y = reshape(c * r, self.shape)
    local scaled = when(given(weight), y * by_channel(weight, self), y)
    return narrowed(when(given(bias), scaled + by_channel(bias, self), scaled), self), squeeze(m, 2), squeeze(r, 2)]],
  grad = { ["self, weight, bias"] = group },
  reference = "native_group_norm",
  samples = {
    "randn(2,4,3), rand(4), randn(4), 2, 1e-5", "randn(3,6), nil, nil, 2, 1e-5", "randn(2,4,2,3), rand(4), nil, 4, 1e-5",
    "randn(0,4,3), rand(4), randn(4), 2, 1e-5",
  },
  errors = {
    { "randn(2,3), nil, nil, 2, 1e-5", "divisible" }, { "randn(2,4), rand(3), nil, 2, 1e-5", "weight must have the shape" },
    { "randn(4), nil, nil, 2, 1e-5", "at least 2 dimensions, %[N, C, %*%], got %[4%]" }, { "randn(2,4), nil, nil, 0, 1e-5", "groups" },
  },
  doc = "group_norm, with the mean and 1 / sqrt(variance + eps) of each group (N, groups)." },
{ "group_norm_backward(Tensor grad_output, Tensor self, Tensor mean, Tensor rstd, Tensor? weight, int groups >= 1, int need) -> (Tensor, Tensor, Tensor)",
  kind = "fused",
  dims = {
    grad_output = "N C * : float", self = "N C * : float", mean = "*M : float", rstd = "*R : float", weight = "C : float",
  },
  let = { T = "when(given(weight), weight.dtype, self.dtype)" },
  out = { "(needed(need, 0, self.shape)) : self", "(needed(need, 1, list(C))) : T", "(needed(need, 2, list(C))) : T" },
  check = {
    divisible, three_bits,
    { "equal(mean.numel, N * groups)", "mean must have {N * groups} elements, got {mean.numel}" },
    { "equal(rstd.numel, N * groups)", "rstd must have {N * groups} elements, got {rstd.numel}" },
  },
  decompose = [[
    local grouped = list(self.shape[0], groups, floor_divide(product(drop_n(self.shape, 1)), groups))
    local m, r = unsqueeze(mean, -1), unsqueeze(rstd, -1)
    local normal = (reshape(self, grouped) - m) * r
    local g = reshape(when(given(weight), grad_output * by_channel(weight, self), grad_output), grouped)
    local dx = (g - op.mean(g, list(2), true) - normal * op.mean(g * normal, list(2), true)) * r
    local over = join(list(0), range(2, self.ndim))
    return reshape(dx, self.shape), sum(grad_output * reshape(normal, self.shape), over), sum(grad_output, over)]],
  grad = "unimplemented",
  reference = "group_norm_backward",
  samples = { "randn(2,4,3), randn(2,4,3), randn(2,2), rand(2,2), rand(4), 2, 7" },
  errors = {
    { "randn(2,4), randn(2,4,3), randn(2,2), rand(2,2), rand(4), 2, 7", "shape" },
    { "randn(2,4), randn(2,4), randn(2,1), rand(2,2), rand(4), 2, 7", "mean" },
  },
  doc = "Gradients of group_norm's input, weight and bias; need says by bits which, the others are empty." },
{ "group_norm(Tensor self, int num_groups >= 1, Tensor? weight=none, Tensor? bias=none, float eps=1e-05) -> Tensor",
  kind = "composite",
  expr = [[
    local y, mean, rstd = native_group_norm(self, weight, bias, num_groups, eps)
    return y]],
  grad = "composite",
  reference = "group_norm",
  samples = { "randn(2,4,3), 2, rand(4), randn(4)", "randn(3,6), 3" },
  errors = {
    { "randn(2,3), 2", "divisible" }, { "randn(2,4), 2, rand(3)", "weight must have the shape" }, { "randn(2,4), 0", "groups" },
  },
  doc = "self (N, C, …) normalised over each of num_groups groups of channels, then scaled and shifted by channel." },
{ "native_batch_norm(Tensor self, Tensor? weight, Tensor? bias, Tensor!? running_mean, Tensor!? running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
  kind = "fused", stats = 1, amp = "high",
  dims = {
    self = "N C * : float", weight = "C : float", bias = "C : float", running_mean = "C : float", running_var = "C : float",
  },
  out = { "N C *", "C : working(self)", "C : working(self)" },
  check = {
    { "either(training, both(given(running_mean), given(running_var)))",
      "running_mean and running_var are needed outside of training" },
    { "either(both(given(running_mean), given(running_var)), negate(either(given(running_mean), given(running_var))))",
      "running_mean and running_var must be given together" },
    { "either(negate(training), either(equal(self.numel, 0), ne(self.numel, C)))",
      "expected more than 1 value per channel when training, got the shape {self.shape} with one" },
  },
  decompose = [[
    local over, x = join(list(0), range(2, self.ndim)), as(self, working(self))
    local m = when(training, mean(x, over), as(running_mean, working(self)))
    local c = x - by_channel(m, self)
    local r = rsqrt(when(training, mean(square(c), over), as(running_var, working(self))) + eps)
    local y = c * by_channel(r, self)
    local scaled = when(given(weight), y * by_channel(weight, self), y)
    return narrowed(when(given(bias), scaled + by_channel(bias, self), scaled), self), m, r]],
  update = { "running_mean, running_var", [[
    local over, n = join(list(0), range(2, self.ndim)), self.numel / self.shape[1]
    local m = mean(self, over)
    local v = mean(square(self - by_channel(m, self)), over) * (n / (n - 1))
    return when(training, running_mean * (1 - momentum) + m * momentum, running_mean),
      when(training, running_var * (1 - momentum) + v * momentum, running_var)]] },
  grad = { ["self, weight, bias"] = batch, running_mean = "no", running_var = "no" },
  reference = "native_batch_norm",
  samples = {
    "randn(4,3), rand(3), randn(3), randn(3), rand(3), true, 0.1, 1e-5", "randn(2,3,4), nil, nil, nil, nil, true, 0.1, 1e-5",
    "randn(2,3,2,2), rand(3), nil, randn(3), rand(3) + 0.5, false, 0.1, 1e-5",
  },
  errors = {
    { "randn(4,3), rand(2), nil, nil, nil, true, 0.1, 1e-5", "weight must have the shape" },
    { "randn(4,3), nil, nil, nil, nil, false, 0.1, 1e-5", "running" },
    { "randn(1,3), nil, nil, nil, nil, true, 0.1, 1e-5", "more than 1 value per channel" },
    { "randn(3), nil, nil, nil, nil, true, 0.1, 1e-5", "at least 2 dimensions" },
  },
  doc = "batch_norm, with the mean and 1 / sqrt(variance + eps) of each channel that it used." },
{ "batch_norm_backward(Tensor grad_output, Tensor self, Tensor mean, Tensor rstd, Tensor? weight, bool training, int need) -> (Tensor, Tensor, Tensor)",
  kind = "fused",
  dims = {
    grad_output = "N C * : float", self = "N C * : float", mean = "*M : float", rstd = "*R : float", weight = "C : float",
  },
  let = { T = "when(given(weight), weight.dtype, self.dtype)" },
  out = { "(needed(need, 0, self.shape)) : self", "(needed(need, 1, list(C))) : T", "(needed(need, 2, list(C))) : T" },
  check = {
    three_bits,
    { "equal(mean.numel, C)", "mean must have {C} elements, got {mean.numel}" },
    { "equal(rstd.numel, C)", "rstd must have {C} elements, got {rstd.numel}" },
  },
  decompose = [[
    local over, r = join(list(0), range(2, self.ndim)), by_channel(rstd, self)
    local normal = (self - by_channel(mean, self)) * r
    local g = when(given(weight), grad_output * by_channel(weight, self), grad_output)
    local dx = when(training, g - op.mean(g, over, true) - normal * op.mean(g * normal, over, true), g) * r
    return dx, sum(grad_output * normal, over), sum(grad_output, over)]],
  grad = "unimplemented",
  reference = "batch_norm_backward",
  samples = {
    "randn(4,3), randn(4,3), randn(3), rand(3), rand(3), true, 7", "randn(2,3,4), randn(2,3,4), randn(3), rand(3), nil, false, 7",
  },
  errors = {
    { "randn(2,4), randn(2,4,3), randn(4), rand(4), rand(4), true, 7", "shape" },
    { "randn(2,4), randn(2,4), randn(2), rand(4), rand(4), true, 7", "mean" },
  },
  doc = "Gradients of batch_norm's input, weight and bias; need says by bits which, the others are empty." },
{ "batch_norm(Tensor self, Tensor!? running_mean, Tensor!? running_var, Tensor? weight=none, Tensor? bias=none, bool training=false, float momentum=0.1, float eps=1e-05) -> Tensor",
  kind = "composite",
  expr = [[
    local y, mean, rstd = native_batch_norm(self, weight, bias, running_mean, running_var, training, momentum, eps)
    return y]],
  grad = "composite",
  reference = "batch_norm",
  samples = {
    "randn(4,3), randn(3), rand(3), rand(3), randn(3), true", "randn(2,3,4), randn(3), rand(3), nil, rand(3), true",
  },
  errors = {
    { "randn(4,3), nil, nil", "running" }, { "randn(4,3), randn(2), rand(3)", "running_mean must have the shape" },
    { "randn(4,3), randn(3), rand(3), rand(2)", "weight must have the shape" },
  },
  doc = "self (N, C, …) normalised by channel: by its own statistics in training, which move running_mean \z
    and running_var (unbiased) by momentum, else by those." },
{ "instance_norm(Tensor self, Tensor? weight=none, Tensor? bias=none, float eps=1e-05) -> Tensor",
  kind = "composite",
  expr = [[
    local groups = when(both(gt(self.ndim, 1), gt(self.shape[1], 0)), self.shape[1], 1)
    local y, mean, rstd = native_group_norm(self, weight, bias, groups, eps)
    return y]],
  grad = "composite",
  reference = "instance_norm",
  samples = { "randn(2,3,4)", "randn(2,3,2,2), rand(3), randn(3)" },
  errors = { { "randn(2,3,4), rand(2)", "weight must have the shape" }, { "randn(3)", "at least 2 dimensions" } },
  doc = "self (N, C, …) normalised over each channel of each sample." },
}
