-- Sorting, and padding. Positions count from index_base.
return {
{ "sort(Tensor self, Dim dim=-1, bool descending=false, index_base) -> (Tensor, Tensor)",
  kind = "extern",
  dims = { self = "*" }, out = { "*", "* : int64" },
  grad = { self = "scatter_back(grad, self.shape, dim, result1, index_base)" },
  reference = "sort",
  samples = {
    "randn(3,4)", "randn(3,4), 1, true", "randint(0, 3, {4,7}), 2", "randn(0,3)",
  },
  errors = { { "randn(2), 2", "out of range" } },
  doc = "Values in order along dim and the positions that they come from; equal ones keep their order. \z
    NaN counts as larger than all numbers." },
{ "argsort(Tensor self, Dim dim=-1, bool descending=false, index_base) -> Tensor",
  kind = "composite",
  expr = [[
    local values, positions = sort(self, dim, descending, index_base)
    return positions]],
  grad = "none",
  reference = "argsort",
  samples = {
    "randn(3,4)", "randn(3,4), 1, true", "tensor{3, 0/0, 1, -inf, 2}", "tensor{3, 0/0, 1, inf, 2}, 1, true",
  },
  errors = { { "randn(2), 2", "out of range" } },
  doc = "The positions that sort gives." },
{ "topk(Tensor self, int k, Dim dim=-1, bool largest=true, bool sorted=true, index_base) -> (Tensor, Tensor)",
  kind = "extern", batch = "front",
  let = { ["*S"] = "with_size(self, dim, k)" }, out = { "*S", "*S : int64" },
  check = {
    { "both(ge(k, 0), le(k, self.shape[dim]))", "k must be between 0 and the {self.shape[dim]} elements along dim, got {k}" },
    { "either(gt(self.ndim, 0), equal(k, 1))", "k must be 1 for a 0-dim tensor, got {k}" },
  },
  grad = { self = "scatter_back(grad, self.shape, dim, result1, index_base)" },
  reference = "topk",
  samples = { "randn(3,6), 2", "randn(4,3), 2, 1, false", "randn(3,4), 4", "randn(3,4), 0" },
  errors = { { "randn(2), 1, 2", "out of range" }, { "randn(2), 3", "k must be" }, { "randn(2), -1", "k must be" } },
  doc = "The k largest (smallest) elements along dim, in order, and their positions. Of equal ones the first is taken." },
{ "kthvalue(Tensor self, int k, Dim dim=-1, bool keepdim=false, index_base) -> (Tensor, Tensor)",
  kind = "composite",
  expr = [[
    local values, positions = topk(self, k, dim, false, true, index_base)
    return when(equal(self.ndim, 0), values, element(values, dim, k - 1, keepdim)),
      when(equal(self.ndim, 0), positions, element(positions, dim, k - 1, keepdim))]],
  check = {
    { "both(ge(k, 1), le(k, self.shape[dim]))",
      "k must be between 1 and the {self.shape[dim]} elements along dim, got {k}" },
  },
  keep = true, grad = { self = "index_backward(grad, self.shape, dim, result1, keepdim, index_base)" },
  reference = "kthvalue",
  samples = { "randn(3,6), 2", "randn(4,3), 3, 1, true" },
  errors = { { "randn(2), 1, 2", "out of range" }, { "randn(2), 3", "k must be" }, { "randn(2), 0", "k must be" } },
  doc = "The k-th smallest element along dim (k counts from 1), and its position." },
-- C: each mode has checks of its own for every dimension, and the dimensions are not known here.
{ "pad(Tensor self, int[] pad, enum('constant','reflect','replicate','circular') mode='constant', Scalar value=0) -> Tensor",
  kind = "composite",
  loop = [[
    local i, inside = out, true
    for k = 0, length(pad) / 2 - 1 do
      local d = self.ndim - 1 - k
      local before, after = pad[2 * k], pad[2 * k + 1]
      local n, p = self.shape[d], out[d] - before
      if mode == "constant" then inside = both(inside, within(p, n))
      elseif mode == "replicate" then p = minimum(maximum(p, 0), n - 1)
      elseif mode == "circular" then
        local cut = maximum(-before, 0)
        p = remainder(p - cut, n - cut - maximum(-after, 0)) + cut
      else p = n - 1 - abs(n - 1 - abs(p)) end
      i = at(i, d, p)
    end
    return load(self, i, inside, value)]],
  grad = "composite",
  reference = "pad",
  samples = {
    "randn(3,4), {1,2}", "randn(3,4), {1,0,0,2}, 'constant', 2.5", "randn(3,4), {-1,1}", "randn(2,3,4), {2,3}, 'reflect'",
    "randn(2,3,4), {1,2,2,0}, 'replicate'", "randn(2,3,4), {3,1}, 'circular'", "randn(2,3,4), {-3,1,1,-2}, 'reflect'",
  },
  errors = {
    { "randn(3), {1}", "even" }, { "randn(3), {1,1,1,1}", "dimensions" }, { "randn(3), {3,0}, 'reflect'", "smaller" },
    { "randn(3), {1,1}, 'mirror'", "mode" }, { "randn(3), {4,0}, 'circular'", "larger" }, { "randn(3), {-2,-2}", "negative" },
  },
  doc = "self with pad[1] elements before and pad[2] after along its last dimension, pad[3] and pad[4] along the \z
    one before, and so on. mode: constant, reflect (the edge is not repeated), replicate or circular. \z
    Negative numbers cut: reflect and replicate still take what the uncut dimension has there, circular what is left." },
{ "roll(Tensor self, int[] shifts, Dim[]? dims=none repeated) -> Tensor",
  kind = "composite",
  check = {
    { "either(given(dims), equal(length(shifts), 1))", "without dims one shift is expected, got {length(shifts)}" },
    { "either(negate(given(dims)), equal(length(shifts), length(dims)))",
      "shifts and dims must be as many, got {length(shifts)} and {length(dims)}" },
  },
  expr = [[
    local flat = view(rolled(reshape(self, list(self.numel)), 0, shifts[0]), self.shape)
    local along = fold(self, length(dims), function(x, k)
      return when(equal(self.ndim, 0), clone(x), rolled(x, dims[k], shifts[k]))
    end)
    return when(given(dims), along, flat)]],
  loop = [[
    if not dims then return load(self, unravel(remainder(ravel(out, self.shape) - shifts[0], self.numel), self.shape)) end
    local i = out
    for k, d in ipairs(items(dims)) do
      if self.ndim > 0 then i = at(i, d, remainder(i[d] - shifts[k - 1], self.shape[d])) end
    end
    return load(self, i)]],
  grad = "composite",
  reference = "roll",
  samples = { "randn(3,4), 1", "randn(3,4), {1,-2}, {1,2}", "randn(0,4), 1, 2" },
  errors = { { "randn(3), {1,2}, 1", "as many" }, { "randn(3), 1, 2", "out of range" } },
  doc = "Elements moved by shifts along dims, those that fall out come in on the other side; without dims: of \z
    the flattened tensor." },
{ "repeat_interleave(Tensor self, int repeats >= 0, Dim? dim=none) -> Tensor",
  kind = "composite",
  loop = [[
    if dim and self.ndim > 0 then return load(self, at(out, dim, floor_divide(out[dim], repeats))) end
    return load(self, unravel(floor_divide(out[0], repeats), self.shape))]],
  expr = [[
    local flat = either(negate(given(dim)), equal(self.ndim, 0))
    local d, x = when(flat, 0, dim), when(flat, reshape(self, list(self.numel)), self)
    local wide = expand(unsqueeze(x, d + 1), insert(x.shape, d + 1, repeats))
    return view(clone(wide), replace(x.shape, d, x.shape[d] * repeats)) -- a copy, even of one repetition]],
  check = {
    { "lt(self.ndim, 16)", "self has too many dimensions" },
    { "le(repeats, 4611686018427387904 / larger(when(given(dim), self.shape[dim], self.numel), 1))",
      "repeats is too large: {repeats}" },
  },
  grad = "composite",
  reference = "repeat_interleave",
  samples = { "randn(3,4), 2", "randn(3,4), 3, 1", "randn(2,3,2), 2, -2", "randn(3), 0", "randn(0,2), 2, 1" },
  errors = { { "randn(3), -1", "negative" }, { "randn(3), 2, 2", "out of range" } },
  doc = "Each element (along dim: each slice) repeats times in a row; without dim of the flattened tensor. A tensor \z
    of repeats, one for each slice, may be given in Lua." },
}
