/* Pooling of planes (images one after another): a row of windows at a time, so that the inner loop runs
 * over neighbouring windows. Windows of varying size (adaptive) and very wide ones are computed one by
 * one. */
#if defined(__AVX512F__) && MOTH_REAL_KIND == 1
#include <immintrin.h>
#endif
#include "kernels/common/pool.h"
#include "kernels/cpu/typed/join.h"

enum { POOL_BLOCK = 256 };
#define POOL_UNROLL _Pragma("GCC unroll 2")

/* Windows [o0, o0 + m) read `line`, a row of the image from the first window's first position on, padded at both
 * ends, so that POOL_LANES windows are computed at a time without checks for the image's edges. */
enum { POOL_LINE = 4096 };

#if MOTH_REAL_KIND == 1
#define POOL_LANES (MOTH_VECTOR_BYTES / 4)
#else
#define POOL_LANES (MOTH_VECTOR_BYTES / 8)
#endif
/* Of two vectors: the elements at even places; the first and the second half of both, interleaved. */
#if POOL_LANES == 16
#define POOL_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define POOL_LOW  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define POOL_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif POOL_LANES == 8
#define POOL_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define POOL_LOW  0, 8, 1, 9, 2, 10, 3, 11
#define POOL_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#elif POOL_LANES == 4
#define POOL_EVEN 0, 2, 4, 6
#define POOL_LOW  0, 4, 1, 5
#define POOL_HIGH 2, 6, 3, 7
#else
#define POOL_EVEN 0, 2
#define POOL_LOW  0, 2
#define POOL_HIGH 1, 3
#endif

typedef real pool_vec __attribute__((vector_size(POOL_LANES * sizeof(real))));
typedef arg_pos pool_at __attribute__((vector_size(POOL_LANES * sizeof(real))));

static inline pool_at pool_lanes(void) { /* 0, 1, 2 … */
  pool_at lane;
  for (int i = 0; i < POOL_LANES; i++)
    lane[i] = i;
  return lane;
}

/* Loads POOL_LANES elements of a line, `stride` apart. By explicit vectors: the compiler would use scalar code for
 * the last elements of a loop of stride 2, as it may not read the element after them. A line has one more. */
static inline void pool_load(const real *a, int64_t stride, pool_vec *out) {
  pool_vec low, high;
  memcpy(&low, a, sizeof low);
  if (stride == 2) {
    memcpy(&high, a + POOL_LANES, sizeof high);
    low = __builtin_shufflevector(low, high, POOL_EVEN);
  } else if (stride != 1) {
    for (int i = 0; i < POOL_LANES; i++)
      low[i] = a[i * stride];
  }
  *out = low;
}

/* The number of windows of axis x that fit in a line; 0: too few to be worth it. */
static int64_t pool_windows(const MothPoolAxis *x) {
  int64_t span = x->kernel ? x->dilation * (x->kernel - 1) + 1 : POOL_LINE;
  int64_t fit = (POOL_LINE - 1 - span) / (x->stride ? x->stride : 1) / POOL_LANES * POOL_LANES;
  return fit > POOL_BLOCK ? POOL_BLOCK : fit < POOL_LANES ? 0 : fit;
}

static void pool_line(const MothPoolAxis *x, const stored *row, int64_t o0, int64_t m, real fill,
                      real *line) {
  int64_t first = o0 * x->stride - x->padding;
  int64_t all = (m + POOL_LANES - 1) / POOL_LANES * POOL_LANES;
  int64_t n = (all - 1) * x->stride + x->dilation * (x->kernel - 1) + 2;
  int64_t from = first < 0 ? -first : 0, to = x->in - first < n ? x->in - first : n;
  for (int64_t i = 0; i < from; i++)
    line[i] = fill;
  row += first + from;
  MOTH_VECTOR for (int64_t i = 0; i < to - from; i++) line[from + i] = LOAD(row[i]);
  for (int64_t i = to > from ? to : from; i < n; i++)
    line[i] = fill;
}

/* The line in the image itself, if it needs no padding and reading past the last window, up to whole vectors, stays
 * in memory (`end`); else NULL. */
static const real *pool_in_place(const MothPoolAxis *x, const stored *row, int64_t o0, int64_t m,
                                 const stored *end) {
#if MOTH_STORED == 0
  int64_t first = o0 * x->stride - x->padding, span = x->dilation * (x->kernel - 1) + 1;
  int64_t all = (m + POOL_LANES - 1) / POOL_LANES * POOL_LANES;
  if (first >= 0 && first + (m - 1) * x->stride + span <= x->in &&
      row + first + (all - 1) * x->stride + span + 1 <= end)
    return row + first;
#else
  (void)x, (void)row, (void)o0, (void)m, (void)end;
#endif
  return NULL;
}

