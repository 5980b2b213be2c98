/* Losses made of other ops, and what else is chosen element by element: shrinking, thresholds, diagonals. */
#include <math.h>
#include <string.h>

#include "composite/composite.h"
#include "core/dtype.h"

#define T(x) moth_v_tensor(x)
#define ONE  moth_v_int(1)

static void release_all(MothTensor **t, int n) {
  for (int i = 0; i < n; i++)
    moth_tensor_release(t[i]);
}

/* --- losses ----------------------------------------------------------------------------------- */

/* d^2 / (2 beta) where d = |self - target| < beta, else d - beta / 2; times `scale`. */
static MothStatus smooth_l1(MothTensor *self, MothTensor *target, double beta, double scale,
                            MothTensor **out) {
  enum { N = 7 };
  MothTensor *t[N] = {NULL};
  MothStatus status = MOTH_OK;
  MOTH_GO(moth_sub(T(self), T(target), ONE, &t[0]));
  if (!moth_dtype_is_float((MothDType)t[0]->dtype)) {
    status = moth_fail(MOTH_ERR_TYPE, "a loss needs a float dtype, got %s",
                       moth_dtype_name((MothDType)t[0]->dtype));
    goto done;
  }
  MOTH_GO(moth_abs(t[0], &t[1]));
  if (beta == 0) {
    MOTH_GO(moth_mul(T(t[1]), moth_v_float(scale), out));
    goto done;
  }
  /* The square of what is cut to beta: no overflow in the branch that is not taken. */
  MOTH_GO(moth_clamp(t[1], moth_v_none(), moth_v_float(beta), &t[2]));
  MOTH_GO(moth_mul(T(t[2]), moth_v_float(0.5 * scale / beta), &t[3]));
  MOTH_GO(moth_mul(T(t[3]), T(t[2]), &t[4]));
  MOTH_GO(moth_sub(T(t[1]), T(t[2]), ONE, &t[5])); /* what is above it, with slope `scale` */
  MOTH_GO(moth_mul(T(t[5]), moth_v_float(scale), &t[6]));
  MOTH_GO(moth_add(T(t[4]), T(t[6]), ONE, out));
done:
  release_all(t, N);
  return status;
}

MothStatus moth_composite_smooth_l1_loss(MothCall *c) {
  MOTH_UNPACK_SMOOTH_L1_LOSS(c)
  MothTensor *loss, *out;
  if (!(beta >= 0))
    return moth_fail(MOTH_ERR_VALUE, "beta must not be negative, got %g", beta);
  MOTH_TRY(smooth_l1(self, target, beta, 1, &loss));
  MOTH_TRY(then(moth_reduce_loss(loss, reduction, &out), loss));
  return moth_give(c, out);
}

MothStatus moth_composite_huber_loss(MothCall *c) {
  MOTH_UNPACK_HUBER_LOSS(c)
  MothTensor *loss, *out;
  if (!(delta > 0))
    return moth_fail(MOTH_ERR_VALUE, "delta must be positive, got %g", delta);
  MOTH_TRY(smooth_l1(self, target, delta, delta, &loss));
  MOTH_TRY(then(moth_reduce_loss(loss, reduction, &out), loss));
  return moth_give(c, out);
}

/* target (log(target) - self), 0 where target is 0. */
MothStatus moth_composite_kl_div(MothCall *c) {
  MOTH_UNPACK_KL_DIV(c)
  enum { N = 9 };
  MothTensor *t[N] = {NULL}, *out = NULL;
  MothStatus status = MOTH_OK;
  bool batch = !strcmp(reduction, "batchmean");
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
    MOTH_GO(moth_le(T(target), moth_v_int(0), &t[1]));
    MOTH_GO(moth_masked_fill(target, t[1], ONE, &t[2]));
    MOTH_GO(moth_log(t[2], &t[3]));
    MOTH_GO(moth_sub(T(t[3]), T(self), ONE, &t[4]));
    MOTH_GO(moth_mul(T(target), T(t[4]), &t[5]));
    MOTH_GO(moth_masked_fill(t[5], t[1], moth_v_int(0), &t[6]));
  }
  MOTH_GO(moth_reduce_loss(t[6], batch ? "sum" : reduction, &t[7]));
  if (batch) {
    MOTH_GO(moth_div(T(t[7]), moth_v_int(self->ndim ? self->shape[0] : 1), &t[8]));
  }
  MOTH_GO(as_dtype(batch ? t[8] : t[7], t[0] ? dtype : (MothDType)t[7]->dtype, &out));
done:
  release_all(t, N);
  return status ? status : moth_give(c, out);
}

/* log(x), not below -100. What log gets is not 0: a derivative of infinity times 0 would be NaN. */
static MothStatus bounded_log(MothTensor *x, MothTensor **out) {
  MothTensor *a, *b;
  MOTH_TRY(moth_clamp(x, moth_v_float(exp(-102)), moth_v_none(), &a));
  MOTH_TRY(then(moth_log(a, &b), a));
  return then(moth_clamp(b, moth_v_int(-100), moth_v_none(), out), b);
}

