/* The rule of optimizer steps: lists of tensors that are like the parameters. */
#include <string.h>

#include "core/dtype.h"
#include "dispatch/dispatch.h"
#include "unpack/nn.h"

static MothStatus need_float(MothDType d) {
  if (moth_dtype_is_float(d))
    return MOTH_OK;
  return moth_fail(MOTH_ERR_TYPE, "expected a float dtype, got %s", moth_dtype_name(d));
}

static bool same_shape(const MothTensor *a, const MothTensor *b) {
  return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof(int64_t) * a->ndim);
}

static MothStatus shapes_differ(const char *na, const MothTensor *a, const char *nb,
                                const MothTensor *b) {
  char sa[200], sb[200];
  return moth_fail(MOTH_ERR_VALUE, "%s must have the shape of %s, %s, got %s", nb, na,
                   moth_shape_format(a->ndim, a->shape, sa, sizeof sa),
                   moth_shape_format(b->ndim, b->shape, sb, sizeof sb));
}

/* A list of tensors like the parameters. */
static MothStatus check_list(MothValue params, MothValue list, const char *name) {
  if (list.n != params.n)
    return moth_fail(MOTH_ERR_VALUE, "%s must be as many as params: expected %u, got %u", name,
                     params.n, list.n);
  for (uint32_t i = 0; i < list.n; i++) {
    const MothTensor *p = params.u.tensors[i], *t = list.u.tensors[i];
    if (!same_shape(p, t))
      return shapes_differ("params", p, name, t);
    if (p->dtype != t->dtype)
      return moth_fail(MOTH_ERR_TYPE, "%s must have the dtype of params, %s, got %s", name,
                       moth_dtype_name((MothDType)p->dtype), moth_dtype_name((MothDType)t->dtype));
  }
  return MOTH_OK;
}

static MothStatus check_params(MothValue params, MothValue grads) {
  for (uint32_t i = 0; i < params.n; i++)
    MOTH_TRY(need_float((MothDType)params.u.tensors[i]->dtype));
  return check_list(params, grads, "grads");
}

static MothStatus check_scale(const MothTensor *scale) {
  if (!scale)
    return MOTH_OK;
  MOTH_TRY(need_float((MothDType)scale->dtype));
  return scale->ndim == 0
             ? MOTH_OK
             : moth_fail(MOTH_ERR_VALUE, "grad_scale must be a 0-dim tensor, got %d dimensions",
                         scale->ndim);
}

/* A number, or a tensor that holds one. */
static MothStatus check_number(MothValue v, const char *name) {
  char a[200];
  if (v.tag != MOTH_V_TENSOR)
    return MOTH_OK;
  if (v.u.t->dtype == MOTH_BOOL)
    return moth_fail(MOTH_ERR_TYPE, "%s must be a number, got a tensor of bool", name);
  return v.u.t->numel == 1 ? MOTH_OK
                           : moth_fail(MOTH_ERR_VALUE, "%s must be a tensor of one element, got %s",
                                       name, moth_tensor_format(v.u.t, a, sizeof a));
}

static MothStatus check_sgd(const MothCall *c) {
  MOTH_UNPACK_SGD_STEP(c)
  MOTH_TRY(check_scale(grad_scale));
  MOTH_TRY(check_number(lr, "lr"));
  MOTH_TRY(check_params(params, grads));
  if (nesterov && (momentum <= 0 || dampening != 0))
    return moth_fail(MOTH_ERR_VALUE, "nesterov needs a momentum and no dampening");
  return momentum != 0 ? check_list(params, momentum_buffers, "momentum_buffers") : MOTH_OK;
}

static MothStatus check_adam(const MothCall *c) {
  MOTH_UNPACK_ADAM_STEP(c)
  MOTH_TRY(check_scale(grad_scale));
  MOTH_TRY(check_number(lr, "lr"));
  MOTH_TRY(check_number(step, "step"));
  MOTH_TRY(check_params(params, grads));
  MOTH_TRY(check_list(params, exp_avgs, "exp_avgs"));
  MOTH_TRY(check_list(params, exp_avg_sqs, "exp_avg_sqs"));
  if (amsgrad)
    MOTH_TRY(check_list(params, max_exp_avg_sqs, "max_exp_avg_sqs"));
  if (step.tag != MOTH_V_TENSOR && moth_as_double(step) < 1)
    return moth_fail(MOTH_ERR_VALUE, "step counts from 1, got %g", moth_as_double(step));
  return MOTH_OK;
}

MothStatus moth_shape_optimizer(const MothCall *c, MothMeta *out) {
  (void)out;
  return c->op == MOTH_OP(sgd_step) ? check_sgd(c) : check_adam(c);
}
