--- DistributedDataParallel: each rank trains the same module on its own part of a batch; gradients are averaged while
-- backward runs.
--
--     local net = nn.parallel.DistributedDataParallel(model, { bucket_cap_mb = 25 })
--     loss_of(net(x), y):backward()      -- afterwards all ranks have the same gradients
--     net.module:state_dict()            -- the module itself: names without "module."
--     net:no_sync(function() loss:backward() end) -- only adds to this rank's gradients
--
-- Parameters and buffers of rank 0 are given to all at the beginning. Gradients travel in buckets, in the reverse order
-- of the parameters at first, from the second forward on in the order in which they come. The parameters are found when
-- it is made: make it after module:to(…). One that is frozen then takes part as soon as it is trained, on all ranks.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local collectives = require "moth.distributed.collectives"
local groups = require "moth.distributed.group"
local moth = require "moth"
local Module = require "moth.nn.module"
local objects = require "moth.distributed.objects"
local placement = require "moth.distributed.placement"
local signature = require "moth.utils.signature"
local Work = require "moth.distributed.work"

local R = B.reducer
local NAME = "nn.parallel.DistributedDataParallel"
local FIRST_MB = 1 -- of the bucket that is sent first, so that sending begins early

-- Buckets ------------------------------------------------------------------------------------------

-- The bucket of each parameter (a list), and their number. `order`: positions, in the order of sending.
local function assign(params, order, cap)
  local of, open, n = {}, {}, 0
  for _, i in ipairs(order) do
    local p = params[i]
    local key = p:dtype().name .. tostring(p:device())
    local bytes, bucket = p:numel() * p:dtype().itemsize, open[key]
    if not bucket or bucket.bytes + bytes > bucket.limit then
      n = n + 1
      bucket = { number = n, bytes = 0, limit = (n == 1 and math.min(FIRST_MB, cap) or cap) * 2 ^ 20 }
      open[key] = bucket
    end
    bucket.bytes = bucket.bytes + bytes
    of[i] = bucket.number
  end
  return of, n
end

