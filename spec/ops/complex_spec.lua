-- Complex numbers: numbers of Lua, dtypes and promotion, values against the definitions in real arithmetic, derivatives
-- against differences along 1 and i, what is refused, files.
local moth = require "moth"

local both = { moth.complex64, moth.complex128 }
local function z(n, dtype) return moth.randn(n, { dtype = dtype or moth.complex128 }) end
local function near(a, b, tol)
  tol = tol or 1e-10
  assert.equal(b:dtype(), a:dtype())
  assert.is_true(moth.allclose(a, b, tol, tol, true), tostring(a) .. "\n" .. tostring(b))
end
local function of(re, im)
  return moth.complex(moth.tensor(re, { dtype = moth.float64 }), moth.tensor(im, { dtype = moth.float64 }))
end

describe("a complex number of Lua", function()
  it("has arithmetic, with numbers and tensors", function()
    assert.equal(5 + 5i, (1 + 2i) * (3 - 1i))
    assert.equal(0.44 + 0.08i, (1 + 2i) / (3 + 4i))
    assert.equal(-3 + 4i, (1 + 2i) ^ 2)
    assert.equal("1-2i", tostring((1 + 2i):conj()))
    assert.equal(5, (3 + 4i):abs())
    assert.equal(2 + 3i, moth.complex(2, 3))
    near(2i * moth.tensor({ 1, 2 }, { dtype = moth.float64 }), of({ 0, 0 }, { 2, 4 }))
    near(moth.tensor({ 1, 2 }, { dtype = moth.float64 }) - 1i, of({ 1, 2 }, { -1, -1 }))
    assert.error_matches(function() return 1i + {} end, "complex number and a table")
    assert.error_matches(function() return (1i).size end, "no field 'size'")
  end)

  it("goes into tensors and comes out of them", function()
    local x = moth.tensor { 1 + 2i, 3, { dtype = nil } and -1i }
    assert.equal(moth.complex64, x:dtype())
    assert.equal(1 + 2i, x:item(1))
    assert.same({ 3, 0 }, { x:totable()[2].re, x:totable()[2].im })
    x[2] = 5i
    x[{ { 3 } }] = moth.tensor { 7i }
    assert.equal(5i, x[2]:item())
    assert.equal(7i, x:item(3))
    assert.equal(moth.complex128, moth.tensor({ 1i }, { dtype = moth.complex128 }):dtype())
    assert.equal(2i, moth.full({ 2 }, 2i):item(2))
    assert.error_matches(function() moth.tensor({ 1i }, { dtype = moth.float32 }) end, "does not go into float32")
    assert.error_matches(function() moth.zeros(2):fill_(1i) end, "float32")
  end)

  it("prints with both parts", function()
    assert.matches("%[1.5000%+2.0000i, 0.0000%-1.2500i%]", tostring(moth.tensor { 1.5 + 2i, -1.25i }))
  end)
end)

