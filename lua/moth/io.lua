--- Saving and loading: safetensors for tensors, JSON for the rest, in one file; written atomically.
-- The file is a plain safetensors file. Tensors are named by their path in the table ("model.net.1.weight"); the
-- table's shape and everything that is no tensor is JSON in its metadata, with a SHA-256 of that text. Loading never
-- runs code.
local B = require "moth_lua"
local ops = B.ops
local M = {}

local function json()
  local ok, cjson = pcall(require, "cjson.safe")
  if not ok then error("moth.save and moth.load need lua-cjson (Debian: lua-cjson)", 3) end
  cjson = cjson.new()
  cjson.encode_sparse_array(false, 1, 0)
  cjson.encode_max_depth(100)
  cjson.decode_max_depth(200)
  return cjson
end

-- A value as JSON can hold it: tables become {k="t", a={…}, h={{key, value}, …}}, numbers strings that lose nothing.
local pack

local function pack_table(t, path, out, seen)
  if seen[t] then error(("save: the table at '%s' contains itself"):format(path), 0) end
  seen[t] = true
  local n = #t
  local node = { k = "t", a = {}, h = {} }
  for i = 1, n do node.a[i] = pack(t[i], path == "" and tostring(i) or path .. "." .. i, out, seen) end
  local keys = {}
  if type(t.keys) == "function" and getmetatable(t) then -- an ordered state dict
    node.k = "sd"
    for _, k in ipairs(t:keys()) do keys[#keys + 1] = k end
  else
    for k in pairs(t) do
      if not (type(k) == "number" and k >= 1 and k <= n and k == math.floor(k)) then keys[#keys + 1] = k end
    end
    table.sort(keys, function(a, b)
      if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
      return type(a) < type(b)
    end)
  end
  for _, k in ipairs(keys) do
    if type(k) ~= "string" and type(k) ~= "number" then
      error(("save: a key of type %s in '%s' cannot be saved; keys are strings or numbers"):format(type(k), path), 0)
    end
    local name = type(k) == "number" and ("%.17g"):format(k) or k
    local inner = path == "" and name or path .. "." .. name
    node.h[#node.h + 1] = { type(k) == "number" and "n" or "s", name, pack(t[k], inner, out, seen) }
  end
  seen[t] = nil
  return node
end

function pack(v, path, out, seen)
  if B.is_tensor(v) then
    local name = path == "" and "tensor" or path
    while out.used[name] do name = name .. "_" end
    out.used[name] = true
    out.names[#out.names + 1] = name
    local plain = ops.contiguous(ops.to(B.alias(v, false), { device = "cpu" }))
    out.tensors[#out.tensors + 1] = plain
    return { k = "x", v = name, g = B.requires_grad(v) and B.is_leaf(v) or nil }
  end
  local kind = type(v)
  if kind == "table" then return pack_table(v, path, out, seen) end
  if kind == "number" then return { k = "n", v = ("%.17g"):format(v) } end
  if kind == "string" then return { k = "s", v = v } end
  if kind == "boolean" then return { k = "b", v = v } end
  if kind == "nil" then return { k = "z" } end
  if B.is_dtype(v) then return { k = "d", v = v.name } end
  error(("save: a %s at '%s' cannot be saved; tensors, tables, numbers, strings, booleans can"):format(kind, path), 0)
end

-- The JSON of what pack gave. Its keys stand in one order, so that equal values make equal files (cjson's order is that
-- of its hash).
local function text_of(node, quote, depth)
  if depth > 100 then error("save: tables are nested too deeply", 0) end
  local parts = { '{"k":', quote(node.k) }
  if node.v ~= nil then parts[#parts + 1] = ',"v":' .. quote(node.v) end
  if node.g ~= nil then parts[#parts + 1] = ',"g":' .. quote(node.g) end
  if node.a then
    local list = {}
    for i, v in ipairs(node.a) do list[i] = text_of(v, quote, depth + 2) end
    parts[#parts + 1] = ',"a":[' .. table.concat(list, ",") .. "]"
    list = {}
    for i, e in ipairs(node.h) do
      list[i] = ("[%s,%s,%s]"):format(quote(e[1]), quote(e[2]), text_of(e[3], quote, depth + 3))
    end
    parts[#parts + 1] = ',"h":[' .. table.concat(list, ",") .. "]"
  end
  parts[#parts + 1] = "}"
  return table.concat(parts)
end

--- Saves a tensor or a table of tensors, tables, numbers, strings, booleans. At any moment the file is the old or the
-- new one. Errors name what cannot be saved, or path and reason.
function M.save(value, path)
  if type(path) ~= "string" then error("save: expected (value, path), got " .. type(path) .. " as path", 2) end
  local out = { names = {}, tensors = {}, used = {} }
  local ok, tree = pcall(pack, value, "", out, {})
  if not ok then error(tree, 2) end
  local text
  ok, text = pcall(text_of, tree, json().encode, 1)
  if not ok then error(text, 2) end
  B.save_safetensors(path, out.names, out.tensors, { { "format", "moth" }, { "tree", text },
    { "tree_sha256", B.sha256(text) }, { "tensors_sha256", M.digest(out.names, out.tensors) } })
end

--- SHA-256 over the names and bytes of tensors.
function M.digest(names, tensors)
  local parts = {}
  for i, name in ipairs(names) do parts[i] = name .. " " .. B.sha256(B.bytes(tensors[i])) end
  table.sort(parts)
  return B.sha256(table.concat(parts, "\n"))
end

local function unpack_value(node, tensors, path)
  local k = type(node) == "table" and node.k
  if k == "x" then
    local t = tensors[node.v]
    if not t then error(("load: %s: tensor '%s' is missing"):format(path, tostring(node.v)), 0) end
    if node.g then B.set_requires_grad(t, true) end
    return t
  elseif k == "n" then return tonumber(node.v)
  elseif k == "s" or k == "b" then return node.v
  elseif k == "z" then return nil
  elseif k == "d" then return B.dtype(node.v)
  elseif k == "t" or k == "sd" then
    local out, order = {}, {}
    for i, v in ipairs(node.a or {}) do out[i] = unpack_value(v, tensors, path) end
    for _, e in ipairs(node.h or {}) do
      local key = e[2]
      if e[1] == "n" then key = tonumber(key) end
      out[key] = unpack_value(e[3], tensors, path)
      order[#order + 1] = key
    end
    if k == "sd" then
      local found, state = pcall(require, "moth.nn.state_dict")
      if found then return state.from(order, out) end
    end
    return out
  end
  error(("load: %s: the description of the table is damaged"):format(path), 0)
end

--- Loads what save wrote; a safetensors file from elsewhere gives a table of tensors by name.
function M.load(path)
  if type(path) ~= "string" then error("load: expected a path, got " .. type(path), 2) end
  local names, tensors, metadata = B.load_safetensors(path)
  local by_name = {}
  for i, name in ipairs(names) do by_name[name] = tensors[i] end
  -- One sign of a checkpoint of ours is enough to ask for all of them: a damaged name must not pass for another's file.
  if not (metadata.format == "moth" or metadata.tree or metadata.tree_sha256 or metadata.tensors_sha256) then
    return by_name
  end
  if metadata.format ~= "moth" or not metadata.tree or B.sha256(metadata.tree) ~= metadata.tree_sha256
    or M.digest(names, tensors) ~= metadata.tensors_sha256 then
    error(("load: %s: checksum mismatch, the file is damaged"):format(path), 2)
  end
  local tree, err = json().decode(metadata.tree)
  if not tree then error(("load: %s: %s"):format(path, tostring(err)), 2) end
  local ok, value = pcall(unpack_value, tree, by_name, path)
  if not ok then error(value, 2) end
  return value
end

--- Saves { name = tensor } as plain safetensors; metadata is { key = string }.
function M.save_safetensors(tensors, path, metadata)
  local names, list, pairs_list = {}, {}, {}
  for name in pairs(tensors) do
    if type(name) ~= "string" or not B.is_tensor(tensors[name]) then
      error("save_safetensors: expected a table of tensors by name", 2)
    end
    names[#names + 1] = name
  end
  table.sort(names)
  for i, name in ipairs(names) do
    list[i] = ops.contiguous(ops.to(B.alias(tensors[name], false), { device = "cpu" }))
  end
  for k, v in pairs(metadata or {}) do pairs_list[#pairs_list + 1] = { k, tostring(v) } end
  B.save_safetensors(path, names, list, pairs_list)
end

--- { name = tensor }, metadata of a safetensors file.
function M.load_safetensors(path)
  local names, tensors, metadata = B.load_safetensors(path)
  local out = {}
  for i, name in ipairs(names) do out[name] = tensors[i] end
  return out, metadata
end

return M
