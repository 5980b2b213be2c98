/* The functions of MothRecurrentRows, for one type and instruction set: included by a generated file after
 * kernels/cpu/typed/prelude.h. An element's bits depend neither on the number of sequences nor on its place. */
#include "kernels/cpu/attention_product.h"
#include "kernels/cpu/recurrent.h"

static int64_t packed(int64_t n, int64_t k) {
  return (n + PART_WIDTH - 1) / PART_WIDTH * PART_WIDTH * k;
}

static void pack_transposed(void *out, const void *w, int64_t n, int64_t k) {
  pack(out, w, k, n, k);
}

static void pack_columns(void *out, const void *w, int64_t n, int64_t k) {
  real *o = out;
  const real *a = w;
  for (int64_t j = 0; j < n; j += PART_WIDTH) {
    int64_t have = n - j < PART_WIDTH ? n - j : PART_WIDTH;
    for (int64_t d = 0; d < k; d++, o += PART_WIDTH) {
      memcpy(o, a + d * n + j, (size_t)have * sizeof(real));
      for (int64_t l = have; l < PART_WIDTH; l++)
        o[l] = 0;
    }
  }
}

static void multiply(void *c, const void *a, const void *b, int64_t m, int64_t n, int64_t k,
                     bool add) {
  Product p = {.m = m,
               .n = n,
               .k = k,
               .a = a,
               .b = b,
               .a_row = k,
               .a_col = 1,
               .b_row = PART_WIDTH,
               .b_part = PART_WIDTH * k,
               .c = c,
               .c_row = n,
               .alpha = 1,
               .add = add,
               .padded = false,
               .cut = CUT_DEPTH,
               .visible = k};
  product(&p);
}

/* c' = f c + i n, h = o tanh(c') */
static MOTH_ROW void lstm_row(real *restrict i, real *restrict f, real *restrict g,
                              real *restrict o, const real *restrict before, real *restrict cell,
                              real *restrict out, int64_t H) {
  MOTH_VECTOR for (int64_t k = 0; k < H; k++) i[k] = m_sigmoid(i[k]);
  MOTH_VECTOR for (int64_t k = 0; k < H; k++) f[k] = m_sigmoid(f[k]);
  MOTH_VECTOR for (int64_t k = 0; k < H; k++) g[k] = m_tanh(g[k]);
  MOTH_VECTOR for (int64_t k = 0; k < H; k++) o[k] = m_sigmoid(o[k]);
  MOTH_VECTOR for (int64_t k = 0; k < H; k++) {
    real c = f[k] * before[k] + i[k] * g[k];
    cell[k] = c;
    out[k] = o[k] * m_tanh(c);
  }
}

static void lstm(const MothStep *s) {
  const int64_t H = s->H;
  for (int64_t r = 0; r < s->n; r++) {
    real *g = (real *)s->gates + r * 4 * H;
    lstm_row(g, g + H, g + 2 * H, g + 3 * H, (const real *)s->cell_before + r * H,
             (real *)s->cell + r * H, (real *)s->out + r * H, H);
  }
}

static MOTH_ROW void lstm_row_backward(const real *restrict gates, const real *restrict before,
                                       const real *restrict cell, const real *restrict dh,
                                       real *restrict dc, const real *restrict more,
                                       real *restrict d, int64_t H) {
  const real *i = gates, *f = gates + H, *g = gates + 2 * H, *o = gates + 3 * H;
  real *di = d, *df = d + H, *dg = d + 2 * H, *dout = d + 3 * H;
  MOTH_VECTOR for (int64_t k = 0; k < H; k++) {
    real t = m_tanh(cell[k]);
    real c = dc[k] + dh[k] * o[k] * (1 - t * t);
    di[k] = c * g[k];
    df[k] = c * before[k];
    dg[k] = c * i[k];
    dout[k] = dh[k] * t;
    dc[k] = c * f[k];
  }
  if (more)
    MOTH_VECTOR for (int64_t k = 0; k < 4 * H; k++) d[k] += more[k];
  MOTH_VECTOR for (int64_t k = 0; k < H; k++) {
    di[k] *= i[k] * (1 - i[k]);
    df[k] *= f[k] * (1 - f[k]);
    dg[k] *= 1 - g[k] * g[k];
    dout[k] *= o[k] * (1 - o[k]);
  }
}

