--- Which calls become one kernel. A group computes maps and reductions over one iteration shape:
--
--   full   values with an element for each element of that shape
--   row    reductions over some of its dimensions, all groups' the same, and maps of such results
--
-- Dimensions of a value are matched with the axes of the shape; views that only order them in another way, add or drop
-- some of size 1, or repeat a value, belong to the group. A group runs where its first user stands that is not in it,
-- so all that it reads has been made. It is open until then: a call joins the open groups whose values it uses, or one
-- that reads the same operand over the same shape, and groups that a call joins become one.
local each = require "moth.each"
local lower = require "moth.compile.lower"

local M = {}

local each_value, same = lower.each_value, lower.same

-- Most calls and operands of a group: gcc takes long for more, and their pointers no longer fit the registers.
local CALLS, OPERANDS = 96, 24
-- A reduction whose rows are fewer and longer is shared by several programs, and nothing behind it can join.
M.ROWS, M.LENGTH = 16, 65536
M.SHORT = 16 -- rows for which loops are not worth while, either

local function leader(g)
  while g and g.into do g = g.into end
  return g
end

local function group_of(v)
  local g = v.call and v.call.group and leader(v.call.group)
  return g and not g.closed and g.info[v] and g or nil
end

-- ---- axes -------------------------------------------------------------------------------------------

-- The axes of a view of a value with `axes`, by sizes and strides; nil where it is no such view.
local function view_axes(view, base, axes)
  local seen, count = {}, 1
  local out = {}
  for i, size in ipairs(view.shape) do
    out[i] = false
    if size > 1 and view.stride[i] ~= 0 then
      for k, other in ipairs(base.shape) do
        if other == size and base.stride[k] == view.stride[i] and not seen[k] then
          out[i], seen[k] = axes[k], true
          break
        end
      end
      count = count * size
    end
  end
  local wanted = 1
  for k, size in ipairs(base.shape) do
    if size > 1 and base.stride[k] ~= 0 then wanted = wanted * size end
    if size > 1 and base.stride[k] ~= 0 and not seen[k] then return nil end
  end
  return count == wanted and out or nil
end

-- Whether the group reduces its last axis, and has rows enough to give each a program of its own.
local function shape_of(g)
  local last, rows, length = 0, 1, 1
  for i, size in ipairs(g.shape) do
    if size > 1 then
      last = i
      if g.dims[i] then length = length * size else rows = rows * size end
    end
  end
  local by_row = g.dims[last] or false
  return by_row, by_row and length >= M.SHORT and (rows >= M.ROWS or length <= M.LENGTH), rows, length
end
M.shape_of = shape_of

-- ---- joining ----------------------------------------------------------------------------------------

-- What a map would be in a group: { axes, level, late }; nil: it does not fit.
local function map_in(g, call)
  local shape, axes, used, late = call.results[1].facts.shape, {}, {}, false
  for i = 1, #shape do axes[i] = false end
  for _, v in ipairs(call.map.operands) do
    local info = lower.is_value(v) and group_of(v) == g and g.info[v]
    if info and call.map.cat then return nil end -- its elements lie elsewhere
    if info then
      late = late or info.late
      local shift = #shape - #v.facts.shape
      for k, size in ipairs(v.facts.shape) do
        local axis = info.axes[k]
        if size ~= 1 and axis then
          if axes[k + shift] and axes[k + shift] ~= axis or used[axis] and used[axis] ~= k + shift then return nil end
          axes[k + shift], used[axis] = axis, k + shift
        end
      end
    end
  end
  for i, size in ipairs(shape) do
    if size ~= 1 and not axes[i] then
      if #shape ~= #g.shape or g.shape[i] ~= size or used[i] then return nil end
      axes[i], used[i] = i, i
    end
    if size == 1 and axes[i] then return nil end
  end
  local full, row = true, g.dims ~= nil
  for i, size in ipairs(g.shape) do
    if size ~= 1 then
      full = full and used[i] ~= nil
      if g.dims then row = row and (used[i] ~= nil) == not g.dims[i] end
    end
  end
  if full then
    if late and not select(2, shape_of(g)) then return nil end
    return { axes = axes, level = "full", late = late }
  end
  return row and { axes = axes, level = "row", late = true } or nil
