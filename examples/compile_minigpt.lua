--- A small GPT in each mode of compile: the seconds of its first call, and the latency of the next ones.
--     compile_minigpt.lua [layers 4] [width 128] [runs 20] [backend inductor]
local moth = require "moth"
local o = moth.cli { { "[LAYERS]", "", 4 }, { "[WIDTH]", "", 128 }, { "[RUNS]", "", 20 },
  { "[BACKEND]", "", "inductor" } }
local layers, width, runs, backend = o.layers, o.width, o.runs, o.backend
local device = moth.cuda.is_available() and "cuda" or "cpu"
local now = moth.utils.system.now
moth.manual_seed(0)

local gpt = moth.models.GPT { vocab_size = 256, block_size = 64, n_layer = layers, n_embd = width, n_head = 4 }
gpt:to(device)
gpt:eval()
local ids = moth.randint(1, 256, { 1, 64 }, { dtype = moth.int64, device = device })
local function forward(model) return moth.no_grad(function() return (model(ids)) end) end

local function measure(name, model)
  return moth.benchmark.Timer { fn = function() forward(model) end, label = "GPT on " .. device,
    sub_label = ("%d layers of %d"):format(layers, width), description = name }:timeit(runs)
end
local want = forward(gpt)
local results = { measure("eager", gpt) }
for _, mode in ipairs { "default", "reduce-overhead", "max-autotune" } do
  moth.compile.reset()
  local ok, fast = pcall(moth.compile, gpt, { mode = mode, backend = backend })
  if not ok then
    print(("%-16s %s"):format(mode, tostring(fast):gsub("^[^ ]*:%d+: ", "")))
  else
    local start = now()
    local logits = forward(fast)
    moth.testing.assert_close(logits, want, { rtol = 1e-4, atol = 1e-4 })
    local c = moth.compile.counters()
    print(("%-16s first call %.2f s, of these compiling %.2f s; %d graph(s)"):format(mode, now() - start,
      c.compile_seconds, c.graphs))
    results[#results + 1] = measure(mode, fast)
  end
end
moth.benchmark.compare(results)
