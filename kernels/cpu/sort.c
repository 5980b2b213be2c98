/* sort and topk along rows. Elements become unsigned keys (kernels/cpu/typed/sort.h); pairs of key and
 * position are sorted: few by insertion, else by a stable radix sort that skips digits in which all keys agree.
 * topk with a small k keeps the first k so far in order. With a larger k it collects candidates and, when they
 * are twice as many as asked for, keeps the first k of them: a few steps per element for input in any order. */
#include "kernels/cpu/sort.h"

#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack/sort.h"

typedef struct Pair {
  uint64_t key;
  int64_t pos;
} Pair;

enum { FEW = 48, KEYS = 256 };

static bool before(Pair a, Pair b) {
  return a.key < b.key || (a.key == b.key && a.pos < b.pos);
}

static void insertion(Pair *a, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    Pair x = a[i];
    int64_t j = i;
    for (; j > 0 && before(x, a[j - 1]); j--)
      a[j] = a[j - 1];
    a[j] = x;
  }
}

/* Elements between checks for Ctrl-C. */
enum { LOOK = 1 << 20 };

/* The end of the next LOOK elements from i on; or i after an interrupt: the caller then returns, and results are
 * undefined. */
static int64_t stretch(int64_t i, int64_t n) {
  return moth_stopped() ? i : moth_min64(n, i + LOOK);
}

/* Sorts a, with spare as workspace. Returns the one that has the result; NULL after an interrupt. */
static Pair *radix(Pair *a, Pair *spare, int64_t n, int bytes) {
  int64_t count[8][256] = {{0}};
  for (int64_t i = 0, end; i < n; i = end) {
    end = stretch(i, n);
    if (end == i)
      return NULL;
    for (int64_t j = i; j < end; j++)
      for (int b = 0; b < bytes; b++)
        count[b][a[j].key >> 8 * b & 255]++;
  }
  for (int b = 0; b < bytes; b++) {
    int64_t at[256], sum = 0;
    if (count[b][a[0].key >> 8 * b & 255] == n)
      continue;
    for (int d = 0; d < 256; d++) {
      at[d] = sum;
      sum += count[b][d];
    }
    for (int64_t i = 0, end; i < n; i = end) {
      end = stretch(i, n);
      if (end == i)
        return NULL;
      for (int64_t j = i; j < end; j++)
        spare[at[a[j].key >> 8 * b & 255]++] = a[j];
    }
    Pair *other = a;
    a = spare;
    spare = other;
  }
  return a;
}

/* Quickselect: moves the first k of n pairs to the front, in any order. */
static void choose(Pair *a, int64_t n, int64_t k) {
  int64_t lo = 0, hi = n - 1;
  while (lo < hi) {
    Pair x = a[lo], y = a[lo + (hi - lo) / 2], z = a[hi];
    Pair pivot = before(x, y) ? (before(y, z)   ? y
                                 : before(x, z) ? z
                                                : x)
                              : (before(x, z)   ? x
                                 : before(y, z) ? z
                                                : y);
    int64_t i = lo, j = hi;
    while (i <= j) {
      while (before(a[i], pivot))
        i++;
      while (before(pivot, a[j]))
        j--;
      if (i <= j) {
        Pair t = a[i];
        a[i++] = a[j];
        a[j--] = t;
      }
    }
    if (k - 1 <= j)
      hi = j;
    else if (k - 1 >= i)
      lo = i;
    else
      return;
  }
}

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

/* Sorts n pairs by key and position. Returns a or spare, as radix. */
static Pair *in_order(Pair *a, Pair *spare, int64_t n, int bytes) {
  if (n <= FEW) {
    insertion(a, n);
    return a;
  }
  /* sort by position first: the stable sort by key keeps that order */
  for (int64_t i = 0; i < n; i++)
    a[i] = (Pair){(uint64_t)a[i].pos, (int64_t)a[i].key};
  Pair *p = radix(a, spare, n, 8);
  if (!p)
    return NULL;
  for (int64_t i = 0; i < n; i++)
    p[i] = (Pair){(uint64_t)p[i].pos, (int64_t)p[i].key};
  return radix(p, p == a ? spare : a, n, bytes);
}

/* Keys of n elements of a row, from element i on. */
static void keys_of(const Sort *s, const char *row, int64_t i, int64_t n, uint64_t *keys) {
  int64_t stride = s->split.inner;
  MothSortKeys q = {keys, row + i * stride * s->item, stride, n, s->descending};
  s->kernels->sort_keys(&q);
}

