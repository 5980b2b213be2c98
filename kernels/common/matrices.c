#include "kernels/common/matrices.h"

#include <stdio.h>

#include "core/dtype.h"
#include "core/error.h"
#include "core/tensor.h"

MothStatus moth_matrices(const MothTensor *t, MothMatrices *out) {
  out->t = t;
  out->m = t->shape[t->ndim - 2];
  out->n = t->shape[t->ndim - 1];
  out->item = (size_t)moth_itemsize(t);
  out->is_complex = moth_dtype_is_complex((MothDType)t->dtype);
  out->real = out->is_complex ? out->item / 2 : out->item;
  out->count = 1;
  for (int d = 0; d < t->ndim - 2; d++)
    out->count *= t->shape[d];
  if (out->m > 1 << 30 || out->n > 1 << 30)
    return moth_fail(MOTH_ERR_VALUE, "a matrix of %lldx%lld is too large for LAPACK",
                     (long long)out->m, (long long)out->n);
  return MOTH_OK;
}

MothStatus moth_matrices_check(const MothTensor *a, const int32_t *info, int64_t count,
                               MothFactorError what) {
  char name[64] = "the matrix";
  int64_t at = 0;
  while (at < count && !info[at])
    at++;
  if (at == count)
    return MOTH_OK;
  int code = info[at];
  if (a->ndim > 2)
    snprintf(name, sizeof name, "matrix " MOTH_AT "%lld of the batch", (long long)at);
  if (code == MOTH_NOT_FINITE)
    return moth_fail(MOTH_ERR_VALUE, "%s has elements that are infinite or NaN", name);
  switch (code > 0 ? what : MOTH_NO_CONVERGENCE) {
  case MOTH_NOT_POSITIVE:
    return moth_fail(MOTH_ERR_VALUE,
                     "%s is not positive-definite: its leading minor of order %d is not", name,
                     code);
  case MOTH_SINGULAR_U:
    return moth_fail(MOTH_ERR_VALUE, "%s is singular: U[" MOTH_AT "%d, " MOTH_AT "%d] is 0", name,
                     code - 1, code - 1);
  case MOTH_SINGULAR_D:
    return moth_fail(MOTH_ERR_VALUE, "%s is singular: D[" MOTH_AT "%d, " MOTH_AT "%d] is 0", name,
                     code - 1, code - 1);
  case MOTH_NOT_FULL_RANK:
    return moth_fail(MOTH_ERR_VALUE,
                     "%s has not full rank: element " MOTH_AT "%d of its triangular factor's "
                     "diagonal is 0; use the driver gelsd",
                     name, code - 1);
  case MOTH_NO_CONVERGENCE:
    break;
  }
  return moth_fail(MOTH_ERR_VALUE, "no convergence: %s is ill-conditioned (LAPACK's error code %d)",
                   name, code);
}