describe("complex dtypes", function()
  it("promote by class, then by the width of the parts", function()
    local order = { "bool", "int64", "float16", "float32", "float64", "complex64", "complex128" }
    for _, name in ipairs(order) do
      local wide = name == "float64" or name == "complex128"
      assert.equal(wide and moth.complex128 or moth.complex64, moth.promote_types(moth.complex64, moth[name]))
      assert.equal(moth.complex128, moth.promote_types(moth.complex128, moth[name]))
    end
    -- a number has no width
    assert.equal(moth.complex64, (moth.ones(2) * 1i):dtype())
    assert.equal(moth.complex128, (moth.ones(2):double() * 1i):dtype())
    assert.equal(moth.complex64, (moth.ones(2, { dtype = moth.int64 }) * 1i):dtype())
    assert.equal(moth.complex128, (moth.ones(2):double() + moth.tensor(1i)):dtype())
  end)

  it("convert", function()
    local x = of({ 1.5, 0, 0 }, { -2.5, 3, 0 })
    assert.same({ 1.5, 0, 0 }, x:double():totable())
    assert.same({ true, true, false }, x:bool():totable())
    assert.same({ 1, 0, 0 }, x:int():totable())
    near(x:cfloat():cdouble(), x)
    near(moth.tensor({ 1, 2 }):cfloat(), moth.tensor({ 1 + 0i, 2 }))
    for _, make in ipairs { "zeros", "ones", "empty", "rand", "randn" } do
      assert.equal(moth.complex64, moth[make]({ 3 }, { dtype = moth.complex64 }):dtype())
    end
    assert.is_true(math.abs(moth.randn({ 20000 }, { dtype = moth.complex64 }):var():item() - 1) < 0.05)
    assert.equal(moth.complex64, moth.eye(2, { dtype = moth.complex64 }):dtype())
  end)

  it("have views of their parts, which share memory", function()
    local x = z { 3, 4 }
    local parts = moth.view_as_real(x)
    assert.equal("[3, 4, 2]", tostring(parts:size()))
    parts:select(3, 2):zero_()
    assert.equal(0, moth.imag(x):abs():sum():item())
    near(moth.view_as_complex(moth.view_as_real(x:t())), x:t())
    moth.real(x):fill_(2)
    near(x, moth.full({ 3, 4 }, 2, { dtype = moth.complex128 }))
    assert.error_matches(function() moth.view_as_complex(moth.randn(3)) end, "size 2")
    assert.error_matches(function() moth.imag(moth.randn(3)) end, "complex")
    assert.error_matches(function() moth.complex(moth.randn(3), moth.randn(3):double()) end, "float64")
  end)

  it("refuse what has no order, by name", function()
    local x = z { 3 }
    for name, call in pairs {
      lt = function() return x:lt(x) end, max = function() return x:max() end, sort = function() return x:sort() end,
      floor = function() return x:floor() end, clamp = function() return x:clamp(0, 1) end,
      relu = function() return x:relu() end, maximum = function() return moth.maximum(x, x) end,
    } do
      assert.error_matches(call, name .. "%] not implemented for complex128")
    end
    assert.error_matches(function() x:abs_() end, "in place")
  end)
end)

