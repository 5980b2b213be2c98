/* Derivatives that are algorithms, not expressions. All are made of dispatched ops. */
#include "autograd/formulas.h"

#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "ops/create.h"
#include "ops/pointwise.h"
#include "ops/view.h"

MothStatus moth_unimplemented(const char *op, const char *arg) {
  return moth_fail(MOTH_ERR_STATE, "derivative of %s by '%s' is not implemented", op, arg);
}

/* Shorthand: an op on values, its result in v. Temporaries stand in an array that `done` drops. */
#define OP(name, v, ...)                                                                           \
  moth_eval(MOTH_OP(name), (int)(sizeof((MothValue[]){__VA_ARGS__}) / sizeof(MothValue)),          \
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

/* --- views ------------------------------------------------------------------------------------ */

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
  bool sum;
  MOTH_GO(whole_of(a[0], a[1], &sum, &t[0]));
  MOTH_GO(OP(narrow, &t[1], t[0], a[2], a[3], INT(a[0].u.t->shape[a[2].u.i])));
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

/* The derivative of scattered adds is a read: a dense copy in the base's geometry, viewed again. */
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

/* x with the dimensions that a reduction of `shape` over `dim` removed restored as 1. */
static MothStatus keep_dims(MothValue x, MothValue shape, MothValue dim, bool keepdim,
                            MothValue *out) {
  int64_t kept[MOTH_MAX_DIMS];
  if (keepdim || shape.n == 0) {
    *out = moth_v_tensor(moth_keep(x));
    return MOTH_OK;
  }
  memcpy(kept, shape.u.ints, sizeof *kept * shape.n);
  for (uint32_t i = 0; i < dim.n; i++)
    kept[dim.u.ints[i]] = 1;
  return OP(reshape, out, x, moth_v_ints(kept, shape.n));
}

static MothValue shape_of(MothValue v) {
  return moth_v_ints(v.u.t->shape, v.u.t->ndim);
}

/* For each element over dim the product of the others: of the elements before it times that of the elements after
 * it. Uses only products, so that it is differentiable also where elements are 0. */
static MothStatus products_of_others(MothValue self, MothValue dim, MothValue *out) {
  TEMPS(8);
  const MothTensor *x = self.u.t;
  int64_t order[MOTH_MAX_DIMS], back[MOTH_MAX_DIMS], shape[MOTH_MAX_DIMS], n = 1, last = -1;
  bool over[MOTH_MAX_DIMS] = {false};
  int at = 0, d;
  for (uint32_t i = 0; i < dim.n; i++)
    over[dim.u.ints[i]] = true;
  for (d = 0; d < x->ndim; d++)
    if (!over[d])
      order[at++] = d;
  int lead = at;
  for (d = 0; d < x->ndim; d++)
    if (over[d])
      order[at++] = d;
  for (d = 0; d < x->ndim; d++) {
    shape[d] = x->shape[order[d]];
    back[order[d]] = d;
    if (d >= lead)
      n *= shape[d];
  }
  MothValue whole = moth_v_ints(shape, x->ndim), ends = moth_v_ints(&last, 1), rows[1];
  int64_t flat[MOTH_MAX_DIMS], one_in[2] = {1, -1};
  memcpy(flat, shape, sizeof *flat * (size_t)lead);
  flat[lead] = n;
  rows[0] = moth_v_ints(flat, (uint32_t)lead + 1);
  MothValue shift = moth_v_ints(one_in, 2), how = moth_v_string("constant");
  MOTH_GO(OP(permute, &t[0], self, moth_v_ints(order, x->ndim)));
  MOTH_GO(OP(reshape, &t[1], t[0], rows[0]));
  MOTH_GO(OP(pad, &t[2], t[1], shift, how, INT(1)));
  MOTH_GO(OP(cumprod, &t[3], t[2], INT(last)));
  MOTH_GO(OP(flip, &t[4], t[1], ends));
  moth_tensor_release(moth_take(&t[2]));
  MOTH_GO(OP(pad, &t[2], t[4], shift, how, INT(1)));
  MOTH_GO(OP(cumprod, &t[5], t[2], INT(last)));
  MOTH_GO(OP(flip, &t[6], t[5], ends));
  MOTH_GO(OP(mul, &t[7], t[3], t[6]));
  moth_tensor_release(moth_take(&t[0]));
  MOTH_GO(OP(reshape, &t[0], t[7], whole));
  MOTH_GO(OP(permute, out, t[0], moth_v_ints(back, x->ndim)));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

/* grad times the product of the others: by division and by counting zeros; with create_graph without either. */
MothStatus moth_grad_prod_backward(const MothValue *a, MothValue *out) {
  TEMPS(10);
  MothValue shape = shape_of(a[1]);
  MOTH_GO(keep_dims(a[0], shape, a[3], a[4].u.b, &t[0]));
  if (!moth_thread.no_grad && a[1].u.t->ndim && a[1].u.t->numel &&
      moth_tensor_requires_grad(a[1].u.t)) {
    MOTH_GO(products_of_others(a[1], a[3], &t[1]));
    MOTH_GO(OP(mul, out, t[1], t[0]));
    goto done;
  }
  MOTH_GO(keep_dims(a[2], shape, a[3], a[4].u.b, &t[1]));
  MOTH_GO(OP(eq, &t[2], a[1], INT(0)));
  MOTH_GO(OP(masked_fill, &t[3], a[1], t[2], INT(1)));
  /* P: the product of the other nonzero elements; Z: the number of zeros among the others */
  MOTH_GO(OP(prod, &t[4], t[3], a[3], BOOL(true)));
  MOTH_GO(OP(div, &t[5], t[4], t[3]));
  MOTH_GO(OP(sum, &t[6], t[2], a[3], BOOL(true)));
  MOTH_GO(OP(sub, &t[7], t[6], t[2]));
  MOTH_GO(OP(ne, &t[8], t[7], INT(0)));
  MOTH_GO(OP(masked_fill, &t[9], t[5], t[8], INT(0)));
  MOTH_GO(OP(mul, out, t[9], t[0]));
done:
  moth_drop_values(t, NTEMPS);
  return status;
}

/* --- indexing --------------------------------------------------------------------------------- */

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
  int64_t at = 0, d = dim.u.i;
  for (int i = 0; i < node->ninputs - 1; i++) { /* the last input is `dim` */
    const MothInput *in = &node->inputs[i];
    if (in->ndim != grad->ndim) { /* cat accepts an empty 1-D tensor beside any shape */
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