/* Updates best and at by a vector of elements. With several NaN the last one wins, as in PyTorch. */
static inline void pool_max_lanes(const pool_vec *lanes, const pool_at *here, real *best,
                                  arg_pos *at) {
#if defined(__AVX512F__) &&                                                                        \
    MOTH_REAL_KIND == 1 /* by name: gcc makes vectors of the two masks first */
  __m512 v = (__m512)*lanes, b = _mm512_loadu_ps(best);
  __mmask16 better = _mm512_cmp_ps_mask(v, b, _CMP_GT_OQ) | _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  __m512i p = _mm512_mask_mov_epi32(_mm512_loadu_si512(at), better, (__m512i)*here);
  _mm512_storeu_ps(best, _mm512_mask_mov_ps(b, better, v));
  _mm512_storeu_si512(at, p);
#else
  pool_vec b, v = *lanes;
  pool_at p;
  memcpy(&b, best, sizeof b);
  memcpy(&p, at, sizeof p);
  pool_at better = (pool_at)(v > b) | (pool_at)(v != v);
  b = (pool_vec)(((pool_at)v & better) | ((pool_at)b & ~better));
  p = (*here & better) | (p & ~better);
  memcpy(best, &b, sizeof b);
  memcpy(at, &p, sizeof p);
#endif
}

static void max_pool_row(const struct MothPoolPlanes *q, const stored *in, const stored *end,
                         int64_t oy, int64_t o0, int64_t m, real *best, arg_pos *at) {
  const MothPoolAxis *x = &q->x;
  const pool_at lane = pool_lanes();
  real line[POOL_LINE];
  for (int64_t y = q->y.begin[oy]; y < q->y.end[oy]; y += q->y.dilation) {
    const real *from = pool_in_place(x, in + y * x->in, o0, m, end);
    if (!from) {
      pool_line(x, in + y * x->in, o0, m, -(real)__builtin_inf(), line);
      from = line;
    }
    for (int64_t k = 0; k < x->kernel; k++) {
      const real *a = from + k * x->dilation;
      arg_pos row = (arg_pos)(y * x->in + o0 * x->stride + k * x->dilation - x->padding);
      for (int64_t j = 0; j < m; j += POOL_LANES) {
        pool_at here = lane * (arg_pos)x->stride + (row + (arg_pos)(j * x->stride));
        pool_vec v;
        pool_load(a + j * x->stride, x->stride, &v);
        pool_max_lanes(&v, &here, best + j, at + j);
      }
    }
  }
}

/* Writes positions, counted from base. By intrinsics where possible: gcc extracts the lanes one by one. */
static inline void pool_put_positions(const pool_at *at, int64_t base, int64_t *positions) {
#if defined(__AVX512F__) && MOTH_REAL_KIND == 1
  __m512i from = _mm512_set1_epi64(base);
  __m256i low = _mm512_castsi512_si256((__m512i)*at);
  __m256i high = _mm512_extracti64x4_epi64((__m512i)*at, 1);
  _mm512_storeu_si512(positions, _mm512_add_epi64(_mm512_cvtepi32_epi64(low), from));
  _mm512_storeu_si512(positions + 8, _mm512_add_epi64(_mm512_cvtepi32_epi64(high), from));
#else
  arg_pos place[POOL_LANES];
  memcpy(place, at, sizeof *at);
  MOTH_VECTOR for (int i = 0; i < POOL_LANES; i++) positions[i] = (int64_t)place[i] + base;
#endif
}

/* Windows of rows x cols elements, all inside their images, written directly to the results in whole vectors, of which a
 * row's last may overlap the next row, which is written later. Returns the number of rows of windows done, from the first
 * on: the others would read or write beyond the memory. */
