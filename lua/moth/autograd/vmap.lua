--- vmap: a function of one element as a function of a batch. `moth.func.vmap`.
--
--     local dots = moth.func.vmap(function(a, b) return (a * b):sum() end)       -- (B, n), (B, n) -> (B)
--     local per_sample = moth.func.vmap(moth.func.grad(loss), { false, 1, 1 })   -- gradients for each sample
--
-- The function sees tensors without the dimension of the batch. Each op on them is one op on all elements
-- (src/dispatch/batch.h).
local B = require "moth_lua"
local trace = require "moth.lang.trace"
local tree = require "moth.lang.tree"
local check = require "moth.utils.check"
local M = {}

local function pack(...) return { n = select("#", ...), ... } end
local function is_branch(x) return type(x) == "table" and check.is_plain(x) end

-- A dimension of t as one from 1.
local function wrapped(dim, t, what, extra)
  local n = t:dim() + (extra or 0)
  if type(dim) ~= "number" or dim ~= math.floor(dim) or dim == 0 or dim > n or dim < -n then
    check.fail("[vmap] %s: there is no dimension %s of a tensor of shape %s", what, tostring(dim), tostring(t:size()))
  end
  return dim < 0 and dim + n + 1 or dim
end

-- Calls visit(leaf, dim, path) for each leaf of a tree, of whose dimensions `dims` is a number, false, or a tree;
-- returns the tree of what visit returns.
local function map(value, dims, path, visit)
  if type(dims) == "table" then
    if not is_branch(value) then
      check.fail("[vmap] %s: a table of dimensions for %s", path, B.is_tensor(value) and "a tensor" or type(value))
    end
    local out = {}
    for _, key in ipairs(tree.keys(value)) do
      local dim = dims[key]
      out[key] = map(value[key], dim == nil and false or dim, ("%s[%s]"):format(path, tostring(key)), visit)
    end
    return out
  end
  if not is_branch(value) then return visit(value, dims, path) end
  local out = {}
  for _, key in ipairs(tree.keys(value)) do
    out[key] = map(value[key], dims, ("%s[%s]"):format(path, tostring(key)), visit)
  end
  return out
end

local function dim_of_argument(in_dims, i)
  if type(in_dims) ~= "table" then return in_dims end
  if in_dims[i] == nil then return false end
  return in_dims[i]
end

-- The size of the batch.
local function measure(args, in_dims)
  local size, first
  if type(in_dims) == "table" and #in_dims > args.n then
    check.fail("[vmap] in_dims has %d dimensions for %d arguments", #in_dims, args.n)
  end
  for i = 1, args.n do
    map(args[i], dim_of_argument(in_dims, i), "argument " .. i, function(leaf, dim, path)
      if dim == false then return end
      if not B.is_tensor(leaf) then
        if type(in_dims) == "table" then
          check.fail("[vmap] %s is no tensor, but %s; its dimension in in_dims must be false", path, type(leaf))
        end
        return
      end
      if leaf:dim() == 0 then
        check.fail("[vmap] %s has no dimensions to map over; its dimension in in_dims must be false", path)
      end
      local n = leaf:size(wrapped(dim, leaf, path))
      if size and n ~= size then
        check.fail("[vmap] %s has %d elements along dimension %d, and %s has %d; the dimensions that are mapped over \z
          must have the same size", path, n, dim, first, size)
      end
      size, first = size or n, first or path
    end)
  end
  if not size then
    check.fail("[vmap] there is no tensor to map over: in_dims has no dimension for any of the arguments")
  end
  return size
end

local function dim_of_result(out_dims, i, n)
  if type(out_dims) ~= "table" then return out_dims end
  if #out_dims ~= n then
    check.fail("[vmap] out_dims has %d dimensions, and the function returned %d results", #out_dims, n)
  end
  return out_dims[i]
end

local function finish(level, ...)
  B.vmap_close(level)
  B.close_modes()
  return ...
end

local function run(f, args, in_dims, out_dims, randomness, size)
  B.open_modes()
  local level = B.vmap_open(size, randomness)
  local results = pack(finish(level, xpcall(function(...)
    local inputs = pack(...)
    for i = 1, inputs.n do
      inputs[i] = map(inputs[i], dim_of_argument(in_dims, i), "argument " .. i, function(leaf, dim)
        if dim == false or not B.is_tensor(leaf) then return leaf end
        return B.batch_enter(leaf, wrapped(dim, leaf, "argument " .. i), level)
      end)
    end
    return f(unpack(inputs, 1, inputs.n))
  end, trace.keep, unpack(args, 1, args.n))))
  if not results[1] then trace.rethrow(results[2]) end
  local out = {}
  for i = 2, results.n do
    local dims = dim_of_result(out_dims, i - 1, results.n - 1)
    out[i - 1] = map(results[i], dims, "result " .. i - 1, function(leaf, dim, path)
      if not B.is_tensor(leaf) then
        check.fail("[vmap] %s: the function must return tensors, or tables of them, got %s", path,
          leaf == nil and "nil" or type(leaf))
      end
      if dim == false then
        if B.batch_level(leaf) == level then
          check.fail("[vmap] %s differs within the batch, so out_dims must give its dimension, not false", path)
        end
        return leaf
      end
      return B.batch_leave(leaf, wrapped(dim, leaf, path, 1), level, size)
    end)
  end
  return out, results.n - 1
end

-- Results of chunks, put together.
local function joined(parts, n, out_dims)
  local out = {}
  for i = 1, n do
    local lists = {}
    for k, part in ipairs(parts) do lists[k] = part[i] end
    local dims = dim_of_result(out_dims, i, n)
    local _, spec = tree.flatten(lists[1])
    local flat, at = {}, 0
    for k = 1, #lists do flat[k] = tree.flatten(lists[k]) end
    local made = {}
    map(lists[1], dims, "result " .. i, function(leaf, dim, path)
      at = at + 1
      local list = {}
      for k = 1, #flat do list[k] = flat[k][at] end
      made[at] = dim == false and leaf or B.ops.cat(list, wrapped(dim, leaf, path))
    end)
    out[i] = tree.unflatten(made, spec)
  end
  return out
end

--- See moth.func.vmap.
function M.call(f, in_dims, out_dims, randomness, chunk_size, ...)
  local args = pack(...)
  local size = measure(args, in_dims)
  if not chunk_size or chunk_size >= size then
    local out, n = run(f, args, in_dims, out_dims, randomness, size)
    return unpack(out, 1, n)
  end
  local parts, n = {}, 0
  for from = 1, size, chunk_size do
    local count = math.min(chunk_size, size - from + 1)
    local piece = { n = args.n }
    for i = 1, args.n do
      piece[i] = map(args[i], dim_of_argument(in_dims, i), "argument " .. i, function(leaf, dim)
        if dim == false or not B.is_tensor(leaf) then return leaf end
        return B.ops.narrow(leaf, dim, from, count)
      end)
    end
    parts[#parts + 1], n = run(f, piece, in_dims, out_dims, randomness, count)
  end
  return unpack(joined(parts, n, out_dims), 1, n)
end

return M
