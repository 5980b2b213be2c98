--- Units of fully_shard whose parameters are fake tensors, for dist.record: the calls of src/comm/unit.c, in its order,
-- without memory. An object stands for the handle of a unit.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local collectives = require "moth.distributed.collectives"
local moth = require "moth"

local chains = setmetatable({}, { __mode = "k" }) -- group -> { reducing = unit, later = unit }

local Unit = class("FakeUnit")

local function count(unit)
  unit.pending = 0
  for i, p in ipairs(unit.shards) do
    unit.ready_of[i] = not p:requires_grad()
    unit.pending = unit.pending + (p:requires_grad() and 1 or 0)
  end
end

--- of: a unit of fully_shard.lua; reduce_dtype: of its gradients, or nil.
function Unit:__init(of, reduce_dtype)
  self.group, self.replicas, self.shards, self.full = of.group, of.replicas, of.shards, of.full
  self.name = of.name
  self.phase, self.reduces, self.reshards, self.ready_of = "sharded", true, true, {}
  self.bytes, self.rows = 0, {}
  for i, p in ipairs(self.full) do
    local rows = p:dim() > 0 and p:size(1) or 1
    self.rows[i] = math.ceil(rows / self.group.size) * (p:numel() / math.max(1, rows))
    self.bytes = self.bytes + math.ceil(self.rows[i] * p:dtype().itemsize / 16) * 16
  end
  self.grad_dtype = reduce_dtype or self.full[1]:dtype()
  chains[self.group] = chains[self.group] or {}
  self.chain = chains[self.group]
  count(self)
  for i, p in ipairs(self.full) do
    if p:requires_grad() then p:register_post_accumulate_grad_hook(function() self:on_gradient(i) end) end
  end
end

function Unit:memory(n, dtype) return self.shards[1]:detach():new_empty({ n }, { dtype = dtype }) end

local function start_later(chain)
  local unit = chain.later
  chain.later = nil
  if unit then unit:gather() end
end

function Unit:gather()
  if self.chain.later ~= self then start_later(self.chain) end
  self.chain.later = nil
  if self.phase ~= "sharded" then return end
  if self.group.backend ~= "fake" then
    check.fail("[fully_shard] parameters of %s are fake: they have no memory to be gathered", self.name)
  end
  self.phase = "gathering"
  local group = self.kept and self.part or self.group
  local total = self.bytes * self.group.size
  self.flat = self:memory(total, moth.uint8)
  self.gathering = collectives.all_gather_into_tensor(self.flat, self:memory(total / group.size, moth.uint8),
    { group = group, async = true })
  self.kept = self.part ~= nil
end

function Unit:gather_later()
  if self.chain.later and self.chain.later ~= self then start_later(self.chain) end
  if self.phase ~= "sharded" then return end
  self.chain.later = self
  if not self.chain.reducing then start_later(self.chain) end
end

function Unit:ready()
  self:gather()
  if not self.gathering then return end
  self.gathering:wait()
  self.flat:clone() -- to where the parameters are
  self.gathering, self.flat, self.phase = nil, nil, "full"
end

function Unit:reshard()
  if self.chain.later == self then start_later(self.chain) end
  if self.gathering then self.gathering:wait() end
  self.gathering, self.flat, self.phase = nil, nil, "sharded"
end

local function receive(unit)
  if unit.chain.reducing == unit then unit.chain.reducing = nil end
  if not unit.reducing then return end
  unit.reducing:wait()
  unit.reducing = nil
  if unit.replicas then
    unit.averaging = collectives.all_reduce(unit.result, { op = "avg", group = unit.replicas, async = true })
  end
end

local function complete(unit)
  if unit.reshards then
    unit:reshard()
    unit.kept = false
  end
  local chain = unit.chain
  if chain.reducing then receive(chain.reducing) end
  start_later(chain)
  unit:finish()
  local n = 0
  for i, p in ipairs(unit.shards) do if p:requires_grad() then n = n + unit.rows[i] + 1 end end
  local buffer = unit:memory(n * unit.group.size, unit.grad_dtype):clone()
  unit.result = unit:memory(n, unit.grad_dtype)
  unit.reducing = collectives.reduce_scatter_tensor(unit.result, buffer,
    { op = "avg", group = unit.group, async = true })
  chain.reducing = unit
  for _, p in ipairs(unit.full) do p.grad = nil end
  count(unit)
end

function Unit:on_gradient(i)
  if not self.chain.reducing then start_later(self.chain) end
  if not self.reduces then return end
  if not self.ready_of[i] then
    self.ready_of[i], self.pending = true, self.pending - 1
  end
  if self.pending == 0 then moth.no_grad(complete, self) end
end

function Unit:finish()
  receive(self)
  if not self.result then return end
  if self.averaging then self.averaging:wait() end
  self.averaging, self.result = nil, nil
  self.kept = false -- an optimizer changes the shards
  for _, p in ipairs(self.shards) do
    if p:requires_grad() and not B.get_grad(p) then p.grad = moth.empty_like(p:detach()) end
  end
end

function Unit:flush()
  for i, p in ipairs(self.shards) do
    if p:requires_grad() and self.ready_of[i] and self.reduces then return moth.no_grad(complete, self) end
  end
end

function Unit:abandon()
  self.chain.reducing, self.chain.later = nil, nil
  self.gathering, self.flat, self.reducing, self.averaging, self.result, self.kept = nil, nil, nil, nil, nil, false
  self.phase = "sharded"
  count(self)
end

function Unit:state() return self.phase end
function Unit:set_name(name) self.name = name end
function Unit:set_after_backward(reduce, reshard) self.reduces, self.reshards = reduce, reshard end
function Unit:set_part(part) self.part, self.kept = part, false end

return Unit
