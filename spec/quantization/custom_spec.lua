-- Observers and qconfigs of one's own, and what a port of PyTorch's tutorials calls beside the usual way.
local moth = require "moth"
local nn, q = moth.nn, moth.quantization

local function weight() return q.PerChannelMinMaxObserver { dtype = "int8" } end
local function small(activation, weights)
  local m = nn.Sequential(nn.Linear(6, 5)):eval()
  m.qconfig = q.QConfig { activation = activation, weight = weights or weight }
  return m
end

describe("quantization of one's own", function()
  it("a qconfig takes classes of observers, one's own, too", function()
    local Mine = nn.class("Mine", q.Observer)
    local calls = 0
    function Mine:update(x)
      calls = calls + 1
      return q.Observer.update(self, x)
    end
    local m, x = small(Mine), moth.randn(8, 6)
    local p = q.prepare(m)
    p(x)
    assert.equal(1, calls)
    assert.is_true(q.sqnr(m(x), q.convert(p)(x)) > 35)
    assert.error_matches(function() small(q.MinMaxObserver()) end, "each layer gets an observer of its own")
  end)

  it("what a qconfig gives is checked before anything is calibrated or trained", function()
    for _, case in ipairs {
      { function() return 3 end, nil, "layer '0': the qconfig's activation gave number, no observer" },
      { q.MinMaxObserver, function() return nn.Linear(2, 2) end, "weight gave Linear, no observer" },
      { function() return q.PerChannelMinMaxObserver { dtype = "uint8" } end, nil, "activations have one scale" },
      { q.MinMaxObserver, q.MinMaxObserver, "weights are symmetric int8; .* is per_tensor_affine of uint8" },
    } do
      local m = small(case[1], case[2])
      assert.error_matches(function() q.prepare(m) end, case[3])
    end
    local m = small(q.HistogramObserver):train()
    assert.error_matches(function() q.prepare_qat(m) end, "HistogramObserver, which does not round")
  end)

  it("observers refuse bounds beyond their dtype, odd constants and other channels", function()
    for _, o in ipairs { { quant_min = -1 }, { quant_max = 256 }, { dtype = "int8", quant_max = 128 } } do
      assert.error_matches(function() q.MinMaxObserver(o) end, "must be from %-?%d+ to %d+, as u?int8 holds")
    end
    for _, c in ipairs { 0, 1.5, 0 / 0 } do
      assert.error_matches(function() q.MovingAverageMinMaxObserver { averaging_constant = c } end,
        "above 0 and at most 1")
    end
    local o = weight()
    o(moth.randn(3, 4))
    assert.error_matches(function() o(moth.randn(5, 4)) end, "has seen 3 channels and now gets %[5, 4%]")
  end)

  it("prepare with a qconfig of training calibrates its observers", function()
    local m, x = nn.Sequential(nn.Linear(6, 5)):eval(), moth.randn(8, 6)
    m.qconfig = q.get_default_qat_qconfig()
    local p = q.prepare(m)
    p(x)
    assert.is_true(q.sqnr(m(x), q.convert(p)(x)) > 35)
  end)

  it("FakeQuantize takes an observer or its class", function()
    local f = q.FakeQuantize(q.MovingAverageMinMaxObserver)
    f(moth.tensor { 0, 255 })
    assert.equal(1, f.scale:item())
    assert.error_matches(function() q.FakeQuantize(nn.Linear(2, 2)) end,
      "expected an observer, or its class, got Linear")
  end)

  it("observers, rounding and the statistics of norms are switched off and on by apply", function()
    moth.manual_seed(1)
    local m = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()):train()
    m.qconfig = q.get_default_qat_qconfig()
    local t, x = q.prepare_qat(m), moth.randn(4, 2, 5, 5)
    t(x)
    local function numbers() return { t[1].input_observer.scale:item(), t[1].norm.running_mean[1]:item() } end
    local before = numbers()
    t:apply(q.disable_observer):apply(q.freeze_bn_stats)
    t:train()
    t(x * 3)
    assert.same(before, numbers())
    t:apply(q.enable_observer):apply(q.update_bn_stats)
    t(x * 3)
    local after = numbers()
    assert.is_true(after[1] ~= before[1] and after[2] ~= before[2])
    t:apply(q.disable_fake_quant):eval()
    local f = m:clone():eval()
    moth.no_grad(function()
      f[2].running_mean:copy_(t[1].norm.running_mean)
      f[2].running_var:copy_(t[1].norm.running_var)
      assert.is_true(q.sqnr(f(x), t(x)) > 100)
    end)
  end)

  it("models with PyTorch's stubs run as they are", function()
    local Net = nn.class("Net")
    function Net:__init() self.quant, self.fc, self.dequant = q.QuantStub(), nn.Linear(6, 5), q.DeQuantStub() end
    function Net:forward(x) return self.dequant(self.fc(self.quant(x))) end
    local m, x = Net():eval(), moth.randn(8, 6)
    m.qconfig = q.get_default_qconfig "fbgemm"
    local p = q.prepare(m)
    p(x)
    assert.is_true(q.sqnr(m(x), q.convert(p)(x)) > 35)
  end)

  it("compare takes models with several results, in tables", function()
    local Net = nn.class("Net")
    function Net:__init() self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2) end
    function Net:forward(x) return { h = self.a(x), deep = { self.b(x) }, best = self.b(x):argmax(2) }, 3 end
    local m, x = Net():eval(), moth.randn(4, 3)
    assert.is_true(q.compare(m, q.quantize_dynamic(m), x).output > 30)
    local other = q.quantize_dynamic(nn.Sequential(nn.Linear(3, 3)):eval())
    assert.error_matches(function() q.compare(m, other, x) end,
      "result 1: the first model gives %[4, 2%], the second %[4, 3%]")
  end)

  it("layers without elements stay as they are", function()
    local m = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 0)):eval()
    assert.equal("[2, 0]", tostring(q.quantize_dynamic(m)(moth.ones(2, 4)):size()))
    local none = nn.Sequential(nn.Linear(0, 3)):eval()
    assert.equal("[2, 3]", tostring(q.quantize_weights(none)(moth.ones(2, 0)):size()))
    local empty = q.quantize_dynamic(nn.Sequential(nn.Linear(3, 0)), { nn.Linear })
    assert.equal("[2, 0]", tostring(empty(moth.ones(2, 3)):size()))
    none[1].forward = function(_, x) return x end
    none[1].weight = nn.Parameter(moth.ones(3, 4))
    local function own() q.quantize_weights(none) end
    assert.error_matches(own, "no layer of Sequential can be quantised: '0' %(Linear%)")
    assert.error_matches(function() q.quantize_weights(nn.ReLU()) end, "no linear layer or embedding to quantise")
  end)
end)
