-- moth.quantization: observers, prepare and convert, training with rounding, weights of 4 bits, comparing; what
-- mistakes do to the figures.
local moth = require "moth"
local nn, q, F = moth.nn, moth.quantization, moth.nn.functional

local function mlp()
  return nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 40), nn.ReLU(), nn.Linear(40, 6))
end
local function cnn()
  return nn.Sequential(nn.Conv2d(2, 8, 3, { padding = 1 }), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 20, 3, { padding = "same" }), nn.BatchNorm2d(20), nn.ReLU(), nn.Flatten(), nn.Linear(20 * 16, 5))
end

-- A model that has seen data, in evaluation, and a batch.
local function trained(make, ...)
  moth.manual_seed(3)
  local m = make()
  for _ = 1, 4 do m(moth.randn(...)) end
  return m:eval(), moth.randn(...)
end

local function calibrated(m, x, config)
  m.qconfig = config or q.get_default_qconfig "x86"
  local p = q.prepare(m)
  for _ = 1, 3 do p(moth.randn(x:size())) end
  p(x)
  return q.convert(p)
end

describe("moth.quantization", function()
  it("fake_quantize rounds to the grid; its derivative is 1 inside, 0 outside #M446", function()
    local x = moth.tensor({ -9, -0.26, 0.24, 0.25, 0.35, 9 }, { requires_grad = true })
    local y = F.fake_quantize(x, 0.1, 0, -128, 127)
    local want = moth.tensor { -9, -0.3, 0.2, 0.2, 0.3, 9 } -- 2.5 and 3.5 to even, as float32 has them
    assert.is_true(moth.allclose(F.fake_quantize(moth.tensor { -9, -0.26, 0.24, 9 }, 0.1, 0, -128, 127),
      moth.tensor { -9, -0.3, 0.2, 9 }))
    assert.is_true(y:sub(want):abs():le(0.1001):all():item())
    F.fake_quantize(x, 0.1, 3, -8, 7):sum():backward()
    assert.same({ 0, 1, 1, 1, 1, 0 }, x.grad:tolist())
    local rows = moth.fake_quantize_per_channel_affine(moth.tensor { { 0.26 }, { 0.26 } }, moth.tensor { 0.1, 0.5 },
      moth.zeros(2), 1, -8, 7)
    assert.is_true(moth.allclose(rows, moth.tensor { { 0.3 }, { 0.5 } }))
    assert.error_matches(function() moth.fake_quantize_per_tensor_affine(x, 0.1, 0, 5, -5) end, "must not be above")
  end)

  it("the ops quantise and dequantise", function()
    local x = moth.tensor { { -1, 0.02, 1 }, { 4, -20, 0.1 } }
    local scale, zero = moth.tensor { 0.01, 0.1 }, moth.tensor { 0, 3 }
    local y = moth.quantize_per_channel(x, scale, zero, 1, moth.int8)
    assert.same({ { -100, 2, 100 }, { 43, -128, 4 } }, y:tolist())
    local back = moth.tensor { { -1, 0.02, 1 }, { 4, -13.1, 0.1 } }
    assert.is_true(moth.allclose(moth.dequantize(y, scale, zero, 1), back))
    assert.same({ 0, 128, 255 }, moth.quantize_per_tensor(moth.tensor { -9, 0, 9 }, 0.01, 128, moth.uint8):tolist())
    assert.error_matches(function() moth.quantize_per_tensor(x, 1, 0, moth.int32) end, "int8 or uint8")
  end)

  it("qconfigs are chosen by backend #M439", function()
    local c = q.get_default_qat_qconfig "fbgemm"
    local a, w = c.activation("linear").observer, c.weight("linear").observer
    assert.same({ "per_tensor_affine", "uint8", 0, 255 }, { a.qscheme, a.dtype.name, a.quant_min, a.quant_max })
    assert.same({ "per_channel_symmetric", "int8" }, { w.qscheme, w.dtype.name })
    assert.equal("per_tensor_symmetric", q.get_default_qconfig("qnnpack").weight("linear").qscheme)
    assert.error_matches(function() q.get_default_qconfig "nvidia" end, "there is no backend 'nvidia': fbgemm")
  end)

  it("observers: extremes, means of them, histograms, channels; zeros have scale 1", function()
    local o = q.MinMaxObserver()
    o(moth.tensor { -1, 3 })
    o(moth.tensor { 0, 4.1 })
    local scale, zero = o:calculate_qparams()
    assert.near(5.1 / 255, scale:item(), 1e-7)
    assert.equal(50, zero:item())
    local m = q.MovingAverageMinMaxObserver { averaging_constant = 0.5 }
    m(moth.tensor { 0, 4 })
    m(moth.tensor { 0, 8 })
    assert.near(6, m.max_val:item(), 1e-6)
    local c = q.PerChannelMinMaxObserver { dtype = "int8" }
    c(moth.tensor { { 1, -12.7 }, { 0, 0 } })
    assert.is_true(moth.allclose(c:calculate_qparams(), moth.tensor { 0.1, 1 }))
    -- of numbers with long tails the range with the least error is not that of the extremes
    local h, all = q.HistogramObserver { quant_max = 15 }, q.MinMaxObserver { quant_max = 15 }
    local x = moth.randn(4000):pow(3)
    for _, see in ipairs { h, all } do
      see(x:narrow(1, 1, 2000))
      see(x)
    end
    local function error_of(see)
      local s, z = see:calculate_qparams()
      return (moth.fake_quantize(x, s, z, 0, 15) - x):square():sum():item()
    end
    assert.is_true(error_of(h) < 0.8 * error_of(all), ("%g, %g"):format(error_of(h), error_of(all)))
    assert.error_matches(function() q.MinMaxObserver():calculate_qparams() end, "has seen nothing")
  end)

  for name, make in require "moth.each" { mlp = { mlp, 16, 20 }, cnn = { cnn, 4, 2, 8, 8 } } do
    it(("a static %s: prepare, calibrate, convert; folded, a quarter of the bytes #M443 #M441"):format(name), function()
      local m, x = trained(unpack(make))
      local s8 = calibrated(m, x)
      local d8 = q.quantize_dynamic(m, { nn.Linear }, { dtype = moth.int8 })
      local t = q.compare(m, s8, x)
      assert.is_true(t.output > 32, tostring(t))
      assert.is_true(q.compare(m, d8, x).output > 35)
      assert.is_nil(tostring(s8):find("BatchNorm"))
      for _, row in ipairs(t) do
        assert.is_true(row.output > 30 and row.bytes < 0.65 * row.float_bytes, tostring(t))
        assert.is_true(t[1].output <= row.output)
      end
      assert.is_truthy(tostring(t):find("layer +weight dB +output dB"))
    end)
  end

  it("quantize_dynamic replaces Linear and Embedding; the state dict is plain, and loads #M442", function()
    moth.manual_seed(1)
    local Net = nn.class("Net")
    function Net:__init() self.emb, self.fc = nn.Embedding(50, 32), nn.Linear(32, 7) end
    function Net:forward(i) return self.fc(self.emb(i):mean(2)) end
    local m, x = Net(), moth.randint(1, 51, { 5, 9 })
    local m8 = q.quantize_dynamic(m, { nn.Linear, nn.Embedding })
    assert.is_true(q.sqnr(m(x), m8(x)) > 38)
    local sd = m8:state_dict()
    assert.same({ "int8", "int8", "float32" },
      { sd["fc.weight"]:dtype().name, sd["emb.weight"]:dtype().name, sd["fc.scale"]:dtype().name })
    local other = q.quantize_dynamic(Net(), { nn.Linear, nn.Embedding })
    assert.is_true(q.sqnr(m8(x), other(x)) < 20)
    other:load_state_dict(sd)
    assert.is_true(moth.equal(m8(x), other(x)))
    assert.is_true(moth.equal(m8(x), m8:clone()(x)))
    assert.error_matches(function() q.quantize_dynamic(m, { nn.LayerNorm }) end, "nn.LayerNorm, which cannot be")
    assert.error_matches(function() q.quantize_dynamic(m, nil, { dtype = moth.int32 }) end, "expected moth.int8")
  end)

  it("weights of 4 bits in groups: bounded error, keep #M445", function()
    local m, x = trained(function()
      return nn.Sequential(nn.Linear(200, 130), nn.ReLU(), nn.Linear(130, 129), nn.ReLU(), nn.Linear(129, 9))
    end, 6, 200)
    local m4 = q.quantize_weights(m, { bits = 4, group = 32, keep = { "4" } })
    local t = q.compare(m, m4, x)
    assert.equal(2, #t)
    for _, row in ipairs(t) do assert.is_true(row.weight > 18 and row.bytes < 0.18 * row.float_bytes, tostring(t)) end
    assert.is_true(t.output > 18, tostring(t))
    assert.is_true(moth.equal(m[5].weight, m4[5].weight))
    local w = m[1].weight
    local low, scale = q.int4_weight(w, 32)
    local off = (q.dequantize_int4(low, scale, 32, 200) - w):abs()
    local bound = scale:abs():repeat_interleave(32, 2):narrow(2, 1, 200)
    assert.is_true(off:le(bound * 2.01):all():item())
    assert.error_matches(function() q.quantize_weights(m, { group = 48 }) end, "multiple of 128")
    assert.error_matches(function() q.quantize_weights(m, { keep = { "head" } }) end, "no layer 'head'")
    assert.error_matches(function() q.quantize_weights(m, { bits = 3 }) end, "4 or 8")
  end)

  it("prepare_qat wants training, and training lowers the loss; convert is near it #M440 #M441", function()
    local m, x = trained(cnn, 8, 2, 8, 8)
    m.qconfig = q.get_default_qat_qconfig "fbgemm"
    assert.error_matches(function() q.prepare_qat(m) end, "call train")
    assert.error_matches(function() q.prepare(m:train()) end, "call eval")
    local t = q.prepare_qat(m:train())
    local y, first, last = moth.randint(1, 6, { 8 }), nil, nil
    local opt = moth.optim.SGD(t:parameters(), { lr = 0.05 })
    for _ = 1, 8 do
      opt:zero_grad()
      local loss = F.cross_entropy(t(x), y)
      loss:backward()
      opt:step()
      first, last = first or loss:item(), loss:item()
    end
    assert.is_true(last < 0.7 * first, ("%g, %g"):format(first, last))
    assert.error_matches(function() q.convert(t) end, "call eval")
    t:eval()
    local t8 = q.convert(t)
    assert.is_true(q.sqnr(t(x), t8(x)) > 38, q.sqnr(t(x), t8(x)))
    local four = mlp()
    four.qconfig = q.get_default_qat_qconfig("x86", { weight_bits = 4 })
    local f = q.prepare_qat(four)
    f(moth.randn(4, 20)):sum():backward()
    assert.is_truthy(tostring(q.convert(f:eval())):find("Int4Linear"))
  end)

  it("weights of 4 bits that are clipped have a derivative: the scale follows them", function()
    local w = moth.tensor { { -9, 8, 0.4, 1.2 }, { 1, 2, 3, -4 } }
    local own = w:clone():requires_grad_()
    local y = q.GroupFakeQuantize(32)(own)
    y:sum():backward()
    assert.is_true(moth.equal(own.grad, moth.ones(2, 4)))
    local low, scale = q.int4_weight(w, 32)
    assert.is_true(moth.allclose(y, q.dequantize_int4(low, scale, 32, 4)))
  end)

  -- A model whose code calls its layers in an order that no Sequential shows.
  local Block = nn.class("Block")
  function Block:__init()
    self.conv1, self.bn1 = nn.Conv2d(2, 8, 3, { padding = 1, bias = false }), nn.BatchNorm2d(8)
    self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, { padding = 1 }), nn.BatchNorm2d(8, { affine = false })
    self.conv3, self.bn3 = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
    self.relu, self.once = nn.ReLU(), nn.ReLU()
    self.fc = nn.Linear(8, 3)
  end
  function Block:forward(x)
    local a = self.relu(self.bn1(self.conv1(x)))
    local b = self.relu(self.once(self.bn2(self.conv2(a))) + a)
    local c = self.conv3(b)
    return self.fc((self.bn3(c) + c):mean { 3, 4 }) -- conv3 is read twice: its norm stays
  end
  local function of_class(m, name)
    local n = 0
    for _, child in ipairs(m:modules()) do n = n + (child.__name == name and 1 or 0) end
    return n
  end

  it("prepare with example_inputs folds batch norms by the exported graph #M443", function()
    local m, x = trained(Block, 6, 2, 8, 8)
    m.qconfig = q.get_default_qconfig()
    local p = q.prepare(m, { x })
    p(x)
    local s8 = q.convert(p)
    assert.equal(1, of_class(s8, "BatchNorm2d"), tostring(s8))
    assert.equal(1, of_class(s8, "ReLU"))
    assert.is_true(s8.conv2.spec.relu)
    assert.is_false(s8.conv1.spec.relu) -- its ReLU is called in another place, too
    assert.is_true(q.sqnr(m(x), s8(x)) > 35, q.sqnr(m(x), s8(x)))
    local t = q.compare(m, s8, x)
    for _, row in ipairs(t) do assert.is_true(row.output > 30, tostring(t)) end
    m:train()
    m.qconfig = q.get_default_qat_qconfig()
    local trained8 = q.prepare_qat(m, x)
    assert.is_true(m.training and m.bn1.training and trained8.training)
    trained8(x):sum():backward()
    assert.equal(3, of_class(trained8:eval(), "Identity"))
    assert.equal(1, of_class(q.convert(trained8), "BatchNorm2d"))
  end)

  it("a model that does not export has its neighbours in Sequential folded, and says so", function()
    local Net = nn.class("Net")
    function Net:__init() self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()) end
    function Net:forward(v)
      local y = self.body(v)
      return y:sum():item() > 0 and y or y * 2
    end
    local m, x = trained(Net, 2, 1, 6, 6)
    m.qconfig = q.get_default_qconfig()
    local err, said = io.stderr, ""
    io.stderr = { write = function(_, line) said = said .. line end } -- luacheck: ignore
    local ok, p = pcall(q.prepare, m, x)
    io.stderr = err -- luacheck: ignore
    assert.is_true(ok, tostring(p))
    assert.is_truthy(said:find("does not export, only neighbours in Sequential are folded", 1, true))
    assert.equal(0, of_class(p, "BatchNorm2d"))
  end)

  local function of(activation, more) -- a qconfig with this observer of activations
    return q.QConfig { activation = function() return activation(more) end,
      weight = function() return q.PerChannelMinMaxObserver { dtype = "int8" } end }
  end

  it("observers leave out batches with inf and nan; errors say so", function()
    local m, x = trained(mlp, 16, 20)
    for _, observer in ipairs { q.MinMaxObserver, q.MovingAverageMinMaxObserver, q.HistogramObserver } do
      m.qconfig = of(observer)
      for _, odd in ipairs { 0 / 0, 1 / 0, -1 / 0 } do
        local bad = x:clone()
        bad[3][4] = odd
        local p = q.prepare(m)
        p(bad)
        assert.error_matches(function() q.convert(p) end, "layer '0' has seen inf or nan in all batches %(1%)")
        p(x)
        p(bad)
        assert.is_true(q.sqnr(m(x), q.convert(p)(x)) > 32)
      end
    end
    moth.no_grad(function() m[1].weight[1][1] = 0 / 0 end)
    local p = q.prepare(m)
    p(x)
    assert.error_matches(function() q.convert(p) end, "weight of layer '0' has elements that are inf or nan")
  end)

  it("activations of int8 are those of uint8; wrong qconfigs and models are refused", function()
    local m, x = trained(mlp, 16, 20)
    local wide = calibrated(m, x, of(q.MinMaxObserver, { dtype = "int8" }))
    assert.is_true(q.sqnr(m(x), wide(x)) > 35)
    m.qconfig = "x86"
    assert.error_matches(function() q.prepare(m) end, "qconfig of the model is no QConfig, but string")
    m.qconfig = q.QConfig { activation = function() return q.MinMaxObserver() end,
      weight = function() return q.PerChannelMinMaxObserver { dtype = "int8", ch_axis = 2 } end }
    assert.error_matches(function() q.prepare(m) end, "ch_axis must be 1, got 2")
    assert.error_matches(function() q.quantize_dynamic(wide) end, "quantised already")
    wide.qconfig = q.get_default_qconfig()
    assert.error_matches(function() q.prepare(wide) end, "quantised already")
  end)

  it("training with rounding goes on from a state dict, observers and all", function()
    local m, x = trained(mlp, 16, 20)
    m.qconfig = q.get_default_qat_qconfig()
    local a, b = q.prepare_qat(m:train()), q.prepare_qat(m)
    a(x)
    b:load_state_dict(a:state_dict())
    assert.is_true(moth.equal(a:eval()(x), b:eval()(x)))
    assert.is_true(moth.equal(q.convert(a)(x), q.convert(b)(x)))
  end)

  it("a GPT, whose head is its embedding, is calibrated and converted", function()
    moth.manual_seed(1)
    local m = moth.models.GPT { vocab_size = 30, n_layer = 1, n_head = 2, n_embd = 32, block_size = 16 }:eval()
    local tokens = moth.randint(1, 31, { 2, 8 })
    m.qconfig = q.get_default_qconfig()
    local p = q.prepare(m)
    assert.is_true(moth.allclose((m(tokens)), (p(tokens)), 1e-5, 1e-5))
    assert.is_true(q.sqnr((m(tokens)), (q.convert(p)(tokens))) > 32)
  end)

  it("qconfig: a child's overrides, false leaves a layer float; errors name the layer", function()
    local m, x = trained(mlp, 16, 20)
    m.qconfig = q.get_default_qconfig()
    m[5].qconfig = false
    local p = q.prepare(m)
    assert.error_matches(function() q.convert(p) end, "layer '0' has seen nothing")
    p(x)
    local s8 = q.convert(p)
    assert.is_truthy(tostring(s8):find("%(4%): Linear"))
    assert.error_matches(function() q.convert(m) end, "no prepared layer")
    assert.error_matches(function() q.prepare(mlp():eval()) end, "no module has a qconfig")
    assert.error_matches(function() q.compare(m, m, x) end, "no quantised layer")
  end)

  it("conv1d, padding 'same', dilation, groups; fuse_modules by name", function()
    local m, x = trained(function()
      return nn.Sequential(nn.Conv1d(4, 12, 3, { padding = "same", dilation = 2 }), nn.BatchNorm1d(12), nn.ReLU(),
        nn.Conv1d(12, 12, 5, { groups = 3, stride = 2 }))
    end, 3, 4, 40)
    local s8 = calibrated(m, x)
    assert.is_truthy(tostring(s8):find("QuantizedConv1d"))
    assert.is_true(q.compare(m, s8, x).output > 33, tostring(q.compare(m, s8, x)))
    local Net = nn.class("Net")
    function Net:__init() self.conv, self.bn = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4) end
    function Net:forward(v) return self.bn(self.conv(v)):relu() end
    local net, image = trained(Net, 2, 1, 6, 6)
    local fused = q.fuse_modules(net, { { "conv", "bn" } })
    assert.is_true(moth.allclose(net(image), fused(image), 1e-4, 1e-5))
    assert.is_truthy(tostring(fused):find("Identity"))
    assert.error_matches(function() q.fuse_modules(net, { { "bn", "conv" } }) end, "expected a convolution")
  end)

  it("export, compile, the edge runtime", function()
    local m, x = trained(cnn, 4, 2, 8, 8)
    local s8 = calibrated(m, x)
    local path = os.tmpname()
    local ep = moth.export(s8, { x })
    assert.is_nil(tostring(ep):find("pack_int8"))
    moth.export.save(ep, path)
    local again = moth.export.load(path)
    os.remove(path)
    assert.is_true(moth.equal(s8(x), again(x)))
    local compiled = moth.compile(s8)
    moth.no_grad(function()
      for _ = 1, 3 do assert.is_true(moth.equal(s8(x), compiled(x))) end
    end)
    local m4 = q.quantize_weights(m, { group = 32 })
    assert.is_true(moth.equal(m4(x), moth.export(m4, { x })(x)))
    for _, made in ipairs { s8, q.quantize_dynamic(m), m4 } do
      moth.edge.export(moth.export(made, { x }), path)
      assert.is_close(moth.edge.load(path)(x), made(x)) -- an edge file is frozen: its norms are folded
    end
    os.remove(path)
  end)

  it("ONNX: static layers are QuantizeLinear and DequantizeLinear, others what they are made of", function()
    local m, x = trained(cnn, 4, 2, 8, 8)
    local path = os.tmpname()
    for name, made in require "moth.each" { static = calibrated(m, x), int4 = q.quantize_weights(m, { group = 32 }) } do
      moth.onnx.export(made, x, path)
      local f = io.open(path, "rb")
      local text = f:read("*a")
      f:close()
      assert.equal(name == "static", text:find("DequantizeLinear", 1, true) ~= nil, name)
      local session = moth.onnx.InferenceSession(path)
      local y = session:run(nil, { [session:get_inputs()[1].name] = x })
      assert.is_true(q.sqnr(made(x), y[1]) > 35, name)
    end
    os.remove(path)
  end)

  -- What accuracy does not notice (docs/quantization.md).
  it("finds planted mistakes by SQNR", function()
    local m, x = trained(mlp, 64, 20)
    local s8 = calibrated(m, x)
    local good = q.sqnr(m(x), s8(x))
    local function with(change)
      local bad = s8:clone()
      for _, layer in ipairs(bad:modules()) do
        if layer.input_scale then change(layer) end
      end
      bad:load_state_dict(bad:state_dict()) -- the numbers are read again
      return q.sqnr(m(x), bad(x))
    end
    assert.equal(good, with(function() end))
    local found = {
      zero = with(function(l)
        rawset(l, "forward", function(_, v)
          local bytes = moth.quantize_per_tensor(v, l.input_scale:item(), l.input_zero_point:item(), moth.uint8)
          return moth.linear_int8(bytes, l.weight, l.scale, l.bias, l.input_scale:item(),
            l.input_zero_point:item() + 1, l.spec.relu)
        end)
      end),
      floor = with(function(l)
        local w = m:get_submodule(l.spec.path).weight:detach()
        l.weight:copy_((w / l.scale:view(-1, 1)):floor():clamp(-127, 127))
      end),
      scale = with(function(l) l.scale:copy_(l.scale:roll(1, 1)) end),
    }
    m.qconfig = q.get_default_qconfig()
    local p = q.prepare(m)
    p(x:narrow(1, 1, 1) * 0.3)
    found.calibration = q.sqnr(m(x), q.convert(p)(x))
    for name, value in require "moth.each"(found) do
      assert.is_true(value < good - 6, ("%s: %.1f dB, the right one has %.1f"):format(name, value, good))
    end
  end)
end)
