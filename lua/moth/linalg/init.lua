--- moth.linalg: linear algebra by PyTorch's names. Matrices are the last two dimensions, those in front are a batch.
--
-- Factorizations, systems and norms of float32, float64 and complex tensors by LAPACK, with derivatives of every order
-- (src/ops/decompositions.lua has their records).
local B = require "moth_lua"
local in_float32 = require("moth.amp.autocast").wide
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local ops = B.ops

local M = {}

for name, op in each(ops) do
  local own = name:match "^linalg_(.*)"
  if own and own:sub(-1) ~= "_" then M[own] = signature.alias("linalg." .. own, op) end
end
M.matmul = signature.alias("linalg.matmul", ops.matmul)

local function dtype_of(x) return B.tensor_dtype(x) end

--- The diagonals of the matrices in the last two dimensions.
M.diagonal = signature("linalg.diagonal(Tensor A, *, int offset=0, Dim dim1=-2, Dim dim2=-1)", function(x, offset, d, e)
  return (ops.diagonal(x, offset, d, e))
end)

--- The product of matrices, in the order that needs the fewest multiplications; the first and the last may be vectors.
M.multi_dot = signature("linalg.multi_dot(Tensor... tensors)", function(given)
  local n, list = #given, {}
  if n < 2 then check.fail("[linalg.multi_dot] expected at least two tensors, got %d", n) end
  for i, t in ipairs(given) do
    local dims = B.dim(t)
    if dims ~= 2 and not (dims == 1 and (i == 1 or i == n)) then
      check.fail("[linalg.multi_dot] tensor %d must have 2 dimensions, got %s", i, B.format(t))
    end
    list[i] = dims == 2 and t or ops.unsqueeze(t, i == 1 and 1 or 2)
  end
  local size, cost, cut = { B.size(list[1], 1) }, {}, {}
  for i, t in ipairs(list) do
    if B.size(t, 1) ~= size[i] then
      check.fail("[linalg.multi_dot] tensors %d and %d cannot be multiplied (%s and %s)", i - 1, i,
        B.format(given[i - 1]), B.format(given[i]))
    end
    size[i + 1], cost[i], cut[i] = B.size(t, 2), { [i] = 0 }, {}
  end
  for span = 1, n - 1 do -- the cheapest product of tensors i to j
    for i = 1, n - span do
      local j = i + span
      cost[i][j] = math.huge
      for k = i, j - 1 do
        local c = cost[i][k] + cost[k + 1][j] + size[i] * size[k + 1] * size[j + 1]
        if c < cost[i][j] then cost[i][j], cut[i][j] = c, k end
      end
    end
  end
  local function product(i, j)
    if i == j then return list[i] end
    return ops.mm(product(i, cut[i][j]), product(cut[i][j] + 1, j))
  end
  local y = product(1, n)
  if B.dim(given[n]) == 1 then y = ops.squeeze(y, 2) end
  if B.dim(given[1]) == 1 then y = ops.squeeze(y, 1) end
  return y
end)

--- Powers of the elements of vectors: (…, n) gives (…, n, N), from 0 to N - 1.
M.vander = signature("linalg.vander(Tensor x, *, size N?)", function(x, n)
  if B.dim(x) == 0 then x = ops.unsqueeze(x, 1) end
  return (require("moth.tensor.functions").vander(x, n))
end)

local function square(name, x)
  if B.dim(x) < 2 or B.size(x, -1) ~= B.size(x, -2) then
    check.fail("[%s] expected square matrices, got %s", name, B.format(x))
  end
end

--- The matrices multiplied by themselves n times; of the inverses if n is negative.
M.matrix_power = signature("linalg.matrix_power(Tensor A, int n)", function(x, n)
  square("linalg.matrix_power", x)
  if n < 0 then x, n = ops.linalg_inv(x), -n end
  local result
  while n > 0 do
    if n % 2 == 1 then result = result and ops.matmul(result, x) or x end
    n = math.floor(n / 2)
    if n > 0 then x = ops.matmul(x, x) end
  end
  if result then return (ops.clone(result)) end
  local one = ops.eye(B.size(x, -1), { dtype = dtype_of(x), device = B.tensor_device(x) })
  return (ops.clone(ops.expand(one, B.size(x))))
end)

