--- Where the time of training steps goes: loader, forward, backward, optimizer, waiting for other ranks.
local recording = require "moth.profiler.recording"
local kinds = recording.kinds

local M = {}

local Breakdown = {}
Breakdown.__index = Breakdown
local parts = { "loader", "forward", "backward", "optimizer", "communication", "other" }

function Breakdown:__tostring()
  local lines = { ("%-13s %10.3f ms a step, %d steps"):format("total", self.total, self.steps) }
  for _, part in ipairs(parts) do
    local percent = 100 * self[part] / math.max(self.total, 1e-12)
    lines[#lines + 1] = ("%-13s %10.3f ms %5.1f %%"):format(part, self[part], percent)
  end
  return table.concat(lines, "\n")
end

local updates = {} -- ops that optimizers call, by name

local function is_update(name)
  if updates[name] == nil then
    local op = require("moth.dispatch.ops").get(name)
    updates[name] = op ~= nil and op.kind == "effect" or false
  end
  return updates[name]
end

--- The part of a step that an event without an enclosing call belongs to. Calls that the engine makes between nodes
-- (sums of gradients) lie within backward.
function M.part(r, e)
  if e.kind == kinds.loader then return "loader" end
  if e.kind == kinds.collective then return "communication" end
  if e.kind == kinds.optimizer then return "optimizer" end
  if e.kind == kinds.node then return "backward" end
  if e.kind == kinds.op and is_update(r.names[e.name]) then return "optimizer" end
  return "forward"
end

-- Times by part of the outermost events that say something; ranges, modules and steps are passed through.
local function add(r, t, sums)
  local transparent = { [kinds.range] = true, [kinds.step] = true, [kinds.module] = true }
  local counted = {} -- the parts of events that are counted, or lie in one that is
  for i = 0, t.n - 1 do
    local e = recording.event(t, i)
    local up = t.parent[i]
    local within = up >= 0 and counted[up] or nil
    local part = M.part(r, e)
    if within and (part ~= "communication" or within == part) then
      counted[i] = within
    elseif not transparent[e.kind] then
      local time = t.stop[i] - t.start[i]
      sums[part] = sums[part] + time
      if within then sums[within] = sums[within] - time end -- a wait of DDP's in backward
      counted[i] = part
    end
  end
end

--- Of a recording of so many steps (default: those that profile:step() has marked, at least 1).
function M.of(r, steps)
  local sums = {}
  for _, part in ipairs(parts) do sums[part] = 0 end
  local main = r.tracks[1]
  local marked = 0
  for _, t in ipairs(r.tracks) do
    if t.id == r.thread then main = t end
  end
  if main then
    add(r, main, sums)
    for i = 0, main.n - 1 do
      if recording.event(main, i).kind == kinds.step then marked = marked + 1 end
    end
  end
  steps = steps or r.steps or math.max(marked, 1)
  local b = setmetatable({ steps = steps, total = r.duration / 1e6 / steps }, Breakdown)
  local known = 0
  for _, part in ipairs(parts) do
    b[part] = sums[part] / 1e6 / steps
    known = known + b[part]
  end
  b.other = math.max(b.total - known, 0)
  return b
end

return M
