--- The table of make gpu-check, from OUT/steps.tsv of check.sh and OUT/rows.tsv of measure.lua.
--   luajit bench/gpu/report.lua OUT     prints it, and writes OUT/gpu-check.md
local out = arg[1]

local function records(name)
  local list, f = {}, io.open(out .. "/" .. name)
  if not f then return list end
  for line in f:lines() do
    local fields = {}
    for field in (line .. "\t"):gmatch("(.-)\t") do fields[#fields + 1] = field end
    list[#list + 1] = fields
  end
  f:close()
  return list
end

-- The makers' peak figures of tensor cores (dense) and float32 units, in TFLOP/s.
local peaks = {
  { "H[12]00", float32 = 67, tf32 = 494, bfloat16 = 989 },
  { "A100", float32 = 19.5, tf32 = 156, bfloat16 = 312 },
}

local head, steps = {}, {}
for _, r in ipairs(records("steps.tsv")) do
  if r[1] == "head" then head[#head + 1] = { r[2], r[3] } else steps[#steps + 1] = r end
end
local rows, device, finished = {}, "", false
for _, r in ipairs(records("rows.tsv")) do
  if r[1] == "versions" then
    head[#head + 1] = { "moth", r[2] }
    head[#head + 1] = { "PyTorch", r[3] }
  elseif r[1] == "products" then
    head[#head + 1] = { "matrix products by", r[2] }
  elseif r[1] == "start" then
    rows[tonumber(r[2])] = { r[1], r[2], r[3], "-", "0", "0", "-", "-", "-", "the process ended here" }
  elseif r[1] == "row" then
    rows[tonumber(r[2])] = r
  elseif r[1] == "end" then
    finished = true
  end
end
for _, h in ipairs(head) do if h[1] == "GPU" then device = h[2] end end
local peak = {}
for _, p in ipairs(peaks) do if device:find(p[1]) then peak = p end end

-- The ceiling of memory-bound rows: the faster of the two copies.
local ceiling
for _, r in pairs(rows) do
  if r[3]:find("^copy ") then
    local best = math.min(tonumber(r[7]) or math.huge, tonumber(r[8]) or math.huge)
    if best < math.huge then ceiling = r[5] / best end
  end
end

local function duration(s)
  s = tonumber(s)
  if not s then return "-" end
  return s < 1e-3 and ("%.2f us"):format(s * 1e6) or ("%.3f ms"):format(s * 1e3)
end

local title = { "row", "moth", "PyTorch", "moth/PyTorch", "rate", "share of limit", "error", "" }
local lines, numbers = {}, {}
for k in pairs(rows) do numbers[#numbers + 1] = k end
table.sort(numbers)
for _, k in ipairs(numbers) do
  local r = rows[k]
  local kind, bytes, flops, m, t = r[4], tonumber(r[5]), tonumber(r[6]), tonumber(r[7]), tonumber(r[8])
  local rate, share = "-", "-"
  if m and kind == "tokens" then
    rate = ("%.0f tokens/s"):format(bytes / m)
    if peak.bfloat16 then share = ("%.0f %% of %g"):format(100 * flops / m / 1e12 / peak.bfloat16, peak.bfloat16) end
  elseif m and flops > 0 then
    rate = ("%.1f TFLOP/s"):format(flops / m / 1e12)
    if peak[kind] then share = ("%.0f %% of %g"):format(100 * flops / m / 1e12 / peak[kind], peak[kind]) end
  elseif m and bytes > 0 then
    rate = ("%.0f GB/s"):format(bytes / m / 1e9)
    if ceiling then share = ("%.0f %% of copy"):format(100 * bytes / m / ceiling) end
  elseif m and (kind == "host" or kind == "step") then
    rate = ("%.0f /s"):format(1 / m)
  end
  lines[#lines + 1] = { r[3], duration(m), duration(t), m and t and ("%.2f"):format(m / t) or "-", rate, share,
    tonumber(r[9]) and ("%.1e"):format(r[9]) or "-", (r[10] or ""):sub(1, 120) }
end

local function long(s) return #s:gsub("[\128-\191]", "") end
local text = {}
local function say(fmt, ...) text[#text + 1] = select("#", ...) > 0 and fmt:format(...) or fmt end
local function emit(columns, list)
  local width = {}
  for _, l in ipairs({ columns, unpack(list) }) do
    for i, field in ipairs(l) do width[i] = math.max(width[i] or 3, long(field)) end
  end
  width[#columns] = 3 -- remarks run on
  local function line(l)
    local cells = {}
    for i, field in ipairs(l) do
      field = field:gsub("|", "/")
      cells[i] = i == 1 and field .. (" "):rep(width[i] - long(field)) or (" "):rep(width[i] - long(field)) .. field
    end
    say("| " .. table.concat(cells, " | ") .. " |")
  end
  line(columns)
  local rule = {}
  for i, w in ipairs(width) do rule[i] = i == 1 and ("-"):rep(w) or ("-"):rep(w - 1) .. ":" end
  say("| " .. table.concat(rule, " | ") .. " |")
  for _, l in ipairs(list) do line(l) end
end

say("# make gpu-check\n")
for _, h in ipairs(head) do say("- %s: %s", h[1], h[2]) end
if ceiling then say("- copy, read and written: %.0f GB/s", ceiling / 1e9) end
say("")
emit({ "step", "result", "seconds", "" }, (function()
  local list = {}
  for i, s in ipairs(steps) do list[i] = { s[2], s[3], s[4], s[5] or "" } end
  return list
end)())
say("")
if #lines > 0 then emit(title, lines) else say("Nothing was measured.") end
if #lines > 0 and not finished then say("\nThe measuring did not come to its end: see measure.log.") end
say([[

Times are medians of repetitions taken in turn, by CUDA's events; "queued" rows are the CPU's time until a step is
queued. Shares are of the faster of the two copies, or of the maker's figure for dense products. Errors are the largest
differences from float64 on the CPU, as a part of the largest element.]])

local all = table.concat(text, "\n") .. "\n"
io.write(all)
local f = io.open(out .. "/gpu-check.md", "w")
if f then
  f:write(all)
  f:close()
end
