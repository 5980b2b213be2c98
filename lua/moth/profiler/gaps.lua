--- Times in which a thread ran no op: what Lua, the binding or a wait took.
local check = require "moth.utils.check"
local recording = require "moth.profiler.recording"
local time = require("moth.profiler.averages").time

local M = {}

local Gaps = {}
Gaps.__index = Gaps

function Gaps:__tostring()
  local lines = { ("%-12s %-12s %-30s %-30s %s"):format("start", "duration", "after", "before", "place") }
  for k, g in ipairs(self) do
    if k > 20 then
      lines[#lines + 1] = ("… %d more"):format(#self - 20)
      break
    end
    lines[#lines + 1] = (("%-12s %-12s %-30s %-30s %s"):format(time(g.start), time(g.duration), g.after, g.before,
      g.place or ""):gsub("%s+$", ""))
  end
  lines[#lines + 1] = ("in gaps: %s of %s"):format(time(self.total), time(self.wall))
  return table.concat(lines, "\n")
end

local computes = { [recording.kinds.op] = true, [recording.kinds.node] = true, [recording.kinds.compiled] = true,
  [recording.kinds.loader] = true }

--- Options: least_us (10). The list, the longest first: { start, duration (us), after, before (names of the calls
-- beside it), place (of the call after it), thread }; total and wall (us).
function M.of(r, o)
  o = check.options("profiler.gaps", o, "least_us")
  local least = (o.least_us == nil and 10 or check.number("[profiler.gaps]", "least_us", o.least_us, 0)) * 1000
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
