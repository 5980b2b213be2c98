--- moth.sparse: sparse tensors by PyTorch's names: moth.sparse_coo_tensor, moth.sparse_csr_tensor, x:to_sparse(),
-- moth.sparse.mm(s, x) … The methods of sparse tensors: tensor.lua and its neighbours.
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local T = require "moth.sparse.tensor"
require "moth.sparse.arithmetic"
require "moth.sparse.products"
require "moth.sparse.shapes"
require "moth.sparse.reductions"
local Pattern = require "moth.sparse.pattern"
local lazy = require "moth.lang.lazy"
local ops = B.ops

local M = {}

-- Positions as int64, of `dim` dimensions.
local function integers(name, what, t, dim)
  local dtype = B.tensor_dtype(t)
  local wrong = dtype.is_floating_point or dtype.is_complex or dtype.name == "bool"
  if wrong and B.numel(t) > 0 then check.fail("[%s] %s must be integers, got %s", name, what, B.format(t)) end
  if B.dim(t) ~= dim then
    check.fail("[%s] %s must have %d dimension%s, got %s", name, what, dim, dim > 1 and "s" or "", B.format(t))
  end
  return ops.to(B.alias(t, false), { dtype = "int64" })
end
-- Values as a leaf, or with their history.
local function prepared(values, dtype, device, requires_grad)
  if dtype or device then values = ops.to(values, { dtype = dtype, device = device }) end
  if not requires_grad then return values end
  return B.set_requires_grad(B.detach(values), true)
end
local function in_range(name, what, t, size)
  if B.numel(t) == 0 then return end
  local low, high = ops.amin(t):item(), ops.amax(t):item()
  if low < 1 or high > size then
    check.fail("[%s] %s must be positions from 1 to %d, got %d", name, what, size, low < 1 and low or high)
  end
end
local options = "*, dtype dtype?, device device?, bool requires_grad=false, bool check_invariants=true"

--- A COO tensor: indices (sparse dimensions, nnz), positions from 1; values (nnz, …). Values at one position are added
-- up. size: if left out the least that has all indices. requires_grad: the values become a leaf; without it their
-- history goes on. check_invariants = false: positions are not read (nothing waits for a device). is_coalesced: they
-- are in order, each once.
M.sparse_coo_tensor = signature("sparse_coo_tensor(Tensor indices, Tensor values, size[] size?, " .. options
  .. ", bool is_coalesced=false)", function(indices, values, size, dtype, device, requires_grad, checks, sorted)
  local name = "sparse_coo_tensor"
  indices = integers(name, "indices", indices, 2)
  local ndim, nnz = B.size(indices, 1), B.size(indices, 2)
  if B.dim(values) < 1 or B.size(values, 1) ~= nnz then
    check.fail("[%s] indices have %d positions, values are %s", name, nnz, B.format(values))
  end
  values = prepared(values, dtype, device, requires_grad)
  indices = ops.to(indices, { device = B.tensor_device(values) })
  local own = B.size(values)
  if not size then
    size = {}
    for d = 1, ndim do size[d] = nnz == 0 and 0 or ops.amax(ops.select(indices, 1, d)):item() end
    for d = 2, #own do size[#size + 1] = own[d] end
  end
  if #size ~= ndim + #own - 1 then
    check.fail("[%s] size has %d dimensions, indices have %d, values %d behind the first", name, #size, ndim, #own - 1)
  end
  local front, full = {}, {}
  for d, n in ipairs(size) do
    full[d] = n
    if d <= ndim then
      front[d] = n
      if checks then in_range(name, ("indices of dimension %d"):format(d), ops.select(indices, 1, d), n) end
    elseif own[d - ndim + 1] ~= n then
      check.fail("[%s] size has %d in dimension %d, values have %d", name, n, d, own[d - ndim + 1])
    end
  end
  local pattern = Pattern("coo", front, indices)
  if sorted then pattern.sorted = true end
  return T.new(pattern, values, full)
end)

--- A CSR matrix: the values of row i are those from crow_indices[i] to crow_indices[i + 1] - 1, in the columns
-- col_indices. crow_indices: rows + 1 numbers, the first 1, the last nnz + 1. The columns of a row rise. Options as of
-- sparse_coo_tensor.
M.sparse_csr_tensor = signature("sparse_csr_tensor(Tensor crow_indices, Tensor col_indices, Tensor values, \z
  size[] size?, " .. options .. ")", function(crow, cols, values, size, dtype, device, requires_grad, checks)
  local name = "sparse_csr_tensor"
  crow, cols = integers(name, "crow_indices", crow, 1), integers(name, "col_indices", cols, 1)
  local nnz, rows = B.numel(cols), B.numel(crow) - 1
  if rows < 0 then check.fail("[%s] crow_indices must have at least one element", name) end
  if B.dim(values) ~= 1 or B.numel(values) ~= nnz then
    check.fail("[%s] there are %d col_indices, values are %s", name, nnz, B.format(values))
  end
  values = prepared(values, dtype, device, requires_grad)
  local on = { device = B.tensor_device(values) }
  crow, cols = ops.contiguous(ops.to(crow, on)), ops.contiguous(ops.to(cols, on))
  size = size and { unpack(size) } or { rows, nnz == 0 and 0 or ops.amax(cols):item() }
  if #size ~= 2 or size[1] ~= rows then
    check.fail("[%s] crow_indices describe %d rows, size is [%s]; there are no batches of CSR matrices", name, rows,
      table.concat(size, ", "))
  end
  local pattern = Pattern("csr", { size[1], size[2] }, crow, cols)
  if checks then
    in_range(name, "col_indices", cols, size[2])
    local steps = ops.sub(ops.narrow(crow, 1, 2, rows), ops.narrow(crow, 1, 1, rows))
    if ops.select(crow, 1, 1):item() ~= 1 or ops.select(crow, 1, rows + 1):item() ~= nnz + 1
      or rows > 0 and ops.amin(steps):item() < 0 then
      check.fail("[%s] crow_indices must rise from 1 to nnz + 1 = %d", name, nnz + 1)
    end
    if not pattern:is_sorted() then
      check.fail("[%s] the columns of each row must rise, each once; sparse_coo_tensor takes any order", name)
    end
  end
  pattern.sorted = true
  return T.new(pattern, values, size)
end)

