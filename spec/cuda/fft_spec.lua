-- Fourier transforms on CUDA beside the CPU's: by cuFFT, of which the emulation has one that is strict about what it
-- gets.
local ffi = require "ffi"
local fails = require "fails"
local moth = require "moth"
local fft = require "moth.fft"
ffi.cdef "int setenv(const char *name, const char *value, int overwrite); int unsetenv(const char *name);"

local emulated = os.getenv("MOTH_CUDA") == "emu"
local function there() return moth.cuda.is_available() or pending(moth.cuda.why()) end

local function same(f, x)
  local there_x = x:cuda()
  local before = there_x:clone()
  local want, got = f(x), f(there_x)
  assert.equal("cuda", got:device().type)
  assert.equal(want:dtype(), got:dtype())
  assert.same(want:size(), got:size())
  local near = (want:dtype() == moth.float32 or want:dtype() == moth.complex64) and 1e-4 or 1e-11
  assert.is_true(moth.allclose(want, got:cpu(), near, near), tostring(want) .. "\n" .. tostring(got))
  assert.is_true(moth.equal(before, there_x)) -- a transform to reals overwrites its input, unless that is a copy
end

describe("Fourier transforms on CUDA", function()
  before_each(function() moth.manual_seed(3) end)

  it("give what the CPU gives, along any dimensions of any layout", function()
    if not there() then return end
    for _, dtype in ipairs { "complex64", "complex128" } do
      local z = moth.randn({ 3, 4, 5, 6 }, { dtype = dtype })
      for _, dim in ipairs { { 4 }, { 1 }, { 2, 4 }, { 4, 2, 1 }, { 1, 2, 3, 4 } } do
        for _, x in ipairs { z, z:transpose(1, 4), z:narrow(2, 2, 1), z:narrow(1, 1, 1):expand(2, 4, 5, 6) } do
          same(function(t) return fft.fftn(t, { dim = dim }) end, x)
          same(function(t) return fft.ifftn(t, { dim = dim, norm = "ortho" }) end, x)
          same(function(t) return fft.rfftn(t, { dim = dim }) end, moth.real(x))
          for _, last in ipairs { 6, 7 } do
            local s = {}
            for i = 1, #dim do s[i] = i == #dim and last or x:size(dim[i]) end
            same(function(t) return fft.irfftn(t, { s = s, dim = dim }) end, x)
          end
        end
      end
    end
    same(fft.fft, moth.randn({ 0, 4 }, { dtype = "complex64" }))
    same(fft.rfft, moth.arange(12):view(3, 4))
    same(function(t) return fft.irfft(t, 1) end, moth.randn({ 2, 1 }, { dtype = "complex64" }))
    same(fft.fft, moth.randn({ 2, 2, 2, 2, 2, 2, 2, 3 }, { dtype = "complex64" }))
  end)

  it("keep plans, and make them anew", function()
    if not there() then return end
    for _ = 1, 2 do
      for n = 1, 40 do same(fft.fft, moth.randn({ 2, n }, { dtype = "complex128" })) end
    end
  end)

  it("have derivatives, and run on the current stream", function()
    if not there() then return end
    local x = moth.randn({ 2, 5 }, { dtype = "float64" }):cuda():requires_grad_()
    assert.is_true(moth.autograd.gradcheck(function(t) return moth.view_as_real(fft.rfft(t)) end, x))
    assert.is_true(moth.autograd.gradcheck(function(t) return fft.irfft(fft.rfft(t), 4) end, x))
    local stream, got = moth.cuda.Stream(), nil
    moth.cuda.stream(stream, function() got = fft.rfft(x:detach()) end)
    stream:synchronize()
    assert.is_true(moth.allclose(fft.rfft(x:detach():cpu()), got:cpu()))
  end)

  if not emulated then return end
  it("are calls of the library, whose errors are raised", function()
    if not there() then return end
    local z = moth.randn({ 2, 4 }, { dtype = "complex64" }):cuda()
    ffi.C.setenv("MOTH_EMU_CUFFT", "fail", 1)
    local ok, err = pcall(function()
      fails("cufftXtExec: cuFFT's error 6", fft.fft, z)
      fails("cufftXtExec: cuFFT's error 6", fft.irfft, z)
      fails("cufftXtExec: cuFFT's error 6", fft.rfft, moth.real(z):clone())
    end)
    ffi.C.unsetenv "MOTH_EMU_CUFFT"
    assert.is_true(ok, err)
  end)
end)
