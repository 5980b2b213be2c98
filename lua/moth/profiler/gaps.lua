--- Times in which a thread ran no op: what Lua, the binding or a wait took. And those in which a CUDA device was idle,
-- with what the CPU did then.
local check = require "moth.utils.check"
local recording = require "moth.profiler.recording"
local time = require("moth.profiler.averages").time

local M = {}

local Gaps = {}
Gaps.__index = Gaps

local function shown(name) return #name > 30 and name:sub(1, 29) .. "…" or name end

function Gaps:__tostring()
  local lines = { ("%-12s %-12s %-30s %-30s %s"):format("start", "duration", "after", "before",
    self.device and "the CPU meanwhile; place" or "place") }
  for k, g in ipairs(self) do
    if k > 20 then
      lines[#lines + 1] = ("… %d more"):format(#self - 20)
      break
    end
    local about = g.cpu and g.cpu .. (g.place and "; " .. g.place or "") or g.place or ""
    lines[#lines + 1] = (("%-12s %-12s %-30s %-30s %s"):format(time(g.start), time(g.duration), shown(g.after),
      shown(g.before), about):gsub("%s+$", ""))
  end
  lines[#lines + 1] = ("in gaps: %s of %s"):format(time(self.total), time(self.wall))
  return table.concat(lines, "\n")
end

local computes = { [recording.kinds.op] = true, [recording.kinds.node] = true, [recording.kinds.compiled] = true,
  [recording.kinds.loader] = true }

-- What a thread did at a time (ns): the innermost call that took half of from..to, or "outside of ops".
local function doing(r, t, from, to)
  local best, least = "outside of ops", (to - from) / 2
  for i = 0, t.n - 1 do
    if t.start[i] >= to then break end
    local e = recording.event(t, i)
    local common = math.min(t.stop[i], to) - math.max(t.start[i], from)
    if common >= least and computes[e.kind] then best = r:name_of(e) end
  end
  return best
end

local EXPLAINED = 100 -- gaps, the longest ones: each looks through all calls

-- Of CUDA devices, whatever stream is at work.
local function of_devices(r, least)
  local list = setmetatable({ total = 0, wall = r.duration / 1e3, device = true }, Gaps)
  local order = {}
  for k = 0, r.nwork - 1 do order[k + 1] = k end
  table.sort(order, function(a, b)
    local x, y = r.work[a], r.work[b]
    if x.device ~= y.device then return x.device < y.device end
    if x.start ~= y.start then return x.start < y.start end
    return a < b
  end)
  local last, after, device
  for _, k in ipairs(order) do
    local w = r.work[k]
    local from, to = tonumber(w.start), tonumber(w.stop)
    if device ~= w.device then last, after, device = from, nil, w.device end
    if from - last >= least then
      local t = w.thread >= 0 and r.tracks[w.thread + 1] or r.tracks[1]
      list[#list + 1] = { start = last / 1e3, duration = (from - last) / 1e3, after = after or "(begin)",
        before = r:name_of_work(w), device = "cuda:" .. device, track = t,
        place = w.thread >= 0 and r:place_text(r:place_of(t, w.event)) or nil }
      list.total = list.total + (from - last) / 1e3
    end
    if to > last then last, after = to, r:name_of_work(w) end
  end
  table.sort(list, function(a, b) return a.duration > b.duration end)
  for k, g in ipairs(list) do
    local from = g.start * 1e3
    g.cpu = k <= EXPLAINED and g.track and doing(r, g.track, from, from + g.duration * 1e3) or nil
    g.track = nil
  end
  return list
end

--- Options: least_us (10), device: gaps of CUDA devices, the default where one was at work. The list, the longest
-- first: { start, duration (us), after, before (names of the calls beside it), place (of the call after it), thread, or
-- of devices: device and, of the longest ones, cpu (what the CPU did meanwhile) }; total and wall (us).
function M.of(r, o)
  o = check.options("profiler.gaps", o, "least_us device")
  local least = (o.least_us == nil and 10 or check.number("[profiler.gaps]", "least_us", o.least_us, 0)) * 1000
  if o.device ~= nil and type(o.device) ~= "boolean" then
    check.fail("[profiler.gaps] option 'device': expected true or false, got %s", type(o.device))
  end
  if o.device or o.device == nil and r.nwork > 0 then return of_devices(r, least) end
  local list = setmetatable({ total = 0, wall = r.duration / 1e3 }, Gaps)
  for _, t in ipairs(r.tracks) do
    local last, after = 0, "(begin)"
    local function gap(to, before, place)
      if to - last < least then return end
      list[#list + 1] = { start = last / 1e3, duration = (to - last) / 1e3, after = after, before = before,
        place = place, thread = t.id }
      list.total = list.total + (to - last) / 1e3
    end
    for i = 0, t.n - 1 do
      local e = recording.event(t, i)
      if computes[e.kind] and t.stop[i] > last then
        if t.start[i] > last then gap(t.start[i], r:name_of(e), r:place_text(r:place_of(t, i))) end
        last, after = t.stop[i], r:name_of(e)
      end
    end
    if t.n > 0 then gap(r.duration, "(end)") end
  end
  table.sort(list, function(a, b) return a.duration > b.duration end)
  return list
end

return M
