local moth = require "moth"
local nn, optim = moth.nn, moth.optim

-- f(x) = sum of a_i (x_i - c_i)^4 / 4 + x_i x_{i+1}: gradients that change along the way.
local a, c, start = { 1, 0.5, 2 }, { 0.3, -1, 0.7 }, { 1.5, -0.2, 0.1 }

local function gradient(x)
  local g = {}
  for i = 1, 3 do g[i] = a[i] * (x[i] - c[i]) ^ 3 + (x[i - 1] or 0) + (x[i + 1] or 0) end
  return g
end

local function loss_of(x)
  local ta, tc = moth.tensor(a, { dtype = moth.float64 }), moth.tensor(c, { dtype = moth.float64 })
  return ((x - tc) ^ 4 * ta / 4):sum() + (x[{ { 1, 2 } }] * x[{ { 2, 3 } }]):sum()
end

-- Ten steps of moth's optimizer against `step(x, g, t)` in plain Lua; returns the optimizer and the parameter.
local function follow(name, o, step)
  local p = nn.Parameter(moth.tensor(start, { dtype = moth.float64 }))
  local opt = optim[name]({ p }, o)
  local x = { unpack(start) }
  for t = 1, 10 do
    opt:zero_grad()
    loss_of(p):backward()
    opt:step()
    step(x, gradient(x), t)
    local got = p:detach():totable()
    for i = 1, 3 do assert.is_near(x[i], got[i], 1e-13) end
  end
  return opt, p
end

local function sgd(o)
  local buffer
  return function(x, g)
    for i = 1, #x do
      g[i] = (o.maximize and -g[i] or g[i]) + (o.weight_decay or 0) * x[i]
    end
    local m = o.momentum or 0
    if m ~= 0 then
      local first = buffer == nil
      buffer = buffer or {}
      for i = 1, #x do
        buffer[i] = first and g[i] or m * buffer[i] + (1 - (o.dampening or 0)) * g[i]
        g[i] = o.nesterov and g[i] + m * buffer[i] or buffer[i]
      end
    end
    for i = 1, #x do x[i] = x[i] - o.lr * g[i] end
  end
end

local function adam(o, decoupled)
  local b1, b2 = (o.betas or { 0.9, 0.999 })[1], (o.betas or { 0.9, 0.999 })[2]
  local eps, decay = o.eps or 1e-8, o.weight_decay or (decoupled and 0.01 or 0)
  local m, v, top = { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 }
  return function(x, g, t)
    for i = 1, #x do
      local d = o.maximize and -g[i] or g[i]
      if decoupled then x[i] = x[i] * (1 - o.lr * decay) else d = d + decay * x[i] end
      m[i] = b1 * m[i] + (1 - b1) * d
      v[i] = b2 * v[i] + (1 - b2) * d * d
      top[i] = math.max(top[i], v[i])
      local root = math.sqrt((o.amsgrad and top[i] or v[i]) / (1 - b2 ^ t))
      x[i] = x[i] - o.lr * m[i] / (1 - b1 ^ t) / (root + eps)
    end
  end
end

