--- moth.cuda: devices, streams, events, memory, graphs, marks for profilers. PyTorch's names; ordinals count from 0.
--
--     if not moth.cuda.is_available() then print(moth.cuda.why()) end
--     local s = moth.cuda.Stream()
--     s:wait_stream(moth.cuda.current_stream())
--     local y = moth.cuda.stream(s, function() return x:matmul(w) end)
--     moth.cuda.current_stream():wait_stream(s)
--     y:record_stream(moth.cuda.current_stream())    -- y's memory is not reused before this stream is done with it
local trace = require "moth.lang.trace"
local B = require "moth_lua"
local within = require "moth.dispatch.within"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local summary = require "moth.memory.summary"
require "moth.device.stream" -- methods of streams and events
local C, S = B.cuda, B.stream

local M = {}

-- devices -----------------------------------------------------------------------------------------

--- Whether a CUDA device can be used; why() says why not.
function M.is_available() return B.cuda_why() == nil end
--- Why CUDA cannot be used, a text; nil: it can.
M.why = function() return (B.cuda_why()) end
--- The number of devices, 0 if CUDA cannot be used.
M.device_count = C.count
--- Starts CUDA, which the first use does otherwise; raises why it cannot be used.
function M.init() C.device() end
--- As is_available.
function M.is_initialized() return M.is_available() end

--- The device that "cuda" means in this thread (and coroutine scope).
function M.current_device() return C.device() end
--- Makes a device (an ordinal, "cuda:1", a device) the current one of this thread.
M.set_device = C.set_device

--- Calls fn(...) with another current device: moth.cuda.device(1, function() … end).
local device_of = B.named(C.device, "cuda.device")
--- Calls fn(...) with another current device, an ordinal, "cuda:1" or a device; returns its results.
function M.device(device, fn, ...)
  return within(function(d)
    local was = C.device()
    C.set_device(d)
    return was
  end, C.set_device, device_of(device), fn, ...)
end

--- How the devices are linked, by nvidia-smi: links[i][j], a word as NV18 (NVLink), PIX or SYS; peers[i][j], whether i
-- reads j's memory directly; names[i]. Ordinals; nil: not known. As a string, a list to print.
function M.topology(...) return require("moth.cuda.topology")(...) end
--- A table: name, major, minor, total_memory, multi_processor_count, …
M.get_device_properties = C.properties
--- The name of a device (default: the current one).
function M.get_device_name(device) return C.properties(device).name end
--- The compute capability: 9, 0.
function M.get_device_capability(device)
  local p = C.properties(device)
  return p.major, p.minor
end
--- Whether the device computes in bfloat16: from compute capability 8.0 (Ampere) on. False without CUDA.
function M.is_bf16_supported(device) return B.cuda_why() == nil and C.properties(device).major >= 8 end
--- Waits for all work of the device; raises its errors.
function M.synchronize(device) S.synchronize_device(B.device("cuda:" .. C.device(device))) end

-- random numbers: one generator serves all devices --------------------------------------------------

--- Seeds moth's generator, which the CPU and all devices share; all give the same numbers.
function M.manual_seed(n) require("moth.tensor.random").manual_seed(n) end
M.manual_seed_all = M.manual_seed
--- The state of moth's generator, a list of numbers: moth.get_rng_state.
function M.get_rng_state() return require("moth.tensor.random").get_rng_state() end
--- Sets a state of get_rng_state again.
function M.set_rng_state(state) require("moth.tensor.random").set_rng_state(state) end

-- streams and events: moth.Stream and moth.Event of CUDA's devices (lua/moth/device/stream.lua) --------------------

-- The device that nil, an ordinal, a name or a device means.
local function cuda_device(device) return B.device("cuda:" .. C.device(device)) end

