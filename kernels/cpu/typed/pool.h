/* Pooling of planes (images one after the other): a row of windows at a time, so that the inner loop
 * runs over neighbouring windows. Windows of changing size (adaptive) are taken one by one. */
#include "kernels/cpu/pool.h"

#if MOTH_IS_FLOAT
enum { POOL_BLOCK = 256 };

/* For kernel position k of axis x: the windows [*from, *to) of [o0, o1) that have it inside of the
 * image; window o's lies at (*first) + (o - *from) * stride. */
static inline int64_t pool_reach(const MothPoolAxis *x, int64_t k, int64_t o0, int64_t o1,
                                 int64_t *to, int64_t *first) {
  int64_t shift = k * x->dilation - x->padding, from = o0;
  if (o0 * x->stride + shift < 0)
    from = (-shift + x->stride - 1) / x->stride;
  int64_t end = shift < x->in ? (x->in - 1 - shift) / x->stride + 1 : 0;
  *to = end < o1 ? end : o1;
  *first = from * x->stride + shift;
  return from;
}

#define POOL_MAX_LOOP(STRIDE)                                                                      \
  MOTH_VECTOR for (int64_t i = 0; i < n; i++) {                                                    \
    real v = LOAD(a[i * (STRIDE)]);                                                                \
    arg_pos here = (arg_pos)(row + i * (STRIDE));                                                  \
    int better = (v > b[i]) | (IS_NAN(v) & !IS_NAN(b[i]));                                         \
    b[i] = better ? v : b[i];                                                                      \
    p[i] = better ? here : p[i];                                                                   \
  }

static void max_pool_row(const MothPoolPlanes *q, const stored *in, int64_t oy, int64_t o0,
                         int64_t m, real *best, arg_pos *at) {
  const MothPoolAxis *x = &q->x;
  for (int64_t i = 0; i < m; i++) {
    best[i] = -(real)__builtin_inf();
    at[i] = (arg_pos)(q->y.begin[oy] * x->in + x->begin[o0 + i]);
  }
  for (int64_t y = q->y.begin[oy]; y < q->y.end[oy]; y += q->y.dilation)
    for (int64_t k = 0; k < x->kernel; k++) {
      int64_t to, first, from = pool_reach(x, k, o0, o0 + m, &to, &first), n = to - from;
      const stored *a = in + y * x->in + first;
      real *b = best + (from - o0);
      arg_pos *p = at + (from - o0), row = (arg_pos)(y * x->in + first);
      if (x->stride == 2) {
        POOL_MAX_LOOP(2)
      } else {
        POOL_MAX_LOOP(x->stride)
      }
    }
}

static void max_pool_planes(const MothPoolPlanes *q) {
  const MothPoolAxis *y = &q->y, *x = &q->x;
  const stored *in = q->in;
  stored *out = q->out;
  int64_t *positions = q->positions;
  real best[POOL_BLOCK];
  arg_pos at[POOL_BLOCK];
  for (int64_t c = 0; c < q->planes; c++, in += y->in * x->in)
    for (int64_t oy = 0; oy < y->out; oy++, out += x->out, positions += x->out)
      for (int64_t o0 = 0; o0 < x->out; o0 += POOL_BLOCK) {
        int64_t m = x->out - o0 < POOL_BLOCK ? x->out - o0 : POOL_BLOCK;
        if (x->kernel) {
          max_pool_row(q, in, oy, o0, m, best, at);
        } else {
          for (int64_t i = 0; i < m; i++) {
            best[i] = -(real)__builtin_inf();
            at[i] = (arg_pos)(y->begin[oy] * x->in + x->begin[o0 + i]);
            for (int64_t r = y->begin[oy]; r < y->end[oy]; r++)
              for (int64_t k = x->begin[o0 + i]; k < x->end[o0 + i]; k++) {
                real v = LOAD(in[r * x->in + k]);
                if ((v > best[i]) | (IS_NAN(v) & !IS_NAN(best[i]))) {
                  best[i] = v;
                  at[i] = (arg_pos)(r * x->in + k);
                }
              }
          }
        }
        MOTH_VECTOR for (int64_t i = 0; i < m; i++) out[o0 + i] = STORE(best[i]);
        for (int64_t i = 0; i < m; i++)
          positions[o0 + i] = at[i] + q->base;
      }
}

/* in: gradient of the pooled planes. Positions were checked. */
static void max_pool_planes_backward(const MothPoolPlanes *q) {
  int64_t size = q->y.in * q->x.in, n = q->y.out * q->x.out;
  for (int64_t c = 0; c < q->planes; c++) {
    const stored *g = (const stored *)q->in + c * n;
    const int64_t *at = q->positions + c * n;
    stored *out = (stored *)q->out + c * size;
    memset(out, 0, (size_t)size * sizeof(stored));
    for (int64_t i = 0; i < n; i++)
      out[at[i] - q->base] = STORE(LOAD(out[at[i] - q->base]) + LOAD(g[i]));
  }
}

static void avg_pool_planes(const MothPoolPlanes *q) {
  const MothPoolAxis *y = &q->y, *x = &q->x;
  const stored *in = q->in;
  stored *out = q->out;
  real sum[POOL_BLOCK];
  for (int64_t c = 0; c < q->planes; c++, in += y->in * x->in)
    for (int64_t oy = 0; oy < y->out; oy++, out += x->out)
      for (int64_t o0 = 0; o0 < x->out; o0 += POOL_BLOCK) {
        int64_t m = x->out - o0 < POOL_BLOCK ? x->out - o0 : POOL_BLOCK;
        for (int64_t i = 0; i < m; i++)
          sum[i] = 0;
        for (int64_t r = y->begin[oy]; r < y->end[oy]; r++) {
          const stored *row = in + r * x->in;
          if (!x->kernel) {
            for (int64_t i = 0; i < m; i++)
              for (int64_t k = x->begin[o0 + i]; k < x->end[o0 + i]; k++)
                sum[i] += LOAD(row[k]);
            continue;
          }
          for (int64_t k = 0; k < x->kernel; k++) {
            int64_t to, first, from = pool_reach(x, k, o0, o0 + m, &to, &first), n = to - from;
            const stored *a = row + first;
            real *s = sum + (from - o0);
            if (x->stride == 2) {
              MOTH_VECTOR for (int64_t i = 0; i < n; i++) s[i] += LOAD(a[i * 2]);
            } else {
              MOTH_VECTOR for (int64_t i = 0; i < n; i++) s[i] += LOAD(a[i * x->stride]);
            }
          }
        }
        for (int64_t i = 0; i < m; i++)
          out[o0 + i] = STORE(sum[i] / (real)(y->count[oy] * x->count[o0 + i]));
      }
}

static void avg_pool_planes_backward(const MothPoolPlanes *q) {
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
            int64_t to, first, from = pool_reach(x, k, o0, o0 + m, &to, &first), n = to - from;
            stored *a = row + first;
            const real *s = share + (from - o0);
            MOTH_VECTOR for (int64_t i = 0; i < n; i++) a[i * x->stride] =
                STORE(LOAD(a[i * x->stride]) + s[i]);
          }
        }
      }
  }
}
#else
static void max_pool_planes(const MothPoolPlanes *q) {
  (void)q;
}
static void max_pool_planes_backward(const MothPoolPlanes *q) {
  (void)q;
}
static void avg_pool_planes(const MothPoolPlanes *q) {
  (void)q;
}
static void avg_pool_planes_backward(const MothPoolPlanes *q) {
  (void)q;
}
#endif
