-- Ops that are defined at run time: from Lua, and from a library of C that is compiled here.
local ffi = require "ffi"
local moth = require "moth"
local B = require "moth_lua"
local library = moth.library
local build = os.getenv("MOTH_BUILD") or "build"

local function fails(pattern, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok, "no error")
  assert.matches(pattern, tostring(message))
  return message
end

-- Libraries of a test are gone after it.
local libraries = {}
local function open(namespace, kind)
  local lib = library(namespace, kind)
  libraries[#libraries + 1] = lib
  return lib
end
local function close()
  for _, lib in ipairs(libraries) do lib:destroy() end
  libraries = {}
end

local function relu2(lib, more)
  local o = { impl = function(x) return x:relu() ^ 2 end, dims = { self = "*" }, out = "*",
    grad = { self = "grad * relu(self) * 2" }, doc = "relu, squared", inplace = true,
    samples = { "randn(3,4)", "randn(0)", "randn({})" }, reference = function(x)
      return moth.where(x:gt(0), x * x, moth.zeros_like(x))
    end }
  for k, v in pairs(more or {}) do o[k] = v end
  return lib:define("relu2(Tensor self) -> Tensor", o)
end

describe("a schema given at run time #quick", function()
  after_each(close)
  it("is read as the op table's, and an error says where it is wrong #M126", function()
    local wrong = {
      { "f(Tesnor x) -> Tensor", "unknown type 'Tesnor' %(column 10%)" },
      { "f(Tensor x, int) -> Tensor", "cannot read argument 'int' %(column 20%)" },
      { "f(Tensor x -> Tensor", "do not match %(column 9%)" },
      { "f(Tensor x)", "expected '%-> Tensor'" },
      { "f(Tensor x) -> Tensors", "cannot read result 'Tensors'.*column 23" },
      { "f(Tensor x) -> (Tensor, int)", "cannot read result ' int'" },
      { "f(Tensor x, Tensor x) -> Tensor", "argument 'x' is there twice" },
      { "f(Tensor x) -> self", "must be a Tensor!" },
      { "f(float p=abc) -> Tensor", "cannot read the default 'abc' of argument 'p'" },
      { "f", "expected '%('" },
      { "1f(Tensor x) -> Tensor", "expected a name" },
    }
    local lib = open "mylib"
    for _, w in ipairs(wrong) do
      local message = fails(w[2], lib.define, lib, w[1])
      assert.matches("^spec/lua/library_spec.lua:%d+: ", message)
    end
    local many = {}
    for i = 1, 17 do many[i] = "int a" .. i end
    fails("at most 16", lib.define, lib, "f(" .. table.concat(many, ", ") .. ") -> Tensor")
    fails("at most 4", lib.define, lib, "f() -> (" .. ("Tensor, "):rep(4) .. "Tensor)")
    fails("not of the namespace 'mylib'", lib.define, lib, "other::f(Tensor x) -> Tensor")
    fails("expected a name such as mylib::relu2", library.define, "f(Tensor x) -> Tensor", {})
    assert.is_nil(moth.ops.get "mylib::f")
  end)
  it("of any op of the table gives the arguments that the build has made of it", function()
    local definitions = require "moth.library.definitions"
    for _, op in ipairs(require "moth.ops_table") do
      local parsed = definitions.read("spec::" .. op.schema, op.kind, op.amp, op.doc, "here")
      B.define_op(parsed)
      local expected, got = B.op_facts(op.name), B.op_facts("spec::" .. op.name)
      B.undefine_op("spec::" .. op.name)
      for _, key in ipairs { "nresults", "kind_code", "amp_code", "memory", "returns_self", "drops", "draws", "factory",
        "canonical" } do
        -- That all processes call an op together stands in the record, not in its schema: such a call stays.
        if key ~= "drops" or not op.collective then assert.equal(expected[key], got[key], op.name .. " " .. key) end
      end
      assert.equal(#expected.args, #got.args)
      for i, a in ipairs(expected.args) do
        if a.default ~= a.default then a.default, got.args[i].default = nil, nil end -- NaN
        assert.same(a, got.args[i], op.name)
      end
    end
  end)
  it("reads arguments by position, by name and mixed, and fills in defaults", function()
    local got
    local f = open("mylib"):define("f(Tensor x, int n=3, float p=0.5, bool flag=false, string how='a', \z
      int[]? size=none, \z
      Dim dim=-1, Tensor? y=none, Tensor[]? list=none, dtype? dtype=none, device? device=none) -> Tensor", {
      impl = function(...) got = { n = select("#", ...), ... } return (...):clone() end })
    f(moth.ones(2))
    assert.same({ 3, 0.5, false, "a" }, { unpack(got, 2, 5) })
    assert.equal(11, got.n)
    assert.is_nil(got[6])
    assert.is_nil(got[8])
    f(moth.ones(2), 4, { how = "b", size = { 2, 3 }, list = { moth.ones(1), moth.ones(2) }, dtype = "int64", dim = 1 })
    assert.same({ 4, 0.5, false, "b", { 2, 3 }, 1 }, { unpack(got, 2, 7) })
    assert.equal(2, #got[9])
    assert.equal(moth.int64, got[10])
    f { x = moth.ones(2), flag = true, y = moth.ones(5) }
    assert.is_true(got[4])
    assert.equal(5, got[8]:numel())
    fails("%[mylib::f%] argument 'n': expected an integer, got 1.5; mylib::f%(Tensor x, int n=3", f, moth.ones(2), 1.5)
    fails("unknown option 'hwo'; did you mean 'how'", f, moth.ones(2), { hwo = "b" })
    fails("'x' is given twice", f, moth.ones(2), { x = moth.ones(2) })
    fails("argument 'x' is missing", f)
    fails("is 0: moth counts from 1", f, moth.ones(2), { dim = 0 })
    local none = open("mylib"):define("g() -> Tensor", { impl = function() return moth.ones(2) end })
    assert.same({ 1, 1 }, none():totable())
  end)
end)

describe("a library #quick", function()
  after_each(close)
  it("opens a namespace for definitions, functions or fragments #M125", function()
    local lib = open("my_ops", "DEF")
    fails("is defined already", library, "my_ops", "DEF")
    local more = open("my_ops", "FRAGMENT")
    lib:define "a(Tensor x) -> Tensor"
    more:define "b(Tensor x) -> Tensor"
    local impl = open("my_ops", "IMPL")
    fails("of kind IMPL", impl.define, impl, "c(Tensor x) -> Tensor")
    impl:impl("a", "CPU", function(x) return x + 1 end)
    assert.same({ 2 }, moth.ops.my_ops.a(moth.ones(1)):totable())
    fails("could not run 'moth::my_ops::b'", moth.ops.my_ops.b, moth.ones(1))
    fails("expected \"DEF\", \"IMPL\" or \"FRAGMENT\", got def", library, "x", "def")
    fails("expected a namespace", library, "my ops")
    fails("is moth's own", library, "moth")
    fails("is moth's own", library, "list")
    more:destroy()
    fails("moth.ops.my_ops has no 'b'", function() return moth.ops.my_ops.b end)
    fails("was destroyed", more.define, more, "d(Tensor x) -> Tensor")
    lib:destroy()
    fails("moth.ops has no 'my_ops'", function() return moth.ops.my_ops end)
  end)
  it("has functions by dispatch key, of which a call's device chooses one #M127", function()
    library.register_backend("libdev", { clone = function(args, results) results[1]:copy_(args[1]) end })
    library.register_backend("libdev2", {})
    local lib, called = open "my_ops", {}
    local op = lib:define "where_am_i(Tensor x) -> Tensor"
    local function note(what)
      return function(x)
        called[#called + 1] = what
        return moth.empty_like(x)
      end
    end
    lib:impl("where_am_i", "CPU", note "cpu")
    lib:impl("where_am_i", "libdev", note "libdev")
    lib:impl("where_am_i", "Meta", note "fake")
    op(moth.ones(2))
    op(moth.ones(2):to("libdev"))
    fails("could not run 'moth::my_ops::where_am_i' with arguments from the 'libdev2' backend; there are kernels for: \z
      cpu, libdev", op, moth.ones(2):to("libdev2"))
    lib:impl("where_am_i", "libdev2", note "libdev2")
    assert.equal("libdev2", tostring(op(moth.ones(2):to("libdev2")):device()))
    moth.fake_mode(op, moth.ones(2))
    assert.same({ "cpu", "libdev", "libdev2", "fake" }, called)
    lib:define("all(Tensor x) -> Tensor", { impl = { all = note "all", cpu = note "cpu2" } })
    moth.ops.my_ops.all(moth.ones(2):to("libdev"))
    moth.ops.my_ops.all(moth.ones(2))
    assert.same({ "all", "cpu2" }, { called[5], called[6] })
    lib:define("made(Tensor x) -> Tensor", { impl = {
      CompositeImplicitAutograd = function(x) return x:exp() * 2 end } })
    local x = moth.zeros(2, { requires_grad = true })
    moth.ops.my_ops.made(x):sum():backward()
    assert.same({ 2, 2 }, x.grad:totable())
    fails("expected a device", lib.impl, lib, "where_am_i", "GPU", note "x")
    fails("was not defined in this Lua state", lib.impl, lib, "nothing", "CPU", note "x")
  end)
  it("gives ops that dispatch modes, traces, autograd, autocast and describe see #M128", function()
    local op = relu2(open "mylib", { amp = "low" })
    assert.equal("mylib::relu2", tostring(op))
    assert.same({ 0, 4 }, moth.ops.mylib.relu2(moth.tensor { -1, 2 }):totable())
    local seen = {}
    moth.dispatch_mode(function(func, args)
      seen[#seen + 1] = func.name
      return func(unpack(args, 1, args.n))
    end, function() return op(moth.ones(2) * 2) end)
    assert.same({ "ones", "mul", "mylib::relu2" }, seen)
    local total, by_name = moth.dispatch.count(op, moth.ones(2))
    assert.equal(1, total)
    assert.equal(1, by_name["mylib::relu2"])
    local line = moth.dispatch.trace(op, moth.ones(2, { requires_grad = true }))[1]
    assert.matches("^mylib::relu2 %[Autograd, CPU%]  self: float32 %[2%] cpu  %(spec/lua/library_spec.lua:%d+%)  \z
      Relu2Backward0  a Lua function", line)
    assert.equal(moth.bfloat16, moth.autocast(op, moth.ones(2)):dtype())
    local text = moth.ops.describe "mylib::relu2"
    for _, part in ipairs { "mylib::relu2(Tensor self) -> Tensor", "relu, squared", "in-place     mylib::relu2_",
      "d/d self     grad * relu(self) * 2" } do
      assert.truthy(text:find(part, 1, true), text)
    end
    assert.matches("Autograd   Relu2Backward0 of self", tostring(moth.dispatch.table "mylib::relu2"))
    local handled = {}
    local Noted = moth.tensor_subclass("Noted", { dispatch = function(_, func, _, args)
      handled[#handled + 1] = func.name
      return func(unpack(args, 1, args.n))
    end })
    assert.same({ 4 }, op(Noted(moth.tensor { 2 })):totable())
    assert.same({ "mylib::relu2.default" }, handled)
  end)
  it("takes its ops away: their names are free, and calls are errors", function()
    local lib = open "mylib"
    local op = relu2(lib, { method = true })
    assert.same({ 4 }, moth.tensor { 2 }:relu2():totable())
    local y = op(moth.ones(2, { requires_grad = true }))
    fails("is defined already, at spec/lua/library_spec.lua:%d+", relu2, lib)
    lib:destroy()
    fails("'mylib::relu2' is not defined any more", op, moth.ones(2))
    fails("'mylib::relu2' is not defined any more", function() y:sum():backward() end)
    fails("no method or field 'relu2'", function() return moth.ones(1):relu2() end)
    assert.is_nil(moth.ops.get "mylib::relu2")
    local again = library("mylib"):define("relu2(Tensor self) -> Tensor", { impl = function(x) return x * 10 end })
    assert.same({ 10 }, again(moth.ones(1)):totable())
    fails("is not defined any more", op, moth.ones(2)) -- the old object stays invalid
    library.undefine "mylib::relu2"
  end)
  it("can be opened and destroyed a thousand times", function()
    for i = 1, 1000 do
      local lib = library "many"
      lib:define("f(Tensor x) -> Tensor", { impl = function(x) return x * i end })
      if i % 100 == 0 then assert.same({ i }, moth.ops.many.f(moth.ones(1)):totable()) end
      lib:destroy()
    end
  end)
end)

describe("the derivative of an op of one's own", function()
  after_each(close)
  it("is a formula of the op table's language, of first and second order", function()
    local lib = open "mylib"
    local op = relu2(lib)
    local x = moth.randn(4, 3, { dtype = "float64", requires_grad = true })
    op(x):sum():backward()
    assert.is_close(moth.relu(x:detach()) * 2, x.grad)
    assert.is_true(moth.autograd.gradcheck(op, { x }))
    assert.is_true(moth.autograd.gradgradcheck(op, { x }))
    local two = lib:define("two(Tensor a, Operand b, Dim dim=-1) -> (Tensor, Tensor)", {
      impl = function(p, q, dim) return p * q, p:softmax(dim) end,
      grad = { a = "grad * b + softmax_backward(grad1, result1, dim)", b = "when(is_number(b), none, grad * a)" } })
    local b = moth.randn(4, 3, { dtype = "float64", requires_grad = true })
    assert.is_true(moth.autograd.gradcheck(function(p, q) return two(p, q, 1) end, { x, b }))
    assert.is_true(moth.autograd.gradcheck(function(p) return two(p, 3) end, { x }))
    local part = lib:define("part(Tensor a, Tensor b, Tensor c) -> Tensor", {
      impl = function(p, q, r) return p * q + r end,
      grad = { a = "grad * b", b = "no", c = "unimplemented" } })
    local p, q = moth.ones(2, { requires_grad = true }), moth.ones(2, { requires_grad = true })
    part(p, q, moth.ones(2)):sum():backward()
    assert.same({ 1, 1 }, p.grad:totable())
    assert.is_nil(q.grad)
    local wide = lib:define("wide(Tensor a, Tensor b) -> Tensor", { impl = function(p_, q_) return p_ * q_ end,
      grad = { a = "grad * b", b = "grad * a" } })
    assert.is_true(moth.autograd.gradcheck(wide, { x, moth.randn(3, { dtype = "float64", requires_grad = true }) }))
    local off = lib:define("off(Tensor a) -> Tensor", { impl = function(p_) return p_ * 2 end,
      grad = { a = "mv(unsqueeze(grad, 0), grad)" } })
    fails("returned a gradient of shape %[1%] for input 1 of shape %[2%]", function() off(p):sum():backward() end)
    fails("derivative of mylib::part by 'c' is not implemented", function()
      part(p, q, moth.ones(2, { requires_grad = true })):sum():backward()
    end)
  end)
  it("is refused where the op table would refuse it", function()
    local lib = open "mylib"
    local function with(grad) return function() lib:define("f(Tensor a, Tensor b) -> Tensor", { grad = grad }) end end
    fails("the derivative by b is missing", with { a = "grad" })
    fails("grad names 'c', which is no argument", with { a = "grad", b = "no", c = "no" })
    fails("the derivative by a, \"grad %* foo%(a%)\": 'foo' is no argument, op or function",
      with { a = "grad * foo(a)", b = "no" })
    fails("expected formulas by argument", with "nothing")
    assert.is_nil(moth.ops.get "mylib::f") -- nothing is left behind
    fails("unknown option 'gard'; did you mean 'grad'", lib.define, lib, "f(Tensor a) -> Tensor", { gard = {} })
    fails("option 'impl': expected a function or table, got number", lib.define, lib, "f(Tensor a) -> Tensor",
      { impl = 1 })
  end)
  it("is a function with a context", function()
    local lib = open "mylib"
    lib:define("cube(Tensor x, float by=1) -> Tensor", { impl = function(x, by) return x ^ 3 * by end })
    local x = moth.randn(5, { dtype = "float64", requires_grad = true })
    fails("'mylib::cube' was defined without a derivative", function() moth.ops.mylib.cube(x):sum():backward() end)
    lib:register_autograd("cube", {
      setup_context = function(ctx, inputs, output)
        assert.is_true(moth.is_tensor(output))
        ctx:save_for_backward(inputs[1])
        ctx.by = inputs[2]
      end,
      backward = function(ctx, grad)
        assert.same({ true, false }, ctx.needs_input_grad)
        local saved = ctx:saved_tensors()
        return grad * saved ^ 2 * 3 * ctx.by, nil
      end })
    local cube = moth.ops.mylib.cube
    assert.is_true(moth.autograd.gradcheck(function(t) return cube(t, 2) end, { x }))
    assert.is_true(moth.autograd.gradgradcheck(function(t) return cube(t, 2) end, { x }))
    local plain = lib:define("plain(Tensor x, Tensor[] list) -> (Tensor, Tensor)", { -- all is in ctx without setup
      impl = function(t, list) return t * list[1], list[1] + list[2] end,
      grad = function(ctx, g1, g2) return g1 * ctx.list[1], { g1 * ctx.x + g2, g2 } end })
    local a, b = moth.randn(5, { dtype = "float64", requires_grad = true }),
      moth.randn(5, { dtype = "float64", requires_grad = true })
    assert.is_true(moth.autograd.gradcheck(function(t, p, q) return plain(t, { p, q }) end, { x, a, b }))
    local both = lib:define("both(Tensor x) -> Tensor", { impl = function(t) return t * 2 end, inplace = true,
      grad = function(_, g) return g * 2 end })
    assert.same({ 2 }, moth.ops.mylib.both_(moth.ones(1)):totable())
    assert.is_true(moth.autograd.gradcheck(both, { x }))
    fails("knows of no writing in place", moth.ops.mylib.both_, x * 1)
    fails("a composite has no in%-place variant", lib.define, lib, "made(Tensor x) -> Tensor", { kind = "composite",
      inplace = true, impl = function(t) return t end })
    local few = lib:define("few(Tensor x, Tensor y) -> Tensor", { impl = function(t, u) return t + u end,
      grad = function(_, g) return g end })
    fails("the backward of 'mylib::few' %(.-library_spec.lua:%d+%) returned 1 gradient, where it has 2 arguments",
      function() few(x, x):sum():backward() end)
  end)
  it("that is a function has tangents, too: by its backward, differentiated again", function()
    local func = moth.func
    local lib = moth.library("lib_jvp", "FRAGMENT")
    local lsm = lib:define("lsm(Tensor x) -> Tensor", { impl = function(x) return x:log_softmax(-1) end })
    lib:register_autograd("lsm", {
      setup_context = function(ctx, _, output) ctx:save_for_backward(output) end,
      backward = function(ctx, g)
        local y = ctx:saved_tensors()
        return g - y:exp() * g:sum(-1, true)
      end })
    local mix = lib:define("mix(Tensor[] xs, Tensor w) -> (Tensor, Tensor)", {
      impl = function(xs, w)
        local s = xs[1] * w[1] + xs[2] * w[2]
        return s, s:square()
      end,
      grad = function(ctx, g1, g2)
        local g = g1 + g2 * 2 * ctx.result
        return { g * ctx.w[1], g * ctx.w[2] }, moth.stack { (g * ctx.xs[1]):sum(), (g * ctx.xs[2]):sum() }
      end })
    local f64 = { dtype = "float64" }
    local x, t, u = moth.randn(3, 4, f64), moth.randn(3, 4, f64), moth.randn(3, 4, f64)
    local function plain(v) return v:log_softmax(-1) end
    local function jvp(f, at, by) return (select(2, func.jvp(f, { at }, { by }))) end
    local function same(make) assert.is_true(moth.allclose(make(lsm), make(plain))) end
    same(function(f) return jvp(f, x, t) end)
    same(function(f) return func.grad(function(v) return jvp(f, v, t):square():sum() end)(x) end)
    same(function(f) return jvp(func.grad(function(v) return (f(v) * u):square():sum() end), x, t) end)
    same(function(f) return jvp(function(v) return jvp(f, v, t) end, x, u) end)
    same(function(f) return func.hessian(function(v) return f(v)[1] end)(x[1]) end)
    local w, tw = moth.randn(2, f64), moth.randn(2, f64)
    local function by_parts(a, b, c)
      local s = a * c[1] + b * c[2]
      return { s, s:square() }
    end
    local _, got = func.jvp(function(a, b, c) return { mix({ a, b }, c) } end, { x, u, w }, { t, x, tw })
    local _, want = func.jvp(by_parts, { x, u, w }, { t, x, tw })
    assert.is_true(moth.allclose(got[1], want[1]) and moth.allclose(got[2], want[2]))
    local noise = lib:define("noise(Tensor x) -> Tensor", { kind = "random",
      impl = function(v) return moth.rand_like(v) end, grad = function(_, g) return g end })
    fails("forward mode: 'lib_jvp::noise' draws random numbers", jvp, noise, x, t)
    lib:destroy()
  end)

  it("by a function may leave out what follows the last gradient that is asked for", function()
    local lib = open "mylib"
    local op = lib:define("mean_of(Tensor[] xs, Tensor? w=none, float by=1, string how='a') -> Tensor", {
      impl = function(xs, w, by) return (xs[1] + xs[2]) * (w or 1) * by end,
      grad = function(ctx, g)
        local each = g * (ctx.w or 1) * ctx.by
        return { each, each }
      end })
    local x, y = moth.ones(2, { requires_grad = true }), moth.ones(2, { requires_grad = true })
    op({ x, y }, nil, 3):sum():backward()
    assert.same({ { 3, 3 }, { 3, 3 } }, { x.grad:totable(), y.grad:totable() })
    lib:destroy()
  end)

  it("of a composite takes the place of that of its parts #M137", function()
    local calls, lib = 0, open "mylib"
    local function loss(x, target) -- logits (N, C), classes (N)
      local shifted = x - x:amax(2, true)
      local logp = shifted - shifted:exp():sum(2, true):log()
      return logp:gather(2, target:unsqueeze(2)):mean():neg()
    end
    local op = lib:define("softmax_ce(Tensor x, IndexTensor target) -> Tensor", { kind = "composite", impl = loss })
    local x = moth.randn(4, 3, { dtype = "float64", requires_grad = true })
    local target = moth.tensor({ 1, 3, 2, 1 }, { dtype = "int64" })
    op(x, target):backward()
    local traced = x.grad:clone()
    lib:register_autograd("softmax_ce", {
      setup_context = function(ctx, inputs) ctx:save_for_backward(inputs[1], inputs[2]) end,
      backward = function(ctx, grad)
        calls = calls + 1
        local logits, classes = ctx:saved_tensors()
        return (logits:softmax(2) - moth.one_hot(classes, 3)) * grad / logits:size(1), nil
      end })
    x.grad = nil
    local y = op(x, target)
    assert.equal("SoftmaxCeBackward", y.grad_fn:name())
    y:backward()
    assert.equal(1, calls)
    assert.is_close(traced, x.grad)
    assert.is_close(moth.nn.functional.cross_entropy(x, target), y)
    assert.is_true(moth.autograd.gradcheck(function(t) return op(t, target) end, { x }))
  end)
end)

describe("a function of an op of one's own", function()
  after_each(close)
  it("that gives what the schema does not say is an error with shapes and dtypes", function()
    local lib = open "mylib"
    local function op(schema, o) return lib:define(schema, o) end
    local x = moth.ones(2, 3)
    local many = op("many(Tensor x) -> (Tensor, Tensor)", { impl = function(t) return t + 1 end })
    fails("^spec/lua/library_spec.lua:%d+: %[mylib::many%] the cpu function of 'mylib::many' returned 1 value, \z
      where its schema says 2.*got x: float32 %[2, 3%] cpu", function() local y = many(x) return y end)
    fails("returned number for result 1, where a tensor is due",
      op("number(Tensor x) -> Tensor", { impl = function() return 3 end }), x)
    fails("result 1 lies in the memory of argument 'x'",
      op("view(Tensor x) -> Tensor", { impl = function(t) return t:view(6) end }), x)
    local wrong = op("wrong(Tensor x, Tensor y) -> Tensor", { impl = function(t) return t:sum() end,
      dims = { x = "N M", y = "M" }, out = "N" })
    fails("%[mylib::wrong%] the kernel returned float32 %[%] for result 1, where the shape rule says float32 %[2%]",
      wrong, x, moth.ones(3))
    fails("y must have the shape %[3%], got %[4%]; M = 3 as in x", wrong, x, moth.ones(4))
    fails("x must have 2 dimensions, %[N, M%], got %[3%]", wrong, moth.ones(3), moth.ones(3))
    fails("the shape rule says int64 %[2, 3%]", op("dtype(Tensor x) -> Tensor", { impl = function(t) return t + 1 end,
      shape = function() return { 2, 3, dtype = "int64" } end }), x)
    fails("the shape function returned 0 values, where the schema says 1", op("no_shape(Tensor x) -> Tensor",
      { impl = function(t) return t + 1 end, shape = function() end }), x)
    fails("out has 2 patterns, the schema 1 result", op, "p(Tensor x) -> Tensor", { dims = {}, out = { "N", "N" } })
    fails("dims names 'z'", op, "p(Tensor x) -> Tensor", { dims = { z = "N" }, out = "N" })
    fails("has more than one part of unknown length", op, "p(Tensor x) -> Tensor",
      { dims = { x = "*A N *B" }, out = "N" })
    fails("the size 'M' is known from no argument", op, "p(Tensor x) -> Tensor", { dims = { x = "N" }, out = "M" })
    fails("'exp' is no argument, op or function", op, "p(Tensor x) -> Tensor", { out = "(exp(x))" })
    fails("a shape rule computes no tensors", op, "p(Tensor x) -> Tensor", { out = "* : x + 1", dims = { x = "*" } })
    fails("option 'out' is missing", op, "p(Tensor x) -> Tensor", { dims = { x = "N" } })
    fails("option 'let': expected { name = \"expression\" }", op, "p(Tensor x) -> Tensor", { let = { 3 }, out = "" })
    local own = op("own(Tensor x) -> Tensor", { impl = function() error({ code = 7 }) end })
    local _, err = pcall(own, x)
    assert.same({ code = 7 }, err) -- the user's own errors come through
    fails("no fake function", moth.fake_mode, many, x)
  end)
  it("writes to the arguments that are marked, whose versions count it", function()
    local lib = open "mylib"
    local add_to = lib:define("add_to(Tensor! self, Tensor x, float by=2) -> self", { kind = "effect", grad = "none",
      impl = function(t, x, by) t:add_(x * by) end })
    local t = moth.zeros(2)
    local before = t:version()
    assert.is_true(rawequal(add_to(t, moth.ones(2)), t))
    assert.is_true(t:version() > before)
    assert.same({ 2, 2 }, t:totable())
    local fill = lib:define("fill(Tensor x, Tensor! to) -> ()", { kind = "effect", grad = "none",
      impl = function(x, to) to:copy_(x) end })
    local y = moth.ones(2, { requires_grad = true })
    local z = (y * 2):exp() -- saves its result
    fill(moth.ones(2), z)
    fails("modified by an inplace operation", function() z:sum():backward() end)
    fails("a leaf Variable that requires grad", fill, moth.ones(2), y)
    assert.is_false(moth.ops.get("mylib::fill").drops)
    fails("writes to 'to'", library.register_autograd, "mylib::fill", { backward = function() end })
  end)
  it("has in-place and out variants and fakes where they are declared", function()
    local op = relu2(open "mylib")
    local x = moth.tensor { -1, 3 }
    local same = moth.ops.mylib.relu2_(x)
    assert.is_true(rawequal(same, x))
    assert.same({ 0, 9 }, x:totable())
    local target = moth.zeros(2)
    op(moth.tensor { 2, 3 }, { out = target })
    assert.same({ 4, 9 }, target:totable())
    local fake = moth.fake_mode(function() return op(moth.ones(5, 7, { dtype = "float64" })) end)
    assert.same({ 5, 7 }, fake:size())
    assert.equal(moth.float64, fake:dtype())
    local y = moth.ones(2, { requires_grad = true }) * 3
    moth.ops.mylib.relu2_(y):sum():backward()
  end)
  it("does not see modes, autograd or autocast of the caller", function()
    local kinds = {}
    local op = open("mylib"):define("inner(Tensor x) -> Tensor", { grad = { x = "grad" }, impl = function(x)
      local y = x:mm(x)
      kinds[#kinds + 1] = { y:dtype(), y:requires_grad() }
      return y
    end })
    local x = moth.ones(2, 2, { requires_grad = true })
    moth.autocast(op, x)
    assert.same({ { moth.float32, false } }, kinds)
  end)
  it("may be an expression in the language of the op table", function()
    local lib = open "mylib"
    local op = lib:define("swish(Tensor x, float beta=1) -> Tensor", { expr = "x * sigmoid(x * beta)" })
    local x = moth.randn(5, { dtype = "float64", requires_grad = true })
    assert.is_close(x * (x * 2):sigmoid(), op(x, 2))
    assert.is_true(moth.autograd.gradcheck(op, { x }))
    fails("'sigmiod' is no argument, op or function", lib.define, lib, "g(Tensor x) -> Tensor", { expr = "sigmiod(x)" })
    fails("result 1 is no tensor, but of kind list", lib.define, lib, "h(Tensor x) -> Tensor", { expr = "x.shape" })
    for _, text in ipairs { "1", "none", "x.shape", "given(x)" } do
      fails("it is no tensor, but of kind %a+", lib.define, lib, "i(Tensor x) -> Tensor",
        { impl = function(y) return y + 1 end, grad = { x = text } })
    end
  end)
end)

describe("opcheck", function()
  after_each(close)
  it("passes what is right", function()
    local lib = open "mylib"
    local passed = library.opcheck(relu2(lib), nil, { gradgrad = true })
    for _, test in ipairs { "schema", "arguments", "modes", "fake", "layout", "out", "inplace", "gradient",
      "reference" } do
      assert.equal(3, passed[test], test)
    end
    local sq = library.custom_op("mylib::sq", { schema = "(Tensor x) -> Tensor", fn = function(x) return x * x end,
      fake = function(x) return moth.empty_like(x) end, backward = function(ctx, g) return ctx.x * g * 2 end })
    assert.equal(1, library.opcheck(sq, { { moth.randn(3) } }).gradient)
    library.undefine(sq)
  end)
  it("calls a reference with all arguments, as the op's own function", function()
    local seen
    local op = open("mylib"):define("all(Tensor x, float by=2, enum('a','b') how='b', int[2] size=3) -> Tensor", {
      impl = function(x, by, how, size) return x * by + size[1] * size[2] + (how == "b" and 1 or 0) end, grad = "none",
      dims = { x = "*" }, out = "*",
      reference = function(x, by, how, size)
        seen = { by, how, unpack(size) }
        return x * 2 + 10
      end })
    assert.equal(1, library.opcheck(op, { { moth.randn(3) } }).reference)
    assert.same({ 2, "b", 3, 3 }, seen)
  end)
  it("finds planted mistakes", function()
    local lib = open "mylib"
    local function planted(pattern, o)
      local name = "wrong" .. tostring(#lib.names)
      o.samples = o.samples or { "randn(3,4)" }
      fails(pattern, library.opcheck, lib:define(name .. "(Tensor self) -> Tensor", o))
    end
    local function square(x) return x * x end
    planted("sample 1, gradient: .*derivative of output", { impl = square, grad = { self = "grad * self" } })
    planted("fake: result 1 is float32 %[%] on cpu, and its fake float32 %[3, 4%]", { grad = "none",
      impl = function(x) return x:sum() end, fake = function(x) return moth.empty_like(x) end })
    planted("arguments: argument 'self' was written to", { grad = "none",
      impl = function(x) x:add_(1) return x + 1 end })
    planted("layout: with transposed arguments", { grad = "none",
      impl = function(x) return x:as_strided({ 12 }, { 1 }):clone():view(3, 4) end })
    planted("reference: result 1 differs", { impl = square, grad = "none", reference = function(x) return x end })
    planted("schema: .*mylib::wrong", { impl = function() return 1 end, grad = "none" })
    fails("has no samples", library.opcheck, lib:define("empty(Tensor self) -> Tensor", { impl = square }))
    fails("was not defined", library.opcheck, "mylib::nothing", { { 1 } })
    fails("there is no test 'grad'", library.opcheck, lib:define("t(Tensor self) -> Tensor", { impl = square,
      samples = { "randn(2)" } }), nil, { tests = { "grad" } })
  end)
end)

-- ---- several Lua states ----------------------------------------------------------------------------

ffi.cdef [[
typedef struct lua_State lua_State;
int setenv(const char *name, const char *value, int overwrite); int unsetenv(const char *name);
lua_State *luaL_newstate(void); void luaL_openlibs(lua_State *L); void lua_close(lua_State *L);
int luaL_loadstring(lua_State *L, const char *text); int lua_pcall(lua_State *L, int n, int results, int handler);
const char *lua_tolstring(lua_State *L, int at, size_t *n); void lua_settop(lua_State *L, int at);
]]

local State = {}
State.__index = State
local function new_state()
  local s = setmetatable({ L = ffi.C.luaL_newstate() }, State)
  ffi.C.luaL_openlibs(s.L)
  s:run(("package.path, package.cpath = %q, %q  moth = require 'moth'"):format(package.path, package.cpath))
  return s
end
-- The text that a program in the state returns, or its error.
function State:run(text)
  local C = ffi.C
  local failed = C.luaL_loadstring(self.L, text) ~= 0 or C.lua_pcall(self.L, 0, 1, 0) ~= 0
  local result = C.lua_tolstring(self.L, -1, nil)
  local out = result ~= nil and ffi.string(result) or nil
  C.lua_settop(self.L, 0)
  return out, failed
end
function State:close() ffi.C.lua_close(self.L) end
jit.off(State.run) -- no compiled code may be on the stack
jit.off(State.close)

describe("an op of another Lua state", function()
  after_each(close)
  local define = "lib = moth.library 'states' lib:define('f(Tensor x) -> Tensor', { \z
    impl = function(x) return x * %d end, grad = { x = 'grad * %d' } })"
  it("is an error until this one has defined it, too, with functions of its own", function()
    local other = new_state()
    assert.is_nil((other:run(define:format(10, 10))))
    assert.equal("10", (other:run "return tostring(moth.ops.states.f(moth.ones(1)):item())"))
    fails("'states::f' was defined by another Lua state: define it in this one, too", function()
      return moth.ops.states.f(moth.ones(1))
    end)
    local lib = open "states"
    fails("there is an op named 'states::f' already", lib.define, lib, "f(Tensor x, int n=1) -> Tensor")
    lib:define("f(Tensor x) -> Tensor", { impl = function(x) return x * 3 end, grad = { x = "grad * 3" } })
    assert.equal(3, moth.ops.states.f(moth.ones(1)):item())
    assert.equal("10", (other:run "return tostring(moth.ops.states.f(moth.ones(1)):item())"))
    local x = moth.ones(1, { requires_grad = true })
    local y = moth.ops.states.f(x)
    other:close()
    y:backward()
    assert.equal(3, x.grad:item())
    lib:destroy()
    fails("moth.ops has no 'states'", function() return moth.ops.states.f(moth.ones(1)) end)
  end)
  it("goes with its state", function()
    local other = new_state()
    other:run(define:format(2, 2))
    local f = moth.ops.states.f
    other:close()
    fails("is not defined any more", f, moth.ones(1))
    fails("moth.ops has no 'states'", function() return moth.ops.states end)
    for _ = 1, 3 do -- and may come back
      other = new_state()
      assert.is_nil((other:run(define:format(5, 5))))
      assert.equal("5", (other:run "return tostring(moth.ops.states.f(moth.ones(1)):item())"))
      other:close()
    end
  end)
end)

-- ---- libraries of C --------------------------------------------------------------------------------

describe("a library of C #noasan", function()
  local dir
  local function shell(command, ...)
    local pipe = assert(io.popen(("unset LD_PRELOAD; { %s; } 2>&1; echo status=$?"):format(command:format(...))))
    local text, status = pipe:read("*a"):match("^(.-)status=(%d+)%s*$")
    pipe:close()
    return text, tonumber(status)
  end
  local function compile(name, flags)
    local at = build:sub(1, 1) == "/" and build or "$PWD/" .. build
    local text, status = shell("gcc -std=c17 -Wall -Wextra -Werror -shared -fPIC -O1 %s -Isrc -I%s/gen -o %s/%s.so \z
      spec/lua/library_check.c -L%s -lmoth -Wl,-rpath,%s", flags or "", build, dir, name, build, at)
    assert.equal(0, status, text)
    return ("%s/%s.so"):format(dir, name)
  end
  setup(function() dir = shell("mktemp -d"):match("%S+") end)
  teardown(function() shell("rm -rf %s", dir) end)

  it("defines ops that are as good as others #M130", function()
    local names = library.load(compile "c_ops")
    table.sort(names)
    assert.same({ "c_ops::both", "c_ops::fails", "c_ops::nothing", "c_ops::scale", "c_ops::too_many" }, names)
    local c = moth.ops.c_ops
    assert.same({ 2, 4 }, c.scale(moth.tensor { 1, 2 }):totable())
    assert.same({ 3, 6 }, c.scale { moth.tensor { 1, 2 }, by = 3 }:totable())
    assert.same({ 7, 14 }, c.scale_(moth.tensor { 1, 2 }, 7):totable())
    local sum, product = c.both(moth.ones(2), moth.ones(2) * 3)
    assert.same({ { 4, 4 }, { 3, 3 } }, { sum:totable(), product:totable() })
    assert.equal(moth.bfloat16, moth.autocast(c.scale, moth.ones(2)):dtype())
    local passed = library.opcheck(c.scale, { { moth.randn(2, 3), 3 }, { moth.randn(0, 3) }, "randn(4), 0.5" },
      { gradgrad = true })
    for _, test in ipairs { "schema", "arguments", "modes", "fake", "layout", "out", "inplace", "autocast",
      "gradient" } do
      assert.equal(3, passed[test], test)
    end
    local text = moth.ops.describe "c_ops::scale"
    assert.truthy(text:find("self * by", 1, true))
    assert.truthy(text:find("defined at library_check.c:1", 1, true))
    fails("the kernel has not set result 1 of 1", c.nothing, moth.ones(2))
    fails("%[c_ops::fails%] c_ops::fails does not want to; got self: float32 %[2%] cpu", c.fails, moth.ones(2))
    fails("has no result 1 to set", c.too_many, moth.ones(2))
    fails("was defined without a derivative", function()
      local a, b = c.both(moth.ones(2, { requires_grad = true }), moth.ones(2))
      return (a + b):sum():backward()
    end)
    fails("argument 'by': expected a number, got the string 'x'", c.scale, moth.ones(1), "x")
    local other = new_state() -- its ops are those of all states
    assert.equal("6", (other:run "return tostring(moth.ops.c_ops.scale(moth.ones(1), 6):item())"))
    other:close()
    assert.same({ 2 }, c.scale(moth.ones(1)):totable())
  end)
  it("may be a text: cpp_extension.load_inline", function()
    local text = [[
      static MothStatus twice(MothCall *c) {
        MothTensor *out;
        MothStatus s = moth_mul(moth_call_arg(c, 0), moth_v_int(2), &out);
        return s ? s : moth_call_set_result(c, 0, out);
      }
      MOTH_LIBRARY(inline_ops, m) { moth_def(m, "twice(Tensor x) -> Tensor", twice); }]]
    local load_inline = moth.cpp_extension.load_inline
    local options = { name = "inline_ops", c_sources = text, build_directory = dir .. "/inline" }
    assert.same({ 2, 4 }, load_inline(options).twice(moth.tensor { 1, 2 }):totable())
    assert.same({ 2, 4 }, load_inline(options).twice(moth.tensor { 1, 2 }):totable())
    fails("%[cpp_extension.load_inline%] expected c_sources", load_inline, { name = "a" })
    fails("unknown option 'sources'", load_inline, { name = "a", sources = "a.c" })
    fails("cpp_sources, text 1:1:%d+: error", load_inline,
      { name = "a", cpp_sources = "int f( {", build_directory = dir })
  end)
  it("is compiled by cpp_extension.load, once for its sources and flags #M131", function()
    local kept = os.getenv("MOTH_EXTENSIONS")
    ffi.C.setenv("MOTH_EXTENSIONS", dir .. "/kept", 1)
    finally(function()
      if kept then ffi.C.setenv("MOTH_EXTENSIONS", kept, 1) else ffi.C.unsetenv "MOTH_EXTENSIONS" end
    end)
    local f = assert(io.open(dir .. "/plus.c", "w"))
    f:write [[
      #include <moth.h>
      #include <moth_ops.h>
      #include "plus.h"
      static MothStatus plus(MothCall *c) {
        MothTensor *out;
        MothStatus s = moth_add(moth_call_arg(c, 0), moth_v_int(PLUS), moth_v_int(1), &out);
        return s ? s : moth_call_set_result(c, 0, out);
      }
      MOTH_LIBRARY(NAME, m) { moth_def(m, "plus(Tensor x) -> Tensor", plus); }
    ]]
    f:close()
    local function header(text)
      local h = assert(io.open(dir .. "/plus.h", "w"))
      h:write("#define PLUS 5\n#define NAME ", text, "\n")
      h:close()
    end
    local printed, print_ = {}, print
    local function load(name, more)
      printed = {}
      _G.print = function(text) printed[#printed + 1] = text end
      local o = { name = name, sources = { dir .. "/plus.c" }, verbose = true }
      for k, v in pairs(more or {}) do o[k] = v end
      local ok, result = pcall(moth.cpp_extension.load, o)
      _G.print = print_
      if not ok then error(result, 0) end
      return result
    end
    header "plus_one"
    assert.same({ 6 }, load("plus_one").plus(moth.ones(1)):totable())
    assert.equal(2, #printed) -- compiled and linked
    assert.same({ 6 }, load("plus_one").plus(moth.ones(1)):totable())
    assert.matches("^found .*plus_one_%x+%.so$", printed[1])
    header "plus_two" -- a header beside the source is one of the sources
    assert.same({ 6 }, load("plus_two").plus(moth.ones(1)):totable())
    assert.equal(2, #printed)
    fails("fatal error: .*none.h", load, "plus_three", { extra_cflags = { "-include", dir .. "/none.h" } })
    fails("cannot read .*none.c", load, "plus_three", { sources = { dir .. "/none.c" } })
    fails("expected a .c, .cc, .cpp, .cxx or .cu file", load, "plus_three", { sources = { dir .. "/plus.h" } })
    fails("option 'name'", load, "plus three")
    fails("did you mean 'sources'", load, "plus_three", { source = {} })
    assert.equal("", (shell("ls %s/kept | grep -v 'so$'", dir)))
    local other = new_state() -- the library is open already: another state gets its ops, too
    assert.equal("6", (other:run(("return tostring(moth.cpp_extension.load{ name = 'plus_two', sources = { %q } }\z
      .plus(moth.ones(1)):item())"):format(dir .. "/plus.c"))))
    other:close()
  end)
  it("with a mistake defines nothing, and says which", function()
    fails("d_ops: unknown type 'Tesnor' %(column 10%)", library.load,
      compile("d_ops", [[-DNAME=d_ops "-DWRONG=\"x(Tesnor a) -> Tensor\""]]))
    fails("has no 'd_ops'", function() return moth.ops.d_ops end)
    library.load(compile("f_ops", "-DNAME=f_ops"))
    fails("f_ops: there is an op named 'f_ops::scale' already: library_check.c:1", library.load,
      compile("again", "-DNAME=f_ops"))
    assert.same({ 2 }, moth.ops.f_ops.scale(moth.ones(1)):totable())
    fails("cannot open shared object file", library.load, dir .. "/none.so")
  end)
end)
