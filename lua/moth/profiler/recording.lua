--- What a profile has recorded, as arrays of numbers, and what follows from them. See src/profile/profile.h.
--
-- What CUDA devices did is in r.work, r.nwork structs by device, stream and time; then tracks have device_own and
-- device_total, too: ns of devices for what an event launched, without and with the events in it.
--
-- A recording has `tracks`, a list of threads. A track has n events, numbered from 0 in the order of their beginnings,
-- and arrays by these numbers: start and stop (ns since the recording began), own (the time in no other event),
-- own_bytes, parent (-1: none). M.event(track, i) is the struct of one.
local ffi = require "ffi"
local bit = require "bit"
local B = require "moth_lua"
local C = B.profile

ffi.cdef [[
typedef struct {
  int64_t start, stop, bytes, device_bytes;
  uint64_t seq;
  int32_t parent;
  uint32_t name;
  int32_t place, shapes, results;
  uint8_t kind, device, failed, traced;
} moth_profile_event;
typedef struct {
  int64_t start, stop, bytes;
  uint64_t stream;
  int32_t name, thread, event;
  uint8_t kind, device;
} moth_profile_work;
]]
assert(ffi.sizeof "moth_profile_event" == C.event_size)
assert(ffi.sizeof "moth_profile_work" == C.work_size)

local M = {}

M.kinds = require("moth.profiler.range").kinds
local kinds = M.kinds

local chunk_type = ffi.typeof "moth_profile_event **"
local work_type = ffi.typeof "moth_profile_work *"
local shapes_type = ffi.typeof "int64_t *"
local shift, mask = 16, C.chunk - 1
assert(bit.lshift(1, shift) == C.chunk)

local function track_of(info, duration)
  local n, chunks = info.n, ffi.cast(chunk_type, info.chunks)
  local start, stop, own = ffi.new("double[?]", n + 1), ffi.new("double[?]", n + 1), ffi.new("double[?]", n + 1)
  local parent, own_bytes = ffi.new("int32_t[?]", n + 1), ffi.new("double[?]", n + 1)
  for i = 0, n - 1 do
    local e = chunks[bit.rshift(i, shift)][bit.band(i, mask)]
    local up = e.parent
    local most = up >= 0 and stop[up] or duration
    local from, to = tonumber(e.start), tonumber(e.stop)
    -- Open ones (an error left them) end with what encloses them; nothing ends behind it.
    if to < from or to > most then to = math.max(most, from) end
    start[i], stop[i], own[i], parent[i] = from, to, to - from, up
    own_bytes[i] = tonumber(e.bytes)
    if up >= 0 then
      own[up] = own[up] - (to - from)
      own_bytes[up] = own_bytes[up] - tonumber(e.bytes)
    end
  end
  return { id = info.id, n = n, chunks = chunks, shapes = ffi.cast(shapes_type, info.shapes), start = start,
    stop = stop, own = own, own_bytes = own_bytes, parent = parent }
end

local Recording = {}
Recording.__index = Recording

local function add_work(r)
  for _, t in ipairs(r.tracks) do
    t.device_own, t.device_total = ffi.new("double[?]", t.n + 1), ffi.new("double[?]", t.n + 1)
  end
  for k = 0, r.nwork - 1 do
    local w = r.work[k]
    local t = w.thread >= 0 and r.tracks[w.thread + 1]
    if t and w.event < t.n then t.device_own[w.event] = t.device_own[w.event] + tonumber(w.stop - w.start) end
  end
  for _, t in ipairs(r.tracks) do
    for i = t.n - 1, 0, -1 do -- what is within comes behind
      t.device_total[i] = t.device_total[i] + t.device_own[i]
      local up = t.parent[i]
      if up >= 0 then t.device_total[up] = t.device_total[up] + t.device_total[i] end
    end
  end
end

--- Event i of a track: the struct.
function M.event(track, i) return track.chunks[bit.rshift(i, shift)][bit.band(i, mask)] end
local event = M.event

--- The recording of a handle of the binding.
function M.new(handle)
  local info = C.info(handle)
  local r = setmetatable({ handle = handle, names = info.names, places = info.places, duration = info.duration,
    lost = info.lost, lost_since = info.lost_since, began = info.began, thread = info.thread, tracks = {} }, Recording)
  for i, t in ipairs(info.threads) do r.tracks[i] = track_of(t, info.duration) end
  r.device, r.by_events, r.nwork = info.device, info.by_events, info.nwork
  r.work = ffi.cast(work_type, info.work)
  if r.nwork > 0 then add_work(r) end
  return r
end

