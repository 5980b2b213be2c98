-- Kernels on CUDA: the text that NVIDIA's NVRTC takes, where it is, and the emulation, where that was built.
local moth = require "moth"
local tl = moth.kernel.lang
local jit, cdiv = moth.kernel.jit, moth.kernel.cdiv

local function close(expected, got, what)
  local d = (expected:double() - got:cpu():double()):abs():max():item()
  assert.is_true(d < 1e-4, (what or "") .. " " .. d)
end

local softmax = jit(function(x, out, stride, n, BLOCK)
  local i = tl.arange(0, BLOCK)
  local row = tl.program_id(0)
  local v = tl.load(x + row * stride + i, { mask = i < n, other = -math.huge })
  local e = tl.exp(v - tl.max(v))
  tl.store(out + row * stride + i, e / tl.sum(e), { mask = i < n })
end, { constexpr = { "BLOCK" } })

local matmul = jit(function(a, b, out, M, N, K, BM, BN, BK)
  local m = tl.expand(tl.program_id(0) * BM + tl.arange(0, BM), 2)
  local n = tl.program_id(1) * BN + tl.arange(0, BN)
  local k = tl.arange(0, BK)
  local acc = tl.zeros({ BM, BN })
  for from = 0, K - 1, BK do
    local x = tl.load(a + m * K + (from + k), { mask = m < M and tl.expand(from + k, 1) < K })
    local y = tl.load(b + tl.expand(from + k, 2) * N + n, { mask = tl.expand(from + k, 2) < K and tl.expand(n, 1) < N })
    acc = tl.dot(x, y, acc)
  end
  tl.store(out + m * N + n, acc, { mask = m < M and tl.expand(n, 1) < N })
end, { constexpr = { "BM", "BN", "BK" } })

local many = jit(function(x, out, counts, n, M, N)
  local r, c = tl.expand(tl.arange(0, M), 2), tl.arange(0, N)
  local at = r * N + c
  local v = tl.load(x + at)
  tl.store(out + at, tl.cumsum(v, 2) + tl.expand(tl.sum(v, 2), 2) + tl.max(v, 1) + tl.trans(tl.trans(v)))
  tl.store(out + M * N + at, tl.cumsum(v, { dim = 1, reverse = true }) + tl.expand(tl.argmax(v, 2), 2)
    + tl.argmin(v, 1))
  tl.atomic_add(counts + at % 4, 1)
  local before = tl.atomic_add(counts + 4, tl.sum(v > 0))
  local seen = tl.load(counts + 4)
  if seen > n then tl.store(counts + 5, before + 1) end
  local total = 0
  for i = 0, n do
    if i * i > 20 then break end
    total = total + tl.load(out + i)
    tl.store(out + i, total)
  end
end, { constexpr = { "M", "N" } })

describe("the CUDA C++ of a kernel", function()
  it("is taken by NVRTC", function()
    local ok, nvrtc = pcall(require("kernel.nvrtc").open)
    if not ok or not nvrtc then return pending("libnvrtc was not found") end
    for _, dtype in ipairs { moth.float32, moth.float64, moth.float16, moth.bfloat16, moth.int32, moth.uint8,
      moth.bool } do
      local f = jit(function(x, out, n, BLOCK)
        local i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        local v = tl.load(x + i, i < n)
        tl.store(out + i, tl.gelu(v) + tl.where(v > 0, v ^ 2, -math.huge) + v % 3, i < n)
      end, { constexpr = { "BLOCK" } })
      local x = moth.ones(8):to(dtype)
      local source = f:cuda_source(x, x, 8, { BLOCK = 64 })
      assert.equal("", nvrtc(source), source)
    end
    local x, counts = moth.randn(64), moth.zeros({ 6 }, { dtype = moth.int32 })
    assert.equal("", nvrtc(softmax:cuda_source(x, x, 1, 64, { BLOCK = 64 })))
    assert.equal("", nvrtc(matmul:cuda_source(x, x, x, 8, 8, 8, { BM = 16, BN = 16, BK = 16 })))
    assert.equal("", nvrtc(many:cuda_source(x, x, counts, 5, { M = 8, N = 8 })))
    local a = jit(function(f, d, i, l)
      tl.atomic_max(f, 1)
      tl.atomic_add(d, 1)
      tl.atomic_xor(i, 1)
      tl.atomic_cas(l, 1, 2)
    end)
    assert.equal("", nvrtc(a:cuda_source(x, x:double(), counts, counts:long())))
  end)
end)

