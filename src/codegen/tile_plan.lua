-- Prepares a program of the tile IR for printing: what nobody needs goes, and of every block it is decided where it is
-- computed. A block is computed element by element within the loop of the statement that needs it (a store, a
-- reduction, an assignment: a sink), unless
--   - two sinks need it, or one in an inner loop, and it is not cheap to compute again;
--   - it reads memory or a variable that a statement before the sink may write.
-- Then it is an array, filled by a loop of its own before the first statement that needs it (`before` of that one).
-- prog: { body, class = { [root] = number } }: parameters of one class may share memory.
local tile = require "moth.codegen.tile"

local M = {}

local views = { broadcast = true, expand = true, permute = true, reshape = true }
local own = { reduce = true, scan = true, dot = true, atomic = true } -- sinks that have a result
M.views, M.own = views, own

-- ---- what is needed -----------------------------------------------------------------------------

local function walk(list, parent, loop, f)
  for _, s in ipairs(list) do
    s.list, s.parent, s.loop = list, parent, loop
    f(s)
    if s.op == "for" or s.op == "loop" then
      walk(s.body, s, s, f)
      if s.index then s.index.loop = s end
    elseif s.op == "if" then
      walk(s.yes, s, loop, f)
      walk(s.no, s, loop, f)
    end
  end
end

local effects = { store = true, atomic = true, barrier = true, ["break"] = true, ["return"] = true, loop = true }

local function sweep(list)
  local kept = 0
  for i, s in ipairs(list) do
    list[i] = nil
    if s.live then
      kept = kept + 1
      list[kept] = s
      if s.body then sweep(s.body) end
      if s.yes then sweep(s.yes) sweep(s.no) end
    end
  end
end

