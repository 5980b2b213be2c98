-- Matrix products on CUDA beside the CPU's: by cuBLASLt (the emulation has one that is strict about its arguments),
-- and by moth's own kernel. Data are small integers, so that results are exact whatever the order of sums.
local ffi = require "ffi"
local fails = require "fails"
local moth = require "moth"
ffi.cdef "int setenv(const char *name, const char *value, int overwrite); int unsetenv(const char *name);"

local dtypes = { "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64" }
local emulated = os.getenv("MOTH_CUDA") == "emu"
local matmul = moth.backends.cuda.matmul

local function there() return moth.cuda.is_available() or pending(moth.cuda.why()) end

local function with(shape, change)
  local s = { unpack(shape) }
  change(s)
  return s
end
local function fill(shape, dtype) return moth.randint(-3, 4, shape):to(dtype) end

-- The same matrix (or batch of them) as BLAS can read it, and as it cannot.
local layouts = {
  contiguous = fill,
  transposed = function(shape, dtype)
    local n = #shape
    return fill(with(shape, function(s) s[n - 1], s[n] = s[n], s[n - 1] end), dtype):transpose(n - 1, n)
  end,
  rows_apart = function(shape, dtype)
    local n = #shape
    local wide = fill(with(shape, function(s) s[n] = s[n] + 3 end), dtype)
    if wide:is_floating_point() then wide:narrow(n, shape[n] + 1, 3):fill_(0 / 0) end
    return wide:narrow(n, 1, shape[n])
  end,
  offset = function(shape, dtype)
    local n = #shape
    return fill(with(shape, function(s) s[n - 1] = s[n - 1] + 1 end), dtype):narrow(n - 1, 2, shape[n - 1])
  end,
  stride_2 = function(shape, dtype)
    local strides, step = {}, 2
    for i = #shape, 1, -1 do
      strides[i] = step
      step = step * math.max(shape[i], 1)
    end
    return fill({ math.max(step, 1) }, dtype):as_strided(shape, strides)
  end,
  one_row = function(shape, dtype)
    return fill(with(shape, function(s) s[#s - 1] = 1 end), dtype):expand(shape)
  end,
  one_column = function(shape, dtype)
    return fill(with(shape, function(s) s[#s] = 1 end), dtype):expand(shape)
  end,
  one_matrix = function(shape, dtype)
    return #shape < 3 and fill(shape, dtype) or fill(with(shape, function(s) s[1] = 1 end), dtype):expand(shape)
  end,
}
local names = {}
for name in pairs(layouts) do names[#names + 1] = name end
table.sort(names)

-- f gives the same on the CPU and on the device.
local function same(what, f, ...)
  local tensors = { ... }
  local expected = f(...)
  for i, t in ipairs(tensors) do tensors[i] = t:to("cuda") end
  -- copies are row-major: makes the layout again on the device
  for i, t in ipairs({ ... }) do
    if not t:is_contiguous() and t:numel() > 0 then
      local n, reach = t:dim(), 1
      for d = 1, n do reach = reach + (t:size(d) - 1) * t:stride(d) end
      local space = moth.zeros(reach, { dtype = t:dtype(), device = "cuda" })
      if space:is_floating_point() then space:fill_(0 / 0) end
      local strides, shape = {}, {}
      for d = 1, n do strides[d], shape[d] = t:stride(d), t:size(d) end
      local view, overlaps = space:as_strided(shape, strides), false
      for d = 1, n do overlaps = overlaps or (strides[d] == 0 and shape[d] > 1) end
      if not overlaps then
        view:copy_(tensors[i])
        tensors[i] = view
      else
        local base = tensors[i]
        for d = 1, n do if strides[d] == 0 then base = base:narrow(d, 1, 1) end end
        tensors[i] = base:contiguous():expand(shape)
      end
    end
  end
  local got = f(unpack(tensors)):cpu()
  if not moth.equal(expected, got) then
    error(("%s: CPU and CUDA differ: %s and %s"):format(what, tostring(expected), tostring(got)), 2)
  end
end

local sizes = { { 3, 4, 5 }, { 1, 7, 1 }, { 1, 1, 1 }, { 66, 1, 3 }, { 17, 33, 65 }, { 65, 130, 1 }, { 1, 129, 70 },
  { 5, 0, 3 }, { 0, 3, 4 }, { 4, 3, 0 } }

for _, own in ipairs({ false, true }) do
  describe(own and "products by the own kernel" or "products by cuBLASLt", function()
    setup(function() matmul.own_gemm = own end)
    teardown(function() matmul.own_gemm = false end)

    for _, dtype in ipairs(dtypes) do
      it("mm, bmm of " .. dtype .. " in all layouts", function()
        if not there() then return end
        for round, size in ipairs(sizes) do
          local m, k, n = unpack(size)
          for i, name in ipairs(names) do
            local other = names[(i + round) % #names + 1]
            local empty = m * k * n == 0
            local a, b = layouts[empty and "contiguous" or name], layouts[empty and "transposed" or other]
            local what = ("%dx%dx%d %s, %s"):format(m, k, n, name, other)
            same("mm " .. what, moth.mm, a({ m, k }, dtype), b({ k, n }, dtype))
            same("bmm " .. what, moth.bmm, a({ 3, m, k }, dtype), b({ 3, k, n }, dtype))
          end
        end
      end)

      it("addmm, linear of " .. dtype, function()
        if not there() then return end
        for round, size in ipairs(sizes) do
          local m, k, n = unpack(size)
          local a, b = fill({ m, k }, dtype), layouts.transposed({ k, n }, dtype)
          for _, shape in ipairs({ { n }, { 1, n }, { m, 1 }, { m, n }, {} }) do
            for _, scale in ipairs({ { 1, 1 }, { 2, -1 }, { 0, 1 }, { 1, 0 } }) do
              same(("addmm %dx%dx%d"):format(m, k, n), function(c, x, y)
                return moth.addmm(c, x, y, { beta = scale[1], alpha = scale[2] })
              end, fill(shape, dtype), a, b)
            end
          end
          local w = layouts[round % 2 == 0 and "contiguous" or "transposed"]({ n, k }, dtype)
          same("linear", moth.linear, a, w, fill({ n }, dtype))
          same("linear without bias", moth.linear, a, w)
          same("linear of three dimensions", moth.linear, fill({ 2, m, k }, dtype), w, fill({ n }, dtype))
          same("linear of a vector", moth.linear, fill({ k }, dtype), w, layouts.offset({ n, 1 }, dtype):reshape(-1))
        end
      end)
    end

    it("beta = 0 does not read what is there", function()
      if not there() then return end
      local nan = moth.full({ 3, 5 }, 0 / 0, { device = "cuda" })
      local a, b = moth.ones(3, 4, { device = "cuda" }), moth.ones(4, 5, { device = "cuda" })
      assert.is_true(moth.equal(moth.addmm(nan, a, b, { beta = 0 }):cpu(), moth.full({ 3, 5 }, 4)))
    end)

    it("half precision is summed in float32", function()
      if not there() then return end
      local a = moth.ones(1, 4096, { dtype = moth.bfloat16, device = "cuda" })
      assert.equal(4096, moth.mm(a, a:transpose(1, 2)):item())
    end)
  end)
end

describe("products by cuBLASLt", function()
  local function told(what, fn)
    ffi.C.setenv("MOTH_EMU_CUBLASLT", what, 1)
    local ok, err = pcall(fn)
    ffi.C.unsetenv("MOTH_EMU_CUBLASLT")
    assert(ok, err)
  end

  it("keeps more shapes than its table has places", function()
    if not there() then return end
    local a, b = moth.ones(40, 40, { device = "cuda" }), moth.ones(40, 40, { device = "cuda" })
    for _ = 1, 2 do
      for m = 1, 40 do
        for n = 1, 40 do
          local c = moth.mm(a:narrow(1, 1, m), b:narrow(2, 1, n))
          assert(c[m][n]:item() == 40)
        end
      end
    end
  end)

  it("says what it was asked for when it fails", function()
    if not there() then return end
    if not emulated then return pending("the real library does not fail when told to") end
    told("fail", function()
      fails("%[mm%] cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED %(3x4 by 4x5, float32%)", moth.mm,
        moth.randn(3, 4):to("cuda"), moth.randn(4, 5):to("cuda"))
      fails("%[bmm%] cublasLtMatmul: .*%(2 x 3x4 by 4x5, float16%)", moth.bmm, moth.randn(2, 3, 4):half():to("cuda"),
        moth.randn(2, 4, 5):half():to("cuda"))
    end)
  end)

  it("leaves what it does not know to the own kernel", function()
    if not there() then return end
    if not emulated then return pending("the real library knows what it knows") end
    told("none", function()
      same("mm", moth.mm, fill({ 7, 11 }, "float32"), fill({ 11, 13 }, "float32"))
      same("linear", moth.linear, fill({ 7, 11 }, "float32"), fill({ 13, 11 }, "float32"), fill({ 13 }, "float32"))
    end)
  end)

  it("multiplies complex matrices, by the library and by the own kernel", function()
    if not there() then return end
    for _, dtype in ipairs { "complex64", "complex128" } do
      local a, b = fill({ 5, 7 }, dtype) * (1 + 2i), fill({ 7, 3 }, dtype) * (2 - 1i)
      local row, turned = fill({ 3 }, dtype) * 1i, b.mT:contiguous().mT
      for _, own in ipairs { false, true } do
        matmul.own_gemm = own
        same("mm", moth.mm, a, turned)
        same("bmm", moth.bmm, a:expand(2, 5, 7), b:expand(2, 7, 3))
        same("addmm", moth.addmm, row, a, b)
        same("addmm 2", function(r, x, y) return moth.addmm(r, x, y, 2, 3) end, row, a, b)
        same("linear", moth.linear, a, turned.mT, row)
        same("mm of nothing", moth.mm, a:narrow(2, 1, 0), b:narrow(1, 1, 0))
      end
      matmul.own_gemm = false
      same("tril", function(x) return x:tril(-1) + x:triu(2) end, a)
      same("prod", function(x) return x:prod(1) end, a) -- on the CPU, on copies
    end
  end)

  it("rounds float32 operands only when allowed", function()
    if not there() then return end
    local a = moth.full({ 16, 16 }, 1 + 2 ^ -20, { device = "cuda" })
    local b = moth.eye(16, { device = "cuda" })
    assert.is_true(moth.equal(moth.mm(a, b), a))
    matmul.allow_tf32 = true
    local rounded = moth.mm(a, b)
    matmul.allow_tf32 = false
    assert.is_true(moth.allclose(rounded:cpu(), moth.ones(16, 16), 1e-3))
    if emulated then assert.is_false(moth.equal(rounded, a)) end
    assert.is_true(moth.equal(moth.mm(a, b), a))
  end)
end)

describe("moth.backends", function()
  it("checks what it is told", function()
    assert.is_false(matmul.allow_tf32)
    fails("allow_tf32: expected true or false, got number", function() matmul.allow_tf32 = 1 end)
    fails("there is no setting 'tf32'", function() matmul.tf32 = true end)
    fails("there is no setting 'tf32'", function() return matmul.tf32 end)
    fails("can only be read", function() matmul.library = true end)
  end)
end)
