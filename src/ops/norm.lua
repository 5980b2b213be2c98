-- Normalisation. The fused ops give the statistics that their derivatives read; one derivative computes
-- the gradients of all inputs that need them, and is made of differentiable ops where it is to be
-- differentiated again (src/autograd/norm.c).
local layer = "layer_norm(grad, self, weight, bias, dims, eps, result1, result2)"
local rms = "rms_norm(grad, self, weight, dims, eps, result1)"
local group = "group_norm(grad, self, weight, bias, groups, eps, result1, result2)"
local batch = "batch_norm(grad, self, weight, bias, training, eps, result1, result2)"

return {
{ "native_layer_norm(Tensor self, Tensor? weight, Tensor? bias, int dims, float eps) -> (Tensor, Tensor, Tensor)",
  kind = "fused", shape = "layer_norm", stats = 1, amp = "high",
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
  kind = "fused", shape = "layer_norm_backward",
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
  kind = "fused", shape = "rms_norm", stats = 1, amp = "high",
  grad = { ["self, weight"] = rms },
  reference = "native_rms_norm",
  samples = { "randn(4,5), rand(5), 1, 1e-5", "randn(2,3,4), nil, 2, 1e-5" },
  errors = {
    { "randn(2,3), rand(2), 1, 1e-5", "weight must have the shape" },
    { "tensor({1,2},{dtype=int64}), nil, 1, 1e-5", "float" }, { "randn(2), nil, 2, 1e-5", "dims" },
  },
  doc = "rms_norm over the last dims dimensions; with 1 / sqrt(mean of squares + eps) of each row." },
{ "rms_norm_backward(Tensor grad_output, Tensor self, Tensor rstd, Tensor? weight, int dims, int need) -> (Tensor, Tensor)",
  kind = "fused", shape = "rms_norm_backward",
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
    local y, rstd = native_rms_norm(self, weight, length(normalized_shape), default_to(eps, eps_of(self)))
    return y]],
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
{ "native_group_norm(Tensor self, Tensor? weight, Tensor? bias, int groups, float eps) -> (Tensor, Tensor, Tensor)",
  kind = "fused", shape = "group_norm", stats = 1, amp = "high",
  grad = { ["self, weight, bias"] = group },
  reference = "native_group_norm",
  samples = {
    "randn(2,4,3), rand(4), randn(4), 2, 1e-5", "randn(3,6), nil, nil, 2, 1e-5", "randn(2,4,2,3), rand(4), nil, 4, 1e-5",
  },
  errors = {
    { "randn(2,3), nil, nil, 2, 1e-5", "divisible" }, { "randn(2,4), rand(3), nil, 2, 1e-5", "weight must have the shape" },
    { "randn(4), nil, nil, 2, 1e-5", "channels" }, { "randn(2,4), nil, nil, 0, 1e-5", "groups" },
  },
  doc = "group_norm, with the mean and 1 / sqrt(variance + eps) of each group (N, groups)." },
{ "group_norm_backward(Tensor grad_output, Tensor self, Tensor mean, Tensor rstd, Tensor? weight, int groups, int need) -> (Tensor, Tensor, Tensor)",
  kind = "fused", shape = "group_norm_backward",
  grad = "unimplemented",
  reference = "group_norm_backward",
  samples = { "randn(2,4,3), randn(2,4,3), randn(2,2), rand(2,2), rand(4), 2, 7" },
  errors = {
    { "randn(2,4), randn(2,4,3), randn(2,2), rand(2,2), rand(4), 2, 7", "shape" },
    { "randn(2,4), randn(2,4), randn(2,1), rand(2,2), rand(4), 2, 7", "mean" },
  },
  doc = "Gradients of group_norm's input, weight and bias; need says by bits which, the others are empty." },
{ "group_norm(Tensor self, int num_groups, Tensor? weight=none, Tensor? bias=none, float eps=1e-05) -> Tensor",
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
  kind = "fused", shape = "batch_norm", stats = 1, amp = "high",
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
    { "randn(3), nil, nil, nil, nil, true, 0.1, 1e-5", "channels" },
  },
  doc = "batch_norm, with the mean and 1 / sqrt(variance + eps) of each channel that it used." },
{ "batch_norm_backward(Tensor grad_output, Tensor self, Tensor mean, Tensor rstd, Tensor? weight, bool training, int need) -> (Tensor, Tensor, Tensor)",
  kind = "fused", shape = "batch_norm_backward",
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
  errors = { { "randn(2,3,4), rand(2)", "weight must have the shape" }, { "randn(3)", "channels" } },
  doc = "self (N, C, …) normalised over each channel of each sample." },
}
