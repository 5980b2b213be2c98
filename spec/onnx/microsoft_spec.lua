-- Operators of com.microsoft, as onnxruntime's tools for quantised models write them. Files of quantize_static
-- (QOperator, 16 bits, 4 bits) and MatMulNBitsQuantizer were compared with onnxruntime by hand: 100 dB and more.
local moth = require "moth"
local messages = require "moth.onnx.messages"
local path = os.tmpname()

local function run(op, inputs, attributes, dtype, shape)
  local values, given, names = {}, {}, {}
  for i, t in ipairs(inputs) do
    names[i] = t and "x" .. i or ""
    if t then
      values[#values + 1] = messages.value(names[i], t:dtype().name, t:size())
      given[names[i]] = t
    end
  end
  local node = messages.node(op, names, { "y" }, attributes or {}, "n", ""):string(7, "com.microsoft")
  local graph = messages.graph("g", { node }, values, { messages.value("y", dtype, shape) })
  messages.write(messages.model(graph, 17), path)
  local session = moth.onnx.InferenceSession(path)
  session:run(nil, given)
  return session:run(nil, given)[1]
end

local function u8(t) return t:to(moth.uint8) end
local function number(v, dtype) return moth.tensor(v, { dtype = dtype or moth.float32 }) end
local function floats(x, scale, zero) return (x:float() - zero) * scale end
local function bytes(y, scale, zero) return u8(((y / scale):round() + zero):clamp(0, 255)) end

describe("moth.onnx, com.microsoft", function()
  teardown(function() os.remove(path) end)
  local z = function(v) return number(v, moth.uint8) end

  it("sums, products, functions and lists of bytes", function()
    moth.manual_seed(1)
    local a, b = u8(moth.randint(0, 256, { 2, 3, 4 })), u8(moth.randint(0, 256, { 4 }))
    local x, y = floats(a, 0.02, 7), floats(b, 0.5, 100)
    local two = { a, number(0.02), z(7), b, number(0.5), z(100), number(0.4), z(120) }
    assert.is_true(moth.equal(bytes(x + y, 0.4, 120), run("QLinearAdd", two, nil, "uint8", { 2, 3, 4 })))
    assert.is_true(moth.equal(bytes(x * y, 0.4, 120), run("QLinearMul", two, nil, "uint8", { 2, 3, 4 })))
    local one = { a, number(0.02), z(7), number(1 / 256), false }
    assert.is_true(moth.equal(bytes(x:sigmoid(), 1 / 256, 0), run("QLinearSigmoid", one, nil, "uint8", { 2, 3, 4 })))
    local function soft(opset)
      return run("QLinearSoftmax", one, { { "axis", 1 }, { "opset", opset } }, "uint8", { 2, 3, 4 })
    end
    assert.is_true(moth.equal(bytes(x:softmax(2), 1 / 256, 0), soft(13)))
    assert.is_true(moth.equal(bytes(x:reshape(2, 12):softmax(2), 1 / 256, 0):reshape(2, 3, 4), soft(12)))
    local joined = run("QLinearConcat", { number(0.03), z(3), a, number(0.02), z(7), a, number(0.01), z(0) },
      { { "axis", 1 } }, "uint8", { 2, 6, 4 })
    assert.is_true(moth.equal(bytes(moth.cat({ x, floats(a, 0.01, 0) }, 2), 0.03, 3), joined))
    assert.error_matches(function()
      run("QLinearGlobalAveragePool", one, { { "channels_last", 1 } }, "uint8", { 2, 3, 1 })
    end, "channels_last = 1")
  end)

  it("QGemm: sums of bytes, to bytes or floats", function()
    moth.manual_seed(2)
    local a, w = u8(moth.randint(0, 256, { 3, 6 })), moth.randint(-128, 128, { 5, 6 }):to(moth.int8)
    local bias, scales = moth.randint(-999, 999, { 5 }):to(moth.int32), moth.rand(5) * 0.1
    local inputs = { a, number(0.02), z(7), w, scales, moth.zeros({ 5 }, { dtype = moth.int8 }), bias }
    local want = ((a:double() - 7):matmul(w:double():t()) + bias:double()) * (scales:double() * 0.02)
    local y = run("QGemm", inputs, { { "transB", 1 }, { "alpha", 1.0 } }, "float32", { 3, 5 })
    assert.is_true(moth.allclose(y:double(), want, 1e-6, 1e-6))
    inputs[8], inputs[9] = number(2), z(128)
    y = run("QGemm", inputs, { { "transB", 1 }, { "alpha", 1.0 } }, "uint8", { 3, 5 })
    assert.is_true(moth.equal(y, bytes(want, 2, 128)))
  end)

  it("MatMulNBits: weights of 4 and 8 bits in blocks", function()
    moth.manual_seed(3)
    local k, n, block, x = 40, 5, 16, moth.randn(2, 3, 40)
    for _, bits in ipairs { 4, 8 } do
      local q = moth.randint(0, 2 ^ bits, { n, 3 * block })
      local zero, scale = moth.randint(0, 2 ^ bits, { n, 3 }), moth.rand(n, 3)
      local function packed(t) -- (rows, columns) of values
        if bits == 8 then return u8(t) end
        if t:size(2) % 2 == 1 then t = moth.cat({ t, moth.zeros({ t:size(1), 1 }, { dtype = moth.int64 }) }, 2) end
        t = t:reshape(t:size(1), -1, 2)
        return u8(t:select(3, 1) + t:select(3, 2) * 16)
      end
      local size = block * bits / 8
      local inputs = { x, packed(q):reshape(n, 3, size), scale:flatten(), packed(zero):flatten() }
      local attributes = { { "K", k }, { "N", n }, { "bits", bits }, { "block_size", block } }
      local w = ((q - zero:repeat_interleave(block, 2)):float() * scale:repeat_interleave(block, 2)):narrow(2, 1, k)
      local y = run("MatMulNBits", inputs, attributes, "float32", { 2, 3, n })
      assert.is_true(moth.allclose(y, moth.linear(x, w), 1e-5, 1e-5))
      inputs[4] = nil
      w = ((q - 2 ^ (bits - 1)):float() * scale:repeat_interleave(block, 2)):narrow(2, 1, k)
      y = run("MatMulNBits", inputs, attributes, "float32", { 2, 3, n })
      assert.is_true(moth.allclose(y, moth.linear(x, w), 1e-5, 1e-4))
    end
  end)

  it("DynamicQuantizeLSTM: weights and states in 8 bits", function()
    moth.manual_seed(4)
    local w = moth.randint(-99, 99, { 1, 4, 12 }):to(moth.int8)
    local r = moth.randint(-99, 99, { 1, 3, 12 }):to(moth.int8)
    local zero, x = moth.zeros({ 1 }, { dtype = moth.int8 }), moth.randn(5, 2, 4)
    local inputs = { x, w, r, moth.randn(1, 24), false, false, false, false, number { 0.01 }, zero,
      number { 0.01 }, zero }
    local y = run("DynamicQuantizeLSTM", inputs, { { "hidden_size", 3 } }, "float32", { 5, 1, 2, 3 })
    local names, values, given = { "x1", "w", "r", "x4" }, {}, { x1 = x, x4 = inputs[4] }
    given.w, given.r = (w:float() * 0.01):transpose(2, 3), (r:float() * 0.01):transpose(2, 3)
    for i, name in ipairs(names) do values[i] = messages.value(name, "float32", given[name]:size()) end
    local node = messages.node("LSTM", names, { "y" }, { { "hidden_size", 3 } }, "n", "")
    local result = messages.value("y", "float32", { 5, 1, 2, 3 })
    messages.write(messages.model(messages.graph("g", { node }, values, { result }), 17), path)
    local difference = (y - moth.onnx.InferenceSession(path):run(nil, given)[1]):abs():max():item()
    assert.is_true(difference > 1e-5 and difference < 0.05, tostring(difference))
  end)
end)
