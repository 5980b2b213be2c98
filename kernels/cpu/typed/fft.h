/* Fourier transforms of V lines side by side.
 *
 * Element i of all lines is a row of V numbers: re[i][V], im[i][V]. The passes are Stockham's: with n = r m s, where s is
 * the product of the radices of the passes before, one of radix r reads x[k][p][q] (k < r, p < m, q < s), and writes
 * y[p][k][q] = w^(p k) sum over j of x[j][p][q] exp(-2 pi i j k / r), w = exp(-2 pi i / (r m)): rows of the result come in
 * order by themselves, and whatever n is, each operation is one of V lanes. Backward transforms exchange re and im. */
#include "kernels/common/fft.h"
#include "kernels/cpu/typed/prelude.h"
#if MOTH_REAL_KIND <= 2 && MOTH_STORED == 0

#pragma GCC diagnostic ignored "-Wpsabi"

enum { V = MOTH_VECTOR_BYTES / sizeof(real), TILE = 16 };
typedef real vec __attribute__((vector_size(MOTH_VECTOR_BYTES), may_alias));
typedef struct Z {
  vec re, im;
} Z;

MOTH_FN Z z_add(Z a, Z b) {
  return (Z){a.re + b.re, a.im + b.im};
}
MOTH_FN Z z_sub(Z a, Z b) {
  return (Z){a.re - b.re, a.im - b.im};
}
MOTH_FN Z z_turned(Z a) { /* times -i */
  return (Z){a.im, -a.re};
}
MOTH_FN Z z_mul(Z a, real c, real s) {
  return (Z){a.re * c - a.im * s, a.re * s + a.im * c};
}
MOTH_FN Z z_scaled(Z a, real c) {
  return (Z){a.re * c, a.im * c};
}
MOTH_FN Z z_load(const real *re, const real *im, int64_t at) {
  return (Z){*(const vec *)(re + at), *(const vec *)(im + at)};
}
MOTH_FN void z_store(real *re, real *im, int64_t at, Z z) {
  *(vec *)(re + at) = z.re;
  *(vec *)(im + at) = z.im;
}

typedef struct Pass {
  int64_t m, row; /* row: s * V numbers */
  const real *xr, *xi, *tw;
  real *yr, *yi;
} Pass;

/* b[k] = the transform of a[0 .. r). */
MOTH_FN void butterfly4(const Z *a, Z *b) {
  Z t0 = z_add(a[0], a[2]), t1 = z_sub(a[0], a[2]), t2 = z_add(a[1], a[3]),
    t3 = z_turned(z_sub(a[1], a[3]));
  b[0] = z_add(t0, t2);
  b[1] = z_add(t1, t3);
  b[2] = z_sub(t0, t2);
  b[3] = z_sub(t1, t3);
}
MOTH_FN void butterfly8(const Z *a, Z *b) {
  const real h = (real)0.70710678118654752440;
  Z even[4] = {a[0], a[2], a[4], a[6]}, odd[4] = {a[1], a[3], a[5], a[7]}, e[4], o[4];
  butterfly4(even, e);
  butterfly4(odd, o);
  o[1] = (Z){(o[1].re + o[1].im) * h, (o[1].im - o[1].re) * h};
  o[2] = z_turned(o[2]);
  o[3] = (Z){(o[3].im - o[3].re) * h, (o[3].re + o[3].im) * -h};
#pragma GCC unroll 4
  for (int k = 0; k < 4; k++) {
    b[k] = z_add(e[k], o[k]);
    b[k + 4] = z_sub(e[k], o[k]);
  }
}
/* cos and sin of 2 pi k / r. */
static const double circle[14][2][7] = {
    [3] = {{1, -0.5}, {0, 0.86602540378443865}},
    [5] = {{1, 0.30901699437494742, -0.80901699437494742},
           {0, 0.95105651629515357, 0.58778525229247313}},
    [7] = {{1, 0.62348980185873353, -0.22252093395631440, -0.90096886790241913},
           {0, 0.78183148246802981, 0.97492791218182361, 0.43388373911755812}},
    [11] = {{1, 0.84125353283118117, 0.41541501300188643, -0.14231483827328514,
             -0.65486073394528506, -0.95949297361449739},
            {0, 0.54064081745559758, 0.90963199535451837, 0.98982144188093273, 0.75574957435425828,
             0.28173255684142970}},
    [13] = {{1, 0.88545602565320990, 0.56806474673115581, 0.12053668025532306, -0.35460488704253562,
             -0.74851074817110110, -0.97094181742605203},
            {0, 0.46472317204376855, 0.82298386589365640, 0.99270887409805400, 0.93501624268541483,
             0.66312265824079521, 0.23931566428755777}},
};
MOTH_FN void butterfly_odd(int r, const Z *a, Z *b) {
  Z sum[6], difference[6];
  const int h = r / 2;
  b[0] = a[0];
#pragma GCC unroll 6
  for (int k = 1; k <= h; k++) {
    sum[k - 1] = z_add(a[k], a[r - k]);
    difference[k - 1] = z_sub(a[k], a[r - k]);
    b[0] = z_add(b[0], sum[k - 1]);
  }
#pragma GCC unroll 6
  for (int j = 1; j <= h; j++) {
    Z x = a[0], y = {{0}, {0}};
#pragma GCC unroll 6
    for (int k = 1; k <= h; k++) {
      int at = j * k % r, fold = at <= h ? at : r - at;
      real c = (real)circle[r][0][fold], s = (real)circle[r][1][fold] * (at <= h ? 1 : -1);
      x = z_add(x, z_scaled(sum[k - 1], c));
      y = z_add(y, z_scaled(difference[k - 1], s));
    }
    y = z_turned(y);
    b[j] = z_add(x, y);
    b[r - j] = z_sub(x, y);
  }
}

