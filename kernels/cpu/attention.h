/* Kernels of scaled_dot_product_attention on one tile of scores (queries x keys). Compiled for float32,
 * float64 and each instruction set (build/gen/kernels/attention_*.c); chosen at run time. */
#ifndef MOTH_CPU_ATTENTION_H
#define MOTH_CPU_ATTENTION_H
#include "kernels/cpu/loop.h"

/* A tile: `rows` queries x `cols` keys. Rows of score, grad and keep are `score_row` elements apart, padded
 * to whole vectors; rows of the other matrices are *_row elements apart. */
typedef struct MothAttentionTile {
  int64_t rows, cols, score_row;
  int64_t depth, width; /* elements of a query or key; of a value */
  const void *q, *k, *v;
  int64_t q_row, k_row, v_row;
  bool repack;    /* the keys changed since the last tile: pack K (and V) again */
  void *k_packed; /* workspace of moth_attention_packed(keys, depth): K transposed */
  void *v_packed; /* backward: the same of V, moth_attention_packed(keys, width) */
  void *padded;   /* workspace of moth_attention_padded */
  void *score;    /* workspace: in, scaled q.k; out, softmax weights (in backward after dropout) */
  void *grad;     /* backward, workspace: in, gradient of the weights; out, of the scores */
  const void *keep;  /* dropout: 1 or 0; NULL: none */
  double keep_scale; /* 1 / (1 - p) */
  const char *mask;  /* the mask at the tile's first score; NULL: none */
  int64_t mask_row;  /* stride of its rows, in elements */
  bool mask_bool;    /* false excludes a key; else the mask is added to the scores */
  bool mask_wide;    /* one element per key; else one per row */
  int64_t visible;   /* row i attends to the first visible + i keys of the tile */
  void *max;         /* per row: maximum of the tiles so far */
  double *sum;       /* per row: sum of exp(score - max) of the tiles so far */
  void *out;         /* rows x width: sum of weights times values so far, relative to max */
  int64_t out_row;
  bool first;        /* the first tile: max, sum and out are initialised */
  void *lse;         /* per row: log-sum-exp of the scores; +inf if all keys are excluded */
  const void *delta; /* per row: grad_output . output - gradient of lse */
  const void *dout;  /* gradient of the output */
  int64_t dout_row;
  void *dq, *dk, *dv; /* row-major; the tile's part is added to dq */
  bool accumulate;    /* add to dk and dv instead of overwriting them */
  double scale;
} MothAttentionTile;

/* Elements of a tile's workspaces, enough for any instruction set. */
static inline int64_t moth_attention_packed(int64_t keys, int64_t depth) {
  return (keys + 31) / 32 * 32 * depth;
}
static inline int64_t moth_attention_padded(int64_t rows, int64_t depth, int64_t width) {
  int64_t most = depth > width ? depth : width;
  return rows * ((most + 15) / 16 * 16);
}

/* A chunk of keys in pieces of `piece` tokens (the last may have fewer), for few queries. */
typedef struct MothAttentionChunk {
  int64_t rows, cols, piece, depth, width;
  const void *const *k, *const *v; /* the pieces: rows of depth and width elements */
  const void *const *q;            /* the rows of queries */
  void *const *out;                /* theirs of the result */
  void *const *lse;       /* theirs of the log-sum-exp of scores, as of a tile; NULL: none */
  const int64_t *visible; /* per row: keys of the chunk that it attends to, from the first */
  void *score;            /* workspace: rows x cols rounded up to MOTH_ATTENTION_ROUND */
  void *max;
  double *sum;
  bool first;
  double scale;
} MothAttentionChunk;
enum { MOTH_ATTENTION_ROUND = 32 };

typedef struct MothAttentionRows {
  /* One step of the online softmax: computes the weights exp(score - max), 0 where dropped, rescales sum and
   * out to the new max, and adds the tile's weights and weighted values to them. */
  void (*weights)(const MothAttentionTile *t);
  /* After the last tile: out *= keep_scale / sum, and lse. */
  void (*finish)(const MothAttentionTile *t);
  /* Adds the tile's part to dq, dk and dv. */
  void (*backward)(const MothAttentionTile *t);
  /* delta = a . b - *minus (NULL: 0); n elements each */
  void (*dot)(void *delta, const void *a, const void *b, int64_t n, const void *minus);
  /* to += from */
  void (*add)(void *to, const void *from, int64_t n);
  /* As weights, of a chunk for few queries: keys are read once, where they lie. At the end: out *= 1 / sum. */
  void (*few)(const MothAttentionChunk *c);
  void (*few_finish)(const MothAttentionChunk *c);
} MothAttentionRows;

/* [double][level]: generated */
extern const MothAttentionRows *const moth_attention_rows[2][MOTH_NISAS];
#endif
