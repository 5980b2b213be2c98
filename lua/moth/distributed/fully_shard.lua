--- fully_shard: a module whose parameters, gradients and optimizer's state are cut over the ranks of a group; whole
-- parameters are there while a unit computes only.
--
--     for _, block in ipairs(model.blocks:children()) do dist.fully_shard(block, { mesh = mesh.dp }) end
--     dist.fully_shard(model, { mesh = mesh.dp })              -- what is left: the outermost module comes last
--     local opt = optim.AdamW(model:parameters(), { lr = 1e-3 })
--     loss_of(model(x), y):backward(); opt:step()              -- as one process; each rank has its part of the batch
--
-- Each call makes a unit of the module's parameters that are in no other unit. They become their shards in place: rows
-- of the first dimension, as torch.chunk cuts it; names and handles stay. Before the unit's forward, and before its
-- backward, its parameters are gathered in one call; the next unit's are on their way meanwhile. Behind its forward,
-- and behind its backward, they are released; gradients are averaged over the ranks, and are those of the shards.
--
-- A mesh of two dimensions shards along the second, and has replicas along the first (HSDP).
local B = require "moth_lua"
local around = require "moth.autograd.around"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local groups = require "moth.distributed.group"
local mesh = require "moth.distributed.mesh"
local moth = require "moth"
local objects = require "moth.distributed.objects"
local Ordered = require "moth.nn.ordered"
local Parameter = require "moth.nn.parameter"
local placement = require "moth.distributed.placement"
local recorded = require "moth.distributed.fully_shard_recorded"
local signature = require "moth.utils.signature"

local M = {}

-- Of the binding; those of fake parameters are objects (fully_shard_fake.lua).
local U = {}
for name, fn in each(B.unit) do
  U[name] = function(handle, ...)
    if type(handle) == "table" then return handle[name](handle, ...) end
    return fn(handle, ...)
  end
end
local WHERE = "[distributed.fully_shard] "

-- A module keeps its unit: a table with weak keys would keep both for ever, as a unit refers to its module.
local function unit_at(module) return rawget(module, "_fsdp_unit") end
local owner = setmetatable({}, { __mode = "k" })      -- parameter -> the name of its unit's module
local neighbors = setmetatable({}, { __mode = "v" })  -- number of a group -> a handle of a unit

-- The units of a model, from its first forward on: what has run in which order. `forward`: the order in the last pass;
-- `now`: in this one; `backward`: units in the order in which their forwards ended, since the last backward.
local Tree = class("Tree")
function Tree:__init() self.units, self.depth, self.forward, self.now, self.backward = {}, 0, nil, {}, {} end

-- A unit -----------------------------------------------------------------------------------------------

local Unit = class("Unit")

-- Puts the whole parameters where the modules look for them, or the shards.
local function put(unit, list)
  for i, places in ipairs(unit.places) do
    for _, place in ipairs(places) do place[1]:put_registered("_parameters", place[2], list[i]) end
  end
end
local function show(unit, whole)
  unit.is_shown = whole
  put(unit, whole and unit.full or unit.shards)
end

