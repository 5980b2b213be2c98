--- ZeroRedundancyOptimizer: an optimizer whose state is shared out over the ranks (ZeRO-1). Each rank steps its
-- parameters and gives them to the others.
--
--     local opt = dist.ZeroRedundancyOptimizer(net:parameters(), optim.AdamW, { lr = 1e-3 })
--
-- Gradients are those of DistributedDataParallel: the same on all ranks. Schedulers take it like any optimizer.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local collectives = require "moth.distributed.collectives"
local each = require "moth.each"
local groups = require "moth.distributed.group"
local moth = require "moth"
local nn_utils = require "moth.nn.utils"
local objects = require "moth.distributed.objects"
local Optimizer = require "moth.optim.optimizer"
local placement = require "moth.distributed.placement"
local signature = require "moth.utils.signature"

local NAME = "distributed.ZeroRedundancyOptimizer"
local ZeRO = class("ZeroRedundancyOptimizer", Optimizer)

-- The rank of each parameter: the largest first, each to the rank that has least.
local function share_out(params, size)
  local order, load, owner = {}, {}, {}
  for i = 1, #params do order[i] = i end
  table.sort(order, function(a, b)
    local m, n = params[a]:numel(), params[b]:numel()
    return m > n or m == n and a < b
  end)
  for r = 1, size do load[r] = 0 end
  for _, i in ipairs(order) do
    local least = 1
    for r = 2, size do if load[r] < load[least] then least = r end end
    load[least] = load[least] + params[i]:numel()
    owner[params[i]] = least - 1
  end
  return owner
end

local BUCKET, LARGE = 2 ^ 16, 2 ^ 14 -- elements: of a message of small parameters; of a parameter that goes alone

