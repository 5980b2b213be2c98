-- moth.fft against sums in float64, for lengths of every kind: stages of each radix, Bluestein's, four steps.
local moth = require "moth"
local fft = require "moth.fft"

local f64, c128 = moth.float64, moth.complex128
local function near(a, b, tol)
  assert.equal(tostring(b:size()), tostring(a:size()))
  assert.equal(b:dtype(), a:dtype())
  local error = (a - b):abs():max():item()
  assert.is_true(error <= (tol or 1e-12) * (1 + b:abs():max():item()), ("off by %g"):format(error))
end
local function z(...) return moth.randn({ ... }, { dtype = c128 }) end

-- The matrix of a transform of n elements; sign -1 forward.
local function matrix(n, sign)
  local k = moth.arange(n):double()
  local angle = (moth.outer(k, k) % n) * (sign * 2 * math.pi / n)
  return moth.polar(moth.ones_like(angle), angle)
end

describe("a transform", function()
  it("is the sum of its definition, for lengths of every kind", function()
    for _, n in ipairs { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 19, 22, 26, 31, 32, 34, 60, 64, 77, 97,
      100, 101, 128, 143, 210, 256, 289, 360 } do
      local x = z(3, n)
      local want = x:mm(matrix(n, -1))
      near(fft.fft(x), want, 1e-13 * n)
      near(fft.ifft(x), x:mm(matrix(n, 1)) / n, 1e-13 * n)
      near(fft.fft(x:cfloat()), want:cfloat(), 2e-6)
      local r = moth.real(x):clone()
      near(fft.rfft(r), fft.fft(r):narrow(2, 1, math.floor(n / 2) + 1), 1e-13 * n)
      near(fft.irfft(fft.rfft(r), n), r, 1e-13 * n)
      near(fft.irfft(fft.rfft(r:float()), n), r:float(), 2e-6)
      near(fft.hfft(x:narrow(2, 1, math.floor(n / 2) + 1), n),
        fft.irfft(x:narrow(2, 1, math.floor(n / 2) + 1):conj(), n) * n, 1e-13 * n)
      near(fft.ihfft(r), fft.rfft(r):conj() / n, 1e-13)
    end
  end)

  it("of long lines goes in four steps, and of many lines side by side", function()
    for _, n in ipairs { 720, 1024, 4096, 5000, 8192, 10007 } do
      local x = z(2, n)
      local y = fft.fft(x)
      near(fft.ifft(y), x, 1e-13)
      for _, k in ipairs { 1, 2, 77, n } do -- some of the sums
        local angle = (moth.arange(n):double() * (k - 1) % n) * (-2 * math.pi / n)
        local sum = (x * moth.polar(moth.ones_like(angle), angle)):sum(2)
        near(y:select(2, k), sum, 1e-11)
      end
      local r = moth.real(x):clone()
      near(fft.rfft(r), fft.fft(r):narrow(2, 1, math.floor(n / 2) + 1), 1e-12)
      near(fft.irfft(fft.rfft(r), n), r, 1e-12)
    end
    for _, n in ipairs { 127, 251, 254, 257, 509, 1009 } do -- of which a real transform makes the first half
      local r = moth.randn({ 19, n }, { dtype = f64 })
      near(fft.rfft(r), fft.fft(r):narrow(2, 1, math.floor(n / 2) + 1), 1e-13 * n)
      near(fft.rfft(r:float()), fft.rfft(r):cfloat(), 4e-6)
      near(fft.fft(r), fft.fft(moth.complex(r, moth.zeros_like(r))), 1e-13 * n)
    end
    local x = z(37, 48)
    near(fft.fft(x), moth.cat({ fft.fft(x:narrow(1, 1, 5)), fft.fft(x:narrow(1, 6, 32)) }, 1), 1e-14)
  end)

  it("of real tensors is that of complex ones, in all dimensions and its derivative", function()
    for _, size in ipairs { { 1 }, { 2 }, { 3, 5 }, { 4, 6 }, { 5, 1, 4 }, { 2, 3, 7 } } do
      local x = moth.randn(size, { dtype = moth.float64 })
      local c = x:cdouble()
      near(fft.fftn(x), fft.fftn(c), 1e-13)
      for d = 1, #size do near(fft.fft(x, nil, d), fft.fft(c, nil, d), 1e-13) end
      near(fft.fftn(x:permute(unpack(moth.arange(#size, 0, -1):tolist()))),
        fft.fftn(c:permute(unpack(moth.arange(#size, 0, -1):tolist()))), 1e-13)
      x:requires_grad_()
      c:requires_grad_()
      local g = z(unpack(size))
      near(moth.autograd.grad(fft.fftn(x), { x }, g), moth.real(moth.autograd.grad(fft.fftn(c), { c }, g)), 1e-13)
    end
  end)

  it("goes along any dimension of any layout", function()
    local x = z(6, 5, 8)
    near(fft.fft(x, { dim = 1 }), fft.fft(x:transpose(1, 3)):transpose(1, 3))
    near(fft.fft(x, { dim = 2 }), fft.fft(x:transpose(2, 3):contiguous()):transpose(2, 3))
    near(fft.rfft(moth.real(x), { dim = 2 }), fft.rfft(moth.real(x):clone():transpose(2, 3)):transpose(2, 3))
    near(fft.fftn(x), fft.fft(fft.fft(fft.fft(x), { dim = 2 }), { dim = 1 }))
    near(fft.fft2(x), fft.fftn(x, { dim = { 2, 3 } }))
    near(fft.ifftn(fft.fftn(x)), x)
    local r = moth.real(x):clone()
    near(fft.rfftn(r), fft.fftn(r):narrow(3, 1, 5))
    near(fft.irfftn(fft.rfftn(r), { 6, 5, 8 }), r)
    near(fft.irfft2(fft.rfft2(r), { 5, 8 }), r)
    near(fft.ihfftn(r), fft.rfftn(r):conj() / 240)
    near(fft.hfft2(fft.ihfft2(r), { 5, 8 }), r)
    near(fft.fft(x[{ {}, {}, { 1, 8, 3 } }]), fft.fft(x[{ {}, {}, { 1, 8, 3 } }]:contiguous()))
    assert.equal("[0, 4]", tostring(fft.fft(z(0, 4)):size()))
  end)

  it("takes sizes, norms and dtypes as PyTorch does", function()
    local x = z(4)
    near(fft.fft(x, 6), fft.fft(moth.cat({ x, moth.zeros({ 2 }, { dtype = c128 }) }, 1)))
    near(fft.fft(x, 3), fft.fft(x:narrow(1, 1, 3)))
    near(fft.fft(x, { norm = "ortho" }), fft.fft(x) / 2)
    near(fft.fft(x, { norm = "forward" }), fft.fft(x) / 4)
    near(fft.ifft(x, { norm = "forward" }), fft.ifft(x) * 4)
    near(fft.ifft(fft.fft(x, { norm = "ortho" }), { norm = "ortho" }), x)
    assert.equal(moth.complex64, fft.fft(moth.arange(4)):dtype())
    assert.equal(moth.float32, fft.irfft(moth.ones(3)):dtype())
    local out = moth.empty({ 4 }, { dtype = c128 })
    fft.fft(x, { out = out })
    near(out, fft.fft(x))
    assert.error_matches(function() fft.rfft(x) end, "real tensor, got complex128")
    assert.error_matches(function() fft.fft(moth.ones(2):half()) end, "float16")
    assert.error_matches(function() fft.fft(x, { dim = 2 }) end, "out of range")
    assert.error_matches(function() fft.fftn(x, { 2, 2 }) end, "s has 2 sizes")
    assert.error_matches(function() fft.fft(moth.zeros(0)) end, "at least 1")
    assert.error_matches(function() fft.fft(x, { norm = "orto" }) end, "norm")
  end)

  it("has frequencies", function()
    assert.same({ 0, 0.5, -1, -0.5 }, fft.fftfreq(4, 0.5):totable())
    assert.same({ 0, 0.25, 0.5, -0.5, -0.25 }, (fft.fftfreq(5) * 1.25):totable())
    assert.same({ 0, 0.25, 0.5 }, fft.rfftfreq(4):totable())
    local x = moth.arange(12):view(3, 4)
    assert.is_true(fft.ifftshift(fft.fftshift(x)):equal(x))
    assert.same({ 3, 4, 0, 1, 2 }, fft.fftshift(moth.arange(5)):totable())
    assert.same({ 2, 3, 0, 1 }, fft.fftshift(x, 2)[1]:totable())
  end)

  it("has first and second derivatives", function()
    local function check(fn, ...)
      assert.is_true(moth.autograd.gradcheck(fn, { ... }))
      assert.is_true(moth.autograd.gradgradcheck(fn, { ... }))
    end
    for _, n in ipairs { 4, 5 } do
      local x, r = z(2, n):requires_grad_(true), moth.randn({ 2, n }, { dtype = f64 }):requires_grad_(true)
      for _, name in ipairs { "fft", "ifft", "hfft" } do check(function(t) return fft[name](t) end, x) end
      for _, name in ipairs { "rfft", "ihfft", "fft" } do check(function(t) return fft[name](t) end, r) end
      check(function(t) return fft.irfft(t, n + 1) end, x)
    end
    check(function(t) return fft.rfftn(t) end, moth.randn({ 2, 3 }, { dtype = f64 }):requires_grad_(true))
    check(function(t) return fft.irfftn(t) end, z(2, 3):requires_grad_(true))
  end)
end)

describe("stft", function()
  it("is the transform of windowed frames, and istft gives the signal back", function()
    local x = moth.randn({ 2, 100 }, { dtype = f64 })
    local w = moth.hann_window(16, { dtype = f64 })
    local y = moth.stft(x, 16, { hop_length = 4, window = w })
    assert.equal("[2, 9, 26]", tostring(y:size()))
    near(y:select(3, 5), fft.rfft(x:narrow(2, 9, 16) * w))
    near(moth.istft(y, 16, { hop_length = 4, window = w, length = 100 }), x)
    local o = { win_length = 15, normalized = true }
    near(moth.istft(moth.stft(x[1], 20, o), 20, o), x[1])
    local c = z(64)
    local spectra = moth.stft(c, 16, { center = false, window = moth.hamming_window(16, { dtype = f64 }) })
    assert.equal("[16, 13]", tostring(spectra:size()))
    near(moth.istft(spectra, 16, { center = false, window = moth.hamming_window(16, { dtype = f64 }), onesided = false,
      return_complex = true }), c)
    assert.error_matches(function() moth.stft(x, 300) end, "reflecting")
    assert.error_matches(function() moth.istft(moth.stft(x, 16, { hop_length = 16, window = w, center = false }), 16,
      { hop_length = 16, window = w, center = false }) end, "overlap")
  end)

  it("has windows of one period", function()
    assert.same({ 0, 0.5, 1, 0.5 }, moth.hann_window(4, { dtype = f64 }):round { decimals = 12 }:totable())
    assert.same({ 0, 0.5, 1, 0.5 }, moth.bartlett_window(4, { dtype = f64 }):totable())
    near(moth.hann_window(5, false), moth.signal.windows.hann(5), 1e-6)
    near(moth.kaiser_window(6, true, 8), moth.signal.windows.kaiser(6, { beta = 8, sym = false }), 1e-6)
    assert.equal("[7]", tostring(moth.blackman_window(7):size()))
  end)
end)
