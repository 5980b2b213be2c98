--- data.LMDB: the values of an LMDB database by the order of their keys, by liblmdb (Debian's liblmdb0): bytes, which a
-- function decodes. It is only read, without locks: nobody may write it meanwhile.
local ffi = require "ffi"
local check = require "moth.utils.check"
local open_library = require "moth.utils.library"
local signature = require "moth.utils.signature"
local strings = require "moth.data.strings"
local Dataset = require("moth.data.dataset").Dataset

local declarations = [[
typedef struct { size_t size; void *data; } moth_mdb_val;
typedef struct { unsigned page, depth; size_t branch, leaf, overflow, entries; } moth_mdb_stat;
int mdb_env_create(void **); void mdb_env_close(void *);
int mdb_env_set_maxdbs(void *, unsigned); int mdb_env_open(void *, const char *, unsigned, unsigned);
int mdb_txn_begin(void *, void *, unsigned, void **); void mdb_txn_abort(void *);
int mdb_dbi_open(void *, const char *, unsigned, unsigned *);
int mdb_stat(void *, unsigned, moth_mdb_stat *);
int mdb_get(void *, unsigned, moth_mdb_val *, moth_mdb_val *);
int mdb_cursor_open(void *, unsigned, void **); void mdb_cursor_close(void *);
int mdb_cursor_get(void *, moth_mdb_val *, moth_mdb_val *, int);
const char *mdb_strerror(int);
]]
local RDONLY, NOSUBDIR, NOLOCK, NOTLS, NOTFOUND, NEXT = 0x20000, 0x4000, 0x400000, 0x200000, -30798, 8

local lib
local function library()
  if not lib then
    pcall(ffi.cdef, declarations)
    lib = open_library("liblmdb.so.0", "[data.LMDB]", "liblmdb0")
  end
  return lib
end

-- Of each dataset, in this thread: { env, txn, db }.
local opened = setmetatable({}, { __mode = "k" })

local function open(self)
  local files = opened[self]
  if files then return files end
  local l, env, txn, db = library(), ffi.new("void *[1]"), ffi.new("void *[1]"), ffi.new("unsigned[1]")
  local function tried(code, what)
    if code == 0 then return end
    if txn[0] ~= nil then l.mdb_txn_abort(txn[0]) end
    if env[0] ~= nil then l.mdb_env_close(env[0]) end
    check.fail("[data.LMDB] %s: %s", what, ffi.string(l.mdb_strerror(code)))
  end
  tried(l.mdb_env_create(env), self.path)
  tried(l.mdb_env_set_maxdbs(env[0], 1), self.path)
  local folder = io.open(self.path .. "/data.mdb", "rb")
  if folder then folder:close() end
  tried(l.mdb_env_open(env[0], self.path, RDONLY + NOLOCK + NOTLS + (folder and 0 or NOSUBDIR), 420), self.path)
  tried(l.mdb_txn_begin(env[0], nil, RDONLY, txn), self.path)
  tried(l.mdb_dbi_open(txn[0], self.name, 0, db), self.path .. (self.name and ", database " .. self.name or ""))
  files = { txn = txn[0], db = db[0], guard = newproxy(true) }
  getmetatable(files.guard).__gc = function()
    l.mdb_txn_abort(txn[0])
    l.mdb_env_close(env[0])
  end
  opened[self] = files
  return files
end

local function text(v) return ffi.string(v.data, v.size) end

local LMDB = Dataset:subclass("LMDB")
LMDB.__init = signature.init("data.LMDB(path path, *, string name?, callable decode?)", function(self, o)
  self.path, self.name, self.decode = o.path, o.name, o.decode
  local files, stat = open(self), ffi.new("moth_mdb_stat")
  lib.mdb_stat(files.txn, files.db, stat)
  self.count = tonumber(stat.entries)
  local cursor, key, value = ffi.new("void *[1]"), ffi.new("moth_mdb_val"), ffi.new("moth_mdb_val")
  if lib.mdb_cursor_open(files.txn, files.db, cursor) ~= 0 then
    check.fail("[data.LMDB] %s cannot be walked", o.path)
  end
  local keys = {}
  while lib.mdb_cursor_get(cursor[0], key, value, NEXT) == 0 do keys[#keys + 1] = text(key) end
  lib.mdb_cursor_close(cursor[0])
  self.keys = strings.pack(keys) -- workers share them
end)

--- The number of entries.
function LMDB:size() return self.count end

--- The value of a key, a string of bytes; nil: there is none.
function LMDB:value(key)
  if type(key) ~= "string" then check.fail("[LMDB:value] expected a key, a string, got %s", type(key)) end
  local files = open(self)
  local k, v = ffi.new("moth_mdb_val", #key, ffi.cast("void *", key)), ffi.new("moth_mdb_val")
  local code = lib.mdb_get(files.txn, files.db, k, v)
  if code == NOTFOUND or #key == 0 then return nil end
  if code ~= 0 then check.fail("[LMDB:value] %s: %s", self.path, ffi.string(lib.mdb_strerror(code))) end
  return text(v)
end

--- Entry i in the order of the keys: what decode(value, key) gives; without it the value and the key, as strings.
function LMDB:get(i)
  self:check_position(i)
  local key = strings.get(self.keys, i)
  local value = self:value(key)
  if self.decode then return self.decode(value, key) end
  return value, key
end

function LMDB:__tostring() return ("data.LMDB(%s, %d entries)"):format(self.path, self.count) end

return LMDB
