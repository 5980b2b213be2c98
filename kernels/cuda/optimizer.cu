/* Optimizer steps: many tensors per launch. A tensor that is not row-major is updated in a row-major copy,
 * which is copied back afterwards; such a gradient is read from a copy. */
#include "kernels/cuda/optimizer.h"

#include <math.h>

#include "kernels/cuda/util.h"
#include "unpack/optim.h"

namespace {

struct Step {
  MothStep step;
  const MothStepValues *values; /* of a generated step */
  MothCudaRun run;
  const MothValue *lists; /* params, grads, states */
  int roles;
  MothStepTable table;
};

MothStatus flush(Step *s, MothDType dtype) {
  const MothCudaKernels *k = moth_cuda_kernels[dtype];
  if (s->table.n == 0)
    return MOTH_OK;
  MothStatus status;
  if (s->values)
    status = moth_cuda_steps[dtype][s->step.loop](&s->run, s->values, &s->table);
  else
    status = s->step.sgd ? k->sgd_step(&s->run, &s->step) : k->adam_step(&s->run, &s->step);
  s->table.n = 0;
  return status;
}

/* A tensor that needs row-major copies has a launch of its own: the copies are freed once it, and the copy back, are
 * queued. */
MothStatus step_alone(Step *s, uint32_t i) {
  MothTensor *param = s->lists[0].u.tensors[i];
  MothStepTable *t = &s->table;
  MothOwned work[MOTH_STEP_ROLES];
  int64_t n = param->numel;
  bool aligned = true;
  for (int r = 0; r < s->roles; r++) {
    MOTH_TRY(
        moth_cuda_contiguous_as(s->lists[r].u.tensors[i], (MothDType)param->dtype, &work[r].t));
    t->p[r][0] = work[r]->data;
    aligned = aligned && (uintptr_t)work[r]->data % 16 == 0;
  }
  t->n = 1;
  t->first[0] = 0;
  t->first[1] = (unsigned)moth_ceil_div(n, MOTH_STEP_CHUNK);
  t->numel[0] = aligned ? n : -n;
  MOTH_TRY(flush(s, (MothDType)param->dtype));
  for (int r = 0; r < s->roles; r++)
    if (r != 1 && work[r].t != s->lists[r].u.tensors[i])
      MOTH_TRY(moth_cuda_copy(s->lists[r].u.tensors[i], work[r]));
  return MOTH_OK;
}

/* Updates all row-major tensors of one dtype. */
MothStatus step_dtype(Step *s, MothDType dtype) {
  MothStepTable *t = &s->table;
  for (uint32_t i = 0; i < s->lists[0].n; i++) {
    const MothTensor *param = s->lists[0].u.tensors[i];
    if (param->dtype != dtype || param->numel == 0)
      continue;
    bool whole = true, aligned = true;
    for (int r = 0; r < s->roles; r++) {
      const MothTensor *x = s->lists[r].u.tensors[i];
      whole = whole && x->contiguous && x->dtype == dtype;
      aligned = aligned && (uintptr_t)x->data % 16 == 0;
    }
    int64_t chunks = moth_ceil_div(param->numel, MOTH_STEP_CHUNK);
    if (!whole || t->n == MOTH_STEP_SLOTS || (t->n > 0 && chunks + t->first[t->n] > 0x7fffffff))
      MOTH_TRY(flush(s, dtype));
    if (!whole) {
      MOTH_TRY(step_alone(s, i));
      continue;
    }
    if (t->n == 0)
      t->first[0] = 0;
    for (int r = 0; r < s->roles; r++)
      t->p[r][t->n] = s->lists[r].u.tensors[i]->data;
    t->numel[t->n] = aligned ? param->numel : -param->numel;
    t->first[t->n + 1] = t->first[t->n] + (unsigned)chunks;
    t->n++;
  }
  return flush(s, dtype);
}

/* A number that lies on the device, where the kernel reads it. */
MothStatus on_device(const MothTensor *t, MothOwned *number, const void **data, bool *f64) {
  if (!t)
    return MOTH_OK;
  MothDType dtype = t->dtype == MOTH_FLOAT32 ? MOTH_FLOAT32 : MOTH_FLOAT64;
  MOTH_TRY(moth_cuda_contiguous_as(t, dtype, &number->t));
  *data = number->t->data;
  *f64 = dtype == MOTH_FLOAT64;
  return MOTH_OK;
}
const MothTensor *tensor_of(MothValue v) {
  return v.tag == MOTH_V_TENSOR ? v.u.t : nullptr;
}
/* The number, or 1 in its place. */
double number_of(MothValue v) {
  return v.tag == MOTH_V_TENSOR ? 1 : moth_as_double(v);
}

/* Launches for all dtypes among the parameters. */
MothStatus step_all(Step *s) {
  uint32_t dtypes = 0;
  for (uint32_t i = 0; i < s->lists[0].n; i++)
    dtypes |= 1u << s->lists[0].u.tensors[i]->dtype;
  for (int d = 0; d < MOTH_NDTYPES; d++)
    if (dtypes >> d & 1)
      MOTH_TRY(step_dtype(s, (MothDType)d));
  return MOTH_OK;
}

MothStatus step_run(MothCall *c, Step *s, const MothTensor *scale, const MothTensor *found,
                    MothValue lr, MothValue step) {
  MothOwned numbers[4];
  MOTH_TRY(moth_cuda_run(c, &s->run));
  s->step.table = &s->table;
  MOTH_TRY(on_device(found, &numbers[3], &s->table.found, &s->table.found_f64));
  MOTH_TRY(on_device(scale, &numbers[0], &s->table.scale, &s->table.scale_f64));
  MOTH_TRY(on_device(tensor_of(lr), &numbers[1], &s->table.lr, &s->table.lr_f64));
  MOTH_TRY(on_device(tensor_of(step), &numbers[2], &s->table.step, &s->table.step_f64));
  return step_all(s);
}

} // namespace

