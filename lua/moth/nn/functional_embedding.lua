--- The part of moth.nn.functional about tables of vectors: embedding, embedding_bag. Positions count from 1.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local is_exported = require "moth.export.active"
local signature = require "moth.utils.signature"
local ops = B.ops

local F = {}

-- Scales the rows of weight that index names, in place, to a norm of at most max_norm.
local function renorm(weight, index, max_norm, p)
  moth.no_grad(function()
    local table_of = B.alias(weight, false)
    local rows = ops.reshape(index, { -1 }) -- one that comes twice is written twice, with the same numbers
    if B.numel(rows) == 0 then return end
    local values = ops.index_select(table_of, 1, rows)
    local norm = ops.norm(values, p, 2, true)
    local factor = ops.where(ops.gt(norm, max_norm), ops.div(max_norm, ops.add(norm, 1e-7)), 1)
    ops.index_copy_(table_of, 1, rows, ops.mul(values, factor))
  end)
end

-- Divides the gradient of each row of `out`, at positions `index`, by how often its position occurs.
local function by_frequency(out, index, n)
  if not (B.requires_grad(out) and B.grad_enabled()) then return out end
  local flat = ops.to(ops.reshape(index, { -1 }), { dtype = "int64" })
  local like = { dtype = B.tensor_dtype(out), device = B.tensor_device(out) }
  local counts = ops.index_add(ops.zeros({ n }, like), 1, flat, ops.ones({ B.numel(flat) }, like))
  local shape = B.size(index)
  shape[#shape + 1] = 1
  local scale = ops.reshape(ops.reciprocal(ops.index_select(counts, 1, flat)), shape)
  out:register_hook(function(g) return g * scale end)
  return out
end

--- index (…) of positions, weight (V, D) -> (…, D). Row padding_idx gets no gradient. max_norm: the rows that are read
-- are first scaled, in place, to a norm_type-norm of at most max_norm. scale_grad_by_freq: the gradient of a row is
-- divided by how often index has it. sparse: the gradient of weight, if a leaf, is a sparse tensor (moth.sparse).
F.embedding = signature("F.embedding(Tensor input, Tensor weight, Index padding_idx?, number max_norm?, \z
  number norm_type=2, bool scale_grad_by_freq=false, bool sparse=false)",
  function(index, weight, padding_idx, max_norm, norm_type, by_freq, sparse)
    if padding_idx and padding_idx < 0 then padding_idx = B.size(weight, 1) + 1 + padding_idx end
    if max_norm then renorm(weight, index, max_norm, norm_type) end
    if sparse and B.is_leaf(weight) and B.requires_grad(weight) and B.grad_enabled() then
      if by_freq then check.fail("[F.embedding] scale_grad_by_freq does not go with sparse") end
      return require("moth.autograd.row_grad").embedding(weight, index, padding_idx)
    end
    local out = moth.embedding(weight, index)
    if by_freq then out = by_frequency(out, index, B.size(weight, 1)) end
    if padding_idx and B.requires_grad(out) then
      return moth.where(index:eq(padding_idx):unsqueeze(-1), out:detach(), out)
    end
    return out
  end)

local function check_integers(name, t)
  local dtype = B.tensor_dtype(t)
  if dtype.is_floating_point or dtype.is_complex or dtype == moth.bool then
    check.fail("[F.embedding_bag] %s must have an integer dtype, got %s", name, dtype.name)
  end
end

-- Raises where bags of a list of n positions cannot begin at such offsets. On a GPU the kernels say it.
local function check_offsets(offsets, n)
  local where = "[F.embedding_bag] offsets"
  check_integers("offsets", offsets)
  if B.dim(offsets) ~= 1 then check.fail("%s must have 1 dimension, got %s", where, B.format(offsets)) end
  local count = B.numel(offsets)
  if count == 0 or B.is_fake(offsets) or is_exported() or B.tensor_device(offsets).type ~= "cpu" then return end
  local list = ops.to(offsets, { dtype = "int64" })
  -- The number in t, which is ours and freed: what waits for the collector costs more than the check.
  local function value(t)
    local v = B.item(t)
    B.free(t)
    return v
  end
  local function at(i) return tonumber(value(ops.select(list, 1, i))) end
  local function falls()
    local behind, before = ops.narrow(list, 1, 2, count - 1), ops.narrow(list, 1, 1, count - 1)
    local down = ops.lt(behind, before)
    local some = value(ops.any(down))
    B.free_all { behind, before, down }
    return some
  end
  if at(1) ~= 1 then check.fail("%s must begin with 1, where the first bag begins, got %d", where, at(1)) end
  if count > 1 and falls() then
    local i = 2
    while at(i) >= at(i - 1) do i = i + 1 end
    check.fail("%s must not fall, got %d behind %d (at %d)", where, at(i), at(i - 1), i)
  end
  if at(count) > n + 1 then
    check.fail("%s: %d is out of range: the input has %d positions, so that an offset is %d at most", where, at(count),
      n, n + 1)
  end
