/* Reductions over any set of dimensions of any layout.
 *
 * The layout is that of all devices (kernels/common/reduce.h): typed kernels run along rows or across columns. Only
 * tensors without any stride of one element pay for strides.
 *
 * Work for threads comes from the outputs; where these are few, the reduced space is cut into pieces
 * whose partial results (double or int64) are joined in order. How it is cut depends on the shape only,
 * so that the result has the same bits for any number of threads.
 *
 * var and logsumexp are two passes: the second one takes the mean or the maximum of the first as a
 * shift for each output. */
#include <math.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/common/reduce.h"
#include "kernels/cpu/util.h"
#include "unpack/reduce.h"

enum { TASK = 65536, MAX_TASKS = 64, NARROW = 64, WIDE = 512, COLS = 1024 };

typedef struct Plan {
  const MothKernels *k;
  const char *data;
  int loop; /* MOTH_REDUCE_... */
  const MothReducePartials *partials;
  bool is_float;
  MothReduceLayout layout;
  int nkept, nred;               /* of the layout's dimensions, without the inner ones below */
  MothReduceDim run, width;      /* the innermost reduced and the innermost kept dimension */
  int64_t outer, positions;      /* products of the other kept and reduced ones */
  int64_t blocks, block, pieces; /* cuts of the width, and their size; cuts of what is reduced */
  bool cut_run;                  /* pieces cut the run, else the positions */
  const MothParam *shift;
  MothParam *acc; /* [pieces][outs] */
} Plan;

static void plan_init(Plan *p, const MothTensor *t, uint32_t mask) {
  MothReduceLayout *l = &p->layout;
  moth_reduce_layout(l, t, mask);
  p->k = moth_cpu_kernels(t->dtype);
  p->data = t->data;
  p->is_float = moth_dtype_is_float((MothDType)t->dtype);
  p->shift = NULL;
  MothReduceDim one = {1, moth_itemsize(t), 1};
  p->run = l->nred ? l->red[l->nred - 1] : one;
  p->width = l->nkept ? l->kept[l->nkept - 1] : one;
  p->nred = l->nred - (l->nred > 0);
  p->nkept = l->nkept - (l->nkept > 0);
  p->outer = l->outs / moth_max64(p->width.size, 1);
  p->positions = l->count / moth_max64(p->run.size, 1);
  /* Rows are cut so that a task is worth it, columns at the size of the kernel's accumulators. */
  p->block = l->rows ? moth_max64(1, TASK / 2 / moth_max64(l->count, 1)) : COLS;
  p->block = moth_max64(1, moth_min64(p->block, p->width.size));
  p->blocks = (p->width.size + p->block - 1) / p->block;
  int64_t tasks = p->outer * p->blocks, each = l->count * p->block;
  p->pieces = moth_min64(each / TASK, MAX_TASKS / moth_max64(tasks, 1));
  p->cut_run = p->run.size >= p->positions;
  p->pieces = moth_max64(1, moth_min64(p->pieces, p->cut_run ? p->run.size / 64 : p->positions));
}

/* Down the columns of q. Narrow rows without gaps are folded: many rows are one wide row. */
static void columns(const Plan *p, const MothReduce *q) {
  int64_t n = q->n;
  if (n < NARROW && p->run.in == n * p->width.in && q->rows >= WIDE) {
    int64_t fold = WIDE / n, wide = fold * n, many = q->rows / fold;
    MothParam sums[WIDE], shifts[WIDE] = {{0}};
    p->partials->none(sums, wide);
    for (int64_t i = 0; q->shift && i < wide; i++)
      shifts[i] = q->shift[i % n];
    MothReduce folded = *q;
    folded.rows = many;
    folded.row_stride = fold * p->run.in;
    folded.n = wide;
    folded.shift = q->shift ? shifts : NULL;
    folded.acc = sums;
    p->k->reduce_cols(&folded);
    for (int64_t i = 0; i < wide; i += n)
      p->partials->join(q->acc, sums + i, n);
    MothReduce rest = *q;
    rest.in += many * fold * p->run.in;
    rest.rows -= many * fold;
    p->k->reduce_cols(&rest);
    return;
  }
  p->k->reduce_cols(q);
}

