-- The dtypes of results under autocast, of the ops on PyTorch's lists: those of its CPU (bfloat16), and of CUDA where a
-- list there has more (addmv, addr, mv, cells of recurrent layers).
local moth = require "moth"
local F, nn, L = moth.nn.functional, moth.nn, moth.linalg

local function r(...) return moth.randn(...) end
local function h(...) return moth.randn(...):to(moth.bfloat16) end
local function check(wanted, cases)
  for name, f in pairs(cases) do
    local ok, y = pcall(moth.autocast, "cpu", f)
    assert.is_true(ok, name .. ": " .. tostring(y))
    assert.equal(wanted, y:dtype(), name)
  end
end

describe("autocast #quick", function()
  local m, v, b = r(3, 3), r(3), r(2, 3, 3)
  local half, low, row = m:to(moth.bfloat16), b:to(moth.bfloat16), v:to(moth.bfloat16)
  local spd = (m:matmul(m:t()) + moth.eye(3)):to(moth.bfloat16)
  local ids = moth.tensor { 1, 2, 3 }:long()

  it("products, convolutions and recurrent layers are in the lower dtype", function()
    local q, image, kernel = r(1, 2, 3, 4), r(1, 1, 4, 4), r(1, 1, 2, 2)
    check(moth.bfloat16, {
      mm = function() return m:mm(m) end,
      matmul = function() return m:matmul(m) end,
      of_vectors = function() return v:matmul(v) end,
      mv = function() return m:mv(v) end,
      addmv = function() return moth.addmv(v, m, v) end,
      addr = function() return moth.addr(m, v, v) end,
      addmm = function() return moth.addmm(m, m, m) end,
      mixed = function() return moth.addmm(m, half, m) end,
      addbmm = function() return moth.addbmm(m, b, b) end,
      baddbmm = function() return moth.baddbmm(b, b, b) end,
      bmm = function() return b:bmm(b) end,
      linear = function() return F.linear(m, m, v) end,
      prelu = function() return F.prelu(m, r(1)) end,
      vecdot = function() return L.vecdot(m, m) end,
      multi_dot = function() return L.multi_dot { m, m, m } end,
      einsum = function() return moth.einsum("ij,jk->ik", m, m) end,
      tensordot = function() return moth.tensordot(m, m, 1) end,
      attention = function() return F.scaled_dot_product_attention(q, q, q) end,
      conv1d = function() return F.conv1d(r(1, 1, 4), r(1, 1, 2)) end,
      conv2d = function() return F.conv2d(image, kernel) end,
      conv3d = function() return F.conv3d(r(1, 1, 4, 4, 4), r(1, 1, 2, 2, 2)) end,
      conv_transpose2d = function() return F.conv_transpose2d(image, kernel) end,
      LSTMCell = function() return (nn.LSTMCell(3, 2)(m)) end,
      GRUCell = function() return (nn.GRUCell(3, 2)(m)) end,
      RNNCell = function() return (nn.RNNCell(3, 2)(m)) end,
      LSTM = function() return (nn.LSTM(3, 2)(b)) end,
      bidirectional = function() return (nn.LSTM(3, 2, { bidirectional = true })(b)) end,
      projected = function() return (nn.LSTM(3, 4, { proj_size = 2 })(b)) end,
      cells = function() return select(2, nn.LSTM(3, 2)(b))[2] end,
      GRU = function() return (nn.GRU(3, 2)(b)) end,
      RNN = function() return (nn.RNN(3, 2)(b)) end,
    })
  end)

  it("their gradients reach float32 weights", function()
    for _, cell in ipairs { nn.LSTMCell(3, 2), nn.GRUCell(3, 2), nn.LSTM(3, 2), nn.GRU(3, 2), nn.PReLU() } do
      local y = moth.autocast("cpu", function() return (cell(cell:is_a(nn.LSTM) and b or m)) end)
      y:float():sum():backward()
      for name, p in cell:named_parameters() do assert.equal(moth.float32, p.grad:dtype(), name) end
    end
  end)

  it("losses, factorizations, pools of volumes and samplings of images are in float32", function()
    local y, image, volume = half:sign(), h(1, 1, 4, 4), h(1, 1, 4, 4, 4)
    check(moth.float32, {
      avg_pool3d = function() return F.avg_pool3d(volume, 2) end,
      max_pool3d = function() return F.max_pool3d(volume, 2) end,
      adaptive_avg_pool3d = function() return F.adaptive_avg_pool3d(volume, 2) end,
      adaptive_max_pool3d = function() return (F.adaptive_max_pool3d(volume, 2)) end,
      max_unpool2d = function()
        local x, i = F.max_pool2d(image, 2, { return_indices = true })
        return F.max_unpool2d(x, i, 2)
      end,
      fractional = function() return (F.fractional_max_pool2d(image, 2, { output_size = 2 })) end,
      grid_sample = function() return F.grid_sample(image, h(1, 2, 2, 2)) end,
      prod = function() return half:prod() end,
      quantile = function() return half:quantile(0.5) end,
      nanquantile = function() return half:nanquantile(0.5) end,
      cdist = function() return moth.cdist(half, half) end,
      trace = function() return half:trace() end,
      cholesky = function() return L.cholesky(spd) end,
      inv = function() return L.inv(spd) end,
      pinv = function() return L.pinv(spd) end,
      solve = function() return L.solve(spd, half) end,
      lstsq = function() return (L.lstsq(spd, half)) end,
      svdvals = function() return L.svdvals(spd) end,
      eigvalsh = function() return L.eigvalsh(spd) end,
      qr = function() return (L.qr(spd)) end,
      det = function() return L.det(spd) end,
      cond = function() return L.cond(spd) end,
      householder = function() return L.householder_product(half, row) end,
      geqrf = function() return (moth.geqrf(spd)) end,
      triangular_solve = function() return (moth.triangular_solve(half, spd)) end,
      cholesky_solve = function() return moth.cholesky_solve(half, spd) end,
      tensorinv = function() return L.tensorinv(h(2, 3, 6), 2) end,
      hfft = function() return moth.fft.hfft(row) end,
      fake_quantize = function() return moth.fake_quantize_per_tensor_affine(half, 0.1, 0, 0, 255) end,
      mse = function() return F.mse_loss(half, half) end,
      l1 = function() return F.l1_loss(half, half) end,
      smooth_l1 = function() return F.smooth_l1_loss(half, half) end,
      huber = function() return F.huber_loss(half, half) end,
      nll = function() return F.nll_loss(half, ids) end,
      cross_entropy = function() return F.cross_entropy(half, ids) end,
      cosine = function() return F.cosine_embedding_loss(half, half, y[1]) end,
      hinge = function() return F.hinge_embedding_loss(half, y) end,
      poisson = function() return F.poisson_nll_loss(half, half) end,
      margin = function() return F.margin_ranking_loss(half, half, y) end,
      soft_margin = function() return F.soft_margin_loss(half, y) end,
      triplet = function() return F.triplet_margin_loss(half, half, half) end,
      multi_margin = function() return F.multi_margin_loss(half, ids) end,
      kl = function() return F.kl_div(half, half:softmax(1)) end,
      bce = function() return F.binary_cross_entropy_with_logits(half, half:sigmoid()) end,
    })
    check(moth.complex64, {
      fft = function() return moth.fft.fft(row) end,
      rfft = function() return moth.fft.rfft(row) end,
      fft2 = function() return moth.fft.fft2(half) end,
      polar = function() return moth.polar(row, row) end,
      view_as_complex = function() return moth.view_as_complex(h(3, 2)) end,
      eigvals = function() return L.eigvals(spd) end,
    })
    assert.has_error(function() moth.fft.fft(row) end) -- outside of autocast it is refused, as in PyTorch
  end)

  it("the widest dtype counts where several tensors are joined", function()
    check(moth.float32, {
      cat = function() return moth.cat { m, half } end,
      stack = function() return moth.stack { m, half } end,
      index_copy = function() return m:index_copy(1, ids, half) end,
      into_low = function() return half:index_copy(1, ids, m) end,
      scatter_add = function() return half:scatter_add(1, moth.ones(3, 3):long(), m) end,
      cross = function() return moth.cross(m, half, 1) end,
      atan2 = function() return moth.atan2(m, half) end,
      addcmul = function() return moth.addcmul(m, half, half) end,
      dot = function() return v:dot(row) end,
    })
    check(moth.bfloat16, { index_copy = function() return half:index_copy(1, ids, half) end,
      cat = function() return moth.cat { half, half } end })
    assert.equal(moth.bfloat16, low:bmm(low):dtype())
  end)
end)
