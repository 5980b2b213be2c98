--- Runs that go on when a worker dies or joins (--nproc-per-node MIN:MAX): generations of workers. The key
-- run/<round>[.g]/members has those of generation g. Once that of g + 1 is written the fault of g breaks the groups of
-- its workers, so that they make new ones (dist.elastic). Launchers of several machines change it by compare_set.
local class = require "moth.class"

local Elastic = class("Elastic")

function Elastic:__init(o, store, round)
  self.o, self.store, self.run = o, store, "run/" .. round.number
  self.on = o.min_local < o.max_local
  self.least = o.min_local * o.min_nodes
  self.joining, self.left = {}, o.max_restarts
  if self.on then
    local ids = {}
    for i = 0, round.world - 1 do ids[i + 1] = tostring(i) end
    self.key = self.run .. "/generation"
    store:compare_set(self.key, "", "0 " .. table.concat(ids, " "))
  end
end

--- The keys of a generation.
function Elastic.prefix(run, g) return g == 0 and run .. "/" or ("%s.%d/"):format(run, g) end

--- Tells the workers that run now, and that none go on.
function Elastic:fault(text)
  local g = self.on and tonumber(self.store:get(self.key):match "^%d+") or 0
  if self.on then self.store:set(Elastic.prefix(self.run, g + 1) .. "members", "") end
  self.store:compare_set(Elastic.prefix(self.run, g) .. "fault", "", text)
end

--- What the workers were told.
function Elastic:reason()
  local g = self.on and tonumber(self.store:get(self.key):match "^%d+") or 0
  return self.store:get(Elastic.prefix(self.run, g) .. "fault", 5)
end

local function current(self)
  local g, ids = self.store:get(self.key):match "^(%d+) ?(.*)$"
  local list = {}
  for id in ids:gmatch "%S+" do list[#list + 1] = id end
  return tonumber(g), list
end

-- The next generation: fn(list of ids) changes the list; false: it stays. Returns its number.
local function change(self, text, fn)
  while true do
    local before = self.store:get(self.key)
    local g, ids = before:match "^(%d+) ?(.*)$"
    local list = {}
    for id in ids:gmatch "%S+" do list[#list + 1] = id end
    if fn(list) == false then return nil end
    local members = table.concat(list, " ")
    local after = ("%d %s"):format(g + 1, members)
    if self.store:compare_set(self.key, before, after) == after then
      self.store:set(Elastic.prefix(self.run, g + 1) .. "members", members)
      self.store:compare_set(Elastic.prefix(self.run, tonumber(g)) .. "fault", "", text)
      return g + 1
    end
  end
end

--- Workers have died: whether the others go on. Starts others in their place while there are restarts left.
function Elastic:lost(agent, round, failed, text)
  if not self.on then return false end
  local enough = change(self, text, function(list)
    for _, w in ipairs(failed) do
      for i = #list, 1, -1 do if list[i] == tostring(w.id) then table.remove(list, i) end end
      self.joining[tostring(w.id)] = nil
    end
    return #list >= self.least
  end)
  if not enough then return false end
  for _, w in ipairs(failed) do
    if self.left > 0 then
      self.left = self.left - 1
      local id = round.world + self.store:add(self.run .. "/workers", 1) - 1
      agent:start(round, w.local_rank, nil, id)
      self.joining[tostring(id)] = true
    end
  end
  return true
end

--- Whether a worker is about to join.
function Elastic:waiting() return next(self.joining) ~= nil end

-- Whether a worker was started into the run, and is in no group yet.
local function is_outside(self, round, w)
  return w.id >= round.world and not self.store:check(self.run .. "/formed/" .. w.id)
end

--- A worker has ended well: so will the others. Nobody is taken in any more; those that are in no group yet are killed.
-- Others that wait for it in a new generation are told to go on without it.
function Elastic:ended(agent, round, worker)
  if not self.on then return end
  self.joining, self.left, self.is_over = {}, 0, true
  for _, w in ipairs(agent.workers.list) do
    if is_outside(self, round, w) then
      w.is_dropped = true
      agent.workers:signal("KILL", w)
    end
  end
  local g, list = current(self)
  if g == 0 or self.store:check(Elastic.prefix(self.run, g) .. "ready/" .. worker.id) then return end
  local left = {}
  for _, id in ipairs(list) do if id ~= tostring(worker.id) then left[#left + 1] = id end end
  if #left == #list then return end
  change(self, "a worker has ended", function(now)
    for i = #now, 1, -1 do if now[i] == tostring(worker.id) then table.remove(now, i) end end
  end)
end

--- A worker that the others say does not answer is killed, if it is one of this machine: so they go on without it.
function Elastic:judge(agent)
  if not self.on then return end
  local g = current(self)
  local key = Elastic.prefix(self.run, g) .. "accused"
  if not self.store:check(key) then return end
  local id = self.store:get(key)
  for _, w in ipairs(agent.workers.list) do
    if tostring(w.id) == id then agent.workers:signal("KILL", w) end
  end
end

--- Takes in the workers that are ready.
function Elastic:admit()
  for id in require "moth.each"(self.joining) do
    if self.store:check(self.run .. "/join/" .. id) then
      self.joining[id] = nil
      local g = change(self, ("worker %s joins"):format(id), function(list) list[#list + 1] = id end)
      self.store:set(self.run .. "/joined/" .. id, tostring(g))
    end
  end
end

return Elastic
