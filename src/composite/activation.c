/* Composites of src/ops/activation.lua that are no expressions. */
#include "composite/composite.h"
#include "ops/pointwise.h"
#include "ops/view.h"

MothStatus moth_composite_glu(MothCall *c) {
  MOTH_UNPACK_GLU(c)
  MothTensor *a, *b, *gate, *out;
  int64_t n = self->ndim ? self->shape[dim] : 1;
  if (n % 2)
    return moth_fail(MOTH_ERR_VALUE, "the size along dim must be even, got %lld", (long long)n);
  MOTH_TRY(moth_narrow(self, dim, n / 2, n / 2, &b));
  MOTH_TRY(then(moth_sigmoid(b, &gate), b));
  MothStatus s = moth_narrow(self, dim, 0, n / 2, &a);
  if (s == MOTH_OK)
    s = then(moth_mul(moth_v_tensor(a), moth_v_tensor(gate), &out), a);
  MOTH_TRY(then(s, gate));
  return moth_give(c, out);
}
