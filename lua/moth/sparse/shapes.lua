--- Methods of sparse tensors: transposes, rows, cat.
local B = require "moth_lua"
local check = require "moth.utils.check"
local T = require "moth.sparse.tensor"
local Pattern = require "moth.sparse.pattern"
local ops = B.ops
local methods, method, new = T.methods, T.method, T.new

method("transpose(Dim dim0, Dim dim1)", function(s, a, b)
  local sparse = #s.pattern.size
  a, b = T.dim("transpose", s, a), T.dim("transpose", s, b)
  if a == b then return s end
  local size = s:size()
  size[a], size[b] = size[b], size[a]
  if a > sparse and b > sparse then
    return new(s.pattern, ops.transpose(s.elements, a - sparse + 1, b - sparse + 1), size)
  elseif a > sparse or b > sparse then
    check.fail("[transpose] a sparse dimension and a dense one cannot be swapped; use s:to_dense()")
  end
  if #s.full == 2 then -- kept in order, for products
    local like = s
    s = s:coalesce()
    local p, order = s.pattern:transposed()
    return T.as(new(p, ops.index_select(s.elements, 1, order), size), like)
  end
  local rows, of = {}, {}
  for d = 1, sparse do
    local from = d == a and b or d == b and a or d
    rows[d], of[d] = ops.select(s.pattern:indices(), 1, from), size[d]
  end
  return new(Pattern("coo", of, ops.stack(rows, 1)), s.elements, size)
end)
method("t()", function(s)
  if #s.full > 2 then check.fail("[t] expected a matrix, got %d dimensions", #s.full) end
  return #s.full < 2 and s or s:transpose(1, 2)
end)

