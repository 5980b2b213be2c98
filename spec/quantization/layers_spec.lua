-- Layers that are not plain ones: with hooks, parametrizations, masks, functions of their own; and what is exported
-- before it is converted.
local moth = require "moth"
local nn, q = moth.nn, moth.quantization

local function ways(m, x)
  m.qconfig = q.get_default_qconfig "x86"
  local p = q.prepare(m)
  p(x)
  local out = { dynamic = q.quantize_dynamic(m), static = q.convert(p), bits8 = q.quantize_weights(m, { bits = 8 }) }
  m.qconfig = q.get_default_qat_qconfig "x86"
  local t = q.prepare_qat(m:clone():train())
  moth.no_grad(t, x)
  out.trained = q.convert(t:eval())
  return out
end

local function each_way(m, x, fn)
  local want = m:eval()(x)
  for name, got in pairs(ways(m, x)) do
    assert.is_true(q.sqnr(want, got(x)) > 35, name)
    fn(got, name)
  end
end

describe("quantization of layers", function()
  it("with hooks: the layers in their place have them, and are not folded with what follows", function()
    moth.manual_seed(1)
    local m = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    local calls = 0
    m[1]:register_forward_hook(function(_, _, y)
      calls = calls + 1
      return y * 2 - 1
    end)
    m[3]:register_forward_pre_hook(function(_, input) return input[1] + 1 end)
    each_way(m, moth.randn(40, 8), function(got)
      local before = calls
      got(moth.randn(2, 8))
      assert.equal(before + 1, calls)
    end)
  end)

  it("whose weights are computed: parametrized, pruned; training keeps to the mask", function()
    moth.manual_seed(1)
    local m = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 6)), nn.Tanh(), nn.Linear(6, 2))
    nn.utils.prune.l1_unstructured(m[3], "weight", 0.5)
    local zeros = m[3].weight:eq(0)
    each_way(m, moth.randn(40, 8), function(got, name)
      assert.is_true(got[1].__quantized and got[3].__quantized, name)
      assert.is_true(got[3]:dequantized()[zeros]:eq(0):all():item(), name)
    end)
    local t = q.prepare_qat(m:train())
    local opt = moth.optim.SGD(t:parameters(), { lr = 0.1 })
    local before = m[3].weight:detach()
    for _ = 1, 3 do
      opt:zero_grad()
      t(moth.randn(8, 8)):square():sum():backward()
      opt:step()
    end
    local w = q.convert(t:eval())[3]:dequantized()
    assert.is_true(w[zeros]:eq(0):all():item())
    assert.is_true((w - before):abs():max():item() > 0.01)
    assert.is_true(moth.equal(m[3].weight, before))
  end)

  it("with a forward of their own stay as they are", function()
    local m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)):eval()
    m[1].forward = function(self, x) return moth.linear(x, self.weight, self.bias) * 3 end
    local x = moth.randn(5, 4)
    assert.is_true(q.sqnr(m(x), q.quantize_dynamic(m)(x)) > 35)
  end)

  it("whose sums have more products than int32 holds stay float, but for 4 bits", function()
    local m = nn.Sequential(nn.Linear(65537, 1), nn.Linear(1, 2)):eval()
    local x = moth.ones(1, 65537)
    m.qconfig = q.get_default_qconfig()
    local p = q.prepare(m)
    p(x)
    for _, c in ipairs { q.convert(p), q.quantize_dynamic(m), q.quantize_weights(m, { bits = 8 }) } do
      assert.equal("Linear", c[1].__name)
      assert.same({ 1, 2 }, c(x):size())
    end
    assert.equal("Int4Linear", q.quantize_weights(m)[1].__name)
    local w, scale = q.int4_weight(moth.randn(3, 6), 32)
    assert.error_matches(function() q.dequantize_int4(w:float(), scale, 32, 6) end, "expected bytes %(uint8%) of 3")
  end)

  it("embeddings in training give the row padding_idx no gradient", function()
    local m = nn.Sequential(nn.Embedding(5, 3, { padding_idx = 2 }), nn.Linear(3, 2))
    m.qconfig = q.get_default_qat_qconfig()
    local t = q.prepare_qat(m:train())
    t(moth.tensor({ 1, 2, 3 }, { dtype = moth.int64 })):sum():backward()
    local norms = t[1].weight.grad:abs():sum(2)
    assert.is_true(norms[1]:item() > 0)
    assert.equal(0, norms[2]:item())
  end)

  it("prepared or in training with rounding, are exported with the ranges they have", function()
    moth.manual_seed(1)
    local m, x = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6, 3)), moth.randn(9, 2, 8)
    m.qconfig = q.get_default_qconfig()
    local p = q.prepare(m:eval())
    p(x)
    assert.is_true(moth.equal(p(x), moth.export(p, { x })(x)))
    m.qconfig = q.get_default_qat_qconfig("x86", { weight_bits = 4 })
    local t = q.prepare_qat(m:train()):eval()
    assert.error_matches(function() moth.export(t, { x }) end, "call the model once before the export")
    t:train()(x)
    t:eval()
    local path = os.tmpname() .. ".onnx"
    finally(function() os.remove(path) end)
    moth.onnx.export(t, { x }, path)
    assert.is_true(q.sqnr(t(x), moth.onnx.load(path)(x)) > 100)
    assert.is_true(moth.equal(t(x), moth.export(t, { x })(x)))
  end)

  it("are in ONNX files as onnxruntime's int8 kernels want them: zero points, biases in int32, matrices", function()
    moth.manual_seed(1)
    local m, x = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)):eval(), moth.randn(4, 5, 8)
    m.qconfig = q.get_default_qconfig()
    local p = q.prepare(m)
    p(x)
    local c, path = q.convert(p), os.tmpname() .. ".onnx"
    finally(function() os.remove(path) end)
    moth.onnx.export(c, x, path, { input_names = { "x" }, dynamic_axes = { x = { [1] = "batch", [2] = "time" } } })
    local graph = require("moth.onnx.reader").model(path).graph
    local of, made = {}, {}
    for _, t in ipairs(graph.initializer) do of[t.name] = t.data_type end
    local gemms = 0
    for _, n in ipairs(graph.node) do
      made[n.output[1]] = n
      if n.op == "Gemm" then
        gemms = gemms + 1
        local weight, bias = made[n.input[2]], made[n.input[3]]
        assert.same({ "DequantizeLinear", "DequantizeLinear" }, { weight.op, bias.op })
        assert.truthy(of[weight.input[3]])
        assert.equal(6, of[bias.input[1]]) -- int32
      end
    end
    assert.equal(2, gemms)
    local y = moth.randn(2, 7, 8)
    assert.is_true(q.sqnr(c(y), moth.onnx.load(path)(y)) > 60)
    local d = q.quantize_dynamic(m) -- products of integers by a constant
    moth.onnx.export(d, x, path, { input_names = { "x" }, dynamic_axes = { x = { [1] = "batch", [2] = "time" } } })
    graph, of, gemms = require("moth.onnx.reader").model(path).graph, {}, 0
    for _, t in ipairs(graph.initializer) do of[t.name] = t.data_type end
    for _, n in ipairs(graph.node) do
      if n.op == "MatMulInteger" and of[n.input[2]] == 3 then gemms = gemms + 1 end -- int8
    end
    assert.equal(2, gemms)
    assert.is_true(q.sqnr(d(y), moth.onnx.load(path)(y)) > 100)
    local h = c:clone():half()
    moth.onnx.export(h, x:half(), path)
    assert.equal("float16", moth.onnx.InferenceSession(path):get_outputs()[1].dtype)
    assert.is_true(q.sqnr(c(x), moth.onnx.load(path)(x:half())) > 40)
  end)

  it("wrong groups, lists and paths are refused where they are given", function()
    assert.error_matches(function() q.get_default_qat_qconfig("x86", { weight_bits = 4, group = 48 }) end,
      "%[quantization.get_default_qat_qconfig%] group must be 32, 64 or a multiple of 128, got 48")
    local m = nn.Sequential(nn.Linear(4, 4)):eval()
    assert.error_matches(function() q.quantize_dynamic(m, { m[1] }) end, "is one Linear, not the class")
    assert.error_matches(function() q.fuse_modules(m, { { 1, 2 } }) end, "expected a path, got 1")
    local m4 = q.quantize_weights(m, { group = 32 })
    assert.error_matches(function() m4(moth.ones(2, 3)) end, "the input must have 4 columns, got %[2, 3%]")
    assert.error_matches(function() q.stochastic_int8(moth.arange(3)) end, "expected a tensor of floats, got int64")
  end)
end)
