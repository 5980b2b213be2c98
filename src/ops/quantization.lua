-- Quantised values: plain int8 and uint8 tensors, whose scale and zero point are arguments. A value is
-- (q - zero_point) * scale; q is round(x * (1 / scale)) + zero_point, halves to even, cut to the bounds. Sums of products
-- of int8 are exact (int32); only scale and bias are floating point.
local activations = {
  { 'either(is_float(input), equal(input.dtype, dtype_named("uint8")))',
    "input must be of a float dtype, or uint8 (quantised before), got {input.dtype}", "type" },
}
local short = {
  "le(K, 65536)", "sums of more than 65536 products may not fit in int32; weight has {K} columns",
}
local some = { "gt(K, 0)", "the rows of input are empty" }
local byte = { "both(ge(input_zero_point, 0), le(input_zero_point, 255))",
  "input_zero_point must be in [0, 255], got {input_zero_point}" }
local lists = { "both(equal(scale.ndim, 1), both(equal(zero_point.ndim, 1), both(equal(scale.numel, self.shape[axis]), equal(zero_point.numel, self.shape[axis]))))",
  "scale and zero_point must be vectors of {self.shape[axis]} elements, one for each slice, got {scale.shape} and {zero_point.shape}" }
local bounds = { "le(quant_min, quant_max)", "quant_min ({quant_min}) must not be above quant_max ({quant_max})" }
local bytes = { 'either(equal(dtype, dtype_named("int8")), equal(dtype, dtype_named("uint8")))',
  "dtype must be int8 or uint8, got {dtype}", "type" }
local of_blocks = {
  { ("equal(remainder(W, %s), 0)"):format(blocks.field "bytes"),
    ("a row of {W} bytes is no whole blocks of this type, of {%s} bytes"):format(blocks.field "bytes") },
}
local of_floats = { "is_float(self)", "expected a float dtype, got {self.dtype}", "type" }

