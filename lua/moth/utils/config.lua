--- What moth runs on: moth.config() finds it out and prints as a table of lines.
--
--     print(moth.config())
--     moth.config().blas.path
local ffi = require "ffi"
local B = require "moth_lua"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"
local toolchain = require "moth.utils.toolchain"

pcall(ffi.cdef, "const char *moth_blas_name(void); const char *moth_blas_core(void); const char *moth_blas_note(void);")

-- Libraries that are opened when first needed: name, the file, what for, Debian's package.
local libraries = {
  { "oneDNN", "libdnnl.so.2", "large float32 and bfloat16 products", "libdnnl2" },
  { "turbojpeg", "libturbojpeg.so.0", "JPEG images", "libturbojpeg0" },
  { "spng", "libspng.so.0", "PNG images", "libspng0" },
  { "webp", "libwebp.so.7", "WebP images", "libwebp7" },
  { "sndfile", "libsndfile.so.1", "sound files", "libsndfile1" },
  { "hdf5", "libhdf5_serial.so.103", "HDF5 files", "libhdf5-103-1" },
  { "lmdb", "liblmdb.so.0", "LMDB databases", "liblmdb0" },
  { "sqlite", "libsqlite3.so.0", "SQLite files", "libsqlite3-0" },
  { "archive", "libarchive.so.13", "WebDataset's tar files", "libarchive13" },
  { "zlib", "libz.so.1", "compressed files", "zlib1g" },
  { "onig", "libonig.so.5", "regular expressions of tokenizers that are not known", "libonig5" },
  { "edit", "libedit.so.2", "the prompt's history and completion", "libedit2" },
}

local function path_of(soname)
  local maps = io.open("/proc/self/maps")
  if not maps then return soname end
  local found
  for line in maps:lines() do
    local path = line:match("%s(/%S+)$")
    if path and path:match("[^/]+$"):sub(1, #soname) == soname then found = path end
  end
  maps:close()
  return found or soname
end

local function library(soname, purpose, package)
  local ok, lib = pcall(ffi.load, soname)
  if not ok then return { why = ("not found (Debian's package %s): no %s"):format(package, purpose) } end
  return { path = path_of(soname), purpose = purpose, handle = lib }
end

local function command(name, text)
  local path = toolchain.output("command -v " .. name):match("%S+")
  if not path then return { why = "not found: " .. text } end
  local said = toolchain.output(path .. " --version")
  return { path = path, version = said:match("release ([%d.]+)") or said:match("%d+%.[%d.]*%d") }
end

local function cuda()
  local why = B.cuda_why()
  if why then return { why = why } end
  local M = require "moth.cuda"
  local devices = {}
  for i = 0, M.device_count() - 1 do devices[#devices + 1] = M.get_device_name(i) end
  return { path = table.concat(devices, ", "), devices = devices }
end

local order = { "moth", "lua", "cpu", "blas" }
for _, l in ipairs(libraries) do order[#order + 1] = l[1] end
for _, name in ipairs { "cc", "nvcc", "cuda" } do order[#order + 1] = name end

local function shown(entry)
  if entry.why then return entry.why end
  local text = entry.path or ""
  if entry.version then text = text == "" and entry.version or text .. ", " .. entry.version end
  return entry.purpose and text .. ": " .. entry.purpose or text
end

local Config = {}
Config.__index = Config
function Config:__tostring()
  local lines = {}
  for _, name in ipairs(order) do lines[#lines + 1] = ("%-11s %s"):format(name, shown(self[name])) end
  for name, value in each(self.environment) do lines[#lines + 1] = ("%-11s %s"):format(name, value) end
  return table.concat(lines, "\n")
end

-- Variables that change how moth computes.
local variables = { "MOTH_NUM_THREADS", "OMP_NUM_THREADS", "MOTH_CPU", "MOTH_BLAS", "MOTH_ONEDNN",
  "MOTH_DETERMINISTIC", "MOTH_CACHE", "MOTH_CUDA", "MOTH_COMPILE", "CUDA_VISIBLE_DEVICES" }

--- What moth found on this machine: versions, processor, libraries, compilers; prints as a table.
local function config()
  local moth = require "moth"
  local self = { environment = {} }
  self.moth = { version = moth.version, path = package.searchpath("moth_lua", package.cpath) }
  self.lua = { version = jit.version .. (jit.status() and "" or ", the compiler is off") }
  self.cpu = { version = ("kernels for %s, %d threads"):format(moth.cpu_level(), moth.get_num_threads()) }
  local lib = ffi.load(B.soname)
  local path, core = ffi.string(lib.moth_blas_name()), ffi.string(lib.moth_blas_core())
  local note = ffi.string(lib.moth_blas_note())
  self.blas = path == "none"
    and { why = (note ~= "" and note or "not found (Debian's package libopenblas0-openmp)") .. ": products are slow" }
    or { path = path, version = core ~= "" and "kernels for " .. core .. (note ~= "" and "; " .. note or "") or nil }
  for _, l in ipairs(libraries) do self[l[1]] = library(l[2], l[3], l[4]) end
  self.cc = command(system.getenv("MOTH_CC") or "cc", "moth.compile works without, slower; no extensions in C")
  self.nvcc = command("nvcc", "no extensions in CUDA")
  self.cuda = cuda()
  for _, name in ipairs(variables) do
    self.environment[name] = system.getenv(name)
  end
  return setmetatable(self, Config)
end

--- What was found on this machine, as a table that prints: moth, lua, cpu, blas, cc, nvcc, cuda and the libraries
-- that are opened when needed, each { path, version } or { why = "not found …" }; environment: MOTH_* variables set.
return { config = signature("config()", config) }
