/* Composites of src/ops/reduce.lua, linalg.lua, index.lua and nn.lua. */
#include <math.h>
#include <string.h>

#include "composite/composite.h"
#include "core/dtype.h"

/* An optional list: as moth_sum and its kin take it. */
static MothStatus sum_over(MothTensor *t, MothValue dim, bool keepdim, MothTensor **out) {
  return moth_sum(t, dim, keepdim, moth_v_none(), out);
}

MothStatus moth_composite_count_nonzero(MothCall *c) {
  MOTH_UNPACK_COUNT_NONZERO(c)
  MothTensor *b, *out;
  MOTH_TRY(moth_ne(moth_v_tensor(self), moth_v_int(0), &b));
  MOTH_TRY(then(sum_over(b, dim, false, &out), b));
  return moth_give(c, out);
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

MothStatus moth_composite_std(MothCall *c) {
  MOTH_UNPACK_STD(c)
  MothTensor *x, *v, *root, *out;
  MOTH_TRY(as_dtype(self, working_dtype(self), &x));
  MOTH_TRY(then(moth_var(x, dim, correction, keepdim, &v), x));
  MOTH_TRY(then(flat_power(v, 0.5, &root), v));
  MOTH_TRY(then(narrowed(root, self, &out), root));
  return moth_give(c, out);
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
    MOTH_TRY(then(moth_ne(moth_v_tensor(a), moth_v_int(0), &b), a));
    MOTH_TRY(then(moth_sum(b, dim, keepdim, moth_v_dtype((MothDType)self->dtype), &out), b));
  }
  return moth_give(c, out);
}

/* --- products --------------------------------------------------------------------------------- */

MothStatus moth_composite_dot(MothCall *c) {
  MOTH_UNPACK_DOT(c)
  MothTensor *p, *out;
  if (self->ndim != 1 || other->ndim != 1)
    return moth_fail(MOTH_ERR_VALUE, "expected two 1-D tensors");
  if (self->shape[0] != other->shape[0])
    return moth_fail(MOTH_ERR_VALUE, "sizes differ: %lld and %lld; the shapes cannot be multiplied",
                     (long long)self->shape[0], (long long)other->shape[0]);
  if (self->dtype == other->dtype && moth_dtype_is_float((MothDType)self->dtype)) {
    MothTensor *row, *col; /* a product: it does not round each term to float16 */
    MOTH_TRY(moth_unsqueeze(self, 0, &row));
    MothStatus s = moth_unsqueeze(other, 1, &col);
    if (s == MOTH_OK)
      s = then(moth_mm(row, col, &p), col);
    MOTH_TRY(then(s, row));
    MOTH_TRY(then(moth_squeeze(p, moth_v_none(), &out), p));
    return moth_give(c, out);
  }
  MOTH_TRY(moth_mul(moth_v_tensor(self), moth_v_tensor(other), &p));
  MOTH_TRY(then(sum_over(p, moth_v_none(), false, &out), p));
  if (!moth_dtype_is_float((MothDType)self->dtype)) { /* integer sums are int64 */
    MothDType dtype = (MothDType)self->dtype;
    p = out;
    MOTH_TRY(then(moth_to(p, moth_v_dtype(dtype), moth_v_none(), false, false, &out), p));
  }
  return moth_give(c, out);
}

MothStatus moth_composite_mv(MothCall *c) {
  MOTH_UNPACK_MV(c)
  MothTensor *col, *p, *out;
  if (self->ndim != 2 || vec->ndim != 1)
    return moth_fail(MOTH_ERR_VALUE, "expected a 2-D and a 1-D tensor");
  MOTH_TRY(moth_unsqueeze(vec, 1, &col));
  MOTH_TRY(then(moth_mm(self, col, &p), col));
  MOTH_TRY(then(moth_squeeze(p, moth_v_int(1), &out), p));
  return moth_give(c, out);
}

MothStatus moth_composite_outer(MothCall *c) {
  MOTH_UNPACK_OUTER(c)
  MothTensor *col, *out;
  if (self->ndim != 1 || vec2->ndim != 1)
    return moth_fail(MOTH_ERR_VALUE, "expected two 1-D tensors");
  MOTH_TRY(moth_unsqueeze(self, 1, &col));
  MOTH_TRY(then(moth_mul(moth_v_tensor(col), moth_v_tensor(vec2), &out), col));
  return moth_give(c, out);
}

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

MothStatus moth_composite_embedding(MothCall *c) {
  MOTH_UNPACK_EMBEDDING(c)
  MothTensor *flat, *rows, *out;
  int64_t shape[MOTH_MAX_DIMS + 1], n = index->numel;
  if (weight->ndim != 2)
    return moth_fail(MOTH_ERR_VALUE, "weight must be 2-D, got %d dimensions", weight->ndim);
  if (index->ndim == MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "index has too many dimensions");
  MOTH_TRY(moth_reshape(index, &n, 1, &flat));
  MOTH_TRY(then(moth_index_select(weight, 0, flat, index_base, &rows), flat));
  memcpy(shape, index->shape, sizeof(int64_t) * index->ndim);
  shape[index->ndim] = weight->shape[1];
  MOTH_TRY(then(moth_view(rows, shape, index->ndim + 1, &out), rows));
  return moth_give(c, out);
}

