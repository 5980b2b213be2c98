--- Methods of sparse tensors: products of matrices.
local B = require "moth_lua"
local check = require "moth.utils.check"
local T = require "moth.sparse.tensor"
local Pattern = require "moth.sparse.pattern"
local repeat_interleave = require("moth.tensor.functions").functions.repeat_interleave
local ops = B.ops
local reversed, is_sparse, method, new = T.reversed, T.is_sparse, T.method, T.new

-- The places of s, coalesced, as arguments of the ops: with those by columns where the derivative of a dense operand
-- will need them.
local function places(s, ...)
  local p = s.pattern
  for i = 1, select("#", ...) do
    if B.grad_enabled() and B.requires_grad((select(i, ...))) then
      local by_columns, order = p:transposed()
      return p:crow(), p:cols(), by_columns:crow(), by_columns:cols(), order
    end
  end
  return p:crow(), p:cols()
end

-- Both in the dtype of their result.
local function promoted(a, b)
  local x, y = B.tensor_dtype(a), B.tensor_dtype(b)
  if x == y then return a, b end
  local dtype = B.promote(x, y)
  return ops.to(a, dtype), ops.to(b, dtype)
end

local function check_sizes(name, s, x)
  T.matrix(s, name)
  if B.dim(x) ~= 2 or B.size(x, 1) ~= s.full[2] then
    check.fail("[%s] a sparse matrix of shape %s cannot be multiplied by %s", name, tostring(s:size()), B.format(x))
  end
end
--- A matrix by a dense one, (n, m) by (m, k).
local function product(name, s, x)
  check_sizes(name, s, x)
  s = s:coalesce()
  local values, dense = promoted(s.elements, x)
  local crow, cols, t_crow, t_cols, order = places(s, dense)
  return ops.native_sparse_mm(crow, cols, values, dense, t_crow, t_cols, order)
end
T.product = product
--- As product, where the terms of a sum are joined otherwise: by their mean, largest or least. 0 in rows without
-- elements.
function T.reduced_product(name, s, x, reduce)
  if reduce == "sum" then return (product(name, s, x)) end
  check_sizes(name, s, x)
  s = s:coalesce()
  local p = s.pattern
  if reduce == "mean" then
    local y, n = product(name, s, x), s.full[1]
    local count = ops.sub(ops.narrow(p:crow(), 1, 2, n), ops.narrow(p:crow(), 1, 1, n))
    return (ops.div(y, ops.unsqueeze(ops.to(ops.clamp(count, 1), { dtype = B.tensor_dtype(y) }), 2)))
  end
  local values, dense = promoted(s.elements, x)
  local terms = ops.mul(ops.index_select(dense, 1, p:cols()), ops.unsqueeze(values, 2))
  local zeros = ops.zeros({ s.full[1], B.size(x, 2) }, { dtype = B.tensor_dtype(terms), device = s:device() })
  return (ops.index_reduce(zeros, 1, p:rows(), terms, reduce, false))
end
-- The transposed matrix, for a product: its elements need not lie in order yet.
local function transposed(s)
  s = s:coalesce()
  local p, order = s.pattern:transposed()
  return new(p, ops.index_select(s.elements, 1, order), { s.full[2], s.full[1] })
end
-- A dense matrix by a sparse one: x s is (s' x')'.
local function left_product(name, x, s)
  T.matrix(s, name)
  if B.dim(x) ~= 2 or B.size(x, 2) ~= s.full[1] then
    check.fail("[%s] %s cannot be multiplied by a sparse matrix of shape %s", name, B.format(x), tostring(s:size()))
  end
  return (ops.transpose(product(name, transposed(s), ops.transpose(x, 1, 2)), 1, 2))
end

--- For each of the positions `at` (m): the elements of a matrix in rows that lie in the row of that position. Two lists
-- of one length: which position, which element.
function T.elements_of_rows(crow, at)
  local on = { dtype = "int64", device = B.tensor_device(crow) }
  local first = ops.index_select(crow, 1, at)
  local count = ops.sub(ops.index_select(crow, 1, ops.add(at, 1)), first)
  local of = repeat_interleave(ops.arange(1, B.numel(at) + 1, 1, on), count)
  local before = ops.sub(ops.cumsum(count, 1), count)
  local nth = ops.sub(ops.arange(0, B.numel(of), 1, on), ops.index_select(before, 1, of))
  return of, ops.add(ops.index_select(first, 1, of), nth)
