-- compile's generated kernels on CUDA: the lowering, fusion and schedules of the CPU, printed as CUDA C++. Run on the
-- emulation where there is no GPU.
local moth = require "moth"
local inductor = require "moth.compile.inductor"
local C = require("moth_lua").compile
local F, nn = moth.nn.functional, moth.nn

if not moth.cuda.is_available() then
  describe("compile: generated kernels on CUDA", function() pending("no CUDA: " .. moth.cuda.why(), function() end) end)
  return
end

local on = { device = "cuda" }
local function randn(...) return moth.randn({ ... }, on) end
local bounds = { ["moth.float64"] = 1e-10, ["moth.float16"] = 2e-3, ["moth.bfloat16"] = 2e-2 }

local function same(want, got, what)
  assert.equal(want:dtype(), got:dtype(), what)
  assert.equal(tostring(want:device()), tostring(got:device()), what)
  assert.equal(tostring(want:size()), tostring(got:size()), what)
  assert.equal(tostring(want:stride()), tostring(got:stride()), what)
  local bound = bounds[tostring(want:dtype())] or 1e-5
  local near = { rtol = bound, atol = bound, equal_nan = true }
  assert.is_true(moth.allclose(want:cpu():double(), got:cpu():double(), near), what)
end

-- Checks f compiled against f, on two calls; returns how many kernels each call launches, and the calls in them.
local function check(f, what, ...)
  local plan
  local fast = moth.compile(f, { backend = function(graph, inputs)
    local code, own = inductor.backend(graph, inputs)
    plan = code
    return code or graph:interpreter(), own
  end })
  for call = 1, 2 do
    moth.manual_seed(call)
    local want = { f(...) }
    moth.manual_seed(call)
    local got = { fast(...) }
    for i, t in ipairs(want) do same(t, got[i], ("%s, call %d, result %d"):format(what, call, i)) end
  end
  if type(plan) ~= "userdata" then return nil end
  local facts = C.plan_facts(plan)
  return facts.launches, facts.fused
end

