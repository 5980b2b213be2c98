--- ONNX's operators of transformers.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local rule = import.rule

-- (N, T, H * D) as (N, H, T, D).
local function heads(x, n)
  local size = x:size()
  return x:reshape { size[1], size[2], n, size[3] / n }:transpose(2, 3)
end
local function joined(x)
  local size = x:size()
  return x:transpose(2, 3):reshape { size[1], size[3], size[2] * size[4] }
end

local function cut_to(dtype, c, code) return code and code ~= 0 and B.dtype(c:element(code)) or dtype end

local function additive(mask, dtype)
  if mask:dtype() ~= moth.bool then return mask end
  return moth.where(mask, moth.zeros({}, { dtype = dtype }), moth.full({}, -math.huge, { dtype = dtype }))
end

-- The mask of positions: offset is a number, or one for each batch.
local function allowed(c, q, keys, offset)
  local like = { dtype = moth.int64, device = q:device() }
  local row = moth.arange(0, q:size(3), like):reshape { -1, 1 }
  local column = moth.arange(0, keys, like):reshape { 1, -1 }
  local at = B.is_tensor(offset) and row + offset:reshape { -1, 1, 1, 1 } or row + offset
  local mask
  local function also(m) mask = mask and mask:logical_and(m) or m end
  if c.is_causal == 1 then also(column:le(at)) end
  if c.left_window_size >= 0 then also((at - column):le(c.left_window_size)) end
  if c.right_window_size >= 0 then also((column - at):le(c.right_window_size)) end
  return mask
end

rule("Attention", "is_causal=0 kv_num_heads q_num_heads qk_matmul_output_mode=0 scale softcap=0 softmax_precision \z
  left_window_size=-1 right_window_size=-1", function(c, q, k, v, mask, past_key, past_value, lengths)
  local flat = q:dim() == 3
  if flat then q, k, v = heads(q, c.q_num_heads), heads(k, c.kv_num_heads), heads(v, c.kv_num_heads) end
  local dtype, queries = q:dtype(), q:size(3)
  if past_key then k = moth.cat({ past_key, k }, 3) end
  if past_value then v = moth.cat({ past_value, v }, 3) end
  local present_key, present_value, keys = k, v, k:size(3)
  local offset = past_key and past_key:size(3) or lengths and lengths:to(moth.int64) - queries or 0
  local bias
  if mask then
    bias = additive(mask, dtype)
    if bias:size(-1) < keys then bias = B.ops.pad(bias, { 0, keys - bias:size(-1) }, "constant", -math.huge) end
  end
  local function also(m)
    m = additive(m, dtype)
    bias = bias and bias + m or m
  end
  local places = allowed(c, q, keys, offset)
  if places then also(places) end
  if lengths then
    local at = moth.arange(0, keys, { dtype = moth.int64, device = q:device() })
    also(at:lt(lengths:to(moth.int64):reshape { -1, 1, 1, 1 }))
  end
  local groups = q:size(2) / k:size(2)
  if groups ~= 1 then k, v = k:repeat_interleave(groups, 2), v:repeat_interleave(groups, 2) end
  local scale = c.scale or 1 / math.sqrt(q:size(4))
  local function result(y) return flat and joined(y) or y end
  local precision = cut_to(nil, c, c.softmax_precision)
  if c.count == 1 and c.softcap == 0 and not bias and (precision == nil or precision == dtype)
      and (dtype == moth.float32 or dtype == moth.float64) then
    return result(B.ops.scaled_dot_product_attention(q, k, v, nil, 0, false, scale))
  end
  -- As the specification has it, with its roundings: the scale goes into both factors.
  local root = moth.full({}, math.sqrt(scale), { dtype = dtype })
  local scores = (q * root):matmul((k * root):transpose(3, 4))
  local shown = scores
  if c.softcap > 0 then
    scores = (scores / c.softcap):tanh() * c.softcap
    if c.qk_matmul_output_mode == 1 then shown = scores end
  end
  if bias then scores = scores + bias end
  if c.qk_matmul_output_mode == 2 then shown = scores end
  local wide = precision and scores:to(precision) or scores
  local top = wide:amax({ 4 }, true)
  top = moth.where(top:eq(-math.huge), moth.zeros_like(top), top)
  local parts = (wide - top):exp()
  local sum = parts:sum({ 4 }, true)
  local share = parts / moth.where(sum:eq(0), moth.ones_like(sum), sum)
  if bias then -- a row of which nothing may be seen gives 0
    local none = bias:dim() == 0 and bias or bias:amax({ -1 }, true)
    share = moth.where(none:eq(-math.huge), moth.zeros_like(share), share)
  end
  if c.qk_matmul_output_mode == 3 then shown = share end
  local y = share:to(dtype):matmul(v)
  return result(y), present_key, present_value, shown:to(dtype)
end)

