--- The training section of make bench: whole training steps beside PyTorch's, in one run, alternating, with one thread
-- and two; peak memory of both; samples per second of a loader with workers. See bench/README.md.
--   luajit bench/training.lua [--quick] [--cpu] [--rows=pattern] [--threads=n] [--no-torch] [--no-memory]
-- --cpu: times of the processor, for busy machines; with one thread.
package.path = "./?.lua;" .. package.path
local measuring = require "bench.measure"
local median, now, number, ratio = measuring.median, measuring.now, measuring.number, measuring.ratio

local options = require "moth.cli" { { "--quick", "shorter" }, { "--rows PATTERN", "only these" },
  { "--threads N", "only with so many" }, { "--torch", "beside PyTorch", true }, { "--memory", "its peak, too", true },
  { "--cpu", "times of the processor, for busy machines; with one thread" } }
local quick, only_threads, pattern, use_torch = options.quick, options.threads, options.rows, options.torch
local use_memory, on_cpu = options.memory, options.cpu
if on_cpu then measuring.use_processor_time() end
local SECONDS, TOTAL = 0.025, quick and 0.6 or 3 -- of a repetition; of a row in moth, more or less

local moth = require "moth"
local steps = require "bench.steps"
moth.manual_seed(1)
local torch, why
if use_torch then
  local folder = os.tmpname()
  os.remove(folder)
  os.execute("mkdir " .. folder)
  torch, why = require("bench.torch").start(folder)
end

-- name of bench/steps.lua, what it is, limit of moth's time as a multiple of PyTorch's
local rows = { { "mlp", "MLP 784-256-256-10, 64", 0.4 }, { "cnn", "CNN of fashion_cnn, 64", 0.65 } }
for _, kind in ipairs { "lstm", "gru" } do
  for _, s in ipairs(steps.recurrent_shapes) do
    rows[#rows + 1] = { ("%s_%d_%d_%d_%d"):format(kind, unpack(s)),
      ("%s x2 %d>%d, %d x %d"):format(kind:upper(), unpack(s)), 0.95, mean = kind }
  end
end
for _, r in ipairs { { "resnet_32", "ResNet-18, 32 of 32x32", 1 }, { "resnet_224", "ResNet-18, 4 of 224x224", 1 },
  { "vit", "ViT-small, 8 of 64x64", 0.85 }, { "gpt", "char_gpt, 16 x 128", 0.85 },
  { "dcgan", "DCGAN, 32 of 32x32", 0.7 }, { "decode_1", "GPT-2 124M, 16 tokens", 1 },
  { "decode_8", "GPT-2 124M, 8 x 16 tokens", 1 } } do
  rows[#rows + 1] = r
end
local MEAN_GOAL = 0.75 -- of the shapes of a recurrent layer

local function measure(name, threads)
  moth.set_num_threads(threads)
  local on = measuring.place(threads)
  local step = steps[name]()
  local function run(n)
    for _ = 1, n do step() end
  end
  local n = measuring.calibrate(run, SECONDS)
  if torch then torch.prepare("step_" .. name, "0", threads, SECONDS, on or "any") end
  local m, t, both = {}, {}, {}
  local start = now()
  while #m < 5 or (#m < 31 and now() - start < TOTAL * (torch and 2 or 1)) do
    local from = now()
    run(n)
    m[#m + 1] = (now() - from) / n
    if torch then
      if threads > 1 then measuring.rest() end
      t[#t + 1] = torch.run()
      both[#both + 1] = m[#m] / t[#t]
    end
  end
  return median(m), torch and median(t), torch and median(both)
end

local missed, total = 0, 0
local function line(...)
  print((("%-28s %3s %11s %11s %8s  %s"):format(...):gsub("%s+$", "")))
  io.flush()
end
local function report(name, threads, unit, m, t, r, goal)
  local late = r and r > goal
  total, missed = total + 1, missed + (late and 1 or 0)
  line(name, threads, number(m, unit), number(t, unit), ratio(r), late and ("! > %.2f torch"):format(goal) or "")
end
local function wanted(r) return not pattern or r[1]:find(pattern) or r[2]:find(pattern) end

local start = now()
print("load of the machine before: " .. (measuring.read("cat /proc/loadavg"):match("^%S+") or "?"))
print(("moth %s (%s), PyTorch: %s; training steps, medians, ratios pair by pair"):format(moth.version, moth.cpu_level(),
  torch and torch.version or why or "left out"))
line("step", "thr", "moth", "torch", "m/torch", "")
for _, threads in ipairs { 1, 2 } do
  if not only_threads or only_threads == threads then
    local logs = { lstm = {}, gru = {} }
    for _, r in ipairs(rows) do
      if wanted(r) then
        local m, t, of = measure(r[1], threads)
        report(r[2], threads, "ms", m * 1e3, t and t * 1e3, of, r[3])
        if r.mean and of then table.insert(logs[r.mean], math.log(of)) end
        collectgarbage()
        collectgarbage()
        moth.memory.empty_cache()
      end
    end
    for _, kind in ipairs { "lstm", "gru" } do
      local sum = 0
      for _, x in ipairs(logs[kind]) do sum = sum + x end
      if #logs[kind] == #steps.recurrent_shapes then
        report(kind:upper() .. " geometric mean", threads, "ms", nil, nil, math.exp(sum / #logs[kind]), MEAN_GOAL)
      end
    end
  end
end
measuring.place(math.huge)

local function first_number(command) return tonumber((measuring.read(command):match("[%d.e+-]+"))) end
local luajit = arg[-1] or "luajit"
for _, r in ipairs(use_memory and rows or {}) do
  if wanted(r) then
    local m = first_number(luajit .. " bench/fresh.lua step " .. r[1] .. " 3")
    local t = torch and first_number("python3 bench/torch_server.py peak step_" .. r[1] .. " 2> /dev/null")
    report(r[2] .. ": peak", "-", "MB", m, t, t and m / t, 1)
  end
end
if not pattern or ("loader"):find(pattern) then
  local text = measuring.read(luajit .. " bench/loader.lua " .. (on_cpu and "--cpu " or "") .. "2 "
    .. (quick and 1 or 3))
  local m, t = text:match("moth (%d+) samples"), text:match("PyTorch (%d+) samples")
  local times = tonumber(text:match("moth has ([%d.]+) times"))
  local late = times and times < 4
  total, missed = total + 1, missed + (late and 1 or 0)
  line("loader, 2 workers", 2, m and m .. "/s" or "-", t and t .. "/s" or "-", times and ratio(1 / times) or "-",
    late and "! < 4 times torch" or "")
end
if torch then torch.stop() end
print(("%d of %d rows reach their goals (!: missed); %.0f s"):format(total - missed, total, now() - start))
