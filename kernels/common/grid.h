/* Images and volumes at given places, as grid_sample has them, of every device. A value is the sum over one, two or four
 * elements around the place along each dimension, each times a polynomial of t, the place behind the first of them; so
 * derivatives by the places, of any order, are the same sum with other polynomials. */
#ifndef MOTH_COMMON_GRID_H
#define MOTH_COMMON_GRID_H
#include "moth.h"

enum { MOTH_GRID_ZEROS, MOTH_GRID_BORDER, MOTH_GRID_REFLECTION };

typedef struct MothGrid {
  const void *input;  /* (batch, channels, plane) */
  const void *places; /* (batch, points, dims): x first, the last dimension */
  const void *grad;   /* (batch, channels, points) */
  void *out;
  int64_t batch, channels, plane, points;
  int64_t from, to, channel, channels_to; /* what a call computes */
  int64_t image;
  int dims, taps, padding;
  bool align;
  int64_t size[3]; /* the last dimension first, as the places */
  int order[3];
  double weight[3][4][4]; /* of each tap: the coefficients of 1, t, t^2, t^3 */
} MothGrid;

/* The numbers of a call with derivatives of these orders. */
static inline void moth_grid_weights(MothGrid *q, const int *order) {
  const double a = -0.75; /* PyTorch's */
  const double cubic[4][4] = {
      {0, a, -2 * a, a}, {1, 0, -(a + 3), a + 2}, {0, -a, 2 * a + 3, -(a + 2)}, {0, 0, a, -a}};
  const double linear[2][4] = {{1, -1, 0, 0}, {0, 1, 0, 0}};
  for (int d = 0; d < q->dims; d++) {
    double n = (double)q->size[d], scale = (q->align ? n - 1 : n) / 2;
    q->order[d] = order[d];
    for (int k = 0; k < q->taps; k++) {
      double c[4] = {1, 0, 0, 0};
      for (int i = 0; i < 4 && q->taps > 1; i++)
        c[i] = q->taps == 2 ? linear[k][i] : cubic[k][i];
      for (int o = 0; o < order[d]; o++) {
        for (int i = 0; i < 3; i++)
          c[i] = c[i + 1] * (i + 1) * scale;
        c[3] = 0;
      }
      for (int i = 0; i < 4; i++)
        q->weight[d][k][i] = c[i];
    }
  }
}

/* All numbers of a call but its tensors and parts; `image`: the shape of the input; `places`: of the places. */
static inline void moth_grid_geometry(MothGrid *q, int ndim, const int64_t *image,
                                      const int64_t *places, int64_t mode, int64_t padding,
                                      bool align, const int *order) {
  q->dims = ndim - 2;
  q->batch = image[0];
  q->channels = image[1];
  q->plane = q->points = 1;
  for (int d = 0; d < q->dims; d++) {
    q->size[q->dims - 1 - d] = image[2 + d];
    q->plane *= image[2 + d];
    q->points *= places[1 + d];
  }
  q->taps = mode == 0 ? 2 : mode == 1 ? 1 : 4;
  q->padding = (int)padding;
  q->align = align;
  moth_grid_weights(q, order);
}

#ifdef MOTH_FN
/* A place that lies out of [low, high], thrown back at its ends; *turn: how it moves there. */
MOTH_FN real moth_grid_reflect(real x, real low, real high, real *turn) {
  real span = high - low, off = x - low, sign = off < 0 ? -1 : 1;
  off = off * sign;
  real flips = m_floor(off / span), rest = off - flips * span;
  int odd = flips - 2 * m_floor(flips / 2) != 0;
  *turn = high > low ? (odd ? -sign : sign) : 0;
  return high > low ? (odd ? high - rest : rest + low) : 0;
}

/* Where the first tap stands along a dimension of n elements, for a place from -1 to 1, and t; *turn: 1, or what the
 * padding makes of it. */
MOTH_FN real moth_grid_first(real x, real n, int taps, int padding, int align, real *t,
                             real *turn) {
  x = x == x ? x : -1;
  real at = align ? (x + 1) * ((n - 1) / 2) : ((x + 1) * n - 1) / 2, base;
  *turn = 1;
  at = at < -(real)1e8 ? -(real)1e8 : at > (real)1e9 ? (real)1e9 : at;
  if (taps < 4 && padding != MOTH_GRID_ZEROS) {
    if (padding == MOTH_GRID_REFLECTION)
      at = align ? moth_grid_reflect(at, 0, n - 1, turn)
                 : moth_grid_reflect(at, (real)-0.5, n - (real)0.5, turn);
    *turn = ((at > 0) & (at < n - 1)) ? *turn : 0;
    at = at < 0 ? 0 : at > n - 1 ? n - 1 : at;
  }
  base = taps == 1 ? m_round(at) : m_floor(at);
  *t = at - base;
  return taps == 4 ? base - 1 : base;
}

/* The element that a tap at `at` reads; -1: none. */
MOTH_FN int moth_grid_place(real at, real n, int taps, int padding, int align) {
  if (taps == 4 && padding != MOTH_GRID_ZEROS) {
    real turn;
    if (padding == MOTH_GRID_REFLECTION)
      at = align ? moth_grid_reflect(at, 0, n - 1, &turn)
                 : moth_grid_reflect(at, (real)-0.5, n - (real)0.5, &turn);
    at = at < 0 ? 0 : at > n - 1 ? n - 1 : at;
  }
  return ((at >= 0) & (at <= n - 1)) ? (int)at : -1;
}
#endif
#endif
