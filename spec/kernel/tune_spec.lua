-- Kernels that choose their block sizes, and kernels as ops.
local fails = require "fails"
local moth = require "moth"
local kernels = require "kernel.kernels"
local tl = moth.kernel.lang
local cdiv = moth.kernel.cdiv

local add_to = moth.kernel.jit(function(x, total, n, BLOCK)
  local i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
  tl.atomic_add(total, tl.sum(tl.load(x + i, { mask = i < n })))
end, { constexpr = { "BLOCK" } })

describe("kernel.autotune #M159", function()
  local function grid(meta) return { cdiv(meta.n, meta.BLOCK) } end

  it("tries each configuration once for a key, and leaves nothing behind", function()
    local k = moth.kernel.autotune(add_to, { configs = { { BLOCK = 16 }, { BLOCK = 256 } }, key = { "n" },
      restore = { "total" }, reps = 2 })
    kernels.both(function()
      for _, n in ipairs { 10, 1000, 10 } do
        local x, total = moth.ones(n), moth.zeros(1)
        k{ grid }(x, total, n)
        assert.equal(n, total:item())
        k[grid](x, total, n)
        assert.equal(2 * n, total:item())
      end
    end)
    local keys = 0
    for _, config in pairs(k.best) do
      keys = keys + 1
      assert.is_true(config.BLOCK == 16 or config.BLOCK == 256)
    end
    assert.equal(2, keys)
  end)

  it("goes on where a configuration cannot run, and says why none can", function()
    local configs = { { BLOCK = 2 ^ 21 }, { BLOCK = 64 } }
    local k = moth.kernel.autotune(add_to, { configs = configs, restore = { "total" } })
    local total = moth.zeros(1)
    k{ grid }(moth.ones(5), total, 5)
    assert.equal(5, total:item())
    k = moth.kernel.autotune(add_to, { configs = { { BLOCK = 2 ^ 21 } } })
    fails("no configuration runs; the first says: .*more than 1048576 elements", k{ grid }, moth.ones(5), total, 5)
  end)

  it("checks its options", function()
    local tune = moth.kernel.autotune
    fails("expected a kernel of moth.kernel.jit", tune, print, { configs = { {} } })
    fails("option 'configs': an empty list", tune, add_to, { configs = {} })
    fails("configs%[1%]: 'BLOKC' is no parameter of .*; did you mean 'BLOCK'", tune, add_to,
      { configs = { { BLOKC = 1 } } })
    fails("option 'key': 'm' is no parameter", tune, add_to, { configs = { { BLOCK = 1 } }, key = { "m" } })
  end)

  it("prints its table #noasan", function()
    local build = os.getenv("MOTH_BUILD") or "build"
    local pipe = io.popen("MOTH_LOGS=autotuning MOTH_LUAJIT_WARNING=0 " .. build
      .. "/moth examples/kernels/vector_add.lua 1000 2>&1")
    local text = pipe:read("*a")
    pipe:close()
    assert.matches("vector_add for float32 %l+,.*1000:.* us  BLOCK=256\n.* us  BLOCK=4096\nbest: BLOCK=%d+", text)
  end)
end)

describe("a kernel as an op", function()
  it("has a derivative, of kernels", function()
    local square = moth.kernel.jit(function(x, out, n, BLOCK)
      local i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
      local v = tl.load(x + i, { mask = i < n })
      tl.store(out + i, v * v * v, { mask = i < n })
    end, { constexpr = { "BLOCK" } })
    local lib = moth.library("kernel_spec", "FRAGMENT")
    local cube = lib:define("cube(Tensor x) -> Tensor", { dims = { x = "*" }, out = "*",
      impl = function(x)
        x = x:contiguous()
        local out = moth.empty_like(x)
        square{ cdiv(x:numel(), 64) }(x, out, x:numel(), { BLOCK = 64 })
        return out
      end, grad = { x = "grad * square(x) * 3" }, reference = function(x) return x ^ 3 end })
    for _, size in ipairs { {}, { 0 }, { 3, 50 } } do
      local x = moth.randn(size, { dtype = moth.float64, requires_grad = true })
      assert.is_true(moth.autograd.gradcheck(cube, { x }))
      assert.is_true(moth.autograd.gradgradcheck(cube, { x }))
    end
    local passed = moth.library.opcheck(cube, { { moth.randn(4, 3) }, { moth.randn(5, 4):t() } })
    assert.equal(2, passed.reference)
    local y = moth.fake_mode(function() return cube(moth.empty(1000, 1000)) end)
    assert.same({ 1000, 1000 }, y.shape)
  end)
end)

describe("a kernel within moth.compile", function()
  it("reads and writes what was recorded, in its order", function()
    local k = moth.kernel.jit(function(x, out, N)
      local i = tl.arange(0, N)
      tl.store(out + i, tl.load(x + i) * 10)
    end, { constexpr = { "N" } })
    local function f(x)
      local y = x * 2
      local z = y + 1
      k{ 1 }(x, y, { N = 4 })
      return z + y
    end
    local compiled = moth.compile(f)
    for i = 1, 3 do assert.is_true(moth.equal(f(moth.ones(4) * i), compiled(moth.ones(4) * i))) end
  end)
end)

describe("moth.bench.roofline", function()
  it("says what bounds a kernel #M155", function()
    local a100 = { peak = 312e12, bw = 2e12 }
    local r = moth.bench.roofline { flops = 1e9, bytes = 1e9, peak = a100.peak, bw = a100.bw }
    assert.equal(156, r.ridge)
    assert.equal(1, r.intensity)
    assert.equal("memory", r.bound)
    assert.equal(1e9 / 2e12, r.seconds)
    r = moth.bench.roofline { flops = 2 * 4096 ^ 3, bytes = 3 * 2 * 4096 ^ 2, peak = a100.peak, bw = a100.bw }
    assert.equal("compute", r.bound)
    assert.equal(312e12, r.flops)
    fails("option 'bw': expected a number above 0", moth.bench.roofline, { flops = 1, bytes = 1, peak = 1, bw = 0 })
  end)
end)