end

local function reduce_in(g, call)
  local x = call.reduce.x
  local info, dims, axes, any = g.info[x], {}, {}, false
  local own = info and info.axes or lower.plain_axes(x.facts.shape)
  if info and info.level ~= "full" or not info and not same(x.facts.shape, g.shape) then return nil end
  for k, size in ipairs(x.facts.shape) do
    axes[k] = false
    if size > 1 then
      if not own[k] then return nil end
      if call.reduce.dims[k] then
        dims[own[k]], any = true, true
      else
        axes[k] = own[k]
      end
    end
  end
  if not any then return nil end
  if g.dims then
    for i = 1, #g.shape do
      if g.dims[i] ~= dims[i] then return nil end
    end
  end
  if info and info.late then
    if not select(2, shape_of(g)) then return nil end
  end
  return { axes = axes, level = "row", late = true }, dims
end

local function view_in(g, call)
  local x = call.args[1]
  local info = g.info[x]
  if not info then return nil end
  local axes = view_axes(call.results[1].facts, x.facts, info.axes)
  return axes and { axes = axes, level = info.level, late = info.late }
end

-- ---- writes to inputs -------------------------------------------------------------------------------

-- Whether a group reads what input x shows, but for the elements that `call` writes there, each at its place.
local function reads(g, x, call, info)
  for v in each(g.reads) do
    if lower.root(v) == x then
      if v ~= x or not call then return true end
      for _, c in ipairs(g.calls) do
        local y = c.results[1]
        local fits = c.map and same(y.facts.shape, x.facts.shape) and same(g.info[y].axes, info.axes)
        for _, operand in ipairs(c.map and c.map.operands or { c.args[1] }) do
          if operand == x and not fits then return true end
        end
      end
    end
  end
  return false
end

-- Whether a group reads an input that another writes to.
local function conflict(g, other)
  for _, x in ipairs(other.written or {}) do
    if reads(g, x) then return true end
  end
  return false
end

-- What a call would be in group g; nil: it does not fit.
local function place(g, call)
  if call.results[1].facts.device ~= g.device then return nil end
  if #g.calls >= CALLS or g.noperands >= OPERANDS then return nil end
  if call.into then
    local info = not g.dims and map_in(g, call)
    return info and info.level == "full" and not reads(g, call.into, call, info) and info or nil
  end
  if call.map then return map_in(g, call) end
  if call.reduce then
    if g.written then return nil end
    return reduce_in(g, call)
  end
  if call.view then return view_in(g, call) end
end

-- Whether two groups can become one.
local function can_merge(a, b)
  if (a.written or b.written) and (a.dims or b.dims or conflict(a, b) or conflict(b, a)) then return false end
  if a.key ~= b.key or #a.calls + #b.calls > CALLS or a.noperands + b.noperands > OPERANDS then
    return false
  end
  if a.dims and b.dims then
    for i = 1, #a.shape do
      if a.dims[i] ~= b.dims[i] then return false end
    end
  end
  return true
end

-- A value without elements belongs to no group: its dimension of size 0 lies on no axis of one, no more than one of
-- size 1 does, so that a view of no element would be taken for one of all.
local function is_able(call)
  return (call.map or call.reduce or call.view) and #call.results == 1
    and lower.numel(call.results[1].facts.shape) > 0
end

