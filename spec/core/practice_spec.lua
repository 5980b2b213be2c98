-- Cases from training: graphs of loops, losses kept by mistake, frozen parameters, gradients of gradients.
local moth = require "moth"
local testing = require "moth.utils.testing"
local fails = require "fails"
local nn, optim, autograd = moth.nn, moth.optim, moth.autograd
local close = testing.assert_close

local function leaf(t) return moth.tensor(t, { dtype = moth.float64, requires_grad = true }) end
local function live()
  collectgarbage()
  collectgarbage()
  return moth.memory.stats().live
end

describe("in practice", function()
  it("a branch and a loop have the gradient of what ran, each time anew #M117 #M124", function()
    local w = leaf { 1.5 }
    local function f(x, rounds)
      local h, left = x * w, rounds
      while left > 0 do
        h, left = h * w, left - 1
      end
      if h:sum():item() > 10 then return h * 2 end
      return -h
    end
    -- x w^(n+1), doubled above 10 and negated below
    for _, case in ipairs { { 1, 0, -1 }, { 1, 3, -1 }, { 4, 3, 2 }, { 100, 0, 2 }, { 1, 1, -1 } } do
      local x, n, factor = case[1], case[2], case[3]
      w.grad = nil
      f(x, n):sum():backward()
      close(w.grad, factor * x * (n + 1) * moth.tensor({ 1.5 ^ n }, { dtype = moth.float64 }))
    end
  end)

  it("one backward gives the gradients of a chain of two layers #M120", function()
    local x, w1, w2 = leaf { { 1, -2 } }, leaf { { 1, -1 }, { 0.5, 1 } }, leaf { { 2 }, { -3 } }
    local y = moth.tensor({ { 1 } }, { dtype = moth.float64 })
    local z = x:matmul(w1) -- {0, -3}
    z:retain_grad()
    local out = z:relu():matmul(w2)
    nn.functional.mse_loss(out, y):backward()
    local d = (out:detach() - y) * 2 -- d loss / d out
    local h = z:detach():relu()
    close(w2.grad, h:t():matmul(d))
    local dz = d:matmul(w2:detach():t()) * z:detach():gt(0)
    close(z.grad, dz)
    close(w1.grad, x:detach():t():matmul(dz))
    close(x.grad, dz:matmul(w1:detach():t()))
  end)

  it("a total of losses keeps every graph, a total of numbers none #M115", function()
    local model, x = nn.Linear(64, 64), moth.randn(64, 64)
    local function run(add)
      local total, sizes = 0, {}
      for step = 1, 6 do
        total = add(total, model(x):tanh():square():mean())
        sizes[step] = live()
      end
      return sizes
    end
    run(function(total, loss) return total + loss:item() end)
    local flat = run(function(total, loss) return total + loss:item() end)
    assert.equal(flat[2], flat[6])
    local growing = run(function(total, loss) return total + loss end)
    assert.is_true(growing[6] - growing[2] >= 4 * 64 * 64 * 4)
    assert.is_true(live() <= flat[6]) -- and is free once the total is
  end)

  it("a loss made of item() has no graph, and says so #M116", function()
    local loss = moth.tensor(nn.functional.mse_loss(nn.Linear(2, 1)(moth.ones(1, 2)), moth.ones(1, 1)):item())
    assert.is_false(loss:requires_grad())
    fails("does not require grad", loss.backward, loss)
  end)

  it("losses reduce by mean, sum or not at all; the sum's gradients are N times the mean's #M119", function()
    local y = moth.tensor { { 1, 0, 2, 1 }, { 0, 1, 1, 3 } }
    local labels = moth.tensor({ 2, 4 }, { dtype = moth.int64 })
    for _, case in ipairs { { nn.MSELoss, y, 8 }, { nn.L1Loss, y, 8 }, { nn.BCEWithLogitsLoss, y:clamp(0, 1), 8 },
      { nn.CrossEntropyLoss, labels, 2 } } do
      local grads = {}
      for _, reduction in ipairs { "mean", "sum", "none" } do
        local x = moth.tensor({ { 0.5, -1, 2, 0 }, { 3, 1, -0.25, 1 } }, { requires_grad = true })
        local loss = case[1] { reduction = reduction } (x, case[2])
        if reduction == "none" then
          assert.equal(case[3], loss:numel())
          loss = loss:sum()
        end
        loss:backward()
        grads[reduction] = x.grad
      end
      assert.is_true(grads.sum:equal(grads.mean * case[3])) -- N is a power of two: exactly
      assert.is_true(grads.sum:equal(grads.none))
    end
  end)

  it("frozen parameters get no gradient, and optimizers skip them #M121 #M122", function()
    moth.manual_seed(0)
    local model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    for _, p in ipairs(model[1]:parameters()) do p:requires_grad_(false) end
    local frozen, free = model[1].weight:clone(), model[3].weight:detach():clone()
    local optimizer = optim.AdamW(model:parameters(), { lr = 0.1, weight_decay = 0.5 })
    assert.is_nil(model[3].weight.grad) -- before the first backward
    model(moth.ones(2, 3)):sum():backward()
    optimizer:step()
    assert.is_nil(model[1].weight.grad)
    assert.is_true(model[1].weight:equal(frozen))
    assert.is_false(model[3].weight:equal(free))
    assert.is_true(moth.is_tensor(model[3].weight.grad))
    model[3].weight.grad = nil
    assert.is_nil(model[3].weight.grad)
    model[1].weight:requires_grad_(true)
    model(moth.ones(2, 3)):sum():backward()
    assert.is_true(moth.is_tensor(model[1].weight.grad))
  end)

  it("the gradient of a squared gradient norm agrees with finite differences #M106", function()
    moth.manual_seed(0)
    local model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)):double()
    local x, labels = moth.randn(5, 3, { dtype = moth.float64 }), moth.tensor({ 1, 2, 2, 1, 1 }, { dtype = moth.int64 })
    local params = model:parameters()
    local function squared_norm(create_graph)
      local total = 0
      local loss = nn.functional.cross_entropy(model(x), labels)
      for _, g in ipairs { autograd.grad(loss, params, { create_graph = create_graph }) } do
        total = total + g:square():sum()
      end
      return total
    end
    squared_norm(true):backward()
    local eps = 1e-6
    for _, p in ipairs(params) do
      local flat, grad = p:detach():view(-1), p.grad:reshape(-1)
      for i = 1, flat:numel() do
        local was = flat[i]:item()
        flat[i] = was + eps
        local above = squared_norm(false):item()
        flat[i] = was - eps
        local below = squared_norm(false):item()
        flat[i] = was
        assert.is_true(math.abs((above - below) / (2 * eps) - grad[i]:item()) < 1e-8)
      end
    end
  end)

  it("hooks of a tensor fire in order and may replace the gradient #M108", function()
    local x, seen = leaf { 1, 2 }, {}
    local first = x:register_hook(function(g)
      seen[#seen + 1] = "first"
      return g * 2
    end)
    x:register_hook(function(g) seen[#seen + 1] = g[1]:item() end)
    x:sum():backward()
    assert.same({ "first", 2 }, seen)
    close(x.grad, leaf({ 2, 2 }):detach())
    first:remove()
    x:sum():backward()
    assert.same({ "first", 2, 1 }, seen)
    close(x.grad, leaf({ 3, 3 }):detach()) -- accumulated
  end)

  it("one call seeds all generators #M517", function()
    local function draw()
      moth.seed_all(42)
      local order = {}
      local set = moth.data.TensorDataset(moth.arange(8))
      for x in moth.data.DataLoader(set, { batch_size = 1, shuffle = true }):iter() do order[#order + 1] = x:item() end
      return { math.random(), moth.rand():item(), nn.Linear(2, 2).weight:sum():item(), order }
    end
    local once = draw()
    math.random()
    moth.rand(5)
    assert.same(once, draw())
  end)

  it("leading dimensions pass through Linear #M196", function()
    assert.same({ 32, 128, 24 }, { unpack(nn.Linear(16, 24)(moth.randn(32, 128, 16)):size()) })
    assert.same({ 24 }, { unpack(nn.Linear(16, 24)(moth.randn(16)):size()) })
  end)

  it("too high a rate ends in NaN; a lower one with clipping does not #M462", function()
    local function train(lr, limit)
      moth.manual_seed(0)
      local model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
      local x, y = moth.randn(32, 4) * 5, moth.randn(32, 1)
      local optimizer, loss = optim.SGD(model:parameters(), { lr = lr }), nil
      for _ = 1, 60 do
        optimizer:zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss:backward()
        if limit then nn.utils.clip_grad_norm_(model:parameters(), limit) end
        optimizer:step()
      end
      return loss:item()
    end
    local high = train(20)
    assert.is_true(high ~= high or high == math.huge)
    assert.is_true(train(0.05, 1) < 2)
  end)

  it("evaluation without eval() is noisy under dropout #M465", function()
    local model, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), moth.randn(4, 8)
    assert.is_false(model(x):equal(model(x)))
    model:eval()
    assert.is_true(model(x):equal(model(x)))
  end)

  it("an error names the op, shapes, dtypes, devices and the line #M452", function()
    local here = "practice_spec.lua:%d+: "
    fails(here .. "%[matmul%] .*cannot be multiplied.*self: float32 %[2, 3%] cpu, other: float32 %[2, 3%] cpu",
    function()
      local y = moth.randn(2, 3):matmul(moth.randn(2, 3))
      return y
    end)
    fails(here .. "%[matmul%] .*dtype.*float32 %[2, 3%] cpu, other: float64 %[3, 2%] cpu", function()
      local y = moth.randn(2, 3):matmul(moth.randn(3, 2):double())
      return y
    end)
    fails(here .. "%[F?%.?cross_entropy%] .*integer.*target: float32 %[2%] cpu", function()
      local y = nn.functional.cross_entropy(moth.randn(2, 3), moth.randn(2))
      return y
    end)
  end)
end)
