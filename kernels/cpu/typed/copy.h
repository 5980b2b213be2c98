/* Fills. The loops that copy and convert are printed by src/codegen/cast.lua, beside these. */
#include "kernels/common/sequence.h"
#include "kernels/cpu/f16.h"
#include "kernels/cpu/typed/prelude.h"

MOTH_TYPED void fill(const struct MothSequence *q) {
  stored *o = q->out;
#if MOTH_IS_FLOAT
  stored v = STORE_F64(q->value.d);
#else
  stored v = STORE(PARAM(q->value));
#endif
  const int64_t n = q->n;
  for (int64_t i = 0; i < n; i++)
    o[i] = v;
}

MOTH_TYPED void arange(const struct MothSequence *q) {
  stored *o = q->out;
  const int64_t n = q->n;
  const double start = q->start, step = q->step;
#if MOTH_IS_FLOAT
  for (int64_t i = 0; i < n; i++)
    o[i] = STORE_F64(start + (double)i * step);
#else
  for (int64_t i = 0; i < n; i++)
    o[i] = STORE((real)((int64_t)start + i * (int64_t)step));
#endif
}
