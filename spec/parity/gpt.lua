-- The GPT's training step against PyTorch: equal weights, equal batches, dropout 0, 100 AdamW steps.
-- Writes weights, batches and moth's losses to a safetensors file; gpt.py trains the same and compares.
-- Usage: luajit spec/parity/gpt.lua float64|float32 FILE
local moth = require "moth"

local dtype, path = moth[arg[1]], arg[2]
local steps, batch, context, vocab = 100, 4, 32, 40
moth.manual_seed(7)
local net = moth.models.GPT{ vocab_size = vocab, n_layer = 2, n_head = 4, n_embd = 32, block_size = context }:to(dtype)
local out = {}
for name, p in net:named_parameters() do out[name] = p:detach():clone() end
local tokens = moth.randint(1, vocab + 1, { steps, batch, context + 1 })
out.tokens = tokens - 1
local opt = moth.optim.AdamW(net:parameters(), { lr = 1e-3, weight_decay = 0.1 })
local losses = {}
for i = 1, steps do
  opt:zero_grad()
  local _, loss = net(tokens[i]:narrow(2, 1, context), tokens[i]:narrow(2, 2, context))
  loss:backward()
  opt:step()
  losses[i] = loss:item()
end
out.losses = moth.tensor(losses, { dtype = moth.float64 })
moth.save_safetensors(out, path)
