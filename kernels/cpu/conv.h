/* Convolution on the CPU: what kernels/cpu/conv.c hands to the typed kernels. */
#ifndef MOTH_CPU_CONV_H
#define MOTH_CPU_CONV_H
#include <stdint.h>

/* Note [Convolution by shifts]
 *
 * An image is first copied into planes that have its padding in them, and whose columns and rows are
 * dealt out by the stride: phase (a, b) of a channel holds the pixels (i * sy + a, j * sx + b). Let
 * every plane be `pitch` wide and number the results of a strip of rows as l = i * pitch + j. Then what
 * a kernel position (ky, kx) contributes to result l lies at l + shift in the plane of its phase, with
 * one shift for all l. So no matrix of columns is built: the product of the weight (rows x kk) with the
 * columns is taken by a micro-kernel that reads its right-hand side straight from the planes, `kk`
 * addresses away from each other that stand in a table. The results with j >= cols, at the end of each
 * row, mean nothing and are not stored.
 *
 * The derivative by the input is the same: for each phase of the input's pixels, a convolution of
 * stride 1 of the results' gradient with those positions of the kernel that meet this phase. The
 * derivative by the weight is a product of rows, of the gradient laid out in the same pitch with zeros
 * in the meaningless places, and of the shifted planes, over all l of many strips.
 *
 * No sum is cut between threads but that of the weight's derivative, whose cut depends on shapes alone:
 * results have the same bits for any number of threads. */

/* One dimension of a convolution: result i takes kernel position t from plane row i + shift[t] of
 * phase[t]; row i of phase a is pixel (i * step + offset[a]) of the source. */
typedef struct MothConvAxis {
  int64_t count;       /* results */
  int64_t size;        /* pixels of the source */
  int64_t step;        /* of the source, between rows of a plane */
  int64_t span;        /* 1 + the largest shift */
  int64_t to, to_step; /* result i goes to row to + i * to_step */
  int nphases, ntaps;
  int64_t *offset; /* [nphases] */
  int64_t *tap;    /* [ntaps]: the kernel position */
  int64_t *phase, *shift;
} MothConvAxis;

/* Planes of a strip: results of rows [row, row + rows). */
typedef struct MothConvPlanes {
  const MothConvAxis *y, *x;
  const void *src; /* first channel */
  int64_t channels, src_plane;
  int64_t row, rows, pitch, plane; /* plane: elements from one plane to the next */
  void *out;                       /* [channels][y phases][x phases][plane] */
} MothConvPlanes;

/* A product of the weight with the shifted planes, stored as rows of images. */
typedef struct MothConvStrip {
  const void *weight; /* packed by conv_pack */
  const void *bias;   /* [m] or NULL */
  const void *planes;
  const int32_t *at; /* [kk]: where the planes' shifted rows begin */
  int64_t m, kk;
  int64_t rows, cols, pitch;
  void *out;                       /* result (0, 0) of row 0 */
  int64_t out_m, out_row, out_col; /* steps, in elements */
} MothConvStrip;

/* out[i * kk + j] += sum over units u and l of a[u][i][l] * b[u][at[j] + l] */
typedef struct MothConvDots {
  const void *a, *b;
  int64_t a_unit, a_row, b_unit; /* steps, in elements */
  const int32_t *at;
  int64_t units, m, kk, length; /* length: a multiple of conv_lanes() */
  void *out;
  int64_t out_row;
} MothConvDots;
#endif
