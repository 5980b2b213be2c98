--- data.HDF5: arrays of an HDF5 file as a dataset, read as they are asked for, by libhdf5 (Debian's libhdf5-103-1).
--
-- A DataLoader's workers open the file anew, each in its thread; a library that is not made for threads is refused
-- there.
local ffi = require "ffi"
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"
local fetch = require "moth.data.fetch"
local open_library = require "moth.utils.library"
local signature = require "moth.utils.signature"
local Dataset = require("moth.data.dataset").Dataset

local declarations = [[
int H5open(void); int H5is_library_threadsafe(bool *);
int H5Eset_auto2(int64_t, void *, void *);
int64_t H5Fopen(const char *, unsigned, int64_t); int H5Fclose(int64_t);
int H5Fis_hdf5(const char *);
int64_t H5Gopen2(int64_t, const char *, int64_t); int H5Gclose(int64_t);
int H5Gget_num_objs(int64_t, uint64_t *);
long H5Lget_name_by_idx(int64_t, const char *, int, int, uint64_t, char *, size_t, int64_t);
int64_t H5Dopen2(int64_t, const char *, int64_t); int H5Dclose(int64_t);
int64_t H5Dget_space(int64_t); int64_t H5Dget_type(int64_t);
int H5Dread(int64_t, int64_t, int64_t, int64_t, int64_t, void *);
int H5Sget_simple_extent_ndims(int64_t); int H5Sget_simple_extent_type(int64_t);
int H5Sget_simple_extent_dims(int64_t, uint64_t *, uint64_t *);
int64_t H5Screate_simple(int, const uint64_t *, const uint64_t *);
int H5Sselect_hyperslab(int64_t, int, const uint64_t *, const uint64_t *, const uint64_t *, const uint64_t *);
int H5Sclose(int64_t);
int H5Tget_class(int64_t); size_t H5Tget_size(int64_t); int H5Tget_sign(int64_t); int H5Tclose(int64_t);
extern int64_t H5T_NATIVE_INT8_g, H5T_NATIVE_UINT8_g, H5T_NATIVE_INT16_g, H5T_NATIVE_UINT16_g, H5T_NATIVE_INT32_g,
  H5T_NATIVE_UINT32_g, H5T_NATIVE_INT64_g, H5T_NATIVE_UINT64_g, H5T_NATIVE_FLOAT_g, H5T_NATIVE_DOUBLE_g;
]]

local lib
local function library()
  if not lib then
    pcall(ffi.cdef, declarations)
    lib = open_library({ "libhdf5_serial.so.103", "libhdf5.so.103", "libhdf5_serial.so.310", "libhdf5.so.310",
      "libhdf5.so" }, "[data.HDF5]", "libhdf5-103-1")
    lib.H5open()
    lib.H5Eset_auto2(0, nil, nil)
  end
  if fetch.get_worker_info() then
    local safe = ffi.new("bool[1]")
    lib.H5is_library_threadsafe(safe)
    if not safe[0] then
      check.fail("[data.HDF5] this libhdf5 is not made for threads; HINT: num_workers = 0 in the DataLoader")
    end
  end
  return lib
end

-- The dtype of a type of numbers, and HDF5's type in memory; nil and what it is instead. Closes the handle.
local INTEGER, FLOAT, EMPTY = 0, 1, 2
local classes = { [3] = "text", [6] = "records", [8] = "an enumeration (bool, in h5py)", [9] = "lists of any length" }
local function type_of(handle)
  local class, size = lib.H5Tget_class(handle), tonumber(lib.H5Tget_size(handle))
  local name
  if class == FLOAT and (size == 2 or size == 4 or size == 8) then
    name = size == 8 and "DOUBLE" or "FLOAT"
  elseif class == INTEGER and (size == 1 or size == 2 or size == 4 or size == 8) then
    name = (lib.H5Tget_sign(handle) == 0 and "UINT" or "INT") .. size * 8
  end
  lib.H5Tclose(handle)
  if not name then return nil, classes[class] or ("class %d of %d bytes"):format(class, size) end
  local dtype = ({ DOUBLE = "float64", FLOAT = "float32" })[name] or name:lower()
  return moth[dtype], lib["H5T_NATIVE_" .. name .. "_g"]
end

-- Of each dataset, in this thread: the file, and the arrays by name: { handle, shape, dtype, memory }.
local opened = setmetatable({}, { __mode = "k" })

local function close(files)
  for _, array in each(files.arrays) do lib.H5Dclose(array.handle) end
  lib.H5Fclose(files.file)
end

local function open(self)
  local files = opened[self]
  if files then return files end
  local l = library()
  local file = l.H5Fopen(self.path, 0, 0)
  if file < 0 then
    local f, why = io.open(self.path, "rb")
    if not f then check.fail("[data.HDF5] %s", (why:gsub("^(.-): ", "cannot open %1: "))) end
    f:close()
    check.fail("[data.HDF5] %s %s", self.path, l.H5Fis_hdf5(self.path) > 0 and "is damaged" or "is no HDF5 file")
  end
  files = { file = file, arrays = {}, guard = newproxy(true) }
  getmetatable(files.guard).__gc = function() close(files) end
  opened[self] = files
  return files
end

local function array_of(self, name)
  local files = open(self)
  local array = files.arrays[name]
  if array then return array end
  local handle = lib.H5Dopen2(files.file, name, 0)
  if handle < 0 then
    local names = self:keys()
    check.fail("[data.HDF5] %s has no array '%s'%s%s", self.path, name, check.suggest(name, names),
      #names > 0 and "; there are " .. table.concat(names, ", ", 1, math.min(#names, 20)) or "")
  end
  local space = lib.H5Dget_space(handle)
  local dtype, memory = type_of(lib.H5Dget_type(handle))
  if lib.H5Sget_simple_extent_type(space) == EMPTY then dtype, memory = nil, "nothing, not even a shape" end
  if not dtype then
    lib.H5Sclose(space)
    lib.H5Dclose(handle)
    check.fail("[data.HDF5] %s: %s holds %s; only numbers are read", self.path, name, memory)
  end
  local dims = lib.H5Sget_simple_extent_ndims(space)
  local sizes, shape = ffi.new("uint64_t[?]", math.max(dims, 1)), {}
  if dims > 0 then lib.H5Sget_simple_extent_dims(space, sizes, nil) end
  for i = 1, dims do shape[i] = tonumber(sizes[i - 1]) end
  lib.H5Sclose(space)
  array = { handle = handle, shape = shape, dtype = dtype, memory = memory }
  files.arrays[name] = array
  return array
end

local HDF5 = Dataset:subclass("HDF5")
HDF5.__init = signature.init("data.HDF5(path path, list names?)", function(self, o)
  self.path, self.names = o.path, o.names or {}
  open(self)
  local first
  for _, name in ipairs(self.names) do
    local shape = array_of(self, name).shape
    if #shape == 0 then check.fail("[data.HDF5] %s: %s is one number, no list of samples", o.path, name) end
    first = first or shape[1]
    if shape[1] ~= first then
      check.fail("[data.HDF5] %s: %s has %d samples, %s has %d", o.path, self.names[1], first, name, shape[1])
    end
  end
  self.count = first or 0
end)

--- The number of samples.
function HDF5:size() return self.count end

-- The names below a group, into a list.
local function names_in(file, path, out)
  local group = lib.H5Gopen2(file, path == "" and "/" or path, 0)
  if group < 0 then return end
  local n = ffi.new("uint64_t[1]")
  lib.H5Gget_num_objs(group, n)
  for i = 0, tonumber(n[0]) - 1 do
    local size = tonumber(lib.H5Lget_name_by_idx(group, ".", 0, 0, i, nil, 0, 0))
    if size > 0 then
      local buffer = ffi.new("char[?]", size + 1)
      lib.H5Lget_name_by_idx(group, ".", 0, 0, i, buffer, size + 1, 0)
      local name = (path == "" and "" or path .. "/") .. ffi.string(buffer)
      local array = lib.H5Dopen2(file, name, 0)
      if array >= 0 then
        lib.H5Dclose(array)
        out[#out + 1] = name
      else
        names_in(file, name, out)
      end
    end
  end
  lib.H5Gclose(group)
end

--- The names of all arrays, those of groups as "group/name".
function HDF5:keys()
  local out = {}
  names_in(open(self).file, "", out)
  return out
end

-- Rows `from` (from 0) to from + n of an array; nil: all of it.
local function read(self, name, from, n)
  local array = array_of(self, name)
  local dims, shape = #array.shape, {}
  for i = 1, dims do shape[i] = array.shape[i] end
  local memory, space = 0, 0
  if from then
    shape[1] = n
    local start, count = ffi.new("uint64_t[?]", dims), ffi.new("uint64_t[?]", dims)
    for i = 1, dims do start[i - 1], count[i - 1] = i == 1 and from or 0, shape[i] end
    space = lib.H5Dget_space(array.handle)
    lib.H5Sselect_hyperslab(space, 0, start, nil, count, nil)
    memory = lib.H5Screate_simple(dims, count, nil)
  end
  local out = moth.empty(shape, { dtype = array.dtype })
  local failed = out:numel() > 0
    and lib.H5Dread(array.handle, array.memory, memory, space, 0, ffi.cast("void *", out:data_ptr())) < 0
  if from then
    lib.H5Sclose(memory)
    lib.H5Sclose(space)
  end
  if failed then
    check.fail("[data.HDF5] %s: %s could not be read: the file is damaged, or compressed by a filter that is not here",
      self.path, name)
  end
  return out
end

--- A whole array as a tensor.
function HDF5:read(name)
  if type(name) ~= "string" then check.fail("[HDF5:read] expected the name of an array, got %s", type(name)) end
  return read(self, name)
end

--- Row i of each of the names.
function HDF5:get(i)
  self:check_position(i)
  local out = {}
  for k, name in ipairs(self.names) do out[k] = read(self, name, i - 1, 1):select(1, 1) end
  return unpack(out)
end

function HDF5:__tostring() return ("data.HDF5(%s, %d samples)"):format(self.path, self.count) end

return HDF5
