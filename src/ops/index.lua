-- Joining, gathering, scattering, masks. Index tensors (int64, or any integer dtype) count from index_base.
-- With the dtypes that are there for storage and exchange: uint16, uint32, uint64.
local stored = "float,int,bool,uint"
-- Where in self the element `out` of gather_nd's result, or of scatter_nd_'s src, stands.
local nd_place = [[
    local n = length(dims)
    local lead = n > 1 and index.ndim - 1 or index.ndim -- dimensions of index that stand in out
    local place = dims[0] -- where they stand
    for k = 1, n - 1 do if dims[k] ~= dims[0] + k then place = 0 end end
    local here, at_self, next = {}, {}, 0
    for k = 1, lead do here[k] = out[place + k - 1] end
    local position = {}
    for k = 0, n - 1 do
      local d, v = dims[k], load(index, n > 1 and join(here, { k }) or here)
      position[d] = where(lt(v, 0), v + self.shape[d], v - index_base)
    end
    for d = 0, self.ndim - 1 do
      if next == place then next = next + lead end
      if position[d] then at_self[d + 1] = position[d]
      else at_self[d + 1], next = out[next], next + 1 end
    end
]]

local vector = { "le(index.ndim, 1)", "index must be 1-D, got {index.ndim} dimensions" }
-- One row for each position; of a 0-dim tensor one element.
local rows = {
  "either(same_list(S, W), both(equal(self.ndim, 0), both(le(source.ndim, 1), both(equal(source.numel, 1), equal(index.numel, 1)))))",
  "source must have the size of self, and that of index in dimension {dim}: expected shape {W}, got {S}",
}

