-- Each optimizer against PyTorch's parameters after ten steps; the whole comparison is spec/parity/optim.lua.
local moth = require "moth"
local nn, optim = moth.nn, moth.optim

local function fails(text, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(text, tostring(e), 1, true)
end

-- The parameters and gradients of spec/parity/optim.py.
local function wave(fn, shape)
  local n, data = 1, {}
  for _, s in ipairs(shape) do n = n * s end
  for k = 0, n - 1 do data[k + 1] = fn(k) end
  return moth.tensor(data, { dtype = moth.float64 }):view(shape):clone()
end
local function parameters()
  local list = {}
  for i, shape in ipairs { { 3, 4 }, { 5 }, {} } do
    list[i] = wave(function(k) return math.sin(1.7 * k + i - 1) end, shape):requires_grad_()
  end
  return list
end
local function advance(o, params, t)
  if o.__name == "LBFGS" then
    return o:step(function()
      o:zero_grad()
      local loss = 0
      for i, p in ipairs(params) do loss = ((p * i - 0.5) ^ 4):sum() + ((p - 0.3) ^ 2):sum() + loss end
      loss:backward()
      return loss
    end)
  end
  for i, p in ipairs(params) do
    local g = wave(function(k) return (k + t) % 7 == 0 and 0 or math.cos(0.9 * k + 1.3 * t + i - 1) end, p:size())
    p.grad = g + p:detach() * 0.125
  end
  if t == 4 then params[3].grad = nil end
  o:step()
end

-- Name, options; elements 1, 14 and 18 of the parameters after ten steps, by PyTorch.
local cases = {
  { "SGD", { lr = 0.1, momentum = 0.9, dampening = 0.1, weight_decay = 0.1 },
    { -0.0982399309820205, -0.0333320945318079, 0.776011004282016 } },
  { "SGD", { lr = 0.1, momentum = 0.9, nesterov = true, maximize = true },
    { 0.060647788538023, 0.804694197220255, 0.643235210208737 } },
  { "Adam", { amsgrad = true, weight_decay = 0.1 },
    { -0.000167937055721282, 0.427135541662005, 0.910155028067447 } },
  { "Adam", { lr = 0.1, betas = { 0.5, 0.9 }, maximize = true },
    { 0.1467233243585, 0.555947566250875, 0.838592767589569 } },
  { "Adam", { decoupled_weight_decay = true, weight_decay = 0.1, lr = 0.01 },
    { -0.00168010070679311, 0.425429533653289, 0.918846645210221 } },
  { "AdamW", { lr = 0.01 },
    { -0.00167498456088918, 0.429340883393651, 0.926274536917053 } },
  { "AdamW", { lr = 0.1, amsgrad = true, weight_decay = 0.2, eps = 0.001 },
    { -0.0175342051887482, 0.343323758455519, 0.902612723650788 } },
  { "Adagrad", {  },
    { -0.00918210609834281, 0.424248552295982, 0.914067728470798 } },
  { "Adagrad", { lr = 0.1, lr_decay = 0.1, weight_decay = 0.1, maximize = true },
    { 0.0602471389363044, 0.405907067170614, 0.817189346785469 } },
  { "Adagrad", { lr = 0.1, initial_accumulator_value = 0.5, eps = 0.0001 },
    { -0.0452190863294296, 0.38636654214345, 0.937415599547203 } },
  { "Adadelta", {  },
    { -0.00819530923054323, 0.423361567232642, 0.91015742840224 } },
  { "Adadelta", { lr = 0.5, rho = 0.8, eps = 0.0001, weight_decay = 0.1, maximize = true },
    { 0.0300726827848066, 0.437213214276844, 0.896956700223691 } },
  { "Adamax", {  },
    { -0.000608742394525496, 0.428386977081351, 0.912410192737393 } },
  { "Adamax", { lr = 0.1, betas = { 0.7, 0.8 }, eps = 0.001, weight_decay = 0.1, maximize = true },
    { 0.0717294404360033, 0.433155849226716, 0.712443462837074 } },
  { "NAdam", {  },
    { -0.00312180558117637, 0.425642121186952, 0.910339820141667 } },
  { "NAdam", { lr = 0.05, betas = { 0.7, 0.8 }, weight_decay = 0.1, momentum_decay = 0.01 },
    { -0.0951289250106753, 0.336125321187325, 0.886624789652392 } },
  { "NAdam", { lr = 0.05, weight_decay = 0.1, decoupled_weight_decay = true, maximize = true },
    { 0.0782566008964354, 0.449320554246297, 0.84181759560558 } },
  { "RAdam", {  },
    { 0.000615861725772006, 0.428518059892863, 0.910748298946629 } },
  { "RAdam", { lr = 0.05, betas = { 0.7, 0.9 }, weight_decay = 0.1, maximize = true },
    { -0.00413546862304164, 0.40426243007972, 0.825572354096619 } },
  { "RAdam", { lr = 0.05, betas = { 0.9, 0.8 }, weight_decay = 0.1, decoupled_weight_decay = true },
    { 0.0121489372988451, 0.426073924466333, 0.936835471312964 } },
  { "RMSprop", {  },
    { -0.0923351301698111, 0.39327552845873, 0.953052333416081 } },
  { "RMSprop", { lr = 0.05, alpha = 0.9, momentum = 0.9 },
    { -0.371492572274461, 0.302498459874774, 1.37737433309716 } },
  { "RMSprop", { lr = 0.05, centered = true },
    { -0.43835327993357, 0.234449589199232, 1.05987835357552 } },
  { "RMSprop", { lr = 0.02, centered = true, momentum = 0.5, weight_decay = 0.1, maximize = true },
    { 0.26154530578944, 0.467878424726645, 0.556715067845727 } },
  { "Rprop", {  },
    { -0.00975, 0.42727588023383, 0.914047426825682 } },
  { "Rprop", { lr = 0.1, etas = { 0.6, 1.3 }, step_sizes = { 0.01, 0.2 }, maximize = true },
    { 0.2675992, 0.56493148023383, 0.639829426825682 } },
  { "ASGD", {  },
    { -0.0118038563864337, 0.415741573182724, 0.909565024036963 } },
  { "ASGD", { lr = 0.1, lambd = 0.01, alpha = 0.5, t0 = 5, weight_decay = 0.1, maximize = true },
    { 0.116831607125096, 0.496585425929893, 0.815077513920265 } },
  { "Adafactor", {  },
    { -0.0116733565763501, 0.414544278267357, 0.91512993700547 } },
  { "Adafactor", { lr = 0.1, beta2_decay = -0.5, d = 1.5, weight_decay = 0.1, maximize = true },
    { 0.114449879734658, 0.514491809472847, 0.773936037564268 } },
  { "LBFGS", {  },
    { 0.313065656675575, 0.296733461367267, 0.238912492213196 } },
  { "LBFGS", { lr = 0.5, max_iter = 4, history_size = 3 },
    { 0.313063732466731, 0.296734275719782, 0.238912199340799 } },
  { "LBFGS", { line_search_fn = "strong_wolfe" },
    { 0.313065656675575, 0.296733461367267, 0.238912492213196 } },
  { "LBFGS", { lr = 2, line_search_fn = "strong_wolfe", max_iter = 3 },
    { 0.313065050478792, 0.296733869477005, 0.238908645392357 } },
}

describe("optimizers follow PyTorch #quick", function()
  for _, case in ipairs(cases) do
    local name, options, want = unpack(case)
    local keys = {}
    for key in pairs(options) do keys[#keys + 1] = key end
    table.sort(keys)
    it(("%s %s"):format(name, table.concat(keys, " ")), function()
      local params = parameters()
      local o = optim[name](params, options)
      for t = 1, 10 do advance(o, params, t) end
      local got = { params[1]:view(-1)[1]:item(), params[2][2]:item(), params[3]:item() }
      for i = 1, 3 do assert.is_near(want[i], got[i], 1e-11) end
    end)
  end

  it("Lion and LAMB follow their papers", function()
    local p = parameters()[1]
    local x, m = p:detach():clone(), moth.zeros_like(p)
    local o = optim.Lion({ p }, { lr = 0.01, betas = { 0.8, 0.9 }, weight_decay = 0.5 })
    for t = 1, 5 do
      p.grad = moth.cos(p:detach() * t)
      x:mul_(1 - 0.01 * 0.5):sub_((m * 0.8 + p.grad * 0.2):sign(), 0.01)
      m:mul_(0.9):add_(p.grad, 0.1)
      o:step()
      assert.is_true(moth.allclose(p:detach(), x, 1e-12, 1e-12))
    end
    local v = moth.zeros_like(p)
    x, m = p:detach():clone(), moth.zeros_like(p)
    o = optim.LAMB({ p }, { lr = 0.1, weight_decay = 0.2 })
    for t = 1, 5 do
      local g = moth.cos(x * t)
      p.grad = g
      m:mul_(0.9):add_(g, 0.1)
      v:mul_(0.999):addcmul_(g, g, 0.001)
      local d = m / (1 - 0.9 ^ t) / ((v / (1 - 0.999 ^ t)):sqrt() + 1e-6) + x * 0.2
      x:sub_(d * (x:norm() / d:norm()), 0.1)
      o:step()
      assert.is_true(moth.allclose(p:detach(), x, 1e-12, 1e-12))
    end
  end)

  it("Muon makes its steps nearly orthogonal, of matrices only", function()
    moth.manual_seed(3)
    local p = moth.randn(6, 4):requires_grad_()
    local o, before = optim.Muon({ p }, { lr = 0.1, weight_decay = 0 }), p:detach():clone()
    p.grad = moth.randn(6, 4)
    o:step()
    local step = (before - p:detach()) / (0.1 * math.sqrt(6 / 4))
    local gram = step:t():matmul(step)
    assert.is_true(gram:diagonal():sub(1):abs():max():item() < 0.5)
    assert.is_true((gram - moth.diag(gram:diagonal())):abs():max():item() < 0.3)
    fails("takes matrices only", optim.Muon, { moth.ones(3) })
  end)

  it("SparseAdam follows rows only", function()
    local table_of = nn.Embedding(5, 3, { sparse = true })
    local before = table_of.weight:detach():clone()
    local o = optim.SparseAdam(table_of:parameters(), { lr = 0.1 })
    for _ = 1, 2 do
      o:zero_grad()
      table_of(moth.tensor({ 2, 4, 2 }, { dtype = moth.int64 })):sum():backward()
      o:step()
    end
    local change = (table_of.weight:detach() - before):abs():sum(2):totable()
    assert.same({ 0, 0, 0 }, { change[1], change[3], change[5] })
    assert.is_near(0.6, change[2], 1e-4) -- two steps of nearly lr, in three columns
    assert.is_near(0.6, change[4], 1e-4)
    local p = moth.ones(2):requires_grad_()
    p.grad = moth.ones(2)
    fails("row gradients only", optim.SparseAdam({ p }).step, optim.SparseAdam({ p }))
  end)

  it("take 16-bit parameters, views, gaps and none at all", function()
    for name in ("Adagrad Adadelta Adamax NAdam RAdam RMSprop Rprop ASGD Lion LAMB Adafactor"):gmatch "%a+" do
      for _, dtype in ipairs { moth.bfloat16, moth.float16 } do
        local whole = moth.ones({ 4, 6 }, { dtype = dtype })
        local p, empty = whole:t():requires_grad_(), moth.ones({ 0, 3 }, { dtype = dtype }):requires_grad_()
        p.grad, empty.grad = moth.full_like(p, 0.5), moth.ones_like(empty)
        local o = optim[name]({ p, empty }, { lr = 0.125 })
        o:step()
        o:step()
        assert.is_true(p:detach():le(1):all():item(), name)
        assert.is_true(p:detach():gt(-3):all():item(), name)
        assert.equal(dtype, p:dtype())
      end
    end
  end)
end)

describe("options of optimizers #quick", function()
  local function p() return moth.ones(2):requires_grad_() end
  it("are checked", function()
    fails("rho must be between 0 and 1", optim.Adadelta, { p() }, { rho = 2 })
    fails("betas[2]", optim.RAdam, { p() }, { betas = { 0.5, 1 } })
    fails("etas are two numbers", optim.Rprop, { p() }, { etas = { 1.5, 0.5 } })
    fails("momentum_decay", optim.NAdam, { p() }, { momentum_decay = -1 })
    fails("differentiable", optim.Adam, { p() }, { differentiable = true })
    fails("unknown", optim.Adam, { p() }, { lrr = 1 })
    fails("one group", optim.LBFGS, { { params = p() }, { params = p() } })
    fails("expected a function", optim.LBFGS({ p() }).step, optim.LBFGS({ p() }))
    local o = optim.Adamax({ { params = p(), lr = 0.5 }, { params = p(), foreach = true } }, { foreach = false,
      fused = true })
    assert.equal(0.5, o.param_groups[1].lr)
    fails("unknown option 'amsgrad' in a group", o.add_param_group, o, { params = p(), amsgrad = true })
  end)

  it("capturable keeps numbers in tensors that all parameters share", function()
    for name in ("Adam Adagrad Adadelta Adamax NAdam RAdam RMSprop Rprop ASGD Lion LAMB"):gmatch "%a+" do
      local a, b = parameters(), parameters()
      local one = optim[name](a)
      local two = optim[name](b, { capturable = true, lr = moth.tensor(one.defaults.lr, { dtype = moth.float64 }) })
      for t = 1, 8 do
        advance(one, a, t)
        advance(two, b, t)
      end
      for i = 1, 3 do assert.is_true(moth.allclose(a[i], b[i], 1e-6, 1e-6), name) end
      if name ~= "Lion" then
        assert.is_true(rawequal(two.state[b[1]].step, two.state[b[2]].step))
        assert.equal(7, two.state[b[3]].step:item())
      end
      local three = optim[name](parameters())
      three:load_state_dict(two:state_dict())
      if name ~= "Lion" then assert.equal(8, three.state[three.param_groups[1].params[1]].step) end
    end
  end)

  it("a gradient that overflowed leaves the step out", function()
    for _, name in ipairs { "SGD", "Adam", "AdamW", "NAdam", "RMSprop", "Lion", "ASGD", "LAMB", "Adafactor" } do
      local q = p()
      q.grad = moth.ones(2)
      local o = optim[name]({ q })
      assert.is_true(o.supports_found_inf)
      o.found_inf = moth.ones({})
      o:step()
      assert.same({ 1, 1 }, q:detach():totable())
      assert.is_nil(rawget(o.state, q))
      o.found_inf = moth.zeros({})
      o:step()
      assert.is_true(q:detach():ne(1):all():item(), name)
    end
    local matrix = moth.eye(3):requires_grad_()
    matrix.grad = moth.ones(3, 3)
    local muon = optim.Muon { matrix }
    muon.found_inf = moth.ones({})
    muon:step()
    assert.is_true(matrix:detach():equal(moth.eye(3)))
    local embedding = moth.nn.Embedding(3, 2, { sparse = true })
    embedding(moth.tensor({ 2 }, { dtype = moth.int64 })):sum():backward()
    local before, sparse = embedding.weight:detach():clone(), optim.SparseAdam(embedding:parameters())
    sparse.found_inf = moth.ones({})
    sparse:step()
    assert.is_true(embedding.weight:detach():equal(before))
    local a, b = p(), p()
    local one, two = optim.SGD({ a }, { lr = 0.5 }), optim.SGD({ b }, { lr = 0.5 })
    a.grad, b.grad = moth.full({ 2 }, 0.25), moth.full({ 2 }, 256)
    two.grad_scale = moth.tensor(1024)
    one:step()
    two:step()
    assert.same(a:detach():totable(), b:detach():totable())
    for _, name in ipairs { "Adafactor", "Muon", "LAMB" } do
      local x, y = moth.eye(2):requires_grad_(), moth.eye(2):requires_grad_()
      x.grad, y.grad = moth.full({ 2, 2 }, 0.25), moth.full({ 2, 2 }, 256)
      one, two = optim[name] { x }, optim[name] { y }
      two.grad_scale = moth.tensor(1024)
      one:step()
      two:step()
      assert.is_true(x:detach():equal(y:detach()), name)
    end
  end)

  it("hooks run before and after", function()
    local q, said = p(), {}
    q.grad = moth.ones(2)
    local o = optim.SGD({ q }, { lr = 1 })
    local function says(word)
      return function(of) said[#said + 1] = word .. " " .. of.param_groups[1].params[1][1]:item() end
    end
    local pre, post = o:register_step_pre_hook(says "before"), o:register_step_post_hook(says "after")
    o:step()
    assert.same({ "before 1", "after 0" }, said)
    pre:remove()
    o:step()
    assert.same({ "before 1", "after 0", "after -1" }, said)
    post:remove()
    o:step()
    assert.equal(3, #said)
    o:register_state_dict_post_hook(function(_, sd)
      sd.note = "mine"
      return sd
    end)
    assert.equal("mine", o:state_dict().note)
    fails("expected a function", o.register_step_pre_hook, o, 3)
    fails("did you mean 'prepend'", o.register_step_pre_hook, o, print, { prepen = true })
    fails("takes one argument", o.step, o, nil, { foreach = true })
    local order = {}
    o:register_step_pre_hook(function() order[#order + 1] = 1 end)
    o:register_step_pre_hook(function() order[#order + 1] = 2 end, { prepend = true })
    o:step()
    assert.same({ 2, 1 }, order)
  end)
end)

describe("states of optimizers #quick", function()
  it("of bfloat16 parameters: tensors have their dtype, numbers keep theirs, also as tensors", function()
    for _, name in ipairs { "Adam", "NAdam", "ASGD", "RAdam", "Adamax" } do
      for _, capturable in ipairs { false, true } do
        local function make()
          local p = nn.Parameter(moth.linspace(-1, 1, 5):to(moth.bfloat16))
          return p, optim[name]({ p }, { lr = 0.01, capturable = capturable })
        end
        local function step(p, o)
          p.grad = (p:detach() * 3 + 1)
          o:step()
        end
        local p, o = make()
        for _ = 1, 3 do step(p, o) end
        local q, other = make()
        moth.no_grad(q.copy_, q, p)
        local sd = o:state_dict()
        for _, key in ipairs(o.scalars) do -- as PyTorch's files have them
          if type(sd.state[1][key]) == "number" then sd.state[1][key] = moth.tensor(sd.state[1][key]) end
        end
        other:load_state_dict(sd)
        for _, key in ipairs(o.scalars) do
          local had, has = o.state[p][key], other.state[q][key]
          if capturable then
            assert.equal(moth.float32, has:dtype())
            had, has = had:item(), has:item()
          end
          assert.is_true(math.abs(had - has) <= 1e-6 * math.abs(had), name .. " " .. key)
        end
        for _ = 1, 3 do
          step(p, o)
          step(q, other)
        end
        assert.same(p:detach():totable(), q:detach():totable())
      end
    end
    -- a float32 state is rounded to the parameter's dtype, as PyTorch's load_state_dict does
    local p = nn.Parameter(moth.ones(3))
    local o = optim.Adam({ p })
    p.grad = moth.full({ 3 }, 0.3)
    o:step()
    local q = nn.Parameter(moth.ones(3):to(moth.bfloat16))
    local low = optim.Adam({ q })
    low:load_state_dict(o:state_dict())
    assert.equal(moth.bfloat16, low.state[q].exp_avg:dtype())
    assert.equal(1, low.state[q].step)
  end)

  it("come from PyTorch's files and go on as there", function()
    local saved = moth.load "spec/io/fixtures/adam.pt"
    local w, b = saved.w:requires_grad_(), saved.b:requires_grad_()
    local o = optim.Adam({ { params = w }, { params = b } }, { amsgrad = true })
    o:load_state_dict(saved.state)
    assert.equal(0.25, o.param_groups[2].lr)
    assert.equal(3, o.state[w].step)
    for t = 4, 5 do
      w.grad, b.grad = moth.tensor { t, -1, 1 / t }, moth.tensor { { t - 2 } }
      o:step()
    end
    for i, want in ipairs { 0.39117163, -1.3756027, 2.4181657 } do assert.is_near(want, w[i]:item(), 1e-6) end
    assert.is_near(0.53996289, b:item(), 1e-6)
  end)

  it("go to PyTorch's files: what is written loads again", function()
    local params = parameters()
    local o = optim.NAdam(params)
    for t = 1, 4 do advance(o, params, t) end
    local path = os.tmpname() .. ".pt"
    moth.save({ opt = o:state_dict(), epoch = 4, name = "n", list = { 1.5, 2 ^ 40, -3 }, half = moth.ones({ 2 },
      { dtype = moth.bfloat16 }), yes = true, dtype = moth.float16, [7] = {} }, path)
    local back = moth.load(path)
    os.remove(path)
    assert.equal(4, back.epoch)
    assert.same({ 1.5, 2 ^ 40, -3 }, back.list)
    assert.same({}, back[7])
    assert.equal("bfloat16", back.half:dtype().name)
    assert.same({ 0, 1, 2 }, back.opt.param_groups[1].params)
    assert.equal(4, back.opt.state[0].step)
    local again = optim.NAdam(parameters())
    again:load_state_dict(back.opt)
    local first = again.param_groups[1].params[1]
    assert.is_true(again.state[first].exp_avg:equal(o.state[params[1]].exp_avg))
    assert.equal(o.state[params[1]].mu_product, again.state[first].mu_product)
    fails("a function at 'f' cannot be saved", moth.save, { f = print }, path)
  end)

  it("that do not fit say why", function()
    local a, b = parameters(), parameters()
    local o, other = optim.Adam(a), optim.Adam({ b[1] })
    for t = 1, 2 do advance(o, a, t) end
    fails("group 1 has 3 parameters, that of the optimizer 1", other.load_state_dict, other, o:state_dict())
    local turned = optim.Adam({ b[2], b[1], b[3] })
    fails("of parameter 1 has shape [3, 4], the parameter [5]", turned.load_state_dict, turned, o:state_dict())
    fails("expected { state", o.load_state_dict, o, 3)
    local sd = o:state_dict()
    sd.param_groups[1].betas = "0.9"
    fails("option 'betas' of group 1: expected a table, got string", o.load_state_dict, o, sd)
  end)
end)

describe("swa_utils #quick", function()
  local swa = optim.swa_utils
  it("means follow the model, equal and exponential", function()
    local model = nn.Linear(2, 1, { bias = false })
    local mean = swa.AveragedModel(model)
    local ema = swa.AveragedModel(model, { multi_avg_fn = swa.get_ema_multi_avg_fn(0.75) })
    local own = swa.AveragedModel(model, { avg_fn = swa.get_ema_avg_fn(0.75) })
    for _, x in ipairs { 1, 2, 6 } do
      model.weight.data:fill_(x)
      for _, m in ipairs { mean, ema, own } do m:update_parameters(model) end
    end
    assert.is_near(3, mean.module.weight[1][1]:item(), 1e-6)
    assert.is_near((1 * 0.75 + 2 * 0.25) * 0.75 + 6 * 0.25, ema.module.weight[1][1]:item(), 1e-6)
    assert.is_near(ema.module.weight[1][1]:item(), own.module.weight[1][1]:item(), 1e-6)
    assert.equal(3, mean.n_averaged:item())
    assert.is_near(6, mean(moth.ones(1, 2)):item(), 1e-5)
    local again = swa.AveragedModel(nn.Linear(2, 1, { bias = false }))
    again:load_state_dict(mean:state_dict())
    again:update_parameters(model)
    assert.is_near(3.75, again.module.weight[1][1]:item(), 1e-6)
    fails("not both", swa.AveragedModel, model, { avg_fn = print, multi_avg_fn = print })
    fails("decay must be between 0 and 1", swa.get_ema_multi_avg_fn, 2)
  end)

  it("SWALR goes to its rate and stays", function()
    local o = optim.SGD({ moth.ones(1):requires_grad_() }, { lr = 1 })
    local s, got = swa.SWALR(o, 0.5, { anneal_epochs = 2, anneal_strategy = "linear" }), {}
    for i = 1, 4 do
      got[i] = o.param_groups[1].lr
      s:step()
    end
    assert.same({ 1, 0.75, 0.5, 0.5 }, got)
  end)

  it("update_bn makes statistics anew", function()
    local model = nn.Sequential(nn.BatchNorm1d(2))
    local x = moth.tensor { { 1, 10 }, { 3, 30 } }
    swa.update_bn({ iter = function()
      local n = 0
      return function()
        n = n + 1
        return n <= 2 and x * n or nil
      end
    end }, model)
    assert.same({ 3, 30 }, model[1].running_mean:totable())
    assert.equal(0.1, model[1].momentum)
  end)
end)
