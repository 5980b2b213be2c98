/* Optimizer steps: one pass over memory, 16 bytes an access. The kernel of all steps, and what those have whose formula
 * is written from a record (src/ops/steps.lua). */
enum { STEP_THREADS = 256, STEP_LANES = 16 / (int)sizeof(stored) };

struct alignas(16) StepLanes {
  stored v[STEP_LANES];
};

#if MOTH_IS_FLOAT
__device__ __forceinline__ real step_scale(const MothStepTable &t, real sign) {
  if (!t.scale)
    return sign;
  return sign * (t.scale_f64 ? (real) * (const double *)t.scale : (real) * (const float *)t.scale);
}

__device__ __forceinline__ double step_number(const void *p, bool f64) {
  return f64 ? *(const double *)p : (double)*(const float *)p;
}

/* F::ROLES tensors are read, and written but the gradient, by f(scale, values). */
template <class F>
__global__ void __launch_bounds__(STEP_THREADS)
    step_kernel(const F given, const __grid_constant__ MothStepTable t) {
  F f = given;
  if (t.found && step_number(t.found, t.found_f64) != 0)
    return;
  if (t.lr || t.step || t.nargs)
    f.take_numbers(t);
  int lo = 0, hi = t.n;
  while (hi - lo > 1) {
    int mid = (lo + hi) / 2;
    if (t.first[mid] <= blockIdx.x)
      lo = mid;
    else
      hi = mid;
  }
  int64_t n = t.numel[lo];
  bool aligned = n >= 0;
  n = aligned ? n : -n;
  int64_t begin = (int64_t)(blockIdx.x - t.first[lo]) * MOTH_STEP_CHUNK;
  int64_t rest = n - begin;
  int m = rest < MOTH_STEP_CHUNK ? (int)rest : (int)MOTH_STEP_CHUNK;
  stored *p[F::ROLES];
#pragma unroll
  for (int r = 0; r < F::ROLES; r++)
    p[r] = (stored *)t.p[r][lo] + begin;
  real scale = step_scale(t, f.sign);
  int vectors = aligned ? m / STEP_LANES : 0;
  for (int i = threadIdx.x; i < vectors; i += STEP_THREADS) {
    StepLanes x[F::ROLES];
#pragma unroll
    for (int r = 0; r < F::ROLES; r++)
      if (!(f.first && r == F::FRESH))
        x[r] = reinterpret_cast<const StepLanes *>(p[r])[i];
      else
        x[r] = StepLanes{};
#pragma unroll
    for (int k = 0; k < STEP_LANES; k++) {
      stored y[F::ROLES];
#pragma unroll
      for (int r = 0; r < F::ROLES; r++)
        y[r] = x[r].v[k];
      f(scale, y);
#pragma unroll
      for (int r = 0; r < F::ROLES; r++)
        x[r].v[k] = y[r];
    }
#pragma unroll
    for (int r = 0; r < F::ROLES; r++)
      if (r != 1)
        reinterpret_cast<StepLanes *>(p[r])[i] = x[r];
  }
  for (int i = vectors * STEP_LANES + (int)threadIdx.x; i < m; i += STEP_THREADS) {
    stored y[F::ROLES];
#pragma unroll
    for (int r = 0; r < F::ROLES; r++)
      y[r] = f.first && r == F::FRESH ? STORE((real)0) : p[r][i];
    f(scale, y);
#pragma unroll
    for (int r = 0; r < F::ROLES; r++)
      if (r != 1)
        p[r][i] = y[r];
  }
}

template <class F>
static MothStatus step_run(const char *name, const MothCudaRun *run, const F &f,
                           const MothStepTable *t) {
  return moth_launch(name, step_kernel<F>, dim3(t->first[t->n]), dim3(STEP_THREADS), 0, run->stream,
                     f, *t);
}

/* The base of generated function objects: `a`, the arguments, and `u`, what is computed of them. */
struct StepNumbers {
  static constexpr real sign = 1;
  static constexpr bool first = false;
  double a[MOTH_UPDATE_ARGS];
  real u[MOTH_UPDATE_NUMBERS];
  __device__ void read_numbers(const MothStepTable &t) {
    for (int i = 0; i < t.nargs; i++)
      a[t.arg_at[i]] = step_number(t.args[i], t.arg_f64[i]);
  }
};

template <class F>
static MothStatus step_generated(const MothCudaRun *run, const MothStepValues *values,
                                 const MothStepTable *t) {
  static_assert(sizeof(F) + sizeof(MothStepTable) <= 4096, "more than a kernel's parameters");
  F f;
  for (int i = 0; i < MOTH_UPDATE_ARGS; i++)
    f.a[i] = values->args[i];
  for (int i = 0; i < MOTH_UPDATE_NUMBERS; i++)
    f.u[i] = (real)values->numbers[i];
  return step_run("optimizer_step", run, f, t);
}
#endif
