--- Proves a pipeline schedule, by running it: no deadlock, everything once and in order, what is held at most.
local check = require "moth.utils.check"

local M = {}

local function shown(a) return a.op .. a.micro .. " of stage " .. a.stage end
M.shown = shown

local function key(op, stage, micro) return op .. stage .. "." .. micro end

-- The action whose result `a` needs first: a forward the forward of the stage before, a backward the one behind.
local function needs(s, a)
  if a.op == "F" then
    if a.stage > 1 then return "F", a.stage - 1 end
  elseif a.op == "B" or a.op == "I" then
    if a.stage < s.stages then return "B", a.stage + 1 end
    return "F", a.stage
  end
end

--- Runs the lists with the given seconds for each op and for a transfer between ranks: a rank does its actions in
-- order, each as soon as its input is there. Returns the schedule's { rank -> list of { action, start, stop } } and the
-- end. Errors: a deadlock, which says what every rank waits for.
function M.run(s, times, transfer)
  times = times or { F = 1, B = 2, I = 1, W = 1 }
  transfer = transfer or 0
  local finished, at, free, out = {}, {}, {}, {}
  for rank = 0, s.ranks - 1 do at[rank], free[rank], out[rank] = 1, 0, {} end
  local progress = true
  while progress do
    progress = false
    for rank = 0, s.ranks - 1 do
      while s[rank][at[rank]] do
        local a = s[rank][at[rank]]
        local start = free[rank]
        if a.op ~= "SEND" and a.op ~= "RECV" then
          local op, stage = needs(s, a)
          if op then
            local input = finished[key(op, stage, a.micro)]
            if not input then break end
            start = math.max(start, input + (s.place[stage] ~= rank and transfer or 0))
          end
          local stop = start + times[a.op]
          free[rank] = stop
          finished[key(a.op == "I" and "B" or a.op, a.stage, a.micro)] = stop
          table.insert(out[rank], { action = a, start = start, stop = stop })
        end
        at[rank] = at[rank] + 1
        progress = true
      end
    end
  end
  local stuck, finish = {}, 0
  for rank = 0, s.ranks - 1 do
    local a = s[rank][at[rank]]
    if a then
      local op, stage = needs(s, a)
      stuck[#stuck + 1] = ("rank %d cannot do %s before %s on rank %d"):format(rank, shown(a),
        shown { op = op, stage = stage, micro = a.micro }, s.place[stage])
    end
    finish = math.max(finish, free[rank])
  end
  if #stuck > 0 then check.fail("[distributed.schedule] %s: deadlock: %s", s.name, table.concat(stuck, "; ")) end
  return out, finish
end

-- Each forward and each backward once, on the stage's rank; weights' gradients after those of inputs.
local function complete(s)
  local seen = {}
  for rank = 0, s.ranks - 1 do
    for i, a in ipairs(s[rank]) do
      if a.op ~= "SEND" and a.op ~= "RECV" then
        local k = key(a.op, a.stage, a.micro)
        local function bad(what) check.fail("[distributed.schedule] %s: rank %d, action %d: %s %s", s.name, rank, i,
          shown(a), what) end
        if not s.place[a.stage] or a.micro < 1 or a.micro > s.micro_batches then bad("does not exist") end
        if s.place[a.stage] ~= rank then bad("belongs to rank " .. s.place[a.stage]) end
        if seen[k] then bad("is there twice") end
        if a.op ~= "F" and not seen[key("F", a.stage, a.micro)] then bad("comes before its forward") end
        if a.op == "W" and not seen[key("I", a.stage, a.micro)] then bad("comes before its I") end
        if a.op == "I" and seen[key("B", a.stage, a.micro)] then bad("is also a B") end
        seen[k] = true
      end
    end
  end
  for stage = 1, s.stages do
    for micro = 1, s.micro_batches do
      local whole = seen[key("B", stage, micro)] or seen[key("I", stage, micro)] and seen[key("W", stage, micro)]
      if not (seen[key("F", stage, micro)] and whole) then
        check.fail("[distributed.schedule] %s: micro-batch %d does not go through stage %d", s.name, micro, stage)
      end
    end
  end
