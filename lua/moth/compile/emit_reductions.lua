--- Programs with reductions (moth.compile.schedule): by rows, or shared by several programs, or down columns.
local dtypes = require "moth.codegen.dtypes"
local Emit = require "moth.compile.emit"
local lower = require "moth.compile.lower"
local tile = require "moth.codegen.tile"

local is_value, accumulator, joined, minimum = lower.is_value, Emit.accumulator, Emit.join_formula, Emit.minimum
local i64 = dtypes.int64

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
      if self:stage(v) < s then inside.memo[v] = self.b:load(root, d, offset, inside.mask) end
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
        self:blocks(last, nil, nil, self:block(last), place, function(inside)
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
  local b, last, wide, most = self.b, #self.axes, self.knobs.wide, self.knobs.share
  local size_of_block = self:block(last)
  local reductions, fulls, rows = self:by_stage()
  reductions, fulls = reductions[0] or {}, fulls[0] or {}
  local split, others, nkept = nil, {}, 1
  for k, axis in ipairs(self.axes) do
    if axis.reduced then
      -- The longest of the reduced axes is split.
      if not split or axis.size > self.axes[split].size then split = k end
    else
      nkept = nkept * axis.size
    end
  end
  for k, axis in ipairs(self.axes) do
    if axis.reduced and k ~= split and (columns or k < last) then others[#others + 1] = k end
  end
  local blocks = columns and math.ceil(self.axes[last].size / wide) or 1
  local programs = columns and nkept / self.axes[last].size * blocks or nkept
  local width = columns and math.min(self.axes[last].size, wide) or 1
  local size, beside = self.axes[split].size, width
  for k, axis in ipairs(self.axes) do
    if axis.reduced and k ~= split then beside = beside * axis.size end
  end
  local share, chunks = math.max(1, math.ceil(most / beside)), 1
  if split == last then share = math.max(size_of_block, math.floor(share / size_of_block) * size_of_block) end
  if size > share then
    chunks = math.min(math.ceil(size / share), columns and 64 or 1024)
    share = math.ceil(size / chunks)
    if split == last then share = math.ceil(share / size_of_block) * size_of_block end
    chunks = math.ceil(size / share)
  end

  local block = columns and { wide } or {}
  if columns then self.biggest = wide end
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
      local columns_at = self:add(self:mul(piece, self:const(wide)),
        b:pure { op = "arange", d = i64, shape = { wide }, lo = 0 })
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
          self:blocks(last, nil, nil, size_of_block, deep, visit)
        end)
      end)
    else
      self:down(others, 1, here, function(deep) self:blocks(last, lo, hi, size_of_block, deep, visit) end)
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
  self.grid, self.second, self.work = programs * chunks, programs, most
  self.phase = phase.index
end

return Emit
