-- Products of sparse matrices in rows: crow (rows + 1) tells where among cols and values (one for each element that is
-- there) each row begins. The parts of moth.sparse, whose tensors are Lua's. t_crow, t_cols and order, if given, are the
-- same places by columns: the transposed matrix in rows, and which element of this one each of its elements is. They save
-- sorting in the derivative.
local crow = {
  { "ge(R, 1)", "crow must have at least one element" },
  { "either(negate(given(t_crow)), both(given(t_cols), given(order)))", "t_crow, t_cols and order go together" },
}
local indices = "tensor({1,3,4,4},{dtype=int64}), tensor({1,3,2},{dtype=int64})"
local empty = "tensor({1,1,1},{dtype=int64}), randint(1, 2, {0})"
local none_at_all = "tensor({1},{dtype=int64}), randint(1, 2, {0})"
local by_columns = "tensor({1,2,3,4},{dtype=int64}), tensor({1,2,1},{dtype=int64}), tensor({1,3,2},{dtype=int64})"
local places = "IndexTensor? t_crow=none, IndexTensor? t_cols=none, IndexTensor? order=none, index_base"
local int = ",{dtype=int64})"
local outside = "tensor({1,3}" .. int .. ", tensor({1,9}" .. int .. ", "
local beyond = "tensor({1,4}" .. int .. ", tensor({1,2}" .. int .. ", "
local falling = "tensor({1,3,2,3}" .. int .. ", tensor({1,2}" .. int .. ", "
local late = "tensor({2,3}" .. int .. ", tensor({1,2}" .. int .. ", "

return {
{ "native_sparse_mm(IndexTensor crow, IndexTensor cols, Tensor values, Tensor dense, " .. places .. ") -> Tensor",
  kind = "fused", batch = "loop", dtypes = "float,int,complex",
  dims = {
    crow = "R", cols = "E", values = "E", dense = "M K : values", t_crow = "T", t_cols = "E", order = "E",
  },
  out = "(R - 1) K : values", check = crow,
  decompose = [[
    local rows = sparse_rows(crow, cols.shape[0], index_base)
    local products = index_select(dense, 0, cols, index_base) * unsqueeze(values, 1)
    return index_add(zeros_of(dense, list(crow.shape[0] - 1, dense.shape[1]), none), 0, rows, products, 0)]],
  grad = {
    values = "native_sparse_dot(crow, cols, grad, dense, t_crow, t_cols, order, index_base)",
    dense = "sparse_transposed_mm(crow, cols, values, grad, dense.shape[0], t_crow, t_cols, order, index_base)",
  },
  none = "decompose says the values",
  samples = {
    indices .. ", randn(3), randn(3,4)", empty .. ", randn(0), randn(3,2)", indices .. ", randn(3), randn(5,1)",
    indices .. ", randn(3), randn(3,70), " .. by_columns, none_at_all .. ", randn(0), randn(2,3)",
    "tensor({1,5,5},{dtype=int64}), tensor({2,1,2,2},{dtype=int64}), randn(4), randn(2,3)",
  },
  errors = {
    { outside .. "randn(2), randn(3,4)", "index 9 is out of range" },
    { beyond .. "randn(2), randn(3,4)", "index 4 is out of range" },
    { falling .. "randn(2), randn(3,4)", "crow must rise|index 2" },
    { late .. "randn(2), randn(3,4)", "crow must rise|index 2" },
    { indices .. ", randn(3), randn(3)", "must have 2 dimensions" },
    { indices .. ", randn(2), randn(3,4)", "values must have the shape" },
    { indices .. ", randn(3), randn(3,4), tensor({1,2,3,4},{dtype=int64})", "go together" },
  },
  doc = "The product of a sparse matrix, values (nnz) in the columns cols (nnz), by rows, and a dense one (m, k)." },
{ "native_sparse_dot(IndexTensor crow, IndexTensor cols, Tensor mat1, Tensor mat2, " .. places .. ") -> Tensor",
  kind = "fused", batch = "loop", dtypes = "float,int,complex",
  dims = {
    crow = "R", cols = "E", mat1 = "N K", mat2 = "M K : mat1", t_crow = "T", t_cols = "E", order = "E",
  },
  out = "E : mat1",
  check = { crow[1], crow[2], { "equal(N, R - 1)", "mat1 has {N} rows, crow describes {R - 1}" } },
  decompose = [[
    local rows = sparse_rows(crow, cols.shape[0], index_base)
    return as(sum(index_select(mat1, 0, rows, 0) * index_select(mat2, 0, cols, index_base), list(1), false), mat1.dtype)]],
  grad = {
    mat1 = "native_sparse_mm(crow, cols, grad, mat2, t_crow, t_cols, order, index_base)",
    mat2 = "sparse_transposed_mm(crow, cols, grad, mat1, mat2.shape[0], t_crow, t_cols, order, index_base)",
  },
  none = "decompose says the values",
  samples = {
    indices .. ", randn(3,4), randn(3,4)", empty .. ", randn(2,3), randn(4,3)", indices .. ", randn(3,1), randn(5,1)",
    indices .. ", randn(3,70), randn(3,70), " .. by_columns, none_at_all .. ", randn(0,3), randn(2,3)",
    "tensor({1,5,5},{dtype=int64}), tensor({2,1,2,2},{dtype=int64}), randn(2,0), randn(2,0)",
  },
  errors = {
    { outside .. "randn(1,4), randn(3,4)", "index 9 is out of range" },
    { beyond .. "randn(1,4), randn(3,4)", "index 4 is out of range" },
    { falling .. "randn(3,4), randn(3,4)", "crow must rise|index 2" },
    { late .. "randn(1,4), randn(3,4)", "crow must rise|index 2" },
    { indices .. ", randn(3), randn(3,4)", "must have 2 dimensions" },
    { indices .. ", randn(2,4), randn(3,4)", "mat1 has 2 rows" },
    { indices .. ", randn(3,4), randn(3,5)", "mat2 must have the shape" },
  },
  doc = "For each element of a sparse matrix the product of its row of mat1 (n, k) and its column's row of mat2 (m, k)." },
}
