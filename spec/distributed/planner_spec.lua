-- The planner beside what was published: the seeds' tables, and runs of others with their layouts.
local moth = require "moth"
local dist = moth.distributed

local function near(expected, got, share, what)
  assert.is_true(math.abs(got / expected - 1) <= share, ("%s: expected %g, got %g"):format(what, expected, got))
end

describe("dist.estimate", function()
  it("knows what it costs to keep replicas equal #M363 #M405", function()
    local e = dist.estimate { params = 350e6, bytes = 4, world = 4, bw = 600e9, compute = 0.08 }
    assert.equal(1.4e9, e.grad_bytes)
    assert.equal(1.5, e.factor)
    near(0.0023, e.naive, 0.02, "1.4 GB at 600 GB/s")
    near(0.0035, e.time, 0.001, "the ring")
    near(3.7, e.speedup, 0.1, "speedup")
    assert.is_true(e.speedup_hidden > e.speedup and e.speedup_hidden < 4)
    assert.equal(2.1e9, e.bytes_sent)
  end)

  it("prints the limits, as explain() does the breaks #M321", function()
    local e = dist.estimate { params = 1e9, world = 4, pp = 4, microbatches = 8, tp = 8, layers = 32 }
    near(3 / 11, e.bubble, 1e-12, "bubble")
    assert.equal(1.5 * e.bytes_sent, e.fsdp_bytes_sent)
    assert.is_true(e.tp_latency > 1e-4 and e.tp_latency < 0.1)
    for _, line in ipairs { "fully_shard +9.00 GB", "tp latency +[%d.]+ ms", "bubble +27.27 %%" } do
      assert.is_truthy(tostring(e):find(line), tostring(e))
    end
    assert.equal(0, dist.estimate { tp = 1, pp = 1 }.tp_latency)
    local l = dist.estimate { model = "llama3-8b", layout = { dp = 8, tp = 2, pp = 4, batch = 64 } }
    near(3 / 11, l.time.bubble, 1e-12, "bubble of a layout")
    assert.is_truthy(tostring(l):find "limits: data parallelism sends [%d.]+ GB a rank, latency of tensor parallelism "
      and tostring(l):find "bubble 27.3 %%", tostring(l))
    -- 16 bits twice, 32 bits once, by seven of eight ranks
    local shard = dist.estimate { model = "llama3-8b", layout = { dp = 8 } }
    near(shard.shape.params * 8 * 7 / 8, shard.time.bytes_sent, 1e-12, "FSDP")
    local report = moth.compile.explain(function(x) return (x + 1):sum():item() end, moth.ones(3))
    assert.is_truthy(tostring(report):find "1 break" and tostring(report):find "item", tostring(report))
  end)

  local slow, fast = "h100-500w", "h100" -- torchtitan's, and others'
  local gpt = { layers = 96, hidden = 12288, heads = 96, ffn = 49152, vocab = 131072, seq = 4096, tied = true }
  local function titan3d(v)
    return { dp = 8, tp = 8, pp = 8, micro = 4, batch = 256, interleave = v, recompute = "full", fp8 = true,
      async_tp = true }
  end
  local function full(dp, more)
    local l = { dp = dp, tp = 8, micro = 16, recompute = "full" }
    for k, v in pairs(more or {}) do l[k] = v end
    return l
  end
  -- { what, measured, unit, model, gpu, layout }: tokens a second and GPU, per cent of peak, GiB
  local runs = {
    { "8B, 8 GPUs, not compiled", 5762, "tokens", "llama3-8b", slow, { dp = 8, micro = 2, compiled = false } },
    { "8B, 8 GPUs", 6667, "tokens", "llama3-8b", slow, { dp = 8, micro = 2 } },
    { "8B, 128 GPUs", 6514, "tokens", "llama3-8b", slow, { dp = 128, micro = 2 } },
    { "8B, 128 GPUs, fp8", 8380, "tokens", "llama3-8b", slow, { dp = 128, micro = 2, fp8 = true } },
    { "70B, FSDP 32 x TP 8", 597, "tokens", "llama3-70b", slow, full(32) },
    { "70B, async TP", 652, "tokens", "llama3-70b", slow, full(32, { async_tp = true }) },
    { "70B, fp8", 829, "tokens", "llama3-70b", slow, full(32, { fp8 = true }) },
    { "405B, 8 x 8 x 8, 1F1B", 100, "tokens", "llama3-405b", slow, titan3d(1) },
    { "405B, 8 x 8 x 8, interleaved", 128, "tokens", "llama3-405b", slow, titan3d(2) },
    { "8B, CP 8, 262,144 tokens", 548, "tokens", "llama3-8b", slow,
      { cp = 8, seq = 262144, recompute = "full", ring = "plain" } },
    { "405B, 8192 GPUs", 43, "mfu", "llama3-405b", fast,
      { dp = 64, tp = 8, pp = 16, batch = 2048, interleave = 8, recompute = "none" } },
    { "405B, 16384 GPUs", 41, "mfu", "llama3-405b", fast,
      { dp = 128, tp = 8, pp = 16, batch = 2048, interleave = 8, recompute = "none" } },
    { "175B, 96 GPUs", 47, "mfu", gpt, fast,
      { dp = 3, tp = 4, pp = 8, batch = 1152, interleave = 6, recompute = "none", async_tp = true } },
    { "175B, 4608 GPUs", 42, "mfu", gpt, fast,
      { dp = 144, tp = 4, pp = 8, batch = 1152, interleave = 6, recompute = "none", async_tp = true } },
    { "10^12, 3072 A100 (52 % with recomputation)", 39, "mfu", "gpt-1t", "a100",
      { dp = 6, tp = 8, pp = 64, batch = 3072, interleave = 2, recompute = "full", compiled = false } },
    { "8B, 8 GPUs, not compiled", 82.4, "GiB", "llama3-8b", slow, { dp = 8, micro = 2, compiled = false } },
    { "8B, 8 GPUs", 77, "GiB", "llama3-8b", slow, { dp = 8, micro = 2 } },
    { "8B, 128 GPUs", 62, "GiB", "llama3-8b", slow, { dp = 128, micro = 2 } },
    { "70B, fp8", 71.9, "GiB", "llama3-70b", slow, full(32, { fp8 = true }) },
    { "405B, 8 x 8 x 8, 1F1B", 82.5, "GiB", "llama3-405b", slow, titan3d(1) },
  }
  it("is within 10 % of published runs", function()
    for _, r in ipairs(runs) do
      local l = dist.estimate { model = r[4], gpu = r[5], layout = r[6] }
      local got = r[3] == "tokens" and l.time.tokens or r[3] == "mfu" and 100 * l.time.mfu or l.memory.total / 2 ^ 30
      near(r[2], got, 0.1, r[1] .. ", " .. r[3])
    end
  end)

  -- The constants are not fitted to these but to CP 8.
  it("is within 20 % of other published runs, their memory within 10 %", function()
    for _, r in ipairs(require "distributed.planner_runs") do
      local l = dist.estimate { model = r[5], gpu = r[6], layout = r[7] }
      local got = r[4] == "tokens" and l.time.tokens or 100 * l.time.mfu
      near(r[3], got, 0.2, r[1] .. ": " .. r[2])
      if r[8] then near(r[8], l.memory.total / 2 ^ 30, 0.1, r[2] .. ", GiB") end
    end
  end)

  it("gives reasons to choose: what is hidden, balanced, sharded or interleaved costs less", function()
    local function tokens(layout, model)
      return dist.estimate { model = model or "llama3-8b", gpu = fast, layout = layout }.time.tokens
    end
    local long = { cp = 8, seq = 262144, recompute = "full", ring = "balanced" }
    local balanced = tokens(long)
    long.ring = "plain"
    assert.is_true(balanced > 1.6 * tokens(long)) -- a causal mask: the last rank has nearly twice the mean
    assert.is_true(tokens { dp = 64 } > 2 * tokens { dp = 10240 }) -- a ring of 10,240 is all latency
    assert.is_true(tokens { dp = 10240, replicas = 1280 } > 0.95 * tokens { dp = 64 })
    local function GiB(layout)
      return dist.estimate { model = "llama3-8b", gpu = fast, layout = layout }.memory.total / 2 ^ 30
    end
    assert.is_true(GiB { dp = 8, shard = "none" } > GiB { dp = 8, shard = "grads" } + 50)
    assert.is_true(GiB { dp = 8, shard = "grads" } > GiB { dp = 8 })
    assert.is_true(GiB { dp = 8, recompute = "none" } > GiB { dp = 8 })
    assert.is_true(GiB { dp = 8 } > GiB { dp = 8, recompute = "full" })
  end)

  it("says what is wrong", function()
    assert.error_matches(function() dist.estimate {} end, "one of the options 'params' and 'model'")
    assert.error_matches(function() dist.estimate { model = "gpt2", pp = 2 } end, "stand in 'layout'")
    assert.error_matches(function() dist.estimate { model = "llama3-8" } end, "did you mean 'llama3%-8b'")
    assert.error_matches(function() dist.estimate { model = "gpt2", gpu = "h1000" } end, "did you mean 'h100'")
    assert.error_matches(function() dist.estimate { model = "gpt2", layout = { dp = 3, batch = 4 } } end,
      "a batch of 4 sequences is not a multiple of dp 3 times micro 1")
    assert.error_matches(function() dist.estimate { model = "gpt2", layout = { ddp = 3 } } end,
      "unknown option 'ddp'; did you mean 'dp'")
  end)
end)

