--- A transformer block's forward and backward, compiled and not: equal gradients, and the times of both.
--     compile_block.lua [runs 20] [width 256] [backend inductor]
local moth = require "moth"
local nn = moth.nn
local o = moth.cli { { "[RUNS]", "", 20 }, { "[WIDTH]", "", 256 }, { "[BACKEND]", "", "inductor" } }
local runs, width, backend = o.runs, o.width, o.backend
moth.manual_seed(0)

local Block = nn.Module:subclass "Block"
function Block:__init()
  nn.Module.__init(self)
  self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
  self.attention = nn.MultiheadAttention(width, 4, { batch_first = true })
  self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
end
function Block:forward(x)
  local h = self.norm1(x)
  x = x + (self.attention(h, h, h))
  return x + self.narrow(moth.gelu(self.wide(self.norm2(x))))
end

local block = Block()
local fast = moth.compile(block, { backend = backend })
local x = moth.randn(4, 64, width)
local function gradients(call)
  block:zero_grad()
  local y = call(x)
  y:square():mean():backward()
  local list = {}
  for i, p in ipairs(block:parameters()) do list[i] = p.grad:clone() end
  return y:detach(), list
end

local want, want_grads = gradients(block)
for _ = 1, 2 do
  local y, grads = gradients(fast)
  moth.testing.assert_close(y, want, { rtol = 1e-4, atol = 1e-5 })
  for i, g in ipairs(grads) do moth.testing.assert_close(g, want_grads[i], { rtol = 1e-3, atol = 1e-6 }) end
end
print(("%d gradients are equal"):format(#want_grads))

local function measure(description, call)
  return moth.benchmark.Timer { fn = function() gradients(call) end, label = "forward and backward",
    sub_label = ("4 x 64 x %d"):format(width), description = description }:timeit(runs)
end
moth.benchmark.compare { measure("eager", block), measure("compiled", fast) }
print(moth.compile.explain(block, x))
