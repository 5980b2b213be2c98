--- Statistics of allocators under PyTorch's names, and as a table of text: for the CPU and CUDA in one form.
local B = require "moth_lua"

local M = {}

--- The CPU's statistics under PyTorch's names: bytes now, at most, and counts since the start.
function M.of_cpu()
  local s = B.memory_stats()
  return {
    ["allocated_bytes.all.current"] = s.live, ["allocated_bytes.all.peak"] = s.peak,
    ["reserved_bytes.all.current"] = s.live + s.cached,
    ["allocation.all.allocated"] = s.allocs, ["segment.all.allocated"] = s.system,
  }
end

--- Bytes in the unit that gives up to four digits.
function M.size(n)
  for _, unit in ipairs({ "B", "KiB", "MiB", "GiB" }) do
    if n < 10240 or unit == "GiB" then return ("%.0f %s"):format(n, unit) end
    n = n / 1024
  end
end

local rows = { { "allocated", "allocated_bytes", M.size }, { "active", "active_bytes", M.size },
  { "requested", "requested_bytes", M.size }, { "reserved", "reserved_bytes", M.size },
  { "tensors", "allocation", tostring }, { "segments", "segment", tostring } }
local columns = { "current", "peak", "allocated", "freed" }
local rule = ("+%s+"):format(("-"):rep(74))

local function line(text) return ("| %-73s|"):format(text:sub(1, 73)) end

--- The text: a title, the statistics s (a missing one is left out, or "-"), more lines.
function M.format(title, s, more)
  local out = { rule, line(title), rule,
    ("| %-16s |%12s |%12s |%12s |%12s |"):format("", unpack(columns)), rule }
  for _, row in ipairs(rows) do
    local cells, any = {}, false
    for i, what in ipairs(columns) do
      local value = s[row[2] .. ".all." .. what]
      cells[i] = value and row[3](value) or "-"
      any = any or value ~= nil
    end
    if any then out[#out + 1] = ("| %-16s |%12s |%12s |%12s |%12s |"):format(row[1], unpack(cells)) end
  end
  out[#out + 1] = rule
  for _, text in ipairs(more) do out[#out + 1] = line(text) end
  if #more > 0 then out[#out + 1] = rule end
  return table.concat(out, "\n")
end

--- The summary of a device; nil: the CPU.
function M.text(device)
  local type = tostring(device or "cpu"):match("^%a+")
  if type == "cuda" then return require("moth.cuda").memory_summary(device) end
  local more = {}
  local limit = B.memory_limit()
  if limit > 0 then more[1] = ("limit of live bytes: %s"):format(M.size(limit)) end
  return M.format("memory of the CPU", M.of_cpu(), more)
end

return M