MothStatus moth_cuda_update(MothCall *c, const MothUpdate *u) {
  MothStepValues values = {};
  MothOwned numbers[MOTH_STEP_TENSORS + 1];
  Step s = {};
  MothStepTable *t = &s.table;
  MOTH_TRY(moth_cuda_run(c, &s.run));
  s.step.table = t;
  s.values = &values;
  for (int i = 0; i < u->nargs; i++) {
    MothValue v = c->args[u->args[i]];
    const MothTensor *tensor = tensor_of(v);
    values.args[i] = i == u->grad_scale;
    if (tensor && i == u->found_inf) {
      MOTH_TRY(on_device(tensor, &numbers[MOTH_STEP_TENSORS], &t->found, &t->found_f64));
    } else if (tensor) {
      if (t->nargs == MOTH_STEP_TENSORS)
        return moth_fail(MOTH_ERR_VALUE, "more than %d numbers are tensors",
                         (int)MOTH_STEP_TENSORS);
      int k = t->nargs++;
      t->arg_at[k] = (unsigned char)i;
      MOTH_TRY(on_device(tensor, &numbers[k], &t->args[k], &t->arg_f64[k]));
    } else if (v.tag == MOTH_V_BOOL) {
      values.args[i] = v.u.b;
    } else if (v.tag != MOTH_V_NONE && v.tag != MOTH_V_TENSOR) {
      values.args[i] = moth_as_double(v);
    }
  }
  if (t->nargs == 0)
    u->numbers(values.args, values.numbers);
  MothValue lists[MOTH_STEP_ROLES];
  int variant = 0, bit = 1;
  for (int i = 0; i < u->nlists; i++) {
    MothValue list = c->args[u->lists[i]];
    if (!u->optional[i] || list.n)
      lists[s.roles++] = list;
    if (u->optional[i]) {
      variant += list.n ? bit : 0;
      bit *= 2;
    }
  }
  s.lists = lists;
  s.step.loop = u->first + variant;
  return step_all(&s);
}

MothStatus moth_cuda_sgd_step(MothCall *c) {
  MOTH_UNPACK_SGD_STEP(c)
  MothSgd h = {number_of(lr), momentum, dampening, weight_decay, 1, nesterov, maximize, first};
  MothValue lists[3] = {params, grads, momentum_buffers};
  Step s = {};
  s.step.sgd = &h;
  s.lists = lists;
  s.roles = momentum != 0 ? 3 : 2;
  return step_run(c, &s, grad_scale, found_inf, lr, moth_v_int(1));
}

MothStatus moth_cuda_adam_step(MothCall *c) {
  MOTH_UNPACK_ADAM_STEP(c)
  MothAdam h = {};
  h.lr = number_of(lr);
  h.step = number_of(step);
  h.beta1 = beta1;
  h.beta2 = beta2;
  h.eps = eps;
  h.weight_decay = weight_decay;
  h.step_size = h.lr / (1 - pow(beta1, h.step));
  h.root_correction = sqrt(1 - pow(beta2, h.step));
  h.decoupled = decoupled;
  h.amsgrad = amsgrad;
  h.maximize = maximize;
  MothValue lists[MOTH_STEP_ROLES] = {params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs};
  Step s = {};
  s.step.adam = &h;
  s.lists = lists;
  s.roles = amsgrad ? 5 : 4;
  return step_run(c, &s, grad_scale, found_inf, lr, step);
}
