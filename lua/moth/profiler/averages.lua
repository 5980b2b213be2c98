--- The sums of a recording by name, and their table.
local class = require "moth.class"
local check = require "moth.utils.check"
local recording = require "moth.profiler.recording"
local flops = require "moth.profiler.flops"
local each = require "moth.each"

local M = {}

--- A row: key, count; in us: cpu_time_total (with what it calls; a call in one of the same name counts once),
-- self_cpu_time_total, cpu_time (mean), cuda_time_total, self_cuda_time_total (of what it launched); in bytes:
-- cpu_memory_usage, self_cpu_memory_usage, cuda_memory_usage (live bytes behind less those before); with shapes:
-- input_shapes (grouped by them), flops, bytes (of its arguments and results).
local Row = class "FunctionEventAvg"

function Row:__tostring()
  return ("<FunctionEventAvg key=%s count=%d cpu_time=%s self_cpu_time_total=%s>"):format(self.key, self.count,
    M.time(self.cpu_time), M.time(self.self_cpu_time_total))
end

--- "1.234ms" of microseconds.
function M.time(us)
  if us >= 1e6 then return ("%.3fs"):format(us / 1e6) end
  if us >= 1e3 then return ("%.3fms"):format(us / 1e3) end
  return ("%.3fus"):format(us)
end

--- "12.50 Kb" of bytes.
function M.memory(bytes)
  local n = math.abs(bytes)
  if n >= 2 ^ 30 then return ("%.2f Gb"):format(bytes / 2 ^ 30) end
  if n >= 2 ^ 20 then return ("%.2f Mb"):format(bytes / 2 ^ 20) end
  if n >= 2 ^ 10 then return ("%.2f Kb"):format(bytes / 2 ^ 10) end
  return ("%d b"):format(bytes)
end

local Averages = class "EventList"

local function new_row(key)
  return Row { key = key, count = 0, cpu_time_total = 0, self_cpu_time_total = 0, cpu_memory_usage = 0,
    self_cpu_memory_usage = 0, cuda_time_total = 0, self_cuda_time_total = 0, cuda_memory_usage = 0, device = "cpu" }
end
function Row:__init(fields) for k, v in each(fields) do self[k] = v end end

-- Whether an event that encloses event i has its name: then its time is counted there.
local function within_itself(t, i, name)
  local up = t.parent[i]
  while up >= 0 do
    local e = recording.event(t, up)
    if e.name == name then return true end
    up = t.parent[up]
  end
  return false
end

