/* Reductions over any set of dimensions of any layout.
 *
 * The dimensions of the input are split into kept and reduced ones, each ordered by stride and merged
 * where they step evenly. If the smallest step belongs to a reduced dimension, the typed kernel runs
 * along it ("rows": one accumulator at a time); else it runs across the innermost kept dimension
 * ("columns": many accumulators at a time). Either way the inner loop walks memory in order, and only
 * tensors without any step of one element pay for strides.
 *
 * Work for threads comes from the outputs; where these are few, the reduced space is cut into pieces
 * whose partial results (double or int64) are joined in order. How it is cut depends on the shape only,
 * so that the result has the same bits for any number of threads.
 *
 * var and logsumexp are two passes: the second one takes the mean or the maximum of the first as a
 * shift for each output. */
#include "kernels/cpu/reduce.h"

#include <math.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack.h"

enum { TASK = 65536, MAX_TASKS = 64, NARROW = 64, WIDE = 512, COLS = 1024 };

typedef struct Dim {
  int64_t size, in, out; /* strides: in the input (bytes), in the output (elements) */
} Dim;

typedef struct Plan {
  const MothKernels *k;
  const char *data;
  int op;
  int64_t itemsize;
  bool is_float, rows;
  int nkept, nred; /* without the inner dimensions below */
  Dim kept[MOTH_MAX_DIMS], red[MOTH_MAX_DIMS];
  int64_t run, run_step;     /* the innermost reduced dimension */
  int64_t width, width_step; /* the innermost kept dimension */
  int64_t width_out;
  int64_t outer, positions; /* products of kept[] and red[] */
  int64_t outs, count;      /* numbers of results, and of elements for each */
  int64_t blocks, block;    /* cuts of the width, and their size */
  int64_t pieces;
  bool cut_run; /* pieces cut the run, else the positions */
  const MothParam *shift;
  MothParam *acc; /* [pieces][outs] */
} Plan;

static void add_dim(Dim *dims, int *n, Dim d) {
  int i = (*n)++;
  int64_t step = d.in ? d.in : INT64_MAX; /* expanded dimensions go outside */
  for (; i > 0 && (dims[i - 1].in ? dims[i - 1].in : INT64_MAX) < step; i--)
    dims[i] = dims[i - 1];
  dims[i] = d;
}

static int merge_dims(Dim *dims, int n) {
  int m = 0;
  for (int i = 1; i < n; i++) {
    Dim *a = &dims[m], b = dims[i];
    if (a->in == b.in * b.size && a->out == b.out * b.size)
      *a = (Dim){a->size * b.size, b.in, b.out};
    else
      dims[++m] = b;
  }
  return n ? m + 1 : 0;
}

static void plan_init(Plan *p, const MothTensor *t, uint32_t mask) {
  p->k = moth_cpu_kernels(t->dtype);
  p->data = t->data;
  p->itemsize = moth_itemsize(t);
  p->is_float = moth_dtype_is_float((MothDType)t->dtype);
  p->shift = NULL;
  p->nkept = p->nred = 0;
  p->outs = p->count = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    int64_t size = t->shape[i], in = t->stride[i] * p->itemsize;
    bool reduced = mask & 1u << i;
    if (size != 1)
      add_dim(reduced ? p->red : p->kept, reduced ? &p->nred : &p->nkept,
              (Dim){size, in, reduced ? 0 : p->outs});
    *(reduced ? &p->count : &p->outs) *= size;
  }
  p->nred = merge_dims(p->red, p->nred);
  p->nkept = merge_dims(p->kept, p->nkept);
  Dim one = {1, p->itemsize, 1};
  Dim run = p->nred ? p->red[p->nred - 1] : one, width = p->nkept ? p->kept[p->nkept - 1] : one;
  p->rows = p->nred && (!p->nkept || (run.in && (run.in < width.in || !width.in)));
  p->nred -= p->nred > 0;
  p->nkept -= p->nkept > 0;
  p->run = run.size;
  p->run_step = run.in;
  p->width = width.size;
  p->width_step = width.in;
  p->width_out = width.out;
  p->outer = p->outs / moth_max64(p->width, 1);
  p->positions = p->count / moth_max64(p->run, 1);
  /* Rows are cut so that a task is worth it, columns at the size of the kernel's accumulators. */
  p->block = p->rows ? moth_max64(1, TASK / 2 / moth_max64(p->count, 1)) : COLS;
  p->block = moth_max64(1, moth_min64(p->block, p->width));
  p->blocks = (p->width + p->block - 1) / p->block;
  int64_t tasks = p->outer * p->blocks, each = p->count * p->block;
  p->pieces = moth_min64(each / TASK, MAX_TASKS / moth_max64(tasks, 1));
  p->cut_run = p->run >= p->positions;
  p->pieces = moth_max64(1, moth_min64(p->pieces, p->cut_run ? p->run / 64 : p->positions));
}