/* to += from, which may be NULL */
static void plus(real *restrict to, const real *restrict from, int64_t n) {
  if (from)
    MOTH_VECTOR for (int64_t k = 0; k < n; k++) to[k] += from[k];
}

static void lstm_backward(const MothStep *s) {
  const int64_t H = s->H;
  plus(s->dh, s->grad_out, s->n * H);
  plus(s->dc, s->grad_cell, s->n * H);
  for (int64_t r = 0; r < s->n; r++)
    lstm_row_backward((const real *)s->gates + r * 4 * H, (const real *)s->cell_before + r * H,
                      (const real *)s->cell + r * H, (const real *)s->dh + r * H,
                      (real *)s->dc + r * H,
                      s->grad_gates ? (const real *)s->grad_gates + r * 4 * H : NULL,
                      (real *)s->dgates + r * 4 * H, H);
}

/* r, z = sigmoid(x + y), n = tanh(x + r y), h = n + z (h - n); y: the hidden part */
static MOTH_ROW void gru_row(const real *restrict x, const real *restrict y,
                             const real *restrict before, real *restrict gates, real *restrict out,
                             int64_t H) {
  real *r = gates, *z = gates + H, *n = gates + 2 * H, *hidden = gates + 3 * H;
  MOTH_VECTOR for (int64_t k = 0; k < 2 * H; k++) r[k] = m_sigmoid(x[k] + y[k]);
  MOTH_VECTOR for (int64_t k = 0; k < H; k++) hidden[k] = y[2 * H + k];
  MOTH_VECTOR for (int64_t k = 0; k < H; k++) n[k] = m_tanh(x[2 * H + k] + r[k] * hidden[k]);
  MOTH_VECTOR for (int64_t k = 0; k < H; k++) out[k] = n[k] + z[k] * (before[k] - n[k]);
}

static void gru(const MothStep *s) {
  const int64_t H = s->H;
  for (int64_t i = 0; i < s->n; i++) {
    real *y = (real *)s->hidden + i * 3 * H;
    plus(y, s->bias, 3 * H);
    gru_row((const real *)s->input + i * 3 * H, y, (const real *)s->before + i * H,
            (real *)s->gates + i * 4 * H, (real *)s->out + i * H, H);
  }
}

static MOTH_ROW void gru_row_backward(const real *restrict gates, const real *restrict before,
                                      real *restrict dh, const real *restrict more,
                                      real *restrict d, real *restrict y, int64_t H) {
  const real *r = gates, *z = gates + H, *n = gates + 2 * H, *hidden = gates + 3 * H;
  MOTH_VECTOR for (int64_t k = 0; k < H; k++) {
    real dn = dh[k] * (1 - z[k]), dz = dh[k] * (before[k] - n[k]);
    dh[k] *= z[k];
    if (more)
      dn += more[2 * H + k], dz += more[H + k];
    dn *= 1 - n[k] * n[k];
    real dr = dn * hidden[k];
    if (more)
      dr += more[k];
    d[k] = y[k] = dr * r[k] * (1 - r[k]);
    d[H + k] = y[H + k] = dz * z[k] * (1 - z[k]);
    d[2 * H + k] = dn;
    y[2 * H + k] = dn * r[k] + (more ? more[3 * H + k] : 0);
  }
}

static void gru_backward(const MothStep *s) {
  const int64_t H = s->H;
  plus(s->dh, s->grad_out, s->n * H);
  for (int64_t i = 0; i < s->n; i++)
    gru_row_backward((const real *)s->gates + i * 4 * H, (const real *)s->before + i * H,
                     (real *)s->dh + i * H,
                     s->grad_gates ? (const real *)s->grad_gates + i * 4 * H : NULL,
                     (real *)s->dgates + i * 3 * H, (real *)s->dhidden + i * 3 * H, H);
}
