/* Copies between tensors of one dtype (rearrange.h). By the strides of the prepared dimensions, the innermost of which is
 * the result's, they are
 *  - rows, where both sides are dense in the innermost dimension;
 *  - fills, where the source stands still in it (expand, repeat);
 *  - transposed, where the source is dense in another one: in tiles, so that each line that is read is used;
 *  - or elements one by one, backwards too (flip). */
#include "kernels/cpu/rearrange.h"

#include "core/parallel.h"

#define VECTOR _Pragma("omp simd")
enum { TILE = 16, GRAIN_BYTES = 4 * MOTH_GRAIN };

typedef struct Copy {
  const MothIter *it;
  int64_t item, n;  /* bytes of an element; elements of a row */
  int64_t to, from; /* strides of a row's elements, bytes */
  int64_t tile,
      tile_to; /* transposed: the size of the dimension in which the source is dense; the result's stride */
  int nouter;
  int64_t shape[MOTH_MAX_DIMS], ds[MOTH_MAX_DIMS], ss[MOTH_MAX_DIMS]; /* of the other dimensions */
  /* m rows, the first of which is row `first` of the last of the other dimensions */
  void (*rows)(const struct Copy *c, char *d, const char *s, int64_t first, int64_t m);
} Copy;

static int64_t last_step(const Copy *c, const int64_t *strides) {
  return c->nouter ? strides[c->nouter - 1] : 0;
}

static void dense_rows(const Copy *c, char *d, const char *s, int64_t first, int64_t m) {
  (void)first;
  const int64_t n = c->n * c->item, ds = last_step(c, c->ds), ss = last_step(c, c->ss);
  for (int64_t i = 0; i < m; i++)
    moth_copy_row(d + i * ds, s + i * ss, n);
}

typedef struct Sixteen {
  MothEight half[2];
} __attribute__((aligned(1), may_alias)) Sixteen;

/* The loops for each size of an element: a row of one value, strided rows, a tile. */
#define LOOPS(type)                                                                                \
  static void fill_##type(const Copy *c, char *d, const char *s, int64_t first, int64_t m) {       \
    (void)first;                                                                                   \
    const int64_t n = c->n, ds = last_step(c, c->ds), ss = last_step(c, c->ss);                    \
    for (int64_t i = 0; i < m; i++) {                                                              \
      type *to = (type *)(void *)(d + i * ds);                                                     \
      const type v = *(const type *)(const void *)(s + i * ss);                                    \
      VECTOR for (int64_t k = 0; k < n; k++) to[k] = v;                                            \
    }                                                                                              \
  }                                                                                                \
  static void back_##type(const Copy *c, char *d, const char *s, int64_t first, int64_t m) {       \
    (void)first;                                                                                   \
    const int64_t n = c->n, ds = last_step(c, c->ds), ss = last_step(c, c->ss);                    \
    for (int64_t i = 0; i < m; i++) {                                                              \
      type *to = (type *)(void *)(d + i * ds);                                                     \
      const type *from = (const type *)(const void *)(s + i * ss);                                 \
      VECTOR for (int64_t k = 0; k < n; k++) to[k] = from[-k];                                     \
    }                                                                                              \
  }                                                                                                \
  static void each_##type(const Copy *c, char *d, const char *s, int64_t first, int64_t m) {       \
    (void)first;                                                                                   \
    const int64_t n = c->n, ds = last_step(c, c->ds), ss = last_step(c, c->ss);                    \
    for (int64_t i = 0; i < m; i++)                                                                \
      for (int64_t k = 0; k < n; k++)                                                              \
        *(type *)(void *)(d + i * ds + k * c->to) =                                                \
            *(const type *)(const void *)(s + i * ss + k * c->from);                               \
  }                                                                                                \
  static void tiles_##type(const Copy *c, char *d, const char *s, int64_t first, int64_t m) {      \
    const int64_t ds = last_step(c, c->ds), ss = last_step(c, c->ss);                              \
    for (int64_t i = 0; i < m; i++)                                                                \
      for (int64_t c0 = 0; c0 < c->n; c0 += TILE) {                                                \
        const int64_t c1 = c0 + TILE < c->n ? c0 + TILE : c->n;                                    \
        const int64_t left = c->tile - (first + i) * TILE, rows = left < TILE ? left : TILE;       \
        for (int64_t r = 0; r < rows; r++) {                                                       \
          type *to = (type *)(void *)(d + i * ds + r * c->tile_to);                                \
          const char *from = s + i * ss + r * (int64_t)sizeof(type);                               \
          for (int64_t k = c0; k < c1; k++)                                                        \
            to[k] = *(const type *)(const void *)(from + k * c->from);                             \
        }                                                                                          \
      }                                                                                            \
  }