return {
{ "cat(Tensor[] tensors, Dim dim=0) -> Tensor",
  kind = "gather", batch = "front", dtypes = stored .. ",complex", shape = "cat", amp = "widest",
  loop = [[
    local from, r = 0, nil
    for _, t in ipairs(tensors) do
      local n, i = t.shape[dim], out[dim] - from
      local v = load(t, at(out, dim, i), within(i, n), 0)
      r = r and where(within(i, n), v, r) or v
      from = from + n
    end
    return r]],
  grad = { tensors = "cat_backward(grad, tensors, dim)" },
  reference = "cat",
  samples = { "{randn(2,3), randn(1,3)}", "{randn(2,3), randn(2,1)}, 2", "{randn(2,2), randn(2,0), randn(2,3), randn(2,1)}, -1" },
  errors = { { "{randn(2,3), randn(2,4)}", "size" }, { "{}", "at least one" }, { "{randn(2)}, 2", "out of range" } },
  doc = "Tensors joined along dim." },
-- C: expressions have no lists of tensors that are made.
{ "stack(Tensor[] tensors, Dim dim=0 of result) -> Tensor",
  kind = "composite",
  loop = [[
    local r
    for k, t in ipairs(tensors) do
      local v = load(t, remove(out, dim))
      r = r and where(eq(out[dim], k - 1), v, r) or v
    end
    return r]],
  grad = "composite",
  reference = "stack",
  samples = { "{randn(2,3), randn(2,3)}", "{randn(2), randn(2)}, 2" },
  errors = { { "{randn(2,3), randn(2,4)}", "size" }, { "{}", "at least one" }, { "{randn(2)}, 3", "out of range" } },
  doc = "Tensors of one shape joined along a new dimension." },
{ "gather(Tensor self, Dim dim, IndexTensor index, index_base) -> Tensor",
  kind = "gather", batch = "front", dtypes = stored .. ",complex", parts = "index",
  dims = { index = "*I" }, out = "*I", check = { "picks(self, dim, index)" },
  loop = "load(self, at(out, dim, load(index, out) - index_base))",
  grad = { self = "gather_backward(grad, self.shape, dim, index, index_base)" },
  reference = "gather",
  samples = { "randn(3,4), 2, randint(1, 5, {3,2})", "randn(3,4), 1, randint(1, 4, {2,4})" },
  errors = {
    { "randn(3), 1, tensor({4},{dtype=int64})", "index 4 is out of range" }, { "randn(3), 1, randn(2)", "integer" },
    { "randn(3,4), 1, tensor({1},{dtype=int64})", "dimensions" },
  },
  doc = "out[i][j] = self[index[i][j]][j] for dim 1, and so on." },
{ "scatter(Tensor self, Dim dim, IndexTensor index, Operand src, index_base) -> Tensor",
  kind = "scatter", batch = "front", dtypes = stored .. ",complex", parts = "index", inplace = true,
  dims = { self = "*", src = "*S : self" }, out = "*",
  check = { "picks(self, dim, index)", "covers(src, index)", 'in_range(src, self.dtype, "src")' },
  store = "last", over = "index.shape",
  loop = "at(out, dim, load(index, out) - index_base), load(src, out)",
  grad = { self = "scatter(grad, dim, index, 0, index_base)", src = "scatter_src_backward(grad, src.shape, dim, index, index_base)" },
  reference = "scatter",
  samples = {
    "randn(3,4), 2, tensor({{1,2},{3,4},{2,1}},{dtype=int64}), randn(3,2)",
    "randn(3,4), 1, tensor({{1,3,2,1}},{dtype=int64}), 7",
  },
  errors = {
    { "randn(3), 1, tensor({4},{dtype=int64}), 1", "index 4 is out of range" },
    { "randn(3), 1, randn(2), 1", "integer" }, { "randn(3), 1, tensor({1,2},{dtype=int64}), randn(1)", "size" },
    { "randn(3), 1, tensor(2,{dtype=int64}), randn(0)", "src must not be smaller than index" },
  },
  doc = "self with src written at index along dim; of several writes to one place the last stays." },
{ "scatter_add(Tensor self, Dim dim, IndexTensor index, Tensor src, index_base) -> Tensor",
  kind = "scatter", amp = "widest", batch = "front", dtypes = "float,int,bool,complex", parts = "index", inplace = true,
  dims = { self = "*", src = "*S : self" }, out = "*",
  check = { "picks(self, dim, index)", "covers(src, index)" },
  store = "add", over = "index.shape",
  loop = "at(out, dim, load(index, out) - index_base), load(src, out)",
  grad = { self = "grad", src = "scatter_src_backward(grad, src.shape, dim, index, index_base)" },
  reference = "scatter_add",
  samples = { "randn(3,4), 2, randint(1, 5, {3,6}), randn(3,6)" },
  errors = {
    { "randn(3), 1, tensor({4},{dtype=int64}), randn(1)", "index 4 is out of range" },
    { "randn(3), 1, randn(2), randn(2)", "integer" }, { "randn(3), 1, tensor({1,2},{dtype=int64}), randn(1)", "size" },
    { "randn(3), 1, tensor(2,{dtype=int64}), randn(0)", "src must not be smaller than index" },
  },
  doc = "self with src added at index along dim." },
{ "scatter_reduce(Tensor self, Dim dim, IndexTensor index, Tensor src, enum('prod','mean','amax','amin','sum') reduce, bool include_self=true, index_base) -> Tensor",
  kind = "composite",
  expr = [[
    local start = only_given(self, dim, index, include_self, 0, index_base)
    return when(equal(index.numel, 0), clone(self), when(eq(reduce, "sum"),
      scatter_add(start, dim, index, narrowed_to(src, index.shape), index_base),
      when(eq(reduce, "mean"), scattered_mean(self, dim, index, src, include_self, index_base),
        when(eq(reduce, "prod"), scattered_prod(self, dim, index, src, include_self, index_base),
          native_scatter_extreme(self, dim, index, src, eq(reduce, "amax"), include_self, index_base)))))]],
  check = {
    { "same_dtype(self, src)", "src must have the dtype of self, {self.dtype}, got {src.dtype}", "type" },
    { "equal(index.ndim, src.ndim)", "index and src must have as many dimensions, got {index.ndim} and {src.ndim}" },
    "covers(src, index)",
  },
  grad = "composite",
  reference = "scatter_reduce",
  samples = {
    "randn(3,4), 2, randint(1, 5, {3,6}), randn(3,6), 'sum'", "randn(3,4), 1, randint(1, 4, {5,4}), randn(5,4), 'prod'",
    "randn(3,4), 1, tensor({{3,1,2}},{dtype=int64}), randn(2,4), 'mean', false", "randn(4), 1, randint(1, 5, {7}), randn(7), 'amax'",
    "randn(3,4), 2, randint(1, 4, {3,5}), randn(3,5), 'amin', false", "randn(3,4), 2, randint(1, 4, {3,5}), randn(3,5), 'prod', false",
  },
  errors = {
    { "randn(3), 1, tensor({4},{dtype=int64}), randn(1), 'sum'", "index 4 is out of range" },
    { "randn(3), 1, randn(2), randn(2), 'sum'", "integer" },
    { "randn(3), 1, tensor({1,2},{dtype=int64}), randn(1), 'sum'", "src must not be smaller than index" },
    { "randn(3), 1, tensor({1},{dtype=int64}), randn(1), 'max'", "reduce" },
  },
  doc = "self joined with src at index along dim, by sum, prod, mean, amax or amin; without include_self only what src \z
    gives counts where there is any. Equal extremes share the gradient." },
{ "native_scatter_extreme(Tensor self, Dim dim, IndexTensor index, Tensor src, bool largest, bool include_self, index_base) -> Tensor",
  kind = "composite", keep = true,
  expr = "scattered_extreme(self, dim, index, src, largest, include_self, index_base)",
  grad = {
    self = "extreme_grad_self(grad, self, dim, index, src, include_self, result, index_base)",
    src = "extreme_grad_src(grad, self, dim, index, src, include_self, result, index_base)",
  },
  reference = "scatter_extreme",
  samples = {
    "randn(7), 1, tensor({1,5,3},{dtype=int64}), randn(3), true, true",
    "randn(3,4), 2, tensor({{1,3},{2,4},{4,1}},{dtype=int64}), randn(3,2), false, false",
  },
  errors = { { "randn(3), 1, tensor({4},{dtype=int64}), randn(1), true, true", "index 4 is out of range" } },
  doc = "scatter_reduce by amax (largest) or amin." },
{ "index_reduce(Tensor self, Dim dim, IndexTensor index, Tensor source, enum('prod','mean','amax','amin') reduce, bool include_self=true, index_base) -> Tensor",
  kind = "composite",
  expr = [[
    local x, y = atleast_1d(self), atleast_1d(source)
    local rows = view(reshape(index, list(index.numel)), replace(ones_n(x.ndim), dim, index.numel))
    local at = expand(rows, replace(x.shape, dim, index.numel))
    local how = when(eq(reduce, "prod"), scatter_reduce(x, dim, at, y, "prod", include_self, index_base),
      when(eq(reduce, "mean"), scatter_reduce(x, dim, at, y, "mean", include_self, index_base),
        when(eq(reduce, "amax"), scatter_reduce(x, dim, at, y, "amax", include_self, index_base),
          scatter_reduce(x, dim, at, y, "amin", include_self, index_base))))
    return reshape(how, self.shape)]],
  check = {
    vector, { "equal(self.ndim, source.ndim)", "source must have as many dimensions as self, {self.ndim}, got {source.ndim}" },
    { "equal(when(equal(source.ndim, 0), 1, source.shape[dim]), index.numel)", "source must have {index.numel} positions along dim, as index" },
  },
  grad = "composite",
  reference = "index_reduce",
  samples = {
    "randn(4,3), 1, tensor({1,4,4},{dtype=int64}), randn(3,3), 'prod'", "randn(3,4), 2, tensor({1,1},{dtype=int64}), randn(3,2), 'mean'",
    "randn(4,3), 1, tensor({1,4,4},{dtype=int64}), randn(3,3), 'amax', false", "randn(4), 1, tensor({2},{dtype=int64}), randn(1), 'amin'",
  },
  errors = {
    { "randn(3), 1, tensor({4},{dtype=int64}), randn(1), 'prod'", "index 4 is out of range" },
    { "randn(3), 1, randn(2), randn(2), 'prod'", "integer" },
    { "randn(3), 1, tensor({1},{dtype=int64}), randn(2), 'amax'", "positions" },
  },
  doc = "self with the rows of source joined at index along dim, by prod, mean, amax or amin; as scatter_reduce." },
{ "index_select(Tensor self, Dim dim, IndexTensor index, index_base) -> Tensor",
  kind = "gather", dtypes = stored .. ",complex",
  dims = { index = "*I" }, out = "(with_size(self, dim, index.numel))",
  check = {
    vector,
    { "either(gt(self.ndim, 0), equal(index.numel, 1))", "index must have one element where self has no dimensions" },
  },
  loop = "load(self, at(out, dim, load(index, { out[dim] }) - index_base))",
  grad = { self = "index_select_backward(grad, self.shape, dim, index, index_base)" },
  reference = "index_select",
  samples = { "randn(4,3), 1, tensor({1,4,4},{dtype=int64})", "randn(4,3), 2, tensor({2},{dtype=int64})" },
  errors = {
    { "randn(3), 1, tensor({4},{dtype=int64})", "index 4 is out of range" }, { "randn(3), 1, randn(2)", "integer" },
    { "randn(3), 1, tensor({{1}},{dtype=int64})", "1%-D" },
  },
  doc = "The positions `index` of dim, in that order; a copy." },
{ "index_add(Tensor self, Dim dim, IndexTensor index, Tensor source, index_base) -> Tensor",
  kind = "scatter", dtypes = "float,int,bool,complex", inplace = true,
  dims = { self = "*", source = "*S : self" }, out = "*",
  let = { ["*W"] = "with_size(self, dim, index.numel)" }, check = { vector, rows },
  store = "add", over = "source.shape",
  loop = "at(out, dim, load(index, { out[dim] }) - index_base), load(source, out)",
  grad = { self = "grad", source = "index_select(grad, dim, index, index_base)" },
  reference = "index_add",
  samples = { "randn(4,3), 1, tensor({1,4,4},{dtype=int64}), randn(3,3)" },
  errors = {
    { "randn(3), 1, tensor({4},{dtype=int64}), randn(1)", "index 4 is out of range" },
    { "randn(3), 1, randn(2), randn(2)", "integer" }, { "randn(3), 1, tensor({1},{dtype=int64}), randn(2)", "size" },
  },
  doc = "self with the rows of source added at index along dim." },
{ "index_copy(Tensor self, Dim dim, IndexTensor index, Tensor source, index_base) -> Tensor",
  kind = "scatter", amp = "widest", dtypes = stored .. ",complex", inplace = true,
  dims = { self = "*", source = "*S : self" }, out = "*",
  let = { ["*W"] = "with_size(self, dim, index.numel)" }, check = { vector, rows },
  store = "last", over = "source.shape",
  loop = "at(out, dim, load(index, { out[dim] }) - index_base), load(source, out)",
  grad = {
    self = "index_fill_zero(grad, dim, index, index_base)", source = "index_select(grad, dim, index, index_base)",
  },
  reference = "index_copy",
  samples = { "randn(4,3), 1, tensor({1,4},{dtype=int64}), randn(2,3)" },
  errors = {
    { "randn(3), 1, tensor({4},{dtype=int64}), randn(1)", "index 4 is out of range" },
    { "randn(3), 1, randn(2), randn(2)", "integer" }, { "randn(3), 1, tensor({1},{dtype=int64}), randn(2)", "size" },
  },
  doc = "self with the rows of source written at index along dim." },
{ "gather_nd(Tensor self, Dim[] dims, IndexTensor index, index_base) -> Tensor",
  kind = "gather", dtypes = stored .. ",complex", shape = "gather_nd",
  loop = nd_place .. "return load(self, at_self)",
  grad = { self = "gather_nd_backward(grad, self.shape, dims, index, index_base)" },
  reference = "gather_nd",
  samples = {
    "randn(4,3), 1, tensor({{1,4},{-1,1}},{dtype=int64})",
    "randn(4,3,2), {1,2}, tensor({{1,3},{4,-1},{1,3}},{dtype=int64})",
    "randn(3,2,4), {1,3}, tensor({{{1,4},{-1,2},{3,4}}},{dtype=int64})",
    "randn(3,2,4), {2,3}, tensor({{2,-4},{-1,1}},{dtype=int64})", "randn(3,4), 2, tensor(2,{dtype=int64})",
  },
  errors = {
    { "randn(3), 1, tensor({4},{dtype=int64})", "index 4 is out of range" }, { "randn(3), 1, randn(2)", "integer" },
    { "randn(3), 1, tensor({0},{dtype=int64})", "index 0 is out of range" },
    { "randn(3), 1, tensor({1,-4},{dtype=int64})", "index %-4 is out of range" },
    { "randn(3,4), {1,2}, tensor({1},{dtype=int64})", "last dimension" },
    { "randn(3,4), {1,1}, tensor({1,2},{dtype=int64})", "twice" }, { "randn(3), {}, tensor({1},{dtype=int64})", "dims" },
  },
  doc = "The elements at positions in several dimensions: the last dimension of index (…, n) holds a position for each of \z
    the n dims; of one dim, index holds the positions themselves. -1 is the last position. The dimensions (…) of index stand \z
    in place of dims if these follow one another, else in front. What x[{ i, j }] is made of; a copy." },
{ "scatter_nd_(Tensor! self, Dim[] dims, IndexTensor index, Tensor src, bool accumulate=false, index_base) -> self",
  kind = "scatter", dtypes = stored .. ",complex", shape = "scatter_nd",
  store = "accumulate", over = "gather_nd(self, dims, index, index_base).shape",
  loop = nd_place .. "return at_self, load(src, broadcast(src, out))",
  grad = {
    self = "scatter_nd_zero(grad, dims, index, accumulate, index_base)",
    src = "sum_to(gather_nd(grad, dims, index, index_base), src.shape)",
  },
  reference = "scatter_nd_",
  samples = {
    "randn(4,3), 1, tensor({1,-1},{dtype=int64}), randn(2,3)",
    "randn(4,3,2), {1,2}, tensor({{1,3},{4,-1},{2,2}},{dtype=int64}), randn(3,2)",
    "randn(4,3,2), {1,2}, tensor({{1,3},{4,-1},{1,3}},{dtype=int64}), randn(2), true",
    "randn(3,2,4), {1,3}, tensor({{{1,4},{-1,2},{3,4}}},{dtype=int64}), randn(1,3,2)",
    "randn(3,2,4), {1,3}, tensor({{1,4},{-1,2},{1,4}},{dtype=int64}), randn(3,1), true",
    "randn(3,4), 2, tensor(2,{dtype=int64}), randn(3)",
  },
  errors = {
    { "randn(3), 1, tensor({4},{dtype=int64}), randn(1)", "index 4 is out of range" },
    { "randn(3), 1, randn(2), randn(2)", "integer" },
    { "randn(3), 1, tensor({1},{dtype=int64}), randn(2)", "cannot be broadcast" },
    { "randn(3), 1, tensor({1},{dtype=int64}), randn(1):gt(0)", "dtype" },
  },
  doc = "Writes src, broadcast, to positions in several dimensions, as gather_nd reads them; with accumulate adds it. Of \z
    several writes to one place the last stays. What x[{ i, j }] = v is made of." },
{ "masked_select(Tensor self, Mask mask) -> Tensor",
  kind = "extern", dtypes = stored .. ",complex", parts = "mask", shape = "dynamic",
  grad = { self = "masked_select_backward(grad, self.shape, mask)" },
  reference = "masked_select",
  samples = { "randn(3,4), randn(3,4):gt(0)", "randn(3,4), randn(4):gt(0)" },
  errors = { { "randn(3), randn(3)", "bool" }, { "randn(3), randn(2):gt(0)", "broadcast" } },
  doc = "The elements where mask is true, as a vector." },
{ "masked_scatter(Tensor self, Mask mask, Tensor source) -> Tensor",
  kind = "extern", dtypes = stored .. ",complex", parts = "mask", inplace = true,
  dims = { source = "*S : self" }, out = "(wide(self.shape, mask.shape))",
  grad = { self = "masked_fill(grad, mask, 0)", source = "masked_scatter_backward(grad, mask, source.shape)" },
  reference = "masked_scatter",
  samples = { "randn(3,4), randn(3,4):gt(0), randn(12)" },
  errors = { { "randn(3), randn(3), randn(3)", "bool" }, { "randn(3), randn(3):gt(-9), randn(2)", "elements" } },
  doc = "self with successive elements of source where mask is true." },
{ "nonzero(Tensor self, index_base) -> Tensor",
  kind = "extern", shape = "dynamic",
  grad = "none",
  reference = "nonzero",
  samples = { "randn(3,4):gt(0)", "randn(3):gt(9)" },
  doc = "Positions of the elements that are not zero: one row each, one column per dimension." },
{ "embedding(Tensor weight, IndexTensor index, index_base) -> Tensor",
  kind = "composite",
  loop = "load(weight, { load(index, first(out, index.ndim)) - index_base, out[-1] })",
  expr = [[
    local rows = index_select(weight, 0, reshape(index, list(index.numel)), index_base)
    return view(rows, join(index.shape, list(weight.shape[1])))]],
  check = {
    { "equal(weight.ndim, 2)",
      "weight must be 2-D, got {weight.ndim} dimensions" },
    { "lt(index.ndim, 16)",
      "index has too many dimensions" },
  },
  grad = "composite",
  reference = "embedding",
  samples = { "randn(5,3), randint(1, 6, {2,4})" },
  errors = {
    { "randn(3,2), tensor({4},{dtype=int64})", "index 4 is out of range" }, { "randn(3,2), randn(2)", "integer" },
    { "randn(3), tensor({1},{dtype=int64})", "2%-D" },
  },
  doc = "Row index[...] of weight for each index." },
{ "one_hot(Tensor self, int num_classes >= 1, index_base) -> Tensor",
  kind = "composite",
  loop = "where(eq(out[-1], load(self, first(out, self.ndim)) - index_base), 1, 0)",
  expr = [[
    local none_yet = zeros_of(self, join(self.shape, list(num_classes)), dtype_named("int64"))
    return scatter(none_yet, self.ndim, unsqueeze(self, self.ndim), 1, index_base)]],
  check = {
    { "is_int(self)",
      "expected an integer tensor, got {self.dtype}", "type" },
    { "both(ge(num_classes, 1), lt(self.ndim, 16))",
      "num_classes must be positive, got {num_classes}" },
  },
  grad = "none",
  reference = "one_hot",
  samples = { "randint(1, 6, {2,4}), 5" },
  errors = {
    { "tensor({4},{dtype=int64}), 3", "index 4 is out of range" }, { "randn(3), 3", "integer" },
    { "tensor({4},{dtype=int64})", "argument 'num_classes'" },
  },
  doc = "int64 vectors with a 1 at each position." },
}