--- moth.cuda.Stream{device=, priority=}: one of the device's streams; priority -1 runs before 0.
function M.Stream(device, priority) return (S.new(cuda_device(device), priority)) end
--- moth.cuda.Event{enable_timing=}: a mark in a stream that others can wait for.
function M.Event(enable_timing) return (S.event_new(cuda_device(), enable_timing)) end
--- The stream to which this thread gives work of a device (default: the current one).
function M.current_stream(device) return (S.current(cuda_device(device))) end
--- The stream of a device that work goes to where no other is named.
function M.default_stream(device) return (S.default(cuda_device(device))) end

local check_stream = B.named(S.device, "cuda.stream")
local function index_of(s)
  local device = check_stream(s)
  if device.type ~= "cuda" then check.fail("[cuda.stream] expected a moth.cuda.Stream, got one of %s", device) end
  return device.index
end

--- Makes s the current stream of its device, and its device the current one.
function M.set_stream(s)
  local device = index_of(s)
  S.set(s)
  C.set_device(device)
end

local function enter_stream(s)
  local was = { C.device(), S.current(check_stream(s)) }
  M.set_stream(s)
  return was
end
local function leave_stream(was)
  S.set(was[2])
  C.set_device(was[1])
end
--- Calls fn(...) with s as the current stream: moth.cuda.stream(s, function() … end). Without a stream, just fn(...).
function M.stream(s, fn, ...)
  if not check.is_callable(fn) then check.fail("[cuda.stream] expected (stream, function), got %s", type(fn)) end
  if s == nil then return fn(...) end
  index_of(s)
  return within(enter_stream, leave_stream, s, fn, ...)
end

-- memory ------------------------------------------------------------------------------------------

--- Current, peak, allocated (total) and freed bytes and counts, as "allocated_bytes.all.peak".
M.memory_stats = C.memory_stats
--- All segments with their blocks.
M.memory_snapshot = C.memory_snapshot
for name, key in each({ memory_allocated = "allocated_bytes.all.current",
  max_memory_allocated = "allocated_bytes.all.peak", memory_reserved = "reserved_bytes.all.current",
  max_memory_reserved = "reserved_bytes.all.peak" }) do
  --- Bytes of a device (default: the current one): in tensors, or reserved for them, now or at the most (max_…).
  M[name] = function(device) return C.memory_stats(device)[key] end
end
--- Peaks of a device are counted from here on.
M.reset_peak_memory_stats = C.reset_peak
--- As reset_peak_memory_stats.
M.reset_max_memory_allocated = C.reset_peak
--- Counts that only grow (allocated, freed) begin at 0 again.
M.reset_accumulated_memory_stats = C.reset_accumulated
--- Returns unused cached memory to CUDA, for other programs.
M.empty_cache = C.empty_cache
--- Free and total bytes of the device, as CUDA reports them.
M.mem_get_info = C.mem_get_info
--- Limits the share of the device's memory: set_per_process_memory_fraction(0.5, device).
M.set_per_process_memory_fraction = C.set_fraction
--- As set_per_process_memory_fraction.
M.set_memory_fraction = C.set_fraction
--- Bytes of pinned host memory: in use, cached.
M.pinned_memory = C.pinned_memory
--- Returns pinned host memory that is cached and not in use.
M.empty_pinned_cache = C.empty_pinned_cache


--- The statistics and the contents of the cache, as a text (moth.memory.summary("cuda")).
function M.memory_summary(device)
  local s, size = C.memory_stats(device), summary.size
  local kinds = {}
  for _, segment in ipairs(C.memory_snapshot(device)) do
    local kind = (segment.is_private and "graphs', " or "") .. segment.segment_type
    local k = kinds[kind] or { n = 0, free = 0, pieces = 0, largest = 0 }
    kinds[kind] = k
    k.n = k.n + 1
    for _, b in ipairs(segment.blocks) do
      if b.state == "inactive" then
        k.free, k.pieces, k.largest = k.free + b.size, k.pieces + 1, math.max(k.largest, b.size)
      end
    end
  end
  local more = {}
  for _, kind in ipairs({ "small", "large", "graphs', small", "graphs', large" }) do
    local k = kinds[kind]
    if k then
      more[#more + 1] = ("%s segments: %d; free in them: %s in %d pieces, the largest %s"):format(kind, k.n,
        size(k.free), k.pieces, size(k.largest))
    end
  end
  return summary.format(("CUDA memory of cuda:%d   out of memory: %d   cache flushed: %d"):format(C.device(device),
    s.num_ooms, s.num_alloc_retries), s, more)
