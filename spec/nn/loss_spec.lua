local moth = require "moth"
local nn, F = moth.nn, moth.nn.functional

local function labels(t) return moth.tensor(t, { dtype = moth.int64 }) end

-- The mean cross-entropy in plain Lua: rows of logits, classes from 1.
local function reference(rows, classes, o)
  o = o or {}
  local sum, weights = 0, 0
  for i, row in ipairs(rows) do
    local c = classes[i]
    if c ~= o.ignore_index then
      local z = 0
      for _, v in ipairs(row) do z = z + math.exp(v) end
      local w = o.weight and o.weight[c] or 1
      local s, smooth = o.label_smoothing or 0, 0
      for k, v in ipairs(row) do smooth = smooth - (o.weight and o.weight[k] or 1) * (v - math.log(z)) end
      sum = sum - (1 - s) * w * (row[c] - math.log(z)) + s * smooth / #row
      weights = weights + w
    end
  end
  return sum / weights
end

describe("losses #quick", function()
  local rows = { { 1, 2, 0.5 }, { -1, 0, 3 }, { 0.1, 0.2, 0.3 } }
  local logits = moth.tensor(rows, { dtype = moth.float64 })

  it("CrossEntropyLoss with its options #M182", function()
    local y = { 2, 3, 1 }
    for _, o in ipairs({ {}, { label_smoothing = 0.1 }, { weight = { 1, 2, 0.5 } }, { ignore_index = 3 } }) do
      local given = { label_smoothing = o.label_smoothing, ignore_index = o.ignore_index,
        weight = o.weight and moth.tensor(o.weight, { dtype = moth.float64 }) }
      assert.is_near(reference(rows, y, o), nn.CrossEntropyLoss(given)(logits, labels(y)):item(), 1e-12)
    end
    local none = nn.CrossEntropyLoss({ reduction = "none" })(logits, labels(y))
    assert.equal("[3]", tostring(none:size()))
    assert.is_near(none:sum():item(), nn.CrossEntropyLoss({ reduction = "sum" })(logits, labels(y)):item(), 1e-12)
    assert.is_near(none:mean():item(), F.cross_entropy(logits, labels(y)):item(), 1e-12)
  end)

  it("cross-entropy is stable for large logits and has gradients #M182", function()
    local x = moth.tensor({ { 1e4, 0 }, { 0, 1e4 } }, { requires_grad = true })
    local loss = nn.CrossEntropyLoss()(x, labels { 1, 1 })
    assert.equal(5000, loss:item())
    loss:backward()
    assert.same({ { 0, 0 }, { -0.5, 0.5 } }, x.grad:totable())
  end)

  it("cross-entropy takes more dimensions (N, C, d)", function()
    local x = moth.randn(2, 3, 4)
    local y = moth.randint(1, 4, { 2, 4 })
    local flat = F.cross_entropy(x:movedim(2, 3):reshape(8, 3), y:reshape(8))
    assert.is_near(flat:item(), F.cross_entropy(x, y):item(), 1e-6)
    assert.equal("[2, 4]", tostring(F.cross_entropy(x, y, { reduction = "none" }):size()))
  end)

  it("NLLLoss of log-probabilities", function()
    local logp, y = logits:log_softmax(2), labels { 2, 3, 1 }
    local expected = F.cross_entropy(logits, y)
    assert.is_near(expected:item(), nn.NLLLoss()(logp, y):item(), 1e-12)
    local w = moth.tensor({ 1, 2, 0.5 }, { dtype = moth.float64 })
    assert.is_near(F.cross_entropy(logits, y, { weight = w }):item(), nn.NLLLoss({ weight = w })(logp, y):item(), 1e-12)
    local ignoring = { ignore_index = 3 }
    assert.is_near(F.cross_entropy(logits, y, ignoring):item(), nn.NLLLoss(ignoring)(logp, y):item(), 1e-12)
    assert.equal("[3]", tostring(F.nll_loss(logp, y, { reduction = "none", ignore_index = 3 }):size()))
  end)

  it("where all targets are ignored the mean is NaN, and the gradients are 0", function()
    for _, shape in ipairs { {}, { 2 }, { 2, 3 } } do
      local size = { unpack(shape) }
      table.insert(size, #size == 0 and 1 or 2, 4)
      local y = moth.full(shape, 2, { dtype = moth.int64 })
      for _, name in ipairs { "nll_loss", "cross_entropy" } do
        for _, w in ipairs { false, moth.tensor { 1, 2, 3, 4 } } do
          local x = moth.randn(size):requires_grad_(true)
          local loss = F[name](x, y, { weight = w or nil, ignore_index = 2 })
          loss:backward()
          assert.is_true(loss:isnan():item(), name)
          assert.is_true(x.grad:equal(moth.zeros(size)), name)
        end
      end
    end
  end)

  it("MSELoss and L1Loss are means over all elements #M183", function()
    local x, y = moth.tensor({ { 1, 2 }, { 3, 5 } }), moth.tensor({ { 1, 0 }, { 0, 1 } })
    assert.equal((4 + 9 + 16) / 4, nn.MSELoss()(x, y):item())
    assert.equal(29, nn.MSELoss({ reduction = "sum" })(x, y):item())
    assert.same({ { 0, 4 }, { 9, 16 } }, F.mse_loss(x, y, { reduction = "none" }):totable())
    assert.equal(9 / 4, nn.L1Loss()(x, y):item())
    assert.equal("MSELoss()", tostring(nn.MSELoss()))
  end)

  it("BCEWithLogitsLoss with weights", function()
    local x, y = { 0.5, -2, 30 }, { 1, 0, 0 }
    local function one(i, pos)
      local p = 1 / (1 + math.exp(-x[i]))
      return -(pos * y[i] * math.log(p) + (1 - y[i]) * (i == 3 and -30 or math.log(1 - p)))
    end
    local tx, ty = moth.tensor(x, { dtype = moth.float64 }), moth.tensor(y, { dtype = moth.float64 })
    assert.is_near((one(1, 1) + one(2, 1) + one(3, 1)) / 3, nn.BCEWithLogitsLoss()(tx, ty):item(), 1e-9)
    local pos = nn.BCEWithLogitsLoss({ pos_weight = moth.tensor({ 3 }, { dtype = moth.float64 }), reduction = "sum" })
    assert.is_near(one(1, 3) + one(2, 3) + one(3, 3), pos(tx, ty):item(), 1e-9)
    local weighted = nn.BCEWithLogitsLoss({ weight = moth.tensor({ 1, 2, 0 }), reduction = "sum" })
    assert.is_near(one(1, 1) + 2 * one(2, 1), weighted(tx, ty):item(), 1e-9)
  end)

  it("check their options and keep weights as buffers", function()
    assert.error_matches(function() nn.MSELoss({ reduction = "avg" }) end, "'reduction': expected")
    assert.error_matches(function() nn.MSELoss({ weight = 1 }) end, "unknown option 'weight'")
    assert.error_matches(function() nn.CrossEntropyLoss({ weight = { 1 } }) end, "'weight': expected a tensor")
    assert.error_matches(function() nn.CrossEntropyLoss()(logits, labels { 1, 2, 4 }) end, "class 4 is out of range")
    local m = nn.CrossEntropyLoss({ weight = moth.ones(3) })
    m:double()
    assert.equal(moth.float64, m.weight:dtype())
    assert.is_near(reference(rows, { 1, 2, 3 }), m(logits, labels { 1, 2, 3 }):item(), 1e-12)
  end)

  it("refuse an input and a target of which neither broadcasts to the other", function()
    local x, y = moth.rand(4, 1), moth.rand(4)
    for _, name in ipairs { "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss",
      "soft_margin_loss", "hinge_embedding_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits" } do
      assert.error_matches(function() F[name](x, y) end, name .. "%] %l+ %[4, 1%] and target %[4%].*view_as")
      assert.error_matches(function() F[name](y, x) end, name .. "%] %l+ %[4%] and target %[4, 1%]")
    end
    assert.error_matches(function() nn.MSELoss()(x, y) end, "F%.mse_loss")
    assert.error_matches(function() moth.mse_loss(x, y) end, "view_as")
    assert.error_matches(function() F.gaussian_nll_loss(x, y, y) end, "view_as")
    assert.error_matches(function() F.margin_ranking_loss(x, x, y) end, "input1 %[4, 1%] and target %[4%]")
    assert.error_matches(function() F.cosine_embedding_loss(moth.rand(4, 2), moth.rand(4, 2), x) end, "target %[4, 1%]")
    for _, name in ipairs { "binary_cross_entropy", "binary_cross_entropy_with_logits" } do -- PyTorch's rule
      assert.error_matches(function() F[name](moth.rand(4, 3), moth.rand(3)) end, "must have one shape")
    end
  end)

  it("warn once where the target is broadcast", function()
    local real, lines = io.stderr, {}
    io.stderr = { write = function(_, ...) lines[#lines + 1] = table.concat { ... } end } -- luacheck: ignore 122
    finally(function() io.stderr = real end) -- luacheck: ignore 122
    for _ = 1, 2 do F.mse_loss(moth.rand(4, 3), moth.rand(3)) end
    F.mse_loss(moth.rand(4, 3), moth.rand(4, 3))
    assert.equal(1, #lines)
    assert.matches("loss_spec%.lua:%d+: %[F%.mse_loss%] target has another shape %[3%] than input %[4, 3%]", lines[1])
  end)

  it("gaussian_nll_loss takes variances of one row for it, as PyTorch does", function()
    local x, y = moth.zeros(2, 2), moth.ones(2, 2)
    local got = F.gaussian_nll_loss(x, y, moth.tensor { 1, 4 }, { reduction = "none" })
    local second = (math.log(4) + 0.25) / 2
    assert.is_true(got:allclose(moth.tensor { { 0.5, 0.5 }, { second, second } }))
    assert.is_near(second, F.gaussian_nll_loss(x, y, 4):item(), 1e-6)
    assert.error_matches(function() F.gaussian_nll_loss(x, y, moth.rand(3)) end, "var %[3%] does not go with input")
    assert.error_matches(function() F.gaussian_nll_loss(x, y, -1) end, "must not be negative")
    local var = moth.full({ 2, 2 }, 1e-9, { requires_grad = true })
    F.gaussian_nll_loss(x, y, var):backward()
    assert.is_true(var.grad:abs():gt(1):all():item()) -- the value is bounded, the gradient is not cut off
  end)
end)
