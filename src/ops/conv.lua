-- Convolution and pooling over (N, C, H, W) or (C, H, W), and over (N, C, L) or (C, L) in one dimension. Sizes given
-- as lists take one number for all dimensions. Each derivative of a convolution is a convolution again, and pooling
-- by means is linear: these ops are closed under derivation.
-- The sizes that a tensor is brought to.
local upsampled = {
  { "both(ge(self.ndim, 3), equal(length(size), self.ndim - 2))",
    "size must hold one number for each dimension after (N, C), got {length(size)} for {self.ndim} dimensions" },
  { "ge(least(size), 1)", "size must be positive, got {least(size)}" },
  { "ge(least(drop_n(self.shape, 2)), 1)",
    "a dimension after (N, C) is empty: there is nothing to interpolate; the shape is {self.shape}" },
}
-- A tensor of one dimension is ((N,) C, L).
local line_self = {
  "either(equal(self.ndim, 2), equal(self.ndim, 3))",
  "self must have 2 or 3 dimensions ((N,) C, L), got {self.ndim}",
}
local line_input = {
  "either(equal(input.ndim, 2), equal(input.ndim, 3))",
  "input must have 2 or 3 dimensions ((N,) C, L), got {input.ndim}",
}
-- The windows of adaptive pooling differ in size: positions in the largest, and where one stands in self.
local adaptive_places = {
  { "ky", "floor_divide(self.shape[-2] - 1, sizes[-2]) + 2" }, { "kx", "floor_divide(self.shape[-1] - 1, sizes[-1]) + 2" },
}
local adaptive_window = [[
    local h, w, rows, columns = self.shape[-2], self.shape[-1], sizes[-2], sizes[-1]
    local y, x = floor_divide(out[-2] * h, rows) + ky, floor_divide(out[-1] * w, columns) + kx
    local inside = both(lt(y, floor_divide((out[-2] + 1) * h + rows - 1, rows)),
      lt(x, floor_divide((out[-1] + 1) * w + columns - 1, columns)))
]]

-- Of convolutions: an image N? C H W and a weight K D kh kw. Kernels count positions in 32 bits.
local by_groups = {
  "both(ge(groups, 1), both(equal(remainder(C, groups), 0), equal(remainder(K, groups), 0)))",
  "groups must divide the channels of input ({C}) and of weight ({K}), got {groups}",
}
local in_channels = {
  "either(lt(groups, 1), equal(C, D * groups))",
  "input must have {D * groups} channels to go with a weight of {D} channels and groups {groups}, got {C}",
}
local sizes = {
  [[both(both(both(gt(K, 0), gt(D, 0)), both(le(K, 2147483647), le(D, 2147483647))),
    both(le(C, 2147483647), le(product(N), 2147483647)))]],
  "sizes must be less than 2^31, and those of the weight not 0, got an image {join(N, list(C, H, W))} and a weight {list(K, D, kh, kw)}",
}
-- Of pooling.
local image = { "gt(least(list(H, W)), 0)", "an image must not be empty, got {list(H, W)}" }
local divisor = { "either(negate(given(divisor_override)), ne(divisor_override, 0))", "divisor_override must not be 0" }

