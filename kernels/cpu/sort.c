/* sort and topk along rows. Elements become unsigned keys whose order is theirs (NaN above all numbers,
 * -0 as 0), complemented for descending order; pairs of key and position are sorted: by insertion where
 * there are few, else by a stable radix sort that leaves out digits in which all keys agree. */
#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack.h"

typedef struct Pair {
  uint64_t key;
  int64_t pos;
} Pair;

enum { FEW = 48 };

static uint64_t float_key(uint64_t bits, int width) {
  uint64_t sign = (uint64_t)1 << (width - 1);
  return bits & sign ? ~bits & (sign | (sign - 1)) : bits | sign;
}

/* The key of an element, and how many bits keys have. */
static uint64_t key_of(int dtype, const char *p) {
  switch (dtype) {
  case MOTH_FLOAT64: {
    double x;
    uint64_t u;
    memcpy(&x, p, sizeof x);
    x = x == 0 ? 0 : x;
    memcpy(&u, &x, sizeof u);
    return x != x ? UINT64_MAX : float_key(u, 64);
  }
  case MOTH_FLOAT32: {
    float x;
    uint32_t u;
    memcpy(&x, p, sizeof x);
    x = x == 0 ? 0 : x;
    memcpy(&u, &x, sizeof u);
    return x != x ? UINT32_MAX : float_key(u, 32);
  }
  case MOTH_FLOAT16:
  case MOTH_BFLOAT16: {
    uint16_t u, inf = dtype == MOTH_FLOAT16 ? 0x7c00 : 0x7f80;
    memcpy(&u, p, sizeof u);
    if ((u & 0x7fff) == 0)
      u = 0;
    return (u & 0x7fff) > inf ? UINT16_MAX : float_key(u, 16);
  }
  case MOTH_INT64: {
    int64_t x;
    memcpy(&x, p, sizeof x);
    return (uint64_t)x ^ (uint64_t)1 << 63;
  }
  case MOTH_INT32: {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return (uint32_t)x ^ (uint32_t)1 << 31;
  }
  case MOTH_INT16: {
    int16_t x;
    memcpy(&x, p, sizeof x);
    return (uint64_t)(x + 32768);
  }
  case MOTH_INT8:
    return (uint64_t)(*(const int8_t *)p + 128);
  default:
    return *(const uint8_t *)p;
  }
}

static void insertion(Pair *a, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    Pair x = a[i];
    int64_t j = i;
    for (; j > 0 && a[j - 1].key > x.key; j--)
      a[j] = a[j - 1];
    a[j] = x;
  }
}

/* Sorts a; the result is in a or in spare, which is given back. */
static Pair *radix(Pair *a, Pair *spare, int64_t n, int bytes) {
  int64_t count[8][256] = {{0}};
  for (int64_t i = 0; i < n; i++)
    for (int b = 0; b < bytes; b++)
      count[b][a[i].key >> 8 * b & 255]++;
  for (int b = 0; b < bytes; b++) {
    int64_t at[256], sum = 0;
    if (count[b][a[0].key >> 8 * b & 255] == n)
      continue;
    for (int d = 0; d < 256; d++) {
      at[d] = sum;
      sum += count[b][d];
    }
    for (int64_t i = 0; i < n; i++)
      spare[at[a[i].key >> 8 * b & 255]++] = a[i];
    Pair *other = a;
    a = spare;
    spare = other;
  }
  return a;
}

static bool before(Pair a, Pair b) {
  return a.key < b.key || (a.key == b.key && a.pos < b.pos);
}
/* Moves the k first of n pairs to the front, in any order. */
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
  const char *in;
  char *values;
  int64_t *pos;
  MothSplit split; /* of the input */
  int64_t k, item, base;
  int dtype;
  bool descending, part;
  bool failed;
} Sort;

