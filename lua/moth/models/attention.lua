--- Attention with what the kernels do not have: scores under a cap (Gemma 2), sinks (gpt-oss), and biases
-- by the distance of keys (ALiBi; Press et al. 2022).
local moth = require "moth"
local core = require "moth_lua"

local M = {}

--- Attention whose scores go through cap * tanh(scores / cap).
-- q (B, H, T, D), k and v (B, K, S, D): heads in groups of H / K share keys; seen: bool, broadcast to (B, 1, T, S), or
-- nil
function M.capped(q, k, v, seen, scale, cap)
  local B, H, T, D, K = q:size(1), q:size(2), q:size(3), q:size(4), k:size(2)
  local score = moth.matmul(q:reshape(B, K, H / K, T, D), k:unsqueeze(3):transpose(4, 5)) * (scale / cap)
  score = score:to(moth.float32):tanh() * cap
  if seen then
    if seen:dim() == 4 then seen = seen:unsqueeze(2) end
    score = score:masked_fill(seen:logical_not(), -1e38) -- of a row that sees nothing (padding), no NaN
  end
  return moth.matmul(score:softmax(5):to(q:dtype()), v:unsqueeze(3)):reshape(B, H, T, D)
end

--- Attention of which a part, a number for each head, goes to nothing (gpt-oss): that of all keys, less by the share of
-- the sum that the sink has.
-- sinks (H); seen as of capped, or nil: causal, or all where is_causal is false
function M.sunk(q, k, v, seen, scale, sinks, is_causal)
  local y, sum = core.ops.attention_forward(q, k, v, seen, 0, not seen and is_causal or false, scale)
  local share = (sum - sinks:to(sum:dtype()):view(1, -1, 1)):sigmoid()
  return y * share:unsqueeze(4):to(y:dtype())
end

--- The tokens that `count` queries, the last of `length`, may look at in a window (nil: all): the first token of any
-- of them, and bool (count, length - first + 1), or nil: each query sees all of these.
function M.window(count, length, window, device)
  local first = window and math.max(1, length - count + 2 - window) or 1
  if count == 1 then return first, nil end
  local o = { dtype = moth.int64, device = device }
  local keys = moth.arange(first, length + 1, o):unsqueeze(1)
  local queries = moth.arange(length - count + 1, length + 1, o):unsqueeze(2)
  local seen = keys:le(queries)
  return first, window and seen:logical_and(keys:gt(queries - window)) or seen
end

--- The slopes of ALiBi, (heads), float32: powers of one base, and where heads are no power of two, of another between.
function M.slopes(heads)
  local power, list = 2 ^ math.floor(math.log(heads) / math.log(2) + 1e-9), {}
  for i = 1, power do list[i] = 2 ^ (-8 * i / power) end
  for i = 1, heads - power do list[power + i] = 2 ^ (-4 * (2 * i - 1) / power) end
  return moth.tensor(list, { dtype = moth.float32 })
end

--- What is added to the scores. alibi: slopes (heads), scale, rounded (to bfloat16); positions of the keys, (S) or
-- (B, S); seen: bool (T, S) or (B, 1, T, S), or nil: all are. Gives (1 or B, heads, 1 or T, S) of that dtype.
function M.biased(alibi, positions, seen, dtype)
  local S = positions:size(-1)
  local slopes, at = alibi.slopes:view(1, -1, 1, 1), (positions - 1):view(-1, 1, 1, S)
  if alibi.rounded then slopes, at = slopes:to(moth.bfloat16), at:to(moth.bfloat16) end
  local bias = (slopes * at):to(moth.float32) * alibi.scale
  if seen then bias = moth.where(seen, bias, dtype == moth.float16 and -65504 or -1e38) end
  return bias:to(dtype)
end

return M
