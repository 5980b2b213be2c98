/* Loss scaling: many gradients per launch, as optimizer.cu. */
#ifdef MOTH_REAL_KIND
enum { UNSCALE_THREADS = 256 };

#if MOTH_IS_FLOAT
__global__ void __launch_bounds__(UNSCALE_THREADS)
    unscale_kernel(const __grid_constant__ MothUnscale t) {
  int lo = 0, hi = t.n;
  while (hi - lo > 1) {
    int mid = (lo + hi) / 2;
    if (t.first[mid] <= blockIdx.x)
      lo = mid;
    else
      hi = mid;
  }
  int64_t begin = (int64_t)(blockIdx.x - t.first[lo]) * MOTH_UNSCALE_CHUNK;
  int64_t rest = t.numel[lo] - begin;
  int m = rest < MOTH_UNSCALE_CHUNK ? (int)rest : (int)MOTH_UNSCALE_CHUNK;
  stored *x = (stored *)t.p[lo] + begin;
  real factor = (real)*t.inv_scale;
  bool bad = false;
  for (int i = threadIdx.x; i < m; i += UNSCALE_THREADS) {
    real v = LOAD(x[i]);
    bad = bad || v - v != 0; /* infinite or NaN */
    x[i] = STORE(v * factor);
  }
  if (bad)
    *t.found_inf = 1; /* all threads store the same */
}
#endif

MOTH_TYPED MothStatus unscale(const MothCudaRun *run, const MothUnscale *t) {
#if MOTH_IS_FLOAT
  return moth_launch("amp_unscale", unscale_kernel, dim3(t->first[t->n]), dim3(UNSCALE_THREADS), 0,
                     run->stream, *t);
#else
  (void)run, (void)t;
  return moth_fail(MOTH_ERR_TYPE, "expected a float dtype");
#endif
}
#else
#include "kernels/cuda/amp.h"

#include "kernels/cuda/util.h"
#include "unpack/amp.h"

namespace {

struct Unscale {
  MothCudaRun run;
  MothUnscale table;
};

MothStatus flush(Unscale *u, int dtype) {
  if (u->table.n == 0)
    return MOTH_OK;
  MothStatus s = moth_cuda_kernels[dtype]->unscale(&u->run, &u->table);
  u->table.n = 0;
  return s;
}

MothStatus push(Unscale *u, const MothTensor *t) {
  MothUnscale *q = &u->table;
  int64_t chunks = moth_ceil_div(t->numel, MOTH_UNSCALE_CHUNK);
  if (q->n == MOTH_UNSCALE_SLOTS || (q->n > 0 && chunks + q->first[q->n] > 0x7fffffff))
    MOTH_TRY(flush(u, t->dtype));
  if (q->n == 0)
    q->first[0] = 0;
  q->p[q->n] = t->data;
  q->numel[q->n] = t->numel;
  q->first[q->n + 1] = q->first[q->n] + (unsigned)chunks;
  q->n++;
  return MOTH_OK;
}

__global__ void update_kernel(double *scale, long long *tracker, const double *found_inf,
                              double growth, double backoff, long long interval, bool narrow) {
  double now = *scale, next = now;
  if (*found_inf != 0) {
    next = now * backoff;
    *tracker = 0;
  } else if (++*tracker >= interval) {
    next = now * growth;
    *tracker = 0;
    double seen = narrow ? (double)(float)next : next;
    if (seen - seen != 0) /* a growth that is infinite in the dtype is left out */
      next = now;
  }
  *scale = next;
}

} // namespace

MothStatus moth_cuda_amp_unscale(MothCall *c) {
  MOTH_UNPACK_AMP_UNSCALE(c)
  Unscale u = {};
  MothOwned factor, found;
  uint32_t dtypes = 0;
  MOTH_TRY(moth_cuda_run(c, &u.run));
  MOTH_TRY(moth_cuda_contiguous_as(inv_scale, MOTH_FLOAT32, &factor.t));
  MOTH_TRY(moth_cuda_contiguous_as(found_inf, MOTH_FLOAT32, &found.t));
  u.table.inv_scale = (const float *)factor->data;
  u.table.found_inf = (float *)found->data;
  for (uint32_t i = 0; i < grads.n; i++)
    dtypes |= 1u << grads.u.tensors[i]->dtype;
  for (int d = 0; d < MOTH_NDTYPES; d++) {
    if (!(dtypes >> d & 1))
      continue;
    for (uint32_t i = 0; i < grads.n; i++) {
      MothTensor *t = grads.u.tensors[i];
      if (t->dtype != d || t->numel == 0)
        continue;
      if (t->contiguous) {
        MOTH_TRY(push(&u, t));
        continue;
      }
      MothOwned copy;
      MOTH_TRY(flush(&u, d));
      MOTH_TRY(moth_cuda_contiguous(t, &copy.t));
      MOTH_TRY(push(&u, copy));
      MOTH_TRY(flush(&u, d));
      MOTH_TRY(moth_cuda_copy(t, copy));
    }
    MOTH_TRY(flush(&u, d));
  }
  return found.t == found_inf ? MOTH_OK : moth_cuda_copy(found_inf, found);
}

MothStatus moth_cuda_amp_update_scale(MothCall *c) {
  MOTH_UNPACK_AMP_UPDATE_SCALE(c)
  MothCudaRun run;
  MothOwned now, steps, found;
  MOTH_TRY(moth_cuda_run(c, &run));
  MOTH_TRY(moth_cuda_contiguous_as(scale, MOTH_FLOAT64, &now.t));
  MOTH_TRY(moth_cuda_contiguous_as(growth_tracker, MOTH_INT64, &steps.t));
  MOTH_TRY(moth_cuda_contiguous_as(found_inf, MOTH_FLOAT64, &found.t));
  MOTH_TRY(moth_launch("amp_update_scale", update_kernel, dim3(1), dim3(1), 0, run.stream,
                       (double *)now->data, (long long *)steps->data, (const double *)found->data,
                       growth_factor, backoff_factor, (long long)growth_interval,
                       scale->dtype != MOTH_FLOAT64));
  if (now.t != scale)
    MOTH_TRY(moth_cuda_copy(scale, now));
  return steps.t == growth_tracker ? MOTH_OK : moth_cuda_copy(growth_tracker, steps);
}
#endif
