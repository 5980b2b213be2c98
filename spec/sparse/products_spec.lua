-- Products of sparse matrices: with dense ones, with each other, derivatives, threads; gradients of embeddings.
local moth = require "moth"
local nn = moth.nn
local function int(t) return moth.tensor(t, { dtype = moth.int64 }) end
local function close(a, b, e) assert.is_true(moth.allclose(a, b, e or 1e-5, e or 1e-6)) end

-- Places with duplicates, out of order, and an empty row.
local places, n, m = int { { 5, 1, 3, 1, 5, 3, 2, 1 }, { 4, 2, 1, 2, 4, 3, 4, 1 } }, 5, 4
local function matrix(values) return moth.sparse_coo_tensor(places, values, { n, m }) end

describe("products of sparse matrices #quick", function()
  it("are those of the dense ones: both sides, layouts, dtypes", function()
    for name in ("float32 float64 float16 bfloat16 int64 int32 complex64 complex128"):gmatch "%S+" do
      local dtype = moth[name]
      local half = name:find "16" ~= nil
      local function some(...)
        local x = (moth.randn(...) * 4):round()
        return dtype.is_complex and moth.complex(x, (moth.randn(...) * 4):round()):to(dtype) or x:to(dtype)
      end
      local s = matrix(some(8))
      local a = s:to_dense()
      for _, k in ipairs { 1, 3, 70, 0 } do
        local x, y = some(m, k), some(k, n)
        for _, t in ipairs { s, s:to_sparse_csr() } do
          close(moth.sparse.mm(t, x), a:mm(x), half and 0.02)
          close(moth.mm(y, t), y:mm(a), half and 0.02)
          assert.equal(dtype, t:mm(x):dtype())
        end
      end
      if not half then
        close(moth.sparse.mm(s, s:t()):to_dense(), a:mm(a.T))
        close(moth.matmul(s:to_sparse_csr(), some(m, 1):squeeze(2)):dim() == 1 and s:mm(a.T) or a, a:mm(a.T))
      end
    end
  end)

  it("come as mm, mv, matmul, addmm, sampled_addmm, linear, with what strides there are", function()
    local s = matrix(moth.randn(8))
    local a, x, b = s:to_dense(), moth.randn(3, m).T, moth.randn(n, 3)
    close(s:matmul(x), a:mm(x))
    close(moth.matmul(s, x:select(2, 1)), a:mv(x:select(2, 1)))
    close(moth.matmul(b:select(2, 1), s), a.T:mv(b:select(2, 1)))
    close(s:mv(x:select(2, 2)), a:mv(x:select(2, 2)))
    close(moth.addmm(b, s, x), b + a:mm(x))
    close(moth.sparse.addmm(b, s, x, { beta = 2, alpha = 3 }), b * 2 + a:mm(x) * 3)
    close(moth.sparse.addmm(moth.zeros(n, 2), moth.randn(n, 1) * 0, moth.zeros(1, 2):to_sparse()), moth.zeros(n, 2))
    local r = matrix(moth.tensor { 1, 2, 3, 4, 5, -6, 7, -8 }):coalesce() -- row 4 is empty
    local one = moth.tensor { { 1 }, { 10 }, { 100 }, { 1000 } }
    local function row(reduce) return moth.sparse.mm(r, one, reduce):squeeze(2):totable() end
    assert.same({ { 26, 7000, -298.5, 0, 6000 }, { 60, 7000, 3, 0, 6000 }, { -8, 7000, -600, 0, 6000 } },
      { row "mean", row "amax", row "amin" })
    local sampled = moth.sparse.sampled_addmm(s, b, x.T, { beta = 2, alpha = 3 })
    close(sampled:to_dense(), a * 2 + b:mm(x.T) * a:ne(0) * 3)
    local layer = nn.Linear(m, 6)
    close(layer(s), layer(a))
    close(s:mm(x:double()):float(), a:mm(x)) -- promoted
    local none = moth.zeros(n, m):to_sparse()
    close(none:mm(x), moth.zeros(n, 3))
    close(moth.zeros(0, m):to_sparse_csr():mm(x), moth.zeros(0, 3))
  end)

  it("have derivatives by both, the second ones, too", function()
    local o = { dtype = moth.float64, requires_grad = true }
    local v, x, y = moth.randn(8, o), moth.randn(m, 3, o), moth.randn(2, n, o)
    local check, again = moth.autograd.gradcheck, moth.autograd.gradgradcheck
    local function product(values, dense) return matrix(values):mm(dense) end
    assert.is_true(check(product, { v, x }) and again(product, { v, x }))
    assert.is_true(check(function(values, dense) return moth.mm(dense, matrix(values):to_sparse_csr()) end, { v, y }))
    local function square(values) return moth.sparse.mm(matrix(values), matrix(values):t()):to_dense() end
    assert.is_true(check(square, { v }))
    local function sampled(values, a, b) return moth.sparse.sampled_addmm(matrix(values), a, b):to_dense() end
    for _, reduce in ipairs { "mean", "amax", "amin" } do
      assert.is_true(check(function(values, dense) return moth.sparse.mm(matrix(values), dense, reduce) end, { v, x }))
    end
    local a, b = moth.randn(n, 2, o), moth.randn(2, m, o)
    assert.is_true(check(sampled, { v, a, b }) and again(sampled, { v, a, b }))
    assert.is_true(check(function(values) return moth.sparse.softmax(matrix(values), 2):to_dense() end, { v }))
    local function sums(values)
      local s = matrix(values)
      return (s * s:t():t() + s):sum(1):to_dense()
    end
    assert.is_true(check(sums, { v }))
    local c = { dtype = moth.complex128, requires_grad = true }
    assert.is_true(check(product, { moth.randn(8, c), moth.randn(m, 2, c) }))
    local s = matrix(moth.ones(8)):requires_grad_()
    s:mm(moth.ones(m, 2)):sum():backward()
    assert.is_true(moth.equal(s.grad:values(), moth.ones(8) * 2))
  end)

  it("have the same bits for any number of threads", function()
    local threads = moth.get_num_threads()
    local rows = moth.randint(1, 400, { 20000 }):to(moth.int64)
    rows[{ { 1, 5000 } }] = 7 -- one long row
    local at = moth.stack({ rows, moth.randint(1, 300, { 20000 }):to(moth.int64) }, 1)
    local values, x = moth.randn(20000, { requires_grad = true }), moth.randn(300, 24, { requires_grad = true })
    local seen = {}
    for i, count in ipairs { 1, 2, 5 } do
      moth.set_num_threads(count)
      local y = moth.sparse_coo_tensor(at, values, { 400, 300 }):mm(x)
      local grads = moth.autograd.grad(y:square():sum(), { values, x })
      seen[i] = { y, grads[1], grads[2] }
    end
    moth.set_num_threads(threads)
    for i = 2, 3 do for k = 1, 3 do assert.is_true(moth.equal(seen[1][k], seen[i][k])) end end
  end)

  it("say which shapes do not fit", function()
    local s = matrix(moth.ones(8))
    assert.error_matches(function() s:mm(moth.ones(3, 2)) end, "%[mm%].*%[5, 4%] cannot be multiplied by .*%[3, 2%]")
    assert.error_matches(function() moth.mm(moth.ones(3, 2), s) end, "%[mm%].*%[3, 2%] cpu cannot be multiplied")
    assert.error_matches(function() moth.sparse.mm(s, s) end, "%[5, 4%] and %[5, 4%]")
    assert.error_matches(function() moth.sparse.mm(moth.ones(2, 2), moth.ones(2, 2)) end, "expected a sparse tensor")
    assert.error_matches(function() s:mm(moth.ones(4)) end, "mm")
    local falling = moth.sparse_csr_tensor(int { 1, 3, 2, 3 }, int { 1, 2 }, moth.ones(2), { 3, 2 },
      { check_invariants = false })
    assert.error_matches(function() falling:mm(moth.ones(2, 1)) end, "crow must rise from 1 to 3")
    local bad = moth.sparse_coo_tensor(int { { 1 }, { 9 } }, moth.ones(1), { 2, 2 }, { check_invariants = false })
    assert.error_matches(function() bad:mm(moth.ones(2, 1)) end, "9 is out of range")
  end)
end)

describe("gradients that are sparse #quick", function()
  it("of embeddings and bags are sparse tensors, which can be scaled, set and added", function()
    local e = nn.Embedding(6, 2, { sparse = true })
    e(int { 2, 5, 2 }):sum():backward()
    local g = e.weight.grad
    assert.same({ moth.sparse_coo, 3, 1, 1 }, { g:layout(), g:nnz(), g:sparse_dim(), g:dense_dim() })
    e.weight.grad = (g * 2):coalesce()
    assert.same({ { 2, 5 } }, e.weight.grad:indices():totable())
    local before = e.weight:detach():clone()
    moth.optim.SGD(e:parameters(), { lr = 0.5 }):step()
    close(e.weight, before - g:to_dense())
    e.weight.grad = nil
    assert.is_nil(e.weight.grad)
    local bag = nn.EmbeddingBag(6, 2, { mode = "sum", sparse = true })
    bag(int { { 1, 2 }, { 2, 2 } }):sum():backward()
    assert.same({ 1, 3, 0, 0, 0, 0 }, bag.weight.grad:to_dense():select(2, 1):totable())
    assert.error_matches(function() e.weight.grad = moth.eye(3):to_sparse() end, "%[6, 2%].*%[3, 3%]")
  end)
end)
