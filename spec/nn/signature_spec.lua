-- Arguments of nn, F, nn.init by position in PyTorch's order, and by name; that every class is reachable. The order and
-- the defaults are compared with PyTorch's by spec/parity/signatures.py.
local moth = require "moth"
local signature = require "moth.utils.signature"
local nn, F = moth.nn, moth.nn.functional

describe("arguments by position #quick", function()
  it("of constructors", function()
    for text, m in pairs {
      ["Conv2d(1, 16, kernel_size=(4, 4), stride=(2, 2), padding=(1, 1))"] = nn.Conv2d(1, 16, 4, 2, 1),
      ["Conv1d(4, 8, kernel_size=(3,), stride=(1,), padding=same, groups=2, bias=False)"] =
        nn.Conv1d(4, 8, 3, 1, "same", 1, 2, false),
      ["ConvTranspose2d(4, 8, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), output_padding=(1, 1))"] =
        nn.ConvTranspose2d(4, 8, 3, 2, 1, 1),
      ["ReLU(inplace=True)"] = nn.ReLU(true),
      ["Hardtanh(min_val=-2.0, max_val=2.0, inplace=True)"] = nn.Hardtanh(-2, 2, true),
      ["LSTM(4, 8, num_layers=2)"] = nn.LSTM(4, 8, 2),
      ["RNN(4, 8, num_layers=2, batch_first=True, dropout=0.5)"] = nn.RNN(4, 8, 2, "relu", true, true, 0.5),
      ["Linear(in_features=3, out_features=4, bias=False)"] = nn.Linear(3, 4, false),
      ["Linear(in_features=3, out_features=5, bias=True)"] = nn.Linear { out_features = 5, in_features = 3 },
      ["BatchNorm2d(8, eps=0.001, momentum=0.2, affine=False, track_running_stats=True)"] =
        nn.BatchNorm2d(8, 1e-3, 0.2, false, true),
      ["InstanceNorm1d(8, eps=0.001, momentum=0.2, affine=True, track_running_stats=True)"] =
        nn.InstanceNorm1d(8, 1e-3, 0.2, true, true),
      ["LayerNorm((3, 4), eps=0.001, elementwise_affine=False)"] = nn.LayerNorm({ 3, 4 }, 1e-3, false),
      ["Dropout(p=0.2, inplace=True)"] = nn.Dropout(0.2, true),
      ["MaxPool2d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=True)"] =
        nn.MaxPool2d(3, 2, 1, 1, false, true),
      ["Embedding(5, 3, padding_idx=1)"] = nn.Embedding(5, 3, 1),
      ["Flatten(start_dim=1, end_dim=2)"] = nn.Flatten(1, 2),
    } do
      assert.equal(text, tostring(m))
    end
    assert.equal("sum", nn.MSELoss("sum").reduction)
    assert.equal(0.1, nn.CrossEntropyLoss(nil, -100, "mean", 0.1).label_smoothing)
    local layer = nn.TransformerEncoderLayer(8, 2, 16, 0.3, "gelu", 1e-6, true)
    assert.same({ 16, 0.3, "gelu", 1e-6, true }, { layer.linear1.out_features, layer.dropout.p, layer.activation,
      layer.norm1.eps, layer.self_attn.batch_first })
    assert.is_true(nn.TransformerEncoderLayer(8, 2, 16, 0.3, { batch_first = true }).self_attn.batch_first)
  end)

  it("of functional forms", function()
    local x = moth.randn(4, 3)
    assert.is_true(F.dropout(x, 0.5, false):equal(x))
    local copy = x:clone()
    assert.is_true(rawequal(copy, F.dropout(copy, 0.5, true, true)))
    assert.is_true(rawequal(copy, F.relu(copy, true)))
    assert.is_true(F.leaky_relu(x, 0.2):equal(moth.leaky_relu(x, 0.2)))
    assert.is_true(F.gelu(x, "tanh"):equal(moth.gelu_tanh(x)))
    assert.is_true(F.softmin(x, 2, { dtype = moth.float64 }):equal(moth.softmax(-x, 2, { dtype = moth.float64 })))
    local y = moth.tensor({ 1, 2, 3, 1 }, { dtype = moth.int64 })
    assert.is_true(F.cross_entropy(x, y, moth.ones(3), -100, "sum"):allclose(F.cross_entropy(x, y) * 4))
    assert.is_true(F.normalize(x, 1, 1):abs():sum(1):allclose(moth.ones(3)))
    local image = moth.randn(1, 2, 4, 4)
    assert.equal("[1, 2, 8, 8]", tostring(F.interpolate(image, nil, 2):size()))
    local _, where = F.max_pool2d(image, 2, 2, 0, 1, false, true)
    assert.equal(moth.int64, where:dtype())
  end)

  it("in place where no op does, the derivative is right", function()
    for _, fn in ipairs { F.mish, function(x, yes) return F.threshold(x, 0.1, -2, yes) end } do
      local x = moth.randn({ 5 }, { requires_grad = true })
      fn(x * 1, true):sum():backward()
      assert.is_true(x.grad:isfinite():all():item())
    end
    local x = moth.randn({ 5 }, { requires_grad = true })
    local want = moth.autograd.grad(F.mish(x):sum(), x)
    assert.is_true(moth.autograd.grad(F.mish(x * 1, true):sum(), x):allclose(want))
  end)

  it("unknown names and wrong values are errors that name the class", function()
    local function fails(pattern, fn, ...)
      local ok, message = pcall(fn, ...)
      assert.is_false(ok)
      assert.matches(pattern, message)
      assert.matches("signature_spec%.lua:%d+:", message)
    end
    fails("%[nn%.Linear%] unknown option 'bais'; did you mean 'bias'%?", nn.Linear, 3, 4, { bais = true })
    fails("%[nn%.Linear%] argument 'bias': expected true or false, got 1", nn.Linear, 3, 4, 1)
    fails("%[nn%.MultiheadAttention%] too many arguments", nn.MultiheadAttention, 8, 2, 0, true, true, true, 8, 8, true,
      "cpu", moth.float32, 1)
    fails("%[nn%.Embedding%] unknown option 'maxnorm'; did you mean 'max_norm'", nn.Embedding, 8, 2, { maxnorm = 1 })
    fails("%[F%.dropout%] argument 'p': expected a number", F.dropout, moth.ones(2), "0.5")
    fails("%[nn%.init%.normal_%] argument 'std': expected a number", nn.init.normal_, moth.ones(2), 0, "1")
  end)
end)

