-- kernels/math*.h is what generated CUDA kernels include: NVIDIA's NVRTC must take it, for every compute type. It makes
-- device code without a GPU; where there is none, nothing is tested.
local ffi = require "ffi"

ffi.cdef [[
typedef struct _nvrtcProgram *nvrtcProgram;
void *dlopen(const char *path, int mode);
int nvrtcVersion(int *major, int *minor);
int nvrtcCreateProgram(nvrtcProgram *p, const char *src, const char *name, int n, const char *const *headers,
                       const char *const *names);
int nvrtcCompileProgram(nvrtcProgram p, int n, const char *const *options);
int nvrtcDestroyProgram(nvrtcProgram *p);
int nvrtcGetProgramLogSize(nvrtcProgram p, size_t *n);
int nvrtcGetProgramLog(nvrtcProgram p, char *log);
int nvrtcGetCUBINSize(nvrtcProgram p, size_t *n);
]]

local function open()
  local folder = os.getenv "MOTH_CUDA_LIB" or "/usr/local/cuda/lib64"
  for _, name in ipairs { folder .. "/libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so" } do
    local ok, lib = pcall(ffi.load, name)
    if ok then
      local now_and_for_good = 0x1002 -- RTLD_NOW | RTLD_NODELETE: unloading would leak a block of its C++ runtime
      ffi.C.dlopen(name, now_and_for_good)
      return lib
    end
  end
end

local kinds = { { "float", 1 }, { "double", 2 }, { "int", 3 }, { "long long", 3 }, { "signed char", 3 },
  { "unsigned char", 4 }, { "unsigned char", 5 } }

describe("kernels/math*.h", function()
  local lib = open()
  if not lib then
    pending("libnvrtc was not found", function() end)
    return
  end
  local names, texts = {}, {}
  for path in io.popen("ls kernels/math*.h"):lines() do
    local f = assert(io.open(path))
    names[#names + 1], texts[#texts + 1] = path:match "[^/]+$", f:read "*a"
    f:close()
  end

  local function compile(source)
    local p = ffi.new "nvrtcProgram[1]"
    local n = #names
    assert.equal(0, lib.nvrtcCreateProgram(p, source, "math.cu", n, ffi.new("const char *[?]", n, texts),
      ffi.new("const char *[?]", n, names)))
    local status = lib.nvrtcCompileProgram(p[0], 2, ffi.new("const char *[2]",
      { "--gpu-architecture=sm_90", "--std=c++17" }))
    local size = ffi.new "size_t[1]"
    lib.nvrtcGetProgramLogSize(p[0], size)
    local log = ffi.new("char[?]", tonumber(size[0]) + 1)
    lib.nvrtcGetProgramLog(p[0], log)
    lib.nvrtcGetCUBINSize(p[0], size)
    lib.nvrtcDestroyProgram(p)
    return status, ffi.string(log), tonumber(size[0])
  end

  for _, kind in ipairs(kinds) do
    it(("is compiled by NVRTC for %s (kind %d)"):format(kind[1], kind[2]), function()
      local float = kind[2] <= 2
      local status, log, size = compile(([[
        #define MOTH_FN static __device__ __forceinline__
        #define real %s
        #define MOTH_REAL_KIND %d
        #include "math.h"
        extern "C" __global__ void f(real *x, const real *y) { x[0] = %s; }]]):format(kind[1], kind[2],
        float and "m_gelu(m_exp(y[0])) + m_lgamma(y[1]) + m_pow(y[2], y[3])" or "m_maximum(y[0], y[1])"))
      assert.equal("", status ~= 0 and log or "")
      assert.is_true(size > 500)
    end)
  end

  it("and NVRTC says what is wrong", function()
    local status, log = compile "__global__ void f() { nothing(); }"
    assert.is_true(status ~= 0)
    assert.matches("nothing", log)
  end)
end)
