-- NVIDIA's NVRTC, without a GPU: open() gives a function that compiles a text and returns its messages ("" if it is
-- right), or nil where the library is not there.
local ffi = require "ffi"

local M = {}

function M.open()
  pcall(ffi.cdef, [[
typedef struct _nvrtcProgram *nvrtcProgram;
void *dlopen(const char *path, int mode);
int nvrtcCreateProgram(nvrtcProgram *p, const char *src, const char *name, int n, const char *const *headers,
                       const char *const *names);
int nvrtcCompileProgram(nvrtcProgram p, int n, const char *const *options);
int nvrtcDestroyProgram(nvrtcProgram *p);
int nvrtcGetProgramLogSize(nvrtcProgram p, size_t *n);
int nvrtcGetProgramLog(nvrtcProgram p, char *log);]])
  local lib
  for _, name in ipairs { (os.getenv "MOTH_CUDA_LIB" or "/usr/local/cuda/lib64") .. "/libnvrtc.so", "libnvrtc.so.13",
    "libnvrtc.so" } do
    local ok, found = pcall(ffi.load, name)
    if ok then
      ffi.C.dlopen(name, 0x1002) -- RTLD_NOW | RTLD_NODELETE: unloaded, its C++ runtime would leave a block behind
      lib = found
      break
    end
  end
  return lib and function(source)
    local p, size = ffi.new "nvrtcProgram[1]", ffi.new "size_t[1]"
    assert(lib.nvrtcCreateProgram(p, source, "kernel.cu", 0, nil, nil) == 0)
    local status = lib.nvrtcCompileProgram(p[0], 2, ffi.new("const char *[2]", { "--gpu-architecture=sm_90",
      "--std=c++17" }))
    lib.nvrtcGetProgramLogSize(p[0], size)
    local log = ffi.new("char[?]", tonumber(size[0]) + 1)
    lib.nvrtcGetProgramLog(p[0], log)
    lib.nvrtcDestroyProgram(p)
    return status == 0 and "" or ffi.string(log)
  end
end

return M