MOTH_FN void pass_of(int r, const Pass *q) {
  const int64_t m = q->m, row = q->row;
  for (int64_t p = 0; p < m; p++) {
    const real *tw = q->tw + p * 2 * (r - 1);
    for (int64_t i = 0; i < row; i += V) {
      Z a[13], b[13];
#pragma GCC unroll 13
      for (int k = 0; k < r; k++)
        a[k] = z_load(q->xr, q->xi, (p + m * k) * row + i);
      if (r == 2) {
        b[0] = z_add(a[0], a[1]);
        b[1] = z_sub(a[0], a[1]);
      } else if (r == 4) {
        butterfly4(a, b);
      } else if (r == 8) {
        butterfly8(a, b);
      } else {
        butterfly_odd(r, a, b);
      }
      z_store(q->yr, q->yi, p * r * row + i, b[0]);
#pragma GCC unroll 13
      for (int k = 1; k < r; k++)
        z_store(q->yr, q->yi, (p * r + k) * row + i, z_mul(b[k], tw[2 * k - 2], tw[2 * k - 1]));
    }
  }
}
#define PASS(r)                                                                                    \
  static __attribute__((noinline)) void pass##r(const Pass *q) {                                   \
    pass_of(r, q);                                                                                 \
  }
PASS(2)
PASS(3)
PASS(4)
PASS(5)
PASS(7)
PASS(8)
PASS(11)
PASS(13)

/* Transforms x[n][V]; y is workspace. Returns where the result is. */
static real *stages(const MothFftPlan *p, real *x, real *y) {
  const int64_t half = p->n * V;
  const real *tw = p->twiddles;
  int64_t rest = p->n, s = 1;
  for (int i = 0; i < p->stages; i++) {
    int r = p->radix[i];
    Pass q = {rest / r, s * V, x, x + half, tw, y, y + half};
    switch (r) {
    case 2:
      pass2(&q);
      break;
    case 3:
      pass3(&q);
      break;
    case 4:
      pass4(&q);
      break;
    case 5:
      pass5(&q);
      break;
    case 7:
      pass7(&q);
      break;
    case 8:
      pass8(&q);
      break;
    case 11:
      pass11(&q);
      break;
    default:
      pass13(&q);
      break;
    }
    tw += q.m * 2 * (r - 1);
    rest = q.m;
    s *= r;
    real *t = x;
    x = y;
    y = t;
  }
  return x;
}

