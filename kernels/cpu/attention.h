/* What attention does to a tile of scores between two matrix products: compiled for float32 and float64
 * and each instruction set (build/gen/kernels/attention_*.c), chosen at run time. */
#ifndef MOTH_CPU_ATTENTION_H
#define MOTH_CPU_ATTENTION_H
#include "kernels/cpu/table.h"

/* rows queries x cols keys; scores and what goes with them lie `step` elements apart, which leaves room
 * for whole vectors. Rows of the other matrices lie *_row elements apart. */
typedef struct MothAttentionTile {
  int64_t rows, cols, step;
  int64_t depth, width; /* of a query and a key; of a value */
  const void *q, *k, *v;
  int64_t q_row, k_row, v_row;
  bool fresh;     /* other keys than last time: they are turned again */
  void *k_turned; /* room: see moth_attention_turned */
  void *v_turned; /* backward: the same for values */
  void *whole;    /* room: see moth_attention_whole */
  void *score;    /* room: scaled products; become weights (backward: those that met the values) */
  void *grad;     /* backward, room: gradient of the weights; becomes that of the scores */
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
  int64_t out_row;
  bool first;        /* the first tile: max, sum and out begin */
  void *lse;         /* per row: the logarithm of the sum; infinite for one that saw nothing */
  const void *delta; /* per row: grad_output . output, less the gradient of lse */
  const void *dout;  /* gradient of the output */
  int64_t dout_row;
  void *dq, *dk, *dv; /* row-major; dq grows */
  bool more;          /* dk and dv grow */
  double scale;
} MothAttentionTile;

/* Elements of a tile's rooms, at any level. */
static inline int64_t moth_attention_turned(int64_t keys, int64_t depth) {
  return (keys + 31) / 32 * 32 * depth;
}
static inline int64_t moth_attention_whole(int64_t rows, int64_t depth, int64_t width) {
  int64_t most = depth > width ? depth : width;
  return rows * ((most + 15) / 16 * 16);
}

typedef struct MothAttentionRows {
  /* Scores, their weights exp(score - max) and what they make of the values; dropped ones are 0. max and
   * sum go on, out is scaled to the new max. */
  void (*weights)(const MothAttentionTile *t);
  /* out /= sum; lse. */
  void (*finish)(const MothAttentionTile *t);
  /* What the tile adds to dq, dk and dv. */
  void (*backward)(const MothAttentionTile *t);
  /* delta = a . b - minus (NULL: 0), n elements each */
  void (*dot)(void *delta, const void *a, const void *b, int64_t n, const void *minus);
  /* to += from */
  void (*add)(void *to, const void *from, int64_t n);
} MothAttentionRows;

/* [double][level]: generated */
extern const MothAttentionRows *const moth_attention_rows[2][MOTH_NISAS];
#endif
