-- moth.lora: layers against the formula, merging, adapters alone and in PEFT's files (spec/parity/lora.py asks PEFT).
local moth = require "moth"
local json = require "cjson"
local nn, lora = moth.nn, moth.lora

local Net = nn.class "Net"
function Net:__init()
  self.emb = nn.Embedding(7, 6)
  self.fc1 = nn.Linear(6, 8)
  self.head = nn.Linear(8, 3)
end
function Net:forward(x) return self.head(self.fc1(self.emb(x)):relu()) end

local ids = moth.tensor({ { 1, 7, 3 }, { 2, 2, 5 } }, { dtype = moth.int64 })

local function make(o)
  moth.manual_seed(1)
  local net = Net()
  return o and lora.wrap(net, o) or net
end
-- Values for what is trained.
local function filled(model)
  moth.no_grad(function()
    for _, p in ipairs(model:parameters()) do if p:requires_grad() then p:normal_() end end
  end)
  return model
end
local function trained(model)
  local names = {}
  for name, p in model:named_parameters() do if p:requires_grad() then names[#names + 1] = name end end
  table.sort(names)
  return table.concat(names, " ")
end
local function close(a, b) assert.is_close(a, b, { rtol = 1e-4, atol = 1e-5 }) end
local function folder()
  local path = os.tmpname()
  os.remove(path)
  finally(function() os.execute("rm -rf " .. path) end)
  return path
end

describe("LoRA", function()
  it("begins as the model, and adds (alpha / r) B A", function()
    local plain, model = make(), make { r = 2, alpha = 6, target_modules = { "emb", "fc1" } }
    assert.is_true(moth.equal(plain(ids), model(ids)))
    assert.equal("emb.lora_embedding_A emb.lora_embedding_B fc1.lora_A.weight fc1.lora_B.weight", trained(model))
    filled(model)
    local e, f = model.emb, model.fc1
    local rows = plain.emb(ids) + 3 * e.lora_embedding_A:t()[ids]:matmul(e.lora_embedding_B:t())
    local hidden = plain.fc1(rows) + 3 * rows:matmul(f.lora_A.weight:t()):matmul(f.lora_B.weight:t())
    close(plain.head(hidden:relu()), model(ids))
    model(ids):sum():backward()
    assert.is_nil(model.fc1.base_layer.weight.grad)
    assert.is_truthy(model.fc1.lora_A.weight.grad)
  end)

  it("is merged into the weights, or taken away", function()
    local model = filled(make { r = 3, alpha = 5, rslora = true, target_modules = { "emb", "fc1" } })
    local before = model(ids)
    assert.equal(model, lora.merge(model))
    close(before, model(ids))
    assert.same({ "Embedding", "Linear" }, { moth.class.name(model.emb), moth.class.name(model.fc1) })
    local other = filled(make { r = 3, target_modules = { "fc1" } })
    assert.is_true(moth.equal(make()(ids), lora.unload(other)(ids)))
    assert.error_matches(function() lora.merge(other) end, "the model has no LoRA layers")
  end)

  it("takes layers by names, patterns, and all linear ones", function()
    local function wrapped(o)
      local names = {}
      for name, m in make(o):named_modules() do
        if moth.class.name(m):find "^LoRA" then names[#names + 1] = name end
      end
      return table.concat(names, " ")
    end
    assert.equal("fc1 head", wrapped {})
    assert.equal("fc1", wrapped { modules_to_save = { "head" } })
    local lm = nn.ModuleDict { up = nn.Linear(2, 2), lm_head = nn.Linear(2, 2) }
    lora.wrap(lm, { r = 1 })
    assert.same({ "LoRALinear", "Linear" }, { moth.class.name(lm.up), moth.class.name(lm.lm_head) })
    assert.equal("fc1 head", wrapped { target_modules = "[fh].*" })
    assert.equal("emb", wrapped { target_modules = { "emb", "head" }, modules_to_save = { "head" } })
    local model = make { target_modules = { "fc1", "emb" }, r = 4, rank_pattern = { fc1 = 2 }, bias = "lora_only" }
    assert.same({ 2, 4 }, { model.fc1.r, model.emb.r })
    assert.matches("fc1.base_layer.bias", trained(model))
    local seq = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    lora.wrap(seq, { target_modules = { "0" } })
    assert.same({ 2, 2 }, seq(moth.ones(2, 2)).shape)
    assert.equal("LoRALinear", moth.class.name(seq[1]))
  end)

  it("is saved alone and goes on", function()
    for _, o in ipairs {
      { r = 3, alpha = 5, target_modules = { "emb", "fc1" }, modules_to_save = { "head" }, dropout = 0.5 },
      { r = 3, target_modules = { "fc1" }, bias = "all", rslora = true, alpha_pattern = { fc1 = 2 } },
    } do
      local model, path = filled(make(o)):eval(), folder()
      lora.save(model, path)
      local names = {}
      for name in pairs(moth.load(path .. "/adapter_model.safetensors")) do names[#names + 1] = name end
      assert.is_truthy(table.concat(names, " "):find("base_model.model.fc1.lora_A.weight", 1, true))
      assert.is_nil(table.concat(names, " "):find("fc1.base_layer.weight", 1, true))
      local other = lora.load(make(), path):eval()
      close(model(ids), other(ids))
      assert.equal("", trained(other))
      assert.equal(trained(model), trained(lora.load(make(), path, { trainable = true })))
      local third = make(o):eval()
      lora.load_state_dict(third, lora.state_dict(model))
      close(model(ids), third(ids))
    end
  end)

  it("stands beside quantized layers", function()
    local blocks = require "moth.quantization.blocks"
    local weight = moth.zeros({ 4, 34 }, { dtype = moth.uint8 }) -- a scale of 2 bytes, 32 elements
    local model = nn.Sequential(blocks.BlockLinear(weight, "Q8_0"), nn.ReLU())
    local mixed = lora.wrap(nn.Sequential(nn.Linear(2, 32), blocks.BlockLinear(weight, "Q8_0")))
    assert.error_matches(function() lora.merge(mixed) end, "BlockLinear is quantized")
    assert.equal("LoRALinear", mixed[1].__name) -- nothing is merged by halves
    filled(lora.wrap(model, { r = 2 }))
    local x = moth.randn(3, 32)
    close((x:matmul(model[1].lora_A.weight:t()):matmul(model[1].lora_B.weight:t()) * 4):relu(), model(x))
    assert.error_matches(function() lora.merge(model) end, "BlockLinear is quantized")
  end)

  it("is merged into a copy of a weight that another layer has too", function()
    local embedding, head = nn.Embedding(10, 4), nn.Linear(4, 10, { bias = false })
    head.weight = embedding.weight
    local before = head.weight:detach():clone()
    local model = lora.wrap(nn.Sequential(embedding, head), { target_modules = { "1" } })
    moth.no_grad(function() model[2].lora_B.weight:fill_(1) end)
    local both = moth.tensor({ 1, 10 }, { dtype = moth.int64 })
    local want = model(both)
    lora.merge(model)
    assert.is_close(want, model(both), { rtol = 1e-5, atol = 1e-5 })
    assert.is_true(moth.equal(before, embedding.weight))
  end)

  it("says what is wrong", function()
    local plain = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert.error_matches(function() lora.wrap(plain, { target_modules = { "0", "1" } }) end, "'1' is a ReLU")
    assert.equal("Linear", plain[1].__name) -- as it was
    assert.error_matches(function() lora.wrap(plain, { modules_to_save = { "head" } }) end, "has no module 'head'")
    assert.error_matches(function() lora.wrap(nn.Linear(2, 2)) end, "put it into a container")
    assert.error_matches(function() make { target_modules = { "nowhere" } } end, "no layer of the model fits.*nowhere")
    assert.error_matches(function() lora.wrap(make {}, {}) end, "has LoRA layers already")
    local attention = nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 8 })
    assert.error_matches(function() lora.wrap(attention, { target_modules = { "out_proj" } }) end, "would do nothing")
    assert.error_matches(function() lora.wrap(nn.Sequential(nn.LayerNorm(2)), { target_modules = { "0" } }) end,
      "'0' is a LayerNorm; LoRA takes nn.Linear")
    assert.error_matches(function() lora.load(make(), "/nowhere") end,
      "%[lora.load%] cannot open /nowhere/adapter_config.json: No such file")
    local path = folder()
    local model = make { target_modules = { "fc1" } }
    lora.save(model, path)
    assert.error_matches(function() lora.load(nn.Sequential(nn.Linear(2, 2)), path) end, "no module 'fc1', and 1 more")
    local sd = lora.state_dict(model)
    sd["base_model.model.fc1.lora_A.weight"] = moth.ones(1)
    assert.error_matches(function() lora.load_state_dict(model, sd) end, "is %[1%], the model's is %[8, 6%]")
    local config = path .. "/adapter_config.json"
    local f = assert(io.open(config))
    local c = json.decode(f:read "*a")
    f:close()
    for _, change in ipairs { { "use_dora", true, "no DoRA" }, { "peft_type", "IA3", "type IA3, expected LORA" } } do
      local old = c[change[1]]
      c[change[1]] = change[2]
      f = assert(io.open(config, "w"))
      f:write(json.encode(c))
      f:close()
      c[change[1]] = old
      assert.error_matches(function() lora.load(make(), path) end, change[3])
    end
    f = assert(io.open(config, "w"))
    f:write '{"peft_type": "LORA",\n "r": 8,}'
    f:close()
    assert.error_matches(function() lora.load(make(), path) end, "no JSON: line 2, column 9")
  end)
end)

describe("a layer under two names", function()
  local Two = nn.class "Two"
  function Two:__init()
    self.first = nn.Linear(6, 6)
    self.list = nn.ModuleList { self.first, nn.Linear(6, 6) }
    self.again = self.list
  end
  function Two:forward(x) return self.again[2](self.list[1](x)) + self.first(x) end

  it("has one adapter, saved once and merged everywhere", function()
    for _, targets in ipairs { { "first" }, { "list.0" }, "all-linear" } do
      moth.manual_seed(2)
      local net, x = Two(), moth.randn(2, 6)
      local plain = net(x)
      lora.wrap(net, { r = 2, target_modules = targets })
      assert.is_true(rawequal(net.first, net.list[1]) and rawequal(net.again[1], net.first))
      assert.equal("LoRALinear", (require("moth.class").name(net.first)))
      close(plain, net(x))
      filled(net)
      local y, n, path = net(x), 0, folder()
      for name in pairs(lora.state_dict(net)) do
        n = n + 1
        assert.is_nil(name:find "list%.0") -- names in order: again, first, list
      end
      assert.equal(targets == "all-linear" and 4 or 2, n)
      lora.save(net, path)
      moth.manual_seed(2)
      local other = lora.load(Two(), path)
      assert.is_true(rawequal(other.first, other.list[1]))
      close(y, other(x))
      lora.merge(net)
      assert.is_true(rawequal(net.first, net.list[1]) and rawequal(net.first, net.again[1]))
      close(y, net(x))
      lora.unload(other)
      assert.is_true(rawequal(other.first, other.list[1]))
      close(plain, other(x))
    end
  end)

  it("may stand under any of its names in a file, and with one adapter only", function()
    moth.manual_seed(2)
    local net, x, path = lora.wrap(Two(), { r = 2, target_modules = { "first" } }), moth.randn(2, 6), folder()
    local y = filled(net)(x)
    lora.save(net, path)
    local file, sd, both = path .. "/adapter_model.safetensors", {}, {}
    for name, t in pairs(moth.load(file)) do
      sd[name:gsub("%.first%.", ".list.0.")], both[name], both[name:gsub("%.first%.", ".again.0.")] = t, t, t + 1
    end
    moth.save_safetensors(sd, file)
    moth.manual_seed(2)
    close(y, lora.load(Two(), path)(x))
    moth.save_safetensors(both, file)
    assert.error_matches(function() lora.load(Two(), path) end, "are one layer of the model, and the adapter has two")
  end)
end)
