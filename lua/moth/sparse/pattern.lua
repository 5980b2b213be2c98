--- The places of the elements of a sparse tensor: shared by all tensors with the same places, and never changed.
-- Positions count from 1.
--
-- layout "coo": indices (sparse dimensions, nnz). layout "csr": crow (rows + 1), the number among the values of the
-- first element of each row, and cols (nnz). The rest is computed when it is asked for, once.
local B = require "moth_lua"
local class = require "moth.class"
local repeat_interleave = require("moth.tensor.functions").functions.repeat_interleave
local ops = B.ops

local Pattern = class("Pattern")

--- @tparam table size of the sparse dimensions
function Pattern:__init(layout, size, a, b)
  self.layout, self.size = layout, size
  if layout == "coo" then self.of_indices = a else self.of_crow, self.of_cols = a, b end
end

function Pattern:nnz() return B.size(self.of_indices or self.of_cols, -1) end
function Pattern:device() return B.tensor_device(self.of_indices or self.of_cols) end
local function int64(self) return { dtype = "int64", device = self:device() } end

--- The row of each element of a matrix: (nnz).
function Pattern:rows()
  if not self.of_rows then
    if self.layout == "coo" then
      self.of_rows = ops.contiguous(ops.select(self.of_indices, 1, 1))
    else
      local n = self.size[1]
      local count = ops.sub(ops.narrow(self.of_crow, 1, 2, n), ops.narrow(self.of_crow, 1, 1, n))
      self.of_rows = repeat_interleave(ops.arange(1, n + 1, 1, int64(self)), count)
    end
  end
  return self.of_rows
end
--- The column of each element of a matrix: (nnz).
function Pattern:cols()
  if not self.of_cols then self.of_cols = ops.contiguous(ops.select(self.of_indices, 1, 2)) end
  return self.of_cols
end
function Pattern:indices()
  if not self.of_indices then self.of_indices = ops.stack({ self:rows(), self.of_cols }, 1) end
  return self.of_indices
end
--- The number of the first element of each row, of a matrix whose elements lie by rows: (rows + 1).
function Pattern:crow()
  if not self.of_crow then
    self.of_crow = ops.searchsorted(self:rows(), ops.arange(1, self.size[1] + 2, 1, int64(self)))
  end
  return self.of_crow
end
--- The positions as one number each, in row-major order: (nnz).
function Pattern:flat()
  if not self.of_flat then
    local flat
    for d, n in ipairs(self.size) do
      local at
      if #self.size == 2 then
        at = d == 1 and self:rows() or self:cols()
      else
        at = ops.select(self.of_indices, 1, d)
      end
      flat = flat and ops.add(ops.mul(ops.sub(flat, 1), n), at) or at
    end
    self.of_flat = flat or ops.ones({ self:nnz() }, int64(self))
  end
  return self.of_flat
end

--- The number of positions of a size.
function Pattern.total(size)
  local n = 1
  for _, s in ipairs(size) do n = n * s end
  return n
end

--- The indices (dimensions, n) of flat positions (n) in a size.
function Pattern.unflat(flat, size)
  local list, rest = {}, ops.sub(flat, 1)
  for d = #size, 1, -1 do
    local n = math.max(size[d], 1)
    list[d] = ops.add(ops.remainder(rest, n), 1)
    rest = ops.floor_divide(rest, n)
  end
  if #list == 0 then return ops.zeros({ 0, B.numel(flat) }, { dtype = "int64", device = B.tensor_device(flat) }) end
  return ops.stack(list, 1)
end

--- Whether the positions lie in order, each once.
function Pattern:is_sorted()
  if self.sorted == nil then
    local n = self:nnz()
    if n < 2 then
      self.sorted = true
    else
      local flat = self:flat()
      self.sorted = ops.all(ops.lt(ops.narrow(flat, 1, 1, n - 1), ops.narrow(flat, 1, 2, n - 1))):item()
    end
  end
  return self.sorted
end

-- A pattern made of flat positions in order, each once.
local function of_flat(size, flat)
  local p = Pattern("coo", size, Pattern.unflat(flat, size))
  p.of_flat, p.sorted = flat, true
  return p
end
Pattern.of_positions = of_flat

--- The same positions in order, each once, as COO. Second result: which of them each element belongs to, nil if nothing
-- changed.
function Pattern:coalesced()
  if not self.merged then
    if not self:is_sorted() then
      local unique = require("moth.tensor.functions").functions.unique
      local flat, inverse = unique(self:flat(), { return_inverse = true })
      self.merged, self.inverse = of_flat(self.size, flat), inverse
    elseif self.layout == "coo" then
      return self
    else
      local p = Pattern("coo", self.size, self:indices())
      p.of_crow, p.of_cols, p.of_rows = self.of_crow, self.of_cols, self.of_rows
      p.of_flat, p.sorted = self.of_flat, true
      self.merged = p
    end
  end
  return self.merged, self.inverse
end

--- As CSR; the elements must lie in order.
function Pattern:as_csr()
  if self.layout == "csr" then return self end
  if not self.rowwise then
    local p = Pattern("csr", self.size, self:crow(), self:cols())
    p.of_rows, p.of_flat, p.sorted, p.of_indices = self:rows(), self.of_flat, true, self.of_indices
    self.rowwise = p
  end
  return self.rowwise
end

--- The pattern of the transposed matrix, in order, and which element of this one each of its elements is.
function Pattern:transposed()
  if not self.by_columns then
    local flat = ops.add(ops.mul(ops.sub(self:cols(), 1), self.size[1]), self:rows())
    local sorted, order = ops.sort(flat)
    local p = of_flat({ self.size[2], self.size[1] }, sorted)
    p.sorted = self.sorted
    self.by_columns, self.order = p, order
  end
  return self.by_columns, self.order
end

--- The same on a device.
function Pattern:to(device)
  if self:device() == device then return self end
  local function move(t) return ops.to(t, { device = device }) end
  local p
  if self.layout == "coo" then
    p = Pattern("coo", self.size, move(self.of_indices))
  else
    p = Pattern("csr", self.size, move(self.of_crow), move(self.of_cols))
  end
  p.sorted = self.sorted
  return p
end

return Pattern