-- ---- of dense tensors ------------------------------------------------------------------------------

--- A dense tensor as a sparse one: the elements that are not 0, of the first sparse_dim dimensions.
M.to_sparse = signature("to_sparse(Tensor input, size sparse_dim?, *, 'sparse_coo'|'sparse_csr' layout='sparse_coo')",
  function(x, sparse_dim, layout)
    sparse_dim = sparse_dim or B.dim(x)
    if sparse_dim < 1 or sparse_dim > B.dim(x) then
      check.fail("[to_sparse] sparse_dim must be from 1 to the number of dimensions, got %d for %s", sparse_dim,
        B.format(x))
    end
    return (T.from_dense(x, sparse_dim):to_sparse { layout = layout })
  end)
M.to_sparse_coo = signature.alias("to_sparse_coo", M.to_sparse)
--- A matrix in compressed rows (CSR).
M.to_sparse_csr = signature("to_sparse_csr(Tensor input)", function(x)
  if B.dim(x) ~= 2 then check.fail("[to_sparse_csr] expected a matrix, got %s", B.format(x)) end
  return (T.from_dense(x, 2):to_sparse_csr())
end)
--- The elements of a dense tensor at the places of a sparse one.
M.sparse_mask = signature("sparse_mask(Tensor input, Sparse mask)", function(x, s)
  s = s:coalesce()
  return T.with(s, (T.at_places("sparse_mask", x, s)))
end)

-- ---- functions -------------------------------------------------------------------------------------

local function any_sparse(name, ...)
  for i = 1, select("#", ...) do if T.is_sparse((select(i, ...))) then return end end
  check.fail("[sparse.%s] expected a sparse tensor; moth.%s is for dense ones", name, name)
end
--- The product of two matrices, of which one or both are sparse: (n, m) by (m, k). Two sparse ones make a sparse one.
-- reduce: how the products of a row's elements are joined, of a sparse mat1 and a dense mat2; "amax" and "amin" are
-- over the elements that are there.
M.mm = signature("sparse.mm(Tensor|Sparse mat1, Tensor|Sparse mat2, 'sum'|'mean'|'amax'|'amin' reduce='sum')",
function(a, b, reduce)
  any_sparse("mm", a, b)
  if reduce ~= "sum" then
    if not T.is_sparse(a) or T.is_sparse(b) then
      check.fail("[sparse.mm] reduce = '%s' takes a sparse mat1 and a dense mat2", reduce)
    end
    return (T.reduced_product("sparse.mm", a, b, reduce))
  end
  if T.is_sparse(a) then return (a:mm(b)) end
  return (T.reversed.mm(a, b))
end)
--- beta input + alpha mat1 mat2, where mat1 or mat2 is sparse and input dense.
M.addmm = signature("sparse.addmm(Tensor input, Tensor|Sparse mat1, Tensor|Sparse mat2, *, number|complex beta=1, \z
  number|complex alpha=1)", function(x, a, b, beta, alpha)
  any_sparse("addmm", a, b)
  return (T.addmm(x, a, b, beta, alpha))
end)
--- beta input + alpha (mat1 mat2) at the places of input alone: mat1 (n, k), mat2 (k, m), input (n, m).
M.sampled_addmm = signature("sparse.sampled_addmm(Sparse input, Tensor mat1, Tensor mat2, *, number|complex beta=1, \z
  number|complex alpha=1)", T.sampled_addmm)
--- The sum over all, or some dimensions: dense where no sparse dimension is left.
M.sum = signature("sparse.sum(Sparse input, Dim|Dim[] dim?)", function(s, dim) return (s:sum(dim)) end)
--- softmax along dim over the elements that are there; the others count as -inf.
M.softmax = signature("sparse.softmax(Sparse input, Dim dim, *, dtype dtype?)",
  function(s, dim, dtype) return (s:softmax(dim, dtype)) end)
--- log_softmax along dim over the elements that are there; the others count as -inf.
M.log_softmax = signature("sparse.log_softmax(Sparse input, Dim dim, *, dtype dtype?)",
  function(s, dim, dtype) return (s:log_softmax(dim, dtype)) end)
--- Whether a value is a sparse tensor.
M.is_sparse = signature("sparse.is_sparse(any input)", T.is_sparse)

-- ---- for moth.save ---------------------------------------------------------------------------------

--- The parts of a sparse tensor as a plain table.
function M.__parts(s)
  local p = s.pattern
  local parts = { layout = p.layout, sorted = p.sorted or false, size = { unpack(s.full) }, values = s.elements }
  if p.layout == "coo" then parts.indices = p.of_indices else parts.crow, parts.cols = p.of_crow, p.of_cols end
  return parts
end
--- The sparse tensor of such parts, which come from a file: positions are checked.
function M.__from_parts(parts)
  if parts.layout == "csr" then return (M.sparse_csr_tensor(parts.crow, parts.cols, parts.values, parts.size)) end
  local s = M.sparse_coo_tensor(parts.indices, parts.values, parts.size)
  if parts.sorted and s.pattern:is_sorted() then s.pattern.sorted = true end
  return s
end

return lazy.strict(M, "moth.sparse")
