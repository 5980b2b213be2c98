/* argmax, argmin, max_dim and min_dim: along one dimension of a row-major tensor, seen as
 * outer x n x inner. A single long row is cut into chunks whose winners are then compared. */
#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/common/reduce.h"
#include "kernels/cpu/util.h"
#include "unpack/reduce.h"

enum { CHUNK = 65536, BLOCK = 256 };

typedef struct Search {
  const MothKernels *k;
  MothSplit split;
  int64_t blocks, itemsize;
  MothReduce all; /* op, in and out; the values of max_dim, or NULL */
} Search;

/* The part from an element of the input and a result on. */
static MothReduce part_of(const Search *s, int64_t element, int64_t result) {
  MothReduce q = s->all;
  q.in += element * s->itemsize;
  q.out.pos += result;
  if (q.out.values)
    q.out.values = (char *)q.out.values + result * s->itemsize;
  return q;
}

/* Along rows of n elements. */
static void search_rows(const Search *s, MothReduce q, int64_t rows, int64_t n) {
  q.rows = rows;
  q.n = n;
  s->k->arg_rows(&q);
}

static void search_range(void *ctx, int64_t begin, int64_t end) {
  const Search *s = ctx;
  int64_t n = s->split.n, inner = s->split.inner;
  if (inner == 1) {
    search_rows(s, part_of(s, begin * n, begin), end - begin, n);
    return;
  }
  for (int64_t i = begin; i < end; i++) {
    int64_t from = i % s->blocks * BLOCK, cols = moth_min64(BLOCK, inner - from);
    int64_t o = i / s->blocks;
    MothReduce q = part_of(s, o * n * inner + from, o * inner + from);
    q.rows = n;
    q.row_stride = inner * s->itemsize;
    q.n = cols;
    s->k->arg_cols(&q);
  }
}

static void search_run(Search *s) {
  s->blocks = (s->split.inner + BLOCK - 1) / BLOCK;
  moth_parallel_for(s->split.outer * s->blocks,
                    moth_cpu_grain(s->split.n * moth_min64(s->split.inner, BLOCK)), search_range,
                    s);
}

/* One row of n elements. */
static MothStatus search_long(Search *s, int64_t n) {
  int64_t chunks = n / CHUNK, last = chunks * CHUNK;
  size_t count = (size_t)chunks + 1, bytes = count * (sizeof(int64_t) + (size_t)s->itemsize);
  int64_t *pos = moth_alloc(bytes), winner;
  if (!pos)
    return moth_no_memory(0);
  char *values = (char *)(pos + count);
  Search part = *s;
  part.split = (MothSplit){chunks, CHUNK, 1};
  part.all.out = (MothReduceOut){.values = values, .pos = pos};
  search_run(&part);
  if (last < n)
    search_rows(s, part_of(&part, last, chunks), 1, n - last);
  MothReduce best = s->all;
  best.in = values;
  best.out.pos = &winner;
  search_rows(s, best, 1, chunks + (last < n));
  s->all.out.pos[0] = winner * CHUNK + pos[winner];
  moth_free(pos, bytes);
  return MOTH_OK;
}

static MothStatus arg_run(const MothTensor *t, int dim, int op, int64_t base, MothTensor *value,
                          MothTensor *index) {
  MothTensor *in;
  if (index->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cpu_contiguous(t, &in));
  Search s = {
      .k = moth_cpu_kernels(in->dtype),
      .split = {1, in->numel, 1},
      .itemsize = moth_itemsize(in),
      .all = {.op = op,
              .in = in->data,
              .out = {.values = value ? value->data : NULL, .pos = (int64_t *)index->data}}};
  if (dim >= 0)
    s.split = moth_split(in, dim);
  MothStatus status = MOTH_OK;
  if (s.split.outer == 1 && s.split.inner == 1 && s.split.n >= 2 * CHUNK)
    status = search_long(&s, s.split.n);
  else
    search_run(&s);
  for (int64_t i = 0; i < index->numel; i++)
    s.all.out.pos[i] += base;
  moth_tensor_release(in);
  return status;
}

static MothStatus argmax(MothCall *c, int op) {
  MOTH_UNPACK_ARGMAX(c)
  int d = dim.tag == MOTH_V_INT ? (int)dim.u.i : -1;
  return arg_run(self, d, op, index_base, NULL, c->results[0].u.t);
}

static MothStatus max_dim(MothCall *c, int op) {
  MOTH_UNPACK_MAX_DIM(c)
  return arg_run(self, (int)dim, op, index_base, c->results[0].u.t, c->results[1].u.t);
}

MothStatus moth_cpu_argmax(MothCall *c) {
  return argmax(c, MOTH_REDUCE_ARGMAX);
}
MothStatus moth_cpu_argmin(MothCall *c) {
  return argmax(c, MOTH_REDUCE_ARGMIN);
}
MothStatus moth_cpu_max_dim(MothCall *c) {
  return max_dim(c, MOTH_REDUCE_ARGMAX);
}
MothStatus moth_cpu_min_dim(MothCall *c) {
  return max_dim(c, MOTH_REDUCE_ARGMIN);
}
