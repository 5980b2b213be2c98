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
local Emit = require "moth.compile.emit"
local fuse = require "moth.compile.fuse"
local graphs = require "moth.compile.graph"
local lower = require "moth.compile.lower"
local lua_text = require "moth.codegen.tile_lua"
local tile = require "moth.codegen.tile"
local toolchain = require "moth.utils.toolchain"
require "moth.compile.emit_maps"
require "moth.compile.emit_reductions"

local M = {}

--- By kind of device, in elements. block: a block; chunk: what a program takes of a row of maps; rows, columns: a tile
-- of two axes; wide: a block of columns; share: what a program takes of what several have in common. warps: of a
-- program on CUDA, as many as its blocks can use where it is not given.
M.tiles = {
  cpu = { block = 1024, chunk = 16384, rows = 64, columns = 16, wide = 512, share = 32768 },
  cuda = { block = 1024, chunk = 1024, rows = 32, columns = 32, wide = 256, share = 16384 },
}

--- What the kernels of a group are made with: its own `tiles`, or those of its device.
function M.tiles_of(group) return group.tiles or M.tiles[group.device:match("^%a+")] end

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

-- ---- equal groups -----------------------------------------------------------------------------------

local function is_number(v) return type(v) == "table" and graphs.is_number(v) end

local knobs = { "block", "chunk", "rows", "columns", "wide", "share", "warps" }

-- All of a group that its program depends on, as text, and the values and numbers of the graph in it, in order: groups
-- of equal texts have one program, with other arguments.
local function signature(group)
  local parts, refs, place = {}, {}, {}
  local function put(v) parts[#parts + 1] = v end
  local function list(t) put(table.concat(t, ",")) end
  local function flags(t, n)
    for i = 1, n do put(tostring(t[i] or false)) end
  end
  local function operand(v)
    if type(v) == "number" then return put(("#%.17g%s"):format(v, 1 / v == -math.huge and "-" or "")) end
    if type(v) ~= "table" then return put(tostring(v)) end
    if place[v] then return put("@" .. place[v]) end
    refs[#refs + 1] = v
    place[v] = #refs
    if is_number(v) then return put("@" .. #refs .. "k") end
    put("@" .. #refs .. v.facts.dtype.name)
    list(v.facts.shape)
    list(v.facts.stride)
    local info = group.info[v]
    if info then
      put(info.level .. (info.late and " late" or ""))
      flags(info.axes, #v.facts.shape)
    end
  end
  local tiles = M.tiles_of(group)
  put(group.device)
  for _, name in ipairs(knobs) do put(tostring(tiles[name])) end
  list(group.shape)
  if group.dims then flags(group.dims, #group.shape) end
  for _, call in ipairs(group.calls) do
    local f = call.map
    if f then
      put(f.copy and "copy" or f.op.name .. " " .. f.name .. " " .. f.dtype.name .. " " .. tostring(f.mask or f.dim))
      for _, v in ipairs(f.operands) do operand(v) end
      put(":")
      for _, v in ipairs(f.parameters) do operand(v) end
    elseif call.reduce then
      put(call.reduce.join)
      operand(call.reduce.x)
      flags(call.reduce.dims, #call.reduce.x.facts.shape)
    else
      put("view")
      operand(call.args[1])
    end
    put(call.into and place[call.into] and "=@" .. place[call.into] or "=")
    operand(call.results[1])
  end
  for _, v in ipairs(group.results) do operand(v) end
  return table.concat(parts, " "), refs, place
end

M.signature = signature

local known, count, MOST = {}, 0, 4096 -- programs by signature

-- A program for other values: those of `refs`.
local function instance(base, refs, text)
  local k = { base = base, args = {}, text = text, grid = base.grid, second = base.second, phase = base.phase,
    work = base.work, in_place = base.in_place, checked = base.checked }
  for i, a in ipairs(base.args) do
    k.args[i] = not a.at and a or a.is_value and { value = refs[a.at] } or { number = refs[a.at], float = a.float }
  end
  return k
end

--- The program of a group: { prog, args, grid, second, phase, work, in_place, text, way }. args: what its parameters
-- are, in their order: { value }, { number, float }, { size }, { scratch = dtype, numel }. grid: how many programs;
-- second: how many of the second launch, before which parameter `phase` (from 0) becomes 1; work: elements of a
-- program; in_place: of moth.compile.runtime. text: what is fused, and where it stands. way: how it goes over its axes.
function M.program(group)
  local self = setmetatable({ group = group, params = {}, args = {}, class = {}, roots = {}, numbers = {}, sizes = {},
    stages = {}, head = {}, free = {}, same = {}, knobs = M.tiles_of(group) }, Emit)
  self.b = tile.builder(function(message, ...) error(message:format(...), 0) end, function() end)
  for _, call in ipairs(group.calls) do -- an input that is read and written is one parameter
    if call.into and group.reads[call.into] then self.same[call.results[1]] = call.into end
  end
  local all = self:iteration()
  for _, v in ipairs(group.results) do self:pointer(v) end
  local by_row, alone = nil, nil
  if group.dims then by_row, alone = fuse.shape_of(group) end
  local way
  if not group.dims then
    self.in_place = self:is_in_place(all)
    local other = self:other_axis(all)
    way = other and "tiles" or "flat"
    if other then self:tiles(other) else self:flat() end
  elseif by_row and alone then
    way = "rows"
    self:rows()
  else
    way = by_row and "shared" or "columns"
    self:shared(not by_row)
  end
  for i = #self.head, 1, -1 do table.insert(self.b.list, 1, self.head[i]) end
  local prog = { name = "fused", params = self.params, class = self.class, body = self.b.list, flat = true,
    biggest = self.biggest, warps = self.knobs.warps }
  self:name_params()
  return { prog = prog, args = self.args, grid = self.grid, second = self.second, phase = self.phase,
    work = self.work, in_place = self.in_place, text = described(group), way = way }
end

--- The program of a group as M.program gives it, with `base` in the place of `prog`: what groups that differ in their
-- values alone share. While code is logged, each group has its own. checked: accesses to memory are.
function M.kernel(group, checked)
  if lower.open or toolchain.logs("output_code") then -- its sizes are symbols; shows programs that are not compiled yet
    local k = M.program(group)
    k.checked = checked
    return k
  end
  local sig, refs, place = signature(group)
  if checked then sig = sig .. " checked" end
  local base = known[sig]
  if not base then
    base = M.program(group)
    base.checked = checked
    for i, a in ipairs(base.args) do -- it holds no values of this graph
      local at = place[a.value or is_number(a.number) and a.number or 0]
      if at then base.args[i] = { at = at, is_value = a.value ~= nil, float = a.float } end
    end
    if count >= MOST then known, count = {}, 0 end
    known[sig], count = base, count + 1
  end
  return instance(base, refs, described(group))
end

return M
