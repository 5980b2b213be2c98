--- Distributed checkpoints of PyTorch, written: the archives of one rank, and the index of all. What they consist of is
-- said in dcp.lua.
local B = require "moth_lua"
local Ordered = require "moth.nn.ordered"
local check = require "moth.utils.check"
local each = require "moth.each"
local moth = require "moth"
local system = require "moth.utils.system"
local torch_file = require "moth.io.torch_file"
local tree = require "moth.distributed.tree"

local M = {}

-- ---- names ---------------------------------------------------------------------------------------

local function sorted(t)
  local keys = {}
  for k in each(t) do keys[#keys + 1] = k end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

-- Options that PyTorch's optimizers have and ask for, and moth's may lack: None, or a value.
local NONE = {}
local options = { foreach = NONE, fused = NONE, differentiable = false, maximize = false, capturable = false }

local Mark = {} -- stands for a tensor

local function has_mark(v)
  if type(v) ~= "table" then return false end
  if getmetatable(v) == Mark then return true end
  for _, x in each(v) do if has_mark(x) then return true end end
  return false
end

-- Cuts a value as PyTorch does: dictionaries by their keys, lists if there are tensors in them.
local function flatten(v, path, out)
  if type(v) ~= "table" then
    out[#out + 1] = { path = path, value = v }
  elseif getmetatable(v) == Mark then
    out[#out + 1] = { path = path, tensor = v.name }
  else
    local keys = Ordered.is(v) and Ordered.keys(v) or sorted(v)
    local list = #keys > 0 and #v == #keys
    if #keys == 0 or list and not has_mark(v) then
      out[#out + 1] = { path = path, value = v }
      return
    end
    for _, k in ipairs(keys) do
      local longer = { unpack(path) }
      longer[#longer + 1] = list and k - 1 or tostring(k)
      flatten(rawget(v, k), longer, out)
    end
  end
end

-- The items of the plain values: { path, value } and { path, tensor = moth's own name }.
local function items_of(values)
  local out = {}
  for _, field in ipairs(sorted(values)) do
    local plain = values[field]
    if plain.names then
      flatten(tree.join(plain.skeleton, function(i) return setmetatable({ name = plain.names[i] }, Mark) end),
        { field }, out)
    else
      local shift = function(name) return plain.numbered and tostring(tonumber(name) - 1) or name end
      for _, name in ipairs(sorted(plain.state)) do
        for _, key in ipairs(sorted(plain.state[name])) do
          local v = plain.state[name][key]
          if key == "step" and type(v) == "number" then v = moth.full({}, v) end -- PyTorch's counts are tensors
          out[#out + 1] = { path = { field, "state", shift(name), key }, value = v }
        end
      end
      for g, group in ipairs(plain.groups) do
        local whole = {}
        for key, v in each(options) do whole[key] = v end
        for key, v in each(group) do whole[key] = v end
        for _, key in ipairs(sorted(whole)) do
          out[#out + 1] = { path = { field, "param_groups", g - 1, key }, value = whole[key] }
        end
        local params = {}
        for _, name in ipairs(sorted(plain.params[g] or {})) do
          params[#params + 1] = plain.numbered and tonumber(name) - 1 or name
        end
        table.sort(params)
        out[#out + 1] = { path = { field, "param_groups", g - 1, "params" }, value = params }
      end
    end
  end
  return out
end

-- The path of an entry of a module or of an optimizer's state.
local function path_of(name, values)
  for field, plain in each(values) do
    if plain.state and name:sub(1, #field + 7) == field .. ".state." then
      local of, key = name:sub(#field + 8):match "^(.*)%.([^.]+)$"
      if plain.numbered then of = tostring(tonumber(of) - 1) end
      return { field, "state", of, key }
    end
  end
  local field, rest = name:match "^([^.]*)%.(.*)$"
  return { field, rest }
end

-- ---- the index -----------------------------------------------------------------------------------

local CORE, FILES = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"

-- A pickle of protocol 2, by its parts.
local function pickle()
  local w, out, names, count = torch_file.words, { "\128\2" }, {}, 0
  local p = {}
  function p.put(...) for i = 1, select("#", ...) do out[#out + 1] = (select(i, ...)) end end
  function p.text(s) p.put(w.text(s)) end
  function p.int(n) p.put(w.integer(n)) end
  function p.name(module, name)
    local key = module .. " " .. name
    if not names[key] then
      p.put("c", module, "\n", name, "\nr", w.u32(count))
      names[key], count = count, count + 1
    else
      p.put("j", w.u32(names[key]))
    end
  end
  function p.object(module, name, fn) -- fn writes the fields
    p.name(module, name)
    p.put(")\129}(")
    fn()
    p.put "ub"
  end
  function p.size(list)
    p.name("torch", "Size")
    p.put("(")
    for _, n in ipairs(list) do p.int(n) end
    p.put "t\133R"
  end
  function p.done() return table.concat(out) .. "." end
  return p
end

-- all: by name { path, dtype, shape, chunks = { { offset, size, file, at, length } } }, or { path, file, at, length }.
local function metadata(all)
  local p, names = pickle(), sorted(all)
  local function tensor(e)
    p.object(CORE, "TensorStorageMetadata", function()
      p.text "properties"
      p.name(CORE, "TensorProperties")
      p.put(")\129(")
      p.name("torch", e.dtype)
      p.name("torch.serialization", "_get_layout")
      p.text "torch.strided"
      p.put "\133R\137"
      p.name(CORE, "_MEM_FORMAT_ENCODING")
      p.int(0)
      p.put "\133R\137tb"
      p.text "size"
      p.size(e.shape)
      p.text "chunks"
      p.put "]("
      for _, c in ipairs(e.chunks) do
        p.object(CORE, "ChunkStorageMetadata", function()
          p.text "offsets"
          p.size(c.offset)
          p.text "sizes"
          p.size(c.size)
        end)
      end
      p.put "e"
    end)
  end
  local function stored(name, at, offset, index)
    p.object(CORE, "MetadataIndex", function()
      p.text "fqn"
      p.text(name)
      p.text "offset"
      if offset then p.size(offset) else p.put "N" end
      p.text "index"
      if index then p.int(index) else p.put "N" end
    end)
    p.object(FILES, "_StorageInfo", function()
      p.text "relative_path"
      p.text(at.file)
      p.text "offset"
      p.int(at.at)
      p.text "length"
      p.int(at.length)
    end)
  end
  p.object(CORE, "Metadata", function()
    p.text "state_dict_metadata"
    p.put "}("
    for _, name in ipairs(names) do
      p.text(name)
      if all[name].chunks then
        tensor(all[name])
      else
        p.name(CORE, "BytesStorageMetadata")
        p.put ")\129"
      end
    end
    p.put "u"
    p.text "planner_data"
    p.put "}("
    for _, name in ipairs(names) do
      p.text(name)
      p.put "("
      for _, part in ipairs(all[name].path) do
        if type(part) == "number" then p.int(part) else p.text(part) end
      end
      p.put "t"
    end
    p.put "u"
    p.text "storage_data"
    p.put "}("
    for _, name in ipairs(names) do
      local e = all[name]
      if e.chunks then
        for i, c in ipairs(e.chunks) do stored(name, c, c.offset, i - 1) end
      else
        stored(name, e)
      end
    end
    p.put "u"
    p.text "storage_meta"
    p.put "N"
    p.text "version"
    p.text "1.0.0"
  end)
  return p.done()
end

-- ---- saving --------------------------------------------------------------------------------------

--- Completes a job: its archives; the index on rank 0. gather(value) gives those of all ranks.
function M.prepare(job, plan, values, gather)
  job.file = ("__%d_%s.distcp"):format(job.rank, job.id)
  job.pieces = {}
  local at = 0
  local function add(value)
    local length = 0
    for _, piece in ipairs(torch_file.pieces(value, "archive")) do
      job.pieces[#job.pieces + 1] = piece
      length = length + (type(piece) == "string" and #piece or piece:numel() * piece:dtype().itemsize)
    end
    at = at + length
    return { file = job.file, at = at - length, length = length }
  end
  local places = {}
  for i, t in ipairs(job.tensors) do places[job.keys[i]] = add(t) end
  local all, tensors = {}, {}
  if job.rank == 0 then
    for _, item in ipairs(items_of(values)) do
      local text = {}
      for i, part in ipairs(item.path) do text[i] = tostring(part) end
      local name = table.concat(text, ".")
      if item.tensor then
        tensors[item.tensor] = { name = name, path = item.path }
      elseif B.is_tensor(item.value) then
        local e = add(item.value)
        e.offset, e.size = {}, {}
        all[name] = { path = item.path, dtype = item.value:dtype().name, shape = {}, chunks = { e } }
      else
        if item.value == NONE then item.value = nil end
        all[name] = add(item.value)
        all[name].path = item.path
      end
    end
  end
  local theirs = gather(places)
  job.keys, job.tensors = {}, {}
  if job.rank ~= 0 then return end
  for _, of in ipairs(theirs) do for key, place in each(of) do places[key] = place end end
  for own, e in each(plan) do
    local path = tensors[own] and tensors[own].path or path_of(own, values)
    local text, chunks = {}, {}
    for i, part in ipairs(path) do text[i] = tostring(part) end
    for i, c in ipairs(e.chunks) do
      local place = places[own .. "@" .. table.concat(c.offset, ",")]
      chunks[i] = { offset = c.offset, size = c.size, file = place.file, at = place.at, length = place.length }
    end
    all[table.concat(text, ".")] = { path = path, dtype = e.dtype, shape = e.shape, chunks = chunks }
  end
  job.metadata = metadata(all)
end

function M.write(job) B.write_file(("%s/%s"):format(job.dir, job.file), job.pieces) end

--- Replaces the index; then removes what belongs to others.
function M.commit(job)
  B.write_file(job.dir .. "/.metadata", { job.metadata })
  for _, name in ipairs(system.list(job.dir) or {}) do
    if name:match "^__%d+_.*%.distcp$" and not name:find("_" .. job.id .. ".", 1, true) then
      os.remove(job.dir .. "/" .. name)
    end
  end
end

--- Before anything is written: the folder has no checkpoint of the other kind.
function M.check_folder(dir, format)
  local other = format == "dcp" and "index.json" or ".metadata"
  if system.exists(dir .. "/" .. other) then
    check.fail("[distributed.checkpoint.save] %s has a checkpoint of the other format (%s): give another folder, or "
      .. "remove it", dir, other)
  end
end

return M
