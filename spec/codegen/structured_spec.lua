-- A structured op from nothing: a record with its shape rule, a file with its kernels for the CPU, one with those for
-- CUDA, and no other, in a copy of a built tree. The op passes the specs that records bring.
local luajit = os.getenv("LUAJIT") or "luajit"

local function must(command, ...)
  local text = ("{ unset LD_PRELOAD MAKEFLAGS MAKELEVEL; %s; } 2>&1; echo $?"):format(command:format(...))
  local pipe = assert(io.popen(text))
  local output, status = pipe:read("*a"):match("^(.-)(%d+)\n$")
  pipe:close()
  assert.equal("0", status, output)
  return output
end

local files = {}
-- By a simple join: the record alone.
local joined = [[
{ "root_mean_square(Tensor self, Dim[]? dim=none, bool keepdim=false) -> Tensor",
  kind = "reduce", amp = "high",
  out = "self.dtype", check = { { "is_float(self)", "expected a float dtype, got {self.dtype}", "type" } },
  map = "square(x)", join = "sum", finish = "sqrt(s0 / count)",
  grad = { self = "self * mean_backward(grad / result, self.shape, dim, keepdim)" },
  none = "map, join and finish say it", samples = { "randn(3,4)", "randn(3,70), 2", "randn(2,3,4), {1,3}, true" },
  errors = { { "randn(2), 2", "out of range" } }, doc = "sqrt(mean(self^2)) over dim." },
{ "largest_square(Tensor self, Dim dim) -> Tensor",
  kind = "scan", out = "self.dtype",
  map = "square(x)", join = "max",
  grad = "unimplemented", none = "map and join say it", samples = { "randn(3,4), 1", "randn(3,70), 2" },
  errors = { { "randn(2), 2", "out of range" } }, doc = "Largest square so far along dim." },
]]
local record = [[
{ "l1_normalize(Tensor self) -> Tensor",
  kind = "fused", amp = "high",
  dims = { self = "* N : float" }, out = "* N",
  decompose = "self / sum(abs(self), list(self.ndim - 1), true)",
  grad = {
    self = "(grad - sum_keep(grad * result, self.ndim - 1) * sign(self)) / sum(abs(self), list(self.ndim - 1), true)",
  },
  samples = { "randn(3,4)", "randn(2,3,700)", "randn(5)" },
  none = "decompose says it", errors = { { "tensor(1.5)", "dimension" } },
  doc = "self divided by the sum of its magnitudes along the last dimension." },
]]
files["kernels/cpu/l1.c"] = [[
/* Rows divided by the sums of their magnitudes. */
#ifdef MOTH_REAL_KIND
#include "kernels/cpu/typed/prelude.h"

MOTH_TYPED_FLOAT void l1_rows(void *out, const void *in, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; r++) {
    const stored *a = (const stored *)in + r * n;
    stored *o = (stored *)out + r * n;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
      sum += (double)m_abs(LOAD(a[i]));
    for (int64_t i = 0; i < n; i++)
      o[i] = STORE((real)((double)LOAD(a[i]) / sum));
  }
}
#else
#include "core/parallel.h"
#include "kernels/cpu/util.h"

typedef struct Rows {
  const MothKernels *k;
  const char *in;
  char *out;
  int64_t n, bytes;
} Rows;

static void range(void *ctx, int64_t begin, int64_t end) {
  const Rows *r = ctx;
  r->k->l1_rows(r->out + begin * r->bytes, r->in + begin * r->bytes, end - begin, r->n);
}

MothStatus moth_cpu_l1_normalize(MothCall *c) {
  MothTensor *in, *out = c->results[0].u.t;
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cpu_contiguous(c->args[0].u.t, &in));
  int64_t n = in->shape[in->ndim - 1];
  Rows r = {moth_cpu_kernels(in->dtype), in->data, out->data, n, n * moth_itemsize(in)};
  moth_parallel_for(in->numel / n, moth_cpu_grain(2 * n), range, &r);
  moth_tensor_release(in);
  return MOTH_OK;
}
#endif
]]
files["kernels/cuda/l1.cu"] = [[
/* As kernels/cpu/l1.c. */
#ifdef MOTH_REAL_KIND
#if MOTH_IS_FLOAT
__global__ void __launch_bounds__(ROW_THREADS) l1_kernel(stored *out, const stored *in, int64_t n) {
  __shared__ double sums[ROW_THREADS];
  const stored *a = in + (int64_t)blockIdx.x * n;
  stored *o = out + (int64_t)blockIdx.x * n;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += ROW_THREADS)
    sum += (double)m_abs(LOAD(a[i]));
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = ROW_THREADS / 2; half; half /= 2) {
    if (threadIdx.x < half)
      sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  for (int64_t i = threadIdx.x; i < n; i += ROW_THREADS)
    o[i] = STORE((real)((double)LOAD(a[i]) / sums[0]));
}
#endif
MOTH_TYPED MothStatus l1_rows(const MothCudaRun *run, void *out, const void *in, int64_t rows, int64_t n) {
#if MOTH_IS_FLOAT
  return moth_launch("l1_normalize", l1_kernel, dim3((unsigned)rows), dim3(ROW_THREADS), 0, run->stream,
                     static_cast<stored *>(out), static_cast<const stored *>(in), n);
#else
  (void)run, (void)out, (void)in, (void)rows, (void)n;
  return moth_fail(MOTH_ERR_TYPE, "expected a float dtype");
#endif
}
#else
#include "kernels/cuda/util.h"

MothStatus moth_cuda_l1_normalize(MothCall *c) {
  MothTensor *self = c->args[0].u.t, *out = c->results[0].u.t;
  MothCudaRun run;
  MothOwned in;
  MOTH_TRY(moth_cuda_run(c, &run));
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous(self, &in.t));
  int64_t n = self->shape[self->ndim - 1];
  return moth_cuda_kernels[self->dtype]->l1_rows(&run, out->data, in->data, self->numel / n, n);
}
#endif
]]

