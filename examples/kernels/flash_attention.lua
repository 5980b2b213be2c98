--- Attention over tiles with an online softmax: the T x T matrix of weights never exists.
local moth = require "moth"
local tl = moth.kernel.lang

local flash = moth.kernel.jit(function(q_ptr, k_ptr, v_ptr, out_ptr, T, scale, CAUSAL, D, BLOCK_M, BLOCK_N)
  local head = tl.program_id(1) * T * D
  local m = tl.expand(tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), 2)
  local d = tl.arange(0, D)
  local q = tl.load(q_ptr + head + m * D + d, { mask = m < T })
  local best = tl.full({ BLOCK_M }, -math.huge, tl.float32) -- of the scores seen so far, by rows
  local sum, acc = tl.zeros({ BLOCK_M }), tl.zeros({ BLOCK_M, D })
  local last = T - 1
  if CAUSAL then last = tl.minimum(last, tl.program_id(0) * BLOCK_M + BLOCK_M - 1) end
  for from = 0, last, BLOCK_N do
    local n = from + tl.arange(0, BLOCK_N)
    local rows = tl.expand(n, 2)
    local k = tl.load(k_ptr + head + rows * D + d, { mask = rows < T })
    local v = tl.load(v_ptr + head + rows * D + d, { mask = rows < T })
    local seen = tl.expand(n, 1) < T
    if CAUSAL then seen = tl.logical_and(seen, tl.expand(n, 1) <= m) end
    local scores = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, -math.huge)
    local new = tl.maximum(best, tl.max(scores, 2))
    local weights = tl.exp(scores - tl.expand(new, 2))
    local shrink = tl.exp(best - new) -- what was summed up against a smaller maximum
    sum = sum * shrink + tl.sum(weights, 2)
    acc = tl.dot(weights, v, acc * tl.expand(shrink, 2))
    best = new
  end
  tl.store(out_ptr + head + m * D + d, acc / tl.expand(sum, 2), { mask = m < T })
end, { constexpr = { "CAUSAL", "D", "BLOCK_M", "BLOCK_N" }, name = "flash_attention" })

--- q, k, v [batch, heads, T, D], contiguous.
local function attention(q, k, v, causal)
  local B, H, T, D = q:size(1), q:size(2), q:size(3), q:size(4)
  local out = moth.empty_like(q)
  flash{ moth.kernel.cdiv(T, 32), B * H }(q, k, v, out, T, 1 / math.sqrt(D),
    { CAUSAL = causal, D = D, BLOCK_M = 32, BLOCK_N = 32 })
  return out
end

local device = moth.cuda.is_available() and "cuda" or "cpu"
local T = moth.cli({ { "[N]", "tokens", 500, min = 1 } }).n
for _, causal in ipairs { false, true } do
  local function random() return moth.randn(2, 3, T, 64):to(device) end
  local q, k, v = random(), random(), random()
  local expected = moth.nn.functional.scaled_dot_product_attention(q, k, v, { is_causal = causal })
  local error_ = (attention(q, k, v, causal) - expected):abs():max():item()
  print(("T = %d on %s%s: largest difference to scaled_dot_product_attention %.2g"):format(T, device,
    causal and ", causal" or "", error_))
  assert(error_ < 1e-4)
end
