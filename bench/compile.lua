--- moth.compile against moth without it, one thread: the bars of bench/RESULTS.md.
--     bench/compile.lua [pattern of cases]       how many times as fast, by backend
--     bench/compile.lua first blocks|inductor    the first step of a GPT, compiled and not (MOTH_CC, XDG_CACHE_HOME)
-- Rounds take turns; each figure is of the fastest round, so that other programs count little.
package.path = "./?.lua;" .. package.path
local moth = require "moth"
local nn, F = moth.nn, moth.nn.functional
local now = moth.utils.system.now
local BACKENDS = { "eager", "blocks", "inductor" }
local ROUNDS = 25

moth.set_num_threads(1)
moth.compile.config.measure = false
moth.manual_seed(0)

local function fastest(fns, calls)
  local best = {}
  for i = 1, #fns do best[i] = math.huge end
  for _ = 1, ROUNDS do
    for i, f in ipairs(fns) do
      local start = now()
      for _ = 1, calls do f() end
      best[i] = math.min(best[i], (now() - start) / calls)
    end
  end
  return best
end

local pattern = arg[1] or ""
-- make(compile) -> a function without arguments.
local function row(name, make, backends)
  if not name:find(pattern) then return end
  local fns = { make(function(f) return f end) }
  for _, backend in ipairs(backends or BACKENDS) do
    fns[#fns + 1] = make(function(f) return moth.compile(f, { backend = backend }) end)
  end
  local once
  for _, f in ipairs(fns) do f() f() end
  once = now()
  fns[1]()
  local calls = math.max(1, math.floor(2e-3 / (now() - once)))
  local times, parts = fastest(fns, calls), {}
  for i, backend in ipairs(backends or BACKENDS) do
    parts[i] = ("%s %5.2f"):format(backend, times[1] / times[i + 1])
  end
  print(("%-34s %10.1f us  %s"):format(name, times[1] * 1e6, table.concat(parts, "  ")))
end

local function of(f, ...)
  local args = { ... }
  return function(compile)
    local g = compile(f)
    return function() return moth.no_grad(function() return g(unpack(args)) end) end
  end
end

local function first(backend)
  local steps = require "bench.steps"
  local step = steps.gpt()
  local start = now()
  step()
  local eager = now() - start
  local fast = moth.compile(steps.gpt(), { backend = backend })
  start = now()
  fast()
  print(("first step %.3f s, uncompiled %.3f s; compiling %.3f s, kernels %d"):format(now() - start, eager,
    moth.compile.counters().compile_seconds, moth.compile.counters().kernels))
end
if arg[1] == "first" then return first(arg[2]) end

local function chain11(x)
  local y = x * 2 + 1
  local z = y:tanh() * x:sigmoid()
  return (z - x * x / 2):relu() + (z * 0.5):sin()
end
local function chain6(x) return ((x * 2 + 1):relu() - 0.5) * x + x end
local function many(x)
  for _ = 1, 12 do x = (x + 1):relu() end
  return x
end
local function noted(x)
  for _ = 1, 12 do x = (x + 1):relu() end
end

-- Guards of an exported program, for each call of it: ns.
local function guards()
  local function f(x)
    local n = x:size(1)
    for k = 1, 20 do
      if n > 5000 * k or math.floor(n / 64) == 900 + k then x = x * 2 end
    end
    return x
  end
  local n = moth.Dim("n", { min = 2 })
  local list = moth.export(f, { moth.ones(9) }, { dynamic_shapes = { { [1] = n } } }).program.guards
  local sizes = require "moth.compile.sizes"
  local dims, count = { n = 0 }, 0
  local function name(d) return ("v[%q]"):format(d) end
  local best = fastest({ function()
    dims.n = count % 4000 + 2
    count = count + 1
    assert(not sizes.broken(list, dims, name))
  end }, 10000)
  print(("%-34s %10.1f ns  of %d"):format("a guard on sizes", best[1] / #list * 1e9, #list))
end
if ("a guard on sizes"):find(pattern) then guards() end

row("24 ops, 8x8, results dropped", of(noted, moth.randn(8, 8)), { "blocks" })
row("24 ops, 8x8", of(many, moth.randn(8, 8)))
for _, n in ipairs { 8, 128, 512, 2048 } do row(("chain of 11, %dx%d"):format(n, n), of(chain11, moth.randn(n, n))) end
for _, n in ipairs { 512, 2048 } do row(("chain of 6, %dx%d"):format(n, n), of(chain6, moth.randn(n, n))) end
local a, b, w = moth.randn(256, 1024), moth.randn(256, 1024), moth.randn(1024)
row("relu(x*2+1):sum(), 256x1024", of(function(x) return (x * 2 + 1):relu():sum() end, a))
row("RMS norm by hand, 256x1024", of(function(x)
  return x * (x:square():mean(-1, true) + 1e-5):rsqrt() * w
end, a))
row("SwiGLU by hand, 256x1024", of(function(x, y) return x * x:sigmoid() * y end, a, b))
row("rotary by hand, 4x8x64x64", of(function(x, c, s)
  local l, r = x:narrow(-1, 1, 32), x:narrow(-1, 33, 32)
  return moth.cat({ l * c - r * s, r * c + l * s }, -1)
end, moth.randn(4, 8, 64, 64), moth.randn(64, 32), moth.randn(64, 32)))
row("layer norm, gelu, 256x1024", of(function(x) return F.gelu(F.layer_norm(x, { 1024 })) end, a))
row("layer norm, gelu, dropout", of(function(x)
  return F.dropout(F.gelu(F.layer_norm(x, { 1024 })), 0.1, true)
end, a))
row("softmax, 256x1024", of(function(x) return x:softmax(-1) end, a))
row("product, 512x512", of(function(x) return x:mm(x) end, moth.randn(512, 512)))

local function training(make)
  return function(compile)
    local net, loss_of, x, y = make()
    local opt = moth.optim.AdamW(net:parameters(), { lr = 1e-3 })
    local step = compile(function()
      opt:zero_grad()
      local loss = loss_of(net, x, y)
      loss:backward()
      opt:step()
      return loss
    end)
    return step
  end
end
row("step: MLP 784-256-10, 64 rows", training(function()
  return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)),
    function(net, x, y) return F.cross_entropy(net(x), y) end, moth.randn(64, 784), moth.randint(1, 11, { 64 })
end))
row("step: conv, batch norm, relu", training(function()
  return nn.Sequential(nn.Conv2d(8, 16, 3, { padding = 1 }), nn.BatchNorm2d(16), nn.ReLU()),
    function(net, x) return net(x):square():mean() end, moth.randn(8, 8, 32, 32)
end))
row("step: transformer block 4x128x384", training(function()
  return nn.TransformerEncoderLayer(384, 6, { dim_feedforward = 1536, dropout = 0.1, batch_first = true }),
    function(net, x) return net(x):square():mean() end, moth.randn(4, 128, 384)
end))
row("step: GRU cell over 20 steps", training(function()
  return nn.GRUCell(32, 64), function(net, x)
    local h = moth.zeros(16, 64)
    for t = 1, 20 do h = net(x[t], h) end
    return h:square():mean()
  end, moth.randn(20, 16, 32)
end))