rule("FlexAttention", "scale softmax_precision score_mod prob_mod", function(c, q, k, v)
  local dtype = q:dtype()
  local groups = q:size(2) / k:size(2)
  if groups ~= 1 then k, v = k:repeat_interleave(groups, 2), v:repeat_interleave(groups, 2) end
  local wide = cut_to(B.dtype(dtype).itemsize < 4 and moth.float32 or dtype, c, c.softmax_precision)
  local root = moth.full({}, math.sqrt(c.scale or 1 / math.sqrt(q:size(4))), { dtype = dtype })
  local scores = (q * root):matmul((k * root):transpose(3, 4)):to(wide)
  if c.score_mod then scores = c.run:graph(c.score_mod, { scores }, c.env):to(wide) end
  local share = scores:softmax(-1)
  if c.prob_mod then share = c.run:graph(c.prob_mod, { share }, c.env):to(wide) end
  return share:matmul(v:to(wide)):to(v:dtype())
end, { domain = "ai.onnx.preview" })

rule("RotaryEmbedding", "interleaved=0 num_heads=0 rotary_embedding_dim=0", function(c, x, cos, sin, ids)
  local size = x:size()
  local y = #size == 4 and x:transpose(2, 3) or x:reshape { size[1], size[2], c.num_heads, size[3] / c.num_heads }
  local width = y:size(4)
  local turned = c.rotary_embedding_dim > 0 and c.rotary_embedding_dim or width
  local half = turned / 2
  if ids then
    local at = c:positions(ids, cos:size(1), true)
    cos, sin = cos:gather_nd({ 1 }, at), sin:gather_nd({ 1 }, at)
  end
  cos, sin = cos:unsqueeze(3), sin:unsqueeze(3)
  local a, b
  if c.interleaved == 1 then
    a, b = y:slice(4, 0, turned, 2), y:slice(4, 1, turned, 2)
  else
    a, b = y:narrow(4, 1, half), y:narrow(4, half + 1, half)
  end
  local real, imaginary = cos * a - sin * b, sin * a + cos * b
  local out
  if c.interleaved == 1 then
    local shape = real:size()
    shape[4] = turned
    out = moth.stack({ real, imaginary }, 5):reshape(shape)
  else
    out = moth.cat({ real, imaginary }, 4)
  end
  if turned < width then out = moth.cat({ out, y:narrow(4, turned + 1, width - turned) }, 4) end
  return #size == 4 and out:transpose(2, 3) or out:reshape(size)
end)

rule("LinearAttention", "chunk_size=64 kv_num_heads q_num_heads scale=0 update_rule='gated_delta'",
  function(c, q, k, v, past, decay, beta)
    local dtype, batch, steps = q:dtype(), q:size(1), q:size(2)
    local n = c.kv_num_heads
    local function split(x, count) return heads(x, count):to(moth.float32) end
    q, k, v = split(q, c.q_num_heads), split(k, n), split(v, n)
    local width = q:size(4)
    local scale = c.scale == 0 and 1 / math.sqrt(width) or c.scale
    decay = decay and split(decay, n)
    beta = beta and split(beta, beta:size(3))
    local state = past and past:to(moth.float32) or moth.zeros({ batch, n, width, v:size(4) }, { device = q:device() })
    local groups, out = c.q_num_heads / n, {}
    for i = 1, steps do
      local key, value = k:select(3, i), v:select(3, i)
      if decay then state = state * decay:select(3, i):exp():unsqueeze(4) end
      if beta then
        value = beta:select(3, i) * (value - key:unsqueeze(3):matmul(state):squeeze(3))
      end
      state = state + key:unsqueeze(4) * value:unsqueeze(3)
      local read = groups == 1 and state or state:repeat_interleave(groups, 2)
      out[i] = q:select(3, i):unsqueeze(3):matmul(read):squeeze(3) * scale
    end
    return joined(moth.stack(out, 3)):to(dtype), state:to(past and past:dtype() or dtype)
  end)

rule("CausalConvWithState", "activation='none'", function(c, x, weight, bias, past)
  local k = weight:size(3)
  local shape = x:size()
  shape[3] = k - 1
  local all = moth.cat({ past or moth.zeros(shape, { dtype = x:dtype(), device = x:device() }), x }, 3)
  local wide = x:dtype().itemsize < 4 and moth.float32 or x:dtype()
  local y = B.ops.conv1d(all:to(wide), weight:to(wide), bias and bias:to(wide), { 1 }, { 0 }, { 1 }, shape[2])
  y = y:to(x:dtype())
  if c.activation == "silu" or c.activation == "swish" then
    y = y:to(moth.float32)
    y = (y * y:sigmoid()):to(x:dtype())
  end
  return y, all:narrow(3, all:size(3) - k + 2, k - 1)
end)