--- The name of a device's work: a kernel's, or that of the call that was measured as a whole.
function Recording:name_of_work(w)
  if w.name >= 0 then return self.names[w.name] end
  return self:name_of(event(self.tracks[w.thread + 1], w.event))
end

--- Streams of devices: a list of { device, stream, first, last (of r.work), name }.
function Recording:streams()
  local list = {}
  for k = 0, self.nwork - 1 do
    local w, s = self.work[k], list[#list]
    if not s or s.device ~= w.device or s.id ~= w.stream then
      local number = s and s.device == w.device and s.number + 1 or 1
      s = { device = w.device, id = w.stream, number = number, first = k,
        name = ("cuda:%d stream %d"):format(w.device, number) }
      list[#list + 1] = s
    end
    s.last = k
  end
  return list
end

--- ns of all that devices did.
function Recording:device_time()
  local sum = 0
  for k = 0, self.nwork - 1 do sum = sum + tonumber(self.work[k].stop - self.work[k].start) end
  return sum
end

--- "by CUPTI" and the like, where devices were recorded.
function Recording:device_text()
  if not self.device then return nil end
  if not self.by_events then return "CUDA times by CUPTI" end
  return "CUDA times by pairs of events around calls (waits for launches count): " .. self.by_events
end

--- The number of events of all threads.
function Recording:count()
  local n = 0
  for _, t in ipairs(self.tracks) do n = n + t.n end
  return n
end

--- ns that the busiest thread spent outside of all events, and in them.
function Recording:outside()
  local most = 0
  for _, t in ipairs(self.tracks) do
    local busy = 0
    for i = 0, t.n - 1 do
      if t.parent[i] < 0 then busy = busy + t.stop[i] - t.start[i] end
    end
    most = math.max(most, busy)
  end
  return math.max(self.duration - most, 0), most
end

function Recording:outside_text()
  local outside = self:outside()
  return ("Wall time: %.3fms, of it outside of ops and ranges (Lua, binding): %.3fms (%.1f%%)"):format(
    self.duration / 1e6, outside / 1e6, 100 * outside / math.max(self.duration, 1))
end

--- The name of an event as it is shown: "moth::add", "AddBackward0", a range's own.
function Recording:name_of(e)
  local name = self.names[e.name]
  return e.kind == kinds.op and "moth::" .. name or name
end

--- The tensors of a list of the track's shapes: a list of { sizes…, dtype = { name, size } }, or nil.
function M.shapes(track, at)
  if at < 0 then return nil end
  local s, list = track.shapes + at, {}
  local n = tonumber(s[0])
  s = s + 1
  for k = 1, n do
    local ndim = tonumber(s[1])
    local t = { dtype = C.dtypes[tonumber(s[0])] }
    for d = 1, ndim do t[d] = tonumber(s[1 + d]) end
    list[k] = t
    s = s + 2 + ndim
  end
  return list
end

--- "[[2, 3], []]": the shapes of a list of M.shapes.
function M.text_of_shapes(list)
  if not list then return "" end
  local parts = {}
  for k, t in ipairs(list) do parts[k] = "[" .. table.concat(t, ", ") .. "]" end
  return "[" .. table.concat(parts, ", ") .. "]"
end

--- "train.lua:12" of a place, or nil.
function Recording:place_text(place)
  local at = self.places[place]
  return at and at.source .. ":" .. at.line or nil
end

--- The frames of a place, from the innermost one on.
function Recording:stack(place)
  local list = {}
  while place and place >= 0 do
    list[#list + 1] = self:place_text(place)
    place = self.places[place].caller
  end
  return list
end

--- The forward calls of nodes: map[seq] = { track, event } of the outermost call that recorded the node.
function Recording:forward_calls()
  local map = {}
  for _, t in ipairs(self.tracks) do
    for i = 0, t.n - 1 do
      local e = event(t, i)
      if e.kind == kinds.op and e.seq ~= 0 then
        local seq = tonumber(e.seq)
        if not map[seq] then map[seq] = { t, i } end -- outer ones come first
      end
    end
  end
  return map
end

-- Places in the program of calls without one: parts of composites have that of the outermost call, nodes and what they
-- call that of the forward call.
function Recording:place_of(track, i)
  local e = event(track, i)
  while true do
    if e.place >= 0 then return e.place end
    if e.kind == kinds.node and e.seq ~= 0 then
      self.forward = self.forward or self:forward_calls()
      local call = self.forward[tonumber(e.seq)]
      if not call then return -1 end
      track, i = call[1], call[2]
      e = event(track, i)
      if e.place >= 0 then return e.place end
    end
    i = track.parent[i]
    if i < 0 then return -1 end
    e = event(track, i)
  end
end

return M
