-- The steps of a call: interceptors, fake tensors, autocast, a third backend. Rows M060 to M077.
local moth = require "moth"
local B = require "moth_lua"

describe("dispatch #quick", function()
  it("counts the ops that reach a backend", function() -- row M073, but for compiled calls
    local x = moth.randn(3, 4)
    local total, each = moth.dispatch.count(function() return x:softmax(2):sum() end)
    assert.equal(2, total)
    assert.equal(1, each.softmax)
    assert.equal(0, (moth.dispatch.count(function() end)))
  end)

  it("counts nested and failing functions and goes back", function()
    assert.has_error(function() moth.dispatch.count(function() error("x", 0) end) end, "x")
    local inner
    local outer = moth.dispatch.count(function()
      moth.ones(2)
      inner = moth.dispatch.count(function() return moth.ones(2), moth.ones(2) end)
      moth.ones(2)
    end)
    assert.same({ 4, 2 }, { outer, inner })
    assert.equal(1, (moth.dispatch.count(function() moth.ones(2) end)))
  end)

  it("shows every call to a Lua mode, which may redispatch or replace #M063", function()
    local seen = {}
    local y = moth.dispatch_mode(function(func, args)
      seen[#seen + 1] = func.name
      return func(unpack(args))
    end, function()
      local x = moth.ones(2, 2)
      return (x + x):mul_(3)
    end)
    assert.same({ "ones", "add", "mul_" }, seen)
    assert.equal(6, y[1][1]:item())
    local z = moth.dispatch_mode(function() return moth.full({ 2 }, 7) end, function() return moth.ones(2) * 5 end)
    assert.same({ 7, 7 }, z:totable())
  end)

  it("lets a tensor subclass see the calls that it is in #M064 #M065", function()
    local lines = {}
    local Logging = moth.tensor_subclass("LoggingTensor", {
      dispatch = function(cls, func, types, args)
        lines[#lines + 1] = "Calling: " .. func.name
        assert.equal(cls, types[1])
        return func(unpack(args, 1, args.n))
      end,
      twice = function(self) return self + self end,
    })
    local elem = moth.randn(3, 3)
    local x = Logging(elem)
    local y = x + x
    assert.same({ "Calling: add.Tensor" }, lines)
    assert.is_true(moth.equal(y, elem * 2))
    assert.is_true(x:shares_storage(elem))
    assert.equal("LoggingTensor", moth.type(x))
    assert.equal("Tensor", moth.type(elem))
    assert.equal("Tensor", moth.type(y))
    lines = {}
    assert.is_true(moth.equal(x:twice(), y))
    x:exp()
    local three = x * 3
    x:add_(1)
    moth.cat { x, three }
    assert.same({ "Calling: add.Tensor", "Calling: exp.default", "Calling: mul.Scalar", "Calling: add_.Scalar",
      "Calling: cat.default" }, lines)
    assert.is_true(moth.allclose(elem, y / 2 + 1))
    assert.error_matches(function() return x.nonsense end, "no method or field 'nonsense'")
    -- Below autograd: the op's own derivative is recorded, and the mode gets the calls of backward.
    local leaf = Logging(moth.tensor({ 2, 3 }, { requires_grad = true }))
    lines = {};
    (leaf * leaf):sum():backward()
    assert.same({ 4, 6 }, leaf.grad:totable())
    assert.equal("Calling: mul.Tensor", lines[1])
    -- Replacing results, wrapping them, errors.
    local Seven = moth.tensor_subclass("Seven", { dispatch = function(cls) return cls(moth.full({ 2 }, 7)) end })
    local seven = Seven(moth.ones(2)) + 1
    assert.same({ 7, 7 }, seven:totable())
    assert.equal("Seven", moth.type(seven))
    local Bad = moth.tensor_subclass("Bad", { dispatch = function() error("refused", 0) end })
    assert.error_matches(function() return Bad(moth.ones(2)):exp() end, "refused")
    assert.same({ 7, 7 }, (seven * 2):totable())
    assert.error_matches(function() moth.make_subclass({}, elem) end, "expected a class")
    assert.error_matches(function() moth.tensor_subclass("x", {}) end, "dispatch")
  end)

  it("hands a mode positions that count from 1, and takes them back", function()
    local dims
    local x = moth.randn(2, 3)
    local y = moth.dispatch_mode(function(func, args)
      if func.name == "transpose" then dims = { args[2], args[3] } end
      return func(unpack(args))
    end, function() return x:transpose(1, 2):argmax(1) end)
    assert.same({ 1, 2 }, dims)
    assert.is_true(y:equal(x:argmax(2)))
  end)

  it("records gradients above a mode", function()
    local x = moth.tensor({ 2, 3 }, { requires_grad = true })
    local names = {}
    moth.dispatch_mode(function(func, args)
      names[#names + 1] = func.name
      return func(unpack(args))
    end, function() (x * x):sum():backward() end)
    assert.same({ 4, 6 }, x.grad:totable())
    assert.is_true(#names >= 4)
  end)

  it("keeps arguments that a handler frees until the call has returned", function()
    for _, result in ipairs { "none", "itself", "another" } do
      for _, recorded in ipairs { true, false } do
        local x = moth.ones(2, 3):requires_grad_(recorded)
        local ok, err = pcall(moth.dispatch_mode, function(_, args)
          local first = args[1]
          first:free()
          return result == "itself" and first or result == "another" and moth.zeros(2) or nil
        end, function() return x * 2 + 1 end)
        assert.equal(result == "another", ok)
        if result == "none" then assert.is_truthy(err:find("got self: float32 [2, 3] cpu", 1, true), err) end
      end
    end
  end)

  it("lets a handler count, trace and open modes", function()
    local inner, total = 0, nil
    local function handler(fn, args)
      total = (total or 0) + moth.dispatch.count(function() return args[1] + 1 end)
      moth.dispatch_mode(function(f, a)
        inner = inner + 1
        return f(unpack(a))
      end, function() return args[1] * 2 end)
      return fn(unpack(args))
    end
    local x = moth.ones(2)
    local y = moth.dispatch_mode(handler, function() return moth.dispatch_mode(function(f, a)
      return f(unpack(a))
    end, function() return x * 3 end) end)
    assert.same({ 3, 3 }, y:totable())
    assert.same({ 1, 1 }, { inner, total })
    assert.equal(1, moth.dispatch.count(function() return y + 1 end))
  end)

  it("nests modes, restores after errors, keeps the error object", function()
    local order, err = {}, { code = 1 }
    local function mode(tag)
      return function(func, args)
        order[#order + 1] = tag
        return func(unpack(args))
      end
    end
    moth.dispatch_mode(mode("outer"), function()
      moth.dispatch_mode(mode("inner"), function() moth.ones(1) end)
    end)
    assert.same({ "inner", "outer" }, order)
    local ok, e = pcall(moth.dispatch_mode, function() error(err) end, function() return moth.ones(1) end)
    assert.is_false(ok)
    assert.equal(err, e)
    assert.has_error(function() moth.dispatch_mode(function() return 3 end, function() return moth.ones(1) end) end)
    assert.equal(1, moth.ones(1):item())
  end)

  it("runs a hot loop under a mode (no compiled trace may call back)", function()
    local n = 0
    local x = moth.ones(2)
    moth.dispatch_mode(function(func, args)
      n = n + 1
      return func(unpack(args))
    end, function() for _ = 1, 2000 do x = x + 0 end end)
    assert.equal(2000, n)
  end)

  it("traces the path of one call #M071 #M077", function()
    local x, w = moth.ones(3, 4), moth.randn(5, 4, { requires_grad = true })
    local lines = moth.dispatch.trace(function() moth.nn.functional.linear(x, w) end)
    local line = debug.getinfo(1, "l").currentline - 1
    assert.equal(1, #lines)
    assert.matches("^linear %[Autograd, CPU%]  input: float32 %[3, 4%] cpu, weight: float32 %[5, 4%] cpu  "
      .. "%(src/ops/linalg.lua:%d+%)  LinearBackward0  moth_cpu_linear %(kernels/cpu/linalg.c:%d+%)  "
      .. "called at spec/dispatch/dispatch_spec.lua:" .. line .. "$", lines[1])
    -- The kernel is at the reported line.
    local path, at = lines[1]:match("moth_cpu_linear %((.-):(%d+)%)")
    local n = 0
    for text in io.lines(path) do
      n = n + 1
      if n == tonumber(at) then assert.matches("moth_cpu_linear(", text, 1, true) end
    end
    lines = moth.dispatch.trace(function() return (x + 1):reshape(12) end)
    assert.matches("^add %[CPU%] .*  moth_cpu_pointwise of m_add %(kernels/cpu/pointwise.c:%d+%)  called", lines[1])
    assert.matches("^reshape %[CPU%] composite .*  moth_composite_reshape %(src/ops/view.lua:%d+%)", lines[2])
    assert.matches("^view %[CPU%] .*  moth_shape_view %(src/dispatch/shape_view.c:%d+%)", lines[3])
    moth.no_grad(function() lines = moth.dispatch.trace(function() x:matmul(w:t()) end) end)
    assert.is_nil(table.concat(lines):find("Backward0", 1, true)) -- nothing is recorded
  end)

  it("MOTH_LOGS=dispatch prints the same lines #M071", function()
    local luajit = os.getenv("LUAJIT") or "luajit"
    local pipe = io.popen("MOTH_LOGS=dispatch " .. luajit .. [[ -e 'local moth = require "moth"
      local w = moth.ones(2, { requires_grad = true })
      local y = w + 1' 2>&1]])
    local text = pipe:read("*a")
    pipe:close()
    assert.matches("%[moth dispatch%] add %[Autograd, CPU%]  self: float32 %[2%] cpu, other: 1, alpha: 1  "
      .. "%(src/ops/pointwise.lua:%d+%)  AddBackward0  moth_cpu_pointwise of m_add %(kernels/cpu/pointwise.c:%d+%)  "
      .. "called at %(command line%):3\n", text)
  end)

  it("shows arguments of every kind in a trace, positions from 1", function()
    local x = moth.ones(2, 3)
    local function line(fn) return (moth.dispatch.trace(fn)[1]:gsub("  %(src/.*", "")) end
    assert.equal("zeros []  size: {2, 0}, dtype: int64, device: cpu",
      line(function() moth.zeros(2, 0, { dtype = moth.int64, device = "cpu" }) end))
    assert.equal("cat [CPU]  tensors: {float32 [2, 3] cpu, float32 [2, 3] cpu}, dim: 2",
      line(function() moth.cat({ x, x }, 2) end))
    assert.equal("sum [CPU]  self: float32 [2, 3] cpu, dim: {1, 2}, keepdim: true",
      line(function() x:sum({ 1, -1 }, true) end))
    assert.equal("mul_ [CPU]  self: float32 [2, 3] cpu, other: 0.5", line(function() x:mul_(0.5) end))
    local many = {}
    for i = 1, 200 do many[i] = x end
    local long = line(function() moth.cat(many, 1) end) -- cut to the buffer
    assert.matches("^cat %[CPU%]  tensors: {float32", long)
    assert.is_true(#long > 500 and #long < 1100)
  end)

  it("describes ops #M068 #M072", function()
    assert.is_true(#moth.ops.list() >= 90)
    local text = moth.ops.describe("softmax")
    assert.truthy(text:find("softmax_backward", 1, true))
    assert.has_error(function() moth.ops.describe("nosuch") end)
  end)

  it("lists for an op what each key and dtype goes to #M060", function()
    local t = moth.dispatch.table("add")
    assert.same({ "AddBackward0", { "self", "other" } }, { t.autograd.node, t.autograd.of })
    assert.matches("^add\n  Autocast +to the widest dtype of the arguments\n  Autograd +AddBackward0 of self, other\n"
      .. "  Fake +moth_shape_pointwise %(src/dispatch/shape_pointwise.c:%d+%)\n"
      .. "  cpu +moth_cpu_pointwise of m_add %(kernels/cpu/pointwise.c:%d+%)\n"
      .. " +float32 float64 float16 bfloat16 int8 .*int64 bool complex64 complex128\n"
      .. "  cuda +moth_cuda_pointwise of m_add %(kernels/cuda/pointwise.cu:%d+%)", tostring(t))
    assert.matches("moth_composite_reshape", moth.dispatch.table("reshape").composite.symbol)
    assert.error_matches(function() moth.dispatch.table("nosuch") end, "there is no op named 'nosuch'")
    -- For every op: the dtypes that the list has are those that it takes.
    for _, name in ipairs(moth.ops.list()) do
      t = moth.dispatch.table(name)
      assert.is_truthy(t.composite or t.cpu or t.fake, name)
      if t.cpu then assert.is_true(#t.cpu.dtypes > 0 and t.cpu.place ~= "?", name) end
    end
    local float = table.concat(moth.dispatch.table("erf").cpu.dtypes, " ")
    assert.equal("float32 float64 float16 bfloat16", float)
  end)

  it("knows the dtype of mixed operands #M075", function()
    local function result(a, b)
      return moth.result_type(moth.zeros(1, { dtype = a }), moth.zeros(1, { dtype = b })).name
    end
    assert.equal("float32", result("int32", "float32"))
    assert.equal("float32", result("float16", "bfloat16"))
    assert.equal("int16", result("int8", "uint8"))
    assert.equal("int64", moth.result_type(moth.zeros(1, { dtype = "int64" }), 1).name)
    assert.equal("float32", moth.result_type(moth.zeros(1, { dtype = "int64" }), 1.5).name)
    local zero_dim = moth.zeros({}, { dtype = "float64" })
    assert.equal("float16", moth.result_type(moth.zeros(1, { dtype = "float16" }), zero_dim).name)
  end)

  it("gives one type of tensor with and without grad #M074", function()
    local a, b = moth.ones(1), moth.ones(1, { requires_grad = true })
    assert.equal(getmetatable(a), getmetatable(b))
  end)
end)

describe("fake tensors #quick", function()
  it("have shapes and no memory", function()
    local before = moth.memory.stats().live
    local y = moth.fake_mode(function()
      local x = moth.randn(1000, 1000, 1000)
      return x:sum(1):matmul(moth.randn(1000, 7))
    end)
    assert.same({ 1000, 7 }, y:size())
    assert.is_true(y:is_fake())
    assert.is_true(moth.memory.stats().live - before < 1e6)
    assert.has_error(function() y:item() end)
    assert.truthy(tostring(y):find("fake", 1, true))
  end)

  it("raise the errors of real ones", function()
    assert.has_error(function()
      moth.fake_mode(function() return moth.randn(2, 3):mm(moth.randn(4, 5)) end)
    end)
    assert.is_false(moth.ones(1):is_fake())
  end)
end)

describe("autocast #quick", function()
  it("runs products in bfloat16 and losses in float32", function()
    local x, w = moth.randn(3, 4), moth.randn(4, 5, { requires_grad = true })
    local y, s = moth.autocast(function()
      local p = x:mm(w)
      return p, p:softmax(2)
    end)
    assert.equal(moth.bfloat16, y:dtype())
    assert.equal(moth.float32, s:dtype())
    y:float():sum():backward()
    assert.equal(moth.float32, w.grad:dtype())
    assert.equal(moth.float32, x:mm(w):dtype())
    assert.equal(moth.float32, moth.autocast({ enabled = false }, function() return x:mm(w) end):dtype())
  end)
end)

describe("a backend of the user's #M061", function()
  it("runs kernels written in Lua and says what is missing #M062", function()
    local calls = 0
    moth.library.register_backend("mydev", {
      add = function(args, results)
        calls = calls + 1
        local sum = args[1]:cpu() + (moth.is_tensor(args[2]) and args[2]:cpu() or args[2])
        results[1]:copy_(sum)
      end,
    })
    local a = moth.tensor({ 1, 2 }):to("mydev")
    local b = a + a
    assert.equal(1, calls)
    assert.equal("mydev", tostring(b:device()))
    assert.equal("mydev", moth.backends()[#moth.backends()])
    assert.matches("\n  mydev +registered in Lua", tostring(moth.dispatch.table("add")))
    assert.same({ 2, 4 }, b:cpu():totable())
    local ok, message = pcall(function() return a * a end)
    assert.is_false(ok)
    assert.truthy(message:find("could not run 'moth::mul' with arguments from the 'mydev' backend", 1, true))
    ok, message = pcall(function() return a + moth.ones(2) end)
    assert.is_false(ok)
    assert.truthy(message:find("Expected all tensors to be on the same device", 1, true))
  end)

  it("refuses devices that are not there, clearly #M040", function()
    for _, name in ipairs({ "cuda:63", "mps", "xla", "cpu:1", "" }) do
      assert.has_error(function() moth.device(name) end)
    end
    if moth.cuda.is_available() then return end -- the emulation
    assert.has_error(function() moth.device("cuda") end)
    assert.is_string(moth.cuda.why())
  end)

  it("a counting mode that is collected while a mode's function runs is closed later", function()
    local x = moth.ones(2)
    for _ = 1, 40 do -- more than there are places
      local handle = B.push_count()
      local mode = B.push_mode(function(fn, args)
        assert(handle == nil or handle)
        handle = nil
        collectgarbage()
        collectgarbage()
        return fn(unpack(args))
      end)
      local _ = x + 1
      _ = x + 1
      B.pop_mode(mode)
      local counts = B.push_count()
      _ = (x + 1) * 2
      assert.equal(2, (B.pop_count(counts)))
    end
  end)
end)