MothStatus moth_composite_one_hot(MothCall *c) {
  MOTH_UNPACK_ONE_HOT(c)
  int64_t shape[MOTH_MAX_DIMS];
  MothTensor *zeros, *at, *out;
  if (moth_dtype_class((MothDType)self->dtype) != MOTH_CLASS_INT)
    return moth_fail(MOTH_ERR_TYPE, "expected an integer tensor, got %s",
                     moth_dtype_name((MothDType)self->dtype));
  if (num_classes < 1 || self->ndim >= MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "num_classes must be positive, got %lld",
                     (long long)num_classes);
  memcpy(shape, self->shape, sizeof(int64_t) * self->ndim);
  shape[self->ndim] = num_classes;
  uint32_t keep = moth_thread.include;
  moth_thread.include |= self->keys & MOTH_KEY_FAKE;
  MothStatus s = moth_zeros(shape, self->ndim + 1, moth_v_dtype(MOTH_INT64),
                            moth_v_device(self->device), &zeros);
  moth_thread.include = keep;
  MOTH_TRY(s);
  s = moth_unsqueeze(self, self->ndim, &at);
  if (s == MOTH_OK)
    s = then(moth_scatter(zeros, self->ndim, at, moth_v_int(1), index_base, &out), at);
  MOTH_TRY(then(s, zeros));
  return moth_give(c, out);
}

/* --- losses ----------------------------------------------------------------------------------- */

MothStatus moth_reduce_loss(MothTensor *loss, const char *reduction, MothTensor **out) {
  if (!moth_dtype_is_float((MothDType)loss->dtype)) /* |a - b| of unsigned integers wraps around */
    return moth_fail(MOTH_ERR_TYPE, "a loss needs a float dtype, got %s",
                     moth_dtype_name((MothDType)loss->dtype));
  if (!strcmp(reduction, "mean"))
    return moth_mean(loss, moth_v_none(), false, moth_v_none(), out);
  if (!strcmp(reduction, "sum"))
    return moth_sum(loss, moth_v_none(), false, moth_v_none(), out);
  if (strcmp(reduction, "none"))
    return moth_fail(MOTH_ERR_VALUE, "reduction must be mean, sum or none, got '%s'", reduction);
  moth_tensor_retain(loss);
  *out = loss;
  return MOTH_OK;
}

MothStatus moth_composite_mse_loss(MothCall *c) {
  MOTH_UNPACK_MSE_LOSS(c)
  MothTensor *d, *q, *out;
  MOTH_TRY(moth_sub(moth_v_tensor(self), moth_v_tensor(target), moth_v_int(1), &d));
  MOTH_TRY(then(moth_square(d, &q), d));
  MOTH_TRY(then(moth_reduce_loss(q, reduction, &out), q));
  return moth_give(c, out);
}

MothStatus moth_composite_l1_loss(MothCall *c) {
  MOTH_UNPACK_L1_LOSS(c)
  MothTensor *d, *q, *out;
  MOTH_TRY(moth_sub(moth_v_tensor(self), moth_v_tensor(target), moth_v_int(1), &d));
  MOTH_TRY(then(moth_abs(d, &q), d));
  MOTH_TRY(then(moth_reduce_loss(q, reduction, &out), q));
  return moth_give(c, out);
}

/* (1 - t) x - log_sigmoid(x) */
MothStatus moth_composite_binary_cross_entropy_with_logits(MothCall *c) {
  MOTH_UNPACK_BINARY_CROSS_ENTROPY_WITH_LOGITS(c)
  MothTensor *a, *b, *l, *out;
  MOTH_TRY(moth_sub(moth_v_int(1), moth_v_tensor(target), moth_v_int(1), &a));
  MOTH_TRY(then(moth_mul(moth_v_tensor(a), moth_v_tensor(self), &b), a));
  MothStatus s = moth_log_sigmoid(self, &l);
  if (s == MOTH_OK)
    s = then(moth_sub(moth_v_tensor(b), moth_v_tensor(l), moth_v_int(1), &a), l);
  MOTH_TRY(then(s, b));
  MOTH_TRY(then(moth_reduce_loss(a, reduction, &out), a));
  return moth_give(c, out);
}

MothStatus moth_composite_nll_loss(MothCall *c) {
  MOTH_UNPACK_NLL_LOSS(c)
  MothTensor *at, *p, *q, *out;
  if (self->ndim != 2 || target->ndim != 1 || self->shape[0] != target->shape[0])
    return moth_fail(MOTH_ERR_VALUE,
                     "expected log-probabilities of shape [N, C] and classes of shape [N]");
  MOTH_TRY(moth_unsqueeze(target, 1, &at));
  MOTH_TRY(then(moth_gather(self, 1, at, index_base, &p), at));
  MOTH_TRY(then(moth_squeeze(p, moth_v_int(1), &q), p));
  MOTH_TRY(then(moth_neg(q, &p), q));
  MOTH_TRY(then(moth_reduce_loss(p, reduction, &out), p));
  return moth_give(c, out);
}

MothStatus moth_composite_dropout(MothCall *c) {
  MOTH_UNPACK_DROPOUT(c)
  MothTensor *out, *mask;
  if (!(p >= 0 && p <= 1))
    return moth_fail(MOTH_ERR_VALUE, "the probability must be between 0 and 1, got %g", p);
  if (!train || p == 0)
    return moth_give_same(c, self);
  MOTH_TRY(moth_native_dropout(self, p, generator, &out, &mask));
  moth_tensor_release(mask);
  return moth_give(c, out);
}