end

-- graphs ------------------------------------------------------------------------------------------

local Graph = C.CUDAGraph
--- A graph to capture into and to replay: see moth.cuda.graph.
function M.CUDAGraph() return C.graph_new() end
Graph.__index = {
  --- Until capture_end(), work on the current stream is recorded, not run. Options: pool, capture_error_mode
  -- ("global", "thread_local", "relaxed").
  capture_begin = function(g, o)
    o = check.options("capture_begin", o, "pool capture_error_mode")
    C.graph_begin(g, o.pool, o.capture_error_mode)
  end,
  capture_end = C.graph_end,
  --- Runs the captured work on the current stream. Random ops draw new numbers.
  replay = C.graph_replay,
  --- Discards the captured work and frees its memory.
  reset = C.graph_reset,
  --- The memory pool, for the option {pool = …} of another graph that shares it.
  pool = C.graph_pool,
}
function Graph.__tostring() return "<moth.cuda.CUDAGraph>" end

--- A pool for several graphs that never run at once.
M.graph_pool_handle = C.pool_new
--- Whether the current stream's work is recorded into a graph.
M.is_current_stream_capturing = C.is_capturing

local capture_streams = {}

local function check_graph(name, g)
  if type(g) ~= "userdata" or getmetatable(g) ~= Graph then
    check.fail("[cuda.%s] argument 'graph': expected a moth.cuda.CUDAGraph, got %s", name, type(g))
  end
end

--- Captures the work of fn: local g, y = moth.cuda.graph(fn); g:replay() then runs it again on the same tensors.
-- moth.cuda.graph(g, fn, {pool=, stream=, capture_error_mode=}) captures into g. Run fn a few times before, so that
-- work done only once (plans of products, buffers of optimizers) is not captured. fn must not read values (x:item()).
-- @return the graph, and the results of fn: tensors that each replay writes again
function M.graph(g, ...)
  if check.is_callable(g) then return M.graph(false, g, ...) end
  if M.why() then check.fail("[cuda.graph] CUDA cannot be used here: %s", M.why()) end
  if not check.is_callable((...)) then
    check.fail("[cuda.graph] argument 'fn': expected a function or a module, got %s", type((...)))
  end
  local o = select(2, ...)
  if select("#", ...) > 2 or (o ~= nil and type(o) ~= "table") then
    check.fail("[cuda.graph] expected ([graph,] fn, options), got more, or options that are no table")
  end
  if o and o[1] ~= nil then
    check.fail("[cuda.graph] options have names (pool, stream, capture_error_mode), got a list")
  end
  g = g or C.graph_new()
  check_graph("graph", g)
  return M.capture(g, ...)
end

--- graph, with the graph to capture into.
local capture_device = B.named(C.device, "cuda.capture")
function M.capture(g, fn, o)
  check_graph("capture", g)
  local device = capture_device()
  capture_streams[device] = capture_streams[device] or M.Stream(device)
  local s = o.stream or capture_streams[device]
  M.synchronize()
  collectgarbage()
  collectgarbage()
  C.empty_cache()
  s:wait_stream(M.current_stream())
  local function capture()
    C.graph_begin(g, o.pool, o.capture_error_mode)
    return (function(ok, ...)
      local ended, message = pcall(C.graph_end, g)
      if not ok then trace.rethrow((...)) end
      if not ended then error(message, 0) end
      return ...
    end)(xpcall(fn, trace.keep))
  end
  return (function(...)
    M.current_stream():wait_stream(s)
    return g, ...
  end)(M.stream(s, capture))
