--- moth: tensors, autograd, networks for LuaJIT.
-- `require "moth"` gives ops as functions (moth.relu(x)) and methods (x:relu()); modules such as moth.nn are
-- loaded when first used.
if not jit then error("moth needs LuaJIT: run `luajit` or `moth`, not plain Lua", 2) end

-- The defaults flush all compiled code once a program has a thousand traces; moth's programs have more.
-- A LuaJIT that was built without its compiler has no jit.opt.
if jit.opt then jit.opt.start("maxtrace=20000", "maxmcode=65536", "maxrecord=20000") end

-- libgomp reads this once, when it is loaded: waiting threads must not spin for long, or a busy machine stalls.
local has_ffi, ffi = pcall(require, "ffi")
if not has_ffi then error("moth needs LuaJIT's FFI, and this LuaJIT has none: install one that has it", 0) end
require "moth.lang.searcher"
local each = require "moth.each"
ffi.cdef "int setenv(const char *name, const char *value, int overwrite); int unsetenv(const char *name);"
ffi.C.setenv("GOMP_SPINCOUNT", "10000", 0)

local VERSION = "0.1.0" -- of these Lua files; src/moth.h has that of the libraries
local here = debug.getinfo(1, "S").source:match("^(@.*)init%.lua$")

-- The binding; an error if its version differs, as calls would fail later.
local function binding()
  local ok, B = pcall(require, "moth_lua")
  local what = "moth's Lua files are " .. VERSION .. " (" .. (here or "?"):sub(2) .. ")"
  local cure = "\nHINT: install all of one version; LUA_PATH and LUA_CPATH may lead to another one"
  if not ok then
    if tostring(B):find("undefined symbol", 1, true) then
      error(what .. ", libmoth.so is of another version: " .. B .. cure, 0)
    elseif tostring(B):find("CPU ISA level", 1, true) then
      error("moth needs a processor with SSE4.2 and POPCNT (x86-64-v2, from 2009 on): " .. B, 0)
    end
    error(B, 0)
  elseif B.version_string ~= VERSION then
    error(what .. ", libmoth.so is " .. tostring(B.version_string) .. " ("
      .. tostring(package.searchpath("moth_lua", package.cpath)) .. ")" .. cure, 0)
  end
  return B
end

local B = binding()
local lazy = require "moth.lang.lazy"
if here then B.library(here) end
require "moth.utils.engine"(B.first_state)

local moth = { _VERSION = B.version_string, version = B.version_string }

for name, fn in each(B.ops) do
  if name:sub(-1) ~= "_" and not B.internal[name] then moth[name] = fn end
end

for _, name in ipairs({ "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64",
  "bool", "uint16", "uint32", "uint64", "complex64", "complex128" }) do
  moth[name] = B.dtype(name)
end
moth.float, moth.double, moth.half = moth.float32, moth.float64, moth.float16
moth.cfloat, moth.cdouble = moth.complex64, moth.complex128
moth.char, moth.byte, moth.short, moth.int, moth.long = moth.int8, moth.uint8, moth.int16, moth.int32, moth.int64

local signature = require "moth.utils.signature"
--- A device: moth.device("cpu"), moth.device("cuda:0"). Errors if it cannot be used, saying why.
moth.device = signature("device(device name)", function(name) return (B.device(name)) end)
--- Whether a value is a tensor.
moth.is_tensor = B.is_tensor
--- True if x is a dtype such as moth.float32.
moth.is_dtype = B.is_dtype
--- The dtype that two dtypes promote to.
moth.promote_types = signature("promote_types(dtype type1, dtype type2)", B.promote)
--- The dtype of an operation between two tensors or numbers.
moth.result_type = signature("result_type(Tensor|number tensor1, Tensor|number tensor2)", B.result_type)