--- What a communication hook gets: a bucket of gradients, which are one after the other in a flat buffer.
local Bucket = class("GradBucket")
Bucket.__is_bucket = true
function Bucket:__init(ddp, index) self.ddp, self.number = ddp, index end
--- Its position among the buckets, in the order of sending.
function Bucket:index() return self.number end
function Bucket:is_last() return self.number == self.ddp._nbuckets end
--- The flat tensor: to be reduced in place, or read.
function Bucket:buffer() return (R.buffer(self.ddp._reducer, self.number)) end
function Bucket:parameters()
  local list = {}
  for i, bucket in ipairs(self.ddp._bucket_of) do
    if bucket == self.number then list[#list + 1] = self.ddp._params[i] end
  end
  return list
end
--- Views of the buffer, of the shapes of the parameters.
function Bucket:gradients()
  local list, at, buffer = {}, 1, self:buffer()
  for i, p in ipairs(self:parameters()) do
    list[i] = buffer:narrow(1, at, p:numel()):view(p.shape)
    at = at + p:numel()
  end
  return list
end

-- The module ---------------------------------------------------------------------------------------

local DDP = class("DistributedDataParallel", Module)
signature.type("DistributedDataParallel", function(v) return type(v) == "table" and getmetatable(v) == DDP end,
  "a DistributedDataParallel")

-- The reducer of each module: an elastic run wraps a module again, and the hooks of the one before must go.
local reducers = setmetatable({}, { __mode = "k" })

local function connect_hook(self)
  local hook, results = self._comm_hook, {}
  if not hook or not self._reducer then return end
  R.set_hook(self._reducer, function(i) results[i] = hook(Bucket(self, i)) end, function(i)
    local r = results[i]
    results[i] = nil
    if type(r) == "function" then r = r() end
    if type(r) == "table" and getmetatable(r) == Work then
      r:wait()
    elseif moth.is_tensor(r) then
      moth.no_grad(function() R.buffer(self._reducer, i):copy_(r:view(-1)) end)
    else
      check.fail("[%s] a communication hook returns a tensor, a Work, or a function that gives one of them, got %s",
        NAME, type(r))
    end
  end)
end

local function make_reducer(self, order)
  local o = self._options
  if reducers[self.module] then R.close(reducers[self.module]) end
  self._bucket_of, self._nbuckets = assign(self._params, order, o.bucket_cap_mb)
  self._reducer = R.new(self._group.number, self._params, self._names, self._bucket_of, self._nbuckets, {
    find_unused = o.find_unused_parameters, as_view = o.gradient_as_bucket_view, is_static = o.static_graph })
  reducers[self.module] = self._reducer
  connect_hook(self)
end

-- The tensors of a rank, to all.
local function broadcast_all(self, list, root)
  local works = {}
  for i, t in ipairs(list) do
    works[i] = collectives.broadcast(t:detach(), root, { group = self._group, async = true })
  end
  for _, w in ipairs(works) do w:wait() end
end

-- The ranks have the same parameters.
local function compare(self)
  local mine = {}
  for i, p in ipairs(self._params) do
    mine[i] = ("%s: %s [%s]"):format(self._names[i], p:dtype().name, table.concat(p.shape, ", "))
  end
  local first
  for rank, theirs in ipairs(objects.all_gather_object(mine, { group = self._group })) do
    for i = 1, math.max(#mine, #theirs) do
      if mine[i] ~= theirs[i] and not first then
        first = ("parameter %d is %s here, on rank %d it is %s"):format(i, mine[i] or "none",
          self._group.ranks[rank], theirs[i] or "none")
      end
    end
  end
  if first then check.fail("[%s] the modules of the ranks differ: %s", NAME, first) end
end

-- Under dist.record: what backward would send, when it would.
local function record_buckets(self)
  local order, left, sum, works = {}, {}, {}, {}
  for i = #self._params, 1, -1 do order[#order + 1] = i end
  self._bucket_of, self._nbuckets = assign(self._params, order, self._options.bucket_cap_mb)
  self._rebuilt, self._options.broadcast_buffers = true, false
  local function reset()
    for b = 1, self._nbuckets do left[b], sum[b] = 0, 0 end
    for i, b in ipairs(self._bucket_of) do left[b], sum[b] = left[b] + 1, sum[b] + self._params[i]:numel() end
  end
  reset()
  for i, p in ipairs(self._params) do
    p:register_post_accumulate_grad_hook(function()
      if self._paused then return end
      local b = self._bucket_of[i]
      left[b] = left[b] - 1
      if left[b] == 0 then
        local flat = moth.empty({ sum[b] }, { dtype = p:dtype() })
        works[#works + 1] = collectives.all_reduce(flat, { async = true, group = self._group })
        if #works == self._nbuckets then
          for _, w in ipairs(works) do w:wait() end
          works = {}
          reset()
        end
      end
    end)
  end
end

-- The parameters that are trained, or were when it was made; the others.
local function find(self)
  local before = {}
  for _, p in ipairs(self._params or {}) do before[p] = true end
  self._params, self._names, self._rest = {}, {}, {}
  for name, p in self.module:named_parameters() do
    local own = placement.is_cut_over(p, self._group) -- experts: each rank has others
    if (p:requires_grad() or before[p]) and not own then
      self._params[#self._params + 1], self._names[#self._names + 1] = p, name
      placement.set_replicas(p, self._group)
    elseif not own then
      self._rest[#self._rest + 1] = p
    end
  end
end

local function backwards(self)
  local order = {}
  for i = #self._params, 1, -1 do order[#order + 1] = i end
  return order
end

-- Parameters that were frozen are trained from now on: all ranks see it in the same forward, or their calls differ.
local function take_more(self)
  for _, p in ipairs(self._rest) do
    if B.requires_grad(p) then
      find(self)
      compare(self)
      make_reducer(self, backwards(self))
      self._rebuilt = false
      return
    end
  end
end

DDP.__init = signature.init(NAME .. "(Module module, *, list device_ids?, any output_device?, \z
  bool broadcast_buffers=true, ProcessGroup process_group?, number bucket_cap_mb=25, \z
  bool find_unused_parameters=false, bool gradient_as_bucket_view=false, bool static_graph=false)", function(self, o)
  self._group = groups.of(o.process_group, "DistributedDataParallel")
  if o.bucket_cap_mb <= 0 then check.fail("[%s] bucket_cap_mb: expected a number above 0", NAME) end
  self._options, self.module, self._passes = o, o.module, 0
  find(self)
  if #self._params == 0 then check.fail("[%s] the module has no parameter that requires a gradient", NAME) end
  if B.is_fake(self._params[1]) then return record_buckets(self) end
  compare(self)
  self:_broadcast_all(self._group.ranks[1])
  make_reducer(self, backwards(self))
end)

-- For dist.join: parameters and buffers of a rank, to all; buffers, if they follow one rank at all.
function DDP:_broadcast_all(root)
  local all = { unpack(self._params) }
  for _, t in ipairs(self._rest) do all[#all + 1] = t end
  for _, t in self.module:named_buffers() do all[#all + 1] = t end
  broadcast_all(self, all, root)
end
function DDP:_broadcast_buffers(root)
  if not self._options.broadcast_buffers then return end
  local buffers = {}
  for _, t in self.module:named_buffers() do buffers[#buffers + 1] = t end
  broadcast_all(self, buffers, root)
end

-- After the first reduced backward the buckets follow the order in which rank 0's gradients came.
local function rebuild(self)
  local passes, order = R.order(self._reducer)
  if passes == 0 and not self._shadowed then return end
  self._rebuilt = true
  local seen = {}
  for _, i in ipairs(order) do seen[i] = true end
  for i = #self._params, 1, -1 do if not seen[i] then order[#order + 1] = i end end
  local t = moth.tensor(order, { dtype = moth.int64 })
  collectives.broadcast(t, self._group.ranks[1], { group = self._group })
  self._passes = self._passes + passes
  make_reducer(self, t:totable())
end

function DDP:forward(...)
  if self.training and moth.is_grad_enabled() and not self._paused then
    local root, o = self._group.ranks[1], self._options
    if self._reducer then take_more(self) end
    if self._joining then
      root = self._joining.announce(self)
    elseif not self._rebuilt and not o.find_unused_parameters and not o.static_graph then
      rebuild(self)
    end
    self:_broadcast_buffers(root)
  end
  return self.module(...)
end

--- Calls fn; backwards within only add to the gradients of this rank. The next backward outside reduces the sum.
DDP.no_sync = signature.method("nn.parallel.DistributedDataParallel.no_sync(function fn)", function(self, fn)
  local was = not self._paused
  if self._reducer then R.set_sync(self._reducer, false) end -- none under dist.record
  self._paused = true
  local function done(ok, ...)
    if self._reducer then R.set_sync(self._reducer, was) end
    self._paused = not was
    if not ok then error((...), 0) end
    return ...
  end
  return done(pcall(fn))
end)

--- Reduces gradients by hook(bucket) instead of an all_reduce. It returns a tensor of the buffer's size, a Work that
-- changes the buffer, or a function, called at the end of backward, that gives one of them. dist.hooks has some.
DDP.register_comm_hook = signature.method("nn.parallel.DistributedDataParallel.register_comm_hook(callable hook)",
function(self, hook)
  if self._comm_hook then check.fail("[%s] it has a communication hook already", NAME) end
  self._comm_hook = hook
  connect_hook(self)
end)

--- The names of the parameters of each bucket, in the order in which they are sent.
DDP.buckets = signature.method("nn.parallel.DistributedDataParallel.buckets()", function(self)
  local list = {}
  for b = 1, self._nbuckets do list[b] = {} end
  for i, b in ipairs(self._bucket_of) do table.insert(list[b], self._names[i]) end
  return list
end)

return DDP
