/* Arguments of the typed normalisation kernels, on every device. */
#ifndef MOTH_COMMON_NORM_H
#define MOTH_COMMON_NORM_H
#include <stdbool.h>
#include <stdint.h>

/* Parameters, statistics and gradients of parameters are of the dtype's `real`;
 * NULL where not used. Rows: [rows][n], a statistic for each row. Channels:
 * [batch][channels][inner]; a statistic for each group of a sample (groups >
 * 0), else for each channel. */
typedef struct MothNorm {
  int64_t rows, n;
  int64_t batch, channels, inner, groups;
  bool rms, own; /* own: the statistics of `in`; else running ones, which are
                    inputs */
  double eps, momentum;
  const void *in, *grad, *weight, *bias;
  void *out; /* the result; in backward the gradient of `in` */
  void *mean, *rstd, *running_mean, *running_var;
  void *dweight, *dbias;
  /* The CPU, by groups and channels: `rows` lines of n elements, or columns: of the channels those `cols` from the
   * pointers on, `batch` elements each. Numbers of a line or column: */
  int64_t cols;
  const double *center; /* what is subtracted in its sums */
  double *sum,
      *squares; /* its mean and sum of squared deviations; in backward the sums of g and of g (x - center) */
  const double
      *factors; /* four: kg, kx, center and shift of out = kg g + kx (x - center) + shift */
} MothNorm;
#endif
