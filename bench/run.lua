--- make bench: moth against its floor (bench/floor.c) and PyTorch, in one run, alternating; see bench/README.md.
--   luajit bench/run.lua [--quick] [--rows=pattern] [--threads=n] [--no-torch]
package.path = "./?.lua;" .. package.path
local measuring = require "bench.measure"
local now, median, place, once = measuring.now, measuring.median, measuring.place, measuring.once
local number, ratio, read = measuring.number, measuring.ratio, measuring.read

local options = require "moth.cli" { { "--quick", "shorter" }, { "--rows PATTERN", "only these" },
  { "--threads N", "only with so many" }, { "--torch", "beside PyTorch", true } }
local quick, only_threads, pattern, use_torch = options.quick, options.threads, options.rows, options.torch
local SECONDS = quick and 0.006 or 0.025 -- of one repetition
local REPEAT = quick and 5 or 15

local moth = require "moth"
local rows = require "bench.rows"
local floor = require "bench.floor"
moth.manual_seed(1)
local torch, why
if use_torch then torch, why = require("bench.torch").start(floor.folder) end

-- measuring ---------------------------------------------------------------------------------------

-- Medians of the times, and of the ratios within the repetitions.
local function measure(row, threads)
  moth.set_num_threads(threads)
  local on = place(threads)
  local r = row.make(threads)
  r.floor(1)
  r.moth(1)
  if not r.check() then error(("bench: %s: moth and the floor do not agree"):format(row.name), 0) end
  local nm, nf = measuring.calibrate(r.moth, SECONDS), measuring.calibrate(r.floor, SECONDS)
  if torch then torch.prepare(row.torch[1], ("%d"):format(row.torch[2]), threads, SECONDS, on or "any") end
  local m, f, t, mf, mt = {}, {}, {}, {}, {}
  for i = 1, quick and REPEAT or row.pairs or REPEAT do
    m[i], f[i] = once(r.moth, nm), once(r.floor, nf)
    mf[i] = m[i] / f[i]
    if torch then
      if threads > 1 then measuring.rest() end
      t[i] = torch.run()
      mt[i] = m[i] / t[i]
    end
  end
  return { moth = median(m), floor = median(f), torch = torch and median(t), moth_floor = median(mf),
    moth_torch = torch and median(mt) }
end

-- table -------------------------------------------------------------------------------------------

local missed, total = 0, 0

local function line(name, threads, m, f, t, mf, mt, goal)
  print((("%-28s %3s %11s %11s %11s %8s %8s  %s"):format(name, threads, m, f, t, mf, mt, goal):gsub("%s+$", "")))
  io.flush()
end

-- notes: the missed goals; remark: remarkable figures that are no goal on every machine
local function report(name, threads, unit, r, notes, remark)
  total = total + 1
  if #notes > 0 then missed = missed + 1 end
  line(name, threads, number(r.moth, unit), number(r.floor, unit), number(r.torch, unit), ratio(r.moth_floor),
    ratio(r.moth_torch), table.concat(notes, ", ") .. (remark or ""))
end

local function judge(row, r)
  local notes, goal = {}, row.goal
  if goal.floor and r.moth_floor > goal.floor then notes[#notes + 1] = ("! > %.2f floor"):format(goal.floor) end
  if r.moth_torch and r.moth_torch > goal.torch then notes[#notes + 1] = ("! > %.1f torch"):format(goal.torch) end
  return notes, row.absolute and r.moth * 1e9 > row.absolute and ("(over %d ns)"):format(row.absolute)
end

-- processes ---------------------------------------------------------------------------------------

local function luajit() return arg[-1] or "luajit" end

-- Starts a program that prints numbers n times; returns the medians.
local function fresh(command, n)
  local columns = {}
  for _ = 1, n do
    local k = 0
    for x in read(command):gmatch("[%d.e+-]+") do
      k = k + 1
      columns[k] = columns[k] or {}
      table.insert(columns[k], tonumber(x))
    end
  end
  local out = {}
  for k, list in ipairs(columns) do out[k] = median(list) end
  return out
end

local function wanted(name) return not pattern or name:find(pattern) end

local function require_rows()
  local m = fresh(luajit() .. " bench/fresh.lua require", quick and 5 or 15)
  if not m[2] then error("bench: bench/fresh.lua require failed", 0) end
  local t = torch and fresh([[python3 -c "
import time; t = time.perf_counter(); import torch; print((time.perf_counter() - t) * 1e3)
print(int(open('/proc/self/statm').read().split()[1]) / 256)"]], quick and 1 or 3) or {}
  for k, unit in ipairs({ "ms", "MB" }) do
    local limit, notes = k == 1 and 30 or 15, {}
    if m[k] > limit then notes[1] = ("! > %d %s"):format(limit, unit) end
    report(k == 1 and "require: time" or "require: resident memory", "-", unit,
      { moth = m[k], torch = t[k], moth_torch = t[k] and m[k] / t[k] }, notes)
  end
end

local function memory_row()
  local m = fresh(luajit() .. " bench/fresh.lua drop", 1)
  local f = fresh(luajit() .. " bench/fresh.lua free", 1)
  if not m[1] or not f[1] then error("bench: bench/fresh.lua failed", 0) end
  local notes = {}
  if m[1] > 1.5 * f[1] + 64 then notes[1] = "! > 1.5 floor + 64 MB" end
  report("200 x 4 MB dropped: peak", "-", "MB", { moth = m[1], floor = f[1], moth_floor = m[1] / f[1] }, notes)
end

-- Peak bytes of tensors of whole training steps, PyTorch's by its profiler.
local function peak_rows()
  for _, r in ipairs { { "cnn", "CNN training step: peak" }, { "gpt", "char_gpt step: peak" } } do
    if wanted(r[2]) then
      local m = fresh(luajit() .. " bench/fresh.lua step " .. r[1] .. " 30", 1)[1]
      local t = torch and fresh("python3 bench/torch_server.py peak " .. r[1] .. "_step 2> /dev/null", 1)[1]
      if not m then error("bench: bench/fresh.lua " .. r[1] .. " failed", 0) end
      local ratio_torch = t and m / t
      report(r[2], "-", "MB", { moth = m, torch = t, moth_torch = ratio_torch },
        { ratio_torch and ratio_torch > 1.5 and "! > 1.5 torch" or nil })
    end
  end
end

-- main --------------------------------------------------------------------------------------------

local start = now()
print("load of the machine before: " .. (read("cat /proc/loadavg"):match("^%S+") or "?"))
print(("moth %s (%s), PyTorch: %s; medians of %d repetitions of %g ms, ratios pair by pair"):format(moth.version,
  moth.cpu_level(), torch and torch.version or why or "left out", REPEAT, SECONDS * 1e3))
line("row", "thr", "moth", "floor", "torch", "m/floor", "m/torch", "")
for _, row in ipairs(rows) do
  for _, threads in ipairs(row.threads or { 1 }) do
    if wanted(row.name) and (not only_threads or threads == only_threads) then
      local r = measure(row, threads)
      report(row.name, threads, row.unit, r, judge(row, r))
      collectgarbage()
      collectgarbage()
      moth.memory.empty_cache()
    end
  end
end
place(math.huge)
peak_rows()
if wanted("require") then require_rows() end
if wanted("memory") then memory_row() end
if torch then torch.stop() end
print(("%d of %d rows reach their goals (!: missed); %.0f s"):format(total - missed, total, now() - start))
