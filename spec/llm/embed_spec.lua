-- llm.Embedder: texts as vectors, by itself, in the engine and behind /v1/embeddings.
local moth = require "moth"
local cjson = require "cjson"
local base64 = require "moth.utils.base64"
local ffi = require "ffi"

local words = { "[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sits", "on", "moon" }
local tokenizer_json = [[{"version":"1.0","added_tokens":[],"normalizer":null,
  "pre_tokenizer":{"type":"Whitespace"},"decoder":null,"truncation":null,"padding":null,
  "post_processor":{"type":"BertProcessing","sep":["[SEP]",3],"cls":["[CLS]",2]},
  "model":{"type":"WordLevel","unk_token":"[UNK]","vocab":%s}}]]
local lists = { { 3, 5, 6, 7, 4 }, { 3, 9, 4 }, { 3, 5, 6, 7, 8, 5, 9, 4 } } -- ids from 1
local texts = { "the cat sits", "moon", "the cat sits on the moon" }

local folder, sd
local function write(name, text)
  local f = assert(io.open(folder .. "/" .. name, "wb"))
  f:write(type(text) == "string" and text or cjson.encode(text))
  f:close()
end

local function encoder()
  moth.manual_seed(5)
  local net = moth.models.BERT { vocab_size = #words, hidden_size = 12, num_hidden_layers = 2, num_attention_heads = 2,
    intermediate_size = 20, max_position_embeddings = 16, pooler = false }:eval()
  moth.no_grad(function()
    for _, p in ipairs(net:parameters()) do p:copy_(moth.randn(p:size()) * 0.5) end
  end)
  return net
end

-- Of a text alone, no padding: hidden states (T, H).
local function states(net, ids)
  return moth.no_grad(net.features, net, moth.tensor({ ids }, { dtype = moth.int64 })):select(1, 1)
end
local function unit(v) return v / v:pow(2):sum():sqrt() end
local function close(a, b) assert.is_true((a - b):abs():max():item() < 1e-5) end

