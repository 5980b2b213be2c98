-- Products of int8 and int4 on CUDA: sums are exact, so that with scales that are powers of two the results have the
-- bits of the CPU's.
local moth = require "moth"
local q, nn = moth.quantization, moth.nn

local function there() return moth.cuda.is_available() or pending(moth.cuda.why()) end
local function own(t) return t end
local function cuda(t) return t and t:to "cuda" end
local function both(f) return f(own), f(cuda):to "cpu" end

-- rows: for warps of columns (at most 8) and for tiles; odd sizes, whose words are not aligned
local shapes = { { 1, 130, 5 }, { 8, 7, 70 }, { 9, 64, 64 }, { 70, 33, 130 }, { 3, 1, 1 } }

describe("int8 and int4 on CUDA", function()
  before_each(function() moth.manual_seed(5) end)

  for _, shape in ipairs(shapes) do
    it(("linear (%d, %d) by (%d): the bits of the CPU #M442"):format(shape[1], shape[2], shape[3]), function()
      there()
      local m, k, n = unpack(shape)
      local x, w = moth.randn(m, k), moth.randint(-128, 128, { n, k }):to(moth.int8)
      local scale = moth.randint(-6, 2, { n }):to(moth.float32):exp2()
      local bias = moth.randint(-5, 5, { n }):to(moth.float32)
      for _, input in ipairs { x, x:to(moth.float64), moth.randint(0, 256, { m, k }):to(moth.uint8) } do
        local a, b = both(function(to)
          return moth.linear_int8(to(input), to(w), to(scale), to(bias), 0.125, 100, true)
        end)
        assert.is_true(moth.equal(a, b))
      end
      local a, b = both(function(to) return moth.linear_int8_dynamic(to(x), to(w), to(scale), to(bias)) end)
      assert.is_true(moth.allclose(a, b, 1e-6, 1e-5))
      local half = x:to(moth.float16)
      assert.equal("float16", moth.linear_int8_dynamic(cuda(half), cuda(w), cuda(scale)):dtype().name)
      for _, group in ipairs { 32, 128 } do
        local bytes = moth.randint(0, 256, { n, math.ceil(k / 2) }):to(moth.uint8)
        local by = moth.rand(n, math.ceil(k / group))
        a, b = both(function(to) return moth.linear_int4(to(x), to(bytes), to(by), to(bias), group) end)
        assert.is_true(moth.allclose(a, b, 1e-4, 1e-3))
      end
    end)
  end

  it("weights in blocks of all types of GGUF", function()
    there()
    for name, t in pairs(require("moth_lua").gguf_blocks()) do
      local w = moth.randint(0, 59, { 7, 3 * t.bytes }):to(moth.uint8)
      for _, dtype in ipairs { moth.float32, moth.float64, moth.float16 } do
        local a, b = both(function(to) return moth.unpack_blocks(to(w), name, dtype) end)
        assert.is_true(moth.allclose(a, b, { rtol = 1e-6, atol = 0 }), name)
      end
      local x, bias = moth.randn(3, 3 * t.elements), moth.randn(7)
      local a, b = both(function(to) return moth.linear_blocks(to(x), to(w), name, to(bias)) end)
      assert.is_true(((a - b):abs():amax() / a:abs():amax()):item() < 1e-5, name)
    end
  end)

  it("a row with NaN is NaN, the others are as they were", function()
    there()
    local x, w = moth.randn(4, 20), moth.randint(-128, 128, { 6, 20 }):to(moth.int8)
    local scale = moth.rand(6)
    x[2][3] = 0 / 0
    local a, b = both(function(to) return moth.linear_int8_dynamic(to(x), to(w), to(scale)) end)
    assert.is_true(moth.allclose(a, b, 1e-5, 1e-4, true))
    assert.is_true(b[2]:isnan():all():item())
    assert.is_false(b[3]:isnan():any():item())
  end)

  -- images, channels, height, width; out, kernel; stride, padding, dilation, groups
  for _, c in ipairs { { 2, 3, 7, 6, 8, 3, 3, 1, 1, 1, 1 }, { 1, 4, 9, 9, 6, 3, 2, 2, 1, 1, 2 },
    { 3, 6, 5, 4, 6, 3, 3, 1, 1, 1, 6 }, { 1, 2, 9, 7, 2, 2, 3, 1, 2, 2, 1 } } do
    it(("conv2d of (%s): the bits of the CPU #M443"):format(table.concat(c, ", ")), function()
      there()
      local x, w = moth.randn(c[1], c[2], c[3], c[4]), moth.randint(-128, 128, { c[5], c[2] / c[11], c[6], c[7] })
      local scale = moth.randint(-6, 2, { c[5] }):to(moth.float32):exp2()
      for _, input in ipairs { x, (x * 40 + 120):clamp(0, 255):to(moth.uint8) } do
        local a, b = both(function(to)
          return moth.conv2d_int8(to(input), to(w:to(moth.int8)), to(scale), nil, 0.0625, 120, c[8], c[9], c[10], c[11],
            true)
        end)
        assert.is_true(moth.equal(a, b))
      end
    end)
  end

  it("quantised models move to the device", function()
    there()
    local m = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 10)):eval()
    local x = moth.randn(3, 2, 6, 6)
    m.qconfig = q.get_default_qconfig()
    local p = q.prepare(m)
    p(x)
    for _, made in ipairs { q.convert(p), q.quantize_dynamic(m), q.quantize_weights(m, { group = 32 }) } do
      local want = made(x)
      assert.is_true(moth.allclose(want, made:to("cuda")(cuda(x)):to "cpu", 1e-4, 1e-4))
    end
  end)
end)
