-- Convolution and pooling over (N, C, D, H, W) or (C, D, H, W): compositions of those of two dimensions. A convolution
-- takes the windows of the depth as further channels of each plane; pooling goes over the planes first and over the
-- depth then, which is the same for maxima and, as all windows are boxes, for means.
local volume = {
  "either(equal(self.ndim, 4), equal(self.ndim, 5))",
  "self must have 4 or 5 dimensions ((N,) C, D, H, W), got {self.ndim}",
}
local filled = {
  "gt(least(last_n(self.shape, 4)), 0)", "self must not be empty but in its batch dimension, got {self.shape}",
}
local float_self = { "is_float(self)", "expected a float dtype, got {self.dtype}", "type" }
-- Of input, weight and bias; `channels` is the number of results.
local function operands(channels, leading, first, second, third, fourth, fifth)
  return {
    { "either(equal(input.ndim, 4), equal(input.ndim, 5))",
      "input must have 4 or 5 dimensions ((N,) C, D, H, W), got {input.ndim}" },
    { "equal(weight.ndim, 5)", "weight must have 5 dimensions (" .. leading .. ", kd, kh, kw), got {weight.ndim}" },
    { "is_float(input)", "expected a float dtype, got {input.dtype}", "type" },
    { "same_dtype(input, weight)", "expected the same dtype, got input {input.dtype} and weight {weight.dtype}", "type" },
    { "gt(least(weight.shape), 0)", "weight must not be empty, got {weight.shape}" },
    { "gt(least(last_n(input.shape, 4)), 0)", "input must not be empty but in its batch dimension, got {input.shape}" },
    { "ge(groups, 1)", "groups must be at least 1, got {groups}" },
    { "either(negate(given(bias)), same_dtype(bias, input))",
      "expected the same dtype, got input {input.dtype} and bias {bias.dtype}", "type" },
    { "either(negate(given(bias)), both(equal(bias.ndim, 1), equal(bias.shape[0], " .. channels .. ")))",
      "bias must have shape [{" .. channels .. "}]" },
    first, second, third, fourth, fifth,
  }
end
-- n volumes of c channels; planes: all their planes as images of one batch.
local sizes = [[
    local n = when(equal(self.ndim, 5), self.shape[0], 1)
    local c, d = self.shape[-4], self.shape[-3]
    local lead = first_n(self.shape, self.ndim - 3)
    local planes = list(n, c * d, self.shape[-2], self.shape[-1])
]]
-- Maxima y of the planes and z of the depth, with their positions.
local function maxima(planes, depth)
  return sizes .. [[
    local y, at = ]] .. planes .. [[

    local oh, ow = y.shape[-2], y.shape[-1]
    local z, deep = ]] .. depth .. [[

    local od = z.shape[2]
]]
end
local pooled = maxima([[max_pool2d_with_indices(reshape(self, planes), drop_n(kernel_size, 1), drop_n(stride, 1),
      drop_n(padding, 1), drop_n(dilation, 1), ceil_mode, 0)]],
  [[max_pool2d_with_indices(reshape(y, list(n, c, d, oh * ow)), list(kernel_size[0], 1), list(stride[0], 1),
      list(padding[0], 0), list(dilation[0], 1), ceil_mode, 0)]])
local adaptive = maxima("adaptive_max_pool2d_with_indices(reshape(self, planes), drop_n(output_size, 1), 0)",
  [[adaptive_max_pool2d_with_indices(reshape(y, list(n, c, d, oh * ow)), list(output_size[0], -1), 0)]])
local values = "return reshape(z, join(lead, list(od, oh, ow)))"
local both = [[
    local place = gather(reshape(at, list(n, c, d * oh * ow)), 2, reshape(deep, list(n, c, od * oh * ow)), 0)
    local flat = floor_divide(deep, oh * ow) * (self.shape[-2] * self.shape[-1]) + reshape(place, deep.shape) + index_base
    ]] .. values .. ", reshape(flat, join(lead, list(od, oh, ow)))"