describe("a structured op #slow #noasan", function()
  local build = (os.getenv("MOTH_BUILD") or "build"):gsub("/$", "")
  local dir

  -- Folders that get a file are folders of links; what is built is copied, since make writes to it.
  setup(function()
    dir = must("mktemp -d"):match("%S+")
    local setup = [[
      mkdir -p DIR/build DIR/src/ops DIR/kernels/cpu DIR/kernels/cuda
      for f in *; do case $f in build|src|kernels) ;; *) ln -s $PWD/$f DIR;; esac; done
      ln -sn $PWD/src/* DIR/src 2>/dev/null
      ln -sn $PWD/kernels/* DIR/kernels 2>/dev/null
      cp -a src/ops/*.lua DIR/src/ops && ln -s $PWD/kernels/cpu/* DIR/kernels/cpu &&
      ln -s $PWD/kernels/cuda/* DIR/kernels/cuda && cd BUILD && cp -a gen obj .flags *.so* moth DIR/build]]
    must("%s", (setup:gsub("DIR", dir):gsub("BUILD", build)))
  end)
  teardown(function() os.execute("rm -rf " .. dir) end)

  local function edit(path, text)
    local f = assert(io.open(dir .. "/" .. path, "w"))
    f:write(text)
    f:close()
  end
  -- The op's record in front of those of a file.
  local function add(family, text)
    local f = assert(io.open(("src/ops/%s.lua"):format(family)))
    local all = f:read("*a"):gsub("\nreturn {\n", function(head) return head .. text end, 1)
    edit(("src/ops/%s.lua"):format(family), all)
    f:close()
  end
  local function built(most)
    local output = must("cd %s && make -j2 libs", dir)
    assert.is_true(select(2, output:gsub("\n  CC ", "")) <= most, output)
  end
  local function passes(op)
    local specs = ("forward gradients records errors"):gsub("%a+", "spec/ops/%0_spec.lua")
    local output = must("cd %s && MOTH_OP=%s %s spec/runner.lua --build=build -- %s", dir, op, luajit, specs)
    assert.matches(" 0 failed", output, 1, true)
  end

  it("needs a record and two files", function()
    add("norm", record)
    for path, text in pairs(files) do edit(path, text) end
    built(80)
    passes "l1_normalize"
    -- The host's side of CUDA, and the kernels of one dtype, as the emulation compiles them.
    must("cd %s && make build/emu/kernels/cuda/l1.cu.o build/emu/gen/cuda/float32_typed.cu.o", dir)
  end)

  it("by a simple join needs its record", function()
    add("reduce", joined)
    built(80)
    passes "root_mean_square"
    passes "largest_square"
  end)
end)