/* x times a table of factors, the other rows up to `rows` 0; `conjugate`: the result is its conjugate. */
static void times_table(const real *x, int64_t x_half, const real *table, int64_t n, int64_t rows,
                        bool conjugate, real *y, int64_t y_half) {
  for (int64_t k = 0; k < n; k++) {
    Z z = z_mul(z_load(x, x + x_half, k * V), table[2 * k], table[2 * k + 1]);
    if (conjugate)
      z.im = -z.im;
    z_store(y, y + y_half, k * V, z);
  }
  memset(y + n * V, 0, (size_t)((rows - n) * V) * sizeof(real));
  memset(y + y_half + n * V, 0, (size_t)((rows - n) * V) * sizeof(real));
}

/* Transforms x, re[n][V] before im[n][V]; `x` and the rest of the workspace each have moth_fft_work / 2 rows. */
static real *transform(const MothFftPlan *p, real *x, real *y) {
  if (!p->inner)
    return stages(p, x, y);
  const int64_t n = p->n, m = p->inner->n;
  times_table(x, n * V, p->chirp, n, m, false, y, m * V);
  real *z = stages(p->inner, y, x), *other = z == x ? y : x;
  /* The inverse of the product by a forward transform of its conjugate. */
  times_table(z, m * V, p->filter, m, m, true, other, m * V);
  real *w = stages(p->inner, other, z);
  other = w == x ? y : x;
  for (int64_t k = 0; k < n; k++) { /* the conjugate again, then the chirp */
    const real *c = (const real *)p->chirp + 2 * k;
    Z a = z_load(w, w + m * V, k * V);
    a.im = -a.im;
    z_store(other, other + n * V, k * V, z_mul(a, c[0], c[1]));
  }
  return other;
}

/* ---- lines in memory ------------------------------------------------------------------------------ */

/* Whether lane v of each row lies beside lane v + 1. */
static bool adjacent(const int64_t *at, int lines) {
  for (int v = 1; v < lines; v++)
    if (at[v] != at[v - 1] + 1)
      return false;
  return lines == V;
}

/* Pairs that lie beside each other in a line are moved a tile at a time, by shuffles of whole vectors: element by element
 * it takes as long as the passes. Both return how many elements of each line they have moved. */
#ifdef __AVX512F__
typedef double eight __attribute__((vector_size(64), aligned(8), may_alias));
#define SHUFFLE __builtin_shufflevector
enum { FETCHED = 2 }; /* vectors ahead: the processor follows fewer lines than go side by side */

