-- Normalisation, padding and further activations as modules, against values of PyTorch 2.
local moth = require "moth"
local nn = moth.nn
local F = nn.functional

local f64 = { dtype = moth.float64 }
local function T(data) return moth.tensor(data, f64) end
local function same(a, b, tolerance)
  local d = (a:detach() - b):abs():max():item()
  assert.is_true(d <= (tolerance or 1e-9), ("differs by %g: %s"):format(d, tostring(a)))
end
local function ramp(...)
  local shape, n = { ... }, 1
  for _, s in ipairs(shape) do n = n * s end
  return moth.arange(0, n, f64):reshape(shape)
end

describe("nn norms", function()
  it("LayerNorm gives rows of mean 0 and variance 1", function()
    local x = moth.randn({ 3, 4, 8 }, f64) * 5 + 100
    local y = nn.LayerNorm({ 4, 8 }, { dtype = moth.float64, eps = 0 })(x)
    same(y:mean({ 2, 3 }), moth.zeros({ 3 }, f64))
    same(y:var({ 2, 3 }, 0), moth.ones({ 3 }, f64))
    assert.equal("LayerNorm((4, 8), eps=1e-05, elementwise_affine=True)", tostring(nn.LayerNorm({ 4, 8 })))
    assert.is_nil(nn.LayerNorm(4, { bias = false }).bias)
  end)

  it("LayerNorm trains: gradients of input, weight and bias", function()
    local m = nn.LayerNorm(3, f64)
    local x = T({ { 1, 2, 4 } }):requires_grad_(true)
    m(x):backward(T({ { 1, 0, 0 } }))
    same(m.bias.grad, T({ 1, 0, 0 }))
    same(m.weight.grad, T({ -1.0690415, 0, 0 }), 1e-6)
    same(x.grad, T({ { 0.2290806, -0.3436213, 0.1145407 } }), 1e-5)
  end)

  it("RMSNorm divides by the root of the mean square", function()
    same(nn.RMSNorm(2, { dtype = moth.float64, eps = 0 })(T({ { 3, 4 } })), T({ { 3, 4 } }) / math.sqrt(12.5))
  end)

  it("GroupNorm and InstanceNorm agree where each channel is a group", function()
    local x = moth.randn({ 2, 6, 4, 5 }, f64)
    same(nn.GroupNorm(6, 6, f64)(x), nn.InstanceNorm2d(6, f64)(x))
    assert.has_error(function() nn.GroupNorm(4, 6) end)
  end)

  it("instance_norm with running statistics names an input without channels", function()
    assert.error_matches(function() nn.functional.instance_norm(T({ 1, 2 }), T({ 0 }), T({ 1 })) end,
      "expected %[samples, channels, %.%.%.%], got a shape of 1 dimensions")
  end)

  it("BatchNorm keeps running statistics in buffers and uses them in evaluation", function()
    local m = nn.BatchNorm1d(2, f64)
    local x = T({ { 1, 10 }, { 2, 20 }, { 3, 60 } })
    m(x)
    same(m.running_mean, T({ 0.2, 3 }))
    same(m.running_var, T({ 1, 0.9 + 70 })) -- 0.9 + 0.1 * the unbiased variance
    assert.equal(1, m.num_batches_tracked:item())
    m:eval()
    same(m(T({ { 0.2, 3 } })), T({ { 0, 0 } }))
    assert.equal(1, m.num_batches_tracked:item())
    local keys = m:state_dict()
    assert.is_not_nil(keys.running_mean)
    assert.has_error(function() m:train()(T({ { 1, 2 } })) end)
  end)

  it("BatchNorm2d normalises by channel, and its cumulative average counts all batches alike", function()
    local m = nn.BatchNorm2d(3, { dtype = moth.float64, momentum = false })
    local x = moth.randn({ 4, 3, 5, 5 }, f64)
    same(m(x):mean({ 1, 3, 4 }), moth.zeros({ 3 }, f64))
    m(x + 2)
    same(m.running_mean, x:mean({ 1, 3, 4 }) + 1)
    m:eval()(x)
    same(m.running_mean, x:mean({ 1, 3, 4 }) + 1)
  end)

  it("a cumulative average reads no value: the number of batches stays on its device", function()
    for _, name in ipairs { "BatchNorm1d", "InstanceNorm1d" } do
      local m = nn[name](3, { momentum = false, track_running_stats = true })
      m(moth.randn(4, 3, 2))
      m(moth.randn(4, 3, 2))
      assert.equal(2, m.num_batches_tracked:item())
      moth.fake_mode(function() -- a fake count has no value to read
        m.num_batches_tracked = moth.zeros({}, { dtype = moth.int64 })
        return m(moth.randn(4, 3, 2))
      end)
    end
  end)
end)

