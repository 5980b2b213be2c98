-- Ops whose results hold elements of their arguments: "arguments -> results". Where such an argument is positions (tensors
-- that IndexTensor and index_base tell of), so is the result; files that count from 0 (lua/moth/onnx/positions.lua) need to
-- know. Views do it by themselves. No result: the op compares elements of these arguments, and where they count from is
-- all the same. In front of "as": an argument
-- that is positions without being an IndexTensor.
return {
  -- copies
  clone = "self -> 1", contiguous = "self -> 1", to_copy = "self -> 1", to = "self -> 1", type_as = "self -> 1",
  flip = "self -> 1", reshape = "self -> 1", flatten = "self -> 1", unflatten = "self -> 1", t = "self -> 1",
  expand_as = "self -> 1", movedim = "self -> 1", view_as = "self -> 1", reshape_as = "self -> 1", adjoint = "self -> 1",
  atleast_1d = "self -> 1", atleast_2d = "self -> 1", atleast_3d = "self -> 1", rot90 = "self -> 1", unfold = "self -> 1",
  roll = "self -> 1", repeat_interleave = "self -> 1", pad = "self value -> 1", cat = "tensors -> 1", stack = "tensors -> 1",
  copy_ = "src -> 1", fill_ = "value -> 1", as_strided_scatter = "self src -> 1", select_scatter = "self src -> 1",
  slice_scatter = "self src -> 1", diagonal_scatter = "self src -> 1",
  -- choices
  where = "self other -> 1", masked_fill = "self value -> 1", masked_select = "self -> 1", masked_scatter = "self source -> 1",
  gather = "self -> 1", index_select = "self -> 1", gather_nd = "self -> 1", take = "self -> 1", embedding = "weight -> 1",
  scatter = "self src -> 1", scatter_nd_ = "self src -> 1", index_copy = "self source -> 1", index_fill = "self value -> 1",
  index_fill_ = "self value -> 1", put = "self source -> 1", put_ = "self source -> 1",
  -- of several elements one
  maximum = "self other -> 1", minimum = "self other -> 1", fmax = "self other -> 1", fmin = "self other -> 1",
  clamp = "self min max -> 1", amax = "self -> 1", amin = "self -> 1", max_dim = "self -> 1", min_dim = "self -> 1",
  sort = "self -> 1", topk = "self -> 1", kthvalue = "self -> 1", mode = "self -> 1", msort = "self -> 1",
  cummax = "self -> 1", cummin = "self -> 1", max_pool1d = "self -> 1", max_pool2d = "self -> 1", max_pool3d = "self -> 1",
  max_pool1d_with_indices = "self -> 1", max_pool2d_with_indices = "self -> 1", max_pool3d_with_indices = "self -> 1",
  round = "self -> 1", floor = "self -> 1", ceil = "self -> 1", trunc = "self -> 1", upsample_nearest = "self -> 1",
  -- comparisons
  eq = "self other", ne = "self other", lt = "self other", le = "self other", gt = "self other", ge = "self other",
  argmax = "self", argmin = "self", argsort = "self", isclose = "self other", searchsorted = "sorted_sequence input", bucketize = "input boundaries",
  -- positions that are no IndexTensor
  one_hot = "as self",
}
