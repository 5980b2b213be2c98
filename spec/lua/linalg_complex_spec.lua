-- Linear algebra of complex matrices, and eigenvalues of all square ones: what was factored comes back, derivatives are
-- those of differences along 1 and i.
local moth = require "moth"
local L = moth.linalg

local function z(...) return moth.randn({ ... }, { dtype = moth.complex128 }) end
local function near(a, b) assert.is_true(moth.allclose(a, b, 1e-8, 1e-8), tostring(a) .. "\n" .. tostring(b)) end
local one = moth.eye(4, { dtype = moth.complex128 })
moth.manual_seed(3)
local A = z(2, 4, 4)
local hermitian = (A + A.mH) / 2
local positive = A:matmul(A.mH) + one

describe("eigenvalues", function()
  it("of square matrices are complex", function()
    for _, dtype in ipairs { moth.float32, moth.float64, moth.complex64, moth.complex128 } do
      local x = moth.randn({ 2, 5, 5 }, { dtype = dtype })
      local w, v = L.eig(x)
      local complex = (dtype == moth.float32 or dtype == moth.complex64) and moth.complex64 or moth.complex128
      assert.equal(complex, w:dtype())
      assert.is_true(moth.allclose(x:to(complex):matmul(v), v * w:unsqueeze(-2), 1e-4, 1e-4))
      assert.is_true(moth.allclose(v:abs():square():sum(-2):double(), moth.ones(2, 5):double(), 1e-5))
      assert.is_true(moth.allclose(L.eigvals(x):sum(-1), x:to(complex):diagonal(0, -2, -1):sum(-1), 1e-4, 1e-4))
    end
    local w = L.eigvals(moth.tensor { { 0, -1 }, { 1, 0 } })
    near(w:imag():abs(), moth.ones(2))
    near(w:real():clone(), moth.zeros(2))
    assert.equal("[2, 0]", tostring(L.eigvals(moth.zeros(2, 0, 0)):size()))
    assert.error_matches(function() L.eig(moth.randn(2, 3)) end, "linalg.eig%] expected square")
    assert.error_matches(function() L.eigvals(moth.full({ 2, 2 }, 0 / 0)) end, "infinite or NaN")
  end)

  it("of hermitian matrices are real", function()
    for _, triangle in ipairs { "L", "U" } do
      local part = triangle == "L" and hermitian:tril() or hermitian:triu()
      local w, v = L.eigh(part, triangle)
      assert.equal(moth.float64, w:dtype())
      near(v:matmul(w:unsqueeze(-1) * v.mH), hermitian)
      near(L.eigvalsh(part, triangle), w)
    end
  end)
end)

