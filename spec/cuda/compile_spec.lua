-- CUDA C compiled while the program runs: NVRTC on a device, g++ on the emulation.
local moth = require "moth"
local ffi = require "ffi"

local function fails(text, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(text, tostring(e), 1, true)
end

if not moth.cuda.is_available() then
  describe("moth.cuda.compile", function() pending("no CUDA: " .. moth.cuda.why(), function() end) end)
  return
end

local function read(path)
  local f = assert(io.open(path))
  local text = f:read "*a"
  f:close()
  return text
end

local axpy = [[
// y = a x + y, a tail that no block fills
extern "C" __global__ void axpy(float *__restrict__ y, const float *x, float a, /* how many, */ int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] += a * x[i];
}
template <class T, int K> __global__ void scale(T *x, long long n, T by, bool on) {
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    x[i] = on ? x[i] * by * T(K) : x[i];
}
namespace mine {
struct Pair { int a; double b; };
__global__ void pair(double *out, Pair p, const double *none) { *out = p.a + p.b + (none ? 1 : 0); }
__global__ void __launch_bounds__(64) reversed(float *x, unsigned n) {
  extern __shared__ float row[];
  row[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = row[n - 1 - threadIdx.x];
}
}
]]

describe("moth.cuda.compile", function()
  local device = moth.device "cuda"
  local kernel, scale, pair, reversed
  setup(function()
    kernel, scale, pair, reversed = moth.cuda.compile(axpy, { "axpy", "scale<double, 3>", "mine::pair",
      "mine::reversed" })
  end)

  it("compiles, loads and launches #M154", function()
    local x, y = moth.randn(1000), moth.randn(1000)
    local gx, gy = x:to(device), y:to(device)
    kernel:launch({ 4 }, { 256 }, 0, gy, gx, 0.5, 1000)
    assert.is_close(gy:cpu(), y + x * 0.5)
    kernel:launch(0, 256, 0, gy, gx, 0.5, 0) -- no blocks: nothing
    local released = moth.randn(8):to(device)
    released:untyped_storage():resize_(0)
    kernel:launch(0, 256, 0, gy, released, 0.5, 0)
    local ok, message = pcall(kernel.launch, kernel, 1, 32, 0, gy, released, 0.5, 8)
    assert.is_false(ok)
    assert.matches("axpy: argument 2 .*was released by resize_%(0%)", message)
    kernel:launch({ 1, 1, 1 }, { 32, 2, 1 }, 0, gy, gx, 1, 32) -- two threads of y for each x
    local blocks, share = kernel:occupancy(256)
    assert.is_true(blocks >= 1 and share > 0 and share <= 1)
    assert.equal("<moth.cuda kernel axpy>", tostring(kernel))
  end)

  it("takes instances of templates, structs, NULL and dynamic shared memory", function()
    local x = moth.arange(7, { dtype = moth.float64 })
    local gx = x:to(device)
    scale:launch(2, 2, 0, gx, 7, 0.25, true)
    assert.is_close(gx:cpu(), x * 0.75)
    scale:launch(2, 2, 0, gx, 7LL, 5, false)
    assert.is_close(gx:cpu(), x * 0.75)
    local out = moth.zeros(1, { dtype = moth.float64, device = device })
    pair:launch(1, 1, 0, out, ffi.new("struct { int a; double b; }", 3, 0.5), nil)
    assert.equal(3.5, out:item())
    local r = moth.arange(64):to(device):to(moth.float32)
    reversed:launch(1, 64, 64 * 4, r, 64)
    assert.is_close(r:cpu(), moth.arange(63, -1, -1):to(moth.float32))
  end)

  it("includes headers that it is given, moth's formulas among them", function()
    local headers = {}
    for path in io.popen("ls kernels/math*.h"):lines() do headers[path:match "[^/]+$"] = read(path) end
    local k = moth.cuda.compile([[
      #define MOTH_FN static __device__ __forceinline__
      #define real float
      #define MOTH_REAL_KIND 1
      #include "math.h"
      extern "C" __global__ void gelu(float *o, const float *x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) o[i] = m_gelu(x[i]) + N;
      }]], "gelu", { headers = headers, options = { "-DN=2" } })
    local x = moth.linspace(-6, 6, 333)
    local gx = x:to(device)
    local o = moth.empty_like(gx)
    k:launch(2, 256, 0, o, gx, 333)
    assert.is_close(o:cpu(), x:gelu() + 2)
  end)

  it("runs on the current stream, and in captured graphs", function()
    local s = moth.cuda.Stream()
    local y, x = moth.zeros(5, { device = device }), moth.ones(5, { device = device })
    s:wait_stream(moth.cuda.current_stream())
    moth.cuda.stream(s, function() kernel:launch(1, 32, 0, y, x, 2, 5) end)
    moth.cuda.current_stream():wait_stream(s)
    assert.same({ 2, 2, 2, 2, 2 }, y:cpu():totable())
    local g = moth.cuda.graph(function() kernel:launch(1, 32, 0, y, x, 3, 5) end)
    for _ = 1, 4 do g:replay() end
    assert.same({ 14, 14, 14, 14, 14 }, y:cpu():totable())
  end)

  it("compiles the same text once", function()
    local a = moth.cuda.compile(axpy, { "axpy", "scale<double, 3>", "mine::pair", "mine::reversed" })
    assert.is_true(rawequal(a.program, kernel.program))
    local source = 'extern "C" __global__ void one(float *x) { *x = N; }'
    local b, c = moth.cuda.compile(source, "one", { options = { "-DN=1" } }),
      moth.cuda.compile(source, "one", { options = { "-DN=2" } })
    assert.is_false(rawequal(b.program, c.program))
    local x = moth.zeros(1, { device = device })
    c:launch(1, 1, 0, x)
    assert.equal(2, x:item())
    b:launch(1, 1, 0, x)
    assert.equal(1, x:item())
  end)

  it("says what the compiler says, and what an argument should be", function()
    fails("does not compile:\n", moth.cuda.compile, 'extern "C" __global__ void f(float *x) { *x = y; }', "f")
    local ok, e = pcall(moth.cuda.compile, '\nextern "C" __global__ void f(float *x) {\n  *x = yy; }', "f")
    assert.is_false(ok)
    assert.matches("f%.cu[:%(]3", e) -- the line of the source
    assert.matches("yy", e)
    fails("does not compile", moth.cuda.compile, 'extern "C" __global__ void f(float *x) { *x = 1; }', "g")
    local x = moth.ones(3, { device = device })
    local function launch(...) kernel:launch(1, 32, 0, ...) end
    fails("argument 1 (float *__restrict__ y): the tensor is on cpu, the kernel runs on cuda:0", launch, moth.ones(3))
    fails("argument 2 (const float *x): expected a tensor of float32, got float64", launch, x, x:double(), 1, 3)
    fails("argument 2 (const float *x): expected a tensor or nil, got number", launch, x, 3, 1, 3)
    fails("argument 3 (float a): expected a number, got nothing", launch, x, x)
    fails("argument 4 (int n): 1.5 is no int", launch, x, x, 1, 1.5)
    fails("argument 4 (int n): 3000000000 is no int", launch, x, x, 1, 3e9)
    fails("argument 4 (int n): expected a number, got a tensor; write x:item()", launch, x, x, 1, x)
    fails("axpy takes 4 arguments, got 5", launch, x, x, 1, 3, 4)
    fails("grid is a number or a list of up to three, got 4 of them", kernel.launch, kernel, { 1, 1, 1, 1 }, 1, 0)
    local out = moth.zeros(1, { device = device, dtype = moth.float64 })
    fails("argument 2 (Pair p): moth does not know this type", pair.launch, pair, 1, 1, 0, out, 3)
    fails("invalid configuration argument", kernel.launch, kernel, 1, 5000, 0, x, x, 1, 3)
    fails("bytes of shared memory", kernel.launch, kernel, 1, 32, 1e9, x, x, 1, 3)
    assert.same({ 1, 1, 1 }, x:cpu():totable())
  end)

  it("keeps what it compiled for other processes #noasan", function()
    local dir = os.tmpname()
    os.remove(dir)
    finally(function() os.execute("rm -rf " .. dir) end)
    os.execute("mkdir -m 700 " .. dir)
    local f = assert(io.open(dir .. "/k.lua", "w"))
    f:write [=[
local moth = require "moth"
local a, b = moth.cuda.compile([[template <class T> __global__ void put(T *x, T v) { x[threadIdx.x] = v; }
  extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }]], { "put<float>", "twice" })
local x = moth.zeros(3, { device = "cuda" })
a:launch(1, 3, 0, x, 4)
b:launch(1, 3, 0, x)
io.write(table.concat(x:cpu():totable(), " "))
]=]
    f:close()
    local build = os.getenv("MOTH_BUILD") or "build"
    local function run(variables)
      local pipe = io.popen(("XDG_CACHE_HOME=%s/cache MOTH_LUAJIT_WARNING=0 %s %s/moth %s/k.lua 2>&1"):format(dir,
        variables or "", build, dir))
      local text = pipe:read("*a")
      pipe:close()
      return text
    end
    local function files()
      local list = {}
      for name in io.popen("ls " .. dir .. "/cache/moth/cuda"):lines() do list[#list + 1] = name end
      return list
    end
    assert.equal("8 8 8", run())
    local kept = files()
    assert.equal(1, #kept)
    assert.matches("^%x+%.cubin$", kept[1])
    assert.equal("8 8 8", run("MOTH_CUDA_EMU_SOURCE=/nowhere")) -- where the emulation can compile nothing
    local path = dir .. "/cache/moth/cuda/" .. kept[1]
    os.execute("truncate -s 100 " .. path)
    assert.equal("8 8 8", run())
    assert.same(kept, files())
    assert.equal("8 8 8", run("MOTH_CUDA_EMU_SOURCE=/nowhere"))
  end)
end)
