--- Indexing: x[1], x[{1, {2, 5}}], x[{ {}, 3 }], x[mask], x[{ i, {}, j }], and assignment to them.
-- A key is a list of entries (or one alone). Numbers, slices {first, last, step} with both ends included, {}, "..."
-- and "newaxis" make a view; integer tensors and masks index it. Reading and writing share `parse`, which returns the
-- view and the indices for ops.gather_nd or ops.scatter_nd_. docs/tensors.md has the rules.
local B = require "moth_lua"
local exporting = require "moth.export.active"
local signature = require "moth.utils.signature"
local ops = B.ops
local M = {}

local is_tensor = B.is_tensor
local device_of, dtype_of = B.tensor_device, B.tensor_dtype
local function shape_of(t) return "[" .. table.concat(B.size(t), ", ") .. "]" end

-- Raises without a position: at_user_level adds the user's line.
local function fail(message, ...) error("index: " .. message:format(...), 0) end

-- A tensor in a key is, by its dtype, "positions" or a "mask"; else an error.
local kinds = {}
local function kind_of(t)
  local dtype = dtype_of(t)
  if kinds[dtype] then return kinds[dtype] end
  local name = dtype.name
  if name == "uint8" then fail("a uint8 tensor is neither a mask (m:bool()) nor positions (i:long())") end
  if name ~= "bool" and not name:find "int" then
    fail("an index tensor is of integers (i:long()) or bool, got %s", name)
  end
  kinds[dtype] = name == "bool" and "mask" or "positions"
  return kinds[dtype]
end

