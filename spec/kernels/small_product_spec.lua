-- Small and thin products (kernels/cpu/typed/small.h): odd sizes, all layouts, each instruction set of this processor;
-- against sums of elementwise products in float64; complex, too. What beta = 0 ignores; no terms; the same bits for
-- any threads.
local moth = require "moth"

local sizes = { 1, 2, 3, 4, 7, 8, 13, 15, 16, 17, 31, 33, 63, 65 }
local thin = { { 33, 300, 130 }, { 1000, 17, 70 }, { 5, 700, 20 }, { 16, 15, 1025 }, { 64, 64, 513 }, { 48, 1100, 8 },
  { 700, 32, 64 }, { 300, 3, 4 } }
local bounds = { float32 = 6e-7, float64 = 1e-15, float16 = 2e-3, bfloat16 = 1e-2, complex64 = 1e-6,
  complex128 = 2e-15 }

-- A matrix of a layout: rows in one piece, columns in one piece, every second column, rows backwards in a wider one.
local function matrix(layout, batch, m, n, dtype)
  local t
  if layout == 1 then t = moth.randn(batch, m, n, { dtype = dtype })
  elseif layout == 2 then t = moth.randn(batch, n, m, { dtype = dtype }).mT
  elseif layout == 3 then t = moth.randn(batch, m, n, 2, { dtype = dtype }):select(4, 2)
  elseif layout == 4 then t = moth.randn(batch, m, n + 3, { dtype = dtype }):narrow(3, 2, n)
  else t = moth.randn(1, m, n, { dtype = dtype }):expand(batch, m, n) end
  return t
end

local function check(label, got, want, scale, bound)
  local off = ((got:to(want:dtype()) - want):abs() / (scale + 1e-30)):max():item()
  assert.is_true(off <= bound, ("%s: off by %g of the sum of sizes"):format(label, off))
end

local function compare(m, n, k, la, lb, name)
  local dtype, bound = moth[name], bounds[name]
  local a, b = matrix(la, 2, m, k, dtype), matrix(lb, 2, k, n, dtype)
  local wide = name:find "complex" and moth.complex128 or moth.float64
  local x, y = a:to(wide):unsqueeze(4), b:to(wide):unsqueeze(2)
  local want, scale = (x * y):sum(3), (x:abs() * y:abs()):sum(3)
  local label = ("%s %dx%dx%d, layouts %d and %d"):format(name, m, n, k, la, lb)
  check(label, a:bmm(b), want, scale, bound)
  check(label .. ", mm", a[2]:mm(b[2]), want[2], scale[2], bound)
  local c = moth.randn(2, m, n, { dtype = dtype })
  check(label .. ", baddbmm", c:baddbmm(a, b, 0.5, -2), c:to(wide) * 0.5 - want * 2,
    c:abs():double() + scale * 2, bound)
  c:fill_(0 / 0)
  check(label .. ", beta = 0", c:baddbmm(a, b, 0, 1), want, scale, bound)
end

