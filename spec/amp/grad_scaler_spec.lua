local moth = require "moth"
local nn, F, amp, optim = moth.nn, moth.F, moth.amp, moth.optim

local function problem(make)
  moth.manual_seed(1)
  local net = nn.Linear(4, 2)
  local opt = (make or function(p) return optim.SGD(p, { lr = 0.1 }) end)(net:parameters())
  local x, y = moth.randn(8, 4), moth.randn(8, 2)
  return net, opt, function() return F.mse_loss(net(x), y) end
end

describe("amp.GradScaler #quick", function()
  it("has PyTorch's defaults, and scales the loss by 65536 #M255 #M256", function()
    local s = amp.GradScaler()
    assert.equal(65536, s:get_scale())
    assert.same({ 2, 0.5, 2000, true }, { s:get_growth_factor(), s:get_backoff_factor(), s:get_growth_interval(),
      s:is_enabled() })
    local net, _, loss = problem()
    loss():backward()
    local plain = net.weight.grad:clone()
    net.weight.grad = nil
    s:scale(loss()):backward()
    assert.is_true(moth.equal(plain * 65536, net.weight.grad))
    local both = s:scale({ a = moth.ones(2), b = { moth.ones(1) } })
    assert.same({ 65536, 65536 }, both.a:tolist())
    assert.same({ 65536 }, both.b[1]:tolist())
  end)

  it("unscales once, to the bits of the plain gradient; twice is an error #M257", function()
    local net, opt, loss = problem()
    loss():backward()
    local plain = net.weight.grad:clone()
    opt:zero_grad()
    local s = amp.GradScaler()
    s:scale(loss()):backward()
    s:unscale_(opt)
    assert.is_true(moth.equal(plain, net.weight.grad))
    assert.error_matches(function() s:unscale_(opt) end, "already been called on this optimizer since the last update")
    s:step(opt)
    assert.error_matches(function() s:step(opt) end, "step%(%) has already been called")
    assert.error_matches(function() s:unscale_(opt) end, "being called after step")
    s:update()
    s:scale(loss()):backward()
    s:unscale_(opt)
  end)

  it("leaves out a step with an infinity and halves the scale; others take theirs #M258", function()
    local makers = {
      function(p) return optim.SGD(p, { lr = 0.1, momentum = 0.9 }) end,
      function(p) return optim.AdamW(p, { lr = 0.1 }) end,
      function(p) return optim.RMSprop(p, { lr = 0.1 }) end,
      function(p) return optim.Adagrad(p, { lr = 0.1 }) end,
    }
    for _, make in ipairs(makers) do
      for _, bad in ipairs { math.huge, -math.huge, 0 / 0 } do
        local net, opt, loss = problem(make)
        local s = amp.GradScaler()
        local before = net.weight:detach():clone()
        s:scale(loss()):backward()
        moth.no_grad(function() net.bias.grad:view(-1)[2] = bad end)
        s:step(opt)
        s:update()
        assert.is_true(moth.equal(before, net.weight), opt.__name)
        assert.equal(32768, s:get_scale())
        opt:zero_grad()
        s:scale(loss()):backward()
        s:step(opt)
        s:update()
        assert.is_false(moth.equal(before, net.weight), opt.__name)
        assert.is_false(net.weight:isnan():any():item(), opt.__name)
        -- the state is that of one step
        local other, opt2, loss2 = problem(make)
        loss2():backward()
        opt2:step()
        assert.is_true(moth.equal(other.weight, net.weight), opt.__name)
      end
    end
  end)

  it("grows after growth_interval good steps, not beyond what float32 holds", function()
    local _, opt, loss = problem()
    local s = amp.GradScaler { init_scale = 4, growth_interval = 3, growth_factor = 8, backoff_factor = 0.25 }
    local scales = {}
    for i = 1, 7 do
      opt:zero_grad()
      s:scale(loss()):backward()
      if i == 5 then moth.no_grad(function() opt.param_groups[1].params[1].grad:fill_(math.huge) end) end
      s:step(opt)
      s:update()
      scales[i] = s:get_scale()
    end
    assert.same({ 4, 4, 32, 32, 8, 8, 8 }, scales)
    local t = amp.GradScaler { init_scale = 2 ^ 126, growth_interval = 1, growth_factor = 8 }
    t:scale(moth.ones(1, { requires_grad = true }) * 1e-30):backward()
    local w = moth.ones(1, { requires_grad = true })
    w.grad = moth.ones(1)
    local o = optim.SGD({ w }, { lr = 1 })
    t:step(o)
    t:update()
    assert.equal(2 ^ 126, t:get_scale())
    t:update(16)
    assert.equal(16, t:get_scale())
  end)

  it("keeps the state of several optimizers apart and takes one scale from all", function()
    local net1, opt1, loss1 = problem()
    local net2, opt2, loss2 = problem()
    local s = amp.GradScaler()
    s:scale(loss1() + loss2()):backward()
    moth.no_grad(function() net2.weight.grad:fill_(math.huge) end)
    local before1, before2 = net1.weight:detach():clone(), net2.weight:detach():clone()
    s:unscale_(opt1)
    s:step(opt1)
    s:step(opt2)
    s:update()
    assert.is_false(moth.equal(before1, net1.weight))
    assert.is_true(moth.equal(before2, net2.weight))
    assert.equal(32768, s:get_scale())
  end)

  it("trains in the order scale, unscale_, clip, step, update #M260", function()
    moth.manual_seed(0)
    local net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    local opt, s = optim.Adam(net:parameters(), { lr = 0.01 }), amp.GradScaler { init_scale = 1024 }
    local x, y = moth.randn(64, 8), moth.randint(1, 5, { 64 })
    local losses = {}
    for i = 1, 40 do
      opt:zero_grad()
      local loss = amp.autocast({ dtype = moth.float16 }, function() return F.cross_entropy(net(x), y) end)
      s:scale(loss):backward()
      s:unscale_(opt)
      local norm = nn.utils.clip_grad_norm_(net:parameters(), 0.5):item()
      assert.is_true(norm < 100) -- of the unscaled ones
      s:step(opt)
      s:update()
      losses[i] = loss:item()
    end
    assert.is_true(losses[40] < 0.7 * losses[1])
  end)

  it("saves what it needs to go on #M210 #M255", function()
    local s = amp.GradScaler { init_scale = 128, growth_interval = 2 }
    local _, opt, loss = problem()
    s:scale(loss()):backward()
    s:step(opt)
    s:update()
    local sd = s:state_dict()
    assert.same({ scale = 128, growth_factor = 2, backoff_factor = 0.5, growth_interval = 2, _growth_tracker = 1 }, sd)
    local t = amp.GradScaler()
    t:load_state_dict(sd)
    opt:zero_grad()
    t:scale(loss()):backward()
    t:step(opt)
    t:update()
    assert.equal(256, t:get_scale())
    assert.error_matches(function() t:load_state_dict({}) end, "was not enabled")
  end)

  it("does nothing with enabled = false #M261", function()
    local net, opt, loss = problem()
    local s = amp.GradScaler { enabled = false }
    local l = loss()
    assert.equal(l, s:scale(l))
    assert.equal(1, s:get_scale())
    l:backward()
    local plain, before = net.weight.grad:clone(), net.weight:detach():clone()
    s:unscale_(opt)
    s:unscale_(opt)
    assert.is_true(moth.equal(plain, net.weight.grad))
    s:step(opt)
    s:update()
    assert.is_false(moth.equal(before, net.weight))
    assert.same({}, s:state_dict())
    s:load_state_dict({})
  end)

  it("checks what it is given", function()
    assert.error_matches(function() amp.GradScaler { growth_factor = 1 } end, "growth_factor must be greater than 1")
    assert.error_matches(function() amp.GradScaler { backoff_factor = 1.5 } end,
      "backoff_factor must be between 0 and 1")
    assert.error_matches(function() amp.GradScaler { init_scael = 1 } end,
      "unknown option 'init_scael'; did you mean 'init_scale'")
    assert.error_matches(function() amp.GradScaler { init_scale = 0 } end, "must be a positive number")
    local s = amp.GradScaler()
    local _, opt, loss = problem()
    assert.error_matches(function() s:scale(3) end, "expected a tensor or a table of tensors")
    assert.error_matches(function() s:unscale_({}) end, "expected an optimizer")
    assert.error_matches(function() s:update() end, "no loss was scaled")
    s:scale(loss())
    assert.error_matches(function() s:step(opt) end, "has a gradient: call backward%(%) first")
    s:scale(loss()):backward()
    assert.error_matches(function() s:step(opt, function() end) end, "closure")
    assert.error_matches(function() s:update() end, "no gradients were checked")
    local half = moth.ones(2, { dtype = moth.float16, requires_grad = true })
    half.grad = moth.ones(2, { dtype = moth.float16 })
    assert.error_matches(function() s:unscale_(optim.SGD({ half }, { lr = 1 })) end,
      "gradient of a parameter is float16")
  end)

  it("saves small gradients of float16 from becoming 0; bfloat16 needs no scale #M259 #M261", function()
    local function gradient(dtype, s)
      local w = moth.ones(1, 1, { requires_grad = true })
      local x = moth.full({ 1, 1 }, 1e-8)
      local loss = amp.autocast({ dtype = dtype }, function() return (w:matmul(moth.ones(1, 1)):float() * x):sum() end)
      local opt = optim.SGD({ w }, { lr = 1 })
      if s then
        s:scale(loss):backward()
        s:unscale_(opt)
      else
        loss:backward()
      end
      return w.grad:item()
    end
    assert.equal(0, gradient(moth.float16))
    assert.is_true(math.abs(gradient(moth.float16, amp.GradScaler()) - 1e-8) < 1e-11)
    assert.is_true(math.abs(gradient(moth.bfloat16) - 1e-8) < 1e-10)
  end)

  it("is missed: gradients that became 0 are counted, and a step says so in debug mode #M263", function()
    local w = moth.ones(4, 4, { requires_grad = true })
    local opt = optim.SGD({ w }, { lr = 1 })
    local loss = amp.autocast({ dtype = moth.float16 }, function() return (moth.ones(2,
      4):matmul(w):float() * 1e-9):sum() end)
    loss:backward()
    local r = amp.gradient_report({ w })
    assert.same({ 16, 16, 0, 0 }, { r.elements, r.zero, r.infinite, r.nan })
    assert.is_truthy(tostring(r):find("100.0 %% zero.*GradScaler"))
    local said = {}
    local stderr = io.stderr
    io.stderr = { write = function(_, text) said[#said + 1] = text end } -- luacheck: ignore
    amp.set_debug(true)
    local ok, err = pcall(function()
      opt:step()
      opt:step()
    end)
    amp.set_debug(false)
    io.stderr = stderr -- luacheck: ignore
    assert.is_true(ok, err)
    assert.equal(1, #said)
    assert.is_truthy(said[1]:find("GradScaler", 1, true))
  end)

  it("unscales the rows of a sparse embedding", function()
    local e = nn.Embedding(10, 3, { sparse = true })
    local opt, s = optim.SGD(e:parameters(), { lr = 0.5 }), amp.GradScaler()
    local before = e.weight:detach():clone()
    s:scale(e(moth.tensor({ 2, 2, 7 }, { dtype = moth.int64 })):sum()):backward()
    s:step(opt)
    s:update()
    local change = before - e.weight:detach()
    assert.same({ 1, 0.5, 0 }, { change[2][1]:item(), change[7][1]:item(), change[1][1]:item() })
  end)
end)
