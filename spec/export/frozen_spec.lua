-- Exported programs that run by plans: norms in convolutions, what comes behind a kernel; against the calls in float64.
local moth = require "moth"
local B = require "moth_lua"
local nn, F = moth.nn, moth.nn.functional

local function randomized(model)
  for name, b in model:named_buffers() do
    if name:find "running_mean" then b:normal_(0, 0.3) end
    if name:find "running_var" then b:uniform_(0.3, 2) end
  end
  moth.no_grad(function()
    for name, p in model:named_parameters() do
      if name:find "norm" or name:find "%.%d+%.%a+$" and p:dim() == 1 then p:uniform_(0.5, 1.5) end
    end
  end)
  return model:eval()
end

local function plan_of(ep)
  if not ep.plans then return nil end
  for _, key in ipairs(ep.plans.order) do
    local plan = ep.plans.seen[key]
    if plan ~= true then return plan end
  end
end

local function steps_of(ep) return tostring(plan_of(ep)) end

-- The program by its plan is what the model gives in float64; returns the program.
local function same(model, x, tolerance)
  local ep = moth.export(model, { x })
  local got
  moth.no_grad(function()
    for _ = 1, 3 do got = ep(x) end
  end)
  assert.is_truthy(plan_of(ep))
  local was = x:dtype()
  local want = moth.no_grad(model:to(moth.float64), x:to(moth.float64))
  model:to(was)
  local off = (got:to(moth.float64) - want):abs():max():item() / (want:abs():max():item() + 1e-30)
  assert.is_true(off < (tolerance or 2e-6), ("off by %g"):format(off))
  return ep
end

local function has_norm(ep) return steps_of(ep):find "batch_norm" ~= nil end

local acts = {
  relu = F.relu, relu6 = F.relu6, silu = F.silu, hardswish = F.hardswish, gelu = F.gelu,
  clamp = function(y) return y:clamp(-0.3, 0.7) end,
}

