-- Reading and writing at places: a tensor with one of its views replaced, flat positions, diagonals, rotations, windows.
-- Positions count from index_base.
return {
{ "view_as(Tensor self, Tensor other) -> Tensor",
  kind = "composite",
  expr = "view(self, other.shape)",
  grad = "composite",
  reference = "view_as",
  samples = { "randn(2,6), randn(3,4)", "randn(4), randn(2,2)" },
  errors = { { "randn(2,3), randn(4)", "invalid for input of size 6" } },
  doc = "view to the shape of other." },
{ "reshape_as(Tensor self, Tensor other) -> Tensor",
  kind = "composite",
  expr = "reshape(self, other.shape)",
  grad = "composite",
  reference = "view_as",
  samples = { "randn(2,6), randn(3,4)", "randn(3,2):t(), randn(6)" },
  errors = { { "randn(2,3), randn(4)", "invalid for input of size 6" } },
  doc = "reshape to the shape of other." },
{ "adjoint(Tensor self) -> Tensor",
  kind = "composite",
  expr = "conj(transpose(self, -2, -1))",
  check = { { "ge(self.ndim, 2)", "expected at least 2 dimensions, got {self.ndim}" } },
  grad = "composite",
  reference = "adjoint",
  samples = { "randn(2,3)", "randn(2,3,4)" },
  errors = { { "randn(3)", "at least 2" } },
  doc = "The last two dimensions swapped, complex numbers conjugated; also x.mH." },
{ "atleast_1d(Tensor self) -> Tensor",
  kind = "composite",
  expr = "when(equal(self.ndim, 0), unsqueeze(self, 0), self)",
  grad = "composite",
  reference = "atleast",
  samples = { "randn()", "randn(3)", "randn(2,3)" },
  doc = "With at least one dimension. In Lua several tensors, or a list, give several." },
{ "atleast_2d(Tensor self) -> Tensor",
  kind = "composite",
  expr = [[
    local x = when(equal(self.ndim, 0), unsqueeze(self, 0), self)
    return when(lt(self.ndim, 2), unsqueeze(x, 0), self)]],
  grad = "composite",
  reference = "atleast",
  samples = { "randn()", "randn(3)", "randn(2,3)" },
  doc = "With at least two dimensions, put in front." },
{ "atleast_3d(Tensor self) -> Tensor",
  kind = "composite",
  expr = [[
    local x = when(equal(self.ndim, 0), unsqueeze(self, 0), self)
    local y = when(lt(self.ndim, 2), unsqueeze(x, 0), self)
    return when(lt(self.ndim, 3), unsqueeze(y, 2), self)]],
  grad = "composite",
  reference = "atleast",
  samples = { "randn()", "randn(3)", "randn(2,3)", "randn(2,3,4)" },
  doc = "With at least three dimensions: (n) becomes (1, n, 1), (n, m) becomes (n, m, 1)." },
{ "rot90(Tensor self, int k=1, Dim[]? dims=none) -> Tensor",
  kind = "composite",
  expr = [[
    local a, b = when(given(dims), dims[0], 0), when(given(dims), dims[1], 1)
    local turns = remainder(k, 4)
    return when(equal(turns, 1), transpose(flip(self, list(b)), a, b), when(equal(turns, 2), flip(self, list(a, b)),
      when(equal(turns, 3), transpose(flip(self, list(a)), a, b), clone(self))))]],
  check = {
    { "either(negate(given(dims)), equal(length(dims), 2))", "expected two dimensions, got {length(dims)}" },
    { "ge(self.ndim, 2)", "expected at least 2 dimensions, got {self.ndim}" },
  },
  grad = "composite",
  reference = "rot90",
  samples = { "randn(2,3)", "randn(2,3,4), 3, {2,3}", "randn(2,3), 2", "randn(2,3), -4" },
  errors = { { "randn(3)", "at least 2" }, { "randn(2,2), 1, {1}", "two dimensions" }, { "randn(2,2), 1, {1,1}", "twice" } },
  doc = "Rotated k times by 90 degrees in the plane of two dimensions (1 and 2), from the first to the second; a copy." },
{ "unfold(Tensor self, Dim dimension, int size >= 0, int step >= 1) -> Tensor",
  kind = "composite",
  expr = [[
    local x = when(equal(self.ndim, 0), unsqueeze(self, 0), self)
    local n = floor_divide(x.shape[dimension] - size, step) + 1
    local stride = x.stride[dimension]
    local wide = as_strided(x, join(replace(x.shape, dimension, n), list(size)),
      join(replace(x.stride, dimension, stride * step), list(stride)))
    return when(equal(self.ndim, 0), as_strided(self, list(size), list(1)), wide)]],
  check = {
    { "le(size, when(equal(self.ndim, 0), 1, self.shape[dimension]))",
      "windows of size {size} do not fit into dimension {dimension}, of size {self.shape[dimension]}" },
  },
  grad = "composite",
  reference = "unfold",
  samples = { "randn(7), 1, 3, 2", "randn(5,4), 1, 2, 1", "randn(2,6):t(), 1, 3, 3" },
  errors = {
    { "randn(3), 1, 4, 1", "do not fit" }, { "randn(3), 1, 1, 0", "step" }, { "randn(3), 2, 1, 1", "out of range" },
  },
  doc = "A view of all windows of `size` elements along a dimension, `step` apart; they are the last dimension." },
{ "diag_embed(Tensor self, int offset=0, Dim dim1=-2 of result, Dim dim2=-1 of result) -> Tensor",
  kind = "composite",
  expr = [[
    local rest = self.ndim - 1
    local n = self.shape[rest] + when(lt(offset, 0), 0 - offset, offset)
    local matrix = written(zeros_of(self, join(first_n(self.shape, rest), list(n, n)), none),
      function(w) return op.diagonal(w, offset, rest, rest + 1) end, self)
    local order = insert(range(0, rest), smaller(dim1, dim2), when(lt(dim1, dim2), rest, rest + 1))
    return permute(matrix, insert(order, larger(dim1, dim2), when(lt(dim1, dim2), rest + 1, rest)))]],
  check = {
    { "gt(self.ndim, 0)", "expected at least 1 dimension" }, { "ne(dim1, dim2)", "dim1 and dim2 must differ" },
    { "both(lt(offset, 4611686018427387904), gt(offset, -4611686018427387904))", "offset is too large: {offset}" },
  },
  grad = "composite",
  reference = "diag_embed",
  samples = { "randn(3)", "randn(2,3), 1", "randn(2,3), -1, 1, 3", "randn(2,3), 0, 3, 1" },
  errors = { { "randn()", "at least 1|out of range" }, { "randn(2), 0, 1, 1", "must differ" }, { "randn(2), 0, 4, 1", "out of range" } },
  doc = "Matrices with the last dimension of self on a diagonal, in dimensions dim1 and dim2; zeros elsewhere." },
{ "diagflat(Tensor self, int offset=0) -> Tensor",
  kind = "composite",
  expr = "diag_embed(reshape(self, list(self.numel)), offset, 0, 1)",
  grad = "composite",
  reference = "diagflat",
  samples = { "randn(3)", "randn(2,2), 1", "randn()" },
  errors = { { "randn(2), 0.5", "integ" } },
  doc = "The matrix with all elements of self on a diagonal." },
{ "select_scatter(Tensor self, Tensor src, Dim dim, Index index) -> Tensor",
  kind = "composite",
  expr = "written(clone(self), function(w) return select(w, dim, index) end, src)",
  check = {
    { "gt(self.ndim, 0)", "self has no dimensions" },
    { "same_list(src.shape, remove(self.shape, dim))", "src must have the shape {remove(self.shape, dim)}, got {src.shape}" },
  },
  grad = "composite",
  reference = "select_scatter",
  samples = { "randn(4,3), randn(3), 1, 2", "randn(2,3), randn(2), 2, -1" },
  errors = { { "randn(4,3), randn(4), 1, 2", "must have the shape" }, { "randn(3), randn(), 1, 4", "out of range" } },
  doc = "self with src in place of one position of dim." },
{ "slice_scatter(Tensor self, Tensor src, Dim dim=0, int? start=none, int? stop=none, int step=1 >= 1) -> Tensor",
  kind = "composite",
  expr = [[
    local n = self.shape[dim]
    local first, last = offset_in(start, n, 0), offset_in(stop, n, n)
    return written(clone(self), function(w) return slice(w, dim, first, larger(first, last), step) end, src)]],
  check = {
    { "gt(self.ndim, 0)", "self has no dimensions" },
    { "equal(src.ndim, self.ndim)", "src must have {self.ndim} dimensions, got {src.ndim}" },
  },
  grad = "composite",
  reference = "slice_scatter",
  samples = { "randn(7,3), randn(3,3), 1, 1, 6, 2", "randn(4), randn(2), 1, -2", "randn(2,3), randn(2,3), 2" },
  errors = { { "randn(4), randn(3), 1, 0, 2", "broadcast|expand" }, { "randn(4), randn(), 1", "dimensions" } },
  doc = "self with src in place of the offsets start (from 0) up to, without, stop along dim, by step; as slice, \z
    negative ones count from the end." },
{ "diagonal_scatter(Tensor self, Tensor src, int offset=0, Dim dim1=0, Dim dim2=1) -> Tensor",
  kind = "composite",
  expr = "written(clone(self), function(w) return op.diagonal(w, offset, dim1, dim2) end, src)",
  check = { { "equal(src.ndim, self.ndim - 1)", "src must have {self.ndim - 1} dimensions, got {src.ndim}" } },
  grad = "composite",
  reference = "diagonal_scatter",
  samples = { "randn(3,4), randn(3)", "randn(3,3), randn(2), 1", "randn(2,3,4), randn(2,2), -1, 2, 3" },
  errors = { { "randn(3,3), randn(4)", "broadcast|expand" }, { "randn(3,3), randn()", "dimensions" } },
  doc = "self with src in place of the diagonal of dims dim1 and dim2." },
{ "index_fill(Tensor self, Dim dim, IndexTensor index, Operand value, index_base) -> Tensor",
  kind = "composite",
  expr = [[
    local x = atleast_1d(self)
    local none_yet = zeros_of(self, list(x.shape[dim]), dtype_named("bool"))
    local chosen = full_of(self, list(), 1, dtype_named("bool"))
    local mask = scatter_nd_(none_yet, list(0), reshape(index, list(index.numel)), chosen, false, index_base)
    local wide_mask = view(mask, replace(ones_n(x.ndim), dim, x.shape[dim]))
    return reshape(masked_fill(x, wide_mask, value), self.shape)]],
  check = {
    { "le(index.ndim, 1)", "index must be 1-D, got {index.ndim} dimensions" },
    { "either(is_number(value), equal(value.ndim, 0))", "value must be a number or a 0-dim tensor" },
    'in_range(value, self.dtype, "value")',
  },
  grad = "composite",
  reference = "index_fill",
  samples = { "randn(4,3), 1, tensor({1,-1},{dtype=int64}), 2", "randn(2,3), 2, tensor({2},{dtype=int64}), randn()" },
  errors = {
    { "randn(3), 1, tensor({4},{dtype=int64}), 1", "index 4 is out of range" }, { "randn(3), 1, randn(2), 1", "integer" },
    { "randn(3), 1, tensor({{1}},{dtype=int64}), 1", "1%-D" }, { "randn(3), 1, tensor({1},{dtype=int64}), randn(2)", "0%-dim" },
  },
  doc = "self with value at the positions `index` of dim." },
{ "index_fill_(Tensor! self, Dim dim, IndexTensor index, Operand value, index_base) -> self",
  kind = "composite",
  expr = "copy_(self, index_fill(self, dim, index, value, index_base))",
  grad = "composite",
  reference = "index_fill",
  samples = { "randn(4,3), 1, tensor({1,-1},{dtype=int64}), 2" },
  errors = { { "randn(3), 1, tensor({4},{dtype=int64}), 1", "index 4 is out of range" } },
  doc = "index_fill in place." },
{ "take(Tensor self, IndexTensor index, index_base) -> Tensor",
  kind = "composite",
  expr = "gather_nd(reshape(self, list(self.numel)), list(0), index, index_base)",
  grad = "composite",
  reference = "take",
  samples = { "randn(4,3), tensor({{1,12},{-1,5}},{dtype=int64})", "randn(), tensor({1},{dtype=int64})" },
  errors = { { "randn(2,2), tensor({5},{dtype=int64})", "index 5 is out of range" }, { "randn(3), randn(2)", "integer" } },
  doc = "The elements at positions of the flattened tensor, in the shape of index; -1 is the last." },
{ "put(Tensor self, IndexTensor index, Tensor source, bool accumulate=false, index_base) -> Tensor",
  kind = "composite",
  expr = [[
    local flat = clone(reshape(self, list(self.numel)))
    return reshape(scatter_nd_(flat, list(0), index, reshape(source, index.shape), accumulate, index_base), self.shape)]],
  check = {
    { "equal(index.numel, source.numel)", "index and source must have as many elements, got {index.numel} and {source.numel}" },
    { "same_dtype(self, source)", "self and source must have the same dtype, got {self.dtype} and {source.dtype}", "type" },
  },
  grad = "composite",
  reference = "put",
  samples = {
    "randn(4,3), tensor({{1,12},{-2,5}},{dtype=int64}), randn(4)",
    "randn(4,3), tensor({2,3,2},{dtype=int64}), randn(3), true",
  },
  errors = {
    { "randn(2,2), tensor({5},{dtype=int64}), randn(1)", "index 5 is out of range" },
    { "randn(3), tensor({1,2},{dtype=int64}), randn(1)", "as many" },
  },
  doc = "self with source at positions of the flattened tensor; with accumulate added there." },
{ "put_(Tensor! self, IndexTensor index, Tensor source, bool accumulate=false, index_base) -> self",
  kind = "composite",
  expr = "copy_(self, put(self, index, source, accumulate, index_base))",
  grad = "composite",
  reference = "put",
  samples = { "randn(4,3), tensor({{1,12},{-2,5}},{dtype=int64}), randn(4)" },
  errors = { { "randn(2,2), tensor({5},{dtype=int64}), randn(1)", "index 5 is out of range" } },
  doc = "put in place." },
}
