/* What attention does to a tile of scores between two matrix products: compiled for float32 and float64
 * and each instruction set (build/gen/kernels/attention_*.c), chosen at run time. */
#ifndef MOTH_CPU_ATTENTION_H
#define MOTH_CPU_ATTENTION_H
#include "kernels/cpu/table.h"

/* rows queries x cols keys; scores and what goes with them lie `step` elements apart. */
typedef struct MothAttentionTile {
  int64_t rows, cols, step;
  void *score;       /* scaled products; become weights (backward: those that met the values) */
  void *grad;        /* backward: gradient of the weights; becomes that of the scores */
  const void *keep;  /* dropout: 1 or 0; NULL: none */
  double keep_scale; /* 1 / (1 - p) */
  const char *mask;  /* of the tile's first element; NULL: none */
  int64_t mask_row;  /* step of its rows, in elements */
  bool mask_bool;    /* true or false; else numbers that are added */
  bool mask_wide;    /* one element per key; else one per row */
  int64_t visible;   /* row i sees the first visible + i keys of the tile */
  void *max;         /* per row, so far */
  double *sum;       /* per row, so far: exp(score - max) */
  void *out;         /* rows x width: grows with the tiles, each scaled to the maximum */
  int64_t width, out_row; /* out_row: elements */
  void *lse;              /* per row: the logarithm of the sum; infinite for one that saw nothing */
  const void *delta;      /* per row: grad_output . output, less the gradient of lse */
  double scale;
} MothAttentionTile;

typedef struct MothAttentionRows {
  /* Scores become exp(score - max), dropped ones 0; max and sum go on, out is scaled to the new max. */
  void (*weights)(const MothAttentionTile *t);
  /* out /= sum; lse. */
  void (*finish)(const MothAttentionTile *t);
  /* Scores become weights by lse, grad that of the products before scaling. */
  void (*backward)(const MothAttentionTile *t);
  /* delta = a . b - minus (NULL: 0), n elements each */
  void (*dot)(void *delta, const void *a, const void *b, int64_t n, const void *minus);
  /* to += from */
  void (*add)(void *to, const void *from, int64_t n);
} MothAttentionRows;

/* [double][level]: generated */
extern const MothAttentionRows *const moth_attention_rows[2][MOTH_NISAS];
#endif
