-- Factorizations on CUDA beside the CPU's, signs of vectors among them: by cuSOLVER and cuBLAS, of which the emulation
-- has strict ones on LAPACK. Batches of small matrices are one call, others a call for each matrix.
local ffi = require "ffi"
local fails = require "fails"
local moth = require "moth"
local L = moth.linalg
ffi.cdef "int setenv(const char *name, const char *value, int overwrite); int unsetenv(const char *name);"

local emulated = os.getenv("MOTH_CUDA") == "emu"
local function there() return moth.cuda.is_available() or pending(moth.cuda.why()) end

-- All results of f, on the CPU; f gets its tensors on a device.
local function results(f, device, tensors)
  local on = {}
  for i, t in ipairs(tensors) do on[i] = t:to(device) end
  local out = { f(unpack(on)) }
  for i, t in ipairs(out) do
    assert.equal(device, t:device().type)
    out[i] = t:cpu()
  end
  return out
end
local function same(f, ...)
  local want, got = results(f, "cpu", { ... }), results(f, "cuda", { ... })
  assert.equal(#want, #got)
  for i, w in ipairs(want) do
    assert.equal(w:dtype(), got[i]:dtype())
    assert.same(w:size(), got[i]:size())
    local narrow = w:dtype() == moth.float32 or w:dtype() == moth.complex64
    local near = narrow and 2e-3 or 1e-8
    assert.is_true(moth.allclose(w, got[i], near, near), ("result %d of %s:\n%s\n%s"):format(i,
      tostring(w:size()), tostring(w), tostring(got[i])))
  end
end

-- Matrices whose singular values and eigenvalues are apart.
local function matrices(size, dtype)
  local n = #size
  local a = moth.randn(size, { dtype = dtype })
  local k = math.min(size[n - 1], size[n])
  a:diagonal(0, -2, -1):add_(moth.arange(1, k + 1):to(dtype) * 2)
  return a
end
local function hermitian(size, dtype)
  local a = matrices(size, dtype)
  return a:add(a.mH)
end

local functions = {
  cholesky = function(a) return L.cholesky_ex(a:matmul(a.mH)) end,
  cholesky_upper = function(a) return L.cholesky(a:matmul(a.mH), true) end,
  lu = function(a) return L.lu_factor_ex(a) end,
  lu_without_pivots = function(a) return L.lu_factor(a, false) end,
  lu_solve = function(a)
    local lu, pivots = L.lu_factor(a)
    return L.lu_solve(lu, pivots, a), L.lu_solve(lu, pivots, a, { adjoint = true }), L.lu_solve(lu, pivots, a, false)
  end,
  solve_triangular = function(a)
    return L.solve_triangular(a, a, true), L.solve_triangular(a, a, false, { left = false, unitriangular = true })
  end,
  eigh = function(a) return L.eigh(a:add(a.mH), "U") end,
  eigvalsh = function(a) return L.eigvalsh(a:add(a.mH)) end,
  inverse = function(a) return L.inv(a) end,
  ldl = function(a) return L.ldl_factor_ex(a) end,
  ldl_solve = function(a)
    local ld, pivots = L.ldl_factor(a)
    return L.ldl_solve(ld, pivots, a)
  end,
}
local of_any_shape = {
  lu = functions.lu,
  qr = function(a) return L.qr(a) end,
  complete_qr = function(a) return L.qr(a, "complete") end,
  r = function(a) return select(2, L.qr(a, "r")) end,
  geqrf = function(a) return moth.geqrf(a) end,
  ormqr = function(a)
    local q, tau = moth.geqrf(a)
    local k = tau:size(-1)
    local b = a:narrow(-1, 1, math.min(a:size(-1), 1))
    return moth.ormqr(q:narrow(-1, 1, k), tau, b), moth.ormqr(q:narrow(-1, 1, k), tau, b, true, true),
      moth.ormqr(q:narrow(-1, 1, k), tau, b.mT, false)
  end,
  svd = function(a) return L.svd(a, false) end,
  full_svd = function(a)
    local u, s, vh = L.svd(a)
    local k = s:size(-1) -- of the others only what they span is defined
    return u:narrow(-1, 1, k), s, vh:narrow(-2, 1, k)
  end,
  svdvals = function(a) return L.svdvals(a) end,
  lstsq = function(a)
    local x, _, rank = L.lstsq(a, a:sum(-1, true) * a, { driver = "gels" })
    return x, rank
  end,
}

describe("linear algebra on CUDA", function()
  before_each(function() moth.manual_seed(3) end)

  it("gives what the CPU gives, in batches, in any layout and dtype", function()
    if not there() then return end
    for _, dtype in ipairs { "float32", "float64", "complex64", "complex128" } do
      for _, size in ipairs { { 4, 4 }, { 2, 3, 3, 3 }, { 1, 1 }, { 0, 2, 2 }, { 2, 0, 0 } } do
        local a = matrices(size, dtype)
        for _, f in pairs(functions) do
          same(f, a)
          same(f, a:expand { 2, unpack(size) })
        end
      end
      for _, size in ipairs { { 5, 3 }, { 2, 3, 5 }, { 0, 2, 3 }, { 3, 0 }, { 0, 3 }, { 6, 1 } } do
        local a = matrices(size, dtype)
        for _, f in pairs(of_any_shape) do
          same(f, a)
          same(f, a.mT)
        end
      end
    end
  end)

  it("takes matrices one after another when they are large", function()
    if not there() then return end
    local a = matrices({ 2, 130, 130 }, "float64")
    for _, name in ipairs { "cholesky", "lu", "lu_solve", "solve_triangular", "eigvalsh" } do
      same(functions[name], a)
    end
    same(of_any_shape.svdvals, a)
  end)

  it("has eigenvalues of general matrices, by pairs", function()
    if not there() then return end
    for _, dtype in ipairs { "float64", "complex128", "float32" } do
      local a = matrices({ 3, 5, 5 }, dtype):cuda()
      local w, v = L.eig(a)
      local whole = a:to(w:dtype())
      local near = dtype == "float32" and 1e-3 or 1e-9
      assert.is_true(moth.allclose(whole:matmul(v), v * w:unsqueeze(-2), near, near))
      local lengths = v:abs():square():sum(-2)
      assert.is_true(moth.allclose(lengths, moth.ones_like(lengths), near, near))
      assert.is_true(moth.allclose(w:sum(-1), whole:diagonal(0, -2, -1):sum(-1), near, near))
      assert.is_true(moth.allclose(L.eigvals(a), w, near, near))
    end
    local turn = moth.tensor({ { 0, -1 }, { 1, 0 } }, { device = "cuda", dtype = "float64" })
    local w, v = L.eig(turn)
    assert.same({ 1, -1 }, moth.imag(w):totable())
    assert.is_true(moth.allclose(v:select(2, 1), v:select(2, 2):conj()))
  end)

  it("has derivatives", function()
    if not there() then return end
    local a = hermitian({ 3, 3 }, "float64"):cuda():requires_grad_()
    assert.is_true(moth.autograd.gradcheck(function(x) return L.eigvalsh(x:add(x.mT)) end, a))
    assert.is_true(moth.autograd.gradcheck(function(x) return L.solve(x, x:square()) end, a))
    assert.is_true(moth.autograd.gradcheck(L.svdvals, a))
  end)

  it("names the matrix that is wrong", function()
    if not there() then return end
    local bad = moth.eye(3):expand(4, 3, 3):clone():cuda()
    bad[{ 3, 2, 2 }] = -1
    fails("matrix 3 of the batch is not positive%-definite: its leading minor of order 2", L.cholesky, bad)
    bad[{ 3, 2, 2 }] = 0
    fails("matrix 3 of the batch is singular: U%[2, 2%] is 0", L.lu_factor, bad)
    local _, info = L.cholesky_ex(bad)
    assert.same({ 0, 0, 2, 0 }, info:totable())
    bad[{ 2, 1, 1 }] = 0 / 0
    fails("matrix 2 of the batch has elements that are infinite or NaN", L.eigh, bad)
    fails("matrix 2 of the batch has elements that are infinite or NaN", L.svdvals, bad)
    bad[{ 2, 1, 1 }], bad[{ 2, 1, 3 }] = 1, 0 / 0 -- not read by eigh
    assert.equal(1, L.eigvalsh(bad):max():item())
    fails("matrix 2 of the batch has not full rank: element 2 of its", L.lstsq,
      moth.tensor({ { { 1, 0 }, { 0, 1 }, { 1, 2 } }, { { 1, 2 }, { 0, 0 }, { 0, 0 } } }):cuda(),
      moth.ones({ 2, 3, 1 }, { device = "cuda" }), { driver = "gels" })
    fails("index 4 is out of range: expected 1 to 3", function()
      L.lu_solve(bad, moth.tensor({ 1, 4, 3 }, { dtype = "int32", device = "cuda" }):expand(4, 3), bad):cpu()
    end)
  end)

  if not emulated then return end
  it("is a call of the libraries, whose errors are raised", function()
    if not there() then return end
    local a, b = matrices({ 3, 3 }, "float64"):cuda(), matrices({ 2, 3, 3 }, "float64"):cuda()
    local good = a:matmul(a.mT)
    local lu, pivots = L.lu_factor(a)
    local q, tau = moth.geqrf(a)
    moth.cuda.synchronize()
    ffi.C.setenv("MOTH_EMU_CUSOLVER", "fail", 1)
    local ok, err = pcall(function()
      fails("cusolverDnXpotrf of cuSOLVER or cuBLAS: error", L.cholesky_ex, good)
      fails("potrf_batched", L.cholesky_ex, b:matmul(b.mT))
      fails("cusolverDnXgetrf", L.lu_factor_ex, a)
      fails("cusolverDnXgetrs", L.lu_solve, lu, pivots, a)
      fails("getrf_batched", L.lu_factor_ex, b)
      fails("cusolverDnXgeqrf", L.qr, a)
      fails("orgqr", L.householder_product, q, tau)
      fails("ormqr", moth.ormqr, q, tau, a)
      fails("cusolverDnXsyevd", L.eigh, a)
      fails("cusolverDnXsyevBatched", L.eigh, b)
      fails("cusolverDnXgeev", L.eig, a)
      fails("cusolverDnXgesvd", L.svd, a)
      fails("sytrf", L.ldl_factor_ex, good)
      fails("cusolverDnXsytrs", L.ldl_solve, lu, pivots, a)
      fails("cusolverDnXgeqrf", L.lstsq, a, a, { driver = "gels" })
      fails("trsm", L.solve_triangular, a, a, true)
    end)
    ffi.C.unsetenv "MOTH_EMU_CUSOLVER"
    assert.is_true(ok, err)
  end)
end)
