--- How launchers of several machines find each other, over the store that one of them has. A round is one start of all
-- workers. Keys: rdzv/<round>/nodes (a line for each that came), rdzv/<round>/world (who takes part), rdzv/round (the
-- newest that began), beat/<id>.
local B = require "moth_lua"
local class = require "moth.class"
local now = require("moth.utils.system").now
local store = require "moth.distributed.store"

local C, P = B.comm, B.process

local PATIENCE = 10 -- seconds after which a launcher says what it waits for

local Rendezvous = class("Rendezvous")

local function fail(fmt, ...) error("moth run: " .. fmt:format(...), 0) end

local function token_of(o)
  local token = store.token()
  if token then return token end
  local loop = o.host == "localhost" or o.host:find("^127%.") or o.host == "::1"
  if o.max_nodes > 1 then
    if o.rdzv_id then return o.rdzv_id end
    if not loop then
      fail("on several machines MOTH_STORE_TOKEN must be set, to the same secret on all of them: it keeps others out \z
        of the job (or --rdzv-id, if nobody else is on the network)")
    end
    return nil -- by the file of this user
  end
  return store.random_token()
end

--- o: the options. Errors are texts for the user.
function Rendezvous:__init(o)
  if o.max_nodes > 1 and (o.node_rank or 0) == 0 then
    local ok, host = pcall(store.outside, o.host)
    if not ok then fail("%s", host) end
    o.host = host
  end
  self.o, self.host, self.port, self.token = o, o.host, o.port, token_of(o)
  self.timeout = tonumber(o.conf.join_timeout or o.conf.timeout) or 600
  self.hosts = o.max_nodes == 1 or o.node_rank == 0
  local may_host = self.hosts or not o.node_rank
  if may_host then
    local ok, server, port = pcall(C.serve, o.host, o.port, self.token)
    if ok then
      self.server, self.port, self.hosts = server, port, true
    elseif self.hosts then
      fail("%s", (tostring(server):gsub("^.-store: ", ""):gsub("MASTER_PORT, or 0 for", "--master-port, or none for")))
    end
  end
end

--- Connects to the store, which another machine may not have begun yet. Returns a signal that has ended the wait.
function Rendezvous:connect()
  local begun, said = now(), false
  local deadline = begun + self.timeout
  while true do
    local ok, client = pcall(store.TCPStore, self.o.host, self.port, { token = self.token, timeout = 0.5 })
    if ok then
      client:set_timeout(self.timeout)
      self.store, self.name = client, (P.host())
      self.id = client:add("agents", 1) - 1
      return nil
    end
    local text = tostring(client)
    if now() > deadline or not text:find("no store answers", 1, true) then
      fail("%s", (text:gsub("^.-store: ", ""):gsub("within [%d.]+ s", ("within %g s"):format(self.timeout))))
    end
    if not said and now() > begun + PATIENCE then
      io.stderr:write(("moth run: no store answers at %s port %d within %g s; it waits %g s in all\n"):format(
        self.o.host, self.o.port, PATIENCE, self.timeout))
      said = true
    end
    local name = P.caught()
    if name and name ~= "CHLD" then return name end
  end
end

-- The value of a key, or nil.
function Rendezvous:peek(key) return self.store:check(key) and self.store:get(key) or nil end

-- Waits until fn gives something; signals end it.
local function await(self, fn, timeout, what)
  local begun, said = now(), false
  while true do
    local value = fn()
    if value ~= nil then return value end
    if now() > begun + timeout then fail("%s within %g s", what(), timeout) end
    if not said and now() > begun + PATIENCE then
      io.stderr:write(("moth run: %s within %g s; it waits %g s in all\n"):format(what(), PATIENCE, timeout))
      said = true
    end
    P.wait({}, 0.02)
    local name = P.caught()
    if name and name ~= "CHLD" then return nil, name end
    self:beat()
  end
end

local function lines(text)
  local list = {}
  for rank, nproc, name, id in (text or ""):gmatch("(%S+) (%d+) (%S+) (%d+)\n") do
    list[#list + 1] = { rank = tonumber(rank), nproc = tonumber(nproc), name = name, id = tonumber(id) }
  end
  return list
end

-- The agent that has the store says who takes part: a text of a line each, in the order of their ranks.
local function decide(self, round)
  local o, since = self.o, nil
  local last_call = tonumber(o.conf.last_call_timeout) or 30
  return await(self, function()
    local list = lines(self:peek(("rdzv/%d/nodes"):format(round)))
    if #list < o.min_nodes then return nil end
    since = since or now()
    if #list < o.max_nodes and now() - since < last_call then return nil end
    local taken = {}
    for i, n in ipairs(list) do
      n.at = i
      if n.rank and taken[n.rank] then
        return ("error two launchers have --node-rank %d: %s and %s"):format(n.rank, taken[n.rank], n.name)
      elseif n.rank then
        taken[n.rank] = n.name
      end
    end
    table.sort(list, function(a, b)
      if (a.rank or 1e9) ~= (b.rank or 1e9) then return (a.rank or 1e9) < (b.rank or 1e9) end
      return a.at < b.at
    end)
    local out = {}
    for i = 1, math.min(#list, o.max_nodes) do
      out[i] = ("%d %d %s %d\n"):format(i - 1, list[i].nproc, list[i].name, list[i].id)
    end
    return table.concat(out)
  end, self.timeout, function()
    return ("%d of %d machines came to %s port %d"):format(#lines(self:peek(("rdzv/%d/nodes"):format(round))),
      o.min_nodes, self.host, self.port)
  end)
end

--- Waits until all are there. Returns the round: { number, nodes (a list by rank + 1), node (this one's rank), first
-- (rank of its first worker), world (number of workers) }; or nil and a signal that came.
function Rendezvous:join(nproc, newest)
  local round = newest or (tonumber(self:peek "rdzv/round") or -1) + 1
  while true do
    self.store:append(("rdzv/%d/nodes"):format(round), ("%s %d %s %d\n"):format(self.o.node_rank or "-", nproc,
      self.name, self.id))
    local key = ("rdzv/%d/world"):format(round)
    if self.hosts then
      local world, signal = decide(self, round)
      if not world then return nil, signal end
      self.store:set("rdzv/round", tostring(round))
      self.store:set(key, world)
    end
    local text, signal = await(self, function() return self:peek(key) end, self.timeout + 5, function()
      return ("the launcher at %s port %d did not begin"):format(self.host, self.port)
    end)
    if not text then return nil, signal end
    if text:find("^error ") then fail("%s", text:sub(7)) end
    local r = { number = round, nodes = lines(text), world = 0 }
    for i, n in ipairs(r.nodes) do
      if n.id == self.id then r.node, r.first = i - 1, r.world end
      r.world = r.world + n.nproc
    end
    if r.node then return r end
    round = round + 1 -- it came too late for this one
  end
end

--- Says that this launcher lives, once a second.
function Rendezvous:beat()
  local time = now()
  if self.o.max_nodes == 1 or time < (self.next_beat or 0) then return end
  self.next_beat = time + 1
  self.beats = (self.beats or 0) + 1
  self.store:set("beat/" .. self.id, tostring(self.beats))
end

--- The nodes of a round that have not been heard of for `limit` seconds.
function Rendezvous:silent(round, limit)
  self.heard = self.heard or {}
  local time, list = now(), {}
  for i, n in ipairs(round.nodes) do
    if n.id ~= self.id then
      local value, last = self:peek("beat/" .. n.id), self.heard[n.id]
      if not last or last.value ~= value then
        self.heard[n.id] = { value = value, at = time }
      elseif time - last.at > limit then
        list[#list + 1] = { rank = i - 1, name = n.name }
      end
    end
  end
  return list
end

--- All n launchers have ended well and call this: the one with the store is the last to leave.
function Rendezvous:leave(key, n)
  if self.store:add(key, 1) == n or not self.hosts then return end
  local deadline = now() + 5
  while tonumber(self.store:get(key)) < n and now() < deadline do P.wait({}, 0.01) end
end

function Rendezvous:close()
  if self.store then self.store:close() end
  if self.server then C.server_close(self.server) end
end

return Rendezvous
