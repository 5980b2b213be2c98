-- tl.rand, tl.randn, tl.randint: the numbers of moth.rand and moth.randn by their places, compiled and interpreted.
local moth = require "moth"
local both = require("kernel.kernels").both
local tl = moth.kernel.lang

local draw = moth.kernel.jit(function(u, z, w, seed, start, n, BLOCK)
  local i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
  tl.store(u + i, tl.rand(seed, i + start), { mask = i < n })
  tl.store(z + i, tl.randn(seed, i + start), { mask = i < n })
  tl.store(w + i, tl.randint(seed, i + start), { mask = i < n })
end, { constexpr = { "BLOCK" } })

local function drawn(seed, start, n, block)
  local u, z, w = moth.empty(n), moth.empty(n), moth.empty(n, { dtype = "int64" })
  draw{ moth.kernel.cdiv(n, block) }(u, z, w, seed, start, n, { BLOCK = block })
  return u, z, w
end

describe("random numbers in a kernel", function()
  it("are those of a generator, whatever the blocks", function()
    both(function()
      for _, seed in ipairs { 0, 7, 2 ^ 40 + 3 } do
        local n = 103
        moth.manual_seed(seed)
        local uniform = moth.rand(n)
        moth.manual_seed(seed)
        local normal = moth.randn(n)
        for _, block in ipairs { 16, 128 } do
          local u, z, w = drawn(seed, 0, n, block)
          assert.is_true(moth.equal(uniform, u))
          moth.testing.assert_close(z, normal, { rtol = 1e-5, atol = 1e-6 })
          assert.is_true(w:ge(0):all():item() and w:lt(2 ^ 32):all():item())
          assert.is_true(moth.equal(moth.floor(w:double() / 256) / 2 ^ 24, u:double()))
        end
        local u = drawn(seed, 50, 53, 64)
        assert.is_true(moth.equal(uniform[{ { 51, 103 } }], u))
      end
    end)
  end)

  it("make a dropout whose backward draws the same mask", function()
    local dropout = moth.kernel.jit(function(x, out, n, p, seed, BLOCK)
      local i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
      local v = tl.load(x + i, { mask = i < n })
      tl.store(out + i, tl.where(tl.rand(seed, i) < p, 0, v / (1 - p)), { mask = i < n })
    end, { constexpr = { "BLOCK" } })
    both(function(way)
      local n = way == "compiled" and 100000 or 2000
      local ones, a, b = moth.ones(n), moth.empty(n), moth.empty(n)
      dropout{ moth.kernel.cdiv(n, 512) }(ones, a, n, 0.25, 42, { BLOCK = 512 })
      dropout{ moth.kernel.cdiv(n, 128) }(ones, b, n, 0.25, 42, { BLOCK = 128 })
      assert.is_true(moth.equal(a, b))
      assert.is_true(math.abs(a:eq(0):float():mean():item() - 0.25) < (way == "compiled" and 0.01 or 0.04))
    end)
  end)

  it("take a block of seeds, and integers only", function()
    local each = moth.kernel.jit(function(out, N)
      local i = tl.arange(0, N)
      tl.store(out + tl.expand(i, 2) * N + i, tl.rand(tl.expand(i, 2), i))
    end, { constexpr = { "N" } })
    both(function()
      local out = moth.empty(4, 4)
      each{ 1 }(out, 4)
      for row = 1, 4 do
        moth.manual_seed(row - 1)
        assert.is_true(moth.equal(moth.rand(4), out[row]))
      end
    end)
    local wrong = moth.kernel.jit(function(out) tl.store(out, tl.rand(1.5, 0)) end)
    assert.error_matches(function() wrong{ 1 }(moth.empty(1)) end, "needs integers, got a number")
  end)
end)
