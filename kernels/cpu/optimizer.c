/* Optimizer steps: all parameters of a call in one parallel region, cut into chunks. Tensors that are not row-major are
 * updated in a row-major copy, which is copied back afterwards. Nothing is written where found_inf is not 0. */
#include "kernels/cpu/optimizer.h"

#include <math.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack/optim.h"

enum { CHUNK = 16384, ROLES = MOTH_STEP_ROLES };

typedef struct Group {
  MothTensor *t[ROLES]; /* row-major; NULL: not used */
  int64_t first;        /* number of its first chunk */
} Group;

typedef struct Step {
  Group *groups;
  uint32_t n;
  int64_t chunks;
  MothStep step; /* of no parameter yet */
} Step;

static void step_chunk(const Step *s, const Group *g, int64_t from) {
  MothStep q = s->step;
  q.n = moth_min64(CHUNK, g->t[0]->numel - from);
  from *= moth_itemsize(g->t[0]);
  for (int i = 0; i < ROLES; i++)
    q.p[i] = g->t[i] ? g->t[i]->data + from : NULL;
  const MothKernels *k = moth_cpu_kernels(g->t[0]->dtype);
  if (q.numbers)
    moth_steps[moth_isa][g->t[0]->dtype][q.loop](q.p, q.numbers, q.n);
  else if (q.sgd)
    k->sgd_step(&q);
  else
    k->adam_step(&q);
}

static void step_range(void *ctx, int64_t begin, int64_t end) {
  const Step *s = ctx;
  uint32_t lo = 0, hi = s->n;
  while (hi - lo > 1) {
    uint32_t mid = lo + (hi - lo) / 2;
    if (s->groups[mid].first <= begin)
      lo = mid;
    else
      hi = mid;
  }
  for (int64_t i = begin; i < end; i++) {
    while (lo + 1 < s->n && s->groups[lo + 1].first <= i)
      lo++;
    step_chunk(s, &s->groups[lo], (i - s->groups[lo].first) * CHUNK);
  }
}

/* All lists are written to but lists[1], the gradients. */
static MothStatus step_run(Step *s, const MothValue *lists, int roles) {
  MothStatus status = MOTH_OK;
  uint32_t n = lists[0].n;
  int64_t numel = 0;
  if (!n)
    return MOTH_OK;
  s->groups = moth_alloc(n * sizeof(Group));
  if (!s->groups)
    return moth_no_memory(0);
  for (s->n = 0; s->n < n; s->n++) {
    Group *g = &s->groups[s->n];
    *g = (Group){{NULL}, s->chunks};
    s->chunks += (lists[0].u.tensors[s->n]->numel + CHUNK - 1) / CHUNK;
    numel += lists[0].u.tensors[s->n]->numel;
    for (int r = 0; r < roles && status == MOTH_OK; r++)
      if (lists[r].n > s->n)
        status = moth_cpu_contiguous_as(lists[r].u.tensors[s->n],
                                        (MothDType)lists[0].u.tensors[s->n]->dtype, &g->t[r]);
    if (status != MOTH_OK) {
      s->n++;
      goto done;
    }
  }
  moth_parallel_for(s->chunks, moth_cpu_grain(numel / moth_max64(s->chunks, 1)), step_range, s);
done:
  for (uint32_t i = 0; i < s->n; i++)
    for (int r = 0; r < roles; r++) {
      MothTensor *work = s->groups[i].t[r];
      if (work && r != 1 && status == MOTH_OK && work != lists[r].u.tensors[i])
        moth_cpu_copy(lists[r].u.tensors[i], work);
      moth_tensor_release(work);
    }
  moth_free(s->groups, n * sizeof(Group));
  return status;
}

/* A number, or the element of a tensor. */
static MothStatus read_number(MothValue v, double *out) {
  if (v.tag == MOTH_V_TENSOR)
    MOTH_TRY(moth_tensor_item(v.u.t, &v));
  *out = moth_as_double(v);
  return MOTH_OK;
}
/* The factor of the gradients: 1 where there is no tensor. */
static MothStatus read_scale(MothTensor *t, double *scale) {
  return read_number(t ? moth_v_tensor(t) : moth_v_int(1), scale);
}

/* Whether a gradient overflowed: then the step is skipped. */
static MothStatus read_found(MothTensor *t, bool *skip) {
  double found;
  MOTH_TRY(read_number(t ? moth_v_tensor(t) : moth_v_int(0), &found));
  *skip = found != 0;
  return MOTH_OK;
}

MothStatus moth_cpu_sgd_step(MothCall *c) {
  MOTH_UNPACK_SGD_STEP(c)
  double scale, rate;
  bool skip;
  MOTH_TRY(read_found(found_inf, &skip));
  if (skip)
    return MOTH_OK;
  MOTH_TRY(read_scale(grad_scale, &scale));
  MOTH_TRY(read_number(lr, &rate));
  MothSgd h = {rate, momentum, dampening, weight_decay, scale, nesterov, maximize, first};
  MothValue lists[3] = {params, grads, momentum_buffers};
  Step s = {.step.sgd = &h};
  return step_run(&s, lists, momentum != 0 ? 3 : 2);
}

MothStatus moth_cpu_adam_step(MothCall *c) {
  MOTH_UNPACK_ADAM_STEP(c)
  double scale, rate, count;
  bool skip;
  MOTH_TRY(read_found(found_inf, &skip));
  if (skip)
    return MOTH_OK;
  MOTH_TRY(read_scale(grad_scale, &scale));
  MOTH_TRY(read_number(lr, &rate));
  MOTH_TRY(read_number(step, &count));
  MothAdam h = {.lr = rate,
                .beta1 = beta1,
                .beta2 = beta2,
                .eps = eps,
                .weight_decay = weight_decay,
                .grad_scale = scale,
                .step_size = rate / (1 - pow(beta1, count)),
                .root_correction = sqrt(1 - pow(beta2, count)),
                .decoupled = decoupled,
                .amsgrad = amsgrad,
                .maximize = maximize};
  MothValue lists[ROLES] = {params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs};
  Step s = {.step.adam = &h};
  return step_run(&s, lists, amsgrad ? 5 : 4);
}

MothStatus moth_cpu_update(MothCall *c, const MothUpdate *u) {
  double args[MOTH_UPDATE_ARGS] = {0}, numbers[MOTH_UPDATE_NUMBERS];
  for (int i = 0; i < u->nargs; i++) {
    MothValue v = c->args[u->args[i]];
    if (v.tag == MOTH_V_BOOL)
      args[i] = v.u.b;
    else if (v.tag == MOTH_V_NONE || (v.tag == MOTH_V_TENSOR && !v.u.t))
      args[i] = i == u->grad_scale;
    else
      MOTH_TRY(read_number(v, &args[i]));
  }
  if (u->found_inf >= 0 && args[u->found_inf] != 0)
    return MOTH_OK;
  u->numbers(args, numbers);
  MothValue lists[ROLES];
  int roles = 0, variant = 0, bit = 1;
  for (int i = 0; i < u->nlists; i++) {
    MothValue list = c->args[u->lists[i]];
    if (!u->optional[i] || list.n)
      lists[roles++] = list;
    if (u->optional[i]) {
      variant += list.n ? bit : 0;
      bit *= 2;
    }
  }
  Step s = {.step.numbers = numbers, .step.loop = u->first + variant};
  return step_run(&s, lists, roles);
}
