--- Whole training steps: bench/rows_*.lua and bench/training.lua time them, bench/fresh.lua measures their peak memory.
-- Each function returns step(), which returns the loss; torch_training.py and torch_server.py have the same in PyTorch.
local moth = require "moth"
local nn = moth.nn

local M = {}

local function classifier(model, x)
  local optimizer = moth.optim.Adam(model:parameters(), { lr = 1e-3 })
  local labels = moth.randint(1, 11, { x:size(1) })
  return function()
    optimizer:zero_grad()
    local loss = nn.functional.cross_entropy(model(x), labels)
    loss:backward()
    optimizer:step()
    return loss:item()
  end
end

function M.mlp()
  return classifier(nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.ReLU(),
    nn.Dropout(0.2), nn.Linear(256, 10)), moth.rand(64, 784))
end

--- The network of examples/fashion_cnn.lua, batch 64.
function M.cnn()
  return classifier(nn.Sequential(nn.Conv2d(1, 32, 3, { padding = 1 }), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, { padding = 1 }), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(),
    nn.Dropout(0.25), nn.Linear(128, 10)), moth.rand(64, 1, 28, 28))
end

--- Forward and backward of two layers. Inputs, hidden size, batch, time steps.
M.recurrent_shapes = { { 128, 256, 16, 32 }, { 32, 64, 16, 32 }, { 32, 128, 32, 64 }, { 512, 512, 32, 32 } }
for _, kind in ipairs { "lstm", "gru" } do
  for _, s in ipairs(M.recurrent_shapes) do
    M[("%s_%d_%d_%d_%d"):format(kind, unpack(s))] = function()
      local net = nn[kind:upper()](s[1], s[2], { num_layers = 2, batch_first = true })
      local x = moth.randn(s[3], s[4], s[1]):requires_grad_(true)
      local g = moth.randn(s[3], s[4], s[2])
      return function()
        net:zero_grad()
        x.grad = nil
        local y = net(x)
        y:backward(g)
        return 0
      end
    end
  end
end

local function resnet(batch, size)
  return function()
    return classifier(moth.models.resnet18 { num_classes = 10 }, moth.randn(batch, 3, size, size))
  end
end
M.resnet_32, M.resnet_224 = resnet(32, 32), resnet(4, 224)

function M.vit()
  return classifier(moth.models.ViT { image_size = 64, patch_size = 8, num_layers = 6, num_heads = 6, hidden_dim = 384,
    mlp_dim = 1536, num_classes = 10 }, moth.randn(8, 3, 64, 64))
end

function M.dcgan()
  local c, latent, batch = 32, 100, 32
  local g = moth.models.DCGANGenerator { latent = latent, channels = c, image_size = 32 }
  local d = moth.models.DCGANDiscriminator { channels = c, image_size = 32 }
  local og = moth.optim.Adam(g:parameters(), { lr = 1e-3, betas = { 0.5, 0.999 } })
  local od = moth.optim.Adam(d:parameters(), { lr = 1e-3, betas = { 0.5, 0.999 } })
  local real, ones, zeros = moth.rand(batch, 3, 32, 32) * 2 - 1, moth.ones(batch), moth.zeros(batch)
  local bce = nn.functional.binary_cross_entropy_with_logits
  return function()
    local drawn = g(moth.randn(batch, latent))
    od:zero_grad()
    local loss = bce(d(real), ones * 0.9) + bce(d(drawn:detach()), zeros)
    loss:backward()
    od:step()
    og:zero_grad()
    bce(d(drawn), ones):backward()
    og:step()
    return loss:item()
  end
end

--- examples/char_gpt.lua at its defaults, on 65 characters.
M.gpt_size = { layers = 4, width = 256, heads = 8, context = 128, batch = 16, vocabulary = 65 }

function M.gpt()
  local s = M.gpt_size
  local model = moth.models.GPT{ vocab_size = s.vocabulary, n_layer = s.layers, n_head = s.heads, n_embd = s.width,
    block_size = s.context }
  local parameters = model:parameters()
  local optimizer = moth.optim.AdamW(parameters, { lr = 1e-3, betas = { 0.9, 0.99 }, weight_decay = 0.1 })
  local x = moth.randint(1, s.vocabulary + 1, { s.batch, s.context })
  local y = moth.randint(1, s.vocabulary + 1, { s.batch, s.context })
  return function()
    local _, loss = model(x, y)
    optimizer:zero_grad()
    loss:backward()
    nn.utils.clip_grad_norm_(parameters, 1)
    optimizer:step()
    return loss:item()
  end
end

--- GPT-2 of 124M parameters: M.new_tokens tokens behind a prompt of 16, greedily, with a cache.
M.new_tokens = 16
local function decode(rows)
  return function()
    local model = moth.models.GPT { vocab_size = 50257 }
    model:eval()
    local prompt = moth.randint(1, 50258, { rows, 16 })
    return function()
      local ids = model:generate(prompt, M.new_tokens, { do_sample = false })
      return ids:size(2)
    end
  end
end
M.decode_1, M.decode_8 = decode(1), decode(8)

return M
