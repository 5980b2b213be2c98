-- tl.reduce: neighbours are joined by a function of the program, on every device.
local moth = require "moth"
local both = require("kernel.kernels").both
local tl = moth.kernel.lang

local function lse(a, b)
  local m = tl.maximum(a, b)
  return m + tl.log(tl.exp(a - m) + tl.exp(b - m))
end
local function affine(a, b, c, d) return a * c, b * c + d end -- is not commutative
local function best(v, i, w, j) -- argmax with its value, the first of equals
  local first = tl.logical_or(v > w, tl.logical_and(v == w, i < j))
  return tl.where(first, v, w), tl.where(first, i, j)
end

local many = moth.kernel.jit(function(x, y, sums, ends, least, value, where, M, N)
  local rows, columns = tl.arange(0, M), tl.arange(0, N)
  local at = tl.expand(rows, 2) * N + columns
  local v, w = tl.load(x + at), tl.load(y + at)
  tl.store(sums + rows, tl.reduce(v, 2, lse))
  local _, q = tl.reduce({ v, w }, -1, affine)
  tl.store(ends + rows, q)
  tl.store(least + tl.expand(columns, 1), tl.reduce(v, 1, tl.minimum, { keepdim = true }))
  local top, place = tl.reduce({ tl.flatten(v), tl.flatten(at) }, 1, best)
  tl.store(value, top)
  tl.store(where, place)
end, { constexpr = { "M", "N" } })

local function check(device)
  for _, s in ipairs { { 4, 8 }, { 3, 12 }, { 1, 1 }, { 5, 7 }, { 2, 64 } } do
    local M, N = s[1], s[2]
    local x, y = moth.randn(M, N), moth.randn(M, N)
    local sums, ends, least = moth.empty(M):to(device), moth.empty(M):to(device), moth.empty(N):to(device)
    local value, where = moth.empty(1):to(device), moth.empty(1, { dtype = "int64" }):to(device)
    many{ 1 }(x:to(device), y:to(device), sums, ends, least, value, where, { M = M, N = N })
    local q = y:select(2, 1)
    for j = 2, N do q = q * x:select(2, j) + y:select(2, j) end
    moth.testing.assert_close(sums:cpu(), x:logsumexp(2), { rtol = 1e-5, atol = 1e-5 })
    moth.testing.assert_close(ends:cpu(), q, { rtol = 1e-4, atol = 1e-4 })
    assert.is_true(moth.equal((x:min(1)), least:cpu()))
    assert.equal(x:max():item(), value:cpu():item())
    assert.equal(x:argmax():item() - 1, where:cpu():item())
  end
end

describe("tl.reduce", function()
  it("joins blocks, one or several, in their order", function() both(function() check "cpu" end) end)

  it("does so on CUDA", function()
    if not moth.cuda.is_available() then return pending("no CUDA: " .. moth.cuda.why()) end
    check "cuda"
  end)

  it("keeps NaN, infinities and the sign of 0", function()
    local function second(_, b) return b end
    local last = moth.kernel.jit(function(x, out, M, N)
      local at = tl.expand(tl.arange(0, M), 2) * N + tl.arange(0, N)
      tl.store(out + tl.arange(0, M), tl.reduce(tl.load(x + at), 2, second))
    end, { constexpr = { "M", "N" } })
    both(function()
      local x = moth.tensor { { 1, 0 / 0 }, { 1, -1 / 0 }, { 1, 0 }, { 0 / 0, 5 } }
      x[3][2]:neg_()
      local out = moth.empty(4)
      last{ 1 }(x, out, { M = 4, N = 2 })
      local t = out:totable()
      assert.is_true(t[1] ~= t[1] and t[2] == -math.huge and 1 / t[3] == -math.huge and t[4] == 5)
      local b = moth.tensor { { 1, 0 }, { 0, 1 } }:bool()
      local o = moth.empty(2, { dtype = "bool" })
      last{ 1 }(b, o, { M = 2, N = 2 })
      assert.same({ false, true }, o:totable())
      local i = moth.tensor({ { 1, -7 }, { 1, 9 } }, { dtype = "int32" })
      local n = moth.empty(2, { dtype = "int32" })
      last{ 1 }(i, n, { M = 2, N = 2 })
      assert.same({ -7, 9 }, n:totable())
    end)
  end)

  it("says what is wrong", function()
    local x, out = moth.randn(4), moth.empty(1)
    local function one(a) return a end
    local function wide(a) return tl.expand(a, 2) + tl.arange(0, 5) end
    local function fails(message, f, n)
      local k = moth.kernel.jit(f, { constexpr = { "N" } })
      assert.error_matches(function() k{ 1 }(x, out, { N = n or 4 }) end, message)
    end
    fails("'combine' is a function of 2 values that returns 1", function(p, o, N)
      tl.store(o, tl.reduce(tl.load(p + tl.arange(0, N)), 1, 3))
    end)
    fails("'combine' returns 1 values, not 2", function(p, o, N)
      local v = tl.load(p + tl.arange(0, N))
      tl.store(o, tl.reduce({ v, v }, 1, one))
    end)
    fails("takes a block", function(p, o, N) tl.store(o, tl.reduce(tl.load(p + N), 1, one)) end)
    fails("a dimension of 67", function(p, o, N) tl.store(o, tl.reduce(tl.load(p + tl.arange(0, N)), 1, one)) end, 67)
    fails("does not broadcast", function(p, o, N)
      tl.store(o, tl.reduce(tl.load(p + tl.arange(0, N)), 1, wide))
    end)
  end)
end)
