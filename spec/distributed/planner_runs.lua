-- Runs that others have published, with their layouts: data for planner_spec. Each is { source, what, measured, unit,
-- model, gpu, layout, GiB of a device where published }; unit is "tokens" (a second and device) or "mfu" (per cent of
-- the device's peak).
--
-- Sources:
--   a100: torchtitan, docs/performance.md: 64 A100 of 80 GB, FSDP2.
--   h100: torchtitan's later report, 8 H100 of 500 W, float8; CP by a plain ring.
--   megatron: "Reducing Activation Recomputation in Large Transformer Models", table of iteration times; one replica.
--     Its selective recomputation is that of attention alone, which is "none" here: attention is always run again.
--   nemo: the performance summary of NeMo 24.12 (Megatron-Core), H100, float8, communication hidden.
-- A recomputation by layers and one by ops are both "selective" here.
local function gpt(layers, hidden, heads)
  return { layers = layers, hidden = hidden, heads = heads, ffn = 4 * hidden, vocab = 51200, seq = 2048, tied = true }
end
local llama2_13b = { layers = 40, hidden = 5120, heads = 40, ffn = 13824, vocab = 32000, seq = 4096, gated = true }
local llama2_70b = { layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, vocab = 32000, seq = 4096,
  gated = true }

local function ring(cp)
  return { dp = 8 / cp, cp = cp, seq = 32768 * cp, recompute = "full", ring = "plain", fp8 = true }
end
local function one(pp, micro, batch, interleave)
  return { tp = 8, pp = pp, micro = micro, batch = batch, interleave = interleave, recompute = "none", shard = "none",
    compiled = false }
end
local function nemo(dp, tp, pp, cp, micro, batch, interleave)
  return { dp = dp, tp = tp, pp = pp, cp = cp, micro = micro, batch = batch, interleave = interleave,
    recompute = "none", fp8 = true, async_tp = true, shard = "grads" }
end

local slow = "h100-500w"
return {
  { "a100", "Llama 3 8B, by layers", 2904, "tokens", "llama3-8b", "a100", { dp = 64 } },
  { "a100", "Llama 3 8B, by ops", 2973, "tokens", "llama3-8b", "a100", { dp = 64 } },
  { "a100", "Llama 3 70B", 331, "tokens", "llama3-70b", "a100", { dp = 64, recompute = "full" } },
  { "a100", "Llama 2 13B, nothing again", 2162, "tokens", llama2_13b, "a100",
    { dp = 64, micro = 2, recompute = "none" } },
  { "a100", "Llama 2 13B, by layers", 1914, "tokens", llama2_13b, "a100", { dp = 64, micro = 2 } },
  { "a100", "Llama 2 13B, by ops", 1904, "tokens", llama2_13b, "a100", { dp = 64, micro = 2 } },
  { "a100", "Llama 2 70B, by ops", 355, "tokens", llama2_70b, "a100", { dp = 64 } },
  { "a100", "Llama 2 70B, all again", 353, "tokens", llama2_70b, "a100", { dp = 64, micro = 2, recompute = "full" } },
  { "h100", "8B, FSDP", 8532, "tokens", "llama3-8b", slow, { dp = 8, micro = 2, fp8 = true }, 76.8 },
  { "h100", "8B, CP 1", 3890, "tokens", "llama3-8b", slow, ring(1), 83.9 },
  { "h100", "8B, CP 2", 2540, "tokens", "llama3-8b", slow, ring(2), 84.2 },
  { "h100", "8B, CP 4", 1071, "tokens", "llama3-8b", slow, ring(4), 84.0 },
  { "h100", "8B, CP 8", 548, "tokens", "llama3-8b", slow, ring(8), 84.5 },
  { "megatron", "22B, 8 A100", 41.5, "mfu", gpt(48, 6144, 64), "a100", one(1, 4, 4, 1) },
  { "megatron", "175B, 64 A100", 51.4, "mfu", gpt(96, 12288, 96), "a100", one(8, 1, 64, 3) },
  { "megatron", "530B, 280 A100", 56.0, "mfu", gpt(105, 20480, 128), "a100", one(35, 1, 280, 3) },
  { "megatron", "10^12, 512 A100", 56.3, "mfu", "gpt-1t", "a100", one(64, 1, 512, 1) },
  { "nemo", "GPT-3 5B, 64", 23406, "tokens", gpt(24, 4096, 32), "h100", nemo(64, 1, 1, 1, 4, 2048, 1) },
  { "nemo", "GPT-3 20B, 64", 5851, "tokens", gpt(44, 6144, 48), "h100", nemo(32, 2, 1, 1, 2, 256, 1) },
  { "nemo", "GPT-3 175B, 128", 716, "tokens", gpt(96, 12288, 96), "h100", nemo(4, 4, 8, 1, 1, 256, 6) },
  { "nemo", "GPT-3 175B, 512", 825, "tokens", gpt(96, 12288, 96), "h100", nemo(16, 4, 8, 1, 2, 2048, 6) },
  { "nemo", "Llama 2 7B, 8", 16934, "tokens", "llama2-7b", "h100", nemo(8, 1, 1, 1, 1, 128, 1) },
  { "nemo", "Llama 2 13B, 16", 8715, "tokens", llama2_13b, "h100", nemo(4, 1, 4, 1, 1, 128, 10) },
  { "nemo", "Llama 2 70B, 64", 1728, "tokens", llama2_70b, "h100", nemo(4, 4, 4, 1, 1, 128, 20) },
  { "nemo", "Llama 3 8B, 8", 12273, "tokens", "llama3-8b", "h100", nemo(4, 1, 1, 2, 1, 128, 1) },
  { "nemo", "Llama 3 70B, 64", 1524, "tokens", "llama3-70b", "h100", nemo(2, 4, 4, 2, 1, 128, 5) },
}
