--- Device meshes: the ranks of the job in a grid, with a process group along each dimension.
--
--     local mesh = dist.device_mesh({ 2, 2, 2 }, { "dp", "pp", "tp" })  -- 8 ranks; the last dimension's are neighbours
--     mesh:group "tp", mesh:rank "tp", mesh:size "tp"                   -- of this process
--     mesh.tp, mesh { "dp", "tp" }                                      -- parts: meshes of fewer dimensions
--     mesh { "dp", "tp" }:flatten()                                     -- a mesh of one dimension, of 4 ranks here
--
-- All processes make meshes, and flatten them, in the same order. Functions that take a mesh of one dimension take a
-- process group, too. Ranks and coordinates count from 0, dimensions from 1.
local check = require "moth.utils.check"
local class = require "moth.class"
local groups = require "moth.distributed.group"
local signature = require "moth.utils.signature"

local M = {}

local DeviceMesh = class("DeviceMesh")
M.DeviceMesh = DeviceMesh
DeviceMesh.__init = function()
  check.fail("[distributed.DeviceMesh] is made by dist.device_mesh")
end

-- A mesh has: shape, names, root (the mesh that it is a part of, or itself), dims (positions of its dimensions in the
-- root), coordinate. A root also: strides, groups (by dimension), flat (flattened parts, by their dimensions).

function DeviceMesh.__index(self, key)
  local method = DeviceMesh[key]
  if method ~= nil then return method end
  for i, name in ipairs(rawget(self, "names") or {}) do
    if name == key then return self:__part({ i }) end
  end
  if type(key) == "string" and key:sub(1, 1) ~= "_" then
    check.fail("[distributed.DeviceMesh] there is no dimension '%s' in %s%s", key, tostring(self),
      check.suggest(key, rawget(self, "names") or {}))
  end
end

local function is_mesh(v) return type(v) == "table" and getmetatable(v) == DeviceMesh end
signature.type("DeviceMesh", is_mesh, "a device mesh")

local function shape_text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

function DeviceMesh.__tostring(self)
  local parts = {}
  for i, n in ipairs(self.shape) do parts[i] = ("%s=%d"):format(self.names[i], n) end
  return ("DeviceMesh(%s)"):format(table.concat(parts, ", "))
end