-- A slice in the op's form: from 0, end excluded. d: the dimension of x, for messages.
local function bounds(x, dim, part, d)
  local n = B.size(x, dim)
  local first, last, step = part[1], part[2], part[3]
  if first == nil and (next(part) ~= nil) or last == nil and step ~= nil then
    fail("a slice is {first, last} or {first, last, step} of integers, none of them nil or named")
  end
  first, step = first or 1, step or 1
  last = last or (#part == 1 and first) or n
  for _, v in ipairs({ first, last, step }) do
    if type(v) ~= "number" or v ~= math.floor(v) then
      fail("a slice is {first, last, step} of integers, got %s", is_tensor(v) and "a tensor" or tostring(v))
    end
  end
  if part[4] ~= nil then fail("a slice is {first, last, step}, got %d entries", #part) end
  if step < 1 then fail("the step of a slice must be positive, got %.14g", step) end
  if first < 0 then first = n + first + 1 end
  if last < 0 then last = n + last + 1 end
  if first == 0 or last < 0 or first < 1 or last > n or last < first - 1 then
    fail("positions %s to %s are out of range for dimension %d of size %d (moth counts from 1)",
      tostring(part[1] or 1), tostring(part[2] or n), d, n)
  end
  return first - 1, last, step
end

-- The number of dimensions of x that an entry consumes.
local function takes(part)
  if type(part) == "string" then return 0 end
  return is_tensor(part) and kind_of(part) == "mask" and B.dim(part) or 1
end

local function taken(key, n)
  local sum = 0
  for i = 1, n do sum = sum + takes(key[i]) end
  return sum
end

-- The length of a key, which must be a list without holes.
local function length(key)
  local n = #key
  for i = 1, n do
    if key[i] == nil then fail("entry %d of the key is nil", i) end
  end
  if key[n + 1] == nil and key[n + 2] ~= nil then fail("entry %d of the key is nil", n + 1) end
  if n == 0 and next(key) ~= nil then
    fail("a key is a list such as { 1, {2, 5} }, got the key '%s'", tostring((next(key))))
  end
  return n
end

-- Adds a mask at dimension dim of x to `indices`; nonzero is called later, when its positions are needed. Returns x (a
-- 0-dim mask consumes no dimension, but adds one) and the next dimension.
local function add_mask(x, dim, mask, indices, d)
  if B.dim(mask) == 0 then
    x, mask = ops.unsqueeze(x, dim), ops.reshape(mask, { 1 })
  end
  local k, n = B.dim(mask), #indices.dims
  for i = 1, k do
    if dim + i - 1 > B.dim(x) or B.size(mask, i) ~= B.size(x, dim + i - 1) then
      local have = B.size(x)
      fail("a mask of shape %s does not fit from dimension %d on, where the sizes are [%s]", shape_of(mask), d,
        table.concat(have, ", ", math.min(dim, #have + 1)))
    end
    indices.dims[n + i], indices[n + i] = dim + i - 1, false
  end
  indices.masks = indices.masks or {}
  indices.masks[#indices.masks + 1] = { at = n + 1, mask = mask }
  return x, dim + k
end

-- The key's view of x, and the indices into it: nil, or { dims, [i] = positions in dims[i], masks }.
local function parse(x, key)
  local n = length(key)
  local dim, d, indices, whole = 1, 1, nil, false -- dim: of the view so far; d: of x
  for i = 1, n do
    local part = key[i]
    local kind = type(part)
    if kind == "number" then
      x, d = ops.select(x, dim, part), d + 1
    elseif kind == "table" then
      if next(part) ~= nil then
        local start, stop, step = bounds(x, dim, part, d)
        x = ops.slice(x, dim, start, stop, step)
      end
      dim, d = dim + 1, d + 1
    elseif part == "..." then
      if whole then fail("'...' stands twice in the key") end
      whole = true
      local rest = B.dim(x) - (dim - 1) - (taken(key, n) - taken(key, i))
      if rest < 0 then fail("the key takes %d dimensions of a tensor that has %d", taken(key, n), B.dim(x)) end
      dim, d = dim + rest, d + rest
    elseif part == "newaxis" then
      x, dim = ops.unsqueeze(x, dim), dim + 1
    elseif is_tensor(part) then
      local mask = kind_of(part) == "mask"
      if not mask and B.dim(part) == 0 and not B.is_fake(part) then
        if exporting() then
          fail("a tensor without dimensions stands for a number, which a recorded program does not know: write "
            .. "i:view(1) for it, which leaves a dimension of size 1")
        end
        x, d = ops.select(x, dim, (B.item(part))), d + 1
      else
        indices = indices or { dims = {} }
        if device_of(part) ~= device_of(x) then part = ops.to(part, { device = device_of(x) }) end
        if mask then
          x, dim = add_mask(x, dim, part, indices, d)
          d = d + B.dim(part)
        else
          local at = #indices.dims + 1
          indices.dims[at], indices[at] = dim, part
          dim, d = dim + 1, d + 1
        end
      end
    else
      fail("expected a number, a slice such as {1, 3}, {}, a tensor, '...' or 'newaxis', got %s",
        kind == "string" and ("'%s'"):format(part) or kind)
    end
  end
  if dim - 1 > B.dim(x) then fail("the key takes more dimensions than the %d that there are", d - dim + B.dim(x)) end
  return x, indices
end

-- Positions in several dimensions, stacked along a new last dimension.
local function joined(indices)
  local size = {}
  for _, t in ipairs(indices) do
    local own = B.size(t)
    for k = 1, #own do
      local a, b = size[k] or 1, own[#own + 1 - k]
      if a ~= b and a ~= 1 and b ~= 1 then
        local shapes = {}
        for i, p in ipairs(indices) do shapes[i] = shape_of(p) end
        fail("index tensors (a mask counts as its positions) of shapes %s do not broadcast together",
          table.concat(shapes, " and "))
      end
      size[k] = a == 1 and b or a
    end
  end
  local shape, list = {}, {}
  for k = 1, #size do shape[#size + 1 - k] = size[k] end
  for i, t in ipairs(indices) do list[i] = ops.expand(t, shape) end
  return ops.stack(list, -1)
end

-- The indices as the index argument of ops.gather_nd.
local function index_of(indices)
  if not indices.masks then return #indices == 1 and indices[1] or joined(indices) end
  local mask = indices.masks[1].mask
  if B.dim(mask) == #indices then
    local at = ops.nonzero(mask)
    return #indices == 1 and ops.reshape(at, { -1 }) or at
  end
  for _, m in ipairs(indices.masks) do
    local at = ops.nonzero(m.mask)
    for i = 1, B.dim(m.mask) do indices[m.at + i - 1] = ops.select(at, 2, i) end
  end
  return joined(indices)
end

-- Whether t is a mask of x's shape on x's device.
local function covers(x, t)
  local n = B.dim(t)
  if n == 0 or n ~= B.dim(x) or kind_of(t) ~= "mask" or device_of(t) ~= device_of(x) then return false end
  for i = 1, n do
    if B.size(t, i) ~= B.size(x, i) then return false end
  end
  return true
end

local function as_key(k)
  if type(k) == "table" then return k end
  if type(k) == "number" or is_tensor(k) then return { k } end
  fail("expected a number, a tensor or a list of them, got %s", type(k))
end

local function get(x, k)
  if type(k) == "number" then return ops.select(x, 1, k) end
  if is_tensor(k) and covers(x, k) then return ops.masked_select(x, k) end
  local view, indices = parse(x, as_key(k))
  if not indices then return rawequal(view, x) and ops.expand(x, B.size(x)) or view end
  local mask = indices.masks and indices.masks[1].mask
  if mask and covers(view, mask) then return ops.masked_select(view, mask) end
  return ops.gather_nd(view, indices.dims, index_of(indices))
end

-- A value with more dimensions than its target must have leading sizes of 1, which are dropped.
local function without_ones(v, dims)
  local size = B.dim(v) > dims and B.size(v)
  while size and #size > dims and size[1] == 1 do table.remove(size, 1) end
  return size and ops.reshape(v, size) or v
end

local function like(x) return { dtype = dtype_of(x), device = device_of(x) } end

local function put_masked(view, mask, v)
  if not is_tensor(v) then
    local fraction = type(v) == "number" and v % 1 ~= 0 and not dtype_of(view).is_floating_point
      and not dtype_of(view).is_complex
    return ops.masked_fill_(view, mask, fraction and ops.full({}, v, like(view)) or v) -- truncated as by copy_
  end
  v = without_ones(ops.to(v, like(view)), 1)
  if B.numel(v) == 1 and B.dim(v) <= 1 then return ops.masked_fill_(view, mask, ops.reshape(v, {})) end
  local count = not B.is_fake(mask) and ops.sum(mask):item()
  if B.dim(v) ~= 1 or count and count ~= B.numel(v) then
    fail("a value of shape %s does not broadcast to the %s elements of the mask", shape_of(v), count or "unknown")
  end
  ops.masked_scatter_(view, mask, v)
end

local function set(x, k, v, accumulate)
  if type(v) == "table" or type(v) == "cdata" and dtype_of(x).is_complex then v = B.tensor(v, dtype_of(x)) end
  if type(v) ~= "number" and type(v) ~= "boolean" and not is_tensor(v) then
    fail("expected a number or a tensor to assign, got %s", type(v))
  end
  if not accumulate and is_tensor(k) and covers(x, k) then return put_masked(x, k, v) end
  local view, indices = parse(x, as_key(k))
  local mask = indices and not accumulate and indices.masks and indices.masks[1].mask
  if mask and covers(view, mask) then
    put_masked(view, mask, v)
  elseif indices then
    local index = index_of(indices)
    local dims = B.dim(view) - #indices + B.dim(index) - (#indices > 1 and 1 or 0)
    v = is_tensor(v) and without_ones(ops.to(v, like(view)), dims) or ops.full({}, v, like(view))
    ops.scatter_nd_(view, indices.dims, index, v, accumulate)
  elseif is_tensor(v) then
    v = without_ones(v, B.dim(view))
    if accumulate then ops.add_(view, ops.expand(ops.to(v, like(view)), B.size(view))) else ops.copy_(view, v) end
  elseif accumulate then
    ops.add_(view, v)
  else
    ops.fill_(view, v)
  end
end

-- The error for a position in terms of x and the key: the op had only a view of x.
local function explain(x, k)
  k = as_key(k)
  local n = length(k)
  local sum, d = taken(k, n), 1
  if sum > B.dim(x) then fail("the key takes %d dimensions of a tensor that has %d", sum, B.dim(x)) end
  for i = 1, n do
    local part = k[i]
    local size = d <= B.dim(x) and B.size(x, d)
    local bad
    if type(part) == "number" then
      if part ~= math.floor(part) then fail("a position is an integer, got %.14g", part) end
      bad = (part == 0 or math.abs(part) > size) and part
    elseif is_tensor(part) and kind_of(part) == "positions" and B.numel(part) > 0 and not B.is_fake(part) then
      local t = ops.to(ops.reshape(part, { -1 }), { dtype = "int64" })
      t = ops.masked_select(t, ops.logical_or(ops.eq(t, 0), ops.logical_or(ops.gt(t, size), ops.lt(t, -size))))
      bad = B.numel(t) > 0 and B.item(ops.select(t, 1, 1))
    end
    if bad == 0 then fail("position 0 in dimension %d: moth counts from 1 (and from the end by -1)", d) end
    if bad then fail("position %.14g is out of range for dimension %d of size %d", bad, d, size) end
    d = part == "..." and B.dim(x) - (sum - taken(k, i)) + 1 or d + takes(part)
  end
end

local function at_user_level(x, k, ok, ...)
  if ok then return ... end
  local message = ...
  if type(message) ~= "string" then error(message, 0) end
  if not message:find "^index: " then
    local known, why = pcall(explain, x, k)
    message = not known and type(why) == "string" and why:match "^index: .*" or message
    local value, at = message:match "of shape (%b[]) cannot be broadcast to .-(%b[])" -- copy_, scatter_nd_
    if not value then at, value = message:match "%[copy_%] shapes (%b[]) and (%b[]) cannot be broadcast" end
    if not value then at, value = message:match "^.-%[expand%] .- of (%b[]); got self: %S+ (%b[])" end
    if value then
      message = ("index: a value of shape %s cannot be broadcast to its place, of shape %s"):format(value, at)
    end
  end
  if message:find "^index: " then B.raise(message) end
  error(message, 0)
end

function M.get(x, k) return at_user_level(x, k, pcall(get, x, k)) end
function M.set(x, k, v) return at_user_level(x, k, pcall(set, x, k, v)) end

local parameters = "%s(Tensor input, any indices, any values, bool accumulate=false)"

--- x[key] = v; with accumulate adds v, once for each occurrence of an index. Returns x.
M.index_put_ = signature(parameters:format "index_put_", function(x, k, v, accumulate)
  at_user_level(x, k, pcall(set, x, k, v, accumulate))
  return x
end)
--- The same on a copy.
M.index_put = signature(parameters:format "index_put", function(x, k, v, accumulate)
  x = ops.clone(x)
  at_user_level(x, k, pcall(set, x, k, v, accumulate))
  return x
end)

return M
