/* Derivatives that are more than one expression. All are made of dispatched ops. */
#include "autograd/formulas.h"

#include <math.h>
#include <string.h>

#include "core/dtype.h"

MothStatus moth_eval(const MothOp *op, int nargs, const MothValue *args, MothValue *out) {
  MothTensor *t;
  MOTH_TRY(moth_call1(op, nargs, args, &t));
  *out = moth_v_tensor(t);
  return MOTH_OK;
}

MothStatus moth_eval_all(const MothOp *op, int nargs, const MothValue *args, MothValue *out) {
  return moth_op_call_variant(op, MOTH_FUNCTIONAL, nargs, args, NULL, out);
}

MothTensor *moth_take(MothValue *v) {
  MothTensor *t = v->tag == MOTH_V_TENSOR ? v->u.t : NULL;
  *v = moth_v_none();
  return t;
}

MothTensor *moth_keep(MothValue v) {
  if (v.tag != MOTH_V_TENSOR)
    return NULL;
  moth_tensor_retain(v.u.t);
  return v.u.t;
}

void moth_drop_values(MothValue *v, int n) {
  for (int i = 0; i < n; i++)
    if (v[i].tag == MOTH_V_TENSOR)
      moth_tensor_release(v[i].u.t);
}

MothStatus moth_unimplemented(const char *op, const char *arg) {
  return moth_fail(MOTH_ERR_STATE, "derivative of %s by '%s' is not implemented", op, arg);
}

static MothValue number(double x, MothValue a, MothValue b, int64_t exact) {
  return a.tag == MOTH_V_FLOAT || b.tag == MOTH_V_FLOAT ? moth_v_float(x) : moth_v_int(exact);
}
MothValue moth_number_add(MothValue a, MothValue b) {
  return number(moth_as_double(a) + moth_as_double(b), a, b, a.u.i + b.u.i);
}
MothValue moth_number_sub(MothValue a, MothValue b) {
  return number(moth_as_double(a) - moth_as_double(b), a, b, a.u.i - b.u.i);
}
MothValue moth_number_mul(MothValue a, MothValue b) {
  return number(moth_as_double(a) * moth_as_double(b), a, b, a.u.i * b.u.i);
}
MothValue moth_number_div(MothValue a, MothValue b) {
  return moth_v_float(moth_as_double(a) / moth_as_double(b));
}

