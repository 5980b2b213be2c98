-- What ops are composed of in ONNX files (lua/moth/onnx/composed.lua) computes what their kernels do.
local moth = require "moth"
local B = require "moth_lua"
local support = require "ops.support"
local composed = require "moth.onnx.composed"
local path = os.tmpname()

local function near(a, b)
  if a:dtype() ~= b:dtype() or not moth.equal(moth.tensor(a:size()), moth.tensor(b:size())) then return false end
  if a:numel() == 0 then return true end
  a, b = a:to(moth.float64), b:to(moth.float64)
  local same = a:eq(b):logical_or(a:isnan():logical_and(b:isnan()))
  return (a - b):abs():le(b:abs() * 1e-3 + 1e-4):logical_or(same):all():item()
end

-- The values of a call by the kernel and by what it is composed of, on float32.
local function compare(op, text, i)
  local args = support.map(op, support.evaluate(text, { seed = 5 + i }), function(t)
    return t:dtype() == moth.float64 and t:to(moth.float32) or t
  end)
  local n = args.n or #op.args
  for k = 1, n do
    if B.is_tensor(args[k]) and args[k]:is_complex() then return end
  end
  local want, got = { B.ops[op.name](unpack(args, 1, n)) }, { composed[op.name](unpack(args, 1, n)) }
  for k, w in ipairs(want) do
    assert.is_true(near(w, got[k]), ("%s(%s): %s instead of %s"):format(op.name, text, tostring(got[k]), tostring(w)))
  end
end