/* Sorts all pairs of a row. Returns a or spare, as radix. */
static Pair *sort_row(const Sort *s, const char *row, Pair *a, Pair *spare) {
  uint64_t keys[KEYS];
  int64_t n = s->split.n;
  for (int64_t i = 0; i < n; i += KEYS) {
    if (i % LOOK == 0 && moth_stopped())
      return NULL;
    int64_t m = moth_min64(KEYS, n - i);
    keys_of(s, row, i, m, keys);
    for (int64_t j = 0; j < m; j++)
      a[i + j] = (Pair){keys[j], i + j};
  }
  if (n > FEW)
    return radix(a, spare, n, (int)s->item);
  insertion(a, n);
  return a;
}

/* The most candidates that first_of_row keeps. */
static int64_t most_candidates(const Sort *s) {
  return 2 * s->k + 64;
}

/* The first k <= FEW pairs of a row; a has the first so far in order. */
static Pair *few_of_row(const Sort *s, const char *row, Pair *a) {
  uint64_t keys[KEYS];
  int64_t n = s->split.n, k = s->k, have = 0;
  for (int64_t i = 0; i < n; i += KEYS) {
    if (i % LOOK == 0 && moth_stopped())
      return NULL;
    int64_t m = moth_min64(KEYS, n - i);
    keys_of(s, row, i, m, keys);
    for (int64_t j = 0; j < m; j++) {
      if (have == k && keys[j] >= a[k - 1].key)
        continue;
      int64_t at = have < k ? have++ : k - 1;
      for (; at > 0 && a[at - 1].key > keys[j]; at--)
        a[at] = a[at - 1];
      a[at] = (Pair){keys[j], i + j};
    }
  }
  return a;
}

/* The first k pairs of a row, in order. most_candidates(s) must not exceed its length. */
static Pair *first_of_row(const Sort *s, const char *row, Pair *a, Pair *spare) {
  uint64_t keys[KEYS];
  uint64_t limit =
      UINT64_MAX; /* the greatest of k chosen keys: only keys below it can enter the first k */
  int64_t n = s->split.n, most = most_candidates(s), have = 0;
  bool full = false;
  for (int64_t i = 0; i < n; i += KEYS) {
    if (i % LOOK == 0 && moth_stopped())
      return NULL;
    int64_t m = moth_min64(KEYS, n - i);
    keys_of(s, row, i, m, keys);
    for (int64_t j = 0; j < m; j++) {
      if (full && keys[j] >= limit)
        continue;
      a[have++] = (Pair){keys[j], i + j};
      if (have < most)
        continue;
      choose(a, have, s->k);
      have = s->k;
      full = true;
      limit = 0;
      for (int64_t c = 0; c < have; c++)
        limit = a[c].key > limit ? a[c].key : limit;
    }
  }
  choose(a, have, s->k);
  return in_order(a, spare, s->k, (int)s->item);
}

static void sort_range(void *ctx, int64_t begin, int64_t end) {
  Sort *s = ctx;
  int64_t n = s->split.n, inner = s->split.inner, k = s->k;
  bool some = s->part && most_candidates(s) <= n;
  int64_t most = some ? most_candidates(s) : n;
  size_t bytes = (size_t)most * sizeof(Pair) * 2;
  Pair *a = moth_alloc(bytes);
  if (!a) {
    __atomic_store_n(&s->failed, true, __ATOMIC_RELAXED);
    return;
  }
  for (int64_t r = begin; r < end && !moth_stopped(); r++) {
    int64_t from = r / inner * n * inner + r % inner, to = r / inner * k * inner + r % inner;
    const char *row = s->in + from * s->item;
    Pair *p = !some      ? sort_row(s, row, a, a + most)
              : k <= FEW ? few_of_row(s, row, a)
                         : first_of_row(s, row, a, a + most);
    for (int64_t i = 0; p && i < k; i++) {
      if (i % LOOK == 0 && moth_stopped())
        break;
      int64_t at = to + i * inner;
      memcpy(s->values + at * s->item, row + p[i].pos * inner * s->item, (size_t)s->item);
      s->pos[at] = p[i].pos + s->base;
    }
  }
  moth_free(a, bytes);
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
    moth_parallel_for(rows, moth_cpu_grain((part ? 4 : 16) * s.split.n), sort_range, &s);
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