/* Shorthand: an op on values, its result in v. Temporaries stand in an array that `done` drops. */
#define OP(name, v, ...)                                                                           \
  moth_eval(&moth_ops[MOTH_OP_##name],                                                             \
            (int)(sizeof((MothValue[]){__VA_ARGS__}) / sizeof(MothValue)),                         \
            (MothValue[]){__VA_ARGS__}, v)
#define TEMPS(n)                                                                                   \
  MothStatus status = MOTH_OK;                                                                     \
  enum { NTEMPS = n };                                                                             \
  MothValue t[NTEMPS] = {{{0}, 0, 0}}
#define FINISH(value)                                                                              \
  *out = moth_v_tensor(moth_keep(value));                                                          \
  done:                                                                                            \
  moth_drop_values(t, NTEMPS);                                                                     \
  return status
#define INT(x)  moth_v_int(x)
#define BOOL(x) moth_v_bool(x)

MothStatus moth_grad_scale(const MothValue *a, MothValue *out) {
  if (moth_as_double(a[1]) == 1) {
    *out = moth_v_tensor(moth_keep(a[0]));
    return MOTH_OK;
  }
  return OP(mul, out, a[0], a[1]);
}

MothStatus moth_grad_sum_to(const MothValue *a, MothValue *out) {
  const MothTensor *g = a[0].u.t;
  int shift = g->ndim - (int)a[1].n;
  int64_t dims[MOTH_MAX_DIMS];
  uint32_t n = 0;
  TEMPS(1);
  if (shift < 0)
    return moth_fail(MOTH_ERR_VALUE, "a gradient has fewer dimensions than its tensor");
  for (int i = 0; i < g->ndim; i++) {
    int64_t want = i < shift ? 1 : a[1].u.ints[i - shift];
    if (i < shift || (want == 1 && g->shape[i] != 1))
      dims[n++] = i;
    else if (want != g->shape[i])
      return moth_fail(MOTH_ERR_VALUE, "a gradient's shape does not reduce to that of its tensor");
  }
  if (!n) {
    *out = moth_v_tensor(moth_keep(a[0]));
    return MOTH_OK;
  }
  if (!shift)
    return OP(sum, out, a[0], moth_v_ints(dims, n), BOOL(true));
  MOTH_GO(OP(sum, &t[0], a[0], moth_v_ints(dims, n), BOOL(true)));
  MOTH_GO(OP(reshape, out, t[0], a[1]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_grad_sum_keep(const MothValue *a, MothValue *out) {
  int64_t d = a[1].u.i;
  return OP(sum, out, a[0], moth_v_ints(&d, 1), BOOL(true));
}

/* --- powers ----------------------------------------------------------------------------------- */

static bool is_number(MothValue v) {
  return v.tag != MOTH_V_TENSOR;
}

MothStatus moth_grad_pow_backward_self(const MothValue *a, MothValue *out) {
  TEMPS(5);
  if (is_number(a[2])) {
    double e = moth_as_double(a[2]);
    if (e == 0)
      return OP(zeros_like, out, a[0]);
    if (e == 1)
      return moth_grad_scale((MothValue[]){a[0], INT(1)}, out);
    if (e == 2) {
      MOTH_GO(OP(mul, &t[0], a[0], a[1]));
      MOTH_GO(OP(mul, out, t[0], INT(2)));
      goto done;
    }
    MOTH_GO(OP(pow, &t[0], a[1], moth_number_sub(a[2], INT(1))));
    MOTH_GO(OP(mul, &t[1], t[0], a[2]));
    MOTH_GO(OP(mul, out, t[1], a[0]));
    goto done;
  }
  /* grad * exponent * self ^ (exponent - 1), 0 where exponent is 0 */
  MOTH_GO(OP(sub, &t[0], a[2], INT(1)));
  MOTH_GO(OP(pow, &t[1], a[1], t[0]));
  MOTH_GO(OP(mul, &t[2], t[1], a[2]));
  MOTH_GO(OP(eq, &t[3], a[2], INT(0)));
  MOTH_GO(OP(masked_fill, &t[4], t[2], t[3], INT(0)));
  MOTH_GO(OP(mul, out, t[4], a[0]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_grad_pow_backward_exponent(const MothValue *a, MothValue *out) {
  TEMPS(6);
  /* grad * result * log(self), 0 where self is 0 and exponent >= 0 */
  if (is_number(a[1])) {
    double s = moth_as_double(a[1]);
    if (s == 0) {
      MOTH_GO(OP(ge, &t[0], a[2], INT(0)));
      MOTH_GO(OP(mul, &t[1], a[0], a[3]));
      MOTH_GO(OP(mul, &t[2], t[1], moth_v_float(-INFINITY)));
      MOTH_GO(OP(masked_fill, out, t[2], t[0], INT(0)));
      goto done;
    }
    MOTH_GO(OP(mul, &t[0], a[0], a[3]));
    MOTH_GO(OP(mul, out, t[0], moth_v_float(log(s))));
    goto done;
  }
  MOTH_GO(OP(log, &t[0], a[1]));
  MOTH_GO(OP(mul, &t[1], t[0], a[3]));
  MOTH_GO(OP(eq, &t[2], a[1], INT(0)));
  MOTH_GO(OP(ge, &t[3], a[2], INT(0)));
  MOTH_GO(OP(logical_and, &t[4], t[2], t[3]));
  MOTH_GO(OP(masked_fill, &t[5], t[1], t[4], INT(0)));
  MOTH_GO(OP(mul, out, t[5], a[0]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

/* --- views ------------------------------------------------------------------------------------ */

MothStatus moth_grad_permute_backward(const MothValue *a, MothValue *out) {
  int64_t inverse[MOTH_MAX_DIMS];
  for (uint32_t i = 0; i < a[1].n; i++) {
    int d;
    MOTH_TRY(moth_wrap_dim(a[1].u.ints[i], (int)a[1].n, &d));
    inverse[d] = i;
  }
  return OP(permute, out, a[0], moth_v_ints(inverse, a[1].n));
}

/* Zeros of `shape` in grad's dtype and device. */
MothStatus moth_zeros_as(const MothTensor *grad, const int64_t *shape, int ndim, MothTensor **out) {
  uint32_t keep = moth_thread.include;
  moth_thread.include |= grad->keys & MOTH_KEY_FAKE;
  MothStatus s = moth_zeros(shape, ndim, moth_v_dtype((MothDType)grad->dtype),
                            moth_v_device(grad->device), out);
  moth_thread.include = keep;
  return s;
}

static MothStatus zeros(MothValue grad, MothValue shape, MothValue *out) {
  MothTensor *t;
  MOTH_TRY(moth_zeros_as(grad.u.t, shape.u.ints, (int)shape.n, &t));
  *out = moth_v_tensor(t);
  return MOTH_OK;
}

_Thread_local MothTensor *moth_view_sum __attribute__((tls_model("initial-exec")));

/* Where a part of a tensor has its gradient added: the sum so far (see formulas.h), else zeros. */
static MothStatus whole_of(MothValue grad, MothValue shape, bool *sum, MothValue *out) {
  MothTensor *w = moth_view_sum;
  moth_view_sum = NULL;
  *sum = w && w->dtype == grad.u.t->dtype && w->device.type == grad.u.t->device.type &&
         w->device.index == grad.u.t->device.index && w->ndim == (int)shape.n &&
         !memcmp(w->shape, shape.u.ints, sizeof(int64_t) * shape.n);
  if (!*sum)
    return zeros(grad, shape, out);
  moth_tensor_retain(w);
  *out = moth_v_tensor(w);
  return MOTH_OK;
}
static MothStatus put(MothValue part, MothValue grad, bool sum) {
  return sum ? moth_add_(part, grad, moth_v_int(1)) : moth_copy_(part.u.t, grad.u.t, false);
}

MothStatus moth_grad_narrow_backward(const MothValue *a, MothValue *out) {
  TEMPS(2);
  int d;
  bool sum;
  MOTH_TRY(moth_wrap_dim(a[2].u.i, (int)a[1].n, &d));
  MOTH_GO(whole_of(a[0], a[1], &sum, &t[0]));
  MOTH_GO(OP(narrow, &t[1], t[0], a[2], a[3], INT(a[0].u.t->shape[d])));
  MOTH_GO(put(t[1], a[0], sum));
  FINISH(t[0]);
}

MothStatus moth_grad_select_backward(const MothValue *a, MothValue *out) {
  TEMPS(2);
  bool sum;
  MOTH_GO(whole_of(a[0], a[1], &sum, &t[0]));
  MOTH_GO(OP(select, &t[1], t[0], a[2], a[3]));
  MOTH_GO(put(t[1], a[0], sum));
  FINISH(t[0]);
}

MothStatus moth_grad_slice_backward(const MothValue *a, MothValue *out) {
  TEMPS(2);
  bool sum;
  MOTH_GO(whole_of(a[0], a[1], &sum, &t[0]));
  MOTH_GO(OP(slice, &t[1], t[0], a[2], a[3], a[4], a[5]));
  MOTH_GO(put(t[1], a[0], sum));
  FINISH(t[0]);
}

MothStatus moth_grad_diagonal_backward(const MothValue *a, MothValue *out) {
  TEMPS(2);
  MOTH_GO(zeros(a[0], a[1], &t[0]));
  MOTH_GO(OP(diagonal, &t[1], t[0], a[2], a[3], a[4]));
  MOTH_GO(moth_copy_(t[1].u.t, a[0].u.t, false));
  FINISH(t[0]);
}

MothStatus moth_grad_as_strided_grad(const MothValue *a, MothValue *out) {
  MothValue at = a[6].tag == MOTH_V_INT ? a[6] : a[3];
  return OP(as_strided_backward, out, a[0], a[1], a[2], a[3], a[4], a[5], at);
}

/* The derivative of adding is reading: a dense copy into the base's geometry, viewed again. */
MothStatus moth_grad_as_strided_backward_grad(const MothValue *a, MothValue *out) {
  TEMPS(4);
  const MothValue base_size = a[1], base_stride = a[2], size = a[4], stride = a[5];
  int64_t reach = a[6].u.i, base_reach = a[3].u.i;
  for (uint32_t i = 0; i < size.n; i++)
    reach += size.u.ints[i] > 0 ? (size.u.ints[i] - 1) * stride.u.ints[i] : 0;
  for (uint32_t i = 0; i < base_size.n; i++)
    base_reach += base_size.u.ints[i] > 0 ? (base_size.u.ints[i] - 1) * base_stride.u.ints[i] : 0;
  int64_t n = (reach > base_reach ? reach : base_reach) + 1;
  MOTH_GO(zeros(a[0], moth_v_ints(&n, 1), &t[0]));
  MOTH_GO(OP(as_strided, &t[1], t[0], base_size, base_stride, a[3]));
  MOTH_GO(moth_copy_(t[1].u.t, a[0].u.t, false));
  MOTH_GO(OP(as_strided, &t[2], t[0], size, stride, a[6]));
  MOTH_GO(OP(clone, &t[3], t[2]));
  FINISH(t[3]);
}

/* --- reductions ------------------------------------------------------------------------------- */

/* x with the dimensions that a reduction of `shape` over `dim` took away put back as 1. */
static MothStatus keep_dims(MothValue x, MothValue shape, MothValue dim, bool keepdim,
                            MothValue *out) {
  int64_t kept[MOTH_MAX_DIMS];
  if (keepdim || shape.n == 0) {
    *out = moth_v_tensor(moth_keep(x));
    return MOTH_OK;
  }
  bool all = dim.tag == MOTH_V_NONE || (dim.tag == MOTH_V_INTS && dim.n == 0);
  for (uint32_t i = 0; i < shape.n; i++)
    kept[i] = all ? 1 : shape.u.ints[i];
  const int64_t one = dim.u.i;
  const int64_t *list = dim.tag == MOTH_V_INT ? &one : dim.u.ints;
  for (uint32_t i = 0; !all && i < (dim.tag == MOTH_V_INT ? 1 : dim.n); i++) {
    int d;
    MOTH_TRY(moth_wrap_dim(list[i], (int)shape.n, &d));
    kept[d] = 1;
  }
  return OP(reshape, out, x, moth_v_ints(kept, shape.n));
}

static MothValue shape_of(MothValue v) {
  return moth_v_ints(v.u.t->shape, v.u.t->ndim);
}

MothStatus moth_grad_reduce_expand(const MothValue *a, MothValue *out) {
  TEMPS(1);
  MOTH_GO(keep_dims(a[0], a[1], a[2], a[3].u.b, &t[0]));
  MOTH_GO(OP(expand, out, t[0], a[1]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_grad_mean_backward(const MothValue *a, MothValue *out) {
  TEMPS(2);
  double n = 1, m = 1;
  for (uint32_t i = 0; i < a[1].n; i++)
    n *= (double)a[1].u.ints[i];
  m = (double)a[0].u.t->numel;
  MOTH_GO(OP(mul, &t[0], a[0], moth_v_float(m / n)));
  MOTH_GO(moth_grad_reduce_expand((MothValue[]){t[0], a[1], a[2], a[3]}, &t[1]));
  FINISH(t[1]);
}

/* Without zeros grad * result / self; with one, the product of the others, by where(self == 0). */
MothStatus moth_grad_prod_backward(const MothValue *a, MothValue *out) {
  TEMPS(12);
  MothValue shape = shape_of(a[1]);
  MOTH_GO(keep_dims(a[0], shape, a[3], a[4].u.b, &t[0]));
  MOTH_GO(keep_dims(a[2], shape, a[3], a[4].u.b, &t[1]));
  MOTH_GO(OP(eq, &t[2], a[1], INT(0)));
  MOTH_GO(OP(masked_fill, &t[3], a[1], t[2], INT(1)));
  /* P: the product of the others that are not zero; Z: how many zeros the others have */
  MOTH_GO(OP(prod, &t[4], t[3], a[3], BOOL(true)));
  if (a[3].tag == MOTH_V_NONE) {
    MOTH_GO(keep_dims(t[4], shape, a[3], false, &t[5]));
  } else {
    t[5] = moth_v_tensor(moth_keep(t[4]));
  }
  MOTH_GO(OP(div, &t[6], t[5], t[3]));
  MOTH_GO(OP(sum, &t[7], t[2], a[3], BOOL(true)));
  if (a[3].tag == MOTH_V_NONE) {
    MOTH_GO(keep_dims(t[7], shape, a[3], false, &t[8]));
  } else {
    t[8] = moth_v_tensor(moth_keep(t[7]));
  }
  MOTH_GO(OP(sub, &t[9], t[8], t[2]));
  MOTH_GO(OP(ne, &t[10], t[9], INT(0)));
  MOTH_GO(OP(masked_fill, &t[11], t[6], t[10], INT(0)));
  MOTH_GO(OP(mul, out, t[11], t[0]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_grad_amax_backward(const MothValue *a, MothValue *out) {
  TEMPS(7);
  MothValue shape = shape_of(a[1]);
  MOTH_GO(keep_dims(a[0], shape, a[3], a[4].u.b, &t[0]));
  MOTH_GO(keep_dims(a[2], shape, a[3], a[4].u.b, &t[1]));
  MOTH_GO(OP(eq, &t[2], a[1], t[1]));
  MOTH_GO(OP(sum, &t[3], t[2], a[3], BOOL(true)));
  if (a[3].tag == MOTH_V_NONE) {
    MOTH_GO(keep_dims(t[3], shape, a[3], false, &t[4]));
  } else {
    t[4] = moth_v_tensor(moth_keep(t[3]));
  }
  MOTH_GO(OP(div, &t[5], t[0], t[4]));
  MOTH_GO(OP(where, &t[6], t[2], t[5], INT(0)));
  FINISH(t[6]);
}

MothStatus moth_grad_logsumexp_backward(const MothValue *a, MothValue *out) {
  TEMPS(5);
  MothValue shape = shape_of(a[1]);
  MOTH_GO(keep_dims(a[0], shape, a[3], a[4].u.b, &t[0]));
  MOTH_GO(keep_dims(a[2], shape, a[3], a[4].u.b, &t[1]));
  MOTH_GO(OP(sub, &t[2], a[1], t[1]));
  MOTH_GO(OP(exp, &t[3], t[2]));
  MOTH_GO(OP(mul, &t[4], t[3], t[0]));
  FINISH(t[4]);
}

MothStatus moth_grad_var_backward(const MothValue *a, MothValue *out) {
  TEMPS(5);
  MothValue self = a[1], shape = shape_of(self);
  MOTH_GO(keep_dims(a[0], shape, a[2], a[4].u.b, &t[0]));
  double n = (double)self.u.t->numel / (double)(a[0].u.t->numel ? a[0].u.t->numel : 1);
  double scale = 2.0 / (n - (double)a[3].u.i);
  MOTH_GO(OP(mean, &t[1], self, a[2], BOOL(true)));
  if (a[2].tag == MOTH_V_NONE) {
    MOTH_GO(keep_dims(t[1], shape, a[2], false, &t[2]));
  } else {
    t[2] = moth_v_tensor(moth_keep(t[1]));
  }
  MOTH_GO(OP(sub, &t[3], self, t[2]));
  MOTH_GO(OP(mul, &t[4], t[3], moth_v_float(scale)));
  MOTH_GO(OP(mul, out, t[4], t[0]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_grad_index_backward(const MothValue *a, MothValue *out) {
  TEMPS(4);
  MOTH_GO(keep_dims(a[0], a[1], a[2], a[4].u.b, &t[0]));
  MOTH_GO(keep_dims(a[3], a[1], a[2], a[4].u.b, &t[1]));
  MOTH_GO(zeros(a[0], a[1], &t[2]));
  if (a[1].n == 0) {
    MOTH_GO(OP(clone, &t[3], t[0]));
  } else {
    MOTH_GO(OP(scatter, &t[3], t[2], a[2], t[1], t[0], a[5]));
  }
  FINISH(t[3]);
}

MothStatus moth_grad_cumsum_backward(const MothValue *a, MothValue *out) {
  TEMPS(2);
  int64_t d = a[1].u.i;
  MOTH_GO(OP(flip, &t[0], a[0], moth_v_ints(&d, 1)));
  MOTH_GO(OP(cumsum, &t[1], t[0], a[1]));
  MOTH_GO(OP(flip, out, t[1], moth_v_ints(&d, 1)));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

/* --- linear ----------------------------------------------------------------------------------- */

/* x (..., n) as (rows, n) */
static MothStatus as_rows(MothValue x, MothValue *out) {
  const MothTensor *t = x.u.t;
  int64_t last = t->ndim ? t->shape[t->ndim - 1] : 1, shape[2] = {1, last};
  for (int i = 0; i < t->ndim - 1; i++)
    shape[0] *= t->shape[i];
  if (t->ndim == 2) {
    *out = moth_v_tensor(moth_keep(x));
    return MOTH_OK;
  }
  return OP(reshape, out, x, moth_v_ints(shape, 2));
}

MothStatus moth_grad_linear_backward_input(const MothValue *a, MothValue *out) {
  TEMPS(2);
  MOTH_GO(as_rows(a[0], &t[0]));
  MOTH_GO(OP(mm, &t[1], t[0], a[1]));
  int64_t shape[MOTH_MAX_DIMS];
  const MothTensor *g = a[0].u.t;
  memcpy(shape, g->shape, sizeof(int64_t) * g->ndim);
  shape[g->ndim - 1] = a[1].u.t->shape[1];
  if (g->ndim == 2) {
    *out = moth_v_tensor(moth_keep(t[1]));
    goto done;
  }
  MOTH_GO(OP(reshape, out, t[1], moth_v_ints(shape, g->ndim)));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_grad_linear_backward_weight(const MothValue *a, MothValue *out) {
  TEMPS(3);
  MOTH_GO(as_rows(a[0], &t[0]));
  MOTH_GO(as_rows(a[1], &t[1]));
  MOTH_GO(OP(t, &t[2], t[0]));
  MOTH_GO(OP(mm, out, t[2], t[1]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_grad_linear_backward_bias(const MothValue *a, MothValue *out) {
  TEMPS(1);
  int64_t first = 0;
  MOTH_GO(as_rows(a[0], &t[0]));
  MOTH_GO(OP(sum, out, t[0], moth_v_ints(&first, 1)));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

/* --- indexing --------------------------------------------------------------------------------- */

MothStatus moth_grad_gather_backward(const MothValue *a, MothValue *out) {
  TEMPS(1);
  MOTH_GO(zeros(a[0], a[1], &t[0]));
  MOTH_GO(OP(scatter_add, out, t[0], a[2], a[3], a[0], a[4]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_grad_index_select_backward(const MothValue *a, MothValue *out) {
  TEMPS(1);
  MOTH_GO(zeros(a[0], a[1], &t[0]));
  MOTH_GO(OP(index_add, out, t[0], a[2], a[3], a[0], a[4]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_grad_index_fill_zero(const MothValue *a, MothValue *out) {
  TEMPS(2);
  MOTH_GO(OP(index_select, &t[0], a[0], a[1], a[2], a[3]));
  MOTH_GO(OP(zeros_like, &t[1], t[0]));
  MOTH_GO(OP(index_copy, out, a[0], a[1], a[2], t[1], a[3]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_grad_masked_select_backward(const MothValue *a, MothValue *out) {
  TEMPS(2);
  const MothTensor *mask = a[2].u.t;
  int64_t shape[MOTH_MAX_DIMS];
  int n;
  MOTH_TRY(moth_broadcast((int)a[1].n, a[1].u.ints, mask->ndim, mask->shape, &n, shape));
  MOTH_GO(zeros(a[0], moth_v_ints(shape, (uint32_t)n), &t[0]));
  MOTH_GO(OP(masked_scatter, &t[1], t[0], a[2], a[0]));
  MOTH_GO(moth_grad_sum_to((MothValue[]){t[1], a[1]}, out));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_grad_masked_scatter_backward(const MothValue *a, MothValue *out) {
  TEMPS(5);
  int64_t n = 1, have;
  for (uint32_t i = 0; i < a[2].n; i++)
    n *= a[2].u.ints[i];
  MOTH_GO(OP(masked_select, &t[0], a[0], a[1]));
  have = t[0].u.t->numel;
  MOTH_GO(zeros(a[0], moth_v_ints(&n, 1), &t[1]));
  MOTH_GO(OP(narrow, &t[2], t[1], INT(0), INT(0), INT(have)));
  MOTH_GO(moth_copy_(t[2].u.t, t[0].u.t, false));
  MOTH_GO(OP(reshape, out, t[1], a[2]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_gradlist_cat_backward(MothNode *node, MothTensor *grad, MothValue dim,
                                      MothTensor **out) {
  int d;
  int64_t at = 0;
  MOTH_TRY(moth_wrap_dim(dim.u.i, grad->ndim, &d));
  for (int i = 0; i < node->ninputs - 1; i++) { /* the last input is `dim` */
    const MothInput *in = &node->inputs[i];
    if (in->ndim != grad->ndim) { /* an empty 1-D tensor joins anything */
      MothValue part = moth_v_none();
      if (in->node)
        MOTH_TRY(zeros(moth_v_tensor(grad), moth_v_ints(in->shape, in->ndim), &part));
      out[i] = part.tag == MOTH_V_TENSOR ? part.u.t : NULL;
      continue;
    }
    if (in->node) {
      MothTensor *part;
      MOTH_TRY(moth_narrow(grad, d, at, in->shape[d], &part));
      out[i] = part;
    }
    at += in->shape[d];
  }
  return MOTH_OK;
}

/* --- networks --------------------------------------------------------------------------------- */

/* d/d output of (g - sum(g o)) o, times h: h g - sum(h o) g - sum(g o) h */
MothStatus moth_grad_softmax_double_backward(const MothValue *a, MothValue *out) {
  TEMPS(9);
  int64_t dim = a[3].u.i;
  MothValue h = a[0], g = a[1], o = a[2], dims = moth_v_ints(&dim, 1);
  MOTH_GO(OP(mul, &t[0], h, o));
  MOTH_GO(OP(sum, &t[1], t[0], dims, BOOL(true)));
  MOTH_GO(OP(mul, &t[2], g, o));
  MOTH_GO(OP(sum, &t[3], t[2], dims, BOOL(true)));
  MOTH_GO(OP(mul, &t[4], h, g));
  MOTH_GO(OP(mul, &t[5], t[1], g));
  MOTH_GO(OP(mul, &t[6], t[3], h));
  MOTH_GO(OP(sub, &t[7], t[4], t[5]));
  MOTH_GO(OP(sub, out, t[7], t[6]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

/* cross_entropy_backward is linear in grad_output: its derivative is the sum of grad with the backward
 * of ones, over the classes. */
MothStatus moth_grad_cross_entropy_double_backward(const MothValue *a, MothValue *out) {
  TEMPS(3);
  const MothTensor *self = a[1].u.t;
  bool none = !strcmp(a[4].u.s, "none");
  int64_t one_shape = self->ndim == 2 ? self->shape[0] : 1, last = -1;
  uint32_t n = none && self->ndim == 2 ? 1 : 0;
  MOTH_GO(OP(ones, &t[0], moth_v_ints(&one_shape, n), moth_v_dtype((MothDType)self->dtype),
             moth_v_device(self->device)));
  MOTH_GO(OP(cross_entropy_backward, &t[1], t[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]));
  MOTH_GO(OP(mul, &t[2], t[1], a[0]));
  MOTH_GO(OP(sum, out, t[2], n ? moth_v_ints(&last, 1) : moth_v_none()));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_grad_native_dropout_grad(const MothValue *a, MothValue *out) {
  double p = moth_as_double(a[2]);
  return OP(dropout_backward, out, a[0], a[1], moth_v_float(p < 1 ? 1 / (1 - p) : 0));
}

/* cross_entropy_backward is g S (p - q / S) for each row of logits: p their softmax, q what the target gives
 * to the classes, S its sum. Its derivative is that of g S p: softmax_backward of g S grad. The loss of equal
 * logits is S log C, which tells S for every weight, smoothing and ignored class. */
MothStatus moth_grad_cross_entropy_backward_self(const MothValue *a, MothValue *out) {
  TEMPS(9);
  const MothTensor *self = a[2].u.t;
  MothValue none = moth_v_string("none"), last = moth_v_int(-1);
  double classes = (double)self->shape[self->ndim - 1];
  MOTH_GO(OP(zeros_like, &t[0], a[2]));
  MOTH_GO(OP(cross_entropy, &t[1], t[0], a[3], a[4], none, a[6], a[7], a[8]));
  if (!strcmp(a[5].u.s, "mean")) { /* the mean is the sum over the weights that count */
    MOTH_GO(OP(cross_entropy, &t[2], t[0], a[3], a[4], a[5], a[6], a[7], a[8]));
    MOTH_GO(OP(sum, &t[3], t[1], moth_v_none()));
    MOTH_GO(OP(div, &t[4], t[2], t[3]));
  } else {
    MOTH_GO(OP(ones_like, &t[4], a[1]));
  }
  MOTH_GO(OP(mul, &t[5], t[1], t[4]));
  MOTH_GO(OP(mul, &t[6], t[5], a[1]));
  /* one class: p is 1 whatever the logits */
  MOTH_GO(OP(mul, &t[7], t[6], moth_v_float(classes > 1 ? 1 / log(classes) : 0)));
  moth_tensor_release(moth_take(&t[6]));
  MOTH_GO(OP(unsqueeze, &t[6], t[7], last));
  MOTH_GO(OP(mul, &t[8], t[6], a[0]));
  moth_tensor_release(moth_take(&t[7]));
  MOTH_GO(OP(softmax, &t[7], a[2], last));
  MOTH_GO(OP(softmax_backward, out, t[8], t[7], last));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

/* Second derivatives of activations. Far out they are 0, where a product of Inf and 0 would be NaN: hence
 * the clamps.
 * gelu: (2 - x^2) phi(x) */
MothStatus moth_grad_gelu_double_backward(const MothValue *a, MothValue *out) {
  TEMPS(7);
  MOTH_GO(OP(clamp, &t[0], a[1], moth_v_int(-40), moth_v_int(40)));
  MOTH_GO(OP(mul, &t[1], t[0], t[0]));
  MOTH_GO(OP(mul, &t[2], t[1], moth_v_float(-0.5)));
  MOTH_GO(OP(exp, &t[3], t[2]));
  MOTH_GO(OP(mul, &t[4], t[3], moth_v_float(0.3989422804014327)));
  MOTH_GO(OP(sub, &t[5], moth_v_int(2), t[1]));
  MOTH_GO(OP(mul, &t[6], t[4], t[5]));
  MOTH_GO(OP(mul, out, a[0], t[6]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

/* x s, s = sigmoid(z), z = b x + c x^3: s (1 - s) (2 z' + x z'' + x z'^2 (1 - 2 s)),
 * where 2 z' + x z'' = 2 b + 12 c x^2 */
MothStatus moth_grad_gelu_tanh_double_backward(const MothValue *a, MothValue *out) {
  enum { X, XX, CXX, Z1, Z, S, DS, C3XX, DZ, DZ2, XDZ2, S2, ODD, TERM, C12XX, EVEN, SUM, N };
  TEMPS(N);
  const double b = 1.5957691216057308, c = 0.07135481627260025;
  MOTH_GO(OP(clamp, &t[X], a[1], moth_v_int(-30), moth_v_int(30)));
  MOTH_GO(OP(mul, &t[XX], t[X], t[X]));
  MOTH_GO(OP(mul, &t[CXX], t[XX], moth_v_float(c)));
  MOTH_GO(OP(add, &t[Z1], t[CXX], moth_v_float(b)));
  MOTH_GO(OP(mul, &t[Z], t[X], t[Z1]));
  MOTH_GO(OP(sigmoid, &t[S], t[Z]));
  MOTH_GO(OP(sigmoid_backward, &t[DS], a[0], t[S]));
  MOTH_GO(OP(mul, &t[C3XX], t[XX], moth_v_float(3 * c)));
  MOTH_GO(OP(add, &t[DZ], t[C3XX], moth_v_float(b)));
  MOTH_GO(OP(mul, &t[DZ2], t[DZ], t[DZ]));
  MOTH_GO(OP(mul, &t[XDZ2], t[X], t[DZ2]));
  MOTH_GO(OP(mul, &t[S2], t[S], moth_v_int(2)));
  MOTH_GO(OP(sub, &t[ODD], moth_v_int(1), t[S2]));
  MOTH_GO(OP(mul, &t[TERM], t[XDZ2], t[ODD]));
  MOTH_GO(OP(mul, &t[C12XX], t[XX], moth_v_float(12 * c)));
  MOTH_GO(OP(add, &t[EVEN], t[C12XX], moth_v_float(2 * b)));
  MOTH_GO(OP(add, &t[SUM], t[EVEN], t[TERM]));
  MOTH_GO(OP(mul, out, t[DS], t[SUM]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

/* x t, t = tanh(softplus(x)), s = sigmoid(x): (1 - t^2) s (2 + x (1 - s (1 + 2 t))) */
MothStatus moth_grad_mish_double_backward(const MothValue *a, MothValue *out) {
  enum { X, P, T, DT, S, DTS, T2, T21, ST, ODD, XODD, SUM, N };
  TEMPS(N);
  MOTH_GO(OP(clamp, &t[X], a[1], moth_v_int(-1000), moth_v_int(1000)));
  MOTH_GO(OP(softplus, &t[P], t[X]));
  MOTH_GO(OP(tanh, &t[T], t[P]));
  MOTH_GO(OP(tanh_backward, &t[DT], a[0], t[T]));
  MOTH_GO(OP(sigmoid, &t[S], t[X]));
  MOTH_GO(OP(mul, &t[DTS], t[DT], t[S]));
  MOTH_GO(OP(mul, &t[T2], t[T], moth_v_int(2)));
  MOTH_GO(OP(add, &t[T21], t[T2], moth_v_int(1)));
  MOTH_GO(OP(mul, &t[ST], t[S], t[T21]));
  MOTH_GO(OP(sub, &t[ODD], moth_v_int(1), t[ST]));
  MOTH_GO(OP(mul, &t[XODD], t[X], t[ODD]));
  MOTH_GO(OP(add, &t[SUM], t[XODD], moth_v_int(2)));
  MOTH_GO(OP(mul, out, t[DTS], t[SUM]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

MothStatus moth_grad_scatter_back(const MothValue *a, MothValue *out) {
  TEMPS(1);
  const MothTensor *g = a[0].u.t;
  MOTH_GO(OP(zeros, &t[0], a[1], moth_v_dtype((MothDType)g->dtype), moth_v_device(g->device)));
  if (g->ndim == 0) {
    *out = moth_v_tensor(moth_keep(a[0]));
    goto done;
  }
  MOTH_GO(OP(scatter, out, t[0], a[2], a[3], a[0], a[4]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}
