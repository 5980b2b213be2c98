/* Fills. The loops that copy and convert are printed by src/codegen/cast.lua, beside these. */
#include "kernels/cpu/typed/prelude.h"

MOTH_TYPED void fill(void *out, int64_t n, MothParam value) {
  stored *o = out;
#if MOTH_IS_FLOAT
  stored v = STORE_F64(value.d);
#else
  stored v = STORE(PARAM(value));
#endif
  for (int64_t i = 0; i < n; i++)
    o[i] = v;
}

MOTH_TYPED void arange(void *out, int64_t n, double start, double step) {
  stored *o = out;
#if MOTH_IS_FLOAT
  for (int64_t i = 0; i < n; i++)
    o[i] = STORE_F64(start + (double)i * step);
#else
  for (int64_t i = 0; i < n; i++)
    o[i] = STORE((real)((int64_t)start + i * (int64_t)step));
#endif
}
