--- The time and memory of one training step of a transformer under a layout, from first principles.
--
-- A layout: { dp, tp, pp, cp (numbers of ranks), shard ("none", "grads" (ZeRO-2), "full" (ZeRO-3)), replicas (of the
-- shards among dp: HSDP), micro (sequences of a micro-batch), batch (sequences of a step, of all ranks), recompute
-- ("none", "selective", "full"), interleave (stages of a rank), fp8, compiled, async_tp, ring ("balanced", "plain"),
-- seq }.
--
-- Time is products / (peak * gemm) + attention / (peak * attention) + elementwise bytes / hbm + what communication is
-- not hidden, times the bubble of the pipeline. Attention runs 1 + 2.5 forward passes (its backward computes the scores
-- again), one more with full recomputation. Without balancing, the last rank of a ring of c ranks has (2c-1)/c of the
-- mean share of a causal mask, and the others wait for it.
local hardware = require "moth.distributed.planner.hardware"
local shape = require "moth.distributed.planner.shape"

local M = {}

-- Elementwise traffic of a layer, in reads and writes of a token's row of 16 bits: forward and backward; forward again.
local passes = { compiled = { 64, 21 }, eager = { 225, 75 }, fp8 = 110 } -- fp8: largest values, conversions

local function near(gpu, ranks, stride) return math.max(1, math.min(ranks, math.floor(gpu.node / stride))) end

-- Seconds of one micro-batch on one stage, by part.
local function compute(s, gpu, lay)
  local tokens = lay.micro * lay.seq
  local again = shape.recompute[lay.recompute]
  local layers, head, attention = shape.flops(s, lay.seq)
  local share = tokens / (lay.tp * lay.cp * lay.pp)
  local gain = lay.fp8 and gpu.fp8_gain or 1
  local t = {}
  t.products = share * (layers * (3 + again) / gain + head * 3) / (gpu.peak * gpu.gemm)
  local uneven = (s.causal and lay.ring == "plain") and (2 * lay.cp - 1) / lay.cp or 1
  t.attention = share * attention * (3.5 + (lay.recompute == "full" and 1 or 0)) * uneven / (gpu.peak * gpu.attention)
  local n = lay.compiled and passes.compiled or passes.eager
  local moved = n[1] + (again > 0 and n[2] or 0) + (lay.fp8 and passes.fp8 or 0)
  t.elementwise = share * s.layers * s.hidden * 2 * moved / gpu.hbm
  return t
end

-- The slowest stage beside the mean: layers are whole, and the last stage has the head, too.
local function slowest(s, pp)
  if pp == 1 then return 1 end
  local head = s.embedding / math.max(1, s.block)
  local best = math.huge
  for last = 0, math.ceil(s.layers / pp) do
    best = math.min(best, math.max(math.ceil((s.layers - last) / (pp - 1)), last + head))
  end
  return best * pp / (s.layers + head)
end

local function tp_calls(lay) return lay.recompute == "full" and 12 or 8 end

-- Exposed seconds of tensor and context parallelism in one micro-batch on one stage.
local function within_layers(s, gpu, lay, attention)
  local layers = s.layers / lay.pp
  local tokens = lay.micro * lay.seq / lay.cp
  -- An all_gather and a reduce_scatter before and after attention and feed-forward, forward, backward and again.
  local tp = tp_calls(lay) * layers * hardware.collective(gpu, "all_gather", tokens * s.hidden * 2, lay.tp,
    near(gpu, lay.tp, 1))
  if lay.async_tp then tp = tp / 2 end
  -- Keys and values go round the ring under the attention of the block before; in backward their gradients, too.
  local cp = 0
  if lay.cp > 1 then
    local block = 2 * s.kv / lay.tp * tokens * 2
    local hop = hardware.collective(gpu, "send", block, lay.cp, near(gpu, lay.cp, lay.tp))
    local rounds = lay.recompute == "full" and 4 or 3
    local hops = rounds * (lay.cp - 1) * layers
    local under = attention / (rounds * lay.cp * layers)
    cp = hops * math.max(0, hop - under) + hop * layers
  end
  return tp, cp
end

-- Exposed seconds a step of gathering parameters and reducing gradients; `pass` is one micro-batch's time on a stage.
local function data(s, gpu, lay, pass, micro_batches)
  local layers = s.layers / lay.pp
  local shards = lay.dp * lay.cp / lay.replicas
  local stride = lay.tp
  local bytes = s.block / lay.tp
  local forward = pass / layers / (3 + shape.recompute[lay.recompute])
  local backward = pass / layers - forward
  local group = near(gpu, shards, stride)
  local all_reduce = 0
  if lay.shard == "none" then
    if lay.dp * lay.cp > 1 then
      local ranks = lay.dp * lay.cp
      all_reduce = hardware.collective(gpu, "all_reduce", bytes * 4, ranks, near(gpu, ranks, stride))
    end
    -- Buckets go under the backward pass of the layers before; the first layer's is left.
    return math.max(0, all_reduce - backward) * (layers - 1) + all_reduce
  end
  local gather = hardware.collective(gpu, "all_gather", bytes * 2, shards, group)
  local reduce = hardware.collective(gpu, "reduce_scatter", bytes * 4, shards, group)
  if lay.replicas > 1 then
    all_reduce = hardware.collective(gpu, "all_reduce", bytes * 4 / shards, lay.replicas,
      near(gpu, lay.replicas, stride * shards))
  end
  local stays = lay.pp > 1 or lay.shard == "grads"
  local gathers = stays and 1 or micro_batches
  local t = gathers * layers * math.max(0, gather - forward) + gather
  local again = stays and 0 or gather
  t = t + layers * math.max(0, again + reduce + all_reduce - backward) + reduce + all_reduce
  if gathers > 1 then t = t + (gathers - 1) * layers * math.max(0, again - backward) end
  return t
