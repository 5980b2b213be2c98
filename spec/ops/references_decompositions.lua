--- Naive float64 references of the ops in src/ops/decompositions.lua, as spec/ops/references.lua, which includes them:
-- Gauss, Householder and Jacobi, a matrix at a time, as tables of rows.
return function(M, t)
  local numel = t.numel

  -- ---- matrices and batches ----------------------------------------------------------------------------

  local function product(shape, from, to)
    local n = 1
    for d = from, to do n = n * shape[d] end
    return n
  end
  -- x as a list of matrices (rows of numbers), one for each of a batch of shape `front`, to which its own is broadcast.
  local function matrices(x, front)
    local nd = #x.shape
    local m, n = x.shape[nd - 1], x.shape[nd]
    local list = {}
    for b = 1, product(x.shape, 1, nd - 2) do
      local a = { m = m, n = n }
      for i = 1, m do
        a[i] = {}
        for j = 1, n do a[i][j] = x.data[((b - 1) * m + i - 1) * n + j] end
      end
      list[b] = a
    end
    if not front then return list end
    local wide = {}
    for b = 1, numel(front) do
      local rest, step, at = b - 1, 1, 0
      for d = #front, 1, -1 do
        local size = x.shape[nd - 2 - #front + d] or 1
        at, step = at + (size == 1 and 0 or rest % front[d]) * step, step * size
        rest = math.floor(rest / front[d])
      end
      wide[b] = list[at + 1]
    end
    return wide
  end
  local function lead(...)
    local best = {}
    for _, x in ipairs { ... } do
      for k = 1, #x.shape - 2 do
        local d = #x.shape - 1 - k -- from the end
        best[k] = math.max(best[k] or 1, x.shape[d])
        if x.shape[d] == 0 then best[k] = 0 end
      end
    end
    local out = {}
    for k = #best, 1, -1 do out[#out + 1] = best[k] end
    return out
  end
  local function with(shape, ...)
    local out = { unpack(shape) }
    for _, v in ipairs { ... } do out[#out + 1] = v end
    return out
  end
  -- Results of fn(matrices…) for each of a batch: shapes[k] with the batch in front.
  local function batched(front, shapes, fn)
    local results = {}
    for k, shape in ipairs(shapes) do results[k] = { shape = with(front, unpack(shape)), data = {} } end
    for b = 1, numel(front) do
      local parts = { fn(b) }
      for k, shape in ipairs(shapes) do
        local part = parts[k]
        if #shape == 2 then
          for i = 1, shape[1] do for j = 1, shape[2] do table.insert(results[k].data, part[i][j]) end end
        elseif #shape == 1 then
          for i = 1, shape[1] do table.insert(results[k].data, part[i]) end
        else
          table.insert(results[k].data, part)
        end
      end
    end
    return unpack(results)
  end
  local function front_of(x) return { unpack(x.shape, 1, #x.shape - 2) } end
  local function new(m, n, value)
    local a = { m = m, n = n }
    for i = 1, m do
      a[i] = {}
      for j = 1, n do a[i][j] = value and value(i, j) or 0 end
    end
    return a
  end
  local function eye(m, n) return new(m, n or m, function(i, j) return i == j and 1 or 0 end) end
  local function T(a) return new(a.n, a.m, function(i, j) return a[j][i] end) end
  local function mul(a, b)
    return new(a.m, b.n, function(i, j)
      local sum = 0
      for k = 1, a.n do sum = sum + a[i][k] * b[k][j] end
      return sum
    end)
  end
  local function part(a, m, n) return new(m, n, function(i, j) return a[i][j] end) end
  local function tri(a, upper, unit)
    return new(a.m, a.n, function(i, j)
      if i == j then return unit and 1 or a[i][j] end
      return ((i < j) == upper) and a[i][j] or 0
    end)
  end

  -- ---- Gauss -----------------------------------------------------------------------------------------

  local function lu_of(a)
    local x = part(a, a.m, a.n)
    local pivots, info = {}, 0
    for k = 1, math.min(a.m, a.n) do
      local p = k
      for i = k + 1, a.m do if math.abs(x[i][k]) > math.abs(x[p][k]) then p = i end end
      pivots[k] = p
      x[k], x[p] = x[p], x[k]
      if x[k][k] == 0 then info = info == 0 and k or info
      else
        for i = k + 1, a.m do
          x[i][k] = x[i][k] / x[k][k]
          for j = k + 1, a.n do x[i][j] = x[i][j] - x[i][k] * x[k][j] end
        end
      end
    end
    return x, pivots, info
  end
  local function inverse(a)
    local n = a.n
    local x = new(n, 2 * n, function(i, j) return j <= n and a[i][j] or (j - n == i and 1 or 0) end)
    for k = 1, n do
      local p = k
      for i = k + 1, n do if math.abs(x[i][k]) > math.abs(x[p][k]) then p = i end end
      x[k], x[p] = x[p], x[k]
      local d = x[k][k]
      for j = 1, 2 * n do x[k][j] = x[k][j] / d end
      for i = 1, n do
        if i ~= k then
          local f = x[i][k]
          for j = 1, 2 * n do x[i][j] = x[i][j] - f * x[k][j] end
        end
      end
    end
    return new(n, n, function(i, j) return x[i][j + n] end)
  end
  local function rows_by(pivots, n)
    local rows = {}
    for i = 1, n do rows[i] = i end
    for i, p in ipairs(pivots) do rows[i], rows[p] = rows[p], rows[i] end
    return rows
  end
  local function permutation(pivots, n)
    local rows = rows_by(pivots, n)
    local p = new(n, n)
    for i = 1, n do p[rows[i]][i] = 1 end
    return p
  end
  -- A = P L U from factors in one matrix.
  local function whole(lu, pivots)
    return mul(permutation(pivots, lu.m), mul(tri(lu, false, true), tri(lu, true)))
  end
  local function cholesky(a, upper)
    local l = new(a.n, a.n)
    for i = 1, a.n do
      for j = 1, i do
        local sum = upper and a[j][i] or a[i][j]
        for k = 1, j - 1 do sum = sum - l[i][k] * l[j][k] end
        l[i][j] = i == j and math.sqrt(sum) or sum / l[j][j]
      end
    end
    return upper and T(l) or l
  end
  local function det(a)
    local x, pivots = lu_of(a)
    local d, sign = 1, 1
    for i = 1, a.n do
      d = d * x[i][i]
      if pivots[i] ~= i then sign = -sign end
    end
    return d * sign
  end
  local function list_of(x, b, n)
    local out = {}
    for i = 1, n do out[i] = x.data[(b - 1) * n + i] end
    return out
  end
  local function n_of(x, k) return x.shape[#x.shape + 1 - (k or 1)] end

  function M.cholesky_ex(a)
    local x, n = matrices(a.A), n_of(a.A)
    return batched(front_of(a.A), { { n, n }, {} }, function(b) return cholesky(x[b], a.upper), 0 end)
  end
  function M.cholesky(a) return (M.cholesky_ex(a)) end
  -- fn(A, B) for a batch of both, broadcast over the whole.
  local function solved(A, B, fn)
    local front = lead(A, B)
    local x, y = matrices(A, front), matrices(B, front)
    local m, k = n_of(B, 2), n_of(B)
    return batched(front, { { m, k } }, function(b) return fn(x[b], y[b], b) end)
  end
  function M.cholesky_solve(a)
    return solved(a.L, a.self, function(l, y)
      l = tri(l, a.upper)
      return mul(inverse(a.upper and mul(T(l), l) or mul(l, T(l))), y)
    end)
  end
  function M.cholesky_inverse(a)
    local x, n = matrices(a.L), n_of(a.L)
    return batched(front_of(a.L), { { n, n } }, function(b)
      local l = tri(x[b], a.upper)
      return inverse(a.upper and mul(T(l), l) or mul(l, T(l)))
    end)
  end
  function M.linalg_solve_triangular(a)
    return solved(a.A, a.B, function(x, y)
      local i = inverse(tri(x, a.upper, a.unitriangular))
      if a.left == false then return mul(y, i) end
      return mul(i, y)
    end)
  end
  M.solve_triangular = M.linalg_solve_triangular
  function M.lu_factor(a, name)
    local x, m, n = matrices(a.A), n_of(a.A, 2), n_of(a.A)
    local shapes = { { m, n }, { math.min(m, n) }, {} }
    local lu, pivots, info = batched(front_of(a.A), shapes, function(b) return lu_of(x[b]) end)
    if name:find "_ex" then return lu, pivots, info end
    return lu, pivots
  end
  function M.lu_rows(a)
    local k, out = n_of(a.pivots), { shape = { unpack(a.pivots.shape) }, data = {} }
    out.shape[#out.shape] = a.n
    for b = 1, numel(a.pivots.shape) / k do
      for _, r in ipairs(rows_by(list_of(a.pivots, b, k), a.n)) do table.insert(out.data, r - 1) end
    end
    return out
  end
  local function unpacked(front, list, m, n, pivots)
    local k = math.min(m, n)
    return batched(front, { { m, m }, { m, k }, { k, n } }, function(b)
      return permutation(pivots(b), m), part(tri(list[b], false, true), m, k), part(tri(list[b], true), k, n)
    end)
  end
  function M.lu_unpack(a)
    local x, m, n = matrices(a.LU_data), n_of(a.LU_data, 2), n_of(a.LU_data)
    return unpacked(front_of(a.LU_data), x, m, n, function(b) return list_of(a.LU_pivots, b, math.min(m, n)) end)
  end
  function M.lu(a)
    local x, m, n, p = matrices(a.A), n_of(a.A, 2), n_of(a.A), {}
    for b, v in ipairs(x) do x[b], p[b] = lu_of(v) end
    return unpacked(front_of(a.A), x, m, n, function(b) return p[b] end)
  end
  function M.linalg_lu_solve(a)
    local n = n_of(a.LU)
    local have = numel(a.LU.shape) / n / n
    return solved(a.LU, a.B, function(x, y, b)
      local i = inverse(whole(x, list_of(a.pivots, (b - 1) % have + 1, n)))
      if a.adjoint or a.turned then i = T(i) end
      if a.left == false then return mul(y, i) end
      return mul(i, y)
    end)
  end
  M.lu_solve = M.linalg_lu_solve
  function M.old_lu_solve(a) return M.lu_solve { LU = a.LU_data, pivots = a.LU_pivots, B = a.self } end
  local function info_of(x)
    local front = front_of(x)
    return batched(front, { {} }, function() return 0 end)
  end
  function M.native_solve(a)
    local x = solved(a.A, a.B, function(m, y) return mul(inverse(m), y) end)
    local lu, pivots, info = M.lu_factor(a, "_ex")
    return x, lu, pivots, info
  end
  function M.solve_ex(a)
    local n = n_of(a.A)
    local b = a.B
    local is_vector = #b.shape == 1 or #b.shape == #a.A.shape - 1
    for d = 1, #b.shape do is_vector = is_vector and (#b.shape == 1 or b.shape[d] == a.A.shape[d]) end
    if is_vector then b = { shape = with(b.shape, 1), data = b.data } end
    local x = solved(a.A, b, function(m, y)
      if n == 0 then return y end
      if a.left == false then return mul(y, inverse(m)) end
      return mul(inverse(m), y)
    end)
    if is_vector then x.shape[#x.shape] = nil end
    return x, info_of(a.A)
  end
  function M.solve(a) return (M.solve_ex(a)) end
  function M.inv_ex(a)
    local x, n = matrices(a.A), n_of(a.A)
    return batched(front_of(a.A), { { n, n }, {} }, function(b) return inverse(x[b]), 0 end)
  end
  function M.inv(a) return (M.inv_ex(a)) end
  function M.det(a)
    local x = matrices(a.A)
    return batched(front_of(a.A), { {} }, function(b) return det(x[b]) end)
  end
  function M.slogdet(a)
    local x = matrices(a.A)
    return batched(front_of(a.A), { {}, {} }, function(b)
      local d = det(x[b])
      return d > 0 and 1 or d < 0 and -1 or 0, math.log(math.abs(d))
    end)
  end
  function M.logdet(a)
    local x = matrices(a.self)
    return batched(front_of(a.self), { {} }, function(b) return math.log(det(x[b])) end)
  end
  function M.cofactors(a)
    local x, n = matrices(a.A), n_of(a.A)
    return batched(front_of(a.A), { { n, n } }, function(b)
      return new(n, n, function(i, j)
        local rest = new(n - 1, n - 1, function(r, c) return x[b][r < i and r or r + 1][c < j and c or c + 1] end)
        return (-1) ^ (i + j) * det(rest)
      end)
    end)
  end

  -- ---- Householder -------------------------------------------------------------------------------------

  -- LAPACK's geqrf: R and the vectors in one matrix, and their scales.
  local function geqrf(a)
    local x, tau = part(a, a.m, a.n), {}
    for k = 1, math.min(a.m, a.n) do
      local tail = 0
      for i = k + 1, a.m do tail = tail + x[i][k] ^ 2 end
      tau[k] = 0
      if tail > 0 then
        local alpha = x[k][k]
        local beta = math.sqrt(alpha ^ 2 + tail) * (alpha > 0 and -1 or 1)
        tau[k] = (beta - alpha) / beta
        for i = k + 1, a.m do x[i][k] = x[i][k] / (alpha - beta) end
        x[k][k] = beta
        for j = k + 1, a.n do
          local sum = x[k][j]
          for i = k + 1, a.m do sum = sum + x[i][k] * x[i][j] end
          x[k][j] = x[k][j] - tau[k] * sum
          for i = k + 1, a.m do x[i][j] = x[i][j] - tau[k] * sum * x[i][k] end
        end
      end
    end
    return x, tau
  end
  local function q_of(x, tau)
    local q = eye(x.m)
    for k = 1, #tau do
      local h = new(x.m, x.m, function(i, j)
        local function v(r) return r < k and 0 or r == k and 1 or x[r][k] end
        return (i == j and 1 or 0) - tau[k] * v(i) * v(j)
      end)
      q = mul(q, h)
    end
    return q
  end
  function M.qr(a)
    local x, m, n = matrices(a.A), n_of(a.A, 2), n_of(a.A)
    local k = math.min(m, n)
    local c = a.mode == "complete" and m or k
    local q, r = batched(front_of(a.A), { { m, c }, { c, n } }, function(b)
      local f, tau = geqrf(x[b])
      return part(q_of(f, tau), m, c), part(tri(f, true), c, n)
    end)
    if a.mode == "r" then q = { shape = { 0 }, data = {} } end
    return q, r
  end
  function M.geqrf(a)
    local x, m, n = matrices(a.self), n_of(a.self, 2), n_of(a.self)
    return batched(front_of(a.self), { { m, n }, { math.min(m, n) } }, function(b) return geqrf(x[b]) end)
  end
  function M.householder(a)
    local x, m, n = matrices(a.A), n_of(a.A, 2), n_of(a.A)
    return batched(front_of(a.A), { { m, n } }, function(b)
      return part(q_of(x[b], list_of(a.tau, b, n_of(a.tau))), m, n)
    end)
  end
  M.native_householder = M.householder
  function M.ormqr(a)
    local x, y, m, n = matrices(a.self), matrices(a.other), n_of(a.other, 2), n_of(a.other)
    return batched(front_of(a.self), { { m, n } }, function(b)
      local q = q_of(x[b], list_of(a.tau, b, n_of(a.tau)))
      if a.transpose then q = T(q) end
      if a.left == false then return mul(y[b], q) end
      return mul(q, y[b])
    end)
  end
  M.native_ormqr = M.ormqr

  -- ---- Jacobi ------------------------------------------------------------------------------------------

  -- Rotates columns of a (and of v alike) until they are orthogonal: a = U S V'. Then sorted, U's signs fixed.
  local function svd(a)
    if a.m < a.n then
      local u, s, v = svd(T(a))
      return v, s, u
    end
    local x, v = part(a, a.m, a.n), eye(a.n)
    for _ = 1, 60 do
      for p = 1, a.n do
        for q = p + 1, a.n do
          local pp, qq, pq = 0, 0, 0
          for i = 1, a.m do pp, qq, pq = pp + x[i][p] ^ 2, qq + x[i][q] ^ 2, pq + x[i][p] * x[i][q] end
          if math.abs(pq) > 1e-300 then
            local theta = (qq - pp) / (2 * pq)
            local tangent = (theta >= 0 and 1 or -1) / (math.abs(theta) + math.sqrt(1 + theta ^ 2))
            local c = 1 / math.sqrt(1 + tangent ^ 2)
            local s = c * tangent
            for _, y in ipairs { x, v } do
              for i = 1, y.m do y[i][p], y[i][q] = c * y[i][p] - s * y[i][q], s * y[i][p] + c * y[i][q] end
            end
          end
        end
      end
    end
    local list = {}
    for j = 1, a.n do
      local sum = 0
      for i = 1, a.m do sum = sum + x[i][j] ^ 2 end
      list[j] = { math.sqrt(sum), j }
    end
    table.sort(list, function(p, q) return p[1] > q[1] end)
    local s = {}
    for j = 1, a.n do s[j] = list[j][1] end
    local u = new(a.m, a.n, function(i, j) return x[i][list[j][2]] / s[j] end)
    return u, s, new(a.n, a.n, function(i, j) return v[i][list[j][2]] end)
  end
  local function signed(u, ...)
    for j = 1, u.n do
      local best = 0
      for i = 1, u.m do if math.abs(u[i][j]) > math.abs(best) * 1.0001 then best = u[i][j] end end
      if best < 0 then
        for _, y in ipairs { u, ... } do for i = 1, y.m do y[i][j] = -y[i][j] end end
      end
    end
  end
  function M.svd(a)
    local x, m, n = matrices(a.A), n_of(a.A, 2), n_of(a.A)
    local k = math.min(m, n)
    if k == 0 then
      local full = a.full_matrices
      return batched(front_of(a.A), { { m, full and m or 0 }, { 0 }, { full and n or 0, n } },
        function() return eye(m), {}, eye(n) end)
    end
    return batched(front_of(a.A), { { m, k }, { k }, { k, n } }, function(b)
      local u, s, v = svd(x[b])
      signed(u, v)
      return u, s, T(v)
    end)
  end
  function M.svdvals(a)
    local x = matrices(a.A)
    local k = math.min(n_of(a.A, 2), n_of(a.A))
    return batched(front_of(a.A), { { k } }, function(b) return select(2, svd(x[b])) end)
  end
  -- Shifted to be positive, a symmetric matrix has its eigenvectors as singular vectors.
  local function eigh(a, upper)
    local n, shift = a.n, 1
    local x = new(n, n, function(i, j) return ((i < j) == (upper or false) or i == j) and a[i][j] or a[j][i] end)
    for i = 1, n do
      local sum = 0
      for j = 1, n do sum = sum + math.abs(x[i][j]) end
      shift = math.max(shift, sum + 1)
    end
    for i = 1, n do x[i][i] = x[i][i] + shift end
    local _, s, v = svd(x)
    local w = {}
    for i = 1, n do w[i] = s[n + 1 - i] - shift end
    local vectors = new(n, n, function(i, j) return v[i][n + 1 - j] end)
    signed(vectors)
    return w, vectors
  end
  function M.eigh(a)
    local x, n = matrices(a.A), n_of(a.A)
    return batched(front_of(a.A), { { n }, { n, n } }, function(b) return eigh(x[b], a.UPLO == "U") end)
  end
  function M.eigvalsh(a) return (M.eigh(a)) end
  local function limit(a, s)
    local rtol = a.rtol or (a.atol or 0) > 0 and 0 or 2.220446049250313e-16 * math.max(n_of(a.A, 2), n_of(a.A))
    if not a.rtol and a.dtype == "float32" then rtol = rtol * 2 ^ 29 end
    return math.max(a.atol or 0, rtol * (s[1] or 0))
  end
  local function pinv(a, m, tolerance)
    local u, s, v = svd(m)
    local top = tolerance or limit(a, s)
    return mul(new(v.m, #s, function(i, j) return s[j] > top and v[i][j] / s[j] or 0 end), T(u))
  end
  function M.pinv(a)
    local x, m, n = matrices(a.A), n_of(a.A, 2), n_of(a.A)
    return batched(front_of(a.A), { { n, m } }, function(b)
      return math.min(m, n) == 0 and new(n, m) or pinv(a, x[b])
    end)
  end
  function M.matrix_rank(a)
    local x = matrices(a.A)
    return batched(front_of(a.A), { {} }, function(b)
      if math.min(n_of(a.A, 2), n_of(a.A)) == 0 then return 0 end
      local _, s = svd(x[b])
      local n, top = 0, math.max(limit(a, s), 1e-6 * s[1]) -- in float32, too
      for _, v in ipairs(s) do if v > top then n = n + 1 end end
      return n
    end)
  end

  function M.lstsq(a)
    local x, y, n, k = matrices(a.A), matrices(a.B), n_of(a.A), n_of(a.B)
    local few = math.min(n_of(a.A, 2), n)
    local X, rank, s = batched(front_of(a.A), { { n, k }, {}, { few } }, function(b)
      return mul(pinv(a, x[b], 1e-10), y[b]), few, select(2, svd(x[b]))
    end)
    if a.driver == "gels" or a.driver == "gelsy" then s = { shape = { 0 }, data = {} } end
    return X, rank, s
  end
  -- Of positive-definite matrices, which need no exchanges as far as the diagonal is large.
  function M.ldl_factor(a, name)
    local x, n = matrices(a.A), n_of(a.A)
    local ld, pivots, info = batched(front_of(a.A), { { n, n }, { n }, {} }, function(b)
      local l = cholesky(x[b])
      local p = {}
      for i = 1, n do p[i] = i end
      local factor = new(n, n, function(i, j) return i == j and l[i][i] ^ 2 or l[i][j] / l[j][j] end)
      return factor, p, 0
    end)
    if name:find "_ex" then return ld, pivots, info end
    return ld, pivots
  end
  function M.ldl_solve(a)
    return solved(a.LD, a.B, function(x, y)
      local l = tri(x, false, true)
      local d = new(x.n, x.n, function(i, j) return i == j and x[i][i] or 0 end)
      return mul(inverse(mul(mul(l, d), T(l))), y)
    end)
  end
end
