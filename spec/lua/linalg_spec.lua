-- moth.linalg: what factorizations are made of gives the matrix back, in batches and odd layouts; the same bits for any
-- number of threads; derivatives where they are delicate; errors. Values are compared with references in spec/ops.
local B = require "moth_lua"
local moth = require "moth"
local L = moth.linalg

local function close(a, b, tolerance)
  assert.is_true(moth.allclose(a, b, tolerance or 1e-9, tolerance or 1e-9), tostring(a:sub(b)))
end
local function fails(pattern, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
  assert.matches("linalg_spec%.lua:%d+:", message)
end
local function eye(n) return moth.eye(n, { dtype = "float64" }) end
local function randn(...)
  return moth.randn(type(...) == "table" and (...) or { ... }, { dtype = "float64" })
end
local function diag(v) return moth.diag_embed(v) end

describe("linalg", function()
  before_each(function() moth.manual_seed(5) end)

  it("gives factors whose product is the matrix #quick", function()
    for _, size in ipairs { { 5, 5 }, { 2, 7, 4 }, { 2, 3, 4, 7 }, { 1, 1 }, { 0, 3, 2 }, { 3, 0 }, { 0, 4 } } do
      local wide = randn(size)
      -- the same matrices in other layouts
      for _, a in ipairs { wide, wide.mT:contiguous().mT } do
        local m, n = a:size(-2), a:size(-1)
        local k = math.min(m, n)
        for _, full in ipairs { true, false } do
          local u, s, vh = L.svd(a, full)
          close(u.mT:matmul(u), eye(full and m or k):expand_as(u.mT:matmul(u)))
          close(vh:matmul(vh.mT), eye(full and n or k):expand_as(vh:matmul(vh.mT)))
          close(u:narrow(-1, 1, k):mul(s:unsqueeze(-2)):matmul(vh:narrow(-2, 1, k)), a)
          local q, r = L.qr(a, full and "complete" or "reduced")
          close(q.mT:matmul(q), eye(full and m or k):expand_as(q.mT:matmul(q)))
          close(q:matmul(r), a)
          assert.is_true(moth.equal(r, r:triu()))
        end
        local p, l, u = L.lu(a)
        close(p:matmul(l):matmul(u), a)
        local lu, pivots = L.lu_factor_ex(a)
        local p2, l2, u2 = moth.lu_unpack(lu, pivots)
        close(p2:matmul(l2):matmul(u2), a)
        close(L.pinv(a):matmul(a):matmul(L.pinv(a)), L.pinv(a))
      end
    end
  end)

  it("solves systems of square matrices #quick", function()
    for _, size in ipairs { { 6, 6 }, { 2, 1, 5, 5 }, { 0, 3, 3 }, { 0, 0 } } do
      local x = randn(size)
      local n = x:size(-1)
      local a = x:matmul(x.mT):add(eye(n))
      local b = randn(n, 3)
      close(a:matmul(L.solve(a, b)), b:expand_as(a:matmul(b)))
      close(L.solve(a, b.mT, false):matmul(a), b.mT:expand_as(b.mT:matmul(a)))
      close(L.inv(a):matmul(a), eye(n):expand_as(a), 1e-8)
      local l = L.cholesky(a)
      close(l:matmul(l.mT), a)
      close(moth.cholesky_solve(b, l), L.solve(a, b))
      close(moth.cholesky_inverse(l), L.inv(a))
      local w, v = L.eigh(a)
      close(v:matmul(diag(w)):matmul(v.mT), a, 1e-8)
      close(L.eigvalsh(a, "U"), w)
      close(L.matrix_sqrth(a):matmul(L.matrix_sqrth(a)), a, 1e-8)
      close(moth.logdet(a), w:log():sum(-1), 1e-8)
      local ld, pivots = L.ldl_factor(a)
      close(a:matmul(L.ldl_solve(ld, pivots, b)), b:expand_as(a:matmul(b)), 1e-8)
      local lu, p = L.lu_factor(a)
      close(L.lu_solve(lu, p, b), L.solve(a, b))
      close(L.matrix_power(a, -2), L.inv(a:matmul(a)), 1e-8)
    end
    local y = moth.empty(3, 3, { dtype = "float64" })
    local a = eye(3):mul(2)
    assert.equal(y, L.inv(a, { out = y }))
    close(y, eye(3):div(2))
    assert.is_true(moth.equal(a:inverse(), y))
    assert.equal(8, a:det():item())
    local u, h = L.polar(randn(5, 3))
    close(u.mT:matmul(u), eye(3))
    close(h, h.mT)
  end)

  it("finds the least squares, by each driver", function()
    local a, b = randn(2, 6, 3), randn(2, 6, 2)
    local want = L.pinv(a):matmul(b)
    for _, driver in ipairs { "gels", "gelsy", "gelsd", "gelss" } do
      local x, residuals, rank, s = L.lstsq(a, b, { driver = driver })
      close(x, want)
      assert.same(driver == "gelsy" and { 0 } or { 2, 2 }, residuals:size())
      assert.same(driver == "gels" and { 0 } or { 2 }, rank:size())
      assert.same(driver:find "gels[ds]" and { 2, 3 } or { 0 }, s:size())
    end
    -- a vector; fewer rows than columns
    close(a[1]:matmul((L.lstsq(a[1], b[1]:select(2, 1)))), a[1]:matmul(want[1]):select(2, 1))
    close(a.mT:matmul((L.lstsq(a.mT, b:narrow(2, 1, 3)))), b:narrow(2, 1, 3))
    fails("must have as many rows", L.lstsq, a, b:narrow(2, 1, 5))
  end)

  it("gives the same bits for any number of threads, in a batch and alone", function()
    local x = moth.randn(9, 33, 33)
    local a = x:matmul(x.mT):add(moth.eye(33))
    local function all(m)
      local out = {}
      for _, t in ipairs { L.cholesky(m), (L.lu_factor(m)), L.inv(m), (L.qr(m)), (select(2, L.eigh(m))), (L.svd(m)),
        (L.lstsq(m, m)) } do out[#out + 1] = t end
      return out
    end
    local before, first = B.num_threads(), nil
    for n = 1, 3 do
      B.num_threads(n)
      local bits = {}
      for k, t in ipairs(all(a)) do bits[k] = t end
      first = first or bits
      for k, t in ipairs(bits) do assert.is_true(moth.equal(t, first[k]), k .. ", threads " .. n) end
      for k, t in ipairs(all(a[4])) do assert.is_true(moth.equal(t, first[k][4]), k .. " alone, threads " .. n) end
    end
    B.num_threads(before)
  end)

  it("has derivatives where values meet", function()
    -- singular values and eigenvalues that are equal: the derivative of their sum is that of the trace
    local a = eye(3):requires_grad_(true)
    L.svdvals(a):sum():backward()
    close(a.grad, eye(3))
    a.grad = nil
    L.eigvalsh(a):sum():backward()
    close(a.grad, eye(3))
    -- the determinant of a singular matrix: its cofactors, and their derivative
    local s = moth.tensor({ { 1, 2, 0 }, { 2, 4, 0 }, { 0, 0, 3 } }, { dtype = "float64" }):requires_grad_(true)
    L.det(s):backward()
    close(s.grad, moth.tensor({ { 12, -6, 0 }, { -6, 3, 0 }, { 0, 0, 0 } }, { dtype = "float64" }), 1e-8)
    assert(moth.autograd.gradcheck(L.det, { s }))
    local g = moth.autograd.grad({ L.det(s) }, { s }, nil, true, true)
    g = moth.autograd.grad({ g[1][1] }, { s })
    close(g, moth.tensor({ { 0, 0, 0 }, { 0, 3, 0 }, { 0, 0, 4 } }, { dtype = "float64" }), 1e-8)
    -- of vectors that a matrix does not determine there is none
    local w = randn(4, 2):requires_grad_(true)
    local q = L.qr(w, "complete")
    assert.has_error(function() q:sum():backward() end)
    local _, r = L.qr(w, "r")
    r:sum():backward()
    assert.same({ 4, 2 }, w.grad:size())
    -- norms made of singular values
    local x = randn(2, 4, 3):requires_grad_(true)
    for _, ord in ipairs { "nuc", 2, -2, "fro", 1, -1, math.huge, -math.huge } do
      assert(moth.autograd.gradcheck(function(y) return L.matrix_norm(y, ord) end, { x }), tostring(ord))
    end
    local b = randn(2, 4, 1):requires_grad_(true)
    assert(moth.autograd.gradcheck(function(y, z) return (L.lstsq(y, z)) end, { x, b }))
    assert(moth.autograd.gradcheck(function(y) return L.cond(y:narrow(2, 1, 3), 1) end, { x }))
  end)

  it("norms and conditions follow their definitions", function()
    local a = randn(2, 4, 3)
    local s = L.svdvals(a)
    close(L.matrix_norm(a, "nuc"), s:sum(-1))
    close(L.norm(a[1], 2), s[1][1])
    close(L.norm(a), a:square():sum():sqrt())
    close(L.matrix_norm(a, 1), a:abs():sum(-2):amax(-1))
    close(L.matrix_norm(a:movedim(1, 3), math.huge, { 1, 2 }), a:abs():sum(-1):amax(-1))
    assert.same({ 2, 1, 1 }, L.matrix_norm(a, -2, { 2, 3 }, true):size())
    close(moth.norm(a, "nuc", { 2, 3 }), s:sum(-1))
    close(L.cond(a), s:select(-1, 1):div(s:select(-1, 3)))
    assert.equal(math.huge, L.cond(moth.zeros(2, 2), 1):item())
    assert.equal(2, L.matrix_rank(randn(4, 2):matmul(randn(2, 4))):item())
    close(L.tensorsolve(eye(6):reshape(2, 3, 6), moth.ones(2, 3, { dtype = "float64" })),
      moth.ones(6, { dtype = "float64" }))
    assert.same({ 6, 2, 3 }, L.tensorinv(eye(6):reshape(2, 3, 6)):size())
    local q, t = moth.geqrf(randn(5, 3))
    local whole = L.householder_product(q, t)
    close(whole.mT:matmul(whole), eye(3))
    close(moth.ormqr(q, t, eye(5)):narrow(2, 1, 3), whole)
    local u, d, v = moth.svd_lowrank(a[1]:matmul(a[1].mT), 3)
    close(u:mul(d):matmul(v.mT), a[1]:matmul(a[1].mT))
  end)

  it("says which matrix of a batch is at fault", function()
    local a = moth.stack { moth.eye(2), moth.zeros(2, 2) }
    fails("%[linalg.inv%] matrix 2 of the batch is singular: U%[1, 1%] is 0", L.inv, a)
    fails("%[linalg.solve%] matrix 2 of the batch is singular", L.solve, a, moth.ones(2))
    fails("%[linalg.cholesky%] matrix 2 of the batch is not positive%-definite", L.cholesky, a)
    fails("%[inverse%] the matrix is singular", moth.inverse, a[2])
    local nan = moth.eye(2)
    nan[1][1] = 0 / 0
    fails("%[linalg.svd%] the matrix has elements that are infinite or NaN", L.svd, nan)
    local _, info = L.inv_ex(a)
    assert.same({ 0, 1 }, info:totable())
    fails("low precision dtypes are not supported: got float16", L.inv, a:half())
    fails("expected square matrices", L.det, moth.zeros(2, 3))
    fails("pivots must be between 1 and 2, got 3", L.lu_solve, moth.eye(2), moth.tensor({ 1, 3 }, { dtype = "int32" }),
      moth.eye(2))
  end)
end)