-- The ranks that differ from rank `base` in the given dimensions of the root, in row-major order.
local function ranks_over(root, base, dims)
  local list = { base }
  for _, d in ipairs(dims) do
    local longer = {}
    for _, r in ipairs(list) do
      for k = 0, root.shape[d] - 1 do longer[#longer + 1] = r + k * root.strides[d] end
    end
    list = longer
  end
  return list
end

-- The group of this process along some dimensions of the root; all processes call it.
local function group_over(root, dims)
  local inside, others = {}, {}
  for _, d in ipairs(dims) do inside[d] = true end
  for d = 1, #root.shape do if not inside[d] then others[#others + 1] = d end end
  local all = groups.of(nil, "device_mesh")
  if #others == 0 then return all end
  local lists = {}
  for i, base in ipairs(ranks_over(root, 0, others)) do lists[i] = ranks_over(root, base, dims) end
  return groups.split_group(lists)
end

local function make(fields) return setmetatable(fields, DeviceMesh) end

--- A mesh of all ranks of the job. mesh_dim_names: of the dimensions; without names they are "dim1", "dim2", …
-- Rank r has the coordinate of the r-th element of a row-major array of this shape.
-- Errors: the product of the shape is not the number of ranks.
M.device_mesh = signature("distributed.device_mesh(count[] mesh_shape, list mesh_dim_names?)", function(shape, names)
  local all, where = groups.of(nil, "device_mesh"), "[distributed.device_mesh] "
  local total, own, strides = 1, {}, {}
  for i, n in ipairs(shape) do total, own[i] = total * n, n end
  if #own == 0 then check.fail(where .. "mesh_shape: expected at least one dimension") end
  if total ~= all.size then
    check.fail(where .. "a mesh of shape %s has %d ranks, the job has %d", shape_text(own), total, all.size)
  end
  if names and #names ~= #own then
    check.fail(where .. "mesh_dim_names: %d names for the %d dimensions of %s", #names, #own, shape_text(own))
  end
  local seen, list = {}, {}
  for i = 1, #own do
    local name = names and names[i] or "dim" .. i
    if type(name) ~= "string" or not name:find("^%a[%w_]*$") then
      check.fail(where .. "mesh_dim_names: '%s' is no name of letters, digits and _", tostring(name))
    end
    if DeviceMesh[name] ~= nil or name == "shape" or name == "names" or name == "ndim" then
      check.fail(where .. "mesh_dim_names: '%s' is a field of meshes", name)
    end
    if seen[name] then check.fail(where .. "mesh_dim_names: two dimensions are called '%s'", name) end
    seen[name], list[i] = true, name
  end
  local step, coordinate = 1, {}
  for i = #own, 1, -1 do
    strides[i] = step
    coordinate[i] = math.floor(all.rank / step) % own[i]
    step = step * own[i]
  end
  local root = make { shape = own, names = list, ndim = #own, strides = strides, coordinate = coordinate, groups = {},
    flat = {}, dims = {} }
  root.root = root
  for i = 1, #own do
    root.dims[i] = i
    root.groups[i] = group_over(root, { i })
  end
  return root
end)

--- PyTorch's spelling: init_device_mesh("cpu", { 2, 4 }, { mesh_dim_names = { "dp", "tp" } }). The device is not used:
-- tensors say where they are.
M.init_device_mesh = signature("distributed.init_device_mesh(device device_type, count[] mesh_shape, *, \z
  list mesh_dim_names?)", function(_, shape, names) return M.device_mesh(shape, names) end)

local function position(self, dim, what)
  if dim == nil then
    if #self.shape == 1 then return 1 end
    check.fail("[distributed.DeviceMesh] %s: %s has %d dimensions: say which", what, tostring(self), #self.shape)
  end
  for i, name in ipairs(self.names) do if name == dim or i == dim then return i end end
  check.fail("[distributed.DeviceMesh] %s: there is no dimension '%s' in %s", what, tostring(dim), tostring(self))
end

function DeviceMesh:__part(list)
  local part = { root = self.root, shape = {}, names = {}, dims = {}, coordinate = {}, ndim = #list }
  for k, i in ipairs(list) do
    part.shape[k], part.names[k] = self.shape[i], self.names[i]
    part.dims[k], part.coordinate[k] = self.dims[i], self.coordinate[i]
  end
  return make(part)
end

--- mesh "tp", mesh { "dp", "tp" }: the part with these dimensions, in the order of the mesh.
function DeviceMesh.__call(self, names)
  if type(names) ~= "table" then names = { names } end
  local list = {}
  for k, name in ipairs(names) do
    list[k] = position(self, name, "slice")
    if k > 1 and list[k] <= list[k - 1] then
      check.fail("[distributed.DeviceMesh] slice: dimensions in the order of %s, got %s", tostring(self),
        table.concat(names, ", "))
    end
  end
  if #list == 0 then check.fail("[distributed.DeviceMesh] slice: expected names of %s", tostring(self)) end
  return self:__part(list)
end

--- The process group along a dimension (a name or a position; none is needed where there is only one).
function DeviceMesh:group(dim) return self.root.groups[self.dims[position(self, dim, "group")]] end
--- This process's rank along a dimension: its coordinate.
function DeviceMesh:rank(dim) return self.coordinate[position(self, dim, "rank")] end
DeviceMesh.get_group, DeviceMesh.get_local_rank = DeviceMesh.group, DeviceMesh.rank

--- The number of ranks along a dimension, or of all.
function DeviceMesh:size(dim)
  if dim ~= nil then return self.shape[position(self, dim, "size")] end
  local n = 1
  for _, k in ipairs(self.shape) do n = n * k end
  return n
end

--- This process's place: a list with a coordinate for each dimension.
function DeviceMesh:get_coordinate()
  local list = {}
  for i, c in ipairs(self.coordinate) do list[i] = c end
  return list
end

--- The same ranks as a mesh of one dimension, named `name` (default: the names joined by _). All processes call it.
function DeviceMesh:flatten(name)
  if #self.shape == 1 then return self end
  name = name or table.concat(self.names, "_")
  local root, key = self.root, table.concat(self.dims, ",")
  local group = root.flat[key] or group_over(root, self.dims)
  root.flat[key] = group
  local flat = make { shape = { group.size }, names = { name }, ndim = 1, dims = { 1 }, coordinate = { group.rank },
    strides = { 1 }, groups = { group }, flat = {} }
  flat.root = flat
  return flat
end

--- The group meant by an argument: nil (all ranks), a process group, or a mesh of one dimension; for files of this
-- folder. `what` is the caller.
function M.group_of(v, what)
  if not is_mesh(v) then return groups.of(v, what) end
  if #v.shape ~= 1 then
    check.fail("[distributed.%s] expected a mesh of one dimension, got %s: take one of them (mesh.%s), or \z
      mesh:flatten()", what, tostring(v), v.names[1])
  end
  return groups.of(v:group(), what)
end

return M
