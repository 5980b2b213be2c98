--- moth.memory: what tensors take: statistics, a record of allocations with the lines that made them, a breakdown by
-- purpose, an estimate, a limit. See docs/memory.md.
--
--     print(moth.memory.summary())
--     moth.memory.record_history(true)
--     local before = moth.memory.snapshot()
--     step()
--     print(moth.memory.diff(before, moth.memory.snapshot()))
local B = require "moth_lua"
local signature = require "moth.utils.signature"
local check = require "moth.utils.check"
local summary = require "moth.memory.summary"

local M = {
  --- Statistics of the CPU's allocator: live, peak, cached bytes; allocs, system calls. moth.cpu.memory_stats() has
  -- them under PyTorch's names. collections: the cycles of Lua's collector that growth has driven, in slices;
  -- full_collections: those that a call waited for.
  stats = signature("memory.stats()", B.memory_stats),
  --- The peak is counted from here on.
  reset_peak = signature("memory.reset_peak()", B.reset_peak),
  --- Returns unused cached memory to the system.
  empty_cache = signature("memory.empty_cache()", B.empty_cache),
  --- For tests: the n-th allocation from now fails, and all after it.
  fail_at = signature("memory.fail_at(int n, bool for_ever?)", B.fail_at),
}

--- The statistics of a device (default: the CPU) as a table of text, in one form for all devices.
M.summary = signature("memory.summary(device device?)", summary.text)

--- Limits the live bytes of host memory: an allocation beyond them collects garbage, tries again, and raises an out of
-- memory error. false: no limit. Returns the limit before, or false. For CUDA: moth.cuda.set_memory_fraction.
M.set_limit = signature("memory.set_limit(int|false bytes)", function(bytes)
  if bytes and bytes <= 0 then check.fail("[memory.set_limit] expected a positive number of bytes, got %g", bytes) end
  local was = B.memory_limit(bytes or 0)
  return was > 0 and was or false
end)
--- The limit of host memory in bytes, or false.
M.limit = signature("memory.limit()", function()
  local now = B.memory_limit()
  return now > 0 and now or false
end)

--- Lua's collector does not see the bytes of tensors; moth drives it by their growth, in slices, such that it takes a
-- small part of the time. After a growth of this many bytes, or by half of what is alive, if that is more, a full
-- collection runs in any case. 64 MB, the default, stands for no such rule: beside a large Lua heap a collection takes
-- long, and more may grow. Returns the number before.
M.set_gc_pressure = signature("memory.set_gc_pressure(size bytes)", function(bytes) return (B.gc_pressure(bytes)) end)

local files = {}
for file, fields in require("moth.each")({
  history = "record_history is_recording snapshot diff events timeline",
  breakdown = "breakdown by_module", estimate = "estimate", leak = "leak_check holders",
}) do
  for field in fields:gmatch("%S+") do files[field] = { file, field } end
end
return require("moth.lang.lazy")(M, "moth.memory.", files, "moth.memory")
