-- Models: names and shapes; tiny checkpoints of transformers (fixtures.py) give what they give there. The whole
-- comparison, with torchvision's models and training, is spec/parity/models.lua.
local moth = require "moth"
local models, nn = moth.models, moth.nn
local folder = "spec/models/fixtures/"

local function fails(text, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(text, tostring(e), 1, true)
end
local function size(t) return tostring(t:size()) end
local function ints(rows) return moth.tensor(rows, { dtype = moth.int64 }) end
local function near(want, got)
  for i, x in ipairs(want) do assert.is_near(x, got[i]:item(), 2e-5) end
end
local ids = ints { { 2, 3, 4, 5, 6 } }

describe("models of images", function()
  it("have torchvision's names, and its sizes of results #M188", function()
    for name, count in pairs { resnet18 = 122, resnet34 = 218, resnet50 = 320, mobilenet_v2 = 314 } do
      local net, n = models[name] { num_classes = 7 }, 0
      for _ in net:state_dict():items() do n = n + 1 end
      assert.equal(count, n, name)
      if name == "resnet50" then assert.is_not_nil(net:state_dict()["layer1.0.downsample.0.weight"]) end
      if name == "mobilenet_v2" then assert.is_not_nil(net:state_dict()["features.1.conv.0.0.weight"]) end
      if name ~= "resnet34" then
        net:eval()
        assert.equal("[2, 7]", size(moth.no_grad(function() return net(moth.randn(2, 3, 32, 32)) end)))
      end
    end
    assert.equal("[1, 4]", size(models.resnet18 { num_classes = 4, in_channels = 1, small_images = true }(
      moth.randn(1, 1, 16, 16))))
    fails("unknown", models.resnet18, { classes = 3 })
  end)

  it("give features without a change of the model #M171", function()
    local net, seen = models.resnet18 { num_classes = 2 }:eval(), nil
    local hook = net.layer4:register_forward_hook(function(_, _, out) seen = out end)
    net(moth.randn(1, 3, 32, 32))
    hook:remove()
    assert.equal("[1, 512, 1, 1]", size(seen))
  end)

  it("take small and odd sizes", function()
    assert.equal("[2, 10]", size(models.LeNet()(moth.randn(2, 1, 28, 28))))
    assert.equal("[2, 3]", size(models.LeNet { image_size = 32, num_classes = 3 }(moth.randn(2, 1, 32, 32))))
    local unet = models.UNet { in_channels = 1, num_classes = 2, channels = 4, depth = 2 }
    for _, hw in ipairs { { 16, 16 }, { 13, 18 } } do
      assert.equal(("[1, 2, %d, %d]"):format(hw[1], hw[2]), size(unet(moth.randn(1, 1, hw[1], hw[2]))))
    end
    local vit = models.ViT { image_size = 16, patch_size = 8, num_layers = 1, num_heads = 2, hidden_dim = 8,
      mlp_dim = 12, num_classes = 3 }
    assert.equal("[2, 3]", size(vit(moth.randn(2, 3, 16, 16))))
    assert.is_not_nil(vit:state_dict()["encoder.layers.encoder_layer_0.self_attention.in_proj_weight"])
    fails("expected images of 16 x 16", vit, moth.randn(1, 3, 8, 16))
  end)

  it("that make images: VAE, DCGAN", function()
    local vae, x = models.VAE { in_features = 12, hidden = 8, latent = 2 }, moth.rand(3, 3, 4)
    local logits, mu, logvar = vae(x)
    assert.equal("[3, 12]", size(logits))
    local loss, reconstruction, divergence = vae:loss(x, logits, mu, logvar)
    assert.is_near(loss:item(), reconstruction:item() + divergence:item(), 1e-4)
    assert.is_true(divergence:item() >= 0)
    loss:backward()
    assert.is_not_nil(vae.fc1.weight.grad)
    for _, n in ipairs { 32, 64 } do
      local g = models.DCGANGenerator { latent = 5, channels = 2, image_size = n }
      local d = models.DCGANDiscriminator { channels = 2, image_size = n }
      local image = g(moth.randn(2, 5))
      assert.equal(("[2, 3, %d, %d]"):format(n, n), size(image))
      assert.equal("[2]", size(d(image)))
    end
    fails("image_size must be 32 or 64", models.DCGANGenerator, { image_size = 48 })
  end)
end)

describe("models of text #quick", function()
  it("give what transformers gives with their files", function()
    local gpt = models.GPT.from_pretrained(folder .. "gpt2")
    near({ 0.701984, 1.624767, -1.036747, -2.435989, 0.308936, -0.191406, 0.248637, -1.606664, -3.355642, -0.179834,
      0.193679 }, gpt(ids)[1][5])
    assert.same({ 2, 3, 4, 5, 6, 2, 1, 8, 9, 4, 2 }, gpt:generate(ids, 6, { do_sample = false })[1]:totable())
    local llama = models.Llama.from_pretrained(folder .. "llama")
    near({ -1.274851, -0.860537, -0.87086, -0.65587, 1.579219, 0.43947, 1.038973, 1.497568, -1.53896, 0.485808,
      1.206944 }, llama(ids)[1][5])
    assert.same({ 2, 3, 4, 5, 6, 5, 3, 11, 5, 3, 5 }, llama:generate(ids, 6, 0)[1]:totable())
    local bert = models.BERT.from_pretrained(folder .. "bert")
    local hidden, pooled = bert(ids)
    near({ -0.342434, 0.185419, 0.196594, 1.203162, -0.016193, -1.968044, -0.681331, 1.422828 }, hidden[1][5])
    assert.equal("[1, 8]", size(pooled))
    -- Padding changes nothing of the tokens before it.
    local padded = bert(ints { { 2, 3, 4, 5, 6, 1, 1 } }, { attention_mask = ints { { 1, 1, 1, 1, 1, 0, 0 } } })
    assert.is_true(moth.allclose(padded:narrow(2, 1, 5), hidden, 1e-5, 1e-5))
  end)

  it("refuse by name what they would leave out: heads, other models, fields that change numbers", function()
    local cjson = require "cjson"
    local path = os.tmpname()
    os.remove(path)
    finally(function() os.execute("rm -r " .. path) end)
    -- A folder with another config, and more tensors.
    local function changed(of, change, more)
      os.execute(("rm -rf %s; cp -r %s%s %s"):format(path, folder, of, path))
      local f = assert(io.open(path .. "/config.json"))
      local config = cjson.decode(f:read "*a")
      f:close()
      for key, v in pairs(change) do config[key] = v end
      f = assert(io.open(path .. "/config.json", "w"))
      f:write(cjson.encode(config))
      f:close()
      if more then
        local sd = moth.load(path .. "/model.safetensors")
        for name, t in pairs(more) do sd[name] = t end
        moth.save_safetensors(sd, path .. "/model.safetensors")
      end
      return path
    end
    local bert = models.BERT.from_pretrained
    local plain = bert(folder .. "bert")(ids)
    fails("a weight of a head, classifier.bias, and the architectures of its config.json name none; give encoder_only",
      bert, changed("bert", {}, { ["classifier.bias"] = moth.ones(3) }))
    assert.is_true(bert(path, { encoder_only = true })(ids):equal(plain))
    fails("a weight of a head, cls.predictions.bias", bert,
      changed("bert", {}, { ["cls.predictions.bias"] = moth.ones(11) }))
    for text, change in pairs { ["model_type = deberta is not supported"] = { model_type = "deberta" },
      ["position_embedding_type = relative_key is not supported"] = { position_embedding_type = "relative_key" },
      ["is_decoder = true is not supported"] = { is_decoder = true },
      ["pruned_heads = { … } is not supported"] = { pruned_heads = { a = { 1 } } },
      ["hidden_act = xielu is not supported; there are gelu"] = { hidden_act = "xielu" },
      ["embedding_size = 4 is not supported; if it changes no number, give ignore_fields"] = { embedding_size = 4 } } do
      fails(text, bert, changed("bert", change))
    end
    assert.is_true(bert(changed("bert", { embedding_size = 4 }), { ignore_fields = { "embedding_size" } })(ids)
      :equal(plain))
    -- The activation is the one that the config says.
    local net = bert(changed("bert", { hidden_act = "relu" }))
    assert.is_false(moth.allclose(net(ids), plain))
    local layer, x = net.encoder["layer"][1], moth.randn(1, 2, 8)
    assert.is_true(layer.intermediate(x):equal(layer.intermediate.dense(x):relu()))
    net = bert(changed("bert", { hidden_act = "gelu_new" }))
    layer = net.encoder["layer"][1]
    assert.is_true(layer.intermediate(x):equal(nn.functional.gelu(layer.intermediate.dense(x), "tanh")))
    fails("add_cross_attention = true is not supported", models.GPT.from_pretrained,
      changed("gpt2", { add_cross_attention = true }))
    fails("activation_function = prelu is not supported", models.GPT.from_pretrained,
      changed("gpt2", { activation_function = "prelu" }))
    fails("alibi = true is not supported", models.GPT.from_pretrained, changed("gpt2", { alibi = true }))
    fails("unknown score.weight", models.GPT.from_pretrained,
      changed("gpt2", {}, { ["score.weight"] = moth.ones(2, 8) }))
    fails("unknown score.weight", models.Llama.from_pretrained,
      changed("llama", {}, { ["score.weight"] = moth.ones(2, 8) }))
    fails("residual_multiplier = 2 is not supported", models.load, changed("llama", { residual_multiplier = 2 }))
    assert.equal(11, models.load(path, { ignore_fields = { "residual_multiplier" } })(ids):size(3))
  end)

  it("generate the same with and without a cache, and of padded rows", function()
    for name, folder_of in pairs { GPT = "gpt2", Llama = "llama" } do
      local net = models[name].from_pretrained(folder .. folder_of)
      local two = ints { { 2, 3, 4, 5, 6 }, { 1, 1, 9, 2, 7 } }
      local mask = ints { { 1, 1, 1, 1, 1 }, { 0, 0, 1, 1, 1 } }
      local cached = net:generate(two, 6, { do_sample = false, attention_mask = mask })
      local plain = net:generate(two, 6, { do_sample = false, attention_mask = mask, use_cache = false })
      assert.is_true(cached:equal(plain))
      local alone = net:generate(ints { { 9, 2, 7 } }, 6, { do_sample = false })
      assert.same(alone[1]:totable(), cached[2]:narrow(1, 3, 9):totable())
    end
  end)

  it("draw by temperature, top_k, top_p; end at eos; stream", function()
    local net = models.minigpt { vocab = 11, d_model = 8, n_layer = 1, n_head = 2, block_size = 8 }
    local greedy = net:generate(ids, 3, { do_sample = false })
    for _, o in ipairs { { top_k = 1 }, { top_p = 1e-6 }, { temperature = 0 },
      { temperature = 1e-300 }, { temperature = 1e-45 } } do
      assert.is_true(net:generate(ids, 3, o):equal(greedy))
    end
    local logits = moth.tensor { { 1, 3, 2, 0 } }
    local left = require("moth.models.generate").filtered(logits, { temperature = 2, top_k = 3, top_p = 0.7 })
    assert.same({ 1.5, 1 }, { left[1][2]:item(), left[1][3]:item() })
    assert.equal(-math.huge, left[1][1]:item())
    left = require("moth.models.generate").filtered(logits, { temperature = 2, top_p = 1, min_p = 0.5 })
    assert.same({ -math.huge, 1.5, 1, -math.huge }, left[1]:totable()) -- e^-0.5 is above a half, e^-1 is not
    local eos = greedy[1][6]:item()
    local ended = net:generate(ids, 3, { do_sample = false, eos_token_id = eos })
    assert.equal(6, ended:size(2))
    local rows = net:generate(ids:expand(2, 5), 2, { do_sample = false, eos_token_id = { 99, eos }, pad_token_id = 4 })
    assert.equal(6, rows:size(2))
    local said = {}
    net:generate(ids, 3, { do_sample = false, streamer = function(id)
      said[#said + 1] = id
      return #said < 2
    end })
    assert.same({ greedy[1][6]:item(), greedy[1][7]:item() }, said)
    local g = moth.Generator():manual_seed(3)
    local one = net:generate(ids, 9, { generator = g }) -- longer than block_size
    assert.equal(14, one:size(2))
    local calls = {}
    local decode = net.decode
    function net:decode(seen, ...)
      calls[#calls + 1] = seen:size(2)
      return decode(self, seen, ...)
    end
    local long = net:generate(ids, 6, { do_sample = false })
    net.decode = nil
    assert.same({ 5, 1, 1, 1, 8, 8 }, calls) -- from the cache while all fits
    assert.is_true(long:equal(net:generate(ids, 6, { do_sample = false, use_cache = false })))
    assert.is_true(one:equal(net:generate(ids, 9, { generator = moth.Generator():manual_seed(3) })))
    assert.is_true(net.training)
    fails("top_p must be above 0", net.generate, net, ids, 1, { top_p = 0 })
    for _, p in ipairs { -0.1, 1.1, 0 / 0 } do
      fails("min_p must be from 0 to 1", net.generate, net, ids, 1, { min_p = p })
    end
    fails("repetition_penalty must be above 0 and finite", net.generate, net, ids, 1, { repetition_penalty = 0 / 0 })
    fails("idx must be tokens", net.generate, net, ints { 1, 2 }, 1)
    fails("pad on the left", net.generate, net, ids, 1, { attention_mask = ints { { 1, 1, 1, 1, 0 } } })
    fails("more than block_size", net, moth.ones({ 1, 9 }, { dtype = moth.int64 }))
  end)

  it("say what is no tensor", function()
    local M = moth.models
    for _, net in ipairs { M.minigpt { vocab = 5 }, M.VAE { in_features = 4 }, M.DCGANGenerator { channels = 2 },
      M.Llama { vocab_size = 5, hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1,
        num_attention_heads = 1 }, M.LeNet(), M.BERT { vocab_size = 5, hidden_size = 8, num_hidden_layers = 1,
        num_attention_heads = 1, intermediate_size = 8 }, M.ViT { image_size = 8, patch_size = 4, num_layers = 1,
        num_heads = 1, hidden_dim = 8, mlp_dim = 8, num_classes = 2 } } do
      for _, wrong in ipairs { "text", 3, {}, false } do
        assert.error_matches(function() net(wrong or nil) end, "^[^\n]*%] argument '[%w_]+'")
      end
    end
    assert.error_matches(function() M.minigpt { vocab = 5 }(moth.ones({ 1, 2 }, { dtype = moth.int64 }), 3) end,
      "%[models.GPT%] argument 'targets': expected a tensor, got number")
  end)

  it("say what a folder lacks", function()
    fails("cannot open", models.Llama.from_pretrained, "spec/models/none")
    fails("the weights do not fit", models.Llama.from_pretrained, folder .. "broken")
    fails("must be a multiple of num_key_value_heads", models.Llama, { vocab_size = 5, hidden_size = 8,
      intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 4, num_key_value_heads = 3 })
  end)

  it("train: a Llama learns a sequence", function()
    moth.manual_seed(1)
    local net = models.Llama { vocab_size = 12, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 1,
      num_attention_heads = 2, num_key_value_heads = 1, max_position_embeddings = 16, tie_word_embeddings = true }
    local opt, loss = moth.optim.AdamW(net:parameters(), { lr = 0.02 }), nil
    local x = ints { { 1, 5, 9, 2, 7, 3, 8, 4, 11 } }
    for _ = 1, 40 do
      opt:zero_grad()
      loss = select(2, net(x:narrow(2, 1, 8), x:narrow(2, 2, 8)))
      loss:backward()
      opt:step()
    end
    assert.is_true(loss:item() < 0.1)
    assert.same(x[1]:totable(), net:generate(x:narrow(2, 1, 1), 8, { do_sample = false })[1]:totable())
    assert.equal(nn.RMSNorm, getmetatable(net.model.norm))
  end)
end)