describe("complex values", function()
  it("are those of the definitions", function()
    for _, dtype in ipairs(both) do
      local tol = dtype == moth.complex64 and 1e-5 or 1e-12
      local x, y = z({ 4, 3 }, dtype), z({ 3 }, dtype)
      local a, b, c, d = moth.real(x), moth.imag(x), moth.real(y), moth.imag(y)
      near(x * y, moth.complex(a * c - b * d, a * d + b * c), tol)
      near(x / y * y, x, tol)
      near(x - y * 2, moth.complex(a - c * 2, b - d * 2), tol)
      near(x:exp(), moth.polar(a:exp(), b), tol)
      near(x:log():exp(), x, tol)
      near(x:sqrt():square(), x, tol)
      near(x:sin() ^ 2 + x:cos() ^ 2, moth.ones_like(x), tol * 100)
      near(x:cosh() ^ 2 - x:sinh() ^ 2, moth.ones_like(x), tol * 100)
      for _, name in ipairs { "sin", "tan", "sinh", "tanh", "cos" } do
        local inverse = moth["a" .. name](x)
        near(moth[name](inverse), x, tol * 100)
      end
      near(x:abs(), moth.hypot(a, b), tol)
      near(x:angle(), moth.atan2(b, a), tol)
      near(moth.sgn(x) * x:abs(), x, tol)
      near(x:conj(), moth.complex(a, -b), 0)
      near(x ^ 3, x * x * x, tol * 10)
      near(x:sigmoid() * (moth.exp(-x) + 1), moth.ones_like(x), tol * 10)
    end
  end)

  it("stand on the right side of branch cuts", function()
    local cut = of({ -4, -4 }, { 0.0, -0.0 })
    near(cut:sqrt(), of({ 0, 0 }, { 2, -2 }))
    near(cut:log(), of({ math.log(4), math.log(4) }, { math.pi, -math.pi }))
    local r, i = math.pi / 2, math.log(2 + math.sqrt(3))
    near(of({ 2, 2 }, { 0.0, -0.0 }):asin(), of({ r, r }, { i, -i }))
  end)

  it("compare, choose and move like others", function()
    local x = z { 3, 4 }
    assert.is_true(x:eq(x):all():item())
    assert.is_false(x:ne(x:clone()):any():item())
    local mask = moth.real(x):gt(0)
    local kept = moth.where(mask, x, 0)
    near(moth.real(kept), moth.real(x):clamp(0))
    near(x:masked_fill(mask, 2i), moth.where(mask, moth.full({}, 2i, { dtype = moth.complex128 }), x))
    near(x[mask], x:flatten():index_select(1, mask:flatten():nonzero():flatten()))
    near(moth.cat({ x, moth.real(x) }, 1)[{ { 4, 6 } }], moth.real(x):cdouble())
    local at = moth.tensor({ 2, 1, 3 }, { dtype = moth.int64 })
    near(x:index_select(1, at)[1], x[2])
    near(x:gather(2, at:view(3, 1)), moth.stack { x[{ 1, 2 }], x[{ 2, 1 }], x[{ 3, 3 }] }:view(3, 1))
    near(x:flip(2)[{ {}, 1 }], x[{ {}, 4 }])
    near(x:tril() + x:triu(1), x)
    near(x:roll(1, 2):roll(-1, 2), x)
    near(moth.zeros_like(x):index_add(1, at, x)[2], x[1])
    near(moth.zeros_like(x):scatter(2, at:view(3, 1), 1i):sum(), moth.tensor(3i, { dtype = moth.complex128 }))
    near(x:t():contiguous():t(), x)
    near(moth.randn({ 0, 3 }, { dtype = moth.complex128 }):sum(), moth.zeros({}, { dtype = moth.complex128 }))
  end)

  it("without dimensions are reduced, gathered and written like others", function()
    local x, at = moth.tensor(1 + 2i), moth.tensor({ 1 }, { dtype = moth.int64 })
    for _, name in ipairs { "sum", "mean", "prod", "cumsum", "cumprod" } do
      assert.equal(1 + 2i, x[name](x, 1):item(), name)
    end
    assert.equal(1 + 2i, x:sum():item())
    assert.equal(1 + 2i, x:gather(1, at[1]):item())
    assert.equal(2 + 3i, x:index_add(1, at, moth.tensor(1 + 1i)):item())
    assert.equal(5i, x:scatter(1, at[1], moth.tensor(5i)):item())
  end)

  it("are summed and multiplied", function()
    local x, y = z { 5, 4, 3 }, z { 5, 3, 2 }
    near(x:sum(2), moth.complex(moth.real(x):sum(2), moth.imag(x):sum(2)))
    near(x:mean({ 1, 3 }), moth.complex(moth.real(x):mean { 1, 3 }, moth.imag(x):mean { 1, 3 }))
    near(x:prod(3), x:select(3, 1) * x:select(3, 2) * x:select(3, 3))
    near(x:cumsum(1)[5], x:sum(1))
    near(x:var(1), moth.real(x):var(1) + moth.imag(x):var(1))
    near(x:norm(), x:abs():square():sum():sqrt())
    near(x:norm(math.huge), x:abs():max())
    local by_parts = function(a, b)
      local r, s, t, u = moth.real(a), moth.imag(a), moth.real(b), moth.imag(b)
      return moth.complex(r:matmul(t) - s:matmul(u), r:matmul(u) + s:matmul(t))
    end
    near(x:bmm(y), by_parts(x, y))
    near(x[1]:mm(y[1]), by_parts(x[1], y[1]))
    near(x[1]:t():conj():mm(x[1]), by_parts(x[1]:t():conj(), x[1]))
    near(x:matmul(y[1]), by_parts(x, y[1]))
    local v, w = x[{ 1, 1 }], x[{ 2, 2 }]
    near(v:dot(w), (v * w):sum())
    near(moth.vdot(v, w), (v:conj() * w):sum())
    near(x[1].H, x[1]:t():conj())
    near(moth.addmm(y[{ 1, {}, {} }]:t():mm(y[1]), y[1]:t(), y[1]), y[1]:t():mm(y[1]) * 2)
    -- functions that are made of others stay complex
    near(x:cumprod(3):select(3, 3), x:prod(3))
    near(moth.einsum("bij,bjk->bik", x, y), x:bmm(y))
    near(moth.trapezoid(x[1]), (x[1]:narrow(2, 1, 2) + x[1]:narrow(2, 2, 2)):sum(2) * 0.5)
    local centred = x[1] - x[1]:mean(2, true)
    near(moth.cov(x[1]), centred:mm(centred.mH) / 2)
    near(moth.real(moth.corrcoef(x[1]):diagonal()):clone(), moth.ones(4, { dtype = moth.float64 }))
    near(moth.dist(x, x * 2), x:norm())
    near(moth.float_power(x:cfloat(), 2), x:cfloat():cdouble():square())
    near(moth.nan_to_num(of({ 0 / 0, 1 }, { 1, math.huge }), 2, 3), of({ 2, 1 }, { 1, 3 }))
    local big = z({ 130, 70 }, moth.complex64)
    near(big:mm(big:t()), by_parts(big, big:t()), 1e-4)
  end)
end)

