-- The models of moth.models, compiled: forward and backward in training, results, gradients and running statistics.
local moth = require "moth"
local S = require "compile.support"
local toolchain = require "moth.utils.toolchain"
local models = moth.models

local function ids(n, shape) return moth.randint(1, n + 1, shape) end
local function image(channels, size) return function() return moth.randn(2, channels, size, size) end end

-- Name, a small network, its input; slow: #slow.
local list = {
  { "LeNet", function() return models.LeNet { num_classes = 3 } end, image(1, 28) },
  { "UNet", function() return models.UNet { in_channels = 1, num_classes = 2, channels = 4, depth = 2 } end,
    image(1, 16) },
  { "ViT", function()
    return models.ViT { image_size = 16, patch_size = 8, num_layers = 2, num_heads = 2, hidden_dim = 8, mlp_dim = 12,
      num_classes = 3 }
  end, image(3, 16) },
  { "GPT", function()
    return models.GPT { vocab_size = 20, n_layer = 2, n_head = 2, n_embd = 16, block_size = 8, dropout = 0.1 }
  end, function() return ids(20, { 2, 8 }) end },
  { "Llama", function()
    return models.Llama { vocab_size = 20, hidden_size = 16, intermediate_size = 24, num_hidden_layers = 2,
      num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 8 }
  end, function() return ids(20, { 2, 8 }) end },
  { "BERT", function()
    return models.BERT { vocab_size = 20, hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2,
      intermediate_size = 24, max_position_embeddings = 8 }
  end, function() return ids(20, { 2, 8 }) end },
  { "VAE", function() return models.VAE { in_features = 12, hidden = 8, latent = 2 } end,
    function() return moth.rand(3, 12) end },
  { "DCGANGenerator", function() return models.DCGANGenerator { latent = 5, channels = 2, image_size = 32 } end,
    function() return moth.randn(3, 5) end },
  { "DCGANDiscriminator", function() return models.DCGANDiscriminator { channels = 2, image_size = 32 } end,
    image(3, 32) },
  { "resnet18", function() return models.resnet18 { num_classes = 3, small_images = true } end, image(3, 8), true },
  { "mobilenet_v2", function() return models.mobilenet_v2 { num_classes = 3, width_mult = 0.25 } end,
    image(3, 32), true },
  { "vgg11_bn", function()
    local net = models.vgg11_bn { num_classes = 3 }
    net.classifier = moth.nn.Linear(512 * 49, 3)
    return net
  end, image(3, 32), true },
}

-- What three steps leave: results, parameters' gradients and the buffers, by name, in order.
local function train(net, call, make)
  local values, names = {}, {}
  local function keep(name, t)
    names[#names + 1] = name
    values[#values + 1] = t:detach():clone()
  end
  for step = 1, 3 do
    moth.manual_seed(20 + step)
    local x = make()
    if x:dtype().is_floating_point then x = x:to(net:parameters()[1]:dtype()) end
    net:zero_grad()
    local results, loss = { call(x) }, 0
    for i, y in ipairs(results) do
      if moth.is_tensor(y) and y:requires_grad() then
        loss = loss + (y * y):mean()
        keep("result " .. i, y)
      end
    end
    loss:backward()
    for name, p in net:named_parameters() do
      if p.grad then keep(name, p.grad) end
    end
  end
  for name, b in net:named_buffers() do keep(name, b) end
  return values, names
end

local function check(entry, backend, dtype)
  local function outcome(compiled)
    moth.manual_seed(5)
    local net = entry[2]():to(moth[dtype])
    return train(net, compiled and moth.compile(net, { backend = backend }) or net, entry[3])
  end
  moth.compile.reset()
  local want, names = outcome(false)
  local got = outcome(true)
  assert.equal(0, moth.compile.counters().graph_breaks)
  assert.is_true(moth.compile.counters().graphs > 0)
  assert.equal(#want, #got)
  local function most(t) return t:numel() > 0 and t:abs():max():item() or 0 end
  local largest = 0 -- of all: the gradient of a bias before a norm is 0 but for rounding
  for _, a in ipairs(want) do largest = math.max(largest, most(a)) end
  for i, a in ipairs(want) do
    if backend == "inductor" and a:dtype().is_floating_point then
      local far = most(a - got[i])
      assert.is_true(far <= 1e-9 * most(a) + 1e-12 * largest, ("%s: off by %g of %g"):format(names[i], far, most(a)))
    else
      assert.equal(S.text(a), S.text(got[i]), names[i])
    end
  end
end

describe("compiled models:", function()
  for _, entry in ipairs(list) do
    local tag = entry[4] and " #slow" or ""
    it(entry[1] .. " by \"blocks\", to the bit" .. tag, function() check(entry, "blocks", "float32") end)
    it(entry[1] .. " by \"inductor\"" .. tag, function()
      if toolchain.cc() then check(entry, "inductor", "float64") end
    end)
  end
end)