static void sort_range(void *ctx, int64_t begin, int64_t end) {
  Sort *s = ctx;
  int64_t n = s->split.n, inner = s->split.inner, k = s->k;
  size_t bytes = (size_t)n * sizeof(Pair) * 2;
  Pair *a = moth_alloc(bytes);
  if (!a) {
    __atomic_store_n(&s->failed, true, __ATOMIC_RELAXED);
    return;
  }
  uint64_t mask = s->item == 8 ? UINT64_MAX : ((uint64_t)1 << 8 * s->item) - 1;
  for (int64_t r = begin; r < end; r++) {
    int64_t from = r / inner * n * inner + r % inner, to = r / inner * k * inner + r % inner;
    int64_t m = n;
    bool few = s->part && k > 0 && k <= FEW && k < n / 4;
    for (int64_t i = 0; few && i < n; i++) { /* the k first so far, in order */
      uint64_t key = key_of(s->dtype, s->in + (from + i * inner) * s->item);
      key = s->descending ? ~key & mask : key;
      int64_t j = i < k ? i : k;
      if (i >= k && key >= a[k - 1].key)
        continue;
      for (j -= i >= k; j > 0 && a[j - 1].key > key; j--)
        a[j] = a[j - 1];
      a[j] = (Pair){key, i};
    }
    for (int64_t i = 0; !few && i < n; i++) {
      uint64_t key = key_of(s->dtype, s->in + (from + i * inner) * s->item);
      a[i] = (Pair){s->descending ? ~key & mask : key, i};
    }
    if (s->part && !few && k > 0 && k < n / 4) { /* only these are put in order */
      choose(a, n, k);
      m = k;
    }
    Pair *p = a;
    if (few) {
      m = k;
    } else if (m < n) { /* by key and position, which choose() has mixed */
                        /* positions first: a stable sort of keys then keeps them */
      for (int64_t i = 0; i < m; i++) {
        uint64_t key = a[i].key;
        a[i] = (Pair){(uint64_t)a[i].pos, (int64_t)key};
      }
      p = radix(a, a + n, m, 8);
      for (int64_t i = 0; i < m; i++) {
        uint64_t pos = p[i].key;
        p[i] = (Pair){(uint64_t)p[i].pos, (int64_t)pos};
      }
      p = radix(p, p == a ? a + n : a, m, (int)s->item);
    } else if (n <= FEW) {
      insertion(a, n);
    } else {
      p = radix(a, a + n, n, (int)s->item);
    }
    for (int64_t i = 0; i < k; i++) {
      int64_t at = to + i * inner;
      memcpy(s->values + at * s->item, s->in + (from + p[i].pos * inner) * s->item,
             (size_t)s->item);
      s->pos[at] = p[i].pos + s->base;
    }
  }
  moth_free(a, bytes);
}

static MothStatus run(MothCall *c, const MothTensor *self, int64_t dim, int64_t k, bool descending,
                      bool part, int64_t base) {
  MothTensor *in;
  int d;
  MOTH_TRY(moth_wrap_dim(dim, self->ndim, &d));
  MOTH_TRY(moth_cpu_contiguous(self, &in));
  Sort s = {.in = in->data,
            .values = c->results[0].u.t->data,
            .pos = (int64_t *)c->results[1].u.t->data,
            .split = {1, 1, 1},
            .item = moth_itemsize(self),
            .base = base,
            .dtype = self->dtype,
            .descending = descending,
            .part = part};
  if (self->ndim)
    s.split = moth_cpu_split(in, d);
  s.k = k < 0 ? s.split.n : k;
  int64_t rows = s.split.outer * s.split.inner;
  if (c->results[0].u.t->numel)
    moth_parallel_for(rows, moth_cpu_grain(16 * s.split.n), sort_range, &s);
  moth_tensor_release(in);
  return s.failed ? moth_fail(MOTH_ERR_MEMORY, "out of memory") : MOTH_OK;
}

MothStatus moth_cpu_sort(MothCall *c) {
  MOTH_UNPACK_SORT(c)
  return run(c, self, dim, -1, descending, false, index_base);
}
MothStatus moth_cpu_topk(MothCall *c) {
  MOTH_UNPACK_TOPK(c)
  return run(c, self, dim, k, largest, true, index_base);
}
