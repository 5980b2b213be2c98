/* unpack_blocks and linear_blocks: weights in the blocks of GGUF files. Note [Products with blocks] in blocks.h. */
#include "kernels/cpu/blocks.h"
#include "core/alloc.h"
#include "core/parallel.h"
#include "dispatch/eval.h"
#include "kernels/cpu/int8.h"
#include "kernels/cpu/util.h"
#include "unpack/quantization.h"

enum { ROWS = 256 }; /* of activations that are made int8 at a time: so much memory is taken */

enum { INPUT, WEIGHT, BIAS, OUT, TENSORS };
typedef struct Job {
  MothTensor *t[TENSORS]; /* owned */
  MothBlocks p;
  const MothKernels *k;
} Job;

static void quantize_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  MothBlocks p = j->p;
  p.from = begin;
  p.to = end;
  j->k->blocks_quantize(&p);
}

static void columns_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  MothBlocks p = j->p;
  p.from = MOTH_BLOCKS_COLUMNS * begin;
  p.to = moth_min64(MOTH_BLOCKS_COLUMNS * end, p.n);
  j->k->blocks_columns(&p);
}

static void unpack_range(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  MothBlocks p = j->p;
  p.from = begin;
  p.to = end;
  j->k->blocks_unpack(&p);
}

/* Whether groups are lanes, of AVX-512 VNNI. */
static bool by_lanes(MothDType real) {
#ifdef __x86_64__
  return moth_int8_dots() && real == MOTH_FLOAT32;
#else
  (void)real;
  return false;
#endif
}

/* A result of `dtype` for out: itself, or a new tensor. */
static MothStatus result_as(const MothCall *c, MothTensor *out, MothDType dtype, MothTensor **t) {
  if (out->dtype != dtype)
    return moth_tensor_new(out->ndim, out->shape, dtype, c->device, t);
  moth_tensor_retain(out);
  *t = out;
  return MOTH_OK;
}

static MothStatus finish(Job *j, MothTensor *out, MothStatus s) {
  if (s == MOTH_OK && j->t[OUT] != out)
    moth_cpu_copy(out, j->t[OUT]);
  for (int i = 0; i < TENSORS; i++)
    if (j->t[i])
      moth_tensor_release(j->t[i]);
  return s;
}

MothStatus moth_cpu_unpack_blocks(MothCall *c) {
  MOTH_UNPACK_UNPACK_BLOCKS(c)
  MothTensor *out = c->results[0].u.t;
  if (out->numel == 0)
    return MOTH_OK;
  MothDType real = moth_working_dtype(out);
  Job j = {.k = moth_cpu_kernels((int)real)};
  MothStatus s = moth_cpu_contiguous(weight, &j.t[WEIGHT]);
  if (s == MOTH_OK)
    s = result_as(c, out, real, &j.t[OUT]);
  if (s == MOTH_OK) {
    j.p = (MothBlocks){.type = type,
                       .k = out->shape[out->ndim - 1],
                       .weight = (const uint8_t *)j.t[WEIGHT]->data,
                       .weight_row = weight->shape[weight->ndim - 1],
                       .out = j.t[OUT]->data};
    moth_parallel_for(out->numel / j.p.k, moth_cpu_grain(j.p.k), unpack_range, &j);
  }
  return finish(&j, out, s);
}

/* Up to ROWS rows from `row` on. */
static void run(Job *j, int64_t row, int64_t rows, int64_t real) {
  MothBlocks all = j->p, *p = &j->p;
  p->rows = rows;
  p->in = (const char *)all.in + row * all.k * real;
  p->out = (char *)all.out + row * all.out_row * real;
  moth_parallel_for(rows, moth_cpu_grain(4 * p->k), quantize_range, j);
  moth_parallel_for((p->n + MOTH_BLOCKS_COLUMNS - 1) / MOTH_BLOCKS_COLUMNS,
                    moth_cpu_flops_grain(2.0 * (double)((rows + 2) * p->k)), columns_range, j);
  *p = all;
}

static MothStatus run_all(Job *j, int64_t real) {
  MothBlocks *p = &j->p;
  int64_t rows = p->rows;
  size_t spans = (size_t)((rows < ROWS ? rows : ROWS) * p->spans);
  size_t bytes = spans * (MOTH_BLOCKS_SPAN + 2 * MOTH_BLOCKS_GROUPS * (size_t)real);
  char *work = moth_alloc(bytes);
  if (!work)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu bytes of workspace", bytes);
  p->values = (int8_t *)work;
  p->scales = work + spans * MOTH_BLOCKS_SPAN;
  p->sums = work + spans * (MOTH_BLOCKS_SPAN + MOTH_BLOCKS_GROUPS * (size_t)real);
  for (int64_t r = 0; r < rows; r += ROWS)
    run(j, r, rows - r < ROWS ? rows - r : ROWS, real);
  moth_free(work, bytes);
  return MOTH_OK;
}

MothStatus moth_cpu_linear_blocks(MothCall *c) {
  MOTH_UNPACK_LINEAR_BLOCKS(c)
  MothTensor *out = c->results[0].u.t;
  if (out->numel == 0)
    return MOTH_OK;
  MothDType real = moth_working_dtype(out);
  Job j = {.k = moth_cpu_kernels((int)real)};
  MothStatus s = moth_cpu_contiguous_as(input, real, &j.t[INPUT]);
  if (s == MOTH_OK)
    s = moth_cpu_contiguous(weight, &j.t[WEIGHT]);
  if (s == MOTH_OK && c->args[3].tag == MOTH_V_TENSOR)
    s = moth_cpu_contiguous_as(bias, real, &j.t[BIAS]);
  if (s == MOTH_OK)
    s = result_as(c, out, real, &j.t[OUT]);
  if (s == MOTH_OK) {
    int64_t k = input->shape[input->ndim - 1], n = weight->shape[0];
    j.p = (MothBlocks){.type = type,
                       .lanes = by_lanes(real),
                       .rows = out->numel / n,
                       .n = n,
                       .k = k,
                       .spans = (k + MOTH_BLOCKS_SPAN - 1) / MOTH_BLOCKS_SPAN,
                       .in = j.t[INPUT]->data,
                       .weight = (const uint8_t *)j.t[WEIGHT]->data,
                       .weight_row = weight->shape[1],
                       .bias = j.t[BIAS] ? j.t[BIAS]->data : NULL,
                       .out = j.t[OUT]->data,
                       .out_row = n};
    s = run_all(&j, moth_dtype_size(real));
  }
  return finish(&j, out, s);
}
