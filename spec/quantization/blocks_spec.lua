-- Weights in the blocks of GGUF types: values of all types at all levels of instruction sets, layers, files.
local moth = require "moth"
local B = require "moth_lua"
local child = require "spec.child"
local q = moth.quantization

local types = B.gguf_blocks()
local names = {}
for name in pairs(types) do names[#names + 1] = name end
table.sort(names)

-- Rows of random blocks of k elements. Scales of float16 of any bytes may be inf or nan: most are made small.
local function rows(n, k, name)
  local t = types[name]
  return moth.randint(0, 59, { n, k / t.elements * t.bytes }):to(moth.uint8)
end

local function near(a, b, bound)
  local off = (a - b):abs():amax():item() / math.max(b:abs():amax():item(), 1e-30)
  assert.is_true(off <= bound, ("off by %g of the largest"):format(off))
end

local function llama()
  moth.manual_seed(5)
  return moth.models.Llama { vocab_size = 96, hidden_size = 64, intermediate_size = 96, num_hidden_layers = 2,
    num_attention_heads = 4, num_key_value_heads = 2, attention_bias = true }:eval()
end

describe("weights in blocks #llm", function()
  local path
  before_each(function() path = os.tmpname() .. ".gguf" end)
  after_each(function() os.remove(path) os.remove((path:gsub("%.gguf$", ""))) end)

  it("are what gguf.load gives, whatever the bytes, and are saved as they are", function()
    moth.manual_seed(1)
    for _, name in ipairs(names) do
      local t = types[name]
      local w = moth.randint(0, 256, { 7, 3 * t.bytes }):to(moth.uint8)
      moth.gguf.save(path, {}, { w = w, b = moth.ones(3) }, function(_, x) return x:dim() == 2 and name or nil end)
      local as_bytes, as_floats = moth.gguf.load(path, { blocks = true }), moth.gguf.load(path)
      assert.are.equal(name, as_bytes.types.w)
      assert.is_true(moth.equal(w, as_bytes.tensors.w))
      local x = as_floats.tensors.w
      assert.are.same({ 7, 3 * t.elements }, { x:size(1), x:size(2) })
      assert.is_true(moth.allclose(moth.unpack_blocks(w, name), x, { rtol = 0, atol = 0, equal_nan = true }), name)
    end
  end)

  it("are multiplied as their floats are with activations of int8, at all levels", function()
    local text = [[
      local moth = require "moth"
      local types = require "moth_lua".gguf_blocks()
      for name, t in pairs(types) do
        moth.manual_seed(t.number)
        local any = moth.randint(0, 256, { 3000, t.bytes }):to(moth.uint8) -- of which those are taken that are of use
        local most = moth.unpack_blocks(any, name, moth.float64):abs():amax(2)
        local kept = moth.nonzero(moth.logical_and(most:gt(1e-3), most:lt(300))):squeeze(2)
        for _, k in ipairs { t.elements, 5 * t.elements, 13 * t.elements, 4096 + 2 * t.elements } do
          local n = k / t.elements
          local w = any:index_select(1, kept:index_select(1, moth.randint(1, kept:numel() + 1, { 6 * n })))
          w = w:reshape(6, n * t.bytes)
          local x = moth.randn(9, k)
          local g = x:reshape(9, k / 32, 32)
          local s = g:abs():amax(3, true) / 127
          local rounded = ((g * (1 / s)):round():clamp(-127, 127) * s):reshape(9, k):to(moth.float64)
          local floats = moth.unpack_blocks(w, name, moth.float64)
          local right = moth.linear(rounded, floats, moth.arange(6):to(moth.float64))
          -- Rounding is of what is added, not of the sum.
          local size = moth.linear(rounded:abs(), floats:abs(), moth.arange(6):to(moth.float64))
          local got = moth.linear_blocks(x, w, name, moth.arange(6):to(moth.float32))
          local off = ((got - right):abs() / size):amax():item()
          assert(off < 3e-6, ("%s of %d: off by %g"):format(name, k, off))
          for i = 1, 9, 4 do -- a row's bits do not depend on the others
            assert(moth.equal(got[i], moth.linear_blocks(x[i], w, name, moth.arange(6):to(moth.float32))))
          end
        end
      end
      io.write "right"]]
    for _, level in ipairs(require "levels") do
      assert.are.equal("right", (child(text, { env = "MOTH_CPU=" .. level })))
    end
  end)

  it("are on a GPU what they are here", function()
    if not moth.cuda.is_available() then pending "there is no GPU" return end
    for _, name in ipairs(names) do
      local w = moth.randint(0, 256, { 3, types[name].bytes * 2 }):to(moth.uint8)
      local there = moth.unpack_blocks(w:to "cuda", name):to "cpu"
      assert.is_true(moth.allclose(there, moth.unpack_blocks(w, name), { rtol = 0, atol = 0, equal_nan = true }), name)
    end
  end)

  it("of an input that is inf or nan give nan, of no rows nothing", function()
    for _, name in ipairs { "Q4_0", "Q6_K" } do
      local w = rows(5, 256, name)
      local x = moth.randn(3, 256)
      x[2][9] = 1 / 0
      x[3][200] = 0 / 0
      local y = moth.linear_blocks(x, w, name)
      assert.are.same({ false, true, true }, y:isnan():all(2):totable())
      assert.are.equal("[0, 5]", tostring(moth.linear_blocks(moth.randn(0, 256), w, name):size()))
      assert.are.equal("[0, 256]", tostring(moth.unpack_blocks(w:narrow(1, 1, 0), name):size()))
    end
  end)

  it("make a model of a file, whose logits are near those of its floats", function()
    local net = llama()
    moth.models.save_gguf(net, path, { type = "Q8_0" })
    local m, floats = moth.models.load(path), moth.models.load(path, { dtype = moth.float32 })
    assert.are.equal("BlockLinear", m.model.layers[1].self_attn.q_proj.__name)
    assert.are.equal("BlockEmbedding", m.model.embed_tokens.__name)
    assert.truthy(tostring(m):find("in_features=64, out_features=96, bias=False, Q8_0", 1, true))
    assert.are.equal("Linear", floats.model.layers[1].self_attn.q_proj.__name)
    local ids = moth.randint(1, 97, { 2, 9 })
    near(m(ids), floats(ids), 0.03)
    assert.is_true(moth.equal(m.model.embed_tokens(ids), floats.model.embed_tokens(ids)))
    -- what was read is written, byte for byte
    local again = path .. "2"
    moth.models.save_gguf(m, again)
    local a, b = moth.gguf.load(path, { blocks = true }), moth.gguf.load(again, { blocks = true })
    for name, t in pairs(a.tensors) do
      assert.are.equal(a.types[name], b.types[name])
      assert.is_true(moth.equal(t, b.tensors[name]), name)
    end
    moth.models.save_gguf(m, again, { type = "Q4_0" }) -- made floats, and quantized anew
    assert.are.equal("Q4_0", moth.gguf.load(again).types["output.weight"])
    os.remove(again)
    -- activations of another dtype; rows of the embedding follow
    m:to(moth.bfloat16)
    assert.are.equal(moth.bfloat16, m(ids):dtype())
    near(m(ids):to(moth.float32), floats(ids), 0.06)
  end)

  it("that lie in one another, as Phi-3's, are taken apart by rows", function()
    local net = llama()
    net.config.attention_bias = false
    local m = moth.models.Llama(net.config):eval()
    moth.models.save_gguf(m, path)
    local file = moth.gguf.load(path)
    local metadata, t = {}, file.tensors
    for key, v in pairs(file.metadata) do metadata[(key:gsub("^llama%.", "phi3."))] = v end
    metadata["general.architecture"] = "phi3"
    for i = 0, 1 do
      local at = ("blk.%d."):format(i)
      local function weight(name) return t[at .. name .. ".weight"] end
      t[at .. "attn_qkv.weight"] = moth.cat({ weight "attn_q", weight "attn_k", weight "attn_v" }, 1)
      t[at .. "ffn_up.weight"] = moth.cat({ weight "ffn_gate", weight "ffn_up" }, 1)
      for _, name in ipairs { "attn_q", "attn_k", "attn_v", "ffn_gate" } do t[at .. name .. ".weight"] = nil end
    end
    local other = path .. "3.gguf"
    finally(function() os.remove(other) end)
    moth.gguf.save(other, metadata, t, { type = "Q8_0" })
    local phi, floats = moth.models.load(other), moth.models.load(other, { dtype = moth.float32 })
    assert.are.equal("BlockLinear", phi.model.layers[2].mlp.gate_proj.__name)
    local ids = moth.randint(1, 97, { 2, 9 })
    near(phi(ids), floats(ids), 0.03)
    assert.are.equal("Q4_0", moth.models.load(other, { quantize = "Q4_0" }).lm_head.type) -- quantized anew
  end)

  it("are made of floats while a model is loaded", function()
    local net = llama()
    moth.models.save_gguf(net, path, { type = "F16" })
    local m = moth.models.load(path, { dtype = moth.float32, quantize = "Q8_0" })
    assert.are.equal("BlockLinear", m.lm_head.__name)
    local ids = moth.randint(1, 97, { 1, 7 })
    near(m(ids), net(ids), 0.03)
    assert.error_matches(function() moth.models.load(path, { quantize = "Q9" }) end, "there are Q8_0 and Q4_0")
  end)

  it("give gradients to what comes before, by the floats", function()
    local w, x = rows(5, 64, "Q4_0"), moth.randn(3, 64):requires_grad_(true)
    local layer = q.BlockLinear(w, "Q4_0")
    layer(x):sum():backward()
    near(x.grad, layer:dequantized():sum(1):expand(3, 64), 1e-6)
  end)

  it("are made of the floats of a model", function()
    local net = llama()
    local ids = moth.randint(1, 97, { 1, 7 })
    local right = net(ids):detach()
    local copy = q.quantize_blocks(net:clone(), "Q8_0", { keep = { "^lm_head$" } })
    assert.are.equal("Linear", copy.lm_head.__name)
    assert.are.equal("BlockLinear", copy.model.layers[2].mlp.down_proj.__name)
    near(copy(ids), right, 0.03)
    assert.matches("1 of 2 layers stay floats, as their rows are no multiples of 32: 0 %(rows of 33%)\n$", (child [[
      local nn = moth.nn
      moth.quantization.quantize_blocks(nn.Sequential(nn.Linear(33, 64), nn.Linear(64, 2)))]]))
    for _, none in ipairs { moth.nn.Sequential(moth.nn.Linear(33, 64)), moth.nn.Sequential(moth.nn.ReLU()) } do
      assert.error_matches(function() q.quantize_blocks(none) end,
        "the model has no nn.Linear or nn.Embedding whose rows are multiples of 32")
    end
    assert.has_error(function() q.quantize_blocks(net, "Q4_K") end,
      "[quantization.quantize_blocks] type 'Q4_K' cannot be made; there are Q8_0 and Q4_0")
  end)

  it("are not taken for those of another type", function()
    local a, b = q.BlockLinear(rows(5, 64, "Q4_0"), "Q4_0"), q.BlockLinear(rows(5, 64, "IQ4_NL"), "IQ4_NL")
    assert.error_matches(function() a:load_state_dict(b:state_dict()) end,
      "blocks of GGUF's type 20, the layer those of Q4_0")
    a:load_state_dict(q.BlockLinear(rows(5, 64, "Q4_0"), "Q4_0"):state_dict())
    assert.error_matches(function() q.BlockLinear(rows(5, 64, "Q4_0"), "Q8_0") end,
      "uint8 %(rows, bytes%) of blocks of 34 bytes")
    assert.error_matches(function() q.BlockLinear(rows(5, 64, "Q4_0"), "Q9") end, "'Q9' is not known")
  end)
end)
