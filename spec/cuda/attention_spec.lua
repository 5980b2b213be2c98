-- Attention on the device against the CPU: tiles and partial tiles, shared heads, masks of every shape, causality,
-- dropout's bits, strided heads, wide ones; the same bits in every run.
local moth = require "moth"

local tolerance = { float32 = 2e-5, float64 = 1e-11, float16 = 4e-3, bfloat16 = 3e-2 }

local function heads(dtype, ...) return moth.randn(...):to(dtype) end
local function close(what, a, b, dtype)
  local e = tolerance[dtype]
  assert.same(a:size(), b:size(), what)
  a, b = a:double(), b:cpu():double()
  local off = a:numel() > 0 and (a - b):abs():max():item() or 0
  local largest = math.max(1, a:numel() > 0 and a:abs():max():item() or 0)
  assert(off <= e * largest, ("%s: off by %g of %g"):format(what, off, largest))
end

-- Results and gradients on both devices; options.keep(t): as the device gets it.
local function compare(what, dtype, q, k, v, mask, options)
  options = options or {}
  local out, generators = {}, {}
  for i, device in ipairs { "cpu", "cuda" } do
    local there, generator = {}, moth.Generator(11)
    for n, t in ipairs { q, k, v } do
      local copy = t:to(device)
      if device == "cuda" and options.layout then copy = options.layout(copy) end
      there[n] = copy:detach():requires_grad_(true)
    end
    local y = moth.scaled_dot_product_attention(there[1], there[2], there[3], mask and mask:to(device),
      options.p or 0, options.causal or false, options.scale, options.gqa or false, generator)
    local weight = moth.linspace(-1, 2, y:numel()):to(dtype):view(unpack(y:size())):to(device)
    local sum = (y * weight):sum()
    sum:backward()
    out[i] = { y, there[1].grad, there[2].grad, there[3].grad }
    generators[i] = moth.rand(1, { generator = generator })
  end
  assert(moth.equal(generators[1], generators[2]), what .. ": the generators have moved apart")
  for n, name in ipairs { "the result", "query's gradient", "key's gradient", "value's gradient" } do
    close(("%s, %s, %s"):format(what, dtype, name), out[1][n], out[2][n], dtype)
  end
end

