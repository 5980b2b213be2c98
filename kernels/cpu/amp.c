/* Loss scaling: all gradients of a call in one parallel region, cut into chunks. float16 and bfloat16, and tensors that are
 * not row-major, are unscaled in a float32 copy. */
#include <math.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack/amp.h"

enum { CHUNK = 16384 };

typedef struct Grad {
  MothTensor *t; /* row-major */
  int64_t first; /* number of its first chunk */
} Grad;

typedef struct Unscale {
  Grad *grads;
  uint32_t n;
  int64_t chunks;
  double factor;
  bool bad; /* stored to by any thread, only true */
} Unscale;

/* x * 0 is NaN for infinities and NaN, else 0: sums need no comparison in the loop. */
#define UNSCALE(T)                                                                                 \
  T *x = (T *)g->t->data + from, odd = 0, factor = (T)u->factor;                                   \
  MOTH_VECTOR for (int64_t i = 0; i < n; i++) {                                                    \
    odd += x[i] * 0;                                                                               \
    x[i] *= factor;                                                                                \
  }                                                                                                \
  return odd != odd;

static bool unscale_chunk(const Unscale *u, const Grad *g, int64_t from) {
  int64_t n = moth_min64(CHUNK, g->t->numel - from);
  if (g->t->dtype == MOTH_FLOAT64) {
    UNSCALE(double)
  }
  UNSCALE(float)
}

static void unscale_range(void *ctx, int64_t begin, int64_t end) {
  Unscale *u = ctx;
  uint32_t at = 0;
  for (int64_t i = begin; i < end; i++) {
    while (at + 1 < u->n && u->grads[at + 1].first <= i)
      at++;
    if (unscale_chunk(u, &u->grads[at], (i - u->grads[at].first) * CHUNK))
      __atomic_store_n(&u->bad, true, __ATOMIC_RELAXED);
  }
}

static MothStatus number(const MothTensor *t, double *out) {
  MothValue v;
  MOTH_TRY(moth_tensor_item(t, &v));
  *out = moth_as_double(v);
  return MOTH_OK;
}

MothStatus moth_cpu_amp_unscale(MothCall *c) {
  MOTH_UNPACK_AMP_UNSCALE(c)
  MothStatus status = MOTH_OK;
  Unscale u = {.factor = 1};
  MOTH_TRY(number(inv_scale, &u.factor));
  if (!grads.n)
    return MOTH_OK;
  u.grads = moth_alloc(grads.n * sizeof(Grad));
  if (!u.grads)
    return moth_no_memory(0);
  for (uint32_t i = 0; i < grads.n; i++) {
    MothTensor *t = grads.u.tensors[i];
    MothDType work = t->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
    u.grads[u.n].first = u.chunks;
    MOTH_GO(moth_cpu_contiguous_as(t, work, &u.grads[u.n].t));
    u.n++;
    u.chunks += (t->numel + CHUNK - 1) / CHUNK;
  }
  moth_parallel_for(u.chunks, 1, unscale_range, &u);
  if (u.bad)
    moth_dtype_store((MothDType)found_inf->dtype, found_inf->data, moth_v_float(1));
done:
  for (uint32_t i = 0; i < u.n; i++) {
    if (status == MOTH_OK && u.grads[i].t != grads.u.tensors[i])
      moth_cpu_copy(grads.u.tensors[i], u.grads[i].t);
    moth_tensor_release(u.grads[i].t);
  }
  moth_free(u.grads, grads.n * sizeof(Grad));
  return status;
}

MothStatus moth_cpu_amp_update_scale(MothCall *c) {
  MOTH_UNPACK_AMP_UPDATE_SCALE(c)
  double now, steps, bad;
  MOTH_TRY(number(scale, &now));
  MOTH_TRY(number(growth_tracker, &steps));
  MOTH_TRY(number(found_inf, &bad));
  double next = now;
  if (bad != 0) {
    next = now * backoff_factor;
    steps = 0;
  } else if (++steps >= (double)growth_interval) {
    next = now * growth_factor;
    steps = 0;
  }
  /* A growth that is infinite in the dtype is left out. */
  if (bad == 0 && (scale->dtype == MOTH_FLOAT64 ? isinf(next) : isinf((float)next)))
    next = now;
  moth_dtype_store((MothDType)scale->dtype, scale->data, moth_v_float(next));
  moth_dtype_store((MothDType)growth_tracker->dtype, growth_tracker->data,
                   moth_v_int((int64_t)steps));
  return MOTH_OK;
}