end

-- Two sparse matrices: each element of a takes the row of b that its column names.
local function sparse_product(name, a, b)
  T.matrix(a, name)
  T.matrix(b, name)
  if a.full[2] ~= b.full[1] then
    check.fail("[%s] shapes %s and %s cannot be multiplied", name, tostring(a:size()), tostring(b:size()))
  end
  b = b:coalesce()
  local of, right = T.elements_of_rows(b.pattern:crow(), a.pattern:cols())
  local rows, cols = ops.index_select(a.pattern:rows(), 1, of), ops.index_select(b.pattern:cols(), 1, right)
  local indices = ops.stack({ rows, cols }, 1)
  local values = ops.mul(ops.index_select(a.elements, 1, of), ops.index_select(b.elements, 1, right))
  local size = { a.full[1], b.full[2] }
  return T.as(new(Pattern("coo", { size[1], size[2] }, indices), values, size):coalesce(), a)
end

local function multiply(name, a, b)
  if not is_sparse(a) then return left_product(name, a, b) end
  if is_sparse(b) then return sparse_product(name, a, b) end
  return product(name, a, b)
end
local function times_vector(name, s, x)
  if B.dim(x) ~= 1 then check.fail("[%s] expected a vector, got %s", name, B.format(x)) end
  return (ops.squeeze(product(name, s, ops.unsqueeze(x, 2)), 2))
end
local function matmul(a, b)
  if is_sparse(a) and not is_sparse(b) and B.dim(b) == 1 then return times_vector("matmul", a, b) end
  if is_sparse(b) and not is_sparse(a) and B.dim(a) == 1 then return times_vector("matmul", transposed(b), a) end
  return multiply("matmul", a, b)
end
--- beta x + alpha a b, of a dense x; a or b is sparse.
function T.addmm(x, a, b, beta, alpha)
  local result = multiply("addmm", a, b)
  if is_sparse(result) or is_sparse(x) then check.fail("[addmm] takes one sparse tensor, mat1 or mat2") end
  if alpha ~= 1 then result = ops.mul(result, alpha) end
  if beta == 0 then return ops.expand(result, B.size(result)) end
  return ops.add(beta == 1 and x or ops.mul(x, beta), result)
end

method("mm(Tensor|Sparse mat2)", function(s, x) return (multiply("mm", s, x)) end)
method("mv(Tensor vec)", function(s, x) return times_vector("mv", s, x) end)
method("matmul(Tensor|Sparse other)", function(s, x) return (matmul(s, x)) end)
--- As F.linear: s weight' + bias, of s (n, in_features) and a dense weight.
method("linear(Tensor weight, Tensor bias?)", function(s, weight, bias)
  local y = product("linear", s, ops.transpose(weight, 1, 2))
  return bias and (ops.add(y, bias)) or y
end)
function reversed.mm(a, b) return (multiply("mm", a, b)) end
reversed.matmul = matmul
function reversed.addmm(x, a, b, ...)
  local o = ...
  local beta, alpha = ...
  if type(o) == "table" then beta, alpha = o.beta, o.alpha end
  return T.addmm(x, a, b, beta or 1, alpha or 1)
end

--- beta s + alpha (mat1 mat2) at the places of s alone: mat1 (n, k), mat2 (k, m), s (n, m).
function T.sampled_addmm(s, a, b, beta, alpha)
  T.matrix(s, "sampled_addmm")
  s = s:coalesce()
  if B.dim(a) ~= 2 or B.dim(b) ~= 2 or B.size(a, 1) ~= s.full[1] or B.size(b, 2) ~= s.full[2]
    or B.size(a, 2) ~= B.size(b, 1) then
    check.fail("[sampled_addmm] the shapes do not fit: input %s, mat1 %s, mat2 %s", tostring(s:size()), B.format(a),
      B.format(b))
  end
  a, b = promoted(a, b)
  local crow, cols, t_crow, t_cols, order = places(s, b)
  local dots = ops.native_sparse_dot(crow, cols, a, ops.transpose(b, 1, 2), t_crow, t_cols, order)
  if alpha ~= 1 then dots = ops.mul(dots, alpha) end
  return T.with(s, beta == 0 and dots or ops.add(beta == 1 and s.elements or ops.mul(s.elements, beta), dots))
end

