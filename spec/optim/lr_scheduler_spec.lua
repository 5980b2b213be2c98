local moth = require "moth"
local optim = moth.optim
local S = optim.lr_scheduler

local function optimizer(lr)
  return optim.SGD({ moth.nn.Parameter(moth.ones(1)) }, { lr = lr or 1 })
end

-- The rates of epochs 1..n.
local function rates(sched, opt, n)
  local out = {}
  for i = 1, n do
    out[i] = opt.param_groups[1].lr
    assert.same({ out[i] }, sched:get_last_lr())
    sched:step()
  end
  return out
end

local function check(name, o, expected, lr)
  local opt = optimizer(lr)
  local got = rates(S[name](opt, o), opt, #expected)
  for i = 1, #expected do assert.is_near(expected[i], got[i], 1e-12, name .. " " .. i) end
end

describe("learning-rate schedules #quick #M208", function()
  it("StepLR(5, 0.1) from 1e-3 #M209", function()
    local t = {}
    for i = 1, 10 do t[i] = i <= 5 and 1e-3 or 1e-4 end
    check("StepLR", { step_size = 5, gamma = 0.1 }, t, 1e-3)
  end)

  it("have their closed forms", function()
    check("MultiStepLR", { milestones = { 2, 3 }, gamma = 0.5 }, { 1, 1, 0.5, 0.25, 0.25 })
    check("ExponentialLR", { gamma = 0.9 }, { 1, 0.9, 0.81, 0.729 })
    check("CosineAnnealingLR", { T_max = 4, eta_min = 0.2 }, { 1, 0.6 + 0.4 * math.sqrt(0.5), 0.6,
      0.6 - 0.4 * math.sqrt(0.5), 0.2 })
    check("LinearLR", { start_factor = 0.25, total_iters = 3 }, { 0.25, 0.5, 0.75, 1, 1 })
    check("ConstantLR", { factor = 0.5, total_iters = 2 }, { 0.5, 0.5, 1, 1 })
    check("LambdaLR", { lr_lambda = function(e) return 1 / (1 + e) end }, { 1, 1 / 2, 1 / 3 })
  end)

  it("SequentialLR warms up, then decays", function()
    local opt = optimizer(2)
    local warm = S.LinearLR(opt, { start_factor = 0.5, total_iters = 2 })
    local decay = S.ExponentialLR(opt, { gamma = 0.1 })
    local sched = S.SequentialLR(opt, { schedulers = { warm, decay }, milestones = { 2 } })
    local got = rates(sched, opt, 5)
    for i, v in ipairs({ 1, 1.5, 2, 0.2, 0.02 }) do assert.is_near(v, got[i], 1e-12) end
  end)

  it("save and load", function()
    local function make()
      local opt = optimizer(1)
      local warm, cosine = S.LinearLR(opt, { total_iters = 3 }), S.CosineAnnealingLR(opt, { T_max = 5 })
      return S.SequentialLR(opt, { schedulers = { warm, cosine }, milestones = { 3 } }), opt
    end
    local a, opt = make()
    for _ = 1, 4 do a:step() end
    local b, opt2 = make()
    b:load_state_dict(a:state_dict())
    assert.equal(opt.param_groups[1].lr, opt2.param_groups[1].lr)
    assert.same(rates(a, opt, 4), rates(b, opt2, 4))
  end)

  it("go on from a file of PyTorch's", function()
    local opt = optimizer(1)
    local sched = S.MultiStepLR(opt, { 1, 2 }, 0.1)
    sched:load_state_dict(moth.load "spec/io/fixtures/multistep.pt") -- of { 2, 5, 5 } and 0.5, after 4 steps
    assert.same({ 0.5, 0.125, 0.125 }, rates(sched, opt, 3))
    local plateau = S.ReduceLROnPlateau(opt, { patience = 3 })
    plateau:load_state_dict { best = 0.5, num_bad_epochs = 3, cooldown_counter = 0, last_epoch = 9, _last_lr = { 0.25 },
      min_lrs = { 0 }, factor = 0.5, patience = 3 }
    plateau:step(0.6)
    assert.same({ 0.125 }, plateau:get_last_lr())
  end)

  it("OneCycleLR goes up and down, the momentum down and up", function()
    local o = { max_lr = 1, epochs = 5, steps_per_epoch = 2, pct_start = 0.3, div_factor = 4, final_div_factor = 10,
      anneal_strategy = "linear" }
    check("OneCycleLR", o, { 0.25, 0.625, 1, 1 - 0.975 / 7, 1 - 2 * 0.975 / 7 })
    local function momenta(options, make, get)
      local opt = make({ moth.nn.Parameter(moth.ones(1)) }, { lr = 0.1 })
      local sched, got = S.OneCycleLR(opt, options), {}
      for i = 1, 10 do
        got[i] = get(opt.param_groups[1])
        sched:step()
      end
      return got, sched
    end
    local function momentum(group) return group.momentum end
    local got = momenta(o, optim.SGD, momentum)
    for i, m in ipairs({ 0.95, 0.9, 0.85, 0.85 + 0.1 / 7 }) do assert.near(m, got[i], 1e-12) end
    assert.near(0.95, got[10], 1e-12)
    assert.same(got, (momenta(o, optim.Adam, function(group) return group.betas[1] end)))
    o.three_phase = true
    got = momenta(o, optim.SGD, momentum)
    for i, m in ipairs({ 0.95, 0.9, 0.85, 0.9, 0.95, 0.95, 0.95 }) do assert.near(m, got[i], 1e-12) end
    check("OneCycleLR", o, { 0.25, 0.625, 1, 0.625, 0.25, 0.25 - 0.225 / 5 })
    o.cycle_momentum = false
    assert.equal(0, momenta(o, optim.SGD, momentum)[3])
    local low, sched = momenta(o, optim.Adagrad, momentum)
    assert.is_nil(low[1])
    local opt = optim.SGD({ { params = { moth.nn.Parameter(moth.ones(1)) } },
      { params = { moth.nn.Parameter(moth.ones(1)) } } }, { lr = 1 })
    local both = S.OneCycleLR(opt, { max_lr = { 1, 2 }, total_steps = 10 })
    assert.same({ 1 / 25, 2 / 25 }, both:get_last_lr())
    local sd = sched:state_dict()
    assert.equal(10, sd.last_epoch)
    assert.error_matches(function() S.OneCycleLR(opt, { max_lr = { 1 }, total_steps = 3 }) end, "1 numbers for 2")
    assert.error_matches(function() S.OneCycleLR(opt, { max_lr = 1 }) end, "total_steps, or epochs")
    assert.error_matches(function() S.OneCycleLR(opt, { total_steps = 3 }) end, "'max_lr' is missing")
    local plain = optim.Adagrad({ moth.nn.Parameter(moth.ones(1)) }, { lr = 1 })
    assert.error_matches(function() S.OneCycleLR(plain, { max_lr = 1, total_steps = 3 }) end, "has no momentum")
  end)

  it("apply to every group", function()
    local opt = optim.SGD({ { params = { moth.nn.Parameter(moth.ones(1)) } },
      { params = { moth.nn.Parameter(moth.ones(1)) }, lr = 0.5 } }, { lr = 1 })
    local sched = S.StepLR(opt, { step_size = 1, gamma = 0.1 })
    sched:step()
    assert.same({ 0.1, 0.05 }, sched:get_last_lr())
    sched = S.LambdaLR(opt, { lr_lambda = { function() return 1 end, function() return 2 end } })
    assert.same({ 1, 1 }, sched:get_last_lr())
  end)

  it("take their arguments by position, in PyTorch's order", function()
    local opt = optimizer()
    assert.equal(0.5, S.StepLR(opt, 10, 0.5).gamma)
    assert.same({ 2, 4 }, S.MultiStepLR(opt, { 2, 4 }, 0.1).milestones)
    assert.equal(0.25, S.CosineAnnealingLR(opt, 10, 0.25).eta_min)
    local double = S.LambdaLR(opt, function() return 2 end)
    assert.equal(2 * double.base_lrs[1], double:get_last_lr()[1])
    S.LambdaLR(opt, { function() return 1 end })
    local a, b = S.LinearLR(opt, 0.1, 1, 3), S.ExponentialLR(opt, 0.9)
    assert.equal(b, S.SequentialLR(opt, { a, b }, { 3 }).schedulers[2])
    assert.equal(100, S.OneCycleLR(opt, 0.1, 100, { cycle_momentum = false }).total_steps)
    assert.same({ "max", 0.5, 3 }, { S.ReduceLROnPlateau(opt, "max", 0.5, 3).mode, 0.5, 3 })
    assert.equal(0.5, S.StepLR { optimizer = opt, step_size = 3, gamma = 0.5 }.gamma)
  end)

  it("say what is wrong", function()
    local opt = optimizer()
    assert.error_matches(function() S.StepLR(opt, {}) end, "argument 'step_size' is missing")
    assert.error_matches(function() S.StepLR(opt, 0) end, "'step_size': expected an integer of at least 1")
    assert.error_matches(function() S.StepLR(opt, { step = 1 }) end, "unknown option 'step'")
    assert.error_matches(function() S.ExponentialLR({}, { gamma = 1 }) end, "expected an optimizer")
    assert.error_matches(function() S.SequentialLR(opt, { schedulers = {}, milestones = {} }) end, "n %- 1 milestones")
    assert.error_matches(function() S.LambdaLR(opt, function() end) end, "lr_lambda must return a number, got nil")
  end)

  it("ReduceLROnPlateau needs its metric", function()
    local sched = moth.optim.lr_scheduler.ReduceLROnPlateau(moth.optim.SGD({ moth.nn.Parameter(moth.ones(1)) }, 0.1))
    for _, metric in ipairs { false, "x", {} } do
      assert.error_matches(function() sched:step(metric) end, "metric must be a number, got " .. type(metric))
    end
    assert.error_matches(function() sched:step() end, "metric must be a number, got nil")
    sched:step(0 / 0)
  end)

  it("warns once where it is stepped before the optimizer", function()
    local real, lines = io.stderr, {}
    io.stderr = { write = function(_, ...) lines[#lines + 1] = table.concat { ... } end } -- luacheck: ignore 122
    finally(function() io.stderr = real end) -- luacheck: ignore 122
    local function make() return optim.SGD({ moth.ones(1, { requires_grad = true }) }, { lr = 1 }) end
    local opt = make()
    local sched = optim.lr_scheduler.StepLR(opt, 2)
    for _ = 1, 3 do sched:step() end
    assert.equal(1, #lines)
    assert.matches("lr_scheduler_spec%.lua:%d+: %[lr_scheduler%.StepLR%] step was called before", lines[1])
    opt = make()
    sched = optim.lr_scheduler.StepLR(opt, 2)
    opt:step()
    sched:step()
    local Own = optim.Optimizer:subclass("Own") -- with a step of its own, of which nothing is known
    function Own.step() end
    optim.lr_scheduler.StepLR(Own({ moth.ones(1, { requires_grad = true }) }, { lr = 1 }), 2):step()
    local again = optim.lr_scheduler.StepLR(make(), 2)
    again:load_state_dict(sched:state_dict())
    again:step()
    assert.equal(1, #lines)
  end)

  it("the base class says what is wrong with last_epoch, and that it has no rate", function()
    local opt = moth.optim.SGD({ moth.zeros(2):requires_grad_() }, { lr = 0.1 })
    local base = moth.optim.lr_scheduler.LRScheduler
    for _, wrong in ipairs { false, "1", 0.5, -2, { { last_epoch = false } }, { { last_epoch = {} } } } do
      assert.error_matches(function() base(opt, type(wrong) == "table" and wrong[1] or wrong) end,
        "%[lr_scheduler.LRScheduler%]: last_epoch must be an integer of at least %-1")
    end
    assert.error_matches(function() base(opt, { gamma = false }) end, "unknown option 'gamma'")
    assert.error_matches(function() base(opt, { last_epoch = -1 }) end, "has no rate%(base, epoch%)")
    assert.error_matches(moth.cumsum, "%[cumsum%] argument 'self' is missing")
  end)
end)
