--- Indexing: x[1], x[-1], x[{1, {2, 5}}], x[{ {}, 3 }], x[mask], x[indices], and assignment to them.
-- In a table each entry takes one dimension: a number selects, {first, last} or {first, last, step} is a slice with
-- both ends included (negative from the end), {} is all of it, a bool tensor masks, an integer tensor picks.
local B = require "moth_lua"
local ops = B.ops
local M = {}

local function bounds(x, dim, part)
  local n = B.size(x, dim)
  local first, last, step = part[1] or 1, part[2] or n, part[3] or 1
  for _, v in ipairs({ first, last, step }) do
    if type(v) ~= "number" or v ~= math.floor(v) then
      error(("index: a slice is {first, last, step} of integers, got %s"):format(tostring(v)), 0)
    end
  end
  if #part == 1 then last = first end
  if first < 0 then first = n + first + 1 end
  if last < 0 then last = n + last + 1 end
  if first == 0 or last < 0 or first < 1 or last > n or last < first - 1 then
    error(("index: positions %s to %s are out of range for dimension %d of size %d (moth counts from 1)"):format(
      tostring(part[1] or 1), tostring(part[2] or n), dim, n), 0)
  end
  return first - 1, last, step -- as the op wants them: from 0, end excluded
end

local function dtype_of(t) return B.tensor_dtype(t).name end

-- Applies parts that are views; returns the view, and where a tensor index stands (dim, tensor) if there is one.
local function views(x, key)
  local dim, at, index = 1, nil, nil
  for i = 1, #key do
    local part = key[i]
    if type(part) == "number" then
      x = ops.select(x, dim, part)
    elseif B.is_tensor(part) then
      if index then error("index: one tensor index at a time; use gather or index in two steps", 0) end
      at, index = dim, ops.to(part, { device = B.tensor_device(x) })
      dim = dim + (dtype_of(part) == "bool" and B.dim(part) or 1)
    elseif type(part) == "table" then
      if #part > 0 then
        local start, stop, step = bounds(x, dim, part)
        x = ops.slice(x, dim, start, stop, step)
      end
      dim = dim + 1
    else
      error("index: expected a number, a slice such as {1, 3}, {} or a tensor, got " .. type(part), 0)
    end
  end
  return x, at, index
end

local function as_key(k)
  if type(k) == "table" then return k end
  return { k }
end

local function at_user_level(ok, ...)
  if ok then return ... end
  local message = ...
  if type(message) == "string" and message:find("^index: ") then B.raise(message) end
  error(message, 0)
end

local function get(x, k)
  local view, dim, index = views(x, as_key(k))
  if not index then return view end
  if dtype_of(index) ~= "bool" then
    if B.dim(index) == 1 then return ops.index_select(view, dim, index) end
    local flat = ops.index_select(view, dim, ops.reshape(index, { -1 }))
    local size, shape = B.size(flat), {}
    for i = 1, dim - 1 do shape[i] = size[i] end
    for _, s in ipairs(B.size(index)) do shape[#shape + 1] = s end
    for i = dim + 1, #size do shape[#shape + 1] = size[i] end
    return ops.reshape(flat, shape)
  end
  if B.dim(index) == B.dim(view) then return ops.masked_select(view, index) end
  if B.dim(index) ~= 1 then error("index: a mask covers all dimensions, or one", 0) end
  if B.size(index, 1) ~= B.size(view, dim) then
    error(("index: the mask has %d elements, dimension %d has %d"):format(B.size(index, 1), dim, B.size(view, dim)), 0)
  end
  return ops.index_select(view, dim, ops.reshape(ops.nonzero(index), { -1 }))
end

-- What is assigned may have more dimensions than its place, of size 1 in front.
local function without_ones(v, dims)
  local size = B.dim(v) > dims and B.size(v)
  while size and #size > dims and size[1] == 1 do table.remove(size, 1) end
  return size and ops.reshape(v, size) or v
end

local function set(x, k, v)
  local view, dim, index = views(x, as_key(k))
  if type(v) == "table" then v = B.tensor(v, B.tensor_dtype(x)) end
  if type(v) ~= "number" and type(v) ~= "boolean" and not B.is_tensor(v) then
    error("index: expected a number or a tensor to assign, got " .. type(v), 0)
  end
  if B.is_tensor(v) then v = without_ones(v, B.dim(view)) end
  if not index then
    if B.is_tensor(v) then ops.copy_(view, v) else ops.fill_(view, v) end
  elseif dtype_of(index) == "bool" and B.dim(index) == B.dim(view) then
    if B.is_tensor(v) and B.numel(v) ~= 1 then
      ops.masked_scatter_(view, index, ops.to(v, { device = B.tensor_device(view) }))
    else
      ops.masked_fill_(view, index, B.is_tensor(v) and ops.reshape(v, {}) or v)
    end
  else
    if dtype_of(index) == "bool" then index = ops.reshape(ops.nonzero(index), { -1 }) end
    index = ops.reshape(index, { -1 })
    local size = B.size(view)
    size[dim] = B.numel(index)
    local source = B.is_tensor(v) and v or B.tensor(v, B.tensor_dtype(view))
    ops.index_copy_(view, dim, index,
      ops.to(ops.expand(source, size), { dtype = B.tensor_dtype(view), device = B.tensor_device(view) }))
  end
end

function M.get(x, k) return at_user_level(pcall(get, x, k)) end
function M.set(x, k, v) return at_user_level(pcall(set, x, k, v)) end

return M