MOTH_FN int64_t max_pool_windows(const struct MothPoolPlanes *q, int64_t rows, int64_t cols,
                                 int64_t stride, int64_t down, int64_t across) {
#if MOTH_STORED == 0
  const pool_at lane = pool_lanes();
  const int64_t width = q->x.in, cells = q->x.out, high = q->y.out, size = q->y.in * width;
  const int64_t all = (cells + POOL_LANES - 1) / POOL_LANES * POOL_LANES,
                row_stride = q->y.stride * width;
  const int64_t reach = (rows - 1) * down * width + (all - 1) * stride + (cols - 1) * across + 2;
  const int64_t have = q->planes * size, space = q->planes * high * cells, base = q->base;
  const stored *in = q->in;
  stored *out = q->out;
  int64_t *positions = q->positions, to = 0;
  for (int64_t c = 0; c < q->planes; c++)
    for (int64_t oy = 0; oy < high; oy++, to += cells) {
      if (c * size + oy * row_stride + reach > have || to + all > space)
        return c * high + oy;
      for (int64_t j = 0; j < all; j += POOL_LANES) {
        const stored *a = in + c * size + oy * row_stride + j * stride;
        pool_at start = lane * (arg_pos)stride + (arg_pos)(oy * row_stride + j * stride),
                at = start;
        pool_vec best;
        pool_load(a, stride, &best);
        POOL_UNROLL for (int64_t r = 0; r < rows; r++)
            POOL_UNROLL for (int64_t k = r ? 0 : 1; k < cols; k++) {
          int64_t from = r * down * width + k * across;
          pool_at here = start + (arg_pos)from;
          pool_vec v;
          pool_load(a + from, stride, &v);
          pool_max_lanes(&v, &here, (real *)&best, (arg_pos *)&at);
        }
        memcpy(out + to + j, &best, sizeof best);
        pool_put_positions(&at, base, positions + to + j);
      }
    }
  return q->planes * high;
#else
  (void)q, (void)rows, (void)cols, (void)stride, (void)down, (void)across;
  return 0;
#endif
}

static bool pool_inside(const MothPoolAxis *a) {
  return a->kernel > 0 && !a->padding &&
         (a->out - 1) * a->stride + (a->kernel - 1) * a->dilation < a->in;
}

static int64_t max_pool_inside(const struct MothPoolPlanes *q) {
  const MothPoolAxis *y = &q->y, *x = &q->x;
  if (!pool_inside(y) || !pool_inside(x))
    return 0;
  if (y->kernel == 2 && x->kernel == 2 && x->stride == 2 && y->dilation * x->dilation == 1)
    return max_pool_windows(q, 2, 2, 2, 1, 1);
  return max_pool_windows(q, y->kernel, x->kernel, x->stride, y->dilation, x->dilation);
}

/* A window at a time. */
static void max_pool_slow(const struct MothPoolPlanes *q, const stored *in, int64_t oy, int64_t o0,
                          int64_t m, real *best, arg_pos *at) {
  const MothPoolAxis *y = &q->y, *x = &q->x;
  for (int64_t i = 0; i < m; i++)
    for (int64_t r = y->begin[oy]; r < y->end[oy]; r += y->dilation)
      for (int64_t k = x->begin[o0 + i]; k < x->end[o0 + i]; k += x->dilation) {
        real v = LOAD(in[r * x->in + k]);
        if ((v > best[i]) | M_IS_NAN(v)) {
          best[i] = v;
          at[i] = (arg_pos)(r * x->in + k);
        }
      }
}

MOTH_TYPED_FLOAT void max_pool_planes(const struct MothPoolPlanes *q) {
  const MothPoolAxis *y = &q->y, *x = &q->x;
  int64_t fit = pool_windows(x), size = y->in * x->in;
  real best[POOL_BLOCK];
  arg_pos at[POOL_BLOCK], first[POOL_BLOCK];
  stored values[POOL_BLOCK];
  int64_t positions[POOL_BLOCK];
  const stored *end = (const stored *)q->in + q->planes * size;
  int64_t done = max_pool_inside(q);
  for (int64_t o0 = 0, m; o0 < x->out; o0 += m) {
    m = fit ? fit : POOL_BLOCK;
    m = x->out - o0 < m ? x->out - o0 : m;
    int64_t all = (m + POOL_LANES - 1) / POOL_LANES * POOL_LANES;
    for (int64_t i = 0; i < all; i++)
      first[i] = i < m ? (arg_pos)x->begin[o0 + i] : 0;
    for (int64_t line = done; line < q->planes * y->out; line++) {
      int64_t c = line / y->out, oy = line % y->out;
      const stored *in = (const stored *)q->in + c * size;
      int64_t to = line * x->out + o0;
      arg_pos row = (arg_pos)(y->begin[oy] * x->in);
      for (int64_t j = 0; j < all; j += POOL_LANES) {
        pool_vec least = (pool_vec){0} - (real)__builtin_inf();
        pool_at p;
        memcpy(&p, first + j, sizeof p);
        p += row;
        memcpy(best + j, &least, sizeof least);
        memcpy(at + j, &p, sizeof p);
      }
      if (fit)
        max_pool_row(q, in, end, oy, o0, m, best, at);
      else
        max_pool_slow(q, in, oy, o0, m, best, at);
      for (int64_t j = 0; j < all; j += POOL_LANES)
        MOTH_VECTOR for (int i = 0; i < POOL_LANES; i++) {
          values[j + i] = STORE(best[j + i]);
          positions[j + i] = (int64_t)at[j + i] + q->base;
        }
      memcpy((stored *)q->out + to, values, (size_t)m * sizeof(stored));
      memcpy(q->positions + to, positions, (size_t)m * sizeof(int64_t));
    }
  }
}

