--- Whole training steps: bench/rows_*.lua times them, bench/fresh.lua measures their peak memory. Each function returns
-- step(), which returns the loss; torch_server.py has the same in PyTorch.
local moth = require "moth"
local nn = moth.nn

local M = {}

--- The network of examples/fashion_cnn.lua, batch 64.
function M.cnn()
  local model = nn.Sequential(nn.Conv2d(1, 32, 3, { padding = 1 }), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, { padding = 1 }), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(),
    nn.Dropout(0.25), nn.Linear(128, 10))
  local criterion = nn.CrossEntropyLoss()
  local optimizer = moth.optim.Adam(model:parameters(), { lr = 1e-3 })
  local x, labels = moth.rand(64, 1, 28, 28), moth.randint(1, 11, { 64 })
  return function()
    optimizer:zero_grad()
    local loss = criterion(model(x), labels)
    loss:backward()
    optimizer:step()
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

return M