describe("compile: generated kernels on CUDA", function()
  before_each(function()
    moth.compile.config.measure, inductor.strict = false, true
    moth.compile.reset()
  end)
  after_each(function() moth.compile.config.measure, inductor.strict = true, false end)

  it("are one for a pointwise chain and its sum #M302 #M311", function()
    local x = randn(20, 100)
    local launches, fused = check(function(t) return (t * 2 + 1):relu():sum(2) end, "relu", x)
    assert.equal(1, launches)
    assert.is_true(fused >= 4)
  end)

  it("come from one lowering for both devices #M311", function()
    local function f(t) return (t * 2 + 1):tanh():sum(1), F.gelu(t) * t:sigmoid(), (t * 3):softmax(2) end
    local counts = {}
    for i, device in ipairs { "cpu", "cuda" } do
      local before = inductor.counters.groups
      moth.compile(f, { backend = "inductor" })(moth.randn(30, 40):to { device = device })
      counts[i] = inductor.counters.groups - before
    end
    assert.equal(counts[1], counts[2])
    assert.is_true(counts[2] >= 1)
  end)

  local w, g = randn(100), randn(40, 100)
  local programs = {
    chain = function(t) return (t * 2 + 1):tanh() * t:sigmoid() - t * t / 2 end,
    softmax = function(t) return (t * 0.5):softmax(2) end,
    ["layer norm"] = function(t) return F.gelu(F.layer_norm(t, { 100 }, w, w)) end,
    ["RMS norm"] = function(t) return t * (t:square():mean(2, true) + 1e-5):rsqrt() * w end,
    ["all sums"] = function(t) return (t * 2 + 1):relu():sum(), (t * t):mean(), t:gt(0):any() end,
    columns = function(t) local d = g * t:gt(0) return d, d:sum(1) end,
    ["outer and inner"] = function(t) return (t:view(4, 10, 5, 20) * 2 + 1):sum({ 1, 3 }) end,
    extremes = function(t) return (t * 2):amax(2), (t * 2):amin(1), t:var(2), t:logsumexp(1) end,
    truths = function(t) return (t:gt(0) * 1):sum(1), t:gt(3):any(2), t:lt(1):all(1) end,
    casts = function(t) return (t:to(moth.bfloat16) * 2):to(moth.float32) + g:to(moth.float64) end,
    half = function(t) return (t:to(moth.float16) * 2 + 1):exp() end,
    tiles = function(t) return (t * 2):t() * 3 + t:t() end,
    strided = function(t) return (t:narrow(2, 3, 40):t() * 2 + 1):relu():sum(1) end,
    cat = function(t) return moth.cat({ t * 2, g + 1 }, 2):relu(), moth.cat({ t, g }, 1) * 2 end,
    pad = function(t) return F.pad(t * 2 + 1, { 1, 2 }):relu() * 3 end,
    views = function(t) return (t:view(4, 10, 100):transpose(1, 2) * 2 + 1):reshape(40, 100):relu() end,
    ["where and masks"] = function(t) return moth.where(t:gt(0), t * 2, t - 1):masked_fill(t:lt(-1), 7) end,
    ["products stay calls"] = function(t) return F.gelu(t:matmul(g:t()) * 0.1 + 1) end,
    ["a scalar of the CPU"] = function(t) return ((t + moth.tensor(3.0)) * 2):relu() end,
  }

  -- All in one graph, on a tensor each: one source, which is one run of the compiler.
  local function check_all(list)
    local inputs, names = {}, {}
    for i, one in ipairs(list) do inputs[i], names[i] = one.x, one.name end
    check(function(...)
      local out = {}
      for i, one in ipairs(list) do
        for _, t in ipairs { one.f((select(i, ...))) } do out[#out + 1] = t end
      end
      return unpack(out)
    end, table.concat(names, ", "), unpack(inputs))
  end

  it("give eager's values", function()
    local list = {}
    for name, f in require("moth.each")(programs) do list[#list + 1] = { name = name, f = f, x = randn(40, 100) } end
    check_all(list)
  end)

  it("apply eager's masks of dropout", function()
    check(function(t) return F.dropout(t * 2 + 1, 0.4, true) * 3 end, "dropout", randn(40, 100))
  end)

  it("give eager's values for each dtype and for sizes 0 and 1", function()
    local function f(t) return (t * 2 + 1):abs() * t, (t * 3):sum(-1) end
    local list = {}
    for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8",
      "uint8" } do
      for _, shape in ipairs { { 6, 9 }, { 1, 1 }, { 3, 0 }, {} } do
        local x = (moth.rand(shape, on) * 3):to(moth[dtype])
        list[#list + 1] = { name = dtype .. " of " .. #shape, f = f, x = x }
      end
    end
    check_all(list)
    check(function(a, b) return moth.logical_and(a, b):logical_not(), a:eq(b):sum() end, "bool",
      randn(5, 7):gt(0), randn(5, 7):gt(0))
  end)

  it("put together what several programs have summed", function()
    check(function(t) return (t * 2 + 1):relu():sum() end, "all", randn(300, 1000))
    check(function(t) return (t * 2 + 1):relu():sum(1) end, "columns", randn(3000, 70))
  end)

  it("have the gradients of eager", function()
    local net = nn.Sequential(nn.Linear(12, 20), nn.LayerNorm { 20 }, nn.GELU(), nn.Dropout(0.3), nn.Linear(20, 5))
      :to("cuda")
    local fast = moth.compile(net, { backend = "inductor" })
    local x = randn(7, 12)
    local function grads(f)
      moth.manual_seed(5)
      net:zero_grad()
      local loss = f(x):square():mean()
      loss:backward()
      local list = { loss:detach() }
      for _, p in net:named_parameters() do list[#list + 1] = p.grad:clone() end
      return list
    end
    local before = inductor.counters.groups
    local want, got = grads(net), grads(fast)
    for i, t in ipairs(want) do same(t, got[i], "gradient " .. i) end
    assert.is_true(inductor.counters.groups - before >= 2)
  end)

  it("write to inputs in place", function()
    local function f(t, v)
      t:mul_(0.9):add_(v, { alpha = 0.1 })
      return t * 2
    end
    local fast = moth.compile(f, { backend = "inductor" })
    local a, v = randn(30, 4), randn(30, 4)
    local b = a:clone()
    for _ = 1, 3 do same(f(a, v), fast(b, v), "result") end
    same(a, b, "input")
  end)

  it("run on streams, and are captured as a graph", function()
    local function f(t) return (t * 2 + 1):tanh() * t, (t * 3):sum(2) end
    local fast = moth.compile(f, { mode = "reduce-overhead" })
    moth.no_grad(function()
      for _ = 1, 5 do
        local x = randn(8, 16)
        local got = { fast(x) }
        for i, t in ipairs { f(x) } do same(t, got[i], "captured") end
      end
    end)
    local x, here = randn(50, 60), nil
    local plain = moth.compile(f, { backend = "inductor" })
    local stream = moth.cuda.Stream()
    moth.cuda.synchronize()
    moth.cuda.stream(stream, function() here = { plain(x) } end)
    stream:synchronize()
    same((f(x)), here[1], "on a stream")
  end)

  it("run on the device of their tensors", function()
    if moth.cuda.device_count() < 2 then return pending("needs two devices") end
    local x = moth.randn({ 6, 7 }, { device = "cuda:1" })
    assert.equal(1, (check(function(t) return (t * 2 + 1):relu():sum(2) end, "cuda:1", x)))
  end)

  it("check each access where that is asked for", function()
    local emit = require "moth.compile.emit"
    local function f(t) return (t * 2 + 1):tanh() * 2 end
    local x, offset = randn(6, 7), emit.offset
    require("kernel.kernels").with({ MOTH_KERNEL_CHECK = "1" }, function()
      assert.equal(1, (check(f, "checked", x)))
      emit.offset = function(self, a, at) return self.b:binary("add", offset(self, a, at), self.b:const(3)) end
      local ok, message = pcall(moth.compile(function(t) return f(t) - 1 end, { backend = "inductor" }), x)
      emit.offset = offset
      assert.is_false(ok)
      assert.matches("load of operand 1 %(float32 %[6, 7%] cuda:0%), element 4%d .* is outside of its memory", message)
    end)
  end)

  it("are timed with blocks of other sizes in mode max-autotune, and the times are kept #M287 #M290", function()
    local tune, folder = require "moth.compile.tune", os.tmpname()
    os.execute(("rm -f %s; mkdir -m 700 %s"):format(folder, folder))
    require("kernel.kernels").with({ MOTHINDUCTOR_CACHE_DIR = folder }, function()
      local x, timed = randn(12, 40), {}
      local function f(t) return (t * 2 + 1):tanh() * t, (t * 3):sigmoid():sum(2) end
      for process = 1, 2 do
        tune.forget()
        moth.compile.reset()
        local got = { moth.no_grad(moth.compile(f, { mode = "max-autotune" }), x) }
        for i, t in ipairs { f(x) } do same(t, got[i], "result " .. i) end
        timed[process] = moth.compile.counters().timed
      end
      assert.is_true(timed[1] >= 2)
      assert.equal(0, timed[2])
    end)
    os.execute("rm -rf " .. folder)
  end)

  it("are what NVRTC takes", function()
    local ok, nvrtc = pcall(require("kernel.nvrtc").open)
    if not ok or not nvrtc then return pending("libnvrtc was not found") end
    local program, sources = require "moth.cuda.program", {}
    local new = program.new
    program.new = function(device, source, ...)
      sources[#sources + 1] = source
      return new(device, source, ...)
    end
    local ran, message = pcall(function()
      check(function(t)
        local y = (t * 3.25 + 1):relu()
        return y:sum(2), y:sum(1), y:softmax(2), moth.cat({ y, t }, 2) * 2, (y * 2):t() * 3 + y:t(),
          y:to(moth.half):exp(), y:to(moth.bfloat16) * 2, F.gelu(F.layer_norm(y, { 100 }))
      end, "all", randn(41, 100))
    end)
    program.new = new
    assert.is_true(ran, message)
    assert.is_true(#sources > 0)
    for _, source in ipairs(sources) do assert.equal("", nvrtc(source)) end
  end)
end)