end

--- Functions or modules whose forward and backward are graphs: see lua/moth/cuda/graphed.lua.
function M.make_graphed_callables(...) return require("moth.cuda.graphed")(...) end

--- moth.amp under PyTorch's older name.
M.amp = require "moth.amp"

--- A kernel in CUDA C, compiled while the program runs: see lua/moth/cuda/compile.lua.
function M.compile(...) return require("moth.cuda.compile")(...) end

--- Opens the available ones of the CUDA libraries that moth uses. Returns their versions in the libraries' own form,
-- { NCCL = 22807, NVRTC = 13000, … } (0: unknown), and { name = searched paths } of the missing ones. An error without
-- a device.
function M.libraries()
  local found, missing, i = {}, {}, 1
  while true do
    local name, version, why = C.library(i)
    if not name then return found, missing end
    found[name], missing[name], i = version, why, i + 1
  end
end

-- marks -------------------------------------------------------------------------------------------

--- Ranges and marks for NVIDIA's tools (nsys, ncu), by NVTX; no device is needed. Where no tool runs they do nothing,
-- and nvtx.why() says so. MOTH_NVTX=1: ranges of moth.profiler.record_function, too.
local nvtx = B.profile.nvtx
local nvtx_range = B.named(nvtx, "nvtx.range")
M.nvtx = require("moth.lang.lazy").strict({
  --- Begins a range of nsys; ranges nest.
  range_push = function(text) return nvtx("push", text) end,
  --- Ends the last range.
  range_pop = function() return nvtx("pop") end,
  --- A moment with a text.
  mark = function(text) return nvtx("mark", text) end,
  --- Calls fn(...) inside a range.
  range = function(text, fn, ...)
    if not check.is_callable(fn) then check.fail("[nvtx.range] expected (text, function), got %s", type(fn)) end
    return within(function() nvtx_range("push", text) end, function() nvtx("pop") end, nil, fn, ...)
  end,
  --- Why ranges and marks do nothing, a text; nil: a tool listens.
  why = function() return (B.profile.nvtx_why()) end,
}, "moth.cuda.nvtx")
signature.all(M.nvtx, { "nvtx.range_push(string text)", "nvtx.range_pop()", "nvtx.mark(string text)", "nvtx.why()" })

signature.all(M, { "cuda.Stream(size|device device?, int priority=0)", "cuda.Event(bool enable_timing=false)",
  "cuda.set_device(size|device device)", "cuda.device(size|device device, callable fn, ...)",
  "cuda.set_stream(any stream)",
  "cuda.set_rng_state(number[] state)", "cuda.manual_seed(size seed)", "cuda.manual_seed_all(size seed)",
  "cuda.set_per_process_memory_fraction(number fraction, size|device device?)",
  "cuda.set_memory_fraction(number fraction, size|device device?)",
  "cuda.capture(any graph, callable fn, *, any pool?, any stream?, \z
    'global'|'thread_local'|'relaxed' capture_error_mode='global')",
}, true)
for _, name in ipairs({ "is_available", "why", "device_count", "init", "is_initialized", "current_device",
  "get_rng_state", "CUDAGraph", "graph_pool_handle", "is_current_stream_capturing", "libraries", "empty_cache",
  "pinned_memory", "empty_pinned_cache" }) do
  M[name] = signature(("cuda.%s()"):format(name), M[name])
end
for _, name in ipairs({ "get_device_properties", "get_device_name", "get_device_capability", "is_bf16_supported",
  "synchronize",
  "current_stream", "default_stream", "memory_stats", "memory_snapshot", "memory_allocated", "max_memory_allocated",
  "memory_reserved", "max_memory_reserved", "reset_peak_memory_stats", "reset_max_memory_allocated",
  "reset_accumulated_memory_stats", "mem_get_info", "memory_summary" }) do
  M[name] = signature(("cuda.%s(size|device device?)"):format(name), M[name])
end

return M
