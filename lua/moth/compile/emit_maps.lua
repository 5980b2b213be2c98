--- Programs of maps alone (moth.compile.schedule): flat, or in tiles of two axes.
local dtypes = require "moth.codegen.dtypes"
local Emit = require "moth.compile.emit"
local lower = require "moth.compile.lower"

local is_value, is_apart, minimum = lower.is_value, Emit.is_apart, Emit.minimum
local i64, f32 = dtypes.int64, dtypes.float32

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

-- Blocks of numbers that are one for all elements, made ahead of the loop: for the vectors of a CPU.
function Emit:stay_ahead(here, shape)
  if self.group.device ~= "cpu" then return end
  local b, last, kept = self.b, #self.axes, {}
  here.stay = function(x) return kept[x] end
  for _, call in ipairs(self.group.calls) do
    local f = call.map
    if f and not f.copy and not f.cat and not is_apart(f) and f.dtype.is_float then
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
  local b, last, rows, columns = self.b, #self.axes, self.knobs.rows, self.knobs.columns
  local across, down = math.ceil(self.axes[last].size / columns), math.ceil(self.axes[other].size / rows)
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
  self:stay_ahead(here, { columns })
  local function range(start, size, length)
    return self:add(self:mul(start, self:const(length)), b:pure { op = "arange", d = i64, shape = { size }, lo = 0 })
  end
  at[other] = b:expand(range(row, rows, rows), 2)
  at[last] = range(column, columns, columns)
  here.mask = b:binary("bitwise_and", b:binary("lt", at[other], self:axis_size(other)),
    b:binary("lt", at[last], self:axis_size(last)))
  self:stores(self.group.results, here)
  self.grid, self.work, self.biggest = n * across * down, rows * columns, rows * columns
end

function Emit:flat()
  local b, last = self.b, #self.axes
  local n, block = self.axes[last].size, self:block(last)
  local chunk = math.max(block, self.knobs.chunk)
  local pieces, rows = math.max(1, math.ceil(n / chunk)), 1
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
    lo = self:mul(piece, self:const(chunk))
    hi = minimum(self, self:add(lo, self:const(chunk)), self:axis_size(last))
  end
  local here = { at = at, memo = {}, reduced = {} }
  here.rows = here.memo
  self:stay_ahead(here, { block })
  self:blocks(last, lo, hi, block, here, function(inside) self:stores(self.group.results, inside) end)
  self.grid, self.work = rows * pieces, math.min(n, chunk)
end

return Emit
