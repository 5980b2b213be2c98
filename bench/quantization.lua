--- moth.quantization: accuracy, SQNR, bytes and speed in one table, one thread; bench/RESULTS.md has a run.
--     MOTH_DATA=… bench/quantization.lua [mnist|resnet|qat|products|gpt …]      all parts without arguments
-- Images are MNIST's test images (8000 to train, 2000 to test), without them synthetic ones. Rounds take turns; times
-- are of the process, of the fastest round. `products` compares with PyTorch's dynamic int8 where python3 has it.
package.path = "./?.lua;" .. package.path
local moth = require "moth"
local nn, F, q = moth.nn, moth.nn.functional, moth.quantization
local now = os.clock -- of this process: other programs count little

moth.set_num_threads(1)

local wanted = {}
for _, part in ipairs(arg) do wanted[part] = true end
local function asked(part) return #arg == 0 or wanted[part] end

-- The fastest of some rounds, in ms, of several functions in turn; more rounds of short ones, since a processor takes
-- its time to become fast.
local function fastest(fns, rounds)
  local best, began = {}, now()
  for i, f in ipairs(fns) do
    f()
    best[i] = math.huge
  end
  for _ = 1, math.max(rounds or 12, math.min(3000, 0.5 / (now() - began))) do
    for i, f in ipairs(fns) do
      local start = now()
      f()
      best[i] = math.min(best[i], (now() - start) * 1e3)
    end
  end
  return best
end

-- ---- MNIST -----------------------------------------------------------------------------------------

local function images()
  local ok, set = pcall(function() return moth.datasets.MNIST(nil, { split = "test" }) end)
  if not ok then
    print "(no MNIST in MOTH_DATA: synthetic images)"
    moth.manual_seed(0)
    local centres = moth.randn(10, 784)
    local y = moth.randint(1, 11, { 10000 })
    return (centres:index_select(1, y) + moth.randn(10000, 784) * 12):view(-1, 1, 28, 28), y
  end
  local n = 10000
  local x, y = moth.empty(n, 1, 28, 28), moth.empty({ n }, { dtype = moth.int64 })
  for i = 1, n do
    local image, label = set:get(i)
    x[i] = moth.is_tensor(image) and image:to(moth.float32):view(1, 28, 28) or image
    y[i] = label
  end
  if x:max():item() > 2 then x = x / 255 end
  return x, y
end

local function mlp()
  return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
end
local function small() -- few weights, of which each counts
  return nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 10))
end
local function cnn()
  return nn.Sequential(nn.Conv2d(1, 32, 3, { padding = 1 }), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, { padding = 1 }), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 10))
end

-- anneal: the learning rate goes to 0 as a cosine.
local function train(m, x, y, epochs, lr, anneal)
  local opt = moth.optim.Adam(m:parameters(), { lr = lr })
  local schedule = anneal and moth.optim.lr_scheduler.CosineAnnealingLR(opt, epochs)
  for _ = 1, epochs do
    local order = moth.randperm(x:size(1))
    for i = 1, x:size(1) - 99, 100 do
      local at = order:narrow(1, i, 100)
      opt:zero_grad()
      F.cross_entropy(m(x:index_select(1, at)), y:index_select(1, at)):backward()
      opt:step()
    end
    if schedule then schedule:step() end
  end
  return m
end

