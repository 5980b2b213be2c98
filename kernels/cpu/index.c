/* index_select, index_add and index_copy: whole slices along one dimension, of row-major tensors seen
 * as outer x n x inner. In index_add and index_copy threads share the columns, and each goes through the index
 * in order. An index that mostly counts up (pad, roll, sorted batches) is taken in runs: slices that lie side by side. */
#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/common/scatter.h"
#include "kernels/cpu/rearrange.h"
#include "kernels/cpu/slices.h"
#include "kernels/cpu/util.h"
#include "unpack/index.h"

typedef struct Slices {
  const MothKernels *k;
  int64_t itemsize;
  int64_t n, count, inner; /* size of the dimension, number of indices, elements of a slice */
  int64_t block, blocks;   /* columns of a task, tasks of a slice */
  const int64_t *index;
  int64_t *run, runs; /* NULL, or where each run of the index begins, and `count` behind them */
  char *dst;
  const char *src;
} Slices;

/* Finds the runs, if they are at least LONG slices on average; without memory for them there are none. */
static void find_runs(Slices *s) {
  enum { LONG = 4 };
  int64_t runs = s->count > 0, at = 0;
  for (int64_t i = 1; i < s->count; i++)
    runs += s->index[i] != s->index[i - 1] + 1;
  if (runs == 0 || s->count / runs < LONG)
    return;
  s->run = moth_alloc((size_t)(runs + 1) * sizeof *s->run);
  if (!s->run)
    return;
  s->run[at++] = 0;
  for (int64_t i = 1; i < s->count; i++)
    if (s->index[i] != s->index[i - 1] + 1)
      s->run[at++] = i;
  s->run[at] = s->count;
  s->runs = runs;
}

static void drop_runs(Slices *s) {
  if (s->run)
    moth_free(s->run, (size_t)(s->runs + 1) * sizeof *s->run);
}

/* m slices from the j-th of the index, of one outer. */
static void select_runs(const Slices *s, char *d, const char *a, int64_t j, int64_t m) {
  const int64_t bytes = s->inner * s->itemsize, end = j + m;
  int64_t low = 0, high = s->runs;
  while (high - low > 1) { /* the run that holds j */
    int64_t mid = low + (high - low) / 2;
    if (s->run[mid] <= j)
      low = mid;
    else
      high = mid;
  }
  for (int64_t r = low; j < end; r++) {
    int64_t to = moth_min64(s->run[r + 1], end);
    moth_copy_row(d, a + s->index[j] * bytes, (to - j) * bytes);
    d += (to - j) * bytes;
    j = to;
  }
}

/* Slices of one element have a loop of their own: a call of memcpy costs more than the copy. */
#define SELECT(T)                                                                                  \
  do {                                                                                             \
    T *d = (T *)s->dst + i;                                                                        \
    const T *a = (const T *)s->src + o * s->n;                                                     \
    for (int64_t k = 0; k < m; k++)                                                                \
      d[k] = a[index[k]];                                                                          \
  } while (0)

static void select_range(void *ctx, int64_t begin, int64_t end) {
  const Slices *s = ctx;
  int64_t bytes = s->inner * s->itemsize;
  for (int64_t i = begin; i < end;) {
    int64_t o = i / s->count, j = i % s->count, m = moth_min64(s->count - j, end - i);
    const int64_t *index = s->index + j;
    const char *rows = s->src + o * s->n * bytes;
    if (s->run) {
      select_runs(s, s->dst + i * bytes, rows, j, m);
    } else if (s->inner > 1) {
      for (int64_t k = 0; k < m; k++)
        moth_copy_row(s->dst + (i + k) * bytes, rows + index[k] * bytes, bytes);
    } else if (s->itemsize == 1) {
      SELECT(uint8_t);
    } else if (s->itemsize == 2) {
      SELECT(uint16_t);
    } else if (s->itemsize == 4) {
      SELECT(uint32_t);
    } else {
      SELECT(uint64_t);
    }
    i += m;
  }
}