end

--- Adds the transfers between ranks: a SEND right after an action whose result another rank needs, and at the same
-- time the RECV in the other's list. So the messages of each pair of ranks are received in the order in which they are
-- sent, and received early. Returns a new schedule.
function M.with_transfers(s)
  local out = { transfers = true }
  for k, v in require "moth.each"(s) do out[k] = v end
  local at, finished = {}, {}
  for rank = 0, s.ranks - 1 do at[rank], out[rank] = 1, {} end
  local progress = true
  while progress do
    progress = false
    -- All ranks do one action, then their results are sent: in the order of the ranks.
    local done = {}
    for rank = 0, s.ranks - 1 do
      local a = s[rank][at[rank]]
      local op, stage
      if a then op, stage = needs(s, a) end
      if a and (not op or finished[key(op, stage, a.micro)]) then
        table.insert(out[rank], a)
        at[rank] = at[rank] + 1
        done[#done + 1] = a
        progress = true
      end
    end
    for _, a in ipairs(done) do
      local from = s.place[a.stage]
      local what = a.op == "I" and "B" or a.op
      local to = what == "F" and a.stage + 1 or what == "B" and a.stage - 1 or 0
      finished[key(what, a.stage, a.micro)] = true
      if s.place[to] and s.place[to] ~= from then
        table.insert(out[from], { op = "SEND", what = what, stage = a.stage, micro = a.micro, peer = s.place[to] })
        table.insert(out[s.place[to]], { op = "RECV", what = what, stage = a.stage, micro = a.micro, peer = from })
      end
    end
  end
  return out
end

-- Between each two ranks the sends of the one are the receives of the other, in the same order, and nothing is used
-- before it is received.
local function transfers(s)
  for from = 0, s.ranks - 1 do
    for to = 0, s.ranks - 1 do
      local sent, got = {}, {}
      for _, a in ipairs(s[from]) do if a.op == "SEND" and a.peer == to then sent[#sent + 1] = a end end
      for _, a in ipairs(s[to]) do if a.op == "RECV" and a.peer == from then got[#got + 1] = a end end
      for i = 1, math.max(#sent, #got) do
        local a, b = sent[i], got[i]
        if not a or not b or a.what ~= b.what or a.stage ~= b.stage or a.micro ~= b.micro then
          check.fail("[distributed.schedule] %s: message %d from rank %d to rank %d: sent %s, expected %s", s.name, i,
            from, to, a and a.what .. a.micro .. " of stage " .. a.stage or "nothing",
            b and b.what .. b.micro .. " of stage " .. b.stage or "nothing")
        end
      end
    end
  end
  for rank = 0, s.ranks - 1 do
    local there = {}
    for _, a in ipairs(s[rank]) do
      if a.op == "RECV" then
        there[key(a.what, a.stage, a.micro)] = true
      elseif a.op ~= "SEND" then
        local op, stage = needs(s, a)
        if op and s.place[stage] ~= rank and not there[key(op, stage, a.micro)] then
          check.fail("[distributed.schedule] %s: rank %d does %s before it has received its input", s.name, rank,
            shown(a))
        end
      end
    end
  end
end

--- Proves a schedule and measures it: { peak (rank -> micro-batches held at most), span, busy, bubble (share of the
-- span in which ranks do nothing), overhead (bubble beside the work), timeline }. times: of the ops, as for run.
-- Errors say what is wrong, with the rank and the action.
function M.check(s, times, transfer)
  complete(s)
  if s.transfers then transfers(s) end
  local timeline, span = M.run(s, times, transfer)
  local peak, busy = {}, 0
  for rank = 0, s.ranks - 1 do
    local held, most = 0, 0
    for _, e in ipairs(timeline[rank]) do
      busy = busy + e.stop - e.start
      if e.action.op == "F" then held = held + 1 end
      most = math.max(most, held)
      if e.action.op == "B" or e.action.op == "W" then held = held - 1 end
    end
    peak[rank] = most
  end
  local work = busy / s.ranks
  return { peak = peak, span = span, busy = busy, bubble = 1 - work / span, overhead = span / work - 1,
    timeline = timeline }
end

return M
