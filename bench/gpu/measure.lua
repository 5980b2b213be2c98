--- Measures the rows of rows.lua on the GPU, moth and PyTorch in turn, with CUDA's events.
--   luajit bench/gpu/measure.lua OUT [--from=k] [--seconds=n] [--no-torch]
-- The start and the result of every row are written to OUT/rows.tsv at once, so that nothing is lost if the process
-- dies: check.sh starts again after the row in which it died. report.lua makes the table.
package.path = "./?.lua;" .. package.path
local out, from, seconds, use_torch = arg[1], 1, math.huge, true
for i = 2, #arg do
  from = tonumber(arg[i]:match("^%-%-from=(%d+)$")) or from
  seconds = tonumber(arg[i]:match("^%-%-seconds=(%d+)$")) or seconds
  if arg[i] == "--no-torch" then use_torch = false end
end

local ffi = require "ffi"
ffi.cdef [[
struct gpu_time { long s, ns; };
int clock_gettime(int clock, struct gpu_time *t);
]]
local clock = ffi.new("struct gpu_time")
local function now()
  ffi.C.clock_gettime(1, clock)
  return tonumber(clock.s) + 1e-9 * tonumber(clock.ns)
end
local start = now()

local moth = require "moth"
local emulated = os.getenv("MOTH_CUDA") == "emu"
local tsv = assert(io.open(out .. "/rows.tsv", "a"))
local function write(...)
  local fields = { ... }
  for i = 1, #fields do fields[i] = tostring(fields[i]):gsub("%s+", " ") end
  tsv:write(table.concat(fields, "\t"), "\n")
  tsv:flush()
end
local function first_line(e) return (tostring(e):match("^[^\n]*")) end

-- timing ------------------------------------------------------------------------------------------

local probe = moth.zeros({ 1 }, { device = "cuda" })
local function synchronize()
  if moth.cuda.synchronize then moth.cuda.synchronize() else probe:item() end
end
local function repeated(step, n)
  for _ = 1, n do step() end
end

-- Seconds of n steps on the device; without events, by the clock around them.
local function device_seconds(step, n)
  local Event = moth.cuda.Event
  if not Event then
    synchronize()
    local t = now()
    repeated(step, n)
    synchronize()
    return now() - t
  end
  local a, b = Event({ enable_timing = true }), Event({ enable_timing = true })
  a:record()
  repeated(step, n)
  b:record()
  b:synchronize()
  return a:elapsed_time(b) * 1e-3
end
-- Seconds until n steps are queued.
local function host_seconds(step, n)
  synchronize()
  local t = now()
  repeated(step, n)
  t = now() - t
  synchronize()
  return t
end

local REPEAT, TARGET, QUEUED = emulated and 3 or 9, emulated and 0.002 or 0.02, emulated and 20 or 500

local function median(list)
  table.sort(list)
  local n = #list
  return n == 0 and "-" or n % 2 == 1 and list[(n + 1) / 2] or (list[n / 2] + list[n / 2 + 1]) / 2
end

local function count(step)
  local n = 1
  while true do
    local took = device_seconds(step, n)
    if took >= TARGET / 2 then return n end
    n = math.max(n + 1, math.floor(n * math.min(10, TARGET / math.max(took, 1e-9))))
  end
end

local function measure(row, torch)
  local made = row.make()
  local timed = row.kind == "host" and host_seconds or device_seconds
  device_seconds(made.step, 3)
  local n = row.kind == "host" and QUEUED or count(made.step)
  local there, note = false, ""
  if torch then
    local ok, why = torch.prepare(row.torch, n)
    there, note = ok, ok and "" or "PyTorch: " .. why
  end
  local m, t = {}, {}
  for i = 1, REPEAT do
    m[i] = timed(made.step, n) / n
    if there then
      local took, why = torch.run()
      t[#t + 1] = took
      if not took then there, note = false, "PyTorch: " .. why end
    end
  end
  local off = "-"
  if made.error then
    local ok, e = pcall(made.error)
    off = ok and e or "-"
    if not ok then note = note .. " no error: " .. first_line(e) end
  end
  return median(m), median(t), off, note
end

-- main --------------------------------------------------------------------------------------------

local torch, why
if use_torch then torch, why = require("bench.gpu.torch").start(out, TARGET, QUEUED) end
local rows = require("bench.gpu.rows")(emulated)
if from == 1 then
  write("versions", moth.version, torch and torch.version or why or "left out",
    moth.cuda.get_device_name and first_line(moth.cuda.get_device_name()) or "-")
end
for k = from, #rows do
  local row = rows[k]
  if now() - start > seconds then
    write("row", k, row.name, row.kind, row.bytes or 0, row.flops or 0, "-", "-", "-", "no time left")
  else
    write("start", k, row.name)
    local ok, m, t, off, note = pcall(measure, row, torch)
    if not ok then m, t, off, note = "-", "-", "-", first_line(m) end
    write("row", k, row.name, row.kind, row.bytes or 0, row.flops or 0, m, t, off, note)
    print(("%-46s %s %s %s"):format(row.name, tostring(m), tostring(t), note))
    io.flush()
    if torch then torch.clear() end
    collectgarbage()
    collectgarbage()
    local empty = moth.cuda.empty_cache or moth.memory.empty_cache
    pcall(empty)
  end
end
write("products", moth.backends.cuda.matmul.library)
write("end")
if torch then torch.stop() end
