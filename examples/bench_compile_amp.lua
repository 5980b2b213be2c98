--- A transformer block: uncompiled in float32, in bfloat16 by autocast, compiled, and both. Forward and backward.
--
--     moth examples/bench_compile_amp.lua [--quick]
local moth = require "moth"
local nn, amp = moth.nn, moth.amp

local quick = moth.cli({ { "--quick", "a short run" } }).quick
local width, tokens, batch = quick and 32 or 256, quick and 16 or 64, quick and 2 or 8
local device = moth.cuda.is_available() and "cuda" or "cpu"
if device == "cpu" then moth.set_num_threads(1) end

moth.manual_seed(0)
local block = nn.TransformerEncoderLayer(width, 4, { dim_feedforward = 4 * width, dropout = 0 }):to(device)
local compiled = moth.compile(block, { mode = "max-autotune", dynamic = true })
local x = moth.randn(batch, tokens, width, { device = device })

local function run(net, lower)
  block:zero_grad()
  local y = amp.autocast({ enabled = lower, dtype = moth.bfloat16 }, function() return net(x):float():sum() end)
  y:backward()
  if device == "cuda" then moth.cuda.synchronize() end
  return y
end

local ways = { { "float32", block, false }, { "bfloat16", block, true }, { "compiled, float32", compiled, false },
  { "compiled, bfloat16", compiled, true } }
local least = {}
for round = 1, quick and 3 or 12 do
  for i, way in ipairs(ways) do
    local start = os.clock()
    run(way[2], way[3])
    if round > 2 then least[i] = math.min(least[i] or math.huge, os.clock() - start) end
  end
end
for i, way in ipairs(ways) do
  print(("%-20s %8.2f ms  %.2f times as fast"):format(way[1], least[i] * 1e3, least[1] / least[i]))
end
