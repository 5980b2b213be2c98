-- Order statistics, counts, running extremes, integrals. Positions count from index_base.
local is_float = { "is_float(self)", "expected a float dtype, got {self.dtype}", "type" }

return {
{ "native_running_max(Tensor self, Dim dim) -> Tensor",
  kind = "scan",
  out = "self.dtype",
  join = "max",
  grad = "none",
  reference = "running_max",
  samples = { "randn(3,4), 1", "randn(3,7), 2" },
  errors = { { "randn(2), 2", "out of range" } },
  doc = "The largest so far along dim; NaN from the first one on." },
{ "native_running_min(Tensor self, Dim dim) -> Tensor",
  kind = "scan",
  out = "self.dtype",
  join = "min",
  grad = "none",
  reference = "running_min",
  samples = { "randn(3,4), 1", "randn(3,7), 2" },
  errors = { { "randn(2), 2", "out of range" } },
  doc = "The smallest so far along dim; NaN from the first one on." },
{ "cummax(Tensor self, Dim dim, index_base) -> (Tensor, Tensor)",
  kind = "composite",
  expr = [[
    local x = atleast_1d(self)
    local at = last_hits(x, native_running_max(x, dim), dim)
    return reshape(gather(x, dim, at, 0), self.shape), reshape(at + index_base, self.shape)]],
  grad = "composite",
  reference = "cummax",
  samples = { "randn(3,4), 1", "randint(0, 3, {4,7}), 2", "tensor{1, nan, 3, 2}, 1", "randn(0,3), 1" },
  errors = { { "randn(2), 2", "out of range" } },
  doc = "The largest so far along dim, and the position of the last such." },
{ "cummin(Tensor self, Dim dim, index_base) -> (Tensor, Tensor)",
  kind = "composite",
  expr = [[
    local x = atleast_1d(self)
    local at = last_hits(x, native_running_min(x, dim), dim)
    return reshape(gather(x, dim, at, 0), self.shape), reshape(at + index_base, self.shape)]],
  grad = "composite",
  reference = "cummin",
  samples = { "randn(3,4), 1", "randint(0, 3, {4,7}), 2", "tensor{1, nan, 3, 2}, 1" },
  errors = { { "randn(2), 2", "out of range" } },
  doc = "The smallest so far along dim, and the position of the last such." },
{ "logcumsumexp(Tensor self, Dim dim) -> Tensor",
  kind = "composite", amp = "high",
  expr = [[
    local x = atleast_1d(as(self, working(self)))
    local n = x.shape[dim]
    local y = fold(x, doublings(n), function(z, k)
      local stride = power_of(2, k)
      local before, a, b = narrow(z, dim, 0, stride), narrow(z, dim, stride, n - stride), narrow(z, dim, 0, n - stride)
      return cat(tensors(before, logaddexp(a, b)), dim)
    end)
    return reshape(narrowed(y, self), self.shape)]],
  check = { is_float },
  grad = "composite",
  reference = "logcumsumexp",
  samples = { "randn(3,4), 1", "randn(3,7) * 100, 2" },
  errors = { { "randn(2), 2", "out of range" }, { "tensor({1,2},{dtype=int64}), 1", "float" } },
  doc = "log(cumsum(exp(self))) along dim, without overflow." },
{ "msort(Tensor self, index_base) -> Tensor",
  kind = "composite",
  expr = [[
    local values, positions = sort(self, 0, false, index_base)
    return values]],
  grad = "composite",
  reference = "msort",
  samples = { "randn(5,3)", "randn(4)" },
  doc = "Sorted along the first dimension." },
{ "mode(Tensor self, Dim dim=-1, bool keepdim=false, index_base) -> (Tensor, Tensor)",
  kind = "composite",
  expr = [[
    local x = atleast_1d(self)
    local n = x.shape[dim]
    local values, order = sort(x, dim, false, 0)
    local differs = ne(narrow(values, dim, 1, n - 1), narrow(values, dim, 0, n - 1))
    local first = full_of(x, replace(x.shape, dim, 1), true, dtype_named("bool"))
    local at = along(x, dim)
    local starts = native_running_max(where(cat(tensors(first, differs), dim), at, 0), dim)
    local place = argmax(at - starts, dim, true, 0)
    local size = when(equal(self.ndim, 0), list(), when(keepdim, place.shape, remove(place.shape, dim)))
    return reshape(gather(x, dim, gather(order, dim, place, 0), 0), size),
      reshape(gather(order, dim, place, 0) + index_base, size)]],
  check = { { "gt(when(equal(self.ndim, 0), 1, self.shape[dim]), 0)", "there are no elements along dim" } },
  grad = "composite",
  reference = "mode",
  samples = { "randint(0, 4, {4,9})", "randint(0, 3, {5,3}), 1, true", "randn(4), 1" },
  errors = { { "randn(2), 2", "out of range" }, { "randn(2,0)", "no elements" } },
  doc = "The most frequent value along dim (the smallest of several), and the position of its last element." },
{ "quantile(Tensor self, Operand q, Dim? dim=none, bool keepdim=false, enum('linear','lower','higher','midpoint','nearest') interpolation='linear', index_base) -> Tensor",
  kind = "composite", amp = "high",
  expr = "narrowed(quantile_of(as(self, working(self)), q, dim, keepdim, interpolation, false), self)",
  check = {
    is_float,
    { "either(is_number(q), le(q.ndim, 1))", "q must be a number or a 1-D tensor" },
    { "either(negate(is_number(q)), both(ge(as_number(q), 0), le(as_number(q), 1)))", "q must be between 0 and 1, got {q}" },
    { "either(is_number(q), same_dtype(self, q))", "q must have the dtype of self, {self.dtype}", "type" },
    { "gt(self.numel, 0)", "expected a tensor with elements" },
  },
  grad = "composite",
  reference = "quantile",
  samples = { "randn(3,5), 0.3", "randn(3,5), 0.7, 1", "randn(3,4), tensor{0.1, 0.25, 0.9}, 2, true", "randn(7), 0.4, 1, false, 'nearest'" },
  errors = { { "randn(3), 2", "between 0 and 1" }, { "randn(3), 0.5, 2", "out of range" }, { "tensor({1},{dtype=int64}), 0.5", "float" } },
  doc = "The q-quantiles along dim (of all elements), between the two neighbours by interpolation; several q stand in a \z
    first dimension. NaN if an element is NaN." },
{ "nanquantile(Tensor self, Operand q, Dim? dim=none, bool keepdim=false, enum('linear','lower','higher','midpoint','nearest') interpolation='linear', index_base) -> Tensor",
  kind = "composite", amp = "high",
  expr = "narrowed(quantile_of(as(self, working(self)), q, dim, keepdim, interpolation, true), self)",
  check = {
    is_float,
    { "either(is_number(q), le(q.ndim, 1))", "q must be a number or a 1-D tensor" },
    { "either(negate(is_number(q)), both(ge(as_number(q), 0), le(as_number(q), 1)))", "q must be between 0 and 1, got {q}" },
    { "either(is_number(q), same_dtype(self, q))", "q must have the dtype of self, {self.dtype}", "type" },
    { "gt(self.numel, 0)", "expected a tensor with elements" },
  },
  grad = "composite",
  reference = "quantile",
  samples = { "randn(3,5), 0.3", "tensor{3, nan, 1, 2}, 0.5" },
  errors = { { "randn(3), 2", "between 0 and 1" }, { "randn(3), 0.5, 2", "out of range" }, { "tensor({1},{dtype=int64}), 0.5", "float" } },
  doc = "quantile of the elements that are not NaN." },
{ "nansum(Tensor self, Dim[]? dim=none, bool keepdim=false, dtype? dtype=none) -> Tensor",
  kind = "composite",
  expr = [[
    local given_x = when(given(dtype), to(self, dtype), self)
    return when(is_float(given_x), native_nansum(given_x, dim, keepdim),
      sum(when(inexact(self), masked_fill(self, isnan(self), 0), self), dim, keepdim, dtype))]],
  grad = "composite",
  reference = "nansum",
  samples = { "randn(3,4)", "tensor{{1, nan, 3}, {nan, nan, 2}}, 1", "tensor{{1, nan, 3}, {nan, nan, 2}}, {2}, true" },
  errors = { { "randn(2), 2", "out of range" }, { "randn(2,2), {1,1}", "twice" } },
  doc = "Sum over dim, without NaN." },
{ "native_nansum(Tensor self, Dim[]? dim=none, bool keepdim=false) -> Tensor",
  kind = "reduce", amp = "high",
  dims = { self = "* : float" },
  map = "where(eq(x, x), x, 0)", join = "sum",
  grad = { self = "masked_fill(reduce_expand(grad, self.shape, dim, keepdim), isnan(self), 0)" },
  reference = "nansum",
  samples = { "randn(3,4)", "tensor{{1, nan, 3}, {nan, nan, 2}}, 1" },
  errors = { { "randn(2), 2", "out of range" }, { "randn(2,2), {1,1}", "twice" } },
  doc = "nansum of floats, in one pass." },
{ "nanmean(Tensor self, Dim[]? dim=none, bool keepdim=false, dtype? dtype=none) -> Tensor",
  kind = "composite",
  expr = "nansum(self, dim, keepdim, dtype) / sum(logical_not(isnan(self)), dim, keepdim)",
  check = { { "is_float(default_to(dtype, self.dtype))", "expected a float dtype, got {self.dtype}; give one by dtype", "type" } },
  grad = "composite",
  reference = "nanmean",
  samples = { "randn(3,4)", "tensor{{1, nan, 3}, {4, nan, 2}}, 1, true" },
  errors = { { "randn(2), 2", "out of range" }, { "tensor({1,2},{dtype=int64})", "float" } },
  doc = "Mean over dim of what is not NaN." },
{ "histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor",
  kind = "composite",
  expr = [[
    local x = reshape(as(self, working(self)), list(self.numel))
    local own = both(equal(min, max), gt(self.numel, 0))
    local least, most = when(own, amin(x), full_of(x, list(), min, none)), when(own, amax(x), full_of(x, list(), max, none))
    local same = eq(least, most)
    local low, high = where(same, least - 1, least), where(same, most + 1, most)
    local inside = logical_and(ge(x, low), le(x, high))
    local bin = clamp(floor((x - low) / (high - low) * bins), 0, bins - 1)
    local at = to(masked_fill(bin, logical_not(inside), bins), dtype_named("int64"))
    return narrowed(narrow(index_add(zeros_of(x, list(bins + 1), none), 0, at, ones_like(x), 0), 0, 0, bins), self)]],
  check = {
    is_float, { "gt(bins, 0)", "bins must be positive, got {bins}" }, { "le(min, max)", "max must not be below min, got {min} and {max}" },
    { "both(gt(min, 0 - inf), lt(max, inf))", "min and max must be finite, got {min} and {max}" },
  },
  grad = "none",
  reference = "histc",
  samples = { "randn(50), 7", "rand(3,20), 4, 0, 1", "tensor{1, 2, nan, 5, -3, 2.5}, 4, 1, 3", "tensor{2, 2}, 4" },
  errors = { { "randn(2), 0", "bins" }, { "randn(2), 3, 2, 1", "max" }, { "randn(2), 3, 0, inf", "finite" }, { "tensor({1,2},{dtype=int64})", "float" } },
  doc = "Counts of the elements in `bins` equal parts of [min, max], or of the range of self where both are the same." },
{ "native_searchsorted(Tensor table, Tensor wanted, bool right=false, index_base) -> Tensor",
  kind = "fused", batch = "loop",
  dims = { wanted = "*I : table" }, out = "*I : int64",
  check = {
    { "gt(table.ndim, 0)", "table must have at least 1 dimension" },
    { "either(equal(table.ndim, 1), same_list(first_n(table.shape, table.ndim - 1), first_n(wanted.shape, wanted.ndim - 1)))",
      "table and wanted must have the same sizes but the last, or table be 1-D" },
  },
  decompose = "searched(table, wanted, right, index_base)",
  grad = { table = "no", wanted = "no" },
  reference = "native_searchsorted",
  samples = {
    "tensor{1, 3, 3, 5, 9}, tensor{{3, 0}, {6, 10}}", "tensor{1, 3, 3, 5, 9}, tensor{3, 9}, true",
    "tensor{{1, 2, 4}, {0, 5, 7}}, randn(2,3)", "tensor{1, 2, 4}, tensor(3)", "randn(0), randn(2)", "randn(2,3,0), randn(2,3,2)",
    "randn(70):sort(), randn(5,17)", "tensor{1, 3, nan, nan}, tensor{2, 9, nan, inf, -inf}, true",
  },
  errors = {
    { "randn(2,3), randn(3,3)", "same sizes" }, { "randn(), randn(2)", "at least 1" }, { "randn(2,2), randn()", "same sizes" },
    { "randn(2), tensor({1},{dtype=int64})", "dtype" },
  },
  doc = "searchsorted of tensors of one dtype." },
{ "searchsorted(Tensor sorted_sequence, Tensor input, bool out_int32=false, bool right=false, enum('left','right')? side=none, IndexTensor? sorter=none, index_base) -> Tensor",
  kind = "composite",
  expr = [[
    local s = when(given(sorter), gather(sorted_sequence, -1, sorter, index_base), sorted_sequence)
    local upper = either(right, both(given(side), eq(side, "right")))
    local positions = when(same_dtype(s, input), native_searchsorted(s, input, upper, index_base), searched(s, input, upper, index_base))
    return when(out_int32, to(positions, dtype_named("int32")), positions)]],
  check = {
    { "gt(sorted_sequence.ndim, 0)", "sorted_sequence must have at least 1 dimension" },
    { "either(equal(sorted_sequence.ndim, 1), same_list(first_n(sorted_sequence.shape, sorted_sequence.ndim - 1), first_n(input.shape, input.ndim - 1)))",
      "sorted_sequence and input must have the same sizes but the last, or sorted_sequence be 1-D" },
    { "negate(both(given(side), both(right, eq(side, \"left\"))))", "side is left, but right is true" },
  },
  grad = "none",
  reference = "searchsorted",
  samples = {
    "tensor{1, 3, 3, 5, 9}, tensor{{3, 0}, {6, 10}}", "tensor{1, 3, 3, 5, 9}, tensor{3, 9}, false, true",
    "tensor{{1, 2, 4}, {0, 5, 7}}, randn(2,3)", "tensor{1, 2, 4}, tensor(3), {side='right'}",
  },
  errors = {
    { "randn(2,3), randn(3,3)", "same sizes" }, { "randn(), randn(2)", "at least 1" }, { "randn(2,2), randn()", "same sizes" },
  },
  doc = "Where each input belongs in a sorted sequence (rows: along the last dimension): the position before which it goes \z
    in, in front of equal ones, or behind them with right or side = 'right'. NaN is larger than all numbers." },
{ "bucketize(Tensor input, Tensor boundaries, bool out_int32=false, bool right=false, index_base) -> Tensor",
  kind = "composite",
  expr = "searchsorted(boundaries, input, out_int32, right, none, none, index_base)",
  check = { { "equal(boundaries.ndim, 1)", "boundaries must be 1-D, got {boundaries.ndim} dimensions" } },
  grad = "none",
  reference = "bucketize",
  samples = { "randn(3,4), tensor{-1, 0, 1}", "tensor{1, 2}, tensor{1, 2, 3}, false, true" },
  errors = { { "randn(2), randn(2,2)", "1%-D" } },
  doc = "The position of the first boundary that is not below input (right: that is above it)." },
{ "dist(Tensor self, Tensor other, Scalar p=2) -> Tensor",
  kind = "composite", amp = "high",
  expr = "norm(self - other, p)",
  check = { { "inexact(self)", "expected a float dtype, got {self.dtype}", "type" } },
  grad = "composite",
  reference = "dist",
  samples = { "randn(3,4), randn(3,4)", "randn(3,1), randn(4), 1", "randn(4), randn(4), inf" },
  doc = "The p-norm of self - other." },
{ "renorm(Tensor self, Scalar p, Dim dim, Scalar maxnorm) -> Tensor",
  kind = "composite", amp = "high",
  expr = [[
    local size = norm(self, p, others(self.ndim, list(dim)), true)
    return self * where(gt(size, maxnorm), maxnorm / (size + 1e-7), 1)]],
  check = {
    { "gt(self.ndim, 1)", "expected at least 2 dimensions, got {self.ndim}" }, { "gt(p, 0)", "p must be positive, got {p}" },
    { "ge(maxnorm, 0)", "maxnorm must not be negative, got {maxnorm}" },
  },
  grad = "composite",
  reference = "renorm",
  samples = { "randn(3,4), 2, 1, 1", "randn(3,4), 1, 2, 100" },
  errors = { { "randn(3), 2, 1, 1", "at least 2" }, { "randn(2,2), 0, 1, 1", "positive" }, { "randn(2,2), 1, 1, -1", "negative" } },
  doc = "Slices along dim scaled down to a p-norm of at most maxnorm." },
{ "cov(Tensor self, int correction=1, Tensor? fweights=none, Tensor? aweights=none) -> Tensor",
  kind = "composite",
  expr = [[
    local float = when(inexact(self), self, to(self, default_dtype()))
    local x = when(lt(self.ndim, 2), reshape(float, list(1, self.numel)), float)
    local weighted = either(given(fweights), given(aweights))
    local part = op.real(x)
    local one = full_of(part, list(x.shape[1]), 1, none)
    local worth = when(given(aweights), as(aweights, part.dtype), one)
    local w = worth * when(given(fweights), as(fweights, part.dtype), one)
    local total = sum(w)
    local factor = total - sum(w * worth) * correction / total
    local mean = sum(x * w, list(1), true) / total
    local centred = x - mean
    local c = matmul(when(weighted, centred * w, centred), t(conj(centred))) / clamp(factor, 0, none)
    return when(equal(x.shape[0], 1), reshape(c, list()), c)]],
  check = {
    { "le(self.ndim, 2)", "expected at most 2 dimensions, got {self.ndim}" },
    { "either(negate(given(fweights)), both(is_int(fweights), equal(fweights.ndim, 1)))", "fweights must be a 1-D integer tensor" },
    { "either(negate(given(aweights)), both(is_float(aweights), equal(aweights.ndim, 1)))", "aweights must be a 1-D float tensor" },
    { "either(negate(given(fweights)), equal(fweights.numel, when(equal(self.ndim, 2), self.shape[-1], self.numel)))",
      "fweights must have one number for each observation" },
    { "either(negate(given(aweights)), equal(aweights.numel, when(equal(self.ndim, 2), self.shape[-1], self.numel)))",
      "aweights must have one number for each observation" },
  },
  grad = "composite",
  reference = "cov",
  samples = { "randn(3,5)", "randn(6)", "randn(3,5), 0" },
  errors = { { "randn(2,2,2)", "at most 2" }, { "randn(2,3), 1, randn(3)", "integer" }, { "randn(2,3), 1, none, randn(2)", "argument|each" } },
  doc = "The covariance matrix of variables in rows, observations in columns, divided by n - correction; fweights: how \z
    often each was observed, aweights: how much it counts." },
{ "corrcoef(Tensor self) -> Tensor",
  kind = "composite",
  expr = [[
    local c = cov(when(inexact(self), as(self, working(self)), self))
    local deviation = sqrt(op.real(diagonal_of(c, 0)))
    local q = c / unsqueeze(deviation, 1) / unsqueeze(deviation, 0)
    local cut = when(is_complex(q), complex(clamp(op.real(q), -1, 1), clamp(imag(q), -1, 1)), clamp(q, -1, 1))
    local r = when(equal(c.ndim, 0), c / c, cut)
    return when(inexact(self), narrowed(r, self), r)]],
  check = { { "le(self.ndim, 2)", "expected at most 2 dimensions, got {self.ndim}" } },
  grad = "composite",
  reference = "corrcoef",
  samples = { "randn(3,5)", "randn(4)" },
  errors = { { "randn(2,2,2)", "at most 2" } },
  doc = "Pearson's correlation coefficients of variables in rows, observations in columns." },
{ "trapezoid(Tensor y, Tensor? x=none, Scalar dx=1, Dim dim=-1) -> Tensor",
  kind = "composite",
  expr = [[
    local given_y = when(inexact(y), as(y, working(y)), to(y, default_dtype()))
    local n = given_y.shape[dim]
    local ends = narrow(given_y, dim, 0, smaller(n, 1)) + narrow(given_y, dim, larger(n - 1, 0), smaller(n, 1))
    local inner = narrow(given_y, dim, smaller(n, 1), larger(n - 2, 0))
    local even = (sum(inner, list(dim)) + sum(ends, list(dim)) * 0.5) * dx -- the same steps
    return narrowed(when(either(given(x), lt(n, 2)), sum(trapezoids(y, x, dx, dim), list(dim)), even), y)]],
  check = {
    { "gt(y.ndim, 0)", "y must have at least 1 dimension" },
    { "either(negate(given(x)), le(x.ndim, y.ndim))", "x must not have more dimensions than y" },
  },
  grad = "composite",
  reference = "trapezoid",
  samples = { "randn(5)", "randn(3,5), none, 0.5, 1", "randn(3,4), randn(4)", "randn(3,4), randn(3), 1, 1" },
  errors = { { "randn()", "at least 1|out of range" }, { "randn(3), randn(1,3)", "dimensions" } },
  doc = "The integral of y along dim by the trapezoidal rule, at places x (1-D, or broadcast to y) or dx apart." },
{ "cumulative_trapezoid(Tensor y, Tensor? x=none, Scalar dx=1, Dim dim=-1) -> Tensor",
  kind = "composite",
  expr = "narrowed(cumsum(trapezoids(y, x, dx, dim), dim), y)",
  check = {
    { "gt(y.ndim, 0)", "y must have at least 1 dimension" },
    { "either(negate(given(x)), le(x.ndim, y.ndim))", "x must not have more dimensions than y" },
  },
  grad = "composite",
  reference = "cumulative_trapezoid",
  samples = { "randn(5)", "randn(3,5), none, 0.5, 1", "randn(3,4), randn(4)" },
  errors = { { "randn()", "at least 1|out of range" }, { "randn(3), randn(1,3)", "dimensions" } },
  doc = "The integrals of y along dim up to each place but the first." },
}