describe("dist.plan", function()
  it("finds the layouts that fit, the fastest first", function()
    local p = dist.plan { model = "llama3-8b", gpus = 1024 }
    assert.is_truthy(tostring(p):find("DP1024 FSDP", 1, true))
    local first = p[1]
    assert.equal(1024, first.world)
    assert.is_true(first.fits and first.memory.total < 80 * 2 ^ 30)
    for i = 3, #p do assert.is_true(p[i].time.tokens <= p[i - 1].time.tokens) end
    assert.is_truthy(tostring(first):find("products", 1, true))
    local huge = dist.plan { model = "llama3-405b", gpus = 512, gpu = "h100" }
    assert.is_true(huge[1].tp > 1) -- no layer of it fits beside its activations
    local long = dist.plan { model = "llama3-8b", gpus = 8, seq = 131072 }
    assert.is_true(long[1].cp > 1 or long[1].tp > 1)
  end)

  it("reads modules, numbers of parameters and machines of one's own", function()
    local net = moth.nn.Sequential(moth.nn.Embedding(1000, 64))
    for _ = 1, 4 do net:append(moth.nn.TransformerEncoderLayer(64, 4, 256)) end
    local p = dist.plan { model = net, gpus = 2, gpu = { peak = 1e12, memory = 16e9, node = 2 } }
    assert.equal(net:num_parameters(), p[1].shape.params)
    assert.equal(64, p[1].shape.hidden)
    assert.is_true(dist.plan { model = 1e9, gpus = 4 }[1].dp == 4)
    assert.error_matches(function() dist.plan { model = "llama3-405b", gpus = 8 } end, "nothing fits: the leanest")
  end)
end)

