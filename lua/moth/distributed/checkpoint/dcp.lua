--- Distributed checkpoints of PyTorch (torch.distributed.checkpoint, DCP), read.
--
-- The folder has `.metadata`, a pickle: the boxes of each tensor, and where the archive of each box and value lies in
-- the files `__R_K.distcp`. Each archive is a file of torch.save. Names are paths joined by dots
-- ("optim.state.0.step"); the index has the paths, too, in which positions of lists count from 0.
local B = require "moth_lua"
local Ordered = require "moth.nn.ordered"
local check = require "moth.utils.check"
local each = require "moth.each"
local files = require "moth.distributed.checkpoint.files"
local interop = require "moth.io.interop"
local tree = require "moth.distributed.tree"

local M = {}

-- An error without its place and the function that was called.
local function plain(why) return (tostring(why):gsub("^[^\n]-:%d+: ", ""):gsub("^%[[%w._]+%] ", "")) end

local function damaged(dir, what)
  check.fail("[distributed.checkpoint] %s/.metadata is damaged, or of another version: %s", dir, what)
end

local function is_size(t, n)
  if type(t) ~= "table" or n and #t ~= n then return false end
  for _, v in ipairs(t) do if type(v) ~= "number" or v < 0 or v % 1 ~= 0 then return false end end
  return true
end

-- Where an item lies.
local function place_of(dir, name, info)
  local file = type(info) == "table" and info.relative_path
  if type(file) ~= "string" or file:find "[/\\]" or file == ".." or not is_size({ info.offset, info.length }, 2) then
    damaged(dir, ("where '%s' lies"):format(name))
  end
  if info.transform_descriptors and next(info.transform_descriptors) ~= nil then
    check.fail("[distributed.checkpoint] %s: '%s' is written by the extension %s, which moth does not have; in Python, "
      .. "save without _extensions", dir, name, tostring(info.transform_descriptors[1]))
  end
  return { file = file, at = info.offset, length = info.length }
end

local function tensor_entry(dir, name, about, places)
  local kind = type(about.properties) == "table" and about.properties[1]
  if not B.is_dtype(kind) or not is_size(about.size) or type(about.chunks) ~= "table" then
    damaged(dir, ("the tensor '%s'"):format(name))
  end
  local e = { dtype = kind.name, shape = about.size, chunks = {} }
  for i, chunk in ipairs(about.chunks) do
    local n = #about.size
    local fits = type(chunk) == "table" and is_size(chunk.offsets, n) and is_size(chunk.sizes, n)
    for d = 1, fits and n or 0 do fits = fits and chunk.offsets[d] + chunk.sizes[d] <= about.size[d] end
    if not fits then damaged(dir, ("the parts of '%s'"):format(name)) end
    local at = places[files.key(name, chunk.offsets)]
    if not at then damaged(dir, ("'%s' at %s is nowhere"):format(name, table.concat(chunk.offsets, ", "))) end
    e.chunks[i] = { offset = chunk.offsets, size = chunk.sizes, file = at.file, at = at.at, length = at.length }
  end
  return e
end

--- The index: entries as of moth's own; values: where each value lies; fields: by the first part of their paths, lists
-- of { name, path }.
function M.index(dir)
  local ok, meta = pcall(interop.load, "records", dir .. "/.metadata")
  if not ok then check.fail("[distributed.checkpoint] %s", plain(meta)) end
  if type(meta) ~= "table" or type(meta.state_dict_metadata) ~= "table" or type(meta.storage_data) ~= "table" then
    damaged(dir, "no Metadata")
  end
  local index = { format = "dcp", entries = {}, values = {}, fields = {}, world_size = 0 }
  local places, ranks = {}, {}
  for key, info in each(meta.storage_data) do
    if type(key) ~= "table" or type(key.fqn) ~= "string" or key.offset ~= nil and not is_size(key.offset) then
      damaged(dir, "storage_data")
    end
    local at = place_of(dir, key.fqn, info)
    places[key.offset and files.key(key.fqn, key.offset) or key.fqn] = at
    local rank = at.file:match "^__(%d+)_"
    if rank and not ranks[rank] then ranks[rank], index.world_size = true, index.world_size + 1 end
  end
  for name, about in each(meta.state_dict_metadata) do
    if type(name) ~= "string" or type(about) ~= "table" then damaged(dir, "state_dict_metadata") end
    if about.size then
      index.entries[name] = tensor_entry(dir, name, about, places)
    else
      index.values[name] = places[name] or damaged(dir, ("'%s' is nowhere"):format(name))
    end
    local path = type(meta.planner_data) == "table" and meta.planner_data[name]
    if type(path) ~= "table" or #path == 0 then path = { name } end
    local field = tostring(path[1])
    index.fields[field] = index.fields[field] or {}
    table.insert(index.fields[field], { name = name, path = path })
  end
  for _, list in each(index.fields) do table.sort(list, function(a, b) return a.name < b.name end) end
  return index
end

local function archive(dir, name, at)
  local ok, value = pcall(interop.load, "zip", dir .. "/" .. at.file, nil, nil, nil, at.at, at.length)
  if not ok then
    check.fail("[distributed.checkpoint.load] '%s' of %s cannot be read: %s", name, dir, plain(value))
  end
  return value
end

