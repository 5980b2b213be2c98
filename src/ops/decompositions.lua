-- Factorizations of matrices, and what is computed with them: kernels by LAPACK for float32 and float64, and composites of
-- these. The matrices are the last two dimensions; those in front are a batch. Derivatives are expressions of the same ops.
local rounding = { float32 = { 2e-3, 2e-3 }, float64 = { 1e-7, 1e-7 }, why = "sums in the library's order, and ill-conditioned samples" }
local function precise(a)
  return { "precise(" .. a .. ")", "low precision dtypes are not supported: got {" .. a .. ".dtype}; convert by x:float()", "type" }
end
local function matrix(a)
  return { "gt(" .. a .. ".ndim, 1)", "expected matrices, at least 2 dimensions, got {" .. a .. ".shape}" }
end
local function square(a)
  return { "both(gt(" .. a .. ".ndim, 1), equal(" .. a .. ".shape[-1], " .. a .. ".shape[-2]))", "expected square matrices, got {" .. a .. ".shape}" }
end
local not_square = { "randn(2,3)", "square|must have the shape" }
local vector = { "randn(3)", "at least 2 dimensions|square|must have" }
local whole = { "tensor({{1,0},{0,1}},{dtype=int64})", "float|low precision" }

return {
-- ---- Cholesky ----------------------------------------------------------------------------------------
{ "linalg_cholesky_ex(Tensor A, bool upper=false, bool check_errors=false) -> (Tensor, Tensor)",
  kind = "extern", amp = "high", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { A = "*D N N : inexact" }, out = { "*D N N", "*D : int32" }, check = { precise "A" }, stats = 1,
  grad = { A = "cholesky_backward(grad, result, upper)" },
  reference = "cholesky_ex", tolerance = rounding,
  samples = { "spd(3,3)", "spd(2,3,3), true", "spd(0,0)", "spd(2,0,3,3)", "spd(2,3,1,1)" },
  errors = { not_square, vector, whole, { "zeros(2,2), false, true", "not positive%-definite: its leading minor of order 1 is not" },
    { "zeros(3,2,2), false, true", "matrix 1 of the batch is not positive%-definite" } },
  doc = "The triangular factor of symmetric positive-definite matrices, L L' = A (upper: U' U), of which one triangle is read; \z
    and per matrix 0, or the order of the leading minor that is not positive-definite (check_errors: an error)." },
{ "linalg_cholesky(Tensor A, bool upper=false) -> Tensor",
  kind = "composite", amp = "high", check = { square "A", precise "A" },
  expr = [[
    local l, info = linalg_cholesky_ex(A, upper, true)
    return l]],
  grad = "composite", reference = "cholesky", tolerance = rounding,
  samples = { "spd(3,3)", "spd(2,3,3), true", "spd(0,3,3)" },
  errors = { not_square, vector, { "zeros(3,2,2)", "matrix 1 of the batch is not positive%-definite" } },
  doc = "The triangular factor of symmetric positive-definite matrices: L L' = A, or with upper U' U = A." },
{ "cholesky_solve(Tensor self, Tensor L, bool upper=false) -> Tensor",
  kind = "composite", amp = "high", check = { matrix "self", square "L", precise "self" },
  expr = [[
    local lower = when(upper, adjoint(L), L)
    return linalg_solve_triangular(adjoint(lower), linalg_solve_triangular(lower, self, false), true)]],
  grad = "composite", reference = "cholesky_solve", tolerance = rounding,
  samples = { "randn(3,2), randn(3,3) + 3 * eye(3)", "randn(2,3,4), randn(3,3) + 3 * eye(3), true" },
  errors = { { "randn(3), randn(3,3)", "at least 2" }, { "randn(3,1), randn(2,3)", "square" }, { "randn(2,1), randn(3,3)", "rows|shape" } },
  doc = "X with A X = self, where L is A's Cholesky factor." },
{ "cholesky_inverse(Tensor L, bool upper=false) -> Tensor",
  kind = "composite", amp = "high", check = { square "L", precise "L" },
  expr = "cholesky_solve(eye_like(L), L, upper)",
  grad = "composite", reference = "cholesky_inverse", tolerance = rounding,
  samples = { "randn(3,3) + 3 * eye(3)", "randn(2,3,3) + 3 * eye(3), true" },
  errors = { not_square, vector },
  doc = "The inverse of A, where L is A's Cholesky factor." },

-- ---- triangular matrices -------------------------------------------------------------------------------
{ "native_solve_triangular(Tensor A, Tensor B, bool upper, bool unitriangular) -> Tensor",
  kind = "extern", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { A = "*D N N : inexact", B = "*D N K : A" }, out = "*D N K", check = { precise "A" },
  grad = {
    B = "native_solve_triangular(adjoint(A), grad, negate(upper), unitriangular)",
    A = "triangular_gradient(grad, A, result, upper, unitriangular)",
  },
  reference = "solve_triangular", tolerance = rounding,
  samples = { "randn(3,3) + 2 * eye(3), randn(3,2), true, false", "randn(2,3,3) + 2 * eye(3), randn(2,3,1), false, false",
    "randn(2,3,3), randn(2,3,4), false, true", "randn(0,0), randn(0,2), true, false", "randn(3,3), randn(3,0), true, false" },
  errors = { { "randn(2,3), randn(2,3), true, false", "must have the shape" }, { "randn(3,3), randn(2,3), true, false", "must have the shape" } },
  doc = "X with A X = B, of one triangle of A; unitriangular: its diagonal counts as 1." },
{ "linalg_solve_triangular(Tensor A, Tensor B, bool upper, bool left=true, bool unitriangular=false) -> Tensor",
  kind = "composite", amp = "high",
  check = { square "A", matrix "B", precise "A",
    { "equal(when(left, B.shape[-2], B.shape[-1]), A.shape[-1])", "A {A.shape} and B {B.shape} do not fit: A X = B needs as many rows, X A = B as many columns" } },
  expr = [[
    local lead = wide(batch_of(A), batch_of(B))
    local a, b = expand(A, join(lead, last_n(A.shape, 2))), expand(B, join(lead, last_n(B.shape, 2)))
    return when(left, native_solve_triangular(a, b, upper, unitriangular),
      adjoint(native_solve_triangular(adjoint(a), adjoint(b), negate(upper), unitriangular)))]],
  grad = "composite", reference = "linalg_solve_triangular", tolerance = rounding,
  samples = { "randn(3,3) + 2 * eye(3), randn(2,3,2), true", "randn(2,3,3) + 2 * eye(3), randn(4,3), false, false",
    "randn(2,1,3,3), randn(3,3,2), false, true, true" },
  errors = { { "randn(2,3), randn(2,3), true", "square" }, { "randn(3,3), randn(2,3), true", "do not fit" }, { "randn(3,3), randn(3), true", "at least 2" } },
  doc = "X with A X = B, or X A = B without left, where one triangle of A is read." },

-- ---- LU ------------------------------------------------------------------------------------------------
{ "linalg_lu_factor_ex(Tensor A, bool pivot=true, bool check_errors=false) -> (Tensor, Tensor, Tensor)",
  kind = "extern", amp = "high", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { A = "*D M N : inexact" }, let = { K = "smaller(M, N)" },
  out = { "*D M N", "*D K : int32", "*D : int32" }, check = { precise "A" }, stats = 1,
  grad = { A = "lu_backward(grad, result, result1)" },
  reference = "lu_factor", tolerance = rounding,
  samples = { "randn(3,3)", "randn(2,4,3)", "randn(2,3,5)", "randn(0,3)", "randn(2,0,3,3)", "randn(4,3) + 3 * eye(4):narrow(2, 1, 3), false" },
  errors = { vector, whole, { "zeros(2,2), true, true", "the matrix is singular: U%[1, 1%] is 0" } },
  doc = "L and U of P L U = A in one matrix (L below the diagonal, its own is 1), the pivots (row i was exchanged with row \z
    pivots[i], from 1, as LAPACK has it), and per matrix 0, or the first position on U's diagonal that is 0." },
{ "linalg_lu_factor(Tensor A, bool pivot=true) -> (Tensor, Tensor)",
  kind = "composite", amp = "high", check = { matrix "A", precise "A" },
  expr = [[
    local lu, pivots, info = linalg_lu_factor_ex(A, pivot, true)
    return lu, pivots]],
  grad = "composite", reference = "lu_factor", tolerance = rounding,
  samples = { "randn(3,3)", "randn(2,4,3)" },
  errors = { vector, { "zeros(2,2)", "the matrix is singular" } },
  doc = "L and U of P L U = A in one matrix, and the pivots. Singular matrices are errors." },
{ "native_lu_rows(IndexTensor pivots, int n >= 0) -> Tensor",
  kind = "extern", dims = { pivots = "*D K" }, out = "*D n : int64", check = { { "ge(n, K)", "expected at most {n} pivots for {n} rows, got {K}" } }, grad = "none", reference = "lu_rows",
  samples = { "tensor({2,2,3},{dtype=int64}), 3", "tensor({{2,4},{1,2}},{dtype=int64}), 4" },
  errors = { { "tensor({4},{dtype=int64}), 3", "between 1 and 3|expected 1 to 3" },
    { "tensor({1,2,3,3},{dtype=int64}), 3", "at most 3 pivots for 3 rows, got 4" } },
  doc = "Which row of A (from 0) is row i of L U." },
{ "lu_unpack(Tensor LU_data, IndexTensor LU_pivots, bool unpack_data=true, bool unpack_pivots=true) -> (Tensor, Tensor, Tensor)",
  kind = "composite", check = { matrix "LU_data", precise "LU_data" },
  expr = [[
    local m, n = LU_data.shape[-2], LU_data.shape[-1]
    local k, nothing = smaller(m, n), zeros_of(LU_data, list(0), none)
    local l = tril(narrow(LU_data, -1, 0, k), -1) + beside(LU_data, eye(m, k, LU_data.dtype, LU_data.device))
    local u = triu(narrow(LU_data, -2, 0, k))
    local rows = native_lu_rows(LU_pivots, m)
    local p = as(eq(unsqueeze(arange_of(LU_data, 0, m, none), -1), unsqueeze(rows, -2)), LU_data.dtype)
    return when(unpack_pivots, p, nothing), when(unpack_data, l, nothing), when(unpack_data, u, nothing)]],
  grad = "composite", reference = "lu_unpack",
  samples = { "randn(3,3), tensor({2,3,3},{dtype=int64})", "randn(2,4,3), tensor({{2,3,3},{4,2,4}},{dtype=int64})",
    "randn(3,4), tensor({2,3,3},{dtype=int64})" },
  errors = { { "randn(3), tensor({1},{dtype=int64})", "at least 2" }, { "randn(3,3), tensor({4,1,1},{dtype=int64})", "between 1 and 3|expected 1 to 3" } },
  doc = "P, L and U of what linalg.lu_factor gives; what is not asked for is empty." },
{ "linalg_lu(Tensor A, bool pivot=true) -> (Tensor, Tensor, Tensor)",
  kind = "composite", check = { matrix "A", precise "A" },
  expr = [[
    local lu, pivots, info = linalg_lu_factor_ex(A, pivot, false)
    local p, l, u = lu_unpack(lu, pivots)
    return when(pivot, p, zeros_of(A, list(0), none)), l, u]],
  grad = "composite", reference = "lu", tolerance = rounding,
  samples = { "randn(3,3)", "randn(2,4,3)", "randn(2,3,4)" },
  errors = { vector, whole },
  doc = "P, L and U with P L U = A: a permutation, a lower triangle with 1 on its diagonal, an upper triangle." },
{ "native_lu_solve(Tensor LU, IndexTensor pivots, Tensor B, bool turned) -> Tensor",
  kind = "extern", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { LU = "*D N N : inexact", pivots = "*D N", B = "*D N K : LU" }, out = "*D N K", check = { precise "LU" },
  grad = {
    LU = "lu_solve_gradient(grad, LU, pivots, result, turned)", B = "native_lu_solve(LU, pivots, grad, negate(turned))",
  },
  reference = "lu_solve", tolerance = rounding,
  samples = { "randn(3,3) + 2 * eye(3), tensor({2,3,3},{dtype=int64}), randn(3,2), false",
    "randn(2,3,3) + 2 * eye(3), tensor({{1,3,3},{3,2,3}},{dtype=int64}), randn(2,3,1), true" },
  errors = { { "randn(3,3), tensor({1,2,4},{dtype=int64}), randn(3,1), false", "between 1 and 3|expected 1 to 3" },
    { "randn(3,3), tensor({1,2},{dtype=int64}), randn(3,1), false", "must have the shape" } },
  doc = "X with A X = B (turned: A' X = B), of the factors of A." },
{ "linalg_lu_solve(Tensor LU, IndexTensor pivots, Tensor B, bool left=true, bool adjoint=false) -> Tensor",
  kind = "composite", amp = "high",
  check = { square "LU", matrix "B", precise "LU",
    { "equal(when(left, B.shape[-2], B.shape[-1]), LU.shape[-1])", "LU {LU.shape} and B {B.shape} do not fit" },
    { "same_list(pivots.shape, first_n(LU.shape, LU.ndim - 1))", "pivots must have the shape {first_n(LU.shape, LU.ndim - 1)}, got {pivots.shape}" } },
  expr = [[
    local lead = wide(batch_of(LU), batch_of(B))
    local n = LU.shape[-1]
    local lu, p = expand(LU, join(lead, list(n, n))), expand(pivots, join(lead, list(n)))
    local b = expand(B, join(lead, last_n(B.shape, 2)))
    return when(left, native_lu_solve(lu, p, b, adjoint), op.adjoint(native_lu_solve(lu, p, op.adjoint(b), negate(adjoint))))]],
  grad = "composite", reference = "linalg_lu_solve", tolerance = rounding,
  samples = { "randn(3,3) + 2 * eye(3), tensor({2,3,3},{dtype=int64}), randn(2,3,2)",
    "randn(2,3,3) + 2 * eye(3), tensor({{1,3,3},{3,2,3}},{dtype=int64}), randn(4,3), false",
    "randn(3,3) + 2 * eye(3), tensor({1,2,3},{dtype=int64}), randn(3,2), true, true" },
  errors = { { "randn(3,3), tensor({1,2,3},{dtype=int64}), randn(2,3)", "do not fit" }, { "randn(3,3), tensor({1,2},{dtype=int64}), randn(3,1)", "pivots must have" } },
  doc = "X with A X = B (without left: X A = B; adjoint: of A'), from linalg.lu_factor(A)." },
{ "lu_solve(Tensor self, Tensor LU_data, IndexTensor LU_pivots) -> Tensor",
  kind = "composite", amp = "high", expr = "linalg_lu_solve(LU_data, LU_pivots, self)", check = { square "LU_data", matrix "self" },
  grad = "composite", reference = "old_lu_solve", tolerance = rounding,
  samples = { "randn(3,2), randn(3,3) + 2 * eye(3), tensor({2,3,3},{dtype=int64})" },
  errors = { { "randn(3), randn(3,3), tensor({1,2,3},{dtype=int64})", "at least 2" } },
  doc = "linalg.lu_solve with the right-hand side first." },

-- ---- systems and inverses ----------------------------------------------------------------------------
{ "native_solve(Tensor A, Tensor B, bool check_errors=true) -> (Tensor, Tensor, Tensor, Tensor)",
  kind = "composite", keep = true, stats = 1, check = { square "A", matrix "B", precise "A" },
  expr = [[
    local lu, pivots, info = linalg_lu_factor_ex(A, true, check_errors)
    local lead, n = wide(batch_of(A), batch_of(B)), A.shape[-1]
    local x = native_lu_solve(expand(lu, join(lead, list(n, n))), expand(pivots, join(lead, list(n))),
      expand(B, join(lead, last_n(B.shape, 2))), false)
    return x, lu, pivots, info]],
  grad = {
    A = "sum_to(neg(matmul(solve_again(A, result1, result2, grad), adjoint(result))), A.shape)",
    B = "sum_to(solve_again(A, result1, result2, grad), B.shape)",
  },
  reference = "native_solve", tolerance = rounding,
  samples = { "randn(2,3,3) + 3 * eye(3), randn(2,3,2)", "randn(2,1,3,3) + 3 * eye(3), randn(4,3,1)" },
  errors = { { "randn(2,3), randn(2,1)", "square" }, { "zeros(2,2), randn(2,1)", "the matrix is singular: U%[1, 1%] is 0" } },
  doc = "X with A X = B, A's factors and pivots, and info of linalg.lu_factor_ex." },
{ "linalg_solve_ex(Tensor A, Tensor B, bool left=true, bool check_errors=false) -> (Tensor, Tensor)",
  kind = "composite", amp = "high", stats = 1,
  check = { square "A", precise "A",
    { "either(is_vector_of(A, B), gt(B.ndim, 1))", "B {B.shape} is neither a vector nor matrices for A {A.shape}" },
    { "equal(when(is_vector_of(A, B), when(left, B.shape[-1], -1), when(left, B.shape[-2], B.shape[-1])), A.shape[-1])",
      "A {A.shape} and B {B.shape} do not fit: A X = B needs as many rows, X A = B as many columns" } },
  expr = [[
    local b = when(is_vector_of(A, B), unsqueeze(B, -1), B)
    local x, lu, pivots, info = native_solve(when(left, A, adjoint(A)), when(left, b, adjoint(b)), check_errors)
    return when(is_vector_of(A, B), squeeze(x, -1), when(left, x, adjoint(x))), info]],
  grad = "composite", reference = "solve_ex", tolerance = rounding,
  samples = { "randn(2,3,3) + 3 * eye(3), randn(2,3,2)", "randn(2,3,3) + 3 * eye(3), randn(2,3)", "randn(2,3,3) + 3 * eye(3), randn(4,3), false",
    "randn(0,3,3), randn(3,2)", "randn(0,0), randn(0,2)" },
  errors = { { "randn(2,3), randn(2)", "square" }, { "randn(3,3), randn(2)", "do not fit" }, { "zeros(2,2), randn(2), true, true", "singular" },
    { "randn(3,3), randn(3), false", "do not fit" } },
  doc = "X with A X = B (without left: X A = B), and per matrix 0, or where it is found singular. B is a vector if it has one \z
    dimension, or the shape of A without the last one." },
{ "linalg_solve(Tensor A, Tensor B, bool left=true) -> Tensor",
  kind = "composite", amp = "high", check = { square "A", precise "A" },
  expr = [[
    local x, info = linalg_solve_ex(A, B, left, true)
    return x]],
  grad = "composite", reference = "solve", tolerance = rounding,
  samples = { "randn(2,3,3) + 3 * eye(3), randn(2,3,2)", "randn(2,3,3) + 3 * eye(3), randn(3,1)" },
  errors = { { "zeros(2,2), randn(2)", "the matrix is singular" }, { "randn(3,3), randn(2)", "do not fit" } },
  doc = "X with A X = B; without left X A = B. Singular matrices are errors." },
{ "linalg_inv_ex(Tensor A, bool check_errors=false) -> (Tensor, Tensor)",
  kind = "composite", amp = "high", keep = true, stats = 1, check = { square "A", precise "A" },
  expr = [[
    local x, lu, pivots, info = native_solve(A, eye_like(A), check_errors)
    return x, info]],
  grad = { A = "neg(matmul(matmul(adjoint(result), grad), adjoint(result)))" },
  reference = "inv_ex", tolerance = rounding,
  samples = { "randn(2,3,3) + 3 * eye(3)", "randn(0,0)" },
  errors = { not_square, vector, { "zeros(3,2,2), true", "matrix 1 of the batch is singular" } },
  doc = "The inverses of matrices, and per matrix 0, or where it is found singular." },
{ "linalg_inv(Tensor A) -> Tensor",
  kind = "composite", amp = "high", check = { square "A", precise "A" },
  expr = [[
    local x, info = linalg_inv_ex(A, true)
    return x]],
  grad = "composite", reference = "inv", tolerance = rounding,
  samples = { "randn(2,3,3) + 3 * eye(3)", "randn(2,0,0)" },
  errors = { not_square, vector, { "zeros(2,2)", "the matrix is singular: U%[1, 1%] is 0" } },
  doc = "The inverses of square matrices. Singular ones are errors." },
{ "linalg_det(Tensor A) -> Tensor",
  kind = "composite", amp = "high", keep = true, check = { square "A", precise "A" },
  expr = [[
    local lu, pivots, info = linalg_lu_factor_ex(A)
    return prod(diagonal(lu, 0, -2, -1), list(-1)) * exchanges_sign(pivots)]],
  grad = { A = "det_backward(grad, result, A)" },
  reference = "det", tolerance = rounding,
  samples = { "randn(3,3)", "randn(2,3,3)", "randn(0,0)", "randn(1,1)" },
  errors = { not_square, vector, whole },
  doc = "The determinants of square matrices." },
{ "native_cofactors(Tensor A) -> Tensor",
  kind = "composite", check = { square "A", precise "A" },
  expr = [[
    local u, s, vh = native_svd(A, false, true)
    local products = products_of_others(s, list(s.ndim - 1)) * unsqueeze(conj(linalg_det(u) * linalg_det(vh)), -1)
    return matmul(u * unsqueeze(products, -2), vh)]],
  grad = "composite", reference = "cofactors", tolerance = rounding,
  samples = { "randn(3,3)", "randn(2,3,3)", "randn(1,1)" },
  errors = { not_square, vector },
  doc = "The derivative of the determinant, also of singular matrices." },
{ "linalg_slogdet(Tensor A) -> (Tensor, Tensor)",
  kind = "composite", amp = "high", keep = true, check = { square "A", precise "A" },
  expr = [[
    local lu, pivots, info = linalg_lu_factor_ex(A)
    local d = diagonal(lu, 0, -2, -1)
    return prod(sgn(d), list(-1)) * exchanges_sign(pivots), sum(log(abs(d)), list(-1))]],
  grad = { A = "slogdet_backward(grad, grad1, result, A)" },
  reference = "slogdet", tolerance = rounding,
  samples = { "randn(3,3)", "randn(2,3,3)", "randn(0,0)" },
  errors = { not_square, vector, whole },
  doc = "The signs of determinants, and the logarithms of their absolute values." },
{ "logdet(Tensor self) -> Tensor",
  kind = "composite", check = { square "self", precise "self" },
  expr = [[
    local sign_, log_ = linalg_slogdet(self)
    return when(is_complex(self), log(sign_) + log_, masked_fill(log_, lt(op.real(sign_), 0), 0 / 0))]],
  grad = "composite", reference = "logdet", tolerance = rounding,
  samples = { "spd(3,3)", "spd(2,3,3)" },
  errors = { not_square, vector, whole },
  doc = "The logarithms of determinants; NaN where they are negative." },

-- ---- QR ------------------------------------------------------------------------------------------------
{ "native_qr(Tensor A, enum('reduced','complete','r') mode='reduced') -> (Tensor, Tensor)",
  kind = "extern", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { A = "*D M N : inexact" },
  let = { K = "smaller(M, N)", ["*Q"] = 'when(eq(mode, "r"), list(0), join(D, list(M, when(eq(mode, "complete"), M, smaller(M, N)))))',
    H = 'when(eq(mode, "complete"), M, smaller(M, N))' },
  out = { "*Q", "*D H N" }, check = { precise "A" }, absent = true,
  grad = { A = "qr_backward(grad, grad1, qr_differentiable(result, result1), result1)" },
  reference = "qr", tolerance = rounding,
  samples = { "randn(3,3)", "randn(2,4,3)", "randn(2,3,4)", "randn(3,3), 'complete'", "randn(2,3,4), 'complete'", "randn(3,0)", "randn(0,3)" },
  errors = { vector, whole, { "randn(2,2), 'full'", "mode" } },
  doc = "The factors of A = Q R, by Householder reflections." },
{ "linalg_qr(Tensor A, enum('reduced','complete','r') mode='reduced') -> (Tensor, Tensor)",
  kind = "composite", amp = "high", check = { matrix "A", precise "A" },
  expr = [[
    local q, r = native_qr(A, mode)
    local alone, factor = native_qr(A, "reduced") -- R's derivative needs Q
    local apart = both(eq(mode, "r"), records(A))
    return when(apart, zeros_of(A, list(0), none), q), when(apart, factor, r)]],
  grad = "composite", reference = "qr", tolerance = rounding,
  samples = { "randn(2,4,3)", "randn(3,3), 'complete'", "randn(4,3), 'r'" },
  errors = { vector, whole, { "randn(2,2), 'full'", "mode" } },
  doc = "Q with orthonormal columns and an upper triangle R with Q R = A. mode: reduced, complete (Q is square) or r (Q is empty)." },
{ "geqrf(Tensor self) -> (Tensor, Tensor)",
  kind = "extern", amp = "high", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { self = "*D M N : inexact" }, let = { K = "smaller(M, N)" }, out = { "*D M N", "*D K" }, check = { precise "self" },
  grad = "unimplemented", reference = "geqrf", tolerance = rounding,
  samples = { "randn(3,3)", "randn(2,4,3)", "randn(3,4)", "randn(0,3)" },
  errors = { vector, whole },
  doc = "R and, below it, the Householder vectors of a QR factorization; and their scales." },
{ "native_householder_product(Tensor A, Tensor tau) -> Tensor",
  kind = "extern", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { A = "*D M N : inexact", tau = "*D 1 K : A" }, out = "*D M N", check = { precise "A",
    { "both(ge(M, N), ge(N, K))", "expected no more columns than rows, and no more scales than columns, got {A.shape} and {K}" } },
  grad = "unimplemented", reference = "native_householder", tolerance = rounding,
  samples = { "randn(4,3), rand(1,2)", "randn(2,3,3), rand(2,1,3)" },
  errors = { { "randn(2,3), randn(1,2)", "no more columns" } },
  doc = "linalg.householder_product, without derivative." },
{ "linalg_householder_product(Tensor A, Tensor tau) -> Tensor",
  kind = "composite", amp = "high",
  check = { matrix "A", precise "A", { "both(ge(A.shape[-2], A.shape[-1]), both(gt(tau.ndim, 0), ge(A.shape[-1], tau.shape[-1])))",
      "expected no more columns than rows, and no more scales than columns, got {A.shape} and {tau.shape}" },
    { "same_list(batch_of(A), first_n(tau.shape, tau.ndim - 1))", "tau must have the shape {join(batch_of(A), list(tau.shape[-1]))}, got {tau.shape}" } },
  expr = [[
    local start = expand(beside(A, eye(A.shape[-2], A.shape[-1], A.dtype, A.device)), A.shape)
    local vectors, k = unit_lower(A), tau.shape[-1]
    local steps = fold(start, k, function(y, i) return reflected(y, vectors, tau, k - 1 - i) end)
    return when(either(records(A), records(tau)), steps, native_householder_product(A, unsqueeze(tau, -2)))]],
  grad = "composite", reference = "householder", tolerance = rounding,
  samples = { "randn(4,3), rand(2)", "randn(2,3,3), rand(2,3)" },
  errors = { { "randn(2,3), randn(2)", "no more columns" }, { "randn(3), randn(1)", "at least 2" }, { "randn(2,3,3), rand(3)", "tau must have" } },
  doc = "The first columns of a product of Householder reflections, as geqrf gives them: Q." },
{ "native_ormqr(Tensor self, Tensor tau, Tensor other, bool left, bool transpose) -> Tensor",
  kind = "extern", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { self = "*D M N : inexact", tau = "*D 1 K : self", other = "*D P Q : self" }, out = "*D P Q",
  check = { precise "self", { "both(ge(N, K), ge(M, K))", "no more scales than columns are expected, got {self.shape} and {K}" },
    { "equal(M, when(left, P, Q))", "self {self.shape} and other {other.shape} do not fit" } },
  grad = "unimplemented", reference = "native_ormqr", tolerance = rounding,
  samples = { "randn(4,3), rand(1,2), randn(4,2), true, false", "randn(2,3,3), rand(2,1,3), randn(2,1,3), false, true" },
  errors = { { "randn(4,3), rand(1,2), randn(3,2), true, false", "do not fit" } },
  doc = "ormqr, without derivative." },
{ "ormqr(Tensor self, Tensor tau, Tensor other, bool left=true, bool transpose=false) -> Tensor",
  kind = "composite", amp = "high",
  check = { matrix "self", matrix "other", precise "self",
    { "both(gt(tau.ndim, 0), both(ge(self.shape[-1], tau.shape[-1]), ge(self.shape[-2], tau.shape[-1])))", "no more scales than columns are expected, got {self.shape} and {tau.shape}" },
    { "equal(self.shape[-2], when(left, other.shape[-2], other.shape[-1]))", "self {self.shape} and other {other.shape} do not fit" },
    { "same_list(batch_of(self), first_n(tau.shape, tau.ndim - 1))", "tau must have the shape {join(batch_of(self), list(tau.shape[-1]))}, got {tau.shape}" } },
  expr = [[
    local x, k, vectors = when(left, other, adjoint(other)), tau.shape[-1], unit_lower(self)
    local last_first = either(both(left, negate(transpose)), both(negate(left), transpose))
    local scales = when(both(is_complex(tau), negate(last_first)), conj(tau), tau)
    local y = fold(x, k, function(y, i) return reflected(y, vectors, scales, when(last_first, k - 1 - i, i)) end)
    return when(either(records(other), either(records(self), records(tau))), when(left, y, adjoint(y)),
      native_ormqr(self, unsqueeze(tau, -2), other, left, transpose))]],
  grad = "composite", reference = "ormqr", tolerance = rounding,
  samples = { "randn(4,3), rand(2), randn(4,2)", "randn(2,3,3), rand(2,3), randn(2,1,3), false, true", "randn(4,2), rand(2), randn(4,3), true, true" },
  errors = { { "randn(4,3), rand(2), randn(3,2)", "do not fit" }, { "randn(4,3), rand(2), randn(3)", "at least 2" } },
  doc = "Q other, other Q without left, with transpose Q' in place of Q: the whole Q of the reflections in self and tau." },

-- ---- eigenvalues and singular values ----------------------------------------------------------------------
{ "native_eigh(Tensor A, enum('L','U') UPLO, bool vectors) -> (Tensor, Tensor)",
  kind = "extern", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { A = "*D N N : inexact" }, let = { ["*V"] = "when(vectors, join(D, list(N, N)), list(0))" },
  out = { "*D N : real_of(A)", "*V" }, check = { precise "A" }, absent = true,
  grad = { A = "eigh_backward(grad, grad1, result, result1)" },
  reference = "eigh", tolerance = rounding,
  samples = { "sym(3,3), 'L', true", "sym(2,4,4), 'U', true", "sym(0,0), 'L', true", "sym(2,1,1), 'L', true" },
  errors = { { "randn(2,3), 'L', true", "must have the shape" }, { "randn(2,2), 'A', true", "UPLO" }, { "tensor{{1,0},{nan,1}}, 'L', true", "infinite or NaN" } },
  doc = "Eigenvalues in rising order, and eigenvectors (columns), of symmetric (hermitian) matrices of which one triangle is read." },
{ "linalg_eigh(Tensor A, enum('L','U') UPLO='L') -> (Tensor, Tensor)",
  kind = "composite", amp = "high", expr = "native_eigh(A, UPLO, true)", check = { square "A", precise "A" },
  grad = "composite", reference = "eigh", tolerance = rounding,
  samples = { "sym(3,3)", "sym(2,3,3), 'U'" },
  errors = { not_square, vector, { "randn(2,2), 'A'", "UPLO" } },
  doc = "Eigenvalues in rising order, and eigenvectors (columns), of symmetric (hermitian) matrices, of which the triangle UPLO is read. \z
    The largest component of each vector is positive." },
{ "linalg_eigvalsh(Tensor A, enum('L','U') UPLO='L') -> Tensor",
  kind = "composite", amp = "high", check = { square "A", precise "A" },
  expr = [[
    local w, v = native_eigh(A, UPLO, records(A))
    return w]],
  grad = "composite", reference = "eigvalsh", tolerance = rounding,
  samples = { "sym(3,3)", "sym(2,3,3), 'U'" },
  errors = { not_square, vector, { "randn(2,2), 'A'", "UPLO" } },
  doc = "The eigenvalues of symmetric matrices, in rising order. Equal ones have a derivative, too." },
{ "native_svd(Tensor A, bool full_matrices, bool vectors) -> (Tensor, Tensor, Tensor)",
  kind = "extern", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { A = "*D M N : inexact" },
  let = { K = "smaller(M, N)", ["*U"] = "when(vectors, join(D, list(M, when(full_matrices, M, smaller(M, N)))), list(0))",
    ["*V"] = "when(vectors, join(D, list(when(full_matrices, N, smaller(M, N)), N)), list(0))" },
  out = { "*U", "*D K : real_of(A)", "*V" }, check = { precise "A" }, absent = true,
  grad = { A = "svd_backward(grad, grad1, grad2, result, result1, result2)" },
  reference = "svd", tolerance = rounding,
  samples = { "randn(3,3), false, true", "randn(2,4,3), false, true", "randn(2,3,4), false, true", "randn(3,3), true, true", "randn(0,3), true, true",
    "randn(2,3,0), false, true" },
  errors = { { "randn(3), true, true", "at least 2|must have" }, { "tensor({{1,0},{0,1}},{dtype=int64}), true, true", "float" }, { "tensor{{1,0},{nan,1}}, true, true", "infinite or NaN" } },
  doc = "linalg.svd; without vectors U and V' are empty." },
{ "linalg_svd(Tensor A, bool full_matrices=true, string? driver=none) -> (Tensor, Tensor, Tensor)",
  kind = "composite", amp = "high", expr = "native_svd(A, full_matrices, true)",
  check = { matrix "A", precise "A", { "negate(given(driver))", "driver is for CUDA alone" } },
  grad = "composite", reference = "svd", tolerance = rounding,
  samples = { "randn(3,3)", "randn(2,4,3), false", "randn(2,3,4), false" },
  errors = { vector, whole, { "randn(2,2), true, 'gesvd'", "driver" } },
  doc = "U, S and V' with U diag(S) V' = A: orthonormal columns and rows, and singular values from the largest to the smallest. \z
    Without full_matrices U and V' have only min(m, n) columns and rows. The largest component of each column of U is positive." },
{ "linalg_svdvals(Tensor A, string? driver=none) -> Tensor",
  kind = "composite", amp = "high", check = { matrix "A", precise "A", { "negate(given(driver))", "driver is for CUDA alone" } },
  expr = [[
    local u, s, vh = native_svd(A, false, records(A))
    return s]],
  grad = "composite", reference = "svdvals", tolerance = rounding,
  samples = { "randn(3,3)", "randn(2,4,3)", "randn(2,3,4)", "randn(3,0)" },
  errors = { vector, whole },
  doc = "The singular values of matrices, from the largest to the smallest." },
{ "linalg_pinv(Tensor A, Operand? atol=none, Operand? rtol=none, bool hermitian=false) -> Tensor",
  kind = "composite", amp = "high", keep = true, check = { matrix "A", precise "A", { "either(negate(hermitian), equal(A.shape[-1], A.shape[-2]))", "expected square matrices, got {A.shape}" } },
  expr = [[
    local u, s, vh = native_svd(A, false, true)
    local w, v = native_eigh(A, "L", true)
    local size = abs(w)
    local general = where(gt(s, rank_limit(s, A, atol, rtol)), reciprocal(s), 0)
    local symmetric = where(gt(size, rank_limit(size, A, atol, rtol)), reciprocal(w), 0)
    return when(hermitian, matmul(v * unsqueeze(symmetric, -2), adjoint(v)),
      matmul(adjoint(vh) * unsqueeze(general, -2), adjoint(u)))]],
  grad = { A = "pinv_backward(grad, result, A)", atol = "no", rtol = "no" },
  reference = "pinv", tolerance = rounding,
  samples = { "randn(3,3) + 3 * eye(3)", "randn(2,4,3)", "randn(2,3,4)", "randn(3,0)", "randn(3,4), 0.1", "randn(3,4), nil, 0.01" },
  errors = { vector, whole, { "randn(2,3), nil, nil, true", "square" } },
  doc = "Pseudo-inverses. Singular values up to max(atol, rtol s1) count as 0; rtol is max(m, n) eps if neither is given. \z
    hermitian: by eigenvalues of A, which is symmetric." },
{ "linalg_matrix_rank(Tensor A, Operand? atol=none, Operand? rtol=none, bool hermitian=false) -> Tensor",
  kind = "composite", amp = "high", check = { matrix "A", precise "A", { "either(negate(hermitian), equal(A.shape[-1], A.shape[-2]))", "expected square matrices, got {A.shape}" } },
  expr = [[
    local a = detach(A)
    local u, s, vh = native_svd(a, false, false)
    local w, v = native_eigh(a, "L", false)
    local size = abs(w)
    return when(hermitian, sum(gt(size, rank_limit(size, A, atol, rtol)), list(-1)), sum(gt(s, rank_limit(s, A, atol, rtol)), list(-1)))]],
  grad = "none", reference = "matrix_rank",
  samples = { "randn(3,3)", "randn(2,4,3)", "randn(3,0)", "tensor{{1,2},{2,4}}", "sym(3,3), nil, nil, true" },
  errors = { vector, whole, { "randn(2,3), nil, nil, true", "square" } },
  doc = "The number of singular values above max(atol, rtol s1); rtol is max(m, n) eps if neither is given." },

{ "native_eig(Tensor A, bool vectors) -> (Tensor, Tensor)",
  kind = "extern", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { A = "*D N N : inexact" },
  let = { ["*V"] = "when(vectors, join(D, list(N, N)), list(0))" },
  out = { "*D N : complex_of(A)", "*V : complex_of(A)" }, check = { precise "A" }, absent = true,
  grad = { A = "eig_backward(grad, grad1, result, result1)" },
  none = "spec/ops/complex_spec.lua: the results are complex",
  samples = { "randn(3,3), true", "randn(2,4,4), true", "randn(0,0), true", "randn(2,1,1), false" },
  errors = { { "randn(2,3), true", "must have the shape" }, { "randn(3), true", "must have" }, { "tensor{{1,0},{nan,1}}, true", "infinite or NaN" } },
  doc = "linalg.eig; without vectors the second result is empty." },
{ "linalg_eig(Tensor A) -> (Tensor, Tensor)",
  kind = "composite", amp = "high", expr = "native_eig(A, true)", check = { square "A", precise "A" },
  grad = "composite", none = "spec/ops/complex_spec.lua: the results are complex",
  samples = { "randn(3,3)", "randn(2,3,3)" },
  errors = { not_square, vector, whole },
  doc = "Eigenvalues, in no certain order, and eigenvectors (columns, of norm 1) of square matrices: complex numbers. The \z
    largest component of each vector is real and positive." },
{ "linalg_eigvals(Tensor A) -> Tensor",
  kind = "composite", amp = "high", check = { square "A", precise "A" },
  expr = [[
    local w, v = native_eig(A, records(A))
    return w]],
  grad = "composite", none = "spec/ops/complex_spec.lua: the results are complex",
  samples = { "randn(3,3)", "randn(2,3,3)" },
  errors = { not_square, vector, whole },
  doc = "The eigenvalues of square matrices, in no certain order: complex numbers." },

-- ---- least squares, LDL ----------------------------------------------------------------------------------
{ "native_lstsq(Tensor A, Tensor B, float rcond, enum('gels','gelsy','gelsd','gelss') driver) -> (Tensor, Tensor, Tensor)",
  kind = "extern", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { A = "*D M N : inexact", B = "*D M K : A" },
  let = { ["*S"] = 'when(either(eq(driver, "gelsd"), eq(driver, "gelss")), join(D, list(smaller(M, N))), list(0))' },
  out = { "*D N K", "*D : int64", "*S : real_of(A)" }, check = { precise "A" }, stats = 1,
  grad = {
    A = "pinv_backward(matmul(grad, adjoint(B)), linalg_pinv(A), A)", B = "matmul(adjoint(linalg_pinv(A)), grad)",
  },
  reference = "lstsq", tolerance = rounding,
  samples = { "randn(4,3), randn(4,2), 1e-10, 'gelsd'", "randn(2,4,3), randn(2,4,1), 1e-10, 'gelsy'", "randn(5,3), randn(5,2), 1e-10, 'gels'",
    "randn(2,4,3), randn(2,4,2), 1e-10, 'gelss'", "randn(4,3), zeros(4,0), 1e-10, 'gelsd'" },
  errors = { { "randn(3,2), randn(2,2), 0, 'gels'", "must have the shape" }, { "randn(3,2), randn(3,2), 0, 'qr'", "driver" } },
  doc = "The X of least norm for which A X - B is least, the rank of A, and its singular values where the driver computes them." },
{ "linalg_ldl_factor_ex(Tensor A, bool hermitian=false, bool check_errors=false) -> (Tensor, Tensor, Tensor)",
  kind = "extern", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { A = "*D N N : inexact" }, out = { "*D N N", "*D N : int32", "*D : int32" }, check = { precise "A" },
  grad = "unimplemented", reference = "ldl_factor", tolerance = rounding,
  samples = { "spd(3,3)", "spd(2,3,3)", "spd(0,0)" },
  errors = { not_square, vector, { "zeros(2,2), false, true", "the matrix is singular: D%[1, 1%] is 0" } },
  doc = "L and D of the factorization P L D L' P' of symmetric matrices, of which the lower triangle is read, in one matrix; its \z
    pivots as LAPACK's sytrf gives them; and per matrix 0, or the position of a 0 on D's diagonal." },
{ "linalg_ldl_factor(Tensor A, bool hermitian=false) -> (Tensor, Tensor)",
  kind = "composite", keep = true, check = { square "A", precise "A" },
  expr = [[
    local ld, pivots, info = linalg_ldl_factor_ex(A, hermitian, true)
    return ld, pivots]],
  grad = "unimplemented", reference = "ldl_factor", tolerance = rounding,
  samples = { "spd(3,3)" },
  errors = { not_square, vector, { "zeros(2,2)", "singular" } },
  doc = "linalg.ldl_factor_ex, where singular matrices are errors." },
{ "native_ldl_solve(Tensor LD, IndexTensor pivots, Tensor B, bool hermitian=false) -> Tensor",
  kind = "extern", dtypes = "float,complex", parts = "none", holomorphic = false, dims = { LD = "*D N N : inexact", pivots = "*D N", B = "*D N K : LD" }, out = "*D N K", check = { precise "LD" },
  grad = { LD = "unimplemented", B = "when(hermitian, native_ldl_solve(LD, pivots, grad, true), conj(native_ldl_solve(LD, pivots, conj(grad), false)))" },
  reference = "ldl_solve", tolerance = rounding,
  samples = { "randn(3,3) + 3 * eye(3), tensor({1,2,3},{dtype=int64}), randn(3,2)" },
  errors = { { "randn(3,3), tensor({1,2,-4},{dtype=int64}), randn(3,1)", "between 1 and 3|expected 1 to 3" } },
  doc = "X with A X = B, of linalg.ldl_factor(A)." },
{ "linalg_ldl_solve(Tensor LD, IndexTensor pivots, Tensor B, bool hermitian=false) -> Tensor",
  kind = "composite", amp = "high", keep = true,
  check = { square "LD", matrix "B", precise "LD", { "equal(B.shape[-2], LD.shape[-1])", "LD {LD.shape} and B {B.shape} do not fit" },
    { "same_list(pivots.shape, first_n(LD.shape, LD.ndim - 1))", "pivots must have the shape {first_n(LD.shape, LD.ndim - 1)}, got {pivots.shape}" } },
  expr = [[
    local lead, n = wide(batch_of(LD), batch_of(B)), LD.shape[-1]
    return native_ldl_solve(expand(LD, join(lead, list(n, n))), expand(pivots, join(lead, list(n))), expand(B, join(lead, last_n(B.shape, 2))), hermitian)]],
  grad = { LD = "unimplemented", B = "sum_to(when(hermitian, linalg_ldl_solve(LD, pivots, grad, true), conj(linalg_ldl_solve(LD, pivots, conj(grad), false))), B.shape)" }, reference = "ldl_solve", tolerance = rounding,
  samples = { "randn(3,3) + 3 * eye(3), tensor({1,2,3},{dtype=int64}), randn(2,3,2)" },
  errors = { { "randn(3,3), tensor({1,2,3},{dtype=int64}), randn(2,1)", "do not fit" } },
  doc = "X with A X = B, from linalg.ldl_factor(A)." },
}