end

--- Rows of weight (V, D) joined by bags: input (B, n) has a bag in each row; a vector has bags that begin at `offsets`
-- (positions). mode: mean, sum or max; per_sample_weights (of the shape of input) for sum. Rows of padding_idx count
-- for nothing. Empty bags give 0. include_last_offset: the last offset is where the last bag ends. max_norm, norm_type,
-- scale_grad_by_freq, sparse as for embedding.
F.embedding_bag = signature("F.embedding_bag(Tensor input, Tensor weight, Tensor offsets?, number max_norm?, \z
  number norm_type=2, bool scale_grad_by_freq=false, 'mean'|'sum'|'max' mode='mean', bool sparse=false, \z
  Tensor per_sample_weights?, bool include_last_offset=false, Index padding_idx?)",
  function(index, weight, offsets, max_norm, norm_type, by_freq, mode, sparse, worth, last, padding)
    if worth and mode ~= "sum" then check.fail("[F.embedding_bag] per_sample_weights are for mode = 'sum'") end
    if worth and table.concat(B.size(worth), " ") ~= table.concat(B.size(index), " ") then
      check.fail("[F.embedding_bag] per_sample_weights must have the shape of input, got %s and %s", B.format(worth),
        B.format(index))
    end
    if mode == "max" and (by_freq or sparse) then
      check.fail("[F.embedding_bag] mode = 'max' does not go with %s", by_freq and "scale_grad_by_freq" or "sparse")
    end
    check_integers("input", index)
    local on = { dtype = "int64", device = B.tensor_device(index) }
    local n = B.numel(index)
    -- starts: where each bag begins in the list of all positions. `ending`: a last start that only ends the last bag.
    local starts, ending
    if B.dim(index) == 2 then
      if offsets then check.fail("[F.embedding_bag] offsets go with a 1-D input, got %s", B.format(index)) end
      local bags, each = B.size(index, 1), B.size(index, 2)
      starts = ops.add(ops.mul(ops.arange(0, bags, 1, on), each), 1)
    elseif B.dim(index) == 1 then
      if not offsets then check.fail("[F.embedding_bag] a 1-D input needs offsets") end
      local bags = B.numel(offsets) - (last and 1 or 0)
      if bags < 0 then check.fail("[F.embedding_bag] include_last_offset needs at least one offset") end
      check_offsets(offsets, n)
      starts, ending = ops.to(offsets, { dtype = "int64" }), last and bags
    else
      check.fail("[F.embedding_bag] expected an input of 1 or 2 dimensions, got %s", B.format(index))
    end
    local flat = ops.reshape(index, { -1 })
    if padding then -- bags of what is kept
      if padding < 0 then padding = padding + B.size(weight, 1) + 1 end
      local is_kept = ops.ne(flat, padding)
      local before = ops.cumsum(ops.to(is_kept, { dtype = "int64" }), 1)
      local zero = ops.zeros({ 1 }, on)
      starts = ops.add(ops.index_select(ops.cat({ zero, before }), 1, starts), 1)
      local kept = ops.reshape(ops.nonzero(is_kept), { -1 })
      flat = ops.index_select(flat, 1, kept)
      worth = worth and ops.index_select(ops.reshape(worth, { -1 }), 1, kept)
      n = B.numel(flat)
    end
    if max_norm then renorm(weight, flat, max_norm, norm_type) end
    local rows = weight
    if by_freq or sparse then -- the rows themselves, whose gradients are made otherwise
      rows, flat = F.embedding(flat, weight, nil, nil, nil, by_freq, sparse), ops.arange(1, n + 1, 1, on)
    end
    if B.numel(starts) == 0 then -- no bag
      return ops.mul(ops.narrow(weight, 1, 1, 0), 1)
    end
    if mode == "max" then
      local largest = ops.native_bag_max(rows, flat, starts)
      return ending and ops.narrow(largest, 1, 1, ending) or largest
    end
    local ends = ops.cat({ starts, ops.full({ 1 }, n + 1, on) })
    local like = { dtype = B.tensor_dtype(weight), device = B.tensor_device(weight) }
    local same = not worth and ops.ones({ n }, like)
    local total = ops.native_sparse_mm(ends, flat, same or ops.reshape(worth, { -1 }), rows)
    if same then B.free(same) end -- not by the collector: each call would be of fresh memory
    local counts = mode == "mean" and ops.to(ops.sub(ops.narrow(ends, 1, 2, B.numel(starts)), starts), like)
    B.free(ends)
    if mode == "mean" then
      total = ops.mul_(total, ops.unsqueeze(ops.reciprocal(ops.clamp(counts, 1)), 2))
    end
    return ending and ops.narrow(total, 1, 1, ending) or total
  end)

return F
