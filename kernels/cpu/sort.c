/* sort and topk along rows. Elements become unsigned keys (kernels/cpu/typed/sort.h); pairs of key and position are sorted:
 * short rows by counting, others by a stable radix sort that skips digits in which all keys agree. topk with a small k keeps
 * the first k so far in order. With a larger k it collects candidates and, when they are twice as many as asked for, keeps
 * the first k of them: a few steps per element for input in any order.
 * Keys of at most 32 bits share a word with their position: half of the memory, and one comparison. */
#include "kernels/cpu/sort.h"

#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack/sort.h"

typedef struct Sort {
  const MothKernels *kernels;
  const char *in;
  char *values;
  int64_t *pos;
  MothSplit split; /* of the input */
  int64_t k, item, base;
  bool descending, part;
  bool failed;
} Sort;

/* Elements that are sorted by insertion; keys that are made at once; elements between checks for Ctrl-C. */
enum { FEW = 48, KEYS = 256, LOOK = 1 << 20 };

/* The end of the next LOOK elements from i on; or i after an interrupt: the caller then returns, and results are
 * undefined. */
static int64_t stretch(int64_t i, int64_t n) {
  return moth_stopped() ? i : moth_min64(n, i + LOOK);
}

/* Keys of n elements of a row, from element i on. */
static void keys_of(const Sort *s, const char *row, int64_t i, int64_t n, uint64_t *keys) {
  int64_t stride = s->split.inner;
  MothSortKeys q = {keys, row + i * stride * s->item, stride, n, s->descending};
  s->kernels->sort_keys(&q);
}

/* The most candidates that first_of_row keeps. */
static int64_t most_candidates(const Sort *s) {
  return 2 * s->k + 64;
}

typedef struct KeyAndPlace {
  uint64_t key;
  int64_t pos;
} KeyAndPlace;

#define Pair           KeyAndPlace
#define NAME(f)        f##_pairs
#define MAKE(key, pos) ((KeyAndPlace){key, pos})
#define KEY(p)         (p).key
#define POS(p)         (p).pos
#define BEFORE(a, b)   ((a).key < (b).key || ((a).key == (b).key && (a).pos < (b).pos))
#include "kernels/cpu/sort_rows.h"

#define Pair           uint64_t
#define NAME(f)        f##_words
#define MAKE(key, pos) ((key) << 32 | (uint64_t)(pos))
#define KEY(p)         ((p) >> 32)
#define POS(p)         ((int64_t)((p)&UINT32_MAX))
#define BEFORE(a, b)   ((a) < (b))
#include "kernels/cpu/sort_rows.h"

/* Rows of at most MOTH_SORT_SHORT elements. */
static void short_range(void *ctx, int64_t begin, int64_t end) {
  const Sort *s = ctx;
  int64_t n = s->split.n, inner = s->split.inner, k = s->k;
  MothShortRow q = {.n = n, .k = k, .stride = inner, .base = s->base, .descending = s->descending};
  for (int64_t r = begin; r < end; r++) {
    int64_t from = r / inner * n * inner + r % inner, to = r / inner * k * inner + r % inner;
    if ((r & 1023) == 0 && moth_stopped())
      return;
    q.in = s->in + from * s->item;
    q.values = s->values + to * s->item;
    q.pos = s->pos + to;
    s->kernels->sort_short(&q);
  }
}
static void pairs_range(void *ctx, int64_t begin, int64_t end) {
  sort_range_pairs(ctx, begin, end);
}
static void words_range(void *ctx, int64_t begin, int64_t end) {
  sort_range_words(ctx, begin, end);
}

static MothStatus run(MothCall *c, const MothTensor *self, int64_t dim, int64_t k, bool descending,
                      bool part, int64_t base) {
  MothTensor *in;
  int d = (int)dim;
  MOTH_TRY(moth_cpu_contiguous(self, &in));
  Sort s = {.in = in->data,
            .values = c->results[0].u.t->data,
            .pos = (int64_t *)c->results[1].u.t->data,
            .split = {1, 1, 1},
            .item = moth_itemsize(self),
            .base = base,
            .kernels = moth_cpu_kernels(self->dtype),
            .descending = descending,
            .part = part};
  if (self->ndim)
    s.split = moth_split(in, d);
  s.k = k < 0 ? s.split.n : k;
  int64_t rows = s.split.outer * s.split.inner;
  if (c->results[0].u.t->numel)
    moth_parallel_for(rows, moth_cpu_grain((part ? 4 : 16) * s.split.n),

                      s.split.n <= MOTH_SORT_SHORT             ? short_range
                      : s.item <= 4 && s.split.n <= UINT32_MAX ? words_range
                                                               : pairs_range,
                      &s);
  moth_tensor_release(in);
  return s.failed ? moth_no_memory(0) : MOTH_OK;
}

MothStatus moth_cpu_sort(MothCall *c) {
  MOTH_UNPACK_SORT(c)
  return run(c, self, dim, -1, descending, false, index_base);
}
MothStatus moth_cpu_topk(MothCall *c) {
  MOTH_UNPACK_TOPK(c)
  return run(c, self, dim, k, largest, true, index_base);
}
