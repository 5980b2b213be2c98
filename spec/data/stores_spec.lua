-- data.HDF5, data.LMDB, data.SQLite: files that the libraries themselves write here.
local ffi = require "ffi"
local moth = require "moth"
local data = moth.data

local folder = os.tmpname() .. ".stores"
setup(function() os.execute("mkdir -p " .. folder) end)
teardown(function() os.execute("rm -r " .. folder) end)

local function library(...)
  for _, name in ipairs { ... } do
    local ok, lib = pcall(ffi.load, name)
    if ok then return lib end
  end
end
local function sums(dataset, field)
  local out = {}
  for workers = 0, 2, 2 do
    local n = 0
    for batch in data.DataLoader(dataset, { batch_size = 4, num_workers = workers }):iter() do
      n = n + (field and batch[field] or batch):sum():item()
    end
    out[#out + 1] = n
  end
  return out
end

describe("datasets of other libraries", function()
  it("read arrays of HDF5", function()
    local lib = library("libhdf5_serial.so.103", "libhdf5_serial.so.310")
    if not lib then return pending "there is no libhdf5" end
    pcall(ffi.cdef, [[int64_t H5Fcreate(const char *, unsigned, int64_t, int64_t);
      int64_t H5Gcreate2(int64_t, const char *, int64_t, int64_t, int64_t);
      int64_t H5Dcreate2(int64_t, const char *, int64_t, int64_t, int64_t, int64_t, int64_t);
      int H5Dwrite(int64_t, int64_t, int64_t, int64_t, int64_t, const void *);
      int64_t H5Screate(int); int64_t H5Tcopy(int64_t); int H5Tset_size(int64_t, size_t);
      extern int64_t H5T_STD_I32BE_g, H5T_C_S1_g;]])
    local path = folder .. "/a.h5"
    assert.error_matches(function() data.HDF5(path) end, "cannot open .*No such file")
    local file = lib.H5Fcreate(path, 2, 0, 0)
    lib.H5Gclose(lib.H5Gcreate2(file, "group", 0, 0, 0))
    local function write(name, stored, memory, sizes, values)
      local space = lib.H5Screate_simple(#sizes, ffi.new("uint64_t[?]", #sizes, sizes), nil)
      local array = lib.H5Dcreate2(file, name, stored, space, 0, 0, 0)
      if values then lib.H5Dwrite(array, memory, 0, 0, 0, values) end
      lib.H5Dclose(array)
      lib.H5Sclose(space)
    end
    local x = ffi.new("float[30]")
    for i = 0, 29 do x[i] = i end
    write("x", lib.H5T_NATIVE_FLOAT_g, lib.H5T_NATIVE_FLOAT_g, { 10, 3 }, x)
    write("group/y", lib.H5T_STD_I32BE_g, lib.H5T_NATIVE_INT32_g, { 10 },
      ffi.new("int[10]", 1, 2, 3, 4, 5, 6, 7, 8, 9, -2))
    write("few", lib.H5T_NATIVE_DOUBLE_g, 0, { 2 })
    write("text", lib.H5T_C_S1_g, 0, { 2 })
    local odd = lib.H5Tcopy(lib.H5T_NATIVE_INT32_g)
    lib.H5Tset_size(odd, 3)
    write("odd", odd, 0, { 2 })
    local space = lib.H5Screate(2)
    lib.H5Dclose(lib.H5Dcreate2(file, "empty", odd, space, 0, 0, 0))
    lib.H5Sclose(space)
    lib.H5Fclose(file)

    local ds = data.HDF5(path, { "x", "group/y" })
    assert.equal(10, #ds)
    assert.same({ "empty", "few", "group/y", "odd", "text", "x" }, ds:keys())
    local row, y = ds:get(10)
    assert.same({ 27, 28, 29 }, row:totable())
    assert.equal(-2, y:item())
    assert.equal(moth.int32, y:dtype())
    assert.equal("[10, 3]", tostring(ds:read("x"):size()))
    assert.same({ 435, 435 }, sums(data.HDF5(path, { "x" })))
    assert.error_matches(function() ds:get(11) end, "expected 1 to 10")
    assert.error_matches(function() ds:read "xx" end, "has no array 'xx'; did you mean 'x'")
    for _ = 1, 2 do assert.error_matches(function() ds:read "text" end, "text holds text; only numbers are read") end
    assert.error_matches(function() ds:read "empty" end, "empty holds nothing")
    assert.error_matches(function() ds:read "odd" end, "odd holds class 0 of 3 bytes; only numbers are read")
    assert.error_matches(function() data.HDF5(path, { "x", "few" }) end, "x has 10 samples, few has 2")
    assert.error_matches(function() data.HDF5 "README.md" end, "README.md is no HDF5 file")
  end)

  it("read values of LMDB by the order of their keys", function()
    local lib = library "liblmdb.so.0"
    if not lib then return pending "there is no liblmdb" end
    local path = folder .. "/lmdb"
    assert.error_matches(function() data.LMDB(path) end, "No such file")
    pcall(ffi.cdef, [[int mdb_txn_commit(void *);
      int mdb_put(void *, unsigned, moth_mdb_val *, moth_mdb_val *, unsigned);]])
    local env, txn, db = ffi.new("void *[1]"), ffi.new("void *[1]"), ffi.new("unsigned[1]")
    lib.mdb_env_create(env)
    assert.equal(0, lib.mdb_env_open(env[0], path, 0x4000, 420)) -- one file
    lib.mdb_txn_begin(env[0], nil, 0, txn)
    lib.mdb_dbi_open(txn[0], nil, 0, db)
    for i = 9, 1, -1 do
      local key, value = "key" .. i, ("x"):rep(i - 1)
      lib.mdb_put(txn[0], db[0], ffi.new("moth_mdb_val", #key, ffi.cast("void *", key)),
        ffi.new("moth_mdb_val", #value, ffi.cast("void *", value)), 0)
    end
    lib.mdb_txn_commit(txn[0])
    lib.mdb_env_close(env[0])

    local ds = data.LMDB(path)
    assert.equal(9, #ds)
    assert.same({ "xx", "key3" }, ds[3])
    assert.equal("", (ds:get(1)))
    assert.equal("xxxx", ds:value "key5")
    assert.is_nil(ds:value "none")
    assert.same({ 36, 36 }, sums(data.LMDB(path, { decode = function(value) return #value end })))
    assert.error_matches(function() data.LMDB(path, { name = "none" }) end, "database none: MDB_NOTFOUND")
    assert.error_matches(function() data.LMDB "README.md" end, "README.md: MDB_INVALID")
  end)

  it("read rows of SQLite", function()
    local lib = library "libsqlite3.so.0"
    if not lib then return pending "there is no libsqlite3" end
    local path = folder .. "/a.db"
    assert.error_matches(function() data.SQLite(path, "t") end, "cannot open .*No such file")
    pcall(ffi.cdef, [[int sqlite3_open_v2(const char *, void **, int, const char *); int sqlite3_close_v2(void *);
      int sqlite3_exec(void *, const char *, void *, void *, void *);]])
    local db = ffi.new("void *[1]")
    lib.sqlite3_open_v2(path, db, 6, nil)
    local sql = { "create table t(id integer primary key, name text, v real, n integer, b blob);",
      "create table w(a primary key) without rowid; create table `odd``name`(a);" }
    for i = 1, 10 do
      sql[#sql + 1] = ("insert into t values(%d, 'n%d', %g, %s, x'00ff');"):format(3 * i, i, i / 4,
        i == 4 and "null" or "1152921504606846976 + " .. i)
    end
    assert.equal(0, lib.sqlite3_exec(db[0], table.concat(sql), nil, nil, nil))
    lib.sqlite3_close_v2(db[0])

    local ds = data.SQLite(path, "t")
    assert.equal(10, #ds)
    assert.same({ id = 12, name = "n4", v = 1, b = "\0\255" }, ds[4])
    assert.equal(1152921504606846978LL, ds[2].n)
    assert.same({ v = 1.25 }, data.SQLite(path, "t", { where = "v > 1", columns = { "v" } })[1])
    assert.equal(0, #data.SQLite(path, "odd`name"))
    assert.same({ 13.75, 13.75 }, sums(data.SQLite(path, "t", { columns = { "v" } }), "v"))
    assert.error_matches(function() data.SQLite(path, "none") end, "no such table: none")
    assert.error_matches(function() data.SQLite(path, "w") end, "WITHOUT ROWID are not read")
    assert.error_matches(function() data.SQLite(path, "t", { columns = { "zz" } }) end, "no such column: zz")
    assert.error_matches(function() data.SQLite(path, "t", { where = "v >" }) end, "syntax error")
    assert.error_matches(function() data.SQLite("README.md", "t") end, "not a database")
  end)
end)