describe("attention on CUDA", function()
  if not moth.cuda.is_available() then
    it("is the CPU's", function() pending(moth.cuda.why()) end)
    return
  end
  local dtypes = { "float32", "float64", "float16", "bfloat16" }

  it("sizes around the tiles, odd and uneven head sizes", function()
    for _, s in ipairs { { 1, 1, 1, 1 }, { 63, 65, 5, 7 }, { 70, 33, 64, 64 }, { 5, 130, 8, 3 }, { 66, 66, 33, 80 } } do
      for _, dtype in ipairs(dtypes) do
        local l, n, e, w = unpack(s)
        local what = ("%d queries, %d keys, %d and %d columns"):format(l, n, e, w)
        compare(what, dtype, heads(dtype, 1, 2, l, e), heads(dtype, 1, 2, n, e), heads(dtype, 1, 2, n, w))
        compare(what .. ", causal", dtype, heads(dtype, 1, 1, l, e), heads(dtype, 1, 1, n, e), heads(dtype, 1, 1, n, w),
          nil, { causal = true, scale = 0.3 })
      end
    end
  end)
  it("wide heads: 128, 256 and more columns", function()
    for _, s in ipairs { { 100, 128 }, { 256, 250 }, { 40, 300 }, { 290, 16 } } do
      for _, dtype in ipairs { "float32", "float64" } do
        compare(("%d and %d columns"):format(s[1], s[2]), dtype, heads(dtype, 1, 1, 9, s[1]),
          heads(dtype, 1, 1, 37, s[1]), heads(dtype, 1, 1, 37, s[2]), nil, { causal = true })
      end
    end
  end)
  it("groups of heads that share keys and values", function()
    for _, dtype in ipairs(dtypes) do
      compare("6 heads over 2", dtype, heads(dtype, 2, 6, 35, 16), heads(dtype, 2, 2, 40, 16),
        heads(dtype, 2, 2, 40, 16), nil, { gqa = true, causal = true })
    end
  end)
  it("masks: bool and added, of every shape that broadcasts; rows that see nothing", function()
    for _, dtype in ipairs(dtypes) do
      for _, shape in ipairs { { 34, 35 }, { 35 }, { 34, 1 }, { 3, 34, 35 }, { 2, 1, 1, 35 }, { 2, 3, 34, 35 },
        { 1 } } do
        local q, k, v = heads(dtype, 2, 3, 34, 8), heads(dtype, 2, 3, 35, 8), heads(dtype, 2, 3, 35, 8)
        local what = "mask " .. table.concat(shape, "x")
        local seen = moth.rand(unpack(shape)):gt(0.4)
        compare(what .. " bool", dtype, q, k, v, seen)
        compare(what .. " added", dtype, q, k, v, moth.randn(unpack(shape)):to(dtype))
      end
    end
    local none = moth.ones(70, 70):gt(0)
    none[{ { 3, 66 } }] = false
    local q, k, v = heads("float32", 1, 1, 70, 8), heads("float32", 1, 1, 70, 8), heads("float32", 1, 1, 70, 8)
    compare("rows that see nothing", "float32", q, k, v, none)
    local y, lse = moth.ops.moth.attention_forward(q:cuda(), k:cuda(), v:cuda(), none:cuda(), 0, false, 1)
    assert.equal(0, y[{ 1, 1, 5 }]:abs():max():item())
    assert.equal(math.huge, lse[{ 1, 1, 5 }]:item())
  end)
  it("dropout by the CPU's bits", function()
    for _, dtype in ipairs(dtypes) do
      for _, p in ipairs { 0.3, 1 } do
        for _, keys in ipairs { 37, 70 } do
          compare(("dropout %g of %d keys"):format(p, keys), dtype, heads(dtype, 2, 4, 39, 8),
            heads(dtype, 2, 2, keys, 8), heads(dtype, 2, 2, keys, 8), nil, { p = p, gqa = true, causal = keys == 70 })
        end
      end
    end
  end)
  it("heads as a projection leaves them: rows far apart, addresses that are no multiple of 16", function()
    local function across(t) return t:transpose(2, 3):contiguous():transpose(2, 3) end
    local function gaps(t)
      local wide = moth.zeros(t:size(1), t:size(2), t:size(3), t:size(4) + 1,
        { dtype = t:dtype(), device = t:device() })
      local part = wide:narrow(4, 2, t:size(4))
      part:copy_(t)
      return part
    end
    local function turned(t) return t:transpose(3, 4):contiguous():transpose(3, 4) end
    for _, dtype in ipairs(dtypes) do
      for name, layout in pairs { across = across, gaps = gaps, turned = turned } do
        compare(name, dtype, heads(dtype, 2, 3, 37, 16), heads(dtype, 2, 3, 37, 16), heads(dtype, 2, 3, 37, 16), nil,
          { layout = layout, causal = true })
      end
    end
  end)
  it("nothing: no queries, no keys, no columns, no batch", function()
    for _, s in ipairs { { 0, 5, 4, 4 }, { 5, 0, 4, 4 }, { 5, 3, 0, 4 }, { 5, 3, 4, 0 } } do
      local l, n, e, w = unpack(s)
      compare(table.concat(s, ","), "float32", heads("float32", 2, 1, l, e), heads("float32", 2, 1, n, e),
        heads("float32", 2, 1, n, w), nil, { scale = 1 })
    end
    compare("no batch", "float32", heads("float32", 0, 2, 3, 4), heads("float32", 0, 2, 3, 4),
      heads("float32", 0, 2, 3, 4))
  end)
  it("the same bits in every run, forward and backward", function()
    for _, dtype in ipairs { "float32", "bfloat16" } do
      local first
      local q, k, v = heads(dtype, 1, 2, 150, 32), heads(dtype, 1, 2, 150, 32), heads(dtype, 1, 2, 150, 32)
      for _ = 1, 2 do
        local t = {}
        for i, x in ipairs { q, k, v } do t[i] = x:cuda():requires_grad_(true) end
        local y = moth.scaled_dot_product_attention(t[1], t[2], t[3], { is_causal = true })
        y:sum():backward()
        local all = { y:cpu(), t[1].grad:cpu(), t[2].grad:cpu(), t[3].grad:cpu() }
        first = first or all
        for i = 1, 4 do assert(moth.equal(first[i], all[i]), dtype .. i) end
      end
    end
  end)
end)
