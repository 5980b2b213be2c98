-- Learning rates and counts of steps as tensors: the same steps as with numbers, and rates that are written, not
-- replaced, so that what holds the tensor (a captured graph) follows.
local moth = require "moth"
local optim = moth.optim

local function fails(text, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(text, tostring(e), 1, true)
end

local function params(dtype)
  moth.manual_seed(5)
  local list = { moth.randn(3, 4, { dtype = dtype }), moth.randn(7, { dtype = dtype }) }
  for _, p in ipairs(list) do p:requires_grad_() end
  return list
end
local function run(list, opt, steps, each)
  moth.manual_seed(6)
  for i = 1, steps do
    for _, p in ipairs(list) do p.grad = moth.randn_like(p) end
    opt:step()
    if each then each(i) end
  end
end

local cases = {
  { "SGD", {} }, { "SGD", { momentum = 0.9, nesterov = true, weight_decay = 0.1 } }, { "Adam", {} },
  { "Adam", { amsgrad = true, weight_decay = 0.1, maximize = true } }, { "AdamW", { betas = { 0.5, 0.9 } } },
}

describe("a learning rate as a tensor #quick", function()
  for _, case in ipairs(cases) do
    local name, options = case[1], case[2]
    it(("steps as the number does: %s %s"):format(name, next(options) or ""), function()
      for _, dtype in ipairs { moth.float32, moth.float64, moth.bfloat16 } do
        local a, b = params(dtype), params(dtype)
        local o = {}
        for k, v in pairs(options) do o[k] = v end
        o.lr = 0.125
        local one = optim[name](a, o)
        o.lr = moth.tensor(0.125, { dtype = moth.float64 })
        if name ~= "SGD" then o.capturable = true end
        local two = optim[name](b, o)
        run(a, one, 5, function(i) if i == 2 then one.param_groups[1].lr = 0.5 end end)
        run(b, two, 5, function(i) if i == 2 then o.lr:fill_(0.5) end end)
        for i = 1, #a do assert.is_true(moth.equal(a[i], b[i])) end
      end
    end)
  end

  it("is written by schedulers", function()
    local lr = moth.tensor(0.5)
    local opt = optim.SGD(params(), { lr = lr })
    local sched = optim.lr_scheduler.StepLR(opt, 1, 0.5)
    assert.equal(0.5, lr:item())
    sched:step()
    assert.equal(0.25, lr:item())
    assert.same({ 0.25 }, sched:get_last_lr())
    assert.is_true(rawequal(lr, opt.param_groups[1].lr))
    local plateau = optim.lr_scheduler.ReduceLROnPlateau(opt, { patience = 0, factor = 0.5 })
    plateau:step(1)
    plateau:step(2)
    assert.equal(0.125, lr:item())
    local cycle = optim.lr_scheduler.OneCycleLR(opt, { max_lr = 1, total_steps = 4, cycle_momentum = false })
    cycle:step()
    assert.is_true(rawequal(lr, opt.param_groups[1].lr))
    assert.is_true(math.abs(lr:item() - cycle:get_last_lr()[1]) < 1e-6)
  end)

  it("is saved and loaded, into the tensor that is there", function()
    local a, b = params(), params()
    local one = optim.Adam(a, { lr = moth.tensor(0.5), capturable = true })
    run(a, one, 3)
    local sd = one:state_dict()
    local lr = moth.tensor(0.1)
    local two = optim.Adam(b, { lr = lr, capturable = true })
    two:load_state_dict(sd)
    assert.equal(0.5, lr:item())
    assert.is_true(rawequal(lr, two.param_groups[1].lr))
    assert.equal(3, two.state[b[1]].step:item())
    assert.is_true(rawequal(two.state[b[1]].step, two.state[b[2]].step)) -- one op call for all
    assert.is_false(rawequal(two.state[b[1]].step, one.state[a[1]].step))
    for i = 1, #a do b[i].data:copy_(a[i]) end
    run(a, one, 2)
    run(b, two, 2)
    for i = 1, #a do assert.is_true(moth.equal(a[i], b[i])) end
    -- Between optimizers that count in different ways, and through a file.
    local path = os.tmpname()
    moth.save(one:state_dict(), path)
    local three = optim.Adam(params(), { lr = 0.1 })
    three:load_state_dict(moth.load(path))
    os.remove(path)
    assert.equal(5, three.state[three.param_groups[1].params[1]].step)
    local four = optim.Adam(params(), { lr = 0.1, capturable = true })
    four:load_state_dict(three:state_dict())
    assert.equal(5, four.state[four.param_groups[1].params[1]].step:item())
    -- Parameters in halves do not round the count.
    local half = params(moth.bfloat16)
    local five = optim.Adam(half, { capturable = true })
    run(half, five, 1)
    five.state[half[1]].step:fill_(1025)
    local six = optim.Adam(params(moth.bfloat16), { capturable = true })
    six:load_state_dict(five:state_dict())
    assert.equal(1025, six.state[six.param_groups[1].params[1]].step:item())
  end)

  it("serves groups of their own rates", function()
    local a = params()
    local lr = moth.tensor(0.25)
    local opt = optim.SGD({ { params = a[1], lr = lr }, { params = a[2] } }, { lr = 0.5 })
    a[1].grad, a[2].grad = moth.ones(3, 4), moth.ones(7)
    local before = { a[1]:clone(), a[2]:clone() }
    opt:step()
    assert.is_close((before[1] - a[1]):detach(), moth.full({ 3, 4 }, 0.25))
    assert.is_close((before[2] - a[2]):detach(), moth.full({ 7 }, 0.5))
    assert.matches("lr: tensor(0.25)", tostring(opt), 1, true)
  end)

  it("is one number", function()
    fails("expected a tensor of one element", optim.SGD, params(), { lr = moth.ones(2) })
    fails("lr must be a number of at least 0", optim.SGD, params(), { lr = -1 })
    local x, g, zeros, ops = moth.ones(2), moth.ones(2), moth.zeros(2), moth.ops.moth
    fails("lr must be a tensor of one element", ops.sgd_step, { x }, { g }, {}, moth.ones(3), 0, 0, 0, false, false,
      true)
    fails("step counts from 1", ops.adam_step, { x }, { g }, { zeros }, { zeros }, {}, 0.1, 0.9, 0.99, 1e-8, 0, 0,
      false, false, false)
  end)
end)

describe("binary_cross_entropy", function()
  it("reads no values where somebody would wait for them", function()
    local F = moth.nn.functional
    fails("probabilities are between 0 and 1, got 0.5 to 2", F.binary_cross_entropy, moth.tensor { 0.5, 2 },
      moth.zeros(2))
    local ops = moth.dispatch.trace(function() F.binary_cross_entropy(moth.tensor { 0.5, 0.25 }, moth.zeros(2)) end)
    for _, line in ipairs(ops) do assert.is_nil(line:match "^amin" or line:match "^amax") end
    assert.is_true(#ops > 0)
  end)
end)