local function logits(m, x)
  return moth.no_grad(function()
    local parts = {}
    for i = 1, x:size(1), 100 do parts[#parts + 1] = m(x:narrow(1, i, 100)) end
    return moth.cat(parts)
  end)
end
local function accuracy(z, y) return z:argmax(2):eq(y):to(moth.float32):mean():item() * 100 end

local function bytes_of(m)
  local n = 0
  for _, t in require("moth.nn.ordered").items(m:state_dict()) do n = n + t:numel() * t:element_size() end
  return n
end

local function static(m, x, example)
  m.qconfig = q.get_default_qconfig "x86"
  local p = q.prepare(m, example)
  moth.no_grad(function() for i = 1, 1000, 100 do p(x:narrow(1, i, 100)) end end)
  m.qconfig = nil
  return q.convert(p)
end

local x, y, tx, ty
if asked "mnist" or asked "qat" or asked "resnet" then
  local all, labels = images()
  x, y = all:narrow(1, 1, 8000), labels:narrow(1, 1, 8000)
  tx, ty = all:narrow(1, 8001, 2000), labels:narrow(1, 8001, 2000)
end

if asked "mnist" then
  print "| model, seed 1 | accuracy % | SQNR dB | bytes | of float | ms, 100 images | times as fast |"
  print "|---|---|---|---|---|---|---|"
  for _, kind in ipairs { { "MLP", mlp, 4 }, { "CNN", cnn, 2 } } do
    local worst = {}
    for seed = 1, 5 do
      moth.manual_seed(seed)
      local m = train(kind[2](), x, y, kind[3], 1e-3):eval()
      local made = { { "float32", m }, { "dynamic int8", q.quantize_dynamic(m) }, { "static int8", static(m, x) },
        { "int4, groups of 32", q.quantize_weights(m, { group = 32 }) } }
      local want, batch = logits(m, tx), tx:narrow(1, 1, 100)
      local fns = {}
      for i, pair in ipairs(made) do fns[i] = function() moth.no_grad(function() pair[2](batch) end) end end
      local times = seed == 1 and fastest(fns, 40)
      local float = accuracy(want, ty)
      for i, pair in ipairs(made) do
        local z = logits(pair[2], tx)
        local db, hit = q.sqnr(want, z), accuracy(z, ty)
        local w = worst[pair[1]] or { db = math.huge, loss = -math.huge }
        worst[pair[1]] = { db = math.min(w.db, db), loss = math.max(w.loss, float - hit) }
        if times then
          print(("| %s %s | %.2f | %.1f | %d | %.2f | %.2f | %.2f |"):format(kind[1], pair[1], hit, db,
            bytes_of(pair[2]), bytes_of(pair[2]) / bytes_of(m), times[i], times[1] / times[i]))
        end
      end
      if seed == 1 then
        print ""
        print(q.compare(m, made[3][2], batch))
        print ""
      end
    end
    for _, name in ipairs { "dynamic int8", "static int8", "int4, groups of 32" } do
      print(("%s %s, worst of five seeds: %.1f dB, %.2f points of accuracy less"):format(kind[1], name, worst[name].db,
        worst[name].loss))
    end
    print ""
  end
end

-- ---- a residual network -------------------------------------------------------------------------------

-- Its norms stand where only the graph shows them; without an example they stay, as passes over floats.
if asked "resnet" then
  moth.manual_seed(1)
  local m = moth.models.resnet18 { num_classes = 10, in_channels = 1, small_images = true }
  local some = x:narrow(1, 1, 4000)
  train(m, some, y:narrow(1, 1, 4000), 3, 5e-4, true):eval()
  print "| ResNet-18, 28x28 | accuracy % | SQNR dB | bytes of float | norms left | ms, 16 images | times as fast |"
  print "|---|---|---|---|---|---|---|"
  local batch = tx:narrow(1, 1, 16)
  local made = { { "float32", m }, { "static int8", static(m, x) },
    { "static int8, folded by the graph", static(m, x, batch) } }
  local fns, part = {}, tx:narrow(1, 1, 500)
  for i, pair in ipairs(made) do fns[i] = function() moth.no_grad(function() pair[2](batch) end) end end
  local times, want = fastest(fns, 10), logits(m, part)
  for i, pair in ipairs(made) do
    local z, norms = logits(pair[2], part), 0
    for _, layer in ipairs(pair[2]:modules()) do norms = norms + (layer.__name == "BatchNorm2d" and 1 or 0) end
    print(("| %s | %.2f | %.1f | %.3f | %d | %.1f | %.2f |"):format(pair[1], accuracy(z, ty:narrow(1, 1, 500)),
      q.sqnr(want, z), bytes_of(pair[2]) / bytes_of(m), norms, times[i], times[1] / times[i]))
  end
  print ""
end

-- ---- training with rounding --------------------------------------------------------------------------

-- Int4 after a training, and the same training with int4. The learning rate ends at 0: what the steps of a large one
-- leave to chance is more than int4 costs.
if asked "qat" then
  for _, case in ipairs { { "784-128-64-10, groups of 32", mlp, 32 },
    { "784-128-64-10, a scale for each row", mlp, 1024 }, { "784-24-16-10, a scale for each row", small, 1024 } } do
    local won, sums = { test = 0, train = 0 }, { 0, 0, 0, 0, 0, 0 }
    for seed = 1, 5 do
      moth.manual_seed(seed)
      local m = train(case[2](), x, y, 4, 1e-3)
      m.qconfig = q.get_default_qat_qconfig("x86", { weight_bits = 4, group = case[3] })
      local t = q.prepare_qat(m:train())
      moth.manual_seed(seed)
      local more = train(m:clone(), x, y, 10, 1e-3, true):eval()
      moth.manual_seed(seed)
      train(t, x, y, 10, 1e-3, true)
      local losses = {}
      for _, net in ipairs { more, q.quantize_weights(more, { group = case[3] }), q.convert(t:eval()) } do
        losses[#losses + 1] = F.cross_entropy(logits(net, tx), ty):item()
        losses[#losses + 1] = F.cross_entropy(logits(net, x), y):item()
      end
      if losses[5] < losses[3] then won.test = won.test + 1 end
      if losses[6] < losses[4] then won.train = won.train + 1 end
      for i, loss in ipairs(losses) do sums[i] = sums[i] + loss / 5 end
      print(("%s, seed %d: test loss float %.4f, int4 afterwards %.4f, trained with int4 %.4f"):format(case[1], seed,
        losses[1], losses[3], losses[5]))
    end
    print(("  mean of test (training) loss: float %.4f (%.4f), int4 afterwards %.4f (%.4f), trained with it %.4f (%.4f)"
      ):format(unpack(sums)))
    print(("  trained with it is better in %d of 5 seeds (training loss: %d)\n"):format(won.test, won.train))
  end
end

-- ---- products ----------------------------------------------------------------------------------------

local function torch_times()
  local p = io.popen("python3 -W ignore bench/quantization.py 2>/dev/null")
  local out = {}
  for line in p:lines() do
    local rows, ms = line:match("^(%d+) ([%d.]+)$")
    if rows then out[tonumber(rows)] = tonumber(ms) end
  end
  p:close()
  return out
end

if asked "products" then
  local N = 1024
  local w, bytes, scale = moth.randn(N, N), moth.randint(-127, 128, { N, N }):to(moth.int8), moth.rand(N)
  local packed = moth.pack_int8(bytes)
  print "| 1024x1024, rows | float32 ms | int8 of bytes | static | dynamic | times as fast | PyTorch dynamic | of it |"
  print "|---|---|---|---|---|---|---|---|"
  moth.no_grad(function()
    local best, torch = {}, {}
    for _ = 1, 3 do
      for _, rows in ipairs { 1, 16, 128, 1024 } do
        local a, u = moth.randn(rows, N), moth.randint(0, 256, { rows, N }):to(moth.uint8)
        local t = fastest({ function() moth.linear(a, w) end,
          function() moth.linear_int8(u, bytes, scale, nil, 1, 0, false, packed) end,
          function() moth.linear_int8(a, bytes, scale, nil, 0.02, 128, false, packed) end,
          function() moth.linear_int8_dynamic(a, bytes, scale, nil, false, packed) end }, 30)
        best[rows] = best[rows] or t
        for i = 1, 4 do best[rows][i] = math.min(best[rows][i], t[i]) end
      end
      local theirs = torch_times()
      for _, rows in ipairs { 1, 16, 128, 1024 } do
        torch[rows] = theirs[rows] and math.min(torch[rows] or math.huge, theirs[rows])
      end
    end
    for _, rows in ipairs { 1, 16, 128, 1024 } do
      local t, other = best[rows], torch[rows]
      print(("| %d | %.3f | %.3f | %.3f | %.3f | %.1f, %.1f | %s | %s |"):format(rows, t[1], t[2], t[3], t[4],
        t[1] / t[2], t[1] / t[4], other and ("%.3f"):format(other) or "-",
        other and ("%.2f"):format(other / t[4]) or "-"))
    end
    local K = 8192
    local a, big = moth.randn(1, K), moth.randn(K, K)
    local b8, s8 = moth.randint(-127, 128, { K, K }):to(moth.int8), moth.rand(K)
    local p8 = moth.pack_int8(b8)
    local b4, s4, s32 = moth.randint(0, 256, { K, K / 2 }):to(moth.uint8), moth.rand(K, K / 128), moth.rand(K, K / 32)
    local t = fastest({ function() moth.linear(a, big) end,
      function() moth.linear_int8_dynamic(a, b8, s8, nil, false, p8) end,
      function() moth.linear_int4(a, b4, s4) end, function() moth.linear_int4(a, b4, s32, nil, 32) end }, 20)
    print(("\none row, 8192x8192: float32 %.1f ms, int8 %.1f (%.1f times), int4 %.1f (%.1f), "
      .. "int4 in groups of 32 %.1f (%.1f)\n"):format(t[1], t[2], t[1] / t[2], t[3], t[1] / t[3], t[4],
      t[1] / t[4]))
  end)
end

-- ---- tokens ------------------------------------------------------------------------------------------

if asked "gpt" then
  moth.manual_seed(1)
  local m = moth.models.GPT { vocab_size = 50257, n_layer = 12, n_head = 12, n_embd = 768, block_size = 256 }:eval()
  local made = { { "float32", m }, { "int8", q.quantize_weights(m, { bits = 8 }) },
    { "int4, groups of 128", q.quantize_weights(m, { bits = 4 }) } }
  local fns, rate = {}, {}
  for i, pair in ipairs(made) do
    fns[i] = function()
      moth.no_grad(function()
        local cache = pair[2]:new_cache(1, 80)
        local idx = moth.randint(1, 50258, { 1, 16 })
        pair[2]:decode(idx, cache)
        local start = now()
        for _ = 1, 24 do idx = pair[2]:decode(idx:narrow(2, 1, 1), cache, nil, true):argmax(3) end
        rate[i] = math.max(rate[i] or 0, 24 / (now() - start))
      end)
    end
  end
  fastest(fns, 4)
  print "| GPT of GPT-2's size, one row | tokens/s | times as fast | MB |\n|---|---|---|---|"
  for i, pair in ipairs(made) do
    print(("| %s | %.1f | %.1f | %d |"):format(pair[1], rate[i], rate[i] / rate[1], bytes_of(pair[2]) / 2 ^ 20))
  end
end
