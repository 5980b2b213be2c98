/* Arguments of the typed kernels of softmax and cross_entropy, on every device.
 */
#ifndef MOTH_COMMON_SOFTMAX_H
#define MOTH_COMMON_SOFTMAX_H
#include <stdbool.h>
#include <stdint.h>

/* Row-major, seen as outer x n x inner. */
typedef struct MothSoftmax {
  bool log;
  const void *in;   /* backward: the gradient */
  const void *back; /* backward: the result */
  void *out;
  int64_t outer, n, inner;
  int64_t cols; /* on the CPU: of the inner ones those from the pointers on that
                   are meant, of one outer */
} MothSoftmax;

/* Logits of `rows` rows and n classes. */
typedef struct MothLoss {
  const void *in;
  int64_t rows, n;
  const int64_t *target; /* classes, counted from `base`; on the CPU they are
                            checked before */
  int64_t ignore, base;
  const double *weight; /* [n] or NULL: all 1 */
  double smoothing;
  void *out; /* backward: [rows][n]; CUDA: the loss */
  const double *grad;
  /* CUDA: the reduction, if not a sum. */
  bool none, mean;
  /* The CPU: the sum of the weights of all classes, the loss of each row, and
   * from row to row of `grad`. */
  double total;
  double *loss;
  int64_t grad_stride;
} MothLoss;
#endif
