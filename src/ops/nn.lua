-- Ops that networks are made of.
-- Of recurrent layers: one direction of one layer, all its time steps. The projection of the inputs, with its bias, is
-- a linear of its own before.
local sequence = {
  { "ge(T, 1)", "the sequence is empty: input has the shape {list(T, N, G)}" },
  { "both(ge(H, 1), ge(N, 0))", "the state must have at least one element for each sequence, got {list(N, H)}" },
}
local four_gates = { "equal(G, H * 4)", "input must have 4 * {H} columns, those of the gates, got {G}" }
local three_gates = { "equal(G, H * 3)", "input must have 3 * {H} columns, those of the gates, got {G}" }

return {
{ "softmax(Tensor self, Dim dim, dtype? dtype=none) -> Tensor",
  kind = "fused", amp = "high",
  dims = { self = "*" }, let = { T = "default_to(dtype, self.dtype)" }, out = "* : T",
  check = { { "is_float(T)", "expected a float dtype, got {T}; give one by dtype", "type" } },
  decompose = [[
    local x = when(given(dtype), to(self, dtype), self)
    local e = exp(x - amax(x, list(dim), true))
    return e / sum(e, list(dim), true)]],
  grad = { self = "softmax_backward(grad, result, dim)" },
  reference = "softmax",
  samples = { "randn(3,4), 2", "randn(3,4) * 1e4, 1", "randn(2,3,4), 2" },
  errors = { { "randn(2), 2", "out of range" }, { "tensor({1,2},{dtype=int64}), 1", "float" } },
  doc = "exp(self) normalised to sum 1 along dim." },
{ "log_softmax(Tensor self, Dim dim, dtype? dtype=none) -> Tensor",
  kind = "fused", amp = "high",
  dims = { self = "*" }, let = { T = "default_to(dtype, self.dtype)" }, out = "* : T",
  check = { { "is_float(T)", "expected a float dtype, got {T}; give one by dtype", "type" } },
  decompose = [[
    local x = when(given(dtype), to(self, dtype), self)
    local shifted = x - amax(x, list(dim), true)
    return shifted - log(sum(exp(shifted), list(dim), true))]],
  grad = { self = "log_softmax_backward(grad, result, dim)" },
  reference = "log_softmax",
  samples = { "randn(3,4), 2", "randn(3,4) * 1e4, 1", "randn(2,3,4), 2" },
  errors = { { "randn(2), 2", "out of range" }, { "tensor({1,2},{dtype=int64}), 1", "float" } },
  doc = "log(softmax(self)), stable." },
{ "softmax_backward(Tensor grad_output, Tensor output, Dim dim) -> Tensor",
  kind = "fused",
  dims = { grad_output = "* : float", output = "* : float" }, out = "*",
  decompose = "(grad_output - sum_keep(grad_output * output, dim)) * output",
  grad = {
    grad_output = "softmax_backward(grad, output, dim)",
    output = "softmax_double_backward(grad, grad_output, output, dim)",
  },
  reference = "softmax_backward",
  samples = { "randn(3,4), rand(3,4), 2" },
  errors = { { "randn(2), randn(3), 1", "shape" }, { "randn(2), randn(2), 2", "out of range" } },
  doc = "Derivative of softmax." },
{ "log_softmax_backward(Tensor grad_output, Tensor output, Dim dim) -> Tensor",
  kind = "fused",
  dims = { grad_output = "* : float", output = "* : float" }, out = "*",
  decompose = "grad_output - exp(output) * sum_keep(grad_output, dim)",
  grad = {
    grad_output = "grad - sum_keep(grad * exp(output), dim)",
    output = "neg(grad * exp(output) * sum_keep(grad_output, dim))",
  },
  reference = "log_softmax_backward",
  samples = { "randn(3,4), rand(3,4), 2" },
  errors = { { "randn(2), randn(3), 1", "shape" }, { "randn(2), randn(2), 2", "out of range" } },
  doc = "Derivative of log_softmax." },
{ "cross_entropy(Tensor self, IndexTensor target, Tensor? weight=none, enum('mean','sum','none') reduction='mean', int ignore_index=-100, float label_smoothing=0 in [0,1], index_base) -> Tensor",
  kind = "fused", amp = "high",
  dims = { self = "N? C : float", target = "N?", weight = "C : float" }, out = "(loss_shape(target, reduction))",
  decompose = [[
    local ok, w = ne(target, ignore_index), class_weights(self, target, weight, ignore_index, index_base)
    local lsm = log_softmax(self, self.ndim - 1)
    local class = where(ok, target - index_base, 0)
    local hit = squeeze(gather(lsm, self.ndim - 1, unsqueeze(class, -1), 0), -1)
    local all = sum(when(given(weight), lsm * weight, lsm), list(self.ndim - 1))
    local smooth = where(ok, all, 0) * (label_smoothing / self.shape[-1])
    local loss = neg(hit * w * (1 - label_smoothing) + smooth)
    return when(eq(reduction, "none"), loss, when(eq(reduction, "sum"), sum(loss), sum(loss) / sum(w)))]],
  grad = {
    self = "cross_entropy_backward(grad, self, target, weight, reduction, ignore_index, label_smoothing, index_base)",
    weight = "unimplemented",
  },
  reference = "cross_entropy",
  samples = {
    "randn(4,5), randint(1, 6, {4})", "randn(4,5), randint(1, 6, {4}), rand(5) + 0.5, 'sum'",
    "randn(4,5), randint(1, 6, {4}), {reduction='none', label_smoothing=0.1}",
    "randn(5,4), tensor({1,4,2,2,1},{dtype=int64}), rand(4) + 0.5, 'mean', 2, 0.1",
  },
  errors = {
    { "randn(2,3), tensor({1,4},{dtype=int64})", "class 4 is out of range" }, { "randn(2,3), randn(2)", "integer" },
    { "randn(2,3), tensor({1},{dtype=int64})", "shape" },
    { "randn(2,3), tensor({1,2},{dtype=int64}), {reduction='avg'}", "reduction" },
  },
  doc = "Negative log-likelihood of integer classes (N) under softmax of logits (N, C); one pass. \z
    reduction: mean, sum, none. Classes count from index_base; those equal to ignore_index (as \z
    written) count for nothing." },
{ "cross_entropy_backward(Tensor grad_output, Tensor self, IndexTensor target, Tensor? weight, enum('mean','sum','none') reduction, int ignore_index, float label_smoothing in [0,1], index_base) -> Tensor",
  kind = "fused",
  dims = { grad_output = "*G : float", self = "N? C : float", target = "N?", weight = "C : float" },
  let = { ["*G"] = "loss_shape(target, reduction)" }, out = "N? C : self",
  decompose = [[
    local ok, w = ne(target, ignore_index), class_weights(self, target, weight, ignore_index, index_base)
    local class = unsqueeze(where(ok, target - index_base, 0), -1)
    local hit = to(eq(arange_of(self, 0, self.shape[-1], none), class), self.dtype)
    local even = when(given(weight), ones_like(self) * weight, ones_like(self)) * (label_smoothing / self.shape[-1])
    local wanted = hit * unsqueeze(w, -1) * (1 - label_smoothing) + where(unsqueeze(ok, -1), even, 0)
    local g = softmax(self, self.ndim - 1) * sum(wanted, list(-1), true) - wanted
    local by = when(eq(reduction, "none"), unsqueeze(grad_output, -1), grad_output)
    return g * when(eq(reduction, "mean"), by / sum(w), by)]],
  grad = {
    grad_output = "cross_entropy_double_backward(grad, self, target, weight, reduction, ignore_index, \z
      label_smoothing, index_base)",
    self = "cross_entropy_backward_self(grad, grad_output, self, target, weight, reduction, ignore_index, \z
      label_smoothing, index_base)",
    weight = "unimplemented",
  },
  reference = "cross_entropy_backward",
  samples = {
    "randn(), randn(4,5), randint(1, 6, {4}), nil, 'mean', -100, 0",
    "randn(4), randn(4,5), randint(1, 6, {4}), rand(5) + 0.5, 'none', 2, 0.1",
    "randn(), randn(4,5), randint(1, 6, {4}), rand(5) + 0.5, 'mean', 3, 0.2",
    "randn(), randn(5), randint(1, 6, {}), nil, 'sum', -100, 0", "randn(), randn(3,1), randint(1, 2, {3}), nil, 'sum', -100, 0",
  },
  errors = { { "randn(3), randn(4,5), randint(1, 6, {4}), nil, 'none', -100, 0", "shape" } },
  doc = "Derivative of cross_entropy by the logits." },
{ "nll_loss(Tensor self, IndexTensor target, enum('mean','sum','none') reduction='mean', index_base) -> Tensor",
  kind = "composite", amp = "high",
  expr = "reduced(neg(squeeze(gather(self, 1, unsqueeze(target, 1), index_base), 1)), reduction)",
  check = {
    { "both(equal(self.ndim, 2), both(equal(target.ndim, 1), equal(self.shape[0], target.shape[0])))",
      "expected log-probabilities of shape [N, C] and classes of shape [N]" },
    { "is_float(self)",
      "a loss needs a float dtype, got {self.dtype}", "type" },
  },
  grad = "composite",
  reference = "nll_loss",
  samples = { "randn(4,5):log_softmax(2), randint(1, 6, {4})" },
  errors = {
    { "randn(2,3), tensor({1,4},{dtype=int64})", "index 4 is out of range" }, { "randn(2,3), randn(2)", "integer" },
    { "randn(2,3), tensor({1,2},{dtype=int64}), 'avg'", "reduction" },
  },
  doc = "Negative log-likelihood of classes (N) under log-probabilities (N, C)." },
{ "mse_loss(Tensor self, Tensor target, enum('mean','sum','none') reduction='mean') -> Tensor",
  kind = "composite", amp = "high",
  expr = "reduced(square(self - target), reduction)",
  check = {
    { "either(expands(self.shape, target.shape), expands(target.shape, self.shape))",
      "self {self.shape} and target {target.shape}: neither broadcasts to the other, so the loss would pair elements that do not belong \z
        together; give both one shape, as by target:view_as(self), squeeze or unsqueeze" },
    { "either(is_float(self), is_float(target))",
      "a loss needs a float dtype, got {self.dtype}", "type" },
  },
  grad = "composite",
  reference = "mse_loss",
  samples = { "randn(4,5), randn(4,5)", "randn(4,5), randn(4,5), 'sum'" },
  errors = { { "randn(2,3), randn(4)", "broadcast" }, { "randn(2), randn(2), 'avg'", "reduction" } },
  doc = "Squared difference; reduction: mean, sum, none." },
{ "l1_loss(Tensor self, Tensor target, enum('mean','sum','none') reduction='mean') -> Tensor",
  kind = "composite", amp = "high",
  expr = "reduced(abs(self - target), reduction)",
  check = {
    { "either(expands(self.shape, target.shape), expands(target.shape, self.shape))",
      "self {self.shape} and target {target.shape}: neither broadcasts to the other, so the loss would pair elements that do not belong \z
        together; give both one shape, as by target:view_as(self), squeeze or unsqueeze" },
    { "either(inexact(self), inexact(target))",
      "a loss needs a float dtype, got {self.dtype}", "type" },
  },
  grad = "composite",
  reference = "l1_loss",
  samples = { "randn(4,5), randn(4,5)", "randn(4,5), randn(4,5), 'none'" },
  errors = { { "randn(2,3), randn(4)", "broadcast" }, { "randn(2), randn(2), 'avg'", "reduction" } },
  doc = "Absolute difference; reduction: mean, sum, none." },
{ "binary_cross_entropy_with_logits(Tensor self, Tensor target, enum('mean','sum','none') reduction='mean') -> Tensor",
  kind = "composite", amp = "high",
  expr = "reduced((1 - target) * self - log_sigmoid(self), reduction)",
  check = {
    { "both(expands(self.shape, target.shape), expands(target.shape, self.shape))",
      "self {self.shape} and target {target.shape} must have one shape (broadcast one of them to the other yourself, or \z
        write target:view_as(self), squeeze or unsqueeze)" },
  },
  grad = "composite",
  reference = "binary_cross_entropy_with_logits",
  samples = { "randn(4,5), rand(4,5)" },
  errors = { { "randn(2,3), randn(4)", "broadcast" }, { "randn(2), randn(2), 'avg'", "reduction" } },
  doc = "Cross-entropy of sigmoid(self) against target in [0, 1], stable." },
{ "native_dropout(Tensor self, float p in [0,1], Generator? generator=none) -> (Tensor, Tensor)",
  kind = "random",
  dims = { self = "* : float" }, out = { "*", "* : bool" },
  draw = "bits",
  decompose = [[
    local keep = native_dropout_mask(self.shape, p, self.device, generator)
    return dropout_backward(self, keep, when(lt(p, 1), 1 / (1 - p), 0)), keep]],
  grad = { self = "native_dropout_grad(grad, result1, p)" },
  none = "random values",
  samples = { "randn(4,5), 0.3" },
  errors = { { "randn(2), 1.5", "between 0 and 1" }, { "randn(2), 0/0", "between 0 and 1" } },
  doc = "self / (1 - p) with each element zeroed with probability p, and the bool mask of the kept ones." },
{ "native_dropout_mask(int[] size, float p in [0,1], device? device=none, Generator? generator=none) -> Tensor",
  kind = "random",
  out = "*size : bool",
  draw = "bits",
  decompose = "eq(bernoulli_(empty(size, dtype_named(\"float32\"), device), p, generator), 0)",
  grad = "none",
  none = "random values",
  samples = { "{4,5}, 0.3", "{3,0}, 0.3", "{7}, 1" },
  errors = { { "{2}, 1.5", "between 0 and 1" }, { "{-2}, 0.5", "must not be negative" } },
  doc = "The mask of native_dropout alone, for a tensor of these sizes." },
{ "dropout(Tensor self, float p=0.5 in [0,1], bool train=true, Generator? generator=none) -> Tensor",
  kind = "composite",
  expr = [[
    local dropped, mask = native_dropout(self, p, generator)
    local pairs_ = self * native_dropout_mask(self.shape, p, self.device, generator) * when(lt(p, 1), 1 / (1 - p), 0)
    return when(either(negate(train), equal(p, 0)), self, when(is_complex(self), pairs_, dropped))]],
  grad = "composite",
  none = "random values",
  samples = { "randn(4,5), 0.3", "randn(4,5), 0.3, false" },
  errors = { { "randn(2), 1.5", "between 0 and 1" } },
  doc = "native_dropout in training, self otherwise." },
{ "native_smooth_l1(Tensor self, Tensor target, Scalar beta, Scalar scale) -> Tensor",
  kind = "pointwise", scalar = "smooth_l1", promote = "float",
  grad = {
    self = "native_smooth_l1_backward(grad, self, target, beta, scale)",
    target = "neg(native_smooth_l1_backward(grad, self, target, beta, scale))",
  },
  ref = "scale * (math.abs(self - target) < beta and (self - target) ^ 2 / (2 * beta) or math.abs(self - target) - beta / 2)",
  samples = { "randn(4,5) * 2, randn(5), 1, 1", "randn(4) * 3, randn(4), 2, 2", "randn(4), randn(4), 0, 1" },
  doc = "d^2 / (2 beta) where d = |self - target| is below beta, else d - beta / 2; times scale." },
{ "native_smooth_l1_backward(Tensor grad_output, Tensor self, Tensor target, Scalar beta, Scalar scale) -> Tensor",
  kind = "pointwise", scalar = "smooth_l1_backward", promote = "same", dtypes = "float",
  grad = {
    grad_output = "native_smooth_l1_backward(grad, self, target, beta, scale)",
    self = "smooth_l1_double(grad * grad_output, self, target, beta, scale)",
    target = "neg(smooth_l1_double(grad * grad_output, self, target, beta, scale))",
  },
  ref = "grad_output * scale * (beta == 0 and (self > target and 1 or self < target and -1 or 0) or math.max(-1, math.min(1, (self - target) / beta)))",
  samples = { "randn(4,5), randn(4,5) * 2, randn(5), 1, 1", "randn(4), randn(4) * 3, randn(4), 2, 2", "randn(4), randn(4), randn(4), 0, 1" },
  doc = "The derivative of native_smooth_l1 by self." },
{ "smooth_l1_loss(Tensor self, Tensor target, enum('mean','sum','none') reduction='mean', float beta=1 >= 0) -> Tensor",
  kind = "composite", amp = "high",
  expr = "reduced(smooth_l1(self, target, beta, 1), reduction)",
  check = {
    { "either(expands(self.shape, target.shape), expands(target.shape, self.shape))",
      "self {self.shape} and target {target.shape}: neither broadcasts to the other, so the loss would pair elements that do not belong \z
        together; give both one shape, as by target:view_as(self), squeeze or unsqueeze" },
    { "either(is_float(self), is_float(target))",
      "a loss needs a float dtype, got {self.dtype}", "type" },
  },
  grad = "composite",
  reference = "smooth_l1_loss",
  samples = { "randn(4,5) * 2, randn(4,5)", "randn(4,5), randn(5), 'none', 0.5", "randn(4,5), randn(4,5), 'sum', 0" },
  errors = {
    { "randn(2,3), randn(4)", "broadcast" }, { "randn(2), randn(2), 'avg'", "reduction" },
    { "randn(2), randn(2), 'mean', -1", "beta" },
  },
  doc = "d^2 / (2 beta) where d = |self - target| is below beta, else d - beta / 2; reduction: mean, sum, none." },
{ "huber_loss(Tensor self, Tensor target, enum('mean','sum','none') reduction='mean', float delta=1 > 0) -> Tensor",
  kind = "composite", amp = "high",
  expr = "reduced(smooth_l1(self, target, delta, delta), reduction)",
  check = {
    { "either(expands(self.shape, target.shape), expands(target.shape, self.shape))",
      "self {self.shape} and target {target.shape}: neither broadcasts to the other, so the loss would pair elements that do not belong \z
        together; give both one shape, as by target:view_as(self), squeeze or unsqueeze" },
    { "either(is_float(self), is_float(target))",
      "a loss needs a float dtype, got {self.dtype}", "type" },
  },
  grad = "composite",
  reference = "huber_loss",
  samples = { "randn(4,5) * 2, randn(4,5)", "randn(4,5), randn(5), 'none', 0.5" },
  errors = {
    { "randn(2,3), randn(4)", "broadcast" }, { "randn(2), randn(2), 'avg'", "reduction" },
    { "randn(2), randn(2), 'mean', 0", "delta" },
  },
  doc = "d^2 / 2 where d = |self - target| is below delta, else delta (d - delta / 2); reduction: mean, sum, none." },
{ "kl_div(Tensor self, Tensor target, enum('mean','sum','none','batchmean') reduction='mean', bool log_target=false) -> Tensor",
  kind = "composite", amp = "high",
  expr = [[
    local same = same_dtype(self, target)
    local t = when(same, as(target, working(target)), target) -- halves are rounded once
    local zero = eq(t, 0) -- log(0) has no finite derivative
    local loss = when(log_target, exp(t) * (t - self), t * log(masked_fill(t, zero, 1)) - t * self)
    local y = when(eq(reduction, "batchmean"), sum(loss) / self.shape[0], reduced(loss, reduction))
    return when(same, as(y, target.dtype), y)]],
  check = {
    { "either(expands(self.shape, target.shape), expands(target.shape, self.shape))",
      "self {self.shape} and target {target.shape}: neither broadcasts to the other, so the loss would pair elements that do not belong \z
        together; give both one shape, as by target:view_as(self), squeeze or unsqueeze" },
    { "is_float(target)",
      "target: expected a float dtype, got {target.dtype}", "type" },
  },
  grad = "composite",
  reference = "kl_div",
  samples = {
    "randn(4,5):log_softmax(2), rand(4,5) + 0.1", "randn(4,5), randn(4,5), 'batchmean', true",
    "randn(4,5), rand(4,5), 'none'",
  },
  errors = {
    { "randn(2,3), rand(4)", "broadcast" }, { "randn(2), rand(2), 'avg'", "reduction" },
    { "randn(2), tensor({0,1},{dtype=int64})", "float" },
  },
  doc = "target (log(target) - self), self being log-probabilities; 0 where target is 0. log_target: target is \z
    logarithms, too. reduction: mean, sum, none, or batchmean, the sum divided by the first size." },
{ "binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=none, enum('mean','sum','none') reduction='mean') -> Tensor",
  kind = "composite", amp = "high",
  expr = [[
    local loss = neg(target * bounded_log(self) + (1 - target) * bounded_log(1 - self))
    return reduced(when(given(weight), loss * weight, loss), reduction)]],
  check = {
    { "both(expands(self.shape, target.shape), expands(target.shape, self.shape))",
      "self {self.shape} and target {target.shape} must have one shape (broadcast one of them to the other yourself, or \z
        write target:view_as(self), squeeze or unsqueeze)" },
    { "is_float(self)",
      "expected a float dtype, got {self.dtype}", "type" },
  },
  grad = "composite",
  reference = "binary_cross_entropy",
  samples = { "rand(4,5) * 0.8 + 0.1, rand(4,5)", "rand(4,5) * 0.8 + 0.1, rand(4,5), rand(5), 'none'" },
  errors = {
    { "rand(2,3), rand(4)", "broadcast" }, { "rand(2), rand(2), nil, 'avg'", "reduction" },
    { "tensor({0,1},{dtype=int64}), rand(2)", "float" },
  },
  doc = "Cross-entropy of probabilities against target in [0, 1], times weight; logarithms are not below -100. With \z
    logits binary_cross_entropy_with_logits is the stable way." },
{ "ctc_loss_forward(Tensor log_probs, IndexTensor target, Tensor input_lengths, Tensor target_lengths, Index blank, bool zero_infinity=false, index_base) -> (Tensor, Tensor)",
  kind = "extern", stats = 1, amp = "high",
  dims = { log_probs = "T N C : float", target = "N S", input_lengths = "N : int", target_lengths = "N : int" },
  out = { "N", "N T (S * 2 + 1) : working(log_probs)" },
  check = { { "both(ge(blank, 0), lt(blank, C))", "blank must be one of the {C} classes" } },
  grad = {
    log_probs = "ctc_loss_backward(grad, log_probs, target, input_lengths, target_lengths, result1, blank, zero_infinity, index_base)",
    input_lengths = "no", target_lengths = "no",
  },
  reference = "ctc_loss_forward",
  samples = {
    "randn(4,2,3):log_softmax(3), tensor({{2,3},{2,1}},{dtype=int64}), tensor({4,3},{dtype=int64}), tensor({2,1},{dtype=int64}), 1",
    "randn(5,1,4):log_softmax(3), tensor({{2,2}},{dtype=int64}), tensor({5},{dtype=int64}), tensor({2},{dtype=int64}), 4, true",
  },
  errors = {
    { "randn(4,1,3), tensor({{2,3}},{dtype=int64}), tensor({5},{dtype=int64}), tensor({2},{dtype=int64}), 1", "input length of 5" },
    { "randn(4,1,3), tensor({{2,3}},{dtype=int64}), tensor({4},{dtype=int64}), tensor({3},{dtype=int64}), 1", "target length of 3" },
    { "randn(4,1,3), tensor({{2,4}},{dtype=int64}), tensor({4},{dtype=int64}), tensor({2},{dtype=int64}), 1", "class 4 is out of range" },
    { "randn(4,1,3), tensor({{2,1}},{dtype=int64}), tensor({4},{dtype=int64}), tensor({2},{dtype=int64}), 1", "is the blank" },
    { "randn(4,3), tensor({{2,1}},{dtype=int64}), tensor({4},{dtype=int64}), tensor({2},{dtype=int64}), 1", "dimensions" },
  },
  doc = "Connectionist temporal classification: for each sequence of log_probs (T, N, C) the negative logarithm of the \z
    probability of its target (N, S), over all alignments; and the logarithms of the probabilities of all beginnings. \z
    zero_infinity: 0, without a gradient, where there is no alignment. F.ctc_loss has the reductions." },
{ "ctc_loss_backward(Tensor grad_output, Tensor log_probs, IndexTensor target, Tensor input_lengths, Tensor target_lengths, Tensor log_alpha, Index blank, bool zero_infinity=false, index_base) -> Tensor",
  kind = "extern",
  dims = {
    grad_output = "N : float", log_probs = "T N C : float", target = "N S", input_lengths = "N : int", target_lengths = "N : int",
    log_alpha = "N T L : float",
  },
  let = { L = "S * 2 + 1" }, out = "T N C : log_probs",
  check = { { "both(ge(blank, 0), lt(blank, C))", "blank must be one of the {C} classes" } },
  grad = "unimplemented",
  reference = "ctc_loss_backward",
  samples = {
    "randn(2), randn(4,2,3):log_softmax(3), tensor({{2,3},{2,1}},{dtype=int64}), tensor({4,3},{dtype=int64}), tensor({2,1},{dtype=int64}), randn(2,4,5):double(), 1",
  },
  errors = {
    { "randn(1), randn(4,2,3), tensor({{2,3},{2,1}},{dtype=int64}), tensor({4,3},{dtype=int64}), tensor({2,1},{dtype=int64}), randn(2,4,5), 1", "shape" },
  },
  tolerance = { float32 = { 1e-4, 1e-4 }, float16 = { 2e-2, 2e-2 }, bfloat16 = { 1e-1, 1e-1 }, why = "exponentials of rounded sums" },
  doc = "Derivative of ctc_loss_forward by log_probs." },
{ "lstm_layer(Tensor input, Tensor weight, Tensor h0, Tensor c0, bool reverse=false) -> (Tensor, Tensor, Tensor)",
  kind = "fused", amp = "low",
  dims = { input = "T N G : float", h0 = "N H : input", weight = "G H : input", c0 = "N H : input" },
  out = { "T N H", "T N H", "T N G" },
  check = { sequence[1], sequence[2], four_gates },
  keep = true, -- the weight is packed once for all steps
  decompose = [[
    local x, h = when(reverse, flip(input, list(0)), input), h0.shape[1]
    local rows = fold(unsqueeze(op.cat(tensors(h0, c0, zeros_of(h0, list(h0.shape[0], h * 4), none)), 1), 0), x.shape[0],
      function(rows, k)
        local before = select(rows, 0, k)
        local g = select(x, 0, k) + matmul(narrow(before, 1, 0, h), t(weight))
        local i, f = sigmoid(narrow(g, 1, 0, h)), sigmoid(narrow(g, 1, h, h))
        local n, o = tanh(narrow(g, 1, h * 2, h)), sigmoid(narrow(g, 1, h * 3, h))
        local c = f * narrow(before, 1, h, h) + i * n
        return op.cat(tensors(rows, unsqueeze(op.cat(tensors(o * tanh(c), c, i, f, n, o), 1), 0)), 0)
      end)
    local all = narrow(rows, 0, 1, x.shape[0])
    local y = when(reverse, flip(all, list(0)), all)
    return narrow(y, 2, 0, h), narrow(y, 2, h, h), narrow(y, 2, h * 2, h * 4)]],
  grad = { ["input, weight, h0, c0"] = {
    once = "lstm_layer_backward(grad, grad1, grad2, weight, h0, c0, result, result1, result2, reverse)",
    again = "lstm_gradients(grad, grad1, grad2, weight, h0, c0, result, result1, result2, reverse)" } },
  tolerance = { float32 = { 1e-5, 1e-5 }, float16 = { 2e-3, 2e-3 }, bfloat16 = { 2e-2, 2e-2 }, why = "rounded at each step" },
  none = "decompose says the values",
  samples = {
    "randn(3,2,8), randn(8,2), randn(2,2), randn(2,2)", "randn(2,9,12), randn(12,3), randn(9,3), randn(9,3), true",
    "randn(1,1,20), randn(20,5), randn(1,5), randn(1,5)", "randn(2,0,8), randn(8,2), randn(0,2), randn(0,2)",
  },
  errors = {
    { "randn(0,2,8), randn(8,2), randn(2,2), randn(2,2)", "empty" },
    { "randn(3,2,9), randn(9,2), randn(2,2), randn(2,2)", "4 %* 2 columns" },
    { "randn(3,2,8), randn(8,3), randn(2,2), randn(2,2)", "weight" }, { "randn(3,8), randn(8,2), randn(2,2), randn(2,2)", "dimensions" },
    { "randn(3,2,8), randn(8,2), randn(2,2), randn(3,2)", "c0" },
  },
  doc = "All steps of an LSTM: input (T, N, 4 H), the projected inputs, weight (4 H, H), states h0 and c0 (N, H). Gates \z
    stand in the order input, forget, cell, output. Gives h and c of every step (T, N, H) and the activated gates \z
    (T, N, 4 H). reverse: from the last step to the first." },
{ "lstm_direction(Tensor input, Tensor weight_ih, Tensor? bias, Tensor weight_hh, Tensor h0, Tensor c0, bool reverse=false) -> (Tensor, Tensor)",
  kind = "composite",
  expr = [[
    local out, cells, gates = lstm_layer(linear(input, weight_ih, bias), weight_hh, h0, c0, reverse)
    return out, cells]],
  grad = "composite",
  none = "lstm_layer has one",
  samples = {
    "randn(3,2,5), randn(8,5), randn(8), randn(8,2), randn(2,2), randn(2,2)",
    "randn(2,3,4), randn(12,4), nil, randn(12,3), randn(3,3), randn(3,3), true",
  },
  errors = { { "randn(3,2,5), randn(8,4), nil, randn(8,2), randn(2,2), randn(2,2)", "cannot be multiplied" } },
  doc = "One direction of an LSTM's layer: input (T, N, I), weight_ih (4 H, I), bias (4 H) the sum of both, weight_hh \z
    (4 H, H), states h0 and c0 (N, H). Gives h and c of every step (T, N, H). reverse: from the last step to the first." },
{ "lstm_layer_backward(Tensor? grad_output, Tensor? grad_cells, Tensor? grad_gates, Tensor weight, Tensor h0, Tensor c0, Tensor output, Tensor cells, Tensor gates, bool reverse) -> (Tensor, Tensor, Tensor, Tensor)",
  kind = "fused",
  dims = {
    gates = "T N G : float", h0 = "N H : gates", weight = "G H : gates", c0 = "N H : gates", output = "T N H : gates",
    cells = "T N H : gates", grad_output = "T N H : gates", grad_cells = "T N H : gates", grad_gates = "T N G : gates",
  },
  out = { "T N G : gates", "G H : gates", "N H : gates", "N H : gates" },
  check = { sequence[1], sequence[2], four_gates },
  keep = true,
  decompose = "return lstm_gradients(grad_output, grad_cells, grad_gates, weight, h0, c0, output, cells, gates, reverse)",
  grad = "unimplemented",
  tolerance = { float32 = { 1e-5, 1e-5 }, float16 = { 1e-2, 1e-2 }, bfloat16 = { 1e-1, 1e-1 }, why = "rounded at each step" },
  none = "decompose says the values",
  samples = {
    "randn(3,2,2), nil, nil, randn(8,2), randn(2,2), randn(2,2), randn(3,2,2), randn(3,2,2), rand(3,2,8), false",
    "randn(2,9,3), randn(2,9,3), randn(2,9,12), randn(12,3), randn(9,3), randn(9,3), randn(2,9,3), randn(2,9,3), rand(2,9,12), true",
    "nil, randn(1,1,5), nil, randn(20,5), randn(1,5), randn(1,5), randn(1,1,5), randn(1,1,5), rand(1,1,20), false",
  },
  errors = {
    { "randn(3,2,2), nil, nil, randn(8,2), randn(2,2), randn(2,2), randn(3,2,2), randn(3,2,2), rand(3,2,9), false", "weight|columns" },
    { "randn(3,2,3), nil, nil, randn(8,2), randn(2,2), randn(2,2), randn(3,2,2), randn(3,2,2), rand(3,2,8), false", "grad_output" },
  },
  doc = "Derivatives of lstm_layer by input, weight, h0 and c0." },
{ "gru_layer(Tensor input, Tensor weight, Tensor? bias, Tensor h0, bool reverse=false) -> (Tensor, Tensor)",
  kind = "fused", amp = "low",
  dims = { input = "T N G : float", h0 = "N H : input", weight = "G H : input", bias = "G : input" },
  out = { "T N H", "T N (H * 4)" },
  check = { sequence[1], sequence[2], three_gates },
  keep = true,
  decompose = [[
    local x, h = when(reverse, flip(input, list(0)), input), h0.shape[1]
    local rows = fold(unsqueeze(op.cat(tensors(h0, zeros_of(h0, list(h0.shape[0], h * 4), none)), 1), 0), x.shape[0],
      function(rows, k)
        local before, xs = narrow(select(rows, 0, k), 1, 0, h), select(x, 0, k)
        local product = matmul(before, t(weight))
        local y = when(given(bias), product + bias, product)
        local r = sigmoid(narrow(xs, 1, 0, h) + narrow(y, 1, 0, h))
        local z = sigmoid(narrow(xs, 1, h, h) + narrow(y, 1, h, h))
        local hidden = narrow(y, 1, h * 2, h)
        local n = tanh(narrow(xs, 1, h * 2, h) + r * hidden)
        return op.cat(tensors(rows, unsqueeze(op.cat(tensors(n + z * (before - n), r, z, n, hidden), 1), 0)), 0)
      end)
    local all = narrow(rows, 0, 1, x.shape[0])
    local y = when(reverse, flip(all, list(0)), all)
    return narrow(y, 2, 0, h), narrow(y, 2, h, h * 4)]],
  grad = { ["input, weight, bias, h0"] = {
    once = "gru_layer_backward(grad, grad1, weight, h0, result, result1, reverse)",
    again = "gru_gradients(grad, grad1, weight, h0, result, result1, reverse)" } },
  tolerance = { float32 = { 1e-5, 1e-5 }, float16 = { 2e-3, 2e-3 }, bfloat16 = { 2e-2, 2e-2 }, why = "rounded at each step" },
  none = "decompose says the values",
  samples = {
    "randn(3,2,6), randn(6,2), randn(6), randn(2,2)", "randn(2,9,9), randn(9,3), nil, randn(9,3), true",
    "randn(1,1,15), randn(15,5), randn(15), randn(1,5)",
  },
  errors = {
    { "randn(0,2,6), randn(6,2), nil, randn(2,2)", "empty" }, { "randn(3,2,8), randn(8,2), nil, randn(2,2)", "3 %* 2 columns" },
    { "randn(3,2,6), randn(6,2), randn(5), randn(2,2)", "bias" },
  },
  doc = "All steps of a GRU: input (T, N, 3 H), the projected inputs, weight (3 H, H) and bias (3 H) of the hidden part, \z
    state h0 (N, H). Gates stand in the order reset, update, new. Gives h of every step (T, N, H), and the activated gates \z
    with the hidden part of the third behind them (T, N, 4 H). reverse: from the last step to the first." },
{ "gru_direction(Tensor input, Tensor weight_ih, Tensor? bias_ih, Tensor weight_hh, Tensor? bias_hh, Tensor h0, bool reverse=false) -> Tensor",
  kind = "composite",
  expr = [[
    local out, gates = gru_layer(linear(input, weight_ih, bias_ih), weight_hh, bias_hh, h0, reverse)
    return out]],
  grad = "composite",
  none = "gru_layer has one",
  samples = {
    "randn(3,2,5), randn(6,5), randn(6), randn(6,2), randn(6), randn(2,2)",
    "randn(2,3,4), randn(9,4), nil, randn(9,3), nil, randn(3,3), true",
  },
  errors = { { "randn(3,2,5), randn(6,4), nil, randn(6,2), nil, randn(2,2)", "cannot be multiplied" } },
  doc = "One direction of a GRU's layer: input (T, N, I), weight_ih (3 H, I), bias_ih (3 H), weight_hh (3 H, H), bias_hh \z
    (3 H), state h0 (N, H). Gives h of every step (T, N, H). reverse: from the last step to the first." },
{ "gru_layer_backward(Tensor? grad_output, Tensor? grad_gates, Tensor weight, Tensor h0, Tensor output, Tensor gates, bool reverse) -> (Tensor, Tensor, Tensor, Tensor)",
  kind = "fused",
  dims = {
    h0 = "N H : float", weight = "G H : h0", output = "T N H : h0", gates = "T N F : h0", grad_output = "T N H : h0",
    grad_gates = "T N F : h0",
  },
  out = { "T N G : h0", "G H : h0", "G : h0", "N H : h0" },
  check = { sequence[1], sequence[2], three_gates, { "equal(F, H * 4)", "gates must have 4 * {H} columns, got {F}" } },
  keep = true,
  decompose = "return gru_gradients(grad_output, grad_gates, weight, h0, output, gates, reverse)",
  grad = "unimplemented",
  tolerance = { float32 = { 1e-5, 1e-5 }, float16 = { 1e-2, 1e-2 }, bfloat16 = { 1e-1, 1e-1 }, why = "rounded at each step" },
  none = "decompose says the values",
  samples = {
    "randn(3,2,2), nil, randn(6,2), randn(2,2), randn(3,2,2), rand(3,2,8), false",
    "randn(2,9,3), randn(2,9,12), randn(9,3), randn(9,3), randn(2,9,3), rand(2,9,12), true",
  },
  errors = { { "randn(3,2,2), nil, randn(6,2), randn(2,2), randn(3,2,2), rand(3,2,6), false", "4 %* 2 columns" } },
  doc = "Derivatives of gru_layer by input, weight, bias and h0." },
}