describe("dist.advise", function()
  it("answers as the seeds' tables do #M393 #M409 #M410 #M411 #M412", function()
    local GB = 1e9
    for _, row in ipairs {
      { { params = 350e6, gpus = 4 }, "DDP", "NO_SHARD" },                  -- fits on one, much data
      { { params = 1e9, gpus = 8 }, "DDP", "NO_SHARD" },
      { { params = 4.5e9, gpus = 8 }, "FSDP", "SHARD_GRAD_OP" },            -- barely fits
      { { params = 7e9, gpu_mem = 80 * GB, gpus = 8 }, "FSDP", "FULL_SHARD" }, -- 112 GB on 80
      { { params = 10e9, gpus = 8 }, "FSDP", "FULL_SHARD" },
      { { params = 70e9, gpus = 16 }, "FSDP + TP", "FULL_SHARD" },          -- not even with FSDP
      { { params = 7e9, gpus = 8, seq = 262144 }, "CP" },                   -- the sequence is the bottleneck
      { { params = 70e9, gpus = 512 }, "3D parallelism" },                  -- hundreds over nodes
      { { params = 405e9, gpus = 16384 }, "3D parallelism" },
      { { gpus = 512 }, "3D parallelism" },
      { { params = 20e9, gpus = 4, layer_fits = false }, "PP" },
      { { params = 20e9, gpus = 64, layer_fits = false }, "3D parallelism" },
      { { params = 1e9, gpus = 1 }, "one device" },
    } do
      local name, reason, options = dist.advise(row[1])
      assert.equal(row[2], name, reason)
      if row[3] then assert.equal(row[3], options.strategy) end
      assert.equal("string", type(reason))
    end
    local _, reason = dist.advise { params = 7e9, gpu_mem = 80e9, gpus = 8 }
    assert.is_truthy(reason:find("112 GB", 1, true), reason)
    assert.error_matches(function() dist.advise { gpus = 8 } end, "expected the option 'params'")
  end)
end)