MothStatus moth_cpu_select_slices(const MothTensor *self, int d, const MothTensor *index,
                                  int64_t index_base, MothTensor *out) {
  MothTensor *in;
  int64_t *positions;
  MOTH_TRY(
      moth_cpu_index(index, index_base, self->ndim ? self->shape[d] : 1, d, "index", &positions));
  MothStatus status = moth_cpu_contiguous(self, &in);
  if (status == MOTH_OK && out->numel) {
    MothSplit p = moth_split(in, d);
    Slices s = {.itemsize = moth_itemsize(in),
                .n = p.n,
                .count = index->numel,
                .inner = p.inner,
                .index = positions,
                .dst = out->data,
                .src = in->data};
    find_runs(&s);
    moth_parallel_for(p.outer * s.count, moth_cpu_grain(s.inner), select_range, &s);
    drop_runs(&s);
  }
  if (status == MOTH_OK)
    moth_tensor_release(in);
  moth_cpu_index_free(index, positions);
  return status;
}

MothStatus moth_cpu_index_select(MothCall *c) {
  MOTH_UNPACK_INDEX_SELECT(c)
  return moth_cpu_select_slices(self, (int)dim, index, index_base, c->results[0].u.t);
}

static void add_range(void *ctx, int64_t begin, int64_t end) {
  const Slices *s = ctx;
  const int64_t first = 0;
  for (int64_t r = 0; s->run && r < (end - begin) * s->runs; r++) {
    int64_t o = begin + r / s->runs, j = s->run[r % s->runs], at = s->index[j];
    int64_t width = (s->run[r % s->runs + 1] - j) * s->inner;
    MothScatter q = {.out = s->dst + (o * s->n + at) * s->inner * s->itemsize,
                     .src = s->src + (o * s->count + j) * s->inner * s->itemsize,
                     .positions = 1,
                     .inner = width,
                     .index = &first,
                     .cols = width};
    s->k->scatter_add_rows(&q);
  }
  for (int64_t i = begin; i < end && !s->run; i++) {
    int64_t o = i / s->blocks, from = i % s->blocks * s->block;
    MothScatter q = {.out = s->dst + (o * s->n * s->inner + from) * s->itemsize,
                     .src = s->src + (o * s->count * s->inner + from) * s->itemsize,
                     .keys = s->n,
                     .positions = s->count,
                     .inner = s->inner,
                     .index = s->index,
                     .cols = moth_min64(s->block, s->inner - from)};
    s->k->scatter_add_rows(&q);
  }
}

static void copy_range(void *ctx, int64_t begin, int64_t end) {
  const Slices *s = ctx;
  for (int64_t i = begin; i < end; i++) {
    int64_t o = i / s->blocks, from = i % s->blocks * s->block;
    size_t bytes = (size_t)(moth_min64(s->block, s->inner - from) * s->itemsize);
    char *d = s->dst + (o * s->n * s->inner + from) * s->itemsize;
    const char *a = s->src + (o * s->count * s->inner + from) * s->itemsize;
    for (int64_t j = 0; j < s->count; j++)
      memcpy(d + s->index[j] * s->inner * s->itemsize, a + j * s->inner * s->itemsize, bytes);
  }
}

static void put_slices(MothTensor *out, const MothTensor *in, int dim, const int64_t *index,
                       int64_t count, MothRange range) {
  MothSplit p = moth_split(out, dim);
  Slices s = {.k = moth_cpu_kernels(out->dtype),
              .itemsize = moth_itemsize(out),
              .n = p.n,
              .count = count,
              .inner = p.inner,
              .block = moth_min64(p.inner, 256),
              .index = index,
              .dst = out->data,
              .src = in->data};
  if (in->numel == 0)
    return;
  s.blocks = (s.inner + s.block - 1) / s.block;
  if (range == add_range && s.blocks == 1)
    find_runs(&s);
  moth_parallel_for(p.outer * s.blocks, moth_cpu_grain(s.count * s.block), range, &s);
  drop_runs(&s);
}