/* -w (t log(x) + (1 - t) log(1 - x)) */
MothStatus moth_composite_binary_cross_entropy(MothCall *c) {
  MOTH_UNPACK_BINARY_CROSS_ENTROPY(c)
  enum { N = 9 };
  MothTensor *t[N] = {NULL}, *out = NULL;
  MothStatus status = MOTH_OK;
  if (!moth_dtype_is_float((MothDType)self->dtype))
    return moth_fail(MOTH_ERR_TYPE, "expected a float dtype, got %s",
                     moth_dtype_name((MothDType)self->dtype));
  MOTH_GO(bounded_log(self, &t[0]));
  MOTH_GO(moth_mul(T(target), T(t[0]), &t[1]));
  MOTH_GO(moth_sub(ONE, T(self), ONE, &t[2]));
  MOTH_GO(bounded_log(t[2], &t[3]));
  MOTH_GO(moth_sub(ONE, T(target), ONE, &t[4]));
  MOTH_GO(moth_mul(T(t[4]), T(t[3]), &t[5]));
  MOTH_GO(moth_add(T(t[1]), T(t[5]), ONE, &t[6]));
  MOTH_GO(moth_neg(t[6], &t[7]));
  if (weight)
    MOTH_GO(moth_mul(T(t[7]), T(weight), &t[8]));
  MOTH_GO(moth_reduce_loss(weight ? t[8] : t[7], reduction, &out));
done:
  release_all(t, N);
  return status ? status : moth_give(c, out);
}

/* --- by element ------------------------------------------------------------------------------- */

static MothStatus check_float(const MothTensor *self) {
  if (moth_dtype_is_float((MothDType)self->dtype))
    return MOTH_OK;
  return moth_fail(MOTH_ERR_TYPE, "expected a float dtype, got %s",
                   moth_dtype_name((MothDType)self->dtype));
}

MothStatus moth_composite_hardshrink(MothCall *c) {
  MOTH_UNPACK_HARDSHRINK(c)
  MothTensor *a, *small, *out;
  MOTH_TRY(check_float(self));
  MOTH_TRY(moth_abs(self, &a));
  MOTH_TRY(then(moth_le(T(a), lambd, &small), a));
  MOTH_TRY(then(moth_masked_fill(self, small, moth_v_int(0), &out), small));
  return moth_give(c, out);
}

MothStatus moth_composite_softshrink(MothCall *c) {
  MOTH_UNPACK_SOFTSHRINK(c)
  MothTensor *a, *above, *below, *out;
  double l = moth_as_double(lambd);
  MOTH_TRY(check_float(self));
  if (!(l >= 0))
    return moth_fail(MOTH_ERR_VALUE, "lambd must not be negative, got %g", l);
  MOTH_TRY(moth_sub(T(self), moth_v_float(l), ONE, &a));
  MOTH_TRY(then(moth_relu(a, &above), a));
  MothStatus s = moth_sub(moth_v_float(-l), T(self), ONE, &a);
  if (s == MOTH_OK)
    s = then(moth_relu(a, &below), a);
  if (s == MOTH_OK)
    s = then(moth_sub(T(above), T(below), ONE, &out), below);
  MOTH_TRY(then(s, above));
  return moth_give(c, out);
}

MothStatus moth_composite_tanhshrink(MothCall *c) {
  MOTH_UNPACK_TANHSHRINK(c)
  MothTensor *x, *a, *d, *out;
  MothDType dtype = (MothDType)self->dtype;
  MOTH_TRY(check_float(self));
  MOTH_TRY(as_dtype(self, working_dtype(self), &x)); /* rounded once */
  MothStatus s = moth_tanh(x, &a);
  if (s == MOTH_OK)
    s = then(moth_sub(T(x), T(a), ONE, &d), a);
  MOTH_TRY(then(s, x));
  MOTH_TRY(then(as_dtype(d, dtype, &out), d));
  return moth_give(c, out);
}

MothStatus moth_composite_threshold(MothCall *c) {
  MOTH_UNPACK_THRESHOLD(c)
  MothTensor *low, *out;
  MOTH_TRY(moth_le(T(self), threshold, &low));
  MOTH_TRY(then(moth_masked_fill(self, low, value, &out), low));
  return moth_give(c, out);
}

/* --- matrices --------------------------------------------------------------------------------- */

MothStatus moth_composite_baddbmm(MothCall *c) {
  MOTH_UNPACK_BADDBMM(c)
  MothTensor *p, *scaled, *out;
  MOTH_TRY(moth_bmm(batch1, batch2, &p));
  if (moth_as_double(beta) == 0) { /* self counts for nothing, NaN in it neither */
    MOTH_TRY(then(moth_mul(T(p), alpha, &out), p));
    return moth_give(c, out);
  }
  MothStatus s = moth_mul(T(self), beta, &scaled);
  if (s == MOTH_OK)
    s = then(moth_add(T(scaled), T(p), alpha, &out), scaled);
  MOTH_TRY(then(s, p));
  return moth_give(c, out);
}

MothStatus moth_composite_trace(MothCall *c) {
  MOTH_UNPACK_TRACE(c)
  MothTensor *d, *out;
  if (self->ndim != 2)
    return moth_fail(MOTH_ERR_VALUE, "expected a 2-D tensor, got %d dimensions", self->ndim);
  MOTH_TRY(moth_diagonal(self, 0, 0, 1, &d));
  MOTH_TRY(then(moth_sum(d, moth_v_none(), false, moth_v_none(), &out), d));
  return moth_give(c, out);
}

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
  uint32_t keep = moth_thread.include;
  moth_thread.include |= self->keys & MOTH_KEY_FAKE;
  MothStatus s =
      moth_zeros(shape, 2, moth_v_dtype((MothDType)self->dtype), moth_v_device(self->device), &out);
  moth_thread.include = keep;
  MOTH_TRY(s);
  s = moth_diagonal(out, diagonal, 0, 1, &part);
  if (s == MOTH_OK)
    s = then(moth_copy_(part, self, false), part);
  if (s != MOTH_OK) {
    moth_tensor_release(out);
    return s;
  }
  return moth_give(c, out);
}