-- All ranks have the same units. Asked once, but not by fake tensors.
local function compare(tree, root)
  if B.is_fake(moth.empty(1)) then return end
  tree.is_compared = true
  local mine = {}
  for _, unit in ipairs(tree.units) do
    for _, p in ipairs(unit.shards) do
      local place = placement.of(p)
      mine[#mine + 1] = ("unit %s: %s [%s]"):format(unit.name, p:dtype().name, table.concat(place.shape, ", "))
    end
  end
  for rank, theirs in ipairs(objects.all_gather_object(mine, { group = root.group })) do
    for i = 1, math.max(#mine, #theirs) do
      if mine[i] ~= theirs[i] then
        check.fail(WHERE .. "the modules of the ranks differ: parameter %d is %s on rank %d, and %s on rank %d", i,
          mine[i] or "not there", root.group.ranks[root.group.rank + 1], theirs[i] or "not there",
          root.group.ranks[rank])
      end
    end
  end
end

-- The units below a module that no unit has called, named by their paths. Those that were called by themselves before
-- are its own from now on.
local function adopt(root)
  local tree = Tree()
  for path, m in root.module:named_modules() do
    local unit = unit_at(m)
    if unit and (not unit.tree or unit.tree.depth == 0) then
      unit.tree, tree.units[#tree.units + 1] = tree, unit
      unit.name = path == "" and root.module.__name or path
      U.set_name(unit.handle, unit.name)
      if unit.is_auto then unit.reshard_after_forward = unit ~= root end
    end
  end
end

local function end_of_forward(tree)
  for _, unit in ipairs(tree.units) do -- gathered ahead, but not called
    if U.state(unit.handle) == "gathering" then U.reshard(unit.handle) end
  end
  tree.forward, tree.now = tree.now, {}
end

local function end_of_backward(tree, message)
  tree.in_backward, tree.at, tree.backward = false, nil, {}
  for _, unit in ipairs(tree.units) do unit.waiting = 0 end
  if message then
    for _, unit in ipairs(tree.units) do
      B.comm.group_break(unit.group.handle, ("backward failed on rank %d: %s"):format(unit.group.ranks[unit.group.rank
        + 1], tostring(message)))
    end
    for _, unit in ipairs(tree.units) do U.abandon(unit.handle) end
    return
  end
  for _, unit in ipairs(tree.units) do U.flush(unit.handle) end
  for _, unit in ipairs(tree.units) do
    if unit.reshard_after_backward and not tree.is_kept then U.reshard(unit.handle) end
  end
  for _, unit in ipairs(tree.units) do U.finish(unit.handle) end
end

function Unit:enter()
  if not self.tree then adopt(self) end
  local tree = self.tree
  if not tree.is_compared and tree.depth == 0 then compare(tree, self) end
  tree.depth = tree.depth + 1
  U.ready(self.handle)
  show(self, true)
  if tree.in_backward then return end -- a checkpoint computes it again
  local now, order = tree.now, tree.forward
  now[#now + 1] = self
  local next_one = self.prefetch_forward
  if not next_one and order then
    if order[#now] == self then next_one = { order[#now + 1] } else tree.forward = nil end
  end
  for _, unit in ipairs(next_one or {}) do U.gather(unit.handle) end
end

function Unit:leave()
  local tree = self.tree
  tree.depth = tree.depth - 1
  show(self, false)
  if tree.in_backward then return end
  if B.grad_enabled() then tree.backward[#tree.backward + 1] = self end
  if self.reshard_after_forward then U.reshard(self.handle) end
  if tree.depth == 0 then end_of_forward(tree) end
end

-- A backward through the units has begun. Of one that is recorded (create_graph) whole parameters are kept, as another
-- one reads them, which may come to the parameters without passing a result of a unit.
local function begin_backward(tree)
  if tree.in_backward then return end
  tree.in_backward, tree.is_kept = true, B.grad_enabled()
  B.queue_callback(function(message) end_of_backward(tree, message) end)
  local weak = setmetatable({ tree = tree }, { __mode = "v" })
  for _, unit in ipairs(tree.is_kept and tree.units or {}) do
    U.set_after_backward(unit.handle, unit.sync, false)
    for _, p in ipairs(unit.is_watched and {} or unit.full) do
      if B.requires_grad(p) then
        p:register_hook(function() if weak.tree then begin_backward(weak.tree) end end)
      end
    end
    unit.is_watched = true
  end
end

-- While a checkpoint inside of the unit computes again.
local function enter_again(unit)
  if not unit.tree then adopt(unit) end -- of a compiled call
  if B.current_pass() then begin_backward(unit.tree) end
  U.ready(unit.handle)
  local was = unit.is_shown
  show(unit, true)
  return { unit, was }
end
local function leave_again(state) show(state[1], state[2]) end

-- Called by the first gradient of a result.
function Unit:before_backward()
  local tree = self.tree
  begin_backward(tree)
  U.ready(self.handle)
  local order, next_one = tree.backward, self.prefetch_backward
  if not next_one then
    for i = tree.at or #order, 1, -1 do
      if order[i] == self then
        tree.at, next_one = i, { order[i - 1] }
        break
      end
    end
  end
  for _, unit in ipairs(next_one or {}) do
    if unit ~= self then U.gather_later(unit.handle) end
  end
end

--- Whole parameters of the shards' dtype where the modules look for them; and back: with `write`, what they are then
-- goes into the shards. All ranks call it.
function Unit:show_whole()
  local whole = {}
  for i, p in ipairs(self.shards) do
    whole[i] = Parameter(placement.full_tensor(p), { requires_grad = B.requires_grad(p) })
  end
  put(self, whole)
  return whole
end
function Unit:hide_whole(whole, write)
  put(self, self.shards)
  for i, p in ipairs(write and self.shards or {}) do
    moth.no_grad(function() p:copy_(placement.fitted(whole[i]:detach(), p)) end)
  end
end

-- fn(tensor) for the tensors among values, also in tables, and objects that are no modules.
local function each_tensor(v, fn, depth)
  if B.is_tensor(v) then
    fn(v)
  elseif type(v) == "table" and depth < 8 and (check.is_plain(v) or not v.__module) then
    for _, inner in each(v) do each_tensor(inner, fn, depth + (check.is_plain(v) and 1 or 3)) end
  end
end

local function converted(v, dtype, depth)
  if B.is_tensor(v) then
    return B.tensor_dtype(v).is_floating_point and B.tensor_dtype(v) ~= dtype and v:to(dtype) or v
  elseif type(v) == "table" and depth < 8 and getmetatable(v) == nil then
    local copy = {}
    for key, inner in each(v) do copy[key] = converted(inner, dtype, depth + 1) end
    return copy
  end
  return v
end

local function convert_all(dtype, n, ...)
  local list = { ... }
  for i = 1, n do list[i] = converted(list[i], dtype, 0) end
  return unpack(list, 1, n)
end

-- Frozen parameters, and those of a reentrant checkpoint inside, are read in backward after the last gradient of a
-- parameter has come, until those of the inputs are there: then they are released, or at the end of backward.
local function watch_inputs(unit, inputs)
  local late, release = around.now().reentrant, unit.reshard_after_backward
  for _, p in ipairs(unit.shards) do late = late or not B.requires_grad(p) end
  U.set_after_backward(unit.handle, unit.sync, release and not late)
  if not (late and release and B.grad_enabled()) then return end
  for i = 1, inputs.n do
    each_tensor(inputs[i], function(t)
      if B.requires_grad(t) and not B.is_leaf(t) then
        unit.waiting = unit.waiting + 1
        t:register_hook(function()
          unit.waiting = unit.waiting - 1
          if unit.waiting == 0 and unit.tree.in_backward then U.reshard(unit.handle) end
        end)
      end
    end, 0)
  end
end

local function finish(unit, inputs, outer, ok, ...)
  if ok then watch_inputs(unit, inputs) end
  around.pop(outer)
  unit:leave()
  if not ok then error((...), 0) end
  if B.grad_enabled() then
    for i = 1, select("#", ...) do
      each_tensor((select(i, ...)), function(t)
        if B.requires_grad(t) and not B.is_leaf(t) then
          t:register_hook(function() unit:before_backward() end)
        end
      end, 0)
    end
  end
  return ...
end

local function forward_of(unit, forward)
  local mp = unit.mp
  local function run(module, ...)
    if mp.param_dtype and mp.cast_forward_inputs then
      return forward(module, convert_all(mp.param_dtype, select("#", ...), ...))
    end
    return forward(module, ...)
  end
  local function out(...)
    if mp.output_dtype then return convert_all(mp.output_dtype, select("#", ...), ...) end
    return ...
  end
  -- While ops are recorded; the places are shards again when it is over.
  local function compiled(outer, ok, ...)
    around.pop(outer)
    show(unit, false)
    if not ok then error((...), 0) end
    return out(...)
  end
  return function(module, ...)
    if B.compile.recording() then
      local reason = recorded.reason(unit)
      if not reason then
        recorded.gather(unit)
        return compiled(around.push(enter_again, leave_again, unit), pcall(run, module, ...))
      end
      B.compile.break_graph(("fully_shard: unit %s: %s"):format(unit.name, reason))
    end
    unit:enter()
    local inputs = { n = select("#", ...), ... }
    return out(finish(unit, inputs, around.push(enter_again, leave_again, unit), pcall(run, module, ...)))
  end
end

-- Making it --------------------------------------------------------------------------------------------

-- The parameters below a module that are in no unit, a list; the places of each: { { module, name }, … }; the modules.
local function collect(module, ignored)
  local params, places, at, seen, modules = {}, {}, {}, {}, {}
  local function visit(m)
    if seen[m] or m ~= module and unit_at(m) then return end
    seen[m], modules[#modules + 1] = true, m
    for name, p in Ordered.items(m:registry("_parameters")) do
      if owner[p] then
        check.fail(WHERE .. "parameter '%s' of nn.%s is shared with %s, which is a unit of its own: shard the module \z
          that holds both first", name, m.__name, owner[p])
      end
      if not ignored[p] then
        if not at[p] then
          params[#params + 1] = p
          at[p], places[#params] = #params, {}
        end
        table.insert(places[at[p]], { m, name })
      end
    end
    for _, child in Ordered.items(m:registry("_modules")) do visit(child) end
  end
  visit(module)
  return params, places, modules
end

local function is_fake(t) return B.is_fake(t) end

-- Gives the fake parameters and buffers of modules memory and values, one module at a time, calling
-- take(p, whole parameter) for each parameter before the next module comes.
local function materialize(modules, init, device, take)
  for _, m in ipairs(modules) do
    local own, buffers = {}, {}
    for name, p in Ordered.items(m:registry "_parameters") do
      if is_fake(p) then
        own[#own + 1] = { name, p }
        m:put_registered("_parameters", name, Parameter(moth.empty(p.shape, { dtype = p:dtype(), device = device })))
      end
    end
    for name, b in Ordered.items(m:registry "_buffers") do
      if is_fake(b) then
        local t = moth.zeros(b.shape, { dtype = b:dtype(), device = device })
        buffers[#buffers + 1] = { name, t, B.version(t) }
        m:put_registered("_buffers", name, t)
      end
    end
    if #own + #buffers > 0 then
      if init then
        init(m)
      elseif m.reset then
        m:reset()
      else
        check.fail(WHERE .. "nn.%s has fake %s and no method reset: give init_fn, a function that gives a module's \z
          tensors their first values", m.__name, #own > 0 and "parameters" or "buffers")
      end
    end
    for _, buffer in ipairs(buffers) do
      local name, t, version = unpack(buffer)
      if m._buffers[name] == t and not is_fake(t) and t:numel() > 0 and B.version(t) == version then
        check.fail(WHERE .. "%s gave the fake buffer '%s' of nn.%s no value: fill it there (init_fn, or the module's \z
          reset), or make the module outside of fake_mode", init and "init_fn" or "reset", name, m.__name)
      end
    end
    for _, pair in ipairs(own) do
      local whole = m._parameters[pair[1]]
      m:put_registered("_parameters", pair[1], pair[2])
      take(pair[2], whole)
      B.free(whole)
    end
  end
end

-- The shard of p takes the place of its elements.
local function shard(unit, p, source, o)
  local cut = { group = unit.group, dim = 1, parts = 1, unit = 1 }
  local before = placement.of(p)
  local shape = before and before.shape or p.shape
  local cuts = {}
  for i, c in ipairs(before and before.cuts or {}) do cuts[i] = c end
  cuts[#cuts + 1] = cut
  local scalar = #shape == 0
  if scalar then shape = { 1 } end
  local rows = source:detach()
  if scalar then rows = rows:reshape(1) end
  local part = unit.group.size == 1 and rows:contiguous() or placement.part(rows, cut)
  if o.offload then part = part:to("cpu") end
  B.set_data(p, part)
  B.free(rows) -- handles: memory is not to wait for the collector
  if unit.group.size > 1 then B.free(part) end
  placement.set(p, shape, cuts)
  placement.of(p).scalar = scalar or nil
  placement.set_replicas(p, unit.replicas)
end

local policies = { param_dtype = "dtype", reduce_dtype = "dtype", output_dtype = "dtype", cast_forward_inputs = "bool" }

local function policy(mp)
  local o = check.options(WHERE .. "mp", mp, "param_dtype reduce_dtype output_dtype cast_forward_inputs")
  local out = { cast_forward_inputs = true }
  for key, value in each(o) do
    if policies[key] == "dtype" then
      if not (B.is_dtype(value) and value.is_floating_point) then
        check.fail(WHERE .. "mp.%s: expected a floating-point dtype, got %s", key, tostring(value))
      end
    elseif type(value) ~= "boolean" then
      check.fail(WHERE .. "mp.%s: expected true or false, got %s", key, tostring(value))
    end
    out[key] = value
  end
  return out
end

local function groups_of(v)
  if type(v) == "table" and getmetatable(v) == mesh.DeviceMesh and #v.shape == 2 then
    return v:group(2), v:group(1)
  end
  return mesh.group_of(v, "fully_shard"), nil
end

-- The ranks among which a unit's parameters stay cut behind forward: n that follow each other. All ranks call it.
local parts = setmetatable({}, { __mode = "k" }) -- group -> { [n] = the group of this rank }
local function part_of(group, n)
  parts[group] = parts[group] or {}
  if not parts[group][n] then
    local lists = {}
    for first = 1, group.size, n do
      local list = {}
      for i = first, first + n - 1 do list[#list + 1] = group.ranks[i] end
      lists[#lists + 1] = list
    end
    parts[group][n] = groups.split_group(lists)
  end
  return parts[group][n]
end

-- how: true, false, or a number of ranks.
local function set_reshard(unit, how)
  local size, part = unit.group.size, nil
  if type(how) == "number" then
    if how ~= math.floor(how) or how < 1 or size % how ~= 0 then
      check.fail(WHERE .. "reshard_after_forward: %g does not divide the %d ranks of the mesh", how, size)
    end
    if how > 1 and how < size then part = part_of(unit.group, how) end
    how = how > 1
  end
  unit.reshard_after_forward = how
  U.set_part(unit.handle, type(unit.handle) == "table" and part or part and part.number)
end

local function methods(module, unit)
  --- Gathers, or releases, the parameters of this module's unit; while they are gathered, module._parameters has them.
  function module.unshard()
    U.ready(unit.handle)
    show(unit, true)
  end
  function module.reshard()
    show(unit, false)
    U.reshard(unit.handle)
  end
  local function all(fn)
    for _, m in ipairs(module:modules()) do if unit_at(m) then fn(unit_at(m)) end end
  end
  --- With false, backward only adds to whole gradients on this rank; the next one with true reduces the sum.
  function module:set_requires_gradient_sync(on)
    all(function(u)
      u.sync = on ~= false
      U.set_after_backward(u.handle, u.sync, u.reshard_after_backward and u.waiting == 0)
    end)
    return self
  end
  function module:set_reshard_after_forward(on)
    if on == nil then on = true end
    all(function(u)
      set_reshard(u, on)
      u.is_auto = false
    end)
    return self
  end
  function module:set_reshard_after_backward(on)
    all(function(u) u.reshard_after_backward = on ~= false end)
    return self
  end
  local function prefetches(key)
    return function(self, list)
      unit[key] = {}
      for i, m in ipairs(list) do
        unit[key][i] = unit_at(m) or check.fail(WHERE .. "%s: element %d is no module of fully_shard", key, i)
      end
      return self
    end
  end
  for name, what in each { convert = "move it, or convert it,", clone = "copy it" } do
    module[name] = function()
      check.fail(WHERE .. "nn.%s is cut over ranks: %s before fully_shard", module.__name, what)
    end
  end
  module.set_modules_to_forward_prefetch = prefetches "prefetch_forward"
  module.set_modules_to_backward_prefetch = prefetches "prefetch_backward"
end

--- Makes a unit of a module's parameters, in place; returns the module. All ranks of the mesh call it.
-- mesh: a mesh of one dimension, or of two (replicas, shards), or a group; default: all ranks
-- reshard_after_forward: release parameters behind forward, too (ZeRO-3), or keep them until backward is over (ZeRO-2);
-- default: true, but false for the outermost module, whose backward begins at once. A number n that divides the ranks:
-- behind forward each rank keeps a part of 1 / n, and backward gathers from n neighbours, as those of one host, alone
-- mp: { param_dtype, reduce_dtype, output_dtype, cast_forward_inputs = true }: parameters are gathered, and computed
-- with, in param_dtype, gradients are reduced in reduce_dtype; shards keep their own dtype
-- offload: shards, and so the optimizer's state, stay in the host's memory
-- ignored_params: a list of parameters that stay as they are
-- init_fn: of fake parameters (moth.fake_mode(function() return Net() end)): function(module), which gives them values;
-- default: module:reset(). One module is whole at a time. Within fake_mode they stay fake, for dist.record.
M.fully_shard = signature("distributed.fully_shard(Module module, *, DeviceMesh|ProcessGroup mesh?, \z
  bool|count reshard_after_forward?, table mp?, bool offload=false, list ignored_params?, callable init_fn?)",
function(module, o)
  if unit_at(module) then check.fail(WHERE .. "nn.%s is a unit already", module.__name) end
  local unit = Unit()
  unit.group, unit.replicas = groups_of(o.mesh)
  unit.module, unit.name, unit.mp = module, module.__name, policy(o.mp)
  unit.reshard_after_backward, unit.sync = true, true
  unit.offload = o.offload
  unit.is_auto, unit.waiting = o.reshard_after_forward == nil, 0
  local ignored = {}
  for _, p in ipairs(o.ignored_params or {}) do ignored[p] = true end
  local modules
  unit.shards, unit.places, modules = collect(module, ignored)
  local device
  for i, p in ipairs(unit.shards) do
    device = device or p:device()
    if not B.is_leaf(p) then check.fail(WHERE .. "parameter %d of nn.%s is no leaf", i, module.__name) end
    if p:dtype().is_complex then
      check.fail(WHERE .. "parameter '%s' of nn.%s is %s: keep it as real numbers (moth.view_as_real), or name it in \z
        ignored_params", unit.places[i][1][2], unit.places[i][1][1].__name, p:dtype().name)
    end
  end
  moth.no_grad(function()
    local shapes, real = {}, {}
    for i, p in ipairs(unit.shards) do shapes[p], real[i] = { unpack(p.shape) }, not is_fake(p) end
    materialize(modules, o.init_fn, device, function(p, whole) shard(unit, p, whole, o) end)
    unit.full = {}
    local dtypes, same = {}, unit.group.size == 1
    for i, p in ipairs(unit.shards) do
      if real[i] then shard(unit, p, p, o) end
      dtypes[i] = unit.mp.param_dtype and p:dtype().is_floating_point and unit.mp.param_dtype or p:dtype()
      same = same and dtypes[i] == p:dtype() and p:device() == device
    end
    for i, p in ipairs(unit.shards) do -- of one rank the whole is the shard
      local whole = same and p:detach():reshape(shapes[p])
        or moth.empty(shapes[p], { dtype = dtypes[i], device = device })
      unit.full[i] = Parameter(whole, { requires_grad = p:requires_grad() })
      owner[p] = unit.name
    end
  end)
  local number = unit.group.number
  if unit.full[1] and is_fake(unit.full[1]) then
    unit.handle = require "moth.distributed.fully_shard_fake"(unit, unit.mp.reduce_dtype)
  else
    unit.handle = B.unit.new(number, unit.replicas and unit.replicas.number, unit.full, unit.shards, unit.name,
      unit.mp.reduce_dtype, neighbors[number])
    neighbors[number] = unit.handle
  end
  set_reshard(unit, o.reshard_after_forward)
  rawset(module, "_fsdp_unit", unit)
  module.forward = forward_of(unit, module.forward)
  methods(module, unit)
  rawset(module, "__name", "FSDP" .. module.__name)
  return module
end, true)

--- Lets another method of a unit than forward have whole parameters, as forward does: a module's `generate`, or `loss`.
M.register_fsdp_forward_method = signature("distributed.register_fsdp_forward_method(Module module, \z
  string method_name)", function(module, name)
  local unit = unit_at(module)
  if not unit then
    check.fail("[distributed.register_fsdp_forward_method] nn.%s is no unit: call fully_shard first", module.__name)
  elseif not check.is_callable(module[name]) then
    check.fail("[distributed.register_fsdp_forward_method] nn.%s has no method '%s'", module.__name, name)
  end
  module[name] = forward_of(unit, module[name])
end)

--- The unit of a module, or nil; for files of this folder.
function M.unit(module) return unit_at(module) end

return M