describe("a frozen program", function()
  before_each(function() moth.manual_seed(7) end)

  it("has the norm in the convolution, and the activation behind it", function()
    for name, act in pairs(acts) do
      local model = nn.Sequential(nn.Conv2d(3, 8, 3, { padding = 1, bias = name == "relu" }), nn.BatchNorm2d(8))
      local whole = nn.Module()
      whole.body = model
      whole.forward = function(self, x) return act(self.body(x)) end
      local ep = same(randomized(whole), moth.randn(2, 3, 9, 11))
      assert.is_false(has_norm(ep))
      assert.equal(1, B.compile.plan_facts(plan_of(ep)).steps, name)
    end
  end)

  -- c, k, kernel, stride, padding, dilation, groups, h, w
  for _, s in ipairs {
    { 1, 5, 3, 1, 1, 1, 1, 7, 7 }, { 3, 16, 3, 2, 1, 1, 1, 15, 17 }, { 16, 16, 3, 1, 1, 1, 16, 14, 14 },
    { 24, 24, 3, 2, 1, 1, 24, 15, 15 }, { 20, 20, 3, 1, 1, 1, 20, 7, 7 }, { 18, 18, 3, 2, 1, 1, 18, 7, 7 },
    { 8, 16, 3, 1, 1, 1, 8, 33, 37 }, { 6, 6, 5, 1, 2, 1, 6, 12, 19 }, { 6, 6, 5, 2, 2, 1, 6, 13, 40 },
    { 7, 7, 3, 1, 2, 2, 7, 20, 20 }, { 16, 32, 1, 1, 0, 1, 1, 50, 50 }, { 32, 48, 1, 1, 0, 1, 1, 7, 7 },
    { 64, 64, 1, 1, 0, 1, 1, 28, 28 }, { 64, 64, 1, 2, 0, 1, 1, 13, 13 }, { 32, 32, 1, 1, 0, 1, 2, 40, 40 },
    { 16, 24, 3, 1, 1, 1, 1, 30, 31 }, { 128, 64, 3, 1, 1, 1, 1, 7, 7 }, { 12, 12, 3, 1, 1, 1, 4, 10, 10 },
    { 5, 9, 3, 1, 0, 2, 1, 20, 21 }, { 3, 20, 7, 2, 3, 1, 1, 40, 40 }, { 4, 4, { 1, 5 }, 1, { 0, 2 }, 1, 4, 9, 30 },
  } do
    local c, k, kernel, stride, padding, dilation, groups, h, w = unpack(s)
    local label = ("%d to %d, %s, stride %d, dilation %d, %d groups, %dx%d"):format(c, k, type(kernel) == "table"
      and "1x5" or kernel, stride, dilation, groups, h, w)
    it("computes convolutions with a norm and relu6: " .. label, function()
      for _, dtype in ipairs { moth.float32, moth.float64 } do
        for _, bias in ipairs { false, true } do
          local model = nn.Sequential(nn.Conv2d(c, k, kernel, { stride = stride, padding = padding,
            dilation = dilation, groups = groups, bias = bias }), nn.BatchNorm2d(k), nn.ReLU6())
          local x = moth.randn(2, c, h, w)
          same(randomized(model):to(dtype), x:to(dtype), dtype == moth.float64 and 1e-13 or 3e-6)
        end
      end
    end)
  end

  it("adds a residual, then relu, behind the last convolution", function()
    local model = nn.Module()
    model.a = nn.Sequential(nn.Conv2d(8, 8, 3, { padding = 1, bias = false }), nn.BatchNorm2d(8), nn.ReLU())
    model.b = nn.Sequential(nn.Conv2d(8, 8, 3, { padding = 1, bias = false }), nn.BatchNorm2d(8))
    model.down = nn.Sequential(nn.Conv2d(8, 8, 1, { bias = false }), nn.BatchNorm2d(8))
    model.forward = function(self, x)
      local y = self.b(self.a(x)) + x
      return F.relu(self.b(self.a(F.relu(y))) + self.down(y))
    end
    local ep = same(randomized(model), moth.randn(1, 8, 12, 13))
    assert.is_false(has_norm(ep))
  end)

  it("has norms in transposed and other convolutions, and in linear", function()
    same(randomized(nn.Sequential(nn.ConvTranspose2d(6, 8, 3, { stride = 2, groups = 2 }), nn.BatchNorm2d(8),
      nn.ReLU())), moth.randn(2, 6, 5, 6))
    same(randomized(nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.SiLU())), moth.randn(2, 3, 20))
    same(randomized(nn.Sequential(nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.ReLU())), moth.randn(1, 2, 5, 6, 7))
    same(randomized(nn.Sequential(nn.Linear(12, 9), nn.BatchNorm1d(9), nn.ReLU())), moth.randn(5, 12))
  end)

  it("makes other norms a product and a sum", function()
    local model = nn.Module()
    model.conv, model.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
    model.first = nn.BatchNorm2d(3, { affine = false })
    model.forward = function(self, x)
      local y = self.conv(self.first(x))
      return F.relu(self.norm(y)) + y -- which is read twice
    end
    assert.is_false(has_norm(same(randomized(model), moth.randn(2, 3, 8, 8))))
  end)

  it("keeps a linear's last dimension apart from a norm's channels", function()
    local model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(4), nn.ReLU())
    same(randomized(model), moth.randn(3, 4, 6))
  end)

  it("runs norms in training call by call", function()
    local model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model:train()
    local ep = moth.export(model, { moth.randn(2, 3, 6, 6) })
    local x = moth.randn(2, 3, 6, 6)
    local before = ep.tensors["1.running_mean"] or ep.tensors["2.running_mean"]
    local was = before:clone()
    moth.no_grad(function()
      for _ = 1, 4 do ep(x) end
    end)
    assert.is_nil(plan_of(ep))
    assert.is_true((before - was):abs():max():item() > 0)
  end)

  it("sees weights that were written to", function()
    local model = randomized(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    local x = moth.randn(1, 3, 6, 6)
    local ep = moth.export(model, { x })
    local function check()
      local got = ep(x)
      assert.is_true((got - model(x)):abs():max():item() < 1e-5)
    end
    moth.no_grad(function()
      for _, change in ipairs {
        function() end, function() model[1].weight:mul_(2) end, function() model[2].running_var:fill_(4) end,
        function() model[2].weight:add_(1) end,
      } do
        for _ = 1, 3 do check() end
        local plan = plan_of(ep)
        assert.is_truthy(plan)
        check()
        assert.equal(plan, plan_of(ep)) -- the model's own calls have written to nothing
        change()
        check()
      end
    end)
  end)

  it("records gradients where they are wanted, and lets modes see its calls", function()
    local model = randomized(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    local x = moth.randn(1, 3, 6, 6)
    local ep = moth.export(model, { x })
    moth.no_grad(function()
      for _ = 1, 3 do ep(x) end
    end)
    local y = ep(x)
    assert.is_true(y:requires_grad())
    y:sum():backward()
    local own = moth.autograd.grad(model(x):sum(), { model[1].weight })
    assert.is_true((model[1].weight.grad - own):abs():max():item() < 1e-4)
    local xg = x:clone():requires_grad_(true)
    assert.is_true(ep(xg):requires_grad())
    local function low(fn)
      return moth.no_grad(function()
        return moth.autocast({ dtype = moth.bfloat16 }, function() return fn(x) end):float()
      end)
    end
    assert.is_true(moth.equal(low(ep), low(model)))
  end)

  it("has a plan for each size, and takes tensors of any strides", function()
    local model = randomized(nn.Sequential(nn.Conv2d(3, 4, 3, { padding = 1 }), nn.BatchNorm2d(4), nn.ReLU()))
    local batch, size = moth.Dim("batch", { min = 1, max = 8 }), moth.Dim("size", { min = 4, max = 64 })
    local ep = moth.export(model, { moth.randn(2, 3, 8, 8) }, { dynamic_shapes = { { [1] = batch, [4] = size } } })
    moth.no_grad(function()
      for _ = 1, 3 do
        for _, s in ipairs { { 1, 8 }, { 3, 9 }, { 2, 30 } } do
          local x = moth.randn(s[1], 3, 8, s[2])
          assert.is_true((ep(x) - model(x)):abs():max():item() < 1e-5)
          local strided = moth.randn(8, s[2], s[1], 3):permute(3, 4, 1, 2)
          assert.is_true((ep(strided) - model(strided)):abs():max():item() < 1e-5)
        end
      end
    end)
    assert.equal(3, #ep.plans.order)
  end)

  it("of an ONNX session keeps the tensors that it needs alone, and lets go of them", function()
    local path = os.tmpname()
    local model = randomized(nn.Sequential(nn.Conv2d(32, 256, 3, { padding = 1 }), nn.BatchNorm2d(256), nn.ReLU()))
    local x = moth.randn(1, 32, 8, 8)
    moth.onnx.export(model, { x }, path)
    local weights = 32 * 256 * 9 * 4
    local function live()
      collectgarbage()
      collectgarbage()
      return B.memory_stats().live
    end
    local began = live()
    local function run()
      local session = moth.onnx.InferenceSession(path)
      local name = session:get_inputs()[1].name
      for _ = 1, 3 do
        local got = session:run(nil, { [name] = x })[1]
        assert.is_true((got - moth.no_grad(model, x)):abs():max():item() < 1e-4)
        assert.is_true(live() - began < 1.5 * weights)
      end
    end
    run()
    assert.is_true(live() - began < 0.5 * weights)
    os.remove(path)
  end)

  it("leaves half precision as it is", function()
    for _, dtype in ipairs { moth.float16, moth.bfloat16 } do
      local model = randomized(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())):to(dtype)
      local x = moth.randn(2, 3, 9, 9):to(dtype)
      local ep = moth.export(model, { x })
      moth.no_grad(function()
        local want = model(x)
        for _ = 1, 3 do
          assert.is_true((ep(x):float() - want:float()):abs():max():item() < 0.05)
        end
      end)
    end
  end)
end)
