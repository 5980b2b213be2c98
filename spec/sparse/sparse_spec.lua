-- Sparse tensors: what they are, conversions, arithmetic, shapes, errors. Products: products_spec.lua.
local moth = require "moth"
local function int(t) return moth.tensor(t, { dtype = moth.int64 }) end
local function same(a, b) assert.is_true(moth.equal(a, b)) end
local function close(a, b) assert.is_true(moth.allclose(a, b, 1e-5, 1e-6)) end

-- Duplicates, out of order: { {0, 5}, {0, 0}, {8, 0} }.
local function example(options) return moth.sparse_coo_tensor(int { { 3, 1, 3 }, { 1, 2, 1 } }, moth.tensor { 7, 5, 1 },
  { 3, 2 }, options) end
-- A random one with two elements of three left out.
local function random(size, sparse_dim)
  local x = moth.randn(size, { dtype = moth.float64 })
  return (x * moth.rand(size):lt(0.33)):to_sparse(sparse_dim)
end

describe("a sparse tensor #quick", function()
  it("knows its parts and its kind", function()
    local s = example()
    assert.same({ 3, 2 }, { unpack(s:size()) })
    assert.same({ 3, 2, 2, 6, 3, 2, 0 }, { s:size(1), s:size(-1), s:dim(), s:numel(), s:nnz(), s:sparse_dim(),
      s:dense_dim() })
    assert.same({ moth.sparse_coo, moth.strided }, { s:layout(), moth.ones(2):layout() })
    assert.is_true(s:is_sparse() and moth.sparse.is_sparse(s) and not moth.ones(2):is_sparse())
    assert.is_false(s:is_coalesced())
    same(moth.tensor { { 0, 5 }, { 0, 0 }, { 8, 0 } }, s:to_dense())
    local c = s:coalesce()
    assert.same({ { { 1, 3 }, { 2, 1 } }, { 5, 8 } }, { c:indices():totable(), c:values():totable() })
    assert.is_true(c:is_coalesced() and c:coalesce() == c)
    local r = s:to_sparse_csr()
    assert.same({ { 1, 2, 2, 3 }, { 2, 1 }, { 5, 8 } }, { r:crow_indices():totable(), r:col_indices():totable(),
      r:values():totable() })
    assert.is_true(r:is_sparse_csr() and r:layout() == moth.sparse_csr)
    same(s:to_dense(), r:to_sparse_coo():to_dense())
    assert.matches("indices = %[%[1, 3%],\n +%[2, 1%]%]\nvalues = %[5., 8.%]\n%[moth.float32 3x2, cpu, sparse COO",
      tostring(c))
    assert.matches("crow_indices = .*sparse CSR, nnz = 2%]", tostring(r))
  end)

  it("is made of a dense one and becomes one, with dense dimensions, empty ones, of all dtypes", function()
    for _, case in ipairs { { { 3, 4 } }, { { 3, 4, 2 }, 1 }, { { 3, 4, 2 }, 2 }, { { 5 } }, { { 0, 3 } },
      { { 2, 0, 3 }, 1 } } do
      local s = random(case[1], case[2])
      assert.same({ case[2] or #case[1], true }, { s:sparse_dim(), s:is_coalesced() })
      same(s:to_dense(), moth.sparse_coo_tensor(s:indices(), s:values(), case[1]):to_dense())
    end
    local none = moth.sparse_coo_tensor(moth.zeros({ 2, 0 }, { dtype = moth.int64 }), moth.zeros(0), { 4, 3 })
    same(moth.zeros(4, 3), none:coalesce():to_dense())
    same(moth.zeros(4, 3), none:to_sparse_csr():to_dense())
    for name in ("float64 float16 bfloat16 int8 uint8 int32 int64 complex64 complex128"):gmatch "%S+" do
      local s = example():to(moth[name])
      assert.equal(moth[name], s:coalesce():to_dense():dtype())
      same(moth.tensor { { 0, 5 }, { 0, 0 }, { 8, 0 } }, s:to_dense():to(moth.float32))
    end
    assert.same({ 3, 2 }, { unpack(moth.sparse_coo_tensor(int { { 3, 1 }, { 1, 2 } }, moth.ones(2)):size()) })
    same(example():to_dense(), example():to_dense():to_sparse { layout = moth.sparse_csr }:to_dense())
    same(moth.tensor { { 0, 1 }, { 0, 0 }, { 1, 0 } }, moth.ones(3, 2):sparse_mask(example()):to_dense())
  end)

  it("is added, multiplied, divided, negated: as the dense one", function()
    local a, b = random({ 4, 5 }), random({ 4, 5 })
    local x, y = a:to_dense(), b:to_dense()
    local d = moth.randn(4, 5, { dtype = moth.float64 })
    for _, f in ipairs {
      function(p, q) return p + q end, function(p, q) return p - q end, function(p, q) return p * q end,
      function(p) return p * 3 end, function(p) return 3 * p end, function(p) return p / 4 end,
      function(p) return -p end, function(p) return p * d end, function(p) return d * p end,
      function(p) return p / d end, function(p) return p + d end, function(p) return d - p end,
      function(p) return p * d[1] end, function(p) return p ^ 2 end,
      function(p, q) return p:add(q, 2) end,
      function(p, q) return moth.sub(p, q) end, function(p) return moth.sin(p) end,
      function(p) return p:abs():sqrt() end,
    } do
      for _, layout in ipairs { "to_sparse_coo", "to_sparse_csr" } do
        close(f(a[layout](a), b[layout](b)):to_dense(), f(x, y))
      end
    end
    local y2 = d:clone()
    assert.equal(y2, y2:add_(a, 2))
    close(y2, d + x * 2)
    close((example() + example()):coalesce():to_dense(), example():to_dense() * 2)
    close(example():abs():to_dense(), example():to_dense()) -- of sums, not of what is added up
    close((a * moth.tensor(2)):to_dense(), x * 2)
    local z = a:to(moth.complex128) * moth.complex(1, 2)
    close(moth.real(z):to_dense(), x)
    close(moth.imag(z):to_dense(), x * 2)
  end)

  it("is transposed, indexed, cut and joined", function()
    local s, t = random({ 4, 3, 2 }), random({ 4, 3, 2 }, 2)
    for _, a in ipairs { s, t } do
      local x = a:to_dense()
      close(a:transpose(1, 2):to_dense(), x:transpose(1, 2))
      close(a[2]:to_dense(), x[2])
      close(a[-1]:to_dense(), x[-1])
      close(a[{ {}, 2 }]:to_dense(), x[{ {}, 2 }])
      close(a[{ { 2, 3 } }]:to_dense(), x[{ { 2, 3 } }])
      close(a[{ {}, {}, 1 }]:to_dense(), x[{ {}, {}, 1 }])
      close(a[{ 3, 2 }]:to_dense(), x[{ 3, 2 }])
      close(a[{ 3, 2, 1 }], x[{ 3, 2, 1 }])
      close(a[int { 4, 1, 1 }]:to_dense(), x[int { 4, 1, 1 }])
      close(a:index_select(2, int { 3, 1 }):to_dense(), x:index_select(2, int { 3, 1 }))
      for dim = 1, 3 do
        close(moth.cat({ a, a }, dim):to_dense(), moth.cat({ x, x }, dim))
        close(a:sum(dim):to_dense(), x:sum(dim))
        close(a:narrow(dim, 1, 2):to_dense(), x:narrow(dim, 1, 2))
      end
      close(a:sum(), x:sum())
      close(a:sum { 1, 2 }:to_dense(), x:sum { 1, 2 })
      close(a:norm(), x:norm())
    end
    local m = random({ 4, 3 })
    close(m.T:to_dense(), m:to_dense().T)
    close(m:to_sparse_csr():t():to_dense(), m:to_dense().T)
    close(m:to_sparse_csr()[{ { 2, 4 } }]:to_dense(), m:to_dense()[{ { 2, 4 } }])
  end)

  it("has softmax over what is there", function()
    local s = moth.sparse_coo_tensor(int { { 1, 1, 2, 2 }, { 1, 3, 2, 3 } }, moth.tensor { 1, 2, -1, 900 }, { 2, 3 })
    local x = moth.where(s:to_dense():eq(0), -math.huge, s:to_dense())
    for dim = 1, 2 do
      close(moth.sparse.softmax(s, dim):to_dense(), x:softmax(dim))
      close(moth.sparse.log_softmax(s:to_sparse_csr(), dim):values():exp(), moth.sparse.softmax(s, dim):values())
    end
  end)

  it("is saved and loaded, with plain tables and tensors beside it", function()
    local path = os.tmpname()
    local s = example { requires_grad = true }
    moth.save({ s = s, r = s:to_sparse_csr():detach(), x = moth.ones(2) }, path)
    local back = moth.load(path)
    os.remove(path)
    assert.equal(tostring(s), tostring(back.s))
    assert.equal(tostring(s:to_sparse_csr():detach()), tostring(back.r))
    assert.is_true(back.s:requires_grad() and back.r:is_sparse_csr())
  end)

  it("says what it cannot do", function()
    local s = example()
    local function fails(pattern, f, ...)
      local ok, message = pcall(f, ...)
      assert.is_false(ok)
      assert.matches(pattern, message)
      assert.matches("^[^\n]*sparse_spec.lua:%d+: ", message) -- at the user's line
    end
    fails("%[gelu%] takes no sparse tensor; use s:to_dense%(%)", function() moth.gelu(s) end)
    fails("%[gelu%] takes no sparse tensor; use s:to_dense%(%):gelu", function() s:gelu() end)
    fails("%[pad%].*to_dense", function() moth.pad(s, { 1, 1 }) end)
    fails("SparseTensor; use its to_dense", function() moth.nn.functional.gelu(s) end)
    fails("%[stack%] takes no sparse", function() moth.stack { s, s } end)
    fails("a number make a dense one", function() return s + 1 end)
    fails("cannot be a divisor", function() return 1 / s end)
    fails("the sizes are %[3, 2%] and %[2, 2%]", function() return s + moth.eye(2):to_sparse() end)
    fails("cannot be set", function() s[1] = 0 end)
    fails("did you mean 'values'", function() s:value() end)
    fails("it has crow_indices", function() s:to_sparse_csr():indices() end)
    fails("use to_sparse_csr", function() s:crow_indices() end)
    fails("out of range", function() return s[4] end)
    fails("positions from 1 to 3, got 4", function() moth.sparse_coo_tensor(int { { 4 } }, moth.ones(1), { 3 }) end)
    fails("must be integers", function() moth.sparse_coo_tensor(moth.ones(1, 1), moth.ones(1), { 3 }) end)
    fails("indices have 2 positions", function() moth.sparse_coo_tensor(int { { 1, 2 } }, moth.ones(3)) end)
    fails("must rise from 1", function() moth.sparse_csr_tensor(int { 1, 3, 2 }, int { 1 }, moth.ones(1)) end)
    fails("each once", function() moth.sparse_csr_tensor(int { 1, 3 }, int { 2, 1 }, moth.ones(2)) end)
    fails("expected a matrix", function() moth.ones(2):to_sparse_csr() end)
  end)
end)
