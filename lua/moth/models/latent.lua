--- Attention whose keys and values are made of one small vector a token (DeepSeek 2; Liu et al. 2024), with a part of
-- the key that turns with the position and is the same for all heads. That vector and that part are all that is kept of
-- a token. Behind tokens that were kept, the weight that makes keys is multiplied with the query, the one that makes
-- values with what was seen: so all heads look at one key, and it is a value, too.
local moth = require "moth"
local nn = require "moth.nn"

local Latent = nn.class("Llama.LatentAttention")

--- latent of models.Llama: q_rank (or nil: queries are made at once), kv_rank, nope, rope (coordinates of a key that do
-- not turn, and that do), value (of a value).
function Latent:__init(c)
  local l, plain, bias = c.latent, { bias = false }, { bias = c.attention_bias }
  self.heads, self.rank, self.nope, self.rope, self.value = c.num_attention_heads, l.kv_rank, l.nope, l.rope, l.value
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

--- Coordinates of what is kept of a token.
function Latent.width(l) return l.kv_rank + l.rope end

-- The weight that makes keys and values, (heads, nope + value, rank), of whatever kind that layer is.
local function expansion(self, like)
  local layer = self.kv_b_proj
  local weight = getmetatable(layer) == nn.Linear and layer.weight
    or layer(moth.eye(self.rank, { dtype = like:dtype(), device = like:device() })):t()
  return weight:to(like:dtype()):reshape(self.heads, self.nope + self.value, self.rank)
end

-- Attention to what is kept of tokens: q (B, heads, T, nope), turned (B, heads, T, rope); see(q, scale) gives what the
-- heads see of it, (B, heads, T, rank + rope).
local function seen_of_kept(self, q, turned, see)
  local weight = expansion(self, q)
  local keys, values = weight:narrow(2, 1, self.nope), weight:narrow(2, self.nope + 1, self.value)
  local y = see(moth.cat({ moth.matmul(q, keys), turned }, 4))
  return moth.matmul(y:narrow(4, 1, self.rank), values:transpose(2, 3))
end

function Latent:forward(x, at, i)
  local B, T, nope, rope, heads = x:size(1), x:size(2), self.nope, self.rope, self.heads
  local q = self.q_proj and self.q_proj(x) or self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
  q = q:view(B, T, heads, nope + rope):transpose(2, 3)
  local both = self.kv_a_proj_with_mqa(x)
  local function turned(y) return moth.rope(y, at.angles.cos, at.angles.sin, at.interleaved) end
  local small, turning = self.kv_a_layernorm(both:narrow(3, 1, self.rank)), turned(both:narrow(3, self.rank + 1,
    rope):unsqueeze(2))
  local q_rest, q_turned = q:narrow(4, 1, nope), turned(q:narrow(4, nope + 1, rope))
  local y
  if at.pages then
    local kept = moth.cat({ small:select(1, 1), turning:view(T, rope) }, 2):unsqueeze(2)
    y = seen_of_kept(self, q_rest, q_turned, function(own)
      local z = at.pages:attend(i, own:select(1, 1):transpose(1, 2), kept, nil, self)
      return z:view(1, T, heads, -1):transpose(2, 3)
    end)
  else
    local past, kept = at.cache and at.cache.n or 0, nil
    if at.cache then kept = at.cache:append(i, moth.cat({ small:unsqueeze(2), turning }, 4)) end
    local o = { attn_mask = at.mask, is_causal = not at.mask and at.causal, scale = self.scale, enable_gqa = true }
    if past > 0 then
      y = seen_of_kept(self, q_rest, q_turned, function(own)
        if T > 1 then return moth.scaled_dot_product_attention(own, kept, kept, o) end
        local rows = own:reshape(B, 1, heads, own:size(4)) -- of one head: keys are read once
        return moth.scaled_dot_product_attention(rows, kept, kept, o):view(own:size())
      end)
    else -- that takes fewer products
      local kv = self.kv_b_proj(small):view(B, T, heads, nope + self.value):transpose(2, 3)
      local k = moth.cat({ kv:narrow(4, 1, nope), turning:expand(B, heads, T, rope) }, 4)
      y = moth.scaled_dot_product_attention(moth.cat({ q_rest, q_turned }, 4), k, kv:narrow(4, nope + 1, self.value), o)
    end
  end
  return self.o_proj(y:transpose(2, 3):reshape(B, T, heads * self.value))
end

return Latent
