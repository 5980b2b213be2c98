-- An example for each op that users call: what is run (`moth` is there, and a fixed seed), and what its results print
-- as. The reference shows them, `?name` does, and spec/reference/examples_spec.lua runs them. The build wants one for
-- each op but those that are parts of others (schema.lua).
return {
  add = { "moth.add(moth.tensor{ 1, 2 }, moth.tensor{ 10, 20 }, { alpha = 2 })", "[21., 42.]" },
  sub = { "moth.sub(moth.tensor{ 5, 7 }, 2)", "[3., 5.]" },
  mul = { "moth.mul(moth.tensor{ { 1 }, { 2 } }, moth.tensor{ 3, 4 })", [=[
[[3., 4.],
 [6., 8.]]]=] },
  div = { "moth.div(moth.tensor{ 1, 2 }, 4)", "[0.2500, 0.5000]" },
  floor_divide = { "moth.floor_divide(moth.tensor{ -7, 7 }, 2)", "[-4.,  3.]" },
  div_trunc = { "moth.div_trunc(moth.tensor{ -7, 7 }, 2)", "[-3.,  3.]" },
  remainder = { "moth.remainder(moth.tensor{ -7, 7 }, 3)", "[2., 1.]" },
  fmod = { "moth.fmod(moth.tensor{ -7, 7 }, 3)", "[-1.,  1.]" },
  pow = { "moth.pow(moth.tensor{ 1, 2, 3 }, 2)", "[1., 4., 9.]" },
  maximum = { "moth.maximum(moth.tensor{ 1, 5 }, moth.tensor{ 3, 2 })", "[3., 5.]" },
  minimum = { "moth.minimum(moth.tensor{ 1, 5 }, moth.tensor{ 3, 2 })", "[1., 2.]" },
  atan2 = { "moth.atan2(moth.tensor{ 1, -1 }, moth.tensor{ 1, -1 })", "[ 0.7854, -2.3562]" },
  lerp = { "moth.lerp(moth.tensor{ 0, 10 }, moth.tensor{ 10, 20 }, 0.25)", "[ 2.5000, 12.5000]" },
  addcmul = {
    "moth.addcmul(moth.tensor{ 1, 1 }, moth.tensor{ 2, 3 }, moth.tensor{ 4, 5 }, { value = 10 })",
    "[ 81., 151.]" },
  addcdiv = {
    "moth.addcdiv(moth.tensor{ 1, 1 }, moth.tensor{ 2, 3 }, moth.tensor{ 4, 5 }, { value = 10 })",
    "[6., 7.]" },
  fmax = { "moth.fmax(moth.tensor{ 1, 0 / 0 }, moth.tensor{ 3, 2 })", "[3., 2.]" },
  fmin = { "moth.fmin(moth.tensor{ 1, 0 / 0 }, moth.tensor{ 3, 2 })", "[1., 2.]" },
  hypot = { "moth.hypot(moth.tensor{ 3, 5 }, moth.tensor{ 4, 12 })", "[ 5., 13.]" },
  copysign = { "moth.copysign(moth.tensor{ 1, 2 }, moth.tensor{ -3, 4 })", "[-1.,  2.]" },
  signbit = { "moth.signbit(moth.tensor{ -1, 0, 2 })", "[ true, false, false]" },
  heaviside = { "moth.heaviside(moth.tensor{ -2, 0, 3 }, moth.tensor{ 0.5 })", "[0.0000, 0.5000, 1.0000]" },
  logaddexp2 = { "moth.logaddexp2(moth.tensor{ 1, 3 }, moth.tensor{ 1, 3 })", "[2., 4.]" },
  gcd = {
    [[moth.gcd(moth.tensor({ 12, 18 }, { dtype = "int64" }), moth.tensor({ 8, 27 }, { dtype = "int64" }))]],
    "[4, 9]" },
  lcm = {
    [[moth.lcm(moth.tensor({ 4, 6 }, { dtype = "int64" }), moth.tensor({ 6, 9 }, { dtype = "int64" }))]],
    "[12, 18]" },
  bitwise_left_shift = { [[moth.bitwise_left_shift(moth.tensor({ 1, 5 }, { dtype = "int64" }), 2)]], "[ 4, 20]" },
  bitwise_right_shift = { [[moth.bitwise_right_shift(moth.tensor({ 20, -8 }, { dtype = "int64" }), 2)]], "[ 5, -2]" },
  neg = { "moth.neg(moth.tensor{ 1, -2 })", "[-1.,  2.]" },
  abs = { "moth.abs(moth.tensor{ 1, -2 })", "[1., 2.]" },
  sgn = { "moth.sgn(moth.tensor{ -2, 0, 3 })", "[-1.,  0.,  1.]" },
  angle = { "moth.angle(moth.tensor{ -2, 0, 3 })", "[3.1416, 0.0000, 0.0000]" },
  conj_physical = {
    "moth.conj_physical(moth.complex(moth.tensor{ 1, 2 }, moth.tensor{ 3, -4 }))",
    "[1.-3.i, 2.+4.i]" },
  sign = { "moth.sign(moth.tensor{ -2, 0, 3 })", "[-1.,  0.,  1.]" },
  square = { "moth.square(moth.tensor{ 2, -3 })", "[4., 9.]" },
  exp = { "moth.exp(moth.tensor{ 0, 1, 2 })", "[1.0000, 2.7183, 7.3891]" },
  exp2 = { "moth.exp2(moth.tensor{ 0, 1, 5 })", "[ 1.,  2., 32.]" },
  expm1 = { [[moth.expm1(moth.tensor({ 1e-10, 1 }, { dtype = "float64" }))]], "[1.0000e-10, 1.7183e+00]" },
  log = { "moth.log(moth.tensor{ 1, 2, 10 })", "[0.0000, 0.6931, 2.3026]" },
  log2 = { "moth.log2(moth.tensor{ 1, 2, 10 })", "[0.0000, 1.0000, 3.3219]" },
  log10 = { "moth.log10(moth.tensor{ 1, 2, 10 })", "[0.0000, 0.3010, 1.0000]" },
  log1p = { "moth.log1p(moth.tensor{ 0, 1, -0.5 })", "[ 0.0000,  0.6931, -0.6931]" },
  sqrt = { "moth.sqrt(moth.tensor{ 4, 2, -1 })", "[2.0000, 1.4142,    nan]" },
  rsqrt = { "moth.rsqrt(moth.tensor{ 4, 2 })", "[0.5000, 0.7071]" },
  reciprocal = { "moth.reciprocal(moth.tensor{ 4, -0.5 })", "[ 0.2500, -2.0000]" },
  sin = { "moth.sin(moth.tensor{ 0, 1, math.pi / 2 })", "[0.0000, 0.8415, 1.0000]" },
  cos = { "moth.cos(moth.tensor{ 0, 1, math.pi })", "[ 1.0000,  0.5403, -1.0000]" },
  tan = { "moth.tan(moth.tensor{ 0, 1, math.pi / 4 })", "[0.0000, 1.5574, 1.0000]" },
  asin = { "moth.asin(moth.tensor{ 0, 0.5, 1 })", "[0.0000, 0.5236, 1.5708]" },
  acos = { "moth.acos(moth.tensor{ 0, 0.5, 1 })", "[1.5708, 1.0472, 0.0000]" },
  atan = { "moth.atan(moth.tensor{ 0, 1, 1e6 })", "[0.0000, 0.7854, 1.5708]" },
  sinh = { "moth.sinh(moth.tensor{ 0, 1, -2 })", "[ 0.0000,  1.1752, -3.6269]" },
  cosh = { "moth.cosh(moth.tensor{ 0, 1, -2 })", "[1.0000, 1.5431, 3.7622]" },
  tanh = { "moth.tanh(moth.tensor{ 0, 1, -2 })", "[ 0.0000,  0.7616, -0.9640]" },
  erf = { "moth.erf(moth.tensor{ 0, 0.5, -2 })", "[ 0.0000,  0.5205, -0.9953]" },
  erfc = { "moth.erfc(moth.tensor{ 0, 0.5, -2 })", "[1.0000, 0.4795, 1.9953]" },
  lgamma = { "moth.lgamma(moth.tensor{ 1, 5, 0.5 })", "[0.0000, 3.1781, 0.5724]" },
  digamma = { "moth.digamma(moth.tensor{ 1, 5 })", "[-0.5772,  1.5061]" },
  polygamma = { "moth.polygamma(moth.tensor{ 1, 5 }, 1)", "[1.6449, 0.2213]" },
  floor = { "moth.floor(moth.tensor{ -1.5, 1.5 })", "[-2.,  1.]" },
  ceil = { "moth.ceil(moth.tensor{ -1.5, 1.5 })", "[-1.,  2.]" },
  round = { "moth.round(moth.tensor{ 0.5, 1.5, 2.7 })", "[0., 2., 3.]" },
  trunc = { "moth.trunc(moth.tensor{ -1.5, 1.5 })", "[-1.,  1.]" },
  frac = { "moth.frac(moth.tensor{ -1.25, 1.25 })", "[-0.2500,  0.2500]" },
  clamp = { "moth.clamp(moth.tensor{ -2, 0.5, 3 }, -1, 1)", "[-1.0000,  0.5000,  1.0000]" },
  eq = { "moth.eq(moth.tensor{ 1, 2, 3 }, 2)", "[false,  true, false]" },
  ne = { "moth.ne(moth.tensor{ 1, 2, 3 }, 2)", "[ true, false,  true]" },
  lt = { "moth.lt(moth.tensor{ 1, 2, 3 }, 2)", "[ true, false, false]" },
  le = { "moth.le(moth.tensor{ 1, 2, 3 }, 2)", "[ true,  true, false]" },
  gt = { "moth.gt(moth.tensor{ 1, 2, 3 }, 2)", "[false, false,  true]" },
  ge = { "moth.ge(moth.tensor{ 1, 2, 3 }, 2)", "[false,  true,  true]" },
  logical_and = { "moth.logical_and(moth.tensor{ true, false }, moth.tensor{ true, true })", "[ true, false]" },
  logical_or = { "moth.logical_or(moth.tensor{ true, false }, moth.tensor{ false, false })", "[ true, false]" },
  logical_xor = { "moth.logical_xor(moth.tensor{ true, false }, moth.tensor{ true, true })", "[false,  true]" },
  logical_not = { "moth.logical_not(moth.tensor{ true, false })", "[false,  true]" },
  isnan = { "moth.isnan(moth.tensor{ 1, 0 / 0, math.huge })", "[false,  true, false]" },
  isinf = { "moth.isinf(moth.tensor{ 1, 0 / 0, -math.huge })", "[false, false,  true]" },
  isfinite = { "moth.isfinite(moth.tensor{ 1, 0 / 0, math.huge })", "[ true, false, false]" },
  bitwise_and = { [[moth.bitwise_and(moth.tensor({ 12, 7 }, { dtype = "int64" }), 10)]], "[8, 2]" },
  bitwise_or = { [[moth.bitwise_or(moth.tensor({ 12, 7 }, { dtype = "int64" }), 10)]], "[14, 15]" },
  bitwise_xor = { [[moth.bitwise_xor(moth.tensor({ 12, 7 }, { dtype = "int64" }), 10)]], "[ 6, 13]" },
  bitwise_not = { [[moth.bitwise_not(moth.tensor({ 0, 5 }, { dtype = "int64" }))]], "[-1, -6]" },
  where = { "moth.where(moth.tensor{ true, false, true }, moth.tensor{ 1, 2, 3 }, 0)", "[1., 0., 3.]" },
  masked_fill = {
    "moth.masked_fill(moth.tensor{ 1, 2, 3 }, moth.tensor{ false, true, true }, -1)",
    "[ 1., -1., -1.]" },
  sigmoid = { "moth.sigmoid(moth.tensor{ -1, 0, 1 })", "[0.2689, 0.5000, 0.7311]" },
  log_sigmoid = { "moth.log_sigmoid(moth.tensor{ -1, 0, 1 })", "[-1.3133, -0.6931, -0.3133]" },
  relu = { "moth.relu(moth.tensor{ -1, 0, 2 })", "[0., 0., 2.]" },
  leaky_relu = { "moth.leaky_relu(moth.tensor{ -1, 0, 2 }, 0.1)", "[-0.1000,  0.0000,  2.0000]" },
  elu = { "moth.elu(moth.tensor{ -1, 0, 2 })", "[-0.6321,  0.0000,  2.0000]" },
  gelu = { "moth.gelu(moth.tensor{ -1, 0, 2 })", "[-0.1587,  0.0000,  1.9545]" },
  gelu_tanh = { "moth.gelu_tanh(moth.tensor{ -1, 0, 2 })", "[-0.1588,  0.0000,  1.9546]" },
  silu = { "moth.silu(moth.tensor{ -1, 0, 2 })", "[-0.2689,  0.0000,  1.7616]" },
  mish = { "moth.mish(moth.tensor{ -1, 0, 2 })", "[-0.3034,  0.0000,  1.9440]" },
  softplus = { "moth.softplus(moth.tensor{ -1, 0, 30 })", "[ 0.3133,  0.6931, 30.0000]" },
  hardtanh = { "moth.hardtanh(moth.tensor{ -3, 0.5, 3 })", "[-1.0000,  0.5000,  1.0000]" },
  relu6 = { "moth.relu6(moth.tensor{ -1, 3, 9 })", "[0., 3., 6.]" },
  selu = { "moth.selu(moth.tensor{ -1, 0, 2 })", "[-1.1113,  0.0000,  2.1014]" },
  celu = { "moth.celu(moth.tensor{ -1, 0, 2 }, 0.5)", "[-0.4323,  0.0000,  2.0000]" },
  hardsigmoid = { "moth.hardsigmoid(moth.tensor{ -4, 0, 1 })", "[0.0000, 0.5000, 0.6667]" },
  hardswish = { "moth.hardswish(moth.tensor{ -4, -1, 1 })", "[-0.0000, -0.3333,  0.6667]" },
  softsign = { "moth.softsign(moth.tensor{ -1, 0, 3 })", "[-0.5000,  0.0000,  0.7500]" },
  asinh = { "moth.asinh(moth.tensor{ 0, 1, -2 })", "[ 0.0000,  0.8814, -1.4436]" },
  acosh = { "moth.acosh(moth.tensor{ 1, 2, 10 })", "[0.0000, 1.3170, 2.9932]" },
  atanh = { "moth.atanh(moth.tensor{ 0, 0.5, -0.9 })", "[ 0.0000,  0.5493, -1.4722]" },
  logaddexp = { "moth.logaddexp(moth.tensor{ 0, 1 }, moth.tensor{ 0, 1 })", "[0.6931, 1.6931]" },
  logit = { "moth.logit(moth.tensor{ 0.1, 0.5, 0.9 })", "[-2.1972,  0.0000,  2.1972]" },
  prelu = { "moth.prelu(moth.tensor{ -2, 3 }, moth.tensor{ 0.5 })", "[-1.,  3.]" },
  glu = { "moth.glu(moth.tensor{ 1, 2, 0, 100 })", "[0.5000, 2.0000]" },
  isclose = { "moth.isclose(moth.tensor{ 1, 2 }, moth.tensor{ 1 + 1e-6, 2.1 })", "[ true, false]" },
  hardshrink = { "moth.hardshrink(moth.tensor{ -1, 0.3, 2 })", "[-1.,  0.,  2.]" },
  softshrink = { "moth.softshrink(moth.tensor{ -1, 0.3, 2 })", "[-0.5000,  0.0000,  1.5000]" },
  tanhshrink = { "moth.tanhshrink(moth.tensor{ -1, 0, 2 })", "[-0.2384,  0.0000,  1.0360]" },
  threshold = { "moth.threshold(moth.tensor{ -1, 0.3, 2 }, 0.5, 20)", "[20., 20.,  2.]" },
  empty = { "moth.empty(2, 3):size()", "[2, 3]" },
  zeros = { "moth.zeros(2, 3)", [=[
[[0., 0., 0.],
 [0., 0., 0.]]]=] },
  ones = { [[moth.ones(2, { dtype = "int64" })]], "[1, 1]" },
  full = { "moth.full({ 2, 2 }, 7)", [=[
[[7., 7.],
 [7., 7.]]]=] },
  arange = { "moth.arange(1, 2, 0.25)", "[1.0000, 1.2500, 1.5000, 1.7500]" },
  linspace = { "moth.linspace(0, 1, 5)", "[0.0000, 0.2500, 0.5000, 0.7500, 1.0000]" },
  eye = { "moth.eye(2, 3)", [=[
[[1., 0., 0.],
 [0., 1., 0.]]]=] },
  empty_like = { "moth.empty_like(moth.ones(2, 3)):size()", "[2, 3]" },
  zeros_like = { "moth.zeros_like(moth.ones(2))", "[0., 0.]" },
  ones_like = { "moth.ones_like(moth.zeros(2))", "[1., 1.]" },
  full_like = { "moth.full_like(moth.zeros(2), 3)", "[3., 3.]" },
  fill_ = { "moth.zeros(2):fill_(3)", "[3., 3.]" },
  zero_ = { "moth.ones(2):zero_()", "[0., 0.]" },
  copy_ = { "moth.zeros(2, 2):copy_(moth.tensor{ 1, 2 })", [=[
[[1., 2.],
 [1., 2.]]]=] },
  clone = { "moth.clone(moth.tensor{ 1, 2 })", "[1., 2.]" },
  contiguous = { "moth.eye(2, 3):t():contiguous():is_contiguous()", "true" },
  to_copy = { [[moth.to_copy(moth.tensor{ 1.5, 2.5 }, "int32")]], "[1, 2]" },
  to = { [[moth.tensor{ 1.5, 2.5 }:to("int32")]], "[1, 2]" },
  type_as = { [[moth.type_as(moth.tensor{ 1.5, 2.5 }, moth.tensor({ 1 }, { dtype = "int32" }))]], "[1, 2]" },
  tril = { "moth.tril(moth.ones(3, 3))", [=[
[[1., 0., 0.],
 [1., 1., 0.],
 [1., 1., 1.]]]=] },
  triu = { "moth.triu(moth.ones(3, 3), 1)", [=[
[[0., 1., 1.],
 [0., 0., 1.],
 [0., 0., 0.]]]=] },
  flip = { "moth.flip(moth.tensor{ { 1, 2 }, { 3, 4 } }, { 2 })", [=[
[[2., 1.],
 [4., 3.]]]=] },
  view = { "moth.arange(1, 7):view(2, -1)", [=[
[[1, 2, 3],
 [4, 5, 6]]]=] },
  reshape = { "moth.reshape(moth.arange(1, 7), { 3, 2 })", [=[
[[1, 2],
 [3, 4],
 [5, 6]]]=] },
  detach = { "moth.detach(moth.tensor({ 1, 2 }, { requires_grad = true })):requires_grad()", "false" },
  permute = { "moth.permute(moth.zeros(2, 3, 4), { 3, 1, 2 }):size()", "[4, 2, 3]" },
  transpose = { "moth.transpose(moth.tensor{ { 1, 2 }, { 3, 4 } }, 1, 2)", [=[
[[1., 3.],
 [2., 4.]]]=] },
  t = { "moth.t(moth.tensor{ { 1, 2 }, { 3, 4 } })", [=[
[[1., 3.],
 [2., 4.]]]=] },
  squeeze = { "moth.squeeze(moth.zeros(1, 3, 1)):size()", "[3]" },
  unsqueeze = { "moth.unsqueeze(moth.tensor{ 1, 2 }, 2)", [=[
[[1.],
 [2.]]]=] },
  expand = { "moth.expand(moth.tensor{ { 1 }, { 2 } }, { 2, 3 })", [=[
[[1., 1., 1.],
 [2., 2., 2.]]]=] },
  expand_as = { "moth.expand_as(moth.tensor{ { 1 }, { 2 } }, moth.zeros(2, 3))", [=[
[[1., 1., 1.],
 [2., 2., 2.]]]=] },
  narrow = { "moth.narrow(moth.arange(1, 7), 1, 2, 3)", "[2, 3, 4]" },
  select = { "moth.select(moth.tensor{ { 1, 2 }, { 3, 4 } }, 1, -1)", "[3., 4.]" },
  slice = { "moth.slice(moth.arange(1, 9), 1, 0, 8, 3)", "[1, 4, 7]" },
  as_strided = { "moth.as_strided(moth.arange(1, 7), { 2, 3 }, { 1, 2 })", [=[
[[1, 3, 5],
 [2, 4, 6]]]=] },
  as_strided_scatter = { "moth.as_strided_scatter(moth.zeros(2, 2), moth.tensor{ 5, 6 }, { 2 }, { 3 })", [=[
[[5., 0.],
 [0., 6.]]]=] },
  diagonal = { "moth.diagonal(moth.tensor{ { 1, 2 }, { 3, 4 } })", "[1., 4.]" },
  flatten = { "moth.flatten(moth.tensor{ { 1, 2 }, { 3, 4 } })", "[1., 2., 3., 4.]" },
  unflatten = { "moth.unflatten(moth.arange(1, 7), 1, { 2, 3 })", [=[
[[1, 2, 3],
 [4, 5, 6]]]=] },
  movedim = { "moth.movedim(moth.zeros(2, 3, 4), 1, 3):size()", "[3, 4, 2]" },
  view_as_real = { "moth.view_as_real(moth.complex(moth.tensor{ 1, 2 }, moth.tensor{ 3, 4 }))", [=[
[[1., 3.],
 [2., 4.]]]=] },
  view_as_complex = { "moth.view_as_complex(moth.tensor{ { 1, 3 }, { 2, 4 } })", "[1.+3.i, 2.+4.i]" },
  real = { "moth.real(moth.complex(moth.tensor{ 1, 2 }, moth.tensor{ 3, 4 }))", "[1., 2.]" },
  imag = { "moth.imag(moth.complex(moth.tensor{ 1, 2 }, moth.tensor{ 3, 4 }))", "[3., 4.]" },
  conj = { "moth.conj(moth.complex(moth.tensor{ 1, 2 }, moth.tensor{ 3, 4 }))", "[1.-3.i, 2.-4.i]" },
  polar = { "moth.polar(moth.tensor{ 1, 2 }, moth.tensor{ 0, 1 })", "[1.0000+0.0000i, 1.0806+1.6829i]" },
  isreal = { "moth.isreal(moth.complex(moth.tensor{ 1, 2 }, moth.tensor{ 0, 4 }))", "[ true, false]" },
  complex = { "moth.complex(moth.tensor{ 1, 2 }, moth.tensor{ 3, 4 })", "[1.+3.i, 2.+4.i]" },
  sum = { "moth.sum(moth.tensor{ { 1, 2 }, { 3, 4 } }, 1)", "[4., 6.]" },
  mean = { "moth.mean(moth.tensor{ { 1, 2 }, { 3, 4 } }, { dim = 2, keepdim = true })", [=[
[[1.5000],
 [3.5000]]]=] },
  prod = { "moth.prod(moth.tensor{ 2, 3, 4 })", "24." },
  amax = { "moth.amax(moth.tensor{ { 1, 2 }, { 4, 3 } }, 2)", "[2., 4.]" },
  amin = { "moth.amin(moth.tensor{ { 1, 2 }, { 4, 3 } }, 2)", "[1., 3.]" },
  any = { "moth.any(moth.tensor{ { true, false }, { false, false } }, 2)", "[ true, false]" },
  all = { "moth.all(moth.tensor{ { true, false }, { true, true } }, 2)", "[false,  true]" },
  count_nonzero = { "moth.count_nonzero(moth.tensor{ 0, 2, 3 })", "2" },
  argmax = { "moth.argmax(moth.tensor{ { 1, 2 }, { 4, 3 } }, 2)", "[2, 1]" },
  argmin = { "moth.argmin(moth.tensor{ { 1, 2 }, { 4, 3 } }, 2)", "[1, 2]" },
  max_dim = { "moth.max_dim(moth.tensor{ { 1, 2 }, { 4, 3 } }, 2)", [=[
[2., 4.]
[2, 1]]=] },
  min_dim = { "moth.min_dim(moth.tensor{ { 1, 2 }, { 4, 3 } }, 2)", [=[
[1., 3.]
[1, 2]]=] },
  var = { "moth.var(moth.tensor{ 1, 2, 3, 4 })", "1.6667" },
  vdot = { "moth.vdot(moth.tensor{ 1, 2 }, moth.tensor{ 3, 4 })", "11." },
  std = { "moth.std(moth.tensor{ 1, 2, 3, 4 }, { correction = 0 })", "1.1180" },
  logsumexp = { "moth.logsumexp(moth.tensor{ 1000, 1000 }, 1)", "1000.6932" },
  norm = { "moth.norm(moth.tensor{ 3, 4 })", "5." },
  cumsum = { "moth.cumsum(moth.tensor{ 1, 2, 3 }, 1)", "[1., 3., 6.]" },
  cumprod = { "moth.cumprod(moth.tensor{ 1, 2, 3 }, 1)", "[1., 2., 6.]" },
  mm = { "moth.mm(moth.tensor{ { 1, 2 }, { 3, 4 } }, moth.tensor{ { 1 }, { 10 } })", [=[
[[21.],
 [43.]]]=] },
  bmm = { "moth.bmm(moth.ones(2, 1, 3), moth.ones(2, 3, 1)):size()", "[2, 1, 1]" },
  addmm = { "moth.addmm(moth.tensor{ 100 }, moth.tensor{ { 1, 2 } }, moth.tensor{ { 1 }, { 10 } })", "[[121.]]" },
  matmul = { "moth.matmul(moth.tensor{ { 1, 2 }, { 3, 4 } }, moth.tensor{ 1, 10 })", "[21., 43.]" },
  dot = { "moth.dot(moth.tensor{ 1, 2 }, moth.tensor{ 3, 4 })", "11." },
  mv = { "moth.mv(moth.tensor{ { 1, 2 }, { 3, 4 } }, moth.tensor{ 1, 10 })", "[21., 43.]" },
  outer = { "moth.outer(moth.tensor{ 1, 2 }, moth.tensor{ 3, 4 })", [=[
[[3., 4.],
 [6., 8.]]]=] },
  linear = {
    "moth.linear(moth.tensor{ { 1, 2 } }, moth.tensor{ { 1, 0 }, { 1, 1 }, { 0, 1 } }, moth.tensor{ 10, 20, 30 })",
    "[[11., 23., 32.]]" },
  baddbmm = { "moth.baddbmm(moth.ones(1), moth.ones(1, 2, 3), moth.ones(1, 3, 2))", [=[
[[[4., 4.],
  [4., 4.]]]]=] },
  trace = { "moth.trace(moth.tensor{ { 1, 2 }, { 3, 4 } })", "5." },
  diag = { "moth.diag(moth.tensor{ 1, 2 })", [=[
[[1., 0.],
 [0., 2.]]]=] },
  addmv = {
    "moth.addmv(moth.tensor{ 100, 200 }, moth.tensor{ { 1, 2 }, { 3, 4 } }, moth.tensor{ 1, 10 })",
    "[121., 243.]" },
  addr = { "moth.addr(moth.ones(1), moth.tensor{ 1, 2 }, moth.tensor{ 3, 4 })", [=[
[[4., 5.],
 [7., 9.]]]=] },
  addbmm = { "moth.addbmm(moth.ones(1), moth.ones(4, 2, 3), moth.ones(4, 3, 2))", [=[
[[13., 13.],
 [13., 13.]]]=] },
  inner = { "moth.inner(moth.tensor{ { 1, 2 }, { 3, 4 } }, moth.tensor{ 1, 10 })", "[21., 43.]" },
  linalg_cross = { "moth.linalg.cross(moth.tensor{ 1, 0, 0 }, moth.tensor{ 0, 1, 0 })", "[0., 0., 1.]" },
  linalg_vecdot = {
    "moth.linalg.vecdot(moth.tensor{ { 1, 2 }, { 3, 4 } }, moth.tensor{ { 1, 1 }, { 2, 2 } })",
    "[ 3., 14.]" },
  linalg_vector_norm = { "moth.linalg.vector_norm(moth.tensor{ 3, -4 }, { ord = 1 })", "7." },
  linalg_cholesky_ex = { "moth.linalg.cholesky_ex(moth.tensor{ { 4, 2 }, { 2, 5 } })", [=[
[[2., 0.],
 [1., 2.]]
0]=] },
  linalg_cholesky = { "moth.linalg.cholesky(moth.tensor{ { 4, 2 }, { 2, 5 } })", [=[
[[2., 0.],
 [1., 2.]]]=] },
  cholesky_solve = { "moth.cholesky_solve(moth.tensor{ { 8 }, { 12 } }, moth.tensor{ { 2, 0 }, { 1, 2 } })", [=[
[[1.],
 [2.]]]=] },
  cholesky_inverse = { "moth.cholesky_inverse(moth.tensor{ { 2, 0 }, { 0, 1 } })", [=[
[[0.2500, 0.0000],
 [0.0000, 1.0000]]]=] },
  linalg_solve_triangular = { [=[
local A, B = moth.tensor{ { 2, 0 }, { 1, 4 } }, moth.tensor{ { 2 }, { 9 } }
return moth.linalg.solve_triangular(A, B, { upper = false })]=], [=[
[[1.],
 [2.]]]=] },
  linalg_lu_factor_ex = { "moth.linalg.lu_factor_ex(moth.tensor{ { 1, 2 }, { 4, 4 } })", [=[
[[4.0000, 4.0000],
 [0.2500, 1.0000]]
[2, 2]
0]=] },
  linalg_lu_factor = { "moth.linalg.lu_factor(moth.tensor{ { 1, 2 }, { 4, 4 } })", [=[
[[4.0000, 4.0000],
 [0.2500, 1.0000]]
[2, 2]]=] },
  lu_unpack = { "moth.lu_unpack(moth.linalg.lu_factor(moth.tensor{ { 1, 2 }, { 4, 4 } }))", [=[
[[0., 1.],
 [1., 0.]]
[[1.0000, 0.0000],
 [0.2500, 1.0000]]
[[4., 4.],
 [0., 1.]]]=] },
  linalg_lu = { "moth.linalg.lu(moth.tensor{ { 1, 2 }, { 4, 4 } })", [=[
[[0., 1.],
 [1., 0.]]
[[1.0000, 0.0000],
 [0.2500, 1.0000]]
[[4., 4.],
 [0., 1.]]]=] },
  linalg_lu_solve = { [=[
local LU, pivots = moth.linalg.lu_factor(moth.tensor{ { 1, 2 }, { 4, 4 } })
return moth.linalg.lu_solve(LU, pivots, moth.tensor{ { 5 }, { 12 } })]=], [=[
[[1.],
 [2.]]]=] },
  lu_solve = { [=[
local LU, pivots = moth.linalg.lu_factor(moth.tensor{ { 1, 2 }, { 4, 4 } })
return moth.lu_solve(moth.tensor{ { 5 }, { 12 } }, LU, pivots)]=], [=[
[[1.],
 [2.]]]=] },
  linalg_solve_ex = { "moth.linalg.solve_ex(moth.tensor{ { 1, 2 }, { 4, 4 } }, moth.tensor{ 5, 12 })", [=[
[1., 2.]
0]=] },
  linalg_solve = { "moth.linalg.solve(moth.tensor{ { 1, 2 }, { 4, 4 } }, moth.tensor{ 5, 12 })", "[1., 2.]" },
  linalg_inv_ex = { "moth.linalg.inv_ex(moth.tensor{ { 2, 0 }, { 0, 4 } })", [=[
[[0.5000, 0.0000],
 [0.0000, 0.2500]]
0]=] },
  linalg_inv = { "moth.linalg.inv(moth.tensor{ { 2, 0 }, { 0, 4 } })", [=[
[[0.5000, 0.0000],
 [0.0000, 0.2500]]]=] },
  linalg_det = { "moth.linalg.det(moth.tensor{ { 2, 0 }, { 1, 4 } })", "8." },
  linalg_slogdet = { "moth.linalg.slogdet(moth.tensor{ { -2, 0 }, { 1, 4 } })", [=[
-1.
2.0794]=] },
  logdet = { "moth.logdet(moth.tensor{ { 2, 0 }, { 0, 4 } })", "2.0794" },
  linalg_qr = { [=[
local Q, R = moth.linalg.qr(moth.tensor{ { 3, 1 }, { 4, 2 } })
return Q:matmul(R):round()]=], [=[
[[3., 1.],
 [4., 2.]]]=] },
  geqrf = { [=[
local a, tau = moth.geqrf(moth.tensor{ { 3, 1 }, { 4, 2 } })
return a:size(), tau:size()]=], [=[
[2, 2]
[2]]=] },
  linalg_householder_product = { [=[
local a, tau = moth.geqrf(moth.tensor{ { 3, 1 }, { 4, 2 } })
local Q = moth.linalg.householder_product(a, tau)
return Q:t():matmul(Q):round():abs()]=], [=[
[[1., 0.],
 [0., 1.]]]=] },
  ormqr = { [=[
local a, tau = moth.geqrf(moth.tensor{ { 3 }, { 4 } })
return moth.ormqr(a, tau, moth.tensor{ { 3 }, { 4 } }, { transpose = true }):abs()]=], [=[
[[5.],
 [0.]]]=] },
  linalg_eigh = { [=[
local L, V = moth.linalg.eigh(moth.tensor{ { 2, 1 }, { 1, 2 } })
return L, V:abs()]=], [=[
[1., 3.]
[[0.7071, 0.7071],
 [0.7071, 0.7071]]]=] },
  linalg_eigvalsh = { "moth.linalg.eigvalsh(moth.tensor{ { 2, 1 }, { 1, 2 } })", "[1., 3.]" },
  linalg_eig = { [=[
local L, V = moth.linalg.eig(moth.tensor{ { 0, -1 }, { 1, 0 } })
return L, V:abs()]=], [=[
[0.+1.i, 0.-1.i]
[[0.7071, 0.7071],
 [0.7071, 0.7071]]]=] },
  linalg_eigvals = { "moth.linalg.eigvals(moth.tensor{ { 0, -1 }, { 1, 0 } })", "[0.+1.i, 0.-1.i]" },
  linalg_svd = { [=[
local U, S, Vh = moth.linalg.svd(moth.tensor{ { 0, 3 }, { 2, 0 } })
return S, U:matmul(moth.diag(S)):matmul(Vh):round()]=], [=[
[3., 2.]
[[0., 3.],
 [2., 0.]]]=] },
  linalg_svdvals = { "moth.linalg.svdvals(moth.tensor{ { 0, 3 }, { 2, 0 } })", "[3., 2.]" },
  linalg_pinv = { "moth.linalg.pinv(moth.tensor{ { 2, 0 }, { 0, 4 }, { 0, 0 } })", [=[
[[0.5000, 0.0000, 0.0000],
 [0.0000, 0.2500, 0.0000]]]=] },
  linalg_matrix_rank = { "moth.linalg.matrix_rank(moth.tensor{ { 1, 2 }, { 2, 4 } })", "1" },
  linalg_ldl_factor_ex = { "moth.linalg.ldl_factor_ex(moth.tensor{ { 4, 2 }, { 2, 5 } })", [=[
[[4.0000, 0.0000],
 [0.5000, 4.0000]]
[1, 2]
0]=] },
  linalg_ldl_factor = { "moth.linalg.ldl_factor(moth.tensor{ { 4, 2 }, { 2, 5 } })", [=[
[[4.0000, 0.0000],
 [0.5000, 4.0000]]
[1, 2]]=] },
  linalg_ldl_solve = { [=[
local LD, pivots = moth.linalg.ldl_factor(moth.tensor{ { 4, 2 }, { 2, 5 } })
return moth.linalg.ldl_solve(LD, pivots, moth.tensor{ { 8 }, { 12 } })]=], [=[
[[1.],
 [2.]]]=] },
  cat = { "moth.cat({ moth.tensor{ { 1, 2 } }, moth.tensor{ { 3, 4 } } }, 2)", "[[1., 2., 3., 4.]]" },
  stack = { "moth.stack({ moth.tensor{ 1, 2 }, moth.tensor{ 3, 4 } }, 2)", [=[
[[1., 3.],
 [2., 4.]]]=] },
  gather = { [=[
local index = moth.tensor({ { 2 }, { 1 } }, { dtype = "int64" })
return moth.gather(moth.tensor{ { 1, 2 }, { 3, 4 } }, 2, index)]=], [=[
[[2.],
 [3.]]]=] },
  scatter = { [[moth.scatter(moth.zeros(2, 2), 2, moth.tensor({ { 2 }, { 1 } }, { dtype = "int64" }), 5)]], [=[
[[0., 5.],
 [5., 0.]]]=] },
  scatter_add = { [=[
local index = moth.tensor({ 1, 3, 1 }, { dtype = "int64" })
return moth.scatter_add(moth.zeros(3), 1, index, moth.tensor{ 1, 2, 4 })]=], "[5., 0., 2.]" },
  scatter_reduce = { [=[
local index = moth.tensor({ 1, 3, 1 }, { dtype = "int64" })
return moth.scatter_reduce(moth.ones(3), 1, index, moth.tensor{ 2, 3, 4 }, "prod")]=], "[8., 1., 3.]" },
  index_reduce = { [=[
local index = moth.tensor({ 1, 3, 1 }, { dtype = "int64" })
return moth.index_reduce(moth.ones(3), 1, index, moth.tensor{ 2, 3, 4 }, "amax")]=], "[4., 1., 3.]" },
  index_select = { [=[
local index = moth.tensor({ 2, 1, 2 }, { dtype = "int64" })
return moth.index_select(moth.tensor{ { 1, 2 }, { 3, 4 } }, 1, index)]=], [=[
[[3., 4.],
 [1., 2.],
 [3., 4.]]]=] },
  index_add = { [=[
local index = moth.tensor({ 1, 3, 1 }, { dtype = "int64" })
return moth.index_add(moth.ones(3), 1, index, moth.tensor{ 2, 3, 4 })]=], "[7., 1., 4.]" },
  index_copy = { [=[
local index = moth.tensor({ 1, 3 }, { dtype = "int64" })
return moth.index_copy(moth.ones(3), 1, index, moth.tensor{ 5, 6 })]=], "[5., 1., 6.]" },
  gather_nd = { [=[
local index = moth.tensor({ { 1, 2 }, { 2, 1 } }, { dtype = "int64" })
return moth.gather_nd(moth.tensor{ { 1, 2 }, { 3, 4 } }, { 1, 2 }, index)]=], "[2., 3.]" },
  scatter_nd_ = { [=[
local index = moth.tensor({ 1, -1 }, { dtype = "int64" })
return moth.zeros(3):scatter_nd_({ 1 }, index, moth.tensor{ 5, 6 })]=], "[5., 0., 6.]" },
  masked_select = { "moth.masked_select(moth.tensor{ 1, 2, 3 }, moth.tensor{ true, false, true })", "[1., 3.]" },
  masked_scatter = {
    "moth.masked_scatter(moth.zeros(3), moth.tensor{ true, false, true }, moth.tensor{ 5, 6 })",
    "[5., 0., 6.]" },
  nonzero = { "moth.nonzero(moth.tensor{ { 0, 1 }, { 1, 0 } })", [=[
[[1, 2],
 [2, 1]]]=] },
  embedding = { [=[
local index = moth.tensor({ 2, 1, 2 }, { dtype = "int64" })
return moth.embedding(moth.tensor{ { 1, 2 }, { 3, 4 } }, index)]=], [=[
[[3., 4.],
 [1., 2.],
 [3., 4.]]]=] },
  one_hot = { [[moth.one_hot(moth.tensor({ 2, 1 }, { dtype = "int64" }), 3)]], [=[
[[0, 1, 0],
 [1, 0, 0]]]=] },
  sort = { "moth.sort(moth.tensor{ 3, 1, 2 })", [=[
[1., 2., 3.]
[2, 3, 1]]=] },
  argsort = { "moth.argsort(moth.tensor{ 3, 1, 2 }, { descending = true })", "[1, 3, 2]" },
  topk = { "moth.topk(moth.tensor{ 3, 1, 2 }, 2)", [=[
[3., 2.]
[1, 3]]=] },
  kthvalue = { "moth.kthvalue(moth.tensor{ 3, 1, 2 }, 2)", [=[
2.
3]=] },
  pad = { "moth.pad(moth.tensor{ { 1, 2 } }, { 1, 2 })", "[[0., 1., 2., 0., 0.]]" },
  roll = { "moth.roll(moth.tensor{ 1, 2, 3 }, 1)", "[3., 1., 2.]" },
  repeat_interleave = { "moth.repeat_interleave(moth.tensor{ 1, 2 }, 2)", "[1., 1., 2., 2.]" },
  softmax = { "moth.softmax(moth.tensor{ { 1, 2 }, { 0, 0 } }, 2)", [=[
[[0.2689, 0.7311],
 [0.5000, 0.5000]]]=] },
  log_softmax = { "moth.log_softmax(moth.tensor{ { 1, 2 }, { 0, 0 } }, 2)", [=[
[[-1.3133, -0.3133],
 [-0.6931, -0.6931]]]=] },
  cross_entropy = {
    [[moth.cross_entropy(moth.tensor{ { 2, 0, 0 } }, moth.tensor({ 1 }, { dtype = "int64" }))]],
    "0.2395" },
  nll_loss = { [[moth.nll_loss(moth.tensor{ { -0.5, -1 } }, moth.tensor({ 2 }, { dtype = "int64" }))]], "1." },
  mse_loss = { "moth.mse_loss(moth.tensor{ 1, 2 }, moth.tensor{ 0, 4 })", "2.5000" },
  l1_loss = { "moth.l1_loss(moth.tensor{ 1, 2 }, moth.tensor{ 0, 4 })", "1.5000" },
  binary_cross_entropy_with_logits = {
    "moth.binary_cross_entropy_with_logits(moth.tensor{ 0, 2 }, moth.tensor{ 1, 0 })",
    "1.4100" },
  dropout = { "moth.dropout(moth.ones(4), 0.5, false)", "[1., 1., 1., 1.]" },
  smooth_l1_loss = {
    [[moth.smooth_l1_loss(moth.tensor{ 1, 2 }, moth.tensor{ 1.5, 4 }, "none")]],
    "[0.1250, 1.5000]" },
  huber_loss = { [[moth.huber_loss(moth.tensor{ 1, 2 }, moth.tensor{ 1.5, 4 }, "none")]], "[0.1250, 1.5000]" },
  kl_div = { [[moth.kl_div(moth.tensor{ 0.5, 0.5 }:log(), moth.tensor{ 0.25, 0.75 }, "sum")]], "0.1308" },
  binary_cross_entropy = { "moth.binary_cross_entropy(moth.tensor{ 0.5, 0.9 }, moth.tensor{ 1, 0 })", "1.4979" },
  lstm_direction = { [=[
local x, h0 = moth.zeros(3, 2, 5), moth.zeros(2, 2)
return (moth.lstm_direction(x, moth.zeros(8, 5), nil, moth.zeros(8, 2), h0, h0)):size()]=], "[3, 2, 2]" },
  gru_direction = { [=[
local x, h0 = moth.zeros(3, 2, 5), moth.zeros(2, 2)
return moth.gru_direction(x, moth.zeros(6, 5), nil, moth.zeros(6, 2), nil, h0):size()]=], "[3, 2, 2]" },
  lstm_layer = { [=[
local input, weight, h0 = moth.zeros(3, 2, 8), moth.zeros(8, 2), moth.zeros(2, 2)
return (moth.lstm_layer(input, weight, h0, h0)):size()]=], "[3, 2, 2]" },
  gru_layer = { [=[
local input, weight, h0 = moth.zeros(3, 2, 6), moth.zeros(6, 2), moth.ones(2, 2)
return (moth.gru_layer(input, weight, nil, h0))]=], [=[
[[[0.5000, 0.5000],
  [0.5000, 0.5000]],

 [[0.2500, 0.2500],
  [0.2500, 0.2500]],

 [[0.1250, 0.1250],
  [0.1250, 0.1250]]]]=] },
  layer_norm = { "moth.layer_norm(moth.tensor{ { 1, 2, 3 } }, { 3 })", "[[-1.2247,  0.0000,  1.2247]]" },
  rms_norm = { "moth.rms_norm(moth.tensor{ { 3, 4 } }, { 2 })", "[[0.8485, 1.1314]]" },
  group_norm = { "moth.group_norm(moth.tensor{ { 1, 3, 10, 30 } }, 2)", "[[-1.0000,  1.0000, -1.0000,  1.0000]]" },
  batch_norm = { "moth.batch_norm(moth.tensor{ { 1, 10 }, { 3, 30 } }, nil, nil, { training = true })", [=[
[[-1.0000, -1.0000],
 [ 1.0000,  1.0000]]]=] },
  instance_norm = { "moth.instance_norm(moth.tensor{ { { 1, 3 }, { 10, 30 } } })", [=[
[[[-1.0000,  1.0000],
  [-1.0000,  1.0000]]]]=] },
  conv2d = { "moth.conv2d(moth.arange(1, 10):float():view(1, 1, 3, 3), moth.ones(1, 1, 2, 2))", [=[
[[[[12., 16.],
   [24., 28.]]]]]=] },
  conv1d = {
    "moth.conv1d(moth.tensor{ { { 1, 2, 3 } } }, moth.tensor{ { { 1, 10 } } }, { padding = 1 })",
    "[[[10., 21., 32.,  3.]]]" },
  conv_transpose2d = { "moth.conv_transpose2d(moth.tensor{ { { { 1, 2 } } } }, moth.ones(1, 1, 2, 2))", [=[
[[[[1., 3., 2.],
   [1., 3., 2.]]]]]=] },
  conv_transpose1d = {
    "moth.conv_transpose1d(moth.tensor{ { { 1, 2 } } }, moth.tensor{ { { 1, 10 } } }, { stride = 2 })",
    "[[[ 1., 10.,  2., 20.]]]" },
  im2col = { "moth.im2col(moth.arange(1, 10):view(1, 1, 3, 3), 2)", [=[
[[[1, 2, 4, 5],
  [2, 3, 5, 6],
  [4, 5, 7, 8],
  [5, 6, 8, 9]]]]=] },
  col2im = { "moth.col2im(moth.ones(1, 4, 4), { 3, 3 }, 2)", [=[
[[[[1., 2., 1.],
   [2., 4., 2.],
   [1., 2., 1.]]]]]=] },
  max_pool2d_with_indices = { "moth.max_pool2d_with_indices(moth.arange(1, 17):float():view(1, 4, 4), 2)", [=[
[[[ 6.,  8.],
  [14., 16.]]]
[[[ 6,  8],
  [14, 16]]]]=] },
  max_pool2d = { "moth.max_pool2d(moth.arange(1, 17):float():view(1, 4, 4), 2)", [=[
[[[ 6.,  8.],
  [14., 16.]]]]=] },
  max_pool1d_with_indices = { "moth.max_pool1d_with_indices(moth.tensor{ { 1, 5, 2, 4 } }, 2)", [=[
[[5., 4.]]
[[2, 4]]]=] },
  max_pool1d = { "moth.max_pool1d(moth.tensor{ { 1, 5, 2, 4 } }, 2)", "[[5., 4.]]" },
  avg_pool2d = { "moth.avg_pool2d(moth.arange(1, 17):float():view(1, 4, 4), 2)", [=[
[[[ 3.5000,  5.5000],
  [11.5000, 13.5000]]]]=] },
  avg_pool1d = { "moth.avg_pool1d(moth.tensor{ { 1, 5, 2, 4 } }, 2)", "[[3., 3.]]" },
  adaptive_avg_pool2d = {
    "moth.adaptive_avg_pool2d(moth.arange(1, 17):float():view(1, 4, 4), { 1, 2 })",
    "[[[7.5000, 9.5000]]]" },
  adaptive_avg_pool1d = { "moth.adaptive_avg_pool1d(moth.tensor{ { 1, 5, 2, 4 } }, 2)", "[[3., 3.]]" },
  adaptive_max_pool2d_with_indices = {
    "moth.adaptive_max_pool2d_with_indices(moth.arange(1, 17):float():view(1, 4, 4), { 1, 2 })",
    [=[
[[[14., 16.]]]
[[[14, 16]]]]=] },
  adaptive_max_pool2d = {
    "moth.adaptive_max_pool2d(moth.arange(1, 17):float():view(1, 4, 4), { 1, 2 })",
    "[[[14., 16.]]]" },
  upsample_nearest = { "moth.upsample_nearest(moth.tensor{ { { 1, 2 } } }, { 4 })", "[[[1., 1., 2., 2.]]]" },
  upsample_linear = {
    "moth.upsample_linear(moth.tensor{ { { 1, 2 } } }, { 4 }, { align_corners = true })",
    "[[[1.0000, 1.3333, 1.6667, 2.0000]]]" },
  conv3d = { "moth.conv3d(moth.ones(1, 1, 2, 2, 2), moth.ones(1, 1, 2, 2, 2))", "[[[[[8.]]]]]" },
  conv_transpose3d = { "moth.conv_transpose3d(moth.ones(1, 1, 1, 1, 1), moth.ones(1, 1, 1, 2, 2))", [=[
[[[[[1., 1.],
    [1., 1.]]]]]]=] },
  max_pool3d_with_indices = { "moth.max_pool3d_with_indices(moth.arange(1, 9):float():view(1, 2, 2, 2), 2)", [=[
[[[[8.]]]]
[[[[8]]]]]=] },
  max_pool3d = { "moth.max_pool3d(moth.arange(1, 9):float():view(1, 2, 2, 2), 2)", "[[[[8.]]]]" },
  avg_pool3d = { "moth.avg_pool3d(moth.arange(1, 9):float():view(1, 2, 2, 2), 2)", "[[[[4.5000]]]]" },
  adaptive_avg_pool3d = {
    "moth.adaptive_avg_pool3d(moth.arange(1, 9):float():view(1, 2, 2, 2), { 1, 1, 2 })",
    "[[[[4., 5.]]]]" },
  adaptive_max_pool3d_with_indices = { [=[
local x = moth.arange(1, 9):float():view(1, 2, 2, 2)
return moth.adaptive_max_pool3d_with_indices(x, { 1, 1, 2 })]=], [=[
[[[[7., 8.]]]]
[[[[7, 8]]]]]=] },
  adaptive_max_pool3d = {
    "moth.adaptive_max_pool3d(moth.arange(1, 9):float():view(1, 2, 2, 2), { 1, 1, 2 })",
    "[[[[7., 8.]]]]" },
  scaled_dot_product_attention = { [=[
local q, k, v = moth.zeros(1, 2, 4), moth.zeros(1, 2, 4), moth.tensor{ { { 1, 2 }, { 3, 4 } } }
return moth.scaled_dot_product_attention(q, k, v, { is_causal = true })]=], [=[
[[[1., 2.],
  [2., 3.]]]]=] },
  rope = { [=[
local x, angle = moth.tensor{ 1, 0, 0, 1 }, moth.tensor{ 0, math.pi / 2 }
return moth.rope(x, angle:cos(), angle:sin()):round()]=], "[ 1., -1.,  0., -0.]" },
  kv_write_ = { [=[
local k, v = moth.zeros(2, 1, 2, 1), moth.zeros(2, 1, 2, 1)
k:kv_write_(v, moth.tensor{ { { 5 } }, { { 6 } } }, moth.ones(2, 1, 1), moth.tensor({ 4, 1 }, { dtype = moth.int64 }))
return k:view(-1)]=], "[6., 0., 0., 5.]" },
  paged_attention = { [=[
local k, v = moth.zeros(3, 1, 2, 4), moth.arange(1, 7):float():view(3, 1, 2, 1)
local int = { dtype = moth.int64 }
local blocks, lengths, counts = moth.tensor({ { 3, 1 } }, int), moth.tensor({ 3 }, int), moth.tensor({ 2 }, int)
return moth.paged_attention(moth.zeros(2, 1, 4), k, v, blocks, lengths, counts):view(-1)]=], "[5.5000, 4.0000]" },
  rand = { "moth.rand(2, 3)", [=[
[[0.3990, 0.8805, 0.7357],
 [0.6055, 0.9722, 0.3621]]]=] },
  randn = { "moth.randn(3, { generator = moth.Generator(7) })", "[-0.2154, -0.2158,  2.0199]" },
  randint = { "moth.randint(1, 7, { 5 })", "[3, 5, 6, 5, 1]" },
  randperm = { "moth.randperm(5)", "[5, 2, 4, 3, 1]" },
  rand_like = { "moth.rand_like(moth.zeros(2, 3)):size()", "[2, 3]" },
  randn_like = { "moth.randn_like(moth.zeros(2, 3)):size()", "[2, 3]" },
  uniform_ = { "moth.zeros(1000):uniform_(2, 3):lt(2):any()", "false" },
  normal_ = { "moth.zeros(3):normal_(10, 0)", "[10., 10., 10.]" },
  bernoulli_ = { "moth.zeros(5):bernoulli_(1)", "[1., 1., 1., 1., 1.]" },
  bernoulli = { "moth.bernoulli(moth.tensor{ 0, 1, 1 })", "[0., 1., 1.]" },
  multinomial = { "moth.multinomial(moth.tensor{ 0, 1, 0 }, 3, true)", "[2, 2, 2]" },
  standard_gamma = { "moth.standard_gamma(moth.ones(100)):gt(0):all()", "true" },
  poisson = { "moth.poisson(moth.tensor{ 0, 0 })", "[0., 0.]" },
  binomial = { "moth.binomial(moth.tensor{ 3, 4 }, moth.tensor{ 0, 1 })", "[0., 4.]" },
  exponential_ = { "moth.zeros(100):exponential_(2):gt(0):all()", "true" },
  cauchy_ = { "moth.zeros(2, 3):cauchy_():size()", "[2, 3]" },
  log_normal_ = { "moth.zeros(100):log_normal_():gt(0):all()", "true" },
  geometric_ = { "moth.zeros(100):geometric_(0.5):ge(1):all()", "true" },
  erfinv = { "moth.erfinv(moth.tensor{ 0, 0.5, -1 })", "[0.0000, 0.4769,   -inf]" },
  sinc = { "moth.sinc(moth.tensor{ 0, 0.5, 0.25 })", "[1.0000, 0.6366, 0.9003]" },
  xlogy = { "moth.xlogy(moth.tensor{ 0, 2 }, moth.tensor{ 0, 3 })", "[0.0000, 2.1972]" },
  igamma = { "moth.igamma(moth.tensor{ 1, 2 }, moth.tensor{ 1, 1 })", "[0.6321, 0.2642]" },
  igammac = { "moth.igammac(moth.tensor{ 1, 2 }, moth.tensor{ 1, 1 })", "[0.3679, 0.7358]" },
  mvlgamma = { "moth.mvlgamma(moth.tensor{ 3, 4 }, 2)", "[1.5502, 3.5651]" },
  i0 = { "moth.i0(moth.tensor{ 0, 1, 2 })", "[1.0000, 1.2661, 2.2796]" },
  view_as = { "moth.view_as(moth.arange(1, 5), moth.zeros(2, 2))", [=[
[[1, 2],
 [3, 4]]]=] },
  reshape_as = { "moth.reshape_as(moth.arange(1, 5), moth.zeros(2, 2))", [=[
[[1, 2],
 [3, 4]]]=] },
  adjoint = { "moth.adjoint(moth.tensor{ { 1, 2 }, { 3, 4 } })", [=[
[[1., 3.],
 [2., 4.]]]=] },
  atleast_1d = { "moth.atleast_1d(moth.tensor(3))", "[3.]" },
  atleast_2d = { "moth.atleast_2d(moth.tensor{ 1, 2 })", "[[1., 2.]]" },
  atleast_3d = { "moth.atleast_3d(moth.tensor{ 1, 2 }):size()", "[1, 2, 1]" },
  rot90 = { "moth.rot90(moth.tensor{ { 1, 2 }, { 3, 4 } })", [=[
[[2., 4.],
 [1., 3.]]]=] },
  unfold = { "moth.arange(1, 6):unfold(1, 3, 2)", [=[
[[1, 2, 3],
 [3, 4, 5]]]=] },
  diag_embed = { "moth.diag_embed(moth.tensor{ 1, 2 })", [=[
[[1., 0.],
 [0., 2.]]]=] },
  diagflat = { "moth.diagflat(moth.tensor{ 1, 2 })", [=[
[[1., 0.],
 [0., 2.]]]=] },
  select_scatter = { "moth.select_scatter(moth.zeros(2, 2), moth.tensor{ 5, 6 }, 1, 2)", [=[
[[0., 0.],
 [5., 6.]]]=] },
  slice_scatter = { "moth.slice_scatter(moth.zeros(4), moth.tensor{ 5, 6 }, 1, 1, 3)", "[0., 5., 6., 0.]" },
  diagonal_scatter = { "moth.diagonal_scatter(moth.zeros(2, 2), moth.tensor{ 5, 6 })", [=[
[[5., 0.],
 [0., 6.]]]=] },
  index_fill = {
    [[moth.index_fill(moth.zeros(3), 1, moth.tensor({ 1, -1 }, { dtype = "int64" }), 5)]],
    "[5., 0., 5.]" },
  index_fill_ = { [[moth.zeros(3):index_fill_(1, moth.tensor({ 1, -1 }, { dtype = "int64" }), 5)]], "[5., 0., 5.]" },
  take = {
    [[moth.take(moth.tensor{ { 1, 2 }, { 3, 4 } }, moth.tensor({ 1, 4, -1 }, { dtype = "int64" }))]],
    "[1., 4., 4.]" },
  put = { [[moth.put(moth.zeros(2, 2), moth.tensor({ 1, 4 }, { dtype = "int64" }), moth.tensor{ 5, 6 })]], [=[
[[5., 0.],
 [0., 6.]]]=] },
  put_ = { [[moth.zeros(2, 2):put_(moth.tensor({ 1, 1 }, { dtype = "int64" }), moth.tensor{ 5, 6 }, true)]], [=[
[[11.,  0.],
 [ 0.,  0.]]]=] },
  cummax = { "moth.cummax(moth.tensor{ 1, 3, 2 }, 1)", [=[
[1., 3., 3.]
[1, 2, 2]]=] },
  cummin = { "moth.cummin(moth.tensor{ 3, 1, 2 }, 1)", [=[
[3., 1., 1.]
[1, 2, 2]]=] },
  logcumsumexp = { "moth.logcumsumexp(moth.zeros(3), 1)", "[0.0000, 0.6931, 1.0986]" },
  msort = { "moth.msort(moth.tensor{ 3, 1, 2 })", "[1., 2., 3.]" },
  mode = { "moth.mode(moth.tensor{ 3, 1, 3 })", [=[
3.
3]=] },
  quantile = { "moth.quantile(moth.tensor{ 1, 2, 3, 4 }, 0.5)", "2.5000" },
  nanquantile = { "moth.nanquantile(moth.tensor{ 1, 0 / 0, 3 }, 0.5)", "2." },
  nansum = { "moth.nansum(moth.tensor{ 1, 0 / 0, 3 })", "4." },
  nanmean = { "moth.nanmean(moth.tensor{ 1, 0 / 0, 3 })", "2." },
  histc = { "moth.histc(moth.tensor{ 1, 2, 1, 4 }, { bins = 4, min = 1, max = 5 })", "[2., 1., 0., 1.]" },
  searchsorted = { "moth.searchsorted(moth.tensor{ 1, 3, 5 }, moth.tensor{ 0, 3, 9 })", "[1, 2, 4]" },
  bucketize = { "moth.bucketize(moth.tensor{ 0, 3, 9 }, moth.tensor{ 1, 3, 5 })", "[1, 2, 4]" },
  dist = { "moth.dist(moth.tensor{ 1, 2 }, moth.tensor{ 4, 6 })", "5." },
  renorm = { "moth.renorm(moth.tensor{ { 3, 4 }, { 0.3, 0.4 } }, 2, 1, 1)", [=[
[[0.6000, 0.8000],
 [0.3000, 0.4000]]]=] },
  cov = { "moth.cov(moth.tensor{ { 1, 2, 3 }, { 3, 2, 1 } })", [=[
[[ 1., -1.],
 [-1.,  1.]]]=] },
  corrcoef = { "moth.corrcoef(moth.tensor{ { 1, 2, 3 }, { 3, 2, 1 } })", [=[
[[ 1., -1.],
 [-1.,  1.]]]=] },
  trapezoid = { "moth.trapezoid(moth.tensor{ 1, 2, 3 })", "4." },
  cumulative_trapezoid = { "moth.cumulative_trapezoid(moth.tensor{ 1, 2, 3 })", "[1.5000, 4.0000]" },
  -- quantization
  fake_quantize = { "moth.fake_quantize(moth.tensor{ 0.24, 0.26, 9 }, 0.1, 0, -8, 7)", "[0.2000, 0.3000, 0.7000]" },
  fake_quantize_per_tensor_affine = {
    "moth.fake_quantize_per_tensor_affine(moth.tensor{ 0.24, 0.26, 9 }, 0.1, 0, -8, 7)", "[0.2000, 0.3000, 0.7000]" },
  fake_quantize_per_channel_affine = {
    [[moth.fake_quantize_per_channel_affine(moth.tensor{ { 0.24 }, { 0.26 } }, moth.tensor{ 0.1, 0.5 },
  moth.zeros(2), 1, -8, 7)]], "[[0.2000],\n [0.5000]]" },
  quantize_per_tensor = { "moth.quantize_per_tensor(moth.tensor{ -1, 0, 0.5, 99 }, 0.1, 10, moth.uint8)", "[  0,  10,  15, 255]" },
  quantize_per_channel = {
    [[moth.quantize_per_channel(moth.tensor{ { 1, -2 }, { 1, -2 } }, moth.tensor{ 0.1, 1 }, moth.zeros(2), 1, moth.int8)]],
    "[[ 10, -20],\n [  1,  -2]]" },
  dequantize = { "moth.dequantize(moth.tensor({ 0, 10, 15 }, { dtype = moth.uint8 }), 0.1, 10)", "[-1.0000,  0.0000,  0.5000]" },
  pack_int8 = { "moth.pack_int8(moth.ones(2, 3):to(moth.int8)):size()", "[128]" },
  linear_int8 = {
    [[moth.linear_int8(moth.tensor{ { 1, 2 } }, moth.tensor({ { 10, 20 } }, { dtype = moth.int8 }), moth.tensor{ 0.1 },
  { input_scale = 0.01 })]], "[[5.]]" },
  linear_int8_dynamic = {
    [[moth.linear_int8_dynamic(moth.tensor{ { 1, 2 } }, moth.tensor({ { 10, 20 } }, { dtype = moth.int8 }),
  moth.tensor{ 0.1 })]], "[[4.9961]]" },
  conv2d_int8 = {
    [[moth.conv2d_int8(moth.ones(1, 2, 2), moth.ones(1, 1, 2, 2):to(moth.int8), moth.tensor{ 0.5 }, { input_scale = 0.01 })]],
    "[[[2.]]]" },
  linear_int4 = {
    [[moth.linear_int4(moth.ones(1, 4), moth.tensor({ { 0x98, 0xba } }, { dtype = moth.uint8 }), moth.tensor{ { 0.5 } })]],
    "[[3.]]" },
  unpack_blocks = { [[moth.unpack_blocks(moth.tensor({ 0, 0x3c, 0x98, 0xba }, { dtype = moth.uint8 }):repeat_interleave(
  moth.tensor({ 1, 1, 1, 15 }, { dtype = moth.int64 })), "Q4_0"):narrow(1, 1, 4)]], "[0., 2., 2., 2.]" },
  linear_blocks = { [[moth.linear_blocks(moth.ones(32), moth.tensor({ { 0, 0x3c, 0x98, 0xba } }, { dtype = moth.uint8 })
  :repeat_interleave(moth.tensor({ 1, 1, 1, 15 }, { dtype = moth.int64 }), 2), "Q4_0")]], "[76.]" },
  embedding_blocks = { [[moth.embedding_blocks(moth.zeros(2, 18, { dtype = moth.uint8 }), "Q4_0",
  moth.tensor({ 1, 2, 1 }, { dtype = moth.int64 })):size()]], "[3, 32]" },
  embedding_int8 = {
    [[moth.embedding_int8(moth.tensor({ { 1, 2 }, { 3, 4 } }, { dtype = moth.int8 }), moth.tensor{ 0.5, 10 },
  moth.tensor({ 2, 1 }, { dtype = moth.int64 }))]], "[[30.0000, 40.0000],\n [ 0.5000,  1.0000]]" },
}
