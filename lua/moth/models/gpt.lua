--- moth.models.GPT: a decoder-only language model as GPT-2: learned positions, norms before each part, the head tied
-- to the token embedding.
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
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

GPT.__init = signature.init("models.GPT(*, count vocab_size, size n_layer=12, count n_head=12, count n_embd=768, \z
  count block_size=1024, number dropout=0, bool bias=true)", function(self, c)
  if c.n_embd % c.n_head ~= 0 then
    check.fail("[models.GPT] n_embd (%d) must be a multiple of n_head (%d)", c.n_embd, c.n_head)
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
end)

--- GPT-2's initialisation: normal with deviation 0.02, projections into the residual 0.02 / sqrt(2 n_layer), biases 0.
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
-- @return logits (B, T, vocab_size); with targets also the mean cross-entropy
function GPT:forward(idx, targets)
  local T = idx:size(2)
  if T > self.config.block_size then
    check.fail("[models.GPT] %d tokens are more than block_size, %d", T, self.config.block_size)
  end
  local at = moth.arange(1, T + 1, { dtype = moth.int64, device = idx:device() })
  local x = self.drop(self.wte(idx) + self.wpe(at))
  for i = 1, self.config.n_layer do x = self.h[i](x) end
  local logits = moth.linear(self.ln_f(x), self.wte.weight)
  if not targets then return logits end
  local flat = logits:view(-1, self.config.vocab_size)
  return logits, nn.functional.cross_entropy(flat, targets:reshape(-1))
end

local to_generate = signature("models.GPT:generate(Tensor idx, size max_new_tokens, number temperature=1, \z
  count top_k?, Generator generator?)", function(...) return ... end)

--- Extends idx (B, T) by max_new_tokens tokens, each drawn from the model's probabilities.
-- @return (B, T + max_new_tokens)
function GPT:generate(...)
  local idx, max_new_tokens, temperature, top_k, generator = to_generate(...)
  local training = self.training
  self:eval()
  moth.no_grad(function()
    for _ = 1, max_new_tokens do
      local T, most = idx:size(2), self.config.block_size
      local seen = T > most and idx:narrow(2, T - most + 1, most) or idx
      local logits = self(seen):select(2, -1) / temperature
      if top_k and top_k < self.config.vocab_size then
        local least = moth.topk(logits, top_k, 2):narrow(2, top_k, 1)
        logits = logits:masked_fill(logits:lt(least), -math.huge)
      end
      local next_token = moth.multinomial(logits:softmax(2), 1, { generator = generator })
      idx = moth.cat({ idx, next_token }, 2)
    end
  end)
  if training then self:train() end
  return idx
end

return GPT
