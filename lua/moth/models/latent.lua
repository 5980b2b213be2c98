--- Attention whose keys and values are made of one small vector a token (DeepSeek 2; Liu et al. 2024), with a part of
-- the key that turns with the position and is the same for all heads. What is kept of a token are the keys and values
-- themselves, as of other models.
local moth = require "moth"
local nn = require "moth.nn"

local Latent = nn.class("Llama.LatentAttention")

--- latent of models.Llama: q_rank (or nil: queries are made at once), kv_rank, nope, rope (coordinates of a key that do
-- not turn, and that do), value (of a value).
function Latent:__init(c)
  local l, plain, bias = c.latent, { bias = false }, { bias = c.attention_bias }
  self.heads, self.rank, self.nope, self.rope, self.value = c.num_attention_heads, l.kv_rank, l.nope, l.rope, l.value
  self.dim = Latent.width(l)
  local own = self.heads * (l.nope + l.rope)
  if l.q_rank then
    self.q_a_proj = nn.Linear(c.hidden_size, l.q_rank, bias)
    self.q_a_layernorm = nn.RMSNorm(l.q_rank, { eps = 1e-6 })
    self.q_b_proj = nn.Linear(l.q_rank, own, plain)
  else
    self.q_proj = nn.Linear(c.hidden_size, own, plain)
  end
  self.kv_a_proj_with_mqa = nn.Linear(c.hidden_size, l.kv_rank + l.rope, bias)
  self.kv_a_layernorm = nn.RMSNorm(l.kv_rank, { eps = 1e-6 })
  self.kv_b_proj = nn.Linear(l.kv_rank, self.heads * (l.nope + l.value), plain)
  self.o_proj = nn.Linear(self.heads * l.value, c.hidden_size, bias)
  self.scale = c.attention_scale or (l.nope + l.rope) ^ -0.5
end

--- Coordinates of a key or a value as both are kept.
function Latent.width(l) return math.max(l.nope + l.rope, l.value) end

-- x (…, n) with zeros behind, up to the width.
local function filled(self, x)
  local n = x:size(4)
  return n == self.dim and x or moth.nn.functional.pad(x, { 0, self.dim - n })
end

function Latent:forward(x, at, i)
  local B, T, nope, rope = x:size(1), x:size(2), self.nope, self.rope
  local q = self.q_proj and self.q_proj(x) or self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
  q = q:view(B, T, self.heads, nope + rope):transpose(2, 3)
  local both = self.kv_a_proj_with_mqa(x)
  local function turned(y) return moth.rope(y, at.angles.cos, at.angles.sin, at.interleaved) end
  local turning = turned(both:narrow(3, self.rank + 1, rope):unsqueeze(2))
  local kv = self.kv_b_proj(self.kv_a_layernorm(both:narrow(3, 1, self.rank)))
  kv = kv:view(B, T, self.heads, nope + self.value):transpose(2, 3)
  local k = moth.cat({ kv:narrow(4, 1, nope), turning:expand(B, self.heads, T, rope) }, 4)
  q = moth.cat({ q:narrow(4, 1, nope), turned(q:narrow(4, nope + 1, rope)) }, 4)
  local v = kv:narrow(4, nope + 1, self.value)
  q, k, v = filled(self, q), filled(self, k), filled(self, v)
  local y
  if at.pages then
    local function tokens(t) return t:select(1, 1):transpose(1, 2) end
    y = at.pages:attend(i, tokens(q), tokens(k), tokens(v), self):view(B, T, self.heads, self.dim)
  else
    if at.cache then k, v = at.cache:append(i, k, v) end
    y = moth.scaled_dot_product_attention(q, k, v, { attn_mask = at.mask, is_causal = not at.mask and at.causal,
      scale = self.scale }):transpose(2, 3)
  end
  return self.o_proj(y:narrow(4, 1, self.value):reshape(B, T, self.heads * self.value))
end

return Latent
