--- What the generated kernels of moth.compile gain: kernels alone and whole training steps, beside ops one by one and,
-- with --torch, beside torch.compile (bench/generated.py, which compiles for some minutes first).
--
--     luajit bench/generated.lua [--torch] [--only=pattern] [--threads=1] [--dropout=0]
--
-- Times are of the processor, not of the clock, so that other programs disturb them less: for several threads they are
-- the sum. "ratio" is the median of compiled to eager, taken in turn. Compiling is not in them.
local moth = require "moth"
local nn, F = moth.nn, moth.nn.functional
local options = moth.cli { { "--torch", "beside torch.compile" }, { "--only PATTERN", "", "" },
  { "--threads N", "", 1 }, { "--dropout X", "", 0 } }
moth.set_num_threads(options.threads)
moth.compile.config.measure = false
local dropout = options.dropout
local COLUMNS = 1024
local cases = {}

-- ---- kernels ----------------------------------------------------------------------------------------

local w, b = moth.randn(COLUMNS), moth.randn(COLUMNS)
local kernels = {
  { "chain", 1, function(x) return (x * 2 + 1):tanh() * x:sigmoid() - x * x / 2 end },
  { "relu_sum", 1, function(x) return (x * 2 + 1):relu():sum() end },
  { "softmax", 1, function(x) return F.softmax(x, 2) end },
  { "norm_gelu", 1, function(x) return F.gelu(F.layer_norm(x, { COLUMNS }, w, b)) end },
  { "norm_gelu_dropout", 1, function(x) return F.dropout(F.gelu(F.layer_norm(x, { COLUMNS }, w, b)), 0.1) end },
  { "bias_relu_backward", 2, function(g, y)
    local d = g * y:gt(0)
    return d, d:sum(1)
  end },
  { "adamw", 4, function(p, g, m, v)
    m:mul_(0.9):add_(g, { alpha = 0.1 })
    v:mul_(0.999):addcmul_(g, g, { value = 0.001 })
    p:mul_(0.999):addcdiv_(m, v:sqrt():add_(1e-8), { value = -0.001 })
  end },
}
for _, rows in ipairs { 256, 4096 } do
  for _, k in ipairs(kernels) do
    local name, count, fn = unpack(k)
    cases[#cases + 1] = { name = name .. "_" .. rows, runs = rows == 256 and 20 or 3, make = function(wrap)
      moth.manual_seed(1)
      local args, f = {}, wrap(fn)
      for i = 1, count do args[i] = moth.rand(rows, COLUMNS) end
      return function() return moth.no_grad(function() return f(unpack(args)) end) end
    end }
  end
end

-- ---- training steps ---------------------------------------------------------------------------------

local function perceptron()
  local model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Dropout(dropout), nn.Linear(1024, 1024), nn.ReLU(),
    nn.Linear(1024, 10))
  local x, y = moth.randn(256, 784), moth.randint(1, 11, { 256 })
  return model, function() return moth.cross_entropy(model(x), y) end
end

local function gpt()
  local model = moth.models.GPT { vocab_size = 1000, n_layer = 4, n_head = 4, n_embd = 256, block_size = 128,
    dropout = dropout }
  local ids = moth.randint(1, 1001, { 4, 128 })
  return model, function() return (select(2, model(ids, ids))) end
end

local function vit()
  local blocks = {}
  for i = 1, 4 do
    blocks[i] = nn.TransformerEncoderLayer(192, 3, { dim_feedforward = 768, dropout = dropout, activation = "gelu",
      batch_first = true, norm_first = true })
  end
  local patches, encoder = nn.Conv2d(3, 192, 8, { stride = 8 }), nn.Sequential(unpack(blocks))
  local norm, head = nn.LayerNorm(192), nn.Linear(192, 10)
  local x, y = moth.randn(8, 3, 64, 64), moth.randint(1, 11, { 8 })
  return nn.ModuleList { patches, encoder, norm, head }, function()
    return moth.cross_entropy(head(norm(encoder(patches(x):flatten(3):transpose(2, 3))):mean(2)), y)
  end
end

local function resnet()
  local function block(c)
    return nn.Sequential(nn.Conv2d(c, c, 3, { padding = 1, bias = false }), nn.BatchNorm2d(c), nn.ReLU(),
      nn.Conv2d(c, c, 3, { padding = 1, bias = false }), nn.BatchNorm2d(c))
  end
  local stem = nn.Sequential(nn.Conv2d(3, 32, 3, { padding = 1 }), nn.BatchNorm2d(32), nn.ReLU())
  local blocks, head = nn.ModuleList { block(32), block(32), block(32) }, nn.Linear(32, 10)
  local x, y = moth.randn(16, 3, 32, 32), moth.randint(1, 11, { 16 })
  return nn.ModuleList { stem, blocks, head }, function()
    local h = stem(x)
    for i = 1, 3 do h = (blocks[i](h) + h):relu() end
    return moth.cross_entropy(head(h:mean { 3, 4 }), y)
  end
end

for _, one in ipairs { { "mlp", perceptron }, { "gpt", gpt }, { "vit", vit }, { "resnet", resnet } } do
  cases[#cases + 1] = { name = "step_" .. one[1], runs = 1, make = function(wrap)
    moth.manual_seed(1)
    local model, loss = one[2]()
    local optimizer = moth.optim.AdamW(model:parameters(), { lr = 1e-4 })
    return wrap(function()
      optimizer:zero_grad()
      local l = loss()
      l:backward()
      nn.utils.clip_grad_norm_(model:parameters(), 1)
      optimizer:step()
      return l
    end)
  end }
end

-- ---- times ------------------------------------------------------------------------------------------

local torch = {}
if options.torch then
  local pipe = io.popen(("python3 bench/generated.py '%s' %d %g"):format(options.only, options.threads, dropout))
  for name, seconds in pipe:read("*a"):gmatch("(%S+) (%S+)\n") do torch[name] = tonumber(seconds) end
  pipe:close()
end

local function time(f, n)
  local start = os.clock()
  for _ = 1, n do f() end
  return (os.clock() - start) / n
end

print(("%-24s %12s %12s %7s %14s %7s"):format("us", "eager", "compiled", "ratio", "torch.compile", "c/t"))
for _, case in ipairs(cases) do
  if case.name:find(options.only) then
    local eager = case.make(function(f) return f end)
    local fast = case.make(function(f) return moth.compile(f, { backend = "inductor" }) end)
    for _ = 1, 4 do eager() fast() end
    local ratios, best, least = {}, math.huge, math.huge
    for i = 1, 21 do
      local e, c = time(eager, case.runs), time(fast, case.runs)
      ratios[i], best, least = c / e, math.min(best, e), math.min(least, c)
    end
    table.sort(ratios)
    local other = torch[case.name]
    print(("%-24s %12.1f %12.1f %7.2f %14s %7s"):format(case.name, best * 1e6, least * 1e6, ratios[11],
      other and ("%.1f"):format(other * 1e6) or "", other and ("%.2f"):format(least / other) or ""))
  end
end