/* One task: the results [from, from + n) of the width at an outer position, over one piece. */
static void reduce_task(const Plan *p, int64_t outer, int64_t from, int64_t n, int64_t piece) {
  int64_t run0 = 0, run1 = p->run.size, pos0 = 0, pos1 = p->positions;
  int64_t all = p->cut_run ? p->run.size : p->positions, each = (all + p->pieces - 1) / p->pieces;
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
    size[i] = p->layout.kept[i].size;
    stride[i] = p->layout.kept[i].in;
  }
  moth_walk_init(&w, p->nkept, size, stride, outer);
  const char *in = p->data + w.at + from * p->width.in + run0 * p->run.in;
  for (int i = 0; i < p->nred; i++) {
    size[i] = p->layout.red[i].size;
    stride[i] = p->layout.red[i].in;
  }
  moth_walk_init(&w, p->nred, size, stride, pos0);
  int64_t at = outer * p->width.size + from;
  MothReduce q = {.op = p->loop,
                  .shift = p->shift ? p->shift + at : NULL,
                  .acc = p->acc + piece * p->layout.outs + at};
  bool rows = p->layout.rows;
  q.rows = rows ? n : run1 - run0;
  q.row_stride = rows ? p->width.in : p->run.in;
  q.n = rows ? run1 - run0 : n;
  q.stride = rows ? p->run.in : p->width.in;
  p->partials->none(q.acc, n);
  for (int64_t pos = pos0; pos < pos1; pos++, moth_walk_next(&w)) {
    q.in = in + w.at;
    if (rows)
      p->k->reduce_rows(&q);
    else
      columns(p, &q);
  }
}

static void reduce_range(void *ctx, int64_t begin, int64_t end) {
  const Plan *p = ctx;
  for (int64_t i = begin; i < end; i++) {
    int64_t piece = i % p->pieces, block = i / p->pieces % p->blocks;
    int64_t from = block * p->block;
    reduce_task(p, i / p->pieces / p->blocks, from, moth_min64(p->block, p->width.size - from),
                piece);
  }
}

static void join_range(void *ctx, int64_t begin, int64_t end) {
  const Plan *p = ctx;
  for (int64_t k = 1; k < p->pieces; k++)
    p->partials->join(p->acc + begin, p->acc + k * p->layout.outs + begin, end - begin);
}

/* One pass: acc[0, outs), in the order of the plan. */
static void reduce_run(Plan *p, int loop, const MothParam *shift, MothParam *acc) {
  p->loop = loop;
  p->partials = &moth_reduce_partials[moth_reduce_joins[loop]][!p->is_float];
  p->shift = shift;
  p->acc = acc;
  int64_t cost = moth_max64(p->layout.count * p->block / p->pieces, 1);
  moth_parallel_for(p->outer * p->blocks * p->pieces, moth_cpu_grain(cost), reduce_range, p);
  if (p->pieces > 1)
    moth_parallel_for(p->layout.outs, moth_cpu_grain(p->pieces), join_range, p);
}

static void plan_store(const Plan *p, MothTensor *out) {
  int64_t size[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS], item = moth_itemsize(out);
  for (int i = 0; i < p->nkept; i++) {
    size[i] = p->layout.kept[i].size;
    stride[i] = p->layout.kept[i].out * item;
  }
  MothWalk w;
  moth_walk_init(&w, p->nkept, size, stride, 0);
  const MothKernels *k = moth_cpu_kernels(out->dtype);
  MothReduce q = {.n = p->width.size, .stride = p->width.out * item};
  for (int64_t o = 0; o < p->outer; o++, moth_walk_next(&w)) {
    q.out.values = out->data + w.at;
    q.acc = p->acc + o * p->width.size;
    k->reduce_store(&q);
  }
}

static MothStatus partials(size_t n, MothParam **out) {
  *out = moth_alloc(n * sizeof(MothParam));
  if (*out)
    return MOTH_OK;
  return moth_no_memory(0);
}

/* prod of complex numbers, in complex128; `mask`: the dimensions that are reduced. */
static MothStatus complex_prod(const MothTensor *t, uint32_t mask, MothTensor *out) {
  MothTensor *in = NULL, *wide = NULL;
  MothStatus status = MOTH_OK;
  int64_t step[MOTH_MAX_DIMS], index[MOTH_MAX_DIMS] = {0}, at = 0, next = 1;
  for (int i = t->ndim - 1; i >= 0; i--) {
    step[i] = mask >> i & 1 ? 0 : next;
    next *= mask >> i & 1 ? 1 : t->shape[i];
  }
  MOTH_GO(moth_cpu_contiguous_as(t, MOTH_COMPLEX128, &in));
  MOTH_GO(moth_tensor_new(out->ndim, out->shape, MOTH_COMPLEX128, out->device, &wide));
  MothComplex128 *o = (void *)wide->data;
  const MothComplex128 *x = (const void *)in->data;
  for (int64_t i = 0; i < wide->numel; i++)
    o[i] = (MothComplex128){1, 0};
  for (int64_t i = 0; i < in->numel; i++) {
    MothComplex128 p = o[at];
    o[at] = (MothComplex128){p.re * x[i].re - p.im * x[i].im, p.re * x[i].im + p.im * x[i].re};
    for (int d = t->ndim - 1; d >= 0; d--) {
      at += step[d];
      if (++index[d] < t->shape[d])
        break;
      at -= step[d] * t->shape[d];
      index[d] = 0;
    }
  }
  moth_cpu_copy(out, wide);
done:
  moth_tensor_release(in);
  moth_tensor_release(wide);
  return status;
}

