-- Matrix products. On the CPU each is a fixed partition into single-threaded BLAS calls.
local frac = { "either(inexact(self), both(whole(beta), whole(alpha)))", "beta and alpha must be integers for {self.dtype}", "type" }

return {
{ "mm(Tensor self, Tensor mat2) -> Tensor",
  kind = "matmul", dtypes = "float,int,bool,complex", parts = "none", amp = "low",
  contract = "self ik, mat2 kj -> ij",
  grad = { self = "mm(grad, t(mat2))", mat2 = "mm(t(self), grad)" },
  reference = "mm",
  samples = { "randn(3,4), randn(4,5)", "randn(3,0), randn(0,2)", "randn(1,7), randn(7,1)" },
  errors = {
    { "randn(2,3), randn(4,5)", "self and mat2 shapes cannot be multiplied %(2x3 and 4x5%)" },
    { "randn(3), randn(3,2)", "must have 2 dimensions" }, { "randn(2,2), randn(2,2):double()", "same dtype" },
  },
  doc = "Matrix product (n×k by k×m)." },
{ "bmm(Tensor self, Tensor mat2) -> Tensor",
  kind = "matmul", dtypes = "float,int,bool,complex", parts = "none", amp = "low",
  contract = "self bik, mat2 bkj -> bij",
  grad = { self = "bmm(grad, transpose(mat2, 1, 2))", mat2 = "bmm(transpose(self, 1, 2), grad)" },
  reference = "bmm",
  samples = { "randn(2,3,4), randn(2,4,5)", "randn(0,3,4), randn(0,4,5)" },
  errors = {
    { "randn(2,3,4), randn(2,3,4)", "cannot be multiplied" }, { "randn(2,3,4), randn(3,4,5)", "mat2 must have the shape %[2, 4, J%]" },
    { "randn(2,3), randn(2,3)", "must have 3 dimensions" },
  },
  doc = "Batched matrix product." },
{ "addmm(Tensor self, Tensor mat1, Tensor mat2, Scalar beta=1, Scalar alpha=1) -> Tensor",
  kind = "matmul", dtypes = "float,int,bool,complex", parts = "none", amp = "low",
  dims = { self = "*S : mat1" }, check = {
    { "expands(S, list(I, J))", "self of shape {S} cannot be expanded to the product's shape {list(I, J)}" },
    { "either(inexact(self), both(whole(beta), whole(alpha)))", "beta and alpha must be integers for {self.dtype}", "type" },
  },
  contract = "mat1 ik, mat2 kj -> ij", finish = "when(equal(beta, 0), s0 * alpha, self * beta + s0 * alpha)",
  grad = {
    self = "scale(grad, beta)", mat1 = "scale(mm(grad, t(mat2)), alpha)", mat2 = "scale(mm(t(mat1), grad), alpha)",
  },
  reference = "addmm",
  samples = { "randn(3,5), randn(3,4), randn(4,5)", "randn(5), randn(3,4), randn(4,5), 0.5, 2" },
  errors = {
    { "randn(5), randn(2,3), randn(4,5)", "cannot be multiplied" },
    { "randn(4), randn(2,3), randn(3,5)", "broadcast|expand" }, { "randn(5), randn(3), randn(3,5)", "mat1 must have 2 dimensions, %[I, K%], got %[3%]" },
  },
  doc = "beta * self + alpha * mat1 @ mat2." },
{ "matmul(Tensor self, Tensor other) -> Tensor",
  kind = "composite", amp = "low",
  expr = [[
    local as_many = both(both(equal(self.ndim, 3), equal(other.ndim, 3)), equal(self.shape[0], other.shape[0]))
    local batches = when(as_many, bmm(self, other), batched_product(self, other))
    local matrices = when(equal(other.ndim, 2), tall_product(self, other), batches)
    local rows = when(equal(other.ndim, 1), squeeze(matmul(self, unsqueeze(other, 1)), -1), matrices)
    return when(both(equal(self.ndim, 1), equal(other.ndim, 1)), dot(self, other),
      when(both(equal(self.ndim, 2), equal(other.ndim, 2)), mm(self, other),
        when(both(equal(self.ndim, 2), equal(other.ndim, 1)), mv(self, other),
          when(equal(self.ndim, 1), squeeze(matmul(unsqueeze(self, 0), other), -2), rows))))]],
  check = {
    { "both(gt(self.ndim, 0), gt(other.ndim, 0))",
      "0-dim tensors cannot be multiplied as matrices; use a * b" },
    { "either(lt(larger(self.ndim, other.ndim), 3), either(lt(smaller(self.ndim, other.ndim), 2), equal(self.shape[-1], other.shape[-2])))",
      "batch1 and batch2 shapes cannot be multiplied ({self.shape[-2]}x{self.shape[-1]} and {other.shape[-2]}x{other.shape[-1]})" },
  },
  grad = "composite",
  reference = "matmul",
  samples = {
    "randn(3,4), randn(4,5)", "randn(4), randn(4)", "randn(3,4), randn(4)", "randn(4), randn(4,2)",
    "randn(2,3,4), randn(4,5)", "randn(2,1,3,4), randn(5,4,2)",
  },
  errors = {
    { "randn(2,3), randn(4,5)", "cannot be multiplied" }, { "randn(3), randn(4)", "cannot be multiplied|size" },
    { "randn(), randn(2)", "0%-dim" },
  },
  doc = "Matrix product with broadcast leading dimensions; vectors are rows or columns." },
{ "dot(Tensor self, Tensor other) -> Tensor",
  kind = "composite", amp = "widest",
  expr = [[
    local product = self * other -- a product of matrices does not round each term to float16
    return when(both(same_dtype(self, other), inexact(self)), squeeze(mm(unsqueeze(self, 0), unsqueeze(other, 1))),
      when(inexact(self), sum(product), to(sum(product), self.dtype)))]],
  check = {
    { "both(equal(self.ndim, 1), equal(other.ndim, 1))",
      "expected two 1-D tensors" },
    { "equal(self.shape[0], other.shape[0])",
      "sizes differ: {self.shape[0]} and {other.shape[0]}; the shapes cannot be multiplied" },
  },
  grad = "composite",
  reference = "dot",
  samples = { "randn(4), randn(4)" },
  errors = { { "randn(3), randn(4)", "size" }, { "randn(2,2), randn(2)", "1%-D" } },
  doc = "Inner product of two vectors." },
{ "mv(Tensor self, Tensor vec) -> Tensor",
  kind = "composite", amp = "low",
  expr = "squeeze(mm(self, unsqueeze(vec, 1)), 1)",
  check = {
    { "both(equal(self.ndim, 2), equal(vec.ndim, 1))",
      "expected a 2-D and a 1-D tensor" },
  },
  grad = "composite",
  reference = "mv",
  samples = { "randn(3,4), randn(4)" },
  errors = { { "randn(3,4), randn(3)", "cannot be multiplied" }, { "randn(2), randn(2)", "2%-D" } },
  doc = "Matrix times vector." },
{ "outer(Tensor self, Tensor vec2) -> Tensor",
  kind = "composite",
  expr = "unsqueeze(self, 1) * vec2",
  check = {
    { "both(equal(self.ndim, 1), equal(vec2.ndim, 1))",
      "expected two 1-D tensors" },
  },
  grad = "composite",
  reference = "outer",
  samples = { "randn(3), randn(4)" },
  errors = { { "randn(3,4), randn(3)", "1%-D" }, { "randn(2), randn(2,2)", "1%-D" } },
  doc = "Outer product of two vectors." },
{ "linear(Tensor input, Tensor weight, Tensor? bias=none) -> Tensor",
  kind = "matmul", dtypes = "float,int,bool,complex", parts = "none", amp = "low",
  dims = { bias = "J : input" },
  contract = "input *k, weight jk -> *j", finish = "when(given(bias), s0 + bias, s0)",
  grad = {
    input = "linear_backward_input(grad, weight)", weight = "linear_backward_weight(grad, input)",
    bias = "linear_backward_bias(grad)",
  },
  reference = "linear",
  samples = {
    "randn(3,4), randn(5,4), randn(5)", "randn(2,3,4), randn(5,4)", "randn(4), randn(5,4), randn(5)",
    "randn(0,4), randn(5,4), randn(5)",
  },
  errors = {
    { "randn(2,3), randn(4,5)", "input and weight shapes cannot be multiplied %(2x3 and 4x5%)" },
    { "randn(2,3), randn(4,3), randn(3)", "bias" }, { "randn(2,3), randn(3)", "must have 2 dimensions" },
  },
  doc = "input @ weight^T + bias over the last dimension; weight is (out, in)." },
{ "baddbmm(Tensor self, Tensor batch1, Tensor batch2, Scalar beta=1, Scalar alpha=1) -> Tensor",
  kind = "matmul", dtypes = "float,int,bool,complex", parts = "none", amp = "low",
  dims = { self = "*S : batch1" }, check = {
    { "expands(S, list(B, I, J))", "self of shape {S} cannot be expanded to the product's shape {list(B, I, J)}" },
    { "either(inexact(self), both(whole(beta), whole(alpha)))", "beta and alpha must be integers for {self.dtype}", "type" },
  },
  contract = "batch1 bik, batch2 bkj -> bij",
  finish = "when(equal(beta, 0), s0 * alpha, self * beta + s0 * alpha)",
  grad = {
    self = "scale(grad, beta)", batch1 = "scale(bmm(grad, transpose(batch2, 1, 2)), alpha)",
    batch2 = "scale(bmm(transpose(batch1, 1, 2), grad), alpha)",
  },
  reference = "baddbmm",
  samples = { "randn(2,3,5), randn(2,3,4), randn(2,4,5)", "randn(5), randn(2,3,4), randn(2,4,5), 0.5, 2" },
  errors = { { "randn(2), randn(2,3,4), randn(2,5,5)", "cannot be multiplied|batch" } },
  doc = "beta self + alpha batch1 @ batch2; with beta 0 self counts for nothing." },
{ "trace(Tensor self) -> Tensor",
  kind = "composite", amp = "high",
  expr = "sum(diagonal(self, 0, 0, 1))",
  check = {
    { "equal(self.ndim, 2)",
      "expected a 2-D tensor, got {self.ndim} dimensions" },
  },
  grad = "composite",
  reference = "trace",
  samples = { "randn(3,4)", "randn(3,3)" },
  errors = { { "randn(3)", "2%-D" } },
  doc = "The sum of the diagonal of a matrix." },
{ "diag(Tensor self, int diagonal=0) -> Tensor",
  kind = "composite",
  expr = [[
    local n = self.shape[0] + when(lt(diagonal, 0), 0 - diagonal, diagonal)
    local matrix = written(zeros_of(self, list(n, n), none), function(w) return diagonal_of(w, diagonal) end, self)
    return when(equal(self.ndim, 2), clone(diagonal_of(self, diagonal)), matrix)]],
  check = {
    { "either(equal(self.ndim, 1), equal(self.ndim, 2))",
      "expected a 1-D or a 2-D tensor, got {self.ndim} dimensions" },
    { "both(lt(diagonal, 4611686018427387904), gt(diagonal, -4611686018427387904))", "diagonal is too large: {diagonal}" },
  },
  grad = "composite",
  reference = "diag",
  samples = { "randn(3)", "randn(3), -2", "randn(2), 1", "randn(3,4), 1", "randn(0)" },
  errors = { { "randn(2,2,2)", "1%-D" } },
  doc = "Of a vector the matrix with it on a diagonal (above the main one: diagonal > 0), of a matrix a copy of that \z
    diagonal." },
{ "addmv(Tensor self, Tensor mat, Tensor vec, Scalar beta=1, Scalar alpha=1) -> Tensor",
  kind = "composite", amp = "low",
  expr = "added(self, mv(mat, vec), beta, alpha)",
  check = { frac, { "both(equal(mat.ndim, 2), equal(vec.ndim, 1))", "expected a 2-D mat and a 1-D vec" } },
  grad = "composite",
  reference = "addmv",
  samples = { "randn(3), randn(3,4), randn(4)", "randn(), randn(3,4), randn(4), 0.5, 2" },
  errors = { { "randn(3), randn(3,4), randn(3)", "cannot be multiplied" }, { "randn(3), randn(3), randn(3)", "2%-D" } },
  doc = "beta self + alpha mat @ vec; with beta 0 self counts for nothing." },
{ "addr(Tensor self, Tensor vec1, Tensor vec2, Scalar beta=1, Scalar alpha=1) -> Tensor",
  kind = "composite", amp = "low",
  expr = [[
    local y = added(self, outer(vec1, vec2), beta, alpha)
    return when(either(inexact(y), is_int(self)), y, when(is_int(vec1), y, to(y, dtype_named("bool"))))]],
  check = { frac, { "both(equal(vec1.ndim, 1), equal(vec2.ndim, 1))", "expected two 1-D tensors" } },
  grad = "composite",
  reference = "addr",
  samples = { "randn(3,4), randn(3), randn(4)", "randn(4), randn(3), randn(4), 0.5, 2" },
  errors = { { "randn(3,3), randn(3), randn(4)", "broadcast|expand" }, { "randn(3), randn(1,3), randn(3)", "1%-D" } },
  doc = "beta self + alpha outer(vec1, vec2); with beta 0 self counts for nothing." },
{ "addbmm(Tensor self, Tensor batch1, Tensor batch2, Scalar beta=1, Scalar alpha=1) -> Tensor",
  kind = "composite", amp = "low",
  expr = [[
    local work = working(batch1)
    return as(added(as(self, work), as(sum(bmm(as(batch1, work), as(batch2, work)), list(0)), work), beta, alpha), batch1.dtype)]],
  check = { frac, { "both(equal(batch1.ndim, 3), equal(batch2.ndim, 3))", "expected two 3-D batches" } },
  grad = "composite",
  reference = "addbmm",
  samples = { "randn(3,5), randn(2,3,4), randn(2,4,5)", "randn(5), randn(2,3,4), randn(2,4,5), 0.5, 2" },
  errors = { { "randn(3,5), randn(2,3,4), randn(2,3,5)", "cannot be multiplied" }, { "randn(3,5), randn(3,4), randn(4,5)", "3%-D" } },
  doc = "beta self + alpha times the sum of batch1 @ batch2 over the batch." },
{ "inner(Tensor self, Tensor other) -> Tensor",
  kind = "composite",
  expr = [[
    local k = when(gt(self.ndim, 0), self.shape[-1], 1)
    local a = reshape(self, list(product(first_n(self.shape, self.ndim - 1)), k))
    local b = reshape(other, list(product(first_n(other.shape, other.ndim - 1)), k))
    local rest = join(first_n(self.shape, self.ndim - 1), first_n(other.shape, other.ndim - 1))
    return when(either(equal(self.ndim, 0), equal(other.ndim, 0)), self * other, reshape(mm(a, t(b)), rest))]],
  check = {
    { "either(either(equal(self.ndim, 0), equal(other.ndim, 0)), equal(self.shape[-1], other.shape[-1]))",
      "the last sizes differ: {self.shape} and {other.shape}" },
  },
  grad = "composite",
  reference = "inner",
  samples = { "randn(4), randn(4)", "randn(2,4), randn(3,4)", "randn(2,3), randn()" },
  errors = { { "randn(3), randn(4)", "last sizes differ" } },
  doc = "Sums of products over the last dimensions." },
{ "linalg_cross(Tensor self, Tensor other, Dim dim=-1) -> Tensor",
  kind = "composite", amp = "widest",
  expr = [[
    local size = wide(self.shape, other.shape)
    local a, b = expand(as(self, working(self)), size), expand(as(other, working(other)), size)
    local x, y, z = narrow(a, dim, 0, 1), narrow(a, dim, 1, 1), narrow(a, dim, 2, 1)
    local p, q, r = narrow(b, dim, 0, 1), narrow(b, dim, 1, 1), narrow(b, dim, 2, 1)
    return narrowed(cat(tensors(y * r - z * q, z * p - x * r, x * q - y * p), dim), self)]],
  check = {
    { "both(equal(self.ndim, other.ndim), gt(self.ndim, 0))", "self and other must have as many dimensions, got {self.ndim} and {other.ndim}" },
    { "both(equal(self.shape[dim], 3), equal(other.shape[dim], 3))", "dimension {dim} must have size 3, got {self.shape} and {other.shape}" },
  },
  grad = "composite",
  reference = "cross",
  samples = { "randn(4,3), randn(4,3)", "randn(3,2), randn(3,1), 1" },
  errors = { { "randn(4), randn(4)", "size 3" }, { "randn(3), randn(2,3)", "as many" }, { "randn(3), randn(3), 2", "out of range" } },
  doc = "The cross product of vectors along dim." },
{ "linalg_vecdot(Tensor x, Tensor y, Dim dim=-1) -> Tensor",
  kind = "composite", amp = "low",
  expr = [[
    local size = wide(x.shape, y.shape)
    return when(inexact(x), op.sum(conj(x) * y, list(dim + length(size) - x.ndim)),
      to(op.sum(x * y, list(dim + length(size) - x.ndim)), x.dtype))]],
  check = { { "both(gt(x.ndim, 0), gt(y.ndim, 0))", "expected at least 1 dimension" } },
  grad = "composite",
  reference = "vecdot",
  samples = { "randn(2,4), randn(2,4)", "randn(2,4), randn(4)", "randn(3,2), randn(3,2), 1" },
  errors = { { "randn(3), randn(4)", "broadcast" } },
  doc = "Sums of products along dim; of complex numbers with conjugates of x." },
{ "linalg_vector_norm(Tensor x, Scalar ord=2, Dim[]? dim=none, bool keepdim=false, dtype? dtype=none) -> Tensor",
  kind = "composite", amp = "high",
  expr = "norm(when(given(dtype), to(x, dtype), x), ord, dim, keepdim)",
  check = { { "inexact(x)", "expected a float dtype, got {x.dtype}", "type" } },
  grad = "composite",
  reference = "vector_norm",
  samples = { "randn(3,4)", "randn(3,4), 3, 1", "randn(3,4), inf, {1,2}, true" },
  errors = { { "randn(2), 2, 2", "out of range" }, { "tensor({1},{dtype=int64})", "float" } },
  doc = "The norm of x as a vector, over dim." },
}
