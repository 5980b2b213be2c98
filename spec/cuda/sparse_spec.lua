-- Sparse tensors on CUDA: as on the CPU.
local moth = require "moth"
local function int(t) return moth.tensor(t, { dtype = moth.int64 }) end
local function close(a, b, e) assert.is_true(moth.allclose(a:cpu(), b, e or 1e-5, e or 1e-5)) end

describe("sparse tensors on CUDA", function()
  it("have the products, gradients, sums and parts of the CPU", function()
    for name in ("float32 float64 float16 complex64 int32"):gmatch "%S+" do
      local dtype = moth[name]
      local values = (moth.randn(8) * 4):round():to(dtype)
      local s = moth.sparse_coo_tensor(int { { 5, 1, 3, 1, 5, 3, 2, 1 }, { 4, 2, 1, 2, 4, 3, 4, 1 } }, values, { 5, 4 })
      local d = s:cuda()
      assert.equal("cuda", d:device().type)
      local x = (moth.randn(4, 3) * 4):round():to(dtype)
      close(moth.sparse.mm(d, x:cuda()), s:mm(x))
      close(d:to_sparse_csr():to_dense(), s:to_dense())
      close((d + d * 2):to_dense(), s:to_dense() * 3)
      close(d:t():sum(1):to_dense(), s:t():sum(1):to_dense())
      close(d[1]:to_dense(), s[1]:to_dense())
      close(d:cpu():to_dense(), s:to_dense())
      if dtype.is_floating_point or dtype.is_complex then
        local v, w = values:clone():requires_grad_(true), values:cuda():requires_grad_(true)
        local y, z = x:clone():requires_grad_(true), x:cuda():requires_grad_(true)
        local one = moth.ones({}, { dtype = dtype })
        moth.sparse.mm(moth.sparse_coo_tensor(s:indices(), v, { 5, 4 }), y):sum():backward(one)
        moth.sparse.mm(moth.sparse_coo_tensor(d:indices(), w, { 5, 4 }), z):sum():backward(one:cuda())
        close(w.grad, v.grad)
        close(z.grad, y.grad)
      end
    end
  end)

  it("are gradients of embeddings", function()
    local e = moth.nn.Embedding(6, 2, { sparse = true }):cuda()
    e(int({ 2, 5, 2 }):cuda()):sum():backward()
    close(e.weight.grad:coalesce():values(), moth.tensor { { 2, 2 }, { 1, 1 } })
    moth.optim.SparseAdam(e:parameters(), { lr = 0.5 }):step()
  end)
end)
