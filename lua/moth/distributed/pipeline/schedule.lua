--- dist.schedule: a pipeline schedule, proved, printed and drawn before anything runs.
--
--     local s = dist.schedule("1f1b", 4, 8)
--     print(s)                                    -- the lists, one rank a line, over time
--     s.bubble, s.peak[0]                         -- 0.27, 4
--     s:picture():save("1f1b.svg")
local class = require "moth.class"
local signature = require "moth.utils.signature"
local schedules = require "moth.distributed.pipeline.schedules"
local proof = require "moth.distributed.pipeline.check"
local each = require "moth.each"

local Schedule = class("Schedule")

function Schedule:__init(lists, times, transfer)
  self.times, self.transfer = times, transfer
  for k, v in each(lists) do self[k] = v end
  for k, v in each(proof.check(self, times, transfer)) do self[k] = v end
end

--- The list of a rank (from 0): { { op = "F", stage = 1, micro = 1 }, … }.
Schedule.actions = signature.method("actions(size rank)", function(self, rank) return self[rank] end)

--- One line a rank; a column is the time of a forward pass of one stage.
function Schedule:__tostring()
  local column = self.times.F
  local out = { ("%s: %d ranks, %d stages, %d micro-batches; bubble %.1f %%, at most %s micro-batches held"):format(
    self.name, self.ranks, self.stages, self.micro_batches, 100 * self.bubble,
    table.concat(self.peak, ",", 0, self.ranks - 1)) }
  local many = self.stages > self.ranks
  for rank = 0, self.ranks - 1 do
    local cells = {}
    for i = 1, math.ceil(self.span / column - 1e-9) do cells[i] = (many and "." or " .") end
    for _, e in ipairs(self.timeline[rank]) do
      local from = math.floor(e.start / column + 0.5) + 1
      local a = e.action
      cells[from] = a.op .. a.micro .. (many and "/" .. a.stage or "")
      for i = from + 1, math.floor(e.stop / column + 0.5) do cells[i] = many and "-" or " -" end
    end
    local width = many and 6 or 4
    for i, c in ipairs(cells) do cells[i] = c .. (" "):rep(width - #c) end
    out[#out + 1] = ("rank %-2d %s"):format(rank, (table.concat(cells):gsub("%s+$", "")))
  end
  return table.concat(out, "\n")
end

--- A canvas of plot: time to the right, a row for each rank; save it as .svg or .png. width: in points.
Schedule.picture = signature.method("picture(number width=900)", function(self, width)
  return require("moth.distributed.planner.picture").schedule(self, width)
end)

--- The schedule `name` ("naive", "gpipe", "1f1b", "interleaved", "zb", "zbv") of `micro_batches` over `ranks`, proved:
-- an error if it could deadlock or misses a step. each: stages of a rank for "interleaved" (2). times: seconds of
-- { F =, B =, I =, W = } for one stage (1, 2, 1, 1), transfer: of one result between ranks (0). Fields: bubble (share
-- of the time in which ranks are idle), overhead (idle beside work), peak[rank], span, stages, place (stage -> rank).
return signature("distributed.schedule(string name, count ranks, count micro_batches, *, count each=2, table times?, \z
  number transfer=0)", function(name, ranks, micro_batches, o)
  local check = require "moth.utils.check"
  local times = { F = 1, B = 2, I = 1, W = 1 }
  for op, t in each(check.options("[distributed.schedule] times", o.times, "F B I W")) do
    times[op] = check.number("[distributed.schedule]", "times." .. op, t, 0)
  end
  if times.F == 0 then check.fail("[distributed.schedule] times.F must be above 0") end
  if ranks * micro_batches > 1e6 then
    check.fail("[distributed.schedule] %d ranks with %d micro-batches are more than a million steps", ranks,
      micro_batches)
  end
  check.number("[distributed.schedule]", "transfer", o.transfer, 0)
  return Schedule(proof.with_transfers(schedules.generate(name, ranks, micro_batches, o.each)), times, o.transfer)
end, true)