LOOPS(uint8_t)
LOOPS(MothTwo)
LOOPS(MothFour)
LOOPS(MothEight)
LOOPS(Sixteen)
#define PICK(kind)                                                                                 \
  (c->item == 1   ? kind##_uint8_t                                                                 \
   : c->item == 2 ? kind##_MothTwo                                                                 \
   : c->item == 4 ? kind##_MothFour                                                                \
   : c->item == 8 ? kind##_MothEight                                                               \
                  : kind##_Sixteen)

/* Rows begin to end of the other dimensions, counted together. */
static void walk(void *ctx, int64_t begin, int64_t end) {
  const Copy *c = ctx;
  const int last = c->nouter - 1;
  int64_t index[MOTH_MAX_DIMS], rest = begin;
  char *d = c->it->data[0];
  const char *s = c->it->data[1];
  if (last < 0) {
    c->rows(c, d, s, 0, 1);
    return;
  }
  for (int i = last; i >= 0; i--) {
    index[i] = rest % c->shape[i];
    rest /= c->shape[i];
    d += index[i] * c->ds[i];
    s += index[i] * c->ss[i];
  }
  while (begin < end) {
    int64_t m = c->shape[last] - index[last];
    if (m > end - begin)
      m = end - begin;
    c->rows(c, d, s, index[last], m);
    begin += m;
    index[last] += m;
    d += m * c->ds[last];
    s += m * c->ss[last];
    for (int i = last; i > 0 && index[i] == c->shape[i]; i--) {
      index[i] = 0;
      index[i - 1]++;
      d += c->ds[i - 1] - c->shape[i] * c->ds[i];
      s += c->ss[i - 1] - c->shape[i] * c->ss[i];
    }
  }
}

static void add_outer(Copy *c, int64_t n, int64_t ds, int64_t ss) {
  c->shape[c->nouter] = n;
  c->ds[c->nouter] = ds;
  c->ss[c->nouter++] = ss;
}

/* The dimension in which the source is dense, if tiles are worth it; -1: none. */
static int tiled(const MothIter *it, const Copy *c) {
  if (c->to != c->item || c->from == 0 || c->from == -c->item || c->n < 4)
    return -1;
  for (int i = it->ndim - 2; i >= 0; i--)
    if (it->stride[1][i] == c->item && it->shape[i] >= 4)
      return i;
  return -1;
}

/* One row: in pieces, for the threads. */
static void whole(void *ctx, int64_t begin, int64_t end) {
  const Copy *c = ctx;
  memcpy(c->it->data[0] + begin, c->it->data[1] + begin, (size_t)(end - begin));
}

void moth_rearrange(const MothIter *it, int64_t item) {
  if (it->numel == 0)
    return;
  const int inner = it->ndim - 1;
  Copy job = {.it = it, .item = item, .n = 1, .to = item, .from = item}, *c = &job;
  if (inner >= 0) {
    c->n = it->shape[inner];
    c->to = it->stride[0][inner];
    c->from = it->stride[1][inner];
  }
  const bool dense = c->to == item && c->from == item;
  if (inner <= 0 && dense) {
    moth_parallel_for(c->n * item, GRAIN_BYTES, whole, c);
    return;
  }
  const int tile = dense ? -1 : tiled(it, c);
  for (int i = 0; i < inner; i++)
    if (i != tile)
      add_outer(c, it->shape[i], it->stride[0][i], it->stride[1][i]);
  int64_t row = c->n * item, count = it->numel / c->n;
  if (dense) {
    c->rows = dense_rows;
  } else if (tile >= 0) {
    c->tile = it->shape[tile];
    c->tile_to = it->stride[0][tile];
    const int64_t tiles = (c->tile + TILE - 1) / TILE;
    add_outer(c, tiles, TILE * c->tile_to, TILE * item);
    c->rows = PICK(tiles);
    count = count / c->tile * tiles;
    row *= TILE;
  } else if (c->to == item && c->from == 0) {
    c->rows = PICK(fill);
  } else if (c->to == item && c->from == -item) {
    c->rows = PICK(back);
  } else {
    c->rows = PICK(each);
  }
  if (!c->nouter && c->n * item > GRAIN_BYTES) { /* one long row: in pieces */
    const int64_t piece = GRAIN_BYTES / item, pieces = c->n / piece;
    Copy rest = *c;
    MothIter behind = *it;
    add_outer(c, pieces, piece * c->to, piece * c->from);
    rest.n = c->n - pieces * piece;
    rest.it = &behind;
    behind.data[0] += pieces * piece * c->to;
    behind.data[1] += pieces * piece * c->from;
    c->n = piece;
    moth_parallel_for(pieces, 1, walk, c);
    if (rest.n)
      walk(&rest, 0, 1);
    return;
  }
  moth_parallel_for(count, 1 + GRAIN_BYTES / (row + 1), walk, c);
}
