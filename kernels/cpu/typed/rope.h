/* Rotary positions: pairs of coordinates are turned by angles of which cosines and sines are given. */
#include "kernels/cpu/rope.h"
#include "kernels/cpu/typed/prelude.h"

static void rotate(const real *restrict x, const real *restrict c, const real *restrict s,
                   int64_t half, bool interleaved, real *restrict y) {
  if (interleaved)
    MOTH_VECTOR for (int64_t k = 0; k < half; k++) {
      real a = x[2 * k], b = x[2 * k + 1];
      y[2 * k] = a * c[k] - b * s[k];
      y[2 * k + 1] = b * c[k] + a * s[k];
    }
  else
    MOTH_VECTOR for (int64_t k = 0; k < half; k++) {
      real a = x[k], b = x[half + k];
      y[k] = a * c[k] - b * s[k];
      y[half + k] = b * c[k] + a * s[k];
    }
}

/* Rows [from, to). */
MOTH_TYPED_REAL void rope_rows(const struct MothRope *p) {
  for (int64_t r = p->from; r < p->to; r++) {
    int64_t rest = r, at = 0;
    for (int d = p->ndim - 1; d >= 0; d--) {
      at += rest % p->shape[d] * p->stride[d];
      rest /= p->shape[d];
    }
    rotate((const real *)p->in + 2 * r * p->half, (const real *)p->cos + at,
           (const real *)p->sin + at, p->half, p->interleaved, (real *)p->out + 2 * r * p->half);
  }
}