-- The steps of calls.
local function build(calls)
  local steps, open = {}, {} -- open groups by their device and shape, in order
  local function key_of(shape, device) return device .. " " .. table.concat(shape, " ") end
  local function shut(g)
    local list = open[g.key]
    for i, other in ipairs(list) do
      if other == g then table.remove(list, i) break end
    end
  end
  local function close(g)
    if g.closed then return end
    g.closed = true
    shut(g)
    steps[#steps + 1] = g
  end
  local function merge(into, g)
    for _, c in ipairs(g.calls) do into.calls[#into.calls + 1] = c end
    table.sort(into.calls, function(a, b) return a.at < b.at end)
    for v, info in each(g.info) do into.info[v] = info end
    for v in each(g.reads) do into.reads[v] = true end
    into.noperands = into.noperands + g.noperands
    for _, x in ipairs(g.written or {}) do
      into.written = into.written or {}
      table.insert(into.written, x)
    end
    into.dims = into.dims or g.dims
    g.into, g.calls = into, nil
    shut(g)
  end
  local order = 0
  local function start(shape, device)
    order = order + 1
    local g = { shape = shape, device = device, calls = {}, noperands = 0, info = {}, reads = {}, order = order,
      key = key_of(shape, device) }
    open[g.key] = open[g.key] or {}
    table.insert(open[g.key], g)
    return g
  end
  local function operands_of(call)
    local list = {}
    each_value(call.map and call.map.operands or call.args, call.map and #call.map.operands or call.args.n,
      function(v) list[#list + 1] = v end)
    return list
  end
  local function add(g, call, info, dims)
    call.group = g
    g.calls[#g.calls + 1] = call
    g.info[call.results[1]] = info
    if dims then g.dims = dims end
    if call.into then
      g.written = g.written or {}
      table.insert(g.written, call.into)
    end
    for _, v in ipairs(operands_of(call)) do
      if not g.info[v] and not g.reads[v] then
        g.reads[v] = true
        g.noperands = g.noperands + 1
      end
    end
  end
  -- An open group that reads an operand of a call over its shape. Parts of a fused op do not join for that alone: its
  -- own kernel reads its operands once, too.
  local function beside(call, shape)
    local list, operands = open[key_of(shape, call.results[1].facts.device)] or {}, operands_of(call)
    for _, g in ipairs(list) do
      for _, v in ipairs(operands) do
        if g.reads[v] and same(v.facts.shape, shape) then return g end
      end
    end
  end
  local function close_all(which)
    local list = {}
    for _, groups in each(open) do
      for _, g in ipairs(groups) do
        if not which or which(g) then list[#list + 1] = g end
      end
    end
    table.sort(list, function(a, b) return a.order < b.order end)
    for _, g in ipairs(list) do close(g) end
  end
  local users, epoch = {}, {} -- of values; how many barriers come before a call
  local begun, done = {}, {} -- calls that are looked at, and those that have a place
  local barriers = 0
  for _, call in ipairs(calls) do
    call.group = nil
    if call.barrier then barriers = barriers + 1 end
    epoch[call] = barriers
    if is_able(call) and not call.into then
      each_value(call.args, call.args.n, function(v)
        users[v] = users[v] or {}
        table.insert(users[v], call)
      end)
    end
  end
  local function is_ready(call)
    local ready = true
    each_value(call.args, call.args.n, function(v) ready = ready and (not v.call or done[v.call] or false) end)
    return ready
  end
  local visit
  -- A call is about to close a group: those behind it that can join come first.
  local function hurry(g, before)
    local i = 1
    while not g.closed and g.calls and g.calls[i] do
      for _, call in ipairs(users[g.calls[i].results[1]] or {}) do
        if not begun[call] and epoch[call] == epoch[before] and is_ready(call) and place(g, call) then
          visit(call)
          g = leader(g)
          if g.closed then return end
        end
      end
      i = i + 1
    end
  end
  function visit(call)
    begun[call] = true
    if call.barrier and not call.into then close_all() end -- it writes to what groups may read
    local able = is_able(call)
    if not able and not call.barrier then
      each_value(call.args, call.args.n, function(v)
        local g = group_of(v)
        if g then hurry(g, call) end
      end)
    end
    local own, info, dims
    each_value(call.args, call.args.n, function(v)
      local g = group_of(v)
      if not g or g == own then return end
      if able and own and can_merge(own, g) then
        merge(own, g)
        info = nil
        return
      end
      if able and not own then info, dims = place(g, call) end
      if able and not own and info then own = g else close(g) end
    end)
    if own and not info then info, dims = place(own, call) end
    if own and not info then -- it fitted one alone
      close(own)
      own = nil
    end
    if call.into then
      close_all(function(g) return g ~= own and (not own or reads(g, call.into)) end)
    end
    if not own and able and not call.view and not call.into then
      local shape = call.map and call.results[1].facts.shape or call.reduce.x.facts.shape
      own = lower.numel(shape) > 0 and call.owner == call and beside(call, shape)
      if own then info, dims = place(own, call) end
      if not info and lower.numel(shape) > 0 then
        own = start(shape, call.results[1].facts.device)
        info, dims = place(own, call)
        if not info then shut(own) end
      end
    end
    if info then
      add(own, call, info, dims)
    else
      steps[#steps + 1] = { calls = { call } }
    end
    done[call] = true
  end
  for _, call in ipairs(calls) do
    if not begun[call] then visit(call) end
  end
  for _, call in ipairs(calls) do
    if call.group then close(leader(call.group)) end
  end
  return steps
end

-- ---- what pays --------------------------------------------------------------------------------------

-- Whether a group saves passes over memory: it computes more than what eager does in one kernel.
local function pays(g)
  local first
  for _, call in ipairs(g.calls) do
    if not call.view then
      if first and call.owner ~= first then return true end
      first = call.owner
    end
  end
  return false
end

-- Has calls run whole that were taken apart in vain: those which have a step for themselves, and composites of which
-- nothing is fused. Returns whether there were any.
local function undo(steps)
  local any, units, fused = false, {}, {}
  for _, step in ipairs(steps) do
    local does = step.info ~= nil and pays(step)
    for _, call in ipairs(step.calls) do
      if (call.map or call.reduce) and not does and call.owner ~= call and call.owner.apart ~= false then
        call.owner.apart, any = false, true
      end
      if call.unit.call ~= call then
        units[call.unit] = true
        if does then fused[call.unit] = true end
      end
    end
  end
  for unit in each(units) do
    if not fused[unit] and unit.apart ~= false then unit.apart, any = false, true end
  end
  return any
end

--- The steps of a graph's calls, in an order in which they can run: { calls = { call } }, or a group { calls, shape,
-- dims, info, results, fused = true }: results are the values that others need. outputs: values that are kept.
function M.steps(calls, outputs)
  local steps
  lower.find_idle(calls, outputs)
  repeat
    steps = build(lower.expand(calls))
  until not undo(steps)
  for _, g in ipairs(steps) do g.fused = g.info ~= nil and pays(g) end
  return M.finish(steps, outputs)
end

-- The values of steps that others need, and the outputs.
local function find_results(steps, outputs)
  local needed = {}
  for _, v in ipairs(outputs) do needed[lower.resolve(v)] = true end
  for _, step in ipairs(steps) do
    for _, call in ipairs(step.calls) do
      each_value(call.args, call.args.n, function(v)
        local g = v.call and v.call.group and leader(v.call.group)
        if v.call and (not g or g ~= step) then needed[v] = true end
      end)
    end
  end
  for _, step in ipairs(steps) do
    step.results = {}
    for _, call in ipairs(step.calls) do
      for _, v in ipairs(call.results) do
        if (needed[v] or call.into) and not (step.fused and call.moved) then step.results[#step.results + 1] = v end
      end
    end
  end
end

-- Views among the results of groups run behind them, on the memory of what they show: unless they are row-major and
-- nobody has that itself, so that they may have memory of their own. Returns the steps, and whether there were any.
local function move_views(steps)
  local out, any = {}, false
  for _, step in ipairs(steps) do
    out[#out + 1] = step
    local is_result = {}
    for _, v in ipairs(step.fused and step.results or {}) do is_result[v] = true end
    for _, call in ipairs(step.fused and step.calls or {}) do
      local v = call.results[1]
      if call.view and is_result[v] and not call.moved and (is_result[call.args[1]] or not lower.is_dense(v.facts)) then
        call.moved, any = true, true -- users in the group have no need of it
        out[#out + 1] = { calls = { call } }
      end
    end
  end
  return out, any
end

--- Finds the results of steps, and splits groups that do not pay, or that nobody needs. Returns the steps.
function M.finish(steps, outputs)
  find_results(steps, outputs)
  local out = {}
  for _, step in ipairs(steps) do
    step.fused = step.fused and #step.results > 0
    for _, call in ipairs(not step.fused and step.calls or {}) do
      call.group = nil
      out[#out + 1] = { calls = { call } }
    end
    if step.fused then out[#out + 1] = step end
  end
  local any
  repeat
    find_results(out, outputs)
    out, any = move_views(out)
  until not any
  return out
end

return M