/* Every reduction whose join is a simple one, by its record. */
MothStatus moth_cpu_reduce(MothCall *c) {
  const MothReduction *r = c->op->reduction;
  const MothTensor *t = c->args[0].u.t;
  MothTensor *out = c->results[0].u.t, *cast = NULL;
  if (moth_dtype_is_complex((MothDType)out->dtype))
    return complex_prod(t, moth_reduce_mask(c->args[1], t->ndim), out);
  bool truth = r->join == MOTH_JOIN_ANY || r->join == MOTH_JOIN_ALL;
  if (!truth && moth_reduce_converts((MothDType)t->dtype, (MothDType)out->dtype)) {
    MOTH_TRY(moth_cpu_contiguous_as(t, (MothDType)out->dtype, &cast));
    t = cast;
  }
  Plan p;
  plan_init(&p, t, moth_reduce_mask(c->args[1], t->ndim));
  MothParam few[256], *acc = few;
  size_t n = (size_t)(p.layout.outs * p.pieces);
  MothStatus status = MOTH_OK;
  if (n > 256)
    MOTH_GO(partials(n, &acc));
  reduce_run(&p, r->loop, NULL, acc);
  for (int64_t i = 0; r->finish && i < p.layout.outs; i++)
    acc[i].d = r->finish(acc[i].d, (double)p.layout.count);
  plan_store(&p, out);
  if (acc != few)
    moth_free(acc, n * sizeof(MothParam));
done:
  moth_tensor_release(cast);
  return status;
}

MothStatus moth_cpu_var(MothCall *c) {
  MOTH_UNPACK_VAR(c)
  Plan p;
  plan_init(&p, self, moth_reduce_mask(dim, self->ndim));
  size_t n = (size_t)(p.layout.outs * p.pieces);
  MothParam *mean, *acc;
  MOTH_TRY(partials(2 * n, &mean));
  acc = mean + n;
  double count = (double)p.layout.count, divisor = count - correction;
  reduce_run(&p, MOTH_REDUCE_SUM, NULL, mean);
  for (int64_t i = 0; i < p.layout.outs; i++)
    mean[i].d /= count;
  reduce_run(&p, MOTH_REDUCE_SQDEV, mean, acc);
  for (int64_t i = 0; i < p.layout.outs; i++) {
    /* The kernel subtracts the mean as rounded to its compute type: what that adds is known. */
    double rest = self->dtype == MOTH_FLOAT64 ? 0 : mean[i].d - (double)(float)mean[i].d;
    double sum = acc[i].d - count * rest * rest;
    acc[i].d = divisor > 0 ? (sum < 0 ? 0 : sum) / divisor : NAN;
  }
  plan_store(&p, c->results[0].u.t);
  moth_free(mean, 2 * n * sizeof(MothParam));
  return MOTH_OK;
}

MothStatus moth_cpu_logsumexp(MothCall *c) {
  MOTH_UNPACK_LOGSUMEXP(c)
  Plan p;
  plan_init(&p, self, moth_reduce_mask(dim, self->ndim));
  size_t n = (size_t)(p.layout.outs * p.pieces);
  MothParam *max, *acc;
  MOTH_TRY(partials(2 * n, &max));
  acc = max + n;
  reduce_run(&p, MOTH_REDUCE_MAX, NULL, max);
  for (int64_t i = 0; i < p.layout.outs; i++)
    if (!isfinite(max[i].d))
      max[i].d = 0;
  reduce_run(&p, MOTH_REDUCE_SUMEXP, max, acc);
  for (int64_t i = 0; i < p.layout.outs; i++)
    acc[i].d = log(acc[i].d) + max[i].d;
  plan_store(&p, c->results[0].u.t);
  moth_free(max, 2 * n * sizeof(MothParam));
  return MOTH_OK;
}
