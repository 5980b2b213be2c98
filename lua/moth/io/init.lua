--- Saving and loading: safetensors for tensors, JSON for the rest, in one file; written atomically.
-- The file is a plain safetensors file. Tensors are named by their path in the table ("model.net.1.weight"); the
-- table's structure and all other values are JSON in its metadata, whose first entry is a checksum of the whole file
-- (src/io/seal.h).
-- Loading never runs code. Files of other programs: interop.lua.
local ffi = require "ffi"
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Ordered = require "moth.nn.ordered"
local ties = require "moth.io.ties"
local each = require "moth.each"
local ops = B.ops
local M = {}

local MAX_DEPTH = 300 -- of tables in tables
local FORMAT = 1 -- version of the files: increased when an older load cannot read them
local WITH_VIEWS = 1.1 -- of files with views, which loads before them refuse

local function json()
  local ok, cjson = pcall(require, "cjson.safe")
  if not ok then check.fail("moth.save and moth.load need lua-cjson (Debian: lua-cjson)") end
  cjson = cjson.new()
  cjson.encode_sparse_array(false, 1, 0)
  cjson.encode_max_depth(4 * MAX_DEPTH) -- three of JSON's brackets for one of Lua's
  cjson.decode_max_depth(4 * MAX_DEPTH)
  return cjson
end

local function hex(s) return (s:gsub(".", function(c) return ("%02x"):format(c:byte()) end)) end
local function unhex(s)
  return type(s) == "string" and s:gsub("%x%x", function(h) return string.char(tonumber(h, 16)) end) or nil
end

-- A value in a form that JSON can represent: tables become {k="t", a={…}, h={{kind, key, value}, …}}, numbers strings
-- without loss, and strings that are not UTF-8 their bytes in hexadecimal.
local pack

local function pack_key(key)
  local kind = type(key)
  if kind == "number" then return "n", ("%.17g"):format(key) end
  if kind == "boolean" then return "b", tostring(key) end
  if kind ~= "string" then return nil end
  if B.is_text(key) then return "s", key end
  return "h", hex(key)
end

