/* Composites that are no expressions: kl_div, and of matrices. */
#include <math.h>
#include <string.h>

#include "composite/composite.h"
#include "core/dtype.h"
#include "ops/create.h"
#include "ops/pointwise.h"
#include "ops/view.h"

#define T(x) moth_v_tensor(x)
#define ONE  moth_v_int(1)

static void release_all(MothTensor **t, int n) {
  for (int i = 0; i < n; i++)
    moth_tensor_release(t[i]);
}

/* --- losses ----------------------------------------------------------------------------------- */

/* target log(target) - target self, where 0 log(0) is 0. NaN of either comes through. */
MothStatus moth_composite_kl_div(MothCall *c) {
  MOTH_UNPACK_KL_DIV(c)
  enum { N = 9 };
  MothTensor *t[N] = {NULL}, *out = NULL;
  MothStatus status = MOTH_OK;
  bool batch = reduction == MOTH_REDUCTION_BATCHMEAN;
  if (!moth_dtype_is_float((MothDType)target->dtype))
    return moth_fail(MOTH_ERR_TYPE, "target: expected a float dtype, got %s",
                     moth_dtype_name((MothDType)target->dtype));
  MothDType dtype = (MothDType)target->dtype;
  if (target->dtype == self->dtype && moth_itemsize(target) < 4) { /* halves are rounded once */
    MOTH_GO(as_dtype(target, MOTH_FLOAT32, &t[0]));
    target = t[0];
  }
  if (log_target) {
    MOTH_GO(moth_exp(target, &t[1]));
    MOTH_GO(moth_sub(T(target), T(self), ONE, &t[2]));
    MOTH_GO(moth_mul(T(t[1]), T(t[2]), &t[6]));
  } else {
    MOTH_GO(moth_eq(T(target), moth_v_int(0), &t[1]));
    MOTH_GO(moth_masked_fill(target, t[1], ONE, &t[2])); /* log(0) has no finite derivative */
    MOTH_GO(moth_log(t[2], &t[3]));
    MOTH_GO(moth_mul(T(target), T(t[3]), &t[4]));
    MOTH_GO(moth_mul(T(target), T(self), &t[5]));
    MOTH_GO(moth_sub(T(t[4]), T(t[5]), ONE, &t[6]));
  }
  MOTH_GO(moth_reduce_loss(t[6], batch ? MOTH_REDUCTION_SUM : reduction, &t[7]));
  if (batch) {
    MOTH_GO(moth_div(T(t[7]), moth_v_int(self->ndim ? self->shape[0] : 1), &t[8]));
  }
  MOTH_GO(as_dtype(batch ? t[8] : t[7], t[0] ? dtype : (MothDType)t[7]->dtype, &out));
done:
  release_all(t, N);
  return status ? status : moth_give(c, out);
}

/* --- matrices --------------------------------------------------------------------------------- */

/* Of a vector the matrix that has it on a diagonal, of a matrix a copy of the diagonal. */
MothStatus moth_composite_diag(MothCall *c) {
  MOTH_UNPACK_DIAG(c)
  MothTensor *part = NULL, *out = NULL;
  if (self->ndim == 2) {
    MOTH_TRY(moth_diagonal(self, diagonal, 0, 1, &part));
    MOTH_TRY(then(moth_clone(part, &out), part));
    return moth_give(c, out);
  }
  if (self->ndim != 1)
    return moth_fail(MOTH_ERR_VALUE, "expected a 1-D or a 2-D tensor, got %d dimensions",
                     self->ndim);
  int64_t n = self->shape[0], m;
  if (diagonal == INT64_MIN || __builtin_add_overflow(n, diagonal < 0 ? -diagonal : diagonal, &m))
    return moth_fail(MOTH_ERR_VALUE, "diagonal is too large: %lld", (long long)diagonal);
  int64_t shape[2] = {m, m};
  uint32_t keep = moth_enter_as(self);
  MothStatus s =
      moth_zeros(shape, 2, moth_v_dtype((MothDType)self->dtype), moth_v_device(self->device), &out);
  MOTH_TRY(moth_leave_as(keep, self, s, &out));
  s = moth_diagonal(out, diagonal, 0, 1, &part);
  if (s == MOTH_OK)
    s = then(moth_copy_(part, self, false), part);
  if (s != MOTH_OK) {
    moth_tensor_release(out);
    return s;
  }
  return moth_give(c, out);
}
