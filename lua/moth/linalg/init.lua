--- moth.linalg: products and norms of vectors and matrices, by PyTorch's names.
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local ops = B.ops

local M = {}

M.cross = signature.alias("cross", ops.linalg_cross)
M.vecdot = signature.alias("vecdot", ops.linalg_vecdot)
M.vector_norm = signature.alias("vector_norm", ops.linalg_vector_norm)
M.matmul = signature.alias("matmul", ops.matmul)

--- The diagonals of the matrices in the last two dimensions.
M.diagonal = signature("diagonal(Tensor A, *, int offset=0, Dim dim1=-2, Dim dim2=-1)", function(x, offset, d, e)
  return (ops.diagonal(x, offset, d, e))
end)

--- The product of matrices, in the order that needs the fewest multiplications; the first and the last may be vectors.
M.multi_dot = signature("multi_dot(Tensor... tensors)", function(given)
  local n, list = #given, {}
  if n < 2 then check.fail("[multi_dot] expected at least two tensors, got %d", n) end
  for i, t in ipairs(given) do
    local dims = B.dim(t)
    if dims ~= 2 and not (dims == 1 and (i == 1 or i == n)) then
      check.fail("[multi_dot] tensor %d must have 2 dimensions, got %s", i, B.format(t))
    end
    list[i] = dims == 2 and t or ops.unsqueeze(t, i == 1 and 1 or 2)
  end
  local size, cost, cut = { B.size(list[1], 1) }, {}, {}
  for i, t in ipairs(list) do
    if B.size(t, 1) ~= size[i] then
      check.fail("[multi_dot] tensors %d and %d cannot be multiplied (%s and %s)", i - 1, i, B.format(given[i - 1]),
        B.format(given[i]))
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
M.vander = signature("vander(Tensor x, *, size N?)", function(x, n)
  if B.dim(x) == 0 then x = ops.unsqueeze(x, 1) end
  return (require("moth.tensor.functions").vander(x, n))
end)

--- The matrices multiplied by themselves n times; n >= 0.
M.matrix_power = signature("matrix_power(Tensor A, int n)", function(x, n)
  if B.dim(x) < 2 or B.size(x, -1) ~= B.size(x, -2) then
    check.fail("[matrix_power] expected square matrices, got %s", B.format(x))
  end
  if n < 0 then check.fail("[matrix_power] n must not be negative, got %d: there is no inverse", n) end
  local result
  while n > 0 do
    if n % 2 == 1 then result = result and ops.matmul(result, x) or x end
    n = math.floor(n / 2)
    if n > 0 then x = ops.matmul(x, x) end
  end
  if result then return result end
  local one = ops.eye(B.size(x, -1), { dtype = B.tensor_dtype(x), device = B.tensor_device(x) })
  return (ops.clone(ops.expand(one, B.size(x))))
end)

-- 1 / k! for k = 0 … 18: with matrices of norm 1/2 the next term is below 1e-22.
local inverse_factorials = { 1 }
for k = 1, 18 do inverse_factorials[k + 1] = inverse_factorials[k] / k end

--- The exponentials of square matrices: Taylor's series of A / 2^s, squared s times, s by the batch's largest norm.
M.matrix_exp = signature("matrix_exp(Tensor A)", function(x)
  if B.dim(x) < 2 or B.size(x, -1) ~= B.size(x, -2) then
    check.fail("[matrix_exp] expected square matrices, got %s", B.format(x))
  end
  if not B.tensor_dtype(x).is_floating_point then
    check.fail("[matrix_exp] expected floats, got %s", B.format(x))
  end
  if B.numel(x) == 0 then return (ops.clone(x)) end
  local dtype = B.tensor_dtype(x)
  x = ops.to(x, { dtype = "float64" }) -- squaring multiplies errors
  local norm = ops.amax(ops.sum(ops.abs(B.alias(x, false)), -1)):item()
  local finite = norm > 0.5 and norm < math.huge
  local squarings = finite and math.max(0, math.ceil(math.log(norm * 2) / math.log(2))) or 0
  local a = ops.mul(x, 2 ^ -squarings)
  local one = ops.eye(B.size(x, -1), { dtype = "float64", device = B.tensor_device(x) })
  local y = ops.mul(one, inverse_factorials[19])
  for k = 18, 1, -1 do y = ops.add(ops.matmul(a, y), ops.mul(one, inverse_factorials[k])) end
  for _ = 1, squarings do y = ops.matmul(y, y) end
  return (ops.to(y, { dtype = dtype }))
end)

return M