describe("small products", function()
  local level = moth.cpu_level()
  after_each(function() moth.cpu_level(level) end)

  for _, isa in ipairs(require "levels") do
    it("are right with " .. isa, function()
      moth.cpu_level(isa)
      moth.manual_seed(7)
      local turn = 0
      for _, m in ipairs(sizes) do
        for i = turn % 3 + 1, #sizes, 3 do
          turn = turn + 1
          local n, k = sizes[i], sizes[(i + turn) % #sizes + 1]
          compare(m, n, k, turn % 5 + 1, math.floor(turn / 5) % 5 + 1, turn % 3 == 0 and "float64" or "float32")
        end
      end
      for _, s in ipairs(thin) do
        turn = turn + 1
        compare(s[1], s[2], s[3], turn % 2 + 1, turn % 4 < 2 and 1 or 2, turn % 3 == 0 and "float64" or "float32")
      end
      for i, s in ipairs { { 1, 1, 1 }, { 3, 5, 7 }, { 8, 8, 8 }, { 17, 9, 300 }, { 33, 24, 130 }, { 100, 4, 9 },
        { 5, 31, 2 }, { 48, 600, 3 }, { 64, 64, 33 } } do
        for layout = 1, 4 do
          compare(s[1], s[2], s[3], layout, (layout + i) % 5 + 1, i % 2 == 0 and "complex128" or "complex64")
        end
        compare(s[1], s[2], s[3], 2, 2, i % 2 == 1 and "complex128" or "complex64")
      end
      for _, name in ipairs { "float16", "bfloat16" } do
        for _, s in ipairs { 1, 7, 16, 33, 65 } do compare(s, s + 2, s + 1, 2, 1, name) compare(s, s, s, 1, 2, name) end
      end
    end)
  end

  it("pass NaN and infinity on, and nothing else", function()
    for _, s in ipairs { 3, 16, 33 } do
      local a, b = moth.ones(s, s), moth.ones(s, s)
      a[2][1], b[3][2] = 0 / 0, math.huge
      local c = a:mm(b)
      assert.is_true(c[2]:isnan():all():item())
      assert.are.equal(math.huge, c[1][2]:item())
      assert.are.equal(s, c[1][1]:item())
      assert.are.equal(s, c[s][s]:item())
    end
  end)

  it("without terms are beta times what is added", function()
    local c = moth.randn(3, 4)
    assert.is_true(moth.equal(moth.zeros(3, 4), moth.mm(moth.zeros(3, 0), moth.zeros(0, 4))))
    assert.is_true(moth.equal(c * 0.5, c:addmm(moth.zeros(3, 0), moth.zeros(0, 4), 0.5, 1)))
    assert.are.same({ 2, 3, 4 }, moth.zeros(2, 3, 0):bmm(moth.zeros(2, 0, 4)):size())
  end)

  it("have the same bits for any number of threads", function()
    local keep, got = moth.get_num_threads(), {}
    moth.manual_seed(5)
    local pairs_of = {}
    for i, s in ipairs(thin) do pairs_of[i] = { moth.randn(s[1], s[3]), moth.randn(s[3], s[2]) } end
    for i, threads in ipairs { 1, 2, 3 } do
      moth.set_num_threads(threads)
      got[i] = {}
      for k, p in ipairs(pairs_of) do got[i][k] = p[1]:mm(p[2]) end
    end
    moth.set_num_threads(keep)
    for k = 1, #thin do
      assert.is_true(moth.equal(got[1][k], got[2][k]) and moth.equal(got[1][k], got[3][k]))
    end
  end)

  it("have gradients", function()
    for _, s in ipairs { 2, 5, 17 } do
      local x, y = moth.randn(2, s, 3, { dtype = moth.float64 }), moth.randn(2, 3, s, { dtype = moth.float64 })
      x:requires_grad_(true)
      y:requires_grad_(true)
      assert.is_true(moth.autograd.gradcheck(function(p, q) return p:bmm(q) end, { x, y }))
    end
  end)

  it("of long vectors keep their digits", function()
    moth.manual_seed(1)
    for _, n in ipairs { 5000, 300000, 1100000 } do
      local x, y = moth.randn(n), moth.randn(n)
      local want = (x:double() * y:double()):sum():item()
      assert.is_true(math.abs(x:dot(y):item() - want) < 4e-7 * math.sqrt(n) + 1e-7 * math.abs(want))
    end
  end)

  it("of two vectors are exact on whole numbers, at any distance", function()
    for _, n in ipairs { 1, 15, 16, 17, 1000, 10001 } do
      local x, y = moth.randint(-8, 9, { n, 3 }):float(), moth.randint(-8, 9, { n }):float()
      local want = (x:select(2, 2):double() * y:double()):sum():item()
      assert.are.equal(want, x:select(2, 2):dot(y):item())
      assert.are.equal(want, x:select(2, 2):contiguous():dot(y):item())
    end
  end)
end)