--- Options: group_by_input_shape, group_by_stack_n (frames of the program's stack).
function M.of(r, o)
  local rows, list = {}, setmetatable({ recording = r }, Averages)
  local total = 0
  for _, t in ipairs(r.tracks) do
    for i = 0, t.n - 1 do
      local e = recording.event(t, i)
      local name = r:name_of(e)
      local key, shapes, stack = name, nil, nil
      local arguments = e.shapes >= 0 and recording.shapes(t, e.shapes) or nil
      if o.group_by_input_shape then
        shapes = recording.text_of_shapes(arguments)
        key = key .. "\0" .. shapes
      end
      if o.group_by_stack_n and o.group_by_stack_n > 0 then
        stack = r:stack(r:place_of(t, i))
        for k = #stack, o.group_by_stack_n + 1, -1 do stack[k] = nil end
        key = key .. "\0" .. table.concat(stack, "\n")
      end
      local row = rows[key]
      if not row then
        row = new_row(name)
        row.input_shapes, row.stack = shapes, stack
        rows[key] = row
        list[#list + 1] = row
      end
      local whole, own = (t.stop[i] - t.start[i]) / 1e3, t.own[i] / 1e3
      row.count = row.count + 1
      row.self_cpu_time_total = row.self_cpu_time_total + own
      total = total + own
      local nested = within_itself(t, i, e.name)
      if not nested then
        row.cpu_time_total = row.cpu_time_total + whole
        row.cpu_memory_usage = row.cpu_memory_usage + tonumber(e.bytes)
        row.cuda_memory_usage = row.cuda_memory_usage + tonumber(e.device_bytes)
        if t.device_total then row.cuda_time_total = row.cuda_time_total + t.device_total[i] / 1e3 end
      end
      if t.device_own then row.self_cuda_time_total = row.self_cuda_time_total + t.device_own[i] / 1e3 end
      row.self_cpu_memory_usage = row.self_cpu_memory_usage + t.own_bytes[i]
      if e.device ~= 0 then row.device = "device" end
      if arguments and e.results >= 0 and not nested then
        local results = recording.shapes(t, e.results)
        local n = flops.flops(r.names[e.name], arguments, results)
        if n then row.flops = (row.flops or 0) + n end
        row.bytes = (row.bytes or 0) + flops.bytes(arguments, results)
      end
    end
  end
  list.cuda_time_total = 0
  for k = 0, r.nwork - 1 do
    local w = r.work[k]
    local time = tonumber(w.stop - w.start) / 1e3
    list.cuda_time_total = list.cuda_time_total + time
    if w.name >= 0 then
      local key = "kernel\0" .. r.names[w.name]
      local row = rows[key]
      if not row then
        row = new_row(r.names[w.name])
        row.device, row.is_kernel = "cuda", true
        rows[key], list[#list + 1] = row, row
      end
      row.count = row.count + 1
      row.cuda_time_total = row.cuda_time_total + time
      row.self_cuda_time_total = row.self_cuda_time_total + time
    end
  end
  for _, row in ipairs(list) do row.cpu_time = row.cpu_time_total / row.count end
  list.self_cpu_time_total = total
  table.sort(list, function(a, b)
    if a.self_cpu_time_total ~= b.self_cpu_time_total then return a.self_cpu_time_total > b.self_cpu_time_total end
    return a.key < b.key
  end)
  return list
end

local orders = { "cpu_time_total", "self_cpu_time_total", "cpu_time", "cuda_time_total", "self_cuda_time_total",
  "cpu_memory_usage", "self_cpu_memory_usage", "cuda_memory_usage", "count", "flops", "bytes" }
for _, name in ipairs(orders) do orders[name] = true end

local function columns_of(list)
  local r = list.recording
  local sum = math.max(list.self_cpu_time_total, 1e-9)
  local c = {
    { "Name", function(row) return row.key end, left = true },
    { "Self CPU %", function(row) return ("%.2f%%"):format(100 * row.self_cpu_time_total / sum) end },
    { "Self CPU", function(row) return M.time(row.self_cpu_time_total) end },
    { "CPU total %", function(row) return ("%.2f%%"):format(100 * row.cpu_time_total / sum) end },
    { "CPU total", function(row) return M.time(row.cpu_time_total) end },
    { "CPU time avg", function(row) return M.time(row.cpu_time) end },
  }
  if r.memory then
    c[#c + 1] = { "CPU Mem", function(row) return M.memory(row.cpu_memory_usage) end }
    c[#c + 1] = { "Self CPU Mem", function(row) return M.memory(row.self_cpu_memory_usage) end }
  end
  if r.device then
    local all = math.max(list.cuda_time_total, 1e-9)
    c[#c + 1] = { "Self CUDA", function(row) return M.time(row.self_cuda_time_total) end }
    c[#c + 1] = { "Self CUDA %", function(row) return ("%.2f%%"):format(100 * row.self_cuda_time_total / all) end }
    c[#c + 1] = { "CUDA total", function(row) return M.time(row.cuda_time_total) end }
    if r.memory then c[#c + 1] = { "CUDA Mem", function(row) return M.memory(row.cuda_memory_usage) end } end
  end
  c[#c + 1] = { "# of Calls", function(row) return tostring(row.count) end }
  if list[1] and list[1].input_shapes then
    c[#c + 1] = { "Input Shapes", function(row) return row.input_shapes end, left = true }
  end
  if list[1] and list[1].stack then
    c[#c + 1] = { "Source Location", function(row) return table.concat(row.stack, " < ") end, left = true }
  end
  if r.flops then
    local seconds = function(row) return row.cpu_time_total / 1e6 end
    c[#c + 1] = { "GB/s", function(row)
      return row.bytes and seconds(row) > 0 and ("%.2f"):format(row.bytes / seconds(row) / 1e9) or ""
    end }
    c[#c + 1] = { "GFLOP/s", function(row)
      return row.flops and seconds(row) > 0 and ("%.2f"):format(row.flops / seconds(row) / 1e9) or ""
    end }
    local machine = r.flops ~= true and r.flops
    if machine then
      c[#c + 1] = { "of the roof", function(row)
        if not row.bytes or seconds(row) == 0 then return "" end
        local least = math.max(row.bytes / machine.bw, (row.flops or 0) / machine.peak)
        return ("%.0f%%"):format(100 * least / seconds(row))
      end }
    end
  end
  return c
end

local function cut(text, most) return #text > most and text:sub(1, most - 3) .. "..." or text end

--- The table as a text. Options: sort_by ("self_cpu_time_total" and others; default: the order of the list), row_limit
-- (100; -1: all), max_name_column_width (55), max_src_column_width (75), max_shapes_column_width (80), header.
function Averages:table(o)
  o = check.options("profiler.table", o, "sort_by row_limit max_name_column_width max_src_column_width "
    .. "max_shapes_column_width header")
  local rows = { unpack(self) }
  if o.sort_by ~= nil then
    local by = tostring(o.sort_by):gsub("device_time", "cuda_time")
    if not orders[by] then
      check.fail("[profiler.table] option 'sort_by': there is no column '%s'%s", tostring(o.sort_by),
        check.suggest(tostring(o.sort_by), orders))
    end
    for i, row in ipairs(rows) do rows[i] = { row, i, row[by] or 0 } end
    table.sort(rows, function(a, b)
      if a[3] ~= b[3] then return a[3] > b[3] end
      return a[2] < b[2]
    end)
    for i, row in ipairs(rows) do rows[i] = row[1] end
  end
  local limit = o.row_limit == nil and 100 or check.integer("[profiler.table]", "row_limit", o.row_limit, -1)
  if limit < 0 then limit = #rows end
  local columns = columns_of(self)
  local widest = { Name = o.max_name_column_width or 55, ["Source Location"] = o.max_src_column_width or 75,
    ["Input Shapes"] = o.max_shapes_column_width or 80 }
  local width, cells = {}, {}
  for k, c in ipairs(columns) do width[k] = #c[1] end
  for i = 1, math.min(limit, #rows) do
    cells[i] = {}
    for k, c in ipairs(columns) do
      cells[i][k] = cut(c[2](rows[i]), widest[c[1]] or 1000)
      width[k] = math.max(width[k], #cells[i][k])
    end
  end
  local rule, head, lines = {}, {}, {}
  for k, c in ipairs(columns) do
    rule[k] = ("-"):rep(width[k])
    head[k] = (c.left and "%-" or "%") .. width[k] .. "s"
  end
  local form = table.concat(head, "  ")
  local titles = {}
  for k, c in ipairs(columns) do titles[k] = c[1] end
  local line = table.concat(rule, "  ")
  if o.header then lines[1] = tostring(o.header) end
  lines[#lines + 1] = line
  lines[#lines + 1] = form:format(unpack(titles))
  lines[#lines + 1] = line
  for _, row in ipairs(cells) do lines[#lines + 1] = (form:format(unpack(row)):gsub("%s+$", "")) end
  lines[#lines + 1] = line
  lines[#lines + 1] = "Self CPU time total: " .. M.time(self.self_cpu_time_total)
  if self.recording.device then
    lines[#lines + 1] = "CUDA time total: " .. M.time(self.cuda_time_total)
    lines[#lines + 1] = self.recording:device_text()
  end
  lines[#lines + 1] = self.recording:outside_text()
  if self.recording.lost > 0 then
    lines[#lines + 1] = ("%d events were not recorded: the limit of max_events was reached after %s"):format(
      self.recording.lost, M.time(self.recording.lost_since / 1e3))
  end
  return table.concat(lines, "\n")
end

function Averages:__tostring() return self:table() end

return M
