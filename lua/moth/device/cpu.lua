--- moth.cpu: the CPU's streams under the names of moth.cuda, so that one program serves both (PyTorch's torch.cpu).
--
--     local device = moth.cuda.is_available() and moth.cuda or moth.cpu
--     local s = device.Stream()
--     device.stream(s, function() … end)
--     device.synchronize()
local streams = require "moth.device.stream"
local signature = require "moth.utils.signature"
local summary = require "moth.memory.summary"
local each = require "moth.each"
local B = require "moth_lua"

local M = {}

--- True.
function M.is_available() return true end
--- 1.
function M.device_count() return 1 end
--- "cpu".
function M.current_device() return "cpu" end

--- moth.Stream of the CPU: a thread with a queue of work.
function M.Stream(priority) return streams.Stream("cpu", priority) end
--- moth.Event of the CPU.
function M.Event(enable_timing) return streams.Event("cpu", enable_timing) end
--- Calls fn(...) with s as this thread's stream.
M.stream = streams.stream
--- Gives this thread's work to the stream s from now on.
M.set_stream = streams.set_stream
--- The stream to which this thread gives work.
function M.current_stream() return streams.current_stream("cpu") end
--- The stream of those who have named none.
function M.default_stream() return streams.default_stream("cpu") end
--- Waits for all streams of the CPU; raises their errors.
function M.synchronize() streams.synchronize("cpu") end

-- ---- memory: host memory, under the names of moth.cuda ----------------------------------------------------

--- Current, peak and reserved bytes and counts, as "allocated_bytes.all.peak".
function M.memory_stats() return summary.of_cpu() end
for name, key in each({ memory_allocated = "allocated_bytes.all.current",
  max_memory_allocated = "allocated_bytes.all.peak", memory_reserved = "reserved_bytes.all.current" }) do
  --- Bytes of host memory: in tensors, at the most (max_…), or reserved for them.
  M[name] = signature(("cpu.%s()"):format(name), function() return summary.of_cpu()[key] end)
end
--- Peaks are counted from here on.
function M.reset_peak_memory_stats() B.reset_peak() end
--- Returns unused cached memory to the system.
function M.empty_cache() B.empty_cache() end
--- The statistics as a text.
function M.memory_summary() return summary.text() end

return signature.all(M, { "cpu.is_available()", "cpu.device_count()", "cpu.current_device()",
  "cpu.Stream(int priority=0)", "cpu.Event(bool enable_timing=false)", "cpu.current_stream()", "cpu.default_stream()",
  "cpu.synchronize()", "cpu.memory_stats()", "cpu.reset_peak_memory_stats()", "cpu.empty_cache()",
  "cpu.memory_summary()" }, true)
