--- A transformer block, compiled and not: equal results, the times of both, and the ceiling: what a compiler could gain
-- at most on this machine, where products and attention stay what they are. --train: forward, backward and AdamW.
--
-- The gains that are quoted for such blocks (1.5 to 3 times the speed for inference, 1.2 to 2 in training) are those of
-- GPUs, which wait for memory. On a CPU most of the time goes into products.
local moth = require "moth"
local nn, Timer = moth.nn, moth.benchmark.Timer
local options = moth.cli {
  { "--train", "forward, backward and AdamW" }, { "--batch N", "", 4 }, { "--length N", "", 128 },
  { "--width N", "", 384 }, { "--heads N", "", 6 }, { "--runs N", "", 20 }, { "--threads N", "", 1 },
  { "--dropout X", "", 0 }, { "--backend NAME", "", "inductor" },
  { "--device NAME", "", moth.cuda.is_available() and "cuda" or "cpu" },
}

local function build()
  moth.manual_seed(1)
  local block = nn.TransformerEncoderLayer(options.width, options.heads, { dim_feedforward = 4 * options.width,
    dropout = options.dropout, activation = "gelu", batch_first = true, norm_first = true }):to(options.device)
  return block, moth.optim.AdamW(block:parameters(), { lr = 1e-4 })
end
local x = moth.randn({ options.batch, options.length, options.width }, { device = options.device })

-- One run: of `call`, which is the block or what compile has made of it.
local function runner(call, optimizer)
  if not options.train then return function() return moth.no_grad(function() return call(x) end) end end
  return function()
    optimizer:zero_grad()
    local y = call(x)
    local loss = (y * y):mean()
    loss:backward()
    optimizer:step()
    return loss
  end
end

local eager_block, eager_optimizer = build()
local block, optimizer = build()
local compiled = moth.compile(block, { backend = options.backend })
local eager, fast = runner(eager_block, eager_optimizer), runner(compiled, optimizer)

local start = moth.utils.system.now()
for _ = 1, 3 do
  local a, b = eager(), fast()
  moth.testing.assert_close(b, a, { rtol = 1e-4, atol = 1e-5 })
end
print(("%s on %s, %d x %d x %d, %d thread%s, backend '%s'"):format(options.train and "training step" or "inference",
  options.device, options.batch, options.length, options.width, options.threads, options.threads == 1 and "" or "s",
  options.backend))
print(("equal results; the first calls took %.2f s, compiling %.2f s"):format(moth.utils.system.now() - start,
  moth.compile.counters().compile_seconds))

-- Where eager spends its time: the part of products, convolutions and attention.
local function share_of_products()
  local products, all = 0, 0
  local now = moth.utils.system.now
  moth.dispatch_mode(function(func, args)
    local begin = now()
    local results = { func(unpack(args, 1, args.n)) }
    if options.device == "cuda" then moth.cuda.synchronize() end
    local seconds = now() - begin
    local kind = moth.ops.get(func.name).kind
    all = all + seconds
    local is_product = kind == "matmul" or kind == "window" or func.name:find("attention", 1, true)
    products = products + (is_product and seconds or 0)
    return unpack(results)
  end, function() for _ = 1, 3 do eager() end end)
  return products / all
end

local function measure(name, fn)
  return Timer { fn = fn, label = options.train and "training step" or "inference", sub_label = "transformer block",
    description = name, num_threads = options.threads }:timeit(options.runs)
end
local slow, quick = measure("eager", eager), measure("compiled", fast)
moth.benchmark.compare { slow, quick }
print(("Eager: %.2f ms"):format(slow.median * 1000))
print(("Compiled: %.2f ms"):format(quick.median * 1000))
local share = share_of_products()
print(("%.2f times as fast; products and attention are %.0f %% of eager's time, so %.2f is the ceiling"):format(
  slow.median / quick.median, 100 * share, 1 / share))