/* The columns of 8 rows of pairs of floats (4 rows of pairs of doubles) as rows. */
MOTH_FN void transpose(eight *r) {
  if (sizeof(real) == 4) {
    eight a[8], b[8];
#pragma GCC unroll 4
    for (int k = 0; k < 8; k += 2) {
      a[k] = SHUFFLE(r[k], r[k + 1], 0, 8, 2, 10, 4, 12, 6, 14);
      a[k + 1] = SHUFFLE(r[k], r[k + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
#pragma GCC unroll 2
    for (int g = 0; g < 8; g += 4) {
#pragma GCC unroll 2
      for (int k = 0; k < 2; k++) {
        b[g + k] = SHUFFLE(a[g + k], a[g + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        b[g + k + 2] = SHUFFLE(a[g + k], a[g + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
      }
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
      r[k] = SHUFFLE(b[k], b[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
      r[k + 4] = SHUFFLE(b[k], b[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
  } else {
    eight a[4];
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
      a[k] = SHUFFLE(r[2 * k], r[2 * k + 1], 0, 1, 8, 9, 4, 5, 12, 13);
      a[k + 2] = SHUFFLE(r[2 * k], r[2 * k + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
      r[k] = SHUFFLE(a[2 * k], a[2 * k + 1], 0, 1, 2, 3, 8, 9, 10, 11);
      r[k + 2] = SHUFFLE(a[2 * k], a[2 * k + 1], 4, 5, 6, 7, 12, 13, 14, 15);
    }
  }
}
#if MOTH_REAL_KIND == 1
#define EVEN    0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD     1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define ZIP_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ZIP_TOP 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#else
#define EVEN    0, 2, 4, 6, 8, 10, 12, 14
#define ODD     1, 3, 5, 7, 9, 11, 13, 15
#define ZIP_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define ZIP_TOP 4, 12, 5, 13, 6, 14, 7, 15
#endif

static int64_t load_pairs(const real *in, const int64_t *at, int64_t unit, int64_t count, real *re,
                          real *im) {
  enum { SIDE = V / 2 };
  int64_t i = 0;
  for (; i + SIDE <= count; i += SIDE) {
    eight r[2][SIDE];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
#pragma GCC unroll 8
      for (int v = 0; v < SIDE; v++) {
        const eight *from = (const eight *)(in + at[h * SIDE + v] * unit + 2 * i);
        r[h][v] = *from;
        __builtin_prefetch(from + FETCHED);
      }
      transpose(r[h]);
    }
#pragma GCC unroll 8
    for (int k = 0; k < SIDE; k++) {
      vec a = (vec)r[0][k], b = (vec)r[1][k];
      *(vec *)(re + (i + k) * V) = SHUFFLE(a, b, EVEN);
      *(vec *)(im + (i + k) * V) = SHUFFLE(a, b, ODD);
    }
  }
  return i;
}

static int64_t store_pairs(real *out, const int64_t *at, int64_t unit, int64_t count,
                           const real *re, const real *im, real c) {
  enum { SIDE = V / 2 };
  int64_t i = 0;
  for (; i + SIDE <= count; i += SIDE) {
    eight r[2][SIDE];
#pragma GCC unroll 8
    for (int k = 0; k < SIDE; k++) {
      vec a = *(const vec *)(re + (i + k) * V) * c, b = *(const vec *)(im + (i + k) * V) * c;
      r[0][k] = (eight)SHUFFLE(a, b, ZIP_LOW);
      r[1][k] = (eight)SHUFFLE(a, b, ZIP_TOP);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      transpose(r[h]);
#pragma GCC unroll 8
      for (int v = 0; v < SIDE; v++) {
        eight *to = (eight *)(out + at[h * SIDE + v] * unit + 2 * i);
        *to = r[h][v];
        __builtin_prefetch(to + FETCHED, 1);
      }
    }
  }
  return i;
}
#else
static int64_t load_pairs(const real *in, const int64_t *at, int64_t unit, int64_t count, real *re,
                          real *im) {
  (void)in, (void)at, (void)unit, (void)count, (void)re, (void)im;
  return 0;
}
static int64_t store_pairs(real *out, const int64_t *at, int64_t unit, int64_t count,
                           const real *re, const real *im, real c) {
  (void)out, (void)at, (void)unit, (void)count, (void)re, (void)im, (void)c;
  return 0;
}
#endif

/* The elements of each line into rows, `step` numbers apart; lines begin at units of `unit` numbers, and an element's im
 * lies `second` numbers behind its re. */
MOTH_FN void gather_rows(const real *in, const int64_t *at, int lines, int64_t count, int64_t step,
                         int64_t unit, int64_t second, real *re, real *im) {
  if (lines < V) {
    memset(re, 0, (size_t)(count * V) * sizeof(real));
    memset(im, 0, (size_t)(count * V) * sizeof(real));
  }
  int64_t done =
      lines == V && step == 2 && second == 1 ? load_pairs(in, at, unit, count, re, im) : 0;
  for (int64_t i0 = done; i0 < count; i0 += TILE) {
    int64_t i1 = i0 + TILE < count ? i0 + TILE : count;
    for (int v = 0; v < lines; v++) {
      const real *line = in + at[v] * unit;
      for (int64_t i = i0; i < i1; i++) {
        re[i * V + v] = line[i * step];
        im[i * V + v] = line[i * step + second];
      }
    }
  }
}
MOTH_FN void load_complex(const MothFft *f, int64_t count, real *re, real *im) {
  const real *in = f->in;
  if (adjacent(f->in_at, f->lines)) {
    for (int64_t i = 0; i < count; i++) {
      const real *line = in + (f->in_at[0] + i * f->in_stride) * 2;
      for (int v = 0; v < V; v++) {
        re[i * V + v] = line[2 * v];
        im[i * V + v] = line[2 * v + 1];
      }
    }
    return;
  }
  gather_rows(in, f->in_at, f->lines, count, f->in_stride * 2, 2, 1, re, im);
}
MOTH_FN void store_complex(const MothFft *f, int64_t count, const real *re, const real *im) {
  real *out = f->out;
  const real c = (real)f->scale;
  if (adjacent(f->out_at, f->lines)) {
    for (int64_t i = 0; i < count; i++) {
      real *line = out + (f->out_at[0] + i * f->out_stride) * 2;
      for (int v = 0; v < V; v++) {
        line[2 * v] = re[i * V + v] * c;
        line[2 * v + 1] = im[i * V + v] * c;
      }
    }
    return;
  }
  int64_t done =
      f->lines == V && f->out_stride == 1 ? store_pairs(out, f->out_at, 2, count, re, im, c) : 0;
  for (int64_t i0 = done; i0 < count; i0 += TILE) {
    int64_t i1 = i0 + TILE < count ? i0 + TILE : count;
    for (int v = 0; v < f->lines; v++) {
      real *line = out + f->out_at[v] * 2;
      for (int64_t i = i0; i < i1; i++) {
        line[i * f->out_stride * 2] = re[i * V + v] * c;
        line[i * f->out_stride * 2 + 1] = im[i * V + v] * c;
      }
    }
  }
}
/* Real elements: lane v of row i has element i of the first list at 2 i (or i), that of the second behind it. */
MOTH_FN void store_real(const MothFft *f, int64_t count, int64_t per_row, const real *re,
                        const real *im) {
  real *out = f->out;
  const real c = (real)f->scale;
  int64_t done = f->lines == V && f->out_stride == 1 && per_row == 2
                     ? store_pairs(out, f->out_at, 1, count, re, im, c)
                     : 0;
  for (int64_t i0 = done; i0 < count; i0 += TILE) {
    int64_t i1 = i0 + TILE < count ? i0 + TILE : count;
    for (int v = 0; v < f->lines; v++) {
      real *line = out + f->out_at[v];
      for (int64_t i = i0; i < i1; i++) {
        line[i * per_row * f->out_stride] = re[i * V + v] * c;
        if (per_row == 2)
          line[(2 * i + 1) * f->out_stride] = im[i * V + v] * c;
      }
    }
  }
}

static void c2c(const MothFft *f, real *x, real *y) {
  const int64_t n = f->n, half = n * V;
  load_complex(f, n, f->backward ? x + half : x, f->backward ? x : x + half);
  real *z = transform(f->plan, x, y), *re = f->backward ? z + half : z,
       *im = f->backward ? z : z + half;
  const real *turn = f->turn;
  for (int64_t k = 0; turn && k < n; k++)
    for (int v = 0; v < f->lines; v++) {
      real c = turn[(k * f->turn_row + v) * 2], s = turn[(k * f->turn_row + v) * 2 + 1];
      s = f->backward ? -s : s;
      real a = re[k * V + v], b = im[k * V + v];
      re[k * V + v] = a * c - b * s;
      im[k * V + v] = a * s + b * c;
    }
  store_complex(f, n, re, im);
}

/* Even n: the transform of pairs, then the two halves taken apart. */
static void r2c(const MothFft *f, real *x, real *y) {
  const int64_t n = f->n, h = f->plan->n, half = h * V;
  const real *in = f->in;
  if (n % 2 != 0) {
    gather_rows(in, f->in_at, f->lines, n, f->in_stride, 1, 0, x, x + n * V);
    memset(x + n * V, 0, (size_t)(n * V) * sizeof(real));
    real *z = transform(f->plan, x, y);
    store_complex(f, n / 2 + 1, z, z + n * V);
    return;
  }
  gather_rows(in, f->in_at, f->lines, h, f->in_stride * 2, 1, f->in_stride, x, x + half);
  real *z = transform(f->plan, x, y), *o = z == x ? y : x;
  const real *w = f->plan->half;
  for (int64_t k = 0; k <= h; k++) {
    Z a = z_load(z, z + half, (k == h ? 0 : k) * V),
      b = z_load(z, z + half, (k == 0 ? 0 : h - k) * V);
    b.im = -b.im;
    Z even = z_add(a, b), odd = z_mul(z_turned(z_sub(a, b)), w[2 * k], w[2 * k + 1]);
    z_store(o, o + half + V, k * V, z_scaled(z_add(even, odd), (real)0.5));
  }
  store_complex(f, h + 1, o, o + half + V);
}

static void c2r(const MothFft *f, real *x, real *y) {
  const int64_t n = f->n, h = f->plan->n, half = h * V;
  const int64_t given = n / 2 + 1;
  real *re = y, *im = y + given * V;
  load_complex(f, given, re, im);
  memset(im, 0, V * sizeof(real)); /* imaginary parts that there cannot be */
  if (n % 2 != 0) {
    for (int64_t k = 0; k < n; k++) {
      Z a = z_load(re, im, (k < given ? k : n - k) * V);
      if (k >= given)
        a.im = -a.im;
      z_store(x + n * V, x, k * V, a); /* exchanged: backward */
    }
    real *z = transform(f->plan, x, y);
    store_real(f, n, 1, z + n * V, z);
    return;
  }
  memset(im + h * V, 0, V * sizeof(real));
  const real *w = f->plan->half;
  for (int64_t k = 0; k < h; k++) {
    Z a = z_load(re, im, k * V), b = z_load(re, im, (h - k) * V);
    b.im = -b.im;
    Z even = z_add(a, b), odd = z_mul(z_sub(a, b), w[2 * k], -w[2 * k + 1]);
    z_store(x + half, x, k * V, z_sub(even, z_turned(odd)));
  }
  real *z = transform(f->plan, x, y);
  store_real(f, h, 2, z + half, z);
}

/* One line of n real elements whose transform as n / 2 pairs is, or is to be, that of a complex line: r2c takes the
 * halves apart, from in to out; c2r puts them together. */
MOTH_TYPED_REAL void fft_halves(const struct MothFft *f) {
  const int64_t h = f->plan->n;
  const real *z = f->in, *w = f->plan->half;
  real *o = f->out;
  const bool apart = f->kind == MOTH_FFT_R2C;
  const real scale = (real)(apart ? f->scale * 0.5 : f->scale);
  for (int64_t k = 0; k < h + apart; k++) {
    int64_t i = apart && k == h ? 0 : k, j = apart && k == 0 ? 0 : h - k;
    real ar = z[2 * i], ai = z[2 * i + 1], br = z[2 * j], bi = -z[2 * j + 1];
    if (!apart && k == 0) /* imaginary parts that there cannot be */
      ai = bi = 0;
    real er = ar + br, ei = ai + bi, dr = ar - br, di = ai - bi, c = w[2 * k], s = w[2 * k + 1];
    if (apart) { /* -i d w */
      o[2 * k] = (er + di * c + dr * s) * scale;
      o[2 * k + 1] = (ei + di * s - dr * c) * scale;
    } else { /* i d conj(w) */
      real x = dr * c + di * s, y = di * c - dr * s;
      o[2 * k] = (er - y) * scale;
      o[2 * k + 1] = (ei + x) * scale;
    }
  }
}

MOTH_TYPED_REAL void fft_lines(const struct MothFft *f) {
  real *x = f->work, *y = x + moth_fft_work(f->plan) / 2 * V;
  for (int first = 0; first < f->lines; first += V) {
    MothFft part = *f;
    part.lines = f->lines - first < V ? f->lines - first : V;
    part.in_at += first;
    part.out_at += first;
    part.turn = f->turn ? (const real *)f->turn + 2 * first : NULL;
    if (f->kind == MOTH_FFT_C2C)
      c2c(&part, x, y);
    else if (f->kind == MOTH_FFT_R2C)
      r2c(&part, x, y);
    else
      c2r(&part, x, y);
  }
}
#endif
