-- Families of language models that moth.models.load takes: what transformers computes with weights made by a formula
-- (spec/parity/families.py DIR --spec wrote the configs and the numbers).
local moth = require "moth"
local formula = require "spec.models.formula"

local cases, names = formula.cases "families.json"

local path
local function folder(config, sd)
  if not path then
    path = os.tmpname()
    os.remove(path)
    os.execute("mkdir " .. path)
  end
  local out = assert(io.open(path .. "/config.json", "w"))
  out:write(moth.json.encode(config))
  out:close()
  if sd then moth.save_safetensors(sd, path .. "/model.safetensors") end
  return path
end
local function weights(case)
  local sd = {}
  for name, sizes, count in (case.shapes .. " "):gmatch "(%S+)=([%dx]+)%*?(%d*) " do
    local shape = {}
    for size in sizes:gmatch "%d+" do shape[#shape + 1] = tonumber(size) end
    for layer = 0, (tonumber(count) or 1) - 1 do
      local own = name:gsub("#", layer)
      sd[own] = formula.weight(own, shape, #shape == 1 and not own:find "bias$")
    end
  end
  return sd
end
local function ints(rows, more) return moth.tensor(rows, { dtype = moth.int64 }) + (more or 0) end
local function results(case, model)
  local o = case.mask and { attention_mask = ints(case.mask), token_type_ids = case.types and ints(case.types, 1) }
  return moth.no_grad(function() return { model(ints(case.ids, 1), o or nil) } end)
end

describe("families of language models #quick", function()
  teardown(function() os.execute("rm -r " .. path) end)

  for _, name in ipairs(names) do
    it("are transformers' to 1e-4: " .. name, function()
      local case = cases[name]
      local model, _, info = moth.models.load(folder(case.config, weights(case)))
      local out = results(case, model)
      assert.equal(#case.out, #out)
      for i, want in ipairs(case.out) do
        assert.equal("[" .. table.concat(want.shape, ", ") .. "]", tostring(out[i]:size()))
        assert.is_close(moth.tensor(want.tail), formula.last(out[i]), { rtol = 0, atol = 1e-4 })
      end
      for r, want in ipairs(case.greedy or {}) do
        local prompt = ints({ case.ids[r] }, 1)
        assert.same(want, (model:generate(prompt, #want - #case.ids[r], { do_sample = false }) - 1):view(-1):totable())
      end
      if name:find "ForSequence" then assert.same({ "LABEL_0", "LABEL_1", "LABEL_2" }, info.labels) end
    end)
  end
end)

describe("decoders #quick", function()
  teardown(function() os.execute("rm -r " .. path) end)
  local function loaded(name, change)
    local case, config = cases[name], {}
    for key, v in pairs(case.config) do config[key] = v end
    for key, v in pairs(change or {}) do config[key] = v end
    return moth.models.load(folder(config, weights(case))), case
  end

  it("compute over pages and beside padding what they compute alone", function()
    path = nil
    for _, name in ipairs { "bloom", "falcon of 1b", "opt", "cohere2", "smollm3", "mixtral", "gpt2 scaled",
      "gpt2 untied", "deepseek_v2", "deepseek_v3", "glm4_moe",
      "gpt_oss", "mamba" } do
      local model, case = loaded(name)
      local ids, want = ints(case.ids, 1), ints(case.greedy, 1)
      local s = moth.llm.Scheduler(model, { max_tokens = 256, step_tokens = 5 })
      local requests = {}
      for r = 1, 2 do requests[r] = s:add { ids = ids[r]:totable(), max_tokens = 10, temperature = 0 } end
      while s:step() > 0 do end -- luacheck: ignore 542
      for r = 1, 2 do assert.same(want[r]:totable(), requests[r].ids, name) end
      local mask = moth.ones_like(ids)
      mask[1]:narrow(1, 1, 3):fill_(0)
      local padded = model:generate(ids, 10, { do_sample = false, attention_mask = mask })
      local alone = model:generate(ids:narrow(1, 1, 1):narrow(2, 4, 6), 10, { do_sample = false })
      assert.same(alone[1]:totable(), padded[1]:narrow(1, 4, 16):totable(), name)
      assert.same(want[2]:totable(), padded[2]:totable(), name)
    end
  end)

  it("leave out the layers that predict further tokens, and refuse other mixtures by name", function()
    path = nil
    local case = cases.deepseek_v3
    local sd = weights(case)
    sd["model.layers.3.mlp.gate.weight"] = moth.ones(2)
    local model = moth.models.load(folder(case.config, sd))
    local logits = model(ints(case.ids, 1))
    assert.is_close(moth.tensor(case.out[1].tail), formula.last(logits), { rtol = 0, atol = 1e-4 })
    assert.error_matches(function() loaded("deepseek_v3", { scoring_func = "softmax" }) end,
      "scoring_func = softmax is not supported")
    assert.error_matches(function() loaded("deepseek_v2", { topk_method = "noaux_tc" }) end,
      "topk_method = noaux_tc is not supported")
    -- Cosines under a factor of their own, for which llama.cpp has no field.
    assert.error_matches(function() moth.models.save_gguf(model, path .. "/x.gguf") end,
      "no architecture for rope_scaling yarn")
  end)

  it("honour a false where the family has true, and refuse by name what they do not compute", function()
    path = nil
    for why, change in pairs {
      ["apply_residual_connection_post_layernorm = true is not supported"] =
        { apply_residual_connection_post_layernorm = true },
      ["num_ln_in_parallel_attn = 2 is not supported"] = { num_ln_in_parallel_attn = 2 },
      ["hidden_act = prelu is not supported"] = { activation = "prelu" },
      ["rotary_dim = 4 is not supported"] = { rotary_dim = 4 } } do
      assert.error_matches(function() loaded("falcon", change) end, why)
    end
    local case, sd = cases.falcon, weights(cases.falcon)
    sd["lm_head.weight"], case.config.tie_word_embeddings = moth.zeros(40, 16), false
    local logits = moth.models.load(folder(case.config, sd))(ints(case.ids, 1))
    case.config.tie_word_embeddings = true
    assert.equal(0, logits:abs():max():item())
    assert.error_matches(function()
      loaded("olmo3", { rope_parameters = { full_attention = {}, sliding_attention = { rope_type = "linear" } } })
    end, "rope_parameters of layers with a window of rope_type = linear are not supported")
    assert.error_matches(function()
      loaded("exaone4", { layer_types = moth.json.null, sliding_window_pattern = "LLLG" })
    end, "sliding_window_pattern = LLLG is not supported without layer_types")
    for why, change in pairs { ["layer_types must be a list of 2 values, one for each layer, got 1"] =
        { layer_types = { "full_attention" } }, ["partial_rotary_factor = 0.5 with rope_type = linear is not"] =
        { rope_parameters = { rope_type = "linear", factor = 2, partial_rotary_factor = 0.5 } } } do
      assert.error_matches(function() loaded("cohere2", change) end, why)
    end
    for part, why in pairs { [0.1] = "rotates 0 of the 4 coordinates of a head", [0.75] =
      "rotates 3 of the 4 coordinates of a head; expected an even number" } do
      local change = { rope_parameters = { rope_type = "default", rope_theta = 1000, partial_rotary_factor = part } }
      assert.error_matches(function() loaded("phi", change) end, why)
    end
    local function options(kind, more)
      local config = { model_type = kind, vocab_size = 9, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
        num_attention_heads = 2 }
      for key, v in pairs(more) do config[key] = v end
      return (require("moth.models.families").read(config, {}, "test", nil, {}))
    end
    for name, act in pairs { gelu = "gelu_tanh", silu = "silu", relu = "relu" } do
      assert.equal(act, options("gemma", { hidden_act = name }).hidden_act)
    end
    assert.equal("gelu_tanh", options("gemma", {}).hidden_act)
    assert.equal(2, options("gemma2", { attn_logit_softcapping = 2 }).attention_softcap)
    assert.is_nil(options("gemma3_text", { attn_logit_softcapping = 2 }).attention_softcap)
    -- What transformers leaves alone is left alone, and not computed with.
    local function same(name, change)
      local plain, own = loaded(name), cases[name]
      local ids = ints(own.ids, 1)
      assert.is_true(moth.equal(plain(ids), (loaded(name, change)(ids))), name)
    end
    same("cohere2", { partial_rotary_factor = 0.5 })
    same("smollm3", { partial_rotary_factor = 0.5 })
    for why, change in pairs { ["head_dim = 2 is not supported; expected that of qk_rope_head_dim"] = { head_dim = 2 },
      ["num_experts_per_tok %(6%) is more than the 2 groups that are looked at have, of 2 each"] =
        { num_experts_per_tok = 6 }, ["num_experts %(8%) must be a multiple of expert_groups"] = { n_group = 3 } } do
      assert.error_matches(function() loaded("deepseek_v3", change) end, why)
    end
    assert.error_matches(function() loaded("gptj", { rotary_dim = 17 }) end, "rotates 16 of the 8 coordinates")
    assert.error_matches(function() loaded("smollm3", { no_rope_layers = { 1 } }) end,
      "no_rope_layers must be a list of 4 values, one for each layer, got 1")
    assert.error_matches(function() loaded("arcee", { attention_bias = false }) end, "unknown .*q_proj.bias")
    -- BLOOM's own files have no prefix.
    local bloom, bare = cases.bloom, {}
    for name, t in pairs(weights(bloom)) do bare[name:gsub("^transformer%.", "")] = t end
    local got = moth.models.load(folder(bloom.config, bare))(ints(bloom.ids, 1))
    assert.is_true(got:equal(moth.models.load(folder(bloom.config, weights(bloom)))(ints(bloom.ids, 1))))
    -- A head that is missing is not made up.
    bare = weights(cases.phi)
    bare["lm_head.weight"] = nil
    assert.error_matches(function() moth.models.load(folder(cases.phi.config, bare)) end, "missing lm_head.weight")
    assert.error_matches(function() loaded("qwen3_moe", { num_experts = 1, num_local_experts = 1 }) end,
      "num_experts_per_tok %(2%) is more than num_experts %(1%)")
    assert.error_matches(function() loaded("mixtral", { router_jitter_noise = 0.1 }) end, "router_jitter_noise = 0.1")
    for name, why in pairs { gpt_neox = "hidden_act = gelu",
      ["gpt2 scaled"] = "GPT%-2 with activation_function = gelu", bloom = ".*positions = alibi",
      ["gpt2 untied"] = "GPT%-2 with activation_function = relu" } do
      assert.error_matches(function() moth.models.save_gguf(loaded(name), "/nowhere/x") end, "architecture for " .. why)
    end
  end)
end)

describe("mixtures of experts #quick", function()
  it("have gradients in what is chosen, and in nothing else", function()
    moth.manual_seed(1)
    local model = moth.models.Llama { vocab_size = 9, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
      num_attention_heads = 2, num_experts = 8, num_experts_per_tok = 1, shared_expert_size = 4 }
    select(2, model(ints { { 2 } }, ints { { 3 } })):backward()
    local mlp, used = model.model.layers[1].mlp, 0
    for e = 1, 8 do
      local grad = mlp.experts[e].up_proj.weight.grad
      if grad and grad:abs():max():item() > 0 then used = used + 1 end
    end
    assert.equal(1, used)
    assert.is_true(mlp.gate.weight.grad:abs():max():item() > 0)
    assert.is_true(mlp.shared_expert_gate.weight.grad:abs():max():item() > 0)
  end)

  it("are quantized as other models are, and refuse more experts for a token than there are", function()
    moth.manual_seed(2)
    local model = moth.models.Llama { vocab_size = 40, hidden_size = 64, intermediate_size = 64, num_hidden_layers = 1,
      num_attention_heads = 2, num_experts = 3, norm_topk_prob = true }
    local ids = ints { { 3, 4, 5, 6 } }
    local want = model:eval()(ids)
    local got = moth.quantization.quantize_weights(model, { bits = 8 })(ids)
    assert.is_true((want - got):abs():max():item() < 0.05)
    assert.error_matches(function()
      moth.models.Llama { vocab_size = 9, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
        num_attention_heads = 2, num_experts = 1 }
    end, "num_experts_per_tok %(2%) is more than num_experts %(1%)")
  end)
end)

describe("encoders #quick", function()
  local bert = cases["bert ForSequenceClassification"]
  local function with(case, change)
    local config = {}
    for key, v in pairs(case.config) do config[key] = v end
    for key, v in pairs(change) do config[key] = v end
    return config
  end
  local load = moth.models.BERT.from_pretrained
  teardown(function() os.execute("rm -r " .. path) end)

  it("are taken without their heads where that is wanted, and may have what is left of training", function()
    path = nil
    local sd = weights(bert)
    local hidden = load(folder(bert.config, sd), { encoder_only = true })(ints(bert.ids, 1))
    sd["cls.seq_relationship.weight"] = moth.ones(2, 16)
    for name, t in pairs(weights(cases["bert ForMaskedLM"])) do
      if name:find "^cls" then sd[name] = t end
    end
    sd["classifier.weight"], sd["classifier.bias"] = nil, nil
    local model = load(folder(cases["bert ForMaskedLM"].config, sd))
    assert.equal("[2, 9, 40]", tostring(model(ints(bert.ids, 1)):size()))
    assert.is_true(hidden:equal((load(path, { encoder_only = true })(ints(bert.ids, 1)))))
    -- RoBERTa's head has a layer where BERT has its pooler: without the head there is none.
    local roberta = cases["roberta ForSequenceClassification"]
    assert.equal(1, select("#", load(folder(roberta.config, weights(roberta)), { encoder_only = true })(ints(
      roberta.ids, 1))))
    sd = weights(roberta)
    local want = load(path)(ints(roberta.ids, 1))
    sd["roberta.pooler.dense.weight"], sd["roberta.pooler.dense.bias"] = moth.ones(16, 16), moth.ones(16)
    assert.is_true(want:equal(load(folder(roberta.config, sd))(ints(roberta.ids, 1))))
  end)

  it("refuse by name other heads, activations and fields", function()
    path = nil
    folder(bert.config, weights(bert))
    for why, change in pairs {
      ["architectures = BertForMultipleChoice is not supported; there are .* encoder_only = true"] =
        { architectures = { "BertForMultipleChoice" } },
      ["architectures = BertForPreTraining is not supported"] = { architectures = { "BertForPreTraining" } },
      ["hidden_act = xielu is not supported; there are gelu, gelu_10"] = { hidden_act = "xielu" },
      ["a weight of a head, classifier%.%l+, and the architectures"] = { architectures = { "BertModel" } },
      ["missing .*predictions.bias"] = { architectures = { "BertForMaskedLM" } },
      ["embedding_size = 4 is not supported"] = { embedding_size = 4 },
      ["position_embedding_type = relative_key is not supported"] = { position_embedding_type = "relative_key" },
      ["model_type = deberta is not supported; there are albert, bert"] = { model_type = "deberta" } } do
      folder(with(bert, change))
      assert.error_matches(function() load(path) end, why)
    end
    local distil = cases["distilbert Model"]
    local model = load(folder(distil.config, weights(distil)))
    assert.error_matches(function() model(ints(distil.ids, 1), nil, ints(bert.types, 1)) end,
      "token_type_ids are given to a model without types")
    local roberta = cases["roberta Model"]
    model = load(folder(roberta.config, weights(roberta)))
    assert.error_matches(function() model(moth.ones({ 1, 39 }, { dtype = moth.int64 })) end,
      "39 tokens are more than max_position_embeddings less those up to padding_id, 38")
  end)
end)