/* The inverse of pool_put_positions. */
static inline void pool_get_positions(const int64_t *positions, int64_t base, pool_at *at) {
#if defined(__AVX512F__) && MOTH_REAL_KIND == 1
  __m512i from = _mm512_set1_epi64(base);
  __m256i low = _mm512_cvtepi64_epi32(_mm512_sub_epi64(_mm512_loadu_si512(positions), from));
  __m256i high = _mm512_cvtepi64_epi32(_mm512_sub_epi64(_mm512_loadu_si512(positions + 8), from));
  *at = (pool_at)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#else
  for (int i = 0; i < POOL_LANES; i++)
    (*at)[i] = (arg_pos)(positions[i] - base);
#endif
}

/* Adjacent 2x2 windows: two rows of the gradient for each row of windows, in whole vectors; the excess of a row is
 * overwritten later by the next one. Returns the number of rows of windows done: it stops at the first with a position
 * outside its window (a caller's own indices; the op adds at any of them). */
static int64_t max_pool_back_pairs(const struct MothPoolPlanes *q) {
#if MOTH_STORED == 0
  const MothPoolAxis *y = &q->y, *x = &q->x;
  if (!pool_inside(y) || !pool_inside(x) || y->kernel != 2 || x->kernel != 2 || y->stride != 2 ||
      x->stride != 2 || y->dilation != 1 || x->dilation != 1)
    return 0;
  const pool_at lane = pool_lanes();
  const int64_t width = x->in, cells = x->out, high = y->out, size = y->in * width, base = q->base;
  const int64_t all = (cells + POOL_LANES - 1) / POOL_LANES * POOL_LANES;
  const int64_t have = q->planes * size, space = q->planes * high * cells;
  const stored *g = q->in;
  const int64_t *positions = q->positions;
  stored *out = q->out;
  int64_t from = 0;
  for (int64_t c = 0; c < q->planes; c++) {
    for (int64_t oy = 0; oy < high; oy++, from += cells) {
      int64_t top = 2 * oy * width, to = c * size + top;
      if (to + width + 2 * all > have || from + all > space)
        return c * high + oy;
      pool_at foreign = {0};
      for (int64_t row = 0; row < 2; row++)
        for (int64_t j = 0; j < all; j += POOL_LANES) {
          pool_at here = 2 * lane + (arg_pos)(top + row * width + 2 * j);
          pool_at at;
          pool_vec v;
          pool_get_positions(positions + from + j, base, &at);
          memcpy(&v, g + from + j, sizeof v);
          pool_at beyond = lane >= (arg_pos)(cells - j); /* of the next row */
          at |= beyond;
          pool_at down = at - here; /* as seen from the upper row */
          if (row == 0)
            foreign |= ~(beyond | (down == 0) | (down == 1) | (down == (arg_pos)width) |
                         (down == (arg_pos)width + 1));
          pool_vec even = (pool_vec)((pool_at)v & (at == here));
          pool_vec odd = (pool_vec)((pool_at)v & (at == here + 1));
          pool_vec low = __builtin_shufflevector(even, odd, POOL_LOW);
          pool_vec up = __builtin_shufflevector(even, odd, POOL_HIGH);
          memcpy(out + to + row * width + 2 * j, &low, sizeof low);
          memcpy(out + to + row * width + 2 * j + POOL_LANES, &up, sizeof up);
        }
      if (memcmp(&foreign, &(pool_at){0}, sizeof foreign) != 0)
        return c * high + oy;
      if (2 * all < width) /* the last of an odd width */
        out[to + width - 1] = out[to + 2 * width - 1] = 0;
    }
    memset(out + c * size + 2 * high * width, 0,
           (size_t)(size - 2 * high * width) * sizeof(stored));
  }
  return q->planes * high;
#else
  (void)q;
  return 0;
#endif
}

