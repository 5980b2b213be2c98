-- moth.debug: faults that are planted here are named, with their place.
local moth = require "moth"
local nn, debug_of = moth.nn, moth.debug

local function net()
  moth.manual_seed(3)
  return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(8)), nn.Linear(8, 2))
end

describe("debug.find_nan #quick #M449", function()
  local Root = nn.class("Root")
  function Root.__init() end
  function Root.forward(_, x)
    local y = x:sqrt()
    return y
  end

  it("names module, op, index and line of a NaN in forward", function()
    local model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), Root(), nn.Tanh()))
    model[1].bias.data:fill_(10)
    assert.is_nil(debug_of.find_nan(model, moth.rand(3, 4)))
    local negative = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Root(), nn.Tanh()))
    negative[1].weight.data:fill_(1)
    negative[1].bias.data:fill_(0)
    local found = debug_of.find_nan(negative, moth.tensor({ { 1, 1, 1, 1 }, { -1, -1, -1, -1 } }))
    assert.same({ "nan", "forward", "1.1", "Root", "op sqrt" }, { found.what, found.phase, found.module, found.kind,
      found.op })
    assert.same({ 2, 1 }, found.index)
    assert.is_true(found.inputs_finite)
    assert.truthy(found.place:find("debug_spec.lua:14$"), found.place)
    assert.truthy(tostring(found):find("nan in the output of 1.1 (Root), op sqrt at {2, 1}; its inputs were finite", 1,
      true), tostring(found))
  end)

  it("Inf in a module's result, in parameters, in inputs; NaN in backward", function()
    local model = net()
    model[3].weight.data[{ 1, 2 }] = math.huge
    local found = debug_of.find_nan(model, moth.randn(3, 4))
    assert.equal("inf in parameter 2.weight at {1, 2}, before anything ran", tostring(found))
    found = debug_of.find_nan(net(), moth.tensor { { 0 / 0, 1, 2, 3 } })
    assert.equal("nan in input 1 at {1, 1}, before anything ran", tostring(found))
    local Big = nn.class("Big")
    function Big.__init() end
    function Big.forward(_, x) return x * 1e30 * 1e30 end
    found = debug_of.find_nan(nn.Sequential(nn.Linear(2, 2), Big()), moth.ones(1, 2))
    assert.same({ "inf", "1", "Big" }, { found.what, found.module, found.kind })
    local Zero = nn.class("Zero")
    function Zero.__init() end
    function Zero.forward(_, x)
      local y = (x * 0):sqrt() * 0
      return y
    end
    found = debug_of.find_nan(nn.Sequential(nn.Linear(2, 2), Zero()), moth.ones(1, 2))
    assert.same({ "backward", "1", "SqrtBackward0" }, { found.phase, found.module, found.op })
    assert.truthy(tostring(found):find("nan in the gradients of 1 (Zero), SqrtBackward0; called at", 1, true))
  end)

  it("leaves the model as it was", function()
    local model = net()
    local before = {}
    for name, b in model:named_buffers() do before[name] = b:clone() end
    local rng = moth.get_rng_state()
    assert.is_nil(debug_of.find_nan(model, moth.ones(3, 4)))
    for name, b in model:named_buffers() do assert.is_true(moth.equal(before[name], b)) end
    for _, p in model:named_parameters() do assert.is_nil(p.grad) end
    assert.same(rng, moth.get_rng_state())
    for _, m in model:named_modules() do assert.is_false(m._hooks) end
  end)
end)

describe("debug.grad_report #quick", function()
  it("flags vanishing, exploding, missing and bad gradients #M451", function()
    local model = net()
    model(moth.randn(5, 4)):sum():backward()
    local p = {}
    for name, v in model:named_parameters() do p[name] = v end
    p["0.weight"].grad:fill_(1e-10)
    p["0.bias"].grad:fill_(1e5)
    p["2.bias"].grad:fill_(0 / 0)
    p["2.weight"].grad = nil
    local flags = {}
    for _, r in ipairs(debug_of.grad_report(model)) do flags[r.name] = r.flag end
    assert.same({ ["0.weight"] = "vanishing", ["0.bias"] = "exploding", ["2.bias"] = "nan", ["2.weight"] = "none" }, {
      ["0.weight"] = flags["0.weight"], ["0.bias"] = flags["0.bias"], ["2.bias"] = flags["2.bias"],
      ["2.weight"] = flags["2.weight"] })
    local text = tostring(debug_of.grad_report(model, { exploding = 1e9 }))
    assert.truthy(text:find("0.bias               grad mean=100000.000000 std=0.000000 norm=2.83e+05\n", 1, true), text)
    assert.truthy(text:find("2.weight             no grad  <- none", 1, true))
  end)
end)

describe("debug.check_step #quick #M216 #M466", function()
  it("says what was forgotten, all of it at once", function()
    local model = net()
    local opt = moth.optim.SGD({ model[1].weight, model[1].bias }, { lr = 0.1 })
    local x = moth.randn(5, 4)
    model(x):sum():backward()
    model:eval()
    local ok, e = pcall(debug_of.check_step, { model = model, opt = opt, loss = model(x):detach() })
    assert.is_false(ok)
    for _, what in ipairs { "call model:train()", "call opt:zero_grad()", "the loss has 10 elements",
      "the loss requires no gradient", "in no parameter group" } do
      assert.truthy(e:find(what, 1, true), what .. " in " .. e)
    end
    model:train()
    opt = moth.optim.SGD(model:parameters(), { lr = 0.1 })
    opt:zero_grad()
    debug_of.check_step { model = model, opt = opt, loss = model(x):sum(), inputs = x }
    model(x):sum():backward()
    assert.error_matches(function() debug_of.check_step { model = model, opt = opt } end,
      "0.weight has a gradient already")
    debug_of.check_step { model = model, opt = opt, accumulate = true }
  end)
end)