-- Parameters of one owner, dtype and device that travel together: small ones in a copy.
local function buckets_of(self)
  local list, open = {}, {}
  for _, p in ipairs(self.params) do
    local owner = self.owner[p]
    local large = p:numel() >= LARGE
    local key = owner .. p:dtype().name .. tostring(p:device())
    local bucket = not large and open[key] or nil
    if not bucket or bucket.n + p:numel() > BUCKET then
      bucket = { owner = owner, n = 0, params = {} }
      if not large then open[key] = bucket end
      list[#list + 1] = bucket
    end
    bucket.params[#bucket.params + 1], bucket.n = p, bucket.n + p:numel()
  end
  return list
end

-- Starts to give a bucket's parameters to all; returns what waits for it.
local function send(group, bucket)
  local mine, params = bucket.owner == group.rank, bucket.params
  local o = { group = group, async = true }
  if #params == 1 then
    local work = collectives.broadcast(params[1]:detach(), group.ranks[bucket.owner + 1], o)
    return function() work:wait() end
  end
  local flat = moth.no_grad(function()
    if not mine then return moth.empty({ bucket.n }, { dtype = params[1]:dtype(), device = params[1]:device() }) end
    local parts = {}
    for i, p in ipairs(params) do parts[i] = p:detach():reshape(-1) end
    return moth.cat(parts)
  end)
  local work = collectives.broadcast(flat, group.ranks[bucket.owner + 1], o)
  return function()
    work:wait()
    if not mine then nn_utils.vector_to_parameters(flat, params) end
    B.free(flat)
  end
end

-- Each parameter is stepped by one rank, by itself.
local function check_params(self)
  if class.name(self.optim) == "LBFGS" then
    check.fail("[%s] optim.LBFGS steps all parameters as one vector: it cannot be shared out over ranks", NAME)
  end
  for i, p in ipairs(self.params) do
    if placement.is_cut_over(p, self.group) then
      check.fail("[%s] parameter %d is cut over these ranks already (fully_shard, dist.tp), and so is its state: give \z
        it to optim.%s itself", NAME, i, class.name(self.optim))
    end
  end
end

--- params: a list of parameters or of groups, the same on all ranks; optimizer_class: such as optim.Adam; options: of
-- that class, and process_group.
ZeRO.__init = signature.init(NAME .. "(list params, table optimizer_class, table options?)", function(self, o)
  local options, group = {}, nil
  if not (getmetatable(o.optimizer_class) and rawget(o.optimizer_class, "__name")
    and type(o.optimizer_class.step) == "function") then
    check.fail("[%s] optimizer_class: expected a class, such as optim.Adam", NAME)
  end
  for key, value in each(o.options or {}) do
    if key == "process_group" then group = value else options[key] = value end
  end
  self.group = groups.of(group, "ZeroRedundancyOptimizer")
  self.optim = o.optimizer_class(o.params, options)
  self.param_groups, self.state, self.defaults = self.optim.param_groups, self.optim.state, self.optim.defaults
  self.params = {}
  for _, g in ipairs(self.param_groups) do for _, p in ipairs(g.params) do table.insert(self.params, p) end end
  self.owner = share_out(self.params, self.group.size)
  check_params(self)
end)

--- The parameters whose state this rank keeps.
function ZeRO:owned()
  local list = {}
  for _, p in ipairs(self.params) do if self.owner[p] == self.group.rank then list[#list + 1] = p end end
  return list
end

--- Steps the parameters of this rank, and sends them to the others. All ranks call it.
function ZeRO:step(closure)
  if closure ~= nil and type(closure) ~= "function" then
    check.fail("[%s] step: expected a function that computes the loss", NAME)
  end
  local loss = closure and moth.enable_grad(closure)
  local grads, works = {}, {}
  for i, p in ipairs(self.params) do
    if self.owner[p] ~= self.group.rank then
      grads[i] = B.get_grad(p)
      if grads[i] then B.set_grad(p, nil) end
    end
  end
  local ok, message = pcall(self.optim.step, self.optim)
  for i, g in each(grads) do B.set_grad(self.params[i], g) end
  if not ok then error(message, 0) end
  for i, bucket in ipairs(buckets_of(self)) do
    works[i] = send(self.group, bucket)
  end
  for _, finish in ipairs(works) do finish() end
  return loss
end

function ZeRO:add_param_group(group)
  self.optim:add_param_group(group)
  for _, p in ipairs(self.param_groups[#self.param_groups].params) do table.insert(self.params, p) end
  self.owner = share_out(self.params, self.group.size)
  check_params(self)
end

--- The states of all parameters, by number, on all ranks, which all call it.
function ZeRO:all_states()
  local mine, states = {}, {}
  for i, p in ipairs(self.params) do
    if self.owner[p] == self.group.rank then mine[tostring(i)] = rawget(self.state, p) or {} end
  end
  for _, part in ipairs(objects.all_gather_object(mine, { group = self.group })) do
    for i, s in each(part) do states[tonumber(i)] = s end
  end
  return states
end

--- Brings the state of all ranks to rank `to` of the group, whose state_dict() then has it. All ranks call it.
-- (dist.checkpoint saves each rank's part, and dist.get_optimizer_state_dict has all, without it.)
ZeRO.consolidate_state_dict = signature.method(NAME .. ".consolidate_state_dict(size to=0)", function(self, to)
  local states = self:all_states()
  self.consolidated = nil
  if self.group.rank ~= to then return end
  local sd = self.optim:state_dict()
  for i, s in each(states) do sd.state[i] = s end
  self.consolidated = sd
end)

--- The consolidated state.
function ZeRO:state_dict()
  local sd = rawget(self, "consolidated")
  if not sd then
    check.fail("[%s] state_dict: this rank has a part of the state only: all ranks call \z
      consolidate_state_dict(rank) first", NAME)
  end
  return sd
end

--- Loads a state_dict of the whole optimizer; each rank keeps its part.
function ZeRO:load_state_dict(sd)
  self.optim:load_state_dict(sd)
  self.state = self.optim.state
  for _, p in ipairs(self.params) do
    if self.owner[p] ~= self.group.rank then self.state[p] = nil end
  end
end

return ZeRO
