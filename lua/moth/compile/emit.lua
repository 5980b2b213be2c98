--- Writes the program of a group of calls (moth.compile.fuse) in the tile IR: parameters, axes, values, loops. How a
-- program goes over its axes is told by emit_maps.lua and emit_reductions.lua, which add to this class.
local dtypes = require "moth.codegen.dtypes"
local lower = require "moth.compile.lower"
local tile = require "moth.codegen.tile"

local is_value = lower.is_value
local i64, f32, f64, bool = dtypes.int64, dtypes.float32, dtypes.float64, dtypes.bool

local Emit = {}
Emit.__index = Emit

-- ---- parameters -------------------------------------------------------------------------------------

-- A new parameter: arg = { value = }, { number = }, { size = } or { scratch = }.
function Emit:param(arg, name)
  local index = #self.params
  local p = { name = name or "a" .. index, index = index }
  local node
  if arg.value or arg.scratch then
    p.pointer, p.d = true, arg.value and arg.value.facts.dtype or dtypes[arg.scratch]
    self.class[index] = index + 1
    node = index
  else
    p.float, p.integer = arg.float or nil, not arg.float or nil
    local b = self.b
    b.ids = b.ids + 1
    node = { op = "param", index = index, d = arg.float and f64 or i64, shape = {}, weak = true, id = b.ids }
    table.insert(self.head, node) -- at the top, wherever it is first needed
  end
  self.params[#self.params + 1] = p
  self.args[#self.args + 1] = arg
  return node
end

function Emit:pointer(v)
  v = self.same[v] or v
  if not self.roots[v] then self.roots[v] = self:param { value = v } end
  return self.roots[v]
end

function Emit:size(n) return self:param { size = n } end

-- ---- axes -------------------------------------------------------------------------------------------

-- Strides by axis of a value whose dimensions lie on `axes`, the last ones on the last.
local function strides_of(v, axes)
  local out, shift = {}, #axes - #v.facts.shape
  for k, size in ipairs(v.facts.shape) do
    local axis = axes[k + shift]
    if size > 1 and axis then out[axis] = v.facts.stride[k] end
  end
  return out
end

-- The ways that a group's calls read and write memory: self.reads[call][v] and self.writes[v], strides by axis.
function Emit:accesses()
  local g, all = self.group, {}
  self.reads, self.writes = {}, {}
  local function read(call, v, axes)
    if g.info[v] then return end
    local a = { value = v, strides = strides_of(v, axes) }
    self.reads[call] = self.reads[call] or {}
    self.reads[call][v] = a
    all[#all + 1] = a
  end
  for _, call in ipairs(g.calls) do
    if call.map then
      for _, v in ipairs(call.map.operands) do
        if is_value(v) then read(call, v, g.info[call.results[1]].axes) end
      end
    elseif call.reduce then
      read(call, call.reduce.x, lower.plain_axes(call.reduce.x.facts.shape))
    end
  end
  for _, v in ipairs(g.results) do
    local a = { value = v, strides = strides_of(v, g.info[v].axes), row = g.info[v].level == "row" }
    self.writes[v] = a
    all[#all + 1] = a
  end
  return all
end

-- self.axes: the axes of the iteration, { size, reduced }, outer ones first; each access gets `steps`, its strides of
-- them.
function Emit:iteration()
  local g, all, order = self.group, self:accesses(), {}
  for i, size in ipairs(g.shape) do
    if size > 1 then order[#order + 1] = i end
  end
  if not g.dims then
    local first = self.writes[g.results[1]]
    if first then
      table.sort(order, function(a, b)
        local x, y = first.strides[a] or 0, first.strides[b] or 0
        if x ~= y then return x > y end
        return a < b
      end)
    end
  end
  local begins = {} -- axes along which lists are put together: no outer one is joined with them
  for _, call in ipairs(g.calls) do
    local axis = call.map and call.map.cat and g.info[call.results[1]].axes[call.map.dim]
    if axis then begins[axis] = true end
  end
  local axes = {}
  self.place_of = {} -- of an axis of the group: which of `axes` it is the first in, and the elements of one step there
  for _, a in ipairs(all) do a.steps = {} end
  for _, i in ipairs(order) do
    local last = axes[#axes]
    local reduced, size = g.dims and g.dims[i] or false, g.shape[i]
    local joined = last ~= nil and last.reduced == reduced and not begins[i]
    for _, a in ipairs(all) do
      joined = joined and (a.row and reduced or a.steps[#axes] == (a.strides[i] or 0) * size)
    end
    if joined then
      last.size, last.within = last.size * size, last.within * size
    else
      axes[#axes + 1] = { size = size, reduced = reduced, within = 1 }
      self.place_of[i] = #axes
    end
    for _, a in ipairs(all) do a.steps[#axes] = a.strides[i] or 0 end
  end
  if #axes == 0 then
    axes[1] = { size = 1, reduced = false, within = 1 }
    for _, a in ipairs(all) do a.steps[1] = 1 end
  end
  self.axes = axes
  return all
end

-- ---- values -----------------------------------------------------------------------------------------

function Emit:add(x, y) return self.b:binary("add", x, y) end
function Emit:mul(x, y) return self.b:binary("mul", x, y) end
function Emit:const(v) return self.b:const(v) end

-- The quotient and the remainder of scalars, neither negative.
function Emit:split(x, y)
  local q = self.b:apply("div_floor", i64, i64, false, x, y)
  return q, self.b:binary("sub", x, self:mul(q, y))
end

-- The offset of an access at `at`: positions by axis, scalars or a block.
function Emit:offset(a, at)
  local scalar, block
  a.params = a.params or {}
  for k in ipairs(self.axes) do
    local step, i = a.steps[k], at[k]
    if step ~= 0 and i then
      if step ~= 1 then
        a.params[k] = a.params[k] or self:param { size = step }
        i = self:mul(i, a.params[k])
      end
      if #i.shape == 0 then
        scalar = scalar and self:add(scalar, i) or i
      else
        block = block and self:add(block, i) or i
      end
    end
  end
  if scalar and block then return self:add(scalar, block) end
  return scalar or block or self:const(0)
end

-- Formulas in which an operand that is one number for all may be computed with ahead of the loop: no addition in them
-- could take up a product.
local apart = {}
for name in ("mul div maximum minimum eq ne lt le gt ge where masked_fill relu neg abs"):gmatch("%S+") do
  apart[name] = true
end
local function is_apart(f)
  return apart[f.op.name] or (f.op.name == "add" or f.op.name == "sub") and f.parameters[1] == 1
end

-- Formulas that cannot take a product of an operand up into a sum of theirs.
local closed = {}
for name in ([[mul div maximum minimum eq ne lt le gt ge where masked_fill relu abs square sqrt sigmoid tanh silu floor
  ceil round trunc sign]]):gmatch("%S+") do closed[name] = true end

-- Whether the product at the end of a map's formula may be contracted with what follows: where nothing in the group
-- could do it, or where eager's bits are not asked for, behind a reduction.
function Emit:is_free(v)
  local known = self.free[v]
  if known == nil then
    known = true
    for _, call in ipairs(not self.group.info[v].late and self.group.calls or {}) do
      for _, x in ipairs(call.map and call.map.operands or call.view and { call.args[1] } or {}) do
        if x == v then known = known and call.map ~= nil and (call.map.copy or closed[call.map.op.name]) or false end
      end
    end
    self.free[v] = known
  end
  return known
end

-- An operand of a map at a place: { at, mask, memo, reduced }.
function Emit:operand(call, v, here)
  local a = self.reads[call] and self.reads[call][v]
  if not a then return self:value(v, here) end
  local offset = self:offset(a, here.at)
  local d, mask = v.facts.dtype, #offset.shape > 0 and here.mask or nil
  local key = ("%d %d"):format(self:pointer(v), offset.id)
  local known = here.memo[key]
  if not known then
    known = self.b:load(self:pointer(v), d, offset, mask)
    here.memo[key] = known
  end
  return known
end

-- An element of a list that is put together: the piece that it lies in is read, the others are not.
function Emit:put_together(call, here)
  local f, b = call.map, self.b
  local axis = self.place_of[self.group.info[call.results[1]].axes[f.dim]]
  local within, at = self.axes[axis].within, here.at[axis]
  local result
  for i = #f.cat, 1, -1 do
    local v = f.operands[i]
    local lo, hi = f.cat[i] * within, (f.cat[i] + v.facts.shape[f.dim]) * within
    local moved = { unpack(here.at, 1, #self.axes) }
    if lo > 0 then moved[axis] = b:binary("sub", at, self:size(lo)) end
    local inside = i < #f.cat and b:binary("lt", at, self:size(hi)) or nil
    local there = inside
    if lo > 0 then
      local behind = b:binary("ge", at, self:size(lo))
      there = there and b:binary("bitwise_and", behind, there) or behind
    end
    local offset = self:offset(self.reads[call][v], moved)
    if #offset.shape > 0 then -- of a tile the two may lie along different axes
      if here.mask then there = b:binary("bitwise_and", here.mask, there) end
    elseif #at.shape > 0 then
      there = nil -- the same element for all, which is there
    end
    local x = b:load(self:pointer(v), v.facts.dtype, offset, there)
    result = result and b:where(inside, x, result) or x
  end
  return result
end

function Emit:map(call, here)
  local v = call.results[1]
  local f, b, out = call.map, self.b, v.facts.dtype
  if f.copy then return b:cast(self:operand(call, f.operands[1], here), out) end
  if f.cat then return self:put_together(call, here) end
  local d = f.dtype
  local compute, list = d.form ~= 0 and f32 or d, {}
  for i, operand in ipairs(f.operands) do
    local x
    if is_value(operand) then
      x = self:operand(call, operand, here)
      if i ~= f.mask then x = b:cast(x, d) end
    else
      x = self:numbered(call, i, operand, d)
    end
    if i == f.mask then
      x = b:cast(x, bool)
    else
      x = b:cast(x, compute)
    end
    list[#list + 1] = here.stay and not is_apart(f) and #x.shape == 0 and here.stay(x) or x
  end
  for i, number in ipairs(f.parameters) do
    if is_apart(f) and f.op.name ~= "masked_fill" and number == 1 then
      list[#list + 1] = b:const(1, compute)
    else
      list[#list + 1] = b:cast(self:numbered(call, -i, number, compute), compute)
    end
  end
  local truth = out.name == "bool"
  local name = f.name
  local late = self.group.info[v].late
  if name == "div" and d.is_float and late and #list[2].shape == 0 and #list[1].shape > 0 then
    name = "mul" -- one division for the row
    list[2] = b:exact("div", compute, compute, b:const(1, compute), list[2])
  end
  local node = { op = "apply", exact = self:is_free(v) and "free" or "kept", name = name, compute = compute,
    d = truth and bool or compute }
  node.shape = b:shapes(unpack(list))
  for i, x in ipairs(list) do node[i] = b:broadcast(x, node.shape) end
  return b:cast(b:pure(node), out)
end

-- A number of a call: one parameter, however often it is emitted.
function Emit:numbered(call, i, v, d)
  local key = call.at .. " " .. i
  self.numbers[key] = self.numbers[key] or self:param { number = v, float = d.is_float }
  return self.b:cast(self.numbers[key], d)
end

--- The node of a value of the group at a place.
function Emit:value(v, here)
  local known = here.memo[v]
  if known then return known end
  local call = v.call
  local node
  if call.map then
    node = self:map(call, here)
  elseif call.view then
    node = self:value(call.args[1], here)
  else
    node = here.reduced[v]
  end
  here.memo[v] = node
  return node
end

-- ---- stages -----------------------------------------------------------------------------------------

-- How many reductions lie below a value.
function Emit:stage(v)
  local known = self.stages[v]
  if known then return known end
  local s, call = 0, v.call
  if self.group.info[v] then
    if call.reduce then
      s = self:stage(call.reduce.x) + 1
    elseif call.view then
      s = self:stage(call.args[1])
    else
      for _, x in ipairs(call.map.operands) do
        if is_value(x) then s = math.max(s, self:stage(x)) end
      end
    end
  end
  self.stages[v] = s
  return s
end

local accumulator = {
  sum = function(d) return d.is_float and f64 or i64 end,
  prod = function(d) return d.is_float and f64 or i64 end,
  max = function(d) return tile.computed(d) end, min = function(d) return tile.computed(d) end,
  any = function() return bool end, all = function() return bool end,
}
local joined = { sum = "add", prod = "mul", max = "maximum", min = "minimum", any = "bitwise_or", all = "bitwise_and" }

-- What no elements give, as a number.
local function nothing(join, d)
  if join == "sum" or join == "any" then return 0 end
  if join == "prod" or join == "all" then return 1 end
  if d.is_float then return join == "max" and -math.huge or math.huge end
  if d.class == "bool" then return join == "max" and 0 or 1 end
end

function Emit:nothing(join, d)
  local v = nothing(join, d)
  return v and self.b:const(v, d) or self.b:exact(join == "max" and "lowest" or "highest", d, d)
end

function Emit:loop(lo, hi, step, body)
  local b = self.b
  b:enter()
  local index = b:put { op = "index", d = i64, shape = {}, weak = true }
  body(index)
  local list = b:leave()
  b:put { op = "for", b:cast(lo, i64), b:cast(hi, i64), step = step, index = index, body = list }
end

-- A variable of an accumulator.
function Emit:variable(join, d, shape)
  local var = self.b:var()
  var.d, var.shape = accumulator[join](d), shape
  self.b:assign(var, self.b:broadcast(self:nothing(join, var.d), shape))
  return var
end

-- Where mask is true, if there is one.
function Emit:gather(var, join, x, mask)
  local b = self.b
  local was = b:read(var)
  local new = b:apply(joined[join], var.d, var.d, false, was, x)
  b:assign(var, mask and b:where(mask, new, was) or new)
end

-- The masked elements of a block, joined; as the accumulator's dtype.
function Emit:joined(join, x, mask, d)
  local b = self.b
  local computed = (join == "any" or join == "all") and bool or tile.computed(x.d)
  if computed.class == "bool" and join ~= "any" and join ~= "all" and join ~= "max" and join ~= "min" then
    computed = i64
  end
  x = b:cast(x, computed)
  if #x.shape == 0 then x = b:broadcast(x, mask.shape) end
  local none = self:nothing(join, computed)
  local kind = computed.class == "bool" and (join == "max" and "any" or join == "min" and "all") or join
  return b:cast(b:reduce(kind, b:where(mask, x, b:broadcast(none, x.shape)), 1), d)
end

-- ---- programs ---------------------------------------------------------------------------------------

-- distinct: other stores to the same memory are of other elements.
function Emit:store(v, here, distinct)
  local a = self.writes[v]
  local x = self:value(v, here)
  local offset = self:offset(a, here.at)
  if #offset.shape == 0 and #x.shape > 0 then error("a result without an offset for each element", 0) end
  local s = self.b:store(self:pointer(v), v.facts.dtype, offset, x, #offset.shape > 0 and here.mask or nil)
  s.distinct = distinct
end

-- All values first, so that the stores share a loop.
function Emit:stores(list, here, distinct)
  for _, v in ipairs(list) do self:value(v, here) end
  for _, v in ipairs(list) do self:offset(self.writes[v], here.at) end
  for _, v in ipairs(list) do self:store(v, here, distinct) end
end

-- Positions of the axes that `wanted` picks, from the flat number of a program: the last is the fastest.
function Emit:positions(flat, wanted, at)
  local list = {}
  for k, axis in ipairs(self.axes) do
    if wanted(axis, k) then list[#list + 1] = k end
  end
  for i = #list, 2, -1 do
    local rest
    self.sizes[list[i]] = self.sizes[list[i]] or self:param { size = self.axes[list[i]].size }
    flat, rest = self:split(flat, self.sizes[list[i]])
    at[list[i]] = rest
  end
  if list[1] then at[list[1]] = flat end
end

function Emit:axis_size(k)
  self.sizes[k] = self.sizes[k] or self:param { size = self.axes[k].size }
  return self.sizes[k]
end

-- The elements of a block of axis k. On a GPU a program has no more threads than its blocks have work for.
function Emit:block(k)
  local n = self.knobs.block
  while self.group.device ~= "cpu" and n > 32 and n / 2 >= self.axes[k].size do n = n / 2 end
  self.biggest = n
  return n
end

-- Goes over axis k in blocks, from lo to hi (nil: all of it).
function Emit:blocks(k, lo, hi, block, here, body)
  local b = self.b
  hi = hi or self:axis_size(k)
  self:loop(lo or self:const(0), b:binary("sub", hi, self:const(1)), block, function(start)
    local at = { unpack(here.at, 1, #self.axes) }
    at[k] = self:add(start, b:pure { op = "arange", d = i64, shape = { block }, lo = 0 })
    body { at = at, mask = b:binary("lt", at[k], hi), memo = setmetatable({}, { __index = here.rows }),
      reduced = here.reduced, stay = here.stay, rows = here.rows }
  end)
end

local function minimum(self, x, y)
  local b = self.b
  return b:where(b:binary("lt", x, y), b:cast(x, i64), b:cast(y, i64))
end

Emit.is_apart, Emit.accumulator, Emit.join_formula, Emit.minimum = is_apart, accumulator, joined, minimum

return Emit