describe("factors of complex matrices", function()
  it("multiply to them", function()
    for _, shape in ipairs { { 3, 5 }, { 5, 3 }, { 4, 4 } } do
      local x = z(unpack(shape))
      local u, s, vh = L.svd(x, false)
      near(u:matmul(s:unsqueeze(-1) * vh), x)
      near(L.svdvals(x), s)
      local q, r = L.qr(x)
      near(q:matmul(r), x)
      local p, l, up = L.lu(x)
      near(p:matmul(l):matmul(up), x)
      near(x:matmul(L.pinv(x)):matmul(x), x)
      assert.equal(math.min(unpack(shape)), L.matrix_rank(x):item())
      local a, tau = moth.geqrf(x)
      if shape[1] >= shape[2] then
        near(L.householder_product(a, tau), q)
        near(moth.ormqr(a, tau, x, true, true):narrow(1, 1, #r), r)
      end
    end
    local l = L.cholesky(positive)
    near(l:matmul(l.mH), positive)
    local u = L.cholesky(positive, true)
    near(u.mH:matmul(u), positive)
    for _, symmetric in ipairs { true, false } do
      local x = symmetric and A + A.mT or hermitian
      local o = { hermitian = not symmetric }
      local ld, p = L.ldl_factor(x, o)
      near(x:matmul(L.ldl_solve(ld, p, A, o)), A)
    end
  end)

  it("without pivots, too", function()
    for _, dtype in ipairs { moth.float32, moth.float64, moth.complex64, moth.complex128 } do
      local x = moth.randn({ 2, 4, 3 }, { dtype = dtype }) + 3 * moth.eye(4, 3)
      local _, l, u = L.lu(x, { pivot = false })
      assert.is_true(moth.allclose(l:matmul(u), x, 1e-4, 1e-4))
    end
    assert.error_matches(function() L.lu_factor(moth.zeros(2, 2), { pivot = false }) end, "singular")
  end)

  it("solve systems", function()
    local b = z(2, 4, 3)
    near(A:matmul(L.solve(A, b)), b)
    near(A:matmul(L.inv(A)), one:expand(2, 4, 4))
    local lu, p = L.lu_factor(A)
    near(A.mH:matmul(L.lu_solve(lu, p, b, true, true)), b)
    local sign, log = L.slogdet(A)
    near(sign * log:exp(), L.det(A))
    near(moth.logdet(A):exp(), L.det(A))
    local m, y = z(5, 3), z(5, 2)
    for _, driver in ipairs { "gels", "gelsy", "gelsd", "gelss" } do
      near(m.mH:matmul(m:matmul((L.lstsq(m, y, nil, { driver = driver })))), m.mH:matmul(y))
    end
    near(L.matrix_exp(A):matmul(L.matrix_exp(-A)), one:expand(2, 4, 4))
    near(L.matrix_power(A, -2):matmul(A):matmul(A), one:expand(2, 4, 4))
    for _, ord in ipairs { "fro", "nuc", 1, 2, -2, math.huge } do
      assert.equal(moth.float64, L.matrix_norm(A, ord):dtype())
      assert.equal(moth.float64, L.cond(A, ord):dtype())
    end
  end)
end)

describe("derivatives of complex factors", function()
  local function var(t) return t:detach():clone():requires_grad_(true) end
  local square, tall, wide, b = var(A[1]), var(z(4, 3)), var(z(3, 4)), var(z(4, 2))
  local function check(fn, ...)
    assert.is_true(moth.autograd.gradcheck(fn, { ... }))
    assert.is_true(moth.autograd.gradgradcheck(fn, { ... }))
  end

  it("are those of differences", function()
    check(L.solve, square, b)
    for _, fn in ipairs { L.inv, L.det, L.slogdet, moth.logdet, L.eigvals, L.qr } do check(fn, square) end
    check(L.det, var(z(3, 1):matmul(z(1, 3))))
    check(function(x) return L.cholesky(x:matmul(x.mH) + one) end, square)
    check(function(x)
      local w, v = L.eigh(x + x.mH)
      return w, v:abs()
    end, square)
    check(function(x)
      local w, v = L.eig(x)
      return w, v:abs()
    end, var(moth.randn({ 3, 3 }, { dtype = moth.float64 })))
    for _, x in ipairs { tall, wide } do
      check(L.qr, x)
      check(L.pinv, x)
      check(function(y)
        local u, s, vh = L.svd(y, false)
        return u:abs(), s, u:matmul(vh)
      end, x)
      check(function(y) return select(2, L.lu(y)) end, x)
    end
    check(function(x, y)
      local lu, p = L.lu_factor(x)
      return L.lu_solve(lu, p, y), L.lu_solve(lu, p, y, true, true)
    end, square, b)
    check(function(x, y) return L.solve_triangular(x, y, true) end, square, b)
    check(function(x, y) return (L.lstsq(x, y)) end, tall, b)
    check(L.householder_product, tall, var(z(3)))
    for _, is in ipairs { true, false } do
      local ld, p = L.ldl_factor(is and hermitian[1] or A[1] + A[1].mT, { hermitian = is })
      check(function(y) return L.ldl_solve(ld, p, y, { hermitian = is }) end, b)
    end
  end)
end)
