--- A group of calls (moth.compile.fuse) as a program of the tile IR, the language of moth.kernel.
--
-- Axes that lie one behind the other in all operands are one. Then there are three ways to go over them:
--
--   flat     maps alone: a program computes CHUNK elements of the last axis; or tiles of two axes, where operands lie
--            along another one
--   rows     the last axis is reduced: a program has a row of it. It is gone over once for each stage: the values that
--            a reduction needs, then those that need its result
--   columns  another axis is reduced: a program has a block of columns, and goes down them
--
-- Where programs would be few and long, several of them share a row or the columns, for a part each. They leave their
-- sums in a scratch, and a second launch of the same kernel, with the argument `phase` 1, puts them together. How it is
-- split follows from the sizes alone, so that results do not depend on the number of threads.
local dtypes = require "moth.codegen.dtypes"
local lower = require "moth.compile.lower"
local lua_text = require "moth.codegen.tile_lua"
local tile = require "moth.codegen.tile"

local M = {}

local is_value = lower.is_value
local i64, f32, f64, bool = dtypes.int64, dtypes.float32, dtypes.float64, dtypes.bool

-- Elements of a row that one program of maps takes, and those of a block.
local CHUNK, BLOCK = 16384, 1024
-- Rows and columns of a tile, where operands lie along different axes.
local TILE = { 64, 16 }
-- Columns of a block, and elements that a program takes of what it shares with others.
local COLUMNS, SHARE = 512, 32768

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