return {
{ "conv3d(Tensor input, Tensor weight, Tensor? bias=none, int[3]? stride=1 >= 1, int[3]? padding=0 >= 0, int[3]? dilation=1 >= 1, int groups=1) -> Tensor",
  kind = "composite", amp = "low",
  expr = [[
    local n = when(equal(input.ndim, 5), input.shape[0], 1)
    local c, d, h, w, k = input.shape[-4], input.shape[-3], input.shape[-2], input.shape[-1], weight.shape[2]
    local lead, results = first_n(input.shape, input.ndim - 4), weight.shape[0]
    -- Lines along the depth are those of images with h w columns.
    local deep = both(equal(weight.shape[3] * weight.shape[4] * stride[1] * stride[2], 1), equal(padding[1] + padding[2], 0))
    local lines = conv2d(reshape(input, list(n, c, d, h * w)), reshape(weight, list(results, weight.shape[1], k, 1)), bias,
      list(stride[0], 1), list(padding[0], 0), list(dilation[0], 1), groups)
    local columns = im2col(reshape(input, list(n, c, d, h * w)), list(k, 1), list(dilation[0], 1), list(padding[0], 0),
      list(stride[0], 1))
    local od = floor_divide(columns.shape[-1], h * w)
    local planes = reshape(permute(reshape(columns, list(n, c * k, od, h * w)), list(0, 2, 1, 3)), list(n * od, c * k, h, w))
    local y = conv2d(planes, reshape(weight, list(results, weight.shape[1] * k, weight.shape[3], weight.shape[4])),
      bias, drop_n(stride, 1), drop_n(padding, 1), drop_n(dilation, 1), groups)
    local size = join(lead, list(results, od, y.shape[-2], y.shape[-1]))
    local z = permute(reshape(y, list(n, od, y.shape[1], y.shape[2] * y.shape[3])), list(0, 2, 1, 3))
    return when(deep, reshape(lines, join(lead, list(results, lines.shape[2], h, w))),
      when(viewable(z, size), clone(reshape(z, size)), reshape(z, size)))]],
  check = operands("weight.shape[0]", "K, C / groups",
    { "equal(input.shape[-4], weight.shape[1] * groups)",
      "input must have {weight.shape[1] * groups} channels to go with a weight of {weight.shape[1]} channels and groups {groups}, got {input.shape[-4]}" },
    { "equal(remainder(weight.shape[0], groups), 0)",
      "groups must divide the channels of weight ({weight.shape[0]}), got {groups}" }),
  grad = "composite",
  tolerance = { float32 = { 5e-6, 1e-4 }, float16 = { 1e-3, 1e-4 }, why = "sums of tens of thousands of products" },
  reference = "conv3d",
  samples = {
    "randn(2,3,4,5,4), randn(4,3,3,2,3), randn(4)", "randn(2,4,5,4,5), randn(6,2,2,3,2), nil, 2, 1, 1, 2",
    "randn(2,4,3,3), randn(2,2,2,2,1), randn(2), {1,2,1}, {1,0,0}, {2,1,1}", "randn(0,2,3,3,3), randn(2,2,2,2,2)",
    "randn(2,4,5,2,3), randn(6,2,2,1,1), randn(6), {2,1,1}, {1,0,0}, {3,1,1}, 2", "randn(3,4,2,2), randn(2,3,1,1,1)",
    "randn(2,2,1,3,2), randn(2,2,1,2,2)",
  },
  errors = {
    { "randn(2,3,4,4,4), randn(4,2,3,3,3)", "channels" }, { "randn(2,3,4,4,4), randn(4,3,3,3,3), randn(3)", "bias" },
    { "randn(2,3,2,4,4), randn(4,3,3,3,3)", "larger than the padded input" }, { "randn(3,4,4), randn(4,3,3,3,3)", "dimensions" },
    { "randn(2,4,4,4,4), randn(3,2,3,3,3), nil, 1, 0, 1, 2", "groups" },
    { "randn(2,3,4,4,4), randn(4,3,3,3,3):double()", "same dtype" }, { "randn(2,3,4,4), randn(4,3,3,3)", "5 dimensions" },
  },
  doc = "conv2d in three dimensions: input (N, C, D, H, W), weight (K, C / groups, kd, kh, kw)." },
{ "conv_transpose3d(Tensor input, Tensor weight, Tensor? bias=none, int[3]? stride=1 >= 1, int[3]? padding=0 >= 0, int[3]? output_padding=0 >= 0, int groups=1, int[3]? dilation=1 >= 1) -> Tensor",
  kind = "composite", amp = "low",
  expr = [[
    local n = when(equal(input.ndim, 5), input.shape[0], 1)
    local c, d, h, w, k = input.shape[-4], input.shape[-3], input.shape[-2], input.shape[-1], weight.shape[2]
    local kernels = reshape(weight, list(c, weight.shape[1] * k, weight.shape[3], weight.shape[4]))
    -- Halves are summed in float32 and rounded once. On CUDA that would give up the products of halves.
    local once = is_on_cpu(input)
    local x = when(once, as(input, working(input)), input)
    local planes = reshape(permute(reshape(x, list(n, c, d, h * w)), list(0, 2, 1, 3)), list(n * d, c, h, w))
    local y = conv_transpose2d(planes, when(once, as(kernels, working(input)), kernels), none, drop_n(stride, 1),
      drop_n(padding, 1), drop_n(output_padding, 1), groups, drop_n(dilation, 1))
    local channels, oh, ow = weight.shape[1] * groups, y.shape[-2], y.shape[-1]
    local columns = reshape(permute(reshape(y, list(n, d, channels * k, oh * ow)), list(0, 2, 1, 3)),
      list(n, channels * k, d * oh * ow))
    local whole = (d - 1) * stride[0] + dilation[0] * (k - 1) + 1
    local depth = whole - padding[0] * 2 + output_padding[0]
    local z = when(either(ge(output_padding[0], stride[0]), ge(padding[0] * 2, whole)),
      pad(col2im(columns, list(whole, oh * ow), list(k, 1), list(dilation[0], 1), none, list(stride[0], 1)),
        list(0, 0, 0 - padding[0], output_padding[0] - padding[0]), "constant", 0),
      col2im(columns, list(depth, oh * ow), list(k, 1), list(dilation[0], 1), list(padding[0], 0), list(stride[0], 1)))
    local r = reshape(z, join(first_n(input.shape, input.ndim - 4), list(channels, depth, oh, ow)))
    return as(when(given(bias), r + view(bias, list(channels, 1, 1, 1)), r), input.dtype)]],
  check = operands("weight.shape[1] * groups", "C, K / groups",
    { "equal(input.shape[-4], weight.shape[0])",
      "input must have the {weight.shape[0]} channels of weight, got {input.shape[-4]}" },
    { "equal(remainder(weight.shape[0], groups), 0)",
      "groups must divide the channels of input ({weight.shape[0]}), got {groups}" },
    { "le(groups, 4611686018427387904 / larger(weight.shape[1], 1))", "groups is too large: {groups}" },
    { "either(lt(output_padding[0], stride[0]), lt(output_padding[0], dilation[0]))",
      "output_padding must be smaller than stride or dilation, got {output_padding[0]}" },
    { "ge(transposed_size(input.shape[-3], weight.shape[2], stride[0], padding[0], output_padding[0], dilation[0]), 1)",
      "the result would have size {transposed_size(input.shape[-3], weight.shape[2], stride[0], padding[0], output_padding[0], dilation[0])} in its third dimension from the end: padding is too large" }),
  grad = "composite",
  tolerance = {
    float32 = { 1.3e-6, 1e-4 }, float16 = { 1e-3, 2e-3 }, bfloat16 = { 1.6e-2, 2e-2 },
    why = "the bias is added to a rounded result",
  },
  reference = "conv_transpose3d",
  samples = {
    "randn(2,3,3,2,4), randn(3,4,2,3,2), randn(4)", "randn(1,4,3,3,2), randn(4,2,2,3,2), nil, 2, 1, 1, 2",
    "randn(2,2,3,2), randn(2,2,2,2,2), randn(2), 1, {1,0,1}, 1, 1, 2",
  },
  errors = {
    { "randn(2,3,4,4,4), randn(4,3,3,3,3)", "channels" }, { "randn(2,3,4,4,4), randn(3,4,3,3,3), nil, 1, 0, 1", "output_padding" },
    { "randn(2,3), randn(3,4,3,3,3)", "dimensions" }, { "randn(2,3,4,4,4), randn(3,4,3,3,3), randn(3)", "bias" },
    { "randn(1,1,1,1,1), randn(1,1,1,1,1), nil, 1, 1", "padding is too large" },
  },
  doc = "The transpose of conv3d as a map: input (N, C, D, H, W), weight (C, K / groups, kd, kh, kw). Sizes are those \z
    of conv_transpose2d." },
{ "max_pool3d_with_indices(Tensor self, int[3] kernel_size >= 1, int[3]? stride=kernel_size >= 1, int[3]? padding=0 >= 0, int[3]? dilation=1 >= 1, bool ceil_mode=false, index_base) -> (Tensor, Tensor)",
  kind = "composite", amp = "high", expr = pooled .. both, check = { volume, filled, float_self },
  grad = "composite",
  reference = "max_pool3d_with_indices",
  samples = {
    "randn(2,3,4,6,4), 2", "randn(1,2,5,4,6), {3,2,2}, 2, 1", "randn(2,7,5,6), 2, 1, 0, {2,3,1}", "randn(1,2,5,6,5), 3, 2, 1, 1, true",
  },
  errors = {
    { "randn(2,3,6,6,6), 2, 2, 2", "half" }, { "randn(6,6,6), 2", "dimensions" },
    { "randn(2,3,6,6,6)", "argument 'kernel_size'" }, { "randn(2,3,1,6,6), 2", "larger than the padded input" },
  },
  doc = "The largest element of every window, and its position in the flattened volume (D H W), from index_base." },
{ "max_pool3d(Tensor self, int[3] kernel_size >= 1, int[3]? stride=kernel_size >= 1, int[3]? padding=0 >= 0, int[3]? dilation=1 >= 1, bool ceil_mode=false) -> Tensor",
  kind = "composite", amp = "high", expr = pooled .. values, check = { volume, filled, float_self },
  grad = "composite",
  reference = "max_pool3d",
  samples = { "randn(2,3,4,6,4), 2", "randn(1,2,5,4,6), {3,2,2}, 2, 1", "randn(0,2,4,4,4), 2" },
  errors = {
    { "randn(2,3,6,6,6), 2, 2, 2", "half" }, { "randn(6,6,6), 2", "dimensions" },
    { "randn(2,3,6,6,6)", "argument 'kernel_size'" },
  },
  doc = "The largest element of every window; stride is kernel_size where not given." },
{ "avg_pool3d(Tensor self, int[3] kernel_size >= 1, int[3]? stride=kernel_size >= 1, int[3]? padding=0 >= 0, bool ceil_mode=false, bool count_include_pad=true, int? divisor_override=none) -> Tensor",
  kind = "composite", amp = "high",
  expr = sizes .. [[
    local own = given(divisor_override)
    local k, s, p = drop_n(kernel_size, 1), drop_n(stride, 1), drop_n(padding, 1)
    local x = reshape(as(self, working(self)), planes) -- halves are rounded once
    local y = when(own, avg_pool2d(x, k, s, p, ceil_mode, count_include_pad, 1),
      avg_pool2d(x, k, s, p, ceil_mode, count_include_pad, none))
    local deep = reshape(y, list(n, c, d, y.shape[-2] * y.shape[-1]))
    local z = avg_pool2d(deep, list(kernel_size[0], 1), list(stride[0], 1), list(padding[0], 0), ceil_mode,
      count_include_pad, divisor_override)
    return as(reshape(z, join(lead, list(z.shape[2], y.shape[-2], y.shape[-1]))), self.dtype)]],
  check = { volume, filled, float_self },
  grad = "composite",
  reference = "avg_pool3d",
  samples = {
    "randn(2,3,4,6,4), 2", "randn(1,2,5,4,6), {3,2,2}, 2, 1", "randn(2,7,5,6), 3, 2, 1, true, false",
    "randn(1,2,5,4,5), 3, 2, 0, true, true, 5",
  },
  errors = {
    { "randn(2,3,6,6,6), 2, 2, 2", "half" }, { "randn(6,6,6), 2", "dimensions" },
    { "randn(2,3,6,6,6), 2, 2, 0, false, true, 0", "divisor_override" },
  },
  doc = "The mean of every window; stride is kernel_size where not given." },
{ "adaptive_avg_pool3d(Tensor self, int[3] output_size >= -1) -> Tensor",
  kind = "composite", amp = "high",
  expr = sizes .. [[
    local y = adaptive_avg_pool2d(reshape(as(self, working(self)), planes), drop_n(output_size, 1))
    local z = adaptive_avg_pool2d(reshape(y, list(n, c, d, y.shape[-2] * y.shape[-1])), list(output_size[0], -1))
    return as(reshape(z, join(lead, list(z.shape[2], y.shape[-2], y.shape[-1]))), self.dtype)]],
  check = { volume, filled, float_self },
  grad = "composite",
  reference = "adaptive_avg_pool3d",
  samples = { "randn(2,3,5,6,7), {2,3,4}", "randn(3,5,4,5), 1", "randn(1,2,4,3,3), {-1,5,2}" },
  errors = {
    { "randn(6), 2", "dimensions" }, { "randn(2,3,6,6,6), {1,2}", "output_size" },
    { "randn(2,3,6,6,6)", "argument 'output_size'" }, { "randn(2,3,0,6,6), 2", "empty" },
  },
  doc = "Means of output_size windows that cover the volume; a size of -1 stays as it is." },
{ "adaptive_max_pool3d_with_indices(Tensor self, int[3] output_size >= -1, index_base) -> (Tensor, Tensor)",
  kind = "composite", expr = adaptive .. both, check = { volume, filled, float_self },
  grad = "composite",
  reference = "adaptive_max_pool3d_with_indices",
  samples = { "randn(2,3,5,6,7), {2,3,4}", "randn(3,5,4,5), 1", "randn(1,2,4,3,3), {-1,5,2}" },
  errors = {
    { "randn(6), 2", "dimensions" }, { "randn(2,3,6,6,6), {1,2}", "output_size" },
    { "randn(2,3,6,6,6)", "argument 'output_size'" },
  },
  doc = "The largest elements of output_size windows that cover the volume, and their positions in it (D H W)." },
{ "adaptive_max_pool3d(Tensor self, int[3] output_size >= -1) -> Tensor",
  kind = "composite", amp = "high", expr = adaptive .. values, check = { volume, filled, float_self },
  grad = "composite",
  reference = "adaptive_max_pool3d",
  samples = { "randn(2,3,5,6,7), {2,3,4}", "randn(3,5,4,5), 1" },
  errors = {
    { "randn(6), 2", "dimensions" }, { "randn(2,3,6,6,6), {1,2}", "output_size" },
    { "randn(2,3,6,6,6)", "argument 'output_size'" },
  },
  doc = "adaptive_max_pool3d_with_indices without the positions." },
}
