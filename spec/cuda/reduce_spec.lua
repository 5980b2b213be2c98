-- Reductions, arg reductions, running sums, softmax and cross-entropy: CUDA (or its emulation) against the CPU,
-- over dtypes, layouts, dimensions, sizes around every limit of the kernels, NaN and infinities.
local ffi = require "ffi"
local moth = require "moth"
local S = require "ops.support"

local here = moth.cuda.is_available()
local function spec(name, fn)
  it(name, function()
    if not here then return pending("no CUDA device: " .. tostring(moth.cuda.why())) end
    fn()
  end)
end

local FLOATS = { "float64", "float32", "float16", "bfloat16" }
local INTS = { "int8", "uint8", "int16", "int32", "int64", "bool" }
local ALL = { unpack(FLOATS) }
for _, d in ipairs(INTS) do ALL[#ALL + 1] = d end
local INF, NAN = math.huge, 0 / 0

-- data --------------------------------------------------------------------------------------------

--- kind: "normal", "whole" (-3 to 3: exact sums), "near" (about 1: products), "tied" (few values),
-- "special" (normal with NaN and infinities), "infinite" (with infinities alone).
local makers = {
  whole = function(u) return math.floor(u() * 7) - 3 end,
  near = function(u) return 0.75 + u() / 2 end,
  tied = function(u) return math.floor(u() * 4) end,
  normal = function(u) return 3 * (u() + u() + u() - 1.5) end,
  special = function(u)
    local x = u()
    return x < 0.02 and NAN or x < 0.05 and INF or x < 0.08 and -INF or x - 0.5
  end,
  infinite = function(u)
    local x = u()
    return x < 0.05 and INF or x < 0.3 and -INF or x - 0.5
  end,
}
local function make(shape, dtype, kind)
  local data, fn = {}, makers[kind]
  local float = S.class[dtype] == "float"
  for i = 1, S.product(shape) do
    local x = fn(S.uniform)
    if not float then
      x = x - x == 0 and math.floor(x) or 1
      if dtype == "uint8" then x = math.abs(x) elseif dtype == "bool" then x = x > 0 and 1 or 0 end
    end
    data[i] = x
  end
  return S.make(shape, dtype, data)
end

--- Views of a CPU tensor and of the same on CUDA. Each gets the whole and gives what has `shape`.
local layouts = {
  contiguous = function(shape, of) return of(shape) end,
  transposed = function(shape, of)
    local turned = { unpack(shape) }
    turned[1], turned[#turned] = turned[#turned], turned[1]
    return of(turned, function(t) return t:transpose(1, -1) end)
  end,
  strided = function(shape, of)
    local wide = { unpack(shape) }
    wide[#wide + 1] = 2
    return of(wide, function(t) return t:select(-1, 2) end)
  end,
  offset = function(shape, of)
    local n = S.product(shape)
    return of({ n + 3 }, function(t) return t:narrow(1, 2, n):view(shape) end)
  end,
  expanded = function(shape, of)
    local row = { unpack(shape) }
    row[1] = 1
    return of(row, function(t) return t:expand(shape) end)
  end,
  narrowed = function(shape, of)
    local wide = { unpack(shape) }
    wide[#wide] = wide[#wide] + 5
    return of(wide, function(t) return t:narrow(-1, 3, shape[#shape]) end)
  end,
}
local LAYOUTS = { "contiguous", "transposed", "strided", "offset", "expanded", "narrowed" }

--- x on the CPU and on CUDA in one layout.
local function both(shape, dtype, kind, layout)
  S.reseed(S.seed + #shape * 7 + S.product(shape))
  if #shape == 0 then layout = "contiguous" end
  return layouts[layout or "contiguous"](shape, function(whole, view)
    local c = make(whole, dtype, kind)
    local g = c:cuda()
    if view then return view(c), view(g) end
    return c, g
  end)
end

-- comparing ---------------------------------------------------------------------------------------

local cases = 0
--- scale: what errors are measured against beyond the values themselves.
local function same(got, want, what, scale)
  cases = cases + 1
  local dtype = S.dtype_of(want)
  assert(S.dtype_of(got) == dtype, what .. ": dtype " .. S.dtype_of(got) .. ", expected " .. dtype)
  assert(got:is_cuda(), what .. ": not on CUDA")
  local a, b = got:size(), want:size()
  assert(#a == #b, what .. ": another number of dimensions")
  for i = 1, #a do assert(a[i] == b[i], what .. ": another shape") end
  local tolerance = S.tolerance[dtype] or { 0, 0 }
  local rtol, atol = tolerance[1], tolerance[2] * (scale or 1)
  local p, q = got:cpu():to(moth.float64):contiguous(), want:to(moth.float64):contiguous()
  local x, y = ffi.cast("double*", p:data_ptr()), ffi.cast("double*", q:data_ptr())
  for i = 0, want:numel() - 1 do
    local ok = x[i] == y[i] or (x[i] ~= x[i] and y[i] ~= y[i]) or math.abs(x[i] - y[i]) <= atol + rtol * math.abs(y[i])
    if not ok then error(("%s: element %d is %.9g, expected %.9g"):format(what, i + 1, x[i], y[i]), 2) end
  end
end
local function label(op, shape, dtype, kind, layout, ...)
  local t = {}
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    t[i] = type(v) == "table" and "{" .. table.concat(v, ",") .. "}" or tostring(v)
  end
  return ("%s(%s) of {%s} %s %s %s"):format(op, table.concat(t, ", "), table.concat(shape, ","), dtype, kind,
    layout or "contiguous")
end
--- One op, its arguments the same for both devices.
local function check(op, shape, dtype, kind, layout, ...)
  local c, g = both(shape, dtype, kind, layout)
  local what = label(op, shape, dtype, kind, layout, ...)
  local want, want2 = moth[op](c, ...)
  local got, got2 = moth[op](g, ...)
  same(got, want, what, math.max(1, math.sqrt(c:numel() / math.max(want:numel(), 1))))
  if want2 ~= nil then same(got2, want2, what .. ", second result") end
end

local SIMPLE = { "sum", "prod", "amax", "amin", "any", "all" }
local kind_of = { sum = "whole", prod = "near" }

describe("reductions on CUDA", function()
  for _, op in ipairs(SIMPLE) do
    spec(op .. " of every dtype and layout", function()
      for _, dtype in ipairs(ALL) do
        for _, layout in ipairs(LAYOUTS) do
          for _, dims in ipairs { false, { 1 }, { 2 }, { 3 }, { 1, 3 }, { 1, 2 }, { 2, 3 } } do
            check(op, { 5, 6, 8 }, dtype, kind_of[op] or "normal", layout, dims or nil, dims and #dims == 2)
          end
          check(op, { 33 }, dtype, kind_of[op] or "normal", layout)
        end
        check(op, {}, dtype, "normal")
      end
    end)
  end

  spec("mean, var and logsumexp of every float dtype and layout", function()
    for _, dtype in ipairs(FLOATS) do
      for _, layout in ipairs(LAYOUTS) do
        for _, dims in ipairs { { 1, 2, 3 }, { 1 }, { 2 }, { 3 }, { 1, 3 }, { 1, 2 }, { 2, 3 } } do
          check("mean", { 5, 6, 8 }, dtype, "normal", layout, dims)
          check("var", { 5, 6, 8 }, dtype, "normal", layout, dims)
          check("var", { 5, 6, 8 }, dtype, "normal", layout, dims, 0, true)
          check("logsumexp", { 5, 6, 8 }, dtype, "normal", layout, dims)
        end
      end
      check("mean", {}, dtype, "normal")
      check("var", {}, dtype, "normal")
      check("logsumexp", {}, dtype, "normal", nil, {})
    end
  end)

  -- Along rows, along columns, all of it.
  spec("sizes around the limits of the kernels", function()
    for _, dtype in ipairs { "float32", "bfloat16", "int8" } do
      for _, n in ipairs { 1, 2, 3, 31, 32, 33, 127, 255, 1023, 1024, 1025, 4097, 70000 } do
        local float = S.class[dtype] == "float"
        for _, op in ipairs { "sum", "amax", float and "var" or "any", float and "logsumexp" or "prod", "max_dim" } do
          local kind = op == "sum" and "whole" or "normal"
          local function dim(d) return op == "max_dim" and d or { d } end
          check(op, { n }, dtype, kind, nil, dim(1))
          check(op, { n }, dtype, kind, "offset", dim(1))
          check(op, { 3, n }, dtype, kind, nil, dim(2))
          check(op, { 3, n }, dtype, kind, "narrowed", dim(2))
          check(op, { n, 3 }, dtype, kind, nil, dim(1))
          check(op, { n, 4 }, dtype, kind, nil, dim(1))
          check(op, { 2, n, 3 }, dtype, kind, nil, dim(2))
          check(op, { 3, n }, dtype, kind, nil, dim(1))
        end
      end
    end
  end)

  spec("normalisation over batch and space", function()
    for _, dtype in ipairs(FLOATS) do
      for _, shape in ipairs { { 4, 3, 5, 5 }, { 8, 3, 16, 16 }, { 9, 2, 31, 33 }, { 300, 5, 4, 4 } } do
        check("sum", shape, dtype, "whole", nil, { 1, 3, 4 })
        check("var", shape, dtype, "normal", nil, { 1, 3, 4 })
        check("amin", shape, dtype, "normal", "transposed", { 1, 3, 4 })
      end
    end
  end)

  spec("NaN and infinities", function()
    for _, dtype in ipairs(FLOATS) do
      for _, kind in ipairs { "special", "infinite" } do
        for _, op in ipairs { "sum", "amax", "amin", "any", "all", "mean", "var", "logsumexp" } do
          for _, dims in ipairs { { 1 }, { 2 }, { 1, 2 } } do
            check(op, { 40, 21 }, dtype, kind, nil, dims)
            check(op, { 7, 1500 }, dtype, kind, nil, dims)
          end
        end
        for d = 1, 2 do
          check("max_dim", { 40, 21 }, dtype, kind, nil, d)
          check("min_dim", { 7, 1500 }, dtype, kind, nil, d)
        end
      end
      local c = moth.full({ 3, 5 }, -INF, { dtype = moth[dtype] })
      same(c:cuda():logsumexp { 2 }, c:logsumexp { 2 }, "logsumexp of -inf")
    end
  end)

  spec("no elements", function()
    for _, dtype in ipairs(ALL) do
      for _, op in ipairs { "sum", "prod", "any", "all" } do
        check(op, { 0 }, dtype, "normal")
        check(op, { 0, 3 }, dtype, "normal", nil, { 1 })
        check(op, { 3, 0 }, dtype, "normal", nil, { 2 }, true)
        check(op, { 0, 3 }, dtype, "normal", nil, { 2 })
        check(op, { 2, 0, 3 }, dtype, "normal", nil, { 2 })
      end
    end
    for _, dtype in ipairs(FLOATS) do
      for _, op in ipairs { "mean", "var", "logsumexp" } do
        check(op, { 3, 0 }, dtype, "normal", nil, { 2 })
        check(op, { 0, 3 }, dtype, "normal", nil, { 1 })
        check(op, { 0, 3 }, dtype, "normal", nil, { 2 })
      end
      check("var", { 1, 3 }, dtype, "normal", nil, { 1 })
      check("var", { 2, 3 }, dtype, "normal", nil, { 1 }, 5)
    end
    assert.has_error(function() moth.amax(moth.empty({ 0 }, { device = "cuda" })) end)
  end)

  spec("sums into another dtype", function()
    for _, from in ipairs(ALL) do
      for _, to in ipairs(ALL) do
        check("sum", { 6, 40 }, from, "whole", nil, { 2 }, false, moth[to])
        check("prod", { 6, 7 }, from, "whole", nil, { 1 }, false, moth[to])
      end
      check("mean", { 6, 40 }, from, "whole", nil, { 2 }, false, moth.float32)
    end
  end)

  -- Summed one by one in float32, 70000 times 0.1 is off by 1e-4 and a variance about 1e4 by all digits.
  spec("long sums keep their digits", function()
    local c = moth.full({ 70000 }, 0.1, { dtype = moth.float32 })
    local got, want = c:cuda():sum():item(), c:to(moth.float64):sum():item()
    assert(math.abs(got - want) <= 2e-7 * want, ("sum %.9g, expected %.9g"):format(got, want))
    local x = make({ 3, 70000 }, "float64", "normal")
    x = x:add(1e4):to(moth.float32)
    local v, w = x:cuda():var({ 2 }):cpu():totable(), x:to(moth.float64):var({ 2 }):totable()
    for i = 1, 3 do assert(math.abs(v[i] - w[i]) <= 3e-6 * w[i], ("var %.9g, expected %.9g"):format(v[i], w[i])) end
  end)

  spec("the same bits again", function()
    local _, x = both({ 3, 70000 }, "float32", "normal")
    for _, dims in ipairs { { 1 }, { 2 }, { 1, 2 } } do
      local a, b = x:sum(dims):cpu(), x:sum(dims):cpu()
      assert(a:eq(b):all():item())
    end
  end)
end)

describe("arg reductions on CUDA", function()
  for _, op in ipairs { "argmax", "argmin", "max_dim", "min_dim" } do
    spec(op, function()
      for _, dtype in ipairs(ALL) do
        for _, kind in ipairs { "normal", "tied" } do
          for _, layout in ipairs(LAYOUTS) do
            for d = 1, 3 do check(op, { 5, 6, 8 }, dtype, kind, layout, d, d == 2) end
            if op:find "arg" then check(op, { 5, 6, 8 }, dtype, kind, layout) end
          end
        end
      end
      check(op, {}, "float32", "normal", nil, 1)
      for _, n in ipairs { 1, 33, 1025, 4097, 70000 } do
        check(op, { 2, n }, "float32", "tied", nil, 2)
        check(op, { n, 2 }, "float32", "tied", nil, 1)
        check(op, { n }, "float16", "tied", "offset", 1)
      end
    end)
  end
end)

describe("conversions on CUDA", function()
  spec("give the CPU's bits: to 16 bits each number is rounded once", function()
    -- Next to a tie of float16 and bfloat16, beyond the last place of float32, of double.
    local near = moth.tensor({ 1 + 2 ^ -11 + 2 ^ -40, 1 + 2 ^ -8 + 2 ^ -40, -1 - 2 ^ -11 - 2 ^ -40, 2049 + 2 ^ -30,
      1e-8, 65519.9999 }, { dtype = moth.float64 })
    local big = moth.tensor({ 16842753, 33685505, -16842753, 2049, 4196353 }, { dtype = moth.int64 })
    for _, to in ipairs { "float16", "bfloat16", "float32" } do
      for _, x in ipairs { near, big, big:to(moth.int32) } do
        assert.same(x:to(moth[to]):double():totable(), x:cuda():to(moth[to]):cpu():double():totable(), to)
      end
    end
    assert.equal(1 + 2 ^ -10, near:cuda():to(moth.float16):cpu():double()[1]:item())
  end)
end)

describe("cumsum on CUDA", function()
  spec("of every dtype, layout and dimension", function()
    for _, dtype in ipairs(ALL) do
      for _, layout in ipairs(LAYOUTS) do
        for d = 1, 3 do check("cumsum", { 5, 6, 8 }, dtype, "whole", layout, d) end
      end
      check("cumsum", {}, dtype, "normal", nil, 1)
      check("cumsum", { 0, 3 }, dtype, "normal", nil, 1)
      check("cumsum", { 3, 0 }, dtype, "normal", nil, 2)
    end
  end)

  spec("of sizes around the limits of the kernels", function()
    for _, dtype in ipairs { "float32", "float16", "int8", "int64" } do
      for _, n in ipairs { 1, 2, 31, 32, 33, 1023, 1024, 1025, 4097, 70000 } do
        check("cumsum", { n }, dtype, "whole", nil, 1)
        check("cumsum", { n }, dtype, "whole", "offset", 1)
        check("cumsum", { 3, n }, dtype, "whole", nil, 2)
        check("cumsum", { 40, n > 5000 and 5000 or n }, dtype, "whole", nil, 2)
        check("cumsum", { n, 3 }, dtype, "whole", nil, 1)
        check("cumsum", { 2, n, 3 }, dtype, "whole", nil, 2)
      end
    end
    check("cumsum", { 3, 3000 }, "float64", "normal", nil, 2)
    for _, dtype in ipairs(FLOATS) do check("cumsum", { 3, 3000 }, dtype, "special", nil, 2) end
  end)
end)

-- op(x, ...) of both devices, and its derivative at the same output.
local function check_softmax(log, shape, dtype, kind, layout, d)
  local c, g = both(shape, dtype, kind, layout)
  local op = log and "log_softmax" or "softmax"
  local what = label(op, shape, dtype, kind, layout, d)
  local want = moth[op](c, d)
  same(moth[op](g, d), want, what)
  local grad = make(shape, dtype, "normal")
  op = op .. "_backward"
  -- exp(y) of a stored y: as far off as y was rounded, times a sum of as many terms as a row has
  local n = #shape > 0 and shape[d] or 1
  local backward = require "moth_lua".ops[op]
  same(backward(grad:cuda(), want:cuda(), d), backward(grad, want, d), what .. ", backward", math.sqrt(n))
end

describe("softmax on CUDA", function()
  for _, log in ipairs { false, true } do
    local name = log and "log_softmax" or "softmax"
    spec(name .. " of every dtype, layout and dimension", function()
      for _, dtype in ipairs(FLOATS) do
        for _, layout in ipairs(LAYOUTS) do
          for d = 1, 3 do check_softmax(log, { 5, 6, 8 }, dtype, "normal", layout, d) end
        end
        check_softmax(log, {}, dtype, "normal", nil, 1)
        check_softmax(log, { 0, 3 }, dtype, "normal", nil, 2)
        check_softmax(log, { 3, 0 }, dtype, "normal", nil, 2)
        for d = 1, 2 do
          check_softmax(log, { 40, 21 }, dtype, "special", nil, d)
          check_softmax(log, { 9, 1500 }, dtype, "special", nil, d)
          check_softmax(log, { 1500, 9 }, dtype, "infinite", nil, d)
        end
      end
    end)

    spec(name .. " of sizes around the limits of the kernels", function()
      for _, dtype in ipairs { "float32", "bfloat16", "float64" } do
        for _, n in ipairs { 1, 2, 3, 31, 32, 33, 128, 129, 256, 257, 512, 1000, 1023, 1024, 1025, 4097, 5000,
          70000 } do
          check_softmax(log, { 2, n }, dtype, "normal", nil, 2)
          check_softmax(log, { n }, dtype, "normal", "offset", 1)
          if n <= 5000 then
            check_softmax(log, { 40, n > 1024 and 1030 or n }, dtype, "normal", nil, 2)
            check_softmax(log, { n, 3 }, dtype, "normal", nil, 1)
            check_softmax(log, { 2, n, 4 }, dtype, "normal", nil, 2)
            check_softmax(log, { 3, n }, dtype, "normal", nil, 1)
          end
        end
      end
    end)
  end

  spec("rows that shared memory does not hold", function()
    for _, log in ipairs { false, true } do
      for _, dtype in ipairs { "float32", "float16", "float64" } do
        check_softmax(log, { 3, 120001 }, dtype, "normal", nil, 2)
        check_softmax(log, { 120000 }, dtype, "normal", "offset", 1)
      end
    end
  end)

  spec("in another dtype", function()
    check("softmax", { 5, 40 }, "int32", "normal", nil, 2, moth.float32)
    check("log_softmax", { 5, 40 }, "float16", "normal", "transposed", 2, moth.float32)
  end)
end)

describe("cross_entropy on CUDA", function()
  --- classes: the target's dtype; every seventh row is ignored.
  local function targets(rows, n, dtype, ignore)
    local data = {}
    for i = 1, rows do data[i] = i % 7 == 0 and ignore or 1 + math.floor(S.uniform() * n) end
    return S.make({ rows }, dtype or "int64", data)
  end
  local function check_loss(rows, n, dtype, options)
    local c, g = both({ rows, n }, dtype, options.kind or "normal", options.layout)
    local ignore = options.ignore_index or -100
    local t = targets(rows, n, options.classes, ignore)
    local w = options.weighted and make({ n }, dtype, "near") or nil
    local reduction, smoothing = options.reduction or "mean", options.label_smoothing or 0
    local what = ("cross_entropy of {%d,%d} %s %s, smoothing %g%s"):format(rows, n, dtype, reduction, smoothing,
      w and ", weighted" or "")
    local want = moth.cross_entropy(c, t, w, reduction, ignore, smoothing)
    same(moth.cross_entropy(g, t:cuda(), w and w:cuda(), reduction, ignore, smoothing), want, what,
      reduction == "sum" and rows or 1)
    local grad = make(want:size(), dtype, "normal")
    same(moth.ops.moth.cross_entropy_backward(grad:cuda(), g, t:cuda(), w and w:cuda(), reduction, ignore, smoothing),
      moth.ops.moth.cross_entropy_backward(grad, c, t, w, reduction, ignore, smoothing), what .. ", backward")
  end

  spec("every reduction, weight and smoothing", function()
    for _, dtype in ipairs(FLOATS) do
      for _, reduction in ipairs { "mean", "sum", "none" } do
        for _, weighted in ipairs { false, true } do
          for _, smoothing in ipairs { 0, 0.1 } do
            for _, size in ipairs { { 9, 10 }, { 33, 5 }, { 8, 300 }, { 5, 1500 } } do
              check_loss(size[1], size[2], dtype, { reduction = reduction, weighted = weighted,
                label_smoothing = smoothing })
            end
          end
        end
      end
      check_loss(9, 10, dtype, { layout = "transposed", classes = "int32", ignore_index = 3 })
      check_loss(7, 1, dtype, { classes = "uint8", ignore_index = 0 })
      check_loss(20, 30, dtype, { kind = "infinite", reduction = "none" })
      check_loss(20, 30, dtype, { kind = "special", reduction = "none" })
    end
  end)

  spec("sizes around the limits of the kernels", function()
    for _, dtype in ipairs { "float32", "bfloat16" } do
      for _, n in ipairs { 1, 31, 33, 1023, 1025, 4097, 70000 } do
        check_loss(3, n, dtype, { reduction = "none" })
        check_loss(3, n, dtype, { label_smoothing = 0.2 })
      end
      check_loss(3000, 3, dtype, {})
      check_loss(3000, 3, dtype, { weighted = true, label_smoothing = 0.2 })
    end
    check_loss(1, 120001, "float32", {})
  end)

  spec("no row that counts, and no batch", function()
    local x, t = make({ 2, 3 }, "float32", "normal"), S.make({ 2 }, "int64", { -100, -100 })
    for _, reduction in ipairs { "mean", "sum", "none" } do
      same(moth.cross_entropy(x:cuda(), t:cuda(), nil, reduction), moth.cross_entropy(x, t, nil, reduction), reduction)
    end
    local e, f = moth.empty { 0, 3 }, moth.empty({ 0 }, { dtype = moth.int64 })
    for _, reduction in ipairs { "mean", "sum", "none" } do
      same(moth.cross_entropy(e:cuda(), f:cuda(), nil, reduction), moth.cross_entropy(e, f, nil, reduction), reduction)
    end
    local y, u = make({ 3 }, "float32", "normal"), moth.tensor(2, { dtype = moth.int64 })
    same(moth.cross_entropy(y:cuda(), u:cuda()), moth.cross_entropy(y, u), "(C)")
  end)

  spec("a class out of range is an error", function()
    local x, t = make({ 2, 3 }, "float32", "normal"), S.make({ 2 }, "int64", { 1, 4 })
    local ok, message = pcall(function() return moth.cross_entropy(x:cuda(), t:cuda()):item() end)
    assert(not ok and tostring(message):find "class 4 is out of range: expected 1 to 3", tostring(message))
  end)

  spec("gradients are the CPU's", function()
    local x, t = make({ 40, 33 }, "float32", "normal"), targets(40, 33, "int64", -100)
    local function gradient(a, b)
      a:requires_grad_()
      moth.cross_entropy(a, b, { label_smoothing = 0.1 }):backward()
      return a.grad
    end
    same(gradient(x:cuda(), t:cuda()), gradient(x:clone(), t), "gradient")
  end)
end)

describe("coverage", function()
  spec("thousands of comparisons were made", function() assert(cases > 3000, "only " .. cases .. " cases") end)
end)