-- 1 / k! for k = 0 … 18: with matrices of norm 1/2 the next term is below 1e-22.
local inverse_factorials = { 1 }
for k = 1, 18 do inverse_factorials[k + 1] = inverse_factorials[k] / k end

-- Rows of the coefficients of A^0 to A^3 in the four parts of the first sixteen terms: part k is multiplied by A^(4k).
local function parts_of(on)
  local list = {}
  for k = 1, 16 do list[k] = inverse_factorials[k] end
  return ops.reshape(require("moth").tensor(list, on), { 4, 4 })
end

--- The exponentials of square matrices: Taylor's series of A / 2^s, squared s times, s by the batch's largest norm,
-- inside vmap, too. Its seventeen terms take six products (Paterson and Stockmeyer).
M.matrix_exp = signature("linalg.matrix_exp(Tensor A)", function(x)
  square("linalg.matrix_exp", x)
  local dtype = B.tensor_dtype(x)
  if not dtype.is_floating_point and not dtype.is_complex then
    check.fail("[linalg.matrix_exp] expected floats or complex numbers, got %s", B.format(x))
  end
  if B.numel(x) == 0 then return (ops.clone(x)) end
  local wide = dtype.is_complex and "complex128" or "float64"
  local most = (dtype.name == "float64" or dtype.name == "complex128") and 0.5 or 2 -- that leaves 2^-27 of other dtypes
  x = ops.to(x, { dtype = wide }) -- squaring multiplies errors
  local norm = ops.amax(ops.sum(ops.abs(B.alias(B.batch_values(x), false)), -1)):item()
  local finite = norm > most and norm < math.huge
  local squarings = finite and math.max(0, math.ceil(math.log(norm / most) / math.log(2))) or 0
  local on = { dtype = wide, device = B.tensor_device(x) }
  local a = ops.mul(x, 2 ^ -squarings)
  local one = ops.expand(ops.eye(B.size(x, -1), on), B.size(x))
  local a2 = ops.matmul(a, a)
  local a3, a4 = ops.matmul(a, a2), ops.matmul(a2, a2)
  local powers = ops.reshape(ops.stack { one, a, a2, a3 }, { 4, -1 })
  local parts = ops.reshape(ops.mm(parts_of(on), powers), { 4, unpack(B.size(x)) })
  local y = ops.mul(a4, inverse_factorials[17])
  for k = 4, 1, -1 do
    y = ops.add(ops.select(parts, 1, k), y)
    if k > 1 then y = ops.matmul(a4, y) end
  end
  for _ = 1, squarings do y = ops.matmul(y, y) end
  return (ops.to(y, { dtype = dtype }))
end)

-- ---- tensors as matrices ------------------------------------------------------------------------------------

local function product(list, from, to)
  local n = 1
  for d = from, to do n = n * list[d] end
  return n