describe("optimizers #quick", function()
  it("SGD follows the reference #M199", function()
    for _, o in ipairs({ { lr = 0.05 }, { lr = 0.05, weight_decay = 0.1 }, { lr = 0.03, momentum = 0.9 },
      { lr = 0.03, momentum = 0.9, dampening = 0.5 },
      { lr = 0.03, momentum = 0.8, nesterov = true, weight_decay = 0.01 },
      { lr = 0.001, momentum = 0.5, maximize = true } }) do
      follow("SGD", o, sgd(o))
    end
  end)

  it("Adam follows the reference #M200", function()
    for _, o in ipairs({ { lr = 0.1 }, { lr = 0.1, betas = { 0.5, 0.9 }, eps = 1e-3 }, { lr = 0.1, weight_decay = 0.2 },
      { lr = 0.1, amsgrad = true, betas = { 0.3, 0.4 } }, { lr = 0.01, maximize = true } }) do
      follow("Adam", o, adam(o, false))
    end
  end)

  it("AdamW decays apart from the gradient #M201", function()
    for _, o in ipairs({ { lr = 0.1 }, { lr = 0.1, weight_decay = 0.3, amsgrad = true } }) do
      follow("AdamW", o, adam(o, true))
    end
    local _, w = follow("AdamW", { lr = 0.1, weight_decay = 0.3 }, adam({ lr = 0.1, weight_decay = 0.3 }, true))
    local _, l2 = follow("Adam", { lr = 0.1, weight_decay = 0.3 }, adam({ lr = 0.1, weight_decay = 0.3 }, false))
    assert.is_false(w:allclose(l2, { rtol = 1e-3 }))
    assert.equal(0.01, optim.AdamW({ w }).param_groups[1].weight_decay)
    assert.equal(1e-3, optim.Adam({ w }).param_groups[1].lr)
  end)

  it("make state at the first step #M202", function()
    local p = nn.Parameter(moth.ones(2))
    p.grad = moth.ones(2)
    for name, keys in pairs({ SGD = {}, Adam = { "step", "exp_avg", "exp_avg_sq" } }) do
      local opt = optim[name]({ p })
      assert.is_nil(rawget(opt.state, p))
      opt:step()
      for _, key in ipairs(keys) do assert.is_not_nil(opt.state[p][key]) end
      if #keys == 0 then assert.is_nil(next(opt.state[p])) end
    end
    local opt = optim.SGD({ p }, { momentum = 0.9 })
    opt:step()
    assert.equal("[2]", tostring(opt.state[p].momentum_buffer:size()))
  end)

  it("skip parameters without gradient and count their steps apart", function()
    local p, q = nn.Parameter(moth.ones(2)), nn.Parameter(moth.ones(2))
    for _, name in ipairs({ "SGD", "Adam" }) do
      local opt = optim[name]({ p, q }, { lr = 0.1, momentum = name == "SGD" and 0.9 or nil })
      p.grad, q.grad = moth.ones(2), nil
      opt:step()
      assert.is_nil(rawget(opt.state, q))
      q.grad = moth.ones(2)
      opt:step()
      if name == "Adam" then
        assert.equal(2, opt.state[p].step)
        assert.equal(1, opt.state[q].step)
      else
        assert.is_near(1.9, opt.state[p].momentum_buffer[1]:item(), 1e-6)
        assert.equal(1, opt.state[q].momentum_buffer[1]:item())
      end
    end
  end)

  it("zero_grad forgets or zeroes #M203", function()
    local p = nn.Parameter(moth.ones(2))
    local opt = optim.SGD({ p })
    p.grad = moth.ones(2)
    local grad = p.grad
    opt:zero_grad({ set_to_none = false })
    assert.same({ 0, 0 }, grad:totable()) -- the same tensor, in place
    assert.is_true(p.grad:shares_storage(grad))
    opt:zero_grad()
    assert.is_nil(p.grad)
    opt:zero_grad({ set_to_none = false })
    assert.is_nil(p.grad)
  end)

  it("several groups have their own options #M204", function()
    local p, q = nn.Parameter(moth.ones(1)), nn.Parameter(moth.ones(1))
    local opt = optim.SGD({ { params = { p } }, { params = q, lr = 0.5 } }, { lr = 0.1 })
    p.grad, q.grad = moth.ones(1), moth.ones(1)
    opt:step()
    assert.is_near(0.9, p:item(), 1e-6)
    assert.is_near(0.5, q:item(), 1e-6)
    assert.matches("Parameter group 2: 1 parameters", tostring(opt), 1, true)
    opt:add_param_group({ params = nn.Parameter(moth.ones(1)) })
    assert.equal(0.1, opt.param_groups[3].lr)
  end)

  it("a subclass in Lua equals optim.SGD to the bit #M204 #M205 #M206", function()
    local MySGD = optim.class("MySGD")
    function MySGD:__init(params, o)
      optim.Optimizer.__init(self, params, { lr = o.lr or 1e-3, momentum = o.momentum or 0.9 })
    end
    function MySGD:step()
      moth.no_grad(function()
        for _, g in ipairs(self.param_groups) do
          for _, p in ipairs(g.params) do
            local s = self.state[p]
            s.buffer = s.buffer and p.grad:add(s.buffer, g.momentum) or p.grad:clone()
            p:sub_(s.buffer, g.lr)
          end
        end
      end)
    end
    local x, y = moth.randn(16, 5), moth.randn(16, 1)
    local results = {}
    for i, make in ipairs({ MySGD, optim.SGD }) do
      moth.manual_seed(1)
      local m = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 1))
      local opt = make(m:parameters(), { lr = 0.05, momentum = 0.9 })
      for _ = 1, 10 do
        opt:zero_grad()
        nn.functional.mse_loss(m(x), y):backward()
        opt:step()
      end
      results[i] = m:state_dict()
      assert.equal(4, #opt:state_dict().state)
    end
    for name, t in results[1]:items() do assert.is_true(t:equal(results[2][name]), name) end
  end)

  it("state_dict resumes to the bit #M210", function()
    local x, y = moth.randn(8, 4), moth.randn(8, 2)
    for _, name in ipairs({ "SGD", "Adam", "AdamW", "Adagrad", "RMSprop" }) do
      local function make()
        moth.manual_seed(5)
        local m = nn.Linear(4, 2)
        local opt = optim[name](m:parameters(), { lr = 0.01, momentum = name == "SGD" and 0.9 or nil })
        return m, opt, optim.lr_scheduler.StepLR(opt, { step_size = 2 })
      end
      local function steps(n, m, opt, sched)
        for _ = 1, n do
          opt:zero_grad()
          nn.functional.mse_loss(m(x), y):backward()
          opt:step()
          sched:step()
        end
      end
      local m, opt, sched = make()
      steps(3, m, opt, sched)
      local path = os.tmpname()
      moth.save({ m = m:state_dict(), opt = opt:state_dict(), sched = sched:state_dict() }, path)
      steps(4, m, opt, sched)
      local m2, opt2, sched2 = make()
      local saved = moth.load(path)
      os.remove(path)
      m2:load_state_dict(saved.m)
      opt2:load_state_dict(saved.opt)
      sched2:load_state_dict(saved.sched)
      steps(4, m2, opt2, sched2)
      assert.is_true(m.weight:equal(m2.weight) and m.bias:equal(m2.bias), name)
      assert.same(sched:get_last_lr(), sched2:get_last_lr())
      assert.equal(opt.param_groups[1].lr, opt2.param_groups[1].lr)
    end
  end)

  it("step writes in place, under no_grad, and takes a closure #M217", function()
    local p = nn.Parameter(moth.ones(2))
    local at, version = p:data_ptr(), p:version()
    local opt = optim.Adam({ p })
    local loss = opt:step(function()
      opt:zero_grad()
      local l = (p * p):sum()
      l:backward()
      return l
    end)
    assert.equal(2, loss:item())
    assert.equal(at, p:data_ptr())
    assert.is_true(p:version() > version)
    assert.is_true(p:is_leaf())
    assert.is_true(moth.is_grad_enabled())
  end)

  it("the five steps reduce the loss #M211", function()
    for _, name in ipairs({ "SGD", "Adam", "AdamW" }) do
      moth.manual_seed(0)
      local x = moth.randn(50, 3)
      local y = x:matmul(moth.tensor({ { 1 }, { -2 }, { 0.5 } }))
      local m = nn.Linear(3, 1)
      local opt, first, last = optim[name](m:parameters(), { lr = 0.1 }), nil, nil
      for _ = 1, 60 do
        opt:zero_grad()
        local out = m(x)
        local loss = nn.functional.mse_loss(out, y)
        loss:backward()
        opt:step()
        last = loss:item()
        first = first or last
      end
      assert.is_true(last < first / 20, name)
    end
  end)

  it("without zero_grad the gradients grow; averaged micro-batches equal one batch #M212 #M214", function()
    moth.manual_seed(0)
    local m, x, y = nn.Linear(3, 1), moth.randn(8, 3), moth.randn(8, 1)
    local norms = {}
    for i = 1, 3 do
      nn.functional.mse_loss(m(x), y):backward()
      norms[i] = nn.utils.grad_norm(m:parameters()):item()
    end
    assert.is_near(2 * norms[1], norms[2], 1e-4)
    assert.is_near(3 * norms[1], norms[3], 1e-4)
    m:zero_grad()
    for i = 1, 8, 2 do
      (nn.functional.mse_loss(m(x[{ { i, i + 1 } }]), y[{ { i, i + 1 } }]) / 4):backward()
    end
    assert.is_near(norms[1], nn.utils.grad_norm(m:parameters()):item(), 1e-5)
  end)

  it("take their arguments by position, in PyTorch's order, and by name", function()
    local p = nn.Parameter(moth.ones(1))
    local g = optim.SGD({ p }, 0.1, 0.9, 0, 1e-4, true).param_groups[1]
    assert.same({ 0.1, 0.9, 0, 1e-4, true, false },
      { g.lr, g.momentum, g.dampening, g.weight_decay, g.nesterov, g.maximize })
    assert.same({ 0.5, 0.6 }, optim.Adam({ p }, 1e-2, { 0.5, 0.6 }).param_groups[1].betas)
    assert.equal(0.01, optim.AdamW({ p }).param_groups[1].weight_decay)
    assert.equal(0.1, optim.RMSprop { params = { p }, lr = 0.1 }.param_groups[1].lr)
    assert.equal(0.5, optim.Adagrad({ p }, 0.1, 0.5).param_groups[1].lr_decay)
    assert.error_matches(function() optim.SGD({ { params = { p }, lr = "1" } }) end, "expected a number, got string")
  end)

  it("zero_grad with set_to_none = false writes zeros into the gradient that is there", function()
    local p, q = nn.Parameter(moth.ones(3)), nn.Parameter(moth.ones(3))
    local opt = optim.SGD({ p, q }, 0.1)
    moth.sum(p * 2):backward()
    local held, at = p.grad, p.grad:data_ptr()
    opt:zero_grad { set_to_none = false }
    assert.same({ 0, 0, 0 }, held:totable())
    assert.equal(at, p.grad:data_ptr())
    assert.is_nil(q.grad)
    moth.sum(p * 3):backward()
    assert.same({ 3, 3, 3 }, held:totable())
    opt:zero_grad(false)
    assert.same({ 0, 0, 0 }, held:totable())
    -- of a gradient with a history the history is forgotten
    opt:zero_grad()
    moth.sum(p * p):backward { create_graph = true }
    assert.is_true(p.grad:requires_grad())
    opt:zero_grad(false)
    assert.is_false(p.grad:requires_grad())
    assert.same({ 0, 0, 0 }, p.grad:totable())
    opt:zero_grad(true)
    assert.is_nil(p.grad)
    -- row gradients lose their rows
    local e = nn.Embedding(5, 2, { sparse = true })
    local steps = optim.SGD(e:parameters(), 0.1)
    e(moth.tensor({ 1, 3 }, { dtype = moth.int64 })):sum():backward()
    steps:zero_grad { set_to_none = false }
    assert.equal(0, e.weight.grad:nnz())
    local before = e.weight:detach():clone()
    steps:step()
    assert.is_true(before:equal(e.weight))
    e(moth.tensor({ 2 }, { dtype = moth.int64 })):sum():backward()
    assert.same({ 0, 1, 0, 0, 0 }, e.weight.grad:to_dense():select(2, 1):totable())
  end)

  it("say what is wrong", function()
    local p = nn.Parameter(moth.ones(1))
    assert.error_matches(function() optim.SGD({}) end, "an empty table")
    assert.error_matches(function() optim.SGD(p) end, "got one tensor")
    assert.error_matches(function() optim.SGD({ p, p }) end, "parameter 2 is given twice")
    assert.error_matches(function() optim.SGD({ p * 2 }) end, "no leaf")
    assert.error_matches(function() optim.SGD({ p }, { lr = -1 }) end, "lr must be a number of at least 0")
    assert.error_matches(function() optim.SGD({ p }, { learning_rate = 1 }) end, "unknown option 'learning_rate'")
    assert.error_matches(function() optim.SGD({ p }, { nesterov = true }) end, "nesterov needs a momentum")
    assert.error_matches(function() optim.Adam({ p }, { betas = { 0.9, 1 } }) end, "betas%[2%] must be less than 1")
    assert.error_matches(function() optim.SGD({ { params = { p }, foo = 1 } }) end, "unknown option 'foo' in a group")
    assert.error_matches(function() optim.SGD({ p }):load_state_dict({ state = {}, param_groups = {} }) end,
      "it has 0 parameter groups, the optimizer 1")
    assert.error_matches(function() optim.class("None")({ p }):step() end, "has no step")
  end)

  it("scale_lr is linear in the replicas #M213", function()
    assert.is_near(4e-4, optim.scale_lr(1e-4, 4), 1e-18)
    assert.equal(1e-4, optim.scale_lr(1e-4, 1))
  end)
end)
