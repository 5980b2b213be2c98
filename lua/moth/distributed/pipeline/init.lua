--- dist.pipeline: the layers of a model on the ranks of a group, one part after the other; a batch goes through in
-- micro-batches, in the order of a schedule (dist.schedule).
--
--     local pipe = dist.pipeline(seq, { microbatches = 8, schedule = "1f1b" })    -- a Sequential, or a list
--     local opt = optim.Adam(pipe:parameters())        -- of the layers of this rank
--     local loss = pipe:step(x, y, nn.MSELoss())       -- gradients as of loss(seq(x), y):backward()
--     opt:step()
--
-- Each rank has the layers that its stages need; those of other ranks are dropped, and elements of the list that are
-- functions are called only where their layer is. x matters on the rank of the first stage, y on that of the last. A
-- parameter in several stages stays equal on their ranks: its gradient is the sum.
local check = require "moth.utils.check"
local class = require "moth.class"
local collectives = require "moth.distributed.collectives"
local each = require "moth.each"
local Edges = require "moth.distributed.pipeline.edges"
local messages = require "moth.distributed.messages"
local mesh = require "moth.distributed.mesh"
local Module = require "moth.nn.module"
local moth = require "moth"
local schedule = require "moth.distributed.pipeline.schedule"
local signature = require "moth.utils.signature"
local Stage = require "moth.distributed.pipeline.stage"
local utils = require "moth.nn.utils"

local WHERE = "[distributed.pipeline] "
local SHARED = 2 ^ 20 + 2 -- the tag of gradients of shared parameters

local Pipeline = class("Pipeline", Module)

