--- 24 blocks of width 512, each a checkpoint: what they compute between their ends is computed again in backward. The
-- gradients are the same, the peak of memory is lower.
--
--     moth examples/checkpoint24.lua
local moth = require "moth"
local nn, utils = moth.nn, moth.utils

local Block = nn.class("CheckpointedBlock")
function Block:__init(dim, checkpointed)
  self.layers = nn.Sequential(nn.Linear(dim, dim * 4), nn.GELU(), nn.Linear(dim * 4, dim))
  self.checkpointed = checkpointed
end
function Block:forward(x)
  if self.checkpointed then return utils.checkpoint(self.layers, x, { use_reentrant = false }) end
  return self.layers(x)
end

local device = moth.cuda.is_available() and "cuda" or "cpu"
local memory = device == "cuda" and moth.cuda or moth.cpu

local function run(checkpointed)
  moth.manual_seed(0)
  local blocks = {}
  for i = 1, 24 do blocks[i] = Block(512, checkpointed) end
  local model = nn.Sequential(blocks):to(device)
  local x = moth.randn(32, 512, { device = device, requires_grad = true })
  for _, p in ipairs(model:parameters()) do p.grad = moth.zeros_like(p) end -- not part of what is compared
  collectgarbage()
  collectgarbage()
  local before = memory.memory_allocated()
  memory.reset_peak_memory_stats()
  local start = os.clock()
  model(x):sum():backward()
  if device == "cuda" then moth.cuda.synchronize() end
  local seconds = os.clock() - start
  return memory.max_memory_allocated() - before, seconds, x.grad
end

run(false) -- the first run makes caches
local plain, plain_time, g1 = run(false)
local less, less_time, g2 = run(true)
print(("plain:        %6.1f MB above the model, %.0f ms"):format(plain / 1e6, plain_time * 1e3))
print(("checkpointed: %6.1f MB above the model, %.0f ms"):format(less / 1e6, less_time * 1e3))
print("the gradients are the same: " .. tostring(moth.equal(g1, g2)))
