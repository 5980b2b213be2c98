-- Random numbers on the device are the CPU's: the same bits of uniform numbers, integers and masks, normals to
-- tolerance, the same counters used.
local moth = require "moth"
local fails = require "fails"

local floats = { "float32", "float64", "float16", "bfloat16" }
local all = { "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool" }
local sizes = { 0, 1, 2, 3, 5, 31, 257, 4099 }

-- fn(device, generator) on both devices; the generators must have the same offset afterwards.
local function both(fn)
  local g, h = moth.Generator(7), moth.Generator(7)
  local a, b = fn("cpu", g), fn("cuda", h)
  local x, y = moth.rand(4, { generator = g }), moth.rand(4, { generator = h })
  assert(moth.equal(x, y), "the generators have moved apart")
  return a, b:cpu()
end
local function same(what, a, b)
  assert.same(a:size(), b:size())
  assert(moth.equal(a:to "float64", b:to "float64"), what .. ": the values differ")
end
-- Tensors to fill: row-major, with gaps, with an address that is no multiple of 16.
local layouts = {
  whole = function(n, dtype, device) return moth.zeros(n, { dtype = dtype, device = device }) end,
  strided = function(n, dtype, device) return moth.zeros(n, 2, { dtype = dtype, device = device }):select(2, 1) end,
  offset = function(n, dtype, device) return moth.zeros(n + 1, { dtype = dtype, device = device }):narrow(1, 2, n) end,
}
local function each(dtypes, fn)
  for _, dtype in ipairs(dtypes) do
    for _, n in ipairs(sizes) do
      for layout, make in pairs(layouts) do
        local a, b = both(function(device, g)
          local t = make(n, dtype, device)
          fn(t, g)
          return t
        end)
        local what = ("%s %d %s"):format(dtype, n, layout)
        coroutine.yield(what, a, b, dtype)
      end
    end
  end
end
local function cases(dtypes, fn) return coroutine.wrap(function() each(dtypes, fn) end) end

describe("random numbers on CUDA", function()
  if not moth.cuda.is_available() then
    it("are the CPU's", function() pending(moth.cuda.why()) end)
    return
  end

  it("uniform in [0, 1): the same bits", function()
    for what, a, b in cases(floats, function(t, g) t:uniform_(0, 1, { generator = g }) end) do same(what, a, b) end
    for _, dtype in ipairs(floats) do
      same(dtype, both(function(device, g)
        return moth.rand(3, 41, { dtype = dtype, device = device, generator = g })
      end))
    end
  end)
  it("uniform in a range: to rounding, below its end", function()
    for what, a, b in cases(floats, function(t, g) t:uniform_(-3, 5, { generator = g }) end) do
      assert(moth.allclose(a:to "float64", b:to "float64", { rtol = 1e-2, atol = 1e-2 }), what)
      if b:numel() > 0 then assert.is_true(b:to("float64"):max():item() < 5, what) end
    end
  end)
  it("normal: to tolerance", function()
    for what, a, b, dtype in cases(floats, function(t, g) t:normal_(1, 2, { generator = g }) end) do
      local e = ({ float32 = 1e-5, float64 = 1e-12, float16 = 4e-3, bfloat16 = 4e-2 })[dtype]
      assert(moth.allclose(a:to "float64", b:to "float64", { rtol = e, atol = e }), what)
    end
  end)
  it("bernoulli: the same bits, of every dtype", function()
    for _, p in ipairs { 0, 0.3, 1 } do
      for what, a, b in cases(all, function(t, g) t:bernoulli_(p, { generator = g }) end) do same(what, a, b) end
    end
    for _, dtype in ipairs(floats) do
      local p = moth.rand(37, 11):to(dtype)
      same(dtype, both(function(device, g) return moth.bernoulli(p:to(device):t(), { generator = g }) end))
    end
  end)
  it("integers: the same, of every dtype and range", function()
    for _, dtype in ipairs(all) do
      for _, n in ipairs(sizes) do
        same(dtype .. n, both(function(device, g)
          return moth.randint(0, 100, { n }, { dtype = dtype, device = device, generator = g })
        end))
      end
    end
    same("wide", both(function(device, g)
      return moth.randint(-2 ^ 52, 2 ^ 52, { 999 }, { device = device, generator = g })
    end))
  end)
  it("permutations: the same", function()
    for _, n in ipairs { 0, 1, 2, 1000 } do
      same("randperm", both(function(device, g) return moth.randperm(n, { device = device, generator = g }) end))
    end
  end)
  it("multinomial: the same draws", function()
    for _, shape in ipairs { { 1 }, { 7 }, { 300 }, { 3, 256 }, { 5, 1001 } } do
      local w = moth.rand(unpack(shape))
      w = w * w:gt(0.2):to "float32" + w:lt(0.01):to "float32"
      for _, replacement in ipairs { true, false } do
        local n = ({ [1] = 1, [7] = 2 })[shape[1]] or 5
        if shape[1] == 1 then w = w + 1 end
        same("multinomial", both(function(device, g)
          return moth.multinomial(w:to(device), n, replacement, { generator = g })
        end))
      end
    end
  end)
  it("gamma, Poisson and binomial: the same samples but for rounding", function()
    local a = moth.rand(41, 13):double() * 20
    for name, draw in pairs {
      gamma = function(at, o) return moth.standard_gamma(at, o) end,
      poisson = function(at, o) return moth.poisson(at.T, o) end,
      binomial = function(at, o) return moth.binomial((at * 9):floor(), moth.full_like(at, 0.3):narrow(1, 1, 1), o) end,
    } do
      local x, y = both(function(device, g)
        return draw(a:to(device), { generator = g })
      end)
      local near = (x - y):abs():le(x:abs() * 1e-9)
      assert(near:double():mean():item() > 0.99, name)
    end
  end)
  it("dropout: the same mask, kept values scaled", function()
    for _, dtype in ipairs(floats) do
      for _, n in ipairs(sizes) do
        for _, p in ipairs { 0, 0.4, 1 } do
          local x, masks = moth.randn(n, 3):to(dtype), {}
          local a, b = both(function(device, g)
            local y, mask = moth.ops.moth.native_dropout(x:to(device):t(), p, { generator = g })
            masks[#masks + 1] = mask:cpu()
            return y
          end)
          same(dtype .. n, a, b)
          assert(moth.equal(masks[1], masks[2]))
          local alone, there = both(function(device, g)
            return moth.ops.moth.native_dropout_mask({ 3, n }, p, device, { generator = g })
          end)
          assert(moth.equal(masks[1], alone:cpu()) and moth.equal(masks[1], there:cpu()))
        end
      end
    end
  end)
  it("a probability or weight that is none is an error", function()
    local function sync(fn)
      return function()
        fn()
        moth.zeros(1, { device = "cuda" }):cpu()
      end
    end
    fails("between 0 and 1, got 2", sync(function() moth.bernoulli(moth.full({ 3 }, 2, { device = "cuda" })) end))
    fails("negative", sync(function() moth.multinomial(moth.tensor { 1, -1 }:to "cuda", 1) end))
    fails("more than the 1 positive", sync(function() moth.multinomial(moth.tensor { 1, 0 }:to "cuda", 2) end))
  end)
end)
