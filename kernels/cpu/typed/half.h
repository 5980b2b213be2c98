/* Pointwise ops on 16-bit floats: blocks are widened to float32, computed by the float32 loop of the op and
 * rounded once. No op has 16-bit code of its own: only the conversions are compiled, and a block stays in the
 * first-level cache. */
#include "kernels/cpu/f16.h"
#include "kernels/cpu/typed/prelude.h"
enum { HALF_BLOCK = 512, HALF_OPERANDS = 6 }; /* operands: MOTH_ITER_OPERANDS */

static void widen(float *o, const char *p, int64_t stride, int64_t n) {
  int64_t i = 0;
  if (stride == sizeof(stored)) {
    const stored *a = (const stored *)p;
#if MOTH_STORED == 1
    i = f16_widen(o, a, n);
#endif
    MOTH_VECTOR for (; i < n; i++) o[i] = LOAD(a[i]);
  } else {
    for (; i < n; i++)
      o[i] = LOAD(*(const stored *)(p + i * stride));
  }
}

static void narrow(char *p, int64_t stride, const float *a, int64_t n) {
  int64_t i = 0;
  if (stride == sizeof(stored)) {
    stored *o = (stored *)p;
#if MOTH_STORED == 1
    i = f16_narrow(o, a, n);
#endif
    MOTH_VECTOR for (; i < n; i++) o[i] = STORE(a[i]);
  } else {
    for (; i < n; i++)
      *(stored *)(p + i * stride) = STORE(a[i]);
  }
}

/* Operands: p[0], written, and `inputs` more; bit k of `bytes`: p[k] has bools, which are not converted. */
MOTH_TYPED_HALF void through_float32(MothLoop loop, int inputs, unsigned bytes, char **p,
                                     const int64_t *s, int64_t n, const MothParam *k) {
  float block[HALF_OPERANDS][HALF_BLOCK];
  char *at[HALF_OPERANDS];
  int64_t strides[HALF_OPERANDS];
  for (int j = 0; j <= inputs; j++) {
    at[j] = (char *)block[j];
    strides[j] = bytes >> j & 1 ? s[j] : (int64_t)sizeof(float);
    if (j > 0 && s[j] == 0 && !(bytes >> j & 1)) {
      strides[j] = 0;
      widen(block[j], p[j], 0, 1);
    }
  }
  for (int64_t i = 0; i < n; i += HALF_BLOCK) {
    int64_t m = n - i < HALF_BLOCK ? n - i : HALF_BLOCK;
    for (int j = 0; j <= inputs; j++) {
      if (bytes >> j & 1)
        at[j] = p[j] + i * s[j];
      else if (j > 0 && strides[j] != 0)
        widen(block[j], p[j] + i * s[j], s[j], m);
    }
    loop(at, strides, m, k);
    if (!(bytes & 1))
      narrow(p[0] + i * s[0], s[0], block[0], m);
  }
}
