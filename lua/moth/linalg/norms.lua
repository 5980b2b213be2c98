--- Norms of vectors and matrices, for moth.linalg.
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local ops = B.ops

return function(M)
  local inf = math.huge

  local function real(x, dtype, name)
    local d = B.tensor_dtype(x)
    if not d.is_floating_point and not d.is_complex then
      check.fail("[%s] expected a float or complex dtype, got %s", name, B.format(x))
    end
    return dtype and ops.to(x, { dtype = dtype }) or x
  end
  local function positive(d, n) return d < 0 and d + n + 1 or d end

  -- Of the matrices in dimensions d and e.
  local function matrix_norm(name, x, ord, d, e, keepdim)
    local n = B.dim(x)
    if n < 2 then check.fail("[%s] expected matrices, at least 2 dimensions, got %s", name, B.format(x)) end
    if math.abs(d) > n or math.abs(e) > n then
      check.fail("[%s] dim {%d, %d} is out of range of %s", name, d, e, B.format(x))
    end
    d, e = positive(d, n), positive(e, n)
    if d == e then check.fail("[%s] dim must be two different dimensions, got %d twice", name, d) end
    if ord == "fro" then return (ops.linalg_vector_norm(x, 2, { d, e }, keepdim)) end
    if ord == "nuc" or ord == 2 or ord == -2 then
      local order = {}
      for k = 1, n do if k ~= d and k ~= e then order[#order + 1] = k end end
      order[n - 1], order[n] = d, e
      local s = ops.linalg_svdvals(ops.permute(x, order))
      local y = ord == "nuc" and ops.sum(s, -1) or ord == 2 and ops.amax(s, -1) or ops.amin(s, -1)
      if keepdim then y = ops.unsqueeze(ops.unsqueeze(y, math.min(d, e)), math.max(d, e)) end
      return y
    end
    if math.abs(ord) ~= 1 and math.abs(ord) ~= inf then
      check.fail("[%s] ord must be 'fro', 'nuc', 1, 2, inf or one of these negative, got %s", name, tostring(ord))
    end
    local over, of = d, e
    if math.abs(ord) == inf then over, of = e, d end
    if not keepdim and over < of then of = of - 1 end
    local sums = ops.sum(ops.abs(x), over, keepdim)
    return (ord > 0 and ops.amax or ops.amin)(sums, of, keepdim)
  end

  --- Norms of matrices: 'fro' (of all elements), 'nuc' (sum of the singular values), 2 and -2 (the largest, the
  -- smallest singular value), 1 and -1 (the largest, the smallest sum of a column), inf and -inf (of a row).
  M.matrix_norm = signature("linalg.matrix_norm(Tensor A, number|'fro'|'nuc' ord='fro', Dim[] dim?, \z
    bool keepdim=false, *, dtype dtype?)", function(x, ord, dim, keepdim, dtype)
    if dim and #dim ~= 2 then check.fail("[linalg.matrix_norm] dim must be two dimensions, got %d", #dim) end
    x = real(x, dtype, "linalg.matrix_norm")
    return (matrix_norm("linalg.matrix_norm", x, ord, dim and dim[1] or -2, dim and dim[2] or -1, keepdim))
  end)

  --- A norm of vectors or matrices: of two dimensions, or of a tensor that has two, that of matrices where ord is
  -- given; else that of vectors (linalg.vector_norm), without ord of all elements.
  M.norm = signature("linalg.norm(Tensor A, number|'fro'|'nuc' ord?, Dim|Dim[] dim?, bool keepdim=false, *, \z
    dtype dtype?)", function(x, ord, dim, keepdim, dtype)
      x = real(x, dtype, "linalg.norm")
      local dims = type(dim) == "number" and { dim } or dim
      if ord == nil then return (ops.linalg_vector_norm(x, 2, dims, keepdim)) end
      local count = dims and #dims or B.dim(x)
      if count == 1 and type(ord) == "number" then return (ops.linalg_vector_norm(x, ord, dims, keepdim)) end
      if count ~= 2 then
        check.fail("[linalg.norm] with ord %s one or two dimensions are expected, got %d: %s", tostring(ord), count,
          B.format(x))
      end
      return (matrix_norm("linalg.norm", x, ord, dims and dims[1] or 1, dims and dims[2] or 2, keepdim))
    end)

  --- The condition of matrices: the product of the norms of A and of its inverse; without p the quotient of the largest
  -- and the smallest singular value. Of singular matrices it is infinite.
  M.cond = signature("linalg.cond(Tensor A, number|'fro'|'nuc' p?)", function(x, p)
    if B.dim(x) < 2 then check.fail("[linalg.cond] expected matrices, at least 2 dimensions, got %s", B.format(x)) end
    local size = B.size(x)
    local front = { unpack(size, 1, #size - 2) }
    if B.numel(x) == 0 then
      return (ops.zeros(front, { dtype = B.tensor_dtype(x), device = B.tensor_device(x) }))
    end
    if p == nil or p == 2 or p == -2 then
      local s = ops.linalg_svdvals(x)
      local first, last = ops.select(s, -1, 1), ops.select(s, -1, -1)
      if p == -2 then return (ops.div(last, first)) end
      return (ops.div(first, last))
    end
    if size[#size] ~= size[#size - 1] then check.fail("[linalg.cond] expected square matrices, got %s", B.format(x)) end
    local inverse, info = ops.linalg_inv_ex(x)
    inverse = ops.masked_fill(inverse, ops.unsqueeze(ops.unsqueeze(ops.ne(info, 0), -1), -1), inf)
    local function norm(y) return matrix_norm("linalg.cond", y, p, -2, -1, false) end
    local y = ops.mul(norm(x), norm(inverse))
    local unknown = ops.logical_and(ops.isnan(y), ops.logical_not(ops.isnan(ops.sum(B.alias(x, false), { -2, -1 }))))
    return (ops.masked_fill(y, unknown, inf)) -- 0 times infinity, of a matrix of zeros
  end)
end
