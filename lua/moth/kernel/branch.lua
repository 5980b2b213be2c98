--- Branches and loops of kernels: methods of the reader's Context.
local dtypes = require "moth.codegen.dtypes"
local each = require "moth.each"
local flow = require "moth.kernel.flow"
local tile = require "moth.codegen.tile"
local value = require "moth.kernel.value"

local M = {}

local const, of_node, same = value.const, value.of_node, value.same

-- ---- types of variables -------------------------------------------------------------------------

-- { d, shape, weak, root } of a value that can be a variable.
local function type_of(c, v)
  if v.k == "ptr" then return { d = v.off.d, shape = v.off.shape, weak = v.off.weak, root = v.root, of = v } end
  if v.k == "node" then return { d = v.node.d, shape = v.node.shape, weak = v.node.weak } end
  if v.k == "const" and (type(v.v) == "number" or type(v.v) == "boolean") then
    local n = c.b:const(v.v)
    return { d = n.d, shape = {}, weak = n.weak }
  end
end

local function join_types(a, b)
  if not a or not b or a.root ~= b.root then return nil end
  local d, weak
  if a.d == b.d and not a.weak == not b.weak then
    d, weak = a.d, a.weak
  elseif (a.d.class == "bool") ~= (b.d.class == "bool") then
    return nil
  else
    d, weak = tile.common({ d = a.d, weak = a.weak, shape = { 1 } }, { d = b.d, weak = b.weak, shape = { 1 } })
  end
  local shape, n = {}, math.max(#a.shape, #b.shape)
  if n > 0 then weak = nil end
  for k = 1, n do
    local x, y = a.shape[k - n + #a.shape] or 1, b.shape[k - n + #b.shape] or 1
    if x ~= y and x ~= 1 and y ~= 1 then return nil end
    shape[k] = x == 1 and y or x
  end
  if n > 0 and (a.weak or b.weak) and a.weak and b.weak then d = tile.computed(d) end
  return { d = d, shape = shape, weak = weak, root = a.root, of = a.of or b.of }
end

local function same_type(a, b)
  return a.d == b.d and not a.weak == not b.weak and tile.same(a.shape, b.shape)
end

-- The node of a value that a variable holds.
local function held(c, v) return v.k == "ptr" and v.off or c:node(v) end

-- A node as a value of a type.
local function as_value(t, node)
  if t.root then return { k = "ptr", root = t.root, d = t.of.d, name = t.of.name, off = node } end
  return of_node(node)
end

local function lost(name, a, b)
  local why = ("is %s or %s, depending on what happens before"):format(value.describe(a), value.describe(b))
  return { k = "lost", why = why, name = name }
end

-- The name of a parameter that is in a register, where it is known.
local function variable(frame, reg) return type(reg) == "number" and frame.p.params[reg + 1] or nil end

-- ---- branches ------------------------------------------------------------------------------------

local quiet = { const = true, broadcast = true, cast = true, where = true, expand = true, permute = true,
  reshape = true, arange = true, program_id = true, num_programs = true, apply = true }
local logic = { lt = true, le = true, gt = true, ge = true, eq = true, ne = true, logical_not = true,
  bitwise_and = true, bitwise_or = true }

-- Whether a list has no effects and reads nothing; whether it only compares and joins masks; whether it is so short
-- that both ways may be computed.
local function is_quiet(list)
  for _, s in ipairs(list) do if not quiet[s.op] then return false end end
  return true
end
local function only_logic(list)
  for _, s in ipairs(list) do
    if not quiet[s.op] or s.op == "apply" and not logic[s.name] then return false end
  end
  return true
end
local function is_short(list)
  if #list > 8 or not is_quiet(list) then return false end
  for _, s in ipairs(list) do if #s.shape > 0 then return false end end
  return true
end

-- Whether ways that end with these registers are those of `and` and `or`, rather than of an `if`: comparisons and
-- what is computed for them, and one way computes nothing but gives true or false.
local function is_logic(list, r, list_j, r_j, differ)
  if only_logic(list) and only_logic(list_j) then return true end
  if not (is_quiet(list) and is_quiet(list_j)) then return false end
  local short = #list == 0 and r or #list_j == 0 and r_j
  for _, reg in ipairs(short and differ or {}) do
    if short[reg].k == "const" and type(short[reg].v) == "boolean" then return true end
  end
  return false
end

-- where(c, x, y), for masks by logic.
local function choose(c, cond, x, y)
  local b = c.b
  if x.k == "const" and y.k == "const" and type(x.v) == "boolean" and type(y.v) == "boolean" then
    if x.v then return of_node(cond) end
    return of_node(b:unary("logical_not", cond))
  end
  local function mask(v) return v.k == "node" and v.node.d.class == "bool" end
  if y.k == "const" and type(y.v) == "boolean" and mask(x) then -- cond and x, not cond or x
    if not y.v then return of_node(b:binary("bitwise_and", cond, x.node)) end
    return of_node(b:binary("bitwise_or", b:unary("logical_not", cond), x.node))
  elseif x.k == "const" and type(x.v) == "boolean" and mask(y) then
    if x.v then return of_node(b:binary("bitwise_or", cond, y.node)) end
    return of_node(b:binary("bitwise_and", b:unary("logical_not", cond), y.node))
  end
  return of_node(b:where(cond, c:node(x), c:node(y)))
end

local function copy(r)
  local t = {}
  for k, v in each(r) do t[k] = v end
  return t
end

-- Reads one way of a branch into a list of its own.
function M:way(frame, pc, stop, change)
  local saved = frame.r
  frame.r = copy(saved)
  if change then frame.r[change[1]] = change[2] end
  self.b:enter()
  local alive = self:run(frame, pc, stop)
  local list, r = self.b:leave(), frame.r
  frame.r = saved
  return alive, list, r
end

--- A branch on a node. jump: the node that says whether to jump; `change`: { register, value } that a jump brings.
-- Returns where to go on, or nil where no way goes on.
function M:branch(frame, jump, target, stop, change)
  local b, pc = self.b, frame.pc
  local block = #jump.shape > 0
  local meet = flow.meeting(frame, pc + 2, target, stop)
  local alive, list, r = self:way(frame, pc + 2, meet)
  frame.pc = pc
  local function refuse()
    self:fail("`if`, `while`, `and` and `or` on a block %s: its elements differ; use tl.where(condition, a, b), \z
      a mask, or reduce it first (tl.max, tl.sum)", tile.shape_text(jump.shape))
  end
  if not alive then
    if block then refuse() end
    b:put { op = "if", b:unary("logical_not", jump), yes = list, no = {} }
    if change then frame.r[change[1]] = change[2] end
    return target
  end
  local alive_j, list_j, r_j = self:way(frame, target, meet, change)
  frame.pc = pc
  if not alive_j then
    if block then refuse() end
    b:put { op = "if", jump, yes = list_j, no = {} }
    return pc + 2
  end
  local differ = {}
  for reg, v in each(r) do
    if r_j[reg] ~= nil and not same(v, r_j[reg]) then differ[#differ + 1] = reg end
    if r_j[reg] == nil then frame.r[reg] = nil end
  end
  table.sort(differ, function(x, y) return tostring(x) < tostring(y) end)
  for reg, v in each(r) do
    if r_j[reg] ~= nil and same(v, r_j[reg]) then frame.r[reg] = v end
  end
  local merged = {}
  for _, reg in ipairs(differ) do
    merged[reg] = join_types(type_of(self, r[reg]), type_of(self, r_j[reg]))
    if not merged[reg] then frame.r[reg] = lost(variable(frame, reg), r[reg], r_j[reg]) end
  end
  if block and not is_logic(list, r, list_j, r_j, differ) then refuse() end
  if block or is_short(list) and is_short(list_j) then
    for _, way in ipairs { list, list_j } do
      for _, s in ipairs(way) do b.list[#b.list + 1] = s end
    end
    for _, reg in ipairs(differ) do
      local t = merged[reg]
      if t and t.root then
        frame.r[reg] = as_value(t, b:where(jump, held(self, r_j[reg]), held(self, r[reg])))
      elseif t then
        frame.r[reg] = choose(self, jump, r_j[reg], r[reg])
      end
    end
    return meet
  end
  -- Variables: assigned at the end of both lists.
  local outer_list, outer_known = b.list, b.known
  local function assign(way, regs)
    b:enter()
    b.list = way
    for _, reg in ipairs(differ) do
      local t = merged[reg]
      if t then b:assign(t.var, held(self, regs[reg])) end
    end
    b.list, b.known = outer_list, outer_known
  end
  for _, reg in ipairs(differ) do
    local t = merged[reg]
    if t then
      t.var = b:var()
      t.var.d, t.var.shape, t.var.weak = t.d, t.shape, t.weak
    end
  end
  assign(list, r)
  assign(list_j, r_j)
  b:put { op = "if", jump, yes = list_j, no = list }
  for _, reg in ipairs(differ) do
    local t = merged[reg]
    if t then frame.r[reg] = as_value(t, b:read(t.var)) end
  end
  return meet
end

-- Assigns a loop's variables from the registers, at the end of its body or where it is left.
function M:carry(frame, loop, leaving)
  local b = self.b
  for _, reg in ipairs(loop.order) do
    local head, v = loop.heads[reg], frame.r[reg]
    if head.type and not same(v, head.value) then
      head.changed = true
      local step = not leaving and head.step
      local t = v and v.k ~= "lost" and join_types(head.type, type_of(self, v))
      if step then
        local sum = held(self, v)
        local by = sum.op == "apply" and sum.name == "add" and sum[1] == held(self, head.value) and sum[2]
        if by and by.op == "broadcast" and #by[1].shape == 0 then
          b:assign(head.var, b:binary("add", head.count, by[1]))
        elseif by and by.op == "const" then
          b:assign(head.var, b:binary("add", head.count, by))
        else
          head.no_step, loop.again = true, true
        end
      elseif not t then
        head.lost, loop.again = lost(variable(frame, reg), head.value, v or const(nil)), true
      elseif not same_type(t, head.type) then
        head.next, loop.again = t, true
      else
        local node = held(self, v)
        -- A block that grows by the same number everywhere is one that stays and a number that grows.
        if not leaving and #head.type.shape > 0 and head.type.d == dtypes.int64 and not head.no_step
          and node.op == "apply" and node.name == "add" and node[1] == held(self, head.value)
          and (node[2].op == "broadcast" and #node[2][1].shape == 0 or node[2].op == "const") then
          head.try_step, loop.again = true, true
        end
        b:assign(head.var, node)
      end
      if leaving and (head.step or head.try_step) then head.no_step, loop.again = true, true end
    end
  end
end

--- Reads a loop: `body(loop)` reads it once, up to its end, into the current list; `finish(list)` makes the statement.
function M:loop(frame, loop, body, finish)
  local b = self.b
  local regs, before = flow.written(frame.p, loop.first, loop.last), frame.r
  loop.order, loop.heads = {}, {}
  for reg in each(regs) do
    local v = before[reg]
    if v then
      local t = v.k ~= "lost" and type_of(self, v)
      loop.order[#loop.order + 1] = reg
      loop.heads[reg] = t and { type = t, init = v } or { value = v, init = v, lost = lost(nil, v, const(nil)) }
    end
  end
  table.sort(loop.order)
  local outer = frame.loop
  for attempt = 1, 12 do
    loop.again, loop.broken = false, false
    frame.r, frame.loop = copy(before), loop
    b:enter()
    for _, reg in ipairs(loop.order) do
      local head = loop.heads[reg]
      head.changed = false
      if head.lost then
        head.type, head.value = nil, head.lost
      elseif head.keep then
        head.value = head.init
      else
        local t = head.type
        head.var = b:var()
        head.var.d, head.var.shape, head.var.weak = t.d, t.shape, t.weak
        if head.step then
          head.var.shape = {}
          head.count = b:read(head.var)
          head.value = as_value(t, b:binary("add", head.start, head.count))
        else
          head.value = as_value(t, b:read(head.var))
        end
      end
      frame.r[reg] = head.value
    end
    if body(loop) then self:carry(frame, loop) end
    local list = b:leave()
    frame.loop = outer
    for _, reg in ipairs(loop.order) do
      local head = loop.heads[reg]
      if head.type and not head.changed and not head.keep then head.keep, loop.again = true, true end
      if head.keep then head.type = nil end
    end
    if not loop.again then
      frame.r = copy(before)
      for _, reg in ipairs(loop.order) do
        local head = loop.heads[reg]
        if head.lost and not same(head.init, frame.r[reg]) then frame.r[reg] = head.lost end
        if head.lost then frame.r[reg] = head.lost end
        if head.type then b:assign(head.var, head.step and b:const(0) or held(self, head.init)) end
      end
      finish(list)
      for _, reg in ipairs(loop.order) do
        local head = loop.heads[reg]
        if head.type and head.step then
          frame.r[reg] = as_value(head.type, b:binary("add", head.start, b:read(head.var)))
        elseif head.type then
          frame.r[reg] = as_value(head.type, b:read(head.var))
        end
      end
      return
    end
    if attempt == 12 then self:fail("the types of the variables of this loop do not settle") end
    for _, reg in ipairs(loop.order) do
      local head = loop.heads[reg]
      if head.next then head.type, head.next = head.next, nil end
      if head.no_step then
        head.step, head.try_step = nil, nil
      elseif head.try_step and not head.step then
        head.step = true
        head.start = b:broadcast(b:cast(held(self, head.init), head.type.d), head.type.shape)
      end
    end
  end
end

return M