describe("functions of complex tensors that are made of others", function()
  it("pad, cut windows, scan, normalise", function()
    local x = z { 3, 4 }
    local padded = moth.pad(x, { 1, 2 }, "constant", 2i)
    near(padded[{ {}, { 2, 5 } }]:clone(), x)
    assert.equal(2i, padded[{ 1, 1 }]:item())
    assert.equal(2i, moth.constant_pad_nd(x, { 0, 1 }, 2i)[{ 3, 5 }]:item())
    near(moth.pad(x, { 1, 0 })[{ {}, { 2, 5 } }]:clone(), x)
    assert.error_matches(function() moth.pad(x, { 1, 1 }, "reflect", 2i) end, "takes no value")
    near(moth.logcumsumexp(x, 2):exp(), x:exp():cumsum(2), 1e-10)
    local far = of({ -1e4, 1e4 }, { 0, 0 })
    near(moth.logcumsumexp(far, 1), far)
    near(moth.nn.functional.rms_norm(x, { 4 }, nil, 0), x / (x * x):mean(2, true):sqrt())
    local columns = moth.nn.functional.unfold(x:view(1, 1, 3, 4), 2)
    near(columns[{ 1, {}, 1 }]:clone(), moth.stack { x[{ 1, 1 }], x[{ 1, 2 }], x[{ 2, 1 }], x[{ 2, 2 }] })
    near(moth.masked.logsumexp(x, 1, { mask = moth.ones(3, 4):gt(0) }):exp(), x:exp():sum(1), 1e-10)
  end)

  it("apply the reflections of geqrf under autograd, too", function()
    local a = z { 4, 3 }
    local q, tau = moth.geqrf(a)
    local c = z { 4, 2 }
    for _, transposed in ipairs { false, true } do
      local plain = moth.ormqr(q, tau, c, true, transposed)
      near(moth.ormqr(q:clone():requires_grad_(true), tau, c, true, transposed):detach(), plain)
    end
  end)

  it("are not dropped into real tensors", function()
    local x = moth.ones(2)
    assert.error_matches(function() x:masked_fill(x:gt(0), 2i) end, "'value' is complex128")
  end)
end)