--- The dtype of moth.tensor of numbers, of zeros, randn and others: float32 unless set.
moth.get_default_dtype = signature("get_default_dtype()", function() return (B.default_dtype()) end)
--- Sets the float dtype of what is made without one, in this Lua state.
moth.set_default_dtype = signature("set_default_dtype(dtype dtype)", function(dtype) B.default_dtype(dtype) end)
--- The number of threads that an op may use.
moth.get_num_threads = signature("get_num_threads()", function() return (B.num_threads()) end)
--- Sets the number of threads that an op may use.
moth.set_num_threads = signature("set_num_threads(count n)", function(n) B.num_threads(n) end)
--- Whether ops must give the same bits in every run (they do, unless MOTH_DETERMINISTIC=0 or this says otherwise).
-- With false, on CUDA: index_add, scatter_add and ops that use them (embedding's gradient) add float32 and float64 by
-- atomic sums instead of sorting first, and cuDNN may do so in attention's gradients.
-- Once it was called with true, what has no deterministic way is an error that names it (with warn_only: a warning,
-- once a line): kernels of one's own with atomic sums of floats, ops that were defined with `nondeterministic`.
moth.use_deterministic_algorithms = signature("use_deterministic_algorithms(bool mode, *, bool warn_only=false)",
  function(on, warn_only) require("moth.utils.deterministic").use(on, warn_only) end)
--- Whether what is not deterministic only warns.
moth.is_deterministic_algorithms_warn_only_enabled = signature("is_deterministic_algorithms_warn_only_enabled()",
  function() return require("moth.utils.deterministic").mode() == "warn" end)
--- Whether ops must give the same bits in every run.
moth.are_deterministic_algorithms_enabled = signature("are_deterministic_algorithms_enabled()",
  function() return (B.cuda.deterministic()) end)
--- The topics of which moth speaks on stderr, as MOTH_LOGS: "dispatch,+autograd" ("+": in detail); "": none.
moth.set_logs = signature("set_logs(string topics)", B.log)
--- Sets a variable of the environment, as os.getenv and programs that are started see it; nil removes it. What moth
-- reads at its start, such as MOTH_CPU, stays as it was.
moth.setenv = signature("setenv(string name, string|number value?)", function(name, value)
  if name == "" or name:find "=" then
    require("moth.utils.check").fail("[setenv] '%s' is no name of a variable", name)
  end
  if value == nil then ffi.C.unsetenv(name) else ffi.C.setenv(name, tostring(value), 1) end
end)
--- "generic", "avx2" or "avx512", on arm64 "neon"; can be set for tests (as by MOTH_CPU).
moth.cpu_level = signature("cpu_level(string level?)", function(level) return (B.cpu_level(level)) end)

local tensor = require "moth.tensor"
moth.Tensor = B.Tensor
moth.tensor = tensor.new
moth.as_tensor = tensor.as_tensor
moth.from_ptr = tensor.from_ptr
moth.broadcast_shapes = tensor.broadcast_shapes
moth.finfo, moth.iinfo = tensor.finfo, tensor.iinfo
moth.allclose = tensor.allclose
moth.equal = tensor.equal
moth.newaxis = "newaxis" -- in a key: a dimension of size 1
moth.strided, moth.sparse_coo, moth.sparse_csr = "strided", "sparse_coo", "sparse_csr" -- what x:layout() is
for _, name in ipairs({ "arange", "max", "min", "split", "chunk", "unbind", "where" }) do
  moth[name] = tensor.functions[name]
end
for name, fn in each(require("moth.tensor.functions").functions) do moth[name] = fn end
tensor.install(moth)

local autograd = require "moth.autograd"
for _, name in ipairs({ "no_grad", "no_grad_fn", "enable_grad", "inference_mode", "set_grad_enabled",
  "is_grad_enabled" }) do
  moth[name] = autograd[name]
end

local random = require "moth.tensor.random"
for name, fn in each(random) do moth[name] = fn end

-- Modules, loaded when first used.
if package.loaded.luassert then require "moth.utils.testing" end -- assert.is_close

local files = { F = function() return require("moth.nn").functional end }
for _, name in ipairs({ "nn", "models", "optim", "data", "datasets", "transforms", "utils", "fmt", "ops", "dispatch",
  "library", "testing", "class", "tensorboard", "plot", "func", "tree", "interop", "bench", "backends", "cuda", "cpu",
  "capi", "compile", "kernel", "benchmark", "profiler", "debug", "special", "linalg", "fft",
  "signal", "masked", "sparse", "amp", "memory", "distributed", "distributions", "quantization",
  "export", "jit", "json", "onnx", "edge", "serve", "llm", "tokenizer", "metrics", "vision", "audio",
  "torch7", "train", "lora", "cli" }) do
  files[name] = name
end
files.gguf, files.inductor = "io.gguf", "edge.inductor"
files.cpp_extension, files.multiprocessing, files.zero = "library.extension", "distributed.spawn", "distributed.zero"
for file, fields in each({
  capi = "C", ["data.files"] = "mmap", ["data.diagnose"] = "diagnose", ["data.fetch"] = "is_main",
  ["utils.config"] = "config", ["repl.ask"] = "help",
  io = "save load load_safetensors save_safetensors", sparse = "sparse_coo_tensor sparse_csr_tensor",
  dispatch = "dispatch_mode fake_mode autocast",
  ["dispatch.subclass"] = "tensor_subclass make_subclass type", ["tensor.scope"] = "scope",
  ["nn.utils"] = "remap summary", ["tensor.print"] = "set_printoptions describe",
  ["device.stream"] = "Stream Event stream", benchmark = "tic", export = "Dim",
  ["edge.inductor"] = "aot_compile",
  ["export.control"] = "cond while_loop", ["llm.generate"] = "generate",
}) do
  for field in fields:gmatch("%S+") do files[field] = { file, field } end
end
moth.autograd = lazy(autograd, "moth.autograd.", { functional = "functional", forward_ad = "forward_ad" },
  "moth.autograd")

return lazy(moth, "moth.", files, "moth")
