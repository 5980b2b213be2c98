--- dist.simulate: what ranks did or would do, timed by an alpha-beta model, with the critical path.
--
-- A program is, for each rank, a list of what its thread does in order:
--     { "run", seconds, name }                      on the device's compute stream
--     { "start", kind, bytes, ranks, name, id }     a collective among `ranks` (a list), on the communication stream,
--                                                   after all that was put on the compute stream before
--     { "wait", id }                                the compute stream waits for it
--     { "call", kind, bytes, ranks, name }          start and wait
--     { "send", bytes, to, name, id? } { "recv", bytes, from, name, id? }   waited for at once without an id
-- A collective begins when the streams of all its ranks have come to it and takes as long as hardware.collective says.
-- Of ranks that all do the same, one list is enough: `ranks` is { size = how many, near = how many of a node } then.
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local class = require "moth.class"
local hardware = require "moth.distributed.planner.hardware"
local each = require "moth.each"

local where = "[distributed.simulate]"

local Result = class("SimulatedStep")

function Result:__tostring()
  local out = { ("step %.3f ms, %d programs: compute %.3f ms, communication %.3f ms, %.3f exposed (%.1f %% hidden)")
    :format(self.span * 1e3, self.ranks, self.compute * 1e3, self.communication * 1e3, self.exposed * 1e3,
      100 * self.hidden), "critical path:" }
  local shares, names = {}, {}
  for _, e in ipairs(self.critical) do
    local name = e.name:gsub(" %d+$", "") -- of all layers, of all micro-batches
    if not shares[name] then names[#names + 1], shares[name] = name, 0 end
    shares[name] = shares[name] + e.stop - e.start
  end
  table.sort(names, function(a, b) return shares[a] > shares[b] end)
  for i = 1, math.min(10, #names) do
    out[#out + 1] = ("  %-24s %9.3f ms"):format(names[i], shares[names[i]] * 1e3)
  end
  return table.concat(out, "\n")
end

--- A canvas: a row for each rank's compute and communication; ranks: which (the first eight).
Result.picture = signature.method("picture(size[] ranks?, number width=900)", function(self, ranks, width)
  local list = {}
  for _, rank in ipairs(ranks or self.order) do
    if not self.events[rank] then check.fail("picture: rank %d was not simulated", rank) end
    if #list < (ranks and 64 or 8) then list[#list + 1] = rank end
  end
  return require("moth.distributed.planner.picture").timeline(self, list, width)
end)

-- The most ranks that share a node.
local function near(ranks, node)
  if ranks.size then return math.min(ranks.size, ranks.near or node) end
  local most, count = 1, {}
  for _, r in ipairs(ranks) do
    local n = math.floor(r / node)
    count[n] = (count[n] or 0) + 1
    most = math.max(most, count[n])
  end
  return most
end

local Simulation = {}
Simulation.__index = Simulation

local function event(sim, rank, stream, name, start, stop, after)
  local e = { name = name, rank = rank, stream = stream, start = start, stop = stop, after = after }
  table.insert(sim.events[rank], e)
  return e
end

-- Names of the collectives that each rank waits in, for the error.
local function stuck(sim)
  local lines = {}
  for _, rank in ipairs(sim.order) do
    local c = sim.queue[rank][sim.head[rank]]
    local at = sim.at[rank]
    if c then
      lines[#lines + 1] = ("rank %d is in %s (%s of %g bytes, call %d of the group)"):format(rank, c.name, c.kind,
        c.bytes, c.number)
    elseif sim.programs[rank][at] then
      lines[#lines + 1] = ("rank %d is at step %d of %d"):format(rank, at, #sim.programs[rank])
    else
      lines[#lines + 1] = ("rank %d has ended"):format(rank)
    end
    if #lines == 8 then break end
  end
  check.fail("%s the ranks wait for each other: %s", where, table.concat(lines, "; "))
end

-- The collective that `rank` enters as its n-th in this group: shared by all its ranks.
local function enter(sim, rank, kind, bytes, ranks, name, key)
  sim.counts[rank][key] = (sim.counts[rank][key] or 0) + 1
  local number = sim.counts[rank][key]
  local id = key .. "#" .. number
  local c = sim.open[id]
  if not c then
    c = { kind = kind, bytes = bytes, name = name, number = number, from = {} }
    c.all, c.members = ranks, ranks.size and { rank } or ranks
    c.missing = #c.members
    c.first = rank
    sim.open[id] = c
  elseif c.kind ~= kind or c.bytes ~= bytes then
    check.fail("%s calls do not match: rank %d's call %d of the group is %s of %g bytes (%s), rank %d's %s of %g \z
      bytes (%s)", where, c.first, number, c.kind, c.bytes, c.name, rank, kind, bytes, name)
  end
  c.missing = c.missing - 1
  c.from[rank] = sim.last[rank]
  sim.tail[rank] = sim.tail[rank] + 1
  sim.queue[rank][sim.tail[rank]] = c
  return c
end

-- Runs the collectives that all ranks have come to and whose turn it is on every stream. True if there was one.
local function settle(sim, c)
  if c.done or c.missing > 0 then return false end
  for _, rank in ipairs(c.members) do
    if sim.queue[rank][sim.head[rank]] ~= c then return false end
  end
  local start, after = 0, nil
  for _, rank in ipairs(c.members) do
    for _, e in ipairs { c.from[rank] or false, sim.comm[rank] or false } do
      if e and e.stop > start then start, after = e.stop, e end
    end
  end
  local time = hardware.collective(sim.gpu, c.kind, c.bytes, c.all.size or #c.all, near(c.all, sim.gpu.node))
  c.done = start + time
  for _, rank in ipairs(c.members) do
    local e = event(sim, rank, "comm", c.name, start, c.done, after)
    c.event = c.event or e
    sim.comm[rank] = e
    sim.queue[rank][sim.head[rank]] = nil
    sim.head[rank] = sim.head[rank] + 1
    sim.moved[#sim.moved + 1] = rank
  end
  return true
end

-- Lets a rank go on until it waits for a collective that has not run.
local function advance(sim, rank)
  local program = sim.programs[rank]
  while true do
    local a = program[sim.at[rank]]
    if not a then return end
    local what = a[1]
    local entered = sim.waiting[rank] ~= nil -- it waits: its call was counted before
    if what == "run" then
      local before = sim.last[rank]
      local start = before and before.stop or 0
      local e = event(sim, rank, "compute", a[3] or "run", start, start + a[2], before)
      e.work = true
      sim.last[rank] = e
    elseif not entered and (what == "start" or what == "call") then
      local ranks = a[4]
      local key = sim.keys[ranks] or ranks.size and rank .. "of" .. ranks.size or table.concat(ranks, ",")
      if not ranks.size then sim.keys[ranks] = key end
      local c = enter(sim, rank, a[2], a[3], ranks, a[5] or a[2], key)
      if what == "start" then sim.works[rank][a[6] or "?"] = c end
      if what == "call" then sim.waiting[rank] = c end
      settle(sim, c)
    elseif not entered and (what == "send" or what == "recv") then
      local from, to = what == "send" and rank or a[3], what == "send" and a[3] or rank
      local c = enter(sim, rank, "send", a[2], { from, to }, a[4] or what, "p" .. from .. ">" .. to)
      if a[5] then sim.works[rank][a[5]] = c else sim.waiting[rank] = c end
      settle(sim, c)
    elseif what == "wait" then
      local c = sim.works[rank][a[2]]
      if not c then check.fail("%s rank %d waits for '%s', which it has not started", where, rank, tostring(a[2])) end
      sim.waiting[rank] = c
    end
    local c = sim.waiting[rank]
    if c then
      if not c.done then return end
      sim.waiting[rank] = nil
      local before = sim.last[rank]
      local now = before and before.stop or 0
      if c.done > now then
        table.insert(sim.waits[rank], { now, c.done })
        -- Nothing runs on the compute stream meanwhile: what comes next depends on the collective.
        sim.last[rank] = { name = c.name, rank = rank, start = c.done, stop = c.done, after = c.event, pause = true }
      end
    end
    sim.at[rank] = sim.at[rank] + 1
  end
end

local kinds = { run = true, start = true, call = true, wait = true, send = true, recv = true }

local function read(programs, order)
  for _, rank in ipairs(order) do
    if type(programs[rank]) ~= "table" then check.fail("%s the program of rank %s must be a list", where, rank) end
    for i, a in ipairs(programs[rank]) do
      local function bad(what) check.fail("%s rank %s, step %d: %s", where, rank, i, what) end
      if type(a) ~= "table" or not kinds[a[1]] then
        bad("expected { \"run\" | \"start\" | \"wait\" | \"call\" | \"send\" | \"recv\", … }")
      end
      if a[1] == "run" and type(a[2]) ~= "number" then bad "expected { \"run\", seconds, name }" end
      if a[1] == "start" or a[1] == "call" then
        if type(a[2]) ~= "string" or type(a[3]) ~= "number" or type(a[4]) ~= "table" then
          bad("expected { \"" .. a[1] .. "\", kind, bytes, ranks, name }")
        end
        if not hardware.kinds[a[2]] then bad("there is no collective '" .. a[2] .. "'") end
        for _, r in ipairs(a[4]) do if not programs[r] then bad("there is no rank " .. tostring(r)) end end
      end
      if a[1] == "send" or a[1] == "recv" then
        if type(a[2]) ~= "number" or not programs[a[3]] then
          bad("expected { \"" .. a[1] .. "\", bytes, rank, name }")
        end
      end
    end
  end
end

--- Times the programs of ranks (a table: rank, from 0, -> list; see above). Returns { span, compute, communication,
-- exposed (seconds, means over ranks; exposed: the compute stream waits), hidden (share of communication), critical
-- (the events of the critical path, first to last), events (rank -> list of { name, stream, start, stop }), waits }; it
-- prints as a summary; :picture() draws it. Options: gpu ("h100" or a table). Errors: programs that wait for each
-- other or whose calls differ.
return signature("distributed.simulate(table programs, *, any gpu='h100')", function(programs, o)
  local sim = setmetatable({ gpu = hardware.gpu(where, o.gpu), programs = programs, order = {}, at = {}, last = {},
    comm = {}, queue = {}, head = {}, tail = {}, events = {}, waits = {}, works = {}, waiting = {}, counts = {},
    open = {}, moved = {}, keys = {} }, Simulation)
  for rank in each(programs) do
    if type(rank) ~= "number" then check.fail("%s programs: expected ranks as keys, got %s", where, tostring(rank)) end
    sim.order[#sim.order + 1] = rank
  end
  if #sim.order == 0 then check.fail("%s programs: there is no rank", where) end
  table.sort(sim.order)
  read(programs, sim.order)
  for _, rank in ipairs(sim.order) do
    sim.at[rank], sim.queue[rank], sim.head[rank], sim.tail[rank] = 1, {}, 1, 0
    sim.events[rank], sim.waits[rank], sim.works[rank], sim.counts[rank] = {}, {}, {}, {}
    sim.moved[#sim.moved + 1] = rank
  end
  while #sim.moved > 0 do
    local rank = table.remove(sim.moved)
    advance(sim, rank)
    local c = sim.queue[rank][sim.head[rank]]
    if c then settle(sim, c) end
  end
  local r = { ranks = #sim.order, order = sim.order, events = sim.events, waits = sim.waits, span = 0, compute = 0,
    communication = 0, exposed = 0, critical = {} }
  local finish
  for _, rank in ipairs(sim.order) do
    if sim.programs[rank][sim.at[rank]] or sim.queue[rank][sim.head[rank]] then stuck(sim) end
    for _, e in ipairs(sim.events[rank]) do
      local kind = e.stream == "comm" and "communication" or "compute"
      r[kind] = r[kind] + e.stop - e.start
      if not finish or e.stop > finish.stop then finish = e end
    end
    for _, gap in ipairs(sim.waits[rank]) do r.exposed = r.exposed + gap[2] - gap[1] end
    local last = sim.events[rank][#sim.events[rank]]
    local computed = sim.last[rank] and sim.last[rank].stop or 0
    if last and last.stop > computed then r.exposed = r.exposed + last.stop - math.max(computed, 0) end
  end
  for _, name in ipairs { "compute", "communication", "exposed" } do r[name] = r[name] / #sim.order end
  r.hidden = r.communication > 0 and math.max(0, 1 - r.exposed / r.communication) or 1
  r.span = finish and finish.stop or 0
  local path = {}
  while finish do
    if not finish.pause then path[#path + 1] = finish end
    finish = finish.after
  end
  for i = #path, 1, -1 do r.critical[#r.critical + 1] = path[i] end
  return setmetatable(r, Result)
end, true)