describe("padding", function()
  it("pads in four modes", function()
    local x = ramp(1, 4)
    same(F.pad(x, { 2, 1 }), T({ { 0, 0, 0, 1, 2, 3, 0 } }))
    same(F.pad(x, { 2, 1 }, "reflect"), T({ { 2, 1, 0, 1, 2, 3, 2 } }))
    same(F.pad(x, { 2, 1 }, "replicate"), T({ { 0, 0, 0, 1, 2, 3, 3 } }))
    same(F.pad(x, { 2, 1 }, "circular"), T({ { 2, 3, 0, 1, 2, 3, 0 } }))
    assert.same({ 1, 3, 6, 7 }, nn.ZeroPad2d(1)(ramp(1, 3, 4, 5)):size())
    same(nn.ConstantPad1d({ 1, 0 }, 9)(x), T({ { 9, 0, 1, 2, 3 } }))
  end)
end)

describe("order", function()
  it("sorts stably with NaN last, and gives positions from 1", function()
    local v, p = moth.sort(T({ 3, 0 / 0, 1, 3, -1 }))
    assert.same({ 5, 3, 1, 4, 2 }, p:totable())
    same(v:narrow(1, 1, 4), T({ -1, 1, 3, 3 }))
    local _, q = moth.topk(T({ 3, 7, 1, 7, -1 }), 3)
    assert.same({ 2, 4, 1 }, q:totable())
    assert.equal(1, (moth.kthvalue(T({ 3, 7, 1, 7, -1 }), 2)):item())
  end)

  it("agrees with itself for long rows and any number of columns", function()
    local x = moth.randn({ 500, 3 }, f64)
    local v, p = moth.sort(x, 1)
    assert.is_true((v:narrow(1, 2, 499) - v:narrow(1, 1, 499)):ge(0):all():item())
    same(x:gather(1, p), v, 0)
    local t = moth.topk(x, 70, 1)
    same(t, (moth.sort(x, 1, true)):narrow(1, 1, 70), 0)
  end)
end)

describe("activation modules", function()
  it("give PyTorch's values", function()
    local x = T({ -4, -1, 0, 2, 7 })
    same(nn.ReLU6()(x), T({ 0, 0, 0, 2, 6 }))
    same(nn.Hardsigmoid()(x), T({ 0, 1 / 3, 0.5, 5 / 6, 1 }))
    same(nn.Hardswish()(x), T({ 0, -1 / 3, 0, 5 / 3, 7 }))
    same(nn.Softsign()(x), T({ -0.8, -0.5, 0, 2 / 3, 0.875 }))
    same(nn.SELU()(T({ 1, -1 })), T({ 1.0507009873554805, -1.1113307378125625 }))
    same(nn.CELU(2)(T({ 1, -2 })), T({ 1, -1.2642411176571153 }))
    same(nn.PReLU(1, { init = 0.1, dtype = moth.float64 })(x), T({ -0.4, -0.1, 0, 2, 7 }))
    same(nn.GLU()(T({ 1, 2, 0, 0 })), T({ 0.5, 1 }))
  end)
end)
