--- Pipeline schedules as lists of actions: what each rank does, in order.
--
-- An action is { op, stage, micro }: "F" forward, "B" backward, or backward in two parts, "I" (gradient of the input)
-- and "W" (of the weights), "SEND"/"RECV" with what = "F" or "B", the result of which action goes to or comes from
-- `peer`. Stages and micro-batches count from 1, ranks from 0. A schedule is { name, ranks, micro_batches, stages,
-- place (stage -> rank), [rank] = list }. Whatever runs a schedule reads the list of its own rank and needs to know
-- nothing else; check.lua proves that the lists fit together.
local check = require "moth.utils.check"

local M = {}

-- Stages s = 1 … ranks * each are placed round the ranks, or there and back ("v").
local function new(name, ranks, micro_batches, each, v)
  local s = { name = name, ranks = ranks, micro_batches = micro_batches, stages = ranks * each, place = {} }
  for stage = 1, s.stages do
    local turn, at = math.floor((stage - 1) / ranks), (stage - 1) % ranks
    s.place[stage] = v and turn % 2 == 1 and ranks - 1 - at or at
  end
  for rank = 0, ranks - 1 do s[rank] = {} end
  return s
end

local function act(list, op, stage, micro) list[#list + 1] = { op = op, stage = stage, micro = micro } end

local generators = {}

-- One micro-batch is in the pipeline at a time.
function generators.naive(ranks, m)
  local s = new("naive", ranks, m, 1)
  for rank = 0, ranks - 1 do
    for i = 1, m do
      act(s[rank], "F", rank + 1, i)
      act(s[rank], "B", rank + 1, i)
    end
  end
  return s
end

-- All forward passes, then all backward passes.
function generators.gpipe(ranks, m)
  local s = new("gpipe", ranks, m, 1)
  for rank = 0, ranks - 1 do
    for i = 1, m do act(s[rank], "F", rank + 1, i) end
    for i = 1, m do act(s[rank], "B", rank + 1, i) end
  end
  return s
end

-- As many forward passes as there are ranks behind, then one of each in turn: at most ranks - rank are in flight.
generators["1f1b"] = function(ranks, m)
  local s = new("1f1b", ranks, m, 1)
  for rank = 0, ranks - 1 do
    local list, warm = s[rank], math.min(m, ranks - rank - 1)
    for i = 1, warm do act(list, "F", rank + 1, i) end
    for i = warm + 1, m do
      act(list, "F", rank + 1, i)
      act(list, "B", rank + 1, i - warm)
    end
    for i = m - warm + 1, m do act(list, "B", rank + 1, i) end
  end
  return s
end

-- Several stages a rank: the bubble is as many times smaller, with more in flight. Micro-batches go through in rounds
-- of at least `ranks`; each round passes all stages of a rank in turn.
function generators.interleaved(ranks, m, each)
  local rounds = math.max(1, math.floor(m / ranks))
  if m % rounds ~= 0 then
    check.fail("[distributed.schedule] interleaved: %d micro-batches do not make %d equal rounds of at least %d; \z
      use a multiple of %d", m, rounds, ranks, ranks)
  end
  local round = m / rounds
  local s = new("interleaved", ranks, m, each)
  local total = m * each
  -- The k-th forward (or backward) of a rank, from 0.
  local function at(k, rank, backward)
    local turn = math.floor(k / round) % each
    if backward then turn = each - 1 - turn end
    return turn * ranks + rank + 1, math.floor(k / (round * each)) * round + k % round + 1
  end
  for rank = 0, ranks - 1 do
    local list = s[rank]
    local warm = math.min(total, (each - 1) * round + 2 * (ranks - 1 - rank))
    for k = 0, warm - 1 do act(list, "F", at(k, rank)) end
    for k = warm, total - 1 do
      act(list, "F", at(k, rank))
      act(list, "B", at(k - warm, rank, true))
    end
    for k = total - warm, total - 1 do act(list, "B", at(k, rank, true)) end
  end
  return s
end

-- Backward in two parts, placed by running the pipeline: a rank that can do an "I" does it, as others wait for it, else
-- a forward if it holds fewer than `limit` micro-batches (times stages), else a "W". Weights' gradients so fill what
-- would be bubble. turns: 0, as said; 1, a forward comes first on the first stage, for whose "I" nobody waits; 2, after
-- an "I" a forward comes first everywhere. Returns the end, too, or nothing if the ranks come to wait for each other.
local function greedy(s, limit, turns)
  local stages, m = s.stages, s.micro_batches
  local next_f, next_i, ready = {}, {}, {}
  for stage = 1, stages do next_f[stage], next_i[stage], ready[stage] = 1, 1, { F = {}, I = {} } end
  for i = 1, m do ready[1].F[i] = 0 end
  local pending, free, flying, before = {}, {}, {}, {}
  local own = {}
  for rank = 0, s.ranks - 1 do
    pending[rank], free[rank], flying[rank], own[rank] = {}, 0, 0, {}
  end
  for stage = 1, stages do table.insert(own[s.place[stage]], 1, stage) end -- later stages first
  local left = stages * m * 3

  local function backward(rank, now)
    for _, stage in ipairs(own[rank]) do
      local t = ready[stage].I[next_i[stage]]
      if t and t <= now then return "I", stage, next_i[stage] end
    end
  end
  local function forward(rank, now)
    if flying[rank] >= limit then return end
    for _, stage in ipairs(own[rank]) do
      local t = ready[stage].F[next_f[stage]]
      -- The last place is kept for a later stage, without which nothing could ever go backward.
      local kept = stage == own[rank][1] or flying[rank] < limit - (#own[rank] - 1)
      if t and t <= now and kept then return "F", stage, next_f[stage] end
    end
  end
  -- What `rank` can do at `now`: op, stage, micro.
  local function choose(rank, now)
    local f_first = turns == 1 and rank == 0 or turns == 2 and before[rank] == "I"
    local first, second = backward, forward
    if f_first then first, second = forward, backward end
    local op, stage, micro = first(rank, now)
    if not op then op, stage, micro = second(rank, now) end
    if op then return op, stage, micro end
    local w = pending[rank][1]
    if w then return "W", w.stage, w.micro end
  end

  while left > 0 do
    local now, soonest = math.huge, math.huge
    for rank = 0, s.ranks - 1 do now = math.min(now, free[rank]) end
    local any = false
    for rank = 0, s.ranks - 1 do
      if free[rank] <= now then
        local op, stage, micro = choose(rank, now)
        if op then
          any = true
          act(s[rank], op, stage, micro)
          left = left - 1
          if op ~= "W" then before[rank] = op end
          local done = now + 1
          free[rank] = done
          if op == "F" then
            next_f[stage] = micro + 1
            flying[rank] = flying[rank] + 1
            if stage < stages then ready[stage + 1].F[micro] = done else ready[stage].I[micro] = done end
          elseif op == "I" then
            next_i[stage] = micro + 1
            table.insert(pending[rank], { stage = stage, micro = micro })
            if stage > 1 then ready[stage - 1].I[micro] = done end
          else
            table.remove(pending[rank], 1)
            flying[rank] = flying[rank] - 1
          end
        end
      end
    end
    if not any then -- all that are free wait for one that works
      for rank = 0, s.ranks - 1 do if free[rank] > now then soonest = math.min(soonest, free[rank]) end end
      if soonest == math.huge then return end
      for rank = 0, s.ranks - 1 do if free[rank] <= now then free[rank] = soonest end end
    end
  end
  local stop = 0
  for rank = 0, s.ranks - 1 do stop = math.max(stop, free[rank]) end
  return s, stop
end

-- The shortest of the greedy schedules.
local function shortest(name, ranks, m, each, v)
  local best, least
  for turns = 0, 2 do
    local s, stop = greedy(new(name, ranks, m, each, v), ranks * each, turns)
    if s and (not least or stop < least) then best, least = s, stop end
  end
  return best
end

-- ZB-H1 (Qi et al., 2023): no more in flight than 1F1B's first rank has, a third of its bubble.
function generators.zb(ranks, m)
  return shortest("zb", ranks, m, 1)
end

-- ZB-V: two stages a rank, there and back, so that the first rank also has the loss; as much memory as 1F1B.
function generators.zbv(ranks, m)
  return shortest("zbv", ranks, m, 2, true)
end

M.names = { "naive", "gpipe", "1f1b", "interleaved", "zb", "zbv" }

--- The lists of all ranks, without transfers. each: stages of a rank (interleaved).
function M.generate(name, ranks, micro_batches, each)
  local make = generators[name:lower()]
  if not make then
    check.fail("[distributed.schedule] there is no schedule '%s'%s; there are: %s", name,
      check.suggest(name, M.names), table.concat(M.names, " "))
  end
  return make(ranks, micro_batches, each or 2)
end

return M