-- The children in order, as { name, module or function }.
local function layers_of(seq)
  local list = {}
  if Module.is(seq) then
    for name, m in seq:named_children() do list[#list + 1] = { name, m } end
  else
    for i, m in ipairs(seq) do
      if not Module.is(m) and type(m) ~= "function" then
        check.fail(WHERE .. "element %d is no module and no function that makes one, but %s", i, class.name(m))
      end
      list[i] = { tostring(i - 1), m }
    end
  end
  return list
end

-- The number of layers of each stage.
local function sizes_of(n, stages, split)
  if split then
    local sum = 0
    for _, k in ipairs(split) do sum = sum + k end
    if #split ~= stages or sum ~= n then
      check.fail(WHERE .. "split: expected the numbers of layers of %d stages, %d together; got %d, %d together",
        stages, n, #split, sum)
    end
    return split
  end
  if n < stages then check.fail(WHERE .. "%d layers are too few for %d stages", n, stages) end
  local sizes = {}
  for s = 1, stages do sizes[s] = math.floor(n * s / stages) - math.floor(n * (s - 1) / stages) end
  return sizes
end

-- Parameters that are in stages of several ranks: lists of { parameter (or nil), ranks }. The same on all ranks if all
-- elements are modules.
local function shared_of(self, layers, stage_of)
  local found, order = {}, {}
  for i, l in ipairs(layers) do
    if Module.is(l[2]) then
      local rank = self.schedule.place[stage_of[i]]
      for _, p in ipairs(l[2]:parameters()) do
        local s = found[p]
        if not s then
          s = { parameter = p, ranks = {}, has = {} }
          found[p] = s
          order[#order + 1] = s
        end
        if not s.has[rank] then
          s.has[rank] = true
          s.ranks[#s.ranks + 1] = rank
        end
      end
    end
  end
  local list = {}
  for _, s in ipairs(order) do
    if #s.ranks > 1 and s.has[self._group.rank] then list[#list + 1] = s end
  end
  return list
end

Pipeline.__init = signature.init("distributed.pipeline(Module|table layers, *, count microbatches=1, \z
  string schedule='1f1b', count each=2, size[] split?, ProcessGroup|DeviceMesh group?, \z
  ProcessGroup|DeviceMesh mesh?, ProcessGroup|DeviceMesh data_parallel?, bool recompute=false)", function(self, o)
  self._group = mesh.group_of(o.mesh or o.group, "pipeline")
  self._data_parallel = o.data_parallel and mesh.group_of(o.data_parallel, "pipeline")
  local layers, rank = layers_of(o.layers), self._group.rank
  self.schedule = schedule(o.schedule, self._group.size, o.microbatches, { each = o.each })
  local sizes = sizes_of(#layers, self.schedule.stages, o.split)
  local stage_of, at = {}, 0
  self.stages = {}
  for s, n in ipairs(sizes) do
    for i = at + 1, at + n do stage_of[i] = s end
    at = at + n
  end
  self._shared = shared_of(self, layers, stage_of)
  local mine = {}
  for i, l in ipairs(layers) do
    local s = stage_of[i]
    if self.schedule.place[s] == rank then
      local module = Module.is(l[2]) and l[2] or l[2]()
      if not Module.is(module) then check.fail(WHERE .. "element %d gave no module but %s", i, class.name(module)) end
      self:add_module(l[1], module)
      mine[s] = mine[s] or {}
      table.insert(mine[s], module)
    end
  end
  local splits = false
  for _, a in ipairs(self.schedule[rank]) do splits = splits or a.op == "W" end
  for s = 1, self.schedule.stages do
    if self.schedule.place[s] == rank then self.stages[s] = Stage(s, mine[s], o.recompute, splits) end
  end
  self._edges = Edges(self._group)
end)

-- A batch in m parts, as lists of tensors; their numbers of rows.
local function parts(x, m, what)
  local list = moth.is_tensor(x) and { x } or x
  if type(list) ~= "table" or not moth.is_tensor(list[1]) then
    check.fail("[distributed.pipeline.step] %s: expected a tensor or a list of tensors on this rank, got %s", what,
      class.name(x))
  end
  local n, out, rows = list[1]:size(1), {}, {}
  if n < m then
    check.fail("[distributed.pipeline.step] %s: %d rows are too few for %d micro-batches", what, n, m)
  end
  for i = 1, m do
    local from = math.floor(n * (i - 1) / m)
    rows[i], out[i] = math.floor(n * i / m) - from, {}
    for k, t in ipairs(list) do out[i][k] = t:narrow(1, from + 1, rows[i]) end
  end
  return out, rows, n
end

local function count(list)
  local n = 0
  for k in each(list) do n = math.max(n, k) end
  return n
end

-- Gradients of shared parameters that were there before a step, which are sums already.
local function set_aside(self)
  local before = {}
  for i, s in ipairs(self._shared) do before[i], s.parameter.grad = s.parameter.grad or false, nil end
  return before
end

-- Gradients of shared parameters: the first of their ranks adds them up, in the order of the ranks, and gives the sum
-- to the others.
local function add_shared(self, before)
  local function rank(r) return self._group.ranks[r + 1] end
  local function add(s, p, was)
    local first, o = s.ranks[1], { group = self._group, tag = SHARED }
    if not p.grad then p.grad = moth.zeros_like(p) end
    if self._group.rank ~= first then
      messages.send(p.grad, rank(first), o)
      messages.recv(p.grad, rank(first), o)
    else
      local other = moth.empty_like(p.grad)
      for i = 2, #s.ranks do
        messages.recv(other, rank(s.ranks[i]), o)
        p.grad:add_(other)
      end
      for i = 2, #s.ranks do messages.send(p.grad, rank(s.ranks[i]), o) end
    end
    if was then p.grad:add_(was) end
  end
  for i, s in ipairs(self._shared) do
    if s.parameter:requires_grad() then moth.no_grad(add, s, s.parameter, before[i]) end
  end
end

-- The mean of the gradients over the ranks that have the same layers and other parts of the batch.
local function average(self)
  local group, by = self._data_parallel, {}
  for _, p in ipairs(self:parameters()) do
    if p:requires_grad() then
      if not p.grad then p.grad = moth.zeros_like(p) end
      local name = p:dtype().name
      by[name] = by[name] or {}
      table.insert(by[name], p.grad)
    end
  end
  local kinds = {}
  for name in each(by) do kinds[#kinds + 1] = name end
  table.sort(kinds)
  moth.no_grad(function()
    for _, name in ipairs(kinds) do
      local flat, at = {}, 1
      for i, g in ipairs(by[name]) do flat[i] = g:reshape(-1) end
      flat = moth.cat(flat)
      collectives.all_reduce(flat, { op = "avg", group = group })
      for _, g in ipairs(by[name]) do
        g:copy_(flat:narrow(1, at, g:numel()):view(g.shape))
        at = at + g:numel()
      end
    end
  end)
end

-- The interpreter: does the actions of this rank's list, in order.
local function perform(self, x, y, lossf, sums)
  local s, edges, rank = self.schedule, self._edges, self._group.rank
  local m, last = s.micro_batches, s.stages
  local inputs, targets, rows, n
  if s.place[1] == rank then inputs = parts(x, m, "x") end
  if s.place[last] == rank then targets, rows, n = parts(y, m, "y") end
  local results, total = {}, nil
  local function key(what, stage, micro) return what .. stage .. "." .. micro end
  -- What action `what` of another stage has given, here or on another rank.
  local function given(what, stage, micro)
    local name = key(what, stage, micro)
    if s.place[stage] ~= rank then return edges:take(name, s.place[stage]) end
    local r = results[name]
    results[name] = nil
    return r.list, r.n
  end
  local function keep(what, a, list, places) results[key(what, a.stage, a.micro)] = { list = list, n = places } end

  local act = {}
  function act.F(a)
    local list = a.stage == 1 and inputs[a.micro] or given("F", a.stage - 1, a.micro)
    local loss
    if a.stage == last then
      local weight = sums and 1 or rows[a.micro] / n
      loss = function(...) return lossf((...), unpack(targets[a.micro])):mul(weight) end
    end
    local out, value = self.stages[a.stage]:forward(a.micro, list, a.stage == 1, false, loss)
    if value then
      total = total and total + value or value
    else
      keep("F", a, out, #out)
    end
  end
  local function backward(a, method)
    local gradients
    if a.stage < last then gradients = given("B", a.stage + 1, a.micro) end
    local grads = self.stages[a.stage][method](self.stages[a.stage], a.micro, gradients)
    if a.stage > 1 then keep("B", a, grads, count(grads)) end
  end
  function act.B(a) backward(a, "backward") end
  function act.I(a) backward(a, "backward_inputs") end
  function act.W(a) self.stages[a.stage]:backward_weights(a.micro) end
  function act.SEND(a)
    local name = key(a.what, a.stage, a.micro)
    local r = results[name]
    results[name] = nil
    edges:send(r.list, r.n, a.peer)
  end
  function act.RECV(a) edges:expect(key(a.what, a.stage, a.micro), a.peer) end

  for _, a in ipairs(s[rank]) do
    edges:progress()
    act[a.op](a)
  end
  edges:flush()
  return total
end

--- Forward and backward of a batch, which adds to the gradients. lossf(result, y): a mean over the rows (sum = true: a
-- sum). Returns the loss of the whole batch, on all ranks. x and y: a tensor, or a list of tensors, of which the first
-- dimension is cut into micro-batches of nearly the same size.
Pipeline.step = signature.method("distributed.pipeline.step(any x?, any y?, callable lossf, *, bool sum=false)",
function(self, x, y, lossf, sum)
  local before = set_aside(self)
  local total = perform(self, x, y, lossf, sum)
  add_shared(self, before)
  if self._data_parallel then average(self) end
  local value = total or moth.empty {}
  local root = self._group.ranks[self.schedule.place[self.schedule.stages] + 1]
  local loss = value:to(moth.float32)
  collectives.broadcast(loss, root, { group = self._group })
  return loss
end)

--- Scales the gradients so that the norm of those of all stages, as one vector, is at most max_norm; returns the norm
-- before. (nn.utils.clip_grad_norm_ sees the layers of this rank.) All ranks call it.
Pipeline.clip_grad_norm_ = signature.method("distributed.pipeline.clip_grad_norm_(number max_norm, \z
  number norm_type=2)", function(self, most, kind)
  local own, elsewhere = {}, {}
  for _, s in ipairs(self._shared) do elsewhere[s.parameter] = s.ranks[1] ~= self._group.rank end -- counted once
  for _, p in ipairs(self:parameters()) do if not elsewhere[p] then own[#own + 1] = p end end
  local infinite, norm = kind == math.huge, utils.grad_norm(own, kind):reshape(1)
  local total = infinite and norm or norm:pow(kind)
  collectives.all_reduce(total, { op = infinite and "max" or "sum", group = self._group })
  total = (infinite and total or total:pow(1 / kind)):reshape({})
  utils.clip_grads_with_norm_(self:parameters(), most, total)
  return total
end)

--- The result of a batch, on the rank of the last stage; nil on the others. For evaluation: nothing is recorded.
function Pipeline:forward(...)
  local s, rank, list = self.schedule, self._group.rank, { ... }
  local edges = self._edges
  return moth.no_grad(function()
    for stage = 1, s.stages do
      if s.place[stage] == rank then
        if stage > 1 and s.place[stage - 1] ~= rank then
          edges:expect("E" .. stage, s.place[stage - 1])
          list = edges:take("E" .. stage, s.place[stage - 1])
        end
        list = self.stages[stage]:forward(0, list, true, true)
        if stage == s.stages then
          edges:flush()
          return unpack(list)
        elseif s.place[stage + 1] ~= rank then
          edges:send(list, #list, s.place[stage + 1])
        end
      end
    end
    edges:flush()
  end)
end

--- Prints who does what when (dist.schedule); pipe.schedule:picture():save("x.svg") draws it.
function Pipeline:print_schedule() print(self.schedule) end

function Pipeline:__tostring()
  local own = {}
  for s = 1, self.schedule.stages do if self.stages[s] then own[#own + 1] = s end end
  return ("Pipeline(%s, rank %d of %d: stage %s of %d, %d micro-batches)"):format(self.schedule.name, self._group.rank,
    self._group.size, table.concat(own, ", "), self.schedule.stages, self.schedule.micro_batches)
end

return Pipeline
