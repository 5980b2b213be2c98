/* Composites of src/ops/reduce.lua, linalg.lua, index.lua and nn.lua. */
#include <math.h>
#include <string.h>

#include "composite/composite.h"
#include "core/dtype.h"
#include "ops/create.h"
#include "ops/index.h"
#include "ops/linalg.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

/* An optional list: as moth_sum and its kin take it. */
static MothStatus sum_over(MothTensor *t, MothValue dim, bool keepdim, MothTensor **out) {
  return moth_sum(t, dim, keepdim, moth_v_none(), out);
}

/* What was computed from x in its working dtype (in which squares of halves fit), as of x's own. */
static MothStatus narrowed(MothTensor *t, const MothTensor *x, MothTensor **out) {
  bool half = working_dtype(x) != (MothDType)x->dtype;
  return as_dtype(t, (MothDType)(half ? x->dtype : t->dtype), out);
}

static MothStatus power(MothTensor *t, double p, MothTensor **out) {
  return p == 0.5 ? moth_sqrt(t, out) : moth_pow(moth_v_tensor(t), moth_v_float(p), out);
}

/* t to the power of p, with the derivative 0 where t is 0, in place of infinity (whose product with the 0 that comes
 * next would be NaN). */
static MothStatus flat_power(MothTensor *t, double p, MothTensor **out) {
  MothTensor *zero, *other, *raised = NULL;
  if (p >= 1 || p <= 0 || !moth_tensor_requires_grad(t))
    return power(t, p, out);
  MOTH_TRY(moth_eq(moth_v_tensor(t), moth_v_int(0), &zero));
  MothStatus s = moth_masked_fill(t, zero, moth_v_int(1), &other);
  if (s == MOTH_OK)
    s = then(power(other, p, &raised), other);
  if (s == MOTH_OK)
    s = then(moth_masked_fill(raised, zero, moth_v_int(0), out), raised);
  return then(s, zero);
}

/* The sum of |x|^q over dim, raised to 1 / q. */
static MothStatus power_norm(MothTensor *x, double q, MothValue dim, bool keepdim,
                             MothTensor **out) {
  MothTensor *a, *b;
  if (q == 2) {
    MOTH_TRY(moth_square(x, &b));
  } else {
    MOTH_TRY(moth_abs(x, &a));
    MOTH_TRY(then(flat_power(a, q, &b), a));
  }
  MOTH_TRY(then(sum_over(b, dim, keepdim, &a), b));
  return then(flat_power(a, 1 / q, out), a);
}

/* How many elements are not 0, in self's dtype, with the derivative 0. */
static MothStatus count_as_self(MothTensor *self, MothValue dim, bool keepdim, MothTensor **out) {
  MothTensor *is = NULL, *not = NULL, *ones = NULL, *count = NULL;
  MothStatus status = MOTH_OK;
  MOTH_GO(moth_eq(moth_v_tensor(self), moth_v_int(0), &is));
  MOTH_GO(moth_logical_not(is, &not ));
  MOTH_GO(moth_masked_fill(self, not, moth_v_int(1), &ones));
  MOTH_GO(moth_masked_fill(ones, is, moth_v_int(0), &count));
  MOTH_GO(moth_sum(count, dim, keepdim, moth_v_dtype((MothDType)self->dtype), out));
done:
  moth_tensor_release(is);
  moth_tensor_release(not );
  moth_tensor_release(ones);
  moth_tensor_release(count);
  return status;
}

MothStatus moth_composite_norm(MothCall *c) {
  MOTH_UNPACK_NORM(c)
  MothTensor *a, *b, *out;
  double q = moth_as_double(p);
  if (q != 0 && q != 1 && !isinf(q)) {
    MOTH_TRY(as_dtype(self, working_dtype(self), &a));
    MOTH_TRY(then(power_norm(a, q, dim, keepdim, &b), a));
    MOTH_TRY(then(narrowed(b, self, &out), b));
    return moth_give(c, out);
  }
  MOTH_TRY(moth_abs(self, &a));
  if (q == 1)
    MOTH_TRY(then(sum_over(a, dim, keepdim, &out), a));
  else if (isinf(q) && q > 0)
    MOTH_TRY(then(moth_amax(a, dim, keepdim, &out), a));
  else if (isinf(q))
    MOTH_TRY(then(moth_amin(a, dim, keepdim, &out), a));
  else {
    MothStatus s = count_as_self(self, dim, keepdim, &out);
    MOTH_TRY(then(s, a));
  }
  return moth_give(c, out);
}

/* --- products --------------------------------------------------------------------------------- */

/* Broadcasts the leading dimensions and multiplies as one batch. A matrix on the right of a row-major
 * stack is one tall product. */