describe("a kernel on CUDA", function()
  if not moth.cuda.is_available() then
    pending("CUDA is not available (MOTH_CUDA=emu after make cudaemu)", function() end)
    return
  end

  it("is relu_squared at every size", function()
    local k = jit(function(x, out, n, BLOCK)
      local i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
      local v = tl.load(x + i, { mask = i < n, other = 0 })
      tl.store(out + i, tl.where(v > 0, v * v, 0), { mask = i < n })
    end, { constexpr = { "BLOCK" } })
    for _, n in ipairs { 0, 1, 5, 1023, 1024, 1025, 5000 } do
      local x = moth.randn(n):cuda()
      local out = moth.full({ n + 3 }, 7):cuda()
      k{ cdiv(n, 256), device = "cuda" }(x, out, n, { BLOCK = 256 })
      assert.is_true(moth.equal(x:cpu():relu():square(), out:cpu()[{ { 1, n } }]))
      assert.same({ 7, 7, 7 }, out:cpu()[{ { n + 1, n + 3 } }]:totable())
    end
  end)

  it("reduces rows and multiplies tiles", function()
    local x = moth.randn(5, 300):cuda()
    local out = moth.empty_like(x)
    softmax{ 5 }(x, out, 300, 300, { BLOCK = 512 })
    close(x:cpu():softmax(2), out)
    local a, b, c = moth.randn(33, 20):cuda(), moth.randn(20, 18):cuda(), moth.empty(33, 18):cuda()
    matmul{ 3, 2 }(a, b, c, 33, 18, 20, { BM = 16, BN = 16, BK = 8 })
    close(a:cpu():mm(b:cpu()), c)
    matmul{ 3, 2, num_warps = 2 }(a, b, c, 33, 18, 20, { BM = 16, BN = 16, BK = 8 })
    close(a:cpu():mm(b:cpu()), c)
  end)

  it("does what the CPU does, with scans, atomics, loops and reads of its own stores", function()
    for _, size in ipairs { { 4, 8 }, { 3, 5 }, { 40, 3 }, { 1, 33 } } do
      local x = moth.randn(size)
      local n = size[1] * size[2]
      local function run(device)
        local out = moth.zeros({ 2 * n }, { device = device })
        local counts = moth.zeros({ 6 }, { device = device, dtype = moth.int32 })
        many{ 1 }(x:to(device), out, counts, 7, { M = size[1], N = size[2] })
        return moth.cat { out:cpu(), counts:cpu():float() }
      end
      close(run "cpu", run "cuda", table.concat(size, "x"))
    end
  end)

  it("draws the random numbers of the CPU", function()
    local k = jit(function(u, z, seed, N)
      local i = tl.arange(0, N)
      tl.store(u + i, tl.rand(seed, i + 3))
      tl.store(z + i, tl.randn(seed, i + 3))
    end, { constexpr = { "N" } })
    local function run(device)
      local u, z = moth.empty(200):to(device), moth.empty(200):to(device)
      k{ 1 }(u, z, 2 ^ 33 + 5, 200)
      return u:cpu(), z:cpu()
    end
    local u, z = run "cpu"
    local gu, gz = run "cuda"
    assert.is_true(moth.equal(u, gu))
    close(z, gz)
  end)

  it("scans long rows, both ways", function()
    local k = jit(function(x, out, M, N)
      local at = tl.expand(tl.arange(0, M), 2) * N + tl.arange(0, N)
      local v = tl.load(x + at)
      tl.store(out + at, tl.cumsum(v, 2))
      tl.store(out + M * N + at, tl.cummax(v, { dim = 2, reverse = true }))
    end, { constexpr = { "M", "N" } })
    for _, size in ipairs { { 1, 300 }, { 3, 50 }, { 20, 40 } } do
      local x = moth.randn(size)
      local out, right = moth.zeros(2, size[1], size[2]):cuda(), moth.zeros(2, size[1], size[2])
      k{ 1 }(x:cuda(), out, { M = size[1], N = size[2] })
      k{ 1 }(x, right, { M = size[1], N = size[2] })
      close(right, out)
      close(x:cumsum(2), out[1])
    end
  end)

  it("checks accesses to memory where MOTH_KERNEL_CHECK is set", function()
    local fails = require "fails"
    local k = jit(function(x, out, n, BLOCK)
      local i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
      tl.store(out + i, tl.load(x + i, { mask = i < n }) + 1, { mask = i < n })
      tl.atomic_add(out, 1)
    end, { constexpr = { "BLOCK" }, name = "more" })
    require("kernel.kernels").with({ MOTH_KERNEL_CHECK = "1" }, function()
      local x, out = moth.zeros(100):cuda(), moth.zeros(100):cuda()
      k{ 7 }(x, out, 100, { BLOCK = 16 })
      assert.equal(107, out:sum():item())
      fails("cuda_spec.lua:%d+: %[kernel%] more, program %(6, 0, 0%): store to out%[99%] is outside of the tensor "
        .. "%[99%]", k{ 7 }, x, out:narrow(1, 1, 99), 100, { BLOCK = 16 })
      fails("load of x%[%d+%] is outside of the tensor %[0%]: it has no elements", k{ 1 }, moth.zeros(0):cuda(), out, 9,
        { BLOCK = 16 })
    end)
    local x, out = moth.ones(8):cuda(), moth.zeros(8):cuda()
    x:untyped_storage():resize_(0)
    k{ 0 }(x, out, 8, { BLOCK = 16 })
    fails("was released by resize_%(0%)", k{ 1 }, x, out, 8, { BLOCK = 16 })
  end)

  it("says what a GPU has not", function()
    local fails = require "fails"
    local x = moth.zeros(8):cuda()
    fails("tensors on two devices", softmax{ 1 }, x, moth.zeros(8), 8, 8, { BLOCK = 8 })
    fails("the launch is for cpu, its tensors are on cuda", softmax{ 1, device = "cpu" }, x, x, 8, 8, { BLOCK = 8 })
    fails("shared memory", softmax{ 1 }, x, x, 8, 8, { BLOCK = 131072 })
    fails("num_warps is 1 to 32", softmax{ 1, num_warps = 0 }, x, x, 8, 8, { BLOCK = 8 })
  end)
end)
