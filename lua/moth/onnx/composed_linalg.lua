--- Factorizations in other ops, a column a step of moth.while_loop: what ONNX has no operators for. The matrices are
-- the last two dimensions; those in front are a batch.
local B = require "moth_lua"
local moth = require "moth"
local ops = B.ops

-- Loops ... = fn(k, ..., given) over k = 0 … n - 1, k a tensor; given: a tensor that fn reads.
local function steps(n, given, fn, ...)
  local count = select("#", ...)
  local list = { moth.zeros({}, { dtype = moth.int64 }), ... }
  list[count + 2] = given
  local out = { moth.while_loop(function(k) return k:lt(n) end, function(k, ...)
    local made, last = { fn(k, ...) }, nil
    if given then last = select(count + 1, ...) end
    made[count + 1] = last
    return k + 1, unpack(made, 1, given and count + 1 or count)
  end, list) }
  return unpack(out, 2, count + 1)
end

local function at(k, n, x) return moth.arange(n):eq(k):to(x:dtype()) end -- 1 at position k, else 0
local function outer(a, b) return a:unsqueeze(-1) * b:unsqueeze(-2) end
-- The sizes of the batch, then others.
local function sizes_before(x, ...)
  local size = {}
  for i = 1, x:dim() - 2 do size[i] = x:size(i) end
  for i = 1, select("#", ...) do size[#size + 1] = select(i, ...) end
  return size
end
local function none_wrong(x) return moth.zeros(sizes_before(x), { dtype = moth.int32 }) end

return function(M)
  function M.linalg_cholesky_ex(A, upper)
    local n = A:size(-1)
    local a = upper and A:triu() + A:triu(1):transpose(-2, -1) or A:tril() + A:tril(-1):transpose(-2, -1)
    local _, l = steps(n, nil, function(k, rest, l)
      local e = at(k, n, rest)
      local column = (rest * e):sum(-1)
      local root = (column * e):sum({ -1 }, { keepdim = true }):sqrt()
      local new = moth.where(moth.arange(n):ge(k), column / root, 0)
      return rest - outer(new, new), l + outer(new, e)
    end, a, moth.zeros_like(a))
    return upper and l:transpose(-2, -1) or l, none_wrong(A)
  end

  function M.native_solve_triangular(A, b, upper, unitriangular)
    local n = A:size(-1)
    local _, x = steps(n, A, function(k, rest, x, a)
      local e = at(upper and n - 1 - k or k, n, a)
      local row = (rest * e:unsqueeze(-1)):sum({ -2 }, { keepdim = true })
      local column = (a * e):sum({ -1 }, { keepdim = true })
      if not unitriangular then row = row / (column * e:unsqueeze(-1)):sum({ -2 }, { keepdim = true }) end
      return rest - column * row, x + e:unsqueeze(-1) * row
    end, b, moth.zeros_like(b))
    return x
  end

  function M.linalg_lu_factor_ex(A, pivot)
    local m, n = A:size(-2), A:size(-1)
    local count = math.min(m, n)
    if count == 0 then return A * 1, moth.zeros(sizes_before(A, count), { dtype = moth.int32 }), none_wrong(A) end
    local lu, pivots = steps(count, nil, function(k, lu, pivots)
      local rows, columns = moth.arange(m), moth.arange(n)
      local ek, ej = at(k, m, lu), at(k, n, lu)
      local row = (lu * ek:unsqueeze(-1)):sum(-2)
      if pivot ~= false then
        local size_of = (lu * ej):sum(-1):abs()
        local best = moth.where(rows:ge(k), size_of, -1):argmax(-1) - 1
        local is_best = rows:eq(best:unsqueeze(-1))
        local other = (lu * is_best:to(lu:dtype()):unsqueeze(-1)):sum(-2)
        lu = moth.where(is_best:unsqueeze(-1), row:unsqueeze(-2), lu)
        lu = moth.where(rows:eq(k):unsqueeze(-1), other:unsqueeze(-2), lu)
        row = other
        pivots = moth.where(moth.arange(count):eq(k), (best + 1):unsqueeze(-1):to(moth.int32), pivots)
      end
      local column, first = (lu * ej):sum(-1), (row * ej):sum({ -1 }, { keepdim = true })
      local factor = moth.where(rows:gt(k):logical_and(first:ne(0)), column / first, 0)
      local right = moth.where(columns:gt(k), row, 0)
      local kept = lu - outer(factor, right)
      local below = rows:gt(k):unsqueeze(-1):logical_and(columns:eq(k))
      return moth.where(below, factor:unsqueeze(-1), kept), pivots
    end, A, moth.arange(1, count + 1):to(moth.int32):expand(sizes_before(A, count)))
    local zero = lu:diagonal(0, -2, -1):eq(0):to(moth.int32)
    local info = moth.where(zero:amax({ -1 }):gt(0), zero:argmax(-1), 0):to(moth.int32)
    return lu, pivots, info
  end

  function M.native_lu_rows(pivots, n)
    local count = pivots:size(-1)
    local size = pivots:size()
    size[#size] = n
    return (steps(count, pivots, function(k, rows, p)
      local places = moth.arange(n)
      local here = (p * moth.arange(count):eq(k):to(p:dtype())):sum({ -1 }, { keepdim = true }) - 1
      local a = (rows * places:eq(k):to(moth.int64)):sum({ -1 }, { keepdim = true })
      local b = (rows * places:eq(here):to(moth.int64)):sum({ -1 }, { keepdim = true })
      return moth.where(places:eq(k), b, moth.where(places:eq(here), a, rows))
    end, moth.arange(n):expand(size)))
  end

  function M.native_lu_solve(lu, pivots, b, turned)
    local n = lu:size(-1)
    local p = ops.native_lu_rows(pivots, n):unsqueeze(-1):eq(moth.arange(n)):to(b:dtype()) -- P' in P L U
    if not turned then
      return ops.native_solve_triangular(lu, ops.native_solve_triangular(lu, p:matmul(b), false, true), true, false)
    end
    local t = lu:transpose(-2, -1)
    local z = ops.native_solve_triangular(t, ops.native_solve_triangular(t, b, false, false), true, true)
    return p:transpose(-2, -1):matmul(z)
  end

  -- Reflections as LAPACK's: the diagonal of R has the sign that avoids cancellation.
  function M.native_qr(A, mode)
    local m, n = A:size(-2), A:size(-1)
    local count = math.min(m, n)
    local q, r = steps(count, nil, function(k, q, r)
      local column = (r * at(k, n, r)):sum(-1)
      local e, rows = at(k, m, r), moth.arange(m)
      local below = moth.where(rows:gt(k), column, 0)
      local first = (column * e):sum({ -1 }, { keepdim = true })
      local rest = below:square():sum({ -1 }, { keepdim = true })
      local length = (rest + first * first):sqrt()
      local v = below + e * (first + moth.where(first:lt(0), -length, length))
      local by = moth.where(rest:gt(0), 2 / v:square():sum({ -1 }, { keepdim = true }), 0):unsqueeze(-1)
      local row, column_of = v:unsqueeze(-2), v:unsqueeze(-1)
      return q - by * q:matmul(column_of) * row, r - by * column_of * row:matmul(r)
    end, moth.eye(m, { dtype = A:dtype() }):expand(sizes_before(A, m, m)), A)
    r = r:triu()
    if mode == "complete" then return q, r end
    r = r:narrow(-2, 1, count)
    if mode == "r" then return moth.zeros({ 0 }, { dtype = A:dtype() }), r end
    return q:narrow(-1, 1, count), r
  end

  -- The product of k reflections of m elements, whole: (m, m).
  local function reflections(A, tau)
    local m, count = A:size(-2), tau:size(-1)
    local both = moth.cat({ A:narrow(-1, 1, count), tau:expand(sizes_before(A, 1, count)) }, -2)
    return steps(count, both, function(k, q, given)
      local a, scales = given:narrow(-2, 1, m), given:narrow(-2, m + 1, 1)
      local v = moth.where(moth.arange(m):gt(k), (a * at(k, count, a)):sum(-1), at(k, m, a))
      local by = (scales * at(k, count, a)):sum({ -1 }, { keepdim = true })
      return q - by * q:matmul(v:unsqueeze(-1)) * v:unsqueeze(-2)
    end, moth.eye(m, { dtype = A:dtype() }):expand(sizes_before(A, m, m)))
  end
  function M.native_householder_product(A, tau) return reflections(A, tau):narrow(-1, 1, A:size(-1)) end
  function M.native_ormqr(A, tau, other, left, transpose)
    local q = reflections(A, tau)
    if transpose then q = q:transpose(-2, -1) end
    return left and q:matmul(other) or other:matmul(q)
  end
end
