/* Products of uint8 activations with int8 weights, whose int32 sums are exact, and of int8 activations with weights of
 * 4 bits: what int8.c, int4.c and their typed kernels (typed/int8.h) share.
 *
 * Note [Packed int8 weights]
 * One instruction of AVX-512 VNNI multiplies 64 bytes by 64 and adds neighbouring products by four: sixteen columns,
 * four positions of K. So weights (columns x K) are packed once, in panels of 64 columns, [K / 4][64][4] bytes each;
 * the last panel has only as many columns as are left, rounded up to 16. K is cut into segments, each rounded up to 4
 * by zeros: a convolution's row of its window is one run of a padded image whose channels come last, so that no
 * columns of pixels are written down. Before the panels stand the sums of the columns: activations are
 * scale * (q - zero), and the sums of (q - zero) * w are those of q * w less zero times these.
 * All instruction sets read this layout. */
#ifndef MOTH_CPU_INT8_H
#define MOTH_CPU_INT8_H
#include "dispatch/dispatch.h"

enum { MOTH_INT8_ROWS = 6, MOTH_INT8_COLUMNS = 64 };

/* Packed weights of one group. */
typedef struct MothInt8Weight {
  int64_t n, segments, length; /* columns; bytes of a segment, a multiple of 4 */
  const int64_t *at;           /* [segments] where they begin in a row of activations */
  const int32_t *sums;         /* [n] */
  const int8_t *panels;
} MothInt8Weight;

/* Bytes of packed weights of `groups` groups of n columns. */
static inline int64_t moth_int8_columns(int64_t n) {
  return (n + 15) / 16 * 16;
}
static inline int64_t moth_int8_length(int64_t k) {
  return (k + 3) / 4 * 4;
}

/* sums[r][j]: row r of activations (1 to MOTH_INT8_ROWS) by column j of a panel; rows of sums have MOTH_INT8_COLUMNS
 * elements, of which those behind the panel's width may be left alone. Rows are readable up to whole segments. */
void moth_int8_tile(const MothInt8Weight *w, int64_t panel, const uint8_t *const *rows, int count,
                    int32_t *sums);

/* The arguments of typed kernels; `real` is float or double. */
typedef struct MothInt8Quantize {
  const void *in; /* real [rows][n], rows in_row elements apart */
  int64_t rows, n, in_row;
  uint8_t *out; /* rows out_row bytes apart */
  int64_t out_row;
  bool dynamic;   /* scale and zero point of each row from its extremes */
  double inverse; /* else 1 / scale */
  int32_t zero;
  void *scales;   /* dynamic: real [rows] */
  int32_t *zeros; /* dynamic: [rows] */
} MothInt8Quantize;

/* A row of an image (channels apart) as bytes with the channels last. */
typedef struct MothInt8Pixels {
  const void *in; /* real: the first pixel of channel 0 */
  int64_t channels, width, channel_stride;
  uint8_t *out;  /* [width][channels] */
  uint8_t *line; /* workspace: 4 * width bytes */
  double inverse;
  int32_t zero;
} MothInt8Pixels;

/* A row of a depthwise convolution: out[x] = finished sum of weight[t] * in[at[t] + x * stride]. Whole runs of
 * MOTH_INT8_PIXELS are read, so that there must be bytes behind the last row. */
enum { MOTH_INT8_TAPS = 64, MOTH_INT8_PIXELS = 32 };
typedef struct MothInt8Depthwise {
  const uint8_t *in;
  int64_t n, stride, taps; /* stride 1 or 2 */
  const int32_t *weight;
  const int64_t *at;
  int32_t less;             /* the zero point times the sum of the weight */
  const void *scale, *bias; /* real: one element; bias may be NULL */
  const void *row_scale;    /* real */
  bool relu;
  void *out; /* real [n] */
} MothInt8Depthwise;

/* A tile of sums to results. */
typedef struct MothInt8Finish {
  const int32_t *sums; /* [rows][MOTH_INT8_COLUMNS] */
  int64_t rows, columns;
  const int32_t *of_columns; /* the sums of the weight's columns */
  const void *scale, *bias;  /* real [columns]; bias may be NULL */
  const void *row_scale;     /* real [rows], or one for all */
  const int32_t *row_zero;
  int row_step; /* 1, or 0: one for all rows */
  bool relu;
  void *out;                   /* real */
  int64_t out_row, out_column; /* elements */
} MothInt8Finish;

/* Note [int4 blocks]
 * Weights have two values in a byte, the lower half first, as 0 to 15 for -8 to 7; a scale belongs to `group` values of
 * a row, a multiple of 32. Activations are made int8 by group. A block is 128 values: 64 bytes of weights, and of
 * activations first those of the lower halves, then those of the upper: no weight has to be moved. A lane is 4 bytes of
 * weights, 8 values; less 8 times the sum of its activations, where its sum of products begins. */
enum { MOTH_INT4_BLOCK = 128, MOTH_INT4_LANES = 16 };
typedef struct MothInt4 {
  int64_t rows, n, k, group, groups, blocks;
  int64_t from, to;      /* what is meant: rows of activations, or columns of the product */
  const void *in;        /* real [rows][k] */
  const uint8_t *weight; /* [n][weight_row] */
  int64_t weight_row;
  const void *scale; /* real [n][groups] */
  const void *bias;  /* real [n] or NULL */
  void *out;         /* real [rows][n] */
  int8_t *values;    /* [rows][blocks][128] */
  int32_t *starts;   /* [rows][blocks][16] */
  void *scales;      /* real [rows][blocks][16]: of the activations, of each lane */
  int64_t ahead;     /* rows of the weight that are fetched before */
} MothInt4;

/* Columns of a product in float32, by AVX-512 VNNI or arm64's dot product, where moth_int8_dots(). */
void moth_int4_dots(const MothInt4 *p);
bool moth_int8_dots(void);
#endif
