-- Families of models beside Llama's own (fixtures.py): what transformers computes of them; and blocks of GGUF.
local moth = require "moth"
local cjson = require "cjson"

local folder = "spec/llm/fixtures/families/"
local int = { dtype = moth.int64 }

local function content(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "*a"
  f:close()
  return text
end
local function counted(list, n)
  local out = {}
  for i = 1, n or #list do out[i] = list[i] + 1 end
  return out
end
local function last(model, want)
  return moth.no_grad(model.forward, model, moth.tensor({ counted(want.ids) }, int)):select(2, -1):view(-1)
end
local function temporary()
  local path = os.tmpname()
  finally(function()
    os.remove(path)
    os.remove(path .. ".gguf")
  end)
  return path .. ".gguf"
end

describe("language models #M444", function()
  for _, name in ipairs { "mistral", "qwen2", "qwen2_window", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "yarn" } do
    it("are transformers' to 1e-4, and their greedy ids: " .. name, function()
      local want = cjson.decode(content(folder .. name .. "/want.json"))
      local model = moth.models.load(folder .. name)
      assert.is_close(moth.tensor(want.logits), last(model, want), { rtol = 0, atol = 1e-4 })
      local prompt = counted(want.ids, 9)
      assert.same(counted(want.out),
        model:generate(moth.tensor({ prompt }, int), #want.out - 9, { do_sample = false }):view(-1):totable())
      -- two rows, one of them padded on the left: as if it stood alone
      local rows = moth.tensor({ { 1, 1, 1, unpack(prompt, 1, 6) }, prompt }, int)
      local mask = moth.ones(2, 9)
      mask[1]:narrow(1, 1, 3):fill_(0)
      local padded = model:generate(rows, 6, { do_sample = false, attention_mask = mask })
      local alone = model:generate(rows:narrow(1, 1, 1):narrow(2, 4, 6), 6, { do_sample = false })
      assert.same(alone[1]:totable(), padded[1]:narrow(1, 4, 12):totable())
      assert.same({ unpack(counted(want.out), 1, 15) }, padded[2]:totable())
      -- over pages, in pieces, beside another one
      local s = moth.llm.Scheduler(model, { max_tokens = 256, step_tokens = 5 })
      local r = s:add { ids = prompt, max_tokens = #want.out - 9, temperature = 0 }
      s:add { ids = { 3, 4 }, max_tokens = 20, temperature = 0 }
      while s:step() > 0 do end -- luacheck: ignore 542
      assert.same(counted(want.out), r.ids)
    end)
  end

  it("of these families go into GGUF files and back, or are refused", function()
    local path = temporary()
    for _, name in ipairs { "mistral", "qwen2", "qwen3", "gemma", "gemma2", "yarn" } do
      local want = cjson.decode(content(folder .. name .. "/want.json"))
      moth.models.save_gguf(moth.models.load(folder .. name), path)
      assert.is_close(moth.tensor(want.logits), last(moth.models.load(path), want), { rtol = 0, atol = 1e-4 })
    end
    for name, why in pairs { phi3 = "for rope_scaling longrope", qwen2_window = "for layer_types = fw" } do
      assert.error_matches(function() moth.models.save_gguf(moth.models.load(folder .. name), "/nowhere/x") end, why)
    end
  end)

  it("with what is not known of a config are refused by name", function()
    local path = os.tmpname()
    os.remove(path)
    os.execute(("cp -r %sqwen2 %s"):format(folder, path))
    finally(function() os.execute("rm -r " .. path) end)
    local function fails(why, change)
      local config = cjson.decode(content(folder .. "qwen2/config.json"))
      for key, v in pairs(change) do config[key] = v end
      local f = assert(io.open(path .. "/config.json", "w"))
      f:write(cjson.encode(config))
      f:close()
      assert.error_matches(function() moth.models.load(path) end, why)
    end
    fails("hidden_act = xielu is not supported; there are gelu", { hidden_act = "xielu" })
    fails("rope_scaling 'ntk' is not known; there are linear", { rope_parameters = { rope_type = "ntk" } })
    for why, rope in pairs { ["factor of 'linear' must be a number above 0, got nil"] = { rope_type = "linear" },
      ["factor of 'yarn' must be a number above 0, got %-2"] = { rope_type = "yarn", factor = -2 },
      ["factor of 'linear' must be a number above 0, got the string '2'"] = { rope_type = "linear", factor = "2" },
      ["low_freq_factor of 'llama3' must be a number above 0, got nil"] = { rope_type = "llama3", factor = 2 },
      ["low_freq_factor and high_freq_factor must differ"] = { rope_type = "llama3", factor = 2, low_freq_factor = 1,
        high_freq_factor = 1, original_max_position_embeddings = 8 },
      ["short_factor must be a list of %d numbers, got 1"] = { rope_type = "longrope", short_factor = { 1 },
        original_max_position_embeddings = 8 },
      ["rope_theta must be a number above 0, got 0"] = { rope_theta = 0 },
      ["rope_scaling must be an object, got x"] = "x" } do
      fails(why, { rope_parameters = rope })
    end
    fails("type 'rwkv' are not supported; there are gpt2, mamba, arcee, .* and starcoder2; encoders: albert",
      { model_type = "rwkv" })
    fails("weights quantized by awq are not supported", { quantization_config = { quant_method = "awq" } })
    fails("attention_multiplier = 0.5 is not supported; if it changes no number, give ignore_fields",
      { attention_multiplier = 0.5 })
    fails("use_mrope = true is not supported", { use_mrope = true })
    fails("is_encoder_decoder = true is not supported", { is_encoder_decoder = true })
    fails("rope_scaling.mrope_section is not supported", { rope_parameters = { rope_type = "linear", factor = 2,
      mrope_section = { 1 } } })
    fails("layers of type 'linear_attention'", { sliding_window = 4, use_sliding_window = true,
      layer_types = { "linear_attention", "full_attention" } })
    fails("the weights do not fit: missing .*k_norm", { model_type = "qwen3" })
    local sd, other = moth.load(folder .. "qwen2/model.safetensors"), {}
    for name, t in pairs(sd) do other[name] = name:find "norm" and t or t:half() end
    moth.save_safetensors(other, path .. "/model.safetensors")
    for name, t in pairs(sd) do other[name] = not name:find "k_proj%.bias" and t or nil end
    moth.save_safetensors(other, path .. "/model.safetensors")
    fails("the weights do not fit: missing .*k_proj%.bias", {})
    for name, t in pairs(sd) do other[name] = not name:find "_proj%.bias" and t or nil end
    moth.save_safetensors(other, path .. "/model.safetensors")
    fails("the weights do not fit: missing .*q_proj%.bias", {})
    for name, t in pairs(sd) do other[name] = name:find "norm" and t or t:half() end
    moth.save_safetensors(other, path .. "/model.safetensors")
    fails("type 'none'", { model_type = "none" })
    fails("its config.json has no model_type", { model_type = cjson.null })
    os.execute(("cp %sqwen2/config.json %s"):format(folder, path))
    assert.equal(moth.float16, moth.models.load(path).model.norm.weight:dtype()) -- norms are float32 in the file
    other["lm_head.weight"] = sd["lm_head.weight"]:to(moth.int8)
    moth.save_safetensors(other, path .. "/model.safetensors")
    assert.error_matches(function() moth.models.load(path) end, "the weight lm_head.weight is of .*int8; floats")
    os.remove(path .. "/model.safetensors")
    local f = assert(io.open(path .. "/model.safetensors.index.json", "w"))
    f:write '{"weight_map": 3}'
    f:close()
    assert.error_matches(function() moth.models.load(path) end, "has no table weight_map")
  end)
end)

describe("GGUF's quantized blocks", function()
  it("are the gguf package's to the bit", function()
    local file = moth.gguf.load "spec/llm/fixtures/blocks.gguf"
    for name, kind in pairs(file.types) do
      if not name:find "want" then
        assert.equal(name, kind)
        assert.is_true(moth.equal(file.tensors[name], file.tensors[name .. ".want"]), name)
      end
    end
  end)

  it("of other types are refused by name, with what to do", function()
    local bytes, other = content "spec/llm/fixtures/blocks.gguf", os.tmpname()
    finally(function() os.remove(other) end)
    local at = bytes:find("\4" .. ("\0"):rep(7) .. "Q6_K\2", 1, true) + 8 + 4 + 4 + 16
    local f = assert(io.open(other, "wb"))
    f:write(bytes:sub(1, at - 1), "\15", bytes:sub(at + 1))
    f:close()
    assert.error_matches(function() moth.gguf.load(other) end,
      "Q6_K is of type Q8_K %(15%); F32, .*, Q6_K, .*, NVFP4 are supported\nHINT: .*llama%-quantize")
  end)

  it("keep the kinds of numbers that llama.cpp takes as float32", function()
    local path = temporary()
    moth.gguf.save(path, { ["llama.rope.freq_base"] = 10000, ["tokenizer.ggml.scores"] = { 0, -1 }, n = 3 }, {})
    local bytes = content(path)
    assert.is_truthy(bytes:find("freq_base\6\0\0\0\0@\28F", 1, true))
    assert.is_truthy(bytes:find("scores\9\0\0\0\6\0\0\0", 1, true))
    assert.is_truthy(bytes:find("n\4\0\0\0\3", 1, true))
  end)
end)

describe("SentencePiece vocabularies of GGUF files", function()
  local tokenizer = require("moth.models.gguf").tokenizer(moth.gguf.load("spec/llm/fixtures/pieces.gguf").metadata, "x",
    "spec")
  it("give the ids of the sentencepiece package, and the text back", function()
    for i, case in ipairs(cjson.decode(content "spec/llm/fixtures/pieces.json")) do
      local ids = tokenizer:encode(case[1])
      assert.same(counted(case[2]), ids, i)
      assert.equal(case[1], tokenizer:decode(ids))
    end
    assert.equal(2, tokenizer:encode("a", { add_special_tokens = true })[1])
  end)
  it("take any bytes, and a million equal letters", function()
    local started = os.clock()
    local ids = tokenizer:encode(("a"):rep(1e6))
    assert.is_true(os.clock() - started < 2)
    assert.equal(1e6, #tokenizer:decode(ids))
    local bytes, x = {}, 1
    for i = 1, 3000 do
      x = x * 16807 % 2147483647
      bytes[i] = string.char(x % 256)
    end
    local text = table.concat(bytes)
    assert.is_true(tokenizer:decode(tokenizer:encode(text)) == text)
  end)
end)

describe("language models with quantized weights", function()
  for name, make in pairs {
    GPT = function()
      return moth.models.GPT { vocab_size = 64, n_layer = 1, n_head = 2, n_embd = 64, block_size = 32 }
    end,
    Llama = function()
      return moth.models.Llama { vocab_size = 64, hidden_size = 64, intermediate_size = 64, num_hidden_layers = 1,
        num_attention_heads = 2, tie_word_embeddings = true }
    end } do
    it("run over pages as they do by themselves: " .. name, function()
      moth.manual_seed(3)
      local model = moth.quantization.quantize_weights(make():eval(), { bits = 8 })
      local s = moth.llm.Scheduler(model, { max_tokens = 64 })
      local r = s:add { ids = { 3, 4, 5 }, max_tokens = 8, temperature = 0 }
      while s:step() > 0 do end -- luacheck: ignore 542
      assert.same(model:generate(moth.tensor({ { 3, 4, 5 } }, int), 8, { do_sample = false }):view(-1):totable(), r.ids)
    end)
  end
end)

describe("mixtures of experts in GGUF files", function()
  -- A tiny model of the architecture, written under the names that llama.cpp has; moth's perplexity of such files was
  -- llama-perplexity's to 5e-4.
  local function file_of(path, kind, c, names)
    moth.manual_seed(4)
    local net = moth.models.Llama(c)
    moth.no_grad(function()
      for name, p in net:named_parameters() do
        if not name:find "norm" then p:copy_(moth.randn(p:size()) * 0.2) end
      end
    end)
    local sd, t, metadata = net:state_dict(), {}, { ["general.architecture"] = kind }
    for key, v in pairs { block_count = 2, embedding_length = 32, feed_forward_length = c.intermediate_size,
      ["attention.head_count"] = 2, ["attention.head_count_kv"] = 1, ["attention.layer_norm_rms_epsilon"] = 1e-6,
      context_length = 64, expert_count = 4, expert_used_count = 2, ["rope.freq_base"] = 10000,
      ["attention.sliding_window"] = c.sliding_window, ["rope.dimension_count"] = 16,
      expert_feed_forward_length = c.moe_intermediate_size } do
      metadata[kind .. "." .. key] = v
    end
    local known = { attn_q = "self_attn.q_proj", attn_k = "self_attn.k_proj", attn_v = "self_attn.v_proj",
      attn_output = "self_attn.o_proj", attn_norm = "input_layernorm", ffn_gate_inp = "mlp.gate",
      attn_q_norm = "self_attn.q_norm", attn_k_norm = "self_attn.k_norm",
      [names or "ffn_norm"] = "post_attention_layernorm" }
    for gguf, own in pairs { token_embd = "model.embed_tokens", output = "lm_head", output_norm = "model.norm" } do
      t[gguf .. ".weight"] = sd[own .. ".weight"]
    end
    for i = 0, 1 do
      local there, here = ("blk.%d."):format(i), ("model.layers.%d."):format(i)
      t[there .. "attn_sinks.weight"] = sd[here .. "self_attn.sinks"]
      for _, ending in ipairs { ".weight", ".bias" } do
        for gguf, own in pairs(known) do t[there .. gguf .. ending] = sd[here .. own .. ending] end
        for _, part in ipairs { "gate", "up", "down" } do
          local list = {}
          for e = 1, 4 do list[e] = sd[("%smlp.experts.%d.%s_proj%s"):format(here, e - 1, part, ending)] end
          if list[1] then t[there .. "ffn_" .. part .. "_exps" .. ending] = moth.stack(list, 1) end
        end
      end
    end
    for name, tensor in pairs(t) do t[name] = tensor:detach():contiguous() end
    moth.gguf.save(path, metadata, t, function(_, x) return x:dim() == 3 and "Q8_0" or "F32" end)
    return net:eval()
  end

  it("are read: Mixtral's, Qwen 3's, gpt-oss's", function()
    local path = os.tmpname() .. ".gguf"
    finally(function() os.remove(path) end)
    local ids = moth.randint(1, 41, { 1, 20 })
    for kind, more in pairs { llama = { rope_interleaved = true }, qwen3moe = { qk_norm = true,
      moe_intermediate_size = 64 }, ["gpt-oss"] = { router = "best", sinks = true, mlp_bias = true, swiglu_limit = 7,
      attention_bias = true, sliding_window = 5, layer_types = { "sliding_attention", "full_attention" } } } do
      local c = { vocab_size = 40, hidden_size = 32, intermediate_size = 32, num_hidden_layers = 2,
        num_attention_heads = 2, num_key_value_heads = 1, max_position_embeddings = 64, num_experts = 4,
        num_experts_per_tok = 2, norm_topk_prob = true }
      for key, v in pairs(more) do c[key] = v end
      local net = file_of(path, kind, c, kind == "gpt-oss" and "post_attention_norm" or nil)
      local model, floats = moth.models.load(path), moth.models.load(path, { dtype = moth.float32 })
      local own = model.model.layers[2].mlp.experts[3].down_proj
      assert.equal("Q8_0", own.type)
      local want = net.model.layers[2].mlp.experts[3].down_proj
      assert.is_true((own:dequantized() - want.weight):abs():max():item() < 0.005)
      moth.no_grad(function() -- the same weights: the same logits
        for e = 1, 4 do
          for i = 1, 2 do
            for _, part in ipairs { "gate_proj", "up_proj", "down_proj" } do
              net.model.layers[i].mlp.experts[e][part].weight:copy_(floats.model.layers[i].mlp.experts[e][part].weight)
            end
          end
        end
      end)
      assert.is_true((net(ids) - floats(ids)):abs():max():item() < 1e-5, kind)
    end
    local file = moth.gguf.load(path)
    file.metadata["general.architecture"] = "dbrx"
    moth.gguf.save(path, file.metadata, file.tensors)
    assert.error_matches(function() moth.models.load(path) end,
      "'dbrx' are not supported; there are gpt2, arcee, .* starcoder2")
  end)
end)
