-- moth.models.load, moth.gguf and moth.generate: files of transformers (fixtures.py), what it computes of them.
local moth = require "moth"
local cjson = require "cjson"

local function content(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "*a"
  f:close()
  return text
end
local function wanted(name) return cjson.decode(content("spec/llm/fixtures/" .. name .. "/want.json")) end
local function folder()
  local path = os.tmpname()
  os.remove(path)
  os.execute("mkdir " .. path)
  finally(function() os.execute("rm -r " .. path) end)
  return path
end

local function ids_of(want)
  local ids = {}
  for i, id in ipairs(want.ids) do ids[i] = id + 1 end
  return ids
end
local function logits(model, ids)
  return moth.no_grad(model.forward, model, moth.tensor({ ids }, { dtype = moth.int64 })):select(2, -1):view(-1)
end
local function said(model, tokenizer, prompt, o)
  local parts = {}
  for piece in moth.generate(model, tokenizer, prompt, o) do parts[#parts + 1] = piece end
  return table.concat(parts)
end
local greedy = { max_tokens = 24, temperature = 0, eos = {} }

describe("language models", function()
  for _, name in ipairs { "gpt2", "llama" } do
    it("are transformers' to 1e-4 and to the letter: " .. name, function()
      local want = wanted(name)
      local model, tokenizer, info = moth.models.load("spec/llm/fixtures/" .. name)
      assert.same(ids_of(want), tokenizer:encode(want.prompt, true))
      assert.is_close(moth.tensor(want.logits), logits(model, ids_of(want)), { rtol = 0, atol = 1e-4 })
      assert.equal(want.text, said(model, tokenizer, want.prompt, greedy))
      assert.same({ name == "llama" and 2 or 1 }, info.eos)
      assert.is_false(model.training)
      for _, p in ipairs(model:parameters()) do assert.is_false(p:requires_grad()) end
    end)

    it("go into GGUF files and back: " .. name, function()
      local want, path = wanted(name), os.tmpname() .. ".gguf"
      finally(function() os.remove(path) end)
      local model, tokenizer = moth.models.load("spec/llm/fixtures/" .. name)
      moth.models.save_gguf(model, path, { tokenizer = tokenizer })
      local again, other, info = moth.models.load(path)
      assert.is_close(moth.tensor(want.logits), logits(again, ids_of(want)), { rtol = 0, atol = 1e-4 })
      assert.equal(want.text, said(again, other, want.prompt, greedy))
      assert.same(model.config.eos, info.eos)
      moth.models.save_gguf(model, path, { type = "F16" })
      assert.equal(moth.bfloat16, moth.models.load(path, { dtype = "bfloat16" }):parameters()[1]:dtype())
      again = moth.models.load(path) -- norms are float32 in the file
      assert.equal(24, #again:generate(moth.tensor({ ids_of(want) }, { dtype = moth.int64 }), 24 - #want.ids):view(-1))
      again, other = moth.models.load(path, { dtype = moth.float32 })
      assert.is_nil(other)
      assert.is_close(moth.tensor(want.logits), logits(again, ids_of(want)), { rtol = 0, atol = 0.1 })
    end)
  end

  it("come in parts, and weights lie in the file: nothing is copied", function()
    local path = folder()
    local model = moth.models.load "spec/llm/fixtures/llama"
    local sd, index, parts = model:state_dict(), { weight_map = {} }, { {}, {} }
    local i = 0
    for name, t in sd:items() do
      i = i + 1
      parts[i % 2 + 1][name] = t:clone()
      index.weight_map[name] = ("model-0000%d-of-00002.safetensors"):format(i % 2 + 1)
    end
    for k = 1, 2 do moth.save_safetensors(parts[k], ("%s/model-0000%d-of-00002.safetensors"):format(path, k)) end
    local f = assert(io.open(path .. "/model.safetensors.index.json", "w"))
    f:write(cjson.encode(index))
    f:close()
    os.execute(("cp spec/llm/fixtures/llama/config.json %s"):format(path))
    local before = moth.memory.stats().allocated
    local again, tokenizer = moth.models.load(path)
    assert.is_nil(tokenizer)
    local bytes = 0
    for _, p in ipairs(again:parameters()) do bytes = bytes + p:numel() * 4 end
    if before then assert.is_true(moth.memory.stats().allocated - before < bytes / 2) end
    local want = wanted "llama"
    assert.is_close(moth.tensor(want.logits), logits(again, ids_of(want)), { rtol = 0, atol = 1e-4 })
    moth.no_grad(function() again.model.norm.weight:fill_(0) end) -- stays in memory
    assert.is_close(moth.tensor(want.logits), logits(moth.models.load(path), ids_of(want)), { rtol = 0, atol = 1e-4 })
    -- the same as PyTorch's files, and an index that leads out of the folder
    local function write_index(name, table_of)
      f = assert(io.open(path .. "/" .. name, "w"))
      f:write(cjson.encode { weight_map = table_of })
      f:close()
    end
    os.remove(path .. "/model.safetensors.index.json")
    for k = 1, 2 do moth.save(parts[k], ("%s/pytorch_model-%d.bin"):format(path, k)) end
    local map = {}
    for name, file in pairs(index.weight_map) do map[name] = ("pytorch_model-%s.bin"):format(file:match "0000(%d)") end
    write_index("pytorch_model.bin.index.json", map)
    assert.is_close(moth.tensor(want.logits), logits(moth.models.load(path), ids_of(want)), { rtol = 0, atol = 1e-4 })
    write_index("pytorch_model.bin.index.json", { x = "../model.bin" })
    assert.error_matches(function() moth.models.load(path) end, "expected names of files beside it, got %.%./model.bin")
  end)

  it("what they write is whole characters, ends at stop strings, and is the same for a seed", function()
    local model, tokenizer = moth.models.load "spec/llm/fixtures/llama"
    local want = wanted "llama"
    for piece in moth.generate(model, tokenizer, want.prompt, greedy) do
      assert.is_true(piece ~= "" and require("moth_lua").is_text(piece))
    end
    local stop = want.text:sub(9, 11)
    local first = want.text:find(stop, 1, true)
    assert.equal(want.text:sub(1, first - 1), said(model, tokenizer, want.prompt,
      { max_tokens = 24, temperature = 0, eos = {}, stop = { "never", stop } }))
    local o = { max_tokens = 20, temperature = 1.5, top_p = 0.95, top_k = 50, seed = 3 }
    assert.equal(said(model, tokenizer, want.prompt, o), said(model, tokenizer, want.prompt, o))
    o.seed = 4
    assert.is_true(said(model, tokenizer, want.prompt, o) ~= said(model, tokenizer, want.prompt,
      { max_tokens = 20, temperature = 1.5, top_p = 0.95, top_k = 50, seed = 3 }))
    assert.error_matches(function() moth.generate(model, tokenizer, {}) end, "the prompt is empty")
    assert.error_matches(function() moth.generate(model, 3, "x") end, "expected a tokenizer")
  end)

  it("text that is held back comes out", function()
    local bytes = { "a", "\226", "\130", "\172", "\226\130", "b", "<e", "n", "d", "x", "<e", "nd>", "tail" }
    local tokenizer = { special = {}, token = function(_, id) return bytes[id] end,
      bytes = function(_, id) return bytes[id] end }
    local text, out = moth.llm.Text(tokenizer, { "<end>" }), {}
    for id = 1, #bytes do out[id] = text:add(id) end
    assert.same({ "a", "", "", "€", "", "\239\191\189b", "", "", "", "<endx", "", "", "" }, out)
    assert.is_true(text.stopped)
    assert.equal("", text:finish())
    text = moth.llm.Text(tokenizer, { "<end>" })
    assert.equal("", text:add(7) .. text:add(2))
    assert.equal("<e\239\191\189", text:finish())
  end)

  it("what is not supported is refused", function()
    local path = folder()
    local function config(t)
      local f = assert(io.open(path .. "/config.json", "w"))
      f:write(cjson.encode(t))
      f:close()
    end
    assert.error_matches(function() moth.models.load(path) end, "neither a .gguf file nor a folder with a config.json")
    config { model_type = "rwkv" }
    assert.error_matches(function() moth.models.load(path) end,
      "type 'rwkv' are not supported; there are gpt2, mamba, arcee")
    assert.error_matches(function() moth.models.save_gguf(moth.nn.Linear(1, 1), path) end, "expected a models.GPT")
    local small = moth.models.GPT { vocab_size = 40, n_layer = 1, n_head = 1, n_embd = 32, block_size = 8 }
    path = path .. "/x"
    assert.error_matches(function()
      moth.models.save_gguf(moth.quantization.quantize_weights(small, { group = 32 }), path)
    end, "has no name for wte%.[%w_]+: expected the weights of a float model")
    assert.error_matches(function() moth.models.save_gguf(small, path, { tokenizer = "x" }) end, "tokenizer: expec")
    assert.error_matches(function() moth.gguf.save(path, { a = { 1, "b" } }, {}) end, "a list of numbers and string")
    assert.error_matches(function() moth.gguf.save(path, {}, {}, { type = "Q5_0" }) end, "type Q5_0 is not known")
  end)
end)

describe("GGUF files", function()
  local function saved(metadata, tensors, o)
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    moth.gguf.save(path, metadata, tensors, o)
    return path
  end

  it("keep metadata and tensors", function()
    local metadata = { ["general.name"] = "x\0y", a = 3, b = -3, c = 0.5, d = true, e = { "p", "", "q" }, f = { 1, -2 },
      g = {}, h = 2 ^ 40, ["general.alignment"] = 32 }
    local x = moth.randn(3, 5, 64)
    local path = saved(metadata, { x = x, y = x:to(moth.bfloat16), z = moth.tensor(2.5):view(1), w = x:half() })
    local file = moth.gguf.load(path)
    assert.same(metadata, file.metadata)
    assert.same({ w = "F16", x = "F32", y = "BF16", z = "F32" }, file.types)
    assert.is_true(moth.equal(file.tensors.x, x))
    assert.is_true(moth.equal(file.tensors.y, x:to(moth.bfloat16)))
    assert.equal(2.5, file.tensors.z:item())
  end)

  it("keep every dtype that GGUF has a type for", function()
    local types = { float64 = "F64", float32 = "F32", float16 = "F16", bfloat16 = "BF16", int8 = "I8", int16 = "I16",
      int32 = "I32", int64 = "I64" }
    local tensors = { seen = moth.tensor { true, false } }
    for dtype in pairs(types) do tensors[dtype] = moth.tensor({ { -3, 5, 100 } }, { dtype = moth[dtype] }) end
    local file = moth.gguf.load(saved({}, tensors))
    for dtype, kind in pairs(types) do
      assert.equal(kind, file.types[dtype])
      assert.is_true(moth.equal(file.tensors[dtype], tensors[dtype]))
    end
    assert.equal("F32", file.types.seen)
    assert.equal("I64", moth.gguf.load(saved({}, tensors, { type = "Q8_0" })).types.int64)
    assert.error_matches(function() saved({}, { z = moth.ones({ 1 }, { dtype = moth.complex64 }) }) end,
      "z: GGUF has no type for complex64")
  end)

  it("keep the numbers of metadata, and refuse what is no list", function()
    local metadata = { a = { 1, 2 ^ 40, -5 },
      b = { 4e9, 1 }, c = { 1, 0.5 }, d = -2 ^ 40, e = 1e300, f = { -1e300, 1 } }
    assert.same(metadata, moth.gguf.load(saved(metadata, {})).metadata)
    local wide = moth.gguf.load(saved({ a = 2LL ^ 60, b = { -5, 3ULL } }, {})).metadata
    assert.same({ a = 2 ^ 60, b = { -5, 3 } }, wide)
    assert.error_matches(function() saved({ a = { 1, nil, 3 } }, {}) end, "a: expected a list, got a table of other")
    assert.error_matches(function() saved({ a = { x = 1 } }, {}) end, "a: expected a list, got a table of other")
    assert.error_matches(function() saved({ a = print }, {}) end, "a: expected a number, text, .*, got a function")
  end)

  it("are not written by half", function()
    local path = saved({ a = 1 }, {})
    local before = content(path)
    local x = moth.full({ 1, 32 }, 1 / 0)
    assert.error_matches(function() moth.gguf.save(path, {}, { x = x }, { type = "Q8_0" }) end, "x: Q8_0 cannot hold")
    assert.equal(before, content(path))
    assert.error_matches(function() moth.gguf.save("/dev/null/x.gguf", {}, {}) end, "%[gguf.save%].*/dev/null/x.gguf")
    assert.error_matches(function() moth.gguf.save(path, {}, { x = x }, { type = function() return "Q9" end }) end,
      "x: type Q9 is not known")
  end)

  it("quantize as llama.cpp does", function()
    local x = moth.tensor { { 0, 1, -2, 3.5, -4, 0.25, 7, -0.1 } }:expand({ 4, 8 }):reshape(1, 32)
    for kind, want in pairs { Q8_0 = 0.03, Q4_0 = 0.5 } do
      local file = moth.gguf.load(saved({}, { x = x, odd = moth.ones(2, 5) }, { type = kind }))
      assert.same({ x = kind, odd = "F32" }, file.types)
      assert.is_true((file.tensors.x - x):abs():max():item() < want)
    end
    -- The bytes that the gguf package makes of it.
    local bytes = content(saved({}, { x = x }, { type = "Q8_0" }))
    assert.equal("0e 2b 00 12 dc 40 b7 05 7f fe", (bytes:sub(-64, -55):gsub(".", function(c)
      return ("%02x "):format(c:byte())
    end):gsub(" $", "")))
  end)

  it("that are big-endian are refused as such", function()
    local path = saved({}, {})
    local f = assert(io.open(path, "r+b"))
    f:write "GGUF\0\0\0\3"
    f:close()
    assert.error_matches(function() moth.gguf.load(path) end, "the file is big%-endian; little%-endian ones are sup")
  end)

  it("that are damaged are refused: cut anywhere, changed anywhere", function()
    local path = saved({ a = { "one", "two" }, b = 3 }, { x = moth.randn(2, 32), y = moth.randn(3) }, { type = "Q8_0" })
    local bytes, other = content(path), os.tmpname()
    finally(function() os.remove(other) end)
    local function try(s)
      local f = assert(io.open(other, "wb"))
      f:write(s)
      f:close()
      return pcall(moth.gguf.load, other)
    end
    assert.is_true((try(bytes)))
    for n = 0, 200, 7 do assert.is_false((try(bytes:sub(1, n)))) end
    for at = 1, 200, 3 do try(bytes:sub(1, at - 1) .. "\255" .. bytes:sub(at + 1)) end
    local ok, message = try((bytes:gsub("(x" .. ("."):rep(20) .. ")\8", "%1\12", 1)))
    assert.is_false(ok)
    assert.matches("rows of the tensor x, of 32 elements, are no whole blocks of 256, as Q4_K has them", message)
  end)

  it("say sizes that no tensor has: refused, before modules are made of them #quick", function()
    local model = moth.models.GPT { vocab_size = 5, n_layer = 1, n_head = 1, n_embd = 4, block_size = 8 }
    local path, other = os.tmpname(), os.tmpname() .. ".gguf"
    finally(function()
      os.remove(path)
      os.remove(other)
    end)
    moth.models.save_gguf(model, path)
    local file = moth.gguf.load(path)
    local function refused(pattern, fields)
      local metadata, tensors = {}, {}
      for key, v in pairs(file.metadata) do metadata[key] = v end
      for name, t in pairs(file.tensors) do tensors[name] = t end
      for key, v in pairs(fields) do
        if key:find("%.weight$") then tensors[key] = nil else metadata[key] = v end
      end
      moth.gguf.save(other, metadata, tensors)
      assert.error_matches(function() moth.models.load(other) end, pattern)
    end
    refused("block_count is 2147483647, there are tensors of 1 blocks", { ["gpt2.block_count"] = 2 ^ 31 - 1 })
    refused("gpt2.block_count: expected a whole number from 0 on, got 1", { ["gpt2.block_count"] = "1" })
    refused("embedding_length is 1000000", { ["gpt2.embedding_length"] = 1e6 })
    refused("has no matrix token_embd.weight", { ["token_embd.weight"] = true })
    refused("tokenizer.ggml.tokens: expected a list", { ["tokenizer.ggml.tokens"] = 3 })
    refused("bos_token_id is 7, there are 1 tokens", { ["tokenizer.ggml.tokens"] = { "a" },
      ["tokenizer.ggml.model"] = "llama", ["tokenizer.ggml.bos_token_id"] = 7 })
  end)

  it("have the same logits behind a GGUF file, for each rope_scaling", function()
    local path = os.tmpname() .. ".gguf"
    finally(function() os.remove(path) end)
    local ids = moth.randint(1, 20, { 1, 40 }):to(moth.int64)
    local kinds = {
      { rope_type = "linear", factor = 4 }, { rope_type = "dynamic", factor = 2 }, { rope_type = "default" },
      { rope_type = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4,
        original_max_position_embeddings = 16 },
      { rope_type = "yarn", factor = 4, original_max_position_embeddings = 16 }, { rope_type = "yarn", factor = 4 },
      { rope_type = "yarn", factor = 4, beta_fast = 3, beta_slow = 0.2, original_max_position_embeddings = 16 },
      { rope_type = "yarn", factor = 4, attention_factor = 0.7, original_max_position_embeddings = 16 },
      { rope_type = "yarn", factor = 4, mscale = 0.5, mscale_all_dim = 2, original_max_position_embeddings = 16 },
      { rope_type = "yarn", factor = 4, truncate = false, original_max_position_embeddings = 16 },
      { rope_type = "yarn", factor = 4, truncate = false, attention_factor = 0.7, beta_fast = 9 },
      false,
    }
    local seen = {}
    for k, scaling in ipairs(kinds) do
      moth.manual_seed(1)
      local model = moth.models.Llama { vocab_size = 20, hidden_size = 32, intermediate_size = 16,
        num_hidden_layers = 2, num_attention_heads = 2, max_position_embeddings = 64, rope_theta = 500,
        rope_scaling = scaling or nil, initializer_range = 0.5 }
      moth.models.save_gguf(model:eval(), path)
      local want, got = moth.no_grad(model, ids), moth.no_grad(moth.models.load(path), ids)
      assert.is_close(want, got, { rtol = 1e-4, atol = 2e-4 })
      seen[k] = want
    end
    for _, k in ipairs { 7, 8, 9, 10 } do -- the fields count
      assert.is_true((seen[k] - seen[5]):abs():max():item() > 0.01, "kind " .. k)
    end
  end)

  it("have the same ids behind a GGUF file, whatever stands around a text", function()
    local path = os.tmpname() .. ".gguf"
    finally(function() os.remove(path) end)
    local function json(name)
      local f = assert(io.open("spec/llm/fixtures/" .. name .. "/tokenizer.json"))
      local t = cjson.decode(f:read "*a")
      f:close()
      for key, v in pairs(t) do if v == cjson.null then t[key] = nil end end
      return t
    end
    local model = moth.models.GPT { vocab_size = 420, n_layer = 1, n_head = 1, n_embd = 4, block_size = 8 }
    local function template(before, behind)
      local single, special = { { Sequence = { id = "A" } } }, {}
      if before then table.insert(single, 1, { SpecialToken = { id = before } }) end
      if behind then table.insert(single, { SpecialToken = { id = behind } }) end
      for _, token in ipairs { before or behind, behind } do
        special[token] = { ids = { token == "<|begin|>" and 0 or 1 } }
      end
      return { type = "TemplateProcessing", single = single, special_tokens = special }
    end
    local texts = { "It is the moon", "", "e\204\129 caf\195\169 12345 \n x", "<|begin|>hello<|end|> you" }
    for what, change in pairs {
      plain = function() end, ["nothing around"] = function(t) t.post_processor = nil end,
      ["behind"] = function(t) t.post_processor = template(nil, "<|end|>") end,
      ["both"] = function(t) t.post_processor = template("<|begin|>", "<|end|>") end,
      ["normal form"] = function(t) t.normalizer = { type = "NFC" } end,
      ["merges in words"] = function(t) t.model.ignore_merges = false end,
    } do
      local t = json "llama"
      change(t)
      local tokenizer = moth.data.Tokenizer(t)
      moth.models.save_gguf(model, path, { tokenizer = tokenizer })
      local fields = moth.gguf.load(path).metadata
      assert.equal("boolean", type(fields["tokenizer.ggml.add_bos_token"]), what)
      assert.equal("boolean", type(fields["tokenizer.ggml.add_eos_token"]), what)
      local _, again = moth.models.load(path)
      for _, text in ipairs(texts) do
        for _, around in ipairs { true, false } do
          assert.same(tokenizer:encode(text, around), again:encode(text, around), what .. ": " .. text)
        end
      end
    end
    local lower = json "llama"
    lower.normalizer = { type = "Lowercase" }
    assert.error_matches(function()
      moth.models.save_gguf(model, path, { tokenizer = moth.data.Tokenizer(lower) })
    end, "llama.cpp does not know the normalizer 'lower")
  end)

  it("keep special tokens and all ids that end a text", function()
    local path = os.tmpname() .. ".gguf"
    finally(function() os.remove(path) end)
    local model, tokenizer = moth.models.load "spec/llm/fixtures/llama"
    model.config.eos = { 2, 5, 7 }
    tokenizer.special_tokens = { bos_token = "<|begin|>", eos_token = "<|end|>", pad_token = tokenizer:token(9) }
    moth.models.save_gguf(model, path, { tokenizer = tokenizer })
    local _, again, info = moth.models.load(path)
    assert.same({ 2, 5, 7 }, info.eos)
    assert.same(tokenizer.special_tokens, again.special_tokens)
    model.config.eos = { 2, 5, 7, 8 }
    assert.error_matches(function() moth.models.save_gguf(model, path) end, "3 ids that end a text, the model 4")
  end)

  it("refuse by name fields of a GGUF file that change the numbers and are not read", function()
    local path = os.tmpname() .. ".gguf"
    finally(function() os.remove(path) end)
    for name, of in pairs { llama = "llama", gpt2 = "gpt2" } do
      moth.models.save_gguf(moth.models.load("spec/llm/fixtures/" .. of), path)
      local file = moth.gguf.load(path)
      local tensors = {}
      for key, t in pairs(file.tensors) do tensors[key] = t:clone() end
      local function with(key, v)
        local metadata = {}
        for k, old in pairs(file.metadata) do metadata[k] = old end
        metadata[name .. "." .. key] = v
        moth.gguf.save(path, metadata, tensors)
        return moth.models.load(path)
      end
      for key, v in pairs { ["attention.scale"] = 0.5, expert_used_count = 4, ["attention.causal"] = false,
        residual_scale = 2.5, ["rope.dimension_sections"] = { 1, 2 } } do
        assert.error_matches(function() with(key, v) end, key:gsub("%.", "%%.") .. " = .* not supported")
      end
      assert.is_truthy(with("expert_count", 0))
      assert.error_matches(function() with("expert_count", 4) end,
        name == "gpt2" and "expert_count = 4 is not supported" or "has no llama.expert_used_count")
      if name == "gpt2" then
        assert.error_matches(function() with("attention.layer_norm_epsilon", 1e-6) end, "layer_norm_epsilon = .* not")
      else
        assert.error_matches(function() with("attention.value_length", 3) end, "value_length = 3 is not supported")
        assert.same({ rope_type = "linear", factor = 4 }, with("rope.scaling.factor", 4).config.rope_scaling)
      end
    end
  end)
end)