local function drop_dead(prog)
  local assigns, roots = {}, {}
  walk(prog.body, nil, nil, function(s)
    if s.op == "assign" then
      assigns[s.var] = assigns[s.var] or {}
      table.insert(assigns[s.var], s)
    end
    if effects[s.op] then roots[#roots + 1] = s end
  end)
  local stack = roots
  while #stack > 0 do
    local s = table.remove(stack)
    if not s.live then
      s.live = true
      for i = 1, tile.OPERANDS do
        if s[i] then stack[#stack + 1] = s[i] end
      end
      if s.parent then stack[#stack + 1] = s.parent end
      if s.op == "var" then
        for _, a in ipairs(assigns[s.var] or {}) do stack[#stack + 1] = a end
        s.var.live = true
      end
    end
  end
  sweep(prog.body)
end

-- ---- where blocks are computed ------------------------------------------------------------------

local light = { add = 1, sub = 1, mul = 1, neg = 1, lt = 1, le = 1, gt = 1, ge = 1, eq = 1, ne = 1, bitwise_and = 1,
  bitwise_or = 1, bitwise_xor = 1, logical_not = 1, maximum = 2, minimum = 2, abs = 1, div_floor = 6, remainder = 6,
  shift_left = 1, shift_right = 1 }
local LIGHT = 14 -- what is cheap enough to be computed again

local function cost(n)
  if n.cost then return n.cost end
  local c = math.huge
  if #n.shape == 0 or n.op == "const" then
    c = 0
  elseif n.op == "arange" then
    c = 1
  elseif views[n.op] or n.op == "cast" or n.op == "where" or n.op == "apply" then
    c = n.op == "reshape" and 4 or n.op == "apply" and (light[n.name] or math.huge) or views[n.op] and 0 or 1
    for _, x in ipairs(n) do c = c + cost(x) end
  end
  n.cost = c
  return c
end

-- The statement of a list that contains s.
local function ancestor(s, list)
  while s.list ~= list do s = s.parent end
  return s
end

local function place_arrays(prog, sinks)
  local changed
  local visit

  local function killed(n, sink, identical)
    local k = n.killer
    if not k or sink.at < (k.leader or k).at then return false end
    if (k.leader or k) == sink and sink.together then
      return not identical or n.op == "load" and not (k.root == n.root and k[1] == n[1])
    end
    if sink ~= k then return true end
    if n.op == "var" then return not identical end
    return not (identical and k.op == "store" and k.root == n.root and k[1] == n[1])
  end

  local function place(n, sink)
    n.placed = true
    local first = sink
    if n.killer and n.killer.at < sink.at then first = n.killer end
    local t = ancestor(first.of or first, n.list)
    if n.early and n.early.at < t.at then t = n.early end
    n.where = t
    t.before = t.before or {}
    table.insert(t.before, n)
    t.filling = t.filling or { of = t, at = t.at - 0.5, loop = t.loop, list = t.list, parent = t.parent }
    for _, x in ipairs(n) do visit(x, t.filling, true) end
  end

  -- identical: elements are needed at the positions of the sink's loop.
  function visit(n, sink, identical)
    if #n.shape == 0 or own[n.op] then return end
    if n.array then
      if not n.placed then
        place(n, sink)
      else -- what is filled early, before it is overwritten, may need others early, too
        local t = ancestor(sink.of or sink, n.list)
        if t.at < n.where.at then n.early, changed = t, true end
      end
      return
    end
    if n.op == "var" then
      if killed(n, sink, identical) then n.array, changed = true, true end
    elseif views[n.op] then
      visit(n[1], sink, false)
    elseif cost(n) <= LIGHT then
      for _, x in ipairs(n) do visit(x, sink, identical) end
    elseif n.sink and (n.sink ~= sink or n.identical ~= identical) or n.loop ~= sink.loop
      or n.op == "load" and killed(n, sink, identical) then
      n.array, changed = true, true
    elseif not n.sink then
      n.sink, n.identical = sink, identical
      for _, x in ipairs(n) do visit(x, sink, identical) end
    end
  end

  repeat
    changed = false
    walk(prog.body, nil, nil, function(s)
      s.before, s.filling, s.sink, s.placed = nil, nil, nil, nil
    end)
    for _, s in ipairs(sinks) do
      local sink = s.leader or s -- those that share a loop are one
      for i = 1, tile.OPERANDS do
        local x = s[i]
        if x and s.op == "dot" and i < 3 then
          -- Products read their factors many times.
          if #x.shape > 0 and not own[x.op] and not x.array and (x.op ~= "var" or killed(x, s, false)) then
            x.array, changed = true, true
          end
          visit(x, s, false)
        elseif x and not (s.inplace and i == 3) then
          visit(x, sink, s.op ~= "scan" or not s.reverse)
        end
      end
    end
  until not changed
  walk(prog.body, nil, nil, function(s)
    if s.before then table.sort(s.before, function(a, b) return a.id < b.id end) end
  end)
end

-- A product that is added to a variable which becomes it is added in place.
local function find_inplace(prog)
  local uses, user = {}, {}
  walk(prog.body, nil, nil, function(s)
    for i = 1, tile.OPERANDS do
      if s[i] then uses[s[i]], user[s[i]] = (uses[s[i]] or 0) + 1, s end
    end
  end)
  walk(prog.body, nil, nil, function(s)
    local acc, a = s.op == "dot" and s[3], user[s]
    if acc and acc.op == "var" and uses[acc] == 1 and uses[s] == 1 and a.op == "assign" and a.var == acc.var
      and a.list == s.list then
      s.inplace, a.skip = acc.var, true
    end
  end)
end

-- What changes nothing in a reduction.
local nothing = { sum = 0, any = 0, prod = 1, all = 1, max = -math.huge, min = math.huge }

-- Whether a reduction of where(mask, x, what changes nothing) may share a loop; `joins`: whether any may.
local function may_join(s, joins)
  local x = s.op == "reduce" and joins and #s.shape == 0 and s[1]
  if not x or x.op ~= "where" or #x.shape ~= 1 or not nothing[s.kind] then return false end
  local other = x[3]
  while other.op == "broadcast" do other = other[1] end
  return other.op == "const" and other.value == nothing[s.kind]
end

-- What a store or an assignment of a block writes to, its mask, and whether it can share a loop. A reduction writes to
-- itself.
local function target_of(s, prog, joins)
  if s.op == "store" then return s.distinct and s or prog.class[s.root], s[3] end
  if may_join(s, joins) then return s, s[1][1] end
  if s.op ~= "assign" or s.skip then return nil end
  local x = s[1]
  return s.var, x.op == "where" and x[3].op == "var" and x[3].var == s.var and x[1] or nil
end

local function loop_shape(s) return s.op == "reduce" and s[1].shape or s.shape end

local moves = { apply = true, cast = true, where = true, broadcast = true, param = true, program_id = true,
  num_programs = true, index = true, load = true, var = true }

-- Stores, assignments and reductions of one shape and mask that follow each other share a loop, if they write to
-- different memory; scalars between them are computed ahead, or behind where they need a reduction's result.
local function join_stores(prog, list, joins)
  local i = 1
  while i <= #list do
    local s = list[i]
    if s.body then join_stores(prog, s.body, joins) end
    if s.yes then
      join_stores(prog, s.yes, joins)
      join_stores(prog, s.no, joins)
    end
    local target, mask = target_of(s, prog, joins)
    if target and #loop_shape(s) > 0 then
      local written, group, ahead, rest, k = { [target] = true }, { s }, {}, {}, i + 1
      local behind, late, set = {}, {}, {} -- late: what the loop gives; set: variables that are assigned behind it
      late[s] = s.op == "reduce" or nil
      while list[k] do
        local one = list[k]
        local to, its_mask = target_of(one, prog, joins)
        local is_late = one.op == "var" and set[one.var] or false
        for m = 1, tile.OPERANDS do is_late = is_late or one[m] and late[one[m]] or false end
        if to and #loop_shape(one) > 0 then
          if is_late or its_mask ~= mask or written[to] or not tile.same(loop_shape(one), loop_shape(s)) then break end
          written[to] = true
          group[#group + 1] = one
          rest[#rest + 1] = one
          late[one] = one.op == "reduce" or nil
        elseif one.op == "load" and written[prog.class[one.root]] or one.op == "var" and written[one.var] then
          break
        elseif one.op == "assign" and not one.skip and is_late then
          behind[#behind + 1] = one
          set[one.var] = true
        elseif not one.shape or own[one.op] or effects[one.op] or one.op == "assign" then
          break
        elseif #one.shape > 0 or one.op == "const" then
          if is_late then break end
          rest[#rest + 1] = one
        elseif moves[one.op] then
          local where = is_late and behind or ahead
          where[#where + 1] = one
          late[one] = is_late or nil
        else
          break
        end
        k = k + 1
      end
      if #group > 1 then
        s.together = group
        for m = 2, #group do group[m].leader = s end
        local at = i
        for _, part in ipairs { ahead, { s }, rest, behind } do
          for _, one in ipairs(part) do
            list[at] = one
            at = at + 1
          end
        end
        i = k - 1
      end
    end
    i = i + 1
  end
end

--- Prepares a program. Each live statement gets `at`, its number; blocks that are arrays get `array`; statements
-- `before`, the arrays that are filled ahead of them. stay: blocks that are to stay arrays (tile.lua) are; joins:
-- reductions may share loops.
function M.prepare(prog, stay, joins)
  drop_dead(prog)
  find_inplace(prog)
  join_stores(prog, prog.body, joins)
  local at, all, sinks = 0, {}, {}
  walk(prog.body, nil, nil, function(s)
    at = at + 1
    s.at, all[at] = at, s
    s.array = s.stay and stay or nil
    if (own[s.op] or s.op == "store" or s.op == "assign" and not s.skip) then
      local blocks = #s.shape > 0
      for k = 1, tile.OPERANDS do blocks = blocks or s[k] and #s[k].shape > 0 end
      if blocks then sinks[#sinks + 1] = s end
    end
    if own[s.op] and #s.shape > 0 then s.array = true end
  end)
  for i, n in ipairs(all) do
    if n.shape and #n.shape > 0 and (n.op == "load" or n.op == "var") then
      for k = i + 1, #all do
        local s = all[k]
        if n.op == "var" then
          if s.op == "assign" and s.var == n.var and not s.skip or s.inplace == n.var then n.killer = s break end
        elseif (s.op == "store" or s.op == "atomic") and prog.class[s.root] == prog.class[n.root]
          or s.op == "barrier" then
          n.killer = s
          break
        end
      end
    end
  end
  place_arrays(prog, sinks)
end

return M
