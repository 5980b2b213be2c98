--- dist.elastic: training that goes on when ranks die, and takes in new ones. The launcher is told how many it needs:
-- `moth run --nproc-per-node 2:4 --max-restarts 3 train.lua`.
--
--     dist.init_process_group()
--     local state = dist.elastic.State { model = model, optimizer = opt, step = 0 }
--     dist.elastic.run(state, function()             -- again after each change of the ranks
--       local net = nn.parallel.DistributedDataParallel(model)
--       while state.step < 1000 do
--         …                                          -- a step of training
--         state.step = state.step + 1
--         state:commit()                             -- what others get, and where it goes on
--       end
--     end)
--
-- A rank that dies breaks the groups of the others: their calls fail within milliseconds, they make a group of those
-- that are left, take back what was done since the last commit, and go on. The rank with the newest commit gives its
-- state to those that are behind. Between init_process_group and run nothing is communicated: who joins later has not
-- been there.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local collectives = require "moth.distributed.collectives"
local each = require "moth.each"
local groups = require "moth.distributed.group"
local moth = require "moth"
local now = require("moth.utils.system").now
local objects = require "moth.distributed.objects"
local placement = require "moth.distributed.placement"
local signature = require "moth.utils.signature"
local tree = require "moth.distributed.tree"

local C = B.comm
local M = {}

local MEETING = 10 -- seconds in which those that have all come connect to each other
local DECISION = 5 -- seconds in which the launcher says who goes on

-- The state -----------------------------------------------------------------------------------------

local State = class("State")
M.State = State
State.__is_state = true

local function values_of(self) return rawget(self, "_values") end

-- Its fields as one value: of objects their state.
local function gather(self)
  local out = {}
  for name, v in each(values_of(self)) do
    out[name] = tree.has_state(v) and v:state_dict() or v
  end
  return out
end

local function assign(self, value)
  local values = values_of(self)
  for name, v in each(value) do
    local old = values[name]
    if tree.has_state(old) then
      old:load_state_dict(v)
    elseif moth.is_tensor(old) then
      moth.no_grad(function() old:detach():copy_(v) end)
    else
      values[name] = v
    end
  end
end

