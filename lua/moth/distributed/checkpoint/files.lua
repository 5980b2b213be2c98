--- The files of a checkpoint: in a folder, part-<id>-<rank>.safetensors, with tensors "name@offset,…", values-<id>.moth
-- and index.json, which names them. The index is replaced last, by a rename, so that the folder has the old checkpoint
-- or the new one, whole, whatever happens; files that no index names go with the next save.
local ffi = require "ffi"
local check = require "moth.utils.check"
local moth = require "moth"
local system = require "moth.utils.system"

local M = {}

pcall(ffi.cdef, "int rename(const char *from, const char *to); int mkdir(const char *path, unsigned mode);")

local function json()
  local ok, cjson = pcall(require, "cjson.safe")
  if not ok then check.fail("checkpoints need lua-cjson (Debian: lua-cjson)") end
  cjson = cjson.new()
  return cjson
end

function M.make_folder(dir)
  local at = dir:sub(1, 1) == "/" and "/" or ""
  for part in dir:gmatch "[^/]+" do
    at = at .. part .. "/"
    ffi.C.mkdir(at, 511) -- 0777 without the umask; it may be there
  end
end

function M.part_name(id, rank) return ("part-%s-%d.safetensors"):format(id, rank) end
function M.values_name(id) return ("values-%s.moth"):format(id) end

function M.key(name, offset) return name .. "@" .. table.concat(offset, ",") end

--- Replaces the index; then removes what belongs to others.
function M.commit(dir, index)
  local text = assert(json().encode(index))
  local path = dir .. "/index.json"
  local f = assert(io.open(path .. ".new", "w"))
  f:write(text)
  f:close()
  if ffi.C.rename(path .. ".new", path) ~= 0 then check.fail("[distributed.checkpoint] %s cannot be written", path) end
  for _, name in ipairs(system.list(dir) or {}) do
    local id = name:match "^part%-(.+)%-%d+%.safetensors$" or name:match "^values%-(.+)%.moth$"
    if id and id ~= index.id then os.remove(dir .. "/" .. name) end
  end
end

--- The index of a checkpoint: of moth's own, or of PyTorch's.
function M.index(dir)
  local f, theirs = io.open(dir .. "/index.json"), system.exists(dir .. "/.metadata")
  if f and theirs then
    f:close()
    check.fail("[distributed.checkpoint] %s has two checkpoints, index.json of moth and .metadata of PyTorch: remove "
      .. "that of them which is not meant", dir)
  end
  if theirs then return require("moth.distributed.checkpoint.dcp").index(dir) end
  if not f then
    check.fail("[distributed.checkpoint] %s has no checkpoint: there is no index.json and no .metadata of PyTorch", dir)
  end
  local text = f:read "*a"
  f:close()
  local index, why = json().decode(text)
  if not index or index.format ~= 1 or type(index.entries) ~= "table" then
    check.fail("[distributed.checkpoint] %s/index.json is damaged, or of another version: %s", dir,
      tostring(why or index and index.format))
  end
  return index
end

--- Opens a part; returns a function of the key of a tensor that gives it, mapped: only what is used is read.
function M.open(path)
  local f = io.open(path, "rb")
  if not f then check.fail("[distributed.checkpoint] the file %s is missing", path) end
  local head = f:read(8)
  local n = 0
  for i = 8, 1, -1 do n = n * 256 + (head and head:byte(i) or 0) end
  local text = n < 2 ^ 32 and f:read(n)
  f:close()
  local entries = text and json().decode(text)
  if not entries then check.fail("[distributed.checkpoint] %s is damaged", path) end
  return function(key, dtype, shape)
    local e = entries[key]
    if not e then check.fail("[distributed.checkpoint] %s has no tensor %s", path, key) end
    for _, size in ipairs(shape) do if size == 0 then return moth.empty(shape, { dtype = dtype }) end end
    local whole = { unpack(shape) }
    if #whole == 0 then whole[1] = 1 end
    local offset = 8 + n + e.data_offsets[1]
    if offset % dtype.itemsize == 0 then
      return moth.mmap(path, { dtype = dtype, shape = whole, offset = offset }):view(shape)
    end
    -- elements of a size that is no multiple of those before
    local bytes = moth.mmap(path, { dtype = moth.uint8, shape = { e.data_offsets[2] - e.data_offsets[1] },
      offset = offset })
    return bytes:clone():view(dtype):view(shape)
  end
end

return M