/* `rows` rows of n columns into acc. Narrow rows without gaps are folded: many rows are one wide row. */
static void columns(const Plan *p, const char *in, int64_t rows, int64_t n, const MothParam *shift,
                    MothParam *acc) {
  if (n < NARROW && p->run_step == n * p->width_step && rows >= WIDE) {
    int64_t fold = WIDE / n, wide = fold * n, many = rows / fold;
    MothParam sums[WIDE], shifts[WIDE] = {{0}};
    for (int64_t i = 0; i < wide; i++) {
      sums[i] = moth_reduce_identity(p->op, p->is_float);
      if (shift)
        shifts[i] = shift[i % n];
    }
    p->k->reduce_cols(p->op, in, fold * p->run_step, many, p->width_step, wide,
                      shift ? shifts : NULL, sums);
    for (int64_t i = 0; i < wide; i++)
      moth_reduce_join(p->op, p->is_float, &acc[i % n], sums[i]);
    in += many * fold * p->run_step;
    rows -= many * fold;
  }
  p->k->reduce_cols(p->op, in, p->run_step, rows, p->width_step, n, shift, acc);
}

/* One task: the results [from, from + n) of the width at an outer position, over one piece. */
static void reduce_task(const Plan *p, int64_t outer, int64_t from, int64_t n, int64_t piece) {
  int64_t run0 = 0, run1 = p->run, pos0 = 0, pos1 = p->positions;
  int64_t all = p->cut_run ? p->run : p->positions, each = (all + p->pieces - 1) / p->pieces;
  int64_t begin = moth_min64(piece * each, all), end = moth_min64(begin + each, all);
  if (p->cut_run) {
    run0 = begin;
    run1 = end;
  } else {
    pos0 = begin;
    pos1 = end;
  }
  int64_t size[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  MothWalk w;
  for (int i = 0; i < p->nkept; i++) {
    size[i] = p->kept[i].size;
    stride[i] = p->kept[i].in;
  }
  moth_walk_init(&w, p->nkept, size, stride, outer);
  const char *in = p->data + w.at + from * p->width_step + run0 * p->run_step;
  for (int i = 0; i < p->nred; i++) {
    size[i] = p->red[i].size;
    stride[i] = p->red[i].in;
  }
  moth_walk_init(&w, p->nred, size, stride, pos0);
  int64_t at = outer * p->width + from;
  const MothParam *shift = p->shift ? p->shift + at : NULL;
  MothParam *acc = p->acc + piece * p->outs + at;
  for (int64_t i = 0; i < n; i++)
    acc[i] = moth_reduce_identity(p->op, p->is_float);
  for (int64_t pos = pos0; pos < pos1; pos++, moth_walk_next(&w)) {
    if (p->rows)
      p->k->reduce_rows(p->op, in + w.at, p->width_step, n, p->run_step, run1 - run0, shift, acc);
    else
      columns(p, in + w.at, run1 - run0, n, shift, acc);
  }
}

static void reduce_range(void *ctx, int64_t begin, int64_t end) {
  const Plan *p = ctx;
  for (int64_t i = begin; i < end; i++) {
    int64_t piece = i % p->pieces, block = i / p->pieces % p->blocks;
    int64_t from = block * p->block;
    reduce_task(p, i / p->pieces / p->blocks, from, moth_min64(p->block, p->width - from), piece);
  }
}

static void join_range(void *ctx, int64_t begin, int64_t end) {
  const Plan *p = ctx;
  for (int64_t k = 1; k < p->pieces; k++)
    for (int64_t i = begin; i < end; i++)
      moth_reduce_join(p->op, p->is_float, &p->acc[i], p->acc[k * p->outs + i]);
}

/* One pass: acc[0, outs), in the order of the plan. */
static void reduce_run(Plan *p, int op, const MothParam *shift, MothParam *acc) {
  p->op = op;
  p->shift = shift;
  p->acc = acc;
  int64_t cost = moth_max64(p->count * p->block / p->pieces, 1);
  moth_parallel_for(p->outer * p->blocks * p->pieces, moth_cpu_grain(cost), reduce_range, p);
  if (p->pieces > 1)
    moth_parallel_for(p->outs, moth_cpu_grain(p->pieces), join_range, p);
}

static void plan_store(const Plan *p, MothTensor *out, double divisor) {
  int64_t size[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS], item = moth_itemsize(out);
  for (int i = 0; i < p->nkept; i++) {
    size[i] = p->kept[i].size;
    stride[i] = p->kept[i].out * item;
  }
  MothWalk w;
  moth_walk_init(&w, p->nkept, size, stride, 0);
  const MothKernels *k = moth_cpu_kernels(out->dtype);
  for (int64_t o = 0; o < p->outer; o++, moth_walk_next(&w))
    k->reduce_store(out->data + w.at, p->width_out * item, p->acc + o * p->width, p->width,
                    divisor);
}

static uint32_t mask_of(MothValue dims, int ndim) {
  uint32_t mask = 0;
  for (uint32_t i = 0; i < dims.n; i++)
    mask |= 1u << dims.u.ints[i];
  return mask ? mask : (1u << ndim) - 1;
}

static MothStatus partials(size_t n, MothParam **out) {
  *out = moth_alloc(n * sizeof(MothParam));
  if (*out)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu partial results", n);
}

static MothStatus reduce_simple(MothCall *c, int op, bool mean) {
  const MothTensor *t = c->args[0].u.t;
  MothTensor *out = c->results[0].u.t, *cast = NULL;
  /* Sums are double or int64 until the end: only a change of class or a wider float must come first. */
  bool any = op == MOTH_REDUCE_ANY || op == MOTH_REDUCE_ALL;
  bool in_float = moth_dtype_is_float((MothDType)t->dtype);
  if (!any && t->dtype != out->dtype &&
      (in_float != moth_dtype_is_float((MothDType)out->dtype) || out->dtype == MOTH_FLOAT64 ||
       out->dtype == MOTH_BOOL)) {
    MOTH_TRY(moth_cpu_contiguous_as(t, (MothDType)out->dtype, &cast));
    t = cast;
  }
  Plan p;
  plan_init(&p, t, mask_of(c->args[1], t->ndim));
  MothParam few[256], *acc = few;
  size_t n = (size_t)(p.outs * p.pieces);
  MothStatus status = MOTH_OK;
  if (n > 256)
    MOTH_GO(partials(n, &acc));
  reduce_run(&p, op, NULL, acc);
  plan_store(&p, out, mean ? (double)p.count : 1);
  if (acc != few)
    moth_free(acc, n * sizeof(MothParam));
done:
  moth_tensor_release(cast);
  return status;
}

MothStatus moth_cpu_sum(MothCall *c) {
  return reduce_simple(c, MOTH_REDUCE_SUM, false);
}
MothStatus moth_cpu_mean(MothCall *c) {
  return reduce_simple(c, MOTH_REDUCE_SUM, true);
}
MothStatus moth_cpu_prod(MothCall *c) {
  return reduce_simple(c, MOTH_REDUCE_PROD, false);
}
MothStatus moth_cpu_amax(MothCall *c) {
  return reduce_simple(c, MOTH_REDUCE_MAX, false);
}
MothStatus moth_cpu_amin(MothCall *c) {
  return reduce_simple(c, MOTH_REDUCE_MIN, false);
}
MothStatus moth_cpu_any(MothCall *c) {
  return reduce_simple(c, MOTH_REDUCE_ANY, false);
}
MothStatus moth_cpu_all(MothCall *c) {
  return reduce_simple(c, MOTH_REDUCE_ALL, false);
}

MothStatus moth_cpu_var(MothCall *c) {
  MOTH_UNPACK_VAR(c)
  Plan p;
  plan_init(&p, self, mask_of(dim, self->ndim));
  size_t n = (size_t)(p.outs * p.pieces);
  MothParam *mean, *acc;
  MOTH_TRY(partials(2 * n, &mean));
  acc = mean + n;
  double count = (double)p.count, divisor = (double)(p.count - correction);
  reduce_run(&p, MOTH_REDUCE_SUM, NULL, mean);
  for (int64_t i = 0; i < p.outs; i++)
    mean[i].d /= count;
  reduce_run(&p, MOTH_REDUCE_SQDEV, mean, acc);
  for (int64_t i = 0; i < p.outs; i++) {
    /* The kernel subtracts the mean as rounded to its compute type: what that adds is known. */
    double rest = self->dtype == MOTH_FLOAT64 ? 0 : mean[i].d - (double)(float)mean[i].d;
    double sum = acc[i].d - count * rest * rest;
    acc[i].d = divisor > 0 ? (sum < 0 ? 0 : sum) / divisor : NAN;
  }
  plan_store(&p, c->results[0].u.t, 1);
  moth_free(mean, 2 * n * sizeof(MothParam));
  return MOTH_OK;
}

MothStatus moth_cpu_logsumexp(MothCall *c) {
  MOTH_UNPACK_LOGSUMEXP(c)
  Plan p;
  plan_init(&p, self, mask_of(dim, self->ndim));
  size_t n = (size_t)(p.outs * p.pieces);
  MothParam *max, *acc;
  MOTH_TRY(partials(2 * n, &max));
  acc = max + n;
  reduce_run(&p, MOTH_REDUCE_MAX, NULL, max);
  for (int64_t i = 0; i < p.outs; i++)
    if (!isfinite(max[i].d))
      max[i].d = 0;
  reduce_run(&p, MOTH_REDUCE_SUMEXP, max, acc);
  for (int64_t i = 0; i < p.outs; i++)
    acc[i].d = log(acc[i].d) + max[i].d;
  plan_store(&p, c->results[0].u.t, 1);
  moth_free(max, 2 * n * sizeof(MothParam));
  return MOTH_OK;
}
