local moth = require "moth"
local nn, F = moth.nn, moth.nn.functional

local function close(expected, actual, tolerance)
  for i = 1, #expected do assert.is_near(expected[i], actual[i], tolerance or 1e-6) end
end

describe("layers #quick", function()
  before_each(function() moth.manual_seed(0) end)

  it("Linear applies x W^T + b to the last dimension #M175", function()
    local m = nn.Linear(512, 1024)
    assert.equal("[1024, 512]", tostring(m.weight:size()))
    assert.equal("[32, 128, 1024]", tostring(m(moth.randn(32, 128, 512)):size()))
    local small = nn.Linear(2, 1)
    small:load_state_dict({ weight = moth.tensor({ { 2, 3 } }), bias = moth.tensor({ 1 }) })
    assert.equal(2 * 5 + 3 * 7 + 1, small(moth.tensor({ 5, 7 })):item())
    assert.is_nil(nn.Linear(2, 1, { bias = false }).bias)
    assert.equal(0, nn.Linear(0, 3)(moth.zeros(2, 0)):detach():sum():item())
    assert.error_matches(function() small(moth.zeros(2, 3)) end,
      "input and weight shapes cannot be multiplied %(2x3 and 1x2%)")
    assert.error_matches(function() nn.Linear(2.5, 1) end, "'in_features': expected an integer")
    assert.error_matches(function() nn.Linear(2, 1, { bais = true }) end, "unknown option 'bais'")
    assert.equal(moth.float64, nn.Linear(2, 1, { dtype = moth.float64 }).weight:dtype())
  end)

  it("the two-layer model runs for (32, 512) #M176", function()
    local m = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    assert.equal("[32, 10]", tostring(m(moth.randn(32, 512)):size()))
  end)

  it("Sequential takes modules, a list or pairs, and counts from 1 #M177", function()
    local a, b = nn.Linear(2, 3), nn.GELU()
    for _, seq in ipairs({ nn.Sequential(a, b), nn.Sequential({ a, b }) }) do
      assert.equal(a, seq[1])
      assert.equal(b, seq[-1])
      assert.equal(2, seq:size())
      assert.is_nil(seq[3])
      assert.same({ "0.weight", "0.bias" }, seq:state_dict():keys())
    end
    local named = nn.Sequential({ { "fc", a }, { "act", b } })
    assert.same({ "fc.weight", "fc.bias" }, named:state_dict():keys())
    assert.equal(a, named.fc)
    local seq = nn.Sequential(a)
    seq[1] = b
    seq[2] = a
    assert.equal(b, seq[1])
    assert.same({ "1.weight", "1.bias" }, seq:state_dict():keys())
    local x = moth.ones(1)
    assert.is_true(rawequal(x, nn.Sequential()(x)))
    assert.error_matches(function() nn.Sequential(a, 3) end, "element 2 is no module but number")
    assert.error_matches(function() seq[5] = a end, "there are 2 modules")
  end)

  it("ModuleList and ModuleDict hold modules", function()
    local list = nn.ModuleList({ nn.Linear(2, 2), nn.Linear(2, 2) })
    list:append(nn.Linear(2, 2))
    assert.equal(3, list:size())
    assert.equal(6, #list:parameters())
    local n = 0
    for i, m in list:iter() do
      n = n + i
      assert.equal("Linear", m.__name)
    end
    assert.equal(6, n)
    local dict = nn.ModuleDict({ right = nn.ReLU(), left = nn.Linear(1, 1) })
    assert.same({ "left", "right" }, dict:keys())
    assert.equal(dict.left, dict:get("left"))
    assert.equal(2, #dict:parameters())
    assert.same({ "b", "a" }, nn.ModuleDict({ { "b", nn.ReLU() }, { "a", nn.ReLU() } }):keys())
    assert.error_matches(function() nn.ModuleDict({ x = 3 }) end, "'x' must be a module")
  end)

  it("Flatten keeps the batch, Unflatten undoes it #M179", function()
    assert.equal("[5, 784]", tostring(nn.Flatten()(moth.zeros(5, 1, 28, 28)):size()))
    assert.equal("[0, 784]", tostring(nn.Flatten()(moth.zeros(0, 1, 28, 28)):size()))
    assert.equal("[10, 3, 2]", tostring(nn.Flatten(1, 2)(moth.zeros(5, 2, 3, 2)):size()))
    assert.equal("Flatten(start_dim=2, end_dim=-1)", tostring(nn.Flatten()))
    assert.equal("Flatten(start_dim=1, end_dim=2)", tostring(nn.Flatten(1, 2)))
    assert.equal("[5, 3, 4]", tostring(nn.Unflatten(2, { 3, 4 })(moth.zeros(5, 12)):size()))
    assert.equal("Unflatten(dim=2, unflattened_size=(3, 4))", tostring(nn.Unflatten(2, { 3, 4 })))
    assert.error_matches(function() nn.Flatten(0) end, "expected a dimension")
    assert.error_matches(function() nn.Unflatten(2, 3) end, "expected a list")
  end)

  it("Dropout scales in training and does nothing in evaluation #M180", function()
    local m, x = nn.Dropout(0.2), moth.ones(10000)
    local y = m(x)
    local kept = y:ne(0):sum():item()
    assert.is_true(kept > 7800 and kept < 8200)
    assert.is_near(1.25, y:max():item(), 1e-6)
    m:eval()
    assert.is_true(rawequal(x, m(x)))
    assert.equal("Dropout(p=0.5, inplace=False)", tostring(nn.Dropout()))
    assert.equal("Dropout(p=0.1, inplace=True)", tostring(nn.Dropout({ p = 0.1, inplace = true })))
    assert.equal(0, nn.Dropout(1)(x):sum():item())
    local z = moth.ones(100)
    assert.is_true(rawequal(z, nn.Dropout(0.5, { inplace = true })(z)))
    assert.is_true(z:eq(0):any():item())
    assert.error_matches(function() nn.Dropout(1.5) end, "between 0 and 1")
    local g = moth.Generator(3)
    local a = F.dropout(x, { p = 0.3, generator = g })
    assert.is_true(a:equal(F.dropout(x, { p = 0.3, generator = g:manual_seed(3) })))
    assert.is_true(rawequal(x, F.dropout(x, { training = false })))
  end)

  it("ReLU has a module, a function and an in-place form #M181", function()
    local x = moth.tensor({ -1, 0, 2 })
    assert.same({ 0, 0, 2 }, nn.ReLU()(x):totable())
    assert.same({ 0, 0, 2 }, F.relu(x):totable())
    assert.same({ 0, 0, 2 }, moth.relu(x):totable())
    assert.is_true(rawequal(x, nn.ReLU({ inplace = true })(x)))
    assert.same({ 0, 0, 2 }, x:totable())
    assert.equal("ReLU(inplace=True)", tostring(nn.ReLU({ inplace = true })))
    local w = moth.tensor({ -1, 3 }, { requires_grad = true })
    F.relu_(w * 2):sum():backward()
    assert.same({ 0, 2 }, w.grad:totable())
  end)

  it("GELU is exact, or approximated by tanh, with gradient #M178", function()
    local x = moth.tensor({ -1, 0, 2 }, { dtype = moth.float64, requires_grad = true })
    local y = nn.GELU()(x)
    close({ -0.15865525393145707, 0, 1.9544997361036416 }, y:detach():totable(), 1e-12)
    y:sum():backward()
    close({ -0.08331547058768, 0.5, 1.08523180107820 }, x.grad:totable(), 1e-9)
    close({ -0.15880800939172324, 0, 1.9545976940877750 },
      nn.GELU({ approximate = "tanh" })(x):detach():totable(), 1e-12)
    assert.is_true(F.gelu(x, { approximate = "tanh" }):equal(nn.GELU("tanh")(x)))
    assert.equal("GELU(approximate='none')", tostring(nn.GELU()))
    assert.error_matches(function() nn.GELU({ approximate = "erf" }) end, "'none' or 'tanh'")
  end)

  it("activations agree with their formulas and print as PyTorch's", function()
    local x = moth.tensor({ -2, -0.5, 0, 1.5 }, { dtype = moth.float64 })
    local exp = math.exp
    local function sigmoid(v) return 1 / (1 + exp(-v)) end
    local cases = {
      { nn.LeakyReLU(0.2), function(v) return v > 0 and v or 0.2 * v end, "LeakyReLU(negative_slope=0.2)" },
      { nn.ELU(), function(v) return v > 0 and v or exp(v) - 1 end, "ELU(alpha=1.0)" },
      { nn.SiLU(), function(v) return v * sigmoid(v) end, "SiLU()" },
      { nn.Mish(), function(v) return v * math.tanh(math.log(1 + exp(v))) end, "Mish()" },
      { nn.Softplus({ beta = 2 }), function(v) return math.log(1 + exp(2 * v)) / 2 end,
        "Softplus(beta=2.0, threshold=20.0)" },
      { nn.Hardtanh(-1, 0.5), function(v) return math.max(-1, math.min(0.5, v)) end,
        "Hardtanh(min_val=-1.0, max_val=0.5)" },
      { nn.Sigmoid(), sigmoid, "Sigmoid()" },
      { nn.LogSigmoid(), function(v) return math.log(sigmoid(v)) end, "LogSigmoid()" },
      { nn.Tanh(), math.tanh, "Tanh()" },
    }
    for _, c in ipairs(cases) do
      local expected = {}
      for i, v in ipairs(x:totable()) do expected[i] = c[2](v) end
      close(expected, c[1](x):totable(), 1e-12)
      assert.equal(c[3], tostring(c[1]))
    end
    assert.is_near(1, nn.Softmax(1)(x):sum():item(), 1e-12)
    assert.is_true(nn.LogSoftmax(-1)(x):allclose(nn.Softmax({ dim = 1 })(x):log()))
    assert.equal("Softmax(dim=2)", tostring(nn.Softmax(2)))
    assert.error_matches(function() nn.Softmax() end, "'dim' is missing")
    assert.error_matches(function() nn.Tanh(3) end, "too many arguments")
    assert.error_matches(function() nn.Sigmoid({ inplace = true }) end, "unknown option 'inplace'")
    for _, name in ipairs({ "ELU", "SiLU", "LeakyReLU", "Hardtanh" }) do
      local copy = x:clone()
      assert.is_true(rawequal(copy, nn[name]({ inplace = true })(copy)))
      assert.is_true(copy:allclose(nn[name]()(x)))
    end
  end)

  it("Embedding looks rows up from 1, and spares the padding row", function()
    local m = nn.Embedding(5, 3, { padding_idx = 2 })
    local out = m(moth.tensor({ { 1, 2 }, { 5, 2 } }, { dtype = moth.int64 }))
    assert.equal("[2, 2, 3]", tostring(out:size()))
    assert.is_true(out[1][1]:equal(m.weight[1]))
    assert.equal(0, m.weight:detach()[2]:abs():sum():item())
    out:sum():backward()
    assert.same({ 1, 0, 0, 0, 1 }, m.weight.grad:select(2, 1):totable())
    assert.equal("Embedding(5, 3, padding_idx=2)", tostring(m))
    assert.equal("Embedding(5, 3)", tostring(nn.Embedding(5, 3)))
    assert.equal(5, nn.Embedding(5, 3, { padding_idx = -1 }).padding_idx)
    assert.error_matches(function() m(moth.tensor({ 6 }, { dtype = moth.int64 })) end, "index 6 is out of range")
    assert.error_matches(function() nn.Embedding(5, 3, { padding_idx = 6 }) end, "beyond the 5 rows")
  end)

  it("Identity passes all on", function()
    local a, b = nn.Identity(3, { x = 1 })(1, 2)
    assert.same({ 1, 2 }, { a, b })
    assert.equal("Identity()", tostring(nn.Identity()))
  end)
end)

describe("functional forms #quick", function()
  it("exist for what needs no state #M187", function()
    for _, name in ipairs({ "linear", "relu", "gelu", "softmax", "log_softmax", "cross_entropy", "mse_loss",
      "embedding", "dropout" }) do
      assert.is_function(F[name], name)
    end
    assert.equal(F, moth.F)
  end)

  it("one_hot and normalize", function()
    local i = moth.tensor({ 1, 3 }, { dtype = moth.int64 })
    assert.same({ { 1, 0, 0 }, { 0, 0, 1 } }, F.one_hot(i):totable())
    assert.equal("[2, 5]", tostring(F.one_hot(i, 5):size()))
    local x = moth.tensor({ { 3, 4 }, { 0, 0 } })
    close({ 0.6, 0.8 }, F.normalize(x)[1]:totable())
    assert.same({ 0, 0 }, F.normalize(x)[2]:totable())
    close({ 3 / 7, 4 / 7 }, F.normalize(x, { p = 1 })[1]:totable())
  end)
end)