describe("modules #quick", function()
  it("say what they take, and where, not what Lua could not index", function()
    for _, m in ipairs { nn.Linear(2, 2), nn.ReLU(), nn.BatchNorm1d(2), nn.InstanceNorm2d(2), nn.LayerNorm(2),
      nn.Flatten(), nn.Unflatten(2, { 1, 2 }), nn.LSTM(2, 2), nn.GRUCell(2, 2), nn.MultiheadAttention(2, 1),
      nn.TransformerEncoderLayer(2, 1), nn.Conv1d(2, 2, 1), nn.MaxPool2d(2), nn.Dropout(), nn.Dropout2d(),
      nn.ZeroPad1d(1), nn.Upsample(2), nn.PixelShuffle(1), nn.Softmin(1), nn.GELU("tanh"), nn.Embedding(2, 2),
      nn.PReLU(), nn.MSELoss(), nn.CrossEntropyLoss(), nn.GaussianNLLLoss(), nn.CosineSimilarity() } do
      for _, value in ipairs { "cpu", 3, {}, false } do
        local ok, message = pcall(m, value or nil)
        assert.is_false(ok, m.__name)
        assert.matches("argument '", message)
        assert.matches("; in " .. m.__name .. "$", message)
        assert.matches("signature_spec%.lua:%d+:", (select(2, pcall(function() return m(value or nil) end))))
      end
    end
    assert.error_matches(function() nn.ModuleDict(3) end, "expected a table of modules, got number")
    assert.error_matches(function() nn.ModuleList(3) end, "expected a list of modules, got number")
    assert.error_matches(function() nn.Linear(1, 1):apply(3) end, "expected a function")
    assert.error_matches(function() nn.utils.average { {} } end, "a list of state dicts")
    assert.error_matches(function() nn.utils.summary(3) end, "expected a module")
    assert.matches("Parameters: 1", nn.utils.summary(nn.PReLU()))
  end)
end)

describe("moth.nn #quick", function()
  it("has every class that its files make", function()
    local files, seen = assert(io.popen("ls lua/moth/nn")), 0
    for file in files:lines() do
      local value = require("moth.nn." .. file:match("^(.*)%.lua$"):gsub("^init$", "module"))
      local list = type(value) == "table" and not value.__module and value or { value }
      for _, cls in pairs(list) do
        if type(cls) == "table" and rawget(cls, "__module") then
          assert.equal(cls, nn[cls.__name], cls.__name)
          assert.is_true(cls == nn.Module or cls.__init ~= nil)
          seen = seen + 1
        end
      end
    end
    files:close()
    assert.is_true(seen > 90)
    for _, name in ipairs { "Hardshrink", "Softshrink", "Tanhshrink", "Threshold", "Softmin" } do
      assert.is_truthy(nn[name], name)
    end
    local names = {}
    for _, name in ipairs(getmetatable(nn).__names()) do names[name] = true end
    assert.is_true(names.Softmin and names.Linear and names.BatchNorm3d)
  end)

  it("tells the signatures of its classes and functions", function()
    assert.matches("^nn%.Linear%(size in_features", signature.of(nn.Linear.__init))
    assert.matches("^F%.dropout%(", signature.of(F.dropout))
    assert.matches("^nn%.init%.xavier_normal_%(", signature.of(nn.init.xavier_normal_))
  end)
end)