describe("derivatives of complex functions", function()
  local function check(fn, ...) assert.is_true(moth.autograd.gradcheck(fn, { ... })) end
  local function var(...) return z({ ... }):requires_grad_(true) end

  it("are those of differences along 1 and i", function()
    for _, name in ipairs { "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
      "acosh", "atanh", "sqrt", "rsqrt", "reciprocal", "square", "exp2", "expm1", "log1p", "log2",
      "log10", "sigmoid", "neg",
      "conj", "sgn", "abs", "angle", "real", "imag", "view_as_real" } do
      check(moth[name], var(3))
    end
    for _, name in ipairs { "add", "sub", "mul", "div", "pow" } do check(moth[name], var(2, 2), var(2)) end
    check(moth.mm, var(2, 3), var(3, 2))
    check(moth.vdot, var(3), var(3))
    for _, fn in ipairs { "sum", "mean", "prod" } do check(function(x) return x[fn](x, 1) end, var(3, 2)) end
    check(function(x) return x:cumsum(1) end, var(3))
    check(function(x) return x:norm() end, var(3))
    check(function(x) return x:var(1) end, var(3, 2))
    check(function(x) return x:index_select(1, moth.tensor({ 2, 2 }, { dtype = moth.int64 })) end, var(3))
  end)

  it("of real inputs are real", function()
    local x = moth.randn({ 3 }, { dtype = moth.float64 }):requires_grad_(true)
    local w = z { 3 }
    moth.real(x * w):sum():backward()
    near(x.grad, moth.real(w):clone())
    check(moth.complex, x, moth.randn({ 3 }, { dtype = moth.float64 }):requires_grad_(true))
    check(moth.polar, x, moth.randn({ 3 }, { dtype = moth.float64 }):requires_grad_(true))
    check(moth.view_as_complex, moth.randn({ 3, 2 }, { dtype = moth.float64 }):requires_grad_(true))
  end)

  it("are differentiated again, and go through views in place", function()
    for _, fn in ipairs { moth.exp, moth.abs, moth.mul, moth.div } do
      local two = fn == moth.mul or fn == moth.div
      assert.is_true(moth.autograd.gradgradcheck(fn, { var(2), two and var(2) or nil }))
    end
    local x = var(3)
    local y = x * 1
    moth.imag(y):mul_(3)
    y:abs():square():sum():backward()
    local d = x:detach()
    near(x.grad, moth.complex(moth.real(d) * 2, moth.imag(d) * 18))
  end)

  it("need a seed where the result is complex", function()
    local y = var(1):sum()
    assert.error_matches(function() y:backward() end, "complex")
    y:backward(moth.tensor(1i, { dtype = moth.complex128 }))
  end)
end)

describe("compiled functions", function()
  it("compute complex tensors call by call", function()
    local function plain(x, y)
      local w = x * y + 1i
      return w:exp():sum(1), moth.view_as_complex(moth.view_as_real(w) * 2):abs()
    end
    local x, y = z { 4, 3 }, z { 4, 3 }
    for _, backend in ipairs { "blocks", "aot_eager" } do
      local compiled = moth.compile(plain, { backend = backend })
      for _ = 1, 3 do
        local a, b = compiled(x, y)
        local want_a, want_b = plain(x, y)
        near(a, want_a, 0)
        near(b, want_b, 0)
      end
    end
  end)
end)

describe("files of complex tensors", function()
  it("give back what was saved", function()
    local path = os.tmpname()
    for _, dtype in ipairs(both) do
      local x = z({ 2, 3 }, dtype)
      moth.save({ x = x, name = "z" }, path)
      near(moth.load(path).x, x, 0)
      moth.save({ x = x }, path .. ".pt")
      near(moth.load(path .. ".pt").x, x, 0)
      moth.save(x, path .. ".npy")
      near(moth.load(path .. ".npy"), x, 0)
    end
    moth.save_safetensors({ x = z({ 2 }, moth.complex64) }, path)
    assert.equal(moth.complex64, moth.load(path).x:dtype())
    assert.error_matches(function() moth.save_safetensors({ x = z { 2 } }, path) end, "view_as_real")
    os.remove(path)
    os.remove(path .. ".npy")
    os.remove(path .. ".pt")
  end)
end)
