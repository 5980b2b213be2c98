/* linear_int4: weights of 4 bits, activations made int8 by group. Note [int4 blocks] in int8.h. */
#include "core/alloc.h"
#include "core/parallel.h"
#include "dispatch/eval.h"
#include "kernels/cpu/int8.h"
#include "kernels/cpu/util.h"
#include "unpack/quantization.h"

enum { INPUT, WEIGHT, SCALE, BIAS, OUT, TENSORS };
typedef struct Job {
  MothTensor *t[TENSORS]; /* owned */
  MothInt4 p;
  const MothKernels *k;
  bool dots;
} Job;

static void quantize_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  MothInt4 p = j->p;
  p.from = begin;
  p.to = end;
  j->k->int4_quantize(&p);
}

static void columns_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  MothInt4 p = j->p;
  p.from = 4 * begin;
  p.to = moth_min64(4 * end, p.n);
  if (j->dots)
    moth_int4_dots(&p);
  else
    j->k->int4_columns(&p);
}

static MothStatus run(Job *j, int64_t real) {
  MothInt4 *p = &j->p;
  int64_t blocks = p->rows * p->blocks;
  size_t values = (size_t)(blocks * MOTH_INT4_BLOCK), lanes = (size_t)(blocks * MOTH_INT4_LANES);
  size_t bytes = values + lanes * (sizeof(int32_t) + (size_t)real) + 64;
  char *work = moth_alloc(bytes);
  if (!work)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu bytes of workspace", bytes);
  p->values = (int8_t *)work;
  p->scales = work + values;
  p->starts = (int32_t *)(void *)(work + values + lanes * (size_t)real);
  moth_parallel_for(p->rows, moth_cpu_grain(4 * p->k), quantize_range, j);
  moth_parallel_for((p->n + 3) / 4, moth_cpu_flops_grain(2.0 * (double)(p->rows * p->k)),
                    columns_range, j);
  moth_free(work, bytes);
  return MOTH_OK;
}

static MothStatus prepare(Job *j, MothCall *c, MothDType dtype) {
  MothTensor *out = c->results[0].u.t;
  MOTH_TRY(moth_cpu_contiguous_as(c->args[0].u.t, dtype, &j->t[INPUT]));
  MOTH_TRY(moth_cpu_contiguous(c->args[1].u.t, &j->t[WEIGHT]));
  MOTH_TRY(moth_cpu_contiguous_as(c->args[2].u.t, dtype, &j->t[SCALE]));
  if (c->args[3].tag == MOTH_V_TENSOR)
    MOTH_TRY(moth_cpu_contiguous_as(c->args[3].u.t, dtype, &j->t[BIAS]));
  if (out->dtype != dtype)
    return moth_tensor_new(out->ndim, out->shape, dtype, c->device, &j->t[OUT]);
  moth_tensor_retain(out);
  j->t[OUT] = out;
  return MOTH_OK;
}

MothStatus moth_cpu_linear_int4(MothCall *c) {
  MOTH_UNPACK_LINEAR_INT4(c)
  MothTensor *out = c->results[0].u.t;
  if (out->numel == 0)
    return MOTH_OK;
  MothDType dtype = moth_working_dtype(out);
  Job j = {.k = moth_cpu_kernels((int)dtype), .dots = moth_int8_dots() && dtype == MOTH_FLOAT32};
  MothStatus s = prepare(&j, c, dtype);
  if (s == MOTH_OK) {
    int64_t k = input->shape[input->ndim - 1];
    j.p = (MothInt4){.rows = out->numel / weight->shape[0],
                     .n = weight->shape[0],
                     .k = k,
                     .group = group,
                     .groups = scale->shape[1],
                     .blocks = (k + MOTH_INT4_BLOCK - 1) / MOTH_INT4_BLOCK,
                     .in = j.t[INPUT]->data,
                     .weight = (const uint8_t *)j.t[WEIGHT]->data,
                     .weight_row = weight->shape[1],
                     .scale = j.t[SCALE]->data,
                     .bias = j.t[BIAS] ? j.t[BIAS]->data : NULL,
                     .out = j.t[OUT]->data};
    s = run(&j, moth_dtype_size(dtype));
  }
  if (s == MOTH_OK && j.t[OUT] != out)
    moth_cpu_copy(out, j.t[OUT]);
  for (int i = 0; i < TENSORS; i++)
    if (j.t[i])
      moth_tensor_release(j.t[i]);
  return s;
}