describe("runs compared op by op #quick", function()
  local x = moth.randn(4, 4)

  it("the first op that differs is named, with its line #M459", function()
    local function run(k)
      return function()
        local y = x:mm(x):relu()
        y = y * k
        return (y + moth.randn(4, 4)):sum()
      end
    end
    local same = debug_of.compare_runs(run(2), run(2))
    assert.is_true(same.equal)
    assert.truthy(tostring(same):find("^equal: %d+ results"))
    local c = debug_of.compare_runs(run(2), run(2.001))
    assert.is_false(c.equal)
    assert.same({ 3, "mul" }, { c.first.index, c.first.op })
    assert.truthy(c.first.place:find("debug_spec.lua:%d+$"))
    assert.truthy(tostring(c):find("result 3: mul differs by up to [%d.e-]+; called at"))
    assert.is_true(debug_of.compare_runs(run(2), run(2.001), { rtol = 0.1, atol = 0.1 }).equal)
    assert.truthy(tostring(debug_of.compare_runs(run(1), function() return x:mm(x) end)):find("has ended"))
    assert.truthy(tostring(debug_of.compare_runs(run(1), function() return x:exp() end)):find("exp"))
  end)

  it("digests are equal where the bits are #M461", function()
    local model = net():eval()
    local a, b = debug_of.digest(model, x), debug_of.digest(model, x)
    assert.equal(tostring(a), tostring(b))
    assert.is_true(#a > 3)
    assert.not_equal(tostring(a), tostring(debug_of.digest(model, x + 1e-6)))
    assert.truthy(tostring(a):find("^   1 linear +%x%x%x%x%x%x%x%x float32 +%[4, 8%] sum"), tostring(a))
    assert.is_string(moth.version)
    assert.not_equal(debug_of.digest(function() return moth.tensor { 1, 2 }:clone() end)[1].bits,
      debug_of.digest(function() return moth.tensor { 2, 1 }:clone() end)[1].bits)
  end)

  it("an audit of what makes runs differ #M457", function()
    local audit = debug_of.determinism_audit(function()
      local model = net()
      local opt = moth.optim.SGD(model:parameters(), { lr = 0.1 })
      for _ = 1, 2 do
        opt:zero_grad()
        model(moth.randn(3, 4)):sum():backward()
        opt:step()
      end
    end)
    assert.is_true(audit.equal)
    assert.truthy(tostring(audit):find("draws random numbers +randn"), tostring(audit))
    local n = 0
    audit = debug_of.determinism_audit(function()
      n = n + 1
      return moth.ones(2) * n
    end)
    assert.is_false(audit.equal)
    assert.truthy(tostring(audit):find("two runs differ: result 2: mul differs", 1, true), tostring(audit))
  end)
end)

describe("debug.leak_check #quick", function()
  it("is memory.leak_check #M453", function()
    local kept = {}
    local report = moth.debug.leak_check(function() kept[#kept + 1] = moth.zeros(100) end)
    assert.truthy(tostring(report):find("debug_spec.lua:" .. debug.getinfo(1, "l").currentline - 1, 1, true),
      tostring(report))
    assert.error_matches(function() moth.debug.leak_check(3) end, "%[debug.leak_check%]")
  end)
end)

describe("debug.accuracy", function()
  it("gives each call's error by backend and dtype, and names where it grows #M460", function()
    moth.manual_seed(1)
    local model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    local x = moth.randn(3, 6)
    local report = debug_of.accuracy(model, x, { backends = { "eager", "inductor", "bfloat16" } })
    assert.equal(4, #report)
    for _, row in ipairs(report) do
      assert.is_true(row.error.eager < 1e-6 and row.error.inductor < 1e-6)
      assert.is_true(row.error.bfloat16 > 1e-4 and row.error.bfloat16 < 0.05, row.op)
      assert.matches("debug_spec.lua:%d+", row.place)
    end
    assert.matches("layer_norm +[%d.e-]+ +[%d.e-]+ +[%d.e-]+  .*debug_spec", tostring(report))
    assert.equal(4, #debug_of.accuracy(model, x))
  end)

  it("names a backend's wrong call, cancellation, and calls that overflow", function()
    local function wrong(graph)
      local run = graph:interpreter()
      return function(...)
        local results = { run(...) }
        results[2] = results[2] * 1.01
        return unpack(results)
      end
    end
    local function f(x)
      local y = x:exp()
      local z = y:sin()
      return z * 2
    end
    local report = debug_of.accuracy(f, moth.rand(5), { backends = { "eager", wrong } })
    assert.equal("sin", report.worst[wrong].op)
    assert.is_true(math.abs(report[2].error[wrong] - 0.01) < 1e-4)
    assert.is_true(report[1].error[wrong] < 1e-6)
    report = debug_of.accuracy(function(x)
      local y = x * 1000
      local z = y + 1e6
      local w = z - 1e6
      return w - y
    end, moth.rand(5))
    assert.equal("sub", report.worst.eager.op)
    assert.equal(math.huge, debug_of.accuracy(function(x) return x * 60000 end, moth.ones(2) * 2,
      { backends = { "float16" } })[1].error.float16)
    assert.equal(0, debug_of.accuracy(function(x) return x + x end, moth.zeros(0, 3))[1].error.inductor)
    assert.error_matches(function() debug_of.accuracy(f, 3) end, "input 1: expected a tensor, got number")
    assert.error_matches(function() debug_of.accuracy(f, moth.ones(1), { backend = "eager" }) end, "unknown option")
    assert.error_matches(function() debug_of.accuracy(3) end, "expected a function or a module, got number")
  end)
end)
