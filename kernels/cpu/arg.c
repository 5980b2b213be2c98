/* argmax, argmin, max_dim and min_dim: along one dimension of a row-major tensor, seen as
 * outer x n x inner. A single long row is cut into chunks whose winners are then compared. */
#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack/reduce.h"

enum { CHUNK = 65536, BLOCK = 256 };

typedef struct Search {
  const MothKernels *k;
  MothSplit split;
  int64_t blocks, itemsize;
  bool min;
  const char *in;
  char *out;    /* the values of max_dim, or NULL */
  int64_t *pos; /* positions */
} Search;

static void search_range(void *ctx, int64_t begin, int64_t end) {
  const Search *s = ctx;
  int64_t n = s->split.n, inner = s->split.inner;
  if (inner == 1) {
    const char *in = s->in + begin * n * s->itemsize;
    s->k->arg_rows(s->min, in, end - begin, n, s->pos + begin,
                   s->out ? s->out + begin * s->itemsize : NULL);
    return;
  }
  for (int64_t i = begin; i < end; i++) {
    int64_t from = i % s->blocks * BLOCK, cols = moth_min64(BLOCK, inner - from);
    int64_t o = i / s->blocks, at = o * n * inner + from;
    const char *in = s->in + at * s->itemsize;
    s->k->arg_cols(s->min, in, n, inner, cols, s->pos + o * inner + from,
                   s->out ? s->out + (o * inner + from) * s->itemsize : NULL);
  }
}

static void search_run(Search *s) {
  s->blocks = (s->split.inner + BLOCK - 1) / BLOCK;
  moth_parallel_for(s->split.outer * s->blocks,
                    moth_cpu_grain(s->split.n * moth_min64(s->split.inner, BLOCK)), search_range,
                    s);
}

/* One row of n elements: the position in s->pos[0] and, if asked for, the value. */
static MothStatus search_long(Search *s, int64_t n) {
  int64_t chunks = n / CHUNK, last = chunks * CHUNK;
  size_t count = (size_t)chunks + 1, bytes = count * (sizeof(int64_t) + (size_t)s->itemsize);
  int64_t *pos = moth_alloc(bytes), winner;
  if (!pos)
    return moth_fail(MOTH_ERR_MEMORY, "out of memory: %zu partial results", count);
  char *values = (char *)(pos + count);
  Search part = *s;
  part.split = (MothSplit){chunks, CHUNK, 1};
  part.pos = pos;
  part.out = values;
  search_run(&part);
  if (last < n)
    s->k->arg_rows(s->min, s->in + last * s->itemsize, 1, n - last, pos + chunks,
                   values + chunks * s->itemsize);
  s->k->arg_rows(s->min, values, 1, chunks + (last < n), &winner, s->out);
  s->pos[0] = winner * CHUNK + pos[winner];
  moth_free(pos, bytes);
  return MOTH_OK;
}

static MothStatus arg_run(const MothTensor *t, int dim, bool min, int64_t base, MothTensor *value,
                          MothTensor *index) {
  MothTensor *in;
  if (index->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cpu_contiguous(t, &in));
  Search s = {.k = moth_cpu_kernels(in->dtype),
              .split = {1, in->numel, 1},
              .itemsize = moth_itemsize(in),
              .min = min,
              .in = in->data,
              .out = value ? value->data : NULL,
              .pos = (int64_t *)index->data};
  if (dim >= 0)
    s.split = moth_split(in, dim);
  MothStatus status = MOTH_OK;
  if (s.split.outer == 1 && s.split.inner == 1 && s.split.n >= 2 * CHUNK)
    status = search_long(&s, s.split.n);
  else
    search_run(&s);
  for (int64_t i = 0; i < index->numel; i++)
    s.pos[i] += base;
  moth_tensor_release(in);
  return status;
}

static MothStatus argmax(MothCall *c, bool min) {
  MOTH_UNPACK_ARGMAX(c)
  int d = dim.tag == MOTH_V_INT ? (int)dim.u.i : -1;
  return arg_run(self, d, min, index_base, NULL, c->results[0].u.t);
}

static MothStatus max_dim(MothCall *c, bool min) {
  MOTH_UNPACK_MAX_DIM(c)
  return arg_run(self, (int)dim, min, index_base, c->results[0].u.t, c->results[1].u.t);
}

MothStatus moth_cpu_argmax(MothCall *c) {
  return argmax(c, false);
}
MothStatus moth_cpu_argmin(MothCall *c) {
  return argmax(c, true);
}
MothStatus moth_cpu_max_dim(MothCall *c) {
  return max_dim(c, false);
}
MothStatus moth_cpu_min_dim(MothCall *c) {
  return max_dim(c, true);
}
