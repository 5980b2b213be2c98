--- Streams and events: queues of work, on CUDA and on the CPU. PyTorch's torch.Stream and torch.Event.
--
--     local s = moth.Stream("cpu")                       -- a thread with a queue
--     local y = moth.stream(s, function() return x:mm(w) end) -- returns at once
--     print(y:sum():item())                              -- waits for what it reads
--     s:synchronize()                                    -- waits for all work; raises its errors
--
-- The default stream of the CPU is the calling thread: its work is done when the call returns. On another CPU stream
-- the kernels of ops are queued; those whose result's size depends on values, and random ones, wait for the queue and
-- run at once. Tensors that queued work uses stay alive. Its results may be read at any time (item, print, ops, x[i]):
-- reading waits; only raw pointers (data_ptr, data) must be used after synchronize. Tensors that it reads must not be
-- changed in place before it is done: let the changing stream wait first.
local B = require "moth_lua"
local within = require "moth.dispatch.within"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local S = B.stream

local M = {}

-- streams -----------------------------------------------------------------------------------------

--- moth.Stream{device = "cpu", priority = 0}: a stream; priority -1 runs before 0 where the device has priorities
-- (CUDA).
function M.Stream(device, priority) return (S.new(device or "cpu", priority)) end

local methods = {
  --- Waits until the stream is done; raises its error.
  synchronize = S.synchronize,
  --- Whether it is done.
  query = S.query,
  --- Later work on this stream waits for the event, or for the present work of the other stream.
  wait_event = function(s, e) S.event_wait(e, s) end,
  wait_stream = S.wait_stream,
  --- Records an event (a new one if none is given); returns it.
  record_event = function(s, e)
    e = e or S.event_new(S.device(s), false)
    S.event_record(e, s)
    return e
  end,
}
local fields = { device = S.device, priority = S.priority, cuda_stream = S.handle }

function S.Stream.__index(s, k)
  if fields[k] then return (fields[k](s)) end
  return methods[k]
end
function S.Stream.__tostring(s)
  local device = S.device(s)
  if device.type ~= "cuda" then return ("<moth.Stream device=%s priority=%d>"):format(device, S.priority(s)) end
  return ("<moth.cuda.Stream device=cuda:%d priority=%d cuda_stream=0x%x>"):format(device.index, S.priority(s),
    S.handle(s))
end

local device_of = B.named(S.device, "stream")
local function enter(s)
  local was = S.current(device_of(s))
  S.set(s)
  return was
end
--- Calls fn(...) with s as the current stream of its device: moth.stream(s, function() … end). Without one, fn(...).
function M.stream(s, fn, ...)
  if not check.is_callable(fn) then check.fail("[stream] expected (stream, function), got %s", type(fn)) end
  if s == nil then return fn(...) end
  return within(enter, S.set, s, fn, ...)
end

--- The current stream of a device, in this thread (and coroutine scope).
function M.current_stream(device) return (S.current(device or "cpu")) end
--- The default stream of a device.
function M.default_stream(device) return (S.default(device or "cpu")) end
M.set_stream = S.set
--- Waits for all streams of a device; raises their errors.
function M.synchronize(device) S.synchronize_device(device or "cpu") end

-- events ------------------------------------------------------------------------------------------

--- moth.Event{device = "cpu", enable_timing = false}: a mark in a stream that others can wait for. Without a stream,
-- record and wait mean the current one.
function M.Event(device, enable_timing) return (S.event_new(device or "cpu", enable_timing)) end

S.Event.__index = {
  record = S.event_record, -- ([stream])
  wait = S.event_wait, -- ([stream]): the stream waits for the event
  query = S.event_query,
  synchronize = S.event_synchronize,
  --- Milliseconds from this event to a later one.
  elapsed_time = S.event_elapsed,
}
function S.Event.__tostring() return "<moth.Event>" end

signature.all(M, { "Stream(device device?, int priority=0)", "Event(device device?, bool enable_timing=false)",
  "current_stream(device device?)", "default_stream(device device?)", "set_stream(any stream)",
  "synchronize(device device?)" }, true)
return M
