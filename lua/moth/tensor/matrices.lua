--- PyTorch's older names of linear algebra, on moth and on tensors: those of moth.linalg are the same functions. Called
-- by moth.tensor.functions with the tables that they go into.
local B = require "moth_lua"
local ops = B.ops
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"

return function(F, methods)
  local function set(name, fn) F[name], methods[name] = fn, fn end
  local function both(text, fn) set(text:match("^[%w_]+"), signature(text, fn)) end
  -- A function of moth.linalg, which is loaded when it is called.
  local function later(name) return function(...) return require("moth.linalg")[name](...) end end

  for name, op in each({ inverse = "linalg_inv", det = "linalg_det", slogdet = "linalg_slogdet",
    orgqr = "linalg_householder_product", cholesky = "linalg_cholesky" }) do
    set(name, signature.alias(name, ops[op]))
  end

  --- The pseudo-inverse of matrices: singular values up to rcond times the largest count as 0.
  both("pinverse(Tensor input, number rcond=1e-15)", function(x, rcond) return (ops.linalg_pinv(x, nil, rcond)) end)
  --- Q and R with Q R = input; with some = false Q is square.
  both("qr(Tensor input, bool some=true)", function(x, some)
    return ops.linalg_qr(x, some and "reduced" or "complete")
  end)
  --- U, S and V (not V') with U diag(S) V' = input; with some = false U and V are square. Without compute_uv they are
  -- zeros.
  both("svd(Tensor input, bool some=true, bool compute_uv=true)", function(x, some, compute_uv)
    if not compute_uv then
      local s, size = ops.linalg_svdvals(x), B.size(x)
      local m, n = size[#size - 1], size[#size]
      local function zeros(k)
        local shape = { unpack(size, 1, #size - 2) }
        shape[#shape + 1], shape[#shape + 2] = k, k
        return ops.zeros(shape, { dtype = B.tensor_dtype(x), device = B.tensor_device(x) })
      end
      return zeros(m), s, zeros(n)
    end
    local u, s, vh = ops.linalg_svd(x, not some)
    return u, s, ops.adjoint(vh)
  end)
  --- L and U in one matrix, and pivots (linalg.lu_factor); with get_infos also per matrix 0 or where it is singular.
  both("lu(Tensor A, bool pivot=true, bool get_infos=false)", function(x, pivot, get_infos)
    local lu, pivots, info = ops.linalg_lu_factor_ex(x, pivot, not get_infos)
    if get_infos then return lu, pivots, info end
    return lu, pivots
  end)
  --- X with A X = input (transpose: A' X), of the upper (or lower) triangle of A; and a copy of A.
  both("triangular_solve(Tensor input, Tensor A, bool upper=true, bool transpose=false, bool unitriangular=false)",
    function(b, a, upper, transpose, unitriangular)
      local x = transpose and ops.linalg_solve_triangular(ops.transpose(a, -2, -1), b, not upper, true, unitriangular)
        or ops.linalg_solve_triangular(a, b, upper, true, unitriangular)
      return x, ops.clone(a)
    end)
  local function named(text, name)
    local fn = later(name)
    both(text, function(...) return fn(...) end)
  end
  --- A square matrix to the power n; n < 0: of its inverse. linalg.matrix_power.
  named("matrix_power(Tensor input, int n)", "matrix_power")
  --- The exponential of square matrices (…, n, n). linalg.matrix_exp.
  named("matrix_exp(Tensor input)", "matrix_exp")
  --- The product of matrices, in the order that needs the fewest multiplications.
  F.chain_matmul = signature("chain_matmul(Tensor... matrices)", function(list)
    if #list == 1 then return list[1] end
    return (require("moth.linalg").multi_dot(list))
  end)

  -- A matrix of orthonormal columns whose space almost holds that of x: by random vectors (Halko and others, 2009,
  -- algorithm 4.4).
  local function range_of(x, q, niter)
    local size = B.size(x)
    local shape = { unpack(size, 1, #size - 2) }
    shape[#shape + 1], shape[#shape + 2] = size[#size], q
    local xt = ops.adjoint(x)
    local omega = ops.randn(shape, { dtype = B.tensor_dtype(x), device = B.tensor_device(x) })
    local basis = ops.linalg_qr(ops.matmul(x, omega))
    for _ = 1, niter do
      basis = ops.linalg_qr(ops.matmul(xt, basis))
      basis = ops.linalg_qr(ops.matmul(x, basis))
    end
    return basis
  end
  local function low_rank(x, q, niter)
    local m, n = B.size(x, -2), B.size(x, -1)
    if m < n then
      local u, s, v = low_rank(ops.adjoint(x), q, niter)
      return v, s, u
    end
    local basis = range_of(x, q, niter)
    local u, s, vh = ops.linalg_svd(ops.matmul(ops.adjoint(basis), x), false)
    return ops.matmul(basis, u), s, ops.adjoint(vh)
  end
  local function checked(name, x, q)
    if B.dim(x) < 2 then check.fail("[%s] expected matrices, at least 2 dimensions, got %s", name, B.format(x)) end
    local most = math.min(B.size(x, -2), B.size(x, -1))
    q = q or math.min(6, most)
    if q > most then
      check.fail("[%s] q must be at most %d, the smaller size of %s, got %d", name, most, B.format(x), q)
    end
    return q
  end
  --- U, S and V with U diag(S) V' close to A (less M, if given), of rank q: random, niter steps improve it.
  F.svd_lowrank = signature("svd_lowrank(Tensor A, size q?, size niter=2, Tensor M?)", function(x, q, niter, mean)
    if mean then x = ops.sub(x, mean) end
    return low_rank(x, checked("svd_lowrank", x, q), niter)
  end)
  --- svd_lowrank of A, its columns centred: the principal components are those of V.
  F.pca_lowrank = signature("pca_lowrank(Tensor A, size q?, bool center=true, size niter=2)",
  function(x, q, center, niter)
    q = checked("pca_lowrank", x, q)
    if center then x = ops.sub(x, ops.mean(x, -2, true)) end
    return low_rank(x, q, niter)
  end)
end