describe("texts as vectors", function()
  lazy_setup(function()
    folder = os.tmpname()
    os.remove(folder)
    os.execute("mkdir -p " .. folder .. "/1_Pooling " .. folder .. "/2_Dense")
    local vocab = {}
    for i, word in ipairs(words) do vocab[word] = i - 1 end
    write("tokenizer.json", tokenizer_json:format(cjson.encode(vocab)))
    write("config.json", { model_type = "bert", architectures = { "BertModel" }, vocab_size = #words, hidden_size = 12,
      num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 20, max_position_embeddings = 16 })
    write("sentence_bert_config.json", { max_seq_length = 10 })
    write("1_Pooling/config.json", { word_embedding_dimension = 12, pooling_mode_cls_token = false,
      pooling_mode_mean_tokens = true, pooling_mode_max_tokens = true })
    write("2_Dense/config.json", { in_features = 24, out_features = 6, bias = true,
      activation_function = "torch.nn.modules.activation.Tanh" })
    write("modules.json", { { idx = 0, path = "", type = "sentence_transformers.models.Transformer" },
      { idx = 1, path = "1_Pooling", type = "sentence_transformers.models.Pooling" },
      { idx = 2, path = "2_Dense", type = "sentence_transformers.models.Dense" },
      { idx = 3, path = "3_Normalize", type = "sentence_transformers.models.Normalize" } })
    sd = { ["linear.weight"] = moth.randn(6, 24), ["linear.bias"] = moth.randn(6) }
    moth.save(sd, folder .. "/2_Dense/model.safetensors")
    local net, weights = encoder(), {}
    for name, t in pairs(net:state_dict()) do weights[name] = t end
    weights["pooler.dense.weight"], weights["pooler.dense.bias"] = moth.zeros(12, 12), moth.zeros(12)
    moth.save(weights, folder .. "/model.safetensors")
  end)
  lazy_teardown(function() os.execute("rm -r " .. folder) end)

  it("base64 is RFC 4648's", function()
    for _, case in ipairs { { "", "" }, { "f", "Zg==" }, { "fo", "Zm8=" }, { "foo", "Zm9v" }, { "foobar", "Zm9vYmFy" },
      { "\255\254\0", "//4A" } } do
      assert.equal(case[2], base64.encode(case[1]))
      assert.equal(case[1], base64.decode(case[2]))
    end
    for _, bad in ipairs { "Zg=", "Z-==", "=Zg=" } do assert.is_nil(base64.decode(bad)) end
  end)

  it("are pooled as they would be alone, however long their neighbours are", function()
    local net, _, tokenizer = encoder(), moth.models.load(folder)
    local llama = moth.models.load "spec/llm/fixtures/llama"
    local function weights(n) return moth.arange(1, n + 1):unsqueeze(2) end
    local want = {
      mean = function(x) return x:mean(1) end, cls = function(x) return x[1] end,
      max = function(x) return x:amax(1) end, last = function(x) return x[-1] end,
      mean_sqrt_len = function(x) return x:sum(1) / math.sqrt(x:size(1)) end,
      weightedmean = function(x) return (x * weights(x:size(1))):sum(1) / weights(x:size(1)):sum() end }
    for _, model in ipairs { net, llama } do
      for name, f in pairs(want) do
        local embed = moth.llm.Embedder(model, tokenizer, { pooling = name, normalize = name ~= "max" })
        local got = embed:of(lists)
        for i, ids in ipairs(lists) do
          local alone = f(states(model, ids))
          close(got[i], name ~= "max" and unit(alone) or alone)
        end
      end
    end
    assert.same({ "mean", "last" }, { moth.llm.Embedder(net, tokenizer).pooling[1],
      moth.llm.Embedder(llama, tokenizer).pooling[1] })
    assert.error_matches(function() moth.llm.Embedder(net, tokenizer, { pooling = "sum" }) end, "expected one of cls")
    assert.error_matches(function() moth.llm.Embedder(moth.nn.ReLU(), tokenizer) end, "expected an encoder or a lang")
  end)

  it("are what sentence-transformers' files say", function()
    local model, tokenizer, info = moth.models.load(folder)
    local embed = moth.llm.Embedder(model, tokenizer, info.embedding)
    assert.same({ 10, 6, "max mean" }, { embed.max_length, embed:size(), table.concat(embed.pooling, " ") })
    local got, net = embed(texts), encoder()
    for i, ids in ipairs(lists) do
      local x = states(net, ids)
      close(got[i], unit(moth.linear(moth.cat({ x:amax(1), x:mean(1) }, 1), sd["linear.weight"], sd["linear.bias"])
        :tanh()))
    end
    close(got[2], embed "moon")
    assert.error_matches(function() embed(("cat "):rep(9)) end, "text 1 has 11 tokens; 10 are the most here")
    write("config_sentence_transformers.json", { prompts = { query = "the cat " }, default_prompt_name = "query" })
    local _, _, with_prompt = moth.models.load(folder)
    close(moth.llm.Embedder(model, tokenizer, with_prompt.embedding) "sits", got[1])
    os.remove(folder .. "/config_sentence_transformers.json")
    write("1_Pooling/config.json", { pooling_mode = "sum" })
    local _, _, strange = moth.models.load(folder) -- it can still be loaded
    assert.error_matches(function() moth.llm.Embedder(model, tokenizer, strange.embedding) end,
      "1_Pooling/config.json: the pooling 'sum' is not known")
    write("1_Pooling/config.json", { pooling_mode_mean_tokens = true, pooling_mode_max_tokens = true })
  end)

  it("of a language model without a head", function()
    local path = os.tmpname()
    os.remove(path)
    os.execute(("cp -r spec/llm/fixtures/llama %s"):format(path))
    finally(function() os.execute("rm -r " .. path) end)
    local whole = moth.models.load "spec/llm/fixtures/llama"
    local f = assert(io.open(path .. "/config.json"))
    local config = cjson.decode(f:read "*a")
    f:close()
    config.architectures, config.tie_word_embeddings = { "LlamaModel" }, false
    f = assert(io.open(path .. "/config.json", "w"))
    f:write(cjson.encode(config))
    f:close()
    local weights = {}
    for name, t in pairs(whole:state_dict()) do
      if name:find "^model%." then weights[name:sub(7)] = t end
    end
    moth.save(weights, path .. "/model.safetensors")
    local model = moth.models.load(path)
    local ids = moth.tensor({ lists[1] }, { dtype = moth.int64 })
    close(whole:features(ids), model:features(ids))
    assert.error_matches(function() model(ids) end, "this model has no head: it gives features, and no logits")
    assert.error_matches(function() moth.models.save_gguf(model, "x.gguf") end, "no architecture for head = false")
    local engine = require("moth.llm.engine").load { path = path }
    assert.is_false(engine.signature.writes)
  end)

  it("are answered beside texts, and end with their client", function()
    local engine = require("moth.llm.engine").load { path = "spec/llm/fixtures/llama" }
    engine:add(1, { kind = "completion", prompt = "It is", max_tokens = 3, temperature = 0 })
    local many = {}
    for i = 1, 150 do many[i] = { i, 2 } end
    engine:add(2, { kind = "embedding", prompts = many })
    engine:add(3, { kind = "embedding", prompts = many })
    engine:cancel(3)
    local seen = { 0, 0, 0 }
    while engine:step(function(id, piece)
      seen[id] = seen[id] + 1
      if id == 2 then
        assert.equal(seen[2] - 1, piece.index)
        assert.same({ seen[2] == 150, seen[2] == 150 and 300 }, { piece.done == true, piece.prompt_tokens or false })
      end
    end) do end -- luacheck: ignore 542
    assert.same({ 150, 0 }, { seen[2], seen[3] })
    assert.is_true(seen[1] > 0)
    engine.model.features = function() error "it does not work" end
    engine:add(4, { kind = "embedding", prompts = { "a" } })
    local failed
    engine:step(function(_, piece) failed = piece end)
    engine.model.features = nil
    assert.same({ 500, true }, { failed.status, failed.done })
    engine:add(5, { kind = "embedding", prompts = { "a" } })
    assert.is_false(engine:step(function(_, piece) failed = piece end))
    assert.is_string(failed.vector)
  end)

  it("come of /v1/embeddings #noasan", function()
    if not require("moth.serve.front").available() then pending "lua-http is not there" return end
    local server = moth.serve.spawn { port = 0, threads = 1,
      models = { bert = folder, lm = "spec/llm/fixtures/llama" } }
    finally(function() server:stop() end)
    local function ask(o, path)
      o.model = o.model or "bert"
      local answer = server:post(path or "/v1/embeddings", cjson.encode(o))
      return answer.status, cjson.decode(answer.body)
    end
    local model, tokenizer, info = moth.models.load(folder)
    local want = moth.llm.Embedder(model, tokenizer, info.embedding)(texts)
    local status, out = ask { input = texts, user = "u" }
    assert.same({ 200, "list", "bert", 3 }, { status, out.object, out.model, #out.data })
    assert.same({ prompt_tokens = 16, total_tokens = 16 }, out.usage)
    for i, one in ipairs(out.data) do
      assert.same({ "embedding", i - 1 }, { one.object, one.index })
      close(want[i], moth.tensor(one.embedding))
    end
    status, out = ask { input = "moon", encoding_format = "base64" }
    assert.equal(200, status)
    local bytes = base64.decode(out.data[1].embedding)
    local numbers, list = ffi.cast("const float *", bytes), {}
    for i = 1, #bytes / 4 do list[i] = numbers[i - 1] end
    close(want[2], moth.tensor(list))
    status, out = ask { input = { { 2, 8, 3 }, { 2, 4, 5, 6, 3 } }, dimensions = 4, encoding_format = "float" }
    assert.equal(200, status)
    close(unit(want[2]:narrow(1, 1, 4)), moth.tensor(out.data[1].embedding)) -- cut, and of length 1 again
    close(unit(want[1]:narrow(1, 1, 4)), moth.tensor(out.data[2].embedding))
    status, out = ask { input = { 2, 8, 3 } }
    assert.same({ 200, 1 }, { status, #out.data })
    close(want[2], moth.tensor(out.data[1].embedding))
    status, out = ask { model = "lm", input = "It is" }
    assert.same({ 200, 16 }, { status, #out.data[1].embedding })
    local function refused(code, param, pattern, o, path)
      status, out = ask(o, path)
      assert.same({ code, param or cjson.null }, { status, out.error.param })
      assert.matches(pattern, out.error.message)
    end
    refused(400, "input", "is empty", { input = "" })
    refused(400, "input[1]", "is empty", { input = { "a", "" } })
    refused(400, "input", "is missing", {})
    refused(400, "encoding_format", "float or base64", { input = "a", encoding_format = "int8" })
    refused(400, "temperature", "not supported", { input = "a", temperature = 1 })
    refused(400, nil, "dimensions: there are 6", { input = "a", dimensions = 7 })
    refused(400, nil, "input%[0%] has 11 tokens: this model's maximum context length is 10", { input = ("on "):rep(9) })
    refused(400, "input[0]", "bytes: this model's maximum context length is 10 tokens", { input = ("moon "):rep(90) })
    refused(400, nil, "there is no token 99", { input = { 99 } })
    refused(404, "model", "there is no language model", { input = "a", model = "x" })
    refused(400, "model", "'bert' gives vectors, and writes nothing: POST /v1/embeddings", { prompt = "a" },
      "/v1/completions")
  end)
end)