local function plain_axes(shape)
  local axes = {}
  for i, size in ipairs(shape) do axes[i] = size > 1 and i or false end
  return axes
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
      read(call, call.reduce.x, plain_axes(call.reduce.x.facts.shape))
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
  local axes = {}
  for _, a in ipairs(all) do a.steps = {} end
  for _, i in ipairs(order) do
    local last = axes[#axes]
    local reduced, size = g.dims and g.dims[i] or false, g.shape[i]
    local joined = last ~= nil and last.reduced == reduced
    for _, a in ipairs(all) do
      joined = joined and (a.row and reduced or a.steps[#axes] == (a.strides[i] or 0) * size)
    end
    if joined then
      last.size = last.size * size
    else
      axes[#axes + 1] = { size = size, reduced = reduced }
    end
    for _, a in ipairs(all) do a.steps[#axes] = a.strides[i] or 0 end
  end
  if #axes == 0 then
    axes[1] = { size = 1, reduced = false }
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

function Emit:map(call, here)
  local v = call.results[1]
  local f, b, out = call.map, self.b, v.facts.dtype
  if f.copy then return b:cast(self:operand(call, f.operands[1], here), out) end
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

-- The axis along which an operand lies that does not lie along the last one: maps of such go over tiles of both.
function Emit:other_axis(all)
  local last = #self.axes
  for _, a in ipairs(all) do
    local step = a.steps[last]
    for k = 1, step ~= 0 and step ~= 1 and last - 1 or 0 do
      if a.steps[k] == 1 then return k end
    end
  end
end

-- Blocks of numbers that are one for all elements, made ahead of the loop.
function Emit:stay_ahead(here, shape)
  local b, last, kept = self.b, #self.axes, {}
  here.stay = function(x) return kept[x] end
  for _, call in ipairs(self.group.calls) do
    local f = call.map
    if f and not f.copy and not is_apart(f) and f.dtype.is_float then
      for i, v in ipairs(f.operands) do
        local x
        if not is_value(v) then
          x = self:numbered(call, i, v, f.dtype)
        elseif self.reads[call] and self.reads[call][v] and self.reads[call][v].steps[last] == 0 then
          x = self:operand(call, v, here)
          x = #x.shape == 0 and b:cast(x, f.dtype)
        end
        if x and i ~= f.mask then
          x = b:cast(x, f.dtype.form ~= 0 and f32 or f.dtype)
          kept[x] = kept[x] or b:stay(x, shape)
        end
      end
    end
  end
end

function Emit:tiles(other)
  local b, last = self.b, #self.axes
  local across, down = math.ceil(self.axes[last].size / TILE[2]), math.ceil(self.axes[other].size / TILE[1])
  local pid = b:pure { op = "program_id", axis = 0, d = i64, shape = {}, weak = true }
  local rest, column = self:split(pid, self:size(across))
  local more, row = self:split(rest, self:size(down))
  local at, n = {}, 1
  local function outer(_, k) return k ~= last and k ~= other end
  self:positions(more, outer, at)
  for k, axis in ipairs(self.axes) do
    if outer(axis, k) then n = n * axis.size end
  end
  local here = { at = at, memo = {}, reduced = {} }
  here.rows = here.memo
  self:stay_ahead(here, { TILE[2] })
  local function range(start, size, length)
    return self:add(self:mul(start, self:const(length)), b:pure { op = "arange", d = i64, shape = { size }, lo = 0 })
  end
  at[other] = b:expand(range(row, TILE[1], TILE[1]), 2)
  at[last] = range(column, TILE[2], TILE[2])
  here.mask = b:binary("bitwise_and", b:binary("lt", at[other], self:axis_size(other)),
    b:binary("lt", at[last], self:axis_size(last)))
  self:stores(self.group.results, here)
  self.grid, self.work = n * across * down, TILE[1] * TILE[2]
end

function Emit:flat()
  local b, last = self.b, #self.axes
  local n = self.axes[last].size
  local pieces, rows = math.max(1, math.ceil(n / CHUNK)), 1
  for k = 1, last - 1 do rows = rows * self.axes[k].size end
  local pid = b:pure { op = "program_id", axis = 0, d = i64, shape = {}, weak = true }
  local at, lo, hi = {}, nil, nil
  local row, piece = pid, nil
  if last == 1 then
    piece = pid
  elseif pieces > 1 then
    row, piece = self:split(pid, self:size(pieces))
  end
  if last > 1 then self:positions(row, function(_, k) return k < last end, at) end
  if piece then
    lo = self:mul(piece, self:const(CHUNK))
    hi = minimum(self, self:add(lo, self:const(CHUNK)), self:axis_size(last))
  end
  local here = { at = at, memo = {}, reduced = {} }
  here.rows = here.memo
  self:stay_ahead(here, { BLOCK })
  self:blocks(last, lo, hi, BLOCK, here, function(inside) self:stores(self.group.results, inside) end)
  self.grid, self.work = rows * pieces, math.min(n, CHUNK)
end

-- Reductions and full results by stage.
function Emit:by_stage()
  local reductions, fulls, most = {}, {}, 0
  for _, call in ipairs(self.group.calls) do
    if call.reduce then
      local s = self:stage(call.reduce.x)
      reductions[s] = reductions[s] or {}
      table.insert(reductions[s], call)
      most = math.max(most, s)
    end
  end
  local rows = {}
  for _, v in ipairs(self.group.results) do
    if self.group.info[v].level == "full" then
      local s = self:stage(v)
      fulls[s] = fulls[s] or {}
      table.insert(fulls[s], v)
      most = math.max(most, s)
    else
      rows[#rows + 1] = v
    end
  end
  return reductions, fulls, rows, most
end

-- Nested loops over the reduced axes but the last, then body.
function Emit:down(list, i, here, body)
  local k = list[i]
  if not k then return body(here) end
  self:loop(self:const(0), self.b:binary("sub", self:axis_size(k), self:const(1)), 1, function(index)
    local at = { unpack(here.at, 1, #self.axes) }
    at[k] = index
    self:down(list, i + 1, { at = at, mask = here.mask, memo = setmetatable({}, { __index = here.rows }),
      reduced = here.reduced, rows = here.rows }, body)
  end)
end

function Emit:finish(call, var)
  return self.b:cast(self.b:read(var), call.results[1].facts.dtype)
end

-- Formulas that are cheap enough to be computed again at each stage.
local cheap = {}
local light = "add sub mul neg abs relu square maximum minimum eq ne lt le gt ge where masked_fill clamp"
for name in light:gmatch("%S+") do cheap[name] = true end

-- Which values are kept from their stage for later ones, and in the memory of which result, that is not written yet:
-- value -> result.
function Emit:parked(fulls, most)
  local free, parked, wanted = {}, {}, {}
  for s = 1, most do
    for _, v in ipairs(fulls[s] or {}) do free[#free + 1] = v end
  end
  local function later(v, stage) -- all that a value of this stage needs of earlier ones
    local call = v.call
    if not self.group.info[v] or call.reduce then return end
    if self:stage(v) < stage and call.map and not call.map.copy and not cheap[call.map.op.name]
      and self.group.info[v].level == "full" then
      wanted[v] = true
      return
    end
    for _, x in ipairs(call.map and call.map.operands or { call.args[1] }) do
      if is_value(x) then later(x, stage) end
    end
  end
  for _, call in ipairs(self.group.calls) do
    local v = call.reduce and call.reduce.x or call.results[1]
    if self.group.info[v] and self.group.info[v].level == "full" then later(v, self:stage(v)) end
  end
  for _, call in ipairs(self.group.calls) do
    local v = call.results[1]
    for i, result in ipairs(wanted[v] and free or {}) do
      if result.facts.dtype == v.facts.dtype and self:stage(result) > self:stage(v) then
        parked[v] = result
        table.remove(free, i)
        break
      end
    end
  end
  return parked
end

-- Stores what is parked at stage s; later stages load it.
function Emit:park(parked, s, inside)
  for _, call in ipairs(self.group.calls) do
    local v = call.results[1]
    local result = parked[v]
    if result then
      local offset, root, d = self:offset(self.writes[result], inside.at), self:pointer(result), v.facts.dtype
      if self:stage(v) == s then self.b:store(root, d, offset, self:value(v, inside), inside.mask) end
      if self:stage(v) <= s then inside.memo[v] = self.b:load(root, d, offset, inside.mask) end
    end
  end
end

function Emit:rows()
  local b, last = self.b, #self.axes
  local reductions, fulls, rows, most = self:by_stage()
  local parked = self:parked(fulls, most)
  local pid = b:pure { op = "program_id", axis = 0, d = i64, shape = {}, weak = true }
  local at, outer, nrows = {}, {}, 1
  for k, axis in ipairs(self.axes) do
    if axis.reduced and k < last then outer[#outer + 1] = k end
    if not axis.reduced then nrows = nrows * axis.size end
  end
  self:positions(pid, function(axis) return not axis.reduced end, at)
  local here = { at = at, memo = {}, reduced = {} }
  here.rows = here.memo
  for s = 0, most do
    local vars = {}
    for i, call in ipairs(reductions[s] or {}) do
      vars[i] = self:variable(call.reduce.join, call.reduce.x.facts.dtype, {})
    end
    -- What belongs to the row is computed ahead of the loop.
    self:row_values(here, s)
    if reductions[s] or fulls[s] then
      self:down(outer, 1, here, function(place)
        self:blocks(last, nil, nil, BLOCK, place, function(inside)
          self:park(parked, s, inside)
          for i, call in ipairs(reductions[s] or {}) do
            local x = self:reduced_operand(call, inside)
            self:gather(vars[i], call.reduce.join, self:joined(call.reduce.join, x, inside.mask, vars[i].d))
          end
          if fulls[s] then self:stores(fulls[s], inside) end
        end)
      end)
    end
    for i, call in ipairs(reductions[s] or {}) do
      here.reduced[call.results[1]] = self:finish(call, vars[i])
    end
  end
  self:row_values(here, most + 1)
  self:stores(rows, here)
  self.grid, self.work = nrows, lower.numel(self.group.shape) / nrows
end

-- Emits the values of rows of up to a stage, so that they are known in all loops that follow.
function Emit:row_values(here, stage)
  for _, call in ipairs(self.group.calls) do
    local v = call.results[1]
    if self.group.info[v].level == "row" and (call.map or call.view) and self:stage(v) <= stage then
      self:value(v, here)
    end
  end
end

function Emit:reduced_operand(call, here)
  local x = call.reduce.x
  if self.group.info[x] then return self:value(x, here) end
  return self:operand(call, x, here)
end

-- Reductions whose programs share their elements, `columns`: or go down blocks of the last axis.
function Emit:shared(columns)
  local b, last = self.b, #self.axes
  local reductions, fulls, rows = self:by_stage()
  reductions, fulls = reductions[0] or {}, fulls[0] or {}
  local split, others, nkept, length = nil, {}, 1, 1
  for k, axis in ipairs(self.axes) do
    if axis.reduced then
      length = length * axis.size
      -- The longest of the reduced axes is split.
      if not split or axis.size > self.axes[split].size then split = k end
    else
      nkept = nkept * axis.size
    end
  end
  for k, axis in ipairs(self.axes) do
    if axis.reduced and k ~= split and (columns or k < last) then others[#others + 1] = k end
  end
  local blocks = columns and math.ceil(self.axes[last].size / COLUMNS) or 1
  local programs = columns and nkept / self.axes[last].size * blocks or nkept
  local width = columns and math.min(self.axes[last].size, COLUMNS) or 1
  local size = self.axes[split].size
  local share = math.max(1, math.ceil(SHARE / math.max(1, length / size * width)))
  if split == last then share = math.max(BLOCK, math.floor(share / BLOCK) * BLOCK) end
  local chunks = math.max(1, math.ceil(size / share))
  chunks = math.min(chunks, columns and 64 or 1024)
  share = math.ceil(size / chunks)
  if split == last then share = math.ceil(share / BLOCK) * BLOCK end
  chunks = math.max(1, math.ceil(size / share))

  local block = columns and { COLUMNS } or {}
  local pid = b:pure { op = "program_id", axis = 0, d = i64, shape = {}, weak = true }
  local phase = chunks > 1 and self:param { size = 0, phase = true }
  local nkept_p = chunks > 1 and self:param { size = nkept }

  -- The place of a program: which of the kept positions, in blocks of the last axis.
  local function place(flat)
    local here = { at = {}, memo = {}, reduced = {} }
    here.rows = here.memo
    local row = flat
    if columns then
      local piece = flat
      if blocks > 1 or nkept > self.axes[last].size then
        row, piece = self:split(flat, self:size(blocks))
      else
        row = self:const(0)
      end
      local columns_at = self:add(self:mul(piece, self:const(COLUMNS)),
        b:pure { op = "arange", d = i64, shape = { COLUMNS }, lo = 0 })
      here.at[last] = columns_at
      here.mask = b:binary("lt", columns_at, self:axis_size(last))
      here.column, here.row = columns_at, row
      here.flat = self:add(columns_at, self:mul(row, self:axis_size(last)))
    else
      here.flat = flat
    end
    self:positions(row, function(axis, k) return not axis.reduced and not (columns and k == last) end, here.at)
    return here
  end

  -- Sums of the elements lo to hi of the axis that is split.
  local function partial(here, lo, hi)
    local vars = {}
    for i, call in ipairs(reductions) do
      vars[i] = self:variable(call.reduce.join, call.reduce.x.facts.dtype, block)
    end
    local function visit(inside)
      for i, call in ipairs(reductions) do
        local x = self:reduced_operand(call, inside)
        if columns then
          self:gather(vars[i], call.reduce.join, b:broadcast(b:cast(x, vars[i].d), block), inside.mask)
        else
          self:gather(vars[i], call.reduce.join, self:joined(call.reduce.join, x, inside.mask, vars[i].d))
        end
      end
      if #fulls > 0 then self:stores(fulls, inside) end
    end
    local function visit_four(places)
      for i, call in ipairs(reductions) do
        local join, list = call.reduce.join, {}
        for r, inside in ipairs(places) do
          local x = self:reduced_operand(call, inside)
          local computed = vars[i].d.is_float and tile.computed(x.d) or vars[i].d
          list[r] = b:cast(x, computed)
        end
        local d = list[1].d
        local function two(x, y) return b:apply(joined[join], d, d, false, x, y) end
        local all = two(two(list[1], list[2]), two(list[3], list[4]))
        self:gather(vars[i], join, b:broadcast(b:cast(all, vars[i].d), block), here.mask)
      end
      for _, inside in ipairs(places) do self:stores(fulls, inside, true) end
    end
    local function at_index(index)
      local at = { unpack(here.at, 1, #self.axes) }
      at[split] = index
      return { at = at, mask = here.mask, memo = setmetatable({}, { __index = here.rows }), reduced = here.reduced,
        rows = here.rows }
    end
    if columns and #others == 0 then
      -- Four rows at a time, then the rest.
      local n = b:binary("sub", hi, lo)
      local _, odd = self:split(n, self:const(4))
      local even = b:binary("sub", hi, odd)
      self:loop(lo, b:binary("sub", even, self:const(1)), 4, function(index)
        local places = {}
        for r = 0, 3 do places[r + 1] = at_index(self:add(index, self:const(r))) end
        visit_four(places)
      end)
      self:loop(even, b:binary("sub", hi, self:const(1)), 1, function(index) visit(at_index(index)) end)
    elseif columns or split ~= last then
      self:loop(lo, b:binary("sub", hi, self:const(1)), 1, function(index)
        self:down(others, 1, at_index(index), function(deep)
          if columns then return visit(deep) end
          self:blocks(last, nil, nil, BLOCK, deep, visit)
        end)
      end)
    else
      self:down(others, 1, here, function(deep) self:blocks(last, lo, hi, BLOCK, deep, visit) end)
    end
    return vars
  end

  local function finish(here, nodes)
    for i, call in ipairs(reductions) do
      here.reduced[call.results[1]] = b:cast(nodes[i], call.results[1].facts.dtype)
    end
    self:row_values(here, math.huge)
    self:stores(rows, here)
  end

  if chunks == 1 then
    local here = place(pid)
    local vars = partial(here, self:const(0), self:axis_size(split))
    local nodes = {}
    for i in ipairs(reductions) do nodes[i] = b:read(vars[i]) end
    finish(here, nodes)
    self.grid, self.work = programs, lower.numel(self.group.shape) / programs
    return
  end

  local scratch, count = {}, { float64 = 0, int64 = 0 }
  for i, call in ipairs(reductions) do
    local d = accumulator[call.reduce.join](call.reduce.x.facts.dtype)
    local name = d.is_float and "float64" or "int64"
    scratch[i] = { name = name, number = count[name] }
    count[name] = count[name] + 1
  end
  local roots = {}
  for _, name in ipairs { "float64", "int64" } do
    if count[name] > 0 then roots[name] = self:param { scratch = name, numel = count[name] * chunks * nkept } end
  end
  local chunks_p = self:param { size = chunks }
  local function place_of(i, chunk, flat) -- in the scratch
    local from = self:mul(self:const(scratch[i].number), chunks_p)
    return self:add(self:mul(self:add(from, chunk), nkept_p), flat)
  end
  local first = b:binary("eq", phase, self:const(0))
  b:enter()
  local program, chunk = self:split(pid, chunks_p)
  local here = place(program)
  local lo = self:mul(chunk, self:size(share))
  local hi = minimum(self, self:add(lo, self:size(share)), self:axis_size(split))
  local vars = partial(here, lo, hi)
  for i in ipairs(reductions) do
    b:store(roots[scratch[i].name], dtypes[scratch[i].name], place_of(i, chunk, here.flat), b:read(vars[i]), here.mask)
  end
  local yes = b:leave()
  b:enter()
  here = place(pid)
  vars = {}
  for i, call in ipairs(reductions) do
    vars[i] = self:variable(call.reduce.join, call.reduce.x.facts.dtype, block)
  end
  self:loop(self:const(0), b:binary("sub", chunks_p, self:const(1)), 1, function(index)
    for i, call in ipairs(reductions) do
      local x = b:load(roots[scratch[i].name], dtypes[scratch[i].name], place_of(i, index, here.flat), here.mask)
      self:gather(vars[i], call.reduce.join, b:cast(x, vars[i].d), here.mask)
    end
  end)
  local nodes = {}
  for i in ipairs(reductions) do nodes[i] = b:read(vars[i]) end
  finish(here, nodes)
  local no = b:leave()
  b:put { op = "if", first, yes = yes, no = no }
  self.grid, self.second, self.work = programs * chunks, programs, SHARE
  self.phase = phase.index
end

-- ---- a group ----------------------------------------------------------------------------------------

local function described(group)
  local list = {}
  for _, call in ipairs(group.calls) do
    local unit = call.unit
    local text = unit.call.target .. (unit.place and unit.place ~= "" and " (" .. unit.place .. ")" or "")
    if list[#list] ~= text then list[#list + 1] = text end
  end
  return table.concat(list, ", ")
end

-- What parameters are called: results, operands, numbers, sizes.
function Emit:name_params()
  local count, is_result = {}, {}
  for _, v in ipairs(self.group.results) do is_result[v] = true end
  for i, a in ipairs(self.args) do
    local stem = a.phase and "phase" or a.value and (is_result[a.value] and "out" or "x") or a.scratch and "part"
      or a.number and "k" or "n"
    count[stem] = (count[stem] or 0) + 1
    self.params[i].name = stem .. (a.phase and "" or count[stem])
  end
end

-- Whether each element of an operand is read before the same element of a result is written, and not again.
function Emit:is_in_place(all)
  local first
  for _, v in ipairs(self.group.results) do
    local steps = self.writes[v].steps
    first = first or steps
    for k = 1, #self.axes do
      if steps[k] ~= first[k] then return false end
    end
  end
  for _, a in ipairs(all) do
    if lower.numel(a.value.facts.shape) == lower.numel(self.group.shape) then
      for k = 1, #self.axes do
        if a.steps[k] ~= first[k] then return false end
      end
    end
  end
  return true
end

--- A program in the kernel language: a line for moth.kernel.jit, and one that launches it.
function M.source(kernel, name)
  local names, types = {}, {}
  for i, p in ipairs(kernel.prog.params) do
    local a = kernel.args[i]
    names[i] = p.name
    if a.value then
      types[#types + 1] = ("%s: %s [%s]"):format(p.name, p.d.name, table.concat(a.value.facts.shape, ", "))
    elseif a.scratch then
      types[#types + 1] = ("%s: %s [%d]"):format(p.name, a.scratch, a.numel)
    else
      local v = a.size or a.number
      types[#types + 1] = ("%s = %s"):format(p.name, tostring(type(v) == "table" and v.value or v))
    end
  end
  local list = table.concat(names, ", ")
  local launch = ("%s{ %d }(%s)"):format(name, kernel.grid, list)
  if kernel.second then launch = ("%s   then, with phase = 1, %s{ %d }"):format(launch, name, kernel.second) end
  return ("-- %s\nlocal %s = moth.kernel.jit(%s, { name = \"%s\" })\n-- %s\n-- %s\n"):format(kernel.text, name,
    lua_text.print(kernel.prog, names), name, table.concat(types, ", "), launch)
end

--- The program of a group: { prog, args, grid, second, phase, work, in_place, text }. args: what its parameters are, in
-- their order: { value }, { number, float }, { size }, { scratch = dtype, numel }. grid: how many programs; second: how
-- many of the second launch, before which parameter `phase` (from 0) becomes 1; work: elements of a program; in_place:
-- of moth.compile.runtime. text: what is fused, and where it stands.
function M.program(group)
  local self = setmetatable({ group = group, params = {}, args = {}, class = {}, roots = {}, numbers = {}, sizes = {},
    stages = {}, head = {}, free = {} }, Emit)
  self.b = tile.builder(function(message, ...) error(message:format(...), 0) end, function() end)
  local all = self:iteration()
  for _, v in ipairs(group.results) do self:pointer(v) end
  local by_row, alone = nil, nil
  if group.dims then by_row, alone = require("moth.compile.fuse").shape_of(group) end
  if not group.dims then
    self.in_place = self:is_in_place(all)
    local other = self:other_axis(all)
    if other then self:tiles(other) else self:flat() end
  elseif by_row and alone then
    self:rows()
  else
    self:shared(not by_row)
  end
  for i = #self.head, 1, -1 do table.insert(self.b.list, 1, self.head[i]) end
  local prog = { name = "fused", params = self.params, class = self.class, body = self.b.list, flat = true,
    biggest = BLOCK }
  self:name_params()
  return { prog = prog, args = self.args, grid = self.grid, second = self.second, phase = self.phase,
    work = self.work, in_place = self.in_place, text = described(group) }
end

return M