end

-- Bytes that a rank sends in a step: parameters in 16 bits, once or before each forward and backward; gradients in 32.
local function sent(s, lay, micro_batches)
  local ranks = lay.dp * lay.cp
  local own = s.params / (lay.tp * lay.pp)
  if lay.shard == "none" then return own * 4 * 2 * (ranks - 1) / ranks end
  local shards = ranks / lay.replicas
  local gathers = (lay.pp > 1 or lay.shard == "grads") and 1 or 2 * micro_batches
  return own * (2 * gathers + 4) * (shards - 1) / shards + own * 4 / shards * 2 * (lay.replicas - 1) / lay.replicas
end

--- Bytes of one device at the peak of a step, by part.
function M.memory(s, lay)
  local m, tokens = {}, lay.micro * lay.seq / lay.cp
  local own = s.params / (lay.tp * lay.pp)
  local shards = lay.dp * lay.cp / lay.replicas
  local table_bytes = s.embedding / lay.tp
  if lay.shard == "none" then
    m.states = own * 16
    m.working = own * 2
  elseif lay.pp > 1 then -- parameters stay whole over the micro-batches; their gradients add up in 32 bits
    m.states = own * 16 / shards
    m.working = own * 6
  elseif lay.shard == "grads" then
    m.states = own * 16 / shards
    m.working = own * 2 + 2 * s.block / lay.tp * 6 + table_bytes * 6
  else
    m.states = own * 16 / shards
    -- Two layers in 16 bits, and embedding and head with the gradient of one in 16 and 32 bits.
    m.working = 2 * s.block / lay.tp * 2 + (s.tied and 1 or 2) * table_bytes * 2 + table_bytes * 6
  end
  local in_flight = math.min(lay.pp, math.max(1, lay.batch / (lay.dp * lay.micro)))
  if lay.interleave > 1 then in_flight = in_flight * (1 + (lay.pp - 1) / (lay.pp * lay.interleave)) end
  m.activations = tokens * shape.saved(s, lay.recompute) * s.layers / lay.pp / lay.tp * in_flight
  -- The layer in work: what it keeps without recomputation, and its gradients; with sequence
  -- parallelism the whole rows of its inputs and their gradients, in 16 bits.
  m.layer = tokens * shape.saved(s, "none") / lay.tp * 2 + (lay.tp > 1 and tokens * s.hidden * 2 * 4 or 0)
  if not lay.compiled then m.layer = m.layer * 2 end
  -- Logits in 16 bits, in 32, and their gradient; uncompiled, the loss keeps one more.
  m.logits = tokens * s.vocab / lay.tp * (lay.compiled and 10 or 12)
  if lay.pp > 1 then -- the first stage has most micro-batches in flight, the last the logits
    local first = m.activations
    m.activations = math.max(first, first / in_flight + m.logits)
    m.logits = 0
  end
  m.library = 3 * 2 ^ 30 -- CUDA's context, NCCL's buffers
  m.total = m.states + m.working + m.activations + m.layer + m.logits + m.library
  return m
end

--- Seconds of a step and its parts: { step, products, attention, elementwise, tp, cp, data, pipeline, optimizer,
-- tokens (a second and device), mfu, bubble (share), bytes_sent (by a rank, data parallel), tp_latency (seconds) }.
function M.step(s, gpu, lay)
  local micro_batches = math.max(1, lay.batch / (lay.dp * lay.micro))
  local t = compute(s, gpu, lay)
  local busy = t.products + t.attention + t.elementwise
  t.tp, t.cp = within_layers(s, gpu, lay, t.attention)
  t.slowest = slowest(s, lay.pp)
  local pass = (busy + t.tp + t.cp) * t.slowest
  local bubble = (lay.pp - 1) / (lay.interleave * micro_batches)
  local edge = 0
  if lay.pp > 1 then
    local rows = lay.micro * lay.seq * s.hidden * 2 / (lay.tp * lay.cp)
    edge = 2 * (lay.pp - 1) * hardware.collective(gpu, "send", rows, 2, 1)
  end
  for _, name in ipairs { "products", "attention", "elementwise", "tp", "cp" } do t[name] = t[name] * micro_batches end
  t.pipeline = micro_batches * (pass * (1 + bubble) - busy - t.tp / micro_batches - t.cp / micro_batches) + edge
  t.data = data(s, gpu, lay, pass, micro_batches)
  local own = s.params / (lay.tp * lay.pp) / (lay.shard == "none" and 1 or lay.dp * lay.cp / lay.replicas)
  t.optimizer = own * 32 / gpu.hbm
  t.step = micro_batches * busy + t.tp + t.cp + t.pipeline + t.data + t.optimizer
  local layers, head, attention = shape.flops(s, lay.seq)
  local world = lay.dp * lay.tp * lay.pp * lay.cp
  local tokens = lay.batch * lay.seq
  t.tokens = tokens / t.step / world
  t.mfu = 3 * (layers + head + attention) * t.tokens / gpu.peak
  t.bubble = bubble / (1 + bubble)
  t.bytes_sent = sent(s, lay, micro_batches)
  t.tp_latency = micro_batches * tp_calls(lay) * s.layers / lay.pp
    * hardware.collective(gpu, "all_gather", 0, lay.tp, near(gpu, lay.tp, 1))
  t.communication = t.tp + t.cp + t.data + edge
  return t
end

return M