describe("MultiheadAttention #quick", function()
  it("gives the weights unless told not to, as PyTorch's", function()
    local mha = nn.MultiheadAttention(8, 2)
    local x = moth.randn(3, 2, 8)
    local y, weights = mha(x, x, x)
    assert.equal("[2, 3, 3]", tostring(weights:size()))
    assert.is_true(weights:sum(3):allclose(moth.ones(2, 3), 1e-5, 1e-6))
    local fast, none = mha(x, x, x, { need_weights = false })
    assert.is_nil(none)
    assert.is_true(fast:allclose(y, 1e-5, 1e-6))
    assert.equal("[2, 2, 3, 3]", tostring(select(2, mha(x, x, x, nil, true, nil, false)):size()))
  end)
end)

describe("InstanceNorm with running statistics", function()
  it("keeps and uses them", function()
    local m = nn.InstanceNorm1d(2, 1e-5, 0.5, false, true)
    local x = moth.tensor { { { 0, 2 }, { 4, 8 } }, { { 2, 4 }, { 0, 4 } } }
    m(x)
    assert.same({ 1, 2 }, m.running_mean:totable())
    assert.same({ 0.5 * 1 + 0.5 * 2, 0.5 * 1 + 0.5 * 8 }, m.running_var:totable())
    m:eval()
    local y = m(x)
    assert.is_near((0 - 1) / math.sqrt(1.5), y[1][1][1]:item(), 1e-5)
  end)
end)

describe("what a module prints", function()
  it("has dimensions and positions as they were given, from 1", function()
    local sizes = { unflattened_size = { 2, 2 }, num_embeddings = 5, embedding_dim = 3 }
    local seen = {}
    for name, cls in require "moth.each"(nn) do
      local text = type(cls) == "table" and rawget(cls, "__name") and signature.of(cls.__init)
      for _, p in ipairs(text and select(2, signature.parameters(cls.__init)) or {}) do
        if p.type == "Dim" or p.type == "Index" then
          local o = {}
          for key, value in require "moth.each"(sizes) do
            if text:find(" " .. key, 1, true) then o[key] = value end
          end
          for _, value in ipairs(p.type == "Dim" and { 1, 2, 3, -1 } or { 1, 2 }) do
            o[p.name] = value
            local shown = tostring(cls(o)):match(p.name .. "=(-?%d+)")
            assert.is_true(shown == nil or tonumber(shown) == value, name .. ": " .. tostring(cls(o)))
            seen[name] = shown ~= nil or nil
          end
        end
      end
    end
    for _, name in ipairs { "Softmax", "LogSoftmax", "Softmin", "GLU", "Flatten", "Unflatten", "Embedding",
      "EmbeddingBag" } do
      assert.is_true(seen[name], name)
    end
    assert.equal("Softmax(dim=2)", tostring(nn.Softmax(2)))
  end)
end)

describe("silent slips", function()
  it("lists with a hole are refused", function()
    local function L() return nn.Linear(1, 1) end
    local function P() return nn.Parameter(moth.ones(1)) end
    local optim = moth.optim
    for _, f in ipairs { function() nn.Sequential(L(), nil, L()) end, function() nn.Sequential { L(), nil, L() } end,
      function() nn.ModuleList { L(), nil, L() } end, function() nn.ParameterList { P(), nil, P() } end,
      function() optim.SGD({ P(), nil, P() }, { lr = 1 }) end,
      function() optim.SGD({ { params = { P() } }, nil, { params = { P() } } }, { lr = 1 }) end,
      function() nn.utils.clip_grad_norm_({ P(), nil, P() }, 1) end,
      function() moth.transforms.Compose { moth.transforms.ToTensor(), nil, moth.transforms.Normalize(0, 1) } end } do
      assert.error_matches(f, "has a hole: it has element 3 and none before it")
    end
    assert.error_matches(function() optim.SGD({ { params = { P(), nil, P() } } }, { lr = 1 }) end, "hole")
    assert.error_matches(function() nn.Sequential(L(), nil) end, "element 2 is nil; .*nn%.Identity")
    assert.equal(2, #nn.Sequential(L(), L()))
    assert.equal(0, #nn.Sequential())
  end)

  it("options that only groups have, and requires_grad of a module, are not assigned", function()
    local m = nn.Linear(1, 1)
    local opt = moth.optim.SGD(m:parameters(), { lr = 1 })
    assert.error_matches(function() opt.lr = 0.1 end, "write opt%.param_groups%[1%]%.lr")
    opt.note = 1
    opt.param_groups[1].lr = 0.1
    assert.error_matches(function() m.requires_grad = false end, "write m:requires_grad_%(")
  end)

  it("position 0 of lists is an error, negative ones count from the end", function()
    local x = moth.ones(2, 3)
    for _, f in ipairs { function() return x:chunk(2)[0] end, function() return nn.Sequential(nn.ReLU())[0] end,
      function() return nn.ModuleList { nn.ReLU() }[0] end,
      function() return nn.ParameterList { moth.ones(1) }[0] end } do
      assert.error_matches(f, "moth counts from 1")
    end
    assert.equal("[1, 3]", tostring(x:chunk(2)[-1]:size()))
  end)
end)
