/* The matrices in the last two dimensions of a tensor: sizes, and errors of factorizations, for kernels of all devices. */
#ifndef MOTH_COMMON_MATRICES_H
#define MOTH_COMMON_MATRICES_H
#include "moth.h"

typedef struct MothMatrices {
  const MothTensor *t;
  int64_t m, n, count;
  size_t item, real; /* bytes of an element, and of its parts */
  bool is_complex;
} MothMatrices;
/* Error: a size is beyond LAPACK's integers. */
MOTH_API MothStatus moth_matrices(const MothTensor *t, MothMatrices *out);

enum { MOTH_NOT_FINITE = -1000 }; /* an `info` of moth's own: elements are infinite or NaN */

/* What a positive `info` of a factorization says. */
typedef enum MothFactorError {
  MOTH_NOT_POSITIVE, /* of Cholesky's */
  MOTH_SINGULAR_U,
  MOTH_SINGULAR_D,
  MOTH_NOT_FULL_RANK,
  MOTH_NO_CONVERGENCE
} MothFactorError;
/* An error that names the first of the `count` matrices of a whose info is not 0, if there is one. */
MOTH_API MothStatus moth_matrices_check(const MothTensor *a, const int32_t *info, int64_t count,
                                        MothFactorError what);
#endif