static MothStatus batched(MothTensor *a, MothTensor *b, MothTensor **out) {
  int64_t lead[MOTH_MAX_DIMS], full[MOTH_MAX_DIMS], three[3];
  int n;
  MothTensor *x = NULL, *y = NULL, *p = NULL, *q = NULL;
  MothStatus status = MOTH_OK;
  int64_t m = a->shape[a->ndim - 2], k = a->shape[a->ndim - 1], w = b->shape[b->ndim - 1];
  if (k != b->shape[b->ndim - 2])
    return moth_fail(MOTH_ERR_VALUE,
                     "batch1 and batch2 shapes cannot be multiplied (%lldx%lld and %lldx%lld)",
                     (long long)m, (long long)k, (long long)b->shape[b->ndim - 2], (long long)w);
  if (b->ndim == 2) {
    int64_t two[2] = {-1, k};
    if (k == 0)
      two[0] = a->numel == 0 ? 0 : -1;
    int64_t rows = 1;
    for (int i = 0; i < a->ndim - 1; i++)
      rows *= full[i] = a->shape[i];
    two[0] = rows;
    full[a->ndim - 1] = w;
    MOTH_GO(moth_reshape(a, two, 2, &x));
    MOTH_GO(moth_mm(x, b, &p));
    MOTH_GO(moth_view(p, full, a->ndim, out));
    goto done;
  }
  MOTH_GO(moth_broadcast(a->ndim - 2, a->shape, b->ndim - 2, b->shape, &n, lead));
  int64_t batch = 1;
  for (int i = 0; i < n; i++)
    batch *= full[i] = lead[i];
  full[n] = m;
  full[n + 1] = k;
  MOTH_GO(moth_expand(a, full, n + 2, &p));
  three[0] = batch;
  three[1] = m;
  three[2] = k;
  MOTH_GO(moth_reshape(p, three, 3, &x));
  moth_tensor_release(p);
  p = NULL;
  full[n] = k;
  full[n + 1] = w;
  MOTH_GO(moth_expand(b, full, n + 2, &p));
  three[1] = k;
  three[2] = w;
  MOTH_GO(moth_reshape(p, three, 3, &y));
  MOTH_GO(moth_bmm(x, y, &q));
  full[n] = m;
  MOTH_GO(moth_view(q, full, n + 2, out));
done:
  moth_tensor_release(x);
  moth_tensor_release(y);
  moth_tensor_release(p);
  moth_tensor_release(q);
  return status;
}

MothStatus moth_composite_matmul(MothCall *c) {
  MOTH_UNPACK_MATMUL(c)
  MothTensor *out, *a = NULL, *b = NULL, *p = NULL;
  MothStatus status = MOTH_OK;
  if (!self->ndim || !other->ndim)
    return moth_fail(MOTH_ERR_VALUE, "0-dim tensors cannot be multiplied as matrices; use a * b");
  if (self->ndim == 1 && other->ndim == 1)
    MOTH_TRY(moth_dot(self, other, &out));
  else if (self->ndim == 2 && other->ndim == 2)
    MOTH_TRY(moth_mm(self, other, &out));
  else if (self->ndim == 2 && other->ndim == 1)
    MOTH_TRY(moth_mv(self, other, &out));
  else if (self->ndim >= 2 && other->ndim >= 2)
    MOTH_TRY(batched(self, other, &out));
  else if (self->ndim == 1) {
    MOTH_TRY(moth_unsqueeze(self, 0, &a));
    MOTH_GO(moth_matmul(a, other, &p));
    MOTH_GO(moth_squeeze(p, moth_v_int(p->ndim - 2), &out));
  } else {
    MOTH_TRY(moth_unsqueeze(other, 1, &b));
    MOTH_GO(moth_matmul(self, b, &p));
    MOTH_GO(moth_squeeze(p, moth_v_int(p->ndim - 1), &out));
  }
done:
  moth_tensor_release(a);
  moth_tensor_release(b);
  moth_tensor_release(p);
  return status ? status : moth_give(c, out);
}

/* --- indexing --------------------------------------------------------------------------------- */

MothStatus moth_composite_one_hot(MothCall *c) {
  MOTH_UNPACK_ONE_HOT(c)
  int64_t shape[MOTH_MAX_DIMS];
  MothTensor *zeros, *at, *out;
  if (moth_dtype_class((MothDType)self->dtype) != MOTH_CLASS_INT)
    return moth_fail(MOTH_ERR_TYPE, "expected an integer tensor, got %s",
                     moth_dtype_name((MothDType)self->dtype));
  if (self->ndim >= MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "self has too many dimensions");
  memcpy(shape, self->shape, sizeof(int64_t) * self->ndim);
  shape[self->ndim] = num_classes;
  uint32_t keep = moth_enter_as(self);
  MothStatus s = moth_zeros(shape, self->ndim + 1, moth_v_dtype(MOTH_INT64),
                            moth_v_device(self->device), &zeros);
  MOTH_TRY(moth_leave_as(keep, self, s, &zeros));
  s = moth_unsqueeze(self, self->ndim, &at);
  if (s == MOTH_OK)
    s = then(moth_scatter(zeros, self->ndim, at, moth_v_int(1), index_base, &out), at);
  MOTH_TRY(then(s, zeros));
  return moth_give(c, out);
}

/* --- losses ----------------------------------------------------------------------------------- */

MothStatus moth_reduce_loss(MothTensor *loss, int reduction, MothTensor **out) {
  if (!moth_dtype_is_float((MothDType)loss->dtype)) /* |a - b| of unsigned integers wraps around */
    return moth_fail(MOTH_ERR_TYPE, "a loss needs a float dtype, got %s",
                     moth_dtype_name((MothDType)loss->dtype));
  if (reduction == MOTH_REDUCTION_MEAN)
    return moth_mean(loss, moth_v_none(), false, moth_v_none(), out);
  if (reduction == MOTH_REDUCTION_SUM)
    return moth_sum(loss, moth_v_none(), false, moth_v_none(), out);
  moth_tensor_retain(loss);
  *out = loss;
  return MOTH_OK;
}
