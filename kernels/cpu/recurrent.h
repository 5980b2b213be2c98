/* Steps of recurrent layers, for float32, float64 and each instruction set (build/gen/kernels/recurrent_*.c); chosen at
 * run time. */
#ifndef MOTH_CPU_RECURRENT_H
#define MOTH_CPU_RECURRENT_H
#include "kernels/cpu/loop.h"

/* The sequences [0, n) of one time step; rows of all arrays are row-major, H elements for each gate. Row i of `gates`,
 * `input` and `dgates` begins at i times `width` gates, of the others at i * H. */
typedef struct MothStep {
  int64_t n, H;
  const void *before;      /* h of the step before */
  const void *cell_before; /* LSTM: its c */
  const void *bias;        /* GRU: (3 H) of the hidden part, or NULL */
  const void *input;       /* GRU, forward: the projected input (n, 3 H) */
  void *
      gates; /* LSTM: in, sums, out, activated (n, 4 H); GRU: r, z, n and the hidden part of n (n, 4 H) */
  void *hidden;     /* GRU, forward: (n, 3 H), the products with the weight */
  void *out, *cell; /* h, and of an LSTM c */
  /* backward; NULL: none was given */
  const void *grad_out, *grad_cell, *grad_gates;
  void *dh, *dc; /* in: the gradients that come from the step behind; dc out: of the cell before */
  void *dgates;  /* LSTM (n, 4 H), GRU (n, 3 H): of the projected input */
  void *dhidden; /* GRU (n, 3 H): of the hidden part */
} MothStep;

typedef struct MothRecurrentRows {
  /* Elements of a packed matrix of n columns and k rows. */
  int64_t (*packed)(int64_t n, int64_t k);
  /* Packs w (n, k), transposed, and w (k, n), for `multiply`. */
  void (*pack_transposed)(void *out, const void *w, int64_t n, int64_t k);
  void (*pack_columns)(void *out, const void *w, int64_t n, int64_t k);
  /* c (m, n) = a (m, k) times a packed matrix (k, n), added to c with `add`. */
  void (*multiply)(void *c, const void *a, const void *packed, int64_t m, int64_t n, int64_t k,
                   bool add);
  void (*lstm)(const MothStep *s);
  void (*lstm_backward)(const MothStep *s);
  void (*gru)(const MothStep *s);
  void (*gru_backward)(const MothStep *s);
} MothRecurrentRows;

/* [double][level]: generated */
extern const MothRecurrentRows *const moth_recurrent_rows[2][MOTH_NISAS];
#endif