end
local function joined(...)
  local out = {}
  for _, list in ipairs({ ... }) do for _, v in ipairs(list) do out[#out + 1] = v end end
  return out
end

--- The inverse of A as a map from its last dimensions to its first `ind`.
M.tensorinv = signature("linalg.tensorinv(Tensor A, int ind=2)", function(x, ind)
  local size = B.size(x)
  if ind < 1 or ind > #size then check.fail("[linalg.tensorinv] ind must be between 1 and %d, got %d", #size, ind) end
  local m, n = product(size, 1, ind), product(size, ind + 1, #size)
  if m ~= n then
    check.fail("[linalg.tensorinv] the first %d dimensions have %d elements, the others %d: %s", ind, m, n, B.format(x))
  end
  local order = joined({ unpack(size, ind + 1) }, { unpack(size, 1, ind) })
  return (ops.reshape(ops.linalg_inv(ops.reshape(x, { m, n })), order))
end)

--- X with tensordot(A, X, the dimensions of X) = B. dims: dimensions of A that are first moved behind the others.
M.tensorsolve = signature("linalg.tensorsolve(Tensor A, Tensor B, Dim[] dims?)", function(a, b, dims)
  if dims then
    local last, moved, order = B.dim(a), {}, {}
    for i, d in ipairs(dims) do
      if math.abs(d) > last then check.fail("[linalg.tensorsolve] there is no dimension %d in %s", d, B.format(a)) end
      dims[i] = d < 0 and d + last + 1 or d
      moved[dims[i]] = true
    end
    for d = 1, last do if not moved[d] then order[#order + 1] = d end end
    a = ops.permute(a, joined(order, dims))
  end
  local size, n = B.size(a), B.numel(b)
  local rest = { unpack(size, B.dim(b) + 1) }
  if product(size, 1, B.dim(b)) ~= n or product(rest, 1, #rest) ~= n then
    check.fail("[linalg.tensorsolve] A %s must have as many elements behind its first %d dimensions as B %s",
      B.format(a), B.dim(b), B.format(b))
  end
  return (ops.reshape(ops.linalg_solve(ops.reshape(a, { n, n }), ops.reshape(b, { n })), rest))
end)

-- ---- least squares ------------------------------------------------------------------------------------------

--- The X of least norm for which A X - B is least. Results: X; the sums of squares of A X - B, if A has full rank and
-- more rows than columns, else empty (gelsy: always); the rank (gels: empty); the singular values (gelsd and gelss,
-- else empty). rcond: singular values up to rcond times the largest count as 0; max(m, n) eps if it is not given.
M.lstsq = signature("linalg.lstsq(Tensor A, Tensor B, number rcond?, *, 'gels'|'gelsy'|'gelsd'|'gelss' driver='gelsy')",
  function(a, b, rcond, o)
    a, b = in_float32(a, b)
    local dims = B.dim(a)
    if dims < 2 or B.dim(b) < 1 then
      check.fail("[linalg.lstsq] expected matrices and right-hand sides, got %s and %s", B.format(a), B.format(b))
    end
    if dtype_of(a) ~= dtype_of(b) then
      check.fail("[linalg.lstsq] A and B must have the same dtype, got %s and %s", B.format(a), B.format(b))
    end
    local m, n = B.size(a, -2), B.size(a, -1)
    local vector = B.dim(b) == 1 or B.dim(b) == dims - 1
    for d = 1, vector and B.dim(b) > 1 and dims - 1 or 0 do vector = vector and B.size(b, d) == B.size(a, d) end
    if vector then b = ops.unsqueeze(b, -1) end
    if B.size(b, -2) ~= m then
      check.fail("[linalg.lstsq] A %s and B %s must have as many rows", B.format(a), B.format(b))
    end
    local sa, sb = B.size(a), B.size(b)
    local k = sb[#sb]
    local front = require("moth").broadcast_shapes({ unpack(sa, 1, #sa - 2) }, { unpack(sb, 1, #sb - 2) })
    a, b = ops.expand(a, joined(front, { m, n })), ops.expand(b, joined(front, { m, k }))
    local eps = require("moth").finfo(dtype_of(a)).eps
    local x, rank, values = ops.native_lstsq(a, b, rcond or eps * math.max(m, n), o.driver)
    local real = dtype_of(a).is_complex and B.tensor_dtype(ops.real(a)) or dtype_of(a)
    local none = { dtype = real, device = B.tensor_device(a) }
    local residuals = ops.empty({ 0 }, none)
    local function is_full()
      return o.driver == "gels" or B.numel(rank) > 0 and ops.all(ops.eq(B.batch_values(rank), n)):item()
    end
    if m > n and o.driver ~= "gelsy" and is_full() then
      residuals = ops.sum(ops.square(ops.abs(ops.sub(ops.matmul(a, x), b))), -2)
    end
    if o.driver == "gels" then rank = ops.empty({ 0 }, { dtype = "int64", device = none.device }) end
    return vector and ops.squeeze(x, -1) or x, residuals, rank, values
  end, true)

-- ---- of symmetric matrices, polar --------------------------------------------------------------------------------

--- The square roots of symmetric positive-semidefinite matrices.
M.matrix_sqrth = signature("linalg.matrix_sqrth(Tensor A)", function(x)
  square("linalg.matrix_sqrth", x)
  local w, v = ops.linalg_eigh(x)
  return (ops.matmul(ops.mul(v, ops.unsqueeze(ops.sqrt(w), -2)), ops.adjoint(v)))
end)

--- U and H with U H = A: U has orthonormal columns (rows, of a wide A), H is symmetric positive-semidefinite.
M.polar = signature("linalg.polar(Tensor A)", function(x)
  local u, s, vh = ops.linalg_svd(x, false)
  return ops.matmul(u, vh), ops.matmul(ops.mul(ops.adjoint(vh), ops.unsqueeze(s, -2)), vh)
end)

require "moth.linalg.norms"(M)

return M