/* in: gradient of the pooled planes. Positions were checked. */
MOTH_TYPED_FLOAT void max_pool_planes_backward(const struct MothPoolPlanes *q) {
  int64_t high = q->y.out, size = q->y.in * q->x.in, n = high * q->x.out;
  int64_t done = max_pool_back_pairs(q);
  for (int64_t c = high ? done / high : 0; c < q->planes; c++) {
    int64_t rows = high ? done % high : 0, first = 2 * rows * q->x.in;
    const stored *g = (const stored *)q->in + c * n;
    const int64_t *at = q->positions + c * n;
    stored *out = (stored *)q->out + c * size;
    memset(out + first, 0, (size_t)(size - first) * sizeof(stored));
    for (int64_t i = rows * q->x.out; i < n; i++)
      out[at[i] - q->base] = STORE(LOAD(out[at[i] - q->base]) + LOAD(g[i]));
    done = 0;
  }
}

MOTH_TYPED_FLOAT void avg_pool_planes(const struct MothPoolPlanes *q) {
  const MothPoolAxis *y = &q->y, *x = &q->x;
  const stored *in = q->in;
  stored *out = q->out;
  /* Short rows, element by element: vectors would be mostly empty. */
  int64_t fit = x->out <= POOL_LANES / 4 ? 0 : pool_windows(x);
  real sum[POOL_BLOCK], line[POOL_LINE];
  for (int64_t c = 0; c < q->planes; c++, in += y->in * x->in)
    for (int64_t oy = 0; oy < y->out; oy++, out += x->out)
      for (int64_t o0 = 0, m; o0 < x->out; o0 += m) {
        m = fit ? fit : POOL_BLOCK;
        m = x->out - o0 < m ? x->out - o0 : m;
        const int64_t cleared = fit ? (m + POOL_LANES - 1) / POOL_LANES * POOL_LANES : m;
        for (int64_t i = 0; i < cleared; i++)
          sum[i] = 0;
        for (int64_t r = y->begin[oy]; r < y->end[oy]; r++) {
          const stored *row = in + r * x->in;
          if (!fit) {
            for (int64_t i = 0; i < m; i++)
              for (int64_t k = x->begin[o0 + i]; k < x->end[o0 + i]; k++)
                sum[i] += LOAD(row[k]);
            continue;
          }
          pool_line(x, row, o0, m, 0, line);
          for (int64_t k = 0; k < x->kernel; k++) {
            const real *a = line + k;
            for (int64_t j = 0; j < m; j += POOL_LANES) {
              pool_vec t, v;
              memcpy(&t, sum + j, sizeof t);
              pool_load(a + j * x->stride, x->stride, &v);
              t += v;
              memcpy(sum + j, &t, sizeof t);
            }
          }
        }
        MOTH_VECTOR for (int64_t i = 0; i < m; i++) out[o0 + i] =
            STORE(sum[i] / (real)(y->count[oy] * x->count[o0 + i]));
      }
}

MOTH_TYPED_FLOAT void avg_pool_planes_backward(const struct MothPoolPlanes *q) {
  const MothPoolAxis *y = &q->y, *x = &q->x;
  const stored *in = q->in;
  stored *out = q->out;
  real share[POOL_BLOCK];
  for (int64_t c = 0; c < q->planes; c++, out += y->in * x->in) {
    memset(out, 0, (size_t)(y->in * x->in) * sizeof(stored));
    for (int64_t oy = 0; oy < y->out; oy++, in += x->out)
      for (int64_t o0 = 0; o0 < x->out; o0 += POOL_BLOCK) {
        int64_t m = x->out - o0 < POOL_BLOCK ? x->out - o0 : POOL_BLOCK;
        for (int64_t i = 0; i < m; i++)
          share[i] = LOAD(in[o0 + i]) / (real)(y->count[oy] * x->count[o0 + i]);
        for (int64_t r = y->begin[oy]; r < y->end[oy]; r++) {
          stored *row = out + r * x->in;
          if (!x->kernel) {
            for (int64_t i = 0; i < m; i++)
              for (int64_t k = x->begin[o0 + i]; k < x->end[o0 + i]; k++)
                row[k] = STORE(LOAD(row[k]) + share[i]);
            continue;
          }
          for (int64_t k = 0; k < x->kernel; k++) {
            int64_t first = o0 * x->stride + k * x->dilation - x->padding, from, to;
            inside(first, x->stride, x->in, m, &from, &to);
            stored *a = row + (first + from * x->stride);
            const real *s = share + from;
            MOTH_VECTOR for (int64_t i = 0; i < to - from; i++) a[i * x->stride] =
                STORE(LOAD(a[i * x->stride]) + s[i]);
          }
        }
      }
  }
}
