--- moth.models.GPT: a decoder-only language model as GPT-2: learned positions, norms before each part, the head tied
-- to the token embedding.
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local LayerNorm = nn.LayerNorm

local Attention = nn.class("GPT.Attention")
function Attention:__init(c)
  self.heads, self.p = c.n_head, c.dropout
  self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, { bias = c.bias })
  self.c_proj = nn.Linear(c.n_embd, c.n_embd, { bias = c.bias })
  self.dropout = nn.Dropout(c.dropout)
end
--- x (B, T, C) -> (B, T, C): each position sees itself and those before it
function Attention:forward(x)
  local B, T, C = x:size(1), x:size(2), x:size(3)
  local qkv = self.c_attn(x):view(B, T, 3, self.heads, C / self.heads):permute(3, 1, 4, 2, 5)
  local y = moth.scaled_dot_product_attention(qkv:select(1, 1), qkv:select(1, 2), qkv:select(1, 3),
    { dropout_p = self.training and self.p or 0, is_causal = true })
  return self.dropout(self.c_proj(y:transpose(2, 3):reshape(B, T, C)))
end

local Block = nn.class("GPT.Block")
function Block:__init(c)
  self.ln_1 = LayerNorm(c.n_embd, { bias = c.bias })
  self.attn = Attention(c)
  self.ln_2 = LayerNorm(c.n_embd, { bias = c.bias })
  self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd, { bias = c.bias })
  self.c_proj = nn.Linear(4 * c.n_embd, c.n_embd, { bias = c.bias })
  self.dropout = nn.Dropout(c.dropout)
end
function Block:forward(x)
  x = x + self.attn(self.ln_1(x))
  local h = nn.functional.gelu(self.c_fc(self.ln_2(x)), "tanh")
  return x + self.dropout(self.c_proj(h))
end

local GPT = nn.class("GPT")

--- @tparam table config vocab_size; n_layer (12), n_head (12), n_embd (768), block_size (1024), dropout (0), bias
-- (true)
function GPT:__init(config)
  local o = check.options("models.GPT", config, "vocab_size n_layer n_head n_embd block_size dropout bias")
  local c = { vocab_size = check.integer("models.GPT", "vocab_size", o.vocab_size, 1), n_layer = o.n_layer or 12,
    n_head = o.n_head or 12, n_embd = o.n_embd or 768, block_size = o.block_size or 1024, dropout = o.dropout or 0,
    bias = o.bias ~= false }
  if c.n_embd % c.n_head ~= 0 then
    check.fail("models.GPT: n_embd (%d) must be a multiple of n_head (%d)", c.n_embd, c.n_head)
  end
  self.config = c
  self.wte = nn.Embedding(c.vocab_size, c.n_embd)
  self.wpe = nn.Embedding(c.block_size, c.n_embd)
  self.drop = nn.Dropout(c.dropout)
  local blocks = {}
  for i = 1, c.n_layer do blocks[i] = Block(c) end
  self.h = nn.ModuleList(blocks)
  self.ln_f = LayerNorm(c.n_embd, { bias = c.bias })
  self:reset()
end

--- GPT-2's: normal with deviation 0.02, projections into the residual 0.02 / sqrt(2 n_layer), biases 0.
function GPT:reset()
  for name, p in self:named_parameters() do
    if name:find("c_proj%.weight$") then
      nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * self.config.n_layer))
    elseif p:dim() > 1 then
      nn.init.normal_(p, 0, 0.02)
    elseif name:find("bias$") then
      nn.init.zeros_(p)
    end
  end
end

--- idx (B, T) tokens from 1; targets (B, T) likewise, optional.
-- @return logits (B, T, vocab_size); with targets the mean cross-entropy, too
function GPT:forward(idx, targets)
  local T = idx:size(2)
  if T > self.config.block_size then
    check.fail("models.GPT: %d tokens are more than block_size, %d", T, self.config.block_size)
  end
  local at = moth.arange(1, T + 1, { dtype = moth.int64, device = idx:device() })
  local x = self.drop(self.wte(idx) + self.wpe(at))
  for i = 1, self.config.n_layer do x = self.h[i](x) end
  local logits = moth.linear(self.ln_f(x), self.wte.weight)
  if not targets then return logits end
  local flat = logits:view(-1, self.config.vocab_size)
  return logits, nn.functional.cross_entropy(flat, targets:reshape(-1))
end

--- Goes on with idx (B, T): max_new_tokens more, each drawn from the model's probabilities.
-- @tparam[opt] table o temperature (1), top_k, generator
-- @return (B, T + max_new_tokens)
function GPT:generate(idx, max_new_tokens, o)
  o = check.options("models.GPT.generate", o, "temperature top_k generator")
  local training = self.training
  self:eval()
  moth.no_grad(function()
    for _ = 1, max_new_tokens do
      local T, most = idx:size(2), self.config.block_size
      local seen = T > most and idx:narrow(2, T - most + 1, most) or idx
      local logits = self(seen):select(2, -1) / (o.temperature or 1)
      if o.top_k and o.top_k < self.config.vocab_size then
        local least = moth.topk(logits, o.top_k, 2):narrow(2, o.top_k, 1)
        logits = logits:masked_fill(logits:lt(least), -math.huge)
      end
      local next_token = moth.multinomial(logits:softmax(2), 1, { generator = o.generator })
      idx = moth.cat({ idx, next_token }, 2)
    end
  end)
  if training then self:train() end
  return idx
end

return GPT
