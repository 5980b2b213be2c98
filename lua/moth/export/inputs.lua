--- What is exported, before it is recorded: the names of its arguments and of its tensors, and the dimensions that
-- dynamic_shapes gives them.
local B = require "moth_lua"
local check = require "moth.utils.check"
local tree = require "moth.lang.tree"
local class = require "moth.class"
local each = require "moth.each"
local sizes = require "moth.compile.sizes"

local M = {}

-- ---- names ---------------------------------------------------------------------------------------

local function is_module(fn) return type(fn) == "table" and type(fn.named_parameters) == "function" end

-- The names of a function's arguments, as its source has them.
local function names_of(fn)
  local f, first = fn, 1
  if type(fn) == "table" and rawget(fn, "argument_names") then return fn.argument_names end
  if type(fn) == "table" then f, first = rawget(fn, "forward") or fn.forward, 2 end
  local list = {}
  if type(f) ~= "function" then return list end
  for i = first, debug.getinfo(f, "u").nparams or 0 do list[#list + 1] = debug.getlocal(f, i) end
  return list
end

local function unique(used, name)
  local n, free = 1, name
  while used[free] do
    n = n + 1
    free = name .. "_" .. n
  end
  used[free] = true
  return free
end

--- The tensors of a module by name, with { kind = "parameter" or "buffer", tensor = }, and their names by key_of.
function M.state_of(fn)
  local state, names = {}, {}
  if not is_module(fn) then return state, names end
  for name, p in fn:named_parameters() do
    state[name], names[B.memory_key(p)] = { kind = "parameter", tensor = p }, name
  end
  for name, b in fn:named_buffers() do
    local key = B.memory_key(b)
    if not names[key] then state[name], names[key] = { kind = "buffer", tensor = b }, name end
  end
  return state, names
end

-- ---- inputs --------------------------------------------------------------------------------------

-- The Dims that dynamic_shapes has, by name: what a name alone stands for.
local function named_dims(spec, out)
  for _, value in each(type(spec) == "table" and spec or {}) do
    if class.is_a(value, sizes.Dim) then
      out[value.name] = out[value.name] or value
    else
      named_dims(value, out)
    end
  end
  return out
end

local function dim_of(where, spec, named)
  if type(spec) == "string" then return named[spec] or sizes.Dim(spec) end
  if class.is_a(spec, sizes.Dim) then return spec end
  check.fail("[export] dynamic_shapes: %s: expected moth.Dim(name) or a name, got %s", where, class.name(spec))
end

-- The dimensions of one tensor: { [dimension] = Dim }.
local function dims_of_tensor(where, t, spec, out)
  if spec == nil or spec == false then return {} end
  if type(spec) ~= "table" or class.is_a(spec, sizes.Dim) then
    check.fail("[export] dynamic_shapes: %s: expected a table { [dimension] = moth.Dim(…) }, got %s", where,
      class.name(spec))
  end
  local list = {}
  for key, value in each(spec) do
    local ndim = t:dim()
    if type(key) ~= "number" or key ~= math.floor(key) or key == 0 or math.abs(key) > ndim then
      check.fail("[export] dynamic_shapes: %s has %d dimensions, no dimension %s", where, ndim, tostring(key))
    end
    local at = key < 0 and ndim + 1 + key or key
    local dim = dim_of(where, value, out.named)
    local known = out.dims[dim.name]
    if known and (known.min ~= dim.min or known.max ~= dim.max or known.multiple_of ~= dim.multiple_of) then
      check.fail("[export] dynamic_shapes: there are two dimensions '%s' with different ranges", dim.name)
    end
    if out.example[dim.name] and out.example[dim.name] ~= t:size(at) then
      check.fail("[export] dynamic_shapes: '%s' is %d and %d in the example's tensors: the same name is the same size",
        dim.name, out.example[dim.name], t:size(at))
    end
    if not sizes.fits(dim, t:size(at)) then
      check.fail("[export] dynamic_shapes: %s has %d in dimension %d, which is not in the range of %s", where,
        t:size(at), at, tostring(dim))
    end
    out.dims[dim.name] = { min = dim.min, max = dim.max, multiple_of = dim.multiple_of }
    out.example[dim.name] = t:size(at)
    list[at] = dim.name
  end
  return list
end

--- Whether two structures, of tree.flatten, are one.
function M.same_structure(a, b)
  if not a or not b then return a == b end
  if #a.keys ~= #b.keys then return false end
  for i, key in ipairs(a.keys) do
    if key ~= b.keys[i] or not M.same_structure(a[i], b[i]) then return false end
  end
  return true
end

--- Files and the names of values have room for keys that are texts and numbers.
function M.check_keys(spec, what)
  for i, key in ipairs(spec and spec.keys or {}) do
    if type(key) ~= "string" and (type(key) ~= "number" or key - key ~= 0) then
      check.fail("[export] %s: tables have texts and numbers as keys, got %s", what, tostring(key))
    end
    M.check_keys(spec[i], what)
  end
end

-- Walks the arguments and dynamic_shapes side by side, in the order of tree.flatten.
local function collect(where, value, spec, out)
  if B.is_tensor(value) then
    local name = unique(out.used, where:gsub("[^%w_]", "_"))
    local dims, shape = dims_of_tensor(where, value, spec, out), {}
    for i, n in ipairs(value:size()) do shape[i] = dims[i] or n end
    out.inputs[#out.inputs + 1] = { name = name, dtype = value:dtype().name, shape = shape,
      device = value:device().type }
    out.tensors[#out.tensors + 1] = value
    return
  end
  if type(value) == "table" and check.is_plain(value) then
    if spec and (type(spec) ~= "table" or class.is_a(spec, sizes.Dim)) then
      check.fail("[export] dynamic_shapes: %s is a table: expected one of what its tensors have, got %s", where,
        class.name(spec))
    end
    for key in each(spec or {}) do
      if value[key] == nil then check.fail("[export] dynamic_shapes: %s has no %s", where, tostring(key)) end
    end
    for _, key in ipairs(tree.keys(value)) do
      collect(where .. "_" .. tostring(key), value[key], spec and spec[key], out)
    end
    return
  end
  local kind = type(value)
  if kind ~= "number" and kind ~= "string" and kind ~= "boolean" then
    check.fail("[export] argument %s: expected tensors, numbers, strings, booleans or tables of them, got %s", where,
      class.name(value))
  end
  if spec then check.fail("[export] dynamic_shapes: %s is a %s, which has no dimensions", where, kind) end
end

--- What stands behind a list of arguments: { inputs, tensors, leaves, spec, dims, example }.
function M.inputs(fn, args, dynamic)
  local out = { inputs = {}, tensors = {}, dims = {}, example = {}, used = {},
    named = named_dims(dynamic, {}) }
  local names = names_of(fn)
  local list = {}
  for i = 1, args.n or table.maxn(args) do list[i] = args[i] end
  for key in each(dynamic or {}) do
    local known = type(key) == "number" and list[key] ~= nil
    for i, name in ipairs(names) do known = known or name == key and list[i] ~= nil end
    if not known then check.fail("[export] dynamic_shapes: there is no argument %s", tostring(key)) end
  end
  for _, i in ipairs(tree.keys(list)) do
    local name = names[i] or "x" .. i
    collect(name, list[i], dynamic and (dynamic[i] or dynamic[name]), out)
  end
  out.leaves, out.spec = tree.flatten(list)
  M.check_keys(out.spec, "arguments")
  return out
end

return M
