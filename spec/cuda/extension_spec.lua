-- Extensions with CUDA C: compiled by nvcc, or by the emulation's (src/emu/nvcc.lua).
local moth = require "moth"
local ffi = require "ffi"

if not moth.cuda.is_available() then
  describe("an extension with CUDA C", function() pending("no CUDA: " .. moth.cuda.why(), function() end) end)
  return
end

local build = os.getenv("MOTH_BUILD") or "build"
local here = build:sub(1, 1) == "/" and build or io.popen("pwd"):read("*l") .. "/" .. build

local function shell(command, ...)
  local pipe = assert(io.popen(("{ %s; } 2>&1; echo status=$?"):format(command:format(...))))
  local text, status = pipe:read("*a"):match("^(.-)status=(%d+)%s*$")
  pipe:close()
  return text, tonumber(status)
end

describe("an extension with CUDA C #noasan", function()
  local dir
  setup(function() dir = shell("mktemp -d"):match("%S+") end)
  teardown(function() shell("rm -rf %s", dir) end)

  local function write(name, text)
    local f = assert(io.open(dir .. "/" .. name, "w"))
    f:write(text)
    f:close()
    return dir .. "/" .. name
  end

  it("adds on the device: examples/ext_add #M133", function()
    local text, status = shell("MOTH_DEVICE=cpu MOTH_EXTENSIONS=%s %s/moth examples/ext_add/ext_add.lua", dir, build)
    assert.equal(0, status, text)
    assert.matches("kernels      cpu, cuda", text, 1, true)
    assert.matches("on cuda the same as a + b: true", text, 1, true)
    assert.matches("w + w after training: 1 2 3", text, 1, true)
  end)

  it("adds on the device where it was built ahead of time", function()
    if os.getenv("MOTH_CUDA") ~= "emu" then return pending("with the emulation's nvcc") end
    local text, status = shell("cp -r examples/ext_add %s && export NVCC=$PWD/src/emu/nvcc.lua MOTH_CUDA=emu && \z
      make -s -C %s/ext_add CUDA=1 LUAJIT=%s/moth && cd %s/ext_add && %s/moth -e '\z
        local moth = require \"moth\" \z
        moth.library.load \"./ext_add.so\" \z
        local a = moth.randn(7, { device = \"cuda\" }) \z
        print(moth.equal(moth.ops.ext_add.add(a, a), a + a))'", dir, dir, here, dir, here)
    assert.equal(0, status, text)
    assert.equal("true\n", text)
  end)

  local source = [[
    #include <cuda_runtime.h>
    #include "both.h"
    // not a launch: f<<<1, 2>>>(x)
    extern "C" MothStatus two_kernels(MothCall *c);
    template <class T, int K> static __global__ void scale(T *x, T by, int64_t n) {
      int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
      if (i < n) x[i] *= by * T(K);
    }
    namespace mine {
    template <class T> __global__ void reverse(T *x) {
      extern __shared__ double row[];
      row[threadIdx.x] = (double)x[threadIdx.x];
      __syncthreads();
      x[threadIdx.x] = (T)row[blockDim.x - 1 - threadIdx.x];
    }
    }
    static __global__ void nothing() {}
    extern "C" MothStatus two_kernels(MothCall *c) {
      const char *text = "a<<<b";
      MothTensor *out;
      MothStatus s = moth_clone(moth_call_arg(c, 0).u.t, &out);
      if (s) return s;
      float *x = (float *)moth_tensor_data(out);
      int n = (int)moth_tensor_numel(out);
      cudaStream_t stream = (cudaStream_t)moth_call_stream(c);
      scale<float, 3><<<(n + 31) / 32, 32, 0, stream>>>(x, 2, n); // 2: converted to the parameter's type
      auto *kernel = mine::reverse<float>;
      kernel<<<1, dim3(n), n * sizeof(double), stream>>>(x);
      mine::reverse <<< 1, n, n * sizeof(double), stream >>>(x);
      kernel<<<1, n, n * 8, stream>>>(x);
      nothing<<<1, 1>>>();
      (void)text;
      cudaError_t e = cudaGetLastError();
      if (e != cudaSuccess)
        s = moth_fail(MOTH_ERR_STATE, "CUDA: %s", cudaGetErrorString(e));
      if (s) {
        moth_tensor_release(out);
        return s;
      }
      return moth_call_set_result(c, 0, out);
    }
  ]]

  it("starts kernels as CUDA C does: templates, shared memory, streams, launches that fail", function()
    write("both.h", "#include <moth.h>\n#include <moth_ops.h>\n")
    local cu = write("two.cu", source)
    local c = write("two.c", [[
      #include <moth.h>
      MothStatus two_kernels(MothCall *c);
      MOTH_LIBRARY(two, m) {
        moth_def_op(m, &(MothOpDef){.schema = "f(Tensor x) -> Tensor", .cuda = two_kernels});
      }
    ]])
    local ext = moth.cpp_extension.load { name = "two", sources = { c, cu }, build_directory = dir,
      extra_cuda_cflags = { "-DUNUSED=1" } }
    local x = moth.tensor({ 1, 2, 3, 4, 5 }, { device = "cuda" })
    assert.same({ 30, 24, 18, 12, 6 }, ext.f(x):totable())
    local stream = moth.cuda.Stream()
    local y
    moth.cuda.stream(stream, function() y = ext.f(x) end)
    stream:synchronize()
    assert.same({ 30, 24, 18, 12, 6 }, y:totable())
    local ok, message = pcall(ext.f, moth.ones(2000, { device = "cuda" })) -- more threads than a block has
    assert.is_false(ok)
    assert.matches("CUDA: ", message)
    assert.same({ 6 }, ext.f(moth.ones(1, { device = "cuda" })):totable())
    assert.equal("", (shell("ls %s | grep -E '[.](o|cc)$'", dir)))
  end)

  it("shows the compiler's error with the line of the source", function()
    local cu = write("wrong.cu", "\n\nint f() { return nowhere; }\n")
    local ok, message = pcall(moth.cpp_extension.load, { name = "wrong", sources = { cu }, build_directory = dir })
    assert.is_false(ok)
    assert.matches("wrong.cu[:(]3", message)
    assert.matches("nowhere", message)
  end)

  it("needs the tree where CUDA is emulated", function()
    if os.getenv("MOTH_CUDA") ~= "emu" then return pending("of the emulation") end
    ffi.cdef "int setenv(const char *, const char *, int); int unsetenv(const char *);"
    local kept = os.getenv("MOTH_CUDA_EMU_SOURCE")
    ffi.C.setenv("MOTH_CUDA_EMU_SOURCE", dir, 1)
    finally(function()
      if kept then ffi.C.setenv("MOTH_CUDA_EMU_SOURCE", kept, 1) else ffi.C.unsetenv "MOTH_CUDA_EMU_SOURCE" end
    end)
    local ok, message = pcall(moth.cpp_extension.load, { name = "none", sources = { write("none.cu", "") } })
    assert.is_false(ok)
    assert.matches("there is no .*/src/emu/nvcc.lua: MOTH_CUDA_EMU_SOURCE names moth's tree", message)
  end)
end)