return {
{ "conv2d(Tensor input, Tensor weight, Tensor? bias=none, int[2]? stride=1 >= 1, int[2]? padding=0 >= 0, int[2]? dilation=1 >= 1, int groups=1) -> Tensor",
  kind = "window", amp = "low",
  dims = { input = "N? C H W : float", weight = "K D kh kw : input", bias = "K : input" },
  let = { ["*O"] = "window_out(list(H, W), list(kh, kw), stride, padding, dilation, none)" }, out = "N? K *O",
  check = { in_channels, by_groups, sizes },
  window = { stride = "stride", padding = "padding", dilation = "dilation" },
  over = { { "c", "weight.shape[1]" }, { "ky", "weight.shape[2]" }, { "kx", "weight.shape[3]" } },
  map = [[
    local group = floor_divide(out[-3], weight.shape[0] / groups)
    local y, x = pixel(0, out[-2], ky), pixel(1, out[-1], kx)
    local inside = both(within(y, input.shape[-2]), within(x, input.shape[-1]))
    local from = at(at(at(out, -3, group * weight.shape[1] + c), -2, y), -1, x)
    return load(input, from, inside, 0) * load(weight, { out[-3], c, ky, kx })]],
  join = "sum", finish = "when(given(bias), s0 + reshape(bias, list(bias.numel, 1, 1)), s0)",
  grad = {
    input = "conv2d_backward_input(grad, weight, input.shape, stride, padding, dilation, groups)",
    weight = "conv2d_backward_weight(grad, input, weight.shape, stride, padding, dilation, groups)",
    bias = "conv_bias_grad(grad)",
  },
  tolerance = { float32 = { 1.3e-6, 1e-4 }, float16 = { 1e-3, 1e-4 }, why = "sums of thousands of products" },
  reference = "conv2d",
  samples = {
    "randn(2,3,5,5), randn(4,3,3,3), randn(4)", "randn(2,4,6,5), randn(6,2,3,2), nil, 2, 1, 1, 2",
    "randn(1,2,7,7), randn(2,2,2,3), randn(2), {1,2}, {0,2}, {2,1}", "randn(4,6,6), randn(4,2,3,3), randn(4), 1, 1, 1, 2",
    "randn(2,3,7,6), randn(6,1,3,3), randn(6), 1, 1, 1, 3", "randn(2,5,4,4), randn(9,5,1,1)", "randn(0,3,5,5), randn(4,3,3,3)",
  },
  errors = {
    { "randn(2,3,5,5), randn(4,2,3,3)", "channels" }, { "randn(2,3,5,5), randn(4,3,3,3), randn(3)", "bias" },
    { "randn(2,3,2,5), randn(4,3,3,3)", "larger than the padded input" },
    { "randn(2,3,5,5), randn(4,3,3,3), nil, 0", "stride" }, { "randn(2,3,5,5), randn(4,3,3,3):double()", "same dtype" },
    { "randn(2,4,5,5), randn(3,2,3,3), nil, 1, 0, 1, 2", "groups" }, { "randn(5,5), randn(4,3,3,3)", "dimensions" },
    { "tensor({1,2},{dtype=int64}), randn(4,3,3,3)", "float|dimensions" },
  },
  doc = "Cross-correlation of images (N, C, H, W) with weight (K, C / groups, kh, kw), plus bias (K). stride and \z
    dilation are 1, padding 0 where not given." },
{ "conv2d_backward_input(Tensor grad_output, Tensor weight, int[] input_size, int[2]? stride=1 >= 1, int[2]? padding=0 >= 0, int[2]? dilation=1 >= 1, int groups=1) -> Tensor",
  kind = "window", amp = "low",
  dims = { grad_output = "N? K *O : float", weight = "K D kh kw : grad_output", input_size = "N? C H W" },
  let = { ["*O"] = "window_out(list(H, W), list(kh, kw), stride, padding, dilation, none)" }, out = "*input_size",
  check = { in_channels, by_groups, sizes },
  window = { stride = "stride", padding = "padding", dilation = "dilation" },
  over = { { "k", "weight.shape[0] / groups" }, { "ky", "weight.shape[2]" }, { "kx", "weight.shape[3]" } },
  map = [[
    local channels, n = weight.shape[1], weight.shape[0] / groups
    local row = floor_divide(out[-3], channels) * n + k
    local y, hits_y = hit(0, out[-2], ky, grad_output.shape[-2])
    local x, hits_x = hit(1, out[-1], kx, grad_output.shape[-1])
    local g = load(grad_output, at(at(at(out, -3, row), -2, y), -1, x), both(hits_y, hits_x), 0)
    return g * load(weight, { row, remainder(out[-3], channels), ky, kx })]],
  join = "sum",
  grad = {
    grad_output = "conv2d_plain(grad, weight, stride, padding, dilation, groups)",
    weight = "conv2d_backward_weight(grad_output, grad, weight.shape, stride, padding, dilation, groups)",
  },
  tolerance = { float32 = { 1.3e-6, 1e-4 }, float16 = { 1e-3, 1e-4 }, why = "sums of thousands of products" },
  reference = "conv2d_backward_input",
  samples = {
    "randn(2,4,3,3), randn(4,3,3,3), {2,3,5,5}", "randn(2,6,3,3), randn(6,2,3,2), {2,4,6,5}, 2, 1, 1, 2",
    "randn(1,2,5,5), randn(2,2,2,3), {1,2,7,7}, {1,2}, {0,2}, {2,1}", "randn(2,6,7,6), randn(6,1,3,3), {2,3,7,6}, 1, 1, 1, 3",
    "randn(4,2,2), randn(4,3,1,1), {3,5,6}, 3",
  },
  errors = {
    { "randn(2,4,3,4), randn(4,3,3,3), {2,3,5,5}", "shape" }, { "randn(2,4,3,3), randn(4,3,3,3), {3,5}", "dimensions" },
    { "randn(2,4,3,3), randn(4,3,3,3)", "argument 'input_size'" },
  },
  doc = "Derivative of conv2d by its input, of the size input_size: a transposed convolution." },
{ "conv2d_backward_weight(Tensor grad_output, Tensor input, int[] weight_size, int[2]? stride=1 >= 1, int[2]? padding=0 >= 0, int[2]? dilation=1 >= 1, int groups=1) -> Tensor",
  kind = "window", amp = "low",
  dims = { grad_output = "N? K *O : input", input = "N? C H W : float", weight_size = "K D kh kw" },
  let = { ["*O"] = "window_out(list(H, W), list(kh, kw), stride, padding, dilation, none)" }, out = "*weight_size",
  check = { in_channels, by_groups, sizes },
  window = { stride = "stride", padding = "padding", dilation = "dilation" },
  over = {
    { "n", "input.ndim == 4 and input.shape[0] or 1" }, { "oy", "grad_output.shape[-2]" }, { "ox", "grad_output.shape[-1]" },
  },
  map = [[
    local lead, group = input.ndim == 4 and { n } or {}, floor_divide(out[0], grad_output.shape[-3] / groups)
    local y, x = pixel(0, oy, out[2]), pixel(1, ox, out[3])
    local inside = both(within(y, input.shape[-2]), within(x, input.shape[-1]))
    local v = load(input, join(lead, { group * sizes[1] + out[1], y, x }), inside, 0)
    return load(grad_output, join(lead, { out[0], oy, ox })) * v]],
  join = "sum",
  grad = {
    grad_output = "conv2d_plain(input, grad, stride, padding, dilation, groups)",
    input = "conv2d_backward_input(grad_output, grad, input.shape, stride, padding, dilation, groups)",
  },
  tolerance = { float32 = { 1.3e-6, 1e-4 }, float16 = { 1e-3, 1e-4 }, why = "sums of thousands of products" },
  reference = "conv2d_backward_weight",
  samples = {
    "randn(2,4,3,3), randn(2,3,5,5), {4,3,3,3}", "randn(2,6,3,3), randn(2,4,6,5), {6,2,3,2}, 2, 1, 1, 2",
    "randn(1,2,5,5), randn(1,2,7,7), {2,2,2,3}, {1,2}, {0,2}, {2,1}", "randn(2,6,7,6), randn(2,3,7,6), {6,1,3,3}, 1, 1, 1, 3",
    "randn(4,2,2), randn(3,5,6), {4,3,1,1}, 3", "randn(0,4,3,3), randn(0,3,5,5), {4,3,3,3}",
  },
  errors = {
    { "randn(2,4,3,4), randn(2,3,5,5), {4,3,3,3}", "shape" }, { "randn(2,4,3,3), randn(2,3,5,5), {4,3,3}", "dimensions" },
    { "randn(2,4,3,3), randn(2,3,5,5)", "argument 'weight_size'" },
  },
  doc = "Derivative of conv2d by its weight, of the size weight_size." },
{ "conv1d(Tensor input, Tensor weight, Tensor? bias=none, int[1]? stride=1 >= 1, int[1]? padding=0 >= 0, int[1]? dilation=1 >= 1, int groups=1) -> Tensor",
  kind = "composite", amp = "low",
  expr = [[
    local y = conv2d(image(input), image(weight), bias, list(1, stride[0]), list(0, padding[0]), list(1, dilation[0]), groups)
    return squeeze(y, -2)]],
  check = {
    { "equal(weight.ndim, 3)",
      "weight must have 3 dimensions (K, C / groups, k), got {weight.ndim}" },
    line_input,
  },
  grad = "composite",
  reference = "conv1d",
  samples = {
    "randn(2,3,8), randn(4,3,3), randn(4)", "randn(2,4,9), randn(6,2,2), nil, 2, 1, 2, 2", "randn(3,8), randn(4,3,3)",
  },
  errors = {
    { "randn(2,3,8), randn(4,2,3)", "channels" }, { "randn(2,3,8,8), randn(4,3,3)", "dimensions" },
    { "randn(2,3,2), randn(4,3,3)", "larger than the padded input" }, { "randn(2,3,8), randn(4,3,3), nil, {1,1}", "stride" },
  },
  doc = "conv2d in one dimension: input (N, C, L), weight (K, C / groups, k)." },
{ "conv_transpose2d(Tensor input, Tensor weight, Tensor? bias=none, int[2]? stride=1 >= 1, int[2]? padding=0 >= 0, int[2]? output_padding=0 >= 0, int groups=1, int[2]? dilation=1 >= 1) -> Tensor",
  kind = "composite", amp = "low",
  expr = [[
    local k, n = input.ndim, weight.shape[1] * groups
    local h = (input.shape[-2] - 1) * stride[0] + dilation[0] * (weight.shape[2] - 1) + 1
    local w = (input.shape[-1] - 1) * stride[1] + dilation[1] * (weight.shape[3] - 1) + 1
    local size = list(n, h - padding[0] * 2 + output_padding[0], w - padding[1] * 2 + output_padding[1])
    -- With a bias, halves are summed in float32 and rounded once. On CUDA that would give up the products of halves.
    local once = both(given(bias), both(same_dtype(input, weight), is_on_cpu(input)))
    local x, v = when(once, as(input, working(input)), input), when(once, as(weight, working(input)), weight)
    -- No convolution has this input as its result: it is cut out of the one without padding.
    local beyond = either(ge(output_padding[0], stride[0]), ge(output_padding[1], stride[1]))
    local lead = first_n(input.shape, k - 3)
    local whole = conv2d_backward_input(x, v, join(lead, list(n, h, w)), stride, none, dilation, groups)
    local edges = list(0 - padding[1], output_padding[1] - padding[1], 0 - padding[0], output_padding[0] - padding[0])
    local y = when(beyond, pad(whole, edges, "constant", 0),
      conv2d_backward_input(x, v, join(lead, size), stride, padding, dilation, groups))
    return as(when(given(bias), y + view(bias, list(n, 1, 1)), y), input.dtype)]],
  check = {
    { "either(equal(input.ndim, 3), equal(input.ndim, 4))",
      "input must have 3 or 4 dimensions ((N,) C, H, W), got {input.ndim}" },
    { "equal(weight.ndim, 4)",
      "weight must have 4 dimensions (C, K / groups, kh, kw), got {weight.ndim}" },
    { "equal(input.shape[-3], weight.shape[0])",
      "input must have the {weight.shape[0]} channels of weight, got {input.shape[-3]}" },
    { "ge(groups, 1)", "groups must be at least 1, got {groups}" },
    { "le(groups, 4611686018427387904 / larger(weight.shape[1], 1))", "groups is too large: {groups}" },
    { "either(lt(output_padding[0], stride[0]), lt(output_padding[0], dilation[0]))",
      "output_padding must be smaller than stride or dilation, got {output_padding[0]}" },
    { "either(lt(output_padding[1], stride[1]), lt(output_padding[1], dilation[1]))",
      "output_padding must be smaller than stride or dilation, got {output_padding[1]}" },
    { "ge(transposed_size(input.shape[-2], weight.shape[2], stride[0], padding[0], output_padding[0], dilation[0]), 1)",
      "the result would have size {transposed_size(input.shape[-2], weight.shape[2], stride[0], padding[0], output_padding[0], dilation[0])} in its second dimension from the end: padding is too large" },
    { "ge(transposed_size(input.shape[-1], weight.shape[3], stride[1], padding[1], output_padding[1], dilation[1]), 1)",
      "the result would have size {transposed_size(input.shape[-1], weight.shape[3], stride[1], padding[1], output_padding[1], dilation[1])} in its last dimension: padding is too large" },
    { "either(negate(given(bias)), same_dtype(bias, input))",
      "expected the same dtype, got input {input.dtype} and bias {bias.dtype}", "type" },
    { "either(negate(given(bias)), both(equal(bias.ndim, 1), equal(bias.shape[0], weight.shape[1] * groups)))",
      "bias must have shape [{weight.shape[1] * groups}]" },
  },
  grad = "composite",
  tolerance = {
    float32 = { 1.3e-6, 1e-4 }, float16 = { 1e-3, 2e-3 }, bfloat16 = { 1.6e-2, 2e-2 },
    why = "the bias is added to a rounded result",
  },
  reference = "conv_transpose2d",
  samples = {
    "randn(2,3,4,4), randn(3,4,3,3), randn(4)", "randn(2,4,3,3), randn(4,2,3,2), nil, 2, 1, 1, 2",
    "randn(3,4,4), randn(3,2,2,2), randn(2), 2, 0, 0, 1, 2", "randn(2,2,3,2), randn(2,2,2,2), randn(2), 1, {0,1}, 1, 1, 2",
  },
  errors = {
    { "randn(2,3,4,4), randn(4,3,3,3)", "channels" }, { "randn(2,3,4,4), randn(3,4,3,3), nil, 1, 0, 1", "output_padding" },
    { "randn(2,3), randn(3,4,3,3)", "dimensions" }, { "randn(2,3,4,4), randn(3,4,3,3), randn(3)", "bias" },
  },
  doc = "The transpose of conv2d as a map: input (N, C, H, W), weight (C, K / groups, kh, kw). Each side grows to \z
    (H - 1) stride - 2 padding + dilation (kh - 1) + 1 + output_padding." },
{ "conv_transpose1d(Tensor input, Tensor weight, Tensor? bias=none, int[1]? stride=1 >= 1, int[1]? padding=0 >= 0, int[1]? output_padding=0 >= 0, int groups=1, int[1]? dilation=1 >= 1) -> Tensor",
  kind = "composite", amp = "low",
  expr = [[
    local y = conv_transpose2d(image(input), image(weight), bias, list(1, stride[0]), list(0, padding[0]),
      list(0, output_padding[0]), groups, list(1, dilation[0]))
    return squeeze(y, -2)]],
  check = {
    { "equal(weight.ndim, 3)",
      "weight must have 3 dimensions (C, K / groups, k), got {weight.ndim}" },
    line_input,
  },
  grad = "composite",
  tolerance = {
    float32 = { 1.3e-6, 1e-4 }, float16 = { 1e-3, 2e-3 }, bfloat16 = { 1.6e-2, 2e-2 },
    why = "the bias is added to a rounded result",
  },
  reference = "conv_transpose1d",
  samples = { "randn(2,3,4), randn(3,4,3), randn(4)", "randn(2,4,3), randn(4,2,3), nil, 2, 1, 1, 2" },
  errors = {
    { "randn(2,3,4), randn(4,3,3)", "channels" }, { "randn(2,3,4), randn(3,4,3), nil, 1, 0, 1", "output_padding" },
    { "randn(2), randn(3,4,3)", "dimensions" },
  },
  doc = "conv_transpose2d in one dimension." },
{ "im2col(Tensor self, int[2] kernel_size >= 1, int[2]? dilation=1 >= 1, int[2]? padding=0 >= 0, int[2]? stride=1 >= 1) -> Tensor",
  kind = "window",
  dims = { self = "N? C H W" }, let = { ["*O"] = "window_out(list(H, W), kernel_size, stride, padding, dilation, none)" },
  out = "N? (C * kernel_size[0] * kernel_size[1]) (O[0] * O[1])",
  check = { { "gt(C, 0)", "self must not be empty but in its batch dimension, got {self.shape}" } },
  window = {
    size = "kernel_size", stride = "stride", padding = "padding", dilation = "dilation",
  },
  loop = [[
    local kh, kw, columns = window.size[0], window.size[1], windows(1, self.shape[-1])
    local channel, place = floor_divide(out[-2], kh * kw), remainder(out[-2], kh * kw)
    local y = pixel(0, floor_divide(out[-1], columns), floor_divide(place, kw))
    local x = pixel(1, remainder(out[-1], columns), remainder(place, kw))
    local inside = both(within(y, self.shape[-2]), within(x, self.shape[-1]))
    return load(self, join(first(out, self.ndim - 3), { channel, y, x }), inside, 0)]],
  grad = { self = "im2col_backward(grad, self.shape, kernel_size, dilation, padding, stride)" },
  reference = "im2col",
  samples = { "randn(2,3,5,5), 3", "randn(2,2,6,5), {2,3}, {2,1}, {1,0}, 2", "randn(3,5,5), {3,2}" },
  errors = {
    { "randn(2,3,2,5), 3", "larger than the padded input" }, { "randn(5,5), 3", "dimensions" },
    { "randn(2,3,5,5), 0", "kernel_size" },
  },
  doc = "The windows of images (N, C, H, W) as columns (N, C kh kw, L); F.unfold." },
{ "col2im(Tensor self, int[2] output_size >= 1, int[2] kernel_size >= 1, int[2]? dilation=1 >= 1, int[2]? padding=0 >= 0, int[2]? stride=1 >= 1) -> Tensor",
  kind = "window",
  dims = { self = "N? R L" },
  let = { A = "kernel_size[0] * kernel_size[1]", ["*O"] = "window_out(output_size, kernel_size, stride, padding, dilation, none)" },
  out = "N? (floor_divide(R, A)) *output_size",
  check = {
    { "both(gt(R, 0), equal(remainder(R, A), 0))",
      "the rows of self, {R}, must be a multiple of the kernel's {A} elements" },
    { "equal(L, O[0] * O[1])", "self must have {O[0] * O[1]} columns ({O[0]} x {O[1]}), got {L}" },
  },
  window = {
    size = "kernel_size", stride = "stride", padding = "padding", dilation = "dilation",
  },
  over = { { "ky", "window.size[0]" }, { "kx", "window.size[1]" } },
  map = [[
    local rows, columns = windows(0, sizes[-2]), windows(1, sizes[-1])
    local y, hits_y = hit(0, out[-2], ky, rows)
    local x, hits_x = hit(1, out[-1], kx, columns)
    local row = (out[-3] * window.size[0] + ky) * window.size[1] + kx
    return load(self, join(first(out, self.ndim - 2), { row, y * columns + x }), both(hits_y, hits_x), 0)]],
  join = "sum",
  grad = { self = "im2col(grad, kernel_size, dilation, padding, stride)" },
  reference = "col2im",
  samples = { "randn(2,27,9), 5, 3", "randn(2,12,6), {6,5}, {2,3}, {2,1}, {1,0}, 2" },
  errors = {
    { "randn(2,26,9), 5, 3", "multiple" }, { "randn(2,27,8), 5, 3", "columns" }, { "randn(27), 5, 3", "dimensions" },
  },
  doc = "Columns (N, C kh kw, L) added up where they came from in images (N, C, *output_size); F.fold." },
{ "max_pool2d_with_indices(Tensor self, int[2] kernel_size >= 1, int[2]? stride=kernel_size >= 1, int[2]? padding=0 >= 0, int[2]? dilation=1 >= 1, bool ceil_mode=false, index_base) -> (Tensor, Tensor)",
  kind = "window",
  dims = { self = "N? C H W : float" },
  let = { ["*O"] = "window_out(list(H, W), kernel_size, stride, padding, dilation, ceil_mode)" }, out = { "N? C *O", "N? C *O : int64" },
  window = {
    size = "kernel_size", stride = "stride", padding = "padding", dilation = "dilation",
  },
  over = { { "ky", "window.size[0]" }, { "kx", "window.size[1]" } },
  map = [[
    local y, x = pixel(0, out[-2], ky), pixel(1, out[-1], kx)
    local inside = both(within(y, self.shape[-2]), within(x, self.shape[-1]))
    return load(self, at(at(out, -2, y), -1, x), inside, -inf), where(inside, y * self.shape[-1] + x, -1)]],
  join = "argmax_pool", finish = "s0, s1 + index_base",
  grad = {
    self = "max_pool2d_backward(grad, result1, self.shape, kernel_size, stride, padding, dilation, index_base)",
  },
  reference = "max_pool2d_with_indices",
  samples = {
    "randn(2,3,6,6), 2", "randn(2,3,7,6), {3,2}, 2, 1", "randn(3,7,7), 2, 1, 0, {2,3}", "randn(1,2,7,8), 3, 2, 1, 1, true",
    "randn(0,3,6,6), 2", "randn(2,3,4,6), 3, 2, 0, 2, true",
  },
  errors = {
    { "randn(2,3,6,6), 2, 2, 2", "half" }, { "randn(6), 2", "dimensions" }, { "randn(2,3,6,6)", "argument 'kernel_size'" },
    { "randn(2,3,1,6), 2", "larger than the padded input" }, { "randn(2,3,1,6), {2,1}, 1, {1,0}, {2,1}", "steps over" },
  },
  doc = "The largest element of every window, and its position in the flattened image (H W), from index_base. NaN wins, the last of several." },
{ "max_pool2d_backward(Tensor grad_output, IndexTensor indices, int[] input_size, int[2]? kernel_size=none >= 1, int[2]? stride=kernel_size >= 1, int[2]? padding=0 >= 0, int[2]? dilation=1 >= 1, index_base) -> Tensor",
  kind = "window",
  dims = { grad_output = "N? C P Q : float", indices = "N? C P Q", input_size = "N? C H W" },
  let = { -- of whatever ceil_mode: true allows all that either does
    ["*O"] = "when(given(kernel_size), window_out(list(H, W), kernel_size, stride, padding, dilation, true), list(P, Q))",
  },
  out = "*input_size", check = { image },
  window = {},
  store = "add", over = "grad_output.shape", start = "zeros_of(grad_output, input_size, none)",
  loop = [[
    local position, width = load(indices, out) - index_base, input_size[-1]
    return at(at(out, -2, floor_divide(position, width)), -1, remainder(position, width)), load(grad_output, out)]],
  grad = { grad_output = "max_pool2d_pick(grad, indices, index_base)" },
  reference = "max_pool2d_backward",
  samples = {
    "randn(1,2,2,2), tensor({{{{1,3},{10,16}},{{2,4},{14,12}}}}, {dtype=int64}), {1,2,4,4}, 2",
  },
  errors = {
    { "randn(1,2,2,2), randint(1,2,{1,2,2,3}), {1,2,4,4}, 2", "shape" },
    { "randn(1,2,2,2), randint(99,100,{1,2,2,2}), {1,2,4,4}, 2", "out of range" },
    { "randn(1,2,2,2), randn(1,2,2,2), {1,2,4,4}, 2", "integer" },
  },
  doc = "Derivative of max_pool2d_with_indices. Without kernel_size the windows are those of adaptive pooling." },
{ "max_pool2d(Tensor self, int[2] kernel_size >= 1, int[2]? stride=kernel_size >= 1, int[2]? padding=0 >= 0, int[2]? dilation=1 >= 1, bool ceil_mode=false) -> Tensor",
  kind = "composite",
  expr = [[
    local y, positions = max_pool2d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode, 0)
    return y]],
  grad = "composite",
  reference = "max_pool2d",
  samples = { "randn(2,3,6,6), 2", "randn(2,3,7,6), {3,2}, 2, 1", "randn(3,7,7), 2, 1, 0, {2,3}, true" },
  errors = {
    { "randn(2,3,6,6), 2, 2, 2", "half" }, { "randn(6), 2", "dimensions" }, { "randn(2,3,6,6)", "argument 'kernel_size'" },
  },
  doc = "The largest element of every window; stride is kernel_size where not given." },
{ "max_pool1d_with_indices(Tensor self, int[1] kernel_size >= 1, int[1]? stride=kernel_size >= 1, int[1]? padding=0 >= 0, int[1]? dilation=1 >= 1, bool ceil_mode=false, index_base) -> (Tensor, Tensor)",
  kind = "composite",
  expr = [[
    local y, positions = max_pool2d_with_indices(image(self), list(1, kernel_size[0]), list(1, stride[0]), list(0, padding[0]),
      list(1, dilation[0]), ceil_mode, index_base)
    return squeeze(y, -2), squeeze(positions, -2)]],
  check = { line_self },
  grad = "composite",
  reference = "max_pool1d_with_indices",
  samples = { "randn(2,3,6), 2", "randn(3,7), 3, 2, 1, 1, true" },
  errors = {
    { "randn(2,3,6), 2, 2, 2", "half" }, { "randn(6), 2", "dimensions" }, { "randn(2,3,6)", "argument 'kernel_size'" },
  },
  doc = "max_pool2d_with_indices in one dimension." },
{ "max_pool1d(Tensor self, int[1] kernel_size >= 1, int[1]? stride=kernel_size >= 1, int[1]? padding=0 >= 0, int[1]? dilation=1 >= 1, bool ceil_mode=false) -> Tensor",
  kind = "composite",
  expr = [[
    local y, positions = max_pool2d_with_indices(image(self), list(1, kernel_size[0]), list(1, stride[0]), list(0, padding[0]),
      list(1, dilation[0]), ceil_mode, 0)
    return squeeze(y, -2)]],
  check = { line_self },
  grad = "composite",
  reference = "max_pool1d",
  samples = { "randn(2,3,6), 2", "randn(3,7), 3, 2, 1, 1, true" },
  errors = {
    { "randn(2,3,6), 2, 2, 2", "half" }, { "randn(6), 2", "dimensions" }, { "randn(2,3,6)", "argument 'kernel_size'" },
  },
  doc = "max_pool2d in one dimension." },
{ "avg_pool2d(Tensor self, int[2] kernel_size >= 1, int[2]? stride=kernel_size >= 1, int[2]? padding=0 >= 0, bool ceil_mode=false, bool count_include_pad=true, int? divisor_override=none) -> Tensor",
  kind = "window",
  dims = { self = "N? C H W : float" },
  let = { ["*O"] = "window_out(list(H, W), kernel_size, stride, padding, list(1, 1), ceil_mode)" }, out = "N? C *O",
  check = { divisor },
  window = {
    size = "kernel_size", stride = "stride", padding = "padding", dilation = "list(1, 1)",
  },
  over = { { "ky", "window.size[0]" }, { "kx", "window.size[1]" } },
  map = [[
    local h, w = self.shape[-2], self.shape[-1]
    local y, x = pixel(0, out[-2], ky), pixel(1, out[-1], kx)
    local inside = both(within(y, h), within(x, w))
    local padded = both(lt(y, h + window.padding[0]), lt(x, w + window.padding[1]))
    return load(self, at(at(out, -2, y), -1, x), inside, 0), where(count_include_pad and padded or inside, 1, 0)]],
  join = "sum", finish = "s0 / when(given(divisor_override), divisor_override, s1)",
  grad = {
    self = "avg_pool2d_backward(grad, self.shape, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)",
  },
  reference = "avg_pool2d",
  samples = {
    "randn(2,3,6,6), 2", "randn(2,3,7,6), {3,2}, 2, 1", "randn(3,7,8), 3, 2, 1, true, false",
    "randn(1,2,7,7), 3, 2, 0, true, true, 5",
  },
  errors = {
    { "randn(2,3,6,6), 2, 2, 2", "half" }, { "randn(6), 2", "dimensions" },
    { "randn(2,3,6,6), 2, 2, 0, false, true, 0", "divisor_override" },
  },
  doc = "The mean of every window; stride is kernel_size where not given." },
{ "avg_pool2d_backward(Tensor grad_output, int[] input_size, int[2] kernel_size >= 1, int[2]? stride=kernel_size >= 1, int[2]? padding=0 >= 0, bool ceil_mode=false, bool count_include_pad=true, int? divisor_override=none) -> Tensor",
  kind = "window",
  dims = { grad_output = "N? C *O : float", input_size = "N? C H W" },
  let = { ["*O"] = "window_out(list(H, W), kernel_size, stride, padding, list(1, 1), ceil_mode)" }, out = "*input_size",
  check = { divisor },
  window = {
    size = "kernel_size", stride = "stride", padding = "padding", dilation = "list(1, 1)",
  },
  over = { { "ky", "window.size[0]" }, { "kx", "window.size[1]" } },
  map = [[
    local y, hits_y = hit(0, out[-2], ky, grad_output.shape[-2])
    local x, hits_x = hit(1, out[-1], kx, grad_output.shape[-1])
    local function extent(d, o, n) -- how many positions the window counts
      local from, to = pixel(d, o, 0), minimum(pixel(d, o, window.size[d]), n + window.padding[d])
      return count_include_pad and to - from or minimum(to, n) - maximum(from, 0)
    end
    local hits = both(hits_y, hits_x)
    local n = divisor_override or where(hits, extent(0, y, sizes[-2]) * extent(1, x, sizes[-1]), 1)
    return load(grad_output, at(at(out, -2, y), -1, x), hits, 0) / n]],
  join = "sum",
  grad = {
    grad_output = "avg_pool2d(grad, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)",
  },
  reference = "avg_pool2d_backward",
  samples = { "randn(2,3,3,3), {2,3,6,6}, 2", "randn(2,3,4,3), {2,3,7,5}, {3,2}, 2, 1, true, false" },
  errors = {
    { "randn(2,3,3,4), {2,3,6,6}, 2", "shape" }, { "randn(2,3,3,3), {6}, 2", "dimensions" },
    { "randn(2,3,3,3)", "argument 'input_size'" },
  },
  doc = "Derivative of avg_pool2d." },
{ "avg_pool1d(Tensor self, int[1] kernel_size >= 1, int[1]? stride=kernel_size >= 1, int[1]? padding=0 >= 0, bool ceil_mode=false, bool count_include_pad=true) -> Tensor",
  kind = "composite",
  expr = [[
    local y = avg_pool2d(image(self), list(1, kernel_size[0]), list(1, stride[0]), list(0, padding[0]), ceil_mode,
      count_include_pad, none)
    return squeeze(y, -2)]],
  check = { line_self },
  grad = "composite",
  reference = "avg_pool1d",
  samples = { "randn(2,3,6), 2", "randn(3,7), 3, 2, 1, true, false" },
  errors = {
    { "randn(2,3,6), 2, 2, 2", "half" }, { "randn(6), 2", "dimensions" }, { "randn(2,3,6)", "argument 'kernel_size'" },
  },
  doc = "avg_pool2d in one dimension." },
{ "adaptive_avg_pool2d(Tensor self, int[2] output_size >= -1) -> Tensor",
  kind = "window",
  dims = { self = "N? C H W : float" }, let = { ["*O"] = "list(adaptive(output_size[0], H), adaptive(output_size[1], W))" },
  out = "N? C *O", check = { image },
  window = {},
  over = adaptive_places,
  map = adaptive_window .. [[
    return load(self, at(at(out, -2, y), -1, x), inside, 0), where(inside, 1, 0)]],
  join = "sum", finish = "s0 / s1",
  grad = { self = "adaptive_avg_pool2d_backward(grad, self.shape)" },
  reference = "adaptive_avg_pool2d",
  samples = { "randn(2,3,6,7), {3,4}", "randn(3,5,5), 1", "randn(2,2,4,3), {-1,5}", "randn(1,2,7,5), {3,2}" },
  errors = {
    { "randn(6), 2", "dimensions" }, { "randn(2,3,6,6), {1,2,3}", "output_size" }, { "randn(2,3,6,6)", "argument 'output_size'" },
    { "randn(2,3,0,6), 2", "empty" },
  },
  doc = "Means of output_size windows that cover the image; a size of -1 stays as it is." },
{ "adaptive_avg_pool2d_backward(Tensor grad_output, int[] input_size) -> Tensor",
  kind = "window",
  dims = { grad_output = "N? C P Q : float", input_size = "N? C H W" }, out = "*input_size", check = { image },
  window = {},
  over = {
    { "ky", "floor_divide(grad_output.shape[-2] - 1, sizes[-2]) + 2" },
    { "kx", "floor_divide(grad_output.shape[-1] - 1, sizes[-1]) + 2" },
  },
  map = [[
    local h, w, rows, columns = sizes[-2], sizes[-1], grad_output.shape[-2], grad_output.shape[-1]
    local y, x = floor_divide(out[-2] * rows, h) + ky, floor_divide(out[-1] * columns, w) + kx
    local inside = both(lt(y, floor_divide((out[-2] + 1) * rows + h - 1, h)),
      lt(x, floor_divide((out[-1] + 1) * columns + w - 1, w)))
    local function extent(o, n, m) return floor_divide((o + 1) * n + m - 1, m) - floor_divide(o * n, m) end
    return load(grad_output, at(at(out, -2, y), -1, x), inside, 0) / (extent(y, h, rows) * extent(x, w, columns))]],
  join = "sum",
  grad = { grad_output = "adaptive_avg_pool2d_like(grad, grad_output.shape)" },
  reference = "adaptive_avg_pool2d_backward",
  samples = { "randn(2,3,3,4), {2,3,6,7}", "randn(3,1,1), {3,5,5}" },
  errors = {
    { "randn(2,3,3,4), {2,4,6,7}", "shape" }, { "randn(2,3,3,4), {6,7}", "dimensions" },
    { "randn(2,3,3,4)", "argument 'input_size'" },
  },
  doc = "Derivative of adaptive_avg_pool2d." },
{ "adaptive_avg_pool1d(Tensor self, int[1] output_size >= -1) -> Tensor",
  kind = "composite",
  expr = [[
    return squeeze(adaptive_avg_pool2d(image(self), list(1, output_size[0])), -2)]],
  check = { line_self },
  grad = "composite",
  reference = "adaptive_avg_pool1d",
  samples = { "randn(2,3,7), 3", "randn(3,5), 1" },
  errors = {
    { "randn(6), 2", "dimensions" }, { "randn(2,3,6), {1,2}", "output_size" }, { "randn(2,3,6)", "argument 'output_size'" },
  },
  doc = "adaptive_avg_pool2d in one dimension." },
{ "adaptive_max_pool2d_with_indices(Tensor self, int[2] output_size >= -1, index_base) -> (Tensor, Tensor)",
  kind = "window",
  dims = { self = "N? C H W : float" }, let = { ["*O"] = "list(adaptive(output_size[0], H), adaptive(output_size[1], W))" },
  out = { "N? C *O", "N? C *O : int64" }, check = { image },
  window = {},
  over = adaptive_places,
  map = adaptive_window .. [[
    return load(self, at(at(out, -2, y), -1, x), inside, -inf), where(inside, y * w + x, -1)]],
  join = "argmax_pool", finish = "s0, s1 + index_base",
  grad = { self = "adaptive_max_pool2d_backward(grad, result1, self.shape, index_base)" },
  reference = "adaptive_max_pool2d_with_indices",
  samples = { "randn(2,3,6,7), {3,4}", "randn(3,5,5), 1", "randn(2,2,4,3), {-1,5}", "randn(1,2,7,5), {3,2}" },
  errors = {
    { "randn(6), 2", "dimensions" }, { "randn(2,3,6,6), {1,2,3}", "output_size" }, { "randn(2,3,6,6)", "argument 'output_size'" },
  },
  doc = "The largest elements of output_size windows that cover the image, and their positions in it (H W)." },
{ "adaptive_max_pool2d(Tensor self, int[2] output_size >= -1) -> Tensor",
  kind = "composite",
  expr = [[
    local y, positions = adaptive_max_pool2d_with_indices(self, output_size, 0)
    return y]],
  grad = "composite",
  reference = "adaptive_max_pool2d",
  samples = { "randn(2,3,6,7), {3,4}", "randn(3,5,5), 1" },
  errors = {
    { "randn(6), 2", "dimensions" }, { "randn(2,3,6,6), {1,2,3}", "output_size" }, { "randn(2,3,6,6)", "argument 'output_size'" },
  },
  doc = "adaptive_max_pool2d_with_indices without the positions." },
{ "upsample_nearest(Tensor self, int[] size) -> Tensor",
  kind = "composite",
  check = upsampled,
  expr = [[
    return fold(self, length(size), function(x, k)
      local i = floor_divide(arange_of(x, 0, size[k], none) * x.shape[k + 2], size[k])
      local column = view(i, list(size[k], 1)) -- whose derivative is faster
      local sums = resampled(as(x, working(x)), k + 2, column, as(ones_like(column), working(x)))
      return when(both(is_on_cpu(x), both(is_float(x), records(x))), as(sums, x.dtype),
        index_select(x, k + 2, i, 0))
    end)]],
  loop = [[
    local i = out
    for d = 2, self.ndim - 1 do i = at(i, d, floor_divide(out[d] * self.shape[d], sizes[d])) end
    return load(self, i)]],
  grad = "composite",
  reference = "upsample_nearest",
  samples = { "randn(2,3,4), {7}", "randn(1,2,3,5), {6,3}", "randn(1,1,2,3,2), {3,3,3}", "randn(0,2,3), {4}" },
  errors = {
    { "randn(2,3,4), {4,4}", "size must hold" }, { "randn(3,4), {4}", "size must hold" },
    { "randn(2,3,4), {0}", "positive" }, { "randn(2,3,0), {2}", "empty" },
  },
  doc = "(N, C, d1, ...) in the sizes given for d1, ...: element i is element floor(i d / size) from 0. \z
    F.interpolate's mode 'nearest'." },
{ "native_resample(Tensor self, IndexTensor places, Tensor weights, index_base) -> Tensor",
  kind = "window",
  dims = { self = "A N B : float", places = "S K", weights = "S K : float" }, out = "A S B",
  window = {}, over = { { "k", "places.shape[1]" } },
  map = [[
    local from = load(places, { out[1], k }) - index_base
    return load(self, { out[0], from, out[2] }) * load(weights, { out[1], k })]],
  join = "sum",
  grad = {
    self = "native_resample_backward(grad, self.shape[1], places, weights, index_base)", weights = "unimplemented",
  },
  reference = "native_resample",
  samples = {
    "randn(2,4,3), randint(1, 5, {5,2}), randn(5,2)", "randn(3,4,1), randint(1, 5, {3,5}), randn(3,5)",
    "randn(2,3,2), randint(1, 4, {2,1}), randn(2,1)",
  },
  errors = {
    { "randn(2,4,3), randint(5, 6, {5,2}), randn(5,2)", "index 5 is out of range" },
    { "randn(2,4,3), randint(1, 5, {5,2}), randn(5,3)", "shape" },
  },
  doc = "Row i of each matrix is the sum of its rows places[i, k] times weights[i, k]." },
{ "native_resample_backward(Tensor grad_output, int size, IndexTensor places, Tensor weights, index_base) -> Tensor",
  kind = "window",
  dims = { grad_output = "A S B : float", places = "S K", weights = "S K : float" }, out = "A size B",
  check = { { "ge(size, 0)", "size must not be negative, got {size}" } },
  window = {}, store = "add", over = "join(grad_output.shape, list(places.shape[1]))",
  start = "zeros_of(grad_output, replace(grad_output.shape, 1, size), none)",
  loop = [[
    local place = { out[1], out[3] }
    return { out[0], load(places, place) - index_base, out[2] },
      load(grad_output, { out[0], out[1], out[2] }) * load(weights, place)]],
  grad = { grad_output = "native_resample(grad, places, weights, index_base)", weights = "unimplemented" },
  reference = "native_resample_backward",
  samples = {
    "randn(2,5,3), 4, randint(1, 5, {5,2}), randn(5,2)", "randn(3,3,1), 4, randint(1, 5, {3,5}), randn(3,5)",
  },
  errors = { { "randn(2,5,3), 4, randint(5, 6, {5,2}), randn(5,2)", "index 5 is out of range" } },
  doc = "Derivative of native_resample by self, of `size` rows." },
{ "upsample_linear(Tensor self, int[] size, bool align_corners=false) -> Tensor",
  kind = "composite",
  check = { upsampled[1], upsampled[2], upsampled[3], { "is_float(self)", "expected a float dtype, got {self.dtype}", "type" } },
  expr = [[
    local y = fold(as(self, working(self)), length(size), function(x, k) -- halves are rounded once
      return interpolated(x, k + 2, size[k], align_corners)
    end)
    return as(y, self.dtype)]],
  grad = "composite",
  reference = "upsample_linear",
  samples = {
    "randn(2,3,4), {7}", "randn(1,2,3,5), {6,3}", "randn(1,2,3,5), {5,1}, true", "randn(1,1,2,3,2), {3,3,3}, true",
  },
  errors = {
    { "randn(2,3,4), {4,4}", "size must hold" }, { "randn(2,3,4), {-1}", "positive" },
    { "randint(0, 5, {1,1,4}), {2}", "float" }, { "randn(2,3,0), {2}", "empty" },
  },
  doc = "(N, C, d1, ...) in the sizes given for d1, ...: between the elements on both sides, along one dimension \z
    after the other. align_corners: the first and the last element stay where they are; else the edges of the whole \z
    do. F.interpolate's modes 'linear', 'bilinear', 'trilinear'." },
}