return {
{ "fake_quantize(Tensor self, Operand scale, Operand zero_point, Scalar quant_min, Scalar quant_max) -> Tensor",
  kind = "pointwise", scalar = "fake_quantize", promote = "same", dtypes = "float",
  grad = {
    self = "fake_quantize_backward(grad, self, scale, zero_point, quant_min, quant_max)", scale = "no", zero_point = "no",
  },
  ref = [[(math.min(math.max(round(self * (1 / scale)) + zero_point, quant_min), quant_max) - zero_point) * scale]],
  samples = { -- so fine that differences see the derivative by which training goes on: 1 inside, 0 outside
    "randn(3,4), 1e-12, 0, -5e11, 5e11", "randn(3,4), 2e-12, tensor{{0},{3},{-2}}, -2e11, 3e11",
  },
  doc = "self rounded to the grid of quantised values: (q - zero_point) * scale with q = round(self / scale) + \z
    zero_point, cut to [quant_min, quant_max]. The derivative is 1 where q is inside and 0 outside (straight through the \z
    rounding). scale and zero_point are numbers, or tensors that broadcast." },
{ "fake_quantize_backward(Tensor grad_output, Tensor self, Operand scale, Operand zero_point, Scalar quant_min, Scalar quant_max) -> Tensor",
  kind = "pointwise", scalar = "fake_quantize_backward", promote = "same", dtypes = "float",
  grad = {
    grad_output = "fake_quantize_backward(grad, self, scale, zero_point, quant_min, quant_max)", self = "no", scale = "no",
    zero_point = "no",
  },
  ref = [[(function(q) return q >= quant_min and q <= quant_max end)(round(self * (1 / scale)) + zero_point) and grad_output or 0]],
  samples = { "randn(3,4), randn(3,4), 0.1, 3, -5, 5" },
  doc = "Derivative of fake_quantize: grad_output where the quantised value is in [quant_min, quant_max], else 0." },
{ "fake_quantize_per_tensor_affine(Tensor self, Operand scale, Operand zero_point, int quant_min, int quant_max) -> Tensor",
  kind = "composite", amp = "high",
  expr = "fake_quantize(self, scale, zero_point, quant_min, quant_max)",
  check = { of_floats, bounds },
  grad = "composite", none = "fake_quantize has one",
  samples = { "randn(3,4), 1e-12, 0, -100000000000, 500000000000" },
  errors = { { "randn(3), 0.1, 0, 5, -5", "must not be above" } },
  doc = "fake_quantize by PyTorch's name." },
{ "fake_quantize_per_channel_affine(Tensor self, Tensor scale, Tensor zero_point, Dim axis, int quant_min, int quant_max) -> Tensor",
  kind = "composite",
  expr = [[
    local shape = replace(ones_n(self.ndim), axis, self.shape[axis])
    return fake_quantize(self, to(reshape(scale, shape), self.dtype), to(reshape(zero_point, shape), self.dtype),
      quant_min, quant_max)]],
  check = { of_floats, bounds, lists }, keep = true,
  grad = {
    self = [[
      local shape = replace(ones_n(self.ndim), axis, self.shape[axis])
      return fake_quantize_backward(grad, self, to(reshape(scale, shape), self.dtype),
        to(reshape(zero_point, shape), self.dtype), quant_min, quant_max)]],
    scale = "no", zero_point = "no",
  }, none = "fake_quantize has one",
  samples = { "randn(3,4), rand(3) * 1e-12 + 1e-12, tensor{0,1,-2}, 1, -100000000000, 500000000000" },
  errors = {
    { "randn(3,4), rand(4), rand(4), 1, -5, 5", "vectors of 3" }, { "randn(3,4), rand(3), rand(3), 1, 5, -5", "above" },
  },
  doc = "fake_quantize with a scale and a zero point for each slice of self along axis." },
{ "quantize_per_tensor(Tensor self, Operand scale, Operand zero_point, dtype dtype) -> Tensor",
  kind = "composite",
  expr = [[
    local low = when(equal(dtype, dtype_named("uint8")), 0, -128)
    return to(clamp(round(self * reciprocal_of(scale)) + zero_point, low, low + 255), dtype)]],
  check = { of_floats, bytes },
  grad = "none", none = "rounding: spec/quantization/quantization_spec.lua",
  samples = { "randn(3,4), 0.02, 128, 'uint8'", "randn(3,4), 0.02, 0, 'int8'" },
  errors = { { "randn(3), 0.1, 0, 'int32'", "int8 or uint8" } },
  doc = "round(self / scale) + zero_point, halves to even, cut to what dtype (int8 or uint8) holds: a plain tensor." },
{ "quantize_per_channel(Tensor self, Tensor scale, Tensor zero_point, Dim axis, dtype dtype) -> Tensor",
  kind = "composite",
  expr = [[
    local shape = replace(ones_n(self.ndim), axis, self.shape[axis])
    return quantize_per_tensor(self, to(reshape(scale, shape), self.dtype), to(reshape(zero_point, shape), self.dtype), dtype)]],
  check = { of_floats, bytes, lists },
  grad = "none", none = "rounding: spec/quantization/quantization_spec.lua",
  samples = { "randn(3,4), rand(3) * 0.01 + 0.01, tensor{0,1,-2}, 1, 'int8'" },
  errors = { { "randn(3,4), rand(4), rand(4), 1, 'int8'", "vectors of 3" } },
  doc = "quantize_per_tensor with a scale and a zero point for each slice of self along axis." },
{ "dequantize(Tensor self, Operand scale, Operand zero_point=0, Dim? axis=none, dtype? dtype=none) -> Tensor",
  kind = "composite",
  expr = [[
    local T = when(given(dtype), dtype, when(is_number(scale), default_dtype(), scale.dtype))
    local shape = when(given(axis), replace(ones_n(self.ndim), axis, self.shape[axis]), list(1))
    local x = to(self, T)
    local z = when(both(given(axis), negate(is_number(zero_point))), x - reshape(zero_point, shape), x - zero_point)
    return when(given(axis), z * reshape(scale, shape), z * scale)]],
  check = { { "either(negate(given(axis)), negate(is_number(scale)))", "with axis, scale must be a vector" } },
  grad = "composite", none = "spec/quantization/quantization_spec.lua",
  samples = { "randint(-128, 127, {3,4}):to('int8'), rand(3) + 0.1, 3, 1" },
  doc = "(self - zero_point) * scale of a quantised tensor, in the dtype of a tensor scale, else the default; with axis, \z
    scale and zero_point are vectors along it." },
{ "pack_int8(Tensor weight, int groups=1 >= 1, bool apart=false) -> Tensor",
  kind = "extern", kernel = "all devices",
  dims = { weight = "N C *R : int8" },
  let = {
    W = "when(equal(length(R), 2), product(last_n(R, 1)), 1)", S = "when(apart, product(R), floor_divide(product(R), larger(W, 1)))",
    L = "4 * floor_divide(C * when(apart, 1, W) + 3, 4)", A = "16 * floor_divide(floor_divide(N, groups) + 15, 16)",
  },
  check = {
    { "either(equal(length(R), 0), equal(length(R), 2))", "weight must have 2 or 4 dimensions, got {weight.ndim}" },
    { "equal(remainder(N, groups), 0)", "groups ({groups}) must divide the {N} rows of weight" },
    { "gt(C * product(R), 0)", "the rows of weight are empty: {weight.shape}" },
  },
  out = "(groups * A * (S * L + 4)) : dtype_named(\"uint8\")",
  grad = "none", reference = "pack_int8",
  samples = { "randint(-128, 127, {5,7}):to('int8')", "randint(-128, 127, {6,2,3,3}):to('int8'), 2",
    "randint(-128, 127, {6,2,3,2}):to('int8'), 1, true" },
  errors = { { "randn(3,4):to('int8'), 2", "must divide" }, { "randn(3,4)", "int8" }, { "randn(3,4,5):to('int8')", "2 or 4 dimensions" },
    { "zeros(6,2,0,0):to('int8'), 2", "the rows of weight are empty" } },
  doc = "An int8 weight (out, in) or (out, in / groups, kh, kw) in the layout of the kernels of linear_int8 and \z
    conv2d_int8 (their argument `packed`), as bytes; it may change from version to version and is not to be saved. apart: for convolutions whose dilation in x is not 1." },
{ "linear_int8(Tensor input, Tensor weight, Tensor scale, Tensor? bias=none, float input_scale=1 > 0, int input_zero_point=0, bool relu=false, Tensor? packed=none) -> Tensor",
  kind = "fused",
  dims = { input = "*B K", weight = "N K : int8", scale = "N : float", bias = "N : float", packed = "P : uint8" },
  let = { T = "when(is_float(input), input.dtype, scale.dtype)" }, check = { activations[1], some, byte, short }, out = "*B N : T",
  decompose = [[
    local T = when(is_float(input), input.dtype, scale.dtype)
    local q = when(is_float(input), bytes_of(input, 1 / input_scale, input_zero_point), input)
    local x = (to(q, T) - input_zero_point) * input_scale
    local y = linear(x, to(weight, T) * unsqueeze(to(scale, T), 1), when(given(bias), to(bias, T), none))
    return when(relu, op.relu(y), y)]],
  grad = "unimplemented", none = "that of its decomposition",
  samples = {
    "randn(3,8), randint(-127, 127, {5,8}):to('int8'), rand(5) * 0.01, randn(5), 0.02, 128",
    "randn(2,3,7), randint(-127, 127, {70,7}):to('int8'), rand(70) * 0.01, nil, 0.02, 100, true",
    "randint(0, 255, {9,6}):to('uint8'), randint(-127, 127, {4,6}):to('int8'), rand(4) * 0.01, nil, 0.5, 3",
    "randn(0,4), randint(-127, 127, {5,4}):to('int8'), rand(5)",
  },
  errors = {
    { "randn(2,3), randn(5,4):to('int8'), rand(5)", "shape" }, { "randn(2,4), randn(5,4), rand(5)", "int8" },
    { "randn(2,4), randn(5,4):to('int8'), rand(5), nil, 0.1, 256", "0, 255" },
    { "randn(2,4):to('int8'), randn(5,4):to('int8'), rand(5)", "float dtype, or uint8" },
    { "randn(2,0), randn(5,0):to('int8'), rand(5)", "the rows of input are empty" },
  },
  doc = "x @ w^T + bias, where x is input rounded to uint8 by input_scale and input_zero_point (uint8: as it is), and w \z
    the int8 weight (out, in) times scale (out). The sums of products are exact. relu: negative results become 0. \z
    packed: pack_int8(weight), or each call packs it." },
{ "linear_int8_dynamic(Tensor input, Tensor weight, Tensor scale, Tensor? bias=none, bool relu=false, Tensor? packed=none) -> Tensor",
  kind = "fused",
  dims = { input = "*B K : float", weight = "N K : int8", scale = "N : float", bias = "N : float", packed = "P : uint8" },
  check = { some, short }, out = "*B N : input",
  decompose = [[
    local x = to(input, working(input))
    local low = clamp(amin(x, list(x.ndim - 1), true), none, 0)
    local high = clamp(amax(x, list(x.ndim - 1), true), 0, none)
    local size = (high - low) * (1 / 255)
    local s = where(lt(size, 1e-30), 1, size)
    local inverse = reciprocal(s)
    local zero = clamp(round(neg(low) * inverse), 0, 255)
    local q = clamp(round(x * inverse) + zero, 0, 255)
    local T = working(input)
    local y = linear((q - zero) * s, to(weight, T) * unsqueeze(to(scale, T), 1), when(given(bias), to(bias, T), none))
    return to(when(relu, op.relu(y), y), input.dtype)]],
  grad = "unimplemented", none = "that of its decomposition",
  samples = {
    "randn(3,8), randint(-127, 127, {5,8}):to('int8'), rand(5) * 0.01, randn(5)",
    "randn(2,3,7), randint(-127, 127, {70,7}):to('int8'), rand(70) * 0.01, nil, true",
    "randn(0,4), randint(-127, 127, {5,4}):to('int8'), rand(5)", "zeros(2,4), randint(-127, 127, {5,4}):to('int8'), rand(5), randn(5)",
  },
  errors = { { "randn(2,3), randn(5,4):to('int8'), rand(5)", "shape" }, { "randn(2,4), randn(5,4), rand(5)", "int8" } },
  doc = "linear_int8 with a scale and zero point for each row of input, from its least and largest element: a row's \z
    results do not depend on the others." },
{ "conv2d_int8(Tensor input, Tensor weight, Tensor scale, Tensor? bias=none, float input_scale=1 > 0, int input_zero_point=0, int[2] stride=1 >= 1, int[2] padding=0 >= 0, int[2] dilation=1 >= 1, int groups=1 >= 1, bool relu=false, Tensor? packed=none) -> Tensor",
  kind = "fused",
  dims = { input = "N? C H W", weight = "K D kh kw : int8", scale = "K : float", bias = "K : float", packed = "P : uint8" },
  let = {
    T = "when(is_float(input), input.dtype, scale.dtype)",
    ["*O"] = "window_out(list(H, W), list(kh, kw), stride, padding, dilation, none)",
  },
  check = {
    activations[1], byte,
    { "equal(C, D * groups)", "input must have {D * groups} channels to go with a weight of {D} channels and groups {groups}, got {C}" },
    { "equal(remainder(K, groups), 0)", "groups ({groups}) must divide the {K} channels of weight" },
    { "le(D * kh * kw, 65536)", "sums of more than 65536 products may not fit in int32; the weight has {D * kh * kw}" },
    { "both(gt(K, 0), gt(D * kh * kw, 0))", "the weight has no elements: {list(K, D, kh, kw)}" },
  },
  out = "N? K *O : T",
  decompose = [[
    local T = when(is_float(input), input.dtype, scale.dtype)
    local q = when(is_float(input), bytes_of(input, 1 / input_scale, input_zero_point), input)
    local x = (to(q, T) - input_zero_point) * input_scale
    local w = to(weight, T) * reshape(to(scale, T), list(scale.numel, 1, 1, 1))
    local y = conv2d(x, w, when(given(bias), to(bias, T), none), stride, padding, dilation, groups)
    return when(relu, op.relu(y), y)]],
  grad = "unimplemented", none = "that of its decomposition",
  tolerance = { float32 = { 1.3e-6, 1e-4 }, why = "sums of products, scaled before" },
  samples = {
    "randn(2,3,5,5), randint(-127, 127, {4,3,3,3}):to('int8'), rand(4) * 0.01, randn(4), 0.02, 128, 1, 1",
    "randn(2,4,6,5), randint(-127, 127, {6,2,3,2}):to('int8'), rand(6) * 0.01, nil, 0.02, 120, 2, 1, 1, 2, true",
    "randn(1,2,9,7), randint(-127, 127, {2,2,2,3}):to('int8'), rand(2) * 0.01, nil, 0.02, 100, {1,2}, {0,2}, {2,2}",
    "randn(5,8,9), randint(-127, 127, {70,5,1,1}):to('int8'), rand(70) * 0.01, nil, 0.02, 128",
    "randint(0, 255, {2,6,5,4}):to('uint8'), randint(-127, 127, {6,1,3,3}):to('int8'), rand(6) * 0.01, nil, 0.02, 9, 1, 1, 1, 6",
    "randn(0,3,5,5), randint(-127, 127, {4,3,3,3}):to('int8'), rand(4)",
  },
  errors = {
    { "randn(2,3,5,5), randn(4,2,3,3):to('int8'), rand(4)", "channels" }, { "randn(2,3,5,5), randn(4,3,3,3), rand(4)", "int8" },
    { "randn(2,3,2,5), randn(4,3,3,3):to('int8'), rand(4)", "larger than the padded input" },
  },
  doc = "conv2d of input rounded to uint8 by input_scale and input_zero_point (uint8: as it is) with an int8 weight \z
    (out, in / groups, kh, kw) times scale (out). relu: negative results become 0. packed: pack_int8(weight, groups, \z
    dilation in x is not 1), or each call packs it." },
{ "linear_int4(Tensor input, Tensor weight, Tensor scale, Tensor? bias=none, int group=128 >= 32) -> Tensor",
  kind = "fused",
  dims = { input = "*B K : float", weight = "N H : uint8", scale = "N G : float", bias = "N : float" },
  check = {
    some,
    { "either(either(equal(group, 32), equal(group, 64)), equal(remainder(group, 128), 0))",
      "group must be 32, 64 or a multiple of 128, got {group}" },
    { "equal(H, floor_divide(K + 1, 2))", "weight must have {floor_divide(K + 1, 2)} columns of two values, for {K} columns of input, got {H}" },
    { "equal(G, floor_divide(K + group - 1, group))",
      "scale must have {floor_divide(K + group - 1, group)} columns, one for each group of {group}, got {G}" },
  },
  out = "*B N : input",
  decompose = [[
    local T, K, G = working(input), input.shape[-1], scale.shape[1]
    local x = pad(to(input, T), list(0, G * group - K), "constant", 0)
    local g = view(x, join(first_n(x.shape, x.ndim - 1), list(G, group)))
    local size = amax(abs(g), list(g.ndim - 1), true) * (1 / 127)
    local s = where(lt(size, 1e-30), 1, size)
    local q = narrow(view(clamp(round(g * reciprocal(s)), -127, 127) * s, x.shape), x.ndim - 1, 0, K)
    local both = to(weight, T)
    local high = floor(both * 0.0625)
    local w = narrow(view(stack(tensors(both - high * 16, high), 2), list(weight.shape[0], weight.shape[1] * 2)), 1, 0, K) - 8
    local y = linear(q, w * narrow(repeat_interleave(to(scale, T), group, 1), 1, 0, K), when(given(bias), to(bias, T), none))
    return to(y, input.dtype)]],
  grad = "unimplemented", none = "that of its decomposition",
  tolerance = { float32 = { 3e-6, 3e-5 }, why = "sums in another order" },
  samples = {
    "randn(3,70), randint(0, 255, {5,35}):to('uint8'), rand(5,3) * 0.1, randn(5), 32",
    "randn(2,5,301), randint(0, 255, {7,151}):to('uint8'), rand(7,3) * 0.1", "randn(260), randint(0, 255, {3,130}):to('uint8'), rand(3,5) * 0.1, nil, 64",
    "randn(1,300), randint(0, 255, {3,150}):to('uint8'), rand(3,2) * 0.1, nil, 256", "randn(0,4), randint(0, 255, {5,2}):to('uint8'), rand(5,1)",
  },
  errors = {
    { "randn(2,64), randint(0, 255, {5,32}):to('uint8'), rand(5,1), nil, 48", "multiple of 128" },
    { "randn(2,64), randint(0, 255, {5,31}):to('uint8'), rand(5,1)", "32 columns" },
    { "randn(2,64), randint(0, 255, {5,32}):to('uint8'), rand(5,2)", "1 columns" },
  },
  doc = "x @ w^T + bias with weights of 4 bits: (out, (in + 1) / 2) bytes, the first of two values in the lower half, as \z
    0 to 15 for -8 to 7, times scale (out, groups) of each `group` values of a row. input is rounded to int8 by group; \z
    sums of a group's products are exact." },
{ "unpack_blocks(Tensor weight, enum(blocks) type, dtype? dtype=none) -> Tensor",
  kind = "extern",
  dims = { weight = "*N W : uint8" },
  let = { K = ("floor_divide(W, %s) * %s"):format(blocks.field "bytes", blocks.field "elements"),
    T = 'when(given(dtype), dtype, dtype_named("float32"))' },
  check = { of_blocks[1], { "is_float(T)", "dtype must be a float dtype, got {T}", "type" } },
  out = "*N K : T",
  grad = "none", reference = "unpack_blocks",
  samples = {
    "randint(0, 59, {3,36}):to('uint8'), 'Q4_0'", "randint(0, 59, {2,110}):to('uint8'), 'Q3_K', 'float64'",
    "randint(0, 59, {2,2,34}):to('uint8'), 'Q8_0', 'float16'", "randint(0, 59, {144}):to('uint8'), 'Q4_K'",
    "zeros(0,18):to('uint8'), 'Q4_0'",
  },
  errors = {
    { "zeros(2,19):to('uint8'), 'Q4_0'", "no whole blocks of this type, of 18 bytes" }, { "zeros(2,18), 'Q4_0'", "uint8" },
    { "zeros(2,18):to('uint8'), 'Q4_0', 'int32'", "float dtype" },
  },
  doc = "The elements of rows of bytes that are blocks of a GGUF type: (…, bytes of a row) -> (…, elements of a row), \z
    float32 or dtype. What the bytes of a type say: src/ops/blocks.lua." },
{ "linear_blocks(Tensor input, Tensor weight, enum(blocks) type, Tensor? bias=none) -> Tensor",
  kind = "fused",
  dims = { input = "*B K : float", weight = "N W : uint8", bias = "N : float" },
  check = {
    some, of_blocks[1],
    { ("equal(floor_divide(W, %s) * %s, K)"):format(blocks.field "bytes", blocks.field "elements"),
      ("input must have {floor_divide(W, %s) * %s} columns to go with rows of {W} bytes of this type, got {K}"):format(
        blocks.field "bytes", blocks.field "elements") },
  },
  out = "*B N : input",
  decompose = [[
    local T, K = working(input), input.shape[-1]
    local x = to(input, T)
    local g = reshape(x, join(first_n(x.shape, x.ndim - 1), list(floor_divide(K, 32), 32)))
    local size = amax(abs(g), list(g.ndim - 1), true) * (1 / 127)
    local s = where(lt(size, 1e-30), 1, size)
    local q = view(fake_quantize(g, s, 0, -127, 127), x.shape)
    return to(linear(q, unpack_blocks(weight, type, T), when(given(bias), to(bias, T), none)), input.dtype)]],
  grad = "unimplemented", none = "that of its decomposition",
  tolerance = { float32 = { 3e-6, 3e-5 }, why = "sums in another order" },
  samples = {
    "randn(3,64), randint(0, 59, {5,36}):to('uint8'), 'Q4_0', randn(5)",
    "randn(2,5,256), randint(0, 59, {7,144}):to('uint8'), 'Q4_K'", "randn(512), randint(0, 59, {3,420}):to('uint8'), 'Q6_K'",
    "randn(1,4384), randint(0, 59, {2,4658}):to('uint8'), 'Q8_0'", "randn(6,288), randint(0, 59, {9,162}):to('uint8'), 'IQ4_NL'",
    "randn(0,32), randint(0, 59, {5,18}):to('uint8'), 'Q4_0'",
  },
  errors = {
    { "randn(2,32), randint(0, 59, {5,19}):to('uint8'), 'Q4_0'", "no whole blocks" },
    { "randn(2,64), randint(0, 59, {5,18}):to('uint8'), 'Q4_0'", "32 columns to go with rows of 18 bytes of this type, got 64" },
    { "randn(2,32), randn(5,18), 'Q4_0'", "uint8" },
  },
  doc = "x @ w^T + bias with a weight whose rows are blocks of a GGUF type (out, bytes of a row), which are read as they \z
    are. input is rounded to int8 by 32 elements; sums of a group's products are exact. A row's results do not depend on \z
    the others." },
{ "embedding_blocks(Tensor weight, enum(blocks) type, IndexTensor index, dtype? dtype=none, index_base) -> Tensor",
  kind = "composite",
  expr = [[
    local rows = unpack_blocks(index_select(weight, 0, reshape(index, list(index.numel)), index_base), type, dtype)
    return reshape(rows, join(index.shape, list(rows.shape[1])))]],
  check = {
    { "equal(weight.ndim, 2)", "weight must be 2-D, got {weight.ndim} dimensions" },
    { "lt(index.ndim, 16)", "index has too many dimensions" },
  },
  grad = "composite", reference = "embedding_blocks",
  samples = { "randint(0, 59, {5,36}):to('uint8'), 'Q4_0', randint(1, 6, {2,4})" },
  errors = {
    { "randn(5,3), 'Q4_0', randint(1, 6, {2})", "uint8" },
    { "randint(0, 59, {5,36}):to('uint8'), 'Q4_0', tensor({6},{dtype=int64})", "out of range" },
  },
  doc = "Rows of a weight of blocks (see unpack_blocks) as floats, for each index." },
{ "embedding_int8(Tensor weight, Tensor scale, IndexTensor index, index_base) -> Tensor",
  kind = "composite",
  expr = [[
    local flat = reshape(index, list(index.numel))
    local rows = to(index_select(weight, 0, flat, index_base), scale.dtype)
    local by = index_select(scale, 0, flat, index_base)
    return view(rows * unsqueeze(by, 1), join(index.shape, list(weight.shape[1])))]],
  check = {
    { "equal(weight.ndim, 2)", "weight must be 2-D, got {weight.ndim} dimensions" },
    { 'equal(weight.dtype, dtype_named("int8"))', "weight must be of int8, got {weight.dtype}", "type" },
    { "both(equal(scale.ndim, 1), equal(scale.numel, weight.shape[0]))",
      "scale must be a vector of {weight.shape[0]} elements, one for each row, got {scale.shape}" },
    { "lt(index.ndim, 16)", "index has too many dimensions" },
  },
  grad = "composite", reference = "embedding_int8",
  samples = { "randint(-128, 127, {5,3}):to('int8'), rand(5), randint(1, 6, {2,4})" },
  errors = {
    { "randn(5,3), rand(5), randint(1, 6, {2})", "int8" }, { "randn(5,3):to('int8'), rand(4), randint(1, 6, {2})", "vector of 5" },
    { "randn(5,3):to('int8'), rand(5), tensor({6},{dtype=int64})", "out of range" },
  },
  doc = "Rows of an int8 weight, each times its scale, for each index." },
}