describe("moth.onnx.composed", function()
  teardown(function() os.remove(path) end)

  it("computes what the kernels do", function()
    local count = 0
    for _, op in ipairs(support.records) do
      if op.onnx and op.onnx:find("^composed%(true%)") and composed[op.name] then
        count = count + 1
        for i, text in ipairs(op.samples) do compare(op, text, i) end
      end
    end
    assert.is_true(count > 45)
  end)

  it("is written at sizes that change, with its loops #quick #M418", function()
    local function f(A, b) return moth.linalg.solve(A, b), A:lgamma(), A:cummax(2) end
    local A, b = moth.rand(2, 3, 3) + 3 * moth.eye(3), moth.randn(2, 3, 2)
    moth.onnx.export(f, { A, b }, path, { dynamic_shapes = { { [1] = "n" }, { [1] = "n" } } })
    local session = moth.onnx.InferenceSession(path)
    for _, n in ipairs { 1, 2, 5 } do
      A, b = moth.rand(n, 3, 3) + 3 * moth.eye(3), moth.randn(n, 3, 2)
      local want, got = { f(A, b) }, session:run(nil, { A = A, b = b })
      for i = 1, 3 do assert.is_true(near(want[i], got[i])) end
      assert.same((want[4] - 1):totable(), got[4]:totable()) -- positions count from 0 in the file
    end
  end)

  it("variances, diagonals and windows of sizes that change", function()
    local F, Dim = moth.nn.functional, moth.Dim
    local n, m = Dim("n", { min = 4 }), Dim("m", { min = 4 })
    local function two(a, b) return moth.randn(a, b) end
    local function image(a, b) return moth.randn(2, 3, a, b) end
    for _, case in ipairs {
      { function(x) return x:var(1), x:std(2), x:var(), x:std({ 1, 2 }, { correction = 0 }) end, two },
      { function(x) return F.layer_norm(x, { x:size(2) }), F.layer_norm(x, { x:size(1), x:size(2) }) end, two },
      { function(x) return moth.eye(x:size(1), x:size(2)) + x, moth.eye(x:size(2)):long() end, two },
      { function(x) return moth.diag_embed(x), moth.diag_embed(x, -2, 1, 3), moth.diag(x[1], 1) end, two },
      { function(x) return x:unfold(1, 3, 2), x:unfold(2, 2, 1):sum(3) end, two },
      { function(x) return x * moth.hann_window(x:size(2)), x:t() + moth.blackman_window(x:size(1)) end, two },
      { function(x) return F.unfold(x, { 2, 3 }, { padding = 1, stride = 2 }), F.unfold(x[1], 3) end, image },
      { function(x) return F.adaptive_avg_pool2d(x, { 3, 2 }), F.adaptive_max_pool2d(x, 3) end, image },
      { function(x) return F.max_pool2d(x, 2, { return_indices = true }) end, image, true },
      { function(x)
        local size = { x:size(3) * 2, x:size(4) + 1 }
        return F.interpolate(x, { size = size, mode = "bilinear", align_corners = true })
      end, image },
    } do
      local f, make, places = unpack(case)
      local dims = make == two and { [1] = n, [2] = m } or { [3] = n, [4] = m }
      local ep = moth.export(f, { make(6, 8) }, { dynamic_shapes = { dims } })
      moth.onnx.export(ep, nil, path)
      local session = moth.onnx.InferenceSession(path)
      moth.edge.export(ep, path)
      local edge = moth.edge.load(path)
      for _, size in ipairs { { 6, 8 }, { 4, 7 }, { 9, 5 }, { 41, 33 } } do
        local x = make(unpack(size))
        local want, got, c = { f(x) }, session:run(nil, { x = x }), { edge(x) }
        for i, w in ipairs(want) do
          assert.is_true(near(w, c[i]))
          if places and i == 2 then w = w - 1 end
          assert.is_true(near(w, got[i]), ("%d at %dx%d"):format(i, unpack(size)))
        end
      end
    end
  end)

  it("bools are 0 and 1 where operators take numbers", function()
    local x = moth.tensor { { 0.5, -1, 2 }, { -0.5, 3, -0.0 }, { 1, 1, -2 } }
    local b = x:gt(0)
    for _, f in ipairs {
      function(v) return v + 1, v * 1, v * 0.5, v / 2, v ^ 2, v:floor_divide(2), v:remainder(2), v:fmod(2) end,
      function(v) return v + v, v * v, moth.maximum(v, v), v:amax(1), v:max(1), v:sort(2), v:cumsum(1), v:prod(1) end,
      function(v) return v:gt(0), v:eq(1), v:le(true), v:lt(0.5), v:argmax(1), v:topk(2, 1), (v * 2):clamp(0, 1) end,
      function(v) return moth.where(v, v, v:eq(false)), v:masked_fill(v, false), moth.where(v, true, v) end,
      function(v) return moth.heaviside(v - 0.5, moth.tensor(2)), (v * -0.0):signbit(), (v * -1):signbit() end,
      function(v) return (v / v:float()):isfinite(), (v / v:float()):isnan(), v:long():isinf(), v:half():isnan() end,
      function(v) return moth.bitwise_left_shift(v * 3, 2), moth.bitwise_right_shift(v * -5, 1), moth.isclose(v, v) end,
    } do
      local ep = moth.export(f, { b })
      moth.onnx.export(ep, nil, path, { index_base = 1 })
      local want, got = { f(b) }, moth.onnx.InferenceSession(path):run(nil, { v = b })
      assert.equal(#want, #got)
      for i, w in ipairs(want) do assert.is_true(near(w, got[i]), tostring(w) .. tostring(got[i])) end
    end
  end)

  it("products and sums before each element, and pairs, of sizes that change", function()
    local function f(x) return x:cumprod(1), x:logcumsumexp(1), x:gt(0):cumprod(2), moth.nn.functional.pdist(x) end
    local function g(x)
      local cache = moth.zeros(512, 3)
      cache:narrow(1, x:size(1), x:size(1)):copy_(x)
      return cache:sum(1), cache:narrow(1, 1, x:size(1) * 2)
    end
    local n = moth.Dim("n", { min = 2, max = 200 })
    for _, fn in ipairs { f, g } do
      moth.onnx.export(fn, { moth.randn(4, 3) }, path, { dynamic_shapes = { { [1] = n } } })
      local session = moth.onnx.InferenceSession(path)
      for _, size in ipairs { 4, 2, 7, 65 } do
        local x = moth.randn(size, 3)
        local want, got = { fn(x) }, session:run(nil, { x = x })
        for i, w in ipairs(want) do assert.is_true(near(w, got[i])) end
      end
    end
  end)

  it("cross entropy with smoothed labels, and of one row", function()
    local x, target = moth.randn(4, 5), moth.tensor({ 1, 5, 2, 2 }, { dtype = moth.int64 })
    for _, case in ipairs { { x, target, 0.1 }, { x[1], target[1], 0 } } do
      local function f(v, t) return moth.nn.functional.cross_entropy(v, t, { label_smoothing = case[3] }) end
      moth.onnx.export(f, { case[1], case[2] }, path)
      local got = moth.onnx.InferenceSession(path):run(nil, { v = case[1], t = case[2] - 1 })[1]
      assert.is_true(near(f(case[1], case[2]), got), tostring(got) .. tostring(f(case[1], case[2])))
    end
  end)

  it("what asks for strides and offsets of an input is written #quick", function()
    local function f(x) return x:as_strided({ 3, 2 }, { 2, 1 }, 1) end
    local x, file = moth.randn(4, 6), os.tmpname()
    moth.onnx.export(f, x, file, { input_names = { "x" } })
    local got = moth.onnx.InferenceSession(file):run(nil, { x = x })[1]
    os.remove(file)
    assert.same(f(x):totable(), got:totable())
  end)
end)
