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

/* The tensor to which the gradient of a part is added: the sum so far (see formulas.h), else zeros. */
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