--- fields: objects with state_dict and load_state_dict (modules, optimizers, schedules, loaders), tensors, plain
-- values. They are fields of the state: state.step = state.step + 1.
State.__init = signature.init("distributed.elastic.State(table fields)", function(self, o)
  local values = {}
  for name, v in each(o.fields) do
    if type(name) ~= "string" or State[name] ~= nil then
      check.fail("[distributed.elastic.State] '%s' cannot be the name of a field", tostring(name))
    end
    values[name] = v
    if moth.nn.Module.is(v) and placement.any(v:parameters()) then
      check.fail("[distributed.elastic.State] '%s' is cut over the ranks, so that no rank has the part of another: \z
        let all start again from a dist.checkpoint (--max-restarts)", name)
    end
  end
  rawset(self, "_values", values)
  rawset(self, "_commits", 0)
  tree.split(gather(self), "distributed.elastic.State") -- an error here rather than in the first commit
end)

function State.__index(self, key)
  local value = values_of(self)[key]
  if value ~= nil then return value end
  return State[key]
end
function State.__newindex(self, key, value)
  if State[key] ~= nil then
    check.fail("[distributed.elastic.State] '%s' cannot be the name of a field", tostring(key))
  end
  values_of(self)[key] = value
end

local function same_shape(a, b) return table.concat(a.shape, ",") == table.concat(b.shape, ",") end

--- Copies the state, as what is gone back to. Call it after each step, or each few: what was done since is lost.
State.commit = signature.method("distributed.elastic.State.commit()", function(self)
  local skeleton, list = tree.split(gather(self), "distributed.elastic.State.commit")
  local old, copies = rawget(self, "_copies") or {}, {}
  moth.no_grad(function()
    for i, e in ipairs(list) do
      local c = old[i]
      local fits = c and c:dtype() == e.tensor:dtype() and same_shape(c, e.tensor)
      copies[i] = fits and c:copy_(e.tensor:detach()) or e.tensor:detach():clone()
    end
  end)
  rawset(self, "_skeleton", skeleton)
  rawset(self, "_copies", copies)
  rawset(self, "_commits", rawget(self, "_commits") + 1)
end)

--- Goes back to the last commit, if there was one.
State.restore = signature.method("distributed.elastic.State.restore()", function(self)
  local copies = rawget(self, "_copies")
  if copies then assign(self, tree.join(rawget(self, "_skeleton"), function(i) return copies[i]:clone() end)) end
end)

--- Gives the state of the rank with the most commits to all that have fewer. All ranks call it; run does.
State.sync = signature.method("distributed.elastic.State.sync()", function(self)
  local mine, source, most, least = rawget(self, "_commits"), 0, -1, math.huge
  for i, n in ipairs(objects.all_gather_object(mine)) do
    if n > most then source, most = i - 1, n end
    least = math.min(least, n)
  end
  if most == least and most > 0 then return end
  local is_source = groups.of(nil, "elastic.State.sync").rank == source
  local skeleton, list = tree.split(gather(self), "distributed.elastic.State.sync")
  local about = {}
  if is_source then
    about[1] = { skeleton = skeleton, tensors = {} }
    for i, e in ipairs(list) do
      about[1].tensors[i] = { dtype = e.tensor:dtype().name, shape = { unpack(e.tensor.shape) } }
    end
  end
  objects.broadcast_object_list(about, source)
  local tensors = {}
  for i, t in ipairs(about[1].tensors) do
    tensors[i] = is_source and list[i].tensor:detach():contiguous() or moth.empty(t.shape, { dtype = moth[t.dtype] })
    collectives.broadcast(tensors[i], source)
  end
  if not is_source then assign(self, tree.join(about[1].skeleton, function(i) return tensors[i] end)) end
  if most > 0 then
    rawset(self, "_commits", most - 1)
    self:commit()
  end
end)

function State:__tostring() return ("State(%d commits)"):format(rawget(self, "_commits")) end

signature.type("State", function(v) return type(v) == "table" and getmetatable(v) == State end,
  "a dist.elastic.State")

-- Ranks that change -----------------------------------------------------------------------------------

local function worker() return os.getenv "MOTH_WORKER" end

-- This worker's rank among the members of a generation, and their number.
local function place_in(members)
  local n, rank = 0, nil
  for id in members:gmatch "%S+" do
    if id == worker() then rank = n end
    n = n + 1
  end
  return rank, n
end

-- Waits until all members of generation g, or of a later one, are here: a member that dies meanwhile is not waited for.
-- Returns this worker's rank, and their number. limit: seconds.
local function gather_members(store, g, limit)
  local prefix, deadline = groups.run_prefix(g), now() + limit
  local members, keys = store:get(prefix .. "members"), {}
  if not place_in(members) then return nil end
  for id in members:gmatch "%S+" do keys[#keys + 1] = prefix .. "ready/" .. id end
  store:set(prefix .. "ready/" .. worker(), "1")
  local next_prefix = groups.run_prefix(g + 1)
  while true do
    if store:check(next_prefix .. "members") then return gather_members(store, g + 1, deadline - now()) end
    if store:check(keys) then break end
    if now() > deadline then
      check.fail("[distributed.reform] not all of the other processes came within %g s", limit)
    end
    B.process.wait({}, 0.002)
  end
  groups.run_prefix(g)
  return place_in(members)
end

-- Makes the group of generation g, or of a later one: of whom the launcher says, with those that still live.
local function form(store, g, backend, limit)
  while true do
    local rank, size = gather_members(store, g, limit)
    if not rank then check.fail("[distributed.reform] this process is not among those that go on") end
    local _, here = groups.run_prefix()
    local ok, why = groups.within(MEETING, groups.init_process_group, backend,
      { rank = rank, world_size = size, timeout = limit })
    if ok then
      store:set(groups.run_prefix():match "^run/[^./]+" .. "/formed/" .. worker(), "1")
      return rank, size
    end
    -- One may have died after it had come.
    g = here + 1
    local members = groups.run_prefix(g) .. "members"
    if not pcall(store.wait, store, members, DECISION) then error(why, 0) end
  end
end

--- For a worker that the launcher has started into a run: waits until it is taken in.
function M._join(store, backend, limit)
  local run = groups.run_prefix(0):sub(1, -2)
  store:set(run .. "/join/" .. worker(), "1")
  form(store, tonumber(store:get(run .. "/joined/" .. worker())), backend, limit)
end

--- Leaves all groups and makes the one of those that are left, and of those that join; returns its rank and size. The
-- launcher says who that is: an error if it does not within `timeout` seconds, or if this process is not among them.
M.reform = signature("distributed.reform(*, number timeout?)", function(o)
  if not worker() then
    check.fail("[distributed.reform] this process was not started by moth run --nproc-per-node MIN:MAX")
  end
  local group = groups.of(nil, "reform")
  local store, backend, limit = groups.store(), group.backend, group.timeout
  local _, g = groups.run_prefix()
  local members = groups.run_prefix(g + 1) .. "members"
  groups.run_prefix(g)
  store:wait(members, o.timeout or DECISION)
  groups.destroy_process_group()
  return form(store, g + 1, backend, limit)
end, true)

-- A rank that was stopped does not end by itself: the launcher kills it.
local function accuse(why)
  local rank = why:match "timed out.- rank (%d+) %(pid [^)]*%) does not answer"
  if not rank then return end
  local store, list = groups.store(), {}
  local prefix, g = groups.run_prefix()
  if g == 0 then
    list[rank + 1] = rank
  else
    for id in store:get(prefix .. "members"):gmatch "%S+" do list[#list + 1] = id end
  end
  if list[rank + 1] then store:compare_set(prefix .. "accused", "", list[rank + 1]) end
end

--- Calls fn(state, …) on all ranks, with the same state; again when ranks have died or joined, after going back to the
-- last commit. Returns what it returns. Other errors are raised.
M.run = signature("distributed.elastic.run(State state, function fn)", function(state, fn)
  local results
  local function attempt()
    state:sync()
    results = { fn(state) }
  end
  while true do
    local ok, message = pcall(attempt)
    if ok then return unpack(results) end
    local handle = groups.of(nil, "elastic.run").handle
    local why = C.group_broken(handle)
    if not worker() or not why then error(message, 0) end
    accuse(why)
    if not pcall(M.reform) then error(message, 0) end
    state:restore()
  end
end)

return M