-- The elements numbered in `at` (in order, unless again) with the positions `rows` in dimension d instead of their own;
-- without rows, d goes.
local function picked(s, d, at, n, rows)
  local indices = ops.index_select(s.pattern:indices(), 2, at)
  local list, of, size = {}, {}, {}
  for k = 1, #s.pattern.size do
    local own = k == d and rows or ops.select(indices, 1, k)
    if k ~= d or rows then
      list[#list + 1], of[#of + 1] = own, k == d and n or s.pattern.size[k]
    end
  end
  for k, m in ipairs(s.full) do
    if k ~= d then size[#size + 1] = m elseif rows then size[#size + 1] = n end
  end
  local values = ops.index_select(s.elements, 1, at)
  if #list == 0 then return (ops.sum(values, { 1 })) end -- no sparse dimension is left
  local p = Pattern("coo", of, ops.stack(list, 1))
  if not rows and s.pattern.sorted then p.sorted = true end
  return new(p, values, size)
end
local function numbers(mask) return (ops.reshape(ops.nonzero(mask), { -1 })) end

--- The slice at a position of a dimension, which goes; dense if no sparse dimension is left.
method("select(Dim dim, Index index)", function(s, d, i)
  d = T.dim("select", s, d)
  local n, sparse = s.full[d], #s.pattern.size
  if i > n or i < -n then check.fail("[select] index %d is out of range for dimension %d of size %d", i, d, n) end
  i = i > 0 and i or n + 1 + i
  if d > sparse then
    local size = s:size()
    table.remove(size, d)
    return new(s.pattern, ops.select(s.elements, d - sparse + 1, i), size)
  end
  return picked(s, d, numbers(ops.eq(ops.select(s.pattern:indices(), 1, d), i)))
end)

--- `length` positions of a dimension from `start` on.
method("narrow(Dim dim, Index start, size length)", function(s, d, start, length)
  d = T.dim("narrow", s, d)
  local n, sparse = s.full[d], #s.pattern.size
  if start < 0 then start = n + 1 + start end
  if start < 1 or start + length - 1 > n then
    check.fail("[narrow] positions %d to %d are out of range for dimension %d of size %d", start, start + length - 1,
      d, n)
  end
  if d > sparse then
    local size = s:size()
    size[d] = length
    return new(s.pattern, ops.narrow(s.elements, d - sparse + 1, start, length), size)
  end
  local at = ops.select(s.pattern:indices(), 1, d)
  local chosen = numbers(ops.logical_and(ops.ge(at, start), ops.lt(at, start + length)))
  return T.as(picked(s, d, chosen, length, ops.sub(ops.index_select(at, 1, chosen), start - 1)), s)
end)

--- The slices at positions of a dimension, in their order, each as often as it is there.
method("index_select(Dim dim, Tensor index)", function(s, d, index)
  d = T.dim("index_select", s, d)
  local sparse, n = #s.pattern.size, s.full[d]
  if B.dim(index) ~= 1 or B.tensor_dtype(index).is_floating_point or B.tensor_dtype(index).name == "bool" then
    check.fail("[index_select] index must be a vector of integers, got %s", B.format(index))
  end
  if d > sparse then
    local size = s:size()
    size[d] = B.numel(index)
    return new(s.pattern, ops.index_select(s.elements, d - sparse + 1, index), size)
  end
  index = ops.to(index, { dtype = "int64", device = s:device() })
  if B.numel(index) > 0 then
    local low, high = ops.amin(index):item(), ops.amax(index):item()
    if low < 1 or high > n then
      check.fail("[index_select] index %d is out of range for dimension %d of size %d", low < 1 and low or high, d, n)
    end
  end
  local sorted, order = ops.sort(ops.select(s.pattern:indices(), 1, d))
  local starts = ops.searchsorted(sorted, ops.arange(1, n + 2, 1, { dtype = "int64", device = s:device() }))
  local of, at = T.elements_of_rows(starts, index)
  return T.as(picked(s, d, ops.index_select(order, 1, at), B.numel(index), of):coalesce(), s)
end)

--- s[i], s[{ i, {2, 5}, index }]: as of dense tensors, but for steps and masks.
function methods.at(s, key)
  local list = type(key) == "table" and getmetatable(key) == nil and key or { key }
  if #list > #s.full then check.fail("[index] the key has %d entries for %d dimensions", #list, #s.full) end
  local d, i = 1, 1
  while i <= #list do
    local part = list[i]
    if B.is_tensor(part) and B.dim(part) == 1 then
      s = s:index_select(d, part)
      d = d + 1
    elseif type(part) == "number" then
      s = s:select(d, part)
      if B.is_tensor(s) then -- what is left of the key is for a dense tensor
        local rest = { unpack(list, i + 1) }
        return #rest > 0 and s[rest] or s
      end
    elseif type(part) == "table" and getmetatable(part) == nil and #part <= 2 then
      if #part > 0 then
        local n = s.full[d]
        local first, last = part[1], part[2] or part[1]
        if type(first) ~= "number" or type(last) ~= "number" then
          check.fail("[index] a slice is {first, last} of integers")
        end
        first, last = first < 0 and n + 1 + first or first, last < 0 and n + 1 + last or last
        s = s:narrow(d, first, math.max(last - first + 1, 0))
      end
      d = d + 1
    else
      check.fail("[index] entries of a sparse tensor's key are a number, a slice {first, last}, {} or a vector of \z
        positions")
    end
    i = i + 1
  end
  return s
end

--- Sparse tensors of one layout and one number of sparse dimensions, one after the other along dim.
local function cat(list, dim)
  if type(list) == "table" and list.dim and not dim then dim = list.dim end
  dim = dim or 1
  if type(dim) == "table" then dim = dim.dim or 1 end
  local first = list[1]
  for i, s in ipairs(list) do
    if not T.is_sparse(s) then
      check.fail("[cat] tensor %d is dense among sparse ones; use to_sparse() or to_dense()", i)
    end
    if #s.full ~= #first.full or #s.pattern.size ~= #first.pattern.size then
      check.fail("[cat] tensor %d has %d sparse of %d dimensions, the first %d of %d", i, #s.pattern.size, #s.full,
        #first.pattern.size, #first.full)
    end
  end
  dim = T.dim("cat", first, dim)
  local sparse, size, dtype = #first.pattern.size, first:size(), first:dtype()
  for i = 2, #list do
    for d, n in ipairs(list[i].full) do
      if d == dim then size[d] = size[d] + n
      elseif n ~= size[d] then
        check.fail("[cat] tensor %d has size %d in dimension %d, the first %d", i, n, d, size[d])
      end
    end
    dtype = B.promote(dtype, list[i]:dtype())
  end
  local indices, values, before = {}, {}, 0
  for i, s in ipairs(list) do
    local at, v = s.pattern:indices(), ops.to(s.elements, { dtype = dtype })
    if dim <= sparse then
      local rows = {}
      for d = 1, sparse do
        rows[d] = ops.select(at, 1, d)
        if d == dim then rows[d] = ops.add(rows[d], before) end
      end
      at = ops.stack(rows, 1)
    else -- the values of the others are 0
      local d, parts = dim - sparse + 1, {}
      local function zeros(n)
        local shape = B.size(v)
        shape[d] = n
        return ops.zeros(shape, { dtype = dtype, device = s:device() })
      end
      if before > 0 then parts[1] = zeros(before) end
      parts[#parts + 1] = v
      local after = size[dim] - before - s.full[dim]
      if after > 0 then parts[#parts + 1] = zeros(after) end
      v = ops.cat(parts, d)
    end
    indices[i], values[i] = at, v
    before = before + s.full[dim]
  end
  local of = {}
  for d = 1, sparse do of[d] = size[d] end
  local out = new(Pattern("coo", of, ops.cat(indices, 2)), ops.cat(values, 1), size)
  return T.as(out, first)
end
for _, name in ipairs({ "cat", "concat", "concatenate" }) do T.of_lists[name] = cat end