local function pack_table(t, path, out, depth)
  if out.seen[t] then error(("save: the table at '%s' contains itself"):format(path), 0) end
  if depth > MAX_DEPTH then error(("save: tables nest deeper than %d at '%s'"):format(MAX_DEPTH, path), 0) end
  local meta = getmetatable(t)
  local ordered = Ordered.is(t)
  if type(meta) == "table" and rawget(meta, "__name") == "SparseTensor" then
    local parts = pack_table(require("moth.sparse").__parts(t), path, out, depth)
    parts.k = "sp"
    return parts
  end
  if not ordered and type(meta) == "table" and rawget(meta, "__name") then
    error(("save: a %s%s cannot be saved%s"):format(meta.__name, path == "" and "" or " at '" .. path .. "'",
      type(t.state_dict) == "function" and "; save its :state_dict()" or ""), 0)
  end
  out.seen[t] = true
  local n = ordered and 0 or #t
  local node = { k = ordered and "sd" or "t", a = {}, h = {} }
  for i = 1, n do node.a[i] = pack(t[i], path == "" and tostring(i) or path .. "." .. i, out, depth + 1) end
  local keys = {}
  if ordered then
    keys = Ordered.keys(t)
  else
    for k in each(t) do
      if not (type(k) == "number" and k >= 1 and k <= n and k == math.floor(k)) then keys[#keys + 1] = k end
    end
    table.sort(keys, function(a, b)
      if type(a) == type(b) and (type(a) == "number" or type(a) == "string") then return a < b end
      return type(a) < type(b)
    end)
  end
  for _, k in ipairs(keys) do
    local kind, name = pack_key(k)
    if not kind then
      error(("save: a key of type %s in '%s' cannot be saved; keys are strings, numbers or booleans"):format(type(k),
        path), 0)
    end
    node.h[#node.h + 1] = { kind, name, pack(rawget(t, k), path == "" and name or path .. "." .. name, out, depth + 1) }
  end
  out.seen[t] = nil
  return node
end

-- A unique name for a tensor that safetensors allows.
local function name_for(path, out)
  local name = B.is_text(path) and path ~= "" and path ~= "__metadata__" and path or "tensor"
  local unique = name
  while out.used[unique] do
    out.used[name] = out.used[name] + 1
    unique = name .. "_" .. out.used[name]
  end
  out.used[unique] = 1
  return unique
end

local function pack_tensor(t, path, out)
  local node = { g = B.requires_grad(t) and B.is_leaf(t) or nil }
  out.list[#out.list + 1], out.nodes[#out.nodes + 1], out.paths[#out.paths + 1] = t, node, path
  return node
end

-- The tensors and their names, once all are known: what shares memory is written once. A node "x" ("c": complex) is a
-- tensor of the file, i: another handle of the same; "v" ("w") is a view of one, of these sizes, strides and offset.
local function settle(out)
  local bases, places = ties.plan(out.list)
  local names, handles, counts = {}, {}, {}
  for i, node in ipairs(out.nodes) do
    local place, t = places[i], out.list[i]
    local k = place.base
    if not names[k] then
      names[k] = name_for(place.flat and out.paths[i] .. ".shared" or out.paths[place.from], out)
      local whole = ops.contiguous(ops.to(B.alias(bases[k], false), { device = "cpu" }))
      if B.tensor_dtype(whole).is_complex then whole = ops.view_as_real(whole) end -- the format has no complex128
      out.names[#out.names + 1], out.tensors[#out.tensors + 1] = names[k], whole
    end
    local complex = B.tensor_dtype(t).is_complex
    node.v = names[k]
    if place.view then
      node.k, node.w = complex and "w" or "v", place.view
      out.format = WITH_VIEWS
    else
      node.k = complex and "c" or "x"
      if not handles[t] then -- the first handle has no number
        handles[t], counts[k] = counts[k] or 0, (counts[k] or 0) + 1
      end
      if handles[t] > 0 then node.i = handles[t] end
    end
  end
end

function pack(v, path, out, depth)
  if B.is_tensor(v) then return pack_tensor(v, path, out) end
  local kind = type(v)
  if kind == "table" then return pack_table(v, path, out, depth) end
  if kind == "number" then return { k = "n", v = ("%.17g"):format(v) } end
  if kind == "string" then return B.is_text(v) and { k = "s", v = v } or { k = "h", v = hex(v) } end
  if kind == "boolean" then return { k = "b", v = v } end
  if kind == "nil" then return { k = "z" } end
  if B.is_dtype(v) then return { k = "d", v = v.name } end
  if ffi.istype("int64_t", v) then return { k = "i", v = tostring(v) } end -- "-12LL"
  if ffi.istype("uint64_t", v) then return { k = "i", v = tostring(v) } end -- "12ULL"
  error(("save: a %s at '%s' cannot be saved; tensors, tables, numbers, strings, booleans can"):format(kind, path), 0)
end

local function numbers(list)
  local digits = {}
  for d, n in ipairs(list) do digits[d] = ("%.0f"):format(n) end
  return "[" .. table.concat(digits, ",") .. "]"
end

-- The JSON of a packed value, with keys in a fixed order, so that equal values make equal files (cjson's order is that
-- of its hash table).
local function text_of(node, quote)
  local parts = { '{"k":', quote(node.k) }
  if node.v ~= nil then parts[#parts + 1] = ',"v":' .. quote(node.v) end
  if node.g ~= nil then parts[#parts + 1] = ',"g":' .. quote(node.g) end
  if node.i ~= nil then parts[#parts + 1] = (',"i":%d'):format(node.i) end
  if node.w then
    local w = node.w
    parts[#parts + 1] = (',"w":[%s,%s,%.0f]'):format(numbers(w[1]), numbers(w[2]), w[3])
  end
  if node.a then
    local list = {}
    for i, v in ipairs(node.a) do list[i] = text_of(v, quote) end
    parts[#parts + 1] = ',"a":[' .. table.concat(list, ",") .. "]"
    list = {}
    for i, e in ipairs(node.h) do
      list[i] = ("[%s,%s,%s]"):format(quote(e[1]), quote(e[2]), text_of(e[3], quote))
    end
    parts[#parts + 1] = ',"h":[' .. table.concat(list, ",") .. "]"
  end
  parts[#parts + 1] = "}"
  return table.concat(parts)
end

local function save_npy(value, path)
  if not B.is_tensor(value) then
    check.fail("save: %s: a .npy file holds one tensor, got a %s", path, type(value))
  end
  B.save_npy(path, ops.contiguous(ops.to(B.alias(value, false), { device = "cpu" })))
end

local function save_pt(value, path)
  local ok, err = pcall(require("moth.io.torch_file").save, value, path)
  if not ok then check.fail("%s", err) end
end

--- Saves a tensor or a table of tensors, tables, numbers, strings, booleans, dtypes. The file is replaced atomically. A
-- tensor saved under a name that ends in .npy makes a NumPy file, a value under one in .pt or .pth a file for
-- torch.load (moth/io/torch_file.lua). Errors name the value that cannot be saved, or path
-- and reason. digest: what the file carries of itself, the fast checksum or SHA-256.
function M.save(value, path, digest)
  if path:sub(-4) == ".npy" then return save_npy(value, path) end
  if path:find("%.pth?$") then return save_pt(value, path) end
  local other = require("moth.io.kinds").written_by(path)
  if other then
    check.fail("[save] %s: the name is that of another format: %s; moth's own files end in .moth or .safetensors", path,
      other)
  end
  local out = { names = {}, tensors = {}, used = {}, seen = {}, list = {}, nodes = {}, paths = {}, format = 1 }
  local ok, tree = pcall(pack, value, "", out, 1)
  if not ok then check.fail("%s", tree) end
  settle(out)
  local text = text_of(tree, json().encode)
  B.save_safetensors(path, out.names, out.tensors,
    { { "moth." .. (digest or "crc32"), ("0"):rep(64) }, { "format", "moth" }, { "moth.format", tostring(out.format) },
      { "moth.version", B.version_string }, { "moth.tree", text } }, true)
end

local function damaged(from) check.fail("[load] %s: the description of the table is damaged", from.path) end

-- What a part must be; nil is damage.
local function whole(v, from)
  if v == nil then damaged(from) end
  return v
end

-- The exact int64_t or uint64_t of "-12LL", "12ULL"; nil: it is none.
local function integer(text)
  local sign, digits, suffix = tostring(text):match("^(-?)(%d+)(U?)LL$")
  if not sign then return nil end
  local value = suffix == "U" and 0ULL or 0LL
  for d in digits:gmatch("%d") do value = value * 10 + tonumber(d) end
  return sign == "-" and -value or value
end

local unpack_value

local keys = {
  n = function(v)
    local n = tonumber(v)
    return n == n and n or nil
  end,
  s = function(v) return type(v) == "string" and v or nil end,
  h = unhex,
  b = function(v) return v == "true" end,
}

local function unpack_table(node, from)
  local out, order = {}, {}
  if type(node.a or {}) ~= "table" or type(node.h or {}) ~= "table" then damaged(from) end
  for i, v in ipairs(node.a or {}) do out[i] = unpack_value(v, from) end
  for _, e in ipairs(node.h or {}) do
    local read = type(e) == "table" and keys[e[1]]
    if not read then damaged(from) end
    local key = whole(read(e[2]), from)
    out[key] = unpack_value(e[3], from)
    order[#order + 1] = key
  end
  return node.k == "sd" and require("moth.nn.state_dict").from(order, out) or out
end

-- A tensor of the file, made once.
local function base_of(node, from)
  local complex = node.k == "c" or node.k == "w"
  local key = (complex and "c" or "x") .. tostring(node.v)
  if from.bases[key] then return from.bases[key], key end
  local t = from.tensors[node.v]
  if not t then check.fail("[load] %s: tensor '%s' is missing", from.path, tostring(node.v)) end
  if complex then
    if not t:is_floating_point() or t:dim() == 0 or t:size(-1) ~= 2 then damaged(from) end
    t = B.alias(ops.clone(ops.view_as_complex(t)), false)
  end
  from.bases[key] = from.place and from.place(t) or t
  return from.bases[key], key
end

local function unpack_tensor(node, from)
  local t, key = base_of(node, from)
  if node.k == "v" or node.k == "w" then
    local w = node.w
    t = whole(type(w) == "table" and ties.view(t, w[1], w[2], w[3]) or nil, from)
  elseif node.i then -- another handle of the same
    key = key .. "\0" .. tostring(node.i)
    t = from.bases[key] or B.alias(t, false)
    from.bases[key] = t
  end
  if node.g then
    if not (t:is_floating_point() or t:is_complex()) then damaged(from) end
    B.set_requires_grad(t, true)
  end
  return t
end

local function unpack_sparse(node, from)
  local ok, made = pcall(require("moth.sparse").__from_parts, unpack_table(node, from))
  if not ok then check.fail("[load] %s: a sparse tensor is damaged: %s", from.path, tostring(made)) end
  return made
end

function unpack_value(node, from)
  local k = type(node) == "table" and node.k
  if k == "x" or k == "c" or k == "v" or k == "w" then return unpack_tensor(node, from)
  elseif k == "n" then return whole(tonumber(node.v), from)
  elseif k == "s" or k == "b" then
    if type(node.v) ~= (k == "s" and "string" or "boolean") then damaged(from) end
    return node.v
  elseif k == "h" then return whole(unhex(node.v), from)
  elseif k == "i" then return whole(integer(node.v), from)
  elseif k == "z" then return nil
  elseif k == "d" then
    local ok, dtype = pcall(B.dtype, node.v)
    return ok and dtype or check.fail("[load] %s: there is no dtype '%s'", from.path, tostring(node.v))
  elseif k == "t" or k == "sd" then return unpack_table(node, from)
  elseif k == "sp" then return unpack_sparse(node, from)
  end
  damaged(from)
end

local function by_name(names, tensors)
  local out = {}
  for i, name in ipairs(names) do out[name] = tensors[i] end
  return out
end

local function load_safetensors(path, place, is_copied)
  local names, tensors, metadata, own = B.load_safetensors(path, is_copied)
  local named = by_name(names, tensors)
  if not own then
    for name, t in each(named) do named[name] = place and place(t) or t end
    return named
  end
  if (metadata.format or ""):find "^moth%.export " then
    check.fail("[load] %s: this is a program of moth.export.save\nHINT: moth.export.load reads it; "
      .. "moth.load_safetensors its tensors alone", path)
  end
  local format = tonumber(metadata["moth.format"] or 1) -- the first files did not have it
  if format ~= FORMAT and format ~= WITH_VIEWS then
    check.fail("[load] %s is of format %s, written by moth %s; this moth, %s, reads format %d\nHINT: use that moth, " ..
      "or write the tensors with its moth.save_safetensors(tensors, path), which has one format", path,
      metadata["moth.format"], metadata["moth.version"] or "of another version", B.version_string, FORMAT)
  end
  local tree, err = json().decode(metadata["moth.tree"] or "")
  if not tree then check.fail("[load] %s: %s", path, tostring(err)) end
  return unpack_value(tree, { path = path, tensors = named, place = place, bases = {} })
end

--- Loads a file of moth.save, a safetensors file of another program (a table of tensors by name), NumPy's .npy (a
-- tensor) and .npz (a table of tensors), PyTorch's .pt (tensors and plain values only), Torch7's .t7 (moth.torch7):
-- recognised by content, not by name. No code in a file is ever run; files that need it are refused, with the reason.
-- @tparam string path
-- @param[opt] map_location the device for the tensors (the CPU) @tparam[opt] number max_expanded the most bytes that
-- all compressed members of an archive may expand to (2^30) @tparam[opt] boolean mmap false: tensors are copied;
-- otherwise those of safetensors and .pt files lie in the mapped file where they can, pages being read when used.
-- Writing to them changes memory, never the file.
function M.load(path, map_location, max_expanded, mmap)
  local place
  if map_location ~= nil then
    local device = B.device(map_location)
    place = function(t) return ops.to(t, { device = device }) end
  end
  local kind, why = require("moth.io.kinds").of(path)
  if not kind then check.fail("[load] %s: %s", path, why) end
  if kind == "t7" then return (require("moth.torch7").load(path, { map_location = map_location })) end
  if kind == "safetensors" then return load_safetensors(path, place, mmap == false) end
  return (require("moth.io.interop").load(kind, path, place, max_expanded, mmap == false))
end

--- Saves { name = tensor } as plain safetensors; metadata is { key = string }.
function M.save_safetensors(tensors, path, metadata)
  local names, list, pairs_list = {}, {}, {}
  for name in each(tensors) do
    if type(name) ~= "string" or not B.is_tensor(tensors[name]) then
      check.fail("[save_safetensors] expected a table of tensors by name, got %s at '%s'", type(tensors[name]),
        tostring(name))
    end
    names[#names + 1] = name
  end
  table.sort(names)
  for i, name in ipairs(names) do
    list[i] = tensors[name]
  end
  local _, places = ties.plan(list)
  local owner = {}
  for i, place in ipairs(places) do
    local other = owner[place.base]
    if other then
      check.fail("[save_safetensors] '%s' and '%s' share memory, which the format cannot tell: leave one out, or give \z
        its clone(); moth.save keeps it", names[other], names[i])
    end
    owner[place.base] = i
  end
  for i, t in ipairs(list) do list[i] = ops.contiguous(ops.to(B.alias(t, false), { device = "cpu" })) end
  for k, v in each(metadata or {}) do pairs_list[#pairs_list + 1] = { k, tostring(v) } end
  B.save_safetensors(path, names, list, pairs_list)
end

--- { name = tensor }, metadata of a safetensors file. The tensors lie in the mapped file, unless mmap is false.
function M.load_safetensors(path, device, mmap)
  local names, tensors, metadata = B.load_safetensors(path, mmap == false)
  for i, t in ipairs(device ~= nil and tensors or {}) do tensors[i] = ops.to(t, { device = device }) end
  return by_name(names, tensors), metadata
end

return signature.all(M, { "save(any value?, path path, *, 'crc32'|'sha256' digest?)",
  "load(path path, device map_location?, number max_expanded?, bool mmap=true)",
  "save_safetensors(table tensors, path path, table metadata?)",
  "load_safetensors(path path, device device?, bool mmap=true)" })
