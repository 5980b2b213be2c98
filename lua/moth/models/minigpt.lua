--- models.minigpt: a small models.GPT, for trying things out.
local signature = require "moth.utils.signature"

--- A models.GPT of this size: d_model is its width, vocab the number of its ids.
return signature("models.minigpt(*, count vocab=256, count d_model=64, count n_layer=2, count n_head=4, \z
  count block_size=128, number dropout=0)", function(vocab, d_model, n_layer, n_head, block_size, dropout)
  return require "moth.models.gpt" { vocab_size = vocab, n_embd = d_model, n_layer = n_layer, n_head = n_head,
    block_size = block_size, dropout = dropout }
end)
