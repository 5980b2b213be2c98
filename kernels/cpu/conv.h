/* Arguments of the typed convolution kernels (kernels/cpu/typed/conv.h), set by kernels/cpu/conv.c. */
#ifndef MOTH_CPU_CONV_H
#define MOTH_CPU_CONV_H
#include <stdint.h>

#include "core/behind.h"
#include "kernels/common/window.h"

/* Note [Convolution by shifts]
 *
 * An image is first copied into planes that include its padding, once between two rows, and are split by the
 * stride: phase (a, b) of a channel has the pixels (i * sy + a, j * sx + b). Let every plane be `pitch` wide and
 * number the results of a strip of rows as l = i * pitch + j. Then result l reads, for kernel position (ky, kx),
 * element l + shift of the plane of its phase, with one shift for all l. So no matrix of columns is built: a
 * micro-kernel multiplies the weight (rows x kk) by rows that it reads directly from the planes, at kk offsets in
 * a table. Results with j >= cols, at the end of each row, are meaningless and not stored. Rows of the kernel that
 * read nothing but padding are left out.
 *
 * The derivative by the input is the same: for each phase of the input's pixels, a convolution of stride 1 of
 * the results' gradient with the kernel positions that read this phase. The derivative by the weight is a dot
 * product, over all l of many strips, of rows of the gradient, laid out in the same pitch with zeros in the
 * meaningless elements, and rows of the shifted planes.
 *
 * Only the weight's derivative splits sums between threads, by shapes alone: results have the same bits for any
 * number of threads. */

/* One dimension of a convolution: result i takes kernel position t from plane row i + shift[t] of
 * phase[t]; row i of phase a is pixel (i * stride + offset[a]) of the source. */
typedef struct MothConvAxis {
  int64_t count;         /* results */
  int64_t size;          /* pixels of the source */
  int64_t stride;        /* stride of the source's pixels between rows of a plane */
  int64_t span;          /* 1 + the largest shift */
  int64_t to, to_stride; /* result i goes to row to + i * to_stride */
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

/* Packs rows of the weight: row i, column k is at weight[i * row + at[k]]. */
typedef struct MothConvPack {
  const void *weight;
  int64_t row;
  const int32_t *at; /* [kk] */
  int64_t m, kk;
  void *out; /* as many panels as hold m rows, of kk columns: at most m + 16 rows */
} MothConvPack;

/* A product of the weight with the shifted planes, stored as rows of images. */
typedef struct MothConvStrip {
  const void *weight; /* packed by conv_pack */
  const void *bias;   /* [m] or NULL */
  const void *planes;
  /* at: [kk]: offsets of the planes' shifted rows, those of a row of the kernel together */
  const int32_t *at;
  int64_t m, kk;
  int64_t deep; /* columns of the weight whose planes fit a part of the first cache */
  int64_t rows, cols, pitch;
  /* y, of results of rows [row, row + rows); NULL: no row reads padding */
  const MothConvAxis *y;
  int64_t row;
  void *out;                       /* result (0, 0) of row 0 */
  int64_t out_m, out_row, out_col; /* strides, in elements */
  const MothBehind *behind;        /* NULL: nothing */
  int64_t first;                   /* the number of that element */
} MothConvStrip;

/* One channel of a depthwise convolution: planes, a kernel, its bias or NULL. */
typedef struct MothConvDepthwise {
  const MothConv *g;
  const void *src, *weight, *bias;
  void *out;
} MothConvDepthwise;

/* Kernels of a panel; tiles of a block. */
enum { MOTH_WINOGRAD_M = 8, MOTH_WINOGRAD_T = 48 };

/* A strip of a convolution by tiles (kernels/cpu/typed/winograd.h), of one image and group: rows [row, row + rows) of tiles, of
 * which a row has `across`; or the kernels of a group to be packed. */
typedef struct MothWinograd {
  const MothConv *g;
  const void *weight, *src, *bias, *packed;
  void *to, *out, *work; /* to: packed kernels */
  int64_t c, k, row, rows, across;
  int64_t channels; /* of the result, that are computed together */
  const MothBehind *behind;
  int64_t first; /* the number of the first element of out */
} MothWinograd;

/* Rows of a product get their bias: bias[i] is added to out[i * row + j], j < n. */
typedef struct MothConvBias {
  void *out;
  const void *bias;
  int64_t rows, row, n;
} MothConvBias;

/* out[i * kk + j] += sum over units u and l of a[u][i][l] * b[u][at[j] + l] */
typedef struct MothConvDots {
  const void *a, *b;
  int64_t a_unit, a_row, b_unit; /* strides, in elements */
  const int32_t *at;
  int64_t units, m, kk, length; /* length: a multiple of conv_lanes() */
  void *out;
  int64_t out_row;
} MothConvDots;

/* A matrix of columns: row c * ntaps + t has, for each result, the pixel of channel c that kernel position taps[t] reads, or
 * 0. Results are numbered by image, row and column (`outer` images) or by row, column and image (`inner` images, whose
 * pixels lie side by side in `image`, too); one of outer and inner is 1. */
typedef struct MothConvColumns {
  const MothConv *g;
  const int32_t *taps; /* NULL: all */
  int64_t ntaps, channels, outer, inner;
  int64_t image_stride, channel_stride; /* of `image`, in elements */
  void *image, *columns;
  int64_t row; /* of columns, in elements */
} MothConvColumns;

/* to[j * to_row + i] = from[i * from_row + j] */
typedef struct MothConvTranspose {
  const void *from;
  void *to;
  int64_t rows, cols, from_row, to_row;
} MothConvTranspose;
#endif