/* Sums of single elements, of a vector. The source may stand still (bincount adds ones). */
typedef struct Elements {
  int64_t *out;
  const int64_t *index, *src; /* positions from `base` on */
  int64_t n, base, stride;    /* elements of the result; of the source */
} Elements;

/* Integers may be added in any order: into tables of the range's own, in turn, so that an addition need not wait for the
 * one before it, which may be to the same element. */
static void count_range(void *ctx, int64_t begin, int64_t end) {
  enum { TABLES = 4 };
  const Elements *e = ctx;
  const int64_t n = e->n, stride = e->stride;
  const size_t bytes = (size_t)n * TABLES * sizeof(int64_t);
  uint64_t *own = moth_alloc(bytes), *out = (uint64_t *)e->out;
  int64_t i = begin;
  if (own) {
    memset(own, 0, bytes);
    for (; i + TABLES <= end; i += TABLES)
      for (int64_t k = 0; k < TABLES; k++)
        own[k * n + e->index[i + k] - e->base] += (uint64_t)e->src[(i + k) * stride];
  }
  for (; i < end; i++)
    __atomic_fetch_add(out + e->index[i] - e->base, (uint64_t)e->src[i * stride], __ATOMIC_RELAXED);
  if (!own)
    return;
  for (int64_t k = 0; k < n; k++)
    __atomic_fetch_add(out + k, own[k] + own[n + k] + own[2 * n + k] + own[3 * n + k],
                       __ATOMIC_RELAXED);
  moth_free(own, bytes);
}

static void add_elements(MothTensor *out, const MothTensor *src, const MothTensor *index,
                         int64_t base) {
  enum { OFTEN = 16 }; /* additions to an element, on average, that are worth tables */
  const int64_t count = index->numel, n = out->numel, stride = src->ndim ? src->stride[0] : 0;
  if (out->dtype == MOTH_INT64 && n > 0 && count / n >= OFTEN) {
    Elements e = {(int64_t *)out->data,
                  (const int64_t *)index->data,
                  (const int64_t *)src->data,
                  n,
                  base,
                  stride};
    moth_parallel_for(count, moth_max64(MOTH_GRAIN, OFTEN * n), count_range, &e);
    return;
  }
  const int64_t from[3] = {-base, 0, 0};
  MothScatter q = {.out = out->data,
                   .src = src->data,
                   .positions = count,
                   .index = (const int64_t *)index->data,
                   .out_stride = 1,
                   .index_stride = 1,
                   .src_stride = stride,
                   .lines = 1,
                   .offsets = from};
  moth_cpu_kernels(out->dtype)->scatter_add_lines(&q);
}

static MothStatus put_run(MothCall *c, bool add) {
  MOTH_UNPACK_INDEX_ADD(c)
  MothTensor *out = c->results[0].u.t, *in = NULL, *sums = NULL, *at = NULL;
  int64_t *positions = NULL;
  const int d = (int)dim;
  const int64_t size = self->ndim ? self->shape[d] : 1;
  MothStatus status;
  MOTH_GO(moth_cpu_sums_as(out, add, &sums));
  if (add && out->ndim <= 1 && source->ndim <= 1 && source->dtype == sums->dtype) {
    MOTH_GO(moth_cpu_index_checked(index, index_base, size, d, "index", &at));
    moth_cpu_copy(sums, self);
    add_elements(sums, source, at, index_base);
    goto sum;
  }
  MOTH_GO(moth_cpu_index(index, index_base, size, d, "index", &positions));
  MOTH_GO(moth_cpu_contiguous_as(source, (MothDType)sums->dtype, &in));
  moth_cpu_copy(sums, self);
  put_slices(sums, in, d, positions, index->numel, add ? add_range : copy_range);
sum:
  if (sums != out)
    moth_cpu_copy(out, sums);
done:
  moth_tensor_release(in);
  moth_tensor_release(at);
  moth_tensor_release(sums);
  moth_cpu_index_free(index, positions);
  return status;
}

MothStatus moth_cpu_index_add(MothCall *c) {
  return put_run(c, true);
}
MothStatus moth_cpu_index_copy(MothCall *c) {
  return put_run(c, false);
}
