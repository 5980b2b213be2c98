--- The record of allocations: blocks that are alive with the lines of Lua that made them, the difference of two
-- snapshots, a picture of memory over time.
local B = require "moth_lua"
local signature = require "moth.utils.signature"
local check = require "moth.utils.check"
local class = require "moth.class"
local summary = require "moth.memory.summary"
local each = require "moth.each"

local M = {}

-- "@…/lua/moth/": what chunk names of moth's own files begin with.
local own = debug.getinfo(1, "S").source:match("^(.*[/\\])memory[/\\]history%.lua$") or "@?"

--- Begins to record (with an empty record), or with false ends recording: each allocation of host and device memory,
-- with the lines of Lua that led to it. The last max_entries allocations and releases are kept for events() and
-- timeline(); all live blocks are. Costs some microseconds an allocation.
M.record_history = signature("memory.record_history(bool enabled=true, *, size max_entries=100000)", function(on, o)
  if on then B.history_start(o.max_entries, own) else B.history_stop() end
end, true)
--- Whether allocations are recorded.
M.is_recording = signature("memory.is_recording()", function() return B.history_on() end)

-- The text of a trace -> { line = "train.lua:12: matmul", the lines of the stack, innermost first }.
local function trace_of(id, known)
  if not known[id] then
    local t = {}
    for text in B.history_trace(id):gmatch("[^\n]+") do t[#t + 1] = text end
    t.line = table.remove(t, 1) or "?"
    known[id] = t
  end
  return known[id]
end

local function kind_of(block) return block.requested and "tensor" or "other" end

-- Blocks grouped by line: a list of { line, bytes, count, trace }, the largest first.
local function grouped(blocks)
  local list, by = {}, {}
  for _, b in ipairs(blocks) do
    local g = by[b.line]
    if not g then
      g = { line = b.line, bytes = 0, count = 0, trace = b.trace }
      by[b.line] = g
      list[#list + 1] = g
    end
    g.bytes, g.count = g.bytes + b.size, g.count + 1
  end
  table.sort(list, function(x, y)
    if x.bytes ~= y.bytes then return x.bytes > y.bytes end
    return x.line < y.line
  end)
  return list
end
M.grouped = grouped

local function lines_of(groups, most)
  local out = {}
  for i = 1, math.min(#groups, most) do
    local g = groups[i]
    out[i] = ("  %10s in %5d blocks  %s"):format(summary.size(g.bytes), g.count, g.line)
  end
  if #groups > most then out[#out + 1] = ("  … and %d more lines"):format(#groups - most) end
  return out
end

local Snapshot = class("Snapshot")

--- The blocks that were allocated since record_history(true) and are alive: { blocks, bytes, time }. A block: { size,
-- requested (bytes of the tensor's elements), kind ("tensor", "other": headers, nodes, workspaces), device, line (the
-- nearest one outside moth, with what was called there), trace (all lines, the innermost first), time (s since
-- recording began), serial, address }. Collects garbage first. tostring: by line.
M.snapshot = signature("memory.snapshot()", function()
  if not B.history_on() then
    check.fail("[memory.snapshot] nothing is recorded: call moth.memory.record_history(true) first")
  end
  collectgarbage()
  collectgarbage()
  local s, known = Snapshot(), {}
  s.blocks, s.bytes, s.tensor_bytes = B.history_blocks(), 0, 0
  for _, b in ipairs(s.blocks) do
    b.trace = trace_of(b.trace, known)
    b.line, b.kind = b.trace.line, kind_of(b)
    s.bytes = s.bytes + b.size
    if b.kind == "tensor" then s.tensor_bytes = s.tensor_bytes + b.size end
  end
  return s
end)

--- Its blocks by line: a list of { line, bytes, count, trace }, the largest first; of one kind, if one is given.
function Snapshot:by_line(kind)
  if kind ~= nil and kind ~= "tensor" and kind ~= "other" then
    check.fail("[Snapshot.by_line] argument 'kind': expected 'tensor' or 'other', got %s", tostring(kind))
  end
  local list = {}
  for _, b in ipairs(self.blocks) do
    if kind == nil or b.kind == kind then list[#list + 1] = b end
  end
  return grouped(list)
end
function Snapshot:__tostring()
  local head = ("snapshot: %s in %d blocks, %s of them tensors"):format(summary.size(self.bytes), #self.blocks,
    summary.size(self.tensor_bytes))
  return table.concat({ head, unpack(lines_of(self:by_line(), 10)) }, "\n")
end

local Diff = class("SnapshotDiff")
function Diff:__tostring()
  local out = { ("from one snapshot to the other: +%s in %d blocks, -%s in %d blocks"):format(
    summary.size(self.added_bytes), #self.added, summary.size(self.removed_bytes), #self.removed) }
  for _, part in ipairs { { "added", self.added }, { "removed", self.removed } } do
    if #part[2] > 0 then
      out[#out + 1] = part[1] .. ":"
      for _, text in ipairs(lines_of(grouped(part[2]), 10)) do out[#out + 1] = text end
    end
  end
  return table.concat(out, "\n")
end

local function is_snapshot(name, s)
  if not class.is_a(s, Snapshot) then
    check.fail("[memory.diff] argument '%s': expected a snapshot, got %s", name, class.name(s))
  end
end

--- What two snapshots of one recording do not have in common: { added = blocks, removed = blocks, added_bytes,
-- removed_bytes, lines = those added by line }. tostring: by line.
function M.diff(before, after)
  is_snapshot("before", before)
  is_snapshot("after", after)
  local d = Diff()
  local function only(a, b)
    local seen, list, bytes = {}, {}, 0
    for _, block in ipairs(b.blocks) do seen[block.serial] = true end
    for _, block in ipairs(a.blocks) do
      if not seen[block.serial] then
        list[#list + 1] = block
        bytes = bytes + block.size
      end
    end
    return list, bytes
  end
  d.added, d.added_bytes = only(after, before)
  d.removed, d.removed_bytes = only(before, after)
  d.lines = grouped(d.added)
  return d
end

--- The recorded allocations and releases in order: { bytes (negative: released), time, device, line, serial }.
M.events = signature("memory.events()", function()
  local events, known = B.history_events(), {}
  for _, e in ipairs(events) do
    e.line = trace_of(e.trace, known).line
    e.trace = nil
  end
  return events
end)

-- ---- a picture --------------------------------------------------------------------------------------------

local BINS, MOST = 240, 7

--- A picture of the recorded bytes over time, one colour for each line that made most at the peak, the others grey: a
-- canvas (save(path), svg()). Options: device (default "cpu"), title.
M.timeline = signature("memory.timeline(*, device device?, string title?)", function(o)
  local device = tostring(o.device and B.device(o.device) or "cpu")
  local list, now, peak, peak_at, known = {}, 0, 0, 0, {}
  for _, e in ipairs(B.history_events()) do
    if e.device == device and e.serial > 0 then
      list[#list + 1] = e
      now = now + e.bytes
      if now > peak then peak, peak_at = now, #list end
    end
  end
  if #list == 0 then
    check.fail("[memory.timeline] nothing is recorded on %s: call moth.memory.record_history(true) before", device)
  end
  -- The lines that hold most at the peak.
  local held = {}
  for i = 1, peak_at do
    local line = trace_of(list[i].trace, known).line
    held[line] = (held[line] or 0) + list[i].bytes
  end
  local order = {}
  for line in each(held) do order[#order + 1] = line end
  table.sort(order, function(a, b)
    if held[a] ~= held[b] then return held[a] > held[b] end
    return a < b
  end)
  local rank = {}
  for i = 1, math.min(MOST, #order) do rank[order[i]] = i end
  -- The largest sum within each slice of time, by colour.
  local first, last = list[1].time, list[#list].time
  local span = math.max(last - first, 1e-9)
  local current, slices, at = {}, {}, 1
  for i = 1, MOST + 1 do current[i] = 0 end
  for bin = 1, BINS do
    local top, total = { unpack(current) }, 0
    for i = 1, MOST + 1 do total = total + current[i] end
    local most = total
    while at <= #list and list[at].time <= first + span * bin / BINS + 1e-12 do
      local e = list[at]
      local k = rank[trace_of(e.trace, known).line] or MOST + 1
      current[k] = current[k] + e.bytes
      total = total + e.bytes
      if total > most then top, most = { unpack(current) }, total end
      at = at + 1
    end
    slices[bin] = top
  end
  local plot, Canvas, Axes = require "moth.plot", require "moth.plot.canvas", require "moth.plot.axes"
  local width, height = 760, 420 + 15 * (math.min(MOST, #order) + 1)
  local canvas = Canvas(width, height)
  local unit, name = 1, "bytes"
  for _, u in ipairs { { 2 ^ 10, "KiB" }, { 2 ^ 20, "MiB" }, { 2 ^ 30, "GiB" } } do
    if peak >= 2 * u[1] then unit, name = u[1], u[2] end
  end
  local axes = Axes(canvas, 68, 34, width - 88, 320, { 0, span * 1e3, 0, 1.05 * math.max(peak, 1) / unit },
    { title = o.title or ("memory of %s: at most %s"):format(device, summary.size(peak)), xlabel = "ms",
      ylabel = name })
  axes:draw()
  local function colour(k) return k <= MOST and plot.colours[k] or "#a0a0a0" end
  for bin, top in ipairs(slices) do
    local x0 = axes:place(span * 1e3 * (bin - 1) / BINS, 0)
    local x1 = axes:place(span * 1e3 * bin / BINS, 0)
    local sum = 0
    for k = 1, MOST + 1 do
      if top[k] > 0 then
        local _, low = axes:place(0, sum / unit)
        sum = sum + top[k]
        local _, high = axes:place(0, sum / unit)
        canvas:rect(x0, high, x1 - x0 + 0.2, low - high, colour(k))
      end
    end
  end
  for k = 1, math.min(MOST, #order) + 1 do
    local y = 402 + 15 * k
    local text = order[k] and k <= MOST and ("%s  %s"):format(summary.size(held[order[k]]), order[k]) or "all others"
    canvas:rect(72, y - 9, 10, 10, colour(k <= MOST and order[k] and k or MOST + 1))
    canvas:text(88, y, text:sub(1, 110), { size = 11 })
  end
  return canvas
end, true)

return M