--- The tensor of a box.
function M.chunk(dir, name, saved, chunk)
  local t = archive(dir, name, chunk)
  if not B.is_tensor(t) or t:dtype().name ~= saved.dtype or table.concat(t.shape, ",") ~= table.concat(chunk.size, ",")
  then
    check.fail("[distributed.checkpoint.load] %s/%s at %d is not the part of '%s' that .metadata says", dir, chunk.file,
      chunk.at, name)
  end
  return t:detach()
end

--- A value that is no tensor.
function M.value(reader, name) return archive(reader.dir, name, reader.index.values[name]) end

local function leaf(reader, name, given)
  if reader.index.values[name] then return M.value(reader, name) end
  return reader:into(name, B.is_tensor(given) and given or nil)
end

-- The key of a table for a part of a path: lists count from 0 there, and all keys of dictionaries are text.
local function key_of(part, given)
  if type(part) == "number" then return part + 1 end
  local n = tonumber(part)
  if n and type(given) == "table" and rawget(given, part) == nil and rawget(given, n) ~= nil then return n end
  return part
end

-- Numbers as keys of an optimizer's state, and tables with an order where given ones have one.
local function tidied(out, given)
  if type(out) ~= "table" or getmetatable(out) ~= nil then return out end
  for k, v in each(out) do out[k] = tidied(v, type(given) == "table" and rawget(given, k) or nil) end
  if type(out.state) == "table" and type(out.param_groups) == "table" then
    local state = {}
    for k, v in each(out.state) do state[tonumber(k) or k] = v end
    out.state = state
  end
  if not Ordered.is(given) then return out end
  local keys, seen, more = {}, {}, {}
  for _, k in ipairs(Ordered.keys(given)) do
    if out[k] ~= nil then keys[#keys + 1], seen[k] = k, true end
  end
  for k in each(out) do if not seen[k] then more[#more + 1] = k end end
  table.sort(more, function(a, b) return tostring(a) < tostring(b) end)
  for _, k in ipairs(more) do keys[#keys + 1] = k end
  return require("moth.nn.state_dict").from(keys, out)
end

--- The value of a field, as nested tables; tensors that stand at the same place in `given` are filled. Returns the
-- names that were read, too.
function M.nested(reader, field, given)
  local root, used = {}, {}
  for _, item in ipairs(reader.index.fields[field] or {}) do
    local at, like, path, own = root, { [field] = given }, item.path, { field }
    for i = 1, #path do
      local key = i == 1 and field or key_of(path[i], like)
      like, own[i] = type(like) == "table" and rawget(like, key) or nil, tostring(key)
      if i < #path then
        if at[key] == nil then at[key] = {} end
        at = at[key]
        if type(at) ~= "table" or B.is_tensor(at) then damaged(reader.dir, ("the path of '%s'"):format(item.name)) end
      else
        at[key] = leaf(reader, item.name, like)
      end
    end
    used[table.concat(own, ".")] = true
  end
  return tidied(root[field], given), used
end

-- ---- optimizers ----------------------------------------------------------------------------------

local function put(t, a, b, v)
  t[a] = t[a] or {}
  t[a][b] = v
end

-- The parts behind the field: { "state", name, key } or { "param_groups", number or name, key }. What
-- flatten_optimizer_state_dict writes has them in one text.
local function parts_of(path)
  if #path == 4 then return path[2], path[3], path[4] end
  local text = {}
  for i = 2, #path do text[i - 1] = tostring(path[i]) end
  return table.concat(text, "."):match "^([%a_]+)%.(.*)%.([^.]+)$"
end

--- The state of an optimizer in the form of moth's own: { state, tensors (names by parameter and key), groups }.
-- Parameters have their names, or numbers from 0: id(g, i, p) gives that which one has in the checkpoint.
function M.optimizer(reader, field, opt, names)
  local saved, of_name = { state = {}, tensors = {}, groups = {} }, {}
  for _, item in ipairs(reader.index.fields[field] or {}) do
    local part, at, key = parts_of(item.path)
    if part == "state" then
      if reader.index.entries[item.name] then
        put(saved.tensors, at, key, item.name)
      else
        put(saved.state, at, key, M.value(reader, item.name))
      end
    elseif part == "param_groups" and type(at) == "number" then
      put(saved.groups, at + 1, key, leaf(reader, item.name))
    elseif part == "param_groups" then
      put(of_name, at, key, leaf(reader, item.name))
    end
  end
  local whole = reader.index.values[field .. ".param_groups"] -- a list that is stored as one value
  if whole then saved.groups = M.value(reader, field .. ".param_groups") end
  local params = {}
  for g, group in ipairs(opt.param_groups) do
    local of = saved.groups[g] or next(of_name) and of_name[names[group.params[1]]]
    saved.groups[g], params[g] = {}, {}
    for key, v in each(of or {}) do
      if key == "params" then params[g] = v else saved.groups[g][key] = v end
    end
  end
  local known = {}
  for _, list in ipairs(params) do for _, id in ipairs(list) do known[tostring(id)] = true end end
  for id in each(of_name) do known[id] = true end
  for id in each(saved.tensors) do known[id] = true end
  function saved.id(g, i, p)
    local id = params[g][i]
    if type(id) ~= "number" and names[p] then id = names[p] end
    id = id ~= nil and tostring(id) or nil
    if not id or not known[id] then
      local list = {}
      for name in each(known) do list[#list + 1] = name end
      table.sort(list)
      check.fail("[distributed.checkpoint.load] '%s' of %s has nothing of the parameter '%s' (number %d of group %d); "
        .. "it has %s", field, reader.dir, names[p] or "without a name", i, g, tree.some(list))
    end
    return id
  end
  return saved
end

return M
