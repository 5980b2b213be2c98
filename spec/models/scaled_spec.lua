-- Small floats of safetensors, and checkpoints of 8 bits with scales (lua/moth/models/scaled.lua).
local moth = require "moth"
local cjson = require "cjson"
local fixture = "spec/llm/fixtures/llama"

local function u64(n)
  local out = {}
  for i = 1, 8 do out[i], n = string.char(n % 256), math.floor(n / 256) end
  return table.concat(out)
end

-- A safetensors file of { { name, dtype, shape, bytes } … }.
local function write(path, list)
  local header, bytes, at = {}, {}, 0
  for i, t in ipairs(list) do
    header[t[1]], bytes[i] = { dtype = t[2], shape = t[3], data_offsets = { at, at + #t[4] } }, t[4]
    at = at + #t[4]
  end
  header = cjson.encode(header):gsub('"shape":{}', '"shape":[]')
  local f = assert(io.open(path, "wb"))
  f:write(u64(#header), header, table.concat(bytes))
  f:close()
end

-- The value of a code of 1 sign, e and m bits.
local function value(code, e, m, bias, kind)
  local sign, rest = code >= 2 ^ (e + m) and -1 or 1, code % 2 ^ (e + m)
  local exponent, mantissa = math.floor(rest / 2 ^ m), rest % 2 ^ m / 2 ^ m
  if kind == "uz" and code == 2 ^ (e + m) or kind == "nan" and rest == 2 ^ (e + m) - 1 then return 0 / 0 end
  if kind == "inf" and exponent == 2 ^ e - 1 then return mantissa == 0 and sign / 0 or 0 / 0 end
  return sign * (exponent == 0 and mantissa * 2 ^ (1 - bias) or (1 + mantissa) * 2 ^ (exponent - bias))
end

local all = {}
for code = 0, 255 do all[code + 1] = string.char(code) end
all = table.concat(all)

describe("small floats of safetensors", function()
  local path
  before_each(function() path = os.tmpname() end)
  after_each(function() os.remove(path) end)

  it("are numbers of bfloat16, all codes", function()
    local kinds = { F8_E4M3 = { 4, 3, 7, "nan" }, F8_E5M2 = { 5, 2, 15, "inf" }, F8_E4M3FNUZ = { 4, 3, 8, "uz" },
      F8_E5M2FNUZ = { 5, 2, 16, "uz" } }
    local list = { { "F8_E8M0", "F8_E8M0", { 256 }, all }, { "F4", "F4", { 2, 256 }, all } }
    for name in pairs(kinds) do list[#list + 1] = { name, name, { 4, 64 }, all } end
    write(path, list)
    local got = moth.load_safetensors(path)
    for name, kind in pairs(kinds) do
      assert.equal(moth.bfloat16, got[name]:dtype())
      assert.equal("[4, 64]", tostring(got[name]:size()))
      for i, v in ipairs(got[name]:reshape(-1):totable()) do
        local want = value(i - 1, unpack(kind))
        if want ~= want then assert.is_true(v ~= v, name) else assert.equal(want, v, name) end
      end
    end
    local powers = got.F8_E8M0:totable()
    for i = 1, 255 do assert.equal(2 ^ (i - 128), powers[i]) end
    assert.is_true(powers[256] ~= powers[256])
    local four = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6 }
    assert.equal("[2, 256]", tostring(got.F4:size()))
    for i, v in ipairs(got.F4:reshape(-1):totable()) do
      local byte = math.floor((i - 1) / 2)
      assert.equal(four[(i % 2 == 1 and byte % 16 or math.floor(byte / 16)) + 1], v)
    end
    assert.is_true(moth.equal(moth.load(path).F4, got.F4))
    assert.is_true(moth.equal(moth.load_safetensors(path, { mmap = false }).F4, got.F4))
  end)

  it("without a form of their own are refused by name", function()
    write(path, { { "w", "F6_E2M3", { 4 }, "abc" } })
    assert.error_matches(function() moth.load(path) end, '"w" has dtype F6_E2M3, which moth does not have')
    write(path, { { "w", "F4", { 2, 3 }, "abc" } })
    assert.error_matches(function() moth.load(path) end, '"w" has rows of F4 that are no whole bytes')
    write(path, { { "w", "F4", {}, "" } })
    assert.error_matches(function() moth.load(path) end, "no whole bytes")
    write(path, { { "w", "F4", { 2, 4 }, "abc" } })
    assert.error_matches(function() moth.load(path) end, "needs 4 bytes by its shape")
  end)
end)

describe("checkpoints of 8 bits", function()
  local folder
  before_each(function()
    folder = os.tmpname()
    os.remove(folder)
    os.execute("cp -r " .. fixture .. " " .. folder)
  end)
  after_each(function() os.execute("rm -r " .. folder) end)

  local function floats(t) return require("ffi").string(t:contiguous():data(), 4 * t:numel()) end
  local function sizes(t)
    local out = {}
    for d = 1, t:dim() do out[d] = t:size(d) end
    return out
  end

  -- Writes the fixture's folder with the projections in 8 bits, by quantize(weight) -> dtype, bytes, scales { name =
  -- tensor }, floats; gives the model that they stand for.
  local function make(config, quantize)
    local f = assert(io.open(fixture .. "/config.json"))
    local c = cjson.decode(f:read "*a")
    f:close()
    c.quantization_config, c.dtype = config, "float32"
    f = assert(io.open(folder .. "/config.json", "w"))
    f:write(cjson.encode(c))
    f:close()
    local list, model = {}, moth.models.load(fixture, { dtype = moth.float32 })
    for name, p in model:named_parameters() do
      if name:find "_proj%.weight$" then
        local dtype, bytes, scales, w = quantize(p:detach())
        if dtype then list[#list + 1] = { name, dtype, sizes(p), bytes } end
        for key, s in pairs(scales) do
          local is_raw = type(s) == "table" -- { dtype, shape, bytes }
          list[#list + 1] = { (name:gsub("weight$", key)), is_raw and s[1] or "F32", is_raw and s[2] or sizes(s),
            is_raw and s[3] or floats(s) }
        end
        moth.no_grad(function() p:copy_(w) end)
      else
        list[#list + 1] = { name, "F32", sizes(p), floats(p:detach()) }
      end
    end
    write(folder .. "/model.safetensors", list)
    return model
  end
  local ids = moth.tensor({ { 3, 77, 200, 5, 410 } }, { dtype = moth.int64 })

  -- Codes of E4M3 without NaN, and their values.
  local function codes(p)
    moth.manual_seed(p:numel())
    local list, values = moth.randint(0, 120, { p:numel() }):totable(), {}
    for i, code in ipairs(list) do
      if i % 2 == 0 then code = code + 128 end
      list[i], values[i] = string.char(code), value(code, 4, 3, 7, "nan")
    end
    return table.concat(list), moth.tensor(values):reshape(sizes(p))
  end

  it("are the floats that their scales make: of blocks, rows, a tensor", function()
    local n = 0
    for method, how in pairs { fp8 = "blocks", ["compressed-tensors"] = "rows", fbgemm_fp8 = "rows",
      modelopt = "one" } do
      local want = make({ quant_method = method, weight_block_size = { 8, 16 }, format = "float-quantized",
        quant_algo = "FP8" }, function(p)
        local bytes, w = codes(p)
        local rows, columns = p:size(1), p:size(2)
        local scale = how == "one" and moth.rand(1) or how == "rows" and moth.rand(rows, 1)
          or moth.rand(math.ceil(rows / 8), math.ceil(columns / 16))
        scale = (scale + 0.5) * 2 ^ -9
        local wide = scale
        if how == "blocks" then
          wide = scale:repeat_interleave(8, 1):narrow(1, 1, rows):repeat_interleave(16, 2):narrow(2, 1, columns)
        end
        return "F8_E4M3", bytes, { [how == "blocks" and "weight_scale_inv" or "weight_scale"] = scale,
          input_scale = moth.ones(1) }, w * wide
      end)
      local got = moth.models.load(folder)
      assert.is_true((got(ids) - want(ids)):abs():max():item() < 1e-5, method)
      n = n + 1
    end
    assert.equal(4, n)
    local want = make({ quant_method = "compressed-tensors", format = "int-quantized" }, function(p)
      local scale = p:abs():amax(2, true) / 127
      local q = (p / scale):round()
      local bytes = {}
      for i, v in ipairs(q:reshape(-1):totable()) do bytes[i] = string.char(v % 256) end
      return "I8", table.concat(bytes), { weight_scale = scale }, q * scale
    end)
    assert.is_true((moth.models.load(folder)(ids) - want(ids)):abs():max():item() < 1e-5)
  end)

  it("are those of NVFP4 in bytes of two", function()
    local four = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6 }
    local want = make({ quant_method = "compressed-tensors", format = "nvfp4-pack-quantized" }, function(p)
      local rows, columns = p:size(1), p:size(2)
      local size = columns % 16 == 0 and 16 or 8 -- of a group; the fixture has rows of 24
      local q, bytes = moth.randint(0, 16, { rows * columns }):totable(), {}
      for i = 1, #q, 2 do bytes[#bytes + 1] = string.char(q[i] + 16 * q[i + 1]) end
      local scales, scale_bytes = moth.randint(40, 60, { rows * columns / size }):totable(), {}
      local w = {}
      for i, code in ipairs(scales) do
        scale_bytes[i] = string.char(code)
        for k = (i - 1) * size + 1, i * size do w[k] = four[q[k] + 1] * value(code, 4, 3, 7, "nan") / 8 end
      end
      return nil, nil, { weight_packed = { "U8", { rows, columns / 2 }, table.concat(bytes) },
        weight_scale = { "F8_E4M3", { rows, columns / size }, table.concat(scale_bytes) },
        weight_global_scale = moth.tensor { 8 } }, moth.tensor(w):reshape { rows, columns }
    end)
    assert.is_true((moth.models.load(folder)(ids) - want(ids)):abs():max():item() < 1e-4)
  end)

  it("of other kinds are refused by name", function()
    local function refused(pattern, config, quantize)
      make(config, quantize or function(p) return "F32", floats(p), {}, p end)
      assert.error_matches(function() moth.models.load(folder) end, pattern)
    end
    refused("weights quantized by gptq are not supported %(fp8", { quant_method = "gptq" })
    refused("by compressed%-tensors with format = pack%-quantized", { quant_method = "compressed-tensors",
      format = "pack-quantized" })
    refused("with weights with zero points", { quant_method = "compressed-tensors",
      config_groups = { group_0 = { weights = { symmetric = false } } } })
    refused("by modelopt with quant_algo = W4A8", { quant_method = "modelopt", quant_algo = "W4A8" })
    refused("a scale of %[5, 1%] does not go with a weight of %[%d+, %d+%]", { quant_method = "fp8" }, function(p)
      return "F32", floats(p), { weight_scale_inv = moth.ones(5, 1) }, p
    end)
  end)
end)

describe("gpt-oss's blocks of MXFP4", function()
  it("stay blocks, of the numbers that they stand for", function()
    local folder = os.tmpname()
    os.remove(folder)
    os.execute("mkdir " .. folder)
    finally(function() os.execute("rm -r " .. folder) end)
    local f = assert(io.open(folder .. "/config.json", "w"))
    f:write(cjson.encode { model_type = "gpt_oss", vocab_size = 40, hidden_size = 32, intermediate_size = 64,
      num_hidden_layers = 1, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 8, num_local_experts = 2,
      num_experts_per_tok = 1, quantization_config = { quant_method = "mxfp4" } })
    f:close()
    local four = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6 }
    local list, want = {}, {}
    local function bytes(t) return require("ffi").string(t:contiguous():data(), t:numel() * t:element_size()) end
    local function floats(name, ...)
      local t = moth.randn(...)
      local shape = {}
      for d = 1, t:dim() do shape[d] = t:size(d) end
      list[#list + 1] = { name, "F32", shape, bytes(t) }
      return t
    end
    local function blocks(name, n, k)
      local codes = moth.randint(0, 256, { 2, n, k / 32, 16 }):to(moth.uint8)
      local powers = moth.randint(120, 126, { 2, n, k / 32 }):to(moth.uint8)
      list[#list + 1] = { name .. "_blocks", "U8", { 2, n, k / 32, 16 }, bytes(codes) }
      list[#list + 1] = { name .. "_scales", "U8", { 2, n, k / 32 }, bytes(powers) }
      local out, c, p = {}, codes:reshape(-1):totable(), powers:reshape(-1):totable()
      for i, two in ipairs(c) do
        local scale = 2 ^ (p[math.floor((i - 1) / 16) + 1] - 127)
        out[2 * i - 1], out[2 * i] = four[two % 16 + 1] * scale, four[math.floor(two / 16) + 1] * scale
      end
      return moth.tensor(out):reshape(2, n, k)
    end
    local at = "model.layers.0."
    for _, name in ipairs { "model.embed_tokens", "lm_head" } do floats(name .. ".weight", 40, 32) end
    for _, name in ipairs { "model.norm", at .. "input_layernorm", at .. "post_attention_layernorm" } do
      floats(name .. ".weight", 32)
    end
    for name, n in pairs { q_proj = 32, k_proj = 16, v_proj = 16, o_proj = 32 } do
      floats(at .. "self_attn." .. name .. ".weight", n, 32)
      floats(at .. "self_attn." .. name .. ".bias", n)
    end
    floats(at .. "self_attn.sinks", 4)
    floats(at .. "mlp.router.weight", 2, 32)
    floats(at .. "mlp.router.bias", 2)
    want.gate_up = blocks(at .. "mlp.experts.gate_up_proj", 128, 32)
    want.down = blocks(at .. "mlp.experts.down_proj", 32, 64)
    want.bias = floats(at .. "mlp.experts.gate_up_proj_bias", 2, 128)
    floats(at .. "mlp.experts.down_proj_bias", 2, 32)
    write(folder .. "/model.safetensors", list)
    local model = moth.models.load(folder)
    for e = 1, 2 do
      local own = model.model.layers[1].mlp.experts[e]
      assert.equal("BlockLinear(in_features=64, out_features=32, bias=True, MXFP4)", tostring(own.down_proj))
      local both = want.gate_up[e]:reshape(64, 2, 32)
      assert.is_true(moth.equal(both:select(2, 1), own.gate_proj:dequantized()))
      assert.is_true(moth.equal(both:select(2, 2), own.up_proj:dequantized()))
      assert.is_true(moth.equal(want.down[e], own.down_proj:dequantized()))
      assert.is_true(moth.equal(want.bias[e]:reshape(64, 2):select(2, 2), own.up_proj.bias))
    end
    assert.is_true(model(moth.tensor({ { 3, 4, 5 } }, { dtype = moth.int64 })):isfinite():all():item())
  end)
end)
