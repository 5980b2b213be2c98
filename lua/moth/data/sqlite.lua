--- data.SQLite: the rows of a table of an SQLite file, by libsqlite3 (Debian's libsqlite3-0). It is only read.
local ffi = require "ffi"
local moth = require "moth"
local check = require "moth.utils.check"
local open_library = require "moth.utils.library"
local signature = require "moth.utils.signature"
local Dataset = require("moth.data.dataset").Dataset

local declarations = [[
int sqlite3_open_v2(const char *, void **, int, const char *); int sqlite3_close_v2(void *);
const char *sqlite3_errmsg(void *); int sqlite3_busy_timeout(void *, int);
int sqlite3_prepare_v2(void *, const char *, int, void **, const char **); int sqlite3_finalize(void *);
int sqlite3_step(void *); int sqlite3_reset(void *); int sqlite3_bind_int64(void *, int, int64_t);
int sqlite3_column_count(void *); const char *sqlite3_column_name(void *, int); int sqlite3_column_type(void *, int);
int64_t sqlite3_column_int64(void *, int); double sqlite3_column_double(void *, int);
const void *sqlite3_column_blob(void *, int); int sqlite3_column_bytes(void *, int);
]]
local READONLY, ROW, DONE = 1, 100, 101

local lib
local function library()
  if not lib then
    pcall(ffi.cdef, declarations)
    lib = open_library("libsqlite3.so.0", "[data.SQLite]", "libsqlite3-0")
  end
  return lib
end

-- A name as SQL writes it; SQLite takes one in double quotes that it does not know for a text.
local function quoted(name) return "`" .. name:gsub("`", "``") .. "`" end

local function failed(self, db)
  local why = ffi.string(lib.sqlite3_errmsg(db))
  check.fail("[data.SQLite] %s: %s%s", self.path, why,
    why == "no such column: rowid" and ": tables WITHOUT ROWID are not read" or "")
end

local function prepare(self, db, sql)
  local statement = ffi.new("void *[1]")
  if lib.sqlite3_prepare_v2(db, sql, #sql, statement, nil) ~= 0 then failed(self, db) end
  return ffi.gc(statement[0], lib.sqlite3_finalize)
end

-- Of each dataset, in this thread: the connection and the statement that reads a row.
local opened = setmetatable({}, { __mode = "k" })

local function open(self)
  local files = opened[self]
  if files then return files end
  local l, db = library(), ffi.new("void *[1]")
  local code = l.sqlite3_open_v2(self.path, db, READONLY, nil)
  local connection = ffi.gc(db[0], l.sqlite3_close_v2) -- closes when its statements are gone
  if code ~= 0 then failed(self, connection) end
  l.sqlite3_busy_timeout(connection, 5000)
  local list = {}
  for i, name in ipairs(self.wanted or {}) do list[i] = quoted(name) end
  files = { db = connection, row = prepare(self, connection, ("SELECT %s FROM %s WHERE rowid = ?"):format(
    #list > 0 and table.concat(list, ", ") or "*", quoted(self.table))) }
  opened[self] = files
  return files
end

-- A value of the row that is read: a number, an int64_t beyond 2^53, a string; nil for NULL.
local function value(row, column)
  local kind = lib.sqlite3_column_type(row, column)
  if kind == 1 then
    local n = lib.sqlite3_column_int64(row, column)
    return n <= 2LL ^ 53 and n >= -2LL ^ 53 and tonumber(n) or n
  elseif kind == 2 then
    return lib.sqlite3_column_double(row, column)
  elseif kind == 3 or kind == 4 then
    local bytes = lib.sqlite3_column_blob(row, column)
    return bytes == nil and "" or ffi.string(bytes, lib.sqlite3_column_bytes(row, column))
  end
end

local SQLite = Dataset:subclass("SQLite")
SQLite.__init = signature.init("data.SQLite(path path, string table, *, list columns?, string where?, \z
  callable decode?)",
  function(self, o)
    self.path, self.table, self.wanted, self.decode = o.path, o.table, o.columns, o.decode
    local f, why = io.open(o.path, "rb")
    if not f then check.fail("[data.SQLite] %s", (why:gsub("^(.-): ", "cannot open %1: "))) end
    f:close()
    local files, ids = open(self), {}
    self.columns = {}
    for i = 0, lib.sqlite3_column_count(files.row) - 1 do
      self.columns[i + 1] = ffi.string(lib.sqlite3_column_name(files.row, i))
    end
    local all = prepare(self, files.db, ("SELECT rowid FROM %s%s ORDER BY rowid"):format(quoted(o.table),
      o.where and " WHERE " .. o.where or ""))
    local code = lib.sqlite3_step(all)
    while code == ROW do
      ids[#ids + 1] = lib.sqlite3_column_int64(all, 0)
      code = lib.sqlite3_step(all)
    end
    if code ~= DONE then failed(self, files.db) end
    self.ids = moth.tensor(ids, { dtype = moth.int64 })
  end)

--- The number of rows.
function SQLite:size() return self.ids:size(1) end

--- Row i, in the order of the row ids: { column = value }, or what decode(row) gives. Integers beyond 2^53 are int64_t,
-- text and blobs strings; NULL is nil.
function SQLite:get(i)
  self:check_position(i)
  local files, out = open(self), {}
  local row = files.row
  lib.sqlite3_bind_int64(row, 1, ffi.cast("const int64_t *", self.ids:data_ptr())[i - 1])
  local code = lib.sqlite3_step(row)
  if code == ROW then
    for k, name in ipairs(self.columns) do out[name] = value(row, k - 1) end
  end
  lib.sqlite3_reset(row)
  if code == DONE then check.fail("[data.SQLite] %s: row %d of %s is gone", self.path, i, self.table) end
  if code ~= ROW then failed(self, files.db) end
  if self.decode then return self.decode(out) end
  return out
end

function SQLite:__tostring()
  return ("data.SQLite(%s, %s, %d rows)"):format(self.path, self.table, self:size())
end

return SQLite
